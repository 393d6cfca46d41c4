"""Numbers of a server and of a node in the text format of Prometheus: ``/metrics``.

A server reads them from the ``status.json`` of its run folders, which the processes of runs write. A node reads them from its
audit log, which the process of each message writes (`fedgraph_flwr.secure.audit_numbers`). No label and no value is a number
of a graph or a record.
"""

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from fedgraph_flwr.errors import FedGraphError

PREFIX = "fedgraph_"

KINDS = ("no_reply", "refused", "invalid", "error")
"""Reasons of failed replies (`fedgraph_flwr.strategies.round.Kind`)."""

NAMED_RUNS = 20
"""Most runs that have numbers of their own: the last ones; totals are of all."""


@dataclass
class Metric:
    """One metric.

    Attributes:
        name: its name, without `PREFIX`.
        about: its meaning.
        samples: values by labels.
    """

    name: str
    about: str
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        """Add a sample."""
        self.samples.append((labels, value))

    def family(self) -> Family:
        """Return Prometheus' form of it; a name that ends in ``_total`` is of a counter."""
        name = PREFIX + self.name
        family = Family(name.removesuffix("_total"), self.about, "counter" if name.endswith("_total") else "gauge")
        for labels, value in self.samples:
            family.add_sample(name, {key: str(text) for key, text in labels.items()}, float(value))
        return family


class _Page(Collector):
    """What Prometheus' library makes a page of.

    Args:
        metrics: those of the page; one without samples is left out.
    """

    def __init__(self, metrics: Iterable[Metric]):
        self.metrics = list(metrics)

    def collect(self) -> Iterator[Family]:
        """See Prometheus' collector."""
        return (metric.family() for metric in self.metrics if metric.samples)


def exposition(metrics: Iterable[Metric]) -> str:
    """Return the page of metrics that have samples."""
    return generate_latest(_Page(metrics)).decode()


def of_runs(
    statuses: Mapping[str, Mapping[str, Any]], names: Mapping[str, str], now: float | None = None
) -> list[Metric]:
    """Return the metrics of runs.

    Args:
        statuses: content of ``status.json`` by run folder.
        names: name of the party by Flower's number of its node.
        now: seconds since 1970; default: now.
    """
    now = time.time() if now is None else now
    runs = Metric("runs", "Runs on this server by state.")
    exchanges = Metric("exchanges_total", "Exchanges with nodes by phase.")
    seconds = Metric("exchange_seconds_total", "Seconds of exchanges by phase.")
    moved = Metric("bytes_total", "Bytes of messages: up from nodes, down to them.")
    failures = Metric("failures_total", "Failed replies by party and reason.")
    late = Metric("late_replies_total", "Replies of a party that came after strategy.timeout.")
    replied = Metric("party_last_reply_timestamp_seconds", "Time of the last reply of a party in any run.")
    done = Metric("run_rounds_total", "Rounds that this server finished for a run.")
    wanted = Metric("run_rounds_planned", "Number of rounds of a run.")
    reached = Metric("run_round", "Current round of a run.")
    age = Metric("run_last_round_age_seconds", "Seconds since the last round of a run in progress, or since its start.")
    spent = Metric("run_epsilon_spent", "Spent epsilon of a run with differential privacy.")
    budget = Metric("run_epsilon_budget", "privacy.epsilon_budget of a run.")
    waiting = Metric("run_waiting_for", "1 for each party whose reply a run in progress waits for.")

    states: Counter[str] = Counter()
    by_phase: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    sums: Counter[str] = Counter({"up": 0, "down": 0})
    failed: Counter[tuple[str, str]] = Counter()
    overdue: Counter[str] = Counter()
    last: dict[str, float] = {}
    for status in statuses.values():
        states[str(status.get("state"))] += 1
        for phase, (count, took) in status.get("exchanges", {}).items():
            by_phase[phase] = [by_phase[phase][0] + count, by_phase[phase][1] + took]
        for way in sums:
            sums[way] += status.get(f"bytes_{way}", 0)
        for node, entry in status.get("nodes", {}).items():
            party = names.get(node) or entry.get("name") or node
            last[party] = max(last.get(party, 0.0), entry.get("replied", 0.0))
            overdue[party] += entry.get("late", 0)
            for kind, count in entry.get("failures", {}).items():
                failed[party, kind] += count
    for party in {*names.values(), *last}:  # a counter that begins at 1 has not increased, as Prometheus sees it
        overdue[party] += 0
        for kind in KINDS:
            failed[party, kind] += 0
    for state in sorted({"running", "finished", "failed", "lost", "stopped", *states}):
        runs.add(states[state], state=state)
    for phase, (count, took) in sorted(by_phase.items()):
        exchanges.add(count, phase=phase)
        seconds.add(took, phase=phase)
    for way, total in sums.items():
        moved.add(total, direction=way)
    for (party, kind), count in sorted(failed.items()):
        failures.add(count, party=party, reason=kind)
    for party, count in sorted(overdue.items()):
        late.add(count, party=party)
    for party, at in sorted(last.items()):
        replied.add(at, party=party)
    newest = sorted(statuses, key=lambda run: statuses[run].get("started", 0.0))[-NAMED_RUNS:]
    for run in newest:
        status = statuses[run]
        done.add(status.get("rounds_done", 0), run=run)
        wanted.add(status.get("rounds", 0), run=run)
        reached.add(status.get("round", 0), run=run)
        if status.get("state") == "running":
            age.add(now - status.get("last_round", status.get("started", now)), run=run)
            for node in status.get("waiting", ()):
                entry = status.get("nodes", {}).get(node, {})
                waiting.add(1, run=run, party=names.get(node) or entry.get("name") or node)
        privacy = status.get("privacy", {})
        if (epsilon := privacy.get("epsilon")) is not None:
            spent.add(epsilon, run=run)
            budget.add(privacy.get("budget") or 0.0, run=run)
    return [
        runs,
        done,
        wanted,
        reached,
        age,
        waiting,
        exchanges,
        seconds,
        moved,
        failures,
        late,
        replied,
        spent,
        budget,
    ]


def of_parties(online: Mapping[str, bool]) -> Metric:
    """Return whether each admitted party is online."""
    metric = Metric("party_online", "1 if an admitted party's node is connected.")
    for party, connected in sorted(online.items()):
        metric.add(float(connected), party=party)
    return metric


def of_certificates(files: Iterable[Path]) -> Metric:
    """Return the days that certificates stay valid; a file that is no certificate is skipped."""
    from fedgraph_flwr.fleet.certificates import days_left

    metric = Metric("certificate_days_left", "Days until a certificate ends.")
    for path in files:
        with contextlib.suppress(FedGraphError):
            metric.add(days_left(path), certificate=path.name)
    return metric


def of_memory(processes: Mapping[str, int]) -> Metric:
    """Return the resident memory of processes with their descendants, by the name and number of each."""
    import psutil

    metric = Metric("memory_bytes", "Resident memory of a process and of those that it started.")
    for name, number in processes.items():
        total = 0
        try:
            head = psutil.Process(number)
            for process in (head, *head.children(recursive=True)):
                total += process.memory_info().rss
        except psutil.Error:  # it ended meanwhile
            pass
        if total:
            metric.add(total, process=name)
    return metric

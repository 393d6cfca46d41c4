"""A desk's month on generated books: what each day says, and whether the days alone equal the month.

    python -m benchmarks.desk_month --days 30 --hours          # about three minutes
    python -m benchmarks.desk_month --days 6 --fleet           # each bank's own node links and trains, in one process
    python -m benchmarks.desk_month --days 6 --supernodes      # a SuperLink and a SuperNode of each bank
    python -m benchmarks.desk_month --quiet-days 100 --hours   # only drift, on days without any
    python -m benchmarks.desk_month --quiet-days 100 --hours --write   # and a row in simulations/results/quiet_days.csv

Two banks import, link and train. Each day, both add their file, the first raises alerts, decides all of them by the truth, and
looks for drift, of which the books have none. At half time they link again (``--since``) and train on (``init=``) with the
decisions as labels. Later a third bank joins, and is forgotten again. Figures: the largest difference between a day alone and
the month in one go, quiet days with an alarm, commands that were refused, and the average precision of the month.
"""

import argparse
import contextlib
import csv
import io
import json
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import average_precision_score

from fedgraph_flwr.cli.app import main as fedgraph
from fedgraph_flwr.config import compose
from fedgraph_flwr.engine.flower import end_group
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.party.link.command import link_overrides
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.secure.masked import digest
from fedgraph_flwr.store.earlier import earlier_model
from tests.engine.fleet import NAME, Fleet
from tests.nodes import party_nodes
from tests.party import bank_books as made

QUIET = Path(__file__).parents[1] / "simulations" / "results" / "quiet_days.csv"

NAMES = ("a", "b", "c")
KEYS = [
    "task=edges",
    "strategy=boosting",
    "strategy.min_data_in_leaf=5",
    "evaluation.metric=average_precision",
    "--quiet",
    "--no-report",
]


@dataclass
class Month:
    """What a month showed.

    Attributes:
        scores: what each day's alerts were chosen from, by day and payment.
        whole: the same by one command over the model's days.
        alarms: days on which `drift` exited with 3.
        looked: days on which it ran.
        refused: commands that failed although they should not.
        precision: average precision of the month.
    """

    scores: dict[str, float] = field(default_factory=dict)
    whole: dict[str, float] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    precision: float = np.nan

    @property
    def largest_difference(self) -> float:
        """Largest difference between a day alone and the month."""
        return max(abs(self.whole[name] - value) for name, value in self.scores.items())


class Desk:
    """Two banks' books, then three.

    Args:
        folder: where everything is.
        rows: all payments of all banks.
        history: days before the month.
    """

    def __init__(self, folder: Path, rows: pd.DataFrame, history: int) -> None:
        self.folder, self.rows, self.history, self.month = folder, rows, history, Month()
        made.tables(folder / "tables", rows[rows.day < history], NAMES)
        self.names, self.runs, self.first = list(NAMES[:2]), 0, history
        self.decisions = folder / "decisions.csv"
        for name in NAMES:
            party = folder / "tables" / f"{name}.yaml"
            files = [folder / "tables" / f"{name}_{what}.csv" for what in ("accounts", "history")]
            self.go("book", "new", self.book(name), "--party-file", party, *files)

    def book(self, name: str) -> Path:
        """Return the folder of a bank's book."""
        taken = self.folder / "books" / name
        return taken if name in self.names or taken.is_dir() else self.folder / "waiting" / name

    def go(self, *words: object, codes: tuple[int, ...] = (0,)) -> int:
        """Run a command, and note one that fails."""
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            code = fedgraph([str(word) for word in words])
        if code not in codes:
            self.month.refused.append(f"{' '.join(map(str, words))}: {errors.getvalue()[-300:]}")
        return code

    def train(self, since: bool = True, label: bool = False) -> None:
        """Import and link the books of those present, train, and pin the model."""
        if self.runs:
            self.compare()
        before, self.runs = self.runs, self.runs + 1
        for name in self.names:
            decided = ["--outcomes", self.decisions] if label and name == "a" else []
            self.go("import", "--book", self.book(name), *decided)
        linked = self.link(before if since else 0)
        run = self.folder / f"run{self.runs}"
        start = [f"init={self.folder / f'run{before}'}"] if before else []
        self.go("run", *self.place(linked), f"out={run}", *start, *KEYS)
        self.pin(run)

    def place(self, linked: Path) -> list[str]:
        """Return where a run is."""
        return [f"graph={linked}"]

    def link(self, before: int) -> Path:
        """Link the imported files, with the records of an earlier link unless it is 0; return the folder of linked files."""
        linked = self.folder / f"linked{self.runs}"
        since = ["--since", self.folder / f"linked{before}"] if before else []
        self.go("link", "--books", self.folder / "books", *since, "--out", linked)
        return linked

    def pin(self, run: Path) -> None:
        """Let a run's model score the first bank's days."""
        self.go("book", "use", self.book("a"), run)
        self.go("alerts", run, "--client", 0, "--budget", 3)

    def join(self) -> None:
        """Let the third bank take part."""
        self.names = list(NAMES)
        self.book("c").parent.mkdir(exist_ok=True)
        (self.folder / "waiting" / "c").rename(self.book("c"))
        self.train(since=False, label=True)

    def forget(self) -> None:
        """Remove the third bank from the model."""
        self.compare()
        before, self.runs = self.folder / f"run{self.runs}", self.runs + 1
        run = self.folder / f"run{self.runs}"
        self.go("forget", before, "--party", 2, "--out", run)
        self.pin(run)

    def day(self, day: int, drift: bool) -> None:
        """Add a day's files, raise alerts and decide them."""
        name, rows = str(made.START + day), self.rows[self.rows.day == day]
        for bank in NAMES:
            for path in made.days(self.folder / "days" / bank, rows, bank):
                self.go("book", "add", self.book(bank), path)
        scored, alerts = self.folder / "scored.csv", self.folder / f"alerts_{name}.csv"
        self.go("predict", "--book", self.book("a"), "--from", name, "--out", scored)
        predictions = pd.read_csv(scored)
        self.month.scores |= dict(zip(predictions["edge"], predictions["p_yes"], strict=True))
        self.go("alerts", "--book", self.book("a"), "--from", name, "--reasons", 0, "--out", alerts)
        listed = pd.read_csv(alerts)
        truth = self.rows.set_index("ref")["fraud"] == "yes"
        listed["outcome"] = [str(bool(truth[ref])).lower() for ref in listed["edge"]]
        listed.to_csv(alerts, index=False)
        self.go("alerts", "--book", self.book("a"), "--outcomes", alerts)
        listed.to_csv(self.decisions, mode="a", header=not self.decisions.exists(), index=False)
        if drift:
            self.month.looked.append(name)
            if self.go("drift", "--book", self.book("a"), "--from", name, codes=(0, 3)) == 3:
                self.month.alarms.append(name)

    def compare(self) -> None:
        """Score the days since the last model in one go."""
        last = int(self.rows.set_index("ref").loc[[*self.month.scores], "day"].max())
        span = "--from", made.START + self.first, "--until", made.START + last
        self.go("predict", "--book", self.book("a"), *span, "--out", self.folder / "whole.csv")
        predictions = pd.read_csv(self.folder / "whole.csv")
        self.month.whole |= dict(zip(predictions["edge"], predictions["p_yes"], strict=True))
        self.first = last + 1


class FleetDesk(Desk):
    """Likewise; each bank's own node links and trains, and all that it is sent passes through Flower's protobuf.

    Args:
        patch: what makes the clients of this process nodes of parties.
        folder: where everything is.
        rows: all payments of all banks.
        history: days before the month.
    """

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, rows: pd.DataFrame, history: int) -> None:
        super().__init__(folder, rows, history)
        self.patch, self.states, self.policy = patch, folder / "states", folder / "policy.yaml"

    def link(self, before: int) -> Path:
        """Link the imported files at the nodes, which then read their linked files."""
        linked = self.folder / f"linked{self.runs}"
        paths = [linked / f"client_{client:04d}.safetensors" for client in range(len(self.names))]
        linked.mkdir()
        for name, path in zip(self.names, paths, strict=True):
            shutil.copy(self.folder / "tables" / f"{name}.safetensors", path)
        self.allow()
        party_nodes(self.patch, paths, self.policy, self.states)
        keys = link_overrides(LinkRules(increment=bool(before)))
        run_inline(with_folder(compose([f"graph={linked}", f"out={self.folder / f'link{self.runs}'}", *keys])))
        for path in paths:
            path.with_name(f"linked_{path.name}").replace(path)
        return linked

    def allow(self) -> None:
        """Let the nodes start with the models of the runs so far."""
        models = [earlier_model(run, "init", {}).arrays for run in sorted(self.folder.glob("run*"))]
        policy = {
            "min_nodes": 0,
            "max_share": 1.0,
            "tasks": ["edges"],
            "start_models": [digest(m).hex() for m in models],
        }
        self.policy.write_text(json.dumps(policy | {"link": {"match": ["payments"], "min_shared": 1, "hours": 0}}))

    def pin(self, run: Path) -> None:
        """Let the model of the run that the first bank's node stored last score its days."""
        stored = max(self.states.glob("state_0/**/model_last.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        self.go("book", "use", self.book("a"), stored.parents[1])
        self.go("alerts", stored.parents[1], "--budget", 3)

    def forget(self) -> None:
        """Remove the third bank: link and train again without it, at nodes with new state folders."""
        self.compare()
        before, self.runs = self.folder / f"run{self.runs}", self.runs + 1
        self.names, self.states = self.names[:2], self.folder / "new_states"
        linked, run = self.link(self.runs - 1), self.folder / f"run{self.runs}"
        config = before / "config.yaml"
        self.go("run", f"config={config}", *self.place(linked), "num_clients=2", f"out={run}", "--quiet", "--no-report")
        self.pin(run)


class NodesDesk(FleetDesk):
    """Likewise; a SuperLink runs what links and trains, and each bank has a SuperNode.

    Args:
        patch: what makes Flower's commands of this process those of the fleet.
        folder: where everything is.
        rows: all payments of all banks.
        history: days before the month.
    """

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, rows: pd.DataFrame, history: int) -> None:
        super().__init__(patch, folder, rows, history)
        self.graphs, self.states = folder / "graphs", folder / "fleet"
        for path in (self.graphs, self.states):
            path.mkdir()
        for number in range(len(NAMES)):
            (self.graphs / f"client_{number:04d}.safetensors").touch()
        self.machines = Fleet(self.states, self.graphs)
        for key, value in self.machines.environment.items():
            patch.setenv(key, value)
        self.machines.start_superlink()
        self.machines.register(*range(len(NAMES)))

    def place(self, linked: Path) -> list[str]:
        """Return the fleet, whose nodes have the files."""
        return [f"engine={NAME}", f"num_clients={len(self.names)}"]

    def link(self, before: int) -> Path:
        """Link the imported files at the nodes; those of banks that were not there are started, others are ended."""
        self.allow()
        for number, name in enumerate(self.names):
            shutil.copy(self.folder / "tables" / f"{name}.safetensors", self.machines.files[number])
        kept = {f"node_{number}" for number in range(len(self.names)) if self.states == self.machines.folder}
        for name in {*self.machines.processes} - kept - {"superlink"}:
            end_group(self.machines.processes.pop(name))
        for number in range(len(self.names)):
            if f"node_{number}" not in self.machines.processes:
                state = str(self.states / f"state_{number}")
                self.machines.start_node(number, policy=str(self.policy), state=state)
        self.go("link", *self.place(self.graphs), "--quiet", *(["--since"] if before else []))
        for path in self.machines.files[: len(self.names)]:
            path.with_name(f"linked_{path.name}").replace(path)
        return self.graphs


def month(
    folder: Path,
    days: int = 30,
    hours: bool = True,
    history: int = 40,
    every: int = 1,
    seed: int = 0,
    patch: pytest.MonkeyPatch | None = None,
    supernodes: bool = False,
) -> Month:
    """Return what a month on generated books shows.

    Args:
        folder: new folder.
        days: of the month.
        hours: whether payments have hours, not only dates.
        history: days before it.
        every: drift is looked at on each such day.
        seed: of the books.
        patch: for a month on a fleet; None for a simulation.
        supernodes: whether the nodes of the fleet are SuperNodes.
    """
    rows = made.payments(history + days, hours, seed, NAMES)
    fleet = NodesDesk if supernodes else FleetDesk
    desk = fleet(patch, folder, rows, history) if patch else Desk(folder, rows, history)
    try:
        return _lived(desk, days, history, every)
    finally:
        if isinstance(desk, NodesDesk):
            desk.machines.stop()


def _lived(desk: Desk, days: int, history: int, every: int) -> Month:
    """Return what a desk's month shows."""
    desk.train()
    joins, leaves = history + 2 * days // 3, history + 5 * days // 6
    for day in range(history, history + days):
        if day == history + days // 2:
            desk.train(label=True)
        if day == joins:
            desk.join()
        if day == leaves:
            desk.forget()
        desk.day(day, (day - history) % every == 0)
    desk.compare()
    record = desk.month
    truth = desk.rows.set_index("ref").loc[[*record.scores], "fraud"] == "yes"
    record.precision = float(average_precision_score(truth, [*record.scores.values()]))
    return record


def quiet(folder: Path, days: int, hours: bool, history: int, seed: int) -> Month:
    """Return on which of many days without drift `drift` alarms."""
    desk = Desk(folder, made.payments(history + days, hours, seed, NAMES), history)
    desk.train()
    rows = desk.rows[desk.rows.day >= history]
    for path in made.days(folder / "days", rows, "a"):
        desk.go("book", "add", desk.book("a"), path)
    for day in range(history, history + days):
        name = str(made.START + day)
        desk.month.looked.append(name)
        if desk.go("drift", "--book", desk.book("a"), "--from", name, "--until", name, codes=(0, 3)) == 3:
            desk.month.alarms.append(name)
    return desk.month


def store(args: argparse.Namespace, record: Month, seconds: float) -> None:
    """Add a row on quiet days to `QUIET`."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=QUIET.parent
    ).stdout.strip()
    row = {"days": len(record.looked), "hours": args.hours, "history": args.history, "seed": args.seed}
    row |= {
        "alarms": len(record.alarms),
        "refused": len(record.refused),
        "cpu_seconds": round(seconds, 1),
        "commit": commit,
    }
    fresh = not QUIET.is_file()
    with QUIET.open("a", newline="") as file:
        writer = csv.DictWriter(file, [*row], lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def main() -> None:
    """Print the figures of a month."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--history", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hours", action="store_true", help="payments with hours, not only dates")
    parser.add_argument("--fleet", action="store_true", help="each bank's own node links and trains")
    parser.add_argument("--supernodes", action="store_true", help="with a SuperLink and a SuperNode of each bank")
    parser.add_argument("--quiet-days", type=int, default=0, help="only drift, on so many days without any")
    parser.add_argument("--write", action="store_true", help=f"with --quiet-days: add a row to {QUIET.name}")
    args = parser.parse_args()
    if args.quiet_days:
        start = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            record = quiet(Path(folder) / "month", args.quiet_days, args.hours, args.history, args.seed)
        if args.write:
            store(args, record, time.process_time() - start)
        print(
            f"drift: {len(record.alarms)} alarms on {len(record.looked)} quiet days {record.alarms}; {record.refused}"
        )
        return
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        fleet = patch if args.fleet or args.supernodes else None
        shape = args.days, args.hours, args.history, 1, args.seed, fleet, args.supernodes
        record = month(Path(folder) / "month", *shape)
    print(
        f"{len(record.scores)} payments; largest difference of a day alone and the month: {record.largest_difference:.2g}"
    )
    print(f"drift: {len(record.alarms)} alarms on {len(record.looked)} quiet days {record.alarms}")
    print(f"commands that were refused: {len(record.refused)}", *record.refused, sep="\n  ")
    print(f"average precision of the month: {record.precision:.3f}")


if __name__ == "__main__":
    main()

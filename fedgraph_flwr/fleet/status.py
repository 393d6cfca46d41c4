"""State of a run on a fleet's server, in its folder: the file ``status.json``, for operators and monitors.

It has what each exchange shows: phase, round, who has not replied, and per node the last reply, failure and versions. It
has no scores, and no number of a graph.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from flwr.app import ConfigRecord, Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import MALFORMED, RunFailed, sanitize
from fedgraph_flwr.fleet.parties import name_clients, nodes_of, read_parties
from fedgraph_flwr.fleet.relay import Relay
from fedgraph_flwr.fleet.run_folders import STATUS
from fedgraph_flwr.wire.messages import ASKS_VERSIONS, CONFIG, METRICS, STARTED_BY, VERSIONS

RECENT = 10
"""Number of last rounds whose median duration predicts the time left."""

EVERY = 1.0
"""Least seconds between two writes while replies of an exchange arrive."""


REMOVED = "the server has removed this node from the fleet (fleet remove)"


class RunStatus:
    """Writer of a run's ``status.json``.

    Args:
        folder: the run's folder.
        run_id: Flower's number of the run.
        values: further values, such as the method and the number of rounds.
    """

    def __init__(self, folder: Path, run_id: int, **values: Any):
        self.path, now = folder / STATUS, time.time()
        self.values: dict[str, Any] = {
            "run_id": str(run_id),
            "state": "running",
            "started": now,
            "round": 0,
            "phase": "",
        }
        self.values |= {"nodes": {}, "exchanges": {}, "bytes_up": 0, "bytes_down": 0, "rounds_done": 0}
        self.values |= {"pid": os.getpid(), **values}
        self.waiting: dict[str, None] = {}
        self.names: dict[str, str] = {}
        self.removed: set[str] = set()
        self.seconds: list[float] = []
        self.stored = -EVERY

    def add_up(self, before: Mapping[str, Any]) -> None:
        """Continue the totals of a resumed run's earlier status."""
        totals = ("nodes", "exchanges", "bytes_up", "bytes_down", "rounds_done")
        self.values |= {key: before[key] for key in totals if isinstance(before.get(key), type(self.values[key]))}

    def write(self, **values: Any) -> None:
        """Store values, besides those before."""
        self.values |= {"waiting": list(self.waiting), **values, "updated": time.time()}
        self.stored = time.monotonic()
        write_bytes(self.path, json.dumps(self.values).encode())

    def write_progress(self) -> None:
        """Store what replies changed, at most each `EVERY` seconds."""
        if time.monotonic() - self.stored >= EVERY:
            self.write()

    def read_parties(self) -> None:
        """Note the names of parties, and which the server has removed."""
        known = read_parties(self.path.parent.parent)
        self.names |= {node: entry["name"] for node, entry in known.items() if entry["name"]}
        self.removed = {node for node, entry in known.items() if entry["removed"]}
        for node, entry in self.values["nodes"].items():
            entry |= {"name": self.names[node]} if node in self.names else {}

    def named(self, text: str) -> str:
        """Return a text with the parties of its clients, and with names instead of numbers of nodes."""
        nodes = {entry["client"]: int(node) for node, entry in self.values["nodes"].items() if "client" in entry}
        return name_clients(text, nodes, self.names)

    def asked(self, phase: str, server_round: int, nodes: Iterable[int]) -> None:
        """Record the requests of an exchange."""
        self.read_parties()
        self.waiting = dict.fromkeys(sorted(map(str, nodes)))
        self.write(phase=phase, round=server_round)

    def replied(self, node: int, client: int | None = None, versions: Mapping[str, str] | None = None) -> None:
        """Record a reply; `write` stores it.

        Args:
            node: Flower's number of the node.
            client: its index, if the reply has it.
            versions: versions of its packages, if the reply has them.
        """
        entry = self._node(node)
        entry["replied"] = time.time()
        entry |= {} if client is None else {"client": client}
        entry |= {"versions": dict(versions)} if versions else {}

    def late(self, node: int) -> None:
        """Record a reply that came after ``strategy.timeout``; `write` stores it."""
        entry = self._node(node)
        entry["late"] = entry.get("late", 0) + 1

    def done(self, node: int) -> None:
        """Record that nothing more is expected of a node in this exchange; `write_progress` stores it."""
        self.waiting.pop(str(node), None)

    def exchanged(
        self,
        phase: str,
        server_round: int,
        costs: Mapping[str, float],
        failures: Mapping[int, str],
        kinds: Mapping[int, str],
    ) -> None:
        """Record the end of an exchange.

        Args:
            phase: name of the phase.
            server_round: number of the round.
            costs: ``seconds``, ``bytes_up`` and ``bytes_down``.
            failures: reason by node that has no valid reply.
            kinds: kind of each failure (`fedgraph_flwr.strategies.round.Kind`).
        """
        count, seconds = self.values["exchanges"].get(phase, (0, 0.0))
        self.values["exchanges"][phase] = (count + 1, seconds + costs["seconds"])
        for key in ("bytes_up", "bytes_down"):
            self.values[key] += costs[key]
        for node, reason in failures.items():
            entry = self._node(node)
            entry["failed"] = {"at": time.time(), "round": server_round, "phase": phase}
            entry["failed"] |= {"reason": sanitize(self.named(reason), 300)}
            counts = entry.setdefault("failures", {})
            counts[kinds[node]] = counts.get(kinds[node], 0) + 1
        self.waiting.clear()
        self.write()

    def took_round(self, record: Mapping[str, Any]) -> None:
        """Record a finished round (see `Recorder.end_round`)."""
        self.seconds = [*self.seconds, record["seconds"]][-RECENT:]
        left = max(self.values.get("rounds", 0) - record["round"], 0)
        spent = {
            key: value for key, value in record.get("privacy", {}).items() if key in ("epsilon", "delta", "budget")
        }
        self.write(
            round_done=record["round"],
            rounds_done=self.values["rounds_done"] + 1,
            last_round=time.time(),
            seconds_left=left * median(self.seconds),
            **({"privacy": spent} if spent else {}),
        )

    def _node(self, node: int) -> dict[str, Any]:
        named = {"name": name} if (name := self.names.get(str(node))) else {}
        entry: dict[str, Any] = self.values["nodes"].setdefault(str(node), named)
        return entry


class WatchedGrid(Relay):
    """Grid that records in a run's status what is exchanged.

    Args:
        grid: sends the messages.
        status: the run's status; first written by the first call, when this run owns the folder.
        parties: names of the parties that take part, who must be connected when the run starts; empty: all.
        limit_pull: limits the seconds for which the next pull may wait for a reply that has begun to arrive.
    """

    def __init__(
        self,
        grid: Grid,
        status: RunStatus,
        limit_pull: Callable[[float], None] | None = None,
        parties: Sequence[str] = (),
    ):
        super().__init__(grid)
        self.parties, self.chosen = parties, dict[int, str]()
        self.status, self.begun = status, False
        self.asked_versions: dict[int, Any] = {}  # by node, the round in which it was last asked for its versions
        self.blocks = bool(getattr(grid, "blocks", False))
        self.limit_pull = limit_pull
        self.overdue: dict[str, Any] = {}  # see `strategies.exchange`
        self.exchanged, self.named = status.exchanged, status.named

    def get_node_ids(self) -> Iterable[int]:
        """Return the connected nodes of the parties that take part.

        Raises:
            FedGraphError: a chosen party is unknown, or is not connected at the run's first call.
        """
        nodes = list(self.grid.get_node_ids())
        if not self.begun:
            self.begun = True
            self.status.write()
            self.chosen = nodes_of(self.parties, self.status.path.parent.parent)
            absent = ", ".join(sorted(name for node, name in self.chosen.items() if node not in nodes))
            if absent and not self.status.values["nodes"]:  # else a resumed run, which continues without them
                raise RunFailed(f"parties= names {absent}, not connected now: start these nodes, or leave them out")
        return [node for node in nodes if node in self.chosen or not self.chosen]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; the first one of a round asks a node for its versions: it may have been upgraded since.

        The first one of the run names the operator who started it.
        """
        outgoing = list(messages)
        records = [message.content.config_records.get(CONFIG) for message in outgoing]
        for message, record in zip(outgoing, records, strict=True):
            node = message.metadata.dst_node_id
            if record is not None and node not in self.asked_versions and (who := self.status.values.get("operator")):
                record[STARTED_BY] = who
            if record is not None and self.asked_versions.get(node) != record.get("round"):
                self.asked_versions[node] = record.get("round")
                record[ASKS_VERSIONS] = True
        sent = self.grid.push_messages(outgoing)
        if outgoing and (first := records[0]) is not None:
            server_round = first.get("round")
            nodes = [message.metadata.dst_node_id for message in outgoing]
            self.status.asked(str(first.get("phase")), server_round if isinstance(server_round, int) else 0, nodes)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Receive messages, and take out the versions of nodes."""
        arrived = list(self.grid.pull_messages(message_ids))
        for message in arrived:
            self._note(message)
        if arrived:
            self.status.write_progress()
        return arrived

    def _note(self, message: Message) -> None:
        node = message.metadata.src_node_id
        late = message.metadata.reply_to_message_id in self.overdue
        if not late:
            self.status.done(node)
        if message.has_error():
            if message.error.code == ErrorCode.NODE_UNAVAILABLE:
                self.status.read_parties()
                if str(node) in self.status.removed:
                    message.error = Error(ErrorCode.MESSAGE_UNAVAILABLE, REMOVED)
            return
        if late:
            self.status.late(node)
        numbers = message.content.get(METRICS)
        client = numbers.get("client") if numbers is not None else None
        record = message.content.pop(VERSIONS, None)
        versions = (
            {sanitize(k, 40): sanitize(v, 40) for k, v in [*record.items()][:8]}
            if isinstance(record, ConfigRecord)
            else {}
        )
        self.status.replied(node, client if type(client) is int else None, versions)


def read_status(folder: Path) -> dict[str, Any]:
    """Return the status of a run on this machine; {} if it has none that can be read.

    The state is ``running``, ``finished``, ``failed``, or ``lost``: the run's process has ended without a result.
    """
    try:
        status = json.loads((folder / STATUS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(status, dict):
        return {}
    if status.get("state") == "running" and not _works(status.get("pid"), status.get("started")):
        what = "the run's process ended without a result"
        status |= {"state": "lost", "waiting": [], "reason": f"{what}: resume=RUN continues from its last checkpoint"}
    return status


def _works(number: Any, started: Any) -> bool:
    """Return whether a process has this number since this time."""
    try:
        return bool(psutil.Process(int(number)).create_time() < float(started) + 1.0)
    except (psutil.Error, *MALFORMED):
        return False

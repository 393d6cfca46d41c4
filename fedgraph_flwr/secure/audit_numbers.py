"""Numbers of a node's audit log for a monitor, without its reasons or any number of a graph."""

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import MALFORMED
from fedgraph_flwr.fleet.audit_chain import entry_name, files_of, ledger_of
from fedgraph_flwr.fleet.metrics import Metric
from fedgraph_flwr.secure.spent import check_booking, spent

PHASES = 50
"""Most phases that are counted by their names."""


class AuditNumbers:
    """Numbers of a node's audit log, also of its older files, read from where the last look ended.

    Args:
        path: the log; it may not exist yet.
    """

    def __init__(self, path: Path):
        self.path, self.end, self.last = path, 0, 0.0
        self.requests: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[str] = Counter()
        self.booked: dict[str, dict[str, dict[str, Any]]] = {}  # releases with noise, by purpose

    def metrics(self) -> list[Metric]:
        """Return the metrics of the log as it is now."""
        self._read()
        requests = Metric("node_requests_total", "Requests of the server by phase, and whether the node replied.")
        moved = Metric("node_bytes_total", "Bytes of requests (received) and of replies (sent).")
        age = Metric("node_last_request_timestamp_seconds", "Time of the last request of the server.")
        for (phase, result), count in sorted(self.requests.items()):
            requests.add(count, phase=phase, result=result)
        for way, total in sorted(self.bytes.items()):
            moved.add(total, direction=way)
        if self.last:
            age.add(self.last)
        epsilon = Metric("node_epsilon_spent", "Epsilon at delta 1e-5 of all releases of this node's log, by purpose.")
        for purpose, entries in sorted(self.booked.items()):
            epsilon.add(spent(entries), purpose=purpose)
        return [requests, moved, age, epsilon]

    def _read(self) -> None:
        files = files_of(self.path.parent)
        size = sum(path.stat().st_size for path in files)
        if size < self.end:  # another log
            self.__init__(self.path)  # type: ignore[misc] # starts again
        before = 0
        for path in files:
            here = path.stat().st_size
            if self.end < before + here:
                with path.open("rb") as file:
                    file.seek(self.end - before)
                    content = file.read(before + here - self.end)
                for line in content[: content.rfind(b"\n") + 1].splitlines(keepends=True):
                    self.end += len(line)
                    self._take(line)
            before += here

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            at = datetime.strptime(entry["at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
            known = {
                phase for phase, _ in self.requests
            }  # a server chooses names of phases, and a label must stay bounded
            phase = entry["phase"] if entry["phase"] in known or len(known) < PHASES else "other"
            self.requests[phase, "refused" if entry["refused"] else "replied"] += 1
            self.bytes["received"] += entry["received"]
            self.bytes["sent"] += sum(entry["sent"].values())
            self.last = at
            if noise := entry["noise"]:
                check_booking(noise)
                booked = self.booked.setdefault(str(noise["purpose"]), {})
                name = f"{ledger_of(noise)} {entry_name(entry['run'], noise)}"
                before = booked.get(name, {"releases": 0})["releases"]
                booked[name] = noise | {"releases": before + noise["releases"]}
        except MALFORMED:  # `fedgraph-flwr audit` names it
            return

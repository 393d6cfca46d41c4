"""Seconds a round of FedAvg takes on a fleet on loopback: a SuperLink and three SuperNodes, TLS and authentication on.

    python -m benchmarks.fleet [rounds=3]

Before: Flower's own `send_and_receive`, and an exchange of its own for every evaluation. After: one exchange a round, and
polling that adapts. Then with SuperNodes that look for work every 0.1 s instead of every second, which is a setting of
theirs. The work itself is empty: tiny graphs, so that a round costs what its exchanges cost.
"""

import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from flwr.app import Message

from fedgraph_flwr.messages import Reply
from fedgraph_flwr.strategies.fedavg import FedAvg


class Before(FedAvg):
    """FedAvg with two exchanges a round through Flower's own waiting."""

    def _welcome(self) -> None:
        if self.recorder.pending:
            self._evaluate()

    def _collect(self, phase: str, messages: Iterable[Message]) -> tuple[list[tuple[Reply, Message]], dict[int, str]]:
        began = time.perf_counter()
        answers = self.grid.send_and_receive(list(messages), timeout=self.cfg.strategy.timeout)
        pairs = [(self._checked(phase, message, "a client"), message) for message in answers]
        self.recorder.exchanged(phase, 0, 0, time.perf_counter() - began, {})
        return sorted(pairs, key=lambda pair: pair[0].client), {}


POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
CASES = {
    "before": ("1", ["strategy.server=benchmarks.fleet:Before"]),
    "after": ("1", []),
    f"after, {POLL}=0.1": ("0.1", []),
}


def main() -> None:
    """Print seconds a round for each case."""
    from tests.conftest import client_graph
    from tests.engine.fleet import Fleet

    words = ["rounds=3", *sys.argv[1:]]
    for what, (poll, more) in CASES.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for client in range(3):
                client_graph(client).save(folder / "graphs" / f"client_{client:04d}.safetensors")
            fleet = Fleet(folder, folder / "graphs")
            fleet.environment[POLL] = poll
            try:
                fleet.start()
                summary = fleet.run(folder / "run", *words, *more).summary
            finally:
                fleet.stop()
        seconds = (summary["total_seconds"] - summary["setup_seconds"]) / summary["rounds"]
        print(f"{what:50} {seconds:6.1f} s a round", flush=True)


if __name__ == "__main__":
    main()

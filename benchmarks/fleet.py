"""Seconds a round of FedAvg takes on a fleet on loopback: a SuperLink and three SuperNodes, TLS and authentication on.

    python -m benchmarks.fleet [rounds=3]

Before: Flower's own `send_and_receive`, and an exchange of its own for every evaluation. After: one exchange a round, and
polling that adapts. Then with SuperNodes that look for work every 0.1 s instead of every second, which is a setting of
theirs. The work itself is empty: tiny graphs, so that a round costs what its exchanges cost.
"""

import sys
import tempfile
from pathlib import Path

POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
CASES = {
    "as it is": "1",
    f"{POLL}=0.1": "0.1",
}


def main() -> None:
    """Print seconds a round for each case."""
    from tests.conftest import client_graph
    from tests.engine.fleet import Fleet

    words = ["rounds=3", *sys.argv[1:]]
    for what, poll in CASES.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for client in range(3):
                client_graph(client).save(folder / "graphs" / f"client_{client:04d}.safetensors")
            fleet = Fleet(folder, folder / "graphs")
            fleet.environment[POLL] = poll
            try:
                fleet.start()
                summary = fleet.run(folder / "run", *words).summary
            finally:
                fleet.stop()
        seconds = (summary["total_seconds"] - summary["setup_seconds"]) / summary["rounds"]
        print(f"{what:50} {seconds:6.1f} s a round", flush=True)


if __name__ == "__main__":
    main()

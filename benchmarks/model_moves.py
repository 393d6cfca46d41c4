"""How far honest models move between two training requests: the largest ‖θ − θ'‖ / ‖θ'‖ of each method (policy: `max_step`).

    python -m benchmarks.model_moves [METHOD ...] [--rounds 10]

Each method runs by its defaults on three small clients (CSBM; typed methods need other data and are left out). Prints the largest
move of all rounds and that after the third round, and the largest over the methods.
"""

import argparse
import contextlib
import io
import tempfile
from collections.abc import Mapping

import numpy as np

from fedgraph_flwr.config import configuration, group_names
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.node import node
from fedgraph_flwr.secure.policy import Policy, simulated

SMALL = ["dataset=csbm", "num_clients=3", "dataset.nodes_per_client=[60,90]", "checkpoint_every=0"]


def moves(method: str, rounds: int) -> list[float]:
    """Return the moves of a method's models, in the order in which clients saw them."""
    found: list[float] = []

    def record(self: Policy, model: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray]) -> None:
        names = model.keys() & before.keys()
        square = [
            sum(float(np.square(a).sum()) for a in part)
            for part in ((model[n] - before[n] for n in names), (before[n] for n in names))
        ]
        found.append((square[0] / square[1]) ** 0.5 if square[1] else 0.0)

    def bounded() -> Policy:
        policy = simulated()
        policy.max_step = 1.0
        return policy

    plain = Policy.check_move, node.simulated
    Policy.check_move, node.simulated = record, bounded  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stderr(io.StringIO()):
            run(configuration([f"strategy={method}", f"rounds={rounds}", *SMALL, f"out={out}", "overwrite=true"]))
    finally:
        Policy.check_move, node.simulated = plain  # type: ignore[method-assign]
    return found


def main() -> None:
    """Print one row per method."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("methods", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    largest = []
    for method in given.methods or group_names("strategy"):
        try:
            found = moves(method, given.rounds)
        except FedGraphError as error:
            print(f"{method:20} left out: {str(error)[:80]}")
            continue
        if found:
            largest.append(max(found))
            print(f"{method:20} {max(found):8.3f} {max(found[3 * 3 :], default=0.0):8.3f}", flush=True)
    print(f"{'largest':20} {max(largest, default=0.0):8.3f}")


if __name__ == "__main__":
    main()

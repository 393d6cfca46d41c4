"""Print the calls of this package on the way from a message to the loss: FedAvg, in one process, not stacked.

    python -m benchmarks.reply_chain

The model's loss has no closed form (``train.loss=focal``), so that each step calls the task's loss.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from fedgraph_flwr.config import compose
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.node import respond as node_respond
from fedgraph_flwr.tasks.classification import Classification

PACKAGE = Path(node_respond.__file__).parents[1]
BASE = "clients/base.py"
OVERRIDES = (
    *("strategy=fedavg", "train.loss=focal", "rounds=1", "num_clients=2", "train.local_steps=1"),
    *("dataset=csbm", "dataset.nodes_per_client=[20,30]", "partition=planted", "model.hidden=4", "checkpoint_every=0"),
)

Call = tuple[str, str]
"""File below the package, and qualified name of a function."""


@contextmanager
def stacks_at(end: CodeType) -> Iterator[list[list[FrameType]]]:
    """Record the stack, innermost frame first, at every call of a function within."""
    seen: list[list[FrameType]] = []

    def spy(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is end:
            stack: list[FrameType] = []
            at: FrameType | None = frame
            while at is not None:
                stack.append(at)
                at = at.f_back
            seen.append(stack)

    previous = sys.getprofile()
    sys.setprofile(spy)
    try:
        yield seen
    finally:
        sys.setprofile(previous)


def reply_chain(out: Path) -> list[Call]:
    """Return the longest chain of this package's calls from `node.respond` to the task's loss, both included.

    Args:
        out: folder of the run that is made for it.
    """
    with stacks_at(Classification.loss.__code__) as stacks:
        run_inline(compose([*OVERRIDES, f"out={out}"]))
    chains = []
    for stack in stacks:
        codes = [frame.f_code for frame in stack]
        if node_respond.respond.__code__ not in codes:
            continue
        calls = codes[: codes.index(node_respond.respond.__code__) + 1]
        files = [(Path(code.co_filename), code.co_qualname) for code in reversed(calls)]
        chains.append([(str(f.relative_to(PACKAGE)), name) for f, name in files if f.is_relative_to(PACKAGE)])
    return max(chains, key=len)


def entries(chain: list[Call], file: str = BASE) -> int:
    """Return how often a chain comes from another file into this one."""
    return sum(one != file and other == file for (one, _), (other, _) in pairwise(chain))


def main() -> None:
    """Print the chain."""
    with tempfile.TemporaryDirectory() as folder:
        chain = reply_chain(Path(folder) / "run")
    print("\n".join(f"{place:2d}  {file:24} {name}" for place, (file, name) in enumerate(chain)))
    print(f"{len(chain) - 1} calls, {entries(chain)} entries into {BASE}")


if __name__ == "__main__":
    main()

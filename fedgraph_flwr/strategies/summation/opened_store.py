"""Opened secure sums in a run's folder: a resumed run reads the rounds after its checkpoint.

Without them, a resumed run would open sums of the same values again. If other clients drop out
then, two sums would differ by one client's values, which nodes refuse (`Member.fixed`).
"""

import re
from collections import Counter
from pathlib import Path

from fedgraph_flwr.data.graph import read_tensors, write_tensors
from fedgraph_flwr.store.folder import OPENED_SUMS
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.trees import as_arrays, flatten, unflatten


class OpenedStore:
    """The sums that were opened since the last checkpoint.

    Those of the set-up, which runs again, are not kept.

    Args:
        run: the run's folder; None: nothing is kept.
    """

    def __init__(self, run: Path | None):
        self.folder = run / OPENED_SUMS if run else None
        self._next: Counter[tuple[int, str]] = Counter()

    def read(self, server_round: int, phase: str) -> dict[str, Arrays]:
        """Return the next sum of a phase in a round, by group; empty if it was never opened."""
        path = self._path(server_round, phase)
        if not path or not path.is_file():
            return {}
        self._next[server_round, phase] += 1
        return {
            group: as_arrays(tree) for group, tree in unflatten(read_tensors(path)[0]).items()
        }

    def write(self, server_round: int, phase: str, sums: dict[str, Arrays]) -> None:
        """Keep a sum that was opened."""
        if path := self._path(server_round, phase):
            path.parent.mkdir(exist_ok=True)
            write_tensors(path, flatten(sums), {"round": server_round, "phase": phase})
            self._next[server_round, phase] += 1

    def forget(self, server_round: int) -> None:
        """Delete the sums up to a round, which a checkpoint covers."""
        for path in self.folder.glob("*.safetensors") if self.folder else ():
            if (match := re.match(r"(\d+)-", path.name)) and int(match[1]) <= server_round:
                path.unlink(missing_ok=True)

    def _path(self, server_round: int, phase: str) -> Path | None:
        count = self._next[server_round, phase]
        return (
            self.folder / f"{server_round:06d}-{phase}-{count}.safetensors"
            if self.folder and server_round
            else None
        )

"""A matrix whose rows are read from tables when they are asked for, so that large ones need no memory of their own."""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.numerics.forest import LARGEST, Floats

AT_ONCE = 1 << 22
"""Values of `Gathered.blocks` at once."""


class Rows:
    """Tables [n, f] one below the other, indexed by rows without a copy of them.

    Args:
        tables: tensors or arrays; at least one.
    """

    def __init__(self, *tables: Any):
        self.tables = [np.asarray(table) for table in tables]
        self.starts = np.cumsum([0, *map(len, self.tables)])
        self.shape = int(self.starts[-1]), self.tables[0].shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """Return some rows: a number or places."""
        at = np.asarray(rows)
        of = np.searchsorted(self.starts, at, "right") - 1
        values = np.empty((*at.shape, self.shape[1]), self.tables[0].dtype)
        for place, table in enumerate(self.tables):
            mine = of == place
            values[mine] = table[at[mine] - self.starts[place]]
        return values


class Gathered:
    """Columns of tables side by side, [V, F]; indexed by rows, they are float64 and clipped to `LARGEST`.

    Args:
        parts: tables [n, f], arrays or `Rows`, and the row of each item in it [V].
    """

    def __init__(self, parts: Sequence[tuple[Any, NDArray[np.int64]]]):
        self.parts = list(parts)
        self.shape = len(self.parts[0][1]), sum(table.shape[1] for table, _ in self.parts)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Floats:
        """Return the values of some items: a number, a slice, places or a mask."""
        columns = [np.asarray(table[at[rows]], np.float64) for table, at in self.parts]
        every: Floats = np.concatenate(columns, axis=-1)
        return np.clip(every, -LARGEST, LARGEST, out=every)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all values."""
        return self[:] if dtype is None else self[:].astype(dtype)

    def at(self, rows: Any) -> Self:
        """Return the matrix of some items, as of ``[]``, of which nothing is read yet."""
        return type(self)([(table, at[rows]) for table, at in self.parts])

    def blocks(self) -> Iterator[Floats]:
        """Yield the values of all items, some items at a time, in order; none without items."""
        size = max(AT_ONCE // max(self.shape[1], 1), 1)
        return (self[start : start + size] for start in range(0, len(self), size))

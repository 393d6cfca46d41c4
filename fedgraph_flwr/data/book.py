"""Records of a party: who paid whom, when, and how much."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[Any]

DAY = 86_400
"""Seconds of a day."""


@dataclass(frozen=True)
class Book:
    """Records of a party, in any order.

    Attributes:
        source: paying account of each record, 0..A-1, int64 [R].
        target: receiving account, int64 [R].
        time: in seconds, int64 [R].
        cents: amount in hundredths, at least 0, int64 [R].
    """

    source: Ints
    target: Ints
    time: Ints
    cents: Ints

    @classmethod
    def of(cls, rows: Any) -> "Book":
        """Build a book from the rows of `Graph.book`."""
        return cls(*(np.ascontiguousarray(np.asarray(row, dtype=np.int64)) for row in rows[:4]))

    def where(self, kept: NDArray[Any]) -> "Book":
        """Return some of the records."""
        return Book(self.source[kept], self.target[kept], self.time[kept], self.cents[kept])

    def of_days(self) -> "Book":
        """Return the records with the start of their day as time."""
        return Book(self.source, self.target, self.time // DAY * DAY, self.cents)

    def reversed(self) -> "Book":
        """Return the records with both ends exchanged and time running backwards."""
        return Book(self.target, self.source, -self.time, self.cents)

    @property
    def accounts(self) -> int:
        """A."""
        return 1 + int(max(self.source.max(initial=-1), self.target.max(initial=-1)))

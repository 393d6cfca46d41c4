"""Columns of records that read at most the last R records of either direction at each end (`features.Recipe.last`).

The records at an account are ordered by time, those of equal time by their order in the book. A record at position i of this list
reads those at positions i - R to i - 1 that are earlier in time. So a record is read by at most R others at each of its two ends,
and without it at most 2R others change. A column has the name and, where R does not matter, the value of the recipe without R.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data.book import Book

OUT, IN = 0, 1


class _End:
    """The last records at one end of each record [n, R].

    Attributes:
        other: account at the other end.
        way: `OUT` for paid, `IN` for received.
        seen: whether there is such a record, earlier in time.
        passed: seconds since then.
        cents: its amount.
    """

    def __init__(self, book: Book, side: int, last: int):
        size, ends = book.time.size, np.stack([book.source, book.target])
        account, record, way = ends.ravel(), np.tile(np.arange(size), 2), np.repeat([OUT, IN], size)
        order = np.lexsort((way, record, book.time[record], account))
        place = np.empty(2 * size, dtype=np.int64)
        place[order] = np.arange(2 * size)
        positions = place[side * size : (side + 1) * size, None]
        earlier = positions - np.arange(1, last + 1)
        event = order[np.maximum(earlier, 0)]
        records, self.way = record[event], way[event]
        self.passed = book.time[:, None] - book.time[records]
        self.seen = (earlier >= 0) & (account[event] == ends[side][:, None]) & (self.passed > 0)
        self.other, self.cents = ends[1 - self.way, records], book.cents[records]


def capped_values(
    book: Book, windows: list[tuple[str, int]], last: int, alike: float, never: int
) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each column, before it is transformed.

    Args:
        book: the records.
        windows: name and seconds of each window.
        last: R.
        alike: largest difference of logarithms of amounts that are alike.
        never: seconds since a record that does not exist.
    """
    ends = {"source": _End(book, OUT, last), "target": _End(book, IN, last)}
    ways = {"out": OUT, "in": IN}
    yield "amount", book.cents / 100
    for name, end in ends.items():
        for way, number in ways.items():
            mine = end.seen & (end.way == number)
            yield f"since_{way}_{name}", np.where(mine, end.passed, never).min(axis=1, initial=never)
            for w, seconds in windows:
                inside = mine & (end.passed <= seconds)
                yield f"n_{way}_{name}_{w}", inside.sum(axis=1)
                yield f"sum_{way}_{name}_{w}", np.where(inside, end.cents, 0).sum(axis=1) / 100
                yield f"partners_{way}_{name}_{w}", _distinct(end.other, inside).sum(axis=1)
    payer, receiver = ends["source"], ends["target"]
    with_other = payer.seen & (payer.other == book.target[:, None])
    yield "pair_before", (with_other & (payer.way == OUT)).sum(axis=1)
    yield "back_before", (with_other & (payer.way == IN)).sum(axis=1)
    apart = np.abs(np.log(np.maximum(payer.cents, 1)) - np.log(np.maximum(book.cents, 1))[:, None])
    near = payer.seen & (payer.way == IN) & (apart < alike) & (payer.cents > 0) & (book.cents > 0)[:, None]
    for w, seconds in windows:
        inside = near & (payer.passed <= seconds)
        gap = np.where(inside, apart, alike).min(axis=1, initial=alike)
        closest = inside & (apart == gap[:, None])
        yield f"flow_in_count_{w}", inside.sum(axis=1)
        yield f"flow_in_kept_{w}", (inside & (payer.cents >= book.cents[:, None])).sum(axis=1)
        yield f"flow_in_gap_{w}", gap / alike
        yield f"flow_in_hours_{w}", np.where(closest, payer.passed, seconds).min(axis=1, initial=seconds) / 3_600
        paid = payer.seen & (payer.way == OUT) & (payer.passed <= seconds)
        received = receiver.seen & (receiver.way == IN) & (receiver.passed <= seconds)
        paid = _distinct(payer.other, paid)
        both = (paid[:, k] & (received & (receiver.other == payer.other[:, k, None])).any(axis=1) for k in range(last))
        yield f"common_{w}", np.sum([mask.astype(np.int64) for mask in both], axis=0)


def _distinct(other: NDArray[Any], inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the first occurrence of each account among some records of a row [n, R]."""
    occurrences = inside.copy()
    for k in range(1, other.shape[1]):
        occurrences[:, k] &= ~(occurrences[:, :k] & (other[:, :k] == other[:, k, None])).any(axis=1)
    return occurrences

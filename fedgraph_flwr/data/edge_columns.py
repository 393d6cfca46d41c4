"""Columns of edges that are computed from the edges and their times: ports and counts in a window.

Neither reads labels or features, and both are private: a party computes them from its own edges.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

COUNTS = ("source_out", "source_in", "target_out", "target_in")
"""Columns of `window_counts`: payments that leave and that reach either end of an edge, first those before it."""


def window_counts(source: Ints, target: Ints, time: Ints, window: int, causal: bool = True) -> Ints:
    """Count the edges at both ends of each edge within a time window, [E, 4], or [E, 8] where not causal.

    The columns are `COUNTS` within [t − W, t], the edge itself among them, then those within [t, t + W] where not causal.
    Two sorted searches per column: O(E log E).

    Args:
        source: node that each edge leaves [E].
        target: node that each edge reaches [E].
        time: time of each edge in seconds [E].
        window: W, in seconds.
        causal: whether only earlier edges count, as is known when the edge is made.
    """
    if not time.size:
        return np.zeros((0, 4 if causal else 8), dtype=np.int64)
    moment = time - time.min()
    last = int(moment.max())
    window = min(window, last + 1)
    span = last + 1  # (node, moment) as one number, so that one sorted list serves all nodes
    leaving, reaching = (np.sort(end * span + moment) for end in (source, target))
    bounds = [(np.maximum(moment - window, 0), moment)]
    if not causal:
        bounds.append((moment, np.minimum(moment + window, last)))
    return np.stack(
        [
            np.searchsorted(events, end * span + high, "right") - np.searchsorted(events, end * span + low, "left")
            for low, high in bounds
            for end in (source, target)
            for events in (leaving, reaching)
        ],
        axis=1,
    )


def log_counts(ends: Ints, time: Ints, windows: Sequence[int]) -> NDArray[np.float64]:
    """Return ln(1 + `window_counts`) of edges [2, E] within each window, [E, 4 W], looking back."""
    if not time.size:
        return np.zeros((0, len(COUNTS) * len(windows)))
    counts = [window_counts(ends[0], ends[1], time, window) for window in windows]
    return np.concatenate([np.log1p(matrix) for matrix in counts], axis=1)


def ports(source: Ints, target: Ints, time: Ints) -> Ints:
    """Port numbers of each edge [E, 2] (Sato et al., NeurIPS 2019), by first contact as in Multi-GNN.

    The first column is the rank of the sender among the receiver's distinct senders, by their first payment; the second is the
    rank of the receiver among the sender's receivers. Both start at 0. Of equal times the edge that is listed first counts.
    Later edges change no earlier edge's ports.

    Args:
        source: node that each edge leaves [E].
        target: node that each edge reaches [E].
        time: time of each edge [E].
    """
    return np.stack([_ranks(target, source, time), _ranks(source, target, time)], axis=1)


def _ranks(owner: Ints, other: Ints, time: Ints) -> Ints:
    """Rank of ``other`` among the distinct neighbours of ``owner``, by first contact [E]."""
    order = np.lexsort((time, owner))
    near = owner[order]
    code = near * (1 + other.max(initial=0)) + other[order]
    _, first, pair = np.unique(code, return_index=True, return_inverse=True)
    met = np.cumsum(np.isin(np.arange(near.size), first))  # pairs up to each edge in `order`
    ranks = np.empty(owner.size, dtype=np.int64)
    ranks[order] = (met - met[np.searchsorted(near, near)])[first][pair]
    return ranks

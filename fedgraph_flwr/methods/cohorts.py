"""Cohorts: the clients that take part in a round.

Each client has a hash of (seed, stream, client), and the clients with the lowest hashes are drawn. A client's hash depends on no
other client. Leaving one out therefore changes no other draw of the same size: the next client takes its place in its cohorts.

Under differential privacy, that would change two clients' contributions. So places ``range(num_clients)`` are drawn, whoever is
there: an absent client leaves its place empty, which contributes zero. Rounds with secure sums use fixed batches
(`fedgraph_flwr.methods.weighting.batches`).
"""

from collections.abc import Iterable

import numpy as np

from fedgraph_flwr.numerics.draws import GOLDEN, mix
from fedgraph_flwr.wire.messages import derive_seed

LOWEST_HASHES, CHOICE = 1, 0
"""Rules of a draw, as stored in checkpoints; a checkpoint without a rule used `CHOICE`."""


def draw(
    clients: Iterable[int],
    size: int,
    seed: int,
    *stream: str | int,
    rule: int = LOWEST_HASHES,
    places: int | None = None,
) -> list[int]:
    """Draw clients without replacement.

    Args:
        clients: indices to draw from.
        size: number of clients to draw; all clients if there are fewer.
        seed: seed of the run.
        stream: names the draw, such as ``"cohort", 3``.
        rule: `LOWEST_HASHES`, or `CHOICE` to continue a run that started with it.
        places: draw among ``range(places)`` and return those of the drawn that are clients; None: draw among the clients.

    Returns:
        The drawn indices, ascending.
    """
    if places is not None:
        present = set(clients)
        return [place for place in draw(range(places), size, seed, *stream, rule=rule) if place in present]
    everyone, key = sorted(clients), derive_seed(seed, *stream)
    if size >= len(everyone):
        return everyone
    if rule == CHOICE:
        return sorted(np.random.default_rng(key).choice(everyone, size=size, replace=False).tolist())
    indices = np.array(everyone, np.uint64)
    order = np.lexsort((indices, splitmix64(indices ^ np.uint64(key))))  # ties by index
    return sorted(indices[order[:size]].tolist())


def splitmix64(values: np.ndarray) -> np.ndarray:
    """Mix 64-bit values [n] one by one (Steele, Lea & Flood, OOPSLA 2014); a bijection of uint64."""
    return mix(values + np.uint64(GOLDEN))

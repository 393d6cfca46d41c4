"""Chains of payments whose labels lie in records two and more payments away: exchange between banks must help.

``dataset=payments dataset.depth=d`` plants chains of 2 d - 1 accounts ``u_{d-1} → … → u_1 → c → v_1 → … → v_{d-1}``, over
members at independent banks. All chains look alike at ``c``: one large payment in, one out, within ``window`` days. At each
``u_j`` others may have paid in before, and ``v_j`` may have paid others: a *fan* of ``size`` payments, there with probability
1/2, independently. Edges of a fan at ``u_j`` lie j + 1 payments from ``c``, so for ``depth=3`` at depth 2 and 3. The others are
at any bank (``fans=any``), so that each bank sees some of a fan, or at the bank of its account (``fans=own``).

Label: a fan at distance j has the weight d - j, and a chain is laundering where the present fans have more than half of all
weight. Then the payments into and out of ``c`` have label 1, and so has the account ``c``.

``python -m benchmarks.depth`` computes the best possible scores of a bank alone, with columns of far ends, and of pooled data.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.errors import FedGraphError

Ints = NDArray[np.int64]

DAY = 86_400
SIZES = (8, 16)
"""Smallest and largest fan, where ``size`` is null."""
LARGE = 9.0, 0.3
"""Mean and standard deviation of the logarithm of amounts along a chain; of others 5 and 1.2."""


class Chains(NamedTuple):
    """Members and fans of C chains of depth d.

    Attributes:
        members: account at each place, in the direction of payments; c stands in the middle [C, 2 d - 1].
        fan: whether each member has a fan; never at c [C, 2 d - 1].
        label: whether the chain is laundering [C].
    """

    members: Ints
    fan: NDArray[np.bool_]
    label: NDArray[np.bool_]


def weights(depth: int) -> Ints:
    """Return the weight of a fan at each place of a chain; 0 at c [2 d - 1]."""
    distance = np.abs(np.arange(2 * depth - 1) - (depth - 1))
    return np.where(distance > 0, depth - distance, 0)


def chains(people: Ints, count: int, depth: int, rng: np.random.Generator) -> Chains:
    """Draw ``count`` chains of distinct members among ``people``, and their fans.

    Raises:
        FedGraphError: the members are more than the persons.
    """
    places = 2 * depth - 1
    if count * places > people.size:
        fix = f"raise dataset.accounts, or lower dataset.per_kind or dataset.depth={depth}"
        raise FedGraphError(f"{people.size} persons are too few for {count} chains of {places} members: {fix}")
    members = rng.permutation(people)[: count * places].reshape(count, places)
    weight = weights(depth)
    fan = (rng.random(members.shape) < 0.5) & (weight > 0)
    return Chains(members, fan, 2 * (fan @ weight) > weight.sum())


def planted(
    all_chains: Chains,
    people: Ints,
    home: Ints,
    days: tuple[float, float],
    sizes: tuple[int, int],
    rng: np.random.Generator,
) -> tuple[Ints, Ints, Ints, NDArray[np.bool_], Ints, NDArray[np.float64]]:
    """Return source, target, time, label, number of the chain and amount (0 for any) of all payments of chains.

    Fans fall into the first half of a chain's window and its own payments, in order, into the second, so that a score that
    reads no later payments can see the fans.

    Args:
        all_chains: chains.
        people: accounts that may be the other end of a fan's payment, ascending.
        home: group of each, ascending; both ends of a fan's payment are of one group.
        days: number of days, and those of a window.
        sizes: smallest and largest fan.
        rng: source of draws.
    """
    count, places = all_chains.members.shape
    middle, window = places // 2, days[1] * DAY
    start = rng.random((count,)) * (days[0] - days[1]) * DAY
    hop = np.arange(places - 1)
    moment = start[:, None] + window * (0.5 + (hop + rng.random((count, places - 1))) / (2 * (places - 1)))
    laundering = all_chains.label[:, None] & ((hop == middle - 1) | (hop == middle))
    chain, place = np.nonzero(all_chains.fan)
    size = rng.integers(sizes[0], sizes[1] + 1, chain.size)
    chain, place = np.repeat(chain, size), np.repeat(place, size)
    member = all_chains.members[chain, place]
    at = np.searchsorted(people, member)
    first, size_of = np.searchsorted(home, home), np.bincount(home)[home]
    step = 1 + (rng.integers(1, people.size, member.size) - 1) * (size_of[at] - 1) // (people.size - 1)
    other = people[first[at] + (at - first[at] + step) % size_of[at]]
    before = place < middle
    return (
        np.concatenate([all_chains.members[:, :-1].ravel(), np.where(before, other, member)]),
        np.concatenate([all_chains.members[:, 1:].ravel(), np.where(before, member, other)]),
        np.concatenate([moment.ravel(), start[chain] + rng.random(chain.size) * window / 2]).astype(np.int64),
        np.concatenate([laundering.ravel(), np.zeros(chain.size, dtype=bool)]),
        np.concatenate([np.repeat(np.arange(count), places - 1), chain]),
        np.concatenate([rng.lognormal(*LARGE, moment.size), np.zeros(member.size)]),
    )

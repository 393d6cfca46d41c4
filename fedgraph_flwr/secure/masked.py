"""Sums of which the server learns the total alone: pairwise masks (Bonawitz et al., CCS 2017, Section 4).

Numbers become integers modulo 2^64. Client i adds, for each peer j, a stream that both derive from their shared secret
(`fedgraph_flwr.secure.sealed`), and subtracts it where i > j: a single share is uniformly random, and in the sum over exactly the
clients that were named all masks cancel, without rounding. Where a client is missing the others make new shares for a new
step. Threat model as for envelopes: an honest-but-curious server, and clients that do not collude with it.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.secure.sealed import Sealer
from fedgraph_flwr.wire.messages import Arrays

PEERS = "peers"  # the group of arrays that tells a client with whom it adds: clients [n], keys [n, 32], nodes [1]
FRACTION_BITS = 48
RESOLUTION = 2.0**-FRACTION_BITS
LIMIT = 2.0**14  # of one client's values; sums stay below 2^15


def mask(values: Arrays, sealer: Sealer, clients: Iterable[int], step: str) -> Arrays:
    """This client's share of a sum over ``clients``: uint64 arrays of the same shapes.

    Args:
        values: named float arrays.
        sealer: knows the other clients' public keys.
        clients: who takes part, this client included or not; at least one other, whose mask hides the values.
        step: never used twice with the same keys.

    Raises:
        RunFailed: a value is not finite or too large for the fixed point, or no other client takes part.
    """
    peers = [client for client in clients if client != sealer.client]
    if not peers:
        raise RunFailed(
            f"client {sealer.client} is to add up with no other client, which would show its values: expected at least 1"
        )
    flat = np.concatenate([array.ravel() for array in values.values()]).astype(np.float64)
    if not np.abs(flat).max(initial=0.0) < LIMIT:
        raise RunFailed(
            f"client {sealer.client} has a value of {np.abs(flat).max():g} to add, expected below {LIMIT:g}"
        )
    total = np.rint(flat / RESOLUTION).astype(np.int64).view(np.uint64)
    return _shaped(total + pairwise(sealer, peers, step, total.size), values)


def pairwise(sealer: Sealer, clients: Iterable[int], step: str, count: int) -> NDArray[np.uint64]:
    """The sum [count] of a client's masks with each peer among ``clients``, which cancel in the sum over all of these."""
    total = np.zeros(count, np.uint64)
    for peer in clients:
        if peer != sealer.client:
            stream = sealer.stream(peer, step, count)
            total = total + stream if sealer.client < peer else total - stream
    return total


def unmask(shares: Sequence[Arrays]) -> Arrays:
    """The sum, float64, of all clients' shares of one step."""
    flat = np.zeros(sum(array.size for array in shares[0].values()), dtype=np.uint64)
    for share in shares:
        flat += np.concatenate([array.ravel() for array in share.values()])
    return _shaped(flat.view(np.int64) * RESOLUTION, shares[0])


def _shaped(flat: NDArray[np.generic], like: Arrays) -> Arrays:
    ends = np.cumsum([array.size for array in like.values()])[:-1]
    return {name: part.reshape(like[name].shape) for name, part in zip(like, np.split(flat, ends), strict=True)}

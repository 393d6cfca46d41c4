"""Masked integers: the arithmetic of every sum whose terms the server does not learn, and the simplest such sum.

Numbers become integers modulo 2^64 (`to_fixed`). For each peer j, client i and j derive a stream from their shared secret
(`fedgraph_flwr.secure.sealed`). Client i adds it, or subtracts it if i > j (`pairwise`). A single share is uniformly random. In
the sum over exactly the named clients all masks cancel, without rounding (Bonawitz et al., CCS 2017, Section 4). Two protocols
use this:

* `mask` and `sum_shares`, for one statistic of a method (FedSPA): keys of the run, one message per client. If a client drops
  out, the others send new shares for a new step.
* `fedgraph_flwr.secure.secagg`, for every sum of a run: keys of the sum and a second mask whose secret is shared. Clients may
  drop out, at the cost of four more exchanges.

Threat model as for envelopes: an honest-but-curious server, and clients that do not collude with it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.secure.sealed import Sealer
from fedgraph_flwr.wire.messages import Arrays

PEERS = "peers"  # the group of arrays that names a sum's clients to each client: clients [n], keys [n, 32], nodes [1]
FRACTION_BITS = 48
RESOLUTION = 2.0**-FRACTION_BITS
LIMIT = 2.0**14  # bound of one client's values; sums stay below 2^15


class OutOfRange(RunFailed):
    """Error: a client's term of a sum exceeds the fixed-point range, which depends on its data."""


# --- a sum with one message per client ----------------------------------------------------------------------------------


def mask(values: Arrays, sealer: Sealer, clients: Iterable[int], step: str) -> Arrays:
    """Return this client's share of a sum over ``clients``: uint64 arrays of the same shapes.

    Args:
        values: named float arrays.
        sealer: holds the other clients' public keys.
        clients: the clients in the sum, with or without this one; at least one other, whose mask hides the values.
        step: name of the step, never reused with the same keys.

    Raises:
        RunFailed: a value is not finite or exceeds the fixed-point range, or no other client takes part.
    """
    peers = [client for client in clients if client != sealer.client]
    if not peers:
        raise RunFailed(
            f"client {sealer.client} should join a sum without any other client, expected at least 1 to hide its values"
        )
    total = to_fixed(joined_groups({PEERS: values}), 2.0**FRACTION_BITS, LIMIT, sealer.client)
    return split_groups(total + pairwise(sealer, peers, step, total.size), {PEERS: values})[PEERS]


def sum_shares(shares: Sequence[Arrays]) -> Arrays:
    """Return the sum, float64, of all clients' shares of one step."""
    terms = [{PEERS: share} for share in shares]
    return split_groups(from_fixed(added(terms), FRACTION_BITS), terms[0])[PEERS]


# --- parts of every masked sum ------------------------------------------------------------------------------------------


def to_fixed(
    values: NDArray[np.floating], scale: float | NDArray[np.float64], limit: float, client: int, advice: str = ""
) -> NDArray[np.uint64]:
    """Convert values [P] times ``scale`` to rounded integers modulo 2^64.

    Args:
        values: values of one client.
        scale: 2^bits of the fixed point, times the client's share of the weights; an array for a scale per value.
        limit: bound that every value must stay below.
        client: owner of the values, for the error message.
        advice: end of the error message: what to do.

    Raises:
        OutOfRange: a value is not finite, or too large.
    """
    values = values.astype(np.float64)
    if not np.abs(values).max(initial=0.0) < limit:
        raise OutOfRange(
            f"client {client} has a value to add that is not below {limit:g}{advice}"  # the value itself is data
        )
    return np.rint(values * scale).astype(np.int64).view(np.uint64)


def from_fixed(total: NDArray[np.uint64], bits: int) -> NDArray[np.floating]:
    """Convert a sum of results of `to_fixed`, without masks, to floats."""
    return total.view(np.int64) * 2.0**-bits


def pairwise(sealer: Sealer, clients: Iterable[int], step: str, count: int) -> NDArray[np.uint64]:
    """Sum a client's masks with each peer among ``clients`` [count]; they cancel in the sum over all these clients."""
    total = np.zeros(count, np.uint64)
    for peer in clients:
        if peer != sealer.client:
            stream = sealer.stream(peer, step, count)
            total = total + stream if sealer.client < peer else total - stream
    return total


def added(shares: Iterable[Mapping[str, Arrays]]) -> NDArray[np.uint64]:
    """Sum the clients' groups of masked integers, all of the same shapes, modulo 2^64: [P]."""
    total: NDArray[np.uint64]
    total, *others = (joined_groups(share) for share in shares)
    for share in others:
        total += share
    return total


def joined_groups(groups: Mapping[str, Arrays]) -> NDArray[Any]:
    """Concatenate groups of arrays to one vector, in their order: [P]."""
    return np.concatenate([array.ravel() for group in groups.values() for array in group.values()])


def split_groups(vector: NDArray[np.generic], like: Mapping[str, Arrays]) -> dict[str, Arrays]:
    """Split a vector [P] into groups of these names and shapes."""
    sizes = [array.size for group in like.values() for array in group.values()]
    parts = iter(np.split(vector, np.cumsum(sizes)[:-1]))
    return {
        group: {name: next(parts).reshape(array.shape) for name, array in arrays.items()}
        for group, arrays in like.items()
    }


def digest(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Return SHA-256 of arrays with their names, dtypes and shapes, ordered by name, to bind masks to their inputs."""
    hasher = sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hasher.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        hasher.update(array.tobytes())
    return hasher.digest()


def keys_of(clients: NDArray[np.int64], keys: NDArray[np.uint8]) -> dict[int, bytes]:
    """Return relayed public keys [n, ...] by client."""
    return {int(client): key.tobytes() for client, key in zip(clients, keys, strict=True)}

"""Draws of neighbours in numba: `draws` with the same bits, many times as fast, without Python's lock."""

from typing import Any

import numba
import numpy as np

from fedgraph_flwr.numerics.draws import FACTORS, GOLDEN, HOPS, Entries, Ints

_compiled = numba.njit(nogil=True, cache=True)
_inlined = numba.njit(nogil=True, cache=True, inline="always")

_A, _B = np.uint64(FACTORS[0]), np.uint64(FACTORS[1])
_G, _H = np.uint64(GOLDEN), np.uint64(HOPS)
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@_inlined
def _mix(z: Any) -> Any:
    z = (z ^ (z >> _30)) * _A
    z = (z ^ (z >> _27)) * _B
    return z ^ (z >> _31)


@_compiled
def count(indptr: Ints, nodes: Ints, fanout: int) -> int:
    """As `draws.count`."""
    total = 0
    for index in range(len(nodes)):
        degree = indptr[nodes[index] + 1] - indptr[nodes[index]]
        total += degree if fanout < 0 else min(degree, fanout)
    return total


def draw(
    indptr: Ints, indices: Ints, nodes: Ints, made: Entries, fanout: int, key: int, hop: int, stable: bool
) -> None:
    """As `draws.draw`."""
    columns = made.pointer, made.degree, made.position
    _draw(indptr, indices, nodes, *columns, fanout, np.uint64(key), np.uint64(hop), stable)


@_compiled
def _draw(
    indptr: Any,
    indices: Any,
    nodes: Any,
    pointer: Any,
    degrees: Any,
    position: Any,
    fanout: int,
    key: Any,
    hop: Any,
    stable: bool,
) -> None:
    place = pointer[0] = 0
    hashes = np.empty(max(fanout, 0), np.uint64)
    for row in range(len(nodes)):
        node = nodes[row]
        start = indptr[node]
        degree = indptr[node + 1] - start
        degrees[row] = degree
        if fanout < 0 or degree <= fanout:
            for index in range(degree):
                position[place + index] = start + index
            place += degree
            pointer[row + 1] = place
            continue
        state = _mix(key ^ _mix(np.uint64(node) * _H + hop))
        if stable:
            for index in range(degree):
                value = _mix(state ^ _mix(np.uint64(indices[start + index])))
                if index >= fanout and value >= hashes[fanout - 1]:
                    continue
                spot = min(index, fanout - 1)
                while spot > 0 and hashes[spot - 1] > value:
                    hashes[spot] = hashes[spot - 1]
                    position[place + spot] = position[place + spot - 1]
                    spot -= 1
                hashes[spot] = value
                position[place + spot] = start + index
        else:
            last = degree - fanout
            for index in range(fanout):
                state += _G
                pick = np.int64(((_mix(state) >> _32) * np.uint64(last + 1)) >> _32) + start
                for other in range(place, place + index):
                    if position[other] == pick:
                        pick = start + last
                        break
                position[place + index] = pick
                last += 1
        place += fanout
        pointer[row + 1] = place


def number(indices: Ints, made: Entries, nodes: Ints, local: Ints, known: int) -> int:
    """As `draws.number`."""
    return int(_number(indices, made.position, made.col, nodes, local, known))


@_compiled
def _number(indices: Any, position: Any, col: Any, nodes: Any, local: Any, known: int) -> int:
    for entry in range(len(position)):
        source = indices[position[entry]]
        place = local[source]
        if place < 0:
            place = known
            local[source] = known
            nodes[known] = source
            known += 1
        col[entry] = place
    return known

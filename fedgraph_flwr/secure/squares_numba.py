"""Jacobi symbols of many numbers in numba: `matching.jacobi`, several times as fast."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

_0, _1, _2, _WORD = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(64)


@numba.njit(nogil=True, cache=True)
def _below(a0: Any, a1: Any, a2: Any, a3: Any, n0: Any, n1: Any, n2: Any, n3: Any) -> Any:
    return a3 < n3 or (a3 == n3 and (a2 < n2 or (a2 == n2 and (a1 < n1 or (a1 == n1 and a0 < n0)))))


@numba.njit(nogil=True, cache=True)
def _symbols(numbers: Any, modulus: Any, signs: Any) -> None:
    for row in range(len(numbers)):
        a0, a1, a2, a3 = numbers[row, 0], numbers[row, 1], numbers[row, 2], numbers[row, 3]
        n0, n1, n2, n3 = modulus[0], modulus[1], modulus[2], modulus[3]
        odd = _0  # whether the sign has changed, in the lowest bit
        while a0 | a1 | a2 | a3:
            while a0 == _0:  # 64 factors of two: no change of sign
                a0, a1, a2, a3 = a1, a2, a3, _0
            twos = _0
            while (a0 >> twos) & _1 == _0:
                twos += _1
            if twos:
                up = _WORD - twos
                a0, a1 = (a0 >> twos) | (a1 << up), (a1 >> twos) | (a2 << up)
                a2, a3 = (a2 >> twos) | (a3 << up), a3 >> twos
                odd ^= twos & ((n0 >> _1) ^ (n0 >> _2))  # (2 / n) = -1 for n = 3 or 5 modulo 8
            if _below(a0, a1, a2, a3, n0, n1, n2, n3):
                a0, a1, a2, a3, n0, n1, n2, n3 = n0, n1, n2, n3, a0, a1, a2, a3
                odd ^= (a0 >> _1) & (n0 >> _1)  # reciprocity: both are 3 modulo 4
            b0 = _1 if a0 < n0 else _0
            b1 = _1 if a1 < n1 or (a1 == n1 and b0) else _0
            b2 = _1 if a2 < n2 or (a2 == n2 and b1) else _0
            a0, a1, a2, a3 = a0 - n0, a1 - n1 - b0, a2 - n2 - b1, a3 - n3 - b2
        if n0 == _1 and n1 | n2 | n3 == _0:
            signs[row] = -1 if odd & _1 else 1
        else:
            signs[row] = 0


def symbols(numbers: NDArray[np.uint64], modulus: NDArray[np.uint64]) -> NDArray[np.int8]:
    """Return the Jacobi symbols of numbers below an odd modulus [n].

    Args:
        numbers: 64-bit words of each, the lowest first [n, 4].
        modulus: its words [4].
    """
    signs = np.empty(len(numbers), np.int8)
    _symbols(numbers, modulus, signs)
    return signs

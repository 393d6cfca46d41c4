"""Shamir's sharing in NumPy, against the same in Python's integers."""

import itertools
import os

import numpy as np
import pytest

from fedgraph_flwr.secure import shamir
from fedgraph_flwr.secure.shamir import LIMBS, PRIME, combine, random_elements, split


def test_shares_are_values_of_the_polynomial(monkeypatch):
    drawn = []

    def keep(shape):
        drawn.append(random_elements(shape))
        return drawn[-1]

    monkeypatch.setattr(shamir, "random_elements", keep)
    secrets = np.array([[0, 1, PRIME - 1], [17, 2**30, PRIME - 2]], np.uint32)
    shares = split(secrets, 4, 7)
    assert shares.shape == (7, 2, 3)
    for holder, index in itertools.product(range(7), np.ndindex(2, 3)):
        terms = [int(secrets[index]), *(int(c[index]) for c in drawn[0][::-1])]  # a_1 is drawn last
        value = sum(a * (holder + 1) ** k for k, a in enumerate(terms)) % PRIME
        assert int(shares[(holder, *index)]) == value


@pytest.mark.parametrize(("needed", "holders"), [(2, 3), (3, 5), (67, 100)])
def test_any_holders_that_are_enough_give_the_secrets(needed, holders):
    secrets = random_elements((4, LIMBS))
    shares = split(secrets, needed, holders)
    rng = np.random.default_rng(0)
    for _ in range(10):
        who = rng.permutation(holders)[:needed]
        places = [int(w) + 1 for w in who]
        np.testing.assert_array_equal(combine(places, shares[who]), secrets)
        weights = [lagrange(places, place) for place in places]  # in integers, inverses by Fermat
        by_hand = sum(w * int(shares[i, 0, 0]) for w, i in zip(weights, who, strict=True)) % PRIME
        assert by_hand == int(secrets[0, 0])


def lagrange(places: list[int], place: int) -> int:
    above, below = 1, 1
    for other in set(places) - {place}:
        above, below = above * other, below * (other - place)
    return above * pow(below % PRIME, PRIME - 2, PRIME)


def test_too_few_holders_see_uniform_numbers_whatever_the_secret():
    """Any t − 1 = 2 shares of 0 and of p − 1, over many sharings: both spread alike over the field, and so do their sums."""
    for secret in (0, PRIME - 1):
        pairs = split(np.full(8000, secret, np.uint32), 3, 5)[[1, 4]].astype(np.uint64)
        for numbers in (*pairs, pairs.sum(0) % PRIME):
            counts = np.bincount((numbers >> np.uint64(27)).astype(int), minlength=16)
            assert ((counts - 500) ** 2 / 500).sum() < 60, "15 degrees of freedom: chance 3e-7"


def test_two_holders_of_three_needed_get_a_wrong_secret():
    secrets = random_elements((1000,))
    shares = split(secrets, 3, 5)
    assert (combine([1, 2], shares[:2]) == secrets).mean() < 0.01


def test_the_value_that_is_no_element_is_drawn_again(monkeypatch):
    bits = iter([b"\xff\xff\xff\x7f" + b"\x05\x00\x00\x80", b"\xff\xff\xff\xff", b"\x07\x00\x00\x00"])
    monkeypatch.setattr(os, "urandom", lambda count: next(bits))
    assert random_elements((2,)).tolist() == [7, 5]

"""Masked sums: the total is exact, a share says nothing, and only the named clients' masks cancel."""

import numpy as np
import pytest

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.secure.masked import (
    RESOLUTION,
    added,
    digest,
    from_fixed,
    joined_groups,
    mask,
    split_groups,
    sum_shares,
    to_fixed,
)
from fedgraph_flwr.secure.sealed import Sealer


@pytest.fixture
def sealers():
    made = [Sealer(i) for i in range(4)]
    for sealer in made:
        sealer.meet({i: s.public for i, s in enumerate(made)})
    return made


def values(client):
    rng = np.random.default_rng(client)
    return {"w": rng.normal(size=(3, 2)), "b": 100 * rng.normal(size=4), "none": np.zeros((0, 2))}


@pytest.mark.parametrize("clients", [(0, 1, 2, 3), (1, 3)])
def test_the_sum_is_that_of_the_values(sealers, clients):
    total = sum_shares([mask(values(i), sealers[i], clients, "round 1") for i in clients])
    for name, array in total.items():
        expected = sum(values(i)[name] for i in clients)
        np.testing.assert_allclose(array, expected, rtol=1e-15, atol=len(clients) * RESOLUTION)
        assert array.shape == values(0)[name].shape


def test_a_share_is_spread_over_all_numbers(sealers):
    zeros = {"w": np.zeros(4000)}
    share = mask(zeros, sealers[0], (0, 1), "round 1")["w"]
    counts = np.bincount((share >> np.uint64(60)).astype(int), minlength=16)
    assert counts.min() > 150, "4000 draws over 16 bins"
    other = mask(zeros, sealers[0], (0, 1), "round 2")["w"]
    assert not (share == other).any(), "another step, another mask"
    apart = mask(zeros, sealers[0], (0, 2), "round 1")["w"]
    assert not (share == apart).any(), "another peer, another mask"


def test_a_missing_client_leaves_noise(sealers):
    total = sum_shares([mask(values(i), sealers[i], (0, 1, 2), "round 1") for i in (0, 1)])
    assert np.abs(total["w"]).max() > 100


@pytest.mark.parametrize("value", [np.inf, np.nan, 2.0**14, -(2.0**20)])
def test_what_does_not_fit_is_refused(sealers, value):
    with pytest.raises(RunFailed, match="client 0 has a value to add that"):
        mask({"w": np.array([0.0, value])}, sealers[0], (0, 1), "round 1")


def test_a_client_alone_refuses(sealers):
    with pytest.raises(RunFailed, match="client 2 should join a sum without any other client"):
        mask(values(2), sealers[2], (2,), "round 1")


def test_an_unknown_peer_is_named(sealers):
    with pytest.raises(RunFailed, match="no public key of client 9"):
        mask(values(0), sealers[0], (0, 9), "round 1")


# --- what every masked sum is made of ---------------------------------------------------------------------------------


def test_fixed_point_adds_up_modulo_2_to_64():
    """Negative values and weights of each value; what overflows comes back."""
    first = to_fixed(np.array([1.5, -2.25, 4.0]), 2.0**20 * np.array([1, 0.5, 0]), 8.0, 0)
    assert first.dtype == np.uint64
    assert from_fixed(first, 20).tolist() == [1.5, -1.125, 0.0]
    wrapped = first + np.uint64(2**64 - 1)
    shares = [{"a": {"x": wrapped[:1], "y": wrapped[1:]}}, {"a": {"x": first[:1], "y": np.ones(2, np.uint64)}}]
    assert from_fixed(added(shares), 20).tolist() == [3.0 - 2**-20, -1.125, 0.0]
    assert shares[0]["a"]["x"] == wrapped[:1], "the shares stay as they came"


def test_the_limit_is_that_of_the_values_before_weights():
    with pytest.raises(RunFailed, match="client 7 has a value to add that is not below 8: lower it"):
        to_fixed(np.array([8.0]), 0.0, 8.0, 7, ": lower it")


def test_groups_become_a_vector_and_back():
    groups = {"a": values(0), "b": {"c": np.float64(3.0) * np.ones(())}}
    vector = joined_groups(groups)
    back = split_groups(vector, groups)
    assert vector.shape == (11,)
    assert {g: {n: a.shape for n, a in arrays.items()} for g, arrays in back.items()} == {
        "a": {"w": (3, 2), "b": (4,), "none": (0, 2)},
        "b": {"c": ()},
    }
    np.testing.assert_array_equal(back["a"]["b"], groups["a"]["b"])


def test_a_digest_knows_names_types_shapes_and_values():
    values = {"clients": np.arange(2), "nodes": np.array([32])}
    others = [
        {**values, "nodes": np.array([33])},
        {**values, "nodes": np.array([[32]])},
        {**values, "nodes": np.array([32], np.int32)},
        {"clients": values["clients"], "node": values["nodes"]},
    ]
    assert digest(values) == digest(dict(reversed(values.items())))
    assert len({digest(variant) for variant in (values, *others)}) == 5

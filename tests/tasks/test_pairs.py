"""Pairs of nodes: splits by a hash, and pairs without an edge."""

import numpy as np

from fedgraph_flwr.data.split import in_order
from fedgraph_flwr.tasks import pairs


def graph(nodes: int, edges: int, seed: int = 0) -> np.ndarray:
    """Random directed edges [2, E] with loops and repetitions."""
    return np.random.default_rng(seed).integers(nodes, size=(2, edges))


def test_an_undirected_edge_is_one_pair():
    edges = pairs.undirected(np.array([[3, 1, 1, 2, 0], [1, 3, 3, 2, 4]]))
    assert edges.T.tolist() == [[0, 4], [1, 3]]


def test_a_hash_depends_on_the_pair_and_the_key_alone():
    joined = pairs.undirected(graph(200, 900))
    values = pairs.keyed(joined, 5)
    assert np.unique(values).size == values.size
    shuffled = np.random.default_rng(1).permutation(values.size)
    assert (pairs.keyed(joined[:, shuffled], 5) == values[shuffled]).all()
    assert (pairs.keyed(joined, 6) != values).all()
    # As good as random: each of 16 high bits is set in half of the values, 4 standard deviations at most off.
    bits = (values[:, None] >> np.arange(48, 64, dtype=np.uint64)) & np.uint64(1)
    assert (abs(bits.mean(0) - 0.5) < 4 * 0.5 / np.sqrt(values.size)).all()


def test_the_finaliser_is_splitmix64():
    """The first outputs of the published generator from seed 0, whose state grows by the golden ratio."""
    state = (np.uint64(0x9E3779B97F4A7C15) * np.arange(1, 4, dtype=np.uint64)).astype(np.uint64)
    assert [hex(value) for value in pairs.mixed(state)] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


def test_pairs_are_split_by_shares_and_none_is_in_two_splits():
    order = np.random.default_rng(0).permutation(103)
    train, val, test = in_order(order, (0.6, 0.2, 0.2))
    assert (train.size, val.size, test.size) == (61, 22, 20)
    assert sorted(np.concatenate([train, val, test])) == list(range(103))
    train, val, test = in_order(order, (0.29, 0.1, 0.1))
    assert (train.size, val.size, test.size) == (29, 10, 10)


def test_no_drawn_pair_is_an_edge_or_a_loop():
    joined = pairs.undirected(graph(40, 500))  # a dense graph: most draws hit an edge
    known = {frozenset(pair) for pair in joined.T.tolist()}
    draws = pairs.NonEdges(joined, np.arange(40), 40)
    rng = np.random.default_rng(3)
    apart = draws.uniform(2000, rng)
    assert apart.shape[1] > 1900
    assert not any(frozenset(pair) in known or pair[0] == pair[1] for pair in apart.T.tolist())
    sources = np.repeat(np.arange(40), 50)
    targets, free = draws.corrupted(sources, rng)
    wrong = [
        frozenset(pair) in known or pair[0] == pair[1] for pair in zip(sources.tolist(), targets.tolist(), strict=True)
    ]
    assert (~free == wrong).all()
    assert free.mean() > 0.95


def test_every_free_target_is_drawn_equally_often():
    joined = np.array([[0, 0, 0], [1, 2, 3]])
    draws = pairs.NonEdges(joined, np.arange(10), 10)
    targets, free = draws.corrupted(np.zeros(12_000, dtype=np.int64), np.random.default_rng(0))
    count = np.bincount(targets[free], minlength=10)
    assert count[:4].sum() == 0
    expected = free.sum() / 6
    assert ((count[4:] - expected) ** 2 / expected).sum() < 20.5  # chi-square of 5 degrees of freedom, p = 0.001


def test_a_node_that_is_joined_to_all_has_no_free_target():
    joined = np.array([[0, 0, 0], [1, 2, 3]])
    targets, free = pairs.NonEdges(joined, np.arange(4), 4).corrupted(
        np.zeros(5, dtype=np.int64), np.random.default_rng(0)
    )
    assert not free.any()
    assert targets.shape == (5,)

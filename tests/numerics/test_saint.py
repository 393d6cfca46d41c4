"""GraphSAINT's edge sampler: probabilities by enumeration, and draws that follow them."""

from itertools import product

import numpy as np
import pytest

from fedgraph_flwr.numerics.saint import EdgeSampler
from fedgraph_flwr.numerics.subgraphs import Subgraphs, undirected

PAIRS = np.array([(0, 1), (0, 2), (0, 3), (1, 2)])
NODES, DRAWS = 5, 3  # node 4 has no neighbour


@pytest.fixture
def sampler():
    source, target = np.concatenate([PAIRS, PAIRS[:2], [[3, 3]]]).T  # parallel edges and loops count once
    return EdgeSampler(undirected(source, target, NODES), DRAWS)


def test_probabilities_equal_those_of_all_sequences_of_draws(sampler):
    """Every sequence of three edges with the weights of the paper's formula; node 4 is an edge of its own, of weight 1."""
    degree = np.bincount(PAIRS.ravel(), minlength=NODES)
    items = [(*pair, 1 / degree[pair[0]] + 1 / degree[pair[1]]) for pair in PAIRS] + [(4, 4, 1.0)]
    total = sum(weight for *_, weight in items)
    node, pair = np.zeros(NODES), np.zeros((NODES, NODES))
    for drawn in product(items, repeat=DRAWS):
        chance = np.prod([weight / total for *_, weight in drawn])
        held = np.zeros(NODES)
        for u, v, _ in drawn:
            held[[u, v]] = 1
        node += chance * held
        pair += chance * np.outer(held, held)
    np.testing.assert_allclose(sampler.nodes(np.arange(NODES)), node, rtol=1e-12)
    np.testing.assert_allclose(sampler.pairs(*PAIRS.T), pair[tuple(PAIRS.T)], rtol=1e-12)


def test_draws_follow_the_probabilities_and_depend_on_the_key(sampler):
    counts, trials = np.zeros(NODES), 4000
    for key in range(trials):
        counts[sampler.sample(key)] += 1
    p = sampler.nodes(np.arange(NODES))
    assert (np.abs(counts / trials - p) < 4 * np.sqrt(p * (1 - p) / trials)).all()
    np.testing.assert_array_equal(sampler.sample(7), sampler.sample(7))


def test_edges_between_nodes_are_those_of_a_dense_matrix():
    """Parallel edges and loops stay; degrees are those of the whole graph."""
    random = np.random.default_rng(0)
    dense = random.integers(0, 3, (12, 12))
    indptr = np.concatenate([[0], np.cumsum(dense.sum(1))])
    indices = np.concatenate([np.repeat(np.arange(12), row) for row in dense])
    nodes = np.array([7, 2, 11])
    finder = Subgraphs(indptr, indices)
    for _ in range(2):
        edges = finder.between(nodes)
        made = np.zeros((3, 3), int)
        np.add.at(made, (edges.rows, edges.col), 1)
        np.testing.assert_array_equal(made, dense[np.ix_(nodes, nodes)])
        np.testing.assert_array_equal(edges.degree, dense.sum(1)[nodes])
        np.testing.assert_array_equal(indices[edges.position], nodes[edges.col])

"""Statistics and edge flips on graphs small enough to do by hand, and against PyG."""

import json

import pytest
import torch

from fedgraph_flwr.config import DatasetConfig
from fedgraph_flwr.data import csbm
from fedgraph_flwr.data.edge_flip import flip_edges
from fedgraph_flwr.data.graph import ClientGraph, Graph
from fedgraph_flwr.data.statistics import describe, edge_homophily, is_undirected, label_skew, node_homophily


def toy(edges, y, cls=Graph, **kwargs):
    none = torch.zeros(len(y), dtype=torch.bool)
    edge_index = torch.tensor(edges, dtype=torch.int64).view(-1, 2).t().contiguous()
    return cls(torch.ones(len(y), 2), edge_index, torch.tensor(y), none, none, none, 3, "toy", **kwargs)


def test_describe_by_hand():
    # 0-1 (same), 1→2 (different), 2→2 loop, 3 unlabelled, 4 isolated
    graph = toy([(0, 1), (1, 0), (1, 2), (2, 2), (0, 3)], [0, 0, 2, -1, 1])
    description = describe(graph)
    assert (description["nodes"], description["edges"]) == (5, 5)
    assert description["labels"] == [2, 1, 1]
    assert description["labelled"] == 4
    assert description["edge_homophily"] == 3 / 4  # (0,1) (1,0) (2,2) of the four with two labels
    assert description["node_homophily"] == pytest.approx((1 + 1 + 1 / 2) / 3)  # nodes 0, 1, 2 are reached
    assert (description["isolated"], description["self_loops"], description["undirected"]) == (1, 1, False)
    assert description["degree"] == 1.0
    json.dumps(description)


def test_describe_a_client_counts_cut_edges():
    cut = torch.tensor([[0, 1], [7, 9]])
    client = toy([(0, 1), (1, 0)], [0, 1], ClientGraph, cut_out=cut, cut_in=cut[:, :1], client=4, num_clients=6)
    description = describe(client)
    assert (description["client"], description["cut_edges"], description["undirected"]) == (4, 3, True)
    assert describe(toy([], [0]))["edge_homophily"] is None


def test_homophily_agrees_with_pyg():
    from torch_geometric.utils import homophily

    graph = csbm.load(DatasetConfig(params={"nodes": 300, "degree": 20}), num_clients=2)  # no node without neighbours
    args = (graph.edge_index, graph.y)
    assert edge_homophily(*args) == pytest.approx(homophily(*args, method="edge"), rel=1e-6)
    assert node_homophily(*args) == pytest.approx(homophily(*args, method="node"), rel=1e-6)


def edge_set(graph):
    return set(map(tuple, graph.edge_index.t().tolist()))


@pytest.mark.parametrize("directed", [False, True])
def test_flips_replace_the_planned_share(directed):
    graph = csbm.load(DatasetConfig(params={"nodes": 1000, "degree": 20}), num_clients=1)
    if directed:
        graph.edge_index = graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]]
    before, after = edge_set(graph), edge_set(flip_edges(graph, 0.1, seed=0))
    assert len(after) == len(before) == graph.edge_index.size(1)
    spread = (0.1 * 0.9 / (len(before) / (1 if directed else 2))) ** 0.5
    assert len(before - after) / len(before) == pytest.approx(0.1, abs=4 * spread)
    assert is_undirected(flip_edges(graph, 0.1, seed=0).edge_index, 1000) == (not directed)
    assert not any(u == v for u, v in after)


def test_flips_depend_on_seed_and_client_only():
    edges = [(u, v) for u in range(20) for v in range(20) if abs(u - v) == 1]
    one, two = (toy(edges, [0] * 20, ClientGraph, client=c, num_clients=2) for c in (0, 1))
    assert torch.equal(flip_edges(one, 0.5, 3).edge_index, flip_edges(one, 0.5, 3).edge_index)
    assert edge_set(flip_edges(one, 0.5, 3)) != edge_set(flip_edges(one, 0.5, 4))
    assert edge_set(flip_edges(one, 0.5, 3)) != edge_set(flip_edges(two, 0.5, 3))
    assert flip_edges(one, 0.0, 3) is one


def test_flips_keep_loops_and_end_on_a_complete_graph():
    complete = [(u, v) for u in range(4) for v in range(4)]  # with loops: no pair is absent
    graph = flip_edges(toy(complete, [0] * 4), 1.0, 0)
    assert edge_set(graph) == {(u, u) for u in range(4)}
    everything = flip_edges(toy([(0, 1), (1, 0), (1, 2), (2, 1)], [0] * 3), 1.0, 0)
    assert edge_set(everything) == {(0, 2), (2, 0)}  # the one pair that was absent


def test_label_skew_against_fractions():
    """Client 0 has 3 of 4 in class 0, client 1 has all 4 in class 1; together 3/8 and 5/8."""
    largest, distance = label_skew(torch.tensor([[3, 1], [0, 4]]))
    assert largest.tolist() == [0.75, 1.0]
    assert distance.tolist() == [0.375, 0.375]
    assert label_skew(torch.tensor([[0, 0], [1, 2]]))[1].tolist() == [0.0, 0.0]

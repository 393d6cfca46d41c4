"""Batches of other tasks than classes of nodes, and of typed graphs: equal to full steps where nothing is left out."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.scoring import infer
from fedgraph_flwr.config import compose
from fedgraph_flwr.models.rgcn import RGCN
from fedgraph_flwr.models.simple_hgn import SimpleHGN
from tests.typed_graphs import built, flat_edges, typed_client

WHOLE = ["train.sampler=neighbors", "train.fanout=[-1,-1]"]
EXACT = ["dtype=float64", "model.dropout=0", "model.hidden=8"]


@pytest.fixture
def data(graph):
    """The graph with targets of nodes, some unknown, and labels and features of edges."""
    random = np.random.default_rng(5)
    targets = torch.from_numpy(random.integers(0, 2, (30, 2))).float()
    targets[::7, 1] = torch.nan
    edge_y = torch.from_numpy(random.integers(0, 2, graph.edge_index.size(1)))
    return replace(graph, targets=targets, edge_y=edge_y, num_edge_classes=2, node_id=torch.arange(30))


def trained(data, *overrides):
    client = GraphClient(compose([*overrides, *EXACT]), data)
    for client.server_round in (1, 2):
        client.train()
    return client


TASKS = {
    "nodes-regression": ["model=gcn"],
    "nodes-multilabel": ["model=sage"],
    "edges": ["model=sage"],
    "edges with features": ["model=gine"],
    "edges with features both ways": ["model=multi_gine"],
    "links": ["model=gcn"],
    "links in sight": ["model=sage", "task.disjoint=0"],
}


@pytest.mark.parametrize("name", TASKS)
def test_all_items_and_neighbours_in_a_batch_train_as_the_full_batch(name, data):
    """Parameters after two rounds of three steps, and outputs, which the sampled client computes in blocks."""
    data = data if "features" in name else replace(data, edge_attr=torch.zeros(0, 0))
    overrides = [f"task={name.split()[0].strip(',')}", *TASKS[name]]
    full, sampled = trained(data, *overrides), trained(data, *overrides, *WHOLE)
    for one, other in zip(full.model.parameters(), sampled.model.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-11)
    torch.testing.assert_close(infer(sampled), infer(full), rtol=0, atol=1e-11)


def joined(batch):
    """Pairs of the batch's first nodes that its last layer joins, in local ids."""
    rows = batch.inputs.layers[-1].adj.rows
    target = torch.arange(len(rows.pointer) - 1).repeat_interleave(rows.pointer.diff())
    return set(zip(target.tolist(), rows.col.tolist(), strict=True))


@pytest.mark.parametrize("disjoint", [0, 0.3])
def test_a_batch_of_links_hides_its_pairs_in_both_directions(disjoint, data):
    overrides = ["task=links", "model=sage", *WHOLE, "train.batch_size=5", f"task.disjoint={disjoint}"]
    client = GraphClient(compose([*overrides, *EXACT]), replace(data, edge_attr=torch.zeros(0, 0)))
    seen = []
    for batch in client.batches():
        positive = batch.nodes[:, batch.y > 0].T.tolist()
        assert 4 <= len(positive) <= 5
        assert (batch.y == 0).any()
        read = joined(batch)
        seen += [(u, v) in read or (v, u) in read for u, v in positive]
    assert all(seen) if not disjoint else not any(seen)


def test_a_batch_of_edges_has_their_ends_as_seeds(data):
    client = GraphClient(compose(["task=edges", "model=gine", *WHOLE, "train.batch_size=5", *EXACT]), data)
    batch = next(client.batches())
    assert len(batch.y) == 5
    index = batch.inputs.item_index
    assert sorted(index.unique().tolist()) == list(range(int(index.max()) + 1))
    whole = client.task.graph.edge_attr.double()
    assert all((whole == row).all(1).any() for row in batch.inputs.item_attr)


@pytest.mark.parametrize("of_edges", [False, True])
@pytest.mark.parametrize("kind", [RGCN, SimpleHGN])
def test_full_fanout_of_typed_graphs_equals_the_full_batch(kind, of_edges):
    more = {"heads": 2} if kind is SimpleHGN else {}
    model, inputs, _ = built(kind, typed_client(0, edges=60, of_edges=of_edges), **more)
    seeds = np.array([0, 3, 4, 8])
    sampled = model.sampled_inputs(seeds, [-1, 1000, -1], 7, stable=False)
    gradients, whole = [], model(inputs)[seeds]
    for logits in (whole, model(sampled)):
        model.zero_grad()
        logits.square().sum().backward()
        gradients.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(model(sampled), whole, rtol=0, atol=1e-12)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-12)


def test_draws_of_typed_graphs_are_by_type_and_by_node():
    """At most f edges of each type into a node; a node's draw does not depend on the others; types draw separately."""
    model, _, typed = built(RGCN, typed_client(0, edges=90))
    everyone = np.arange(typed.num_nodes)
    source, target, relation, place = model.edges.drawn(everyone, 2, 5, 0, False)
    flat = np.stack(flat_edges(typed))
    sizes = [index.size(1) for index in typed.edges.values()]
    np.testing.assert_array_equal(flat[:, (np.cumsum(sizes) - sizes)[relation] + place], [source, target, relation])
    _, counts = np.unique(np.stack([target, relation]), axis=1, return_counts=True)
    pairs = np.stack(flat_edges(typed)[1:])
    _, degrees = np.unique(pairs, axis=1, return_counts=True)
    np.testing.assert_array_equal(counts, np.minimum(degrees, 2))
    some = everyone[2::3]
    alone = model.edges.drawn(some, 2, 5, 0, False)
    kept = np.isin(target, some)
    np.testing.assert_array_equal(alone[0], source[kept])
    assert not np.array_equal(model.edges.drawn(everyone, 2, 6, 0, False)[0], source)
    star = typed_client(0, people=1, papers=50, edges=1)
    index = torch.stack([torch.arange(50), torch.zeros(50, dtype=torch.int64)])
    star.edges = {("paper", "of", "person"): index, ("paper", "by", "person"): index}
    edges = built(RGCN, star)[0].edges.drawn(np.array([50]), 5, 1, 0, False)
    assert set(edges[0][edges[2] == 0].tolist()) != set(edges[0][edges[2] == 1].tolist())


def test_a_client_with_a_typed_graph_trains_on_batches():
    overrides = ["model=rgcn", "model.layers=2", "train.sampler=neighbors", "train.batch_size=2", "train.fanout=[2,2]"]
    client = GraphClient(compose(["strategy=fedavg", *overrides]), typed_client(0, edges=40))
    sizes = [len(batch.y) for batch in client.batches()]
    assert sizes == [2, 1, 2]
    client.train()
    assert all(torch.isfinite(p).all() for p in client.model.parameters())

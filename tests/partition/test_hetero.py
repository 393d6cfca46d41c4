"""Random Edges, Random Edge Types, and the given client graphs."""

import json

import numpy as np
import pytest
import torch

from fedgraph_flwr.config import SplitConfig, compose
from fedgraph_flwr.data.hetero import HeteroGraph
from fedgraph_flwr.data.split import split_targets
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition.hetero import deal, make, pool, share_schema
from tests.typed_graphs import flat_edges

PEOPLE, PAPERS = 60, 80


def graph(num_edge_types=12, edges=200, seed=0):
    """People, papers and words, with several edge types; all people are labelled."""
    rng = np.random.default_rng(seed)
    counts = {"paper": PAPERS, "person": PEOPLE, "word": 40}
    ends = [("person", "paper"), ("paper", "paper"), ("paper", "word")]
    types = [(*ends[i % 3][:1], f"r{i}", ends[i % 3][1]) for i in range(num_edge_types)]
    masks = torch.zeros(3, PEOPLE, dtype=torch.bool)
    masks[np.arange(PEOPLE) % 3, np.arange(PEOPLE)] = True
    return HeteroGraph(
        counts=counts,
        edges={
            (a, r, b): torch.from_numpy(
                np.stack([rng.integers(counts[a], size=edges), rng.integers(counts[b], size=edges)])
            )
            for a, r, b in types
        },
        target="person",
        y=torch.arange(PEOPLE) % 2,
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
        num_classes=2,
        x={"word": torch.arange(40.0).view(-1, 1)},
        name="toy",
    )


def config(*overrides):
    return compose(["dataset=aifb", "partition=random-edges", "split.kind=public", *overrides])


def global_edges(part, with_reverse=False):
    """The client's edges in the numbers of the whole graph: (type, source, target), as often as it holds them."""
    edges = []
    for (a, r, b), index in part.edges.items():
        if with_reverse or not r.startswith("rev_"):
            ends = zip(part.node_id[a][index[0]].tolist(), part.node_id[b][index[1]].tolist(), strict=True)
            edges += [(r, s, t) for s, t in ends]
    return sorted(edges)


@pytest.mark.parametrize("num_clients", [3, 5, 10])
def test_segments_are_dealt_as_the_paper_says(num_clients):
    """Counted from who holds what: s items exclusively each, s by 2..M-1 clients, the rest by all."""
    items = 40 * (num_clients + 2) + 7
    held = deal(items, num_clients, np.random.default_rng(3))
    holders = held.sum(0)
    size = items // (num_clients + 2)
    assert [int(held[c, holders == 1].sum()) for c in range(num_clients)] == [size] * num_clients
    assert int(((holders >= 2) & (holders < num_clients)).sum()) == size
    assert int((holders == num_clients).sum()) == items - (num_clients + 1) * size
    if num_clients > 3:  # q is uniform in 2..M-1
        assert set(holders[(holders > 1) & (holders < num_clients)]) == set(range(2, num_clients))
    assert held.sum(1).std() < 0.2 * held.sum(1).mean()  # no client is favoured


@pytest.mark.parametrize("name", ["random-edges", "random-edge-types"])
def test_clients_hold_what_they_were_dealt(name):
    whole = graph()
    parts = make(whole, config(f"partition={name}", "num_clients=4"))
    everything = sorted((r, s, t) for (_, r, _), index in whole.edges.items() for s, t in index.t().tolist())
    for part in parts:
        edges = global_edges(part)
        assert set(edges) <= set(everything)
        back = sorted((r.removeprefix("rev_"), t, s) for r, s, t in global_edges(part, True) if r.startswith("rev_"))
        assert back == edges  # the reverse of every edge, and no other
        for kind, ids in part.node_id.items():  # every node is touched by an edge, and keeps what belongs to it
            ends = [i[side] for (a, _, b), i in part.edges.items() for side, end in ((0, a), (1, b)) if end == kind]
            assert torch.equal(torch.cat(ends).unique(), torch.arange(ids.numel()))
        people = part.node_id["person"]
        assert torch.equal(part.y, whole.y[people])
        assert torch.equal(part.test_mask, whole.test_mask[people])
        assert torch.equal(part.x["word"], whole.x["word"][part.node_id.get("word", torch.zeros(0, dtype=torch.int64))])
        assert part.train_mask.any()
        assert part.val_mask.any()
        assert part.test_mask.any()
    assert {e for part in parts for e in global_edges(part)} == set(everything)
    if name == "random-edge-types":  # a type comes whole
        sizes = {r: index.size(1) for (_, r, _), index in whole.edges.items()}
        for part in parts:
            assert all(i.size(1) in (0, sizes[r.removeprefix("rev_")]) for (_, r, _), i in part.edges.items())


def test_private_and_shared_schemas():
    private = make(graph(), config("partition=random-edge-types", "num_clients=4", "strategy.private_schema=true"))
    assert all(index.size(1) for part in private for index in part.edges.values())
    assert len({tuple(part.edges) for part in private}) > 1
    shared = share_schema(private)
    assert len({(tuple(part.edges), tuple(part.counts), tuple(part.num_features)) for part in shared}) == 1
    assert [part.num_edges for part in shared] == [part.num_edges for part in private]
    source, target, relation = flat_edges(private[1])
    assert len(source) == len(target) == len(relation) == private[1].num_edges


def test_same_seed_same_split():
    one, two = (make(graph(), config("num_clients=3", f"seed={seed}")) for seed in (1, 2))
    assert [global_edges(p) for p in one] == [global_edges(p) for p in two]  # partition.seed, not the run's
    three, four = (make(graph(), config("num_clients=3", "partition.seed=null", f"seed={s}")) for s in (1, 2))
    assert [global_edges(p) for p in three] != [global_edges(p) for p in four]


def test_central_holds_the_whole_graph_with_reverse_edges():
    (whole,) = make(graph(), config("strategy=central"))
    assert whole.num_edges == 2 * graph().num_edges
    assert global_edges(whole) == sorted(
        (r, s, t) for (_, r, _), index in graph().edges.items() for s, t in index.t().tolist()
    )


def test_pooling_clients_gives_back_the_edges_they_share_among_them():
    whole = pool(make(graph(), config("num_clients=4")))
    distinct = {(r, s, t) for (_, r, _), index in graph().edges.items() for s, t in index.t().tolist()}
    assert global_edges(whole) == sorted(distinct)
    assert torch.equal(whole.test_mask, graph().test_mask[whole.node_id["person"]])
    assert torch.equal(whole.y, graph().y[whole.node_id["person"]])
    assert torch.equal(whole.x["word"], graph().x["word"][whole.node_id["word"]])


def test_one_more_type_than_clients_gives_an_own_and_a_common_one():
    parts = make(graph(num_edge_types=4), config("partition=random-edge-types", "num_clients=3"))
    held = [{r for (_, r, _), i in part.edges.items() if i.size(1) and not r.startswith("rev_")} for part in parts]
    assert [len(h) for h in held] == [2, 2, 2]
    assert len(held[0] & held[1] & held[2]) == 1
    assert len(held[0] | held[1] | held[2]) == 4


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["num_clients=2"], "needs num_clients >= 3, got 2"),
        (["num_clients=12", "partition=random-edge-types"], "'toy' has 12 for 12"),
        (["partition=louvain"], "partition 'louvain' is unknown"),
        (["partition=given"], "partition=given is for dataset=aifb-published"),
    ],
)
def test_impossible_partitions_are_one_sentence(overrides, message):
    with pytest.raises(FedGraphError, match=message):
        make(graph(), config(*overrides))


@pytest.mark.slow
def test_clients_without_labelled_nodes_are_an_error():
    whole = graph(edges=3)
    touched = torch.cat([index[0] for (a, _, _), index in whole.edges.items() if a == "person"])
    whole.val_mask = ~torch.isin(torch.arange(PEOPLE), touched)  # no client holds them
    whole.train_mask &= ~whole.val_mask
    whole.test_mask &= ~whole.val_mask
    with pytest.raises(FedGraphError, match="always had no training, validation or test nodes"):
        make(whole, config("num_clients=10"))


def test_validation_nodes_come_from_the_training_nodes_once():
    """A fifth of the standard training nodes, the same for all seeds; test nodes stay."""
    whole = graph()
    whole.train_mask |= whole.val_mask
    whole.val_mask[:] = False
    one, two = (split_targets(whole, SplitConfig(kind="public", val=0.2), seed) for seed in (1, 2))
    assert int(one.val_mask.sum()) == 8
    assert torch.equal(one.val_mask, two.val_mask)
    assert torch.equal(one.train_mask | one.val_mask, whole.train_mask)
    assert not (one.train_mask & one.val_mask).any()
    assert torch.equal(one.test_mask, whole.test_mask)


@pytest.mark.parametrize(
    ("kind", "num_clients", "edge_types", "edges"),
    [("random-edges", 3, 104.0, 26032.0), ("random-edges", 10, 101.6, 10390.6), ("random-etypes", 5, 43.2, 22079.2)],
)
def test_published_client_graphs(shared_data, kind, num_clients, edge_types, edges):
    shared_data("FedHGN")
    overrides = ["dataset=aifb-published", "partition=given", f"partition.split={kind}", f"num_clients={num_clients}"]
    parts = make(None, config(*overrides, "strategy.private_schema=true"))
    assert len(parts) == num_clients
    assert np.mean([len(part.edges) for part in parts]) == pytest.approx(edge_types)
    assert np.mean([part.num_edges for part in parts]) == pytest.approx(edges)
    (whole,) = make(None, config(*overrides, "strategy=central"))
    assert whole.num_edges == 48810


def test_published_client_graphs_of_another_dataset(tmp_path, monkeypatch):
    """MUTAG's published files are read by their names, client by client."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    (tmp_path / "FedHGN").mkdir()
    meta = {"ntypes": ["d", "bond"], "num_nodes": [3, 2], "canonical_etypes": [["d", "has", "bond"]], "target": "d"}
    arrays = {"meta": np.array(json.dumps([{**meta, "num_classes": 2}] * 3))}
    for client in range(3):
        arrays[f"c{client}_n0_id"], arrays[f"c{client}_n1_id"] = np.arange(3), np.array([client, 4])
        arrays[f"c{client}_e0"] = np.array([[0, 1, 2], [0, 1, 1]])
        arrays[f"c{client}_label"] = np.array([0, 1, client % 2])
        for place, mask in enumerate(("train", "val", "test")):
            arrays[f"c{client}_{mask}_mask"] = np.arange(3) == place
    np.savez(tmp_path / "FedHGN" / "mutag-hetero_random-etypes_3.npz", **arrays)
    overrides = ["dataset=mutag-published", "partition=given", "partition.split=random-etypes", "num_clients=3"]
    parts = make(None, config(*overrides))
    assert [part.name for part in parts] == ["mutag-published"] * 3
    assert [part.node_id["bond"].tolist() for part in parts] == [[0, 4], [1, 4], [2, 4]]
    assert [part.y.tolist() for part in parts] == [[0, 1, 0], [0, 1, 1], [0, 1, 0]]
    with pytest.raises(FedGraphError, match=r"no published MUTAG split 'random-edges' for 3 clients.*random-etypes_3"):
        make(None, config("dataset=mutag-published", "partition=given", "num_clients=3"))


@pytest.mark.slow
def test_our_splits_of_aifb_are_like_the_published_ones(shared_data):
    """Sizes agree within a few per cent: the same recipe, other draws."""
    from fedgraph_flwr.data.datasets import load

    shared_data("Entities/aifb")
    shared_data("FedHGN")
    whole = load(compose(["dataset=aifb"]).dataset)
    for kind, theirs in (("random-edges", "random-edges"), ("random-edge-types", "random-etypes")):
        ours = make(whole, config(f"partition={kind}", "num_clients=5", "strategy.private_schema=true"))
        given = make(
            whole, config("dataset=aifb-published", "partition=given", f"partition.split={theirs}", "num_clients=5")
        )
        ratio = np.mean([p.num_edges for p in ours]) / np.mean([p.num_edges for p in given])
        assert ratio == pytest.approx(1.0, abs=0.02 if kind == "random-edges" else 0.35)
        if kind == "random-edges":
            nodes = np.mean([p.num_nodes for p in ours]) / np.mean([p.num_nodes for p in given])
            assert nodes == pytest.approx(1.0, abs=0.03)

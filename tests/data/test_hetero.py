"""Heterogeneous graphs: the file format, RDF by hand, and the counts of what is published."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch

from fedgraph_flwr.config import compose
from fedgraph_flwr.data import datasets, typed
from fedgraph_flwr.data.checks import check_graph
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.hetero import HeteroClientGraph, HeteroGraph, load_graph
from fedgraph_flwr.errors import FedGraphError
from tests.typed_graphs import flat_edges


def toy(**kwargs):
    """Two papers by three authors; paper 1 cites paper 0."""
    none = torch.zeros(2, dtype=torch.bool)
    values = {
        "counts": {"author": 3, "paper": 2},
        "edges": {
            ("author", "writes", "paper"): torch.tensor([[0, 1, 2], [0, 0, 1]]),
            ("paper", "cites", "paper"): torch.tensor([[1], [0]]),
        },
        "target": "paper",
        "y": torch.tensor([0, 1]),
        "train_mask": torch.tensor([True, False]),
        "val_mask": none,
        "test_mask": ~none,
        "num_classes": 2,
        "name": "toy",
    }
    return HeteroGraph(**values | kwargs)


def same(a, b):
    for f in fields(a):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if isinstance(x, dict):
            assert list(x) == list(y)
            for key in x:
                assert torch.equal(torch.as_tensor(x[key]), torch.as_tensor(y[key]))
        else:
            assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


def test_files_come_back(tmp_path):
    graph = toy(x={"author": torch.randn(3, 4)})
    graph.save(tmp_path / "graph.safetensors")
    same(load_graph(tmp_path / "graph.safetensors"), graph)
    values = {f.name: getattr(graph, f.name) for f in fields(HeteroGraph)}
    client = HeteroClientGraph(**values, node_id={"author": torch.tensor([4, 5, 9])}, client=2, num_clients=3)
    client.save(tmp_path / "client.safetensors")
    same(load_graph(tmp_path / "client.safetensors"), client)
    with pytest.raises(FedGraphError, match="holds a HeteroClientGraph, expected a Graph"):
        Graph.load(tmp_path / "client.safetensors")


def test_pyg_and_back():
    graph = toy(x={"author": torch.randn(3, 4)})
    same(HeteroGraph.from_pyg(graph.to_pyg(), "paper", 2, "toy"), graph)


def test_flat_numbering_by_hand():
    source, target, relation = flat_edges(toy())  # authors are 0..2, papers 3..4
    assert list(zip(source, target, relation, strict=True)) == [(0, 3, 0), (1, 3, 0), (2, 4, 0), (4, 3, 1)]
    assert toy().num_features == [2, 2, 0, 0]
    wide = toy(x={"paper": torch.ones(2, 7)}).on_schema(["paper", "venue", "author"], [("paper", "in", "venue")])
    assert wide.num_features == [3, 1, 7, 0, 0]
    assert wide.counts == {"paper": 2, "venue": 0, "author": 3}
    assert wide.num_edges == 0


def test_reverse_edge_types_stand_beside_all_others():
    graph = toy().with_reverse()
    assert [r for _, r, _ in graph.edges] == ["writes", "cites", "rev_writes", "rev_cites"]
    assert graph.edges["paper", "rev_cites", "paper"].tolist() == [[0], [1]]
    with pytest.raises(FedGraphError, match="already has the reverse"):
        HeteroGraph(**{f.name: getattr(graph, f.name) for f in fields(graph)}).with_reverse().with_reverse()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            {"edges": {("author", "writes", "paper"): torch.tensor([[0], [2]])}},
            "row 1, must be in 0..1; place 0 has 2",
        ),
        (
            {"edges": {("author", "writes", "paper"): torch.tensor([0, 2])}},
            r"edges of .* must be torch.int64 \[2, any\]",
        ),
        ({"x": {"author": torch.ones(2, 1)}}, r"x of 'author' must be torch.float32 \[3, any\]"),
        ({"x": {"author": torch.full((3, 1), float("nan"))}}, "must be finite; node 0 has nan in column 0"),
        ({"y": torch.tensor([0, 2])}, r"labels must be in 0\.\.1, or -1 where unknown; node 1 has 2"),
        ({"y": torch.tensor([-1, -1])}, "no labelled node of type"),
        ({"y": torch.tensor([0, 1, 1])}, r"y must be torch.int64 \[2\]"),
    ],
)
def test_impossible_graphs_are_one_sentence(graph, message):
    with pytest.raises(FedGraphError, match=message):
        check_graph(toy(**graph), "toy")


def test_unknown_types_are_refused():
    with pytest.raises(FedGraphError, match="did you mean 'paper'"):
        toy(target="papers")
    with pytest.raises(FedGraphError, match="node type of the edges 'writes' 'editor' is unknown"):
        toy(edges={("editor", "writes", "paper"): torch.zeros(2, 0, dtype=torch.int64)})


def test_one_type_options_do_not_apply(shared_data):
    shared_data("FedHGN")
    with pytest.raises(FedGraphError, match=r"dataset\.undirected does not apply to 'aifb-published'"):
        load(compose(["dataset=aifb-published", "dataset.undirected=true"]).dataset)


def test_published_whole_graph(shared_data):
    shared_data("FedHGN")
    graph = load(compose(["dataset=aifb-published"]).dataset)
    assert len(graph.counts) == 7
    assert len(graph.edges) == 104
    assert graph.num_nodes == 7262
    assert graph.num_edges == 48810
    assert [int(m.sum()) for m in (graph.train_mask, graph.val_mask, graph.test_mask)] == [112, 28, 36]
    assert graph.num_classes == 4
    assert graph.target == "Personen"


@pytest.mark.slow
def test_our_reading_of_aifb_is_the_published_graph(shared_data):
    """From the RDF triples: the published types with the published number of nodes and edges, before reverse edges."""
    root = shared_data("Entities/aifb")
    shared_data("FedHGN")
    ours = load(compose(["dataset=aifb"]).dataset)
    assert ours.name == "aifb"
    both = ours.with_reverse()
    published = typed.published(root / "FedHGN", "aifb", "centralized", 1)[0]
    assert both.counts == published.counts
    sizes = [sorted((a, index.size(1), b) for (a, _, b), index in g.edges.items()) for g in (both, published)]
    assert sizes[0] == sizes[1]
    assert int(ours.train_mask.sum()) == 140
    assert int(ours.test_mask.sum()) == 36
    labels = [g.y[g.train_mask | g.val_mask | g.test_mask].bincount() for g in (ours, published)]
    assert sorted(labels[0].tolist()) == sorted(labels[1].tolist())


def test_missing_files_say_what_goes_where(shared_data):
    with pytest.raises(FedGraphError, match=r"put aifb-hetero_centralized_1\.npz into .*FedHGN"):
        load(compose(["dataset=aifb-published"]).dataset)
    root = shared_data("FedHGN")
    with pytest.raises(FedGraphError, match=r"for 4 clients.*aifb-hetero_random-edges_10\.npz"):
        typed.published(root / "FedHGN", "aifb", "random-edges", 4)


def test_molecules_by_hand():
    """MUTAG's rules: typed instances, objects typed by the predicate, what describes the data as SCHEMA, no labels."""
    import rdflib

    c = "http://dl-learner.org/carcinogenesis#"
    text = f"""
    <{c}d1> <{c}hasBond> <{c}bond2> .
    <{c}bond2> <{c}inBond> <{c}c7> .
    <{c}d1> <{c}isMutagenic> "true" .
    <{c}d1> <{c}charge> "0.5" .
    <{c}d1> <http://www.w3.org/1999/02/22-rdf-syntax-ns#type> <{c}Compound> .
    """
    triples = sorted(rdflib.Graph().parse(data=text, format="nt"))
    graph = typed.typed_graph(triples, typed.VOCABULARIES["mutag"], {f"{c}d1": "1"}, {}, "mutag")
    assert graph.counts == {"SCHEMA": 1, "_Literal": 1, "bond": 1, "d": 1, "inBond": 1}
    assert sorted(graph.edges) == [
        ("bond", "inBond", "inBond"),
        ("d", "22-rdf-syntax-ns#type", "SCHEMA"),
        ("d", "charge", "_Literal"),
        ("d", "hasBond", "bond"),
    ]
    assert graph.y.tolist() == [0]


def test_rocks_by_hand():
    """BGS's rules: two words make a type; no literals, no status, no label."""
    import rdflib

    b = "http://data.bgs.ac.uk"
    text = f"""
    <{b}/id/Lexicon/NamedRockUnit/X> <{b}/ref/Lexicon/hasTheme> <{b}/ref/Lexicon/Theme/T> .
    <{b}/id/Lexicon/NamedRockUnit/X> <{b}/ref/Lexicon/hasLithogenesis> <{b}/ref/Lexicon/Theme/FLUV> .
    <{b}/id/Lexicon/NamedRockUnit/X> <{b}/ref/Lexicon/hasStatus> <{b}/ref/CurrentStatus/Item/CURRENT> .
    <{b}/id/Lexicon/NamedRockUnit/X> <{b}/ref/Lexicon/hasName> "x" .
    """
    triples = sorted(rdflib.Graph().parse(data=text, format="nt"))
    train = {f"{b}/id/Lexicon/NamedRockUnit/X": "fluvial"}
    graph = typed.typed_graph(triples, typed.VOCABULARIES["bgs"], train, {}, "bgs")
    assert list(graph.edges) == [("Lexicon/NamedRockUnit", "Lexicon/hasTheme", "Lexicon/Theme")]
    assert graph.num_nodes == 2


def test_exact_reverse_types_are_left_out():
    graph = toy()
    graph.edges["paper", "by", "author"] = torch.tensor([[0, 1, 0], [1, 2, 0]])  # writes, turned and shuffled
    graph.edges["paper", "read_by", "author"] = torch.tensor([[0], [1]])
    assert [r for _, r, _ in graph.without_reverse().edges] == ["writes", "cites", "read_by"]


@pytest.mark.parametrize(("name", "cls"), [("aifb", "Entities"), ("bgs", "Entities")])
def test_folders_are_those_pyg_expects(name, cls, tmp_path):
    import torch_geometric.datasets

    source = datasets.SOURCES[name]
    dataset = getattr(torch_geometric.datasets, cls).__new__(getattr(torch_geometric.datasets, cls))
    dataset.root, dataset.name = str(tmp_path / source.root), name
    assert [Path(p) for p in dataset.raw_paths] == [tmp_path / source.folder / file for file in source.files]

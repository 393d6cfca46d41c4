"""PyG's dataset classes and OGB's node datasets by name."""

import gzip
import shutil
import urllib.error

import pytest
import torch

from fedgraph_flwr.config import compose
from fedgraph_flwr.data import collections
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.data.many_graphs import one_per_graph, selected
from fedgraph_flwr.errors import FedGraphError


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    return tmp_path


def loaded(*overrides):
    return load(compose(list(overrides)).dataset)


def test_a_class_of_pyg_gives_the_same_graph_as_the_built_in_name(shared_data):
    root = shared_data("Planetoid/Cora")
    shutil.copytree(root / "Planetoid", root / "pyg" / "Planetoid")
    ours, named = loaded("dataset=cora"), loaded("dataset=pyg", "dataset.name=Planetoid", "dataset.part=Cora")
    for key in ("x", "y", "train_mask", "val_mask", "test_mask", "edge_index"):
        assert torch.equal(getattr(ours, key), getattr(named, key)), key
    assert (named.name, named.num_classes) == ("Planetoid", 7)


def test_a_benchmark_of_typed_graphs_by_hand(root):
    """Four lines of HGB's format: types, features, labels, and the reverse relation left out."""
    folder = root / "pyg" / "HGBDataset" / "acm" / "raw" / "ACM"
    folder.mkdir(parents=True)
    (folder / "info.dat").write_text(
        '{"node.dat": {"node type": {"0": "paper", "1": "author"}}, "label.dat": {"node type": {"0": {"0": "a", "1": "b"}}},'
        '"link.dat": {"link type": {"0": {"start": 0, "end": 1, "meaning": "paper-author"},'
        '"1": {"start": 1, "end": 0, "meaning": "author-paper"}}}}'
    )
    (folder / "node.dat").write_text("0\tp\t0\t1,2\n1\tq\t0\t3,4\n2\tx\t1\n")
    (folder / "link.dat").write_text("0\t2\t0\t1.0\n1\t2\t0\t1.0\n2\t0\t1\t1.0\n2\t1\t1\t1.0\n")
    (folder / "label.dat").write_text("0\tp\t0\t1\n")
    (folder / "label.dat.test").write_text("1\tq\t0\t0\n")
    graph = loaded("dataset=pyg", "dataset.name=HGBDataset", "dataset.part=acm")
    assert len(graph.edges) == 1
    assert graph.x["paper"].tolist() == [[1, 2], [3, 4]]
    assert "author" not in graph.x
    assert (graph.target, graph.y.tolist(), graph.num_classes) == ("paper", [1, 0], 2)
    assert graph.test_mask.tolist() == [False, True]


def test_many_molecules_are_those_of_pyg_with_one_hot_columns(root):
    pytest.importorskip("rdkit", reason="reads SMILES strings")
    from torch_geometric.datasets import MoleculeNet

    table = "smiles,FDA_APPROVED,CT_TOX\nC[C@H](N)C(=O)O,1,0\nF/C=C/F,,1\nC1CC1,0,\n"
    path = root / "pyg" / "MoleculeNet" / "clintox" / "raw" / "clintox.csv"
    path.parent.mkdir(parents=True)
    path.write_text(table)
    graph = loaded("task=graphs-multilabel", "dataset=pyg", "dataset.name=MoleculeNet", "dataset.part=ClinTox")
    items, plain = one_per_graph(graph), MoleculeNet(str(root / "pyg" / "MoleculeNet"), "ClinTox")
    assert (len(plain), items.num_nodes) == (3, 3)
    assert items.targets[1:].isnan().tolist() == [[True, False], [False, True]]
    for key in ("x", "edge_attr"):
        expected, columns = torch.cat([molecule[key] for molecule in plain]), getattr(graph, key)
        widths = (expected.max(0).values + 1).tolist()
        assert torch.equal(torch.stack([part.argmax(1) for part in columns.split(widths, 1)], dim=1), expected)
        assert torch.equal(columns.sum(1), torch.full((len(columns),), float(len(widths))))
    for number, molecule in enumerate(plain):
        assert torch.equal(selected(graph, torch.tensor([number])).edge_index, molecule.edge_index)
        assert torch.equal(items.targets[number].nan_to_num(9), molecule.y[0].nan_to_num(9))


def test_many_graphs_with_a_class_each(root):
    folder = root / "pyg" / "TUDataset" / "TOY" / "raw"
    folder.mkdir(parents=True)
    texts = {"A": "1, 2\n2, 1\n3, 4\n4, 3\n", "graph_indicator": "1\n1\n2\n2\n", "graph_labels": "0\n2\n"}
    texts["node_labels"] = "0\n1\n1\n1\n"
    for name, text in texts.items():
        (folder / f"TOY_{name}.txt").write_text(text)
    graph = loaded("task=graphs", "dataset=pyg", "dataset.name=TUDataset", "dataset.part=TOY")
    assert (one_per_graph(graph).y.tolist(), graph.num_classes) == ([0, 1], 2)  # PyG numbers the classes that occur
    assert graph.x.tolist() == [[1, 0], [0, 1], [0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dataset.name=Redit2"], "dataset.name 'Redit2' is unknown .*did you mean 'Reddit2'"),
        (["dataset.name=Planetoid"], "the class needs a name: pass dataset.part=NAME"),
        (["dataset.name=Reddit2", "dataset.part=x"], "has no argument name: leave dataset.part out"),
    ],
)
def test_a_class_that_does_not_fit_is_one_error(root, overrides, message):
    with pytest.raises(FedGraphError, match=message):
        loaded("dataset=pyg", *overrides)


def test_without_a_network_the_error_lists_files_and_folder(root, monkeypatch):
    def fail(*args, **keys):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("torch_geometric.datasets.reddit2.download_google_url", fail, raising=False)
    monkeypatch.setattr("torch_geometric.datasets.reddit2.download_url", fail, raising=False)
    with pytest.raises(
        FedGraphError, match=r"cannot be downloaded \(URLError.*put adj_full.npz, feats.npy, .* into .*/pyg/Reddit2/raw"
    ):
        loaded("dataset=pyg", "dataset.name=Reddit2")
    monkeypatch.setattr("torch_geometric.data.download_url", fail)
    with pytest.raises(
        FedGraphError, match=r"'ogbn-products' \(1.4 GB\) cannot be downloaded .* extract http.*products.zip in .*/ogb/"
    ):
        loaded("dataset=ogb", "dataset.name=ogbn-products")


def test_ogb_reads_its_csv_files_and_split(root):
    files = {
        "raw/edge": "0,1\n2,1\n3,0\n",
        "raw/node-feat": "0.5,1\n1.5,2\n2.5,3\n3.5,4\n",
        "raw/node-label": "0\n2\n1\n0\n",
        "split/time/train": "0\n1\n",
        "split/time/valid": "3\n",
        "split/time/test": "2\n",
    }
    for name, text in files.items():
        path = root / "ogb" / "ogbn-arxiv" / "arxiv" / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    graph = loaded("dataset=ogb")
    assert sorted(graph.edge_index.T.tolist()) == [[0, 1], [2, 1], [3, 0]]
    assert graph.x.tolist() == [[0.5, 1], [1.5, 2], [2.5, 3], [3.5, 4]]
    assert (graph.y.tolist(), graph.num_classes) == ([0, 2, 1, 0], 3)
    assert [mask.nonzero().view(-1).tolist() for mask in (graph.train_mask, graph.val_mask, graph.test_mask)] == [
        [0, 1],
        [3],
        [2],
    ]
    with pytest.raises(FedGraphError, match="one of: ogbn-arxiv, ogbn-products"):
        loaded("dataset=ogb", "dataset.name=ogbn-mag")
    assert set(collections.OGB) == {"ogbn-arxiv", "ogbn-products"}

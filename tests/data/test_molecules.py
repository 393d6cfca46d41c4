"""MoleculeNet: hand-written tables in the published format become the molecules that PyG's own class reads."""

import sys
from pathlib import Path

import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr.config import DatasetConfig, compose
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.many_graphs import one_per_graph, selected
from fedgraph_flwr.errors import FedGraphError

BBBP = """num,name,p_np,smiles
1,"a, b",1,CC(=O)O
2,none,0,not-a-molecule
3,c,0,c1ccccc1O
4,d,1,[Na+].[Cl-]
"""
ESOL = """Compound ID,ESOL predicted,Rings,measured log solubility in mols per litre,smiles
"x,y",-1.5,0,-0.77,OCC
z,0,1,2.5,c1ccsc1
"""
CLINTOX = """smiles,FDA_APPROVED,CT_TOX
C[C@H](N)C(=O)O,1,0
F/C=C/F,,1
C1CC1,0,
"""
FILES = {"BBBP": ("BBBP.csv", BBBP), "ESOL": ("delaney-processed.csv", ESOL), "ClinTox": ("clintox.csv", CLINTOX)}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    return tmp_path


def write(root: Path, name: str, text: str = "") -> Path:
    """Write a table where the loader reads it."""
    file, known = FILES[name]
    path = root / "MoleculeNet" / name / "raw" / file
    path.parent.mkdir(parents=True)
    path.write_text(text or known)
    return path


def dataset(name: str, task: str = "graphs") -> DatasetConfig:
    return compose([f"task={task}", "dataset=moleculenet", f"dataset.name={name}"]).dataset


def read(name: str) -> Graph:
    graph = load(dataset(name))
    assert isinstance(graph, Graph)
    return graph


@pytest.mark.parametrize("name", sorted(FILES))
def test_molecules_are_those_of_pyg(root, tmp_path, name):
    pytest.importorskip("rdkit", reason="reads SMILES strings")
    from torch_geometric.datasets import MoleculeNet

    text = write(root, name).read_text()
    place = tmp_path / "pyg" / name.lower() / "raw" / FILES[name][0]
    place.parent.mkdir(parents=True)
    place.write_text(text)
    plain = MoleculeNet(str(tmp_path / "pyg"), name)
    graph, widths = read(name), ([119, 9, 11, 12, 9, 5, 8, 2, 2], [22, 6, 2])
    items = one_per_graph(graph)
    assert len(plain) == items.num_nodes
    for number, own in enumerate(plain):
        one = selected(graph, torch.tensor([number]))
        for found, expected, sizes in ((one.x, own.x, widths[0]), (one.edge_attr, own.edge_attr, widths[1])):
            places = torch.stack([part.argmax(1) for part in found.split(sizes, 1)], dim=1)
            assert torch.equal(places, expected)
            assert torch.equal(found.sum(1), torch.full((len(found),), float(len(sizes))))
        assert torch.equal(one.edge_index, own.edge_index)
        if name == "BBBP":
            assert items.y[number] == own.y
        else:
            assert torch.equal(items.targets[number].nan_to_num(9), own.y[0].nan_to_num(9))
    assert graph.num_classes == (2 if name == "BBBP" else 1)


def test_no_scaffold_is_on_both_sides_of_the_split():
    """By hand: sets of 6 and 2 fill 80 % of 10, the next one 10 %, and the rest is the test set."""
    pytest.importorskip("rdkit", reason="finds ring systems")
    from fedgraph_flwr.data.molecules import scaffold_split

    smiles = [
        "c1ccccc1C",
        "C1CC1C",
        "c1ccsc1",
        "c1ccccc1O",
        "c1ccccc1Cl",
        "c1ccccc1",
        "CCO",
        "c1ccccc1N",
        "c1ccccc1F",
        "CCN",
    ]
    masks = scaffold_split(smiles, torch.zeros(10, 1))
    assert [mask.nonzero().view(-1).tolist() for mask in masks] == [[0, 3, 4, 5, 6, 7, 8, 9], [2], [1]]
    unknown = torch.zeros(10, 1)
    unknown[2] = torch.nan
    assert not scaffold_split(smiles, unknown)[1].any()


@pytest.mark.slow
def test_several_labels_per_molecule_are_learnt(root, tmp_path):
    pytest.importorskip("rdkit", reason="reads SMILES strings")
    rows = [
        f"{'C' * (1 + k % 7)}{'O' if k % 2 else 'N'},{k % 2},{'' if k % 5 == 0 else int(k % 7 > 3)}" for k in range(60)
    ]
    write(root, "ClinTox", "smiles,FDA_APPROVED,CT_TOX\n" + "\n".join(rows) + "\n")
    keys = {
        "task": "graphs-multilabel",
        "dataset": "moleculenet",
        "dataset.name": "ClinTox",
        "num_clients": 2,
        "rounds": 15,
    }
    run = fg.run(**keys, **{"model.hidden": 16, "model.dropout": 0}, progress=False, out=tmp_path / "run")
    assert run.summary["metrics"]["best_val"]["test_average_precision"] > 0.9


def test_another_table_is_refused(root):
    pytest.importorskip("rdkit", reason="reads SMILES strings")
    path = write(root, "BBBP", "num,p_np,smiles\n1,yes,CC\n")
    with pytest.raises(
        FedGraphError, match=r"BBBP\.csv has the columns num, p_np, smiles, expected those of MoleculeNet's"
    ):
        read("BBBP")
    path.write_text("num,name,p_np,smiles\n1,a,2,CC\n")
    with pytest.raises(FedGraphError, match="has a label that is not 0, 1 or empty"):
        read("BBBP")


def test_what_is_missing_is_named(root, monkeypatch):
    write(root, "BBBP")
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(
        FedGraphError, match=r"needs rdkit to read SMILES strings: pip install 'fedgraph-flwr\[molecules\]'"
    ):
        read("BBBP")
    with pytest.raises(FedGraphError, match=r"dataset\.name 'QM9' is unknown \(dataset=moleculenet\)"):
        read("QM9")

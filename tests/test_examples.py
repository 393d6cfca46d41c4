"""The examples of hospitals and grids: graphs leak nothing, commands print a table, pages show the stored scores."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer

import fedgraph_flwr as fg
from benchmarks import newcomer

FOLDER = Path(__file__).parents[1] / "examples"
MASKS = ("train_mask", "val_mask", "test_mask")


def example(name: str) -> ModuleType:
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / name / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_hospital_reads_its_own_rows_and_no_label_makes_a_feature_or_an_edge():
    hospitals = example("hospitals")
    x, y = load_breast_cancer(return_X_y=True)
    rows, others = np.split(np.random.default_rng(0).permutation(len(y)), [100])
    graph = hospitals.patients(rows, x, y, np.random.default_rng(1))
    changed = x.copy()
    changed[others] = 0
    again = hospitals.patients(rows, changed, 1 - y, np.random.default_rng(1))
    assert torch.equal(graph.x, again.x)
    assert torch.equal(graph.edge_index, again.edge_index)
    train = graph.x[graph.train_mask]
    assert torch.allclose(train.mean(0), torch.zeros(30), atol=1e-5)
    assert torch.allclose(train.std(0, correction=0), torch.ones(30), atol=1e-5)
    assert [int(graph[key].sum()) for key in MASKS] == [30, 20, 50]
    assert torch.equal(sum(graph[key].int() for key in MASKS), torch.ones(100, dtype=torch.int32))
    assert torch.unique(graph.edge_index[0]).numel() == 100


def test_the_hospitals_share_out_all_patients():
    first, second = example("hospitals").hospitals(0), example("hospitals").hospitals(1)
    assert [graph.num_nodes for graph in first] == [284, 171, 114]
    assert sum(int(graph.y.sum()) for graph in first) == 212  # malignant
    assert not torch.equal(first[0].y, second[0].y)


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *args: object) -> None:
    monkeypatch.setattr(sys, "argv", ["example", *map(str, args)])
    module.main()


def test_hospitals_print_a_table_of_every_training(tmp_path, monkeypatch, capsys):
    hospitals = example("hospitals")
    written = tmp_path / "scores.csv"
    run(hospitals, monkeypatch, tmp_path, "--seeds", 1, "--rounds", 2, "--noise", 6, "--write", written)
    scores = pd.read_csv(written)
    assert scores[["model", "method"]].apply(tuple, axis=1).tolist() == [
        *((model, method) for model in ("GCN", "linear") for method in ("own", "federated", "pooled")),
        ("linear", "federated, ε = 0.4"),
    ]
    apart = scores[scores["method"] != "pooled"]
    sizes = np.array([int(graph.test_mask.sum()) for graph in hospitals.hospitals(0)])
    assert np.allclose((apart[["A", "B", "C"]] @ sizes) / sizes.sum(), apart["all"], atol=1e-3)
    assert hospitals.table(scores).splitlines()[2][:12] in capsys.readouterr().out


def made_up(number: int = 8):
    """Load cases of a ring of nine buses in three areas."""
    rng = np.random.default_rng(0)
    live = np.ones((number, 9), dtype=bool)
    live[np.arange(number), rng.integers(9, size=number)] = False
    return example("grid").Cases(
        area=np.arange(9) // 3,
        ends=np.stack([np.arange(9), (np.arange(9) + 1) % 9], axis=1),
        rating=rng.uniform(1, 2, 9),
        power=rng.normal(5, 2, (number, 9, 3)),
        live=live,
        overloaded=live & (rng.random((number, 9)) < 0.3),
    )


def test_an_area_reads_its_own_buses_and_tie_lines_are_cut():
    cases, grid = made_up(), example("grid")
    graph = grid.graph(cases, 0)
    parts = fg.datasets.partition(graph, "planted", num_clients=3)
    case = torch.arange(graph.num_nodes) // 9
    for area, part in enumerate(parts):
        assert torch.equal(part.node_id % 9 // 3, torch.full((24,), area))
        cut = int((cases.live[:, [3 * area - 1, 3 * area + 2]]).sum())
        assert part.cut_out.shape[1] == part.cut_in.shape[1] == cut
        assert torch.allclose(part.x[part.train_mask][:, :3].mean(0), torch.zeros(3), atol=1e-5)
    for mask, count in zip(MASKS, (4, 2, 2), strict=True):
        assert case[graph[mask]].unique().numel() == count
        assert int(graph[mask].sum()) == 9 * count
    assert not torch.equal(graph.train_mask, grid.graph(cases, 1).train_mask)
    ends = graph.y.view(8, 9)[0].nonzero().view(-1).tolist()
    assert ends == sorted({int(bus) for bus in cases.ends[cases.overloaded[0]].ravel()})


def test_the_grid_prints_a_table_of_every_training(tmp_path, monkeypatch, capsys):
    grid = example("grid")
    np.savez(tmp_path / "cases-8.npz", **made_up()._asdict())
    written = tmp_path / "scores.csv"
    run(grid, monkeypatch, tmp_path, "--cases", 8, "--seeds", 1, "--rounds", 5, "--write", written)
    scores = pd.read_csv(written)
    trainings = [("gcn", method) for method in ("own", "FedAvg", "FedGCN", "pooled")]
    trainings += [("sage", method) for method in ("own", "FedAvg", "pooled")]
    assert scores[["model", "method"]].apply(tuple, axis=1).tolist() == trainings
    assert scores["score"].between(0, 1).all()
    assert "| sage | pooled |" in capsys.readouterr().out


def test_power_flow_takes_one_line_out_and_leaves_every_bus_supplied():
    pytest.importorskip("pandapower", reason="pandapower needs pandas 2; it is an optional need of the example")
    cases = example("grid").simulate(2)
    assert (cases.power.shape, cases.live.shape, cases.area.tolist().count(0)) == ((2, 39, 3), (2, 46), 14)
    assert (cases.live.sum(1) == 45).all()
    ties = cases.area[cases.ends]
    assert int((ties[:, 0] != ties[:, 1]).sum()) == 6
    assert cases.power[:, :, 0].sum(1) == pytest.approx(6254, rel=0.4)  # MW


@pytest.mark.parametrize("name", ["hospitals", "grid"])
def test_the_page_shows_the_stored_scores(name):
    scores = pd.read_csv(FOLDER / name / "results.csv")
    assert scores["seed"].nunique() >= 5
    assert example(name).table(scores) in (FOLDER / name / "README.md").read_text()


@pytest.mark.slow
def test_a_newcomer_gets_a_table_of_an_own_network(capsys):
    newcomer.main(["--installed"])
    assert capsys.readouterr().out.endswith("2 commands and one file of 75 words\n")

"""Columns have one role, and options of import have an effect or are refused."""

import pytest

from fedgraph_flwr.cli import main
from fedgraph_flwr.config import compose
from fedgraph_flwr.data import datasets
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.tasks.edges import Edges


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    nodes = "".join(f"{i},{i % 7},{i % 2},{i / 3}\n" for i in range(40))
    (tmp_path / "n.csv").write_text("id,age,rich,income\n" + nodes)
    edges = "".join(f"{i},{(3 * i + 1) % 40},{i % 5},{i % 2},{1000 * i}\n" for i in range(40))
    (tmp_path / "e.csv").write_text("source,target,amount,bad,time\n" + edges)
    return ["import", "--nodes", str(tmp_path / "n.csv"), "--edges", str(tmp_path / "e.csv"), "--name", "mine"]


EDGES = ["columns.edge_label=bad", "edge_columns=amount"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["columns.edge_label=bad", "edge_columns=amount,bad"],
            "column 'bad' of columns.edge_label also has another role",
        ),
        (
            ["--predict-columns", "income", "feature_columns=income,age"],
            "column 'income' of --predict-columns also has",
        ),
        (
            ["columns.label=rich", "feature_columns=rich,age"],
            "column 'rich' of columns.label also has another role",
        ),
        (["--predict-columns", "income,rich", "columns.label=rich"], "column 'rich' of --predict-columns also has"),
        ([*EDGES, "edge_classes=0,1,0"], "edge_classes names '0' twice"),
        (["columns.label=rich", "edge_classes=0,1"], "edge_classes has no effect without labels of edges"),
        ([*EDGES, "--until", "1,2"], "--until 1,2 has no effect with --split ratio"),
        ([*EDGES, "columns.time=time", "windows=inf"], "windows must be numbers of days above 0"),
        ([*EDGES, "columns.time=time", "windows=1e300"], "windows must be numbers of days above 0"),
    ],
)
def test_what_gives_the_answer_away_or_has_no_effect_is_refused(tables, options, message, capsys):
    assert main([*tables, *options])
    assert message in capsys.readouterr().err


def test_labels_of_edges_are_enough_for_a_dataset(tables):
    assert main([*tables, *EDGES, "inputs=rich"]) == 0
    cfg = compose(["dataset=mine", "task=edges"])
    assert int((datasets.load(cfg.dataset, seed=0, num_clients=1).edge_y >= 0).sum()) == 40


def test_without_edges_between_clients_the_pooled_graph_has_the_items_of_its_clients(tables):
    overrides = ["dataset=payments", "task=edges", "task.between=false", "num_clients=2", "dataset.accounts=200"]
    overrides += ["dataset.background=600", "dataset.per_kind=2", "dataset.size=[3,4]", "split.kind=temporal"]
    cfg, pooled = compose(overrides), compose([*overrides, "strategy=central"])
    tasks = [Edges(cfg, load_client(cfg, i)) for i in range(2)]
    whole = Edges(pooled, load_client(pooled, 0))
    for split in ("train", "val", "test"):
        assert int(whole.masks[split].sum()) == sum(int(task.masks[split].sum()) for task in tasks) > 0
    assert whole.graph.num_edges == sum(task.graph.num_edges for task in tasks)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dataset=payments", "dataset.size=[4]"], "dataset.size must be"),
        (
            ["dataset=payments", "dataset.size=[2,200]", "dataset.cross=1", "dataset.accounts=100"],
            "persons are too few",
        ),
        (["dataset=csbm", "partition=stream", "partition.passes=abc"], "partition.passes must be an integer"),
        (["dataset=csbm", "partition=stream", "partition.passes=0"], "partition.passes must be an integer"),
        (["dataset=csbm", "partition=stream", "partition.slack=.nan"], "partition.slack must be a number"),
    ],
)
def test_values_that_no_data_fit_are_refused(tmp_path, monkeypatch, overrides, message):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    with pytest.raises(FedGraphError, match=message):
        load_client(compose([*overrides, "num_clients=2"]), 0)

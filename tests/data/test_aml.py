"""IBM's payments: a hand-written file in the published format becomes the graph that its rows say."""

from pathlib import Path

import numpy as np
import pytest

from fedgraph_flwr.config import DatasetConfig, compose
from fedgraph_flwr.data import aml
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.data.features import Recipe
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.runs.runner import run

ROWS = """2022/09/01 00:20,010,8000EBD30,010,8000EBD30,3697.34,US Dollar,3697.34,US Dollar,Reinvestment,0
2022/09/01 00:26,03208,8000F4580,001,8000F5340,0.01,Euro,0.02,US Dollar,Cheque,0
2022/09/02 00:20,001,8000F5340,010,8000EBD30,14.0,Euro,99.0,Euro,Wire,1
2022/09/01 00:21,03208,8000F4580,03208,8000F4581,1.0,US Dollar,1.0,US Dollar,Cheque,0
2022/09/01 00:22,010,8000F4580,03208,8000F4580,2.0,US Dollar,2.0,US Dollar,Cheque,0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    place = tmp_path / "aml"
    place.mkdir()
    (place / "HI-Small_Trans.csv").write_text(f"{aml.HEADER}\n{ROWS}")
    return place


def dataset(*overrides: str) -> DatasetConfig:
    return compose(["dataset=aml", "dataset.parties=2", *overrides]).dataset


def test_rows_become_payments_in_order_of_time(folder):
    graph = load(dataset("dataset.windows=[1.0]"))
    assert isinstance(graph, Graph)
    assert graph.num_nodes == 5  # 8000F4580 of bank 010 is another account than that of bank 03208
    # banks by accounts: 010 and 03208 have two, in order of appearance, then 001: parties 0, 1, 0
    assert graph.group.tolist() == [0, 0, 0, 1, 1]
    minutes = ((graph.edge_time - graph.edge_time.min()) // 60).tolist()
    assert minutes == [0, 1, 2, 6, 1440]
    assert graph.edge_time[0].item() == 1661991600  # 2022-09-01 00:20 UTC
    assert graph.edge_y.tolist() == [0, 0, 0, 0, 1]
    same = graph.edge_index[0] == graph.edge_index[1]
    assert same.tolist() == [True, False, False, False, False]  # an account that pays itself is kept
    assert graph.edge_index[0, 3] == graph.edge_index[0, 1] == graph.edge_index[1, 2]
    amounts = np.expm1(10 * graph.edge_attr[:, 0].double().numpy())
    np.testing.assert_allclose(amounts, [3697.34, 1, 2, 0.02, 99], rtol=1e-4)
    euro = graph.edge_attr[:, 1].tolist()
    assert euro == [0, 0, 0, 0, 1]  # flags of the currency paid, then of the format
    assert graph.edge_attr[:, 3:6].argmax(1).tolist() == [1, 0, 0, 0, 2]
    assert graph.edge_attr.shape == (5, 1 + 2 + 3 + 4)
    assert graph.y.tolist() == [int(n in graph.edge_index[:, 4].tolist()) for n in range(5)]


def test_columns_of_own_records(folder):
    graph = load(dataset("dataset.recipe=payments", "dataset.windows=[1.0]"))
    width = len(Recipe(windows=(1.0,)).edge_columns)
    assert graph.own_columns["edges"] == width
    assert graph.edge_attr.shape == (5, 1 + 2 + 3 + width)
    assert graph.book[3].tolist() == [369734, 100, 200, 2, 9900]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Timestamp,From\n", "has the columns 'Timestamp,From', expected 'Timestamp,From Bank"),
        (f"{aml.HEADER}\n{ROWS.replace('2022/09/02 00:20', 'yesterday')}", "has a row that is not a payment"),
        (f"{aml.HEADER}\n{ROWS.replace('Wire,1', 'Wire,2')}", "a label that is neither 0 nor 1"),
        (f"{aml.HEADER}\n{ROWS.replace('Wire', '')}", "an empty cell"),
        (f"{aml.HEADER}\n{ROWS.replace(',99.0,', ',-99.0,')}", "a negative amount"),
    ],
)
def test_another_file_is_refused_in_one_sentence(folder, text, reason):
    (folder / "HI-Small_Trans.csv").write_text(text)
    with pytest.raises(FedGraphError, match=reason) as caught:
        load(dataset())
    assert "HI-Small_Trans.csv" in str(caught.value)


def test_the_name_selects_the_file(folder):
    with pytest.raises(FedGraphError, match=r"put LI-Small_Trans\.csv into .*aml"):
        load(dataset("dataset.name=LI-Small"))
    with pytest.raises(FedGraphError, match=r"dataset\.name='\.\./x' must be the name of a dataset of aml"):
        load(dataset("dataset.name=../x"))
    with pytest.raises(FedGraphError, match="select different names"):
        compose(["dataset=cora", "dataset.name=citeseer"])


def test_edges_of_generated_rows_are_classified(folder, tmp_path):
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 30, (2, 400))
    rows = [
        f"2022/09/{1 + i // 40:02d} 10:{i % 60:02d},{s % 4},A{s},{t % 4},A{t},5.0,Euro,5.0,Euro,ACH,{int(i % 7 == 0)}"
        for i, (s, t) in enumerate(ends.T)
    ]
    (folder / "HI-Small_Trans.csv").write_text("\n".join([aml.HEADER, *rows]) + "\n")
    overrides = ["dataset=aml", "dataset.parties=2", "num_clients=2", "task=edges", "rounds=1", "model.hidden=4"]
    cfg = compose([*overrides, f"out={tmp_path / 'run'}"])
    assert cfg.split.kind == "temporal"
    assert 0 <= run(cfg)["test_average_precision"] <= 1

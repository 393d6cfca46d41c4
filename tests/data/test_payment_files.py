"""Published payments: hand-written files in the published formats become the graphs that their rows say."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedgraph_flwr.config import DatasetConfig, compose
from fedgraph_flwr.data import payment_files
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.data.features import Recipe
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.payment_names import payment_names
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.partition import store
from fedgraph_flwr.party.use.wording import raw_value

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
    (place / "HI-Small_Trans.csv").write_text(f"{payment_files.HEADER}\n{ROWS}")
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


def amounts_by_name(graph: Graph, cfg: DatasetConfig) -> list[float]:
    """Amounts of a graph's payments, by the name and the transform of the column."""
    column = payment_names(cfg).edges[0]
    assert column.name == ("log amount" if cfg.params.get("recipe") else "amount")
    return [raw_value(column.form, value) for value in graph.edge_attr[:, 0].double().tolist()]


def test_the_named_column_is_the_amount(folder):
    for word in ("dataset.ports=false", "dataset.recipe=payments"):
        cfg = dataset(word)
        np.testing.assert_allclose(amounts_by_name(load(cfg), cfg), [3697.34, 1, 2, 0.02, 99], rtol=1e-4)
        assert payment_names(cfg).classes == ("clean", "laundering")
    names = payment_names(dataset("dataset.name=LI-Small", "dataset.features=activity"))
    assert [column.name for column in names.nodes][:4] == ["n_out", "n_in", "partners_out", "partners_in"]


def test_the_named_columns_of_activity_are_counts(folder):
    cfg = dataset("dataset.features=activity", "dataset.windows=[1.0]")
    graph, names = load(cfg), payment_names(cfg)
    ends, time = graph.edge_index.numpy(), graph.edge_time.numpy()
    column = {c.name: [round(raw_value(c.form, v)) for v in graph.x[:, i].tolist()] for i, c in enumerate(names.nodes)}
    assert len(column) == graph.num_features
    for node in range(graph.num_nodes):
        out, into = (np.flatnonzero(ends[side] == node) for side in (0, 1))

        def most(of, by):
            return max((int(((time[of] <= t) & (time[of] >= t - 86_400)).sum()) for t in time[by]), default=0)

        expected = {
            "n_out": out.size,
            "n_in": into.size,
            "partners_out": len(set(ends[1][out])),
            "partners_in": len(set(ends[0][into])),
            "n_out_1d": most(out, out),
            "n_in_1d": most(into, into),
            "n_before_1d": most(into, out),
        }
        assert {name: values[node] for name, values in column.items()} == expected


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
        (f"{payment_files.HEADER}\n{ROWS.replace('2022/09/02 00:20', 'yesterday')}", "has a row that is not a payment"),
        (f"{payment_files.HEADER}\n{ROWS.replace('Wire,1', 'Wire,2')}", "a label that is neither 0 nor 1"),
        (f"{payment_files.HEADER}\n{ROWS.replace('Wire', '')}", "an empty cell"),
        (f"{payment_files.HEADER}\n{ROWS.replace(',99.0,', ',-99.0,')}", "a negative amount"),
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
    (folder / "HI-Small_Trans.csv").write_text("\n".join([payment_files.HEADER, *rows]) + "\n")
    overrides = ["dataset=aml", "dataset.parties=2", "num_clients=2", "task=edges", "rounds=1", "model.hidden=4"]
    cfg = compose([*overrides, f"out={tmp_path / 'run'}"])
    assert cfg.split.kind == "temporal"
    assert 0 <= run(cfg)["test_average_precision"] <= 1


# step, type, amount, nameOrig, nameDest, bankOrig, bankDest, then isSAR, patternID and modelType, as AMLGentex writes them
LOG = [
    (0, "INITALBALANCE", 900.0, -2, 10, "source", "b", 0, -1, 0),
    (0, "TRANSFER", 50.0, 10, 30, "b", "a", 0, 3, 10),
    (2, "TRANSFER", 70.5, 30, 20, "a", "a", 1, 0, 2),
    (1, "TRANSFER", 9.0, 20, 30, "a", "a", 0, 4, 11),
    (1, "CASH", 33.0, 20, -1, "a", "sink", 0, -1, 0),
    (2, "TRANSFER", 20.0, 20, 10, "a", "b", 1, 0, 2),
]
LISTED = """ACCOUNT_ID,CUSTOMER_ID,INIT_BALANCE,SALARY,AGE,CITY,IS_SAR,BANK_ID
10,C_10,900.00,2000.00,40,x,false,b
20,C_20,0.00,3000.00,25,y,true,a
30,C_30,100.00,0.00,70,x,true,a
"""


def log_of(rows):
    names = [
        "step",
        "type",
        "amount",
        "nameOrig",
        "nameDest",
        "bankOrig",
        "bankDest",
        "isSAR",
        "patternID",
        "modelType",
    ]
    kinds = {"step": "int32", "type": "category", "nameOrig": "int32", "nameDest": "int32", "isSAR": "int8"}
    table = pd.DataFrame(rows, columns=names).astype(kinds | {"bankOrig": "category", "bankDest": "category"})
    return table.assign(daysInBankOrig=0, phoneChangesOrig=0, oldbalanceOrig=0.0, newbalanceOrig=0.0)


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    place = tmp_path / "amlgentex" / "template_experiment"
    for part in ("temporal", "spatial"):
        (place / part).mkdir(parents=True)
    log_of(LOG).to_parquet(place / payment_files.TX_LOG, index=False)
    (place / payment_files.ACCOUNTS).write_text(LISTED)
    return place


def test_an_experiment_of_amlgentex_becomes_banks_accounts_and_payments(experiment):
    graph = load(compose(["dataset=amlgentex", "dataset.recipe=payments", "dataset.windows=[1.0]"]).dataset)
    assert graph.group.tolist() == [0, 0, 1]  # bank a has the most accounts: 20 and 30, then 10 of bank b
    assert graph.y.tolist() == [1, 1, 0]  # IS_SAR
    np.testing.assert_allclose(graph.x[:, 0], [1, 1, 1])
    np.testing.assert_allclose(graph.x[:, 1], [0.25, 0.7, 0.4], rtol=1e-6)
    np.testing.assert_allclose(np.expm1(10 * graph.x[:, 2].double()), [3000, 0, 2000], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(np.expm1(10 * graph.x[:, 3].double()), [0, 100, 900], rtol=1e-4, atol=1e-3)
    # without the two rows from outside and to spending, in order of time
    assert graph.edge_index.tolist() == [[2, 0, 1, 0], [1, 1, 0, 2]]
    assert (graph.edge_time // 86_400).tolist() == [0, 1, 2, 2]
    assert graph.edge_y.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(np.expm1(10 * graph.edge_attr[:, 0].double()), [50, 9, 70.5, 20], rtol=1e-4)
    cfg = compose(["dataset=amlgentex", "dataset.recipe=payments"]).dataset
    np.testing.assert_allclose(amounts_by_name(graph, cfg), [50, 9, 70.5, 20], rtol=1e-4)
    assert graph.edge_attr.size(1) == 1 + len(Recipe(windows=(1.0,)).edge_columns)  # no balance, pattern or model


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda place: (place / payment_files.TX_LOG).unlink(),
            r"put temporal/tx_log\.parquet into .*template_experiment",
        ),
        (
            lambda place: (place / payment_files.ACCOUNTS).unlink(),
            r"put spatial/accounts\.csv into .* experiments/template_exp",
        ),
        (
            lambda place: log_of(LOG).drop(columns="isSAR").to_parquet(place / payment_files.TX_LOG),
            "has no column isSAR, but step, type",
        ),
        (
            lambda place: log_of([*LOG, (3, "TRANSFER", 1.0, 77, 10, "a", "b", 0, 1, 1)]).to_parquet(
                place / payment_files.TX_LOG
            ),
            "has 1 payments of accounts that .* does not list, such as from 77 to 10",
        ),
        (
            lambda place: (place / payment_files.ACCOUNTS).write_text(LISTED.replace("true,a", "perhaps,a")),
            "an IS_SAR other than true and false",
        ),
        (
            lambda place: log_of([(3, "TRANSFER", -1.0, 20, 10, "a", "b", 0, 1, 1)]).to_parquet(
                place / payment_files.TX_LOG
            ),
            "a negative amount",
        ),
    ],
)
def test_another_experiment_is_refused_in_one_sentence(experiment, change, reason):
    change(experiment)
    with pytest.raises(FedGraphError, match=reason):
        load(compose(["dataset=amlgentex"]).dataset)


def test_replaced_files_are_read_again_and_partitioned_again(experiment):
    """An experiment is generated again under its name."""
    cfg, listed = compose(["dataset=amlgentex", "num_clients=2"]), experiment / payment_files.ACCOUNTS
    first, key, time = load(cfg.dataset), store.key(cfg), listed.stat().st_mtime_ns
    assert torch.equal(load(cfg.dataset).x, first.x)
    listed.write_text(LISTED.replace("2000.00", "2001.00"))
    os.utime(listed, ns=(time + 10**9, time + 10**9))
    assert not torch.equal(load(cfg.dataset).x, first.x)
    assert store.key(cfg) != key


@pytest.mark.parametrize("task", ["nodes", "edges"])
def test_accounts_and_payments_of_experiments_are_tasks(experiment, tmp_path, task):
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 30, (2, 400))
    log = [(i // 40, "TRANSFER", 5.0 + i, s, t, "a", "b", int(i % 7 == 0), 1, 1) for i, (s, t) in enumerate(ends.T)]
    log_of(log).to_parquet(experiment / payment_files.TX_LOG)
    head, *_ = LISTED.splitlines()
    rows = [f"{i},C,1.0,2.0,30,x,{'true' if i % 3 else 'false'},{'ab'[i % 2]}" for i in range(30)]
    (experiment / payment_files.ACCOUNTS).write_text("\n".join([head, *rows]) + "\n")
    overrides = [
        "dataset=amlgentex",
        "num_clients=2",
        f"task={task}",
        "rounds=1",
        "model.hidden=4",
        "train.local_steps=1",
    ]
    cfg = compose([*overrides, f"out={tmp_path / 'run'}"])
    assert (cfg.split.kind == "temporal") == (task == "edges")
    assert 0 <= run(cfg)["test_average_precision" if task == "edges" else "test_accuracy"] <= 1

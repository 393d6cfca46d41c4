"""Inputs that give the label away are refused, by their values and not by their names."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import average_precision_score

from fedgraph_flwr.cli.app import main
from fedgraph_flwr.config import compose
from fedgraph_flwr.data import datasets
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.data.schema import Column
from fedgraph_flwr.data.split import split_graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.tables import leaks
from fedgraph_flwr.party.tables.guessing import guess

N, E = 400, 4000


def tables(seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Accounts, an eighth of which are mules, with honest columns; payments, of which those between mules are mostly fraud."""
    rng = np.random.default_rng(seed)
    mule = rng.random(N) < 0.125
    people = pd.DataFrame({"id": [f"a{i}" for i in range(N)], "age": rng.integers(18, 90, N)})
    people["income"] = np.exp(rng.normal(10 - 0.5 * mule, 0.5)).round(2)  # helps, honestly
    people["town"] = rng.choice(["x", "y", "z"], N)
    people["zip"] = rng.integers(0, 9, N)
    people["part"] = rng.choice(["train", "train", "val", "test"], N)
    people["label"] = np.where(mule, "mule", "ok")
    crooks = np.flatnonzero(mule)
    ends = rng.integers(N, size=(2, E))
    ends[:, : E // 20] = rng.choice(crooks, (2, E // 20))
    fraud = (np.arange(E) < E // 20) & (rng.random(E) < 0.9)
    rows = pd.DataFrame({"payer": [f"a{i}" for i in ends[0]], "payee": [f"a{i}" for i in ends[1]]})
    rows["at"] = pd.to_datetime(rng.integers(0, 60 * 86_400, E) + 1_767_225_600, unit="s").strftime("%Y-%m-%d %H:%M:%S")
    rows["amount"] = np.exp(rng.normal(4, 1, E)).round(2)
    rows["fraud"] = np.where(fraud, "yes", "no")
    return people, rows


def written(folder: Path, people: pd.DataFrame, rows: pd.DataFrame, *more: str) -> list[str]:
    """Return the command that imports the tables."""
    people.to_csv(folder / "n.csv", index=False)
    rows.to_csv(folder / "e.csv", index=False)
    words = ["import", "--nodes", f"{folder}/n.csv", "--edges", f"{folder}/e.csv", "columns.source=payer"]
    words += ["columns.target=payee", "columns.split=part", "--classes", "ok,mule", "--client", "0"]
    return [*words, "--out", f"{folder}/c.safetensors", *more]


OF_EDGES = ["columns.edge_label=fraud", "columns.time=at", "features=payments", "columns.label=label"]
OF_EDGES += ["--split", "temporal"]


def test_honest_columns_are_no_leaks(tmp_path, capsys):
    assert main(written(tmp_path, *tables(), *OF_EDGES)) == 0
    assert main(written(tmp_path, *tables())) == 0
    capsys.readouterr()


@pytest.mark.parametrize("form", ["flag", "number", "category", "missing"])
def test_a_leak_with_a_name_that_says_nothing_is_refused(tmp_path, capsys, form):
    people, rows = tables()
    mule = (people["label"] == "mule").to_numpy()
    rng = np.random.default_rng(1)
    people["flag7"] = {
        "flag": np.where(mule, 1, 0),
        "number": rng.normal(size=N) - 10.0 * mule,
        "category": np.where(mule, "k1", rng.choice(["k2", "k3"], N)),
        "missing": np.where(mule, "2026-01-01", ""),  # the day of the decision
    }[form]
    command = written(tmp_path, people, rows)
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "column 'flag7' alone predicts the label" in error
    assert "pass inputs=flag7 if you know its value" in error
    assert not (tmp_path / "c.safetensors").exists()
    assert main([*command, "inputs=flag8"]) == 2
    assert "column in inputs 'flag8' is unknown" in capsys.readouterr().err
    for accepted in (["inputs=flag7"], ["kinds.flag7=ignored"]):
        assert main([*command, *accepted]) == 0
    capsys.readouterr()


def test_labels_of_other_items_than_training_ones_are_not_read(tmp_path, capsys):
    people, rows = tables()
    training = (people["part"] == "train").to_numpy()
    people["flag7"] = np.where((people["label"] == "mule") & ~training, 1, 0)
    assert main(written(tmp_path, people, rows)) == 0
    capsys.readouterr()


def test_a_flag_of_accounts_leaks_the_label_of_payments(tmp_path, capsys):
    """Accounts have no label, and the flag predicts payments far better than all others together."""
    people, rows = tables()
    people["flag7"] = (people["label"] == "mule").astype(int)
    command = written(tmp_path, people.drop(columns="label"), rows, *OF_EDGES, "edge_classes=no,yes")
    assert main([word for word in command if word not in ("--classes", "ok,mule", "columns.label=label")]) == 2
    assert "column 'flag7' alone predicts the label" in capsys.readouterr().err


def test_the_party_file_asks_and_accepts(tmp_path, capsys):
    people, rows = tables()
    people["flag7"] = (people["label"] == "mule").astype(int)
    proposal = guess({"n.csv": people, "e.csv": rows}, {"day": "before"})
    (question,) = proposal.questions
    assert question.startswith("'flag7' alone predicts the label of")
    assert "`inputs: [flag7]`" in question
    assert guess({"n.csv": people.drop(columns="flag7"), "e.csv": rows}, {"day": "before"}).questions == []
    written(tmp_path, people, rows)
    assert main(["init-party", f"{tmp_path}/n.csv", f"{tmp_path}/e.csv"]) == 0
    assert "question: 'flag7' alone predicts" in capsys.readouterr().out
    assert main(["import", f"{tmp_path}/party.yaml"]) == 2
    with (tmp_path / "party.yaml").open("a") as file:
        file.write("inputs: [flag7]\n")
    assert main(["import", f"{tmp_path}/party.yaml"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("task", ["nodes", "edges"])
def test_columns_of_generated_books_are_no_leaks(task):
    """The recipe's columns are strong and read no label: none of them alone is as good as a copy of it."""
    words = [f"task={task}", "dataset=payments", "num_clients=1", "dataset.recipe=payments", "dataset.windows=[]"]
    words += ["split.step=1d"] if task == "edges" else []
    cfg = compose([*words, "dataset.accounts=600", "dataset.background=4000", "dataset.per_kind=12"])
    graph = split_graph(datasets.load(cfg.dataset, seed=0, num_clients=1), cfg.split, 0)
    y, x = (graph.edge_y, graph.edge_attr) if task == "edges" else (graph.y, graph.x)
    columns = {f"c{i}": Column("number") for i in range(x.shape[1])}
    values, blocks = leaks.encoded(columns, x.numpy())
    items = leaks.Items("items", y.numpy(), {n: [v] for n, v in values.items()}, {n: [b] for n, b in blocks.items()})
    assert not list(leaks.leaks(items))


def test_the_gain_is_that_of_average_precision():
    rng = np.random.default_rng(0)
    y = rng.random(500) < 0.2
    number = rng.normal(size=500) + y
    base = y.mean()
    expected = max((average_precision_score(y, sign * number) - base) / (1 - base) for sign in (1, -1))
    assert leaks.gain([leaks.Values(np.zeros(500, np.int64), number)], y) == pytest.approx(expected)


def test_few_items_of_a_class_are_not_judged():
    y = np.zeros(300, np.int64)
    for count, number in ((leaks.MIN_ITEMS - 1, 0), (leaks.MIN_ITEMS, 1)):
        y[:count] = 1
        items = leaks.Items("nodes", y.copy(), {"copy": [leaks.Values(y.copy())]}, {"copy": [y[:, None]]})
        assert len(list(leaks.leaks(items))) == number


@pytest.mark.parametrize("accounts", [leaks.MIN_ITEMS - 1, leaks.MIN_ITEMS])
def test_columns_of_accounts_are_not_judged_by_the_payments_of_a_few(accounts):
    """A hundred frauds by few payers: a column then separates them as it would name them."""
    rng = np.random.default_rng(0)
    payer, flag = rng.integers(accounts, 200, 1000), np.zeros(200)
    payer[:100], flag[:accounts] = np.arange(100) % accounts, 1
    y = (np.arange(1000) < 100).astype(np.int64)
    values = leaks.numbered(flag).at(payer)
    items = leaks.Items("edges", y, {"flag": [values]}, {"flag": [flag[payer][:, None]]})
    assert len(list(leaks.leaks(items))) == (accounts == leaks.MIN_ITEMS)


def test_linked_files_carry_no_refused_column(tmp_path):
    people, rows = tables()
    people["flag7"] = (people["label"] == "mule").astype(int)
    assert main(written(tmp_path, people, rows, "inputs=flag7")) == 0
    with pytest.raises(FedGraphError, match="'flag7' alone predicts"):
        leaks.check_inputs(ClientGraph.load(tmp_path / "c.safetensors"), (), "c")

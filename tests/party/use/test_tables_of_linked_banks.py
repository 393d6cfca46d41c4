"""Tables that do not fit the model's party end in one error message, and outputs of linked banks have one type per column."""

import numpy as np
import pandas as pd
import pytest

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.graph import ClientGraph, unpack_words
from fedgraph_flwr.party.use.predict import load_predictor
from tests.party.two_banks import EACH, books, payments


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A network on the first 240 payments of two linked banks, and bank A's and bank B's rows of the next day."""
    folder, rows = tmp_path_factory.mktemp("odd"), payments()
    linked = books(folder / "history", rows[:240])
    keys = {"task": "edges", "graph": str(linked), "num_clients": 2, "progress": False, "model.hidden": 4}
    run = fg.run(rounds=1, out=str(folder / "run"), **keys)
    for bank in "ab":
        day = rows[240:].drop(columns="fraud")
        day[(day[["from_bank", "to_bank"]] == bank.upper()).any(axis=1)].to_csv(folder / f"{bank}.csv", index=False)
    assert main(["alerts", str(run.path), "--client", "0", "--cost", "20,1"]) == 0
    return folder


def given(desk, command, *words):
    return main([command, str(desk / "run"), "--client", "0", *map(str, words)])


def test_ends_at_other_banks_are_listed_by_their_ids_in_both_formats(desk, tmp_path):
    assert given(desk, "predict", "--out", tmp_path / "p.csv") == 0
    assert given(desk, "predict", "--out", tmp_path / "p.parquet") == 0
    predictions = pd.read_parquet(tmp_path / "p.parquet")
    pd.testing.assert_frame_equal(predictions, pd.read_csv(tmp_path / "p.csv"), check_dtype=False)
    graph = ClientGraph.load(sorted((desk / "history" / "linked").glob("*.safetensors"))[0])
    paid = unpack_words(graph.ids)[graph.cut_out[0]]
    far = dict(zip(graph.far_id.tolist(), unpack_words(graph.far_name), strict=True))
    received = [far[node].partition("\x1f")[2] for node in graph.cut_out[1].tolist()]
    tail = predictions.iloc[graph.edge_index.size(1) :]
    assert tail["source"].tolist() == paid.tolist()
    assert tail["target"].tolist() == received
    assert {name[0] for name in received} == {"b"}


def test_an_id_that_two_accounts_have_is_followed_by_its_bank(desk):
    predictor = load_predictor(desk / "run", 0)
    names = unpack_words(predictor.client_graph.ids).astype(object)
    names[0] = "b3"
    ends = predictor.predict(predictor.client_graph, names).to_frame()
    assert {"b3", "b3 (b)"} <= set(ends["target"])


def test_reasons_name_payments_of_other_banks_by_their_ids(desk, tmp_path):
    pytest.importorskip("captum")
    table = pd.read_csv(desk / "a.csv")
    into = table[table["from_bank"] == "B"]["ref"].iloc[0]
    words = ["--nodes", desk / "history/a.csv", "--edges", desk / "a.csv", "--items", into]
    assert given(desk, "explain", *words, "--top", 500, "--out", tmp_path / "r.csv") == 0
    reasons = pd.read_csv(tmp_path / "r.csv").query("kind == 'payment'")
    assert reasons[["source", "target"]].isin([f"{b}{n}" for b in "ab" for n in range(EACH)]).all(axis=None)


@pytest.mark.parametrize("command", ["predict", "alerts", "explain", "drift"])
@pytest.mark.parametrize("column", ["source", "target"])
def test_an_edge_table_without_an_end_is_one_error(command, column, desk, tmp_path, capsys):
    pd.read_csv(desk / "a.csv").drop(columns=column).to_csv(tmp_path / "day.csv", index=False)
    words = ["--nodes", desk / "history/a.csv", "--edges", tmp_path / "day.csv"]
    assert given(desk, command, *words, *(["--items", "p240"] if command == "explain" else [])) == 2
    error = capsys.readouterr().err
    assert f"'{column}'" in error
    assert "columns.source=NAME and columns.target=NAME" in error


def test_alerts_of_new_tables_are_printed_without_an_output(desk, tmp_path, capsys):
    words = ["--nodes", desk / "history/a.csv", "--edges", desk / "a.csv"]
    assert given(desk, "alerts", *words, "--reasons", 0, "--out", tmp_path / "a.csv") == 0
    capsys.readouterr()
    assert given(desk, "alerts", *words, "--reasons", 0) == 0
    text = capsys.readouterr().out
    assert text.endswith((tmp_path / "a.csv").read_text())


def test_accounts_of_another_bank_are_refused_or_reported(desk, tmp_path, capsys, caplog):
    words = ["--nodes", desk / "history/b.csv", "--edges", desk / "a.csv"]
    assert given(desk, "predict", *words) == 2  # though bank B's accounts are ends of bank A's rows
    assert "do not belong together" in capsys.readouterr().err
    inner = pd.read_csv(desk / "a.csv").query("from_bank == 'A' and to_bank == 'A'")
    inner.to_csv(tmp_path / "inner.csv", index=False)
    assert given(desk, "predict", "--nodes", desk / "history/b.csv", "--edges", tmp_path / "inner.csv") == 2
    assert "do not belong together: no id of the nodes, such as 'b0'" in capsys.readouterr().err
    both = [pd.read_csv(desk / f"history/{bank}.csv") for bank in "ab"]
    pd.concat([both[0][:4], both[1]]).to_csv(tmp_path / "mixed.csv", index=False)
    assert given(desk, "predict", "--nodes", tmp_path / "mixed.csv", "--edges", tmp_path / "inner.csv") == 0
    assert f"{EACH} of {EACH + 4} ids of" in caplog.text
    table = pd.read_csv(desk / "b.csv").query("from_bank == 'B' and to_bank == 'B'")
    table.assign(from_bank="A", to_bank="A").to_csv(tmp_path / "renamed.csv", index=False)
    assert given(desk, "predict", "--nodes", desk / "history/b.csv", "--edges", tmp_path / "renamed.csv") == 0
    assert "they are scored as a graph of their own" in caplog.text


def test_parquet_of_whole_numbers_stays_whole(desk, tmp_path):
    """Without ids in tables, all ends are numbers."""
    predictor = load_predictor(desk / "run", 0)
    predictions = predictor.predict(predictor.client_graph, np.arange(EACH))
    assert all(type(end) is not float for end in predictions.to_frame()["source"])

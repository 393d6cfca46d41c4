"""A payment's score does not depend on the other rows of its table that are later than its day."""

import numpy as np
import pandas as pd
import pytest

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from tests.party.two_banks import DAY, books, payments

HOURS = 6
"""Rows are half an hour apart; ``split.step`` is a quarter of a day, so that the new rows span six steps."""


@pytest.fixture(scope="module", params=["temporal", "ratio"])
def desk(request, tmp_path_factory):
    """A network on the first 240 payments of two linked banks, and bank A's later rows."""
    folder, rows = tmp_path_factory.mktemp("cuts"), payments()
    linked = books(folder / "history", rows[:240], "features=payments", split=request.param)
    keys = {"task": "edges", "graph": str(linked), "num_clients": 2, "progress": False, "model.hidden": 8}
    fg.run(rounds=2, out=str(folder / "run"), **{"split.step": f"{HOURS}h"}, **keys)
    assert main(["export", str(folder / "run"), "--client", "0", "--out", str(folder / "exported")]) == 0
    day = rows[240:].drop(columns="fraud")
    return folder, linked, day[(day[["from_bank", "to_bank"]] == "A").any(axis=1)]


def scores(desk, table, out, model=(), command="predict"):
    folder, _, _ = desk
    table.to_csv(out / "table.csv", index=False)
    words = [str(folder / "run"), "--client", "0"] if not model else [*map(str, model)]
    words += ["--nodes", str(folder / "history/a.csv"), "--edges", str(out / "table.csv"), "--out", str(out / "p.csv")]
    assert main([command, *words]) in (0, 3)
    return pd.read_csv(out / "p.csv")


def day_by_day(desk, table, out, model=()):
    """Scores of each step's rows, from a table that ends with them."""
    step = table["at"] // (HOURS * 3600)
    parts = []
    for last in sorted(step.unique()):
        predictions = scores(desk, table[step <= last], out, model)
        parts.append(predictions[(step[step <= last] == last).to_numpy()])
    assert len(parts) > 3
    return pd.concat(parts, ignore_index=True)


def test_scores_of_a_table_are_those_of_its_days_one_by_one(desk, tmp_path):
    table = desk[2]
    whole = scores(desk, table, tmp_path)
    np.testing.assert_allclose(whole["p_yes"], day_by_day(desk, table, tmp_path)["p_yes"], atol=1e-6)
    first = scores(desk, table[table["at"] < 20_000 * DAY + 252 * 1800], tmp_path)
    np.testing.assert_allclose(first["p_yes"], whole["p_yes"][: len(first)], atol=1e-6)
    shuffled = table.sample(frac=1, random_state=0)
    again = scores(desk, shuffled, tmp_path).set_index("edge")["p_yes"]
    np.testing.assert_allclose(again[whole["edge"]], whole["p_yes"], atol=1e-6)


def test_an_exported_model_scores_alike(desk, tmp_path):
    folder, linked, table = desk
    model = [folder / "exported", "--graph", sorted(linked.glob("*.safetensors"))[0]]
    expected = scores(desk, table, tmp_path)["p_yes"]
    np.testing.assert_allclose(scores(desk, table, tmp_path, model)["p_yes"], expected, atol=1e-5)
    np.testing.assert_allclose(day_by_day(desk, table, tmp_path, model)["p_yes"], expected, atol=1e-5)


def test_reasons_are_of_payments_until_the_end_of_the_items_day(desk, tmp_path):
    pytest.importorskip("captum")
    folder, _, table = desk
    table.to_csv(tmp_path / "table.csv", index=False)
    item, at = table["ref"].iloc[0], table["at"].iloc[0]
    words = ["--client", "0", "--nodes", str(folder / "history/a.csv"), "--edges", str(tmp_path / "table.csv")]
    words += ["--items", item, "--top", "500", "--out", str(tmp_path / "r.csv")]
    assert main(["explain", str(folder / "run"), *words]) == 0
    reasons = pd.read_csv(tmp_path / "r.csv")
    last = pd.to_datetime(reasons["time"].dropna()).astype("int64").max()
    last = last // 10**9 if last > 10**12 else last
    assert last < (at // (HOURS * 3600) + 1) * HOURS * 3600
    p = scores(desk, table, tmp_path).set_index("edge")["p_yes"][item]
    assert reasons["score"].iloc[0] == pytest.approx(np.log(p / (1 - p)), abs=1e-4)


def test_drift_compares_the_scores_that_predict_lists(desk, tmp_path):
    table = desk[2]
    folder = desk[0]
    comparison = scores(desk, table, tmp_path, (folder / "run", "--client", 0), "drift").query("table == 'scores'")
    assert comparison["new"].iloc[0] == pytest.approx(scores(desk, table, tmp_path)["p_yes"].median(), abs=1e-5)

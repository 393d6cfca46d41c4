"""A day's file of a bank: payments with other banks are scored as an import of all rows would score them, others are listed."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.tasks.edges import ENTERING
from tests.party.two_banks import books, payments


@pytest.fixture(scope="module", params=["plain", "recipe", "shared"])
def work(request, tmp_path_factory):
    """A trained run on the first 240 payments, all of them linked in another folder, and the last ones as bank A sees them."""
    folder = tmp_path_factory.mktemp("day")
    forms = {"plain": [], "recipe": ["features=payments"], "shared": ["windows=2"]}
    rows, recipe, share = payments(), forms[request.param], "age:exact" if request.param == "shared" else ""
    history = books(folder / "history", rows[:240], *recipe, share=share)
    whole = books(folder / "whole", rows, *recipe, share=share)
    run = fg.run(
        task="edges",
        graph=str(history),
        num_clients=2,
        rounds=2,
        out=str(folder / "run"),
        progress=False,
        **{"model.hidden": 8},
    )
    day = rows[240:].drop(columns="fraud")
    return (
        run,
        whole,
        day[(day[["from_bank", "to_bank"]] == "A").any(axis=1)],
        folder / "history" / "a.csv",
        request.param,
    )


def predict(work, table, out, *words):
    table.to_csv(out / "day.csv", index=False)
    given = ["--nodes", str(work[3]), "--edges", str(out / "day.csv"), "--out", str(out / "scored.csv"), *words]
    code = main(["predict", str(work[0].path), "--client", "0", *given])
    return code, pd.read_csv(out / "scored.csv") if code == 0 else None


def test_rows_that_name_another_bank_are_scored_as_in_an_import_of_all_rows(work, tmp_path):
    """Out of bank A and into it, in the table's order; the whole linked file has the same model's logits at the same times."""
    run, whole, day, *_ = work
    assert {"A", "B"} == set(day["from_bank"]) == set(day["to_bank"])
    code, predictions = predict(work, day.iloc[::-1], tmp_path)
    assert code == 0
    assert predictions["edge"].tolist() == day["ref"].tolist()[::-1]
    assert predictions[["source", "target"]].to_numpy().tolist() == day[["source", "target"]].to_numpy().tolist()[::-1]
    assert predictions["p_yes"].between(0, 1).all()
    predictor = load_predictor(run.path, 0)
    graph = ClientGraph.load(sorted(whole.glob("*.safetensors"))[0])
    graph = replace(graph, schema={**graph.schema, ENTERING: True})
    every = predictor.predict(graph)
    expected = dict(zip(every.time.tolist(), every.probabilities[:, 1], strict=True))
    assert len(expected) == len(every.ids), "times identify payments"
    np.testing.assert_allclose(predictions["p_yes"][::-1], [expected[at] for at in day["at"]], atol=2e-4)


def test_rows_that_cannot_be_scored_are_listed_and_the_others_scored(work, tmp_path, capsys):
    day = work[2].reset_index(drop=True)
    odd = day.iloc[[0, 1, 2, 3]].copy()
    odd["ref"] = ["q0", "q1", "q2", "q3"]
    odd.loc[0, ["source", "from_bank", "target", "to_bank"]] = ["a99", "A", "a1", "A"]
    odd.loc[1, ["source", "from_bank", "target", "to_bank"]] = ["b1", "B", "b2", "B"]
    odd.loc[2, ["source", "from_bank", "target", "to_bank"]] = ["a1", "A", "", ""]
    odd.loc[3, ["source", "from_bank", "target", "to_bank"]] = [
        " A1",
        "a",
        "A 2",
        " A ",
    ]  # other spellings of a1 and a2
    table = pd.concat([odd, day], ignore_index=True)
    code, predictions = predict(work, table, tmp_path)
    assert code == 0
    assert predictions["edge"].tolist() == ["q3", *day["ref"]]
    left = pd.read_csv(tmp_path / "scored.left-out.csv")
    assert left[["row", "edge"]].to_numpy().tolist() == [[1, "q0"], [2, "q1"], [3, "q2"]]
    assert "'a99', which is not an id" in left["reason"][0]
    assert "no account of 'a'" in left["reason"][1]
    assert left["reason"][2] == "names no party or no account"
    assert "3 of" in capsys.readouterr().err
    code, _ = predict(work, odd.iloc[:3], tmp_path)
    assert code == 2
    assert "no row of" in capsys.readouterr().err

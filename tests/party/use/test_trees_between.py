"""Trees on payments of linked banks score the next day's file, whose rows also enter from the other bank."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.numerics.forest import raw_scores
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.tasks.edges import ENTERING, Edges
from tests.party.two_banks import books, payments

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["plain", "recipe", "shared"])
def desk(request, tmp_path_factory):
    """Boosting on the first 240 payments, the linked files of all, and bank A's rows of the next day."""
    folder = tmp_path_factory.mktemp("trees")
    words = {"plain": [], "recipe": ["features=payments"], "shared": ["windows=2"]}[request.param]
    rows, share = payments(), "age:exact" if request.param == "shared" else ""
    history = books(folder / "history", rows[:240], *words, share=share)
    whole = books(folder / "whole", rows, *words, share=share)
    keys = {"task": "edges", "graph": str(history), "num_clients": 2, "progress": False}
    small = {"strategy.min_data_in_leaf": 3, "strategy.trees": 15}
    run = fg.run(strategy="boosting", out=str(folder / "run"), **keys, **small)
    day = rows[240:].drop(columns="fraud")
    day = day[(day[["from_bank", "to_bank"]] == "A").any(axis=1)]
    day.to_csv(folder / "day.csv", index=False)
    given = [str(run.path), "--client", "0"]
    given += ["--nodes", str(folder / "history" / "a.csv"), "--edges", str(folder / "day.csv")]
    return folder, whole, day, given


def test_the_next_day_is_scored_explained_and_compared(desk, tmp_path):
    _, _, day, given = desk
    assert main(["predict", *given, "--out", str(tmp_path / "scored.csv")]) == 0
    assert pd.read_csv(tmp_path / "scored.csv")["edge"].tolist() == day["ref"].tolist()
    assert main(["alerts", *given, "--cost", "20,1", "--out", str(tmp_path / "alerts.csv"), "--reasons", "2"]) == 0
    assert len(pd.read_csv(tmp_path / "alerts.csv")) > 0
    entering = day[day["from_bank"] == "B"]["ref"].iloc[0]
    assert main(["explain", *given, "--items", entering, "--out", str(tmp_path / "reasons.csv")]) == 0
    reasons = pd.read_csv(tmp_path / "reasons.csv")
    assert set(reasons["item"]) == {entering}
    assert main(["drift", *given, "--out", str(tmp_path / "drift.csv")]) in (0, 3)
    assert (pd.read_csv(tmp_path / "drift.csv")["table"] == "scores").any()


def test_scores_are_those_of_the_trees_on_the_columns_of_an_import_of_all_rows(desk, tmp_path):
    """Columns are built row by row here: those of the payment, then of both ends; NaN where the other bank owns the end."""
    folder, whole, day, given = desk
    assert main(["predict", *given, "--out", str(tmp_path / "scored.csv")]) == 0
    probabilities = pd.read_csv(tmp_path / "scored.csv")["p_yes"].to_numpy()
    graph = ClientGraph.load(sorted(whole.glob("*.safetensors"))[0])
    predictor = load_predictor(folder / "run", 0)
    x, expected = graph.x.double().numpy().copy(), {}
    if made := graph.own_columns.get("nodes", 0):
        x[:, x.shape[1] - made :] = 0

    def far(node):
        values = np.full(x.shape[1], np.nan)
        if graph.far:
            place = graph.far_id.tolist().index(node)
            values[graph.far["places"]] = graph.far_x[place].numpy()
            values[graph.far["marks"] : graph.far["marks"] + 2] = 1, np.isnan(graph.far_x[place].numpy()).any()
        return values

    sides = (
        (graph.edge_index, graph.edge_attr, graph.edge_time, lambda a, b: (x[a], x[b])),
        (graph.cut_out, graph.cut_out_edge_attr, graph.cut_out_edge_time, lambda a, b: (x[a], far(b))),
        (graph.cut_in, graph.cut_in_edge_attr, graph.cut_in_edge_time, lambda b, a: (far(a), x[b])),
    )
    for ends, attr, time, columns in sides:
        for (a, b), attributes, at in zip(ends.T.tolist(), attr.double().numpy(), time.tolist(), strict=True):
            row = np.concatenate([attributes, *columns(a, b)])[None]
            raw = raw_scores(predictor.forest, row, 1)[0, 0]
            expected[at] = 1 / (1 + np.exp(-raw))
    np.testing.assert_allclose(probabilities, [expected[at] for at in day["at"]], atol=1e-6)


def test_columns_of_entering_payments_belong_to_their_own_ends(desk):
    """Without a share the source's columns are unknown, and the target's are those of the bank's own account."""
    folder, whole, *_ = desk
    graph = ClientGraph.load(sorted(whole.glob("*.safetensors"))[0])
    graph = replace(graph, schema={**graph.schema, ENTERING: True})
    predictor = load_predictor(folder / "run", 0)
    task = predictor.outputs(graph)[1]
    assert isinstance(task, Edges)
    rows = task.columns()[task.order.argsort()][-graph.cut_in.size(1) :]
    width = graph.num_features
    source, target = rows[:, -2 * width : -width], rows[:, -width:]
    kept = width - graph.own_columns.get("nodes", 0)
    np.testing.assert_array_equal(target[:, :kept], graph.x[graph.cut_in[0]][:, :kept])
    assert source.isnan().all() or graph.far

"""The papers' tables compose, and what is stored of them is what their rows say; rounds and bytes to a target."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgraph_flwr.config import CONF, compose, group_names
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.secure.accounting import cost
from fedgraph_flwr.sweeps.results_index import ResultsIndex
from fedgraph_flwr.sweeps.rows import COUNTED
from fedgraph_flwr.sweeps.spec import load
from fedgraph_flwr.sweeps.summary import SweepSummary
from fedgraph_flwr.sweeps.table import markdown
from simulations import budget, private_rows, whole_graph

FOLDER = Path(budget.__file__).parent
PLUGIN = FOLDER.parent / "examples" / "feddep_authors"
TABLES = sorted(FOLDER.glob("*.yaml"))


@pytest.fixture
def plugin(monkeypatch):
    """The package of examples/ with a method and a model that a table uses."""
    monkeypatch.syspath_prepend(PLUGIN)
    monkeypatch.setenv(CONF, str(PLUGIN / "feddep_authors" / "conf"))


@pytest.mark.slow
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_table_composes(path, plugin):
    table = load(path)
    settings, methods = list(table.settings), list(table.methods)
    for cell in table.cells({}):
        first = cell.setting == settings[0] or cell.method == methods[0]
        if cell.seed == table.seeds[0] and first and cell.method not in COUNTED:
            compose(cell.overrides)
    for setting, cells in table.paper.items():
        assert setting in table.settings
        assert not set(cells) - set(table.methods)


STORED = [path for path in TABLES if (FOLDER / "results" / f"{path.stem}.csv").is_file()]


@pytest.mark.slow
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_every_stored_table_is_what_its_rows_say(path, plugin, monkeypatch):
    """`fedgraph-flwr sweep simulations/*.yaml --table-only` writes them anew."""
    monkeypatch.chdir(FOLDER.parent)
    index = ResultsIndex(load(path.relative_to(FOLDER.parent)))
    index.missing()
    assert index.finished
    assert index.sweep.results.with_suffix(".md").read_text() == markdown(SweepSummary(index.sweep, index.finished))


def test_what_a_target_needs_by_hand():
    curves = {
        ("a", 0): [0.5, 0.7, 0.6],
        ("a", 1): [0.7, 0.8, 0.9],
        ("b", 0): [0.1, 0.2, 0.3],
        ("b", 1): [0.1, 0.2, 0.65],
    }
    histories = [
        {"method": m, "seed": str(s), "round": str(r), "validation": str(value), "bytes": str(1_000_000 * r + 5)}
        for (m, s), values in curves.items()
        for r, value in enumerate(values, start=1)
    ]
    target = budget.targets(histories, 0.9)
    assert target == {"0": pytest.approx(0.9 * (0.7 + 0.3) / 2), "1": pytest.approx(0.9 * (0.9 + 0.65) / 2)}
    need = budget.needed(histories[::-1], {"0": 0.65, "1": 0.65})
    assert {name: set(costs) for name, costs in need.items()} == {
        "a": {(2, 2_000_005), (1, 1_000_005)},
        "b": {None, (3, 3_000_005)},
    }
    assert budget.ranked(need) == ["a", "b"]
    text = budget.summarise({"fedavg": need["a"], "fedper": need["b"]}, target, 0.9)
    assert "| fedavg | shared | 2 of 2 | 1.5 | 1.5 |" in text
    assert "| fedper | clients' | 1 of 2 | 3.0 | 3 |" in text


def test_a_curve_ends_with_the_bytes_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    words = ["dataset=csbm", "dataset.clients=2", "dataset.nodes=60", "num_clients=2", "rounds=3", "checkpoint_every=0"]
    monkeypatch.setattr(budget, "WORDS", words)
    from fedgraph_flwr.launch.runner import run

    summary = run(compose([*words, "strategy=fedprox", "seed=1", f"out={tmp_path / 'own'}"]))
    rows = budget.curve("fedprox", 1)
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows[-1]["bytes"] == summary["bytes_up"] + summary["bytes_down"]
    assert max(row["validation"] for row in rows) == summary["metrics"]["best_val"]["val_accuracy"]
    parameters = sum(
        tensor.numel() for tensor in read_tensors(tmp_path / "own" / "model_final.safetensors")[0].values()
    )
    steps = np.diff([0, *(row["bytes"] for row in rows)])
    assert (steps >= 2 * 2 * 4 * parameters).all()  # both ways, two clients, four bytes a parameter


def test_the_budget_leaves_out_pooled_data_and_typed_graphs():
    taken = set(budget.methods())
    assert {"fedavg", "local"} <= taken <= set(group_names("strategy"))
    assert not {"central", "fedhgn"} & taken


def test_on_the_whole_graph_the_pooled_model_keeps_its_score_and_one_shared_model_sees_cut_edges(tmp_path):
    common = ["dataset=csbm", "dataset.nodes=360", "num_clients=3", "rounds=2", "evaluation.average=test_nodes"]
    scores = {}
    for name in ("central", "fedavg", "local"):
        out = tmp_path / name
        run(compose([*common, f"strategy={name}", "checkpoint_every=0", f"out={out}"]))
        clients = [load_client(load_predictor(out, 0).cfg, i) for i in range(1 if name == "central" else 3)]
        scores[name] = whole_graph.whole_score(out)
        graph = whole_graph.whole_graph(clients)
        assert graph.num_nodes == 360
        assert int(graph.test_mask.sum()) == sum(int(client.test_mask.sum()) for client in clients)
    central = json.loads((tmp_path / "central" / "summary.json").read_text())
    assert scores["central"] == pytest.approx(central["metrics"]["best_val"]["test_accuracy_by_test_nodes"], abs=1e-9)
    predictor = load_predictor(tmp_path / "fedavg", None)
    hit = predictor.logits(graph).argmax(1) == graph.y
    assert scores["fedavg"] == pytest.approx(float(hit[graph.test_mask].double().mean()))
    hits = [load_predictor(tmp_path / "local", i).logits(graph).argmax(1) == graph.y for i in range(3)]
    assert scores["local"] == pytest.approx(np.mean([float(hit[graph.test_mask].double().mean()) for hit in hits]))


def test_on_the_whole_graph_fedsage_is_scored_without_generated_neighbours(tmp_path):
    """Against dense matrices: mean of neighbours and own features, two layers."""
    common = ["dataset=csbm", "dataset.nodes=240", "num_clients=2", "rounds=2", "strategy=fedsage", "model.dropout=0"]
    run(compose([*common, "checkpoint_every=0", f"out={tmp_path}"]))
    graph = whole_graph.whole_graph([load_client(load_predictor(tmp_path, 0).cfg, i) for i in range(2)])
    w = {name: tensor.double() for name, tensor in load_predictor(tmp_path, None).tensors.items()}
    links = torch.zeros(240, 240, dtype=torch.float64)
    links[graph.edge_index[1], graph.edge_index[0]] = 1
    mean, h = links / links.sum(1, keepdim=True).clamp(min=1), graph.x.double()
    for layer in ("layers.0", "head"):
        parts = [w[f"{layer}.{part}.weight"] for part in ("itself", "neighbours")]
        h = h.relu() if layer == "head" else h
        h = h @ parts[0] + mean @ h @ parts[1] + w[f"{layer}.itself.bias"]
    hit = (h.argmax(1) == graph.y)[graph.test_mask]
    assert whole_graph.whole_score(tmp_path) == pytest.approx(float(hit.double().mean()), abs=1e-9)


def test_the_stored_table_of_the_whole_graph_is_what_its_rows_say():
    sweep = load(FOLDER / "federatedscope.yaml")
    stored_rows = whole_graph.read(FOLDER / "results" / "federatedscope_whole.csv")
    assert {row["words"] for row in stored_rows} == {" ".join(cell.overrides) for cell in sweep.cells({})}
    assert (FOLDER / "results" / "federatedscope_whole.md").read_text() == whole_graph.table(sweep, stored_rows)


def test_private_rows_have_the_epsilon_of_their_setting():
    cfg = private_rows.config(1000, 0.0, 0, 20, 0.03)
    for setting, dp in ((private_rows.LOCAL, "local"), (private_rows.SECURE, "distributed")):
        rules = replace(
            cfg.privacy, dp=dp, secagg=dp == "distributed", clipping_norm=private_rows.CHOSEN[setting]["clip"]
        )
        z = private_rows.multiplier(rules, 3.0, 150)
        assert 2.9 < cost(replace(rules, noise_multiplier=z), private_rows.BANKS, 150) <= 3.0


def test_the_stored_table_of_private_rows_is_what_its_rows_say():
    with private_rows.PATH.open(newline="") as file:
        assert private_rows.PATH.with_suffix(".md").read_text() == private_rows.table(list(csv.DictReader(file)))

"""An exported folder, loaded where this package cannot be imported, gives our logits; what cannot be exported is refused."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from fedgraph_flwr import cli
from fedgraph_flwr.config import group_names
from fedgraph_flwr.data import preprocess
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.gcn import GCN
from fedgraph_flwr.party.use.export import export, load_export, module_of
from fedgraph_flwr.party.use.predict import load_predictor
from tests.party import banks

EXPORTED = {
    "gcn": ["fedavg", "model=gcn", "model.layers=3"],
    "gcn3": ["fedavg", "model=gcn3"],
    "gcn_norm": ["fedavg", "model=gcn_norm"],
    "mlp": ["fedavg", "model=mlp", "model.norm=layer", "model.input_norm=true"],
    "sage": ["fedavg", "model=sage", "model.head=true", "model.out_neighbours=true"],
    "gat": ["fedavg", "model=gat"],
    "projected_gcn": ["fedavg", "model=projected_gcn"],
    "fedomd": ["fedomd"],
    "decoupled": ["fedavg", "model=decoupled", "model.beta=[0.3,0.7]", "model.input_norm=true"],
    "acm": ["fedavg", "model=acm", "model.norm=batch"],
    "fedspa": ["fedspa"],
    "gin": ["fedavg", "model=gin"],
    **{name: ["fedavg", f"model={name}"] for name in ("gatv2", "gine", "multi_gine", "pna", "transformer")},
    "own: a mixture": ["apfl"],
    "own: tuned": ["fedavg_ft"],
    "own: masked": ["fedpub"],
}
REFUSED = {
    "fedhero": ["fedhero"],
    "fedlit": ["fedlit"],
    "fedstar": ["fedstar"],
    "fused_sage": ["feddep"],
    "fedstruct": ["fedstruct"],
    "rgcn": ["fedhgn"],
    "simple_hgn": ["fedhgn", "model=simple_hgn"],
    "embedding": ["fedavg", "model=embedding", "task=links"],
    "sign": ["fedavg", "model=sign"],
}

ELSEWHERE = """
import importlib.util, json, sys
sys.modules["fedgraph_flwr"] = None  # an import of it fails
import torch
for folder, graph, labels in json.loads(sys.argv[1]):
    spec = importlib.util.spec_from_file_location("model", f"{folder}/model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tensors = torch.load(graph)
    known = {"y": tensors["y"], "known": tensors["known"]} if labels else {}
    with torch.no_grad():
        torch.save(module.load()(tensors["x"], tensors["edge_index"], **known), f"{folder}/logits.pt")
"""


def test_every_network_is_exported_or_refused():
    assert {name for name in EXPORTED if ":" not in name} | REFUSED.keys() == set(group_names("model"))


@pytest.mark.parametrize("method", ["fggp", "adafgl"])
def test_a_shared_network_that_was_not_what_was_scored_says_so(go, tmp_path, caplog, method):
    finished = go(method, "rounds=2")
    export(load_predictor(finished.out), tmp_path, finished.out)
    assert "this is only the shared model" in caplog.text
    card, metrics = (tmp_path / "MODEL_CARD.md").read_text(), json.loads((tmp_path / "metrics.json").read_text())
    assert "## Scores\n\nNone: this is only the shared model; scored predictions also use" in card
    assert not {"metrics", "clients", "headline", "score", "chance"} & metrics.keys()
    caplog.clear()
    assert not load_predictor(finished.out, 0).unscored
    assert not load_predictor(go("fedavg", "rounds=2").out).unscored
    assert not caplog.text


@pytest.mark.slow
def test_the_folders_give_our_logits_without_our_package(go, tmp_path):
    """All in one other process, since PyG takes long to import."""
    arguments, ours = [], {}
    for name, (method, *overrides) in EXPORTED.items():
        finished = go(method, "rounds=2", *overrides)
        predictor = load_predictor(finished.out, 1)
        folder, graph = tmp_path / name.replace(": ", "_"), predictor.client_graph
        export(predictor, folder, finished.out)
        index = json.loads((folder / "export.json").read_text())
        tensors = {"x": graph.x, "edge_index": graph.edge_index, "y": graph.y, "known": graph.train_mask}
        torch.save(tensors, tmp_path / f"{folder.name}.pt")
        arguments.append([str(folder), str(tmp_path / f"{folder.name}.pt"), index["labels"]])
        ours[folder] = predictor.logits(graph)
        torch.testing.assert_close(load_export(folder).logits(graph), ours[folder], rtol=1e-6, atol=1e-6)
        assert (folder / "MODEL_CARD.md").read_text().startswith(f"# {method} on csbm: the model of client 1")
    assert [labels for *_, labels in arguments].count(True) == 1
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", ELSEWHERE, json.dumps(arguments)], check=True, env=bare, cwd=tmp_path)
    for folder, logits in ours.items():
        torch.testing.assert_close(torch.load(folder / "logits.pt"), logits, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_other_networks_are_refused_by_a_sentence(go, tmp_path, name):
    method, *overrides = REFUSED[name]
    predictor = load_predictor(go(method, "rounds=1", *overrides).out, 0)
    with pytest.raises(FedGraphError, match=r"cannot be exported|cannot predict without the other clients"):
        export(predictor, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Doubled(GCN):
    """A network of somebody's own that changes what it inherits and not what it says of itself."""

    def classify(self, h, inputs):
        return 2 * super().classify(h, inputs)


def test_a_network_that_says_of_itself_what_it_does_not_compute_is_refused(go, tmp_path):
    finished = go("fedavg", "rounds=1", "model=tests.party.use.test_export:Doubled")
    with pytest.raises(FedGraphError, match="its description differs from it; on a test graph, logits differ"):
        export(load_predictor(finished.out), tmp_path / "out")


def test_a_method_that_predicts_by_more_than_its_network_is_refused_by_its_name(go, tmp_path):
    predictor = load_predictor(go("fggp", "rounds=2").out, 0)
    with pytest.raises(FedGraphError, match="strategy=fggp cannot be exported: it predicts with more than its model"):
        export(predictor, tmp_path / "out")


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    """A run on one bank's imported table, cut into clients, and its exported folder."""
    place = tmp_path_factory.mktemp("bank")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAPH_DATA", str(place / "root"))
        nodes, edges = banks.write(place, customers=150)["a"]
        args = [
            "--nodes",
            nodes,
            "--edges",
            edges,
            "--classes",
            "ok,fraud",
            "scales.income=log",
            "scales.age=robust",
        ]
        args += ["columns.split=part", "--undirected", "--name", "bank"]
        assert cli.main(["import", *map(str, args)]) == 0
        run = ["dataset=bank", "partition=random", "num_clients=3", "rounds=2", "strategy.weighting=uniform"]
        run += [
            "privacy.dp=server_fixed",
            "privacy.noise_multiplier=1",
            "privacy.delta=0.01",
            f"out={place / 'run'}",
            "--quiet",
            "--no-report",
        ]
        assert cli.main(["run", *run]) == 0
        assert cli.main(["export", str(place / "run"), "--out", str(place / "out")]) == 0
        yield place


def test_preprocessing_without_our_package_makes_our_features(bank):
    sys.path.insert(0, str(bank / "out"))
    try:
        import preprocess
    finally:
        sys.path.pop(0)
    x, edge_index, ids = preprocess.read(bank / "a_customers.csv", bank / "a_payments.csv")
    net = load_export(bank / "out")
    with pytest.raises(
        FedGraphError, match=f"{bank / 'out'}: it has no party's graph: pass --client I, or the state folder of a node"
    ):
        net.party_graph()
    args = ["--nodes", str(bank / "a_customers.csv"), "--edges", str(bank / "a_payments.csv"), "--out"]
    for source in ("run", "out"):
        assert cli.main(["predict", str(bank / source), *args, str(bank / f"{source}.csv")]) == 0
    run, out = (pd.read_csv(bank / f"{source}.csv") for source in ("run", "out"))
    assert list(out["id"]) == list(ids)
    np.testing.assert_allclose(out["p_fraud"], run["p_fraud"], rtol=0, atol=1e-6)
    assert list(out["class"]) == list(run["class"])
    graph = torch.as_tensor(x), torch.as_tensor(edge_index)
    from fedgraph_flwr.party.use.plain.stack import Net

    module = Net(**net.plain.arguments)
    module.load_state_dict(net.plain.weights)
    chances = module.eval()(*graph).softmax(1)[:, 1].detach()
    np.testing.assert_allclose(chances, run["p_fraud"], rtol=0, atol=1e-6)


def test_repeated_edges_count_in_an_export_as_in_training_and_unclear_tables_are_refused(bank, tmp_path, monkeypatch):
    rows = pd.read_csv(bank / "a_payments.csv")
    pd.concat([rows, rows[:50]]).to_csv(tmp_path / "twice.csv", index=False)
    rows.drop(columns="time").to_csv(tmp_path / "untimed.csv", index=False)
    nodes, text = str(bank / "a_customers.csv"), (bank / "a_customers.csv").read_text()
    args = ["--nodes", nodes, "--edges", str(tmp_path / "twice.csv"), "--classes", "ok,fraud", "columns.split=part"]
    args += [
        "columns.time=time",
        "--client",
        "0",
        "--num-clients",
        "1",
        "--out",
        str(tmp_path / "in/client_0000.safetensors"),
    ]
    assert cli.main(["import", *args]) == 0
    run = str(tmp_path / "run")
    assert cli.main(["run", f"graph={tmp_path / 'in'}", "rounds=1", f"out={run}", "--quiet", "--no-report"]) == 0
    assert cli.main(["export", run, "--client", "0", "--out", str(tmp_path / "out")]) == 0
    monkeypatch.setattr(preprocess, "FOLDER", tmp_path / "out")
    net = module_of(load_export(tmp_path / "out").plain, "float32")
    for edges, number in (("twice", len(rows) + 50), ("untimed", len(rows))):  # all rows, as the model was trained
        x, edge_index, _ = preprocess.read(nodes, tmp_path / f"{edges}.csv")
        assert edge_index.shape[1] == number
        chances = net(torch.as_tensor(x), torch.as_tensor(edge_index)).softmax(1)[:, 1].detach()
        given = ["--nodes", nodes, "--edges", str(tmp_path / f"{edges}.csv"), "--out", str(tmp_path / "p.csv")]
        assert cli.main(["predict", run, "--client", "0", *given]) == 0
        np.testing.assert_allclose(chances, pd.read_csv(tmp_path / "p.csv")["p_fraud"], rtol=0, atol=1e-6)
    odd, first = tmp_path / "odd.csv", text.splitlines()[1].split(",")[0]
    odd.write_text(text.splitlines()[0])
    with pytest.raises(ValueError, match="has no nodes, expected at least 1"):
        preprocess.read(odd, tmp_path / "twice.csv")
    for old, new, error in (
        ("balance", "income", "two columns 'income': rename"),
        (f"{first},", ",", "row 1: id '' is empty or repeated"),
        (text.splitlines()[2].split(",")[0] + ",", f"{first},", f"row 2: id '{first}' is empty or repeated"),
    ):
        odd.write_text(text.replace(old, new, 1))
        with pytest.raises(ValueError, match=error):
            preprocess.read(odd, tmp_path / "twice.csv")


def test_the_card_tells_what_the_run_knows(bank):
    card, summary = (bank / "out/MODEL_CARD.md").read_text(), json.loads((bank / "run/summary.json").read_text())
    assert "2 classes: ok, fraud." in card
    assert "privacy: ε ≤ " in card
    assert f"| mean | {summary['metrics']['best_val']['test_accuracy']:.4f} |" in card
    assert card.count("\n| ") >= 3 + 1 + 3 + 2
    metrics = json.loads((bank / "out/metrics.json").read_text())
    assert metrics["metrics"]["test_auc"] == summary["metrics"]["best_val"]["test_auc"]
    assert "scaling: local" in (bank / "out/schema.yaml").read_text()


def test_a_folder_that_holds_something_else_stays_as_it_is(bank, tmp_path, capsys):
    (tmp_path / "note").write_text("mine")
    assert cli.main(["export", str(bank / "run"), "--out", str(tmp_path)]) == 2
    assert "contains other files: pass a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


def test_a_damaged_export_is_told(bank, capsys):
    (bank / "bad").mkdir()
    (bank / "bad/export.json").write_text('{"module": "os"}')
    assert cli.main(["predict", str(bank / "bad")]) == 2
    assert "contains no exported model" in capsys.readouterr().err

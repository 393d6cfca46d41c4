"""Predictions of methods that read other parties' data: a party's own nodes, from what its node stored."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgraph_flwr import cli, partition
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.party.use.predict import load_node, load_predictor
from fedgraph_flwr.store.checkpoint import Checkpoint, check_descriptions
from tests.methods.small_runs import CUT_GRAPH, sampled
from tests.nodes import party_nodes

FORMS = ["fedstruct", "fedstruct_a", "fedstruct_private", "fedgcn", "fedsage_true"]


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """Make each client of an inline run a party's own node: its file, its state folder, a policy without a minimum."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("min_nodes: 0\n")  # all test nodes are scored, as in a prediction

    files = [tmp_path / f"parts/client_{client:04d}.safetensors" for client in range(3)]
    party_nodes(monkeypatch, files, policy, tmp_path)
    return tmp_path


def write_parts(folder):
    """Write the three client files of `CUT_GRAPH`."""
    cfg = compose([*CUT_GRAPH, "num_clients=3"])
    (folder / "parts").mkdir()
    for client in range(3):
        partition.load_client(cfg, client).save(folder / f"parts/client_{client:04d}.safetensors")


def accuracy_of(predictor) -> float:
    """Accuracy of the predictions of a party's own test nodes."""
    graph = predictor.client_graph
    return float(np.mean(predictor.predict(graph).codes[graph.test_mask] == graph.y[graph.test_mask].numpy()))


@pytest.mark.slow
@pytest.mark.parametrize("method", sampled(FORMS))
def test_a_party_predicts_its_own_nodes_from_its_state_folder(method, nodes, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(nodes / "root"))
    write_parts(nodes)
    overrides = [f"graph={nodes / 'parts'}", f"strategy={method}", "num_clients=3", "rounds=3", "model.hidden=8"]
    summary = run_inline(with_folder(compose([*overrides, f"out={nodes / 'run'}"])))
    for at, column in (("best", "best_val"), ("last", "last")):
        parties = [load_node(nodes / f"state_{client}", at) for client in range(3)]
        accuracy = [accuracy_of(party) for party in parties]
        assert np.mean(accuracy) == summary["metrics"][column]["test_accuracy"], at


@pytest.mark.parametrize(
    "method", ["fedstruct", *(pytest.param(form, marks=pytest.mark.slow) for form in ("fedstruct_a", "fedgcn"))]
)
def test_a_run_without_scores_stores_the_last_results(method, go):
    """No client was scored, so the last parameters and what belongs to them arrive at the end."""
    silent, scored = go(method, "privacy.scores=none"), go(method)
    for client in range(3):
        graph = load_predictor(silent.out, client).client_graph
        logits = load_predictor(silent.out, client, "last").predict(graph).logits
        expected = load_predictor(scored.out, client, "last")
        assert torch.equal(logits, expected.predict(expected.client_graph).logits)


def test_only_the_graph_of_the_run_is_predicted(go, monkeypatch, capsys):
    finished = go("fedgcn")
    predictor = load_predictor(finished.out, 1)
    predictor.client_graph.x[3] += 1
    with pytest.raises(FedGraphError, match="has another graph file than in its run"):
        predictor.predict(predictor.client_graph)
    predictor.memory = {}
    with pytest.raises(FedGraphError, match="its run stored no results of them"):
        predictor.predict(predictor.client_graph)
    with pytest.raises(FedGraphError, match="cannot be exported: a client of strategy=fedgcn"):
        load_predictor(finished.out, 1).plain()
    capsys.readouterr()
    assert cli.main(["predict", str(finished.out), "--client", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + predictor.client_graph.num_nodes


def test_fedgcn_without_hops_needs_no_one(go):
    predictor = load_predictor(go("fedgcn", "strategy.hops=0").out, 0)
    other = load_predictor(go("fedgcn", "strategy.hops=0").out, 1).client_graph
    assert len(predictor.predict(other).ids) == other.num_nodes


@pytest.mark.parametrize(
    "form",
    [
        ["fedgcn"],
        pytest.param(["fedsage_true"], marks=pytest.mark.slow),
        pytest.param(["fedstruct", "strategy.features=degree", "model.structure_hops=2"], marks=pytest.mark.slow),
    ],
    ids=lambda form: form[0],
)
def test_new_nodes_are_predicted_after_another_setup(form, go, tmp_path):
    """The trained model on graphs with new nodes and edges gives what it gives where they were part of the run."""
    trained = go(*form, "rounds=2")
    grown = [*CUT_GRAPH, "dataset.nodes_per_client=[68,90]", "num_clients=3"]
    later = with_folder(
        compose([f"evaluate={trained.out}", *grown, f"out={tmp_path / 'later'}"], trained.out / "config.yaml")
    )
    summary = run_inline(later)
    assert summary["rounds"] == 1
    assert "train" not in summary["bytes_by_phase"]
    predictors = [load_predictor(Path(later.out), client) for client in range(3)]
    assert sum(party.client_graph.num_nodes for party in predictors) > sum(
        load_predictor(trained.out, k).client_graph.num_nodes for k in range(3)
    )
    accuracy = [accuracy_of(party) for party in predictors]
    assert np.mean(accuracy) == summary["metrics"]["last"]["test_accuracy"]
    same = with_folder(compose([f"evaluate={trained.out}", f"out={tmp_path / 'same'}"], trained.out / "config.yaml"))
    run_inline(same)
    for client in range(3):
        before, after = load_predictor(trained.out, client), load_predictor(Path(same.out), client)
        assert torch.equal(before.predict(before.client_graph).logits, after.predict(after.client_graph).logits)


def test_a_run_is_evaluated_only_where_its_shared_parameters_suffice(go, tmp_path):
    trained = go("fedgcn")
    check_method(compose([f"evaluate={trained.out}", "strategy=fedavg"]))
    with pytest.raises(FedGraphError, match=f"evaluate={tmp_path} holds no finished run"):
        run_inline(
            with_folder(
                compose([f"evaluate={tmp_path}", *CUT_GRAPH, "strategy=fedgcn", "num_clients=3", f"out={tmp_path}/x"])
            )
        )
    wide = compose(
        [f"evaluate={trained.out}", "model.hidden=9", f"out={tmp_path / 'wide'}"], trained.out / "config.yaml"
    )
    with pytest.raises(
        FedGraphError, match=r"model_best.safetensors: .* the model's is .*: evaluate the run with its own"
    ):
        run_inline(with_folder(wide))


@pytest.mark.parametrize("method", [pytest.param("fedgcn", marks=pytest.mark.slow), "fedstruct"])
def test_an_edge_that_the_other_party_denies_names_both(method, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))
    write_parts(tmp_path)
    denied = ClientGraph.load(tmp_path / "parts/client_0001.safetensors")
    kept = denied.cut_out_owner != 0
    denied.cut_out, denied.cut_out_owner = denied.cut_out[:, kept], denied.cut_out_owner[kept]
    denied.save(tmp_path / "parts/client_0001.safetensors")
    overrides = [
        f"graph={tmp_path / 'parts'}",
        f"strategy={method}",
        "num_clients=3",
        "rounds=1",
        f"out={tmp_path / 'run'}",
    ]
    with pytest.raises(
        RunFailed, match=r"client (0|1) .*client(s \[)?.*differ in the edges between them.*(link|import) "
    ):
        run_inline(with_folder(compose(overrides)))


@pytest.mark.parametrize("method", ["fedgcn", pytest.param("fedstruct", marks=pytest.mark.slow)])
def test_a_node_that_two_parties_claim_names_both(method, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))
    write_parts(tmp_path)
    graph = ClientGraph.load(tmp_path / "parts/client_0001.safetensors")
    taken = int(ClientGraph.load(tmp_path / "parts/client_0000.safetensors").node_id[-1])
    graph.node_id = graph.node_id.clone()
    graph.node_id[0] = taken
    graph.save(tmp_path / "parts/client_0001.safetensors")
    overrides = [
        f"graph={tmp_path / 'parts'}",
        f"strategy={method}",
        "num_clients=3",
        "rounds=1",
        f"out={tmp_path / 'run'}",
    ]
    with pytest.raises(
        RunFailed, match=f"clients 0 and 1 both have node {taken}: each node belongs to one party; link all"
    ):
        run_inline(with_folder(compose(overrides)))


def test_a_run_is_not_resumed_on_files_of_another_link_run():
    before = Checkpoint(
        **dict.fromkeys([f.name for f in dataclasses.fields(Checkpoint)]) | {"descriptions": {"0": {"link": 5}}}
    )
    check_descriptions({"0": {"link": 5}}, before, "runs/mine")
    with pytest.raises(
        FedGraphError, match=r"resume=runs/mine: client 0 has the file of another link run, .* restore the file"
    ):
        check_descriptions({"0": {"link": 6}}, before, "runs/mine")


@pytest.mark.parametrize("own", ["strategy.private=[head.]", "strategy.shared=[convs.]"])
def test_a_run_whose_clients_have_parameters_of_their_own_is_not_evaluated(own):
    with pytest.raises(FedGraphError, match="cannot predict new nodes by another set-up"):
        check_method(compose(["strategy=fedgcn", "evaluate=runs/mine", own]))
    check_method(compose(["strategy=fedgcn", "evaluate=runs/mine"]))


@pytest.mark.parametrize("method", ["fedstruct", "fedstruct_private", "fedstruct_a", "fedsage", "fedgl", "feddep"])
def test_a_method_that_cannot_predict_new_nodes_says_what_to_do(method):
    """Their features are learned per node, or what generated neighbours and edges is not kept after training."""
    with pytest.raises(FedGraphError, match=r"use `fedgraph-flwr predict` with its run, or repeat the run"):
        check_method(compose([f"strategy={method}", "evaluate=runs/mine"]))


def test_folders_of_runs_are_absolute_for_servers_that_run_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = with_folder(compose(["strategy=fedgcn", "evaluate=runs/mine", "out=runs/again"]))
    assert (cfg.evaluate, cfg.out, cfg.resume) == (str(tmp_path / "runs/mine"), str(tmp_path / "runs/again"), "")
    assert with_folder(compose(["resume=runs/mine"])).resume == str(tmp_path / "runs/mine")
    assert with_folder(compose(["graph=parts", "out=run"])).graph == str(
        tmp_path / "parts"
    )  # read later from elsewhere


def test_evaluation_leaves_the_trained_run_and_needs_one(tmp_path):
    out = tmp_path / "run"
    run_inline(with_folder(compose(["strategy=fedgcn", "dataset=csbm", "num_clients=2", "rounds=1", f"out={out}"])))
    again = compose([f"evaluate={out}", f"out={out}", "overwrite=true"], out / "config.yaml")
    with pytest.raises(FedGraphError, match="reads the folder that out= would replace"):
        run_inline(again)
    assert (out / "model_final.safetensors").is_file()
    with pytest.raises(FedGraphError, match="holds no finished run"):
        run_inline(compose([f"evaluate={tmp_path}", f"out={tmp_path / 'other'}"], out / "config.yaml"))
    assert not (tmp_path / "other").exists()

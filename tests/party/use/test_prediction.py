"""A finished run's network predicts as it was scored: for every method, of a run's folder, of a node's state, from tables."""

import io
import json
import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

import fedgraph_flwr as fg
from fedgraph_flwr import cli, partition
from fedgraph_flwr.config import compose
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.data.graph import ClientGraph, Graph
from fedgraph_flwr.data.schema import Schema, feature_names
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.launch.checks import rebuilds
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.party.tables.reading import read_table
from fedgraph_flwr.party.tables.roles import Columns
from fedgraph_flwr.party.use.predict import Predictions, TargetPredictions, load_node, load_predictor
from fedgraph_flwr.party.use.prediction_input import check_scaling, tables
from tests.methods.small_runs import METHODS, sampled
from tests.party import banks


def losses(predictor) -> list[float]:
    """The test loss of each client of the predictor's own graph."""
    graph, logits = predictor.client_graph, predictor.logits(predictor.client_graph).double()
    part = graph.part if len(graph.part) else torch.zeros_like(graph.y)
    chosen = [graph.test_mask & (part == p) for p in range(int(part.max()) + 1)]
    return [float(torch.nn.functional.cross_entropy(logits[nodes], graph.y[nodes])) for nodes in chosen]


@pytest.mark.parametrize("method", sampled(METHODS))
def test_every_method_predicts_its_own_nodes_as_they_were_scored(go, method):
    finished = go(method)
    clients = range(1 if finished.cfg.strategy.pooled else 3)
    if needed := locate(finished.cfg.strategy.client).needs_others(finished.cfg):
        predictor = load_predictor(finished.out, 0)
        again = r"evaluate the run \(`run evaluate=RUN`\)" if rebuilds(finished.cfg) else "repeat the run"
        with pytest.raises(
            FedGraphError,
            match=rf"strategy={method} cannot predict new nodes without the other clients.*: {needed}: {again}",
        ):
            predictor.predict(load_predictor(finished.out, 1).client_graph)
        with pytest.raises(
            FedGraphError,
            match=rf"strategy={method} cannot predict without the other clients: {needed}: pass --client I",
        ):
            load_predictor(finished.out).predict(predictor.client_graph)
    for at, column in (("best", "best_val"), ("last", "last")):
        client_losses = [loss for client in clients for loss in losses(load_predictor(finished.out, client, at))]
        assert np.mean(client_losses) == pytest.approx(finished.summary["metrics"][column]["test_loss"], rel=1e-12), at


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Three banks' client files by one schema, a run on them, and a party's own tables."""
    place = tmp_path_factory.mktemp("banks")
    paths = banks.write(place, customers=120)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAPH_DATA", str(place / "root"))
        for number, (letter, (nodes, edges)) in enumerate(paths.items()):
            overrides = [
                "--nodes",
                nodes,
                "--edges",
                edges,
                "columns.split=part",
                "--undirected",
                "scales.income=log",
            ]
            overrides += ["--schema", place / "schema.yaml", "--client", number, "--num-clients", 3]
            overrides += [] if letter != "a" else ["--classes", "ok,fraud"]
            assert (
                cli.main(
                    ["import", *map(str, overrides), "--out", str(place / f"parts/client_{number:04d}.safetensors")]
                )
                == 0
            )
        overrides = [f"graph={place / 'parts'}", "strategy=ditto", "rounds=2", f"out={place / 'run'}"]
        assert cli.main(["run", *overrides, "--quiet", "--no-report"]) == 0
        yield place


def test_tables_become_what_the_client_file_holds(imported):
    """Own statistics, though the schema has none; both directions, as in the import; labels may lack."""
    predictor = load_predictor(imported / "run", 1)
    nodes = imported / "b_customers.csv"
    graph, ids = tables(nodes, imported / "b_payments.csv", Columns(), predictor.input_spec)
    assert torch.equal(graph.x, predictor.client_graph.x)
    assert torch.equal(graph.edge_index, predictor.client_graph.edge_index)
    table = read_table(nodes).drop(columns=["label"])
    table[table.columns[::-1]].to_csv(imported / "unlabelled.csv", index=False)
    bare, _ = tables(imported / "unlabelled.csv", imported / "b_payments.csv", Columns(), predictor.input_spec)
    assert torch.equal(bare.x, graph.x)
    assert (bare.y == -1).all()
    predictions, expected = predictor.predict(bare, ids), predictor.predict(predictor.client_graph)
    assert torch.equal(predictions.logits, expected.logits)
    assert list(predictions.to_frame().columns) == ["id", "p_ok", "p_fraud", "class"]
    assert list(predictions.ids[:2]) == ["b00000", "b00001"]
    pyg = expected.probabilities
    assert np.array_equal(predictor.predict(graph.to_pyg()).probabilities, pyg)


def test_a_label_or_split_that_the_model_does_not_know_is_predicted(imported, caplog):
    predictor = load_predictor(imported / "run", 1)
    table = read_table(imported / "b_customers.csv")
    expected, _ = tables(imported / "b_customers.csv", imported / "b_payments.csv", Columns(), predictor.input_spec)
    table.loc[[3, 5], "label"] = "chargeback"
    table["part"] = "today"  # a column of the import that tables to predict need not follow
    table.to_csv(path := imported / "new_labels.csv", index=False)
    graph, ids = tables(path, imported / "b_payments.csv", Columns(split="part"), predictor.input_spec)
    assert caplog.text.count("2 rows have a label that the model does not know, such as 'chargeback' in row 4") == 1
    assert graph.y[[3, 5]].tolist() == [-1, -1]
    assert torch.equal(graph.y[6:], expected.y[6:])
    assert torch.equal(predictor.predict(graph, ids).logits, predictor.predict(expected, ids).logits)


def test_the_shared_model_does_not_know_whose_statistics_to_take(imported):
    predictor = load_predictor(imported / "run")
    with pytest.raises(FedGraphError, match=r"no shared statistics of column 'age' \(scaling local\): pass --client"):
        tables(imported / "b_customers.csv", imported / "b_payments.csv", Columns(), predictor.input_spec)


def test_the_command_writes_names_and_obeys_the_threshold(imported, capsys):
    args = ["predict", str(imported / "run"), "--client", "0", "--nodes", str(imported / "a_customers.csv")]
    args += ["--edges", str(imported / "a_payments.csv"), "--out"]
    assert cli.main([*args, str(imported / "p.csv")]) == 0
    printed = capsys.readouterr().out
    assert "ditto, the model of client 0 of round" in printed
    table = pd.read_csv(imported / "p.csv")
    predictor = load_predictor(imported / "run", 0)
    assert ((table["class"] == "fraud") == (table["p_fraud"] >= predictor.threshold - 1e-9)).all()
    assert f"'fraud' if its probability is at least {predictor.threshold:.3g}" in printed
    assert cli.main([*args, str(imported / "p.parquet"), "--threshold", "0.5"]) == 0
    table = pd.read_parquet(imported / "p.parquet")
    assert ((table["class"] == "fraud") == (table["p_fraud"] >= 0.5)).all()
    assert json.loads((imported / "run" / "summary.json").read_text())["classes"] == ["ok", "fraud"]


def test_the_threshold_is_the_one_that_f1_at_threshold_is_of(imported):
    predictor = load_predictor(imported / "run", 2)
    graph, predictions = predictor.client_graph, predictor.predict(predictor.client_graph)
    items = metrics.Scored(graph.y, {"val": graph.val_mask, "test": graph.test_mask})
    scored = items.score(predictions.logits, ("f1_at_threshold",))["test-f1_at_threshold"][0]
    guess, y = predictions.codes[graph.test_mask.numpy()] == 1, graph.y[graph.test_mask].numpy() == 1
    assert scored == pytest.approx(2 * (guess & y).sum() / (guess.sum() + y.sum()))


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["nowhere"], "nowhere holds no finished run: expected config.yaml and summary.json"),
        ([], "no model selected: pass RUN, a run folder or a party's state folder"),
        (["{run}", "--client", "3"], "has no client 3: expected 0..2"),
        (["{run}", "--round", "first"], "round 'first' is unknown; expected one of: best, last"),
        (["{run}"], "no input: pass --nodes FILE and --edges FILE, --graph FILE, or --client I"),
        (["{run}", "--nodes", "a.csv"], "both --nodes FILE and --edges FILE, or --graph FILE"),
        (["{run}", "--client", "0", "--out", "p.txt"], "p.txt has an unknown suffix"),
        (["{run}", "--client", "0", "--threshold", "2"], "--threshold must be in [0, 1] and needs two classes, got 2"),
        (["{run}", "--client", "0", "--nodes", "{lacks}", "--edges", "{edges}"], "has no column 'balance' (number)"),
    ],
)
def test_a_wrong_question_gets_a_sentence(imported, capsys, args, sentence):
    lacks = imported / "lacks.csv"
    read_table(imported / "a_customers.csv").drop(columns=["balance"]).to_csv(lacks, index=False)
    places = {"run": imported / "run", "lacks": lacks, "edges": imported / "a_payments.csv"}
    assert cli.main(["predict", *(word.format(**places) for word in args)]) == 2
    assert sentence in capsys.readouterr().err


def test_a_run_whose_client_files_have_moved_says_where_it_looked(imported, tmp_path, capsys):
    shutil.copytree(imported / "run", tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(re.sub("(?m)^graph: .*$", "graph: moved", config.read_text()))
    assert cli.main(["predict", str(tmp_path / "run"), "--client", "0"]) == 2
    assert "client 0's graph is not in moved: restore its file" in capsys.readouterr().err


def test_another_number_of_features_is_named(imported):
    predictor = load_predictor(imported / "run", 0)
    graph = predictor.client_graph
    less = Graph(graph.x[:, 1:], graph.edge_index, graph.y, graph.train_mask, graph.val_mask, graph.test_mask, 2)
    width = graph.num_features
    with pytest.raises(
        FedGraphError,
        match=rf"trained on {width} features, and the graph has {width - 1}: .* \(age, age missing, .*, online\)",
    ):
        predictor.predict(less)


def raw(imported):
    """Bank b's nodes and edges as a user builds a PyG object from its tables: numbers in their units, no schema."""
    graph = load_predictor(imported / "run", 1).client_graph
    schema = graph.schema["fitted"]["nodes"]["node"]
    x, names = graph.x.clone(), feature_names(Schema.from_dict(graph.schema["fitted"], "b").nodes["node"])
    for name in ("age", "balance"):
        statistics = schema[name]["statistics"]
        x[:, names.index(name)] = x[:, names.index(name)] * statistics["spread"] + statistics["center"]
    return Data(x=x, edge_index=graph.edge_index), Data(x=graph.x, edge_index=graph.edge_index)


def test_features_whose_scaling_is_unknown_are_refused(imported, tmp_path, capsys):
    """A PyG object in the units of the tables gives other predictions than the tables: the user says that it is scaled."""
    run, (given, scaled) = fg.load_run(imported / "run"), raw(imported)
    probabilities = run.predict(client=1).probabilities
    sentence = (
        r"the graph does not say how its features are scaled, and .*run was trained on scaled columns \('age' and"
    )
    for call in (run.predict, lambda *of, **more: run.model(**more)(*of)):
        with pytest.raises(
            FedGraphError, match=sentence + ".* or pass scaled=True if its features are scaled as in training"
        ):
            call(given, client=1)
    with pytest.raises(FedGraphError, match=sentence):
        run.predict(given)  # the shared model, whose parties have statistics of their own
    assert np.array_equal(run.predict(scaled, client=1, scaled=True).probabilities, probabilities)
    assert np.abs(run.predict(given, client=1, scaled=True).probabilities - probabilities).max() > 0.05
    logits = run.model(1, scaled=True)(scaled.x, scaled.edge_index).detach()
    np.testing.assert_allclose(logits.double().softmax(1), probabilities, rtol=0, atol=1e-6)
    bare = replace(run._client_graph(1), schema={})
    with pytest.raises(FedGraphError, match=sentence):
        run.predict(bare, client=1)
    assert np.array_equal(run.predict(run._client_graph(1), client=1).probabilities, probabilities)
    torch.save(scaled, tmp_path / "new.pt")
    bare.save(tmp_path / "new.safetensors")
    for path in (tmp_path / "new.pt", tmp_path / "new.safetensors"):
        args = [
            "predict",
            str(imported / "run"),
            "--client",
            "1",
            "--graph",
            str(path),
            "--out",
            str(tmp_path / "p.csv"),
        ]
        assert cli.main(args) == 2
        error = capsys.readouterr().err
        assert f"{path} does not say how its features are scaled" in error
        assert "pass its tables (such as --nodes FILE --edges FILE), or --scaled if" in error
        assert cli.main([*args, "--scaled"]) == 0
        np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")["p_fraud"], probabilities[:, 1], rtol=1e-12)
    assert cli.main(["predict", str(imported / "run"), "--client", "1", "--scaled"]) == 2
    assert "--scaled describes the features of --graph FILE" in capsys.readouterr().err


def test_a_file_with_other_statistics_is_named(imported, caplog):
    """Where parties have their own, it is a warning, else an error; columns that nobody scaled are not compared."""
    spec = load_predictor(imported / "run", 1).input_spec
    own_graph, other = (ClientGraph.load(imported / f"parts/client_{client:04d}.safetensors") for client in (1, 0))
    check_scaling(own_graph, spec, "new")
    assert not caplog.text
    check_scaling(other, spec, "new")
    ages = [graph.schema["fitted"]["nodes"]["node"]["age"]["statistics"]["center"] for graph in (other, own_graph)]
    assert "new is scaled otherwise than the features of" in caplog.text
    assert re.search(rf"'age' has center {ages[0]:.6g}, .*in training center {ages[1]:.6g}", caplog.text)
    caplog.clear()
    check_scaling(other, load_predictor(imported / "run").input_spec, "new")  # each by its own, as in training
    check_scaling(other, replace(spec, scaled=True), "new")
    assert "scaled otherwise" not in caplog.text
    shared = replace(spec, schema=replace(spec.schema, scaling="federated"))
    for graph, what in (
        (other, "'age' has center"),
        (changed(own_graph, scaling="none"), "'age' is scaled only in training"),
    ):
        with pytest.raises(FedGraphError, match=f"new is scaled otherwise.*: column {what}"):
            check_scaling(graph, shared, "new")
    with pytest.raises(FedGraphError, match="'age' is scaled only there"):
        check_scaling(own_graph, replace(spec, schema=replace(spec.schema, scaling="none")), "new")
    check_scaling(changed(own_graph, scaling="none"), replace(spec, schema=replace(spec.schema, scaling="none")), "new")
    check_scaling(changed(own_graph, scaling="federated"), shared, "new")
    fleet = replace(spec, schema=None, of_fleet=True)
    check_scaling(own_graph, fleet, "new")
    assert "read as it is" not in caplog.text
    check_scaling(replace(own_graph, schema={}), fleet, "new")
    assert "new is read as it is" in caplog.text


def changed(graph, **values):
    """A graph whose schema has other values."""
    schema = {key: {**part, **values} if key == "fitted" else part for key, part in graph.schema.items()}
    return replace(graph, schema=schema)


def test_private_parameters_need_a_client(go):
    finished = go("fedper")
    shared, graph = load_predictor(finished.out), load_predictor(finished.out, 0).client_graph
    with pytest.raises(FedGraphError, match=r"has no head\..*, which each client keeps private: pass --client 0..2"):
        shared.predict(graph)
    with pytest.raises(FedGraphError, match=r"each client keeps private: pass client=0 \(0..2\)"):
        fg.load_run(finished.out).predict(graph)


def test_probabilities_by_hand(tmp_path):
    predictions = Predictions(
        np.array(["x", "y"]), torch.tensor([[0.0, math.log(3)], [math.log(4), 0.0]]), ("no", "yes")
    )
    np.testing.assert_allclose(predictions.probabilities, [[0.25, 0.75], [0.8, 0.2]], rtol=1e-6)
    assert list(predictions.labels) == ["yes", "no"]
    predictions.threshold = 0.15
    assert list(predictions.labels) == ["yes", "yes"]
    predictions.write(tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text().splitlines()[0] == "id,p_no,p_yes,class"


@pytest.mark.parametrize("method", ["apfl", "local"])
def test_a_party_predicts_with_what_its_node_has_kept(method, imported, tmp_path, monkeypatch, capsys):
    """Every message meets another process, as on a fleet; then the server and all it had is gone."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("min_nodes: 0\n")  # all test nodes are scored, as in a prediction

    def call(self, message):
        node = message.metadata.dst_node_id
        graph = imported / "parts" / f"client_{node - 1:04d}.safetensors"
        config = {"graph": graph, "state": tmp_path / f"state_{node - 1}", "policy": policy}
        self.contexts[node].node_config = {key: str(path) for key, path in config.items()}
        node_clients.forget(self.run_id)
        return self.app(message, self.contexts[node])

    monkeypatch.setattr(InlineGrid, "_call", call)
    overrides = [
        f"graph={imported / 'parts'}",
        f"strategy={method}",
        "num_clients=3",
        "rounds=3",
        "model.hidden=8",
        f"out={tmp_path / 'run'}",
    ]
    cfg = with_folder(compose(overrides))
    summary = run_inline(cfg)
    shutil.rmtree(tmp_path / "run")
    for at, column in (("best", "best_val"), ("last", "last")):
        parties = [load_node(tmp_path / f"state_{client}", at) for client in range(3)]
        assert [party.client for party in parties] == [0, 1, 2]
        mean_loss = np.mean([loss for party in parties for loss in losses(party)])
        assert mean_loss == pytest.approx(summary["metrics"][column]["test_loss"], rel=1e-12)
    overrides = ["--node", str(tmp_path / "state_2"), "--nodes", str(imported / "c_customers.csv")]
    capsys.readouterr()
    assert cli.main(["predict", *overrides, "--edges", str(imported / "c_payments.csv")]) == 0
    table = pd.read_csv(io.StringIO(capsys.readouterr().out))
    best = load_node(tmp_path / "state_2")
    np.testing.assert_allclose(table["p_fraud"], best.predict(best.client_graph).probabilities[:, 1], rtol=1e-12)


def test_a_run_that_stops_early_keeps_what_was_scored(imported, tmp_path):
    """Clients have trained on when the server finds that no round was better."""
    overrides = [
        f"graph={imported / 'parts'}",
        "num_clients=3",
        "strategy=fedper",
        "rounds=30",
        "evaluation.patience=2",
        "train.lr=0.5",
    ]
    cfg = with_folder(compose([*overrides, f"out={tmp_path / 'run'}"]))
    summary = run_inline(cfg)
    assert summary["rounds"] < 30
    for at, column in (("best", "best_val"), ("last", "last")):
        mean_loss = np.mean([losses(load_predictor(tmp_path / "run", client, at))[0] for client in range(3)])
        assert mean_loss == pytest.approx(summary["metrics"][column]["test_loss"], rel=1e-12), at


def test_each_client_of_a_run_may_choose_its_own_best_round(imported, tmp_path):
    overrides = [
        f"graph={imported / 'parts'}",
        "num_clients=3",
        "strategy=fedavg",
        "rounds=6",
        "evaluation.select=own_best_val",
        "train.lr=0.3",
    ]
    summary = run_inline(with_folder(compose([*overrides, f"out={tmp_path / 'run'}"])))
    predictors = [load_predictor(tmp_path / "run", client) for client in range(3)]
    mean_loss = np.mean([losses(predictor)[0] for predictor in predictors])
    assert mean_loss == pytest.approx(summary["metrics"]["own_best_val"]["test_loss"], rel=1e-12)


def test_scores_that_clients_keep_to_themselves_leave_the_last_model(imported, tmp_path):
    overrides = [f"graph={imported / 'parts'}", "num_clients=3", "strategy=fedper", "rounds=2", "privacy.scores=none"]
    run_inline(with_folder(compose([*overrides, f"out={tmp_path / 'run'}"])))
    predictor = load_predictor(tmp_path / "run", 1)
    assert (predictor.round, len(losses(predictor))) == (2, 1)


def test_a_run_of_other_peoples_names_no_code_but_clients(go):
    """A folder that somebody sends says which class predicts."""
    finished = go("fedavg", "rounds=1")
    path = finished.out / "config.yaml"
    stored = path.read_text()
    path.write_text(stored.replace(finished.cfg.strategy.client, "subprocess:Popen"))
    assert path.read_text() != stored
    with pytest.raises(FedGraphError, match=r"strategy\.client=subprocess:Popen is not a client"):
        load_predictor(finished.out, 0).predict(partition.load_client(finished.cfg, 0))


def test_predictions_of_numbers_have_no_classes():
    predictions = TargetPredictions(np.arange(2), np.zeros((2, 1)), ("price",))
    for name in ("labels", "codes", "probabilities"):
        with pytest.raises(AttributeError, match="TargetPredictions have no classes"):
            getattr(predictions, name)

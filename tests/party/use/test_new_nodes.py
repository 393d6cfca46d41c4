"""Predictions with the party's own ids and classes: of its stored graph, and of new nodes whose edges name stored ones."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.common.serde import recorddict_to_proto

from fedgraph_flwr import cli
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import ClientGraph, Graph, read_tensors, write_tensors
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.serving import with_folder
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.party.tables.roles import Columns
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.party.use.prediction_input import new_nodes, tables
from tests.party import banks


def go(*overrides):
    return cli.main([*map(str, overrides)])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three banks' client files, a run on them, an export, and new customers of bank a who pay existing ones."""
    place = tmp_path_factory.mktemp("new")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAPH_DATA", str(place / "root"))
        for number, (nodes, edges) in enumerate(banks.write(place, customers=120).values()):
            overrides = ["--nodes", nodes, "--edges", edges, "--schema", place / "schema.yaml", "--client", number]
            overrides += ["--classes", "ok,fraud", "--undirected", "columns.split=part"] if number == 0 else []
            out = place / f"parts/client_{number:04d}.safetensors"
            assert go("import", *overrides, "--num-clients", 3, "--out", out) == 0
        overrides = [f"graph={place / 'parts'}", "rounds=2", "model.dropout=0", f"out={place / 'run'}"]
        assert go("run", *overrides, "--quiet", "--no-report") == 0
        assert go("export", place / "run", "--client", 0, "--out", place / "exported") == 0
        people, payments = banks.module().bank("a", 20, seed=5)
        people["id"] = people["id"].str.replace("a", "new")
        payments[["source", "target"]] = payments[["source", "target"]].apply(lambda ids: ids.str.replace("a", "new"))
        known = pd.DataFrame({"source": ["new00000", "a00007"], "target": ["a00003", "new00001"]})
        people.drop(columns=["label", "part"]).to_csv(place / "new.csv", index=False)
        pd.concat([payments, known]).to_csv(place / "paid.csv", index=False)
        payments.to_csv(place / "among.csv", index=False)
        yield place


def test_a_party_sees_its_own_ids(place, tmp_path):
    assert go("predict", place / "run", "--client", 1, "--out", tmp_path / "p.csv") == 0
    assert pd.read_csv(tmp_path / "p.csv")["id"].tolist() == pd.read_csv(place / "b_customers.csv")["id"].tolist()
    graph = place / "parts/client_0001.safetensors"
    assert go("predict", place / "exported", "--graph", graph, "--out", tmp_path / "q.csv") == 0
    assert pd.read_csv(tmp_path / "q.csv")["id"].tolist()[:2] == ["b00000", "b00001"]


def test_ids_leave_in_no_message(place, tmp_path, monkeypatch):
    sent = []
    call = InlineGrid._call

    def heard(self, message):
        reply = call(self, message)
        sent.extend(recorddict_to_proto(m.content).SerializeToString() for m in (message, reply) if m.has_content())
        return reply

    monkeypatch.setattr(InlineGrid, "_call", heard)
    run_inline(
        with_folder(compose([f"graph={place / 'parts'}", "num_clients=3", "rounds=2", f"out={tmp_path / 'run'}"]))
    )
    assert len(sent) > 6
    ids = ClientGraph.load(place / "parts/client_0001.safetensors").ids.numpy().tobytes()
    assert b"b00001" in ids
    assert not [number for number, content in enumerate(sent) if b"b00001" in content]
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or b"b00001" not in path.read_bytes(), path


def test_new_nodes_are_predicted_in_the_stored_graph(place, tmp_path, capsys):
    overrides = ["--nodes", place / "new.csv", "--edges", place / "paid.csv", "--out"]
    assert go("predict", place / "run", "--client", 0, *overrides, tmp_path / "p.csv") == 0
    assert "20 nodes joined to the 120 nodes of client 0's stored graph" in capsys.readouterr().err
    predictions = pd.read_csv(tmp_path / "p.csv")
    assert predictions["id"].tolist() == [f"new{i:05d}" for i in range(20)]
    # By hand: the two graphs side by side, and the payments between them in both directions.
    predictor = load_predictor(place / "run", 0)
    stored_graph = predictor.client_graph
    alone, ids = tables(place / "new.csv", place / "among.csv", Columns(), predictor.input_spec)
    names = [*(f"a{i:05d}" for i in range(120)), *ids]
    ends = [[names.index(word) for word in pair] for pair in (("new00000", "a00003"), ("a00007", "new00001"))]
    between = torch.tensor([*ends, *(end[::-1] for end in ends)]).T
    none = torch.zeros(140, dtype=torch.bool)
    edges = torch.cat([stored_graph.edge_index, alone.edge_index + 120, between], dim=1)
    both = Graph(torch.cat([stored_graph.x, alone.x]), edges, torch.full((140,), -1), none, none, none, 2)
    expected = predictor.predict(both).probabilities[120:, 1]
    np.testing.assert_allclose(predictions["p_fraud"], expected, rtol=0, atol=1e-6)
    assert np.abs(predictor.predict(alone).probabilities[:, 1] - expected)[:2].max() > 1e-4
    # An export holds no graph of the party: it is named.
    assert go("predict", place / "exported", *overrides, tmp_path / "q.csv") == 2
    assert "names 'a00007', which is not an id of" in (error := capsys.readouterr().err)
    assert "pass --client I or --graph FILE to name the graph that contains it" in error
    graph = place / "parts/client_0000.safetensors"
    assert go("predict", place / "exported", "--graph", graph, *overrides, tmp_path / "q.csv") == 0
    again = pd.read_csv(tmp_path / "q.csv")
    np.testing.assert_allclose(again["p_fraud"], expected, rtol=0, atol=1e-6)
    assert again["id"].tolist() == predictions["id"].tolist()


def test_new_nodes_that_pay_each_other_only_are_predicted_alone(place):
    predictor = load_predictor(place / "run", 0)
    additions = new_nodes(
        place / "new.csv", place / "among.csv", Columns(), predictor.input_spec, predictor.client_graph
    )
    assert (additions.graph.num_nodes, additions.note) == (20, "")


def test_a_row_of_a_stored_node_replaces_its_features(place, tmp_path):
    people = pd.read_csv(place / "new.csv")
    people.loc[5, "id"] = "a00003"
    people.to_csv(tmp_path / "new.csv", index=False)
    pd.DataFrame({"source": ["new00000"], "target": ["a00003"]}).to_csv(tmp_path / "e.csv", index=False)
    pd.DataFrame({"source": ["new00000"], "target": ["a00007"]}).to_csv(tmp_path / "f.csv", index=False)
    predictor = load_predictor(place / "run", 0)
    with pytest.raises(
        FedGraphError,
        match=r"f\.csv names 'a00007', which is not an id of .*new\.csv: here does not store node ids",
    ):
        new_nodes(
            tmp_path / "new.csv",
            tmp_path / "f.csv",
            Columns(),
            predictor.input_spec,
            bare(predictor.client_graph),
            "here",
        )
    alone = new_nodes(tmp_path / "new.csv", tmp_path / "e.csv", Columns(), predictor.input_spec, predictor.client_graph)
    additions = new_nodes(
        tmp_path / "new.csv", tmp_path / "f.csv", Columns(), predictor.input_spec, predictor.client_graph, "here"
    )
    assert (additions.graph.num_nodes, additions.rows[5], additions.ids[3]) == (139, 3, "a00003")
    assert torch.equal(additions.graph.x[3], alone.graph.x[5])
    assert "20 nodes, 1 of which replace stored ones, joined to the 120 nodes of here" in additions.note


def bare(graph):
    from dataclasses import replace

    return replace(graph, ids=graph.ids[:0])


def test_classes_are_those_that_the_schema_names(place, tmp_path, capsys):
    """Of a run whose folder knows none, as a fleet's server's."""
    path = place / "run" / "input_spec.json"
    stored = path.read_bytes()
    spec = json.loads(stored) | {"classes": ["0", "1"], "schema": {}}
    path.write_text(json.dumps(spec))
    try:
        graph = ["--graph", place / "parts/client_0000.safetensors"]
        assert go("predict", place / "run", *graph, "--out", tmp_path / "p.csv") == 0
        assert list(pd.read_csv(tmp_path / "p.csv").columns) == ["id", "p_ok", "p_fraud", "class"]
        assert "classes: ok " in capsys.readouterr().out
        assert go("predict", place / "run", *graph, "--schema", place / "schema.yaml") == 2
        assert "--schema is gone: pass a client file by --graph" in capsys.readouterr().err
    finally:
        path.write_bytes(stored)


def test_predict_counts_unseen_categories(place, tmp_path, caplog):
    people = pd.read_csv(place / "new.csv")
    people["trade"] = "crypto"
    people.to_csv(tmp_path / "new.csv", index=False)
    overrides = ["--nodes", tmp_path / "new.csv", "--edges", place / "among.csv", "--out", tmp_path / "p.csv"]
    for source in (["run", "--client", 0], ["exported"]):
        caplog.clear()
        assert go("predict", place / source[0], *source[1:], *overrides) == 0
        assert "20 of 20 rows have a value of 'trade' that" in caplog.text
        assert "and become 'other': 'crypto' 20; it lists clerk" in caplog.text


def test_predict_obeys_the_stored_layout_and_a_partys_file(place, tmp_path, capsys):
    """Names and formats of a client's own file, and names of a party's file over them; options of columns are of `import`."""
    people, payments = pd.read_csv(place / "a_customers.csv"), pd.read_csv(place / "a_payments.csv")
    people = people.rename(columns={"id": "kunde", "label": "status"})
    people["income"] = [f"{value:,.2f}".translate(str.maketrans(",.", ".,")) for value in people["income"].fillna(0)]
    people.to_csv(tmp_path / "k.csv", sep=";", index=False, encoding="utf-16")
    payments.rename(columns={"source": "von", "target": "an"}).to_csv(tmp_path / "z.csv", sep="\t", index=False)
    names = ["columns.id=kunde", "columns.label=status", "columns.source=von", "columns.target=an"]
    overrides = ["--nodes", tmp_path / "k.csv", "--edges", tmp_path / "z.csv"]
    out = tmp_path / "parts/client_0000.safetensors"
    client = ["--classes", "ok,fraud", "columns.split=part", "--client", 0, "--num-clients", 1, "--out", out]
    assert go("import", *overrides, *names, *client) == 0
    run = [f"graph={tmp_path / 'parts'}", "rounds=1", f"out={tmp_path / 'run'}", "--quiet", "--no-report"]
    assert go("run", *run) == 0
    predictor = load_predictor(tmp_path / "run", 0)
    expected = predictor.predict(predictor.client_graph).probabilities[:, 1]
    for options in ([], ["--client", 0]):
        assert go("predict", tmp_path / "run", *options, *overrides, "--out", tmp_path / "p.csv") == 0
        predictions = pd.read_csv(tmp_path / "p.csv")
        np.testing.assert_allclose(predictions["p_fraud"], expected, rtol=0, atol=1e-6)
        assert predictions["id"].tolist() == people["kunde"].tolist()
    people.rename(columns={"kunde": "k"}).to_csv(tmp_path / "o.csv", index=False)
    overrides[1] = tmp_path / "o.csv"
    (tmp_path / "party.yaml").write_text("party: a\nnodes: o.csv\nedges: z.csv\ncolumns: {id: k}\n")
    words = ["predict", tmp_path / "run", *overrides, "--out", tmp_path / "p.csv"]
    assert go(*words, "--party-file", tmp_path / "party.yaml") == 0
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")["p_fraud"], expected, rtol=0, atol=1e-6)
    capsys.readouterr()
    for option in ("--id-column", "--date-format", "--windows"):
        assert go(*words, option, "k") == 2
        assert f"{option} is for `import`" in capsys.readouterr().err


def test_a_client_file_with_other_ids_than_nodes_is_refused(place, tmp_path):
    tensors, values = read_tensors(place / "parts/client_0000.safetensors")
    tensors["ids"] = tensors["ids"][:5]
    write_tensors(tmp_path / "client_0000.safetensors", tensors, values)
    from fedgraph_flwr.partition import store

    with pytest.raises(FedGraphError, match=r"ids must be torch.uint8 \[120, any\], got torch.uint8 \[5, 6\]"):
        store.load(tmp_path / "client_0000.safetensors")

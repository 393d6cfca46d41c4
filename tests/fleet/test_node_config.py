"""Settings of a SuperNode (``--node-config``): their effect, and the error message of each wrong value."""

import re
from pathlib import Path

import pytest
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError, RunFailed


@pytest.fixture
def nodes(run, monkeypatch, tmp_path):
    """``nodes(FIRST, SECOND, ...)(*words)`` runs on nodes with these configs beside their graphs, as on a fleet."""
    files = [Path(run("rounds=1").cfg.graph) / f"client_{i:04d}.safetensors" for i in range(3)]
    start = InlineGrid.__init__

    def on(*configs):
        def configured(self, *args, **kwargs):
            start(self, *args, **kwargs)
            self.contexts = dict(list(self.contexts.items())[: len(configs)])
            for context, file, config in zip(self.contexts.values(), files, configs, strict=False):
                context.node_config = {"graph": str(file)} | config

        def go(*overrides):
            with monkeypatch.context() as patch:
                patch.setattr(InlineGrid, "__init__", configured)
                return run("rounds=2", "model.dropout=0", *overrides)

        return go

    return on


def test_threads_are_those_of_the_node_else_those_of_the_run(nodes, monkeypatch):
    seen, train = {}, GraphClient.train

    def spy(self):
        seen.setdefault(self.graph.client, []).append(torch.get_num_threads())
        return train(self)

    monkeypatch.setattr(GraphClient, "train", spy)
    nodes({"threads": 3}, {}, {"threads": 1})("threads=2")
    assert seen == {0: [3, 3], 1: [2, 2], 2: [1, 1]}


def test_the_device_is_that_of_the_node_else_that_of_the_run(nodes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    nodes({"device": "cpu"}, {"device": "auto"}, {"device": "cpu"})("device=cuda")
    with pytest.raises(RunFailed, match=r"2 of 3 clients registered; node 2: device=cuda, but this node has no"):
        nodes({}, {"device": "cuda"}, {})()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"graph": "HERE/nothing"}, "no such file: <graph>; expected one written by"),
        ({"graph": "HERE/cut"}, "cannot read <graph>, it is truncated"),
        ({"graph": "HERE/other"}, "<graph> contains a Graph, expected a client's graph"),
        ({"graph": "HERE/none.yaml"}, "<graph> cannot be read as a party's file"),
        ({"graph": "HERE/party.yaml"}, "no such file: <graph>; expected one written by"),
        ({"grpah": "x"}, "key 'grpah' is unknown (in --node-config); did you mean 'graph'?"),
        ({"state": "HERE/cut/state"}, "cannot write to the folder state=<state> of --node-config: Not a directory"),
        ({"device": "gpu"}, "device 'gpu' is unknown; its name here is cuda"),
        ({"threads": 0}, "threads=0 of --node-config: expected a whole number from 1 to 256"),
        ({"threads": "two"}, "threads=two of --node-config: expected a whole number"),
        ({"threads": 1.5}, "threads=1.5 of --node-config: expected a whole number"),
    ],
)
def test_a_wrong_value_is_a_sentence_on_the_server_and_with_its_path_on_the_node(
    nodes, tmp_path, caplog, config, message
):
    from fedgraph_flwr.data.graph import Graph
    from tests.conftest import client_graph

    (tmp_path / "party.yaml").write_text("party: a\nnodes: n.csv\nedges: e.csv\nout: hidden/a.safetensors\n")
    whole = client_graph(1)
    whole.save(tmp_path / "cut")
    (tmp_path / "cut").write_bytes((tmp_path / "cut").read_bytes()[:-7])
    Graph(*(getattr(whole, name) for name in list(Graph.__dataclass_fields__)[:7])).save(tmp_path / "other")
    wrong = {
        k: value.replace("HERE", str(tmp_path)) if isinstance(value, str) else value for k, value in config.items()
    }
    with pytest.raises(RunFailed, match=re.escape(f"2 of 3 clients registered; node 2: {message}")) as raised:
        nodes({}, wrong, {})()
    assert str(tmp_path) not in str(raised.value), "the server does not learn where a party keeps its files"
    for key in config:
        message = message.replace(f"<{key}>", str(wrong[key]))
    assert any(r.message.startswith(message) for r in caplog.records if r.levelname == "ERROR")


def test_a_node_that_was_told_nothing_hears_what_to_say(nodes):
    with pytest.raises(FedGraphError, match=r"0 of 3 clients registered; nodes 1, 2, 3: this node has no graph: start"):
        nodes({"graph": ""}, {"graph": ""}, {"graph": ""})()


def test_a_state_folder_that_cannot_be_written(nodes, tmp_path, monkeypatch):
    import os

    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("state"))  # tests may run as root
    with pytest.raises(RunFailed, match=r"node 3: cannot write to the folder state=<state> of --node-config"):
        nodes({}, {}, {"state": str(tmp_path / "state")})()


def test_two_nodes_with_one_graph(nodes, run):
    other = Path(run("rounds=1").cfg.graph) / "client_0000.safetensors"
    with pytest.raises(FedGraphError, match="nodes 1 and 3 both claim to be client 0: give each SuperNode its own"):
        nodes({}, {}, {"graph": str(other)})()


def test_too_few_nodes(nodes):
    with pytest.raises(
        RunFailed, match=r"2 of 3 nodes have joined: start more SuperNodes, or lower num_clients \(waited"
    ):
        nodes({}, {})("strategy.timeout=0.1")

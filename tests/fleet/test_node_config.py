"""Settings of a SuperNode (``--node-config``): their effect, and the error message of each wrong value."""

import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.fleet import metrics
from fedgraph_flwr.fleet.parties import keep_parties
from fedgraph_flwr.fleet.status import RunStatus, WatchedGrid, read_status
from fedgraph_flwr.launch.serving import serve


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


@pytest.fixture
def watched(monkeypatch, tmp_path):
    """The status of a run as a fleet's server watches it: nodes 1, 2 and 3 are of three banks."""
    (folder := tmp_path / "runs" / "first").mkdir(parents=True)
    nodes = [SimpleNamespace(node_id=number, name=f"bank_{number}", status="online") for number in (1, 2, 3)]
    keep_parties(folder.parent, nodes)
    status = RunStatus(folder, 5)
    watch = lambda grid, run, _: serve(WatchedGrid(grid, status), run, status.took_round)  # noqa: E731
    monkeypatch.setattr("fedgraph_flwr.launch.simulations.serve", watch)
    return lambda: metrics.exposition(metrics.of_runs({"first": read_status(folder)}, {}))


def test_a_run_that_all_nodes_refuse_is_counted_as_refused(nodes, watched, tmp_path):
    (policy := tmp_path / "policy.yaml").write_text("strategies: [fedprox]\n")
    with pytest.raises(FedGraphError, match="0 of 3 clients registered"):
        nodes(*[{"policy": str(policy)}] * 3)()
    for bank in ("bank_1", "bank_2", "bank_3"):
        assert f'fedgraph_failures_total{{party="{bank}",reason="refused"}} 1.0' in watched()


def test_a_failure_that_ends_a_run_is_counted_and_names_the_bank(nodes, watched, monkeypatch, tmp_path):
    train, rounds = GraphClient.train, Counter()

    def fail(self):
        rounds[self.graph.client] += 1
        if rounds[2] == 2:
            raise FedGraphError("the disk is full")
        return train(self)

    monkeypatch.setattr(GraphClient, "train", fail)
    why = r"round 2, train: 2 of 3 clients sent .*on_failure=fail\); client 2 \(bank_3\): .*the disk is full"
    with pytest.raises(RunFailed, match=why) as raised:
        nodes({}, {}, {})("strategy.on_failure=fail")
    (failure,) = tmp_path.glob("*/failure.json")
    assert json.loads(failure.read_text())["error"] == str(raised.value)
    page = watched()
    assert 'fedgraph_failures_total{party="bank_3",reason="error"} 1.0' in page
    assert 'fedgraph_failures_total{party="bank_1",reason="error"} 0.0' in page
    assert 'fedgraph_exchanges_total{phase="train"} 2.0' in page

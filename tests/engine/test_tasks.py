"""Tasks beyond classes of nodes train on parties' nodes with the parameters of the inline engine; a policy must list them."""

from dataclasses import replace

import pytest
import torch

from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.testing import same_result
from tests.conftest import client_graph
from tests.nodes import party_nodes
from tests.support import Finished

GENERATED = {
    "triples": ["dataset=planted-triples", "dataset.entities=16", "dataset.relations=4"],
    "graphs": ["dataset=cycles", "dataset.graphs=8"],
    "graphs-regression": ["dataset=planted-counts", "dataset.graphs=8"],
}
TASKS = ["nodes-regression", "nodes-multilabel", "links", *GENERATED]


def graphs_of(task):
    """Two clients' graphs for a task; those of nodes have two targets of 0 and 1 per node."""
    if task in GENERATED:
        cfg = compose([f"task={task}", "num_clients=2", *GENERATED[task]])
        return [load_client(cfg, client) for client in range(2)]
    graphs = [client_graph(client, 30) for client in range(2)]
    for client, graph in enumerate(graphs):
        targets = graph.x[:, :2] + torch.randn(30, 2, generator=torch.Generator().manual_seed(client)) > 0
        graphs[client] = replace(graph, targets=targets.float(), num_clients=2)
    return graphs


@pytest.fixture
def train(tmp_path):
    """``train(task, accepted)``: two rounds on the two clients; with a list of tasks, on nodes whose policies accept these."""

    def go(task, accepted=None):
        files = [tmp_path / "graphs" / f"client_{client:04d}.safetensors" for client in range(2)]
        for file, graph in zip(files, graphs_of(task), strict=True):
            graph.save(file)
        overrides = [f"graph={files[0].parent}", f"task={task}", "num_clients=2", "rounds=2", "model.hidden=8"]
        cfg = with_folder(compose([*overrides, f"out={tmp_path / ('nodes' if accepted else 'inline')}"]))
        with pytest.MonkeyPatch.context() as patch:
            if accepted:
                policy = tmp_path / "policy.yaml"
                policy.write_text(f"min_nodes: 0\ntasks: [{', '.join(accepted)}]\n")
                party_nodes(patch, files, policy)
            return Finished(cfg, run_inline(cfg))

    return go


@pytest.mark.parametrize("task", TASKS)
def test_parties_nodes_give_the_parameters_of_the_inline_engine(train, task):
    party_run, expected = train(task, [task]), train(task)
    assert party_run.summary["failures"] == {}
    same_result(party_run, expected)


def test_a_task_that_the_policy_does_not_list_is_refused_by_name(train):
    with pytest.raises(FedGraphError, match=r"policy refuses task=links: it accepts tasks nodes-regression"):
        train("links", ["nodes-regression"])

"""Tasks beyond classes of nodes train on a fleet with the parameters of the inline engine; a policy must list them."""

import contextlib
from dataclasses import replace

import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.testing import assert_same_arrays
from tests.conftest import client_graph
from tests.engine.fleet import Fleet

pytestmark = pytest.mark.slow

TASKS = ["nodes-regression", "nodes-multilabel", "links"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Three nodes, whose files have two targets of 0 and 1 per node, and whose policies accept these tasks."""
    graphs = []
    for client in range(3):
        graph = client_graph(client, 30)
        targets = (graph.x[:, :2] + torch.randn(30, 2, generator=torch.Generator().manual_seed(client)) > 0).float()
        graphs.append(replace(graph, targets=targets))
    with started(tmp_path_factory.mktemp("tasks"), graphs, TASKS) as made:
        yield made


@contextlib.contextmanager
def started(folder, graphs, tasks):
    """A fleet with one node per graph, whose policies accept these tasks."""
    for client, graph in enumerate(graphs):
        graph.save(folder / "graphs" / f"client_{client:04d}.safetensors")
    made = Fleet(folder, folder / "graphs")
    policy = folder / "policy.yaml"
    policy.write_text(f"modules: [tests]\nmin_nodes: 0\nsamplers: [none, neighbors]\ntasks: [{', '.join(tasks)}]\n")
    try:
        made.start_superlink()
        for node in range(len(graphs)):
            made.flwr("supernode", "register", str(made.keys / f"node_{node}.pub"), "loopback")
        for node in range(len(graphs)):
            made.start_node(node, policy=str(policy))
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("task", TASKS)
def test_a_fleet_gives_the_parameters_of_the_inline_engine(fleet, tmp_path, task):
    check_same_bits(fleet, tmp_path, {"task": task, "rounds": 2, "model.hidden": 8})


def check_same_bits(fleet, folder, keys):
    fleet.run(folder / "run", *(f"{key}={value}" for key, value in keys.items()))
    fg.run(graph=str(fleet.graphs), out=str(folder / "inline"), progress=False, **keys)
    found, expected = (read_tensors(folder / name / "model_final.safetensors")[0] for name in ("run", "inline"))
    assert_same_arrays(found, expected)


GENERATED = {
    "triples": ["dataset=planted-triples", "dataset.entities=16", "dataset.relations=4"],
    "graphs": ["dataset=cycles", "dataset.graphs=8"],
    "graphs-regression": ["dataset=planted-counts", "dataset.graphs=8"],
}


@pytest.mark.parametrize("task", ["triples", "graphs", pytest.param("graphs-regression", marks=pytest.mark.faults)])
def test_a_fleet_of_two_trains_triples_and_graphs_with_the_bits_of_the_inline_engine(task, tmp_path):
    cfg = compose([f"task={task}", "num_clients=2", *GENERATED[task]])
    with started(tmp_path, [load_client(cfg, client) for client in range(2)], [task]) as fleet:
        check_same_bits(fleet, tmp_path, {"task": task, "rounds": 2, "model.hidden": 8})


def test_a_task_that_the_policy_does_not_list_is_refused_by_name(fleet, tmp_path):
    with pytest.raises(RuntimeError, match=r"task.*nodes.*nodes-regression"):
        fleet.run(tmp_path / "fleet", "rounds=1")

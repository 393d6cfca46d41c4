"""Tasks beyond classes of nodes train on a fleet with the parameters of the inline engine; a policy must list them."""

from dataclasses import replace

import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.testing import assert_same_arrays
from tests.conftest import client_graph
from tests.engine.fleet import Fleet

pytestmark = pytest.mark.slow

TASKS = ["nodes-regression", "nodes-multilabel", "links"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Three nodes, whose files have two targets of 0 and 1 per node, and whose policies accept these tasks."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "graphs").mkdir()
    for client in range(3):
        graph = client_graph(client, 30)
        targets = (graph.x[:, :2] + torch.randn(30, 2, generator=torch.Generator().manual_seed(client)) > 0).float()
        replace(graph, targets=targets).save(folder / "graphs" / f"client_{client:04d}.safetensors")
    made = Fleet(folder, folder / "graphs")
    policy = folder / "policy.yaml"
    policy.write_text(f"modules: [tests]\nmin_nodes: 0\nsamplers: [none, neighbors]\ntasks: [{', '.join(TASKS)}]\n")
    try:
        made.start_superlink()
        for node in range(3):
            made.flwr("supernode", "register", str(made.keys / f"node_{node}.pub"), "loopback")
        for node in range(3):
            made.start_node(node, policy=str(policy))
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("task", TASKS)
def test_a_fleet_gives_the_parameters_of_the_inline_engine(fleet, tmp_path, task):
    keys = {"task": task, "rounds": 2, "model.hidden": 8}
    fleet.run(tmp_path / "fleet", *(f"{key}={value}" for key, value in keys.items()))
    fg.run(graph=str(fleet.graphs), out=str(tmp_path / "inline"), progress=False, **keys)
    found, expected = (read_tensors(tmp_path / name / "model_final.safetensors")[0] for name in ("fleet", "inline"))
    assert_same_arrays(found, expected)


def test_a_task_that_the_policy_does_not_list_is_refused_by_name(fleet, tmp_path):
    with pytest.raises(RuntimeError, match=r"task.*nodes.*nodes-regression"):
        fleet.run(tmp_path / "fleet", "rounds=1")

"""Every task gives the same bits in Ray's actors, one instance for all, and through Flower's messages."""

from pathlib import Path

import pytest

import fedgraph_flwr as fg
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.testing import assert_same_arrays
from tests.nodes import rebuilt_clients

FEW = {"num_clients": 2, "rounds": 2, "model.hidden": 8, "progress": False}
NODES, GRAPHS = {"dataset.nodes": 60}, {"dataset.graphs": 12}
TASKS = {
    "edges": {"dataset": "payments", "dataset.accounts": 150, "dataset.background": 600, "dataset.per_kind": 2},
    "links": {"dataset.nodes": 120},
    "triples": {"dataset": "planted-triples", "dataset.entities": 16, "dataset.relations": 4, "task.negatives": 4},
    "nodes-regression": {"dataset": "planted-regression", "model": "sage"} | NODES,
    "nodes-multilabel": {"dataset": "planted-multilabel", "model": "mlp"} | NODES,
    "graphs": {"dataset": "cycles", "task.batch_size": 3} | GRAPHS,
    "graphs-regression": {"dataset": "planted-counts", "task.batch_size": 3} | GRAPHS,
}
pytestmark = pytest.mark.slow

every_task = pytest.mark.parametrize("task", TASKS)


def trained(task, out: Path, **more):
    """The final shared parameters of a run."""
    fg.run(task=task, out=str(out), **FEW | TASKS[task] | more)
    return read_tensors(out / "model_final.safetensors")[0]


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    """``inline(task)``: the parameters of a run in this process, made once."""
    made = {}

    def get(task):
        if task not in made:
            made[task] = trained(task, tmp_path_factory.mktemp("inline") / task)
            assert made[task]
        return made[task]

    return get


@every_task
@pytest.mark.xdist_group("one ray")
def test_ray_gives_the_same_bits(task, inline, one_ray, tmp_path):
    assert_same_arrays(trained(task, tmp_path, engine="ray"), inline(task))


@every_task
def test_rebuilt_clients_that_are_asked_over_the_wire_give_the_same_bits(task, inline, tmp_path, monkeypatch):
    expected = inline(task)
    rebuilt_clients(monkeypatch)
    assert_same_arrays(trained(task, tmp_path), expected)

"""The leak detectors of results/leak-detectors.md: every task has one, whose test exists; detectors of tasks without another."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import TASKS, compose
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.testing import assert_same_arrays

ROOT = Path(__file__).parents[2]


def rows() -> list[list[str]]:
    """Cells of the table's rows."""
    text = (ROOT / "simulations/results/leak-detectors.md").read_text()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"][2:]


def test_each_task_has_a_detector_that_is_a_test():
    assert {task for row in rows() for task in re.findall(r"`([\w-]+)`", row[0])} == set(TASKS)
    for row in rows():
        file, _, name = row[2].strip("`").partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), row[2]


DATA = {
    "nodes": ["dataset=csbm", "dataset.nodes=60"],
    "nodes-regression": ["dataset=planted-regression", "dataset.nodes=60", "model=sage"],
    "nodes-multilabel": ["dataset=planted-multilabel", "dataset.nodes=60", "model=sage"],
    "graphs-regression": ["dataset=planted-counts", "dataset.graphs=12"],
    "graphs-multilabel": ["dataset=planted-counts", "dataset.graphs=12"],
}


@pytest.mark.parametrize("task", DATA)
def test_answers_of_scored_items_reach_no_gradient(task):
    """With other answers of all validation and test items, training gives the same bits; with others of training items, not."""
    source = "graphs-regression" if task == "graphs-multilabel" else task
    cfg = compose([f"task={task}", *DATA[task], "num_clients=1", "model.hidden=8", "train.local_steps=3"])
    graph = load_client(compose([f"task={source}", *DATA[task], "num_clients=1"]), 0)
    if task == "graphs-multilabel":
        graph = replace(graph, targets=(graph.targets > 20).float())

    def replaced(mask: torch.Tensor) -> object:
        """The graph with other answers at these nodes."""
        if task == "nodes":
            return replace(graph, y=torch.where(mask, 1 - graph.y, graph.y))
        other = 1 - graph.targets if task.endswith("multilabel") else graph.targets * 3 + 1
        return replace(graph, targets=torch.where(mask[:, None], other, graph.targets))

    def trained(one: object) -> dict[str, torch.Tensor]:
        made = GraphClient(cfg, one)
        made.train()
        return made.model.state_dict()

    expected = trained(graph)
    assert_same_arrays(trained(replaced(~graph.train_mask)), expected)
    changed = trained(replaced(graph.train_mask))
    assert any(not torch.equal(changed[name], tensor) for name, tensor in expected.items())

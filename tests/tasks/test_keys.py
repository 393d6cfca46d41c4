"""Keys of `task` that the run's task does not read are refused."""

import dataclasses

import pytest

from fedgraph_flwr.config import compose
from fedgraph_flwr.config.schema import TaskConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.tasks import KINDS

SET = {
    "loss": "huber",
    "positive_weights": "[2.0]",
    "between": "false",
    "disjoint": "0.5",
    "negatives": "3",
    "candidates": "7",
    "pool": "max",
    "decoder": "transe",
    "batch_size": "5",
    "margin": "1.0",
    "temperature": "0.5",
}
OF_TASK = {("triples", "loss"): "log_sigmoid"}


@pytest.mark.parametrize("key", SET)
def test_a_key_of_another_task_is_refused_and_says_whose_it_is(key):
    readers = [name for name, kind in KINDS.items() if key in kind.KEYS]
    assert readers
    with pytest.raises(
        FedGraphError, match=rf"task=nodes does not read task\.{key}=.*leave the key out, or set task to {readers[0]}"
    ):
        check_method(compose(["strategy=fedavg", f"task.{key}={SET[key]}"]))
    for reader in readers:
        check_method(
            compose(["strategy=fedavg", f"task={reader}", f"task.{key}={OF_TASK.get((reader, key), SET[key])}"])
        )


def test_every_key_belongs_to_a_task():
    keys = {key.name for key in dataclasses.fields(TaskConfig)} - {"name"}
    assert keys == set().union(*(kind.KEYS for kind in KINDS.values()))
    assert keys == set(SET)


def test_a_key_of_a_protocol_is_named_as_its_own():
    words = ["protocol=fedstar", "task=nodes", "dataset=demo", "partition=louvain"]
    message = r"task.batch_size=128, which protocol=fedstar sets: leave the protocol out, or set task to triples"
    with pytest.raises(FedGraphError, match=message):
        check_method(compose(words))
    with pytest.raises(FedGraphError, match=r"task.batch_size=64: leave the key out, or set task to triples"):
        check_method(compose([*words, "task.batch_size=64"]))


@pytest.mark.parametrize("task", ["links", "graphs"])
def test_an_accepted_task_is_one_that_the_parts_of_a_method_serve_as_well(task):
    with pytest.raises(FedGraphError, match=rf"does not serve task={task}: set task to nodes, or another strategy"):
        check_method(compose(["strategy=moon", f"task={task}"]))

"""Stages of a temporal graph: training, validation and test each read the edges up to their own time."""

from typing import Any

from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.method_half import inherits
from fedgraph_flwr.tasks.base import LaterInputs


def later_inputs(client: Any, whole: ClientGraph, inputs: Any) -> LaterInputs:
    """Return the items of later stages, and the model's inputs with the edges that each stage may read.

    Raises:
        FedGraphError: the method or the task does not predict nodes from the model's inputs only.
    """
    if (pairs := client.task.later(client, inputs)) is not None:
        return pairs
    if whole.until(0) is whole:
        return []
    cfg = client.cfg
    methods = ("predict", "predict_shared", "logits", "inputs_of")
    plain = inherits(client, methods) and not client.chosen_parts.all
    if not plain or cfg.task.name != "nodes":
        raise FedGraphError(
            f"strategy={cfg.strategy.name} with task={cfg.task.name} does not support edges that only later stages may read"
            " (split.kind=temporal): use another split, or a strategy such as fedavg with task=nodes"
        )
    stages = {1: whole.val_mask, 2: ~(whole.train_mask | whole.val_mask)}
    return [
        (nodes.nonzero().view(-1).to(client.device), client.inputs_of(whole.until(stage), stage=stage))
        for stage, nodes in stages.items()
    ]

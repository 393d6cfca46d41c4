"""Local steps, as far as no method changes them: an optimiser, gradients, and the checks of a step."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedgraph_flwr.clients.client_part import with_terms
from fedgraph_flwr.clients.seam import seam
from fedgraph_flwr.numerics.losses import task_grad
from fedgraph_flwr.numerics.optim import Optimizer, make_optimizer

OBJECTIVE = ("loss", "logits", "task_loss")
"""Client methods that define the objective of local training."""


def begin_training(client: Any) -> Optimizer:
    """Put the model into training mode and return this round's optimiser, kept or new as configured."""
    client.model.train()
    if client.optimizer is None or not client.cfg.train.keeps_optimizer:
        client.optimizer = make_optimizer(client.parameters(), client.cfg.train)
    return client.optimizer


def writes_out(client: Any) -> bool:
    """Return whether the objective is the task's loss, trains all tensors, and has closed-form gradients."""
    trained = not client.model.ties_weights and all(tensor.requires_grad for tensor in client.model.tensors.values())
    return client.plain_objective and not any(part.capabilities.adds for part in client.active) and trained


def written_out(client: Any) -> tuple[Tensor, dict[str, Tensor]] | None:
    """Return the objective and its closed-form gradients where they exist, with the same bits as autograd."""
    if not writes_out(client) or client.batch.shares is not None:
        return None
    with torch.no_grad():
        batch = client.batch
        cost = partial(task_grad, nodes=batch.nodes, y=batch.y, cfg=client.cfg.train, weights=client.class_weights)
        return client.model.grads(batch.inputs, client.model.tensors, cost)


@seam
def grads(client: Any, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Return the objective and its gradients with respect to the named tensors; None where it does not depend on one."""
    loss = with_terms(client, client.loss())
    gradients = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
    return loss, dict(zip(tensors, gradients, strict=True))


@seam
def update(client: Any, optimizer: Optimizer) -> None:
    """Take one optimiser step along the current gradients."""
    optimizer.step()


def check_step(client: Any, nodes: int) -> None:
    """Refuse a step on so few training nodes that its gradient could reveal them, or whose dropout leaves a unit so few.

    Raises:
        FedGraphError: the policy requires more.
    """
    client.policy.check_step(client.graph.client, nodes, client.task.ITEMS)
    if client.model.capabilities.drops:
        client.policy.check_dropout(client.cfg.model.dropout, min(nodes, client.graph.num_nodes))

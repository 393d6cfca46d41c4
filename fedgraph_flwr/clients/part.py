"""Base of the parts of a method at the client, and the client as parts use it.

A part changes local training at fixed points. Its state is that of the client: `round_state` and `term_state` within
a training, `memory` beyond it, each below names of its own, so that parts combine and checkpoints hold them.
"""

# ruff: noqa: D102 (`base` documents the members of a client)

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from fedgraph_flwr.config import TASKS, RunConfig, StrategyConfig
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.models import Model
from fedgraph_flwr.numerics.optim import Optimizer
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.trees import Tree


class Trainee(Protocol):
    """A client, as its parts use it; `fedgraph_flwr.clients.base` documents each member."""

    cfg: RunConfig
    graph: ClientGraph
    device: torch.device
    dtype: torch.dtype
    model: Model
    inputs: Any
    y: Tensor
    batch: Any
    train_nodes: Tensor
    server_round: int
    steps: int
    memory: Tree
    term_state: Tree
    round_state: dict[str, Any]
    optimizer: Optimizer | None
    hidden: Tensor | None
    active: "tuple[ClientPart, ...]"

    @property
    def num_train(self) -> int: ...

    @cached_property
    def shared(self) -> dict[str, Tensor]: ...

    def begin_training(self) -> Optimizer: ...

    def gradient(self, optimizer: Optimizer) -> Tensor: ...

    def loss(self) -> Tensor: ...

    def train_plainly(self) -> float: ...

    def update(self, optimizer: Optimizer) -> None: ...


Step = Callable[[Optimizer], Tensor]
"""Leaves a gradient in the model's parameters and returns the loss."""


class ClientPart:
    """One part of a method at the client.

    Attributes:
        keys: values of its keys.
        serves: tasks that it can train.
        adds: whether it adds a term to the objective.
        reads_hidden: whether its term reads `Trainee.hidden`.
        stacks: whether clients with it can be computed together; then its term reads nothing but `term_state`.
        of_nodes: whether it reads training nodes by their rows, so that it serves tasks of nodes only.
        own_requests: groups of requests that differ by client, as of `GraphClient`.
        predicts_with: names in `memory` that predictions read.
        tunes: whether predictions train on the client's training nodes first.
    """

    serves: ClassVar[frozenset[str]] = frozenset(TASKS)
    adds: ClassVar[bool] = False
    reads_hidden: ClassVar[bool] = False
    stacks: ClassVar[bool] = True
    of_nodes: ClassVar[bool] = False
    own_requests: ClassVar[tuple[str, ...]] = ()
    predicts_with: ClassVar[tuple[str, ...]] = ()
    tunes: ClassVar[bool] = False

    def __init__(self, name: str, rules: StrategyConfig):
        self.name, self.keys = name, getattr(rules, name)

    @property
    def idle(self) -> bool:
        """Whether its keys make it do nothing."""
        return False

    def check(self, cfg: RunConfig, model: Model) -> None:
        """Refuse a configuration that the part cannot serve.

        Raises:
            FedGraphError: with the reason.
        """

    def note(self, cfg: RunConfig) -> str:
        """A message for the user at the start, where the configuration makes another method of the part; else nothing."""
        return ""

    def receive(self, client: Trainee, groups: dict[str, Arrays]) -> None:
        """Take groups of arrays that come with a model to train or evaluate."""

    def begin(self, client: Trainee) -> None:
        """Prepare for the local training that starts from the model as it is."""

    def term(self, client: Trainee) -> Tensor | None:
        """A term of the objective on `batch`."""
        return None

    def gradient(self, client: Trainee, inner: Step, optimizer: Optimizer) -> Tensor:
        """Leave the gradient of a step in the parameters; ``inner`` leaves that of the parts before."""
        return inner(optimizer)

    def end(self, client: Trainee) -> None:
        """Keep what follows from the training just done."""

    def send(self, client: Trainee) -> dict[str, Arrays]:
        """Groups of arrays that travel back with the trained parameters."""
        return {}

    def parameters(self, client: Trainee) -> Mapping[str, Tensor]:
        """Values of the model's tensors by which the client is scored, by name; others keep theirs."""
        return {}


@contextmanager
def only(client: Trainee, *parts: ClientPart) -> Iterator[None]:
    """Train with these parts alone."""
    previous, client.active = client.active, parts
    try:
        yield
    finally:
        client.active = previous


@contextmanager
def with_parameters(
    client: Trainee, tensors: Mapping[str, Tensor], optimizer: Optimizer | None = None
) -> Iterator[None]:
    """Replace values of the model's tensors; afterwards the model, the optimiser and the random stream are as before.

    Random draws within are those that would follow without it, so two models train under the same dropout masks.

    Args:
        client: whose model it is.
        tensors: by name; a tensor without a value keeps its own.
        optimizer: of the training within; None: a new one.
    """
    own, previous = client.model.state_dict(), client.optimizer
    kept = {name: tensor.clone() for name, tensor in own.items()}
    client.optimizer = optimizer
    try:
        with torch.random.fork_rng(devices=[client.device] if client.device.type == "cuda" else []):
            assign(own, tensors)
            yield
    finally:
        assign(own, kept)
        client.optimizer = previous


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values that later training does not change."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@torch.no_grad()
def assign(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Overwrite the tensors of these names; other tensors keep their values."""
    for name, value in values.items():
        tensors[name].copy_(value)

"""Base class of a method's client parts.

A part changes local training at fixed points. It stores its state in the client, under its own names: in `round_state` and
`term_state` during a training, in `memory` between rounds. So parts can be combined, and checkpoints contain their state.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgraph_flwr.config import RunConfig, StrategyConfig
from fedgraph_flwr.config.capabilities import Capable, PartCapabilities
from fedgraph_flwr.config.parts import chosen, values
from fedgraph_flwr.config.schema import section_of
from fedgraph_flwr.models import Model
from fedgraph_flwr.numerics.optim import Optimizer
from fedgraph_flwr.wire.messages import Arrays

Step = Callable[[Optimizer], Tensor]
"""Function that writes a gradient to the model's parameters and returns the loss."""


class ClientPart(Capable, values=PartCapabilities):
    """One part of a method at the client; its class declares what `PartCapabilities` names.

    Attributes:
        name: name of the section of its keys.
        keys: values of its keys.
        own_requests: groups of requests that differ by client, as in `GraphClient`.
        predicts_with: names in `memory` that predictions read.
    """

    own_requests: ClassVar[tuple[str, ...]] = ()
    predicts_with: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, rules: StrategyConfig):
        self.name = section_of(name)
        self.keys = values(rules, name)

    def is_alone(self, rules: StrategyConfig) -> bool:
        """Return whether a method has no other part."""
        return [section_of(name) for name in chosen(vars(rules))] == [self.name]

    @property
    def idle(self) -> bool:
        """Whether its keys disable it."""
        return False

    def check(self, cfg: RunConfig, model: Model) -> None:
        """Refuse a configuration that the part cannot serve.

        Raises:
            FedGraphError: the part cannot serve the configuration.
        """

    def note(self, cfg: RunConfig) -> str:
        """Return a message for the start of the run if the configuration turns the part into another method; else ""."""
        return ""

    def receive(self, client: Any, groups: dict[str, Arrays]) -> None:
        """Store groups of arrays that arrive with a model to train or evaluate."""

    def begin(self, client: Any) -> None:
        """Prepare for local training, which starts from the current model."""

    def term(self, client: Any) -> Tensor | None:
        """Return a term of the objective on `batch`."""
        return None

    def gradient(self, client: Any, inner: Step, optimizer: Optimizer) -> Tensor:
        """Write the gradient of a step to the parameters; ``inner`` writes the gradient of the preceding parts."""
        return inner(optimizer)

    def end(self, client: Any) -> None:
        """Update the state after local training."""

    def send(self, client: Any) -> dict[str, Arrays]:
        """Return groups of arrays to send with the trained parameters."""
        return {}

    def parameters(self, client: Any) -> Mapping[str, Tensor]:
        """Return values of the model's tensors for scoring, by name; other tensors keep their values."""
        return {}


def with_terms(client: Any, loss: Tensor) -> Tensor:
    """Return a client's loss F_i plus the terms of the active parts."""
    for part in client.active:
        if part.capabilities.adds and (term := part.term(client)) is not None:
            loss = loss + term
    return loss


@contextmanager
def with_parameters(client: Any, tensors: Mapping[str, Tensor], optimizer: Optimizer | None = None) -> Iterator[None]:
    """Replace values of the model's tensors; afterwards the model, the optimiser and the random stream are as before.

    Random draws within are those that would follow without it, so two models train under the same dropout masks.

    Args:
        client: client with the model.
        tensors: values by name; other tensors keep their values.
        optimizer: optimiser for training inside the context; None: a new one.
    """
    state, previous = client.model.state_dict(), client.optimizer
    kept = {name: tensor.clone() for name, tensor in state.items()}
    client.optimizer = optimizer
    try:
        with torch.random.fork_rng(devices=[client.device] if client.device.type == "cuda" else []):
            assign(state, tensors)
            yield
    finally:
        assign(state, kept)
        client.optimizer = previous


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies that later training does not change."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@torch.no_grad()
def assign(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Overwrite the named tensors; other tensors keep their values."""
    for name, value in values.items():
        tensors[name].copy_(value)

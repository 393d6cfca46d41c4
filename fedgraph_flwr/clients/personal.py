"""Base of clients with a personal model: it temporarily replaces the shared one.

Leaves the client: FedAvg's uploads.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.numerics.optim import Optimizer


class PersonalClient(GraphClient):
    """A client that trains or is scored under other values of its model's tensors, without side effects."""

    @contextmanager
    def with_parameters(self, tensors: Mapping[str, Tensor], optimizer: Optimizer | None = None) -> Iterator[None]:
        """Set tensors of the model; on exit restore its previous values, the optimiser and the random stream.

        The random stream within is the one without this context, so both models train under the same dropout masks.

        Args:
            tensors: new values by name; other tensors keep theirs.
            optimizer: optimiser of the training within; None: a new one.
        """
        own, previous = self.model.state_dict(), self.optimizer
        kept = {name: tensor.clone() for name, tensor in own.items()}
        self.optimizer = optimizer
        try:
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                assign(own, tensors)
                yield
        finally:
            assign(own, kept)
            self.optimizer = previous

    def predict(self) -> Tensor:
        """Return logits [N, C] under the client's `personal_parameters`."""
        with self.with_parameters(self.personal_parameters()):
            return super().predict()


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies that later training does not change."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@torch.no_grad()
def assign(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Set the tensors that values are given for, in place; other tensors keep theirs."""
    for name, value in values.items():
        tensors[name].copy_(value)

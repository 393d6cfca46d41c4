"""What clients with a model of their own beside the shared one have in common: for a while, it takes the shared one's place.

Leaves the client: what FedAvg sends.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.numerics.optim import Optimizer


class PersonalClient(GraphClient):
    """A client that trains or is scored under other values of its network's tensors, and goes on as though it had not."""

    @contextmanager
    def with_parameters(self, tensors: Mapping[str, Tensor], optimizer: Optimizer | None = None) -> Iterator[None]:
        """Put values in the place of the network's; afterwards its own, its optimiser and the random stream are as before.

        What is drawn within is what would have been drawn without, so both models train under the same dropout masks.

        Args:
            tensors: by name; what is not named keeps its value.
            optimizer: of the training within; None: a fresh one.
        """
        own, former = self.model.state_dict(), self.optimizer
        kept = {name: tensor.clone() for name, tensor in own.items()}
        self.optimizer = optimizer
        try:
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                assign(own, tensors)
                yield
        finally:
            assign(own, kept)
            self.optimizer = former

    def predict(self) -> Tensor:
        """Logits [N, C] under the client's `personal_parameters`."""
        with self.with_parameters(self.personal_parameters()):
            return super().predict()


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values that later training does not change."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@torch.no_grad()
def assign(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Put values in the place of the tensors of the same names; other tensors keep theirs."""
    for name, value in values.items():
        tensors[name].copy_(value)

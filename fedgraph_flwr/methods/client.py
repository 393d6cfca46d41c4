"""What tasks, parts and batches use of the client that they work for; `clients.base.GraphClient` has it all."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.models import Model
from fedgraph_flwr.numerics.optim import Optimizer


class Client(Protocol):
    """A client: its configuration, graph, model, batch and memory. The attributes are those of `GraphClient`."""

    predicts_with: ClassVar[tuple[str, ...]]
    capabilities: ClassVar[Any]

    cfg: RunConfig
    other_clients: str
    graph: ClientGraph
    file: Path | None
    device: torch.device
    dtype: torch.dtype
    model: Model
    task: Any
    inputs: Any
    later: Any
    y: Tensor
    train_nodes: Tensor
    batch: Any
    sampled: Any
    optimizer: Optimizer | None
    combined: Any
    active: tuple[Any, ...]
    memory: dict[str, Any]
    term_state: dict[str, Any]
    round_state: dict[str, Any]
    hidden: Tensor | None
    class_weights: Tensor | None
    scorer: Any
    saved_models: Any
    policy: Any
    protection: Any
    steps: int
    server_round: int
    exchange: int

    @classmethod
    def needs_others(cls, cfg: RunConfig) -> str:
        """Return what predictions of another graph need from other clients; empty: nothing."""

    @property
    def shared(self) -> dict[str, Tensor]:
        """The shared tensors by name, in the model's order."""

    @property
    def num_train(self) -> int:
        """Number of training nodes."""

    @property
    def score_floor(self) -> int:
        """Fewest items behind a score."""

    def parameters(self) -> list[nn.Parameter]:
        """Return what local training updates."""

    def inputs_of(self, graph: Any, **variant: Any) -> Any:
        """Prepare the model's inputs from a graph."""

    def logits(self, inputs: Any) -> Tensor:
        """Return logits [N, C]."""

    def loss(self) -> Tensor:
        """Return the objective on the batch."""

    def gradient(self, optimizer: Optimizer) -> Tensor:
        """Leave the gradient in the parameters, and return the loss."""

    def descend(self, optimizer: Optimizer) -> Tensor:
        """Take one step per batch, and return the last loss."""

    def batches(self) -> Iterator[Any]:
        """Yield the batch of each step."""

    def predict(self) -> Tensor:
        """Return the logits that the client is scored by."""

    def predict_shared(self) -> Tensor:
        """Return the logits of the shared parameters as received."""

    def for_prediction(self) -> Mapping[str, Any]:
        """Return what predictions read after the run."""

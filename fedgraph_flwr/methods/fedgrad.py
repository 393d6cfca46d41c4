"""Gradient averaging: its keys."""

from dataclasses import dataclass

from fedgraph_flwr.config import at_least


@dataclass
class FedGradParams:
    """Keys of gradient averaging."""

    local_epochs: int = 1  # 1: the exact gradient; more deviates
    double_softmax: bool = False  # cross-entropy of softmax(softmax(logits)), as the authors' program has it

    def __post_init__(self) -> None:
        at_least(self.local_epochs, 1, "strategy.local_epochs")

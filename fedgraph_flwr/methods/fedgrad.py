"""Gradient averaging: its keys."""

from dataclasses import dataclass

from fedgraph_flwr.config import number


@dataclass
class FedGradParams:
    """Keys of gradient averaging."""

    local_epochs: int = number(1, low=1)  # more deviates from the paper: gradients summed along local steps
    double_softmax: bool = False  # the authors' program: cross-entropy of a softmax of a softmax

"""FedFA: its keys, and the names of what travels beside the model."""

from dataclasses import dataclass

from fedgraph_flwr.config import choice, number

RUNNING = "running"
"""Group: clients' running mean and standard deviation of each channel, ``mean`` and ``std`` [L-1, H]; both ways."""

SPREAD = "spread"
"""Group: their variances over clients, ``mean`` and ``std`` [L-1, H]; made by the server, goes down alone."""

STATISTICS = ("mean", "std")


@dataclass
class Params:
    """Keys of FedFA."""

    p: float = number(0.5, high=1)  # probability with which a layer's features are changed in a step; 0 is FedAvg
    groups: int = number(8, low=1)  # (ours) K groups of nodes that stand for images, whose statistics vary
    momentum: float = number(0.99, high=1)  # α of the running statistics
    eps: float = number(1e-6, low=1e-12)  # ε
    # over clients: channel (the paper) | scalar (the program), one for all channels
    variance: str = choice("channel", ("channel", "scalar"))

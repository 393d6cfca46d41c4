"""FedFA: its keys, and the names of what travels beside the model."""

from dataclasses import dataclass

from fedgraph_flwr.config import at_least, one_of
from fedgraph_flwr.errors import FedGraphError

RUNNING = "running"
"""Group: clients' running mean and standard deviation of each channel, ``mean`` and ``std`` [L-1, H]; both ways."""

SPREAD = "spread"
"""Group: their variances over clients, ``mean`` and ``std`` [L-1, H]; made by the server, goes down alone."""

STATISTICS = ("mean", "std")


@dataclass
class Params:
    """Keys of FedFA."""

    p: float = 0.5  # probability with which a layer's features are changed in a step; 0 is FedAvg
    groups: int = 8  # K
    momentum: float = 0.99  # α
    eps: float = 1e-6  # ε
    variance: str = (
        "channel"  # over clients: channel (the paper) | scalar, one for a layer's clients and channels (the program)
    )

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise FedGraphError(f"strategy.p must lie in [0, 1], got {self.p}")
        if not 0 <= self.momentum <= 1:
            raise FedGraphError(f"strategy.momentum must lie in [0, 1], got {self.momentum}")
        at_least(self.groups, 1, "strategy.groups")
        at_least(self.eps, 1e-12, "strategy.eps")
        one_of(self.variance, ("channel", "scalar"), "strategy.variance")

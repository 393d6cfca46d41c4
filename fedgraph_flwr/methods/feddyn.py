"""FedDyn: its keys."""

from dataclasses import dataclass

from fedgraph_flwr.config import at_least


@dataclass
class Params:
    """Keys of FedDyn."""

    alpha: float = 1.0  # α; 0: FedAvg

    def __post_init__(self) -> None:
        at_least(self.alpha, 0, "strategy.alpha")

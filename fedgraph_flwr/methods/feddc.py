"""FedDC: its keys."""

from dataclasses import dataclass

from fedgraph_flwr.config import at_least
from fedgraph_flwr.methods.scaffold import Controls


@dataclass
class Params(Controls):
    """Keys of FedDC, beside SCAFFOLD's ``option``."""

    alpha: float = 1.0  # α of R_i; 0: no drift
    gradient_term: bool = True  # G_i

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self.alpha, 0, "strategy.alpha")

"""FedGTA: its keys, and the names of what travels beside the model."""

from dataclasses import dataclass

from fedgraph_flwr.config import at_least, number, one_of
from fedgraph_flwr.errors import FedGraphError

SMOOTHED = "smoothed"
"""Group, up: ``moments`` [1 or 2, K, C] of the propagated labels."""

CONFIDENCE = "confidence"
"""Number, up: H."""


@dataclass
class Params:
    """Keys of FedGTA."""

    epsilon: float = number(0.5, low=-2, high=1)  # ε: clients at most this alike are not mixed; 1 is Local
    confidence: bool = True  # clients weigh by H; false: by `weighting`
    steps: int = 5  # k of label propagation
    alpha: float = 0.5  # α, what a node keeps of its first label; 1 propagates nothing
    orders: int = number(6, low=1, high=64)  # K
    moments: str = "hybrid"  # raw | hybrid (raw and central)
    labels: str = "paper"  # paper | program, which stresses the training labels: see the client

    def __post_init__(self) -> None:
        at_least(self.steps, 0, "strategy.steps")
        one_of(self.moments, ("raw", "hybrid"), "strategy.moments")
        one_of(self.labels, ("paper", "program"), "strategy.labels")
        if not 0 <= self.alpha <= 1:
            raise FedGraphError(f"strategy.alpha must lie in [0, 1], got {self.alpha}")

    @property
    def kinds(self) -> int:
        """Kinds of moments."""
        return 2 if self.moments == "hybrid" else 1

"""FedGTA: its keys, and names of the groups that travel with the model."""

from dataclasses import dataclass
from typing import Any

from fedgraph_flwr.config import RunConfig, choice, number
from fedgraph_flwr.methods.uplink import ARRAYS, Individual, Uplink
from fedgraph_flwr.wire.messages import METRICS, MODEL, TRAIN
from fedgraph_flwr.wire.reply_schema import ArrayField, NumberField

SMOOTHED = "smoothed"
"""Group, up: ``moments`` [1 or 2, K, C] of the propagated labels."""

CONFIDENCE = "confidence"
"""Number, up: H."""


@dataclass
class Params:
    """Keys of FedGTA."""

    # ε (0.6 on CiteSeer, 0.65 on PubMed): clients with at most this similarity are not mixed; 1 is Local
    epsilon: float = number(0.5, low=-2, high=1)
    confidence: bool = True  # weight clients by their confidence H; false (ours): by `weighting`
    steps: int = 5  # k, steps of label propagation
    alpha: float = number(0.5, high=1)  # α, share of its first label that a node keeps; 1 propagates nothing
    orders: int = number(6, low=1, high=64)  # K, highest order of the moments (20 on CiteSeer, 13 on PubMed)
    moments: str = choice("hybrid", ("raw", "hybrid"))  # hybrid, raw and central | raw (PubMed)
    # paper | program, which emphasises the training labels: see fedgraph_baselines/clients/fedgta.py
    labels: str = choice("paper", ("paper", "program"))

    @property
    def kinds(self) -> int:
        """Number of kinds of moments."""
        return 2 if self.moments == "hybrid" else 1


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model, moments of propagated labels, and a confidence."""
    moments = {"moments": ArrayField((params.kinds, params.orders, "C"), "float64")}
    return {
        TRAIN: {
            MODEL: Individual(ARRAYS, why="each client receives its own mixture of models"),
            SMOOTHED: Individual(moments, why="clients are mixed by their similarity"),
            METRICS: Individual({CONFIDENCE: NumberField(0)}, why="it weighs the client in each mixture"),
        }
    }

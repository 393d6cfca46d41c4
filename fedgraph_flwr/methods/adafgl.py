"""AdaFGL: its keys."""

from dataclasses import dataclass
from typing import Any

from fedgraph_flwr.config import RunConfig, choice, number
from fedgraph_flwr.methods.uplink import Once, Uplink, model_only

EXTRACTOR = "extractor"
"""Group, down, and phase: the model of stage 1, once."""

STAGE = "personal"
"""Name of stage 2."""


@dataclass
class Params:
    """Keys of AdaFGL."""

    extractor_rounds: int = 50  # rounds of FedAvg (OpenFGL: 50 of 100; 100 before 200 steps in the other program)
    alpha: float = number(0.05, high=1)  # α, share of the graph's own edges in the corrected one (OpenFGL: 0.5)
    beta: float = number(0.2, high=1)  # β, share of fixed likeness in the signed propagation (OpenFGL: 0)
    threshold: float = number(0.999, low=-1, high=1)  # cosine of predictions from which two nodes are alike
    alike: int = 20  # (ours) of those, how many a node keeps
    steps: int = 3  # K of smoothing
    confidence_steps: int = 10  # k of the label propagation that measures homophily
    # paper | program: how unlike pairs weigh, see models/adafgl.py
    negatives: str = choice("paper", ("paper", "program"))
    # softmaxes of the extractor's output before two nodes are compared: 1 in the paper, 2 in the authors' code
    softmaxes: int = choice(1, (1, 2))
    # 0: both branches, blended by s (paper); else one branch: homophilous if s reaches this value (authors' code: 0.9)
    choose_from: float = number(0.0, high=1)
    message_layers: int = number(3, low=1)  # of F's network; earlier releases had 2
    knowledge: float = 1.0  # κ, weight of the distance from the extractor's predictions


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """The model in stage 1; replies to the extractor hold nothing."""
    return {**model_only(cfg, params), EXTRACTOR: Once()}

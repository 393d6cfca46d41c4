"""AdaFGL: keys and uplink."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedgraph_flwr.config import RunConfig, choice, number
from fedgraph_flwr.methods.downlink import Input, Inputs, Stages
from fedgraph_flwr.methods.uplink import ARRAYS, Once, Uplink, model_only
from fedgraph_flwr.wire.messages import TRAIN

EXTRACTOR = "extractor"
"""Name of the phase, and of the group sent to clients: the model of stage 1, once."""

STAGE = "personal"
"""Name of stage 2."""

BETA = 0.2
"""β, weight of the fixed similarity in the signed propagation (OpenFGL: 0)."""

STEPS = 3
"""K, smoothing steps of X̃."""

CONFIDENCE_STEPS = 10
"""k, steps of the label propagation that measures homophily."""


@dataclass
class Params:
    """Keys of AdaFGL."""

    extractor_rounds: int = 50  # R, rounds of FedAvg (OpenFGL: 50 of 100; the authors' code: 100, then 200 local steps)
    alpha: float = number(0.05, high=1)  # α, weight of the original edges in the corrected graph (OpenFGL: 0.5)
    threshold: float = number(0.999, low=-1, high=1)  # τ, minimum cosine of the predictions of similar nodes
    alike: int = 20  # (ours) maximum number of similar nodes kept per node
    # weights of dissimilar pairs: paper | program (the authors' code), see fedgraph_baselines/models/adafgl.py
    negatives: str = choice("paper", ("paper", "program"))
    # softmaxes of the extractor's output before two nodes are compared: 1 in the paper, 2 in the authors' code
    softmaxes: int = choice(1, (1, 2))
    # 0: both branches, blended by s (paper); else one branch: homophilous if s reaches this value (authors' code: 0.9)
    choose_from: float = number(0.0, high=1)
    message_layers: int = number(3, low=1)  # layers of the MLP that computes F


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model in stage 1, and an empty reply to the extractor."""
    return {**model_only(cfg, params), EXTRACTOR: Once()}


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare the model of stage 1, which clients keep as extractor, and stage 2, whose models stay at the clients."""
    return {
        EXTRACTOR: {EXTRACTOR: Input("the shared parameters after stage 1", ARRAYS)},
        TRAIN: Stages({}, {"": True, STAGE: False}),
    }

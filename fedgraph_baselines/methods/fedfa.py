"""FedFA: its keys, and names of the groups that travel with the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedgraph_flwr.config import RunConfig, choice, number
from fedgraph_flwr.methods.downlink import Input, Inputs
from fedgraph_flwr.methods.uplink import Mean, Reducer, Uplink, model_only
from fedgraph_flwr.wire.messages import TRAIN
from fedgraph_flwr.wire.reply_schema import ArrayField

RUNNING = "running"
"""Group: the clients' running mean and standard deviation of each channel, ``mean`` and ``std`` [L-1, H]; both ways."""

SPREAD = "spread"
"""Group, down: their variances over clients, ``mean`` and ``std`` [L-1, H], computed by the server."""

GAPS = "gaps"
"""Group, up: differences of ``mean`` and ``std`` from those received, and their squares, for the variances."""

STATISTICS = ("mean", "std")

GROUPS = 8
"""(ours) K, groups of nodes that take the role of images, whose statistics vary."""

MOMENTUM = 0.99
"""α of the running statistics (the authors' code)."""

EPS = 1e-6
"""ε, added to variances (the authors' code)."""


@dataclass
class Params:
    """Keys of FedFA."""

    p: float = number(0.5, high=1)  # probability with which a layer's features are changed in a step; 0 is FedAvg
    # over clients: channel (the paper) | scalar (the authors' code), one for all channels
    variance: str = choice("channel", ("channel", "scalar"))


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model, and means of feature statistics from which the server computes their variance over clients."""
    reducers: dict[str, Reducer] = {**model_only(cfg, params)[TRAIN]}
    if params.p:
        shape = (cfg.model.layers - 1, cfg.model.hidden)
        reducers[RUNNING] = Mean({key: ArrayField(shape, cfg.dtype) for key in STATISTICS}, trained=True)
        gaps = {f"{kind} {key}": ArrayField(shape, "float64") for kind in ("gap", "square") for key in STATISTICS}
        reducers[GAPS] = Mean(gaps, weight="uniform", trained=True)
    return {TRAIN: reducers}


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare statistics of features over all clients."""
    if not params.p:
        return {}
    shape = (cfg.model.layers - 1, cfg.model.hidden)
    fields = {key: ArrayField(shape, cfg.dtype) for key in STATISTICS}
    running = Input("running means and deviations of features over all clients", fields)
    return {TRAIN: {RUNNING: running, SPREAD: Input("the spread of these statistics over clients", fields)}}

"""FedOMD: its keys, and names that both sides use on the wire."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedgraph_flwr.config import RunConfig, choice, number
from fedgraph_flwr.methods.downlink import Input, Inputs
from fedgraph_flwr.methods.uplink import ARRAYS, Groups, Individual, Mean, Public, Uplink, model_only
from fedgraph_flwr.secure.protection import protection_of
from fedgraph_flwr.wire.messages import DESCRIBE, METRICS, MODEL, TRAIN
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, NumberField

MOMENTS = "moments"
"""Group of a client's statistics."""

RANGE = "range"
"""Smallest and largest features, if they travel in a separate group."""

TARGET = "target"
"""Group of pooled moments that travels down with the model."""


@dataclass
class Params:
    """Keys of FedOMD."""

    alpha: float = 5e-4  # α of Eq. (12)
    beta: float = 10.0  # β of Eq. (12)
    cmd: bool = True  # false: no moments are exchanged ("Ortho" in Table 6)
    # (ours) one exchange instead of the paper's two, same moments: one_phase | two_phase
    exchange: str = choice("one_phase", ("one_phase", "two_phase"))
    # (ours) b - a of Eq. (11), which is undefined for ReLU features: pooled | unit, as in CMD's own code
    cmd_range: str = choice("pooled", ("unit", "pooled"))
    # norm, as Eq. (11) prints it | squared, whose gradient vanishes near 0 | mean | mean_squared (ours), over the
    # D features
    cmd_norm: str = choice("norm", ("norm", "squared", "mean", "mean_squared"))
    # whose features count: all, as in Algorithm 1 | train, as in Eq. (11)
    cmd_nodes: str = choice("all", ("all", "train"))
    # none | sigmoid, which bounds the features before their moments are computed
    cmd_act: str = choice("none", ("none", "sigmoid"))
    # (ours) no statistics of fewer nodes leave a client; on a fleet at least 5, or as its policy requires
    min_nodes: int = number(1, low=1)


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model, moments of hidden features about a point that all clients know, and the features' range."""
    phases: dict[str, Groups] = dict(model_only(cfg, params))
    if not (params.cmd and params.beta):
        return phases
    shape = cfg.model.layers - 1, cfg.model.hidden
    weight = "nodes" if params.cmd_nodes == "all" else "train"
    if weight == "nodes" and not protection_of(cfg).private:
        phases[DESCRIBE] = {
            METRICS: Public({"num_nodes": NumberField(1, LARGEST, whole=True)}, why="a size, as num_train")
        }
    ends = {"range": ArrayField((shape[0], 2), cfg.dtype)}
    span = (
        {RANGE: Individual(ends, why="a largest value is not a sum; strategy.cmd_range=unit needs none")}
        if params.cmd_range == "pooled"
        else {}
    )
    if params.exchange == "two_phase":
        phases["means"] = {MOMENTS: Mean({"mean": ArrayField(shape, cfg.dtype)}, weight=weight), **span}
        spread = {"spread": ArrayField((shape[0], 4, shape[1]), cfg.dtype)}
        phases["moments_about"] = {MOMENTS: Mean(spread, weight=weight)}
    powers = {"powers": ArrayField((shape[0], 5, shape[1]), "float64")}
    # a norm has gradients of length 1, however far the pooled moments are: they choose a direction of local steps
    bounded = not params.cmd_norm.endswith("squared")
    phases["moments_sum"] = {MOMENTS: Mean(powers, weight=weight, bounded=bounded), **span}
    return phases


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare the model and a point in the exchanges of moments, and the pooled moments."""
    if not (params.cmd and params.beta):
        return {}
    layers, width = cfg.model.layers - 1, cfg.model.hidden
    model = {MODEL: Input("the shared parameters", ARRAYS)}
    about = {**model, "point": Input("the point of the moments", {"mean": None})}
    fields = {
        "moments": ArrayField((layers, 5, width), cfg.dtype),
        "span": ArrayField((layers,), cfg.dtype, optional=True),
    }
    target = {TRAIN: {TARGET: Input("the pooled moments and ranges", fields)}, "moments_sum": about}
    return {**target, "means": model, "moments_about": about} if params.exchange == "two_phase" else target

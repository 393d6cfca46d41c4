"""Gradient averaging: its keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.methods.downlink import Input, Inputs
from fedgraph_flwr.methods.uplink import ARRAYS, Once, Relay, Sum, Uplink
from fedgraph_flwr.wire.messages import MODEL, TRAIN


@dataclass
class FedGradParams:
    """Keys of gradient averaging."""

    double_softmax: bool = False  # the authors' code: cross-entropy of a softmax of a softmax


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the gradient of the summed loss for each shared parameter."""
    plain = cfg.train.plain_sgd  # other optimisers repeat a term in later rounds
    return {TRAIN: {MODEL: Sum(ARRAYS, bounded=plain)}}


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare nothing besides the shared parameters."""
    return {}


def true_features(cfg: RunConfig, params: Any) -> Uplink:
    """Declare FedSage-true: requested nodes, their features, and gradients."""
    why = "the server forwards them to the clients that requested them"
    return {
        **uplink(cfg, params),
        "wanted": Once({"wanted": Relay(why="the server forwards ids to the owners of the nodes")}),
        "features": Once({"features": Relay(why=why)}),
        "mend": Once(),
    }


def true_downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare requests of other clients, and the features that this client requested."""
    return {
        "features": {"wanted": Input("ids of nodes whose features other clients request, by client")},
        "mend": {"features": Input("features of the nodes that this client requested, by owner")},
    }

"""Matching of records between parties on a fleet: names that both sides use on the wire. The protocol is `protocol`."""

from collections.abc import Mapping
from typing import Any

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.methods.downlink import Input, Inputs, Stages
from fedgraph_flwr.methods.uplink import Individual, Once, Relay, Uplink
from fedgraph_flwr.secure.keyring import SIGNATURES
from fedgraph_flwr.wire.messages import TRAIN

SERVER = "fedgraph_flwr.party.link.strategy:Link"

ANNOUNCED = "announced"
"""Group: keys and numbers of nodes of all clients, in their order."""

STEP = "link"
"""Phase: one step of the protocol after the announcements."""

ENVELOPES = "envelopes"
"""Group: sealed bytes, by the client at the other end."""


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare public keys and numbers of nodes, then envelopes. Nothing is trained."""
    why = "every client needs the keys and sizes of all"
    return {"announce": Once({ANNOUNCED: Individual(why=why)}), STEP: Once({ENVELOPES: Relay(sealed=True)}), TRAIN: {}}


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare the keys and numbers of nodes of all clients, then envelopes; no model leaves a client."""
    announced = Input("keys and numbers of nodes of all clients", {"keys": None, "nodes": None})
    signatures = Input("the clients' signatures of their keys")
    return {
        STEP: {
            ANNOUNCED: announced,
            SIGNATURES: signatures,
            ENVELOPES: Input("sealed messages of other clients, by client"),
        },
        TRAIN: Stages({}, {"": False}),
    }

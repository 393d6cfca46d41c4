"""FedStruct: the keys of its forms, and names that both sides use on the wire."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedgraph_flwr.config import RunConfig, choice, number
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.downlink import Input, Inputs
from fedgraph_flwr.methods.fedgrad import FedGradParams
from fedgraph_flwr.methods.fedgrad import uplink as gradients
from fedgraph_flwr.methods.uplink import Groups, Individual, Once, Public, Reducer, Relay, Sum, Uplink
from fedgraph_flwr.secure.keyring import SIGNATURES
from fedgraph_flwr.wire.messages import CONFIG, EVALUATE, METRICS, TRAIN
from fedgraph_flwr.wire.reply_schema import NumberField

STRUCTURE = "structure"
"""Group: rows of S, of its gradient, or of results of S."""

NO_STRUCTURE = "this client has no structure part yet: exchanges of a run compute it before training and scoring"
"""Error of a client that something other than a run asks for predictions."""

ENVELOPES = "envelopes"
"""Group: sealed bytes, by the client at the other end."""

S = "structure/s"
"""The name of S next to those of the parameters."""


@dataclass
class FedStructParams(FedGradParams):
    """Keys of FedStruct-B."""

    # hop2vec | degree; graphlets and node2vec need strategy=fedstruct_a
    features: str = choice("hop2vec", ("hop2vec", "degree"))
    prune: int = 0  # p entries per row (or p·n_i per block, p·n in all); 30 in Table 7; 0 keeps all
    # per_row | per_block (appendix L.2.1) | global (the authors' code)
    prune_mode: str = choice("per_row", ("per_row", "per_block", "global"))

    def __post_init__(self) -> None:
        if self.features in ("graphlets", "node2vec"):
            raise FedGraphError(
                f"strategy.features={self.features} needs the edges of all clients, which no one has in FedStruct-B: set"
                " strategy.features to hop2vec or degree, or strategy=fedstruct_a, whose server knows the graph"
            )


@dataclass
class FedStructAParams(FedGradParams):
    """Keys of FedStruct-A's server."""

    # hop2vec | degree | graphlets | node2vec
    features: str = choice("hop2vec", ("hop2vec", "degree", "graphlets", "node2vec"))
    width: int = 256  # width of S with another model than fedstruct
    # graphlets of up to 4 nodes, 15 orbits, or 5, 73 orbits (the authors' code); 0: 5 if 32 bits can count them
    graphlet_size: int = choice(0, (0, 4, 5))
    # standard: each orbit's counts standardised over nodes (the authors' code) | log: log(1 + count) (ours)
    graphlet_scale: str = choice("standard", ("standard", "log"))
    # node2vec: passes of the skip-gram; takes a minute on 3000 nodes, once: the vectors are cached by graph and
    # seed
    epochs: int = number(50, low=1)


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare FedStruct-B: gradients; rows of S for single nodes; before round 1 keys, ids and sealed envelopes."""
    rows = {STRUCTURE: Individual(why="rows of S belong to single clients' nodes")}
    return {
        **gradients(cfg, params),
        **_acquisition(rows),
        "place": Once(),
        TRAIN: {**gradients(cfg, params)[TRAIN], **(rows if params.features == "hop2vec" else {})},
    }


def private_uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare appendix L.1: gradients; envelopes in every round; gradients of θ_s, which are summed."""
    return {
        **_acquisition({}),
        "take": Once(),
        "embed": {ENVELOPES: Relay(sealed=True)},
        TRAIN: {
            **gradients(cfg, params)[TRAIN],
            STRUCTURE: Individual(why="the server forwards each row to the client that owns the node"),
        },
        "step_own": {"g": Sum(dtype=cfg.dtype)},
    }


def known_uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare FedStruct-A: gradients; all edges once; residuals of single nodes."""
    why = "the server knows the whole graph"
    return {
        "reveal": Once({"graph": Individual(why=why)}),
        TRAIN: {**gradients(cfg, params)[TRAIN], STRUCTURE: Individual(why=why)},
    }


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare FedStruct-B: keys and owners, sealed envelopes, then rows of S for the client's nodes."""
    rows = {STRUCTURE: Input("rows of S of the nodes that this client's nodes reach", {"s": None})}
    scored = rows if params.features == "hop2vec" else {}
    return {"acquire": _ACQUIRED, "place": rows, TRAIN: scored, EVALUATE: scored}


def private_downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare appendix L.1: envelopes in every round, and gradients of the client's own rows."""
    told = dict.fromkeys(("train", "scored", "embedding"))
    labelled = Input("the number of labelled nodes", {"labelled": None})
    return {
        "acquire": _ACQUIRED,
        "take": _SEALED,
        "embed": {"g": Input("the parameters of the network on S"), CONFIG: Input("what the embedding is for", told)},
        TRAIN: _SEALED,
        EVALUATE: _SEALED,
        "step_own": {STRUCTURE: Input("gradients of the client's own rows", {"s": None}), CONFIG: labelled},
    }


def known_downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare FedStruct-A: results of S for the client's own nodes."""
    groups = {STRUCTURE: Input("results of S for the client's own nodes, for training and for scores")}
    return {TRAIN: groups, EVALUATE: groups}


_SEALED = {ENVELOPES: Input("sealed messages of other clients, by client")}

_ACQUIRED = {
    "keys": Input("public keys of all clients, and the client of each node", dict.fromkeys(("keys", "owner"))),
    SIGNATURES: Input("the clients' signatures of their keys"),
    **_SEALED,
}


def _acquisition(first: Mapping[str, Reducer]) -> dict[str, Groups]:
    """Declare keys and ids, then envelopes and the resulting rows."""
    why = "the server must know who owns and who reaches a node"
    done = {"done": NumberField(0, 1, whole=True)}
    return {
        "announce": Once({"identity": Individual(why=why)}),
        "acquire": Once({ENVELOPES: Relay(sealed=True), "rows": Individual(why=why), METRICS: Public(done), **first}),
    }

"""FedSPA: its keys, for both sides."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedgraph_flwr.config import RunConfig, choice, number
from fedgraph_flwr.methods.downlink import Input, Inputs
from fedgraph_flwr.methods.uplink import ARRAYS, Groups, Individual, LateMean, Once, Public, Uplink
from fedgraph_flwr.models.fedspa import FISHER
from fedgraph_flwr.secure.keyring import SIGNATURE_FIELD, SIGNATURES
from fedgraph_flwr.secure.masked import PEERS
from fedgraph_flwr.wire.messages import DESCRIBE, METRICS, MODEL, TRAIN
from fedgraph_flwr.wire.reply_schema import HUGE, LARGEST, ArrayField, NumberField

ROUNDING = 1e-6  # tolerance of S_i, which is 0 if all neighbours are equal


@dataclass
class Params:
    """Keys of FedSPA."""

    prior: bool = True  # Eq. (8)-(10) on the harmonizer; false: `weighting`
    posterior: bool = True  # Eq. (11)-(12) on the two channels; false: `weighting`
    # all other parameters: prior (the authors' code) | uniform | nodes; the paper is silent
    rest: str = choice("prior", ("prior", "uniform", "nodes"))
    # Eq. (7): sym, bounded by 2 (ours) | comb, D - A (Appendix A and the authors' code)
    laplacian: str = choice("sym", ("sym", "comb"))
    # Eq. (14): batch, one backward pass (the authors' code) | per_node, as printed
    fisher: str = choice("batch", ("batch", "per_node"))
    # arrays: diagonals go to the server | scalar: their masked sum, then one number per channel (ours)
    fisher_exchange: str = choice("arrays", ("arrays", "scalar"))
    # (ours) > 1: each step hides the labels it trains on from the edge types, see clients/fedspa.py
    folds: int = number(1, low=1)

    @property
    def masked(self) -> bool:
        """Whether Fisher diagonals reach the server only as a masked sum."""
        return self.posterior and self.fisher_exchange == "scalar"


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model, Fisher diagonals (or masked shares of their sum, and deviations from it), and S_i."""
    why = "the weights of the mean follow from them"
    fisher = {FISHER: Individual(why=why)} if params.posterior else {}
    nodes = {"num_nodes": NumberField(1, LARGEST, whole=True)}
    bound = 2 if params.laplacian == "sym" else HUGE
    area = {"high_frequency_area": NumberField(-ROUNDING, bound + ROUNDING)} if params.prior else {}
    phases: dict[str, Groups] = {
        DESCRIBE: {METRICS: Individual(nodes | area, why=why)},
        TRAIN: {MODEL: LateMean(ARRAYS, why=why), **fisher},
    }
    if params.masked:
        deviations = dict.fromkeys(("deviation_hom", "deviation_het"), NumberField(0))
        phases["publish_key"] = Once({"key": Public({"key": ArrayField((32,), "uint8"), **SIGNATURE_FIELD})})
        phases["share_again"] = fisher
        phases["deviate"] = {METRICS: Individual(deviations, why=why)}
    return phases


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare the members of a masked sum, and the sum."""
    if not params.masked:
        return {}
    members = dict.fromkeys(("clients", "keys", "nodes"))
    peers = {
        PEERS: Input("the members of a masked sum, their public keys, and the number of their nodes", members),
        SIGNATURES: Input("the clients' signatures of their keys"),
    }
    return {TRAIN: peers, "share_again": peers, "deviate": {FISHER: Input("the pooled Fisher diagonals")}}

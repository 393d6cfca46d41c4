"""FedStruct: the keys of its forms, and the names that both sides use on the wire."""

from dataclasses import dataclass

from fedgraph_flwr.config import at_least, one_of
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.fedgrad import FedGradParams
from fedgraph_flwr.methods.hops import Pruning

STRUCTURE = "structure"
"""Group: rows of S, of its gradient, or of what follows from S."""

ENVELOPES = "envelopes"
"""Group: sealed bytes, by the client at the other end."""

S = "structure/s"
"""The name of S beside the parameters'."""


@dataclass
class FedStructParams(FedGradParams):
    """Keys of FedStruct-B."""

    features: str = "hop2vec"  # hop2vec | degree
    prune: int = 0  # p; 0 keeps every entry
    prune_mode: str = "per_row"  # per_row | per_block (the paper) | global (the authors' program)
    max_entries: int = 100_000_000  # of one client's rows; more is refused

    def __post_init__(self) -> None:
        super().__post_init__()
        Pruning(self.prune, self.prune_mode)
        if self.features in ("graphlets", "node2vec"):
            raise FedGraphError(
                f"strategy.features={self.features} needs the edges of all clients, which nobody has in FedStruct-B;"
                " take hop2vec or degree, or strategy=fedstruct_a, whose server knows the graph"
            )
        if self.features not in ("hop2vec", "degree"):
            raise FedGraphError(f"strategy.features must be hop2vec or degree, got '{self.features}'")


@dataclass
class FedStructAParams(FedGradParams):
    """Keys of FedStruct-A's server."""

    features: str = "hop2vec"  # hop2vec | degree | graphlets | node2vec
    width: int = 256  # d_s with another model than fedstruct
    graphlet_size: int = 0  # graphlets of up to 4 or 5 nodes; 0: of 5 where 32 bits can count them
    graphlet_scale: str = "standard"  # standard | log
    walks: int = 10  # node2vec: walks from each node,
    walk_length: int = 20  # their nodes,
    window: int = 10  # context on either side,
    negatives: int = 1  # nodes drawn against each of the context,
    p: float = 1.0  # return parameter,
    q: float = 1.0  # in-out parameter,
    epochs: int = 50  # passes of the skip-gram

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features not in ("hop2vec", "degree", "graphlets", "node2vec"):
            raise FedGraphError(
                f"strategy.features must be hop2vec, degree, graphlets or node2vec, got '{self.features}'"
            )
        one_of(str(self.graphlet_size), ("0", "4", "5"), "strategy.graphlet_size")
        one_of(self.graphlet_scale, ("standard", "log"), "strategy.graphlet_scale")
        for name in ("walks", "walk_length", "window", "negatives", "epochs"):
            at_least(getattr(self, name), 1, f"strategy.{name}")
        if min(self.p, self.q) <= 0:
            raise FedGraphError(f"strategy.p and strategy.q must be > 0, got {self.p} and {self.q}")

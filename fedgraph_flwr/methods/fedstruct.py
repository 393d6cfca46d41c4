"""FedStruct: the keys of its forms, and the names that both sides use on the wire."""

from dataclasses import dataclass

from fedgraph_flwr.config import choice, number
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.fedgrad import FedGradParams

STRUCTURE = "structure"
"""Group: rows of S, of its gradient, or of what follows from S."""

ENVELOPES = "envelopes"
"""Group: sealed bytes, by the client at the other end."""

S = "structure/s"
"""The name of S beside the parameters'."""


@dataclass
class FedStructParams(FedGradParams):
    """Keys of FedStruct-B."""

    # hop2vec | degree; graphlets and node2vec need strategy=fedstruct_a
    features: str = choice("hop2vec", ("hop2vec", "degree"))
    prune: int = 0  # p entries a row (or p·n_i a block, p·n in all); 30 in Table 7; 0 keeps all
    # per_row | per_block (appendix L.2.1) | global (the authors' program)
    prune_mode: str = choice("per_row", ("per_row", "per_block", "global"))
    max_entries: int = 100_000_000  # of one client's rows of Ā; beyond it, prune

    def __post_init__(self) -> None:
        if self.features in ("graphlets", "node2vec"):
            raise FedGraphError(
                f"strategy.features={self.features} needs the edges of all clients, which nobody has in FedStruct-B;"
                " take hop2vec or degree, or strategy=fedstruct_a, whose server knows the graph"
            )


@dataclass
class FedStructAParams(FedGradParams):
    """Keys of FedStruct-A's server."""

    # hop2vec | degree | graphlets | node2vec
    features: str = choice("hop2vec", ("hop2vec", "degree", "graphlets", "node2vec"))
    width: int = 256  # width of S with another model than fedstruct
    # graphlets of up to 4 nodes, 15 orbits, or 5, 73 orbits (the authors' program); 0: 5 where 32 bits can count them
    graphlet_size: int = choice(0, (0, 4, 5))
    # standard: each orbit's counts by mean and deviation (the authors' program) | log: log(1 + count) (ours)
    graphlet_scale: str = choice("standard", ("standard", "log"))
    walks: int = number(10, low=1)  # node2vec, all of it as the authors' program: walks a node
    walk_length: int = number(20, low=1)  # node2vec: nodes of a walk
    window: int = number(10, low=1)  # node2vec: context on either side
    negatives: int = number(1, low=1)  # node2vec: nodes drawn against each of the context
    p: float = number(1.0, without_low=True)  # node2vec: return parameter
    q: float = number(1.0, without_low=True)  # node2vec: in-out parameter
    # node2vec: passes of the skip-gram; a minute on 3000 nodes, once: the vectors are kept with the data, by graph
    # and seed
    epochs: int = number(50, low=1)

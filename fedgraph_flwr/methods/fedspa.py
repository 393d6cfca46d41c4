"""FedSPA: its keys, which both sides read."""

from dataclasses import dataclass

from fedgraph_flwr.config import choice, number


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
    # arrays: diagonals go to the server | scalar: their masked sum, then one number a channel (ours)
    fisher_exchange: str = choice("arrays", ("arrays", "scalar"))
    # (ours) > 1: each step hides the labels it trains on from the edge types, see clients/fedspa.py
    folds: int = number(1, low=1)

    @property
    def masked(self) -> bool:
        """Whether Fisher diagonals reach the server as a masked sum alone."""
        return self.posterior and self.fisher_exchange == "scalar"

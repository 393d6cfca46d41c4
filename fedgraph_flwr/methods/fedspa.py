"""FedSPA: its keys, which both sides read."""

from dataclasses import dataclass

from fedgraph_flwr.config import at_least, one_of


@dataclass
class Params:
    """Keys of FedSPA."""

    prior: bool = True  # θ_φ by Eq. (8)-(10)
    posterior: bool = True  # θ_hom, θ_het by Eq. (11)-(12)
    rest: str = "prior"  # parameters outside θ_φ, θ_hom and θ_het: prior | uniform | nodes
    laplacian: str = "sym"  # L of Eq. (7): sym | comb
    fisher: str = "batch"  # Eq. (14): batch | per_node
    fisher_exchange: str = "arrays"  # whether clients send I_i (arrays) or a masked share and Δ_i (scalar)
    folds: int = 1  # K

    def __post_init__(self) -> None:
        one_of(self.rest, ("prior", "uniform", "nodes"), "strategy.rest")
        one_of(self.laplacian, ("sym", "comb"), "strategy.laplacian")
        one_of(self.fisher, ("batch", "per_node"), "strategy.fisher")
        one_of(self.fisher_exchange, ("arrays", "scalar"), "strategy.fisher_exchange")
        at_least(self.folds, 1, "strategy.folds")

    @property
    def masked(self) -> bool:
        """Whether Fisher diagonals reach the server as a masked sum alone."""
        return self.posterior and self.fisher_exchange == "scalar"

"""FedOMD: its keys, and the names that both sides use on the wire."""

from dataclasses import dataclass

from fedgraph_flwr.config import at_least, one_of

MOMENTS = "moments"
"""The group of a client's statistics, and the phase of ``one_phase``."""

RANGE = "range"
"""The smallest and largest features, where they come in a group of their own."""

TARGET = "target"
"""The group of pooled moments that goes down with the model."""


@dataclass
class Params:
    """Keys of FedOMD."""

    alpha: float = 5e-4  # α of Eq. (12)
    beta: float = 10.0  # β of Eq. (12)
    cmd: bool = True  # exchange moments and use them
    exchange: str = "one_phase"  # one_phase | two_phase
    cmd_range: str = "pooled"  # b − a of Eq. (11): pooled (largest minus smallest feature of each layer) | unit (1)
    cmd_norm: str = (
        "norm"  # norm (Eq. 11) | squared | mean (of the squares, its root) | mean_squared: of differences of moments
    )
    cmd_nodes: str = "all"  # all (Algorithm 1) | train (Eq. 11): whose features count
    cmd_act: str = "none"  # none | sigmoid, which bounds the features before their moments are taken
    min_nodes: int = 1  # a client tells no statistics of fewer; on a fleet its node's policy asks for more

    def __post_init__(self) -> None:
        at_least(self.alpha, 0, "strategy.alpha")
        at_least(self.beta, 0, "strategy.beta")
        at_least(self.min_nodes, 1, "strategy.min_nodes")
        one_of(self.exchange, ("one_phase", "two_phase"), "strategy.exchange")
        one_of(self.cmd_range, ("unit", "pooled"), "strategy.cmd_range")
        one_of(self.cmd_norm, ("norm", "squared", "mean", "mean_squared"), "strategy.cmd_norm")
        one_of(self.cmd_nodes, ("all", "train"), "strategy.cmd_nodes")
        one_of(self.cmd_act, ("none", "sigmoid"), "strategy.cmd_act")

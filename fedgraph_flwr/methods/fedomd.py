"""FedOMD: its keys, and the names that both sides use on the wire."""

from dataclasses import dataclass

from fedgraph_flwr.config import choice, number

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
    cmd: bool = True  # false: no moments are exchanged ("Ortho" alone in Table 6)
    # (ours) one exchange instead of the paper's two, same moments: one_phase | two_phase
    exchange: str = choice("one_phase", ("one_phase", "two_phase"))
    # (ours) b - a of Eq. (11), which ReLU features do not have: pooled | unit, as in CMD's own program
    cmd_range: str = choice("pooled", ("unit", "pooled"))
    # norm, as Eq. (11) prints it | squared, whose gradient fades near 0 | mean | mean_squared (ours), over the D
    # features
    cmd_norm: str = choice("norm", ("norm", "squared", "mean", "mean_squared"))
    # whose features count: all, as in Algorithm 1 | train, as in Eq. (11)
    cmd_nodes: str = choice("all", ("all", "train"))
    # none | sigmoid, which bounds the features before their moments are taken
    cmd_act: str = choice("none", ("none", "sigmoid"))
    # (ours) no statistics of fewer nodes leave a client; on a fleet at least 5, or as its policy says
    min_nodes: int = number(1, low=1)

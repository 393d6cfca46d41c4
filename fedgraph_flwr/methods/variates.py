"""Methods whose clients keep variates between rounds: their parameters, and the names on the wire."""

from dataclasses import dataclass

from fedgraph_flwr.config import RunConfig, TrainConfig, at_least, one_of
from fedgraph_flwr.errors import FedGraphError

VARIATES = "variates"
"""Group: the server's variate on the way down, the change of a client's on the way up, by the parameters' names."""

ACKNOWLEDGED = "heard"
"""Group that goes down with the model: the last round in which this client's reply arrived, [1]; 0: none."""


@dataclass
class Controls:
    """Parameters of methods with SCAFFOLD's control variates."""

    option: str = "auto"  # c_i of Eq. (4): I | II | auto, II with plain SGD, else I

    def __post_init__(self) -> None:
        one_of(self.option, ("auto", "I", "II"), "strategy.option")

    def averages_steps(self, train: TrainConfig) -> bool:
        """Whether c_i follows from the way that the client went, option II."""
        return train.plain_sgd if self.option == "auto" else self.option == "II"

    def check(self, cfg: RunConfig) -> None:
        """Refuse option II where steps are not gradients.

        Raises:
            FedGraphError: they are not.
        """
        if self.option == "II" and not cfg.train.plain_sgd:
            raise FedGraphError(
                f"strategy.option=II takes (x - y)/(K lr) for a mean gradient, which it is with train.optimizer=sgd and "
                f"train.momentum=0 alone, got {cfg.train.optimizer} and {cfg.train.momentum:g}: take strategy.option=I"
            )


@dataclass
class ScaffoldParams(Controls):
    """Parameters of SCAFFOLD."""

    server_lr: float = 1.0  # η_g

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self.server_lr, 0, "strategy.server_lr")


@dataclass
class FedDCParams(Controls):
    """Parameters of FedDC."""

    alpha: float = 1.0  # α of R_i; 0: no drift
    gradient_term: bool = True  # G_i

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self.alpha, 0, "strategy.alpha")


@dataclass
class FedDynParams:
    """Parameters of FedDyn."""

    alpha: float = 1.0  # α; 0: FedAvg

    def __post_init__(self) -> None:
        at_least(self.alpha, 0, "strategy.alpha")

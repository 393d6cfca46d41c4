"""SCAFFOLD: its keys, and which estimate of a gradient a client's control variate is."""

from dataclasses import dataclass

from fedgraph_flwr.config import RunConfig, TrainConfig, at_least, one_of
from fedgraph_flwr.errors import FedGraphError


@dataclass
class Controls:
    """Keys of methods with SCAFFOLD's control variates."""

    option: str = "auto"  # c_i of Eq. (4): I | II | auto, II with plain SGD, else I

    def __post_init__(self) -> None:
        one_of(self.option, ("auto", "I", "II"), "strategy.option")

    def averages_steps(self, train: TrainConfig) -> bool:
        """Whether c_i follows from the way that the client went, option II."""
        return train.plain_sgd if self.option == "auto" else self.option == "II"

    def check(self, cfg: RunConfig) -> None:
        """Option II needs steps that are gradients.

        Raises:
            FedGraphError: they are not.
        """
        if self.option == "II" and not cfg.train.plain_sgd:
            raise FedGraphError(
                f"strategy.option=II takes (x - y)/(K lr) for a mean gradient, which it is with train.optimizer=sgd and "
                f"train.momentum=0 alone, got {cfg.train.optimizer} and {cfg.train.momentum:g}: take strategy.option=I"
            )


@dataclass
class Params(Controls):
    """Keys of SCAFFOLD."""

    server_lr: float = 1.0  # η_g

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self.server_lr, 0, "strategy.server_lr")

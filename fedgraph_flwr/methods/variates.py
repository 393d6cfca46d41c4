"""Methods whose clients keep variates between rounds: their parameters, and the names on the wire."""

from dataclasses import dataclass
from typing import Any

from fedgraph_flwr.config import RunConfig, TrainConfig, choice
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.uplink import ARRAYS, Mean, Uplink, model_only
from fedgraph_flwr.wire.messages import TRAIN

VARIATES = "variates"
"""Group: the server's variate on the way down, the change of a client's on the way up, by the parameters' names."""

ACKNOWLEDGED = "heard"
"""Group that goes down with the model: the last round in which this client's reply arrived, [1]; 0: none."""


@dataclass
class Controls:
    """Parameters of methods with SCAFFOLD's control variates."""

    # c_i of Eq. (4): II, the paper's experiments, with plain SGD; I with Adam or momentum (ours)
    option: str = choice("auto", ("auto", "I", "II"))

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

    server_lr: float = 1.0  # η_g, of the paper's experiments


@dataclass
class FedDCParams(Controls):
    """Parameters of FedDC."""

    # (ours) α of R_i, for a few local steps as FedDyn's; the authors' CIFAR-10 example: 0.01; 0: no drift
    alpha: float = 1.0
    gradient_term: bool = True  # G_i, the part of the local objective that corrects gradients


@dataclass
class FedDynParams:
    """Parameters of FedDyn."""

    alpha: float = 1.0  # α; 0: FedAvg


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """SCAFFOLD and FedDC: the model, and the change of the client's variate, which starts from 0."""
    return {TRAIN: {**model_only(cfg, params)[TRAIN], VARIATES: Mean(ARRAYS)}}

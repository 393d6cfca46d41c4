"""Methods whose clients keep variates between rounds: their keys, and the names on the wire."""

from dataclasses import dataclass
from typing import Any

from fedgraph_flwr.config import RunConfig, TrainConfig, choice
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.uplink import ARRAYS, Mean, Uplink, model_only
from fedgraph_flwr.wire.messages import TRAIN

VARIATES = "variates"
"""Group, by the parameters' names. Down: the server's variate. Up: the change of a client's variate."""

ACKNOWLEDGED = "heard"
"""Group that travels down with the model: the last round in which this client's reply arrived, [1]; 0: none."""


@dataclass
class Controls:
    """Keys of methods with SCAFFOLD's control variates."""

    # c_i of Eq. (4): II, as in the paper's experiments, with plain SGD; I with Adam or momentum (ours)
    option: str = choice("auto", ("auto", "I", "II"))

    def averages_steps(self, train: TrainConfig) -> bool:
        """Return whether c_i follows from the client's total change, option II."""
        return train.plain_sgd if self.option == "auto" else self.option == "II"

    def check(self, cfg: RunConfig) -> None:
        """Refuse option II for optimisers whose steps are not gradients.

        Raises:
            FedGraphError: names the optimiser's keys.
        """
        if self.option == "II" and not cfg.train.plain_sgd:
            raise FedGraphError(
                "strategy.option=II needs train.optimizer=sgd and train.momentum=0, where (x - y)/(K lr) is a mean gradient; got"
                f" train.optimizer={cfg.train.optimizer} and train.momentum={cfg.train.momentum:g}: set strategy.option=I"
            )


@dataclass
class ScaffoldParams(Controls):
    """Keys of SCAFFOLD."""

    server_lr: float = 1.0  # η_g, as in the paper's experiments


@dataclass
class FedDCParams(Controls):
    """Keys of FedDC."""

    # (ours) α of R_i, for a few local steps like FedDyn's; the authors' CIFAR-10 example has 0.01; 0: no drift
    alpha: float = 1.0
    gradient_term: bool = True  # G_i, the part of the local objective that corrects gradients


@dataclass
class FedDynParams:
    """Keys of FedDyn."""

    alpha: float = 1.0  # α; 0: FedAvg


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the uplink of SCAFFOLD and FedDC: the model, and the change of the client's variate, which starts from 0."""
    return {TRAIN: {**model_only(cfg, params)[TRAIN], VARIATES: Mean(ARRAYS)}}

"""Parts whose clients keep variates between rounds: the names on the wire, and the options of control variates."""

from fedgraph_flwr.config import TrainConfig
from fedgraph_flwr.errors import FedGraphError

VARIATES = "variates"
"""Group, by the parameters' names. Down: the server's variate. Up: the change of a client's variate."""

ACKNOWLEDGED = "heard"
"""Group that travels down with the model: the last round in which this client's reply arrived, [1]; 0: none."""


def averages_steps(option: str, train: TrainConfig) -> bool:
    """Return whether c_i follows from the client's total change, option II."""
    return train.plain_sgd if option == "auto" else option == "II"


def need_plain_sgd(what: str, train: TrainConfig, instead: str) -> None:
    """Refuse optimisers whose steps are not gradients, for what needs that.

    Raises:
        FedGraphError: names the optimiser's keys.
    """
    if not train.plain_sgd:
        raise FedGraphError(
            f"{what} needs train.optimizer=sgd and train.momentum=0, got train.optimizer={train.optimizer} and"
            f" train.momentum={train.momentum:g}: set them or {instead}"
        )

"""What methods ask of the network that a user chose, each a refusal in one sentence."""

from typing import Any

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import Model
from fedgraph_flwr.numerics.inputs import Inputs


def hidden_features(cfg: RunConfig, model: Model, does: str, layers: int = 2) -> None:
    """Hidden features, of nodes of one type.

    Args:
        cfg: the run's configuration.
        model: its network.
        does: what the method does with them, such as ``compares``.
        layers: how many the network must have.

    Raises:
        FedGraphError: the network has none.
    """
    if model.heterogeneous or cfg.model.layers < layers:
        raise FedGraphError(
            f"strategy={cfg.strategy.name} {does} hidden features of nodes of one type, so model={cfg.model.name} with"
            f" model.layers={cfg.model.layers} cannot serve: take a network for such graphs with model.layers >= {layers}"
        )


def one_adjacency(cfg: RunConfig, inputs: Any) -> None:
    """A network that reads nothing of a graph but its features and one matrix, under which other edges can be laid.

    Raises:
        FedGraphError: it reads more.
    """
    if type(inputs) is not Inputs or inputs.adj.shape[0] != inputs.x.shape[0]:  # FedLIT's holds a matrix of each type
        raise FedGraphError(
            f"strategy={cfg.strategy.name} lays other edges under the network, and model={cfg.model.name} reads more"
            " of a graph than its adjacency: take gcn, sage, acm or decoupled"
        )

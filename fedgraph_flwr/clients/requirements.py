"""Checks of what a method requires of the model, with an error message for the user."""

from typing import Any

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import Model
from fedgraph_flwr.numerics.inputs import Inputs


def one_type(cfg: RunConfig, model: Model) -> None:
    """Require nodes and edges of one type.

    Raises:
        FedGraphError: the model is for typed graphs.
    """
    if model.heterogeneous:
        raise FedGraphError(
            f"strategy={cfg.strategy.name} needs nodes and edges of one type, model={cfg.model.name} reads several: set a model"
            " for one type, such as model=gcn"
        )


def hidden_features(cfg: RunConfig, model: Model, does: str, layers: int = 2) -> None:
    """Require hidden features, and nodes of one type.

    Args:
        cfg: the run's configuration.
        model: the run's model.
        does: what the method does with the features, such as ``compares``.
        layers: fewest layers that the model must have.

    Raises:
        FedGraphError: the model has too few layers, or nodes of several types.
    """
    if model.heterogeneous or cfg.model.layers < layers:
        raise FedGraphError(
            f"strategy={cfg.strategy.name} {does} hidden features of nodes of one type, which model={cfg.model.name} with"
            f" model.layers={cfg.model.layers} does not have: set model= to one for such graphs, with model.layers >= {layers}"
        )


def one_adjacency(cfg: RunConfig, inputs: Any) -> None:
    """Require a model whose only inputs are features and one adjacency matrix, so that other edges can replace it.

    Raises:
        FedGraphError: the model has other inputs.
    """
    if type(inputs) is not Inputs or inputs.adj.shape[0] != inputs.x.shape[0]:  # FedLIT's inputs hold a matrix per type
        raise FedGraphError(
            f"strategy={cfg.strategy.name} replaces the edges under the model, but model={cfg.model.name} reads more of a"
            " graph than its adjacency matrix: set model= to gcn, sage, acm or decoupled"
        )

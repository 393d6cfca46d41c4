"""Checks of what a method requires of its model, with an error message for the user; `combinations` has those of all methods."""

from typing import Any

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.method_half import Requirement
from fedgraph_flwr.models import Model
from fedgraph_flwr.numerics.inputs import Inputs


def unfit(cfg: RunConfig, needs: str, got: str, remedy: str) -> FedGraphError:
    """Return the error of a method whose needs this configuration does not meet."""
    return FedGraphError(f"strategy={cfg.strategy.name} needs {needs}, got {got}: {remedy}")


def one_type(cfg: RunConfig, model: Model) -> None:
    """Require nodes and edges of one type.

    Raises:
        FedGraphError: the model is for typed graphs.
    """
    if model.capabilities.heterogeneous:
        model_ = f"model={cfg.model.name}, which reads several"
        raise unfit(cfg, "nodes and edges of one type", model_, "set a model for one type, such as model=gcn")


def network(kind: type[Model], name: str) -> Requirement:
    """Return the requirement of a model of one class, which has this name."""

    def require(cfg: RunConfig, model: Model) -> None:
        if not isinstance(model, kind):
            raise unfit(cfg, f"model={name}", f"model={cfg.model.name}", f"set model={name}")

    return require


def hidden_features(cfg: RunConfig, model: Model, does: str = "compares", layers: int = 2) -> None:
    """Require hidden features, and nodes of one type.

    Args:
        cfg: the run's configuration.
        model: the run's model.
        does: what the method does with the features.
        layers: fewest layers that the model must have.

    Raises:
        FedGraphError: the model has too few layers, or nodes of several types.
    """
    if model.capabilities.heterogeneous or cfg.model.layers < layers:
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

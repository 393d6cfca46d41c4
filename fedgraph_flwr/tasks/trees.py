"""Objective, columns and forest of a run's task, for gradient boosting."""

from typing import Any

import torch

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.far_ends import edge_maxima, neighbour_means
from fedgraph_flwr.methods.boosting import MAX_NODES, BoostingParams, Objective
from fedgraph_flwr.models.forest import Forest
from fedgraph_flwr.numerics.gathered import Gathered, Rows
from fedgraph_flwr.tasks import Task, kind_of
from fedgraph_flwr.tasks.targets import MultiLabel


def objective_of(cfg: RunConfig, width: int) -> Objective:
    """Return the loss of a run's task with W outputs."""
    task = kind_of(cfg)
    if task.capabilities.classes:
        return Objective("logistic", width, binary=True) if width == 2 else Objective("softmax", width)
    return Objective("logistic" if issubclass(task, MultiLabel) else "square", width)


def num_columns(cfg: RunConfig, params: BoostingParams, num_features: int, num_edge_features: int, width: int) -> int:
    """Return F, the number of columns that trees read: those of items, W outputs of another model, or both."""
    count = kind_of(cfg).num_columns(num_features, num_edge_features) if params.inputs != "embeddings" else 0
    count += 2 * num_features if params.neighbours else 0
    count += 2 * num_edge_features if params.edge_columns else 0
    return count + (width if params.inputs != "columns" else 0)


def columns_of(task: Task, graph: Any, neighbours: bool, edge_columns: bool) -> Gathered:
    """Return what trees read of a client's items besides outputs of another model [V, F], NaN where missing.

    Args:
        task: the task of the client's graph.
        graph: what is read of it at first.
        neighbours: whether mean columns of neighbours are among them.
        edge_columns: whether the largest columns of an item's edges are among them.
    """
    more = ([neighbour_means(graph)] if neighbours else []) + ([edge_maxima(graph)] if edge_columns else [])
    parts = [*task.tables(), *((table, torch.arange(len(table))) for table in more)]
    return Gathered(
        [(table if isinstance(table, Rows) else table.cpu().numpy(), rows.cpu().numpy()) for table, rows in parts]
    )


MAX_TREES = 100_000
"""Most trees per output of a model that starts from an earlier run's or is evaluated, whose keys may have been others."""


def forest_of(cfg: RunConfig, params: BoostingParams, objective: Objective, columns: int) -> Forest:
    """Return an empty forest with the bounds of a run: the trees of all parties, and a leaf per output for the base rate."""
    parties = cfg.num_clients if params.mode == "bagging" and not cfg.strategy.pooled else 1
    trees, nodes = 1 + params.trees * parties, params.nodes
    if cfg.init or cfg.evaluate:
        trees, nodes = MAX_TREES, MAX_NODES
    return Forest(objective.outputs, columns, binary=objective.binary, trees=objective.outputs * trees, nodes=nodes)

"""Tasks: what is predicted, how predictions are read from a network's outputs, and how they are scored."""

import dataclasses

from fedgraph_flwr import models
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.schema import default_of
from fedgraph_flwr.tasks.base import Batch, Scorer, Task
from fedgraph_flwr.tasks.edges import Edges
from fedgraph_flwr.tasks.graphs import Graphs, GraphsMultiLabel, GraphsRegression
from fedgraph_flwr.tasks.links import Links
from fedgraph_flwr.tasks.nodes import Nodes
from fedgraph_flwr.tasks.targets import MultiLabel, Regression
from fedgraph_flwr.tasks.triples import Triples

__all__ = ["KINDS", "Batch", "Scorer", "Task", "kind_of", "probe", "reads_edges", "unread_key"]

KINDS: dict[str, type[Task]] = {
    "nodes": Nodes,
    "nodes-regression": Regression,
    "nodes-multilabel": MultiLabel,
    "edges": Edges,
    "links": Links,
    "triples": Triples,
    "graphs": Graphs,
    "graphs-regression": GraphsRegression,
    "graphs-multilabel": GraphsMultiLabel,
}
"""Classes of the tasks by name."""


def kind_of(cfg: RunConfig) -> type[Task]:
    """The class of the task that a run configures."""
    return KINDS[cfg.task.name]


def reads_edges(cfg: RunConfig) -> bool:
    """Return whether a run's model reads columns of edges: as a network, for its items, or as trees on nodes."""
    of_trees = bool(cfg.strategy.params.get("edge_columns"))
    return of_trees or models.network(cfg.model).capabilities.reads_edges or kind_of(cfg).capabilities.reads_edges


def probe(cfg: RunConfig) -> models.Model:
    """Build the run's model for the smallest graph sizes, as `models.probe` does."""
    return models.probe(cfg.model, lambda _, *sizes: kind_of(cfg).network(cfg, *sizes))


def unread_key(cfg: RunConfig) -> tuple[str, list[str]] | None:
    """Return a key of ``task`` that was set and that the run's task does not read, with the tasks that read it."""
    for key in dataclasses.fields(cfg.task):
        if key.name != "name" and key.name not in kind_of(cfg).KEYS and getattr(cfg.task, key.name) != default_of(key):
            return key.name, [name for name, kind in KINDS.items() if key.name in kind.KEYS]
    return None

"""Base class of tasks: items to predict, predictions from a model's outputs, loss and scores.

An item is what is predicted: a node, a pair of nodes, a stored edge. A network gives outputs [N, W] for the nodes of a graph or,
with a readout (`models.readout`), outputs [V, W] for items. A task reads predictions from them and has no parameters. So
every method that trains a network by its loss serves every task.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from fedgraph_flwr import models
from fedgraph_flwr.config import EvaluationConfig, RunConfig
from fedgraph_flwr.config.capabilities import Capable, TaskCapabilities
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.data.split import without_stages
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import chance, metrics
from fedgraph_flwr.models.plain import Plain

_NONE = torch.zeros(0)

STAGES = ("train", *metrics.SPLITS)
"""Splits of items, in the order of their numbers."""


class Batch(NamedTuple):
    """Data of one local step.

    Attributes:
        inputs: inputs of the model.
        nodes: rows of its outputs that train, [V]; of pairs, their two ends [2, V]; None: all rows.
        y: their targets, [V].
        shares: weight of each in a loss that is a weighted sum instead of a mean, [V]; None: a mean.
    """

    inputs: Any
    nodes: Tensor | None
    y: Tensor
    shares: Tensor | None = None


LaterInputs = list[tuple[Tensor, Any]]
"""Items that a later stage predicts, as rows of all outputs, and the model's inputs for them."""


class SplitScorer:
    """Scores of items that are kept by part and split, prepared once for all models.

    Args:
        parts: the scored items of each part, by split.
        values: returns the number of scored items of a part's split, and their loss and scores under a model's outputs.
    """

    def __init__(
        self, parts: Sequence[Mapping[str, Any]], values: Callable[[Tensor, Any], tuple[int, Mapping[str, float]]]
    ):
        self.parts, self.values = parts, values

    def score(
        self, logits: Tensor, names: Sequence[str], targets: Mapping[str, str] | None = None
    ) -> dict[str, list[float]]:
        """Return ``{split}-{metric}``, ``{split}-loss`` and ``{split}-count``, each with one entry per part."""
        outputs = logits.detach().cpu()
        scores: dict[str, list[float]] = {}
        for part in self.parts:
            for split, items in part.items():
                count, values = self.values(outputs, items)
                for key in ("count", "loss", *names):
                    value = float(count) if key == "count" else values.get(key, float("nan"))
                    scores.setdefault(f"{split}-{key}", []).append(value)
        return scores


Scorer = SplitScorer | metrics.Scored
"""The scored items of a client."""


class Task(Capable, values=TaskCapabilities):
    """One task on the graph of one client.

    Args:
        cfg: the run's configuration.
        graph: the client's graph, with the edges of all stages.

    A class declares what `TaskCapabilities` names.

    Attributes:
        METRICS: scores of the task, the default headline first.
        ITEMS: what is predicted, as reports call it.
        CLASSES: key of a schema with the names of the classes.
        KEYS: keys of ``task`` that it reads; other tasks refuse them.
        SPLITS: values of ``split.kind`` that it accepts; empty: all.
        LOSSES: values of ``task.loss`` that it accepts; empty: it reads none.
        graph: what the network may read in training: without the edges of later stages, and without those that are predicted.
        y: targets of all items [V], or [V, T].
        masks: training, validation and test items, bool [V], by split.
    """

    METRICS: ClassVar[tuple[str, ...]]
    ITEMS: ClassVar[str] = "nodes"
    CLASSES: ClassVar[str] = "classes"
    KEYS: ClassVar[frozenset[str]] = frozenset()
    SPLITS: ClassVar[tuple[str, ...]] = ()
    LOSSES: ClassVar[tuple[str, ...]] = ()

    graph: ClientGraph
    y: Tensor
    masks: Mapping[str, Tensor]

    def __init__(self, cfg: RunConfig, graph: Any):
        if self.ITEMS == "nodes" and getattr(graph, "graph_id", _NONE).numel():
            raise FedGraphError(
                f"{graph.name or 'the dataset'} holds many graphs with one label each, but task={cfg.task.name} predicts nodes:"
                " set task to graphs, graphs-regression or graphs-multilabel"
            )
        self.cfg = cfg
        self.graph = graph.until(0)

    @classmethod
    def of_items(cls, cfg: RunConfig, graph: Any) -> Self:
        """Return the task for a model that reads the columns of items, and no messages."""
        return cls(cfg, graph)

    @classmethod
    def split_of(cls, graph: Any) -> Any:
        """Return a client's graph with the split that the task reads: of nodes, or of edges by time (`without_stages`)."""
        return without_stages(graph) if cls.ITEMS == "nodes" else graph

    @classmethod
    def network(cls, cfg: RunConfig, num_features: Any, width: int, num_edge_features: int = 0) -> models.Model:
        """Build the model of ``cfg`` with W outputs, and the task's readout if it has one."""
        return models.build(cfg.model, num_features, width, num_edge_features)

    @classmethod
    def num_classes(cls, graph: Any) -> int:
        """C of a graph: the number of classes of its items, or of targets of each."""
        return int(graph.num_classes)

    @classmethod
    def outputs(cls, cfg: RunConfig, num_classes: int) -> int:
        """W, outputs of the network; C, the number of classes of the data, unless a task says otherwise."""
        return num_classes

    @cached_property
    def width(self) -> int:
        """W on this graph."""
        return self.outputs(self.cfg, self.num_classes(self.graph))

    @property
    def compared(self) -> int:
        """Numbers of pairs that a step or a scoring compares at once, which a node's policy bounds; 0: it compares none."""
        return 0

    def first(self, count: int) -> "Task":
        """Return the task with its first items only, whose outputs are the first ones."""
        if count < len(self.y):
            self.y, self.masks = self.y[:count], {split: mask[:count] for split, mask in self.masks.items()}
        return self

    @property
    def num_rows(self) -> int:
        """Number of rows of the outputs that `scorer` reads."""
        return self.graph.num_nodes

    def columns(self) -> Tensor:
        """Columns of all items [V, F], NaN where missing: what a model reads of an item without messages."""
        return torch.cat([torch.as_tensor(table[rows]) for table, rows in self.tables()], dim=1)

    def tables(self) -> list[tuple[Any, Tensor]]:
        """Tables whose columns, side by side, are `columns`: their rows [n, f], also as `Rows`, and the row of each item [V]."""
        if self.ITEMS == "nodes":
            return [(self.graph.x, torch.arange(len(self.graph.x)))]
        raise FedGraphError(f"items of task={self.cfg.task.name} have no columns of their own")

    @classmethod
    def num_columns(cls, num_features: int, num_edge_features: int) -> int:
        """F of `columns`, from those of nodes and edges."""
        return num_features

    @property
    def variant(self) -> dict[str, Any]:
        """Keys on which `graph` depends besides the client's file, for cached inputs."""
        return {}

    def training_inputs(self, inputs: Any, client: Any) -> Any:
        """Return the model's inputs of `graph`, completed for the training items."""
        return inputs

    def later(self, client: Any, inputs: Any) -> LaterInputs | None:
        """Return the stages by which all items are predicted; None: by the training inputs, or as node classification has them.

        Args:
            client: whose items they are.
            inputs: inputs of the model, made from `graph`.
        """
        return None

    def predictions(self, compute: Callable[[Any], Tensor], inputs: Any, later: LaterInputs) -> Tensor:
        """Return the outputs of all items.

        Args:
            compute: the model's pass.
            inputs: the training inputs.
            later: other stages, whose items replace those of the training inputs.
        """
        outputs = compute(inputs)
        for rows, stage_inputs in later:
            outputs[rows] = compute(stage_inputs)[rows]
        return outputs

    def step(self, whole: Batch, index: int, client: Any) -> Batch:
        """The batch of a local step; by default all training items, or with ``train.sampler`` some with sampled neighbours.

        Args:
            whole: inputs and training items of the client.
            index: the step's number in this local training.
            client: whose step it is.
        """
        return whole if client.sampled is None else client.sampled.step(client.server_round, client.exchange, index)

    @property
    def per_epoch(self) -> int:
        """Number of batches in a pass over the training items."""
        return 1

    def local_steps(self, client: int) -> int:
        """Number of steps per local training of a client, without a sampler."""
        return self.cfg.train.local_epochs * self.per_epoch or self.cfg.train.steps_of(client)

    def steps_on(self, y: Tensor) -> int:
        """Number of the client's own items behind a step, from the step's targets; fewer if some weigh more than others."""
        return y.size(0)

    @staticmethod
    def read(logits: Tensor, items: Tensor | None) -> Tensor:
        """Predictions of items from the network's outputs [N, W]; by default the items' rows."""
        return logits if items is None else logits[items]

    @staticmethod
    def loss(predictions: Tensor, y: Tensor, cfg: RunConfig, weights: Tensor | None = None) -> Tensor:
        """The loss of predictions [V, W] against targets [V], a scalar."""
        raise NotImplementedError

    def scorer(self, floor: int) -> Scorer:
        """The items that models are scored on.

        Args:
            floor: smallest number of items behind a score (the policy's ``min_nodes``).
        """
        raise NotImplementedError

    def confusion(self, logits: Tensor, floor: int) -> list[float]:
        """Confusion matrix of the test items, of a task with classes; see `Nodes.confusion`."""
        raise NotImplementedError

    @classmethod
    def wanted(cls, cfg: EvaluationConfig, width: int) -> tuple[str, ...]:
        """Names of the computed scores, with the chance level of the headline."""
        beside = chance.name_of(cfg.headline)
        return (*cls.METRICS, *cfg.own, *([beside] if beside not in cls.METRICS else []))

    @classmethod
    def score_names(cls, cfg: EvaluationConfig, width: int) -> set[str]:
        """Names of all scores that a client may send."""
        keys = ("count", "loss", *cls.wanted(cfg, width), *cfg.own)
        prefixes = ("", "global-", *(["trained-"] if cfg.trained else []))
        names = {f"{prefix}{split}-{key}" for prefix in prefixes for split in metrics.SPLITS for key in keys}
        return names | {metrics.CONFUSION}

    @classmethod
    def for_prediction(cls, cfg: RunConfig) -> RunConfig:
        """The configuration under which the network reads all that it may read once the run is over."""
        return cfg

    @classmethod
    def exported(cls, plain: Plain) -> Plain:
        """Return an exported model with what makes the task's predictions of its outputs."""
        return plain

    @classmethod
    def check(cls, cfg: RunConfig) -> None:
        """Refuse a configuration that the task cannot serve.

        Raises:
            FedGraphError: a loss of another task, or a split that its items do not have.
        """
        if cfg.task.loss not in (cls.LOSSES or (cfg.task.loss,)):
            raise FedGraphError(
                f"task.loss={cfg.task.loss} is not for task={cfg.task.name}: set task.loss to {_either(cls.LOSSES)}"
            )
        if cfg.split.kind not in (cls.SPLITS or (cfg.split.kind,)):
            kinds = f"={cls.SPLITS[0]}" if len(cls.SPLITS) == 1 else f" to {_either(cls.SPLITS)}"
            raise FedGraphError(
                f"task={cfg.task.name} splits {cls.ITEMS} {_either([HOW[kind] for kind in cls.SPLITS])}, got"
                f" split.kind={cfg.split.kind}: set split.kind{kinds}"
            )


HOW = {"ratio": "at random", "temporal": "by time", "public": "as the data do"}
"""Kinds of splits, in words."""


def _either(names: Sequence[str]) -> str:
    """Join names as ``a, b or c``."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))

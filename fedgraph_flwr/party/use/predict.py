"""Predictions of a trained model, on its training graphs and on new ones.

    predictor = load_predictor(Path("runs/mine"), client=0)       # from a run folder
    predictor = load_node(Path("state"))                          # from a node's state folder, without the server
    predictor.predict(graph).write(Path("predictions.csv"))

A client of the run's method predicts as in the run, so the logits are those that were scored. Its class declares its
requirements: `GraphClient.needs_others`, `predicts_with`, `tunes`.
"""

import contextlib
import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr import models
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.chosen_parts import ChosenParts
from fedgraph_flwr.clients.saved_models import BEST, BY_VALIDATION, GRAPH, LAST
from fedgraph_flwr.clients.state import StateFolder
from fedgraph_flwr.config import RunConfig, compose, one_of
from fedgraph_flwr.data.datasets import is_several
from fedgraph_flwr.data.far_ends import MARKS, widened
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.data.graph import ClientGraph, Graph, graph_digest, read_tensors, unpack_words
from fedgraph_flwr.data.hetero import HeteroClientGraph, HeteroGraph
from fedgraph_flwr.data.many_graphs import starts
from fedgraph_flwr.data.mapped import is_mapped, state_of
from fedgraph_flwr.data.own_columns import recipe_of
from fedgraph_flwr.data.payment_names import Names, payment_names
from fedgraph_flwr.data.root import cache_dir
from fedgraph_flwr.data.schema import EDGE, NODE, Schema, feature_names, fitted_schema
from fedgraph_flwr.engine.process import same_process_state
from fedgraph_flwr.errors import MALFORMED, FedGraphError, by_caller, first_line, from_python, sanitize
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.launch.checks import client_class, rebuilds
from fedgraph_flwr.logs import log
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.numerics.forest import empty_forest
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.party.tables.roles import Columns
from fedgraph_flwr.party.use.day import names_by_id
from fedgraph_flwr.party.use.frames import check_suffix, write_frame
from fedgraph_flwr.party.use.prediction_input import InputSpec, NewNodes, check_scaling, from_pyg
from fedgraph_flwr.party.use.wording import OF_EDGES
from fedgraph_flwr.store.folder import INPUT_SPEC
from fedgraph_flwr.store.results import CONFIG, SUMMARY, read_summary
from fedgraph_flwr.tasks import Task, kind_of
from fedgraph_flwr.tasks.edges import Edges
from fedgraph_flwr.tasks.graphs import OfGraphs
from fedgraph_flwr.tasks.targets import Targets, scale_of
from fedgraph_flwr.tasks.triples import Triples
from fedgraph_flwr.version import __version__
from fedgraph_flwr.wire.messages import EVALUATE, Arrays, derive_seed
from fedgraph_flwr.wire.trees import Tree, unflatten


class ItemPredictions:
    """Predictions that a notebook shows by their first rows, and that are written as a table.

    Attributes:
        ids: ids of the items.
        logits: only of predictions of classes [N, C].
        values: only of tasks with targets: predicted numbers in the unit of the data, or probabilities of yes [N, T].
    """

    ids: np.ndarray
    logits: Tensor
    values: np.ndarray
    day: np.ndarray

    @property
    def probabilities(self) -> np.ndarray:
        """Probability of each class; only of predictions of classes."""
        raise AttributeError(f"{type(self).__name__} have no classes: to_frame() is their table")

    @property
    def codes(self) -> np.ndarray:
        """Class number of each item; only of predictions of classes."""
        return self.probabilities

    @property
    def labels(self) -> np.ndarray:
        """Class name of each item; only of predictions of classes."""
        return self.probabilities

    def at(self: Any, rows: np.ndarray) -> Any:
        """Return the predictions at these positions [K]."""
        held = {name: getattr(self, name) for name in _OF_ITEMS if len(getattr(self, name, ()))}
        return replace(self, **{name: of[:, rows] if name == "ends" else of[rows] for name, of in held.items()})

    @property
    def named(self) -> dict[str, np.ndarray]:
        """Columns that name the items."""
        return {"id": self.ids}

    def to_frame(self) -> Any:
        """Return a pandas table."""
        raise NotImplementedError

    def _table(self, columns: dict[str, np.ndarray]) -> Any:
        """Return a pandas table of the day, if there is one, what names the items, and these columns."""
        import pandas as pd

        return pd.DataFrame({**({"day": self.day} if self.day.size else {}), **self.named, **columns})

    @property
    def _counts(self) -> str:
        return ""

    def __repr__(self) -> str:
        return f"<{self.ids.shape[-1]} {type(self).__name__}{self._counts}; to_frame() is their table>"

    def _repr_html_(self) -> str:
        import html

        rows = self.to_frame().head(10).to_html(float_format="%.4f", border=0, index=False)
        return f"<p>{html.escape(repr(self))}</p>{rows}"

    def write(self, path: Path, keep_formulas: bool = False) -> None:
        """Write a ``.csv`` or ``.parquet``.

        Args:
            path: the file.
            keep_formulas: leave cells of a CSV unchanged that spreadsheets run as formulas (`frames.without_formulas`).

        Raises:
            FedGraphError: the suffix is unknown, or the folder is not writable.
        """
        write_frame(self.to_frame(), path, keep_formulas)


_OF_ITEMS = ("ids", "logits", "values", "day", "time", "ends")
"""Fields of predictions with an entry, a row or, of ``ends``, a column per item; some can be empty."""


@dataclass(repr=False)
class Predictions(ItemPredictions):
    """Predictions for nodes.

    Attributes:
        ids: ids of the nodes [N].
        logits: [N, C].
        classes: C names.
        threshold: minimum probability of the second of two classes; None for the most probable class.
        day: day of a book at whose end each is scored [N]; empty without a book.
    """

    ids: np.ndarray
    logits: Tensor
    classes: tuple[str, ...]
    threshold: float | None = None
    day: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=object))

    @cached_property
    def probabilities(self) -> np.ndarray:
        """Probability of each class, float64 [N, C]."""
        return self.logits.detach().cpu().double().softmax(1).numpy()

    @property
    def codes(self) -> np.ndarray:
        """Class number of each node [N]."""
        if self.threshold is not None and len(self.classes) == 2:
            return (self.probabilities[:, 1] >= self.threshold - 1e-12).astype(np.int64)  # tolerance for rounding
        return self.logits.detach().cpu().numpy().argmax(axis=1)

    @property
    def labels(self) -> np.ndarray:
        """Class name of each node [N]."""
        return np.array(self.classes, dtype=object)[self.codes]

    @property
    def _counts(self) -> str:
        counts = np.bincount(self.codes, minlength=len(self.classes))
        return ": " + ", ".join(f"{name} {count}" for name, count in list(zip(self.classes, counts, strict=True))[:20])

    def to_frame(self) -> Any:
        """Return a pandas table: ``id``, ``p_<class>`` for each class, ``class``."""
        chances = {f"p_{name}": self.probabilities[:, c] for c, name in enumerate(self.classes)}
        return self._table({**chances, "class": self.labels})


@dataclass(repr=False)
class EdgePredictions(Predictions):
    """Predictions for edges; ``ids`` are those of the edges.

    Attributes:
        ends: ids of their sources and targets [2, N].
        time: their times in seconds [N]; empty if unknown.
    """

    ends: np.ndarray = field(default_factory=lambda: np.zeros((2, 0), dtype=object))
    time: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def named(self) -> dict[str, np.ndarray]:
        """Columns that name the items."""
        return {"edge": self.ids, "source": self.ends[0], "target": self.ends[1]}


def in_order(parts: Sequence[Any], days: Sequence[str]) -> Any:
    """Return the predictions of several days, one after the other."""
    joined: dict[str, Any] = {}
    for name in _OF_ITEMS:
        if held := [getattr(part, name) for part in parts if hasattr(part, name)]:
            joined[name] = torch.cat(held) if name == "logits" else np.concatenate(held, axis=int(name == "ends"))
    joined["day"] = np.repeat(np.array(days, dtype=object), [len(part.ids) for part in parts])
    return replace(parts[0], **joined)


@dataclass(repr=False)
class TargetPredictions(ItemPredictions):
    """Predicted targets of nodes.

    Attributes:
        ids: ids of the nodes [N].
        values: numbers in the unit of the data, or probabilities of yes, float64 [N, T].
        names: names of the T columns.
        day: as of `Predictions`.
    """

    ids: np.ndarray
    values: np.ndarray
    names: tuple[str, ...]
    day: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=object))

    def to_frame(self) -> Any:
        """Return a pandas table: ``id`` and one column per target."""
        return self._table({name: self.values[:, t] for t, name in enumerate(self.names)})


@dataclass(repr=False)
class PairPredictions(ItemPredictions):
    """Scores of pairs of nodes: the larger, the more probable is an edge.

    Attributes:
        ids: ids of the two ends [2, K].
        scores: scores of the pairs [K].
    """

    ids: np.ndarray
    scores: np.ndarray

    def to_frame(self) -> Any:
        """A pandas table: ``source``, ``target``, ``score``."""
        import pandas as pd

        return pd.DataFrame({"source": self.ids[0], "target": self.ids[1], "score": self.scores})


Wanted = Callable[[Task], Tensor]
"""Function that returns places of items of a task [K]."""


def threshold_of(predictor: "TaskPredictor") -> float | None:
    """Return the threshold with the best F1 on the validation items of a predictor's own graph (`metrics.threshold`)."""
    logits, task = predictor.outputs(predictor.client_graph, validation)
    labels = task.y[validation(task)]
    return metrics.threshold(logits, labels, torch.ones_like(labels, dtype=torch.bool))


def kept_threshold(predictor: "Predictor", path: Path) -> float | None:
    """As `threshold_of`, kept in the cache: trees take longer to score all validation items than a day's payments."""
    cfg = predictor.cfg
    state = [__version__, str(cfg.split), cfg.seed, predictor.client, *state_of(path)]
    kept = cache_dir() / "thresholds" / f"{digest_of(predictor)}.json"
    with contextlib.suppress(OSError, *MALFORMED):
        entry = json.loads(kept.read_text())
        if entry["state"] == state:
            return None if entry["threshold"] is None else float(entry["threshold"])
    made = threshold_of(predictor)
    with contextlib.suppress(OSError):
        kept.parent.mkdir(exist_ok=True)
        write_bytes(kept, json.dumps({"state": state, "threshold": made}).encode())
    return made


def digest_of(predictor: Any) -> str:
    """Return 16 hexadecimal digits that identify a model's parameters and its method's state."""
    digest = hashlib.sha256()
    for name, tensor in sorted(predictor.tensors.items()):
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def validation(task: Task) -> Tensor:
    """Return the places of a task's validation items."""
    return task.masks["val"].nonzero().view(-1)


MAX_LISTED = 30
"""Largest number of columns that an error lists."""

RANKED = "its model predicts nothing after the run, whose scores are the ranks of triples"


class TaskPredictor(ABC):
    """Predictions of a task from a model's outputs.

    Attributes:
        cfg: configuration of its run; of an exported model, its task.
        client: client whose model it is; None for the shared model.
        input_spec: features and classes that the model expects.
        threshold: of the second of two classes; None if unknown.
        target_stats: mean and standard deviation by which the run standardised its targets, float64 [2, T].
        client_graph: the client's graph; None without a client or its file.
    """

    cfg: RunConfig
    client: int | None
    input_spec: InputSpec
    threshold: float | None
    target_stats: Tensor
    client_graph: Any

    @abstractmethod
    def outputs(self, graph: Any, wanted: Wanted | None = None) -> tuple[Tensor, Task]:
        """Return the model's outputs for a graph's items [V, W], and the task with their targets and masks in this order.

        Args:
            graph: as `as_graph` returns it.
            wanted: returns the places of the items whose outputs are returned, in this order, by the task; None: all.
        """

    @property
    def source(self) -> str:
        """Origin of the model, for errors."""
        return self.input_spec.where

    @property
    def of_party(self) -> bool:
        """Whether it is the model of a client whose graph is stored: not the shared one, and not exported."""
        return isinstance(self, Predictor) and self.client is not None

    @property
    def party(self) -> str:
        """The party's name in its file, in the form in which names are compared; "": it has none."""
        return str(getattr(self.client_graph, "linking", {}).get("party", ""))

    @property
    def who(self) -> str:
        """The party by its name, if its file has one, else its client's number."""
        return sanitize(self.party, 40) if self.party else f"client {self.client}"

    def party_graph(self) -> Any:
        """Return the client's graph.

        Raises:
            FedGraphError: there is no client, or its file is not on this machine.
        """
        if self.client_graph is None:
            lost = f"client {self.client}'s graph is not in {self.cfg.graph or 'the cache'}: restore its file"
            reason = (
                lost if self.of_party else "it has no party's graph: pass --client I, or the state folder of a node"
            )
            raise FedGraphError(f"{self.source}: {reason}")
        return self.client_graph

    def predict(self, graph: Any, ids: Sequence[Any] | np.ndarray | None = None) -> Predictions | TargetPredictions:
        """Predict all nodes of a graph, or all labelled-type nodes of a heterogeneous graph.

        With ``task=edges``, predict all edges; with ``task=graphs``, all graphs that it holds (``graph_id``), or the graph.

        Args:
            graph: a `Graph` or `HeteroGraph` (`prediction_input` reads tables), or a PyG ``Data`` or ``HeteroData``.
            ids: ids of its nodes [N]; default: those of its tables, its ``node_id``, or 0..N-1.

        Raises:
            FedGraphError: another number of features or kind of graph, or a method that cannot predict here.
        """
        self.check_task(self.task is not Triples, RANKED)
        graph = self.as_graph(graph)
        if self.task.capabilities.targets:
            return self._predict_targets(graph, ids)
        self.check_task(self.task.capabilities.classes, "pass pairs of nodes (--pairs)")
        if self.predicts_edges:
            return self._of_edges(graph, ids, None)
        logits, task = self.items(graph)
        if isinstance(task, OfGraphs):
            names, place = _names_of_graphs(graph, ids), task.order.argsort()
            return Predictions(names, logits[place], self.input_spec.classes, self.threshold)
        return Predictions(names_of(graph, ids), logits, self.input_spec.classes, self.threshold)

    def _of_edges(self, graph: Any, ids: Any, edges: np.ndarray | None) -> EdgePredictions:
        """Return the predictions of some edges of a graph, by their numbers [K]; None: of all."""

        def wanted(task: Task) -> Tensor:
            assert isinstance(task, Edges)
            place = task.order.argsort()
            return place if edges is None else place[torch.from_numpy(edges)]

        logits, task = self.items(graph, wanted)
        assert isinstance(task, Edges)
        place, classes = wanted(task), self.input_spec.classes
        ends = _names_of_ends(graph, names_of(graph, ids), task.ends[:, place])
        time = (task.time[place] if task.time.numel() else task.time).numpy()
        numbers = (np.arange(place.numel()) if edges is None else edges).astype(object)
        return EdgePredictions(numbers, logits, classes, self.threshold, ends=ends, time=time)

    def check_task(self, fits: bool, reason: str) -> None:
        """Refuse a model of another task, with the reason."""
        if not fits:
            raise FedGraphError(f"{self.source} was trained for task={self.cfg.task.name}: {reason}")

    def _predict_targets(self, graph: Any, ids: Any) -> TargetPredictions:
        stats = self.target_stats
        unknown = torch.full((graph.num_nodes, stats.size(1)), torch.nan)
        graph = replace(graph, targets=unknown, target_stats=stats)
        outputs, task = self.outputs(graph)
        if not isinstance(task, Targets):
            raise TypeError(f"task={self.cfg.task.name} predicts no targets")
        names = Columns.of(self.input_spec.tables).targets or [f"target_{t}" for t in range(stats.size(1))]
        values, items = task.in_units(outputs.double()), names_of(graph, ids)
        if isinstance(task, OfGraphs):
            values, items = values[task.order.argsort()], _names_of_graphs(graph, ids)
        return TargetPredictions(items, values.numpy(), tuple(names))

    def logits(self, graph: Any) -> Tensor:
        """Return logits [V, C] of a graph's items, as used by `predict`."""
        return self.items(graph)[0]

    def items(self, graph: Any, wanted: Wanted | None = None) -> tuple[Tensor, Task]:
        """Return logits [V, C] of a graph's items, as of `outputs`, and the task with all targets and masks in their order."""
        (logits, task), classes = self.outputs(self.as_graph(graph), wanted), len(self.input_spec.classes)
        if logits.shape[1] != classes:
            raise FedGraphError(f"{self.source} names {classes} classes, but its model predicts {logits.shape[1]}")
        return logits, task

    @property
    def tensor_inputs(self) -> "TensorInputs":
        """Hook that lets its model be called with tensors."""
        return TensorInputs(self.input_spec, self.cfg.task.name, issubclass(self.task, OfGraphs | Edges | Triples))

    @property
    def predicts_edges(self) -> bool:
        """Whether it predicts edges."""
        return self.task is Edges

    @property
    def reads_edges(self) -> bool:
        """Whether it reads columns of edges that are no items."""
        return True

    @property
    def task(self) -> type[Task]:
        """The class of the run's task."""
        return kind_of(self.cfg)

    def predict_edges(self, table: NewNodes) -> EdgePredictions:
        """Predict the rows of an edge table, in its order.

        Args:
            table: the table, as `prediction_input.new_nodes` reads it.
        """
        self.check_task(self.predicts_edges, "it predicts no edges: call predict()")
        listed = self._of_edges(self.as_graph(table.graph), table.ids, table.edges)
        return replace(listed, ids=table.edge_ids, ends=table.ends if table.ends.size else listed.ends)

    def predict_pairs(self, graph: Any, pairs: Sequence[Sequence[Any]], ids: Any = None) -> PairPredictions:
        """Score pairs of nodes of a graph, for ``task=links``; the network reads all edges of the graph.

        Args:
            graph: as for `predict`.
            pairs: ids of the two ends, [K, 2].
            ids: ids of the graph's nodes, as for `predict`.

        Raises:
            FedGraphError: another task, or an id that the graph does not have.
        """
        self.check_task(self.task is not Triples, RANKED)
        self.check_task(
            not (self.task.capabilities.classes or self.task.capabilities.targets),
            "it predicts no pairs of nodes: leave --pairs out",
        )
        graph = self.as_graph(graph)
        place = {str(name): row for row, name in enumerate(names_of(graph, ids))}
        named = np.asarray([[str(end) for end in pair] for pair in pairs], dtype=object).reshape(-1, 2)
        if missing := [end for end in named.ravel() if end not in place]:
            what = f"{len(missing)} ends of pairs are not nodes of the graph, such as '{missing[0]}'"
            raise FedGraphError(f"{what}: add them to the node table, or leave their pairs out")
        rows = torch.tensor([[place[end] for end in pair] for pair in named]).reshape(-1, 2).T
        return PairPredictions(named.T, self.task.read(self.outputs(graph)[0], rows).numpy())

    def check_width(self, graph: Any) -> None:
        """Refuse a graph with another number of features than the graphs of training.

        Raises:
            FedGraphError: names both numbers, and the columns of training.
        """
        width = self.input_spec.num_features if self.client_graph is None else self.client_graph.num_features
        if isinstance(width, int) and width and graph.num_features != width:
            names = feature_names(self.input_spec.columns(NODE))
            columns = f" ({', '.join(names)})" if len(names) == width <= MAX_LISTED else ""
            raise FedGraphError(
                f"{self.source} was trained on {width} features, and {graph.name or 'the graph'} has {graph.num_features}: give"
                f" it the columns of training in their order{columns}"
            )

    def as_graph(self, graph: Any) -> Graph | HeteroGraph:
        """Convert a PyG graph; other graphs are returned unchanged.

        Raises:
            FedGraphError: the object is not a graph, or has no features or edges.
        """
        made = graph if isinstance(graph, Graph | HeteroGraph) else from_pyg(graph, self.input_spec)
        if issubclass(self.task, OfGraphs) and isinstance(made, Graph) and not made.graph_id.numel():
            return replace(made, graph_id=torch.zeros(made.num_nodes, dtype=torch.int64))  # one graph
        return made


@dataclass(frozen=True)
class TensorInputs:
    """Pre-hook of a model's forward that prepares ``(x, edge_index)``, ``(x, edge_index, edge_attr)`` or a ``Data``.

    Attributes:
        input_spec: features and classes that the model expects.
        task: name of the task.
        of_others: whether the task's items are not nodes.
    """

    input_spec: InputSpec
    task: str
    of_others: bool

    def __call__(self, model: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, Any] | None:
        """Return the arguments of forward; None if they are prepared already.

        Raises:
            FedGraphError: the task's items are not nodes, or the tensors are not a graph with the features of training.
        """
        from torch_geometric.data import Data, HeteroData

        named = dict(zip(("x", "edge_index", "edge_attr"), args, strict=False)) | keywords
        given = args[0] if args else named.get("x")
        if not isinstance(given, Tensor | Mapping | Data | HeteroData):
            return None
        if self.of_others or model.capabilities.heterogeneous or isinstance(given, Mapping):
            what = (
                f"the model of task={self.task} is not called with x and edge_index"
                if self.of_others
                else ("a model of heterogeneous graphs is not called with tensors")
            )
            raise FedGraphError(f"{what}: use run.predict(graph), or model(model.prepare(graph)) of a Graph")
        data = (
            given
            if isinstance(given, Data)
            else Data(**{key: value for key, value in named.items() if value is not None})
        )
        first = next(model.parameters())
        with from_python():
            graph = from_pyg(data, self.input_spec)
        return (model.prepare(graph, first.device, first.dtype),), {}


def as_scored(cfg: RunConfig, task: type[Task]) -> RunConfig:
    """Return the configuration for predictions, with the run's ``split.step``: files may hold a split by time of their own."""
    made = task.for_prediction(cfg)
    return replace(made, split=replace(made.split, step=None if cfg.split.kind == "public" else cfg.split.step))


@dataclass
class Predictor(TaskPredictor):
    """Trained model with the specification of its input.

    Attributes:
        cfg: configuration of its run.
        client: client whose model it is; None for the shared model.
        tensors: parameters by name; for a client, including private ones.
        memory: state of the method that its prediction reads.
        round: round of the parameters.
        input_spec: features and classes that the model expects.
        file: the client's graph file, if it is on this machine.
    """

    cfg: RunConfig
    client: int | None
    tensors: Mapping[str, Tensor]
    memory: Tree
    round: int
    input_spec: InputSpec
    file: Path | None = None

    @property
    def name(self) -> str:
        """Name of the method."""
        return self.cfg.strategy.name

    @property
    def unscored(self) -> str:
        """Why these predictions differ from the scored ones; empty if they do not."""
        kept = (*client_class(self.cfg).predicts_with, *ChosenParts(self.cfg.strategy).predicts_with)
        if self.client is not None or not kept:
            return ""
        return f"this is only the shared model; scored predictions also use state of each client ({', '.join(kept)})"

    @cached_property
    def target_stats(self) -> Tensor:  # type: ignore[override]
        """As `TaskPredictor.target_stats`; all clients have the same.

        Raises:
            FedGraphError: no client's graph of the run is on this machine.
        """
        return scale_of(self._of_run("the unit of its predictions"))

    def given(self, graph: Any, scaled: bool) -> Graph | HeteroGraph:
        """Return the graph of a user, as `as_graph` converts it.

        Args:
            graph: as for `predict`.
            scaled: whether its features are scaled as in training, by the user's word.

        Raises:
            FedGraphError: as of `as_graph`, or features that are scaled otherwise (`check_scaling`).
        """
        self.input_spec = replace(self.input_spec, scaled=scaled)
        if isinstance(graph, Graph | HeteroGraph):
            check_scaling(graph, self.input_spec, "the graph")
        return self.as_graph(graph)

    def network(self, graph: Any) -> models.Model:
        """Return the trained model for graphs with the features of this one."""
        with same_process_state():
            client = self._with_parameters(client_class(self.cfg), self.as_graph(graph))
            if self.client is not None:
                client.model.load_state_dict(client.personal_parameters(), strict=False)
        return client.model.cpu().eval()

    @cached_property
    def client_graph(self) -> Any:
        """The client's graph; None without a client or its file."""
        from fedgraph_flwr import partition

        if self.client is None or (not self.file and self.cfg.on_fleet and not self.cfg.graph):
            return None
        with contextlib.suppress(FedGraphError):
            graph = partition.load(self.file) if self.file else partition.load_client(self.cfg, self.client)
            if schema := fitted_schema(graph.schema, self.source):
                self.input_spec.warn_of_bound(schema.tables.alike, f"client {self.client}'s file has")
            return kind_of(self.cfg).split_of(graph)
        return None

    def _of_run(self, what: str) -> Any:
        """Return a graph of the run, which has the number or names that ``what`` describes."""
        if self._example is None:
            raise FedGraphError(
                f"{self.source}: only clients' files have {what}: restore one, or pass the state folder at a party"
            )
        return self._example

    @cached_property
    def _example(self) -> Any:
        """A graph of the run: the client's, else client 0's of a simulation; None if neither is on this machine."""
        from fedgraph_flwr import partition

        if self.client_graph is not None or self.cfg.on_fleet:
            return self.client_graph
        with contextlib.suppress(FedGraphError):
            return partition.load_client(self.cfg, 0)
        return None

    @cached_property
    def forest(self) -> Arrays:
        """Trees of the model (`numerics.forest`); empty for a network."""
        names = empty_forest()
        held = names.keys() <= self.tensors.keys()
        return {name: self.tensors[name].numpy() for name in names} if held else {}

    @property
    def reads_edges(self) -> bool:
        """As `TaskPredictor.reads_edges`."""
        params = self.cfg.strategy.params
        return not self.forest or bool(params.get("edge_columns")) or params.get("inputs", "columns") != "columns"

    @property
    def width(self) -> int:
        """Number of classes, or of targets."""
        return int(self.target_stats.size(1)) if self.task.capabilities.targets else len(self.input_spec.classes)

    def inputs_of_trees(self, graph: Any) -> np.ndarray:
        """Return what trees read of a graph's items, in the order of `outputs`, NaN where missing [V, F]."""
        with same_process_state():
            client: Any = self._ready(graph)
            return np.asarray(client.x)

    def feature_names(self, graph: Any) -> tuple[list[str], list[str]]:
        """Return names of the features of a graph's nodes [F] and edges [D], numbers where unknown."""
        recipe = recipe_of(graph)
        recipe_columns = (recipe.node_columns, recipe.edge_columns) if recipe else ((), ())
        more = recipe_columns[0] if "nodes" in graph.own_columns else ()
        known = self.built_in
        first = feature_names(self.input_spec.columns(NODE)) or [column.name for column in known.nodes]
        of_edges = feature_names(self.input_spec.columns(EDGE)) or [column.name for column in known.edges]
        nodes = _sized(first, more, graph.num_features, "node")
        return nodes, _sized(of_edges, recipe_columns[1], graph.num_edge_features, "edge")

    @property
    def built_in(self) -> Names:
        """Names of the columns of a built-in dataset; none of a party's own graphs."""
        if self.file or self.cfg.graph or self.cfg.on_fleet or self.input_spec.schema:
            return Names()
        return payment_names(self.cfg.dataset)

    @cached_property
    def column_names(self) -> list[str]:
        """Names of the columns that trees read, by the schema and the recipe of the run's graphs; numbers where unknown.

        Raises:
            FedGraphError: no client's graph of the run is on this machine.
        """
        nodes, edges = self.feature_names(self._of_run("its columns"))
        ends = [f"{end} {name}" for end in ("source", "target") for name in nodes]
        columns = [*edges, *ends] if self.predicts_edges else nodes
        if self.cfg.strategy.params.get("neighbours"):
            columns = [*columns, *(f"mean of {end} {name}" for end in ("sources", "targets") for name in nodes)]
        if self.cfg.strategy.params.get("edge_columns"):
            columns = [*columns, *(f"{of}{name}" for of in OF_EDGES for name in edges)]
        inputs = self.cfg.strategy.params.get("inputs", "columns")
        outputs = [f"output {number}" for number in range(self.width)] if inputs != "columns" else []
        return [*(columns if inputs != "embeddings" else []), *outputs]

    @cached_property
    def threshold(self) -> float | None:  # type: ignore[override]
        """Threshold of the second of two classes with the best F1 on the client's validation nodes; None if unknown."""
        if self.client_graph is None or not self.task.capabilities.classes or len(self.input_spec.classes) != 2:
            return None
        path = self.file or Path(self.cfg.graph).expanduser() / f"client_{self.client:04d}.safetensors"
        kept = self.forest and not self.reads_edges and path.is_file() and is_mapped(path)
        return kept_threshold(self, path) if kept else threshold_of(self)

    def outputs(self, graph: Any, wanted: Wanted | None = None) -> tuple[Tensor, Task]:
        """As `TaskPredictor.outputs`, by a client of the run's method."""
        with same_process_state():
            client = self._ready(graph)
            shared = self.client is None and self.cfg.strategy.personal
            far_ends = self.task.capabilities.far_ends
            task = client.task.first(self.as_graph(graph).y.size(0)) if far_ends else client.task
            if wanted is None:
                logits = client.predict_shared() if shared else client.predict()
                logits = logits[: task.y.size(0)] if far_ends else logits
            else:
                logits = client.predict_shared()[wanted(task)] if shared else client.predict_at(wanted(task))
        return logits.detach().cpu(), task

    def plain(self) -> Plain:
        """Return the model as a module of plain PyG, with the parameters used for predictions.

        Raises:
            FedGraphError: it is of another kind or task, or the method cannot predict here.
        """
        self.check_task(self.task is not Triples, RANKED)
        with same_process_state():
            if needed := client_class(self.cfg).needs_others(self.cfg):
                who = f"a client of strategy={self.name}"
                raise FedGraphError(f"{self.source} cannot be exported: {who} cannot predict new graphs: {needed}")
            client = self._ready(self.client_graph if self.client_graph is not None else self.probe())
            client.model.eval()
            if self.client is not None:
                client.model.load_state_dict(client.personal_parameters(), strict=False)
            pools = issubclass(self.task, OfGraphs) and client.model.capabilities.pools
            return self.task.exported(client.model.plain_of_graphs() if pools else client.model.plain())

    def probe(self) -> Graph:
        """Return a small random graph as the run's clients have, to compare two models.

        Raises:
            FedGraphError: the model needs a heterogeneous graph, or edge features of unknown number.
        """
        rng, nodes, features = torch.Generator().manual_seed(0), 24, self.input_spec.num_features
        if not isinstance(features, int):
            what = "a model for heterogeneous graphs, which cannot be exported yet"
            raise FedGraphError(f"{self.source} is {what}: use `fedgraph-flwr predict`")
        size = 8 if issubclass(self.task, OfGraphs) else nodes  # nodes of a graph
        item = torch.arange(nodes) // size if size < nodes else torch.arange(nodes)
        mask = (torch.rand(nodes, generator=rng) < 0.5)[item]
        start = torch.randint(nodes // size, (4 * nodes,), generator=rng) * size
        classes = max(len(self.input_spec.classes), 1)
        data: dict[str, Any] = {}
        if width := self._num_edge_features():
            data["edge_attr"] = torch.randn(4 * nodes, width, generator=rng)
        if self.task.capabilities.targets:
            stats = self.target_stats
            data |= {"target_stats": stats, "targets": torch.full((nodes, stats.size(1)), torch.nan)}
        return Graph(
            x=torch.randn(nodes, features, generator=rng),
            edge_index=torch.randint(size, (2, 4 * nodes), generator=rng) + start,
            y=torch.randint(classes, (nodes,), generator=rng)[item],
            train_mask=mask,
            val_mask=~mask,
            test_mask=torch.zeros_like(mask),
            num_classes=classes,
            graph_id=item if size < nodes else torch.zeros(0, dtype=torch.int64),
            **data,
        )

    def _num_edge_features(self) -> int:
        """D of the run's graphs; 0 if neither model nor task reads edge features."""
        if not (models.network(self.cfg.model).capabilities.reads_edges or self.task.capabilities.reads_edges):
            return 0
        return int(self._of_run("the number of its edge features").num_edge_features)

    def _ready(self, graph: Any) -> GraphClient:
        """Return a client that is ready to predict a graph, with threads and random state as in the run."""
        torch.set_num_threads(self.cfg.threads)
        client = self._client(graph)
        reseed(derive_seed(self.cfg.seed, client.graph.client, self.round, EVALUATE))
        return client

    def _client(self, graph: Any) -> GraphClient:
        """Return a client of the run's method with these parameters; one that tunes itself stays on its graph."""
        kind = client_class(self.cfg)
        if needed := kind.needs_others(self.cfg):
            self._check_own(graph, needed)
        tunes = ChosenParts(self.cfg.strategy).tunes and self.client is not None
        client = self._with_parameters(kind, self.party_graph() if tunes else graph)
        if tunes and graph is not self.client_graph:
            client.inputs = client.model.prepare(as_client(graph, client.graph), client.device, client.dtype)
            client.later = []
        return client

    def _check_own(self, graph: Any, needed: str) -> None:
        """Refuse graphs whose predictions need other clients: all but the graph whose results the client stored.

        Raises:
            FedGraphError: the client cannot predict; names the reason and the fix.
        """
        known = self.memory.get(GRAPH)
        if known is not None and isinstance(graph, ClientGraph) and torch.equal(known, graph_digest(graph)):
            return
        what, again = "", "evaluate the run (`run evaluate=RUN`)" if rebuilds(self.cfg) else "repeat the run"
        if self.client is None:
            remedy = f"pass {by_caller('--client I', 'client=I')} to predict client I's own nodes"
        elif known is None:
            remedy = "its run stored no results of them, so repeat it"
        elif graph is self.client_graph:
            remedy = "it has another graph file than in its run: restore the file, or repeat the run"
        else:
            what = " new nodes"
            remedy = f"{again} on client files that contain them, then predict without --nodes, --edges and --graph"
        who = f"{self.source}: a client of strategy={self.name}"
        raise FedGraphError(f"{who} cannot predict{what} without the other clients: {needed}: {remedy}")

    def _with_parameters(self, kind: type[GraphClient], graph: Any) -> GraphClient:
        client_graph = as_client(graph, self.client, len(self.input_spec.classes) if self.predicts_edges else 0)
        typed = models.network(self.cfg.model).capabilities.heterogeneous
        if isinstance(client_graph, HeteroGraph) != typed:
            kinds = ("homogeneous", "heterogeneous")
            raise FedGraphError(f"{self.source} expects a {kinds[typed]} graph, got a {kinds[not typed]} one")
        self._check_edge_features(client_graph)
        shares = getattr(self._example, "far", None)
        if (
            shares and client_graph.num_features + MARKS == self.input_spec.num_features
        ):  # without edges to other parties
            client_graph = widened(client_graph, ())
        client = kind(as_scored(self.cfg, self.task), client_graph)
        client.model.load_state_dict(self._fitting(client.model, client_graph), strict=False)
        if memory := {key: tree for key, tree in self.memory.items() if key != GRAPH}:
            client.load(memory)
        return client

    def _check_edge_features(self, graph: Any) -> None:
        """Refuse a heterogeneous graph whose edges have other features than those of the run.

        Raises:
            FedGraphError: names the edge type and both numbers of features.
        """
        known = self.input_spec.num_features
        if not isinstance(graph, HeteroGraph) or not isinstance(known, list) or known[:2] != graph.num_features[:2]:
            return  # other types do not fit the model's shapes
        none, first = [0] * len(graph.edges), 2 + len(graph.counts)
        wanted, graph_widths = (sizes[first:] or none for sizes in (known, graph.num_features))
        for (edge, index), width, graph_width in zip(graph.edges.items(), wanted, graph_widths, strict=False):
            if index.size(1) and width != graph_width:
                what = f"reads {width} features of each edge '{':'.join(edge)}', but this graph has {graph_width}"
                raise FedGraphError(f"{self.source} {what}: pass the edge columns of the run")

    def _fitting(self, model: models.Model, graph: Any) -> dict[str, Tensor]:
        """Return the parameters if they fit this model.

        Raises:
            FedGraphError: a parameter is missing or has another shape.
        """
        model.fit_to({name: self.tensors[name] for name in model.state_dict() if name in self.tensors}, self.source)
        for name, tensor in model.state_dict().items():
            given = self.tensors.get(name)
            if given is None and tensor.is_floating_point():
                clients = _clients_option(self.cfg.num_clients)
                whose = f"pass {clients}" if self.client is None else "it is not stored here"
                raise FedGraphError(f"{self.source} has no {name}, which each client keeps private: {whose}")
            if given is not None and given.shape != tensor.shape:
                self.check_width(graph)
                what = f"this graph of {graph.num_features} features and {graph.num_classes} classes"
                shapes = f"{list(given.shape)} there and {list(tensor.shape)} here"
                raise FedGraphError(f"{self.source} does not fit {what}: {name} is {shapes}")
        return dict(self.tensors)


def load_predictor(run: Path, client: int | None = None, at: str = "") -> Predictor:
    """Load the model of a finished run.

    Args:
        run: run folder.
        client: client whose model to load; None for the shared model.
        at: round, ``best`` (by validation) or ``last``; "" for that of the headline score.

    Raises:
        FedGraphError: the run is not finished, the client does not exist, or only clients have the parameters.
    """
    cfg, summary = finished(run)
    clients = 1 if cfg.strategy.pooled else cfg.num_clients
    if client is not None and not 0 <= client < clients:
        parties = ", ".join(sanitize(name, 40) for name in summary.get("parties", ()))
        raise FedGraphError(f"{run} has no client {client}: expected 0..{clients - 1}{parties and f' ({parties})'}")
    at = _which(at, cfg) if summary["best_round"] else LAST
    stem, done = ("best", summary["best_round"]) if at == BEST else ("final", summary["rounds"])
    if not (model := run / f"model_{stem}.safetensors").is_file():
        raise FedGraphError(f"{run} has no {model.name}: run it again; a sweep keeps models with --keep all")
    tensors, memory = read_tensors(model)[0], Tree()
    if (path := run / f"models_{stem}.safetensors").is_file():
        if client is None:
            raise FedGraphError(f"{run}: each client has its own parameters: pass {_clients_option(clients)}")
        tensors |= unflatten(read_tensors(path)[0]).get(str(client), {})
    if client is not None and (kept := StateFolder.find_model(run / "state", at, client)):
        parts, values = read_tensors(kept)
        with _blamed(kept):
            tree = unflatten(parts)
            tensors, memory, done = tensors | tree.get("model", {}), tree.get("method", {}), int(values["round"])
    spec = _input_spec(run)
    predictor = Predictor(cfg, client, tensors, memory, done, replace(spec, of_fleet=cfg.on_fleet))
    if predictor.unscored:
        log(WARNING, "%s: %s: %s", run, predictor.unscored, _clients_option(clients))
    if client is not None and predictor.client_graph is not None and predictor.client_graph.schema:
        schema, alike = fitted_schema(predictor.client_graph.schema, str(run)), predictor.input_spec.tables.alike
        schema = schema and replace(schema, tables=replace(schema.tables, alike=alike))  # as trained
        predictor.input_spec = replace(predictor.input_spec, schema=schema)
    elif is_several(cfg.dataset) and predictor.client_graph is not None:  # clients differ in features and classes
        names = tuple(map(str, range(predictor.client_graph.num_classes)))
        predictor.input_spec = replace(
            predictor.input_spec, classes=names, num_features=predictor.client_graph.num_features
        )
    return predictor


def _clients_option(clients: int) -> str:
    """Return how a caller chooses one of the clients."""
    last = clients - 1
    return by_caller(f"--client 0..{last}", f"client=0 (0..{last})" if last else "client=0")


def check_predictable(cfg: RunConfig, out: Path) -> None:
    """Refuse, before a run, a table of predictions that it could not write.

    Raises:
        FedGraphError: the suffix is unknown, or the run predicts no items on this machine.
    """
    check_suffix(out)
    reason = ""
    if cfg.on_fleet:
        reason = f"engine={cfg.engine} leaves them at the parties: run `fedgraph-flwr predict STATE` at each"
    elif not (kind_of(cfg).capabilities.classes or kind_of(cfg).capabilities.targets):
        reason = f"task={cfg.task.name} predicts pairs: run `fedgraph-flwr predict RUN --pairs FILE`"
    if reason:
        raise FedGraphError(f"--predictions lists the clients' items, and {reason}")


def predict_clients(run: Path, out: Path) -> int:
    """Write the scores of all clients' own items, each by its own model, and return their number.

    Args:
        run: folder of a finished simulation.
        out: ``.csv`` or ``.parquet`` file; several clients are told apart by a column ``client``.

    Raises:
        FedGraphError: as of `load_predictor` and `TaskPredictor.predict`, or a client's graph that is missing.
    """
    import pandas as pd

    first = load_predictor(run, 0)
    clients = 1 if first.cfg.strategy.pooled else first.cfg.num_clients
    frames = []
    for client in range(clients):
        predictor = load_predictor(run, client) if client else first
        frame = predictor.predict(predictor.party_graph()).to_frame()
        if clients > 1:
            frame.insert(0, "client", client)
        frames.append(frame)
    write_frame(table := pd.concat(frames, ignore_index=True), out)
    return len(table)


def model_folder(state: Path) -> Path:
    """Return the folder of the model that a node stored last: that of its client in a run.

    Raises:
        FedGraphError: there is none.
    """
    if path := StateFolder.find_model(state, LAST):
        return path.parent
    raise FedGraphError(f"{state} holds no model of a finished run: pass a run folder or a node's state folder")


def load_node(state: Path, at: str = "") -> Predictor:
    """Load the model that a node stored after its last run, with its graph's schema, without the server.

    Args:
        state: the node's state folder, or the folder of a run within it.
        at: as for `load_predictor`.

    Raises:
        FedGraphError: the model is missing.
    """
    path = model_folder(state) / f"model_{LAST}.safetensors"
    _, values = read_tensors(path)
    if "config" not in values:
        raise FedGraphError(f"{path} belongs to a simulation: pass its run folder and --client instead")
    cfg = compose([], json.dumps(values["config"]))
    if _which(at, cfg) == BEST and (best := path.with_name(f"model_{BEST}.safetensors")).is_file():
        path = best
    parts, values = read_tensors(path)
    with _blamed(path):
        tree, schema = unflatten(parts), values["schema"]
        classes = schema["agreed"][kind_of(cfg).CLASSES] if schema else map(str, range(values["num_classes"]))
        fitted, both = fitted_schema(schema, str(path)), bool(schema.get("undirected"))
        spec = InputSpec(tuple(classes), values["num_features"], fitted, both, str(path))
        file = Path(values["file"]) if values["file"] else None
        return Predictor(cfg, values["client"], tree["model"], tree.get("method", {}), int(values["round"]), spec, file)


@contextlib.contextmanager
def _blamed(path: Path) -> Iterator[None]:
    """Convert errors of an invalid stored model to one error message with its file."""
    try:
        yield
    except MALFORMED as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise FedGraphError(f"{path} is not a valid stored model ({reason})") from error


def _which(at: str, cfg: RunConfig) -> str:
    """Return the requested round, or that of the headline score."""
    if at:
        one_of(at, (BEST, LAST), "round")
    return at or (BEST if cfg.evaluation.select in BY_VALIDATION else LAST)


def _sized(first: list[str], recipe_columns: Sequence[Any], width: int, what: str) -> list[str]:
    """Return names of columns: the first ones, the party's own, and numbers between them, such as for counts in windows."""
    last = [column.name for column in recipe_columns]
    if len(first) + len(last) > width:
        first, last = [], []
    return [*first, *(f"{what} column {number}" for number in range(len(first), width - len(last))), *last]


BLEND = "blend.json"
"""File of a run folder that holds the weights of other runs instead of a model."""


def finished(run: Path) -> tuple[RunConfig, dict[str, Any]]:
    """Read configuration and summary of a finished run."""
    if (run / BLEND).is_file():
        raise FedGraphError(f"{run} is a blend of other runs and holds no model: pass one that {BLEND} names")
    if not (run / CONFIG).is_file() or not (run / SUMMARY).is_file():
        raise FedGraphError(f"{run} holds no finished run: expected {CONFIG} and {SUMMARY} of `fedgraph-flwr run`")
    return compose([], run / CONFIG), read_summary(run, ["rounds", "best_round"])


def _input_spec(run: Path) -> InputSpec:
    """Read a run's `INPUT_SPEC`."""
    path = run / INPUT_SPEC
    try:
        content = json.loads(path.read_bytes())
        classes, width, undirected = content["classes"], content["num_features"], content["undirected"]
        listed = width if isinstance(width, list) else [width or 0]
        if not isinstance(classes, list) or type(undirected) is not bool or any(type(n) is not int for n in listed):
            raise TypeError("a value has a wrong type")
        schema = Schema.from_dict(content["schema"], str(path)) if content["schema"] else None
        return InputSpec(tuple(map(str, classes)), width, schema, undirected, str(run))
    except (OSError, *MALFORMED) as error:
        reason = first_line(error)
        raise FedGraphError(f"{path} does not define features and classes ({reason}): repeat the run") from error


def as_client(graph: Any, client: Any, edge_classes: int = 0) -> Any:
    """Convert a graph to a client's graph with the client's index, or 0, and with a number of classes of edges, if not 0."""
    if edge_classes:
        graph = replace(graph, num_edge_classes=edge_classes)
    if isinstance(graph, ClientGraph | HeteroClientGraph):
        return graph
    index = client if isinstance(client, int) else getattr(client, "client", 0)
    values = {f.name: getattr(graph, f.name) for f in dataclasses.fields(graph)}
    if isinstance(graph, HeteroGraph):
        return HeteroClientGraph(**values, client=index, num_clients=index + 1)
    ids = torch.arange(graph.num_nodes)
    return ClientGraph(**values, node_id=ids, client=index, num_clients=index + 1, num_global_nodes=graph.num_nodes)


def names_of(graph: Any, ids: Sequence[Any] | np.ndarray | None) -> np.ndarray:
    """Return ids of a graph's nodes [N]: those given, else those of its tables, its ``node_id``, or 0..N-1."""
    if ids is None and len(graph.ids):
        return np.asarray(unpack_words(graph.ids), dtype=object)
    if ids is None:
        held = getattr(graph, "node_id", None)
        held = held.get(graph.target) if isinstance(held, dict) else held
        ids = held.numpy() if held is not None and len(held) else np.arange(graph.y.size(0))
    return np.asarray(ids, dtype=object)


def _names_of_ends(graph: Any, names: np.ndarray, ends: Tensor) -> np.ndarray:
    """Return the names of accounts by their global ids [2, V]; text where names are text, so that a column has one type."""
    known = names_by_id(graph, names)
    text = any(isinstance(name, str) for name in known.values())
    other = str if text else int
    return np.array([[known.get(node, other(node)) for node in row] for row in ends.tolist()], dtype=object)


def _names_of_graphs(graph: Graph, ids: Any) -> np.ndarray:
    """Return the name of each graph [G]: that of its nodes if tables name them, else its number."""
    first = starts(graph)
    named = ids is not None or graph.ids.numel()
    return names_of(graph, ids)[first.numpy()] if named else graph.graph_id[first].numpy()

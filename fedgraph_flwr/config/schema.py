"""Schema of the configuration: typed dataclasses that check their values when created.

Every key has a type, a range and a default here. A method declares its keys in ``Params``, a model in the signature of its
class, and `typed` fills both from the user's values. By default a number must be finite and at least 0. `number` and `choice`
declare other ranges, and `check` checks every field.

The schema uses dataclasses instead of pydantic, whose errors have no file and line: it would add a dependency, and replace only
`Range`, `check` and `convert`.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Union, cast, get_args, get_origin, get_type_hints

from fedgraph_flwr.config.engines import SIMULATIONS
from fedgraph_flwr.config.operating_points import FORMS, point
from fedgraph_flwr.errors import FedGraphError, unknown

DEVICES = ("auto", "cpu", "cuda")

MAX_CLIENTS = 1_000_000

AUTO = "auto"
"""Value of ``stack`` that is resolved for each run."""

AT_ONCE = 32
"""Number of clients computed as one with ``stack=auto``; 128 are not faster."""

MAX_THREADS = 256
"""Maximum number of torch threads in one process; with very many, the process dies silently."""


def one_of(value: str, accepted: Sequence[str], key: str) -> None:
    """Raise an error unless ``value`` is accepted."""
    if value not in accepted:
        raise unknown(key, value, accepted)


def at_least(value: float, bound: float, key: str) -> None:
    """Raise an error unless ``value`` is finite and ``>= bound``."""
    if not bound <= value < math.inf:
        raise FedGraphError(f"{key} must be >= {bound}{' and finite' if value == math.inf else ''}, got {value}")


@dataclass(frozen=True)
class Range:
    """Range of finite numbers that a key accepts; both ends are included unless excluded."""

    low: float = 0
    high: float = math.inf
    without_low: bool = False
    without_high: bool = False

    def check(self, value: float, key: str) -> None:
        """Raise an error unless ``value`` is in the range."""
        if isinstance(value, int) and self.high == math.inf and value > LARGEST_INT:
            raise FedGraphError(f"{key} must be <= {LARGEST_INT}, got {value}")
        above = self.low < value if self.without_low else self.low <= value
        if above and (value < self.high if self.without_high else value <= self.high) and math.isfinite(value):
            return
        if self.high < math.inf:
            ends = f"{'(' if self.without_low else '['}{self.low}, {self.high}{')' if self.without_high else ']'}"
            raise FedGraphError(f"{key} must be in {ends}, got {value}")
        if self.without_low or self.low == -math.inf:
            bound = f"> {self.low} and " if self.without_low else ""
            raise FedGraphError(f"{key} must be {bound}finite, got {value}")
        at_least(value, self.low, key)


LARGEST_INT = 2**31 - 1
"""Upper end of integer fields without an explicit one."""

ANY = Range(-math.inf)
"""Every finite number."""


def number(
    default: float | Sequence[float] | None,
    low: float = 0,
    high: float = math.inf,
    *,
    without_low: bool = False,
    without_high: bool = False,
) -> Any:
    """Return a field for numbers of a `Range`, or for a list of them if its default is a list."""
    metadata = {"range": Range(low, high, without_low, without_high)}
    if isinstance(default, Sequence):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def choice(default: str | int, accepted: Sequence[str | int], targets: bool = False, points: bool = False) -> Any:
    """Return a field for strings or integers; also for ``module:name`` (``targets``), and operating points (``points``)."""
    return field(default=default, metadata={"choices": tuple(map(str, accepted)), "targets": targets, "points": points})


_OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_own(value: object) -> bool:
    """Return whether a value names code as ``module:name``."""
    return isinstance(value, str) and bool(_OWN.fullmatch(value))


def section_of(name: str) -> str:
    """Return the section of a part's keys: its name, of ``module:NAME`` the last."""
    return name.rpartition(":")[2]


CHOICES = ("objective", "variates", "personalization", "server_optimizer")
"""Keys of `StrategyConfig` that choose parts."""


def _is_count(text: str, low: int, *words: str) -> bool:
    """Return whether a text is a number of clients, from ``low`` on, or one of the words."""
    return text in words or (text.isdecimal() and len(text) < 8 and low <= int(text) <= MAX_CLIENTS)


_STEP = re.compile(r"[1-9]\d{0,3}[hd]")


def _full(group: str, key: str) -> str:
    """Return a key with its group, which the keys of a run do not have."""
    return f"{group}.{key}" if group else key


def check(section: Any, group: str) -> None:
    """Check every field of a dataclass against its declared range or choices.

    Args:
        section: dataclass with `number` and `choice` fields; other numbers must be finite and at least 0.
        group: common prefix of the keys, such as ``train``.

    Raises:
        FedGraphError: a number is outside its range, or a string is not accepted.
    """
    for f in dataclasses.fields(section):
        value, key = getattr(section, f.name), _full(group, f.name)
        free = (f.metadata.get("targets") and is_own(value)) or (f.metadata.get("points") and point(str(value)))
        if "choices" in f.metadata and not free:
            one_of(str(value), _choices_of(f), key)
        for item in value if "listed" in f.metadata else ():
            if not is_own(item):
                one_of(item, (*f.metadata["listed"], "module:NAME"), key)
            if value.count(item) > 1:
                raise FedGraphError(f"{key} lists '{item}' more than once, got {value}; list each value once")
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, int | float) and not isinstance(item, bool):
                f.metadata.get("range", Range()).check(item, key)


def _choices_of(f: "Field[Any]") -> tuple[str, ...]:
    """Return what a field of choices accepts, for display."""
    more = ("module:name",) if f.metadata["targets"] else ()
    return f.metadata["choices"] + more + (tuple(FORMS.split(", ")) if f.metadata.get("points") else ())


def default_of(f: "Field[Any]") -> Any:
    """Return a field's default value."""
    return f.default if f.default_factory is MISSING else f.default_factory()


def _default(section: Any, key: str) -> str:
    """Return the default of a section's key as text."""
    outer, _, rest = key.partition(".")
    entry = next(f for f in fields(section) if f.name == outer)
    return _default(entry.type, rest) if rest else _text(default_of(entry))


@cache
def _term(section: Any, term: str) -> tuple[str, bool, list[str]]:
    """Split a term of `Section.clashes` into its key, whether it excludes its values, and the values."""
    key, _, text = term.partition("=")
    values = [value or _default(section, key[:-1]) for value in text.split("|")]
    return key.removesuffix("!"), key.endswith("!"), values


def _text(value: Any) -> str:
    """Return a value as an override has it; -0.0 as 0."""
    if isinstance(value, float):
        return f"{value or 0:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


class Section:
    """Base of the dataclasses below, which check their values when created.

    Attributes:
        group: prefix of the keys.
        clashes: pairs of terms that must not hold together, and why: a text in which ``{}`` is the second key with its value.
            Terms are ``key=value`` or ``key!=value``: ``a|b`` are two values, ``a*`` those that begin with a, and ``key!=``
            excludes the default.
        limits: key, the condition under which its value is wrong, and what it must be, in which ``{c}`` is the section.
        refusals: other values that do not go together: the condition, and the error message, in which ``{c}`` is the section.
    """

    group: ClassVar[str]
    clashes: ClassVar[Sequence[tuple[str, str, str]]] = ()
    limits: ClassVar[Sequence[tuple[str, Callable[[Any], object], str]]] = ()
    refusals: ClassVar[Sequence[tuple[Callable[[Any], object], str]]] = ()

    def __init_subclass__(cls, group: str = "") -> None:
        cls.group = group

    def __post_init__(self) -> None:
        check(self, self.group)
        for first, second, why in self.clashes:
            if (one := self._holding(first)) and (other := self._holding(second)):
                remedies = f"set {self._without(second)}, or {self._without(first)}"
                raise FedGraphError(f"{one} {why.format(other)}: {remedies}")
        for key, wrong, accepted in self.limits:
            if wrong(self):
                value = attrgetter(key)(self)
                raise FedGraphError(f"{_full(self.group, key)} must be {accepted.format(c=self)}, got {value!r}")
        for holds, message in self.refusals:
            if holds(self):
                raise FedGraphError(message.format(c=self))

    def _holding(self, term: str) -> str:
        """Return the key of a term with its value if the term holds, else ""."""
        key, excludes, values = _term(cast(Any, type(self)), term)
        text = _text(attrgetter(key)(self))
        among = any(text.startswith(v[:-1]) if v.endswith("*") else text == v for v in values)
        return f"{_full(self.group, key)}={text}" if among != excludes else ""

    def idle(self, terms: Sequence[str]) -> str:
        """Return why a key of `IDLE` is not read, and what to set; empty if it may be, also by the user's own code."""
        held = [self._holding(term) for term in terms]
        if not all(held) or ":" in "".join(held):
            return ""
        why = f"{NO_EFFECT.format(' and '.join(held))}: set {' or '.join(map(self._without, terms))}"
        return why.replace(".name=", "=")

    def _without(self, term: str) -> str:
        """Return what to set so that a term does not hold."""
        key, excludes, values = _term(cast(Any, type(self)), term)
        default = _default(type(self), key)
        if not excludes and default in values:
            return f"another {_full(self.group, key)}"
        return f"{_full(self.group, key)}={' or '.join(values) if excludes else default}"


def _absolute(params: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the params with an absolute path under a key, since clients run in other folders."""
    return params | ({key: str(Path(str(path)).expanduser().absolute())} if (path := params.get(key)) else {})


NO_EFFECT = "has no effect with {}"
"""Reason of many `Section.clashes`."""


@dataclass
class DatasetConfig(Section, group="dataset"):
    """Dataset, and preprocessing before split and partition."""

    name: str = "demo"  # name of the dataset (see `fedgraph-flwr datasets`)
    source: str = ""  # custom dataset: module:function that creates the graph
    reversed: bool = False  # reverse every edge
    undirected: bool = False  # add the reverse of every edge
    drop_featureless: bool = False  # drop nodes whose features are all 0
    largest_component: bool = False  # keep only nodes of the largest connected component
    remove_self_loops: bool = False  # drop edges from a node to itself
    normalize_features: bool = False  # scale rows of x to sum 1
    edge_flip: float = number(0.0, high=1)  # probability that a client's edge is replaced by a random one
    # heterogeneous graphs: weights are shared per triple (source type, name, target type), or per relation name
    edge_types: str = choice("triple", ("triple", "name"))
    params: dict[str, Any] = field(default_factory=dict)  # keys of this dataset only, such as CSBM's sizes

    def __post_init__(self) -> None:
        super().__post_init__()
        self.params = _absolute(self.params, "path")


@dataclass
class SplitConfig(Section, group="split"):
    """Split into training, validation and test nodes."""

    # public: the dataset's own masks; temporal: nodes by their first edge, and no stage reads edges of a later one
    kind: str = choice("ratio", ("ratio", "kfold", "public", "temporal"))
    # client: within each client's nodes; global: over the whole graph, before the partition
    scope: str = choice("client", ("client", "global"))
    train: float = number(0.6, high=1)  # share of labelled nodes for training
    val: float = number(0.2, high=1)  # share for validation, which selects the round
    test: float = number(0.2, high=1)  # share for testing
    folds: int = 5  # kfold: number of node groups; fold i tests on group i, validates on group i+1, trains on the rest
    fold: int = number(-1, low=-1)  # kfold: group to test on; -1: seed modulo folds
    # kfold with fold -1: each seed draws its own partition and groups; otherwise seeds 0 to folds - 1 share them, and so on
    resample: bool = False
    # temporal: last times of training and of validation, in seconds as edges have them; empty: quantiles of the edges' times
    until: list[int] = field(default_factory=list)
    # temporal, task=edges: an edge is scored on the edges until the end of its own hour or day (6h, 1d, 7d); null: of its stage
    step: str | None = "1d"
    stratify: bool = False  # ratio: apply the ratios within each class
    min_train: int = 0  # minimum training nodes per client, filled from its unused nodes

    limits = (
        ("train", lambda c: sum(c.shares) > 1 + 1e-9, "at most 1 together with split.val and split.test"),
        ("folds", lambda c: c.kind == "kfold" and c.folds < 3, ">= 3"),
        ("until", lambda c: len(c.until) not in (0, 2) or c.until != sorted(c.until), "two ascending times in seconds"),
        ("step", lambda c: c.step is not None and not _STEP.fullmatch(c.step), "hours or days such as 6h, or null"),
    )

    @property
    def step_seconds(self) -> int:
        """Length of `step`; 0 without one."""
        return int(self.step[:-1]) * {"h": 3600, "d": 86_400}[self.step[-1]] if self.step else 0

    @property
    def shares(self) -> tuple[float, float, float]:
        """Shares of training, validation and test."""
        return self.train, self.val, self.test


@dataclass
class PartitionConfig(Section, group="partition"):
    """Partition of a graph into clients: ``name`` groups nodes, ``merge`` turns groups into M clients."""

    name: str = "louvain"  # grouping of nodes, or module:function
    # how groups become clients; none: one client per group
    merge: str = choice("smallest_first", ("smallest_first", "ascending", "first_fit", "random_merge", "none"))
    resolution: float = number(1.0, without_low=True)  # resolution of Louvain
    # random_merge: smaller groups are merged into a random larger one; dirichlet: minimum nodes per client
    min_size: int = 50
    alpha: float = number(0.5, without_low=True)  # dirichlet: concentration; small values put each class at few clients
    delta: int = 20  # first_fit: nodes that a client may hold above N / M
    overlap: float = number(0.0, high=1)  # overlapping: share of a part's nodes drawn by each of its clients
    clients_per_part: int = number(1, low=1)  # overlapping: number of clients per part
    # columns of nodes that far ends of cut edges carry: NAME | PATTERN | NUMBER, each with :buckets (default) | :exact | :eps=E
    share: list[str] = field(default_factory=list)
    min_records: int = number(1, low=1)  # share: fewest edges of a node whose columns are shared
    params: dict[str, Any] = field(default_factory=dict)  # keys of this partitioner only


@dataclass
class ModelConfig(Section, group="model"):
    """Model; ``params`` has the keys of this model only."""

    name: str = "gcn"  # built-in model, or module:Class
    hidden: int = number(64, low=1, high=65_536)  # width of hidden features
    layers: int = number(2, low=1, high=1000)  # number of layers, including the last
    dropout: float = number(0.5, high=1, without_high=True)  # dropout probability
    params: dict[str, Any] = field(default_factory=dict)


SAMPLERS = ("none", "neighbors", "clusters", "saint")
SAMPLER_KEYS = {
    "batch_size": ("neighbors", "saint"),
    **dict.fromkeys(("fanout", "fanout_back", "stable_draws"), ("neighbors",)),
    **dict.fromkeys(("clusters", "clusters_per_batch"), ("clusters",)),
}
"""Key of ``train`` → samplers that read it; with others it is refused."""


@dataclass
class TrainConfig(Section, group="train"):
    """Local training."""

    optimizer: str = choice("adam", ("adam", "adamw", "sgd"))  # optimiser of local steps
    lr: float = number(0.01, without_low=True)  # step size
    weight_decay: float = 5e-4  # weight decay: L2 penalty in the gradient; adamw: decoupled
    momentum: float = 0.0  # sgd: momentum
    local_steps: int = 3  # optimiser steps per round, each on one batch; without a sampler, on all training nodes
    # steps of client i: entry i modulo the length; empty: local_steps for all
    local_steps_by_client: list[int] = field(default_factory=list)
    # reset: at each round; auto: keep for adam and adamw, reset for sgd
    optimizer_state: str = choice("auto", ("auto", "keep", "reset"))
    # weighted: balance classes; focal: down-weight well-classified nodes
    loss: str = choice("cross_entropy", ("cross_entropy", "weighted", "focal"))
    # weighted: class weights from each client's training nodes | from all clients', which report their shares
    class_weights: str = choice("local", ("local", "federated"))
    # focal: exponent; 0 is cross_entropy, and a large one would leave one node in a gradient
    focal_gamma: float = number(2.0, low=0, high=10)
    # batches of steps. none: the whole graph | neighbors: training nodes and sampled neighbours | clusters: parts of the graph by
    # METIS, with the edges between them (Cluster-GCN) | saint: sampled edges' nodes, with the edges between them (GraphSAINT)
    sampler: str = choice("none", SAMPLERS)
    batch_size: int = 0  # neighbors: maximum training nodes per step, 0: all; saint: edges drawn per step
    # neighbors: neighbours per node and layer, from the batch on; -1: all
    fanout: list[int] = field(default_factory=lambda: [10, 10], metadata={"range": Range(-1)})
    # neighbors: the same against the edges, for models that read them in both directions (model.reverse); empty: as fanout
    fanout_back: list[int] = field(default_factory=list, metadata={"range": Range(-1)})
    # with a sampler, or of graphs: passes over the training nodes or graphs per round, instead of local_steps; 0: local_steps
    local_epochs: int = 0
    stable_draws: bool = False  # neighbors: a deleted edge changes only draws that held it; slower
    clusters: int = number(10, low=1)  # clusters: number of parts of each client's graph
    clusters_per_batch: int = number(2, low=1)  # clusters: parts per step

    clashes = (
        *((f"{key}!=", f"sampler!={'|'.join(readers)}", NO_EFFECT) for key, readers in SAMPLER_KEYS.items()),
        ("sampler=saint", "batch_size=0", "draws train.batch_size edges per step, but {}"),
        ("sampler=saint", "class_weights=federated", "does not support {}"),
        ("local_epochs!=0", "local_steps_by_client!=[]", "and {} both set a round's steps"),
        ("class_weights=federated", "loss!=weighted", NO_EFFECT),
    )
    limits = (
        ("fanout", lambda c: 0 in c.fanout, "numbers >= 1, or -1 for all neighbours"),
        ("fanout_back", lambda c: 0 in c.fanout_back, "numbers >= 1, or -1 for all neighbours"),
        ("clusters_per_batch", lambda c: c.clusters_per_batch > c.clusters, "at most train.clusters={c.clusters}"),
    )

    @property
    def keeps_optimizer(self) -> bool:
        """Whether the optimiser's state is kept between rounds."""
        return self.optimizer_state == "keep" or (self.optimizer_state == "auto" and self.optimizer != "sgd")

    @property
    def plain_sgd(self) -> bool:
        """Whether a step is the gradient times the learning rate."""
        return self.optimizer == "sgd" and not self.momentum

    def steps_of(self, client: int) -> int:
        """Return a client's local steps per round, by its index."""
        steps = self.local_steps_by_client or [self.local_steps]
        return steps[client % len(steps)]


METRICS = ("accuracy", "macro_f1", "balanced_accuracy", "auc", "average_precision")
TASKS = {
    "nodes": METRICS,
    "nodes-regression": ("rmse", "mae", "r2"),
    "nodes-multilabel": ("average_precision", "auc", "macro_f1", "micro_f1"),
    "edges": ("average_precision", "auc", "macro_f1", "accuracy", "balanced_accuracy"),
    "graphs": METRICS,
    "graphs-regression": ("rmse", "mae", "r2"),
    "graphs-multilabel": ("average_precision", "auc", "macro_f1", "micro_f1"),
    "links": ("mrr", "hits_1", "hits_3", "hits_10", "auc", "average_precision"),
    "triples": ("mrr", "hits_1", "hits_3", "hits_10", "mr"),
}
"""Scores of each task, the default headline first."""

UNBOUNDED = {"rmse": -1.0, "mae": -1.0, "r2": 1.0, "mr": -1.0}
"""Scores that may lie outside [0, 1], and the sign by which higher is better; all others are in [0, 1], higher is better."""

SHARES = frozenset(chain(*TASKS.values())) - UNBOUNDED.keys()
"""Scores in [0, 1], which reports show in percent."""


def sign_of(metric: str) -> float:
    """Return 1 if a higher value of a metric is better, else -1."""
    operating_point = point(metric)
    return operating_point.sign if operating_point else UNBOUNDED.get(metric, 1.0)


def bounded_metric(metric: str) -> bool:
    """Return whether a built-in metric has values in [0, 1]."""
    operating_point = point(metric)
    return operating_point.bounded if operating_point else metric not in UNBOUNDED


AVERAGES = ("clients", "test_nodes", "nodes")
AGGREGATORS = ("mean", "median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median", "norm_bound")
UNKNOWN_DATA = "unknown"
"""Dataset name in the results of a fleet, whose parties have private graphs."""

SELECTIONS = ("best_val", "own_best_val", "last", "last5")


@dataclass
class EvaluationConfig(Section, group="evaluation"):
    """Evaluation: metrics, and the headline score (`test_accuracy` in the summary)."""

    # metric of the headline score and, on validation nodes, of the round selection
    metric: str = choice("accuracy", tuple(dict.fromkeys(chain(*TASKS.values()))), targets=True, points=True)
    # further metrics: scores at an operating point such as precision@50, recall@fpr=0.01 or cost@100/1, or module:function
    metrics: list[str] = field(default_factory=list)
    # mean over clients: unweighted | weighted by test nodes | weighted by all nodes
    average: str = choice("clients", AVERAGES)
    # round with the best validation score | best per client | last round | mean of the last five rounds
    select: str = choice("best_val", SELECTIONS)
    # validation score for round selection and patience: the headline metric, or the cross entropy, which has no ties and is less
    # noisy with few validation nodes
    monitor: str = choice("metric", ("metric", "loss"))
    every: int = number(1, low=1)  # rounds between evaluations
    # clients that score a model: all | cohort: the next round's trainers, without an extra exchange | a fixed number of clients
    clients: str = "all"
    # stop after this many rounds without a better validation score (own_best_val: of any client); 0: never
    patience: int = 0
    min_delta: float = 0.0  # minimum improvement of the score
    trained: bool = False  # also score each client's model directly after local training
    full: bool = False  # also compute auc, average_precision and F1 per class with more than two classes
    # leave classes, relations and labels with fewer items in a client's split out of its scores, as a node's min_nodes does
    min_items: int = number(0, low=0)
    # clients also send confusion matrices of their test nodes, for the report of a fleet
    confusion: bool = False

    clashes = (("select=own_best_val", "clients=cohort", "needs scores of the same clients in each round, unlike {}"),)
    limits = (("clients", lambda c: not _is_count(c.clients, 1, "all", "cohort"), "all, cohort or an integer >= 1"),)

    def __post_init__(self) -> None:
        super().__post_init__()
        for target in self.metrics:
            if point(target):
                continue
            if not is_own(target):
                accepted = f"operating points ({FORMS}) or custom functions as module:function"
                raise FedGraphError(f"evaluation.metrics must list {accepted}, got '{target}'")
            if (name := target.partition(":")[2]) in METRICS or self.own[name] != target:
                raise FedGraphError(f"evaluation.metrics: there are two metrics named {name}: rename that of {target}")

    @property
    def own(self) -> dict[str, str]:
        """Custom metrics, ``module:function`` by function name."""
        targets = [target for target in (*self.metrics, self.metric) if is_own(target)]
        return {target.partition(":")[2]: target for target in targets}

    @property
    def points(self) -> tuple[str, ...]:
        """Names of the scores at operating points."""
        return tuple(dict.fromkeys(name for name in (*self.metrics, self.metric) if point(name)))

    @property
    def headline(self) -> str:
        """Name of `metric` in results."""
        return self.metric.partition(":")[2] or self.metric

    @property
    def watched(self) -> tuple[str, float]:
        """Name of the score that `monitor` selects, and the sign by which higher is better."""
        return ("loss", -1.0) if self.monitor == "loss" else (self.headline, sign_of(self.headline))


@dataclass
class TaskConfig(Section, group="task"):
    """The prediction task."""

    # nodes: one class per node | nodes-regression: numbers per node | nodes-multilabel: yes or no per column and node |
    # edges: one class per stored edge | links: hidden edges | triples: the missing end of (head, relation, tail) |
    # graphs: one class per graph | graphs-regression: numbers per graph | graphs-multilabel: yes or no per column and graph
    name: str = choice("nodes", tuple(TASKS))
    # nodes-regression, graphs-regression: mse, huber or mae of standardised targets; triples: softmax over a triple and its
    # negatives, or log_sigmoid with margin and temperature
    loss: str = choice("mse", ("mse", "huber", "mae", "softmax", "log_sigmoid"))
    # nodes-multilabel, graphs-multilabel: weight of a positive label in the loss, one for all columns or one per column; []: 1
    positive_weights: list[float] = field(default_factory=list)
    # edges: whether a client also reads the edges between its nodes and other clients', and predicts those that leave its nodes
    between: bool = True
    # links: share of the training edges that a step predicts, and hides; 0: it predicts all and hides none
    disjoint: float = number(0.3, high=1)
    # links: pairs without an edge per training edge; triples: wrong heads or tails per training triple
    negatives: int = number(1, low=1, high=1000)
    # links: pairs without an edge that each scored edge is ranked against
    candidates: int = number(100, low=1, high=100_000)
    decoder: str = choice("rotate", ("transe", "distmult", "rotate"))  # triples: score of (head, relation, tail)
    batch_size: int = number(1024)  # triples, graphs: training triples or graphs per step; 0: all
    margin: float = 6.0  # triples: γ of log_sigmoid
    # triples: weight of a negative in log_sigmoid ∝ exp(temperature · its score); 0: equal weights
    temperature: float = 1.0
    pool: str = choice("sum", ("sum", "mean", "max"))  # graphs: how a graph's node embeddings become one

    @property
    def scores(self) -> str:
        """The accepted metrics, for error messages."""
        return f"{', '.join(TASKS[self.name])} or module:name for task={self.name}"

    def accepts(self, metric: str) -> bool:
        """Return whether a metric is available for the task."""
        scores = TASKS[self.name]
        return metric in scores or is_own(metric) or (METRICS[0] in scores and point(metric) is not None)


@dataclass
class ProxKeys(Section, group="strategy.prox"):
    """Keys of FedProx's proximal term."""

    mu: float = 0.01  # (ours) μ, the middle of the grid 1e-3, 1e-2, 1e-1, 1; 0: no term


@dataclass
class MoonKeys(Section, group="strategy.moon"):
    """Keys of MOON's contrastive term."""

    mu: float = 1.0  # μ, of the paper's grid 0.1, 1, 5, 10; 0: no term
    temperature: float = number(0.5, without_low=True)  # τ of Section 4.1


@dataclass
class SamKeys(Section, group="strategy.sam"):
    """Keys of FedSAM's gradient."""

    rho: float = 0.05  # ρ, the middle of the paper's grid; 0: the plain gradient


@dataclass
class DittoKeys(Section, group="strategy.ditto"):
    """Keys of Ditto's second model."""

    lam: float = 0.1  # (ours) λ; the paper chooses it on validation data. 0: the client's own model is Local's


@dataclass
class ApflKeys(Section, group="strategy.apfl"):
    """Keys of APFL's mixture of models."""

    alpha: float = number(0.5, high=1)  # (ours) initial share of the client's own model
    adaptive: bool = True  # the share moves once a round; false: it is fixed


@dataclass
class FinetuneKeys(Section, group="strategy.finetune"):
    """Keys of local fine-tuning."""

    steps: int = 3  # (ours) E, as many as a round trains; 0: the received model


@dataclass
class AlaKeys(Section, group="strategy.ala"):
    """Keys of FedALA's adaptive local aggregation."""

    # the last p layers by prefix; the paper's p = 1. []: the received model
    mixed: list[str] = field(default_factory=lambda: ["head"])
    sample: float = number(0.8, high=1, without_low=True)  # s, the paper's 80 %
    eta: float = 1.0  # η, the paper's
    # standard deviation of ten losses at which the first training stage stops (the authors' code)
    threshold: float = 0.1
    passes: int = number(100, low=1)  # (ours) maximum passes of the first training stage


@dataclass
class ScaffoldKeys(Section, group="strategy.scaffold"):
    """Keys of SCAFFOLD's control variates."""

    # c_i of Eq. (4): II, as in the paper's experiments, with plain SGD; I with Adam or momentum (ours)
    option: str = choice("auto", ("auto", "I", "II"))
    server_lr: float = 1.0  # η_g, as in the paper's experiments


@dataclass
class FedDynKeys(Section, group="strategy.feddyn"):
    """Keys of FedDyn's dual variables."""

    alpha: float = 1.0  # α; 0: FedAvg


@dataclass
class FedDCKeys(Section, group="strategy.feddc"):
    """Keys of FedDC's drifts and control variates."""

    # c_i of SCAFFOLD's Eq. (4): II with plain SGD; I with Adam or momentum (ours)
    option: str = choice("auto", ("auto", "I", "II"))
    # (ours) α of R_i, for a few local steps like FedDyn's; the authors' CIFAR-10 example has 0.01; 0: no drift
    alpha: float = 1.0
    gradient_term: bool = True  # G_i, the part of the local objective that corrects gradients


@dataclass
class MomentumKeys(Section, group="strategy.momentum"):
    """Keys of FedAvgM's server momentum."""

    beta: float = number(0.9, high=1, without_high=True)  # β of Section 4.3; 0 with server_lr 1 is the mean
    server_lr: float = 0.1  # (ours) η: with η / (1 − β) = 1 a steady step is FedAvg's


@dataclass
class AdagradKeys(Section, group="strategy.adagrad"):
    """Keys of FedAdagrad."""

    beta1: float = number(0.0, high=1, without_high=True)  # β1 of Algorithm 2
    tau: float = number(1e-3, without_low=True)  # τ; it keeps the divisor of a parameter that never moved above 0
    server_lr: float = 0.03  # (ours) η; the paper tunes it for every task


@dataclass
class AdamKeys(Section, group="strategy.adam"):
    """Keys of FedAdam."""

    beta1: float = number(0.9, high=1, without_high=True)  # β1 of Algorithm 2
    beta2: float = number(0.99, high=1, without_high=True)  # β2 of Algorithm 2
    tau: float = number(1e-3, without_low=True)  # τ; it keeps the divisor of a parameter that never moved above 0
    server_lr: float = 0.01  # (ours) η; the paper tunes it for every task


@dataclass
class YogiKeys(AdamKeys, group="strategy.yogi"):
    """Keys of FedYogi."""


PERSONAL_PREFIXES = {"head": ["head"], "norm": ["norms."]}
"""Value of ``strategy.personalization`` → prefixes that it adds to ``strategy.private``."""


@dataclass
class StrategyConfig(Section, group="strategy"):
    """Method: its two classes, shared parameters, weighting and participation.

    ``params`` has the keys of this method only; in YAML and overrides they are next to the others (``strategy.mu=0.1``).
    """

    name: str = "fedavg"  # name in results
    server: str = "fedgraph_flwr.strategies.fedavg:FedAvg"  # server class as module:class
    client: str = "fedgraph_flwr.clients.base:GraphClient"  # client class as module:class
    shared: list[str] = field(default_factory=lambda: [""])  # prefixes of the names of shared parameters; "" shares all
    private: list[str] = field(default_factory=list)  # prefixes of exceptions that stay private; head: the last layer
    # score each client with its personal model, and additionally with the shared one (global_...)
    personal: bool = False
    pooled: bool = False  # one client holds the whole graph, including cut edges
    private_schema: bool = False  # heterogeneous graphs: each client reveals only its own types
    # weights of clients in a mean: training nodes, nodes, or uniform over clients with training nodes (privacy.dp: over all)
    weighting: str = choice("train", ("train", "nodes", "uniform"))
    aggregator: str = choice("mean", AGGREGATORS)  # weighted mean, or a robust aggregator
    byzantine: int = 1  # f, number of malicious clients per round that the aggregator tolerates
    norm_bound: float = 0.0  # aggregator=norm_bound: maximum L2 norm of a client's update; 0: the median of the round
    # maximum share of one client in a weighted mean, whatever number of nodes it reports
    max_share: float = number(1.0, high=1, without_low=True)
    fraction: float = number(1.0, high=1, without_low=True)  # share of the clients sampled each round
    min_clients: int = number(1, low=1)  # minimum number of valid replies; fewer fail the round
    on_failure: str = choice("continue", ("continue", "fail"))  # continue without failed clients, or fail the run
    timeout: float = number(3600.0, without_low=True)  # seconds to wait for an exchange
    # terms that clients add to the loss, and sam, the gradient that they take of the sum: [prox], [moon], [prox, sam] and so on
    objective: list[str] = field(default_factory=list, metadata={"listed": ("prox", "moon", "sam")})
    prox: ProxKeys = field(default_factory=ProxKeys)
    moon: MoonKeys = field(default_factory=MoonKeys)
    sam: SamKeys = field(default_factory=SamKeys)
    # variates that clients keep and the server sums, which correct local gradients
    variates: str = choice("none", ("none", "scaffold", "feddyn", "feddc"), targets=True)
    scaffold: ScaffoldKeys = field(default_factory=ScaffoldKeys)
    feddyn: FedDynKeys = field(default_factory=FedDynKeys)
    feddc: FedDCKeys = field(default_factory=FedDCKeys)
    # what stays personal: the head, normalisation layers, or a second model (Ditto, APFL, fine-tuning, FedALA)
    personalization: str = choice("none", ("none", "head", "norm", "ditto", "apfl", "finetune", "ala"), targets=True)
    ditto: DittoKeys = field(default_factory=DittoKeys)
    apfl: ApflKeys = field(default_factory=ApflKeys)
    finetune: FinetuneKeys = field(default_factory=FinetuneKeys)
    ala: AlaKeys = field(default_factory=AlaKeys)
    # what the server makes of the mean of the clients' models
    server_optimizer: str = choice("average", ("average", "momentum", "adam", "yogi", "adagrad"), targets=True)
    momentum: MomentumKeys = field(default_factory=MomentumKeys)
    adam: AdamKeys = field(default_factory=AdamKeys)
    yogi: YogiKeys = field(default_factory=YogiKeys)
    adagrad: AdagradKeys = field(default_factory=AdagradKeys)
    params: dict[str, Any] = field(default_factory=dict)

    clashes = (("variates=feddyn|feddc", "server_optimizer!=average", "sets the next model, which {} would change"),)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.params = _absolute(self.params, "run")
        if self.personalization in PERSONAL_PREFIXES:
            self.private = list(dict.fromkeys([*self.private, *PERSONAL_PREFIXES[self.personalization]]))
        elif self.personalization != "none":
            self.personal = True

    def cohort_size(self, clients: int) -> int:
        """Return the number of ``clients`` sampled per round."""
        return min(max(round(self.fraction * clients), self.min_clients), clients)


FIXED = ("none", "server_fixed", "client_fixed", "distributed", "local")
"""Values of ``privacy.dp`` whose norms are fixed."""

ADAPTIVE = "server_adaptive|client_adaptive|distributed_adaptive"
"""The others, as a term has them."""

LEAST_NOISE = 1e-3
"""Minimum ``privacy.noise_multiplier`` > 0: one release costs an ε of 5e5."""

LEAST_PAYMENTS = 500_000
"""Minimum number of payments of a party under ``privacy.unit=payment``: with fewer, the noise outweighs what a model learns."""

FEW_ROWS = 100_000
"""Number of rows of a party under ``privacy.unit=row`` below which a run prints a warning."""

MAX_NOISE_BITS = 20
"""Maximum ``privacy.secagg_bits`` under ``privacy.dp=distributed``: with 24, NumPy's Poisson variates are 3 % off."""


@dataclass
class PrivacyConfig(Section, group="privacy"):
    """Differential privacy of released models, for clients or for single rows or payments, and secure aggregation."""

    # server_fixed: the server clips updates; client_fixed: each client clips; distributed: each client clips and adds a part of
    # the noise before secure aggregation, so the server sees no update without noise; ..._adaptive: the same, with norms
    # that follow clipping_quantile; local: each client clips the gradients of its rows and adds all noise (unit=row, payment)
    dp: str = choice("none", (*FIXED, *ADAPTIVE.split("|")))
    noise_multiplier: float = 0.0  # standard deviation of the noise on the sum of updates, over the clipping norm
    clipping_norm: float = number(1.0, without_low=True)  # maximum L2 norm of a client's update
    # maximum norms of single groups that the method uploads, such as {variates: 0.1}; others: clipping_norm
    clipping_norms: dict[str, float] = field(default_factory=dict)
    # of adaptive norms: share of clients whose updates should be within the norm; the norms above are those of the first round
    clipping_quantile: float = number(0.5, high=1, without_low=True, without_high=True)
    clipping_rate: float = number(0.2, high=10, without_low=True)  # step of the logarithm of adaptive norms
    # standard deviation of the noise on the number of clients within a norm; 0: the larger of a twentieth of the round's clients
    # and noise_multiplier (times the root of the number of groups)
    clipping_count_noise: float = 0.0
    # δ at which ε is reported; at most 1 / num_clients
    delta: float = number(1e-5, high=1, without_low=True, without_high=True)
    epsilon_budget: float = 0.0  # stop before a release that would exceed this ε; 0: no budget
    # exact: clients send scores and training losses, which no noise covers; none: clients keep them; noised: the run releases
    # only the mean of evaluation.metric over clients, with noise like the model's, and counts it as a release too
    scores: str = choice("exact", ("exact", "none", "noised"))
    secagg: bool = False  # the server learns only the weighted sum of client updates
    # groups that each client sends in the clear despite secagg; a node refuses those not listed in its policy
    reveal: list[str] = field(default_factory=list)
    # minimum share of the cohort that must reply and that can unmask; always more than two thirds (t = ⌊2n/3⌋ + 1)
    secagg_threshold: float = number(2 / 3, low=2 / 3, high=1)
    # fractional bits of the fixed-point encoding; values must stay below 2^(55 - bits)
    secagg_bits: int = number(40, low=8, high=48)
    # who makes the next model: curious: the server, which follows the protocol; verified: every node for itself, from sums that
    # it opens, so that the server can only deliver messages or stop the run; needs an agreement of members
    coordinator: str = choice("curious", ("curious", "verified"))
    # coordinator=verified: largest L2 norm of a round's mean update, to which a longer one is scaled; of trees: largest leaf
    max_update: float = number(0.0)
    # what ε protects: client: one client's contribution | row: one training row of a party | payment: one payment in a party's
    # books, with all rows that read it (docs/privacy.md)
    unit: str = choice("client", ("client", "row", "payment"))
    rows: int = number(0)  # unit=row, payment: public number n of training rows of a party
    # unit=row: expected number of rows of a step; each party draws each row with probability batch / rows; 0: all rows
    batch: int = number(0)
    look_back: int = number(0)  # unit=payment: most payments R at each end that the columns of another one read

    clashes = (
        ("unit!=client", "dp!=local|distributed", "needs noise that the parties add, but {}"),
        ("dp=local", "unit!=row|payment", "adds noise to sums over rows, but {}"),
        ("rows!=0", "unit!=row|payment", NO_EFFECT),
        ("batch!=0", "unit!=row", NO_EFFECT),
        ("look_back!=0", "unit!=payment", NO_EFFECT),
        ("unit!=client", "scores!=none", "releases noised sums only, but {} sends scores"),
        ("unit!=client", "rows=0", "needs the public number of training rows of a party, such as 100000, but {}"),
        ("unit=payment", "look_back=0", "needs the most payments that columns read at each end, such as 8, but {}"),
        ("noise_multiplier!=0", "dp=none", NO_EFFECT),
        (
            "dp=server*|distributed*|local",
            "noise_multiplier=0",
            "with {} protects no more than strategy.aggregator=norm_bound",
        ),
        ("epsilon_budget!=0", "noise_multiplier=0", NO_EFFECT),
        ("scores=noised", "noise_multiplier=0", "adds no noise with {}"),
        ("secagg=true", "dp=server*|client*|local", "hides the updates that {} clips or accounts for"),
        ("dp=distributed*", "secagg!=true", "needs secure sums, as each client adds only a share of the noise, but {}"),
        ("dp=distributed*", "scores!=none|exact", "is for an untrusted server, but {} shows it each client's scores"),
        ("reveal!=[]", "secagg!=true", "lists groups that {} does not hide"),
        ("coordinator=verified", "secagg!=true", "opens secure sums at the nodes, but {}"),
        (
            "coordinator=verified",
            "dp=distributed_adaptive",
            "needs norms of the configuration, and those of {} follow sums",
        ),
        ("coordinator=verified", "reveal!=[]", "opens sums alone, but {} sends single values"),
        ("coordinator=verified", "scores!=none", "lets sums alone leave a node, but {} sends its scores"),
        ("coordinator=verified", "max_update=0", "needs a bound of a round's mean update, such as 1, but {}"),
        ("max_update!=0", "coordinator=curious", NO_EFFECT),
        ("clipping_count_noise!=0", f"dp!={ADAPTIVE}", NO_EFFECT),
        ("clipping_count_noise!=0", "noise_multiplier=0", NO_EFFECT),
    )
    limits = (
        ("batch", lambda c: c.batch > c.rows, "at most privacy.rows={c.rows}, or 0 for all"),
        ("delta", lambda c: c.rows and c.delta > 1 / c.rows, "at most 1 / privacy.rows, or a row may be published"),
        ("rows", lambda c: c.unit == "payment" and c.rows < LEAST_PAYMENTS, f"at least {LEAST_PAYMENTS} for payments"),
        ("noise_multiplier", lambda c: 0 < c.noise_multiplier < LEAST_NOISE, f"0 or at least {LEAST_NOISE:g}"),
        ("clipping_norms", lambda c: not all(0 < n < math.inf for n in c.clipping_norms.values()), "> 0 and finite"),
        (
            "secagg_bits",
            lambda c: c.side == "distributed" and c.secagg_bits > MAX_NOISE_BITS,
            f"at most {MAX_NOISE_BITS} with privacy.dp=distributed, for accurate noise",
        ),
    )

    @property
    def side(self) -> str:
        """The side that clips: ``none``, ``server``, ``client``; ``distributed`` and ``local``: clients, which also add noise."""
        return self.dp.partition("_")[0]

    @property
    def adaptive(self) -> bool:
        """Whether norms follow a quantile of the clients' norms (`fedgraph_flwr.secure.adaptive`)."""
        return self.dp.endswith("_adaptive")

    @property
    def sampling_rate(self) -> float:
        """Return q, the probability with which a party draws a row for a step."""
        return self.batch / self.rows if self.batch else 1.0

    @property
    def expected_rows(self) -> int:
        """Return q n, the public number of rows of a step; 1 if the unit is a client."""
        return self.batch or self.rows or 1

    @property
    def reach(self) -> int:
        """Norms C by which one unit changes a sum (`fedgraph_flwr.secure.rows`)."""
        if self.unit != "payment":
            return 1
        return (8 if self.side == "distributed" else 4) * self.look_back + 1

    def norm(self, group: str) -> float:
        """Return C_g, the maximum L2 norm of a client's update of a group."""
        return float(self.clipping_norms.get(group, self.clipping_norm))


@dataclass
class AttackConfig:
    """Study of what a method exposes, run at the end: ``attack=link_inference``."""

    name: str = "none"  # none | link_inference | module:function
    params: dict[str, Any] = field(default_factory=dict)  # keyword arguments of a custom function

    def __post_init__(self) -> None:
        if is_own(self.name):
            return
        one_of(self.name, ("none", "link_inference", "module:function"), "attack")
        for key in self.params:
            raise unknown("attack key", key, ["name"])


ADVERSARIES = {
    "none": 0.0,
    "sign_flip": 5.0,
    "scaling": 10.0,
    "gaussian": 1.0,
    "free_rider": 1e-3,
    "label_flip": 0.0,
    "backdoor_central": 1.0,
    "backdoor_distributed": 1.0,
}
"""Kinds of attacks by simulated clients, with their default strength."""

BACKDOORS = "backdoor_central|backdoor_distributed"
"""Those with a trigger, as a term has them."""


@dataclass
class AdversaryConfig(Section, group="adversary"):
    """Malicious clients of a simulation: ``adversary.kind=sign_flip adversary.clients=[1]``."""

    kind: str = choice("none", tuple(ADVERSARIES), targets=True)  # kind of attack, or module:Class
    # malicious clients; []: none (the success of a backdoor's trigger is still measured)
    clients: list[int] = field(default_factory=list)
    # factor of the update (sign_flip 5, scaling 10), standard deviation of the noise (gaussian 1, free_rider 0.001),
    # value of the trigger's features (backdoors 1)
    strength: float | None = None
    target: int = 0  # backdoors: target class of the trigger
    # backdoors: share of a malicious client's training nodes of other classes that get the trigger
    rate: float = number(0.5, high=1)
    trigger: int = number(4, low=1)  # backdoors: number of nodes of the whole trigger

    limits = (
        ("clients", lambda c: len(set(c.clients)) < len(c.clients), "distinct integers >= 0"),
        (
            "trigger",
            lambda c: c.kind == "backdoor_distributed" and c.trigger < len(c.clients),
            "one per client or more",
        ),
    )

    @property
    def force(self) -> float:
        """``strength``, or the default of the kind."""
        return ADVERSARIES.get(self.kind, 1.0) if self.strength is None else self.strength

    @property
    def backdoor(self) -> bool:
        """Whether it plants a trigger."""
        return self.kind in BACKDOORS.split("|")


@dataclass
class RayConfig(Section, group="ray"):
    """Settings of ``engine=ray``."""

    address: str = ""  # empty: a new Ray instance for this run | auto | HOST:PORT of a cluster's head
    actors: int = 0  # number of processes with clients; 0: as many as client_cpus and client_gpus allow
    # maximum clients in memory per process, the others are rebuilt from their state on demand; 0: all
    live_clients: int = 0
    # each process sums its clients' updates and sends one sum, for very many clients per round; equal up to rounding
    aggregate: bool = False

    limits = (("address", lambda c: not re.fullmatch(r"(auto|[^\s/:]+:\d+)?", c.address), "auto, HOST:PORT or empty"),)


OWN_SEED = "own_seed_of_node"
"""Attribute of a node's `RunConfig` that is no key, so that no message or file has it."""

NEED_SCORES = ("evaluation.trained=true", "evaluation.confusion=true", "evaluation.patience!=0")
"""Terms that need the scores of clients (`Section.clashes`)."""

NEED_MORE = (
    "evaluation.trained=true",
    "evaluation.confusion=true",
    "evaluation.average!=clients",
    "evaluation.select=own_best_val",
    "evaluation.monitor=loss",
    "strategy.personal=true",
    "evaluation.clients!=all",
)
"""Terms that need more than the mean over clients of one model's scores."""


@dataclass
class RunConfig(Section):
    """Complete configuration of a run."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    adversary: AdversaryConfig = field(default_factory=AdversaryConfig)
    protocol: str = "none"  # conf/protocol file to apply
    # number of clients M; with `graph`, that of its files; with `parties`, of its names
    num_clients: int = number(10, low=1, high=MAX_CLIENTS)
    # names of the parties of a fleet that take part, as `fleet status` prints them; []: the first num_clients
    parties: list[str] = field(default_factory=list)
    rounds: int = number(100, low=1)  # maximum number of rounds (see evaluation.patience)
    seed: int = number(0, high=2**63 - 1)  # seed of all random draws
    engine: str = "inline"  # inline | ray | flower-simulation | the name of a SuperLink connection
    device: str = choice("auto", DEVICES)  # auto: a GPU if available
    threads: int = number(1, low=1, high=MAX_THREADS)  # torch threads per client
    # maximum number of clients in one process trained as one, equal up to rounding and faster for many small graphs;
    # 0: train separately; auto: 32 if the model is small enough for a speed-up, else 0
    stack: str = "0"
    # CPUs per client that trains in parallel (ray, flower-simulation)
    client_cpus: int = number(1, low=1)
    client_gpus: float = 0.0  # GPUs per client, may be a fraction
    dtype: str = choice("float32", ("float32", "float64"))  # float64: for exactness tests
    out: str = ""  # result folder; empty: runs/<time>-<strategy>-<dataset>
    overwrite: bool = False  # replace the finished run in `out`
    resume: str = ""  # result folder of a run to resume
    init: str = ""  # folder of a run, whose trained model (of its checkpoint, if unfinished) this run starts from
    # result folder of a finished run, whose model this run scores and stores at the clients, without training
    evaluate: str = ""
    checkpoint_every: int = 25  # rounds between checkpoints, from which a run can resume; one more at the end; 0: none
    # trackers that receive the scores during the run: tensorboard, mlflow, wandb
    tracking: list[str] = field(default_factory=list)
    tracking_clients: bool = False  # also send scores of single clients to trackers
    tracking_group: str = ""  # group of this run in trackers; a sweep sets its own
    agreement: str = ""  # DIGEST/NUMBER: the run of an agreement of members, which `run --agreement FILE` sets
    # numbers by client that each counts as in means, by its agreement, which `run --agreement FILE` sets; []: sizes of files
    weights: list[int] = field(default_factory=list)
    graph: str = ""  # folder of client files (`fedgraph-flwr partition`); empty: created from dataset and partition

    clashes = (
        ("ray.aggregate=true", "engine!=ray", "requires Ray's actors, but {} has none"),
        ("privacy.secagg=true", "ray.aggregate=true", "masks the values that {} would sum"),
        ("privacy.dp!=none", "ray.aggregate=true", "clips single updates, but {} sums them before"),
        ("train.class_weights=federated", "privacy.dp!=none", "uploads label shares, which {} does not cover"),
        ("evaluation.average=nodes", "privacy.dp!=none", "uploads numbers of nodes, which {} does not cover"),
        ("privacy.secagg=true", "strategy.aggregator!=mean", "shows the server only sums, but {} needs single models"),
        ("ray.aggregate=true", "strategy.aggregator!=mean", "shows the server only sums, but {} needs single models"),
        ("privacy.dp!=none", "strategy.aggregator!=mean", "bounds contributions to a mean, which {} does not compute"),
        (
            "privacy.coordinator=verified",
            "strategy.fraction!=1",
            "needs all members in each round, since sums over different ones show an update, but {} samples some",
        ),
        ("privacy.coordinator=verified", "evaluate!=", "trains, and {} does not"),
        *((key, "privacy.scores=none", "needs scores, which {} keeps at the clients") for key in NEED_SCORES),
        *((key, "privacy.scores=noised", "needs more than the mean scores that {} releases") for key in NEED_MORE),
    )
    limits = (
        ("stack", lambda c: not _is_count(c.stack, 0, AUTO), f"{AUTO} or an integer in [0, {MAX_CLIENTS}]"),
        ("evaluation.metric", lambda c: not c.task.accepts(c.evaluation.metric), "{c.task.scores}"),
        ("parties", lambda c: len({*c.parties}) < len(c.parties), "a list of distinct names"),
        (
            "num_clients",
            lambda c: c.parties and c.num_clients not in (10, len(c.parties)),
            "that of `parties`, or left out",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.num_clients = len(self.parties) or self.num_clients
        metric = self.evaluation.metric
        if self.privacy.scores == "noised" and (beside := [m for m in self.evaluation.points if m != metric]):
            what = f"privacy.scores=noised releases only evaluation.metric={metric}, but evaluation.metrics lists {beside[0]}"
            raise FedGraphError(f"{what}: leave it out, or set privacy.scores to exact or none")
        if self.privacy.scores == "noised" and (is_own(metric) or not bounded_metric(metric)):
            others = [name for name in TASKS[self.task.name] if name not in UNBOUNDED]
            bounded = f"set evaluation.metric to one of {', '.join(others)}, or " if others else ""
            what = "privacy.scores=noised needs a metric with values in [0, 1], which is not guaranteed for"
            raise FedGraphError(f"{what} evaluation.metric={metric}: {bounded}set privacy.scores=none")

    @property
    def own_seed(self) -> int:
        """Seed of what a client draws for itself, such as batches: the run's, or at a member of an agreement a secret one."""
        return int(self.__dict__.get(OWN_SEED, self.seed))

    @property
    def on_fleet(self) -> bool:
        """Whether the clients are nodes of a fleet, each with its own graph."""
        return self.engine not in SIMULATIONS

    @property
    def data_name(self) -> str:
        """Name of the data in results: a fleet's is unknown to the server."""
        return UNKNOWN_DATA if self.on_fleet else self.dataset.name

    @property
    def data_text(self) -> str:
        """Name of the data for display."""
        return "the graphs of a fleet" if self.on_fleet else self.dataset.name

    @property
    def at_once(self) -> int:
        """Maximum number of clients of one process computed as one; see `checks.at_once` for the actual number."""
        return AT_ONCE if self.stack == AUTO else int(self.stack)


DATA = ("dataset", "split", "partition")
"""Sections that determine the clients' graphs, unless these are given."""

SPLIT_BY_CLIENTS = ("edges", "links", "triples")
"""Tasks whose items clients split, also those of files that exist."""

IDLE = {
    **dict.fromkeys(("split.folds", "split.fold", "split.resample"), ("split.kind!=kfold",)),
    "split.until": ("split.kind!=temporal",),
    "split.step": ("task.name!=edges",),
    "partition.alpha": ("partition.name!=dirichlet|relations",),
    "partition.resolution": ("partition.name!=louvain",),
    **dict.fromkeys(("partition.overlap", "partition.clients_per_part"), ("partition.name!=overlapping",)),
    "partition.delta": ("partition.merge!=first_fit",),
    "partition.min_size": ("partition.merge!=random_merge", "partition.name!=dirichlet"),
    "partition.min_records": ("partition.share=[]",),
    "evaluation.min_delta": ("evaluation.patience=0",),
    "tracking_clients": ("tracking=[]",),
}
"""Key → terms of `Section.clashes` with which it is not read, if all hold; a user who sets it then is refused."""

IDLE_IN_SWEEPS = {
    "train.momentum": ("train.optimizer!=sgd",),
    "train.focal_gamma": ("train.loss!=focal",),
    "strategy.norm_bound": ("strategy.aggregator!=norm_bound",),
    "strategy.byzantine": ("strategy.aggregator=mean|norm_bound",),
    **dict.fromkeys(("privacy.clipping_norm", "privacy.clipping_norms", "privacy.delta"), ("privacy.dp=none",)),
    **dict.fromkeys(("privacy.clipping_quantile", "privacy.clipping_rate"), (f"privacy.dp!={ADAPTIVE}",)),
    **dict.fromkeys(("privacy.secagg_bits", "privacy.secagg_threshold"), ("privacy.secagg!=true",)),
    **dict.fromkeys(("adversary.clients", "adversary.strength"), ("adversary.kind=none",)),
    **dict.fromkeys(("adversary.target", "adversary.rate", "adversary.trigger"), (f"adversary.kind!={BACKDOORS}",)),
    "adversary.kind": ("adversary.clients=[]",),
    **dict.fromkeys(("ray.actors", "ray.live_clients", "ray.address"), ("engine!=ray",)),
}
"""The same for keys of choices that sweeps cross (optimisers, protections, attacks): runs that do not read them say so."""


_KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
_LISTS = {int: "a list of integers", float: "a list of numbers", str: "a list of strings"}


def kind_of(hint: Any) -> str:
    """Describe a type for display."""
    inner, origin = get_args(hint), get_origin(hint) or hint
    if origin in (UnionType, Union):
        return " or ".join("null" if member is type(None) else kind_of(member) for member in inner)
    if origin in (list, tuple):
        return _LISTS.get(inner[0], "a list") if inner else "a list"
    return "keys with values" if origin is dict or is_dataclass(origin) else _KINDS.get(hint, "a value")


def accepted(f: "Field[Any]", hint: Any) -> str:
    """Describe the accepted values or range of a field for display; empty for any value of its type."""
    if "choices" in f.metadata:
        return " | ".join(_choices_of(f))
    if "listed" in f.metadata:
        return "a list of " + ", ".join(f.metadata["listed"])
    if hint not in (int, float, int | None, float | None, list[int], list[float]):
        return ""
    span = f.metadata.get("range", Range())
    below, above = "<" if span.without_low else "<=", "<" if span.without_high else "<="
    low = "" if span.low == -math.inf else f"{span.low:g} {below} "
    high = "" if span.high == math.inf else f" {above} {span.high:g}"
    if not high and "int" in str(hint):
        high = f" <= {LARGEST_INT}"
    return f"{low}value{high}" if low or high else ""


def key_field(name: str) -> "tuple[Field[Any] | None, Any]":
    """Return the field and the type of a key, by its dotted name; None for an unknown key."""
    entry, hint = None, RunConfig
    for part in name.split("."):
        if not is_dataclass(hint):
            return None, None
        entry = next((f for f in fields(hint) if f.name == part), None)
        hint = get_type_hints(hint).get(part)  # type: ignore[assignment]
    return entry, hint


def expected(name: str) -> str:
    """Describe a key's type, range and default; empty for an unknown key, or one without a single default."""
    entry, hint = key_field(name)
    if entry is None or entry.default is MISSING:
        return ""
    values = accepted(entry, hint)
    return f"{kind_of(hint)}{f', {values}' if values else ''}; the default is {entry.default!r}"


class MisfitError(Exception):
    """A value that does not fit the type of its key, or an unknown key.

    Attributes:
        key: dotted key.
        value: its value.
        known: the keys that are accepted instead of an unknown one.
    """

    def __init__(self, key: str, value: Any, known: Sequence[str] = ()):
        super().__init__(key)
        self.key, self.value, self.known = key, value, known


def instance(schema: Any, values: Any, key: str = "") -> Any:
    """Return a dataclass from nested ``values``, converted by `convert`; other fields have their defaults.

    Args:
        schema: the dataclass.
        values: values by field.
        key: dotted key of the values.

    Raises:
        MisfitError: a value has another type, or a key is unknown.
        FedGraphError: a value is outside its range.
    """
    hints, prefix = _hints(schema), f"{key}." if key else ""
    if not isinstance(values, dict):
        raise MisfitError(key, values)
    for name in values:
        if name not in hints:
            raise MisfitError(f"{prefix}{name}", values[name], [f"{prefix}{field_name}" for field_name in hints])
    return schema(**{name: convert(hints[name], value, f"{prefix}{name}") for name, value in values.items()})


@cache
def _hints(schema: Any) -> dict[str, Any]:
    hints = get_type_hints(schema)
    return {f.name: hints[f.name] for f in fields(schema)}


_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def convert(hint: Any, value: Any, key: str) -> Any:
    """Return a value of the type ``hint``; lists and dicts are copied.

    An integer becomes a number or a string, text a number, and ``1`` or ``yes`` true. Nothing is rounded.

    Raises:
        MisfitError: it has another type.
    """
    if is_dataclass(hint):
        return instance(hint, value, key)
    inner, origin = get_args(hint), get_origin(hint) or hint
    if origin in (UnionType, Union):
        if type(value) in inner:
            return value
        for member in inner:
            with suppress(MisfitError):
                return convert(member, value, key)
        raise MisfitError(key, value)
    if origin in (list, tuple) and isinstance(value, list | tuple):
        try:
            return [convert(inner[0] if inner else Any, item, key) for item in value]
        except MisfitError as error:
            raise MisfitError(key, value) from error
    if origin is dict and isinstance(value, dict):
        of, to = inner or (str, Any)
        return {convert(of, name, key): convert(to, item, f"{key}.{name}") for name, item in value.items()}
    if hint is Any and type(value) in (list, dict):
        return convert(list[Any] if type(value) is list else dict[str, Any], value, key)
    try:
        return _scalar(hint, value)
    except (KeyError, ValueError, OverflowError):
        raise MisfitError(key, value) from None


def _scalar(hint: Any, value: Any) -> Any:
    """Return a value as bool, int, float or str, or one of them unchanged for ``Any``; `convert` names the error."""
    if hint is Any and (value is None or type(value) in _KINDS):
        return value
    if hint is bool:
        return value if isinstance(value, bool) else _BOOLEANS[str(value).lower()]
    if hint in (int, float) and type(value) in (int, str, hint):
        return hint(value)
    if hint is str and isinstance(value, str | bool | int | float):
        return str(value)
    raise ValueError(value)


def typed(schema: Any, values: dict[str, Any], chosen: str) -> Any:
    """Fill the dataclass ``schema`` with ``values``, converted to the types of its fields (`convert`).

    Args:
        schema: dataclass.
        values: values by field.
        chosen: group and selection that the keys belong to, such as ``strategy=fedprox``.

    Raises:
        FedGraphError: a key is unknown, a value has another type, or is outside the range of its field.
    """
    group = chosen.partition("=")[0]
    try:
        made = instance(schema, values)
    except MisfitError as error:
        if error.known:
            raise unknown(f"{group} key", error.key, error.known, chosen) from error
        kind = kind_of(_hints(schema).get(error.key.partition(".")[0], dict))
        key = ".".join(filter(None, [group, error.key]))
        raise FedGraphError(f"{key} ({chosen}) must be {kind}, got {error.value!r}") from error
    check(made, group)
    return made

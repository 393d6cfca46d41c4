"""The configuration's schema: typed dataclasses whose values are checked where they are made.

Every key has a type, a range and a default here; a method declares its own in ``Params``, a network in the signature of
its class, and `typed` fills either from what a user wrote. A number that says nothing else is finite and at least 0; `number`
and `choice` say it otherwise, and `check` asks every field, so that a new key is checked without another line.

Dataclasses and OmegaConf, not pydantic: OmegaConf reads, merges and converts the YAML anyway, and pydantic's errors know no
file and line, so it would add a dependency and a second conversion and remove only `Range` and `check`.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedgraph_flwr.config.engines import SIMULATIONS
from fedgraph_flwr.errors import FedGraphError, unknown

DEVICES = ("auto", "cpu", "cuda")

MOST_CLIENTS = 1_000_000

AUTO = "auto"
"""What of ``stack`` is found out for the run at hand."""

AT_ONCE = 32
"""Clients that are computed as one where that is found to pay: with 128, a round takes as long."""

MOST_THREADS = 256
"""Torch's threads in one process; with very many, the process dies without a word."""


def one_of(value: str, accepted: Sequence[str], key: str) -> None:
    """Raise unless ``value`` is among the accepted ones."""
    if value not in accepted:
        raise unknown(key, value, accepted)


def at_least(value: float, bound: float, key: str) -> None:
    """Raise unless ``value`` is finite and ``>= bound``."""
    if not bound <= value < math.inf:
        raise FedGraphError(f"{key} must be >= {bound}{' and finite' if value == math.inf else ''}, got {value}")


def below(value: float, bound: float, key: str) -> None:
    """Raise unless ``value < bound``."""
    if not value < bound:
        raise FedGraphError(f"{key} must be < {bound}, got {value}")


@dataclass(frozen=True)
class Range:
    """Which numbers a key accepts: finite ones between two ends, which belong to it unless said otherwise."""

    low: float = 0
    high: float = math.inf
    without_low: bool = False
    without_high: bool = False

    def check(self, value: float, key: str) -> None:
        """Raise unless ``value`` lies in the range."""
        if isinstance(value, int) and self.high == math.inf and value > LARGEST_INT:
            raise FedGraphError(f"{key} must be <= {LARGEST_INT}, got {value}")
        above = self.low < value if self.without_low else self.low <= value
        if above and (value < self.high if self.without_high else value <= self.high) and math.isfinite(value):
            return
        if self.high < math.inf:
            ends = f"{'(' if self.without_low else '['}{self.low}, {self.high}{')' if self.without_high else ']'}"
            raise FedGraphError(f"{key} must lie in {ends}, got {value}")
        if self.without_low or self.low == -math.inf:
            bound = f"> {self.low} and " if self.without_low else ""
            raise FedGraphError(f"{key} must be {bound}finite, got {value}")
        at_least(value, self.low, key)


LARGEST_INT = 2**31 - 1
"""Of a whole number whose field names no upper end."""

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
    """A field that accepts numbers of a `Range`, or a list of them where its default is one."""
    metadata = {"range": Range(low, high, without_low, without_high)}
    if isinstance(default, Sequence):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def choice(default: str | int, accepted: Sequence[str | int], own: bool = False) -> Any:
    """A field that accepts these words or whole numbers; with ``own`` also code of the user's, ``module:name``."""
    return field(default=default, metadata={"choices": tuple(map(str, accepted)), "own": own})


_OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_own(value: object) -> bool:
    """Whether a value names code, as ``module:name``."""
    return isinstance(value, str) and bool(_OWN.fullmatch(value))


def check(section: Any, group: str) -> None:
    """Check every field of a dataclass against what it says of itself.

    Args:
        section: with `number` and `choice` fields; another number must be finite and at least 0.
        group: the keys' common prefix, such as ``train``.

    Raises:
        FedGraphError: a number outside its range, or a word that is not accepted.
    """
    for f in dataclasses.fields(section):
        value, key = getattr(section, f.name), f"{group}.{f.name}" if group else f.name
        if "choices" in f.metadata and not (f.metadata["own"] and is_own(value)):
            one_of(str(value), f.metadata["choices"] + (("module:name",) if f.metadata["own"] else ()), key)
        for item in value if "listed" in f.metadata else ():
            one_of(item, f.metadata["listed"], key)
            if value.count(item) > 1:
                raise FedGraphError(f"{key} must list different words, got {value}")
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, int | float) and not isinstance(item, bool):
                f.metadata.get("range", Range()).check(item, key)


class Section:
    """Base of the dataclasses below, which are checked where they are made; ``group`` is what stands before their keys."""

    group: ClassVar[str]

    def __init_subclass__(cls, group: str = "") -> None:
        cls.group = group

    def __post_init__(self) -> None:
        check(self, self.group)


@dataclass
class DatasetConfig(Section, group="dataset"):
    """Which graph, and what is done to it before it is split and partitioned."""

    name: str = "csbm"  # which; `fedgraph-flwr datasets` lists them
    source: str = ""  # module:function that makes the graph, of a dataset of one's own
    reversed: bool = False  # turn every edge round
    undirected: bool = False  # add the reverse of every edge
    drop_featureless: bool = False  # leave out nodes whose features are all 0
    largest_component: bool = False  # keep its nodes alone
    remove_self_loops: bool = False  # edges from a node to itself
    normalize_features: bool = False  # rows of x sum to 1
    edge_flip: float = number(
        0.0, high=1
    )  # probability with which a client's edge is removed and a random one put in its place
    # typed graphs: what shares weights is a triple (source type, name, target type), or all edges of a name
    edge_types: str = choice("triple", ("triple", "name"))
    params: dict[str, Any] = field(default_factory=dict)  # what only this dataset knows (CSBM's sizes, say)

    def __post_init__(self) -> None:
        super().__post_init__()
        if path := self.params.get("path"):  # clients run in other folders
            self.params = {**self.params, "path": str(Path(str(path)).expanduser().absolute())}


@dataclass
class SplitConfig(Section, group="split"):
    """Which nodes train, validate and test."""

    kind: str = choice("ratio", ("ratio", "kfold", "public"))  # public: the dataset's own masks
    # client: within each client's nodes; global: over the whole graph, before the partition
    scope: str = choice("client", ("client", "global"))
    train: float = number(0.6, high=1)  # share of the labelled nodes that train
    val: float = number(0.2, high=1)  # likewise, of validation nodes, which choose the round
    test: float = number(0.2, high=1)  # likewise, of test nodes, which are scored and choose nothing
    folds: int = 5  # kfold: groups of nodes; fold i tests on group i, validates on group i+1, trains on the rest
    fold: int = number(-1, low=-1)  # -1: seed modulo folds
    # kfold, fold -1: each seed draws its own partition and groups; else those of seeds 0 to folds - 1 are one, and so on
    resample: bool = False
    stratify: bool = False  # ratio: the same ratios within each class
    min_train: int = 0  # a client left with fewer training nodes is given some from its unused nodes

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train + self.val + self.test > 1 + 1e-9:
            raise FedGraphError(f"split.train + val + test must be <= 1, got {self.train + self.val + self.test:g}")
        if self.kind == "kfold":
            at_least(self.folds, 3, "split.folds")


@dataclass
class PartitionConfig(Section, group="partition"):
    """How a graph becomes clients. ``name`` says how nodes are grouped, ``merge`` how groups become M clients."""

    name: str = "louvain"  # how nodes are grouped, or module:function
    # how groups become clients; none: each is one
    merge: str = choice("smallest_first", ("smallest_first", "ascending", "first_fit", "random_merge", "none"))
    resolution: float = number(1.0, without_low=True)  # Louvain
    min_size: int = (
        50  # random_merge: smaller groups are merged whole into a random larger one; dirichlet: nodes of a client
    )
    alpha: float = number(
        0.5, without_low=True
    )  # dirichlet: small, each class at few clients; large, as in the whole graph
    delta: int = 20  # first_fit: slack over N / M
    overlap: float = number(0.0, high=1)  # overlapping: share of a part's nodes drawn for each of its clients
    clients_per_part: int = number(1, low=1)  # overlapping
    params: dict[str, Any] = field(default_factory=dict)  # what only this partitioner knows


@dataclass
class ModelConfig(Section, group="model"):
    """The network. ``params`` holds what only this network knows."""

    name: str = "gcn"  # one of ours, or module:Class
    hidden: int = number(64, low=1, high=65_536)  # width of hidden features
    layers: int = number(2, low=1, high=1000)  # how many, the last included
    dropout: float = number(0.5, high=1, without_high=True)  # share of features that a step leaves out
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers > 1000:  # each is built before the first client starts
            raise FedGraphError(f"model.layers must be <= 1000, got {self.layers}")


@dataclass
class TrainConfig(Section, group="train"):
    """Local training."""

    optimizer: str = choice("adam", ("adam", "adamw", "sgd"))  # of local steps
    lr: float = number(0.01, without_low=True)  # step size
    weight_decay: float = 5e-4  # of the squared norm, in the gradient; adamw: of the parameters, apart from it
    momentum: float = 0.0  # sgd
    local_steps: int = 3  # full-batch steps a round
    # client i takes entry i modulo the length; empty: local_steps for all
    local_steps_by_client: list[int] = field(default_factory=list)
    # reset: each round; auto: keep for adam and adamw, reset for sgd
    optimizer_state: str = choice("auto", ("auto", "keep", "reset"))
    # weighted: classes count alike; focal: what is predicted badly counts more
    loss: str = choice("cross_entropy", ("cross_entropy", "weighted", "focal"))
    # weighted: classes count alike at each client | over all clients' training nodes, of which they tell shares
    class_weights: str = choice("local", ("local", "federated"))
    focal_gamma: float = 2.0  # focal: 0 is cross_entropy

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_weights == "federated" and self.loss != "weighted":
            raise FedGraphError(f"train.class_weights=federated does nothing with train.loss={self.loss}: set weighted")

    @property
    def keeps_optimizer(self) -> bool:
        """Whether the optimiser's state survives a round."""
        return self.optimizer_state == "keep" or (self.optimizer_state == "auto" and self.optimizer != "sgd")

    @property
    def plain_sgd(self) -> bool:
        """Whether a step is the gradient times the step size."""
        return self.optimizer == "sgd" and not self.momentum

    def steps_of(self, client: int) -> int:
        """Local steps a round of a client, by its index."""
        steps = self.local_steps_by_client or [self.local_steps]
        return steps[client % len(steps)]


METRICS = ("accuracy", "macro_f1", "balanced_accuracy", "auc", "average_precision")
TASKS = {
    "nodes": METRICS,
    "links": ("mrr", "hits_1", "hits_3", "hits_10", "auc", "average_precision"),
}
"""Scores of each task, the default headline first."""

SHARES = frozenset(chain(*TASKS.values()))
"""Scores in [0, 1], which reports show in percent."""

AVERAGES = ("clients", "test_nodes", "nodes")
AGGREGATORS = ("mean", "median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median", "norm_bound")
UNKNOWN_DATA = "unknown"
"""In place of a dataset's name in the results of a fleet, whose parties bring their own graphs."""

SELECTIONS = ("best_val", "own_best_val", "last", "last5")


@dataclass
class EvaluationConfig(Section, group="evaluation"):
    """What is scored, and which of the figures is the headline (`test_accuracy` in the summary)."""

    # the headline, and what chooses the round, on validation nodes
    metric: str = choice("accuracy", tuple(dict.fromkeys(chain(*TASKS.values()))), own=True)
    metrics: list[str] = field(default_factory=list)  # of one's own, beside ours: module:function each
    average: str = choice(
        "clients", AVERAGES
    )  # plain mean over clients | weighted by test nodes | weighted by all nodes
    # the round of the best validation figure | of each client's own | the last round | mean of the last five rounds
    select: str = choice("best_val", SELECTIONS)
    # what chooses the round on validation nodes, and what patience waits for: the headline, or the cross entropy, which few
    # validation nodes settle more steadily: it moves with every node's probability and has no ties
    monitor: str = choice("metric", ("metric", "loss"))
    every: int = number(1, low=1)  # rounds between evaluations
    # who scores a model: all | cohort, those who train next, at no exchange of its own | a number, as many, always the same
    clients: str = "all"
    patience: int = (
        0  # stop after so many rounds without a better validation figure (own_best_val: of any client); 0: never
    )
    min_delta: float = 0.0  # by how much a figure must be better
    trained: bool = False  # also score each client's model right after local training
    full: bool = False  # auc, average_precision and the F1 of each class with more than two classes too
    # clients tell, with their scores, how many test nodes of each class are taken for which; for the report of a fleet
    confusion: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clients not in ("all", "cohort") and not (
            self.clients.isdecimal() and len(self.clients) < 8 and 0 < int(self.clients) <= MOST_CLIENTS
        ):
            raise FedGraphError(f"evaluation.clients must be all, cohort or a number from 1, got '{self.clients}'")
        if self.clients == "cohort" and self.select == "own_best_val":
            raise FedGraphError(
                "evaluation.select=own_best_val follows each client's own figure, and evaluation.clients=cohort lets others"
                " score each round: set all or a number"
            )
        for target in self.metrics:
            if not is_own(target):
                raise FedGraphError(
                    f"evaluation.metrics must name functions of your own as module:function, got '{target}'"
                )
            if (name := target.partition(":")[2]) in METRICS or self.own[name] != target:
                raise FedGraphError(f"evaluation.metrics: another metric is called {name} too: rename that of {target}")

    @property
    def own(self) -> dict[str, str]:
        """The user's own metrics, ``module:function`` by the function's name."""
        targets = [*self.metrics, *([self.metric] if is_own(self.metric) else [])]
        return {target.partition(":")[2]: target for target in targets}

    @property
    def headline(self) -> str:
        """The name of `metric` in results."""
        return self.metric.partition(":")[2] or self.metric

    @property
    def watched(self) -> tuple[str, float]:
        """Name of the score that `monitor` selects, and the sign by which higher is better."""
        return ("loss", -1.0) if self.monitor == "loss" else (self.headline, 1.0)


@dataclass
class TaskConfig(Section, group="task"):
    """What is predicted."""

    name: str = choice("nodes", tuple(TASKS))  # nodes: one class per node | links: hidden edges
    # links: share of the training edges that a step predicts, and hides; 0: it predicts all and hides none
    disjoint: float = number(0.3, high=1)
    negatives: int = number(1, low=1, high=1000)  # links: pairs without an edge per training edge
    candidates: int = number(
        100, low=1, high=100_000
    )  # links: pairs without an edge that each scored edge is ranked against


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
    # of the standard deviation of ten losses, at which first learning stops (the authors' code)
    threshold: float = 0.1
    passes: int = number(100, low=1)  # (ours) of first learning, at most


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
    """The method: its two classes, what is shared, how it is weighted, who takes part.

    ``params`` holds the method's own keys; in YAML and overrides they stand beside the others (``strategy.mu=0.1``).
    """

    name: str = "fedavg"  # as results call it
    server: str = "fedgraph_flwr.strategies.fedavg:FedAvg"  # module:class
    client: str = "fedgraph_flwr.clients.base:GraphClient"  # likewise
    shared: list[str] = field(default_factory=lambda: [""])  # prefixes of parameter names that travel; "" is all
    private: list[str] = field(
        default_factory=list
    )  # prefixes of those among them that stay after all; head: the last layer
    personal: bool = False  # a client is scored by a model of its own, and by the shared one beside it (global_...)
    pooled: bool = False  # one client holds the whole graph, cut edges included
    private_schema: bool = False  # typed graphs: a client names the types that it holds, not those of all
    weighting: str = choice(
        "train", ("train", "nodes", "uniform")
    )  # of clients in a mean: training nodes, nodes, or all with training nodes alike (under privacy.dp: all alike)
    aggregator: str = choice("mean", AGGREGATORS)  # mean, which is weighted, or a robust one
    byzantine: int = 1  # f, liars a round that the aggregator is to stand
    norm_bound: float = 0.0  # aggregator=norm_bound: largest L2 norm of a client's update; 0: the median of the round's
    # largest share of one client in a weighted mean, whatever number of nodes it claims
    max_share: float = number(1.0, high=1, without_low=True)
    fraction: float = number(1.0, high=1, without_low=True)  # share of the clients sampled each round
    min_clients: int = number(1, low=1)  # fewer valid replies than this fail the round
    on_failure: str = choice("continue", ("continue", "fail"))  # without a client that failed, or not at all
    timeout: float = number(3600.0, without_low=True)  # seconds to wait for an exchange
    # terms that clients add to the loss, and sam, the gradient that they take of the sum: [prox], [moon], [prox, sam] and so on
    objective: list[str] = field(default_factory=list, metadata={"listed": ("prox", "moon", "sam")})
    prox: ProxKeys = field(default_factory=ProxKeys)
    moon: MoonKeys = field(default_factory=MoonKeys)
    sam: SamKeys = field(default_factory=SamKeys)
    # variates that clients keep and the server sums, which correct local gradients
    variates: str = choice("none", ("none", "scaffold", "feddyn", "feddc"))
    scaffold: ScaffoldKeys = field(default_factory=ScaffoldKeys)
    feddyn: FedDynKeys = field(default_factory=FedDynKeys)
    feddc: FedDCKeys = field(default_factory=FedDCKeys)
    # what stays personal: the head, normalisation layers, or a second model (Ditto, APFL, fine-tuning, FedALA)
    personalization: str = choice("none", ("none", "head", "norm", "ditto", "apfl", "finetune", "ala"))
    ditto: DittoKeys = field(default_factory=DittoKeys)
    apfl: ApflKeys = field(default_factory=ApflKeys)
    finetune: FinetuneKeys = field(default_factory=FinetuneKeys)
    ala: AlaKeys = field(default_factory=AlaKeys)
    # what the server makes of the mean of the clients' models
    server_optimizer: str = choice("average", ("average", "momentum", "adam", "yogi", "adagrad"))
    momentum: MomentumKeys = field(default_factory=MomentumKeys)
    adam: AdamKeys = field(default_factory=AdamKeys)
    yogi: YogiKeys = field(default_factory=YogiKeys)
    adagrad: AdagradKeys = field(default_factory=AdagradKeys)
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.personalization in PERSONAL_PREFIXES:
            self.private = list(dict.fromkeys([*self.private, *PERSONAL_PREFIXES[self.personalization]]))
        elif self.personalization != "none":
            self.personal = True

    def cohort_size(self, clients: int) -> int:
        """How many of the ``clients`` a round samples."""
        return min(max(round(self.fraction * clients), self.min_clients), clients)


LEAST_NOISE = 1e-3
"""Of ``privacy.noise_multiplier``: one release costs an ε of 5e5."""

MAX_NOISE_BITS = 20
"""Of ``privacy.secagg_bits`` under ``privacy.dp=distributed``: with 24, NumPy's Poisson variates are 3 % off."""


@dataclass
class PrivacyConfig(Section, group="privacy"):
    """Differential privacy of each client in the models that the server releases, and secure aggregation."""

    # server_fixed: the server clips updates; client_fixed: each client does; distributed: each client clips and adds its part of
    # the noise before secure aggregation, so that the server sees no update without noise; ..._adaptive: the same, with norms
    # that follow clipping_quantile
    dp: str = choice(
        "none",
        (
            "none",
            "server_fixed",
            "client_fixed",
            "distributed",
            "server_adaptive",
            "client_adaptive",
            "distributed_adaptive",
        ),
    )
    noise_multiplier: float = 0.0  # standard deviation of the noise on the sum of updates, over the clipping norm
    clipping_norm: float = number(1.0, without_low=True)  # largest L2 norm of a client's update
    # largest norms of single groups that the method uploads, such as {variates: 0.1}; others: clipping_norm
    clipping_norms: dict[str, float] = field(default_factory=dict)
    # of adaptive norms: share of clients whose updates should be within the norm; the norms above are those of the first round
    clipping_quantile: float = number(0.5, high=1, without_low=True, without_high=True)
    clipping_rate: float = number(0.2, high=10, without_low=True)  # step of the logarithm of adaptive norms
    # standard deviation of the noise on the number of clients within a norm; 0: the larger of a twentieth of the round's clients
    # and noise_multiplier (times the root of the number of groups)
    clipping_count_noise: float = 0.0
    # at which ε is told; at most 1 / num_clients
    delta: float = number(1e-5, high=1, without_low=True, without_high=True)
    epsilon_budget: float = 0.0  # the run ends before a release that would cost more; 0: none
    # exact: clients send scores and training losses, which no noise covers; none: clients keep them; noised: the run releases
    # only the mean of evaluation.metric over clients, with noise like the model's, and counts it as a release too
    scores: str = choice("exact", ("exact", "none", "noised"))
    secagg: bool = False  # the server learns the weighted sum of what clients trained, and no term of it
    # groups that the server may see of each client despite secagg; a node refuses those that its policy does not list
    reveal: list[str] = field(default_factory=list)
    # share of the cohort that must answer, and that can unmask
    secagg_threshold: float = number(2 / 3, low=0.5, high=1, without_low=True)
    secagg_bits: int = number(
        40, low=8, high=48
    )  # of the fixed point after the point; values must stay below 2^(55 - bits)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_multiplier and self.dp == "none":
            raise FedGraphError(
                f"privacy.noise_multiplier={self.noise_multiplier:g} adds no noise with privacy.dp=none: expected"
                " privacy.dp=server_fixed, client_fixed or distributed"
            )
        if 0 < self.noise_multiplier < LEAST_NOISE:
            raise FedGraphError(
                f"privacy.noise_multiplier={self.noise_multiplier:g} protects nobody, its ε is beyond any number: expected 0 or"
                f" at least {LEAST_NOISE:g}"
            )
        if self.side in ("server", "distributed") and not self.noise_multiplier:
            raise FedGraphError(
                f"privacy.dp={self.dp} with privacy.noise_multiplier=0 protects nobody: expected a multiplier > 0"
                " (to bound updates alone: strategy.aggregator=norm_bound)"
            )
        for group, norm in self.clipping_norms.items():
            if not 0 < norm < float("inf"):
                raise FedGraphError(f"privacy.clipping_norms.{group} must be > 0 and finite, got {norm:g}")
        if self.epsilon_budget and not self.noise_multiplier:
            raise FedGraphError(
                f"privacy.epsilon_budget={self.epsilon_budget:g} without noise has no ε to bound: set"
                " privacy.noise_multiplier"
            )
        if self.scores == "noised" and not self.noise_multiplier:
            raise FedGraphError(
                "privacy.scores=noised without privacy.noise_multiplier adds no noise: set both, or neither"
            )
        if self.secagg and self.side not in ("none", "distributed"):
            raise FedGraphError(
                f"privacy.secagg=true hides from the server what privacy.dp={self.dp} clips or books: set one of the two, or"
                " privacy.dp=distributed"
            )
        if self.side == "distributed":
            self._check_distributed()
        if self.clipping_count_noise and not (self.adaptive and self.noise_multiplier):
            raise FedGraphError(
                f"privacy.clipping_count_noise={self.clipping_count_noise:g} is noise on the counts of adaptive norms, which"
                f" privacy.dp={self.dp} with privacy.noise_multiplier={self.noise_multiplier:g} does not release: set 0"
            )

    @property
    def side(self) -> str:
        """The side that clips: ``none``, ``server``, ``client``; ``distributed``: clients, which also add the noise."""
        return self.dp.partition("_")[0]

    @property
    def adaptive(self) -> bool:
        """Whether norms follow a quantile of the clients' norms (`fedgraph_flwr.secure.adaptive`)."""
        return self.dp.endswith("_adaptive")

    def _check_distributed(self) -> None:
        """Refuse noise at clients that nothing hides, or that would not be what the accountant assumes.

        Raises:
            FedGraphError: secure aggregation is off, scores would be noised by the server, or there are too many bits.
        """
        if not self.secagg:
            raise FedGraphError(
                "privacy.dp=distributed adds a part of the noise at each client, which only a secure sum hides: set"
                " privacy.secagg=true"
            )
        if self.scores == "noised":
            raise FedGraphError(
                "privacy.scores=noised shows the server each client's scores, and privacy.dp=distributed is for a server that"
                " is not trusted: set privacy.scores=none"
            )
        if self.secagg_bits > MAX_NOISE_BITS:
            raise FedGraphError(
                f"privacy.dp=distributed draws accurate noise with privacy.secagg_bits up to {MAX_NOISE_BITS}, got"
                f" {self.secagg_bits}: set privacy.secagg_bits={MAX_NOISE_BITS}"
            )

    def norm(self, group: str) -> float:
        """C_g, the largest L2 norm of a client's update of a group."""
        return float(self.clipping_norms.get(group, self.clipping_norm))


@dataclass
class AttackConfig:
    """A study of what a method exposes, run at the end: ``attack=link_inference``."""

    name: str = "none"  # none | link_inference | module:function
    params: dict[str, Any] = field(default_factory=dict)  # keywords of a function of one's own

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
"""How clients of a simulation may lie, and how much they do where nothing is said."""


@dataclass
class AdversaryConfig(Section, group="adversary"):
    """Clients of a simulation that lie: ``adversary.kind=sign_flip adversary.clients=[1]``."""

    kind: str = choice("none", tuple(ADVERSARIES), own=True)  # what they do
    clients: list[int] = field(
        default_factory=list
    )  # who they are; []: nobody (a backdoor's trigger is measured all the same)
    # factor of the update (sign_flip 5, scaling 10), standard deviation of the noise (gaussian 1, free_rider 0.001),
    # value of the trigger's features (backdoors 1)
    strength: float | None = None
    target: int = 0  # backdoors: the class that the trigger is to call up
    rate: float = number(
        0.5, high=1
    )  # backdoors: share of a liar's training nodes of other classes that bear the trigger
    trigger: int = number(4, low=1)  # backdoors: nodes of the whole trigger

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.clients, default=0) < 0 or len(set(self.clients)) < len(self.clients):
            raise FedGraphError(f"adversary.clients must be different whole numbers from 0, got {self.clients}")
        if self.kind == "backdoor_distributed" and len(self.clients) > self.trigger:
            raise FedGraphError(
                f"adversary.trigger={self.trigger} nodes cannot be dealt out to {len(self.clients)} clients: expected as many"
            )

    @property
    def force(self) -> float:
        """``strength``, or what is usual for the kind."""
        return ADVERSARIES.get(self.kind, 1.0) if self.strength is None else self.strength

    @property
    def backdoor(self) -> bool:
        """Whether it plants a trigger."""
        return self.kind in ADVERSARIES and self.kind.startswith("backdoor")


@dataclass
class RayConfig(Section, group="ray"):
    """Where ``engine=ray`` finds processes for its clients."""

    address: str = ""  # empty: a Ray instance of this run's own | auto | HOST:PORT of a cluster's head
    actors: int = 0  # processes that hold the clients; 0: as many as client_cpus and client_gpus leave room for
    live_clients: int = 0  # clients a process holds at once, the others are built from their state when asked; 0: all
    # each process adds up what its clients trained, and sends one sum: equal to rounding, for very many clients a round
    aggregate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.address not in ("", "auto") and not re.fullmatch(r"[^\s/:]+:\d+", self.address):
            raise FedGraphError(f"ray.address must be auto, HOST:PORT or empty, got '{self.address}'")


@dataclass
class RunConfig(Section):
    """Everything a run is a function of."""

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
    protocol: str = "none"  # which conf/protocol file was applied
    num_clients: int = number(10, low=1, high=MOST_CLIENTS)  # M
    rounds: int = number(100, low=1)  # at most; see evaluation.patience
    seed: int = number(0, high=2**63 - 1)  # of everything that is drawn
    engine: str = "inline"  # inline | ray | flower-simulation | the name of a SuperLink connection
    device: str = choice("auto", DEVICES)  # auto: a GPU where there is one
    threads: int = number(1, low=1, high=MOST_THREADS)  # torch threads in a client
    # clients of one process whose local training is computed as one, at most: equal to rounding, faster for many small graphs;
    # 0: each by itself; auto: 32 where the network is small enough that this pays, else 0
    stack: str = "0"
    # CPUs, and share of a GPU, that clients take which train at a time (ray, flower-simulation)
    client_cpus: int = number(1, low=1)
    client_gpus: float = 0.0  # may be a part of one
    dtype: str = choice("float32", ("float32", "float64"))  # float64: for tests of exactness
    out: str = ""  # result folder; empty: runs/<time>-<strategy>-<dataset>
    overwrite: bool = False  # replace the finished run that is in `out`
    resume: str = ""  # result folder of a run to go on with
    checkpoint_every: int = 25  # rounds between checkpoints, from which an interrupted run goes on; 0: none
    # who else is told of the run while it lasts: tensorboard, mlflow, wandb
    tracking: list[str] = field(default_factory=list)
    tracking_clients: bool = False  # trackers are told of single clients too
    tracking_group: str = ""  # of runs that belong together: trackers show them below it; a sweep names itself
    graph: str = ""  # folder of client files (`fedgraph-flwr partition`); empty: made from dataset and partition

    def __post_init__(self) -> None:
        super().__post_init__()
        by_scores = {
            "evaluation.trained=true": self.evaluation.trained,
            "evaluation.confusion=true": self.evaluation.confusion,
            f"evaluation.patience={self.evaluation.patience}": self.evaluation.patience,
        }
        if self.stack != AUTO and not (
            self.stack.isdecimal() and len(self.stack) < 8 and int(self.stack) <= MOST_CLIENTS
        ):
            raise FedGraphError(f"stack must be {AUTO} or a whole number, 0 to {MOST_CLIENTS}, got '{self.stack}'")
        scores, metric = TASKS[self.task.name], self.evaluation.metric
        if metric not in scores and not is_own(metric):
            raise FedGraphError(
                f"evaluation.metric={metric} is no score of task={self.task.name}: expected {', '.join(scores)} or module:name"
            )
        if self.privacy.scores == "none" and (asked := [key for key, holds in by_scores.items() if holds]):
            raise FedGraphError(f"{asked[0]} needs scores, which privacy.scores=none keeps at the clients")
        if self.ray.aggregate and self.engine != "ray":
            raise FedGraphError(
                f"ray.aggregate=true adds up in Ray's actors, and engine={self.engine} has none: set engine=ray"
            )
        per_client = {
            "evaluation.trained=true": self.evaluation.trained,
            "evaluation.confusion=true": self.evaluation.confusion,
            f"evaluation.average={self.evaluation.average}": self.evaluation.average != AVERAGES[0],
            "evaluation.select=own_best_val": self.evaluation.select == "own_best_val",
            "evaluation.monitor=loss": self.evaluation.monitor == "loss",
            "strategy.personal=true": self.strategy.personal,
            f"evaluation.clients={self.evaluation.clients}": self.evaluation.clients != "all",
        }
        if self.privacy.scores == "noised" and is_own(self.evaluation.metric):
            raise FedGraphError(
                f"privacy.scores=noised needs a metric with values in [0, 1], and nothing bounds the values of"
                f" evaluation.metric={self.evaluation.metric}: set evaluation.metric to one of {', '.join(METRICS)}, or"
                " privacy.scores=none"
            )
        if self.privacy.scores == "noised" and (asked := [key for key, holds in per_client.items() if holds]):
            raise FedGraphError(
                f"privacy.scores=noised tells means over clients of one model's scores, and {asked[0]} asks for more"
            )

    @property
    def on_fleet(self) -> bool:
        """Whether the clients are nodes of a fleet, each with a graph of its own."""
        return self.engine not in SIMULATIONS

    @property
    def data_name(self) -> str:
        """Name of the data in results: a fleet's is unknown to the server."""
        return UNKNOWN_DATA if self.on_fleet else self.dataset.name

    @property
    def at_once(self) -> int:
        """How many clients of one process may be computed as one; `checks.at_once` says how many are."""
        return AT_ONCE if self.stack == AUTO else int(self.stack)


_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    list[int]: "a list of whole numbers",
    list[float]: "a list of numbers",
    int | None: "a whole number or null",
}


def kind_of(hint: Any) -> str:
    """The kind of value that a type means, for people."""
    return _KINDS.get(hint, "a list of words" if hint == list[str] else "a number or null")


def accepted(f: "Field[Any]", hint: Any) -> str:
    """The values or the range that a field accepts, for people; empty: any of its kind."""
    if "choices" in f.metadata:
        return " | ".join([*f.metadata["choices"], *(["module:name"] if f.metadata["own"] else [])])
    if "listed" in f.metadata:
        return "a list of " + ", ".join(f.metadata["listed"])
    if hint not in (int, float, int | None, float | None, list[int], list[float]):
        return ""
    told = f.metadata.get("range", Range())
    below, above = "<" if told.without_low else "<=", "<" if told.without_high else "<="
    low = "" if told.low == -math.inf else f"{told.low:g} {below} "
    high = "" if told.high == math.inf else f" {above} {told.high:g}"
    if not high and "int" in str(hint):
        high = f" <= {LARGEST_INT}"
    return f"{low}value{high}" if low or high else ""


def expected(name: str) -> str:
    """The kind of value that a key takes, its range and its default; empty for a key of no group."""
    *groups, own = name.split(".")
    cls: Any = RunConfig
    for group in groups:
        cls = get_type_hints(cls).get(group) if is_dataclass(cls) else None
    found = next((f for f in fields(cls) if f.name == own), None) if cls and is_dataclass(cls) else None
    if found is None or found.default is MISSING:
        return ""
    hint = get_type_hints(cls)[own]
    values = accepted(found, hint)
    return f"{kind_of(hint)}{f', {values}' if values else ''}; the default is {found.default!r}"


def typed(schema: Any, values: dict[str, Any], chosen: str) -> Any:
    """The dataclass ``schema`` filled with ``values``, which are converted to the types of its fields.

    Args:
        schema: whose fields have types that OmegaConf knows.
        values: by field.
        chosen: the group and what was chosen of it, such as ``strategy=fedprox``, which the keys belong to.

    Raises:
        FedGraphError: a value of another type, or outside the range of its field.
    """
    group = chosen.partition("=")[0]
    filled = OmegaConf.structured(schema)
    for key, value in values.items():
        try:
            OmegaConf.update(filled, key, value, merge=False)
        except OmegaConfBaseException as error:
            kind = get_type_hints(schema)[key]
            where = f"{group}.{key} ({chosen})"
            raise FedGraphError(f"{where} must be {_KINDS.get(kind, kind)}, got {value!r}") from error
    made = OmegaConf.to_object(filled)
    check(made, group)
    return made

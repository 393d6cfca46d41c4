"""The configuration's schema: typed dataclasses whose values are checked where they are made.

Every key has a type, a range and a default here; a method declares its own in ``Params``, a network in the signature of
its class, and `typed` fills either from what a user wrote. A number that says nothing else is finite and at least 0; `number`
and `choice` say it otherwise, and `check` asks every field, so that a new key is checked without another line.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedgraph_flwr.errors import FedGraphError, unknown

DEVICES = ("auto", "cpu", "cuda")

MOST_CLIENTS = 1_000_000

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
    default: float | None,
    low: float = 0,
    high: float = math.inf,
    *,
    without_low: bool = False,
    without_high: bool = False,
) -> Any:
    """A field that accepts numbers of a `Range`."""
    return field(default=default, metadata={"range": Range(low, high, without_low, without_high)})


def choice(default: str, accepted: Sequence[str]) -> Any:
    """A field that accepts these words."""
    return field(default=default, metadata={"choices": tuple(accepted)})


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
        if "choices" in f.metadata:
            one_of(value, f.metadata["choices"], key)
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

    name: str = "csbm"
    undirected: bool = False  # add the reverse of every edge
    largest_component: bool = False
    remove_self_loops: bool = False
    normalize_features: bool = False  # rows of x sum to 1
    edge_flip: float = number(
        0.0, high=1
    )  # probability with which a client's edge is removed and a random one put in its place
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
    train: float = number(0.6, high=1)
    val: float = number(0.2, high=1)
    test: float = number(0.2, high=1)
    folds: int = 5  # kfold: groups of nodes; fold i tests on group i, validates on group i+1, trains on the rest
    fold: int = number(-1, low=-1)  # -1: seed modulo folds
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

    name: str = "louvain"
    merge: str = choice("smallest_first", ("smallest_first", "ascending", "first_fit", "random_merge", "none"))
    resolution: float = number(1.0, without_low=True)  # Louvain
    min_size: int = 50  # random_merge: smaller groups are merged whole into a random larger one
    delta: int = 20  # first_fit: slack over N / M
    overlap: float = number(0.0, high=1)  # overlapping: share of a part's nodes drawn for each of its clients
    clients_per_part: int = number(1, low=1)  # overlapping
    params: dict[str, Any] = field(default_factory=dict)  # what only this partitioner knows


@dataclass
class ModelConfig(Section, group="model"):
    """The network. ``params`` holds what only this network knows."""

    name: str = "gcn"  # one of ours, or module:Class
    hidden: int = number(64, low=1)
    layers: int = number(2, low=1)
    dropout: float = number(0.5, high=1, without_high=True)
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers > 1000:  # each is built before the first client starts
            raise FedGraphError(f"model.layers must be <= 1000, got {self.layers}")


@dataclass
class TrainConfig(Section, group="train"):
    """Local training."""

    optimizer: str = choice("adam", ("adam", "sgd"))
    lr: float = number(0.01, without_low=True)
    weight_decay: float = 5e-4
    momentum: float = 0.0  # sgd
    local_steps: int = 3  # full-batch steps a round
    optimizer_state: str = choice(
        "auto", ("auto", "keep", "reset")
    )  # reset: each round; auto: keep for adam, reset for sgd

    @property
    def keeps_optimizer(self) -> bool:
        """Whether the optimiser's state survives a round."""
        return self.optimizer_state == "keep" or (self.optimizer_state == "auto" and self.optimizer == "adam")


METRICS = ("accuracy", "macro_f1", "auc")
AVERAGES = ("clients", "test_nodes", "nodes")
SELECTIONS = ("best_val", "own_best_val", "last", "last5")


@dataclass
class EvaluationConfig(Section, group="evaluation"):
    """What is scored, and which of the figures is the headline (`test_accuracy` in the summary)."""

    metric: str = choice("accuracy", METRICS)
    average: str = choice(
        "clients", AVERAGES
    )  # plain mean over clients | weighted by test nodes | weighted by all nodes
    # the round of the best validation figure | of each client's own | the last round | mean of the last five rounds
    select: str = choice("best_val", SELECTIONS)
    every: int = number(1, low=1)  # rounds between evaluations
    patience: int = (
        0  # stop after so many rounds without a better validation figure (own_best_val: of any client); 0: never
    )
    min_delta: float = 0.0  # by how much a figure must be better
    trained: bool = False  # also score each client's model right after local training


@dataclass
class StrategyConfig(Section, group="strategy"):
    """The method: its two classes, what is shared, how it is weighted, who takes part.

    ``params`` holds the method's own keys; in YAML and overrides they stand beside the others (``strategy.mu=0.1``).
    """

    name: str = "fedavg"
    server: str = "fedgraph_flwr.strategies.fedavg:FedAvg"  # module:class
    client: str = "fedgraph_flwr.clients.base:GraphClient"
    shared: list[str] = field(default_factory=lambda: [""])  # prefixes of parameter names that travel; "" is all
    private: list[str] = field(
        default_factory=list
    )  # prefixes of those among them that stay after all; head: the last layer
    personal: bool = False  # a client is scored by a model of its own, and by the shared one beside it (global_...)
    pooled: bool = False  # one client holds the whole graph, cut edges included
    private_schema: bool = False  # typed graphs: a client names the types that it holds, not those of all
    weighting: str = choice("train", ("train", "nodes", "uniform"))
    fraction: float = number(1.0, high=1, without_low=True)  # share of the clients sampled each round
    min_clients: int = number(1, low=1)  # fewer valid replies than this fail the round
    on_failure: str = choice("continue", ("continue", "fail"))  # without a client that failed, or not at all
    timeout: float = number(3600.0, without_low=True)  # seconds to wait for an exchange
    params: dict[str, Any] = field(default_factory=dict)


@dataclass
class PrivacyConfig(Section, group="privacy"):
    """Differential privacy by Flower's wrappers; ``noise_multiplier`` 0 is off."""

    # server_fixed: the server clips updates; client_fixed: each client does
    dp: str = choice("none", ("none", "server_fixed", "client_fixed"))
    noise_multiplier: float = 0.0  # standard deviation of the noise on the sum of updates, over the clipping norm
    clipping_norm: float = number(1.0, without_low=True)  # largest L2 norm of a client's update
    delta: float = number(1e-5, high=1, without_low=True, without_high=True)  # at which ε is told


@dataclass
class AttackConfig:
    """A study of what a method exposes, run at the end: ``attack=link_inference``."""

    name: str = "none"  # none | link_inference
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        one_of(self.name, ("none", "link_inference"), "attack")
        for key in self.params:
            raise unknown("attack key", key, ["name"])


@dataclass
class RunConfig(Section):
    """Everything a run is a function of."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    protocol: str = "none"  # which conf/protocol file was applied
    num_clients: int = number(10, low=1, high=MOST_CLIENTS)
    rounds: int = number(100, low=1)
    seed: int = number(0, high=2**63 - 1)
    engine: str = "inline"  # inline | ray | the name of a SuperLink connection
    device: str = choice("auto", DEVICES)
    threads: int = number(1, low=1, high=MOST_THREADS)  # torch threads in a client
    client_cpus: int = number(1, low=1)  # CPUs, and share of a GPU, that a virtual client takes (engine=ray)
    client_gpus: float = 0.0
    dtype: str = choice("float32", ("float32", "float64"))  # float64: for tests of exactness
    out: str = ""  # result folder; empty: runs/<time>-<strategy>-<dataset>
    resume: str = ""  # result folder of a run to go on with
    checkpoint_every: int = 25  # rounds between checkpoints, from which an interrupted run goes on; 0: none
    graph: str = ""  # folder of client files (`fedgraph-flwr partition`); empty: made from dataset and partition


_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    list[int]: "a list of whole numbers",
    list[float]: "a list of numbers",
    int | None: "a whole number or null",
}


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

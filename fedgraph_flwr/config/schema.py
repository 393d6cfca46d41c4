"""The configuration's schema: typed dataclasses whose values are checked where they are made.

Every key has a type, a range and a default here; a method declares its own in ``Params``, a network in the signature of
its class, and `typed` fills either from what a user wrote.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedgraph_flwr.errors import FedGraphError, unknown

DEVICES = ("auto", "cpu", "cuda")


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


@dataclass
class DatasetConfig:
    """Which graph, and what is done to it before it is split and partitioned."""

    name: str = "csbm"
    undirected: bool = False  # add the reverse of every edge
    largest_component: bool = False
    remove_self_loops: bool = False
    normalize_features: bool = False  # rows of x sum to 1
    edge_flip: float = 0.0  # probability with which a client's edge is removed and a random one put in its place
    params: dict[str, Any] = field(default_factory=dict)  # what only this dataset knows (CSBM's sizes, say)

    def __post_init__(self) -> None:
        if path := self.params.get("path"):  # clients run in other folders
            self.params = {**self.params, "path": str(Path(path).expanduser().absolute())}
        if not 0 <= self.edge_flip <= 1:
            raise FedGraphError(f"dataset.edge_flip must lie in [0, 1], got {self.edge_flip}")


@dataclass
class SplitConfig:
    """Which nodes train, validate and test."""

    kind: str = "ratio"  # ratio | kfold | public (the dataset's own masks)
    scope: str = "client"  # client: within each client's nodes; global: over the whole graph, before the partition
    train: float = 0.6
    val: float = 0.2
    test: float = 0.2
    folds: int = 5  # kfold: groups of nodes; fold i tests on group i, validates on group i+1, trains on the rest
    fold: int = -1  # -1: seed modulo folds
    stratify: bool = False  # ratio: the same ratios within each class
    min_train: int = 0  # a client left with fewer training nodes is given some from its unused nodes

    def __post_init__(self) -> None:
        one_of(self.kind, ("ratio", "kfold", "public"), "split.kind")
        one_of(self.scope, ("client", "global"), "split.scope")
        for key in ("train", "val", "test"):
            if not 0 <= getattr(self, key) <= 1:
                raise FedGraphError(f"split.{key} must lie in [0, 1], got {getattr(self, key)}")
        if self.train + self.val + self.test > 1 + 1e-9:
            raise FedGraphError(f"split.train + val + test must be <= 1, got {self.train + self.val + self.test:g}")
        if self.kind == "kfold":
            at_least(self.folds, 3, "split.folds")


@dataclass
class PartitionConfig:
    """How a graph becomes clients. ``name`` says how nodes are grouped, ``merge`` how groups become M clients."""

    name: str = "louvain"
    merge: str = "smallest_first"  # smallest_first | ascending | first_fit | random_merge | none
    resolution: float = 1.0  # Louvain
    min_size: int = 50  # random_merge: smaller groups are merged whole into a random larger one
    delta: int = 20  # first_fit: slack over N / M
    overlap: float = 0.0  # overlapping: share of a part's nodes drawn for each of its clients
    clients_per_part: int = 1  # overlapping
    params: dict[str, Any] = field(default_factory=dict)  # what only this partitioner knows

    def __post_init__(self) -> None:
        one_of(self.merge, ("smallest_first", "ascending", "first_fit", "random_merge", "none"), "partition.merge")


@dataclass
class ModelConfig:
    """The network. ``params`` holds what only this network knows."""

    name: str = "gcn"  # one of ours, or module:Class
    hidden: int = 64
    layers: int = 2
    dropout: float = 0.5
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        at_least(self.hidden, 1, "model.hidden")
        at_least(self.layers, 1, "model.layers")
        if not 0 <= self.dropout < 1:
            raise FedGraphError(f"model.dropout must lie in [0, 1), got {self.dropout}")


@dataclass
class TrainConfig:
    """Local training."""

    optimizer: str = "adam"  # adam | sgd
    lr: float = 0.01
    weight_decay: float = 5e-4
    momentum: float = 0.0  # sgd
    local_steps: int = 3  # full-batch steps a round
    # client i takes entry i modulo the length; empty: local_steps for all
    local_steps_by_client: list[int] = field(default_factory=list)
    optimizer_state: str = "auto"  # keep | reset each round | auto: keep for adam, reset for sgd
    loss: str = (
        "cross_entropy"  # | weighted: classes count alike, by client | focal: what is predicted badly counts more
    )
    focal_gamma: float = 2.0  # focal: 0 is cross_entropy

    def __post_init__(self) -> None:
        one_of(self.loss, ("cross_entropy", "weighted", "focal"), "train.loss")
        at_least(self.focal_gamma, 0, "train.focal_gamma")
        one_of(self.optimizer, ("adam", "sgd"), "train.optimizer")
        one_of(self.optimizer_state, ("auto", "keep", "reset"), "train.optimizer_state")
        at_least(self.local_steps, 0, "train.local_steps")
        at_least(min(self.local_steps_by_client, default=0), 0, "train.local_steps_by_client")
        at_least(self.weight_decay, 0, "train.weight_decay")
        if not 0 < self.lr < math.inf:
            raise FedGraphError(f"train.lr must be > 0 and finite, got {self.lr}")

    @property
    def keeps_optimizer(self) -> bool:
        """Whether the optimiser's state survives a round."""
        return self.optimizer_state == "keep" or (self.optimizer_state == "auto" and self.optimizer == "adam")

    @property
    def plain_sgd(self) -> bool:
        """Whether a step is the gradient times the step size."""
        return self.optimizer == "sgd" and not self.momentum

    def steps_of(self, client: int) -> int:
        """Local steps a round of a client, by its index."""
        steps = self.local_steps_by_client or [self.local_steps]
        return steps[client % len(steps)]


METRICS = ("accuracy", "macro_f1", "balanced_accuracy", "auc", "average_precision")
AVERAGES = ("clients", "test_nodes", "nodes")
AGGREGATORS = ("mean", "median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median", "norm_bound")
SELECTIONS = ("best_val", "own_best_val", "last", "last5")


@dataclass
class EvaluationConfig:
    """What is scored, and which of the figures is the headline (`test_accuracy` in the summary)."""

    metric: str = "accuracy"
    average: str = "clients"  # plain mean over clients | weighted by test nodes | weighted by all nodes
    # the round of the best validation figure | of each client's own | the last round | mean of the last five rounds
    select: str = "best_val"
    every: int = 1  # rounds between evaluations
    patience: int = (
        0  # stop after so many rounds without a better validation figure (own_best_val: of any client); 0: never
    )
    min_delta: float = 0.0  # by how much a figure must be better
    trained: bool = False  # also score each client's model right after local training
    full: bool = False  # auc, average_precision and the F1 of each class with more than two classes too

    def __post_init__(self) -> None:
        one_of(self.metric, METRICS, "evaluation.metric")
        one_of(self.average, AVERAGES, "evaluation.average")
        one_of(self.select, SELECTIONS, "evaluation.select")
        at_least(self.every, 1, "evaluation.every")
        at_least(self.patience, 0, "evaluation.patience")


@dataclass
class StrategyConfig:
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
    weighting: str = "train"  # train | nodes | uniform
    # mean, which is weighted | median | trimmed_mean | krum | multi_krum | bulyan | geometric_median | norm_bound
    aggregator: str = "mean"
    byzantine: int = 1  # f, liars a round that the aggregator is to stand
    norm_bound: float = 0.0  # aggregator=norm_bound: largest L2 norm of a client's update; 0: the median of the round's
    max_share: float = 1.0  # largest share of one client in a weighted mean, whatever number of nodes it claims
    fraction: float = 1.0  # share of the clients sampled each round
    min_clients: int = 1  # fewer valid replies than this fail the round
    on_failure: str = "continue"  # continue without a client that failed | fail the run
    timeout: float = 3600.0  # seconds to wait for an exchange
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        one_of(self.weighting, ("train", "nodes", "uniform"), "strategy.weighting")
        one_of(self.aggregator, AGGREGATORS, "strategy.aggregator")
        at_least(self.byzantine, 0, "strategy.byzantine")
        at_least(self.norm_bound, 0, "strategy.norm_bound")
        one_of(self.on_failure, ("continue", "fail"), "strategy.on_failure")
        at_least(self.min_clients, 1, "strategy.min_clients")
        if not 0 < self.fraction <= 1:
            raise FedGraphError(f"strategy.fraction must lie in (0, 1], got {self.fraction}")
        if not 0 < self.max_share <= 1:
            raise FedGraphError(f"strategy.max_share must lie in (0, 1], got {self.max_share}")

    def cohort_size(self, clients: int) -> int:
        """How many of the ``clients`` a round samples."""
        return min(max(round(self.fraction * clients), self.min_clients), clients)


@dataclass
class PrivacyConfig:
    """Differential privacy of each client in the models that the server releases, and secure aggregation."""

    dp: str = "none"  # none | server_fixed (the server clips updates) | client_fixed (each client does)
    noise_multiplier: float = 0.0  # standard deviation of the noise on the sum of updates, over the clipping norm
    clipping_norm: float = 1.0  # largest L2 norm of a client's update
    delta: float = 1e-5  # at which ε is told; at most 1 / num_clients
    epsilon_budget: float = 0.0  # the run ends before a release that would cost more; 0: none
    scores: str = "told"  # told: clients send scores and training losses, which no noise covers | none: they keep them
    secagg: bool = False  # the server learns the weighted sum of what clients trained, and no term of it
    secagg_threshold: float = 2 / 3  # share of the cohort that must answer, and that can unmask
    secagg_bits: int = 40  # of the fixed point after the point; values must stay below 2^(55 - bits)

    def __post_init__(self) -> None:
        one_of(self.dp, ("none", "server_fixed", "client_fixed"), "privacy.dp")
        one_of(self.scores, ("told", "none"), "privacy.scores")
        at_least(self.noise_multiplier, 0, "privacy.noise_multiplier")
        at_least(self.epsilon_budget, 0, "privacy.epsilon_budget")
        if self.noise_multiplier and self.dp == "none":
            raise FedGraphError(
                f"privacy.noise_multiplier={self.noise_multiplier:g} adds no noise with privacy.dp=none: expected"
                " privacy.dp=server_fixed or client_fixed"
            )
        if self.dp == "server_fixed" and not self.noise_multiplier:
            raise FedGraphError(
                "privacy.dp=server_fixed with privacy.noise_multiplier=0 protects nobody: expected a multiplier > 0"
                " (to bound updates alone: strategy.aggregator=norm_bound)"
            )
        if self.epsilon_budget and not self.noise_multiplier:
            raise FedGraphError(
                f"privacy.epsilon_budget={self.epsilon_budget:g} without noise has no ε to bound: set"
                " privacy.noise_multiplier"
            )
        if not 0 < self.clipping_norm < math.inf:
            raise FedGraphError(f"privacy.clipping_norm must be > 0 and finite, got {self.clipping_norm}")
        if not 0 < self.delta < 1:
            raise FedGraphError(f"privacy.delta must lie in (0, 1), got {self.delta}")
        if not 0.5 < self.secagg_threshold <= 1:
            raise FedGraphError(f"privacy.secagg_threshold must lie in (0.5, 1], got {self.secagg_threshold}")
        if not 8 <= self.secagg_bits <= 48:
            raise FedGraphError(f"privacy.secagg_bits must lie in [8, 48], got {self.secagg_bits}")
        if self.secagg and self.dp != "none":
            raise FedGraphError(
                f"privacy.secagg=true hides from the server what privacy.dp={self.dp} clips or books: set one of the two"
            )


@dataclass
class AttackConfig:
    """A study of what a method exposes, run at the end: ``attack=link_inference``."""

    name: str = "none"  # none | link_inference
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        one_of(self.name, ("none", "link_inference"), "attack")
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
class AdversaryConfig:
    """Clients of a simulation that lie: ``adversary.kind=sign_flip adversary.clients=[1]``."""

    kind: str = (
        "none"  # none | sign_flip | scaling | gaussian | free_rider | label_flip | backdoor_central or _distributed
    )
    clients: list[int] = field(
        default_factory=list
    )  # who they are; []: nobody (a backdoor's trigger is measured all the same)
    # factor of the update (sign_flip 5, scaling 10), standard deviation of the noise (gaussian 1, free_rider 0.001),
    # value of the trigger's features (backdoors 1)
    strength: float | None = None
    target: int = 0  # backdoors: the class that the trigger is to call up
    rate: float = 0.5  # backdoors: share of a liar's training nodes of other classes that bear the trigger
    trigger: int = 4  # backdoors: nodes of the whole trigger

    def __post_init__(self) -> None:
        one_of(self.kind, tuple(ADVERSARIES), "adversary.kind")
        at_least(self.force, 0, "adversary.strength")
        at_least(self.target, 0, "adversary.target")
        at_least(self.trigger, 1, "adversary.trigger")
        if not 0 <= self.rate <= 1:
            raise FedGraphError(f"adversary.rate must lie in [0, 1], got {self.rate}")
        if min(self.clients, default=0) < 0 or len(set(self.clients)) < len(self.clients):
            raise FedGraphError(f"adversary.clients must be different whole numbers from 0, got {self.clients}")
        if self.kind == "backdoor_distributed" and len(self.clients) > self.trigger:
            raise FedGraphError(
                f"adversary.trigger={self.trigger} nodes cannot be dealt out to {len(self.clients)} clients: expected as many"
            )

    @property
    def force(self) -> float:
        """``strength``, or what is usual for the kind."""
        return ADVERSARIES[self.kind] if self.strength is None else self.strength

    @property
    def backdoor(self) -> bool:
        """Whether it plants a trigger."""
        return self.kind.startswith("backdoor")


@dataclass
class RayConfig:
    """Where ``engine=ray`` finds processes for its clients."""

    address: str = ""  # empty: a Ray instance of this run's own | auto | HOST:PORT of a cluster's head
    actors: int = 0  # processes that hold the clients; 0: as many as client_cpus and client_gpus leave room for
    live_clients: int = 0  # clients a process holds at once, the others are built from their state when asked; 0: all

    def __post_init__(self) -> None:
        if self.address not in ("", "auto") and not re.fullmatch(r"[^\s/:]+:\d+", self.address):
            raise FedGraphError(f"ray.address must be auto, HOST:PORT or empty, got '{self.address}'")
        at_least(self.actors, 0, "ray.actors")
        at_least(self.live_clients, 0, "ray.live_clients")


@dataclass
class RunConfig:
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
    ray: RayConfig = field(default_factory=RayConfig)
    adversary: AdversaryConfig = field(default_factory=AdversaryConfig)
    protocol: str = "none"  # which conf/protocol file was applied
    num_clients: int = 10
    rounds: int = 100
    seed: int = 0
    engine: str = "inline"  # inline | ray | flower-simulation | the name of a SuperLink connection
    device: str = "auto"  # auto | cpu | cuda
    threads: int = 1  # torch threads in a client
    client_cpus: int = 1  # CPUs, and share of a GPU, that clients take which train at a time (ray, flower-simulation)
    client_gpus: float = 0.0
    dtype: str = "float32"  # float32 | float64 (for tests of exactness)
    out: str = ""  # result folder; empty: runs/<time>-<strategy>-<dataset>
    resume: str = ""  # result folder of a run to go on with
    checkpoint_every: int = 25  # rounds between checkpoints, from which an interrupted run goes on; 0: none
    graph: str = ""  # folder of client files (`fedgraph-flwr partition`); empty: made from dataset and partition

    def __post_init__(self) -> None:
        at_least(self.num_clients, 1, "num_clients")
        at_least(self.rounds, 1, "rounds")
        at_least(self.threads, 1, "threads")
        at_least(self.client_cpus, 1, "client_cpus")
        at_least(self.client_gpus, 0, "client_gpus")
        at_least(self.checkpoint_every, 0, "checkpoint_every")
        if self.privacy.scores == "none" and (self.evaluation.trained or self.evaluation.patience):
            key = "trained=true" if self.evaluation.trained else f"patience={self.evaluation.patience}"
            raise FedGraphError(f"evaluation.{key} needs scores, which privacy.scores=none keeps at the clients")
        one_of(self.device, DEVICES, "device")
        one_of(self.dtype, ("float32", "float64"), "dtype")


_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    list[int]: "a list of whole numbers",
    list[float]: "a list of numbers",
}


def typed(schema: Any, values: dict[str, Any], choice: str) -> Any:
    """The dataclass ``schema`` filled with ``values``, which are converted to the types of its fields.

    Args:
        schema: whose fields have types that OmegaConf knows.
        values: by field.
        choice: the group and what was chosen of it, such as ``strategy=fedprox``, which the keys belong to.

    Raises:
        FedGraphError: a value of another type.
    """
    filled = OmegaConf.structured(schema)
    for key, value in values.items():
        try:
            OmegaConf.update(filled, key, value, merge=False)
        except OmegaConfBaseException as error:
            kind = get_type_hints(schema)[key]
            where = f"{choice.partition('=')[0]}.{key} ({choice})"
            raise FedGraphError(f"{where} must be {_KINDS.get(kind, kind)}, got {value!r}") from error
    return OmegaConf.to_object(filled)

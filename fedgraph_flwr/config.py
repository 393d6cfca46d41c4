"""The configuration: typed dataclasses, and their composition from YAML groups and overrides.

Later wins: dataclass defaults, ``conf/config.yaml``, the chosen group files (dataset, partition, model, strategy), the
protocol with its ``datasets:`` (where ``models:`` sizes a model for that dataset) and ``strategies:`` sections, then the user's
``key=value`` overrides. A group is chosen by the user, else by the protocol, else by the dataset (for the model: the strategy's
and the dataset's own go before the protocol's), else by ``config.yaml``. After composition OmegaConf is gone: the rest of the
program sees dataclasses.
"""

import dataclasses
import importlib
import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedgraph_flwr.errors import FedGraphError, unknown

DEVICES = ("auto", "cpu", "cuda")
GROUPS = ("dataset", "partition", "model", "strategy", "protocol")


def one_of(value: str, accepted: Sequence[str], key: str) -> None:
    """Raise unless ``value`` is among the accepted ones."""
    if value not in accepted:
        raise unknown(key, value, accepted)


def at_least(value: float, bound: float, key: str) -> None:
    """Raise unless ``value`` is finite and ``>= bound``."""
    if not bound <= value < math.inf:
        raise FedGraphError(f"{key} must be >= {bound}{' and finite' if value == math.inf else ''}, got {value}")


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

    name: str = "gcn"
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
    optimizer_state: str = "auto"  # keep | reset each round | auto: keep for adam, reset for sgd

    def __post_init__(self) -> None:
        one_of(self.optimizer, ("adam", "sgd"), "train.optimizer")
        one_of(self.optimizer_state, ("auto", "keep", "reset"), "train.optimizer_state")
        at_least(self.local_steps, 0, "train.local_steps")
        at_least(self.weight_decay, 0, "train.weight_decay")
        if not 0 < self.lr < math.inf:
            raise FedGraphError(f"train.lr must be > 0 and finite, got {self.lr}")

    @property
    def keeps_optimizer(self) -> bool:
        """Whether the optimiser's state survives a round."""
        return self.optimizer_state == "keep" or (self.optimizer_state == "auto" and self.optimizer == "adam")


METRICS = ("accuracy", "macro_f1", "auc")
AVERAGES = ("clients", "test_nodes", "nodes")
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
    server: str = "strategies.fedavg:FedAvg"  # module:class
    client: str = "clients.base:GraphClient"
    shared: list[str] = field(default_factory=lambda: [""])  # prefixes of parameter names that travel; "" is all
    weighting: str = "train"  # train | nodes | uniform
    fraction: float = 1.0  # share of the clients sampled each round
    min_clients: int = 1  # fewer valid replies than this fail the round
    on_failure: str = "continue"  # continue without a client that failed | fail the run
    timeout: float = 3600.0  # seconds to wait for an exchange
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        one_of(self.weighting, ("train", "nodes", "uniform"), "strategy.weighting")
        one_of(self.on_failure, ("continue", "fail"), "strategy.on_failure")
        at_least(self.min_clients, 1, "strategy.min_clients")
        if not 0 < self.fraction <= 1:
            raise FedGraphError(f"strategy.fraction must lie in (0, 1], got {self.fraction}")


@dataclass
class PrivacyConfig:
    """Differential privacy by Flower's wrappers; ``noise_multiplier`` 0 is off."""

    dp: str = "none"  # none | server_fixed (the server clips updates) | client_fixed (each client does)
    noise_multiplier: float = 0.0  # standard deviation of the noise on the sum of updates, over the clipping norm
    clipping_norm: float = 1.0  # largest L2 norm of a client's update
    delta: float = 1e-5  # at which ε is told

    def __post_init__(self) -> None:
        one_of(self.dp, ("none", "server_fixed", "client_fixed"), "privacy.dp")
        at_least(self.noise_multiplier, 0, "privacy.noise_multiplier")
        if not 0 < self.clipping_norm < math.inf:
            raise FedGraphError(f"privacy.clipping_norm must be > 0 and finite, got {self.clipping_norm}")
        if not 0 < self.delta < 1:
            raise FedGraphError(f"privacy.delta must lie in (0, 1), got {self.delta}")


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
    protocol: str = "none"  # which conf/protocol file was applied
    num_clients: int = 10
    rounds: int = 100
    seed: int = 0
    engine: str = "inline"  # inline | ray | the name of a SuperLink connection
    device: str = "auto"  # auto | cpu | cuda
    threads: int = 1  # torch threads in a client
    client_cpus: int = 1  # CPUs, and share of a GPU, that a virtual client takes (engine=ray)
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
        at_least(self.checkpoint_every, 0, "checkpoint_every")
        one_of(self.device, DEVICES, "device")
        one_of(self.dtype, ("float32", "float64"), "dtype")


def conf_dir() -> Path:
    """The folder of the YAML groups: beside the packages in a checkout or bundle, inside them when installed."""
    package = Path(__file__).parent
    beside = package.parent / "conf"
    return beside if (beside / "config.yaml").is_file() else package / "_conf"


def group_names(group: str) -> list[str]:
    """The names a group accepts, such as the strategies."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def compose(overrides: Sequence[str] = (), base: Path | str | None = None) -> RunConfig:
    """Compose a configuration.

    Args:
        overrides: ``key=value`` words, as on the command line.
        base: a resolved configuration to start from instead of the group files: a ``config.yaml``, or JSON.

    Raises:
        FedGraphError: an unknown key or name, a wrong type or an impossible value.
    """
    given = _parse(overrides)
    if base:
        inline = str(base).startswith("{")
        layers: list[tuple[str, DictConfig]] = [
            ("config", OmegaConf.create(json.loads(str(base)))) if inline else (str(base), _load(Path(base)))
        ]
        selected = {group: name for group in GROUPS if isinstance(name := given.pop(group, None), str)}
        for group in ("dataset", "strategy"):
            if group in selected:
                selected = {**_wishes(group, selected[group]), **selected}
        for group in ("dataset", "partition", "model", "strategy"):
            if group in selected:
                layers.append(_group(group, selected[group]))
        if "protocol" in selected:
            raise FedGraphError(
                "protocol= cannot be combined with config=: a resolved config already holds its protocol"
            )
    else:
        layers = _layers(given)
    layers.append(("override", OmegaConf.create(_nest(given))))
    return _build(layers)


def from_run_config(run_config: Any) -> RunConfig:
    """The configuration of a Flower run: ``config`` (a file or JSON), else the group files, then ``overrides``.

    ``num-clients`` is the number of clients unless a config or the overrides say otherwise.
    """
    words, base = shlex.split(str(run_config.get("overrides", ""))), str(run_config.get("config", ""))
    if "num-clients" in run_config and not base:
        words.insert(0, f"num_clients={run_config['num-clients']}")
    return compose(words, base or None)


def to_yaml(cfg: RunConfig) -> str:
    """The resolved configuration as YAML, from which the run is repeated."""
    return OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(cfg)))


def to_json(cfg: RunConfig) -> str:
    """The resolved configuration on one line, as it goes to the nodes of a fleet."""
    return json.dumps(dataclasses.asdict(cfg))


def locate(target: str) -> Any:
    """The class named ``module:Class``, as in a strategy's YAML."""
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise FedGraphError(f"'{target}' cannot be imported ({error}); expected module:Class") from error


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


def method_params(cls: Any, cfg: RunConfig) -> Any:
    """The ``Params`` dataclass of a strategy or client class, filled from the method's own keys."""
    names = {f.name for f in dataclasses.fields(cls.Params)}
    values = {k: v for k, v in cfg.strategy.params.items() if k in names}
    return typed(cls.Params, values, f"strategy={cfg.strategy.name}")


def check_method(cfg: RunConfig) -> None:
    """Check the method's own keys against its server and client ``Params``, then the network's, and that the two go together.

    Raises:
        FedGraphError: a key that nobody knows, a wrong type or value, or a network that the method cannot train.
    """
    from fedgraph_flwr import models  # which needs this module

    sides = [locate(cfg.strategy.server), locate(cfg.strategy.client)]
    accepted = {f.name for side in sides for f in dataclasses.fields(side.Params)}
    for key in cfg.strategy.params:
        if key not in accepted:
            raise unknown(
                f"strategy {cfg.strategy.name}: key",
                key,
                accepted | {f.name for f in dataclasses.fields(StrategyConfig)},
            )
    for side in sides:
        method_params(side, cfg)
    sides[1].check_model(cfg, models.probe(cfg.model))


def _parse(words: Sequence[str]) -> dict[str, Any]:
    """``key=value`` words to a flat dict; values are YAML scalars or lists."""
    given: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            raise FedGraphError(f"'{word}' is not of the form key=value")
        try:
            given[key] = OmegaConf.to_container(OmegaConf.from_dotlist([f"v={value}"]))["v"]  # type: ignore[index,call-overload]
        except Exception as error:
            raise FedGraphError(f"'{word}': the value cannot be read ({_first_line(error)})") from error
    return given


def _nest(flat: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        node = nested
        for parent in parents:
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                raise FedGraphError(f"'{key}' goes below '{parent}', which has the value {child!r}")
            node = child
        node[last] = value
    return nested


def _load(path: Path) -> DictConfig:
    try:
        loaded = OmegaConf.load(path)
    except FileNotFoundError as error:
        raise FedGraphError(f"no such config file: {path}") from error
    except Exception as error:
        raise FedGraphError(f"{path} is no valid YAML ({_first_line(error)})") from error
    if not isinstance(loaded, DictConfig):
        raise FedGraphError(f"{path} must hold keys and values")
    return loaded


def _group(group: str, name: str) -> tuple[str, DictConfig]:
    path = conf_dir() / group / f"{name}.yaml"
    if not path.is_file():
        from fedgraph_flwr.data.root import imported_path

        if group == "dataset" and (own := imported_path(name)).is_file():
            return str(own), OmegaConf.create({group: {"name": name}})
        raise unknown(group, name, group_names(group))
    body = _load(path)
    if group == "protocol":
        return str(path), body
    for wish in _WISHES.get(group, ()):
        body.pop(wish, None)
    return str(path), OmegaConf.create({group: body})


# A strategy may name the model it brings, a dataset the partition and the model that suit it.
_WISHES = {"strategy": ("model",), "dataset": ("partition", "model")}


def _wishes(group: str, name: str) -> dict[str, str]:
    path = conf_dir() / group / f"{name}.yaml"
    body = _load(path) if path.is_file() else {}
    return {wish: str(body[wish]) for wish in _WISHES[group] if wish in body}


def _layers(given: dict[str, Any]) -> list[tuple[str, DictConfig]]:
    """The files that apply, in order; takes the group choices out of ``given``."""
    root = conf_dir() / "config.yaml"
    config = _load(root)
    defaults = config.pop("defaults")
    chosen = {group: given.pop(group) for group in GROUPS if isinstance(given.get(group), str)}
    layers = [(str(root), config)]

    protocol_name = chosen.get("protocol", defaults.protocol)
    protocol_path, protocol = (
        ("", OmegaConf.create({})) if protocol_name == "none" else _group("protocol", protocol_name)
    )
    by_protocol = protocol.pop("defaults", OmegaConf.create({}))
    by_dataset = protocol.pop("datasets", OmegaConf.create({}))
    by_strategy = protocol.pop("strategies", OmegaConf.create({}))

    def choose(group: str, *preferences: Any) -> str:
        return str(chosen.get(group) or next((p for p in preferences if p), None) or defaults[group])

    strategy = choose("strategy", by_protocol.get("strategy"))
    dataset = choose("dataset", by_protocol.get("dataset"))
    dataset_part = by_dataset.get(dataset, OmegaConf.create({}))
    strategy_part = by_strategy.get(strategy, OmegaConf.create({}))
    by_model = dataset_part.pop("models", OmegaConf.create({}))
    chosen_below = [part.pop("defaults", OmegaConf.create({})) for part in (strategy_part, dataset_part)]

    own = [_wishes("strategy", strategy), _wishes("dataset", dataset)]
    partition = choose("partition", *(c.get("partition") for c in (*chosen_below, by_protocol, *own)))
    model = choose("model", *(c.get("model") for c in (*chosen_below, *own, by_protocol)))

    layers += [_group("dataset", dataset), _group("partition", partition), _group("model", model)]
    layers.append(_group("strategy", strategy))
    if protocol_path:
        protocol["protocol"] = protocol_name
        layers.append((protocol_path, protocol))
        layers.append((f"{protocol_path} (datasets.{dataset})", dataset_part))
        own_size = OmegaConf.create({"model": by_model.get(model, OmegaConf.create({}))})
        layers.append((f"{protocol_path} (datasets.{dataset}.models.{model})", own_size))
        layers.append((f"{protocol_path} (strategies.{strategy})", strategy_part))
    return layers


def _lift(node: dict[str, Any], group: str, cls: Any) -> None:
    """Move a group's keys that its dataclass does not know into its ``params``."""
    body = node.get(group)
    if isinstance(body, dict):
        known = {f.name for f in dataclasses.fields(cls)}
        own = {key: body.pop(key) for key in list(body) if key not in known}
        if own:
            body["params"] = {**(body.get("params") or {}), **own}


_LIFTED = {
    "strategy": StrategyConfig,
    "model": ModelConfig,
    "dataset": DatasetConfig,
    "partition": PartitionConfig,
    "attack": AttackConfig,
}


def _build(layers: list[tuple[str, DictConfig]]) -> RunConfig:
    merged = OmegaConf.structured(RunConfig)
    accepted_params: dict[str, set[str]] = {group: set() for group in _LIFTED}
    for source, layer in layers:
        node = OmegaConf.to_container(layer, resolve=True)
        if not isinstance(node, dict):
            raise FedGraphError(f"{source} must hold keys and values")
        if isinstance(node.get("attack"), str):
            node["attack"] = {"name": node["attack"]}
        for group, cls in _LIFTED.items():
            _lift(node, group, cls)  # type: ignore[arg-type]
            own = set((node.get(group) or {}).get("params") or {}) if isinstance(node.get(group), dict) else set()
            if source == "override" and group not in ("strategy", "attack"):
                for key in own - accepted_params[group]:
                    known = {f.name for f in dataclasses.fields(cls)} - {"params"}
                    raise unknown(f"{group} key", key, known | accepted_params[group], f"override {group}.{key}")
            accepted_params[group] |= own
            if isinstance(node.get(group), dict) and "name" in node[group] and source != "override":
                merged[group].params = {}  # another choice of the group starts from its own keys
        try:
            merged = OmegaConf.merge(merged, node)
        except OmegaConfBaseException as error:
            raise _explain(error, source) from error
    try:
        return OmegaConf.to_object(merged)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise _explain(error, "the composed config") from error


def _explain(error: OmegaConfBaseException, source: str) -> FedGraphError:
    key = str(error.full_key or error.key or "?")
    cls = error.object_type
    if type(error).__name__ in ("ConfigKeyError", "ConfigAttributeError") and dataclasses.is_dataclass(cls):
        parent = key.rpartition(".")[0]
        return unknown(
            "key", key, [f"{parent}.{f.name}" if parent else f.name for f in dataclasses.fields(cls)], source
        )
    return FedGraphError(f"{key} ({source}): {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

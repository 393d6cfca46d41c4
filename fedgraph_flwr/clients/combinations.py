"""What goes with what: the capabilities of a run's method, parts, network, task, sampler and unit of privacy, combined.

The server checks them before any client starts, and a node before it builds a client: the limits of a policy are those of the
combinations that a method supports. What a client sends, and so which protections cover it, follows from its uplink
(`fedgraph_flwr.secure.eligibility`).
"""

from fedgraph_flwr import models
from fedgraph_flwr.clients.chosen_parts import ChosenParts
from fedgraph_flwr.config import TASKS, RunConfig
from fedgraph_flwr.config.capabilities import Capable
from fedgraph_flwr.config.composition import group_path
from fedgraph_flwr.config.config_file import load
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.method_half import inherits
from fedgraph_flwr.methods.parts import PARAMETERS
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.stack import OVER_NODES
from fedgraph_flwr.tasks import KINDS, Task, kind_of, unread_key


def served(cfg: RunConfig, kind: type[Capable]) -> frozenset[str]:
    """Return the tasks that a client's class and all chosen parts serve."""
    return tasks_of(cfg, kind).intersection(*(part.capabilities.serves for part in ChosenParts(cfg.strategy).all))


def tasks_of(cfg: RunConfig, kind: type[Capable]) -> frozenset[str]:
    """Return the tasks that a client's class trains, on nodes alone if a part reads training nodes by their rows."""
    tasks: frozenset[str] = kind.capabilities.serves
    if not any(part.capabilities.of_nodes for part in ChosenParts(cfg.strategy).all):
        return tasks
    return frozenset(name for name in tasks if KINDS[name].ITEMS == Task.ITEMS)


def check(cfg: RunConfig, kind: type[Capable], model: Model | None = None) -> None:
    """Refuse a run whose parts do not go together.

    Args:
        cfg: the run's configuration.
        kind: class of the method's client.
        model: a model of the run; None: only its class is known.

    Raises:
        FedGraphError: the first reason, with what is accepted.
    """
    _check_served(cfg, kind)
    _check_items(cfg)
    if cfg.train.sampler != "none":
        _check_sampler(cfg, kind)
        if model is not None:
            check_batches(cfg, model)


def unstacked(cfg: RunConfig, kind: type[Capable], model: Model) -> str:
    """Return the setting that prevents that clients are computed as one, as text; empty if they can be."""
    if cfg.privacy.unit != "client":
        return f"privacy.unit={cfg.privacy.unit}"
    if kind.capabilities.stacks is None or not inherits(kind, PARAMETERS):
        return f"strategy={cfg.strategy.name}"
    if not kind_of(cfg).capabilities.classes:
        return f"task={cfg.task.name}"
    if not model.capabilities.stacks:
        norm = getattr(model, "norm", "")
        return f"model={cfg.model.name}{f' with model.norm={norm}' if norm in OVER_NODES else ''}"
    if apart := next((part.name for part in ChosenParts(cfg.strategy).all if not part.capabilities.stacks), ""):
        return f"the part '{apart}'"
    if cfg.train.sampler != "none":
        return f"train.sampler={cfg.train.sampler}"
    if model.ties_weights:
        return f"model={cfg.model.name}, which shares one tensor between two parameters"
    return f"train.loss={cfg.train.loss}" if cfg.train.loss == "focal" else ""


def check_unit(cfg: RunConfig, kind: type[Capable]) -> None:
    """Refuse a ``privacy.unit`` that the method, the task or the sampler does not support; before its protections are checked.

    Raises:
        FedGraphError: with what is accepted.
    """
    what = f"privacy.unit={cfg.privacy.unit}"
    if cfg.privacy.unit == "client":
        return
    if cfg.privacy.unit not in kind.capabilities.units:
        raise FedGraphError(
            f"{what} needs clients that send gradients by row, strategy={cfg.strategy.name} does not: set strategy=fedgrad"
        )
    items = ("edges",) if cfg.privacy.unit == "payment" else ("nodes", "edges")
    if cfg.task.name not in items:
        raise FedGraphError(f"{what} does not support task={cfg.task.name}: set task to {' or '.join(items)}")
    if cfg.train.sampler != "none":
        raise FedGraphError(
            f"{what} draws its own batches, but train.sampler={cfg.train.sampler}: set train.sampler=none, and privacy.batch"
        )
    if cfg.privacy.unit == "payment" and kind_of(cfg).ITEMS == "edges" and cfg.split.kind == "ratio":
        raise FedGraphError(
            f"{what} needs a split by public times, not split.kind=ratio, where a payment moves others: set split.kind=temporal"
        )


def _check_served(cfg: RunConfig, kind: type[Capable]) -> None:
    """Refuse a task that the method or a part does not serve, and keys that the task does not know."""
    strategy = f"strategy={cfg.strategy.name}"
    if unread := unread_key(cfg):
        key, readers = unread
        value, protocol = getattr(cfg.task, key), group_path("protocol", cfg.protocol)
        given = f"task={cfg.task.name} does not read task.{key}={value}"
        fix = "leave the key out"
        if protocol and load(protocol).get("task", {}).get(key) == value:
            given, fix = f"{given}, which protocol={cfg.protocol} sets", "leave the protocol out"
        raise FedGraphError(f"{given}: {fix}, or set task to {' or '.join(readers)}")
    serving = {strategy: (tasks_of(cfg, kind), "another strategy (docs/task-support.md lists those for each task)")}
    for part in ChosenParts(cfg.strategy).all:
        serving[f"the part '{part.name}' of {strategy}"] = part.capabilities.serves, "leave the part out"
    for who, (tasks, other) in serving.items():
        if cfg.task.name not in tasks:
            accepted = " or ".join(sorted(served(cfg, kind) or tasks))
            raise FedGraphError(f"{who} does not serve task={cfg.task.name}: set task to {accepted}, or {other}")


def _check_items(cfg: RunConfig) -> None:
    """Refuse keys and a network that do not fit the items of the task."""
    task, network = kind_of(cfg), models.network(cfg.model)
    can = task.capabilities
    if cfg.train.local_epochs and cfg.train.sampler == "none" and not can.passes:
        raise FedGraphError(
            f"train.local_epochs={cfg.train.local_epochs} has no effect with train.sampler=none and task={cfg.task.name}: set"
            " train.sampler=neighbors, or train.local_steps"
        )
    read = [*cfg.evaluation.own.values(), *cfg.evaluation.points]
    of_classes = {
        f"attack={cfg.attack.name}": cfg.attack.name != "none",
        f"train.loss={cfg.train.loss}": cfg.train.loss != "cross_entropy",
        "evaluation.confusion=true": cfg.evaluation.confusion,
        f"adversary.kind={cfg.adversary.kind}": cfg.adversary.kind == "label_flip" or cfg.adversary.backdoor,
        f"evaluation.metrics={read} (accepted: {', '.join(task.METRICS)})": read,
    }
    of_nodes = task.ITEMS == "nodes" or cfg.attack.name == "none"  # an attack finds edges between nodes
    if not (can.classes and of_nodes) and (asked := [key for key, holds in of_classes.items() if holds]):
        raise FedGraphError(f"{asked[0]} needs classes of nodes, and task={cfg.task.name} has none: leave it out")
    if network.capabilities.heterogeneous and not can.typed:
        raise FedGraphError(
            f"task={cfg.task.name} is for graphs with one node type, but model={cfg.model.name} reads several: set model=gcn, say"
        )
    if task.ITEMS == Task.ITEMS and not network.head_prefixes:
        raise FedGraphError(
            f"model={cfg.model.name} learns a vector of each training node and predicts no others, so task={cfg.task.name} cannot"
            " use it: set another model, or task to links or triples"
        )
    task.check(cfg)


def _check_sampler(cfg: RunConfig, kind: type[Capable]) -> None:
    """Refuse a sampler that the task, the method, or one of its parts cannot train with."""
    sampler, task, named = cfg.train.sampler, kind_of(cfg), f"task={cfg.task.name}"
    sampled = ", ".join(name for name in TASKS if KINDS[name].capabilities.samples)
    strategy, parts = f"strategy={cfg.strategy.name}", ChosenParts(cfg.strategy).all
    whole = next((part.name for part in parts if not part.capabilities.samples), "")
    cases = [
        (
            not task.capabilities.samples,
            f"{named}, which makes its own batches (task.batch_size)",
            f"task to one of {sampled}",
        ),
        (
            sampler == "clusters" and task.ITEMS != "nodes" and cfg.task.name != "edges",
            f"{named}, whose pairs between two parts would never be trained on",
            "neighbors",
        ),
        (
            sampler == "saint" and task.ITEMS != "nodes",
            f"{named}, whose items are the edges that it draws",
            "neighbors",
        ),
        (
            sampler == "saint" and not task.capabilities.classes,
            f"{named}: its correction of the loss is derived for classes",
            "neighbors or clusters",
        ),
        (
            not kind.capabilities.samples,
            f"{strategy}, which {kind.capabilities.unsampled}",
            "a strategy such as fedavg (docs/methods.md lists those for each sampler)",
        ),
        (
            bool(whole),
            f"the part '{whole}' of {strategy}, which needs a client's whole graph in every step",
            "leave the part out",
        ),
    ]
    for refused, what, instead in cases:
        if refused:
            raise FedGraphError(
                f"train.sampler={sampler} does not support {what}: set train.sampler=none, or {instead}"
            )


def check_batches(cfg: RunConfig, model: Model) -> None:
    """Refuse a model that the sampler has no batches for, and a fan-out of another length than its layers.

    Raises:
        FedGraphError: with what is accepted.
    """
    sampler, hops, others = cfg.train.sampler, model.sampled_hops, "or a model such as sage or gcn"
    norm = f" with model.norm={model.norm}" if getattr(model, "norm", "none") in OVER_NODES else ""
    cases = [
        (sampler != "neighbors" and hops == 0, "reads no edges", f"neighbors with train.fanout=[], {others}"),
        (sampler == "clusters" and not model.subgraphs, "reads more than the edges between nodes", f"none, {others}"),
        (sampler == "saint" and model.capabilities.heterogeneous, "reads several types of nodes", "none or neighbors"),
        (sampler == "saint" and not model.one_way, "reads edges in both directions or updates them", "neighbors"),
        (sampler != "clusters" and hops is None, f"needs a whole graph in every step{norm}", f"none, {others}"),
    ]
    for refused, why, instead in cases:
        if refused:
            what = f"train.sampler={sampler} does not support model={cfg.model.name}"
            raise FedGraphError(f"{what}, which {why}: set train.sampler={instead}")
    for key in ("fanout", "fanout_back") if sampler == "neighbors" else ():
        fanout = getattr(cfg.train, key)
        if len(fanout) != hops and (fanout or key == "fanout"):
            raise FedGraphError(
                f"train.{key}={fanout} has {len(fanout)} numbers, but model={cfg.model.name} with model.layers={cfg.model.layers}"
                f" reads neighbours in {hops} layers: set train.{key} to {hops} numbers, the first for neighbours of the batch"
            )
    if cfg.train.fanout_back and model.one_way:
        raise FedGraphError(
            f"train.fanout_back={cfg.train.fanout_back} has no effect with model={cfg.model.name}, which reads edges in one"
            " direction: leave it out, or set model=multi_gine"
        )

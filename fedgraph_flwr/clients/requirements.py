"""Checks of what a method requires of the model, the task and the sampler, with an error message for the user.

The server makes them before any client starts, and a node those of the task and the sampler before it builds a client: the limits
of a policy are those of the combinations that a method supports.
"""

from typing import Any

from fedgraph_flwr import models
from fedgraph_flwr.clients.combined import Parts
from fedgraph_flwr.config import TASKS, RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.side import Requirement
from fedgraph_flwr.models import Model
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.tasks import Task, kind_of, task_class, unread_key


def unfit(cfg: RunConfig, needs: str, got: str, remedy: str) -> FedGraphError:
    """Return the error of a method whose needs this configuration does not meet."""
    return FedGraphError(f"strategy={cfg.strategy.name} needs {needs}, got {got}: {remedy}")


def one_type(cfg: RunConfig, model: Model) -> None:
    """Require nodes and edges of one type.

    Raises:
        FedGraphError: the model is for typed graphs.
    """
    if model.heterogeneous:
        model_ = f"model={cfg.model.name}, which reads several"
        raise unfit(cfg, "nodes and edges of one type", model_, "set a model for one type, such as model=gcn")


def network(kind: type[Model], name: str) -> Requirement:
    """Return the requirement of a model of one class, which has this name."""

    def require(cfg: RunConfig, model: Model) -> None:
        if not isinstance(model, kind):
            raise unfit(cfg, f"model={name}", f"model={cfg.model.name}", f"set model={name}")

    return require


def hidden_features(cfg: RunConfig, model: Model, does: str = "compares", layers: int = 2) -> None:
    """Require hidden features, and nodes of one type.

    Args:
        cfg: the run's configuration.
        model: the run's model.
        does: what the method does with the features.
        layers: fewest layers that the model must have.

    Raises:
        FedGraphError: the model has too few layers, or nodes of several types.
    """
    if model.heterogeneous or cfg.model.layers < layers:
        raise FedGraphError(
            f"strategy={cfg.strategy.name} {does} hidden features of nodes of one type, which model={cfg.model.name} with"
            f" model.layers={cfg.model.layers} does not have: set model= to one for such graphs, with model.layers >= {layers}"
        )


def one_adjacency(cfg: RunConfig, inputs: Any) -> None:
    """Require a model whose only inputs are features and one adjacency matrix, so that other edges can replace it.

    Raises:
        FedGraphError: the model has other inputs.
    """
    if type(inputs) is not Inputs or inputs.adj.shape[0] != inputs.x.shape[0]:  # FedLIT's inputs hold a matrix per type
        raise FedGraphError(
            f"strategy={cfg.strategy.name} replaces the edges under the model, but model={cfg.model.name} reads more of a"
            " graph than its adjacency matrix: set model= to gcn, sage, acm or decoupled"
        )


def tasks_of(cfg: RunConfig, client: Any) -> frozenset[str]:
    """The tasks that a method serves: those of its client that all of its parts serve, too."""
    if not any(part.of_nodes for part in Parts(cfg.strategy).all):
        return client.serves
    return frozenset(name for name in client.serves if task_class(name).ITEMS == Task.ITEMS)


def check_task(cfg: RunConfig, client: Any) -> None:
    """Refuse a task that the method does not serve, and keys that the task does not know.

    Raises:
        FedGraphError: with what is accepted.
    """
    task, network, strategy = kind_of(cfg), models.network(cfg.model), f"strategy={cfg.strategy.name}"
    if unread := unread_key(cfg):
        key, readers = unread
        raise FedGraphError(
            f"task={cfg.task.name} does not read task.{key}={getattr(cfg.task, key)}: leave the key out, or set task to"
            f" {' or '.join(readers)}"
        )
    serving = {strategy: (tasks_of(cfg, client), "another strategy (docs/task-support.md lists those for each task)")}
    serving |= {f"the part '{p.name}' of {strategy}": (p.serves, "leave the part out") for p in Parts(cfg.strategy).all}
    for who, (served, other) in serving.items():
        if cfg.task.name not in served:
            raise FedGraphError(
                f"{who} does not serve task={cfg.task.name}: set task to {' or '.join(sorted(served))}, or {other}"
            )
    if cfg.train.local_epochs and cfg.train.sampler == "none" and not task.passes:
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
    if not (task.classes and of_nodes) and (asked := [key for key, holds in of_classes.items() if holds]):
        raise FedGraphError(f"{asked[0]} needs classes of nodes, and task={cfg.task.name} has none: leave it out")
    if network.heterogeneous and not task.typed:
        raise FedGraphError(
            f"task={cfg.task.name} is for graphs with one node type, but model={cfg.model.name} reads several: set model=gcn, say"
        )
    if task.ITEMS == Task.ITEMS and not network.head_prefixes:
        raise FedGraphError(
            f"model={cfg.model.name} learns a vector of each training node and predicts no others, so task={cfg.task.name} cannot"
            " use it: set another model, or task to links or triples"
        )
    task.check(cfg)


def check_unit(cfg: RunConfig, client: Any) -> None:
    """Refuse a ``privacy.unit`` that the method, the task or the sampler does not support.

    Raises:
        FedGraphError: with what is accepted.
    """
    what = f"privacy.unit={cfg.privacy.unit}"
    if cfg.privacy.unit == "client":
        return
    if cfg.privacy.unit not in vars(client).get("units", ()):
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


def check_sampler(cfg: RunConfig, client: Any) -> None:
    """Refuse a sampler that the task, the method, or one of its parts cannot train with.

    Raises:
        FedGraphError: with what is accepted.
    """
    sampler, task, named, strategy = (
        cfg.train.sampler,
        kind_of(cfg),
        f"task={cfg.task.name}",
        f"strategy={cfg.strategy.name}",
    )
    served = ", ".join(name for name in TASKS if task_class(name).samples)
    of_nodes = sampler == "saint" or (sampler == "clusters" and cfg.task.name != "edges")
    whole, others = (
        "which needs a client's whole graph in every step",
        "docs/big-graphs.md lists those for each sampler",
    )
    cases = [
        (not task.samples, named, f"task to one of {served}"),
        (of_nodes and task.ITEMS != "nodes", f"{named}, whose items are not nodes", "neighbors"),
        (sampler == "saint" and not task.classes, f"{named}: its loss is of classes", "neighbors or clusters"),
        (not client.samples, f"{strategy}, {whole}", f"a strategy such as fedavg ({others})"),
    ]
    parts = [part for part in Parts(cfg.strategy).all if not part.samples]
    cases += [(True, f"the part '{part.name}' of {strategy}, {whole}", "leave the part out") for part in parts]
    for refused, what, instead in cases:
        if refused:
            raise FedGraphError(
                f"train.sampler={sampler} does not support {what}: set train.sampler=none, or {instead}"
            )

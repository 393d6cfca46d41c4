"""Checks of a method, its model and their keys before any client starts."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import psutil

from fedgraph_flwr import models
from fedgraph_flwr.clients import combinations
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.chosen_parts import ChosenParts
from fedgraph_flwr.config.composition import compose, unknown_method_key
from fedgraph_flwr.config.engines import STACKING
from fedgraph_flwr.config.lookup import function, locate, maker, method_params, own_keys
from fedgraph_flwr.config.schema import AUTO, IDLE_IN_SWEEPS, RunConfig, is_own
from fedgraph_flwr.data import datasets
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import adversaries
from fedgraph_flwr.evaluation.metrics import own_metric
from fedgraph_flwr.launch.part_checks import check_parts, check_personal
from fedgraph_flwr.methods.declared import uplink_of
from fedgraph_flwr.methods.method_half import inherits
from fedgraph_flwr.methods.uplink import Sum, Uplink, signature
from fedgraph_flwr.models import network
from fedgraph_flwr.models.wrapped import replaced_defaults
from fedgraph_flwr.secure import eligibility
from fedgraph_flwr.secure.protection import protection_of
from fedgraph_flwr.strategies import aggregators, privacy
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.tasks import probe
from fedgraph_flwr.wire.messages import MODEL, TRAIN

MAX_PARAMETERS = 2**16
"""Number of a model's parameters from which computing clients as one is not faster."""


_OWN_STAGES = ["before_evaluate", "stage"]
"""Members of a server's half without which each of its rounds trains one model, and sends nothing else along at the end."""


def check_method(cfg: RunConfig) -> None:
    """Check the method's keys against its server and client ``Params``, then the model's keys, then their combination.

    Raises:
        FedGraphError: an unknown key, a wrong type or value, or a model that the method cannot
            train.
    """
    sides: list[Any] = [_side(cfg, "server", GraphStrategy), client_class(cfg)]
    for key in sorted(cfg.strategy.params.keys() - own_keys(cfg)):
        raise unknown_method_key(cfg, key)
    for side in sides:
        method_params(side, cfg)
    uplink = _uplink(cfg, *sides)
    strategy = f"strategy={cfg.strategy.name}"
    combinations.check_unit(cfg, sides[1])
    check_parts(cfg, sides[0], sides[1], uplink)
    eligibility.check(cfg, uplink)
    model_group = uplink[TRAIN].get(MODEL)
    adversaries.check(cfg, model_group is not None and not isinstance(model_group, Sum))
    if cfg.evaluate and sides[1].needs_others(cfg) and not rebuilds(cfg):
        what = f"{strategy} with this configuration cannot predict new nodes by another set-up"
        fix = "use `fedgraph-flwr predict` with its run, or repeat the run"
        raise FedGraphError(f"evaluate={cfg.evaluate}: {what}: {fix}")
    if cfg.init:
        _check_init(cfg, *sides)
    if protection_of(cfg).key and not inherits(sides[0], ["weights"]):
        what = f"{sides[0].__name__} has its own weights of clients, which privacy.dp and privacy.secagg cannot check"
        raise FedGraphError(f"{what}: declare Mean(weight=..., scale=...) in uplink")
    if protection_of(cfg).verified and not inherits(sides[0], _OWN_STAGES):
        what = f"{sides[0].__name__} has stages of its own, which nodes cannot compute for themselves yet"
        raise FedGraphError(f"{what}: set privacy.coordinator=curious, or another strategy")
    model = probe(cfg)
    _check_released_buffers(cfg, model)
    combinations.check(cfg, sides[1], model)
    for side in (*sides, ChosenParts(cfg.strategy)):
        side.check(cfg, model)
    # a prefix may belong to a disabled part
    if cfg.strategy.shared and not any(map(model.names, cfg.strategy.shared)):
        models.check_prefixes(cfg.strategy.shared, "strategy.shared", cfg, model)
    models.check_prefixes(cfg.strategy.private, "strategy.private", cfg, model)
    check_personal(cfg, model)


def check_code(cfg: RunConfig) -> None:
    """Import the user's code that a run names as ``module:name``.

    Raises:
        FedGraphError: it cannot be imported, or is of another kind.
    """
    for key, base in (("server", GraphStrategy), ("client", GraphClient)):
        _side(cfg, key, base)
    if is_own(cfg.model.name):
        models.network(cfg.model)
    if cfg.on_fleet:  # the nodes have the rest
        return
    named = {f"evaluation.metrics ({name})": target for name, target in cfg.evaluation.own.items()}
    named |= {"adversary.kind": cfg.adversary.kind, "attack": cfg.attack.name}
    if not cfg.graph:
        named["partition"] = cfg.partition.name
        if cfg.dataset.source:
            maker(cfg.dataset.source, "dataset.source")
    for key, target in named.items():
        if is_own(target):
            function(target, key)
    for target in cfg.evaluation.own.values():
        own_metric(target)  # also its arguments


def refusal(words: Sequence[str]) -> str:
    """Return why a run of these words is refused by its method, model and task; empty: it is not."""
    try:
        check_method(compose(list(words)))
    except FedGraphError as error:
        return str(error)
    return ""


def _uplink(cfg: RunConfig, server: type[GraphStrategy], client: type[GraphClient]) -> Uplink:
    """Return the method's uplink, which both sides must declare equally.

    Raises:
        FedGraphError: the declarations differ.
    """
    server_uplink = uplink_of(server, cfg)
    other = uplink_of(client, cfg)
    ours = signature(server_uplink)
    theirs = signature(other)
    if differing := sorted(
        key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)
    ):
        phase, group = differing[0]
        what = f"{server.__name__} and {client.__name__} declare '{group}' of phase '{phase}' differently in uplink"
        raise FedGraphError(
            f"strategy={cfg.strategy.name}: {what}: give both classes the same function"
        )
    return server_uplink


def client_class(cfg: RunConfig) -> type[GraphClient]:
    """Return the client class of a method; raise a `FedGraphError` if it is missing or of another kind."""
    side: type[GraphClient] = _side(cfg, "client", GraphClient)
    return side


def rebuilds(cfg: RunConfig) -> bool:
    """Return whether a run with ``evaluate`` predicts new nodes of this method: set-up and shared parameters are all it needs."""
    side: type[GraphStrategy] = _side(cfg, "server", GraphStrategy)
    rules = cfg.strategy
    chosen = ChosenParts(cfg.strategy)
    needs_more = (
        rules.private
        or rules.personal
        or rules.shared != [""]
        or chosen.personal
        or chosen.predicts_with
    )
    return side.rebuilds(cfg) and not needs_more


def _side(cfg: RunConfig, key: str, base: type) -> Any:
    """Return a class of the method.

    Raises:
        FedGraphError: the class is missing or of another kind.
    """
    side = locate(target := getattr(cfg.strategy, key))
    if not (isinstance(side, type) and issubclass(side, base)):
        raise FedGraphError(
            f"strategy.{key}={target} is not a {key}: expected a subclass of {base.__name__}"
        )
    return side


def _check_init(cfg: RunConfig, server: type[GraphStrategy], client: type[GraphClient]) -> None:
    """Refuse ``init`` where the model of a run is more than parameters, since methods start with fresh state.

    Raises:
        FedGraphError: names the method.
    """
    state = (*client.predicts_with, *ChosenParts(cfg.strategy).predicts_with)
    if state and not rebuilds(cfg):
        why = f"predicts with state of its method as well ({', '.join(state)})"
    elif not cfg.strategy.shared and cfg.on_fleet:
        why = "shares no parameters, by which nodes find their own"
    else:
        return
    what = f"init={cfg.init} cannot start strategy={cfg.strategy.name}, which with this configuration {why}"
    raise FedGraphError(f"{what}: train from the beginning, or score that model by evaluate=")


def startup_notes(cfg: RunConfig) -> list[str]:
    """Return notes for the user at the start, from both sides of the method and from this module."""
    sides = [locate(cfg.strategy.server), locate(cfg.strategy.client)]
    notes = [note for side in sides if (note := side.startup_note(cfg))]
    notes += [note for part in ChosenParts(cfg.strategy).all if (note := part.note(cfg))]
    if replaced := replaced_defaults(network(cfg.model), cfg.model):
        notes.append(replaced)
    notes += eligibility.notes(cfg, uplink_of(sides[0], cfg))
    notes += _without_new_nodes(cfg)
    if cfg.stack != AUTO and cfg.at_once > 1 and (reason := not_stacked(cfg)):
        notes.append(f"stack={cfg.stack} has no effect with {reason}: clients train separately")
    for key, terms in IDLE_IN_SWEEPS.items():
        read, usual = (attrgetter(key)(config) for config in (cfg, RunConfig()))
        measured = (
            key == "adversary.kind" and cfg.adversary.backdoor
        )  # its trigger, also without malicious clients
        if read != usual and not measured and (why := cfg.idle(terms)):
            notes.append(f"{key}={read} {why}")
    return notes


def _without_new_nodes(cfg: RunConfig) -> list[str]:
    """Return a note if the model of a party's tables learns a vector of each training node."""
    of_a_party = cfg.graph or cfg.on_fleet or datasets.own_path(cfg.dataset)
    learnt = cfg.model.params.get("type_embedding")
    if (
        not of_a_party
        or not models.network(cfg.model).capabilities.heterogeneous
        or learnt == "decoupled"
    ):
        return []
    return [
        f"model.type_embedding={learnt or 'entity'} learns a vector of each training node, so `fedgraph-flwr predict` cannot"
        " predict new nodes: set model.type_embedding=decoupled to predict them"
    ]


def not_stacked(cfg: RunConfig) -> str:
    """Return why ``stack`` has no effect; empty if clients are computed as one."""
    if cfg.engine not in STACKING:
        return f"engine={cfg.engine}"
    return combinations.unstacked(cfg, client_class(cfg), probe(cfg))


def _check_released_buffers(cfg: RunConfig, model: models.Model) -> None:
    """Reject noise on running statistics: a noisy variance may be negative, and its square root NaN.

    Raises:
        FedGraphError: the model shares running statistics under differential privacy.
    """
    protection = protection_of(cfg)
    buffers = {name for name, _ in model.named_buffers()} if protection.private else set[str]()
    if shared := sorted(buffers & model.shared(cfg.strategy.shared, cfg.strategy.private).keys()):
        what = f"{protection.noised} may make variances among the running statistics {', '.join(shared[:3])} negative"
        raise FedGraphError(
            f"{what}: set model.norm to layer or none, or strategy.personalization=norm"
        )


def at_once(cfg: RunConfig) -> int:
    """Return the maximum number of clients of one process computed as one; 0 to compute them separately.

    Computing clients as one saves about 0.5 ms per client, but their parameters and moments may
    exceed the core's cache. It is 40 % faster at 5,000 parameters, 12 % at 65,000, and slower at
    92,000 (`benchmarks/cost/stacked.py`).
    """
    if not cfg.at_once or not_stacked(cfg):
        return 0
    if cfg.stack == AUTO:
        from fedgraph_flwr import partition

        graph = partition.load_client(cfg, 0)
        model = models.build(cfg.model, graph.num_features, graph.num_classes)
        if sum(parameter.numel() for parameter in model.parameters()) >= MAX_PARAMETERS:
            return 0
    return cfg.at_once


def check_memory(cfg: RunConfig, graphs: Callable[[], Iterable[Any]]) -> None:
    """Check that this machine has enough memory for a simulation.

    Args:
        cfg: the run's configuration.
        graphs: reads the graphs of all clients.

    Raises:
        FedGraphError: it does not; the message has both sizes and what to set.
    """
    needed, remedy = _side(cfg, "server", GraphStrategy).needs(cfg, graphs)
    free = psutil.virtual_memory().available
    if needed > free:
        sizes = f"{needed / 2**30:.1f} GB for its clients, but this machine has {free / 2**30:.1f} GB free"
        raise FedGraphError(f"strategy={cfg.strategy.name} needs about {sizes}: {remedy}")


def check_clients(cfg: RunConfig) -> None:
    """Run the checks that depend on the resolved number of clients.

    Raises:
        FedGraphError: too few clients, a missing client, or an unsuitable δ or budget.
    """
    aggregators.check_cohort(cfg)
    privacy.check_clients(cfg, uplink_of(locate(cfg.strategy.server), cfg))
    adversaries.check_clients(cfg)

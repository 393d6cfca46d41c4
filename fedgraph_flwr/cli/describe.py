"""What a run would do and send, for people who decide about it: `fedgraph-flwr run --describe`, `fedgraph-flwr agree`."""

from collections.abc import Iterator
from typing import Any

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import locate, method_params
from fedgraph_flwr.errors import FedGraphError, counted
from fedgraph_flwr.methods.declarations import model_name
from fedgraph_flwr.methods.declared import uplink_of
from fedgraph_flwr.methods.uplink import (
    ARRAYS,
    Exchanges,
    Groups,
    Individual,
    LateMean,
    Once,
    Public,
    Reducer,
    Relay,
    released_once,
    releases,
)
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.secure.accounting import cost


def described(cfg: RunConfig, runs: int = 1) -> Iterator[str]:
    """Yield lines that describe a run: training, what leaves a client in each phase, its protections and ε.

    Args:
        cfg: its configuration.
        runs: number of such runs, for ε of what a link shares.
    """
    kind = locate(cfg.strategy.client)
    if rules := link_rules(cfg):
        yield f"links tables of {cfg.num_clients} parties, and trains nothing"
        yield from rules.in_words(runs)
        yield "the server forwards sealed envelopes: it sees who, when, and sizes up to the next power of two"
        return
    uplink, size = uplink_of(kind, cfg), _model_size(kind, cfg)
    many = f"{counted(cfg.num_clients, 'client')}, {counted(cfg.rounds, 'round')}"
    yield f"trains {model_name(cfg)} with {cfg.strategy.name} on {cfg.task.name}, {many}"
    yield "each client sends, besides its numbers of training nodes, features and classes:"
    for phase, groups in uplink.items():
        for group, reducer in groups.items():
            yield f"  {_when(cfg, phase, groups)}, {group}: {_what(size, reducer)}; {_seen(cfg, reducer)}"
    scores = {
        "exact": "its scores and training loss",
        "none": "no scores",
        "noised": "the mean of its scores, with noise",
    }
    more = (
        ", its confusion matrix (numbers of test items by true and predicted class)" if cfg.evaluation.confusion else ""
    )
    more += ", the scores of the model that it trained" if cfg.evaluation.trained else ""
    yield f"  after evaluations: {scores.get(cfg.privacy.scores, cfg.privacy.scores)}{more}"
    yield from _protections(cfg, releases_of(cfg))


def link_rules(cfg: RunConfig) -> LinkRules | None:
    """Return the rules of a link; None: the run trains."""
    kind = locate(cfg.strategy.client)
    if not (hasattr(kind, "uplink") and hasattr(kind, "Params")):
        raise FedGraphError(f"strategy.client={cfg.strategy.client} is no client: expected module:Class of a method")
    rules = method_params(kind, cfg) if issubclass(kind.Params, LinkRules) else None
    return rules


def releases_of(cfg: RunConfig) -> int:
    """Return the number of a run's releases with noise, if each round is scored."""
    uplink = uplink_of(locate(cfg.strategy.client), cfg)
    return (releases(uplink) + (cfg.privacy.scores == "noised")) * cfg.rounds + released_once(uplink)


def _when(cfg: RunConfig, phase: str, groups: Groups) -> str:
    times = groups.times if isinstance(groups, Exchanges) else 1
    often = f" up to {times} times" if times > 1 else ""
    once = isinstance(groups, Once) or phase == "describe"
    return f"phase {phase}{often}, {'once' if once else f'in each of {cfg.rounds} rounds'}"


def _model_size(kind: Any, cfg: RunConfig) -> str:
    """Return the size of the shared parameters; it depends on the columns of the clients' files."""
    if not cfg.graph:
        return "size by the columns: pass graph=FILES"
    import torch

    from fedgraph_flwr import partition
    from fedgraph_flwr.report.units import size

    shared = kind(
        cfg, partition.load(partition.files(partition.client_files(cfg))[0]), torch.device("cpu"), None
    ).shared
    numbers = sum(tensor.numel() for tensor in shared.values())
    return f"{numbers:,} numbers, {size(sum(tensor.numel() * tensor.element_size() for tensor in shared.values()))}"


def _what(model_size: str, reducer: Reducer) -> str:
    """Return the content of a group, with the size of the model's."""
    if reducer.fields == ARRAYS:
        return f"arrays of the model's names and shapes ({model_size})"
    if not isinstance(reducer.fields, dict):
        return "arrays that the method declares" if reducer.fields is None else str(reducer.fields)
    return ", ".join(f"{name}{_shape(field)}" for name, field in reducer.fields.items())


def _shape(field: Any) -> str:
    shape = getattr(field, "shape", None)
    if not shape:
        return ""
    axes = {"C": "classes", "F": "features"}
    return f" [{' × '.join(str(axes.get(axis, axis)) for axis in shape)}]"


def _seen(cfg: RunConfig, reducer: Reducer) -> str:
    if isinstance(reducer, Relay):
        return "the server forwards it and cannot read it" if reducer.sealed else "the server reads and forwards it"
    if isinstance(reducer, Public):
        return "follows from the configuration"
    if isinstance(reducer, Individual | LateMean):
        return "the server sees each client's values" + (f" ({reducer.why})" if reducer.why else "")
    if cfg.privacy.secagg:
        return "the server sees only the sum over clients"
    return "the server sees each client's values, and uses their mean or sum"


def _protections(cfg: RunConfig, count: int) -> Iterator[str]:
    rules = cfg.privacy
    if rules.dp == "none":
        yield "differential privacy: none, so ε has no bound"
    else:
        try:
            spent = f"ε = {cost(rules, cfg.num_clients, count):.2f} at δ = {rules.delta:g} after {count} releases"
        except (ArithmeticError, ValueError):
            spent = "ε cannot be bounded"
        yield f"differential privacy: {rules.dp}, per {rules.unit}, noise multiplier {rules.noise_multiplier:g}: {spent}"
    yield f"secure aggregation: {'yes' if rules.secagg else 'no'}"

"""Replies of a client to the server's messages.

`node/clients.py` calls, in this order:

sum_request     takes the server's part of a secure sum out of a message
plain_reply     the content: a description, Flower's `fit` or `evaluate`, or a phase of the method
protected       checks what leaves the client against its uplink, and masks the terms of secure sums
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.phases import ReplyContent, messages_of
from fedgraph_flwr.clients.secure_sums import SumRequest, announced, masked_reply, secure_exchange
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.evaluation.metrics import released
from fedgraph_flwr.methods.labels import CLASS_WEIGHTS, LABELS, shares
from fedgraph_flwr.methods.uplink import sums
from fedgraph_flwr.secure.adaptive import received_norms
from fedgraph_flwr.secure.clipping import clipped_groups
from fedgraph_flwr.secure.masked import digest
from fedgraph_flwr.secure.protections import check_sent
from fedgraph_flwr.secure.secagg import SECAGG, STEPS
from fedgraph_flwr.wire.messages import (
    CLIPPED,
    CLIPPING,
    DESCRIBE,
    EVALUATE,
    MODEL,
    PROTOCOL,
    SPEAKS,
    TRAIN,
    Arrays,
    check_arrays,
    is_finite,
)


class Received(dict[str, Any]):
    """Parts of the server's message by name, of which none can be used that is not there.

    Args:
        parts: by name.
        what: what is missing, for errors.
    """

    def __init__(self, parts: Mapping[str, Any], what: str):
        super().__init__(parts)
        self.what = what

    def __missing__(self, name: str) -> Any:
        raise FedGraphError(f"the server's message has no {self.what} '{sanitize(name, 60)}', which the client needs")


def received(groups: Mapping[str, Arrays], phase: str) -> dict[str, Arrays]:
    """Return the groups of a message to a phase, whose missing parts are errors with their names.

    Raises:
        FedGraphError: an array holds other numbers than booleans, integers and finite floats of 32 or 64 bits.
    """
    at = f"of phase '{phase}'"
    for group, arrays in groups.items():
        for name, array in arrays.items():
            known = array.dtype.kind in "biu" or array.dtype in (np.float32, np.float64)
            if known and is_finite(array):
                continue
            place = f"array '{sanitize(name, 60)}' {at} in group '{sanitize(group, 60)}'"
            wrong = "with values that are not finite"
            if not known:
                wrong = f"as {array.dtype}, expected bool, integers, float32 or float64"
            raise FedGraphError(f"the server sent {place} {wrong}")
    parts = {group: Received(arrays, f"array {at} in group '{group}'") for group, arrays in groups.items()}
    return Received(parts, f"group {at}")


def by_client(arrays: Arrays, phase: str) -> dict[int, np.ndarray]:
    """Return the arrays of a group whose names are numbers of clients.

    Raises:
        FedGraphError: another name.
    """
    for name in arrays:
        if not (name.isascii() and name.isdecimal() and len(name) < 10):
            raise FedGraphError(
                f"the server sent array '{sanitize(name, 60)}' {phase}, expected the number of a client"
            )
    return {int(name): array for name, array in arrays.items()}


def number_of(config: Mapping[str, Any], name: str, low: float = 0) -> float:
    """Return a number of a request.

    Raises:
        FedGraphError: it is missing, not a number, or below ``low``.
    """
    value = config[name]
    if type(value) not in (bool, int, float) or not low <= value:
        raise FedGraphError(
            f"the server's message has {name}={sanitize(value, 60)}, expected a number of at least {low:g}"
        )
    return float(value)


def sum_request(client: GraphClient, name: str, groups: dict[str, Arrays]) -> SumRequest | None:
    """Take the server's part of a secure sum out of a message; None without secure sums, and in the exchanges around one."""
    if not client.cfg.privacy.secagg or name in STEPS:
        return None
    part = groups.pop(SECAGG, {})
    own = {*client.own_requests, *client.combined.own_requests}
    common = {
        f"{group}/{name}": a for group, arrays in groups.items() if group not in own for name, a in arrays.items()
    }
    return SumRequest(part, digest(common))


def plain_reply(client: GraphClient, name: str, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
    """Reply to one message, without masks.

    Args:
        client: who replies.
        name: ``describe``, ``train``, ``evaluate``, or a phase of the method.
        groups: named groups of arrays, as received; without `MODEL`, the client uses its own parameters.
        config: scalars, as received.

    Raises:
        FedGraphError: an unknown phase, or arrays with other names or shapes than the shared ones.
    """
    client.exchange, client.stage = int(config.get("exchange", 0)), str(config.get("stage", ""))
    if client.cfg.privacy.secagg and name in STEPS:
        return secure_exchange(client, name, groups), {}
    if name == EVALUATE and client.cfg.privacy.scores == "none":
        raise FedGraphError(f"client {client.graph.client} sends no scores: the run has privacy.scores=none")
    clipping = groups.pop(CLIPPING, {})
    if client.cfg.train.class_weights == "federated" and name not in (DESCRIBE, EVALUATE, LABELS):
        take_class_weights(client, groups.pop(CLASS_WEIGHTS, {}))
    if name == DESCRIBE:
        if MODEL in groups and config.get("keep"):  # for runs without scores
            _keep_model(client, groups, config)
        return {}, {**announced(client), SPEAKS: PROTOCOL}
    if name in (TRAIN, EVALUATE):
        parameters = _parameters(client, groups) if MODEL in groups else []
        client.combined.receive(client, groups)
        client.receive(groups)
        if name == EVALUATE:
            return {}, client.evaluate(parameters, config)[2]
        trained, num_train, scores = client.fit(parameters, config)
        sent, numbers = _trained(client, trained, config)
        if client.cfg.privacy.dp == "none":
            size = client.fixed_size or num_train
            numbers = {"num_train": size, **numbers}
        numbers = {**scores, **numbers}
        return _bounded(client, name, sent, dict(zip(client.shared, parameters, strict=False)), clipping), numbers
    if name == LABELS:
        share = shares(client.batch.y.cpu().numpy(), client.task.width, client.policy.min_nodes)
        return _bounded(client, name, {LABELS: {"share": share}}, {}, clipping), {}
    messages_of(type(client), name, client.uplink_of)
    if MODEL in groups:
        _check_model(client, groups[MODEL])
    sent, numbers = getattr(client, name)(groups, config)
    return _bounded(client, name, sent, groups.get(MODEL, {}), clipping), numbers


def summed_groups(client: GraphClient, name: str, config: Mapping[str, Any]) -> list[str]:
    """Return the groups of a reply that the server needs only as a mean or sum, as far as the reply may hold them.

    In a stage whose models stay at the clients (``keep_model``), neither the shared parameters nor the groups of the configured
    parts leave; what the method itself sends does.
    """
    groups = sums(client.uplink_of.get(name, {}))
    if not config.get("keep_model"):
        return groups
    own = [group for group in groups if group not in {MODEL, *client.combined.sends}]
    return own if {*own} - {CLIPPED} else []


def protected(
    client: GraphClient, name: str, reply: ReplyContent, request: SumRequest | None, summed: Collection[str]
) -> ReplyContent:
    """Return a reply after checking it against the uplink; in a secure sum, with a masked term.

    Args:
        client: who replies.
        name: the phase.
        reply: the result of `plain_reply`.
        request: the result of `sum_request`.
        summed: the result of `summed_groups`, which the node booked.

    Raises:
        FedGraphError: the reply has a group or a number that the uplink does not declare, values that are not finite, or a
            release that was not booked.
        RunFailed: the server requests unmasked terms of a secure sum.
    """
    cfg, declared, (sent, numbers) = client.cfg, client.uplink_of, reply
    if cfg.privacy.secagg and name in STEPS:
        return reply
    extra = [group for group in sums(declared.get(name, {})) if sent.get(group) and group not in summed]
    if extra and cfg.privacy.dp != "none":
        raise FedGraphError(f"client {client.graph.client} would send '{extra[0]}', which this stage must not release")
    check_sent(cfg, declared, name, sent, numbers, _framework_numbers(client, name))
    for group, arrays in sent.items():
        for key, array in arrays.items():
            if not is_finite(array):
                raise FedGraphError(
                    f"client {client.graph.client} would send '{group}/{key}' with values that are not finite: if it diverged,"
                    " lower train.lr"
                )
    if request and (terms := {group: declared[name][group] for group in sums(declared.get(name, {}))}):
        sent = masked_reply(client, sent, terms, request)
    return sent, numbers


def take_class_weights(client: GraphClient, group: Arrays) -> None:
    """Set the class weights that the server computed over all clients.

    Weights w_v leave (Σ w_v)² / Σ w_v² training nodes in a gradient: few, if only a rare class has weight.

    Raises:
        FedGraphError: they are missing or negative, do not match this graph's classes, or leave too few training nodes.
    """
    if not group:
        raise FedGraphError("the server sent class weights without w")
    weights = group["w"].astype(np.float64)[client.batch.y.cpu().numpy()]
    behind = weights.sum() ** 2 / max((weights**2).sum(), np.finfo(np.float64).tiny)
    if client.num_train and behind < client.policy.min_nodes:
        raise FedGraphError(
            f"the server's class weights leave {behind:.3g} training nodes of client {client.graph.client} in a step, its node's"
            f" policy requires at least {client.policy.min_nodes} (min_nodes): set train.class_weights=local"
        )
    client.class_weights = torch.from_numpy(group["w"]).to(client.device, client.dtype)


def _trained(client: GraphClient, trained: list[np.ndarray], config: dict[str, Any]) -> ReplyContent:
    """Return what leaves the client after training: shared parameters, and the groups and numbers of the method and its parts."""
    sent, numbers = client.send()
    if not config.get("keep_model"):
        model = {MODEL: dict(zip(client.shared, trained, strict=True))} if MODEL in client.uplink_of[TRAIN] else {}
        sent = {**model, **sent, **client.combined.send(client)}
    return sent, numbers


def _keep_model(client: GraphClient, groups: dict[str, Arrays], config: dict[str, Any]) -> None:
    """Store a model that was never scored, for predictions."""
    client.set_parameters(_parameters(client, groups))
    if groups:
        client.receive(groups)
    if client.other_clients:
        client.predict()
    client.saved_models.take(client, {}, config)


def _parameters(client: GraphClient, groups: dict[str, Arrays]) -> list[np.ndarray]:
    """Take the shared parameters out of a message's groups, in the model's order."""
    model = groups.pop(MODEL)
    _check_model(client, model)
    return [model[key] for key in client.shared]


def _check_model(client: GraphClient, model: Arrays) -> None:
    """Refuse shared parameters of other names or shapes than the model's."""
    client.model.fit_to(model, "the server")
    check_arrays(model, {key: tuple(tensor.shape) for key, tensor in client.shared.items()}, "the server")


def _bounded(
    client: GraphClient, name: str, sent: dict[str, Arrays], received: Arrays, clipping: Arrays
) -> dict[str, Arrays]:
    """Return the groups of a reply, clipped if the run bounds each client's influence."""
    rules, declared = client.cfg.privacy, client.uplink_of.get(name, {})
    if rules.side not in ("client", "distributed") or rules.unit != "client":
        return sent
    summed = [group for group in sums(declared) if group in sent]
    norms = (
        received_norms(clipping, summed, rules) if rules.adaptive else {group: rules.norm(group) for group in summed}
    )
    return clipped_groups(sent, declared, received, rules, norms)


def _framework_numbers(client: GraphClient, name: str) -> set[str]:
    """Return the names of the numbers that the framework itself sends in a reply."""
    if name == DESCRIBE:
        sizes = {"num_train", "num_nodes", "num_features", "num_edge_features", "num_classes"}
        return {*sizes, "schema", "link", "min_nodes", SPEAKS}
    cfg = client.cfg
    if name not in (TRAIN, EVALUATE):
        return set()
    names = client.task.score_names(cfg.evaluation, client.task.width) if cfg.privacy.scores == "exact" else set()
    names |= set(released(cfg.evaluation)) if cfg.privacy.scores == "noised" else set()
    if not cfg.evaluation.trained:
        names = {name for name in names if not name.startswith("trained-")}
    if name == TRAIN:
        names |= {"num_train"} if cfg.privacy.dp == "none" else set()
        names |= {"train-loss"} if cfg.privacy.scores == "exact" else set()
    return names

"""Replies of a client to the server's messages.

`node/clients.py` calls, in this order:

taken           takes out of a message what the run's protection needs of it
summed_groups   the groups of sums in the reply, which the node books
plain_reply     the content: a description, Flower's `fit` or `evaluate`, or a phase of the method
protected       checks what leaves the client against its uplink, and lets the protection clip, add noise and mask
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.phases import ReplyContent, unknown_phase
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.evaluation.metrics import released
from fedgraph_flwr.methods.downlink import SCALARS
from fedgraph_flwr.methods.labels import CLASS_WEIGHTS, LABELS, shares
from fedgraph_flwr.methods.uplink import sums
from fedgraph_flwr.methods.weighting import SIZE_KEYS, sizes_of
from fedgraph_flwr.secure.protection import Leaving, Taken
from fedgraph_flwr.wire.messages import (
    CLIPPED,
    DESCRIBE,
    EVALUATE,
    METRICS,
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
        kind: kind of part, for errors.
        where: their place, for errors.
    """

    def __init__(self, parts: Mapping[str, Any], kind: str, where: str = "so far"):
        super().__init__(parts)
        self.kind, self.where = kind, where

    def __missing__(self, name: str) -> Any:
        raise FedGraphError(
            f"the server's message has no {self.kind} '{sanitize(name, 60)}' {self.where}, which the client needs"
        )


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
    parts = {group: Received(arrays, "array", f"{at} in group '{group}'") for group, arrays in groups.items()}
    return Received(parts, "group", at)


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


def binding(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the scalars of a message from which its reply follows."""
    known = SCALARS.keys() - {"stage", "keep_model"}
    return sorted((key, value) for key, value in config.items() if key not in known)


def taken(client: GraphClient, name: str, groups: dict[str, Arrays], config: Mapping[str, Any]) -> Taken:
    """Take out of a message what the run's protection needs of it."""
    message = client.protection.take(name, groups, {*client.own_requests, *client.chosen_parts.own_requests})
    summed = sums(client.uplink_of.get(name, {}))
    return client.protection.follow(name, partial(binding, config), message) if summed else message


def plain_reply(client: GraphClient, name: str, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
    """Reply to one message, without protection.

    Args:
        client: who replies.
        name: ``describe``, ``train``, ``evaluate``, or a phase of the method.
        groups: named groups of arrays, as received; without `MODEL`, the client uses its own parameters.
        config: scalars, as received.

    Raises:
        FedGraphError: an unknown phase, or arrays with other names or shapes than the shared ones.
    """
    client.exchange, client.stage = int(config.get("exchange", 0)), str(config.get("stage", ""))
    if name in client.protection.exchanges:
        client.sizes = client.sizes or sizes_of(announced(client))
        at = client.server_round, client.exchange
        return client.protection.answer(name, at, groups, client.sizes, client.keyring), {}
    if CLASS_WEIGHTS in client.downlink_of.phases.get(name, {}):
        take_class_weights(client, groups.pop(CLASS_WEIGHTS, {}))
    if name == TRAIN:
        return _trained(client, client.fit(_with_model(client, groups), config), config)
    if name in SERVED:
        return SERVED[name](client, groups, config)
    if name not in client.messages:
        raise unknown_phase(client, name)
    if MODEL in groups:
        check_model(client, groups[MODEL])
    content: ReplyContent = getattr(client, name)(groups, config)
    return content


def announced(client: GraphClient) -> dict[str, Any]:
    """Return a client's description as the server reads it, whatever the method adds.

    Members of an agreement announce the weights that they agreed on, in the place of sizes.
    """
    description = client.describe()
    sizes = SIZE_KEYS.values() & description.keys() if client.fixed_size else ()
    return description | dict.fromkeys(sizes, client.fixed_size)


# --- the framework's own phases -----------------------------------------------------------------------------------------


def _described(client: GraphClient, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
    """Describe the client; in a run without scores, also store the model that comes with the request, for predictions."""
    if MODEL in groups and config.get("keep"):
        client.set_parameters(_parameters(client, groups))
        if groups:
            client.receive(groups)
        if client.other_clients:
            client.predict()
        client.saved_models.take(client, {}, config)
    return {}, {**announced(client), SPEAKS: PROTOCOL}


def _with_model(client: GraphClient, groups: dict[str, Arrays]) -> list[np.ndarray]:
    """Take the groups that come with a model to train or score, and return its parameters; none: the client's own."""
    parameters = _parameters(client, groups) if MODEL in groups else []
    client.chosen_parts.receive(client, groups)
    client.receive(groups)
    return parameters


def _scored(client: GraphClient, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
    """Score a model."""
    if client.protection.scores == "none":
        raise FedGraphError(f"client {client.graph.client} sends no scores: the run has privacy.scores=none")
    return {}, client.evaluate(_with_model(client, groups), config)[2]


def _trained(
    client: GraphClient, result: tuple[list[np.ndarray], int, dict[str, Any]], config: dict[str, Any]
) -> ReplyContent:
    """Return the shared parameters that `fit` returned, with the groups and numbers of the method and its parts."""
    trained, num_train, scores = result
    sent, numbers = client.send()
    if not config.get("keep_model"):
        model = {MODEL: dict(zip(client.shared, trained, strict=True))} if MODEL in client.uplink_of[TRAIN] else {}
        sent = {**model, **sent, **client.chosen_parts.send(client)}
    size = {} if client.protection.private else {"num_train": client.fixed_size or num_train}
    return sent, {**scores, **size, **numbers}


def _labels(client: GraphClient, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
    """Share the classes of the training nodes."""
    return {LABELS: {"share": shares(client.batch.y.cpu().numpy(), client.task.width, client.policy.min_nodes)}}, {}


SERVED = {DESCRIBE: _described, EVALUATE: _scored, LABELS: _labels}
"""Phases of the framework's own besides ``train`` → who serves them; a method's own phases are members of its client."""


def summed_groups(client: GraphClient, name: str, config: Mapping[str, Any]) -> list[str]:
    """Return the groups of a reply that the server needs only as a mean or sum, as far as the reply may hold them.

    In a stage whose models stay at the clients (``keep_model``), neither the shared parameters nor the groups of the configured
    parts leave; what the method itself sends does.
    """
    groups = sums(client.uplink_of.get(name, {}))
    if not config.get("keep_model"):
        return groups
    method_groups = [group for group in groups if group not in {MODEL, *client.chosen_parts.sends}]
    return method_groups if {*method_groups} - {CLIPPED} else []


def protected(
    client: GraphClient, name: str, reply: ReplyContent, request: Taken, summed: Collection[str]
) -> ReplyContent:
    """Return a reply after checking it against the uplink, as the run's protection lets it leave.

    Args:
        client: who replies.
        name: the phase.
        reply: the result of `plain_reply`.
        request: the result of `taken`.
        summed: the result of `summed_groups`, which the node booked.

    Raises:
        FedGraphError: the reply has another form, a group or a number that the uplink does not declare, values that are
            not finite, or a release that was not booked.
        RunFailed: the server requests unmasked terms of a secure sum.
    """
    if name in client.protection.exchanges:
        return reply
    if odd := _odd_form(reply):
        expected = "expected (groups, numbers), whose groups are {group: {name: NumPy array}}"
        raise FedGraphError(f"the client's reply to '{name}' is or holds {odd}, {expected}", "own-code")
    sent, numbers = reply
    _check_declared(client, name, sent, numbers)
    check_finite(client, sent)
    groups = client.uplink_of.get(name, {})
    leaving = Leaving(client.graph.client, name, client.server_round, sent, groups, request, summed, client.exchange)
    return client.protection.leave(leaving), numbers


def _odd_form(reply: Any) -> str:
    """Return what in the result of a phase is no `ReplyContent`; empty if all is."""
    if not isinstance(reply, tuple) or len(reply) != 2:
        return f"a {type(reply).__name__}"
    for group, arrays in reply[0].items():
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray | np.generic):
                return f"'{group}/{name}' of type {type(array).__name__}"
    return ""


def _check_declared(client: GraphClient, phase: str, groups: Mapping[str, Arrays], numbers: Mapping[str, Any]) -> None:
    """Refuse to send what the method does not declare.

    Raises:
        FedGraphError: names the first group or number that is not declared.
    """
    known = client.uplink_of.get(phase, {})
    reducer = known.get(METRICS)
    fields = reducer.fields if reducer else {}
    declared = set(fields if isinstance(fields, dict) else {})
    if odd := sorted(groups.keys() - known.keys()):
        what, listing = f"group '{odd[0]}'", ", ".join(sorted(known)) or "none"
        how = f", as Mean, Sum, LateMean, Relay, Individual or Public; declared: {listing}"
    elif fields is not None and (
        odd := sorted(numbers.keys() - _framework_numbers(client, phase) - {"client"} - declared)
    ):
        what = f"number '{odd[0]}'"
        how = f": {{'{phase}': {{METRICS: Individual({{'{odd[0]}': NumberField()}}, why='...')}}}}"
    else:
        return
    raise FedGraphError(
        f"strategy={client.cfg.strategy.name}: the client's reply to '{phase}' holds {what}, which its uplink does not declare:"
        f" declare it in `uplink`{how}"
    )


def check_finite(client: GraphClient, sent: Mapping[str, Arrays]) -> None:
    """Refuse to send values that are not finite.

    Raises:
        FedGraphError: names the array.
    """
    for group, arrays in sent.items():
        for key, array in arrays.items():
            if not is_finite(array):
                raise FedGraphError(
                    f"client {client.graph.client} would send '{group}/{key}' with values that are not finite: if it diverged,"
                    " lower train.lr"
                )


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


def _parameters(client: GraphClient, groups: dict[str, Arrays]) -> list[np.ndarray]:
    """Take the shared parameters out of a message's groups, in the model's order."""
    model = groups.pop(MODEL)
    check_model(client, model)
    return [model[key] for key in client.shared]


def check_model(client: GraphClient, model: Arrays) -> None:
    """Refuse shared parameters of other names or shapes than the model's."""
    client.model.fit_to(model, "the server")
    check_arrays(model, {key: tuple(tensor.shape) for key, tensor in client.shared.items()}, "the server")


def _framework_numbers(client: GraphClient, name: str) -> set[str]:
    """Return the names of the numbers that the framework itself sends in a reply."""
    if name == DESCRIBE:
        sizes = {"num_train", "num_nodes", "num_features", "num_edge_features", "num_classes"}
        return {*sizes, "schema", "link", "min_nodes", SPEAKS}
    if name not in (TRAIN, EVALUATE):
        return set()
    shown = client.protection.scores
    names = set(released(client.cfg.evaluation)) if shown == "noised" else set[str]()
    if shown == "exact":
        names = client.score_names | ({"train-loss"} if name == TRAIN else set())
    return names if client.protection.private or name != TRAIN else {*names, "num_train"}

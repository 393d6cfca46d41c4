"""Replies of a client to the server's messages.

reply           checks what leaves the client against its uplink, and masks the terms of secure sums
plain_reply     the content: a description, Flower's `fit` or `evaluate`, or a phase of the method
"""

# ruff: noqa: D102 (`base` documents each member)

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.clients.phases import ReplyContent, messages_of
from fedgraph_flwr.clients.secure_sums import masked_reply, secure_exchange
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.labels import CLASS_WEIGHTS, LABELS
from fedgraph_flwr.methods.uplink import Groups, sums
from fedgraph_flwr.secure.adaptive import received_norms
from fedgraph_flwr.secure.clipping import clipped_groups
from fedgraph_flwr.secure.keyring import Keyring
from fedgraph_flwr.secure.masked import digest
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.secure.protections import check_sent
from fedgraph_flwr.secure.secagg import SECAGG, STEPS, Member
from fedgraph_flwr.wire.messages import (
    CLIPPING,
    DESCRIBE,
    EVALUATE,
    MODEL,
    PROTOCOL,
    SPEAKS,
    TRAIN,
    Arrays,
    check_arrays,
)


class Respondent(Protocol):
    """A client, as this module uses it; `fedgraph_flwr.clients.base` documents each member."""

    cfg: RunConfig
    graph: ClientGraph
    device: torch.device
    dtype: torch.dtype
    batch: Any
    task: Any
    policy: Policy
    class_weights: Tensor | None
    keyring: Keyring
    member: Member
    combined: Any
    server_round: int
    exchange: int
    own_requests: ClassVar[tuple[str, ...]]
    needs_others: ClassVar[str]

    @property
    def num_train(self) -> int: ...

    @property
    def declared(self) -> dict[str, Groups]: ...

    @property
    def score_names(self) -> set[str]: ...

    @property
    def shared(self) -> dict[str, Tensor]: ...

    def describe(self) -> dict[str, Any]: ...

    def evaluate(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]: ...

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, Any]
    ) -> tuple[list[np.ndarray], int, dict[str, Any]]: ...

    def plain_reply(self, name: str, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent: ...

    def predict(self) -> Tensor: ...

    def receive(self, groups: dict[str, Arrays]) -> None: ...

    def remember(self, scores: Mapping[str, list[float]], config: Mapping[str, Any]) -> None: ...

    def send(self) -> ReplyContent: ...

    def set_parameters(self, parameters: list[np.ndarray]) -> None: ...


def reply(client: Respondent, name: str, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
    """Reply to one message with what the uplink declares; in a secure sum, with a masked term.

    Raises:
        FedGraphError: the reply has a group or a number that the uplink does not declare.
        RunFailed: the server requests unmasked terms of a secure sum.
    """
    secure, declared = client.cfg.privacy.secagg, client.declared
    if secure and name in STEPS:
        at, cfg = (client.server_round, client.exchange), client.cfg
        return secure_exchange(name, groups, client.member, client.keyring, *at, cfg, client.describe), {}
    terms_of, received = (groups.pop(SECAGG, {}), _received(client, groups)) if secure else ({}, b"")
    model = _start(client, groups) if secure else np.empty(0)
    sent, numbers = client.plain_reply(name, groups, config)
    check_sent(client.cfg, declared, name, sent, numbers, _framework_numbers(client, name))
    terms = {group: declared[name][group] for group in sums(declared.get(name, {}))} if secure else {}
    if terms:
        own = client.member, client.server_round
        sent = masked_reply(sent, terms, terms_of, *own, received, client.cfg, model)
    return sent, numbers


def _received(client: Respondent, groups: Mapping[str, Arrays]) -> bytes:
    """Return a digest of what all clients of a secure sum must receive alike: the model, and all groups but their own."""
    own = {*client.own_requests, *client.combined.own_requests}
    common = {group: arrays for group, arrays in groups.items() if group not in own}
    return digest({f"{group}/{name}": array for group, arrays in common.items() for name, array in arrays.items()})


def _start(client: Respondent, groups: Mapping[str, Arrays]) -> np.ndarray:
    """Return the parameters that a reply starts from [P]: those received, or the client's own."""
    arrays = groups.get(MODEL) or {name: tensor.detach().cpu().numpy() for name, tensor in client.shared.items()}
    return np.concatenate([np.ravel(arrays[name]).astype(np.float64) for name in sorted(arrays)] or [np.empty(0)])


def plain_reply(client: Respondent, name: str, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
    """Reply to one message, without masks.

    Args:
        client: who replies.
        name: ``describe``, ``train``, ``evaluate``, or a phase of the method.
        groups: named groups of arrays, as received; without `MODEL`, the client uses its own parameters.
        config: scalars, as received.

    Raises:
        FedGraphError: an unknown phase, or arrays with other names or shapes than the shared ones.
    """
    if name == EVALUATE and client.cfg.privacy.scores == "none":
        raise FedGraphError(f"client {client.graph.client} sends no scores: the run has privacy.scores=none")
    clipping = groups.pop(CLIPPING, {})
    if client.cfg.train.class_weights == "federated" and name not in (DESCRIBE, EVALUATE, LABELS):
        take_class_weights(client, groups.pop(CLASS_WEIGHTS, {}))
    if name == DESCRIBE:
        if MODEL in groups and config.get("keep"):  # for runs without scores
            client.set_parameters(_parameters(client, groups))
            if groups:
                client.receive(groups)
            if client.needs_others:
                client.predict()
            client.remember({}, config)
        return {}, {**client.describe(), SPEAKS: PROTOCOL}
    if name in (TRAIN, EVALUATE):
        parameters = _parameters(client, groups) if MODEL in groups else []
        client.combined.receive(client, groups)
        client.receive(groups)
        if name == EVALUATE:
            return {}, client.evaluate(parameters, config)[2]
        return _trained(client, parameters, config, clipping)
    messages_of(type(client), name)
    sent, numbers = getattr(client, name)(groups, config)
    return _bounded(client, name, sent, groups.get(MODEL, {}), clipping), numbers


def take_class_weights(client: Respondent, group: Arrays) -> None:
    """Set the class weights that the server computed over all clients.

    Weights w_v leave (Σ w_v)² / Σ w_v² training nodes in a gradient: few, if only a rare class has weight.

    Raises:
        FedGraphError: they are missing or negative, do not match this graph's classes, or leave too few training nodes.
    """
    check_arrays(group, {"w": (client.task.width,)}, "the server")
    if (group["w"] < 0).any():
        raise FedGraphError(f"the server sent class weights {group['w'].tolist()}, expected no negative value")
    weights = group["w"].astype(np.float64)[client.batch.y.cpu().numpy()]
    behind = weights.sum() ** 2 / max((weights**2).sum(), np.finfo(np.float64).tiny)
    if client.num_train and behind < client.policy.min_nodes:
        raise FedGraphError(
            f"the server's class weights leave {behind:.3g} training nodes of client {client.graph.client} in a step, its node's"
            f" policy requires at least {client.policy.min_nodes} (min_nodes): set train.class_weights=local"
        )
    client.class_weights = torch.from_numpy(group["w"]).to(client.device, client.dtype)


def _trained(
    client: Respondent, parameters: list[np.ndarray], config: dict[str, Any], clipping: Arrays
) -> ReplyContent:
    """Return the reply to ``train``: shared parameters, the method's groups, scores, losses and the method's numbers."""
    trained, num_train, scores = client.fit(parameters, config)
    sent, numbers = client.send()
    if not config.get("keep_model"):
        model = {MODEL: dict(zip(client.shared, trained, strict=True))} if MODEL in client.declared[TRAIN] else {}
        sent = {**model, **sent, **client.combined.send(client)}
    if client.cfg.privacy.dp == "none":
        scores["num_train"] = num_train
    received = dict(zip(client.shared, parameters, strict=False))
    return _bounded(client, TRAIN, sent, received, clipping), {**scores, **numbers}


def _parameters(client: Respondent, groups: dict[str, Arrays]) -> list[np.ndarray]:
    """Take the shared parameters out of a message's groups, in the model's order."""
    model = groups.pop(MODEL)
    check_arrays(model, {key: tuple(tensor.shape) for key, tensor in client.shared.items()}, "the server")
    return [model[key] for key in client.shared]


def _bounded(
    client: Respondent, name: str, sent: dict[str, Arrays], received: Arrays, clipping: Arrays
) -> dict[str, Arrays]:
    """Return the groups of a reply, clipped if the run bounds each client's influence."""
    rules, declared = client.cfg.privacy, client.declared.get(name, {})
    if rules.side not in ("client", "distributed"):
        return sent
    summed = [group for group in sums(declared) if group in sent]
    norms = (
        received_norms(clipping, summed, rules) if rules.adaptive else {group: rules.norm(group) for group in summed}
    )
    return clipped_groups(sent, declared, received, rules, norms)


def _framework_numbers(client: Respondent, name: str) -> set[str]:
    """Return the names of the numbers that the framework itself sends in a reply."""
    if name == DESCRIBE:
        return {"num_train", "num_nodes", "num_features", "num_edge_features", "num_classes", "schema", "link", SPEAKS}
    return client.score_names | {"num_train", "train-loss"} if name in (TRAIN, EVALUATE) else set()

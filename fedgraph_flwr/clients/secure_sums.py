"""A client's replies in the exchanges around a secure sum (`fedgraph_flwr.secure.secagg`)."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.methods.uplink import ARRAYS, Reducer
from fedgraph_flwr.methods.weighting import SIZE_KEYS, batch_of, in_sum
from fedgraph_flwr.secure.keyring import SIGNATURES, Keyring
from fedgraph_flwr.secure.opened import MODELS
from fedgraph_flwr.secure.secagg import (
    AGREE,
    AGREED,
    CLIENTS,
    DEAL,
    ENVELOPES,
    KEYS,
    MEMBERS,
    PUBLISH,
    SECAGG,
    SIZES,
    SURVIVORS,
    Member,
    publication,
    unpacked,
)
from fedgraph_flwr.wire.messages import Arrays


def secure_exchange(
    phase: str,
    groups: Mapping[str, Arrays],
    member: Member,
    keyring: Keyring,
    server_round: int,
    exchange: int,
    cfg: RunConfig,
    description: Callable[[], Mapping[str, Any]],
) -> dict[str, Arrays]:
    """Reply to a request for keys (`PUBLISH`), shares (`DEAL`), a signature (`AGREE`), or shares that unmask a sum (`UNMASK`).

    Args:
        phase: the request.
        groups: groups of the request, as received.
        member: the client's part in the sum.
        keyring: signs the client's keys and verifies those of others.
        server_round: the round.
        exchange: index of the sum in its round.
        cfg: the run's configuration.
        description: returns the client's description.
    """
    request = groups.get(SECAGG, {})
    if phase == PUBLISH:
        published = member.publish(server_round, exchange, sizes_of(description()))
        content = publication(published[KEYS], published[SIZES])
        return {SECAGG: published | keyring.sign(_subject(member, server_round), content)}
    if phase == DEAL:
        clients, keys, sizes = request[CLIENTS], request[KEYS], request[SIZES]
        signed = {int(c): publication(k, s) for c, k, s in zip(clients, keys, sizes, strict=True)}

        def verify() -> None:
            own, signatures = signed[member.client], groups.get(SIGNATURES, {})
            keyring.check(_subject(member, server_round), own, signed, signatures)

        return {SECAGG: member.deal(clients, keys, sizes, server_round, batch_of(cfg, server_round), verify)}
    if phase == AGREE:
        return {SECAGG: member.agree(request[SURVIVORS], server_round)}
    return {SECAGG: member.reveal(unpacked(request), server_round)}


def sizes_of(description: Mapping[str, Any]) -> list[int]:
    """Return the sizes that a client publishes with its keys: those in its description, else 0."""
    return [int(np.sum(description.get(key, 0))) for key in SIZE_KEYS.values()]


def _subject(member: Member, server_round: int) -> str:
    """Return the subject of a signature, which keeps keys of one sum from being reused in another sum of the round."""
    return f"{PUBLISH} {server_round} {member.exchange}"


def masked_reply(
    reply: dict[str, Arrays],
    summed: Mapping[str, Reducer],
    request: Arrays,
    member: Member,
    server_round: int,
    received: bytes,
    cfg: RunConfig,
    model: NDArray[np.float64],
) -> dict[str, Arrays]:
    """Mask the groups of a reply that are summed, with weights that the client computes; leave the others unchanged.

    Args:
        reply: groups of arrays.
        summed: declarations of the groups that are summed.
        request: the server's part of the sum: members and envelopes.
        member: the client's part in it.
        server_round: the round.
        received: digest of the model that came with the request.
        cfg: the run's configuration.
        model: the parameters that came with it [P].

    Raises:
        RunFailed: the server requests arrays outside a sum.
    """
    terms = {group: reply[group] for group in summed if group in reply}
    if not terms:
        return reply
    if not request:
        raise RunFailed(
            f"client {member.client}: the server requested an unmasked reply in round {server_round}, which"
            " privacy.secagg=true refuses"
        )
    members = request[MEMBERS]
    sizes = member.sizes_of(members)
    weights = {group: in_sum(summed[group], cfg, sizes, members.tolist()) for group in terms}
    kinds = {group: MODELS for group in terms if summed[group].fields == ARRAYS}
    masked = member.masked(terms, weights, members, request[ENVELOPES], server_round, received, kinds, model)
    return {**reply, **masked, SECAGG: {AGREED: member.state[AGREED]}}

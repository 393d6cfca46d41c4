"""A client's replies in the exchanges around a secure sum (`fedgraph_flwr.secure.secagg`)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.methods.uplink import ARRAYS, Reducer
from fedgraph_flwr.methods.weighting import SIZE_KEYS, batch_of, in_sum, sizes_of
from fedgraph_flwr.secure.keyring import SIGNATURES
from fedgraph_flwr.secure.secagg import (
    AGREE,
    AGREED,
    CLIENTS,
    DEAL,
    ENVELOPES,
    KEYS,
    MEMBERS,
    MODELS,
    PUBLISH,
    SECAGG,
    SIZES,
    SURVIVORS,
    publication,
    unpacked,
)
from fedgraph_flwr.wire.messages import Arrays


class SumRequest(NamedTuple):
    """The server's request for a term of a secure sum.

    Attributes:
        part: the server's part of the sum, its group `SECAGG`.
        received: digest of what all clients of the sum must receive alike: the model, and all groups but their own.
    """

    part: Arrays
    received: bytes


def announced(client: GraphClient) -> dict[str, Any]:
    """Return a client's description as the server reads it, whatever the method adds.

    Members of an agreement announce the weights that they agreed on, in the place of sizes.
    """
    description = client.describe()
    sizes = SIZE_KEYS.values() & description.keys() if client.fixed_size else ()
    return description | dict.fromkeys(sizes, client.fixed_size)


def secure_exchange(client: GraphClient, phase: str, groups: Mapping[str, Arrays]) -> dict[str, Arrays]:
    """Reply to a request for keys (`PUBLISH`), shares (`DEAL`), a signature (`AGREE`), or shares that unmask a sum (`UNMASK`).

    Args:
        client: who replies.
        phase: the request.
        groups: groups of the request, as received.
    """
    member, server_round, request = client.member, client.server_round, groups.get(SECAGG, {})
    if phase == PUBLISH:
        published = member.publish(server_round, client.exchange, sizes_of(announced(client)))
        content = publication(published[KEYS], published[SIZES])
        return {SECAGG: published | client.keyring.sign(_subject(client), content)}
    if phase == DEAL:
        clients, keys, sizes = request[CLIENTS], request[KEYS], request[SIZES]
        signed = {int(c): publication(k, s) for c, k, s in zip(clients, keys, sizes, strict=True)}

        def verify() -> None:
            own, signatures = signed[member.client], groups.get(SIGNATURES, {})
            client.keyring.check(_subject(client), own, signed, signatures)

        return {SECAGG: member.deal(clients, keys, sizes, server_round, batch_of(client.cfg, server_round), verify)}
    if phase == AGREE:
        return {SECAGG: member.agree(request[SURVIVORS], server_round)}
    return {SECAGG: member.reveal(unpacked(request), server_round)}


def _subject(client: GraphClient) -> str:
    """Return the subject of a signature, which keeps keys of one sum from being reused in another sum of the round."""
    return f"{PUBLISH} {client.server_round} {client.member.exchange}"


def masked_reply(
    client: GraphClient, reply: dict[str, Arrays], summed: Mapping[str, Reducer], request: SumRequest
) -> dict[str, Arrays]:
    """Mask the groups of a reply that are summed, with weights that the client computes; leave the others unchanged.

    Args:
        client: who replies.
        reply: groups of arrays.
        summed: declarations of the groups that are summed.
        request: the server's request for the sum.

    Raises:
        RunFailed: the server requests arrays outside a sum.
    """
    terms = {group: reply[group] for group in summed if group in reply}
    if not terms:
        return reply
    member, server_round, part = client.member, client.server_round, request.part
    if not part:
        raise RunFailed(
            f"client {member.client}: the server requested an unmasked reply in round {server_round}, which"
            " privacy.secagg=true refuses"
        )
    members = part[MEMBERS]
    sizes = member.sizes_of(members)
    weights = {group: in_sum(summed[group], client.cfg, sizes, members.tolist()) for group in terms}
    kinds = {group: MODELS for group in terms if summed[group].fields == ARRAYS}
    own = part[ENVELOPES], server_round, request.received, kinds
    masked = member.masked(terms, weights, members, *own)
    return {**reply, **masked, SECAGG: {AGREED: member.state[AGREED]}}

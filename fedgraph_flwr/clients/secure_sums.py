"""A client's replies in the exchanges around a secure sum (`fedgraph_flwr.secure.secagg`)."""

from collections.abc import Collection, Mapping

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.secure.keyring import SIGNATURES, Keyring
from fedgraph_flwr.secure.masked import keys_of
from fedgraph_flwr.secure.secagg import (
    AGREED,
    CLIENTS,
    DEAL,
    ENVELOPES,
    KEYS,
    MEMBERS,
    PUBLISH,
    RATIOS,
    SECAGG,
    SURVIVORS,
    Member,
)
from fedgraph_flwr.wire.messages import Arrays


def secure_exchange(
    phase: str, groups: Mapping[str, Arrays], member: Member, keyring: Keyring, server_round: int, exchange: int
) -> dict[str, Arrays]:
    """Reply to a request for keys (`PUBLISH`), for shares (`DEAL`), or for the shares that unmask a sum (`UNMASK`).

    Args:
        phase: the request.
        groups: groups of the request, as received.
        member: the client's part in the sum.
        keyring: signs the client's keys and verifies those of others.
        server_round: the round.
        exchange: index of the sum in its round.
    """
    request = groups.get(SECAGG, {})
    if phase == PUBLISH:
        published = member.publish(server_round, exchange)
        return {SECAGG: published | keyring.sign(_publication(member, server_round), published[KEYS].tobytes())}
    if phase == DEAL:
        dealt = member.deal(request[CLIENTS], request[KEYS], server_round)
        keys = keys_of(request[CLIENTS], request[KEYS])
        keyring.check(_publication(member, server_round), keys[member.client], keys, groups.get(SIGNATURES, {}))
        return {SECAGG: dealt}
    return {SECAGG: member.reveal(request[SURVIVORS], server_round)}


def _publication(member: Member, server_round: int) -> str:
    """Return the subject of a signature, which keeps keys of one sum from being reused in another sum of the round."""
    return f"{PUBLISH} {server_round} {member.exchange}"


def masked_reply(
    reply: dict[str, Arrays],
    summed: Collection[str],
    request: Arrays,
    member: Member,
    server_round: int,
    received: bytes,
) -> dict[str, Arrays]:
    """Mask the groups of a reply that are summed; leave the others unchanged.

    Args:
        reply: groups of arrays.
        summed: names of the groups that are summed.
        request: the server's part of the sum: members, envelopes and the client's share of the weights by group.
        member: the client's part in it.
        server_round: the round.
        received: digest of the model that came with the request.

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
    ratios = {group: request[f"{RATIOS}/{group}"] for group in terms if f"{RATIOS}/{group}" in request}
    masked = member.masked(terms, ratios, request[MEMBERS], request[ENVELOPES], server_round, received)
    return {**reply, **masked, SECAGG: {AGREED: member.state[AGREED]}}

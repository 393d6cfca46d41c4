"""A client's replies in the exchanges around a secure sum (`fedgraph_flwr.secure.secagg`)."""

from collections.abc import Mapping

from fedgraph_flwr.secure.keyring import SIGNATURES, Keyring
from fedgraph_flwr.secure.secagg import CLIENTS, DEAL, KEYS, PUBLISH, SECAGG, SURVIVORS, Member
from fedgraph_flwr.wire.messages import Arrays


def secure_exchange(
    phase: str, groups: Mapping[str, Arrays], member: Member, keyring: Keyring, server_round: int, exchange: int
) -> dict[str, Arrays]:
    """Reply to a request for keys (`PUBLISH`), for shares (`DEAL`), or for what unmasks a sum (`UNMASK`).

    Args:
        phase: the request.
        groups: as received.
        member: the client's part in the sum.
        keyring: signs the client's keys, and checks those of others.
        server_round: the round.
        exchange: the place of the sum in its round.
    """
    told = groups.get(SECAGG, {})
    if phase == PUBLISH:
        published = member.publish(server_round, exchange)
        return {SECAGG: published | keyring.sign(_publication(member, server_round), published[KEYS].tobytes())}
    if phase == DEAL:
        dealt = member.deal(told[CLIENTS], told[KEYS], server_round)
        keys = {int(client): key.tobytes() for client, key in zip(told[CLIENTS], told[KEYS], strict=True)}
        keyring.check(_publication(member, server_round), keys[member.client], keys, groups.get(SIGNATURES, {}))
        return {SECAGG: dealt}
    return {SECAGG: member.reveal(told[SURVIVORS], server_round)}


def _publication(member: Member, server_round: int) -> str:
    """The subject of a signature: keys of one sum are no keys of the round's next one."""
    return f"{PUBLISH} {server_round} {member.exchange}"

"""Server side of `fedgraph-flwr link` on a fleet: relays sealed envelopes between the parties, before a round without training.

It learns each party's key and number of nodes, who wrote to whom and when, and sizes of envelopes, which are powers of two.
"""

from collections.abc import Mapping
from logging import INFO
from typing import Any, ClassVar

import numpy as np

from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.logs import log
from fedgraph_flwr.party.link import uplink as link
from fedgraph_flwr.party.link.mismatch import USUAL
from fedgraph_flwr.party.link.rules import ANNOUNCE, COUNT, NOTHING, WRITE, LinkRules, NothingShared
from fedgraph_flwr.party.link.uplink import ANNOUNCED, ENVELOPES, STEP
from fedgraph_flwr.secure.keyring import SIGNATURE_FIELD, signatures
from fedgraph_flwr.secure.sealed import is_public_key
from fedgraph_flwr.store.events import SETUP
from fedgraph_flwr.strategies.base import GraphStrategy, Groups, GroupsFor
from fedgraph_flwr.strategies.fedgrad import relayed
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.round import Stage
from fedgraph_flwr.wire.messages import Reply
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, up_to


class Link(GraphStrategy):
    """Relay of one link run."""

    Params: ClassVar[type] = LinkRules
    uplink = staticmethod(link.uplink)

    def stage(self) -> Stage:
        """Nothing is trained."""
        return Stage(down=False, up=False)

    def fields(self, phase: str, group: str, client: int | None) -> Mapping[str, ArrayField]:
        """Return a key and a number of nodes, or sealed bytes for any other client."""
        if group == ANNOUNCED:
            return {
                "key": ArrayField((32,), "uint8"),
                "nodes": ArrayField((1,), "int64", 1, LARGEST),
                **SIGNATURE_FIELD,
            }
        return {str(k): ArrayField((up_to(LARGEST),), "uint8", optional=True) for k in self.clients if k != client}

    @staticmethod
    def verify(phase: str, reply: Reply, facts: Any) -> None:
        """Refuse invalid public keys."""
        if phase == "announce" and not is_public_key(reply.groups[ANNOUNCED]["key"].tobytes()):
            raise FedGraphError(f"client {reply.client} announced an invalid key: expected X25519")

    def setup(self) -> None:
        """Relay the announcements, then the envelopes of each step."""
        if sorted(self.clients) != list(range(self.cfg.num_clients)):
            raise RunFailed(
                f"link needs clients 0 to {self.cfg.num_clients - 1}, got {sorted(self.clients)}: number them: `import --client`"
            )
        replies = self.take(ANNOUNCE, "announce")
        announced = [reply.groups[ANNOUNCED] for reply in replies]
        keys = np.stack([arrays["key"] for arrays in announced])
        nodes = np.concatenate([arrays["nodes"] for arrays in announced])
        common: Groups = {ANNOUNCED: {"keys": keys, "nodes": nodes}, **signatures(replies.replies, ANNOUNCED)}
        inbox: dict[int, Groups] = dict.fromkeys(self.clients, common)
        for name in self.params.phases[1:]:
            inbox = relayed(self.take(name, STEP, inbox), ENVELOPES)

    def take(self, name: str, phase: str, groups: GroupsFor | None = None) -> Reduced:
        """Request one step of all parties, and log that they replied.

        Raises:
            NothingShared: it is the last step, and all that failed share nothing.
            RunFailed: a party did not. The message says which parties have a linked file.
        """
        order = self.params.phases
        place = f"link {name} ({order.index(name) + 1} of {len(order)})"
        self.round = self.round.without_failures()  # so that they are of this step only
        try:
            replies = self.request_all(phase, groups)
        except RunFailed as error:
            reasons = "; ".join(f"client {client}: {why}" for client, why in sorted(self.failed.items()))
            if name in (WRITE, COUNT) and self.failed and all(NOTHING in str(why) for why in self.failed.values()):
                raise NothingShared(
                    f"{reasons}; usual causes: {USUAL}. The others did their part: correct one import, and link again"
                ) from error
            state = "no party wrote a linked file"
            if name == WRITE:
                wrote = sorted(self.clients.keys() - self.failed.keys())
                state = f"{_listing(wrote) or 'no party'} confirmed a linked file, which no run accepts before all have theirs"
            raise RunFailed(
                f"{place} did not get valid replies of all parties: {reasons or error}; {state}; link again when all take part"
            ) from error
        log(INFO, "%s%s: %s replied", SETUP, place, _listing(replies.clients))
        return replies


def _listing(clients: list[int]) -> str:
    return f"client{'s' * (len(clients) > 1)} {', '.join(map(str, clients))}" if clients else ""

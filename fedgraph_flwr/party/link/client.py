"""One party's node in `fedgraph-flwr link`: it matches its records with those of other parties and writes its linked file.

The protocol and what it reveals are in `protocol`. Leaves the client, for the server: a public key (signed if the node has a
long-lived key) and the number of nodes. For other clients, sealed: masks; of shared records the row of the own end and the data
of edges that start there (with ``increment`` only the row, of records that the last link matched, and a hash of all of these);
and of the accounts in shared records the columns that rules, policy and consent name. The node's
policy (``link``) decides whether and how it takes part.
"""

import hashlib
from collections.abc import Mapping
from functools import cached_property
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np

from fedgraph_flwr.clients.base import GraphClient, ReplyContent, phase
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.far_ends import shared_columns, shared_records
from fedgraph_flwr.data.files import remove_leftovers
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.logs import log
from fedgraph_flwr.party.link import uplink as link
from fedgraph_flwr.party.link.join import party_of
from fedgraph_flwr.party.link.ledger import SUFFIX, Ledger
from fedgraph_flwr.party.link.policy import book_link, book_share, check_consent, needs_consent, peer_names
from fedgraph_flwr.party.link.protocol import LinkParty
from fedgraph_flwr.party.link.rules import ANNOUNCE, COUNT, NOTHING, SHARE, WRITE, LinkRules, NothingShared
from fedgraph_flwr.party.link.uplink import ANNOUNCED, ENVELOPES, STEP
from fedgraph_flwr.secure.keyring import SIGNATURES
from fedgraph_flwr.wire.messages import Arrays, check_arrays
from fedgraph_flwr.wire.trees import Tree, as_arrays

SETS = ("commit", "ask_commit")
"""Steps whose messages are the first to depend on records."""


class LinkClient(GraphClient):
    """A party of a link run; it trains nothing."""

    Params: ClassVar[type] = LinkRules
    uplink = staticmethod(link.uplink)
    downlink = staticmethod(link.downlink)
    repeats: ClassVar[Mapping[str, int]] = {STEP: 12}
    secrets: ClassVar[tuple[str, ...]] = ("link",)

    @classmethod
    def needs_others(cls, cfg: RunConfig) -> str:
        """Return why predictions of other graphs are refused."""
        return "it matches records with other parties"

    def __init__(self, cfg: RunConfig, graph: Any, *args: Any, **kwargs: Any):
        super().__init__(cfg, graph, *args, **kwargs)
        self.whole = graph  # `graph` has no edges of later stages
        self.stored: dict[str, Any] = {}
        self.finished = False

    @cached_property
    def party(self) -> LinkParty:
        """The party's state, with the limits of the node's policy.

        Raises:
            FedGraphError: the policy refuses the run, or consent is missing.
        """
        rules: LinkRules = self.params
        consent, names = b"", list[str]()
        if not self.policy.trusting:
            rules, names = self.policy.linking.bounded(rules), self.policy.linking.names
            records = [source for source, _ in shared_records(self.graph, rules.share)]
            self.policy.linking.check_share([*shared_columns(self.whole, rules.share), *records])
            if needs_consent(rules):
                clients = self.graph.num_clients
                consent = check_consent(self.policy.linking.consent, rules, self.keyring, clients)
        ledger = Ledger.load(self.ledger) if rules.increment and self.ledger else None
        return party_of(rules)(self.whole, rules, self.keyring, self.stored, consent, names, ledger)

    @property
    def ledger(self) -> Path | None:
        """The file of matched records, next to the policy; None in a simulation, where `link --simulate` writes files."""
        if not self.policy.path:
            return None
        policy, name = Path(self.policy.path), quote(str(self.whole.linking.get("party", "")), safe="")
        return policy.with_name(f"{policy.stem}.{name}{SUFFIX}")

    @phase
    def announce(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Publish a key and the number of nodes."""
        return {ANNOUNCED: self.party.announcement()}, {}

    @phase
    def link(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Take one step: read the others' envelopes of the last one, and reply with those of this one."""
        phases = self.party.rules.phases
        if self.exchange + 1 >= len(phases):
            raise RunFailed(f"the server requests step {self.exchange + 1} of link, which has {len(phases) - 1} steps")
        before, step = phases[self.exchange], phases[self.exchange + 1]
        if before == ANNOUNCE:
            self.meet(groups)
        received = {int(sender): envelope for sender, envelope in groups.get(ENVELOPES, {}).items()}
        sent = self.party.step(step, received, before)
        if step in SETS and not self.policy.trusting:
            self.book()  # before the reply leaves, and after the introductions were checked: a refused one costs no day
        if step == SHARE and not self.policy.trusting:
            self.book_share()
        if step in (WRITE, COUNT):
            self.finish(step)
            self.finished = True
        return ({ENVELOPES: {str(peer): envelope for peer, envelope in sent.items()}} if sent else {}), {}

    def meet(self, groups: dict[str, Arrays]) -> None:
        """Take the keys and sizes of all parties."""
        clients = self.graph.num_clients
        announced = groups.get(ANNOUNCED, {})
        check_arrays(announced, {"keys": (clients, 32), "nodes": (clients,)}, "the server")
        entries = zip(announced["keys"].astype(np.uint8), announced["nodes"].astype(np.int64), strict=True)
        parties = {client: {"key": key, "nodes": nodes.reshape(1)} for client, (key, nodes) in enumerate(entries)}
        self.party.meet(parties, groups.get(SIGNATURES, {}))

    def book(self) -> None:
        """Record the run in the file next to the policy, or refuse it.

        Raises:
            FedGraphError: the last run with a peer is too recent.
        """
        if not self.policy.path:
            raise FedGraphError(
                "link runs are recorded next to the node's policy file: start the node with --policy FILE"
            )
        peers = {peer: self.party.names.get(peer, "") for peer in self.party.peers}
        book_link(Path(self.policy.path), peers, self.keyring, self.policy.linking.hours)

    def book_share(self) -> None:
        """Enter what the peers are told of accounts in the ledger next to the policy, or refuse.

        Raises:
            FedGraphError: the local ε of an account would exceed the policy's.
        """
        party, linking = self.party, self.policy.linking
        for peer in party.peers:
            names, accounts = peer_names(peer, self.keyring), party.told(peer)[0].size
            link = hashlib.sha256(b"fedgraph link in a ledger" + party.session).hexdigest()
            spent = book_share(Path(self.policy.path), names, party.told_to(peer), link, accounts, linking.epsilon)
            log(INFO, "link: local ε of an account towards client %d is %g", peer, spent)

    def finish(self, step: str) -> None:
        """Write the linked file next to the party's own, and log the report.

        Raises:
            NothingShared: the party shares nothing; its file is written, and its log has likely causes.
        """
        for line in self.party.report():
            log(INFO, "link: %s", line)
        if step == WRITE:
            self.write()
        if self.party.shares_nothing:
            for line in self.party.mismatch():
                log(WARNING, "link: %s", line)
            where = "the warnings above name" if self.file is None else "its log has"
            raise NothingShared(f"client {self.party.client} {NOTHING}; {where} what to compare")

    def write(self) -> None:
        """Write the linked file, and the records that are matched now."""
        if self.file is None:  # in a simulation, where `link --simulate` writes files
            return
        path = self.file.with_name(f"linked_{self.file.name}")
        remove_leftovers(path)  # of a killed link
        self.party.result().save(path)
        if self.ledger:
            self.party.ledger().save(self.ledger)
        log(INFO, "link: wrote %s; restart this node with --graph %s, unless it reads party.yaml", path, path)

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Train nothing."""
        return [], self.num_train, {}

    def save(self) -> Tree:
        """Return the party's state between steps; after the last one, nothing: scalars and keys are forgotten."""
        return {"link": self.party.state()} if "party" in vars(self) and not self.finished else {}

    def load(self, tree: Tree) -> None:
        """Restore what `save` returned."""
        self.stored = as_arrays(tree).get("link", {})
        vars(self).pop("party", None)

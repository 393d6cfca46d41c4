"""What a node remembers of a server's requests: the ledgers of requests and of privacy.

They decide before the reply whether it may leave. `audit_entry` makes the lines of the audit log.
"""

import math
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.state import StateFolder
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet.agreements import USED, WITHDRAWN, remembered, versions
from fedgraph_flwr.fleet.audit_chain import files_of
from fedgraph_flwr.node.node import Key, Node
from fedgraph_flwr.secure import audit
from fedgraph_flwr.secure.beginning import BEGIN, COMMIT, OPEN
from fedgraph_flwr.secure.policy import Ledger
from fedgraph_flwr.secure.spent import SpentPrivacy, ledgers, runs_in
from fedgraph_flwr.wire.messages import DESCRIBE

ASKED = "fedgraph-asked"

_requests: dict[Key, Ledger] = {}  # of nodes that an engine keeps alive in this process
_spent: dict[tuple[int, str], SpentPrivacy] = {}  # by node and purpose


def forget(run_id: int) -> None:
    """Drop the ledgers of a run's live nodes."""
    for key in [key for key in _requests if key[0] == run_id]:
        del _requests[key]


class Requests:
    """The ledger of the requests of one run: in this process, or the later one of the context's and the node's folder's.

    A process that was killed before its reply leaves an older context, a restored folder an older
    file.

    Args:
        node: the node.
        folder: where the node keeps the ledger between its processes; None: nowhere.
    """

    def __init__(self, node: Node, folder: StateFolder | None):
        self.node, self.folder = node, folder
        self._known: Ledger | None = None

    def read(self) -> Ledger:
        """Return the record of the requests to this node in this run, which is read once per message."""
        node = self.node
        if node.live:
            if node.key not in _requests:
                _requests[node.key] = self._stored()
            return _requests[node.key]
        if self._known:
            return self._known
        in_context = Ledger(node.context.state.config_records.get(ASKED))
        ledger = max(in_context, self._stored(), key=lambda ledger: ledger.writes)
        if node.agreement:
            ledger.enter(str(node.key[0]))
            if not in_context.writes:  # the first message of Flower's run, or after a restart
                check_age(node, max(ledger.reached, ledger.round))
                self.write(ledger)
        self._known = ledger
        return ledger

    def _stored(self) -> Ledger:
        return self.folder.read_asked() if self.folder else Ledger()

    def write(self, ledger: Ledger) -> None:
        """Keep what was requested."""
        ledger.writes += 1
        if not self.node.live:
            self.node.context.state[ASKED] = ConfigRecord(ledger.record())
        if self.folder:
            self.folder.write_asked(ledger.record())


_HOLDS = {COMMIT: "nonce", OPEN: "commitments", BEGIN: "seed"}
"""What the record of an agreed run holds after the reply to a phase of its beginning."""


def check_age(node: Node, reached: int | None = None) -> None:
    """Refuse records of an agreement that are older than the node's audit log, as from a back-up, until the owner confirms.

    Args:
        node: the node in an agreed run.
        reached: the latest round in the run's record of requests; None: its beginning is at hand.

    Raises:
        FedGraphError: names the file, and how the owner confirms.
    """
    root, (digest, _, number) = Path(node.root), node.sent_cfg.agreement.partition("/")
    known = remembered(root)
    confirmed = max((record.get("confirmed", 0) for record in known.values()), default=0)
    for entry in audit.verified(root) if files_of(root) else ():
        agreed, _, k = str(entry.get("agreement", "")).partition("/")
        if not agreed or entry["n"] <= confirmed:
            continue
        phase, record = entry["phase"], known.get(agreed, {})
        start = record.get("starts", {}).get(k, {})
        lost = _HOLDS.get(phase, "nonce") not in start and phase != DESCRIBE
        if phase == WITHDRAWN:
            lost = not record.get(WITHDRAWN)
        later = phase not in (DESCRIBE, *_HOLDS) and entry["round"] > (reached or 0)
        if lost or (reached is not None and (agreed, k) == (digest, number) and later):
            file = USED if lost else "asked.json"
            raise FedGraphError(
                f"{file} in {root} is older than the node's audit log, which lists phase '{phase}' of"
                f" round {entry['round']} of run {k}, as from a back-up: restore the newer one, or go"
                " on with it by fedgraph-flwr agree confirm --state DIR"
            )


def book_releases(node: Node, client: GraphClient, count: int, repeated: bool) -> dict[str, Any]:
    """Book releases, if the node has a state folder, a bound of ε, or a unit of rows.

    Args:
        node: the node.
        client: its client.
        count: how many the reply may hold.
        repeated: whether they were booked before.

    Returns:
        What the audit log must list of the run; {}: nothing.

    Raises:
        FedGraphError: the policy does not allow them, or the node has no folder for the ledger.
    """
    policy, unit = client.policy, client.protection.unit
    if not policy.max_epsilon and unit == "client" and not node.root:
        return {}
    if policy.max_epsilon:
        node.check_ledger_folder()
    name = policy.purpose if unit == "client" else f"{policy.purpose}_{unit}"
    path = Path(node.root) / f"privacy_{name}.json" if node.root else None
    limit = policy.max_epsilon or math.inf
    ledger = _spent.setdefault((node.key[1], name), SpentPrivacy(path, limit, policy.purpose))
    ledger.path, ledger.limit = path, limit
    ledger.logged = partial(audit.released, Path(node.root), unit, policy.purpose)
    if (
        agreement := node.agreement
    ):  # whose runs other ledgers have, if the owner changed purpose or max_epsilon
        digests = versions(Path(node.root), agreement)
        others = [one for one in ledgers(Path(node.root), unit) if one != path]
        ledger.besides = dict(chain(*(runs_in(one, digests).items() for one in others)))
    run = node.agreed or str(node.key[0])
    booked = ledger.book(run, client.cfg, count - repeated)
    return {"unit": unit, "purpose": policy.purpose, "run": run, **booked}

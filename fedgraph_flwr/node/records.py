"""What a node remembers of a server's requests: the ledgers of requests and of privacy.

They decide before the reply whether it may leave. `audit_entry` makes the lines of the audit log.
"""

import math
from functools import partial
from pathlib import Path

from flwr.app import ConfigRecord

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.replies import summed_groups
from fedgraph_flwr.clients.state import StateFolder
from fedgraph_flwr.node.node import Key, Node
from fedgraph_flwr.node.request import Request
from fedgraph_flwr.secure import audit
from fedgraph_flwr.secure.policy import Ledger
from fedgraph_flwr.secure.spent import SpentPrivacy
from fedgraph_flwr.wire.messages import EVALUATE

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

    def read(self) -> Ledger:
        """Return the record of the requests to this node in this run."""
        node = self.node
        if node.live:
            if node.key not in _requests:
                _requests[node.key] = self._stored()
            return _requests[node.key]
        in_context = Ledger(node.context.state.config_records.get(ASKED))
        return max(in_context, self._stored(), key=lambda ledger: ledger.writes)

    def _stored(self) -> Ledger:
        return self.folder.read_asked() if self.folder else Ledger()

    def write(self, ledger: Ledger) -> None:
        """Keep what was requested."""
        ledger.writes += 1
        if not self.node.live:
            self.node.context.state[ASKED] = ConfigRecord(ledger.record())
        if self.folder:
            self.folder.write_asked(ledger.record())


def releases(client: GraphClient, request: Request) -> int:
    """Return the number of releases with noise that a reply may hold: a sum, and noised scores."""
    summed = bool(summed_groups(client, request.phase, request.scalars))
    scored = request.phase == EVALUATE or request.sends_scores
    return client.protection.releases(summed, scored)


def book_releases(node: Node, client: GraphClient, count: int) -> None:
    """Book releases, if the node has a state folder, a bound of ε, or a unit of rows.

    Raises:
        FedGraphError: the policy does not allow them, or the node has no folder for the ledger.
    """
    policy, unit = client.policy, client.cfg.privacy.unit
    unbounded = not policy.max_epsilon and unit == "client" and not node.root
    if client.cfg.privacy.dp == "none" or unbounded or not count:
        return
    if policy.max_epsilon:
        node.check_ledger_folder()
    name = policy.purpose if unit == "client" else f"{policy.purpose}_{unit}"
    path = Path(node.root) / f"privacy_{name}.json" if node.root else None
    limit = policy.max_epsilon or math.inf
    ledger = _spent.setdefault((node.key[1], name), SpentPrivacy(path, limit, policy.purpose))
    ledger.path, ledger.limit = path, limit
    ledger.logged = partial(audit.released, Path(node.root), unit, policy.purpose)
    ledger.book(str(node.key[0]), client.cfg, count)

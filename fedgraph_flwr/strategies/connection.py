"""The nodes of a run: which client each of them is, and clients that return under another node id."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from flwr.serverapp import Grid

from fedgraph_flwr.errors import FedGraphError, RunFailed, sanitize
from fedgraph_flwr.logs import log


@dataclass(frozen=True)
class ClientInfo:
    """The server's knowledge of a client: its node, and its description (`GraphClient.describe`)."""

    client: int
    node_id: int
    description: dict[str, Any] = field(default_factory=dict)


RETURN = 60.0
"""Seconds that a resumed run, of which enough nodes are there, waits for the others.

A SuperLink takes a restarted node after two missed heartbeats.
"""

Describe = Callable[[list[int]], tuple[list[ClientInfo], Mapping[int, str]]]
"""Requests descriptions from nodes: returns them, and for each other node the reason why it has none."""


class Connection:
    """The nodes that have joined a run.

    Args:
        grid: joins the server with its nodes.
        describe: the exchange that requests descriptions from nodes.
    """

    def __init__(self, grid: Grid, describe: Describe):
        self.grid = grid
        self.describe = describe
        self._met: set[int] = set()
        # joined after the run started and have no client yet
        self._newcomers: list[ClientInfo] = []

    def wait(
        self,
        wanted: int,
        timeout: float,
        known: Mapping[int, ClientInfo] | None = None,
        least: int = 0,
    ) -> dict[int, ClientInfo]:
        """Wait for the nodes, and learn which client each of them is.

        Args:
            wanted: number of clients of the run.
            timeout: longest wait, in seconds.
            known: for a resumed run, its clients.
            least: fewest of them with which it begins or resumes; 0: all.

        Returns:
            The first ``wanted`` clients, by their index; of a resumed run, those that have not
            joined are the nodes that they were.

        Raises:
            RunFailed: too few nodes joined within ``timeout`` seconds, or too few of them
                registered as clients.
            FedGraphError: none of them registered, or two claim the same client and neither was
                that client before.
        """
        earlier = known or {}
        least = least or wanted
        nodes = self._wait_for_nodes(wanted, timeout, least)
        self._met = set(nodes)
        if told := getattr(self.grid, "descriptions", None):
            return {
                client: ClientInfo(client, client + 1, what) for client, what in told.items()
            }
        described, failed = self.describe(nodes)
        failures = dict(failed)
        clients = dict[int, ClientInfo]()
        was = {info.node_id: client for client, info in earlier.items()}
        # earlier clients come first
        for info in sorted(described, key=lambda info: info.node_id not in was):
            if was.get(info.node_id, info.client) != info.client:
                failures[info.node_id] = (
                    f"it was client {was[info.node_id]} of this run, and claims to be client {info.client}"
                )
            elif info.client in clients and clients[info.client].node_id in was:
                log(
                    WARNING,
                    _refusal(info, f"which is still node {clients[info.client].node_id}"),
                )
            elif info.client in clients:
                both = f"nodes {clients[info.client].node_id} and {info.node_id}"
                raise FedGraphError(
                    f"{both} both claim to be client {info.client}: give each SuperNode its own graph file"
                )
            else:
                clients[info.client] = info
        swapped = failures.keys() - failed.keys()  # no node may be another client than before
        if len(clients) < (wanted if swapped else least):
            alike: dict[str, list[int]] = {}
            for node, reason in failures.items():
                alike.setdefault(reason, []).append(node)
            reasons = "; ".join(f"{_nodes(nodes)}: {reason}" for reason, nodes in alike.items())
            error = RunFailed if clients else FedGraphError
            foreign = any("cannot be imported" in reason for reason in alike)
            fix = "; install its package on that node" if foreign else ""
            raise error(
                f"{len(clients)} of {wanted} clients registered; {reasons}{fix}",
                "own-code" if foreign else "",
            )
        for client in sorted(earlier.keys() - clients.keys()):
            log(
                WARNING,
                "client %d has not joined: the run is resumed without it until it does",
                client,
            )
        return dict(sorted({**earlier, **clients}.items())[:wanted])

    def returned(
        self, clients: Mapping[int, ClientInfo], silent: set[int], replied: set[int]
    ) -> dict[int, ClientInfo]:
        """Return clients whose SuperNode was restarted under another node id.

        A node replaces a client's old node once that one is gone or unresponsive, if its
        description is the same. A node that claims a client whose own node still replies is refused
        for the rest of the run.

        Args:
            clients: clients of the run.
            silent: clients whose node did not respond in the previous round.
            replied: clients that replied to all requests of that round.
        """
        nodes = set(self.grid.get_node_ids())
        waiting = list(self._newcomers)
        if new := sorted(nodes - self._met):
            self._met |= set(new)
            self._newcomers += self.describe(new)[0]
        back: dict[int, ClientInfo] = {}
        for info in list(self._newcomers):
            known = clients.get(info.client)
            if (
                known
                and (known.node_id not in nodes or info.client in silent)
                and info.client not in back
            ):
                self._newcomers.remove(info)
                if differs := difference(known.description, info.description):
                    log(WARNING, _refusal(info, f"with a different description: {differs}"))
                    continue
                log(WARNING, "client %d is back as node %d", info.client, info.node_id)
                back[info.client] = info
            elif known and info in waiting and info.client in replied:
                self._newcomers.remove(info)
                log(WARNING, _refusal(info, f"which is node {known.node_id} and still replies"))
        return back

    def _wait_for_nodes(self, wanted: int, timeout: float, least: int) -> list[int]:
        started = time.perf_counter()
        pause = 0.05
        next_warning = 10.0
        while len(nodes := sorted(self.grid.get_node_ids())) < wanted:
            waited = time.perf_counter() - started
            if len(nodes) >= least and waited > min(timeout, RETURN):
                return nodes
            if waited > timeout:
                raise RunFailed(
                    f"{_too_few(len(nodes), wanted)} (waited {timeout:g} s, strategy.timeout)"
                )
            if waited > next_warning:
                log(WARNING, _too_few(len(nodes), wanted))
                next_warning *= 2
            time.sleep(pause)
            pause = min(1.5 * pause, 1.0)
        return nodes


def _refusal(info: ClientInfo, why: str) -> str:
    return f"node {info.node_id} is refused: it claims to be client {info.client}, {why}"


def difference(known: Mapping[str, Any], described: Mapping[str, Any]) -> str:
    """Return how a client's description differs from before; floating-point rounding of another machine does not count."""
    # a party may change its policy
    for key in sorted((known.keys() | described.keys()) - {"min_nodes"}):
        before = known.get(key)
        now = described.get(key)
        if before != now and not _rounding(before, now):
            return f"{key}={before}, not {sanitize(now, 60)}"
    return ""


def _rounding(before: Any, now: Any) -> bool:
    if isinstance(before, list) and isinstance(now, list):
        floats = len(before) == len(now) and all(isinstance(n, float) for n in (*before, *now))
        return floats and all(
            math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
            for a, b in zip(before, now, strict=True)
        )
    return isinstance(before, float) and isinstance(now, float)


def _too_few(joined: int, wanted: int) -> str:
    return (
        f"{joined} of {wanted} nodes have joined: start more SuperNodes, or lower num_clients"
    )


def _nodes(ids: list[int]) -> str:
    return f"{'nodes' if len(ids) > 1 else 'node'} {', '.join(map(str, ids))}"

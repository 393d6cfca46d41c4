"""Who is there: the nodes of a run, which client each of them is, and clients that come back under another node id."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from flwr.common.logger import log
from flwr.serverapp import Grid

from fedgraph_flwr.errors import FedGraphError, RunFailed, sanitize


@dataclass(frozen=True)
class ClientInfo:
    """What the server knows of a client: its node, and what `GraphClient.describe` told."""

    client: int
    node_id: int
    description: dict[str, Any] = field(default_factory=dict)


Describe = Callable[[list[int]], tuple[list[ClientInfo], Mapping[int, str]]]
"""Asks nodes who they are: who they say they are, and why each other node did not say."""


class Connection:
    """The nodes that a run has met.

    Args:
        grid: joins the server with its nodes.
        describe: the exchange that asks nodes who they are.
    """

    def __init__(self, grid: Grid, describe: Describe):
        self.grid, self.describe = grid, describe
        self._met: set[int] = set()
        self._newcomers: list[ClientInfo] = []  # came after the run began, and have no place as yet

    def wait(self, wanted: int, timeout: float, bound: Mapping[int, int] | None = None) -> dict[int, ClientInfo]:
        """Wait for the nodes, and learn which client each of them is.

        Args:
            wanted: clients of the run.
            timeout: in seconds.
            bound: of a run that is resumed, the node that each client was.

        Returns:
            The first ``wanted`` clients, by their index.

        Raises:
            RunFailed: too few nodes came within ``timeout`` seconds, or too few of them told who they are.
            FedGraphError: none of them told, or two told the same: neither is believed, unless one was that client before.
        """
        nodes = self._wait_for_nodes(wanted, timeout)
        self._met = set(nodes)
        if known := getattr(self.grid, "told", None):
            return {client: ClientInfo(client, client + 1, what) for client, what in known.items()}
        answers, told = self.describe(nodes)
        failures, clients = dict(told), dict[int, ClientInfo]()
        was = {node: client for client, node in (bound or {}).items()}
        for info in sorted(answers, key=lambda info: info.node_id not in was):  # who was a client before comes first
            if was.get(info.node_id, info.client) != info.client:
                failures[info.node_id] = f"it was client {was[info.node_id]} of this run, and says it is {info.client}"
            elif info.client in clients and clients[info.client].node_id in was:
                log(WARNING, _refusal(info, f"which was and is node {clients[info.client].node_id}"))
            elif info.client in clients:
                raise FedGraphError(
                    f"nodes {clients[info.client].node_id} and {info.node_id} both say they are client {info.client}: give each"
                    " SuperNode its own graph file"
                )
            else:
                clients[info.client] = info
        if len(clients) < wanted:
            reasons = "; ".join(f"node {node}: {reason}" for node, reason in failures.items())
            error = RunFailed if clients else FedGraphError
            raise error(f"{len(clients)} of {wanted} clients told who they are; {reasons}")
        return dict(sorted(clients.items())[:wanted])

    def returned(
        self, clients: Mapping[int, ClientInfo], silent: set[int], answered: set[int]
    ) -> dict[int, ClientInfo]:
        """Clients whose SuperNode was started anew under another id.

        Each takes the place of the old node once that one is gone, or has said nothing, and if it tells of itself what the old
        one told. A node that claims a client whose own node goes on answering is refused for the rest of the run.

        Args:
            clients: of the run.
            silent: those whose node said nothing in the round before.
            answered: those that answered all that they were asked in it.
        """
        nodes = set(self.grid.get_node_ids())
        waiting = list(self._newcomers)
        if new := sorted(nodes - self._met):
            self._met |= set(new)
            self._newcomers += self.describe(new)[0]
        back: dict[int, ClientInfo] = {}
        for info in list(self._newcomers):
            known = clients.get(info.client)
            if known and (known.node_id not in nodes or info.client in silent) and info.client not in back:
                self._newcomers.remove(info)
                if differs := difference(known.description, info.description):
                    log(WARNING, _refusal(info, f"which told {differs}"))
                    continue
                log(WARNING, "client %d is back as node %d", info.client, info.node_id)
                back[info.client] = info
            elif known and info in waiting and info.client in answered:
                self._newcomers.remove(info)
                log(WARNING, _refusal(info, f"which is node {known.node_id} and answers"))
        return back

    def _wait_for_nodes(self, wanted: int, timeout: float) -> list[int]:
        began, pause, told = time.perf_counter(), 0.05, 10.0
        while len(nodes := sorted(self.grid.get_node_ids())) < wanted:
            waited = time.perf_counter() - began
            if waited > timeout:
                raise RunFailed(f"{_too_few(len(nodes), wanted)} (waited {timeout:g} s, strategy.timeout)")
            if waited > told:
                log(WARNING, _too_few(len(nodes), wanted))
                told *= 2
            time.sleep(pause)
            pause = min(1.5 * pause, 1.0)
        return nodes


def _refusal(info: ClientInfo, why: str) -> str:
    return f"node {info.node_id} is refused: it says it is client {info.client}, {why}"


def difference(known: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    """What a client tells of itself that it did not tell before; of its numbers those that no other machine rounds otherwise."""
    for key in sorted(known.keys() | told.keys()):
        before, now = known.get(key), told.get(key)
        if before != now and not _rounding(before, now):
            return f"{key}={before}, not {sanitize(now, 60)}"
    return ""


def _rounding(before: Any, now: Any) -> bool:
    if isinstance(before, list) and isinstance(now, list):
        floats = len(before) == len(now) and all(isinstance(n, float) for n in (*before, *now))
        return floats and all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(before, now, strict=True))
    return isinstance(before, float) and isinstance(now, float)


def _too_few(here: int, wanted: int) -> str:
    return f"{here} of {wanted} nodes are here: start more SuperNodes, or lower num_clients"

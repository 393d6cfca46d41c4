"""Who is there: the nodes of a run, which client each of them is, and clients that come back under another node id."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from flwr.common.logger import log
from flwr.serverapp import Grid

from fedgraph_flwr.errors import FedGraphError, RunFailed


@dataclass(frozen=True)
class ClientInfo:
    """What the server knows of a client: its node, and what `GraphClient.describe` told."""

    client: int
    node_id: int
    told: dict[str, Any] = field(default_factory=dict)


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

    def wait(self, wanted: int, timeout: float) -> dict[int, ClientInfo]:
        """Wait for the nodes, and learn which client each of them is.

        Returns:
            The first ``wanted`` clients, by their index.

        Raises:
            RunFailed: too few nodes came within ``timeout`` seconds, or too few of them told who they are.
            FedGraphError: none of them told, or two told the same.
        """
        nodes = self._wait_for_nodes(wanted, timeout)
        self._met = set(nodes)
        answers, failures = self.describe(nodes)
        clients: dict[int, ClientInfo] = {}
        for info in answers:
            if info.client in clients:
                raise FedGraphError(
                    f"nodes {clients[info.client].node_id} and {info.node_id} both say they are client {info.client}: give each"
                    " SuperNode its own graph file"
                )
            clients[info.client] = info
        if len(clients) < wanted:
            reasons = "; ".join(f"node {node}: {reason}" for node, reason in failures.items())
            error = RunFailed if clients else FedGraphError
            raise error(f"{len(clients)} of {wanted} clients told who they are; {reasons}")
        return dict(sorted(clients.items())[:wanted])

    def returned(self, clients: Mapping[int, ClientInfo], failed: set[int]) -> dict[int, ClientInfo]:
        """Clients whose SuperNode was started anew under another id.

        Each takes the place of the old node once that one is gone, or has failed.
        """
        nodes = set(self.grid.get_node_ids())
        if new := sorted(nodes - self._met):
            self._met |= set(new)
            self._newcomers += self.describe(new)[0]
        back = {}
        for info in list(self._newcomers):
            known = clients.get(info.client)
            if known and (known.node_id not in nodes or info.client in failed):
                log(WARNING, "client %d is back as node %d", info.client, info.node_id)
                back[info.client] = info
                self._newcomers.remove(info)
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


def _too_few(here: int, wanted: int) -> str:
    return f"{here} of {wanted} nodes are here: start more SuperNodes, or lower num_clients"

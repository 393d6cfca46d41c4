"""Check that each node belongs to one client, for methods that exchange content over cut edges."""

from collections.abc import Mapping

import numpy as np

from fedgraph_flwr.errors import RunFailed


def check_owners(nodes: Mapping[int, np.ndarray]) -> None:
    """Refuse a node that two clients have.

    Args:
        nodes: global ids of each client's nodes, by client.

    Raises:
        RunFailed: names two clients and the lowest node that both have.
    """
    clients = sorted(nodes)
    ids = np.concatenate([nodes[client] for client in clients])
    owner = np.repeat(clients, [nodes[client].size for client in clients])
    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(np.diff(ids[order]) == 0)
    if same.size:
        first = owner[order[same[0]]]
        second = owner[order[same[0] + 1]]
        raise RunFailed(
            f"clients {first} and {second} both have node {ids[order[same[0]]]}: each node belongs to one party; link all parties"
            " again, or partition into disjoint clients"
        )

"""Owners of nodes of other clients, as a client's file names them at its cut edges."""

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.errors import FedGraphError

Ints = NDArray[np.int64]


def external_nodes(ends: Ints, owners: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the distinct external nodes, ascending, their owners, and the place of each edge's end among them.

    Args:
        ends: global id of each cut edge's other end [E].
        owners: client that the file names as its owner [E].

    Raises:
        FedGraphError: the file names two owners of one node.
    """
    nodes, first, row = np.unique(ends, return_index=True, return_inverse=True)
    owner = owners[first]
    wrong = np.flatnonzero(owner[row] != owners)
    if wrong.size:
        edge = wrong[0]
        raise FedGraphError(
            f"a client file names clients {owner[row[edge]]} and {owners[edge]} as owners of node {ends[edge]}: each node belongs"
            " to one party; link all parties again"
        )
    return nodes, owner, row

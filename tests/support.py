"""Helpers that tests import by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fedgraph_flwr.testing import Finished, assert_same_arrays, call_fresh, same_result

__all__ = ["Finished", "assert_same_arrays", "call_fresh", "dense_gcn_adjacency", "recorded_messages", "same_result"]


@contextmanager
def recorded_messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int, Any]]]:
    """Every message of the in-process runs within: (``"down"`` or ``"up"``, node id, content)."""
    from fedgraph_flwr.engine.inline import InlineGrid

    seen: list[tuple[str, int, Any]] = []
    call = InlineGrid._call

    def spy(self: InlineGrid, message: Any) -> Any:
        node = message.metadata.dst_node_id
        seen.append(("down", node, message.content))
        reply = call(self, message)
        if reply.has_content():
            seen.append(("up", node, reply.content))
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(InlineGrid, "_call", spy)
        yield seen


def dense_gcn_adjacency(edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """D^{-1/2} (A + I) D^{-1/2} the slow way, float64 [N, N], row target; self-loops in the data count once."""
    a = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    for source, target in edge_index.T.tolist():
        if source != target:
            a[target, source] += 1
    a += torch.eye(num_nodes, dtype=torch.float64)
    degree = a.sum(1)
    return a / (degree[:, None] * degree[None, :]).sqrt()

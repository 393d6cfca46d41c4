"""Helpers that tests import by name."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.graph import read_tensors


@dataclass
class Finished:
    """A finished run: its configuration and summary, and what its folder holds."""

    cfg: RunConfig
    summary: dict[str, Any]

    @property
    def out(self) -> Path:
        """The result folder."""
        return Path(self.cfg.out)

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The records of the rounds."""
        return [json.loads(line) for line in (self.out / "rounds.jsonl").read_text().splitlines()]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The final shared parameters."""
        return {name: t.numpy() for name, t in read_tensors(self.out / "model_final.safetensors")[0].items()}


def assert_same_arrays(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


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


def call_fresh(self: Any, message: Any) -> Any:
    """In the place of `InlineGrid._call`: every message meets a fresh client, restored from what its node kept."""
    from fedgraph_flwr.clients import session

    context = self.contexts[message.metadata.dst_node_id]
    context.node_config.pop("live", None)
    session.forget(self.run_id)
    return self.app(message, context)

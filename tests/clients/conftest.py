"""Fixtures of the clients' tests."""

import numpy as np
import pytest
import torch

from fedgraph_flwr.data.graph import ClientGraph


@pytest.fixture(scope="module")
def graph() -> ClientGraph:
    """Directed edges, some parallel, some loops, a node without any, edge features."""
    random = np.random.default_rng(0)
    source, target = random.integers(0, 29, (2, 150))
    edges = np.concatenate([[source, target], [source[:9], target[:9]], np.tile(np.arange(4), (2, 1))], axis=1)
    mask = torch.arange(30) % 2 == 0
    return ClientGraph(
        client=0,
        x=torch.from_numpy(random.normal(size=(30, 5))).float(),
        edge_index=torch.from_numpy(edges),
        y=torch.from_numpy(random.integers(0, 3, 30)),
        num_classes=3,
        train_mask=mask,
        val_mask=~mask,
        test_mask=~mask,
        edge_attr=torch.from_numpy(random.normal(size=(edges.shape[1], 2))).float(),
    )

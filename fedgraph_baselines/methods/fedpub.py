"""FED-PUB: its keys, the random graph that probes all clients' models, and the name of the group that travels with the model.

The graph has 5 communities of 100 nodes. Each pair within a community is joined with probability 0.1, and no other pair. Features
are drawn from N(0, 1). These are the numbers of the authors' code, whose server sends the graph; here every client draws it from
the run's seed.
"""

from dataclasses import dataclass
from typing import Any

import torch

from fedgraph_baselines.methods.prototypes import WIDTH, described_width
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.graph import Graph, unsplit
from fedgraph_flwr.methods.uplink import ARRAYS, Individual, Uplink
from fedgraph_flwr.numerics.streams import own_stream
from fedgraph_flwr.wire.messages import MODEL, TRAIN
from fedgraph_flwr.wire.reply_schema import ArrayField

EMBEDDING = "embedding"
"""Group, up: ``mean`` [D], the functional embedding."""

COMMUNITIES, SIZE, DENSITY = 5, 100, 0.1


@dataclass
class Params:
    """Keys of FED-PUB."""

    tau: float = 3.0  # τ, from its script for disjoint subgraphs (10 otherwise); 0 mixes all equally
    masks: bool = True  # false (ours): the weights without masks
    # λ1, of the masks' L1 norm; the authors' code computes lam1=0 and lam2=0, see fedgraph_baselines/clients/fedpub.py
    lam1: float = 1e-3
    lam2: float = 1e-3  # λ2, of the squared distance from the received model


def random_graph(seed: int, num_features: int, num_classes: int) -> Graph:
    """Draw the graph of a run: 500 nodes, undirected edges listed twice, x [500, F]."""
    generator = own_stream(seed, "random graph")
    pairs = torch.rand(COMMUNITIES, SIZE, SIZE, generator=generator) < DENSITY
    community, a, b = pairs.triu(1).nonzero().T
    ends = torch.stack([a, b]) + SIZE * community
    nodes = COMMUNITIES * SIZE
    return Graph(
        x=torch.randn(nodes, num_features, generator=generator),
        edge_index=torch.cat([ends, ends.flip(0)], dim=1),
        y=torch.full((nodes,), -1),
        **unsplit(nodes),
        num_classes=num_classes,
    )


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model, and its embedding of a random graph."""
    return {
        **described_width(),
        TRAIN: {
            MODEL: Individual(ARRAYS, why="each client receives its own mixture of models"),
            EMBEDDING: Individual(
                {"mean": ArrayField((WIDTH,), cfg.dtype)}, why="clients are mixed by their similarity"
            ),
        },
    }

"""Small clients with typed nodes and edges, and models of them."""

import numpy as np
import torch

from fedgraph_flwr.data.hetero import HeteroClientGraph
from fedgraph_flwr.models.rgcn import RGCN

H, B, C = 4, 3, 2
"""Hidden features, bases and classes of `built`."""


def flat_edges(graph):
    """Source and target of all edges in flat numbering, and the index of each edge's type in the schema, [E] each."""
    start = dict(zip(graph.counts, graph.offsets(), strict=False))
    parts = [
        np.stack([index[0].numpy() + start[a], index[1].numpy() + start[b], np.full(index.size(1), r)])
        for r, ((a, _, b), index) in enumerate(graph.edges.items())
    ]
    return tuple(np.concatenate([np.zeros((3, 0), np.int64), *parts], axis=1))


TYPES = {
    0: [("person", "writes", "paper"), ("paper", "cites", "paper"), ("person", "knows", "person")],
    1: [("person", "writes", "paper"), ("paper", "about", "word"), ("person", "reads", "paper")],
    2: [("person", "reads", "paper"), ("paper", "cites", "paper"), ("person", "knows", "person")],
}


def typed_client(client=0, people=9, papers=7, words=4, edges=14, features=False, of_edges=False):
    """A client's small graph with its own types; every person has a label. Two edge types may have two and three features."""
    rng = np.random.default_rng(client)
    counts = {"paper": papers, "person": people, "word": words}
    drawn = {
        (a, r, b): torch.from_numpy(
            np.stack([rng.integers(counts[a], size=edges), rng.integers(counts[b], size=edges)])
        )
        for a, r, b in TYPES[client]
    }
    kinds = sorted({end for a, _, b in TYPES[client] for end in (a, b)})
    fold = torch.arange(people) % 3
    graph = HeteroClientGraph(
        counts={kind: counts[kind] for kind in kinds},
        edges=drawn,
        target="person",
        y=torch.from_numpy(rng.integers(C, size=people)),
        train_mask=fold == 0,
        val_mask=fold == 1,
        test_mask=fold == 2,
        num_classes=C,
        x={"paper": torch.from_numpy(rng.normal(size=(papers, 5))).float()} if features else {},
        name="toy",
        node_id={kind: torch.arange(counts[kind]) for kind in kinds},
        client=client,
        num_clients=3,
    )
    if of_edges:
        first, _, last = TYPES[client]
        graph.edge_attr = {r: torch.from_numpy(rng.normal(size=(edges, d))).float() for r, d in ((first, 2), (last, 3))}
    return graph.with_reverse()


def built(cls=RGCN, graph=None, bases=B, layers=3, seed=0, **kwargs):
    """A model in float64, its inputs and the graph."""
    graph = graph or typed_client()
    torch.manual_seed(seed)
    model = cls(graph.num_features, C, hidden=H, layers=layers, dropout=0.0, bases=bases, **kwargs).double()
    return model, model.prepare(graph, dtype=torch.float64), graph

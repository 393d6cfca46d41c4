"""Data poisoning: flipped labels, and backdoors made of trigger subgraphs and a target label.

Source: Xu et al., ACSAC 2022, "More is Better (Mostly): On the Backdoor Attacks in Federated Graph Neural Networks". They
classify graphs: a trigger, an Erdős-Rényi graph, replaces part of a graph. This module adapts it to nodes: each chosen node
gets a copy of the trigger, whose new nodes are all linked to it. The edge probability of 0.8 is theirs, the features are (ours).
"""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.graph import MASKS, ClientGraph, Graph
from fedgraph_flwr.data.hetero import HeteroGraph

DENSITY = 0.8  # Xu et al., Section 4
SHARE = 0.05  # (ours) share of non-zero features of a trigger node

AnyGraph = TypeVar("AnyGraph", Graph, HeteroGraph)


def with_flipped_labels(graph: AnyGraph) -> AnyGraph:
    """Replace training labels y by C − 1 − y (Tolpegin et al., ESORICS 2020, flip pairs of classes)."""
    return replace(graph, y=torch.where(graph.train_mask, graph.num_classes - 1 - graph.y, graph.y))


@dataclass(frozen=True)
class Trigger:
    """Subgraph that marks a node.

    Attributes:
        x: features [t, F].
        edges: int64 [2, E], both directions of each.
    """

    x: Tensor
    edges: Tensor

    @classmethod
    def draw(cls, nodes: int, features: int, value: float, seed: int) -> "Trigger":
        """Draw a trigger of ``nodes`` nodes; a few ``features`` of each node are ``value``, the others 0."""
        rng = np.random.default_rng(seed)
        x = np.zeros((nodes, features), np.float32)
        for row in x:
            row[rng.choice(features, max(1, round(SHARE * features)), replace=False)] = value
        pairs = np.stack(np.triu_indices(nodes, 1))
        pairs = pairs[:, rng.random(pairs.shape[1]) < DENSITY]
        return cls(torch.from_numpy(x), torch.from_numpy(np.concatenate([pairs, pairs[::-1]], axis=1)))

    def part(self, index: int, parts: int) -> "Trigger":
        """Return one of ``parts`` local triggers: nodes index, index + parts, ... and the edges among them."""
        kept = torch.arange(len(self.x))[index::parts]
        place = torch.full((len(self.x),), -1)
        place[kept] = torch.arange(len(kept))
        edges = place[self.edges]
        return Trigger(self.x[kept], edges[:, (edges >= 0).all(0)])

    def attached(self, graph: ClientGraph, nodes: Tensor) -> ClientGraph:
        """Return the graph with a copy of the trigger at each of ``nodes`` [K]: K·t new nodes without label or split."""
        n, t, k = graph.num_nodes, len(self.x), len(nodes)
        first = n + t * torch.arange(k).view(-1, 1, 1)  # first node of each copy
        inside = (first + self.edges).transpose(0, 1).reshape(2, -1)
        ends = torch.stack([nodes.repeat_interleave(t), n + torch.arange(k * t)])
        labels = [name for name in ("y", "node_id", "group", "part") if len(getattr(graph, name))]
        more = dict.fromkeys(labels, torch.full((k * t,), -1))
        more |= dict.fromkeys(MASKS, torch.zeros(k * t, dtype=torch.bool))
        longer: dict[str, Any] = {name: torch.cat([getattr(graph, name), rows]) for name, rows in more.items()}
        x, edges = (
            torch.cat([graph.x, self.x.repeat(k, 1)]),
            torch.cat([graph.edge_index, inside, ends, ends.flip(0)], 1),
        )
        return replace(graph, x=x, edge_index=edges, ids=graph.ids[:0], **longer)

    def planted(self, graph: ClientGraph, target: int, rate: float, seed: int) -> ClientGraph:
        """Return the graph with the trigger at a share ``rate`` of the other classes' training nodes, labelled ``target``."""
        others = (graph.train_mask & (graph.y != target)).nonzero().view(-1)
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(others)))
        chosen = others[order[: round(rate * len(others))]]
        marked = self.attached(graph, chosen)
        return replace(marked, y=marked.y.index_fill(0, chosen, target))

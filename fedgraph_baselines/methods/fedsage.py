"""FedSage+: keys, names of message groups, and graphs with generated neighbours.

A row is one predicted neighbour.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgraph_baselines.methods.impaired import MENDED
from fedgraph_flwr.config import RunConfig, choice, number
from fedgraph_flwr.data.graph import Graph, unsplit
from fedgraph_flwr.methods.downlink import Input, Inputs
from fedgraph_flwr.methods.uplink import Once, Relay, Sum, Uplink, model_only

PROPOSED = "proposed"
"""Group. To the server: ``rows`` [R, F], predicted neighbours of training nodes; to clients: those of each client, by index."""

OWNERS = "owners"
"""Group: the node to which each row belongs, numbered from 0, int32 [R]; keyed as `PROPOSED`."""

APART = "apart"
"""Group. To the server: differences of each client's rows from their nearest candidates [R, F]; to a client: their ``sum``."""

LATENT = 128
"""Width of the generator's encoder (the authors' code)."""

WIDTHS = (256,)
"""(ours) Hidden widths of the generator's feature head (authors' code: 256, 2048)."""

DROPOUT = 0.5
"""Dropout rate of the generator (the authors' code)."""

WEIGHT_DECAY = 1e-4
"""Weight decay of the generator (the authors' code)."""


@dataclass
class Params:
    """Keys of FedSage+."""

    neighbours: int = 5  # P, most neighbours generated per node; 0 is FedAvg
    generator_rounds: int = 10  # OpenFGL's value (20 in the authors' code): exchanges with the peers, one step each
    generator_lr: float = number(1e-3, without_low=True)  # learning rate of the generator
    # the graph for which neighbours are generated: original (FedStruct's code) | impaired
    source: str = choice("original", ("original", "impaired"))
    # rounding of predicted counts: nearest (FedStruct's code) | floor
    rounding: str = choice("nearest", ("nearest", "floor"))


def drawn_neighbours(edge_index: Tensor, num_nodes: int, count: int, draws: int) -> Tensor:
    """Draw ``draws`` in-neighbours, with repetition, of ``count`` random nodes: [count, draws]; −1 if no node has neighbours."""
    source, order = edge_index[0], edge_index[1].argsort(stable=True)
    degree = edge_index[1].bincount(minlength=num_nodes)
    receivers = degree.nonzero().view(-1)
    if not receivers.numel():
        return torch.full((count, draws), -1)
    chosen = receivers[torch.randint(receivers.numel(), (count,))]
    offset = (torch.rand(count, draws) * degree[chosen, None]).long()
    return source[order][(degree.cumsum(0) - degree)[chosen, None] + offset]


def with_neighbours(graph: Graph, x: Tensor, at: Tensor) -> Graph:
    """Append new nodes x [g, F] to a graph, each joined both ways with the node ``at`` [g]; new nodes are in no mask."""
    new = graph.num_nodes + torch.arange(at.numel())
    return Graph(
        x=torch.cat([graph.x.to(x), x]),
        edge_index=torch.cat([graph.edge_index, torch.stack([new, at]), torch.stack([at, new])], dim=1),
        y=torch.cat([graph.y, graph.y.new_full((at.numel(),), -1)]),
        **unsplit(graph.num_nodes + at.numel()),
        num_classes=graph.num_classes,
    )


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the model; before round 1, generated neighbours for the peers, and sums of their distances from true ones."""
    if not params.neighbours:
        return model_only(cfg, params)
    why = "the peers compare generated neighbours with their own nodes"
    return {
        **model_only(cfg, params),
        "generate": Once({PROPOSED: Relay(why=why), OWNERS: Relay(why=why)}),
        "judge": Once({APART: Sum()}),
        "mend": MENDED,
    }


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare generated neighbours of the peers, and how far own ones are from the peers' nodes."""
    apart = {APART: Input("the sum of differences between generated neighbours and the peers' nodes", {"sum": None})}
    owners = Input("the nodes for which these were generated, by client")
    return {
        "generate": apart,
        "judge": {PROPOSED: Input("neighbours that other clients generated, by client"), OWNERS: owners},
        "mend": apart,
    }

"""What methods that generate missing neighbours learn from: a graph of which some nodes are hidden.

A row is one predicted neighbour. Candidates are the true ones it may be meant for: only its distance from the nearest counts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics.sparse import SparseMatrix

BLOCK = 256  # rows whose candidates are gathered at a time


def places(count: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of nodes that miss so many neighbours [N]: the node of each, and its place among that node's, [R] both."""
    node = torch.arange(count.numel(), device=count.device).repeat_interleave(count)
    first = (count.cumsum(0) - count).repeat_interleave(count)
    return node, torch.arange(node.numel(), device=count.device) - first


def whole_numbers(count: Tensor, most: int, client: int) -> Tensor:
    """Predicted counts [N], rounded already, as numbers of neighbours, 0..most.

    Raises:
        FedGraphError: one is no number.
    """
    if not count.isfinite().all():
        raise FedGraphError(
            f"client {client}: its generator no longer tells how many neighbours a node misses, but values that are not finite"
            " (a smaller strategy.generator_lr may help)"
        )
    return count.detach().clamp(0, most).long()


@torch.no_grad()
def nearest(rows: Tensor, candidates: Tensor, x: Tensor | SparseMatrix) -> Tensor:
    """Of each row [R, F] the nearest of its candidates, rows of x [S, F] by their places [R, P], −1 for none: places [R]."""
    found = []
    squares = torch.empty(0) if isinstance(x, Tensor) else _squares(x)
    for start in range(0, rows.size(0), BLOCK):
        some, near = candidates[start : start + BLOCK], rows[start : start + BLOCK]
        known = some.clamp(min=0)
        if isinstance(x, Tensor):
            apart = (near[:, None] - x[known]).square().sum(2)  # [block, P]
        else:
            apart = squares[known] - 2 * _overlap(near, known, x)  # and ‖row‖², which all its candidates share
        best = apart.masked_fill(some < 0, torch.inf).argmin(1, keepdim=True)
        found.append(some.gather(1, best).squeeze(1))
    return torch.cat(found) if found else candidates.new_zeros(0)


@torch.no_grad()
def apart(rows: Tensor, best: Tensor, x: Tensor | SparseMatrix) -> Tensor:
    """Of each row [R, F] its difference from the row of x that `nearest` found [R], 0 where it found none: [R, F]."""
    none, known = (best < 0)[:, None], best.clamp(min=0)
    if isinstance(x, Tensor):
        return (rows - x[known]).masked_fill_(none, 0)
    _, col, value = x.rows
    pair, entry = _entries(known, x)
    differs = rows.flatten().index_add(0, pair * rows.size(1) + col[entry], -value[entry].to(rows))
    return differs.view_as(rows).masked_fill_(none, 0)


def _overlap(rows: Tensor, candidates: Tensor, x: SparseMatrix) -> Tensor:
    """<row, x_c> of each candidate [B, P], read at the entries of x alone."""
    _, col, value = x.rows
    pair, entry = _entries(candidates.flatten(), x)
    told = rows[pair // candidates.size(1), col[entry]].double() * value[entry]
    return told.new_zeros(candidates.numel()).index_add(0, pair, told).view_as(candidates)


def _entries(chosen: Tensor, x: SparseMatrix) -> tuple[Tensor, Tensor]:
    """The stored entries of rows of x [Q], one row after another: which of these rows each is of, and its place in x."""
    pointer = x.rows.pointer
    count = pointer.diff()[chosen]
    pair = torch.arange(chosen.numel()).repeat_interleave(count)
    return pair, torch.arange(pair.numel()) + (pointer[chosen] - (count.cumsum(0) - count))[pair]


def _squares(x: SparseMatrix) -> Tensor:
    """‖x_s‖² [S]."""
    pointer, _, value = x.rows
    node = torch.arange(x.shape[0]).repeat_interleave(pointer.diff())
    return torch.zeros(x.shape[0], dtype=torch.float64).index_add(0, node, value.double().square())


@dataclass
class Impaired:
    """The impaired graph and what it lacks.

    Attributes:
        graph: without the hidden nodes.
        kept: its nodes in the original graph, [n].
        count: how many neighbours each lost, at most P, [n].
        trains: its training nodes, [m].
        owner: of each row (a lost neighbour of a training node): the node in `graph`, [R].
        place: and which of that node's it is, [R].
        truth: hidden neighbours of each row's node, by their places in the original graph, −1 for none, [R, P].
    """

    graph: Graph
    kept: Tensor
    count: Tensor
    trains: Tensor
    owner: Tensor
    place: Tensor
    truth: Tensor

    @classmethod
    def of(cls, graph: Graph, share: float, most: int, seed: int) -> "Impaired":
        """Of a graph without a share of the nodes outside its training and test sets, drawn by ``seed``; ``most`` is P."""
        spare = (~graph.train_mask & ~graph.test_mask).nonzero().view(-1)
        rng = torch.Generator().manual_seed(seed)
        hidden = torch.zeros(graph.num_nodes, dtype=torch.bool)
        hidden[spare[torch.randperm(spare.numel(), generator=rng)[: round(share * spare.numel())]]] = True
        kept = (~hidden).nonzero().view(-1)
        local = torch.full((graph.num_nodes,), -1)
        local[kept] = torch.arange(kept.numel())
        source, target = graph.edge_index
        inside = ~hidden[source] & ~hidden[target]
        nothing = torch.zeros(kept.numel(), dtype=torch.bool)
        edges = local[graph.edge_index[:, inside]]
        rest = Graph(graph.x[kept], edges, graph.y[kept], nothing, nothing, nothing, graph.num_classes)
        lost = (hidden[source] & ~hidden[target]).nonzero().view(-1)
        lost = lost[target[lost].argsort(stable=True)]
        all_lost = local[target[lost]].bincount(minlength=kept.numel())
        count = all_lost.clamp(max=most)
        trains = graph.train_mask[kept]
        owner, place = places(torch.where(trains, count, 0))
        at = (all_lost.cumsum(0) - all_lost)[owner, None] + torch.arange(most)
        known = torch.arange(most) < count[owner, None]
        truth = torch.where(known, source[lost][at.clamp(max=max(lost.numel() - 1, 0))] if lost.numel() else -1, -1)
        return cls(rest, kept, count, trains.nonzero().view(-1), owner, place, truth)

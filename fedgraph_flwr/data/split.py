"""Split into training, validation and test nodes: by ratios, k-fold groups, or the dataset's public masks.

Nodes without a label (y = -1) and without a known target are in no mask.
The same function splits a whole graph (``scope: global``, before the partition)
and a client's graph (``scope: client``). A client's random stream depends on the seed and its index.
"""

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.config import SplitConfig
from fedgraph_flwr.data.features import DAY, WHOLE
from fedgraph_flwr.data.graph import AnyGraph, ClientGraph, Graph, check_disjoint, marks, unsplit
from fedgraph_flwr.data.hetero import HeteroGraph
from fedgraph_flwr.data.many_graphs import MASKS, index_of, one_per_graph
from fedgraph_flwr.errors import FedGraphError

AnyTyped = TypeVar("AnyTyped", bound=HeteroGraph)

APART = "node_split"
"""Key of a graph's schema: the masks of its nodes are not those of the stages of its edges; each task has its own split."""

VALIDATION_SEED = 12345  # seed for taking validation nodes from public training nodes, the same in all runs


def split_graph(graph: AnyGraph, cfg: SplitConfig, seed: int) -> AnyGraph:
    """Return the graph with masks set; tensors are shared and nothing changes in place.

    Raises:
        FedGraphError: public masks are requested but missing, or the fold does not exist.
    """
    if graph.graph_id.numel():
        return _split_many(graph, cfg, seed)
    if cfg.kind == "temporal":
        graph, masks = _temporal(graph, cfg)
    elif cfg.kind == "public":
        masks = _public(graph, cfg)
    elif cfg.kind == "kfold":
        masks = _kfold(graph, cfg, seed)
    else:
        masks = _ratio(graph, cfg, seed)
    graph = replace(graph, train_mask=masks[0], val_mask=masks[1], test_mask=masks[2])
    return ensure_train(graph, cfg.min_train, seed) if isinstance(graph, ClientGraph) else graph


def _split_many(graph: AnyGraph, cfg: SplitConfig, seed: int) -> AnyGraph:
    """Return many graphs with masks of whole graphs."""
    items, of = split_graph(one_per_graph(graph), cfg, seed), index_of(graph)
    return replace(graph, **{mask: getattr(items, mask)[of] for mask in MASKS})


def grouping_seed(cfg: SplitConfig, seed: int) -> int:
    """Return the seed of graph, partition and node groups; rotating folds share it unless they ``resample``."""
    return seed // cfg.folds if cfg.kind == "kfold" and cfg.fold < 0 and not cfg.resample else seed


def without_stages(graph: Any) -> Any:
    """Return a graph whose nodes have a split of their own beside that of its edges (`APART`) as tasks on nodes read it.

    They read all edges; a task on edges reads the file as it is.
    """
    if not graph.schema.get(APART):
        return graph
    held = [key for key in ("edge_split", "cut_out_edge_split", "cut_in_edge_split") if hasattr(graph, key)]
    return replace(graph, **{key: getattr(graph, key)[:0] for key in held})


def split_targets(graph: AnyTyped, cfg: SplitConfig, seed: int) -> AnyTyped:
    """Return a heterogeneous graph with masks on its target nodes; split before the partition, as clients share nodes."""
    nodes = split_graph(shell(graph), cfg, seed)
    return replace(graph, train_mask=nodes.train_mask, val_mask=nodes.val_mask, test_mask=nodes.test_mask)


def shell(graph: Graph | HeteroGraph, nodes: Tensor | slice = slice(None), **of_client: Any) -> Any:
    """Return a graph, or with ``of_client`` a client's, of only the labels and masks of some nodes with labels."""
    rows: dict[str, Any] = {key: getattr(graph, key)[nodes] for key in ("y", *MASKS)}
    rows |= {"x": torch.zeros(len(rows["y"]), 0), "edge_index": torch.zeros(2, 0, dtype=torch.int64)}
    kind = ClientGraph if of_client else Graph
    return kind(**rows, num_classes=graph.num_classes, name=graph.name, **of_client)


def ensure_train(graph: AnyGraph, minimum: int, seed: int) -> AnyGraph:
    """Return the graph with at least ``minimum`` training nodes, taken from labelled nodes outside all masks."""
    if graph.graph_id.numel():
        items, of = ensure_train(one_per_graph(graph), minimum, seed), index_of(graph)
        return replace(graph, train_mask=items.train_mask[of])
    missing = minimum - int(graph.train_mask.sum())
    if missing <= 0:
        return graph
    unused = torch.nonzero(graph.labelled & (marks(graph) == 0)).view(-1).numpy()
    chosen = _rng(graph, seed, 1).permutation(unused)[:missing]
    train_mask = graph.train_mask.clone()
    train_mask[torch.from_numpy(chosen)] = True
    return replace(graph, train_mask=train_mask)


def _rng(graph: Graph, seed: int, purpose: int) -> np.random.Generator:
    client = graph.client + 1 if isinstance(graph, ClientGraph) else 0
    return np.random.default_rng([seed, client, purpose])


def _masks(graph: Graph, *members: np.ndarray) -> list[Tensor]:
    masks = list(unsplit(graph.num_nodes).values())
    for mask, nodes in zip(masks, members, strict=True):
        mask[torch.from_numpy(nodes)] = True
    return masks


def _ratio(graph: Graph, cfg: SplitConfig, seed: int) -> list[Tensor]:
    """Draw the share of each set from the labelled nodes."""
    nodes = torch.nonzero(graph.labelled).view(-1).numpy()
    rng = _rng(graph, seed, 0)
    order = (
        _stratified(graph.y.numpy()[nodes] + int(graph.y.min() < 0), rng)
        if cfg.stratify
        else rng.permutation(len(nodes))
    )
    return _masks(graph, *in_order(nodes[order], cfg.shares))


def in_order(items: np.ndarray, shares: tuple[float, float, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split n ordered items into training, validation and test: floor(share · n) of each; if shares sum to 1, val is the rest."""
    size = len(items)
    train, val, test = (int(share * size + 1e-9) for share in shares)  # 0.29 * 100 is 28.999999999999996
    if sum(shares) > 1 - 1e-9:
        val = size - train - test
    return items[:train], items[train : train + val], items[train + val : train + val + test]


def _stratified(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw an order [n] in which each segment has every class in proportion, up to one node, for labels [n]."""
    shuffled = rng.permutation(len(y))
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    count = np.bincount(y)
    rank = np.arange(len(y)) - np.repeat(np.cumsum(count) - count, count)  # within its class
    place = (rank + np.repeat(rng.random(len(count)), count)) / np.repeat(count, count)
    return by_class[np.argsort(place, kind="stable")]


def _kfold(graph: Graph, cfg: SplitConfig, seed: int) -> list[Tensor]:
    """Assign nodes at random to ``folds`` groups; fold i tests on group i, validates on i+1, trains on the rest (FedHERO 4.1).

    With ``fold: -1``, seeds 0..folds-1 rotate the test group over one grouping, and the next ``folds`` seeds over another.
    With ``resample``, each seed draws its own grouping.
    """
    if not -1 <= cfg.fold < cfg.folds:
        raise FedGraphError(f"split.fold must be in 0..{cfg.folds - 1}, or -1 to rotate with the seed, got {cfg.fold}")
    fold = seed % cfg.folds if cfg.fold < 0 else cfg.fold
    nodes = torch.nonzero(graph.labelled).view(-1).numpy()
    nodes = _rng(graph, grouping_seed(cfg, seed), 0).permutation(nodes)
    group = (np.arange(len(nodes)) - fold) % cfg.folds  # 0: test, 1: validation
    return _masks(graph, nodes[group > 1], nodes[group == 1], nodes[group == 0])


def _temporal(graph: AnyGraph, cfg: SplitConfig) -> tuple[AnyGraph, list[Tensor]]:
    """Return the graph with the stage of each edge, and masks of labelled nodes by the time of their first edge.

    The cuts are times: edges of equal time are of one stage. Nodes without edges are in no mask.

    Raises:
        FedGraphError: edges have no times, or the graph is one of many.
    """
    time = graph.edge_time
    if not graph.num_edges:
        raise FedGraphError(
            f"split.kind=temporal cuts at times of edges between a party's own nodes, and {graph.name or 'the graph'} has none:"
            " set split.kind=ratio, or import without --split temporal"
        )
    if not time.numel():
        raise FedGraphError(
            f"split.kind=temporal needs a time for each edge of one graph, which {graph.name or 'the graph'} lacks:"
            " import edges with columns.time=NAME, or set split.kind=ratio"
        )
    if cfg.until:
        first, second = cfg.until
    else:
        ordered = time.sort().values
        first, second = (
            int(ordered[min(int(share * len(ordered) + 1e-9), len(ordered) - 1)])
            for share in (cfg.train, cfg.train + cfg.val)
        )
    if graph.own_columns.get("recipe", {}).get("day") == WHOLE:  # a record reads its day, which no cut may divide
        first, second = (cut // DAY * DAY + DAY - 1 for cut in (first, second))
    never = torch.iinfo(torch.int64).max
    start = torch.full((graph.num_nodes,), never).scatter_reduce(
        0, graph.edge_index.reshape(-1), time.repeat(2), "amin"
    )
    known = graph.labelled & (start < never)
    stage = (time > first).to(torch.int8) + (time > second).to(torch.int8)
    masks = [known & (start <= first), known & (start > first) & (start <= second), known & (start > second)]
    return replace(graph, edge_split=stage), masks


def half_given(graph: Graph | HeteroGraph) -> list[str]:
    """Return the masks of training and test nodes that are empty, if other masks are not."""
    empty = [mask for mask in MASKS if not bool(getattr(graph, mask).any())]
    return [mask for mask in empty if mask != "val_mask"] if len(empty) < len(MASKS) else []


def check_given(graph: Graph | HeteroGraph, where: str) -> None:
    """Check that no node is in two masks, and that one of training and test nodes is given if validation nodes are.

    Raises:
        FedGraphError: otherwise.
    """
    check_disjoint(graph, f"{where}: ")
    if len(half_given(graph)) == 2:
        raise FedGraphError(f"{where} marks no node in train_mask and none in test_mask: mark some, {_DRAW}")


_DRAW = "or set split.kind=ratio to draw a split"


def _public(graph: Graph, cfg: SplitConfig) -> list[Tensor]:
    """Return the public masks, disjoint.

    Without training nodes, or without test nodes, these are all labelled nodes outside the other masks. Without validation nodes,
    these are the share ``val`` of training nodes, the same for all seeds.

    Raises:
        FedGraphError: masks overlap, or a stage stays without nodes.
    """
    where, labelled = graph.name or "the graph", graph.labelled
    masks = {mask: getattr(graph, mask) & labelled for mask in MASKS}
    if graph.edge_split.numel():  # the data assign edges, not nodes
        return list(masks.values())
    given = replace(graph, **masks)
    rest = labelled & (marks(given) == 0)
    if not isinstance(graph, ClientGraph) and torch.equal(rest, labelled):
        raise FedGraphError(f"dataset '{graph.name}' has no public masks: use split.kind=ratio or kfold")
    check_given(given, where)
    for missing in half_given(given):
        if not bool(rest.any()) and not isinstance(graph, ClientGraph):
            what = f"{where} marks no node in {missing}, and every labelled node is in the other masks"
            raise FedGraphError(f"{what}: mark fewer, {_DRAW}")
        masks[missing] = rest
    train, val, test = masks.values()
    if not bool(val.any()):
        known = train.nonzero().view(-1)
        order = np.random.default_rng(VALIDATION_SEED).permutation(known.numel())
        taken = known[torch.from_numpy(order[: round(cfg.val * known.numel())])]
        train, val = train.clone(), val.clone()
        train[taken], val[taken] = False, True
    return [train, val, test]

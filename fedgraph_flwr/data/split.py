"""Which nodes train, validate and test: ratios, k-fold groups, or the dataset's own masks.

Unlabelled nodes (y = -1) are in no mask. The same function splits a whole graph (``scope: global``, before the partition)
and a client's graph (``scope: client``); a client's stream of random numbers depends on the seed and its index.
"""

from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.config import SplitConfig
from fedgraph_flwr.data.graph import ClientGraph, Graph
from fedgraph_flwr.data.hetero import HeteroGraph
from fedgraph_flwr.errors import FedGraphError

AnyGraph = TypeVar("AnyGraph", bound=Graph)
AnyTyped = TypeVar("AnyTyped", bound=HeteroGraph)

VALIDATION_SEED = 12345  # of the validation nodes taken from public training nodes: the same in all runs


def split_graph(graph: AnyGraph, cfg: SplitConfig, seed: int) -> AnyGraph:
    """The graph with masks set; its tensors are shared, nothing is changed in place.

    Raises:
        FedGraphError: public masks are asked for and there are none, or a fold that does not exist.
    """
    if cfg.kind == "public":
        masks = _public(graph, cfg)
    elif cfg.kind == "kfold":
        masks = _kfold(graph, cfg, seed)
    else:
        masks = _ratio(graph, cfg, seed)
    graph = replace(graph, train_mask=masks[0], val_mask=masks[1], test_mask=masks[2])
    return ensure_train(graph, cfg.min_train, seed) if isinstance(graph, ClientGraph) else graph


def grouping_seed(cfg: SplitConfig, seed: int) -> int:
    """The seed of the graph, its partition, and the groups of nodes, which folds that rotate share unless they ``redraw``."""
    return seed // cfg.folds if cfg.kind == "kfold" and cfg.fold < 0 and not cfg.redraw else seed


def split_targets(graph: AnyTyped, cfg: SplitConfig, seed: int) -> AnyTyped:
    """A typed graph with masks on its target nodes, before any partition, since its clients share nodes."""
    n = graph.y.numel()
    labels = {key: getattr(graph, key) for key in ("y", "train_mask", "val_mask", "test_mask", "num_classes", "name")}
    nodes = split_graph(
        Graph(x=torch.zeros(n, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64), **labels), cfg, seed
    )
    return replace(graph, train_mask=nodes.train_mask, val_mask=nodes.val_mask, test_mask=nodes.test_mask)


def ensure_train(graph: AnyGraph, minimum: int, seed: int) -> AnyGraph:
    """The graph with at least ``minimum`` training nodes, as far as labelled nodes in no mask last."""
    lacking = minimum - int(graph.train_mask.sum())
    if lacking <= 0:
        return graph
    used = graph.train_mask | graph.val_mask | graph.test_mask
    unused = torch.nonzero((graph.y >= 0) & ~used).view(-1).numpy()
    chosen = _rng(graph, seed, 1).permutation(unused)[:lacking]
    train_mask = graph.train_mask.clone()
    train_mask[torch.from_numpy(chosen)] = True
    return replace(graph, train_mask=train_mask)


def _rng(graph: Graph, seed: int, purpose: int) -> np.random.Generator:
    client = graph.client + 1 if isinstance(graph, ClientGraph) else 0
    return np.random.default_rng([seed, client, purpose])


def _masks(graph: Graph, *members: np.ndarray) -> list[Tensor]:
    masks = []
    for nodes in members:
        mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
        mask[torch.from_numpy(nodes)] = True
        masks.append(mask)
    return masks


def _ratio(graph: Graph, cfg: SplitConfig, seed: int) -> list[Tensor]:
    """floor(train·n), floor(test·n) and floor(val·n) of the n labelled nodes; when the ratios sum to 1, val is the rest."""
    nodes = torch.nonzero(graph.y >= 0).view(-1).numpy()
    rng = _rng(graph, seed, 0)
    order = _stratified(graph.y.numpy()[nodes], rng) if cfg.stratify else rng.permutation(len(nodes))
    nodes = nodes[order]
    # 1e-9: 0.29 * 100 is 28.999999999999996
    train, val, test = (int(ratio * len(nodes) + 1e-9) for ratio in (cfg.train, cfg.val, cfg.test))
    if cfg.train + cfg.val + cfg.test > 1 - 1e-9:
        val = len(nodes) - train - test
    return _masks(graph, nodes[:train], nodes[train : train + val], nodes[train + val : train + val + test])


def _stratified(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random order in which every stretch holds each class in its share, up to one node: [n] labels → [n] positions."""
    shuffled = rng.permutation(len(y))
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    count = np.bincount(y)
    rank = np.arange(len(y)) - np.repeat(np.cumsum(count) - count, count)  # within its class
    place = (rank + np.repeat(rng.random(len(count)), count)) / np.repeat(count, count)
    return by_class[np.argsort(place, kind="stable")]


def _kfold(graph: Graph, cfg: SplitConfig, seed: int) -> list[Tensor]:
    """Nodes at random in ``folds`` groups; fold i tests on group i, validates on i+1, trains on the rest (FedHERO 4.1).

    With ``fold: -1`` seeds 0..folds-1 rotate the test group over one and the same grouping, the next ones over another;
    with ``redraw`` each seed groups anew.
    """
    if not -1 <= cfg.fold < cfg.folds:
        raise FedGraphError(f"split.fold must lie in 0..{cfg.folds - 1}, or be -1 for the seed's, got {cfg.fold}")
    fold = seed % cfg.folds if cfg.fold < 0 else cfg.fold
    nodes = torch.nonzero(graph.y >= 0).view(-1).numpy()
    nodes = _rng(graph, grouping_seed(cfg, seed), 0).permutation(nodes)
    group = (np.arange(len(nodes)) - fold) % cfg.folds  # 0: test, 1: validation
    return _masks(graph, nodes[group > 1], nodes[group == 1], nodes[group == 0])


def _public(graph: Graph, cfg: SplitConfig) -> list[Tensor]:
    """The graph's own; without validation nodes, the share ``val`` of its training nodes for them, once for all seeds."""
    labelled = graph.y >= 0
    masks = [mask & labelled for mask in (graph.train_mask, graph.val_mask, graph.test_mask)]
    if not isinstance(graph, ClientGraph) and not any(bool(mask.any()) for mask in masks):
        raise FedGraphError(f"dataset '{graph.name}' has no public masks: use split.kind=ratio or kfold")
    train, val, test = masks
    if not bool(val.any()):
        known = train.nonzero().view(-1)
        order = np.random.default_rng(VALIDATION_SEED).permutation(known.numel())
        taken = known[torch.from_numpy(order[: round(cfg.val * known.numel())])]
        train, val = train.clone(), val.clone()
        train[taken], val[taken] = False, True
    return [train, val, test]

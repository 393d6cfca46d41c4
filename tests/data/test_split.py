"""Masks: counts, disjointness, folds, and who is left out."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from fedgraph_flwr.config import SplitConfig
from fedgraph_flwr.data.graph import ClientGraph, Graph
from fedgraph_flwr.data.split import ensure_train, split_graph
from fedgraph_flwr.errors import FedGraphError


def make(y, cls=Graph, **kwargs):
    n = len(y)
    none = torch.zeros(n, dtype=torch.bool)
    return cls(
        x=torch.ones(n, 1),
        edge_index=torch.zeros(2, 0, dtype=torch.int64),
        y=torch.as_tensor(y),
        train_mask=none,
        val_mask=none,
        test_mask=none,
        num_classes=int(max(y)) + 1,
        name="toy",
        **kwargs,
    )


def masks(graph):
    return graph.train_mask, graph.val_mask, graph.test_mask


def counts(graph):
    return tuple(int(mask.sum()) for mask in masks(graph))


@pytest.mark.parametrize(
    ("n", "ratios", "expected"),
    [
        (103, (0.6, 0.2, 0.2), (61, 22, 20)),  # floors; the rest validates
        (103, (0.1, 0.1, 0.8), (10, 11, 82)),
        (100, (0.29, 0.2, 0.2), (29, 20, 20)),  # 0.29 * 100 is 28.999999999999996
        (1000, (0.01, 0.2, 0.2), (10, 200, 200)),
        (20, (0.05, 0.475, 0.475), (1, 10, 9)),
    ],
)
@pytest.mark.parametrize("stratify", [False, True])
def test_ratio_counts_are_floors(n, ratios, expected, stratify):
    train, val, test = ratios
    cfg = SplitConfig(train=train, val=val, test=test, stratify=stratify)
    assert counts(split_graph(make([0, 1] * (n // 2) + [0] * (n % 2)), cfg, 0)) == expected


@pytest.mark.parametrize("kind", ["ratio", "kfold"])
@pytest.mark.parametrize("stratify", [False, True])
def test_masks_are_disjoint_and_leave_out_the_unlabelled(kind, stratify):
    y = torch.randint(-1, 4, (500,), generator=torch.Generator().manual_seed(0)).tolist()
    graph = split_graph(make(y), SplitConfig(kind=kind, stratify=stratify), 1)
    total = sum(mask.int() for mask in masks(graph))
    assert torch.equal(total, (graph.y >= 0).int())  # 60/20/20 and folds use every labelled node once


def test_stratified_ratios_hold_within_each_class():
    y = [0] * 70 + [1] * 200 + [2] * 30
    graph = split_graph(make(y), SplitConfig(stratify=True), 5)
    for label, size in Counter(y).items():
        for mask, ratio in zip(masks(graph), (0.6, 0.2, 0.2), strict=True):
            assert abs(int((graph.y[mask] == label).sum()) - ratio * size) <= 2


def test_folds_rotate_over_one_grouping():
    """Seeds 0-4 test every node exactly once; what fold i validates on, fold i+1 tests on."""
    graph = make([0, 1, 2] * 41)
    folds = [split_graph(graph, SplitConfig(kind="kfold"), seed) for seed in range(5)]
    assert torch.equal(sum(fold.test_mask.int() for fold in folds), torch.ones(123, dtype=torch.int32))
    for one, following in zip(folds, folds[1:] + folds[:1], strict=True):
        assert torch.equal(one.val_mask, following.test_mask)
        assert max(counts(one)[1:]) - min(counts(one)[1:]) <= 1
    other = split_graph(graph, SplitConfig(kind="kfold"), 5)
    assert not torch.equal(other.test_mask, folds[0].test_mask)  # the next five seeds regroup
    assert torch.equal(split_graph(graph, SplitConfig(kind="kfold", fold=2), 0).test_mask, folds[2].test_mask)
    redrawn = [split_graph(graph, SplitConfig(kind="kfold", resample=True), seed) for seed in range(5)]
    assert torch.equal(redrawn[0].test_mask, folds[0].test_mask)
    assert int(sum(fold.test_mask.int() for fold in redrawn).max()) > 1  # not one grouping


def test_clients_draw_differently_and_seeds_repeat():
    y = [0, 1] * 50
    cfg = SplitConfig()
    first, second = (split_graph(make(y, ClientGraph, client=c, num_clients=2), cfg, 0) for c in (0, 1))
    assert isinstance(first, ClientGraph)
    assert not torch.equal(first.train_mask, second.train_mask)
    again = split_graph(make(y, ClientGraph, client=0, num_clients=2), cfg, 0)
    assert torch.equal(first.train_mask, again.train_mask)
    assert not torch.equal(first.train_mask, split_graph(make(y), cfg, 1).train_mask)


def test_public_masks_stay_and_their_lack_is_said():
    graph = make([0, 1, -1, 1])
    with pytest.raises(FedGraphError, match="dataset 'toy' has no public masks"):
        split_graph(graph, SplitConfig(kind="public"), 0)
    graph = replace(graph, train_mask=torch.tensor([True, False, True, False]))
    assert split_graph(graph, SplitConfig(kind="public"), 0).train_mask.tolist() == [True, False, False, False]


def test_a_client_short_of_training_nodes_gets_unused_ones():
    client = make([0, 1, -1] * 10, ClientGraph, client=3, num_clients=4)  # 20 labelled: 1 % is none
    graph = split_graph(client, SplitConfig(train=0.01, val=0.2, test=0.2, min_train=5), 0)
    assert counts(graph) == (5, 4, 4)
    assert bool((graph.y[graph.train_mask] >= 0).all())
    assert not bool((graph.train_mask & (graph.val_mask | graph.test_mask)).any())
    assert counts(ensure_train(graph, 100, 0)) == (12, 4, 4)  # as far as they last
    whole = split_graph(make([0, 1] * 50), SplitConfig(train=0.0, val=0.2, test=0.2, min_train=5), 0)
    assert counts(whole)[0] == 0  # it is about clients


def test_a_fold_that_does_not_exist():
    with pytest.raises(FedGraphError, match=r"split.fold must be in 0\.\.4"):
        split_graph(make([0, 1]), SplitConfig(kind="kfold", fold=5), 0)

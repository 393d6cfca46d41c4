"""What the link inference attack ranks, and what it is let to see."""

import dataclasses

import numpy as np
import pytest
import torch

from fedgraph_flwr import attacks
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError


def ring(n: int = 12) -> ClientGraph:
    """A directed ring with one edge listed both ways and a loop."""
    source = torch.arange(n)
    edges = torch.stack(
        [torch.cat([source, torch.tensor([1, 5])]), torch.cat([(source + 1) % n, torch.tensor([0, 5])])]
    )
    none = torch.zeros(n, dtype=torch.bool)
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(0))
    return ClientGraph(x, edges, torch.zeros(n, dtype=torch.int64), ~none, none, none, 2)


def test_pairs_are_all_edges_and_as_many_others():
    pairs, linked = attacks.candidate_pairs(ring(), seed=1)
    as_sets = [frozenset(pair) for pair in pairs.T.tolist()]
    edges = {frozenset((v, (v + 1) % 12)) for v in range(12)}
    assert {s for s, y in zip(as_sets, linked.tolist(), strict=True) if y} == edges
    others = [s for s, y in zip(as_sets, linked.tolist(), strict=True) if not y]
    assert len(others) == len(set(others)) == 12
    assert all(len(s) == 2 for s in others)
    assert not edges & set(others)
    assert torch.equal(pairs, attacks.candidate_pairs(ring(), seed=1)[0])


@pytest.mark.parametrize(("sign", "expected"), [(1.0, 1.0), (-1.0, 0.0)])
def test_ranking_is_right_when_links_are_alike_and_wrong_when_they_differ(sign, expected):
    """Nodes 2i and 2i+1 are linked; they share a direction, or are opposite to each other."""
    z = torch.eye(4).repeat_interleave(2, 0)
    z[1::2] *= sign
    pairs = torch.tensor([[0, 2, 4, 6, 0, 1, 3, 5], [1, 3, 5, 7, 2, 4, 6, 7]])
    pairs[:, 7] = torch.tensor([5, 0])
    linked = torch.arange(8) < 4
    assert attacks.rank_pairs(z, pairs, linked) == (expected, expected)


def test_ties_are_chance():
    pairs, linked = attacks.candidate_pairs(ring(), seed=1)
    assert attacks.rank_pairs(torch.ones(12, 3), pairs, linked) == (0.5, 0.5)
    assert attacks.rank_pairs(torch.zeros(12, 3), pairs, linked) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("strategy", "shared", "parts"),
    [
        ("fedavg", "['']", {"prediction"}),
        ("local", "[]", set()),
        ("fedhero", "[structure_learner.,global_convs.]", {"structure_learner"}),
        ("fedhero", "['']", {"prediction", "structure_learner", "projection"}),
        ("fedhero", "[local_convs.,projection.,classifier.]", {"projection"}),
        ("fedhero", "[]", set()),
    ],
)
def test_the_attacker_sees_what_shared_parameters_compute(strategy, shared, parts):
    """And computes with the values that travelled, not with those a client starts from."""
    cfg = compose([f"strategy={strategy}", f"strategy.shared={shared}"])
    graph = ring()
    client = attacks.locate(cfg.strategy.client)(cfg, graph)
    arrays = {name: np.full(t.shape, 0.1, np.float32) for name, t in client.shared.items()}
    seen = attacks._representations(cfg, graph, arrays)
    assert set(seen) == parts
    if "structure_learner" in parts:
        expected = torch.relu(client.inputs.adj @ graph.x.sum(1, keepdim=True) * 0.1 + 0.1)
        torch.testing.assert_close(seen["structure_learner"], expected.expand(-1, 64))


def test_without_edges_leaves_features_only():
    bare = attacks._without_edges(ring())
    assert bare.edge_index.shape == (2, 0)
    assert torch.equal(bare.x, ring().x)


def test_an_unknown_attack_is_named_before_the_run():
    with pytest.raises(FedGraphError, match="link_inference"):
        compose(["attack=link_inferense"])
    with pytest.raises(FedGraphError, match="pairs"):
        compose(["attack=link_inference", "attack.pairs=3"])
    assert dataclasses.asdict(compose(["attack=link_inference"]).attack)["name"] == "link_inference"

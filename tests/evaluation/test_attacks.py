"""What the link inference attack ranks, and what it is let to see."""

import dataclasses

import numpy as np
import pytest
import torch

from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import attacks


def ring(n: int = 12) -> ClientGraph:
    """A directed ring with one edge listed both ways and a loop."""
    source = torch.arange(n)
    edges = torch.stack(
        [torch.cat([source, torch.tensor([1, 5])]), torch.cat([(source + 1) % n, torch.tensor([0, 5])])]
    )
    train, val, test = torch.arange(3).unsqueeze(1) == torch.zeros(n, dtype=torch.int64)
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(0))
    return ClientGraph(x, edges, torch.zeros(n, dtype=torch.int64), train.clone(), val.clone(), test.clone(), 2)


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


def test_others_are_drawn_from_all_nodes():
    """Pairs of low nodes are no likelier than others."""
    drawn = torch.cat(
        [p[:, ~linked] for p, linked in (attacks.candidate_pairs(ring(60), seed) for seed in range(40))], 1
    )
    assert drawn.double().mean().item() == pytest.approx(29.5, abs=4 * 17.3 / (2 * 40 * 60) ** 0.5)


def test_findings_are_means_over_clients_with_edges(tmp_path, monkeypatch):
    """Two clients and one without edges; what is ranked is known for each reading."""
    lonely = attacks._without_edges(ring(9))
    for index, graph in enumerate((ring(12), lonely, ring(20))):
        dataclasses.replace(graph, client=index, num_clients=3).save(tmp_path / f"client_{index:04d}.safetensors")
    cfg = compose([f"graph={tmp_path}", "num_clients=3"])
    seen = []

    def representations(cfg, graph, arrays):
        seen.append((graph.num_nodes, graph.edge_index.size(1) > 0))
        alike = torch.zeros(graph.num_nodes, 2).index_fill(1, torch.tensor([0]), 1.0)
        return {"weak": alike, "strong": alike}

    def rank(z, pairs, linked):
        """Of the four rankings on a graph: weak, strong of the first client, weak, strong of the other; 0.9 without edges."""
        ranked.append(z.size(1))
        if z.size(1) == 6:
            return 0.1, 0.2
        return {1: (0.55, 0.6), 2: (0.3, 0.1), 6: (0.65, 0.6), 7: (0.2, 0.3)}.get(len(ranked), (0.9, 0.95))

    ranked: list[int] = []
    monkeypatch.setattr(attacks, "_representations", representations)
    monkeypatch.setattr(attacks, "rank_pairs", rank)
    report = attacks.attack(dataclasses.replace(cfg, attack=compose(["attack=link_inference"]).attack), {})
    assert seen == [(12, True), (12, False), (20, True), (20, False)]
    assert report["on_graph"]["weak"] == pytest.approx({"accuracy": 0.6, "auc": 0.6})
    assert report["on_graph"]["strong"] == pytest.approx({"accuracy": 0.25, "auc": 0.2})
    assert report["without_edges"]["strong"] == pytest.approx({"accuracy": 0.9, "auc": 0.95})
    assert report["features"]["x"] == pytest.approx({"accuracy": 0.1, "auc": 0.2})
    # 0.2 tells more than 0.6; the weaker features, which training does not expose, are not the headline
    assert (report["representation"], report["accuracy"], report["auc"]) == ("strong", 0.75, pytest.approx(0.8))


def test_the_attacker_computes_without_dropout():
    cfg = compose(["strategy=fedavg", "model.dropout=0.9"])
    client = attacks.locate(cfg.strategy.client)(cfg, ring())
    arrays = {name: t.detach().numpy() for name, t in client.shared.items()}
    assert torch.equal(attacks._representations(cfg, ring(), arrays)["prediction"], client.predict())


def test_features_are_ranked_as_they_are(run):
    scores = run("attack=link_inference", "rounds=1").summary["attack"]["features"]["x"]
    assert scores["auc"] != 0.5
    with pytest.raises(FedGraphError, match="attack=link_inference needs classes of nodes, and task=graphs has none"):
        run("attack=link_inference", "rounds=1", "task=graphs")


def test_an_unknown_attack_is_named_before_the_run():
    with pytest.raises(FedGraphError, match="link_inference"):
        compose(["attack=link_inferense"])
    with pytest.raises(FedGraphError, match="pairs"):
        compose(["attack=link_inference", "attack.pairs=3"])
    assert dataclasses.asdict(compose(["attack=link_inference"]).attack)["name"] == "link_inference"

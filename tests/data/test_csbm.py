"""The contextual stochastic block model against its equations (FedSPA, Appendix C, Eq. 16-17)."""

import numpy as np
import pytest
import torch

from fedgraph_flwr import partition
from fedgraph_flwr.cli import main
from fedgraph_flwr.config import DatasetConfig, compose
from fedgraph_flwr.data import csbm
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.secure.policy import Policy


def draw(seed: int = 0, num_clients: int = 4, **params):
    return csbm.load(DatasetConfig(params=params), seed=seed, num_clients=num_clients)


def intra(graph, client):
    """The client's edges [2, E]."""
    source, target = graph.edge_index
    return graph.edge_index[:, (graph.group[source] == client) & (graph.group[target] == client)]


def homophily(graph, edges):
    return float((graph.y[edges[0]] == graph.y[edges[1]]).float().mean())


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("level", [0.0, 0.25, 0.75, 1.0])
def test_homophily_and_degree_are_those_planned(level, classes):
    graph = draw(nodes=20000, degree=8, homophily=level, gap=0, classes=classes, features=3)
    for client in range(4):
        edges, n = intra(graph, client), int((graph.group == client).sum())
        assert homophily(graph, edges) == pytest.approx(level, abs=4 * (0.25 / (edges.size(1) / 2)) ** 0.5)
        assert edges.size(1) / n == pytest.approx(8, abs=5 * (2 * 8 / n) ** 0.5)


def test_clients_spread_uniformly_over_the_gap():
    graph = draw(num_clients=40, nodes_per_client=[400, 600], homophily=0.5, gap=0.6, features=2, degree=20)
    levels = np.array([homophily(graph, intra(graph, client)) for client in range(40)])
    assert 0.17 < levels.min() < 0.3
    assert 0.7 < levels.max() < 0.83
    assert levels.std() == pytest.approx(0.6 / 12**0.5, rel=0.25)  # of the uniform law


def test_edges_are_undirected_distinct_and_never_loops():
    graph = draw(nodes=3000, cut_degree=2.0)
    source, target = graph.edge_index
    code = source * graph.num_nodes + target
    assert torch.equal(code, code.unique())  # sorted and distinct
    assert torch.equal(code, (target * graph.num_nodes + source).sort().values)
    assert not (source == target).any()


def test_without_cut_edges_the_blocks_are_apart_and_with_them_they_meet():
    def between(graph):
        return int((graph.group[graph.edge_index[0]] != graph.group[graph.edge_index[1]]).sum())

    assert between(draw(nodes=2000)) == 0
    graph = draw(nodes=2000, cut_degree=1.5, gap=0, homophily=0.8)
    assert between(graph) == 2000 * 1.5
    cut = graph.edge_index[:, graph.group[graph.edge_index[0]] != graph.group[graph.edge_index[1]]]
    assert homophily(graph, cut) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("classes", [2, 4])
def test_features_follow_equation_16(classes):
    """The residual of x about its class mean is N(0, I/F); class means lie at √(μ/N) around 0."""
    features, mu, n = 400, 5000.0, 5000
    graph = draw(num_clients=1, nodes=n, features=features, mu=mu, classes=classes)
    means = torch.stack([graph.x[graph.y == c].mean(0) for c in range(classes)])
    assert float((graph.x - means[graph.y]).pow(2).sum(1).mean()) == pytest.approx(1.0, rel=0.01)
    torch.testing.assert_close(means.sum(0), torch.zeros(features), atol=0.02, rtol=0)
    # E‖ξ‖² = 1, known up to √(2/F) = 7 % each, plus the mean's own noise C/N.
    assert float(means.pow(2).sum(1).mean()) == pytest.approx(mu / n, rel=0.2)


def test_centroids_are_shared_by_the_clients_and_scaled_by_their_own_size():
    graph = draw(num_clients=2, nodes_per_client=[500, 4000], features=200, mu=20000, seed=2)
    large, small = graph.group.bincount().tolist()
    assert large > 1.5 * small
    first, second = ((graph.x * (2.0 * graph.y[:, None] - 1))[graph.group == c].mean(0) for c in (0, 1))
    assert float(torch.cosine_similarity(first, second, dim=0)) > 0.99
    assert float(first.norm() / second.norm()) == pytest.approx((small / large) ** 0.5, rel=0.03)  # √(μ/N) of Eq. (16)


def test_triangle_counts_every_pair_once():
    first, second = csbm._triangle(np.arange(45))
    assert set(zip(first.tolist(), second.tolist(), strict=True)) == {(i, j) for i in range(10) for j in range(i)}
    n = 2**25  # both sides of a row's end, where rounding would show
    first, second = csbm._triangle(np.array([n * (n - 1) // 2 - 1, n * (n - 1) // 2]))
    assert (first.tolist(), second.tolist()) == ([n - 1, n], [n - 2, 0])


def test_sizes():
    graph = draw(num_clients=7, nodes=1003, features=5, degree=3)
    assert graph.x.shape == (1003, 5)
    assert graph.group.unique().tolist() == list(range(7))
    graph = draw(num_clients=30, nodes_per_client=[50, 60], features=5, degree=3)
    sizes = graph.group.bincount()
    assert sizes.min() >= 50
    assert sizes.max() <= 60
    assert draw(num_clients=3, clients=5, nodes=500).group.max() == 4  # its own key goes before the run's
    for client in range(5):  # balanced classes
        count = draw(clients=5, nodes=501).y[draw(clients=5, nodes=501).group == client].bincount()
        assert count.max() - count.min() <= 1


def test_seed_decides_everything():
    one, same, other = draw(seed=3, nodes=400), draw(seed=3, nodes=400), draw(seed=4, nodes=400)
    assert torch.equal(one.x, same.x)
    assert torch.equal(one.edge_index, same.edge_index)
    assert not torch.equal(one.x, other.x)
    loaded_graph = csbm.load(DatasetConfig(params={"seed": 3, "nodes": 400}), seed=8, num_clients=4)
    assert torch.equal(loaded_graph.x, one.x)


def test_large_graph_stays_linear_in_nodes_and_edges():
    """90 000 nodes: a dense adjacency would be 30 GiB."""
    graph = draw(num_clients=30, nodes=90_000, features=8, degree=10)
    assert graph.num_nodes == 90_000
    assert graph.edge_index.size(1) == pytest.approx(900_000, rel=0.01)


def test_yaml_lists_every_key():
    assert set(compose(["dataset=csbm"]).dataset.params) == set(csbm.Csbm.__dataclass_fields__)
    csbm.load(compose(["dataset=csbm", "dataset.nodes=100", "dataset.degree=2"]).dataset, num_clients=2)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"homophily": 0.9, "gap": 0.4}, "homophily 0.9"),
        ({"degree": 300, "nodes": 400}, "degree 300 is too high"),
        ({"nodes": 7}, "a client would get"),
        ({"nodes_per_client": [10, 5]}, "nodes_per_client"),
        ({"degre": 3}, "did you mean 'degree'"),
        ({"classes": 1}, "classes"),
        ({"degree": "many"}, "dataset.degree .* must be a number, got 'many'"),
        ({"nodes_per_client": 1}, "must be a list of integers or null, got 1"),
        ({"nodes_per_client": [1, 2, 3]}, r"nodes_per_client=\[1, 2, 3\] must be \[low, high\] with 1 <= low <= high"),
        ({"mu": float("nan")}, "mu must be >= 0, got nan"),
        ({"clients": 100_000}, "100000 clients has .* nodes, about .* GiB, but this machine has"),
        ({"nodes": 40, "degree": 2, "cut_degree": 60}, "cut_degree 60"),
    ],
)
def test_wrong_input_is_one_sentence(params, message):
    with pytest.raises(FedGraphError, match=message):
        draw(**params)


def test_on_the_default_data_federation_gains(tmp_path, monkeypatch):
    """The first comparison of a new user: in eight rounds FedAvg is ahead of Local for each seed, and level with Central."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    for seed in (0, 1):
        scores = {}
        for method in ("local", "fedavg", "central"):
            words = [
                f"strategy={method}",
                f"seed={seed}",
                "rounds=8",
                "checkpoint_every=0",
                f"out={tmp_path / method}{seed}",
            ]
            scores[method] = run(compose(words))["test_accuracy"]
        assert scores["fedavg"] > scores["local"] + 0.02, (seed, scores)
        assert scores["fedavg"] > scores["central"] - 0.02, (seed, scores)


@pytest.mark.parametrize("clients", [2, 9])
def test_nodes_without_a_policy_file_accept_the_demo_of_few_clients(clients, tmp_path):
    cfg = compose([f"num_clients={clients}"])
    assert cfg.dataset.name == "demo"
    assert main(["partition", f"num_clients={clients}", "--out", str(tmp_path)]) == 0
    parts = [partition.load(path) for path in tmp_path.glob("client_*")]
    assert len(parts) == clients
    for part in parts:
        assert 600 <= part.num_nodes <= 1200
        Policy().check_dropout(cfg.model.dropout, int(part.train_mask.sum()))
    few = csbm.load(
        compose([f"num_clients={clients}", "dataset.nodes_per_client=[50,60]"]).dataset, num_clients=clients
    )
    assert few.num_nodes <= 60 * clients  # what a user asks for holds
    of_ten = csbm.load(cfg.dataset, num_clients=10)
    assert 200 <= np.bincount(of_ten.group).max() <= 400

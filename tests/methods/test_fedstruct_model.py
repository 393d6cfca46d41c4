"""FedStruct's network against Eq. (20) written densely, and the structure features."""

import itertools
import math

import numpy as np
import pytest
import torch

from fedgraph_flwr import models
from fedgraph_flwr.config import ModelConfig, compose
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import structure_features
from fedgraph_flwr.models.fedstruct import FedStruct
from fedgraph_flwr.numerics.sparse import SparseMatrix
from fedgraph_flwr.numerics.subgraphs import undirected

F, C, N, Q = 6, 3, 8, 11


@pytest.fixture
def graph() -> Graph:
    generator = torch.Generator().manual_seed(0)
    mask = torch.zeros(N, dtype=torch.bool)
    return Graph(
        x=torch.randn(N, F, generator=generator),
        edge_index=torch.tensor([[0, 1, 2, 2, 3, 5, 5], [1, 2, 0, 3, 3, 6, 6]]),
        y=torch.zeros(N, dtype=torch.int64),
        train_mask=mask,
        val_mask=mask,
        test_mask=mask,
        num_classes=C,
    )


def network(**params) -> FedStruct:
    torch.manual_seed(1)
    model = models.build(ModelConfig(name="fedstruct", hidden=5, layers=2, dropout=0.0, params=params), F, C)
    return model.double()


def normalized(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()


def by_hand(perceptron, x: torch.Tensor) -> torch.Tensor:
    """LayerNorm, then linear layers with ReLU between them; the weights out of the module."""
    linear = [m for m in perceptron.modules() if isinstance(m, torch.nn.Linear)]
    norm = perceptron.norm
    h = normalized(x) * norm.weight + norm.bias
    for depth, layer in enumerate(linear):
        h = (h.relu() if depth else h) @ layer.weight.T + layer.bias
    return h


def local_step(graph: Graph) -> torch.Tensor:
    a = torch.eye(N, dtype=torch.float64)
    a[graph.edge_index[0], graph.edge_index[1]] = 1
    return a / a.sum(1, keepdim=True)


@pytest.mark.parametrize("filled", [1.0, 0.05])
@pytest.mark.parametrize("beta", ["last", "uniform", [0.5, 2.0, 1.0]])
def test_logits_are_equation_20(graph, beta, filled):
    graph.x *= torch.rand(N, F) < filled
    model = network(hops=2, structure_hops=3, beta=beta, structure_width=4, structure_layers=[7, 5])
    with torch.no_grad():
        model.g.norm.weight.uniform_(0.5, 1.5)
        model.f.norm.bias.normal_()
    inputs = model.prepare(graph, dtype=torch.float64)
    assert isinstance(inputs.x, torch.Tensor) == (filled == 1)
    rows, s = torch.rand(N, Q, dtype=torch.float64), torch.randn(Q, 4, dtype=torch.float64)
    rows[rows < 0.5] = 0
    inputs.rows, inputs.s = SparseMatrix(rows.to_sparse_csr().to_dense().numpy(), torch.float64), s
    step, (b1, b2) = local_step(graph), {"last": (0, 1), "uniform": (0.5, 0.5)}.get(str(beta), (0.5, 2.0))
    feature_rows = b1 * step + b2 * step @ step
    wanted = feature_rows @ by_hand(model.f, graph.x.double()) + rows @ by_hand(model.g, s)
    torch.testing.assert_close(model(inputs), wanted, atol=1e-12, rtol=0)


def test_learned_beta_weighs_the_powers_and_receives_gradient(graph):
    model = network(hops=2, structure_hops=3, beta="learned", structure_mlp=False)
    inputs = model.prepare(graph, dtype=torch.float64)
    stack, s = torch.rand(3, N, Q, dtype=torch.float64), torch.randn(Q, C, dtype=torch.float64)
    inputs.rows, inputs.s = stack.view(3 * N, Q), s
    with torch.no_grad():
        model.structure_beta.copy_(torch.tensor([0.2, -1.0, 3.0]))
        model.feature_beta.copy_(torch.tensor([0.4, 0.6]))
    step = local_step(graph)
    wanted = torch.tensordot(model.structure_beta, stack @ s, 1)
    wanted = wanted + (0.4 * step + 0.6 * step @ step) @ by_hand(model.f, graph.x.double())
    logits = model(inputs)
    torch.testing.assert_close(logits, wanted.detach(), check_dtype=False, atol=1e-6, rtol=1e-6)
    logits.sum().backward()
    torch.testing.assert_close(model.structure_beta.grad, (stack @ s).sum((1, 2)))


def test_identity_form_is_equation_23(graph):
    model = network(structure_mlp=False, structure_hops=1)
    assert model.structure_width == C
    assert not any(name.startswith("g.") for name, _ in model.named_parameters())


def test_dropout_acts_between_layers_only_in_training(graph):
    torch.manual_seed(0)
    model = FedStruct(F, C, hidden=5, layers=2, dropout=0.5)
    inputs = model.prepare(graph)
    assert not torch.equal(model(inputs), model(inputs))
    model.eval()
    torch.testing.assert_close(model(inputs), model(inputs))


def test_wrong_options_are_named():
    with pytest.raises(FedGraphError, match="2 weights for 10 hops"):
        network(beta=[0.5, 0.5])
    with pytest.raises(FedGraphError, match="must be >= 1"):
        network(hops=0)


def test_degrees_are_one_hot():
    features = structure_features.degree_one_hot(np.array([0, 2, 9]), np.array([0, 2, 9]), 4)
    np.testing.assert_array_equal(features, np.eye(4)[[0, 2, 3]])


def test_the_degree_on_directed_edges_is_the_mean_of_both_rounded_to_even():
    features = structure_features.degree_one_hot(np.array([0, 1, 3, 5]), np.array([1, 2, 2, 0]), 6)
    np.testing.assert_array_equal(features.argmax(axis=1), [0, 2, 2, 2])  # 0.5, 1.5, 2.5, 2.5


def test_hop2vec_is_a_clients_own_stream():
    first = structure_features.hop2vec(2000, 8, seed=0, client=1)
    assert abs(first.std() - 0.05) < 0.002
    np.testing.assert_array_equal(first, structure_features.hop2vec(2000, 8, seed=0, client=1))
    assert not np.array_equal(first, structure_features.hop2vec(2000, 8, seed=0, client=2))


def counted(edges: np.ndarray, num_nodes: int, size: int) -> np.ndarray:
    """Number of times that each node is on each orbit, as whole numbers."""
    logs = structure_features.graphlet_degrees(edges, num_nodes, size, "log").astype(np.float64)
    return np.expm1(logs).round().astype(int)


@pytest.mark.parametrize("doubled", [False, True])
def test_graphlet_degrees_by_hand(doubled):
    """A triangle 0-1-2 with a tail 2-3, and an isolated node: orbits counted on paper (Pržulj, 2007, Figure 1)."""
    pytest.importorskip("orbit_count")
    edges = np.array([[0, 1, 2, 2, 3], [1, 2, 0, 3, 3]])
    edges = np.concatenate([edges, edges[::-1]], axis=1) if doubled else edges
    counts = counted(edges, 5, 4)
    assert counts.shape == (5, 15)
    assert counts[:, 0].tolist() == [2, 2, 3, 1, 0]  # orbit 0: the degree
    assert counts[:, 3].tolist() == [1, 1, 1, 0, 0]  # orbit 3: triangles
    assert counts[:, 1].tolist() == [1, 1, 0, 2, 0]  # orbit 1: ends of an induced path of three nodes
    assert counts[:, 2].tolist() == [0, 0, 2, 0, 0]  # orbit 2: middles
    assert counts[3, 9] == 1  # orbits 9 to 11: the tail's end, the triangle's far nodes, its near node
    assert counts[0, 10] == counts[1, 10] == 1
    assert counts[2, 11] == 1


def orbits_by_force(adjacency: np.ndarray, size: int) -> list[tuple[int, ...]]:
    """Count each node as root of each kind of connected induced subgraph of up to ``size`` nodes, by enumeration.

    A kind is the smallest adjacency matrix over all orders of the nodes but the root: as many kinds as orbits.
    """
    n = len(adjacency)
    counts: dict[tuple[int, ...], list[int]] = {}
    for k in range(2, size + 1):
        for nodes in itertools.combinations(range(n), k):
            inside = adjacency[np.ix_(nodes, nodes)]
            if not np.linalg.matrix_power(inside + np.eye(k, dtype=int), k).all():
                continue
            for root in range(k):
                others = [i for i in range(k) if i != root]
                orders = ([root, *order] for order in itertools.permutations(others))
                kind = (k, *min(tuple(inside[np.ix_(o, o)].ravel()) for o in orders))
                counts.setdefault(kind, [0] * n)[nodes[root]] += 1
    return sorted(tuple(vector) for vector in counts.values())


@pytest.mark.parametrize("size", [4, 5])
def test_graphlets_are_those_that_looking_at_all_subgraphs_finds(size):
    pytest.importorskip("orbit_count")
    rng = np.random.default_rng(size)
    edges = rng.integers(8, size=(2, 14))
    dense = undirected(edges[0], edges[1], 8, np.float64).toarray().astype(int)
    counts = counted(edges, 8, size)
    assert sorted(tuple(column) for column in counts.T if column.any()) == orbits_by_force(dense, size)
    assert counts.shape[1] == {4: 15, 5: 73}[size]


def test_graphlets_are_standardised_by_orbit():
    pytest.importorskip("orbit_count")
    edges = np.random.default_rng(0).integers(8, size=(2, 14))
    counts, features = counted(edges, 8, 5).astype(float), structure_features.graphlet_degrees(edges, 8)
    sat_on = counts.std(axis=0) > 0
    assert sat_on.any()
    assert not sat_on.all()
    wanted = (counts[:, sat_on] - counts[:, sat_on].mean(axis=0)) / counts[:, sat_on].std(axis=0)
    np.testing.assert_allclose(features[:, sat_on], wanted, atol=1e-5)
    assert not features[:, ~sat_on].any()


def test_graphlets_that_32_bits_cannot_count_are_refused():
    """A star with 500 leaves: its centre sits on C(500, 4) = 2.6e9 stars of five nodes, and on C(500, 3) = 2.1e7 of four."""
    pytest.importorskip("orbit_count")
    star = np.array([np.zeros(500, int), np.arange(1, 501)])
    logs = structure_features.graphlet_degrees(star, 501, 4, "log").astype(np.float64)
    assert np.expm1(logs)[0, 7] == pytest.approx(math.comb(500, 3), rel=1e-4)
    with pytest.raises(FedGraphError, match="graphlet_size=5 may need counts up to"):
        structure_features.graphlet_degrees(star, 501, size=5)
    assert structure_features.graphlet_degrees(star, 501).shape == (501, 15)
    assert [len(structure_features._rooted_trees(n)) for n in (1, 2, 3, 4, 5)] == [1, 1, 2, 4, 9]


@pytest.mark.parametrize("size", [4, 5])
def test_no_orbit_is_counted_more_often_than_its_tree(size):
    pytest.importorskip("orbit_count")
    rng = np.random.default_rng(size)
    edges = rng.integers(12, size=(2, 30))
    adjacency = undirected(edges[0], edges[1], 12, np.float64)
    counts = counted(edges, 12, size)
    bounds = [structure_features._embeddings(t, adjacency) for t in structure_features._rooted_trees(size)]
    assert (counts.max(axis=1) <= np.max(bounds, axis=0) * (1 + 1e-6)).all()


def two_cliques() -> np.ndarray:
    """Two cliques of six nodes, joined by one edge; node 12 is isolated."""
    pairs = [(a + k, b + k) for k in (0, 6) for a in range(6) for b in range(a)]
    return np.array([*pairs, (0, 6)]).T


def test_walks_follow_edges_and_turn_back_by_p():
    edges = two_cliques()
    adjacency = undirected(edges[0], edges[1], 13, np.float64)
    rng = np.random.default_rng(0)
    walks = structure_features.random_walks(adjacency, np.tile(np.arange(13), 200), 10, 1.0, 1.0, rng)
    dense = adjacency.toarray() + np.diag([0.0] * 12 + [1.0])
    assert (dense[walks[:, :-1], walks[:, 1:]] > 0).all()
    assert (walks[walks[:, 0] == 12] == 12).all()
    back = np.mean(walks[walks[:, 0] < 12][:, 2:] == walks[walks[:, 0] < 12][:, :-2])
    eager = structure_features.random_walks(adjacency, np.tile(np.arange(12), 200), 10, 0.1, 1.0, rng)
    # In a clique of six a walk returns with weight 1/p among four others of weight 1.
    assert back == pytest.approx(1 / 5, abs=0.03)
    assert np.mean(eager[:, 2:] == eager[:, :-2]) == pytest.approx(10 / 14, abs=0.03)


def test_node2vec_puts_a_cliques_nodes_together(tmp_path, monkeypatch):
    pytest.importorskip("gensim")
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    how = {"seed": 0, "epochs": 20}
    vectors = structure_features.kept_node2vec(two_cliques(), 13, 8, **how)
    assert vectors.shape == (13, 8)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = unit @ unit.T
    assert cosine[1:6, 1:6].mean() > cosine[1:6, 7:12].mean() + 0.1
    np.testing.assert_array_equal(vectors, structure_features.node2vec(two_cliques(), 13, 8, **how))
    (kept,) = (tmp_path / "fedgraph").glob("node2vec-*.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr(structure_features, "node2vec", None)  # read, not made again
        np.testing.assert_array_equal(vectors, structure_features.kept_node2vec(two_cliques(), 13, 8, **how))
    kept.write_bytes(b"damaged")
    np.testing.assert_array_equal(vectors, structure_features.kept_node2vec(two_cliques(), 13, 8, **how))
    other = structure_features.kept_node2vec(two_cliques(), 13, 8, **how | {"seed": 1})
    assert not np.array_equal(vectors, other)


def test_protocol_sizes_each_network_by_table_4():
    """Rounds, λ, weight decay, L, L_s and the layers of f and g; GraphSAGE has its own sizes."""
    table = {
        "cora": (40, 0.002, 5e-4, 2, 10, 64, [256]),
        "citeseer": (60, 0.002, 5e-4, 2, 20, 64, [128, 64]),
        "pubmed": (125, 0.008, 1e-3, 2, 20, 128, [128]),
        "chameleon": (60, 0.003, 3e-4, 1, 1, 64, [256]),
        "photo": (150, 0.005, 1e-3, 1, 3, 256, [256]),
        "amazon-ratings": (70, 0.002, 2e-4, 2, 5, 64, [256]),
    }
    for dataset, expected in table.items():
        cfg = compose(["protocol=fedstruct", f"dataset={dataset}", "strategy=fedstruct"])
        params = cfg.model.params
        sizes = (params["hops"], params["structure_hops"], cfg.model.hidden, params["structure_layers"])
        assert (cfg.rounds, cfg.train.lr, cfg.train.weight_decay, *sizes) == expected
        assert params["structure_width"] == 256
        assert (cfg.split.scope, cfg.split.train, cfg.evaluation.select) == ("global", 0.1, "last")
        baseline = compose(["protocol=fedstruct", f"dataset={dataset}", "strategy=fedgrad"])
        assert baseline.model.name == "sage"
        assert baseline.rounds == expected[0]
        assert "structure_hops" not in baseline.model.params
        models.build(baseline.model, F, C)

import numpy as np
import pytest
import torch

from fedgraph_flwr.models.layers import (
    Linear,
    adjacency,
    dropout,
    gcn_adjacency,
    mean_adjacency,
    no_adjacency,
    propagate,
    random_walk_adjacency,
)
from fedgraph_flwr.numerics.sparse import SparseMatrix

# directed; node 2 has a loop, node 4 only sends, node 5 is alone, 0 → 1 is stored twice
EDGES = torch.tensor([[0, 0, 1, 2, 2, 3, 4, 4], [1, 1, 2, 2, 0, 2, 0, 3]])
N = 6


def dense_counts() -> np.ndarray:
    a = np.zeros((N, N))
    for source, target in EDGES.T.tolist():
        a[target, source] += 1
    return a


def test_rows_are_targets():
    np.testing.assert_array_equal(adjacency(EDGES, N).toarray(), dense_counts())


def test_gcn_adjacency_equals_its_formula():
    a = dense_counts()
    np.fill_diagonal(a, 1)
    d = a.sum(1)
    np.testing.assert_allclose(gcn_adjacency(EDGES, N).toarray(), a / np.sqrt(np.outer(d, d)), rtol=1e-12)


def test_gcn_adjacency_equals_pyg_on_a_directed_graph():
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    (source, target), weight = gcn_norm(EDGES, num_nodes=N, dtype=torch.float64)
    theirs = torch.zeros(N, N, dtype=torch.float64).index_put((target, source), weight, accumulate=True)
    np.testing.assert_allclose(gcn_adjacency(EDGES, N).toarray(), theirs.numpy(), rtol=1e-12)


def test_mean_adjacency_averages_what_arrives():
    a = dense_counts()
    d = a.sum(1, keepdims=True)
    ours = mean_adjacency(EDGES, N).toarray()
    np.testing.assert_allclose(ours, np.divide(a, d, out=np.zeros_like(a), where=d > 0), rtol=1e-12)
    np.testing.assert_array_equal(ours.sum(1), [1, 1, 1, 1, 0, 0])  # nothing arrives at 4 and 5


def test_random_walk_adjacency_includes_the_node_once():
    a = dense_counts()
    np.fill_diagonal(a, 1)
    ours = random_walk_adjacency(EDGES, N).toarray()
    np.testing.assert_allclose(ours, a / a.sum(1, keepdims=True), rtol=1e-12)
    assert ours[5, 5] == 1


@pytest.mark.parametrize("build", [gcn_adjacency, mean_adjacency, random_walk_adjacency, no_adjacency])
def test_adjacency_without_edges_or_nodes(build):
    none = torch.zeros(2, 0, dtype=torch.int64)
    assert build(none, 3).shape == (3, 3)
    assert build(none, 0).shape == (0, 0)
    assert np.isfinite(build(none, 3).toarray()).all()


def test_propagate_combines_powers():
    p = random_walk_adjacency(EDGES, N).toarray()
    h = torch.randn(N, 2, dtype=torch.float64)
    weights = np.array([[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]])
    expected = [0.5 * p + 2 * p @ p @ p, p @ p]
    ours = propagate(SparseMatrix(p, torch.float64), weights, h)
    torch.testing.assert_close(ours, torch.stack([torch.from_numpy(m) @ h for m in expected]))


def test_linear_takes_sparse_features():
    x = torch.randn(5, 8, dtype=torch.float64) * (torch.rand(5, 8) < 0.3)
    layer = Linear(8, 3).double()
    torch.testing.assert_close(layer(SparseMatrix(x.numpy(), torch.float64)), x @ layer.weight + layer.bias)


def test_initialisation_is_glorots():
    """Uniform in ±√(6 / (fan_in + fan_out)), bias zero."""
    torch.manual_seed(0)
    layer = Linear(400, 200)
    bound = np.sqrt(6 / 600)
    assert 0.99 * bound < layer.weight.abs().max() <= bound
    assert float(layer.weight.detach().std()) == pytest.approx(bound / np.sqrt(3), rel=0.01)
    assert not layer.bias.any()


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.75])
def test_dropout_keeps_the_expectation(p):
    """400 000 draws: share and mean lie within five standard errors."""
    torch.manual_seed(0)
    out = dropout(torch.ones(1000, 400, dtype=torch.float64), p, True)
    kept = (out != 0).double().mean().item()
    error = 5 * np.sqrt(p * (1 - p) / 400_000)
    assert abs(kept - (1 - p)) < error
    assert abs(out.mean().item() - 1) < error / (1 - p)
    values = out[out != 0].unique()
    assert values.numel() == 1  # all kept entries are scaled alike
    assert values.item() == pytest.approx(1 / (1 - p), rel=1e-4)


def test_dropout_draws_independently_along_rows_and_columns():
    torch.manual_seed(0)
    kept = (dropout(torch.ones(4000, 16), 0.5, True) != 0).double()
    correlation = np.corrcoef(kept.T.numpy()) - np.eye(16)
    assert np.abs(correlation).max() < 5 / np.sqrt(4000)
    assert abs(np.corrcoef(kept[:-1].flatten(), kept[1:].flatten())[0, 1]) < 5 / np.sqrt(64_000)


def test_dropout_follows_the_seed_whatever_the_type():
    def draw(dtype: torch.dtype) -> torch.Tensor:
        torch.manual_seed(7)
        return dropout(torch.ones(7, 9, dtype=dtype), 0.3, True) != 0

    assert torch.equal(draw(torch.float32), draw(torch.float64))
    torch.manual_seed(8)
    assert not torch.equal(draw(torch.float32), dropout(torch.ones(7, 9), 0.3, True) != 0)


def test_dropout_gradient_is_the_mask():
    torch.manual_seed(0)
    x = torch.randn(5, 3, requires_grad=True)
    out = dropout(x, 0.5, True)
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(out != 0, 2.0, 0.0))


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.9, False)])
def test_dropout_that_is_off_draws_nothing(p, training):
    x, before = torch.randn(4, 4), torch.random.get_rng_state()
    assert dropout(x, p, training) is x
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("p", [1e-9, 1 - 1e-9])
def test_dropout_stays_finite_at_the_ends(p):
    assert torch.isfinite(dropout(torch.ones(1000), p, True)).all()

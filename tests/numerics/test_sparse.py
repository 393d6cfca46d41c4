import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedgraph_flwr.numerics.sparse import Pattern, SmoothedRows, SparseMatrix


def some_matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """A third of the entries, with an empty row and an empty column."""
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.3)
    dense[1] = 0
    dense[:, 2] = 0
    return dense


@pytest.mark.parametrize("width", [1, 3, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_product_equals_dense_product(width, dtype):
    dense, h = some_matrix(7, 5), torch.randn(5, width, dtype=dtype)
    expected = torch.from_numpy(dense).to(dtype) @ h
    for given in (dense, sp.coo_matrix(dense), sp.csc_matrix(dense)):
        torch.testing.assert_close(SparseMatrix(given, dtype) @ h, expected)


def test_transpose_is_the_transposed_product():
    dense, g = some_matrix(7, 5), torch.randn(7, 3, dtype=torch.float64)
    matrix = SparseMatrix(dense, torch.float64)
    assert matrix.T.shape == (5, 7)
    torch.testing.assert_close(matrix.T @ g, torch.from_numpy(dense).T @ g)
    torch.testing.assert_close(matrix.T.T.to_dense(), torch.from_numpy(dense))


def test_entries_of_some_columns_alone():
    dense, kept = some_matrix(7, 5), torch.tensor([True, False, True, True, False])
    some = SparseMatrix(dense, torch.float64).of_columns(kept)
    wanted = SparseMatrix(dense * kept.numpy(), torch.float64)
    assert some.shape == (7, 5)
    for mine, its in zip(some.rows + some.transposed, wanted.rows + wanted.transposed, strict=True):
        assert torch.equal(mine, its)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_smoothed_rows_are_the_powers_beside_each_other(steps):
    x, s = some_matrix(7, 5), some_matrix(7, 7, seed=1)
    smoothed = SmoothedRows(SparseMatrix(x, torch.float64), SparseMatrix(s, torch.float64), steps)
    whole = torch.from_numpy(np.concatenate([np.linalg.matrix_power(s, k) @ x for k in range(steps + 1)], 1))
    right, g = torch.randn(5 * (steps + 1), 3, dtype=torch.float64, requires_grad=True), torch.randn(7, 3).double()
    product = smoothed @ right
    product.backward(g)
    torch.testing.assert_close(product, whole @ right)
    torch.testing.assert_close(right.grad, whole.T @ g)


def test_duplicate_entries_are_summed_once():
    matrix = SparseMatrix(sp.coo_matrix(([1.0, 2.0], ([0, 0], [1, 1])), shape=(2, 2)), torch.float64)
    assert matrix.nnz == 1
    torch.testing.assert_close(matrix @ torch.eye(2, dtype=torch.float64), torch.tensor([[0.0, 3], [0, 0]]).double())


@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (3, 0)])
def test_a_matrix_without_entries_gives_zeros(shape):
    h = torch.randn(shape[1], 2, requires_grad=True)
    out = SparseMatrix(sp.csr_matrix(shape)) @ h
    out.sum().backward()
    torch.testing.assert_close(out, torch.zeros(shape[0], 2))
    torch.testing.assert_close(h.grad, torch.zeros_like(h))


def test_gradient_is_the_transpose_times_what_arrives():
    """Not symmetric, not square: Sᵀ G and S G differ."""
    dense = some_matrix(7, 5)
    matrix = SparseMatrix(dense, torch.float64)
    h = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    g = torch.randn(7, 3, dtype=torch.float64)
    (matrix @ h).backward(g)
    torch.testing.assert_close(h.grad, torch.from_numpy(dense).T @ g)
    assert torch.autograd.gradcheck(lambda z: (matrix @ z).tanh(), (h,))


def test_gradients_that_are_not_contiguous_are_read_right():
    """A sum's gradient is one number expanded, a transpose's has its strides swapped."""
    dense = some_matrix(7, 5)
    matrix = SparseMatrix(dense, torch.float64)
    for read in (torch.sum, lambda out: (out.T @ torch.arange(7.0, dtype=torch.float64)).sum()):
        h = torch.randn(3, 5, dtype=torch.float64).T.requires_grad_()
        read(matrix @ h).backward()
        expected = torch.autograd.grad(read(torch.from_numpy(dense) @ h), h)[0]
        torch.testing.assert_close(h.grad, expected)


def test_batched_gradients_equal_single_ones():
    """One backward pass for all output rows at once, as per-node gradients need it."""
    matrix = SparseMatrix(some_matrix(7, 5), torch.float64)
    h = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    out = (matrix @ h).pow(2).sum(1)
    rows = torch.eye(7, dtype=torch.float64)
    batched = torch.autograd.grad(out, h, rows, retain_graph=True, is_grads_batched=True)[0]
    single = torch.stack([torch.autograd.grad(out, h, row, retain_graph=True)[0] for row in rows])
    torch.testing.assert_close(batched, single)


def test_conversion_keeps_values_and_shape():
    matrix = SparseMatrix(some_matrix(7, 5), torch.float64)
    moved = matrix.to("cpu", torch.float32)
    assert (moved.shape, moved.nnz, moved.rows.value.dtype, moved.transposed.value.dtype) == (
        (7, 5),
        matrix.nnz,
        torch.float32,
        torch.float32,
    )
    torch.testing.assert_close(moved.to_dense().double(), matrix.to_dense(), rtol=1e-6, atol=0)


def test_pattern_products_and_gradients():
    """A matrix whose values carry gradient, against the dense one it stands for."""
    row, col = torch.tensor([0, 0, 2, 3, 3]), torch.tensor([1, 3, 2, 0, 3])
    pattern = Pattern(row, col, 4)
    values = torch.randn(5, dtype=torch.float64, requires_grad=True)
    h = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    dense = torch.zeros(4, 4, dtype=torch.float64).index_put((row, col), values)
    torch.testing.assert_close(pattern.product(values, h), dense @ h)
    torch.testing.assert_close(pattern.row_sum(values), dense.sum(1))
    torch.testing.assert_close(pattern.dot(h, 2 * h), (h @ (2 * h).T)[row, col])
    assert torch.autograd.gradcheck(pattern.product, (values, h))
    assert torch.autograd.gradcheck(pattern.dot, (h, torch.randn(4, 3, dtype=torch.float64, requires_grad=True)))

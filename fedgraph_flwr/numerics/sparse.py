"""Constant sparse matrices as left operands of a product, prepared once and differentiable in the right operand."""

import warnings
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.numerics.streams import UnderVmap

Device: TypeAlias = torch.device | str

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")


class CsrRows(NamedTuple):
    """A matrix [R, K] by compressed rows: row r has the entries pointer[r]:pointer[r + 1].

    Attributes:
        pointer: int64 [R + 1].
        col: int64 [E].
        value: [E].
    """

    pointer: Tensor
    col: Tensor
    value: Tensor

    def times(self, dense: Tensor) -> Tensor:
        """S @ D, [K, H] → [R, H]. On a CPU as weighted sums of embeddings, up to four times as fast as torch's CSR."""
        if dense.is_cuda or dense.dim() != 2:
            return self.tensor(dense.size(0)) @ dense
        return torch.embedding_bag(
            dense, self.col, self.pointer, mode=0, per_sample_weights=self.value, include_last_offset=True
        )[0]  # mode 0: sum

    def of_entries(self, kept: Tensor) -> "CsrRows":
        """Return the matrix with only the kept entries, bool [E]."""
        before = torch.nn.functional.pad(kept.cumsum(0), (1, 0))
        return CsrRows(before[self.pointer], self.col[kept], self.value[kept])

    def tensor(self, columns: int) -> Tensor:
        """Convert to torch's CSR tensor [R, K]."""
        return torch.sparse_csr_tensor(self.pointer, self.col, self.value, (self.pointer.numel() - 1, columns))

    def to(self, device: Device, dtype: torch.dtype | None = None) -> "CsrRows":
        """Return a copy on a device with values of a dtype."""
        return CsrRows(self.pointer.to(device), self.col.to(device), self.value.to(device, dtype or self.value.dtype))


class _Product(torch.autograd.Function):
    """S @ D with a stored transpose of S, so that neither pass converts a layout."""

    @staticmethod
    def forward(ctx: Any, rows: CsrRows, transposed: CsrRows, dense: Tensor) -> Tensor:
        ctx.transposed = transposed
        # Detached, because otherwise the kernel prepares its own backward pass.
        return rows.times(dense.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, Tensor]:
        if torch._C._are_functorch_transforms_active():  # autograd.grad under torch.func.vmap
            return None, None, _BatchedProduct.apply(ctx.transposed, grads[0])
        return None, None, ctx.transposed.times(grads[0])


def product(rows: CsrRows, transposed: CsrRows, dense: Tensor) -> Tensor:
    """S @ D [K, H] → [R, H] with a stored transpose of S, differentiable in D."""
    return _Product.apply(rows, transposed, dense)


class _BatchedProduct(UnderVmap):
    """S @ D for a batch of D under torch's vmap, as one product over the batch's columns; much slower to call."""

    @staticmethod
    def forward(rows: CsrRows, dense: Tensor) -> Tensor:
        return rows.times(dense)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], rows: CsrRows, dense: Tensor) -> tuple[Tensor, int]:
        columns = dense.movedim(in_dims[1], 1)  # [K, B, H]
        return rows.times(columns.flatten(1)).unflatten(1, columns.shape[1:]), 1


class SparseMatrix:
    """A constant sparse matrix in CSR with its transpose: ``S @ D`` [R, K] @ [K, H] → [R, H], gradient Sᵀ @ G.

    Args:
        matrix: any SciPy sparse matrix, shape [R, K].
        dtype: dtype of the values.
    """

    def __init__(self, matrix: Any, dtype: torch.dtype = torch.float32):
        csr = sp.csr_matrix(matrix)
        csr.sum_duplicates()
        self.shape: tuple[int, int] = csr.shape
        self.rows, self.transposed = _rows(csr, dtype), _rows(csr.T.tocsr(), dtype)

    @classmethod
    def _of(cls, shape: tuple[int, int], rows: CsrRows, transposed: CsrRows) -> "SparseMatrix":
        made = object.__new__(cls)
        made.shape, made.rows, made.transposed = shape, rows, transposed
        return made

    @classmethod
    def from_parts(cls, parts: dict[str, Tensor], shape: tuple[int, int]) -> "SparseMatrix":
        """Create a matrix from the result of `parts`."""
        return cls._of(
            shape,
            CsrRows(parts["crow"], parts["col"], parts["value"]),
            CsrRows(parts["crow_t"], parts["col_t"], parts["value_t"]),
        )

    def parts(self) -> dict[str, Tensor]:
        """Return its tensors by name for storage."""
        names = ("crow", "col", "value")
        forth = dict(zip(names, self.rows, strict=True))
        return forth | {f"{name}_t": tensor for name, tensor in zip(names, self.transposed, strict=True)}

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return int(self.rows.value.numel())

    @property
    def T(self) -> "SparseMatrix":
        """Transpose that shares memory."""
        return self._of((self.shape[1], self.shape[0]), self.transposed, self.rows)

    mT = T  # torch's name for it, for one matrix or a stack

    def to(self, device: Device, dtype: torch.dtype | None = None) -> "SparseMatrix":
        """Return a copy on a device with a dtype."""
        return self._of(self.shape, self.rows.to(device, dtype), self.transposed.to(device, dtype))

    def of_columns(self, kept: Tensor) -> "SparseMatrix":
        """Remove the entries of other columns than the kept ones, bool [K]; the shape is unchanged."""
        rows, transposed = self.rows, self.transposed
        stays = (kept[rows.col], kept.repeat_interleave(transposed.pointer.diff()))
        return self._of(self.shape, *(part.of_entries(k) for part, k in zip((rows, transposed), stays, strict=True)))

    def to_dense(self) -> Tensor:
        """[R, K]."""
        return self.rows.tensor(self.shape[1]).to_dense()

    def __matmul__(self, dense: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.rows.times(dense.detach())
        return product(self.rows, self.transposed, dense)


def row_sums(matrix: Any) -> NDArray[np.float64]:
    """Return the sum of each row of a SciPy matrix, [R]."""
    return np.asarray(matrix.sum(axis=1)).ravel()


def _rows(csr: Any, dtype: torch.dtype) -> CsrRows:
    return CsrRows(
        torch.from_numpy(csr.indptr.astype(np.int64)),
        torch.from_numpy(csr.indices.astype(np.int64)),
        torch.from_numpy(csr.data).to(dtype),
    )


class BlockMatrix(SparseMatrix):
    """A matrix [R, K] for one step, with as many rows as are read later; its transpose is made only if a gradient needs it."""

    def __init__(self, rows: CsrRows, columns: int):
        self.shape = rows.pointer.numel() - 1, columns
        self.rows = rows

    @classmethod
    def of(cls, matrix: Any) -> "BlockMatrix":
        """Return SciPy's CSR matrix with its values' dtype."""
        return cls(_rows(matrix, torch.from_numpy(matrix.data).dtype), matrix.shape[1])

    def to(self, device: Device, dtype: torch.dtype | None = None) -> "BlockMatrix":
        """Return a copy on a device with a dtype."""
        return BlockMatrix(self.rows.to(device, dtype), self.shape[1])

    @cached_property
    def transposed(self) -> CsrRows:  # type: ignore[override]
        """Rows of the transpose."""
        pointer, col, value = (part.cpu().numpy() for part in self.rows)
        flipped = sp.csr_matrix((value, col, pointer), self.shape).T.tocsr()
        return _rows(flipped, self.rows.value.dtype).to(self.rows.value.device)

    def __matmul__(self, dense: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and dense.requires_grad):
            return self.rows.times(dense.detach())
        return product(self.rows, self.transposed, dense)


class _Constant(torch.autograd.Function):
    """X @ D of a constant X [G, K], D [K, H]. Where H is small, (Gᵀ X)ᵀ takes half the time of autograd's Xᵀ G."""

    @staticmethod
    def forward(ctx: Any, constant: Tensor, right: Tensor) -> Tensor:
        ctx.constant = constant
        return constant @ right

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, (grads[0].mT @ ctx.constant).mT


class StackedRows:
    """Sparse rows above dense rows, [R + G, K], each with its own product in ``M @ D``."""

    def __init__(self, sparse: SparseMatrix, dense: Tensor):
        self.sparse, self.dense = sparse, dense

    def __matmul__(self, right: Tensor) -> Tensor:
        return torch.cat([self.sparse @ right, _Constant.apply(self.dense, right)])


class SmoothedRows:
    """[X, S X, .., S^K X] of sparse X [N, F] and S [N, N], never formed.

    ``M @ D`` is Σ_k S^k (X D_k), where D_k are the F rows of D from k F on.
    """

    def __init__(self, x: SparseMatrix, step: SparseMatrix, steps: int):
        self.x, self.step, self.steps = x, step, steps

    def __matmul__(self, right: Tensor) -> Tensor:
        first, *others = (self.x @ block for block in reversed(right.chunk(self.steps + 1)))
        total = first
        for product in others:
            total = self.step @ total + product
        return total


class Pattern:
    """Pattern of a sparse matrix [N, N]; its values are separate tensors, which may require gradients.

    The two products are each other's backward pass, so they need O(E) memory in addition to the operands, never E x H.

    Args:
        row: row of each entry, int64 [E], ascending.
        col: column of each entry, int64 [E].
        num_nodes: N.
    """

    def __init__(self, row: Tensor, col: Tensor, num_nodes: int):
        self.row, self.col, self.num_nodes = row, col, num_nodes
        self.pointer = _pointer(row, num_nodes)

    def to(self, device: Device, dtype: torch.dtype | None = None) -> "Pattern":
        """Return a copy on a device; ``dtype`` has no effect, because a pattern has no values."""
        return Pattern(self.row.to(device), self.col.to(device), self.num_nodes)

    def matrix(self, values: Tensor) -> CsrRows:
        """Return the matrix with these values [E]."""
        return CsrRows(self.pointer, self.col, values)

    def transposed(self, values: Tensor) -> CsrRows:
        """Transposed pattern."""
        pointer, row, order = self._flipped
        return CsrRows(pointer, row, values[order])

    def dot(self, left: Tensor, right: Tensor) -> Tensor:
        """<left_row, right_col> for each entry: [N, H], [N, H] → [E]."""
        return _Dot.apply(self, left, right)

    def product(self, values: Tensor, dense: Tensor) -> Tensor:
        """Multiply the matrix with these values by a dense one: [E], [N, H] → [N, H]."""
        return _ValuedProduct.apply(self, values, dense)

    def row_sum(self, values: Tensor) -> Tensor:
        """Sum of each row's values: [E] → [N]."""
        return values.new_zeros(self.num_nodes).index_add(0, self.row, values)

    def row_max(self, values: Tensor) -> Tensor:
        """Maximum of each row's values, −inf for an empty row: [E] → [N]."""
        return values.new_full((self.num_nodes,), -torch.inf).scatter_reduce(0, self.row, values, "amax")

    @cached_property
    def _flipped(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return pointer, columns and entry indices of the transpose, for the backward pass."""
        order = torch.argsort(self.col, stable=True)
        return _pointer(self.col[order], self.num_nodes), self.row[order], order


class ValuedMatrix:
    """Matrix [N, N] of a pattern and values [E] that may require gradients: ``M @ D`` like a `SparseMatrix`."""

    def __init__(self, pattern: Pattern, values: Tensor):
        self.pattern, self.values = pattern, values

    @property
    def shape(self) -> tuple[int, int]:
        """(N, N)."""
        return self.pattern.num_nodes, self.pattern.num_nodes

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.pattern.product(self.values, dense)


def _pointer(ascending: Tensor, num_nodes: int) -> Tensor:
    return torch.searchsorted(ascending, torch.arange(num_nodes + 1, device=ascending.device))


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: Pattern, left: Tensor, right: Tensor) -> Tensor:
        ctx.pattern = pattern
        ctx.save_for_backward(left, right)
        entries = pattern.matrix(left.new_zeros(pattern.col.numel())).tensor(pattern.num_nodes)
        return torch.sparse.sampled_addmm(entries, left, right.T, beta=0.0).values()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor]:
        left, right = ctx.saved_tensors
        entries, transposed = ctx.pattern.matrix(grads[0]), ctx.pattern.transposed(grads[0])
        return None, entries.times(right), transposed.times(left)


class _ValuedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: Pattern, values: Tensor, dense: Tensor) -> Tensor:
        ctx.pattern = pattern
        ctx.save_for_backward(values, dense)
        return pattern.matrix(values).times(dense)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, Tensor]:
        values, dense = ctx.saved_tensors
        grad_values = ctx.pattern.dot(grads[0], dense) if ctx.needs_input_grad[1] else None
        return None, grad_values, ctx.pattern.transposed(values).times(grads[0])

"""Fixed sparse matrices that stand on the left of a product, prepared once and differentiable in the right operand."""

import warnings
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")


def _multiply(csr: Tensor, dense: Tensor) -> Tensor:
    """S @ D. On a CPU through the weighted sums of embeddings, which is up to four times as fast as CSR."""
    if dense.is_cuda or dense.dim() != 2:
        return csr @ dense
    return torch.embedding_bag(
        dense,
        csr.col_indices(),
        csr.crow_indices(),
        mode=0,  # sum
        per_sample_weights=csr.values(),
        include_last_offset=True,
    )[0]


class _Product(torch.autograd.Function):
    """S @ D with the transpose of S at hand, so that neither pass converts a layout."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, transposed: Tensor, dense: Tensor) -> Tensor:
        ctx.transposed = transposed
        # Detached, or the kernel prepares a backward pass of its own.
        return _multiply(matrix, dense.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, Tensor]:
        if torch._C._are_functorch_transforms_active():  # autograd.grad under torch.func.vmap
            return None, None, _BatchedProduct.apply(ctx.transposed, grads[0])
        return None, None, _multiply(ctx.transposed, grads[0])


class _BatchedProduct(torch.autograd.Function):
    """S @ D for a batch of D under torch's vmap, as one product whose columns are the batch's; far slower to call."""

    @staticmethod
    def forward(matrix: Tensor, dense: Tensor) -> Tensor:
        return _multiply(matrix, dense)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], matrix: Tensor, dense: Tensor) -> tuple[Tensor, int]:
        columns = dense.movedim(in_dims[1], 1)  # [K, B, H]
        return _multiply(matrix, columns.flatten(1)).unflatten(1, columns.shape[1:]), 1


class SparseMatrix:
    """A constant sparse matrix in CSR with its transpose: ``S @ D`` [R, K] @ [K, H] → [R, H], gradient Sᵀ @ G.

    Args:
        matrix: any SciPy sparse matrix, shape [R, K].
        dtype: of the values.
    """

    def __init__(self, matrix: Any, dtype: torch.dtype = torch.float32):
        csr = sp.csr_matrix(matrix)
        csr.sum_duplicates()
        self.shape: tuple[int, int] = csr.shape
        self.csr = _to_torch(csr, dtype)
        self.transposed = _to_torch(csr.T.tocsr(), dtype)

    @classmethod
    def from_parts(cls, parts: dict[str, Tensor], shape: tuple[int, int]) -> "SparseMatrix":
        """From what `parts` gave."""
        made = object.__new__(cls)
        made.shape = shape
        crow, col, value = parts["crow"], parts["col"], parts["value"]
        made.csr = torch.sparse_csr_tensor(crow, col, value, shape)
        crow, col, value = parts["crow_t"], parts["col_t"], parts["value_t"]
        made.transposed = torch.sparse_csr_tensor(crow, col, value, (shape[1], shape[0]))
        return made

    def parts(self) -> dict[str, Tensor]:
        """Its tensors by name, to be stored."""
        sides = {"": self.csr, "_t": self.transposed}
        return {
            f"{name}{side}": tensor
            for side, csr in sides.items()
            for name, tensor in (("crow", csr.crow_indices()), ("col", csr.col_indices()), ("value", csr.values()))
        }

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return int(self.csr.values().numel())

    @property
    def T(self) -> "SparseMatrix":
        """The transpose, sharing memory."""
        flipped = object.__new__(SparseMatrix)
        flipped.shape, flipped.csr, flipped.transposed = (self.shape[1], self.shape[0]), self.transposed, self.csr
        return flipped

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "SparseMatrix":
        """A copy on a device, and of a type."""
        moved = object.__new__(SparseMatrix)
        moved.shape = self.shape
        moved.csr = self.csr.to(device=device, dtype=dtype or self.csr.dtype)
        moved.transposed = self.transposed.to(device=device, dtype=dtype or self.csr.dtype)
        return moved

    def __matmul__(self, dense: Tensor) -> Tensor:
        return _Product.apply(self.csr, self.transposed, dense)


def _to_torch(csr: Any, dtype: torch.dtype) -> Tensor:
    return torch.sparse_csr_tensor(
        torch.from_numpy(csr.indptr.astype(np.int64)),
        torch.from_numpy(csr.indices.astype(np.int64)),
        torch.from_numpy(csr.data).to(dtype),
        csr.shape,
    )


class Pattern:
    """Where a sparse matrix [N, N] has entries; its values are tensors of their own, which may carry gradient.

    The two products are each other's backward pass, so memory is O(E) beside the operands, never E x H.

    Args:
        row: of each entry, int64 [E], ascending.
        col: of each entry, int64 [E].
        num_nodes: N.
    """

    def __init__(self, row: Tensor, col: Tensor, num_nodes: int):
        self.row, self.col, self.num_nodes = row, col, num_nodes
        self.pointer = _pointer(row, num_nodes)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Pattern":
        """A copy on a device; it holds no values, so ``dtype`` changes nothing."""
        return Pattern(self.row.to(device), self.col.to(device), self.num_nodes)

    def matrix(self, values: Tensor) -> Tensor:
        """The matrix with these values [E], as a CSR tensor."""
        return torch.sparse_csr_tensor(self.pointer, self.col, values, (self.num_nodes,) * 2)

    def transposed(self, values: Tensor) -> Tensor:
        """Its transpose, as a CSR tensor."""
        pointer, row, order = self._flipped
        return torch.sparse_csr_tensor(pointer, row, values[order], (self.num_nodes,) * 2)

    def dot(self, left: Tensor, right: Tensor) -> Tensor:
        """<left_row, right_col> for each entry: [N, H], [N, H] → [E]."""
        return _Dot.apply(self, left, right)

    def product(self, values: Tensor, dense: Tensor) -> Tensor:
        """The matrix with these values times a dense one: [E], [N, H] → [N, H]."""
        return _ValuedProduct.apply(self, values, dense)

    def row_sum(self, values: Tensor) -> Tensor:
        """Sum of each row's values: [E] → [N]."""
        return values.new_zeros(self.num_nodes).index_add(0, self.row, values)

    @cached_property
    def _flipped(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of the transpose: pointer, columns, and which entry each is. Only a backward pass needs it."""
        order = torch.argsort(self.col, stable=True)
        return _pointer(self.col[order], self.num_nodes), self.row[order], order


def _pointer(ascending: Tensor, num_nodes: int) -> Tensor:
    return torch.searchsorted(ascending, torch.arange(num_nodes + 1, device=ascending.device))


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: Pattern, left: Tensor, right: Tensor) -> Tensor:
        ctx.pattern = pattern
        ctx.save_for_backward(left, right)
        entries = pattern.matrix(left.new_zeros(pattern.col.numel()))
        return torch.sparse.sampled_addmm(entries, left, right.T, beta=0.0).values()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor]:
        left, right = ctx.saved_tensors
        entries, transposed = ctx.pattern.matrix(grads[0]), ctx.pattern.transposed(grads[0])
        return None, _multiply(entries, right), _multiply(transposed, left)


class _ValuedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: Pattern, values: Tensor, dense: Tensor) -> Tensor:
        ctx.pattern = pattern
        ctx.save_for_backward(values, dense)
        return _multiply(pattern.matrix(values), dense)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, Tensor]:
        values, dense = ctx.saved_tensors
        grad_values = ctx.pattern.dot(grads[0], dense) if ctx.needs_input_grad[1] else None
        return None, grad_values, _multiply(ctx.pattern.transposed(values), grads[0])

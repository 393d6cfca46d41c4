"""Fixed sparse matrices that stand on the left of a product, prepared once and differentiable in the right operand."""

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")


class _Product(torch.autograd.Function):
    """S @ D with the transpose of S at hand, so that neither pass converts a layout."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, transposed: Tensor, dense: Tensor) -> Tensor:
        ctx.transposed = transposed
        return matrix @ dense

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, Tensor]:
        return None, None, ctx.transposed @ grads[0]


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
        return _Product.apply(self.csr, self.transposed, dense)  # type: ignore[no-any-return]


def _to_torch(csr: Any, dtype: torch.dtype) -> Tensor:
    return torch.sparse_csr_tensor(
        torch.from_numpy(csr.indptr.astype(np.int64)),
        torch.from_numpy(csr.indices.astype(np.int64)),
        torch.from_numpy(csr.data).to(dtype),
        csr.shape,
    )

"""Stacked inputs of several clients, for a model that runs on all of them at once under `torch.func.vmap`.

Graphs of M clients are padded to the rows of the largest. Padding rows have no edges and no labels. Dense tensors become
[M, N, ...], and sparse matrices the blocks of one matrix, so that every product is one call for any M. A model under vmap sees
shapes of one client, [N, ...].
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import CsrRows, SparseMatrix
from fedgraph_flwr.numerics.streams import UnderVmap, batch_first

IGNORED = -100
"""Label of a padding row; torch's losses ignore it."""


class StackedMatrix(SparseMatrix):
    """Blocks S_1..S_M of one matrix; under vmap ``S @ D`` is S_i D_i for each i, [R, K] @ [K, H] → [R, H].

    Args:
        blocks: S_i [R_i, K_i].
        rows: R, the rows of each block after padding.
        columns: K, the columns of each block after padding.
    """

    def __init__(self, blocks: Sequence[SparseMatrix], rows: int, columns: int):
        self.shape = rows, columns
        self.rows = _diagonal([block.rows for block in blocks], rows, columns)
        self.transposed = _diagonal([block.transposed for block in blocks], columns, rows)

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.times(dense) if dense.dim() == 3 else _BlockProduct.apply(self, dense)

    def times(self, dense: Tensor) -> Tensor:
        """S_i D_i of all: [M, K, H] → [M, R, H]."""
        return super().__matmul__(dense.flatten(0, 1)).unflatten(0, (len(dense), -1))


def _diagonal(blocks: Sequence[CsrRows], rows: int, columns: int) -> CsrRows:
    """Place blocks [R_i, K_i] along the diagonal of a matrix [M R, M K]."""
    pointers, cols, start = [blocks[0].pointer.new_zeros(1)], [], 0
    for index, block in enumerate(blocks):
        pointer = block.pointer[1:] + start
        start += block.col.numel()
        pointers += [pointer, pointer.new_full((rows - pointer.numel(),), start)]
        cols.append(block.col + index * columns)
    return CsrRows(torch.cat(pointers), torch.cat(cols), torch.cat([block.value for block in blocks]))


class _BlockProduct(UnderVmap):
    """`StackedMatrix` times a batch of dense matrices; exists only under vmap."""

    @staticmethod
    def forward(matrix: StackedMatrix, dense: Tensor) -> Tensor:
        raise RuntimeError("blocks of several clients can only be multiplied inside vmap")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], matrix: StackedMatrix, dense: Tensor) -> tuple[Tensor, int]:
        return matrix.times(batch_first(info, in_dims[1], dense)), 0


def stackable(inputs: Any) -> bool:
    """Whether inputs can be stacked: rows are nodes, and so are the columns of sparse matrices other than X."""
    return isinstance(inputs, Inputs) and all(
        (isinstance(value, Tensor) and len(value) == rows_of(inputs))
        or (isinstance(value, SparseMatrix) and (name == "x" or value.shape == inputs.adj.shape))
        for name, value in _fields(inputs).items()
    )


def kinds(inputs: Inputs) -> tuple[Any, ...]:
    """Return the common properties of stackable inputs: type of each field, and its width if that is not a number of nodes."""
    return tuple(
        (name, type(value), value.shape[1:] if isinstance(value, Tensor) or name == "x" else ())
        for name, value in _fields(inputs).items()
    )


def rows_of(inputs: Inputs) -> int:
    """Return N, the number of nodes of a model's input."""
    return inputs.adj.shape[0]


def stack_inputs(
    members: Sequence[Inputs], sizes: Sequence[int], rows: int
) -> tuple[Callable[[dict[str, Tensor]], Inputs], dict[str, Tensor]]:
    """Stack the inputs of several clients.

    Args:
        members: compatible inputs, per client.
        sizes: N_i, nodes per client.
        rows: N, rows after padding, at least the largest N_i.

    Returns:
        A function from one client's dense tensors by field to its inputs, and the stacked dense tensors [M, N, ...].
    """
    fields = [_fields(member) for member in members]
    dense: dict[str, Tensor] = {}
    sparse: dict[str, SparseMatrix] = {}
    for name, first in fields[0].items():
        values = [contents[name] for contents in fields]
        if isinstance(first, Tensor):
            dense[name] = padded(values, rows)
        else:
            sparse[name] = StackedMatrix(values, rows, first.shape[1] if name == "x" else rows)

    def of_one(tensors: dict[str, Tensor]) -> Inputs:
        changed: dict[str, Any] = {**sparse, **tensors}
        return dataclasses.replace(members[0], **changed)

    return of_one, dense


def constants(inputs: Inputs) -> list[Any]:
    """Return the fields of inputs that are stacked."""
    return list(_fields(inputs).values())


def _fields(inputs: Inputs) -> dict[str, Any]:
    named = {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}
    return {name: value for name, value in named.items() if value is not None}


def padded(tensors: Sequence[Tensor], rows: int, fill: float = 0) -> Tensor:
    """Stack tensors [N_i, ...], padded to ``rows``: [M, rows, ...]."""
    made = tensors[0].new_full((len(tensors), rows, *tensors[0].shape[1:]), fill)
    for index, tensor in enumerate(tensors):
        made[index, : len(tensor)] = tensor
    return made

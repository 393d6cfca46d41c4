"""Exact outputs of a whole graph, layer by layer and in blocks of nodes (as in Hamilton et al.'s and PyG's inference).

All nodes of layer l are computed before layer l + 1, so each layer is computed once per node, unlike in a batch of several hops.
A block is a batch of one hop with all neighbours, read as a sampled one. So each model that trains on batches has this pass, and
no matrix of the whole graph is needed: features come from their file, and hidden features N × H from memory or, beyond `BUDGET`
bytes, from a temporary file.

Outputs equal those of the pass over the whole graph up to rounding (1e-12 in float64), not bit for bit: products of weights and
of neighbours are taken in another order.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.files import require_space
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics.blocks import FeatureRows, GraphInputs, row_blocks
from fedgraph_flwr.numerics.sampler import NeighbourSampler

BUDGET = 1 << 30
"""Bytes of one layer's outputs that are held in memory; more are in a temporary file (``TMPDIR`` names its folder)."""

BLOCK = 1 << 18
"""Nodes and edges of a block, together."""


class Step(NamedTuple):
    """Part of a forward pass.

    Attributes:
        reads: whether it reads neighbours.
        apply: (rows [K, a] of the previous step's outputs, inputs of the layer) → [R, b]; R = K without neighbours.
        earlier: number of steps before the previous one whose outputs it reads too, as further arguments, the latest last.
    """

    reads: bool
    apply: Callable[..., Tensor]
    earlier: int = 0


def in_blocks(steps: Sequence[Step], inputs: GraphInputs) -> Tensor:
    """Compute the outputs [N, C] of all nodes by these steps, without gradients.

    If the items of ``inputs`` are edges, the last layer that reads neighbours and those after it compute only their ends; rows of
    other nodes hold no values.
    """
    neighbours, back = inputs.neighbours, inputs.neighbours.back
    indptr = neighbours.indptr
    sampler = NeighbourSampler(indptr, neighbours.indices, [-1], back=back)
    rows = FeatureRows(inputs.x, inputs.device, inputs.dtype)
    held: list[FeatureRows] = []  # of earlier steps
    bounds = list(row_blocks(indptr if back is None else indptr + back.indptr, BLOCK))
    chosen = [np.arange(first, last) for first, last in bounds]
    final = max((place for place, step in enumerate(steps) if step.reads), default=0)
    made = torch.empty(0, 0, dtype=inputs.dtype)
    with torch.no_grad():
        for place, step in enumerate(steps):
            items = inputs.item_index
            if place == final and items is not None and items.dim() == 2 and items.numel():
                ends = np.unique(items.cpu().numpy())
                parts = np.split(ends, np.searchsorted(ends, [first for first, _ in bounds[1:]]))
                chosen = [nodes for nodes in parts if nodes.size]
            made = torch.empty(0, 0, dtype=inputs.dtype)
            for nodes in chosen:
                if step.reads:
                    block = sampler.sample(nodes, 0)
                    layer = neighbours.layer(block.nodes, block.hops[0], block.ends[1], *block.back)
                    older = [kept.take(block.nodes) for kept in held[len(held) - step.earlier :]]
                    output = step.apply(rows.take(block.nodes), layer, *older)
                else:
                    output = step.apply(rows.take(nodes), inputs)
                if not made.size(0):
                    made = _room(len(indptr) - 1, output.size(1), inputs.dtype)
                made[torch.from_numpy(nodes)] = output.cpu()
            held.append(rows)
            rows = FeatureRows(made, inputs.device, inputs.dtype)
    return made.to(inputs.device)


def _room(nodes: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return memory [N, width], or a temporary file that vanishes with the tensor.

    Raises:
        FedGraphError: the disk is full, or the folder is not writable.
    """
    size = nodes * width * dtype.itemsize
    if size <= BUDGET:
        return torch.empty(nodes, width, dtype=dtype)
    folder, kind = Path(tempfile.gettempdir()), np.float64 if dtype == torch.float64 else np.float32
    require_space(folder, size, "the hidden features of a client")
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # writing to a map ends the process where the disk is full
            return torch.from_numpy(np.memmap(file, kind, "w+", shape=(nodes, width)))
    except OSError as error:
        raise FedGraphError(
            f"cannot write the hidden features of a client to {folder}: {error.strerror or error}; set TMPDIR to a folder with"
            " more free space"
        ) from error

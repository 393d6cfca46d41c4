"""State as one nested dict of tensors, and its flat form, in which it goes to disk and into Flower's context.

A tree's keys are words without ``/``; its leaves are tensors. The flat form names a leaf by its path, ``optimizer/mean/0``. An
empty branch has no leaf, so it does not come back.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.errors import FedGraphError

Tree = dict[str, Any]
"""Nested dict whose leaves are tensors."""


def flatten(tree: Mapping[str, Any]) -> dict[str, Tensor]:
    """A tree's leaves by their paths; NumPy arrays become tensors of the same memory where they can."""
    flat: dict[str, Tensor] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}/{path}": leaf for path, leaf in flatten(value).items()}
        else:
            leaf = torch.from_numpy(np.asarray(value, order="C")) if isinstance(value, np.ndarray) else value
            flat[str(key)] = leaf.detach()
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> Tree:
    """The tree of which `flatten` gave the leaves.

    Raises:
        FedGraphError: a path goes through a leaf, or ends where another goes on.
    """
    tree: Tree = {}
    for path, leaf in flat.items():
        *branches, name = path.split("/")
        node = tree
        for branch in branches:
            node = node.setdefault(branch, {})
            if not isinstance(node, dict):
                raise FedGraphError(f"no tree of tensors: '{path}' goes below a tensor")
        if name in node:
            raise FedGraphError(f"no tree of tensors: '{path}' is a branch as well")
        node[name] = leaf
    return tree


def as_arrays(tree: Mapping[str, Any]) -> Tree:
    """The same tree with NumPy arrays as leaves, of the tensors' memory."""
    return {k: as_arrays(v) if isinstance(v, Mapping) else v.detach().cpu().numpy() for k, v in tree.items()}


def moved(tree: Mapping[str, Any], device: torch.device) -> Tree:
    """The same tree on a device."""
    return {k: moved(v, device) if isinstance(v, Mapping) else v.to(device) for k, v in tree.items()}

"""State as a nested dict of tensors, and its flat form for files and Flower's context.

A tree's keys are strings without ``/``; its leaves are tensors. The flat form names a leaf by its path, ``optimizer/mean/0``.
Empty branches have no leaves and are lost.
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
    """Return a tree's leaves by path; NumPy arrays and scalars become tensors, sharing memory if possible."""
    flat: dict[str, Tensor] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}/{path}": leaf for path, leaf in flatten(value).items()}
        else:
            of_numpy = isinstance(value, np.ndarray | np.generic)
            flat[str(key)] = (torch.from_numpy(np.asarray(value, order="C")) if of_numpy else value).detach()
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> Tree:
    """Build the tree from the output of `flatten`.

    Raises:
        FedGraphError: a path is both a leaf and a branch.
    """
    tree: Tree = {}
    for path, leaf in flat.items():
        *branches, name = path.split("/")
        node = tree
        for branch in branches:
            node = node.setdefault(branch, {})
            if not isinstance(node, dict):
                raise FedGraphError(f"invalid tree of tensors: '{path}' is below a tensor")
        if name in node:
            raise FedGraphError(f"invalid tree of tensors: '{path}' is also a branch")
        node[name] = leaf
    return tree


def as_arrays(tree: Mapping[str, Any]) -> Tree:
    """Convert the leaves to NumPy arrays that share the tensors' memory."""
    return {k: as_arrays(v) if isinstance(v, Mapping) else v.detach().cpu().numpy() for k, v in tree.items()}


def unlike(arrays: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Return which of some named arrays or tensors has another type or shape than in a model; empty if all have the same."""
    kinds = [{name: f"{part.dtype} {list(part.shape)}" for name, part in parts.items()} for parts in (arrays, model)]
    for name in sorted(arrays.keys() | model.keys()):
        got, expected = (kind.get(name, "missing") for kind in kinds)
        if got != expected:
            return f"{name} is {got}, the model's is {expected}"
    return ""


def moved(tree: Mapping[str, Any], device: torch.device) -> Tree:
    """Move the tree to a device."""
    return {k: moved(v, device) if isinstance(v, Mapping) else v.to(device) for k, v in tree.items()}

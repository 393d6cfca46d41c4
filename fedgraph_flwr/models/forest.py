"""Gradient-boosted trees as a model, so that a forest is sent, stored and loaded like the parameters of a network.

Its tensors are those of `numerics.forest`, whose sizes change as trees are added. Logits of items are, of raw scores F [V, K]:

    two classes: [0, F]      more classes, or targets: F
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.models.base import Model
from fedgraph_flwr.numerics.forest import check_forest, empty_forest, raw_scores
from fedgraph_flwr.wire.messages import Arrays


class Forest(Model):
    """Trees on the columns of items: ``model(columns)`` gives logits, float64 [V, W]. It stays on the CPU.

    Args:
        outputs: K.
        columns: F.
        binary: whether its raw score is the log-odds of the second of two classes.
        trees: most trees that it accepts.
        nodes: most nodes per tree.
    """

    head_prefixes = ()
    whole_numbers = True
    drops = False

    def __init__(self, outputs: int, columns: int, *, binary: bool, trees: int, nodes: int):
        super().__init__()
        self.outputs, self.columns, self.binary, self.trees, self.nodes = outputs, columns, binary, trees, nodes
        for name, array in empty_forest().items():
            self.register_buffer(name, torch.from_numpy(array))

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Keep the tensors as they are: thresholds in float64, on the CPU."""
        return self

    @property
    def arrays(self) -> Arrays:
        """The forest, sharing memory."""
        return {name: tensor.numpy() for name, tensor in self.named_buffers()}

    def hold(self, forest: Arrays) -> None:
        """Replace the trees by others, which are copied."""
        for name, tensor in self.named_buffers():
            tensor.data = torch.from_numpy(np.array(forest[name]))

    def fit_to(self, tensors: Mapping[str, Any], where: str) -> None:
        """Take the sizes of a forest from a message or a file, after all checks of its trees.

        Raises:
            FedGraphError: trees that cannot be evaluated; the message starts with ``where``.
        """
        if not tensors:
            return
        arrays = {
            name: value.numpy() if isinstance(value, Tensor) else np.asarray(value) for name, value in tensors.items()
        }
        check_forest(arrays, self.outputs, self.columns, self.trees, self.nodes, f"{where} sent a model")
        self.hold(arrays)

    def raw(self, columns: Any) -> np.ndarray:
        """Return raw scores [V, K] of columns [V, F]."""
        return raw_scores(self.arrays, columns, self.outputs)

    def forward(self, inputs: Any) -> Tensor:
        """Return logits [V, W] of columns [V, F]."""
        return torch.from_numpy(logits_of(self.raw(inputs), self.binary))

    def representations(self, inputs: Any) -> dict[str, Tensor]:
        """Return the logits, of which every tensor is a part."""
        return {"": self(inputs)}


def logits_of(raw: np.ndarray, binary: bool) -> np.ndarray:
    """Return logits [V, W] of raw scores [V, K]."""
    return np.concatenate([np.zeros_like(raw), raw], axis=1) if binary else raw

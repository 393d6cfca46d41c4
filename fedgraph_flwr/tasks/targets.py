"""Several targets per node: numbers (``nodes-regression``) or yes and no (``nodes-multilabel``). Some may be unknown (NaN)."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_flwr.config import TASKS, RunConfig
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics, targets
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.tasks.base import STAGES, SplitScorer, Task

LOSSES: dict[str, Callable[..., Tensor]] = {"mse": F.mse_loss, "huber": F.huber_loss, "mae": F.l1_loss}
"""Losses of numbers by ``task.loss``."""


class Targets(Task):
    """Targets [N, T] of nodes: outputs are [N, T], the loss is a mean over the known entries of the training nodes.

    Attributes:
        part: in the pooled graph of the Central reference, the client of each item [N]; else empty.
    """

    targets: ClassVar = True
    samples: ClassVar = True
    far_ends: ClassVar = True

    def __init__(self, cfg: RunConfig, graph: ClientGraph):
        super().__init__(cfg, graph)
        if not graph.num_targets:
            raise FedGraphError(
                f"task={cfg.task.name} needs targets, which '{graph.name}' does not have: import them with"
                " `fedgraph-flwr import --predict-columns NAMES`, or use a dataset that has them"
            )
        self.y = self.entries(self.graph.targets.double())
        known = ~self.y.isnan().all(1)
        self.masks = {split: getattr(graph, f"{split}_mask") & known for split in STAGES}
        self.part = graph.part

    @classmethod
    def num_classes(cls, graph: Any) -> int:
        """T of a graph."""
        return int(graph.num_targets)

    @abstractmethod
    def entries(self, given: Tensor) -> Tensor:
        """Return targets as the loss reads them, float64 [N, T]."""

    def steps_on(self, y: Tensor) -> int:
        """Number of entries behind the gradient of a column: (Σ w)² / Σ w² of their weights; the fewest over columns with any."""
        weights = self.weights(y).masked_fill(y.isnan(), 0)
        behind = weights.sum(0).square() / weights.square().sum(0)
        known = behind[~behind.isnan()]
        return int(known.amin() + 1e-6) if known.numel() else 0

    def weights(self, y: Tensor) -> Tensor:
        """Return the weights of entries [V, T] in the loss, float64 [V, T], up to a factor per column."""
        return torch.ones_like(y, dtype=torch.float64)

    @abstractmethod
    def in_units(self, outputs: Tensor) -> Tensor:
        """Return predictions as a user reads them, from outputs [V, T]: numbers in the unit of the data, or probabilities."""

    @abstractmethod
    def values(self, outputs: np.ndarray, y: np.ndarray) -> dict[str, float]:
        """Return all scores of outputs [V, T] against targets [V, T] as the loss reads them, with their chance levels.

        Args:
            outputs: outputs of the model.
            y: NaN where unknown.
        """

    @property
    def num_rows(self) -> int:
        """One per item."""
        return len(self.y)

    def scorer(self, floor: int) -> SplitScorer:
        """Return validation and test items without entries that too few items share; see `shown`."""
        part = self.part if self.part.numel() else torch.zeros(len(self.y), dtype=torch.int64)
        parts: list[dict[str, tuple[Tensor, Tensor]]] = []
        for p in range(int(part.max()) + 1 if part.numel() else 1):
            items = {}
            for split in metrics.SPLITS:
                rows = (self.masks[split] & (part == p)).nonzero().view(-1)
                y = self.shown(self.y[rows], floor)
                kept = ~y.isnan().all(1)
                items[split] = rows[kept], y[kept]
            parts.append(items)
        return SplitScorer(parts, self._scored)

    def _scored(self, outputs: Tensor, items: tuple[Tensor, Tensor]) -> tuple[int, dict[str, float]]:
        """Score items by their rows [V] and targets [V, T]."""
        rows, y = items
        if not len(rows):
            return 0, {}
        read = outputs[rows].double()
        loss = float(self.loss(read, y, self.cfg))
        return len(rows), self.values(read.numpy(), y.numpy()) | {"loss": loss}

    def shown(self, y: Tensor, floor: int) -> Tensor:
        """Return scored targets [V, T] without columns that have fewer known entries than the floor."""
        return y.masked_fill((~y.isnan()).sum(0) < floor, torch.nan)

    @classmethod
    def exported(cls, plain: Plain) -> Plain:
        """Add the unit of the data."""
        return plain if plain.readout[0] else plain.with_readout("nodes", {}, {})


class Regression(Targets):
    """Numbers, in training standardised by statistics that all clients share; scores are in the unit of the data."""

    METRICS: ClassVar = TASKS["nodes-regression"]
    KEYS: ClassVar = frozenset({"loss"})
    LOSSES: ClassVar = tuple(LOSSES)

    @property
    def scale(self) -> Tensor:
        """Mean and standard deviation of the targets, float64 [2, T]."""
        return scale_of(self.graph)

    def entries(self, given: Tensor) -> Tensor:
        """Return standardised targets."""
        return (given - self.scale[0]) / self.scale[1]

    @staticmethod
    def loss(predictions: Tensor, y: Tensor, cfg: RunConfig, weights: Tensor | None = None) -> Tensor:
        """Return ``task.loss``, averaged over the known entries."""
        known = ~y.isnan()
        return LOSSES[cfg.task.loss](predictions[known], y[known].to(predictions))

    def values(self, outputs: np.ndarray, y: np.ndarray) -> dict[str, float]:
        """Return RMSE, MAE and R² in the unit of the data."""
        units = (self.in_units(torch.from_numpy(array)).numpy() for array in (outputs, y))
        return targets.regression(*units)

    def in_units(self, outputs: Tensor) -> Tensor:
        """Undo the standardisation."""
        return outputs * self.scale[1] + self.scale[0]


class MultiLabel(Targets):
    """Yes or no in each of T columns: outputs are logits."""

    METRICS: ClassVar = TASKS["nodes-multilabel"]
    KEYS: ClassVar = frozenset({"positive_weights"})

    def __init__(self, cfg: RunConfig, graph: ClientGraph):
        super().__init__(cfg, graph)
        weights = cfg.task.positive_weights
        if len(weights) not in (0, 1, graph.num_targets):
            raise FedGraphError(
                f"task.positive_weights has {len(weights)} numbers for {graph.num_targets} columns: expected one number, or one"
                " per column"
            )

    def entries(self, given: Tensor) -> Tensor:
        """Return the targets.

        Raises:
            FedGraphError: a target is neither 0 nor 1.
        """
        wrong = ~((given == 0) | (given == 1) | given.isnan())
        if bool(wrong.any()):
            node, column = wrong.nonzero()[0].tolist()
            raise FedGraphError(
                f"task={self.cfg.task.name} needs targets of 0 and 1, or NaN where unknown; node {node} has"
                f" {float(given[node, column]):g} in column {column}: set task=nodes-regression for numbers"
            )
        return given

    @staticmethod
    def loss(predictions: Tensor, y: Tensor, cfg: RunConfig, weights: Tensor | None = None) -> Tensor:
        """Return the binary cross entropy of the known entries, with ``task.positive_weights``."""
        known = ~y.isnan()
        given = cfg.task.positive_weights
        factor = predictions.new_tensor(given).expand_as(predictions)[known] if given else None
        return F.binary_cross_entropy_with_logits(predictions[known], y[known].to(predictions), pos_weight=factor)

    def weights(self, y: Tensor) -> Tensor:
        """Return ``task.positive_weights`` of positives, and 1 of negatives, the larger of the two being 1."""
        given = torch.tensor(self.cfg.task.positive_weights or [1.0], dtype=torch.float64, device=y.device)
        weights = torch.where(y > 0, given, 1.0)
        return weights / given.clamp(min=1)

    def in_units(self, outputs: Tensor) -> Tensor:
        """Return probabilities."""
        return outputs.sigmoid()

    def values(self, outputs: np.ndarray, y: np.ndarray) -> dict[str, float]:
        """Return the scores of `targets.multilabel`."""
        return targets.multilabel(outputs, y)

    def shown(self, y: Tensor, floor: int) -> Tensor:
        """Return scored targets without the entries of a class that has fewer of them in its column than the floor."""
        few = [(y == value) & ((y == value).sum(0) < floor) for value in (0, 1)]
        return y.masked_fill(few[0] | few[1], torch.nan)


def scale_of(graph: Any) -> Tensor:
    """Return mean and standard deviation of a graph's targets, float64 [2, T]; 0 and 1 where clients share none."""
    if graph.target_stats.numel():
        return graph.target_stats
    return torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(1, graph.num_targets)

"""Tasks with one class per item, scored by what a network says of each."""

from typing import Any, ClassVar

from torch import Tensor

from fedgraph_flwr.config import EvaluationConfig, RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.numerics.losses import task_loss
from fedgraph_flwr.tasks.base import STAGES, Task


class Classification(Task):
    """Classes of items: outputs are logits [V, C], targets int64 [V], -1 where unknown.

    Attributes:
        part: in the pooled graph of the Central reference, the client of each item [V]; else empty.
    """

    classes: ClassVar = True
    part: Tensor

    @staticmethod
    def loss(predictions: Tensor, y: Tensor, cfg: RunConfig, weights: Tensor | None = None) -> Tensor:
        """``train.loss`` of logits [V, C] against classes [V]."""
        return task_loss(predictions, y, cfg.train, weights)

    def masks_of(self, items: Any) -> dict[str, Tensor]:
        """Return the training, validation and test items with a class, by split.

        Raises:
            FedGraphError: no item has a class, but they have targets.
        """
        known, task = items.y >= 0, self.cfg.task.name
        if getattr(items, "num_targets", 0) and not bool(known.any()):
            raise FedGraphError(
                f"task={task} needs classes, but '{items.name}' has {items.num_targets} targets per {self.ITEMS[:-1]}: set"
                f" task={task}-regression or task={task}-multilabel"
            )
        return {split: getattr(items, f"{split}_mask") & known for split in STAGES}

    def scorer(self, floor: int) -> metrics.Scored:
        """Validation and test items, without those of a class that has fewer than the floor."""
        train = self.masks["train"].nonzero().view(-1)
        return metrics.Scored(self.y, self._kept(floor), self.part, train, self.day, floor)

    @property
    def day(self) -> Tensor | None:
        """Day of each item [V], by which alerts are counted; None if items carry no time."""
        return None

    def confusion(self, logits: Tensor, floor: int) -> list[float]:
        """Confusion matrix of the test items, row after row; -n for a count below n, the floor."""
        test = self._kept(floor)["test"] & (self.y >= 0)
        return metrics.counts_of(logits.cpu()[test], self.y[test], self.width, floor)

    def _kept(self, floor: int) -> dict[str, Tensor]:
        """Validation and test items, without those of classes that have fewer than the floor in a split.

        A model that always predicts one class would count them, and a loss can hold the counts of all.
        """
        scored = {split: self.masks[split] for split in metrics.SPLITS}
        return metrics.without_small_classes(scored, self.y, self.width, floor)

    @classmethod
    def wanted(cls, cfg: EvaluationConfig, width: int) -> tuple[str, ...]:
        """As `metrics.wanted`, of C classes."""
        return metrics.wanted(cfg, width)

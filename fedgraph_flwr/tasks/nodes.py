"""Node classification: one class per node."""

from typing import Any, ClassVar

from torch import Tensor

from fedgraph_flwr.config import TASKS, RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.tasks.classification import Classification


class Nodes(Classification):
    """Classes of nodes: outputs are logits [N, C], targets int64 [N], -1 where unknown."""

    METRICS: ClassVar = TASKS["nodes"]
    typed: ClassVar = True
    samples: ClassVar = True
    far_ends: ClassVar = True

    def __init__(self, cfg: RunConfig, graph: Any):
        super().__init__(cfg, graph)
        self.y, self.part = self.graph.y, self.graph.part
        self.masks = {"train": self.graph.train_mask, "val": self.graph.val_mask, "test": self.graph.test_mask}
        if getattr(graph, "num_targets", 0):
            known = self.y >= 0
            if not bool(known.any()):
                raise FedGraphError(
                    f"task={cfg.task.name} needs classes, but '{graph.name}' has {graph.num_targets} targets per node: set"
                    " task=nodes-regression or task=nodes-multilabel"
                )
            self.masks = {split: mask & known for split, mask in self.masks.items()}

    def columns(self) -> Tensor:
        """Those of the nodes."""
        return self.graph.x

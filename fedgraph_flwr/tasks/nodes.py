"""Node classification: one class per node."""

from typing import Any, ClassVar

from fedgraph_flwr.config import TASKS, RunConfig
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
        self.masks = self.masks_of(self.graph)

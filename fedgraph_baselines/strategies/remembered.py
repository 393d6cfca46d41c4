"""Base of servers that send every client the same group of arrays with the model."""

from typing import ClassVar

from fedgraph_flwr.strategies.base import GraphStrategy, Groups
from fedgraph_flwr.wire.messages import Arrays


class RememberedGroup(GraphStrategy):
    """Sends a group of `memory` to train and to predict, once there is one."""

    remembered: ClassVar[str]

    def before_train(self, arrays: Arrays) -> Groups:
        """Send the current group."""
        return {self.remembered: self.memory[self.remembered]} if self.remembered in self.memory else {}

    before_evaluate = before_train

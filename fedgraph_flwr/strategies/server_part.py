"""Base class of a method's server parts."""

from collections.abc import Mapping
from typing import Any

from fedgraph_flwr.config import StrategyConfig
from fedgraph_flwr.config.parts import values
from fedgraph_flwr.strategies.server import Server
from fedgraph_flwr.wire.messages import Arrays


class ServerPart:
    """One part of a method on the server; it stores its state in the strategy's `memory`.

    Attributes:
        keys: values of its keys.
    """

    def __init__(self, name: str, rules: StrategyConfig):
        self.keys = values(rules, name)

    def groups(self, server: Server, arrays: Arrays) -> Mapping[int, Mapping[str, Any]]:
        """Groups of arrays that travel to each client of the cohort with the model."""
        return {}

    def step(self, server: Server, arrays: Arrays, mean: Arrays, reduced: Any) -> Arrays:
        """Return the next shared parameters.

        Args:
            server: the strategy.
            arrays: the current parameters.
            mean: what the strategy, or the part before this one, makes of the replies.
            reduced: the replies to ``train``.
        """
        return mean

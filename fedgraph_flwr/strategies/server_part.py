"""Base class of a method's server parts."""

from collections.abc import Mapping
from typing import Any

from fedgraph_flwr.config import StrategyConfig
from fedgraph_flwr.config.parts import values
from fedgraph_flwr.errors import FedGraphError, RunFailed, located
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

    def next(self, server: Server, arrays: Arrays, mean: Arrays, reduced: Any) -> Arrays:
        """Return the result of `step`.

        Raises:
            RunFailed: `step` fails, or returns other arrays than the current ones.
        """
        what = f"`step` of the server part {type(self).__module__}:{type(self).__qualname__}"
        try:
            after = self.step(server, arrays, mean, reduced)
        except FedGraphError:
            raise
        except Exception as error:
            raise RunFailed(f"{what} failed: {located(error)}", "own-code") from error
        before, made = _forms(arrays), _forms(after)
        for name in sorted(before.keys() | made.keys()):
            if before.get(name) != made.get(name):
                got, expected = made.get(name, "nothing"), before.get(name, "nothing")
                raise RunFailed(
                    f"{what} returned {got} for '{name}', expected {expected}", "own-code"
                )
        return after


def _forms(arrays: Any) -> dict[str, str]:
    """Return type and shape of each array by name; empty for another object."""
    named = arrays if isinstance(arrays, Mapping) else {}
    return {
        str(name): f"{getattr(a, 'dtype', type(a).__name__)} {getattr(a, 'shape', '')}"
        for name, a in named.items()
    }

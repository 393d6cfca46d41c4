"""Base of a method's two classes: the declarations that its server and its client share."""

import inspect
from typing import Any, ClassVar

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import NoParams
from fedgraph_flwr.methods.uplink import Uplink, model_only
from fedgraph_flwr.models.base import Model

NOT_CALLED = {
    "server": {
        "aggregate_train": "step(arrays, reduced)",
        "aggregate_evaluate": "step(arrays, reduced), or a function listed under evaluation.metrics",
        "summary": "startup_note(cfg)",
    },
    "client": {"get_properties": "describe()"},
}
"""Per side, Flower's hooks that a run never calls → what to define instead."""


class Side:
    """Declarations of one side of a method.

    Attributes:
        Params: the method's own keys, with their types, ranges and defaults.
        side: ``server`` or ``client``.
    """

    Params: ClassVar[type] = NoParams
    side: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if Side not in cls.__bases__:
            _refuse_silent_hooks(cls)

    @staticmethod
    def uplink(cfg: RunConfig, params: Any) -> Uplink:
        """Declare what leaves a client, by phase and group, and what the server needs of it: both sides name one function."""
        return model_only(cfg, params)

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Refuse a configuration that the method does not support; called once, before any client starts.

        Args:
            cfg: the run's configuration.
            model: the run's model, built for an arbitrary graph size.

        Raises:
            FedGraphError: the problem, the value, what is accepted and what to set.
        """

    @classmethod
    def startup_note(cls, cfg: RunConfig) -> str:
        """Return a note for the user if this configuration turns the method into another one; else an empty string."""
        return ""


def _refuse_silent_hooks(kind: type[Side]) -> None:
    """Refuse a class that defines or inherits its own version of a hook of `NOT_CALLED`.

    Raises:
        TypeError: names the class, the hook, and its replacement.
    """
    base = next(parent for parent in kind.__mro__ if Side in parent.__bases__)
    for hook, instead in NOT_CALLED[kind.side].items():
        if inspect.getattr_static(kind, hook, None) is not inspect.getattr_static(base, hook, None):
            raise TypeError(
                f"{kind.__module__}.{kind.__qualname__} overrides Flower's '{hook}', which a run never calls: define {instead}"
                ' instead (docs/extend.md, "Hooks")'
            )

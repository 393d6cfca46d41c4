"""Base of a method's two classes: the declarations that its server and its client share."""

from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any, ClassVar

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import NoParams
from fedgraph_flwr.methods.downlink import Inputs
from fedgraph_flwr.methods.uplink import Uplink, model_only
from fedgraph_flwr.models.base import Model

NOT_CALLED = {
    "aggregate_train": "step(arrays, reduced)",
    "aggregate_evaluate": "step(arrays, reduced), or a function listed under evaluation.metrics",
    "start": "setup, before_train or step",
    "summary": "startup_note(cfg)",
    "get_properties": "describe()",
}
"""Hooks of Flower's Strategy and NumPyClient that a run never calls → what to define instead."""

TAKING = ("receive", "fit", "evaluate")
"""Members by which a client takes groups that come with a model."""

Requirement = Callable[[RunConfig, Model], None]
"""Function that refuses a configuration with a model that a method cannot train."""


class MethodHalf:
    """Declarations of one side of a method.

    ``class MyClient(GraphClient, method=module, requires=(one_type,))`` takes `Params`, `uplink` and `downlink` of the method's
    module, and what the method requires of the model: functions of configuration and model that refuse others
    (`fedgraph_flwr.clients.requirements`).

    Attributes:
        Params: the method's own keys, with their types, ranges and defaults.
    """

    Params: ClassVar[type] = NoParams
    _requires: ClassVar[tuple[Requirement, ...]] = ()

    def __init_subclass__(
        cls, method: ModuleType | None = None, requires: tuple[Requirement, ...] = (), **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        if method is not None:
            cls.Params = getattr(method, "Params", cls.Params)
            cls.uplink = staticmethod(method.uplink)  # type: ignore[method-assign]
            if hasattr(method, "downlink"):
                cls.downlink = staticmethod(method.downlink)  # type: ignore[method-assign]
        cls._requires = requires or cls._requires
        if MethodHalf not in cls.__bases__:
            known = {hook: instead for hook, instead in NOT_CALLED.items() if hasattr(base_of(cls), hook)}
            refuse_overrides(cls, known, "Flower's hook, which a run never calls")

    @staticmethod
    def uplink(cfg: RunConfig, params: Any) -> Uplink:
        """Declare what leaves a client, by phase and group, and what the server needs of it: both sides name one function."""
        return model_only(cfg, params)

    @staticmethod
    def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
        """Declare what a message to a client may carry, by phase and group, besides the framework's own."""
        return {}

    @classmethod
    def declares_inputs(cls) -> bool:
        """Return whether the class declares all that it takes.

        A class with a hook or a phase of its own and without `downlink` was written before methods declared theirs.
        """
        for parent in cls.__mro__[: cls.__mro__.index(base_of(cls))]:
            members = vars(parent)
            if "downlink" in members:
                return True
            if any(name in TAKING or getattr(member, "is_phase", False) for name, member in members.items()):
                return False
        return True

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Refuse a configuration that the method does not support, as ``requires`` does; called once, before any client starts.

        Args:
            cfg: the run's configuration.
            model: the run's model, built for an arbitrary graph size.

        Raises:
            FedGraphError: the problem, the value, what is accepted and what to set.
        """
        for require in cls._requires:
            require(cfg, model)

    @classmethod
    def startup_note(cls, cfg: RunConfig) -> str:
        """Return a note for the user if this configuration turns the method into another one; else an empty string."""
        return ""


def refuse_overrides(kind: type[MethodHalf], instead: Mapping[str, str], why: str) -> None:
    """Refuse a class that defines or inherits its own version of a member that is not its to change.

    Args:
        kind: the new class.
        instead: name of the member → what to define instead.
        why: what the members are.

    Raises:
        TypeError: names the class, the member, and its replacement.
    """
    for name, other in instead.items():
        if not inherits(kind, [name]):
            raise TypeError(
                f"{kind.__module__}.{kind.__qualname__} defines '{name}', {why}: define {other} instead"
                ' (docs/extend.md, "Hooks")'
            )


def base_of(kind: type[MethodHalf]) -> type[MethodHalf]:
    """Return the framework's base of a method's class: `GraphStrategy` or `GraphClient`."""
    return next(parent for parent in kind.__mro__ if MethodHalf in parent.__bases__)


def inherits(one: Any, names: Collection[str]) -> bool:
    """Return whether a method's class, or an object of it, has the named members from the framework's base, unchanged."""
    kind, attributes = (one, {}) if isinstance(one, type) else (type(one), vars(one))
    base = base_of(kind)
    return all(name not in attributes and _member(kind, name) is _member(base, name) for name in names)


def _member(kind: type, name: str) -> Any:
    for parent in kind.__mro__:
        if name in parent.__dict__:
            return parent.__dict__[name]
    return None

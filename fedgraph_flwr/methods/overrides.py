"""Refusal of overrides that a base class no longer allows, when the class is created."""

from collections.abc import Mapping


def refuse_overrides(kind: type, replaced: Mapping[str, str]) -> None:
    """Refuse a class that defines what its base no longer has or no longer lets it change.

    Args:
        kind: the new class.
        replaced: names, and what to define instead.

    Raises:
        TypeError: naming the class, the name, and its replacement.
    """
    for name in vars(kind):
        if name in replaced:
            raise TypeError(
                f"{kind.__module__}.{kind.__qualname__} defines '{name}', which a method no longer may: define"
                f' {replaced[name]} instead (docs/extend.md, "Migrate a method")'
            )

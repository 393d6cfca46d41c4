"""Keys of a method without keys of its own."""

from dataclasses import dataclass


@dataclass
class NoParams:
    """No keys."""

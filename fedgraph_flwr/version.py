"""Versions of this package and of others."""

from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from platform import python_version

__version__ = "0.2.0"

PROTOCOL = 3
"""Version of the messages between server and nodes."""


@cache
def installed(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of those packages that are installed."""
    versions = {"python": python_version()}
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions

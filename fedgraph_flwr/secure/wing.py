"""What a party's wing brings to a node; the wing registers it when it is imported, at a command's or a node's start.

So the core names no module of the wing. Without it, a node has no section ``link`` in its policy and no ``party.yaml``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import unknown

_readers: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
_finders: list[Callable[[Path, bool], Path]] = []
_clients: set[str] = set()


def register(
    section: str, reader: Callable[[Mapping[str, Any]], Any], client: str, finder: Callable[[Path, bool], Path]
) -> None:
    """Register a wing.

    Args:
        section: a key of a node's policy.
        reader: reads its values.
        client: class path of the client about whose runs this section decides.
        finder: returns a party's client file by what the node config names; with True, the linked one.
    """
    _readers[section] = reader
    _clients.add(client)
    _finders[:] = [finder]


def read_section(section: str, values: Mapping[str, Any]) -> Any:
    """Return a section of a policy as its reader returns it.

    Raises:
        FedGraphError: an unknown section, key, type or value.
    """
    if section not in _readers:
        raise unknown("section", section, _readers, "of the policy")
    return _readers[section](values)


def has_section(client: str) -> bool:
    """Return whether a section decides about runs of a client, instead of ``strategies``, ``networks`` and ``tasks``."""
    return client in _clients


def client_file(path: Path, linked: bool) -> Path:
    """Return a party's client file by the path in the node config."""
    return _finders[0](path, linked) if _finders else path

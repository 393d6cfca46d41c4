"""Names of parties by Flower's number of their nodes, in the folder of runs: removed nodes keep theirs.

The SuperLink writes the file, since runs and metrics outlive a node's registration.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import MALFORMED, sanitize, unknown

PARTIES = ".parties.json"

UNREGISTERED = "unregistered"
"""Flower's status of a removed node."""

_CLIENTS = re.compile(r"\bclients? \d{1,9}\b(?! \()(?:, \d{1,9}\b)*")


def party_names(nodes: Iterable[Any]) -> dict[str, str]:
    """Return the party of each admitted node, by number, from Flower's list; those of one name have their numbers in it."""
    names = {str(node.node_id): sanitize(getattr(node, "name", ""), 60) for node in nodes}
    count = Counter(names.values())
    return {node: f"{name} {node}" if name and count[name] > 1 else name for node, name in names.items()}


def keep_parties(runs: Path, nodes: Iterable[Any]) -> None:
    """Store the names of nodes, from Flower's list, besides those that were stored, and which are removed."""
    listed = list(nodes)
    names = party_names(node for node in listed if node.status != UNREGISTERED)
    known = read_parties(runs)
    for node in listed:
        number, removed = str(node.node_id), node.status == UNREGISTERED
        name = names.get(number) or known.get(number, {}).get("name") or sanitize(getattr(node, "name", ""), 60)
        known[number] = {"name": name, "removed": removed}
    runs.mkdir(parents=True, exist_ok=True)
    write_bytes(runs / PARTIES, json.dumps(known).encode())


def read_parties(runs: Path) -> dict[str, dict[str, Any]]:
    """Return ``name`` and ``removed`` of each node that a server admitted, by number; {} if none can be read."""
    try:
        parties = json.loads((runs / PARTIES).read_bytes())
        return {
            node: {"name": str(entry["name"]), "removed": bool(entry["removed"])} for node, entry in parties.items()
        }
    except (OSError, *MALFORMED):
        return {}


def nodes_of(parties: Iterable[str], runs: Path) -> dict[int, str]:
    """Return the names of chosen parties by their nodes' numbers; a party without a name is its node's number.

    Raises:
        FedGraphError: the server has admitted no such party, or has removed it.
    """
    known = {entry["name"] or node: int(node) for node, entry in read_parties(runs).items() if not entry["removed"]}
    for name in parties:
        if name not in known:
            raise unknown("party", sanitize(name, 60), known, "see fleet status; a plain Flower server has no names")
    return {known[name]: name for name in parties}


def name_clients(text: str, nodes: Mapping[int, int], names: Mapping[str, str]) -> str:
    """Return a text with the parties of its clients, and with names instead of numbers of nodes.

    Args:
        text: such as "client 2 failed".
        nodes: node by client.
        names: name by node; a client without one stays a number.
    """

    def named(client: re.Match[str]) -> str:
        name = names.get(str(nodes.get(int(client[0]))))
        return f"{client[0]} ({name})" if name else client[0]

    text = _CLIENTS.sub(lambda match: re.sub(r"\d+", named, match[0]), text)
    return re.sub(r"\d{2,20}", lambda number: names.get(number[0]) or number[0], text)

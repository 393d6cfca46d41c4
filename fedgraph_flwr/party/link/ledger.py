"""What a party keeps of matched records, so that the next link sends only the others: `fedgraph-flwr link --since`.

    keys    of each matched record, with its copy number; both parties of a pair have the same
    data    of its edge as both files have it, so that it is not sent again
    own     data as this party booked it, to find changed records
    alone   keys of records that only this party had; they take part again, since the other party may book late

The ledger stays at the party. Before sets are sent, each pair compares a hash of its keys. A link is refused if a matched record
is missing or changed in the new file, or if a new record repeats one. The node's log names these; the server does not learn them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from logging import ERROR
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.graph import ClientGraph, pack_words, read_tensors, unpack_words, write_tensors
from fedgraph_flwr.errors import MALFORMED, FedGraphError, RunFailed, sanitize
from fedgraph_flwr.logs import log
from fedgraph_flwr.party.link.files import DATA, Ints, record_columns
from fedgraph_flwr.party.tables.parties import BETWEEN
from fedgraph_flwr.wire.trees import Tree, flatten, unflatten

SUFFIX = ".ledger"


@dataclass(frozen=True)
class Matched:
    """Records that a party and a peer matched; the module's docstring documents the fields [S]."""

    keys: Sequence[str] = ()
    alone: Sequence[str] = ()
    data: Mapping[str, Tensor] = field(default_factory=dict)
    own: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def digest(self) -> bytes:
        """Hash of the keys, the same at both parties."""
        return sha256("\n".join(self.keys).encode()).digest()

    def divide(self, graph: ClientGraph, rows: Ints, keys: Sequence[bytes], peer: int) -> tuple[Ints, Ints]:
        """Return the places among ``keys`` of the matched records, in the order of the ledger, and of all others.

        Args:
            graph: the party's new file.
            rows: its records with the peer [R].
            keys: their keys [R].
            peer: the client, for errors.

        Raises:
            RunFailed: a matched record is missing or changed, or another record repeats it.
        """
        texts = [key.decode() for key in keys]
        place = {text: row for row, text in enumerate(texts)}
        old = np.array([place.get(text, -1) for text in self.keys], dtype=np.int64)
        self._refuse(np.flatnonzero(old < 0), self.keys, peer, "are missing")
        changed = np.zeros(old.size, dtype=bool)
        for key, before in self.own.items():
            changed |= (_booked(graph, key, rows[old]) != before).reshape(old.size, -1).any(dim=1).numpy()
        self._refuse(np.flatnonzero(changed), self.keys, peer, "changed")
        fresh = np.setdiff1d(np.arange(len(texts)), old)
        first = {text.rpartition(BETWEEN)[0]: row for text, row in zip(self.keys, old.tolist(), strict=True)}
        known = {*self.alone}
        same = [
            row
            for row in fresh.tolist()
            if (twin := first.get(texts[row].rpartition(BETWEEN)[0])) is not None
            and texts[row] not in known
            and all(torch.equal(*_booked(graph, key, rows[[row, twin]])) for key in self.own)
        ]
        self._refuse(same, texts, peer, "are repeated")
        return old, fresh

    @staticmethod
    def _refuse(rows: Any, keys: Sequence[str], peer: int, what: str) -> None:
        if not len(rows):
            return
        record = sanitize(" ".join(keys[rows[0]].split(BETWEEN)[:-1]), 160)
        text = "link: of records that the last link matched with client %d, %d %s: %s"
        log(ERROR, text, peer, len(rows), what, record)
        raise RunFailed(
            f"{len(rows)} records that the last link matched with client {peer} {what} in the new file (the log line before names"
            " the first): import all records as they were, or link without --since"
        )


def _booked(graph: ClientGraph, key: str, rows: Any) -> Tensor:
    values: Tensor = record_columns(graph, key, getattr(graph, f"foreign_{key}")[torch.from_numpy(np.asarray(rows))])
    return values


def booked(graph: ClientGraph, rows: Ints) -> dict[str, Tensor]:
    """Return the data of records that both parties have, as this party booked them."""
    return {key: _booked(graph, key, rows) for key in DATA if getattr(graph, f"foreign_{key}").numel()}


@dataclass(frozen=True)
class Ledger:
    """A party's matched records.

    Attributes:
        party: its name.
        basis: hash of the schema and the options by which records were matched.
        peers: by the name of the other party.
    """

    party: str = ""
    basis: str = ""
    peers: Mapping[str, Matched] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write it, readable by its owner only."""
        tree: Tree = {}
        for number, peer in enumerate(self.peers.values()):
            words = {"keys": pack_words(peer.keys), "alone": pack_words(peer.alone)}
            tree[str(number)] = {**words, "data": peer.data, "own": peer.own}
        write_tensors(path, flatten(tree), {"party": self.party, "basis": self.basis, "peers": [*self.peers]})
        path.chmod(0o600)

    @classmethod
    def load(cls, path: Path) -> "Ledger":
        """Read it; without a file it is empty.

        Raises:
            FedGraphError: the file is damaged.
        """
        if not path.is_file():
            return cls()
        tensors, values = read_tensors(path)
        try:
            peers, tree = {}, unflatten(tensors)
            for number, name in enumerate(values["peers"]):
                branch = tree[str(number)]
                keys, alone = (unpack_words(branch[part]).tolist() for part in ("keys", "alone"))
                peers[str(name)] = Matched(keys, alone, branch.get("data", {}), branch.get("own", {}))
            return cls(str(values["party"]), str(values["basis"]), peers)
        except MALFORMED as error:
            raise FedGraphError(f"{path} is not a ledger of a link: restore it, or link without --since") from error


def basis_of(introduction: Mapping[str, Any]) -> str:
    """Return a hash of what decides keys and data of records."""
    kept = {key: introduction[key] for key in ("form", "schema", "undirected", "data")}
    return sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def in_order(
    keys: Sequence[str], data: Mapping[str, Tensor], bookings: Mapping[str, Tensor], alone: Sequence[str]
) -> Matched:
    """Return matched records in the order of their keys."""
    order = np.argsort(np.array(keys, dtype=object), kind="stable") if keys else np.zeros(0, dtype=np.int64)
    rows = torch.from_numpy(order.astype(np.int64))
    data, bookings = ({key: values[rows] for key, values in held.items()} for held in (data, bookings))
    return Matched([keys[row] for row in order.tolist()], alone, data, bookings)

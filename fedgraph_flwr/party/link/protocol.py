"""One party's side of `fedgraph-flwr link`: the messages that match records of edges between parties.

    announce    public key and number of nodes, signed                                       through the server, readable
    introduce   name, form of keys, rules, schema                                            sealed, like all that follow
    commit      size of the padded set, hash of its masks; with --since also a hash of the records that the last link matched
    mask        the masks, shuffled
    seal        commitment to the replies of the next step
    double      the other party's masks times the own scalar, in their order
    prove       a point for all shared records
    agree       hash of the key that only who knows them all can compute from both points
    ask_commit  (routed, instead of commit to agree) as commit, with a commitment to the hashes of the next step
    ask         (routed) hashes of the keys, padded and shuffled
    match       for each shared record: row of the own end; data of edges that start here, but not of records of the last link
    resolve     (one_sided=disclose) rows of the accounts that the other party's one-sided records name
    share       (share) of the own accounts in shared records: the columns that the rules name, in the form that they say
    confirm     hash of the cut edges between the two, and of the linked file
    write       nothing: the party writes its file

A party decides by equal replies which records are shared. So no party may see the other's replies before it is bound to its own,
or it could send them back: each first sends a commitment, a hash that is bound to sender, receiver and run. Before rows are sent,
each proves that it knows the shared records (`matching`). Every phase is taken once and in order, in whatever round.

A dry run ends with `count` after the sets: replies to masks are shuffled, so that both sides learn a number only. The mathematics
is in `matching`, the resulting files in `files`. `simulate` runs the same messages between files on one machine.
"""

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from fedgraph_flwr.data.book import Book
from fedgraph_flwr.data.far_ends import (
    EDGES,
    EXACT,
    Column,
    encoded,
    enough,
    joined,
    reads_book,
    shared_columns,
    shared_records,
    widened,
    without_records,
)
from fedgraph_flwr.data.far_ends import records as record_counts
from fedgraph_flwr.data.features import columns_at
from fedgraph_flwr.data.graph import ClientGraph, unpack_words
from fedgraph_flwr.data.own_columns import recipe_of
from fedgraph_flwr.data.schema import Schema, agreed_schema
from fedgraph_flwr.errors import FedGraphError, RunFailed, first_line, sanitize
from fedgraph_flwr.party.link import files, matching
from fedgraph_flwr.party.link.files import DATA, Edges, Ints, cut_digest, id_form, record_columns, told_rows, undirected
from fedgraph_flwr.party.link.ledger import Ledger, Matched, basis_of, booked, in_order
from fedgraph_flwr.party.link.matching import POINT, REPLY, Mask, as_rows
from fedgraph_flwr.party.link.mismatch import USUAL, causes, facts, kinds_of
from fedgraph_flwr.party.link.rules import ANNOUNCE, LinkRules
from fedgraph_flwr.party.secret import is_secret
from fedgraph_flwr.party.tables.parties import accounts_of, fold, normal_ids
from fedgraph_flwr.secure.keyring import Keyring
from fedgraph_flwr.secure.sealed import Sealer
from fedgraph_flwr.wire.messages import Arrays

MOST_PER_NODE = 1.2
"""Largest set of identities of a party, per announced node."""

LARGEST = 3e38
"""Largest number in a message."""

_INVALID = (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError, RecursionError, SafetensorError)
"""Errors of reading a message that does not have the expected content."""


class LinkParty:
    """One party's state over the phases of a link run.

    Args:
        graph: the party's imported client file.
        rules: the run's rules, with this party's limits.
        keyring: signs the party's announcement and verifies those of others.
        memory: state of earlier phases (`state`).
        consent: digest of the parties' signed consent, which all must have alike.
        accepted: names that the parties must have, by client; empty: any.
        ledger: records that the last link matched; with ``rules.increment`` they are not sent again.
        repeatable: whether equal files give the same ``link`` number, for parties on one machine. Otherwise hashes of linked
            files are new in each run, so that no peer sees whether a party's file is that of an earlier run.

    Attributes:
        done: number of phases whose messages this party has sent.
        names: names of the parties, by client; likewise ``roles``.
        conflicts: number of shared records whose edge label differs, by peer; the source's counts.
        unknown: number of disclosed records that name an account that the peer does not have, by peer.
    """

    def __init__(
        self,
        graph: ClientGraph,
        rules: LinkRules,
        keyring: Keyring,
        memory: Mapping[str, Any] | None = None,
        consent: bytes = b"",
        accepted: Sequence[str] = (),
        ledger: Ledger | None = None,
        repeatable: bool = False,
    ):
        self.repeatable = repeatable
        self.consent, self.accepted = consent, [str(name) for name in fold(list(accepted))]
        self.graph, self.rules, self.keyring, self.client = graph, rules, keyring, graph.client
        self.before = ledger or Ledger()
        if problem := self._misfit():
            raise FedGraphError(f"the file of client {self.client} {problem}")
        stored = memory or {}
        held = {key: stored[key].tobytes() for key in ("private", "root", "session", "names") if key in stored}
        self.sealer = Sealer(self.client, held.get("private"))
        self.root: bytes = held.get("root") or secrets.token_bytes(32)
        self.session: bytes = held.get("session", b"")
        self.nodes: list[int] = stored["nodes"].tolist() if "nodes" in stored else []
        self.done = int(stored["done"][0]) if "done" in stored else 0
        self.names: dict[int, str] = {}
        self.roles: dict[int, str] = {self.client: graph.linking.get("role", "")}
        if "names" in held:
            self.names, self.roles = (dict(enumerate(words)) for words in json.loads(held["names"]))
        self.pairs: dict[int, dict[str, Any]] = {int(k): dict(v) for k, v in stored.get("pairs", {}).items()}
        if "keys" in stored:
            self.sealer.meet({k: key.tobytes() for k, key in enumerate(stored["keys"])})
        self.conflicts: dict[int, int] = {}
        self.unknown: dict[int, int] = {}
        self._values: dict[int, tuple[Ints, list[bytes]]] = {}
        self._old: dict[int, Ints] = {}
        self._edge_data: dict[int, dict[str, Tensor]] = {}
        self._done: ClientGraph | None = None
        self._files: dict[int, bytes] = {}
        self._intersections: dict[int, tuple[Ints, Ints]] = {}

    def _misfit(self) -> str:
        """Return why the file cannot be linked, as the end of an error; empty if it can be."""
        graph = self.graph
        if not isinstance(graph, ClientGraph):
            return (
                "holds a heterogeneous graph; link matches edges of graphs with one node type: import only the nodes and edges"
                " of one type"
            )
        if "link" in graph.linking or graph.cut_out.numel() or graph.cut_in.numel():
            return "is already linked: pass the file that `import` wrote"
        if not is_secret(graph.linking.get("secret", "0" * 64)):
            return "has a damaged secret of its party: import it again"
        named = {"party", "parties"} <= graph.linking.keys()
        if self.rules.identities and not len(graph.ids):
            return "has no ids of nodes: import it from tables"
        if self.rules.identities or (named and graph.foreign_id.size(1)):
            return ""
        return (
            f"names no {'record of another party' if named else 'party'}: import it with --own-party and party_columns, or"
            " match accounts: pass --match ids"
        )

    @property
    def carried(self) -> list[str]:
        """The kinds of `DATA` that the party's edges or records carry."""
        graph = self.graph
        return [key for key in DATA if getattr(graph, key).numel() or getattr(graph, f"foreign_{key}").numel()]

    @property
    def secret(self) -> bytes:
        """The party's secret, which its import stored in the file; for other files, one of this run."""
        return bytes.fromhex(self.graph.linking.get("secret", "")) or hashlib.sha256(b"secret" + self.root).digest()

    @property
    def _salted(self) -> bytes:
        """The secret that keys the hash of the linked file, which peers see."""
        return self.secret if self.repeatable else self._to(self.client, self.client, b"salt", self.secret)

    # --- state between messages ---------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state as a nested dict of arrays; it holds secrets and stays with the party."""
        tree: dict[str, Any] = {"private": _bytes(self.sealer.private), "root": _bytes(self.root)}
        tree["done"] = np.array([self.done])
        if self.session:
            keys = {**self.sealer.peers, self.client: self.sealer.public}
            tree |= {"session": _bytes(self.session), "nodes": np.array(self.nodes)}
            tree |= {"keys": as_rows([keys[k] for k in sorted(keys)], 32)}
        if self.names:
            texts = [[by_client[k] for k in sorted(self.names)] for by_client in (self.names, self.roles)]
            tree["names"] = _bytes(json.dumps(texts).encode())
        if self.pairs:
            tree["pairs"] = {str(k): dict(pair) for k, pair in self.pairs.items() if pair}
        return tree

    # --- phases -------------------------------------------------------------------------------------------------------

    def announcement(self) -> Arrays:
        """Return what the party publishes: its key and its number of nodes, signed if it has a long-lived key."""
        return {**self._public, **self.keyring.sign(ANNOUNCE, _announced(self._public))}

    @property
    def _public(self) -> Arrays:
        return {"key": _bytes(self.sealer.public), "nodes": np.array([self.graph.num_nodes], dtype=np.int64)}

    def meet(self, announced: Mapping[int, Arrays], signatures: Mapping[str, Any]) -> None:
        """Take the announcements of all parties, by client.

        Raises:
            RunFailed: a client is missing, or an announcement is not its party's.
        """
        if sorted(announced) != list(range(self.graph.num_clients)):
            raise RunFailed(
                f"link needs announcements of all {self.graph.num_clients} clients, got those of {sorted(announced)}"
            )
        statements = {k: _announced(arrays) for k, arrays in announced.items()}
        session = hashlib.sha256(b"fedgraph link" + b"".join(statements[k] for k in sorted(statements))).digest()
        self.keyring.check(ANNOUNCE, _announced(self._public), statements, signatures)
        if self.session not in (b"", session):
            raise RunFailed(
                f"client {self.client} received other announcements than at the start of this link run: start a new one"
            )
        self.sealer.meet({k: arrays["key"].tobytes() for k, arrays in announced.items()})
        self.nodes = [int(announced[k]["nodes"][0]) for k in sorted(announced)]
        self.session = session

    def step(self, phase: str, envelopes: Mapping[int, NDArray[np.uint8]], before: str) -> dict[int, NDArray[np.uint8]]:
        """Open the envelopes of the phase before, and return those of this phase by receiver.

        Args:
            phase: one of `LinkRules.phases` after ``announce``.
            envelopes: sealed contents of the other parties, by sender.
            before: the phase in which they were sealed.

        Raises:
            RunFailed: an envelope is missing, altered or repeated, or a peer breaks the protocol.
        """
        order = self.rules.phases
        if [before, phase] != order[self.done : self.done + 2]:
            raise RunFailed(
                f"the server requests phase '{sanitize(phase, 40)}' of link from client {self.client} after phase"
                f" '{order[self.done]}', expected '{(order[self.done + 1 :] or ['no further phase'])[0]}'"
            )
        if before != ANNOUNCE and sorted(envelopes) != self.peers:
            raise RunFailed(
                f"client {self.client} needs messages of clients {self.peers} in phase '{before}' of link, got those of"
                f" {sorted(envelopes)}"
            )
        for peer in self.peers if before != ANNOUNCE else ():
            try:
                getattr(self, f"_take_{before}")(peer, self._opened(peer, before, envelopes[peer]))
            except _INVALID as error:
                raise RunFailed(
                    f"client {peer} sent client {self.client} an invalid message in phase '{before}' of link"
                    f" ({sanitize(first_line(error), 120)}): nothing is written; install one version of fedgraph-flwr at both"
                ) from error
        make: Callable[[int], Arrays] | None = getattr(self, f"_make_{phase}", None)
        sent = {k: self._sealed(k, phase, make(k)) for k in self.peers} if make else {}
        self.done += 1
        return sent

    @property
    def peers(self) -> list[int]:
        """The other clients."""
        return [k for k in range(self.graph.num_clients) if k != self.client]

    def _opened(self, peer: int, step: str, envelope: NDArray[np.uint8]) -> Arrays:
        content = self.sealer.open(peer, f"link {step}", envelope)["content"].tobytes()
        return load(content[8 : 8 + int.from_bytes(content[:8], "little")])

    def _sealed(self, peer: int, step: str, arrays: Arrays) -> NDArray[np.uint8]:
        """Seal arrays padded with zeros to a power of two, so that sizes tell little."""
        raw = save({key: np.ascontiguousarray(array) for key, array in arrays.items()})
        content = len(raw).to_bytes(8, "little") + raw
        padded = content.ljust(max(1024, 1 << (len(content) - 1).bit_length()), b"\0")
        return self.sealer.seal(peer, f"link {step}", {"content": _bytes(padded)})

    # --- introduce ----------------------------------------------------------------------------------------------------

    def introduction(self) -> dict[str, Any]:
        """Return what the parties must know of each other, and have alike where it matters."""
        graph = self.graph
        schema = agreed_schema(graph.schema, "the import")
        return {
            "name": graph.linking.get("party", ""),
            "form": graph.linking.get("form", ""),
            "rules": self.rules.common,
            "schema": schema.to_dict() if schema else {},
            "undirected": undirected(graph),
            "consent": self.consent.hex(),
            "role": graph.linking.get("role", ""),
            "share": [[column.name, column.form] for column in self.told_columns],
            "own columns": {key: value for key, value in graph.own_columns.items() if key != "until"},
            "data": self.carried if graph.edge_index.numel() or graph.foreign.numel() else None,
        }

    def _make_introduce(self, peer: int) -> Arrays:
        return {"introduction": _bytes(json.dumps(self.introduction()).encode())}

    def _take_introduce(self, peer: int, arrays: Arrays) -> None:
        introduction, other = self.introduction(), json.loads(arrays["introduction"].tobytes())
        self._check_alike(peer, introduction, other)
        self.names = dict(
            sorted({**self.names, peer: str(other["name"]), self.client: str(introduction["name"])}.items())
        )
        self.roles[peer] = str(other["role"])
        for client, name in self.names.items():
            if self.accepted and self.accepted[client : client + 1] != [name]:
                listing = ", ".join(f"'{sanitize(wanted, 60)}'" for wanted in self.accepted)
                raise RunFailed(
                    f"client {client} calls itself '{sanitize(name, 60)}': this node's policy accepts {listing}, by client (link:"
                    " names)"
                )
            same = [number for number, other in self.names.items() if name and other == name]
            if len(same) > 1:
                raise RunFailed(
                    f"clients {same[0]} and {same[1]} both call themselves '{sanitize(name, 60)}': import one with another"
                    " --own-party"
                )

    def _check_alike(self, peer: int, introduction: Mapping[str, Any], other: Mapping[str, Any]) -> None:
        """Require that a peer's introduction has the same rules, options and schema."""
        for key in ("rules", "form", "undirected", "consent", "share", "own columns", "data"):
            if self.rules.identities and key in ("form", "data"):
                continue
            if other[key] != introduction[key] and None not in (other[key], introduction[key]):
                raise RunFailed(
                    f"clients {self.client} and {peer} differ in {key}: {sanitize(_text(introduction[key]))} here,"
                    f" {sanitize(_text(other[key]))} there; import both with the same options (--match-columns, id_form,"
                    " --undirected, columns.time, columns.edge_label, windows, features), and link them with the"
                    " same options"
                )
        if introduction["schema"] and other["schema"]:
            schema = Schema.from_dict(introduction["schema"], f"client {self.client}")
            if difference := schema.difference(Schema.from_dict(other["schema"], f"client {peer}")):
                raise RunFailed(
                    f"clients {self.client} and {peer} have different schemas ({sanitize(difference)}): import both with one"
                    " --schema FILE"
                )

    # --- the sets -----------------------------------------------------------------------------------------------------

    def nodes_for(self, peer: int) -> Ints:
        """Return the nodes that may be shared with a peer."""
        return np.arange(self.graph.num_nodes)

    def place_of(self, peer: int) -> int:
        """Return the place of a peer among the parties that the own tables name; -1 if they do not name it."""
        parties, name = self.graph.linking["parties"], self.names[peer]
        return parties.index(name) if name in parties else -1

    def values(self, peer: int) -> tuple[Ints, list[bytes]]:
        """Return the rows and keys of what may be shared with a peer: records, or identities."""
        if peer not in self._values:
            graph = self.graph
            if self.rules.identities:
                rows = self.nodes_for(peer)
                keys = [str(word).encode() for word in normal_ids(unpack_words(graph.ids)[rows], id_form(graph))]
            else:
                rows = np.flatnonzero(graph.foreign[1].numpy() == self.place_of(peer))
                rows, keys = self._without_matched(peer, rows, files.record_keys(graph, rows, self.names[peer]))
            if len(keys) > (most := self.rules.max_ids):
                raise RunFailed(
                    f"client {self.client} has {len(keys)} records for client {peer}, expected at most {most} (--max-ids)"
                )
            self._values[peer] = rows, keys
        return self._values[peer]

    def _without_matched(self, peer: int, rows: Ints, keys: list[bytes]) -> tuple[Ints, list[bytes]]:
        """Return rows and keys without those that the last link matched."""
        if not self.rules.increment:
            return rows, keys
        if self.before.peers and self.before.basis != basis_of(self.introduction()):
            raise RunFailed(
                f"client {self.client} links with another schema or other options of import than in the last link: import with"
                " those, or link without --since"
            )
        old, fresh = self._known(peer).divide(self.graph, rows, keys, peer)
        self._old[peer] = rows[old]
        return rows[fresh], [keys[row] for row in fresh.tolist()]

    def _known(self, peer: int) -> Matched:
        """Return the records that the last link matched with a peer."""
        return self.before.peers.get(self.names[peer], Matched()) if self.rules.increment else Matched()

    def _matched(self, peer: int, order: Ints) -> Ints:
        """Return the records that both have: those of the last link, then those of `values` at these places."""
        rows = self.values(peer)[0][order]
        return np.concatenate([self._old.get(peer, rows[:0]), rows])

    def _ledger_digest(self, peer: int, sender: int) -> Arrays:
        """Return a hash of the records of the last link, by which a sender shows that it keeps them; only of an increment."""
        receiver = peer if sender == self.client else self.client
        digest = self._to(sender, receiver, b"ledger", self._known(peer).digest)
        return {"ledger": _bytes(digest)} if self.rules.increment else {}

    def ledger(self) -> Ledger:
        """Return the records that are matched now, for the next link."""
        self.result()
        peers = {}
        for peer in [] if self.rules.identities else self.peers:
            shared, (rows, keys) = self._ordered(peer), self.values(peer)
            matched_keys = [*self._known(peer).keys, *(keys[place].decode() for place in shared)]
            alone = [keys[place].decode() for place in np.setdiff1d(np.arange(rows.size), shared)]
            known = booked(self.graph, self._matched(peer, shared))
            peers[self.names[peer]] = in_order(matched_keys, self._edge_data[peer], known, alone)
        return Ledger(self.names[self.client], basis_of(self.introduction()), peers)

    def _purpose(self, peer: int) -> bytes:
        first, second = sorted((self.client, peer))
        return b"fedgraph link" + self.session + f"{self.rules.match}:{first}:{second}:".encode()

    def _secret_of(self, peer: int, purpose: bytes) -> bytes:
        """Return a secret for a peer in this run; a repeated step has the same."""
        bound = b"fedgraph link " + purpose + self.root + self.session + f"{peer}".encode()
        return hashlib.sha256(bound).digest()

    def _to(self, sender: int, receiver: int, purpose: bytes, content: bytes) -> bytes:
        """Return a hash of what one client sends another in this run."""
        bound = b"fedgraph link " + purpose + self.session + f"{sender}>{receiver}:".encode()
        return hashlib.sha256(bound + content).digest()

    def _mask(self, peer: int) -> Mask:
        return Mask(self._secret_of(peer, b"scalar"))

    def _make_commit(self, peer: int) -> Arrays:
        values = self.values(peer)[1]
        masks, places = self._mask(peer).masks(values, self._purpose(peer), self._padded(len(values)))
        self.pairs[peer] = {"masks": masks, "places": places}
        return {
            "size": np.array([len(masks)]),
            "commitment": matching.commitment(masks),
            **self._ledger_digest(peer, self.client),
        }

    def _take_commit(self, peer: int, arrays: Arrays) -> None:
        self._take_size(peer, arrays)
        committed = array_of(arrays, "commitment", (32,))
        if np.array_equal(committed, matching.commitment(self.pairs[peer]["masks"])):
            raise RunFailed(
                f"client {peer} copied the commitment of client {self.client}, expected its own: no masks are sent"
            )
        self.pairs[peer]["commitment"] = committed

    def _take_size(self, peer: int, arrays: Arrays) -> None:
        """Take the padded size of a peer's set, if the peer keeps the same records of the last link."""
        for key, digest in self._ledger_digest(peer, peer).items():
            if not np.array_equal(arrays[key], digest):
                raise RunFailed(
                    f"clients {self.client} and {peer} keep different records of the last link: link without --since"
                )
        size = array_of(arrays, "size", (1,), "int64")
        self._check_size(peer, int(size[0]))
        self.pairs[peer]["size"] = size

    def _most(self, client: int) -> int:
        """Return the largest padded set of a client that all parties know."""
        most = self.rules.max_ids
        return min(most, math.ceil(MOST_PER_NODE * self.nodes[client])) if self.rules.identities else most

    def _padded(self, size: int) -> int:
        """Return the padded size of an own set: a power of two, or the limit that all parties know."""
        return max(min(matching.bucket(size), self._most(self.client)), size)

    def _check_size(self, peer: int, size: int) -> None:
        """Refuse a set that is too large. The limits hold for padded sets: a peer may hide guesses in its padding.

        Raises:
            RunFailed: names the limits.
        """
        most = self._most(peer)
        if not self.rules.identities:
            most = min(most, max(matching.FEWEST, int(self.rules.max_ratio * len(self.values(peer)[1]))))
        if not 0 < size <= most:
            raise RunFailed(
                f"client {peer} announces a padded set of {size} for client {self.client}, which accepts up to {most} (max_ids"
                f" {self.rules.max_ids}, max_ratio {self.rules.max_ratio:g} times the own records, {self.nodes[peer]} announced"
                f" nodes{self._of_increment})"
            )

    @property
    def _of_increment(self) -> str:
        """What limits count with ``--since``: not what the last link matched, behind which a peer could hide single guesses."""
        return (
            "; with --since only new records count: wait for more, or link without it" if self.rules.increment else ""
        )

    def _make_mask(self, peer: int) -> Arrays:
        return {"masks": self.pairs[peer]["masks"]}

    def _take_mask(self, peer: int, arrays: Arrays) -> None:
        pair = self.pairs[peer]
        masks = array_of(arrays, "masks", (int(pair["size"][0]), 32))
        if not np.array_equal(matching.commitment(masks), pair["commitment"]):
            raise RunFailed(
                f"client {peer} sent client {self.client} masks that do not match its commitment: no replies are sent"
            )
        doubled = self._mask(peer).double(masks, f"client {peer}")
        pair["doubled"] = doubled[matching.shuffled(len(doubled))] if self.rules.dry_run else doubled

    def _replies(self, peer: int) -> NDArray[np.uint8]:
        """Return the rows that a peer compares with its own: replies to its masks, or hashes of the own keys."""
        return self.pairs[peer]["replies" if self.rules.match == "routed" else "doubled"]

    def _nonce(self, peer: int) -> bytes:
        """Return a secret that hides the rows in their commitment."""
        return self._secret_of(peer, b"nonce")

    def _binding(self, sender: int, receiver: int, nonce: bytes, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the commitment to rows that one client sends another, 32 bytes."""
        return _bytes(self._to(sender, receiver, b"seal", nonce + rows.tobytes()))

    def _check_binding(self, peer: int, arrays: Arrays, rows: NDArray[np.uint8]) -> None:
        """Refuse rows of a peer that it did not commit to before it could see the own ones.

        Raises:
            RunFailed: they are the own rows sent back, or other rows than those committed to.
        """
        if np.array_equal(rows, self._replies(peer)):
            raise RunFailed(
                f"client {peer} copied the replies of client {self.client}, expected its own: no rows are sent"
            )
        nonce = array_of(arrays, "nonce", (32,)).tobytes()
        if not np.array_equal(self._binding(peer, self.client, nonce, rows), self.pairs[peer]["binding"]):
            raise RunFailed(
                f"client {peer} sent client {self.client} replies that do not match its commitment: no rows are sent"
            )

    def _make_seal(self, peer: int) -> Arrays:
        return {"binding": self._binding(self.client, peer, self._nonce(peer), self._replies(peer))}

    def _take_seal(self, peer: int, arrays: Arrays) -> None:
        self.pairs[peer]["binding"] = array_of(arrays, "binding", (32,))

    def _make_double(self, peer: int) -> Arrays:
        return {"doubled": self._replies(peer), "nonce": _bytes(self._nonce(peer))}

    def _take_double(self, peer: int, arrays: Arrays) -> None:
        pair = self.pairs[peer]
        replies = array_of(arrays, "doubled", (len(pair["masks"]), REPLY))
        self._check_binding(peer, arrays, replies)
        pair["replies"] = replies
        del pair["masks"]
        self._check_shared(peer)

    # --- proof of knowledge -------------------------------------------------------------------------------------------

    def _proof(self, peer: int) -> tuple[Mask, bytes]:
        """Return the scalar and the point by which this party proves that it knows the shared values."""
        order = self._ordered(peer) if self.client < peer else self._by_mask(peer)[0]
        known, purpose = self.values(peer)[1], self._purpose(peer) + b"proof"
        return matching.proof(self._secret_of(peer, b"proof"), [known[place] for place in order], purpose)

    def _make_prove(self, peer: int) -> Arrays:
        return {"position": self._by_mask(peer)[1], "point": _bytes(self._proof(peer)[1])}

    def _take_prove(self, peer: int, arrays: Arrays) -> None:
        self._checked_order(peer, arrays)
        key = self._proof(peer)[0].times(array_of(arrays, "point", (POINT,)).tobytes(), f"client {peer}")
        tags = [self._to(*ends, b"agree", key) for ends in ((self.client, peer), (peer, self.client))]
        self.pairs[peer] |= {"tag": _bytes(tags[0]), "expected": _bytes(tags[1])}

    def _make_agree(self, peer: int) -> Arrays:
        return {"tag": self.pairs[peer]["tag"]}

    def _take_agree(self, peer: int, arrays: Arrays) -> None:
        if not np.array_equal(array_of(arrays, "tag", (POINT,)), self.pairs[peer]["expected"]):
            raise RunFailed(
                f"client {peer} could not prove that it holds all {int(self.pairs[peer]['found'][1])} records that client"
                f" {self.client} matched with it: no rows are sent"
            )

    def _by_mask(self, peer: int) -> tuple[Ints, Ints]:
        """Return the own shared values and their places among the peer's masks, in the order of these."""
        shared, remote = self.intersection(peer)
        order = np.argsort(remote)
        return shared[order], remote[order]

    def _checked_order(self, peer: int, arrays: Arrays) -> Ints:
        """Return the own shared values in the order of a peer's message, which has the places of the own masks.

        Raises:
            RunFailed: the peer shares other records.
        """
        shared = self._ordered(peer)
        if not np.array_equal(arrays["position"], self.pairs[peer]["places"][shared]):
            raise RunFailed(
                f"clients {self.client} and {peer} matched different records: one of them replied to the masks in another order;"
                " nothing is written"
            )
        return shared

    # --- routed -------------------------------------------------------------------------------------------------------

    def _make_ask_commit(self, peer: int) -> Arrays:
        values = self.values(peer)[1]
        hashes = [hashlib.sha256(self._purpose(peer) + value).digest()[:REPLY] for value in values]
        padded = self._padded(len(hashes))
        order = matching.shuffled(padded)
        rows = as_rows([*hashes, *(secrets.token_bytes(REPLY) for _ in range(padded - len(hashes)))], REPLY)[order]
        self.pairs[peer] = {"replies": rows, "places": np.argsort(order)[: len(values)]}
        return {"size": np.array([padded]), **self._make_seal(peer), **self._ledger_digest(peer, self.client)}

    def _take_ask_commit(self, peer: int, arrays: Arrays) -> None:
        self._take_size(peer, arrays)
        self._take_seal(peer, arrays)

    def _make_ask(self, peer: int) -> Arrays:
        return {"hashes": self._replies(peer), "nonce": _bytes(self._nonce(peer))}

    def _take_ask(self, peer: int, arrays: Arrays) -> None:
        pair = self.pairs[peer]
        hashes = array_of(arrays, "hashes", (int(pair["size"][0]), REPLY))
        self._check_binding(peer, arrays, hashes)
        pair["doubled"] = hashes
        self._check_shared(peer)

    # --- what is shared -----------------------------------------------------------------------------------------------

    def intersection(self, peer: int) -> tuple[Ints, Ints]:
        """Return the shared values: their place among `values`, and the place of each among the peer's masks [S]."""
        if peer not in self._intersections:
            pair = self.pairs[peer]
            replies, remote = matching.shared(pair["replies"], pair["doubled"])
            value = np.full(len(pair["replies"]), -1)
            value[pair["places"]] = np.arange(len(pair["places"]))
            real = value[replies] >= 0
            self._intersections[peer] = value[replies][real], remote[real]
        return self._intersections[peer]

    def _check_shared(self, peer: int) -> None:
        """Refuse to continue where a pair shares too few or too many.

        Raises:
            RunFailed: names the numbers and the limit.
        """
        records = len(self.values(peer)[1])
        pair = self.pairs[peer]
        # In a dry run the order is lost, the number is not.
        shared = matching.shared(pair["replies"], pair["doubled"]) if self.rules.dry_run else self.intersection(peer)
        count = len(shared[0])
        pair["found"] = np.array([records, count])
        if 0 < count < self.rules.min_shared:
            raise RunFailed(
                f"clients {self.client} and {peer} share fewer than {self.rules.min_shared} (min_shared{self._of_increment}):"
                " no rows are sent"
            )
        if count > self.rules.max_shared * max(records, 1):
            raise RunFailed(
                f"clients {self.client} and {peer} share more than {self.rules.max_shared:g} of the set of client"
                f" {self.client} (max_shared): no rows are sent"
            )

    # --- match --------------------------------------------------------------------------------------------------------

    @cached_property
    def _prepared(self) -> tuple[ClientGraph, Ints, int]:
        """The graph with stubs, the place of each node among the party's own (-1: a lower client's), and their number."""
        graph = self.graph
        if self.rules.one_sided == "stub":
            graph = files.with_stubs(graph, self._unmatched())
        order = files.own_order(graph, self.secret).numpy()
        owned = np.ones(graph.num_nodes, dtype=bool)
        if self._overlaps:
            for peer in self.peers:
                if peer < self.client:
                    owned[self.intersection(peer)[0]] = False
        order = order[owned[order]]
        rows = np.full(graph.num_nodes, -1)
        rows[order] = np.arange(order.size)
        return graph, rows, order.size

    @property
    def _overlaps(self) -> bool:
        return self.rules.match == "ids" and self.rules.entities == "overlap"

    def _unmatched(self) -> Ints:
        """Return the records that no other party has, also those of parties that are no client."""
        alone = np.ones(self.graph.foreign.size(1), dtype=bool)
        for peer in self.peers:
            alone[self._matched(peer, self.intersection(peer)[0])] = False
        return np.flatnonzero(alone)

    def _sends_data(self, peer: int, rows: Ints) -> NDArray[np.bool_]:
        """Return for which records this party's data count: those that start here, or of the lower client."""
        if undirected(self.graph):
            return np.full(rows.size, self.client < peer)
        return self.graph.foreign_out.numpy()[rows]

    def _make_match(self, peer: int) -> Arrays:
        _, places, count = self._prepared
        shared, remote = self._by_mask(peer)
        content: Arrays = {"count": np.array([count]), "position": remote}
        if self.rules.identities:
            return content | {"row": places[self.values(peer)[0][shared]]}
        rows = self.values(peer)[0][shared]
        node = self.graph.foreign[0].numpy()[self._matched(peer, shared)]
        content |= {"row": places[node], **self._data(rows[self._sends_data(peer, rows)], "")}
        if self.rules.discloses:
            alone = np.setdiff1d(self.values(peer)[0], rows)
            ids = normal_ids(unpack_words(self.graph.foreign_id)[alone], id_form(self.graph))
            content |= {
                "alone_id": as_rows([self._account(peer, str(word)) for word in ids], REPLY),
                "alone_row": places[self.graph.foreign[0].numpy()[alone]],
                "alone_out": self.graph.foreign_out.numpy()[alone],
                **self._data(alone, "alone_"),
            }
        return content

    def _account(self, peer: int, word: str) -> bytes:
        return hashlib.sha256(self._purpose(peer) + b"account" + word.encode()).digest()[:REPLY]

    def _data(self, rows: Ints, prefix: str) -> Arrays:
        """Return the data of records, under the names of the message."""
        return {f"{prefix}{key}": values.numpy() for key, values in booked(self.graph, rows).items()}

    def _take_match(self, peer: int, arrays: Arrays) -> None:
        shared, old = self._checked_order(peer, arrays), len(self._known(peer).keys)
        most = self.nodes[peer] + (self.rules.max_ids * len(self.peers) if self.rules.one_sided == "stub" else 0)
        last = max(int(array_of(arrays, "count", (1,), "int64", 0, most)[0]), 1) - 1
        array_of(arrays, "row", (shared.size + old,), "int64", -1 if self._overlaps else 0, last)
        if not self.rules.identities:
            sends = self._sends_data(peer, self.values(peer)[0][shared])
            self._take_data(arrays, "", sends.size - int(sends.sum()))
        if self.rules.discloses:
            size = len(arrays["alone_row"])
            if size > self.rules.max_ids:
                raise RunFailed(
                    f"client {peer} disclosed {size} records, expected at most {self.rules.max_ids} (--max-ids)"
                )
            array_of(arrays, "alone_row", (size,), "int64", 0, last)
            array_of(arrays, "alone_out", (size,), "bool")
            array_of(arrays, "alone_id", (size, REPLY))
            self._take_data(arrays, "alone_", size)
        self.pairs[peer]["match"] = arrays

    def _take_data(self, arrays: Arrays, prefix: str, count: int) -> None:
        """Require data of edges that do not break training: finite features, labels of a class, times that can be subtracted."""
        limits = {"edge_y": (-1, max(self.graph.num_edge_classes, 1) - 1), "edge_time": (-(2**62), 2**62)}
        for key in self.carried:
            columns = record_columns(self.graph, key, getattr(self.graph, f"foreign_{key}").numpy())
            if not count:
                arrays.setdefault(f"{prefix}{key}", columns[:0])  # a party without records sends no data
            bounds = limits.get(key, (-LARGEST, LARGEST))
            array_of(arrays, f"{prefix}{key}", (count, *columns.shape[1:]), columns.dtype.name, *bounds)

    def _make_resolve(self, peer: int) -> Arrays:
        _, places, _ = self._prepared
        return {"row": np.where((nodes := self._named(peer)) >= 0, places[nodes], -1)}

    def _named(self, peer: int) -> Ints:
        """Return the own node that each one-sided record of a peer names; -1 for an unknown account."""
        ids = normal_ids(unpack_words(self.graph.ids), id_form(self.graph))
        accounts = {self._account(peer, str(word)): node for node, word in enumerate(ids)}
        asked = self.pairs[peer]["match"]["alone_id"]
        return np.array([accounts.get(row.tobytes(), -1) for row in asked], dtype=np.int64)

    def _take_resolve(self, peer: int, arrays: Arrays) -> None:
        shared, _ = self.intersection(peer)
        alone = len(self.values(peer)[0]) - shared.size
        last = int(self.pairs[peer]["match"]["count"][0]) - 1
        self.pairs[peer]["resolve"] = {"row": array_of(arrays, "row", (alone,), "int64", -1, last)}

    # --- columns of far ends ------------------------------------------------------------------------------------------

    @cached_property
    def columns(self) -> list[Column]:
        """The columns of accounts that the parties tell each other."""
        return shared_columns(self.graph, self.rules.share) if self.rules.share else []

    @cached_property
    def records(self) -> list[tuple[Column, Column]]:
        """The columns of edges that each party tells of its own end."""
        return shared_records(self.graph, self.rules.share)

    @property
    def told_columns(self) -> list[Column]:
        """All columns that the parties tell each other."""
        return [*self.columns, *(source for source, _ in self.records)]

    @property
    def told_of(self) -> tuple[ClientGraph, list[Column]]:
        """The graph and its columns of accounts that this party tells others."""
        return self.linked, self.columns

    def told_values(self, peer: int, rows: Ints) -> NDArray[np.float32]:
        """Return features of nodes of `told_of`, whose columns of the recipe do not read records with a peer [K, F].

        The peer could otherwise probe an account by its own payments (`data.far_ends`).
        """
        graph, columns = self.told_of
        x = graph.x.numpy()[rows]
        return (
            without_records(graph, x, files.booked_with(graph, self.names[peer]), rows)
            if reads_book(graph, columns)
            else x
        )

    def others_records(self, peer: int) -> Ints:
        """Return the number of records of each node of the linked graph that are not with a peer [N]."""
        counts = record_counts(self.linked, without=peer)
        if self.rules.one_sided == "stub":  # unmatched records are edges to stubs
            rows, places = self._unmatched(), self._prepared[1]
            with_peer = self.graph.foreign[1].numpy()[rows] == self.place_of(peer)
            stubs = places[self.graph.foreign[0].numpy()[rows[with_peer]]]
            counts = counts - np.bincount(stubs, minlength=counts.size) * (1 + undirected(self.graph))
        return counts

    def told_to(self, peer: int) -> list[Column]:
        """Return the columns of accounts that this party tells a peer, which its ledger books."""
        return self.told_columns

    def told(self, peer: int) -> tuple[Ints, list[NDArray[Any]], list[bytes]]:
        """Return what this party tells a peer: rows of the linked graph [K], codes or values by column, and the accounts' ids."""
        graph, columns = self.told_of
        rows = told_rows(graph, peer)
        rows = rows[enough(self.others_records(peer)[rows], self.rules.min_records)]
        names = self._names_of(graph, rows)
        return rows, encoded(columns, self.told_values(peer, rows), self.key_of_draws, names), names

    @property
    def key_of_draws(self) -> bytes:
        """Key of the draws of randomised response: another in each link, or, if that is `repeatable`, for other values."""
        of_link = hashlib.sha256(self.graph.x.numpy().tobytes()).digest() if self.repeatable else self.session
        return self.secret + of_link

    def _names_of(self, graph: ClientGraph, rows: Ints) -> list[bytes]:
        """Return the ids of own nodes as this party compares them [K]."""
        return [str(name).encode() for name in normal_ids(unpack_words(graph.ids)[rows], id_form(self.graph))]

    def _make_share(self, peer: int) -> Arrays:
        rows, codes, _ = self.told(peer)
        arrays = {"account": self.linked.node_id.numpy()[rows], **{str(i): values for i, values in enumerate(codes)}}
        return arrays | self._told_records(peer)

    def _told_records(self, peer: int) -> Arrays:
        """Return the columns of the own ends of shared records, in the order of the rows of `_make_match`.

        They do not read records with the peer, which adds them itself.
        """
        if not self.records:
            return {}
        rows = self._matched(peer, self._by_mask(peer)[0])
        graph, recipe = self.graph, recipe_of(self.graph)
        assert recipe is not None  # `records` names columns of it
        node, times = graph.foreign[0].numpy()[rows], graph.foreign_edge_time.numpy()[rows]
        known = enough(self.others_records(peer)[self._prepared[1][node]], self.rules.min_records)
        others = Book.of(graph.book).where(~files.booked_with(graph, self.names[peer]))
        values, arrays = columns_at(others, recipe, node, times), Arrays(known=known)
        for place, (source, _) in enumerate(self.records):
            column = values[source.name.removeprefix(EDGES)]
            arrays[f"edge {place}"] = source.encode(np.where(known, column, 0), b"", ())
        return arrays

    def _take_share(self, peer: int, arrays: Arrays) -> None:
        graph, ids = self.linked, arrays["account"]
        array_of(arrays, "account", (len(ids),), "int64")
        known = [getattr(graph, cut)[1, getattr(graph, f"{cut}_owner") == peer] for cut in ("cut_out", "cut_in")]
        if (np.diff(ids) <= 0).any() or not np.isin(ids, torch.cat(known).numpy()).all():
            raise RunFailed(
                f"client {peer} sent columns of accounts that are in no record shared with client {self.client}, or of one"
                " account twice: nothing is written"
            )
        both = self._matched(peer, self._ordered(peer)).size
        columns = {str(place): (column, ids.size) for place, column in enumerate(self.columns)}
        columns |= {f"edge {place}": (column, both) for place, (column, _) in enumerate(self.records)}
        if self.records:
            array_of(arrays, "known", (both,), "bool")
        self._take_columns(peer, arrays, columns)

    def _take_columns(self, peer: int, arrays: Arrays, columns: Mapping[str, tuple[Column, int]]) -> None:
        """Take a peer's columns: the expected ones, by their key with their number of values, in their form."""
        if extra := sorted(arrays.keys() - columns.keys() - {"account", "known"}):
            raise ValueError(f"column '{extra[0]}', which the rules or its role do not name")
        for key, (column, count) in columns.items():
            exact = column.form == EXACT
            low, high = (-LARGEST, LARGEST) if exact else column.codes
            name = f"column '{column.name}' ({column.form})"
            array_of(arrays, key, (count,), "float32" if exact else "int8", low, high, name)
        self.pairs[peer]["share"] = arrays

    def _with_told(self, peer: int, attr: Tensor, outgoing: NDArray[np.bool_]) -> Tensor:
        """Return features of shared records with the columns that the peer told of its ends, in the order of its rows.

        They join the own records with those accounts, which the peer leaves out.
        """
        arrays = self.pairs[peer].get("share", {})
        attr = attr.clone()
        for place, (source, target) in enumerate(self.records if arrays else ()):
            far = torch.arange(len(attr)), torch.from_numpy(np.where(outgoing, target.place, source.place))
            told = source.decode(arrays[f"edge {place}"])
            attr[far] = torch.from_numpy(joined(source, attr[far].numpy(), told, arrays["known"]))
        return attr

    def _with_shares(self, graph: ClientGraph) -> ClientGraph:
        """Return the linked graph with the columns that the peers told of their accounts."""
        values = np.full((graph.far_id.numel(), len(self.columns)), np.nan, dtype=np.float32)
        for peer in self.peers:
            arrays = self.pairs[peer]["share"]
            rows = np.searchsorted(graph.far_id.numpy(), arrays["account"])
            for place, column in enumerate(self.columns):
                values[rows, place] = column.decode(arrays[str(place)])
        if self.records:
            told = [[source.place, target.place] for source, target in self.records]
            graph = replace(graph, own_columns={**graph.own_columns, "told": told})
        return replace(widened(graph, self.columns), far_x=torch.from_numpy(values))

    # --- the linked file ----------------------------------------------------------------------------------------------

    def result(self) -> ClientGraph:
        """Return the linked graph, with the columns of far ends that the peers shared."""
        if self._done is None:
            graph = self._joined() if self.records else self.linked
            self._done = self._with_shares(graph) if self.rules.share else graph
        return self._done

    @cached_property
    def linked(self) -> ClientGraph:
        """The linked graph, without shared columns."""
        return self._joined()

    def _joined(self) -> ClientGraph:
        """Return the linked graph with the columns of edges that are known so far."""
        graph, places, count = self._prepared
        counts = [
            int(self.pairs[k]["match"]["count"][0]) if k != self.client else count for k in range(graph.num_clients)
        ]
        starts = np.cumsum([0, *counts]).tolist()
        ids = np.where(places < 0, -1, places + starts[self.client])
        edges: dict[int, Edges] = {}
        for peer in self.peers:
            shared, rows = self._ordered(peer), self.pairs[peer]["match"]["row"]
            if self._overlaps and peer < self.client:
                new = (ids[shared] < 0) & (rows >= 0)  # clients ascend: the lowest one's number counts
                ids[shared[new]] = starts[peer] + rows[new]
            elif not self.rules.identities:
                edges[peer] = self._edges(peer, starts[peer])
            elif self.rules.entities == "edges":
                edges[peer] = self._between(peer, shared, starts[peer] + rows)
        if (ids < 0).any() or np.unique(ids).size < ids.size:
            raise RunFailed(
                f"client {self.client} received two numbers, or none, of a shared node: nothing is written; link again"
            )
        return files.linked(graph, ids, starts[-1], edges)

    def _between(self, peer: int, near: Ints, far: Ints) -> Edges:
        """Return the edges, in both directions, between own nodes and the nodes of a peer with the same identities."""
        if self.carried:
            raise FedGraphError(
                "edges of these files carry data, but the edges that link equal identities have none: pass --entities overlap"
            )
        names = self._names(peer, normal_ids(unpack_words(self.graph.ids)[near], id_form(self.graph)))
        return files.both_ways(Edges(near, np.ones(near.size, dtype=bool), far, names))

    def _names(self, peer: int, ids: NDArray[Any]) -> NDArray[np.str_]:
        """Return party and id of accounts of a peer, as the own tables name them [E]."""
        return accounts_of(fold([self.names[peer]])[0], ids)

    def _ordered(self, peer: int) -> Ints:
        """Return the own shared values in the order in which the peer sends its rows."""
        shared, _ = self.intersection(peer)
        return shared[np.argsort(self.pairs[peer]["places"][shared])]

    def _edges(self, peer: int, start: int) -> Edges:
        graph, arrays = self.graph, self.pairs[peer]["match"]
        rows, known = self._matched(peer, self._ordered(peer)), self._known(peer)
        far, old = arrays["row"], len(known.keys)
        sends = self._sends_data(peer, rows)
        sends[:old] = True  # their data are in the ledger
        taken = torch.from_numpy(~sends)
        data: dict[str, Tensor] = {}
        for key in self.carried:
            whole = getattr(graph, f"foreign_{key}")[torch.from_numpy(rows)]
            values = record_columns(graph, key, whole).clone()
            received = torch.from_numpy(np.array(arrays[key]))
            if key == "edge_y":
                self.conflicts[peer] = int((values[taken] != received).sum())
            values[taken] = received
            if old:
                values[:old] = known.data[key]
            data[key] = values
        self._edge_data[peer] = {**data}
        if "edge_attr" in data:
            whole = self._with_told(
                peer, graph.foreign_edge_attr[torch.from_numpy(rows)], graph.foreign_out.numpy()[rows]
            )
            data["edge_attr"] = torch.cat([data["edge_attr"], whole[:, graph.num_shared_edge_features :]], dim=1)
        parts = [self._records(peer, rows, start + far, data)]
        if self.rules.discloses:
            parts += self._disclosed(peer, start)
        joined = files.concatenated(parts)
        return files.both_ways(joined) if undirected(graph) else joined

    def _records(self, peer: int, rows: Ints, far: Ints, data: Mapping[str, Tensor]) -> Edges:
        """Return own records as edges to nodes of a peer [E]."""
        graph = self.graph
        names = self._names(peer, normal_ids(unpack_words(graph.foreign_id)[rows], id_form(graph)))
        return Edges(graph.foreign[0].numpy()[rows], graph.foreign_out.numpy()[rows], far, names, data)

    def _disclosed(self, peer: int, start: int) -> list[Edges]:
        """Return the edges of one-sided records: the own ones that the peer resolved, then the peer's."""
        graph, arrays = self.graph, self.pairs[peer]["match"]
        shared, _ = self.intersection(peer)
        alone = np.setdiff1d(self.values(peer)[0], self.values(peer)[0][shared])
        far = self.pairs[peer]["resolve"]["row"]
        known = far >= 0
        self.unknown[peer] = int((~known).sum())
        rows = alone[known]
        data = {key: getattr(graph, f"foreign_{key}")[torch.from_numpy(rows)] for key in self.carried}
        local = self._records(peer, rows, start + far[known], data)
        named = self._named(peer)
        held = named >= 0
        rest = torch.from_numpy(held)
        data = {key: torch.from_numpy(np.array(arrays[f"alone_{key}"]))[rest] for key in self.carried}
        if "edge_attr" in data:  # records of the other party only, of which this one computed no columns
            width = graph.num_edge_features - graph.num_shared_edge_features
            data["edge_attr"] = torch.cat([data["edge_attr"], torch.zeros(int(rest.sum()), width)], dim=1)
        far = start + arrays["alone_row"][held]
        remote = Edges(named[held], ~arrays["alone_out"][held], far, np.zeros(far.size, dtype=str), data)
        return [local, remote]

    def _make_confirm(self, peer: int) -> Arrays:
        graph = self.result()
        return {
            "edges": _bytes(cut_digest(graph, peer)),
            "file": _bytes(files.file_digest(graph, self._salted)),
            "total": np.array([graph.num_global_nodes]),
        }

    def _take_confirm(self, peer: int, arrays: Arrays) -> None:
        graph = self.result()
        self._files[self.client] = files.file_digest(graph, self._salted)
        if arrays["edges"].tobytes() != cut_digest(graph, peer) or int(arrays["total"][0]) != graph.num_global_nodes:
            raise RunFailed(
                f"clients {self.client} and {peer} have different edges between them: nothing is written; link again"
            )
        self._files[peer] = array_of(arrays, "file", (32,)).tobytes()
        if len(self._files) < graph.num_clients:
            return
        name = hashlib.sha256(b"".join(self._files[k] for k in sorted(self._files))).hexdigest()
        linking = self.graph.linking
        kept = {key: linking[key] for key in ("form", "role") if linking.get(key)}
        graph.linking = {"party": linking.get("party", ""), "link": name, **kept}

    # --- report -------------------------------------------------------------------------------------------------------

    def report(self) -> list[str]:
        """Return lines for this party: numbers per peer, and records without a peer."""
        lines = [line for peer in self.peers for line in self._pair_lines(peer)]
        if not self.rules.identities:
            parties, known = self.graph.linking["parties"], set(self.names.values())
            counts = torch.bincount(self.graph.foreign[1], minlength=len(parties)).tolist()
            for party, records in zip(parties, counts, strict=True):
                if party not in known and records:
                    listing = ", ".join(f"'{sanitize(name, 60)}'" for name in self.names.values())
                    lines.append(
                        f"{records} records name '{sanitize(party, 60)}', which no client is ({listing}): one-sided"
                        f" ({'drop' if self.rules.discloses else self.rules.one_sided})"
                    )
        return lines

    @property
    def shares_nothing(self) -> bool:
        """Whether the party has records that name peers, and shares none with any of them."""
        pairs = [self.pairs[peer]["found"] for peer in self.peers]
        known = sum(len(self._known(peer).keys) for peer in self.peers)
        return sum(int(records) for records, _ in pairs) > 0 == known + sum(int(shared) for _, shared in pairs)

    def mismatch(self, other: "LinkParty | None" = None) -> list[str]:
        """Return lines on why nothing is shared: causes tried on the keys of another party, or facts to compare by hand.

        Args:
            other: the other party, if its file is on this machine.
        """
        if self.rules.identities:
            return ["no identity is shared: compare how both parties write ids (leading zeros: id_form=number)"]
        kinds, lines = kinds_of(self.graph.linking.get("form", "")), []
        for peer in [other.client] if other else self.peers:
            if not (keys := self.values(peer)[1]):
                continue
            name, theirs = (
                f"client {peer} ('{sanitize(self.names[peer], 60)}')",
                other.values(self.client)[1] if other else [],
            )
            tried = causes(keys, theirs, kinds) if theirs else []
            lines += [f"{name}: {cause.equal} of {len(keys)} records are equal if {cause.text}" for cause in tried]
            if other and not tried:
                why = (
                    f"no usual cause explains it ({USUAL})"
                    if theirs
                    else f"it has no record that names client {self.client}"
                )
                lines.append(f"{name}: {why}; compare a payment that both booked")
            if not other:
                party = fold([self.graph.linking["party"]])[0]
                lines.append(
                    f"{name}: {facts(keys, party, kinds)}: compare this with it. Usual causes: {USUAL}. They are not tried, as"
                    " that would compare more than a link does: correct one import, and try it by --dry-run"
                )
        return lines

    def _pair_lines(self, peer: int) -> list[str]:
        what = "identities" if self.rules.identities else "records"
        records, shared = (int(n) for n in self.pairs[peer]["found"])
        name = f"client {peer}" + (f" ('{sanitize(self.names[peer], 60)}')" if self.names.get(peer) else "")
        alone = "" if self.rules.identities else f", {records - shared} one-sided ({self.rules.one_sided})"
        more = f", {old} more of the last link" if (old := len(self._known(peer).keys)) else ""
        if conflicts := self.conflicts.get(peer):
            more += f", {conflicts} with another label there (the source's counts)"
        if unknown := self.unknown.get(peer):
            more += f", {unknown} name accounts that it does not have"
        lines = [f"{name}: {records} {what}, {shared} shared{alone}{more}"]
        return lines + ([f"{name}: {self._share_line(peer)}"] if self.rules.share and not self.rules.dry_run else [])

    def _share_line(self, peer: int) -> str:
        told, got = self.told(peer)[0].size, len(self.pairs[peer]["share"]["account"])
        few = told_rows(self.linked, peer).size - told
        withheld = f", {few} of fewer than {self.rules.min_records} records withheld" if few else ""
        listing = ", ".join(f"{column.name} ({column.form})" for column in self.told_columns)
        epsilon = sum(column.epsilon for column in self.columns)
        local = f"; local ε of an account {epsilon:g}, without a bound for other forms" if epsilon else ""
        return f"told {listing} of {told} accounts{withheld}, received those of {got}{local}"


def simulate(parties: Sequence[LinkParty], relay: Callable[[str, dict[Any, Any]], None] | None = None) -> None:
    """Run all phases between parties in this process, with the same messages as on a fleet.

    Args:
        parties: one per client, in any order.
        relay: sees each phase's messages, as the server does; it may alter them.

    Raises:
        FedGraphError: as a phase.
    """
    by_client = {party.client: party for party in sorted(parties, key=lambda party: party.client)}
    announced: dict[Any, Any] = {client: party.announcement() for client, party in by_client.items()}
    if relay:
        relay(ANNOUNCE, announced)
    signatures = {str(k): arrays["signature"] for k, arrays in announced.items() if "signature" in arrays}
    for party in by_client.values():
        party.meet(announced, signatures)
    before, post = ANNOUNCE, dict[Any, Any]()
    for phase in next(iter(by_client.values())).rules.phases[1:]:
        sent: dict[Any, Any] = {}
        for client, party in by_client.items():
            inbox = {sender: envelope for (sender, receiver), envelope in post.items() if receiver == client}
            sent |= {(client, receiver): envelope for receiver, envelope in party.step(phase, inbox, before).items()}
        if relay:
            relay(phase, sent)
        before, post = phase, sent


def _announced(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the statement that a party signs: its key and its number of nodes."""
    key, nodes = array_of(arrays, "key", (32,)), array_of(arrays, "nodes", (1,), "int64")
    return hashlib.sha256(key.tobytes() + int(nodes[0]).to_bytes(8, "little")).digest()


def _bytes(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(content, np.uint8)


def array_of(
    arrays: Mapping[str, NDArray[Any]],
    key: str,
    shape: tuple[int, ...],
    dtype: str = "uint8",
    low: float = -LARGEST,
    high: float = LARGEST,
    name: str = "",
) -> NDArray[Any]:
    """Return an array of a message if it has the expected shape and type, and numbers of a range, which are finite."""
    array = arrays[key]
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name or key} is {array.dtype} {array.shape}, expected {dtype} {shape}")
    if array.size and not low <= array.min() <= array.max() <= high:
        raise ValueError(f"{name or key} from {array.min()} to {array.max()}, expected {low} to {high}")
    return array


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)

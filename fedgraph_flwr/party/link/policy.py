"""What a party's node accepts of link runs: the key ``link`` of its policy, signed consent, and a record of past runs.

    link:
      match: [payments]              # accepted ways of matching: payments, routed, ids; default: none
      one_sided: [drop, stub]        # accepted treatments of records that only one party has
      max_ids: 1000000               # most records for one peer, own and received
      max_ratio: 4.0                 # largest padded set of records of a peer, relative to the own records for it
      min_shared: 5                  # refuse a pair that shares fewer, unless it shares none
      max_shared: 1.0                 # refuse a pair that shares more of the own set
      share: ["n_*", "flag:eps=1"]   # accepted columns of own accounts, each with the form that tells most; default: none. Of
                                 # several entries that name a column, the strictest counts
      min_records: 5                 # tell nothing of an account with fewer records
      epsilon: 10                    # largest local ε of an account towards one peer, over all link runs
      hours: 24                      # least time between two runs with the same peer
      names: [a, b, c]               # names that the parties must have, by client; default: any
      consent: consent.json          # needed for match=ids, one_sided=disclose and share: signed by all parties

The record of runs is a file next to the policy, and so is the ledger of what each peer was told of accounts. A run counts from
the first message that depends on records, also a dry run and one that fails.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, date, datetime
from hashlib import sha256
from logging import WARNING
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from filelock import FileLock, Timeout

from fedgraph_flwr.config import number, typed
from fedgraph_flwr.config.schema import Section
from fedgraph_flwr.data.far_ends import Column, parse_share
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import MALFORMED, FedGraphError, check_names, first_line, sanitize
from fedgraph_flwr.logs import log
from fedgraph_flwr.party.link.rules import MATCHES, ONE_SIDED, LinkRules
from fedgraph_flwr.secure.keyring import Keyring

LINK_CLIENT = "fedgraph_flwr.party.link.client:LinkClient"
"""Client of link runs, about which ``link`` decides instead of ``strategies``."""

LOCK_TIMEOUT = 60.0
"""Seconds to wait for another process that reads and writes the record of runs."""


@dataclass
class LinkPolicy(Section, group="policy.link"):
    """Link runs that a node accepts; the module's docstring documents the keys."""

    match: list[str] = field(default_factory=list, metadata={"listed": MATCHES})
    one_sided: list[str] = field(default_factory=lambda: ["drop", "stub"], metadata={"listed": ONE_SIDED})
    max_ids: int = number(1_000_000, low=1)
    max_ratio: float = number(4.0, low=1)
    min_shared: int = 5
    max_shared: float = number(1.0, high=1, without_low=True)
    share: list[str] = field(default_factory=list)
    min_records: int = number(5, low=1)
    epsilon: float = 10.0
    hours: float = 24.0
    names: list[str] = field(default_factory=list)
    consent: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_share(self.share)

    def bounded(self, rules: LinkRules) -> LinkRules:
        """Return a run's rules with this node's limits where they are stricter.

        Raises:
            FedGraphError: the node does not accept this way of matching or of treating one-sided records.
        """
        for key in ("match", "one_sided"):
            value, accepted = getattr(rules, key), getattr(self, key)
            if value not in accepted:
                raise FedGraphError(
                    f"this node's policy refuses a link run with {key}={value}: it accepts {', '.join(accepted) or 'none'}; set"
                    f" link: {{{key}: [{value}]}} in its policy file to take part"
                )
        stricter = {"max_ids": min, "max_ratio": min, "max_shared": min, "min_shared": max, "min_records": max}
        return replace(rules, **{key: of(getattr(rules, key), getattr(self, key)) for key, of in stricter.items()})

    def check_share(self, columns: Sequence[Column]) -> None:
        """Refuse to tell columns that the policy does not name, or in a form that tells more than each entry that names them.

        Raises:
            FedGraphError: names the column.
        """
        accepted = parse_share(self.share)
        for column in columns:
            naming = [entry for entry in accepted if entry.names(column.name)]
            if not naming or not all(entry.covers(column.form) for entry in naming):
                raise FedGraphError(
                    f"this node's policy does not share column '{column.name}' as {column.form}: it accepts"
                    f" {', '.join(map(str, accepted)) or 'none'}; to take part, add it to link: {{share: [...]}} in its policy"
                )


def link_policy(values: Mapping[str, Any]) -> LinkPolicy:
    """Return the policy of ``link``.

    Raises:
        FedGraphError: an unknown key, or a wrong type or value.
    """
    check_names(values, [f.name for f in fields(LinkPolicy)], "key of link", "policy")
    policy: LinkPolicy = typed(LinkPolicy, dict(values), "policy.link=")
    return policy


def needs_consent(rules: LinkRules) -> bool:
    """Return whether a run reveals more than records that both parties have."""
    return rules.identities or rules.one_sided == "disclose" or bool(rules.share)


def agreed_rules(source: Any) -> dict[str, Any]:
    """Return the rules of a link run that a consent names, of a consent or of `LinkRules`."""
    keys = ("match", "one_sided", "entities", "max_ids", "share", "min_records")
    return {key: getattr(source, key) for key in keys}


@dataclass(frozen=True)
class Consent:
    """Agreement of all parties to a link run.

    Attributes:
        parties: number of parties, which are clients 0 to ``parties - 1``.
        purpose: why they link.
        match: as in `LinkRules`; likewise ``one_sided``, ``entities`` and ``max_ids``.
        expires: last day, such as 2026-12-31.
        share: as in `LinkRules`; likewise ``min_records``.
    """

    parties: int
    purpose: str
    match: str
    one_sided: str
    entities: str
    max_ids: int
    expires: str
    share: list[str] = field(default_factory=list)
    min_records: int = 1

    def __post_init__(self) -> None:
        numbers = self.parties, self.max_ids, self.min_records
        if hidden := [text for text in (self.purpose, self.expires, *self.share) if not str(text).isprintable()]:
            raise FedGraphError(f"a consent has characters that no terminal shows as they are: {ascii(hidden[0])[:80]}")
        if any(type(number) is not int for number in numbers) or not str(self.purpose).strip():
            raise FedGraphError(
                f"a consent needs a purpose, got {self.purpose!r}, and whole numbers of parties, max_ids and min_records, got"
                f" {numbers}"
            )
        LinkRules(**agreed_rules(self))
        try:
            if date.fromisoformat(self.expires).isoformat() != self.expires:
                raise ValueError("another form")
        except (TypeError, ValueError) as error:
            raise FedGraphError(
                f"expires of a consent must be a day such as 2026-12-31, got {self.expires!r}"
            ) from error

    def in_words(self) -> Iterator[str]:
        """Yield lines that say what a party signs."""
        yield f"consent of clients 0 to {self.parties - 1}, whose keys each node pins, until {self.expires}, for {self.purpose!r}"
        yield from LinkRules(**agreed_rules(self)).in_words()
        yield f"at most {self.max_ids:,} records or identities for a peer"

    @property
    def statement(self) -> bytes:
        """The bytes that each party signs."""
        values = {
            key: value for key, value in asdict(self).items() if self.share or key not in ("share", "min_records")
        }
        return b"fedgraph link consent\n" + json.dumps(values, sort_keys=True).encode()


def write_consent(path: Path, consent: Consent, signatures: Mapping[str, str] | None = None) -> None:
    """Write a consent with its signatures."""
    body = {"consent": asdict(consent), "signatures": dict(signatures or {})}
    write_bytes(path, (json.dumps(body, indent=1) + "\n").encode())


def read_consent(path: Path) -> tuple[Consent, dict[str, str]]:
    """Read a consent and its signatures, by client.

    Raises:
        FedGraphError: the file is missing or invalid.
    """
    try:
        body = json.loads(path.read_text(), object_pairs_hook=_each_once)
        return Consent(**body["consent"]), {str(k): str(v) for k, v in body["signatures"].items()}
    except (OSError, *MALFORMED) as error:
        raise FedGraphError(
            f"{path} is not a consent file ({first_line(error)}): write one with `fedgraph-flwr link --new-consent {path}`"
        ) from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, of whose repeated keys readers may take either."""
    names = [name for name, _ in pairs]
    if len(values := dict(pairs)) < len(pairs):
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)} comes twice")
    return values


def sign_consent(path: Path, client: int, key: EllipticCurvePrivateKey) -> Consent:
    """Add a party's signature to a consent, and return the consent.

    Raises:
        FedGraphError: the file is invalid, or has no such party.
    """
    consent, signatures = read_consent(path)
    if not 0 <= client < consent.parties:
        raise FedGraphError(f"{path} is a consent of clients 0 to {consent.parties - 1}, got --client {client}")
    signed = key.sign(consent.statement + f"\n{client}".encode(), ECDSA(SHA384())).hex()
    write_consent(path, consent, signatures | {str(client): signed})
    return consent


def check_consent(path: str, rules: LinkRules, keyring: Keyring, clients: int, today: date | None = None) -> bytes:
    """Check that all parties signed consent to a run, and return a digest of it.

    Raises:
        FedGraphError: it is missing, expired, for another run, or a signature is missing or invalid.
    """
    if not path:
        raise FedGraphError(
            f"match={rules.match} with one_sided={rules.one_sided} needs the consent of all parties: set link: {{consent: FILE}}"
            " in this node's policy"
        )
    consent, signatures = read_consent(Path(path).expanduser())
    where = f"consent {path}"
    if date.fromisoformat(consent.expires) < (today or datetime.now(UTC).date()):
        raise FedGraphError(f"{where} expired on {consent.expires}: sign a new one")
    signed = agreed_rules(consent) | {"parties": consent.parties}
    for key, value in (agreed_rules(rules) | {"parties": clients}).items():
        stricter = (key == "max_ids" and value < signed[key]) or (key == "min_records" and value > signed[key])
        if value != signed[key] and not stricter:
            raise FedGraphError(
                f"{where} is for {key}={signed[key]}, but the run has {key}={value}: change the run, or sign a new consent"
            )
    if keyring.private_key is None or keyring.pins is None:
        raise FedGraphError(f"{where} can be verified only with pinned keys: start this node with --key and --peers")
    for client in range(clients):
        signer, statement = keyring.key_of(client), consent.statement + f"\n{client}".encode()
        try:
            if signer is None:
                raise InvalidSignature
            signer.verify(bytes.fromhex(signatures.get(str(client), "")), statement, ECDSA(SHA384()))
        except (InvalidSignature, ValueError) as error:
            needed = "the signatures of all parties" if signer else f"its key, node_{client}.pub in --peers"
            raise FedGraphError(f"{where} is not signed by client {client}'s key: expected {needed}") from error
    return sha256(consent.statement).digest()


def book_link(policy: Path, peers: Mapping[int, str], keyring: Keyring, hours: float, now: float | None = None) -> None:
    """Record a link run with each peer, next to the policy, or refuse it.

    Args:
        policy: the node's policy file.
        peers: names of the peers, by client.
        keyring: pinned keys, by which peers are recognised.
        hours: least time between two runs with one peer.
        now: seconds since 1970.

    Raises:
        FedGraphError: the last run with a peer is too recent, or the record cannot be read or written.
    """
    advice = f"move it away if no link run took place in the last {hours:g} hours"
    path = policy.with_name(f"{policy.stem}.links.json")
    with _record(path, "the record of link runs", advice) as record:
        now = time.time() if now is None else now  # behind the lock, or a run that waited would be before the other
        for client in peers:
            names = peer_names(client, keyring)
            last = max(float(record.get(name, 0.0)) for name in names)
            if (passed := now - last) < 3600 * hours:
                peer = f"client {client} ('{sanitize(peers[client], 60)}')"
                log(
                    WARNING,
                    "link: the run with %s is entry %s of %s. To accept another one now, remove it. Each run lets the"
                    " peer test guesses about your records, so first ask the peer why the last run ended",
                    peer,
                    " and ".join(f"'{name}'" for name in names),
                    path,
                )
                raise FedGraphError(
                    f"the last link run with {peer} began {passed / 3600:.1f} hours ago, at {_utc(last)}: this node's policy"
                    f" accepts one in {hours:g} hours (link: hours), and a run that was cut off counts. Link again after"
                    f" {_utc(last + 3600 * hours)}, or ask this node's owner, whose log names the entry to remove"
                )
            record |= dict.fromkeys(names, now)


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def book_share(
    policy: Path, peer: Sequence[str], columns: Sequence[Column], link: str, accounts: int, most: float
) -> float:
    """Record what a peer is told of accounts, next to the policy, and return its local ε of an account over all runs.

    Each link draws anew, so each adds the ε of its columns; a repeated step of one link adds nothing.

    Args:
        policy: the node's policy file.
        peer: names of the peer (`peer_names`); the one with the larger ε counts.
        columns: the columns.
        link: identifies the link.
        accounts: number of accounts.
        most: largest ε that is accepted.

    Raises:
        FedGraphError: ε would be larger, or the ledger cannot be read or written.
    """
    advice, what = (
        "restore it; without it the ε that was spent is unknown",
        "the ledger of what peers were told of accounts",
    )
    with _record(policy.with_name(f"{policy.stem}.shares.json"), what, advice) as ledger:
        spent = 0.0
        for name in peer:
            told = ledger.setdefault(name, {})
            for column in columns:
                entry = told.setdefault(f"{column.name}:{column.form}", {"epsilon": column.epsilon, "values": []})
                entry["accounts"] = accounts
                if link not in entry["values"]:
                    entry["values"].append(link)
            spent = max(spent, float(sum(entry["epsilon"] * len(entry["values"]) for entry in told.values())))
        if spent > most:
            raise FedGraphError(
                f"sharing {', '.join(column.name for column in columns)} with {peer[0]} would raise the local ε of an account to"
                f" {spent:g}, above {most:g} of this node's policy (link: epsilon)"
            )
    return spent


@contextmanager
def _record(path: Path, what: str, advice: str) -> Iterator[dict[str, Any]]:
    """Yield the content of a JSON file, and write it afterwards; another process that reads it waits meanwhile.

    Raises:
        FedGraphError: the file is damaged, cannot be written, or another process holds its lock.
    """
    try:
        with FileLock(path.with_suffix(".lock"), timeout=LOCK_TIMEOUT):
            record: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
            yield record
            write_bytes(path, (json.dumps(record, indent=1) + "\n").encode())
    except (OSError, Timeout, *MALFORMED) as error:
        problem = f"cannot read, lock or write {path}, {what} ({first_line(error)})"
        raise FedGraphError(f"{problem}: if it is damaged, {advice}") from error


def peer_names(client: int, keyring: Keyring) -> list[str]:
    """Return the names of a peer in the records: a hash of its pinned key, else its client; of a member its name, too.

    So a member that rotates its key keeps its record, as does one with other names in other agreements.
    """
    key, name = (keyring.pins or {}).get(client), keyring.names.get(client)
    if key is None:
        return [f"client {client}"]
    pinned = sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()[:16]
    return [pinned, *([name] if name else [])]

"""Agreements: members of a federation choose together, once, which runs their nodes accept; each signs ``agreement.yaml``.

    agreement: 1                     # of this format
    name: rings                      # the ledger of ε in a node's state folder has this name
    version: 2                       # a member that joins or leaves makes a new version
    continues: 3f9c…                 # digest of the version before; "" for the first
    changed: [dora]                  # members that joined, left or have another weight since then
    accepted: ""                     # `DIFFERENCE`, if members accept what a changed list shows
    purpose: find rings of mule accounts
    until: "2027-06-30"              # last day
    runs: 12                         # most runs; a run that was aborted after its start counts
    coordinator: curious             # the server follows the protocol, and stores all that it sees; verified: it can only deliver
    absent: forbidden                # allowed: a run goes on without a member; needs privacy.dp=distributed
    weights: uniform                 # or a number for each member; sizes of tables are no part of a sum
    epsilon: 8.0                     # most ε of all runs together; null: none
    start: seed                      # or continues (a model in whose training the node took part), or the digest of a model
    code: 5d1e…                      # SHA-256 of Flower's bundle, or a list; releases: signed by a key of `node --trusted`
    schema: [41, 7]                  # fingerprint of the tables' schema; []: any that all members share
    members: {alice: {client: 0, key: ecdsa-sha2-nistp384 AAAA…}, …}
    configuration: {…}               # of every run, resolved, without `FREE`
    signatures: {alice: …}           # of everything above, by the members' keys; alice@before: by a key that was replaced

A run is (digest, number): the configuration that nodes receive names both (`KEY`). A node accepts a number that is higher than
all before, or its last one again, which resumes. It uses a number up when it commits to the run's seed, not with a description
before. The seed follows from nonces of all members (`fedgraph_flwr.secure.beginning`), so nobody can search for one. Records are
in its state folder, under one lock, which spans the decision and the write.

The check belongs to the installed node. It runs before the bundle is unpacked, in a process that imports none of this project's
modules, since they would replace those of the bundle. So this file imports none either.
"""

import base64
import fcntl
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP384R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

KEY = "agreement"
"""Key of a run's configuration: DIGEST/NUMBER."""

FREE = (
    *("out", "overwrite", "resume", "tracking", "tracking_clients", "tracking_group", "engine", "ray"),
    *("graph", "seed", "init", "parties", "weights", KEY),
)
"""Keys of a configuration that members do not sign: they change nothing at a party's node; seed and init follow otherwise."""

FOLDERS = ("evaluate",)
"""Keys whose folders members sign by their last names: paths differ between machines, and the server has its own."""

USED = "agreements.json"
"""File of a state folder: the runs of each agreement."""

WITHDRAWN = "withdrawn"
"""Phase of the line that a withdrawal leaves in a node's audit log."""

DIFFERENCE = "the difference of two sums shows the update of a member that joined or left"
"""What `accepted` says if sums without noise go on with other members."""

SEED, CONTINUES, RELEASES, UNIFORM = "seed", "continues", "releases", "uniform"
FORBIDDEN, ALLOWED, CURIOUS, VERIFIED = "forbidden", "allowed", "curious", "verified"

BEFORE = "@before"
"""Ending of a member's name in `signatures`: by its key of the version before."""

_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("agreement", "version", "runs"), (int,)),
    **dict.fromkeys(("name", "continues", "accepted", "purpose", "until", "coordinator", "absent", "start"), (str,)),
    **dict.fromkeys(("changed", "schema"), (list,)),
    **dict.fromkeys(("members", "configuration", "signatures"), (dict,)),
    **{"code": (str, list), "weights": (str, dict), "epsilon": (int, float, type(None))},
}
_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_HEAD = b"fedgraph-flwr agreement\n"
_NAME, _DIGEST = re.compile(r"[A-Za-z0-9_-]{1,64}"), re.compile("[0-9a-f]{64}")
_LIMIT = 1_000_000
_DIGITS = re.compile("[0-9:_]{1000}")
"""Digits in a row whose number takes long to compute; keys and signatures have letters between."""

_BLANK = re.compile("[\u115f\u1160\u2800\u3164\uffa0]")
"""Characters that count as printable and show nothing."""

NEW: dict[str, Any] = {"last": 0, "runs": {}, "withdrawn": ""}
"""Record of an agreement without runs; code of earlier releases reads ``runs``."""

_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError)


class Refused(Exception):
    """Error: an agreement or a run is not accepted."""


class _Loader(_SAFE):
    """Refuses a key that comes twice, of which readers may take either."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            names = [str(key.value) for key, _ in node.value]
            raise Refused(f"the key {next(name for name in names if names.count(name) > 1)[:80]} comes twice")
        return mapping


@dataclass(frozen=True)
class Agreement:
    """A valid agreement.

    Attributes:
        values: its content.
        path: its file.
    """

    values: dict[str, Any]
    path: Path = Path("agreement.yaml")

    @property
    def digest(self) -> str:
        """What members sign: SHA-256 of the content without signatures."""
        return hashlib.sha256(self.statement).hexdigest()

    @property
    def statement(self) -> bytes:
        """The bytes of the content without signatures."""
        content = {key: value for key, value in self.values.items() if key != "signatures"}
        return _HEAD + json.dumps(content, sort_keys=True, separators=(",", ":")).encode()

    @property
    def members(self) -> dict[int, str]:
        """Names by client number, ascending."""
        return {member["client"]: name for name, member in sorted(self.values["members"].items(), key=_place)}

    @property
    def pins(self) -> dict[int, EllipticCurvePublicKey]:
        """Public keys by client number."""
        return {member["client"]: public_key(member["key"]) for member in self.values["members"].values()}

    @property
    def weights(self) -> dict[int, int] | None:
        """The size of each client in sums; None: members count alike."""
        given = self.values["weights"]
        return None if given == UNIFORM else {client: given[name] for client, name in self.members.items()}

    @property
    def counted(self) -> dict[str, int]:
        """The weight of each member in sums."""
        return {name: (self.weights or {}).get(client, 1) for client, name in self.members.items()}

    @property
    def noised(self) -> bool:
        """Whether the sums of its runs carry noise."""
        return str(_key(self.values["configuration"], "privacy", "dp", "none")).startswith("distributed")

    @property
    def exact(self) -> bool:
        """Whether the coordinator learns sums without noise over models of its choice."""
        config = self.values["configuration"]
        secure: bool = _key(config, "privacy", "secagg", False)
        return secure and not self.noised and self.values["coordinator"] == CURIOUS

    @property
    def signers(self) -> list[str]:
        """Members whose signatures are valid, in the order of their numbers."""
        members, signatures, statement = self.values["members"], self.values["signatures"], self.statement
        names = self.members.values()
        return [name for name in names if _signed(members[name]["key"], str(signatures.get(name)), statement)]

    @property
    def forged(self) -> list[str]:
        """Members whose signatures belong to another content."""
        signers, signatures = self.signers, self.values["signatures"]
        return [name for name in self.members.values() if name in signatures and name not in signers]

    def sign(self, key: EllipticCurvePrivateKey, replaced: str = "") -> str:
        """Add a member's signature, and return its name.

        Args:
            key: the member's private key.
            replaced: the member whose key this was in the version before.

        Raises:
            Refused: the key is no member's.
        """
        signature = key.sign(self.statement, ECDSA(SHA384())).hex()
        if replaced in self.values["members"]:
            self.values["signatures"][replaced + BEFORE] = signature
            return replaced
        text = key_text(key.public_key())
        names = [name for name, member in self.values["members"].items() if key_text(public_key(member["key"])) == text]
        if not names:
            raise Refused(
                f"{self.path.name}: this key is none of {', '.join(self.members.values())}: sign with your node's key"
            )
        self.values["signatures"][names[0]] = signature
        return names[0]

    def check_signed(self) -> None:
        """Refuse an agreement that a member has not signed.

        Raises:
            Refused: names the members whose signatures are missing or belong to another content.
        """
        signers = self.signers
        if missing := [name for name in self.members.values() if name not in signers]:
            wrong = ", ".join(self.forged)
            forged = f" (the signature of {wrong} does not belong to this content)" if wrong else ""
            raise Refused(
                f"{self.path.name} lacks the signature of {', '.join(missing)}{forged}: each signs it (fedgraph-flwr agree sign)"
            )

    def check_time(self, now: float) -> None:
        """Refuse an agreement that has expired; ``now`` in seconds since 1970.

        Raises:
            Refused: it has.
        """
        if time.strftime("%Y-%m-%d", time.gmtime(now)) > self.values["until"]:
            raise Refused(
                f"{self.path.name} ended on {self.values['until']}: members agree on a new version (agree new --continues)"
            )

    @property
    def codes(self) -> list[str]:
        """Digests of the bundles, or only `RELEASES`."""
        code = self.values["code"]
        return list(code) if isinstance(code, list) else [code]

    def check_beginning(self, config: str, number: int, state: Path) -> None:
        """Refuse a run that starts from its seed, where members agreed on a model, or an earlier run ended with one here.

        Raises:
            Refused: it does.
        """
        start = self.values["start"]
        if start == SEED or {"init", "evaluate"} & {key for key, value in _configuration(config).items() if value}:
            return
        earlier = [f"*-{self.digest[32:]}-{k}{attempt}" for k in range(1, number) for attempt in ("", "-*")]
        if start != CONTINUES or any(any(state.glob(f"{name}/client_*/model_*")) for name in earlier):
            raise Refused(
                f"{self.path.name} starts run {number} with a model (start: {start[:12]}): pass its folder as init="
            )

    def check_version(self, records: Mapping[str, Any]) -> None:
        """Refuse a version that a later one replaced, or that hides what changed since the one that a node knows.

        Args:
            records: the node's records.

        Raises:
            Refused: names the difference.
        """
        values, name = self.values, self.path.name
        versions = [
            one for digest, one in records.items() if digest != self.digest and one.get("name") == values["name"]
        ]
        if later := [one["version"] for one in versions if one["continues"] == self.digest]:
            raise Refused(f"{name} was replaced by version {later[0]}, which this node knows")
        known = records.get(values["continues"], {})
        before = known.get("members")
        if before is None:
            if versions:
                raise Refused(
                    f"{name} is version {values['version']} of '{values['name']}' and does not continue one that this node knows:"
                    " agree new --continues FILE, or another --name"
                )
            self._check_model(records)
            return
        if known["name"] != values["name"]:
            raise Refused(
                f"{name} continues '{known['name']}' by another name, whose ledger of ε would be empty: agree new --name"
                f" {known['name']}"
            )
        others = [one["version"] for one in versions if one["continues"] == values["continues"]]
        if values["version"] != known["version"] + 1 or others:
            raise Refused(
                f"{name} is version {values['version']} after version {known['version']}, and this node knows version"
                f" {max([known['version'], *others])}: agree new --continues FILE of that one"
            )
        keys = {member: value["key"] for member, value in values["members"].items()}
        for one in versions:
            for member in sorted((one["members"].keys() & keys.keys()) - before.keys()):
                if key_text(public_key(one["members"][member])) != key_text(public_key(keys[member])):
                    raise Refused(
                        f"{name} has another key of {member} than version {one['version']}, in which it was last: a member that"
                        " lost its key joins by another name"
                    )
        counted = self.counted
        differences = changes(known.get("weights", {member: counted.get(member, 1) for member in before}), counted)
        if differences != (said := sorted(values["changed"])):
            raise Refused(
                f"{name} says that {', '.join(said) or 'nobody'} joined, left or counts otherwise since the version before;"
                f" this node knows that {', '.join(differences) or 'nobody'} did"
            )
        if self.exact and not values["accepted"] and (changed := known.get("changed", [])):
            raise Refused(f"{name}: {_changed(changed)}")
        for member in sorted(before.keys() & keys.keys()):
            old = before[member]
            if key_text(public_key(old)) != key_text(public_key(keys[member])) and not _signed(
                old, str(values["signatures"].get(member + BEFORE)), self.statement
            ):
                raise Refused(
                    f"{name} has another key of {member} than the version before, and that key did not sign: agree sign"
                    f" --key OLD --replaced {member}; a member that lost it leaves, and joins by another name"
                )

    def _check_model(self, records: Mapping[str, Any]) -> None:
        """Refuse exact sums from a model in which other members of agreements that the node knows may have a part.

        Raises:
            Refused: members did not accept what the difference shows.
        """
        exact = _key(self.values["configuration"], "privacy", "secagg", False) and not self.noised
        if self.values["start"] == SEED or self.values["accepted"] or not exact:
            return
        for one in records.values():
            if "weights" in one and changes(one["weights"], self.counted):
                raise Refused(
                    f"{self.path.name} starts from a model with other members than '{one['name']}', which this node knows, and"
                    f" without noise: set start: {SEED}, or accepted: {DIFFERENCE}"
                )

    def check_configuration(self, config: str) -> None:
        """Refuse a run whose configuration, in JSON, is not the signed one.

        Raises:
            Refused: names a key.
        """
        run = _configuration(config)
        if run.get("init") and self.values["start"] == SEED:
            raise Refused(f"{self.path.name} starts each run anew (start: {SEED}), and this one has init={run['init']}")
        signed, given = self.values["configuration"], signed_part(run)
        for key in sorted(signed.keys() | given.keys()):
            if signed.get(key) != given.get(key):
                raise Refused(
                    f"members signed another configuration: {_difference(key, signed.get(key), given.get(key))}"
                )


def read(path: Path) -> Agreement:
    """Read an agreement; signatures may be missing.

    Raises:
        Refused: the file is missing, damaged, or names an impossible agreement.
    """
    try:
        if path.stat().st_size > _LIMIT:
            raise Refused(f"it has more than {_LIMIT:,} bytes")
        content, problem = _content(path.read_text())
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from error
    except Refused as error:
        content, problem = "", str(error)
    except _MALFORMED as error:
        raise Refused(f"{path} is not an agreement: fedgraph-flwr agree new writes one") from error
    if problem:
        shown = "".join(char if char.isprintable() else "?" for char in problem[:300])  # it may quote the file
        raise Refused(f"{path}: {shown}")
    return Agreement(json.loads(content), path)


@lru_cache(maxsize=8)
def _content(text: str) -> tuple[str, str]:
    """Return the content of a file in JSON, and why it is no agreement; a node reads the same one with each message."""
    values: Any = None if _repeats(text) or _DIGITS.search(text) else yaml.load(text, _Loader)
    values["until"] = values["until"].isoformat() if isinstance(values["until"], date) else values["until"]
    json.dumps(values, sort_keys=True)  # names of one type
    return json.dumps(values, allow_nan=False), _problem(Agreement(values))


def write(agreement: Agreement) -> None:
    """Write an agreement with its signatures."""
    text = yaml.safe_dump(agreement.values, sort_keys=False, allow_unicode=True, width=1000)
    _replace(agreement.path, text)


def signed_part(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what members sign of a resolved configuration."""
    part = {key: value for key, value in values.items() if key not in FREE}
    return part | {key: Path(path).name for key in FOLDERS if isinstance(path := part.get(key), str)}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ: of weights, who joined, left or counts otherwise."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def code_digest(bundle: bytes) -> str:
    """Return the digest of Flower's bundle."""
    return hashlib.sha256(bundle).hexdigest()


def run_of(config: str) -> tuple[str, int]:
    """Return the digest and the number of a run, from its configuration in JSON; ("", 0): it is under no agreement.

    Raises:
        Refused: another form.
    """
    text = str(_configuration(config).get(KEY) or "")
    match = re.fullmatch(r"([0-9a-f]{64})/([1-9][0-9]{0,5})", text)
    if text and not match:
        raise Refused(
            f"agreement={text[:80]!r} of the run's configuration: expected DIGEST/NUMBER, as run --agreement sends it"
        )
    return (match[1], int(match[2])) if match else ("", 0)


def files_of(place: Path) -> list[Path]:
    """Return the files of a folder of agreements, or the one file."""
    return sorted(path for path in place.iterdir() if path.suffix in (".yaml", ".yml")) if place.is_dir() else [place]


def chosen(place: Path, digest: str) -> Agreement:
    """Return the agreement of this digest: a file, or one of a folder's.

    Raises:
        Refused: there is none, or it is damaged.
    """
    known = []
    for path in files_of(place):
        try:
            agreement = read(path)
        except Refused as error:
            if not place.is_dir():  # else only the owner reads why
                known = [str(error).replace(str(path), path.name)]
            continue
        if agreement.digest == digest:
            return agreement
        known.append(agreement.digest[:12])  # names of files may tell who else agrees with whom
    wanted = f"the run is under agreement {digest[:12]}" if digest else "the run is under no agreement"
    raise Refused(
        f"{wanted}, and this node accepts {', '.join(known) or 'none'}: start it with fedgraph-flwr run --agreement FILE"
    )


def check(
    place: Path,
    run_config: Mapping[str, Any],
    bundle: bytes | None,
    state: Path,
    now: float,
    known: Collection[str] | None = None,
) -> Agreement:
    """Check a run against a node's agreements.

    Args:
        place: the node's agreement, or a folder of them.
        run_config: Flower's run configuration, as the bundle's code will read it.
        bundle: the bundle; None: its code is running, and the installed node checked it.
        state: the node's state folder.
        now: seconds since 1970.
        known: digests of the agreements that the node checked when it started; None: any.

    Returns:
        The agreement of the run.

    Raises:
        Refused: members did not agree on this run; says why.
    """
    extra = sorted(key for key, value in run_config.items() if key not in ("config", "num-clients") and value != "")
    config = str(run_config.get("config", ""))
    if extra or not config.startswith("{"):
        named = re.sub(r"[^ -~]", "?", ", ".join(extra)[:200])
        what = f"settings apart from its configuration ({named})" if extra else "no resolved configuration"
        raise Refused(
            f"this node accepts agreed runs only, and the run has {what}: start it with fedgraph-flwr run --agreement"
        )
    digest, number = run_of(config)
    agreement = chosen(place, digest)
    if known is not None and digest not in known:
        raise Refused(f"this node did not accept {agreement.path.name} when it started: its owner restarts it")
    agreement.check_signed()
    agreement.check_time(now)
    agreement.check_configuration(config)
    agreement.check_beginning(config, number, state)
    codes = agreement.codes
    if bundle is not None and codes != [RELEASES] and (bundle_digest := code_digest(bundle)) not in codes:
        raise Refused(
            f"members signed other code (the run's bundle is {bundle_digest[:12]}, signed was"
            f" {', '.join(code[:12] for code in codes)}): ship that one"
        )
    _admit(state, agreement, number)
    return agreement


def remember(state: Path, agreement: Agreement) -> None:
    """Let a node know a version that its owner accepts.

    Raises:
        Refused: as `Agreement.check_version`.
    """
    with changing(state) as records:
        _record(records, agreement)


def _record(records: dict[str, Any], agreement: Agreement) -> dict[str, Any]:
    """Return the record of an agreement, with what later versions are compared with."""
    agreement.check_version(records)
    record: dict[str, Any] = records.setdefault(agreement.digest, dict(NEW))
    values = agreement.values
    keys = {name: member["key"] for name, member in values["members"].items()}
    before = records.get(values["continues"], {}).get("changed", [])
    changed = [] if values["accepted"] else sorted({*before, *values["changed"]})
    record.update(
        {key: values[key] for key in ("name", "version", "continues")},
        members=keys,
        weights=agreement.counted,
        changed=changed,  # and nobody accepted yet what sums without noise show of it
    )
    return record


def confirm(state: Path, digest: str, line: int, last: int) -> None:
    """Let a node go on with a record that is older than its audit log, or than what other members have seen.

    Args:
        state: the node's state folder.
        digest: the agreement's.
        line: the last line of the audit log.
        last: the last run that the node took part in.
    """
    with changing(state) as records:
        record = records.setdefault(digest, dict(NEW))
        record.update(last=max(record["last"], last), confirmed=line, known=last)


def withdraw(state: Path, digest: str, now: float) -> None:
    """Let a node refuse an agreement from the next message on."""
    with changing(state) as records:
        records.setdefault(digest, dict(NEW))["withdrawn"] = time.strftime("%Y-%m-%d", time.gmtime(now))


@contextmanager
def changing(state: Path) -> Iterator[dict[str, Any]]:
    """Yield a state folder's records, and write them afterwards, under one lock; an error writes nothing."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        with (state / f"{USED}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            records = remembered(state)
            before = json.dumps(records)
            yield records
            if (after := json.dumps(records)) != before:
                _replace(state / USED, after)
    except OSError as error:
        raise Refused(
            f"this node cannot write {USED} into its state folder ({error.strerror}): its owner makes it writable"
        ) from error


@lru_cache(maxsize=1024)
def public_key(text: str) -> EllipticCurvePublicKey:
    """Return an EC P-384 public key from OpenSSH's format, as `fedgraph-flwr fleet join` writes it.

    Raises:
        ValueError: another key.
    """
    try:
        key = load_ssh_public_key(text.encode())
    except UnsupportedAlgorithm as error:
        raise ValueError("unsupported key") from error
    if not (isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP384R1)):
        raise ValueError("not an EC P-384 key")
    return key


def key_text(key: EllipticCurvePublicKey) -> str:
    """Return a public key in OpenSSH's format, without a comment."""
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def fingerprint(key: EllipticCurvePublicKey) -> str:
    """Return what ``ssh-keygen -l`` prints of a public key: SHA256: and 43 characters."""
    content = base64.b64decode(key_text(key).split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def _problem(agreement: Agreement) -> str:
    """Return why this is no agreement; empty if it is one."""
    values = agreement.values
    if unknown := sorted(map(str, values.keys() - _KINDS.keys())) + sorted(_KINDS.keys() - values.keys()):
        return f"the key {unknown[0]} is {'unknown' if unknown[0] in values else 'missing'}"
    wrong = [key for key, kinds in _KINDS.items() if type(values[key]) not in kinds]
    if wrong:
        return f"{wrong[0]}={values[wrong[0]]!r} has another type than fedgraph-flwr agree new writes"
    config, noised = values["configuration"], agreement.noised
    if hidden := [text for text in _texts(values) if not text.isprintable() or _BLANK.search(text)]:
        return f"{ascii(hidden[0])[:80]} has characters that no terminal shows as they are"
    if any("${" in text for text in _texts(values)):
        return "a text contains '${', which readers would resolve to their own values"
    if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in values["changed"]):
        return "changed needs names of members"
    if any(type(member) is dict and set(member) != {"client", "key"} for member in values["members"].values()):
        return "a member has other keys than client and key"
    if any(type(number) is not int for number in values["schema"]):
        return "schema needs whole numbers"
    try:
        pins = agreement.pins
        if any(type(client) is not int for client in pins) or sorted(pins) != list(range(len(values["members"]))):
            return "members need the client numbers 0, 1, 2, …, each once"
        if len({key_text(key) for key in pins.values()}) < len(pins):
            return "two members have one key"
        if any(not _NAME.fullmatch(name) for name in agreement.members.values()):
            return "a member's name has other characters than letters, digits, _ and -"
        if date.fromisoformat(values["until"]).isoformat() != values["until"]:
            raise ValueError("another form, which does not compare with days as text does")
    except _MALFORMED:
        return 'members need a client number and an EC P-384 key each, and until needs a date such as "2027-06-30"'
    weights, secure = values["weights"], _key(config, "privacy", "secagg", False)
    fixed = isinstance(weights, dict)
    right_weights = weights == UNIFORM or (
        fixed and weights.keys() == values["members"].keys() and all(type(w) is int and w > 0 for w in weights.values())
    )
    start, code, continues = values["start"], agreement.codes, values["continues"]
    rules: list[tuple[bool, str]] = [
        (values["agreement"] == 1, f"agreement={values['agreement']}: this version reads format 1"),
        (bool(_NAME.fullmatch(values["name"])), f"name={values['name']!r}: expected letters, digits, _ and -"),
        (
            bool(_DIGEST.fullmatch(continues)) if values["version"] > 1 else (values["version"], continues) == (1, ""),
            f"version={values['version']} and continues={continues[:80]!r}: version 1 continues none, each later one a digest",
        ),
        (bool(continues) or not values["changed"], "changed names members, and no version is continued"),
        (values["accepted"] in ("", DIFFERENCE), f"accepted: expected nothing, or {DIFFERENCE}"),
        (1 <= values["runs"] <= 100_000, f"runs={values['runs']}: expected a number from 1 to 100000"),
        (
            values["coordinator"] == (coordinator := _key(config, "privacy", "coordinator", CURIOUS)),
            f"coordinator={values['coordinator']!r}, and privacy.coordinator={coordinator} of the configuration",
        ),
        (
            coordinator == CURIOUS or (values["absent"] == FORBIDDEN and start in (SEED, CONTINUES) and len(pins) > 2),
            f"coordinator={VERIFIED} needs three members or more, absent={FORBIDDEN}, and start={SEED} or {CONTINUES}",
        ),
        (
            len(values["purpose"]) <= 200 and "  " not in values["purpose"],
            "purpose: expected at most 200 characters, one space at a time",
        ),
        (values["absent"] in (FORBIDDEN, ALLOWED), f"absent={values['absent']!r}: expected {FORBIDDEN} or {ALLOWED}"),
        (
            values["absent"] == FORBIDDEN or noised,
            f"absent={ALLOWED} needs privacy.dp=distributed: a sum with a member and one without it show its update",
        ),
        (
            values["epsilon"] is None or 0 < values["epsilon"] <= 1e12,
            f"epsilon={str(values['epsilon'])[:40]}: expected more than 0, or null; at most 1e12",
        ),
        (right_weights, f"weights: expected {UNIFORM}, or a whole number above 0 for each member"),
        (
            not secure or noised or _key(config, "strategy", "weighting", "") == ("train" if fixed else UNIFORM),
            f"weights of secure sums: set strategy.weighting={'train' if fixed else UNIFORM} in the configuration",
        ),
        (
            start in (SEED, CONTINUES) or bool(_DIGEST.fullmatch(start)),
            f"start={start!r}: expected {SEED}, {CONTINUES} or the digest of a model",
        ),
        (
            not config.get("evaluate") or bool(_DIGEST.fullmatch(start)),
            "evaluate= scores a model that members name by its digest (start): agree new evaluate=FOLDER writes it",
        ),
        (
            code == [RELEASES] or bool(code and all(_DIGEST.fullmatch(str(one)) for one in code)),
            f"code={values['code']!r}: expected a digest, or {RELEASES} (node --trusted), or a list of digests",
        ),
        (
            not (agreement.exact and values["changed"]) or values["accepted"] == DIFFERENCE,
            _changed(values["changed"]),
        ),
        (
            not secure or noised or _key(config, "strategy", "fraction", 1.0) == 1.0,
            "secure sums without noise need strategy.fraction=1: other members in each run show single updates",
        ),
        (
            config.get("num_clients") == len(pins),
            f"num_clients={config.get('num_clients')} of the configuration, and {len(pins)} members",
        ),
        (not set(FREE) & config.keys(), "the configuration has keys that members do not sign"),
    ]
    return next((text for holds, text in rules if not holds), "")


def _changed(members: Sequence[str]) -> str:
    return (
        f"members changed ({', '.join(members)}), and sums have no noise: less those before they show single members; set"
        " privacy.dp=distributed, or agree new --accept-difference"
    )


def _admit(state: Path, agreement: Agreement, number: int) -> None:
    """Refuse a withdrawn agreement, and a number that is used up or too high.

    Raises:
        Refused: says which.
    """
    most = agreement.values["runs"]
    with changing(state) as records:
        record = _record(records, agreement)
        if record["withdrawn"]:
            raise Refused(f"this node's owner withdrew from {agreement.path.name} on {record['withdrawn']}")
        if number < record["last"]:
            raise Refused(f"run {number} of {agreement.path.name} is used up: this node is at run {record['last']}")
        if number > most:
            raise Refused(f"run {number} of {agreement.path.name}, which allows {most}: members agree on a new version")


def remembered(state: Path) -> dict[str, Any]:
    """Return a state folder's records by digest.

    Raises:
        Refused: they cannot be read.
    """
    path = state / USED
    try:
        records = json.loads(path.read_text()) if path.is_file() else {}
        for record in records.values():
            if not (type(record["last"]) is int and isinstance(record["withdrawn"], str)):
                raise ValueError(USED)
    except (OSError, *_MALFORMED) as error:
        raise Refused(f"this node cannot read its record of agreed runs: its owner restores {USED}") from error
    return dict(records)


def versions(state: Path, agreement: Agreement) -> list[str]:
    """Return the digests of all agreements of the same name that a node knows."""
    name = agreement.values["name"]
    return [digest for digest, record in remembered(state).items() if record.get("name") == name]


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts of a content."""
    if isinstance(value, dict | list):
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


def _repeats(text: str) -> bool:
    """Return whether a YAML text has aliases, of which thirty lines stand for a billion values."""
    return "*" in text and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, _SAFE))


def _replace(path: Path, text: str) -> None:
    """Write a file so that a power cut leaves the old or the new content."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # a name that nobody can link elsewhere beforehand
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # of the new name
    finally:
        os.close(folder)


@lru_cache(maxsize=1024)
def _signed(key: str, signature: str, statement: bytes) -> bool:
    try:
        public_key(key).verify(bytes.fromhex(signature), statement, ECDSA(SHA384()))
    except (InvalidSignature, ValueError):
        return False
    return True


def _configuration(config: str) -> dict[str, Any]:
    try:
        values = json.loads(config)
    except (ValueError, RecursionError) as error:
        raise Refused("the configuration is not JSON") from error
    if not isinstance(values, dict):
        raise Refused("the configuration has no keys")
    return values


def _difference(key: str, signed: Any, given: Any) -> str:
    """Name the first key that differs, with both values."""
    if isinstance(signed, dict) and isinstance(given, dict):
        for name in sorted(signed.keys() | given.keys()):
            if signed.get(name) != given.get(name):
                return _difference(f"{key}.{name}", signed.get(name), given.get(name))
    shown = [re.sub(r"[^ -~]", "?", json.dumps(value))[:60] for value in (given, signed)]
    return f"{re.sub(r'[^ -~]', '?', key)[:80]} is {shown[0]}, signed was {shown[1]}"


def _key(config: Mapping[str, Any], group: str, name: str, default: Any) -> Any:
    section = config.get(group)
    return section.get(name, default) if isinstance(section, dict) else default


def _place(member: tuple[str, dict[str, Any]]) -> int:
    return int(member[1]["client"])

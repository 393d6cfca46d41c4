"""Approvals of runs by owners: a node that asks for them runs nothing that enough of them did not sign.

    {"statement": {"config": SHA-256, "code": SHA-256, "nonce": …, "expires": "2026-12-31T00:00:00Z", "uses": 3},
     "signatures": {"<public key>": "<Ed25519 signature of the statement>"}}

The digest ``config`` is of the resolved configuration without `FREE`, and ``code`` of Flower's bundle. Numbers of runs do not
exist yet when people sign: the nonce names the approval, and a node counts the runs that used it in its state folder.

The check belongs to the installed node. It runs before the bundle is unpacked, in a process that imports none of this project's
modules, since they would replace those of the bundle. So this file imports none either.
"""

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

FREE = ("out", "overwrite", "resume", "tracking", "tracking_clients", "tracking_group", "engine", "ray")
"""Keys of a configuration that owners do not sign: they change nothing at a node."""

FOLDERS = ("init", "evaluate")
"""Keys whose folders owners sign by their last names: paths differ between machines, and the server has its own."""

KEY = "approval"
"""Key of Flower's run configuration with the approval."""

USED = "approvals.json"
"""File of a state folder: the runs that used each approval."""

TIME = "%Y-%m-%dT%H:%M:%SZ"

_RULE = re.compile(r"\s*(\d{1,3})\s+of\s+\[([^\[\]]*)\]\s*")
_HEAD = b"fedgraph-flwr approval of a run\n"
_LIMIT = 100_000


class Refused(Exception):
    """Error: a rule, an approval or a run is not accepted."""


@dataclass(frozen=True)
class Rule:
    """Signatures that a node asks for: ``2 of [alice.pub, bob.pub, carol.pub]``.

    Attributes:
        needed: number of signatures.
        owners: public key in OpenSSH format, without comment → name of its owner.
    """

    needed: int
    owners: dict[str, str]

    def text(self) -> str:
        """Return the rule for messages."""
        return f"{self.needed} of {', '.join(self.owners.values())}"


def read_rule(text: str, folder: Path) -> Rule:
    """Read a rule, whose paths are relative to a folder.

    Raises:
        Refused: it has another form, or a file is not an Ed25519 public key.
    """
    if not (found := _RULE.fullmatch(text)):
        raise Refused(f"approvals {text[:200]!r}: expected a rule such as 2 of [alice.pub, bob.pub, carol.pub]")
    owners: dict[str, str] = {}
    for word in filter(None, (part.strip() for part in found[2].split(","))):
        path = folder / word
        try:
            owners.setdefault(_text(_public(path.read_text())), path.stem)
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            why = getattr(error, "strerror", None) or "create one with ssh-keygen -t ed25519"
            raise Refused(f"approvals: {path} is not an Ed25519 public key in OpenSSH format ({why})") from error
    if not 1 <= int(found[1]) <= len(owners):
        raise Refused(
            f"approvals {text[:200]!r}: expected a number from 1 to {len(owners)}, the number of different keys"
        )
    return Rule(int(found[1]), owners)


def stored(rule: Rule) -> str:
    """Return a rule with its keys as text, for another process."""
    return json.dumps([rule.needed, rule.owners])


def read_stored(text: str) -> Rule:
    """Return a rule that `stored` wrote."""
    return Rule(*json.loads(text))


def config_digest(config: str) -> str:
    """Return the digest of a resolved configuration in JSON, without `FREE`.

    Raises:
        Refused: the text is no such configuration.
    """
    try:
        values = json.loads(config)
    except (ValueError, RecursionError) as error:
        raise Refused("the configuration is not JSON") from error
    if not isinstance(values, dict):
        raise Refused("the configuration has no keys")
    signed = {key: value for key, value in values.items() if key not in FREE}
    signed |= {key: Path(path).name for key in FOLDERS if isinstance(path := signed.get(key), str)}
    return hashlib.sha256(json.dumps(signed, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def code_digest(bundle: bytes) -> str:
    """Return the digest of Flower's bundle."""
    return hashlib.sha256(bundle).hexdigest()


def sign(approval: dict[str, Any], key: Ed25519PrivateKey) -> str:
    """Add a signature to an approval, and return the public key."""
    public = _text(key.public_key())
    approval.setdefault("signatures", {})[public] = key.sign(_bytes(approval["statement"])).hex()
    return public


def check(rule: Rule, run_config: Mapping[str, Any], bundle: bytes, run_id: int, state: Path, now: float) -> list[str]:
    """Check a run against a node's rule, count it, and return the names of the owners who signed.

    Args:
        rule: the node's rule.
        run_config: Flower's run configuration, as the bundle's code will read it.
        bundle: the bundle.
        run_id: Flower's number of the run.
        state: the node's state folder.
        now: seconds since 1970.

    Raises:
        Refused: the run is not approved; says what is missing.
    """
    extra = sorted(
        key for key, value in run_config.items() if key not in ("config", "num-clients", KEY) and value != ""
    )
    if extra or not str(run_config.get("config", "")).startswith("{"):
        what = (
            f"settings apart from its configuration ({re.sub(r'[^ -~]', '?', ', '.join(extra)[:200])})"
            if extra
            else "no resolved configuration"
        )
        raise Refused(
            f"this node needs signatures ({rule.text()}), and the run has {what}: start it with fedgraph-flwr run"
        )
    text = str(run_config.get(KEY) or "")
    if not text:
        fix = "sign one with fedgraph-flwr approve, and start the run with --approval FILE"
        raise Refused(f"this node needs signatures ({rule.text()}), and the run has no approval: {fix}")
    statement, signatures = read_approval(text)
    signers = [name for key, name in rule.owners.items() if _signed(key, signatures.get(key), statement)]
    if len(signers) < rule.needed:
        missing = [name for name in rule.owners.values() if name not in signers]
        wrong = [name for key, name in rule.owners.items() if key in signatures and name not in signers]
        forged = f" (the signature of {', '.join(wrong)} does not belong to this approval)" if wrong else ""
        has = ", ".join(signers) or "none"
        raise Refused(
            f"this node needs signatures ({rule.text()}), and the approval has {has}{forged}: missing is"
            f" {rule.needed - len(signers)} of {', '.join(missing)}, who adds a signature to the file with fedgraph-flwr approve"
        )
    if statement["config"] != (found := config_digest(str(run_config["config"]))):
        digests = f"{found[:12]}, signed was {statement['config'][:12]}"
        raise Refused(
            f"the owners approved another configuration (the run's is {digests}): start the one that they signed"
        )
    if statement["code"] != (found := code_digest(bundle)):
        digests = f"{found[:12]}, signed was {statement['code'][:12]}"
        raise Refused(
            f"the owners approved other code (the run's bundle is {digests}): sign again, or ship the signed one"
        )
    check_time(statement, now)
    _count(state, statement, run_id, now)
    return signers


def check_time(statement: Mapping[str, Any], now: float) -> None:
    """Refuse a statement that has expired.

    Args:
        statement: see `read_approval`.
        now: seconds since 1970.

    Raises:
        Refused: it has.
    """
    if now > _seconds(statement["expires"]):
        raise Refused(f"the approval expired at {statement['expires']}: the owners sign another one, in a new --file")


def runs(number: int) -> str:
    """Return a number of runs for messages."""
    return f"{number} run{'s' * (number != 1)}"


def read_approval(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the statement and the signatures of an approval.

    Raises:
        Refused: it is damaged.
    """
    try:
        values: Any = json.loads(text) if len(text) < _LIMIT else None
        statement, signatures = values["statement"], values["signatures"]
        kinds = {"config": str, "code": str, "nonce": str, "expires": str, "uses": int}
        right = statement.keys() == kinds.keys() and all(type(statement[key]) is kind for key, kind in kinds.items())
        right = right and isinstance(signatures, dict) and bool(re.fullmatch("[0-9a-f]{32}", statement["nonce"]))
        _seconds(statement["expires"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        right = False
    if not right:
        raise Refused("the approval is damaged: it is not a file of fedgraph-flwr approve")
    return statement, signatures


def _count(state: Path, statement: Mapping[str, Any], run_id: int, now: float) -> None:
    """Count a run among those of its approval; messages of one run count once."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / f"{USED}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path, nonce, run = state / USED, statement["nonce"], str(run_id)
        try:
            used = json.loads(path.read_text()) if path.is_file() else {}
            before = list(used.get(nonce, {}).get("runs", []))
        except (OSError, ValueError, AttributeError) as error:
            raise Refused(
                "this node cannot read its record of used approvals: its owner restores approvals.json"
            ) from error
        if run in before:
            return
        if len(before) >= statement["uses"]:
            uses = statement["uses"]
            raise Refused(
                f"the approval was used by {runs(len(before))}, and allows {uses}: the owners sign another one, in a new --file"
            )
        used[nonce] = {
            "expires": statement["expires"],
            "runs": [*before, run],
            "last": time.strftime(TIME, time.gmtime(now)),
        }
        part = path.with_name(f".{USED}.part")
        with part.open("w") as file:
            file.write(json.dumps(used))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)


def _signed(key: str, signature: Any, statement: Mapping[str, Any]) -> bool:
    try:
        _public(key).verify(bytes.fromhex(signature), _bytes(statement))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _bytes(statement: Mapping[str, Any]) -> bytes:
    return _HEAD + json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()


def _public(text: str) -> Ed25519PublicKey:
    key = load_ssh_public_key(text.encode())
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("not an Ed25519 key")
    return key


def _text(key: Ed25519PublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _seconds(text: str) -> float:
    import calendar

    return calendar.timegm(time.strptime(text, TIME))

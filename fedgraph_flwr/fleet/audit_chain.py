"""The file of a node's audit log: lines chained by hashes, and a head that names the last one (`fedgraph_flwr.secure.audit`)."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import MALFORMED, FedGraphError, system_errors

LOG, HEAD = "audit.jsonl", "audit.head"

OLDER = f"{LOG}-*"
"""Files to which the log was rotated, in the order of their names; the chain goes through all of them."""

START = "0" * 64

LOCAL = "an account of the server"
"""Operator of a request that did not come through nginx."""


def append(state: Path, entry: Mapping[str, Any]) -> None:
    """Append a line to the log of a node.

    Args:
        state: the node's state folder.
        entry: ``run`` (Flower's id), ``strategy``, ``phase``, ``round``, ``exchange``, ``received`` (bytes), ``sent`` (bytes by
            group), ``refused`` (the error message, "" if the node replied), ``noise`` ({} for none; ``unit``, ``purpose``,
            ``run`` and price of releases with noise, and how many the ledger of ε holds of this run and price: those that no line
            lists yet are this line's, also of a process that died after it booked them).

    Raises:
        FedGraphError: the log or its head was damaged, or cannot be written.
    """
    path = state / LOG
    with system_errors(f"cannot write {path}"), FileLock(f"{path}.lock"):
        head = read_head(state)
        if not path.is_file() and not head["n"]:
            write_bytes(path, b"")
        size = path.stat().st_size if path.is_file() else -1
        if size < 1 and _rotated(state, head["hash"]):
            write_bytes(path, b"")
            size = head["end"] = 0
        if size < head["end"]:
            raise FedGraphError(f"{path} is shorter than {HEAD} says: restore it, or move both away to start a new log")
        listed, entry = releases(state, head), dict(entry)
        if noise := entry.get("noise"):
            counts, name = listed.setdefault(ledger_of(noise), {}), _name(entry)
            new = noise["releases"] - counts.get(name, 0)
            counts[name] = max(noise["releases"], counts.get(name, 0))
            entry["noise"] = noise | {"releases": new} if new > 0 else {}
        text = text_of({"n": head["n"] + 1, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **entry})
        line = json.dumps({**json.loads(text), "hash": (digest := next_hash(head["hash"], text))}, ensure_ascii=False)
        content = f"{line}\n".encode()
        with path.open("r+b") as file:
            file.seek(head["end"])
            if file.read().count(b"\n") > 1:
                raise FedGraphError(newer(path))
            file.truncate(head["end"])
            file.seek(head["end"])
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        head = {"n": head["n"] + 1, "hash": digest, "end": head["end"] + len(content), "listed": listed}
        write_bytes(state / HEAD, json.dumps(head).encode())


def newer(path: Path) -> str:
    """Return the error of a log with lines that its head does not know, besides that of a process that died."""
    fix = "restore the newer one, or move both away to start a new log"
    return f"{path} has later lines than {HEAD}, as if that were from a back-up: {fix}"


def ledger_of(noise: Mapping[str, Any]) -> str:
    """Return the ledger of ε to which a line's releases belong."""
    return f"{noise['unit']} {noise.get('purpose')}"


def _name(entry: Mapping[str, Any]) -> str:
    """Return the name of the ledger's entry to which a line's releases belong; ``noise`` of earlier versions has no run."""
    return entry_name(str(entry["noise"].get("run", entry["run"])), entry["noise"])


def entry_name(run: str, price: Mapping[str, Any]) -> str:
    """Return the name of a ledger's entry for a run's releases of one price, which ends with a digest of the price.

    Entries of earlier versions have the run's name only, which becomes this one.
    """
    fixed = {key: value for key, value in price.items() if key not in ("releases", "unit", "purpose", "run")}
    ending = f" {hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]}"
    return run.removesuffix(ending) + ending


def releases(state: Path, head: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the numbers of releases with noise that the log lists, by ledger and entry; an older head has none."""
    if "listed" in head:
        return dict(head["listed"])
    counts: dict[str, dict[str, int]] = {}
    lines = [line for path in files_of(state) for line in path.read_bytes().splitlines()]
    for entry in map(json.loads, lines[: head["n"]]):
        if noise := entry.get("noise"):
            numbers, name = counts.setdefault(ledger_of(noise), {}), _name(entry)
            numbers[name] = numbers.get(name, 0) + noise["releases"]
    return counts


def files_of(state: Path) -> list[Path]:
    """Return the files of a log, oldest first."""
    return [path for path in (*sorted(state.glob(OLDER)), state / LOG) if path.is_file()]


def _rotated(state: Path, digest: str) -> bool:
    """Return whether the newest older file ends with the last line of the log, so that a new file continues it."""
    older = sorted(state.glob(OLDER))
    lines = older[-1].read_bytes().splitlines() if older else []
    return bool(lines) and lines[-1].endswith(f'"hash": "{digest}"}}'.encode())


def next_hash(before: str, text: str) -> str:
    """Return h_n of h_{n-1} and line n without its hash."""
    return hashlib.sha256(before.encode() + text.encode()).hexdigest()


def text_of(entry: Mapping[str, Any]) -> str:
    """Return a line without its hash."""
    return json.dumps(entry, ensure_ascii=False, sort_keys=True)


def read_head(state: Path) -> dict[str, Any]:
    """Return number, hash and end of the last line; those of an empty log if there is none.

    Raises:
        FedGraphError: the head is missing or damaged.
    """
    path = state / HEAD
    if not path.is_file() and not ((state / LOG).is_file() and (state / LOG).stat().st_size):
        return {"n": 0, "hash": START, "end": 0, "listed": {}}
    try:
        head: dict[str, Any] = json.loads(path.read_bytes())
        whole = type(head["n"]) is int and type(head["end"]) is int and type(head.get("listed", {})) is dict
        if not (whole and len(head["hash"]) == 64 and head["n"] > 0):
            raise ValueError("values")
    except (OSError, *MALFORMED) as error:
        raise FedGraphError(
            f"{path} does not name the last line of {LOG}: restore it, or move both away to start a new log"
        ) from error
    return head


def operator_of(runs: Path, run_id: int, action: str) -> str:
    """Return who did the last ``start`` or ``stop`` of a run, by the log of a server's folder of runs; "" if it has none."""
    for path in reversed(files_of(runs)):
        for line in reversed(path.read_bytes().splitlines()):
            with contextlib.suppress(*MALFORMED):
                entry = json.loads(line)
                if (entry["action"], entry["subject"]) == (action, str(run_id)):
                    return str(entry["operator"])
    return ""

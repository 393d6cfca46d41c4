"""A node's audit log: one line per request of a server and the reply to it, over all runs, chained by hashes.

    state/audit.jsonl    {"n": 7, "at": …, "run": …, "phase": "train", …, "hash": h_7}
    state/audit.jsonl-*  older files, to which it was rotated (`logrotate` with dateext)
    state/audit.head     number, hash and end of the last line

    h_n = SHA-256(h_{n-1} ‖ line n without its hash),  h_0 = 0

The node appends the line before the reply leaves, whether it replies or refuses, and replaces the head afterwards. A line that
the head does not know belongs to a process that died in between, whose reply did not leave: the next append replaces it. A node
whose log is shorter than its head, or has no head, refuses all requests.

Whoever can write to the folder can write a new chain. To notice that, keep the number and hash that ``fedgraph-flwr audit``
prints elsewhere, and pass them to a later audit.
"""

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import MALFORMED, FedGraphError, sanitize
from fedgraph_flwr.fleet.audit_chain import (
    HEAD,
    LOG,
    START,
    entry_name,
    files_of,
    ledger_of,
    newer,
    next_hash,
    read_head,
    releases,
    text_of,
)
from fedgraph_flwr.secure.spent import check_booking, spent

_KINDS = {"at": str, "run": str, "strategy": str, "phase": str, "round": int, "exchange": int, "received": int}
_KINDS |= {"sent": dict, "refused": str, "noise": dict, "n": int, "hash": str}

_OF_OPERATORS = dict.fromkeys(("at", "action", "subject", "operator", "address", "hash"), str) | {"n": int}
"""Keys of a server's log of operators' actions (`fedgraph_flwr.cli.superlink`)."""


def verified(state: Path, expect: str = "") -> Iterator[dict[str, Any]]:
    """Yield the lines of a node's log, each after it was checked against the chain.

    Args:
        state: the node's state folder.
        expect: ``NUMBER:HASH`` of an earlier audit.

    Raises:
        FedGraphError: there is no log; names the first line that was changed, removed, moved or cut off.
    """
    if not (files := files_of(state)):
        raise FedGraphError(
            f"{state} has no {LOG}: expected the state folder of a node (--state) that received requests"
        )
    number, _, wanted = expect.partition(":")
    if expect and not (number.isdecimal() and len(wanted) == 64):
        raise FedGraphError(
            f"--expect must be NUMBER:HASH as an earlier audit printed it, got '{sanitize(expect, 90)}'"
        )
    head = read_head(state)
    before, n, end, rest, path = START, 0, 0, 0, files[0]
    for path in files:
        end = 0 if n < head["n"] else end
        for line in path.open("rb"):
            if n == head["n"]:  # one is of a process that died before its reply left
                rest += 1
                continue
            n += 1
            entry = _read(path, n, line)
            digest = entry.pop("hash")
            if digest != next_hash(before, text_of(entry)):
                raise FedGraphError(
                    f"{path}, line {n} does not follow from line {n - 1}: it, or lines before it, were changed, removed or moved"
                )
            if str(n) == number and digest != wanted:
                raise FedGraphError(
                    f"{path}, line {n} has not the hash of the earlier audit: the log was written again"
                )
            before, end = digest, end + len(line)
            yield entry
    if rest > 1:
        raise FedGraphError(newer(path))
    if n < (last := max(head["n"], int(number or 0))):
        raise FedGraphError(f"{path} ends after line {n}, expected {last}: line {n + 1} was removed")
    if (before, end) != (head["hash"], head["end"]):
        raise FedGraphError(f"{path}, line {n} is not the one that {HEAD} names: the log was written again")


def released(state: Path, unit: str, purpose: str) -> dict[str, int]:
    """Return the numbers of releases with noise that a node's log lists for a ledger, by the ledger's entries.

    Args:
        state: the node's state folder.
        unit: ``privacy.unit``.
        purpose: the ledger's.

    Raises:
        FedGraphError: the log is damaged.
    """
    return releases(state, read_head(state)).get(ledger_of({"unit": unit, "purpose": purpose}), {})


def audit(state: Path, expect: str = "") -> Any:
    """Verify a node's log and return a pandas table with one row per run; of a server's log, one per action of an operator.

    Columns: ``run``, ``strategy``, ``first`` and ``last`` time, ``rounds``, ``requests``, ``refused``, ``received`` and ``sent``
    bytes, ``operator`` (who started it, as the server said), ``what`` left (bytes by group),
    ``approved`` (who signed), ``releases`` with noise, their ``unit`` (client, row,
    payment), ``epsilon`` of this run. Those of a server: ``at``, ``operator`` (subject of the certificate), ``address``,
    ``action`` and ``subject``, which is a run, a file of one, or a node, and ``run``, the folder of a run that was started or
    stopped (not part of the chain). ``attrs`` of the table: ``lines``, ``hash`` of the last
    line, ``epsilon`` of all runs by unit, ``reasons`` (refusals, counted).

    Raises:
        FedGraphError: as `verified`.
    """
    import pandas as pd

    rows: dict[str, dict[str, Any]] = {}
    booked: dict[str, dict[str, Any]] = {}
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    signers: defaultdict[str, dict[str, None]] = defaultdict(dict)
    reasons: Counter[str] = Counter()
    for entry in verified(state, expect):
        if "action" in entry:
            row = {key: entry[key] for key in ("at", "operator", "address", "action", "subject")}
            rows[str(entry["n"])] = row | {"run": ""}
            continue
        run = entry["run"]
        new = {"run": run, "strategy": "", "first": entry["at"], "last": "", "rounds": 0, "requests": 0, "refused": 0}
        row = rows.setdefault(run, new | {"received": 0, "sent": 0, "operator": ""})
        row["operator"] = str(entry.get("operator", row["operator"]))
        row["strategy"], row["last"] = entry["strategy"] or row["strategy"], entry["at"]
        row["rounds"], row["requests"] = max(row["rounds"], entry["round"]), row["requests"] + 1
        row["received"], row["sent"] = row["received"] + entry["received"], row["sent"] + sum(entry["sent"].values())
        groups[run].update(entry["sent"])
        if signed := entry.get("approved"):
            signers[run][str(signed)] = None
        if entry["refused"]:
            row["refused"] += 1
            reasons[entry["refused"]] += 1
        if entry["noise"]:
            name = f"{ledger_of(entry['noise'])} {entry_name(run, entry['noise'])}"
            before = booked.get(name, {"releases": 0})["releases"]
            booked[name] = entry["noise"] | {"releases": before + entry["noise"]["releases"], "run": run}
    names = _names(state) if any("action" in row for row in rows.values()) else {}
    for run, row in rows.items():
        if "action" in row:
            row["run"] = names.get(row["subject"], "") if row["action"] in ("start", "stop") else ""
            continue
        prices = {name: price for name, price in booked.items() if price["run"] == run}
        row["approved"] = "; ".join(signers[run])
        row["what"] = ", ".join(f"{group} {size}" for group, size in sorted(groups[run].items()))
        row["releases"] = sum(price["releases"] for price in prices.values())
        row["unit"] = ", ".join(sorted({str(price["unit"]) for price in prices.values()}))
        row["epsilon"] = spent(prices) if row["releases"] else 0.0
    units = {str(price["unit"]) for price in booked.values()}
    total = {
        unit: spent({name: price for name, price in booked.items() if price["unit"] == unit}) for unit in sorted(units)
    }
    table = pd.DataFrame(rows.values())
    lines = sum(row.get("requests", 1) for row in rows.values())
    table.attrs |= {"lines": lines, "hash": read_head(state)["hash"], "epsilon": total, "reasons": reasons}
    return table


def _read(path: Path, n: int, line: bytes) -> dict[str, Any]:
    """Return line n.

    Raises:
        FedGraphError: it is incomplete, no entry, or entry of another line.
    """
    try:
        entry: dict[str, Any] = json.loads(line)
        kinds = _OF_OPERATORS if "action" in entry else _KINDS
        if any(type(entry[key]) is not kind for key, kind in kinds.items()):
            raise ValueError("values")
        if entry.get("noise"):
            check_booking(entry["noise"])
            str(entry["noise"]["unit"])
        if not all(type(size) is int for size in entry.get("sent", {}).values()):
            raise ValueError("sent")
    except MALFORMED as error:
        cut = "" if line.endswith(b"\n") else ", it was cut off"
        raise FedGraphError(f"{path}, line {n} is no entry of the log{cut}: it was changed") from error
    if entry["n"] != n:
        raise FedGraphError(f"{path}, line {n} is entry {entry['n']}: lines were removed or moved")
    return entry


def _names(runs: Path) -> dict[str, str]:
    """Return the folders of runs that a server still has, by Flower's number; a run that was resumed has its last one only."""
    folders = {}
    for path in sorted(runs.glob("*/status.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            folders[str(json.loads(path.read_text())["run_id"])] = path.parent.name
    return folders

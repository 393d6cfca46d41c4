"""Results in a run's folder, read without torch: the names of its files, its summary, its rounds."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import MALFORMED, FedGraphError, first_line

CONFIG = "config.yaml"
ROUNDS = "rounds.jsonl"
SUMMARY = "summary.json"
FAILURE = "failure.json"


def headline_score(summary: Mapping[str, Any]) -> float:
    """Return the headline score, or NaN."""
    return as_number(summary.get(str(summary.get("headline", "")).partition(" at ")[0]))


def as_number(value: Any) -> float:
    """Convert a value of an untrusted file to a number; NaN if it is not one."""
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    )


_KINDS = {
    "headline": str,
    "strategy": str,
    "dataset": str,
    "rounds": int,
    "best_round": int,
    "seed": int,
}
_KINDS |= dict.fromkeys(
    (
        "metrics",
        "clients",
        "failed",
        "failure_kinds",
        "failures",
        "phases",
        "train",
        "nodes",
        "missing",
    ),
    dict,
)
_KINDS |= {"bytes_by_phase": dict, "scored_by": list, "min_items": int}
"""Type of the values that readers of summaries and records rely on."""


def _odd(content: Any, needed: Sequence[str] = ()) -> str:
    """Return what is wrong with a summary or a record of an untrusted file; empty if it can be read as one."""
    if not isinstance(content, dict):
        return "expected keys with values"
    wrong = [
        key for key, kind in _KINDS.items() if key in content and not isinstance(content[key], kind)
    ]
    missing = [key for key in needed if key not in content]
    return (
        f"'{wrong[0]}' has a wrong type"
        if wrong
        else f"it has no '{missing[0]}'"
        if missing
        else ""
    )


def read_summary(folder: Path, needed: Sequence[str] = ()) -> dict[str, Any]:
    """Read the summary of a finished run.

    Raises:
        FedGraphError: it is missing or damaged, or has none of a needed key.
    """
    try:
        summary = json.loads((folder / SUMMARY).read_bytes())
        reason = _odd(summary, needed)
    except (OSError, *MALFORMED) as error:
        reason = first_line(error)
    if reason:
        what = f"{folder / SUMMARY} is not a valid summary of a run ({reason})"
        raise FedGraphError(f"{what}: restore it, or repeat the run")
    return dict(summary)


def read_rounds(path: Path, skip: int = 0) -> list[dict[str, Any]]:
    """Read the records of the rounds after the first ``skip``; empty without a file.

    An incomplete last line, of a dead process or in progress, is skipped.

    Raises:
        FedGraphError: another line is invalid.
    """
    if not path.is_file():
        return []
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        if number <= skip:
            continue
        try:
            record = json.loads(line)
        except MALFORMED:
            record = None
        if _odd(record, ["round"]) or type(record["round"]) is not int:
            what = f"expected a record of a round, got {line[:60]!r}"
            raise FedGraphError(
                f"{path}, line {number}: {what}: restore the file, or repeat the run"
            )
        records.append(record)
    return records

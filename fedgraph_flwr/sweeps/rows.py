"""Results of a sweep: a CSV file with one row per run, written by one process at a time."""

import contextlib
import csv
import functools
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import bounded_metric
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.evaluation.chance import metric_of
from fedgraph_flwr.store.folder import InUse, owned

FIELDS = ["setting", "method", "seed", "value", "validation", "headline", "last", "last5", "rounds", "best_round"]
FIELDS += ["seconds_per_round", "bytes_up", "bytes_down", "words", "commit", "success", "seconds", "data", "missed"]
FIELDS += ["code", "cpu_seconds", "exchanges", "peak_rss_mb", "parameters"]

MAJORITY = "Majority"
HOMOPHILY = "Homophily"
COUNTED = (MAJORITY, HOMOPHILY)
"""Columns that are computed without a run."""

FAILED, REFUSED, DIED = "failed: ", "refused: ", "died: "
"""Prefixes of the headline of a run without a score: it failed; it did not start; its process ended."""

PARTLY = "scored by "
"""Prefix of ``missed`` of a run whose score does not cover all clients that were to score it."""

Row = Mapping[str, Any]
Identity = tuple[str, frozenset[tuple[str, str]]]
Finished = Mapping[Identity, Row]


@functools.cache
def identity(method: str, overrides: str) -> Identity:
    """Return an identity that rows of the same run share; the last override of a key counts."""
    pairs = [word.partition("=")[::2] for word in overrides.split()]
    return method if method in COUNTED else "", frozenset(dict(pairs).items())


def number(row: Row, key: str) -> float:
    """Return a number of a row; NaN if it has none.

    Raises:
        FedGraphError: it is a text.
    """
    value = row.get(key)
    try:
        return math.nan if value in (None, "") else float(value)
    except ValueError as error:
        what = f"{key} '{sanitize(row[key], 40)}' of the row {sanitize(row.get('words'), 100)}"
        raise FedGraphError(f"{what} is not a number: correct or remove the row of the results") from error


def in_percent(row: Row) -> bool:
    """Return whether a row's score is a share."""
    return bounded_metric(metric_of(str(row.get("headline"))))


def failure(row: Row) -> str:
    """Return the error message of a run without a score; empty if it has one."""
    headline = str(row.get("headline") or "")
    return headline if headline.startswith((FAILED, REFUSED, DIED)) else ""


def lasting(row: Row) -> bool:
    """Whether a repetition would fail again; not for runs that were rejected or whose process died."""
    return not failure(row).startswith((REFUSED, DIED))


def read(path: Path) -> list[dict[str, str]]:
    """Read the complete rows of a file of results; empty if the file does not exist.

    Raises:
        FedGraphError: the file is not a sweep's.
    """
    if not path.is_file():
        return []
    if not ours(path):
        raise FedGraphError(f"{path} does not contain results of a sweep: move it, or pass another --out")
    with path.open(newline="", errors="replace") as file:  # a process that died may have cut a letter
        return [row for row in csv.DictReader(file) if row.get("words") and None not in row.values()]


def ours(path: Path) -> bool:
    """Whether a CSV file has a sweep's header; its rows are not read."""
    with path.open(newline="", errors="replace") as file:
        head = file.readline(10_000).strip().split(",")
    return {"setting", "method", "seed", "value", "words"} <= set(head)


def beside(path: Path) -> Iterator[dict[str, str]]:
    """Return the rows of other sweeps in the same folder."""
    for other in sorted(path.parent.glob("*.csv")):
        if other != path and ours(other):
            yield from read(other)


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write the whole file at once."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    write_bytes(path, text.getvalue().encode())


def append(path: Path, rows: Sequence[Row]) -> None:
    """Append rows and flush them to disk."""
    try:
        with path.open("a", newline="") as file:
            csv.DictWriter(file, FIELDS, lineterminator="\n", extrasaction="ignore").writerows(rows)
    except OSError as error:
        raise FedGraphError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock of a file of results.

    Raises:
        FedGraphError: another sweep holds it.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(owned(path.parent, f".{path.stem}.sweep.lock"))
        except InUse as error:
            raise FedGraphError(f"{path} is being written by another sweep: wait, or pass another --out") from error
        yield

"""The results of a sweep: a CSV with a row a run, which one process writes at a time, row by row."""

import contextlib
import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr.data.graph import write_bytes
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.runs.folder import InUse, owned

FIELDS = ["setting", "method", "seed", "value", "validation", "headline", "last", "last5", "rounds", "best_round"]
FIELDS += ["seconds_per_round", "bytes_up", "bytes_down", "words", "commit", "success", "seconds", "data", "missed"]

MAJORITY = "Majority"
HOMOPHILY = "Homophily"
COUNTED = (MAJORITY, HOMOPHILY)
"""Columns that run nothing."""

FAILED, REFUSED, DIED = "failed: ", "refused: ", "died: "
"""How the headline of a run without a figure begins: it could not go on; it did not begin; its process ended."""

Row = Mapping[str, Any]
Identity = tuple[str, frozenset[tuple[str, str]]]
Found = Mapping[Identity, Row]


def identity(method: str, words: str) -> Identity:
    """The same for rows of the same run; of a key that is there twice, the last word holds."""
    pairs = [word.partition("=")[::2] for word in words.split()]
    return method if method in COUNTED else "", frozenset(dict(pairs).items())


def number(row: Row, key: str) -> float:
    """A figure of a row; NaN where it has none."""
    return float(row.get(key) or math.nan)


def failure(row: Row) -> str:
    """The sentence of a run that gave no figure; empty where it gave one."""
    headline = str(row.get("headline") or "")
    return headline if headline.startswith((FAILED, REFUSED, DIED)) else ""


def lasting(row: Row) -> bool:
    """Whether another try would end alike: a run that was refused, or whose process died, is made again."""
    return not failure(row).startswith((REFUSED, DIED))


def read(path: Path) -> list[dict[str, str]]:
    """The whole rows of a file of results; none where there is no such file.

    Raises:
        FedGraphError: it is another's.
    """
    if not path.is_file():
        return []
    if not ours(path):
        raise FedGraphError(
            f"{path} holds no results of a sweep: move it, rename the sweep's file, or give another --out"
        )
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row.get("words")]


def ours(path: Path) -> bool:
    """Whether a CSV begins as those of sweeps do; its rows are not looked at."""
    with path.open(newline="", errors="replace") as file:
        head = file.readline(10_000).strip().split(",")
    return {"setting", "method", "seed", "value", "words"} <= set(head)


def beside(path: Path) -> Iterator[dict[str, str]]:
    """The rows of other sweeps in the same folder."""
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
    """Write rows behind the others; they are on disk then, whatever becomes of this process."""
    try:
        with path.open("a", newline="") as file:
            csv.DictWriter(file, FIELDS, lineterminator="\n", extrasaction="ignore").writerows(rows)
    except OSError as error:
        raise FedGraphError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Be the only sweep that writes this file.

    Raises:
        FedGraphError: another one does.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(owned(path.parent, f".{path.stem}.sweep.lock"))
        except InUse as error:
            raise FedGraphError(
                f"{path} is being written by another sweep: wait for it, or give another --out"
            ) from error
        yield

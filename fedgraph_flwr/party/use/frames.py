"""Tables that people open: CSV without formulas, or Parquet."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import FedGraphError

FORMULA = "[=+\\-@\\t\\r\uff1d\uff0b\uff0d\uff20]"
"""Start of a cell that spreadsheets run as a formula (OWASP, "CSV injection"), in normal or full width."""

NUMBER = r"[+-]?\d[\d .,]*"
"""Cells that start so and are harmless: numbers, also of phones."""


def without_formulas(frame: Any) -> tuple[Any, int]:
    """Return a pandas table whose cells and column names no spreadsheet runs, by a leading ``'``; and how many it changed."""
    safe, changed = frame.copy(), 0
    for name, texts in _texts(frame):
        unsafe = texts.str.match(FORMULA) & ~texts.str.fullmatch(NUMBER)
        if unsafe.any():
            safe[name] = frame[name].astype(object).mask(unsafe, "'" + texts)
            changed += int(unsafe.sum())
    names = frame.columns.astype(str)
    safe.columns = names.where(~names.str.match(FORMULA), "'" + names)
    return safe, changed


def _texts(frame: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and cells, as text, of each column of texts."""
    yield from ((name, frame[name].astype(str)) for name in frame.columns if frame[name].dtype.kind in "OSUT")


def as_csv(frame: Any, keep_formulas: bool = False) -> str:
    """Return a pandas table as CSV; ``keep_formulas`` leaves its cells as they are."""
    shown = _with_line_feeds(frame if keep_formulas else without_formulas(frame)[0])
    text: str = shown.to_csv(index=False)
    return text


def _with_line_feeds(frame: Any) -> Any:
    """Return a table whose texts have line feeds for carriage returns.

    Python's writer leaves a cell with a carriage return unquoted, so that the rest of the cell would begin a row, such as ``=1``.
    """
    for name, texts in _texts(frame):
        if (returns := texts.str.contains("\r")).any():
            plain = texts.str.replace("\r\n", "\n").str.replace("\r", "\n")
            frame = frame.assign(**{name: frame[name].astype(object).mask(returns, plain)})
    return frame.rename(columns=lambda name: str(name).replace("\r", "\n"))


def check_suffix(path: Path | None, accepted: Sequence[str] = (".csv", ".parquet")) -> None:
    """Refuse a table that is neither ``.csv`` nor ``.parquet``, or another output that has none of the accepted suffixes."""
    if path is not None and path.suffix not in accepted:
        raise FedGraphError(f"{path} has an unknown suffix: expected {' or '.join(accepted)}")


def check_written(args: Namespace) -> None:
    """Check the suffixes of ``--out`` and ``--page`` before anything is computed."""
    check_suffix(args.out)
    check_suffix(getattr(args, "page", None), (".html",))


def write_frame(frame: Any, path: Path, keep_formulas: bool = False) -> None:
    """Write a pandas table as ``.csv``, without formulas unless they are to be kept, or unchanged as ``.parquet``.

    Raises:
        FedGraphError: the suffix is unknown, or the folder is not writable.
    """
    check_suffix(path)
    write_bytes(path, as_csv(frame, keep_formulas).encode() if path.suffix == ".csv" else frame.to_parquet())

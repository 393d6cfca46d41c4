"""Reading of tables: CSV of any separator and encoding, compressed or not, and Parquet.

Separator and encoding are detected where they are not given: the separator that cuts the first rows into equally many fields, and
UTF-8 (with a byte-order mark or without), else Windows-1252, which contains Latin-1.
"""

import csv
import gzip
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError, unknown

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": " "}
"""Names for separators that are awkward to type in a shell."""

_DETECTED = (",", ";", "\t", "|")
_FALLBACK = ("cp1252", "latin-1")
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_ROWS = 50
"""Rows that the separator is detected by."""


def _silent(text: str) -> None:
    pass


@dataclass(frozen=True)
class TableLayout:
    """What the columns of a party's tables are called, and how its files are written; "" for a default or what is detected.

    Attributes:
        id: column of the node table; likewise ``label``, ``split`` and ``client``.
        source: column of the edge table; likewise ``target``.
        separator: between the fields of a CSV.
        encoding: of a CSV.
    """

    id: str = ""
    label: str = ""
    split: str = ""
    client: str = ""
    source: str = ""
    target: str = ""
    separator: str = ""
    encoding: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "separator", SEPARATORS.get(self.separator, self.separator))
        if len(self.separator) > 1:
            raise FedGraphError(
                f"separator '{self.separator}' must be one character, or one of: {', '.join(SEPARATORS)}"
            )
        if self.encoding:
            try:
                "".encode(self.encoding)
            except LookupError as error:
                raise FedGraphError(
                    f"encoding '{self.encoding}' unknown; expected one of Python's, such as utf-8, cp1252 or utf-16"
                ) from error

    def to_dict(self) -> dict[str, str]:
        """What is not empty."""
        return {key: value for key, value in asdict(self).items() if value}

    @classmethod
    def from_dict(cls, values: Any, where: str) -> "TableLayout":
        """From what `to_dict` gives.

        Raises:
            FedGraphError: it is no mapping, or has an unknown key.
        """
        if not isinstance(values, Mapping):
            raise FedGraphError(f"{where}: tables must be a mapping such as {{id: customer, separator: ';'}}")
        for key in values:
            if key not in (known := [f.name for f in fields(cls)]):
                raise unknown("key of tables", key, known, where)
        return cls(**{str(key): str(value) for key, value in values.items()})

    def over(self, other: "TableLayout") -> "TableLayout":
        """This layout, with the other's values where this one has none."""
        return replace(other, **self.to_dict())


AS_DETECTED = TableLayout()


def read_table(path: Path | str, layout: TableLayout = AS_DETECTED, say: Callable[[str], None] = _silent) -> Any:
    """A pandas table of a ``.csv``, ``.tsv`` or ``.txt`` file (or one of these with ``.gz``) or a ``.parquet`` file.

    Empty cells of a CSV are missing, nothing else is; all its values are text.

    Args:
        path: the file.
        layout: its separator and encoding; detected where empty.
        say: receives what was detected, unless it is the usual.

    Raises:
        FedGraphError: it is missing, has another ending, or cannot be read.
    """
    import pandas as pd

    path = Path(path)
    if not path.is_file():
        raise FedGraphError(f"no such table: {path}")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt")):
            return _read_csv(path, layout, say)
    except FedGraphError:
        raise
    except Exception as error:  # pandas and pyarrow raise many kinds
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FedGraphError(f"{path} cannot be read as a table ({reason})") from error
    raise FedGraphError(f"{path} has no known ending; tables are .csv, .tsv, .txt (or with .gz) or .parquet")


def _read_csv(path: Path, layout: TableLayout, say: Callable[[str], None]) -> Any:
    encoding = layout.encoding or _encoding(path)
    try:
        separator = layout.separator or _separator(path, encoding)
        table = _parsed(path, separator, encoding)
    except UnicodeError as error:
        raise FedGraphError(f"{path} is not {encoding} ({error}): pass --encoding, such as cp1252 or utf-16") from error
    if not layout.encoding and encoding in _FALLBACK:
        say(f"{path}: read as {encoding} (Latin-1), since it is not UTF-8; pass --encoding if letters look wrong")
    if not layout.separator and separator != ",":
        name = next(name for name, sign in SEPARATORS.items() if sign == separator)
        say(f"{path}: columns are separated by {name}")
    return table


def _parsed(path: Path, separator: str, encoding: str) -> Any:
    import pandas as pd

    table = pd.read_csv(
        path,
        sep=separator,
        encoding=encoding,
        dtype=str,
        keep_default_na=False,
        na_values=[""],
        skipinitialspace=separator != "\t",
    )
    table.columns = [str(name).strip() for name in table.columns]
    return table


def _open(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _encoding(path: Path) -> str:
    """By the byte-order mark, else the first of UTF-8, Windows-1252 and Latin-1 that can be."""
    with _open(path) as file:
        start = file.read(3)
    for mark, encoding in _MARKS.items():
        if start.startswith(mark):
            return encoding
    return next((encoding for encoding in ("utf-8", *_FALLBACK) if _decodes(path, encoding)), "latin-1")


def _decodes(path: Path, encoding: str) -> bool:
    import codecs

    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        with _open(path) as file:
            while block := file.read(1 << 20):
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _separator(path: Path, encoding: str) -> str:
    """The one that cuts header and first rows into the most, equally many, fields; a comma where none does."""
    import io

    best, most = ",", 1
    for sign in _DETECTED:
        with _open(path) as raw, io.TextIOWrapper(raw, encoding, newline="") as text:
            try:
                rows = [row for row in islice(csv.reader(text, delimiter=sign, skipinitialspace=True), _ROWS) if row]
            except csv.Error:
                continue
        if rows and len(rows[0]) > most and all(len(row) == len(rows[0]) for row in rows):
            best, most = sign, len(rows[0])
    return best

"""Table reader: CSV with any separator and encoding, compressed or not, and Parquet.

Separator and encoding are detected if not given. The separator is the one that splits the first rows into equally many
fields. The encoding is UTF-8, with or without byte-order mark, else Windows-1252, a superset of Latin-1.
"""

import csv
import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError, first_line, unknown

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": " "}
"""Names for separators that are awkward to type in a shell."""

_DETECTED = (",", ";", "\t", "|")
_FALLBACK = ("cp1252", "latin-1")
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_ROWS = 50
"""Number of rows used to detect the separator."""


def _silent(text: str) -> None:
    pass


@dataclass(frozen=True)
class TableLayout:
    """Column names and file format of a party's tables; "" for a default or a detected value.

    Attributes:
        id: column of the node table; likewise ``label``, ``split`` and ``client``.
        source: column of the edge table; likewise ``target``, ``time``, ``edge_label`` and ``edge_id``.
        graph: column of the node table with the graph of each node, if it holds many graphs.
        predict: columns of the node table with numbers to predict, separated by commas.
        windows: days within which payments at both ends of an edge are counted, separated by commas.
        separator: field separator of a CSV.
        encoding: encoding of a CSV.
        party_columns: columns of the edge table with the parties of source and target, ``SOURCE,TARGET``.
        party_prefix: text after a party's name at the start of an id.
        match_columns: columns of the edge table that identify a record, ``NAME:KIND,...``.
        id_form: form in which parties compare ids, ``text`` or ``number``.
    """

    id: str = ""
    label: str = ""
    split: str = ""
    client: str = ""
    source: str = ""
    target: str = ""
    time: str = ""
    edge_label: str = ""
    edge_id: str = ""
    graph: str = ""
    predict: str = ""
    windows: str = ""
    separator: str = ""
    encoding: str = ""
    party_columns: str = ""
    party_prefix: str = ""
    match_columns: str = ""
    id_form: str = ""

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
                    f"encoding '{self.encoding}' is unknown; expected a Python codec, such as utf-8, cp1252 or utf-16"
                ) from error

    def to_dict(self) -> dict[str, str]:
        """Return the non-empty fields."""
        return {key: value for key, value in asdict(self).items() if value}

    @classmethod
    def from_dict(cls, values: Any, where: str) -> "TableLayout":
        """Build a layout from the output of `to_dict`.

        Raises:
            FedGraphError: the value is not a mapping, or has an unknown key.
        """
        if not isinstance(values, Mapping):
            raise FedGraphError(f"{where}: tables must be a mapping such as {{id: customer, separator: ';'}}")
        for key in values:
            if key not in (known := [f.name for f in fields(cls)]):
                raise unknown("key of tables", key, known, where)
        return cls(**{str(key): str(value) for key, value in values.items()})

    def over(self, other: "TableLayout") -> "TableLayout":
        """Return this layout with empty fields filled from the other."""
        return replace(other, **self.to_dict())


AS_DETECTED = TableLayout()


def read_table(path: Path | str, layout: TableLayout = AS_DETECTED, say: Callable[[str], None] = _silent) -> Any:
    """Read a ``.csv``, ``.tsv`` or ``.txt`` file (optionally ``.gz``) or a ``.parquet`` file as a pandas table.

    In a CSV all values are text, and only empty cells are missing.

    Args:
        path: the file.
        layout: its separator and encoding; detected if empty.
        say: receives one line per detected value that is not the default.

    Raises:
        FedGraphError: the file is missing, has an unknown suffix, or cannot be read.
    """
    import pandas as pd

    path = Path(path)
    if not path.is_file():
        raise FedGraphError(f"no such table: {path}; expected a .csv, .tsv, .txt or .parquet file")
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
    raise FedGraphError(f"{path} has an unknown suffix: expected .csv, .tsv or .txt (also with .gz), or .parquet")


def _read_csv(path: Path, layout: TableLayout, say: Callable[[str], None], **options: Any) -> Any:
    encoding = layout.encoding or _encoding(path)
    try:
        separator = layout.separator or _separator(path, encoding)
        table = _parsed(path, separator, encoding, **options)
    except UnicodeError as error:
        raise FedGraphError(f"{path} is not {encoding} ({error}): pass --encoding, such as cp1252 or utf-16") from error
    if not layout.encoding and encoding in _FALLBACK:
        say(f"{path}: read as {encoding} (Latin-1) because it is not UTF-8; pass --encoding if letters look wrong")
    if not layout.separator and separator != ",":
        name = next(name for name, sign in SEPARATORS.items() if sign == separator)
        say(f"{path}: columns are separated by {name}")
    return table


def read_chunks(path: Path | str, layout: TableLayout, names: Sequence[str], rows: int) -> Iterator[Any]:
    """Read some columns of a table in chunks of rows, with the values of `read_table`.

    Raises:
        FedGraphError: as `read_table`.
    """
    path = Path(path)
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            for batch in parquet.ParquetFile(path).iter_batches(rows, columns=list(names)):
                yield batch.to_pandas()
            return
        encoding = layout.encoding or _encoding(path)
        for table in _reader(path, layout.separator or _separator(path, encoding), encoding, chunksize=rows):
            table.columns = [str(name).strip() for name in table.columns]
            yield table[list(names)]
    except FedGraphError:
        raise
    except Exception as error:  # pandas and pyarrow raise many kinds
        raise FedGraphError(f"{path} cannot be read as a table ({first_line(error)})") from error


def read_columns(path: Path | str, layout: TableLayout, say: Callable[[str], None] = _silent) -> Any:
    """Return a table's columns without its rows.

    Raises:
        FedGraphError: as `read_table`.
    """
    path = Path(path)
    if path.suffix != ".parquet":
        return _read_csv(path, layout, say, nrows=0)
    from pyarrow import parquet

    return parquet.read_schema(path).empty_table().to_pandas()


def _parsed(path: Path, separator: str, encoding: str, **options: Any) -> Any:
    table = _reader(path, separator, encoding, **options)
    table.columns = [str(name).strip() for name in table.columns]
    return table


def _reader(path: Path, separator: str, encoding: str, **options: Any) -> Any:
    import pandas as pd

    return pd.read_csv(
        path,
        sep=separator,
        encoding=encoding,
        dtype=str,
        keep_default_na=False,
        na_values=[""],
        skipinitialspace=separator != "\t",
        **options,
    )


def _open(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _encoding(path: Path) -> str:
    """Detect the encoding by the byte-order mark, else the first of UTF-8, Windows-1252 and Latin-1 that decodes."""
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
    """Detect the separator that splits header and first rows into the most, equally many fields; default comma."""
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

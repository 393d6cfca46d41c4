"""Table reader: CSV with any separator and encoding, compressed or not, and Parquet.

Separator and encoding are detected if not given. The separator is the one that splits the first rows into equally many
fields. The encoding is UTF-8, with or without byte-order mark, else Windows-1252, a superset of Latin-1.
"""

import gzip
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedgraph_flwr.data.preprocess import MARKS, misfit, read_csv, separator_of
from fedgraph_flwr.data.schema import AS_DETECTED, SEPARATORS, TableLayout
from fedgraph_flwr.errors import FedGraphError, first_line

_FALLBACK = ("cp1252", "latin-1")
_BLOCK = 1 << 24
"""Bytes that are parsed at a time: each column gets one piece of memory for each block, and wide tables have many columns."""

Say = Callable[[str], None]
"""Receives a line for the user."""


def silent(text: str) -> None:
    """Report nothing."""


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Name the file in the errors of readers: pandas and pyarrow raise many kinds."""
    import pandas as pd

    try:
        yield
    except FedGraphError:
        raise
    except pd.errors.EmptyDataError:
        raise FedGraphError(f"{path} is empty: expected a first line with the names of columns") from None
    except Exception as error:
        raise FedGraphError(f"{path} cannot be read as a table ({first_line(error)})") from error


def read_table(path: Path | str, layout: TableLayout = AS_DETECTED, say: Say = silent) -> Any:
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
        what = "a folder, not a table" if path.is_dir() else "no such table"
        raise FedGraphError(f"{what}: {path}; expected a .csv, .tsv, .txt or .parquet file")
    with _errors_of(path):
        if path.suffix == ".parquet":
            table = pd.read_parquet(path)
            table = table if table.index.names == [None] else table.reset_index()  # such as ids, by `set_index`
            return _of_single_values(table, path, say)
        if path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt")):
            return next(_csv_tables(path, layout, say))
    raise FedGraphError(f"{path} has an unknown suffix: expected .csv, .tsv or .txt (also with .gz), or .parquet")


def _csv_tables(path: Path, layout: TableLayout, say: Say, **options: Any) -> Iterator[Any]:
    """Yield the table of a CSV file, or its chunks; separator and encoding are detected if the layout has none."""
    encoding = layout.encoding or _encoding(path)
    try:
        separator = layout.separator or _declared(path, encoding) or separator_of(lambda: _open(path, encoding))
        whole = None if options else _by_arrow(path, separator, encoding)
        tables = _by_pandas(path, separator, encoding, **options) if whole is None else iter([_named(whole, path)])
        for place, table in enumerate(tables):
            if not place and not layout.encoding and encoding in _FALLBACK:
                fix = "because it is not UTF-8; pass encoding=NAME if letters look wrong"
                say(f"{path}: read as {encoding} (Latin-1) {fix}")
            if not place and not layout.separator and separator != ",":
                name = next((name for name, sign in SEPARATORS.items() if sign == separator), f"'{separator}'")
                say(f"{path}: columns are separated by {name}")
            yield table
    except UnicodeError as error:
        raise FedGraphError(
            f"{path} is not {encoding} ({error}): pass encoding=NAME, such as cp1252 or utf-16"
        ) from error


def read_chunks(path: Path | str, layout: TableLayout, names: Sequence[str], rows: int) -> Iterator[Any]:
    """Read some columns of a table in chunks of rows, with the values of `read_table`.

    Raises:
        FedGraphError: as `read_table`.
    """
    path = Path(path)
    with _errors_of(path):
        if path.suffix == ".parquet":
            from pyarrow import parquet

            for batch in parquet.ParquetFile(path).iter_batches(rows, columns=list(names)):
                table = _of_single_values(batch.to_pandas(), path, silent)
                if nested := table.attrs.get(NESTED):
                    raise FedGraphError(f"{path}: column '{nested[0]}' has lists in its cells, expected single values")
                yield table
            return
        for table in _csv_tables(path, layout, silent, chunksize=rows):
            yield table[list(names)]


def read_columns(path: Path | str, layout: TableLayout, say: Say = silent) -> Any:
    """Return a table's columns without its rows.

    Raises:
        FedGraphError: as `read_table`.
    """
    path = Path(path)
    if path.suffix != ".parquet":
        return next(_csv_tables(path, layout, say, nrows=0))
    from pyarrow import parquet

    with _errors_of(path):
        return parquet.read_schema(path).empty_table().to_pandas()


NESTED = "nested"
"""Key of a table's attributes: names of columns that were left out because their cells are lists."""


def _of_single_values(table: Any, path: Path, say: Say) -> Any:
    """Return a table of Parquet whose cells are single values: bytes become text, columns of lists are left out."""
    nested = []
    for name in [name for name, dtype in table.dtypes.items() if dtype.kind == "O"]:
        cells = table[name].tolist()
        if any(
            isinstance(cell, np.ndarray | Sequence | Mapping) and not isinstance(cell, str | bytes) for cell in cells
        ):
            nested.append(name)
        elif any(isinstance(cell, bytes) for cell in cells):
            table[name] = [
                cell.decode(errors="backslashreplace") if isinstance(cell, bytes) else cell for cell in cells
            ]
    if nested:
        say(f"{path}: left out, because their cells are lists and not single values: {', '.join(map(str, nested))}")
        table = table.drop(columns=nested)
        table.attrs[NESTED] = list(map(str, nested))
    return table


def _by_pandas(path: Path, separator: str, encoding: str, **options: Any) -> Iterator[Any]:
    """Yield the table, or its chunks; the lengths of rows are checked where pandas may have filled or shifted them."""
    import pandas as pd

    checked = False
    _check_names(_reader(path, separator, encoding, header=None, nrows=1).iloc[0].dropna(), path)
    try:
        if "chunksize" in options and tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):
            _check_lengths(path, separator, encoding)  # these versions drop further fields of a chunk's first row
        read = _reader(path, separator, encoding, **options)
        for table in read if "chunksize" in options else [read]:
            doubtful = len(table) and (not isinstance(table.index, pd.RangeIndex) or table.iloc[:, -1].hasnans)
            if doubtful and not checked:
                _check_lengths(path, separator, encoding)
                checked = True
            yield _named(table, path)
    except pd.errors.ParserError:
        _check_lengths(path, separator, encoding)
        raise


def _check_lengths(path: Path, separator: str, encoding: str) -> None:
    """Check that each row has as many fields as the header; pandas would fill a short one with empty cells.

    Raises:
        FedGraphError: one has not; names its line.
    """
    with _open(path, encoding) as text:
        wrong = misfit(text, separator)
    if wrong:
        line, size, number = wrong
        what = f"{size} fields, {'fewer' if size < number else 'more'} than the {number} of the header"
        fix = "give rows one field per column (empty if unknown), quote values with separators, end lines without one"
        raise FedGraphError(f"{path}, line {line + bool(_declared(path, encoding))}: {what}: {fix}")


def _by_arrow(path: Path, separator: str, encoding: str) -> Any:
    """Return the table that `_reader` returns, in a third of its time; None if it might differ, or is a table of one column."""
    import mmap

    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if encoding != "utf-8" or path.suffix == ".gz" or not path.stat().st_size:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        names = content.readline().decode().rstrip("\r\n").split(separator)
        # Read in another way than by pandas: spaces at the start of fields, quotes, NUL, and single returns.
        odd = any(content.find(text, 0) >= 0 for text in (f"{separator} ".encode(), b"\n ", b'"', b"\0"))
        odd = (
            odd
            or content[:1] == b" "
            or content[:4] == b"sep="
            or (content.find(b"\r", 0) >= 0 and bool(re.search(rb"\r(?!\n)", content)))
        )
    if odd or len(names) < 2 or len({*names}) < len(names) or not all(names):
        return None
    form = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    try:
        table = arrow_csv.read_csv(
            path,
            arrow_csv.ReadOptions(block_size=_BLOCK),
            arrow_csv.ParseOptions(delimiter=separator),
            form,
        )
    except pa.ArrowInvalid:  # such as rows of other lengths
        return None
    return table.to_pandas(split_blocks=True, self_destruct=True)


def _named(table: Any, path: Path) -> Any:
    """Return a table with names of columns without spaces around them."""
    table.columns = _check_names(table.columns, path)
    return table


def _check_names(columns: Iterable[Any], path: Path) -> list[str]:
    """Return names of columns without spaces around them; pandas would number equal ones.

    Raises:
        FedGraphError: two are the same.
    """
    names = [str(name).strip() for name in columns]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise FedGraphError(f"{path} has two columns '{twice[0]}': rename or remove one")
    return names


def _reader(path: Path, separator: str, encoding: str, **options: Any) -> Any:
    return read_csv(path, separator, encoding=encoding, skiprows=int(bool(_declared(path, encoding))), **options)


def _open(path: Path, encoding: str = "") -> Any:
    """Open a file, compressed or not: bytes, or with an encoding its text, after a first line that declares the separator."""
    kinds: dict[str, Any] = {"mode": "rt", "encoding": encoding, "newline": ""} if encoding else {"mode": "rb"}
    file = (gzip.open if path.suffix == ".gz" else open)(path, **kinds)
    if encoding and not re.fullmatch(_SEPARATOR, file.readline(20)):
        file.seek(0)
    return file


_SEPARATOR = r'"?sep=(.)"?[\r\n]*'
"""A first line as spreadsheets write it, ``sep=;``."""


def _declared(path: Path, encoding: str) -> str:
    """Return the separator that a file's first line declares; "" without such a line."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding=encoding, newline="") as file:
        declared = re.fullmatch(_SEPARATOR, file.readline(20))
    return declared.group(1) if declared else ""


def _encoding(path: Path) -> str:
    """Detect the encoding by the byte-order mark, else the first of UTF-8, Windows-1252 and Latin-1 that decodes."""
    with _open(path) as file:
        start = file.read(4)
    for mark, encoding in MARKS.items():
        if start.startswith(mark):
            return encoding
    if b"\0" in start:
        order = "be" if start[:1] == b"\0" else "le"
        raise FedGraphError(
            f"{path} begins with a NUL, as UTF-16 without a byte-order mark: pass encoding=utf-16-{order}"
        )
    return next((encoding for encoding in ("utf-8", *_FALLBACK) if _decodes(path, encoding)), "latin-1")


def _decodes(path: Path, encoding: str) -> bool:
    try:
        with _open(path, encoding) as file:
            while file.read(1 << 20):
                pass
    except UnicodeDecodeError:
        return False
    return True

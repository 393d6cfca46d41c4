"""Convert tables to the features that the model was trained on; needs only pandas and NumPy.

from preprocess import read
x, edge_index, ids = read("new_customers.csv", "new_payments.csv")
x, edge_index, edge_attr, ids = read("new_customers.csv", "new_payments.csv")      # of a model that reads edge columns
steps("new_payments.csv")      # day of each edge, for `by_step` of a model.py of edges with times

fedgraph-flwr reads tables by these functions and exports this file with models.
"""

import csv
import gzip
import hashlib
import io
import json
import re
import warnings
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
TRUE, FALSE = {"1", "true", "t", "yes", "y"}, {"0", "false", "f", "no", "n"}
NOTHING = {"", "nan", "na", "n/a", "null", "none"}
"""Texts that mark a missing number, date or flag, in addition to an empty cell."""

MAX_TEXT = 256
"""Longest text that is read as it is."""

MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
WHOLE = {"%Y%m%d": 8, "%d%m%Y": 8, "%m%d%Y": 8, "%y%m%d": 6, "%d%m%y": 6, "%m%d%y": 6, "%Y%m": 6, "%Y": 4}
WHOLE |= {"%Y%m%d%H%M": 12, "%Y%m%d%H%M%S": 14}
"""Formats of dates without separators, and their digits. A number may lack the first 0."""

COUNTS = {"seconds": (1, 0), "spreadsheet": (86_400, 25_569)}
"""Formats of times that count: seconds of a unit, and its number of 1970-01-01."""

MAX_SECONDS = 253_402_300_800
"""The year 10000. Times are less: larger ones are in smaller units than seconds."""

ZONE = r":\d\d(?:[.,]\d+)?\s?(?:Z|[+-]\d\d(?::?\d\d)?)$"
"""Time zone at the end of a time."""

SAME = str.maketrans({**dict.fromkeys("\u00a0\u2007\u2009\u202f", " "), "\u2019": "'", "−": "-"})
"""Equivalent characters: kinds of spaces, apostrophes and minus signs."""

csv.field_size_limit(2**31 - 1)  # pandas has none


def read(
    nodes: Any, edges: Any, id_column: str = "", source_column: str = "", target_column: str = ""
) -> tuple[np.ndarray, ...]:
    """Return features float32 [N, F], edges int64 [2, E] and ids [N] of a node table and an edge table (CSV or Parquet).

    With columns of edges, their features float32 [E, D] come before the ids. Edges are then in the order of the table's rows.
    Columns that are not given have the names used in training.
    """
    import pandas as pd

    spec = json.loads((FOLDER / "preprocessing.json").read_text())
    known = spec.get("tables", {})
    table, links = (table_of(path, known.get("separator", ""), known.get("encoding", "")) for path in (nodes, edges))
    ids = as_words(table[id_column or known.get("id", "id")])
    if not len(ids):
        raise ValueError(f"{nodes} has no nodes, expected at least 1")
    place = pd.Index(ids)
    if (wrong := place.duplicated() | (ids == "")).any():
        raise ValueError(
            f"{nodes}, row {wrong.argmax() + 1}: id '{ids[wrong][0]}' is empty or repeated: each node needs its own"
        )
    named = (source_column or known.get("source", "source"), target_column or known.get("target", "target"))
    ends = np.stack([place.get_indexer(as_words(links[column])) for column in named])
    if (ends < 0).any():
        missing = as_words(links[named[0]])[ends[0] < 0].tolist() + as_words(links[named[1]])[ends[1] < 0].tolist()
        raise ValueError(f"{edges} names nodes that are not in {nodes}, such as '{missing[0]}': add or remove them")
    x, rows = features(table, spec["columns"]), np.arange(ends.shape[1])
    if spec["undirected"]:
        proper = np.flatnonzero(ends[0] != ends[1])
        ends, rows = np.concatenate([ends, ends[::-1][:, proper]], axis=1), np.concatenate([rows, proper])
    if carried := spec.get("edge_columns"):
        return x, ends.astype(np.int64), features(links, carried)[rows], ids
    return x, (ends if spec.get("parallel") else np.unique(ends, axis=1)).astype(np.int64), ids


def steps(edges: Any, time_column: str = "", date_format: str = "") -> np.ndarray:
    """Return the number of the step (``split.step`` of the run, by default a day) of each edge that `read` returns, int64 [E].

    Times are whole seconds, or dates in this format, by default that of the tables in training.
    """
    spec = json.loads((FOLDER / "preprocessing.json").read_text())
    known = spec.get("tables", {})
    links = table_of(edges, known.get("separator", ""), known.get("encoding", ""))
    column = links[time_column or known["time"]]
    seconds, form = floats(column), date_format or known.get("time_format", "")
    numeric = column.dtype.kind != "M" and not np.isnan(seconds).any()
    if numeric and not form:
        dates, nearly = whole_dates(np.unique(seconds))
        if len(dates) > 1 or (nearly and not dates):
            likely = " or ".join(dates or nearly)
            raise ValueError(
                f"{edges}: times such as {column.iloc[0]} may be dates as {likely}: pass date_format, or date_format='seconds'"
            )
        form = "".join(dates)
    if form or not numeric:
        seconds = since_1970(read_dates(column, form), 1)
        if np.isnan(seconds).any():
            row = int(np.isnan(seconds).argmax())
            raise ValueError(f"{edges}, row {row + 1}: '{column.iloc[row]}' is no time as '{form or 'ISO8601'}'")
        if 0 < (zones := zoned(column)).sum() < len(zones):
            raise ValueError(
                f"{edges}, row {zones.argmin() + 1} has no time zone, and others have one: write all in one way"
            )
    if (wrong := ~(np.abs(seconds) < MAX_SECONDS)).any():
        raise ValueError(
            f"{edges}, row {wrong.argmax() + 1}: expected seconds below {MAX_SECONDS:,}: divide milliseconds by 1000"
        )
    step_numbers = np.floor(seconds).astype(np.int64) // spec["step"]
    if not spec["undirected"]:
        return step_numbers
    ends = [as_words(links[known.get(end, end)]) for end in ("source", "target")]
    return np.concatenate([step_numbers, step_numbers[ends[0] != ends[1]]])


def table_of(path: Any, separator: str = "", encoding: str = "") -> Any:
    """Read a table; separator and encoding are detected if they are not given."""
    import pandas as pd

    if str(path).endswith(".parquet"):
        return pd.read_parquet(path)
    raw = Path(path).read_bytes()
    raw = gzip.decompress(raw) if str(path).endswith(".gz") else raw
    text = decoded(raw, encoding)
    declared = re.match(r'"?sep=(.)"?[\r\n]+', text)  # of a spreadsheet
    text = text[declared.end() :] if declared else text
    sign = separator or (declared.group(1) if declared else separator_of(lambda: io.StringIO(text, newline="")))
    if wrong := misfit(io.StringIO(text, newline=""), sign):
        raise ValueError(f"{path}, line {wrong[0]}: {wrong[1]} fields, but the header has {wrong[2]}")
    names = [str(name).strip() for name in read_csv(io.StringIO(text), sign, header=None, nrows=1).iloc[0].dropna()]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{path} has two columns '{twice[0]}': rename or remove one")
    table = read_csv(io.StringIO(text), sign)
    table.columns = [str(name).strip() for name in table.columns]
    return table


def read_csv(source: Any, sign: str, **options: Any) -> Any:
    """Read a table by pandas, all values as text; only empty cells are missing."""
    import pandas as pd

    return pd.read_csv(
        source,
        sep=sign,
        dtype=str,
        keep_default_na=False,
        na_values=[""],
        skipinitialspace=sign != "\t",
        **options,
    )


def decoded(raw: bytes, encoding: str = "") -> str:
    """Decode the text of a file by its byte-order mark, otherwise as UTF-8, otherwise as Windows-1252."""
    encoding = encoding or next((known for mark, known in MARKS.items() if raw.startswith(mark)), "")
    for known in [encoding] if encoding else ["utf-8", "cp1252"]:
        try:
            return raw.decode(known)
        except UnicodeDecodeError:
            if encoding:
                raise
    return raw.decode("latin-1")


def separator_of(opened: Callable[[], Any]) -> str:
    """Return the separator that splits header and first rows into the most, equally many fields, else the header.

    Args:
        opened: opens the text.
    """
    best, most, of_header, names = ",", 1, ",", 1
    for sign in ",;\t|":
        with opened() as text:
            try:
                rows = [row for row in islice(csv.reader(text, delimiter=sign, skipinitialspace=True), 50) if row]
            except csv.Error:
                continue
        if rows and len(rows[0]) > most and all(len(row) == len(rows[0]) for row in rows):
            best, most = sign, len(rows[0])
        if rows and len(rows[0]) > names:
            of_header, names = sign, len(rows[0])
    return best if most > 1 else of_header


def misfit(text: Iterable[str], sign: str) -> tuple[int, int, int] | None:
    """Return the first line with another number of fields than the header, that number, and the header's; None if all fit."""
    rows = csv.reader(text, delimiter=sign, skipinitialspace=sign != "\t")
    sizes = ((rows.line_num, len(row)) for row in rows if len(row) > 1 or "".join(row).strip())  # no empty lines
    _, number = next(sizes, (0, 0))
    return next(((line, size, number) for line, size in sizes if size != number), None)


def features(table: Any, columns: dict[str, Any]) -> np.ndarray:
    """Return features float32 [N, F] of the columns in ``preprocessing.json``, in its order."""
    for name in columns:
        if name not in table.columns:
            raise ValueError(f"column '{name}' is missing; the table has {', '.join(map(str, table.columns))}")
    blocks = [encode(values(table[name], spec, name), spec) for name, spec in columns.items()]
    return np.concatenate(blocks, axis=1).astype(np.float32)


def as_words(column: Any) -> np.ndarray:
    """Return a column's values as text, "" where missing; whole floats (integers with gaps) lose their ``.0``.

    The array has a fixed width, so texts longer than `MAX_TEXT` become their first characters and a hash.
    """
    missing = column.isna().to_numpy()
    if column.dtype.kind == "f" and bool((column.dropna() % 1 == 0).all()):
        column = column.fillna(0).astype("int64")
    texts = column.astype(str).to_numpy(dtype=object)
    texts[missing] = ""
    if max(map(len, texts), default=0) > MAX_TEXT:
        long = np.fromiter((len(word) > MAX_TEXT for word in texts), bool, len(texts))
        texts[long] = [word[:100] + "..." + hashlib.sha256(word.encode()).hexdigest() for word in texts[long]]
    return texts.astype(str)


def values(column: Any, spec: dict[str, Any], name: str) -> np.ndarray:
    """Return a column's `read_values` [N]; a value of another kind is an error, and an unknown category a warning."""
    read = read_values(column, spec)
    if spec["kind"] != "category":
        if (wrong := wrong_rows(column, read)).size:
            raise ValueError(
                f"column '{name}' has '{column.iloc[wrong[0]]}', expected a {spec['kind']} or an empty cell"
            )
        return read
    other = sorted(set(map(str, read)) - {"", *spec.get("categories", ())})
    if other:
        rows = int(np.isin(read, other).sum())
        warnings.warn(f"{rows} rows have values of '{name}' that training did not have: {other[:5]}", stacklevel=2)
    return read


def read_values(column: Any, spec: dict[str, Any]) -> np.ndarray:
    """Return a column's values [N]: numbers, days since 1970, 0 and 1 (NaN where missing), or categories as text."""
    import pandas as pd

    kind, form = spec["kind"], spec.get("format", "")
    if kind == "category":
        return np.char.strip(as_words(column))
    if kind == "date":
        written = pd.Series(as_words(column)) if column.dtype.kind in "iuf" else column
        return since_1970(read_dates(written, form), 86_400)
    if kind == "flag":
        low = np.char.lower(as_words(column))
        return np.where(np.isin(low, list(TRUE)), 1.0, np.where(np.isin(low, list(FALSE)), 0.0, np.nan))
    return numbers(as_words(column), form) if form and column.dtype.kind not in "biuf" else floats(column)


def wrong_rows(column: Any, read: np.ndarray) -> np.ndarray:
    """Return the rows of a column that are neither empty nor, by its `read_values`, finite numbers [K]."""
    wrong = np.flatnonzero(~(np.abs(read) <= np.finfo(np.float32).max))
    return wrong[~np.isin(np.char.lower(as_words(column.iloc[wrong])), list(NOTHING))] if wrong.size else wrong


def floats(column: Any) -> np.ndarray:
    """Return the numbers of a column, float64 [N], NaN where a value is none."""
    import pandas as pd

    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def read_dates(column: Any, formats: str) -> Any:
    """Parse a column to UTC times, each by the first format that fits (separated by ``|``); NaT if none does."""
    import pandas as pd

    read = None
    for form in (formats or "ISO8601").split("|"):
        left = slice(None) if read is None else read.isna().to_numpy()
        try:
            if form in (*WHOLE, *COUNTS) and column.dtype.kind != "M":
                times = from_numbers(column[left], form)
            else:
                times = pd.to_datetime(column[left], format=form, errors="coerce", utc=True)
        except (ValueError, re.error) as error:
            raise ValueError(f"date format '{form}': {error}; expected one such as %d.%m.%Y") from error
        read = times if read is None else read.fillna(times)
    return read


def zoned(column: Any) -> np.ndarray:
    """Return which values of a pandas column of times have a time zone, bool [N]."""
    if column.dtype.kind == "M" or not len(column):
        return np.full(len(column), getattr(column.dtype, "tz", None) is not None)
    return np.asarray(column.astype(str).str.contains(ZONE, regex=True), bool)


def from_numbers(column: Any, form: str) -> Any:
    """Parse numbers, or texts of them, to UTC times to the second; NaT where one has not this format."""
    import pandas as pd

    distinct, inverse = np.unique(floats(column), return_inverse=True)
    if form in COUNTS:
        unit, start = COUNTS[form]
        known = np.abs(distinct) < MAX_SECONDS / unit
        since = np.round((np.where(known, distinct, start) - start) * unit).astype(np.int64)
        read = pd.Series(since.astype("datetime64[s]")).where(known)
    else:
        known = (distinct >= 0) & (distinct < 10 ** WHOLE[form]) & (np.floor(distinct) == distinct)
        texts = pd.Series(np.where(known, distinct, 0).astype(np.int64).astype(str)).str.zfill(WHOLE[form])
        read = pd.to_datetime(texts.where(known), format=form, errors="coerce")
    return read.dt.tz_localize("UTC").iloc[inverse].set_axis(column.index)


def whole_dates(numbers: np.ndarray, times: bool = True) -> tuple[list[str], list[str]]:
    """Return the formats by which all numbers [N] are dates of 1900 to 2099, and those by which most are.

    Args:
        numbers: distinct and finite.
        times: whether they are times. Of other columns, years and days of a spreadsheet are numbers, which keep their order.
    """
    import pandas as pd

    def share(form: str, tried: np.ndarray) -> float:
        years = read_dates(pd.Series(tried), form).dt.year
        return float(years.between(1900, 2099).mean())

    sample, last = numbers[:: max(1, len(numbers) // 100)], float(numbers[-1]) if len(numbers) else 0.0
    least = {form: 10 ** (digits - 1 if form.startswith("%Y") else digits - 2) for form, digits in WHOLE.items()}
    likely = [form for form, digits in WHOLE.items() if least[form] <= last < 10**digits and (times or form != "%Y")]
    shares = {form: share(form, numbers) for form in likely if share(form, sample) > 0.5}
    whole = [form for form, part in shares.items() if part == 1]
    # days of the years 1990 to 2069, within 20 years; the same seconds would be two hours of 1970-01-01
    if times and len(numbers) and numbers.min() >= 32_874 and last < 62_093 and last - numbers.min() < 7_305:
        whole.append("spreadsheet")
    return whole, [form for form, part in shares.items() if 0.5 < part < 1]


def since_1970(moments: Any, seconds: int) -> np.ndarray:
    """Return UTC times in units of so many seconds since 1970, float64 [N]; NaN where missing. Years 1 to 9999 fit."""
    read = moments.dt.tz_convert(None).to_numpy().astype("datetime64[us]")
    known = read.astype(np.int64) / (seconds * 1e6)
    known[np.isnat(read)] = np.nan
    return known


def numbers(texts: Any, example: str) -> np.ndarray:
    """Parse texts in the format of an example such as ``1.234,5``: float64 [N], NaN where the format differs.

    Numbers like 1234.5 have the format "", or "any" where parties wrote them differently.
    """
    import pandas as pd

    if example in ("", "any"):
        return floats(pd.Series(texts, dtype=object))
    example = example.translate(SAME)
    thousands, decimal = example[1] if len(example) == 7 else "", example[-2]
    sign = re.escape(decimal)
    grouped = rf"[1-9]\d{{0,2}}(?:{re.escape(thousands)}\d{{3}})+(?:{sign}\d*)?|" if thousands else ""
    pattern = re.compile(rf"[+-]?(?:{grouped}(?:\d+(?:{sign}\d*)?|{sign}\d+)(?:[eE][+-]?\d+)?)")
    tidy = [str(text).translate(SAME).strip() for text in texts]
    plain = [text.replace(thousands, "").replace(decimal, ".") for text in tidy]
    return np.array([float(p) if pattern.fullmatch(t) else np.nan for p, t in zip(plain, tidy, strict=True)])


def absent(read: np.ndarray) -> np.ndarray:
    """Return a mask of a column's missing values, bool [N]."""
    return np.isnan(read) if read.dtype.kind == "f" else read == ""


def moved(scale: str, read: np.ndarray) -> np.ndarray:
    """Return t(v), the values before centering."""
    return np.sign(read) * np.log1p(np.abs(read)) if scale == "log" else read


def encode(read: np.ndarray, spec: dict[str, Any]) -> np.ndarray:
    """Return the features of one column, float64 [N, number of features]."""
    known, gaps = spec["statistics"], absent(read)
    filled = np.where(gaps, known["fill"], read)
    if spec["kind"] == "category":
        one = filled[:, None] == np.array(spec.get("categories", ()), dtype=str)[None, :]
        blocks = [one.astype(np.float64), ~one.any(axis=1)[:, None]]
    elif spec["kind"] == "flag":
        blocks = [filled[:, None]]
    else:
        blocks = [((moved(spec.get("scale", ""), filled) - known["center"]) / known["spread"])[:, None]]
    if spec.get("missing"):
        blocks.append(gaps[:, None])
    return np.concatenate(blocks, axis=1, dtype=np.float64)

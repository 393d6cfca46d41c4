"""Convert tables to the features that the model was trained on; needs only pandas and NumPy.

from preprocess import read
x, edge_index, ids = read("new_customers.csv", "new_payments.csv")
x, edge_index, edge_attr, ids = read("new_customers.csv", "new_payments.csv")      # of a model that reads edge columns
steps("new_payments.csv")      # day of each edge, for `by_step` of a model.py of edges with times
"""

import csv
import gzip
import io
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

FOLDER = Path(__file__).parent
TRUE, FALSE = {"1", "true", "t", "yes", "y"}, {"0", "false", "f", "no", "n"}
NOTHING = {"", "nan", "na", "n/a", "null", "none"}
MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
WHOLE = {"%Y%m%d": 8, "%d%m%Y": 8, "%m%d%Y": 8, "%y%m%d": 6, "%d%m%y": 6, "%m%d%y": 6, "%Y%m": 6, "%Y": 4}
WHOLE |= {"%Y%m%d%H%M": 12, "%Y%m%d%H%M%S": 14}
COUNTS = {"seconds": (1, 0), "spreadsheet": (86_400, 25_569)}
SAME = str.maketrans({**dict.fromkeys("\u00a0\u2007\u2009\u202f", " "), "\u2019": "'", "−": "-"})


def read(
    nodes: Any, edges: Any, id_column: str = "", source_column: str = "", target_column: str = ""
) -> tuple[np.ndarray, ...]:
    """Return features float32 [N, F], edges int64 [2, E] and ids [N] of a node table and an edge table (CSV or Parquet).

    With columns of edges, their features float32 [E, D] come before the ids. Edges are then in the order of the table's rows.
    Columns that are not given have the names used in training.
    """
    spec = json.loads((FOLDER / "preprocessing.json").read_text())
    known = spec.get("tables", {})
    table, links = (table_of(path, known.get("separator", ""), known.get("encoding", "")) for path in (nodes, edges))
    ids = as_text(table[id_column or known.get("id", "id")])
    place = pd.Index(ids)
    named = (source_column or known.get("source", "source"), target_column or known.get("target", "target"))
    ends = np.stack([place.get_indexer(as_text(links[column])) for column in named])
    if (ends < 0).any():
        missing = as_text(links[named[0]])[ends[0] < 0].tolist() + as_text(links[named[1]])[ends[1] < 0].tolist()
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
    seconds = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    form = date_format or known.get("time_format", "")
    if form or np.isnan(seconds).any():
        seconds = moments(column, form)
        if np.isnan(seconds).any():
            row = int(np.isnan(seconds).argmax())
            raise ValueError(f"{edges}, row {row + 1}: '{column.iloc[row]}' is no time as '{form or 'ISO8601'}'")
    step_numbers = np.floor(seconds).astype(np.int64) // spec["step"]
    if not spec["undirected"]:
        return step_numbers
    ends = [as_text(links[known.get(end, end)]) for end in ("source", "target")]
    return np.concatenate([step_numbers, step_numbers[ends[0] != ends[1]]])


def table_of(path: Any, separator: str = "", encoding: str = "") -> pd.DataFrame:
    """Read a table; separator and encoding are detected if they are not given."""
    if str(path).endswith(".parquet"):
        return pd.read_parquet(path)
    raw = Path(path).read_bytes()
    raw = gzip.decompress(raw) if str(path).endswith(".gz") else raw
    text = decoded(raw, encoding)
    declared = re.match(r'"?sep=(.)"?[\r\n]+', text)  # of a spreadsheet
    text = text[declared.end() :] if declared else text
    sign = separator or (declared.group(1) if declared else separator_of(text))
    csv.field_size_limit(2**31 - 1)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=sign, skipinitialspace=sign != "\t")
    sizes = [(rows.line_num, len(row)) for row in rows if len(row) > 1 or "".join(row).strip()]
    for line, size in sizes:
        if size != sizes[0][1]:
            raise ValueError(f"{path}, line {line}: {size} fields, but the header has {sizes[0][1]}")
    table = pd.read_csv(
        io.StringIO(text), sep=sign, dtype=str, keep_default_na=False, na_values=[""], skipinitialspace=sign != "\t"
    )
    table.columns = [str(name).strip() for name in table.columns]
    return table


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


def separator_of(text: str) -> str:
    """Return the separator that splits the first rows into the most, equally many fields, else the header."""
    best, most, of_header, names = ",", 1, ",", 1
    for sign in ",;\t|":
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=sign, skipinitialspace=True)
        rows = [row for row, _ in zip(reader, range(50), strict=False) if row]
        if rows and len(rows[0]) > most and all(len(row) == len(rows[0]) for row in rows):
            best, most = sign, len(rows[0])
        if rows and len(rows[0]) > names:
            of_header, names = sign, len(rows[0])
    return best if most > 1 else of_header


def features(table: pd.DataFrame, columns: dict[str, Any]) -> np.ndarray:
    """Return features float32 [N, F] of the columns in ``preprocessing.json``, in its order."""
    for name in columns:
        if name not in table.columns:
            raise ValueError(f"column '{name}' is missing; the table has {', '.join(map(str, table.columns))}")
    blocks = [encode(values(table[name], spec, name), spec) for name, spec in columns.items()]
    return np.concatenate(blocks, axis=1).astype(np.float32)


def as_text(column: pd.Series) -> np.ndarray:
    """Convert a column to text, "" where missing; whole floats lose their ``.0``."""
    missing = column.isna().to_numpy()
    if column.dtype.kind == "f" and bool((column.dropna() % 1 == 0).all()):
        column = column.fillna(0).astype("int64")
    texts = column.astype(str).to_numpy(dtype=object)
    texts[missing] = ""
    return texts.astype(str)


def values(column: pd.Series, spec: dict[str, Any], name: str) -> np.ndarray:
    """Return a column's values [N]: numbers, days since 1970, 0 and 1 (NaN where missing), or categories as text."""
    kind = spec["kind"]
    if kind == "category":
        read = np.char.strip(as_text(column))
        other = sorted(set(map(str, read)) - {"", *spec["categories"]})
        if other:
            rows = int(np.isin(read, other).sum())
            warnings.warn(f"{rows} rows have values of '{name}' that training did not have: {other[:5]}", stacklevel=2)
        return read
    if kind == "date":
        known = moments(column, spec.get("format", "")) / 86_400
    elif kind == "flag":
        low = np.char.lower(as_text(column))
        known = np.where(np.isin(low, list(TRUE)), 1.0, np.where(np.isin(low, list(FALSE)), 0.0, np.nan))
    elif spec.get("format", "any") != "any" and column.dtype.kind not in "biuf":
        known = numbers(as_text(column), spec["format"])
    else:
        known = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    wrong = ~(np.abs(known) <= np.finfo(np.float32).max) & ~np.isin(np.char.lower(as_text(column)), list(NOTHING))
    if wrong.any():
        raise ValueError(f"column '{name}' has '{column.iloc[int(wrong.argmax())]}', expected a {kind}")
    return known


def moments(column: pd.Series, formats: str) -> np.ndarray:
    """Return dates as seconds since 1970, float64 [N]; NaN where none of the formats fits."""
    seconds = np.full(len(column), np.nan)
    for form in (formats or "ISO8601").split("|"):
        read = column
        if form in COUNTS:
            unit, start = COUNTS[form]
            known = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
            known = np.round((known - start) * unit)
        else:
            if form in WHOLE and column.dtype.kind != "M":  # numbers, which may lack the first 0
                read = pd.Series(as_text(column), column.index).str.strip().str.zfill(WHOLE[form])
                read = read.where(read.str.fullmatch(rf"\d{{{WHOLE[form]}}}"))
            dates = pd.to_datetime(read, format=form, errors="coerce", utc=True).dt.tz_convert(None).to_numpy()
            known = np.where(np.isnat(dates), np.nan, dates.astype("datetime64[us]").astype(np.int64) / 1e6)
        seconds = np.where(np.isnan(seconds), known, seconds)
    return seconds


def numbers(texts: np.ndarray, example: str) -> np.ndarray:
    """Parse texts in the format of an example such as ``1.234,5``: float64 [N], NaN where the format differs."""
    thousands, decimal = example[1] if len(example) == 7 else "", example[-2]
    group, sign = re.escape(thousands), re.escape(decimal)
    pattern = rf"[+-]?(?:\d+(?:{sign}\d*)?|{sign}\d+)(?:[eE][+-]?\d+)?"
    if thousands:
        pattern += rf"|[+-]?[1-9]\d{{0,2}}(?:{group}\d{{3}})+(?:{sign}\d*)?"
    tidy = [str(text).translate(SAME).strip() for text in texts]
    plain = [
        text.replace(thousands, "").replace(decimal, ".") if thousands else text.replace(decimal, ".") for text in tidy
    ]
    return np.array([float(p) if re.fullmatch(pattern, t) else np.nan for p, t in zip(plain, tidy, strict=True)])


def encode(read: np.ndarray, spec: dict[str, Any]) -> np.ndarray:
    """Return the features of one column, [N, number of features]."""
    known = spec["statistics"]
    missing = read == "" if spec["kind"] == "category" else np.isnan(read)
    if spec["kind"] == "category":
        filled = np.where(missing, known["fill"], read)
        one = filled[:, None] == np.array(spec["categories"], dtype=str)[None, :]
        blocks = [one.astype(np.float64), ~one.any(axis=1)[:, None]]
    elif spec["kind"] == "flag":
        blocks = [np.where(missing, known["fill"], read)[:, None]]
    else:
        filled = np.where(missing, known["fill"], read)
        moved = np.sign(filled) * np.log1p(np.abs(filled)) if spec.get("scale") == "log" else filled
        blocks = [((moved - known["center"]) / known["spread"])[:, None]]
    if spec.get("missing"):
        blocks.append(missing[:, None])
    return np.concatenate(blocks, axis=1, dtype=np.float64)

"""From tables to the features that the network was trained on: pandas and NumPy alone.

from preprocess import read
x, edge_index, ids = read("new_customers.csv", "new_payments.csv")
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
SAME = str.maketrans({**dict.fromkeys("\u00a0\u2007\u2009\u202f", " "), "\u2019": "'", "−": "-"})


def read(
    nodes: Any,
    edges: Any,
    id_column: str = "",
    source_column: str = "",
    target_column: str = "",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features float32 [N, F], edges int64 [2, E] and ids [N] of a node table and an edge table (CSV or Parquet).

    Columns that are not named are those of training.
    """
    told = json.loads((FOLDER / "preprocessing.json").read_text())
    known = told.get("tables", {})
    table, links = (table_of(path, known.get("separator", ""), known.get("encoding", "")) for path in (nodes, edges))
    ids = words(table[id_column or known.get("id", "id")])
    place = pd.Index(ids)
    named = (source_column or known.get("source", "source"), target_column or known.get("target", "target"))
    ends = np.stack([place.get_indexer(words(links[column])) for column in named])
    if (ends < 0).any():
        raise ValueError(f"{edges} names a node that {nodes} has not")
    if told["undirected"]:
        ends = np.concatenate([ends, ends[::-1]], axis=1)
    return features(table, told["columns"]), np.unique(ends, axis=1).astype(np.int64), ids


def table_of(path: Any, separator: str = "", encoding: str = "") -> pd.DataFrame:
    """A table of a file, whose separator and encoding are detected where they are not given."""
    if str(path).endswith(".parquet"):
        return pd.read_parquet(path)
    raw = Path(path).read_bytes()
    raw = gzip.decompress(raw) if str(path).endswith(".gz") else raw
    text = decoded(raw, encoding)
    sign = separator or separator_of(text)
    table = pd.read_csv(
        io.StringIO(text), sep=sign, dtype=str, keep_default_na=False, na_values=[""], skipinitialspace=sign != "\t"
    )
    table.columns = [str(name).strip() for name in table.columns]
    return table


def decoded(raw: bytes, encoding: str = "") -> str:
    """The text of a file: by its byte-order mark, else as UTF-8, else as Windows-1252."""
    encoding = encoding or next((known for mark, known in MARKS.items() if raw.startswith(mark)), "")
    for known in [encoding] if encoding else ["utf-8", "cp1252"]:
        try:
            return raw.decode(known)
        except UnicodeDecodeError:
            if encoding:
                raise
    return raw.decode("latin-1")


def separator_of(text: str) -> str:
    """The sign that cuts the first rows into the most, equally many, fields."""
    best, most = ",", 1
    for sign in ",;\t|":
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=sign, skipinitialspace=True)
        rows = [row for row, _ in zip(reader, range(50), strict=False) if row]
        if rows and len(rows[0]) > most and all(len(row) == len(rows[0]) for row in rows):
            best, most = sign, len(rows[0])
    return best


def features(table: pd.DataFrame, columns: dict[str, Any]) -> np.ndarray:
    """Features float32 [N, F] by columns as ``preprocessing.json`` has them, in its order."""
    for name in columns:
        if name not in table.columns:
            raise ValueError(f"column '{name}' is missing; the table has {', '.join(map(str, table.columns))}")
    blocks = [encode(values(table[name], told, name), told) for name, told in columns.items()]
    return np.concatenate(blocks, axis=1).astype(np.float32)


def words(column: pd.Series) -> np.ndarray:
    """A column as text, "" where missing; whole floats lose their ``.0``."""
    missing = column.isna().to_numpy()
    if column.dtype.kind == "f" and bool((column.dropna() % 1 == 0).all()):
        column = column.fillna(0).astype("int64")
    told = column.astype(str).to_numpy(dtype=object)
    told[missing] = ""
    return told.astype(str)


def values(column: pd.Series, told: dict[str, Any], name: str) -> np.ndarray:
    """A column's values [N]: numbers, days since 1970, 0 and 1 (NaN where missing), or a category's words."""
    kind = told["kind"]
    if kind == "category":
        read = np.char.strip(words(column))
        other = sorted(set(map(str, read)) - {"", *told["categories"]})
        if other:
            rows = int(np.isin(read, other).sum())
            warnings.warn(f"{rows} rows have a value of '{name}' that training did not: {other[:5]}", stacklevel=2)
        return read
    if kind == "date":
        dates = None
        for form in (told.get("format") or "ISO8601").split("|"):
            found = pd.to_datetime(column, format=form, errors="coerce", utc=True)
            dates = found if dates is None else dates.fillna(found)
        days = (dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
        known = days.to_numpy(dtype=np.float64, na_value=np.nan)
    elif kind == "flag":
        low = np.char.lower(words(column))
        known = np.where(np.isin(low, list(TRUE)), 1.0, np.where(np.isin(low, list(FALSE)), 0.0, np.nan))
    elif told.get("format", "any") != "any" and column.dtype.kind not in "biuf":
        known = numbers(words(column), told["format"])
    else:
        known = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    wrong = ~np.isfinite(known) & ~np.isin(np.char.lower(words(column)), list(NOTHING))
    if wrong.any():
        raise ValueError(f"column '{name}' has '{column.iloc[int(wrong.argmax())]}', expected a {kind}")
    return known


def numbers(texts: np.ndarray, example: str) -> np.ndarray:
    """Texts written as an example such as ``1.234,5``, float64 [N]; NaN where one is not."""
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


def encode(read: np.ndarray, told: dict[str, Any]) -> np.ndarray:
    """The features of one column [N, its features]."""
    known = told["statistics"]
    lacking = read == "" if told["kind"] == "category" else np.isnan(read)
    if told["kind"] == "category":
        held = np.where(lacking, known["fill"], read)
        one = held[:, None] == np.array(told["categories"], dtype=str)[None, :]
        blocks = [one.astype(np.float64), ~one.any(axis=1)[:, None]]
    elif told["kind"] == "flag":
        blocks = [np.where(lacking, known["fill"], read)[:, None]]
    else:
        filled = np.where(lacking, known["fill"], read)
        moved = np.sign(filled) * np.log1p(np.abs(filled)) if told.get("scale") == "log" else filled
        blocks = [((moved - known["center"]) / known["spread"])[:, None]]
    if told.get("missing"):
        blocks.append(lacking[:, None])
    return np.concatenate(blocks, axis=1, dtype=np.float64)

"""From tables to the features that the network was trained on: pandas and NumPy alone.

from preprocess import read
x, edge_index, ids = read("new_customers.csv", "new_payments.csv")
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

FOLDER = Path(__file__).parent
TRUE, FALSE = {"1", "true", "t", "yes", "y"}, {"0", "false", "f", "no", "n"}
NOTHING = {"", "nan", "na", "n/a", "null", "none"}


def read(
    nodes: Any,
    edges: Any,
    id_column: str = "id",
    source_column: str = "source",
    target_column: str = "target",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features float32 [N, F], edges int64 [2, E] and ids [N] of a node table and an edge table (CSV or Parquet)."""
    told = json.loads((FOLDER / "preprocessing.json").read_text())
    table, links = table_of(nodes), table_of(edges)
    ids = words(table[id_column])
    place = pd.Index(ids)
    ends = np.stack([place.get_indexer(words(links[column])) for column in (source_column, target_column)])
    if (ends < 0).any():
        raise ValueError(f"{edges} names a node that {nodes} has not")
    if told["undirected"]:
        ends = np.concatenate([ends, ends[::-1]], axis=1)
    return features(table, told["columns"]), np.unique(ends, axis=1).astype(np.int64), ids


def table_of(path: Any) -> pd.DataFrame:
    """A table of a file."""
    if str(path).endswith(".parquet"):
        return pd.read_parquet(path)
    return pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""], skipinitialspace=True)


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
        return np.char.strip(words(column))
    if kind == "date":
        read = pd.to_datetime(column, format=told.get("format") or "ISO8601", errors="coerce", utc=True)
        days = (read - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
        known = days.to_numpy(dtype=np.float64, na_value=np.nan)
    elif kind == "flag":
        low = np.char.lower(words(column))
        known = np.where(np.isin(low, list(TRUE)), 1.0, np.where(np.isin(low, list(FALSE)), 0.0, np.nan))
    else:
        known = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    wrong = ~np.isfinite(known) & ~np.isin(np.char.lower(words(column)), list(NOTHING))
    if wrong.any():
        raise ValueError(f"column '{name}' has '{column.iloc[int(wrong.argmax())]}', expected a {kind}")
    return known


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

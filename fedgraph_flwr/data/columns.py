"""From the columns of a table to features: what kind each is, its statistics, and the numbers that a network sees.

    number, date   (t(v) − center) / spread, a date in days since 1970; t is the identity, or sign(v)·ln(1 + |v|) for `log`
    flag           0 or 1
    category       one feature a category, and one for every other word
    missing        `fill` (median of numbers and dates, the most frequent of flags and categories), and a feature that says so

`standard` takes mean and standard deviation for center and spread, `robust` median and interquartile range, as scikit-learn's
StandardScaler and RobustScaler. Statistics are kept as numbers in the schema.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.schema import Column, Schema
from fedgraph_flwr.errors import FedGraphError, unknown

TRUE = {"1", "true", "t", "yes", "y"}
FALSE = {"0", "false", "f", "no", "n"}
NOTHING = {"", "nan", "na", "n/a", "null", "none"}
"""Words for a missing number, date or flag, beside an empty cell."""

SPLITS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}
"""Words of a split, and which mask they mean."""

DATES = ("ISO8601", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")
MAX_CATEGORIES = 50
FLOOR = 5
"""Rows below which a category is "other", and a statistic is not told."""

FAR = 100.0
"""Ratio of magnitudes from which unscaled features get a warning."""


def _silent(text: str) -> None:
    pass


@dataclass(frozen=True)
class Treatment:
    """What the user says of the columns, and what the parties have agreed upon.

    Attributes:
        kinds: by column, or by ``type.column``; what is not said is found. Likewise ``scales`` and ``units``.
        scaling: none, local or federated; "": the schema's, else local for tables and none for a saved graph.
        schema: to obey.
        where: the file of the schema, for errors.
        floor: rows below which a category is "other".
        say: is told what is found, dropped and filled, a sentence each.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    scales: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    scaling: str = ""
    schema: Schema | None = None
    where: str = ""
    floor: int = FLOOR
    say: Callable[[str], None] = _silent

    def settled_scaling(self, default: str = "local") -> str:
        """The word that holds.

        Raises:
            FedGraphError: the user's is not the schema's, or it is federated without a schema.
        """
        agreed = self.schema.scaling if self.schema else ""
        if self.scaling and agreed and self.scaling != agreed:
            raise FedGraphError(
                f"--scaling {self.scaling}, but {self.where} says {agreed}: leave it out, or edit the schema"
            )
        if self.scaling == "federated" and not agreed:
            raise FedGraphError(
                "--scaling federated needs --schema FILE with the parties' statistics: write each party's with --statistics,"
                " then `fedgraph-flwr schema merge`"
            )
        return agreed or self.scaling or default

    @property
    def options(self) -> dict[str, Mapping[str, str]]:
        """What the user says, by the option of the command line."""
        return {"kind": self.kinds, "scale": self.scales, "unit": self.units}

    def check_names(self, tables: Mapping[str, Sequence[str]]) -> None:
        """Check that what the user says is said of columns that there are.

        Args:
            tables: the columns of each node type.

        Raises:
            FedGraphError: no node type has such a column.
        """
        known = {name for names in tables.values() for name in names}
        known |= {f"{kind}.{name}" for kind, names in tables.items() for name in names}
        for option, words in self.options.items():
            for name in words:
                if name not in known:
                    raise unknown("column", name, known, f"--{option}")

    def word(self, words: Mapping[str, str], kind: str, name: str) -> str:
        """What the user says of a column of a node type, "" for nothing."""
        return words.get(f"{kind}.{name}", words.get(name, ""))


AS_FOUND = Treatment()
"""Nothing is said: columns are what they look like, scaled by their own statistics."""


@dataclass(frozen=True)
class Features:
    """The features of one node table.

    Attributes:
        agreed: its columns, with the statistics that all parties share.
        fitted: the same with this party's own statistics where there are no others.
        x: float32 [N, F].
    """

    agreed: Mapping[str, Column]
    fitted: Mapping[str, Column]
    x: Tensor


def features(kind: str, table: Any, names: Sequence[str], where: str, treatment: Treatment) -> Features:
    """The features of one node table, by the schema where there is one.

    Args:
        kind: the node type.
        table: one row a node.
        names: the columns that may be features, in order.
        where: the file, for errors.
        treatment: what is said of them.

    Raises:
        FedGraphError: a column that the schema has and the table lacks, values that are not of the column's kind, or
            statistics that lack.
    """
    scaling = treatment.settled_scaling()
    agreed = columns(kind, table, names, where, treatment)
    used = {name: column for name, column in agreed.items() if column.kind != "ignored"}
    fitted, blocks, filled = dict(agreed), [np.zeros((len(table), 0))], []
    for name, column in used.items():
        read = values(table[name], column, name, where)
        if scaling == "federated" and "fill" not in column.statistics:
            raise FedGraphError(
                f"{treatment.where} says scaling federated, but has no statistics of column '{name}': make it by"
                " `fedgraph-flwr schema merge`"
            )
        fitted[name] = fit(column, read, scaling)
        blocks.append(encode(fitted[name], read))
        if lacking := int(absent(read).sum()):
            mark = "" if column.missing else ", unmarked, as the schema has it"
            filled.append(f"{name} {lacking} of {len(read)}{mark}")
    if used:
        treatment.say(f"{where}: {_listing(used)}")
    if filled:
        treatment.say(f"missing values, filled: {'; '.join(filled)}")
    x = torch.from_numpy(np.concatenate(blocks, axis=1).astype(np.float32))
    if scaling == "none":
        warn_unscaled(x, feature_names(agreed), treatment.say)
    return Features(agreed, fitted, x)


def columns(kind: str, table: Any, names: Sequence[str], where: str, treatment: Treatment) -> dict[str, Column]:
    """The columns of one node table: the schema's in its order, or those found.

    Raises:
        FedGraphError: one of the schema's lacks, or the user's word is not the schema's.
    """
    if treatment.schema is None:
        found = {name: _found(kind, table[name], name, where, treatment) for name in names}
        dropped = [f"{name} ({why})" for name, (_, why) in found.items() if why]
        agreed = {name: column for name, (column, _) in found.items()}
    else:
        agreed = dict(treatment.schema.nodes.get(kind, {}))
        wanted = {name: column for name, column in agreed.items() if column.kind != "ignored"}
        for name, column in wanted.items():
            if name not in names:
                raise FedGraphError(
                    f"{where} lacks column '{name}' ({column.kind}) of {treatment.where}; it has {', '.join(names)}"
                )
            its = {"kind": column.kind, "scale": column.scale, "unit": column.unit}
            for option, words in treatment.options.items():
                if (said := treatment.word(words, kind, name)) not in ("", its[option]):
                    raise FedGraphError(
                        f"--{option} {name}={said}, but {treatment.where} says {its[option] or 'none'}: leave it out, or edit"
                        " the schema"
                    )
        if list(wanted) != (own := [name for name in names if name in wanted]):
            treatment.say(f"{where}: columns put in the order of {treatment.where} ({', '.join(own)} here)")
        dropped = [f"{name} ({'not in the schema' if name not in agreed else 'so the schema'})" for name in names]
        dropped = [told for name, told in zip(names, dropped, strict=True) if name not in wanted]
    if dropped:
        treatment.say(f"{where}: ignored: {', '.join(dropped)}")
    return agreed


def _found(kind: str, column: Any, name: str, where: str, treatment: Treatment) -> tuple[Column, str]:
    """A column as its values show it, where the user does not say, and why it is ignored, "" where it is not."""
    said, scale = (treatment.word(w, kind, name) for w in (treatment.kinds, treatment.scales))
    found, told = _kind(column, name, where) if said in ("", "date") else (said, "")
    if said == "date" and found != "date":
        raise FedGraphError(f"{where}: column '{name}' holds no dates such as 2026-01-31 or 31.01.2026")
    if found == "ignored":
        return Column("ignored"), told or "as you said"
    unit = treatment.word(treatment.units, kind, name)
    spec = Column(found, unit=unit, scale=scale or "standard", format=told if found == "date" else "")
    if found == "category":
        spec = replace(spec, categories=frequent(counts(values(column, spec, name, where)), treatment.floor))
        if not spec.categories:
            return Column("ignored"), f"no word of it has {treatment.floor} rows"
    return replace(spec, missing=bool(absent(values(column, spec, name, where)).any())), ""


def _kind(column: Any, name: str, where: str) -> tuple[str, str]:
    """The kind of a column, and its format (a date) or why it is ignored.

    Raises:
        FedGraphError: most of its values are numbers, but not all; or days and months cannot be told apart.
    """
    import pandas as pd

    if not len(column):
        return "number", ""
    if column.dtype.kind == "M":
        return "date", DATES[0]
    if column.dtype.kind in "biuf":
        known = set(column.dropna().unique())
        kind = "flag" if column.dtype.kind == "b" or known == {0, 1} else "number"
        return (kind, "") if known else ("ignored", "empty")
    distinct = [word for word in np.unique(as_words(column)) if word.lower() not in NOTHING]
    low = {word.lower() for word in distinct}
    if not distinct:
        return "ignored", "empty"
    if low <= TRUE | FALSE and (len(low) == 2 or not low <= {"0", "1"}):
        return "flag", ""
    if "train" in low and low <= SPLITS.keys():
        return "ignored", f"looks like a split; --split-column {name} takes it for one"
    number = ~np.isnan(pd.to_numeric(pd.Series(distinct), errors="coerce").to_numpy(dtype=np.float64))
    if number.all():
        return "number", ""
    if number.mean() > 0.5:
        wrong = distinct[int((~number).argmax())]
        row = int((as_words(column) == wrong).argmax())
        raise FedGraphError(
            f"{where}: features must be finite numbers, column '{name}' has '{wrong}' in row {row + 1}: mend it, or say"
            f" --kind {name}=category, or --kind {name}=ignored"
        )
    fitting = [
        f for f in DATES if not bool(pd.to_datetime(pd.Series(distinct), format=f, errors="coerce").isna().any())
    ]
    if len(fitting) > 1:
        raise FedGraphError(
            f"{where}: column '{name}' has dates such as '{distinct[0]}', of which day and month cannot be told apart: write"
            f" them as 2026-01-31, or say --kind {name}=ignored"
        )
    if fitting:
        return "date", fitting[0]
    if len(distinct) > max(20, 0.5 * len(column)):
        return "ignored", f"{len(distinct)} different words in {len(column)} rows"
    return "category", ""


def counts(read: np.ndarray) -> dict[str, int]:
    """How many rows [N] each word has."""
    distinct, count = np.unique(read[read != ""], return_counts=True)
    return dict(zip(map(str, distinct), map(int, count), strict=True))


def frequent(count: Mapping[str, int], floor: int) -> tuple[str, ...]:
    """The words with at least ``floor`` rows, the most frequent if there are many, in natural order."""
    often = sorted((word for word in count if count[word] >= floor), key=lambda word: (-count[word], word))
    return tuple(sorted(often[:MAX_CATEGORIES], key=natural))


def natural(word: str) -> tuple[int, float, str]:
    """Sorts numbers by size, before words by alphabet."""
    return (0, float(word), word) if re.fullmatch(r"-?\d+(\.\d+)?", word) else (1, 0.0, word)


def as_words(column: Any) -> np.ndarray:
    """A column's values as text, "" where missing; whole floats (integers with gaps) lose their ``.0``."""
    missing = column.isna().to_numpy()
    if column.dtype.kind == "f" and bool((column.dropna() % 1 == 0).all()):
        column = column.fillna(0).astype("int64")
    told = column.astype(str).to_numpy(dtype=object)
    told[missing] = ""
    return told.astype(str)


def values(column: Any, spec: Column, name: str, where: str) -> np.ndarray:
    """A column's values [N] as its kind has them: float64, NaN where missing; of a category words, "" where missing.

    Raises:
        FedGraphError: a value that is not of the kind; the sentence names the first row.
    """
    import pandas as pd

    if spec.kind == "category":
        return np.char.strip(as_words(column))
    if spec.kind == "date":
        read = pd.to_datetime(column, format=spec.format or DATES[0], errors="coerce", utc=True)
        days = (read - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
        known = days.to_numpy(dtype=np.float64, na_value=np.nan)
    elif spec.kind == "flag":
        low = np.char.lower(as_words(column))
        known = np.where(np.isin(low, list(TRUE)), 1.0, np.where(np.isin(low, list(FALSE)), 0.0, np.nan))
    else:
        known = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    doubtful = np.flatnonzero(~(np.abs(known) <= np.finfo(np.float32).max))
    told = np.char.lower(as_words(column.iloc[doubtful])) if doubtful.size else np.zeros(0, str)
    wrong = doubtful[~np.isin(told, list(NOTHING))]
    if wrong.size:
        kind = {"number": "finite numbers", "date": "dates", "flag": "yes or no"}[spec.kind]
        raise FedGraphError(
            f"{where}: features must be {kind}, column '{name}' has '{column.iloc[wrong[0]]}' in row {wrong[0] + 1}"
        )
    return known


def absent(read: np.ndarray) -> np.ndarray:
    """Which of a column's `values` are missing, bool [N]."""
    return np.isnan(read) if read.dtype.kind == "f" else read == ""


def moved(column: Column, read: np.ndarray) -> np.ndarray:
    """t(v): the values before centering."""
    return np.sign(read) * np.log1p(np.abs(read)) if column.scale == "log" else read


def fit(column: Column, read: np.ndarray, scaling: str) -> Column:
    """The column with its statistics: those it has, else of the values ``read`` [N]."""
    if column.kind in ("number", "date") and scaling == "none":
        column = replace(column, scale="none")
    known = read[~absent(read)]
    own: dict[str, float | str]
    if column.kind == "category":
        count = [int((known == category).sum()) for category in column.categories]
        own = {"fill": column.categories[int(np.argmax(count))] if sum(count) else ""}
    elif column.kind == "flag":
        own = {"fill": float(known.size > 0 and known.mean() > 0.5)}
    elif known.size == 0:
        own = {"fill": 0.0, "center": 0.0, "spread": 1.0}
    else:
        own = {"fill": float(np.median(known)), **_scale(column, moved(column, known))}
    return replace(column, statistics=own | dict(column.statistics))


def _scale(column: Column, known: np.ndarray) -> dict[str, float]:
    if column.scale == "none":
        return {"center": 0.0, "spread": 1.0}
    if column.scale == "robust":
        low, middle, high = np.percentile(known, [25, 50, 75])
        return center_and_spread(middle, high - low)
    return center_and_spread(known.mean(), known.std())


def center_and_spread(center: float, spread: float) -> dict[str, float]:
    """As statistics; values that do not differ, but for rounding, are spread over 1."""
    return {"center": float(center), "spread": float(spread) if spread > 1e-12 * max(1.0, abs(center)) else 1.0}


def encode(column: Column, read: np.ndarray) -> np.ndarray:
    """The features of one fitted column, float64 [N, its features]."""
    lacking = absent(read)
    fill = column.statistics["fill"]
    if column.kind == "category":
        held = np.where(lacking, fill, read)
        known = held[:, None] == np.array(column.categories, dtype=str)[None, :]
        blocks = [known.astype(np.float64), ~known.any(axis=1)[:, None]]
    elif column.kind == "flag":
        blocks = [np.where(lacking, float(fill), read)[:, None]]
    else:
        center, spread = float(column.statistics["center"]), float(column.statistics["spread"])
        blocks = [(moved(column, np.where(lacking, float(fill), read))[:, None] - center) / spread]
    if column.missing:
        blocks.append(lacking[:, None])
    return np.concatenate(blocks, axis=1, dtype=np.float64)


def feature_names(columns: Mapping[str, Column]) -> list[str]:
    """The names of the features [F] that `encode` gives for the columns of a table, in order."""
    names: list[str] = []
    for name, column in columns.items():
        if column.kind == "category":
            names += [f"{name}={word}" for word in (*column.categories, "other")]
        elif column.width > 1:
            names += [f"{name}_{i}" for i in range(column.width)]
        elif column.kind != "ignored":
            names.append(name)
        if column.missing and column.kind != "ignored":
            names.append(f"{name} missing")
    return names


def warn_unscaled(x: Tensor, names: Sequence[str], say: Callable[[str], None]) -> None:
    """Say so where features [N, F] differ much in size, which a network does not forgive."""
    if not x.numel():
        return
    size = x.abs().amax(dim=0)
    known = size[size > 0]
    if known.numel() and float(known.max()) > FAR * min(1.0, float(known.min())):
        most = int(size.argmax())
        say(
            f"warning: features differ much in size ('{names[most]}' reaches {float(size[most]):.4g}, another only"
            f" {float(known.min()):.4g}), and a network then learns little: --scaling local or federated makes them alike"
        )


def _listing(used: Mapping[str, Column]) -> str:
    """The columns by kind, in a line."""
    told = []
    for kind in ("number", "date", "flag", "category"):
        of_kind = [
            name
            + (f" ({column.scale})" if column.scale in ("log", "robust") else "")
            + (f" ({len(column.categories)} and other)" if kind == "category" else "")
            for name, column in used.items()
            if column.kind == kind
        ]
        if of_kind:
            shown = of_kind[:12] + ([f"{len(of_kind) - 12} more"] if len(of_kind) > 12 else [])
            told.append(f"{kind} {', '.join(shown)}")
    return "; ".join(told)

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
from fedgraph_flwr.data.value_formats import (
    ANY,
    FORMATS,
    NumberFormat,
    date_format,
    date_like,
    looks_like,
    number_like,
    read_dates,
    readings,
)
from fedgraph_flwr.errors import FedGraphError, plain, unknown

TRUE = {"1", "true", "t", "yes", "y"}
FALSE = {"0", "false", "f", "no", "n"}
NOTHING = {"", "nan", "na", "n/a", "null", "none"}
"""Words for a missing number, date or flag, in addition to an empty cell."""

SPLITS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}
"""Words of a split, and which mask they mean."""

MAX_CATEGORIES = 50
FLOOR = 5
"""Rows below which a category is "other", and a statistic is not told."""

FAR = 100.0
"""Ratio of magnitudes from which unscaled features get a warning."""


def _silent(text: str) -> None:
    pass


def log_warning(text: str) -> None:
    """Log a line at level WARNING."""
    from logging import WARNING

    from flwr.common.logger import log

    log(WARNING, "%s", text)


@dataclass(frozen=True)
class Treatment:
    """What the user says of the columns, and what the parties have agreed upon.

    Attributes:
        kinds: by column, or by ``type.column``; what is not said is found. Likewise ``scales`` and ``units``.
        scaling: none, local or federated; "": the schema's, else local for tables and none for a saved graph.
        schema: to obey.
        where: the file of the schema, for errors.
        floor: rows below which a category is "other".
        decimals: the decimal sign of numbers, by column; "" stands for all columns. Likewise ``thousands``.
        date_formats: of dates, by column; several are separated by ``|``.
        say: receives what is found, dropped and filled, one line each.
        warn: receives what changes or loses data, one line each; default: the log.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    scales: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    scaling: str = ""
    schema: Schema | None = None
    where: str = ""
    floor: int = FLOOR
    decimals: Mapping[str, str] = field(default_factory=dict)
    thousands: Mapping[str, str] = field(default_factory=dict)
    date_formats: Mapping[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = _silent
    warn: Callable[[str], None] = log_warning

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
        formats = {"decimal": self.decimals, "thousands": self.thousands, "date-format": self.date_formats}
        for option, words in (self.options | formats).items():
            for name in words:
                if name and name not in known:
                    raise unknown("column", name, known, f"--{option}")

    def word(self, words: Mapping[str, str], kind: str, name: str) -> str:
        """What the user says of a column of a node type, "" for nothing."""
        return words.get(f"{kind}.{name}", words.get(name, ""))

    def number_formats(self, kind: str, name: str) -> list[NumberFormat] | None:
        """The formats that the user's options leave for a column; None where there is no option."""
        decimal, thousands = (
            next((words[key] for key in (f"{kind}.{name}", name, "") if key in words), None)
            for words in (self.decimals, self.thousands)
        )
        if decimal is None and thousands is None:
            return None
        if decimal is not None and decimal == thousands:
            raise FedGraphError(f"--decimal and --thousands of column '{name}' are both '{decimal}': they must differ")
        fits = [form for form in FORMATS if decimal in (None, form.decimal) and form.decimal != thousands]
        return [form for form in fits if not form.thousands or thousands in (None, form.thousands)]


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
    if treatment.schema:
        decimals = _decimals_of(kind, table, [n for n in used if used[n].kind == "number"], treatment)
        for name, column in used.items():
            used[name] = as_written(kind, column, table[name], name, where, treatment, decimals)
    fitted, blocks, filled = dict(agreed), [np.zeros((len(table), 0))], []
    for name, column in used.items():
        read = values(table[name], column, name, where)
        _report_others(name, column, read, where, treatment)
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
    if formats := [f"{name} as {column.format}" for name, column in used.items() if column.format and _unusual(column)]:
        treatment.say(f"{where}: formats: {', '.join(formats)}")
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
        decimals = _decimals_of(kind, table, names, treatment)
        found = {name: _found(kind, table[name], name, where, treatment, decimals) for name in names}
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


def _found(
    kind: str, column: Any, name: str, where: str, treatment: Treatment, decimals: set[str]
) -> tuple[Column, str]:
    """A column as its values and the user's options show it, and why it is ignored, "" where it is not."""
    said, scale = (treatment.word(w, kind, name) for w in (treatment.kinds, treatment.scales))
    form = treatment.word(treatment.date_formats, kind, name)
    if form and said not in ("", "date"):
        raise FedGraphError(f"--date-format {name}={form}, but --kind {name}={said}: leave one of them out")
    said = "date" if form else said
    accepted = treatment.number_formats(kind, name)
    detected = said in ("", "date", "number") and not (form or (said == "number" and column.dtype.kind in "biuf"))
    found, told = (said, form)
    if detected:
        found, told = _kind(column, name, where, accepted, decimals, treatment, said)
    if said == "date" and found != "date":
        raise FedGraphError(
            f"{where}: column '{name}' holds no dates such as 2026-01-31 or 31.01.2026: pass --date-format {name}=FORMAT, such"
            " as %d %b %Y"
        )
    if found == "ignored":
        return Column("ignored"), told or "by --kind"
    unit = treatment.word(treatment.units, kind, name)
    found, told = ("number", "") if said == "number" and found != "number" else (found, told)
    spec = Column(found, unit=unit, scale=scale or "standard", format=told if found in ("date", "number") else "")
    if found == "category":
        spec = replace(spec, categories=frequent(counts(values(column, spec, name, where)), treatment.floor))
        if not spec.categories:
            return Column("ignored"), f"no word of it has {treatment.floor} rows"
    return replace(spec, missing=bool(absent(values(column, spec, name, where)).any())), ""


def _known(column: Any) -> list[str]:
    """The distinct values of a column as text, without those that stand for nothing."""
    return [str(word) for word in np.unique(as_words(column)) if word.strip().lower() not in NOTHING]


def _decimals_of(kind: str, table: Any, names: Sequence[str], treatment: Treatment) -> set[str]:
    """The decimal signs of the columns that can be read in one way only: they decide where another column can be read in two."""
    found = set()
    for name in names:
        if table[name].dtype.kind in "biufM" or treatment.word(treatment.kinds, kind, name) not in ("", "number"):
            continue
        words = _known(table[name])
        if not words or number_like(words[:20]).sum() < len(words[:20]):  # a cheap look at what is no number anyway
            continue
        forms = readings(words, treatment.number_formats(kind, name) or FORMATS)
        if len(forms) == 1 and (forms[0].thousands in (",", ".") or any(forms[0].decimal in word for word in words)):
            found.add(forms[0].decimal)
    return found


def _number_format(
    words: Sequence[str], name: str, where: str, accepted: Sequence[NumberFormat] | None, decimals: set[str]
) -> NumberFormat | None:
    """The format by which all words are numbers; None where some word is not.

    Raises:
        FedGraphError: they can be read in two ways, and neither the options nor the other columns decide.
    """
    forms = readings(words, FORMATS if accepted is None else accepted)
    if len(forms) > 1 and len(fitting := [form for form in forms if form.decimal in decimals]) == 1:
        forms = fitting
    if len(forms) > 1:
        which = next(i for i in range(len(words)) if len({float(form.read([words[i]])[0]) for form in forms}) > 1)
        told = " or ".join(f"{form.read([words[which]])[0]:.15g} (--decimal {name}={form.decimal})" for form in forms)
        raise FedGraphError(
            f"{where}: column '{name}' has '{words[which]}', which can mean {told}: pass one of these options"
        )
    return forms[0] if forms else None


def _kind(
    column: Any,
    name: str,
    where: str,
    accepted: Sequence[NumberFormat] | None,
    decimals: set[str],
    treatment: Treatment,
    said: str = "",
) -> tuple[str, str]:
    """The kind of a column, and its format (a date or number) or why it is ignored.

    Raises:
        FedGraphError: most of its values are numbers or dates, but not all; or they can be read in two ways.
    """
    if not len(column):
        return "number", ""
    if column.dtype.kind == "M":
        return "date", "ISO8601"
    if column.dtype.kind in "biuf":
        known = set(column.dropna().unique())
        kind = "flag" if column.dtype.kind == "b" or known == {0, 1} else "number"
        return (kind, "") if known else ("ignored", "empty")
    distinct = _known(column)
    low = {word.lower() for word in distinct}
    if not distinct:
        return "ignored", "empty"
    if said != "number":
        if low <= TRUE | FALSE and (len(low) == 2 or not low <= {"0", "1"}):
            return "flag", ""
        if "train" in low and low <= SPLITS.keys():
            return "ignored", f"looks like a split; --split-column {name} takes it for one"
    if (form := _number_format(distinct, name, where, accepted, decimals)) is not None:
        return "number", str(form)
    number, date = number_like(distinct), date_like(distinct)
    if number.mean() > 0.5:
        raise FedGraphError(_unlike(column, distinct, number, name, where, accepted))
    if date.all():
        return "date", date_format(distinct, name, where)
    if date.mean() > 0.5:
        wrong, right = distinct[int((~date).argmax())], distinct[int(date.argmax())]
        raise FedGraphError(
            f"{where}: column '{name}' has '{plain(wrong, 40)}' in row {_row(column, wrong)}, and dates such as '{right}':"
            f" correct the value, or pass --date-format {name}=FORMAT (several separated by |), or --kind {name}=ignored"
        )
    if len(distinct) > max(20, 0.5 * len(column)):
        what, alike = looks_like(distinct)
        if alike:
            fix = "remove units from its values" if what == "numbers" else f"pass --date-format {name}=FORMAT"
            treatment.warn(
                f"{where}: column '{name}' is ignored, but {len(alike)} of its {len(distinct)} different values look like {what},"
                f" such as '{plain(alike[0], 40)}': {fix}, or pass --kind {name}=ignored"
            )
        return "ignored", f"{len(distinct)} different words in {len(column)} rows"
    return "category", ""


def _row(column: Any, word: str) -> int:
    """The first row with a value, from 1."""
    return int((as_words(column) == word).argmax()) + 1


def _unlike(
    column: Any,
    distinct: Sequence[str],
    number: np.ndarray,
    name: str,
    where: str,
    accepted: Sequence[NumberFormat] | None,
) -> str:
    """The error message for a column most of whose values are numbers, but not all, or not in one format."""
    remedy = f"correct the value, or pass --kind {name}=category or --kind {name}=ignored"
    if number.all():
        forms = [max(FORMATS, key=lambda form: int((~np.isnan(form.read(distinct))).sum()))]
        if accepted is not None:
            forms = list(accepted)
        wrong = next(word for word in distinct if all(np.isnan(form.read([word])[0]) for form in forms))
        why = "as its --decimal and --thousands say" if accepted is not None else f"like '{str(forms[0]) or '1234.5'}'"
        return (
            f"{where}: column '{name}' has '{wrong}' in row {_row(column, wrong)}, which is not a number {why}: pass --decimal"
            f" {name}=SIGN or --thousands {name}=SIGN, or {remedy}"
        )
    wrong = distinct[int((~number).argmax())]
    value = f"'{plain(wrong, 40)}' in row {_row(column, wrong)}"
    return f"{where}: features must be finite numbers, column '{name}' has {value}: {remedy}"


def as_written(
    kind: str, column: Column, series: Any, name: str, where: str, treatment: Treatment, decimals: set[str]
) -> Column:
    """A column of the schema with the format by which this table writes it.

    The user's options go first, then the schema's format; a table that it does not fit is read by what is detected, as is one
    whose other columns have another decimal sign.

    Raises:
        FedGraphError: the options do not fit the column, or the table can be read in two ways.
    """
    accepted, form = treatment.number_formats(kind, name), treatment.word(treatment.date_formats, kind, name)
    if form and column.kind != "date":
        raise FedGraphError(f"--date-format {name}={form}, but {treatment.where} says {column.kind}: leave it out")
    if series.dtype.kind in "biufM" or column.kind not in ("number", "date"):
        return column
    words = _known(series)
    if column.kind == "date":
        if not form and words and read_dates(_series(words), column.format).isna().any():
            form = date_format(words, name, where)
    elif words:
        stored = NumberFormat.parse(column.format)
        doubtful = column.format == ANY or (decimals and stored.decimal not in decimals and len(readings(words)) > 1)
        if accepted is not None or doubtful or np.isnan(stored.read(words)).any():
            found = _number_format(words, name, where, accepted, decimals)
            if found is None and accepted is not None:
                raise FedGraphError(_unlike(series, words, np.ones(len(words), bool), name, where, accepted))
            if found is not None:
                return replace(column, format=str(found))
    return replace(column, format=form) if form else column


def _series(words: Any) -> Any:
    import pandas as pd

    return pd.Series(words)


def _unusual(column: Column) -> bool:
    """Whether a format is worth a line: no plain number, and no single ISO date."""
    return column.format != "ISO8601"


MAX_NAMED = 5
"""Values that a line about rows that become "other" names."""


def named_counts(count: Mapping[str, int]) -> str:
    """The most frequent of some values with their rows, truncated and sanitized."""
    often = sorted(count, key=lambda word: (-count[word], word))
    more = f" and {len(often) - MAX_NAMED} more" if len(often) > MAX_NAMED else ""
    return ", ".join(f"'{plain(word, 30)}' {count[word]}" for word in often[:MAX_NAMED]) + more


def _report_others(name: str, column: Column, read: np.ndarray, where: str, treatment: Treatment) -> None:
    """Count and name the values of a category that become "other": a warning where the schema does not list them."""
    if column.kind != "category":
        return
    unlisted = {word: count for word, count in counts(read).items() if word not in column.categories}
    if not unlisted:
        return
    rows, total = sum(unlisted.values()), int((read != "").sum())
    if treatment.schema is None:
        treatment.say(
            f"{where}: {rows} of {total} rows have a rare value of '{name}' (fewer than {treatment.floor} rows) and become"
            f" 'other': {named_counts(unlisted)}"
        )
    else:
        treatment.warn(
            f"{where}: {rows} of {total} rows have a value of '{name}' that {treatment.where or 'the schema'} does not list and"
            f" become 'other': {named_counts(unlisted)}; it lists"
            f" {', '.join(plain(word, 30) for word in column.categories[:MAX_NAMED])}"
            + (f" and {len(column.categories) - MAX_NAMED} more" if len(column.categories) > MAX_NAMED else "")
        )


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
        read = read_dates(_series(as_words(column)) if column.dtype.kind in "iuf" else column, spec.format)
        days = (read - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
        known = days.to_numpy(dtype=np.float64, na_value=np.nan)
    elif spec.kind == "flag":
        low = np.char.lower(as_words(column))
        known = np.where(np.isin(low, list(TRUE)), 1.0, np.where(np.isin(low, list(FALSE)), 0.0, np.nan))
    elif spec.format and column.dtype.kind not in "biuf":
        known = NumberFormat.parse(spec.format).read(as_words(column))
    else:
        known = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    doubtful = np.flatnonzero(~(np.abs(known) <= np.finfo(np.float32).max))
    told = np.char.lower(as_words(column.iloc[doubtful])) if doubtful.size else np.zeros(0, str)
    wrong = doubtful[~np.isin(told, list(NOTHING))]
    if wrong.size:
        kind = {"number": "finite numbers", "date": "dates", "flag": "yes or no"}[spec.kind]
        value = plain(column.iloc[wrong[0]], 40)
        fix = f": pass --date-format {name}=FORMAT" if spec.kind == "date" else ""
        if spec.kind == "number" and number_like([value]).any():
            fix = f": pass --decimal {name}=SIGN or --thousands {name}=SIGN"
        raise FedGraphError(
            f"{where}: features must be {kind}, column '{name}' has '{value}' in row {wrong[0] + 1}{fix}"
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

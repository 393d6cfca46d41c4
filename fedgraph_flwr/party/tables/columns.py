"""Encoding of table columns as features: each column's kind, its statistics, and the model's input values.

    number, date   (t(v) − center) / spread, a date in days since 1970; t is the identity, or sign(v)·ln(1 + |v|) for `log`
    flag           0 or 1
    category       one feature per category, and one for all other values
    missing        `fill` (median of numbers and dates, mode of flags and categories), and an indicator feature

For center and spread, `standard` uses mean and standard deviation, `robust` uses median and interquartile range, as
scikit-learn's StandardScaler and RobustScaler do. The schema stores the statistics as numbers.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.pyg import Features
from fedgraph_flwr.data.schema import Column, Schema, Types, feature_names
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
    since_1970,
)
from fedgraph_flwr.errors import FedGraphError, sanitize, unknown
from fedgraph_flwr.party.tables.reading import Say, silent

TRUE = {"1", "true", "t", "yes", "y"}
FALSE = {"0", "false", "f", "no", "n"}
NOTHING = {"", "nan", "na", "n/a", "null", "none"}
"""Texts that mark a missing number, date or flag, in addition to an empty cell."""

SPLITS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}
"""Values of a split column, and the mask that each one selects."""

MAX_TEXT = 256
"""Longest text that is read as it is."""

MAX_CATEGORIES = 50
FLOOR = 5
"""Minimum number of rows for a separate category and for a shared statistic."""

FAR = 100.0
"""Ratio of magnitudes above which unscaled features get a warning."""


def log_warning(text: str) -> None:
    """Log a line at level WARNING."""
    from logging import WARNING

    from fedgraph_flwr.logs import log

    log(WARNING, "%s", text)


@dataclass(frozen=True)
class Treatment:
    """Column options of the user, and the schema that the parties agreed on.

    Attributes:
        kinds: kind by column, or by ``type.column``; detected where not given. Likewise ``scales`` and ``units``.
        scaling: none, local or federated. "" means the schema's, else local for tables and none for a saved graph.
        schema: schema to follow.
        where: the file of the schema, for errors.
        role: role of the party, which the schema lists with its columns; "" without roles.
        floor: rows below which a category becomes "other".
        decimals: decimal separator of numbers by column, where "" applies to all columns. Likewise ``thousands``.
        date_formats: date formats by column, several separated by ``|``.
        labelled: False for data to predict: they need no columns of labels, splits, clients and times, and labels that the model
            does not know count as unknown.
        say: receives one line per column that was detected, dropped or filled.
        warn: receives one line per change or loss of data (default: the log).
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    scales: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    scaling: str = ""
    schema: Schema | None = None
    where: str = ""
    role: str = ""
    floor: int = FLOOR
    decimals: Mapping[str, str] = field(default_factory=dict)
    thousands: Mapping[str, str] = field(default_factory=dict)
    date_formats: Mapping[str, str] = field(default_factory=dict)
    labelled: bool = True
    say: Say = silent
    warn: Say = log_warning

    def settled_scaling(self, default: str = "local") -> str:
        """Return the scaling in force.

        Raises:
            FedGraphError: the user's scaling differs from the schema's, or it is federated without a schema.
        """
        agreed = self.schema.scaling if self.schema else ""
        if self.scaling and agreed and self.scaling != agreed:
            raise FedGraphError(
                f"--scaling {self.scaling} conflicts with scaling {agreed} of {self.where}: leave the option out, or"
                " edit the schema"
            )
        if self.scaling == "federated" and not agreed:
            raise FedGraphError(
                "--scaling federated needs --schema FILE with the parties' statistics: write each party's with --statistics,"
                " then `fedgraph-flwr schema merge`"
            )
        return agreed or self.scaling or default

    @property
    def undirected(self) -> bool:
        """Whether the schema says that each row of the edge table represents both directions."""
        return bool(self.schema and self.schema.undirected)

    @property
    def new_role(self) -> bool:
        """Whether the schema has no section of the party's role yet."""
        return bool(self.role) and (self.schema is None or self.role not in self.schema.roles)

    def missing(self, kind: str, agreed: Mapping[str, Column], names: Sequence[str]) -> set[str]:
        """Return the columns of a type that parties of this role do not have.

        Args:
            kind: the type.
            agreed: columns of all roles.
            names: columns of the party's table.
        """
        if not self.role or self.schema is None:
            return set()
        return set(agreed) - set(names if self.new_role else self.schema.roles[self.role].get(kind, ()))

    def roles(self, tables: Types, names: Mapping[str, Sequence[str]]) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Return the schema's roles with the party's, from the columns of all roles and those of its tables, by type."""
        if not self.new_role:
            return self.schema.roles if self.schema else {}
        own = {
            kind: tuple(name for name, c in found.items() if c.kind != "ignored" and name in names.get(kind, ()))
            for kind, found in tables.items()
        }
        return {
            **(self.schema.roles if self.schema else {}),
            self.role: {k: found for k, found in own.items() if found},
        }

    @property
    def options(self) -> dict[str, Mapping[str, str]]:
        """Values given by the user, keyed by command-line option."""
        return {"kind": self.kinds, "scale": self.scales, "unit": self.units}

    def check_names(self, tables: Mapping[str, Sequence[str]]) -> None:
        """Check that every option names an existing column.

        Args:
            tables: column names of each node type.

        Raises:
            FedGraphError: no node type has a column that an option names.
        """
        known = {name for names in tables.values() for name in names}
        known |= {f"{kind}.{name}" for kind, names in tables.items() for name in names}
        formats = {"decimal": self.decimals, "thousands": self.thousands, "date-format": self.date_formats}
        for option, given in (self.options | formats).items():
            for name in given:
                if name and name not in known:
                    raise unknown("column", name, known, f"--{option}")

    def option(self, given: Mapping[str, str], kind: str, name: str) -> str:
        """Return the user's value for a column of a node type; "" if there is none."""
        return given.get(f"{kind}.{name}", given.get(name, ""))

    def number_formats(self, kind: str, name: str) -> list[NumberFormat] | None:
        """Return the formats that the user's options permit for a column; None without an option."""
        decimal, thousands = (
            next((given[key] for key in (f"{kind}.{name}", name, "") if key in given), None)
            for given in (self.decimals, self.thousands)
        )
        if decimal is None and thousands is None:
            return None
        if decimal is not None and decimal == thousands:
            raise FedGraphError(f"--decimal and --thousands of column '{name}' are both '{decimal}': they must differ")
        fits = [form for form in FORMATS if decimal in (None, form.decimal) and form.decimal != thousands]
        return [form for form in fits if not form.thousands or thousands in (None, form.thousands)]


AS_FOUND = Treatment()
"""No options: the kinds are detected, and columns are scaled by their own statistics."""


def features(kind: str, table: Any, names: Sequence[str], where: str, treatment: Treatment) -> Features:
    """Encode one node table as features, by the schema if there is one.

    Args:
        kind: the node type.
        table: one row per node.
        names: candidate feature columns, in order.
        where: the file, for errors.
        treatment: column options and schema.

    Raises:
        FedGraphError: a column of the schema is missing in the table, a value does not match the column's kind, or a
            statistic is missing.
    """
    scaling = treatment.settled_scaling()
    agreed = columns(kind, table, names, where, treatment)
    used = {name: column for name, column in agreed.items() if column.kind != "ignored"}
    missing = treatment.missing(kind, agreed, names)
    present = [name for name in used if name not in missing]
    if treatment.schema:
        decimals = _decimals_of(kind, table, [n for n in present if used[n].kind == "number"], treatment)
        for name in present:
            column = used[name]
            used[name] = as_written(kind, column, table[name], name, where, treatment, decimals)
    fitted, blocks, filled = dict(agreed), [np.zeros((len(table), 0))], []
    for name, column in used.items():
        if name in missing:
            fitted[name] = fit(column, np.zeros(0, str if column.kind == "category" else float), scaling)
            blocks.append(np.zeros((len(table), len(feature_names({name: column})))))
            blocks[-1][:, -1] = column.missing
            continue
        read = values(table[name], column, name, where)
        _report_others(name, column, read, where, treatment)
        if scaling == "federated" and "fill" not in column.statistics:
            raise FedGraphError(
                f"{treatment.where} has scaling federated but no statistics of column '{name}': create it with"
                " `fedgraph-flwr schema merge`"
            )
        fitted[name] = fit(column, read, scaling)
        blocks.append(encode(fitted[name], read))
        if gaps := int(absent(read).sum()):
            mark = "" if column.missing else ", without an indicator, as in the schema"
            filled.append(f"{name} {gaps} of {len(read)}{mark}")
    _report(used, missing, filled, where, treatment)
    x = torch.from_numpy(np.concatenate(blocks, axis=1).astype(np.float32))
    if scaling == "none":
        warn_unscaled(x, feature_names(agreed), treatment.say)
    return Features(agreed, fitted, x)


def _report(
    used: Mapping[str, Column], missing: set[str], filled: Sequence[str], where: str, treatment: Treatment
) -> None:
    """Say which columns were read, and how."""
    if present := {name: column for name, column in used.items() if name not in missing}:
        treatment.say(f"{where}: {_listing(present)}")
    if missing & set(used):
        treatment.say(f"{where}: columns of other roles, absent here: {', '.join(n for n in used if n in missing)}")
    usual = ("", "ISO8601")
    if formats := [f"{name} as {column.format}" for name, column in used.items() if column.format not in usual]:
        treatment.say(f"{where}: formats: {', '.join(formats)}")
    if filled:
        treatment.say(f"missing values, filled: {'; '.join(filled)}")


def columns(kind: str, table: Any, names: Sequence[str], where: str, treatment: Treatment) -> dict[str, Column]:
    """Return the columns of one node table: the schema's in its order, or those detected.

    Raises:
        FedGraphError: a column of the schema is missing, or an option contradicts the schema.
    """
    if treatment.schema is None:
        decimals = _decimals_of(kind, table, names, treatment)
        found = {name: _found(kind, table[name], name, where, treatment, decimals) for name in names}
        dropped = [f"{name} ({why})" for name, (_, why) in found.items() if why]
        agreed = {name: _gaps(column, treatment) for name, (column, _) in found.items()}
    else:
        agreed = dict(treatment.schema.nodes.get(kind, {}))
        if treatment.new_role and (fresh := [name for name in names if name not in agreed]):
            decimals = _decimals_of(kind, table, fresh, treatment)
            for name in fresh:
                agreed[name] = _gaps(_found(kind, table[name], name, where, treatment, decimals)[0], treatment)
        missing = treatment.missing(kind, agreed, names)
        wanted = _wanted(kind, {n: c for n, c in agreed.items() if n not in missing}, names, where, treatment)
        dropped = [
            f"{name} ({'not in the schema' if name not in agreed else 'ignored by the schema'})" for name in names
        ]
        dropped = [entry for name, entry in zip(names, dropped, strict=True) if name not in wanted]
    if dropped:
        treatment.say(f"{where}: ignored: {', '.join(dropped)}")
    return agreed


def _gaps(column: Column, treatment: Treatment) -> Column:
    """Return a detected column, which gets an indicator of missing values if parties have roles: others do not have it."""
    return replace(column, missing=True) if treatment.role and column.kind != "ignored" else column


def _wanted(
    kind: str, agreed: Mapping[str, Column], names: Sequence[str], where: str, treatment: Treatment
) -> dict[str, Column]:
    """Return the columns of the schema that become features.

    Raises:
        FedGraphError: one is missing in the table, or an option contradicts it.
    """
    wanted = {name: column for name, column in agreed.items() if column.kind != "ignored"}
    for name, column in wanted.items():
        if name not in names:
            raise FedGraphError(
                f"{where} has no column '{name}' ({column.kind}) of {treatment.where}; its columns are {', '.join(names)}"
            )
        its = {"kind": column.kind, "scale": column.scale, "unit": column.unit}
        for option, options in treatment.options.items():
            if (given := treatment.option(options, kind, name)) not in ("", its[option]):
                raise FedGraphError(
                    f"--{option} {name}={given} conflicts with {its[option] or 'none'} in {treatment.where}: leave"
                    " the option out,"
                    " or edit the schema"
                )
    if list(wanted) != (own := [name for name in names if name in wanted]):
        treatment.say(f"{where}: columns reordered as in {treatment.where} ({', '.join(own)} here)")
    return wanted


def _found(
    kind: str, column: Any, name: str, where: str, treatment: Treatment, decimals: set[str]
) -> tuple[Column, str]:
    """Return a column by its values and the user's options, and why it is ignored ("" if it is used)."""
    given, scale = (treatment.option(options, kind, name) for options in (treatment.kinds, treatment.scales))
    form = treatment.option(treatment.date_formats, kind, name)
    if form and given not in ("", "date"):
        raise FedGraphError(f"--date-format {name}={form} conflicts with --kind {name}={given}: leave one of them out")
    given = "date" if form else given
    accepted = treatment.number_formats(kind, name)
    detected = given in ("", "date", "number") and not (form or (given == "number" and column.dtype.kind in "biuf"))
    found, detail = (given, form)
    if detected:
        found, detail = _kind(column, name, where, accepted, decimals, treatment, given)
    if given == "date" and found != "date":
        raise FedGraphError(
            f"{where}: column '{name}' has no dates such as 2026-01-31 or 31.01.2026: pass --date-format {name}=FORMAT, such"
            " as %d %b %Y"
        )
    if found == "ignored":
        return Column("ignored"), detail or "by --kind"
    unit = treatment.option(treatment.units, kind, name)
    found, detail = ("number", "") if given == "number" and found != "number" else (found, detail)
    _check_scale(scale, found, name, where)
    spec = Column(found, unit=unit, scale=scale or "standard", format=detail if found in ("date", "number") else "")
    if found == "category":
        spec = replace(spec, categories=frequent(counts(values(column, spec, name, where)), treatment.floor))
        if not spec.categories:
            return Column("ignored"), f"no value has {treatment.floor} rows"
    return replace(spec, missing=bool(absent(values(column, spec, name, where)).any())), ""


def _check_scale(scale: str, kind: str, name: str, where: str) -> None:
    if scale and kind not in ("number", "date"):
        raise FedGraphError(
            f"{where}: --scale {name}={scale} has no effect on a {kind}: leave it out, or pass --kind {name}=number"
        )


def _known(column: Any) -> list[str]:
    """Return the distinct values of a column as text, without markers of missing values."""
    return [str(word) for word in np.unique(as_words(column.drop_duplicates())) if word.strip().lower() not in NOTHING]


def _decimals_of(kind: str, table: Any, names: Sequence[str], treatment: Treatment) -> set[str]:
    """Return the decimal separators of unambiguous columns; they resolve the ambiguous ones."""
    found = set()
    for name in names:
        if table[name].dtype.kind in "biufM" or treatment.option(treatment.kinds, kind, name) not in ("", "number"):
            continue
        texts = _known(table[name])
        if not texts or number_like(texts[:20]).sum() < len(texts[:20]):  # a cheap test that skips text columns
            continue
        forms = readings(texts, treatment.number_formats(kind, name) or FORMATS)
        if len(forms) == 1 and (forms[0].thousands in (",", ".") or any(forms[0].decimal in word for word in texts)):
            found.add(forms[0].decimal)
    return found


def _number_format(
    texts: Sequence[str], name: str, where: str, accepted: Sequence[NumberFormat] | None, decimals: set[str]
) -> NumberFormat | None:
    """Return the format by which all texts are numbers; None if some text is not a number.

    Raises:
        FedGraphError: two formats fit, and neither the options nor the other columns decide.
    """
    forms = readings(texts, FORMATS if accepted is None else accepted)
    if len(forms) > 1 and len(fitting := [form for form in forms if form.decimal in decimals]) == 1:
        forms = fitting
    if len(forms) > 1:
        which = next(i for i in range(len(texts)) if len({float(form.read([texts[i]])[0]) for form in forms}) > 1)
        meanings = " or ".join(
            f"{form.read([texts[which]])[0]:.15g} (--decimal {name}={form.decimal})" for form in forms
        )
        raise FedGraphError(
            f"{where}: column '{name}' has '{texts[which]}', which can mean {meanings}: pass one of these options"
        )
    return forms[0] if forms else None


def _kind(
    column: Any,
    name: str,
    where: str,
    accepted: Sequence[NumberFormat] | None,
    decimals: set[str],
    treatment: Treatment,
    given: str = "",
) -> tuple[str, str]:
    """Return the kind of a column, and its format (date or number) or why it is ignored.

    Raises:
        FedGraphError: most of its values are numbers or dates, but not all, or two formats fit.
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
    if given != "number":
        if low <= TRUE | FALSE and (len(low) == 2 or not low <= {"0", "1"}):
            return "flag", ""
        if "train" in low and low <= SPLITS.keys():
            return "ignored", f"looks like a split: pass --split-column {name} to use it"
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
            f"{where}: column '{name}' has '{sanitize(wrong, 40)}' in row {_row(column, wrong)}, and dates such as '{right}':"
            f" correct the value, or pass --date-format {name}=FORMAT (several separated by |), or --kind {name}=ignored"
        )
    return _words(distinct, len(column), name, where, treatment)


def _words(distinct: Sequence[str], rows: int, name: str, where: str, treatment: Treatment) -> tuple[str, str]:
    """Return the kind of a column of words: a category, or ignored with too many different values."""
    if len(distinct) > max(20, 0.5 * rows):
        what, alike = looks_like(distinct)
        if alike:
            fix = "remove units from its values" if what == "numbers" else f"pass --date-format {name}=FORMAT"
            treatment.warn(
                f"{where}: column '{name}' is ignored, but {len(alike)} of its {len(distinct)} different values look like {what},"
                f" such as '{sanitize(alike[0], 40)}': {fix}, or pass --kind {name}=ignored"
            )
        return "ignored", f"{len(distinct)} different values in {rows} rows"
    return "category", ""


def _row(column: Any, word: str) -> int:
    """Return the first row with a value, counted from 1."""
    return first_row(as_words(column) == word)


def _unlike(
    column: Any,
    distinct: Sequence[str],
    number: np.ndarray,
    name: str,
    where: str,
    accepted: Sequence[NumberFormat] | None,
) -> str:
    """Return the error message for a column of mostly numbers, but not all, or not in one format."""
    remedy = f"correct the value, or pass --kind {name}=category or --kind {name}=ignored"
    if number.all():
        forms = [max(FORMATS, key=lambda form: int((~np.isnan(form.read(distinct))).sum()))]
        if accepted is not None:
            forms = list(accepted)
        unread = (word for word in distinct if all(np.isnan(form.read([word])[0]) for form in forms))
        wrong = next(unread, max(distinct, key=len))  # else a long number without the thousands separator of others
        why = "by its --decimal and --thousands" if accepted is not None else f"like '{str(forms[0]) or '1234.5'}'"
        return (
            f"{where}: column '{name}' has '{wrong}' in row {_row(column, wrong)}, which is not a number {why}: pass --decimal"
            f" {name}=SIGN or --thousands {name}=SIGN, or {remedy}"
        )
    wrong = distinct[int((~number).argmax())]
    value = f"'{sanitize(wrong, 40)}' in row {_row(column, wrong)}"
    return f"{where}: features must be finite numbers; column '{name}' has {value}: {remedy}"


def as_written(
    kind: str, column: Column, series: Any, name: str, where: str, treatment: Treatment, decimals: set[str]
) -> Column:
    """Return a column of the schema with the format that this table uses.

    The user's options take precedence, then the schema's format. The format is detected if the schema's does not fit, or if
    the table's other columns use another decimal separator.

    Raises:
        FedGraphError: the options do not fit the column, or two formats fit.
    """
    accepted, form = treatment.number_formats(kind, name), treatment.option(treatment.date_formats, kind, name)
    if form and column.kind != "date":
        raise FedGraphError(
            f"--date-format {name}={form} conflicts with kind {column.kind} in {treatment.where}: leave the option out"
        )
    if series.dtype.kind in "biufM" or column.kind not in ("number", "date"):
        return column
    texts = _known(series)
    if column.kind == "date":
        if not form and texts and read_dates(_series(texts), column.format).isna().any():
            form = date_format(texts, name, where)
    elif texts:
        stored = NumberFormat.parse(column.format)
        doubtful = column.format == ANY or (decimals and stored.decimal not in decimals and len(readings(texts)) > 1)
        if accepted is not None or doubtful or np.isnan(stored.read(texts)).any():
            found = _number_format(texts, name, where, accepted, decimals)
            if found is None and accepted is not None:
                raise FedGraphError(_unlike(series, texts, np.ones(len(texts), bool), name, where, accepted))
            if found is not None:
                return replace(column, format=str(found))
    return replace(column, format=form) if form else column


def _series(texts: Any) -> Any:
    import pandas as pd

    return pd.Series(texts)


MAX_NAMED = 5
"""Maximum number of values named in a line about rows that become "other"."""


def named_counts(count: Mapping[str, int]) -> str:
    """Return the most frequent values with their row counts, truncated and sanitized."""
    often = sorted(count, key=lambda word: (-count[word], word))
    more = f" and {len(often) - MAX_NAMED} more" if len(often) > MAX_NAMED else ""
    return ", ".join(f"'{sanitize(word, 30)}' {count[word]}" for word in often[:MAX_NAMED]) + more


def _report_others(name: str, column: Column, read: np.ndarray, where: str, treatment: Treatment) -> None:
    """Report the values of a category that become "other", as a warning if the schema does not list them."""
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
            f" {', '.join(sanitize(word, 30) for word in column.categories[:MAX_NAMED])}"
            + (f" and {len(column.categories) - MAX_NAMED} more" if len(column.categories) > MAX_NAMED else "")
        )


def counts(read: np.ndarray) -> dict[str, int]:
    """Count the rows [N] of each value."""
    distinct, count = np.unique(read[read != ""], return_counts=True)
    return dict(zip(map(str, distinct), map(int, count), strict=True))


def frequent(count: Mapping[str, int], floor: int) -> tuple[str, ...]:
    """Return the values with at least ``floor`` rows, at most `MAX_CATEGORIES`, in natural order."""
    often = sorted((word for word in count if count[word] >= floor), key=lambda word: (-count[word], word))
    return tuple(sorted(often[:MAX_CATEGORIES], key=natural))


def natural(word: str) -> tuple[int, float, str]:
    """Return a sort key: numbers by size, then other texts alphabetically."""
    return (0, float(word), word) if re.fullmatch(r"-?\d+(\.\d+)?", word) else (1, 0.0, word)


def first_row(mask: np.ndarray) -> int:
    """Return the first row of a mask, counted from 1; 0 without one."""
    return int(mask.argmax()) + 1 if mask.any() else 0


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


def values(column: Any, spec: Column, name: str, where: str) -> np.ndarray:
    """Return a column's values [N]: float64 with NaN where missing, or for a category text with "" where missing.

    Raises:
        FedGraphError: a value does not match the kind; the message names the first row.
    """
    import pandas as pd

    if spec.kind == "category":
        return np.char.strip(as_words(column))
    if spec.kind == "date":
        read = read_dates(_series(as_words(column)) if column.dtype.kind in "iuf" else column, spec.format)
        known = since_1970(read, 86_400)
    elif spec.kind == "flag":
        low = np.char.lower(as_words(column))
        known = np.where(np.isin(low, list(TRUE)), 1.0, np.where(np.isin(low, list(FALSE)), 0.0, np.nan))
    elif spec.format and column.dtype.kind not in "biuf":
        known = NumberFormat.parse(spec.format).read(as_words(column))
    else:
        known = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    doubtful = np.flatnonzero(~(np.abs(known) <= np.finfo(np.float32).max))
    texts = np.char.lower(as_words(column.iloc[doubtful])) if doubtful.size else np.zeros(0, str)
    wrong = doubtful[~np.isin(texts, list(NOTHING))]
    if wrong.size:
        kind = {"number": "finite numbers", "date": "dates", "flag": "yes or no"}[spec.kind]
        value = sanitize(column.iloc[wrong[0]], 40)
        fix = f": pass --date-format {name}=FORMAT" if spec.kind == "date" else ""
        if np.abs(known[wrong[0]]) > 0:  # read, but infinite or too large
            largest = np.finfo(np.float32).max
            fix = f": correct it, or leave the cell empty if it is unknown (the largest number is {largest:.2g})"
        elif spec.kind == "number" and number_like([value]).any():
            fix = f": pass --decimal {name}=SIGN or --thousands {name}=SIGN"
        raise FedGraphError(
            f"{where}: features must be {kind}; column '{name}' has '{value}' in row {wrong[0] + 1}{fix}"
        )
    return known


def absent(read: np.ndarray) -> np.ndarray:
    """Return a mask of a column's missing `values`, bool [N]."""
    return np.isnan(read) if read.dtype.kind == "f" else read == ""


def moved(column: Column, read: np.ndarray) -> np.ndarray:
    """Return t(v), the values before centering."""
    return np.sign(read) * np.log1p(np.abs(read)) if column.scale == "log" else read


def fit(column: Column, read: np.ndarray, scaling: str) -> Column:
    """Return the column with its statistics; missing ones are computed from the values ``read`` [N]."""
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
        shifted = moved(column, known)
        scale = scale_of(column, np.percentile(shifted, [25, 50, 75]), shifted.mean(), shifted.std())
        own = {"fill": float(np.median(known)), **scale}
    return replace(column, statistics=own | dict(column.statistics))


def scale_of(column: Column, quartiles: Sequence[float], mean: float, deviation: float) -> dict[str, float]:
    """Return center and spread by the column's scale as statistics; values equal up to rounding get a spread of 1."""
    if column.scale == "none":
        return {"center": 0.0, "spread": 1.0}
    low, middle, high = quartiles
    center, spread = (middle, high - low) if column.scale == "robust" else (mean, deviation)
    return {"center": float(center), "spread": float(spread) if spread > 1e-12 * max(1.0, abs(center)) else 1.0}


def encode(column: Column, read: np.ndarray) -> np.ndarray:
    """Return the features of one fitted column, float64 [N, width]."""
    gaps = absent(read)
    fill = column.statistics["fill"]
    if column.kind == "category":
        held = np.where(gaps, fill, read)
        known = held[:, None] == np.array(column.categories, dtype=str)[None, :]
        blocks = [known.astype(np.float64), ~known.any(axis=1)[:, None]]
    elif column.kind == "flag":
        blocks = [np.where(gaps, float(fill), read)[:, None]]
    else:
        center, spread = float(column.statistics["center"]), float(column.statistics["spread"])
        blocks = [(moved(column, np.where(gaps, float(fill), read))[:, None] - center) / spread]
    if column.missing:
        blocks.append(gaps[:, None])
    return np.concatenate(blocks, axis=1, dtype=np.float64)


def warn_unscaled(x: Tensor, names: Sequence[str], say: Say) -> None:
    """Report features [N, F] whose magnitudes differ so much that training suffers."""
    if not x.numel():
        return
    size = x.abs().amax(dim=0)
    known = size[size > 0]
    if known.numel() and float(known.max()) > FAR * min(1.0, float(known.min())):
        most = int(size.argmax())
        say(
            f"warning: features have very different magnitudes ('{names[most]}' reaches {float(size[most]):.4g}, another only"
            f" {float(known.min()):.4g}), which hurts training: pass --scaling local or federated"
        )


def _listing(used: Mapping[str, Column]) -> str:
    """Return one line that lists the columns by kind."""
    groups = []
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
            groups.append(f"{kind} {', '.join(shown)}")
    return "; ".join(groups)

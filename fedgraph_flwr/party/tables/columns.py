"""Encoding of table columns as features: each column's kind, its statistics, and the model's input values.

    number, date   (t(v) − center) / spread, a date in days since 1970; t is the identity, or sign(v)·ln(1 + |v|) for `log`
    flag           0 or 1
    category       one feature per category, and one for all other values
    missing        `fill` (median of numbers and dates, mode of flags and categories), and an indicator feature

For center and spread, `standard` uses mean and standard deviation, `robust` uses median and interquartile range, as
scikit-learn's StandardScaler and RobustScaler do. The schema stores the statistics as numbers.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.preprocess import FALSE, NOTHING, TRUE, absent, as_words, encode, moved, read_values, wrong_rows
from fedgraph_flwr.data.pyg import Features
from fedgraph_flwr.data.schema import Column, Schema, Types, feature_names
from fedgraph_flwr.data.value_formats import (
    ANY,
    FORMATS,
    PLAIN,
    NumberFormat,
    date_format,
    date_like,
    date_shaped,
    distinct_numbers,
    looks_like,
    number_like,
    read_dates,
    readings,
    whole_date_format,
    whole_dates,
)
from fedgraph_flwr.errors import FedGraphError, sanitize, unknown
from fedgraph_flwr.party.tables.reading import Say, silent

SPLITS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}
"""Values of a split column, and the mask that each one selects."""

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


_NOTHING_AGREED = Schema((), {})


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
        time_format: format of the times of edges; "" if it is not known yet.
        rates: value of one unit of each currency, in the unit of amounts; empty: amounts have one currency.
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
    time_format: str = ""
    rates: Mapping[str, float] = field(default_factory=dict)
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
            raise conflict(f"--scaling {self.scaling}", f"scaling {agreed}", self.where)
        if self.scaling == "federated" and not agreed:
            raise FedGraphError("--scaling federated needs --schema FILE, as `fedgraph-flwr schema merge` writes it")
        return agreed or self.scaling or default

    @property
    def agreed(self) -> Schema:
        """The schema that the parties agreed on; one without columns if there is none."""
        return self.schema or _NOTHING_AGREED

    @property
    def undirected(self) -> bool:
        """Whether the schema says that each row of the edge table represents both directions."""
        return self.agreed.undirected

    @property
    def new_role(self) -> bool:
        """Whether the schema has no section of the party's role yet."""
        return bool(self.role) and self.role not in self.agreed.roles

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
            return self.agreed.roles
        by_kind = {
            kind: tuple(name for name, c in entries.items() if c.kind != "ignored" and name in names.get(kind, ()))
            for kind, entries in tables.items()
        }
        return {**self.agreed.roles, self.role: {kind: entries for kind, entries in by_kind.items() if entries}}

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
        columns = {name for names in tables.values() for name in names if name}
        typed = {f"{kind}.{name}" for kind, names in tables.items() for name in names}
        formats = {"decimal": self.decimals, "thousands": self.thousands, "date-format": self.date_formats}
        for option, given in (self.options | formats).items():
            for name in given:
                if name and name not in columns | typed:
                    raise unknown("column", name, columns, key_of(option, name))

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
    parts = {name: Written(kind, name, table[name], where, treatment) for name in names}
    agreed = columns(kind, parts, where, treatment)
    used = {name: column for name, column in agreed.items() if column.kind != "ignored"}
    missing = treatment.missing(kind, agreed, names)
    if treatment.schema:
        here = {name: column for name, column in used.items() if name not in missing}
        decimals = {parts[name].decimal for name, column in here.items() if column.kind == "number"} - {""}
        used |= {name: parts[name].by_schema(column, decimals) for name, column in here.items()}
    fitted, blocks, filled = dict(agreed), [np.zeros((len(table), 0), np.float32)], []
    for name, column in used.items():
        if name in missing:
            fitted[name] = fit(column, np.zeros(0, str if column.kind == "category" else float), scaling)
            blocks.append(np.zeros((len(table), len(feature_names({name: column}))), np.float32))
            blocks[-1][:, -1] = column.missing
            continue
        read = parts.pop(name).read(column)  # its texts are no longer needed
        _report_others(name, column, read, where, treatment)
        if scaling == "federated" and "fill" not in column.statistics:
            raise FedGraphError(f"{treatment.where} has no statistics of column '{name}': create it by `schema merge`")
        fitted[name] = fit(column, read, scaling)
        blocks.append(encode(read, fitted[name].to_dict()).astype(np.float32))
        if gaps := int(absent(read).sum()):
            mark = "" if column.missing else ", without an indicator, as in the schema"
            filled.append(f"{name} {gaps} of {len(read)}{mark}")
    _report(used, missing, filled, where, treatment)
    x = torch.from_numpy(np.concatenate(blocks, axis=1))
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


def columns(kind: str, parts: "Mapping[str, Written]", where: str, treatment: Treatment) -> dict[str, Column]:
    """Return the columns of one node table: the schema's in its order, or those detected.

    Raises:
        FedGraphError: a column of the schema is missing, or an option contradicts the schema.
    """
    schema, agreed, names = treatment.schema, dict(treatment.agreed.nodes.get(kind, {})), [*parts]
    fresh = [name for name in names if name not in agreed] if schema is None or treatment.new_role else []
    new_columns = _detected([parts[name] for name in fresh], treatment)
    agreed |= {name: column for name, (column, _) in new_columns.items()}
    dropped = [f"{name} ({why})" for name, (_, why) in new_columns.items() if why]
    if schema:
        missing = treatment.missing(kind, agreed, names)
        wanted = _wanted(kind, {n: c for n, c in agreed.items() if n not in missing}, names, where, treatment)
        why = {name: "not in the schema" if name not in agreed else "ignored by the schema" for name in names}
        dropped = [f"{name} ({why[name]})" for name in names if name not in wanted]
    if dropped:
        treatment.say(f"{where}: ignored: {', '.join(dropped)}")
    return agreed


def _detected(parts: "Sequence[Written]", treatment: Treatment) -> dict[str, tuple[Column, str]]:
    """Return columns by their values and the user's options, and why each is ignored ("" if it is used).

    A column gets an indicator of missing values if parties have roles: others do not have it.
    """
    decimals = {part.decimal for part in parts} - {""}
    pairs = {part.name: part.detected(decimals) for part in parts}
    if not treatment.role:
        return pairs
    return {name: (replace(column, missing=column.kind != "ignored"), why) for name, (column, why) in pairs.items()}


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
            known = f"of {treatment.where}; its columns are {', '.join(names)}"
            raise FedGraphError(f"{where} has no column '{name}' ({column.kind}) {known}")
        for option, options in treatment.options.items():
            its = getattr(column, option)
            if (given := treatment.option(options, kind, name)) not in ("", its):
                raise conflict(f"{key_of(option, name)}={given}", its or "none", treatment.where)
    if list(wanted) != (order := [name for name in names if name in wanted]):
        treatment.say(f"{where}: columns reordered as in {treatment.where} ({', '.join(order)} here)")
    return wanted


def key_of(option: str, name: str) -> str:
    """Return how a command line sets a value of a column: by a key of a party's file, if it has one."""
    return f"--{option} {name}" if option in ("unit", "decimal", "thousands") else f"{option.replace('-', '_')}s.{name}"


def conflict(option: str, value: str, schema: str) -> FedGraphError:
    """Return the error for an option that contradicts the file of a schema."""
    return FedGraphError(f"{option} conflicts with {value} in {schema}: leave the option out, or edit the schema")


@dataclass(frozen=True)
class Written:
    """Column as one table writes it, with the user's options for it.

    Attributes:
        type: type of the nodes or edges.
        name: name of the column.
        column: its values [N].
        where: the file, for errors.
        treatment: column options and schema.
    """

    type: str
    name: str
    column: Any
    where: str
    treatment: Treatment

    @property
    def here(self) -> str:
        """File and column, for errors."""
        return f"{self.where}: column '{self.name}'"

    def option(self, given: Mapping[str, str]) -> str:
        """Return the user's value for the column; "" if there is none."""
        return self.treatment.option(given, self.type, self.name)

    @cached_property
    def texts(self) -> list[str]:
        """Distinct values as text, without markers of missing values."""
        distinct = np.unique(as_words(self.column.drop_duplicates()))
        return [str(word) for word in distinct if word.strip().lower() not in NOTHING]

    @cached_property
    def accepted(self) -> list[NumberFormat] | None:
        """Formats of numbers that the user's options permit; None without an option."""
        return self.treatment.number_formats(self.type, self.name)

    @cached_property
    def plain(self) -> tuple[str, np.ndarray] | None:
        """The texts, one a line, and the numbers [N], if all texts are finite and like 1234.5 in no other format.

        A quick test of the usual column, without the distinct texts. None for other columns, and for 0 and 1 alone.
        """
        if self.column.dtype.kind in "biufM" or self.accepted is not None:
            return None
        cells, known = self.column.to_numpy(dtype=object), self.column.notna().to_numpy()
        numbers = PLAIN.read(cells)
        tried = numbers[known]
        if not np.isfinite(tried).all() or ((tried == 0) | (tried == 1)).all():
            return None
        lines = "\n".join(map(str, cells[known]))
        grouped = "." in lines and not re.search(r"\.(?!\d{3}$)", lines, re.MULTILINE)
        return None if grouped or re.search(r"[^\d.+\-eE\n]", lines) else (lines, numbers)

    @cached_property
    def forms(self) -> list[NumberFormat]:
        """Formats by which all texts are numbers."""
        return [PLAIN] if self.plain else readings(self.texts, FORMATS if self.accepted is None else self.accepted)

    @property
    def decimal(self) -> str:
        """Decimal separator if the values show it without doubt, which resolves ambiguous columns; "" otherwise."""
        if self.column.dtype.kind in "biufM" or self.option(self.treatment.kinds) not in ("", "number"):
            return ""
        if self.plain:
            return "." if "." in self.plain[0] else ""
        forms = self.forms
        sure = len(forms) == 1 and (forms[0].thousands in (",", ".") or forms[0].decimal in "".join(self.texts))
        return forms[0].decimal if sure else ""

    def detected(self, decimals: set[str]) -> tuple[Column, str]:
        """Return the column by its values and the user's options, and why it is ignored ("" if it is used)."""
        name, given, scale = self.name, self.option(self.treatment.kinds), self.option(self.treatment.scales)
        if (form := self.option(self.treatment.date_formats)) and given not in ("", "date"):
            raise FedGraphError(f"date_formats.{name}={form} conflicts with kinds.{name}={given}: leave one out")
        kind, detail = ("date", form) if form else (given, "")
        given = kind
        if not form and given in ("", "date", "number") and (given != "number" or self.column.dtype.kind not in "biuf"):
            kind, detail = self.kind(given, decimals)
        if given == "date" and kind != "date":
            raise FedGraphError(f"{self.here} has no dates such as 2026-01-31: pass date_formats.{name}='%d %b %Y'")
        if kind == "ignored":
            return Column("ignored"), detail or "by kinds"
        kind, detail = ("number", "") if given == "number" and kind != "number" else (kind, detail)
        if scale and kind not in ("number", "date"):
            fix = f"leave it out, or pass kinds.{name}=number"
            raise FedGraphError(f"{self.where}: scales.{name}={scale} has no effect on a {kind}: {fix}")
        form = detail if kind in ("date", "number") else ""
        spec = Column(kind, unit=self.option(self.treatment.units), scale=scale or "standard", format=form)
        read = self.read(spec)
        if kind == "category":
            spec = replace(spec, categories=frequent(counts(read), self.treatment.floor))
            if not spec.categories:
                return Column("ignored"), f"no value has {self.treatment.floor} rows"
        return replace(spec, missing=bool(absent(read).any())), ""

    def read(self, spec: Column) -> np.ndarray:
        """Return the `values` of the column."""
        return values(self.column, spec, self.name, self.where, self.plain and self.plain[1])

    def kind(self, given: str, decimals: set[str]) -> tuple[str, str]:
        """Return the kind of the column, and its format (date or number) or why it is ignored.

        Raises:
            FedGraphError: most of its values are numbers or dates, but not all, or two formats fit.
        """
        column, name = self.column, self.name
        if not given and name.startswith("Unnamed: "):  # as pandas names them, such as the row numbers of an index
            return "ignored", "has no name"
        if not len(column):
            return "number", ""
        if column.dtype.kind == "M":
            return "date", "ISO8601"
        if numeric := column.dtype.kind in "biuf":
            known = set(column.dropna().unique())
            if not known:
                return "ignored", "empty"
            if column.dtype.kind == "b" or known == {0, 1}:
                return "flag", ""
        if numeric or self.plain:
            return ("date", form) if (form := self.whole_date(given)) else ("number", "")
        low = {word.lower() for word in self.texts}
        if not low:
            return "ignored", "empty"
        if given != "number":
            if low <= TRUE | FALSE and (len(low) == 2 or not low <= {"0", "1"}):
                return "flag", ""
            if "train" in low and low <= SPLITS.keys():
                return "ignored", f"looks like a split: pass columns.split={name} to use it"
        if form := self.whole_date(given):
            return "date", form
        if (plain := self.number_format(decimals)) is not None:
            return "number", str(plain)
        number, date = number_like(self.texts), date_like(self.texts)
        if number.mean() > 0.5:
            raise self.unlike(number)
        if date.all():
            return "date", date_format(self.texts, name, self.where)
        if (date | date_shaped(self.texts)).mean() > 0.5:
            wrong = self.texts[int((~date).argmax())]
            right = self.texts[int(date.argmax())] if date.any() else "2026-01-31"
            raise FedGraphError(
                f"{self.here} has {self.at(wrong)}, and dates such as '{right}': correct the value, or pass"
                f" date_formats.{name}=FORMAT (several separated by |), or kinds.{name}=ignored"
            )
        return self.words()

    def whole_date(self, given: str) -> str:
        """Return the format by which numbers are dates, if they are not given as numbers; "" if they are none.

        Raises:
            FedGraphError: two formats of eight digits fit, or most of the values are dates, but not all.
        """
        if given == "number" or self.accepted is not None:
            return ""
        if self.column.dtype.kind not in "iuf":
            texts = self.plain[0].split("\n", 20) if self.plain else self.texts
            if not all(word.strip().isdigit() for word in texts[:20]):  # a quick test
                return ""
        texts_or_numbers = self.column if self.column.dtype.kind in "iuf" else self.texts
        numbers = distinct_numbers(self.plain[1] if self.plain else texts_or_numbers)
        if not numbers.size or not np.isfinite(numbers).all():
            return ""
        short, last = whole_dates(numbers, times=False)[0], numbers[-1]
        if last < 10**6 and short != ["%Y%m"]:  # six digits are often no dates
            if short:
                formats = " or ".join(f"date_formats.{self.name}={form}" for form in short)
                self.treatment.warn(
                    f"{self.here} is read as a number; values such as {numbers[0]:.15g} may be dates: pass {formats},"
                    f" or kinds.{self.name}=number"
                )
            return ""
        return whole_date_format(numbers, self.name, self.where, f"kinds.{self.name}=number", times=False)

    def words(self) -> tuple[str, str]:
        """Return the kind of a column of words: a category, or ignored with too many different values."""
        count, rows = len(self.texts), len(self.column)
        if count <= max(20, 0.5 * rows):
            return "category", ""
        what, alike = looks_like(self.texts)
        if alike:
            fix = "remove units from its values" if what == "numbers" else f"pass date_formats.{self.name}=FORMAT"
            self.treatment.warn(
                f"{self.here} is ignored, but {len(alike)} of its {count} different values look like {what}, such as"
                f" '{sanitize(alike[0], 40)}': {fix}, or pass kinds.{self.name}=ignored"
            )
        return "ignored", f"{count} different values in {rows} rows"

    def number_format(self, decimals: Collection[str] = ()) -> NumberFormat | None:
        """Return the format by which all texts are numbers; None if some text is not a number.

        Raises:
            FedGraphError: two formats fit, and neither the options nor the other columns decide.
        """
        forms = self.forms
        if len(forms) > 1 and len(fitting := [form for form in forms if form.decimal in decimals]) == 1:
            forms = fitting
        if len(forms) > 1:
            text = next(t for t in self.texts if len({float(form.read([t])[0]) for form in forms}) > 1)
            meant = " or ".join(f"{form.read([text])[0]:.15g} (--decimal {self.name}={form.decimal})" for form in forms)
            raise FedGraphError(f"{self.here} has '{text}', which can mean {meant}: pass one of these options")
        return forms[0] if forms else None

    def at(self, word: str) -> str:
        """Return a value and its first row, for errors."""
        return f"'{sanitize(word, 40)}' in row {first_row(as_words(self.column) == word)}"

    def unlike(self, number: np.ndarray) -> FedGraphError:
        """Return the error for a column whose texts are mostly numbers [N], but not all, or not in one format."""
        remedy = f"correct the value, or pass kinds.{self.name}=category or kinds.{self.name}=ignored"
        if not number.all():
            wrong = self.texts[int((~number).argmax())]
            what = f"features must be finite numbers; column '{self.name}' has {self.at(wrong)}"
            return FedGraphError(f"{self.where}: {what}: {remedy}")
        forms = [max(FORMATS, key=lambda form: int((~np.isnan(form.read(self.texts))).sum()))]
        if self.accepted is not None:
            forms = list(self.accepted)
        unread = (word for word in self.texts if all(np.isnan(form.read([word])[0]) for form in forms))
        wrong = next(unread, max(self.texts, key=len))  # else a long number without the thousands separator of others
        why = f"like '{str(forms[0]) or '1234.5'}'" if self.accepted is None else "by its --decimal and --thousands"
        fix = f"pass --decimal {self.name}=SIGN or --thousands {self.name}=SIGN, or {remedy}"
        return FedGraphError(f"{self.here} has {self.at(wrong)}, which is not a number {why}: {fix}")

    def by_schema(self, column: Column, decimals: set[str]) -> Column:
        """Return a column of the schema with the format that this table uses.

        The user's options take precedence, then the schema's format. The format is detected if the schema's does not fit, or
        if the table's other columns use another decimal separator.

        Raises:
            FedGraphError: the options do not fit the column, or two formats fit.
        """
        form = self.option(self.treatment.date_formats)
        if form and column.kind != "date":
            raise conflict(f"date_formats.{self.name}={form}", f"kind {column.kind}", self.treatment.where)
        if self.plain and column.kind == "number" and not column.format:
            return column
        if self.column.dtype.kind in "biufM" or column.kind not in ("number", "date") or not self.texts:
            return replace(column, format=form) if form else column
        if column.kind == "date":
            if not form and read_dates(self.texts, column.format).isna().any():
                form = date_format(self.texts, self.name, self.where)
            return replace(column, format=form) if form else column
        stored, texts = NumberFormat.parse(column.format), self.texts
        doubtful = column.format == ANY or (decimals and stored.decimal not in decimals and len(readings(texts)) > 1)
        if self.accepted is None and not doubtful and not np.isnan(stored.read(texts)).any():
            return column
        number_form = self.number_format(decimals)
        if number_form is None and self.accepted is not None:
            raise self.unlike(np.ones(len(texts), bool))
        return column if number_form is None else replace(column, format=str(number_form))


MAX_NAMED = 5
"""Maximum number of values named in a line about rows that become "other"."""


def named_counts(count: Mapping[str, int]) -> str:
    """Return the most frequent values with their row counts, truncated and sanitized."""
    often = sorted(count, key=lambda word: (-count[word], word))
    return first_of([f"'{sanitize(word, 30)}' {count[word]}" for word in often])


def first_of(texts: Sequence[str], most: int = MAX_NAMED) -> str:
    """Return the first texts, and how many more there are."""
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def _report_others(name: str, column: Column, read: np.ndarray, where: str, treatment: Treatment) -> None:
    """Report the values of a category that become "other", as a warning if the schema does not list them."""
    if column.kind != "category":
        return
    unlisted = {word: count for word, count in counts(read).items() if word not in column.categories}
    if not unlisted:
        return
    rows = f"{where}: {sum(unlisted.values())} of {int((read != '').sum())} rows have"
    become = f"and become 'other': {named_counts(unlisted)}"
    if treatment.schema is None:
        treatment.say(f"{rows} a rare value of '{name}' (fewer than {treatment.floor} rows) {become}")
    else:
        schema, listed = treatment.where or "the schema", first_of([sanitize(word, 30) for word in column.categories])
        treatment.warn(f"{rows} a value of '{name}' that {schema} does not list {become}; it lists {listed}")


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


def rates_of(given: Mapping[str, str]) -> dict[str, float]:
    """Return the rates of currencies as numbers.

    Raises:
        FedGraphError: one is not a positive number.
    """
    rates = {}
    for code, text in given.items():
        try:
            rates[code] = float(text)
        except ValueError:
            rates[code] = 0.0
        if not (code and 0 < rates[code] < float("inf")):
            raise FedGraphError(f"rates {code}={text}: expected the value of one unit, above 0, such as USD=0.92")
    return rates


def values(column: Any, spec: Column, name: str, where: str, plain: np.ndarray | None = None) -> np.ndarray:
    """Return a column's values [N]: float64 with NaN where missing, or for a category text with "" where missing.

    Args:
        column: the column.
        spec: its kind and format.
        name: its name, for errors.
        where: its file, for errors.
        plain: the numbers [N] that its texts are in the plain format, if they were read before.

    Raises:
        FedGraphError: a value does not match the kind; the message names the first row.
    """
    if plain is not None and spec.kind == "number" and not spec.format:
        known = plain
    else:
        try:
            known = read_values(column, spec.to_dict())
        except ValueError as error:  # a format of dates
            raise FedGraphError(str(error)) from error
    if spec.kind != "category" and (wrong := wrong_rows(column, known)).size:
        kind, row = {"number": "finite numbers", "date": "dates", "flag": "yes or no"}[spec.kind], wrong[0]
        value = sanitize(column.iloc[row], 40)
        where_to = " to `import`, or set it in the party's file (--party-file)"
        fix = f": pass date_formats.{name}=FORMAT{where_to}" if spec.kind == "date" else ""
        fix = ": write it so, or leave the cell empty if it is unknown" if spec.kind == "flag" else fix
        if np.abs(known[row]) > 0:  # read, but infinite or too large
            largest = np.finfo(np.float32).max
            fix = f": correct it, or leave the cell empty if it is unknown (the largest number is {largest:.2g})"
        elif spec.kind == "number" and number_like([value]).any():
            fix = f": pass --decimal {name}=SIGN or --thousands {name}=SIGN"
        raise FedGraphError(f"{where}: features must be {kind}; column '{name}' has '{value}' in row {row + 1}{fix}")
    return known


def fit(column: Column, read: np.ndarray, scaling: str) -> Column:
    """Return the column with its statistics; missing ones are computed from the values ``read`` [N]."""
    if column.kind in ("number", "date") and scaling == "none":
        column = replace(column, scale="none")
    known = read[~absent(read)]
    statistics: dict[str, float | str]
    if column.kind == "category":
        count = [int((known == category).sum()) for category in column.categories]
        statistics = {"fill": column.categories[int(np.argmax(count))] if sum(count) else ""}
    elif column.kind == "flag":
        statistics = {"fill": float(known.size > 0 and known.mean() > 0.5)}
    elif known.size == 0:
        statistics = {"fill": 0.0, "center": 0.0, "spread": 1.0}
    else:
        shifted = moved(column.scale, known)
        quartiles = np.percentile(shifted, [25, 50, 75]) if column.scale == "robust" else ()
        scale = scale_of(column, quartiles, shifted.mean(), shifted.std())
        statistics = {"fill": float(np.median(known)), **scale}
    return replace(column, statistics=statistics | dict(column.statistics))


def scale_of(column: Column, quartiles: Sequence[float], mean: float, deviation: float) -> dict[str, float]:
    """Return center and spread by the column's scale as statistics; values equal up to rounding get a spread of 1."""
    if column.scale == "none":
        return {"center": 0.0, "spread": 1.0}
    center, spread = (quartiles[1], quartiles[2] - quartiles[0]) if column.scale == "robust" else (mean, deviation)
    return {"center": float(center), "spread": float(spread) if spread > 1e-12 * max(1.0, abs(center)) else 1.0}


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
            groups.append(f"{kind} {first_of(of_kind, 12)}")
    return "; ".join(groups)

"""Reasons in the units of the tables: "the payer received € 12,400 from 3 accounts within 2 days, usually € 300".

A model reads transformed values. `Wording` turns them back: columns of the recipe by their form, columns of tables by the
schema's statistics. "Usually" is the median over the party's own stored items.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data.features import ALIKE, DAY, NEVER, Form, Recipe
from fedgraph_flwr.data.own_columns import recipe_of
from fedgraph_flwr.data.payment_names import Names
from fedgraph_flwr.data.schema import EDGE, NODE, Column
from fedgraph_flwr.errors import counted

ENDS = ("source ", "target ")
ROLES = {"source": "the payer", "target": "the receiver"}
VERBS = {"out": "paid", "in": "received"}
TOWARDS = {"out": "to", "in": "from"}

OF_EDGES = ("largest of edges out: ", "largest of edges in: ")
"""What the names of columns of an account start with that are the largest ones of its edges."""

OTHERS = " of other nodes"
"""What the names of sums over other nodes end with."""

LEAST_HOURS = 1e-3
"""Hours below which a time is 0: inputs are float32."""

LEAST = 1e-6
"""Relative size below which a value that is scaled back is 0: inputs are float32."""


@dataclass(frozen=True)
class Wording:
    """What columns of a model mean.

    Attributes:
        forms: transform of each column that the party computes from its records, of edges and of nodes.
        columns: columns of tables by their name, of edges and of nodes.
        usual: median input of the own items, by name of the model's column.
        edges: whether the items are edges.
        currency: unit of amounts; "" if unknown.
        dated: whether times are those of tables.
    """

    forms: tuple[Mapping[str, Form], Mapping[str, Form]] = ({}, {})
    columns: tuple[Mapping[str, Column], Mapping[str, Column]] = ({}, {})
    usual: Mapping[str, float] = field(default_factory=dict)
    edges: bool = False
    currency: str = ""
    dated: bool = False

    def joined(self, other: "Wording") -> "Wording":
        """Return it with the usual values of another model of the same party."""
        return replace(self, usual={**other.usual, **self.usual})

    def text(self, name: str, values: Mapping[str, float]) -> str:
        """Return what a column of an item says.

        Args:
            name: name of the model's column.
            values: inputs of the item by name of the column; NaN where unknown.
        """
        value, usual = values.get(name, np.nan), self.usual.get(name, np.nan)
        if value != value:
            prefix, end = _prefix(name)
            named = f"{ROLES[end]}'s {name.removeprefix(prefix)}" if prefix in ENDS else name
            return name if name.endswith(OTHERS) else f"{named} is unknown"
        for of in OF_EDGES:
            if name.startswith(of):
                base = name.removeprefix(of)
                return of + replace(self, usual={base: usual}, edges=True).text(base, {base: value})
        prefix, of_end = _prefix(name)
        base = name.removeprefix(prefix)
        kind = int(not (self.edges and not prefix))
        if (form := self.forms[kind].get(base)) is not None and not prefix.startswith("mean"):
            said = self._of_recipe(base, of_end, form, value, usual, values)
            return f"{ROLES[of_end]}: {said}" if of_end and _window(base)[0] in _OF_ACCOUNTS else said
        columns = self.columns[kind]
        stem = base if base in columns else base.partition("=")[0]
        mean = prefix.startswith("mean")
        if (
            not mean and values.get(f"{prefix}{stem} missing", 0.0) > 0.5
        ):  # the model reads a value that stands for missing ones
            written: str | None = f"{stem} is missing"
        else:
            written = _of_table(base, columns, value, usual, mean)
        if written is not None:
            return f"{prefix}{written}"
        return f"{name} = {value:.4g}"

    def money(self, value: float) -> str:
        """Return an amount with its currency, if that is known."""
        return f"{self.currency} {_number(value)}".strip()

    def _of_recipe(
        self, base: str, end: str, form: Form, value: float, usual: float, values: Mapping[str, float]
    ) -> str:
        """Return what a column of the recipe says; of a sum with the number of accounts, if the item has it."""
        who = ROLES.get(end, "" if self.edges else "the account")
        template, kind = _phrase(base, who)
        write: Callable[[float], str] = self.money if kind == "money" else _WRITERS[kind]
        said = template.format(write(raw_value(form, value)))
        if base.startswith("sum_") and " at most" not in said:  # else they may be of other days
            partners = base.replace("sum_", "partners_", 1)
            key = f"{end} {partners}" if end else partners
            count = values.get(key, np.nan)
            shape = self.forms[int(not (self.edges and not end))].get(partners)
            if count == count and shape is not None:
                way = TOWARDS[base.split("_")[1]]
                amount = self.money(raw_value(form, value))
                said = said.replace(amount, f"{amount} {way} {counted(round(raw_value(shape, count)), 'account')}", 1)
        return said if kind == "flag" else said + _usually(lambda number: write(raw_value(form, number)), value, usual)


def _usually(write: Callable[[float], str], value: float, usual: float) -> str:
    """Return what is usual as an addition to a text; "" if it is unknown, or written like the value."""
    normal = "" if usual != usual else write(usual)
    return f", usually {normal}" if normal not in ("", write(value)) else ""


def _of_table(base: str, columns: Mapping[str, Column], value: float, usual: float, mean: bool) -> str | None:
    """Return what a column of a table says, or a mean of it: of flags, categories and missing values a share.

    None for a column that the schema does not have, and for a mean of logarithms.
    """
    name, _, category = base.partition("=")
    gap = base.removesuffix(" missing")
    if gap != base and gap in columns:
        what, said = f"{gap} is missing", f"{gap} is {'missing' if value > 0.5 else 'known'}"
    elif category and name in columns and columns[name].kind == "category":
        what, said = f"{name} is {category}", f"{name} is {'' if value > 0.5 else 'not '}{category}"
    elif (column := columns.get(base)) is None or column.kind == "category" or (mean and column.scale == "log"):
        return None
    elif mean and column.kind == "flag":
        what = f"{base} is yes"
    else:
        write = partial(_written, column)
        return f"{base} {write(value)}{_usually(write, value, usual)}"
    return f"{what}: {_share(value)}{_usually(_share, value, usual)}" if mean else said


def _prefix(name: str) -> tuple[str, str]:
    """Return the part of a column's name before that of the table or the recipe, and the end that it names."""
    for end in ENDS:
        for start in (end, f"mean of {end.strip()}s {ENDS[0]}", f"mean of {end.strip()}s {ENDS[1]}"):
            if name.startswith(start):
                return start, end.strip()
    for start in ("mean of sources ", "mean of targets "):
        if name.startswith(start):
            return start, ""
    return "", ""


def forms_of(predictor: Any, graph: Any) -> tuple[dict[str, Form], dict[str, Form]]:
    """Return the transforms of columns that a party computes from its records, or a generator did, of edges and of nodes."""
    recipe: Recipe | None = recipe_of(graph)
    built_in: Names = predictor.built_in
    recipe_columns = (recipe.edge_columns, recipe.node_columns) if recipe else ([], [])
    of_edges, of_nodes = (
        [*first, *more] for first, more in zip((built_in.edges, built_in.nodes), recipe_columns, strict=True)
    )
    return {c.name: c.form for c in of_edges}, {c.name: c.form for c in of_nodes}


def raw_value(form: Form, value: float) -> float:
    """Return the value before the transform of a column of the recipe."""
    number = value * form.scale + form.center
    return float(np.expm1(min(number, 700.0))) + form.start if form.log else float(number)


def _written(column: Column, value: float) -> str:
    """Return the value of a table's column before scaling, as text."""
    if column.kind == "flag":
        return "yes" if value > 0.5 else "no"
    center, spread = (float(column.statistics.get(key, low)) for key, low in (("center", 0.0), ("spread", 1.0)))
    raw, least = value * spread + center, LEAST
    if column.scale == "standard":
        least *= abs(center) + abs(spread)
    if column.scale == "log":
        raw = float(np.sign(raw) * np.expm1(min(abs(raw), 700.0)))
    if column.kind == "date":
        return str(np.datetime64(round(raw), "D"))
    return f"{_number(raw, least)} {column.unit}".strip()


def _number(value: float, least: float = 0.005) -> str:
    """Return a number with separators of thousands: whole from 100 on, else with two decimals, or two digits below 0.1.

    Args:
        value: the number.
        least: size below which it is 0.
    """
    if abs(value) >= 99.995:
        return f"{value:,.0f}"
    if abs(value) < least:
        return "0"
    if abs(value) < 0.095:
        return f"{value:.2g}"
    return f"{value:.2f}".removesuffix(".00")


def _count(value: float) -> str:
    return f"{max(round(value), 0):,}"


def _duration(seconds: float) -> str:
    """Return seconds as days or hours; of no earlier record as "never"."""
    if seconds >= 0.99 * NEVER:
        return "never"
    seconds = max(seconds, 0.0) if seconds > 0.5 else 0.0
    number, unit = (seconds / DAY, "day") if seconds >= DAY else (seconds / 3600, "hour")
    return f"{number:.3g} {unit}{'s' * (f'{number:.3g}' != '1')}"


def _share(value: float) -> str:
    return f"{min(max(value, 0.0), 1.0):.0%}"


def _gap(value: float) -> str:
    """Return a difference of logarithms, in units of `ALIKE`, as a percentage of the larger amount."""
    return "none is alike" if value >= 1 else f"{1 - np.exp(-max(value, 0.0) * ALIKE):.1%}"


_WRITERS: dict[str, Callable[[float], str]] = {
    "count": _count,
    "seconds": _duration,
    "hours": lambda value: f"{value if value > LEAST_HOURS else 0:.3g} hours",
    "share": _share,
    "gap": _gap,
    "steps": _count,
    "flag": lambda value: "" if value > 0.5 else "not ",
}

_PHRASES = {
    "amount": ("amount {}", "money"),
    "log amount": ("amount {}", "money"),
    "port_in": ("payers that paid the receiver before the payer first did: {}", "count"),
    "port_out": ("receivers that the payer paid before it first paid this one: {}", "count"),
    "pair_before": ("earlier payments from the payer to the receiver: {}", "count"),
    "back_before": ("earlier payments from the receiver to the payer: {}", "count"),
    "flow_out_count": ("payments of a like amount that the receiver makes on that day: {}", "count"),
    "flow_out_kept": ("payments of a like amount, not smaller, that the receiver makes on that day: {}", "count"),
    "flow_out_gap": ("difference to the closest amount that the receiver pays on that day: {}", "gap"),
    "flow_in_count": ("payments of a like amount that the payer received{}: {{}}", "count"),
    "flow_in_kept": ("payments of a like amount, not smaller, that the payer received{}: {{}}", "count"),
    "flow_in_gap": ("difference to the closest amount that the payer received{}: {{}}", "gap"),
    "flow_in_hours": ("time since the payer received the closest amount{}: {{}}", "hours"),
    "flow_in_depth": ("payments of like amounts in a row that lead to this one{}: {{}}", "steps"),
    "hop2_in": ("payments to those who paid the payer{}: {{}}", "count"),
    "hop2_out": ("payments by those whom the receiver paid{}: {{}}", "count"),
    "common": ("accounts between payer and receiver{}: {{}}", "count"),
}
"""Phrase of a column of payments, and how its value is written; ``{}`` of the first format is the window."""

_OF_ACCOUNTS = {
    "n_before": ("most payments received{} before one that it made: {{}}", "count"),
    "back": ("share of payments to accounts that had paid it before: {}", "share"),
    "active": ("time from its first to its last payment: {}", "seconds"),
    "common": ("most accounts between it and a receiver{}: {{}}", "count"),
    "flow_count": ("pairs of a received and a later paid payment{}: {{}}", "count"),
    "flow_alike": ("pairs of a received and a later paid payment of like amounts{}: {{}}", "count"),
    "flow_share": ("share of such pairs with like amounts{}: {{}}", "share"),
    "flow_kept": ("payments of at most a received like amount{}: {{}}", "count"),
    "flow_out": ("share of payments out that follow a like amount in{}: {{}}", "share"),
    "flow_in": ("share of payments in that a like amount out follows{}: {{}}", "share"),
    "flow_sum": ("share of the money out that follows a like amount in{}: {{}}", "share"),
    "flow_chain": ("payments that pass a like amount on, and that the receiver passes on{}: {{}}", "count"),
    "flow_depth": ("most like payments in a row through the account{}: {{}}", "steps"),
    "flow_first": ("most like payments in a row after one that it made{}: {{}}", "steps"),
    "flow_last": ("most like payments in a row before one that it received{}: {{}}", "steps"),
    "flow_gap": ("smallest difference between an amount in and one out{}: {{}}", "gap"),
    "flow_hours": ("time between the closest amounts in and out{}: {{}}", "hours"),
}
"""The same of columns of accounts."""


def _phrase(base: str, who: str) -> tuple[str, str]:
    """Return the phrase of a column of the recipe with a place for its value, and how that is written."""
    stem, window = _window(base)
    if "=" in base:
        return base.replace("=", " is {}", 1), "flag"
    if match := re.fullmatch(r"since_(out|in)_(source|target)", base):
        return f"{ROLES[match[2]]} last {VERBS[match[1]]} {{}} before", "seconds"
    if match := re.fullmatch(r"(n|sum|partners|largest|mean|elsewhere|hop2)_(out|in)(?:_(source|target))?", stem):
        what, way, end = match.groups()
        if end or who:
            named, most = ROLES.get(end or "", who), " at most" if not end and window else ""
            return _of_way(what, way, f"{named} {VERBS[way]}", most, window)
    known = _PHRASES if not who else _OF_ACCOUNTS
    if stem in known:
        template, kind = known[stem]
        return (template.format(window) if window or "{{}}" in template else template), kind
    return f"{base}: {{}}", "count"


def _of_way(what: str, way: str, start: str, most: str, window: str) -> tuple[str, str]:
    """Return the phrase of what an account paid or received."""
    to = TOWARDS[way]
    return {
        "n": (f"{start}{most} {{}} payments{window}", "count"),
        "sum": (f"{start}{most} {{}}{window}", "money"),
        "partners": (f"{start} {to}{most} {{}} accounts{window}", "count"),
        "largest": (f"{start} {{}} in its largest payment", "money"),
        "mean": (f"{start} {{}} on average", "money"),
        "elsewhere": (f"{start} {{}} of its payments {to} other banks", "share"),
        "hop2": (
            f"{start} {to} accounts with{most} {{}} payments of their own{window}"
            if window
            else f"{start} {to} accounts that {VERBS[way]} {to} {{}} accounts in all",
            "count",
        ),
    }[what]


def _window(base: str) -> tuple[str, str]:
    """Return a column's name without its window, and the window as text."""
    if not (match := re.fullmatch(r"(.+)_([\d.e+-]+)([dh])", base)):
        return base, ""
    unit = {"d": "day", "h": "hour"}[match[3]]
    return match[1], f" within {match[2]} {unit}{'s' * (match[2] != '1')}"


def wording(predictor: Any, graph: Any, columns: list[str], inputs: NDArray[Any]) -> Wording:
    """Return the wording of a model's columns.

    Args:
        predictor: the party's model.
        graph: the party's stored graph.
        columns: names of the model's columns [F].
        inputs: of the own stored items [V, F].
    """
    spec = predictor.input_spec
    known = ~np.isnan(inputs).all(axis=0) if len(inputs) else np.zeros(len(columns), dtype=bool)
    medians = np.full(len(columns), np.nan)
    if known.any():
        medians[known] = np.nanmedian(inputs[:, known], axis=0)
    of_amounts = spec.columns(EDGE).get(spec.tables.amount or "amount")
    return Wording(
        forms=forms_of(predictor, graph),
        columns=(spec.columns(EDGE), spec.columns(NODE)),
        usual=dict(zip(columns, medians.tolist(), strict=True)),
        edges=bool(predictor.predicts_edges),
        currency=spec.tables.currency or (of_amounts.unit if of_amounts else ""),
        dated=spec.schema is not None,
    )

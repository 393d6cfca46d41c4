"""What a reader of alerts needs next to a score: amount and banks of an alert, its case, and the payments around it.

case         alerts that share an account, directly or by further alerts; each account is a case
money's path payments into the payer before an alert, and out of the receiver after it, within `WINDOW` days and known by
             the end of the day, those of the closest amounts first
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from fedgraph_flwr.data.cleaning import components
from fedgraph_flwr.data.features import DAY
from fedgraph_flwr.data.schema import EDGE, split_names
from fedgraph_flwr.errors import counted, sanitize
from fedgraph_flwr.party.tables.columns import Treatment, as_words
from fedgraph_flwr.party.tables.edges import amounts_of, edge_times
from fedgraph_flwr.party.tables.roles import Columns

KNOWN = "known"
"""Key of `NewNodes.tables`: all rows of a book that are known."""

WINDOW, SHOWN = 7, 3
"""Days around an alert, and payments on each side of it."""


@dataclass(frozen=True)
class Payments:
    """Rows of an edge table, as a reader of alerts reads them.

    Attributes:
        edge: ids [E].
        source: payers [E]; likewise ``target``.
        banks: parties of payers and receivers, "" without columns of parties [2, E].
        amount: in units of the table, NaN where unknown [E].
        time: in seconds, -1 where unknown [E].
    """

    edge: NDArray[Any]
    source: NDArray[Any]
    target: NDArray[Any]
    banks: tuple[NDArray[Any], NDArray[Any]]
    amount: NDArray[np.float64]
    time: NDArray[np.int64]

    @classmethod
    def of(cls, table: Any, columns: Columns, treatment: Treatment, edge: NDArray[Any] | None = None) -> "Payments":
        """Read rows; ``edge`` has their ids, if the table has no column of ids."""
        size = len(table)
        words = {name: as_words(table[name]) for name in (columns.source, columns.target)}
        parties = [name for name in split_names(columns.party_columns) if name in table.columns]
        banks = [as_words(table[name]) for name in parties] if len(parties) == 2 else [np.full(size, "")] * 2
        amount, time = np.full(size, np.nan), np.full(size, -1, dtype=np.int64)
        if columns.amount_column in table.columns and size:
            amount = amounts_of(table, columns.amount_column, "the tables", treatment) / 100
        if columns.time in table.columns and size:
            time = edge_times(table, columns.time, "the tables", treatment).numpy()
        if edge is None:
            edge = as_words(table[columns.edge_id]) if columns.edge_id in table.columns else np.arange(1, size + 1)
        ends = words[columns.source], words[columns.target]
        return cls(np.asarray(edge).astype(str), *ends, (banks[0], banks[1]), amount, time)

    def end(self, row: int, target: bool) -> str:
        """Return an account with its bank."""
        name, bank = str((self.target if target else self.source)[row]), str(self.banks[int(target)][row])
        return f"{name} ({bank})" if bank else name

    def around(self, row: int) -> tuple[list[int], list[int]]:
        """Return the rows into the payer before a payment, and those out of the receiver after it."""
        sides = (self.passing(row, into)[:SHOWN].tolist() for into in (True, False))
        first, second = (sorted(side, key=lambda place: (int(self.time[place]), place)) for side in sides)
        return first, second

    def passing(self, row: int, into: bool, days: float = WINDOW) -> NDArray[np.int64]:
        """Return the rows into the payer before a payment, or out of the receiver after it, the closest amount first."""
        ends = (self.target, self.source) if into else (self.source, self.target)
        passed = (self.time[row] - self.time) * (1 if into else -1)
        at = np.flatnonzero((ends[0] == ends[1][row]) & (passed >= 0) & (passed <= days * DAY))
        at = at[at != row]
        apart = np.abs(np.log(np.maximum(self.amount[at], 0.01)) - np.log(max(self.amount[row], 0.01)))
        return at[np.argsort(np.nan_to_num(apart), kind="stable")]


@dataclass(frozen=True)
class Around:
    """One payment among those that are known.

    Attributes:
        rows: the payments.
        row: its place among them.
        currency: unit of amounts; "" if unknown.
    """

    rows: Payments
    row: int
    currency: str = ""

    def money(self, place: int) -> str:
        """Return the amount of a payment; "a payment" if it is unknown."""
        amount = self.rows.amount[place]
        return f"{self.currency} {amount:,.2f}".strip() if amount == amount else "a payment"

    def out(self, place: int) -> str:
        """Return a payment as its payer sees it."""
        return f"{self.money(place)} out to {sanitize(self.rows.end(place, True), 60)}"

    def into(self, place: int) -> str:
        """Return a payment as its receiver sees it."""
        return f"{self.money(place)} in from {sanitize(self.rows.end(place, False), 60)}"

    def when(self, place: int) -> str:
        """Return how long before or after this payment another one is."""
        return self._apart(int(self.rows.time[place] - self.rows.time[self.row])).removesuffix(" as")

    def _apart(self, seconds: int) -> str:
        if not seconds:
            return "at the same time as" if (self.rows.time % DAY).any() else "on the same day as"
        return f"{_ago(abs(seconds))} {'after' if seconds > 0 else 'before'}"

    @property
    def path(self) -> str:
        """The closest payments before and after it, in words."""
        rows, parts = self.rows, []
        for places, say in zip(rows.around(self.row), (self.into, self.out), strict=True):
            gaps = [abs(rows.amount[place] - rows.amount[self.row]) for place in places]
            if gaps:
                best = places[int(np.argmin(np.nan_to_num(gaps)))]
                parts.append(f"{say(best)} {self.when(best)}")
        return "; ".join(parts)

    def of_column(self, name: str) -> str:
        """Return the payment that a column of this one's records speaks of, in words; "" if there is none."""
        rows, row = self.rows, self.row
        stem, days = name, float(WINDOW)
        if parts := re.fullmatch(r"(.+)_([\d.e+-]+)([dh])", name):
            stem, days = parts[1], float(parts[2]) / (1 if parts[3] == "d" else 24)
        if parts := re.fullmatch(r"flow_(in|out)_(?:gap|hours|count|kept|depth)", stem):
            into = parts[1] == "in"
            places = rows.passing(row, into, days)
            if not places.size:
                return ""
            first = int(places[0])
            phrase, other = (self.out, self.into) if into else (self.into, self.out)
            return f"{phrase(row)} {self._apart(int(rows.time[row] - rows.time[first]))} {other(first)}"
        if not (parts := re.fullmatch(r"(since|sum|n|partners|largest|mean)_(out|in)_(source|target)", stem)):
            return ""
        what, way, end = parts.groups()
        account = (rows.source, rows.target)[end == "target"][row]
        mask = ((rows.source, rows.target)[way == "in"] == account) & (rows.time <= rows.time[row])
        mask[row] = False
        if what != "since":
            mask &= rows.time >= rows.time[row] - days * DAY
        places = np.flatnonzero(mask)
        if not places.size:
            return ""
        best = int(places[np.argmax((rows.time if what == "since" else np.nan_to_num(rows.amount))[places])])
        largest = "" if what == "since" else "the largest: "
        return f"{largest}{(self.into if way == 'in' else self.out)(best)} {self.when(best)}"

    def of_payment(self, name: str) -> str:
        """Return another payment by its id, in words; "" if it is not known."""
        places = np.flatnonzero(self.rows.edge == name)
        if not places.size:
            return ""
        place = int(places[0])
        ends = [sanitize(self.rows.end(place, target), 60) for target in (False, True)]
        when = f", {self.when(place)}" if place != self.row else ""
        return f"{self.money(place)} from {ends[0]} to {ends[1]}{when}"


def payments_around(names: Iterable[str], inputs: Iterable[Any], treatment: Treatment) -> dict[str, Around]:
    """Return payments among those that were known then, by their ids.

    Args:
        names: the ids.
        inputs: predictor, graph, ids and tables of each day (`predict_command.Input`).
        treatment: formats of values.
    """
    payments, wanted = dict[str, Around](), {*names}
    for predictor, _, _, read in inputs:
        if read is None or EDGE not in read.tables:
            continue
        columns = Columns.of(predictor.input_spec.tables)
        table = read.tables.get(KNOWN, read.tables[EDGE])
        if columns.source not in table.columns or columns.target not in table.columns:
            continue
        rows = Payments.of(table, columns, treatment)
        places = {name: place for place, name in enumerate(rows.edge.tolist()) if name in wanted}
        payments |= {
            name: Around(rows, places[name], predictor.input_spec.tables.currency)
            for name in map(str, read.edge_ids)
            if name in places
        }
    return payments


def add_details(listed: Any, inputs: Sequence[tuple[str, Any]], treatment: Treatment) -> dict[str, Around]:
    """Give a table of alerts columns for amount, banks and case; return the payments around each alert, by its id.

    Args:
        listed: table of `alerts.alerts`, changed in place.
        inputs: by day, as of `payments_around`.
        treatment: formats of values.
    """
    listed.insert(1, "case", cases_of(listed))
    if "edge" not in listed:
        return {}
    payments = payments_around(listed["edge"].astype(str), (given for _, given in inputs), treatment)
    held = [payments.get(str(name)) for name in listed["edge"]]
    if any(held):
        place = listed.columns.get_loc("target") + 1
        listed.insert(place, "amount", [of.rows.amount[of.row] if of else np.nan for of in held])
        if any(of and of.rows.banks[0][of.row] for of in held):
            for number, name in enumerate(("bank of source", "bank of target")):
                listed.insert(
                    place + 1 + number, name, [str(of.rows.banks[number][of.row]) if of else "" for of in held]
                )
        listed["path"] = [of.path if of else "" for of in held]
    return payments


def cases_of(listed: Any) -> list[int]:
    """Return the case of each alert, numbered by the first alert."""
    import pandas as pd

    if "edge" not in listed or not len(listed):
        return list(range(1, len(listed) + 1))
    ends, _ = pd.factorize(np.concatenate([listed["source"].astype(str), listed["target"].astype(str)]))
    both = ends.reshape(2, -1)
    of_account = components(both, int(ends.max()) + 1)
    return (pd.factorize(of_account[both[0]])[0] + 1).tolist()


def _ago(seconds: int) -> str:
    """Return a duration as text."""
    if not seconds:
        return "at the same time"
    for size, unit in ((DAY, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            return counted(round(seconds / size), unit)
    return ""


def picture(of: Around) -> Markup:
    """Draw the money's path as a column of payments, which also fits a phone."""
    rows, row = of.rows, of.row
    before, after = rows.around(row)
    listed = [*((place, "in") for place in before), (row, "alert"), *((place, "out") for place in after)]
    height, parts = 62, []
    for number, (place, kind) in enumerate(listed):
        y = 8 + number * height
        colour = {"in": "#4269d0", "alert": "#d62728", "out": "#6cc5b0"}[kind]
        when = str(np.datetime64(int(rows.time[place]), "s")).replace("T", " ") if rows.time[place] >= 0 else ""
        when = when.removesuffix(" 00:00:00")
        ends = [sanitize(rows.end(place, target), 60) for target in (False, True)]
        weight = ' font-weight="bold"' if kind == "alert" else ""
        parts.append(
            f'<circle cx="10" cy="{y + 10}" r="6" fill="{colour}"/>'
            f'<text x="26" y="{y + 9}" font-size="12" fill="currentColor"{weight}>{escape(ends[0])}</text>'
            f'<text x="26" y="{y + 24}" font-size="12" fill="currentColor"{weight}>→ {escape(ends[1])}</text>'
            f'<text x="26" y="{y + 40}" font-size="12" fill="currentColor"{weight}>{escape(f"{of.money(place)}  {when}")}</text>'
        )
        if number:
            parts.append(f'<path d="M10 {y - height + 18} V{y + 2}" stroke="{colour}" stroke-width="2"/>')
    size = len(listed) * height + 4
    text = f"Payments into the payer, the alert, payments out of the receiver: {len(before)}, 1, {len(after)}"
    return Markup(
        f'<svg viewBox="0 0 340 {size}" style="width:100%;max-width:420px" role="img" aria-label="{text}">'
        f"{''.join(parts)}</svg>"
    )

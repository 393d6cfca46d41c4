"""What a desk needs beside a score: amount and banks of an alert, its case, and the payments around it.

case         alerts that share an account, directly or by further alerts; each account is a case
money's path payments into the payer before an alert, and out of the receiver after it, within `WINDOW` days and known by
             the end of the day, those of the closest amounts first
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from fedgraph_flwr.data.features import DAY
from fedgraph_flwr.data.schema import EDGE
from fedgraph_flwr.errors import sanitize
from fedgraph_flwr.party.tables.columns import Treatment, as_words
from fedgraph_flwr.party.tables.edges import amounts_of, edge_times
from fedgraph_flwr.party.tables.roles import Columns

KNOWN = "known"
"""Key of `NewNodes.tables`: all rows of a book that are known."""

WINDOW, SHOWN = 7, 3
"""Days around an alert, and payments on each side of it."""


@dataclass(frozen=True)
class Payments:
    """Rows of an edge table, as a desk reads them.

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
        parties = [name.strip() for name in columns.party_columns.split(",") if name.strip() in table.columns]
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
        time, amount = self.time[row], self.amount[row]
        apart = np.abs(np.log(np.maximum(self.amount, 0.01)) - np.log(max(amount, 0.01)))
        near = np.abs(self.time - time) <= WINDOW * DAY
        near[row] = False
        sides = []
        into = (self.target == self.source[row]) & (self.time <= time)
        out = (self.source == self.target[row]) & (self.time >= time)
        for mask in (into, out):
            at = np.flatnonzero(mask & near)
            best = at[np.argsort(np.nan_to_num(apart[at]), kind="stable")[:SHOWN]]
            sides.append(sorted(best.tolist(), key=lambda place: (int(self.time[place]), place)))
        return sides[0], sides[1]


def add_details(
    listed: Any, inputs: Sequence[tuple[str, Any]], treatment: Treatment
) -> dict[str, tuple[Payments, int]]:
    """Give a table of alerts columns for amount, banks and case; return the payments around each alert, by its id.

    Args:
        listed: table of `alerts.alerts`, changed in place.
        inputs: by day, predictor, graph, ids and tables (`predict_command.Input`).
        treatment: formats of values.
    """
    listed.insert(1, "case", _cases(listed))
    found: dict[str, tuple[Payments, int]] = {}
    if "edge" not in listed:
        return found
    wanted = {*listed["edge"].astype(str)}
    for _, (predictor, _, _, read) in inputs:
        if read is None or EDGE not in read.tables:
            continue
        columns = Columns.of(predictor.input_spec.tables)
        table = read.tables.get(KNOWN, read.tables[EDGE])
        if columns.source not in table.columns or columns.target not in table.columns:
            continue
        rows = Payments.of(table, columns, treatment)
        places = {name: place for place, name in enumerate(rows.edge.tolist()) if name in wanted}
        found |= {name: (rows, places[name]) for name in map(str, read.edge_ids) if name in places}
    held = [found.get(str(name)) for name in listed["edge"]]
    if any(held):
        place = listed.columns.get_loc("target") + 1
        listed.insert(place, "amount", [of[0].amount[of[1]] if of else np.nan for of in held])
        if any(of and of[0].banks[0][of[1]] for of in held):
            for number, name in enumerate(("bank of source", "bank of target")):
                listed.insert(place + 1 + number, name, [str(of[0].banks[number][of[1]]) if of else "" for of in held])
        listed["path"] = [path_text(*of) if of else "" for of in held]
    return found


def _cases(listed: Any) -> list[int]:
    """Return the case of each alert, numbered by the first alert."""
    import pandas as pd
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    if "edge" not in listed or not len(listed):
        return list(range(1, len(listed) + 1))
    ends, _ = pd.factorize(np.concatenate([listed["source"].astype(str), listed["target"].astype(str)]))
    half, size = len(listed), int(ends.max()) + 1
    links = coo_matrix((np.ones(half), (ends[:half], ends[half:])), shape=(size, size))
    of_account = connected_components(links, directed=False)[1]
    return (pd.factorize(of_account[ends[:half]])[0] + 1).tolist()


def _ago(seconds: int) -> str:
    """Return a duration as text."""
    if not seconds:
        return "at the same time"
    for size, unit in ((DAY, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            number = round(seconds / size)
            return f"{number} {unit}{'s' * (number != 1)}"
    return ""


def path_text(rows: Payments, row: int) -> str:
    """Return the closest payments before and after one, in words."""
    before, after = rows.around(row)
    parts = []
    for places, target, way in ((before, False, "in from"), (after, True, "out to")):
        best = min(places, key=lambda place: abs(rows.amount[place] - rows.amount[row]), default=None)
        if best is None:
            continue
        gap, side = _ago(abs(int(rows.time[row] - rows.time[best]))), "before" if not target else "after"
        when = gap if gap.startswith("at") else f"{gap} {side}"
        whole_days = not (rows.time % DAY).any()
        when = "the same day" if whole_days and gap.startswith("at") else when
        parts.append(f"{rows.amount[best]:,.2f} {way} {sanitize(rows.end(best, target), 60)} {when}")
    return "; ".join(parts)


def picture(rows: Payments, row: int, currency: str = "") -> Markup:
    """Draw the money's path as a column of payments, which also fits a phone."""
    before, after = rows.around(row)
    listed = [*((place, "in") for place in before), (row, "alert"), *((place, "out") for place in after)]
    height, parts = 46, []
    for number, (place, kind) in enumerate(listed):
        y = 8 + number * height
        colour = {"in": "#4269d0", "alert": "#d62728", "out": "#6cc5b0"}[kind]
        when = str(np.datetime64(int(rows.time[place]), "s")).replace("T", " ") if rows.time[place] >= 0 else ""
        when = when.removesuffix(" 00:00:00")
        money = f"{currency} {rows.amount[place]:,.2f}".strip() if rows.amount[place] == rows.amount[place] else ""
        ends = f"{sanitize(rows.end(place, False), 22)} → {sanitize(rows.end(place, True), 22)}"
        weight = ' font-weight="bold"' if kind == "alert" else ""
        parts.append(
            f'<circle cx="10" cy="{y + 10}" r="6" fill="{colour}"/>'
            f'<text x="26" y="{y + 9}" font-size="13" fill="currentColor"{weight}>{escape(ends)}</text>'
            f'<text x="26" y="{y + 26}" font-size="12" fill="currentColor"{weight}>{escape(f"{money}  {when}")}</text>'
        )
        if number:
            parts.append(f'<path d="M10 {y - height + 18} V{y + 2}" stroke="{colour}" stroke-width="2"/>')
    size = len(listed) * height + 4
    text = f"Payments into the payer, the alert, payments out of the receiver: {len(before)}, 1, {len(after)}"
    return Markup(
        f'<svg viewBox="0 0 340 {size}" style="width:100%;max-width:420px" role="img" aria-label="{text}">'
        f"{''.join(parts)}</svg>"
    )

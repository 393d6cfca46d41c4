"""What a party decided about items: a table with their ids and a column ``outcome``, true, false or open.

    edge,outcome              the list of `alerts --out` with one more column will do
    p17,true                  confirmed
    p23,false                 a false alert
    p31,open                  not decided, as an empty cell

`alerts --outcomes` compares the precision of decided alerts with the promised one. `import --outcomes` makes decisions the labels
(`with_outcomes`). Nobody looks at most items, so an item without a decision is unlabelled, not of the first class.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data.features import DAY
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.party.tables.columns import as_words
from fedgraph_flwr.party.tables.nodes import check_rows
from fedgraph_flwr.party.tables.parties import normal_ids
from fedgraph_flwr.party.tables.reading import read_table
from fedgraph_flwr.party.use.frames import FORMULA

OPEN, FALSE, TRUE = -1, 0, 1
STATES = {"true": TRUE, "false": FALSE, "open": OPEN, "": OPEN}
KEYS = ("edge", "id")
"""Columns that name an item: an edge by its id, or a node."""

ESCAPED = re.compile(f"^'(?={FORMULA})")
"""The ``'`` that keeps a spreadsheet from running an id (`without_formulas`)."""


@dataclass(frozen=True)
class Outcomes:
    """Decisions about alerts.

    Attributes:
        where: the file.
        key: one of `KEYS`.
        ids: id of each item [K].
        state: `TRUE`, `FALSE` or `OPEN`, int64 [K].
        score: score of each item, NaN where the file has none [K].
        models: models that the file names.
        ends: accounts at source and target of each edge, where the file has them [K].
    """

    where: str
    key: str
    ids: NDArray[Any]
    state: NDArray[np.int64]
    score: NDArray[np.float64]
    models: tuple[str, ...]
    ends: tuple[NDArray[Any], NDArray[Any]] | None = None

    @property
    def of_edges(self) -> bool:
        """Whether the items are edges."""
        return self.key == KEYS[0]


def read_outcomes(path: Path) -> Outcomes:
    """Read decisions about alerts.

    Raises:
        FedGraphError: a column or an id is missing, an outcome is not accepted, or an item is both true and false.
    """
    import pandas as pd

    table, where = read_table(path), str(path)
    key = next((name for name in KEYS if name in table.columns), "")
    if not key or "outcome" not in table.columns:
        listing = ", ".join(map(str, table.columns))
        raise FedGraphError(
            f"{where} needs a column edge (payments) or id (accounts), as `alerts --out` writes it, and a column outcome with"
            f" true, false or open; its columns are {listing}"
        )
    words = np.char.strip(np.char.lower(as_words(table["outcome"])))
    ids = _plain(table[key])
    check_rows(ids == "", table[key], where, "expected an id in each row")
    check_rows(~np.isin(words, list(STATES)), table["outcome"], where, "expected true, false or open")
    states = np.array([STATES[word] for word in words.tolist()], dtype=np.int64)
    kept = _once(ids, states, table[key], where)
    table, ids, states = table[kept], ids[kept], states[kept]
    score = pd.to_numeric(table["score"], errors="coerce").to_numpy(dtype=np.float64) if "score" in table else None
    models = np.unique(as_words(table["model"])) if "model" in table else np.zeros(0, str)
    return Outcomes(
        where,
        key,
        ids,
        states,
        np.full(len(ids), np.nan) if score is None else score,
        tuple(str(word) for word in models if word),
        (_plain(table["source"]), _plain(table["target"])) if {"source", "target"} <= {*table.columns} else None,
    )


def _once(ids: NDArray[Any], states: NDArray[np.int64], column: Any, where: str) -> NDArray[np.bool_]:
    """Return which rows count, bool [K]: of each item the first decided one, else the first.

    Raises:
        FedGraphError: an item is both true and false.
    """
    import pandas as pd

    rows = pd.DataFrame({"id": ids, "state": states})
    decided = rows[rows["state"] != OPEN]
    other = decided.groupby("id")["state"].transform("first") != decided["state"]
    wrong = np.zeros(len(rows), dtype=bool)
    wrong[decided.index[other]] = True
    check_rows(wrong, column, where, "which an earlier row decides otherwise: leave one decision")
    order = pd.concat([decided, rows[rows["state"] == OPEN]])
    kept = np.zeros(len(rows), dtype=bool)
    kept[order.index[~order["id"].duplicated()]] = True
    return kept


def _plain(column: Any) -> NDArray[Any]:
    """Return the words of a column without what `ESCAPED` matches."""
    return np.array([ESCAPED.sub("", word) for word in as_words(column).tolist()], dtype=str)


def with_outcomes(
    table: Any,
    columns: tuple[str, str],
    classes: Sequence[str],
    outcomes: Outcomes,
    where: str,
    say: Callable[[str], Any],
    time: NDArray[np.int64] | None = None,
    ends: tuple[str, str] | None = None,
) -> Any:
    """Return a table of items whose labels are the decisions.

    An item without a decision keeps a label of the second class, which somebody confirmed. It keeps one of the first class only
    if its day is before that of the first listed item, decided or open: later ones were not looked at, and are unlabelled.

    Args:
        table: one row per item.
        columns: its columns with ids and with labels; the second may be missing in the table.
        classes: names of the two classes.
        outcomes: the decisions.
        where: file of the table, for errors.
        say: receives a line with the numbers.
        time: seconds of each item [E]; None without times.
        ends: columns with source and target of edges, which must be those of the decisions.

    Raises:
        FedGraphError: there are not two classes, no item of the table is among the decisions, or they are of other edges.
    """
    import pandas as pd

    if len(classes) != 2:
        option = "edge_classes=" if outcomes.of_edges else "--classes "
        raise FedGraphError(
            f"--outcomes {outcomes.where} needs two classes, the confirmed one second, got {len(classes)}: pass {option}ok,fraud"
        )
    name, label = columns
    if name not in table.columns:
        option = "columns.edge_id" if outcomes.of_edges else "columns.id"
        raise FedGraphError(
            f"--outcomes {outcomes.where} names items by id, and {where} has no column '{name}' of ids: pass {option}=NAME"
        )
    place = pd.Index(outcomes.ids).get_indexer(as_words(table[name]))
    seen = place >= 0
    if not len(outcomes.ids):
        raise FedGraphError(f"--outcomes {outcomes.where} lists no items: leave it out")
    if not seen.any():
        example = sanitize(str(outcomes.ids[0]), 40)
        raise FedGraphError(
            f"{where}: column '{name}' has none of the {len(outcomes.ids)} items of --outcomes {outcomes.where}, such as"
            f" '{example}': pass the table that holds them"
        )
    if ends and outcomes.ends:
        _check_ends(table, (name, *ends), outcomes, place, where)
    state = np.where(seen, outcomes.state[place], OPEN)
    words = as_words(table[label]).astype(object) if label in table.columns else np.full(len(table), "", dtype=object)
    kept = ~seen & (words == classes[1])
    if time is not None:
        kept |= ~seen & (time // DAY < (time[seen] // DAY).min())
    dropped = int((~seen & ~kept & (words != "")).sum())
    words = np.where(state == TRUE, classes[1], np.where(state == FALSE, classes[0], np.where(kept, words, "")))
    say(
        f"{where}: labels of {int((state == TRUE).sum())} items are '{classes[1]}' and of {int((state == FALSE).sum())}"
        f" '{classes[0]}' by {outcomes.where}; {int((seen & (state == OPEN)).sum())} open ones and {dropped} that nobody decided"
        f" are unlabelled; {int((outcomes.state != OPEN).sum() - (state != OPEN).sum())} decisions name other items"
    )
    return table.assign(**{label: words})


def _check_ends(
    table: Any, columns: tuple[str, str, str], outcomes: Outcomes, place: NDArray[np.int64], where: str
) -> None:
    """Refuse decisions whose edges have other accounts than those of the table with the same ids, such as numbers of rows.

    Raises:
        FedGraphError: most of them agree at neither end.
    """
    seen, agree = place >= 0, np.zeros(int((place >= 0).sum()), dtype=bool)
    for column, given in zip(columns[1:], outcomes.ends or (), strict=True):
        if column not in table.columns:
            return
        accounts = normal_ids(as_words(table[column])[seen], "number")
        agree |= accounts == normal_ids(given[place[seen]], "number")
    if 2 * agree.sum() < agree.size:
        row = int(np.flatnonzero(seen)[np.flatnonzero(~agree)[0]])
        example = sanitize(str(outcomes.ids[place[row]]), 40)
        raise FedGraphError(
            f"{where}: edge '{example}' has other accounts than in --outcomes {outcomes.where}, as {agree.size - agree.sum()} of"
            f" {agree.size} do: column '{columns[0]}' does not have the ids of its column edge. Pass the list of alerts that was"
            " made with columns.edge_id: without it, and of stored payments, alerts have numbers of rows"
        )

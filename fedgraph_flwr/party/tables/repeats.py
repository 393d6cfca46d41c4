"""Rows of an edge table that are one payment: repeats and corrections, by one rule for all commands.

with a column of ids (``edge_id``)   rows of one id between the same two accounts are versions of a payment: the last counts;
                                     with ``edge_ids: unique`` rows of one id, whatever their accounts
else, with match columns             rows of equal ends and equal match columns are repeats: the first counts; of another
                                     party's account only with a text among them (a reference), none empty
else                                 equal rows are different payments

Of several files, the one with the later last day corrects the other, in whatever order they are given; of equal days, the one
that was added last. A row counts from

    known(row)          = max(day of the row, known of its file)
    known(a correction) = max(day of the row, known of its file, else the last day of its file)

A correction is a row whose payment, by its id, an earlier file has.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data.features import DAY
from fedgraph_flwr.data.schema import UNIQUE, TableLayout
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.party.tables.columns import Treatment, as_words
from fedgraph_flwr.party.tables.edges import edge_times
from fedgraph_flwr.party.tables.parties import (
    PartyRule,
    complete_keys,
    first_alike,
    fold,
    normal_ids,
    parties_of,
    record_values,
)
from fedgraph_flwr.party.tables.reading import read_table
from fedgraph_flwr.party.tables.roles import Columns

Ints = NDArray[np.int64]


def joined(paths: Sequence[Path], layout: TableLayout, needed: Sequence[str] = ()) -> tuple[Any, Ints]:
    """Return the rows of several files of one table as texts, and the file of each [E].

    Args:
        paths: the files.
        layout: their format.
        needed: columns that each must have.

    Raises:
        FedGraphError: a file lacks a column that another one has and that is needed.
    """
    import pandas as pd

    frames = []
    for path in paths:
        table = read_table(path, layout)
        if missing := [name for name in needed if name and name not in table.columns]:
            raise FedGraphError(f"{path} has no column '{missing[0]}', which the other files have: add it")
        texts = {str(name): pd.Series(as_words(table[name]), dtype=object) for name in table.columns}
        frames.append(pd.DataFrame(texts))
    whole = pd.concat(frames, ignore_index=True)
    return whole.mask(whole.isna() | (whole == ""), None), np.repeat(np.arange(len(frames)), [*map(len, frames)])


def versions_of(links: Any, columns: Columns) -> Ints:
    """Return the payment of each row by its id and ends, or by its id alone, int64 [E]; -1 without an id."""
    if not columns.edge_id or columns.edge_id not in links.columns:
        return np.full(len(links), -1, dtype=np.int64)
    ids = as_words(links[columns.edge_id])
    ends = () if columns.edge_ids == UNIQUE else (columns.source, columns.target)
    return np.where(ids != "", first_alike(ids, *(fold(as_words(links[end])) for end in ends)), -1)


def reused(links: Any, columns: Columns) -> str:
    """Return how many of the rows that count have the id of another one with other accounts, as text; "" if none."""
    import pandas as pd

    if not columns.edge_id or columns.edge_id not in links.columns:
        return ""
    ids = pd.Series(as_words(links[columns.edge_id]))
    again = np.flatnonzero(ids.duplicated() & (ids != ""))
    if not again.size:
        return ""
    return (
        f"{again.size} rows have the id of another payment, such as '{sanitize(ids[again[0]], 40)}', with other accounts: all"
        " count. If the later one replaces the earlier, set edge_ids=unique"
    )


def repeats_of(links: Any, columns: Columns, rule: PartyRule | None, where: str, treatment: Treatment) -> Ints:
    """Return the payment of each row by its ends and match columns, int64 [E]; -1 for a row that repeats none.

    Args:
        links: one row per edge.
        columns: roles of the columns.
        rule: how rows name accounts of other parties, with the match columns; None: all accounts are own.
        where: the file, for errors.
        treatment: formats of values.

    Raises:
        FedGraphError: a match column is missing, or a value has no reading of its kind.
    """
    if rule is None or not rule.key or not len(links):
        return np.full(len(links), -1, dtype=np.int64)
    texts = [as_words(links[end]) for end in (columns.source, columns.target)]
    parties = [fold(names) for names in parties_of(links, texts, rule, where)]
    mask = np.logical_and.reduce([names == fold([rule.own_party])[0] for names in parties])
    keys = record_values(links, np.arange(len(links)), rule, where, treatment)
    complete = complete_keys(keys) & (mask | any(kind == "text" for _, kind in rule.key))
    return np.where(complete, first_alike(*parties, *(normal_ids(words, rule.id_form) for words in texts), keys), -1)


def counted(versions: Ints, repeats: Ints) -> NDArray[np.bool_]:
    """Return which rows count, in the order in which they became known, bool [E]."""
    import pandas as pd

    last = ~pd.Series(versions).duplicated(keep="last").to_numpy() | (versions < 0)
    at = np.flatnonzero(last)
    again = pd.Series(repeats[at]).duplicated(keep="first").to_numpy() & (repeats[at] >= 0)
    last[at[again]] = False
    return np.asarray(last)


FILE = "file"
"""Key of a table's attributes: file of each row, of several files [E]."""

ALWAYS = np.iinfo(np.int64).min
"""Day from which rows are known that nothing dates."""


def known_from(day: Ints, file: Ints, versions: Ints, given: Sequence[int] | Ints) -> tuple[Ints, Ints]:
    """Return the day from which each row is known [E], and the rows in the order in which they became known [E].

    Args:
        day: of each row, since 1970 [E].
        file: of each row [E].
        versions: as of `versions_of` [E].
        given: day from which the rows of each file are known, `ALWAYS` for the day of each row.
    """
    last = np.array([day[file == place].max(initial=ALWAYS) for place in range(len(given))])
    until = np.where(np.array(given) == ALWAYS, last, given)
    turn = np.argsort(np.lexsort((np.arange(len(given)), until)))[file]  # place of each row's file by its last day
    first = np.full(int(versions.max(initial=-1)) + 2, len(given))
    np.minimum.at(first, versions, turn)
    corrects = (versions >= 0) & (turn > first[versions])
    known = np.maximum(day, np.where(corrects, until[file], np.array(given)[file]))
    return known, np.lexsort((np.arange(len(file)), turn, known))


def counted_once(
    links: Any, columns: Columns, rule: PartyRule | None, where: str, treatment: Treatment, file: Ints | None = None
) -> NDArray[np.bool_]:
    """Return which rows of a table count, bool [E]; report the others.

    Args:
        links: one row per edge.
        columns: roles of the columns.
        rule: as of `repeats_of`.
        where: the file, for errors.
        treatment: formats of values.
        file: of each row, of several files [E].

    Raises:
        FedGraphError: as `repeats_of`.
    """
    versions, order = versions_of(links, columns), np.arange(len(links))
    if file is not None and columns.time in links.columns:
        day = edge_times(links, columns.time, where, treatment).numpy() // DAY
        order = known_from(day, file, versions, [ALWAYS] * (int(file.max(initial=-1)) + 1))[1]
    mask = np.zeros(len(links), dtype=bool)
    mask[order] = counted(versions[order], repeats_of(links.iloc[order], columns, rule, where, treatment))
    if count := int((~mask).sum()):
        what = f"the id of another ('{columns.edge_id}')" if (versions >= 0).any() else "equal ends and match columns"
        which = ", as the file that ends last has them" if file is not None and (versions >= 0).any() else ""
        treatment.say(f"{where}: {count} of {len(links)} rows repeat a payment, with {what}: counted once{which}")
    if text := reused(links[mask], columns):
        treatment.say(f"{where}: {text}")
    return mask

"""Rows of an edge table that are one payment: repeats and corrections, by one rule for all commands.

with a column of ids (``edge_id``)   rows of one id between the same two accounts are versions of a payment: the last counts
else, with match columns             rows of equal ends and equal match columns are repeats: the first counts; of another
                                     party's account only with a text among them (a reference), none empty
else                                 equal rows are different payments
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.party.tables.columns import Treatment, as_words
from fedgraph_flwr.party.tables.parties import BETWEEN, PartyRule, fold, normal_ids, parties_of, record_values
from fedgraph_flwr.party.tables.roles import Columns

Ints = NDArray[np.int64]


def _codes(columns: list[NDArray[Any]], complete: NDArray[np.bool_]) -> Ints:
    """Return a number for each distinct row of some columns [E]; -1 where it is not complete."""
    import pandas as pd

    codes = pd.DataFrame(dict(enumerate(columns))).groupby(list(range(len(columns))), sort=False).ngroup()
    return np.where(complete, codes.to_numpy(dtype=np.int64), -1)


def versions_of(links: Any, columns: Columns) -> Ints:
    """Return the payment of each row by its id and ends, int64 [E]; -1 without an id."""
    if not columns.edge_id or columns.edge_id not in links.columns:
        return np.full(len(links), -1, dtype=np.int64)
    ids = as_words(links[columns.edge_id])
    ends = [fold(as_words(links[end])) for end in (columns.source, columns.target)]
    return _codes([ids, *ends], ids != "")


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
    own = np.logical_and.reduce([names == fold([rule.own])[0] for names in parties])
    keys = record_values(links, np.arange(len(links)), rule, where, treatment)
    complete = np.array([all(key.split(BETWEEN)) for key in keys], dtype=bool)
    complete &= own | any(kind == "text" for _, kind in rule.key)
    return _codes([*parties, *(normal_ids(words, rule.id_form) for words in texts), keys], complete)


def counted(versions: Ints, repeats: Ints) -> NDArray[np.bool_]:
    """Return which rows count, in the order in which they became known, bool [E]."""
    import pandas as pd

    last = ~pd.Series(versions).duplicated(keep="last").to_numpy() | (versions < 0)
    at = np.flatnonzero(last)
    again = pd.Series(repeats[at]).duplicated(keep="first").to_numpy() & (repeats[at] >= 0)
    last[at[again]] = False
    return np.asarray(last)


def counted_once(
    links: Any, columns: Columns, rule: PartyRule | None, where: str, treatment: Treatment
) -> NDArray[np.bool_]:
    """Return which rows of one table count, bool [E]; report the others.

    Raises:
        FedGraphError: as `repeats_of`.
    """
    versions = versions_of(links, columns)
    found = counted(versions, repeats_of(links, columns, rule, where, treatment))
    if count := int((~found).sum()):
        what = f"the id of another ('{columns.edge_id}')" if (versions >= 0).any() else "equal ends and match columns"
        treatment.say(f"{where}: {count} of {len(links)} rows repeat a payment, with {what}: counted once")
    return found

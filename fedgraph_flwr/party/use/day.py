"""Rows of a day's edge table at a party: between its own accounts, with accounts of other parties, and rows without a score.

An account of another party becomes a node with the columns that its party shares, or without features, as in training. It is
a stored one if the party's file names it, else a new one. A row that cannot be scored is listed with its reason; the others are
scored.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data.graph import ClientGraph, unpack_words
from fedgraph_flwr.data.own_columns import recipe_of
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.party.link.files import id_form
from fedgraph_flwr.party.tables.columns import as_words
from fedgraph_flwr.party.tables.parties import BETWEEN, PartyRule, accounts_of, fold, normal_ids, parties_of

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Day:
    """Rows of an edge table.

    Attributes:
        rows: positions of the rows that columns of own records read, ascending [K].
        ends: their sources and targets [2, K]: own nodes below N, then accounts of other parties, of the stored book first.
        usable: whether the model reads each as an edge [K].
        far: party and id of each account of another party, those that the party's file names first (`known_far`).
        left_out: position and reason of every other row.
    """

    rows: Ints
    ends: Ints
    usable: NDArray[np.bool_]
    far: NDArray[np.str_]
    left_out: tuple[tuple[int, str], ...]

    def edges(self) -> "Day":
        """Return the rows that the model reads as edges."""
        at = np.flatnonzero(self.usable)
        return replace(self, rows=self.rows[at], ends=self.ends[:, at], usable=self.usable[at])

    def of(self, num_nodes: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which rows join own accounts, leave an own one, and reach one, bool [K] each; ``num_nodes`` is N."""
        own_ends = self.ends < num_nodes
        return own_ends[0] & own_ends[1], own_ends[0] & ~own_ends[1], ~own_ends[0] & own_ends[1]


def rule_of(columns: Any, stored: Any, match: str = "") -> PartyRule | None:
    """Return how a party's tables name other parties' accounts; None if they name none, or its graph has no edges to them.

    Args:
        columns: roles of the columns.
        stored: the party's graph.
        match: the match columns, if the rule is to have them.
    """
    if not isinstance(stored, ClientGraph) or not (columns.party_columns or columns.party_prefix):
        return None
    party = str(stored.linking.get("party", ""))
    return PartyRule.parse(party, columns.party_columns, columns.party_prefix, match, id_form(stored))


def divide(
    links: Any, columns: Any, index: Any, rule: PartyRule | None, stored: Any, where: tuple[str, str], items: bool
) -> Day:
    """Divide the rows of an edge table.

    Args:
        links: one row per edge.
        columns: roles of the columns.
        index: pandas index of the own accounts' ids, stored and new ones, by position [N].
        rule: how rows name accounts of other parties; None: all accounts are own.
        stored: the party's graph.
        where: files of the edges and of the nodes, for errors.
        items: whether rows are predicted; otherwise accounts are, and rows that the model cannot read are left out.

    Raises:
        FedGraphError: no row can be scored, or, of accounts, no row names one of the party.
    """
    texts = [as_words(links[end]) for end in (columns.source, columns.target)]
    places = [np.asarray(index.get_indexer(words), dtype=np.int64) for words in texts]
    mine = [np.ones(len(links), dtype=bool)] * 2
    far = known_far(stored) if rule else np.zeros(0, dtype=str)
    reasons, unread = np.full(len(links), "", dtype=object), ""
    aside = np.zeros(len(links), dtype=bool)  # rows that the model does not read, and columns of own records do
    if rule is not None:
        forms = index.__class__(normal_ids(index.to_numpy(), rule.id_form))
        parties = [fold(names) for names in parties_of(links, texts, rule, where[0])]
        mine = [names == fold([rule.own_party])[0] for names in parties]
        named = []
        for end, (words, own_rows) in enumerate(zip(texts, mine, strict=True)):
            ids = normal_ids(words, rule.id_form)
            odd = own_rows & (places[end] < 0)
            places[end][odd] = forms.get_indexer(ids[odd]) if forms.is_unique else -1
            named.append(accounts_of(parties[end].astype(str), ids))
            _mark(reasons, ~own_rows & ((parties[end] == "") | (ids == "")), "names no party or no account")
        _mark(reasons, ~mine[0] & ~mine[1], f"has no account of '{rule.own_party}'")
        if unread := _unread(stored, columns, items):
            aside = ~(mine[0] & mine[1]) & (reasons == "")
        usable = [np.unique(names[~own_rows & (reasons == "")]) for names, own_rows in zip(named, mine, strict=True)]
        far = np.concatenate([far, np.setdiff1d(np.concatenate(usable), far)]).astype(str)
        order = np.argsort(far)
        for end, own_rows in enumerate(mine):
            rows = ~own_rows & (reasons == "")
            places[end][rows] = len(index) + order[np.searchsorted(far, named[end][rows], sorter=order)]
    for words, own_rows, at in zip(texts, mine, places, strict=True):
        _mark_unknown(reasons, own_rows & (at < 0), words, where[1])
    kept = np.flatnonzero(reasons == "")
    _mark(reasons, aside, unread)
    scored = np.flatnonzero(reasons == "")
    useful = scored if items else np.flatnonzero(((np.stack(places) >= 0) & np.stack(mine)).any(axis=0))
    if len(links) and not useful.size:
        raise FedGraphError(f"no row of {where[0]} can be scored: row 1 {reasons[0]}")
    left = tuple((int(row), str(reasons[row])) for row in np.flatnonzero(reasons != ""))
    return Day(kept, np.stack(places)[:, kept], ~aside[kept], far, left)


def _unread(stored: ClientGraph, columns: Any, items: bool) -> str:
    """Return why a model does not read rows that name another party's account; "" if it does."""
    if items:
        linked = stored.cut_out.numel() or stored.cut_in.numel() or len(stored.far_name)  # a book may drop cut edges
        return "" if linked else "names another party's account, and this graph is not linked with its records"
    read = stored.far or recipe_of(stored) or columns.seconds
    return "" if read else "names another party's account, of which this graph has no columns (link --share)"


def _mark(reasons: NDArray[Any], rows: NDArray[np.bool_], reason: str) -> None:
    """Give rows a reason if they have none."""
    reasons[rows & (reasons == "")] = reason


def _mark_unknown(reasons: NDArray[Any], rows: NDArray[np.bool_], words: NDArray[Any], where: str) -> None:
    """As `_mark`, with the account that is not known."""
    chosen = np.flatnonzero(rows & (reasons == ""))
    reasons[chosen] = [f"names '{sanitize(words[row], 40)}', which is not an id of {where}" for row in chosen]


def known_far(stored: Any) -> NDArray[np.str_]:
    """Return party and id of the accounts of other parties that a graph names: those of its book, then at its cut edges."""
    book = unpack_words(stored.book_ids) if len(stored.book_ids) else np.zeros(0, dtype=str)
    linked = unpack_words(stored.far_name) if len(stored.far_name) else np.zeros(0, dtype=str)
    return np.concatenate([book, np.setdiff1d(linked[linked != ""], book)])


def global_ids(stored: ClientGraph, far: NDArray[np.str_], first: int) -> Ints:
    """Return the global id of each account of another party: that of its file (``far_name``), else new ones.

    Args:
        stored: the party's graph.
        far: party and id of the accounts.
        first: the first new global id.
    """
    ids = first + np.arange(len(far), dtype=np.int64)
    if not len(stored.far_name) or not far.size:
        return ids
    names = unpack_words(stored.far_name)
    order = np.argsort(names)
    place = order[np.searchsorted(names, far, sorter=order).clip(max=names.size - 1)]
    known = names[place] == far
    ids[known] = stored.far_id.numpy()[place[known]]
    return ids


def names_by_id(graph: Any, names: NDArray[Any]) -> dict[int, Any]:
    """Return the name of each account by its global id, for a table: of the own ones those given, of others their id.

    Args:
        graph: the party's graph, or one with its nodes.
        names: of its nodes [N].

    An id that two accounts have is followed by the party. An account without a known id is not among them.
    """
    numbers = graph.node_id.tolist() if hasattr(graph, "node_id") else range(len(names))
    accounts = dict(zip(numbers, names, strict=True))
    if not len(getattr(graph, "far_name", ())):
        return accounts
    listed = [text.partition(BETWEEN)[::2] for text in unpack_words(graph.far_name).tolist()]
    count = Counter([*map(str, accounts.values()), *(name for _, name in listed)])
    for number, (party, name) in zip(graph.far_id.tolist(), listed, strict=True):
        if name:
            accounts.setdefault(number, name if count[name] == 1 else f"{name} ({party})")
    return accounts

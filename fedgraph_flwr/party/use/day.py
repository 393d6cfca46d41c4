"""Rows of a day's edge table at a party: between its own accounts, with accounts of other parties, and rows without a score.

An account of another party becomes a node without features, as in training. It is the one of the party's stored records if its
book names it, else a new one. A row that cannot be scored is listed with its reason; the others are scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data.graph import ClientGraph, unpack_words
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.party.tables.columns import as_words
from fedgraph_flwr.party.tables.parties import BETWEEN, PartyRule, fold, normal_ids, parties_of

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Day:
    """Rows of an edge table.

    Attributes:
        rows: positions of the rows that can be scored, ascending [K].
        ends: their sources and targets [2, K]: own nodes below N, then accounts of other parties, of the stored book first.
        far: party and id of each account of another party, as `book_ids` has them.
        left_out: position and reason of every other row.
    """

    rows: Ints
    ends: Ints
    far: NDArray[np.str_]
    left_out: tuple[tuple[int, str], ...]

    def of(self, num_nodes: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which rows join own accounts, leave an own one, and reach one, bool [K] each; ``num_nodes`` is N."""
        own = self.ends < num_nodes
        return own[0] & own[1], own[0] & ~own[1], ~own[0] & own[1]


def rule_of(columns: Any, stored: Any) -> PartyRule | None:
    """Return how a party's tables name other parties' accounts; None if they name none, or its graph has no edges to them."""
    if not isinstance(stored, ClientGraph) or not (columns.party_columns or columns.party_prefix):
        return None
    form = stored.linking.get("form", "ids text").partition(";")[0].removeprefix("ids ")
    return PartyRule.parse(str(stored.linking.get("party", "")), columns.party_columns, columns.party_prefix, "", form)


def divide(links: Any, columns: Any, index: Any, rule: PartyRule | None, stored: Any, where: tuple[str, str]) -> Day:
    """Divide the rows of an edge table.

    Args:
        links: one row per edge.
        columns: roles of the columns.
        index: pandas index of the own accounts' ids, stored and new ones, by position [N].
        rule: how rows name accounts of other parties; None: all accounts are own.
        stored: the party's graph.
        where: files of the edges and of the nodes, for errors.

    Raises:
        FedGraphError: no row can be scored.
    """
    texts = [as_words(links[end]) for end in (columns.source, columns.target)]
    places = [np.asarray(index.get_indexer(words), dtype=np.int64) for words in texts]
    mine = [np.ones(len(links), dtype=bool)] * 2
    far = unpack_words(stored.book_ids) if rule and len(stored.book_ids) else np.zeros(0, dtype=str)
    reasons = np.full(len(links), "", dtype=object)
    if rule is not None:
        forms = index.__class__(normal_ids(index.to_numpy(), rule.id_form))
        parties = [fold(names) for names in parties_of(links, texts, rule, where[0])]
        mine = [names == fold([rule.own])[0] for names in parties]
        linked = stored.cut_out.numel() or stored.cut_in.numel()
        named = []
        for end, (words, own) in enumerate(zip(texts, mine, strict=True)):
            ids = normal_ids(words, rule.id_form)
            odd = own & (places[end] < 0)
            places[end][odd] = forms.get_indexer(ids[odd]) if forms.is_unique else -1
            named.append(np.char.add(np.char.add(parties[end].astype(str), BETWEEN), ids))
            _mark(reasons, ~own & ((parties[end] == "") | (ids == "")), "names no party or no account")
        _mark(reasons, ~mine[0] & ~mine[1], f"has no account of '{rule.own}'")
        if not linked:
            _mark(
                reasons,
                ~mine[0] | ~mine[1],
                "names another party's account, and this graph is not linked with its records",
            )
        usable = [np.unique(names[~own & (reasons == "")]) for names, own in zip(named, mine, strict=True)]
        far = np.concatenate([far, np.setdiff1d(np.concatenate(usable), far)]).astype(str)
        order = np.argsort(far)
        for end, own in enumerate(mine):
            rows = ~own & (reasons == "")
            places[end][rows] = len(index) + order[np.searchsorted(far, named[end][rows], sorter=order)]
    for words, own, at in zip(texts, mine, places, strict=True):
        _mark_unknown(reasons, own & (at < 0), words, where[1])
    kept = np.flatnonzero(reasons == "")
    if len(links) and not kept.size:
        raise FedGraphError(f"no row of {where[0]} can be scored: row 1 {reasons[0]}")
    left = tuple((int(row), str(reasons[row])) for row in np.flatnonzero(reasons != ""))
    return Day(kept, np.stack(places)[:, kept], far, left)


def _mark(reasons: NDArray[Any], rows: NDArray[np.bool_], reason: str) -> None:
    """Give rows a reason if they have none."""
    reasons[rows & (reasons == "")] = reason


def _mark_unknown(reasons: NDArray[Any], rows: NDArray[np.bool_], words: NDArray[Any], where: str) -> None:
    """As `_mark`, with the account that is not known."""
    chosen = np.flatnonzero(rows & (reasons == ""))
    reasons[chosen] = [f"names '{sanitize(words[row], 40)}', which is not an id of {where}" for row in chosen]


def global_ids(stored: ClientGraph, far: Sequence[str], first: int) -> Ints:
    """Return the global id of each account of another party: that of stored edges if records show it, else new ones.

    An edge between parties and a record of the book are the same if own account, direction and time are, and no other has them.

    Args:
        stored: the party's graph.
        far: accounts of other parties, those of the stored book first.
        first: the first new global id.
    """
    import pandas as pd

    ids = first + np.arange(len(far), dtype=np.int64)
    if not stored.book.numel() or not stored.cut_out_edge_time.numel() + stored.cut_in_edge_time.numel():
        return ids
    n, (source, target, time, _) = stored.num_nodes, stored.book.numpy()
    out = target >= n
    rows = np.flatnonzero((source >= n) | out)
    records = pd.DataFrame(
        {
            "own": np.where(out, source, target)[rows],
            "out": out[rows],
            "time": time[rows],
            "far": np.where(out, target, source)[rows] - n,
        }
    )
    parts = [(stored.cut_out, stored.cut_out_edge_time, True), (stored.cut_in, stored.cut_in_edge_time, False)]
    edges = pd.concat(
        pd.DataFrame({"own": cut[0].numpy(), "out": leaves, "time": times.numpy(), "id": cut[1].numpy()})
        for cut, times, leaves in parts
    )
    key = ["own", "out", "time"]
    both = [table[~table.duplicated(key, keep=False)] for table in (records, edges)]
    found = both[0].merge(both[1], on=key).drop_duplicates("far")
    ids[found["far"].to_numpy()] = found["id"].to_numpy()
    return ids

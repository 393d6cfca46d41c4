"""Days of a party's book as a model reads them: the stored graph before the day, and the rows of the book that it does not have.

The stored graph is that of the pinned model, with its link. For day d, it keeps what happened before d. Rows of the book that are
known by the end of d and that it does not have join it: those of later files, late ones, corrections and those of d itself. So
the input of d is a function of the model's file and of the rows known by then. A row is an item of the day on which it became
known.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedgraph_flwr.data.features import DAY
from fedgraph_flwr.data.graph import ClientGraph, Graph, rows_at, unpack_words
from fedgraph_flwr.data.own_columns import appended, recipe_of
from fedgraph_flwr.data.schema import EDGE
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.book.folder import BookFolder
from fedgraph_flwr.party.book.rows import BookRows, day_text, missing_days, read_rows
from fedgraph_flwr.party.tables.columns import Treatment, as_words
from fedgraph_flwr.party.tables.edges import amounts_of, contents_of
from fedgraph_flwr.party.tables.nodes import Ids
from fedgraph_flwr.party.tables.parties import PartyRule, accounts_of, fold, normal_ids, parties_of
from fedgraph_flwr.party.tables.party_roles import nodes_of_role
from fedgraph_flwr.party.use.cases import KNOWN
from fedgraph_flwr.party.use.day import known_far, rule_of
from fedgraph_flwr.party.use.prediction_input import (
    InputSpec,
    NewNodes,
    check_book,
    join_tables,
    times_of,
    without_edges,
)

Ints = NDArray[np.int64]


def before(stored: Graph, first: int, lost: "Lost | None" = None, bare: bool = False) -> Graph:
    """Return a graph without edges and records from a time on, and without those that do not count.

    Args:
        stored: the party's graph.
        first: time in seconds.
        lost: those that do not count.
        bare: whether to return it `without_edges`.
    """
    graph = without_edges(stored) if bare else stored
    book = graph.book[2] < first
    if lost is not None:
        book &= ~lost.records
    for of, start in () if bare else (("edge", ""), ("cut_out", "cut_out_"), ("cut_in", "cut_in_")):
        if not hasattr(stored, f"{start}edge_time"):
            continue
        kept = getattr(stored, f"{start}edge_time") < first
        if lost is not None:
            kept &= ~lost.edges[of]
        if not kept.numel() or bool(kept.all()):
            continue
        places = kept.nonzero().view(-1)
        inner: dict[str, Any] = {} if start else {"edge_index": stored.edge_index[:, places]}
        graph = replace(graph, **rows_at(stored, of, places), **inner)
    return replace(graph, book=graph.book[:, book])


@dataclass(frozen=True)
class Lost:
    """Stored rows that do not count.

    Attributes:
        records: which records of the graph's book, bool [R].
        edges: which edges, by ``edge``, ``cut_out`` and ``cut_in``, bool [E].
    """

    records: torch.Tensor
    edges: dict[str, torch.Tensor]


class Stored:
    """A party's graph, and which rows of a book it has."""

    def __init__(
        self,
        graph: Graph,
        rows: BookRows,
        rule: PartyRule | None,
        treatment: Treatment,
        where: str,
        reads_edges: bool = True,
    ):
        """Find the rows of the book among the records of the graph.

        Args:
            graph: the graph, imported with ids and times.
            rows: those of the book.
            rule: how they name accounts of other parties.
            treatment: formats of values.
            where: the book, for errors.
            reads_edges: whether the model reads columns of edges that are no items.

        Raises:
            FedGraphError: the graph has no ids or no times.
        """
        self.graph, self.rows, self.treatment, self.warned = graph, rows, treatment, False
        self.looks_back = reads_edges and bool(graph.own_columns.get("edges"))
        self.records = np.ones(len(rows.time), dtype=bool)  # rows that are records of the party
        time = times_of(graph)
        if not len(graph.ids) or not time.numel():
            raise FedGraphError(
                f"the stored graph of the model has no {'times' if len(graph.ids) else 'ids'}: import again"
            )
        self.first = int(time.min())
        self.far = known_far(graph) if isinstance(graph, ClientGraph) else np.zeros(0, dtype=str)
        self.numbers = torch.full((len(self.far),), -1)
        if isinstance(graph, ClientGraph) and len(graph.far_name):
            listed = dict(zip(unpack_words(graph.far_name).tolist(), graph.far_id.tolist(), strict=True))
            self.numbers = torch.tensor([listed.get(str(name), -1) for name in self.far], dtype=torch.int64)
        self.ends = self._ends(rule)
        check_book(graph, "the model's file")
        cents = np.zeros(len(rows.time), dtype=np.int64)
        if recipe_of(graph) is not None:
            cents = amounts_of(rows.edges, rows.columns.amount_column, where, treatment)
        contents = contents_of(rows.edges, treatment.agreed.nodes.get(EDGE, {}))
        content = np.stack([*self.ends, rows.time, cents, contents])
        self.content = torch.from_numpy(content[: len(graph.book)])
        self.covered = torch.isin(graph.book[2] // DAY, torch.from_numpy(np.unique(rows.days)))

    def _ends(self, rule: PartyRule | None) -> Ints:
        """Return the number of each end in the graph's book: own nodes, then accounts of other parties; -1 if unknown [2, E]."""
        ids, columns = unpack_words(self.graph.ids), self.rows.columns
        texts = [as_words(self.rows.edges[end]) for end in (columns.source, columns.target)]
        index = Ids(ids, "the stored graph").index
        if rule is None:
            return np.stack([index.get_indexer(words) for words in texts]).astype(np.int64)
        far = index.__class__(self.far)
        forms = index.__class__(normal_ids(ids, rule.id_form))
        numbers, named = [], []
        for words, names in zip(texts, parties_of(self.rows.edges, texts, rule, "the book"), strict=True):
            parties, normal = fold(names), normal_ids(words, rule.id_form)
            other = far.get_indexer(accounts_of(parties, normal))
            at = np.where(other >= 0, other + len(ids), -1)
            mine = parties == fold([rule.own_party])[0]
            at[mine] = (forms if forms.is_unique else index).get_indexer((normal if forms.is_unique else words)[mine])
            numbers.append(at)
            named.append(mine)
            self.records &= mine | ((parties != "") & (normal != ""))
        self.records &= np.logical_or(*named)
        return np.stack(numbers).astype(np.int64)

    def held(self, at: Ints, first: int) -> tuple[NDArray[np.bool_], Lost]:
        """Return which of some rows the graph keeps, bool [K], and what it has besides them that does not count.

        It keeps rows that were known before a day. Of the days that the book has, all else is dropped: rows that became known
        later, versions that do not count, and records of another export.

        Args:
            at: rows that count [K].
            first: the day.
        """
        book, rows = self.graph.book, self.rows
        old = np.flatnonzero((rows.known[at] < first) & (self.ends[:, at] >= 0).all(0))
        place = appended(book, self.content[:, torch.from_numpy(at[old])])[1]
        old, place = old[place < book.size(1)], place[place < book.size(1)]
        inside = np.zeros(at.size, dtype=bool)
        inside[old] = True
        taken = torch.zeros(book.size(1), dtype=torch.bool)
        taken[place] = True
        gone = ~taken & self.covered & (book[2] < first * DAY)
        self._warn_of_others(book[:, gone], np.setdiff1d(np.arange(len(rows.time)), at[inside]))
        near = torch.isin(book[2], book[2, gone]).nonzero().view(-1)
        code = book[:3, near].unique(dim=1, return_inverse=True)[1]
        mixed = near[torch.isin(code, code[gone[near]])]  # no file says which of equal ends and time is which edge
        taken[mixed], gone[mixed] = False, True
        if self.looks_back:  # columns of edges after a change
            changed = rows.time[at[~inside & self.records[at]]]
            start = min([first * DAY, *changed.tolist(), *book[2, gone].tolist()]) // DAY * DAY
            later = taken & (book[2] >= start)
            taken, gone = taken & ~later, gone | later
        inside[old] = taken.numpy()[place]
        return inside, Lost(gone, self._edges(book[:, gone], book[:, taken]))

    def _warn_of_others(self, gone: torch.Tensor, rows: Ints) -> None:
        """Report once records of the graph that no row of the book is [5, K], given the rows that are not kept."""
        if not gone.size(1) or self.warned:
            return
        near = rows[np.isin(self.rows.time[rows], gone[2].numpy())]
        place = appended(gone, self.content[:, torch.from_numpy(near)])[1] if near.size else near
        if count := gone.size(1) - int((place < gone.size(1)).sum()):
            self.warned = True
            self.treatment.say(
                f"the model's file has {count} payments that the book does not have, on days that both have: they do not count"
            )

    def _edges(self, gone: torch.Tensor, kept: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the edges of some records: of equal ends and times, else of an edge between parties of equal ends.

        Args:
            gone: the records [5, K].
            kept: other records, whose edges stay [5, R].
        """
        graph, lost = self.graph, {}
        for of in ("edge", "cut_out", "cut_in"):
            start = "" if of == "edge" else f"{of}_"
            time = getattr(graph, f"{start}edge_time", torch.zeros(0))
            lost[of] = torch.zeros(time.numel(), dtype=torch.bool)
            wanted = self._pairs(gone, of)
            if not wanted.size(1) or not time.numel():
                continue
            ends = graph.edge_index if of == "edge" else getattr(graph, of)
            stored = torch.stack([*ends, time, torch.zeros_like(time)])
            place = torch.from_numpy(appended(stored, wanted)[1])
            lost[of][place[place < time.numel()]] = True
            rest = wanted[:, place >= time.numel()]
            if of == "edge" or not rest.size(1):
                continue
            free = ~lost[of]
            if (others := self._pairs(kept, of)).size(1):
                place = torch.from_numpy(appended(stored, others)[1])
                free[place[place < time.numel()]] = False
            at = free.nonzero().view(-1)
            stored[2], rest[2] = 0, 0  # the other bank's time may differ
            if at.numel():
                place = torch.from_numpy(appended(stored[:, at], rest)[1])
                lost[of][at[place[place < at.numel()]]] = True
        return lost

    def _pairs(self, records: torch.Tensor, of: str) -> torch.Tensor:
        """Return the ends and times of those records that may be edges of a kind, as its edges have them [4, K]."""
        count = self.graph.num_nodes
        source, target, time = records[:3]
        if self.graph.schema.get("undirected"):
            source, target, time = torch.cat([source, target]), torch.cat([target, source]), time.repeat(2)
        if of == "edge":
            near, far, chosen = source, target, (source < count) & (target < count)
        elif of == "cut_out":
            near, far, chosen = source, target, (source < count) & (target >= count)
        else:
            near, far, chosen = target, source, (source >= count) & (target < count)
        near, far, time = near[chosen], far[chosen], time[chosen]
        if of != "edge":
            far = self.numbers[far - count]
        return torch.stack([near, far, time, torch.zeros_like(time)])[:, (near >= 0) & (far >= 0)]


def days_of_book(
    book: BookFolder,
    span: tuple[int | None, int | None],
    spec: InputSpec,
    stored: Any,
    treatment: Treatment,
    together: bool = False,
    reads_edges: bool = True,
) -> Iterator[tuple[int, NewNodes]]:
    """Yield each day of a span that has rows, or for models of accounts each day, with its rows and graph.

    Args:
        book: the book.
        span: first and last day since 1970; None for the last day of the book.
        spec: the model's features and classes.
        stored: the party's graph.
        treatment: column options; its ``say`` receives what to know before any score.
        together: whether the rows of all days are read in the graph of the last one.
        reads_edges: as of `Stored`.

    Raises:
        FedGraphError: the book has no row on these days, or as `read_rows` and `join_tables`.
    """
    layout = book.party.layout.over(spec.tables)
    rows = read_rows(book, treatment, layout)
    if not isinstance(stored, Graph):
        raise FedGraphError(
            f"{book.folder}: a book needs a model with the party's graph: pass --client I, a state folder or --graph FILE"
        )
    last = int(rows.known.max()) if span[1] is None else span[1]
    first = last if span[0] is None else span[0]
    rule = None if rows.people is None else rule_of(rows.columns, stored)
    held = Stored(stored, rows, rule, treatment, str(book.folder), reads_edges)
    if first * DAY <= held.first:
        raise FedGraphError(
            f"{day_text(first)} is not after the first record of the model's file ({day_text(held.first // DAY)}): pass a later"
            " --from"
        )
    if last < first:
        raise FedGraphError(
            f"--from={day_text(first)} is after {day_text(last)}, the last day (--until, or the book's)"
        )
    days = [day for day in range(first, last + 1) if not spec.parallel or bool((rows.known == day).any())]
    if not days:
        raise FedGraphError(
            f"{book.folder} has no payments of {day_text(first)} to {day_text(last)}: its last day is {day_text(rows.last)}"
        )
    days_held = times_of(stored).numpy() // DAY
    if missing := missing_days(days_held, np.append(rows.days[rows.known <= last], last)):
        treatment.say(f"the book has no payments on {missing}: columns that look back miss them if there were any")
    for day in days[-1:] if together else days:
        yield day, _day(book, (first if together else day, day), rows, held, spec, treatment)


def _day(
    book: BookFolder, span: tuple[int, int], rows: BookRows, held: Stored, spec: InputSpec, treatment: Treatment
) -> NewNodes:
    """Return the rows that became known on some days, in the graph of what was known by the end of the last one."""
    first, day = span
    at = rows.at(day)
    inside, lost = held.held(at, first)
    fresh = ~inside
    links = rows.edges.iloc[at[fresh]].reset_index(drop=True)
    new = rows.known[at[fresh]] >= first
    graph = before(held.graph, first * DAY, lost, spec.bare)
    where, table = str(book.folder), rows.nodes_at(day)
    columns = rows.columns
    if table is None:
        table, treatment = nodes_of_role(links, columns, held.graph, where, treatment)
        columns = replace(columns, party_columns="", party_prefix="")
    node_ids = Ids.of(table, columns.id, where)
    additions = join_tables(
        table, links, node_ids, columns, spec, graph, (where, where, "the model's file"), treatment, new
    )
    known = {**additions.tables, KNOWN: rows.edges.iloc[at]}
    return replace(additions, tables=known).of_rows(new)

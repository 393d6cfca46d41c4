"""Rows of a book, and which of them are known at the end of a day.

`repeats` says from when a row is known, and which rows count at the end of a day. So the rows of a day do not depend on which
files hold them, or on the order in which these were added, unless two that become known on one day differ in a payment.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data.features import DAY
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.data.schema import TableLayout, split_names
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.book.folder import CACHE, EDGES, NODES, BookFolder, Export, digest, is_book
from fedgraph_flwr.party.party_file import PartyFile, read_party
from fedgraph_flwr.party.tables.columns import Treatment
from fedgraph_flwr.party.tables.edges import edge_times
from fedgraph_flwr.party.tables.repeats import ALWAYS, counted, joined, known_from, repeats_of, versions_of
from fedgraph_flwr.party.tables.roles import Columns

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class BookRows:
    """All rows of a book's tables, in the order in which they became known.

    Attributes:
        edges: rows of all files of edges, as texts.
        time: their times in seconds [E].
        known: day from which each is known, since 1970 [E].
        file: place of its file among those of edges [E].
        versions: payment of each row by its id, -1 without one [E].
        repeats: payment of each row by its match columns, -1 without them [E].
        people: rows of all files of nodes, as texts; None without such files.
        people_known: day from which each is known [N].
        columns: roles of the columns.
    """

    edges: Any
    time: Ints
    known: Ints
    file: Ints
    versions: Ints
    repeats: Ints
    people: Any
    people_known: Ints
    columns: Columns

    def at(self, day: int) -> Ints:
        """Return the rows that count at the end of a day, by time, then as their payments became known [K]."""
        rows = np.flatnonzero(self.known <= day)
        kept = self._earliest[rows[counted(self.versions[rows], self.repeats[rows])]]
        return kept[np.lexsort((self._first[kept], self.time[kept]))]

    @cached_property
    def _first(self) -> Ints:
        """The first row of each row's payment [E]."""
        row = np.arange(len(self.versions))
        first = np.full(int(self.versions.max(initial=-1)) + 2, len(row))
        np.minimum.at(first, self.versions, row)
        return np.where(self.versions < 0, row, first[self.versions])

    @cached_property
    def _earliest(self) -> Ints:
        """The first of consecutive versions that are equal to each row [E]: a repeat is no correction."""
        earliest = np.arange(len(self.versions))
        again = np.flatnonzero(self._first < earliest)
        if not again.size:
            return earliest
        rows = np.flatnonzero(np.isin(self.versions, self.versions[again]))
        rows = rows[np.argsort(self.versions[rows], kind="stable")]
        texts = self.edges.iloc[rows].fillna("").to_numpy()
        new = np.ones(rows.size, dtype=bool)
        new[1:] = (self.versions[rows][1:] != self.versions[rows][:-1]) | (texts[1:] != texts[:-1]).any(axis=1)
        earliest[rows] = rows[np.maximum.accumulate(np.where(new, np.arange(rows.size), 0))]
        return earliest

    def nodes_at(self, day: int) -> Any:
        """Return the rows of nodes at the end of a day: the last one of each account that is known by then, else its first."""
        if self.people is None:
            return None
        ids = self.people[self.columns.id]
        first = ~ids.duplicated().to_numpy()
        shown = self.people[first | (self.people_known <= day)]
        return shown.drop_duplicates(self.columns.id, keep="last").reset_index(drop=True)

    @property
    def days(self) -> Ints:
        """The day of each row, since 1970 [E]."""
        return self.time // DAY

    @cached_property
    def last(self) -> int:
        """The last day of the book."""
        return int(self.days.max())


def read_rows(book: BookFolder, treatment: Treatment | None = None, layout: TableLayout | None = None) -> BookRows:
    """Read all rows of a book.

    Args:
        book: the book.
        treatment: formats of values.
        layout: names of the columns; None for those of the party's file and its schema.

    Raises:
        FedGraphError: there are no payments, they have no times, or a file cannot be read.
    """
    columns = book.columns if layout is None else Columns.of(layout)
    treatment = treatment or book.treatment
    files = book.of(EDGES)
    if not files:
        raise FedGraphError(f"{book.folder} has no payments: add a file by `fedgraph-flwr book add {book.folder} FILE`")
    if not columns.time:
        raise FedGraphError(
            f"{book.folder / 'party.yaml'} names no column of times, by which a book knows its days: add columns.time"
        )
    amount = columns.amount_column if columns.recipe else ""
    needed = (columns.source, columns.target, columns.time, amount, *split_names(columns.party_columns))
    edges, file = joined([book.folder / export.file for export in files], columns.layout, needed)
    edges, file = _without_erased(edges, file, (columns.source, columns.target), book)
    where = str(book.folder)
    time = edge_times(edges, columns.time, where, treatment).numpy()
    versions = versions_of(edges, columns)
    known, order = known_from(time // DAY, file, versions, _given(files))
    edges = edges.iloc[order].reset_index(drop=True)
    repeats = repeats_of(edges, columns, book.rule(columns), where, treatment)
    people, people_known = _people(book, columns)
    return BookRows(
        edges, time[order], known[order], file[order], versions[order], repeats, people, people_known, columns
    )


def _given(files: Sequence[Export]) -> Ints:
    """Return the day from which the rows of each file are known."""
    return np.array([day_of(export.known) if export.known else ALWAYS for export in files])


def day_of(text: str, option: str = "") -> int:
    """Return a day such as 2026-03-04 as days since 1970.

    Raises:
        FedGraphError: it is no day.
    """
    try:
        return int(np.datetime64(text, "D").astype(np.int64))
    except ValueError:
        raise FedGraphError(f"{option and f'{option}: '}expected a day such as 2026-03-04, got '{text}'") from None


def day_text(day: int) -> str:
    """Return a day since 1970 as text."""
    return str(np.datetime64(int(day), "D"))


def _without_erased(table: Any, file: Ints, names: Sequence[str], book: BookFolder) -> tuple[Any, Ints]:
    """Return rows that name no erased account, and their files."""
    if not book.erased:
        return table, file
    lost = book.is_erased(table, names)
    return table[~lost].reset_index(drop=True), file[~lost]


def _people(book: BookFolder, columns: Columns) -> tuple[Any, Ints]:
    """Return the rows of all files of nodes, and the day from which each is known."""
    files = book.of(NODES)
    if not files:
        return None, np.zeros(0, dtype=np.int64)
    table, file = joined([book.folder / export.file for export in files], columns.layout, (columns.id,))
    table, file = _without_erased(table, file, (columns.id,), book)
    known = _given(files)[file]
    order = known.argsort(kind="stable")
    return table.iloc[order].reset_index(drop=True), known[order]


def gaps(days: Ints) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of days without rows, between days that have some."""
    held = np.unique(days)
    for before, after in zip(held[:-1].tolist(), held[1:].tolist(), strict=True):
        if after > before + 1:
            yield before + 1, after - 1


def missing_days(stored: Ints, days: Ints) -> str:
    """Return which days after the stored ones have no rows, up to the last of some days, as text; "" if all have some.

    Days of the week on which nothing is stored, such as Sundays, are not missing.
    """
    last = int(stored.max())
    every = np.arange(last, max(int(days.max()), last) + 1)
    free = every[~np.isin(every % 7, stored % 7)]
    spans = list(gaps(np.concatenate([days[days > last], free, [last]])))
    if not spans:
        return ""
    count = sum(end - start + 1 for start, end in spans)
    (start, end), more = spans[0], f" and {len(spans) - 1} more gaps" if len(spans) > 1 else ""
    span = day_text(start) if start == end else f"{day_text(start)} to {day_text(end)}"
    return f"{count} day{'s' * (count > 1)} ({span}{more})"


def as_files(book: BookFolder, until: str = "") -> tuple[Path | None, Path]:
    """Return the tables of nodes and edges as they were known at the end of a day, as files of the book's cache.

    Args:
        book: the book.
        until: the day; "" for all that is known.

    Raises:
        FedGraphError: as `read_rows`.
    """
    name = digest(book.folder / "book.yaml")[:16] + (f"-{until}" if until else "")
    nodes, edges = (book.folder / CACHE / f"{name}-{table}.parquet" for table in (NODES, EDGES))
    if not edges.is_file():
        rows = read_rows(book)
        day = day_of(until) if until else int(rows.known.max())
        if (people := rows.nodes_at(day)) is not None:
            write_bytes(nodes, people.to_parquet(index=False))
        write_bytes(edges, rows.edges.iloc[rows.at(day)].to_parquet(index=False))
    return nodes if nodes.is_file() else None, edges


def books_in(folder: Path) -> list[Path]:
    """Return the books in a folder, by the numbers of their parties.

    Raises:
        FedGraphError: there is none.
    """
    books = [BookFolder.load(path) for path in sorted(folder.iterdir()) if is_book(path)] if folder.is_dir() else []
    if not books:
        raise FedGraphError(f"{folder} holds no book: pass the folder that holds those of all parties")
    return [book.folder for book in sorted(books, key=lambda book: book.party.client)]


def party_of(path: Path, until: str = "") -> tuple[PartyFile, Path]:
    """Return a party's file whose tables are those of its book, and its folder.

    Args:
        path: a party's file, or a folder with one.
        until: the day until which a book is read; "" for all of it.
    """
    if not path.is_dir():
        return read_party(path), path.parent
    if not is_book(path):
        return read_party(path / "party.yaml"), path
    book = BookFolder.load(path)
    nodes, edges = as_files(book, until)
    held: dict[str, Any] = {
        "nodes": str(nodes.relative_to(path)) if nodes else "",
        "edges": str(edges.relative_to(path)),
    }
    return replace(book.party, **held), path

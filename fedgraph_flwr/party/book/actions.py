"""Actions of the command ``book``: each yields the lines that the command prints."""

import argparse
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.party.book.erasing import erase as erase_accounts
from fedgraph_flwr.party.book.folder import EDGES, NODES, PARTY, BookFolder, Pinned, new_book
from fedgraph_flwr.party.book.rows import BookRows, day_text, gaps, read_rows
from fedgraph_flwr.party.tables.edges import amounts_of
from fedgraph_flwr.party.tables.reading import read_columns
from fedgraph_flwr.party.tables.repeats import reused
from fedgraph_flwr.party.tables.roles import Columns
from fedgraph_flwr.party.use.predict import digest_of
from fedgraph_flwr.party.use.predict_command import check_untyped, load_any


def new(args: argparse.Namespace) -> Iterator[str]:
    """Make a book with files."""
    if args.party_file is None:
        raise FedGraphError("book new needs --party-file FILE, which `fedgraph-flwr init-party` writes")
    yield from _with_files(new_book(args.book, args.party_file), args)


def add(args: argparse.Namespace) -> Iterator[str]:
    """Add files to a book."""
    yield from _with_files(BookFolder.load(args.book), args)


def _with_files(book: BookFolder, args: argparse.Namespace) -> Iterator[str]:
    """Add files to a book if all of it can be read, and yield what changed."""
    old = read_rows(book) if book.files else None
    more, new = book.added([Path(word) for word in args.words], args.known)
    changed = sum(export not in more.files for export in book.files)
    if skipped := len(args.words) - len(new) - changed:
        yield f"{skipped} of {len(args.words)} files are in the book already: left as they are"
    if not new and more == book:
        return
    try:
        rows = read_rows(more)
        if rows.columns.recipe:  # `predict` reads all amounts
            amounts_of(rows.edges, rows.columns.amount_column, str(more.folder), more.treatment)
        if not args.known:
            _check_order(more, rows, len(book.of(EDGES)))
    except FedGraphError as error:
        for export in new:  # so that the folder holds what the list has
            if not any(Path(word).resolve() == (book.folder / export.file).resolve() for word in args.words):
                (book.folder / export.file).unlink(missing_ok=True)
        if old is not None and str(error).startswith(f"{book.folder}: row"):
            raise FedGraphError(
                f"{', '.join(map(str, args.words))} cannot be added to {book.folder}, whose files are read as one table: {error}."
                f" The other files can be read: write values as they do, or set formats in {book.folder / PARTY}"
            ) from error
        raise
    if old is not None and not args.known and (tables := [e for e in new if e.table == NODES]):
        dated = {export.file: replace(export, known=day_text(rows.last)) for export in tables}
        more = replace(more, files=tuple(dated.get(export.file, export) for export in more.files))
        rows = read_rows(more)
        yield f"changed rows of {', '.join(dated)} are known from {day_text(rows.last)} on (--known DAY for another day)"
    more.save()
    more.clear_cache()
    if changed:
        yield f"{changed} of {len(args.words)} files are in the book already: their rows are known from {args.known} on now"
    yield from _lines(more, rows)
    if old is None:
        return
    late = (rows.days <= old.last) & (rows.file >= len(book.of(EDGES))) & (rows.known <= old.last)
    if (count := int(late.sum())) and not args.known:
        days = rows.days[late]
        yield (
            f"new rows of days that the book had: {count} ({day_text(days.min())} to {day_text(days.max())}). They count as"
            " known since then. If they came later, add the files again with --known DAY"
        )


def show(args: argparse.Namespace) -> Iterator[str]:
    """Say what a book holds."""
    if args.words:
        raise FedGraphError(f"book show takes the book alone, got '{args.words[0]}'")
    book = BookFolder.load(args.book)
    rows = read_rows(book)
    for place, export in enumerate(book.of(EDGES)):
        days = rows.days[rows.file == place]
        span = f"{_span(days)}, {days.size} rows" if days.size else "no rows"
        yield f"{export.file}: {span}{f', known from {export.known} on' if export.known else ''}"
    for export in book.of(NODES):
        yield f"{export.file}: accounts{f', known from {export.known} on' if export.known else ''}"
    yield from _lines(book, rows)
    model = book.model
    yield (
        f"model: {model.run} (digest {model.digest})"
        if model
        else "model: none is pinned (`fedgraph-flwr book use BOOK RUN`)"
    )


def _span(days: Any) -> str:
    return f"{day_text(days.min())} to {day_text(days.max())}"


def _lines(book: BookFolder, rows: BookRows) -> Iterator[str]:
    """Yield what a book holds: span, gaps, repeats, corrections, late rows and erased accounts."""
    at = rows.at(int(rows.known.max()))
    accounts = "" if rows.people is None else f", {len(rows.nodes_at(int(rows.known.max())))} accounts"
    yield f"{book.folder}: {at.size} payments on {np.unique(rows.days).size} days from {_span(rows.days)}{accounts}"
    if spans := list(gaps(rows.days)):
        listed = ", ".join(day_text(a) if a == b else f"{day_text(a)} to {day_text(b)}" for a, b in spans[:5])
        yield f"days without payments: {sum(b - a + 1 for a, b in spans)} ({listed}{', ...' if len(spans) > 5 else ''})"
    yield from _lacking(book, rows.columns)
    lost = np.setdiff1d(np.arange(len(rows.time)), at)
    by_id = lost[rows.versions[lost] >= 0]
    changed = _changed(rows, by_id, at)[0]
    if count := lost.size - int(changed.sum()):
        yield f"repeats: {count} (a repeated payment counts once)"
    corrected = by_id[changed]
    if corrected.size:
        name = rows.edges[rows.columns.edge_id].iloc[corrected[0]]
        yield f"corrections: {corrected.size}, by later rows with the same id, such as '{name}'"
    if text := reused(rows.edges.iloc[at], rows.columns):
        yield f"ids: {text}"
    if late := int((rows.known > rows.days).sum()):
        yield f"late: {late} (known after their day)"
    if book.erased:
        yield f"erased accounts: {len(book.erased) - 1}, whose rows do not count (erase again what later files have)"


def _lacking(book: BookFolder, columns: Columns) -> Iterator[str]:
    """Yield which files lack a column that is read and that others of their table have, but for labels."""
    for table in (NODES, EDGES):
        held = {e.file: [*read_columns(book.folder / e.file, columns.layout).columns] for e in book.of(table)}
        every = dict.fromkeys(name for names in held.values() for name in names)
        read = [columns.edge_id, *book.party.match, *book.party.edge_columns]
        wanted = [name for name in every if table == NODES or name in read]
        for file, names in held.items():
            missing = [name for name in wanted if name not in {*names, columns.label, columns.split}]
            if missing:
                listed = f"column{'s' * (len(missing) > 1)} {', '.join(missing)}"
                yield f"{file} has no {listed}, which other files of {table} have: unknown in its rows"


def _changed(rows: BookRows, old: Any, at: Any) -> tuple[Any, Any]:
    """Return which replaced rows differ from the row that counts instead, bool [K], and that row [K]."""
    place = np.full(int(rows.versions.max(initial=-1)) + 2, -1)
    place[rows.versions[at]] = at
    new = place[rows.versions[old]]
    texts = rows.edges.fillna("")
    differ = texts.iloc[old].to_numpy() != texts.iloc[np.maximum(new, 0)].to_numpy()
    return differ.any(axis=1) & (new >= 0), new


def _check_order(book: BookFolder, rows: BookRows, held: int) -> None:
    """Refuse new files whose rows those of earlier files replace, since these end later.

    Args:
        book: the book with the new files.
        rows: its rows.
        held: number of files of edges that it had.

    Raises:
        FedGraphError: names a payment and the files.
    """
    at, fresh = rows.at(int(rows.known.max())), np.flatnonzero((rows.file >= held) & (rows.versions >= 0))
    lost = np.setdiff1d(fresh, at)
    changed, by = _changed(rows, lost, at)
    if (against := np.flatnonzero(changed & (rows.file[by] < held))).size:
        row, other = lost[against[0]], by[against[0]]
        new, old = (book.of(EDGES)[rows.file[place]].file for place in (row, other))
        name = rows.edges[rows.columns.edge_id].iloc[row]
        raise FedGraphError(
            f"{new} has other values of payment '{sanitize(str(name), 40)}' than {old}, which ends later: pass --known DAY, the"
            f" day from which those of {new} are known"
        )


def use(args: argparse.Namespace) -> Iterator[str]:
    """Pin the model that scores the days of a book."""
    if len(args.words) != 1:
        raise FedGraphError(f"book use takes one RUN, state folder or exported folder, got {len(args.words)}")
    book, run = BookFolder.load(args.book), Path(args.words[0])
    client = book.party.client if args.client is None else args.client
    predictor, in_run = load_any(run, client, args.book / PARTY)
    check_untyped(predictor, args.book)
    digest = digest_of(predictor)
    pinned = str(predictor.client) if in_run and predictor.client is not None else ""
    replace(book, model=Pinned(os.path.relpath(run, args.book), pinned, digest)).save()
    whose = f", client {predictor.client}" if predictor.client is not None else ""
    yield f"{args.book}: {run}{whose} (round {predictor.round}, digest {digest}) scores from now on"


def erase(args: argparse.Namespace) -> Iterator[str]:
    """Remove accounts from a book."""
    book, counts = erase_accounts(BookFolder.load(args.book), args.words)
    for file, count in counts.items():
        yield f"rows removed from {file}: {count}"
    yield (
        f"{args.book}: erased accounts: {len(args.words)}; the list keeps keyed hashes of their ids, so that later files cannot"
        " bring them back. Client files, models and predictions made before still hold them: import, link and train again"
    )
    if book.model:
        yield f"the pinned model {book.model.run} was trained with these rows"

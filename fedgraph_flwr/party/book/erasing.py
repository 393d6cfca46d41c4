"""Erasure of a person from a book: the rows of the account leave the exports, and the list keeps a keyed hash of its id."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.data.schema import TableLayout
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.party.book.folder import EDGES, BookFolder, digest
from fedgraph_flwr.party.tables.reading import read_table


def erase(book: BookFolder, ids: Sequence[str]) -> tuple[BookFolder, dict[str, int]]:
    """Remove accounts from the files of a book; return it, and the number of removed rows by file.

    A file with such rows is written anew, as UTF-8 with commas or as Parquet; others stay as they are.

    Raises:
        FedGraphError: no file has an account.
    """
    columns, marked_book = book.columns, book.with_erased(ids)
    counts, files = {}, []
    for export in book.files:
        path = book.folder / export.file
        table = read_table(path, columns.layout)
        names = (columns.source, columns.target) if export.table == EDGES else (columns.id,)
        lost = marked_book.is_erased(table, names)
        if lost.any():
            counts[export.file] = int(lost.sum())
            _write(path, table[~lost], columns.layout)
            export = replace(export, digest=digest(path))
        files.append(export)
    if not counts:
        raise FedGraphError(
            f"{book.folder} has no row of '{sanitize(ids[0], 40)}': expected ids as the files write them"
        )
    made = replace(marked_book, files=tuple(files))
    made.save()
    made.clear_cache()
    return made, counts


def _write(path: Path, table: Any, layout: TableLayout) -> None:
    if path.suffix == ".parquet":
        write_bytes(path, table.to_parquet(index=False))
        return
    buffer = io.BytesIO()
    compression: Any = "gzip" if path.suffix == ".gz" else None
    separator, encoding = layout.separator or ",", layout.encoding or "utf-8"
    table.to_csv(buffer, index=False, sep=separator, encoding=encoding, compression=compression)
    write_bytes(path, buffer.getvalue())

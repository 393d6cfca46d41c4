"""A party's book: a folder with its own exports, unchanged, its ``party.yaml``, and the list ``book.yaml``.

    files:
    - {file: payments.csv, table: edges, digest: 6b1f…, known: ''}
    - {file: 2026-03-04.csv, table: edges, digest: 09ac…, known: '2026-03-06'}    # it came late
    erased: [9c0e…]                                                               # keyed hashes of erased accounts
    model: {run: ../runs/mine, client: 0, digest: 81d0…}                          # which model scores (`book use`)

``known`` is the day from which the rows of a file are known; without one, each row is known from its own day on. So what is known
at the end of a day does not depend on how the book was filled. A row that corrects one of an earlier file counts from its file's
day on: ``known``, else the last day of its rows.
"""

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from fedgraph_flwr.config import typed
from fedgraph_flwr.config.config_file import load_texts
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.data.schema import TableLayout
from fedgraph_flwr.errors import FedGraphError, check_names
from fedgraph_flwr.party.party_file import PartyFile, read_party
from fedgraph_flwr.party.tables.columns import Treatment, as_words
from fedgraph_flwr.party.tables.nodes import column_of
from fedgraph_flwr.party.tables.parties import PartyRule
from fedgraph_flwr.party.tables.reading import read_columns
from fedgraph_flwr.party.tables.roles import Columns

LIST, PARTY, CACHE = "book.yaml", "party.yaml", ".cache"
EDGES, NODES = "edges", "nodes"
DAY_FORM = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class Export:
    """One file of a book.

    Attributes:
        file: its name in the folder.
        table: `EDGES` or `NODES`.
        digest: SHA-256 of its content.
        known: day from which its rows are known, as 2026-03-04; "" for the day of each row.
    """

    file: str
    table: str
    digest: str
    known: str = ""


@dataclass(frozen=True)
class Pinned:
    """The model that scores a book's days.

    Attributes:
        run: run folder, state folder or exported folder, relative to the book.
        client: the party's number in a run folder; "" for another folder.
        digest: of the model's parameters.
    """

    run: str
    client: str
    digest: str


@dataclass(frozen=True)
class BookFolder:
    """A book.

    Attributes:
        folder: where it is.
        party: the party's file.
        files: the exports, in the order in which they were added.
        erased: the key of the hashes, then hashes of the ids of erased accounts.
        model: the pinned model, if there is one.
    """

    folder: Path
    party: PartyFile
    files: tuple[Export, ...] = ()
    erased: tuple[str, ...] = ()
    model: Pinned | None = None

    @classmethod
    def load(cls, folder: Path) -> "BookFolder":
        """Read a book's list.

        Raises:
            FedGraphError: the folder is no book, its list is damaged, or a file is missing or has changed.
        """
        path = folder / LIST
        if not path.is_file():
            raise FedGraphError(
                f"{folder} is not a book (it has no {LIST}): make one by `fedgraph-flwr book new {folder} --party-file"
                " PARTY.YAML accounts.csv payments.csv`"
            )
        values = load_texts(path, "a book's list")
        keys = ("files", "erased", "model")
        if not isinstance(values, dict) or not isinstance(values.get("files"), list):
            raise FedGraphError(f"{path} is damaged: expected the keys {', '.join(keys)}. Make the book again")
        check_names(values, keys, "key", str(path))
        files = tuple(typed(Export, dict(row), f"{path}=") for row in values["files"])
        model = typed(Pinned, dict(values["model"]), f"{path}=") if values.get("model") else None
        book = cls(folder, read_party(folder / PARTY), files, tuple(values.get("erased") or ()), model)
        for export in files:
            book._check(export)
        return book

    def _check(self, export: Export) -> None:
        path = self.folder / export.file
        if not path.is_file():
            raise FedGraphError(f"{path} is missing, which the book lists: restore the file")
        if digest(path) != export.digest:
            raise FedGraphError(
                f"{path} has changed since it was added: restore it, and add a corrected export as a further file"
                " (`fedgraph-flwr book add`)"
            )

    def save(self) -> None:
        """Write the list."""
        values: dict[str, Any] = {"files": [asdict(export) for export in self.files]}
        values |= {"erased": list(self.erased)} if self.erased else {}
        values |= {"model": asdict(self.model)} if self.model else {}
        write_bytes(
            self.folder / LIST, yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=1000).encode()
        )

    @property
    def layout(self) -> TableLayout:
        """Names of columns and format of the files, by the party's file and the schema."""
        schema = self.party.schema_in(self.folder)
        return self.party.layout.over(schema.tables) if schema else self.party.layout

    @property
    def treatment(self) -> Treatment:
        """Formats of values, by the party's file and the schema."""
        where = str(self.party.path("schema", self.folder))
        return Treatment(schema=self.party.schema_in(self.folder), where=where, **self.party.formats)

    @property
    def columns(self) -> Columns:
        """Roles of the columns."""
        return Columns.of(self.layout, self.party.feature_columns, self.party.edge_columns)

    def rule(self, columns: Columns) -> PartyRule | None:
        """Return how rows name accounts of other parties; None without such columns."""
        named = columns.party_columns or columns.party_prefix
        return columns.parties(self.party.party) if named else None

    def of(self, table: str) -> list[Export]:
        """Return the files of one table."""
        return [export for export in self.files if export.table == table]

    def added(self, paths: Sequence[Path], known: str = "") -> tuple["BookFolder", list[Export]]:
        """Return the book with further files, which are copied into its folder, and those that are new.

        A file that the book has takes the given day, if there is one.

        Args:
            paths: the exports.
            known: day from which their rows are known; "" for the day of each row.

        Raises:
            FedGraphError: a file is neither of edges nor of nodes, or the folder has another one with its name.
        """
        if known and not _is_day(known):
            raise FedGraphError(f"--known must be a day such as 2026-03-04, got '{known}'")
        new: list[Export] = []
        again: list[str] = []
        for path in paths:
            checksum = digest(path) if path.is_file() else ""
            table = self._table(path)
            if any(export.digest == checksum for export in (*self.files, *new)):
                again += [checksum] if known else []
                continue
            target = self.folder / path.name
            if path.resolve() != target.resolve():
                if target.exists():
                    raise FedGraphError(f"{target} exists with other content: rename {path} before you add it")
                self.folder.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
            new.append(Export(path.name, table, checksum, known))
        held = (replace(export, known=known) if export.digest in again else export for export in self.files)
        return replace(self, files=(*held, *new)), new

    def _table(self, path: Path) -> str:
        """Return which table a file is, by its columns."""
        columns = self.columns
        held = read_columns(path, columns.layout) if path.is_file() else None
        if held is None:
            raise FedGraphError(f"no such table: {path}; expected a .csv, .tsv, .txt or .parquet file")
        if {columns.source, columns.target} <= {*map(str, held.columns)}:
            return EDGES
        if self.party.nodes or not self.party.edges:
            column_of(held, columns.id, str(path), "id")
            return NODES
        raise FedGraphError(
            f"{path} has no columns {columns.source} and {columns.target}: expected a table of payments"
        )

    def is_erased(self, table: Any, names: Iterable[str]) -> NDArray[np.bool_]:
        """Return which rows of a table name an erased account in one of its columns, bool [N]."""
        hashes, lost = {*self.erased[1:]}, np.zeros(len(table), dtype=bool)
        for name in names if hashes else ():
            lost |= np.array([self._hash(word) in hashes for word in as_words(table[name]).tolist()], dtype=bool)
        return lost

    def _hash(self, word: str) -> str:
        key = bytes.fromhex(self.erased[0])
        return hashlib.blake2b("".join(word.split()).casefold().encode(), digest_size=16, key=key).hexdigest()

    def with_erased(self, ids: Sequence[str]) -> "BookFolder":
        """Return the book whose list names these accounts as erased, by keyed hashes."""
        keyed = replace(self, erased=self.erased or (secrets.token_hex(16),))
        return replace(keyed, erased=tuple(dict.fromkeys([*keyed.erased, *map(keyed._hash, ids)])))

    def clear_cache(self) -> None:
        """Delete what was computed from the files."""
        shutil.rmtree(self.folder / CACHE, ignore_errors=True)


def _is_day(text: str) -> bool:
    import pandas as pd

    return bool(DAY_FORM.fullmatch(text)) and not pd.isna(pd.to_datetime(text, errors="coerce"))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def new_book(folder: Path, party_file: Path) -> BookFolder:
    """Return an empty book with a party's file, whose paths are made relative to the folder.

    Raises:
        FedGraphError: the folder holds a book already, or the party's file is invalid.
    """
    if (folder / LIST).exists():
        raise FedGraphError(f"{folder} is a book already: `fedgraph-flwr book add {folder} FILE` adds files")
    party = read_party(party_file)
    moved: dict[str, Any] = {
        key: os.path.relpath(path, folder)
        for key in ("schema", "out", "outcomes")
        if (path := party.path(key, party_file.parent))
    }
    made = replace(party, **moved)
    if (folder / PARTY).resolve() != party_file.resolve():
        usual = vars(PartyFile())
        values = {key: value for key, value in vars(made).items() if value != usual[key]}
        write_bytes(folder / PARTY, yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode())
    return BookFolder(folder, made)


def is_book(path: Path) -> bool:
    """Return whether a folder is a book."""
    return (path / LIST).is_file()

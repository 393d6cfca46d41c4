"""Which runs of a sweep are at hand, which are missing, and how long those take."""

import functools
import hashlib
import math
import statistics
from collections.abc import Iterator, Sequence

from fedgraph_flwr.config import RunConfig, configuration, group_names
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.sweeps.rows import COUNTED, Identity, Row, beside, failure, identity, lasting, number, read
from fedgraph_flwr.sweeps.spec import Cell, Sweep


class ResultsIndex:
    """The rows of one sweep, those at hand and those that are added.

    A row serves every cell that is the same run: under another name, in another table of the folder, its words in another order;
    not where its data have changed since, and a failure only in the table that it was made for.

    Attributes:
        found: rows of cells, by what they are.
    """

    def __init__(self, sweep: Sweep, retry: bool = False):
        self.sweep = sweep
        self.found: dict[Identity, Row] = {}
        self._own = read(sweep.results)
        self._known: dict[Identity, list[Row]] = {}
        others = (row for row in beside(sweep.results) if not failure(row))
        for row in (*self._own, *others):
            if lasting(row) and not (retry and failure(row)):
                self._known.setdefault(identity(str(row["method"]), str(row["words"])), []).append(row)

    def missing(self, only: str = "") -> list[Cell]:
        """The runs that are asked for and not at hand, each once; of cells whose label contains ``only``."""
        while True:
            cells = [cell for cell in self.sweep.cells(self.found) if cell.identity not in self.found]
            at_hand = {cell.identity: row for cell in cells if (row := self._at_hand(cell))}
            self.found |= at_hand
            if not (at_hand and self.sweep.search):  # what a search asks for next follows from what it found
                wanted = [cell for cell in cells if cell.identity not in at_hand and only in cell.label]
                return list({cell.identity: cell for cell in reversed(wanted)}.values())[::-1]

    def _at_hand(self, cell: Cell) -> Row | None:
        choosing = (self.sweep.grid or self.sweep.search) and cell.method not in COUNTED
        for row in self._known.get(cell.identity, []):
            if (row.get("data") or "") == data_of(cell.words) and (
                row.get("validation") or failure(row) or not choosing
            ):
                return row
        return None

    def add(self, cell: Cell, row: Row) -> list[Row]:
        """Take up the row of a run; as it stands in the CSV, under every name that the run has."""
        self.found[cell.identity] = {**row, "data": data_of(cell.words)}
        return [row for row in self.rows() if identity(row["method"], row["words"]) == cell.identity]

    def rows(self) -> Iterator[Row]:
        """The rows of the cells, as these are called now."""
        for cell in self.sweep.cells(self.found):
            if cell.identity in self.found:
                yield {**self.found[cell.identity], **cell.row}

    def kept(self) -> list[Row]:
        """What the CSV is to hold: the rows of the cells, then those that served others, which may be asked for again."""
        other = [row for row in self._own if identity(row["method"], row["words"]) not in self.found and lasting(row)]
        return [*self.rows(), *other]

    def seconds(self, cells: Sequence[Cell]) -> float | None:
        """How long cells take one after another, by runs at hand that are like them; None where there are none."""
        known = [
            (row, took)
            for rows in (*self._known.values(), [*self.found.values()])
            for row in rows
            if (took := _took(row))
        ]
        if not known:
            return None
        by: dict[tuple[str, ...], list[float]] = {}
        for row, took in known:
            for key in ((row["setting"], row["method"]), (row["method"],), ()):
                by.setdefault(key, []).append(took)
        keys = ([(cell.setting, cell.method), (cell.method,), ()] for cell in cells if cell.method not in COUNTED)
        return sum(next(statistics.mean(by[key]) for key in tried if key in by) for tried in keys)


def _took(row: Row) -> float:
    """Seconds of a run; rows of before they were noted have those of its rounds. 0: unknown."""
    if failure(row) or row["method"] in COUNTED:
        return 0.0
    took = number(row, "seconds")
    took = number(row, "rounds") * number(row, "seconds_per_round") if math.isnan(took) else took
    return 0.0 if math.isnan(took) else took


# --- words ------------------------------------------------------------------------------------------------------------


def composed(sweep: Sweep, cells: Sequence[Cell]) -> list[RunConfig]:
    """The configurations of cells, each once for all its seeds and the trials of a search.

    Raises:
        FedGraphError: one cannot be composed; with the file and line of the word, where there is a file.
    """
    searched = {key for key, *_ in sweep.search.keys} if sweep.search else set()  # trials differ in values alone
    alike = {frozenset(w for w in cell.words[:-1] if w.partition("=")[0] not in searched): cell for cell in cells}
    return [_compose(sweep, cell.words[:-1]) for cell in alike.values()]


def _compose(sweep: Sweep, words: tuple[str, ...]) -> RunConfig:
    for word in words:
        if word.startswith(("out=", "resume=")):
            where = f"{sweep.places[word]}: " if word in sweep.places else ""
            raise FedGraphError(f"{where}{word}, but the runs of a sweep have folders of their own (see --keep)")
    try:
        return configuration(words)
    except FedGraphError as error:
        blamed = next((words[n] for n in range(len(words)) if not _composes(words[: n + 1])), "")
        place = sweep.places.get(blamed)
        raise FedGraphError(f"{place}: {blamed}: {error}" if place else str(error)) from error


def _composes(words: tuple[str, ...]) -> bool:
    try:
        configuration(words)
    except FedGraphError:
        return False
    return True


def data_of(words: Sequence[str]) -> str:
    """A digest of the files of a user's own that a run reads, graphs and ``config=``; empty where there are none."""
    keys = ("graph", "dataset", "dataset.name", "dataset.path", "config")
    return _digest(tuple(word for word in words if word.partition("=")[0] in keys))


@functools.cache
def _digest(words: tuple[str, ...]) -> str:
    given = dict(word.partition("=")[::2] for word in words)
    named = given.get("dataset", given.get("dataset.name", "csbm"))
    if not given.keys() & {"graph", "config"} and named != "file" and named in group_names("dataset"):
        return ""
    from fedgraph_flwr.config import to_json
    from fedgraph_flwr.partition import content

    cfg = configuration(words)
    told = [*content(cfg), *([to_json(cfg)] if "config" in given else [])]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16] if told else ""

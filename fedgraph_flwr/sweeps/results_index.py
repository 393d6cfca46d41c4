"""Index of a sweep's rows: available runs, missing runs, and their estimated duration."""

import functools
import hashlib
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

from fedgraph_flwr.config import RunConfig, configuration, group_names
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.store.checkpoint import flat_keys
from fedgraph_flwr.sweeps.rows import COUNTED, Identity, Row, beside, failure, identity, lasting, number, read
from fedgraph_flwr.sweeps.spec import Cell, Sweep


class ResultsIndex:
    """Available and added rows of one sweep.

    A row serves every cell that is the same run: under another name, in another table of the folder, or with its overrides in
    another order. It does not serve a cell whose data changed since. A failure serves only the table that it was made for.

    Attributes:
        finished: rows by the identity of their cells.
    """

    def __init__(self, sweep: Sweep, retry: bool = False):
        self.sweep = sweep
        self.finished: dict[Identity, Row] = {}
        self._own = read(sweep.results)
        self._known: dict[Identity, list[Row]] = {}
        others = (row for row in beside(sweep.results) if not failure(row))
        for row in (*self._own, *others):
            if lasting(row) and not (retry and failure(row)):
                self._known.setdefault(identity(str(row["method"]), str(row["words"])), []).append(row)

    def missing(self, only: str = "") -> list[Cell]:
        """Return missing runs without repetition, for cells whose label contains ``only``."""
        while True:
            cells = [cell for cell in self.sweep.cells(self.finished) if cell.identity not in self.finished]
            stored = {cell.identity: row for cell in cells if (row := self._stored(cell))}
            self.finished |= stored
            if not (stored and self.sweep.unfolds):
                wanted = [cell for cell in cells if cell.identity not in stored and only in cell.label]
                return list({cell.identity: cell for cell in reversed(wanted)}.values())[::-1]

    def _stored(self, cell: Cell) -> Row | None:
        choosing = (self.sweep.grid or self.sweep.search) and cell.method not in COUNTED
        for row in self._known.get(cell.identity, []):
            if (row.get("data") or "") == data_of(cell.overrides) and (
                row.get("validation") or failure(row) or not choosing
            ):
                return row
        return None

    def add(self, cell: Cell, row: Row) -> list[Row]:
        """Add the row of a run, and return its CSV rows under every name of the run."""
        self.finished[cell.identity] = {**row, "data": data_of(cell.overrides)}
        return [row for row in self.rows() if identity(row["method"], row["words"]) == cell.identity]

    def rows(self) -> Iterator[Row]:
        """Return the rows of the cells under their current names."""
        for cell in self.sweep.cells(self.finished):
            if cell.identity in self.finished:
                yield {**self.finished[cell.identity], **cell.row}

    def kept(self) -> list[Row]:
        """Return the rows to store: those of the cells, then unused ones, which may be needed again."""
        other = [
            row for row in self._own if identity(row["method"], row["words"]) not in self.finished and lasting(row)
        ]
        return [*self.rows(), *other]

    def seconds(self, cells: Sequence[Cell]) -> float | None:
        """Estimate the seconds of running cells sequentially, from similar available runs; None if there are none."""
        by: dict[tuple[str, ...], list[float]] = {}
        for row in itertools.chain(*self._known.values(), self.finished.values()):
            if took := _took(row):
                for key in ((row["setting"], row["method"]), (row["method"],), ()):
                    by.setdefault(key, []).append(took)
        if not by:
            return None
        means = {key: statistics.mean(took) for key, took in by.items()}
        keys = ([(cell.setting, cell.method), (cell.method,), ()] for cell in cells if cell.method not in COUNTED)
        return sum(next(means[key] for key in tried if key in means) for tried in keys)


def _took(row: Row) -> float:
    """Return the seconds of a run; for old rows, those of its rounds. 0: unknown."""
    if failure(row) or row["method"] in COUNTED:
        return 0.0
    took = number(row, "seconds")
    took = number(row, "rounds") * number(row, "seconds_per_round") if math.isnan(took) else took
    return 0.0 if math.isnan(took) else took


# --- overrides --------------------------------------------------------------------------------------------------------


def composed(sweep: Sweep, cells: Sequence[Cell]) -> list[RunConfig]:
    """Return the configurations of cells, one for all seeds and trials of a search.

    Raises:
        FedGraphError: one cannot be composed, or names code that cannot be imported; the message has file and line, if there
            is a file.
    """
    searched = {key for key, *_ in sweep.search.keys} if sweep.search else set()  # trials differ only in values
    alike = {frozenset(w for w in cell.overrides[:-1] if w.partition("=")[0] not in searched): cell for cell in cells}
    return [_compose(sweep, cell.overrides[:-1]) for cell in alike.values()]


def _compose(sweep: Sweep, overrides: tuple[str, ...]) -> RunConfig:
    for word in overrides:
        where = f"{sweep.places[word]}: " if word in sweep.places else ""
        if word.startswith(("out=", "resume=")):
            raise FedGraphError(f"{where}{word}, but each run of a sweep has its own folder (see --keep)")
        _refuse_agreed(word, where)
    try:
        cfg = _checked(overrides)
    except FedGraphError as error:
        blamed = next((overrides[n] for n in range(len(overrides)) if not _composes(overrides[: n + 1])), "")
        place = sweep.places.get(blamed)
        raise FedGraphError(f"{place}: {blamed}: {error}" if place else str(error)) from error
    for key, value in flat_keys(cfg).items():
        _refuse_agreed(f"{key}={value}", "")  # of a file that config= names
    return cfg


def _refuse_agreed(word: str, where: str) -> None:
    """Refuse an override that is for runs under an agreement."""
    if word != "agreement=" and word.startswith(("agreement=", "privacy.coordinator=verified")):
        raise FedGraphError(
            f"{where}a sweep makes many runs, and {word} is for those that members agreed on: leave it out, and make the chosen"
            " run by `fedgraph-flwr run --agreement FILE`"
        )


def _checked(overrides: tuple[str, ...]) -> RunConfig:
    from fedgraph_flwr.launch.checks import check_code

    cfg = configuration(overrides)
    check_code(cfg)
    return cfg


def _composes(overrides: tuple[str, ...]) -> bool:
    try:
        _checked(overrides)
    except FedGraphError:
        return False
    return True


def data_of(overrides: Sequence[str]) -> str:
    """Return a digest of the user's files that a run reads (graphs, ``config=``); empty without any."""
    keys = ("graph", "dataset", "dataset.name", "dataset.path", "config")
    return _digest(tuple(word for word in overrides if word.partition("=")[0] in keys))


@functools.cache
def _digest(overrides: tuple[str, ...]) -> str:
    given = dict(word.partition("=")[::2] for word in overrides)
    named = given.get("dataset", given.get("dataset.name", "demo"))
    if not given.keys() & {"graph", "config"} and named != "file" and named in group_names("dataset"):
        return ""
    from fedgraph_flwr.config import to_json
    from fedgraph_flwr.partition import content

    cfg = configuration(overrides)
    parts = [*content(cfg), *([to_json(cfg)] if "config" in given else [])]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16] if parts else ""

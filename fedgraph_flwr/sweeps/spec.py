"""Specification of a sweep, read from a YAML file.

title, source      title of the table, and its source
common             overrides (``key=value``) of every run; ``[a=1, b=2]``, ``a=1 b=2`` and ``{a: 1, b: 2}`` are the same
settings           name → overrides: the rows of the table, or the points of a plot's x axis; default: one row
methods            name → overrides: the columns, or a list of strategies. Two need no run: ``Majority`` scores the most frequent
                   label, ``Homophily`` is the mean over clients of their graphs' node homophily
baselines          whether to add Majority and Local if they are not listed; default: true
grid               choice → overrides. Every method runs with every choice, and a cell shows the one with the highest mean
                   validation score over the seeds
search             instead of a grid: ``trials`` and key → distribution, see `fedgraph_flwr.sweeps.search`
tuned_on           number of seeds, the first, on which choices are compared; the best one runs on the others. Default: all
seeds              list of seeds, or ``0..4``
baseline           reference column of differences; default: Local, else the first that runs
margin             points within which an interval of a difference counts as level; default: 1
paper              setting → method → published score
beside             additional rows: name → method → a score that no run produces, such as a benchmark's
notes              text printed below the table
figure             name of the x axis of a plot (PNG), if settings are numbers. Default: none
out                folder of the results, relative to the file's folder; default: the same folder
extends            another file that provides missing keys
"""

import contextlib
import functools
import itertools
import json
import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from fedgraph_flwr.config import ModelConfig, StrategyConfig, configuration, parts
from fedgraph_flwr.config.config_file import lines_of, parse_yaml
from fedgraph_flwr.config.engines import SIMULATIONS
from fedgraph_flwr.config.schema import CHOICES, IDLE
from fedgraph_flwr.errors import FedGraphError, check_names, no_yaml, unknown
from fedgraph_flwr.evaluation import chance
from fedgraph_flwr.evaluation.verdict import MARGIN
from fedgraph_flwr.sweeps.rows import COUNTED, MAJORITY, Finished, Identity, identity, number
from fedgraph_flwr.sweeps.search import Search
from fedgraph_flwr.sweeps.values import expand

_DECIDING = (
    "config=",
    "protocol=",
    "dataset",
    "graph=",
    "engine=",
    "task",
    "split",
    "partition",
    "strategy=",
    "evaluation.patience=",
    "tracking=",
)
"""Beginnings of overrides that decide which keys of `IDLE` are read."""

LOCAL, _LOCAL = "Local", "strategy=local"


@dataclass(frozen=True)
class Cell:
    """One run: its row, its column with its choice (``FedAvg, lr 0.1``), its seed, its overrides.

    ``group`` is the group of its run in trackers.
    """

    setting: str
    method: str
    seed: int
    overrides: tuple[str, ...]
    group: str = ""

    @property
    def label(self) -> str:
        """Label that `--only` filters."""
        return f"{self.setting}/{self.method}/{self.seed}"

    @property
    def row(self) -> dict[str, Any]:
        """Columns of its row that describe the request."""
        return {"setting": self.setting, "method": self.method, "seed": self.seed, "words": " ".join(self.overrides)}

    @property
    def identity(self) -> Identity:
        """Identity of the run, independent of names and of the order of overrides."""
        return identity(self.method, " ".join(self.overrides))


@dataclass
class Sweep:
    """Specification of a sweep; see the module.

    ``over`` are overrides with the highest precedence, ``by_seed`` further ones of a seed, ``places`` has file and line of keys,
    ``made`` the command of the table.
    """

    name: str
    folder: Path
    made: str
    title: str = ""
    source: str = ""
    common: list[str] = field(default_factory=list)
    settings: dict[str, list[str]] = field(default_factory=dict)
    methods: dict[str, list[str]] = field(default_factory=dict)
    over: list[str] = field(default_factory=list)
    by_seed: Mapping[int, list[str]] = field(default_factory=dict)
    baselines: bool = True
    grid: dict[str, list[str]] = field(default_factory=dict)
    search: Search | None = None
    tuned_on: int = 0
    seeds: list[int] = field(default_factory=lambda: [0])
    baseline: str | bool = ""
    margin: float = MARGIN
    paper: dict[str, dict[str, Any]] = field(default_factory=dict)
    beside: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: str = ""
    figure: str | bool = False
    places: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.grid and self.search:
            raise FedGraphError(f"{self.name}: grid and search both tune on validation nodes: remove one")
        if type(self.tuned_on) is not int or not 0 <= self.tuned_on <= len(self.seeds):
            where = self.places.get("tuned_on", self.name)
            raise FedGraphError(
                f"{where}: tuned_on={self.tuned_on!r} must be at most the number of seeds, {len(self.seeds)}"
            )
        if isinstance(self.margin, bool) or not isinstance(self.margin, int | float) or not 0 <= self.margin <= 100:
            where = self.places.get("margin", self.name)
            raise FedGraphError(f"{where}: margin={self.margin!r} must be a number of points from 0 to 100")
        if self.baselines:
            chosen = (_last("strategy", [*self.common, *how]) for how in self.methods.values())
            beside = {LOCAL: [_LOCAL]} if "local" not in chosen and LOCAL not in self.methods else {}
            self._added = list(beside)
            # A fleet's labels stay with its parties.
            counted = _last("engine", [*self.common, *self.over]) in ("", *SIMULATIONS)
            named = {MAJORITY: self.methods.get(MAJORITY, [])} if counted else {}
            self.methods = named | beside | self.methods
        if isinstance(self.baseline, str) and self.baseline and self.baseline not in self.methods:
            raise unknown("baseline: column", self.baseline, self.methods, self.places.get("baseline", ""))
        self._check_grid()

    _added: list[str] = field(default_factory=list, init=False)

    @property
    def reference(self) -> str:
        """Reference column of differences; empty: none."""
        if isinstance(self.baseline, bool):
            return ""
        running = self.running
        local = [method for method in running if _last("strategy", [*self.common, *self.methods[method]]) == "local"]
        return self.baseline or (local or running or [""])[0]

    @property
    def running(self) -> list[str]:
        """Columns that need runs."""
        return [method for method in self.methods if method not in COUNTED]

    @property
    def results(self) -> Path:
        """Path of the CSV file; table and plot are next to it."""
        return self.folder / f"{self.name}.csv"

    @property
    def tuning_seeds(self) -> list[int]:
        """Seeds on which choices are compared."""
        return self.seeds[: self.tuned_on or None]

    @property
    def unfolds(self) -> bool:
        """Whether further runs follow from the results of earlier ones."""
        return bool(self.search or self.tuned_on)

    def cells(self, stored_rows: Finished) -> Iterator[Cell]:
        """Yield every run. Seeds are the outermost loop, so that a table fills evenly.

        Args:
            stored_rows: available rows; the next trials of a search and the selected choice depend on them.
        """
        chosen = {
            (setting, method): self.choices(setting, method, stored_rows)
            for setting, method in itertools.product(self.settings, self.methods)
        }
        group = str(self.results.with_suffix("").absolute())
        taken = (
            {at: self._selected(*at, choices, stored_rows) for at, choices in chosen.items()} if self.tuned_on else {}
        )
        for seed in self.seeds:
            for (setting, method), choices in chosen.items():
                if seed not in self.tuning_seeds:
                    choices = taken[setting, method]
                for name, overrides in choices.items():
                    yield Cell(setting, name, seed, self._words(overrides, seed), group)

    def _words(self, overrides: Sequence[str], seed: int) -> tuple[str, ...]:
        """Return the overrides of a run, without keys of `IDLE` that only other choices read; the last one is its seed."""
        words = (*overrides, *self.over, *self.by_seed.get(seed, []))
        idle = (given := idle_keys(words)) and given & self._read_somewhere
        return *(word for word in words if word.partition("=")[0] not in idle), f"seed={seed}"

    @functools.cached_property
    def _read_somewhere(self) -> set[str]:
        """Keys of `IDLE` that a run with a choice of the sweep reads."""
        crossed = itertools.product(
            self.settings.values(), self.methods.values(), self.grid.values() or [[]], self.by_seed.values() or [[]]
        )
        runs = [(*self.common, *itertools.chain(*choices[:3]), *self.over, *choices[3]) for choices in crossed]
        return {key for run in runs for key in _keys_of(run) & IDLE.keys() - idle_keys(run)}

    def choices(self, setting: str, method: str, stored_rows: Finished) -> dict[str, list[str]]:
        """Return the overrides (without ``over`` and seed) of every choice of a row and column, by its name in the CSV.

        A key of one method or model, such as ``strategy.mu``, is tuned only for the columns that define it.
        """
        overrides = self._fixed(setting, method)
        every: dict[str, list[str]] = {}
        if method not in COUNTED and self.search:
            search = self.search.of(lambda key: knows((*overrides, *self.over), key))
            every = search.trials(lambda more: self._validation(setting, method, [*overrides, *more], stored_rows))
        elif method not in COUNTED:
            for choice, more in self.grid.items():
                taken = [word for word in more if knows((*overrides, *more, *self.over), word.partition("=")[0])]
                if taken not in every.values():
                    every[choice] = taken
        if len(every) == 1 and not next(iter(every.values())):  # no choice
            every = {}
        return {f"{method}, {name}": [*overrides, *more] for name, more in every.items()} or {method: overrides}

    def _fixed(self, setting: str, method: str) -> list[str]:
        """Return the overrides of every choice of a row and column, without ``over``."""
        overrides = [*self.common, *self.settings[setting], *self.methods[method]]
        if method in self._added:  # overrides for another method
            return [w for w in overrides if w == _LOCAL or not w.startswith(("strategy=", "strategy."))]
        return overrides

    def _check_grid(self) -> None:
        """Refuse a tuned key that no column defines, which would have no effect."""
        searched = {key: [key] for key, *_ in self.search.keys} if self.search else {}
        columns = [self._fixed(*at) for at in itertools.product(self.settings, self.running)]
        for choice, words in (self.grid | searched).items():
            for key in (word.partition("=")[0] for word in words):
                if not any(knows((*column, *words, *self.over), key) for column in columns):
                    where = self.places.get(f"grid.{choice}", self.places.get("search", self.name))
                    named = ", ".join(self.running)
                    what = f"{where}: no column ({named}) defines the tuned key {key}, so it would have no effect"
                    raise FedGraphError(f"{what}: choose its method, part or model, or leave the key out")

    def _selected(
        self, setting: str, method: str, choices: dict[str, list[str]], stored_rows: Finished
    ) -> dict[str, list[str]]:
        """Return the choice with the best mean validation score, by name; empty until all choices have run."""
        if len(choices) == 1:
            return choices
        scores = {name: self._validation(setting, method, how, stored_rows) for name, how in choices.items()}
        known = {name: -math.inf if math.isnan(score) else score for name, score in scores.items() if score is not None}
        best = max(known, key=lambda name: known[name]) if len(known) == len(choices) else ""
        return {best: choices[best]} if best else {}

    def _validation(self, setting: str, method: str, overrides: Sequence[str], stored_rows: Finished) -> float | None:
        """Return the mean validation score over the tuning seeds, more is better; NaN if one failed, None if one has not run."""
        cells = [Cell(setting, method, seed, self._words(overrides, seed)) for seed in self.tuning_seeds]
        rows = [stored_rows[cell.identity] for cell in cells if cell.identity in stored_rows]
        return statistics.fmean(_watched(row) for row in rows) if len(rows) == len(cells) else None


def _last(key: str, overrides: Sequence[str]) -> str:
    """Return the value of the last override of this key; empty without one."""
    return next((w.partition("=")[2] for w in reversed(overrides) if w.partition("=")[0] == key), "")


SELECTING = tuple(f"strategy.{key}" for key in ("name", "server", "client", *CHOICES))
"""Keys that choose a method, its classes and its parts."""

_SELECTIONS = ("strategy", *SELECTING, "model", "model.name", "config", "protocol")


def knows(overrides: Sequence[str], key: str) -> bool:
    """Whether the selected method or model defines a key; keys of other groups apply to every run."""
    group, _, name = key.partition(".")
    common = {"strategy": StrategyConfig, "model": ModelConfig}.get(group)
    if not common or name in {f.name for f in fields(common)} - parts.KEYS.keys():
        return True
    known = _own_keys(group, tuple(word for word in overrides if word.partition("=")[0] in _SELECTIONS))
    return name in known or name.partition(".")[0] in known  # the section of a part that is not built in


def _keys_of(overrides: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in overrides}


def idle_keys(overrides: Sequence[str]) -> set[str]:
    """Return the keys of `IDLE` among overrides that a run with them would refuse, since others make them ineffective."""
    given = _keys_of(overrides) & IDLE.keys()
    deciding = (word for word in overrides if word.startswith(_DECIDING) and word.partition("=")[0] not in given)
    return given & _idle(tuple(deciding)) if given else given


@functools.cache
def _idle(overrides: tuple[str, ...]) -> set[str]:
    with contextlib.suppress(FedGraphError):  # which the run names
        cfg = configuration(overrides)
        return {key for key, terms in IDLE.items() if cfg.idle(terms)}
    return set()


@functools.cache
def _own_keys(group: str, overrides: tuple[str, ...]) -> set[str]:
    from fedgraph_flwr import models
    from fedgraph_flwr.config import lookup  # the methods' classes take a second to import

    cfg = configuration(overrides)
    if group == "model":
        return models.own_keys(cfg.model)
    return lookup.own_keys(cfg) | set(cfg.strategy.params) | parts.key_names(vars(cfg.strategy))


# --- the file ---------------------------------------------------------------------------------------------------------


def load(path: Path, out: Path | None = None, overrides: Sequence[str] = ()) -> Sweep:
    """Read a YAML file.

    Args:
        path: the file.
        out: folder of the results, overrides the file.
        overrides: additional overrides of every run; ``seed=`` sets the seeds.

    Raises:
        FedGraphError: the file is missing, invalid YAML, or has an invalid key or value; the message has its line.
    """
    body, places = _read(path, ())
    known = {f.name for f in fields(Sweep)} - {"name", "folder", "made", "over", "by_seed", "places", "_added"} | {
        "out"
    }
    for key in body:
        check_names([key], known | {"extends"}, "key", places[str(key)])
    seeds = [word.partition("=")[2] for word in overrides if word.startswith("seed=")]
    over = [word for word in overrides if not word.startswith("seed=")]
    for word in over:
        if len(expand(word.partition("=")[2])) > 1:
            raise FedGraphError(f"'{word}' has several values: define them in {path} under settings, methods or grid")
    plain = ("title", "source", "notes", "figure", "baselines", "baseline", "margin", "tuned_on")
    published = {
        key: {str(name): value for name, value in (body.get(key) or {}).items()} for key in ("paper", "beside")
    }
    return Sweep(
        name=path.stem,
        folder=out or path.parent / str(body.get("out") or ""),
        made=f"fedgraph-flwr sweep {shlex.join([_shown(path), *overrides])}",
        common=_words(body.get("common"), places.get("common", ""), places),
        settings=_section(body, places, "settings") or {path.stem: []},
        methods=_section(body, places, "methods") or {"FedAvg": ["strategy=fedavg"]},
        over=over,
        grid=_section(body, places, "grid"),
        search=Search.read(body["search"], places["search"]) if body.get("search") else None,
        seeds=seeds_of(seeds[-1] if seeds else body.get("seeds", [0]), places.get("seeds", "seed=")),
        places=places,
        **{"title": path.stem, **{key: body[key] for key in plain if key in body}, **published},
    )


def _section(body: Mapping[str, Any], places: dict[str, str], key: str) -> dict[str, list[str]]:
    """Return the overrides of each name of ``settings``, ``methods`` or ``grid``."""
    entries = body.get(key) or {}
    if key == "methods" and isinstance(entries, list):
        entries = {name: [f"strategy={name}"] for name in entries}
    if not isinstance(entries, dict):
        raise FedGraphError(f"{places[key]}: {key} must map names to overrides, got {entries!r}")
    return {
        str(name): _words(value, places.get(f"{key}.{name}", places[key]), places) for name, value in entries.items()
    }


def _shown(path: Path) -> str:
    """Return a path relative to the current folder, if it is below it."""
    here = Path.cwd()
    return str(path.resolve().relative_to(here)) if path.resolve().is_relative_to(here) else str(path)


def _read(path: Path, seen: tuple[Path, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of a file and of those that it extends, with their lines."""
    if not path.is_file():
        others = ", ".join(sorted(other.name for other in path.parent.glob("*.y*ml")))
        raise FedGraphError(f"table {path} does not exist{others and f'; available: {others}'}")
    try:
        text = path.read_text()
        body, lines = parse_yaml(text), lines_of(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FedGraphError(no_yaml(path, error)) from error
    if not isinstance(body, dict):
        raise FedGraphError(f"{path} must contain keys with values, such as methods and seeds")
    places = {key: f"{path}, line {line}" for key, line in lines.items()}
    if not (other := body.pop("extends", None)):
        return body, places
    below = path.parent / str(other)
    if below.resolve() in (path.resolve(), *seen):
        raise FedGraphError(f"{places['extends']}: extends: {other} is circular")
    if not below.is_file():
        raise FedGraphError(f"{places['extends']}: extends: {other}, but {below} does not exist")
    lower, its_places = _read(below, (path.resolve(), *seen))
    return lower | body, its_places | places


def _words(value: Any, place: str, places: dict[str, str]) -> list[str]:
    """Return the overrides of an entry: a list, a line, or keys with values."""
    if isinstance(value, str):
        value = shlex.split(value)
    if isinstance(value, Mapping):
        value = list(_flat(value))
        for word in value:
            places.setdefault(word, place)
    for word in value or []:
        if not (isinstance(word, str) and word.partition("=")[1] and word.partition("=")[0]):
            raise FedGraphError(f"{place}: {word!r} is not of the form key=value")
    return list(value or [])


def _flat(body: Mapping[Any, Any], above: str = "") -> Iterator[str]:
    for key, value in body.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"


def seeds_of(given: Any, place: str) -> list[int]:
    """Return the seeds of a list, a number, or a text such as ``0..4``."""
    every = expand(given) if isinstance(given, str) else given if isinstance(given, list) else [given]
    try:
        seeds = [int(str(seed)) for seed in every]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise FedGraphError(f"{place}: seeds must be distinct integers >= 0, such as 0..4, got {given!r}")
    return seeds


def _watched(row: Mapping[str, Any]) -> float:
    """Return a row's validation score, with the sign by which more is better."""
    return chance.sign_of(chance.metric_of(str(row.get("headline")))) * number(row, "validation")

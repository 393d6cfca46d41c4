"""Graphs in memory for a sweep: they are stored beside its results, in folders named by their content, which every run reads."""

import dataclasses
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import isroutine
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import configuration
from fedgraph_flwr.config.engines import SIMULATIONS
from fedgraph_flwr.config.schema import SPLIT_BY_CLIENTS
from fedgraph_flwr.data.graph import read_digest
from fedgraph_flwr.data.split import check_given
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition import objects, store
from fedgraph_flwr.sweeps.spec import seeds_of
from fedgraph_flwr.sweeps.values import expand


@dataclass(frozen=True)
class Stored:
    """Overrides of a sweep on stored graphs.

    Attributes:
        words: overrides of every run.
        by_seed: further overrides of the runs of a seed, which draws its own split.
        command: the call of this sweep, for its table.
    """

    words: list[str]
    by_seed: Mapping[int, list[str]]
    command: str


def stored(
    given: Sequence[str], folder: Path, data: Any, graphs: Sequence[Any] | None, classes: Sequence[str], target: str
) -> Stored:
    """Store one graph, which each run partitions, or one graph per client; of each seed, if a function makes them.

    Args:
        given: ``key=value,value`` of the sweep.
        folder: folder of its results.
        data: the graph, or a function that returns graph or graphs of a seed; None with ``graphs``.
        graphs: graphs of the clients; None with ``data``.
        classes: as of `fedgraph_flwr.run`.
        target: as of `fedgraph_flwr.run`.

    Raises:
        FedGraphError: a key that graphs in memory replace, or that changes their files between runs; errors of `objects`.
    """
    values = {key: value for key, _, value in (word.partition("=") for word in given)}
    seeds = seeds_of(values.get("seed", "0"), "seed=")
    if isroutine(data):
        made = {}
        for seed in seeds:
            one = data(seed)
            single, many = (None, one) if isinstance(one, list | tuple) else (one, None)
            made[seed] = stored([*given, f"seed={seed}"], folder, single, many, classes, target)
        # defaults and, last, the place of the graphs
        first, *others = ([word for word in one.words[:-1] if not word.startswith("seed=")] for one in made.values())
        if any(other != first for other in others):
            raise FedGraphError("the function of seeds must return graphs with masks, or without, for every seed")
        words = [*first, f"seed={values.get('seed', '0')}", made[seeds[0]].words[-1]]
        command = f"fg.sweep({', '.join([data.__name__, *map(repr, given)])})"
        return Stored(words, {seed: [one.words[-1]] for seed, one in made.items()}, command)
    words = [word for word in given if not word.startswith("dataset=")]
    several = graphs is not None
    name = objects.name_of(values.get("dataset"), words, several)
    option = objects.option_of(several)
    held = [data] if graphs is None else graphs
    for engine in expand(values.get("engine", "inline")):
        if engine not in SIMULATIONS:
            raise FedGraphError(
                f"{option} requires a simulation, but engine={engine} is a fleet: set engine=inline or ray"
            )
    defaults = objects.defaults(held, target)
    arguments = ["graphs" if several else "data", *map(repr, given)]
    command = f"fg.sweep({', '.join(arguments)})"
    if graphs is None:
        objects.say_unread(held)
        graph = dataclasses.replace(objects.whole(data, classes, target), name=name)
        check_given(graph, name)
        return Stored([*defaults, *words, f"dataset.path={_one(graph, folder, name)}"], {}, command)
    split = [word for word in words if word.startswith(("split", "config=", "protocol="))]
    if varied := [word for word in split if len(expand(word.partition("=")[2])) > 1]:
        raise FedGraphError(f"{varied[0]}: {option} is split once per seed: call fg.sweep for each value")
    typed = not isinstance(graphs[0], list | tuple) and objects.is_typed(graphs[0])
    methods = expand(values.get("strategy", "")) if typed else []
    for method in methods:
        if method and configuration([f"strategy={method}"]).strategy.private_schema:
            loop = f"fg.compare([fg.run(graphs, strategy={method!r}, seed=seed) for seed in range(3)])"
            raise FedGraphError(
                f"strategy={method} keeps each client's node types private, so its files differ: {loop}"
            )
    folders = {}
    for seed in seeds:
        cfg = configuration([*defaults, *split, f"seed={seed}", f"num_clients={len(graphs)}"])
        folders[seed] = _clients(objects.clients(graphs, cfg, name, classes, target), folder, name)
    words = [*defaults, *words, f"graph={folders[seeds[0]]}"]
    if values.get("task") not in SPLIT_BY_CLIENTS:
        words = [word for word in words if not word.startswith("split")]  # the files are split
    return Stored(words, {seed: [f"graph={path}"] for seed, path in folders.items()}, command)


def _one(graph: Any, folder: Path, name: str) -> Path:
    """Store a graph, and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{name}.{os.getpid()}.safetensors"
    try:
        graph.save(draft)
        path = _folder(folder, name, [read_digest(draft)]) / f"{name}.safetensors"
        path.parent.mkdir(exist_ok=True)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _clients(made: Sequence[Any], folder: Path, name: str) -> Path:
    """Store the clients' graphs, and return their folder."""
    draft = folder / f".{name}.{os.getpid()}"
    try:
        store.write(draft, made)
        digests = [read_digest(path) for path in sorted(draft.glob("client_*.safetensors"))]
        path = _folder(folder, name, digests) / name
        if not path.is_dir():  # else another sweep stored the same
            path.parent.mkdir(exist_ok=True)
            draft.rename(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def _folder(folder: Path, name: str, digests: Sequence[str]) -> Path:
    return folder / f"{name}-{hashlib.sha256(' '.join(digests).encode()).hexdigest()[:12]}"

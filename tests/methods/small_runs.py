"""Short runs of any method on three small clients in this process: what the tests that take all methods from YAML are made on."""

import functools
import itertools
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedgraph_flwr import models
from fedgraph_flwr.clients.combinations import tasks_of
from fedgraph_flwr.config import RunConfig, compose, group_names
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.launch.checks import client_class
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.methods.declarations import declaration
from fedgraph_flwr.methods.declared import uplink_of as declared
from fedgraph_flwr.methods.uplink import shown
from fedgraph_flwr.strategies.loop import Loop
from tests.support import Finished
from tests.typed_graphs import typed_client

METHODS = group_names("strategy")
TYPED_WORDS = ["model.layers=2"]

FEATURES, CLASSES = 5, 3
CUT_GRAPH = [
    *("dataset=csbm", "dataset.nodes_per_client=[41,67]", f"dataset.features={FEATURES}", f"dataset.classes={CLASSES}"),
    *("dataset.degree=4", "dataset.cut_degree=1", "dataset.gap=0.2", "dataset.seed=3", "partition=planted"),
]
"""Three clients joined by edges. No other size of a model or message equals a client's number of nodes or edges."""

Go = Callable[..., Finished]


@functools.cache
def by_default(method: str) -> RunConfig:
    """The configuration of three clients by a method's defaults; to read, not to change."""
    return compose([f"strategy={method}", "num_clients=3"])


declares = functools.cache(declaration)
"""The declaration of a method; to read, not to change."""


@functools.cache
def representatives() -> set[str]:
    """FedAvg, and of each purpose the methods whose uplinks have the fewest and the most groups, of equals the last by name."""
    sizes: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for method in METHODS:
        cfg = by_default(method)
        groups = shown(declared(locate(cfg.strategy.server), cfg))
        sizes[declares(method).purpose].append((len(groups), method))
    chosen = [end for group in sizes.values() for end in (max(group, key=lambda one: (-one[0], one[1])), max(group))]
    return {method for _, method in chosen} | {compose([]).strategy.name}


def sampled(forms: Sequence[Any]) -> list[Any]:
    """Parameters of a test, methods or tuples that begin with one; all but the `representatives` are marked slow."""
    named = [(form, form if isinstance(form, str) else form[0]) for form in forms]
    return [
        pytest.param(form, marks=() if method in representatives() else pytest.mark.slow, id=_id(form))
        for form, method in named
    ]


def _id(form: Any) -> str:
    return form if isinstance(form, str) else " ".join(form)


def is_typed(overrides: Iterable[str]) -> bool:
    """Whether the network that these overrides choose needs a graph with typed nodes and edges."""
    return _is_typed(tuple(overrides))


@functools.cache
def _is_typed(overrides: tuple[str, ...]) -> bool:
    return bool(models.network(compose(overrides).model).capabilities.heterogeneous)


@contextmanager
def small_runs(folder: Path) -> Iterator[Go]:
    """``go(method, "key=value", ...)``: three rounds on three small clients in this process."""
    count = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAPH_DATA", str(folder / "root"))
        for client in range(3):
            typed_client(client, people=(11, 13, 17)[client], features=client == 1).save(
                folder / "typed" / f"client_{client:04d}.safetensors"
            )

        def run(method: str, *overrides: str) -> Finished:
            fixed = [f"strategy={method}", "num_clients=3", "rounds=3", "model.hidden=8", "checkpoint_every=0"]
            typed = is_typed(fixed + [word for word in overrides if word.startswith("model=")])
            if typed:
                fixed += [*TYPED_WORDS, f"graph={folder / 'typed'}"]
            elif not any(word.startswith("dataset=") for word in overrides):
                fixed += CUT_GRAPH
            fixed += declares(method).small
            out = folder / f"run{next(count)}"
            cfg = with_folder(compose([*fixed, f"out={out}", *overrides]))
            return Finished(cfg, run_inline(cfg))

        yield run


@contextmanager
def interruptions() -> Iterator[dict[int, Path]]:
    """Copies of the folder of a run within, one after each round's checkpoint: what a killed process would leave."""
    copies: dict[int, Path] = {}
    write = Loop._checkpoint

    def copying(self: Loop, server_round: int) -> None:
        write(self, server_round)
        out = Path(self.cfg.out)
        copies[server_round] = Path(shutil.copytree(out, out.with_name(f"{out.name}-after-{server_round}")))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_checkpoint", copying)
        yield copies


def serving(task: str) -> list[str]:
    """Strategies whose client declares that it serves a task."""
    runs = {name: by_default(name) for name in METHODS}
    return [name for name, cfg in runs.items() if task in tasks_of(cfg, client_class(cfg))]

"""A digest of the code on which a run's result depends: its method, network, task, partition and engine."""

import ast
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from fedgraph_flwr import models, tasks
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.engines import FLOWER, GRIDS
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.data.plugins import BASELINES

ROOT = Path(__file__).parents[2]
ROOMS = ("methods", "models", "numerics", "tasks")
"""Rooms of which a digest also covers the modules that a run's own modules import."""


def digest(cfg: RunConfig) -> str:
    """Return 16 hexadecimal digits over the syntax trees of the modules of a run's parts.

    The parts are the server and client class, the network and the task (with their base classes in
    these packages), the methods, models, numerics and tasks that these modules import, all
    partitions, and the engine. Names of modules, imports, docstrings and comments do not count, so
    a module that only moves keeps the digest.
    """
    sides = (locate(cfg.strategy.server), locate(cfg.strategy.client))
    classes = [
        kind
        for part in (*sides, models.network(cfg.model), tasks.kind_of(cfg))
        for kind in part.__mro__
    ]
    modules = {kind.__module__ for kind in classes} & _files().keys()
    named = {
        name for module in modules for name in _imported(module) if name.split(".")[1] in ROOMS
    }
    placed = {name for name in _files() if name.split(".")[1] == "partition"}
    engine = GRIDS.get(cfg.engine, FLOWER).partition(":")[0]
    trees = sorted(_tree(name) for name in modules | named | placed | {engine})
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()[:16]


@cache
def _files() -> dict[str, Path]:
    """Return the files of this package and of the baselines by module; not those at their tops."""
    paths = (
        path for package in ("fedgraph_flwr", BASELINES) for path in (ROOT / package).rglob("*.py")
    )
    inside = ((path, path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    return {".".join(parts): path for path, parts in inside if len(parts) > 2}


def _parsed(module: str) -> ast.Module:
    return ast.parse(_files()[module].read_bytes())


@cache
def _imported(module: str) -> frozenset[str]:
    """Return the modules of these packages that a module imports."""
    lines = [node for node in ast.walk(_parsed(module)) if isinstance(node, ast.ImportFrom)]
    names = {
        f"{line.module}{end}"
        for line in lines
        for end in ("", *(f".{alias.name}" for alias in line.names))
    }
    return frozenset(names & _files().keys())


@cache
def _tree(module: str) -> str:
    """Return the digest of a module's syntax tree without imports and docstrings."""
    return hashlib.sha256(ast.dump(_Bare().visit(_parsed(module))).encode()).hexdigest()


class _Bare(ast.NodeTransformer):
    """Takes imports, and strings that stand alone, out of a syntax tree."""

    def generic_visit(self, node: ast.AST) -> Any:
        value = node.value if isinstance(node, ast.Expr) else None
        alone = isinstance(value, ast.Constant) and isinstance(value.value, str)
        return (
            None
            if alone or isinstance(node, ast.Import | ast.ImportFrom)
            else super().generic_visit(node)
        )

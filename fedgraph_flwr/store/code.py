"""A digest of the code on which a run's result depends: its method, network, task, partition and engine."""

import ast
import hashlib
from functools import cache
from pathlib import Path

from fedgraph_flwr import models, tasks
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.engines import FLOWER, GRIDS
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.config.parts import parts_of
from fedgraph_flwr.data.plugins import BASELINES

ROOT = Path(__file__).parents[2]
ROOMS = ("methods", "models", "numerics", "tasks")
"""Rooms of which a digest also covers the modules that a run's own modules import."""


def digest(cfg: RunConfig) -> str:
    """Return 16 hexadecimal digits over the syntax trees of the modules of a run's classes.

    These are the server and client class, the halves of objectives and other chosen parts, the
    network and the task (with their base classes in these packages), the methods, models, numerics
    and tasks that these modules import, all partitions, and the engine. Names of modules, imports,
    docstrings and comments do not count, so a module that only moves keeps the digest.
    """
    chosen = parts_of(cfg.strategy).values()
    halves = [half for part in chosen for half in (part.client, part.server) if half]
    sides = map(locate, (cfg.strategy.server, cfg.strategy.client, *halves))
    classes = [
        kind
        for made in (*sides, models.network(cfg.model), tasks.kind_of(cfg))
        for kind in made.__mro__
    ]
    modules = {kind.__module__ for kind in classes} & _files().keys()
    named = {name for module in modules for name in _read(module)[1] if name.split(".")[1] in ROOMS}
    placed = {name for name in _files() if name.split(".")[1] == "partition"}
    engine = GRIDS.get(cfg.engine, FLOWER).partition(":")[0]
    trees = sorted(_read(name)[0] for name in modules | named | placed | {engine})
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()[:16]


@cache
def _files() -> dict[str, Path]:
    """Return the files of this package and of the baselines by module; not those at their tops."""
    paths = (
        path for package in ("fedgraph_flwr", BASELINES) for path in (ROOT / package).rglob("*.py")
    )
    inside = ((path, path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    return {".".join(parts): path for path, parts in inside if len(parts) > 2}


@cache
def _read(module: str) -> tuple[str, frozenset[str]]:
    """Return the digest of a module's syntax tree without imports and docstrings, and what it imports of these packages."""
    tree = ast.parse(_files()[module].read_bytes())
    names = {
        f"{line.module}{end}"
        for line in _stripped(tree)
        for end in ("", *(f".{alias.name}" for alias in line.names))
    }
    digest = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    return digest, frozenset(names & _files().keys())


def _stripped(node: ast.AST) -> list[ast.ImportFrom]:
    """Take imports, and strings that stand alone, out of the statements in a node, and return the imports of names."""
    imports = []
    for _, statements in ast.iter_fields(node):
        if not isinstance(statements, list):
            continue
        imports += [statement for statement in statements if isinstance(statement, ast.ImportFrom)]
        statements[:] = [statement for statement in statements if not _says_nothing(statement)]
        for statement in statements:
            if isinstance(statement, ast.stmt | ast.excepthandler | ast.match_case):
                imports += _stripped(statement)
    return imports


def _says_nothing(node: ast.AST) -> bool:
    """Return whether a node is an import, or a string that stands alone."""
    value = node.value if isinstance(node, ast.Expr) else None
    alone = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return alone or isinstance(node, ast.Import | ast.ImportFrom)

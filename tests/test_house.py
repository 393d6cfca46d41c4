"""Where things are: imports that point one way, no reaching into another's privates, files that linters read."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

from benchmarks import house
from benchmarks.planted_faults import FAULTS
from fedgraph_flwr.config import composition, group_names
from fedgraph_flwr.data.plugins import BASELINES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fedgraph_flwr"


LAYERS = [
    ("error_codes", "errors", "logs", "version"),
    ("wire",),
    ("config", "data"),
    ("numerics", "fleet"),
    ("partition",),
    ("models",),
    ("methods", "secure"),
    ("evaluation",),
    ("tasks",),
    ("store",),
    ("strategies", "clients", "tracking"),
    ("node",),
    ("engine",),
    ("launch",),
    ("sweeps",),
    ("report",),
    ("party",),
    ("api", "plugin", "client_app", "server_app", "testing"),
    ("cli", "sklearn"),
    ("__main__",),
]
"""Rooms and entry points: each imports from its own layer and those above it in this list, also by way of others.

So nothing below `api`, `client_app` and `cli` imports `party`, a party's wing, or names one of its modules in a text. The wing
registers what a node reads of it (`secure.wing`).
"""

APART = [
    ("strategies", "clients"),
    ("clients", "strategies"),
    ("clients", "tracking"),
    ("strategies", "tracking"),
    ("tracking", "strategies"),
    ("tracking", "clients"),
    ("node", "strategies"),
    ("node", "store"),
    ("clients", "store"),
    ("engine", "strategies"),
    ("engine", "tracking"),
    ("data", "partition"),
    ("fleet", "numerics"),
]
"""Further pairs: the first does not import the second."""


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    """Which module imports which when it runs, also inside functions; not what only annotations need."""
    return grimp.build_graph("fedgraph_flwr", BASELINES, exclude_type_checking_imports=True, cache_dir=None)


def test_no_file_has_marks_of_a_merge():
    search = subprocess.run(
        ["git", "grep", "-lE", "^(<{7}|>{7}) "], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert not search.stdout


def test_no_import_circle():
    """Imports inside functions and those of annotations count, too."""
    assert house.circles(ROOT) == []


def test_capabilities_are_asked_through_one_value():
    """What `config/capabilities.py` names is declared by classes, and read from ``kind.capabilities`` alone."""
    assert house.flags(ROOT) == {}
    assert (
        house.asked(
            "part.stacks or kind_of(cfg).classes or graph.classes", {"part": {"stacks"}, "kind_of": {"classes"}}
        )
        == 2
    )


def test_no_text_of_the_core_names_the_wing():
    assert house.upward_strings(ROOT) == []


def test_a_nodes_functions_take_what_they_use():
    """None takes a client, Flower's context and a message's scalars together, and none asks which kind a node is."""
    wrong = []
    for path in (PACKAGE / "node").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                taken = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
                wrong += [node.name] if len(taken & {"client", "context", "config"}) > 1 else []
            if (
                isinstance(node, ast.Constant)
                and node.value == "partition-id"
                and path.stem not in ("node", "settings")
            ):
                wrong.append(path.name)
    assert wrong == []


def test_every_room_has_a_layer(imports):
    rooms = {module.split(".")[1] for module in imports.modules if module.startswith("fedgraph_flwr.")}
    assert sorted(rooms) == sorted(room for layer in LAYERS for room in layer)


def test_every_other_module_has_a_room():
    """At the top are entry points, what a method's author imports, and what all rooms share."""
    entries = {"__init__", "__main__", "api", "server_app", "client_app", "plugin", "sklearn", "testing"}
    shared = {"error_codes", "errors", "logs", "version"}  # `version` apart from `__init__`, which names all rooms
    assert {path.stem for path in PACKAGE.glob("*.py")} == entries | shared


def test_imports_point_one_way(imports):
    pairs = [
        (low, high)
        for place, layer in enumerate(LAYERS)
        for low in layer
        for above in LAYERS[place + 1 :]
        for high in above
    ]
    for low, high in pairs + APART:
        wrong = imports.find_shortest_chains(importer=f"fedgraph_flwr.{low}", imported=f"fedgraph_flwr.{high}")
        assert not wrong, f"{low} must not import {high}: {wrong}"


def test_baselines_are_a_plug_in(imports, monkeypatch):
    """They import the rooms that any method's author imports. Nothing imports them, and without them the others are known."""
    used = {
        name.split(".")[1]
        for module in imports.find_descendants(BASELINES)
        for name in imports.find_modules_directly_imported_by(module)
        if name.startswith("fedgraph_flwr.")
    }
    rooms = {"config", "wire", "data", "models", "methods", "numerics", "secure", "strategies", "clients"}
    assert used <= rooms | {"errors", "logs"}
    assert not imports.find_shortest_chains(importer="fedgraph_flwr", imported=BASELINES)
    for one, other in (("strategies", "clients"), ("clients", "strategies")):
        assert not imports.find_shortest_chains(importer=f"{BASELINES}.{one}", imported=f"{BASELINES}.{other}")
        assert not imports.find_shortest_chains(importer=f"{BASELINES}.{one}", imported=f"fedgraph_flwr.{other}")
    names = set(group_names("strategy"))
    baselines = {path.stem for path in (ROOT / BASELINES / "conf/strategy").glob("*.yaml")}
    monkeypatch.setattr(composition, "packages", dict)
    assert set(group_names("strategy")) == names - baselines
    assert baselines < names


def test_no_method_reaches_into_the_privates_of_its_base():
    """A name with an underscore belongs to the class that wrote it."""
    wrong, names = [], set()
    for folder in ("strategies", "clients"):
        base_modules = {"base", "loop", "exchange", "session", "connection", "privacy", "scoring", "state", "__init__"}
        base = {
            node.name if isinstance(node, ast.FunctionDef) else node.attr
            for node in ast.walk(ast.parse((PACKAGE / folder / "base.py").read_text()))
            if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.Attribute) and is_self(node))
        }
        private = {name for name in base if name.startswith("_") and not name.startswith("__")}
        names |= base
        for path in sorted([*(PACKAGE / folder).glob("*.py"), *(ROOT / BASELINES / folder).glob("*.py")]):
            if path.stem not in base_modules:
                for node in ast.walk(ast.parse(path.read_text())):
                    name = getattr(node, "attr", None) or getattr(node, "name", None)
                    if isinstance(node, ast.Attribute | ast.FunctionDef) and name in private:
                        wrong.append(f"{folder}/{path.name}: {name}")
    assert names
    assert wrong == []


def is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def tracked(*patterns: str) -> set[Path]:
    """Files of the repository; skips the test where there is no repository."""
    try:
        listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git repository")
    return {ROOT / line for line in listed.stdout.splitlines()}


def differing(checked: set[Path], known: set[Path]) -> str:
    """What to do if a tool reads other files than those of the repository."""
    new, left_out = sorted(map(str, checked - known)), sorted(map(str, known - checked))
    return f"not in the repository (git add): {new}; not read by the tool: {left_out}"


def ruff(*args: str) -> str:
    """What ruff prints in the root, by the settings of pyproject.toml."""
    command = [sys.executable, "-m", "ruff", *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout


def test_only_the_summation_asks_which_protection_a_run_has():
    """The loop, the reader of replies and the methods ask `summation`, which was chosen by the configuration once."""
    folders = [PACKAGE / "strategies", PACKAGE / "party", ROOT / BASELINES, ROOT / "examples"]
    files = [path for folder in folders for path in folder.rglob("*.py") if "summation" not in path.parts]
    servers = {"self", "server", "method", "strategy"}
    asking = [
        f"{path.name}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("privacy", "secure")
        if isinstance(node.value, ast.Name) and node.value.id in servers
    ]
    assert asking == []


CHANGES = {"add", "append", "clear", "discard", "extend", "pop", "remove", "setdefault", "update"}


def written(tree: ast.AST) -> set[str]:
    """Attributes of a server that a module assigns or changes, other than by its methods."""
    targets: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                targets += target.elts if isinstance(target, ast.Tuple) else [target]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets.append(node.target)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            targets.append(node.func.value)
    names = set()
    for target in targets:
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) in SERVERS:
            names.add(target.attr)
    return names


SERVERS = {"server", "method", "strategy", "self.server", "self.method", "self.strategy"}


def test_modules_around_a_strategy_change_its_round_alone():
    """A strategy holds its configuration, its model and its memory, which its parts fill; the loop makes rounds."""
    assert written(ast.parse("method.failed |= new")) == {"failed"}
    assert written(ast.parse("self.server.models[3], a = 1, 2")) == {"models"}
    assert written(ast.parse("strategy.involved.add(3)")) == {"involved"}
    files = [path for room in ("strategies", "engine", "party") for path in (PACKAGE / room).rglob("*.py")]
    changed = {path.name: written(ast.parse(path.read_text())) - {"round", "memory"} for path in files}
    assert {name: names for name, names in changed.items() if names} == {}


def test_the_linter_and_the_formatter_read_every_file():
    """The formatter names the files that it would change: with another line ending, every file that is not empty."""
    python, other_endings = tracked("*.py"), "--config=format.line-ending='cr-lf'"
    assert len(python) > 400
    shown = {Path(line) for line in ruff("check", "--show-files").splitlines()}
    checked = {path for path in shown if path.suffix == ".py"}
    assert checked == python, differing(checked, python)
    unformatted = ruff("format", "--check", "--output-format=concise", other_endings)
    named = {ROOT / name for name in re.findall(r"^(.*\.py):\d+:\d+: unformatted", unformatted, re.M)}
    assert named == {path for path in python if path.read_text()}


def test_the_type_checker_reads_every_file():
    """Its own reading of pyproject.toml; a setting for single modules may relax rules, not ignore a file."""
    code = "from mypy.main import process_options; print(*(s.path for s in process_options([])[0]), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    checked, known = {(ROOT / line).resolve() for line in done.stdout.splitlines()}, tracked("*.py")
    assert checked == known, differing(checked, known)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert not [override["module"] for override in settings["overrides"] if override.get("ignore_errors")]


def test_no_file_of_the_repository_is_ignored():
    """Linters, searches and Flower's bundle leave out what .gitignore names, also where git itself tracks it."""
    names = "\n".join(str(path.relative_to(ROOT)) for path in tracked())
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    done = subprocess.run(command, cwd=ROOT, input=names, capture_output=True, text=True, check=False)
    assert done.stdout.split() == []


def test_the_wheel_brings_two_import_names():
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert built["packages"] == ["fedgraph_flwr", BASELINES]
    assert all(target.startswith("fedgraph_flwr/") for target in built["force-include"].values())


@pytest.mark.slow
def test_folders_of_other_people_do_not_matter(tmp_path):
    """In a folder with its own ``clients/`` and ``strategies/``, ours are found all the same."""
    for name in ("clients", "strategies"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    words = ["strategy=fedomd", "rounds=1", "num_clients=2", "out=run", "--quiet", "--no-report"]
    done = subprocess.run(
        [sys.executable, "-m", "fedgraph_flwr", "run", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "FEDGRAPH_DATA": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").is_file()


def test_the_links_at_the_top_lead_into_the_package():
    for name in ("strategies", "clients"):
        assert (ROOT / name).resolve() == (PACKAGE / name).resolve()


def test_tests_mirror_the_package():
    """A folder of tests per room, and one for the baselines; `safety` crosses rooms.

    Loose files are about entry points or the whole repository.
    """
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    folders = {path.name for path in (ROOT / "tests").iterdir() if list(path.rglob("test_*.py"))}
    assert folders == rooms | {"safety", "baselines"}
    modules = {f"test_{path.stem}.py" for path in PACKAGE.glob("*.py")}
    whole = {
        "board",
        "bundle",
        "docs",
        "examples",
        "house",
        "notebook",
        "payments_worth",
        "peers",
        "prose",
        "readme",
        "results_schema",
        "same_bits",
        "simulations",
    }
    loose = {path.name for path in (ROOT / "tests").glob("test_*.py")}
    assert loose - modules <= {f"test_{name}.py" for name in whole}


def test_test_modules_do_not_import_each_other():
    """Fixtures are in conftest.py, and helpers in modules of their own: a module's tests are read, moved and run alone."""
    importing = re.compile(r"^\s*from tests\.\S*\btest_\w+ import|^\s*from tests\S* import test_|noqa: F811", re.M)
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name != Path(__file__).name]
    assert len(files) > 200
    assert [str(path.relative_to(ROOT)) for path in files if importing.search(path.read_text())] == []


def test_every_planted_fault_still_has_its_place():
    code = [path.read_text() for package in (PACKAGE, ROOT / BASELINES) for path in package.rglob("*.py")]
    assert {fault.name: count for fault in FAULTS if (count := sum(text.count(fault.text) for text in code)) != 1} == {}

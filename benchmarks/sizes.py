"""Measures of the code: lines per folder against a baseline, lines per method, and what keeps the code readable (`MEASURES`).

    python benchmarks/sizes.py                      # compare with the baseline in benchmarks/sizes.json
    python benchmarks/sizes.py --baseline COMMIT    # measure that commit, and store it as the baseline

A line of code is a line without docstrings, comments and blanks. A folder is a folder of a package or of the repository's
root; ``docs`` covers its hooks and the files for servers. Python, JavaScript, CSS, YAML and templates count; prose, notebooks,
results and minified files do not.

A method's lines are those of its files in `strategies/` and `clients/`. A file is counted for each method whose YAML names one of
its classes; base classes, `methods/` and `models/` are not counted.
"""

import argparse
import ast
import importlib.util
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
BASELINE = Path(__file__).with_suffix(".json")
BASES = {"fedgraph_flwr.strategies.base", "fedgraph_flwr.strategies.fedavg", "fedgraph_flwr.clients.base"}
PACKAGES = ("fedgraph_flwr", "fedgraph_baselines")
WINGS = ("fedgraph_flwr/party/", "fedgraph_baselines/")
MOVED_FOLDERS = {"fedgraph_flwr/templates": "fedgraph_flwr/cli"}
WORDS = re.compile(
    r"""#[^\n]*|(\"{3}|'{3})(?:\\.|(?!\1).)*\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL
)  # comments and strings of Python, in whose lines no other rule applies
KINDS = {
    "Python": (".py",),
    "JavaScript, CSS": (".js", ".css"),
    "YAML": (".yaml", ".yml"),
    "templates": (".html", ".jinja", ".txt", ".conf", ".service", "Dockerfile"),
}
COMMENTS = {
    "JavaScript, CSS": r"/\*.*?\*/|^\s*//[^\n]*",
    "YAML": r"^\s*#[^\n]*",
    "templates": r"<!--.*?-->|\{#.*?#\}|^\s*#[^\n]*",
}
CHECKS = ("check", "refuse", "require", "need", "verify")
"""A function whose name starts with one of these, after underscores, only checks."""


class Measure(NamedTuple):
    """Measure that a test holds.

    Attributes:
        name: what is measured.
        held: largest value that the test accepts, before `MARGIN`.
        goal: value that the design wants.
    """

    name: str
    held: float
    goal: float


MARGIN = 0.05
MEASURES = (
    Measure("code lines of both packages", 44850, 37200),
    Measure("code lines of the core, without party/ and baselines", 33000, 31700),
    Measure("names that the server's base adds to Flower's", 31, 38),
    Measure("names that the client's base adds to Flower's", 38, 38),
    Measure("pairs of method and key", 125, 125),
    Measure("share of code lines in checks, in %", 7.5, 7.5),
    Measure("largest cyclomatic complexity of a function", 20, 20),
    Measure("files that Flower Hub counts", 900, 900),
    Measure("calls from a message to the task's loss", 8, 9),
    Measure("entries into the client's base on that way", 1, 1),
)


def span(node: ast.stmt) -> set[int]:
    """Return the numbers of a statement's lines."""
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the Python lines with code."""
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstrings |= span(node.body[0])
    plain = WORDS.sub(lambda word: "" if word[0][0] == "#" else "\n".join("x" for _ in word[0].split("\n")), text)
    code = {number for number, line in enumerate(plain.split("\n"), 1) if line.strip()}
    return code - docstrings


def python_lines(text: str) -> int:
    """Return the number of Python lines with code."""
    return len(code_lines(text, ast.parse(text)))


def check_lines(text: str, tree: ast.Module | None = None) -> tuple[int, int]:
    """Return the number of code lines, and of those in ``raise`` statements and in functions that only check (`CHECKS`)."""
    tree, lines = tree or ast.parse(text), set[int]()
    for node in ast.walk(tree):
        named = isinstance(node, ast.FunctionDef) and node.name.lstrip("_").startswith(CHECKS)
        if named or isinstance(node, ast.Raise):
            lines |= span(node)  # type: ignore[arg-type]
    code = code_lines(text, tree)
    return len(code), len(lines & code)


def complexity(tree: ast.Module) -> int:
    """Return the largest cyclomatic complexity of a function or method, by radon."""
    from radon.complexity import cc_visit_ast

    return max((block.complexity for block in cc_visit_ast(tree) if block.letter != "C"), default=0)


def hub_files(names: Iterable[str], ignored: str) -> list[str]:
    """Return the files that Flower Hub counts when an app is published, by Flower's own rule.

    It takes Python, TOML, YAML, JSON and Markdown files, except those that the root's ``.gitignore`` names.
    """
    from flwr.cli.utils import filter_paths_for_publish

    return sorted(filter_paths_for_publish({**dict.fromkeys(names, b""), ".gitignore": ignored.encode()}))


def added_names(side: type) -> set[str]:
    """Return the public names of a base class that Flower's class below it does not have."""
    flower = next(base for base in side.__mro__ if base.__module__.startswith("flwr."))
    return {name for name in dir(side) if not name.startswith("_")} - set(dir(flower))


def method_keys() -> set[tuple[str, str]]:
    """Return pairs of a method and a key that not every method has, as ``fedgraph-flwr keys strategy=METHOD`` lists them."""
    from fedgraph_flwr.config import group_names
    from fedgraph_flwr.config.composition import group_path
    from fedgraph_flwr.config.key_docs import keys_of, own_keys_of

    common = {key.name for key in keys_of("strategy")}
    own = {name: own_keys_of("strategy", group_path("strategy", name)) for name in group_names("strategy")}  # type: ignore[arg-type]
    return {(name, key.name) for name, keys in own.items() for key in keys if key.name not in common}


def calls_to_the_loss() -> tuple[int, int]:
    """Return the calls from `clients.session.respond` to the task's loss, and how often they enter ``clients/base.py``."""
    spec = importlib.util.spec_from_file_location("reply_chain", Path(__file__).with_name("reply_chain.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with tempfile.TemporaryDirectory() as folder:
        chain = module.reply_chain(Path(folder) / "run")
    return len(chain) - 1, module.entries(chain)


def measures(root: Path = ROOT) -> dict[str, float]:
    """Return the measures of a checkout, whose package is the one that Python imports, in the order of `MEASURES`."""
    from fedgraph_flwr.clients.base import GraphClient
    from fedgraph_flwr.strategies.base import GraphStrategy

    paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    texts = {path.relative_to(root).as_posix(): path.read_text() for path in paths}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    sizes = {name: check_lines(text, trees[name]) for name, text in texts.items()}
    package = sum(size for size, _ in sizes.values())
    values: list[float] = [
        package,
        sum(size for name, (size, _) in sizes.items() if not name.startswith(WINGS)),
        len(added_names(GraphStrategy)),
        len(added_names(GraphClient)),
        len(method_keys()),
        100 * sum(checks for _, checks in sizes.values()) / package,
        max(map(complexity, trees.values())),
        len(hub_files(tracked(root), (root / ".gitignore").read_text())),
        *calls_to_the_loss(),
    ]
    return {measure.name: value for measure, value in zip(MEASURES, values, strict=True)}


def kind_of(path: str) -> str | None:
    """Return the kind of a file; None if it is not code."""
    if path.endswith(".min.js"):
        return None
    return next((kind for kind, endings in KINDS.items() if path.endswith(endings)), None)


def lines(path: str, text: str) -> int:
    """Return the number of lines with code in one file."""
    kind = kind_of(path)
    if kind == "Python":
        return python_lines(text)
    rest = re.sub(COMMENTS[kind], "", text, flags=re.M | re.S) if kind else ""
    return sum(bool(line.strip()) for line in rest.splitlines())


def room(path: str) -> str:
    """Return the folder of a file."""
    parts = PurePosixPath(path).parts
    if parts[0] in PACKAGES:
        folder = "/".join(parts[:2]) if len(parts) > 2 else parts[0]
        return MOVED_FOLDERS.get(folder, folder)
    return parts[0] if len(parts) > 1 else "(top)"


def count(files: dict[str, str]) -> dict[str, int]:
    """Return lines of code by path, from texts by path."""
    return {path: lines(path, text) for path, text in sorted(files.items())}


def by(key: Callable[[str], str | None], sizes: dict[str, int]) -> Counter[str]:
    """Sum lines of code by a property of their paths."""
    sums: Counter[str] = Counter()
    for path, size in sizes.items():
        sums[key(path) or ""] += size
    return sums


def tracked(root: Path) -> list[str]:
    """Return the files of a working tree without those that git ignores; of a folder without history, all files."""
    if not (root / ".git").exists():
        return [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if (root / name).is_file()]


def here() -> dict[str, str]:
    """Return the code files of the working tree by path."""
    return {name: (ROOT / name).read_text() for name in tracked(ROOT) if kind_of(name)}


def archive(commit: str) -> tarfile.TarFile:
    """Return the files of a commit."""
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True).stdout
    return tarfile.open(fileobj=io.BytesIO(packed))


def at(commit: str) -> dict[str, str]:
    """Return the code files of a commit by path."""
    with archive(commit) as files:
        return {m.name: files.extractfile(m).read().decode() for m in files if m.isfile() and kind_of(m.name)}  # type: ignore[union-attr]


def measures_at(commit: str) -> dict[str, float]:
    """Return the measures of a commit, whose package a separate process imports."""
    with tempfile.TemporaryDirectory() as folder:
        with archive(commit) as files:
            files.extractall(folder, filter="data")
        command = [sys.executable, str(Path(__file__).resolve()), "--measure", folder]
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": folder}, capture_output=True, check=True
        )
    return dict(json.loads(done.stdout))


def table(before: dict[str, int], now: dict[str, int]) -> list[str]:
    """Return one row per folder, then sums by kind, of the package, and of everything."""
    both = before, now
    shown = [f"{'':30} baseline    now   change"]
    for key in (
        room,
        kind_of,
        lambda path: "both packages" if path.startswith(PACKAGES) else None,
        lambda path: "all",
    ):
        old, new = (by(key, sizes) for sizes in both)
        for name in sorted({*old, *new} - {""}):
            share = f" ({(new[name] - old[name]) / old[name]:+.0%})" if old[name] else ""
            shown.append(f"{name:30} {old[name]:8d} {new[name]:6d} {new[name] - old[name]:+8d}{share}")
        shown.append("")
    return shown


def measure_table(before: dict[str, float], now: dict[str, float]) -> list[str]:
    """Return one row per measure: the baseline's value, the present one, and the goal."""
    rows = [f"{'':54} baseline     now    goal"]
    return rows + [f"{m.name:54} {before[m.name]:8.6g} {now[m.name]:7.5g} {m.goal:7.5g}" for m in MEASURES]


def methods() -> list[str]:
    """Return one row per method, the median of methods with code, and the two base classes."""
    from fedgraph_flwr.config import compose, group_names

    def of(module: str) -> int:
        return python_lines((ROOT / f"{module.replace('.', '/')}.py").read_text())

    sizes = {}
    for name in group_names("strategy"):
        chosen = compose([f"strategy={name}"]).strategy
        modules = {side.partition(":")[0] for side in (chosen.server, chosen.client)} - BASES
        sizes[name] = sum(map(of, modules))
    own = [size for size in sizes.values() if size]
    shown = [f"{size:4d}  {name}" for name, size in sorted(sizes.items(), key=lambda item: item[::-1])]
    shown.append(f"median of the {len(own)} methods with code: {statistics.median(own):g}, most: {max(own)}")
    return [*shown, *(f"{of(module):4d}  {module}" for module in sorted(BASES))]


def main() -> None:
    """Print the comparison, the methods and the measures, or store a baseline."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--baseline", metavar="COMMIT", help="measure this commit and store it as the baseline")
    parser.add_argument("--measure", type=Path, metavar="CHECKOUT", help="print the measures of a checkout as JSON")
    args = parser.parse_args()
    sys.path[0] = str(args.measure or ROOT)
    if args.measure:
        print(json.dumps(measures(args.measure)))
        return
    if args.baseline:
        body: dict[str, Any] = {"commit": args.baseline, "measures": measures_at(args.baseline)}
        BASELINE.write_text(json.dumps({**body, "lines": count(at(args.baseline))}, indent=0) + "\n")
        return
    stored = json.loads(BASELINE.read_text())
    print(f"lines of code; the baseline is commit {stored['commit']}")
    print("\n".join([*table(stored["lines"], count(here())), *methods(), ""]))
    print("\n".join(measure_table(stored["measures"], measures())))


if __name__ == "__main__":
    main()

"""Lines of code per folder of the repository against a baseline, and per method, without docstrings, comments and blank lines.

    python benchmarks/sizes.py                      # compare with the baseline in benchmarks/sizes.json
    python benchmarks/sizes.py --baseline COMMIT    # count that commit, and store it as the baseline

A folder is a folder of the package or of the repository's root; ``docs`` covers its hooks and the files for servers. Python,
JavaScript, CSS, YAML and templates count; prose, notebooks, results and minified files do not.

A method's lines are those of its files in `strategies/` and `clients/`. A file is counted for each method whose YAML names one of
its classes; base classes, `methods/` and `models/` are not counted.
"""

import argparse
import ast
import io
import json
import re
import statistics
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedgraph_flwr.config import compose, group_names

ROOT = Path(__file__).parents[1]
BASELINE = Path(__file__).with_suffix(".json")
BASES = {"fedgraph_flwr.strategies.base", "fedgraph_flwr.strategies.fedavg", "fedgraph_flwr.clients.base"}
MOVED_FOLDERS = {"fedgraph_flwr/templates": "fedgraph_flwr/cli"}
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
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


def python_lines(text: str) -> int:
    """Return the number of Python lines with code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {line for t in tokens if t.type not in SILENT for line in range(t.start[0], t.end[0] + 1)}
    return len(code - docstrings)


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
    if parts[0] == "fedgraph_flwr":
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


def here() -> dict[str, str]:
    """Return the files of the working tree by path."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = {name: ROOT / name for name in names if kind_of(name)}
    return {name: path.read_text() for name, path in found.items() if path.is_file()}


def at(commit: str) -> dict[str, str]:
    """Return the files of a commit by path."""
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {m.name: archive.extractfile(m).read().decode() for m in archive if m.isfile() and kind_of(m.name)}  # type: ignore[union-attr]


def table(before: dict[str, int], now: dict[str, int]) -> list[str]:
    """Return one row per folder, then sums by kind, of the package, and of everything."""
    both = before, now
    shown = [f"{'':30} baseline    now   change"]
    for key in (
        room,
        kind_of,
        lambda path: "the package" if path.startswith("fedgraph_flwr/") else None,
        lambda path: "all",
    ):
        old, new = (by(key, sizes) for sizes in both)
        for name in sorted({*old, *new} - {""}):
            share = f" ({(new[name] - old[name]) / old[name]:+.0%})" if old[name] else ""
            shown.append(f"{name:30} {old[name]:8d} {new[name]:6d} {new[name] - old[name]:+8d}{share}")
        shown.append("")
    return shown


def methods() -> list[str]:
    """Return one row per method, the median of methods with code, and the two base classes."""

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
    """Print the comparison and the methods, or store a baseline."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--baseline", metavar="COMMIT", help="count this commit and store it as the baseline")
    commit = parser.parse_args().baseline
    if commit:
        BASELINE.write_text(json.dumps({"commit": commit, "lines": count(at(commit))}, indent=0) + "\n")
        return
    stored = json.loads(BASELINE.read_text())
    print(f"lines of code; the baseline is commit {stored['commit']}")
    print("\n".join([*table(stored["lines"], count(here())), *methods()]))


if __name__ == "__main__":
    main()

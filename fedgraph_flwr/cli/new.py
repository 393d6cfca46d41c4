"""The command ``new``: a package of one's own with a method that runs, its YAML and its test, to be changed from there."""

import argparse
import keyword
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import group_names
from fedgraph_flwr.data.graph import write_bytes
from fedgraph_flwr.errors import FedGraphError

_TEMPLATE = Path(__file__).parent / "templates" / "method"

_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "server.py": "{name}/server.py",
    "client.py": "{name}/client.py",
    "shared.py": "{name}/shared.py",
    "strategy.yaml": "{name}/conf/strategy/{name}.yaml",
    "test.py": "tests/test_{name}.py",
}
"""Template → the path it becomes."""


def register(commands: Any) -> None:
    """Add ``new`` to the subparsers."""
    parser = commands.add_parser("new", help="a package for a method of your own, with its test")
    parser.add_argument("what", choices=["method"], help="what it is to hold")
    parser.add_argument("name", help="of the method and of the package: a lower-case Python name")
    parser.add_argument(
        "--dir", type=Path, default=Path(), metavar="DIR", help="where the folder NAME goes (default: here)"
    )
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Handle ``new``."""
    folder = write(args.name, args.dir)
    print(
        f"wrote {folder}; next:\n  cd {folder} && pip install -e . && pytest\n  fedgraph-flwr run strategy={args.name}"
    )
    return 0


def write(name: str, where: Path) -> Path:
    """Write the package ``name`` in a folder of that name.

    Raises:
        FedGraphError: the name is no Python name in lower case, is a method's or a module's already, or the folder is there.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise FedGraphError(f"'{name}' is no lower-case Python name such as my_method")
    if name in group_names("strategy"):
        raise FedGraphError(f"strategy={name} is there already: choose another name")
    if find_spec(name):
        raise FedGraphError(f"there is a Python module '{name}' already: choose another name")
    folder = where / name
    if folder.exists():
        raise FedGraphError(f"{folder} is there already: choose another name, or --dir DIR")
    words = {"{{name}}": name, "{{Class}}": "".join(part.capitalize() for part in name.split("_"))}
    for template, path in _FILES.items():
        text = (_TEMPLATE / f"{template}.txt").read_text()
        for word, value in words.items():
            text = text.replace(word, value)
        write_bytes(folder / path.format(name=name), text.encode())
    write_bytes(folder / name / "__init__.py", f'"""The method {name}, for fedgraph-flwr."""\n'.encode())
    return folder

"""Command ``new``: create a package with a working method, its YAML and its test, as a starting point."""

import argparse
import keyword
import re
from importlib.util import find_spec
from pathlib import Path

from fedgraph_flwr.config import group_names
from fedgraph_flwr.data.files import packaged, write_bytes
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.options import add_options

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
"""Template → path in the package."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``new``."""
    parser.add_argument("what", choices=["method"], help="kind of package")
    parser.add_argument("name", help="name of the method and the package: a lower-case Python identifier")
    about = "--dir DIR  parent folder of the package (default: current folder)"
    add_options(parser, about, dir={"default": Path()})


def main(args: argparse.Namespace) -> int:
    """Handle ``new``."""
    folder = write(args.name, args.dir)
    print(f"wrote {folder}; next:\n  cd {folder} && pip install -e . && pytest")
    print(f"  fedgraph-flwr run strategy={args.name}")
    print("or, without installing it:")
    print(f"  cd {folder} && PYTHONPATH=. fedgraph-flwr run --conf {args.name}/conf strategy={args.name}")
    return 0


def write(name: str, where: Path) -> Path:
    """Write the package ``name`` to a folder of that name.

    Raises:
        FedGraphError: the name is not a lower-case Python identifier or is taken, or the folder exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise FedGraphError(f"'{name}' is not a lower-case Python identifier such as my_method")
    if name in group_names("strategy"):
        raise FedGraphError(f"strategy={name} already exists: choose another name")
    if find_spec(name):
        raise FedGraphError(f"a Python module '{name}' already exists: choose another name")
    folder = where / name
    if folder.exists():
        raise FedGraphError(f"{folder} already exists: choose another name, or pass --dir DIR")
    placeholders = {"{{name}}": name, "{{Class}}": "".join(part.capitalize() for part in name.split("_"))}
    for template, path in _FILES.items():
        text = packaged(_TEMPLATE / f"{template}.txt")
        for word, value in placeholders.items():
            text = text.replace(word, value)
        write_bytes(folder / path.format(name=name), text.encode())
    write_bytes(folder / name / "__init__.py", f'"""The method {name} for fedgraph-flwr."""\n'.encode())
    return folder

"""Command ``datasets``: list datasets, their availability and their files."""

import argparse

from fedgraph_flwr.data.datasets import SOURCES, Source, is_available
from fedgraph_flwr.data.graph import read_header
from fedgraph_flwr.data.root import data_root, imported_names, imported_path
from fedgraph_flwr.errors import FedGraphError, unknown

_HEADER = ("name", "nodes", "edges", "features", "classes", "available", "folder")


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``datasets``."""
    parser.add_argument("name", nargs="?", help="dataset to describe in detail")


def main(args: argparse.Namespace) -> int:
    """Handle ``datasets``."""
    print(detail(args.name) if args.name else listing())
    return 0


def listing() -> str:
    """Return a table of built-in and imported datasets; edges are counted as stored."""
    rows = [_HEADER, *(_row(name, source) for name, source in SOURCES.items()), *_imported()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    line = "  ".join(f"{{:{'>' if 0 < column < 5 else '<'}{width}}}" for column, width in enumerate(widths))
    lines = [line.format(*row).rstrip() for row in rows]
    lines += ["", f"root: {data_root()} (set FEDGRAPH_DATA to change it)"]
    lines.append("download: downloaded on first use; no: place the files there by hand, `datasets NAME` lists them")
    return "\n".join(lines)


def _row(name: str, source: Source) -> tuple[str, ...]:
    sizes = tuple(str(size) if size else "-" for size in source.sizes)
    found = "yes" if is_available(name) else "no" if source.kind == "files" else "download"
    return (name, *sizes, found, source.folder or "generated")


def _imported() -> list[tuple[str, ...]]:
    """Return rows of imported graphs, from the headers of their files."""
    rows = []
    for name in imported_names():
        try:
            shapes, values = read_header(imported_path(name))
            of = (shapes.get("y", ())[:1], shapes.get("edge_index", ())[1:], shapes.get("x", ())[1:])
            sizes = [*(str(*size) or "-" for size in of), str(values.get("num_classes", "-"))]
            state = "yes"
        except FedGraphError:
            sizes, state = ["-"] * 4, "damaged"
        rows.append((name, *sizes, state, "imported"))
    return rows


def detail(name: str) -> str:
    """Describe one dataset: source, sizes and files."""
    if name not in SOURCES:
        own = [row for row in _imported() if row[0] == name]
        if not own:
            raise unknown("dataset", name, [*SOURCES, *(row[0] for row in _imported())])
        sizes = [f"{what}: {size}" for what, size in zip(_HEADER[1:6], own[0][1:6], strict=True)]
        return "\n".join([f"{name}: imported, {imported_path(name)}", *sizes])
    source = SOURCES[name]
    lines = [f"{name}: {source.kind}, {source.origin}"]
    lines += [f"{what}: {size or 'varies'}" for what, size in zip(_HEADER[1:5], source.sizes, strict=True)]
    folder = data_root() / source.folder
    lines += [f"{'present' if (folder / file).is_file() else 'missing'}  {folder / file}" for file in source.files]
    return "\n".join(lines)

"""Command ``datasets``: list datasets, their availability and their files.

Examples:
  fedgraph-flwr datasets
  fedgraph-flwr datasets cora            # where it comes from, and its files
"""

import argparse
from typing import Any

from fedgraph_flwr.party.options import add_options

_HEADER = ("name", "nodes", "edges", "features", "classes", "available", "folder")


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``datasets``."""
    parser.add_argument("name", nargs="?", default="", help="dataset to describe in detail")
    add_options(parser, "--json  print JSON")


def main(args: argparse.Namespace) -> int:
    """Handle ``datasets``."""
    from fedgraph_flwr.errors import check_names
    from fedgraph_flwr.report.as_json import as_json

    rows = _rows()
    if args.name:
        check_names([args.name], [row["name"] for row in rows], "dataset")
        rows = [row for row in rows if row["name"] == args.name]
    print(as_json(rows) if args.json else _detail(rows[0]) if args.name else _table(rows))
    return 0


def _table(rows: list[dict[str, Any]]) -> str:
    """Return a table of built-in and imported datasets; edges are counted as stored."""
    from fedgraph_flwr.data.root import data_root

    texts = [_HEADER, *([str(row[column] or "-") for column in _HEADER] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    line = "  ".join(f"{{:{'>' if 0 < column < 5 else '<'}{width}}}" for column, width in enumerate(widths))
    lines = [line.format(*text).rstrip() for text in texts]
    lines += ["", f"root: {data_root()} (set FEDGRAPH_DATA to change it)"]
    lines.append("download: downloaded on first use; no: place the files there by hand, `datasets NAME` lists them")
    return "\n".join(lines)


def _rows() -> list[dict[str, Any]]:
    """Return what is known of each dataset by column, and its ``about`` and ``files``: path → whether it is there."""
    from fedgraph_flwr.data.datasets import SOURCES, is_available
    from fedgraph_flwr.data.graph import read_header
    from fedgraph_flwr.data.root import data_root, imported_names, imported_path
    from fedgraph_flwr.errors import FedGraphError

    rows = []
    for name, source in SOURCES.items():
        availability = "yes" if is_available(name) else "no" if source.kind == "files" else "download"
        folder = data_root() / source.folder
        row = dict(zip(_HEADER, (name, *source.sizes, availability, source.folder or "generated"), strict=True))
        files = {str(folder / file): (folder / file).is_file() for file in source.files}
        rows.append({**row, "about": f"{source.kind}, {source.origin}", "files": files})
    for name in imported_names():
        try:
            shapes, values = read_header(imported_path(name))
            sizes = [*(shapes.get(key, ())[place:][:1] for key, place in (("y", 0), ("edge_index", 1), ("x", 1)))]
            known = [*(size[0] if size else 0 for size in sizes), values.get("num_classes", 0), "yes"]
        except FedGraphError:
            known = [0] * 4 + ["damaged"]
        row = dict(zip(_HEADER, (name, *known, "imported"), strict=True))
        rows.append({**row, "about": f"imported, {imported_path(name)}", "files": {}})
    return rows


def _detail(row: dict[str, Any]) -> str:
    """Describe one dataset: source, sizes and files."""
    lines = [f"{row['name']}: {row['about']}", *(f"{what}: {row[what] or 'varies'}" for what in _HEADER[1:5])]
    return "\n".join(
        [*lines, *(f"{'present' if there else 'missing'}  {file}" for file, there in row["files"].items())]
    )

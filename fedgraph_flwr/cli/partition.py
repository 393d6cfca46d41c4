"""Command ``partition``: partition a dataset into client files, or describe the partition.

Examples:
  fedgraph-flwr partition dataset=cora num_clients=5
  fedgraph-flwr partition dataset=cora partition=metis num_clients=5 seed=1 --out parts
  fedgraph-flwr run graph=parts num_clients=5
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedgraph_flwr.config import RunConfig, group_names
from fedgraph_flwr.errors import FedGraphError, counted
from fedgraph_flwr.party.options import add_options

if TYPE_CHECKING:  # these import torch, which `--help` does not need
    from fedgraph_flwr.data.graph import ClientGraph
    from fedgraph_flwr.data.hetero import HeteroClientGraph

_LEGEND = """\
top class: share of the client's largest class. label TV: total-variation distance between its label distribution and the
pooled one. homophily: share of its edges within one class. cut: number of its outgoing and incoming cut edges"""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``partition``."""
    parser.epilog = f"{parser.epilog or ''}partitions: {', '.join(group_names('partition'))}"
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for `fedgraph-flwr run`")
    add_options(parser, "--out DIR  output folder for client_0000.safetensors ... and partition.json")


def main(args: argparse.Namespace) -> int:
    """Handle ``partition``."""
    from fedgraph_flwr.config import configuration
    from fedgraph_flwr.partition import store

    cfg = configuration(args.overrides)
    folder = store.client_files(cfg)
    if args.out:
        export(folder, args.out)
        print(f"{counted(len(store.files(folder)), 'client file')}: {args.out}")
    else:
        print_description(cfg, folder)
    return 0


def export(folder: Path, out: Path) -> None:
    """Copy a folder of client files to ``out`` atomically, replacing an earlier partition.

    Raises:
        FedGraphError: ``out`` holds other files, or is not writable.
    """
    from fedgraph_flwr.partition import store

    if out.resolve() == folder.resolve():
        return
    check_out(out)
    with store.replacing(out) as temporary:
        store.copy(folder, temporary)


def check_out(out: Path) -> None:
    """Refuse an output folder that holds other files than an earlier partition.

    Raises:
        FedGraphError: it does, or is a file.
    """
    from fedgraph_flwr.partition import store

    strangers = [path.name for path in out.iterdir() if not store.belongs(path)] if out.is_dir() else []
    if strangers or (out.exists() and not out.is_dir()):
        what = f"holds {strangers[0]}" if strangers else "is a file"
        raise FedGraphError(f"--out {out} {what}: pass a new or empty folder, or one with an earlier partition")


def print_description(cfg: RunConfig, folder: Path) -> None:
    """Print a table of the clients and a line of totals."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from fedgraph_flwr.data.graph import ClientGraph
    from fedgraph_flwr.partition import store

    clients = [store.load(path) for path in store.files(folder)]
    source = cfg.graph or f"partition={cfg.partition.name} merge={cfg.partition.merge} seed={cfg.seed}"
    title = f"{clients[0].name}: {counted(len(clients), 'client')}, {source}"
    table = Table(title=title, box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    lines = rows(clients)
    for column in lines[0]:
        table.add_column(column, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*line.values())
    console = Console()
    console.width = max(console.width, 120) if not console.is_terminal else console.width  # a pipe has no width
    console.print(table)
    if isinstance(clients[0], ClientGraph):
        kept = sum(client.edge_index.size(1) for client in clients)
        lost = sum(client.cut_out.size(1) for client in clients)
        console.print(f"{counted(kept, 'edge')} kept, {lost} cut ({lost / max(kept + lost, 1):.1%})", highlight=False)
    console.print(_LEGEND, highlight=False, style="dim")


def rows(clients: Sequence[ClientGraph | HeteroClientGraph]) -> list[dict[str, str]]:
    """Return one table row per client, by column; for heterogeneous graphs, type counts replace homophily and cut edges."""
    import torch

    from fedgraph_flwr.data.graph import ClientGraph
    from fedgraph_flwr.data.statistics import label_skew

    labels = [torch.bincount(client.y[client.y >= 0], minlength=client.num_classes) for client in clients]
    largest, distance = label_skew(torch.stack(labels))
    masks = [(client.train_mask, client.val_mask, client.test_mask) for client in clients]
    return [
        {
            "client": str(client.client),
            "nodes": str(client.num_nodes),
            "train/val/test": "/".join(str(int(mask.sum())) for mask in masks[i]),
            "top class": f"{largest[i]:.1%}",
            "label TV": f"{distance[i]:.3f}",
            **(_edges(client) if isinstance(client, ClientGraph) else _types(client)),
        }
        for i, client in enumerate(clients)
    ]


def _edges(client: ClientGraph) -> dict[str, str]:
    from fedgraph_flwr.data.statistics import edge_homophily

    homophily = edge_homophily(client.edge_index, client.y)
    return {
        "edges": str(client.edge_index.size(1)),
        "homophily": "-" if homophily is None else f"{homophily:.3f}",
        "cut": str(client.cut_out.size(1) + client.cut_in.size(1)),
    }


def _types(client: HeteroClientGraph) -> dict[str, str]:
    """Count the client's non-empty types."""
    return {
        "edges": str(client.num_edges),
        "node types": str(sum(count > 0 for count in client.counts.values())),
        "edge types": str(sum(index.size(1) > 0 for index in client.edges.values())),
    }

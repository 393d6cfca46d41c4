"""Command ``runs``: list the runs of a folder, with filters.

Examples:
  fedgraph-flwr runs                                   # all runs in runs/
  fedgraph-flwr runs strategy=fedprox state=finished   # those with these values
  fedgraph-flwr runs sweeps --json                     # kept runs of sweeps, as JSON
"""

import argparse
from pathlib import Path


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``runs``."""
    about = "folder of runs (default: runs), and values of keys, or of state, that select runs"
    parser.add_argument("overrides", nargs="*", metavar="DIR or key=value", help=about)
    parser.add_argument("--json", action="store_true", help="print JSON, with every key of the configurations")


def main(args: argparse.Namespace) -> int:
    """Handle ``runs``."""
    from fedgraph_flwr.errors import FedGraphError
    from fedgraph_flwr.report.as_json import as_json
    from fedgraph_flwr.report.listing import listed

    folders = [Path(word) for word in args.overrides if "=" not in word]
    if len(folders) > 1:
        raise FedGraphError(f"runs lists one folder, got {len(folders)}: {', '.join(map(str, folders))}")
    folder = folders[0] if folders else Path("runs")
    filters = dict(word.split("=", 1) for word in args.overrides if "=" in word)
    runs = listed(folder, filters)
    if args.json:
        print(as_json(runs))
        return 0
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("run", "method", "data", "seed", "state", "score"):
        table.add_column(column, justify="right" if column in ("seed", "score") else "left", overflow="fold")
    for run in runs:
        state = run["state"] if run["state"] == "finished" else f"{run['state']}, {run['round']} of {run['rounds']}"
        score = f"{run['score']:.4f}" if run["score"] == run["score"] else "–"
        name = str(Path(run["run"]).relative_to(folder))
        table.add_row(name, *(str(run[key]) for key in ("strategy", "dataset", "seed")), state, score)
    console = Console()
    console.print(table if runs else f"no run in {folder} has these values" if filters else f"no run in {folder}")
    return 0

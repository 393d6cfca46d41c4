"""Command ``runs``: list the runs of a folder or of a fleet's server, with filters.

Examples:
  fedgraph-flwr runs                                   # all runs in runs/
  fedgraph-flwr runs strategy=fedprox state=finished   # those with these values
  fedgraph-flwr runs sweeps --json                     # kept runs of sweeps, as JSON
  fedgraph-flwr runs --name far                        # those on the server of the connection far
  fedgraph-flwr runs --name far --copy first           # copy one of them to runs/first
"""

import argparse
from pathlib import Path


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``runs``."""
    about = "folder of runs (default: runs), and values of keys, or of state, that select runs"
    parser.add_argument("overrides", nargs="*", metavar="DIR or key=value", help=about)
    parser.add_argument("--name", metavar="NAME", help="list the runs on the server of this connection of Flower")
    parser.add_argument("--copy", metavar="RUN", default="", help="copy this run from the server to DIR/RUN")
    parser.add_argument("--json", action="store_true", help="print JSON, with every key of the configurations")


def main(args: argparse.Namespace) -> int:
    """Handle ``runs``."""
    from math import isnan

    from fedgraph_flwr.errors import FedGraphError, sanitize
    from fedgraph_flwr.fleet.overview import minute
    from fedgraph_flwr.report.as_json import as_json
    from fedgraph_flwr.report.listing import listed
    from fedgraph_flwr.store.results import as_number

    folders = [Path(word) for word in args.overrides if "=" not in word]
    if len(folders) > 1:
        raise FedGraphError(f"runs lists one folder, got {len(folders)}: {', '.join(map(str, folders))}")
    folder = folders[0] if folders else Path("runs")
    filters = dict(word.split("=", 1) for word in args.overrides if "=" in word)
    if args.copy:
        return _copy(args.name, args.copy, folder)
    if args.name is not None:
        from fedgraph_flwr.fleet.run_folders import ServerRuns

        folder, runs = Path(), ServerRuns(args.name).listing(filters)
    else:
        runs = listed(folder, filters)
    if args.json:
        print(as_json(runs))
        return 0
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    columns = (
        "run",
        "method",
        "data",
        "seed",
        "state",
        "score",
        *(["started", "started by"] if args.name is not None else []),
    )
    for column in columns:
        table.add_column(column, justify="right" if column in ("seed", "score") else "left", overflow="fold")
    for run in runs:
        state = run["state"] if run["state"] == "finished" else f"{run['state']}, {run['round']} of {run['rounds']}"
        score = "–" if isnan(value := as_number(run["score"])) else f"{value:.4f}"
        name = run["run"] if args.name is not None else str(Path(run["run"]).relative_to(folder))
        words = [name, run["strategy"], run["dataset"], run["seed"], state, score]
        status = dict(run.get("status") or {})
        who = [
            str(status.get("operator", "")),
            f"stopped by {status['stopped_by']}" if status.get("stopped_by") else "",
        ]
        words += [minute(status.get("started")), ", ".join(filter(None, who))] if args.name is not None else []
        table.add_row(*map(sanitize, words))
    console, place = Console(), folder if args.name is None else f"the server of '{args.name}'"
    console.print(table if runs else f"no run in {place} has these values" if filters else f"no run in {place}")
    return 0


def _copy(server: str | None, run: str, folder: Path) -> int:
    """Copy a run from a server to a new folder of its name."""
    from fedgraph_flwr.errors import FedGraphError
    from fedgraph_flwr.fleet.run_folders import ServerRuns, run_folder
    from fedgraph_flwr.store.results import CONFIG

    if server is None:
        raise FedGraphError(f"--copy {run} needs --name NAME, a connection of Flower's configuration")
    to = run_folder(folder, run)
    remote = ServerRuns(server)
    if not remote.files(run):
        raise FedGraphError(f"--copy {run}: the server of '{server}' has no such run; list them with --name {server}")
    if (to / CONFIG).exists():  # else it has only what the launch of a run leaves
        raise FedGraphError(f"--copy {run}: {to} exists: pass another DIR")
    files = remote.copy(run, to)
    print(f"copied {len(files)} files to {to}")
    return 0

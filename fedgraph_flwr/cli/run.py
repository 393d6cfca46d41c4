"""Command ``run``: compose the configuration, train, print a summary table, write a report."""

import argparse
import sys
from math import nan
from pathlib import Path
from typing import Any

from fedgraph_flwr.api import Run, train
from fedgraph_flwr.config import RunConfig, configuration, group_names
from fedgraph_flwr.errors import sanitize

_EPILOG = """\
keys: strategy= dataset= protocol= partition= model= num_clients= rounds= seed= engine=inline|ray|flower-simulation|CONNECTION
out=DIR resume=DIR config=FILE (your own YAML, or a run's config.yaml to repeat),
and any nested key: strategy.mu=0.1 train.lr=0.05 evaluation.patience=50
examples:
  fedgraph-flwr run
  fedgraph-flwr run strategy=fedprox dataset=cora num_clients=5 seed=1
  fedgraph-flwr run protocol=fedomd strategy=fedspa dataset=cora
  fedgraph-flwr run resume=runs/20260101-120000-fedavg-csbm-0
"""


def register(commands: Any) -> None:
    """Add ``run`` to the subparsers."""
    parser = commands.add_parser(
        "run",
        help="train a model in this process, on Ray, or on a fleet",
        epilog=_EPILOG
        + f"strategies: {', '.join(group_names('strategy'))}\nprotocols: {', '.join(group_names('protocol'))}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of conf/config.yaml")
    parser.add_argument("--quiet", action="store_true", help="print only the summary table")
    parser.add_argument("--no-report", action="store_true", help="do not write report.html")
    parser.add_argument("--dry-run", action="store_true", help="print the composed configuration and exit")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Handle ``run``."""
    cfg = configuration(args.overrides)
    if args.dry_run:
        from fedgraph_flwr.config import to_yaml

        print(to_yaml(cfg), end="")
        return 0
    from fedgraph_flwr.data import datasets
    from fedgraph_flwr.runs.prepare import with_folder

    cfg = with_folder(cfg)
    if cfg.split.kind == "public" and not cfg.graph and datasets.own_path(cfg.dataset):
        print(f"split: imported with dataset={cfg.dataset.name} (pass split.kind=ratio to draw another)")
    run = Run(Path(cfg.out))
    try:
        train(cfg, progress=False if args.quiet else "auto")
    except KeyboardInterrupt:
        nothing = f"no checkpoint was saved (checkpoint_every={cfg.checkpoint_every}), so the run cannot be resumed"
        hint = f"to resume: fedgraph-flwr run resume={cfg.out}" if run.resumable else nothing
        print(f"interrupted; {hint}", file=sys.stderr)
        return 130
    print_summary(run.summary, cfg)
    if not args.no_report:
        print(f"report: {run.report()}")
    return 0


def print_summary(summary: dict[str, Any], cfg: RunConfig) -> None:
    """Print the summary table."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fedgraph_flwr.report.runs import WHEN, score_table
    from fedgraph_flwr.runs.folder import headline_score

    title = escape(f"{summary['strategy']} on {summary['dataset']}, seed {summary['seed']}")
    table = Table(title=title, show_header=True)
    for column in ("", *WHEN.values()):
        table.add_column(column, justify="left" if not column else "right")
    for key, values in score_table(summary, cfg).items():
        table.add_row(key.replace("_", " "), *(f"{value:.4f}" for value in values.values()))
    console = Console()
    console.print(table)
    console.print(
        f"headline: {summary['headline']} = {headline_score(summary):.4f} (chance level {summary.get('chance', nan):.4f})  |  "
        f"rounds {summary['rounds']} (best {summary['best_round']}), "
        f"{summary['seconds_per_round']:.3f} s each, set-up {summary['setup_seconds']:.1f} s  |  "
        f"up {summary['bytes_up'] / 1e6:.1f} MB, down {summary['bytes_down'] / 1e6:.1f} MB",
        highlight=False,
    )
    if left_out := summary.get("left_out"):
        reasons = ", ".join(f"client {client}: {why}" for client, why in left_out.items())
        console.print(f"excluded from the headline score: {reasons}", highlight=False, markup=False, style="yellow")
    if "privacy" in summary:
        from fedgraph_flwr.secure.accounting import spent_text

        console.print(spent_text(summary["privacy"], cfg.privacy.scores), highlight=False)
    for who, reason in summary["failures"].items():
        line = f"failed: client {sanitize(who)}: {sanitize(reason, 1000)}"
        console.print(line, highlight=False, markup=False, style="yellow")
    console.print(f"results: {cfg.out}", highlight=False, markup=False, soft_wrap=True)

"""Command ``run``: compose the configuration, train, print a summary table, write a report.

keys: strategy= dataset= protocol= partition= model= num_clients= rounds= seed=
engine=inline|ray|flower-simulation|CONNECTION out=DIR resume=DIR
config=FILE (your own YAML, or a run's config.yaml to repeat),
and any nested key: strategy.mu=0.1 train.lr=0.05 evaluation.patience=50
examples:
  fedgraph-flwr run
  fedgraph-flwr run strategy=fedprox dataset=cora num_clients=5 seed=1
  fedgraph-flwr run graph=parts --predictions scored.csv
  fedgraph-flwr run protocol=fedomd strategy=fedspa dataset=cora
  fedgraph-flwr run resume=runs/20260101-120000-fedavg-demo-0
"""

import argparse
import contextlib
import dataclasses
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from math import isnan, nan
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import RunConfig, configuration, group_names
from fedgraph_flwr.data.files import packaged
from fedgraph_flwr.errors import FedGraphError, counted, sanitize
from fedgraph_flwr.party.options import add_options
from fedgraph_flwr.report import ASSETS
from fedgraph_flwr.report.as_json import as_json
from fedgraph_flwr.sweeps.search import is_distribution
from fedgraph_flwr.sweeps.values import expand


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``run``."""
    names = (f"{group}= {', '.join(group_names(group))}" for group in ("strategy", "protocol"))
    wrapped = (textwrap.fill(text, 80, break_on_hyphens=False) for text in names)
    parser.epilog = (parser.epilog or "") + "\n".join(wrapped)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of conf/config.yaml")
    add_options(parser, _OPTIONS, number={"default": None})


_OPTIONS = """
--quiet/-q  print only the summary table
--verbose  print every test score (default: the first four)
--json  print the summary as JSON instead of the table
--no-report  do not write report.html
--predictions FILE  .csv or .parquet: write the trained model's scores of all clients' items
--agreement FILE  run what members agreed on; without other keys than out=, engine= and the like (fedgraph-flwr agree)
--number N  number of the run in its agreement (default: the next)
--describe  print what the run would send, and exit
--dry-run  print the composed configuration and exit
"""


_TABLES = (".csv", ".tsv", ".txt", ".parquet", ".gz")
"""Endings of tables."""


def _instead(overrides: Sequence[str], error: str) -> str:
    """Return which other command takes an override that an error is about, as the end of the error; empty if none does."""
    for word in overrides:
        key, _, value = word.partition("=")
        if value not in error and key.rpartition(".")[2] not in error:
            continue
        if key.partition(".")[0] in ("dataset", "graph") and value.endswith(_TABLES):
            command = "fedgraph-flwr import --nodes NODES.csv --edges EDGES.csv --name mine"
            return f"; tables are imported first: `{command}`, then `fedgraph-flwr run dataset=mine`"
        with contextlib.suppress(FedGraphError):
            if value[:1] not in "[{" and (len(expand(value)) > 1 or is_distribution(value)):
                return f"; run takes one value per key, this runs each: `fedgraph-flwr sweep {shlex.join(overrides)}`"
    return ""


def main(args: argparse.Namespace) -> int:
    """Handle ``run``."""
    from fedgraph_flwr.config.short_names import lengthened
    from fedgraph_flwr.launch.agreed import agreed_run, configured

    try:
        args.overrides, _ = lengthened(args.overrides, {})
        cfg = configured(args.agreement, args.overrides) if args.agreement else configuration(args.overrides)
    except FedGraphError as error:
        error.args = (f"{error}{_instead(args.overrides, str(error))}",)
        raise
    if args.dry_run:
        from fedgraph_flwr.config import to_yaml

        print(to_yaml(cfg), end="")
        return 0
    if args.describe:
        from fedgraph_flwr.cli.describe import described

        print("\n".join(described(cfg)))
        return 0
    if args.agreement:
        cfg = agreed_run(args.agreement, cfg, args.number)
    from fedgraph_flwr.api import Run, train
    from fedgraph_flwr.data import datasets
    from fedgraph_flwr.launch.prepare import with_folder

    if args.predictions:
        from fedgraph_flwr.party.use.predict import check_predictable, predict_clients

        check_predictable(cfg, args.predictions)
    if not args.no_report:
        packaged(ASSETS / "page.css", "Pass --no-report. ")  # else the error would come after training
    cfg = with_folder(cfg)
    if not args.json and cfg.split.kind == "public" and not cfg.graph and datasets.own_path(cfg.dataset):
        print(f"split: imported with dataset={cfg.dataset.name} (pass split.kind=ratio to draw another)")
    run = Run(Path(cfg.out))
    try:
        train(cfg, progress=False if args.quiet else "auto")
    except KeyboardInterrupt:
        nothing = f"no checkpoint was saved (checkpoint_every={cfg.checkpoint_every}), so the run cannot be resumed"
        hint = f"to resume: fedgraph-flwr run resume={cfg.out}" if run.resumable else nothing
        print(f"interrupted; {hint}", file=sys.stderr)
        return 130
    outputs = {} if args.no_report else {"report": str(run.report())}
    if args.predictions:
        outputs["predictions"] = f"{args.predictions} ({counted(predict_clients(run.path, args.predictions), 'row')})"
    if args.json:
        print(as_json({**run.summary, "out": cfg.out, **outputs}))
        return 0
    # files or a partition may decide how many clients there are
    print_summary(run.summary, dataclasses.replace(cfg, num_clients=run.config.num_clients), args.verbose)
    for what, place in outputs.items():
        print(f"{what}: {place}")
    return 0


ROWS = 4
"""Number of test scores in the summary table without ``--verbose``."""


def result_text(summary: Mapping[str, Any], cfg: RunConfig) -> str:
    """Return a run's result in one line; empty without a score."""
    from fedgraph_flwr.evaluation.best_round import MISSING, coverage
    from fedgraph_flwr.methods.declarations import model_name
    from fedgraph_flwr.report.headline import display_name, is_share, score_text
    from fedgraph_flwr.store.results import as_number, headline_score

    metric, score, level = cfg.evaluation.headline, headline_score(summary), as_number(summary.get("chance"))
    if isnan(score):
        return ""
    gap = f"{100 * abs(score - level):.1f} points" if is_share(metric) else f"{abs(score - level):.3g}"
    beside = "" if isnan(level) else f", {gap} {'above' if score >= level else 'below'} chance"
    who = coverage(summary) if MISSING in summary else counted(cfg.num_clients, "client")
    return f"{score_text(score, metric)} test {display_name(metric)}{beside}, {model_name(cfg)}, {who}"


def print_summary(summary: dict[str, Any], cfg: RunConfig, verbose: bool = False) -> None:
    """Print the summary table: the headline, its chance level and the requested scores, at least `ROWS`, or all."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fedgraph_flwr.evaluation import metrics
    from fedgraph_flwr.evaluation.best_round import coverage
    from fedgraph_flwr.report.headline import start_text
    from fedgraph_flwr.report.runs import WHEN, score_table
    from fedgraph_flwr.store.results import headline_score

    console = Console()
    say = partial(console.print, highlight=False, markup=False)
    if line := result_text(summary, cfg):
        say(line, style="bold", soft_wrap=True)
    title = escape(f"{summary['strategy']} on {summary['dataset']}, seed {summary['seed']}")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("", *WHEN.values()):
        table.add_column(column, justify="left" if not column else "right", no_wrap=not column)
    scores = score_table(summary, cfg)
    requested = [f"test_{name.rpartition(':')[2]}" for name in cfg.evaluation.metrics]
    first = [metrics.headline(cfg.evaluation, "test"), metrics.chance_key(cfg.evaluation, "test"), *requested]
    names = sorted(scores, key=lambda name: first.index(name) if name in first else len(first))
    rows = max(ROWS, sum(name in first for name in names))
    for name in names[: None if verbose else rows]:
        table.add_row(name.replace("_", " "), *(f"{value:.4f}" for value in scores[name].values()))
    if scores:
        console.print(table)
    if len(scores) > rows and not verbose:
        console.print(f"{counted(len(scores) - rows, 'more score')}: --verbose, or the report", highlight=False)
    over = f", over {who}" if (who := coverage(summary)) else ""
    headline = f"headline: {summary['headline']} = {headline_score(summary):.4f} (chance level {summary.get('chance', nan):.4f})"
    console.print(
        f"{headline if scores else f'no scores: privacy.scores={cfg.privacy.scores}'}{over}  |  "
        f"rounds {summary['rounds']} (best {summary['best_round']}), "
        f"{summary['seconds_per_round']:.3f} s each, set-up {summary['setup_seconds']:.1f} s  |  "
        f"up {summary['bytes_up'] / 1e6:.1f} MB, down {summary['bytes_down'] / 1e6:.1f} MB",
        highlight=False,
    )
    if text := start_text(summary, cfg):
        say(text, soft_wrap=True)
    if left_out := summary.get("left_out"):
        reasons = ", ".join(f"client {client}: {why}" for client, why in left_out.items())
        say(f"excluded from the headline score: {reasons}", style="yellow")
    if "privacy" in summary:
        from fedgraph_flwr.secure.accounting import spent_text

        console.print(spent_text(summary["privacy"], cfg.privacy.scores), highlight=False)
    for who, reason in summary["failures"].items():
        line = f"failed: client {sanitize(who)}: {sanitize(reason, 1000)}"
        say(line, style="yellow")
    say(f"results: {cfg.out}", soft_wrap=True)

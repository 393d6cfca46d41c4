"""Command ``sweep``: run many configurations in parallel; write a table, confidence intervals and a page.

Pass a YAML file (docs/sweeps.md), optionally with overrides for all its runs, or only overrides with several values:
  fedgraph-flwr sweep strategy=fedavg,fedprox train.lr=0.01,0.003 seed=0..4
  fedgraph-flwr sweep strategy=fedavg,fedprox train.lr=0.01,0.003 tune=train.lr seed=0..4
  fedgraph-flwr sweep --search 20 'train.lr=loguniform(1e-4,1e-1)' strategy=fedavg,fedprox seed=0..2
  fedgraph-flwr sweep sweep.yaml --jobs 4
The table shows half of the 95 % interval of a mean; standard deviations are in NAME.json (deviation).
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from fedgraph_flwr.config import RunConfig, one_of
from fedgraph_flwr.errors import FedGraphError, counted, sanitize
from fedgraph_flwr.party.options import add_options
from fedgraph_flwr.report.units import about

if TYPE_CHECKING:  # SciPy and Torch come with these, which `--help` does not need
    from fedgraph_flwr.sweeps.execution import How
    from fedgraph_flwr.sweeps.results_index import ResultsIndex
    from fedgraph_flwr.sweeps.spec import Cell, Sweep
    from fedgraph_flwr.sweeps.summary import SweepSummary


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``sweep``."""
    about = "sweep files, or overrides with several values"
    parser.add_argument("overrides", nargs="+", metavar="FILE or key=value,value", help=about)
    details: dict[str, Any] = {
        "search": {"default": 0},
        "margin": {"type": float, "default": None},
        "cells": {"default": "interval"},
    }
    add_options(parser, _OPTIONS, keep=_KEEP, **details)


_KEEP = {"nargs": "?", "const": "all", "default": "rounds"}
"""Arguments of ``--keep``, which without a value keeps all."""

_OPTIONS = """
--jobs N  number of parallel runs (default: one per core)
--out DIR  folder of the results (default: the file's folder)
--search N  number of Optuna trials per row and column
--baseline COLUMN  reference column for differences (default: Local)
--margin POINTS  methods whose difference's interval lies within it are level (default: 1)
--no-baselines  do not add the baselines Majority and Local
--only TEXT  run only cells whose ROW/COLUMN/SEED contains TEXT
--cells WHAT  spread behind a mean in NAME.tex, interval: half of its 95 % interval (default), or std
--keep WHAT  rounds: configuration, rounds and summary of every run in NAME-runs/ (default); all: the whole folders; none
--retry  repeat failed runs
--dry-run  list the runs and exit
--table-only  only write the table of the available rows
--quiet/-q  print only the verdicts and the table
--json  print scores, intervals, verdicts and costs as JSON
"""


def main(args: argparse.Namespace) -> int:
    """Handle ``sweep``."""
    if args.jobs is not None and args.jobs < 0:
        raise FedGraphError(f"--jobs must be at least 0, got {args.jobs}")
    if "=" in args.keep:  # the override after a bare --keep
        args.overrides, args.keep = [*args.overrides, args.keep], "all"
    one_of(args.keep, ("rounds", "all", "none"), "--keep")
    one_of(args.cells, ("interval", "std"), "--cells")
    codes = [_one(sweep, args) for sweep in _sweeps(args)]
    return max(codes)


def _sweeps(args: argparse.Namespace) -> Iterator[Sweep]:
    """Yield the requested sweeps: one per file, or one made of overrides."""
    from fedgraph_flwr.config.short_names import lengthened
    from fedgraph_flwr.sweeps.overrides import parse_sweep
    from fedgraph_flwr.sweeps.spec import load

    args.overrides, _ = lengthened(args.overrides, {})
    files = [Path(word) for word in args.overrides if "=" not in word]
    overrides = [word for word in args.overrides if "=" in word]
    if not files:
        margin = {} if args.margin is None else {"margin": args.margin}
        yield parse_sweep(overrides, args.out, args.search, args.baseline, not args.no_baselines, **margin)
    for option in ("--search", "--baseline", "--no-baselines", "--margin"):
        if files and getattr(args, option[2:].replace("-", "_")) not in (None, False, 0, ""):
            raise FedGraphError(f"{option} does not apply to a sweep file: set {option.lstrip('-')}: in {files[0]}")
    for file in files:
        yield load(file, args.out, overrides)


def _one(sweep: Sweep, args: argparse.Namespace) -> int:
    """Run one sweep and return 1 if a run failed."""
    from fedgraph_flwr.sweeps.execution import How, check_free, default_jobs, present
    from fedgraph_flwr.sweeps.results_index import ResultsIndex, composed
    from fedgraph_flwr.sweeps.rows import alone
    from fedgraph_flwr.sweeps.runs import Keep

    index = ResultsIndex(sweep, args.retry)
    missing = index.missing(args.only)
    check_free(sweep)
    labels = [cell.label for cell in sweep.cells(index.finished)]
    if not sweep.unfolds and not any(args.only in label for label in labels):
        raise FedGraphError(f"--only {args.only} is part of no ROW/COLUMN/SEED, such as {labels[0]}")
    if args.table_only:
        _print(present(index), args)
        return 0
    configs = composed(sweep, missing)
    jobs = min(default_jobs(configs), max(len(missing), 1)) if args.jobs is None else args.jobs
    if args.dry_run:
        return _list(index, missing, jobs)
    with alone(sweep.results):
        index = ResultsIndex(sweep, args.retry)  # another process may have written meanwhile
        try:
            folder = sweep.folder / f"{sweep.name}-runs"
            keep = None if args.keep == "none" else Keep(folder, args.keep == "all")
            _run(index, How(jobs, args.only, keep), configs, sys.stderr if args.json else sys.stdout, args.quiet)
        except KeyboardInterrupt:
            present(index)
            where = f"interrupted; finished runs are in {sweep.results}"
            print(f"{where}; run the same command again to resume", file=sys.stderr)
            raise
        summary = present(index)
    _print(summary, args)
    return 1 if summary.failures else 0


def _print(summary: SweepSummary, args: argparse.Namespace) -> None:
    """Write the page; print the verdicts, the table and the failures, or all as JSON."""
    from fedgraph_flwr.report.as_json import as_json
    from fedgraph_flwr.report.sweep_page import write_sweep
    from fedgraph_flwr.sweeps.latex import latex
    from fedgraph_flwr.sweeps.outcome import outcome
    from fedgraph_flwr.sweeps.table import failures, main_table

    comparison, path = outcome(summary), summary.sweep.results
    page = write_sweep(comparison, path)
    path.with_suffix(".tex").write_text(latex(comparison["cells"], args.cells))
    if args.json:
        print(as_json({**comparison, "table": path.with_suffix(".md"), "page": page}))
        return
    print(
        "\n".join(["", *(f"{line}." for line in comparison["verdicts"]), "", *main_table(summary, intervals=True), ""])
    )
    print("\n".join([_legend(summary), *(f"{line}." for line in comparison["equal"]), ""]))
    for line in failures([*summary.failures, *summary.missed]):
        print(line.removeprefix("- "), file=sys.stderr)
    print(f"table: {path.with_suffix('.md')}, and {path.stem}.tex")
    print(f"page: {page}")


def _legend(summary: SweepSummary) -> str:
    """Return how to read the table and the verdicts."""
    unit, margin = (" in %", summary.sweep.margin) if summary.in_percent else ("", 0.0)
    within = f"it lies within {counted(margin, 'point')}" if margin else "it is 0"
    text = f"Mean over seeds{unit} ± half of its 95 % interval. Better, worse: the interval of the difference, paired by seed,"
    text += f" excludes 0; level: {within}; not decided: else, too few seeds to tell."
    return text + (" †: a score that does not cover all clients." if summary.partly else "")


def _list(index: ResultsIndex, missing: Sequence[Cell], jobs: int) -> int:
    """Print every run with its state."""
    wanted = {cell.identity for cell in missing}
    for cell in index.sweep.cells(index.finished):
        state = "to run " if cell.identity in wanted else "done   " if cell.identity in index.finished else "skipped"
        print(f"{state}  {cell.label}: fedgraph-flwr run {shlex.join(cell.overrides)}")
    print(_plan(index, missing, jobs, index.seconds(missing)))
    return 0


def _plan(index: ResultsIndex, missing: Sequence[Cell], jobs: int, seconds: float | None) -> str:
    """Describe the number of runs and the estimated duration."""
    every = len({cell.identity for cell in index.sweep.cells(index.finished)})
    search = f" now, {index.sweep.search.trials_each} trials per cell in total" if index.sweep.search else ""
    text = f"{index.sweep.name}: {counted(every, 'run')}, {len(missing)} to do{search}"
    if not missing:
        return text
    side = f", {jobs} in parallel" if jobs > 1 else ""
    time = "duration unknown" if seconds is None else about(seconds / max(jobs, 1))
    return f"{text}{side}, {time}"


def _run(index: ResultsIndex, how: How, configs: Sequence[RunConfig], out: TextIO, quiet: bool) -> None:
    """Run missing cells; in a terminal one line shows the progress, elsewhere a line follows each run; none if quiet."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from fedgraph_flwr.sweeps.execution import execute, probe
    from fedgraph_flwr.sweeps.rows import Row, failure, in_percent, number

    missing = index.missing(how.only)
    seconds = index.seconds(missing)
    if seconds is None and how.jobs and len(missing) > 1:
        seconds = probe(missing, configs)
    console = Console(file=out, quiet=quiet)
    console.print(_plan(index, missing, how.jobs, seconds), markup=False, highlight=False, soft_wrap=True)
    live = console.is_terminal and not quiet
    columns = BarColumn(20), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=console, disable=not live, transient=True) as bar:
        task = bar.add_task(index.sweep.name, total=len(missing))
        done, left, shares, remaining = 0, len(missing), dict[str, float](), ""

        def show() -> None:
            running = next(iter(shares), "")
            text = ", ".join(filter(None, [f"run {min(done + 1, done + left)} of {done + left}", running, remaining]))
            bar.update(task, description=text, completed=done + sum(shares.values()), total=done + left)

        def on_share(cell: Cell, share: float) -> None:
            shares[_name(cell)] = share
            show()

        def on_row(cell: Cell, row: Row, missing: int, seconds: float | None) -> None:
            nonlocal done, left, remaining
            done, left = done + 1, missing
            shares.pop(_name(cell), None)
            remaining = f"{about(seconds)} left" if seconds else ""
            show()
            failed = sanitize(failure(row))
            if live and not failed:
                return
            value = number(row, "value")
            score = failed or (f"{100 * value:.2f} %" if in_percent(row) else f"{value:.4g}")
            line = f"{done}/{done + left} {_name(cell)}: {score}"
            more = f"  ({remaining})" if remaining and not live else ""
            console.print(line + more, markup=False, highlight=False, soft_wrap=True)

        execute(index, how, on_row, on_share)


def _name(cell: Cell) -> str:
    """Return setting, method and seed of a run."""
    return f"{cell.setting}, {cell.method}, seed {cell.seed}"

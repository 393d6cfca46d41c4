"""The command ``sweep``: many runs, side by side, and the table, the intervals and the plot of them."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError, sanitize

if TYPE_CHECKING:  # SciPy and Torch come with these, which `--help` does not need
    from fedgraph_flwr.sweeps.execution import How
    from fedgraph_flwr.sweeps.results_index import ResultsIndex
    from fedgraph_flwr.sweeps.spec import Cell, Sweep
    from fedgraph_flwr.sweeps.summary import SweepSummary

_EPILOG = """\
a YAML file (docs/sweeps.md), with words that hold for all its runs; or words alone, with several values:
  fedgraph-flwr sweep strategy=fedavg,fedprox train.lr=0.01,0.003 seed=0..4
  fedgraph-flwr sweep strategy=fedavg,fedprox train.lr=0.01,0.003 tune=train.lr seed=0..4
  fedgraph-flwr sweep --search 20 'train.lr=loguniform(1e-4,1e-1)' strategy=fedavg,fedprox seed=0..2
  fedgraph-flwr sweep sweep.yaml --jobs 4
"""


def register(commands: Any) -> None:
    """Add ``sweep`` to the subparsers."""
    parser = commands.add_parser(
        "sweep",
        help="many runs side by side, and their table",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="+", metavar="FILE or key=value,value", help="what is to be run")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="runs side by side; default: as many as use each core once"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of CSV, Markdown and PNG; default: the file's")
    parser.add_argument("--search", type=int, default=0, metavar="N", help="trials of Optuna for each row and column")
    parser.add_argument(
        "--baseline", default="", metavar="COLUMN", help="reference column for differences (default: Local)"
    )
    parser.add_argument("--no-baselines", action="store_true", help="without Majority and Local, unless they are named")
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs whose ROW/COLUMN/SEED contains this")
    parser.add_argument("--keep", action="store_true", help="keep the folder of every run, in NAME-runs/")
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    parser.add_argument("--dry-run", action="store_true", help="list the runs and stop")
    parser.add_argument("--table-only", action="store_true", help="run nothing; write the table of the rows there are")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Handle ``sweep``."""
    if args.jobs is not None and args.jobs < 0:
        raise FedGraphError(f"--jobs must be at least 0, got {args.jobs}")
    codes = [_one(sweep, args) for sweep in _asked(args)]
    return max(codes)


def _asked(args: argparse.Namespace) -> Iterator[Sweep]:
    """The sweeps that the words mean: one a file, or one of words alone."""
    from fedgraph_flwr.sweeps.overrides import parse_sweep
    from fedgraph_flwr.sweeps.spec import load

    files = [Path(word) for word in args.overrides if "=" not in word]
    words = [word for word in args.overrides if "=" in word]
    if not files:
        yield parse_sweep(words, args.out, args.search, args.baseline, not args.no_baselines)
    for option, given in (
        ("--search", args.search),
        ("--baseline", args.baseline),
        ("--no-baselines", args.no_baselines),
    ):
        if files and given:
            raise FedGraphError(f"{option} goes with words alone: {files[0]} says it itself, as {option.lstrip('-')}:")
    for file in files:
        yield load(file, args.out, words)


def _one(sweep: Sweep, args: argparse.Namespace) -> int:
    """Run one sweep; 1 where a run gave no figure."""
    from fedgraph_flwr.sweeps.execution import How, check_free, default_jobs, present
    from fedgraph_flwr.sweeps.results_index import ResultsIndex, composed
    from fedgraph_flwr.sweeps.rows import alone

    book = ResultsIndex(sweep, args.retry)
    missing = book.missing(args.only)
    check_free(sweep)
    if args.table_only:
        _tell(present(book))
        return 0
    configs = composed(sweep, missing)
    jobs = min(default_jobs(configs), max(len(missing), 1)) if args.jobs is None else args.jobs
    if args.dry_run:
        return _list(book, missing, jobs)
    with alone(sweep.results):
        book = ResultsIndex(sweep, args.retry)  # another one may have written until now
        try:
            _run(book, How(jobs, args.only, sweep.folder / f"{sweep.name}-runs" if args.keep else None), configs)
        except KeyboardInterrupt:
            present(book)
            print(f"interrupted; what has run is in {sweep.results}, the same command goes on", file=sys.stderr)
            raise
        tally = present(book)
    _tell(tally)
    return 1 if tally.failures else 0


def _tell(tally: SweepSummary) -> None:
    """The table, and what failed, as they stand in the file."""
    from fedgraph_flwr.sweeps.table import failures, main_table

    print("\n".join(["", *main_table(tally), ""]))
    for line in failures([*tally.failures, *tally.missed]):
        print(line.removeprefix("- "), file=sys.stderr)
    print(f"table: {tally.sweep.results.with_suffix('.md')}")


def _list(book: ResultsIndex, missing: Sequence[Cell], jobs: int) -> int:
    """Tell every run, and whether it is at hand."""
    wanted = {cell.identity for cell in missing}
    for cell in book.sweep.cells(book.found):
        state = "to run " if cell.identity in wanted else "at hand" if cell.identity in book.found else "left out"
        print(f"{state}  {cell.label}: fedgraph-flwr run {shlex.join(cell.words)}")
    print(_plan(book, missing, jobs, book.seconds(missing)))
    return 0


def _plan(book: ResultsIndex, missing: Sequence[Cell], jobs: int, seconds: float | None) -> str:
    """How many runs there are, and how long they take."""
    every = len({cell.identity for cell in book.sweep.cells(book.found)})
    search = (
        f", and those that the search asks for next, {book.sweep.search.trials_each} trials in all"
        if book.sweep.search
        else ""
    )
    text = f"{book.sweep.name}: {every} runs, {len(missing)} to be made{search}"
    if not missing:
        return text
    side = f", {jobs} side by side" if jobs > 1 else ""
    time = "in a time that nothing at hand tells" if seconds is None else f"in about {_time(seconds / max(jobs, 1))}"
    return f"{text}{side}, {time}"


def _run(book: ResultsIndex, how: How, configs: Sequence[RunConfig]) -> None:
    """Run what is missing, with a line for each run that has ended, and a bar in a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from fedgraph_flwr.sweeps.execution import execute, probe
    from fedgraph_flwr.sweeps.rows import Row, failure, number

    missing = book.missing(how.only)
    seconds = book.seconds(missing)
    if seconds is None and how.jobs and len(missing) > 1:
        seconds = probe(missing, configs)
    console = Console()
    console.print(_plan(book, missing, how.jobs, seconds), markup=False, highlight=False, soft_wrap=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}")
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(book.sweep.name, total=len(missing), left="")
        done = 0

        def told(cell: Cell, row: Row, left: int, seconds: float | None) -> None:
            nonlocal done
            done += 1
            figure = sanitize(failure(row)) or f"{100 * number(row, 'value'):.2f} %"
            remaining = f"about {_time(seconds)} left" if seconds else ""
            bar.update(task, completed=done, total=done + left, left=remaining)
            line = f"{done}/{done + left} {cell.setting}, {cell.method}, seed {cell.seed}: {figure}"
            more = f"  ({remaining})" if remaining and not console.is_terminal else ""
            console.print(line + more, markup=False, highlight=False, soft_wrap=True)

        execute(book, how, told)


def _time(seconds: float) -> str:
    """A span as a person says it."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"

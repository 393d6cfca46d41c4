"""Command ``drill``: plant agreed laundering patterns in copies of the parties' books, and report which models find them.

On one machine, with the files or folders of all parties (party.yaml, as `init-party` writes it), one command does all.
On a fleet, all parties hold one plan, and each plants its part. Then link and run as usual, and each party reports.
The keys of the plan (docs/drill.md) are words KEY=VALUE; by default amount, period and dates are those of the books.
No original changes, no label is read, and planted accounts are a drill: they say nothing about the customers.

Examples:
  fedgraph-flwr drill bank_a bank_b bank_c seed=7 --alerts 50 --out drill
  fedgraph-flwr drill bank_a bank_b bank_c seed=7 hold_out=[cycle] --out drill_without_cycles
  fedgraph-flwr drill plan a b c start=2026-01-01 days=90 dates=true amount=150 seed=7 --out plan.yaml
  fedgraph-flwr drill plant bank_a --plan plan.yaml --digest 0123456789abcdef --out drill_a
  fedgraph-flwr drill report state --planted drill_a --alerts 50
"""

import argparse
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.options import add_options, run_quietly

_OPTIONS = """
--out PATH  new folder of the drill or of a party's copy; `plan`: file of the plan; `report`: .csv or .parquet file of the table
--books DIR  folder with the books of all parties, instead of their names
--alerts N  alerts of each party in the test (default: 50)
--share COLUMNS  columns of own accounts for the other parties, as of `link --share` (default: none)
--plan FILE  `plant`: the plan that all parties hold
--digest HEX  `plant`: digest of the plan that the parties agreed on, 16 digits or more (default: not compared)
--planted DIR  `report`: folder that `plant` wrote
--client I  `report`: this party's number in run folders; not for a node's state folder
"""

_ACTIONS: dict[str, tuple[str, ...]] = {
    "": ("out", "alerts", "share", "books"),
    "plan": ("out",),
    "plant": ("out", "plan", "digest"),
    "report": ("out", "planted", "client", "alerts"),
}
"""Options of each action; "" does all."""

_KEY = re.compile(r"[a-z_]+=")
"""Start of a word that sets a key of the plan."""

RUNS = {
    "own": ["strategy.shared=[]"],
    "federated": [],
    "pooled": ["strategy.pooled=true"],
}
"""Runs on the linked files, by folder, with keys of ``strategy=boosting``."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drill``."""
    about = (
        "parties' folders or party.yaml files; or plan PARTY..., plant FOLDER, or report RUN...; with keys of the plan"
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help=about)
    parser.set_defaults(overrides=[])  # keys after an option
    numbers: dict[str, Any] = {name: {"default": None} for name in ("alerts", "client")}
    paths: dict[str, Any] = {name: {"type": Path, "default": None} for name in ("out", "planted", "plan", "books")}
    add_options(parser, _OPTIONS, **numbers, **paths)


def main(args: argparse.Namespace) -> int:
    """Handle ``drill``."""
    from fedgraph_flwr.config.composition import parse_overrides

    action = args.words[0] if args.words and args.words[0] in _ACTIONS else ""
    keys = [word for word in args.words if _KEY.match(word)] + args.overrides
    words = [word for word in args.words[bool(action) :] if not _KEY.match(word)]
    if keys and action in ("plant", "report"):
        raise FedGraphError(f"{keys[0]} has no effect on `drill {action}`, whose plan is made: leave it out")
    args.keys = parse_overrides(keys)
    options = {name for names in _ACTIONS.values() for name in names}
    for name in sorted(options - {*_ACTIONS[action]}):
        if getattr(args, name) not in (None, "", False):
            where = f"drill {action}" if action else "drill with the tables of all parties"
            raise FedGraphError(f"--{name.replace('_', '-')} has no effect on `{where}`: leave it out")
    if args.alerts is not None and args.alerts < 1:
        raise FedGraphError(f"--alerts must be a number of alerts from 1, got {args.alerts}")
    if args.books is not None and not words:
        from fedgraph_flwr.party.book.rows import books_in

        words = [str(folder) for folder in books_in(args.books)]
    if not words or (args.out is None and action != "report"):
        raise FedGraphError("drill needs the parties, and --out for what it writes: see fedgraph-flwr drill --help")
    actions = {"": _all, "plan": _plan, "plant": _plant, "report": _report}
    actions[action](words, args)
    return 0


def _made(values: dict[str, Any]) -> Any:
    from fedgraph_flwr.config import typed
    from fedgraph_flwr.party.drill.plan import Plan

    return typed(Plan, values, "plan=")


def _plan(words: list[str], args: argparse.Namespace) -> None:
    """Write a plan for named parties."""
    if not {"start", "days"} <= args.keys.keys():
        raise FedGraphError("drill plan needs start=DAY and days=N, which all tables have")
    if args.out.exists():
        raise FedGraphError(f"--out {args.out} exists: pass a new file, since parties may hold the old plan")
    plan = _made({"parties": words, **args.keys})
    plan.save(args.out)
    print(f"wrote {args.out}: send it to all parties, and compare its digest {plan.digest[:16]}")


def _plant(words: list[str], args: argparse.Namespace) -> None:
    """Plant a party's part of a plan."""
    from fedgraph_flwr.party.drill.plan import Plan
    from fedgraph_flwr.party.drill.planting import PARTY, plant, read_book

    if len(words) != 1 or args.plan is None:
        raise FedGraphError("drill plant takes one party's folder or party.yaml, and --plan FILE")
    plan = Plan.load(args.plan)
    print(f"plan {plan.digest[:16]}: the other parties must print the same digest")
    if args.digest and (len(args.digest) < 16 or not plan.digest.startswith(args.digest.lower())):
        raise FedGraphError(
            f"--digest {args.digest} is not that of {args.plan}, {plan.digest[:16]}: the parties hold different plans"
        )
    book = read_book(Path(words[0]))
    _print_planted(book.party.party, plant(plan, book, args.out, book.party.client))
    print(
        f"wrote {args.out}; link and run with {args.out / PARTY}, then: fedgraph-flwr drill report RUN --planted {args.out}"
    )


def _print_planted(name: str, counts: Any) -> None:
    (taken, ordinary), (rows, crossing) = counts.accounts, counts.payments
    print(
        f"{name}: {rows} planted payments, {crossing} of them with other parties, on {taken} of {ordinary} ordinary accounts"
    )


def _report(words: list[str], args: argparse.Namespace) -> None:
    """Report the runs of one party."""
    from fedgraph_flwr.party.drill.report import report
    from fedgraph_flwr.party.use.frames import check_suffix

    check_suffix(args.out)
    if args.planted is None:
        raise FedGraphError("drill report needs --planted DIR, the folder that `drill plant` wrote")
    _show(
        report([Path(word) for word in words], [args.planted], [args.client], args.alerts or 50), args.planted, args.out
    )


def _show(table: Any, planted: Path, out: Path | None) -> None:
    """Print the table, and write it."""
    from fedgraph_flwr.party.drill.plan import Plan
    from fedgraph_flwr.party.drill.planting import PLAN
    from fedgraph_flwr.party.drill.report import text
    from fedgraph_flwr.party.use.frames import write_frame

    plan = Plan.load(planted / PLAN)
    print("\n".join(text(table, plan.hold_out)))
    print(f"drill {plan.digest[:16]}: planted patterns, not findings about customers")
    if out is not None:
        write_frame(table.assign(drill=plan.label), out)
        print(f"wrote {out}")


def _all(words: list[str], args: argparse.Namespace) -> None:
    """Plan, plant, link, train and report, with the books of all parties on this machine."""
    import numpy as np

    from fedgraph_flwr.config import configuration
    from fedgraph_flwr.launch.runner import run
    from fedgraph_flwr.party.drill.plan import common_period
    from fedgraph_flwr.party.drill.planting import PLAN, check_folder, plant, read_book
    from fedgraph_flwr.party.drill.report import report

    if find_spec("lightgbm") is None:  # before anything is written
        raise FedGraphError("drill compares trees of LightGBM: pip install 'fedgraph-flwr[trees]'", "package")
    books = [read_book(Path(word)) for word in words]
    out: Path = args.out
    check_folder(out, books)
    if empty := [book.party.party for book in books if not len(book.time)]:
        raise FedGraphError(f"party '{empty[0]}' has no payments: pass a book with some")
    start, days = common_period([(int(book.time.min()), int(book.time.max())) for book in books])
    defaults = {"start": start, "days": days, "dates": any(book.dates for book in books)}
    defaults["amount"] = round(float(np.median([np.median(book.cents) for book in books])) / 100, 2)
    plan = _made({**defaults, "parties": [book.party.party for book in books], **args.keys})
    print(f"plan {plan.digest[:16]}: {len(plan.patterns)} patterns in {plan.days} days from {plan.start}")
    folders = [out / f"party_{client}" for client in range(len(books))]
    for client, (book, folder) in enumerate(zip(books, folders, strict=True)):
        _print_planted(book.party.party, plant(plan, book, folder, client, plan.seed))
    plan.save(out / PLAN)
    _link([folder / f"client_{client:04d}.safetensors" for client, folder in enumerate(folders)], out, args.share)
    runs = []
    for name, keys in RUNS.items():
        place = out / "runs" / name
        words = [
            f"graph={out / 'linked'}",
            "task=edges",
            "strategy=boosting",
            *keys,
            f"seed={plan.seed}",
            f"out={place}",
        ]
        run(configuration([*words, "evaluation.metric=average_precision", "checkpoint_every=0"]))
        runs.append(place)
    _show(report(runs, folders, list(range(len(folders))), args.alerts or 50), folders[0], out / "recall.csv")
    print(f"other models: fedgraph-flwr run graph={out / 'linked'} task=edges ..., then drill report")


def _link(files: list[Path], out: Path, share: str) -> None:
    """Link the parties' files."""
    from fedgraph_flwr.party.link import command as link

    shared = ["--share", share] if share else []
    if run_quietly(link, ["--simulate", *map(str, files), *shared, "--out", str(out / "linked")]):
        raise FedGraphError("a party shares no payment with any other, also no planted one: raise cross=")

"""Command ``book``: keep a party's exports as one book, so that each day is scored with all that was known by its end.

A book is a folder with the exports, unchanged, party.yaml and a list (book.yaml). `import`, `link`, `predict`, `alerts`,
`explain`, `drift`, `worth` and `drill` read it by --book (or --books, with those of several parties).

Examples:
  fedgraph-flwr book new book --party-file party.yaml accounts.csv payments.csv
  fedgraph-flwr book use book runs/mine                       # the model that scores
  fedgraph-flwr book add book 2026-03-04.csv                  # one or many days
  fedgraph-flwr book add book late.csv --known 2026-03-06     # rows that were not there before that day
  fedgraph-flwr book show book
  fedgraph-flwr book erase book A0017                         # a person: all rows of the account
"""

import argparse
import contextlib
import shutil
from pathlib import Path

from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.party.options import add_options

LOCK = ".book.lock"

_OPTIONS = """
--party-file FILE  `new`: party.yaml of the party, as `init-party` writes it
--known DAY  `add`: day from which the rows of the files are known, for late ones (default: the day of each row)
--client I  `use`: the party's number in the run (default: that of party.yaml)
"""


_ACTIONS = {
    "new": "the files of accounts and payments",
    "add": "files",
    "show": "",
    "use": "RUN",
    "erase": "the ids of accounts",
}
"""What each action needs."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``book``."""
    parser.add_argument("action", choices=tuple(_ACTIONS), help="what to do")
    parser.add_argument("book", type=Path, metavar="BOOK", help="folder of the book")
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="new, add: files; use: RUN or state folder; erase: ids"
    )
    add_options(parser, _OPTIONS)


def main(args: argparse.Namespace) -> int:
    """Handle ``book``."""
    for name, action in (("party_file", "new"), ("known", "add"), ("client", "use")):
        if getattr(args, name) not in (None, "") and args.action != action:
            raise FedGraphError(f"--{name.replace('_', '-')} has no effect on `book {args.action}`: leave it out")
    if args.action != "show" and not args.words:
        raise FedGraphError(f"book {args.action} needs {_ACTIONS[args.action]}: see fedgraph-flwr book --help")
    from fedgraph_flwr.party.book import actions
    from fedgraph_flwr.party.book.folder import is_book
    from fedgraph_flwr.store.folder import owned

    missing = args.action == "new" and not args.book.exists()
    with contextlib.ExitStack() as stack:
        if args.action == "new" or (args.action != "show" and args.book.is_dir()):
            stack.enter_context(owned(args.book, LOCK, ", or run this command later"))
        fresh = missing and not is_book(args.book)  # another process may have made it before this one locked it
        try:
            for line in getattr(actions, args.action)(args):
                print(sanitize(line, 4000))
        except FedGraphError:
            if fresh:  # else a refused `book new` leaves a folder
                shutil.rmtree(args.book, ignore_errors=True)
            raise
    return 0

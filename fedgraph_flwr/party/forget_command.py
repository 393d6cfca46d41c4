"""Command ``forget``: remove a party from a finished run, exactly: the result is that of a run without it.

The cost is printed first: all rounds again. The result equals, bit for bit, the run that never had the party. Then delete RUN,
its exports, blends of it and the nodes' state folders: they hold models that the party took part in.

Examples:
  fedgraph-flwr forget runs/mine --party b --dry-run       # only what it costs
  fedgraph-flwr forget runs/mine --party b --out runs/without_b
"""

import argparse
from pathlib import Path

from fedgraph_flwr.party.options import add_options

_OPTIONS = """
--party NAME  the party's name in its file, or its client's number
--graph DIR  survivors' files, imported and linked again without the party (default: the run's files without it)
--out DIR  output folder (default: RUN-without-I, with its client I)
--dry-run  only print what is removed and what it costs
"""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``forget``."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished simulation")
    add_options(parser, _OPTIONS, party={"required": True})


def main(args: argparse.Namespace) -> int:
    """Handle ``forget``."""
    from fedgraph_flwr.party.forget import forget, plan
    from fedgraph_flwr.store.results import headline_score

    removal = plan(args.run, args.party, args.graph)
    for line in removal.lines():
        print(line, flush=True)
    if args.dry_run:
        return 0
    out = args.out or args.run.with_name(f"{args.run.name}-without-{removal.client}")
    summary = forget(removal, out)
    print(f"headline: {summary['headline']} = {headline_score(summary):.4f}")
    print(f"wrote {out}; delete {args.run}, its exports and state folders: the party took part in their models")
    return 0

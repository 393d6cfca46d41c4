"""Command ``audit``: verify a node's log of requests and replies, or a server's log of operators, and summarise it.

The node appends a line per request to STATE/audit.jsonl before its reply leaves; lines are chained by hashes. Note the number and
hash that this command prints, and pass them to the next audit.

Examples:
  fedgraph-flwr audit state
  fedgraph-flwr audit state --expect 412:9f2c… --out audit.csv
  fedgraph-flwr audit runs   # on the server: who started, stopped and copied runs, and admitted nodes
"""

import argparse
from pathlib import Path
from typing import Any

from fedgraph_flwr.party.options import JSON, add_options, answered


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``audit``."""
    parser.add_argument(
        "state", type=Path, metavar="STATE", help="state folder of a node (--state), or folder of a server's runs"
    )
    add_options(parser, _OPTIONS + JSON)


_OPTIONS = """
--expect NUMBER:HASH  line that an earlier audit printed
--out FILE  .csv or .parquet file with one row per run, or action
"""


@answered
def main(args: argparse.Namespace) -> tuple[int, Any]:
    """Handle ``audit``."""
    from fedgraph_flwr.errors import sanitize
    from fedgraph_flwr.party.use.frames import write_frame
    from fedgraph_flwr.report.units import size
    from fedgraph_flwr.secure.audit import audit

    table = audit(args.state, args.expect)
    for row in table.itertuples():
        if hasattr(row, "action"):
            words = [row.at, row.operator, row.address, row.action, row.subject, *([f"({row.run})"] if row.run else [])]
            print(" ".join(sanitize(word, 200) for word in words))
            continue
        spent = (
            f"; {row.releases} releases with noise, ε {row.epsilon:.3g} per {sanitize(row.unit, 40)}"
            if row.releases
            else ""
        )
        signed = f"; signed by {sanitize(row.approved, 300)}" if row.approved else ""
        signed = f"; started by {sanitize(row.operator, 200)}{signed}" if row.operator else signed
        times = f"{sanitize(row.first, 30)} to {sanitize(row.last, 30)}"
        print(
            f"run {sanitize(row.run, 30)} ({sanitize(row.strategy or 'refused', 40)}), {times}: {row.requests}"
            f" requests in {row.rounds} rounds, {row.refused} refused; {size(row.received)} came, {size(row.sent)} left"
            f" ({sanitize(row.what, 200)}){spent}{signed}"
        )
    for reason, count in sorted(table.attrs["reasons"].items(), key=lambda pair: -pair[1]):
        print(f"refused {count} times: {sanitize(reason, 300)}")
    for unit, epsilon in table.attrs["epsilon"].items():
        print(f"all runs together: ε {epsilon:.3g} per {sanitize(unit, 40)}")
    if args.out is not None:
        write_frame(table, args.out)
        print(f"wrote {args.out}")
    print(
        f"the chain of {table.attrs['lines']} lines is intact; the last one: {table.attrs['lines']}:{table.attrs['hash']}"
    )
    return 0, table

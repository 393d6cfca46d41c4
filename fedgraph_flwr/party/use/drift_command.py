"""Command ``drift``: compare new tables with the data that a party's model was trained on.

Exit code: 0 if nothing has shifted, 3 if something has (population stability index above 0.25), 2 for invalid input.

Examples:
  fedgraph-flwr drift runs/mine --client 0 --nodes accounts.csv --edges march.csv --out drift.csv
  fedgraph-flwr drift state --nodes accounts.csv --edges march.csv             # at a party, without the server
"""

import argparse
from typing import Any

from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.party.options import JSON, add_options, answered
from fedgraph_flwr.party.use import predict_command

SHIFTED = 3
"""Exit code if something has shifted."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drift``."""
    predict_command.add_model_arguments(parser)
    predict_command.add_input_arguments(parser)
    add_options(parser, f"{_OUTPUT}{JSON}")


_OUTPUT = """
--out FILE  .csv or .parquet file of all columns
--page FILE  .html page of all columns
"""


@answered
def main(args: argparse.Namespace) -> tuple[int, Any]:
    """Handle ``drift``."""
    from fedgraph_flwr.party.use.drift import drift
    from fedgraph_flwr.party.use.pages import drift_page, write_outputs

    predictor = predict_command.opened(args, party_graph=True)
    if not predict_command.reads_new(args):
        raise FedGraphError(
            "drift compares new items with stored ones: pass --nodes FILE and --edges FILE, --graph FILE, or --book DIR"
        )
    ((_, (predictor, graph, ids, read)),) = predict_command.days_of(args, predictor, together=True)
    table = drift(predictor, graph, read, predict_command.predicted_from(args, predictor, graph, ids, read))
    shown = table.assign(**{name: table[name].map(sanitize) for name in ("column", "what")})
    shifted, stable = shown[shown["verdict"] == "shifted"], int((shown["verdict"] == "stable").sum())
    names = ", ".join(f"{row.table} {row.column} ({row.what})" for row in shifted.itertuples())
    for column, values in table.attrs["unseen"].items():
        print(sanitize(f"never seen in training: {column} {values}", 1000))
    print(f"{len(shifted)} of {len(table)} rows shifted{': ' if names else ''}{names}")
    if growing := table.attrs["growing"]:
        print(f"not compared, because they grow with the book: {', '.join(growing)}")
    if len(changed := shown[shown["verdict"] != "stable"]):
        print(changed.to_string(index=False, float_format="{:.3g}".format))
    print(f"{stable} rows are stable (--out FILE lists all)")
    write_outputs(args, table, lambda: drift_page(table, predictor))
    return SHIFTED if len(shifted) else 0, table

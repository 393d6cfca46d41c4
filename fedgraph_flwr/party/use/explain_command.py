"""Command ``explain``: list the columns and payments that carry the score of items.

Items are ids as `predict` lists them: of nodes, or of edges (their numbers without --edges). Networks need `pip install
'fedgraph-flwr[explain]'`, trees `pip install 'fedgraph-flwr[trees]'`.

Examples:
  fedgraph-flwr explain runs/mine --client 0 --items 17,23 --out reasons.csv
  fedgraph-flwr explain state --nodes accounts.csv --edges today.csv --items p204    # at a party, without the server
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.party.options import add_options
from fedgraph_flwr.party.use.predict_command import (
    Input,
    add_input_arguments,
    add_model_arguments,
    days_of,
    opened,
    treatment_of,
)

SHOWN = 5
"""Reasons of an item that the terminal shows."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``explain``."""
    add_model_arguments(parser)
    add_input_arguments(parser)
    add_options(parser, _OPTIONS, items={"required": True}, top={"default": 20})


_OPTIONS = """
--items IDS  ids of the items, separated by commas
--top N  reasons per item (default: 20)
--out FILE  .csv or .parquet file of the reasons
--page FILE  .html page of the reasons
"""


def main(args: argparse.Namespace) -> int:
    """Handle ``explain``."""
    import pandas as pd

    from fedgraph_flwr.party.use.cases import payments_around
    from fedgraph_flwr.party.use.explain import WITHOUT, explain
    from fedgraph_flwr.party.use.pages import explain_page, write_outputs

    items = [item.strip() for item in next(csv.reader([args.items], skipinitialspace=True), []) if item.strip()]
    if not items or args.top < 1:
        raise FedGraphError(f"--items needs ids and --top a number above 0, got '{args.items}' and {args.top}")
    predictor = opened(args, party_graph=True)
    explanations = []
    for given, names in _by_day(args, predictor, items):
        around = payments_around(names, [given], treatment_of(args, given[0])) if predictor.predicts_edges else {}
        explanations += [replace(one, around=around.get(str(one.item))) for one in explain(*given, names)]
    frames = [reasons.to_frame(args.top) for reasons in explanations]
    for reasons, frame in zip(explanations, frames, strict=True):
        print(
            f"item {sanitize(reasons.item, 60)}: score {reasons.score:.3g}, {reasons.without:.3g} without its first"
            f" {WITHOUT} reasons; rank correlation with a random model {reasons.alike:.2f}"
        )
        shown = frame[["text", "contribution"]].head(SHOWN)
        shown = shown.assign(text=[sanitize(text, 1000) for text in shown["text"]])
        print(shown.to_string(index=False, float_format="{:.3g}".format, na_rep=""))
    write_outputs(args, pd.concat(frames, ignore_index=True), lambda: explain_page(explanations, args.top, predictor))
    return 0


def _by_day(args: argparse.Namespace, predictor: Any, items: list[str]) -> Iterator[tuple[Input, list[str]]]:
    """Yield inputs with their items: of a book, each payment with its day, and accounts with the last day."""
    left, last = list(items), None
    for day, given in days_of(args, predictor):
        last = given
        if day and predictor.predicts_edges:
            held = {*map(str, given[3].edge_ids)}
            names = [item for item in left if item in held]
            left = [item for item in left if item not in held]
            if names:
                yield given, names
    if left and last is not None:
        yield last, left

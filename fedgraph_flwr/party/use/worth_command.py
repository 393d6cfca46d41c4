"""Command ``worth``: compare a party's local model with boosting and federated models on its own test items.

Differences are to the first RUN, on the same test items of the party, with 95 % intervals: paired bootstrap of whole days
(items with times), else of connected components, else of items. Runs that differ only in their seeds are one row. Nothing
leaves the party.

Examples:
  fedgraph-flwr worth runs/local runs/boosting runs/fedavg --client 0
  fedgraph-flwr worth state --metric average_precision       # at a party: the models that its node stored
  fedgraph-flwr worth runs/old runs/new --client 0 --book book --from 2026-03-01   # on days of its book with labels
  fedgraph-flwr worth runs/fedavg --coalitions runs/coalitions   # what each party adds, by training again on coalitions of them
"""

import argparse
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError, counted
from fedgraph_flwr.party.options import JSON, add_options, answered


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``worth``."""
    clusters = ("auto", "day", "component", "item")
    given: dict[str, Any] = {"clusters": {"default": "auto", "choices": clusters}, "orders": {"default": 20}}
    about = "run folders, the local model's first; or a state folder"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=about)
    options = """
        --client I  party that asks, 0..M-1
        --metric NAME  auc, average_precision, accuracy, balanced_accuracy, macro_f1, f1_at_threshold
            (default: headline of the first run)
        --clusters auto|day|component|item  items that are drawn together (default: auto, see below)
        --book DIR  the party's book: compare on payments or accounts of its days that have labels, instead of test items
        --from DAY  first day of the book, such as 2026-03-04 (default: --until)
        --until DAY  last day of the book (default: its last one)
        --coalitions DIR  Shapley value of each party; DIR: new folder of the runs of coalitions
        --orders N  with --coalitions: orders drawn for more than 5 parties (default: 20)
        --out FILE  .csv or .parquet file of the table
        --page FILE  .html page of the comparison
        """
    add_options(parser, JSON)
    add_options(parser, options, **given, **{"from": {"dest": "since"}})


@answered
def main(args: argparse.Namespace) -> tuple[int, Any]:
    """Handle ``worth``."""
    from fedgraph_flwr.party.use.frames import check_written
    from fedgraph_flwr.party.use.pages import contribution_page, worth_page, write_outputs
    from fedgraph_flwr.party.use.worth import worth

    check_written(args)
    if args.coalitions is not None:
        table = _contributions(args)
    else:
        lived = _lived(args)
        table = worth(args.runs, args.client, args.metric, args.clusters, lived)
        _print_scores(table)
    write_outputs(args, table, lambda: contribution_page(table) if args.coalitions else worth_page(table))
    return 0, table


def _lived(args: argparse.Namespace) -> Any:
    """Return the items of the days of ``--book``, and their classes by the last version of each row; None without a book.

    Raises:
        FedGraphError: no column of labels is named, or a day is given without a book.
    """
    import numpy as np

    from fedgraph_flwr.party.use.predict_command import check_days, check_party, is_state, predicted

    if args.book is None:
        check_days(args)
        return None
    from fedgraph_flwr.party.book.folder import PARTY, BookFolder
    from fedgraph_flwr.party.book.rows import read_rows
    from fedgraph_flwr.party.tables.nodes import label_codes
    from fedgraph_flwr.party.use.worth import Lived

    book, labels = BookFolder.load(args.book), dict[str, int]()
    given = {"opened_book": book, "party_file": args.book / PARTY, "out": None, "edges": []}
    given |= {"graph": None, "scaled": False}
    rows = read_rows(book)
    columns, last = rows.columns, int(rows.known.max())

    if args.client is None and not any(is_state(run) for run in args.runs):
        args.client = book.party.client

    def scores(model: Any) -> Any:
        check_party(model, args.book / PARTY)
        predictions = predicted(argparse.Namespace(**vars(args) | given), model)[1]
        if model.predicts_edges:
            table, name, label = rows.edges.iloc[rows.at(last)], columns.edge_id, columns.edge_label
        else:
            table, name, label = rows.nodes_at(last), columns.id, columns.label
        if table is None or not (name and label) or label not in table.columns:
            raise FedGraphError(
                f"{args.book} has no labels of these items: name the columns of ids and labels in its party.yaml"
            )
        if not labels:
            codes = label_codes(table, label, str(args.book), model.input_spec.classes, book.treatment)[0]
            labels.update(zip(table[name].tolist(), codes.tolist(), strict=True))
        return np.stack([predictions.day.astype(str), predictions.ids.astype(str)]), predictions.logits.numpy()

    return Lived(scores, labels)


def _print_scores(comparison: Any) -> None:
    """Print the rows of `worth`."""
    from fedgraph_flwr.party.use.pages import worth_text

    about = comparison.attrs
    print(worth_text(comparison))
    print(f"{about['items']} test items, intervals by {about['clusters']} {about['by']}s; chance {about['chance']:.4g}")
    for row in comparison.itertuples():
        print(f"{row.run}: {row.metric} {row.score:.4g} [{row.low:.4g}, {row.high:.4g}]{_cost(row)}")
        if row.verdict:
            change = f"{row.difference:+.4g} [{row.difference_low:+.4g}, {row.difference_high:+.4g}]"
            print(f"  {change} to {comparison['run'][0]}: {row.verdict}")
    if not about["own_trees"]:
        print(
            "what the party has without others: run strategy=boosting strategy.shared=[] on the same files, and pass it first"
        )


def _contributions(args: argparse.Namespace) -> Any:
    """Print what each party adds, and return the table."""
    from fedgraph_flwr.party.use.contribution import contribution

    if len(args.runs) != 1 or args.client is not None:
        raise FedGraphError("--coalitions takes one RUN, of all parties: leave --client and further runs out")
    contributions = contribution(args.runs[0], args.coalitions, args.metric, args.orders)
    about = contributions.attrs
    print(f"{about['metric']}: {about['none']:.4g} without parties, {about['all']:.4g} with all; {about['runs']} runs")
    for row in contributions.itertuples():
        interval = "" if row.low != row.low else f" [{row.low:+.4g}, {row.high:+.4g}]"
        print(f"{row.party}: {row.contribution:+.4g}{interval}; alone {row.alone:.4g}, all others {row.without:.4g}")
    return contributions


def _cost(row: Any) -> str:
    """Return what a run cost, as far as it is known."""
    parts = [
        ("rounds", counted(row.rounds, "round")),
        ("seconds", f"{row.seconds:.3g} s"),
        ("megabytes", f"{row.megabytes:.3g} MB per party"),
        ("epsilon", f"ε {row.epsilon:.3g}"),
    ]
    known = [text for name, text in parts if getattr(row, name) == getattr(row, name)]
    return f" ({', '.join(known)})" if known else ""

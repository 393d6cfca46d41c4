"""The command ``predict``: a finished run's network on new tables and graphs, or on those it was trained on."""

import argparse
import sys
from pathlib import Path
from typing import Any

from fedgraph_flwr.cli.table_options import add_table_arguments, formats_of, layout_of
from fedgraph_flwr.errors import FedGraphError

_EPILOG = """\
the table: id, p_<class> for each class, class. Tables become features by the schema of the run, a client's by its own statistics.
Edges may name nodes of the client's stored graph, or of that of --graph FILE: new nodes are then predicted in it.
examples:
  fedgraph-flwr predict runs/mine --nodes new_customers.csv --edges new_payments.csv --out predictions.csv
  fedgraph-flwr predict runs/mine --client 0                      # its own nodes, by its own model where it has one
  fedgraph-flwr predict --node state --nodes new.csv --edges new_edges.csv --out new.parquet       # without the server
"""


def register(commands: Any) -> None:
    """Add ``predict`` to the subparsers."""
    parser = commands.add_parser(
        "predict",
        help="what a trained network says of new nodes and graphs",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_arguments(parser)
    given = parser.add_argument_group("of what; default: the client's own graph")
    given.add_argument("--nodes", type=Path, help="node table: .csv, .tsv, .txt (or with .gz) or .parquet")
    given.add_argument("--edges", type=Path, help="edge table")
    given.add_argument(
        "--graph",
        type=Path,
        help="a dataset's or client's file, or a PyG object that torch.save wrote (.pt); with tables: the stored graph whose"
        " nodes --edges may name",
    )
    given.add_argument("--schema", type=Path, metavar="FILE", help="of the tables, where the run's folder has none")
    add_table_arguments(given)
    given.add_argument(
        "--undirected", action="store_true", help="each row stands for both directions; default: as in training"
    )
    parser.add_argument(
        "--pairs", type=Path, metavar="FILE", help="task=links: table of pairs to score, with columns source and target"
    )
    parser.add_argument("--threshold", type=float, metavar="P", help=_THRESHOLD)
    parser.add_argument("--out", type=Path, metavar="FILE", help=".csv or .parquet; default: the terminal")
    parser.set_defaults(func=main)


_THRESHOLD = (
    "of two classes: the second from this probability on; default: where its F1 is best on the client's validation nodes,"
    " and 0.5 where there is no client"
)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that choose whose model of which round."""
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="a run's result folder, or an exported one")
    parser.add_argument("--node", type=Path, metavar="DIR", help="a party's state folder, instead of RUN")
    parser.add_argument("--client", type=int, metavar="I", help="whose model (0..M-1); default: the shared one")
    parser.add_argument("--round", default="", metavar="best|last", help="default: as the run's headline figure")


def chosen(args: argparse.Namespace) -> Any:
    """The predictor that the options choose.

    Raises:
        FedGraphError: neither a run nor a node, or both.
    """
    from fedgraph_flwr.export.writing import INDEX, load_export
    from fedgraph_flwr.runs.prediction import load_node, load_predictor

    if (args.run is None) == (args.node is None):
        raise FedGraphError("say whose network: either RUN, a result folder, or --node DIR, a party's state folder")
    if args.run is not None and (args.run / INDEX).is_file():
        return load_export(args.run)
    if args.node is None:
        return load_predictor(args.run, args.client, args.round)
    found = load_node(args.node, args.round)
    if args.client not in (None, found.client):
        raise FedGraphError(f"{args.node} is of client {found.client}, not of --client {args.client}")
    return found


def main(args: argparse.Namespace) -> int:
    """Handle ``predict``."""
    predictor = _with_meaning(chosen(args), args)
    graph, ids, rows = _graph(args, predictor)
    if args.pairs is not None:
        return _score_pairs(predictor, graph, ids, args)
    found = predictor.predict(graph, ids)
    if rows is not None:
        found = found.at(rows)
    if args.threshold is not None:
        if not (0 <= args.threshold <= 1 and len(found.classes) == 2):
            raise FedGraphError(f"--threshold {args.threshold:g} must be a probability, 0 to 1, of two classes")
        found.threshold = args.threshold
    frame = found.to_frame()
    if args.out is None:
        print(frame.to_csv(index=False), end="")
        return 0
    found.write(args.out)
    counts = frame["class"].value_counts()
    whose = f"client {predictor.client}'s model" if predictor.client is not None else "the shared model"
    print(f"{predictor.name}, {whose} of round {predictor.round}, on {len(frame)} nodes")
    print(f"classes: {', '.join(f'{name} {counts.get(name, 0)}' for name in found.classes)}")
    if found.threshold is not None:
        print(f"'{found.classes[1]}' from probability {found.threshold:.3f} on")
    print(f"wrote {args.out}")
    return 0


def _score_pairs(predictor: Any, graph: Any, ids: Any, args: argparse.Namespace) -> int:
    """Score the pairs of a table, and print or write them."""
    from fedgraph_flwr.data.tables import read_table

    layout = layout_of(args)
    ends = [layout.source or "source", layout.target or "target"]
    table = read_table(args.pairs, layout)
    if missing := [name for name in ends if name not in table.columns]:
        raise FedGraphError(
            f"{args.pairs} has no column '{missing[0]}': expected {' and '.join(ends)}, or name them by --source-column and"
            " --target-column"
        )
    found = predictor.predict_pairs(graph, table[ends].astype(str).to_numpy().tolist(), ids)
    if args.out is None:
        print(found.to_frame().to_csv(index=False), end="")
        return 0
    found.write(args.out)
    print(f"wrote {len(found.scores)} scored pairs to {args.out}")
    return 0


def _with_meaning(predictor: Any, args: argparse.Namespace) -> Any:
    """The predictor with what the options state of its input: --schema, --undirected, or the schema of --graph FILE."""
    from dataclasses import replace

    from fedgraph_flwr.data.schema import Schema

    meaning = predictor.meaning
    if args.schema:
        schema = Schema.load(args.schema)
        if len(schema.classes) != len(meaning.classes):
            raise FedGraphError(
                f"{args.schema} names {len(schema.classes)} classes, but {meaning.where} has {len(meaning.classes)}"
            )
        undirected = meaning.undirected or schema.undirected
        meaning = replace(meaning, schema=schema, classes=schema.classes, where=str(args.schema), undirected=undirected)
    elif args.graph and meaning.schema is None:
        meaning = meaning.as_imported(args.graph)
    meaning = replace(meaning, undirected=meaning.undirected or args.undirected)
    return replace(predictor, meaning=meaning)


def _graph(args: argparse.Namespace, predictor: Any) -> tuple[Any, Any, Any]:
    """The graph to predict, its nodes' ids where tables name them, and the places of those to predict; None: all."""
    from dataclasses import replace

    from fedgraph_flwr.data.importing import Columns
    from fedgraph_flwr.data.prediction_input import graph_file, new_nodes
    from fedgraph_flwr.data.tables import TableLayout

    if bool(args.nodes) != bool(args.edges):
        raise FedGraphError("say what to predict: both --nodes FILE and --edges FILE, or --graph FILE")
    meaning = predictor.meaning
    stored = graph_file(args.graph, meaning) if args.graph else None
    if not args.nodes and stored is not None:
        return stored, None, None
    if args.nodes:
        layout = layout_of(args).over(meaning.schema.tables if meaning.schema else TableLayout())
        treatment = replace(meaning.treatment(), **formats_of(args), say=lambda text: print(text, file=sys.stderr))
        where = str(args.graph) if args.graph else f"client {predictor.client}'s stored graph"
        stored = stored if args.graph else predictor.own
        found = new_nodes(args.nodes, args.edges, Columns.of(layout), meaning, stored, where, treatment)
        if found.note:
            print(found.note, file=sys.stderr)
        return found.graph, found.ids, found.rows
    if predictor.own is None:
        raise FedGraphError(
            "say what to predict: --nodes FILE and --edges FILE, --graph FILE, or --client I for its own nodes"
        )
    return predictor.own, None, None

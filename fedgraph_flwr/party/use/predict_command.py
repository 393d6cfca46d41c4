"""Command ``predict``: apply the model of a finished run to new tables and graphs, or to its training graph.

The output has the columns id, p_<class> for each class, and class; with task=edges, edge, source and target instead of id; with
task=nodes-regression or nodes-multilabel, id and one column per target (a number, or the probability of yes).
Tables are encoded by the schema of the run, or a client's own statistics. If edges name nodes of the client's stored graph, or of
--graph FILE, new nodes are predicted within that graph.

Examples:
  fedgraph-flwr predict runs/mine --nodes new_customers.csv --edges new_payments.csv --out predictions.csv
  fedgraph-flwr predict runs/mine --client 0                      # its nodes, by its personal model if it has one
  fedgraph-flwr predict state --nodes new.csv --edges new_edges.csv --out new.parquet       # needs no server
  fedgraph-flwr predict --book book --from 2026-03-01 --until 2026-03-07 --out week.csv            # days of a party's book
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.options import add_options, fill
from fedgraph_flwr.party.tables.options import add_tables, check_outputs

Input = tuple[Any, Any, Any, Any]
"""Predictor, graph to predict, ids of its nodes, and the tables that it was read from (None: a stored graph)."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``predict``."""
    add_model_arguments(parser)
    add_input_arguments(parser)
    add_options(parser, _OUTPUT)


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options of the items to predict, and of the form of their table."""
    given = parser.add_argument_group("input (default: the client's stored graph)")
    add_tables(given, _TABLES)
    add_options(given, _INPUT)
    add_options(given, BOOK, **{"from": {"dest": "since"}})


BOOK = """
--book DIR  the party's book: scores days of it, by the model that `book use` pinned, or by RUN
--from DAY  first day of the book, such as 2026-03-04 (default: --until)
--until DAY  last day of the book (default: its last one)
"""

_TABLES = """
--nodes FILE  node table: .csv, .tsv, .txt (or with .gz) or .parquet; of a heterogeneous graph TYPE=FILE for each type
--edges FILE  edge table; can be repeated: the files of several days are one table; of a heterogeneous graph A:RELATION:B=FILE for
    each type
"""

_INPUT = """
--graph FILE  graph file, or a PyG object saved by torch.save (.pt); with tables, the stored graph whose nodes --edges may name
--scaled  the features of --graph are scaled as in training, although the file does not say so
--target TYPE  heterogeneous graph: the node type to predict
"""

_OUTPUT = """
--pairs FILE  task=links: table of pairs to score, with columns source and target
--threshold P  minimum probability of the second of two classes (default: the best F1 on the client's validation nodes, or 0.5
    without a client)
--out FILE  .csv or .parquet file (default: print CSV)
--json  print JSON, one object per item, instead of CSV
"""

_MODEL = """
--party-file FILE  party.yaml of the party: its client, columns and format, and with --edges its node table
--client I  client whose model to use, 0..M-1 (default: the shared model)
--round best|last  round of the model (default: that of the headline score)
"""


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options that select the model: run, client and round."""
    about = "run folder, exported folder, or state folder of a party's node"
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help=about)
    add_options(parser, _MODEL)
    parser.set_defaults(node=None)


def opened(args: argparse.Namespace, outputs: Sequence[str] = ("out", "page"), party_graph: bool = False) -> Any:
    """Complete the options by the party's file, check the outputs, and load the predictor that the options select.

    Args:
        args: the options.
        outputs: names of options for output files.
        party_graph: whether the command reads the file of a party.

    Raises:
        FedGraphError: an output is the file of an input or has another suffix, or as `load_chosen`.
    """
    from fedgraph_flwr.party.use.frames import check_written

    take_state(args)
    if args.book is not None:
        take_book(args)
    fill(args)
    check_outputs(args, outputs, [name for name in ("nodes", "edges", "graph", "pairs") if hasattr(args, name)])
    check_written(args)
    predictor = load_chosen(args)
    if party_graph:
        predictor.party_graph()
    return predictor


def reads_new(args: argparse.Namespace) -> bool:
    """Return whether the options name other items than those of the party's stored file."""
    return any(getattr(args, name) for name in ("nodes", "edges", "node_table", "edge_table", "graph", "book"))


def take_state(args: argparse.Namespace) -> None:
    """Take RUN as a node's state folder if it is one."""
    from fedgraph_flwr.party.use.blend import is_blend
    from fedgraph_flwr.party.use.export import INDEX

    if args.run is not None and not ((args.run / INDEX).is_file() or is_blend(args.run)) and is_state(args.run):
        args.node, args.run = args.run, None


def take_book(args: argparse.Namespace) -> None:
    """Set the party's file, and the model that a book pins if none is given.

    Raises:
        FedGraphError: other tables are given, too, no model is pinned, it has changed, or a node's folder does not say which.
    """
    from fedgraph_flwr.party.book.folder import PARTY, BookFolder
    from fedgraph_flwr.party.use.worth import models_below

    for name in ("nodes", "edges", "node_table", "edge_table", "pairs"):
        if getattr(args, name, None):
            raise FedGraphError(f"--book {args.book} has the tables: leave --{name.replace('_', '-')} out")
    args.opened_book = book = BookFolder.load(args.book)
    args.party_file = args.party_file or args.book / PARTY
    pinned = args.book / book.model.run if book.model else None
    if args.node is not None:  # not the last run that the node happened to take part in
        if pinned is not None and not pinned.resolve().is_relative_to(args.node.resolve()):
            raise FedGraphError(f"{args.node} does not hold {pinned}, the model that {args.book} pins: leave it out")
        if pinned is None and len(runs := models_below(args.node)) > 1:
            raise FedGraphError(
                f"{args.node} holds the models of {len(runs)} runs, and {args.book} pins none of them: `fedgraph-flwr book use"
                f" {args.book} {runs[-1]}` pins the last one"
            )
        args.node, args.run = (None, pinned) if pinned else (args.node, args.run)
    if args.run is None and args.node is None:
        if book.model is None:
            raise FedGraphError(
                f"{args.book} pins no model: pass RUN, or `fedgraph-flwr book use {args.book} RUN` once"
            )
        args.run = args.book / book.model.run
        args.client = int(book.model.client) if book.model.client and args.client is None else args.client


def load_chosen(args: argparse.Namespace) -> Any:
    """Load the predictor selected by the options, and warn if a drill's copies trained it.

    Raises:
        FedGraphError: no run is given.
    """
    from fedgraph_flwr.data.schema import DRILL
    from fedgraph_flwr.party.tables.columns import log_warning

    predictor = _loaded(args)
    if args.party_file:
        check_party(predictor, args.party_file)
    book = getattr(args, "opened_book", None)
    if book is not None:
        check_untyped(predictor, book.folder)
    if book is not None and book.model is not None and args.run == args.book / book.model.run:
        from fedgraph_flwr.party.use.predict import digest_of

        if digest_of(predictor) != book.model.digest:
            raise FedGraphError(
                f"{args.run} is not the model that {args.book} pins: it was trained again. `fedgraph-flwr book use {args.book}"
                f" {args.run}` pins the new one"
            )
    if marked := [name for name in predictor.input_spec.classes if name.startswith(DRILL)]:
        log_warning(
            f"this model finds payments that a drill planted (class {marked[0]}), not real cases: do not use it"
        )
    return predictor


def check_party(predictor: Any, path: Path) -> None:
    """Refuse a model of another party than that of a party's file: a party that left may have had its number."""
    from fedgraph_flwr.party.party_file import read_party
    from fedgraph_flwr.party.tables.parties import fold

    name = read_party(path).party
    if predictor.cfg.strategy.pooled and predictor.cfg.num_clients > 1:
        raise FedGraphError(
            f"{predictor.source} has the files of all parties in one place (strategy={predictor.name}), and {path} is of"
            f" '{name}': pass a run of a model that parties train"
        )
    if predictor.party and name and predictor.party != fold([name])[0]:
        raise FedGraphError(
            f"{predictor.source} has '{predictor.who}' as client {predictor.client}, and {path} is of '{name}': pass --client I,"
            " its number in the run, or a run in which it took part"
        )


def check_untyped(predictor: Any, book: Path) -> None:
    """Refuse a model of typed tables for a book.

    Raises:
        FedGraphError: names both.
    """
    if isinstance(predictor.input_spec.num_features, list):
        raise FedGraphError(
            f"{predictor.source} reads tables of several types, and {book} has one of accounts and one of payments: leave it"
            " out, and pass --nodes TYPE=FILE and --edges A:RELATION:B=FILE"
        )


def _loaded(args: argparse.Namespace) -> Any:
    """Load the predictor selected by the options.

    Raises:
        FedGraphError: no run is given.
    """
    from fedgraph_flwr.party.tables.columns import log_warning
    from fedgraph_flwr.party.use.blend import is_blend, load_blend
    from fedgraph_flwr.party.use.export import INDEX, load_export
    from fedgraph_flwr.party.use.predict import load_node, load_predictor
    from fedgraph_flwr.party.use.worth import models_below

    if args.run is None and args.node is None:
        raise FedGraphError("no model selected: pass RUN, a run folder or a party's state folder")
    if args.run is not None and (args.run / INDEX).is_file():
        return load_export(args.run)
    if args.run is not None and is_blend(args.run):
        return load_blend(args.run, args.client)
    if args.node is None and not is_state(args.run):
        return load_predictor(args.run, args.client, args.round)
    args.node = args.node or args.run
    if len(runs := models_below(args.node)) > 1:
        log_warning(
            f"{args.node} holds the models of {len(runs)} runs, and the last one is used ({runs[-1]}): pass the folder of another"
            " one, or pin it by `fedgraph-flwr book use`"
        )
    predictor = load_node(args.node, args.round)
    if args.client not in (None, predictor.client):
        raise FedGraphError(
            f"--client {args.client}: {args.node} belongs to client {predictor.client}: leave --client out"
        )
    return predictor


def load_any(folder: Path, client: int, party_file: Path) -> tuple[Any, bool]:
    """Return the predictor of a run, state or exported folder, and whether the client chose its model.

    Args:
        folder: the folder.
        client: the party's number in a run folder.
        party_file: the party's file.
    """
    from fedgraph_flwr.party.use.export import INDEX

    of_party = (folder / INDEX).is_file() or is_state(folder)
    options = {"run": folder, "node": None, "client": None if of_party else client, "round": ""}
    args = argparse.Namespace(**options, party_file=party_file)
    take_state(args)
    return load_chosen(args), not of_party


def is_state(folder: Path) -> bool:
    """Return whether a folder is a node's state, or of a run within it."""
    from fedgraph_flwr.clients.saved_models import LAST
    from fedgraph_flwr.clients.state import StateFolder
    from fedgraph_flwr.store.results import SUMMARY

    return not (folder / SUMMARY).is_file() and StateFolder.find_model(folder, LAST) is not None


def main(args: argparse.Namespace) -> int:
    """Handle ``predict``."""
    from fedgraph_flwr.party.party_file import table_order
    from fedgraph_flwr.party.use.frames import as_csv
    from fedgraph_flwr.report.as_json import as_json

    if args.json and (args.out is not None or args.pairs is not None):
        raise FedGraphError("--json prints the predictions of items: leave --out and --pairs out")
    predictor = opened(args, ("out",))
    of = predictor.task.ITEMS
    if args.pairs is not None:
        predictions = _of_pairs(*chosen_input(args, predictor)[:3], args)
    else:
        _, predictions = predicted(args, predictor)
        if args.party_file and of == "nodes" and not reads_new(args):
            predictions = predictions.at(table_order(args.party_file, predictions.ids))
        _set_threshold(predictions, args.threshold)
    frame = predictions.to_frame()
    if args.out is None:
        print(as_json(frame.to_dict("records")) if args.json else as_csv(frame).rstrip("\n"))
        return 0
    predictions.write(args.out)
    if args.pairs is not None:
        print(f"wrote {len(frame)} scored pairs to {args.out}")
    else:
        _print_written(predictions, frame, of, predictor, args)
    return 0


def _print_written(predictions: Any, frame: Any, of: str, predictor: Any, args: argparse.Namespace) -> None:
    """Print what was predicted by which model, and where it is."""
    from fedgraph_flwr.party.use.frames import without_formulas

    whose = f"the model of {predictor.who}" if predictor.client is not None else "the shared model"
    print(f"{predictor.name}, {whose} of round {predictor.round}, on {len(frame)} {of}")
    if "class" in frame:
        counts = frame["class"].value_counts()
        print(f"classes: {', '.join(f'{name} {counts.get(name, 0)}' for name in predictions.classes)}")
        if predictions.threshold is not None:
            print(f"'{predictions.classes[1]}' if its probability is at least {predictions.threshold:.3g}")
    changed = 0 if args.out.suffix != ".csv" else without_formulas(frame)[1]
    if changed:
        print(f"cells like formulas: {changed}, written with a leading ' (a .parquet file has them unchanged)")
    print(f"wrote {args.out}")
    if of == "edges" and not (args.edges or args.book):
        print("'edge' is the place in the client's file: pass --edges TABLE for the ids and the order of a table")


def _set_threshold(predictions: Any, threshold: float | None) -> None:
    """Choose the class of two by the threshold that was given, if any."""
    classes = getattr(predictions, "classes", ())
    if threshold is not None:
        if not (0 <= threshold <= 1 and len(classes) == 2):
            got = f"{threshold:g} for {len(classes)} classes"
            raise FedGraphError(f"--threshold must be in [0, 1] and needs two classes, got {got}")
        predictions.threshold = threshold


def _spec_of(predictor: Any, whole: bool) -> Any:
    """Return what the model's input is; stored edges that it does not read are left out unless ``whole``."""
    from dataclasses import replace

    edges = getattr(predictor, "predicts_edges", False)
    return replace(predictor.input_spec, parallel=edges, bare=edges and not whole and not predictor.reads_edges)


def chosen_input(args: argparse.Namespace, predictor: Any, whole: bool = False) -> Input:
    """Return the predictor with the input specification of the options, the graph to predict, its node ids and its tables.

    The last two are None for a stored graph; tables are `prediction_input.NewNodes`.
    """
    predictor = _with_options(predictor, args)
    return predictor, *_graph(args, predictor, _spec_of(predictor, whole))


def check_days(args: argparse.Namespace) -> None:
    """Refuse days without a book.

    Raises:
        FedGraphError: names the option.
    """
    for name, option in (("since", "from"), ("until", "until")):
        if getattr(args, name):
            raise FedGraphError(f"--{option} is a day of a book: pass --book DIR, or leave it out")


def days_of(args: argparse.Namespace, predictor: Any, together: bool = False) -> Iterator[tuple[str, Input]]:
    """Yield each day of ``--book`` with its input, as `chosen_input` returns it; without a book, "" and the input.

    Args:
        args: the options.
        predictor: the model.
        together: whether the items of all days are read in the graph of the last one, with all of its edges.
    """
    if args.book is None:
        check_days(args)
        yield "", chosen_input(args, predictor, together)
        return
    from dataclasses import replace

    from fedgraph_flwr.party.book.rows import day_of, day_text
    from fedgraph_flwr.party.use.book_days import days_of_book
    from fedgraph_flwr.party.use.prediction_input import graph_file

    predictor = _with_options(predictor, args)
    spec = _spec_of(predictor, together)
    stored = graph_file(args.graph, spec) if args.graph else predictor.client_graph
    treatment = replace(spec.treatment(), **_formats(args))
    given = (args.since, "--from"), (args.until, "--until")
    since, until = (day_of(text, option) if text else None for text, option in given)
    reads_edges = predictor.reads_edges
    for day, read in days_of_book(args.opened_book, (since, until), spec, stored, treatment, together, reads_edges):
        yield day_text(day), (predictor, read.graph, read.ids, read)


def predicted(args: argparse.Namespace, predictor: Any) -> tuple[list[tuple[str, Input]], Any]:
    """Return the inputs by day, of the options' tables or book, and the predictions of their items."""
    from fedgraph_flwr.party.use.predict import in_order

    inputs, parts = [], []
    for day, given in days_of(args, predictor):
        inputs.append((day, given))
        parts.append(predicted_from(args, *given))
    days = [day for day, _ in inputs]
    return inputs, parts[0] if days == [""] else in_order(parts, days)


def treatment_of(args: argparse.Namespace, predictor: Any) -> Any:
    """Return how values of the options' tables are read."""
    from fedgraph_flwr.party.tables.columns import Treatment
    from fedgraph_flwr.party.tables.reading import silent

    spec = predictor.input_spec
    return Treatment(schema=spec.schema, where=spec.where, **_formats(args) | {"say": silent})


def _formats(args: argparse.Namespace) -> dict[str, Any]:
    """Return fields of the treatment of tables: where its lines go, and formats of the party's file."""
    from fedgraph_flwr.party.party_file import read_party

    said: set[str] = vars(args).setdefault("said", set())

    def say(text: str) -> None:
        if text not in said:  # days of a book have the same columns
            said.add(text)
            print(text, file=sys.stderr)

    return {"say": say, **(read_party(args.party_file).formats if args.party_file else {})}


def predicted_from(args: argparse.Namespace, predictor: Any, graph: Any, ids: Any, read: Any) -> Any:
    """Return predictions of the items of `chosen_input`."""
    if read is not None:
        _list_left_out(read, args)
    if read is not None and getattr(predictor, "predicts_edges", False):
        return predictor.predict_edges(read)
    predictions = predictor.predict(graph, ids)
    return predictions if read is None else predictions.at(read.rows)


def _list_left_out(read: Any, args: argparse.Namespace) -> None:
    """Report rows that cannot be read, and list them beside the output with their reasons."""
    if not read.left_out:
        return
    import pandas as pd

    from fedgraph_flwr.party.use.frames import write_frame

    number, name, *_, reason = read.left_out[0]
    total, verb = len(read.left_out) + len(read.edge_ids), "scored" if len(read.edges) else "read"
    where = ""
    if args.out is not None:
        path = args.out.with_name(f"{args.out.stem}.left-out.csv")
        columns = ["row", "edge", "source", "target", "reason"]
        write_frame(pd.DataFrame(read.left_out, columns=columns), path)
        where = f": see {path}"
    example = f"such as row {number} ({name}), which {reason}{where}"
    files = args.book or ", ".join(map(str, args.edges))
    print(f"{len(read.left_out)} of {total} rows of {files} are not {verb}, {example}", file=sys.stderr)


def _of_pairs(predictor: Any, graph: Any, ids: Any, args: argparse.Namespace) -> Any:
    """Return the scores of the pairs of a table."""
    from fedgraph_flwr.party.tables.reading import read_table

    layout = layout_of_party(args).over(predictor.input_spec.tables)
    ends = [layout.source or "source", layout.target or "target"]
    table = read_table(args.pairs, layout)
    if missing := [name for name in ends if name not in table.columns]:
        expected = f"{' and '.join(ends)}, as the schema or party.yaml (--party-file) names them"
        raise FedGraphError(f"{args.pairs} has no column '{missing[0]}': expected {expected}")
    return predictor.predict_pairs(graph, table[ends].astype(str).to_numpy().tolist(), ids)


def layout_of_party(args: argparse.Namespace) -> Any:
    """Return names of columns and format of tables by the party's file, if one is given."""
    from fedgraph_flwr.data.schema import TableLayout
    from fedgraph_flwr.party.party_file import read_party

    return read_party(args.party_file).layout if args.party_file else TableLayout()


def _with_options(predictor: Any, args: argparse.Namespace) -> Any:
    """Return the predictor with its input specification changed by --scaled, or the schema of --graph."""
    from dataclasses import replace

    if args.scaled and not args.graph:
        raise FedGraphError("--scaled describes the features of --graph FILE: pass a file, or leave --scaled out")
    spec = predictor.input_spec
    if args.graph and spec.schema is None:
        spec = spec.as_imported(args.graph)
    spec = replace(spec, scaled=args.scaled)
    return (
        predictor if spec == predictor.input_spec else replace(predictor, input_spec=spec)
    )  # which reads its file again


def _by_role(nodes: Mapping[str, Any], edges: Mapping[Any, Any], spec: Any) -> bool:
    """Return whether edges without nodes are the table of a role."""
    by_role = bool(edges and not nodes and spec.schema and spec.schema.roles)
    if bool(nodes) != bool(edges) and not by_role:
        raise FedGraphError("incomplete input: pass both --nodes FILE and --edges FILE, or --graph FILE")
    return by_role


def _graph(args: argparse.Namespace, predictor: Any, spec: Any) -> tuple[Any, Any, Any]:
    """Return the graph to predict, its node ids from tables, and the tables that it was read from (None: a stored graph)."""
    from dataclasses import replace

    from fedgraph_flwr.data.pyg import EDGE_TYPE
    from fedgraph_flwr.data.schema import NODE
    from fedgraph_flwr.party.tables.roles import Columns, typed_files
    from fedgraph_flwr.party.use.prediction_input import graph_file, new_nodes, typed_tables

    nodes, edges = typed_files(args)
    by_role = _by_role(nodes, edges, spec)
    layout = layout_of_party(args).over(spec.tables)
    options = _formats(args)
    own_nodes, own_edges = nodes.get(NODE), edges.get(EDGE_TYPE)
    single = own_nodes is not None and own_edges is not None and len(nodes) == len(edges) == 1
    if nodes and not single:
        if args.graph:
            raise FedGraphError("several types make a new graph: pass --nodes and --edges, or --graph")
        return typed_tables(nodes, edges, args.target, Columns.of(layout), spec, options), None, None
    stored = graph_file(args.graph, spec) if args.graph else None
    if not nodes and not by_role and stored is not None:
        return stored, None, None
    if own_edges and (own_nodes or by_role):
        treatment = replace(spec.treatment(), **options)
        where = str(args.graph) if args.graph else f"client {predictor.client}'s stored graph"
        stored = stored if args.graph else predictor.client_graph
        files = args.edges or [own_edges]
        additions = new_nodes(own_nodes, files, Columns.of(layout), spec, stored, where, treatment)
        if additions.note:
            print(additions.note, file=sys.stderr)
        return additions.graph, additions.ids, additions
    if not predictor.of_party:
        raise FedGraphError("no input: pass --nodes FILE and --edges FILE, --graph FILE, or --client I")
    return predictor.party_graph(), None, None

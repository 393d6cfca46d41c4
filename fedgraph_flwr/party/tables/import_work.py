"""Work of the command ``import``: read a graph, write its file, and print a summary of it."""

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedgraph_flwr.config import MAX_CLIENTS, SplitConfig, at_least, typed
from fedgraph_flwr.config.schema import Range
from fedgraph_flwr.data.features import BEFORE, DAY
from fedgraph_flwr.data.files import remove_leftovers, write_bytes
from fedgraph_flwr.data.graph import ClientGraph, Graph, marks
from fedgraph_flwr.data.hetero import HeteroClientGraph, HeteroGraph
from fedgraph_flwr.data.many_graphs import one_per_graph
from fedgraph_flwr.data.pyg import EDGE_TYPE, client_graph
from fedgraph_flwr.data.schema import (
    EDGE,
    NODE,
    Schema,
    TableLayout,
    agreed_schema,
    fitted_schema,
    split_names,
)
from fedgraph_flwr.data.split import check_given, half_given
from fedgraph_flwr.data.statistics import describe
from fedgraph_flwr.data.value_formats import NAMED, time_texts
from fedgraph_flwr.errors import FedGraphError, counted
from fedgraph_flwr.party.options import fill
from fedgraph_flwr.party.outcomes import read_outcomes
from fedgraph_flwr.party.party_file import COLUMNS, PartyFile, fill_in, given_keys, is_key
from fedgraph_flwr.party.secret import party_secret
from fedgraph_flwr.party.tables.columns import Treatment, conflict
from fedgraph_flwr.party.tables.guessing import suspected
from fedgraph_flwr.party.tables.importing import from_saved, from_tables, save_dataset
from fedgraph_flwr.party.tables.leaks import check_inputs
from fedgraph_flwr.party.tables.options import RATIO, check_outputs
from fedgraph_flwr.party.tables.reading import read_table, silent
from fedgraph_flwr.party.tables.repeats import FILE, joined
from fedgraph_flwr.party.tables.roles import Columns, listed, typed_files


def run(args: argparse.Namespace) -> int:
    """Import what the options of ``import`` name, and return 0."""
    take_words(args)
    if args.book is not None:
        _take_book(args)
    fill(args)
    check_outputs(args, ("out", "schema", "statistics"), ("nodes", "edges", "data", "graph_table", "outcomes"))
    known = args.schema is not None and args.schema.is_file()
    treatment = _treatment(args, Schema.load(args.schema) if known else None)
    files = _of_role(args, treatment)
    _check(args)
    graph = _read(args, files, treatment)
    where = str(args.party_file or args.nodes or args.data or "the tables")
    check_given(graph, where)
    if args.client is not None:
        graph = _client(graph, args)
    check_inputs(graph, args.keys.inputs, where)
    for name in _named_as_labels(graph, args.keys.inputs):
        print(
            f"warning: '{name}' has the name of a label and is an input. If its value is unknown when you predict, pass"
            f" kinds.{name}=ignored; else pass inputs={name}"
        )
    agreed = agreed_schema(graph.schema, "the import")
    if args.statistics and agreed:
        _write_sums(args, agreed, graph)
    added = bool(treatment.schema and args.role and agreed and agreed.roles != treatment.schema.roles)
    if args.schema and (added or not known) and agreed and not args.statistics:
        agreed.save(args.schema)
        print(f"wrote the schema {args.schema}: other parties must import with --schema {args.schema.name}")
        if added:
            print(f"it has the new role '{args.role}': parties that imported before must import again with it")
    if args.name or args.out:
        _save(graph, args)
    return 0


def take_words(args: argparse.Namespace) -> None:
    """Set the party's file, and the options that words name by its keys.

    Raises:
        FedGraphError: a word is neither a party's file nor one of its keys, or an option has another value.
    """
    keys = [word for word in args.words if is_key(word)]
    paths = [word for word in args.words if word not in keys]
    if len(paths) > 1 or any(Path(path).suffix not in (".yaml", ".yml") for path in paths):
        words = " ".join(paths)
        tables = "pass tables as --nodes FILE --edges FILE, or a saved PyG object as --data FILE"
        guess = f"`fedgraph-flwr init-party {words}` writes one by guessing" if len(paths) > 1 else tables
        raise FedGraphError(f"{words}: expected one party's file, such as bank.yaml; {guess}")
    args.party_file = Path(paths[0]) if paths else None
    given = given_keys(keys)
    for key in {"share", "agreement"} & given.keys():
        raise FedGraphError(
            f"{key} is no word of `import`: write it into the party's file, which `link` and `node` read"
        )
    args.keys = typed(PartyFile, given, "KEY=VALUE")
    options = args.keys.options(Path())
    options = {dest: value for dest, value in options.items() if dest != "client" or dest in given}
    options |= {"own_party": given["party"]} if "party" in given else {}
    for dest, value in options.items():
        held = getattr(args, dest)
        if held is not False and held not in (None, "", [], value, [value]):
            option = f"--{dest.replace('_', '-')} {listed(held) if isinstance(held, list) else held}"
            raise FedGraphError(f"{option} is given, but a key of a party's file says '{value}': leave one of both out")
    fill_in(args, options)


def _take_book(args: argparse.Namespace) -> None:
    """Set the party's file and the tables of a book.

    Raises:
        FedGraphError: tables are given, too.
    """
    from fedgraph_flwr.party.book.folder import PARTY, BookFolder
    from fedgraph_flwr.party.book.rows import as_files

    for name in ("party_file", "nodes", "edges", "data", "node_table", "edge_table"):
        if getattr(args, name):
            raise FedGraphError(f"--book {args.book} has the party's file and tables: leave {getattr(args, name)} out")
    args.nodes, edges = as_files(BookFolder.load(args.book))
    args.edges = [edges]
    args.party_file = args.book / PARTY


def _named_as_labels(graph: Graph | HeteroGraph, accepted: Sequence[str]) -> list[str]:
    """Return the inputs with a name that labels often have, such as is_mule, but for accepted ones."""
    schema = agreed_schema(graph.schema, "the import")
    columns = [column for table in (schema.nodes.values() if schema else ()) for column in table.items()]
    return [name for name, column in columns if column.kind != "ignored" and name not in accepted and suspected(name)]


def _check(args: argparse.Namespace) -> None:
    """Check options that contradict each other.

    Raises:
        FedGraphError: an option is missing, or has no effect.
    """
    args.split = args.split or "ratio"
    if args.keys.edge_classes and not args.keys.columns.get("edge_label") and not args.schema:
        raise FedGraphError("edge_classes has no effect without labels of edges: pass columns.edge_label=NAME")
    if args.until and args.split != "temporal":
        raise FedGraphError(f"--until {args.until} has no effect with --split {args.split}: pass --split temporal")
    if args.client is None and (args.split, args.ratio) != ("ratio", RATIO):
        split = f"--split {args.split} --ratio {args.ratio}"
        raise FedGraphError(f"{split} has no effect without --client I: runs split a dataset (keys split.*)")
    if (args.name and args.out) or not (args.name or args.out or args.statistics):
        raise FedGraphError("no output selected: pass either --name NAME or --out FILE (or only --statistics FILE)")
    for option, number, low in (("--client", args.client, 0), ("--num-clients", args.num_clients, 1)):
        if number is not None:
            Range(low, low + MAX_CLIENTS - 1).check(number, option)
    if args.client is not None and not (args.out and (args.classes or args.keys.edge_classes or args.schema)):
        classes = "--classes A,B,C, edge_classes=A,B,C or --schema FILE"
        raise FedGraphError(f"--client requires --out FILE, and {classes}, so that all clients use one class order")


def _names(words: Sequence[str], option: str) -> list[str]:
    """Return the names of an option or key.

    Raises:
        FedGraphError: a name is repeated.
    """
    names = [word.strip() for word in words if word.strip()]
    if twice := [name for name in names if names.count(name) > 1]:
        raise FedGraphError(f"{option} names '{twice[0]}' twice: leave one out")
    return names


def _save(graph: Graph | HeteroGraph, args: argparse.Namespace) -> None:
    """Write the dataset or the client file, and print a summary."""
    if args.name:
        path = save_dataset(graph, args.name, args.overwrite)
        use = f"dataset={args.name}"
    elif args.client is not None:
        path, use = args.out, "pass it to a SuperNode, or graph=FOLDER with client_0000.safetensors ..."
    else:
        path, use = args.out, f"dataset=file dataset.path={args.out}"
    if args.out:
        if (args.own_party or args.role) and isinstance(graph, ClientGraph):
            graph.linking["secret"] = party_secret(path.absolute().parent, graph.client, args.secret_seed)
        graph.save(path)
    remove_leftovers(path)  # of a killed import
    for line in summary(graph, args.client is not None):
        print(line)
    print(f"wrote {path}; use: {use}")


def summary(graph: Graph | HeteroGraph, as_client: bool) -> Iterator[str]:
    """Return lines on sizes, edges, labels and split of an imported graph, which may be a client's."""
    facts = describe(graph)
    nouns = {"nodes": "node", "edges": "edge", "features": "feature", "classes": "class"}
    sizes_text = ", ".join(
        [*(counted(facts[key], noun) for key, noun in nouns.items()), f"{facts['labelled']} labelled"]
    )
    homophily = facts["edge_homophily"]
    yield f"{sizes_text}, edge homophily {'-' if homophily is None else format(homophily, '.3f')}"
    if isinstance(graph, Graph) and graph.group.numel():
        sizes = torch.bincount(graph.group)
        clients, least, most = len(sizes), int(sizes.min()), int(sizes.max())
        yield f"{clients} clients of {least} to {most} nodes: runs take num_clients={clients}"
    yield from _of_edges(graph)
    if isinstance(graph, Graph) and graph.graph_id.numel():
        graph = one_per_graph(graph)
        yield f"{graph.num_nodes} graphs; labels and split count graphs"
    names = graph.schema["agreed"]["classes"]
    labels = _counts(graph.y, names)
    if names:
        yield f"labels: {_counted(names, labels)}"
    yield from _frequent(names, labels, "--classes ")
    yield from _stages(graph, names, as_client)
    if isinstance(graph, ClientGraph) and graph.foreign.numel():
        yield f"{graph.foreign.size(1)} records name other parties: match them with `fedgraph-flwr link` before a run"


def _stages(graph: Graph | HeteroGraph, names: Sequence[str], as_client: bool) -> Iterator[str]:
    """Return lines on the split and on sets of one class: of labelled edges if there are any, else of nodes."""
    y, what = graph.y, "labels"
    masks = {"train": graph.train_mask, "validation": graph.val_mask, "test": graph.test_mask}
    if of_edges := isinstance(graph, Graph) and bool(graph.edge_y.numel()):
        names, y, what = graph.schema["agreed"].get("edge_classes", []), graph.edge_y, "labels of edges"
        stages = enumerate(masks) if graph.edge_split.numel() else ()
        masks = {name: (graph.edge_split == stage) & (y >= 0) for stage, name in stages}
    sizes = ", ".join(f"{name} {int(mask.sum())}" for name, mask in masks.items())
    if any(bool(mask.any()) for mask in masks.values()):
        missing = [] if of_edges else half_given(graph)
        rest = f", and the other labelled nodes for {_STAGES[missing[0]]}," if missing else ""
        runs = "" if as_client else f"; runs use it{rest} unless split.kind=ratio is set"
        yield f"split{' of labelled edges' if of_edges else ''}: {sizes}{runs}"
    yield from one_class(y, masks, names, what)


_STAGES = {"train_mask": "training", "test_mask": "test"}


def _of_edges(graph: Graph | HeteroGraph) -> Iterator[str]:
    """Return lines on the data that edges carry."""
    if isinstance(graph, HeteroGraph):
        widths = ", ".join(f"'{':'.join(edge)}' {rows.size(1)}" for edge, rows in graph.edge_attr.items())
        if widths:
            yield f"features of edges: {widths}; their parallel edges stay separate"
        return
    if graph.has_edge_data:
        held = {"times": graph.edge_time, "labels": graph.edge_y}
        others = "".join(f", {what}" for what, values in held.items() if values.numel())
        yield f"edges carry {graph.num_edge_features} features{others}; parallel edges stay separate"
    time = torch.cat([graph.edge_time, getattr(graph, "foreign_edge_time", graph.edge_time[:0])])
    if time.numel():
        first, last = time_texts(torch.stack(time.aminmax()).numpy(), dated=True)
        yield f"times from {first} to {last}"
    if graph.edge_y.numel():
        names = graph.schema["agreed"].get("edge_classes", [])
        counts = _counts(graph.edge_y, names)
        yield f"labels of edges: {_counted(names, counts)}"
        yield from _frequent(names, counts, "edge_classes=")


def _frequent(names: Sequence[str], counts: Sequence[int], option: str) -> Iterator[str]:
    """Yield a line if the second of two classes is the more frequent one."""
    if len(names) == 2 and counts[1] > counts[0]:
        yield (
            f"warning: auc and average precision are computed for the second class, '{names[1]}', which is the more frequent one:"
            f" pass {option}{names[1]},{names[0]} to use '{names[0]}'"
        )


def _counts(y: torch.Tensor, names: Sequence[str]) -> list[int]:
    """Return the number of each class among labels, -1 where unknown."""
    return list(torch.bincount(y[y >= 0], minlength=len(names)).tolist())


def _counted(names: Sequence[str], counts: Sequence[int]) -> str:
    """Return the first class names with their counts."""
    return ", ".join(f"{name} {count}" for name, count in list(zip(names, counts, strict=True))[:20])


def one_class(y: Any, masks: Mapping[str, Any], names: Sequence[str], what: str = "labels") -> list[str]:
    """Return warnings about sets of nodes or edges with a single class, for which AUC and average precision are undefined.

    Shapes: labels y [N], -1 where unknown; masks by name [N].
    """
    sets = {what: y >= 0, **{f"{name} {what}": mask & (y >= 0) for name, mask in masks.items()}}
    labels = {name: y[mask].unique() for name, mask in sets.items()}
    single = {name: names[int(classes[0])] for name, classes in labels.items() if len(classes) == 1}
    single = {what: single[what]} if what in single else single
    why = ": auc and average precision are undefined, so means over parties exclude this one"
    scored = (what, f"test {what}")
    return [f"warning: all {k} are of class '{name}'{why if k in scored else ''}" for k, name in single.items()]


def _treatment(args: argparse.Namespace, schema: Schema | None) -> Treatment:
    units: dict[str, str] = {}
    for word in args.unit:
        name, _, units[name] = word.rpartition("=")
        if not name:
            raise FedGraphError(f"--unit {word}: expected COLUMN=UNIT")
    at_least(args.min_count, 1, "--min-count")
    return Treatment(
        kinds=_by_type(args.keys.kinds, args.keys.edge_kinds),
        scales=_by_type(args.keys.scales, args.keys.edge_scales),
        units=_by_type(units, {}),
        scaling=args.scaling,
        schema=schema,
        where=str(args.schema or ""),
        role=args.role,
        floor=args.min_count,
        **_formats(args),
        say=print,
    )


def _formats(args: argparse.Namespace) -> dict[str, Any]:
    """Return the value formats given by the options and keys, as fields of a `Treatment`.

    Raises:
        FedGraphError: a separator is not accepted.
    """
    formats: dict[str, dict[str, Any]] = {"decimals": {}, "thousands": {}}
    signs = {".": ".", ",": ","}
    for option, field, accepted in (("decimal", "decimals", signs), ("thousands", "thousands", signs | NAMED)):
        for word in getattr(args, option):
            name, _, sign = word.rpartition("=")
            if sign not in {*accepted, *accepted.values()}:
                names = " ".join(accepted)
                raise FedGraphError(f"--{option} {word}: expected SIGN or COLUMN=SIGN, where SIGN is one of: {names}")
            formats[field][name] = accepted.get(sign, sign)
    return formats | args.keys.formats


def _by_type(given: Mapping[str, str], of_edges: Mapping[str, str]) -> dict[str, str]:
    """Return values by column; those of edges by edge type and column."""
    every = {**given, **{f"edges.{name}": value for name, value in of_edges.items()}}
    return {re.sub(r"^edges\.", f"{EDGE}.", name): value for name, value in every.items()}


def _write_sums(args: argparse.Namespace, agreed: Schema, graph: Graph | HeteroGraph) -> None:
    """Write this party's sums over its tables, read by its own layout and formats."""
    import pandas as pd

    from fedgraph_flwr.party.tables.party_roles import NAMED
    from fedgraph_flwr.party.tables.statistics import party_sums

    if args.data:
        raise FedGraphError("--statistics requires tables: columns of --data have no names")
    party_schema = fitted_schema(graph.schema, "the import") or agreed
    nodes, edges = typed_files(args)
    files = nodes | {":".join(edge): path for edge, path in edges.items()}
    tables = {
        kind: (_reader(args)(path, party_schema.tables), str(path))
        for kind, path in files.items()
        if path is not None and kind in agreed.nodes
    }
    formats = {
        kind: {name: replace(column, format=party_schema.nodes[kind][name].format) for name, column in columns.items()}
        for kind, columns in agreed.nodes.items()
    }
    if NAMED in agreed.roles.get(args.role, {}).get(NODE, ()):
        tables[NODE] = pd.DataFrame({NAMED: ["yes"] * graph.num_nodes}), str(args.nodes or edges[EDGE_TYPE])
    targets = {}
    if isinstance(graph, Graph):
        graph = one_per_graph(graph) if graph.graph_id.numel() else graph
        names = Columns.of(party_schema.tables).targets
        targets = {name: graph.targets[:, t].double().numpy() for t, name in enumerate(names)}
    sums = party_sums(replace(agreed, nodes=formats), tables, args.min_count, targets, args.role)
    write_bytes(args.statistics, json.dumps(sums, indent=1).encode())
    remove_leftovers(args.statistics)
    print(
        f"wrote {args.statistics}: sums over {sum(len(table) for table, _ in tables.values())} rows, for `schema merge`;"
        " share one report only: two, of tables that differ by one row, give that row"
    )


def _client(graph: Graph | HeteroGraph, args: argparse.Namespace) -> ClientGraph | HeteroClientGraph:
    kind, column = args.split, graph.schema["fitted"].get("tables", {}).get("split", "")
    if kind == "temporal" and column and bool(marks(graph).any()):
        if isinstance(graph, Graph) and graph.edge_y.numel():
            print(f"nodes are split by column '{column}' (task=nodes), labelled edges by time (task=edges)")
        else:
            print(f"split by column '{column}': --split temporal applies only without one")
            kind = "ratio"
    split = replace(_ratio(args.ratio), kind=kind, until=_until(args.until))
    count = args.client + 1 if args.num_clients is None else args.num_clients
    return client_graph(graph, args.client, count, split, args.seed)


def _of_role(args: argparse.Namespace, treatment: Treatment) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the files of nodes and of edges by type; None for a table that a role lacks.

    Raises:
        FedGraphError: the options name too few files or too many, or no role where the schema has roles.
    """
    nodes, edges = typed_files(args)
    if treatment.schema and treatment.schema.roles and not args.role:
        roles = ", ".join(treatment.schema.roles)
        raise FedGraphError(f"{args.schema} has roles ({roles}): pass --role with one of them, or a new name")
    if args.role and (nodes or edges) and not args.data and not args.node_table and not args.edge_table:
        nodes, edges = {NODE: None, **nodes}, {EDGE_TYPE: None, **edges}
    elif args.role:
        raise FedGraphError(f"--role {args.role} needs --nodes FILE, --edges FILE or both")
    if args.data and (nodes or edges):
        raise FedGraphError(f"--data {args.data} is a whole graph: leave out the options for tables")
    if not args.data and not (nodes and edges):
        lacks = "edge table" if nodes else "node table" if edges else "input"
        both = "both --nodes FILE and --edges FILE (or one of them with --role NAME)"
        ends = "; --role network takes nodes from the ends of --edges" if edges else ""
        raise FedGraphError(
            f"no {lacks}: pass {both}, with TYPE=FILE per type if there are several, or --data FILE{ends}"
        )
    return nodes, edges


def _read(args: argparse.Namespace, files: tuple[dict[Any, Any], dict[Any, Any]], treatment: Treatment) -> Any:
    """Read the graph of tables, or of a saved object.

    Raises:
        FedGraphError: a file is missing or has no effect, or the tables are invalid.
    """
    if args.own_party and args.nodes and args.client is None and (args.name or args.out):
        raise FedGraphError(f"--own-party {args.own_party} makes the file of one party: pass --client I")
    layout = _layout(args, treatment)
    names = {key: _names(getattr(args.keys, key), key) for key in ("feature_columns", "edge_columns", "edge_classes")}
    columns = Columns.of(layout, names["feature_columns"], names["edge_columns"])
    classes = _names(split_names(args.classes), "--classes")
    options: Any = {"classes": classes, "undirected": args.undirected, "treatment": treatment}
    if args.data:
        given = _given_layout(args).to_dict() | {"own-party": args.own_party, "graph-table": args.graph_table}
        given["outcomes"] = args.outcomes
        if named := [key for key, value in given.items() if value and key != "client"]:
            raise FedGraphError(f"--data has no tables: leave out the option for {named[0].replace('_', ' ')}")
        if args.client_column and (args.target or args.client is not None):
            other = f"--target {args.target}" if args.target else f"--client {args.client}"
            only = "--client-column names the clients of one graph with one type of nodes"
            raise FedGraphError(f"{only}: leave out {other}")
        if args.target:
            Columns().of_one_type("", None, args.undirected)
        return from_saved(args.data, args.target, client=args.client_column, **options)
    return from_tables(
        *files,
        columns,
        target=args.target,
        own_party=args.own_party,
        edge_classes=names["edge_classes"],
        graphs=args.graph_table,
        outcomes=read_outcomes(args.outcomes) if args.outcomes else None,
        reader=_reader(args),
        **options,
    )


def _reader(args: argparse.Namespace) -> Callable[..., Any]:
    """Return what reads a table; several files of ``--edges``, which `typed_files` lists as one, become one table."""

    def read(path: Path, layout: TableLayout, say: Callable[[str], None] = silent) -> Any:
        if len(args.edges) < 2 or str(path) != listed(args.edges):
            return read_table(path, layout, say)
        table, table.attrs[FILE] = joined(args.edges, layout)
        return table

    return read


def _given_layout(args: argparse.Namespace) -> TableLayout:
    """Return the layout given by the options and keys."""
    given = TableLayout(client=args.client_column, predict=args.predict_columns, match_columns=args.match_columns)
    layout: TableLayout = given.over(args.keys.layout)
    return layout


def _layout(args: argparse.Namespace, treatment: Treatment) -> TableLayout:
    """Return the layout of the options, completed by the schema's; print differences."""
    given = _given_layout(args)
    if treatment.schema is None:
        return given
    stored, differing = treatment.schema.tables.to_dict(), []
    for key, value in given.to_dict().items():
        if key == "day" and value == BEFORE and not stored.get(key):
            continue
        if (
            key in ("recipe", "windows", "day")
            and stored.get(key, "") != value
            and (stored.get("recipe") or key == "recipe")
        ):
            option = "features" if key == "recipe" else key
            raise conflict(f"{option}={value}", stored.get(key, "none"), treatment.where)
        if key in stored and stored[key] != value:
            option = f"columns.{key}" if key in COLUMNS else "--client-column" if key == "client" else key
            differing.append(f"{option}={value!r} overrides {stored[key]!r}")
    if differing:
        print(f"{', '.join(differing)} of {treatment.where}")
    return given.over(treatment.schema.tables)


def _until(text: str) -> list[int]:
    """Return times in seconds from seconds, dates or times of day, separated by a comma; a date is its last second.

    Raises:
        FedGraphError: a word is neither.
    """
    import pandas as pd

    def seconds(word: str) -> int:
        if word.lstrip("-").isdecimal():
            return int(word)
        start = int(pd.Timestamp(word, tz="UTC").timestamp())
        return start if ":" in word else start + DAY - 1

    try:
        return [seconds(word) for word in split_names(text)]
    except ValueError as error:
        raise FedGraphError(f"--until must be two times in seconds or dates, got '{text}'") from error


def _ratio(text: str) -> SplitConfig:
    try:
        train, val, test = (float(word) for word in text.split(","))
    except ValueError as error:
        raise FedGraphError(f"--ratio must be three numbers such as 0.6,0.2,0.2, got '{text}'") from error
    return SplitConfig(train=train, val=val, test=test)

"""A user's own graph: node and edge tables, or a saved PyG object, into a dataset or one client's file.

    from_tables(nodes, edges, columns)     CSV or Parquet  ┐
    from_saved(path)                       PyG's Data      ┴→ Graph → save_dataset | client_graph(...).save

Typed nodes and edges: `importing_typed`.

The pieces of `from_tables` (`read_table`, `Ids`, `feature_matrix`, `label_codes`, `split_masks`, `edge_ends`) each treat one
table, so that typed graphs can be put together from several. Rows are counted from 1, after the header.
"""

import argparse
import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.config import SplitConfig, group_names
from fedgraph_flwr.data.cleaning import check, to_undirected
from fedgraph_flwr.data.graph import ClientGraph, Graph
from fedgraph_flwr.data.hetero import HeteroClientGraph, HeteroGraph
from fedgraph_flwr.data.root import imported_path
from fedgraph_flwr.data.split import split_graph
from fedgraph_flwr.data.statistics import describe
from fedgraph_flwr.errors import FedGraphError, unknown

SPLITS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}


@dataclass(frozen=True)
class Columns:
    """Which columns of the two tables mean what; "" for one that is not there.

    Attributes:
        features: names or patterns such as ``x_*``; empty: every other column of the node table.
    """

    id: str = "id"
    label: str = "label"
    features: Sequence[str] = ()
    split: str = ""
    client: str = ""
    source: str = "source"
    target: str = "target"


def from_tables(
    nodes: Path | str,
    edges: Path | str,
    columns: Columns = Columns(),
    *,
    classes: Sequence[str] = (),
    undirected: bool = False,
) -> Graph:
    """A graph from a node table and an edge table.

    Args:
        nodes: CSV or Parquet with one row a node.
        edges: CSV or Parquet with one row an edge.
        columns: which columns mean what. Ids and labels are of any type; an empty label is unknown (y = -1). The split
            column says train, val, test or nothing; the client column becomes `Graph.group`.
        classes: the labels in the order of their numbers; empty: those that occur, sorted.
        undirected: whether each row stands for both directions.

    Raises:
        FedGraphError: a file or column that lacks, ids twice or missing, edges to unknown ids, features that are no
            finite numbers, labels outside ``classes``; the sentence names the first row.
    """
    table, links = read_table(nodes), read_table(edges)
    where = str(nodes)
    ids = Ids(table, columns.id, where)
    own = [name for name in (columns.id, columns.label, columns.split, columns.client) if name]
    y, names = label_codes(table, columns.label, where, classes)
    masks = split_masks(table, columns.split, where)
    edge_index = edge_ends(links, columns, str(edges), ids, ids)
    edge_index = to_undirected(edge_index, len(table)) if undirected else edge_index.unique(dim=1)
    graph = Graph(
        x=feature_matrix(table, columns.features, own, where),
        edge_index=edge_index,
        y=y,
        train_mask=masks[0] & (y >= 0),
        val_mask=masks[1] & (y >= 0),
        test_mask=masks[2] & (y >= 0),
        num_classes=len(names),
        group=group_codes(table, columns.client, where),
    )
    return check(graph, where)


def read_table(path: Path | str) -> Any:
    """A pandas table of a ``.csv``, ``.csv.gz`` or ``.parquet`` file; empty cells of a CSV are missing, nothing else is."""
    import pandas as pd

    path = Path(path)
    if not path.is_file():
        raise FedGraphError(f"no such table: {path}")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.name.endswith((".csv", ".csv.gz")):
            return pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""], skipinitialspace=True)
    except Exception as error:  # pandas and pyarrow raise many kinds
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FedGraphError(f"{path} cannot be read as a table ({reason})") from error
    raise FedGraphError(f"{path} has no known ending; tables are .csv, .csv.gz or .parquet")


def _column(table: Any, name: str, where: str, what: str) -> Any:
    if name not in table.columns:
        raise unknown(f"{what} column", name, map(str, table.columns), where)
    return table[name]


def _words(column: Any) -> np.ndarray:
    """A column's values as text, "" where missing; whole floats (integers with gaps) lose their ``.0``."""
    missing = column.isna().to_numpy()
    if column.dtype.kind == "f" and bool((column.dropna() % 1 == 0).all()):
        column = column.fillna(0).astype("int64")
    words = column.astype(str).to_numpy(dtype=object)
    words[missing] = ""
    return words.astype(str)


class Ids:
    """The nodes of one table: id of any type → position 0..N-1."""

    def __init__(self, table: Any, column: str, where: str):
        """Read them.

        Raises:
            FedGraphError: an id that is missing or stands twice.
        """
        import pandas as pd

        words = _words(_column(table, column, where, "id"))
        if (words == "").any():
            raise FedGraphError(f"{where}: row {int((words == '').argmax()) + 1} has no id in column '{column}'")
        self.index = pd.Index(words)
        if not self.index.is_unique:
            second = int(self.index.duplicated().argmax())
            first = int((words == words[second]).argmax())
            raise FedGraphError(f"{where}: id '{words[second]}' stands twice, in rows {first + 1} and {second + 1}")
        self.where = where

    def positions(self, table: Any, column: str, where: str) -> np.ndarray:
        """The positions [E] of the nodes that a column of another table names.

        Raises:
            FedGraphError: an id that the nodes do not have.
        """
        words = _words(_column(table, column, where, "end of edges"))
        found = self.index.get_indexer(words)
        if (found < 0).any():
            row = int((found < 0).argmax())
            raise FedGraphError(
                f"{where}: row {row + 1} names '{words[row]}' in column '{column}', no id of {self.where}"
            )
        return found.astype(np.int64)


def edge_ends(table: Any, columns: Columns, where: str, sources: Ids, targets: Ids) -> Tensor:
    """The edges of one table, int64 [2, E], between the nodes of two tables (or of one, given twice)."""
    ends = (sources.positions(table, columns.source, where), targets.positions(table, columns.target, where))
    return torch.from_numpy(np.stack(ends))


def feature_matrix(table: Any, wanted: Sequence[str], others: Sequence[str], where: str) -> Tensor:
    """The features of one table, float32 [N, F].

    Args:
        table: one row a node.
        wanted: names or patterns, in order; empty: every column not in ``others``.
        others: columns with another meaning.
        where: the file, for errors.

    Raises:
        FedGraphError: no column fits, or a value is not a finite number.
    """
    import pandas as pd

    free = [name for name in table.columns if name not in others]
    names: list[Any] = [] if wanted else free
    for pattern in wanted:
        fitting = [pattern] if pattern in table.columns else fnmatch.filter(map(str, free), pattern)
        if not fitting:
            raise unknown("feature column", pattern, map(str, free), where)
        names += [name for name in fitting if name not in names]
    if not names:
        raise FedGraphError(f"{where} has no feature column beside {', '.join(others)}")
    x = np.empty((len(table), len(names)), dtype=np.float32)
    for position, name in enumerate(names):
        values = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        wrong = ~(np.abs(values) <= np.finfo(np.float32).max)
        if wrong.any():
            row = int(wrong.argmax())
            raise FedGraphError(
                f"{where}: features must be finite numbers, column '{name}' has '{table[name].iloc[row]}' in row {row + 1}"
            )
        x[:, position] = values
    return torch.from_numpy(x)


def label_codes(table: Any, column: str, where: str, classes: Sequence[str] = ()) -> tuple[Tensor, list[str]]:
    """Labels as numbers, int64 [N] with -1 where empty, and the C classes in the order of their numbers.

    Raises:
        FedGraphError: a label that ``classes`` does not list.
    """
    words = _words(_column(table, column, where, "label"))
    names = list(classes) or sorted(set(words) - {""}, key=_natural)
    code = {"": -1} | {name: number for number, name in enumerate(names)}
    unlisted = sorted(set(words) - set(code))
    if unlisted:
        row = int(np.isin(words, unlisted).argmax())
        raise FedGraphError(f"{where}: row {row + 1} has label '{words[row]}', the classes are {', '.join(names)}")
    distinct, inverse = np.unique(words, return_inverse=True)
    return torch.from_numpy(np.array([code[str(word)] for word in distinct], dtype=np.int64)[inverse]), names


def _natural(word: str) -> tuple[int, float, str]:
    """Numbers by size, before words by alphabet."""
    return (0, float(word), word) if re.fullmatch(r"-?\d+(\.\d+)?", word) else (1, 0.0, word)


def split_masks(table: Any, column: str, where: str) -> tuple[Tensor, Tensor, Tensor]:
    """Masks of training, validation and test nodes, each bool [N]; all False without a split column.

    Raises:
        FedGraphError: a value other than train, val and test (or nothing).
    """
    part = np.full(len(table), -1)
    if column:
        words = np.char.lower(_words(_column(table, column, where, "split")))
        wrong = ~np.isin(words, ["", *SPLITS])
        if wrong.any():
            row = int(wrong.argmax())
            raise FedGraphError(
                f"{where}: row {row + 1} has '{words[row]}' in column '{column}'; train, val, test or empty"
            )
        for word, number in SPLITS.items():
            part[words == word] = number
    train, val, test = (torch.from_numpy(part == number) for number in range(3))
    return train, val, test


def group_codes(table: Any, column: str, where: str) -> Tensor:
    """The client each node is listed under, 0..M-1 in the sorted order of the column's values, int64 [N] or empty."""
    if not column:
        return torch.zeros(0, dtype=torch.int64)
    words = _words(_column(table, column, where, "client"))
    if (words == "").any():
        raise FedGraphError(f"{where}: row {int((words == '').argmax()) + 1} has no client in column '{column}'")
    distinct, inverse = np.unique(words, return_inverse=True)
    rank = {name: number for number, name in enumerate(sorted(map(str, distinct), key=_natural))}
    return torch.from_numpy(np.array([rank[str(name)] for name in distinct], dtype=np.int64)[inverse])


def read_saved(path: Path | str) -> Any:
    """The PyG ``Data`` or ``HeteroData`` that ``torch.save`` wrote; only PyG's containers and tensors are unpickled.

    Raises:
        FedGraphError: the file is missing or damaged, or holds anything else.
    """
    import torch_geometric.data.data as containers
    from torch.serialization import safe_globals
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

    if not Path(path).is_file():
        raise FedGraphError(f"no such file: {path}; expected one that torch.save(data, ...) wrote")
    allowed = [Data, HeteroData, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]
    allowed += [containers.DataEdgeAttr, containers.DataTensorAttr]
    try:
        with safe_globals(allowed):
            saved = torch.load(path, weights_only=True, map_location="cpu")
        if isinstance(saved, Data | HeteroData):
            saved.to_dict()  # a damaged one fails when it is looked at
    except Exception as error:  # a damaged pickle can fail in any way
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        reason = f"it names {named.group(1)}" if named else type(error).__name__
        raise FedGraphError(
            f"{path} holds no plain PyG Data or HeteroData ({reason}): save the object itself with torch.save(data, path)"
        ) from error
    if not isinstance(saved, Data | HeteroData):
        raise FedGraphError(f"{path} holds a {type(saved).__name__}, expected a PyG Data or HeteroData")
    return saved


def from_saved(path: Path | str, *, classes: Sequence[str] = (), undirected: bool = False) -> Graph:
    """A graph from a saved PyG ``Data`` with ``x``, ``edge_index`` and integer labels ``y``; its masks are kept.

    Raises:
        FedGraphError: what `read_saved` raises, a tensor that lacks, or an impossible graph.
    """
    data = read_saved(path)
    if hasattr(data, "node_types"):
        raise FedGraphError(f"{path} holds typed nodes and edges ({', '.join(data.node_types)}); say --target TYPE")
    for key in ("x", "edge_index", "y"):
        if not isinstance(getattr(data, key, None), Tensor):
            raise FedGraphError(f"{path}: the Data has no tensor '{key}'; x, edge_index and y are needed")
    if data.y.is_floating_point() or data.y.numel() != data.num_nodes:
        raise FedGraphError(f"{path}: y must be one integer a node, got {data.y.dtype} {list(data.y.shape)}")
    x = data.x.to_dense() if data.x.is_sparse else data.x
    data.x = x.view(-1, 1) if x.dim() == 1 else x
    graph = Graph.from_pyg(data, num_classes=len(classes) or int(data.y.max()) + 1)
    for key in ("train_mask", "val_mask", "test_mask"):
        setattr(graph, key, getattr(graph, key) & (graph.y >= 0))
    check(graph, str(path))
    return replace(graph, edge_index=to_undirected(graph.edge_index, graph.num_nodes)) if undirected else graph


def client_graph(
    graph: Graph, client: int, num_clients: int, split: SplitConfig | None = None, seed: int = 0
) -> ClientGraph:
    """A graph as one client's private graph, without edges to others.

    Args:
        graph: N nodes.
        client: index of the client, 0..M-1.
        num_clients: M.
        split: how to split where the graph brings no masks.
        seed: for the split.

    Raises:
        FedGraphError: an index outside 0..M-1, or no training nodes.
    """
    if not 0 <= client < num_clients:
        raise FedGraphError(f"--client must lie in 0..{num_clients - 1} for --num-clients {num_clients}, got {client}")
    own = ClientGraph(
        **vars(graph),
        node_id=torch.arange(graph.num_nodes),
        client=client,
        num_clients=num_clients,
        num_global_nodes=graph.num_nodes,
    )
    if not bool((own.train_mask | own.val_mask | own.test_mask).any()):
        own = split_graph(own, split or SplitConfig(), seed)
    if not bool(own.train_mask.any()):
        raise FedGraphError(
            f"client {client} has {own.num_nodes} nodes, none for training: see --split-column and --ratio"
        )
    return own


def save_dataset(graph: Graph | HeteroGraph, name: str, overwrite: bool = False) -> Path:
    """Keep a graph under the data root, to be used as ``dataset=<name>``.

    Raises:
        FedGraphError: a name that is no word in lower case, belongs to a known dataset, or is taken.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise FedGraphError(f"--name must be lower-case letters, digits, - and _, got '{name}'")
    if name in group_names("dataset"):
        raise FedGraphError(f"--name '{name}' is a known dataset's: choose another")
    path = imported_path(name)
    if path.exists() and not overwrite:
        raise FedGraphError(f"--name '{name}' is taken ({path}): choose another, or add --overwrite")
    replace(graph, name=name).save(path)
    return path


_EPILOG = """\
tables: .csv, .csv.gz or .parquet with a header; ids and labels of any type, an empty label is unknown.
examples:
  fedgraph-flwr import --nodes people.csv --edges calls.csv --undirected --name calls
  fedgraph-flwr import --data graph.pt --name mine
  fedgraph-flwr import --node-table paper=p.csv --node-table author=a.csv --edge-table author:writes:paper=w.csv \\
      --target paper --name papers
  fedgraph-flwr import --nodes a.parquet --edges ab.parquet --classes no,yes --client 0 --num-clients 3 --out a.safetensors
"""


def register(commands: Any) -> None:
    """Add ``import`` to the subparsers."""
    parser = commands.add_parser(
        "import",
        help="bring your own graph: tables or a saved PyG object",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.set_defaults(func=main)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``import``."""
    given = parser.add_argument_group("input")
    given.add_argument("--nodes", type=Path, help="node table")
    given.add_argument("--edges", type=Path, help="edge table")
    given.add_argument("--data", type=Path, help="a PyG Data or HeteroData that torch.save wrote, instead of tables")
    given.add_argument(
        "--node-table",
        action="append",
        default=[],
        metavar="TYPE=FILE",
        help="typed nodes: one table a type, or TYPE= for a type of which there is nothing here",
    )
    given.add_argument(
        "--edge-table",
        action="append",
        default=[],
        metavar="A:RELATION:B=FILE",
        help="typed edges, from nodes of type A to those of type B; reverse types are added later",
    )
    given.add_argument("--target", default="", metavar="TYPE", help="typed nodes: the type that has labels")
    given.add_argument("--id-column", default="id", metavar="NAME", help="nodes' ids; default: id")
    given.add_argument("--label-column", default="label", metavar="NAME", help="labels; default: label")
    given.add_argument(
        "--feature-columns", default="", metavar="NAMES", help="names or patterns (x_*), by commas; default: all others"
    )
    given.add_argument("--split-column", default="", metavar="NAME", help="column that says train, val or test")
    given.add_argument(
        "--client-column", default="", metavar="NAME", help="column that says whose the node is (partition=planted)"
    )
    given.add_argument("--source-column", default="source", metavar="NAME", help="where edges start; default: source")
    given.add_argument("--target-column", default="target", metavar="NAME", help="where edges end; default: target")
    given.add_argument(
        "--classes", default="", metavar="A,B,C", help="the labels in the order of their numbers; default: sorted"
    )
    given.add_argument(
        "--undirected", action="store_true", help="each row of the edge table stands for both directions"
    )
    made = parser.add_argument_group("output")
    made.add_argument("--name", help="keep it as a dataset of this name, for dataset=NAME")
    made.add_argument("--overwrite", action="store_true", help="replace the dataset of this name")
    made.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write a file: a dataset, for dataset=file dataset.path=FILE, or a client's",
    )
    made.add_argument(
        "--client", type=int, metavar="I", help="write client I's file (0..M-1), for one SuperNode; needs --classes"
    )
    made.add_argument("--num-clients", type=int, metavar="M")
    made.add_argument(
        "--ratio", default="0.6,0.2,0.2", metavar="T,V,T", help="a client's split where there is no split column"
    )
    made.add_argument("--seed", type=int, default=0, help="for that split")


def main(args: argparse.Namespace) -> int:
    """Handle ``import``."""
    as_client = args.client is not None
    classes = [word.strip() for word in args.classes.split(",") if word.strip()]
    if twice := [name for name in classes if classes.count(name) > 1]:
        raise FedGraphError(f"--classes names '{twice[0]}' twice; each class has one number")
    if bool(args.name) == bool(args.out):
        raise FedGraphError("say where it goes: either --name NAME or --out FILE")
    if as_client and (args.num_clients is None or args.out is None or not classes):
        raise FedGraphError(
            "--client needs --num-clients M, --out FILE, and --classes A,B,C so that all clients number the classes alike"
        )
    graph = _read(args, classes)
    if args.name:
        path = save_dataset(graph, args.name, args.overwrite)
        use = f"dataset={args.name}"
    elif as_client:
        graph = _client(graph, args)
        path, use = args.out, "a SuperNode with this file, or graph=FOLDER of client_0000.safetensors and so on"
    else:
        path, use = args.out, f"dataset=file dataset.path={args.out}"
    if args.out:
        graph.save(path)
    found = describe(graph)
    told = ", ".join(f"{found[key]} {key}" for key in ("nodes", "edges", "features", "classes", "labelled"))
    homophily = found["edge_homophily"]
    print(f"{told}, edge homophily {'-' if homophily is None else format(homophily, '.3f')}")
    print(f"wrote {path}; use: {use}")
    return 0


def _client(graph: Graph | HeteroGraph, args: argparse.Namespace) -> ClientGraph | HeteroClientGraph:
    split = _ratio(args.ratio)
    if isinstance(graph, Graph):
        return client_graph(graph, args.client, args.num_clients, split, args.seed)
    from fedgraph_flwr.data.importing_typed import typed_client

    return typed_client(graph, args.client, args.num_clients, split, args.seed)


def _read(args: argparse.Namespace, classes: Sequence[str]) -> Graph | HeteroGraph:
    typed = bool(args.node_table or args.edge_table)
    given = [bool(args.data), bool(args.nodes or args.edges), typed]
    if sum(given) != 1 or (given[1] and not (args.nodes and args.edges)) or (typed and not args.node_table):
        raise FedGraphError(
            "say what to read: both --nodes FILE and --edges FILE, or --data FILE, or --node-table and --edge-table for each type"
        )
    if args.undirected and (typed or args.target):
        raise FedGraphError(
            "--undirected is for nodes of one type; every typed edge gets a reverse of its own type later"
        )
    if args.data and not args.target:
        return from_saved(args.data, classes=classes, undirected=args.undirected)
    columns = Columns(
        id=args.id_column,
        label=args.label_column,
        features=[word.strip() for word in args.feature_columns.split(",") if word.strip()],
        split=args.split_column,
        client=args.client_column,
        source=args.source_column,
        target=args.target_column,
    )
    if args.nodes:
        return from_tables(args.nodes, args.edges, columns, classes=classes, undirected=args.undirected)
    from fedgraph_flwr.data.importing_typed import edge_types, from_saved_typed, from_typed_tables, named_files

    if args.data:
        return from_saved_typed(args.data, args.target, classes=classes)
    nodes, edges = named_files(args.node_table, "--node-table"), named_files(args.edge_table, "--edge-table")
    return from_typed_tables(nodes, edge_types(edges), args.target, columns, classes=classes)


def _ratio(text: str) -> SplitConfig:
    try:
        train, val, test = (float(word) for word in text.split(","))
    except ValueError as error:
        raise FedGraphError(f"--ratio must be three numbers such as 0.6,0.2,0.2, got '{text}'") from error
    return SplitConfig(train=train, val=val, test=test)

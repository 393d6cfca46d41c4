"""Tables of many graphs: a node table with a column of graphs, and a table with one row per graph.

Node ids are unique over all graphs, or within each graph if the edge table has the column of graphs, too.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.tables.columns import as_words
from fedgraph_flwr.party.tables.nodes import check_rows, column_of
from fedgraph_flwr.party.tables.reading import read_table
from fedgraph_flwr.party.tables.roles import Columns


def joined(
    table: Any, links: Any, columns: Columns, graphs: Path | str | None, where: tuple[str, str]
) -> tuple[Any, Any, Tensor, np.ndarray]:
    """Return node and edge tables with unique node ids, the nodes of each graph side by side.

    Args:
        table: node table [N rows].
        links: edge table.
        columns: roles of the columns; ``graph`` names the column of graphs.
        graphs: table with one row per graph, whose other columns the nodes get; None for graphs without labels.
        where: files of nodes and edges, for errors.

    Returns:
        The two tables, the number of each node's graph [N], and the names of the graphs [G].

    Raises:
        FedGraphError: a column is missing or in both tables, a graph is listed twice, or has no row or no node.
    """
    import pandas as pd

    read = column_of(table, columns.graph, where[0], "graph")
    of = as_words(read)
    check_rows(np.char.strip(of) == "", read, where[0], "expected the graph of the node")
    names = pd.unique(of)
    if graphs is not None:
        rows = read_table(graphs, columns.layout)
        names = as_words(column_of(rows, columns.graph, str(graphs), "graph"))
        _check(names, of, str(graphs), where[0])
    place = pd.Index(names).get_indexer(of)
    order = np.argsort(place, kind="stable")
    table, place = table.iloc[order].reset_index(drop=True), place[order]
    if graphs is not None:
        more = rows.drop(columns=columns.graph)
        if twice := [name for name in more.columns if name in table.columns]:
            raise FedGraphError(f"column '{twice[0]}' is in both {where[0]} and {graphs}: rename one of them")
        table = pd.concat([table, more.iloc[place].reset_index(drop=True)], axis=1)
    if columns.graph in links.columns:
        table = _within(table, (columns.id,), columns.graph)
        links = _within(links, (columns.source, columns.target), columns.graph)
    return table, links, torch.from_numpy(place.astype(np.int64)), np.asarray(names)


def _check(names: np.ndarray, of: np.ndarray, graphs: str, nodes: str) -> None:
    """Check that each graph has one row and at least one node."""
    distinct, count = np.unique(names, return_counts=True)
    if twice := distinct[count > 1].tolist():
        raise FedGraphError(f"{graphs} lists graph '{twice[0]}' twice: expected one row per graph")
    if missing := sorted(set(of) - set(names)):
        raise FedGraphError(f"{nodes} has nodes of graph '{missing[0]}', which {graphs} does not list: add its row")
    if alone := sorted(set(names) - set(of)):
        raise FedGraphError(f"{graphs} lists graph '{alone[0]}', of which {nodes} has no node: add one")


def _within(table: Any, ends: tuple[str, ...], graph: str) -> Any:
    """Return a table whose ids start with their graph."""
    of = as_words(table[graph]).tolist()
    held = {end: as_words(table[end]).tolist() for end in ends if end in table.columns}
    return table.assign(**{end: [f"{a}/{b}" for a, b in zip(of, words, strict=True)] for end, words in held.items()})

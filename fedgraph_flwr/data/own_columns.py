"""Columns of a party's own records in a graph: the last ones of ``edge_attr`` and ``x``, as ``own_columns`` describes them.

`features` computes them from the graph's ``book``. Columns of edges look back, so that they are computed once. Columns of nodes
read all records or, with a temporal split, those of the training time; so they follow the split.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.data.features import Book, Recipe, node_columns
from fedgraph_flwr.data.graph import AnyGraph, Graph, pack_words, unpack_words
from fedgraph_flwr.data.split import APART


def recipe_of(graph: Graph) -> Recipe | None:
    """Return the recipe of a graph's own columns; None without one."""
    values = graph.own_columns.get("recipe")
    return Recipe.from_dict(values, graph.name or "the graph") if values else None


def with_edge_columns(graph: AnyGraph, recipe: Recipe, columns: Any) -> AnyGraph:
    """Return a graph with columns of its edges.

    Args:
        graph: E edges, which are the records of its book.
        recipe: the recipe of the columns.
        columns: of each record [E, K].
    """
    values = torch.from_numpy(np.ascontiguousarray(columns))
    base = graph.edge_attr if graph.num_edge_features else values[:, :0]
    description = {"recipe": recipe.to_dict(), "edges": values.size(1)}
    return replace(graph, edge_attr=torch.cat([base, values], dim=1), own_columns=description)


def with_node_columns(graph: AnyGraph) -> AnyGraph:
    """Return a graph with the columns of its nodes, if it has a recipe without them; call it after the split.

    If nodes have groups, which are parties, each party reads its own records only.
    """
    recipe = recipe_of(graph)
    if recipe is None or "nodes" in graph.own_columns:
        return graph
    until = last_of_training(graph)
    columns = _node_columns(graph, recipe, Book.of(graph.book), until)
    description = {**graph.own_columns, "nodes": columns.shape[1]} | ({} if until is None else {"until": until})
    return replace(
        graph, x=torch.cat([graph.x, torch.from_numpy(np.ascontiguousarray(columns))], dim=1), own_columns=description
    )


def node_columns_of(graph: Graph, kept: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the columns of nodes of a graph that has them, as if its book had only some of its records, float32 [N, K].

    Args:
        graph: a graph with a recipe and a book of R records.
        kept: the records that count [R].
    """
    recipe = recipe_of(graph)
    assert recipe is not None  # `own_columns` has "nodes"
    return _node_columns(graph, recipe, Book.of(graph.book).where(kept), graph.own_columns.get("until"))


def _node_columns(graph: Graph, recipe: Recipe, book: Book, until: int | None) -> NDArray[np.float32]:
    party = graph.group.numpy() if graph.group.numel() else None
    return node_columns(book, recipe, graph.num_nodes, party, until)


def last_of_training(graph: Graph) -> int | None:
    """Return the time of the last training edge of a graph whose nodes are split by time; None for others."""
    if not graph.edge_split.numel() or graph.schema.get(APART):
        return None
    training = graph.edge_time[graph.edge_split == 0]
    return int(training.max()) if training.numel() else int(graph.edge_time.min()) - 1


def renumbered(book: Tensor, place: Tensor, nodes: int) -> Tensor:
    """Return a book [4, R] for a graph of other nodes.

    Args:
        book: records of N nodes, and of accounts of other parties from N on.
        place: new number of each node [N].
        nodes: new number of nodes; accounts of other parties follow.
    """
    if not book.numel() or torch.equal(place, torch.arange(nodes)):
        return book
    far = torch.arange(max(int(book[:2].max()) + 1 - place.numel(), 0))
    return torch.cat([torch.cat([place, nodes + far])[book[:2]], book[2:]])


def appended(book: Tensor, new: Tensor) -> tuple[Tensor, NDArray[np.int64]]:
    """Return a book with new records [4, R] and the place of each in it; those that the book has, copy by copy, count once."""
    near = torch.isin(book[2], new[2]).nonzero().view(-1)
    if near.numel() < book.size(1):  # others are equal to none of the new ones
        part, at = appended(book[:, near], new)
        fresh = part[:, near.numel() :]
        place = np.concatenate([near.numpy(), book.size(1) + np.arange(fresh.size(1))])
        return torch.cat([book, fresh], dim=1), place[at]
    old = book.size(1)
    _, code = torch.cat([book, new], dim=1).unique(dim=1, return_inverse=True)
    order = np.argsort(code.numpy(), kind="stable")  # stored ones first
    group = code.numpy()[order]
    first = np.searchsorted(group, group)
    stored = np.bincount(group[order < old], minlength=group.size + 1)[group]
    copy = np.arange(group.size) - first - stored  # of the new records of a group
    repeated = (order >= old) & (copy < stored)
    at = np.empty(group.size, dtype=np.int64)
    at[order] = np.where(repeated, order[np.where(repeated, first + copy, 0)], -1)
    unknown = at[old:] < 0
    at[old:][unknown] = old + np.arange(int(unknown.sum()))
    return torch.cat([book, new[:, torch.from_numpy(unknown)]], dim=1), at[old:]


def records_of(graph: Graph, nodes: Tensor) -> dict[str, Any]:
    """Return ``book`` and ``book_ids`` of a client that holds some nodes of a graph [N']; other ends are named by their ids."""
    place = np.full(int(graph.book[:2].max()) + 1, -1)
    place[nodes.numpy()] = np.arange(nodes.numel())
    rows = graph.book.numpy()[:, (place[graph.book[:2].numpy()] >= 0).any(axis=0)]
    far = np.unique(rows[:2][place[rows[:2]] < 0])
    place[far] = nodes.numel() + np.arange(far.size)
    words = np.concatenate([unpack_words(graph.ids), unpack_words(graph.book_ids) if len(graph.book_ids) else []])
    return {
        "book": torch.from_numpy(np.concatenate([place[rows[:2]], rows[2:]])),
        "book_ids": pack_words(words[far]) if far.size else graph.book_ids[:0],
    }

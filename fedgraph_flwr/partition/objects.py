"""Convert PyG objects in memory, one per client or one for all, to internal graphs."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from logging import WARNING
from typing import Any

import torch
from torch import Tensor

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.checks import check_file, check_graph
from fedgraph_flwr.data.graph import MASKS, ClientGraph, Graph, unsplit
from fedgraph_flwr.data.hetero import HeteroClientGraph, HeteroGraph
from fedgraph_flwr.data.pyg import (
    client_graph,
    from_data,
    from_hetero_data,
    from_list,
    labelled_type,
    numbered_classes,
)
from fedgraph_flwr.data.split import split_graph, split_targets
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.logs import log
from fedgraph_flwr.partition.clients import with_target_stats
from fedgraph_flwr.partition.hetero import share_schema

MOST_IDS = 2**31
"""Upper bound of node ids, exclusive."""


def whole(data: Any, classes: Sequence[str] = (), target: str = "", where: str = "the graph") -> Graph | HeteroGraph:
    """Return the graph of a ``Data`` or ``HeteroData``, which is not changed.

    Args:
        data: with ``x``, ``edge_index``, integer labels ``y`` (-1: unknown), and masks, if it is split.
        classes: names of the labels 0..C-1; empty: the numbers.
        target: typed nodes: the type with labels; empty: the only one that has ``y``.
        where: its name in error messages.

    Raises:
        FedGraphError: another type, or an error of `from_data`.
    """
    if not is_typed(data):
        if target:
            raise FedGraphError(f"target={target} names a node type, but {where} has nodes of one type")
        graph = from_data(data, where, classes=classes)
        if isinstance(group := getattr(data, "group", None), Tensor):  # the client that each node is listed under
            graph = check_file(replace(graph, group=group), where)
        return graph
    return from_hetero_data(data, where, target or labelled_type(data, where), classes=classes)


def clients(
    graphs: Sequence[Any], cfg: RunConfig, name: str, classes: Sequence[str] = (), target: str = ""
) -> list[Any]:
    """Return one client's graph per object; objects from `ClientGraph.to_pyg` keep their cut edges and original ids.

    Args:
        graphs: at least one; see `whole` for the required content; missing types are empty. A list of ``Data`` is a client with
            many graphs, each with one class ``y`` or numbers.
        cfg: its ``split`` and ``seed`` apply to graphs without masks.
        name: name of the dataset.
        classes: names of the labels; empty: numbers up to the largest of all graphs.
        target: as of `whole`.

    Raises:
        FedGraphError: errors of `whole`, a graph without training nodes, or masks in only some graphs.
    """
    if any(isinstance(data, list | tuple) for data in graphs):
        return _clients_of_many(graphs, cfg, name, classes)
    typed = is_typed(graphs[0])
    for index, data in enumerate(graphs):
        if is_typed(data) != typed:
            raise FedGraphError(f"graphs[{index}] and graphs[0] must both be Data or both HeteroData")
    if typed and not target:
        target = labelled_type(graphs[0], "graphs[0]")
    say_unread(graphs)
    labels = [y for data in graphs if isinstance(y := getattr(_labelled(data, target), "y", None), Tensor)]
    known = torch.cat([y.view(-1) for y in labels if not y.is_floating_point()] or [torch.zeros(0, dtype=torch.int64)])
    names = list(classes) or (numbered_classes(known, "graphs=[...]") if known.numel() else [])
    made: list[Any] = [_client(data, index, len(graphs), cfg, names, target) for index, data in enumerate(graphs)]
    if not typed:
        made = [*with_target_stats(made)]
    made = share_schema(made) if typed and not cfg.strategy.private_schema else made
    return [replace(graph, name=name) for graph in made]


def _clients_of_many(graphs: Sequence[Any], cfg: RunConfig, name: str, classes: Sequence[str]) -> list[ClientGraph]:
    """Return one client's graph per list of ``Data``, each a graph with one label, or with numbers.

    Raises:
        FedGraphError: an object is no list, is empty, or holds something else.
    """
    for index, party in enumerate(graphs):
        if not isinstance(party, list | tuple) or not party:
            raise FedGraphError(
                f"graphs[{index}] must be a list of PyG Data like the others, one per graph of the client, got"
                f" {'an empty list' if isinstance(party, list | tuple) else type(party).__name__}"
            )
    whole = [from_list(party, f"graphs[{index}]") for index, party in enumerate(graphs)]
    names = list(classes) or numbered_classes(torch.cat([graph.y for graph in whole]), "graphs=[...]")
    made = []
    for index, graph in enumerate(whole):
        named = check_graph(replace(graph, num_classes=max(len(names), 1)), f"graphs[{index}]")
        party = client_graph(_with_masks(named, cfg, f"graphs[{index}]"), index, len(graphs), cfg.split, cfg.seed)
        made.append(replace(party, name=name))
    return with_target_stats(made)


NAME = r"[a-z0-9][a-z0-9_-]*"
"""Pattern of dataset names."""


def option_of(several: bool) -> str:
    """Return the argument that holds one graph, or one graph per client, in error messages."""
    return "graphs=[...]" if several else "data="


def name_of(dataset: Any, keys: Iterable[str], several: bool) -> str:
    """Return the name of graphs in memory, which ``dataset`` gives; by default that of their argument.

    Args:
        dataset: the given name; None without one.
        keys: the other given keys, or overrides.
        several: whether there is one graph per client, which no partition divides.

    Raises:
        FedGraphError: an invalid name, or a key that the graphs replace.
    """
    option = option_of(several)
    name = option.partition("=")[0] if dataset is None else dataset
    if not (isinstance(name, str) and re.fullmatch(NAME, name)):
        raise FedGraphError(f"dataset={name} names {option}: expected lower-case letters, digits, - and _")
    for key in keys:
        if key.startswith(("dataset", "graph", "resume", *(["partition"] if several else []))):
            raise FedGraphError(f"{key} cannot be combined with {option}, which replaces it: remove one of them")
    return name


def defaults(graphs: Sequence[Any], target: str = "") -> list[str]:
    """Return default overrides for graphs in memory: nothing of the default dataset, and their masks as split, if one has any.

    Raises:
        FedGraphError: not a list of objects, or an error of `whole` on type and target.
    """
    if not isinstance(graphs, list | tuple) or not graphs:
        got = "an empty one" if isinstance(graphs, list | tuple) else f"a {type(graphs).__name__}"
        raise FedGraphError(
            f"graphs must be a list of PyG Data or HeteroData, or of lists of Data, one per client, got {got}:"
            " fedgraph_flwr.datasets.partition cuts one graph into many"
        )
    marked = any(_marks(data, target) for data in graphs)
    return ["dataset=file", *(["split.kind=public"] if marked else [])]


def partitioned(data: Any, cfg: RunConfig, name: str, classes: Sequence[str] = (), target: str = "") -> list[Any]:
    """Return the clients' parts of one graph, by the ``partition`` and ``split`` of a configuration.

    Raises:
        FedGraphError: an error of `whole`, of the partition or of the split.
    """
    from fedgraph_flwr.partition import store

    say_unread([data])
    return list(store.make(replace(whole(data, classes, target), name=name), cfg))


def say_unread(graphs: Sequence[Any]) -> None:
    """Warn of edge weights, which no model reads."""
    if unread := {"edge_weight"} & {key for data in graphs for key in data.keys()}:  # noqa: SIM118
        log(WARNING, "%s is ignored: every edge has weight 1", " and ".join(sorted(unread)))


def _marks(data: Any, target: str) -> bool:
    """Return whether a mask of a graph, or of one of a list of graphs, marks a node."""
    if isinstance(data, list | tuple):
        return any(_marks(one, target) for one in data)
    masks = [getattr(_labelled(data, target), key, None) for key in MASKS]
    return any(bool(mask.any()) for mask in masks if isinstance(mask, Tensor))


def _client(
    data: Any, index: int, number: int, cfg: RunConfig, classes: Sequence[str], target: str
) -> ClientGraph | HeteroClientGraph:
    where = f"graphs[{index}]"
    cut = {} if target else {f.name: data[f.name] for f in fields(ClientGraph) if f.name in data}
    if (cut.get("client"), cut.get("num_clients")) == (index, number):
        return check_file(ClientGraph(**cut), where)
    graph = _with_masks(whole(data, classes, target, where), cfg, where)
    client = client_graph(graph, index, number, cfg.split, cfg.seed)
    ids = None if isinstance(graph, HeteroGraph) else _ids(data, graph.num_nodes, where)
    return client if ids is None else replace(client, node_id=ids, num_global_nodes=int(ids.max()) + 1)


def _with_masks(graph: Any, cfg: RunConfig, where: str) -> Any:
    """Return a client's graph with the split of its masks, or without masks if another split is drawn.

    Raises:
        FedGraphError: no mask marks a node, or errors of `split_graph`.
    """
    if cfg.split.kind != "public":
        return replace(graph, **unsplit(len(graph.y)))
    if not any(bool(getattr(graph, mask).any()) for mask in MASKS):
        raise FedGraphError(
            f"{where} marks no labelled node in {', '.join(MASKS)}, and other graphs do: mark some, or set split.kind=ratio"
        )
    split: Any = split_targets if isinstance(graph, HeteroGraph) else split_graph
    return split(replace(graph, name=where), cfg.split, cfg.seed)


def _ids(data: Any, nodes: int, where: str) -> Tensor | None:
    """Return a ``Data``'s ``node_id`` [N], which identifies nodes that several parties hold; None without one."""
    ids = getattr(data, "node_id", None)
    if ids is None:
        return None
    fits = isinstance(ids, Tensor) and ids.shape == (nodes,) and not ids.is_floating_point() and ids.dtype != torch.bool
    if not fits or (nodes and not 0 <= int(ids.min()) <= int(ids.max()) < MOST_IDS) or ids.unique().numel() < nodes:
        raise FedGraphError(
            f"{where}: node_id must be {nodes} distinct integers from 0 to {MOST_IDS - 1}, one per node"
        )
    return ids.to(torch.int64)


def is_typed(data: Any) -> bool:
    """Return whether a graph is a ``HeteroData``.

    Raises:
        FedGraphError: it is neither this nor a ``Data``.
    """
    from torch_geometric.data import Data, Dataset, HeteroData

    if not isinstance(data, Data | HeteroData):
        named = f"; pass a dataset's name as dataset={data!r}" if isinstance(data, str) else ""
        named = ": pass one of its graphs, such as dataset[0]" if isinstance(data, Dataset) else named
        raise FedGraphError(f"a graph must be a PyG Data or HeteroData, got {type(data).__name__}{named}")
    return isinstance(data, HeteroData)


def _labelled(data: Any, target: str) -> Any:
    """Return the node type with labels."""
    if not is_typed(data):
        return data
    return data[labelled_type(data, "the graph", target=target)]

"""Read the natural federations of FedGB (files of its schema "1.0") as client graphs.

    fedgb_manifest.json                                        name, level, task, number of clients
    distrib/PARTITION/data_<i>.pt                              the data of client i
    distrib/PARTITION/TASK/default_split/{train,val,test}_<i>.pt   its split, bool, one entry per node or graph

The files are pickles. They are read with torch's weights-only loader, which runs no code and accepts PyG's containers and FedGB's
list of graphs. ``glb_*.pkl``, which are other pickles, are never read. Edges of untyped node tasks become undirected, without
loops, as FedGB makes them on use. Of typed graphs, reverse edge types are added as for other typed data.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgraph_flwr.data.checks import check_file, check_graph
from fedgraph_flwr.data.cleaning import both_directions, without_loops
from fedgraph_flwr.data.graph import MASKS, ClientGraph, Graph, form_of, unsplit
from fedgraph_flwr.data.hetero import EdgeType, HeteroClientGraph, HeteroGraph
from fedgraph_flwr.data.many_graphs import index_of
from fedgraph_flwr.data.pyg import check_data, from_list, in_order, labelled_type, read_pickled
from fedgraph_flwr.errors import MALFORMED, FedGraphError, sanitize, unknown
from fedgraph_flwr.partition.clients import with_target_stats
from fedgraph_flwr.partition.hetero import share_schema

MANIFEST = "fedgb_manifest.json"
VERSION = "1.0"
TASKS = {
    ("homo_subgraph", "node_cls"): "nodes",
    ("hetero_subgraph", "node_cls"): "nodes",
    ("graph", "graph_cls"): "graphs",
    ("graph", "graph_reg"): "graphs-regression",
}
"""Our task for FedGB's level and task."""

SPLITS = ("train", "val", "test")


class GraphList:
    """Attributes of FedGB's list of graphs of a client, ``fedgb.data.fgl_graph_dataset.FGLGraphDataset``."""


ACCEPTED = (GraphList, "fedgb.data.fgl_graph_dataset.FGLGraphDataset")


def read(folder: Path) -> tuple[list[Any], str]:
    """Return the client graphs of a FedGB folder, and the task that they are for.

    Args:
        folder: with the manifest.

    Raises:
        FedGraphError: a file is missing, is of another version, holds something else, or its tensors do not fit together.
    """
    manifest = _manifest(folder)
    task, count = TASKS[manifest["level"], manifest["task"]], int(manifest["num_clients"])
    place = _partition(folder, manifest)
    files = [place / f"data_{index}.pt" for index in range(count)]
    splits = [_split(place / manifest["task"] / "default_split", index) for index in range(count)]
    read_client: Any = {"homo_subgraph": _nodes, "hetero_subgraph": _typed, "graph": _graphs}[manifest["level"]]
    found = [read_client(path, split, manifest) for path, split in zip(files, splits, strict=True)]
    named = {"name": str(manifest.get("name", "fedgb")), "num_classes": max(graph.num_classes for graph in found)}
    clients: list[Any] = _numbered([replace(graph, **named) for graph in found])
    if not manifest["level"].startswith("hetero"):
        clients = [*with_target_stats(clients)]
    return [check_file(graph, str(path)) for graph, path in zip(clients, files, strict=True)], task


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, *MALFORMED) as error:
        raise FedGraphError(f"{folder} has no readable {MANIFEST}: pass the root folder of a FedGB variant") from error
    found = manifest if isinstance(manifest, dict) else {}
    if found.get("schema_version") != VERSION:
        version = sanitize(found.get("schema_version"), 40)
        raise FedGraphError(f"{path} has schema_version {version}: write it again with FedGB {VERSION}")
    kind = str(found.get("level")), str(found.get("task"))
    if kind not in TASKS:
        known = ", ".join("/".join(pair) for pair in TASKS)
        raise FedGraphError(f"{path} has level/task {sanitize('/'.join(kind), 80)}, expected one of: {known}")
    if type(count := found.get("num_clients")) is not int or count < 1:
        raise FedGraphError(f"{path} has num_clients {sanitize(count, 40)}, expected a positive integer")
    return found


def _partition(folder: Path, manifest: Mapping[str, Any]) -> Path:
    """Return the folder of the clients: the named one, or the only one."""
    root = folder / "distrib"
    if name := manifest.get("processed_partition"):
        if not isinstance(name, str) or Path(name).name != name:
            raise FedGraphError(f"{MANIFEST}: processed_partition must name a folder, got {sanitize(name, 80)}")
        return root / name
    found = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if len(found) != 1:
        fix = f"name it as processed_partition in {MANIFEST}, or remove the others"
        raise FedGraphError(f"{root} has {len(found)} folders, expected one: {fix}")
    return found[0]


def _split(folder: Path, client: int) -> list[Tensor]:
    """Return the masks of a client, checked against each other."""
    masks = [read_pickled(folder / f"{split}_{client}.pt") for split in SPLITS]
    for split, mask in zip(SPLITS, masks, strict=True):
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.dim() != 1:
            path = folder / f"{split}_{client}.pt"
            raise FedGraphError(f"{path} must hold a tensor of one bool per node or graph, got {form_of(mask)}")
    return masks


def _fitting(masks: Sequence[Tensor], count: int, path: Path) -> Sequence[Tensor]:
    if any(len(mask) != count for mask in masks):
        sizes = "/".join(str(len(mask)) for mask in masks)
        raise FedGraphError(f"{path} has {count} nodes or graphs, and its masks have {sizes} entries")
    return masks


def _named(masks: Sequence[Tensor]) -> dict[str, Any]:
    return dict(zip(MASKS, masks, strict=True))


def _data(path: Path) -> Any:
    """Return a client's ``Data`` or ``HeteroData``."""
    from torch_geometric.data import Data, HeteroData

    data = read_pickled(path)
    if not isinstance(data, Data | HeteroData):
        raise FedGraphError(f"{path} holds a {type(data).__name__}, expected a PyG Data or HeteroData")
    return data


def _integers(data: Any, key: str, size: int, path: Path) -> Tensor:
    """Return a field of as many integers [size]."""
    values = getattr(data, key, None)
    if not isinstance(values, Tensor) or values.is_floating_point() or values.numel() != size:
        raise FedGraphError(f"{path}: {key} must be a tensor of {size} integers, got {form_of(values)}")
    return values.reshape(-1).to(torch.int64)


def _plain(data: Any, path: Path) -> Graph:
    """Return the nodes and edges of a ``Data`` with numbers of classes, without edge features and masks."""
    check_data(data, str(path))
    y = data.y.reshape(-1).to(torch.int64)
    edges = data.edge_index.to(torch.int64)
    graph = Graph(x=data.x.to(torch.float32), edge_index=edges, y=y, **unsplit(len(y)), num_classes=_classes(data, y))
    return check_graph(graph, str(path), labelled=False)


def _nodes(path: Path, masks: Sequence[Tensor], manifest: Mapping[str, Any]) -> ClientGraph:
    """Return a client of an untyped node task."""
    data = _data(path)
    graph = both_directions(without_loops(_plain(data, path)))
    own = vars(graph) | _named(_fitting(masks, graph.num_nodes, path))
    return ClientGraph(**own, node_id=_global_ids(data, graph.num_nodes, path))


def _classes(data: Any, y: Tensor) -> int:
    """Return the number of classes: the stated one, or that of the labels if it is larger."""
    given = getattr(data, "num_global_classes", None)
    return max(int(y.max()) + 1 if y.numel() else 1, int(given) if isinstance(given, int | Tensor) else 0, 1)


def _global_ids(data: Any, count: int, path: Path) -> Tensor:
    """Return the global id of each node, int64 [n]: of a dict, the values, unless only they are 0..n-1.

    Raises:
        FedGraphError: there is no map of all nodes to different ids.
    """
    given = getattr(data, "global_map", None)
    if isinstance(given, dict):
        pairs = {int(key): int(value) for key, value in given.items()}
        local = set(range(count))
        if set(pairs) != local and set(pairs.values()) == local:
            pairs = {value: key for key, value in pairs.items()}
        ids = torch.tensor([pairs.get(node, -1) for node in range(count)], dtype=torch.int64)
    else:
        ids = _integers(data, "global_map", count, path)
    if (count and int(ids.min()) < 0) or ids.unique().numel() < count:
        got = f"{ids.unique().numel()} different ids from {int(ids.min())}"
        raise FedGraphError(f"{path}: global_map must give each of {count} nodes its own id from 0 on, got {got}")
    return ids


def _typed(path: Path, masks: Sequence[Tensor], manifest: Mapping[str, Any]) -> HeteroClientGraph:
    """Return a client of a typed node task, with the reverse of every edge type."""
    data = _data(path)
    graph = _of_types(data, path, masks) if hasattr(data, "edge_types") else _of_numbers(data, path, masks)
    return in_order(graph.without_reverse().with_reverse())


def _of_types(data: Any, path: Path, masks: Sequence[Tensor]) -> HeteroClientGraph:
    """Return a ``HeteroData``, whose masks list its types one after the other. Its ids name no nodes of other clients."""
    target = labelled_type(data, str(path))
    y = _integers(data[target], "y", int(data[target].num_nodes), path)
    graph = HeteroGraph.from_pyg(data, target, _classes(data, y), str(path))
    start = int(graph.offsets()[list(graph.counts).index(target)])
    own = [mask[start : start + len(y)] for mask in _fitting(masks, graph.num_nodes, path)]
    return HeteroClientGraph(**{**vars(graph), **_named(own)})


def _of_numbers(data: Any, path: Path, masks: Sequence[Tensor]) -> HeteroClientGraph:
    """Return a ``Data`` whose nodes and edges have numbers of types."""
    graph = _plain(data, path)
    x, index, y = graph.x, graph.edge_index, graph.y
    kind, relation = _integers(data, "node_type", len(x), path), _integers(data, "edge_type", index.size(1), path)
    names = _names(data, "hetero_node_types", kind, path)
    relations = _names(data, "hetero_edge_types", relation, path)
    target = str(getattr(data, "target_node_type", ""))
    if target not in names:
        raise unknown("target_node_type", sanitize(target, 60), names, str(path))
    ids, place = _global_ids(data, len(x), path), torch.empty_like(kind)
    rows = {name: (kind == number).nonzero().view(-1) for number, name in enumerate(names)}
    for own in rows.values():
        place[own] = torch.arange(own.numel())
    edges: dict[EdgeType, Tensor] = {}
    triples = torch.stack([kind[index[0]], relation, kind[index[1]]])
    for a, r, b in triples.unique(dim=1).T.tolist():
        own = (triples == torch.tensor([[a], [r], [b]])).all(0)
        edges[names[a], relations[r], names[b]] = place[index[:, own]]
    own = rows[target]
    return HeteroClientGraph(
        counts={name: nodes.numel() for name, nodes in rows.items()},
        edges=edges,
        target=target,
        y=y[own],
        **_named([mask[own] for mask in _fitting(masks, len(x), path)]),
        num_classes=_classes(data, y[own]),
        x={name: x[nodes] for name, nodes in rows.items()},
        node_id={name: ids[nodes] for name, nodes in rows.items()},
    )


def _names(data: Any, key: str, numbers: Tensor, path: Path) -> list[str]:
    """Return the names of types, or their numbers where the file has no names."""
    given, count = getattr(data, key, None), int(numbers.max()) + 1 if numbers.numel() else 0
    names = [str(name) for name in given] if isinstance(given, list | tuple) and given else list(map(str, range(count)))
    if len(set(names)) < len(names) or (numbers.numel() and not 0 <= int(numbers.min()) < count <= len(names)):
        raise FedGraphError(f"{path}: {key} must name each of {count} types once, got {len(names)} names")
    return names


def _graphs(path: Path, masks: Sequence[Tensor], manifest: Mapping[str, Any]) -> ClientGraph:
    """Return a client's graphs side by side."""
    held = read_pickled(path, [ACCEPTED])
    graphs = getattr(held, "graphs", None)
    if not isinstance(graphs, list) or not graphs:
        raise FedGraphError(f"{path} must hold FedGB's list of at least one graph, got graphs={graphs!r:.60}")
    graph = from_list(graphs, str(path))
    answers: dict[str, Any] = {}
    if bool(graph.num_targets) != (manifest["task"] == "graph_reg"):
        got = form_of(graphs[0].y)
        raise FedGraphError(f"{path}: y must be floats for graph_reg, integers for graph_cls, got {got}")
    if not graph.num_targets:
        answers["num_classes"] = _classes(held, graph.y)
    of = index_of(graph)
    for key, mask in _named(_fitting(masks, len(graphs), path)).items():
        answers[key] = mask[of] & graph.labelled
    return ClientGraph(**vars(graph) | answers, node_id=torch.arange(graph.num_nodes))


def _numbered(clients: Sequence[Any]) -> list[Any]:
    """Return clients with their index, and with node ids of one graph."""
    count = len(clients)
    if isinstance(clients[0], HeteroClientGraph):
        named = []
        for index, client in enumerate(clients):
            before = {kind: sum(other.counts.get(kind, 0) for other in clients[:index]) for kind in client.counts}
            ids = client.node_id or {k: torch.arange(n) + before[k] for k, n in client.counts.items()}
            named.append(replace(client, client=index, num_clients=count, node_id=ids))
        return [*share_schema(named)]
    place: dict[str, Any] = {"num_clients": count}
    if not clients[0].graph_id.numel():
        place |= {"num_global_nodes": 1 + max(int(client.node_id.max()) for client in clients), "shared": True}
    return [
        replace(client, client=index, **{"num_global_nodes": client.num_nodes} | place)
        for index, client in enumerate(clients)
    ]

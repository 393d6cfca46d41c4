"""The description of a client: what the server learns before round 1."""

from typing import Any

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.data.schema import fingerprint, link_number
from fedgraph_flwr.tasks import reads_edges


def describe(cfg: RunConfig, private: bool, graph: ClientGraph, num_train: int, width: int) -> dict[str, Any]:
    """The client's index, the sizes of its graph, the fingerprint of its schema, and the name of its link run."""
    nodes = graph.part.bincount().tolist() if graph.part.numel() else graph.num_nodes
    sizes = {"num_train": num_train, "num_features": graph.num_features, "num_classes": width}
    if reads_edges(cfg):
        sizes["num_edge_features"] = graph.num_edge_features
    schema = fingerprint(graph)
    return {
        "client": graph.client,
        **client_description(cfg, private, nodes, sizes),
        **({"schema": schema} if schema != [0] else {}),
        **({"link": link} if (link := link_number(getattr(graph, "linking", {}))) else {}),
    }


def client_description(cfg: RunConfig, private: bool, nodes: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of a client's graph; its number of nodes, per part, only where nodes weigh clients."""
    if private:
        sizes = {key: size for key, size in sizes.items() if key != "num_train"}
    counts = cfg.strategy.weighting == "nodes" or cfg.evaluation.average == "nodes"
    return {**sizes, "num_nodes": nodes} if counts else sizes

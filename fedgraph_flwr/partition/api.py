"""Graphs from Python: ``fedgraph_flwr.partition.api``.

data = fg.datasets.load("cora")                                   # a PyG Data
parts = fg.datasets.partition(data, "louvain", num_clients=10)    # a list of them
fg.run(graphs=parts)                                             # fg.run(data=data, num_clients=10) does both
"""

from collections.abc import Sequence
from typing import Any

__all__ = ["load", "names", "partition"]


def names() -> list[str]:
    """Return the names that `load` and ``dataset=`` accept: built-in and imported datasets."""
    from fedgraph_flwr.data.datasets import SOURCES
    from fedgraph_flwr.data.root import imported_names

    return [*SOURCES, *imported_names()]


def load(name: str, *, seed: int = 0, num_clients: int | None = None, **keys: Any) -> Any:
    """Load a whole graph as a PyG ``Data`` or ``HeteroData``; it is downloaded on first use.

    Args:
        name: one of `names`.
        seed: seed of a generated graph.
        num_clients: number of clients of a generated graph; None for 10, or fewer if it is too small for them.
        keys: keys of the dataset, such as ``undirected=True``, or ``nodes=100`` for ``csbm``.

    Raises:
        FedGraphError: a name or key is unknown, or files are missing.
    """
    from fedgraph_flwr.config import configuration
    from fedgraph_flwr.data import datasets
    from fedgraph_flwr.errors import TooManyClients

    cfg = configuration((), {"dataset": name, **{f"dataset.{key}": value for key, value in keys.items()}})
    clients = num_clients or 10
    while True:
        try:
            return datasets.load(cfg.dataset, seed=seed, num_clients=clients).to_pyg()
        except TooManyClients:
            if num_clients or clients == 1:
                raise
            clients -= 1


def partition(
    data: Any,
    partition: str = "louvain",
    num_clients: int = 10,
    seed: int = 0,
    *,
    classes: Sequence[str] = (),
    target: str = "",
    **keys: Any,
) -> list[Any]:
    """Partition a graph into one per client, and split each into training, validation and test nodes.

    Args:
        data: PyG ``Data`` or ``HeteroData``. Its masks are used as the split unless ``split`` sets another kind.
        partition: a name, as for ``partition=`` of a run.
        num_clients: M.
        seed: seed of the partition and the split.
        classes: names of the labels 0..C-1.
        target: with ``HeteroData``, the labelled node type; optional if there is only one.
        keys: additional keys of a run: ``split={"train": 0.5, ...}``, ``**{"partition.resolution": 2}``.

    Returns:
        A list for ``fedgraph_flwr.run(graphs=...)``. ``node_id`` holds each node's number in ``data`` (by node type in
        ``HeteroData``); ``cut_out`` and ``cut_in`` the edges that lead to other clients, which some methods may read.

    Raises:
        FedGraphError: an unknown name or key, a graph that does not fit, or a client without training nodes.
    """
    from torch_geometric.data import Data

    from fedgraph_flwr.config import configuration
    from fedgraph_flwr.partition import objects
    from fedgraph_flwr.partition.part import Part

    given = {"partition": partition, "num_clients": num_clients, "seed": seed, **keys}
    cfg = configuration((), given, objects.defaults([data], target))
    parts = [client.to_pyg() for client in objects.partitioned(data, cfg, "graph", classes, target)]
    return [Part.from_dict(part.to_dict()) if isinstance(part, Data) else part for part in parts]

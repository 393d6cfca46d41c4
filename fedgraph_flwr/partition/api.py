"""Graphs from Python: ``fedgraph_flwr.partition.api``.

data = fg.datasets.load("cora")                                   # a PyG Data
parts = fg.datasets.partition(data, "louvain", num_clients=10)    # a list of them
fg.run(graphs=parts)
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

__all__ = ["load", "names", "partition"]


def names() -> list[str]:
    """What `load` and ``dataset=`` accept: the known datasets, and your own imported ones."""
    from fedgraph_flwr.data.datasets import SOURCES
    from fedgraph_flwr.data.root import imported_names

    return [*SOURCES, *imported_names()]


def load(name: str, *, seed: int = 0, num_clients: int = 10, **keys: Any) -> Any:
    """A whole graph as a PyG ``Data``, or ``HeteroData`` where nodes and edges are typed; downloaded on first use.

    Args:
        name: one of `names`.
        seed: of a generated graph, which is also made for so many clients.
        num_clients: see ``seed``.
        keys: the dataset's, such as ``undirected=True`` or, of ``csbm``, ``nodes=100``.

    Raises:
        FedGraphError: an unknown name or key, or files that are not at hand.
    """
    from fedgraph_flwr.config import configuration
    from fedgraph_flwr.data import datasets

    cfg = configuration((), {"dataset": name, **{f"dataset.{key}": value for key, value in keys.items()}})
    return datasets.load(cfg.dataset, seed=seed, num_clients=num_clients).to_pyg()


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
    """Cut a graph into one a client, and split each into training, validation and test nodes.

    Args:
        data: PyG ``Data`` or ``HeteroData``. A split that it brings is kept to, unless ``split={"kind": "ratio"}`` or so.
        partition: a name, as ``partition=`` of a run accepts.
        num_clients: M.
        seed: of the partition and the split.
        classes: names of the labels 0..C-1.
        target: of ``HeteroData``, the node type with labels; not needed where only one has some.
        keys: further ones of a run: ``split={"train": 0.5, ...}``, ``**{"partition.resolution": 2}``.

    Returns:
        A list for ``fedgraph_flwr.run(graphs=...)``. ``node_id`` holds each node's number in ``data`` (by node type in
        ``HeteroData``); ``cut_out`` and ``cut_in`` the edges that lead to other clients, which some methods may read.

    Raises:
        FedGraphError: an unknown name or key, a graph that does not fit, or a client without training nodes.
    """
    from fedgraph_flwr.config import configuration
    from fedgraph_flwr.partition import objects, store

    own_split = ["split.kind=public"] if objects.any_split([data], target) else []
    given = {"partition": partition, "num_clients": num_clients, "seed": seed, **keys}
    cfg = configuration((), given, own_split)
    objects.say_unread([data])
    graph = replace(objects.whole(data, classes, target), name="graph")
    return [client.to_pyg() for client in store.make(graph, cfg)]

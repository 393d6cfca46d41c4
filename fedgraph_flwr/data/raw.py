"""Readers of raw files: through PyG's classes, or directly where PyG has no class."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.data.cleaning import to_undirected
from fedgraph_flwr.data.graph import Graph, unsplit
from fedgraph_flwr.data.hetero import HeteroGraph
from fedgraph_flwr.errors import FedGraphError

ARXIV = "http://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"

Reader = Callable[[Path, dict[str, Any]], Graph | HeteroGraph]


def _graph(x: np.ndarray, edges: np.ndarray, y: np.ndarray, num_classes: int, group: np.ndarray | None = None) -> Graph:
    return Graph(
        x=torch.from_numpy(np.require(x, np.float32, ["C", "W"])),
        edge_index=torch.from_numpy(np.require(edges, np.int64, ["C", "W"])),
        y=torch.from_numpy(y.astype(np.int64)),
        **unsplit(len(y)),
        num_classes=num_classes,
        group=torch.from_numpy((group if group is not None else np.empty(0)).astype(np.int64)),
    )


def _both_directions(edges: np.ndarray, num_nodes: int) -> np.ndarray:
    """Return both directions of each edge [2, E], once, without self-loops, sorted."""
    edges = edges.astype(np.int64)
    edges = edges[:, edges[0] != edges[1]]
    return to_undirected(torch.from_numpy(edges), num_nodes).numpy()


def pyg(cls: str, **kwargs: Any) -> Reader:
    """Return a reader that uses the PyG dataset class ``cls`` and downloads missing raw files into its folder."""

    def read(folder: Path, params: dict[str, Any]) -> Graph:
        import torch_geometric.datasets

        dataset = getattr(torch_geometric.datasets, cls)(str(folder), **kwargs)
        return Graph.from_pyg(dataset[0], num_classes=int(dataset.num_classes))

    return read


def arxiv_year(folder: Path, params: dict[str, Any]) -> Graph:
    """Read ogbn-arxiv; labels are publication years in C = 5 classes of equal count (Lim et al., NeurIPS 2021).

    Missing files are downloaded into its folder ``raw`` from OGB's archive.
    """
    raw = folder / "raw"
    if not (raw / "edge.csv.gz").is_file():
        from torch_geometric.data import download_url, extract_zip

        extract_zip(download_url(ARXIV, str(folder)), str(folder))
        for file in (folder / "arxiv/raw").iterdir():
            file.replace(raw / file.name)

    year = table(raw / "node_year.csv.gz", np.int64)[:, 0]
    bounds = np.quantile(year, [0.2, 0.4, 0.6, 0.8])
    y = np.searchsorted(bounds, year, side="right")  # class k: bounds[k-1] <= year < bounds[k]
    return _graph(table(raw / "node-feat.csv.gz", np.float32), table(raw / "edge.csv.gz", np.int64).T, y, 5)


def table(path: Path, dtype: Any) -> np.ndarray:
    """Read a CSV file without a header."""
    import pandas as pd

    return pd.read_csv(path, header=None, dtype=dtype).to_numpy()


def syn_cora(folder: Path, params: dict[str, Any]) -> Graph:
    """Read random graphs of several homophily levels with Cora's features as one graph (Zhu et al., NeurIPS 2020).

    ``group`` holds each node's source graph: one graph per client.
    """
    from scipy.sparse import csr_matrix

    xs, edges, ys, start = [], [], [], 0
    groups: list[np.ndarray] = []
    for key in ("homophily", "replicates"):
        if isinstance(params[key], str) or not isinstance(params[key], Sequence):
            raise FedGraphError(f"dataset.{key} must be a list of numbers such as [0, 0.5], got {params[key]}")
    names = [f"h{level:.2f}-r{copy}.npz" for level in params["homophily"] for copy in params["replicates"]]
    for name in names:
        if not (folder / name).is_file():
            raise FedGraphError(
                f"dataset 'syn-cora' has no {name} in {folder}: check dataset.homophily and dataset.replicates"
            )
        with np.load(folder / name, allow_pickle=False) as file:
            attr, adj = (
                csr_matrix((file[f"{key}_data"], file[f"{key}_indices"], file[f"{key}_indptr"]), file[f"{key}_shape"])
                for key in ("attr", "adj")
            )
            ys.append(file["labels"])
        xs.append(attr.toarray())
        edges.append(np.stack(adj.nonzero()) + start)
        groups.append(np.full(adj.shape[0], len(groups)))
        start += adj.shape[0]
    y = np.concatenate(ys)
    return _graph(np.concatenate(xs), np.concatenate(edges, axis=1), y, int(y.max()) + 1, np.concatenate(groups))


def credit(folder: Path, params: dict[str, Any]) -> Graph:
    """Read credit-card clients, linked by similar spending and payment; label 1: pays next month.

    It has 13 features (without `Single`, the complement of `Married`), each scaled to [-1, 1] as in NIFTY (Agarwal et al.,
    UAI 2021). NIFTY's edge list ``credit_edges.txt`` takes precedence over the rebuilt one.
    """
    path = folder / "credit.csv"
    header = path.open().readline().strip().split(",")
    table = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.float32)
    label = header.index("NoDefaultNextMonth")
    x = np.delete(table, [label, header.index("Single")], axis=1)
    low, high = x.min(0), x.max(0)
    x = 2 * (x - low) / np.maximum(high - low, 1e-12) - 1
    original = folder / "credit_edges.txt"
    if original.is_file():
        edges = np.loadtxt(original).T
    else:
        with np.load(folder / "credit_edges_rebuilt.npz", allow_pickle=False) as file:
            edges = file["edges"]
    return _graph(x, _both_directions(edges, len(x)), table[:, label], 2)


def ieee_fraud(folder: Path, params: dict[str, Any]) -> Graph:
    """Read card transactions with an identity record; label 1: fraud; ``group``: the product (Howard et al., 2019).

    Each transaction is linked to the ``neighbours`` next ones of its product by time (FedHERO, Appendix A).
    Features: the numeric columns, standardised, 0 where missing.
    """
    import pandas as pd

    table = pd.read_csv(folder / "train_transaction.csv").merge(
        pd.read_csv(folder / "train_identity.csv"), on="TransactionID", how="inner"
    )
    numeric = table.select_dtypes("number").drop(columns=["TransactionID", "isFraud", "TransactionDT"])
    numeric = numeric.loc[:, numeric.nunique() > 1].to_numpy(dtype=np.float64)
    x = np.nan_to_num((numeric - np.nanmean(numeric, axis=0)) / np.nanstd(numeric, axis=0))

    _, product = np.unique(table["ProductCD"].to_numpy(dtype=str), return_inverse=True)
    order = np.lexsort((table["TransactionDT"].to_numpy(), product))  # by product, then by time
    pairs = []
    for step in range(1, int(params["neighbours"]) + 1):
        earlier, later = order[:-step], order[step:]
        alike = product[earlier] == product[later]
        pairs.append(np.stack([earlier[alike], later[alike]]))
    edges = _both_directions(np.concatenate(pairs, axis=1), len(table))
    return _graph(x, edges, table["isFraud"].to_numpy(), 2, product)


def tu(folder: Path, params: dict[str, Any]) -> Graph:
    """Read a dataset of TU Dortmund (Morris et al., 2020) by PyG's reader: many graphs, with a class or numbers each.

    Features are the nodes' attributes (``attributes``; null: only without labels) and labels as one-hot columns. Without any,
    they are the in-degree as one-hot columns, up to ``degrees`` (null: the largest). Edges have their attributes and labels
    likewise.
    """
    from torch_geometric.datasets import TUDataset

    from fedgraph_flwr.data.pyg import from_list

    name = str(params["name"])
    dataset, file = TUDataset(str(folder), name, use_node_attr=True, use_edge_attr=True), f"{name}_graph_indicator.txt"
    path = folder / name / "raw" / file
    of = np.loadtxt(path, dtype=np.int64, ndmin=1)
    if (falls := np.flatnonzero(np.diff(of) < 0)).size:
        line = int(falls[0]) + 2
        raise FedGraphError(
            f"{path}, line {line}: graph {of[line - 1]} after graph {of[line - 2]}, expected graph numbers in ascending order:"
            " fetch the dataset again"
        )
    graphs = list(dataset)
    for data in graphs:
        data.x = torch.zeros(data.num_nodes, 0) if data.x is None else data.x
    graph = from_list(graphs, name)
    reads = params["attributes"] if params["attributes"] is not None else not dataset.num_node_labels
    graph.x = graph.x[:, 0 if reads else dataset.num_node_attributes :]
    if not graph.num_features:
        degree = torch.bincount(graph.edge_index[1], minlength=graph.num_nodes)
        most = int(degree.max()) if params["degrees"] is None else int(params["degrees"])
        graph.x = torch.eye(most + 1)[degree.clamp(max=most)]
    return graph

"""Readers of whole collections: PyG's dataset classes (``dataset=pyg``), and node datasets of OGB (``dataset=ogb``).

Both download into their folder under the data root. Without a network, the error lists the files to put there.
"""

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.graph import Graph, unsplit
from fedgraph_flwr.data.hetero import HeteroGraph
from fedgraph_flwr.data.raw import table
from fedgraph_flwr.errors import FedGraphError, check_names, first_line

OGB = {
    "ogbn-arxiv": ("arxiv", "time", "81 MB"),
    "ogbn-products": ("products", "sales_ranking", "1.4 GB"),
}
"""Node datasets of OGB with features and one label per node: the archive's name, its split, and its size."""

OGB_FILES = ("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz")


def pyg(folder: Path, params: dict[str, Any]) -> Graph | HeteroGraph:
    """Read the one graph of a class of ``torch_geometric.datasets``, with its masks, or its many graphs with one answer each.

    Integers as features of many graphs are categories, such as kinds of atoms: each column becomes one-hot columns.

    Args:
        folder: root of the class; it downloads into ``raw/`` and writes ``processed/``.
        params: ``name``, the class; ``part``, its argument ``name``; ``target``, the labelled node type of a ``HeteroData``.

    Raises:
        FedGraphError: an unknown class, one that needs a ``part``, a failed download, or several graphs that `from_list` refuses.
    """
    import torch_geometric.datasets as known

    from fedgraph_flwr.data.pyg import from_data, from_hetero_data, from_list, labelled_type

    name, part = str(params["name"]), params.get("part")
    check_names([name], known.__all__, "dataset.name", "dataset=pyg")
    base: Any = getattr(known, name)
    where = f"dataset=pyg dataset.name={name}"
    _check_arguments(base, part, where)

    class Fetched(base):
        """The class, with a download that says which files it could not fetch."""

        def download(self) -> None:
            try:
                super().download()
            except Exception as error:  # of any library
                files = self.raw_file_names
                raise FedGraphError(
                    f"dataset=pyg dataset.name={name} cannot be downloaded ({type(error).__name__}: {first_line(error)}): put"
                    f" {files if isinstance(files, str) else ', '.join(files)} into {self.raw_dir}, from"
                    f" {getattr(self, 'url', None) or 'the place that PyG documents'}, or set FEDGRAPH_DATA to another root"
                ) from error

    Fetched.__name__ = name  # PyG names folders after some classes
    with _no_empty_folders(folder):
        dataset = Fetched(str(folder), **({"name": part} if part is not None else {}))
    data = dataset[0]
    if len(dataset) > 1:
        graph = from_list(list(dataset), where)
        for key in ("x", "edge_attr"):
            if key in data and not data[key].is_floating_point():
                setattr(graph, key, _one_hot(getattr(graph, key)))
        return graph
    if hasattr(data, "node_types"):
        target = labelled_type(data, where, "dataset.target", str(params.get("target") or ""))
        return from_hetero_data(data, where, target)
    if getattr(data, "y", None) is not None and data.y.dim() == 2 and data.y.size(1) == 1:
        data.y = data.y.view(-1)
    return from_data(data, where)


def _one_hot(places: Tensor) -> Tensor:
    """Return integers from 0 on [N, K] as float32 one-hot columns, one column of integers after the other."""
    return torch.cat([torch.eye(int(column.max()) + 1)[column.long()] for column in places.T], dim=1)


def _check_arguments(base: Any, part: Any, where: str) -> None:
    """Require that a root folder, and a name if the class takes one, is all that a class needs."""
    arguments = inspect.signature(base.__init__).parameters
    required = {k: about for k, about in arguments.items() if about.default is about.empty}
    needed = [key for key, about in required.items() if about.kind is about.POSITIONAL_OR_KEYWORD]
    if part is None and "name" in needed:
        raise FedGraphError(f"{where}: the class needs a name: pass dataset.part=NAME")
    if part is not None and "name" not in arguments:
        raise FedGraphError(f"{where} dataset.part={part}: the class has no argument name: leave dataset.part out")
    if more := [key for key in needed if key not in ("self", "root", "name")]:
        raise FedGraphError(f"{where}: the class needs {', '.join(more)}: create it by dataset.source=MODULE:FUNCTION")


def ogb(folder: Path, params: dict[str, Any]) -> Graph:
    """Read a node dataset of `OGB` from its CSV files, with its split; they are downloaded if missing.

    Raises:
        FedGraphError: another dataset, or a failed download.
    """
    name = str(params["name"])
    check_names([name], OGB, "dataset.name", "dataset=ogb has those with features and one label per node")
    archive, scheme, size = OGB[name]
    raw, split = folder / archive / "raw", folder / archive / "split" / scheme
    if not all((raw / file).is_file() for file in OGB_FILES):
        with _no_empty_folders(folder):
            _fetch(name, f"http://snap.stanford.edu/ogb/data/nodeproppred/{archive}.zip", size, folder, raw)
    y = table(raw / "node-label.csv.gz", np.int64)[:, 0]
    masks = unsplit(len(y))
    for mask, file in zip(masks.values(), ("train", "valid", "test"), strict=True):
        mask[torch.from_numpy(table(split / f"{file}.csv.gz", np.int64)[:, 0])] = True
    return Graph(
        x=torch.from_numpy(table(raw / "node-feat.csv.gz", np.float32)),
        edge_index=torch.from_numpy(np.ascontiguousarray(table(raw / "edge.csv.gz", np.int64).T)),
        y=torch.from_numpy(y),
        num_classes=int(y.max()) + 1,
        **masks,
    )


@contextlib.contextmanager
def _no_empty_folders(folder: Path) -> Iterator[None]:
    """Remove the empty folders that a failed download leaves in a folder, and it and its parent if they are empty."""
    try:
        yield
    except FedGraphError:
        inside = sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True)
        for path in (*inside, folder, folder.parent):
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def _fetch(name: str, url: str, size: str, folder: Path, raw: Path) -> None:
    import sys

    from torch_geometric.data import download_url, extract_zip

    print(f"downloading {size} from {url} into {folder}", file=sys.stderr)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        extract_zip(path := download_url(url, str(folder)), str(folder))
        Path(path).unlink()
    except Exception as error:  # of any library
        raise FedGraphError(
            f"dataset '{name}' ({size}) cannot be downloaded ({type(error).__name__}: {first_line(error)}): extract {url} in"
            f" {folder}, so that {raw} has {', '.join(OGB_FILES)}, or set FEDGRAPH_DATA to another root"
        ) from error

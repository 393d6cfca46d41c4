"""Knowledge graphs with a published split, as FB15k-237 and WN18RR.

Each line of ``train.txt``, ``valid.txt`` and ``test.txt`` has head, relation and tail, separated by tabs.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.data.graph import Graph, pack_words, unsplit
from fedgraph_flwr.errors import FedGraphError

FILES = ("train.txt", "valid.txt", "test.txt")

CLASSES = {"WN18RR": "WordNet18RR", "FB15k-237": "FB15k_237"}
"""PyG's classes, which download the files."""


def read(folder: Path, params: dict[str, Any]) -> Graph:
    """Read a knowledge graph; missing files are downloaded through PyG.

    Entities are numbered as they first appear, and have one constant feature. Relations are numbered by their names.

    Args:
        folder: where the folder of the dataset is.
        params: the dataset's name.

    Raises:
        FedGraphError: a line that is not a triple, or no triple at all.
    """
    import pandas as pd

    name = str(params["name"])
    files = [folder / name / "raw" / file for file in FILES]
    if not all(file.is_file() for file in files):
        _download(name, folder / name)
    parts = [_triples(file) for file in files]
    rows = np.concatenate(parts)
    if not len(rows):
        raise FedGraphError(f"{files[0].parent}: the files hold no triple: fetch them again")
    places, words = pd.factorize(rows[:, [0, 2]].ravel())
    relation = np.unique(rows[:, 1].astype(str), return_inverse=True)[1]
    stage = np.repeat(np.arange(3, dtype=np.int8), [len(part) for part in parts])
    return Graph(
        x=torch.ones(len(words), 1, dtype=torch.float32),
        edge_index=torch.from_numpy(np.ascontiguousarray(places.reshape(-1, 2).T)),
        y=torch.full((len(words),), -1),
        **unsplit(len(words)),
        num_classes=1,
        ids=pack_words(words.astype(str)),
        edge_y=torch.from_numpy(np.ascontiguousarray(relation)),
        edge_split=torch.from_numpy(stage),
        num_edge_classes=int(relation.max()) + 1,
    )


def _download(name: str, folder: Path) -> None:
    import torch_geometric.datasets

    if name not in CLASSES:
        raise LookupError(f"only {', '.join(CLASSES)} can be downloaded")
    getattr(torch_geometric.datasets, CLASSES[name])(str(folder))


def _triples(path: Path) -> np.ndarray:
    """Return the heads, relations and tails of a file [P, 3]."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    for place, row in enumerate(rows, 1):
        if len(row) != 3 or not all(map(str.strip, row)):
            shape = "'HEAD<tab>RELATION<tab>TAIL'"
            raise FedGraphError(f"{path}, line {place}: expected {shape}, got '{lines[place - 1][:80]}'")
    return np.array(rows, dtype=object).reshape(-1, 3)

"""Knowledge graphs with a published split: one triple per line of ``train.txt``, ``valid.txt`` and ``test.txt``.

Two formats exist. Files of names hold head, relation and tail, separated by tabs, as FB15k-237 and WN18RR have them. Files of
numbers start with their number of triples and hold head, tail and relation, as WN18 in the form of OpenKE.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.data.graph import Graph, pack_words, unsplit
from fedgraph_flwr.errors import FedGraphError

FILES = ("train.txt", "valid.txt", "test.txt")

CLASSES = {"WN18": "WordNet18", "WN18RR": "WordNet18RR", "FB15k-237": "FB15k_237"}
"""PyG's classes, which download the files."""


def read(folder: Path, params: dict[str, Any]) -> Graph:
    """Read a knowledge graph; missing files are downloaded through PyG.

    Entities are numbered as they first appear, and have one constant feature. Relations are numbered by their names. In files
    of numbers, both keep their numbers.

    Args:
        folder: where the folder of the dataset is.
        params: the dataset's name.

    Raises:
        FedGraphError: a line that is not a triple, or files of different formats.
    """
    name = str(params["name"])
    files = [folder / name / "raw" / file for file in FILES]
    if not all(file.is_file() for file in files):
        _download(name, folder / name)
    found = [_lines(file) for file in files]
    if len({numbers for _, numbers in found}) > 1:
        raise FedGraphError(f"{files[0].parent}: only some of {', '.join(FILES)} hold numbers: use files of one source")
    numbers = found[0][1]
    rows = np.concatenate([rows for rows, _ in found])
    if not len(rows):
        raise FedGraphError(f"{files[0].parent}: the files hold no triple: fetch them again")
    if numbers:
        ends, relation = rows[:, :2].T.astype(np.int64), rows[:, 2].astype(np.int64)
        count = int(ends.max()) + 1
        words = np.arange(count).astype(str)
    else:
        words, places = _by_appearance(rows[:, [0, 2]].ravel())
        ends, count = places.reshape(-1, 2).T, len(words)
        relation = np.unique(rows[:, 1], return_inverse=True)[1]
    stage = np.repeat(np.arange(3, dtype=np.int8), [len(rows) for rows, _ in found])
    return Graph(
        x=torch.ones(count, 1, dtype=torch.float32),
        edge_index=torch.from_numpy(np.ascontiguousarray(ends)),
        y=torch.full((count,), -1),
        **unsplit(count),
        num_classes=1,
        ids=pack_words(words),
        edge_y=torch.from_numpy(np.ascontiguousarray(relation)),
        edge_split=torch.from_numpy(stage),
        num_edge_classes=int(relation.max()) + 1,
    )


def _download(name: str, folder: Path) -> None:
    import torch_geometric.datasets

    if name not in CLASSES:
        raise LookupError(f"only {', '.join(CLASSES)} can be downloaded")
    getattr(torch_geometric.datasets, CLASSES[name])(str(folder))


def _lines(path: Path) -> tuple[np.ndarray, bool]:
    """Return the triples of a file [P, 3], in its order of columns, and whether it is a file of numbers."""
    lines = path.read_text(encoding="utf-8").splitlines()
    numbers = bool(lines) and lines[0].strip().isdecimal()
    start = 1 if numbers else 0
    rows = [line.split() if numbers else line.split("\t") for line in lines[start:]]
    for place, row in enumerate(rows, start + 1):
        if len(row) != 3 or not all(_is_number(word) if numbers else word.strip() for word in row):
            shape = "'HEAD TAIL RELATION' in numbers" if numbers else "'HEAD<tab>RELATION<tab>TAIL'"
            raise FedGraphError(f"{path}, line {place}: expected {shape}, got '{lines[place - 1][:80]}'")
    if numbers and len(rows) != int(lines[0]):
        raise FedGraphError(f"{path} announces {lines[0].strip()} triples and holds {len(rows)}: fetch the file again")
    return np.array(rows, dtype=object).reshape(-1, 3), numbers


def _is_number(word: str) -> bool:
    return word.isdecimal() and int(word) < 2**31


def _by_appearance(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct names in the order in which they first appear, and the place of each name among them."""
    import pandas as pd

    places, found = pd.factorize(words)
    return np.asarray(found).astype(str), places.astype(np.int64)

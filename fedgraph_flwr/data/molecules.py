"""MoleculeNet (Wu et al., Chemical Science 2018): tables with a SMILES string and one or more labels or targets per molecule.

A molecule is a graph of its atoms, without hydrogens, and of its bonds in both directions. Features are those of the Open Graph
Benchmark (Hu et al., NeurIPS 2020) as PyG reads them, each as one-hot columns: of an atom its number, chirality, degree, charge,
hydrogens, radical electrons, hybridisation, aromaticity and ring membership; for a bond, its type, stereo configuration and
conjugation.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.many_graphs import from_graphs
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.logs import log

ORIGIN = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets"


@dataclass(frozen=True)
class Table:
    """A table of MoleculeNet.

    Attributes:
        file: its name.
        smiles: column of the SMILES string.
        targets: column of the labels or targets: a place, or the first and the end of several.
        numbers: whether they are numbers; else 0 and 1.
    """

    file: str
    smiles: int
    targets: int | tuple[int, int]
    numbers: bool = False


TABLES = {
    "ESOL": Table("delaney-processed.csv", -1, -2, numbers=True),
    "FreeSolv": Table("SAMPL.csv", 1, 2, numbers=True),
    "Lipo": Table("Lipophilicity.csv", 2, 1, numbers=True),
    "HIV": Table("HIV.csv", 0, -1),
    "BACE": Table("bace.csv", 0, 2),
    "BBBP": Table("BBBP.csv", -1, -2),
    "Tox21": Table("tox21.csv", -1, (0, 12)),
    "ToxCast": Table("toxcast_data.csv", 0, (1, 618)),
    "SIDER": Table("sider.csv", 0, (1, 28)),
    "ClinTox": Table("clintox.csv", 0, (1, 3)),
}

FILES = {name: (table.file,) for name, table in TABLES.items()}
"""Names of the files by dataset."""


def _answers(rows: Any, table: Table, path: Path) -> torch.Tensor:
    """Return the columns to predict, float32 [rows, T].

    Raises:
        FedGraphError: the file has other columns, or a label that is not 0, 1 or empty.
    """
    import pandas as pd

    low, high = table.targets if isinstance(table.targets, tuple) else (table.targets, table.targets + 1)
    targets = rows.iloc[:, low : high or None]
    if (
        rows.shape[1] < 2
        or targets.shape[1] != high - low
        or not all(map(pd.api.types.is_numeric_dtype, targets.dtypes))
    ):
        raise FedGraphError(
            f"{path} has the columns {', '.join(map(str, rows.columns))[:200]}, expected those of MoleculeNet's"
            f" {table.file}: fetch the file again"
        )
    y = torch.from_numpy(targets.to_numpy(dtype=np.float32, copy=True))
    if not table.numbers and not bool(((y == 0) | (y == 1) | y.isnan()).all()):
        raise FedGraphError(f"{path} has a label that is not 0, 1 or empty: fetch the file again")
    return y


def read(folder: Path, params: dict[str, Any]) -> Graph:
    """Read a table of molecules; a missing one is downloaded.

    Strings that do not describe a molecule are left out, with a warning.

    One column of 0 and 1 becomes labels, several become targets, as numbers do. Masks hold the scaffold split.

    Args:
        folder: where the folder of the dataset is.
        params: the dataset's name.

    Raises:
        FedGraphError: rdkit is missing, or the file has other columns.
    """
    import pandas as pd

    try:
        from rdkit import RDLogger
    except ImportError as error:
        raise FedGraphError(
            "dataset=moleculenet needs rdkit to read SMILES strings: pip install 'fedgraph-flwr[molecules]'", "package"
        ) from error
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]
    name = str(params["name"])
    table, path = TABLES[name], folder / name / "raw" / TABLES[name].file
    if not path.is_file():
        _download(path, packed=isinstance(table.targets, tuple))
    rows = pd.read_csv(path)
    y = _answers(rows, table, path)
    texts = [str(smiles) for smiles in rows.iloc[:, table.smiles]]
    graphs = [_graph(text) for text in texts]
    kept = [place for place, graph in enumerate(graphs) if graph[0].size(0)]
    if lost := len(graphs) - len(kept):
        log(WARNING, "%s: %d of %d SMILES strings are no molecules and are left out", name, lost, len(graphs))
    if not kept:
        raise FedGraphError(f"{path} has no SMILES string of a molecule in column {table.smiles}: fetch the file again")
    y = y[kept]
    single = y.size(1) == 1 and not table.numbers
    more: dict[str, Any] = {"y": y[:, 0].nan_to_num(nan=-1)} if single else {"targets": y}
    return from_graphs(
        [graphs[place][:2] for place in kept],
        edge_attr=[graphs[place][2] for place in kept],
        num_classes=2 if single else 1,
        name=name,
        masks=scaffold_split([texts[place] for place in kept], y),
        **more,
    )


def _download(path: Path, packed: bool) -> None:
    """Download a table; those of several targets are published as ``.csv.gz``."""
    from torch_geometric.data import download_url, extract_gz

    found = download_url(f"{ORIGIN}/{path.name}{'.gz' if packed else ''}", str(path.parent))
    if packed:
        extract_gz(found, str(path.parent))


def _graph(smiles: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return features of atoms [n, F], edges [2, e] and features of bonds [e, D] of a molecule; n is 0 for another string."""
    from torch_geometric.utils.smiles import e_map, from_smiles, x_map

    found = from_smiles(smiles)
    return _one_hot(found.x, list(x_map.values())), found.edge_index, _one_hot(found.edge_attr, list(e_map.values()))


def _one_hot(values: Tensor, accepted: Sequence[Sequence[Any]]) -> Tensor:
    """Return places among the accepted values [n, K] as one-hot columns, one after the other."""
    return torch.cat([torch.eye(len(known))[values[:, k]] for k, known in enumerate(accepted)], dim=1)


def scaffold_split(smiles: Sequence[str], targets: Tensor) -> list[Tensor]:
    """Return masks of training, validation and test molecules, bool [G] each, that share no scaffold (Bemis & Murcko, 1996).

    As MoleculeNet and ogb do, sets of equal scaffold, the largest first, fill 80 % for training, then 10 % for validation.
    Molecules without a label or target are in no mask.

    Args:
        smiles: a string per molecule.
        targets: labels or targets [G, T], NaN where unknown.
    """
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

    alike: dict[str, list[int]] = defaultdict(list)
    for place, text in enumerate(smiles):
        alike[MurckoScaffoldSmiles(smiles=text, includeChirality=True)].append(place)
    stage, used = torch.full((len(smiles),), 2), [0, 0]
    ends = (0.8 * len(smiles), 0.9 * len(smiles))
    for places in sorted(alike.values(), key=lambda places: (len(places), places[0]), reverse=True):
        if used[0] + len(places) <= ends[0]:
            stage[places], used[0] = 0, used[0] + len(places)
        elif sum(used) + len(places) <= ends[1]:
            stage[places], used[1] = 1, used[1] + len(places)
    known = ~targets.isnan().all(1)
    return [(stage == number) & known for number in range(3)]

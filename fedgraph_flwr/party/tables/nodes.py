"""Node tables: ids, labels, numbers to predict, splits and clients. Rows are counted from 1, after the header."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.errors import FedGraphError, unknown
from fedgraph_flwr.party.tables.columns import AS_FOUND, MAX_TEXT, SPLITS, Treatment, as_words, first_row, natural


class Ids:
    """Index of the nodes of one table or graph: id of any type → position 0..N-1."""

    def __init__(self, texts: np.ndarray, where: str):
        """Build the index from ids [N].

        Raises:
            FedGraphError: an id is repeated.
        """
        import pandas as pd

        self.index = pd.Index(texts)
        if not self.index.is_unique:
            second = int(self.index.duplicated().argmax())
            first = int((texts == texts[second]).argmax())
            raise FedGraphError(
                f"{where}: id '{texts[second]}' is repeated in rows {first + 1} and {second + 1}; each node needs its own"
            )
        self.where = where

    @classmethod
    def of(cls, table: Any, column: str, where: str) -> "Ids":
        """Read the ids of a table.

        Raises:
            FedGraphError: an id is missing or repeated.
        """
        read = column_of(table, column, where, "id")
        if read.dtype.kind not in "biuf" and (row := first_row((read.astype(str).str.len() > MAX_TEXT).to_numpy())):
            raise FedGraphError(f"{where}: the id of row {row} has more than {MAX_TEXT} characters: shorten it")
        texts = as_words(read)
        if row := first_row(texts == ""):
            raise FedGraphError(f"{where}: row {row} has no id in column '{column}'; every node needs one")
        return cls(texts, where)

    def positions(self, table: Any, column: str, where: str, first: int = 0) -> np.ndarray:
        """Return the positions [E] of the nodes named in a column of another table, whose rows count from ``first``.

        Raises:
            FedGraphError: an id is unknown.
        """
        import pandas as pd

        codes, distinct = pd.factorize(column_of(table, column, where, "end of edges"))  # -1 where missing
        texts = np.append(as_words(pd.Series(distinct)), "")
        found = self.index.get_indexer(texts)[codes]
        if row := first_row(found < 0):
            raise FedGraphError(
                f"{where}: row {first + row} names '{texts[codes[row - 1]]}' in column '{column}', which is not an id of"
                f" {self.where}: add the node, or remove the row"
            )
        return found.astype(np.int64)


def label_codes(
    table: Any, column: str, where: str, classes: Sequence[str] = (), treatment: Treatment = AS_FOUND
) -> tuple[Tensor, list[str]]:
    """Return labels as numbers, int64 [N] with -1 where empty or, in data to predict, not in ``classes``; and C class names.

    Raises:
        FedGraphError: a label is not in ``classes``, and the data are not to be predicted.
    """
    texts = np.char.strip(as_words(column_of(table, column, where, "label")))
    names = list(classes) or sorted(set(texts) - {""}, key=natural)
    code = {"": -1} | {name: number for number, name in enumerate(names)}
    other = ~np.isin(texts, list(code))
    if row := first_row(other):
        if treatment.labelled:
            raise FedGraphError(f"{where}: row {row} has label '{texts[row - 1]}', expected one of: {', '.join(names)}")
        treatment.warn(
            f"{where}: {int(other.sum())} rows have a label that the model does not know, such as '{texts[row - 1]}' in row"
            f" {row}: they are predicted as one of {', '.join(names)}"
        )
    distinct, inverse = np.unique(texts, return_inverse=True)
    return torch.from_numpy(np.array([code.get(str(word), -1) for word in distinct], dtype=np.int64)[inverse]), names


def target_values(table: Any, names: Sequence[str], where: str) -> Tensor:
    """Return numbers to predict, float32 [N, T]; NaN for an empty cell. Without columns: [0, 0].

    Raises:
        FedGraphError: a column is missing or named twice, or a value is not a number.
    """
    import pandas as pd

    if len(set(names)) < len(names):
        raise FedGraphError(f"--predict-columns names '{max(names, key=list(names).count)}' twice")
    found = []
    for name in names:
        column = column_of(table, name, where, "targets")
        texts = column.astype("string").str.strip()
        values = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        values = np.where(np.abs(values) <= np.finfo(np.float32).max, values, np.nan)
        filled = ~(texts.isna() | texts.str.lower().isin(["", "nan", "na", "null"])).to_numpy(dtype=bool)
        if (wrong := np.flatnonzero(np.isnan(values) & filled)).size:
            raise FedGraphError(
                f"{where} row {wrong[0] + 1}: '{column.iloc[wrong[0]]}' in column '{name}' is not a number of at most"
                f" {np.finfo(np.float32).max:.2g}: expected numbers to predict, or empty cells where they are unknown"
            )
        found.append(values)
    return torch.from_numpy(np.stack(found, axis=1).astype(np.float32)) if found else torch.zeros(0, 0)


def agreed_targets(names: Sequence[str], treatment: Treatment) -> Tensor:
    """Return mean and standard deviation of targets by the schema that parties share, float64 [2, T]; [0, 0] without one.

    Raises:
        FedGraphError: the schema has other targets.
    """
    agreed = treatment.schema.targets if treatment.schema else {}
    if not agreed:
        return torch.zeros(0, 0, dtype=torch.float64)
    if list(agreed) != list(names):
        raise FedGraphError(
            f"{treatment.where} has the targets {', '.join(agreed)}, got {', '.join(names) or 'none'}: pass --predict-columns"
            f" {','.join(agreed)}"
        )
    return torch.tensor([*agreed.values()], dtype=torch.float64).T.contiguous()


def split_masks(table: Any, column: str, where: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return masks of training, validation and test nodes, each bool [N]; all False without a split column.

    Raises:
        FedGraphError: a value is not train, val, test or empty.
    """
    part = np.full(len(table), -1)
    if column:
        texts = np.char.strip(np.char.lower(as_words(column_of(table, column, where, "split"))))
        if row := first_row(~np.isin(texts, ["", *SPLITS])):
            raise FedGraphError(
                f"{where}: row {row} has '{texts[row - 1]}' in column '{column}', expected train, val, test or empty"
            )
        for word, number in SPLITS.items():
            part[texts == word] = number
    train, val, test = (torch.from_numpy(part == number) for number in range(3))
    return train, val, test


def group_codes(table: Any, column: str, where: str) -> Tensor:
    """Return each node's client, 0..M-1 in sorted order of the column's values, int64 [N]; empty without a column."""
    if not column:
        return torch.zeros(0, dtype=torch.int64)
    texts = np.char.strip(as_words(column_of(table, column, where, "client")))
    if row := first_row(texts == ""):
        raise FedGraphError(f"{where}: row {row} has no client in column '{column}': assign every node to a client")
    distinct, inverse = np.unique(texts, return_inverse=True)
    rank = {name: number for number, name in enumerate(sorted(map(str, distinct), key=natural))}
    return torch.from_numpy(np.array([rank[str(name)] for name in distinct], dtype=np.int64)[inverse])


def column_of(table: Any, name: str, where: str, what: str) -> Any:
    """Return a column of a table.

    Raises:
        FedGraphError: the table has no such column; ``what`` says what it is for.
    """
    if name not in table.columns:
        option = _OPTIONS.get(what, f"--{what.replace(' ', '-')}-column")
        raise FedGraphError(f"{unknown(f'{what} column', name, map(str, table.columns), where)}; pass {option}")
    return table[name]


_OPTIONS = {"end of edges": "--source-column and --target-column", "targets": "--predict-columns"}
_OPTIONS |= {"party": "--party-columns", "match": "--match-columns"}


def agreed_classes(given: Sequence[str], treatment: Treatment) -> Sequence[str]:
    """Return the classes in label order: the schema's if there is one, else those given.

    Raises:
        FedGraphError: the given classes differ from the schema's.
    """
    if treatment.schema is None:
        return given
    classes = treatment.schema.classes_in_order(given, treatment.where)
    if given and tuple(given) != classes:
        treatment.say(f"classes reordered as in {treatment.where}: {', '.join(classes)}")
    return classes

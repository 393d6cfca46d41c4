"""Node tables: ids, labels, numbers to predict, splits and clients. Rows are counted from 1, after the header."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.graph import MASKS
from fedgraph_flwr.data.preprocess import MAX_TEXT, floats
from fedgraph_flwr.errors import FedGraphError, sanitize, unknown
from fedgraph_flwr.party.tables.columns import AS_FOUND, SPLITS, Treatment, as_words, first_row, natural
from fedgraph_flwr.party.tables.reading import NESTED


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
            rows = f"rows {first + 1} and {second + 1}"
            raise FedGraphError(f"{where}: id '{texts[second]}' is repeated in {rows}; each node needs its own")
        self.where = where

    @classmethod
    def of(cls, table: Any, column: str, where: str) -> "Ids":
        """Read the ids of a table.

        Raises:
            FedGraphError: an id is missing or repeated.
        """
        read = column_of(table, column, where, "id")
        if read.dtype.kind not in "biuf":
            check_rows(read.astype(str).str.len() > MAX_TEXT, read, where, f"expected at most {MAX_TEXT} characters")
        texts = as_words(read)
        check_rows(texts == "", read, where, "expected an id in each row")
        return cls(texts, where)

    def _fix(self, unknown: Any) -> str:
        """Return what to do about an unknown id; another may differ from it only in spaces, case or leading zeros."""
        first, *plain = [word.strip().casefold().lstrip("0") for word in [*map(str, unknown), *self.index]]
        if first not in plain:
            return ": add the node, or remove the row"
        return f", but '{sanitize(self.index[plain.index(first)], 40)}' is: write both alike"

    def positions(self, table: Any, column: str, where: str, first: int = 0) -> np.ndarray:
        """Return the positions [E] of the nodes named in a column of another table, whose rows count from ``first``.

        Raises:
            FedGraphError: an id is unknown.
        """
        import pandas as pd

        read = column_of(table, column, where, "end of edges")
        codes, distinct = pd.factorize(read)  # -1 where missing
        places = self.index.get_indexer(np.append(as_words(pd.Series(distinct)), ""))[codes]
        if (lost := places < 0).any():
            check_rows(lost, read, where, f"which is not an id of {self.where}{self._fix(read[lost][:1])}", first)
        return places.astype(np.int64)


def label_codes(
    table: Any, column: str, where: str, classes: Sequence[str] = (), treatment: Treatment = AS_FOUND
) -> tuple[Tensor, list[str]]:
    """Return labels as numbers, int64 [N] with -1 where empty or, in data to predict, not in ``classes``; and C class names.

    Raises:
        FedGraphError: a label is not in ``classes``, and the data are not to be predicted.
    """
    import pandas as pd

    read = column_of(table, column, where, "label")
    texts = np.char.strip(as_words(read))
    names = list(classes) or sorted(set(texts) - {""}, key=natural)
    codes = pd.Index(names).get_indexer(texts)
    other = (codes < 0) & (texts != "")
    if treatment.labelled:
        check_rows(other, read, where, f"expected one of: {', '.join(names)}")
    elif row := first_row(other):
        treatment.warn(
            f"{where}: {int(other.sum())} rows have a label that the model does not know, such as '{texts[row - 1]}' in row"
            f" {row}: they are predicted as one of {', '.join(names)}"
        )
    return torch.from_numpy(codes.astype(np.int64)), names


def target_values(table: Any, names: Sequence[str], where: str) -> Tensor:
    """Return numbers to predict, float32 [N, T]; NaN for an empty cell. Without columns: [0, 0].

    Raises:
        FedGraphError: a column is missing or named twice, or a value is not a number.
    """
    if len(set(names)) < len(names):
        raise FedGraphError(f"--predict-columns names '{max(names, key=list(names).count)}' twice")
    targets = []
    for name in names:
        column = column_of(table, name, where, "targets")
        texts = column.astype("string").str.strip()
        values = floats(texts)
        values = np.where(np.abs(values) <= np.finfo(np.float32).max, values, np.nan)
        filled = ~(texts.isna() | texts.str.lower().isin(["", "nan", "na", "null"])).to_numpy(dtype=bool)
        expected = f"expected a number of at most {np.finfo(np.float32).max:.2g}, or an empty cell where it is unknown"
        check_rows(np.isnan(values) & filled, column, where, expected)
        targets.append(values)
    return torch.from_numpy(np.stack(targets, axis=1).astype(np.float32)) if targets else torch.zeros(0, 0)


def agreed_targets(names: Sequence[str], treatment: Treatment) -> Tensor:
    """Return mean and standard deviation of targets by the schema that parties share, float64 [2, T]; [0, 0] without one.

    Raises:
        FedGraphError: the schema has other targets.
    """
    agreed = treatment.agreed.targets
    if not agreed:
        return torch.zeros(0, 0, dtype=torch.float64)
    if list(agreed) != list(names):
        ours, theirs = ", ".join(names) or "none", ",".join(agreed)
        raise FedGraphError(f"{treatment.where} has the targets {theirs}, got {ours}: pass --predict-columns {theirs}")
    return torch.tensor([*agreed.values()], dtype=torch.float64).T.contiguous()


def split_masks(table: Any, column: str, where: str) -> dict[str, Tensor]:
    """Return the masks of training, validation and test nodes by name, each bool [N]; all False without a split column.

    Raises:
        FedGraphError: a value is not train, val, test or empty.
    """
    part = np.full(len(table), -1)
    if column:
        read = column_of(table, column, where, "split")
        texts = np.char.strip(np.char.lower(as_words(read)))
        check_rows(~np.isin(texts, ["", *SPLITS]), read, where, "expected train, val, test or empty")
        for word, number in SPLITS.items():
            part[texts == word] = number
    return {mask: torch.from_numpy(part == number) for number, mask in enumerate(MASKS)}


def group_codes(table: Any, column: str, where: str) -> tuple[Tensor, list[str]]:
    """Return each node's client, int64 [N], and the M values of the column in sorted order; both are empty without a column."""
    if not column:
        return torch.zeros(0, dtype=torch.int64), []
    texts = np.char.strip(as_words(column_of(table, column, where, "client")))
    check_rows(texts == "", table[column], where, "expected the client of the node")
    return label_codes(table, column, where)


def check_rows(wrong: Any, column: Any, where: str, expected: str, before: int = 0) -> None:
    """Check the values of a column of a table.

    Args:
        wrong: mask of the rows that are not accepted [N].
        column: the values, as a pandas column [N].
        where: the file, for errors.
        expected: what is accepted.
        before: number of rows before these.

    Raises:
        FedGraphError: a row is wrong; names the first one.
    """
    if row := first_row(np.asarray(wrong)):
        value = sanitize(as_words(column.iloc[row - 1 : row])[0], 40)
        raise FedGraphError(f"{where}: row {before + row} has '{value}' in column '{column.name}', {expected}")


def check_swapped(nodes: Any, edges: Any, columns: tuple[str, str, str], where: tuple[str, str]) -> None:
    """Refuse a table of nodes and one of edges that were given in each other's place.

    Args:
        nodes: what was given as the table of nodes.
        edges: what was given as the table of edges.
        columns: names of the id, the source and the target.
        where: their files.

    Raises:
        FedGraphError: only the first has both ends, and only the second has the id.
    """
    id_column, ends = columns[0], {*columns[1:]}
    if id_column not in nodes and id_column in edges and ends <= {*nodes.columns} and not ends & {*edges.columns}:
        what = f"--nodes {where[0]} has the ends of edges, and --edges {where[1]} the ids of nodes"
        raise FedGraphError(f"{what}: swap the two")


def column_of(table: Any, name: str, where: str, what: str) -> Any:
    """Return a column of a table.

    Raises:
        FedGraphError: the table has no such column; ``what`` says what it is for.
    """
    if name in table.attrs.get(NESTED, ()):
        raise FedGraphError(f"{where}: column '{name}' has lists in its cells, expected one {what} per cell")
    if name not in table.columns:
        option = _OPTIONS.get(what, f"columns.{what.replace(' ', '_')}=NAME")
        place = " to `import`, or set it in the party's file (--party-file)" if option.startswith("columns.") else ""
        guess = ", or let `fedgraph-flwr init-party NODES EDGES` guess the columns" if name in ("id", "source") else ""
        raise FedGraphError(
            f"{unknown(f'{what} column', name, map(str, table.columns), where)}; pass {option}{place}{guess}"
        )
    return table[name]


_OPTIONS = {
    "end of edges": "columns.source=NAME and columns.target=NAME",
    "client": "--client-column",
    "targets": "--predict-columns",
    "party": "party_columns",
    "match": "--match-columns",
}


def agreed_classes(given: Sequence[str], treatment: Treatment, of_edges: bool = False) -> Sequence[str]:
    """Return classes in label order: those of the schema, if there is one and, of edges, it has some; else those given.

    Raises:
        FedGraphError: the given classes differ from the schema's.
    """
    agreed = treatment.agreed.edge_classes if of_edges else treatment.agreed.classes
    if treatment.schema is None or (of_edges and not agreed):
        return given
    if given and set(given) != set(agreed):
        theirs = f"{treatment.where}, {','.join(agreed)}"
        raise FedGraphError(
            f"{'edge_classes' if of_edges else '--classes'} {','.join(given)} differ from those of {theirs}: leave the option out"
        )
    if given and tuple(given) != tuple(agreed):
        treatment.say(f"classes reordered as in {treatment.where}: {', '.join(agreed)}")
    return agreed

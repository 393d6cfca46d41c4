"""Import of a user's graph: node and edge tables, or a saved PyG object, to a dataset or one client's file.

    from_tables(nodes, edges, columns)     CSV or Parquet  ┐
    from_saved(path)                       PyG's Data      ┴→ Graph → save_dataset | client_graph(...).save

Typed nodes and edges: `importing_typed`.

Each helper of `from_tables` (`Ids`, `feature_columns`, `label_codes`, `split_masks`, `edge_ends`, `once`) handles one table, so
that heterogeneous graphs can combine several tables. Rows are counted from 1, after the header.
"""

import copy
import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.config import group_names
from fedgraph_flwr.data.cleaning import check, to_undirected
from fedgraph_flwr.data.edge_columns import COUNTS, log_counts
from fedgraph_flwr.data.graph import ClientGraph, Graph, pack_words
from fedgraph_flwr.data.hetero import HeteroGraph
from fedgraph_flwr.data.many_graphs import check_many
from fedgraph_flwr.data.pyg import from_data, matrix, read_pickled
from fedgraph_flwr.data.root import imported_path
from fedgraph_flwr.data.schema import EDGE, NODE, Column, Schema, TableLayout, stored
from fedgraph_flwr.data.value_formats import date_format, read_dates
from fedgraph_flwr.errors import FedGraphError, unknown
from fedgraph_flwr.party.tables import edge_stream, graph_tables
from fedgraph_flwr.party.tables.columns import (
    AS_FOUND,
    SPLITS,
    Features,
    Treatment,
    as_words,
    features,
    natural,
    warn_unscaled,
)
from fedgraph_flwr.party.tables.parties import PartyRule, Records, divide, linking_of, repeated
from fedgraph_flwr.party.tables.reading import read_columns, read_table


@dataclass(frozen=True)
class Columns:
    """Roles of the columns of the two tables; "" for a missing one.

    Attributes:
        features: names or patterns such as ``x_*``; empty for every other column of the node table.
        edge_features: names or patterns of columns of the edge table; empty for those of the schema, if there is one.
        predict: names of columns of the node table with numbers to predict, separated by commas.
        separator: field separator of a CSV, "" to detect it; likewise ``encoding``.
        party_columns: as in `TableLayout`; likewise ``party_prefix``, ``match_columns`` and ``id_form``.
    """

    id: str = "id"
    label: str = "label"
    features: Sequence[str] = ()
    split: str = ""
    client: str = ""
    source: str = "source"
    target: str = "target"
    time: str = ""
    edge_label: str = ""
    edge_id: str = ""
    graph: str = ""
    predict: str = ""
    windows: str = ""
    separator: str = ""
    encoding: str = ""
    edge_features: Sequence[str] = ()
    party_columns: str = ""
    party_prefix: str = ""
    match_columns: str = ""
    id_form: str = ""

    @classmethod
    def of(cls, layout: TableLayout, features: Sequence[str] = (), edge_features: Sequence[str] = ()) -> "Columns":
        """Return the columns of a layout, with defaults for the others."""
        return cls(features=features, edge_features=edge_features, **layout.to_dict())

    @property
    def layout(self) -> TableLayout:
        """Differences from the defaults, as stored in a schema."""
        values = {f.name: getattr(self, f.name) for f in fields(TableLayout)}
        return TableLayout(**{name: value for name, value in values.items() if value != getattr(_DEFAULTS, name)})

    @property
    def others(self) -> list[str]:
        """Columns of a node table with another role than feature."""
        return [name for name in (self.id, self.label, self.split, self.client, self.graph, *self.targets) if name]

    @property
    def targets(self) -> list[str]:
        """Columns of a node table with numbers to predict."""
        return [name.strip() for name in self.predict.split(",") if name.strip()]

    @property
    def edge_others(self) -> list[str]:
        """Columns of an edge table with another role than feature."""
        parties = [name.strip() for name in self.party_columns.split(",")]
        own = (self.source, self.target, self.time, self.edge_label, self.edge_id, self.graph)
        return [name for name in (*own, *parties) if name]

    @property
    def seconds(self) -> list[int]:
        """Lengths of `windows` in seconds.

        Raises:
            FedGraphError: a length is not a number above 0, or the edges have no times.
        """
        try:
            found = [round(float(word) * 86_400) for word in self.windows.split(",") if word.strip()]
        except (ValueError, OverflowError):
            found = [0]
        if any(not 0 < window < 2**53 for window in found):
            raise FedGraphError(f"--windows must be numbers of days above 0, such as 2,0.5, got '{self.windows}'")
        if found and not self.time:
            raise FedGraphError(f"--windows {self.windows} counts edges by their times: pass --time-column NAME, too")
        return found

    def parties(self, own: str) -> PartyRule | None:
        """Return the rule that names the parties of ends, for the party ``own``; None without one.

        Raises:
            FedGraphError: the rule is incomplete.
        """
        return PartyRule.parse(own, self.party_columns, self.party_prefix, self.match_columns, self.id_form)


_DEFAULTS = Columns()


def check_roles(columns: Columns, kind: str, treatment: Treatment) -> None:
    """Check that no column with another role is a feature of the schema.

    Raises:
        FedGraphError: a column is both.
    """
    agreed = treatment.schema.nodes.get(kind, {}) if treatment.schema else {}
    for role in ("id", "label", "split", "client", "graph"):
        name = getattr(columns, role)
        if name in agreed and agreed[name].kind != "ignored":
            raise FedGraphError(
                f"--{role}-column {name} conflicts with {treatment.where}, which lists '{name}' as a feature"
                f" ({agreed[name].kind}):"
                " choose another column, or edit the schema"
            )


def check_unknown_at_prediction(columns: Columns, nodes: Sequence[str], edges: Sequence[str], where: str) -> None:
    """Refuse labels and targets among the features, which would leak them to the model.

    Raises:
        FedGraphError: names the column and its roles.
    """
    roles = {"--label-column": [columns.label], "--predict-columns": columns.targets}
    twice = [(name, role) for role, names in roles.items() for name in names if name and name in nodes]
    twice += [(columns.edge_label, "--edge-label-column")] if columns.edge_label and columns.edge_label in edges else []
    twice += [
        (name, "--predict-columns") for name in columns.targets if name in (columns.id, columns.label, columns.split)
    ]
    if twice:
        name, role = twice[0]
        raise FedGraphError(
            f"{where}: column '{name}' of {role} also has another role: leave it out of the features, or of {role}"
        )


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


def say_dropped(links: Any, columns: Columns, where: str, treatment: Treatment, why: str) -> None:
    """Report the unused columns of an edge table."""
    if dropped := [str(name) for name in links.columns if name not in columns.edge_others]:
        treatment.say(f"{where}: ignored: {', '.join(dropped)} ({why})")


def edge_feature_columns(links: Any, columns: Columns, where: str, treatment: Treatment, kind: str = EDGE) -> list[str]:
    """Return the columns of a table of one edge type that may become features: those asked for, or the schema's.

    Raises:
        FedGraphError: no column matches a pattern.
    """
    if columns.edge_features or (treatment.schema and treatment.schema.nodes.get(kind)):
        return feature_columns(links, columns.edge_features, columns.edge_others, where)
    say_dropped(links, columns, where, treatment, "--edge-columns NAMES keeps them")
    return []


def from_tables(
    nodes: Path | str,
    edges: Path | str,
    columns: Columns = Columns(),
    *,
    classes: Sequence[str] = (),
    undirected: bool = False,
    treatment: Treatment = AS_FOUND,
    own_party: str = "",
    parallel: bool = False,
    edge_classes: Sequence[str] = (),
    graphs: Path | str | None = None,
) -> Graph:
    """Build a graph from a node table and an edge table.

    Args:
        nodes: CSV or Parquet with one row per node.
        edges: CSV or Parquet with one row per edge.
        columns: roles of the columns. Ids and labels may have any type; an empty label is unknown (y = -1). The split
            column holds train, val, test or an empty cell. The client column becomes `Graph.group`.
        classes: class names in label order; empty for the schema's, else the sorted values that occur.
        undirected: whether each row represents both directions.
        treatment: column options (`columns`) and the schema to follow.
        own_party: this party's name, if edges may name accounts of other parties (`parties`). The result is then a
            `ClientGraph` with foreign records.
        parallel: whether rows that repeat an edge stay separate even without data.
        edge_classes: class names of edges, as ``classes``.
        graphs: with a graph column, table with one row per graph: its label, targets, split and client.

    Raises:
        FedGraphError: a file, column or id is missing, an id is repeated, an edge names an unknown id, a value does not
            match its column's kind, or a label is outside ``classes``. The message names the first row.
    """
    table = read_table(nodes, columns.layout, treatment.say)
    in_chunks = edge_stream.is_big(edges) and not (
        parallel or columns.graph or _reads_edge_data(columns, own_party, treatment)
    )
    links = (read_columns if in_chunks else read_table)(edges, columns.layout, treatment.say)
    where = str(nodes)
    of_graphs: dict[str, Any] = {}
    if columns.graph:
        table, links, place, named = graph_tables.joined(
            table, links, columns, graphs, columns.layout, (where, str(edges))
        )
        of_graphs = {"graph_id": place, "ids": pack_words(named[place])}
    elif graphs is not None:
        raise FedGraphError(f"--graph-table {graphs} needs --graph-column NAME, the column with the graph of each node")
    if (
        (columns.edge_label or columns.targets)
        and columns.label == _DEFAULTS.label
        and columns.label not in table.columns
    ):
        columns = replace(columns, label="")  # labels of edges, or targets, are enough
    check_roles(columns, NODE, treatment)
    ids = Ids(table, columns.id, where)
    names = agreed_classes(classes, treatment)
    y = torch.full((len(table),), -1)
    if columns.label:
        y, names = label_codes(table, columns.label, where, names)
    targets = target_values(table, columns.targets, where)
    stats = agreed_targets(columns.targets, treatment)
    known = (y >= 0) | ~targets.isnan().all(1) if columns.targets else y >= 0
    masks = split_masks(table, columns.split, where)
    undirected = undirected or bool(treatment.schema and treatment.schema.undirected)
    usable = feature_columns(table, columns.features, columns.others, where)
    carried = edge_feature_columns(links, columns, str(edges), treatment)
    check_unknown_at_prediction(columns, usable, carried, where)
    rule = columns.parties(own_party)
    treatment.check_names({NODE: usable, EDGE: [*carried, *(rule.key_columns if rule else ())]})
    found = None
    if rule:
        found = divide(links, (columns.source, columns.target), ids.index, rule, (str(edges), where), treatment)
    joined = edge_data(links, carried, columns, str(edges), treatment, edge_classes)
    edge_index: Any
    if in_chunks:
        names_of_ends = columns.source, columns.target
        for name in names_of_ends:
            _column(links, name, str(edges), "end of edges")
        edge_index = edge_stream.read_edges(edges, columns.layout, names_of_ends, ids, undirected, treatment)
        rows = torch.zeros(0, dtype=torch.int64)
    else:
        ends = found.ends if found else edge_ends(links, columns, str(edges), ids, ids)
        joined = with_counts(joined, columns.seconds, ends, len(table), found)
        edge_index, rows = arranged(
            ends, len(table), undirected, str(edges), treatment, parallel or bool(joined.fields)
        )
    rows = found.own[rows] if found and joined.fields else rows
    made = features(NODE, table, usable, where, treatment)
    if not made.x.size(1):
        raise FedGraphError(f"{where} has no feature column; its other columns: {', '.join(usable) or 'none'}")
    tables = treatment.schema.tables if treatment.schema else columns.layout
    agreed = Schema(
        tuple(names),
        {NODE: made.agreed} | joined.agreed,
        scaling=treatment.settled_scaling(),
        tables=tables,
        undirected=undirected,
        edge_classes=joined.classes,
        targets=treatment.schema.targets if treatment.schema else {},
    )
    graph = Graph(
        x=made.x,
        edge_index=edge_index,
        y=y,
        train_mask=masks[0] & known,
        val_mask=masks[1] & known,
        test_mask=masks[2] & known,
        num_classes=max(len(names), 1),
        group=group_codes(table, columns.client, where),
        schema=stored(agreed, {NODE: made.fitted} | joined.fitted, undirected, columns.layout),
        num_edge_classes=len(joined.classes),
        targets=targets,
        target_stats=stats,
        own_columns={"edges": len(COUNTS) * len(columns.seconds)} if columns.seconds else {},
        **{"ids": pack_words(ids.index.to_numpy())} | of_graphs,
        **{key: values[rows] for key, values in joined.fields.items()},
    )
    if columns.graph:
        try:
            check_many(graph)
        except FedGraphError as error:
            raise FedGraphError(f"{edges}: {error}") from None
    if rule and found:
        graph = with_records(graph, found, rule, joined.fields, undirected)
    return check(graph, where, labelled=bool(columns.label or columns.targets))


def with_records(
    graph: Graph, found: Records, rule: PartyRule, data: Mapping[str, Tensor], undirected: bool
) -> ClientGraph:
    """Return a graph with the foreign records of its edge table.

    Args:
        graph: the party's own graph.
        found: the divided rows.
        rule: how the parties of ends are named.
        data: fields of the table's rows.
        undirected: whether each row represents both directions.
    """
    chosen = torch.arange(found.rows.numel())
    if not data and not rule.key:  # such edges count once
        chosen = torch.from_numpy(~repeated(found, rule.id_form, undirected)).nonzero().view(-1)
    values: dict[str, Any] = {f"foreign_{key}": tensor[found.rows[chosen]] for key, tensor in data.items()}
    return ClientGraph(
        **vars(graph),
        foreign=torch.stack([found.node[chosen], found.party[chosen]]),
        foreign_out=found.outgoing[chosen],
        foreign_id=pack_words(found.ids[chosen.numpy()]),
        foreign_key=pack_words(found.keys[chosen.numpy()]),
        linking=linking_of(rule, found),
        **values,
    )


def _reads_edge_data(columns: Columns, own_party: str, treatment: Treatment) -> bool:
    """Return whether an import reads more of the edge table than its ends."""
    named = (columns.edge_features, columns.time, columns.edge_label, columns.seconds, columns.parties(own_party))
    return any(named) or _edge_columns(treatment)


@dataclass(frozen=True)
class EdgeData:
    """Data of the edges of one table, by row.

    Attributes:
        agreed: columns with the statistics that all parties share, by edge type; empty if no column becomes a feature.
        fitted: the same columns, completed with this party's statistics.
        classes: class names of edges.
        fields: ``edge_attr``, ``edge_time`` and ``edge_y`` of a `Graph`, as far as there are any.
    """

    agreed: dict[str, Mapping[str, Column]]
    fitted: dict[str, Mapping[str, Column]]
    classes: tuple[str, ...]
    fields: dict[str, Any]


def edge_data(
    links: Any,
    names: Sequence[str],
    columns: Columns,
    where: str,
    treatment: Treatment,
    edge_classes: Sequence[str] = (),
) -> EdgeData:
    """Read features, times and labels of the edges of one table.

    Args:
        links: one row per edge.
        names: candidate feature columns.
        columns: roles of the columns.
        where: the file, for errors.
        treatment: column options and schema.
        edge_classes: class names of edges; empty for the schema's, else the sorted values that occur.

    Raises:
        FedGraphError: a value does not match its column's kind, or a time is missing.
    """
    found: dict[str, Any] = {}
    made = features(EDGE, links, names, where, treatment) if names or _edge_columns(treatment) else None
    if made and made.x.size(1):
        found["edge_attr"] = made.x
    if columns.time:
        found["edge_time"] = edge_times(links, columns.time, where, treatment)
    agreed = treatment.schema.edge_classes if treatment.schema else ()
    if edge_classes and agreed and tuple(edge_classes) != agreed:
        raise FedGraphError(
            f"--edge-classes {','.join(edge_classes)} differ from those of {treatment.where}, {','.join(agreed)}: leave the"
            " option out"
        )
    classes: Sequence[str] = agreed or edge_classes
    if columns.edge_label:
        found["edge_y"], classes = label_codes(links, columns.edge_label, where, classes)
    has = made is not None and made.x.size(1) > 0
    return EdgeData(
        {EDGE: made.agreed} if made and has else {}, {EDGE: made.fitted} if made and has else {}, tuple(classes), found
    )


def with_counts(
    joined: EdgeData, windows: Sequence[int], ends: Tensor, num_nodes: int, found: Records | None = None
) -> EdgeData:
    """Return the data of a table's rows with ln(1 + `window_counts`) as further features.

    Args:
        joined: data of the rows, with their times.
        windows: lengths in seconds.
        ends: edges between own nodes [2, E].
        num_nodes: N.
        found: the divided rows, if some name accounts of other parties; they count, too.
    """
    if not windows:
        return joined
    time = joined.fields["edge_time"].numpy()
    both = np.full((2, time.size), -1, dtype=np.int64)
    both[:, found.own.numpy() if found else slice(None)] = ends.numpy()
    if found:
        other = [f"{party}\x1f{name}" for party, name in zip(found.party.tolist(), found.ids, strict=True)]
        code = num_nodes + np.unique(np.array(other, dtype=str), return_inverse=True)[1]
        pair = np.stack([found.node.numpy(), code])
        both[:, found.rows.numpy()] = np.where(found.outgoing.numpy(), pair, pair[::-1])
    kept = np.flatnonzero(both[0] >= 0)
    counts = np.zeros((time.size, len(COUNTS) * len(windows)))
    counts[kept] = log_counts(both[:, kept], time[kept], windows)
    return with_columns(joined, torch.from_numpy(counts))


def with_columns(joined: EdgeData, columns: Tensor) -> EdgeData:
    """Return the data with further features of the rows [E', k]."""
    attr = joined.fields.get("edge_attr", torch.zeros(len(columns), 0))
    return replace(joined, fields=joined.fields | {"edge_attr": torch.cat([attr, columns.to(torch.float32)], dim=1)})


def _edge_columns(treatment: Treatment) -> bool:
    return bool(treatment.schema and treatment.schema.nodes.get(EDGE))


def edge_times(links: Any, column: str, where: str, treatment: Treatment) -> Tensor:
    """Return the times of a table's edges in seconds, int64 [E]: whole numbers unchanged, dates since 1970.

    Raises:
        FedGraphError: a time is missing, or neither a number nor a date.
    """
    import pandas as pd

    read = _column(links, column, where, "time")
    numbers = pd.to_numeric(read, errors="coerce")
    form = treatment.date_formats.get(column, "")
    if form or bool(numbers.isna().any()):
        texts = as_words(read)
        form = form or date_format([str(word) for word in np.unique(texts)], column, where)
        numbers = (read_dates(read, form) - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    if bool(numbers.isna().any()):
        row = int(numbers.isna().to_numpy().argmax())
        raise FedGraphError(
            f"{where}: row {row + 1} has '{read.iloc[row]}' in column '{column}', which is neither a number of seconds nor a"
            f" date: pass --date-format {column}=FORMAT"
        )
    return torch.from_numpy(np.floor(numbers.to_numpy(dtype=np.float64)).astype(np.int64))


def arranged(
    edges: Tensor, num_nodes: int, undirected: bool, where: str, treatment: Treatment, parallel: bool
) -> tuple[Tensor, Tensor]:
    """Return the edges of a table [2, E'] sorted by both ends, and the row of each [E'].

    Edges that carry no data count once (`once`), and their rows are not returned.
    """
    if not parallel:
        distinct = once(edges, num_nodes, undirected, where, treatment)
        return distinct, torch.zeros(distinct.size(1), dtype=torch.int64)
    rows = torch.arange(edges.size(1))
    if undirected:
        proper = (edges[0] != edges[1]).nonzero().view(-1)
        edges, rows = torch.cat([edges, edges[:, proper].flip(0)], dim=1), torch.cat([rows, proper])
    order = (edges[0] * num_nodes + edges[1]).argsort(stable=True)
    return edges[:, order], rows[order]


def once(edges: Tensor, num_nodes: int, undirected: bool, where: str, treatment: Treatment) -> Tensor:
    """Deduplicate the edges [2, E] of a table, add reverse directions if ``undirected``, and report repeated rows."""
    single = edges.sort(dim=0).values if undirected else edges
    distinct = single.unique(dim=1)
    if repeated := edges.size(1) - distinct.size(1):
        both = ", in either direction" if undirected else ""
        treatment.say(
            f"{where}: {repeated} of {edges.size(1)} rows repeat an edge of another row{both}; each edge counts once"
        )
    return to_undirected(edges, num_nodes) if undirected else distinct


def _column(table: Any, name: str, where: str, what: str) -> Any:
    if name not in table.columns:
        raise unknown(f"{what} column", name, map(str, table.columns), where)
    return table[name]


class Ids:
    """Index of one table's nodes: id of any type → position 0..N-1."""

    def __init__(self, table: Any, column: str, where: str):
        """Read the ids from a table.

        Raises:
            FedGraphError: an id is missing or repeated.
        """
        texts = as_words(_column(table, column, where, "id"))
        if (texts == "").any():
            row = int((texts == "").argmax()) + 1
            raise FedGraphError(f"{where}: row {row} has no id in column '{column}'; every node needs one")
        self._keep(texts, where)

    @classmethod
    def of(cls, texts: np.ndarray, where: str) -> "Ids":
        """Build the index from ids [N].

        Raises:
            FedGraphError: an id is repeated.
        """
        found = cls.__new__(cls)
        found._keep(texts, where)
        return found

    def _keep(self, texts: np.ndarray, where: str) -> None:
        import pandas as pd

        self.index = pd.Index(texts)
        if not self.index.is_unique:
            second = int(self.index.duplicated().argmax())
            first = int((texts == texts[second]).argmax())
            raise FedGraphError(
                f"{where}: id '{texts[second]}' is repeated in rows {first + 1} and {second + 1}; each node needs its own"
            )
        self.where = where

    def positions(self, table: Any, column: str, where: str, first: int = 0) -> np.ndarray:
        """Return the positions [E] of the nodes named in a column of another table, whose rows count from ``first``.

        Raises:
            FedGraphError: an id is unknown.
        """
        texts = as_words(_column(table, column, where, "end of edges"))
        found = self.index.get_indexer(texts)
        if (found < 0).any():
            row = int((found < 0).argmax())
            raise FedGraphError(
                f"{where}: row {first + row + 1} names '{texts[row]}' in column '{column}', which is not an id of {self.where}:"
                " add the node, or remove the row"
            )
        return found.astype(np.int64)


def edge_ends(table: Any, columns: Columns, where: str, sources: Ids, targets: Ids) -> Tensor:
    """Return the edges of one table, int64 [2, E], between the nodes of two tables (or one, passed twice)."""
    ends = (sources.positions(table, columns.source, where), targets.positions(table, columns.target, where))
    return torch.from_numpy(np.stack(ends))


def feature_columns(table: Any, wanted: Sequence[str], others: Sequence[str], where: str) -> list[str]:
    """Return the candidate feature columns of a table, in order.

    Args:
        table: one row per node.
        wanted: names or patterns, in order; empty for every column not in ``others``.
        others: columns with another role.
        where: the file, for errors.

    Raises:
        FedGraphError: no column matches a pattern.
    """
    free = [str(name) for name in table.columns if name not in others]
    names: list[str] = [] if wanted else free
    for pattern in wanted:
        fitting = [pattern] if pattern in table.columns else fnmatch.filter(free, pattern)
        if not fitting:
            raise unknown("feature column", pattern, free, where)
        names += [name for name in fitting if name not in names]
    return names


def label_codes(table: Any, column: str, where: str, classes: Sequence[str] = ()) -> tuple[Tensor, list[str]]:
    """Return labels as numbers, int64 [N] with -1 where empty, and the C class names in label order.

    Raises:
        FedGraphError: a label is not in ``classes``.
    """
    texts = as_words(_column(table, column, where, "label"))
    names = list(classes) or sorted(set(texts) - {""}, key=natural)
    code = {"": -1} | {name: number for number, name in enumerate(names)}
    unlisted = sorted(set(texts) - set(code))
    if unlisted:
        row = int(np.isin(texts, unlisted).argmax())
        raise FedGraphError(f"{where}: row {row + 1} has label '{texts[row]}', expected one of: {', '.join(names)}")
    distinct, inverse = np.unique(texts, return_inverse=True)
    return torch.from_numpy(np.array([code[str(word)] for word in distinct], dtype=np.int64)[inverse]), names


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
        column = _column(table, name, where, "targets")
        texts = column.astype("string").str.strip()
        values = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        values = np.where(np.abs(values) <= np.finfo(np.float32).max, values, np.nan)
        filled = ~(texts.isna() | texts.str.lower().isin(["", "nan", "na", "null"])).to_numpy(dtype=bool)
        if (wrong := np.flatnonzero(np.isnan(values) & filled)).size:
            raise FedGraphError(
                f"{where} row {wrong[0] + 1}: '{column.iloc[wrong[0]]}' in column '{name}' is not a number: expected numbers to"
                " predict, or empty cells where they are unknown"
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
        texts = np.char.lower(as_words(_column(table, column, where, "split")))
        wrong = ~np.isin(texts, ["", *SPLITS])
        if wrong.any():
            row = int(wrong.argmax())
            raise FedGraphError(
                f"{where}: row {row + 1} has '{texts[row]}' in column '{column}', expected train, val, test or empty"
            )
        for word, number in SPLITS.items():
            part[texts == word] = number
    train, val, test = (torch.from_numpy(part == number) for number in range(3))
    return train, val, test


def group_codes(table: Any, column: str, where: str) -> Tensor:
    """Return each node's client, 0..M-1 in sorted order of the column's values, int64 [N]; empty without a column."""
    if not column:
        return torch.zeros(0, dtype=torch.int64)
    texts = as_words(_column(table, column, where, "client"))
    if (texts == "").any():
        row = int((texts == "").argmax()) + 1
        raise FedGraphError(f"{where}: row {row} has no client in column '{column}': assign every node to a client")
    distinct, inverse = np.unique(texts, return_inverse=True)
    rank = {name: number for number, name in enumerate(sorted(map(str, distinct), key=natural))}
    return torch.from_numpy(np.array([rank[str(name)] for name in distinct], dtype=np.int64)[inverse])


def read_saved(path: Path | str) -> Any:
    """Read a PyG ``Data`` or ``HeteroData`` from a ``torch.save`` file; only PyG containers and tensors are unpickled.

    Raises:
        FedGraphError: the file is missing or damaged, or holds another object.
    """
    from torch_geometric.data import Data, HeteroData

    saved = read_pickled(path)
    if not isinstance(saved, Data | HeteroData):
        raise FedGraphError(f"{path} holds a {type(saved).__name__}, expected a PyG Data or HeteroData")
    return saved


def from_saved(
    path: Path | str,
    *,
    classes: Sequence[str] = (),
    undirected: bool = False,
    treatment: Treatment = AS_FOUND,
) -> Graph:
    """Build a graph from a saved PyG ``Data`` with ``x``, ``edge_index`` and integer labels ``y``; keep its masks.

    Args:
        path: file written by ``torch.save(data, path)``.
        classes: names of the labels 0..C-1; empty for the schema's, else the numbers.
        undirected: whether each edge represents both directions.
        treatment: options for the columns ``x_0``...; without a ``scaling``, ``x`` is used unchanged.

    Raises:
        FedGraphError: the file is invalid (`read_saved`), a tensor is missing, or the graph is invalid.
    """
    return from_data(
        read_saved(path),
        str(path),
        classes=agreed_classes(classes, treatment),
        undirected=undirected or bool(treatment.schema and treatment.schema.undirected),
        scaling=treatment.settled_scaling("none"),
        encode=partial(saved_features, treatment),
        say=treatment.say,
    )


def saved_features(treatment: Treatment, kind: str, x: Tensor, where: str) -> Features:
    """Return the features of one node type of a saved graph from ``x`` [N, F] or [N]: unchanged, or scaled by column.

    Raises:
        FedGraphError: the columns differ from the schema's, or `features` fails.
    """
    x = matrix(x)
    names = [f"x_{i}" for i in range(x.size(1))]
    if treatment.settled_scaling("none") != "none":
        import pandas as pd

        kinds = dict.fromkeys(names, "number") | dict(treatment.kinds)
        return features(kind, pd.DataFrame(x.numpy(), columns=names), names, where, replace(treatment, kinds=kinds))
    columns = {"x": Column(width=x.size(1))}
    agreed = treatment.schema.nodes.get(kind, {}) if treatment.schema else columns
    if dict(agreed) != columns:
        expected = f"{agreed['x'].width} columns x" if "x" in agreed else f"columns {', '.join(agreed) or 'none'}"
        raise FedGraphError(
            f"{where} has {x.size(1)} columns x, but {treatment.where} has {expected}: save the object with those columns"
        )
    warn_unscaled(x, names, treatment.say)
    return Features(columns, columns, x)


def save_dataset(graph: Graph | HeteroGraph, name: str, overwrite: bool = False) -> Path:
    """Store a graph under the data root, for use as ``dataset=<name>``.

    Raises:
        FedGraphError: the name has a wrong form, belongs to a known dataset, or is taken.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise FedGraphError(f"--name must consist of lower-case letters, digits, - and _, got '{name}'")
    if name in group_names("dataset"):
        raise FedGraphError(f"--name '{name}' is a built-in dataset: choose another name")
    path = imported_path(name)
    if path.exists() and not overwrite:
        raise FedGraphError(f"--name '{name}' is taken ({path}): choose another name, or pass --overwrite")
    named = copy.copy(graph)  # keeps compressed edges
    named.name = name
    named.save(path)
    return path

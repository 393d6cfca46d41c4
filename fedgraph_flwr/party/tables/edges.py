"""Edge tables: ends, features, times and labels of edges. Rows are counted from 1, after the header."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data.cleaning import to_undirected
from fedgraph_flwr.data.edge_columns import log_counts
from fedgraph_flwr.data.features import DAY, WHOLE, Book, Ints, cents_of, edge_columns
from fedgraph_flwr.data.graph import pack_words
from fedgraph_flwr.data.preprocess import FALSE, MAX_SECONDS, TRUE, floats, since_1970, zoned
from fedgraph_flwr.data.pyg import Features
from fedgraph_flwr.data.schema import EDGE, Column
from fedgraph_flwr.data.value_formats import (
    PLAIN,
    SECONDS,
    date_format,
    distinct_numbers,
    read_dates,
    whole_date_format,
)
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.tables.columns import Treatment, Written, as_words, features
from fedgraph_flwr.party.tables.nodes import Ids, agreed_classes, check_rows, column_of, label_codes
from fedgraph_flwr.party.tables.parties import PartyRule, Records, accounts_of, booked_again, divide, normal_ids
from fedgraph_flwr.party.tables.roles import Columns


@dataclass(frozen=True)
class EdgeData:
    """Data of the edges of one table, by row.

    Attributes:
        made: columns that became features; None without any.
        classes: class names of edges.
        fields: ``edge_attr``, ``edge_time`` and ``edge_y`` of a `Graph`, as far as there are any.
        book_fields: ``own_columns``, ``book`` and ``book_ids`` of the graph, as far as there are any.
    """

    made: Features | None
    classes: tuple[str, ...]
    fields: dict[str, Any]
    book_fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TableEdges:
    """Edges of one table.

    Attributes:
        index: sorted by both ends, int64 [2, E'] (or compressed).
        rows: row of each edge [E'], if rows carry data.
        data: data of the rows.
        records: the rows divided by owners of their ends, if some name accounts of other parties.
    """

    index: Any
    rows: Tensor
    data: EdgeData
    records: Records | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The data by edge instead of by row."""
        return {key: values[self.rows] for key, values in self.data.fields.items()}


def read_edges(
    table: Any,
    names: Sequence[str],
    columns: Columns,
    kind: str,
    where: tuple[str, str],
    ids: tuple[Ids, Ids],
    treatment: Treatment,
    *,
    undirected: bool = False,
    parallel: bool = False,
    edge_classes: Sequence[str] = (),
    rule: PartyRule | None = None,
) -> TableEdges:
    """Return the edges of one table.

    Args:
        table: one row per edge.
        names: candidate feature columns.
        columns: roles of the columns.
        kind: edge type.
        where: files of edges and of source nodes, for errors.
        ids: index of the source and of the target nodes.
        treatment: column options and schema.
        undirected: whether each row represents both directions.
        parallel: whether rows that repeat an edge stay separate even without data.
        edge_classes: as in `edge_data`.
        rule: how rows name accounts of other parties.

    Raises:
        FedGraphError: an end is unknown, or as `edge_data` and `divide`.
    """
    records = divide(table, (columns.source, columns.target), ids[0].index, rule, where, treatment) if rule else None
    data = edge_data(table, names, columns, where[0], treatment, edge_classes, kind)
    ends = records.ends if records else edge_ends(table, columns, where[0], *ids)
    amounts = amounts_of(table, columns.amount_column, where[0], treatment) if columns.recipe else None
    if columns.recipe and columns.time and columns.day != WHOLE:
        _warn_of_ties(data.fields["edge_time"], columns.time, where[0], treatment)
    again = booked_again(records, rule) if records and rule else None
    contents = contents_of(table, data.made.agreed if data.made else {})
    data = with_computed(data, columns, ends, len(ids[1].index), records, amounts, again, contents)
    separate = parallel or bool(data.fields)
    index, rows = arranged(ends, len(ids[1].index), undirected, where[0], treatment, separate)
    return TableEdges(index, records.edge_rows[rows] if records and data.fields else rows, data, records)


def edge_data(
    table: Any,
    names: Sequence[str],
    columns: Columns,
    where: str,
    treatment: Treatment,
    edge_classes: Sequence[str] = (),
    kind: str = EDGE,
) -> EdgeData:
    """Read features, times and labels of the edges of one table.

    Args:
        table: one row per edge.
        names: candidate feature columns.
        columns: roles of the columns.
        where: the file, for errors.
        treatment: column options and schema.
        edge_classes: class names of edges; empty for the schema's, else the sorted values that occur.
        kind: edge type.

    Raises:
        FedGraphError: a value does not match its column's kind, or a time is missing.
    """
    classes = agreed_classes(edge_classes, treatment, of_edges=True)
    made = features(kind, table, names, where, treatment) if names or treatment.agreed.nodes.get(kind) else None
    made = made if made and made.x.size(1) else None
    tensors: dict[str, Any] = {"edge_attr": made.x} if made else {}
    if columns.time:
        tensors["edge_time"] = edge_times(table, columns.time, where, treatment)
    if columns.edge_label:
        tensors["edge_y"], classes = label_codes(table, columns.edge_label, where, classes, treatment)
    return EdgeData(made, tuple(classes), tensors)


def with_computed(
    data: EdgeData,
    columns: Columns,
    ends: Tensor,
    num_nodes: int,
    records: Records | None = None,
    cents: Ints | None = None,
    again: Ints | None = None,
    contents: Ints | None = None,
) -> EdgeData:
    """Return the data of a table's rows with the features that are computed from the whole book: those of a recipe, or counts.

    This is the only place where computed columns join those of an edge table; the schema keeps their recipe in its
    `TableLayout`. New rows are predicted with the same columns (`prediction_input`).

    Args:
        data: data of the rows, with their times.
        columns: roles of the columns, with the recipe.
        ends: edges between own nodes [2, E].
        num_nodes: N.
        records: the divided rows, if some name accounts of other parties; they count, too.
        cents: amounts of the rows, for a recipe [E'].
        again: the record that each record of another party's account repeats, else itself [R]; a repetition has its columns.
        contents: hash of each row's features (`contents_of`) [E'].
    """
    recipe = columns.own_recipe
    if "edge_time" not in data.fields:
        return data
    time = data.fields["edge_time"].numpy()
    both = np.full((2, time.size), -1, dtype=np.int64)
    both[:, records.edge_rows.numpy() if records else slice(None)] = ends.numpy()
    named = np.zeros(0, dtype=str)
    if records:
        named, code = np.unique(names_elsewhere(records, columns.id_form), return_inverse=True)
        pair = np.stack([records.node.numpy(), num_nodes + code])
        both[:, records.rows.numpy()] = np.where(records.outgoing.numpy(), pair, pair[::-1])
    repeats = np.zeros(0, dtype=np.int64)
    if records and again is not None and recipe is not None:
        repeats = np.flatnonzero(again != np.arange(again.size))
        both[:, records.rows.numpy()[repeats]] = -1
    kept, book_fields, described = np.flatnonzero(both[0] >= 0), dict[str, Any](), dict[str, Any]()
    none = np.zeros_like(time)
    rows = np.stack([*both, time, none if cents is None else cents, none if contents is None else contents])[:, kept]
    book_fields["book"] = torch.from_numpy(rows)
    book_fields["book_ids"] = pack_words(named) if named.size else torch.zeros(0, 0, dtype=torch.uint8)
    if recipe is not None:
        table, described = edge_columns(Book.of(rows), recipe), {"recipe": recipe.to_dict()}
    elif columns.seconds:
        table = log_counts(rows[:2], rows[2], columns.seconds).astype(np.float32)
    else:
        return replace(data, book_fields=book_fields)
    whole = table
    if kept.size < time.size:
        whole = np.zeros((time.size, table.shape[1]), dtype=np.float32)
        whole[kept] = table
        if records and again is not None and repeats.size:
            whole[records.rows.numpy()[repeats]] = whole[records.rows.numpy()[again[repeats]]]
    book_fields["own_columns"] = described | {"edges": table.shape[1]}
    return replace(with_columns(data, torch.from_numpy(whole)), book_fields=book_fields)


def names_elsewhere(records: Records, form: str) -> np.ndarray:
    """Return party and id of the other end of each foreign record, in normal form [R]."""
    parties = np.array([*records.parties, ""])[records.party.numpy()]
    return accounts_of(parties, normal_ids(records.ids, form or "text"))


def contents_of(table: Any, columns: Mapping[str, Column]) -> Ints:
    """Return a hash of the texts of each row in columns that are features, int64 [E]; 0 without columns."""
    import pandas as pd

    names = sorted(name for name, column in columns.items() if column.kind != "ignored" and name in table.columns)
    if not names:
        return np.zeros(len(table), dtype=np.int64)
    texts = pd.DataFrame({name: as_words(table[name]) for name in names}, dtype=object)
    hashes = pd.util.hash_pandas_object(texts, index=False).to_numpy()
    return np.asarray(hashes >> np.uint64(2), dtype=np.int64)


def amounts_of(table: Any, name: str, where: str, treatment: Treatment) -> Ints:
    """Return the amounts of a table's edges in cents of one currency, int64 [E]; report amounts of 0 or below.

    Raises:
        FedGraphError: the column is missing, a cell is empty or not a number, amounts have two readings, or they have several
            currencies, and one of these has no rate.
    """
    column = column_of(table, name, where, "amount")
    values = floats(column)
    if column.dtype.kind not in "biuf":
        written = Written(EDGE, name, column, where, treatment)
        form = written.number_format()
        if form and form != PLAIN:
            known = dict(zip(written.texts, form.read(written.texts).tolist(), strict=True))
            values = column.map(known).to_numpy(dtype=np.float64, na_value=np.nan)
    check_rows(~np.isfinite(values), column, where, "expected an amount: correct it, or pass columns.amount=NAME")
    cents, odd = cents_of(values * _rates(table, where, treatment), where)
    if odd:
        treatment.say(
            f"warning: {where}: {odd} of {cents.size} rows have an amount of 0 or below: they count as records of amount 0, which"
            " are alike to none"
        )
    return cents


CURRENCIES = frozenset(
    re.findall(
        "...",
        "AEDARSAUDBGNBHDBRLBTCCADCHFCLPCNYCOPCZKDKKEGPETHEURGBPHKDHUFIDRILSINRISKJODJPYKESKRWKWDKZTMADMXNMYRNGNNOKNZDOMRPENPHPPKRPLN"
        "QARRONRSDRUBSARSEKSGDTHBTNDTRYTWDUAHUSDVNDXAFXOFZAR",
    )
)
"""Codes by which a column of currencies is recognised (ISO 4217), and those of common coins."""


def _rates(table: Any, where: str, treatment: Treatment) -> Any:
    """Return the rate of each row's currency [E], or 1 for a table with one.

    Raises:
        FedGraphError: the table has several currencies, and no rate of one of them; or several columns with some.
    """
    currencies = list[str]()
    for name in (str(name) for name in table.columns if table[name].dtype.kind not in "biufM"):
        named = "currenc" in name.lower() or name.lower() in ("ccy", "curr")
        for rows in (slice(1_000), slice(None)):  # most columns are none by their first rows
            texts = {str(code).strip() for code in table[name].iloc[rows].dropna().unique()} - {""}
            words = {text.lower() for text in texts}
            of_names = named and all(word.replace(" ", "").isalpha() for word in words) and not words <= TRUE | FALSE
            if not (texts and (of_names or texts <= CURRENCIES)):
                break
        else:
            currencies += [name] if len(texts) > 1 or treatment.rates else []
    if not currencies:
        return 1.0
    name = currencies[0]
    if currencies[1:]:
        raise FedGraphError(
            f"{where} has several columns of currencies ({', '.join(currencies)}): leave only that of the amounts in the table"
        )
    codes = np.char.strip(as_words(table[name]))
    if missing := sorted({*codes.tolist()} - treatment.rates.keys()):
        counts = ", ".join(f"{code or 'empty'} {int((codes == code).sum())}" for code in sorted({*codes.tolist()})[:10])
        raise FedGraphError(
            f"{where}: amounts are in several currencies (column '{name}': {counts}), which are never added up: pass"
            f" rates.{missing[0] or 'CODE'}=VALUE for each, the value of one unit in the currency of the amounts"
        )
    return np.array([treatment.rates[code] for code in codes.tolist()])


def with_columns(data: EdgeData, columns: Tensor) -> EdgeData:
    """Return the data with further features of the rows [E', k], computed from the party's own records."""
    attr = data.fields.get("edge_attr", torch.zeros(len(columns), 0))
    return replace(data, fields=data.fields | {"edge_attr": torch.cat([attr, columns.to(torch.float32)], dim=1)})


def edge_times(links: Any, column: str, where: str, treatment: Treatment) -> Tensor:
    """Return the times of a table's edges in seconds since 1970, int64 [E].

    Raises:
        FedGraphError: a time is missing, too large, or neither a number nor a date; or errors of `time_format`.
    """
    read = column_of(links, column, where, "time")
    form = treatment.time_format or time_format(read, where, treatment)
    dated = form != SECONDS
    numbers = since_1970(read_dates(read, form), 1) if dated else floats(read)
    neither = f"which is neither a number of seconds nor a date: pass date_formats.{column}=FORMAT"
    check_rows(np.isnan(numbers), read, where, neither)
    if dated and (zones := zoned(read)).any():
        check_rows(~zones, read, where, "which has no time zone, and other rows have one: write all times in one way")
    seconds = np.floor(numbers)
    expected = f"expected seconds below {MAX_SECONDS:,} (the year 10000) or a date: divide milliseconds by 1000"
    check_rows(np.abs(seconds) >= MAX_SECONDS, read, where, expected)
    return torch.from_numpy(seconds.astype(np.int64))


def time_format(read: Any, where: str, treatment: Treatment) -> str:
    """Return the format of a column of times: the user's, that of the schema if it fits, else the one that all values have.

    Raises:
        FedGraphError: values have several formats, or most are dates, but not all.
    """
    column, stored = str(read.name), treatment.agreed.tables.time_format
    if given := treatment.date_formats.get(column, ""):
        return given
    if read.dtype.kind == "M":
        return "ISO8601"
    if stored and bool(read_dates(read, stored).notna().all()):
        return stored
    numbers = distinct_numbers(read)
    if numbers.size and not np.isnan(numbers).any():
        finite = numbers[np.isfinite(numbers)]
        return whole_date_format(finite, column, where, f"date_formats.{column}={SECONDS}") or SECONDS

    def format_of(some: Any) -> str:
        return date_format([str(word) for word in some.dropna().unique()], column, where) or "ISO8601"

    with contextlib.suppress(FedGraphError):  # the first rows may have two formats
        form = format_of(read.iloc[:1_000])
        if bool(read_dates(read, form).notna().all()):
            return form
    return format_of(read)


def judged(columns: Columns, links: Any, where: str, treatment: Treatment) -> Columns:
    """Return the columns with the rule of days of their recipe: the given one, or ``whole`` where no time has hours.

    The schema decides where there is one; a recipe that reads the last records needs an order, so that it reads earlier ones.

    Raises:
        FedGraphError: a rule is given without a recipe.
    """
    if columns.time and links is not None:
        _say_zone(column_of(links, columns.time, where, "time"), where, treatment)
    if not columns.recipe:
        if columns.day:
            raise FedGraphError(
                f"day={columns.day} has no effect without columns of own records: pass features=payments"
            )
        return columns
    recipe = columns.own_recipe
    if columns.day or treatment.schema or links is None or recipe is None or recipe.last:
        return columns
    time = edge_times(links, columns.time, where, treatment)
    if not bool(time.any()) or bool((time % DAY).any()):
        return columns
    treatment.say(
        f"{where}: no time of '{columns.time}' has hours: records read the other records of their day, in either order, not"
        " only earlier days (day=before)"
    )
    return replace(columns, day=WHOLE)


def _say_zone(times: Any, where: str, treatment: Treatment) -> None:
    """Report that days are those of UTC, where times have other zones."""
    texts = times.iloc[:1].astype(str)
    if zoned(times.iloc[:1]).any() and not texts.str.endswith(("Z", "+00:00")).all():
        treatment.say(
            f"{where}: times of '{times.name}' are read in UTC, whose days begin at 00:00: {texts.iloc[0]} is"
            f" {read_dates(times.iloc[:1], 'ISO8601').iloc[0]:%Y-%m-%dT%H:%M:%SZ}"
        )


def _warn_of_ties(time: Tensor, column: str, where: str, treatment: Treatment) -> None:
    """Report times of many rows each [E], which columns of own records do not read."""
    if 10 * (steps := time.unique().numel()) < time.numel():
        treatment.say(
            f"warning: {where}: {time.numel()} rows have {steps} different times, and columns of own records do not read rows of"
            f" equal time: make the schema with day=whole, or pass a columns.time with hours instead of '{column}'"
        )


def arranged(
    edges: Tensor, num_nodes: int, undirected: bool, where: str, treatment: Treatment, parallel: bool
) -> tuple[Tensor, Tensor]:
    """Return the edges of a table [2, E'] sorted by both ends, and the row of each [E'].

    Edges that carry no data count once, which is reported, and their rows are not returned.
    """
    if not parallel:
        distinct = (edges.sort(dim=0).values if undirected else edges).unique(dim=1)
        report_repeated(edges.size(1) - distinct.size(1), edges.size(1), undirected, where, treatment)
        distinct = to_undirected(edges, num_nodes) if undirected else distinct
        return distinct, torch.zeros(distinct.size(1), dtype=torch.int64)
    rows = torch.arange(edges.size(1))
    if undirected:
        proper = (edges[0] != edges[1]).nonzero().view(-1)
        edges, rows = torch.cat([edges, edges[:, proper].flip(0)], dim=1), torch.cat([rows, proper])
    order = (edges[0] * num_nodes + edges[1]).argsort(stable=True)
    return edges[:, order], rows[order]


def report_repeated(repeated: int, rows: int, undirected: bool, where: str, treatment: Treatment) -> None:
    """Report rows that repeat an edge of another row, if there are any."""
    if repeated:
        both = ", in either direction" if undirected else ""
        treatment.say(f"{where}: {repeated} of {rows} rows repeat an edge of another row{both}; each edge counts once")


def edge_ends(table: Any, columns: Columns, where: str, sources: Ids, targets: Ids) -> Tensor:
    """Return the edges of one table, int64 [2, E], between the nodes of two tables (or one, passed twice)."""
    ends = (sources.positions(table, columns.source, where), targets.positions(table, columns.target, where))
    return torch.from_numpy(np.stack(ends))

"""Drift: how far a party's new tables are from its stored data, column by column, and in the scores of its model.

    PSI = Σ_b (q_b − p_b) ln(q_b / p_b),     p_b = (stored rows in bin b + 1/2) / (stored rows + B/2),  q_b of the new rows

The bins of a number are the deciles of the stored values, and one bin below and one above all of them; those of a category are
its values and one for all others. Few rows of an equal distribution have a large PSI by chance. ``chance`` is its 99 % quantile:

    p ~ Dirichlet(a),  a_b = stored rows in bin b, 1 for an empty bin;   new rows ~ Multinomial(m, p)

given the stored rows, over `DRAWS` draws from a fixed seed. The usual quantile χ²_{B−1} (1/n + 1/m) (Yurdakul, "Statistical
Properties of the Population Stability Index", 2018) is too small for few rows: of 50 new rows, 2 to 3 % pass its 99 %. Nothing
leaves the party.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedgraph_flwr.data.features import Form
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.schema import EDGE, NODE, Column, feature_names
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.tables.columns import NOTHING, as_words
from fedgraph_flwr.party.use.predict import as_client
from fedgraph_flwr.party.use.wording import forms_of, raw_value
from fedgraph_flwr.tasks.edges import ENTERING, own_rows

Floats = NDArray[np.float64]
Row = dict[str, Any]
Span = tuple[int, int] | None

WATCH, SHIFTED = 0.1, 0.25
"""PSI from which a column is to be watched, and above which it has shifted: the usual limits of credit scoring."""

DRAWS = 10_000
"""Draws behind a column's chance level."""

DECILES = np.linspace(0, 1, 11)[1:-1]


def psi(stored: Floats, new: Floats) -> tuple[float, float]:
    """Return the population stability index of numbers of rows by bin [B], and what 99 % of equal distributions stay below.

    Raises:
        FedGraphError: one side has no rows.
    """
    if not stored.sum() or not new.sum():
        raise FedGraphError(f"no rows to compare: {int(stored.sum())} are stored and {int(new.sum())} are new")
    p, q = ((counts + 0.5) / (counts.sum() + counts.size / 2) for counts in (stored, new))
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(int(new.sum()), rng.dirichlet(np.where(stored > 0, stored, 1.0), DRAWS))  # [DRAWS, B]
    others = (drawn + 0.5) / (new.sum() + new.size / 2)
    by_chance = ((others - p) * np.log(others / p)).sum(axis=1)
    return float(((q - p) * np.log(q / p)).sum()), float(np.quantile(by_chance, 0.99, method="higher"))


def binned(stored: Floats, new: Floats) -> tuple[Floats, Floats]:
    """Return numbers of stored and new values by bin [B]; those outside the stored range have bins of their own."""
    deciles = np.quantile(stored, DECILES, method="inverted_cdf")
    edges = np.unique([np.nextafter(stored.min(), -np.inf), *deciles, stored.max()])
    counts = (np.bincount(np.searchsorted(edges, side), minlength=edges.size + 1) for side in (stored, new))
    first, second = (found.astype(np.float64) for found in counts)
    return first, second


def _row(table: str, column: str, what: str, values: tuple[float, float], counts: tuple[Floats, Floats]) -> Row:
    found, chance = psi(*counts)
    verdict = "shifted" if found > max(SHIFTED, chance) else "watch" if found >= max(WATCH, chance) else "stable"
    named = {"table": table, "column": column, "what": what, "stored": values[0], "new": values[1]}
    return named | {"psi": found, "chance": chance, "verdict": verdict}


def _share(table: str, column: str, what: str, stored: tuple[float, int], new: tuple[float, int]) -> Row:
    """Return the row of a share of rows, each given as its number and that of all."""
    counts = tuple(np.array([part, whole - part], dtype=np.float64) for part, whole in (stored, new))
    return _row(table, column, what, (stored[0] / max(stored[1], 1), new[0] / max(new[1], 1)), (counts[0], counts[1]))


def of_numbers(
    table: str, column: str, stored: Floats, new: Floats, unit: Column | None = None, form: Form | None = None
) -> Row:
    """Return the row of a number, with its medians in the unit of a column (a date: days since 1970).

    Args:
        table: name of what the values belong to.
        column: name of the number.
        stored: values of the stored rows [n].
        new: values of the new rows [m].
        unit: the column whose features these are; None: values as they are.
        form: the transform of a column that is computed from records.
    """
    medians = [float(np.median(side)) for side in (stored, new)]
    if unit is not None and "center" in unit.statistics:
        medians = [m * float(unit.statistics["spread"]) + float(unit.statistics["center"]) for m in medians]
        if unit.scale == "log":
            medians = [float(np.sign(m) * np.expm1(abs(m))) for m in medians]
    if form is not None:
        medians = [round(raw_value(form, m), 6) for m in medians]
    return _row(table, column, "median", (medians[0], medians[1]), binned(stored, new))


def of_features(
    table: str,
    columns: Mapping[str, Column],
    names: list[str],
    stored: Floats,
    new: Floats,
    gaps: Mapping[str, int],
    forms: Mapping[str, Form],
) -> Iterator[Row]:
    """Yield the rows of a table's columns: their values, values of categories that are not listed, and missing values.

    Args:
        table: name of the table.
        columns: columns of the schema, the first ones of the features.
        names: names of the features [F].
        stored: features of the stored rows [n, F].
        new: features of the new rows [m, F].
        gaps: by column, the number of missing values of the new rows, for columns without an indicator.
        forms: transforms of the columns that are computed from records, by name.
    """
    first, at = feature_names(columns), 0
    for name, column in columns.items() if names[: len(first)] == first else ():
        if column.kind == "category":
            size = len(column.categories) + 1
            counts = stored[:, at : at + size].sum(axis=0), new[:, at : at + size].sum(axis=0)
            shares = [count / max(count.sum(), 1) for count in counts]
            most = int(np.abs(shares[1] - shares[0]).argmax())
            what = f"share of {(*column.categories, 'others')[most]}"
            yield _row(table, name, what, (float(shares[0][most]), float(shares[1][most])), counts)
            yield _share(table, name, "unseen", (counts[0][-1], len(stored)), (counts[1][-1], len(new)))
        else:
            size = 1
            old, now = (
                side[~side[:, at + 1].astype(bool) if column.missing else slice(None), at] for side in (stored, new)
            )
            if old.size and now.size:
                yield of_numbers(table, name, old, now, column)
        at += size
        missing = (0.0, gaps.get(name, 0))
        if column.missing:
            missing = (stored[:, at].sum(), new[:, at].sum())
        at += column.missing
        if any(missing):
            yield _share(table, name, "missing", (missing[0], len(stored)), (missing[1], len(new)))
    for place in range(at, len(names)):
        yield of_numbers(table, names[place], stored[:, place], new[:, place], form=forms.get(names[place]))


def drift(predictor: Any, graph: Any, read: Any, scores: Any) -> Any:
    """Return a pandas table of what changed, the largest PSI first.

    Columns: ``table`` (nodes, edges, scores), ``column``, ``what`` is in ``stored`` and ``new``, ``psi``, ``chance``, ``verdict``
    (stable, watch, shifted).

    Args:
        predictor: the model, with the party's stored graph.
        graph: graph in which the new rows are.
        read: `prediction_input.NewNodes` of tables; None: all rows of the graph are new.
        scores: predictions of the new items.

    Raises:
        FedGraphError: no stored graph, one with several types of nodes, or no rows.
    """
    import pandas as pd

    own = predictor.party_graph()
    if not isinstance(own, Graph) or not isinstance(graph, Graph):
        raise FedGraphError(f"{predictor.source}: drift compares graphs with one type of nodes")
    if graph.schema.get(ENTERING):  # payments from other parties are items of the new tables
        own = replace(own, schema={**own.schema, ENTERING: True})
    names = dict(zip((NODE, EDGE), predictor.feature_names(own), strict=True))
    forms = dict(zip((EDGE, NODE), forms_of(predictor, own), strict=True))
    found: list[Row] = []
    for kind, (stored, new) in _sides(predictor, own, graph, read).items():
        columns, table = predictor.input_spec.columns(kind), read.tables.get(kind, {}) if read else {}
        gaps = {name: _gaps(table[name], column) for name, column in columns.items() if name in table}
        found += of_features("nodes" if kind == NODE else "edges", columns, names[kind], stored, new, gaps, forms[kind])
    rows, between = _new_nodes(read), hasattr(graph, "cut_out")  # else edges to other parties are not read
    before, after = _spans(own, graph)
    for end, direction in ((1, "in"), (0, "out")):
        stored, new = _degrees(own, end, between, before), _degrees(graph, end, between, after)[rows]
        found.append(of_numbers("nodes", f"degree {direction}", stored, new))
    found += _of_scores(predictor.predict(own).to_frame(), scores.to_frame())
    return pd.DataFrame(found).sort_values("psi", ascending=False, kind="stable", ignore_index=True)


def _new_nodes(read: Any) -> Any:
    """Return the rows of new nodes among a graph's."""
    return slice(None) if read is None else read.rows


def _sides(predictor: Any, own: Graph, graph: Graph, read: Any) -> dict[str, tuple[Floats, Floats]]:
    """Return the features of stored and of new rows, of nodes and, if they have any, of edges.

    Raises:
        FedGraphError: no rows of one of them.
    """
    both = {NODE: (_numbers(own.x), _numbers(graph.x)[_new_nodes(read)])}
    if own.num_edge_features:
        stored, edges = (_numbers(own_rows(as_client(each, predictor.client), "edge_attr")) for each in (own, graph))
        inner = own.edge_index.size(1) if read is not None and read.note else 0
        both[EDGE] = stored, edges[inner:] if read is None or not read.edges.size else edges[read.edges]
    if empty := [kind for kind, sides in both.items() if not all(map(len, sides))]:
        what = "nodes" if NODE in empty else "edges"
        raise FedGraphError(f"{predictor.source}: no {what} to compare: pass tables with rows")
    return both


def _of_scores(old: Any, new: Any) -> list[Row]:
    """Return the rows of predicted numbers; of two classes, of the second one's probability."""
    listed = [name for name in old if name not in ("id", "edge", "source", "target", "class")]
    listed = listed[1:] if len(listed) == 2 and "class" in old else listed
    old, new = (frame[listed].astype(np.float64).round(6) for frame in (old, new))  # other orders round otherwise
    return [of_numbers("scores", name, old[name].to_numpy(), new[name].to_numpy()) for name in listed]


def _numbers(x: torch.Tensor) -> Floats:
    return x.double().numpy()


def _spans(own: Graph, graph: Graph) -> tuple[Span, Span]:
    """Return times of equal length: the latest stored ones, and those after them; None if no edge of ``graph`` is later."""
    names = ("edge_time", "cut_out_edge_time", "cut_in_edge_time")
    stored, new = (torch.cat([getattr(g, name) for name in names if hasattr(g, name)]) for g in (own, graph))
    if not stored.numel() or not new.numel() or int(new.max()) <= int(stored.max()):
        return None, None
    last, end = int(stored.max()), int(new.max())
    length = min(end - last, last - int(stored.min()) + 1)
    return (last - length, last), (end - length, end)


def _degrees(graph: Any, end: int, between: bool, span: Span) -> Floats:
    """Return the number of edges at each node as target (1) or source (0), also ``between`` parties, in a span of time [N]."""
    cut = ("cut_out", "cut_in")[end]
    sides = [(graph.edge_index[end], graph.edge_time)]
    sides += [(getattr(graph, cut)[0], getattr(graph, f"{cut}_edge_time"))] if between else []
    kept = [nodes[(span[0] < time) & (time <= span[1])] if span else nodes for nodes, time in sides]
    return torch.cat(kept).bincount(minlength=graph.num_nodes).numpy().astype(np.float64)


def _gaps(column: Any, spec: Column) -> int:
    """Return the number of missing values of a table's column."""
    words = np.char.strip(as_words(column))
    return int((words == "").sum() if spec.kind == "category" else np.isin(np.char.lower(words), list(NOTHING)).sum())

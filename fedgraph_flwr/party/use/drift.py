"""Drift: how far a party's new tables are from its stored data, column by column, and in the scores of its model.

    PSI = Σ_b (q_b − p_b) ln(q_b / p_b),     p_b = (stored rows in bin b + 1/2) / (stored rows + B/2),  q_b of the new rows

The bins of a number are the deciles of the stored values, and one bin below and one above all of them; those of a category are
its values and one for all others. Few rows of an equal distribution have a large PSI by chance:

    p ~ Dirichlet(a),  a_b = stored rows in bin b, 1 for an empty bin;   new rows ~ Multinomial(m, p)

given the stored rows, over `DRAWS` draws from a fixed seed. The usual quantile χ²_{B−1} (1/n + 1/m) (Yurdakul, "Statistical
Properties of the Population Stability Index", 2018) is too small for few rows: of 50 new rows, 2 to 3 % pass its 99 %.

One alarm in 100 quiet files, not one per column: of R compared rows, ``chance`` is the quantile 1 − 0.01 / R of a gamma law with
the moments of these draws. Rows of one day resemble each other, more than drawn ones. So days of the stored rows, k of as many
days as the new ones, are compared with all of them, and ``chance`` of a column c is at least

    psi_c0 · exp(mean T + t_{K−1, 0.99} · sd T · √(1 + 1 / K)),     T_k = max_c ln(psi_ck / psi_c0),   psi_c0 = median of psi_ck

the upper end of a prediction interval for the largest of a quiet day. Columns of own records without a bound in time grow with
the book, also on quiet days, and are not compared; those of a window are compared with stored rows that it lies before.
Nothing leaves the party.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import gamma, t

from fedgraph_flwr.data.features import DAY, GROWING, Form
from fedgraph_flwr.data.graph import Graph, unpack_words
from fedgraph_flwr.data.own_columns import recipe_of
from fedgraph_flwr.data.preprocess import NOTHING
from fedgraph_flwr.data.schema import EDGE, NODE, Column, feature_names
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.tables.columns import as_words
from fedgraph_flwr.party.tables.parties import BETWEEN
from fedgraph_flwr.party.use.predict import Predictions, as_client
from fedgraph_flwr.party.use.wording import forms_of, raw_value
from fedgraph_flwr.tasks.edges import ENTERING, own_rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Row = dict[str, Any]
Span = tuple[int, int] | None

WATCH, SHIFTED = 0.1, 0.25
"""PSI from which a column is to be watched, and above which it has shifted: the usual limits of credit scoring."""

DRAWS = 10_000
"""Draws behind a column's chance level."""

ALARMS = 0.01
"""Share of quiet files with an alarm."""

MIN_BLOCKS = 8
"""Fewest stored spans of days from which the chance of a quiet one is estimated."""

WHAT = {NODE: "nodes", EDGE: "edges"}
"""How the table calls rows of a kind."""

DECILES = np.linspace(0, 1, 11)[1:-1]


def psi(stored: Floats, new: Floats, rows: int = 1) -> tuple[float, float]:
    """Return the population stability index of numbers of rows by bin [B], and what 99 % of equal distributions stay below.

    Args:
        stored: rows in each bin.
        new: new ones.
        rows: number of comparisons, all of which 99 % of equal distributions stay below.

    Raises:
        FedGraphError: one side has no rows.
    """
    if not stored.sum() or not new.sum():
        raise FedGraphError(f"no rows to compare: {int(stored.sum())} are stored and {int(new.sum())} are new")
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(int(new.sum()), rng.dirichlet(np.where(stored > 0, stored, 1.0), DRAWS))
    by_chance = _indices(stored, drawn)
    chance = float(np.quantile(by_chance, 1 - ALARMS, method="higher"))
    if rows > 1 and (spread := float(by_chance.var())) > 0:
        mean = float(by_chance.mean())
        chance = max(chance, float(gamma.ppf(1 - ALARMS / rows, mean**2 / spread, scale=spread / mean)))
    return float(_indices(stored, new[None])[0]), chance


def _indices(stored: Floats, others: NDArray[Any]) -> Floats:
    """Return the population stability index of each of K numbers of rows by bin [K, B] against the stored ones [B]."""
    p, q = ((counts + 0.5) / (counts.sum(-1, keepdims=True) + stored.size / 2) for counts in (stored, others))
    return np.asarray(((q - p) * np.log(q / p)).sum(axis=1))


def _bins(stored: Floats) -> Floats:
    """Return the edges of the bins of stored values; those outside their range have bins of their own."""
    deciles = np.quantile(stored, DECILES, method="inverted_cdf")
    return np.unique([np.nextafter(stored.min(), -np.inf), *deciles, stored.max()])


def binned(stored: Floats, new: Floats) -> tuple[Floats, Floats]:
    """Return numbers of stored and new values by bin [B]."""
    edges = _bins(stored)
    counts = (np.bincount(np.searchsorted(edges, side), minlength=edges.size + 1) for side in (stored, new))
    first, second = (numbers.astype(np.float64) for numbers in counts)
    return first, second


def _row(
    table: str,
    column: str,
    what: str,
    values: tuple[float, float],
    counts: tuple[Floats, Floats],
    days: Floats | None = None,
    bins: Sequence[str] = (),
) -> Row:
    """Return a row to be judged; ``days`` are numbers of stored rows by span of days and bin [K, B], ``bins`` names of these."""
    named = {"table": table, "column": column, "what": what, "stored": values[0], "new": values[1]}
    return named | {"counts": counts, "days": days, "bins": list(bins)}


def _share(
    table: str,
    column: str,
    what: str,
    stored: tuple[float, int],
    new: tuple[float, int],
) -> Row:
    """Return the row of a share of rows, each given as its number and that of all."""
    counts = tuple(np.array([part, whole - part], dtype=np.float64) for part, whole in (stored, new))
    shares = stored[0] / max(stored[1], 1), new[0] / max(new[1], 1)
    return _row(table, column, what, shares, (counts[0], counts[1]))


def judge(rows: list[Row]) -> list[Row]:
    """Return rows with their PSI, what chance stays below, and the verdict."""
    limits = _of_days(rows)
    for row, limit in zip(rows, limits, strict=True):
        counts = row["counts"]
        shift, chance = psi(counts[0], counts[1], len(rows))
        chance = max(chance, limit)
        verdict = "shifted" if shift > max(SHIFTED, chance) else "watch" if shift >= max(WATCH, chance) else "stable"
        row |= {"psi": shift, "chance": chance, "verdict": verdict}
    return rows


def _of_days(rows: list[Row]) -> list[float]:
    """Return what quiet days stay below, by row; 0 for a row whose stored days are not known."""
    limits = [0.0] * len(rows)
    for table in dict.fromkeys(row["table"] for row in rows):
        dated = [place for place, row in enumerate(rows) if row["table"] == table and row["days"] is not None]
        if not dated:
            continue
        values = np.stack([_indices(rows[place]["counts"][0], rows[place]["days"]) for place in dated])  # [R, K]
        usual = np.maximum(np.median(values, axis=1), 1e-3)
        largest = np.log(np.maximum(values / usual[:, None], 1e-12)).max(axis=0)
        size = largest.size
        end = largest.mean() + t.ppf(1 - ALARMS, size - 1) * largest.std(ddof=1) * np.sqrt(1 + 1 / size)
        for place, level in zip(dated, usual, strict=True):
            limits[place] = float(level * np.exp(max(end, largest.max())))
    return limits


def spans_of(time: Ints | None, length: int) -> Ints | None:
    """Return the span of ``length`` days of each stored row, -1 for none [n]; None for fewer than `MIN_BLOCKS`.

    Spans are counted from the last day back. The first quarter is none: its columns look back at few records.
    """
    if time is None or not time.size:
        return None
    day = time // DAY
    span = (day.max() - day) // length
    span = np.where(4 * span < 3 * ((day.max() - day.min() + 1) // length), span, -1)
    held, place = np.unique(span, return_inverse=True)
    place = place - int(held[0] < 0)
    return place if place.max() + 1 >= MIN_BLOCKS else None


def _by_day(spans: Ints | None, place: Ints, bins: int) -> Floats | None:
    """Return numbers of stored rows by span of days and bin [K, B]; None without spans."""
    if spans is None:
        return None
    counts = np.zeros((int(spans.max()) + 1, bins))
    np.add.at(counts, (spans[spans >= 0], place[spans >= 0]), 1)
    return counts


def of_numbers(
    table: str,
    column: str,
    stored: Floats,
    new: Floats,
    unit: Column | None = None,
    form: Form | None = None,
    spans: Ints | None = None,
) -> Row:
    """Return the row of a number, with its medians in the unit of a column (a date: days since 1970).

    Args:
        table: name of what the values belong to.
        column: name of the number.
        stored: values of the stored rows [n].
        new: values of the new rows [m].
        unit: the column whose features these are; None: values as they are.
        form: the transform of a column that is computed from records.
        spans: span of days of each stored row, -1 for none [n].
    """

    def in_unit(value: float) -> float:
        if unit is not None and "center" in unit.statistics:
            value = value * float(unit.statistics["spread"]) + float(unit.statistics["center"])
            value = float(np.sign(value) * np.expm1(abs(value))) if unit.scale == "log" else value
        return value if form is None else round(raw_value(form, value), 6)

    medians = [in_unit(float(np.median(side))) for side in (stored, new)]
    edges = _bins(stored)
    days = _by_day(spans, np.searchsorted(edges, stored), edges.size + 1)
    dated = unit is not None and unit.kind == "date"
    ends = [in_unit(float(edge)) for edge in edges]
    shown = [str(np.datetime64(round(end), "D")) if dated else f"{end:.4g}" for end in ends]
    names = [f"below {shown[0]}", *(f"to {end}" for end in shown[1:]), f"above {shown[-1]}"]
    return _row(table, column, "median", (medians[0], medians[1]), binned(stored, new), days, names)


def of_features(
    table: str,
    columns: Mapping[str, Column],
    names: list[str],
    stored: Floats,
    new: Floats,
    gaps: Mapping[str, int],
    forms: Mapping[str, Form],
    spans: Ints | None = None,
    growing: Collection[str] = (),
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
        spans: span of days of each stored row, -1 for none [n].
        growing: names of features that are not compared.
    """
    first, at = feature_names(columns), 0
    for name, column in columns.items() if names[: len(first)] == first else ():
        if column.kind == "category":
            size = len(column.categories) + 1
            counts = stored[:, at : at + size].sum(axis=0), new[:, at : at + size].sum(axis=0)
            shares = [count / max(count.sum(), 1) for count in counts]
            most = int(np.abs(shares[1] - shares[0]).argmax())
            what = f"share of {(*column.categories, 'others')[most]}"
            days = _by_day(spans, stored[:, at : at + size].argmax(axis=1), size)
            bins = (*column.categories, "others")
            yield _row(table, name, what, (float(shares[0][most]), float(shares[1][most])), counts, days, bins)
            yield _share(table, name, "unseen", (counts[0][-1], len(stored)), (counts[1][-1], len(new)))
        else:
            size = 1
            known = [~side[:, at + 1].astype(bool) if column.missing else slice(None) for side in (stored, new)]
            old, now = stored[known[0], at], new[known[1], at]
            if old.size and now.size:
                yield of_numbers(table, name, old, now, column, spans=None if spans is None else spans[known[0]])
        at += size
        missing = (0.0, gaps.get(name, 0))
        if column.missing:
            missing = (stored[:, at].sum(), new[:, at].sum())
        at += column.missing
        if any(missing):
            yield _share(table, name, "missing", (missing[0], len(stored)), (missing[1], len(new)))
    for place, name in enumerate(names[at:], at):
        if name not in growing:
            yield of_numbers(table, name, stored[:, place], new[:, place], form=forms.get(name), spans=spans)


def drift(predictor: Any, graph: Any, read: Any, scores: Any) -> Any:
    """Return a pandas table of what changed, the largest PSI first.

    Columns: ``table`` (nodes, edges, scores), ``column``, ``what`` is in ``stored`` and ``new``, ``psi``, ``chance``, ``verdict``
    (stable, watch, shifted). ``attrs``: values never seen in training (``unseen``), names of columns that are not compared
    (``growing``), and by row its bins with the shares of stored and new rows (``shapes``; no bins of a share).

    Args:
        predictor: the model, with the party's stored graph.
        graph: graph in which the new rows are.
        read: `prediction_input.NewNodes` of tables; None: all rows of the graph are new.
        scores: predictions of the new items.

    Raises:
        FedGraphError: no stored graph, one with several types of nodes, or no rows.
    """
    import pandas as pd

    stored_graph = predictor.party_graph()
    if not isinstance(stored_graph, Graph) or not isinstance(graph, Graph):
        raise FedGraphError(f"{predictor.source}: drift compares graphs with one type of nodes")
    if graph.schema.get(ENTERING):  # payments from other parties are items of the new tables
        stored_graph = replace(stored_graph, schema={**stored_graph.schema, ENTERING: True})
    names = dict(zip((NODE, EDGE), predictor.feature_names(stored_graph), strict=True))
    forms = dict(zip((EDGE, NODE), forms_of(predictor, stored_graph), strict=True))
    growing = _growing(stored_graph)
    changes: list[Row] = []
    length = _days_of(graph, read, predictor)
    for kind, (stored, new) in _sides(predictor, stored_graph, graph, read).items():
        columns, table = predictor.input_spec.columns(kind), read.tables.get(kind, {}) if read else {}
        gaps = {name: _gaps(table[name], column) for name, column in columns.items() if name in table}
        time = own_rows(as_client(stored_graph, predictor.client), "edge_time").numpy() if kind == EDGE else None
        spans = None
        if time is not None and time.size == len(stored):
            settled = _settled(stored_graph, time)
            stored, time = stored[settled], time[settled]
            spans = spans_of(time, length) if length else None
        what, compared = WHAT[kind], names[kind][: stored.shape[1]]
        changes += of_features(what, columns, compared, stored, new, gaps, forms[kind], spans, growing[kind])
    rows = _new_nodes(read)
    strangers = (
        _strangers(stored_graph, graph) if hasattr(graph, "cut_out") else None
    )  # else edges to other parties are not read
    before, after = _spans(stored_graph, graph)
    for end, direction in ((1, "in"), (0, "out")):
        stored, new = _degrees(stored_graph, end, strangers, before), _degrees(graph, end, strangers, after)[rows]
        changes.append(of_numbers("nodes", f"degree {direction}", stored, new))
    changes += _of_scores(*_stored_scores(predictor, stored_graph, length), scores.to_frame())
    judged = pd.DataFrame(judge(changes)).sort_values("psi", ascending=False, kind="stable", ignore_index=True)
    table = judged.drop(columns=["counts", "days", "bins"])
    table.attrs["shapes"] = [
        (bins, *((side / max(side.sum(), 1)).tolist() for side in counts))
        for bins, counts in zip(judged["bins"], judged["counts"], strict=True)
    ]
    table.attrs["unseen"] = _unseen(predictor, read)
    table.attrs["growing"] = [f"{WHAT[kind]} {name}" for kind, listed in growing.items() for name in listed]
    return table


def _growing(stored_graph: Graph) -> dict[str, list[str]]:
    """Return the names of columns of own records whose values grow with the book, of nodes and of edges."""
    if (recipe := recipe_of(stored_graph)) is None:
        return {NODE: [], EDGE: []}
    nodes = (
        "nodes" in stored_graph.own_columns and "until" not in stored_graph.own_columns
    )  # else none, or of the time of training
    return {
        NODE: [column.name for column in recipe.node_columns if nodes],
        EDGE: [column.name for column in recipe.edge_columns if column.name.startswith(GROWING)],
    }


def _settled(stored_graph: Graph, time: Ints) -> NDArray[np.bool_]:
    """Return which stored edges have the longest window of the recipe behind them, or are of the later half of the time [E]."""
    recipe = recipe_of(stored_graph)
    if recipe is None or not time.size:
        return np.ones(time.size, dtype=bool)
    first, last = int(time.min()), int(time.max())
    return time >= min(first + max(recipe.seconds), (first + last) // 2)


def _strangers(stored_graph: Any, graph: Any) -> torch.Tensor:
    """Return the accounts of parties with which the stored file has no edge: it holds linked payments only, new rows are all."""
    if not len(graph.far_name):
        return torch.zeros(0, dtype=torch.int64)
    parties = np.char.partition(unpack_words(graph.far_name), BETWEEN)[:, 0]
    met = torch.isin(graph.far_id, torch.cat([stored_graph.cut_out[1], stored_graph.cut_in[1]])).numpy()
    known = parties[met]
    return graph.far_id[torch.from_numpy(~np.isin(parties, known) & ("" not in known))]


def _new_nodes(read: Any) -> Any:
    """Return the rows of new nodes among a graph's."""
    return slice(None) if read is None else read.rows


def _sides(predictor: Any, stored_graph: Graph, graph: Graph, read: Any) -> dict[str, tuple[Floats, Floats]]:
    """Return the features of stored and of new rows, of nodes and, if they have any, of edges.

    Raises:
        FedGraphError: no rows of one of them.
    """
    # Models of edges do not read columns of nodes from own records (`tasks.edges`), which are last.
    read_by = stored_graph.num_features - (
        int(stored_graph.own_columns.get("nodes", 0)) if predictor.predicts_edges else 0
    )
    both = {NODE: (_numbers(stored_graph.x[:, :read_by]), _numbers(graph.x[:, :read_by])[_new_nodes(read)])}
    if stored_graph.num_edge_features:
        stored, edges = (
            _numbers(own_rows(as_client(side, predictor.client), "edge_attr")) for side in (stored_graph, graph)
        )
        inner = stored_graph.edge_index.size(1) if read is not None and read.note else 0
        both[EDGE] = stored, edges[inner:] if read is None or not read.edges.size else edges[read.edges]
    if empty := [kind for kind, sides in both.items() if not all(map(len, sides))]:
        what = "nodes" if NODE in empty else "edges"
        raise FedGraphError(f"{predictor.source}: no {what} to compare: pass tables with rows")
    return both


def _days_of(graph: Any, read: Any, predictor: Any) -> int:
    """Return the number of days of the new edges; 0 without times."""
    time = own_rows(as_client(graph, predictor.client), "edge_time").numpy()
    if read is not None and time.size:
        time = time[read.edges] if read.edges.size else time[:0]
    return int(time.max() // DAY - time.min() // DAY + 1) if time.size else 0


def _stored_scores(predictor: Any, stored_graph: Graph, length: int) -> tuple[Any, Ints | None]:
    """Return predictions of stored items, as a table, and the span of days of each; without training items, if others exist."""
    if not predictor.task.capabilities.classes:
        return predictor.predict(stored_graph).to_frame(), None
    logits, task = predictor.items(stored_graph)
    held = task.masks["val"] | task.masks["test"]
    held = held if bool(held.any()) else torch.ones_like(held)
    time = getattr(task, "time", torch.zeros(0))
    spans = spans_of(time[held].numpy(), length) if length and time.numel() else None
    kept = logits[held]
    return Predictions(np.arange(len(kept)), kept, predictor.input_spec.classes).to_frame(), spans


def _unseen(predictor: Any, read: Any) -> dict[str, str]:
    """Return values that training never saw, with their numbers of rows, by column."""
    texts = {}
    for kind, what in WHAT.items():
        table = read.tables.get(kind, {}) if read else {}
        for name, column in predictor.input_spec.columns(kind).items():
            if column.kind == "category" and name in table:
                words, counts = np.unique(np.char.strip(as_words(table[name])), return_counts=True)
                new = [(int(n), str(w)) for w, n in zip(words, counts, strict=True) if w and w not in column.categories]
                if new:
                    texts[f"{what} {name}"] = ", ".join(f"'{word}' ({n} rows)" for n, word in sorted(new)[::-1][:3])
    return texts


def _of_scores(old: Any, spans: Ints | None, new: Any) -> list[Row]:
    """Return the rows of predicted numbers; of two classes, of the second one's probability."""
    listed = [name for name in old if name not in ("day", "id", "edge", "source", "target", "class")]
    listed = listed[1:] if len(listed) == 2 and "class" in old else listed
    old, new = (frame[listed].astype(np.float64).round(6) for frame in (old, new))  # other orders round otherwise
    return [of_numbers("scores", n, old[n].to_numpy(), new[n].to_numpy(), spans=spans) for n in listed]


def _numbers(x: torch.Tensor) -> Floats:
    return x.double().numpy()


def _spans(stored_graph: Graph, graph: Graph) -> tuple[Span, Span]:
    """Return times of equal length: the latest stored ones, and those after them; None if no edge of ``graph`` is later."""
    names = ("edge_time", "cut_out_edge_time", "cut_in_edge_time")
    stored, new = (torch.cat([getattr(g, name) for name in names if hasattr(g, name)]) for g in (stored_graph, graph))
    if not stored.numel() or not new.numel() or int(new.max()) <= int(stored.max()):
        return None, None
    last, end = int(stored.max()), int(new.max())
    length = min(end - last, last - int(stored.min()) + 1)
    return (last - length, last), (end - length, end)


def _degrees(graph: Any, end: int, strangers: torch.Tensor | None, span: Span) -> Floats:
    """Return the number of edges at each node as target (1) or source (0) in a span of time [N].

    Args:
        graph: N nodes.
        end: 1 or 0.
        strangers: accounts of other parties whose edges do not count; None: edges between parties do not count.
        span: the span; None for all times.
    """
    cut = ("cut_out", "cut_in")[end]
    sides = [(graph.edge_index[end], graph.edge_time)]
    if strangers is not None:
        (near, far), time = getattr(graph, cut), getattr(graph, f"{cut}_edge_time")
        known = ~torch.isin(far, strangers)
        sides.append((near[known], time[known] if time.numel() else time))
    kept = [nodes[(span[0] < time) & (time <= span[1])] if span else nodes for nodes, time in sides]
    return torch.cat(kept).bincount(minlength=graph.num_nodes).numpy().astype(np.float64)


def _gaps(column: Any, spec: Column) -> int:
    """Return the number of missing values of a table's column."""
    words = np.char.strip(as_words(column))
    return int((words == "").sum() if spec.kind == "category" else np.isin(np.char.lower(words), list(NOTHING)).sum())

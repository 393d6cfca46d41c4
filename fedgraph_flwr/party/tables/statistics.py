"""Statistics of several parties' tables without sharing rows: each party reports sums, and the sums yield a shared schema.

    mean = Σ_i n_i m_i / n,   var = Σ_i (q_i + n_i (m_i − mean)²) / n,   n = Σ_i n_i      (Chan, Golub & LeVeque 1983)

Party i reports the mean m_i of its n_i known values and q_i = Σ (t(v) − m_i)². They are equivalent to the sum and the sum of
squares, without the loss of precision.

Medians and quartiles come from a histogram whose edges do not depend on the data: values grow by 2^(1/4) from bin to bin, and
bins of fewer than ``floor`` rows are merged along a fixed binary tree. A quantile is interpolated within its bin, which is up to
19 % wide, and wider where a party has few rows. Categories come from counts. A party sends these sums for each column and the
names of its classes and columns. No bin, category or column has fewer than ``floor`` rows, and neither has a difference of
counts: the rows of rare categories, and of a missing value, are counted in what is sent.

A party with a role reports the columns of that role. The schema has those of all roles, each with the sums of who has it.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgraph_flwr.data.features import BEFORE, WHOLE
from fedgraph_flwr.data.preprocess import absent, moved
from fedgraph_flwr.data.schema import Column, Schema, TableLayout
from fedgraph_flwr.data.value_formats import ANY
from fedgraph_flwr.errors import MALFORMED, FedGraphError, first_line, sanitize
from fedgraph_flwr.party.tables.columns import counts, frequent, named_counts, natural, scale_of, values
from fedgraph_flwr.party.tables.reading import Say, silent

Reports = Sequence[tuple[str, Mapping[str, Any]]]
"""File name and sums (`read_sums`) of each party."""

FORMAT = 2
_STEP = 0.25  # binary logarithm of the growth from bin to bin
ERROR = 2**_STEP - 1
"""Largest relative error of a quantile in a bin that was not merged."""
_ZERO = 1e-9  # magnitudes up to this value share one bin
_LEVELS = 14  # of the tree; 2^14 bins cover all floats of both signs
_CENTER = 2 ** (_LEVELS - 1)  # the bin of zero


def party_sums(
    schema: Schema,
    tables: Mapping[str, tuple[Any, str]],
    floor: int,
    targets: Mapping[str, np.ndarray] | None = None,
    role: str = "",
) -> dict[str, Any]:
    """Compute the sums that one party reports.

    Args:
        schema: the party's columns and classes.
        tables: table and file name by node type.
        floor: minimum number of rows behind each reported value.
        targets: numbers to predict by column, NaN where unknown [N].
        role: role of the party, in a schema with roles.
    """
    sums: dict[str, dict[str, Any]] = {}
    for kind, columns in schema.nodes.items():
        sums[kind] = {}
        if kind not in tables:
            continue
        table, where = tables[kind]
        for name, column in columns.items():
            if column.kind != "ignored" and (not role or name in schema.roles[role].get(kind, ())):
                read = values(table[name], column, name, where)
                known = read[~absent(read)]
                sums[kind][name] = _sums(column, known, floor, _folded(known.size, read.size, floor))
    moments = {}
    for name, numbers in (targets or {}).items():
        known = numbers[~np.isnan(numbers)]
        figures = _moments(known) if known.size >= floor else {}
        moments[name] = figures | {"count": _folded(known.size, numbers.size, floor) if figures else 0}
    report = {"format": FORMAT, "floor": floor, "role": role, "schema": schema.to_dict(), "sums": sums}
    return report | ({"targets": moments} if moments else {})


def _moments(known: np.ndarray) -> dict[str, float]:
    """Return the number of values [N], their mean and the sum of squares around it."""
    mean = float(known.mean())
    return {"count": int(known.size), "mean": mean, "squares": float(((known - mean) ** 2).sum())}


def _pooled(sums: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return mean and variance over all parties' values from their `_moments`."""
    n = sum(s["count"] for s in sums)
    mean = sum(s["count"] * s["mean"] for s in sums) / n
    return mean, sum(s["squares"] + s["count"] * (s["mean"] - mean) ** 2 for s in sums) / n


def _folded(known: int, rows: int, floor: int) -> int:
    """Return the number of known values to report: all rows, if fewer than ``floor`` values are missing."""
    return rows if rows - known < floor else known


def _sums(column: Column, known: np.ndarray, floor: int, count: int) -> dict[str, Any]:
    """Return the sums of one column.

    Args:
        column: the column.
        known: its known values [N].
        floor: minimum number of rows behind each reported value.
        count: the number of known values to report.
    """
    if known.size < floor:
        return {"count": 0}
    if column.kind == "category":
        of = counts(known)
        often = {word: number for word, number in of.items() if number >= floor}
        if often and 0 < (rest := count - sum(often.values())) < floor:
            most = max(often, key=lambda word: often[word])
            often[most] += rest
        return {"count": count, "words": often}
    if column.kind == "flag":
        ones = int(known.sum())
        ones = 0 if ones < floor else count if known.size - ones < floor else ones
        return {"count": count, "ones": int(ones)}
    shifted = moved(column.scale, known)
    return {**_moments(shifted), "count": count, "bins": sketch(known, floor, count - known.size)}


def sketch(known: np.ndarray, floor: int, unknown: int = 0) -> dict[str, int]:
    """Count the values [N] by node of the tree, ``"level:index"``, in the order of their values.

    A node is divided as long as both halves have at least ``floor`` rows. Fewer rows in one half are counted in the other, if
    that has enough.

    Args:
        known: the values [N].
        floor: minimum number of rows of a node.
        unknown: rows without a value that are counted as if their values were like the others.
    """
    size = np.abs(known)
    number = np.ceil((np.log2(np.maximum(size, _ZERO)) - np.log2(_ZERO)) / _STEP).astype(np.int64)
    bins = np.sort(np.where(size <= _ZERO, 0, np.sign(known).astype(np.int64) * number)) + _CENTER
    tallies: dict[str, int] = {}
    open_nodes = [(_LEVELS, 0, bins, unknown)]
    while open_nodes:
        level, index, rows, more = open_nodes.pop()  # `more`: rows that were folded in
        middle = (2 * index + 1) << level - 1 if level else 0
        below = int(np.searchsorted(rows, middle)) if level else rows.size
        above = rows.size - below
        if not level or max(below, above) < floor:
            tallies[f"{level}:{index}"] = rows.size + more
        elif min(below, above) >= floor:
            share = round(more * below / rows.size)
            open_nodes.append((level - 1, 2 * index + 1, rows[below:], more - share))
            open_nodes.append((level - 1, 2 * index, rows[:below], share))
        elif below >= floor:
            open_nodes.append((level - 1, 2 * index, rows[:below], more + above))
        else:
            open_nodes.append((level - 1, 2 * index + 1, rows[below:], more + below))
    return tallies


def quantiles(bins: Mapping[str, int], levels: Sequence[float]) -> list[float]:
    """Return the quantiles at ``levels`` of a histogram from `sketch`, or of a sum of such histograms."""
    nodes = [(int(level), int(index), count) for (level, index), count in ((k.split(":"), c) for k, c in bins.items())]
    nodes.sort(key=lambda node: ((2 * node[1] + 1) << node[0], node[0]))  # by their middle
    upto = np.cumsum([count for *_, count in nodes])
    points = []
    for place in np.asarray(levels) * (upto[-1] - 1) + 0.5:
        at = min(int(np.searchsorted(upto, place, side="right")), len(nodes) - 1)
        level, index, count = nodes[at]
        points.append(_value((index + (place - upto[at] + count) / count) * 2.0**level))
    return points


def _value(edge: float) -> float:
    """Return the value at an edge between bins; between two edges, the interpolated one."""
    low = int(np.floor(edge))
    ends = [_edge(low), _edge(low + 1)]
    return float(ends[0] + (edge - low) * (ends[1] - ends[0]))


def _edge(number: int) -> float:
    """Return the lower edge of a bin."""
    power = number - _CENTER
    steps = power - 1 if power > 0 else -power
    size = 2.0 ** min(_STEP * steps + np.log2(_ZERO), 1023.9)
    return float(size if power > 0 else -size)


def read_sums(path: Path) -> dict[str, Any]:
    """Read a file with the `party_sums` of a party.

    Raises:
        FedGraphError: the file is missing or of another kind.
    """
    try:
        report = json.loads(path.read_text())
        if report["format"] != FORMAT:
            raise ValueError(f"format {report['format']}, expected {FORMAT}")
        report["schema"] = Schema.from_dict(report["schema"], str(path))
        report["sums"] = dict(report["sums"])
        return report
    except (OSError, *MALFORMED) as error:
        why = f"{path} holds no statistics of this release ({first_line(error)})"
        raise FedGraphError(f"{why}: create it with `fedgraph-flwr import --statistics {path}`") from error


def merge(parties: Reports, say: Say = silent, warn: Say = silent) -> Schema:
    """Merge the sums of several parties into one schema with statistics over all of them.

    Columns keep the order of the first party. Classes do too if all parties have the same ones, else they are in natural
    order. A column ignored by one party must be ignored or missing at all others.

    Args:
        parties: file name and content (`read_sums`) of each party.
        say: receives one line per difference between parties.
        warn: receives one line per value that parties seem to spell differently.

    Raises:
        FedGraphError: parties disagree about a column or ``undirected``, or a column has too few rows in total.
    """
    schemas = {name: report["schema"] for name, report in parties}
    kinds = sorted({kind for schema in schemas.values() for kind in schema.nodes})
    nodes = {kind: _merged_table(kind, parties, say, warn) for kind in kinds}
    classes = _merged_words([schema.classes for schema in schemas.values()])
    edges = tuple(sorted({edge for schema in schemas.values() for edge in schema.edges}))
    tables, undirected = _merged_layout(schemas, say), {schema.undirected for schema in schemas.values()}
    if len(undirected) > 1:
        both, one = (next(name for name, s in schemas.items() if s.undirected == report) for report in (True, False))
        raise FedGraphError(f"{both} was written with --undirected and {one} without: use the same option for both")
    labels = _merged_words([schema.edge_classes for schema in schemas.values()])
    targets = _merged_targets(parties)
    roles = {role: kinds for schema in schemas.values() for role, kinds in schema.roles.items()}
    return Schema(classes, nodes, edges, "federated", tables, undirected.pop(), labels, targets, roles=roles)


def _merged_words(words: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return all parties' classes: in the order of the first party if all have the same ones, else in natural order."""
    every = {word for ours in words for word in ours}
    return words[0] if all(set(ours) == every for ours in words) else tuple(sorted(every, key=natural))


def _merged_targets(parties: Reports) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation of each target over all parties; a spread of 1 for equal values.

    Raises:
        FedGraphError: parties have other targets, or too few values of one.
    """
    (first, report), *others = parties
    names = list(report.get("targets", {}))
    for other, its in others:
        if list(its.get("targets", {})) != names:
            ours, theirs = (", ".join(r.get("targets", {})) or "none" for r in (report, its))
            fix = "pass the same --predict-columns in both"
            raise FedGraphError(f"the targets are {ours} in {first} and {theirs} in {other}: {fix}")
    targets = {}
    for name in names:
        known = [its["targets"][name] for _, its in parties if its["targets"][name]["count"]]
        if not known:
            floor = report["floor"]
            raise FedGraphError(f"no party has {floor} rows with a value in the target '{name}': leave it out")
        mean, variance = _pooled(known)
        targets[name] = (mean, float(np.sqrt(variance)) or 1.0)
    return targets


def _merged_layout(schemas: Mapping[str, Schema], say: Say) -> TableLayout:
    """Return what all parties' layouts have in common; differing column names are the first party's."""
    layouts = {name: schema.tables.to_dict() for name, schema in schemas.items()}
    common = {}
    for key in dict.fromkeys(key for layout in layouts.values() for key in layout):
        values = {n: v for n, layout in layouts.items() if (v := layout.get(key, "")) or not schemas[n].roles}
        alike = len(set(values.values())) == 1
        common[key] = next(iter(values.values())) if alike or key not in ("separator", "encoding") else ""
        if key == "day":  # books with hours can be read by days, and those without only so
            common[key] = WHOLE if WHOLE in values.values() else BEFORE
            dated = ", ".join(name for name, layout in layouts.items() if layout.get(key) == WHOLE)
            if len(set(values.values())) > 1 or len(values) < len(layouts):
                say(f"times have no hours in {dated or 'none'}: all parties' records read {common[key]} days")
        elif not alike:
            listing = ", ".join(f"{_or_default(value)} in {name}" for name, value in values.items())
            keeps = f"the schema keeps {_or_default(common[key])}, so the other parties must pass their own"
            say(f"{key} of the tables is {listing}: {keeps}")
    return TableLayout(**common)


def _or_default(value: str) -> str:
    return f"'{value}'" if value else "the default"


def _merged_table(kind: str, parties: Reports, say: Say, warn: Say) -> dict[str, Column]:
    having = [(name, report) for name, report in parties if kind in report["schema"].nodes and report["sums"].get(kind)]
    if not having:
        return {}
    floor = max(int(report["floor"]) for _, report in having)
    merged = {}
    for name, column in _agreed_columns(kind, having, say).items():
        holding = [(party, report) for party, report in having if name in report["sums"][kind]]
        sums = [report["sums"][kind][name] for _, report in holding]
        marked = any(report["schema"].nodes[kind][name].missing for _, report in holding)
        merged[name] = _merged(name, replace(column, missing=marked), sums, floor)
        if column.kind == "category":
            texts = {party: report["sums"][kind][name].get("words", {}) for party, report in holding}
            _report_values(name, merged[name], texts, sum(s["count"] for s in sums), say, warn)
    return merged


def _agreed_columns(kind: str, having: Reports, say: Say) -> dict[str, Column]:
    """Return the columns of a type at all parties that have it, after checking that they use common ones alike."""
    first, columns, heads = having[0][0], dict[str, Column](), dict[str, tuple[str, dict[str, Column]]]()
    for name, report in having:
        its = {column: report["schema"].nodes[kind][column] for column in report["sums"][kind]}
        # parties of a role have the same columns
        head, expected = heads.setdefault(report.get("role", ""), (name, its))
        _check_columns(expected, its, head, name)
        common = [n for n in columns if n in its]
        _check_columns({n: columns[n] for n in common}, {n: its[n] for n in common}, first, name)
        columns |= {n: column for n, column in its.items() if n not in columns}  # the order of the first party
        for different in [n for n in common if columns[n].format != its[n].format]:
            say(f"formats of column '{different}' differ between {first} and {name}: each party's is detected")
            columns[different] = replace(columns[different], format=ANY if columns[different].kind == "number" else "")
    return columns


def _check_columns(ours: Mapping[str, Column], theirs: Mapping[str, Column], first: str, name: str) -> None:
    """Check that two parties use the same columns in the same way.

    Raises:
        FedGraphError: names the column, both parties and the option.
    """
    for column in dict.fromkeys([*ours, *theirs]):
        if column not in ours or column not in theirs:
            has, lacks = (first, name) if column in ours else (name, first)
            fix = f"import both with one --schema FILE, or pass kinds.{column}=ignored"
            raise FedGraphError(f"column '{column}' is used in {has} and not in {lacks}: {fix}")
        for what in ("kind", "scale"):
            a, b = getattr(ours[column], what), getattr(theirs[column], what)
            if a != b:
                fix = f"pass {what}s.{column}={what.upper()} in both"
                raise FedGraphError(f"column '{column}' has {what} {a} in {first} and {b} in {name}: {fix}")


def _report_values(
    name: str, column: Column, texts: Mapping[str, Mapping[str, int]], rows: int, say: Say, warn: Say
) -> None:
    """Report how many rows of a category become "other", and which values only one party has."""
    total = sum(map(Counter, texts.values()), Counter[str]())
    if lost := rows - sum(total[word] for word in column.categories):
        cut = {word: count for word, count in total.items() if word not in column.categories}
        named = f": {named_counts(cut)}" if cut else "; their values have too few rows to be shared"
        say(f"column '{name}': {lost} of {rows} rows become 'other'{named}")
    for party, tally in texts.items():
        others = {word for other, counted in texts.items() if other != party for word in counted}
        alone = {word: count for word, count in tally.items() if word not in others}
        if alone and others:
            text = f"column '{name}': only {party} has {named_counts(alone)}"
            if len(alone) == len(tally):
                theirs = named_counts({word: total[word] for word in others})
                warn(f"{text}, and no value of the other parties ({theirs}): use the same spelling")
            else:
                say(text)
    spelled: dict[str, str] = {}
    for word in total:
        if (other := spelled.setdefault(word.casefold(), word)) != word:
            two = f"'{sanitize(other, 30)}' and '{sanitize(word, 30)}'"
            warn(f"column '{name}': {two} are two values: use the same spelling")


def _merged(name: str, column: Column, sums: Sequence[Mapping[str, Any]], floor: int) -> Column:
    known = [s for s in sums if s["count"]]
    n = sum(s["count"] for s in known)
    if not n:
        raise FedGraphError(f"no party has {floor} rows with a value in column '{name}': pass kinds.{name}=ignored")
    if column.kind == "category":
        total = sum((Counter(s["words"]) for s in known), Counter[str]())
        categories = frequent(total, floor)
        fill = max(categories, key=lambda word: total[word]) if categories else ""
        return replace(column, categories=categories, statistics={"fill": fill})
    if column.kind == "flag":
        return replace(column, statistics={"fill": float(2 * sum(s["ones"] for s in known) > n)})
    bins = sum((Counter(s["bins"]) for s in known), Counter[str]())
    low, middle, high = quantiles(bins, [0.25, 0.5, 0.75])
    mean, variance = _pooled(known)
    scale = scale_of(column, (low, middle, high), mean, np.sqrt(variance))
    return replace(column, statistics={"fill": middle} | scale)

"""Statistics of several parties' tables without their rows: each tells sums, and the sums give one schema for all.

    mean = Σ_i n_i m_i / n,   var = Σ_i (q_i + n_i (m_i − mean)²) / n,   n = Σ_i n_i      (Chan, Golub & LeVeque 1983)

where party i tells of its n_i known values their mean m_i and q_i = Σ (t(v) − m_i)², which say the same as their sum and sum of
squares and lose no digits.

Medians and quartiles come from a histogram on a logarithmic grid (as DDSketch: Masson et al., VLDB 2019), which errs by at
most `ERROR` of the value, more where a party's rows are sparse; categories from counts. What leaves a party: these sums of
each column, the names of its classes and columns, and no bin, category or column with fewer than ``floor`` rows by itself.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgraph_flwr.data.columns import (
    absent,
    center_and_spread,
    counts,
    frequent,
    moved,
    named_counts,
    natural,
    values,
)
from fedgraph_flwr.data.graph import write_bytes
from fedgraph_flwr.data.schema import Column, Schema
from fedgraph_flwr.data.tables import TableLayout
from fedgraph_flwr.data.value_formats import ANY
from fedgraph_flwr.errors import FedGraphError, plain

FORMAT = 1
ERROR = 0.001
_GROWTH = np.log((1 + ERROR) / (1 - ERROR))
_ZERO = 1e-9  # smaller magnitudes share the bin 0
_SHIFT = 1 - int(np.floor(np.log(_ZERO) / _GROWTH))  # makes the number of every bin of a positive value positive


def party_sums(schema: Schema, tables: Mapping[str, tuple[Any, str]], floor: int) -> dict[str, Any]:
    """What one party tells.

    Args:
        schema: its columns and classes.
        tables: by node type, its table and the name of the file.
        floor: rows below which nothing is told by itself.
    """
    told: dict[str, dict[str, Any]] = {}
    for kind, columns in schema.nodes.items():
        told[kind] = {}
        if kind not in tables:
            continue
        table, where = tables[kind]
        for name, column in columns.items():
            if column.kind != "ignored":
                read = values(table[name], column, name, where)
                told[kind][name] = _sums(column, read[~absent(read)], floor)
    return {"format": FORMAT, "floor": floor, "schema": schema.to_dict(), "sums": told}


def _sums(column: Column, known: np.ndarray, floor: int) -> dict[str, Any]:
    if known.size < floor:
        return {"count": 0}
    if column.kind == "category":
        of = counts(known)
        often = {word: count for word, count in of.items() if count >= floor}
        return {"count": int(known.size), "words": often}
    if column.kind == "flag":
        ones = int(known.sum())
        ones = 0 if ones < floor else known.size if known.size - ones < floor else ones
        return {"count": int(known.size), "ones": int(ones)}
    shifted = moved(column, known)
    sums = {"mean": float(shifted.mean()), "squares": float(((shifted - shifted.mean()) ** 2).sum())}
    return {"count": int(known.size), **sums, "bins": {str(b): c for b, c in sketch(known, floor).items()}}


def sketch(known: np.ndarray, floor: int) -> dict[int, int]:
    """Rows by bin of the values [N], ascending; bins of fewer than ``floor`` rows are put together, named by their middle row."""
    size = np.abs(known)
    number = np.ceil(np.log(np.maximum(size, _ZERO)) / _GROWTH).astype(np.int64) + _SHIFT
    bins = np.sort(np.where(size <= _ZERO, 0, np.sign(known).astype(np.int64) * number))
    starts = np.flatnonzero(np.r_[True, bins[1:] != bins[:-1]]).tolist()
    cuts = [0]
    for start in starts:
        if start - cuts[-1] >= floor:
            cuts.append(start)
    if len(cuts) > 1 and len(bins) - cuts[-1] < floor:
        cuts.pop()
    ends = [*cuts[1:], len(bins)]
    merged: Counter[int] = Counter()
    for start, end in zip(cuts, ends, strict=True):
        merged[int(bins[(start + end - 1) // 2])] += end - start
    return dict(sorted(merged.items()))


def quantiles(bins: Mapping[int, int], levels: Sequence[float]) -> list[float]:
    """The values at these levels of a histogram that `sketch` made, or of several added up."""
    numbers = np.array(sorted(bins))
    upto = np.cumsum([bins[int(number)] for number in numbers])
    middle = np.sign(numbers) * np.exp((np.abs(numbers) - _SHIFT - 0.5) * _GROWTH)
    places = np.searchsorted(upto, np.asarray(levels) * (upto[-1] - 1), side="right")
    return [float(middle[min(place, len(middle) - 1)]) for place in places]


def read_sums(path: Path) -> dict[str, Any]:
    """Read what `write_sums` wrote.

    Raises:
        FedGraphError: it is missing, or another file.
    """
    try:
        told = json.loads(path.read_text())
        if told["format"] != FORMAT:
            raise FedGraphError(f"{path} has format {told['format']}, expected {FORMAT}: write it again")
        told["schema"] = Schema.from_dict(told["schema"], str(path))
        told["sums"] = dict(told["sums"])
        return told
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedGraphError(
            f"{path} holds no statistics; write them by `fedgraph-flwr import --statistics {path}`"
        ) from error


def write_sums(path: Path, told: Mapping[str, Any]) -> None:
    """Write a party's sums as JSON."""
    write_bytes(path, json.dumps(told, indent=1).encode())


def _silent(text: str) -> None:
    pass


def merge(
    parties: Sequence[tuple[str, Mapping[str, Any]]],
    say: Callable[[str], None] = _silent,
    warn: Callable[[str], None] = _silent,
) -> Schema:
    """The schema of several parties, with statistics over all of them.

    Columns stand in the order of the first party; classes are in the first party's order too if all name the same, else in
    natural order. A column that a party ignores must be ignored, or lacking, at all.

    Args:
        parties: name of each file, and what `read_sums` gives.
        say: receives what is merged otherwise than by all parties alike.
        warn: receives values that look as if parties wrote them differently.

    Raises:
        FedGraphError: parties disagree about a column or about ``undirected``, or together have too few rows of it.
    """
    (first, _), *_ = parties
    schemas = {name: told["schema"] for name, told in parties}
    kinds = sorted({kind for schema in schemas.values() for kind in schema.nodes})
    nodes = {kind: _merged_table(kind, parties, say, warn) for kind in kinds}
    classes = schemas[first].classes
    if any(set(schema.classes) != set(classes) for schema in schemas.values()):
        classes = tuple(sorted({word for schema in schemas.values() for word in schema.classes}, key=natural))
    edges = tuple(sorted({edge for schema in schemas.values() for edge in schema.edges}))
    tables, undirected = _merged_layout(schemas, say), {schema.undirected for schema in schemas.values()}
    if len(undirected) > 1:
        both, one = (next(name for name, s in schemas.items() if s.undirected == told) for told in (True, False))
        raise FedGraphError(f"{both} was written with --undirected and {one} without: use the same in both")
    return Schema(classes, nodes, edges, "federated", tables, undirected.pop())


def _merged_layout(schemas: Mapping[str, Schema], say: Callable[[str], None]) -> TableLayout:
    """What all parties' layouts have in common; names of columns that differ are the first party's."""
    layouts = {name: schema.tables.to_dict() for name, schema in schemas.items()}
    common = {}
    for key in dict.fromkeys(key for layout in layouts.values() for key in layout):
        values = {name: layout.get(key, "") for name, layout in layouts.items()}
        if len(set(values.values())) == 1:
            common[key] = next(iter(values.values()))
        else:
            told = ", ".join(
                f"'{value}' in {name}" if value else f"the default in {name}" for name, value in values.items()
            )
            if key not in ("separator", "encoding"):
                common[key] = next(iter(values.values()))
            keeps = f"the schema keeps '{common[key]}', so" if common.get(key) else "the schema keeps the default, so"
            say(f"{key} of the tables is {told}: {keeps} the others pass their own again")
    return TableLayout(**common)


def _merged_table(
    kind: str,
    parties: Sequence[tuple[str, Mapping[str, Any]]],
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> dict[str, Column]:
    having = [(name, told) for name, told in parties if kind in told["schema"].nodes and told["sums"].get(kind)]
    if not having:
        return {}
    (first, told), *others = having
    columns: dict[str, Column] = {n: c for n, c in told["schema"].nodes[kind].items() if c.kind != "ignored"}
    for name, other in others:
        theirs = {n: c for n, c in other["schema"].nodes[kind].items() if c.kind != "ignored"}
        for column in [*columns, *(n for n in theirs if n not in columns)]:
            if column not in columns or column not in theirs:
                has, lacks = (first, name) if column in columns else (name, first)
                raise FedGraphError(
                    f"column '{column}' is used in {has} and not in {lacks}: let both import with one --schema FILE, or say"
                    f" --kind {column}=ignored"
                )
            for what, remedy in (("kind", f"say --kind {column}=KIND"), ("scale", f"say --scale {column}=SCALE")):
                mine, its = getattr(columns[column], what), getattr(theirs[column], what)
                if mine != its:
                    raise FedGraphError(
                        f"column '{column}' has {what} {mine} in {first} and {its} in {name}: {remedy} in both"
                    )
            if columns[column].format != theirs[column].format:
                say(f"formats of column '{column}' differ between {first} and {name}: each party's is detected")
                columns[column] = replace(columns[column], format=ANY if columns[column].kind == "number" else "")
    floor = max(int(told["floor"]) for _, told in having)
    merged = {}
    for name, column in columns.items():
        sums = [told["sums"][kind][name] for _, told in having]
        marked = any(told["schema"].nodes[kind][name].missing for _, told in having)
        merged[name] = _merged(name, replace(column, missing=marked), sums, floor)
        if column.kind == "category":
            words = {party: told["sums"][kind][name].get("words", {}) for party, told in having}
            _report_words(name, merged[name], words, sum(s["count"] for s in sums), say, warn)
    return merged


def _report_words(
    name: str,
    column: Column,
    words: Mapping[str, Mapping[str, int]],
    rows: int,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Count the rows of a category that become "other", and name the values that only one party has."""
    total: Counter[str] = Counter()
    for told in words.values():
        total.update(told)
    if lost := rows - sum(total[word] for word in column.categories):
        cut = {word: count for word, count in total.items() if word not in column.categories}
        named = f": {named_counts(cut)}" if cut else "; their values have too few rows to leave a party"
        say(f"column '{name}': {lost} of {rows} rows become 'other'{named}")
    for party, told in words.items():
        others = {word for other, theirs in words.items() if other != party for word in theirs}
        alone = {word: count for word, count in told.items() if word not in others}
        if alone and others:
            text = f"column '{name}': only {party} has {named_counts(alone)}"
            if len(alone) == len(told):
                warn(
                    f"{text}, and no value of the other parties ({named_counts({w: total[w] for w in others})}): write them alike"
                )
            else:
                say(text)
    spelled: dict[str, str] = {}
    for word in total:
        if (other := spelled.setdefault(word.casefold(), word)) != word:
            warn(f"column '{name}': '{plain(other, 30)}' and '{plain(word, 30)}' are two values: write them alike")


def _merged(name: str, column: Column, sums: Sequence[Mapping[str, Any]], floor: int) -> Column:
    told = [s for s in sums if s["count"]]
    n = sum(s["count"] for s in told)
    if not n:
        raise FedGraphError(f"no party has {floor} rows with a value in column '{name}': say --kind {name}=ignored")
    if column.kind == "category":
        total: Counter[str] = Counter()
        for s in told:
            total.update(s["words"])
        categories = frequent(total, floor)
        fill = max(categories, key=lambda word: total[word]) if categories else ""
        return replace(column, categories=categories, statistics={"fill": fill})
    if column.kind == "flag":
        return replace(column, statistics={"fill": float(2 * sum(s["ones"] for s in told) > n)})
    bins: Counter[int] = Counter()
    for s in told:
        bins.update({int(b): count for b, count in s["bins"].items()})
    low, middle, high = quantiles(bins, [0.25, 0.5, 0.75])
    if column.scale == "none":
        scale = {"center": 0.0, "spread": 1.0}
    elif column.scale == "robust":
        scale = center_and_spread(middle, high - low)
    else:
        mean = sum(s["count"] * s["mean"] for s in told) / n
        variance = sum(s["squares"] + s["count"] * (s["mean"] - mean) ** 2 for s in told) / n
        scale = center_and_spread(mean, np.sqrt(variance))
    return replace(column, statistics={"fill": middle} | scale)

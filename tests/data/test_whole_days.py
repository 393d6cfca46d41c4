"""Columns of books without hours, whose records read the other records of their day, against plain pandas."""

import math

import numpy as np
import pandas as pd
import pytest

from fedgraph_flwr.data.features import ALIKE, DAY, LAST, NEVER, Book, Recipe, edge_columns, node_columns
from fedgraph_flwr.errors import FedGraphError
from tests.data.books import book, transformed

RECIPE = Recipe(windows=(1.0, 3.0), day="whole")


def table_of(b: Book) -> pd.DataFrame:
    """Return the records with the number of their day."""
    return pd.DataFrame({"source": b.source, "target": b.target, "day": b.time // DAY, "cents": b.cents})


def alike(one: pd.Series, others: pd.DataFrame) -> pd.DataFrame:
    """Return the records whose amounts are alike to one's, except those from an account to itself, with the gap of logarithms."""
    gap = (np.log(others["cents"].clip(lower=1)) - math.log(max(one["cents"], 1))).abs()
    fits = (gap < ALIKE) & (others["cents"] > 0) & (others["source"] != others["target"])
    fits &= one["cents"] > 0 and one["source"] != one["target"]
    return others[fits].assign(gap=gap[fits])


def within(rows: pd.DataFrame, day: int, days: float) -> pd.DataFrame:
    """Return the records of a window that ends with a day."""
    return rows[(rows["day"] <= day) & (rows["day"] > day - days)]


def depth(table: pd.DataFrame, one: pd.Series, days: float, most: int, today: bool) -> int:
    """Return the length of the longest row of alike records into the payer; only the last step may be within a day."""
    rows = within(table.drop(one.name), one["day"], days)
    rows = alike(one, rows[(rows["target"] == one["source"]) & (today | (rows["day"] < one["day"]))])
    return max((1 + depth(table, row, days, most - 1, False) for _, row in rows.iterrows() if most), default=0)


def by_pandas(b: Book, recipe: Recipe) -> dict[str, list[float]]:
    """Compute every column of records, before it is transformed."""
    table = table_of(b)
    columns: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        columns.setdefault(name, []).append(value)

    for place, one in table.iterrows():
        others = table.drop(place)
        earlier = others[others["day"] <= one["day"]]
        today = others[others["day"] == one["day"]]
        near, far = {"out": "source", "in": "target"}, {"out": "target", "in": "source"}
        add("amount", one["cents"] / 100)
        add("pair_before", ((earlier["source"] == one["source"]) & (earlier["target"] == one["target"])).sum())
        add("back_before", ((earlier["source"] == one["target"]) & (earlier["target"] == one["source"])).sum())
        later = alike(one, today[today["source"] == one["target"]])
        add("flow_out_count", len(later))
        add("flow_out_kept", (later["cents"] >= one["cents"]).sum())
        add("flow_out_gap", later["gap"].min() / ALIKE if len(later) else 1.0)
        for end in ("source", "target"):
            for way in ("out", "in"):
                rows = earlier[earlier[near[way]] == one[end]]
                add(f"since_{way}_{end}", (one["day"] - rows["day"].max()) * DAY if len(rows) else NEVER)
                for w, days in zip(recipe.labels, recipe.windows, strict=True):
                    inside = within(rows, one["day"], days)
                    add(f"n_{way}_{end}_{w}", len(inside))
                    add(f"sum_{way}_{end}_{w}", inside["cents"].sum() / 100)
                    add(f"partners_{way}_{end}_{w}", inside[far[way]].nunique())
        for w, days in zip(recipe.labels, recipe.windows, strict=True):
            inside = within(earlier, one["day"], days)
            into = inside[inside["target"] == one["source"]]
            like = alike(one, into).sort_values(["gap", "day"], ascending=[True, False])
            add(f"flow_in_count_{w}", len(like))
            add(f"flow_in_kept_{w}", (like["cents"] >= one["cents"]).sum())
            add(f"flow_in_gap_{w}", like["gap"].iloc[0] / ALIKE if len(like) else 1.0)
            add(f"flow_in_hours_{w}", 24 * (one["day"] - like["day"].iloc[0]) if len(like) else 24 * days)
            add(f"flow_in_depth_{w}", depth(table, one, days, 5, True))
            steps = {
                "in": (into, "source", "target"),
                "out": (inside[inside["source"] == one["target"]], "target", "source"),
            }
            for way, (rows, end, side) in steps.items():
                total = 0
                for q, row in rows.iterrows():
                    reached = within(others.drop(q), row["day"], days)
                    total += (reached[side] == row[end]).sum()
                add(f"hop2_{way}_{w}", total)
            paid = set(inside.loc[inside["source"] == one["source"], "target"])
            paying = set(inside.loc[inside["target"] == one["target"], "source"])
            add(f"common_{w}", len((paid & paying) - {one["source"], one["target"]}))
    return columns


@pytest.mark.parametrize("seed", range(4))
def test_columns_by_pandas(seed):
    b = book(seed, records=90, accounts=4 + 2 * (seed % 3), days=7.0, ties=seed % 2 == 0)
    assert (b.source == b.target).any()
    expected, columns = by_pandas(b, RECIPE), edge_columns(b, RECIPE)
    assert {c.name for c in RECIPE.edge_columns} == expected.keys()
    for place, column in enumerate(RECIPE.edge_columns):
        values = transformed(column.name, [float(value) for value in expected[column.name]])
        np.testing.assert_allclose(columns[:, place], values, atol=1e-5, err_msg=column.name)


def test_pairs_of_accounts_by_pandas():
    """A pair is a received record and a paid one of the same day, or up to two days later."""
    b = book(5, records=120, accounts=6)
    table, recipe = table_of(b), Recipe(windows=(3.0,), day="whole")
    values = node_columns(b, recipe, 6)
    column = {c.name: values[:, place] for place, c in enumerate(recipe.node_columns)}
    both = table.reset_index().merge(table.reset_index(), left_on="target", right_on="source", suffixes=("_in", "_out"))
    both = both[(both["index_in"] != both["index_out"]) & (both["day_out"] - both["day_in"]).between(0, 2)]
    pairs = both.groupby("target_in").size().reindex(range(6), fill_value=0)
    np.testing.assert_allclose(np.expm1(column["flow_count_3d"] + 1), pairs, atol=1e-4)
    proper = both[(both["source_in"] != both["target_in"]) & (both["source_out"] != both["target_out"])]
    apart = (np.log(proper["cents_in"].clip(lower=1)) - np.log(proper["cents_out"].clip(lower=1))).abs()
    close = proper[(apart < ALIKE) & (proper["cents_in"] > 0) & (proper["cents_out"] > 0)]
    like = close.groupby("target_in").size().reindex(range(6), fill_value=0)
    np.testing.assert_allclose(np.expm1(column["flow_alike_3d"] + 1), like, atol=1e-4)
    received = table.groupby("target").size().reindex(range(6), fill_value=0)
    passed = close.groupby("target_in")["index_in"].nunique().reindex(range(6), fill_value=0)
    share = np.divide(passed, received, out=np.zeros(6), where=received > 0)
    np.testing.assert_allclose(column["flow_in_3d"] * 0.5 + 0.5, share, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_later_days_and_the_order_of_a_day_change_no_column(seed):
    """Records of later days are replaced; those of a day change places and hours."""
    rng = np.random.default_rng(seed)
    b, noise = book(seed, 300), book(seed + 10, 500, accounts=12)
    cut = int(np.median(b.time)) // DAY * DAY
    early, late = b.time < cut, noise.time >= cut
    kept = b.where(early)
    other = Book.of([np.concatenate([getattr(kept, k), getattr(noise, k)[late]]) for k in vars(kept)])
    assert late.sum() > 100
    values = edge_columns(b, RECIPE)
    np.testing.assert_array_equal(values[early], edge_columns(other, RECIPE)[: early.sum()])
    order = rng.permutation(300)
    moved = Book(b.source, b.target, b.time // DAY * DAY + rng.integers(0, DAY, 300), b.cents).where(order)
    np.testing.assert_array_equal(values[order], edge_columns(moved, RECIPE))
    np.testing.assert_array_equal(node_columns(b, RECIPE, 7), node_columns(moved, RECIPE, 7))


@pytest.mark.parametrize("seed", range(3))
def test_a_record_does_not_read_itself(seed):
    """A record is doubled in all but its amount, source and target: what it reads does not depend on how it is written."""
    b = book(seed, 60, accounts=5)
    values = edge_columns(b, RECIPE)
    names = [c.name for c in RECIPE.edge_columns]
    amounts = [p for p, name in enumerate(names) if name == "amount" or name.startswith("flow_")]
    free = np.setdiff1d(np.arange(len(names)), amounts)
    for row in range(0, 60, 7):
        cents = b.cents.copy()
        cents[row] += 10**6  # a sum that read itself would change
        changed = edge_columns(Book(b.source, b.target, b.time, cents), RECIPE)
        np.testing.assert_array_equal(changed[row, free], values[row, free])


def test_a_record_alone_has_nothing_to_read():
    one = np.array([0]), np.array([1])
    row = edge_columns(Book(*one, np.array([5 * DAY]), np.array([100])), RECIPE)[0]
    names = [c.name for c in RECIPE.edge_columns]
    counts = [place for place, name in enumerate(names) if name.startswith(("n_", "partners_", "pair", "back", "hop2"))]
    np.testing.assert_array_equal(row[counts], -1.0)


def test_common_accounts_leave_the_record_out_of_the_last():
    """Both ends have more than `LAST` records of the day: the record takes no place among them."""
    many = np.arange(2, 2 + LAST)
    source = np.concatenate([0 * many, many, [0]])
    target = np.concatenate([many, 0 * many + 1, [1]])
    place = [c.name for c in RECIPE.edge_columns].index("common_1d")
    for cents in (1, 10**6):  # the first or the last of its day
        amounts = np.append(np.full(2 * LAST, 500), cents)
        columns = edge_columns(Book(source, target, 0 * source, amounts), RECIPE)
        assert round(math.expm1(columns[-1, place] + 1)) == LAST


def test_windows_are_whole_days_and_both_ways_round_trip():
    recipe = Recipe(windows=(0.25, 1.5), day="whole")
    assert recipe.labels == ["1d", "2d"]
    assert Recipe.from_dict(recipe.to_dict(), "a file") == recipe == Recipe.parse("payments", "0.25,1.5", "whole")
    assert "day" not in Recipe().to_dict()  # as earlier releases wrote it


def test_the_bound_of_private_payments_needs_an_order():
    with pytest.raises(FedGraphError, match="leave out last, or set day=before"):
        Recipe(last=8, day="whole")
    with pytest.raises(FedGraphError, match="day of a recipe"):
        Recipe(day="hour")

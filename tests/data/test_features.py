"""Columns of a party's own records, against a slow loop over small tables."""

import math
import re

import numpy as np
import pytest

from fedgraph_flwr.data import features
from fedgraph_flwr.data.features import (
    ALIKE,
    COUNT,
    DAY,
    DEPTH,
    HOURS,
    LAST,
    NEVER,
    SHARE,
    STEPS,
    SUM,
    Book,
    Recipe,
    cents_of,
    described_edges,
    described_nodes,
    edge_columns,
    node_columns,
)
from fedgraph_flwr.errors import FedGraphError
from tests.data.books import book, transformed

RECIPE = Recipe(windows=(2.0, 0.25))
"""Windows in any order."""


def by_hand(b: Book, recipe: Recipe) -> dict[str, list[float]]:
    """Compute every column of records by loops, before it is transformed."""
    rows = list(zip(b.source.tolist(), b.target.tolist(), b.time.tolist(), b.cents.tolist(), strict=True))
    columns: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        columns.setdefault(name, []).append(value)

    def touching(way: str, account: int, low: float, high: int) -> list[tuple[int, int, int, int]]:
        near = 0 if way == "out" else 1
        return [row for row in rows if row[near] == account and low <= row[2] < high]

    def depth(account: int, time: int, cents: int, days: float, most: int = DEPTH) -> int:
        """Length of the longest row of alike records into the account."""
        inside = touching("in", account, time - round(days * DAY), time)
        alike = [r for r in inside if cents and r[3] and abs(math.log(cents) - math.log(r[3])) < ALIKE]
        return max((1 + depth(r[0], r[2], r[3], days, most - 1) for r in alike if most > 0), default=0)

    for s, t, time, cents in rows:
        add("amount", cents / 100)
        for end, account in (("source", s), ("target", t)):
            for way in ("out", "in"):
                times = [row[2] for row in touching(way, account, -math.inf, time)]
                add(f"since_{way}_{end}", time - max(times) if times else NEVER)
        add("pair_before", sum(row[0] == s and row[1] == t and row[2] < time for row in rows))
        add("back_before", sum(row[0] == t and row[1] == s and row[2] < time for row in rows))
        for w, days in zip(recipe.labels, recipe.windows, strict=True):
            low = time - round(days * DAY)
            for end, account in (("source", s), ("target", t)):
                for way, far in (("out", 1), ("in", 0)):
                    inside = touching(way, account, low, time)
                    add(f"n_{way}_{end}_{w}", len(inside))
                    add(f"sum_{way}_{end}_{w}", sum(row[3] for row in inside) / 100)
                    add(f"partners_{way}_{end}_{w}", len({row[far] for row in inside}))
            apart = [
                (abs(math.log(cents) - math.log(row[3])), time - row[2], row[3])
                for row in touching("in", s, low, time)
                if cents and row[3] and abs(math.log(cents) - math.log(row[3])) < ALIKE
            ]
            add(f"flow_in_count_{w}", len(apart))
            add(f"flow_in_kept_{w}", sum(other >= cents for _, _, other in apart))
            add(f"flow_in_gap_{w}", min(apart)[0] / ALIKE if apart else 1.0)
            add(f"flow_in_hours_{w}", min(apart)[1] / 3600 if apart else days * 24)
            add(f"flow_in_depth_{w}", depth(s, time, cents, days))
            payers = touching("in", s, low, time)
            add(f"hop2_in_{w}", sum(len(touching("in", r[0], r[2] - round(days * DAY), r[2])) for r in payers))
            paid = touching("out", t, low, time)
            add(f"hop2_out_{w}", sum(len(touching("out", r[1], r[2] - round(days * DAY), r[2])) for r in paid))
            between = {r[1] for r in touching("out", s, low, time)} & {r[0] for r in touching("in", t, low, time)}
            add(f"common_{w}", len(between))
    return columns


@pytest.mark.parametrize("seed", range(6))
def test_columns_of_records_by_hand(seed):
    b = book(seed, accounts=4 + 3 * (seed % 3), ties=seed % 2 == 0)
    expected = by_hand(b, RECIPE)
    columns = edge_columns(b, RECIPE)
    assert {c.name for c in RECIPE.edge_columns} == expected.keys()
    for place, column in enumerate(RECIPE.edge_columns):
        np.testing.assert_allclose(
            columns[:, place], transformed(column.name, expected[column.name]), atol=1e-5, err_msg=column.name
        )


def test_common_reads_the_last_records_of_each_end():
    """Account 0 pays c to 99 others, which pay account 1: of those, each end's last 64 are read, which have 29 in common."""
    many = np.arange(2, 101)
    source = np.concatenate([0 * many, many, [0]])
    target = np.concatenate([many, 0 * many + 1, [1]])
    time = np.concatenate([many, 300 - many, [400]])
    columns = edge_columns(Book(source, target, time, 0 * time + 100), Recipe(windows=(1.0,), without=("flow_*",)))
    names = [c.name for c in Recipe(windows=(1.0,), without=("flow_*",)).edge_columns]
    last, first = set(many[-LAST:].tolist()), set(many[:LAST].tolist())
    assert round(math.expm1(columns[-1, names.index("common_1d")] + 1)) == len(last & first) == 29


@pytest.mark.parametrize("seed", range(3))
def test_order_of_records_changes_nothing(seed, monkeypatch):
    b = book(seed, 300)
    order = np.random.default_rng(seed).permutation(300)
    monkeypatch.setattr(features, "CHUNK", 50)
    np.testing.assert_array_equal(edge_columns(b, RECIPE)[order], edge_columns(b.where(order), RECIPE))
    np.testing.assert_array_equal(node_columns(b, RECIPE, 7), node_columns(b.where(order), RECIPE, 7))


@pytest.mark.parametrize("day", ["before", "whole"])
@pytest.mark.parametrize(("seed", "accounts"), [(0, 7), (1, 7), (2, 40), (3, 40), (4, 120)])
def test_columns_of_some_records_are_those_of_all(seed, accounts, day, monkeypatch):
    """Also where money passes through many accounts in a row; with many accounts, most records are not looked at."""
    b, rng = book(seed, 600, accounts), np.random.default_rng(seed)
    chain = np.arange(9)
    b = Book(
        *(
            np.concatenate(pair)
            for pair in zip(
                (b.source, b.target, b.time, b.cents),
                (chain % accounts, (chain + 1) % accounts, chain * 50_000 - 10**6, 777_000 - chain * 5_000),
                strict=True,
            )
        )
    )
    recipe, looked = Recipe(windows=(0.25, 2.0), day=day), []
    values = features._edge_values

    def counted(book, *given, asked=None, **more):
        looked.append((book.time.size, 0 if asked is None else int(asked.sum())))
        return values(book, *given, asked=asked, **more)

    monkeypatch.setattr(features, "_edge_values", counted)
    every = edge_columns(b, recipe)
    assert looked == [(609, 0)]
    for rows in (rng.choice(609, 20), np.array([608, 3, 3]), np.arange(0)):
        np.testing.assert_array_equal(edge_columns(b, recipe, rows=rows), every[rows])
    assert looked[-1] == (0, 0)
    assert accounts < 120 or looked[2][0] < 100, "of two records, few others are read"


@pytest.mark.parametrize("seed", range(3))
def test_order_of_records_of_one_time_changes_nothing(seed):
    """More records of two accounts than are read, many of them at one time."""
    rng = np.random.default_rng(seed)
    size = 600
    source, target = rng.integers(0, 4, size), rng.integers(0, 40, size)
    swap = rng.random(size) < 0.5
    source, target = np.where(swap, target, source), np.where(swap, source, target)
    b = Book(source, target, DAY * rng.integers(0, 6, size), rng.integers(1, 9_999, size))
    recipe, order = Recipe(windows=(7.0,), without=("flow_*",)), rng.permutation(size)
    columns, other = edge_columns(b, recipe), edge_columns(b.where(order), recipe)
    np.testing.assert_array_equal(columns[order], other)
    assert np.unique(columns[:, [c.name for c in recipe.edge_columns].index("common_7d")]).size > 3


@pytest.mark.parametrize("seed", range(3))
def test_later_records_change_no_column(seed):
    """Records from τ on are replaced by others, of other number, accounts and amounts."""
    b, noise = book(seed, 300), book(seed + 10, 500, accounts=12)
    cut = int(np.median(b.time))
    early, late = b.time < cut, noise.time >= cut
    kept = b.where(early)
    other = Book(
        *(
            np.concatenate([getattr(kept, key), getattr(noise, key)[late]])
            for key in ("source", "target", "time", "cents")
        )
    )
    assert late.sum() > 100
    np.testing.assert_array_equal(edge_columns(b, RECIPE)[early], edge_columns(other, RECIPE)[: early.sum()])
    np.testing.assert_array_equal(
        node_columns(b, RECIPE, 7, until=cut - 1), node_columns(other, RECIPE, 7, until=cut - 1)
    )


def test_columns_of_accounts_by_hand():
    """Account 0 gets 100, passes 95 on to 2 after an hour, which passes 92 on to 3, who is elsewhere; 1 gets nothing back."""
    source, target = np.array([1, 0, 2, 1]), np.array([0, 2, 3, 0])
    time, cents = np.array([0, 3600, 7200, 5 * DAY]), np.array([10_000, 9_500, 9_200, 700])
    recipe = Recipe(windows=(1.0,))
    table = node_columns(Book(source, target, time, cents), recipe, 3)
    columns = {column.name: table[:, place] for place, column in enumerate(recipe.node_columns)}

    def read(name: str, form: features.Form) -> list[float]:
        values = columns[name].astype(np.float64) * form.scale + form.center
        return (np.expm1(values) if form.log else values).round(3).tolist()

    assert read("n_out", COUNT) == [1, 2, 1]
    assert read("sum_in", SUM) == pytest.approx([107, 0, 95], abs=0.01)
    assert read("mean_out", SUM) == pytest.approx([95, 53.5, 92], abs=0.01)
    assert read("partners_out", COUNT) == [1, 1, 1]
    assert read("elsewhere_out", SHARE) == [0, 0, 1]
    assert read("hop2_in", COUNT) == [0, 0, 1]
    assert read("flow_count_1d", COUNT) == [1, 0, 1]
    assert read("flow_alike_1d", COUNT) == [1, 0, 1]
    assert read("flow_share_1d", SHARE) == [1, 0, 1]
    assert read("flow_kept_1d", COUNT) == [1, 0, 1]
    assert read("flow_in_1d", SHARE) == [0.5, 0, 1]
    assert read("flow_sum_1d", SHARE) == [1, 0, 1]
    assert read("flow_chain_1d", COUNT) == [1, 0, 0]  # 3 is elsewhere: whether it passes money on is not in the book
    assert read("flow_depth_1d", STEPS) == [3, 0, 3]
    assert read("flow_first_1d", STEPS) == [1, 2, 0]
    assert read("flow_last_1d", STEPS) == [0, 0, 1]
    assert read("flow_gap_1d", SHARE) == pytest.approx(
        [math.log(100 / 95) / ALIKE, 1, math.log(95 / 92) / ALIKE], abs=1e-3
    )
    assert read("flow_hours_1d", HOURS) == pytest.approx([1, 24, 1], abs=1e-3)


def test_money_that_keeps_more_than_90_percent_is_alike():
    """Accounts 1 to 4 receive 100 and pass on the cents below; a payment of account 0 comes first."""
    kept = np.array([9001, 8999, 9900, 11111, 11112])
    pay, many = np.arange(1, 6), len(kept)
    zeros = np.zeros(many, np.int64)
    b = Book(
        np.append(zeros, pay), np.append(pay, zeros + 6), np.append(zeros, zeros + 60), np.append(zeros + 10_000, kept)
    )
    recipe = Recipe(windows=(1.0,))
    place = [c.name for c in recipe.edge_columns].index("flow_in_count_1d")
    counts = np.expm1(edge_columns(b, recipe)[many:, place] * COUNT.scale + COUNT.center)
    np.testing.assert_allclose(counts, [1, 0, 1, 1, 0], atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_alike_records_from_and_to_an_account_by_hand(seed):
    b = book(seed, accounts=6, records=80)
    rows = list(zip(b.source.tolist(), b.target.tolist(), b.time.tolist(), b.cents.tolist(), strict=True))

    def longest(row: tuple[int, ...], days: float, forward: bool, most: int = DEPTH) -> int:
        """Length of the longest row of alike records that follows a record, or leads to it."""
        near, far, way = (1, 0, 1) if forward else (0, 1, -1)
        alike = [
            r
            for r in rows
            if r[far] == row[near]
            and 0 < way * (r[2] - row[2]) <= round(days * DAY)
            and row[3]
            and r[3]
            and abs(math.log(row[3]) - math.log(r[3])) < ALIKE
        ]
        return max((1 + longest(r, days, forward, most - 1) for r in alike if most > 0), default=0)

    table = node_columns(b, RECIPE, 6)
    for place, column in enumerate(RECIPE.node_columns):
        kind, _, w = column.name.rpartition("_")
        if kind in ("flow_first", "flow_last"):
            days = dict(zip(RECIPE.labels, RECIPE.windows, strict=True))[w]
            near, forward = (0, True) if kind == "flow_first" else (1, False)
            lengths = [max((longest(r, days, forward) for r in rows if r[near] == a), default=0) for a in range(6)]
            np.testing.assert_array_equal(table[:, place] * STEPS.scale + STEPS.center, lengths, err_msg=column.name)


def test_parties_read_their_own_books():
    """Columns of several parties' records in one pass equal those of each party's book."""
    b = book(3, 300, accounts=9)
    party = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    joined = edge_columns(b, RECIPE, party)
    of_nodes = node_columns(b, RECIPE, 9, party)
    for member in range(3):
        mine = (party[b.source] == member) | (party[b.target] == member)
        alone = edge_columns(b.where(mine), RECIPE)
        sent = party[b.source] == member
        np.testing.assert_array_equal(joined[sent], alone[sent[mine]])
        order = np.argsort(party != member, kind="stable")  # own accounts first, as a party numbers them
        place = np.argsort(order)
        part = b.where(mine)
        part = Book(place[part.source], place[part.target], part.time, part.cents)
        count = int((party == member).sum())
        np.testing.assert_array_equal(of_nodes[party == member], node_columns(part, RECIPE, count))


def test_every_column_is_documented():
    recipe = Recipe()
    described = (described_edges, recipe.edge_columns), (described_nodes, recipe.node_columns)
    for function, columns in described:
        assert len({column.name for column in columns}) == len(columns)
        for column in columns:
            name = re.sub(f"_({'|'.join(recipe.labels)})$", "_W", column.name)
            name = re.sub("_(source|target)", "_END", name)
            short = re.sub("_(out|in)(?=_END|_W|$)", "_WAY", name)
            assert {name, short} & set(re.findall(r"[\w]+", function.__doc__)), column.name


def test_no_records():
    none = np.zeros(0, dtype=np.int64)
    assert edge_columns(Book(none, none, none, none), RECIPE).shape == (0, len(RECIPE.edge_columns))
    table = node_columns(Book(none, none, none, none), RECIPE, 3)
    assert table.shape == (3, len(RECIPE.node_columns))
    assert np.isfinite(table).all()


@pytest.mark.parametrize("shape", ["star", "all alike", "two accounts"])
def test_many_records_of_one_account(shape):
    """No quadratic time, however the records of one account look."""
    size = 60_000
    rng = np.random.default_rng(0)
    source, target = np.zeros(size, dtype=np.int64), 1 + np.arange(size) % (2_000 if shape == "star" else 1)
    swapped = rng.random(size) < 0.5
    source, target = np.where(swapped, target, source), np.where(swapped, source, target)
    cents = np.full(size, 10_000) if shape == "all alike" else rng.integers(1, 10**6, size)
    columns = edge_columns(Book(source, target, rng.integers(0, 2 * DAY, size), cents), Recipe(windows=(1.0,)))
    assert np.isfinite(columns).all()


def test_left_out_columns():
    recipe = Recipe(windows=(1.0,), without=("flow_*", "common_*"))
    assert not [c.name for c in (*recipe.edge_columns, *recipe.node_columns) if c.name.startswith(("flow", "common"))]
    b = book(0)
    whole = Recipe(windows=(1.0,))
    kept = [place for place, column in enumerate(whole.edge_columns) if recipe.keeps(column.name)]
    np.testing.assert_array_equal(edge_columns(b, recipe), edge_columns(b, whole)[:, kept])
    assert node_columns(b, recipe, 7).shape == (7, len(recipe.node_columns))


def test_recipe_as_text():
    recipe = Recipe(windows=(1.0, 0.5), without=("flow_*",))
    assert Recipe.from_dict(recipe.to_dict(), "x") == recipe
    assert Recipe.from_dict({"windows": ["1", "0.5"], "without": ["flow_*"]}, "x") == recipe


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "payment"}, "recipe of features 'payment'"),
        ({"windows": [0]}, "windows of a recipe must be numbers of days above 0"),
        ({"windows": []}, "got none"),
        ({"windows": [float("nan")]}, "windows"),
        ({"windows": ["two"]}, r"features.windows .features=x. must be a list of numbers, got \['two'\]"),
        ({"without": ["flows_*"]}, "column of the recipe 'flows_\\*'"),
        ({"window": [1]}, "features key 'window' is unknown"),
        ("payments", "features .features=x. must be keys with values, got 'payments'"),
    ],
)
def test_wrong_recipes(values, message):
    with pytest.raises(FedGraphError, match=message):
        Recipe.from_dict(values, "x")


def test_amounts():
    cents, odd = cents_of(np.array([1.005, 0.0, -3.0, 12.34]), "x")
    assert (cents.tolist(), odd) == ([100, 0, 0, 1234], 2)
    with pytest.raises(FedGraphError, match="x: row 2 has no amount"):
        cents_of(np.array([1.0, np.nan]), "x")
    with pytest.raises(FedGraphError, match="amounts sum to 2e"):
        cents_of(np.array([1e17, 1e17]), "x")

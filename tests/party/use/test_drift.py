"""Drift of new tables against the stored ones: PSI by a slow loop, identical data, and planted changes."""

import html
import json
import math
import re

import numpy as np
import pandas as pd
import pytest

from fedgraph_flwr import cli
from fedgraph_flwr.data.features import COUNT, DAY, GROWING, Book, Recipe, edge_columns
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.use.drift import binned, of_numbers, psi
from tests.party import bank_books, banks, two_banks


def slow(stored, new):
    """PSI of two lists of numbers, value by value."""
    ordered = sorted(stored)
    edges = sorted({ordered[math.ceil(k * len(ordered) / 10) - 1] for k in range(1, 10)} | {ordered[-1]})

    def place(value):
        if value < ordered[0]:
            return -1
        return next((i for i, edge in enumerate(edges) if value <= edge), len(edges))

    total = 0.0
    size = len(edges) + 2
    for b in range(-1, len(edges) + 1):
        p, q = ((sum(place(v) == b for v in side) + 0.5) / (len(side) + size / 2) for side in (stored, new))
        total += (q - p) * math.log(q / p)
    return total


@pytest.mark.parametrize("seed", range(6))
def test_psi_is_that_of_a_slow_loop(seed):
    rng = np.random.default_rng(seed)
    stored, new = (np.round(rng.normal(shift, 1 + seed / 3, size), seed % 3) for shift, size in ((0, 211), (0.3, 97)))
    index, _ = psi(*binned(stored, new))
    assert index == pytest.approx(slow(stored.tolist(), new.tolist()), rel=1e-12)
    assert psi(*binned(stored, rng.permutation(new)))[0] == index
    assert psi(*binned(stored, rng.permutation(stored)))[0] == 0


def test_equal_distributions_stay_below_chance():
    """About 99 % of samples of one law, as small as a day's file, are below the limit; a fifth of them would be above 0.25."""
    rng = np.random.default_rng(0)
    indices = np.array([psi(*binned(rng.normal(size=400), rng.normal(size=40))) for _ in range(400)])
    assert (indices[:, 0] > 0.25).mean() > 0.1
    assert (indices[:, 0] <= indices[:, 1]).mean() >= 0.98
    indices = np.array([psi(*binned(rng.normal(size=1000), rng.normal(size=50))) for _ in range(1000)])
    passed = (indices[:, 0] > indices[:, 1]).sum()
    assert 2 <= passed <= 18, "10 of 1,000 are expected, ± 2.5 standard deviations"
    with pytest.raises(FedGraphError, match="no rows to compare: 0 are stored and 3 are new"):
        psi(np.zeros(2), np.array([1.0, 2]))


def test_medians_of_own_columns_are_numbers_not_their_transform():
    """A median of "-0.307" payments is 1: the model reads ln(1 + n) − 1."""
    stored, new = np.array([0.0, 1, 5]), np.array([2.0, 3, 4])
    row = of_numbers("edges", "n_in_2d", np.log1p(stored) - 1, np.log1p(new) - 1, form=COUNT)
    assert (row["stored"], row["new"]) == (1, 3)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """One bank's client file, and a run on it."""
    place = tmp_path_factory.mktemp("drift")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAPH_DATA", str(place / "root"))
        for number, (nodes, edges) in enumerate(banks.write(place, customers=200).values()):
            words = ["--nodes", nodes, "--edges", edges, "--schema", place / "schema.yaml", "--client", number]
            words += ["--classes", "ok,fraud", "columns.split=part", "scales.income=log"] if not number else []
            words += ["--num-clients", 3, "--out", place / f"parts/client_{number:04d}.safetensors"]
            assert cli.main(["import", *map(str, words)]) == 0
        words = [f"graph={place / 'parts'}", "rounds=2", f"out={place / 'run'}", "--quiet", "--no-report"]
        assert cli.main(["run", *words]) == 0
        yield place


@pytest.fixture
def compare(place, tmp_path, capsys):
    """Run the command on changed tables of bank a."""

    def run(change=lambda people, payments: (people, payments)):
        people, payments = change(pd.read_csv(place / "a_customers.csv"), pd.read_csv(place / "a_payments.csv"))
        files = [tmp_path / name for name in ("nodes.csv", "edges.csv", "drift.csv")]
        people.to_csv(files[0], index=False)
        payments.to_csv(files[1], index=False)
        words = ["drift", place / "run", "--client", 0, "--nodes", files[0], "--edges", files[1], "--out", files[2]]
        code = cli.main([*map(str, words)])
        return code, pd.read_csv(files[2]) if files[2].is_file() else None, capsys.readouterr().out

    return run


def test_drift_without_new_items_is_refused(place, capsys):
    assert cli.main(["drift", str(place / "run"), "--client", "0"]) == 2
    assert "drift compares new items with stored ones: pass --nodes FILE" in capsys.readouterr().err


def test_the_stored_data_have_not_drifted(compare):
    code, table, text = compare()
    assert (code, table[table["table"] != "scores"]["psi"].abs().max()) == (
        0,
        0.0,
    )  # scores: with items that did not train
    assert set(table["verdict"]) == {"stable"}
    assert {"nodes", "scores"} == set(table["table"])
    assert "0 of" in text
    income = table[table["column"] == "income"].iloc[0]
    assert income["stored"] == income["new"]
    _, permuted, _ = compare(lambda people, payments: (people.sample(frac=1, random_state=0), payments.iloc[::-1]))
    pd.testing.assert_frame_equal(
        permuted.sort_values(["table", "column", "what"], ignore_index=True),
        table.sort_values(["table", "column", "what"], ignore_index=True),
    )


def test_the_shifted_column_is_named_in_its_unit(compare, place):
    income = pd.read_csv(place / "a_customers.csv")["income"]
    code, table, text = compare(lambda people, payments: (people.assign(income=people["income"] * 3), payments))
    assert code == 3
    nodes = table[table["table"] == "nodes"]
    assert nodes.loc[nodes["verdict"] == "shifted", "column"].tolist() == ["income"]
    first = nodes.iloc[0]
    assert (first["stored"], first["new"]) == pytest.approx((income.median(), 3 * income.median()), rel=1e-4)
    assert "nodes income (median)" in text


def test_unseen_and_missing_values_and_degrees_are_named(compare):
    def change(people, payments):
        rows = np.arange(len(people))
        people["trade"] = people["trade"].where(rows % 4 > 0, "astronaut")
        people["balance"] = people["balance"].where(rows % 3 > 0)
        return people, pd.concat([payments] * 4).assign(target=people["id"].iloc[0])

    code, table, _ = compare(change)
    assert code == 3
    named = table.set_index(["table", "column", "what"])
    assert named.loc[("nodes", "trade", "unseen"), "new"] >= 0.25
    assert named.loc[("nodes", "trade", "unseen"), "verdict"] == "shifted"
    missing = named.loc[("nodes", "balance", "missing")]
    assert missing["new"] == pytest.approx(67 / 200)
    assert missing["verdict"] == "shifted"
    assert named.loc[("nodes", "degree out", "median"), "verdict"] == "shifted"
    assert named.loc[("nodes", "age", "median"), "verdict"] == "stable"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nodes", "x.csv", "--edges", "y.csv"], "pass --client I, or the state folder of a node"),
        (["--client", "0"], "pass --nodes FILE and --edges FILE"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(words, says, place, capsys):
    assert cli.main(["drift", str(place / "run"), *words]) == 2
    assert says in capsys.readouterr().err


def test_payments_of_a_day_are_compared_with_all_stored_ones(tmp_path, capsys):
    """Payments to, from and within other banks: amounts ten times as large are named, and a day like the others is not.

    Numbers of payments per account are those of the latest stored payments over the time that the new ones take.
    """
    rows = two_banks.payments()
    history = two_banks.books(tmp_path / "history", rows[:240])
    words = [
        "run",
        "task=edges",
        f"graph={history}",
        "rounds=1",
        "model.hidden=8",
        f"out={tmp_path / 'run'}",
        "--quiet",
    ]
    assert cli.main([*words, "--no-report"]) == 0
    new = rows[240:][(rows[240:][["from_bank", "to_bank"]] == "A").any(axis=1)]
    words = [
        "drift",
        tmp_path / "run",
        "--client",
        0,
        "--nodes",
        tmp_path / "history/a.csv",
        "--edges",
        tmp_path / "day.csv",
    ]
    for factor, code in ((1, 0), (10, 3)):
        new.assign(amount=new["amount"] * factor).to_csv(tmp_path / "day.csv", index=False)
        assert cli.main([*map(str, words), "--out", str(tmp_path / "drift.csv")]) == code, capsys.readouterr()
        table = pd.read_csv(tmp_path / "drift.csv").set_index(["table", "column"])
        edges = table.loc["edges"]
        assert (edges.loc["amount", "verdict"] == "shifted") == (factor == 10)
        stored = rows[:240][(rows[:240][["from_bank", "to_bank"]] == "A").any(axis=1)]["amount"]
        assert edges.loc["amount", "new"] == pytest.approx(factor * new["amount"].median(), rel=1e-6)
        assert edges.loc["amount", "stored"] == pytest.approx(stored.median(), rel=1e-6)
    bank_rows = rows[(rows[["from_bank", "to_bank"]] == "A").any(axis=1)]
    stored, new = bank_rows[bank_rows.index < 240], bank_rows[bank_rows.index >= 240]
    latest = stored[stored["at"] > stored["at"].max() - (new["at"].max() - stored["at"].max())]
    assert len(latest) < len(stored) / 2
    ids = pd.read_csv(tmp_path / "history/a.csv")["id"]
    for end, direction in (("source", "out"), ("target", "in")):
        counts = [side[end].value_counts().reindex(ids, fill_value=0) for side in (latest, new)]
        row = table.loc[("nodes", f"degree {direction}")]
        assert (row["stored"], row["new"]) == tuple(count.median() for count in counts)
        assert row["psi"] == pytest.approx(psi(*binned(*(count.to_numpy(float) for count in counts)))[0])


@pytest.mark.parametrize("day", ["before", "whole"])
def test_columns_that_grow_with_the_book_are_those_without_a_bound_in_time(day):
    """Records of the last day read at most five windows back (a row of five alike amounts), except in growing columns."""
    rng = np.random.default_rng(0)
    count, days, window = 400, 60, 1
    source, target = rng.integers(30, size=(2, count))
    time = np.sort(rng.integers(days * DAY, size=count))
    book = Book(source, target, time, rng.integers(100, 130, count))
    recipe = Recipe(windows=(window,), day=day)
    late = time >= (days - 6 * window - 1) * DAY
    last = time >= (days - 1) * DAY
    whole, part = edge_columns(book, recipe)[last], edge_columns(book.where(late), recipe)[last[late]]
    differs = (whole != part).any(axis=0)
    names = [column.name for column in recipe.edge_columns]
    assert {name for name, other in zip(names, differs, strict=True) if other} == {
        name for name in names if name.startswith(GROWING)
    }


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """Two of three banks, linked, a model of their payments, and the third week of the first one."""
    folder = tmp_path_factory.mktemp("desk")
    rows = bank_books.payments(21, names=("a", "b", "c"))
    linked = bank_books.banks(folder, rows[rows.day < 14])
    words = ["task=edges", "strategy=boosting", "strategy.min_data_in_leaf=5", "--quiet", "--no-report"]
    assert cli.main(["run", f"graph={linked}", f"out={folder / 'run'}", *words]) == 0
    week = bank_books.of_bank(rows[rows.day >= 14], "a").drop(columns=["day", "fraud"])
    return folder, rows, week


@pytest.mark.parametrize(("factor", "code"), [(1, 0), (10, 3)], ids=["quiet", "shifted"])
def test_a_quiet_week_of_a_book_is_quiet_and_a_shift_is_not(desk, tmp_path, capsys, factor, code):
    """What counts all earlier payments is named, not compared; degrees leave out a bank with which there is no link."""
    folder, rows, week = desk
    week.assign(amount=factor * week["amount"]).to_csv(tmp_path / "week.csv", index=False)
    words = ["drift", folder / "run", "--client", 0, "--party-file", folder / "a.yaml"]
    words += ["--nodes", folder / "a_accounts.csv", "--edges", tmp_path / "week.csv", "--out", tmp_path / "drift.csv"]
    outcome = cli.main([*map(str, words)])
    said = capsys.readouterr().out
    assert outcome == code, said
    assert "not compared, because they grow with the book: edges since_out_source, " in said
    outcome = pd.read_csv(tmp_path / "drift.csv").set_index("column")
    assert not [name for name in outcome.index if name.startswith(GROWING)]
    assert outcome.loc["amount", "verdict"] == ("shifted" if factor == 10 else "stable")
    ids = pd.read_csv(folder / "a_accounts.csv")["id"]
    both = rows[rows[["from_bank", "to_bank"]].isin(["A", "B"]).all(axis=1)]
    for end, direction in (("source", "out"), ("target", "in")):
        for name, span in (("stored", both.day.between(7, 13)), ("new", both.day >= 14)):
            count = both[span][end].value_counts().reindex(ids, fill_value=0)
            assert abs(outcome.loc[f"degree {direction}", name] - count.median()) <= 1  # the spans end within a day


def test_a_value_never_seen_comes_first_and_distributions_are_drawn(place, tmp_path, capsys):
    """On the page and in the terminal; the page has the shares of stored and new rows in each bin."""
    people = pd.read_csv(place / "a_customers.csv")
    people["trade"] = people["trade"].where(np.arange(len(people)) % 4 > 0, "astronaut")
    people.assign(income=people["income"] * 3).to_csv(tmp_path / "nodes.csv", index=False)
    words = ["drift", place / "run", "--client", 0, "--nodes", tmp_path / "nodes.csv"]
    words += ["--edges", place / "a_payments.csv", "--page", tmp_path / "drift.html"]
    assert cli.main([*map(str, words)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "never seen in training: nodes trade 'astronaut' (50 rows)"
    assert not any(" stable" in line for line in lines[:-2]), "stable rows are counted, not listed"
    page = html.unescape((tmp_path / "drift.html").read_text())
    assert page.index("Never seen in training: nodes trade 'astronaut' (50 rows).") < page.index("Change by column")
    charts = [chart for chart in charts_of(page) if chart.get("kind") == "bars"]
    assert 0 < len(charts) <= 6
    income = next(chart for chart in charts if len(chart["categories"]) == 12)
    for series in income["series"]:
        assert sum(series["values"]) == pytest.approx(1, abs=1e-4)
    assert income["categories"][0].startswith("below ")


def charts_of(page):
    """Return the charts' data in a page."""
    script = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    return list(json.loads(script[1]).values())

"""A bank's book: the score of a day is a function of the model, the link and the rows known by its end."""

import argparse
import html
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import average_precision_score

import fedgraph_flwr as fg
from fedgraph_flwr import partition
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.config import compose
from fedgraph_flwr.data import mapped
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.party.book.folder import BookFolder, Pinned
from fedgraph_flwr.party.use import predict
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.party.use.predict_command import take_book
from tests.nodes import party_nodes
from tests.party import bank_books as made
from tests.party.bank_books import MODELS, SPAN


@pytest.fixture(scope="module", params=["hours", pytest.param("dates", marks=pytest.mark.slow)])
def banks(request, tmp_path_factory):
    """Linked files of two banks, all payments, and the folder."""
    folder = tmp_path_factory.mktemp("book")
    rows = made.payments(hours=request.param == "hours")
    made.banks(folder / "banks", rows[rows.day < made.HISTORY])
    return folder, rows


of_hours = pytest.mark.parametrize("banks", ["hours"], indirect=True, scope="module")
"""Of a test that depends on neither the order nor the scores of rows of one day."""


def trained(folder, name, of="edges"):
    out = folder / name
    if name == "blend" and not out.is_dir():
        parts = [str(trained(folder, part)) for part in MODELS]
        assert main(["blend", *parts, "--out", str(out)]) == 0
    elif not out.is_dir():
        fg.run(
            task=of, graph=str(folder / "banks" / "linked"), num_clients=2, out=str(out), progress=False, **MODELS[name]
        )
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trees", "network", "blend"])
def test_a_days_scores_do_not_depend_on_how_the_book_was_filled(banks, tmp_path, name):
    """One by one, together, in one file, and with the history in the same file: equal for trees, within 1e-6 for networks."""
    folder, rows = banks
    run, party = trained(folder, name), folder / "banks" / "a.yaml"
    accounts, history = (folder / "banks" / f"a_{what}.csv" for what in ("accounts", "history"))
    later = rows[rows.day >= made.HISTORY]
    days = made.days(tmp_path / "days", later)
    one = made.book(tmp_path / "one", party, accounts, history)
    for path in days:
        assert main(["book", "add", str(one), str(path)]) == 0
    together = made.book(tmp_path / "together", party, accounts, history, *days[::-1])
    month = made.of_bank(later, "a").drop(columns=["day", "fraud"]).sample(frac=1, random_state=0)
    month.to_csv(tmp_path / "month.csv", index=False)
    joined = made.book(tmp_path / "joined", party, accounts, history, tmp_path / "month.csv")
    made.of_bank(rows, "a").drop(columns=["day"]).to_csv(tmp_path / "all.csv", index=False)
    whole = made.book(tmp_path / "whole", party, accounts, tmp_path / "all.csv")
    scores = {b.name: made.scores(tmp_path, b, run, *SPAN).set_index("edge") for b in (one, together, joined, whole)}
    assert sorted(scores["one"].index) == sorted(made.of_bank(later, "a")["ref"])
    for name_of, other in scores.items():
        difference = np.abs(scores["one"]["p_yes"] - other["p_yes"].reindex(scores["one"].index)).max()
        assert difference <= (0 if name == "trees" else 1e-6), (name_of, difference)
    alone = made.scores(tmp_path, one, run, "--from", SPAN[3], "--until", SPAN[3]).set_index("edge")["p_yes"]
    assert np.abs(scores["one"]["p_yes"][alone.index] - alone).max() <= (0 if name == "trees" else 1e-6)


def test_a_bank_with_payments_to_others_only_keeps_a_book(tmp_path):
    """Its file has no edge of its own, and times and columns of those to others: by book, and by tables."""
    rows = made.payments()
    rows = rows[(rows["from_bank"] != "A") | (rows["to_bank"] != "A")]
    history, later = rows[rows.day < made.HISTORY], rows[rows.day >= made.HISTORY]
    linked = made.banks(tmp_path / "banks", history, split="ratio")
    assert ClientGraph.load(linked / "client_0000.safetensors").num_edges == 0
    party, people = tmp_path / "banks" / "a.yaml", tmp_path / "banks" / "a_accounts.csv"
    days = made.days(tmp_path / "days", later)
    book = made.book(tmp_path / "book", party, people, tmp_path / "banks" / "a_history.csv", *days)
    for name, keys in MODELS.items():
        fg.run(task="edges", graph=str(linked), out=str(tmp_path / name), progress=False, **keys)
        scores = made.scores(tmp_path, book, tmp_path / name, *SPAN)
        assert sorted(scores["edge"]) == sorted(made.of_bank(later, "a")["ref"])
        out, first = tmp_path / "tables.parquet", scores["day"].min()
        words = [
            "predict",
            str(tmp_path / name),
            "--party-file",
            str(party),
            "--edges",
            str(days[0]),
            "--out",
            str(out),
        ]
        assert main(words) == 0
        of_day = scores[scores["day"] == first].set_index("edge")["p_yes"]
        assert np.abs(pd.read_parquet(out).set_index("edge")["p_yes"][of_day.index] - of_day).max() < 1e-6


def test_a_split_by_time_needs_own_edges(tmp_path, capsys):
    rows = made.payments(days=2)
    made.tables(tmp_path, rows[(rows["from_bank"] != "A") | (rows["to_bank"] != "A")])
    assert main(["import", str(tmp_path / "a.yaml")]) == 2
    assert "split.kind=temporal cuts at times of edges between a party's own nodes" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "a.yaml"), "split=ratio"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("form", ["hours", "dates"])
def test_scores_of_accounts_do_not_depend_on_how_the_book_was_filled(tmp_path, name, form):
    """At the end of each day; an account that a later table adds is scored, and a changed row counts from its day on."""
    rows = made.payments(hours=form == "hours")
    linked = made.banks(tmp_path / "banks", rows[rows.day < made.HISTORY], accounts=True)
    fg.run(graph=str(linked), num_clients=2, out=str(tmp_path / "run"), progress=False, **MODELS[name])
    party, history = tmp_path / "banks" / "a.yaml", tmp_path / "banks" / "a_history.csv"
    people = tmp_path / "banks" / "a_accounts.csv"
    days = made.days(tmp_path / "days", rows[rows.day >= made.HISTORY])
    one = made.book(tmp_path / "one", party, people, history)
    for path in days:
        assert main(["book", "add", str(one), str(path)]) == 0
    made.of_bank(rows, "a").drop(columns=["day", "fraud"]).to_csv(tmp_path / "all.csv", index=False)
    whole = made.book(tmp_path / "whole", party, people, tmp_path / "all.csv")
    scores = [made.scores(tmp_path, book, tmp_path / "run", *SPAN) for book in (one, whole)]
    assert scores[0][["day", "id"]].equals(scores[1][["day", "id"]])
    assert len(scores[0]) == made.MONTH * made.EACH
    assert scores[0].groupby("id")["p_yes"].nunique().max() > 1, "the days differ"
    assert np.abs(scores[0]["p_yes"] - scores[1]["p_yes"]).max() <= (0 if name == "trees" else 1e-6)
    words = ["alerts", str(tmp_path / "run"), "--client", "0"]
    assert main([*words, "--cost", "20,1"]) == 0
    eve = scores[0][scores[0]["day"] == str(made.START + made.HISTORY + made.MONTH - 2)].set_index("id")["p_yes"]
    path, middle = tmp_path / "run" / "alerts_0.json", eve.median()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"threshold": np.log(middle / (1 - middle))}))
    assert (
        main([*words, "--book", str(one), "--from", SPAN[3], "--reasons", "0", "--out", str(tmp_path / "a.csv")]) == 0
    )
    listed = pd.read_csv(tmp_path / "a.csv")
    was = eve[listed["id"]].reset_index(drop=True)
    assert listed["earlier"].rank().equals(was.rank()), "probabilities may be calibrated"
    assert (listed["new"] == "yes").equals(was < middle)
    assert listed["new"].is_monotonic_decreasing
    more = pd.concat([pd.read_csv(people).assign(age=20), pd.DataFrame({"id": ["a99"], "age": [50]})])
    more.to_csv(tmp_path / "people.csv", index=False)
    day = str(made.START + made.HISTORY + 2)
    assert main(["book", "add", str(one), str(tmp_path / "people.csv"), "--known", day]) == 0
    later = made.scores(tmp_path, one, tmp_path / "run", *SPAN).set_index(["day", "id"])["p_yes"]
    first = scores[0].set_index(["day", "id"])["p_yes"]
    same = (later.reindex(first.index) - first).abs().groupby("day").max() < 1e-12
    assert same[:2].all()
    assert name == "trees" or not same.loc[day], "these trees do not read the age"
    assert later.xs("a99", level="id").size == made.MONTH


@pytest.fixture(scope="module")
def desk(banks):
    """A run of trees, the party's files, and the rows of the first two days after the history as bank a books them."""
    folder, rows = banks
    bank_rows = made.of_bank(rows, "a").drop(columns=["fraud"])
    first, second = (bank_rows[bank_rows.day == made.HISTORY + k].drop(columns="day") for k in (0, 1))
    return trained(folder, "trees"), folder / "banks" / "a.yaml", folder / "banks", first, second


def filled(desk, folder, **tables):
    """Return a book of the history and of some tables, which are added in order."""
    book = made.book(folder / "book", desk[1], desk[2] / "a_accounts.csv", desk[2] / "a_history.csv")
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
        known = ["--known", str(made.START + made.HISTORY + 1)] if name == "late" else []
        assert main(["book", "add", str(book), str(folder / f"{name}.csv"), *known]) == 0
    return book


def of_day(desk, folder, book, day):
    span = str(made.START + made.HISTORY + day)
    return made.scores(folder, book, desk[0], "--from", span, "--until", span).set_index("edge")["p_yes"]


def test_late_rows_count_from_their_day_on_and_are_scored_then(desk, tmp_path):
    """The score of the first day does not change when rows of it come a day later; with --known left out, they count at once."""
    first, second = desk[3:]
    early, late = first.iloc[::2], first.iloc[1::2]
    (tmp_path / "a").mkdir()
    before = of_day(desk, tmp_path / "a", filled(desk, tmp_path / "a", early=early), 0)
    (tmp_path / "b").mkdir()
    book = filled(desk, tmp_path / "b", early=early, second=second, late=late)
    assert of_day(desk, tmp_path, book, 0).equals(before)
    scores = of_day(desk, tmp_path, book, 1)
    assert sorted(scores.index) == sorted([*second.ref, *late.ref])
    (tmp_path / "c").mkdir()
    every = of_day(desk, tmp_path, filled(desk, tmp_path / "c", first=first, second=second), 1)
    assert scores[second.ref].equals(every[second.ref]), "at the end of the second day both books know the same rows"


WINDOWS = {"features": "", "windows": "2,7"}


@pytest.mark.parametrize(
    ("linked", "keys"),
    [
        (True, {}),
        pytest.param(False, {}, marks=pytest.mark.slow),
        pytest.param(True, WINDOWS, marks=pytest.mark.slow),
        pytest.param(False, WINDOWS, marks=pytest.mark.slow),
    ],
)
def test_a_days_scores_do_not_depend_on_when_the_models_file_was_imported(tmp_path, caplog, linked, keys):
    """A file may have late payments and corrections that were not known on the days before, also if it ends before that."""
    rows = made.payments()
    made.tables(tmp_path / "banks", rows[rows.day < made.HISTORY], **keys)
    party, *tables = (tmp_path / "banks" / name for name in ("a.yaml", "a_accounts.csv", "a_history.csv"))
    bank_rows = made.of_bank(rows, "a").drop(columns="fraud")
    later = bank_rows[bank_rows.day >= made.HISTORY]
    late = later[later.day < made.HISTORY + 2].iloc[::4]
    fixed = bank_rows[bank_rows.day == made.HISTORY - 1].assign(amount=2000.0)
    first = later[later.day < made.HISTORY + 2].drop(late.index)
    book, graphs = made.book(tmp_path / "book", party, *tables), []

    def file(name):
        """Import the book and the other bank's rows as they are, and link them."""
        paths = [tmp_path / name / f"client_000{client}.safetensors" for client in range(1 + linked)]
        assert main(["import", "--book", str(book), "--out", str(paths[0])]) == 0
        if linked:
            assert main(["import", str(tmp_path / "banks" / "b.yaml"), "--out", str(paths[1])]) == 0
            assert main(["link", "--simulate", *map(str, paths), "--out", str(tmp_path / name / "linked")]) == 0
            paths = [tmp_path / name / "linked" / path.name for path in paths]
        graphs.append(paths[0])

    file("before")
    for name, table, known in (
        ("first", first, []),
        ("late", late, ["--known", str(made.START + made.HISTORY + 4)]),
        ("fixed", fixed, ["--known", str(made.START + made.HISTORY + 3)]),
        ("rest", later[later.day >= made.HISTORY + 2], []),
    ):
        table.drop(columns="day").to_csv(tmp_path / f"{name}.csv", index=False)
        assert main(["book", "add", str(book), str(tmp_path / f"{name}.csv"), *known]) == 0
        if name in ("fixed", "rest"):
            file(f"after {name}")
    out = tmp_path / "run"
    given = {"graph": str(graphs[0].parent), "num_clients": 1 + linked, "out": str(out), "progress": False}
    fg.run(task="edges", **given, **MODELS["trees"])
    assert main(["export", str(out), "--client", "0", "--out", str(tmp_path / "model")]) == 0
    for day in range(made.HISTORY, made.HISTORY + made.MONTH):
        span = ["--from", str(made.START + day), "--until", str(made.START + day)]
        scores = []
        for graph in graphs:
            words = ["predict", str(tmp_path / "model"), "--book", str(book), *span, "--graph", str(graph)]
            assert main([*words, "--out", str(tmp_path / "p.csv")]) == 0
            scores.append(pd.read_csv(tmp_path / "p.csv").set_index("edge")["p_yes"].sort_index())
        for other in scores[1:]:
            pd.testing.assert_series_equal(scores[0], other, rtol=0, atol=0, obj=f"day {day}")
    assert "does not have" not in caplog.text


@of_hours
@pytest.mark.slow
def test_payments_of_the_models_file_that_the_book_does_not_have_do_not_count(desk, tmp_path, capsys):
    """The history of a new book is an export after a correction; the model's file has the payment as it was."""
    first, second = desk[3:]
    history = pd.read_csv(desk[2] / "a_history.csv")
    inner_rows = history[(history.from_bank == "A") & (history.to_bank == "A") & (history.source.isin(second.source))]
    fixed = inner_rows.iloc[[-1]].assign(amount=17.5)
    (tmp_path / "a").mkdir()
    book = filled(desk, tmp_path / "a", first=pd.concat([first, fixed.drop(columns="fraud")]), second=second)
    expected = of_day(desk, tmp_path, book, 1)
    history.loc[fixed.index, "amount"] = 17.5
    history.to_csv(tmp_path / "corrected.csv", index=False)
    other = made.book(tmp_path / "other", desk[1], desk[2] / "a_accounts.csv", tmp_path / "corrected.csv")
    for name in ("first", "second"):
        locals()[name].to_csv(tmp_path / f"{name}.csv", index=False)
        assert main(["book", "add", str(other), str(tmp_path / f"{name}.csv")]) == 0
    capsys.readouterr()
    pd.testing.assert_series_equal(of_day(desk, tmp_path, other, 1), expected, check_like=True, rtol=0, atol=0)
    assert "the model's file has 1 payments that the book does not have" in "".join(capsys.readouterr())


@pytest.mark.slow
def test_a_row_with_an_id_that_the_book_has_replaces_it_from_its_day_on(desk, tmp_path, capsys, request):
    """Also one of the history, which the model's file has: the second day equals that of files with the corrected history.

    Those are another book's beside an exported model.
    """
    first, second = desk[3:]
    history = pd.read_csv(desk[2] / "a_history.csv")
    inner_rows = history[(history.from_bank == "A") & (history.to_bank == "A") & (history.source.isin(second.source))]
    fixed = inner_rows.iloc[[-1]].assign(amount=17.5)
    book = filled(desk, tmp_path, first=first, second=pd.concat([second, fixed.drop(columns="fraud")]))
    (tmp_path / "plain").mkdir()
    plain = filled(desk, tmp_path / "plain", first=first, second=second)
    assert of_day(desk, tmp_path, book, 0).equals(of_day(desk, tmp_path, plain, 0)), "before the correction was known"
    scores = of_day(desk, tmp_path, book, 1)
    assert main(["book", "show", str(book)]) == 0
    assert "corrections: 1, by later rows with the same id" in capsys.readouterr().out
    rows = request.getfixturevalue("banks")[1]
    rows = rows.assign(amount=rows.amount.where(rows.ref != fixed.ref.iloc[0], 17.5))
    made.banks(tmp_path / "banks", rows[rows.day < made.HISTORY])
    other = made.book(tmp_path / "other", tmp_path / "banks" / "a.yaml", *(tmp_path / "banks").glob("a_*.csv"))
    assert (
        main(["book", "add", str(other), str(tmp_path / "plain" / "first.csv"), str(tmp_path / "plain" / "second.csv")])
        == 0
    )
    assert main(["export", str(desk[0]), "--client", "0", "--out", str(tmp_path / "exported")]) == 0
    day = [
        "--from",
        str(made.START + made.HISTORY + 1),
        "--graph",
        str(tmp_path / "banks" / "linked" / "client_0000.safetensors"),
    ]
    assert (
        main(["predict", str(tmp_path / "exported"), "--book", str(other), *day, "--out", str(tmp_path / "e.csv")]) == 0
    )
    expected = pd.read_csv(tmp_path / "e.csv").set_index("edge")["p_yes"]
    np.testing.assert_allclose(scores[second.ref], expected[second.ref], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_payment_that_is_booked_twice_counts_once_in_every_command(desk, tmp_path, capsys):
    first, second = desk[3:]
    twice = pd.concat([second, second.iloc[:3], second.iloc[[0]]])
    (tmp_path / "a").mkdir()
    book = filled(desk, tmp_path / "a", first=first, second=second)
    once = of_day(desk, tmp_path, book, 1)
    (tmp_path / "b").mkdir()
    again = filled(desk, tmp_path / "b", first=first, second=twice)
    assert of_day(desk, tmp_path, again, 1).equals(once)
    assert main(["book", "show", str(again)]) == 0
    assert "repeats: 4 (a repeated payment counts once)" in capsys.readouterr().out
    assert main(["import", "--book", str(again), "--out", str(tmp_path / "again.safetensors")]) == 0
    assert main(["import", "--book", str(book), "--out", str(tmp_path / "once.safetensors")]) == 0
    files = [ClientGraph.load(tmp_path / f"{name}.safetensors") for name in ("again", "once")]
    assert files[0].edge_index.equal(files[1].edge_index)
    assert files[0].foreign.equal(files[1].foreign)
    twice.to_csv(tmp_path / "day.csv", index=False)
    words = [str(desk[0]), "--client", "0", "--nodes", str(desk[2] / "a_accounts.csv")]
    words += ["--edges", str(tmp_path / "b" / "first.csv"), "--edges", str(tmp_path / "day.csv")]
    assert main(["predict", *words, "--out", str(tmp_path / "p.csv")]) == 0
    assert "4 of" in capsys.readouterr().err
    scores = pd.read_csv(tmp_path / "p.csv").set_index("edge")["p_yes"]
    assert scores.index.is_unique
    np.testing.assert_allclose(scores[once.index], once, atol=1e-12)
    assert main(["alerts", *words, "--budget", "3", "--out", str(tmp_path / "alerts.csv"), "--reasons", "0"]) == 0
    listed = pd.read_csv(tmp_path / "alerts.csv")
    listed.assign(outcome="true").to_csv(tmp_path / "decided.csv", index=False)
    assert main(["alerts", *words[:3], "--outcomes", str(tmp_path / "decided.csv")]) == 0


def test_without_a_book_a_file_that_begins_after_a_gap_is_named(desk, tmp_path, caplog):
    desk[4].to_csv(tmp_path / "day.csv", index=False)
    words = [
        str(desk[0]),
        "--client",
        "0",
        "--nodes",
        str(desk[2] / "a_accounts.csv"),
        "--edges",
        str(tmp_path / "day.csv"),
    ]
    assert main(["predict", *words, "--out", str(tmp_path / "p.csv")]) == 0
    assert "has no payments on 1 day (2026-01-15) after" in caplog.text
    assert "ends on 2026-01-14" in caplog.text


@of_hours
def test_an_erased_account_leaves_all_files_and_cannot_come_back(desk, tmp_path, capsys):
    first, second = desk[3:]
    book = filled(desk, tmp_path, first=first)
    assert main(["book", "erase", str(book), "a3"]) == 0
    assert "a3" not in {*capsys.readouterr().out.split()} - {str(book)}
    for path in book.glob("*.csv"):
        assert not pd.read_csv(path).isin(["a3"]).any(axis=None), path
    assert "a3" not in (book / "book.yaml").read_text().split()
    second.to_csv(tmp_path / "second.csv", index=False)
    assert main(["book", "add", str(book), str(tmp_path / "second.csv")]) == 0
    scores = of_day(desk, tmp_path, book, 1)
    assert sorted(scores.index) == sorted(second[~second[["source", "target"]].isin(["a3"]).any(axis=1)].ref)
    for number in range(2):  # the added file holds rows until it is erased again, which counts no account twice
        assert main(["book", "show", str(book)]) == 0
        assert "erased accounts: 1, whose rows do not count (erase again" in capsys.readouterr().out
        assert ("a3" in (book / "second.csv").read_text().replace("\n", ",").split(",")) is not bool(number)
        assert number or main(["book", "erase", str(book), "a3"]) == 0


@of_hours
def test_a_file_without_an_amount_is_not_added(desk, tmp_path, capsys):
    """`predict` would refuse the book from then on."""
    book = filled(desk, tmp_path, first=desk[3])
    desk[4].assign(amount="").to_csv(tmp_path / "odd.csv", index=False)
    assert main(["book", "add", str(book), str(tmp_path / "odd.csv")]) == 2
    assert "odd.csv cannot be added" in (error := capsys.readouterr().err)
    assert "'' in column 'amount'" in error
    assert not (book / "odd.csv").exists()


@of_hours
def test_payments_between_banks_are_scored_where_no_stored_edge_counts(banks, desk, tmp_path):
    """An erased account was active on the first day: columns of all later edges change, and the book's rows take their place."""
    network = trained(banks[0], "network"), *desk[1:]
    book, stored = filled(network, tmp_path, first=desk[3]), made.of_bank(banks[1], "a")
    ends = stored[stored.day == 0][["source", "target"]].to_numpy().ravel()
    account = next(name for name in ends if name.startswith("a"))
    assert main(["book", "erase", str(book), account]) == 0
    scores = of_day(network, tmp_path, book, 0)
    assert sorted(scores.index) == sorted(desk[3][~desk[3][["source", "target"]].isin([account]).any(axis=1)].ref)


@of_hours
def test_the_pinned_model_scores_and_another_one_in_its_place_is_refused(desk, tmp_path, capsys):
    run = desk[0]
    book = filled(desk, tmp_path, first=desk[3])
    assert main(["predict", "--book", str(book)]) == 2
    assert f"{book} pins no model" in capsys.readouterr().err
    assert main(["book", "use", str(book), str(run)]) == 0
    assert main(["predict", "--book", str(book), "--out", str(tmp_path / "p.parquet")]) == 0
    scores = pd.read_parquet(tmp_path / "p.parquet").set_index("edge")["p_yes"]
    assert scores.equals(of_day(desk, tmp_path, book, 0))
    text = (book / "book.yaml").read_text()
    digest = text.rpartition("digest: ")[2].strip("\n'")
    (book / "book.yaml").write_text(text.replace(digest, "0" * 16))
    assert main(["predict", "--book", str(book)]) == 2
    assert "is not the model that" in capsys.readouterr().err


@of_hours
def test_the_models_file_is_read_once(desk, tmp_path, monkeypatch):
    book, reads, load = filled(desk, tmp_path, first=desk[3]), [], partition.load_client
    monkeypatch.setattr(partition, "load_client", lambda *args: reads.append(args) or load(*args))
    of_day(desk, tmp_path, book, 0)
    assert len(reads) == 1


@of_hours
def test_the_threshold_of_trees_on_a_large_file_is_kept(banks, tmp_path, monkeypatch):
    """It is that of the validation items, and chosen again where the file has changed."""
    run, graph = trained(banks[0], "trees"), banks[0] / "banks" / "linked" / "client_0000.safetensors"
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    small, chosen = load_predictor(run, 0).threshold, []
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1)
    monkeypatch.setattr(predict, "threshold_of", lambda one, of=predict.threshold_of: chosen.append(one) or of(one))
    assert [load_predictor(run, 0).threshold for _ in range(3)] == [small] * 3
    assert len(chosen) == 1
    graph.touch()
    assert load_predictor(run, 0).threshold == small
    assert len(chosen) == 2
    load_predictor(run, 1).threshold  # noqa: B018
    assert len(chosen) == 3


@of_hours
def test_a_changed_export_is_refused(desk, tmp_path, capsys):
    book = filled(desk, tmp_path, first=desk[3])
    with (book / "first.csv").open("a") as file:
        file.write("x")
    assert main(["book", "show", str(book)]) == 2
    assert "first.csv has changed since it was added" in capsys.readouterr().err


@of_hours
@pytest.mark.slow
def test_alerts_of_a_book_have_amounts_banks_cases_and_the_moneys_path(desk, tmp_path):
    first, second = desk[3:]
    chain = first.iloc[[0, 1]].assign(
        source=["b1", "a1"], target=["a1", "b2"], from_bank=["B", "A"], to_bank=["A", "B"]
    )
    chain = chain.assign(amount=[2450.0, 2400.0], ref=["q1", "q2"])
    book = filled(desk, tmp_path, first=pd.concat([first.iloc[2:], chain]).sort_values("at"), second=second)
    words = ["alerts", str(desk[0]), "--client", "0"]
    assert main([*words, "--budget", "3"]) == 0
    stored = json.loads((desk[0] / "alerts_0.json").read_text())
    (desk[0] / "alerts_0.json").write_text(json.dumps(stored | {"threshold": -1e9}))  # all of them
    out, page = tmp_path / "alerts.csv", tmp_path / "alerts.html"
    day = str(made.START + made.HISTORY)
    given = [*words, "--book", str(book), "--from", day, "--until", day, "--reasons", "0"]
    assert main([*given, "--out", str(out), "--page", str(page)]) == 0
    listed = pd.read_csv(out).set_index("edge")
    assert listed["amount"]["q2"] == 2400
    assert listed[["bank of source", "bank of target"]].loc["q2"].tolist() == ["A", "B"]
    assert "2,450.00 in from b1 (B)" in listed["path"]["q2"]
    assert listed["case"]["q1"] == listed["case"]["q2"], "they share an account"
    text = html.unescape(page.read_text())
    assert "The money's path" in text
    scored = pd.concat([of_day(desk, tmp_path, book, day) for day in (0, 1)])
    level = scored.quantile(0.8)
    (desk[0] / "alerts_0.json").write_text(json.dumps(stored | {"threshold": np.log(level / (1 - level)) - 1e-9}))
    before, now = (
        table[table.ref.isin(scored.index[scored >= level])] for table in (pd.concat([first, chain]), second)
    )
    assert (
        main(
            [
                *words,
                "--book",
                str(book),
                "--from",
                SPAN[1][:-2] + f"{made.HISTORY + 2}",
                "--reasons",
                "0",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    listed = pd.read_csv(out, keep_default_na=False).set_index("edge")
    assert {*listed.index} == {*now.ref}
    for row in now.itertuples():
        held = before[before.source.isin([row.source, row.target]) | before.target.isin([row.source, row.target])]
        assert len(re.findall(r" of 2026-01-15 \(\d+%\)", listed["earlier"][row.ref])) == min(len(held), 3)
    known = (listed["earlier"] != "").groupby(listed["case"]).transform("any")
    assert ((listed["new"] == "yes") == ~known).all()
    assert known.any()
    assert "Alerts of a: " in text, "the bank by its name"


def test_a_pinned_run_of_a_node_is_used_whatever_ran_last(tmp_path):
    """``state`` takes the pinned run of this node, not a trial run after it."""
    made.tables(tmp_path / "tables", made.payments(days=2))
    book = made.book(tmp_path / "book", tmp_path / "tables" / "a.yaml", tmp_path / "tables" / "a_history.csv")
    (tmp_path / "state" / "1").mkdir(parents=True)
    held = replace(BookFolder.load(book), model=Pinned("../state/1", "", "0" * 16))
    held.save()
    args = argparse.Namespace(book=book, run=None, node=tmp_path / "state", client=None, party_file=None)
    take_book(args)
    assert args.node is None
    assert args.run.resolve() == (tmp_path / "state" / "1").resolve()
    other = argparse.Namespace(**vars(args) | {"run": None, "node": tmp_path / "other"})
    with pytest.raises(FedGraphError, match=r"other does not hold .*state/1, the model that .*book pins"):
        take_book(other)
    for name in "12":
        (tmp_path / "state" / name / "client_0").mkdir(parents=True)
        (tmp_path / "state" / name / "client_0" / "model_last.safetensors").touch()
    replace(held, model=None).save()
    trial = argparse.Namespace(**vars(args) | {"run": None, "node": tmp_path / "state"})
    with pytest.raises(FedGraphError, match=r"state holds the models of 2 runs, and .*book pins none of them"):
        take_book(trial)


@of_hours
def test_a_day_of_a_book_is_explained(desk, tmp_path, capsys):
    """Reasons of a payment by its id, with the day on which it became known."""
    book = filled(desk, tmp_path, first=desk[3], second=desk[4])
    assert main(["book", "use", str(book), str(desk[0])]) == 0
    item = desk[4].ref.iloc[0]
    words = ["explain", "--book", str(book), "--from", SPAN[1], "--items", item]
    assert main([*words, "--out", str(tmp_path / "reasons.csv")]) == 0
    reasons = pd.read_csv(tmp_path / "reasons.csv")
    assert {*reasons["item"]} == {item}
    margin = reasons["contribution"].sum()
    score = of_day(desk, tmp_path, book, 1)[item]
    said = float(capsys.readouterr().out.partition(f"item {item}: score ")[2].partition(",")[0])
    assert said == pytest.approx(np.log(score / (1 - score)), abs=0.01)
    assert np.isfinite(margin)
    named = reasons[reasons["text"].str.contains(" in from | out to ")]
    assert {*named["name"]} & {"flow_in_hours_2d", "flow_in_gap_2d", "since_in_source", "sum_in_source_7d"}, reasons[
        "text"
    ].tolist()


@of_hours
def test_worth_compares_models_on_days_of_a_book_that_have_labels(banks, desk, tmp_path, capsys):
    """Labels come by a later file; the score is average precision of the days' scores, as counted here."""
    folder, rows = banks
    later = made.of_bank(rows[rows.day >= made.HISTORY], "a")
    book = made.book(tmp_path / "book", desk[1], desk[2] / "a_accounts.csv", desk[2] / "a_history.csv")
    for path in made.days(tmp_path / "days", later):
        assert main(["book", "add", str(book), str(path)]) == 0
    words = ["worth", str(desk[0]), str(trained(folder, "network")), "--client", "0", "--book", str(book), *SPAN]
    assert main([*words, "--metric", "average_precision"]) == 2
    assert "items of these days are not of two classes" in capsys.readouterr().err
    later.drop(columns="day").to_csv(tmp_path / "decided.csv", index=False)
    assert main(["book", "add", str(book), str(tmp_path / "decided.csv"), "--known", SPAN[3]]) == 0
    out = tmp_path / "worth.csv"
    words = [*words[:3], *words[5:], "--metric", "average_precision", "--clusters", "item", "--out", str(out)]
    assert main(words) == 0  # of the book's client
    comparison = pd.read_csv(out)
    capsys.readouterr()
    for wrong in (words, ["book", "use", str(book), str(desk[0])]):
        assert main([*wrong, "--client", "1"]) == 2
        assert "has 'b' as client 1, and" in capsys.readouterr().err
    truth = later.set_index("ref")["fraud"] == "yes"
    for row, name in zip(comparison.itertuples(), MODELS, strict=True):
        scores = made.scores(tmp_path, book, trained(folder, name), *SPAN).set_index("edge")["p_yes"]
        assert row.score == pytest.approx(average_precision_score(truth[scores.index], scores), abs=1e-6)


@of_hours
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_node_scores_a_day_of_its_book_as_the_simulation_does(banks, tmp_path, monkeypatch, name):
    """By the model that it stored, pinned, and by the bundle that it exported, beside its file on another machine."""
    folder, rows = banks
    run = trained(folder, name)
    files = sorted((folder / "banks" / "linked").glob("*.safetensors"))
    (tmp_path / "policy.yaml").write_text("min_nodes: 0\ntasks: [edges]\n")
    party_nodes(monkeypatch, files, tmp_path / "policy.yaml", tmp_path)
    of_files = {"graph": str(files[0].parent), "num_clients": 2, "out": str(tmp_path / "run"), "task": "edges"}
    words = [f"{key}={value}" for key, value in (of_files | MODELS[name]).items()]
    run_inline(with_folder(compose(words)))
    accounts, history = (folder / "banks" / f"a_{what}.csv" for what in ("accounts", "history"))
    days = made.days(tmp_path / "days", rows[rows.day >= made.HISTORY])
    book = made.book(tmp_path / "book", folder / "banks" / "a.yaml", accounts, history, *days)
    expected = made.scores(tmp_path, book, run, *SPAN)
    assert main(["book", "use", str(book), str(tmp_path / "state_0")]) == 0
    assert main(["predict", "--book", str(book), *SPAN, "--out", str(tmp_path / "node.parquet")]) == 0
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "node.parquet"), expected)
    assert main(["export", str(tmp_path / "state_0"), "--out", str(tmp_path / "bundle")]) == 0
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    book.rename(moved / "book")
    shutil.copy(files[0], moved / "a.safetensors")
    assert main(["book", "use", str(moved / "book"), str(tmp_path / "bundle")]) == 0
    given = ["--graph", str(moved / "a.safetensors"), "--out", str(tmp_path / "bundle.parquet")]
    assert main(["predict", "--book", str(moved / "book"), *SPAN, *given]) == 0
    scores = pd.read_parquet(tmp_path / "bundle.parquet")
    np.testing.assert_allclose(scores["p_yes"], expected["p_yes"], rtol=0, atol=0 if name == "trees" else 1e-6)

"""A book of one bank that is linked with nobody: the score of a day does not depend on how the book was filled."""

import contextlib
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import yaml

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.graph import ClientGraph, unpack_words
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.book.folder import BookFolder
from fedgraph_flwr.party.book.rows import day_of, read_rows
from fedgraph_flwr.party.use.book_days import days_of_book
from fedgraph_flwr.party.use.prediction_input import InputSpec
from fedgraph_flwr.store.folder import owned
from tests.party import bank_books as made
from tests.party.bank_books import MODELS, SPAN


def alone(folder, rows, *, own_only, **keys):
    """Write the tables of bank a, import its history, and return its party's file, and all rows that it books."""
    made.tables(folder, rows[rows.day < made.HISTORY], **keys)
    party = folder / "a.yaml"
    rows = made.of_bank(rows, "a")
    if own_only:
        rows = rows[(rows.from_bank == "A") & (rows.to_bank == "A")].drop(columns=["from_bank", "to_bank"])
        rows[rows.day < made.HISTORY].drop(columns="day").to_csv(folder / "a_history.csv", index=False)
        values = yaml.safe_load(party.read_text())
        party.write_text(yaml.safe_dump({key: values[key] for key in values if key not in ("party_columns", "match")}))
    assert main(["import", str(party)]) == 0
    files = folder / "files"
    files.mkdir()
    (folder / "a.safetensors").rename(files / "client_0000.safetensors")
    return party, rows


KINDS = {"recipe": {}, "windows": {"features": "", "windows": "2,7"}, "plain": {"features": "", "windows": ""}}


def case(*words, slow=True):
    return pytest.param(*words, marks=[pytest.mark.slow] * slow, id="-".join(words))


@pytest.mark.parametrize(
    ("name", "kind", "ends", "form", "task"),
    [
        case("trees", "recipe", "own", "dates", "edges", slow=False),
        case("network", "recipe", "own", "hours", "edges"),
        case("trees", "recipe", "others", "hours", "nodes"),
        case("network", "windows", "own", "dates", "edges"),
        case("trees", "windows", "others", "hours", "edges"),
        case("network", "plain", "others", "hours", "nodes"),
    ],
)
def test_a_days_scores_of_an_unlinked_book(tmp_path, name, kind, ends, form, task, capsys):
    """Rows that name other banks' accounts are records only, and no items."""
    own_only = ends == "own"
    rows = made.payments(hours=form == "hours")
    keys = dict(KINDS[kind]) | ({} if kind == "recipe" else {"edge_columns": ["amount"]})
    party, rows = alone(tmp_path / "tables", rows, own_only=own_only, accounts=task == "nodes", **keys)
    run = tmp_path / "run"
    fg.run(
        task=task, graph=str(tmp_path / "tables" / "files"), num_clients=1, out=str(run), progress=False, **MODELS[name]
    )
    accounts, history = (tmp_path / "tables" / f"a_{what}.csv" for what in ("accounts", "history"))
    later = rows[rows.day >= made.HISTORY].drop(columns="fraud")
    days = []
    for day, table in later.groupby("day"):
        days.append(tmp_path / f"{made.START + int(day)}.csv")
        table.drop(columns="day").to_csv(days[-1], index=False)
    one = made.book(tmp_path / "one", party, accounts, history)
    for path in days:
        assert main(["book", "add", str(one), str(path)]) == 0
    together = made.book(tmp_path / "together", party, accounts, history, *days[::-1])
    rows.drop(columns=["day", "fraud"]).to_csv(tmp_path / "all.csv", index=False)
    whole = made.book(tmp_path / "whole", party, accounts, tmp_path / "all.csv")
    keys = ["edge"] if task == "edges" else ["day", "id"]
    scores = [made.scores(tmp_path, b, run, *SPAN).set_index(keys)["p_yes"] for b in (one, together, whole)]
    inner = (
        later if own_only else later[(later.from_bank == "A") & (later.to_bank == "A")]
    )  # others name no linked account
    assert len(scores[0]) == (len(inner) if task == "edges" else made.MONTH * made.EACH)
    for other in scores[1:]:
        assert np.abs(scores[0] - other.reindex(scores[0].index)).max() <= (0 if name == "trees" else 1e-6)
    alone_ = made.scores(tmp_path, one, run, "--from", SPAN[3], "--until", SPAN[3]).set_index(keys)["p_yes"]
    assert np.abs(scores[0].reindex(alone_.index) - alone_).max() <= (0 if name == "trees" else 1e-6)
    words = ["predict", str(run), "--client", "0", "--book", str(one), "--from", SPAN[3], "--until", SPAN[1]]
    assert main([*words, "--out", str(tmp_path / "no.parquet")]) == 2
    assert f"--from={SPAN[3]} is after {SPAN[1]}, the last day" in capsys.readouterr().err


def rows_of(*values):
    """Return payments between own accounts as texts: reference, payer, payee, day of March, amount."""
    names = ["ref", "source", "target", "at", "amount"]
    return pd.DataFrame([(*row[:3], f"2026-03-{row[3]:02}", row[4]) for row in values], columns=names)


FIRST = rows_of(*((f"p{k}", f"a{k % 4}", f"a{(k + 1) % 4}", 1 + k // 2, 10.0 + k) for k in range(20)))
DAYS = {
    "d11": rows_of(("q1", "a0", "a1", 11, 5.0), ("q2", "a1", "a2", 11, 6.0)),
    "d12": rows_of(("q3", "a2", "a3", 12, 7.0), ("q1", "a0", "a1", 11, 50.0)),  # corrects q1
    "d13": rows_of(("q4", "a3", "a0", 13, 8.0), ("q3", "a2", "a3", 12, 7.0)),  # repeats q3
}


def own_book(folder, name, *files):
    """Return a book without other parties, of the first rows and of some files in order."""
    folder.mkdir(exist_ok=True)
    for file, table in {"first": FIRST, **DAYS}.items():
        table.to_csv(folder / f"{file}.csv", index=False)
    people = pd.DataFrame({"id": [f"a{k}" for k in range(4)], "age": [30, 40, 50, 60], "label": ["no", "yes"] * 2})
    people.to_csv(folder / "people.csv", index=False)
    columns = {"time": "at", "amount": "amount", "edge_id": "ref"}
    values = {"party": "A", "nodes": "people.csv", "edges": "first.csv", "out": "a.safetensors", "columns": columns}
    (folder / "a.yaml").write_text(yaml.safe_dump(values | {"edge_columns": ["amount"]}))
    return made.book(
        folder / name, folder / "a.yaml", folder / "people.csv", *(folder / f"{file}.csv" for file in files)
    )


def test_the_rows_of_a_day_do_not_depend_on_the_order_in_which_files_were_added(tmp_path):
    """A correction counts from its file's date on, also if its file was added before that of the payment."""
    first, *others = (
        own_book(tmp_path / "tables", name, "first", *order)
        for name, order in (
            ("forth", ["d11", "d12", "d13"]),
            ("back", ["d13", "d12", "d11"]),
            ("mixed", ["d12", "d13", "d11"]),
        )
    )
    for day, amount in ((11, 5.0), (12, 50.0), (13, 50.0)):
        amounts = [known(book, day) for book in (first, *others)]
        assert amounts[0]["q1"] == amount
        assert amounts.count(amounts[0]) == 3, day


def known(book, day):
    """Return the amounts by reference that count at the end of a day of March."""
    rows = read_rows(BookFolder.load(book))
    table = rows.edges.iloc[rows.at(day_of(f"2026-03-{day:02}"))]
    return dict(zip(table.ref, table.amount.astype(float), strict=True))


def test_a_correction_of_a_file_that_ends_later_needs_its_day(tmp_path, capsys):
    book = own_book(tmp_path / "tables", "book", "first", "d12")
    rows_of(("p2", "a2", "a3", 2, 99.0)).to_csv(tmp_path / "fix.csv", index=False)
    assert main(["book", "add", str(book), str(tmp_path / "fix.csv")]) == 2
    assert (
        "fix.csv has other values of payment 'p2' than first.csv, which ends later: pass --known DAY"
        in capsys.readouterr().err
    )
    assert not (book / "fix.csv").exists()
    assert main(["book", "add", str(book), str(tmp_path / "fix.csv"), "--known", "2026-03-12"]) == 0
    assert [known(book, day)["p2"] for day in (11, 12)] == [12.0, 99.0]
    rows_of(("p2", "a2", "a3", 2, 55.0)).to_csv(tmp_path / "older.csv", index=False)
    assert main(["book", "add", str(book), str(tmp_path / "older.csv"), "--known", "2026-03-11"]) == 0
    assert [known(book, day)["p2"] for day in (10, 11, 12)] == [12.0, 55.0, 99.0]


def test_an_export_of_several_days_repeats_payments_without_scoring_them_again(tmp_path):
    """Rows that equal the version before are no correction; those that return to an earlier one are."""
    book = own_book(tmp_path / "tables", "book", "first", "d11", "d12", "d13")
    week = pd.concat([*DAYS.values(), rows_of(("q5", "a0", "a2", 14, 9.0))]).drop_duplicates(["ref", "amount"])
    week[~((week.ref == "q1") & (week.amount == 5.0))].to_csv(tmp_path / "week.csv", index=False)
    assert main(["book", "add", str(book), str(tmp_path / "week.csv")]) == 0
    rows_of(("q1", "a0", "a1", 11, 5.0)).to_csv(tmp_path / "back.csv", index=False)
    assert main(["book", "add", str(book), str(tmp_path / "back.csv"), "--known", "2026-03-15"]) == 0
    rows = read_rows(BookFolder.load(book))
    days = [day_of(f"2026-03-{day}") for day in (11, 12, 13, 14, 15)]
    new = [rows.at(day)[rows.known[rows.at(day)] == day] for day in days]
    assert [sorted(rows.edges.ref.iloc[at]) for at in new] == [["q1", "q2"], ["q1", "q3"], ["q4"], ["q5"], ["q1"]]


def test_an_import_of_several_files_is_that_of_a_book_of_them(tmp_path, capsys):
    """Each file counts, in any order, and each payment once: as the file that ends last has it."""
    folder = tmp_path / "tables"
    book = own_book(folder, "book", "first", *DAYS)
    assert (
        main(["import", "--book", str(book), "--out", str(tmp_path / "book.safetensors"), "--classes", "no,yes"]) == 0
    )
    files = [word for name in ("d13", "first", "d12", "d11") for word in ("--edges", str(folder / f"{name}.csv"))]
    words = ["import", str(folder / "a.yaml"), *files, "--classes", "no,yes"]
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "files.safetensors")]) == 0
    assert "2 of 26 rows repeat a payment, with the id of another ('ref')" in capsys.readouterr().out
    graphs = [ClientGraph.load(tmp_path / f"{name}.safetensors") for name in ("book", "files")]
    for name in ("edge_index", "edge_time", "edge_attr"):
        assert getattr(graphs[0], name).equal(getattr(graphs[1], name)), name
    assert graphs[0].edge_index.size(1) == 24


@pytest.mark.parametrize("unique", [True, False])
def test_a_payment_with_other_accounts_replaces_one_with_its_id_only_if_ids_are_unique(tmp_path, capsys, unique):
    """Reversed or booked on another account: by default both count, which is said in every command that reads them."""
    folder = tmp_path / "tables"
    book = own_book(folder, "book", "first", *DAYS)
    party = yaml.safe_load((book / "party.yaml").read_text()) | ({"edge_ids": "unique"} if unique else {})
    (book / "party.yaml").write_text(yaml.safe_dump(party))
    rows_of(("q1", "a1", "a0", 11, 50.0), ("q2", "a1", "a3", 11, 6.0)).to_csv(tmp_path / "fix.csv", index=False)
    capsys.readouterr()
    for day in (15, 14, 14):
        assert main(["book", "add", str(book), str(tmp_path / "fix.csv"), "--known", f"2026-03-{day}"]) == 0
    said = "2 rows have the id of another payment, such as 'q1', with other accounts: all count"
    output = capsys.readouterr().out
    assert (said in output) != unique
    assert "1 of 1 files are in the book already: their rows are known from 2026-03-14 on now" in output
    assert output.count("in the book already") == 2
    assert output.endswith("1 of 1 files are in the book already: left as they are\n")
    rows = read_rows(BookFolder.load(book))
    tables = [rows.edges.iloc[rows.at(day_of(f"2026-03-{day}"))].set_index("ref") for day in (13, 14)]
    assert tables[0].target[["q1", "q2"]].tolist() == ["a1", "a2"]
    if unique:
        assert tables[1].target[["q1", "q2"]].tolist() == ["a0", "a3"]
    assert len(tables[1]) == len(tables[0]) + 2 * (not unique)
    assert main(["import", "--book", str(book), "--out", str(tmp_path / "a.safetensors"), "--classes", "no,yes"]) == 0
    assert (said in capsys.readouterr().out) != unique
    assert ClientGraph.load(tmp_path / "a.safetensors").edge_index.size(1) == len(tables[1])


def test_one_of_two_equal_payments_is_corrected(tmp_path):
    """Of equal accounts and dates: the graph of a later day has the amounts of the book, whichever edge was which payment."""
    book = own_book(tmp_path / "tables", "book", "first")
    rows = rows_of(*((f"r{k}", "a0", "a1", 5, 100.0 * (1 + k)) for k in range(3)))
    rows.to_csv(tmp_path / "same.csv", index=False)
    rows.iloc[1:2].assign(amount=7.0).to_csv(tmp_path / "fix.csv", index=False)
    assert main(["book", "add", str(book), str(tmp_path / "same.csv"), "--known", "2026-03-05"]) == 0
    path = tmp_path / "a.safetensors"
    assert (
        main(["import", "--book", str(book), "--out", str(path), "--classes", "no,yes", "--edge-scale", "amount=none"])
        == 0
    )
    assert main(["book", "add", str(book), str(tmp_path / "fix.csv"), "--known", "2026-03-12"]) == 0
    spec, graph = InputSpec(("no", "yes")).as_imported(path), ClientGraph.load(path)
    days = [day_of(f"2026-03-{day}") for day in (11, 13)]
    for day, amounts in zip(days, ([18.0, 100, 200, 300], [7.0, 18, 100, 300]), strict=True):
        ((_, read),) = days_of_book(BookFolder.load(book), (day, day), spec, graph, spec.treatment())
        ends = np.array(unpack_words(read.graph.ids))[read.graph.edge_index]
        near = (ends == [["a0"], ["a1"]]).all(0) & (read.graph.edge_time == day_of("2026-03-05") * 86_400).numpy()
        assert sorted(read.graph.edge_attr[near].view(-1).tolist()) == amounts


def test_a_book_says_which_columns_a_file_lacks(tmp_path, capsys):
    """An export without a column made its values unknown, without a word; so did a table of another type of nodes."""
    book = own_book(tmp_path / "tables", "book", "first", "d11")
    capsys.readouterr()
    pd.DataFrame({"id": ["s0"], "size": [4]}).to_csv(tmp_path / "shops.csv", index=False)
    rows_of(("q9", "a1", "a0", 14, 50.0)).drop(columns="amount").to_csv(tmp_path / "bare.csv", index=False)
    assert main(["book", "add", str(book), str(tmp_path / "shops.csv"), str(tmp_path / "bare.csv")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "has no column" in line]
    assert lines == [
        "people.csv has no column size, which other files of nodes have: unknown in its rows",
        "shops.csv has no column age, which other files of nodes have: unknown in its rows",
        "bare.csv has no column amount, which other files of edges have: unknown in its rows",
    ]


def test_a_file_in_another_format_than_the_book_is_named(tmp_path, capsys):
    """The error named a row of the book and an option that `book` has not."""
    book, late = own_book(tmp_path / "tables", "book", "first", "d11"), tmp_path / "late.csv"
    rows_of(("q9", "a1", "a0", 14, 50.0)).assign(at="1773446400").to_csv(late, index=False)
    assert main(["book", "add", str(book), str(late)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert f"error: {late} cannot be added to {book}, whose files are read as one table: {book}: row " in error
    assert "has '1773446400' in column 'at'" in error
    assert f"write values as they do, or set formats in {book / 'party.yaml'}" in error
    assert not (book / "late.csv").exists()


def test_a_book_takes_no_typed_tables(tmp_path, capsys, monkeypatch):
    book = own_book(tmp_path / "tables", "book", "first")
    monkeypatch.chdir(tmp_path / "tables")
    pd.DataFrame({"id": ["s0", "s1"], "size": [4, 5]}).to_csv("shops.csv", index=False)
    ends = {"source": ["a0", "a1", "a2", "a3"], "target": ["s0", "s1"] * 2}
    pd.DataFrame(ends).to_csv("buys.csv", index=False)
    nodes = ["--nodes", "person=people.csv", "--nodes", "shop=shops.csv", "--target", "person", "--client", "0"]
    args = [*nodes, "--edges", "person:buys:shop=buys.csv", "--classes", "no,yes", "--ratio", "0.5,0.25,0.25"]
    assert main(["import", *args, "--out", "parts/client_0000.safetensors"]) == 0
    fg.run(graph="parts", strategy="local", model="rgcn", rounds=1, out="run", progress=False)
    capsys.readouterr()
    text = "run reads tables of several types, and {} has one of accounts and one of payments: leave it out"
    assert main(["book", "use", str(book), "run"]) == 2
    assert text.format(book) in capsys.readouterr().err
    assert main(["predict", "run", "--client", "0", "--book", str(book)]) == 2
    assert text.format(book) in capsys.readouterr().err
    path = tmp_path / "tables" / "a.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"nodes": {"person": "people.csv"}}))
    assert main(["import", str(path)]) == 2
    assert "pass those of several types to `import`, as --nodes TYPE=FILE" in capsys.readouterr().err


def test_unique_ids_need_a_column_of_ids(tmp_path, capsys):
    """Without one, a book counted each version of a payment, although the file said that ids are unique."""
    own_book(tmp_path / "tables", "book", "first")
    path = tmp_path / "tables" / "a.yaml"
    values = yaml.safe_load(path.read_text()) | {"edge_ids": "unique", "columns": {"time": "at", "amount": "amount"}}
    path.write_text(yaml.safe_dump(values))
    for words in (
        ["import", str(path), "--classes", "no,yes"],
        ["book", "new", str(tmp_path / "other"), "--party-file", str(path), "x.csv"],
    ):
        assert main(words) == 2
        assert (
            "error: edge_ids=unique needs the column with ids of edges: set columns.edge_id" in capsys.readouterr().err
        )


def test_a_text_that_is_no_day_is_named_with_its_option():
    with pytest.raises(FedGraphError, match="--from: expected a day such as 2026-03-04, got 'march'"):
        day_of("march", "--from")


def test_one_command_at_a_time_changes_a_book(tmp_path, capsys, monkeypatch):
    """Two `add` at once both ended with 0, and the list had the file of one."""
    (tmp_path / "pay.csv").write_text("source,target,amount,time\na,b,1.5,2026-03-01\nb,a,2,2026-03-02\n")
    (tmp_path / "day.csv").write_text("source,target,amount,time\nb,a,3,2026-03-03\n")
    (tmp_path / "accounts.csv").write_text("id\na\nb\n")
    roles = "columns: {id: id, source: source, target: target, amount: amount, time: time}\n"
    (party := tmp_path / "a.yaml").write_text(f"party: a\nnodes: accounts.csv\nedges: pay.csv\n{roles}")
    book, day = str(tmp_path / "book"), str(tmp_path / "day.csv")
    files = [str(tmp_path / "accounts.csv"), str(tmp_path / "pay.csv")]
    assert main(["book", "new", book, "--party-file", str(party), *files]) == 0
    with owned(tmp_path / "book", ".book.lock"):
        assert main(["book", "add", book, day]) == 2
        assert main(["book", "show", book]) == 0
    assert re.search("book is in use by process .*: wait, stop it, or run this command later", capsys.readouterr().err)
    assert main(["book", "add", book, day]) == 0
    assert [export.file for export in BookFolder.load(tmp_path / "book").files][-1] == "day.csv"
    for words in (["add", day], ["new", *files], ["new", "--party-file", str(party), *files, str(tmp_path / "no.csv")]):
        assert main(["book", words[0], str(tmp_path / "none"), *words[1:]]) == 2
        assert not (tmp_path / "none").exists()

    @contextlib.contextmanager
    def owned_after_another(folder, *words):
        shutil.copytree(book, folder)
        with owned(folder, *words):
            yield

    monkeypatch.setattr("fedgraph_flwr.store.folder.owned", owned_after_another)
    assert main(["book", "new", str(tmp_path / "late"), "--party-file", str(party), *files]) == 2
    assert "is a book already" in capsys.readouterr().err
    assert BookFolder.load(tmp_path / "late").files  # that of the other process

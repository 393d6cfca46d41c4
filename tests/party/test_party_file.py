"""A party's file: what it stands for, its errors, and how `init-party` guesses it."""

import runpy
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedgraph_flwr.cli import app
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.data.schema import Schema
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.options import fill
from fedgraph_flwr.party.party_file import given_keys, is_key, read_party, table_order
from fedgraph_flwr.party.tables.guessing import guess, without_role
from fedgraph_flwr.party.tables.import_work import take_words
from fedgraph_flwr.party.use.predict_command import layout_of_party

ROOT = Path(__file__).parents[2]
MINIMAL = "party: a\nnodes: n.csv\nedges: e.csv\n"


@pytest.fixture(scope="module")
def banks(tmp_path_factory):
    """Tables of three banks, with the file that `init-party` guesses for each."""
    folder = tmp_path_factory.mktemp("crossing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["linked_tables.py", str(folder), "--accounts", "40"])
        runpy.run_path(str(ROOT / "examples" / "banks" / "linked_tables.py"), run_name="__main__")
    for client, bank in enumerate("abc"):
        tables = [str(folder / f"{bank}_{kind}.csv") for kind in ("accounts", "payments")]
        out = ["--out", str(folder / f"{bank}.yaml"), f"out={folder}/{bank}.safetensors"]
        assert main(["init-party", *tables, *out, f"client={client}"]) == 0
    return folder


def same(one: ClientGraph, two: ClientGraph) -> bool:
    pairs = [(getattr(one, f.name), getattr(two, f.name)) for f in fields(one) if f.name not in ("linking", "schema")]
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def test_three_short_commands_import_and_link_as_the_long_ones(banks, tmp_path, capsys):
    """The banks write dates, amounts and ids in three ways; each file is guessed without a correction."""
    for client, bank in enumerate("abc"):
        assert main(["import", str(banks / f"{bank}.yaml"), "--secret-seed", "1"]) == 0
        long = [
            "--nodes",
            f"{banks}/{bank}_accounts.csv",
            "--edges",
            f"{banks}/{bank}_payments.csv",
            "--own-party",
            bank,
        ]
        long += ["party_columns=from_bank,to_bank", "--match-columns", "value_date:date,amount:amount,reference"]
        long += [
            "columns.split=part",
            "--classes",
            "ok,fraud",
            "columns.time=value_date",
            "features=payments",
        ]
        long += ["--client", str(client), "--num-clients", str(client + 1), "--secret-seed", "1"]
        long += ["--schema", f"{tmp_path}/schema.yaml", "--out", f"{tmp_path}/{bank}.safetensors"]
        assert main(["import", *long]) == 0
        one, two = (ClientGraph.load(folder / f"{bank}.safetensors") for folder in (banks, tmp_path))
        assert one.foreign.size(1) > 100
        assert same(one, two)
        assert one.linking == two.linking
    schemas = [Schema.load(folder / "schema.yaml") for folder in (banks, tmp_path)]
    assert schemas[0].difference(schemas[1]) == ""
    for folder, suffix in ((banks, "yaml"), (tmp_path, "safetensors")):
        files = [str(folder / f"{bank}.{suffix}") for bank in "abc"]
        assert main(["link", "--simulate", *files, "--out", str(folder / "linked")]) == 0
    for client in range(3):
        name = f"linked/client_{client:04d}.safetensors"
        assert same(ClientGraph.load(banks / name), ClientGraph.load(tmp_path / name))
    assert ClientGraph.load(banks / "linked/client_0000.safetensors").cut_out.size(1) > 50
    capsys.readouterr()


def test_words_are_keys_of_the_file():
    words = ["inputs=a", "inputs=b,c", "columns.time=at", "kinds.edges.x/y=date", "undirected=true", "client=2"]
    assert all(map(is_key, words))
    assert given_keys(words) == {
        "inputs": ["a", "b", "c"],
        "columns": {"time": "at"},
        "kinds": {"edges.x/y": "date"},
        "undirected": True,
        "client": 2,
    }
    assert not any(map(is_key, ("bank.yaml", "data/a=b.yaml", "../x.csv")))
    with pytest.raises(FedGraphError, match="did you mean 'columns'"):
        given_keys(["column.time=at"])
    with pytest.raises(FedGraphError, match=r"kinds=number: expected KEY=VALUE, or KEY\.NAME=VALUE"):
        given_keys(["kinds=number"])
    with pytest.raises(FedGraphError, match="undirected 'yes' is unknown; expected one of: false, true"):
        given_keys(["undirected=yes"])
    with pytest.raises(FedGraphError, match="age is given twice, as 'number' and 'flag'"):
        given_keys(["kinds.age=number", "kinds.age=flag"])
    entries = given_keys(["kinds.x=y=ignored", "columns.label=a=b", "match.e=f=text"])
    assert entries == {"kinds": {"x=y": "ignored"}, "columns": {"label": "a=b"}, "match": {"e=f": "text"}}


@pytest.mark.parametrize("word", ["features=", "classes=[]", "columns.label= ", "kinds.age="])
def test_a_word_without_a_value_is_refused(word, banks, capsys):
    """It left a key of the file as it is, which the user meant to remove."""
    for command in ("import a.yaml", "init-party a.csv b.csv"):
        assert main([*command.split(), word]) == 2
        assert f"error: {word} has no value: give one, or leave it out" in capsys.readouterr().err


def test_words_that_import_took_for_nothing_are_read_or_refused(banks):
    args = app._parse(["import", str(banks / "a.yaml"), "party=b"])
    take_words(args)
    fill(args)
    assert args.own_party == "b", "not that of the file"
    with pytest.raises(FedGraphError, match="share is no word of `import`: write it into the party's file"):
        take_words(app._parse(["import", "share=age:exact"]))


def test_classes_of_edges_need_a_column_with_a_name(tmp_path, capsys):
    (party := tmp_path / "party.yaml").write_text(f'{MINIMAL}columns: {{edge_label: ""}}\nedge_classes: [ok, bad]\n')
    assert main(["import", str(party)]) == 2
    assert "edge_classes has no effect without labels of edges" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "word"), [("--client 0", "client=2"), ("--edges x.csv", "edges=y.csv"), ("--classes a,b", "classes=b,a")]
)
def test_an_option_and_a_word_with_other_values_are_refused(option, word):
    with pytest.raises(FedGraphError, match=rf"{option} is given, but a key .* says '{word.partition('=')[2]}'"):
        take_words(app._parse(["import", *option.split(), word]))
    take_words(app._parse(["import", *option.split(), option.removeprefix("--").replace(" ", "=")]))


def test_an_option_of_the_command_line_takes_precedence(banks):
    def parsed(*args: str):
        options = app._parse(list(args))
        if args[0] == "import":
            take_words(options)
        fill(options)
        return options

    plain, changed = (
        parsed("import", str(banks / "b.yaml"), *more)
        for more in ((), ("--client", "0", "columns.time=booked_at", "kinds.age=category", "--edges", "x.csv"))
    )
    assert (plain.client, plain.own_party, plain.keys.columns["id"]) == (1, "b", "id")
    assert plain.edges == [banks / "b_payments.csv"]
    assert (changed.client, changed.keys.columns["time"]) == (0, "booked_at")
    assert changed.keys.kinds == {"age": "category"}
    assert [str(path) for path in changed.edges] == ["x.csv"]
    assert changed.nodes == plain.nodes
    stored = parsed("predict", "runs/x", "--party-file", str(banks / "b.yaml"))
    assert (stored.client, stored.nodes, stored.edges, stored.out) == (1, None, [], None)
    for command in (["predict"], ["alerts"], ["explain", "--items", "3"], ["drift"]):
        today = parsed(*command, "--party-file", str(banks / "b.yaml"), "--edges", "today.csv")
        assert (today.client, today.nodes) == (1, banks / "b_accounts.csv")
        assert list(map(str, today.edges)) == ["today.csv"]
        assert layout_of_party(today).source == "source"


def test_predictions_of_a_linked_file_are_in_the_order_of_the_table(banks, tmp_path, capsys):
    """The linked file has another order; a run of no round is enough."""
    files = []
    for client, bank in enumerate("abc"):
        files.append(str(tmp_path / f"{bank}.safetensors"))
        assert main(["import", str(banks / f"{bank}.yaml"), "--out", files[-1], "--secret-seed", str(client)]) == 0
    assert main(["link", "--simulate", *files, "--out", str(tmp_path / "linked")]) == 0
    small = ["rounds=1", "model=mlp", "model.hidden=4", f"out={tmp_path / 'run'}", "--quiet", "--no-report"]
    assert main(["run", f"graph={tmp_path / 'linked'}", *small]) == 0
    for more, ordered in ((["--party-file", str(banks / "c.yaml")], True), (["--client", "2"], False)):
        assert main(["predict", str(tmp_path / "run"), *more, "--out", str(tmp_path / "p.csv")]) == 0
        ids = pd.read_csv(tmp_path / "p.csv").id.tolist()
        table = pd.read_csv(banks / "c_accounts.csv").id.tolist()
        assert (ids == table) == ordered
        assert sorted(ids) == sorted(table)
    assert table_order(banks / "c.yaml", np.array(["c0002", "new", "c0001"])).tolist() == [2, 0, 1]
    capsys.readouterr()
    other = ["--party-file", str(banks / "c.yaml"), "--client", "1"]  # as where c is the second of those present
    assert main(["predict", str(tmp_path / "run"), *other]) == 2
    assert "has 'b' as client 1, and " in capsys.readouterr().err


def test_values_of_the_file_become_options(tmp_path):
    schema = tmp_path / "schema.yaml"
    schema.write_text("nodes: {}\ntables: {party_prefix: ':'}\n")
    (tmp_path / "p.yaml").write_text(
        MINIMAL
        + "client: 3\nclasses: [no, yes]\nkinds: {zip: category}\nschema: schema.yaml\nuntil: [2026-03-01, 2026-04-01]\n"
        "split: temporal\nundirected: true\nmatch: {day: date, ref: text}\nwindows: 2,0.5\nshare: [age]\ncolumns: {edge_id: no}\n"
    )
    options = read_party(tmp_path / "p.yaml").options(tmp_path)
    assert options == {
        "client": 3,
        "nodes": tmp_path / "n.csv",
        "edges": tmp_path / "e.csv",
        "schema": schema,
        "classes": "no,yes",
        "until": "2026-03-01,2026-04-01",
        "split": "temporal",
        "undirected": True,
        "match_columns": "day:date,ref:text",
        "own_party": "a",  # the schema says that ids name parties
    }
    args = app._parse(["predict", "runs/x", "--party-file", str(tmp_path / "p.yaml")])
    fill(args)
    assert (args.client, args.until) == (3, ""), "the times of a split are no day of a book"
    (tmp_path / "alone.yaml").write_text(MINIMAL)
    assert "own_party" not in read_party(tmp_path / "alone.yaml").options(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL + "clint: 1", r"key of a party's file 'clint' is unknown \(.*p.yaml\); did you mean 'client'\?"),
        (MINIMAL + "columns: {id: a}\ncolumns: {id: b}", "the key 'columns' comes twice"),
        (MINIMAL + "client: x", "p.yaml: client must be an integer, got 'x'"),
        (MINIMAL + "client: -1", "p.yaml: client must be >= 0, got -1"),
        (MINIMAL + "columns: {splt: part}", "p.yaml: key of columns 'splt' is unknown; did you mean 'split'"),
        (MINIMAL + "columns: part", "p.yaml: columns must be keys with values, got 'part'"),
        (MINIMAL + "match: {amount: amont}", "p.yaml: match.amount 'amont' is unknown; did you mean 'amount'"),
        (MINIMAL + "kinds: {zip: categry}", "p.yaml: kinds.zip 'categry' is unknown; did you mean 'category'"),
        (MINIMAL + "scales: {zip: lg}", "p.yaml: scales.zip 'lg' is unknown"),
        (MINIMAL + "split: time", "p.yaml: split 'time' is unknown; .*expected one of: ratio, temporal"),
        (MINIMAL + "id_form: numbr", "p.yaml: id_form 'numbr' is unknown; did you mean 'number'"),
        (MINIMAL + "share: ['age:epx=1']", "p.yaml: share: 'age:epx=1'"),
        (MINIMAL + "undirected: maybe", "p.yaml: undirected must be true or false, got 'maybe'"),
        (MINIMAL + "classes: ok", "p.yaml: classes must be a list of strings, got 'ok'"),
        (MINIMAL + "party_columns: [from]", r"p.yaml: party_columns must be the columns .* got \['from'\]"),
        ("party: a\nrole: bank\n", "p.yaml: nodes is missing"),
        ("party: a\nnodes: n.csv\n", "p.yaml: edges is missing: write it, as `fedgraph-flwr init-party` does"),
        ("- a\n", "p.yaml must hold keys and values, such as party: a"),
        ("a: [b", "p.yaml.*invalid YAML.*cannot be read as a party's file"),
    ],
)
def test_a_wrong_file_is_one_error_message(tmp_path, text, message):
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(FedGraphError, match=message) as error:
        read_party(tmp_path / "p.yaml")
    assert "\n" not in str(error.value)


def test_link_needs_the_client_file_of_a_party(tmp_path, capsys):
    (tmp_path / "p.yaml").write_text(MINIMAL)
    assert main(["link", str(tmp_path / "p.yaml"), "--out", str(tmp_path)]) == 2
    assert (
        "link needs the files of all parties (--simulate FILE FILE ... --out DIR) or a fleet" in capsys.readouterr().err
    )
    assert main(["link", "--simulate", str(tmp_path / "p.yaml"), "--out", str(tmp_path)]) == 2
    assert "p.yaml has no out, the client file that `fedgraph-flwr import" in capsys.readouterr().err
    for name, share in (("p", "[age]"), ("q", "[income]")):
        (tmp_path / f"{name}.yaml").write_text(MINIMAL + f"share: {share}\n")
    assert main(["link", "--simulate", str(tmp_path / "p.yaml"), str(tmp_path / "q.yaml"), "--out", str(tmp_path)]) == 2
    assert "q.yaml has share ['income'], another party's file ['age']" in capsys.readouterr().err
    with pytest.raises(FedGraphError, match=r"none\.yaml cannot be read as a party's file"):
        read_party(tmp_path / "none.yaml")


def test_guesses_follow_values_before_names():
    """Ids and ends in any order of tables and columns; numbers that are ids elsewhere; a correction; and what is not there."""
    people = pd.DataFrame({"age": ["30", "40", "30"], "konto": ["1", "2", "3"], "ist_betrug": ["n", "n", "y"]})
    book = pd.DataFrame(
        {"an": ["2", "3", "9"], "x": ["7", "8", "9"], "von": ["1", "2", "3"], "betrag": ["5", "6,5", "7"]}
    )
    entries = guess({"book": book, "people": people}, {"columns": {"label": "ist_betrug"}}).values
    assert entries["columns"] == {
        "id": "konto",
        "source": "von",
        "target": "an",
        "label": "ist_betrug",
        "amount": "betrag",
    }
    assert (entries["nodes"], entries["edges"], entries["classes"]) == ("people", "book", ["n", "y"])
    assert not entries.keys() & {"match", "features", "party", "party_columns"}
    prefixed = book.assign(
        von="A:" + book["von"], an=["A:2", "B:3", "B:9"], tag=["2026-01-01", "2026-01-02", "2026-01-03"]
    )
    named = people.assign(konto="A:" + people["konto"])
    entries = guess({"people": named, "book": prefixed}, {"party": "A", "party_prefix": ":"}).values
    assert (entries["columns"]["source"], entries["columns"]["time"], entries["features"]) == ("von", "tag", "payments")
    assert guess({"people": named, "book": prefixed}, {}).values == entries | {"party": "a"}
    assert entries["match"] == {"tag": "date", "betrag": "amount"}
    with pytest.raises(FedGraphError, match=r"no column of people or book lists ids.*pass columns.id="):
        guess({"people": people, "book": book[["betrag"]]}, {})
    with pytest.raises(FedGraphError, match="book has no rows to guess from"):
        guess({"people": people, "book": book[:0]}, {})


def test_a_file_is_not_replaced_unless_it_is_asked_for(banks, capsys):
    args = ["init-party", str(banks / "a_payments.csv"), str(banks / "a_accounts.csv"), "--out", str(banks / "a.yaml")]
    before = (banks / "a.yaml").read_text()
    assert main(args) == 2
    assert "a.yaml exists: edit it, pass another --out, or --overwrite" in capsys.readouterr().err
    assert main([*args, "--overwrite", f"out={banks / 'a.safetensors'}"]) == 0
    assert (banks / "a.yaml").read_text() == before  # the order of the tables does not matter
    assert "party: a  (the name beside own accounts)" in capsys.readouterr().out


BOOK = {
    "amount": [f"{10 + i}.50" for i in range(60)],
    "booked": [f"2026-01-{1 + i % 28:02d}" for i in range(60)],
    "ref": [f"R{i}" for i in range(60)],
}


def linked(paying, paid, banks=("pay_bank", "get_bank")):
    """Accounts of bank a and its payments; of three payments, one comes from another bank and one goes to another."""
    accounts = pd.DataFrame({"iban": [f"A{i}" for i in range(30)], "is_mule": ["no", "no", "yes"] * 10})
    ends = {paying: [f"A{i % 30}" for i in range(60)], paid: [f"A{(i * 7 + 1) % 30}" for i in range(60)]}
    bank_columns = {banks[0]: ["a"] * 60, banks[1]: ["a"] * 60}
    for row in range(0, 60, 3):
        ends[paying][row], bank_columns[banks[0]][row] = f"B{row}", "b"
    for row in range(1, 60, 3):
        ends[paid][row], bank_columns[banks[1]][row] = f"C{row}", "c"
    return accounts, pd.DataFrame({**bank_columns, **ends, **BOOK}).astype(str)


DIRECTIONS = [
    *[("from_iban", "to_iban"), ("debtor_account", "creditor_account"), ("payerIBAN", "payeeIBAN")],
    *[("Absender", "Empfänger"), ("von_konto", "an_konto"), ("compte_debiteur", "compte_créancier")],
    *[("de_conta", "para_conta"), ("cuenta_origen", "cuenta_destino"), ("conto_ordinante", "conto_beneficiario")],
]


@pytest.mark.parametrize(("paying", "paid"), DIRECTIONS)
def test_direction_of_payments_follows_names_not_places(paying, paid):
    """At a bank whose columns have the reverse order, all payments were reversed."""
    accounts, payments = linked(paying, paid)
    for table in (payments, payments[payments.columns[::-1]]):
        entries = guess({"accounts": accounts, "payments": table}, {}).values
        assert (entries["columns"]["source"], entries["columns"]["target"]) == (paying, paid)
        assert entries["party_columns"] == ["pay_bank", "get_bank"]
        assert entries["party"] == "a"


@pytest.mark.parametrize(("one", "two"), [("acc1", "acc2"), ("from_a", "from_b"), ("left", "right")])
def test_a_direction_that_names_do_not_say_is_asked_for(one, two):
    accounts, payments = linked(one, two)
    with pytest.raises(FedGraphError, match=f"do not say which account pays: pass columns.source={one}"):
        guess({"accounts": accounts, "payments": payments}, {})
    given = guess({"accounts": accounts, "payments": payments}, {"columns": {"source": two}}).values["columns"]
    assert (given["source"], given["target"]) == (two, one)


def test_a_correction_keeps_the_other_guesses():
    """Given columns of parties named every bank after its folder."""
    accounts, payments = linked("from_iban", "to_iban")
    free = guess({"accounts": accounts, "payments": payments}, {}).values
    given = {"party_columns": ["pay_bank", "get_bank"]}
    assert guess({"accounts": accounts, "payments": payments}, given).values == free
    assert free["match"] == {"booked": "date", "amount": "amount", "ref": "text"}


def test_the_desk_is_asked_when_it_scores():
    """With hours, the day as a whole is a choice; dates have no other reading."""
    accounts, payments = linked("from_iban", "to_iban")
    timed = payments.assign(booked=[f"{day} 09:{row % 60:02}:00" for row, day in enumerate(payments["booked"])])
    (question,) = guess({"accounts": accounts, "payments": timed}, {}).questions
    assert question.startswith("When do you score?")
    assert "init-party day=whole" in question
    proposal = guess({"accounts": accounts, "payments": timed}, {"day": "whole"})
    assert (proposal.questions, proposal.values["day"]) == ([], "whole")
    assert guess({"accounts": accounts, "payments": payments}, {}).questions == []


def test_names_of_labels_are_labels_or_questions():
    """`is_mule` became an input of the payments' task."""
    accounts, payments = linked("from_iban", "to_iban")
    proposal = guess({"accounts": accounts, "payments": payments}, {})
    assert proposal.values["columns"]["label"] == "is_mule"
    assert proposal.values["classes"] == ["no", "yes"]
    two = accounts.assign(fraud=accounts["is_mule"], island=1)
    proposal = guess({"accounts": two, "payments": payments}, {})
    assert proposal.values["columns"]["label"] == "fraud"
    assert [question.split("'")[1] for question in proposal.questions] == ["is_mule"]


@pytest.mark.parametrize(
    "names", ["Betrag Auftragsreferenz kz_verdacht", "montant_eur référence fraude", "importe referencia es_fraude"]
)
def test_names_of_amounts_references_and_labels_are_known_in_other_languages(names):
    """`importo` was no amount, so the recipe was left out; `riferimento` was no reference, so payments matched by day only."""
    amount, reference, label = names.split()
    accounts, payments = linked("from_iban", "to_iban")
    table = payments.rename(columns={"amount": amount, "ref": reference}).assign(**{label: ["0"] * 55 + ["1"] * 5})
    proposal = guess({"accounts": accounts, "payments": table.assign(note="rent")}, {})
    assert proposal.values["match"] == {"booked": "date", amount: "amount", reference: "text"}
    assert (proposal.values["columns"]["edge_label"], proposal.values["edge_classes"]) == (label, ["0", "1"])
    roles = ("source", "target", "time", "amount", "edge_label")
    assert without_role(table.assign(note="rent"), proposal.values, roles) == ["note (rent)"]


def test_the_rarer_class_of_a_given_label_is_the_second():
    """Sorted, `ok` would be the positive class, whose scores alerts list."""
    accounts, payments = linked("from_iban", "to_iban")
    table = payments.assign(state=["ok"] * 55 + ["fraud"] * 5)
    entries = guess({"accounts": accounts, "payments": table}, {"columns": {"edge_label": "state"}}).values
    assert entries["edge_classes"] == ["ok", "fraud"]
    assert "state" not in entries.get("match", ())


def test_a_party_without_a_positive_leaves_the_classes_to_the_schema():
    accounts, payments = linked("from_iban", "to_iban")
    entries = guess({"accounts": accounts.assign(is_mule="no"), "payments": payments.assign(fraud="0")}, {}).values
    assert entries["columns"]["label"] == "is_mule"
    assert not entries.keys() & {"classes", "edge_classes"}


def test_payments_with_accounts_of_unnamed_parties_are_a_question():
    accounts, payments = linked("from_iban", "to_iban")
    proposal = guess({"accounts": accounts, "payments": payments.drop(columns=["pay_bank", "get_bank"])}, {})
    assert proposal.questions[0].startswith("67 % of the payments name an account that is not in the node table")


def test_the_first_payment_is_shown_as_a_sentence(tmp_path, capsys):
    accounts, payments = linked("from_iban", "to_iban")
    for name, table in (("accounts", accounts), ("payments", payments)):
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    assert main(["init-party", str(tmp_path / "accounts.csv"), str(tmp_path / "payments.csv")]) == 0
    said = capsys.readouterr().out
    assert "first row: B0 pays A1 10.50 on 2026-01-01" in said
    assert "columns of payments.csv without a role" not in said


@pytest.mark.parametrize(
    "word",
    ["columns.edge_id=reference", "columns.time=value_date", "columns.amount=amount", "columns.edge_label=kind"],
)
def test_a_column_with_a_role_still_identifies_a_record(banks, tmp_path, capsys, word):
    """The id of an edge may be its reference; without it, payments of one day and amount would be merged."""
    tables = [str(banks / f"a_{kind}.csv") for kind in ("accounts", "payments")]
    assert main(["init-party", *tables, "--out", str(tmp_path / "plain.yaml")]) == 0
    assert main(["init-party", *tables, "--out", str(tmp_path / "a.yaml"), word]) == 0
    assert {*read_party(tmp_path / "a.yaml").match} == {*read_party(tmp_path / "plain.yaml").match}


@pytest.mark.parametrize(
    "words",
    [
        "import --edges n.csv --nodes d0.csv --nodes d1.csv --name x",
        "predict . --nodes d0.csv --nodes=d1.csv",
        "run strategy=fedavg --predictions a.csv --predictions b.csv",
        "link a b --share age:exact --share city:exact",
        "sweep strategy=fedavg --jobs 1 --jobs 2",
        "fleet init here --days 1 --days 2",
        "node --graph a --graph b",
        "--conf a --conf b keys",
    ],
)
def test_an_option_that_takes_one_value_is_given_once(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = words.split()
    option = next(word for word in given if given.count(word) > 1 or f"{word}=d1.csv" in given)
    assert main(given) == 2
    assert f"error: {option} is given twice, as '" in capsys.readouterr().err


def test_import_warns_of_inputs_with_names_of_labels(tmp_path, capsys, monkeypatch):
    """As `init-party` does, for tables that were imported without it."""
    monkeypatch.chdir(tmp_path)
    ids, count = [f"A{i}" for i in range(20)], np.arange(20)
    pd.DataFrame({"id": ids, "age": count, "is_mule": np.where(count % 3, "no", "yes")}).to_csv("n.csv", index=False)
    table = {
        "source": ids,
        "target": ids[::-1],
        "amount": count + 1.5,
        "fraud_score": count % 7,
        "verdict": ["ok", "bad"] * 10,
    }
    pd.DataFrame(table).to_csv("e.csv", index=False)
    args = "import --nodes n.csv --edges e.csv columns.edge_label=verdict edge_columns=amount,fraud_score --out g.safetensors"
    assert main(args.split()) == 0
    said = capsys.readouterr().out
    assert [line.split("'")[1] for line in said.splitlines() if "has the name of a label" in line] == [
        "is_mule",
        "fraud_score",
    ]
    assert "warning: auc" not in said
    assert main([*args.split(), "kinds.is_mule=ignored", "inputs=fraud_score"]) == 0
    assert "has the name of a label" not in capsys.readouterr().out


def test_import_warns_if_the_positive_class_of_edges_is_the_frequent_one(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ids = [f"A{i}" for i in range(20)]
    pd.DataFrame({"id": ids, "age": range(20)}).to_csv("n.csv", index=False)
    verdict = ["ok"] * 15 + ["bad"] * 5
    pd.DataFrame({"source": ids, "target": ids[::-1], "verdict": verdict}).to_csv("e.csv", index=False)
    args = ["import", "--nodes", "n.csv", "--edges", "e.csv", "columns.edge_label=verdict", "--out", "g.safetensors"]
    assert main(args) == 0
    text = "second class, 'ok', which is the more frequent one: pass edge_classes=ok,bad to use 'bad'"
    assert text in capsys.readouterr().out
    assert main([*args, "edge_classes=ok,bad"]) == 0
    assert "which is the more frequent one" not in capsys.readouterr().out

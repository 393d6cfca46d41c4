"""A day's file of a bank whose model scores accounts: rows with other banks are read as a link of all rows would give them."""

import numpy as np
import pandas as pd
import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.graph import ClientGraph, unpack_words
from fedgraph_flwr.data.schema import fitted_schema
from fedgraph_flwr.party.link.protocol import LinkParty, simulate
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.party.tables.roles import Columns
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.party.use.prediction_input import InputSpec, new_nodes
from fedgraph_flwr.secure.keyring import Keyring
from tests.party.linked_banks import BANKS, banks
from tests.party.two_banks import books, payments

KEYS = {"num_clients": 3, "rounds": 1, "progress": False, "model.hidden": 4, "model.dropout": 0}


def link(made, folder, share):
    parties = [LinkParty(graph, LinkRules(share=share), Keyring(graph.client)) for graph in map(made.client, BANKS)]
    simulate(parties)
    for party in parties:
        party.result().save(folder / f"client_{party.client:04d}.safetensors")
    return folder


@pytest.fixture(scope="module", params=["alone", "shared", "undirected"])
def work(request, tmp_path_factory):
    """A model of three banks' linked files, the same banks with all rows linked, and the rows of the day at bank A."""
    folder = tmp_path_factory.mktemp("day")
    both = request.param == "undirected"
    made = banks(folder, accounts=8, payments=70, data=not both, undirected=both)
    every = made.joined().drop_duplicates(["source", "target"]).reset_index(drop=True)
    every = every[every.source != every.target]
    named = {bank: every[(every.from_bank == bank) | (every.to_bank == bank)] for bank in BANKS}
    bank_rows = named["A"]
    far = np.where(bank_rows.from_bank == "A", bank_rows.target, bank_rows.source)
    first = bank_rows.groupby(far).cumcount() == 0  # each far account is in a record of the first month
    day = bank_rows[~first & (np.arange(len(bank_rows)) % 2 == 0)]
    made.books = {bank: rows.drop(day.index, errors="ignore") for bank, rows in named.items()}
    new = made.nodes["A"].iloc[[0]].assign(id="A9999", income=1.5)
    share = [] if request.param == "alone" else ["age:exact"]
    history = link(made, folder / "history", share)
    day = pd.concat([day, day.iloc[[0]].assign(source="A9999", from_bank="A", target="A0001", to_bank="A", ref="n")])
    made.books = {
        bank: pd.concat([made.books[bank], day[(day[["from_bank", "to_bank"]] == bank).any(axis=1)]]) for bank in BANKS
    }
    made.nodes = {**made.nodes, "A": pd.concat([made.nodes["A"], new])}
    whole = link(made, folder / "whole", share)
    names = ("fedavg", "fedgcn") if request.param == "shared" else ("fedavg",)
    runs = {name: fg.run(graph=str(history), strategy=name, out=str(folder / name), **KEYS) for name in names}
    made.nodes["A"].drop(columns=["label", "part"]).iloc[::-1].to_csv(folder / "accounts.csv", index=False)
    return request.param, runs, whole, day, folder


def predict(work, run, table, out):
    table.to_csv(out / "day.csv", index=False)
    files = ["--nodes", str(work[4] / "accounts.csv"), "--edges", str(out / "day.csv"), "--out", str(out / "p.csv")]
    return main(["predict", str(run.path), "--client", "0", *files])


def test_accounts_are_scored_as_after_a_link_of_all_rows(work, tmp_path, capsys):
    """All own accounts, a new one among them, in the table's order; rows that the model cannot read are listed."""
    kind, runs, whole, day, folder = work
    assert predict(work, runs["fedavg"], day.iloc[::-1], tmp_path) == 0
    predictions = pd.read_csv(tmp_path / "p.csv")
    assert predictions["id"].tolist() == pd.read_csv(folder / "accounts.csv")["id"].tolist()
    predictor = load_predictor(runs["fedavg"].path, 0)
    expected = predictor.predict(ClientGraph.load(whole / "client_0000.safetensors")).to_frame().set_index("id")
    np.testing.assert_allclose(predictions["p_fraud"], expected.loc[predictions["id"], "p_fraud"], atol=1e-6)
    cut = day[day.from_bank != day.to_bank]
    assert len(cut) > 5
    if kind == "alone":
        left = pd.read_csv(tmp_path / "p.left-out.csv")
        assert len(left) == len(cut)
        assert set(left["reason"]) == {
            "names another party's account, of which this graph has no columns (link --share)"
        }
        assert f"{len(cut)} of {len(day)} rows of" in capsys.readouterr().err
    else:
        assert not (tmp_path / "p.left-out.csv").exists()


def test_a_row_of_an_unknown_account_is_listed_and_the_accounts_scored(work, tmp_path):
    _, runs, _, day, folder = work
    odd = day.iloc[:2].assign(source=["A7777", "B0001"], from_bank=["A", "B"], target="C0001", to_bank="C")
    assert predict(work, runs["fedavg"], pd.concat([odd, day]), tmp_path) == 0
    assert len(pd.read_csv(tmp_path / "p.csv")) == len(pd.read_csv(folder / "accounts.csv"))
    left = pd.read_csv(tmp_path / "p.left-out.csv").set_index("row")["reason"]
    assert "'A7777', which is not an id" in left[1] or "no columns" in left[1]
    assert "no account of 'a'" in left[2] or "no columns" in left[2]


def test_a_table_of_another_bank_and_a_method_that_needs_the_others_are_refused(work, tmp_path, capsys):
    _, runs, _, day, _ = work
    wrong = day.assign(source="B0001", from_bank="B", target="C0001", to_bank="C")
    assert predict(work, runs["fedavg"], wrong, tmp_path) == 2
    assert "no row of" in capsys.readouterr().err
    if "fedgcn" in runs:
        assert predict(work, runs["fedgcn"], day, tmp_path) == 2
        assert "cannot predict new nodes without the other clients" in capsys.readouterr().err


def test_columns_of_a_recipe_count_the_rows_with_other_banks(tmp_path):
    """As in an import of all rows, at a file that is linked, for a model of accounts."""
    rows = payments()
    day = rows[:120:7]  # before the time until which columns of accounts count
    linked = {
        name: ClientGraph.load(books(tmp_path / name, table, "features=payments") / "client_0000.safetensors")
        for name, table in (("history", rows.drop(day.index)), ("whole", rows))
    }
    stored, whole = linked["history"], linked["whole"]
    mine = day[(day[["from_bank", "to_bank"]] == "A").any(axis=1)]
    assert (mine.from_bank != mine.to_bank).sum() > 5
    mine.to_csv(tmp_path / "day.csv", index=False)
    spec = InputSpec(("no", "yes"), stored.num_features, fitted_schema(stored.schema, "the import"))
    columns = Columns.of(spec.schema.tables)
    additions = new_nodes(
        tmp_path / "history" / "a.csv", tmp_path / "day.csv", columns, spec, stored, "the stored graph"
    )
    ids = unpack_words(whole.ids).tolist()
    place = [ids.index(name) for name in additions.ids[additions.rows]]
    torch.testing.assert_close(additions.graph.x[additions.rows], whole.x[place])
    assert not torch.allclose(additions.graph.x[additions.rows], stored.x[additions.rows])
    assert not additions.left_out

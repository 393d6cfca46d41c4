"""What stopped a bank's team on its first tables: own payments booked twice, schemas that do not fit, splits, spellings."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedgraph_flwr.cli import main
from fedgraph_flwr.data.hetero import load_graph


@pytest.fixture
def book(tmp_path, monkeypatch):
    """Write a bank's accounts and payments, and return the arguments that all imports share."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    accounts = pd.DataFrame({"id": [f"A{i}" for i in range(20)], "age": np.arange(20) % 7, "label": ["ok", "bad"] * 10})
    accounts["part"] = (["train"] * 3 + ["val", "test"]) * 4
    accounts.to_csv(tmp_path / "accounts.csv", index=False)
    rows = [
        (
            f"A{i}",
            "A",
            f"{'AB'[i % 2]}{(i + 1) % 20}",
            "AB"[i % 2],
            f"2026-01-{i + 1:02d}",
            10 + i,
            f"r{i}",
            "bad" if i % 5 else "ok",
        )
        for i in range(20)
    ]
    names = ["source", "from_bank", "target", "to_bank", "booked", "amount", "reference", "verdict"]
    payments = pd.DataFrame(rows, columns=names)

    def write(table=None):
        (payments if table is None else table).to_csv(tmp_path / "payments.csv", index=False)
        return ["import", "--nodes", str(tmp_path / "accounts.csv"), "--edges", str(tmp_path / "payments.csv")]

    writer: Any = write
    writer.payments, writer.folder = payments, tmp_path
    return writer


PARTIES = ["party_columns=from_bank,to_bank", "--own-party", "A", "--client", "0", "--num-clients", "2"]
MATCH = ["--match-columns", "booked:date,amount:amount,reference"]


def test_own_payments_booked_twice_count_once(book, capsys):
    """A bank books both sides of a payment between its own customers; the match columns identify it."""
    twice = pd.concat([book.payments, book.payments.iloc[:6]])
    out = ["--classes", "ok,bad", "--out", str(book.folder / "a.safetensors")]
    columns = ["edge_columns=amount", "columns.time=booked"]
    assert main([*book(twice), *PARTIES, *MATCH, *columns, *out]) == 0
    said = capsys.readouterr().out
    graph, inner_rows = load_graph(book.folder / "a.safetensors"), book.payments[book.payments.to_bank == "A"]
    assert graph.edge_index.size(1) == len(inner_rows) == 10
    assert sorted(graph.edge_attr.view(-1).tolist()) == pytest.approx(
        sorted(scaled(inner_rows.amount, twice.amount)), abs=1e-5
    )
    assert "3 of 13 own rows repeat another one (equal ends and equal booked, amount, reference): counted once" in said
    assert graph.foreign.size(1) == 13  # copies of records with other parties are matched copy by copy
    other = twice.assign(reference=[f"r{i}" for i in range(26)])
    assert main([*book(other), *PARTIES, *MATCH, *columns, *out]) == 0
    assert load_graph(book.folder / "a.safetensors").edge_index.size(1) == 13


def scaled(amounts, table):
    return [(value - table.mean()) / table.std(ddof=0) for value in amounts]


def test_a_schema_that_import_writes_is_one_that_it_reads(book):
    """A column of times may be a feature, too, if it is asked for."""
    schema = ["--schema", str(book.folder / "s.yaml"), "columns.time=booked", "--classes", "ok,bad"]
    assert (
        main([*book(), *schema, "edge_columns=amount,booked", *PARTIES, "--out", str(book.folder / "a.safetensors")])
        == 0
    )
    assert (
        main(
            [
                *book(),
                "--schema",
                schema[1],
                "--own-party",
                "A",
                *PARTIES[3:],
                "--out",
                str(book.folder / "b.safetensors"),
            ]
        )
        == 0
    )
    a, b = (load_graph(book.folder / f"{name}.safetensors") for name in "ab")
    assert a.edge_attr.equal(b.edge_attr)
    assert a.edge_attr.size(1) == 2


def test_the_first_bank_writes_the_schema_and_its_classes(book):
    """A schema that does not exist yet gets the classes that occur, in their order; the others obey it."""
    schema = ["--schema", str(book.folder / "s.yaml"), *PARTIES]
    assert main([*book(), *schema, "--out", str(book.folder / "a.safetensors")]) == 0
    assert load_graph(book.folder / "a.safetensors").schema["agreed"]["classes"] == ["bad", "ok"]
    assert re.search(r"classes: \[bad, ok\]", (book.folder / "s.yaml").read_text())


def test_a_split_column_goes_before_a_split_by_times(book, capsys):
    out = ["--classes", "ok,bad", "--out", str(book.folder / "a.safetensors"), "--client", "0", "--num-clients", "2"]
    table = book.payments.assign(target=[f"A{i % 20}" for i in range(1, 21)])
    args = [*book(table), *out, "columns.time=booked", "--split", "temporal"]
    assert main([*args, "columns.split=part"]) == 0
    said, graph = capsys.readouterr().out, load_graph(book.folder / "a.safetensors")
    assert [int(mask.sum()) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)] == [12, 4, 4]
    assert not graph.edge_split.numel()
    assert "split by column 'part': --split temporal applies only without one" in said
    assert main([*args, "columns.split=part", "columns.edge_label=verdict"]) == 0  # each task has its own
    both = load_graph(book.folder / "a.safetensors")
    assert [int(mask.sum()) for mask in (both.train_mask, both.val_mask, both.test_mask)] == [12, 4, 4]
    assert both.edge_split.numel() == 20
    assert main(args) == 0
    assert load_graph(book.folder / "a.safetensors").edge_split.numel() == 20


def test_a_split_of_edges_is_counted_by_edges(book, capsys):
    """For labelled edges, stages and classes are those of edges."""
    table = book.payments.assign(target=[f"A{i % 20}" for i in range(1, 21)])
    out = ["--classes", "ok,bad", "--out", str(book.folder / "a.safetensors"), "--client", "0", "--num-clients", "2"]
    edges = ["columns.time=booked", "columns.edge_label=verdict", "--split", "temporal"]
    assert main([*book(table), *out, *edges]) == 0
    said = capsys.readouterr().out
    split = load_graph(book.folder / "a.safetensors").edge_split.tolist()
    assert (
        f"split of labelled edges: train {split.count(0)}, validation {split.count(1)}, test {split.count(2)}" in said
    )
    assert not re.search(r"all (train |validation |test )?labels are of class", said)  # of nodes
    assert main([*book(table.assign(verdict="ok")), *out, *edges]) == 0
    assert "warning: all labels of edges are of class 'ok'" in capsys.readouterr().out


@pytest.mark.parametrize("where", [slice(None), slice(0, 4)])
def test_another_spelling_of_the_own_bank_is_reported(book, capsys, caplog, where):
    """Its accounts are in the node table, so records with it may be own edges."""
    table = book.payments.copy()
    column = table.columns.get_loc("to_bank")
    rows = table.index[table.to_bank == "A"][where]
    table.iloc[rows, column] = "Bank A"
    out = ["--classes", "ok,bad", "--out", str(book.folder / "a.safetensors")]
    assert main([*book(table), *PARTIES, *MATCH, *out]) == 0
    said = capsys.readouterr().out + caplog.text
    caplog.clear()
    assert f"all {len(rows)} accounts of party 'banka' are ids of your node table, such as 'A1'" in said
    assert "of party 'b'" not in said
    assert main([*book(), *PARTIES, *MATCH, *out]) == 0
    assert "are ids of your node table" not in caplog.text


def test_the_page_of_parties_runs_its_first_command_of_edges():
    page = (Path(__file__).parents[3] / "docs" / "parties-tables.md").read_text()
    block = page.split("## Edges to other parties")[1].split("```")[0]
    assert "not run" not in block

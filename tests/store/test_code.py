"""The digest of a run's code (`store/code.py`), and the list of stored rows that it keeps honest (`benchmarks/rows.py`)."""

import csv

import pytest

from benchmarks import rows
from fedgraph_flwr.config import configuration
from fedgraph_flwr.store import code

TEXT = '"""Doc."""\nimport os\n\n\ndef f(x):\n    """Doc."""\n    return x + 1\n'


@pytest.fixture
def tree(tmp_path, monkeypatch):
    def digest(text: str) -> str:
        (path := tmp_path / "a.py").write_text(text)
        monkeypatch.setattr(code, "_files", lambda: {"a.b.c": path})
        code._read.cache_clear()
        return code._read("a.b.c")[0]

    yield digest
    code._read.cache_clear()


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('"""Doc."""', '"""Other."""', True),
        ("import os", "from a.b import c  # moved", True),
        ("return x", "# why\n    return x", True),
        ("x + 1", "x + 2", False),
        ("x + 1", "x - 1", False),
        ("def f", "def g", False),
    ],
)
def test_what_changes_the_digest_of_a_module(tree, old, new, same):
    assert (tree(TEXT) == tree(TEXT.replace(old, new))) is same


def test_a_digest_covers_method_network_task_and_engine_but_no_seed():
    def digest(*words):
        return code.digest(configuration(list(words)))

    base = digest("strategy=fedavg")
    assert base == digest("strategy=fedavg", "seed=3", "train.lr=0.5")
    parts = ("strategy.objective=[prox]", "strategy.objective=[moon]", "strategy.server_optimizer=adam")
    others = [digest(w) for w in (*parts, "strategy=fedomd", "model=mlp", "task=links", "engine=ray")]
    assert len({base, *others}) == 8
    _, imported = code._read("fedgraph_flwr.strategies.fedomd")
    assert {"fedgraph_flwr.methods.fedomd", "fedgraph_flwr.methods.moments"} <= imported


def stored(folder, **columns):
    folder.mkdir(exist_ok=True)
    row = {"setting": "a", "method": "FedAvg", "words": "strategy=fedavg seed=1", "commit": "", "code": "", **columns}
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row)
    return rows.rows(folder)


def test_rows_that_no_longer_hold_are_listed_and_renewed(tmp_path, monkeypatch):
    known = code.digest(configuration(["strategy=fedavg"]))
    monkeypatch.setattr(rows, "ancestor", lambda commit: commit == "ours")
    monkeypatch.setattr(
        rows, "digests", lambda words, at=rows.HERE: dict.fromkeys(words, "old" if at == tmp_path else known)
    )
    reasons = {
        ("ours", known): [],
        ("ours", "old"): [["table", "the code has changed", "1"]],
        ("ours", ""): [["table", "written before rows had a digest", "1"]],
        ("lost", known): [["table", "commit lost is not in this history", "1"]],
        ("", ""): [],
    }
    for (commit, digest), expected in reasons.items():
        assert rows.stale(stored(tmp_path / "r", commit=commit, code=digest)) == expected
    assert rows.carrying(tmp_path, tmp_path / "r") == 0
    stored(tmp_path / "r", commit="ours", code="old")
    assert rows.carrying(tmp_path, tmp_path / "r") == 1
    seen = rows.Compared()
    seen.row("strategy=fedavg", "")
    assert rows.renew(tmp_path, rows.Compared(moved={"fedavg"}, equal=seen.equal), tmp_path / "r") == 0
    assert rows.renew(tmp_path, rows.Compared(moved={"fedomd"}, equal=seen.equal), tmp_path / "r") == 1
    assert rows.stale(rows.rows(tmp_path / "r")) == []


@pytest.mark.parametrize(
    ("words", "renewed"),
    [
        ("strategy=fedavg partition.share=['*:eps=4'] seed=3", 1),
        ("strategy=fedavg partition.share=['*:exact']", 0),
        ("strategy=fedavg partition.share=['*:eps=4'] train.lr=0.1", 0),
        ("strategy=scaffold partition.share=['*:eps=4']", 0),
    ],
)
def test_a_row_is_renewed_only_if_runs_of_its_method_compared_each_of_its_words(tmp_path, monkeypatch, words, renewed):
    monkeypatch.setattr(
        rows, "digests", lambda words, at=rows.HERE: dict.fromkeys(words, "old" if at == tmp_path else "new")
    )
    stored(tmp_path / "r", words=words, commit="ours", code="old")
    seen = rows.Compared()
    seen.row("strategy=fedavg partition.share=['*:eps=0.5'] seed=1", "")
    assert rows.renew(tmp_path, seen, tmp_path / "r") == renewed


def test_a_row_that_differs_counts_for_its_method_unless_a_pair_of_words_tells_it_from_equal_runs():
    seen = rows.Compared()
    seen.row("strategy=fedavg a=1 b=x", "")
    seen.row("strategy=fedavg a=1 c=y", "")
    seen.row("strategy=fedavg b=x c=y", "largest difference 1e-3")
    seen.row("strategy=fedprox b=x", "refused")
    assert seen.moved == set()
    holds = {
        words: seen.holds(f"strategy=fedavg {words}") for words in ("a=2 b=x", "c=y", "b=x c=y", "a=3 b=x c=y", "d=1")
    }
    assert holds == {"a=2 b=x": True, "c=y": True, "b=x c=y": False, "a=3 b=x c=y": False, "d=1": False}
    assert not seen.holds("strategy=fedprox b=x")
    seen.row("strategy=fedavg a=2 b=x", "largest difference 1e-3")
    assert seen.moved == {"fedavg"}
    assert not seen.holds("strategy=fedavg c=y")


def test_numbers_but_not_words_of_a_value_count_as_equal():
    assert rows.words_of("a=1 b=[n_in_2d,x:eps=0.5] c=3e-05 seed=4 a=0.2") == {"a=#", "b=[n_in_2d,x:eps=#]", "c=#"}


def test_few_stored_rows_name_every_word_of_each_method():
    tables = rows.rows()
    chosen = rows.covering(tables)
    for row in (row for table_rows in tables.values() for row in table_rows if row.get("code")):
        named = [rows.words_of(words) for words in chosen if rows.method(words) == rows.method(row["words"])]
        assert rows.words_of(row["words"]) <= set().union(*named)
    assert len(chosen) < 250


@pytest.mark.slow
def test_the_stored_list_names_every_row_that_no_longer_holds():
    """`python -m benchmarks.rows --write` stores it."""
    if not rows.ancestor("26d62195"):
        pytest.skip("the history of this repository is not here")
    assert rows.stale(rows.rows()) == rows.listed()

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
        code._tree.cache_clear()
        return code._tree("a.b.c")

    yield digest
    code._tree.cache_clear()


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
    others = [digest(w) for w in ("strategy=fedomd", "model=mlp", "task=links", "engine=ray")]
    assert len({base, *others}) == 5
    assert {"fedgraph_flwr.methods.fedomd", "fedgraph_flwr.methods.moments"} <= code._imported(
        "fedgraph_flwr.strategies.fedomd"
    )


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
    assert rows.renew(tmp_path, {"fedavg"}, tmp_path / "r") == 0
    assert rows.renew(tmp_path, {"fedomd"}, tmp_path / "r") == 1
    assert rows.stale(rows.rows(tmp_path / "r")) == []


@pytest.mark.slow
def test_the_stored_list_names_every_row_that_no_longer_holds():
    """`python -m benchmarks.rows --write` stores it."""
    if not rows.ancestor("26d62195"):
        pytest.skip("the history of this repository is not here")
    assert rows.stale(rows.rows()) == rows.listed()

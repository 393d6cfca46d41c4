"""Codes of errors: every code of docs/errors.md is that of a real error, and ends it."""

import shlex
from pathlib import Path

import pytest

import fedgraph_flwr as fg
from fedgraph_flwr import tracking
from fedgraph_flwr.cli import main
from fedgraph_flwr.error_codes import ENTRIES, code_of, page
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.secure.policy import Policy

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fedgraph_flwr"


@pytest.mark.parametrize("code", [code for code, entry in ENTRIES.items() if entry.example])
def test_the_example_of_a_code_ends_with_it(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    assert main(shlex.split(ENTRIES[code].example)) == (1 if code == "run-failed" else 2)
    assert capsys.readouterr().err.endswith(f" [{code}]\n")


def test_a_node_that_refuses():
    with pytest.raises(FedGraphError) as raised:
        Policy(min_nodes=20).check_step(0, 3, "nodes")
    assert code_of(raised.value) == "node-refused"
    assert [code for code, entry in ENTRIES.items() if not entry.example] == ["node-refused"]


def test_the_page_has_every_code_and_links_that_exist():
    assert (ROOT / "docs" / "errors.md").read_text() == page()


def test_places_are_modules_of_the_package_and_of_one_code():
    places = [place for entry in ENTRIES.values() for place in entry.places]
    assert len(places) == len({*places})
    for place in places:
        path = PACKAGE / place.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), place


def test_help_explains_a_code_and_a_command(capsys):
    assert main(["help", "combination"]) == 0
    assert "but not together" in capsys.readouterr().out
    assert main(["help", "predict"]) == 0
    assert "usage: fedgraph-flwr predict" in capsys.readouterr().out
    assert main(["help", "xyzzy"]) == 2


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"strategy": "fedomd", "model": "gcn"}, "combination"),
        ({"train": {"lrr": 1}}, "unknown-name"),
        ({"graph": "nowhere"}, "dataset"),
        ({"dataset": "csbm", "dataset.nodes": 90, "num_clients": 2, "train.lr": 1e30, "rounds": 2}, "run-failed"),
    ],
)
def test_in_python_a_note_has_the_code_once(keys, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedGraphError) as raised:
        fg.run(**keys)
    assert raised.value.__notes__ == [f"[{code}]: docs/errors.md explains this code"]
    assert raised.value.__suppress_context__


def test_an_error_about_an_error_has_the_code_of_its_cause():
    with pytest.raises(RunFailed) as outer:
        raise RunFailed("whole") from FedGraphError("part", "table")
    assert code_of(outer.value) == "run-failed"
    with pytest.raises(FedGraphError) as outer:
        raise FedGraphError("whole") from FedGraphError("part", "table")
    assert code_of(outer.value) == "table"

"""The README's commands are those there are."""

import re
import shlex
from pathlib import Path

import pytest

from fedgraph_flwr.cli import COMMANDS, main
from fedgraph_flwr.config import compose, group_names
from fedgraph_flwr.records import Recorder

TEXT = (Path(__file__).parents[1] / "README.md").read_text()
RUNS = [line for line in re.findall(r"^fedgraph-flwr run (.*)$", TEXT, re.MULTILINE) if "runs/DIR" not in line]


@pytest.mark.parametrize("line", RUNS)
def test_runs_compose(line, capsys):
    assert main(["run", "--dry-run", *shlex.split(line, comments=True)]) == 0


def test_flowers_own_command_composes():
    lines = re.findall(r"--run-config '(.*)'", TEXT)
    assert lines
    for line in lines:
        compose(shlex.split(re.fullmatch(r'overrides="(.*)"', line).group(1)))


def test_all_methods_and_commands_are_named():
    assert not [name for name in group_names("strategy") if f"`{name}`" not in TEXT]
    assert not [name for name in COMMANDS if f"fedgraph-flwr {name}" not in TEXT]


def test_all_keys_of_the_summary_are_named():
    documented = set(re.findall(r"``(\w+)``", Recorder.finish.__doc__)) - {"privacy", "attack", "adversary"}
    assert not [key for key in documented if f"`{key}`" not in TEXT]


def test_the_test_command_is_what_ci_calls():
    assert ".venv/bin/pytest -n 2" in TEXT
    assert 'bin/pytest" -n 2' in (Path(__file__).parents[1] / ".ci" / "run").read_text()


def test_the_worked_example_of_contributing_is_the_code():
    root = Path(__file__).parents[1]
    blocks = dict(re.findall(r"^```(python|yaml)\n(.*?)^```", (root / "CONTRIBUTING.md").read_text(), re.M | re.S))
    code = re.sub(r'^ *""".*?"""\n+', "", (root / "fedgraph_flwr/strategies/fedavgm.py").read_text(), flags=re.M | re.S)
    assert blocks["python"] in code
    assert blocks["yaml"] in (root / "conf/strategy/fedavgm.yaml").read_text()


def blocks(text: str) -> list[str]:
    """The Python of a page, with fewer rounds."""
    return [re.sub(r"rounds=20\b", "rounds=11", block) for block in re.findall(r"```python\n(.*?)```", text, re.S)]


def test_the_pages_of_python_run_as_they_stand(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks((Path(__file__).parents[1] / "docs" / "python.md").read_text()):
        exec(block, names)
    assert names["longer"].summary["rounds"] == 11
    assert list(names["table"].seeds) == [3, 3]
    assert Path("local-and-fedavg.png").is_file()
    assert "p_keeps" in capsys.readouterr().out
    assert (Path("network") / "MODEL_CARD.md").is_file()


def test_the_readmes_python_runs_on_a_graph_that_is_at_hand(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(TEXT)
    assert block.count('dataset="cora", num_clients=10') == 2
    exec(
        block.replace(
            'dataset="cora", num_clients=10', 'dataset={"name": "csbm", "nodes": 90}, num_clients=3, rounds=2'
        ),
        {},
    )

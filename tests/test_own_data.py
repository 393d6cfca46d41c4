"""The commands of `docs/own-data.md` run as they stand, and say what the text says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedgraph_flwr import cli
from tests.data import banks

DOCS = Path(__file__).parents[1] / "docs" / "own-data.md"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_run_in_their_order(place, capsys):
    text = DOCS.read_text()
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    assert "python examples/banks/make_tables.py banks" in blocks
    (place / "banks").mkdir()
    banks.write(place / "banks")
    for name, content in re.findall(r"cat > (\S+) <<END\n(.*?)\nEND", blocks, re.DOTALL):
        (place / name).write_text(content)
    commands = [shlex.split(line)[1:] for line in blocks.splitlines() if line.startswith("fedgraph-flwr ")]
    assert len(commands) == 20
    for words in commands:
        if words[0] == "run":  # shorter
            words = [*words, "rounds=2", "--quiet", "--no-report"]
        assert cli.main(words) == 0, (words, capsys.readouterr().err)
    told = capsys.readouterr().out
    assert "fedprox on parts, seed 1" in told
    assert "test_average_precision at best_val" in told


def test_the_three_banks_go_all_the_way(tmp_path):
    """The script of `examples/banks`, shortened, in a process of its own."""
    script = DOCS.parents[1] / "examples" / "banks" / "banks.py"
    words = [sys.executable, str(script), str(tmp_path / "work"), "--customers", "120", "--rounds", "2"]
    environment = {**os.environ, "FEDGRAPH_DATA": str(tmp_path / "root"), "PYTHONPATH": str(DOCS.parents[1])}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"60 new customers: \d+ called fraud", done.stdout)
    difference = float(re.search(r"the exported network differs by at most (\S+)", done.stdout).group(1))
    assert difference < 1e-6

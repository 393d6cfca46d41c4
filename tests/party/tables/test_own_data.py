"""The script of the three banks (`docs/predict.md`, whose commands `tests/test_docs.py` runs)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs" / "predict.md"


@pytest.mark.slow
def test_the_three_banks_go_all_the_way(tmp_path):
    """The script of `examples/banks`, shortened, in a process of its own."""
    script = DOCS.parents[1] / "examples" / "banks" / "banks.py"
    args = [sys.executable, str(script), str(tmp_path / "work"), "--customers", "120", "--rounds", "2"]
    environment = {**os.environ, "FEDGRAPH_DATA": str(tmp_path / "root"), "PYTHONPATH": str(DOCS.parents[1])}
    done = subprocess.run(args, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"60 new customers: \d+ predicted as fraud", done.stdout)
    difference = float(re.search(r"the exported network differs by at most (\S+)", done.stdout).group(1))
    assert difference < 1e-6

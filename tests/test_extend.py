"""The commands of `docs/extend.md` run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_commands_run_in_their_order(tmp_path):
    text = (ROOT / "docs" / "extend.md").read_text()
    script = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL))
    assert script.count("fedgraph-flwr run") == 3
    tool = tmp_path / "bin" / "fedgraph-flwr"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{ROOT}" exec {sys.executable} -m fedgraph_flwr "$@"\n')
    tool.chmod(0o755)
    environment = os.environ | {"PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": ""}
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env=environment | {"FEDGRAPH_DATA": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for said in (
        "near_mean on csbm",
        "Damped on csbm",
        "test worst class",
        "damped on csbm",
        "train.lr = 0.01",
        "complete -o",
    ):
        assert said in done.stdout, said

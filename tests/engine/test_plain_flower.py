"""Flower's own programs, as docs/flower.md starts them: they run the app, with the bits of a run in this process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fedgraph_flwr.engine.flower import end_group
from fedgraph_flwr.fleet.processes import free_port
from tests.engine.fleet import ROOT, listens
from tests.support import PATIENCE, wait_for

pytestmark = [pytest.mark.fleet, pytest.mark.faults]

BLOCK = re.search(
    r"tests/engine/test_plain_flower.py runs these lines -->\n```bash\n(.*?)```",
    (ROOT / "docs" / "flower.md").read_text(),
    re.S,
)[1]


def test_flowers_programs_run_the_app_and_give_the_bits_of_an_inline_run(tmp_path):
    lines, ports = BLOCK, {old: str(free_port()) for old in ("9090", "9100", "9101")}
    lines = lines.replace("910$i", "${PORTS[$i]}").replace("9090", ports["9090"])
    lines = lines.replace("flwr run .", f"flwr run {ROOT}")
    lines = re.sub(r"(?m)^fedgraph-flwr", f"{sys.executable} -m fedgraph_flwr", lines)
    *start, run = lines.rstrip().splitlines()
    places = {"FLWR_HOME": str(tmp_path / "flwr"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    places |= {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    script = "\n".join([f"PORTS=({ports['9100']} {ports['9101']})", *start, "wait"])
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=os.environ | places,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for(lambda: listens(int(ports["9090"])), "the SuperLink")
        wait_for(lambda: (tmp_path / "log").read_text().count("SuperNode ID") == 2, "both SuperNodes")
        environment = os.environ | places | {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
        done = subprocess.run(
            ["bash", "-c", run],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (tmp_path / "runs" / "plain" / "summary.json").is_file(), done.stdout + done.stderr
    finally:
        end_group(process)
    inline = [
        sys.executable,
        "-m",
        "fedgraph_flwr",
        "run",
        "graph=parts",
        "num_clients=2",
        "rounds=3",
        "out=inline",
        "--quiet",
    ]
    subprocess.run([*inline, "--no-report"], cwd=tmp_path, env=os.environ | places, check=True, capture_output=True)
    here, there = (load_file(tmp_path / place / "model_final.safetensors") for place in ("inline", "runs/plain"))
    assert here.keys() == there.keys()
    assert all(here[name].tobytes() == there[name].tobytes() for name in here)

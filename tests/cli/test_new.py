"""The package that ``new method`` writes: it runs, its test passes, and its name is checked."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedgraph_flwr.cli import main
from fedgraph_flwr.data.plugins import ENTRY_POINT

ROOT = Path(__file__).parents[2]


def ran(folder, *args, path=()):
    environment = {"PYTHONPATH": os.pathsep.join([*map(str, path), str(ROOT)]), "FEDGRAPH_DATA": str(folder / "data")}
    command = [sys.executable, "-m", *args]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_new_method_runs_and_its_test_passes(tmp_path, capsys):
    assert main(["new", "method", "near_mean", "--dir", str(tmp_path)]) == 0
    folder = tmp_path / "near_mean"
    assert f"cd {folder} && pip install -e ." in capsys.readouterr().out
    assert "{{" not in "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points == {ENTRY_POINT: {"near_mean": "near_mean"}}
    args = ["fedgraph_flwr", "run", "--conf", "near_mean/conf", "strategy=near_mean", "rounds=1", "num_clients=2"]
    done = ran(folder, *args, "--quiet", path=["."])
    assert done.returncode == 0, done.stderr
    assert "near_mean on demo" in done.stdout
    tested = ran(folder, "pytest", "-q", "-p", "no:cacheprovider")
    assert tested.returncode == 0, tested.stdout
    assert "13 passed" in tested.stdout
    yaml = folder / "near_mean" / "conf" / "strategy" / "near_mean.yaml"
    yaml.write_text(yaml.read_text().replace("strategy.eta=1, ", ""))  # it is FedAvg no more
    tested = ran(folder, "pytest", "-q", "-p", "no:cacheprovider", "-k", "limits or nobody_fails")
    assert "1 failed, 1 passed" in tested.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedprox", "strategy=fedprox already exists"),
        ("json", "a Python module 'json' already exists"),
        ("class", "is not a lower-case Python identifier"),
        ("My-Method", "is not a lower-case Python identifier"),
        ("../x", "is not a lower-case Python identifier"),
        ("taken", "already exists"),
    ],
)
def test_a_name_that_will_not_do_is_refused(tmp_path, capsys, name, message):
    (tmp_path / "taken").mkdir()
    assert main(["new", "method", name, "--dir", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["taken"]

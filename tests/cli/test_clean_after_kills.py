"""What killed commands leave behind, and what `clean` and the next command make of it."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedgraph_flwr.cli import clean
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.party.use.predict import BLEND

FILES = Path(__file__).parents[1] / "fixtures" / "before_0_3"

DAY = 86400


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of runs, all files 40 days old."""
    shutil.copytree(FILES / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return age(tmp_path)


def age(folder: Path) -> Path:
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 40 * DAY,) * 2)
    return folder


class Killed(BaseException):
    """No handler sees it, as no handler sees SIGKILL."""


@pytest.mark.parametrize("after", range(0, 14, 2))
def test_a_killed_clean_is_finished_by_the_next(old, monkeypatch, after):
    """It deletes config.yaml last, by which the next one knows the run."""
    unlink, left = Path.unlink, [after]

    def killed(path: Path, missing_ok: bool = False) -> None:
        if "personal" in path.parts:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(Killed):
            main(["clean", "--older-than", "30d", "--yes"])
    age(old)
    assert main(["clean", "--older-than", "30d", "--yes"]) == 0
    assert not (old / "runs/personal").exists()


def test_a_blend_goes_whole(old):
    (old / "runs/nodes" / BLEND).write_text("{}")
    age(old)
    assert main(["clean", "--older-than", "30d", "--yes"]) == 0
    assert not (old / "runs/nodes").exists()


def test_a_checkpoint_that_rotates_away_meanwhile_is_no_error(old, monkeypatch):
    """A live run replaces its files while `clean` lists them."""
    items = clean._items

    def rotated(folder: Path, keep_best: bool) -> list[clean._Item]:
        entries = list(items(folder, keep_best))
        for path in (old / "runs").rglob("round_*"):
            path.unlink()
        return entries

    monkeypatch.setattr(clean, "_items", rotated)
    assert main(["clean", "--older-than", "30d", "--unfinished"]) == 0


def test_a_run_that_changed_a_moment_ago_stays(old, capsys):
    """Its command may still write the report."""
    os.utime(old / "runs/nodes/summary.json")
    assert main(["clean", "--older-than", "0h", "--yes"]) == 0
    assert "kept     runs/nodes (0 days): newer" in capsys.readouterr().out
    assert (old / "runs/nodes/config.yaml").is_file()


def test_half_files_of_killed_writers_go(old):
    (half := old / "runs/nodes/.model_best.safetensors.ab12cd34").write_text("half a file")
    age(old)
    assert main(["clean", "--older-than", "30d", "--yes"]) == 0
    assert not half.exists()


def test_folders_of_killed_ray_sessions_go(tmp_path, monkeypatch):
    """By the next session; those of processes that run stay."""
    from fedgraph_flwr.engine.ray import scratch_folder

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    script = (
        "from fedgraph_flwr.engine.ray import scratch_folder as f; d = f('ray'); print(d.name, flush=True); input()"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout
    theirs = Path(process.stdout.readline().strip())
    assert theirs.parent == tmp_path
    first = scratch_folder("ray")
    assert theirs.is_dir()
    process.kill()
    process.communicate()
    second = scratch_folder("clients")
    assert not theirs.exists()
    assert Path(first.name).is_dir()
    assert Path(second.name).is_dir()


def test_an_unknown_state_of_runs_is_refused(old, capsys):
    assert main(["runs", "state=finish"]) == 2
    assert "state 'finish' is unknown" in capsys.readouterr().err
    assert main(["runs", "state=finished"]) == 0

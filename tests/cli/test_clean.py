"""Command `clean` on files of earlier runs: what it lists, deletes and never touches."""

import os
import re
import shutil
import time
from pathlib import Path

import pytest

from fedgraph_flwr.cli.app import main
from fedgraph_flwr.store.folder import LAUNCHER, SERVER, owned

FILES = Path(__file__).parents[1] / "fixtures" / "before_0_3"
DAY = 86400


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of runs and of a node's state, all files 40 days old."""
    for name in ("runs", "state_0"):
        shutil.copytree(FILES / name, tmp_path / name)
    for path in tmp_path.rglob("*"):
        os.utime(path, (time.time() - 40 * DAY,) * 2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_deleted_without_yes(old, capsys):
    before = files(old)
    assert main(["clean", "runs", "state_0", "--older-than", "30d"]) == 0
    assert files(old) == before
    out = capsys.readouterr().out
    assert "old      runs/nodes (40 days): 6 files" in out
    assert "kept     runs/killed (40 days): it can be resumed; --unfinished deletes it, too" in out
    assert out.endswith("can be freed; to delete, add --yes\n")


def test_runs_go_and_those_that_can_be_resumed_stay(old):
    (old / "runs/nodes/notes.txt").write_text("of a user")
    os.utime(old / "runs/nodes/notes.txt", (time.time() - 40 * DAY,) * 2)
    killed = files(old / "runs/killed")
    assert main(["clean", "--older-than", "30d", "--yes"]) == 0
    assert {path.name for path in (old / "runs").iterdir()} == {"killed", "nodes"}
    assert files(old / "runs/killed") == killed
    assert files(old / "runs/nodes") == {"notes.txt"}
    assert main(["clean", "--older-than", "4w", "--unfinished", "--yes"]) == 0
    assert not (old / "runs/killed").exists()


def test_the_best_models_and_records_of_a_run_stay(old):
    """What the headline needs: the best models, also those of clients, and of `forest` the last one."""
    (summary,) = old.glob("runs/forest/summary.json")
    summary.write_text(summary.read_text().replace(" at best_val", " at last"))
    os.utime(summary, (time.time() - 40 * DAY,) * 2)
    assert main(["clean", "runs", "--older-than", "30d", "--keep-best", "--yes"]) == 0
    for name, model in {"nodes": "model_best", "personal": "model_best", "forest": "model_final"}.items():
        left = {path for path in files(old / "runs" / name) if "/" not in path and not path.startswith(".")}
        assert left == {f"{model}.safetensors", "config.yaml", "input_spec.json", "rounds.jsonl", "summary.json"}
    states = {path.partition("client_")[2] for path in files(old / "runs/personal") if "client_" in path}
    assert states == {f"000{client}/model_best.safetensors" for client in range(3)}


def test_a_nodes_ledgers_and_records_of_requests_stay(old):
    before = files(old / "state_0")
    records = {path for path in before if not path.endswith(".safetensors")}
    assert main(["clean", "state_0", "--older-than", "30d", "--keep-best", "--yes"]) == 0
    models = {"fedavg-8cb798412829fae6/client_0000/model_last.safetensors"}  # it has no other
    models.add("fedavg-374ecdf624965355/client_0000/model_best.safetensors")
    assert files(old / "state_0") == records | models
    assert main(["clean", "state_0", "--older-than", "30d", "--yes"]) == 0
    assert files(old / "state_0") == records
    assert main(["audit", "state_0"]) == 0


def test_a_node_keeps_the_checkpoints_of_an_unfinished_run(old):
    folder = old / "state_0/fedavg-8cb798412829fae6/client_0000"
    (folder / "model_last.safetensors").unlink()
    os.utime(folder, (time.time() - 40 * DAY,) * 2)
    assert main(["clean", "state_0", "--older-than", "30d", "--yes"]) == 0
    assert (folder / "round_000002.safetensors").is_file()
    assert main(["clean", "state_0", "--older-than", "30d", "--unfinished", "--yes"]) == 0
    assert not folder.exists()


def test_new_runs_and_runs_in_use_stay(old, capsys):
    os.utime(old / "runs/nodes/rounds.jsonl")
    before = files(old / "runs/nodes") | files(old / "runs/secure")
    with owned(old / "runs/secure", SERVER):
        assert main(["clean", "runs", "--older-than", "1d", "--yes"]) == 0
    assert before <= files(old / "runs/nodes") | files(old / "runs/secure")
    out = capsys.readouterr().out
    assert "kept     runs/nodes (0 days): newer" in out
    assert "kept     runs/secure: in use" in out


def test_a_run_that_an_unfinished_one_starts_from_stays(old, capsys):
    """A resumed run reads the model of its start again."""
    path, nodes = old / "runs/killed/config.yaml", old / "runs/nodes"
    path.write_text(re.sub(r"(?m)^init:.*$", "init: /srv/runs/nodes", path.read_text()))
    os.utime(path, (time.time() - 40 * DAY,) * 2)
    before = files(nodes)
    assert main(["clean", "--older-than", "30d", "--yes"]) == 0
    assert files(nodes) == before
    expected = "kept     runs/nodes (40 days): runs/killed, which is unfinished, starts from it (init)"
    assert expected in capsys.readouterr().out
    assert main(["clean", "--older-than", "30d", "--unfinished", "--yes"]) == 0
    assert not nodes.exists()


def test_a_folder_of_another_user_stays_and_the_others_go(old, monkeypatch, capsys):
    owned = old / "runs/nodes"
    unlink = Path.unlink

    def refuse(path, missing_ok=False):
        if path.is_relative_to("runs/nodes"):
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)  # a test may run as root, whom no permission stops
    before = files(owned)
    assert main(["clean", "--older-than", "30d", "--yes"]) == 1
    assert files(owned) - {SERVER, LAUNCHER} == before - {SERVER, LAUNCHER}
    assert "kept     runs/nodes: no permission for runs/nodes/" in capsys.readouterr().out
    assert not (old / "runs/personal").exists()


def test_the_app_of_an_installed_package_goes_with_its_run(old):
    (old / "runs/nodes/app").mkdir()
    (old / "runs/nodes/app/pyproject.toml").write_text("[project]\n")
    for path in (old / "runs/nodes/app", old / "runs/nodes/app/pyproject.toml"):
        os.utime(path, (time.time() - 40 * DAY,) * 2)
    assert main(["clean", "--older-than", "30d", "--yes"]) == 0
    assert not (old / "runs/nodes").exists()


def test_a_link_to_another_folder_is_not_followed(old, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "fedavg-1"
    shutil.move(old / "state_0/fedavg-10", outside)
    (old / "state_0/fedavg-10").symlink_to(outside)
    shutil.move(old / "runs/nodes", outside.parent / "nodes")
    (old / "runs/nodes").symlink_to(outside.parent / "nodes")
    (outside.parent / "deep").mkdir()
    shutil.copytree(outside.parent / "nodes", outside.parent / "deep/nodes")
    (old / "runs/archive").symlink_to(outside.parent / "deep")
    shutil.copytree(outside, outside.parent / "kept/fedavg-11")
    if (old / "runs/secure/state").is_dir():
        shutil.rmtree(old / "runs/secure/state")
    (old / "runs/secure/state").symlink_to(outside.parent / "kept")
    for path in (*outside.parent.rglob("*"), *(old / "runs").rglob("*")):
        os.utime(path, (time.time() - 40 * DAY,) * 2)
    before = files(outside.parent)
    assert main(["clean", "runs", "state_0", "--older-than", "30d", "--yes"]) == 0
    assert files(outside.parent) == before


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["runs", "--older-than", "30"], 2, "expected a number with h, d or w, such as 30d, got '30'"),
        (["elsewhere", "--older-than", "30d"], 2, "elsewhere is not a folder"),
        (["state_0/fedavg-10", "--older-than", "30d"], 2, "no runs and no states of runs in state_0/fedavg-10"),
    ],
)
def test_wrong_input_is_one_message(old, capsys, args, code, text):
    assert main(["clean", *args]) == code
    assert text in capsys.readouterr().err

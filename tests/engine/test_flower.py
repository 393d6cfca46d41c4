"""Flower's own simulation: the same parameters as in this process, and errors that come back as sentences."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fedgraph_flwr.config import compose
from fedgraph_flwr.engine.flower import app_folder, run_flower
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.prepare import prepare, with_folder
from fedgraph_flwr.launch.simulations import run_inline
from tests.support import PATIENCE, Finished, assert_same_arrays, wait_for, wait_for_end

pytestmark = pytest.mark.fleet


PAYMENTS = ["dataset=payments", "task=edges", "dataset.accounts=150", "dataset.background=600", "dataset.per_kind=2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        [*PAYMENTS, "train.sampler=neighbors", "train.batch_size=5", "train.fanout=[3,2]"],
        ["strategy=local", "evaluation.trained=true"],
    ],
)
def test_the_simulation_gives_the_parameters_of_the_inline_engine(run, tmp_path, overrides, monkeypatch):
    """A method that shares its model on another task and with a sampler, and one whose clients keep theirs."""
    monkeypatch.setenv("PATH", os.defpath)  # no environment is active
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # where nobody is: a simulation joins no cluster of others
    inline = run(*overrides, "rounds=3", "checkpoint_every=2")
    assert inline.arrays or inline.cfg.strategy.name == "local"
    cfg = replace(inline.cfg, engine="flower-simulation", out=str(tmp_path / "flower"))
    flower = Finished(cfg, run_flower(prepare(cfg).cfg))
    assert_same_arrays(flower.arrays, inline.arrays)
    assert [r["clients"] for r in flower.rounds] == [r["clients"] for r in inline.rounds]
    assert flower.summary["exchanges_per_round"] == 1
    assert (tmp_path / "flower" / "checkpoint.safetensors").is_file()


@pytest.mark.slow
def test_wrong_input_on_the_server_comes_back_as_its_sentence(run, tmp_path):
    inline = run("rounds=1")
    cfg = with_folder(
        compose([f"graph={inline.cfg.graph}", "num_clients=3", "engine=flower-simulation", f"resume={tmp_path}"])
    )
    cfg.out = str(tmp_path / "flower")
    with pytest.raises(FedGraphError, match="has no checkpoint"):
        run_flower(prepare(cfg).cfg)


@pytest.mark.faults
def test_an_interrupted_simulation_ends_with_all_its_processes_and_goes_on(run, tmp_path):
    overrides = ["rounds=400", "checkpoint_every=5", "strategy=local", "num_clients=3", "model.hidden=8"]
    overrides += [f"graph={run('rounds=1').cfg.graph}", f"out={tmp_path / 'flower'}"]
    command = [
        sys.executable,
        "-m",
        "fedgraph_flwr",
        "run",
        *overrides,
        "engine=flower-simulation",
        "--quiet",
        "--no-report",
    ]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE, text=True)
    everyone = psutil.Process(process.pid)
    checkpoint = tmp_path / "flower" / "checkpoint.safetensors"
    wait_for(lambda: checkpoint.is_file() or process.poll() is not None, "a checkpoint")
    started = everyone.children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert f"resume={tmp_path / 'flower'}" in err
    wait_for_end(started)
    whole = run(*overrides[:-1])
    resumed = compose([f"resume={tmp_path / 'flower'}", "engine=inline"], tmp_path / "flower" / "config.yaml")
    resumed.out = resumed.resume
    again = Finished(resumed, run_inline(resumed))
    assert [r["metrics"] for r in again.rounds] == [r["metrics"] for r in whole.rounds]


@pytest.mark.parametrize("engine", ["fleet", "flower-simulation"])
def test_warnings_of_a_fleet_reach_whoever_waits(tmp_path, monkeypatch, capsys, engine):
    """A run that waits for nodes would else be silent for an hour; virtual nodes are nobody's to look after."""
    import fedgraph_flwr.engine.flower as flower

    cfg = compose([f"engine={engine}", f"out={tmp_path}"])
    fake = tmp_path / "flwr"
    fake.write_text(
        "#!/bin/sh\nprintf '\\033[92mINFO \\033[0m: hello: you\\n\\033[93mWARNING \\033[0m:   2 of 3 nodes: start\\n'\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(flower, "tool", lambda name: str(fake))
    flower._flwr_run(cfg, "somewhere", dict(os.environ), None, lambda what: None)
    assert capsys.readouterr().err == ("warning: 2 of 3 nodes: start\n" if engine == "fleet" else "")
    assert "hello: you" in (tmp_path / "flower.log").read_text()


def test_flowers_own_command_says_where_results_are(tmp_path, monkeypatch, caplog):
    from flwr.app import Context, RecordDict

    from fedgraph_flwr import server_app
    from fedgraph_flwr.launch import serving

    seen = []
    summary = {"metrics": {}, "bytes_up": 1, "bytes_down": 2, "rounds": 1, "total_seconds": 3.0, "failures": {}}
    monkeypatch.setattr(serving, "serve", lambda grid, cfg, on_round: seen.append(cfg.out) or summary)
    monkeypatch.chdir(tmp_path)
    server_app.main(
        None, Context(1, 0, {}, RecordDict(), {"overrides": "strategy=fedprox", "config": "", "num-clients": 2})
    )
    assert seen[0].startswith(str(tmp_path / "runs"))
    assert f"results: {seen[0]};" in caplog.text


def test_whoever_waits_is_told_for_what(tmp_path, monkeypatch):
    import fedgraph_flwr.engine.flower as flower

    fake, lines = tmp_path / "flwr", []
    step = r"\033[92mINFO \033[0m:      setup: link mask (4 of 11): clients 0, 1 replied"
    fake.write_text(f"#!/bin/sh\nprintf 'Successfully started run 42\\n{step}\\n'\n")
    fake.chmod(0o755)
    monkeypatch.setattr(flower, "tool", lambda name: str(fake))
    cfg = compose(["engine=fleet", "num_clients=3", f"out={tmp_path}"])
    flower._flwr_run(cfg, "fleet", dict(os.environ), None, lines.append)
    assert lines == [
        "submitting the app to 'fleet'",
        "run 42 is waiting for 3 SuperNodes, then for round 1",
        "link mask (4 of 11): clients 0, 1 replied",
    ]


class _Copied:
    """The files of a run on a server, which has a summary when the run has ended."""

    shared = False

    def __init__(self, out):
        self.out, self.done = out, False

    def ended(self, run_id):
        return False

    def take(self, run_id, names=()):
        if not names:
            (self.out / "summary.json").write_text("{}")
        return ""


@pytest.mark.parametrize("code", [1, 0])
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_run_whose_log_breaks_off_is_waited_for(tmp_path, monkeypatch, capsys, comes_back, code):
    """By a lost connection: the run continues on the server, and this command must neither stop nor fail it."""
    import fedgraph_flwr.engine.flower as flower

    fake, calls = tmp_path / "flwr", tmp_path / "calls"
    fake.write_text(f"#!/bin/sh\necho $1 >> {calls}\necho Successfully started run 42\nexit {code}\n")
    fake.chmod(0o755)
    states = iter(["running", "", "", "finished:completed"] if comes_back else ["running"])
    clock = iter(range(0, 10**6, 250))
    monkeypatch.setattr(flower, "tool", lambda name: str(fake))
    monkeypatch.setattr(flower, "run_state", lambda *args: (next(states, ""), ""))
    monkeypatch.setattr(flower, "time", SimpleNamespace(sleep=lambda seconds: None, monotonic=lambda: next(clock)))
    cfg = compose(["engine=far", f"out={tmp_path}"])
    run = partial(flower._flwr_run, cfg, "far", dict(os.environ), None, lambda what: None, copies=_Copied(tmp_path))
    if comes_back:
        run()
        assert (tmp_path / "summary.json").is_file()
    else:
        copy = f"--name far --copy {tmp_path.name}"
        with pytest.raises(RunFailed, match=f"did not respond for 10 min. Run 42 may continue there; later.* {copy}$"):
            run()
    assert capsys.readouterr().err.count("the log of run 42 broke off: the run continues on the server") == 1
    assert not (tmp_path / "failure.json").exists()
    assert calls.read_text() == "run\n"


@pytest.mark.parametrize(("late", "starts"), [(1, 2), (9, 3)])
def test_a_simulation_whose_ray_starts_late_is_started_again(tmp_path, monkeypatch, late, starts):
    """Flower ends its command with 0, and Ray waits 30 s whatever the machine has to do."""
    import contextlib

    import fedgraph_flwr.engine.flower as flower

    lines, seen = [], []

    def flwr_run(cfg, *others):
        seen.append(cfg.out)
        failed = len(seen) <= late
        text = "Exception: The current node timed out during startup.\nRuntimeError: later\n" if failed else "good\n"
        (tmp_path / "flower.log").write_text(text)
        if not failed:
            (tmp_path / "summary.json").write_text('{"rounds": 1}')

    monkeypatch.setattr(flower, "local_superlink", lambda log: contextlib.nullcontext({}))
    monkeypatch.setattr(flower, "_flwr_run", flwr_run)
    cfg = compose(["engine=flower-simulation", "num_clients=2", f"out={tmp_path}"])
    if late < starts:
        assert run_flower(cfg, on_wait=lines.append) == {"rounds": 1}
    else:
        with pytest.raises(RunFailed, match=r"no summary.json to .* \(Exception: The current node timed out"):
            run_flower(cfg, on_wait=lines.append)
    assert len(seen) == starts
    assert sum("starting it again" in line for line in lines) == starts - 1


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("one\\ntwo\\nthree\\nfour", "fleet' ended with code 3: two three four$"),
        (
            "one\\n╭─ Error ────╮\\n│ [code: 1] No │\\n│ such run.    │\\n╰──────────────╯",
            "code 3: Error \\[code: 1\\] No such run.$",
        ),
    ],
)
def test_what_flower_says_at_its_end_is_one_line(tmp_path, monkeypatch, printed, message):
    import fedgraph_flwr.engine.flower as flower

    fake = tmp_path / "flwr"
    fake.write_text(f"#!/bin/sh\nprintf '{printed}\\n'\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(flower, "tool", lambda name: str(fake))
    with pytest.raises(RunFailed, match=message):
        flower._flwr_run(compose([f"out={tmp_path}"]), "fleet", dict(os.environ), None, lambda what: None)
    assert json.loads((tmp_path / "failure.json").read_text())["exit_code"] == 1
    (tmp_path / "failure.json").unlink()
    (tmp_path / "checkpoint.safetensors").touch()
    with pytest.raises(RunFailed, match=f"; to continue, run: fedgraph-flwr run resume={tmp_path}$"):
        flower._flwr_run(compose([f"out={tmp_path}"]), "fleet", dict(os.environ), None, lambda what: None)


@pytest.mark.parametrize(("written", "code"), [(1, 1), (2, 2), (3, 3), (0, 1)])
def test_the_error_of_a_server_keeps_its_exit_code(tmp_path, written, code):
    from fedgraph_flwr.engine.flower import _result

    (tmp_path / "failure.json").write_text(json.dumps({"error": "client 1 shares nothing", "exit_code": written}))
    with pytest.raises(FedGraphError, match="client 1 shares nothing") as caught:
        _result(tmp_path)
    assert caught.value.exit_code == code
    (tmp_path / "checkpoint.safetensors").touch()
    with pytest.raises(FedGraphError) as caught:
        _result(tmp_path)
    assert ("; to continue, run: fedgraph-flwr run resume=" in str(caught.value)) == (written == 1)


def test_what_the_how_to_leaves_in_the_checkout_is_not_packed_into_the_app(tmp_path):
    """Among it the apps of former runs, which would be packed again and again until Flower refuses."""
    from flwr.cli.build import build_fab_from_disk

    root = Path(__file__).parents[2]
    for name in (".gitignore", "pyproject.toml", "README.md", "LICENSE", "fedgraph_flwr/server_app.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((root / name).read_bytes())
    (tmp_path / "fedgraph_flwr" / "client_app.py").write_bytes((root / "fedgraph_flwr" / "client_app.py").read_bytes())
    text = (root / "docs" / "fleet.md").read_text()
    written = re.findall(r"(?:--out |out=|--state )([a-z][\w/]*)", text.replace("$i", "0"))
    made = {"flwr-home/apps", "keys", "signed", *written}
    assert {"parts", "parts_4", "state_0", "party/state", "runs/first"} <= made
    for folder in made:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "some.json").write_text("{}")
    names = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(tmp_path))).namelist()
    assert "fedgraph_flwr/server_app.py" in names
    assert not [name for name in names if name.endswith("some.json")]


def test_an_installed_package_runs_from_a_stub(tmp_path, monkeypatch):
    import fedgraph_flwr.engine.flower as flower

    monkeypatch.setattr(flower, "__file__", str(tmp_path / "site-packages" / "fedgraph_flwr" / "engine" / "flower.py"))
    stub = app_folder(tmp_path)
    from flwr.cli.config_utils import load_and_validate

    config, warnings = load_and_validate(stub / "pyproject.toml", check_module=False)
    assert config["tool"]["flwr"]["app"]["components"]["serverapp"] == "fedgraph_flwr.server_app:app"
    assert not [w for w in warnings if "license" not in w.lower()]

"""The folder of a run: one owner, nothing lost when a process dies at any moment, and nothing mixed when a run is resumed."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr.cli import main
from fedgraph_flwr.config import compose, from_run_config
from fedgraph_flwr.data.graph import ClientGraph, read_tensors, write_tensors
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch import prepare as prepare_module
from fedgraph_flwr.launch.runner import run as run_anywhere
from fedgraph_flwr.launch.serving import serve
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.store.folder import CHECKPOINT, LAUNCHER, SERVER, owned
from fedgraph_flwr.store.results import read_rounds, read_summary
from tests.conftest import client_graph

ROOT = Path(__file__).parents[2]


# All state is private, so that a resumption needs the clients' files too.
PRIVATE = ["strategy=local", "model.hidden=8", "rounds=3", "checkpoint_every=1"]


def graphs_in(folder):
    for client, size in enumerate((12, 16, 20)):
        client_graph(client, size).save(folder / f"client_{client:04d}.safetensors")
    return folder


@pytest.fixture
def graphs(tmp_path):
    return graphs_in(tmp_path / "graphs")


@pytest.fixture
def overrides(graphs):
    return [f"graph={graphs}", *PRIVATE]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """``stored(out, "key=value", ...)``: a copy of the folder of a run, which is trained once."""
    folder, made = tmp_path_factory.mktemp("stored"), {}
    graphs_in(folder / "graphs")

    def copy(out, *overrides):
        if overrides not in made:
            made[overrides] = folder / f"run{len(made)}"
            go(f"graph={folder / 'graphs'}", *overrides, f"out={made[overrides]}")
        shutil.copytree(made[overrides], out)

    return copy


def go(*overrides):
    return run_anywhere(compose(overrides))


def resume(folder, *overrides):
    cfg = compose(overrides, folder / "config.yaml")
    return run_anywhere(replace(cfg, resume=str(folder), out=str(folder)))


def content(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def scores(folder):
    return [record["clients"] for record in read_rounds(folder / "rounds.jsonl")]


# --- a process dies, a disk is full ------------------------------------------------------------------------------------


class Killed(BaseException):
    """The end of a process: nothing of ours runs after it."""


def _until(monkeypatch, number, error):
    """Let file operations succeed until the number-th, and fail from then on."""
    seen = []

    def counted(call):
        def wrapper(*args, **kwargs):
            seen.append(call)
            if len(seen) >= number:
                raise error
            return call(*args, **kwargs)

        return wrapper

    monkeypatch.setattr(os, "fsync", counted(lambda fd: None))  # the real one only takes time
    monkeypatch.setattr(os, "replace", counted(os.replace))
    monkeypatch.setattr(Path, "open", counted(Path.open))


@pytest.mark.parametrize(
    ("error", "stride"),
    [
        (Killed(), 5),
        pytest.param(Killed(), 3, marks=pytest.mark.slow),
        pytest.param(OSError(28, "No space left on device"), 3, marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_from_wherever_it_was_cut(overrides, tmp_path, monkeypatch, error, stride):
    overrides, whole = [*overrides, "rounds=2"], tmp_path / "whole"
    go(*overrides, f"out={whole}")
    for number in range(1, 99, stride):
        out = tmp_path / f"cut{number}"
        with monkeypatch.context() as patch:
            _until(patch, number, error)
            try:
                go(*overrides, f"out={out}")
                break  # there are not so many
            except (Killed, FedGraphError):
                pass
        if (out / CHECKPOINT).is_file():
            resume(out)
        else:
            with pytest.raises(FedGraphError, match=r"has no checkpoint|holds no run|no such config file"):
                resume(out)
            go(*overrides, f"out={out}")
        assert scores(out) == scores(whole), number
        assert not list(out.glob(".*.????????")), "leftovers of the dead process"
    assert number > 20


def test_a_half_written_last_line_is_dropped(overrides, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    go(*overrides, f"out={whole}")
    go(*overrides, "rounds=2", f"out={cut}")
    with (cut / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "coh')
    assert main(["report", str(cut)]) == 0
    resume(cut, "rounds=3")
    assert scores(cut) == scores(whole)


def test_a_line_that_is_no_record_is_named(overrides, tmp_path):
    out = tmp_path / "out"
    go(*overrides, f"out={out}")
    lines = (out / "rounds.jsonl").read_text().splitlines(keepends=True)
    for wrong in ("half\n", "[1]\n", "[" * 100_000 + "\n"):
        (out / "rounds.jsonl").write_text("".join([lines[0], wrong, lines[2]]))
        with pytest.raises(FedGraphError, match=r"rounds\.jsonl, line 2: expected a record of a round, got"):
            resume(out)
    (out / "rounds.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(FedGraphError, match="has no records of some rounds before 3"):
        resume(out)


def test_a_folder_that_cannot_be_written_is_a_sentence(overrides, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    go(*overrides, f"out={out}")

    def refused(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("filelock.FileLock.acquire", refused)
    assert main(["run", f"resume={out}"]) == 2
    assert "Permission denied" in capsys.readouterr().err


# --- resumed is what it was ---------------------------------------------------------------------------------------------

CHANGES = {
    "seed=1": r"seed=1 \(it has 0\)",
    "train.lr=0.5": r"train.lr=0.5 \(it has 0.01\)",
    "train.optimizer=sgd": r"train.optimizer=sgd \(it has adam\)",
    "strategy=fedprox": r"strategy.name=fedprox \(it has local\)",
    "model.hidden=9": r"model.hidden=9 \(it has 8\)",
    "num_clients=2": "",  # the folder decides
    "evaluation.patience=3": r"evaluation.patience=3 \(it has 0\)",
    "dtype=float64": r"dtype=float64 \(it has float32\)",
    "rounds=2": "rounds=2 is less than round 3",
}


@pytest.mark.parametrize("word", [word for word, message in CHANGES.items() if message])
def test_what_changes_the_result_is_refused_before_anything_is_written(stored, tmp_path, word):
    out = tmp_path / "out"
    stored(out, *PRIVATE)
    before = content(out)
    with pytest.raises(FedGraphError, match=CHANGES[word]):
        resume(out, word)
    assert content(out) == before
    resume(out)


def test_what_does_not_change_the_result_is_allowed(overrides, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    go(*overrides, "rounds=5", f"out={whole}")
    go(*overrides, f"out={out}")
    resume(out, "rounds=5", "checkpoint_every=2", "threads=1", "device=cpu", "strategy.timeout=9", "client_gpus=0.5")
    assert scores(out) == scores(whole)


def test_other_data_is_refused(overrides, graphs, tmp_path):
    out = tmp_path / "out"
    go(*overrides, f"out={out}")
    path = graphs / "client_0001.safetensors"
    graph = ClientGraph.load(path)
    replace(graph, x=graph.x + 1).save(path)
    before = content(out)
    with pytest.raises(FedGraphError, match="the data has changed since that run"):
        resume(out)
    assert content(out) == before


def test_a_moved_folder_of_the_same_data_is_the_same(overrides, graphs, tmp_path):
    out = tmp_path / "out"
    go(*overrides, f"out={out}")
    graphs.rename(tmp_path / "moved")
    resume(out, f"graph={tmp_path / 'moved'}", "rounds=4")


def test_clients_that_tell_of_another_graph_are_refused(overrides, graphs, tmp_path, monkeypatch):
    """As on a fleet, where the server does not see the files."""
    out = tmp_path / "out"
    go(*overrides, f"out={out}")
    monkeypatch.setattr("fedgraph_flwr.launch.prepare.content", lambda cfg: None)
    path = graphs / "client_0001.safetensors"
    graph = ClientGraph.load(path)
    graph.train_mask[int(graph.train_mask.nonzero()[0])] = False
    graph.save(path)
    with pytest.raises(
        FedGraphError, match=r"client 1 has num_train 7, in that run it had 8: check that it has the same graph"
    ):
        resume(out)


def test_out_beside_resume_is_refused(overrides, tmp_path, capsys):
    go(*overrides, f"out={tmp_path / 'out'}")
    assert main(["run", f"resume={tmp_path / 'out'}", f"out={tmp_path / 'other'}"]) == 2
    assert "writes to its own folder" in capsys.readouterr().err


# --- a folder has one run ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stored_configuration_makes_a_folder_of_its_own(overrides, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    go(*overrides, f"out={out}")
    resume(out, "rounds=4")  # its configuration now says `resume`, too
    before = content(out)
    for _ in range(2):  # within one second, with one name
        assert main(["run", f"config={out}/config.yaml", "--quiet", "--no-report"]) == 0
    assert content(out) == before
    made = list((tmp_path / "runs").iterdir())
    assert len(made) == 2
    assert all(scores(folder) == scores(out) for folder in made)


@pytest.mark.parametrize("lock", [SERVER, LAUNCHER])
def test_a_second_run_in_a_folder_is_refused(overrides, tmp_path, lock):
    out = tmp_path / "out"
    go(*overrides, f"out={out}")
    with owned(out, lock):
        before = content(out)
        with pytest.raises(FedGraphError, match=rf"out is in use by process {os.getpid()} on .* since "):
            go(*overrides, "rounds=1", f"out={out}", "overwrite=true")
        after = content(out)
    assert {path: data for path, data in after.items() if path in before} == before
    assert not (out / "failure.json").exists()
    go(*overrides, "rounds=1", f"out={out}", "overwrite=true")


def test_a_finished_run_is_replaced_only_by_overwrite(overrides, tmp_path, capsys):
    """By the command, Python, and Flower's app; resuming it and repeating it need no word."""
    out = tmp_path / "out"
    go(*overrides, f"out={out}")
    before = content(out)
    refusal = "out holds a finished run, whose model and report would be lost: pass another out=, or overwrite=true"
    with pytest.raises(FedGraphError, match=refusal):
        go(*overrides, "rounds=1", f"out={out}")
    assert main(["run", *overrides, "rounds=1", f"out={out}"]) == 2
    assert refusal in capsys.readouterr().err
    with pytest.raises(FedGraphError, match=refusal):
        fg.run(*overrides, rounds=1, out=str(out))
    with pytest.raises(FedGraphError, match=refusal):
        fg.run("rounds=1", graphs=[client_graph(i).to_pyg() for i in range(2)], out=str(out))
    with pytest.raises(FedGraphError, match=refusal):
        serve(None, from_run_config({"overrides": f"{shlex.join(overrides)} out={out}"}))
    assert content(out) == before
    resume(out, "rounds=4")
    assert json.loads((out / "summary.json").read_text())["rounds"] == 4
    go(*overrides, "rounds=1", f"out={out}", "overwrite=true")
    assert json.loads((out / "summary.json").read_text())["rounds"] == 1
    assert compose([], out / "config.yaml").overwrite is False


@pytest.mark.parametrize("start", ["launch.runner", "launch.simulations"])
def test_a_run_that_finished_while_another_prepared_is_not_replaced(overrides, tmp_path, monkeypatch, start):
    """Two runs share out=: the second looked before the first had finished, and removed its model and report."""
    out = tmp_path / "out"
    prepare, place = prepare_module.prepare, f"fedgraph_flwr.{start}.prepare"

    def slowly(cfg):
        preparation = prepare(cfg)
        with monkeypatch.context() as patch:
            patch.setattr(place, prepare)
            go(*overrides, f"out={out}")
        return preparation

    monkeypatch.setattr(place, slowly)
    cfg = compose([*overrides, "rounds=1", f"out={out}"])
    with pytest.raises(FedGraphError, match="out holds a finished run, whose model and report would be lost"):
        run_anywhere(cfg) if start == "launch.runner" else run_inline(cfg)
    assert json.loads((out / "summary.json").read_text())["rounds"] == 3


@pytest.mark.slow
def test_the_lock_of_a_dead_process_is_taken_over(overrides, tmp_path):
    out = tmp_path / "out"
    code = (
        "import sys, time; from pathlib import Path; from fedgraph_flwr.store.folder import owned\n"
        f"with owned(Path({str(out)!r})): print('mine', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"mine\n"
        with pytest.raises(FedGraphError, match=rf"in use by process {process.pid}"):
            go(*overrides, f"out={out}")
        process.send_signal(signal.SIGKILL)
        process.wait()
    finally:
        process.kill()
    go(*overrides, f"out={out}")


def test_a_fresh_run_leaves_nothing_of_an_older_one(overrides, tmp_path):
    out = tmp_path / "out"
    go(*overrides, f"out={out}")
    (out / "report.html").write_text("old")
    (out / "state" / "mine").mkdir()
    (out / "thesis.txt").write_text("dear")
    first = {path.name for path in (out / "state").iterdir()}

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_anywhere(compose([*overrides, "checkpoint_every=0", f"out={out}", "overwrite=true"]), stop)
    left = {path.name for path in out.iterdir()} - {SERVER, LAUNCHER}
    assert left == {"config.yaml", "rounds.jsonl", "state", "thesis.txt"}
    assert {path.name for path in (out / "state").iterdir()} == {"mine"} != first
    with pytest.raises(FedGraphError, match="has no checkpoint"):
        resume(out)


# --- checkpoints of somebody else ----------------------------------------------------------------------------------------


def _values(**changes):
    def forge(path):
        tensors, values = read_tensors(path)
        write_tensors(path, tensors, values | changes)

    return forge


def _tensors(change):
    def forge(path):
        tensors, values = read_tensors(path)
        change(tensors)
        write_tensors(path, tensors, values)

    return forge


def _first(tensors):
    return next(key for key in tensors if key.startswith("arrays/"))


def _flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


FORGED = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "truncated"),
    "a bit flipped": (_flip, "damaged"),
    "text": (lambda path: path.write_text("hello"), "not a safetensors file"),
    "a graph": (lambda path: client_graph(0).save(path), "not a checkpoint of this version"),
    "round": (_values(round="3"), "it has round '3'"),
    "round true": (_values(round=True), "it has round True"),
    "run": (_values(run="../../x"), "do not fit together"),
    "pending": (_values(pending=None), "it has pending None"),
    "pending of another round": (_values(pending={"round": 7}), "do not fit together"),
    "fingerprint": (_values(fingerprint=[]), "it has fingerprint []"),
    "best": (_values(best_round=99), "do not fit together"),
    "a branch that is a leaf": (
        _tensors(lambda t: t.update({"arrays": torch.ones(1)})),
        "'arrays' is a branch|below a tensor",
    ),
    "a parameter less": (_tensors(lambda t: t.pop(_first(t))), "is missing, the model's is float32"),
    "a parameter more": (_tensors(lambda t: t.update({"arrays/x": torch.ones(1)})), "the model's is missing"),
    "another shape": (
        _tensors(lambda t: t.update({_first(t): torch.ones(1)})),
        r"is float32 \[1\], the model's is",
    ),
    "another dtype": (_tensors(lambda t: t.update({_first(t): t[_first(t)].double()})), "is float64"),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_checkpoint_is_a_sentence(stored, tmp_path, how):
    out = tmp_path / "out"
    stored(out, "strategy=fedavgm", "model.hidden=8", "rounds=2", "checkpoint_every=1")
    forge, message = FORGED[how]
    forge(out / CHECKPOINT)
    with pytest.raises(FedGraphError, match=message.replace("[]", r"\[\]")):
        resume(out)


def test_a_checkpoint_of_another_run_is_refused(overrides, tmp_path):
    out, other = tmp_path / "out", tmp_path / "other"
    go(*overrides, f"out={out}")
    go(*overrides, "seed=1", f"out={other}")
    shutil.copy(other / CHECKPOINT, out / CHECKPOINT)
    with pytest.raises(FedGraphError, match=r"seed=0 \(it has 1\)"):
        resume(out)


STATES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "of another client": lambda path: shutil.copy(path.parents[1] / "client_0000" / path.name, path),
    "another shape": _tensors(lambda t: t.update({k: torch.ones(1) for k in t if k.startswith("model/")})),
    "a tensor less": _tensors(lambda t: t.pop(next(k for k in t if k.startswith("model/")))),
    "foreign names": _tensors(lambda t: [t.update({f"model/x{k}": t.pop(k)}) for k in list(t)]),
    "optimiser of another shape": _tensors(lambda t: t.update({k: torch.ones(3, 3) for k in t if "optimizer" in k})),
    "optimiser with less": _tensors(lambda t: t.pop("optimizer/mean/0")),
    "whole numbers": _tensors(lambda t: t.update({k: t[k].to(torch.int8) for k in t if k.startswith("model/")})),
}


@pytest.mark.parametrize("how", STATES)
def test_a_forged_state_of_a_client_is_a_sentence(stored, tmp_path, how):
    out = tmp_path / "out"
    stored(out, *PRIVATE)
    (path,) = (out / "state").glob("*/client_0001/round_000003.safetensors")
    STATES[how](path)
    with pytest.raises(RunFailed) as caught:
        resume(out)
    assert "2 of 3 clients restored their state of round 3: " in str(caught.value)
    assert "client_0001/round_000003.safetensors" in str(caught.value)
    assert not any(name in str(caught.value) for name in ("KeyError", "RuntimeError", "ValueError", "TypeError"))


def test_the_summary_is_written_last(overrides, tmp_path, monkeypatch):
    """So that where it is, the models are whole."""
    out = tmp_path / "out"
    go(*overrides, f"out={out}")
    assert (out / "summary.json").stat().st_mtime_ns >= (out / "model_final.safetensors").stat().st_mtime_ns
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rounds"] == 3


@pytest.mark.parametrize("text", ["[]", "null", "{}", "[" * 5000, "1" * 5000, '{"rounds": 1, "best_round": "x"}'])
def test_a_damaged_summary_or_record_is_one_error(tmp_path, text):
    """Of someone else's run folder, too."""
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(FedGraphError, match=r"summary\.json is not a valid summary of a run \("):
        read_summary(tmp_path, ["rounds", "best_round"])
    for record in ('{"round": 1, "metrics": []}', '{"round": 1, "failed": 3}', "[]", '{"round": true}'):
        (tmp_path / "rounds.jsonl").write_text(f"{record}\n")
        with pytest.raises(FedGraphError, match="line 1: expected a record of a round"):
            read_rounds(tmp_path / "rounds.jsonl")

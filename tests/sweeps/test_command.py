"""The command as processes meet it: side by side, killed, interrupted, two at once."""

import io
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedgraph_flwr import cli
from fedgraph_flwr.sweeps import execution, runs
from fedgraph_flwr.sweeps.results_index import ResultsIndex
from fedgraph_flwr.sweeps.rows import alone
from fedgraph_flwr.sweeps.spec import load
from tests.support import PATIENCE, wait_for, wait_for_end
from tests.sweeps.conftest import SMALL, TOY, one, rows, sweep

ROOT = Path(__file__).parents[2]


def start(place: Path, *args: str) -> subprocess.Popen:
    """The command in a process, and a group, of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedgraph_flwr", "sweep", *args],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_processes_side_by_side_give_the_same_values(toy, capfd):
    """And how long all will take is printed before the first run."""
    sweep(toy, "--only", "few/FedAvg")
    alone_ = {(r["method"], r["seed"]): r["value"] for r in rows(toy.with_suffix(".csv"))}
    capfd.readouterr()
    sweep(toy, "--only", "few/FedAvg", "--jobs", "2", "--out", "other")
    assert "toy: 12 runs, 2 to do, 2 in parallel, about" in capfd.readouterr().out
    assert {(r["method"], r["seed"]): r["value"] for r in rows(toy.parent / "other" / "toy.csv")} == alone_


@pytest.mark.slow
def test_interrupted_it_ends_its_children_keeps_what_there_is_and_goes_on(toy):
    toy.write_text(TOY.replace("many: [train.local_steps=2]", "many: [rounds=100000]"))
    path = toy.with_suffix(".csv")
    process = start(toy.parent, "toy.yaml", "--jobs", "2")
    try:
        wait_for(lambda: path.is_file() and len(rows(path)) >= 3, "three rows")  # then both are at runs without an end
        wait_for(lambda: len(rows(path)) >= 4 or process.poll() is not None, "a fourth row")
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "interrupted; finished runs are in toy.csv; run the same command again to resume" in err
    assert "Traceback" not in err
    wait_for_end(children)
    assert "An empty cell has not been run yet." in toy.with_suffix(".md").read_text()
    left = {cell.label for cell in ResultsIndex(load(toy)).missing()}
    assert left.isdisjoint(f"{row['setting']}/{row['method']}/{row['seed']}" for row in rows(path))
    assert len(left) == 12 - len(rows(path))


@pytest.mark.slow
def test_children_do_not_outlive_a_sweep_that_is_killed(toy):
    toy.write_text(TOY.replace("few: [train.local_steps=1]", "few: [rounds=100000]"))
    process = start(toy.parent, "toy.yaml", "--jobs", "1", "--only", "FedAvg")
    try:
        wait_for(lambda: psutil.Process(process.pid).children(recursive=True), "a child")
        time.sleep(1)
        children = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.communicate()
    wait_for_end(children)


@pytest.mark.slow
def test_a_run_whose_process_dies_is_told_and_the_others_go_on(toy, capsys):
    """A class of one's own, named in the overrides, ends its process without a word."""
    (toy.parent / "deadly.py").write_text(
        "import os, signal\n"
        "from fedgraph_flwr.strategies.fedavg import FedAvg\n"
        "class Server(FedAvg):\n"
        "    def __init__(self, *args):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    overrides = "strategy=fedavg, 'strategy.server=deadly:Server'"
    toy.write_text(TOY.replace("Local: [strategy=local]", f"Odd: [{overrides}]\n  Local: [strategy=local]"))
    process = start(toy.parent, "toy.yaml", "--jobs", "1", "--only", "few", "seed=0")
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, err
    assert "few, Odd, seed 0: died: its process ended by signal SIGKILL" in toy.with_suffix(".md").read_text()
    stored = rows(toy.with_suffix(".csv"))
    assert len(stored) == 4
    assert sum(row["value"] != "nan" for row in stored) == 3
    assert "4/4" in out


def test_a_mistake_in_a_run_is_a_cell_that_died(toy, monkeypatch):
    monkeypatch.setattr(runs, "majority", lambda args: 1 / 0)
    sweep(toy, "--only", "few/Majority/0", code=1)
    assert "few, Majority, seed 0: died: ZeroDivisionError: division by zero" in toy.with_suffix(".md").read_text()


def test_scores_of_regression_have_one_unit_and_zero_is_a_score(place, capsys):
    """The chance level, which no run computes, is no share either."""
    data = [
        "task=nodes-regression",
        "dataset=planted-regression",
        "dataset.nodes=60",
        "num_clients=2",
        "rounds=1",
        "seed=0",
    ]
    sweep(*data, "strategy=fedavg")
    shown = capsys.readouterr().out
    stored = {row["method"]: float(row["value"]) for row in rows(one(place / "sweeps", ".csv"))}
    assert list(stored) == ["Majority", "Local", "fedavg"]
    for method, score in stored.items():
        assert re.search(rf", {method}, seed 0: {score:.4g}(  \(|\n)", shown)
    assert f"| planted-regression | {' | '.join(f'{score:.2f}' for score in stored.values())} |" in shown
    sweep(*data, "strategy=fedavg", "evaluation.metric=r2", "--out", "r2.csv")
    assert re.search(r"\| planted-regression \| 0.00 \|", capsys.readouterr().out)


def test_a_chance_level_without_labels_is_one_error_message(place, capsys):
    sweep("task=edges", "dataset=csbm", "dataset.nodes=60", "num_clients=2", "--only", "Majority", "seed=0", code=1)
    assert "Majority, seed 0: refused: no client has a labelled training item of task=edges" in capsys.readouterr().out


def test_two_sweeps_on_one_file_do_not_interleave(toy, capsys, ran):
    with alone(load(toy).results):
        sweep(toy, code=2)
    assert ran == []
    assert "toy.csv is being written by another sweep" in capsys.readouterr().err
    sweep(toy, "--only", "few/Majority")


def test_a_dry_run_lists_the_runs_and_writes_nothing(toy, ran, capsys):
    sweep(toy, "--dry-run")
    out = capsys.readouterr().out
    assert out.count("to run ") == 12
    assert "few/Local/1: fedgraph-flwr run dataset=csbm" in out
    assert "toy: 12 runs, 12 to do, duration unknown" in out
    assert [path.name for path in toy.parent.iterdir() if path.name != "data"] == ["toy.yaml"]
    sweep(toy, "--only", "few")
    capsys.readouterr()
    sweep(toy, "--dry-run")
    out = capsys.readouterr().out
    assert (out.count("to run "), out.count("done   ")) == (6, 6)
    assert "toy: 12 runs, 6 to do, about" in out
    assert len(ran) == 6


class Screen(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_live_line(toy, ran, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    sweep(toy, "--only", "few")
    text = screen.getvalue()
    live = text[: text.index("Mean over seeds")]
    assert "\r" in live
    assert "FedAvg, seed 0: " not in live  # no line per run
    assert "run 6 of 6" in live
    sweep(toy, "-q")
    rest = screen.getvalue()[len(text) :]
    assert "\r" not in rest
    assert "run " not in rest[: rest.index("Mean over seeds")]


def test_a_file_gets_a_line_per_run_and_q_none(toy, ran, capsys):
    sweep(toy, "--only", "few")
    out = capsys.readouterr().out
    assert "\r" not in out
    assert "\x1b" not in out
    lines = [line for line in out.splitlines() if line.partition("/")[0].isdigit()]
    assert len(lines) == 6
    assert re.fullmatch(r"1/6 few, \w+, seed \d: \d+\.\d\d %(  \(about \d+ s left\))?", lines[0])
    assert re.fullmatch(r"6/6 few, \w+, seed \d: \d+\.\d\d %", lines[-1])
    sweep(toy, "-q")
    out = capsys.readouterr().out
    assert len(ran) == 12
    assert "12 runs" not in out
    assert not [line for line in out.splitlines() if line.partition("/")[0].isdigit()]
    assert "table: " in out


def test_default_jobs_use_each_core_once(monkeypatch):
    from fedgraph_flwr.config import compose

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert execution.default_jobs([compose([])]) == 8
    assert execution.default_jobs([compose([]), compose(["threads=3"])]) == 2
    assert execution.default_jobs([compose(["threads=16"])]) == 1
    assert execution.default_jobs([compose([]), compose(["engine=ray"])]) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--jobs", "-1", "strategy=fedavg"], "--jobs must be at least 0"),
        (["toy.yaml", "--search", "3"], "--search does not apply to a sweep file"),
        (["nonsense"], "table nonsense does not exist"),
        (["strategy=fedavg", "--baseline", "fedavgg"], "did you mean 'fedavg'"),
        (
            ["seed=0..1", "agreement=ab/1"],
            "a sweep makes many runs, and agreement=ab/1 is for those that members agreed on",
        ),
        (
            ["privacy.coordinator=curious,verified"],
            "and privacy.coordinator=verified is for those that members agreed on",
        ),
        ([*SMALL, "seed=0..1", "out=x"], "out=x, but each run of a sweep has its own folder"),
    ],
)
def test_wrong_input(toy, args, message, capsys):
    assert cli.main(["sweep", *args]) == 2
    assert message in capsys.readouterr().err


def test_a_verified_run_of_a_file_is_refused_once_before_the_first_run(place, ran, capsys):
    privacy = "secagg: true, scores: none, coordinator: verified, max_update: 1"
    (place / "run.yaml").write_text(f"privacy: {{{privacy}}}\nnum_clients: 3\n")
    assert cli.main(["sweep", "config=run.yaml", "seed=0..2", "--no-baselines", "--jobs", "0"]) == 2
    assert ran == []
    assert "and privacy.coordinator=verified is for those that members agreed on" in capsys.readouterr().err


@pytest.mark.parametrize("option", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    "word",
    [
        "model=not_there:Net",
        "strategy.client=not_there:Net",
        "evaluation.metric=not_there:Net",
        "partition=not_there:Net",
    ],
)
def test_code_that_cannot_be_imported_is_refused_once_before_the_first_run(place, ran, word, option, capsys):
    assert cli.main(["sweep", "strategy=fedavg,fedprox", "seed=0..2", *SMALL, word, *option, "--jobs", "0"]) == 2
    assert ran == []
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("'not_there:Net' cannot be imported (No module named 'not_there')") == 1
    assert "PYTHONPATH=." in shown.err


def test_code_of_a_file_is_refused_with_its_line(toy, ran, capsys):
    toy.write_text(TOY.replace("many: [train.local_steps=2]", "many: [model=not_there:Net]"))
    sweep(toy, code=2)
    assert "toy.yaml, line 6: model=not_there:Net: 'not_there:Net' cannot be imported" in capsys.readouterr().err


def test_the_old_command_is_the_new_one(toy, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run", "toy.yaml", "--dry-run"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("simulations.run", run_name="__main__")
    assert ended.value.code == 0
    assert "toy: 12 runs" in capsys.readouterr().out

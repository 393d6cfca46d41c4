"""Ctrl-C in a run of this process: the round at hand is finished, and the run goes on from it later."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.launch.runner import run as run_cfg
from fedgraph_flwr.strategies.loop import STOP
from tests.support import PATIENCE, Finished, same_result, wait_for

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("overrides", [["strategy=scaffold"], ["strategy=fedavg", "strategy.fraction=0.67"]])
def test_a_run_that_is_asked_to_stop_goes_on_to_the_same_result(run, tmp_path, overrides):
    """Long before a checkpoint is due, with all private state, also of clients that did not train."""
    whole = run("rounds=6", *overrides)

    def ask(record):
        assert STOP.enabled
        STOP.requested = record["round"] == 2

    cfg = compose(
        [
            f"graph={whole.cfg.graph}",
            "num_clients=3",
            "model.hidden=8",
            "rounds=6",
            *overrides,
            f"out={tmp_path / 'half'}",
        ]
    )
    with pytest.raises(KeyboardInterrupt):
        run_cfg(cfg, ask)
    assert not STOP.enabled
    done = read_tensors(tmp_path / "half" / "checkpoint.safetensors")[1]["round"]
    assert done in (2, 3)  # a round's record waits for its scores, which come with the next one's answers
    again = compose([f"resume={tmp_path / 'half'}", f"out={tmp_path / 'half'}"], tmp_path / "half" / "config.yaml")
    same_result(Finished(again, run_cfg(again)), whole)


def test_without_checkpoints_nothing_waits_for_the_round(run, monkeypatch):
    seen = []
    monkeypatch.setattr(type(STOP), "enabled", property(lambda self: False, lambda self, value: seen.append(value)))
    run("rounds=1", "checkpoint_every=0")
    assert seen == [False, False]


@pytest.mark.slow
def test_ctrl_c_early_leaves_a_run_that_can_be_resumed(run, tmp_path):
    graph = run("rounds=1").cfg.graph
    overrides = [f"graph={graph}", "rounds=4000", "model.hidden=8", f"out={tmp_path / 'run'}", "--quiet", "--no-report"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgraph_flwr", "run", *overrides], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: (tmp_path / "run" / "rounds.jsonl").is_file() or process.poll() is not None, "round 1 to end")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert "Finishing this round and saving a checkpoint" in err
    assert f"to resume: fedgraph-flwr run resume={tmp_path / 'run'}" in err
    done = read_tensors(tmp_path / "run" / "checkpoint.safetensors")[1]["round"]
    cfg = compose(
        [f"resume={tmp_path / 'run'}", f"out={tmp_path / 'run'}", f"rounds={done + 1}"],
        tmp_path / "run" / "config.yaml",
    )
    assert run_cfg(cfg)["rounds"] == done + 1

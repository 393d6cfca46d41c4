"""What `keys` prints of every key, and what a shell completes."""

import dataclasses
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import generated
from fedgraph_flwr.cli.app import COMMANDS, main
from fedgraph_flwr.cli.completion import SCRIPTS, words
from fedgraph_flwr.config import RunConfig, compose, group_names
from fedgraph_flwr.config.key_docs import keys_of, sections
from fedgraph_flwr.errors import FedGraphError

ROOT = Path(__file__).parents[2]


def leaves(section, prefix=""):
    for f in dataclasses.fields(section):
        value = getattr(section, f.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{f.name}.")
        elif f.name != "params":
            yield f"{prefix}{f.name}", value


@pytest.mark.slow
def test_every_key_is_there_with_its_default_and_a_meaning():
    keys = [key for group in sections() for key in keys_of(group)]
    assert {key.name: key.default for key in keys} == dict(leaves(RunConfig()))
    assert [key.name for key in keys if not key.meaning] == []


def test_what_a_key_is_said_to_accept_is_what_it_accepts():
    for key in (key for group in sections() for key in keys_of(group) if " | " in key.accepted):
        with pytest.raises(FedGraphError):
            compose([f"{key.name}=nonsense"])
    accepted = {key.name: key.accepted for key in keys_of("train") + keys_of("model")}
    assert accepted["train.lr"] == "0 < value"
    assert accepted["model.dropout"] == "0 <= value < 1"
    assert accepted["train.optimizer"] == "adam | adamw | sgd"
    for said, wrong in ((["train.lr=0"], r"train\.lr must be > 0"), (["model.dropout=1"], r"be in \[0, 1\)")):
        with pytest.raises(FedGraphError, match=wrong):
            compose(said)


def test_the_command_prints_groups_names_and_all(capsys):
    assert main(["keys"]) == 0
    printed = capsys.readouterr().out
    assert all(f"[{group}]" in printed for group in sections())
    assert main(["keys", "train"]) == 0
    assert (
        "train.local_steps = 3  (an integer, 0 <= value <= 2147483647)\n      optimiser steps per round"
        in capsys.readouterr().out
    )
    assert main(["keys", "strategy=fedprox"]) == 0
    shown = capsys.readouterr().out
    assert "strategy.prox.mu = 0.01  (a number, 0 <= value)\n      (ours) μ, the middle of the grid" in shown
    assert "strategy.moon.mu" not in shown
    assert shown.endswith(" more keys of parts that it does not use: fedgraph-flwr keys strategy=fedprox --all\n")
    assert main(["keys", "strategy=fedprox", "--all"]) == 0
    assert capsys.readouterr().out.startswith(shown.rpartition("\n")[0].rpartition("\n")[0] + "\n[optional parts]\n")
    assert main(["keys", "strategy=fedomd"]) == 0
    shown = capsys.readouterr().out
    assert "strategy.weighting = nodes  (train | nodes | uniform)" in shown
    assert "strategy.alpha = 0.0005  (a number, 0 <= value)\n      α of Eq. (12)" in shown
    assert "strategy.cmd_range = pooled  (unit | pooled)\n      (ours) b - a of Eq. (11)" in shown
    assert "strategy.min_nodes = 1  (an integer, 1 <= value <= 2147483647)" in shown
    assert main(["keys", "trains"]) == 2
    assert "did you mean 'train'?" in capsys.readouterr().err
    assert main(["keys", "strategy=nobody"]) == 2


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("fedgraph-flwr ", [*COMMANDS, "--help", "--version", "--conf"]),
        ("fedgraph-flwr ru", ["run", "runs"]),
        ("fedgraph-flwr run seed=1 train.local_s", ["train.local_steps=", "train.local_steps_by_client="]),
        ("fedgraph-flwr run train.loss=", ["train.loss=cross_entropy", "train.loss=weighted", "train.loss=focal"]),
        ("fedgraph-flwr run strategy=", [f"strategy={name}" for name in group_names("strategy")]),
        ("fedgraph-flwr run dataset.undirected=", ["dataset.undirected=true", "dataset.undirected=false"]),
        ("fedgraph-flwr run engine=in", ["engine=inline"]),
        ("fedgraph-flwr run --q", ["--quiet"]),
        ("fedgraph-flwr datasets co", ["computers", "cora", "cornell"]),
        (
            "fedgraph-flwr sweep strategy=fedprox,fedavg",
            ["strategy=fedprox,fedavg", "strategy=fedprox,fedavg_ft", "strategy=fedprox,fedavgm"],
        ),
        ("fedgraph-flwr sweep dtype=float32,", ["dtype=float32,float64"]),
        ("fedgraph-flwr run dtype=float32,", []),
        ("fedgraph-flwr schema ", ["show", "merge"]),
        ("fedgraph-flwr fleet re", ["remove", "renew"]),
        ("fedgraph-flwr fleet renew --al", ["--also"]),
        ("fedgraph-flwr new ", ["method"]),
        ("fedgraph-flwr import bank.yaml fea", ["features=", "feature_columns="]),
        ("fedgraph-flwr import columns.ti", ["columns.time="]),
        ("fedgraph-flwr init-party a.csv b.csv edge_k", ["edge_kinds."]),
        ("fedgraph-flwr import kinds.age=f", ["kinds.age=flag"]),
        ("fedgraph-flwr import day=", ["day=before", "day=whole"]),
        ("fedgraph-flwr import sha", []),
        ("fedgraph-flwr completion ", list(SCRIPTS)),
    ],
)
def test_what_completes_a_line(line, completed):
    assert words(line) == completed


def test_folders_of_runs_complete(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/first", "runs/second", "sweeps/a-runs/third", "other"):
        (tmp_path / folder).mkdir(parents=True)
        if folder != "other":
            (tmp_path / folder / "config.yaml").write_text("")
    assert words("fedgraph-flwr report runs/first ") == ["runs/first", "runs/second", "sweeps/a-runs/third"]
    (tmp_path / "client.yaml").write_text("")
    assert words("fedgraph-flwr import cli") == ["client=", "client.yaml"]
    assert words("fedgraph-flwr predict runs/s") == ["runs/second"]
    assert words("fedgraph-flwr run resume=runs/f") == ["resume=runs/first"]


def test_own_folders_and_graphs_complete_too(tmp_path, monkeypatch):
    """Those of the environment, of ``--conf`` in the line, and of the data root."""
    for folder in ("named", "line"):
        (tmp_path / folder / "strategy").mkdir(parents=True)
        (tmp_path / folder / "strategy" / f"zz{folder}.yaml").write_text("server: a:B\n")
    assert words("fedgraph-flwr run strategy=zz") == []
    monkeypatch.setenv("FEDGRAPH_CONF", str(tmp_path / "named"))
    assert words("fedgraph-flwr run strategy=zz") == ["strategy=zznamed"]
    for option in (f"--conf {tmp_path / 'line'}", f"--conf={tmp_path / 'line'}"):
        for line in (f"fedgraph-flwr {option} run strategy=zz", f"fedgraph-flwr run {option} strategy=zz"):
            assert words(line) == ["strategy=zzline", "strategy=zznamed"]
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "imported").mkdir(parents=True)
    (tmp_path / "data" / "imported" / "zzbank.safetensors").write_text("")
    assert words("fedgraph-flwr run dataset=zz") == ["dataset=zzbank"]


def test_the_files_that_follow_from_the_code_are_current():
    """If this fails, run python -m benchmarks.generated."""
    assert generated.TYPES.read_text() == generated.run_keys()
    assert generated.COMPLETION.read_text() == generated.as_text(generated.completion())


@pytest.mark.slow
@pytest.mark.parametrize("line", [f"fedgraph-flwr {words}" for words in ("run strategy=fed", "", "run --")])
def test_a_key_press_costs_less_than_a_fifth_of_a_second(line):
    """Of CPU, also the first one; nothing heavy is imported."""
    command = [sys.executable, "-X", "importtime", "-m", "fedgraph_flwr", "completion", "words", "--", line]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    spent = []
    while len(spent) < 2 or (min(spent) >= 0.2 and len(spent) < 8):  # a busy machine costs time as well
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert done.stdout.split("\n") == words(line)
    for heavy in ("torch", "omegaconf", "numpy", "flwr"):
        assert not re.search(rf"\| +{heavy}$", done.stderr, re.M), heavy
    assert min(spent) < 0.2


@pytest.mark.slow
def test_bash_completes_by_the_script(tmp_path):
    """Behind ``=``, where bash breaks words, as elsewhere."""
    tool = tmp_path / "fedgraph-flwr"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedgraph_flwr "$@"\n')
    tool.chmod(0o755)
    shown = 'COMP_LINE="$1"; COMP_POINT=${#1}; _fedgraph_flwr; printf "%s\\n" "${COMPREPLY[@]}"'
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    for line, completed in (("fedgraph-flwr run strategy=fedprox train.opt", ["train.optimizer=", "train.optimizer_state="]),
                       ("fedgraph-flwr run train.optimizer=ada", ["adam", "adamw"])):  # fmt: skip
        done = subprocess.run(
            ["bash", "-c", f"{SCRIPTS['bash']}\n{shown}", "bash", line],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.split() == completed, done.stderr

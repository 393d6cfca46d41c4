"""The app as Flower's users meet it: the bundle, plain keys of ``flwr run``, and what a run says at its end."""

import dataclasses
import io
import logging
import os
import re
import sys
import tomllib
import zipfile
from pathlib import Path

import click
import pytest
import yaml
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files
from flwr.common.config import get_fused_config_from_dir, parse_config_args
from flwr.supercore.constant import MAX_FILE_BYTES, MAX_FILE_COUNT, MAX_TOTAL_BYTES

from fedgraph_flwr import api
from fedgraph_flwr.cli import main
from fedgraph_flwr.cli import run as cli_run
from fedgraph_flwr.config import RunConfig, compose, from_run_config
from fedgraph_flwr.config.key_docs import sections
from fedgraph_flwr.engine import flower
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet.flower_patches import TESTED

ROOT = Path(__file__).parents[1]
APP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]


def composed(*args: str) -> RunConfig:
    """What ``flwr run . --run-config WORD ...`` gives the app, by Flower's own reading."""
    return from_run_config(get_fused_config_from_dir(ROOT, parse_config_args(list(args))))


def test_the_bundle_meets_the_hubs_rules():
    content, metadata = build_fab_from_files(collect_files(ROOT))
    bundle = zipfile.ZipFile(io.BytesIO(content))
    assert metadata.fab_format_version == 1
    assert metadata.flwr_version_target == "1.41.0"
    assert len(content) < MAX_TOTAL_BYTES
    assert sum(entry.file_size for entry in bundle.infolist()) < MAX_TOTAL_BYTES
    assert len(bundle.namelist()) < MAX_FILE_COUNT
    assert max(entry.file_size for entry in bundle.infolist()) < MAX_FILE_BYTES
    assert {"LICENSE", "README.md", "conf/config.yaml", "fedgraph_flwr/server_app.py"} <= set(bundle.namelist())


def test_the_readme_starts_with_what_the_hub_lists():
    front = yaml.safe_load((ROOT / "README.md").read_text().split("---\n")[1])
    assert front.keys() == {"tags", "dataset", "framework"}
    assert all(isinstance(word, str) for words in front.values() for word in words)


def test_without_a_word_a_run_is_that_of_the_configuration():
    assert composed() == compose([], defaults=["num_clients=2"])


def test_plain_keys_are_those_of_the_command_line():
    args = ['strategy="fedspa" rounds=7 train.lr=0.05', "evaluation.trained=true", 'tracking="[tensorboard]"']
    expected = ["strategy=fedspa", "rounds=7", "train.lr=0.05", "evaluation.trained=true", "tracking=[tensorboard]"]
    assert composed(*args) == compose(expected, defaults=["num_clients=2"])


def test_overrides_stand_over_plain_keys():
    cfg = composed('strategy="fedprox" rounds=7 overrides="strategy.mu=0.5 rounds=9"')
    assert (cfg.strategy.name, cfg.strategy.prox.mu, cfg.rounds) == ("fedprox", 0.5, 9)


def test_wrong_plain_keys_are_sentences():
    with pytest.raises(FedGraphError, match="did you mean 'fedspa'"):
        composed('strategy="fedsap"')
    with pytest.raises(FedGraphError, match=r"train\.lr"):
        composed('train.lr="fast"')
    with pytest.raises(ValueError, match="'stratgy' is not present"):
        composed('stratgy="fedspa"')


def test_a_group_and_a_key_below_it_go_into_overrides_and_the_page_has_the_sentence_that_another_attempt_gives():
    with pytest.raises(click.ClickException) as refused:
        parse_config_args(['strategy="fedprox" strategy.mu=0.1'])
    (quoted,) = re.findall(r'Flower reports "([^"]*)"', (ROOT / "docs" / "flower.md").read_text())
    assert " ".join(quoted.split()) in refused.value.message
    assert composed('overrides="strategy=fedprox strategy.mu=0.1"').strategy.prox.mu == 0.1


def test_a_node_resolves_nothing_in_a_servers_plain_keys():
    with pytest.raises(FedGraphError, match="a node resolves no variables"):
        from_run_config({"overrides": "", "config": "", "graph": "${oc.env:HOME}"}, foreign=True)


@pytest.mark.parametrize("group", ["split", "train", "evaluation", "privacy", "adversary"])
def test_every_key_of_these_groups_is_a_plain_key(group):
    assert list(APP["config"][group]) == [f.name for f in dataclasses.fields(sections()[group])]


def test_the_end_of_a_run_tells_its_results(run, caplog, monkeypatch):
    from fedgraph_flwr.server_app import _log_end

    done = run("rounds=2")
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.INFO, "flwr"):
        _log_end(done.summary | {"failures": {"1 (train)": "it died"}}, done.cfg)
    said = "\n".join(record.getMessage() for record in caplog.records)
    at = done.summary["metrics"]
    assert f"test accuracy: {at['best_val']['test_accuracy']:.4f} (best validation round)" in said
    assert f"test majority: {at['best_val']['test_majority']:.4f}" in said
    assert f"headline: test_accuracy at best_val = {done.summary['test_accuracy']:.4f}" in said
    assert "2 rounds in" in said
    assert "failed: client 1 (train): it died" in said
    assert f"fedgraph-flwr report {done.cfg.out}" in said


def test_the_workflows_test_every_python_that_the_package_is_for():
    import yaml

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = ROOT / ".github" / "workflows"
    ci, release = (yaml.safe_load((folder / f"{name}.yml").read_text())["jobs"] for name in ("ci", "release"))
    columns = ci["test"]["strategy"]["matrix"]["include"]
    tested = [column["python"] for column in columns]
    oldest = re.findall(r"(\S+)==([\d.]+)", columns[0]["versions"].replace(".*", ""))
    assert len(oldest) == 3
    for name, number in oldest:  # the first column has the lower bounds
        assert any(line.startswith(f"{name}>={number}") for line in project["dependencies"]), name
    assert any(re.fullmatch(r"flwr\[simulation\]>=1\.41\.0,<1\.43", line) for line in project["dependencies"])
    assert TESTED == ("1.41.0", "1.42.0")  # the versions of that range
    assert project["requires-python"] == f">={tested[0]},<3.{int(tested[-1].split('.')[1]) + 1}"
    assert {f"Programming Language :: Python :: {version}" for version in tested} <= set(project["classifiers"])
    assert release["publish"]["needs"] == release["docs"]["needs"] == "checks"


def test_a_bundle_runs_without_a_page_and_says_so_before_training(tmp_path, monkeypatch, capsys):
    """Flower adds no files of style to a bundle."""
    monkeypatch.setattr(cli_run, "ASSETS", tmp_path)
    monkeypatch.setattr(api, "train", lambda *args, **kwargs: pytest.fail("it trained"))
    assert main(["run", "dataset=csbm", "num_clients=2", f"out={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert "page.css is missing" in said
    assert "Pass --no-report" in said
    assert not (tmp_path / "run").exists()


def test_a_server_that_does_not_confirm_a_stop_is_a_warning_with_the_command(monkeypatch, capsys):
    monkeypatch.setattr(flower, "STOP_TIMEOUT", 0.01)
    with Path(os.devnull).open("w") as log:
        flower._stop([sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ), log)
    assert "did not confirm within 0.01 s that the run stopped" in capsys.readouterr().err

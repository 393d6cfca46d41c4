"""Old names of keys, values and options: accepted with a warning, rejected next to the new name, equal in stored files."""

import json
import warnings
from typing import Any

import pytest

from fedgraph_flwr import moved
from fedgraph_flwr.config import compose, from_run_config, to_json, to_yaml
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.declarations import declaration
from fedgraph_flwr.runs.folder import INPUT_SPEC, Checkpoint, check_resumable, fingerprint
from fedgraph_flwr.sweeps.overrides import parse_sweep
from fedgraph_flwr.sweeps.rows import identity
from fedgraph_flwr.sweeps.spec import load
from fedgraph_flwr.testing import MethodContract

NEW = ["evaluation.monitor=loss", "split.resample=true", "privacy.scores=exact"]
OLD = ["evaluation.watch=loss", "split.redraw=true", "privacy.scores=told"]


def old_text(text):
    """A stored configuration with old names."""
    for new, old in (("monitor", "watch"), ("resample", "redraw"), ("exact", "told")):
        assert new in text
        text = text.replace(new, old)
    return text


@pytest.fixture
def silent():
    """No warning is given."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        yield


@pytest.mark.parametrize(("old", "new"), list(zip(OLD, NEW, strict=True)))
def test_an_old_override_is_the_new_one_and_warns(old, new):
    key = old.partition("=")[0]
    with pytest.warns(FutureWarning, match=rf"^{key}.* is now {new.partition('=')[0]}.*: use the new name"):
        assert compose([old]) == compose([new])


@pytest.mark.parametrize("old", OLD[:2])
def test_both_names_of_a_key_are_an_error(old, tmp_path):
    key = old.partition("=")[0]
    new = moved.KEYS[key]
    with pytest.raises(FedGraphError, match=rf"^{key} is the old name of {new}, and both are given: remove {key}$"):
        compose([old, f"{new}=false"])
    section, _, name = new.partition(".")
    path = tmp_path / "own.yaml"
    path.write_text(f"{section}:\n  {name}: loss\n  {key.partition('.')[2]}: loss\n")
    with pytest.raises(FedGraphError, match=rf"^{key} \({path}, line 3\) is the old name of {new}"):
        compose([], path)


def test_a_new_override_replaces_an_old_one_of_a_file(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("evaluation: {watch: loss}\n")
    with pytest.warns(FutureWarning, match=r"evaluation\.watch \(.*own\.yaml, line 1\) is now evaluation\.monitor"):
        assert compose([], path).evaluation.monitor == "loss"
    with pytest.warns(FutureWarning):
        assert compose(["evaluation.monitor=metric"], path).evaluation.monitor == "metric"


def test_a_protocol_of_the_user_may_have_old_names(tmp_path, monkeypatch):
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol/mine.yaml").write_text(
        "evaluation: {watch: loss}\ndatasets: {csbm: {split: {redraw: true}}}\n"
    )
    monkeypatch.setenv("FEDGRAPH_CONF", str(tmp_path))
    with pytest.warns(FutureWarning, match=r"evaluation\.watch \(.*mine\.yaml\) is now"):
        cfg = compose(["protocol=mine"])
    assert (cfg.evaluation.monitor, cfg.split.resample) == ("loss", True)


@pytest.mark.usefixtures("silent")
def test_a_stored_configuration_is_read_without_a_warning(tmp_path):
    cfg = compose(NEW)
    path = tmp_path / "config.yaml"
    path.write_text(old_text(to_yaml(cfg)))
    assert compose([], path) == cfg
    assert from_run_config({"config": old_text(to_json(cfg)), "overrides": ""}, foreign=True) == cfg


@pytest.mark.usefixtures("silent")
def test_a_checkpoint_with_old_names_is_of_the_same_configuration():
    cfg = compose(NEW)
    before = json.loads(old_text(json.dumps(fingerprint(cfg, None))))
    found = Checkpoint(1, "0" * 16, 1, 0.5, {"round": 1}, before, {}, {})
    check_resumable(cfg, found, None)
    with pytest.raises(FedGraphError, match=r"evaluation\.monitor=metric"):
        check_resumable(compose([*NEW[1:], "evaluation.monitor=metric"]), found, None)


@pytest.mark.usefixtures("silent")
def test_stored_rows_with_old_names_are_of_the_same_runs():
    assert identity("FedAvg", " ".join(OLD)) == identity("FedAvg", " ".join(reversed(NEW)))
    assert identity("FedAvg", OLD[0]) != identity("FedAvg", "evaluation.monitor=metric")


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [  # names that these sweeps got under the old names
        (
            ["strategy=fedavg,fedprox", "evaluation.watch=loss,metric", "choose=evaluation.watch"],
            ["strategy=fedavg,fedprox", "evaluation.monitor=loss,metric", "tune=evaluation.monitor"],
            "fedavg-fedprox-csbm-4d234bc6",
        ),
        (
            ["strategy=fedavg", "privacy.scores=told,none", "split.redraw=true,false"],
            ["strategy=fedavg", "privacy.scores=exact,none", "split.resample=true,false"],
            "fedavg-csbm-61ad27b9",
        ),
    ],
)
def test_a_sweep_keeps_its_name(old, new, name):
    with pytest.warns(FutureWarning):
        before = parse_sweep(old)
    now = parse_sweep(new)
    assert before.name == now.name == name
    assert (before.grid, before.settings) == (now.grid, now.settings)


def test_old_keys_of_a_sweep(tmp_path):
    with pytest.raises(FedGraphError, match="choose is the old name of tune, and both are given: remove choose"):
        parse_sweep(["train.lr=1,2", "choose=train.lr", "tune=train.lr"])
    path = tmp_path / "table.yaml"
    path.write_text("methods: [fedavg]\nagainst: false\n")
    with pytest.warns(FutureWarning, match=r"against \(.*table\.yaml, line 2\) is now baseline"):
        assert load(path).baseline is False


def test_a_limit_and_a_test_class_may_have_the_old_name_words(tmp_path, monkeypatch):
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy/mine.yaml").write_text(
        "name: mine\nserver: strategies.fedavg:FedAvg\nclient: clients.base:GraphClient\n"
        "declares: {limits: [{words: [rounds=2], equals: [strategy=fedavg]}]}\n"
    )
    monkeypatch.setenv("FEDGRAPH_CONF", str(tmp_path))
    with pytest.warns(FutureWarning, match="^words is now overrides: use the new name"):
        assert declaration("mine").limits[0].overrides == ["rounds=2"]
    with pytest.warns(FutureWarning, match="^words is now overrides"):
        old: Any = type("TestMine", (MethodContract,), {"words": ("strategy=mine",)})
    assert old.overrides == ("strategy=mine",)
    with pytest.raises(FedGraphError, match="words is the old name of overrides, and both are given"):
        type("TestMine", (MethodContract,), {"words": (), "overrides": ()})


def test_old_options():
    with pytest.warns(FutureWarning, match="--alone is now --no-baselines"):
        assert moved.rename_options(["report", "DIR", "--alone"]) == ["report", "DIR", "--no-baselines"]
    with pytest.warns(FutureWarning, match="--against is now --baseline"):
        assert moved.rename_options(["sweep", "--against=FedAvg"]) == ["sweep", "--baseline=FedAvg"]
    with pytest.raises(FedGraphError, match="--against is the old name of --baseline, and both are given"):
        moved.rename_options(["sweep", "--against", "FedAvg", "--baseline", "Local"])
    assert INPUT_SPEC in moved.FILES

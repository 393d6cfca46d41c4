"""Checkpoints of older versions resume, and end where those ended: of commit 3124fb4, and with a configuration of 0.2.0.

`old_checkpoints/METHOD` holds a checkpoint after two rounds, with the clients' state and the records. `end.safetensors` holds the
parameters that the older version reached after four. FedAvg's rounds had two of three clients, by that version's draw.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedgraph_flwr.cli.app import main
from fedgraph_flwr.config import compose, to_yaml
from fedgraph_flwr.config.composition import group_names
from fedgraph_flwr.data.plugins import BASELINES
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.declarations import declaration
from fedgraph_flwr.store.checkpoint import check_descriptions, read_checkpoint

FOLDER = Path(__file__).parent / "old_checkpoints"
WORDS = [
    *("dataset=csbm", "dataset.nodes_per_client=[20,24]", "dataset.features=4", "model.hidden=4", "model.dropout=0"),
    *("num_clients=3", "dtype=float64", "train.optimizer=sgd", "checkpoint_every=2", "rounds=4"),
]
OWN = {"fedavg": ["strategy.fraction=0.67"], "scaffold": ["train.local_steps=2"]}


@pytest.mark.parametrize("method", OWN)
def test_an_older_versions_run_ends_where_it_would_have(run, tmp_path, monkeypatch, method):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    folder = tmp_path / "run"
    shutil.copytree(FOLDER / method, folder)
    overrides = [*WORDS, f"strategy={method}", *OWN[method]]
    finished = run(*overrides, f"resume={folder}", f"out={folder}")
    expected = load_file(FOLDER / method / "end.safetensors")
    assert finished.arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(finished.arrays[name], array, rtol=0, atol=1e-9)
    if method == "fedavg":
        assert [len(record["cohort"]) for record in finished.rounds] == [2] * 4
        new = run(*overrides)
        assert [r["cohort"] for r in new.rounds] != [r["cohort"] for r in finished.rounds], "it would draw others"


@pytest.mark.parametrize("method", ["fedgrad", "fggp"])
def test_a_run_of_0_2_0_ends_where_it_would_have(tmp_path, monkeypatch, method):
    """The classes of FGGP moved to another package since, and keys of both became constants."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    shutil.copytree(FOLDER / method, tmp_path / "run")
    assert main(["run", f"resume={tmp_path / 'run'}", "rounds=4", "--quiet", "--no-report"]) == 0
    expected = load_file(FOLDER / method / "end.safetensors")
    arrays = load_file(tmp_path / "run" / "model_final.safetensors")
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(arrays[name], array, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", group_names("strategy"))
def test_a_configuration_of_0_2_0_is_read(tmp_path, method):
    cfg, constants = compose([f"strategy={method}"]), declaration(method).constants
    sides = {side: getattr(cfg.strategy, side).replace(BASELINES, "fedgraph_flwr") for side in ("server", "client")}
    path, strategy = tmp_path / "config.yaml", replace(cfg.strategy, params=cfg.strategy.params | constants, **sides)
    path.write_text(to_yaml(replace(cfg, strategy=strategy)))
    assert compose([], path) == cfg
    for key in constants:
        params = cfg.strategy.params | constants | {key: "other"}
        path.write_text(to_yaml(replace(cfg, strategy=replace(strategy, params=params))))
        assert compose([], path).strategy.params == cfg.strategy.params | {key: "other"}, "a run refuses such a key"


def test_num_train_may_be_missing_since_private_clients_no_longer_report_it():
    checkpoint = read_checkpoint(FOLDER / "fedavg")
    descriptions = {
        client: {k: v for k, v in what.items() if k != "num_train"} for client, what in checkpoint.descriptions.items()
    }
    check_descriptions(descriptions, checkpoint, "folder")
    descriptions["0"]["num_train"] = checkpoint.descriptions["0"]["num_train"] + 1
    with pytest.raises(FedGraphError, match="client 0 has num_train 15, in that run it had 14"):
        check_descriptions(descriptions, checkpoint, "folder")

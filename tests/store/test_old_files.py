"""Files that the code of commit 4463e510 wrote (`tests/fixtures/before_0_3/make.py`) serve later versions.

Copies of those files in a temporary folder stand for a user's. Expected values are what that version wrote: scores, parameters
of a whole run, entries of ledgers. An entry that is lost would let a node spend its privacy twice.
"""

import json
import shutil
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.config import RunConfig, compose
from fedgraph_flwr.engine import grid
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet.keys import make_node
from fedgraph_flwr.partition import load
from fedgraph_flwr.party.party_file import client_file
from fedgraph_flwr.report.listing import listed
from fedgraph_flwr.secure.policy import read_policy
from fedgraph_flwr.secure.spent import SpentPrivacy, spent
from tests.nodes import party_nodes
from tests.party.two_banks import books, payments

FILES = Path(__file__).parents[1] / "fixtures" / "before_0_3"
SMALL = {"model.hidden": 4, "model.dropout": 0, "progress": False}
GRAPHS = {"nodes": "parts", "graphs": "graphs", "triples": "triples", "typed": "typed", "banks": "banks/linked"}
FINISHED = [*GRAPHS, "personal", "forest", "bank_trees", "private", "secure", "whole"]
PRIVATE = {
    "strategy.weighting": "uniform",
    "privacy.dp": "client_fixed",
    "privacy.noise_multiplier": 4,
    "privacy.scores": "none",
}


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the files; configurations name it instead of the folder in which they were written."""
    folder = tmp_path / "old"
    shutil.copytree(FILES, folder, ignore=shutil.ignore_patterns("*.py"))
    (folder / "exported/model.py.txt").rename(folder / "exported/model.py")  # not code of this repository
    for path in folder.glob("runs/*/config.yaml"):
        path.write_text(path.read_text().replace("/tmp/old", str(folder)))
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(folder)
    return folder


def test_runs_are_listed_and_reported(old):
    states = {Path(run["run"]).name: run["state"] for run in listed(old / "runs")}
    assert states == dict.fromkeys(FINISHED, "finished") | {"killed": "unfinished"}
    for name in FINISHED:
        assert main(["report", f"runs/{name}"]) == 0
        assert (old / "runs" / name / "report.html").stat().st_size > 1000
        assert compose(base=old / "runs" / name / "config.yaml").strategy.name


def test_an_exported_model_scores_as_its_run_does(old):
    """Not as in that version, where a payment's score also read the later rows of its table."""
    tables = ["--nodes=banks/a.csv", "--edges=banks/a_pay.csv"]
    graph = "--graph=banks/linked/client_0000.safetensors"
    assert main(["predict", "exported", *tables, graph, "--out=exported.csv"]) in (0, 3)
    assert main(["predict", "runs/banks", "--client=0", *tables, "--out=run.csv"]) in (0, 3)
    one, other = (pd.read_csv(name).set_index("edge")["p_yes"] for name in ("exported.csv", "run.csv"))
    np.testing.assert_allclose(one[other.index], other, atol=1e-6)


@pytest.mark.parametrize("run", ["banks", "bank_trees"])
def test_a_run_scores_new_tables(old, run):
    words = ["--client=0", "--nodes=banks/a.csv", "--edges=banks/a_pay.csv", "--out=now.csv"]
    assert main(["predict", f"runs/{run}", *words]) in (0, 3)
    assert pd.read_csv("now.csv")["p_yes"].between(0, 1).all()


@pytest.mark.parametrize("name", GRAPHS)
def test_a_run_on_the_same_client_files_gives_the_same_scores(old, name):
    fg.run(config=f"runs/{name}/config.yaml", out="again", progress=False)
    before, now = (json.loads((old / where / "summary.json").read_text()) for where in (f"runs/{name}", "again"))
    assert now["headline"] == before["headline"]
    key = before["headline"].partition(" at ")[0]
    assert now[key] == pytest.approx(before[key], abs=1e-6)


def test_a_killed_run_ends_where_it_would_have(old):
    fg.run(resume="runs/killed", out="runs/killed", rounds=4, config="runs/killed/config.yaml", progress=False)
    expected, arrays = (load_file(old / "runs" / name / "model_final.safetensors") for name in ("whole", "killed"))
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(arrays[name], array, rtol=0, atol=1e-9)


def test_a_model_is_trained_further(old):
    fg.run(graph="parts", num_clients=3, rounds=1, init="runs/nodes", out="further", **SMALL)
    trees = {"strategy": "boosting", "strategy.min_data_in_leaf": 2, "rounds": 1, "progress": False}
    fg.run(graph="parts", num_clients=3, init="runs/forest", out="more_trees", **trees)
    assert (old / "further/summary.json").is_file()
    assert (old / "more_trees/summary.json").is_file()


def test_client_files_and_a_party_file_are_read(old):
    for name in ("parts", "graphs", "triples", "typed", "banks/linked"):
        assert {load(path).client for path in Path(name).glob("*.safetensors")} >= {0, 1}
    shutil.copy("banks/a.safetensors", "banks/client_0000.safetensors")
    assert client_file(Path("banks/party.yaml")).name == "client_0000.safetensors"
    assert read_policy("private.yaml").max_epsilon == 8
    assert read_policy("secure.yaml").max_share == 0.9


def test_spent_privacy_stays_spent(old, monkeypatch):
    """Two more releases of the same noise cost more than they would alone, and an exhausted limit refuses them."""
    before = json.loads((old / "state_0/privacy_training.json").read_text())
    cfg = compose([f"{key}={value}" for key, value in (PRIVATE | {"num_clients": 3}).items()])
    limit = spent(before)
    with pytest.raises(FedGraphError, match="max_epsilon"):
        SpentPrivacy(old / "state_0/privacy_training.json", limit, "training").book("later", cfg, 1)
    monkeypatch.setattr(grid, "_run_ids", count(1000))  # ids of the old runs were small, too; a fleet's are random
    (old / "keys").mkdir()
    for client in range(3):
        make_node(old / f"keys/node_{client}")
    party_nodes(monkeypatch, sorted(Path("parts").glob("*.safetensors")), old / "private.yaml", old, old / "keys")
    fg.run(graph="parts", num_clients=3, rounds=1, out="later", **PRIVATE, **SMALL)
    after = json.loads((old / "state_0/privacy_training.json").read_text())
    assert after.items() >= before.items()
    assert len(after) == 2


def test_the_log_of_a_node_is_verified_and_continued(old):
    table = fg.audit(old / "state_0")
    assert list(table["strategy"]) == ["fedavg", "fedavg"]
    assert (table["refused"] == 0).all()
    assert table["epsilon"].iloc[0] == pytest.approx(
        spent(json.loads(Path("state_0/privacy_training.json").read_text()))
    )


def test_a_link_continues(old, tmp_path):
    """The files equal those of a link of all records."""
    whole = books(tmp_path / "now", payments(), "features=payments")
    files = [str(tmp_path / f"now/{bank}.safetensors") for bank in "ab"]
    assert main(["link", "--simulate", *files, "--since", "banks/linked", "--out", str(tmp_path / "linked")]) == 0
    for client in range(2):
        one, other = (load(folder / f"client_{client:04d}.safetensors") for folder in (whole, tmp_path / "linked"))
        assert one.num_nodes == other.num_nodes
        assert torch.equal(one.edge_index, other.edge_index)
        assert torch.equal(one.edge_attr.nan_to_num(7), other.edge_attr.nan_to_num(7))


def test_defaults_cover_keys_that_old_configurations_lack(old):
    cfg = compose(base=old / "runs/nodes/config.yaml")
    assert isinstance(cfg, RunConfig)
    assert cfg.graph == str(old / "parts")

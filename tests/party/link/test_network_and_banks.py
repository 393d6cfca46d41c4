"""A payment network and three banks: the example from tables to bounds, and the same files on a fleet."""

import importlib.util
import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from fedgraph_flwr.cli.app import main
from fedgraph_flwr.config import compose
from fedgraph_flwr.fleet.keys import check_key, make_node
from fedgraph_flwr.partition import load
from fedgraph_flwr.party.link.client import LinkClient
from fedgraph_flwr.party.link.command import link_overrides
from fedgraph_flwr.party.link.policy import Consent, sign_consent, write_consent
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.secure.accounting import cost
from tests.nodes import party_nodes
from tests.support import assert_same_arrays

FOLDER = Path(__file__).parents[3] / "examples" / "network_and_banks"
SHARE = ["flagged:exact", "dormant:exact"]


@pytest.fixture
def example(monkeypatch):
    """The example's module."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("network_and_banks", FOLDER / "network_and_banks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("network_tables", None)


def test_tables_have_their_shape(example, tmp_path):
    banks = example.make(tmp_path, 20_000, 2_000, 3, 0.02, 0)
    pay = pd.read_csv(tmp_path / "payments.csv")
    held = pd.concat([pd.read_csv(tmp_path / f"{bank}.csv").assign(bank=bank) for bank in banks]).set_index("id")
    assert (len(pay), len(held)) == (20_000, 2_000)
    assert (held.bank[pay.source].to_numpy() == pay.from_bank).all()
    assert (held.bank[pay.target].to_numpy() == pay.to_bank).all()
    assert not (pay.source == pay.target).any()
    fraud = (pay.fraud == "yes").to_numpy()
    assert fraud.mean() == pytest.approx(0.02, abs=0.004)
    dormant, flagged = (held[name] == "yes" for name in ("dormant", "flagged"))
    assert dormant[pay.source[fraud]].mean() == pytest.approx(0.45, abs=0.08)
    assert flagged[pay.target[fraud]].mean() == pytest.approx(0.62, abs=0.08)
    assert flagged[pay.target[~fraud]].mean() < 0.1


def test_a_node_links_the_edges_of_all_stages(example, tmp_path):
    """A node's client trains on the first edges by time, but a link run reads and writes all."""
    banks = example.make(tmp_path, 300, 40, 2, 0.1, 0)
    example.bring(str(tmp_path), banks)
    graph = load(tmp_path / "client_0000.safetensors")
    rules = LinkRules(match="ids", entities="columns", share=SHARE)
    client = LinkClient(compose([*link_overrides(rules), "num_clients=3"]), graph)
    assert client.graph.edge_index.size(1) < graph.edge_index.size(1) == 300
    assert client.party.graph is graph


def test_rows_of_the_network_have_the_epsilon_asked_for(example):
    keys = example.private_keys(20_000, 5.0, 4)
    cfg = compose(["task=edges", *example.ROWS, *keys, "num_clients=4"])
    assert 4.9 < cost(cfg.privacy, 4, cfg.rounds) <= 5
    assert (cfg.privacy.unit, cfg.privacy.rows) == ("row", 12_000)


@pytest.mark.slow
def test_training_on_files_that_nodes_linked_is_the_simulation(example, run, tmp_path, monkeypatch, capsys):
    """Four nodes with their party.yaml link, train and predict without a restart. Their policy is for training on edges."""
    place, keys = tmp_path / "place", tmp_path / "keys"
    parties = ["network", *example.make(place, 400, 60, 3, 0.2, 0)]
    example.bring(str(place), parties[1:])
    keys.mkdir()
    kept = {"match": "routed", "one_sided": "drop", "entities": "columns", "max_ids": 1_000_000, "share": SHARE}
    write_consent(keys / "consent.json", Consent(parties=4, purpose="fraud", expires="2999-12-31", **kept))
    for node in range(4):
        make_node(keys / f"node_{node}")
        sign_consent(keys / "consent.json", node, check_key(keys / f"node_{node}"))
    link = {
        "match": ["routed"],
        "min_shared": 1,
        "min_records": 1,
        "share": SHARE,
        "consent": f"{keys}/consent.json",
        "hours": 0,
    }
    policy = {"tasks": ["edges"], "networks": ["sage"], "link": link}
    (tmp_path / "policy.yaml").write_text(json.dumps(policy))
    rules = LinkRules(match="routed", entities="columns", share=SHARE)
    train = ["task=edges", "num_clients=4", "rounds=1", "model=sage", "split.step=null"]
    with monkeypatch.context() as patch:
        party_nodes(patch, [place / f"{name}.yaml" for name in parties], tmp_path / "policy.yaml", tmp_path, keys)
        run(f"graph={place}", "num_clients=4", *link_overrides(rules))
        fleet_run = run(*train, f"graph={place}")
    files = [str(place / f"{name}.yaml") for name in parties]
    given = ["--match=routed", "--entities=columns", f"--share={','.join(SHARE)}"]
    assert main(["link", "--simulate", *files, *given, f"--out={tmp_path}/linked"]) == 0
    for node in range(4):
        name = f"client_{node:04d}.safetensors"
        one, other = load(place / f"linked_{name}"), load(tmp_path / "linked" / name)
        assert one.linking | {"link": ""} == other.linking | {"link": ""}  # new in each run of nodes
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.edge_index, other.edge_index)
    expected = run(*train, f"graph={tmp_path}/linked")
    assert_same_arrays(fleet_run.arrays, expected.arrays)
    assert fleet_run.summary["metrics"] == expected.summary["metrics"]
    tomorrow = pd.read_csv(place / "payments.csv").tail(20)
    tomorrow.to_csv(tmp_path / "day.csv", index=False)
    for where, out in (([f"{tmp_path}/state_0"], "fleet"), ([str(expected.out), "--client=0"], "simulation")):
        assert main(["predict", *where, f"--edges={tmp_path}/day.csv", f"--out={tmp_path}/{out}.csv"]) == 0
    assert (tmp_path / "fleet.csv").read_text() == (tmp_path / "simulation.csv").read_text()
    before, after = (load(place / f"{name}client_0000.safetensors") for name in ("", "linked_"))
    assert not torch.equal(before.x.sum(0), after.x.sum(0))  # it trained with columns of the banks


@pytest.mark.slow
def test_the_example_runs(example, tmp_path, monkeypatch, capsys):
    words = ["--payments=3000", "--accounts=300", "--fraud=0.05", "--rounds=2"]
    monkeypatch.setattr(sys, "argv", ["network_and_banks.py", str(tmp_path), *words])
    monkeypatch.setattr(example, "FORMS", {key: example.FORMS[key] for key in ("alone", "exact")})
    example.main()
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][-2:]
    assert [row[0].strip("| ") for row in rows] == list(example.FORMS)
    alone, exact = (float(row[1]) for row in rows)
    assert exact > alone + 0.1  # boosting
    predicted = pd.read_csv(tmp_path / "0" / "predictions.csv")
    assert len(predicted) == 3000

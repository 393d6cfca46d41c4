"""A payment network and three banks: the example from tables to bounds, and the same files on a fleet."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from fedgraph_flwr.cli.app import main
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.fleet.keys import check_key
from fedgraph_flwr.partition import load
from fedgraph_flwr.party.link.client import LinkClient
from fedgraph_flwr.party.link.command import link_overrides
from fedgraph_flwr.party.link.policy import Consent, sign_consent, write_consent
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.secure.accounting import cost
from tests.engine.fleet import COMMAND, Fleet
from tests.support import PATIENCE

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


@pytest.mark.slow
def test_a_network_and_three_banks_on_a_fleet(example, tmp_path):
    """The files that nodes write are those of `--simulate`."""
    place, graphs = tmp_path / "tables", tmp_path / "graphs"
    banks = example.make(place, 400, 60, 3, 0.1, 0)
    example.bring(str(place), banks)
    graphs.mkdir()
    for file in sorted(place.glob("client_*.safetensors")):
        file.rename(graphs / file.name)
    fleet = Fleet(tmp_path, graphs)
    (peers := tmp_path / "peers").mkdir()
    for node in range(4):
        (peers / f"node_{node}.pub").write_text((fleet.keys / f"node_{node}.pub").read_text())
    kept = {"match": "routed", "one_sided": "drop", "entities": "columns", "max_ids": 1_000_000, "share": SHARE}
    consent = Consent(parties=4, purpose="a model of fraud", expires="2999-12-31", **kept)
    write_consent(tmp_path / "consent.json", consent)
    for node in range(4):
        sign_consent(tmp_path / "consent.json", node, check_key(fleet.keys / f"node_{node}"))
    policy = tmp_path / "policy.yaml"
    share = ", ".join(f'"{column}"' for column in SHARE)
    link = f"{{match: [routed], min_shared: 1, min_records: 1, share: [{share}], consent: consent.json}}"
    policy.write_text(f"min_nodes: 0\nlink: {link}\n")
    options = {"env": fleet.environment, "capture_output": True, "text": True, "timeout": PATIENCE, "check": False}
    rules = ["--match=routed", "--entities=columns", f"--share={','.join(SHARE)}"]
    try:
        fleet.start_superlink()
        fleet.register(0, 1, 2, 3)
        for node in range(4):
            own = tmp_path / f"node_{node}"
            own.mkdir()
            (own / "consent.json").write_text((tmp_path / "consent.json").read_text())
            text = policy.read_text().replace("consent.json", str(own / "consent.json"))
            (own / "policy.yaml").write_text(text)
            fleet.start_node(node, policy=str(own / "policy.yaml"), peers=str(peers))
        command = [*COMMAND, "link", "engine=loopback", "num_clients=4", *rules, f"out={tmp_path / 'out'}"]
        done = subprocess.run(command, **options)
        assert done.returncode == 0, done.stdout + done.stderr + fleet.log("node_0")
    finally:
        fleet.stop()
    files = [str(graphs / f"client_{node:04d}.safetensors") for node in range(4)]
    assert main(["link", "--simulate", *files, *rules, "--out", str(tmp_path / "linked")]) == 0
    for node in range(4):
        found = ClientGraph.load(graphs / f"linked_client_{node:04d}.safetensors")
        expected = ClientGraph.load(tmp_path / "linked" / f"client_{node:04d}.safetensors")
        assert found.linking == expected.linking
        assert torch.equal(found.x, expected.x)
        assert torch.equal(found.edge_index, expected.edge_index)

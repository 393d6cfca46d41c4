"""Commands of docs/between-parties.md on three SuperNodes, each with one bank's folder of CSV files: import to predictions."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
import torch

from fedgraph_flwr import cli
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.engine.flower import end_group
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.party.use.predict import load_node
from tests.engine.fleet import COMMAND, NAME, ROOT, Fleet, finished
from tests.nodes import party_nodes
from tests.support import PATIENCE, Finished, assert_same_arrays, wait_for

PAGE = (ROOT / "docs" / "between-parties.md").read_text()
BANKS = "abc"


def commands(heading: str) -> list[list[str]]:
    """Words of the commands below a heading of the page, up to the next one."""
    text = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    script = "".join(re.findall(r"```bash\n(.*?)```", text, re.S)).replace("\\\n", "")
    return [shlex.split(line) for line in script.splitlines()]


def those(heading: str, *start: str) -> list[list[str]]:
    """Those that start so."""
    return [overrides for overrides in commands(heading) if overrides[: len(start)] == list(start)]


@pytest.fixture
def folders(tmp_path):
    """A folder per bank with its tables alone, and with what the parties share: the schema, and public keys."""
    script = ROOT / "examples" / "banks" / "linked_tables.py"
    subprocess.run(
        [sys.executable, str(script), str(tmp_path / "all"), "--accounts", "100"], check=True, timeout=PATIENCE
    )
    for bank in BANKS:
        (tmp_path / bank / "crossing").mkdir(parents=True)
        for file in (tmp_path / "all").glob(f"{bank}_*.csv"):
            file.rename(tmp_path / bank / "crossing" / file.name)
    return {bank: tmp_path / bank for bank in BANKS}


@pytest.mark.fleet
@pytest.mark.slow
def test_three_banks_import_link_train_and_predict_by_the_commands_of_the_page(folders, tmp_path, monkeypatch):
    """The linked files are those of `link --simulate`; a run has the bits of the inline engine, also of its predictions."""
    (graphs := tmp_path / "graphs").mkdir()
    for client in range(3):
        (graphs / f"client_{client:04d}.safetensors").touch()  # a fleet of so many nodes
    fleet = Fleet(tmp_path, graphs)

    def here(args, folder):
        """A command of one party alone, in its folder."""
        monkeypatch.chdir(folder)
        assert cli.main(args[1:]) == 0

    def run(args, *more):
        """A command of the operator, however long it takes."""
        kept = [word for word in args if not word.startswith(("engine=", *(word.partition("=")[0] for word in more)))]
        command = [*COMMAND, *kept[1:], f"engine={NAME}", *more]
        fleet.wait(fleet._spawn(f"{len(fleet.processes)}-{args[1]}", command, cwd=tmp_path))

    def node(number, args):
        """The page's node of bank a, for any bank."""
        bank, name = BANKS[number], f"node_{number}"
        options = dict(zip(args[2::2], args[3::2], strict=True))
        options |= {"--server": f"{fleet.host}:{fleet.port}", "--key": str(fleet.keys / name)}
        options["--graph"] = str(folders[bank] / options["--graph"].replace("a.safetensors", f"{bank}.safetensors"))
        options |= {
            key: str(folders[bank] / options[key]) for key in ("--policy", "--peers", "--state") if key in options
        }
        known = fleet.log(name).count("SuperNode ID:") if name in fleet.processes else 0
        if name in fleet.processes:
            end_group(fleet.processes.pop(name))
        fleet._spawn(name, [*COMMAND, "node", *(word for pair in options.items() for word in pair)])
        return lambda: fleet.log(name).count("SuperNode ID:") > known

    imports = those("1. Each party imports its tables", "fedgraph-flwr", "import")
    first, restarted = those("On a fleet", "fedgraph-flwr", "node")
    (policy,) = those("On a fleet", "echo")
    schema = None
    try:
        fleet.start_superlink()
        for number, folder in enumerate(folders.values()):
            if schema:
                (folder / "crossing.yaml").write_text(schema)
            here(imports[number], folder)
            schema = (folder / "crossing.yaml").read_text()
            (folder / policy[-1]).write_text(policy[1] + "\n")
            (folder / "pinned").mkdir()
            for other in range(3):
                (folder / "pinned" / f"node_{other}.pub").write_text((fleet.keys / f"node_{other}.pub").read_text())
        fleet.register(0, 1, 2)
        for up in [node(number, first) for number in range(3)]:
            wait_for(up, "a node to be taken by the server")
        (link,) = (args for args in those("On a fleet", "fedgraph-flwr", "link") if "num_clients=3" in args)
        run(link, f"out={tmp_path / 'linking'}")
        assert "one-sided (drop)" in fleet.log("node_1")
        check_files(folders, tmp_path / "simulated")
        for up in [node(number, restarted) for number in range(3)]:
            wait_for(up, "a restarted node to be taken by the server")
        assert not [name for name in fleet.processes if "retrying" in fleet.log(name)]  # their ends had told the server
        short = ["rounds=2", "model.hidden=8", "--quiet", "--no-report"]
        *trained, again = those("On a fleet", "fedgraph-flwr", "run")
        (predict,) = those("On a fleet", "fedgraph-flwr", "predict")
        for train in trained:
            out = tmp_path / place(train)
            run(train, *short)
            check_bits(folders, finished(out), [*train[2:], *short[:2]], tmp_path)
            accuracy = []
            for bank, folder in folders.items():
                here(predict, folder)
                outcome = pd.read_csv(folder / "predictions.csv", dtype={"id": str})
                accounts = pd.read_csv(folder / "crossing" / f"{bank}_accounts.csv", dtype={"id": str})
                assert sorted(outcome["id"]) == sorted(accounts["id"])  # under their own ids
                accuracy.append(accuracy_of(outcome.merge(accounts[accounts["part"] == "test"], on="id")))
            assert scores(out)["best_val"]["test_accuracy"] == pytest.approx(sum(accuracy) / 3), out
        run(again, "--quiet", "--no-report")
        outcome, expected = scores(tmp_path / place(again))["last"], scores(tmp_path / place(trained[0]))["best_val"]
        compared = [key for key in expected if key.endswith("_accuracy")]
        assert compared
        assert {key: outcome[key] for key in compared} == {key: expected[key] for key in compared}
    finally:
        fleet.stop()


def check_files(folders, out):
    """The nodes wrote the files that `link --simulate` writes."""
    imported = [folder / "crossing" / f"{bank}.safetensors" for bank, folder in folders.items()]
    assert cli.main(["link", "--simulate", *map(str, imported), "--out", str(out)]) == 0
    for client, file in enumerate(imported):
        linked_graph = ClientGraph.load(file.with_name(f"linked_{file.name}"))
        expected = ClientGraph.load(out / f"client_{client:04d}.safetensors")
        assert linked_graph.cut_out.size(1) > 5
        assert linked_graph.linking | {"link": ""} == expected.linking | {"link": ""}
        for field in fields(expected):
            if isinstance(tensor := getattr(expected, field.name), torch.Tensor):
                assert torch.equal(getattr(linked_graph, field.name), tensor), field.name


def check_bits(folders, fleet_run, overrides, place):
    """A run has the bits of one of the same nodes on the simulated files in this process, and each party that one's predictor."""
    kept = [word for word in overrides if not word.startswith(("engine=", "out="))]
    cfg = with_folder(compose([*kept, f"graph={place / 'simulated'}", f"out={place / 'inline' / fleet_run.out.name}"]))
    files, states = sorted((place / "simulated").glob("client_*.safetensors")), Path(f"{cfg.out}-states")
    with pytest.MonkeyPatch.context() as patch:
        party_nodes(patch, files, folders["a"] / "policy.yaml", states)
        expected = Finished(cfg, run_inline(cfg))
    assert_same_arrays(fleet_run.arrays, expected.arrays)
    assert json.dumps(fleet_run.summary["metrics"]) == json.dumps(expected.summary["metrics"])  # some are NaN
    for client, folder in enumerate(folders.values()):
        party, wanted = load_node(folder / "party" / "state"), load_node(states / f"state_{client}")
        assert party.name == wanted.name == expected.cfg.strategy.name
        assert torch.equal(party.predict(party.client_graph).logits, wanted.predict(wanted.client_graph).logits)


def accuracy_of(tested):
    """Accuracy of the likelier class over a party's test nodes; a fleet scores no class of fewer than 5 of them."""
    likelier = (tested["p_fraud"] > tested["p_ok"]).map({True: "fraud", False: "ok"})
    scored = tested.groupby("label")["id"].transform("size") >= 5
    return (likelier == tested["label"])[scored].mean()


def place(overrides):
    """The run folder of a command."""
    return next(word for word in overrides if word.startswith("out=")).removeprefix("out=")


def scores(out):
    return json.loads((out / "summary.json").read_text())["metrics"]

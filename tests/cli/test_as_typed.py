"""Commands as a newcomer types them: the error names the command, the option or the spelling that was meant."""

import pandas as pd
import pytest

from fedgraph_flwr.cli import main
from tests.conftest import client_graph

SWEEP = "run takes one value per key, this runs each: `fedgraph-flwr sweep"
IMPORT = "tables are imported first: `fedgraph-flwr import --nodes NODES.csv --edges EDGES.csv --name mine`"
TABLES = "import --out o.safetensors --nodes"

TYPED = {
    "run seed=0..4": f"{SWEEP} seed=0..4`",
    "run strategy=fedavg,fedprox rounds=2": f"{SWEEP} strategy=fedavg,fedprox rounds=2`",
    "run train.lr=0.1,0.2": f"{SWEEP} train.lr=0.1,0.2`",
    "run graph=lnked": "graph=lnked does not exist, expected a folder of client files; did you mean 'linked'?",
    "run graph=n.csv": "graph=n.csv is a file, expected a folder of client files",
    "run dataset.path=n.csv": IMPORT,
    "run dataset=n.csv": IMPORT,
    f"{TABLES} n.csv --edges e.csv features=payment": "recipe of features 'payment' is unknown; did you mean 'payments'?",
    f"{TABLES} e.csv --edges n.csv": "--nodes e.csv has the ends of edges, and --edges n.csv the ids of nodes: swap the two",
    "alerts x --precision 50": "--precision must be a share from 0 to 1, got 50: pass --precision 0.5 for 50 % of right alerts",
    "alerts x --precision 50%": "got 50%: pass --precision 0.5 for 50 % of right alerts",
    "alerts x --precision half": "--precision must be a share from 0 to 1, such as 0.5; got half",
    "alerts x --budget 2%": "--budget must be a number of alerts per day, such as 20; a share of the items is no budget; got 2%",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    pd.DataFrame({"id": range(40), "age": range(40), "label": list("ab") * 20}).to_csv("n.csv", index=False)
    pd.DataFrame({"source": range(40), "target": range(1, 41), "amount": 1.5}).to_csv("e.csv", index=False)
    client_graph(0).save(tmp_path / "linked" / "client_0000.safetensors")


@pytest.mark.parametrize("typed", TYPED)
def test_the_error_names_what_was_meant(typed, folder, capsys):
    assert main(typed.split()) == 2
    error = capsys.readouterr().err
    assert TYPED[typed] in error
    assert len(error.splitlines()) == 1


def test_other_errors_of_run_are_as_before(folder, capsys):
    for typed in ("strategy.mu=-1", "model.widths=[4,a]", "evaluation.metrics=[a,b]", "nothing=1"):
        assert main(["run", "strategy=fedprox", typed]) == 2
        error = capsys.readouterr().err
        assert "sweep" not in error, typed
        assert "imported first" not in error, typed

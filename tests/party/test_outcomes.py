"""Decisions about alerts: their precision, and labels of the next import; what nobody looked at is not of the first class."""

from argparse import Namespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.outcomes import read_outcomes
from fedgraph_flwr.party.use import alerts_command
from fedgraph_flwr.party.use.alerts import Calibration, Choice, Rule, lived, lived_text
from fedgraph_flwr.party.use.frames import write_frame

E = 60


@pytest.fixture
def tables(tmp_path):
    """Accounts, and a payment on each of sixty days; each third one is fraud, and the column says "no" of all others."""
    pd.DataFrame({"id": [f"a{i}" for i in range(20)], "age": np.arange(20) + 20}).to_csv(
        tmp_path / "n.csv", index=False
    )
    rows = pd.DataFrame({"ref": [f"p{i}" for i in range(E)], "source": [f"a{i % 20}" for i in range(E)]})
    rows["target"] = [f"a{(i + 1) % 20}" for i in range(E)]
    rows["at"] = pd.date_range("2026-01-01 12:00", periods=E, freq="D").strftime("%Y-%m-%d %H:%M:%S")
    rows["fraud"] = ["yes" if i % 3 == 0 else "no" for i in range(E)]
    rows.to_csv(tmp_path / "e.csv", index=False)
    return tmp_path


def command(folder, *more):
    words = ["import", "--nodes", folder / "n.csv", "--edges", folder / "e.csv", "columns.time=at", "--client", "0"]
    words += ["columns.edge_label=fraud", "edge_classes=no,yes", "edge_columns=at", "--split", "temporal"]
    return [*map(str, words), "--out", str(folder / "c.safetensors"), *more]


def labels(folder):
    """Labels by day, -1 where unknown."""
    graph = ClientGraph.load(folder / "c.safetensors")
    return graph.edge_y[graph.edge_time.argsort()].tolist()


def test_decisions_are_labels_and_what_nobody_looked_at_is_unlabelled(tables, capsys):
    (tables / "d.csv").write_text("edge,outcome,score\np40,true,3\np41,false,2\np42,open,1\np43,,1\nother,true,5\n")
    options = ["columns.edge_id=ref", "--outcomes", str(tables / "d.csv")]
    assert main(command(tables, *options)) == 0
    expected = [int(i % 3 == 0) for i in range(40)]  # before the first decided day, the column counts
    expected += [1, 0, -1, -1]
    expected += [1 if i % 3 == 0 else -1 for i in range(44, E)]  # confirmed ones stay
    assert labels(tables) == expected
    said = capsys.readouterr().out
    assert "labels of 1 items are 'yes' and of 1 'no'" in said
    assert "2 open ones and 11 that nobody decided are unlabelled; 1 decisions name other items" in said
    assert main(command(tables)) == 0
    assert labels(tables) == [int(i % 3 == 0) for i in range(E)]  # without the option, as before
    assert main(command(tables, "--outcomes", str(tables / "d.csv"))) == 2
    assert "no column has their ids: pass columns.edge_id=NAME" in capsys.readouterr().err
    fresh = pd.read_csv(tables / "e.csv").drop(columns="fraud")  # next month's table has no labels at all
    fresh.to_csv(tables / "e.csv", index=False)
    assert main(command(tables, *options)) == 0
    assert labels(tables) == [{40: 1, 41: 0}.get(i, -1) for i in range(E)]
    capsys.readouterr()


def test_numbers_of_rows_are_not_taken_for_ids(tables, capsys):
    """Without a column of ids, `alerts` numbers rows; a column that is named id may hold other numbers."""
    rows = pd.read_csv(tables / "e.csv")
    rows.assign(id=np.arange(E)[::-1]).to_csv(tables / "e.csv", index=False)
    (tables / "d.csv").write_text("edge,outcome\n40,true\n")
    assert main(command(tables, "--outcomes", str(tables / "d.csv"))) == 2
    assert "which number rows without it" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("source", "code"), [("a1", 0), ("a7", 2)])
def test_decisions_of_other_payments_with_the_same_numbers_are_refused(tables, capsys, source, code):
    """Stored payments have numbers of rows in the list of alerts, and p1 is from a1 to a2."""
    (tables / "d.csv").write_text(f"edge,source,target,outcome\np1,{source},a9,true\n")
    assert main(command(tables, "columns.edge_id=ref", "--outcomes", str(tables / "d.csv"))) == code
    assert ("edge 'p1' has other accounts than in --outcomes" in capsys.readouterr().err) == bool(code)


def test_ids_are_read_as_alerts_writes_them(tmp_path):
    ids = ["=1+1", "\uff1d1", "+49 30", "-a", "@x", "'", "p'1"]
    write_frame(pd.DataFrame({"edge": ids, "outcome": "true"}), tmp_path / "d.csv")
    assert read_outcomes(tmp_path / "d.csv").ids.tolist() == ids


def test_decisions_of_accounts_are_labels(tables, capsys):
    people = pd.read_csv(tables / "n.csv").assign(label=["mule"] * 3 + ["ok"] * 17)
    people.to_csv(tables / "n.csv", index=False)
    (tables / "d.csv").write_text("id,outcome\na5,TRUE\na6,false\na1,open\n")
    words = [
        "import",
        "--nodes",
        tables / "n.csv",
        "--edges",
        tables / "e.csv",
        "--classes",
        "ok,mule",
        "--client",
        "0",
    ]
    words += ["--outcomes", tables / "d.csv", "--out", tables / "c.safetensors"]
    assert main(list(map(str, words))) == 0
    y = ClientGraph.load(tables / "c.safetensors").y.tolist()
    assert y == [1, -1, 1, -1, -1, 1, 0] + [-1] * 13
    capsys.readouterr()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("edge,result\np1,true\n", "needs a column edge .payments. or id"),
        ("payment,outcome\np1,true\n", "its columns are payment, outcome"),
        ("edge,outcome\np1,maybe\n", "row 1 has 'maybe' in column 'outcome', expected true, false or open"),
        (
            "edge,outcome\np1,true\np1,false\n",
            "row 2 has 'p1' in column 'edge', which an earlier row decides otherwise",
        ),
        ("edge,outcome\n,true\n", "expected an id in each row"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, says):
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(FedGraphError, match=says):
        read_outcomes(tmp_path / "d.csv")


def test_items_of_another_table_are_refused(tables, capsys):
    (tables / "d.csv").write_text("edge,outcome\nq1,true\n")
    assert main(command(tables, "columns.edge_id=ref", "--outcomes", str(tables / "d.csv"))) == 2
    assert "has none of the 1 items of --outcomes" in capsys.readouterr().err
    (tables / "d.csv").write_text("edge,outcome\n")
    assert main(command(tables, "columns.edge_id=ref", "--outcomes", str(tables / "d.csv"))) == 2
    assert f"--outcomes {tables / 'd.csv'} lists no items" in capsys.readouterr().err


def test_precision_as_lived_is_that_of_decided_alerts(tmp_path):
    promised = {"precision": [0.9, 0.85, 0.95], "items": 100, "positives": 10}
    choice = Choice("m1", 0, "fraud", Rule(budget=2), 1.0, Calibration(), promised, {}, {})
    rows = ["edge,score,model,outcome"]
    rows += [f"p{i},2.5,m1,{'true' if i < 12 else 'false' if i < 30 else 'open'}" for i in range(40)]
    rows += ["p90,0.5,m1,true"]  # below the threshold: no alert
    (tmp_path / "d.csv").write_text("\n".join(rows) + "\n")
    decisions = lived(choice, read_outcomes(tmp_path / "d.csv"))
    assert (decisions["right"], decisions["wrong"], decisions["open"], decisions["below"]) == (12, 18, 10, 1)
    z, n, p = norm.ppf(0.975), 30, 0.4  # Wilson's formula
    center, half = (p + z**2 / (2 * n)), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    np.testing.assert_allclose(
        decisions["precision"], [p, *((center + sign * half) / (1 + z**2 / n) for sign in (-1, 1))]
    )
    text = "\n".join(lived_text(choice, read_outcomes(tmp_path / "d.csv")))
    assert "decided: 30 alerts, 12 true and 18 false; 10 open, 1 below the threshold do not count" in text
    assert "precision: 0.4 [0.246, 0.577], 12 of 30" in text
    assert "expected precision: 0.9 [0.85, 0.95], of validation items" in text
    assert "it is below what was expected" in text
    args = Namespace(outcomes=tmp_path / "d.csv", nodes=None, edges=None, graph=None, out=None, page=None)
    with pytest.raises(FedGraphError, match=r"names edges .column edge., and the model's alerts are nodes .column id."):
        alerts_command._outcomes(args, choice, of_edges=False)
    assert alerts_command._outcomes(args, choice, of_edges=True) == 0
    (tmp_path / "d.csv").write_text("edge,model,outcome\np1,m2,true\n")
    with pytest.raises(FedGraphError, match="has alerts of model m2"):
        lived(choice, read_outcomes(tmp_path / "d.csv"))
    (tmp_path / "d.csv").write_text("edge,outcome\np1,open\n")
    assert "unknown, no alert is decided" in lived_text(choice, read_outcomes(tmp_path / "d.csv"))[1]

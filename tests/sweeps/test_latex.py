"""NAME.tex: a table for a paper."""

import json
import re

import pytest

import fedgraph_flwr as fg
from fedgraph_flwr import cli
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.sweeps.latex import latex

CELLS = [
    {"setting": "lr_0.1 & 5 %", "method": "fedavg", "mean": 81.234, "half": 0.5, "deviation": 0.25, "best": True},
    {
        "setting": "lr_0.1 & 5 %",
        "method": "fedprox",
        "mean": 80.0,
        "half": float("nan"),
        "deviation": float("nan"),
        "best": False,
    },
    {"setting": "b", "method": "fedavg", "best": False},
]


def test_rows_columns_bold_and_escapes():
    lines = latex(CELLS).splitlines()
    assert lines[0] == r"\begin{tabular}{lll}"
    assert lines[1:] == [
        r"\toprule",
        r" & FedAvg & FedProx \\",
        r"\midrule",
        r"lr\_0.1 \& 5 \% & \textbf{81.23} $\pm$ 0.50 & 80.00 \\",
        r"b &  &  \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_the_spread_may_be_the_standard_deviation():
    assert r"\textbf{81.23} $\pm$ 0.25" in latex(CELLS, "std")
    with pytest.raises(FedGraphError, match="cells 'deviation' is unknown; expected one of: interval, std"):
        latex(CELLS, "deviation")


def test_a_sweep_writes_it_and_returns_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["strategy=fedavg,fedprox", "seed=0..1", "rounds=1", "num_clients=3", "dataset.nodes_per_client=[40,50]"]
    assert cli.main(["sweep", *words, "--out", "s", "--jobs", "0", "--quiet", "--cells", "std"]) == 0
    [path] = (tmp_path / "s").glob("*.tex")
    summary = json.loads(path.with_suffix(".json").read_text())
    assert path.read_text() == latex(summary["cells"], "std")
    trained = [cell for cell in summary["cells"] if cell["method"] != "Majority"]
    assert max(trained, key=lambda cell: cell["mean"])["best"]
    assert not min(trained, key=lambda cell: cell["mean"])["best"]
    result = fg.sweep(*words, out=tmp_path / "s", progress=False)
    assert result.latex("std") == latex(summary["cells"], "std")
    assert path.read_text() == result.latex() == latex(summary["cells"])
    assert len(re.findall(r"\\textbf", result.latex())) >= 1

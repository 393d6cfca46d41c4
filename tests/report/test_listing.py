"""The list of runs: what their folders say, filters, JSON, page."""

import json
import shutil

import pytest

from fedgraph_flwr.cli import main
from fedgraph_flwr.config import compose
from fedgraph_flwr.config.repeating import overrides_of


def test_runs_are_listed_filtered_and_shown_on_a_page(runs, tmp_path, capsys):
    for name in ("fedavg-0", "fedavg-1", "local-0"):
        shutil.copytree(runs / name, tmp_path / name)
    (tmp_path / "fedavg-1" / "summary.json").unlink()  # an interrupted run
    shutil.copytree(runs / "central-0", tmp_path / "kept-runs" / "central-0")
    (tmp_path / "other").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.yaml").write_text("[")

    def listed(*words):
        assert main(["runs", str(tmp_path), "--json", *words]) == 0
        return {run["run"].rpartition("/")[2]: run for run in json.loads(capsys.readouterr().out)}

    found = listed()
    assert set(found) == {"fedavg-0", "fedavg-1", "local-0", "central-0"}
    summary = json.loads((runs / "fedavg-0" / "summary.json").read_text())
    assert found["fedavg-0"]["score"] == summary["test_accuracy"]
    assert (found["fedavg-1"]["state"], found["fedavg-1"]["round"], found["fedavg-1"]["score"]) == (
        "unfinished",
        3,
        None,
    )
    assert set(listed("strategy=fedavg")) == {"fedavg-0", "fedavg-1"}
    assert set(listed("strategy=fedavg", "state=finished")) == {"fedavg-0"}
    assert set(listed("model.hidden=8", "seed=1")) == {"fedavg-1"}
    assert listed("seed=7") == {}
    assert main(["runs", str(tmp_path), "strategi=fedavg"]) == 2
    assert "key 'strategi' is unknown" in capsys.readouterr().err
    assert main(["runs", str(tmp_path)]) == 0
    assert "unfinished, 3 of 3" in capsys.readouterr().out
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert '<a href="kept-runs/central-0">central-0</a>' in page
    assert "3 finished, 1 unfinished" in page
    assert main(["report", str(tmp_path / "other")]) == 2
    assert "holds no run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["strategy=fedprox", "strategy.mu=0.3", "seed=3"],
        ["protocol=fedspa", "strategy=fedspa", "dataset=cora"],
        ["dataset=csbm", "train.lr=0.003", "split.until=[1,2]", "threads=2"],
        ["task=edges", "dataset=payments", "model=multi_gine"],
    ],
)
def test_overrides_of_a_configuration_compose_it(words):
    few = overrides_of(compose([*words, "out=runs/x"]))
    assert compose(few) == compose(words)
    assert len(few) <= len(words) + 6
    assert not [word for word in few if word.startswith("out=")]


def test_a_configuration_that_no_overrides_compose_says_so():
    cfg = compose([])
    cfg.dataset.params["unheard"] = 1
    assert overrides_of(cfg) is None

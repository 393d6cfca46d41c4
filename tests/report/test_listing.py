"""The list of runs: what their folders say, filters, JSON, page."""

import dataclasses
import io
import json
import shutil

import pandas as pd
import pytest

import fedgraph_flwr as fg
from fedgraph_flwr.cli import main
from fedgraph_flwr.cli.run import ROWS, print_summary
from fedgraph_flwr.config import DatasetConfig, compose
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

    entries = listed()
    assert set(entries) == {"fedavg-0", "fedavg-1", "local-0", "central-0"}
    summary = json.loads((runs / "fedavg-0" / "summary.json").read_text())
    assert entries["fedavg-0"]["score"] == summary["test_accuracy"]
    assert (entries["fedavg-1"]["state"], entries["fedavg-1"]["round"], entries["fedavg-1"]["score"]) == (
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
    out = tmp_path / "new/folders/page.html"  # as every output, in folders that need not exist
    assert main(["report", str(tmp_path), "--page", str(out)]) == 0
    assert "3 finished, 1 unfinished" in out.read_text()
    config = tmp_path / "fedavg-0" / "config.yaml"
    assert main(["report", str(tmp_path), "--page", str(config)]) == 2
    assert f"page {config} has another suffix than .html: pass" in capsys.readouterr().err
    assert "fedavg" in config.read_text()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["strategy=fedprox", "strategy.mu=0.3", "seed=3"],
        ["protocol=fedspa", "strategy=fedspa", "dataset=cora"],
        ["dataset=csbm", "train.lr=0.003", "split.kind=temporal", "split.until=[1,2]", "threads=2"],
        ["task=edges", "dataset=payments", "model=multi_gine"],
        ["graph=parts", "task=links", "split.train=0.3", "seed=1"],
    ],
)
def test_overrides_of_a_configuration_compose_it(words):
    few = overrides_of(compose([*words, "out=runs/x"]))
    assert compose(few) == compose(words)
    assert len(few) <= len(words) + 6
    assert not [word for word in few if word.startswith("out=")]


def test_overrides_leave_out_what_no_one_reads():
    """The dataset of a folder of client files is one that the files name."""
    cfg = compose(["graph=parts", "strategy=fedprox"])
    cfg.dataset, cfg.evaluation.min_delta = DatasetConfig("csbm"), 0.1
    assert overrides_of(cfg) == ["strategy=fedprox", "graph=parts"]


def test_a_configuration_that_no_overrides_compose_says_so():
    cfg = compose([])
    cfg.dataset.params["unheard"] = 1
    assert overrides_of(cfg) is None


def test_the_summary_fits_eighty_columns_in_four_rows_with_whole_names(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    run = fg.load_run(runs / "fedavg-0")
    cfg = dataclasses.replace(run.config, evaluation=dataclasses.replace(run.config.evaluation, metric="auc"))
    for verbose, count in ((False, ROWS), (True, len(run.table()))):
        print_summary(run.summary, cfg, verbose)
        lines = capsys.readouterr().out.splitlines()
        rows = [line for line in lines if line.startswith(" test ")]
        assert len(rows) == count
        assert max(map(len, lines)) <= 80
        assert rows[0].startswith(" test auc ")  # the headline first
        assert [f"{len(run.table()) - ROWS} more scores: --verbose" in line for line in lines].count(True) == (
            not verbose
        )


def test_json_of_a_run_and_of_predictions(runs, tmp_path, capsys):
    words = ["dataset=csbm", "dataset.nodes=90", "num_clients=3", "rounds=1", f"out={tmp_path / 'run'}", "--json"]
    assert main(["run", *words, "--quiet", "--no-report"]) == 0
    output = json.loads(capsys.readouterr().out)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (output["test_accuracy"], output["out"]) == (summary["test_accuracy"], str(tmp_path / "run"))
    assert main(["predict", str(tmp_path / "run"), "--client", "0"]) == 0
    table = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert main(["predict", str(tmp_path / "run"), "--client", "0", "--json"]) == 0
    items = json.loads(capsys.readouterr().out)
    pd.testing.assert_frame_equal(pd.DataFrame(items).astype(float), table.astype(float))
    assert main(["predict", str(tmp_path / "run"), "--client", "0", "--json", "--out", "p.csv"]) == 2


def test_a_typing_error_of_a_command_suggests_it(capsys):
    assert main(["trian"]) == 2
    assert "run trains a model" in capsys.readouterr().err
    assert main(["run", "--rounds", "20"]) == 2
    assert "rounds=20" in capsys.readouterr().err
    assert main(["run", "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 100

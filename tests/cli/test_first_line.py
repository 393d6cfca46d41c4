"""What a terminal shows first: a run's result in one line, help without a command, logs without escape codes in files."""

import subprocess
import sys

from fedgraph_flwr import cli
from fedgraph_flwr.cli.run import print_summary


def test_the_first_line_of_a_run_is_its_result(run, capsys):
    finished = run("rounds=2")
    print_summary(finished.summary, finished.cfg)
    first = capsys.readouterr().out.splitlines()[0]
    score, chance = finished.summary["test_accuracy"], finished.summary["chance"]
    side = "above" if score >= chance else "below"
    assert (
        first
        == f"{100 * score:.1f} % test accuracy, {100 * abs(score - chance):.1f} points {side} chance, gcn, 3 clients"
    )


def test_the_first_line_names_the_clients_of_a_folder_and_trees(tmp_path, monkeypatch, capsys):
    """It had the default number of clients and the network that trees do not have."""
    monkeypatch.chdir(tmp_path)
    common = ["dataset=csbm", "num_clients=2"]
    assert cli.main(["partition", *common, "--out", "parts"]) == 0
    assert (
        cli.main(["run", "graph=parts", "strategy=boosting", "strategy.trees=2", "out=trees", "-q", "--no-report"]) == 0
    )
    first = next(line for line in capsys.readouterr().out.splitlines() if "% test accuracy" in line)
    assert first.endswith(", trees, 2 clients")


def test_a_bare_command_prints_the_help(capsys):
    assert cli.main([]) == 0
    assert "train a model in this process" in capsys.readouterr().out


def test_q_is_quiet(capsys):
    assert cli.main(["run", "rounds=1", "dataset=csbm", "num_clients=2", "-q", "--dry-run"]) == 0


def test_a_log_in_a_file_has_no_escape_codes():
    code = "from logging import WARNING; from fedgraph_flwr.logs import log; log(WARNING, 'careful')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "careful" in done.stdout + done.stderr
    assert "\x1b[" not in done.stdout + done.stderr

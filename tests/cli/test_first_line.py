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

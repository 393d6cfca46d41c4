"""Text of a client or a server goes to a terminal and into a page as text."""

import json

import pytest

from fedgraph_flwr.cli import main
from fedgraph_flwr.clients import base
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.errors import FedGraphError, sanitize

NASTY = "[/data/x] [bold]\x1b[31m\x1b]0;mine\x07 <script>alert(1)</script>\nsecond line \u202e"


def test_foreign_text_is_one_line_of_printable_characters():
    assert sanitize(NASTY).isprintable()
    assert "[/data/x]" in sanitize(NASTY)
    assert len(sanitize("x" * 10_000)) == 300


def test_a_clients_text_reaches_the_terminal_as_text(client_files, tmp_path, monkeypatch, capsys):
    train = GraphClient.train

    def wrong(self):
        if self.graph.client == 1:
            raise FedGraphError(NASTY)
        return train(self)

    monkeypatch.setattr(GraphClient, "train", wrong)
    overrides = ["run", client_files(), "num_clients=3", "rounds=2", f"out={tmp_path / 'run'}"]
    assert main(overrides) == 0
    message = capsys.readouterr().out
    assert "[/data/x]" in message
    assert "\x1b" not in message
    assert "\u202e" not in message
    assert "\x07" not in message
    assert "<script>alert" not in (tmp_path / "run" / "report.html").read_text()


def test_an_error_that_ends_a_run_is_printed_as_text(client_files, tmp_path, monkeypatch, capsys):
    def wrong(self):
        raise FedGraphError(NASTY)

    monkeypatch.setattr(GraphClient, "describe", wrong)
    assert main(["run", client_files(), "num_clients=3", "rounds=1", f"out={tmp_path / 'run'}"]) == 2
    message = capsys.readouterr().err
    assert "[/data/x]" in message
    assert not set("\x1b\x07\u202e") & set(message)


def test_a_page_holds_what_a_summary_says_as_text(run, tmp_path):
    """A summary written by somebody else."""
    from tests.support import write_report

    out = run("rounds=1").out
    summary = json.loads((out / "summary.json").read_text())
    for key in (
        "headline",
        "seconds_per_round",
        "commit",
        "versions",
        "classes",
        "privacy",
    ):
        summary[key] = "<script>alert(1)</script>"
    summary["failures"] = {"<script>alert(3)</script>": "</script><script>alert(4)</script>"}
    for at in summary["metrics"].values():
        at["test_accuracy"] = "<script>alert(2)</script>"
    (out / "summary.json").write_text(json.dumps(summary))
    assert "<script>alert" not in write_report([out], tmp_path / "report.html").read_text()


@pytest.mark.parametrize("accuracy", [1e9, 1.0000001, -0.1, float("nan")])
@pytest.mark.parametrize("lengths", [1, 2])
def test_scores_cannot_choose_the_round(run, monkeypatch, accuracy, lengths):
    """A client that claims an impossible score in round 1 is left out, and the round is chosen by the others' scores."""
    score = base.score

    def boast(self, logits):
        scores = score(self, logits)
        if (self.graph.client, self.server_round) == (1, 2):  # of the model after round 1
            scores["val-accuracy"] = [accuracy] * lengths
        return scores

    monkeypatch.setattr(base, "score", boast)
    finished = run("rounds=4")
    assert "1 (train)" in finished.summary["failures"]
    assert "val-accuracy" in finished.summary["failures"]["1 (train)"]
    scored = [r["metrics"]["val_accuracy"] for r in finished.rounds]
    assert all(0 <= value <= 1 for value in scored)
    assert finished.rounds[finished.summary["best_round"] - 1]["metrics"]["val_accuracy"] == max(scored)


def test_a_client_cannot_change_how_many_nodes_it_is_scored_on(run, monkeypatch):
    score = base.score

    def grow(self, logits):
        scores = score(self, logits)
        if (self.graph.client, self.server_round) == (1, 3):
            scores["test-count"] = [2.0**30]
        return scores

    monkeypatch.setattr(base, "score", grow)
    failures = run("rounds=4").summary["failures"]
    assert failures == {"1 (train)": "client 1 replied to phase 'train' with test-count=[1073741824.0], expected [4.0]"}

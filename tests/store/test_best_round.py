"""The best round is chosen among rounds that all clients scored, on a fleet as in a simulation."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fedgraph_flwr.config import EvaluationConfig, compose
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation.best_round import BestRound, coverage, trained
from fedgraph_flwr.evaluation.metrics import OwnRounds
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.report.runs import load_run
from tests.nodes import party_nodes

MISSES = 1
"""The client that fails in some rounds."""


def absent(monkeypatch, when, absentee=MISSES):
    """Let one client fail in training and scoring whenever ``when(round)`` holds."""
    original = node_clients.plain_reply

    def reply(client, phase, groups, config):
        if client.graph.client == absentee and phase in ("train", "evaluate") and when(int(config["round"])):
            raise FedGraphError("out of order")
        return original(client, phase, groups, config)

    monkeypatch.setattr(node_clients, "plain_reply", reply)


def every_third(number):
    return number % 3 == 0


LONG = ["rounds=11", "seed=3", "train.lr=0.05", "model.dropout=0"]


def complete_rounds(rounds):
    """Records by round number whose lists have an entry of each of the three clients."""
    return {r["round"]: r for r in rounds if len(r["clients"]["val-accuracy"]) == 3}


def test_a_round_that_a_client_did_not_score_is_never_the_best(run, monkeypatch):
    absent(monkeypatch, every_third, absentee=0)
    seen_worse = 0
    for seed in range(4):
        finished = run(*LONG, f"seed={seed}")
        whole = complete_rounds(finished.rounds)
        assert sorted(whole) == [1, 3, 4, 6, 7, 9, 10, 11]  # a model is scored in the next round's messages
        values = {n: np.mean(r["clients"]["val-accuracy"]) for n, r in whole.items()}
        best = max(values, key=lambda n: (values[n], -n))
        assert finished.summary["best_round"] == best
        assert finished.summary["test_accuracy"] == pytest.approx(np.mean(whole[best]["clients"]["test-accuracy"]))
        assert finished.summary["scored_by"] == [0, 1, 2]
        assert "missing" not in finished.summary
        every = {r["round"]: np.mean(r["clients"]["val-accuracy"]) for r in finished.rounds}
        seen_worse += max(every, key=every.get) not in whole
    assert seen_worse  # by its mean alone, a round of two clients would have won


def test_lists_name_their_clients_and_a_failure_stands_in_its_round(run, monkeypatch):
    absent(monkeypatch, every_third)
    rounds = {r["round"]: r for r in run(*LONG).rounds}
    assert rounds[1]["scored_by"] == [0, 1, 2]
    assert "missing" not in rounds[1]
    assert rounds[2]["scored_by"] == [0, 2]
    assert list(rounds[2]["missing"]) == ["1"]
    assert "out of order" in rounds[2]["failed"]["1 (scores)"]
    assert list(rounds[3]["failed"]) == ["1 (train)"]
    assert [trained(rounds[n]) for n in (1, 2, 3, 4)] == [3, 3, 2, 3]
    assert coverage(rounds[2]) == "2 of 3 clients (client 1 did not reply)"
    assert coverage(rounds[1]) == "3 clients"


@pytest.mark.parametrize("select", ["best_val", "own_best_val"])
def test_a_fleet_chooses_the_round_and_the_model_that_a_simulation_chooses(run, monkeypatch, tmp_path, select):
    """Nodes keep the model of the server's best round, though one of them fails in every third round."""
    absent(monkeypatch, every_third)
    overrides = [*LONG, f"evaluation.select={select}"]
    expected = run(*overrides)
    (policy := tmp_path / "policy.yaml").write_text("min_nodes: 0\n")
    party_nodes(monkeypatch, sorted(Path(expected.cfg.graph).glob("*.safetensors")), policy, tmp_path)
    fleet_run = run(*overrides, f"graph={expected.cfg.graph}")
    for key in ("best_round", "test_accuracy", "chance", "scored_by", "metrics", "failures"):
        assert fleet_run.summary[key] == expected.summary[key], key
    assert [r["clients"] for r in fleet_run.rounds] == [r["clients"] for r in expected.rounds]
    assert [r.get("missing") for r in fleet_run.rounds] == [r.get("missing") for r in expected.rounds]
    for client in range(3) if select == "best_val" else ():
        (path,) = (tmp_path / f"state_{client}").rglob("model_best.safetensors")
        assert read_tensors(path)[1]["round"] == fleet_run.summary["best_round"], read_tensors(path)[1]


def test_without_a_complete_round_the_headline_says_over_whom(run, monkeypatch, capsys):
    absent(monkeypatch, lambda number: True)
    finished = run("rounds=3")
    assert finished.summary["scored_by"] == [0, 2]
    assert list(finished.summary["missing"]) == ["1"]
    best = finished.rounds[finished.summary["best_round"] - 1]
    assert finished.summary["test_accuracy"] == pytest.approx(np.mean(best["clients"]["test-accuracy"]))
    from fedgraph_flwr.cli.run import print_summary

    print_summary(finished.summary, finished.cfg)
    assert "2 of 3 clients (client 1 did not reply)" in " ".join(capsys.readouterr().out.split())
    report = load_run(Path(finished.cfg.out))
    assert report.left_out == {1: "did not reply"}
    assert math.isnan(report.per_client["test-accuracy"][1])
    assert report.per_client["test-accuracy"][2] == best["clients"]["test-accuracy"][1]


def test_own_best_rounds_use_all_replies_of_a_client(run, monkeypatch):
    absent(monkeypatch, every_third)
    finished = run("strategy=local", "train.lr=0.05", "rounds=8", "evaluation.select=own_best_val", "seed=2")
    picked = []
    for client in range(3):
        scored = [(r, r["scored_by"].index(client)) for r in finished.rounds if client in r["scored_by"]]
        best = max(scored, key=lambda pair: (pair[0]["clients"]["val-accuracy"][pair[1]], -pair[0]["round"]))
        picked.append(best[0]["clients"]["test-accuracy"][best[1]])
    assert finished.summary["test_accuracy"] == pytest.approx(np.mean(picked), abs=1e-12)


def test_a_cohort_that_scores_is_complete_without_the_others(run, monkeypatch):
    absent(monkeypatch, every_third)
    finished = run("rounds=8", "strategy.fraction=0.67", "evaluation.clients=cohort", "strategy.min_clients=1")
    assert finished.summary["best_round"]
    best = finished.rounds[finished.summary["best_round"] - 1]
    assert "missing" not in best
    assert finished.summary["scored_by"] == best["scored_by"]
    assert coverage(finished.summary) == "2 clients"
    assert any("missing" in record for record in finished.rounds)


def test_a_resumed_run_chooses_the_same_round(run, monkeypatch):
    absent(monkeypatch, every_third)
    whole = run(*LONG)
    half = run(*LONG, "rounds=6", "checkpoint_every=3")
    resumed = run(
        *LONG, "checkpoint_every=3", f"resume={half.cfg.out}", f"out={half.cfg.out}", f"graph={half.cfg.graph}"
    )
    for key in ("best_round", "test_accuracy", "scored_by"):
        assert resumed.summary[key] == whole.summary[key]


# --- the rule itself --------------------------------------------------------------------------------------------------


def record(number, missing=()):
    return {"round": number, "metrics": {}} | ({"missing": dict.fromkeys(missing, "away")} if missing else {})


def test_rounds_with_fewer_missing_clients_come_first():
    best = BestRound()
    assert best.take(record(1, "a"), 0.9, 0.0)
    assert not best.take(record(2, "ab"), 0.99, 0.0)
    assert best.last == 1
    assert best.take(record(3), 0.5, 0.0)
    assert not best.take(record(4, "a"), 0.95, 0.0)
    assert not best.take(record(5), 0.5, 0.0)
    assert (best.round, best.last) == (3, 5)
    assert best.take(record(6), 0.6, 0.0)


def test_a_score_that_is_no_number_gives_way_to_a_number():
    best = BestRound()
    assert best.take(record(1), math.nan, 0.0)
    assert best.take(record(2), 0.1, 0.0)


def test_incomplete_rounds_neither_stop_a_run_nor_keep_it(run, monkeypatch):
    """Nothing gets better, and patience counts up to the last complete round: round 3 is scored in round 4 by all."""
    absent(monkeypatch, every_third)
    finished = run("train.lr=1e-12", "evaluation.patience=2", "rounds=50")
    assert (finished.summary["best_round"], finished.summary["rounds"]) == (1, 3)
    later = run("train.lr=1e-12", "evaluation.patience=1", "rounds=50")
    assert (later.summary["best_round"], later.summary["rounds"]) == (1, 3)  # round 2 lacks a client


def test_records_without_clients_are_read_as_before():
    rounds = OwnRounds(EvaluationConfig())
    scores = [[0.1, 0.2], [0.5], [0.3, 0.1]]
    for number, values in enumerate(scores, 1):
        rounds.take(number, {"val-accuracy": values, "test-accuracy": values})
    assert rounds.scores["test-accuracy"].tolist() == [0.3, 0.2]


def test_a_report_on_an_old_run_says_that_its_records_name_no_clients(run, monkeypatch):
    absent(monkeypatch, every_third)
    finished = run(*LONG)
    path = Path(finished.cfg.out) / "rounds.jsonl"
    old = [json.loads(line) for line in path.read_text().splitlines()]
    for entry in old:
        entry.pop("scored_by")
        entry.pop("missing", None)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in old))
    from fedgraph_flwr.report.headline import _without

    loaded_run = load_run(Path(finished.cfg.out))
    assert loaded_run.unnamed
    assert "did not record which clients scored" in _without(loaded_run)
    assert compose([], loaded_run.folder / "config.yaml").rounds == 11


def test_a_fleet_and_a_simulation_with_the_same_rule_show_the_same_score(run, monkeypatch, tmp_path):
    """Nodes leave classes with fewer than three items out of their scores: the number says so, and a simulation can, too."""
    sizes, short = (40, 44, 48), ["rounds=2", "dtype=float64", "model.dropout=0"]
    plain = run(*short, sizes=sizes)
    same = run(*short, "evaluation.min_items=3", f"graph={plain.cfg.graph}", sizes=sizes)
    (policy := tmp_path / "policy.yaml").write_text("min_nodes: 3\n")
    party_nodes(monkeypatch, sorted(Path(plain.cfg.graph).glob("*.safetensors")), policy, tmp_path)
    fleet = run(*short, f"graph={plain.cfg.graph}", sizes=sizes)
    assert fleet.summary["metrics"] == same.summary["metrics"]
    assert fleet.summary["test_accuracy"] != plain.summary["test_accuracy"]
    assert (fleet.summary["min_items"], same.summary["min_items"], plain.summary.get("min_items")) == (3, 3, None)
    assert "without classes of fewer than 3 items at a client" in coverage(fleet.summary)
    assert "without" not in coverage(plain.summary)

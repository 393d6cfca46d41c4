"""Thresholds, calibration and lists of alerts, against brute force and known laws."""

import functools
import html
import json
import re
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.use import alerts, alerts_command
from fedgraph_flwr.party.use.alerts import Choice, Rule, calibrate, figures, reliability
from fedgraph_flwr.party.use.explain import explain
from fedgraph_flwr.party.use.pages import right_of_100
from fedgraph_flwr.party.use.predict import load_predictor


def items(seed, count=300):
    """Margins with ties, and labels that follow them."""
    rng = np.random.default_rng(seed)
    margin = np.round(rng.normal(-1, 1.5, count), 1)
    return margin, (rng.random(count) < expit(margin)).astype(np.int64)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "rule", [Rule(budget=2.5), Rule(budget=40), Rule(precision=0.6), Rule(cost=(5, 1)), Rule(cost=(1, 30))], ids=str
)
def test_a_threshold_is_the_best_of_all_that_exist(rule, seed):
    """Brute force over every margin and over no alert at all."""
    margin, y = items(seed)
    threshold = rule.threshold(margin, y, days=10)
    options = [*np.unique(margin), np.inf]

    def of(t):
        alert = margin >= t
        return alert.sum(), (alert & (y == 1)).sum()

    if rule.budget:
        assert threshold == min(t for t in options if of(t)[0] <= rule.budget * 10)
    elif rule.precision:
        assert threshold == min(t for t in options[:-1] if of(t)[1] >= rule.precision * of(t)[0])
    else:
        miss, alert = rule.cost
        costs = [miss * (y.sum() - of(t)[1]) + alert * of(t)[0] for t in options]
        assert miss * (y.sum() - of(threshold)[1]) + alert * of(threshold)[0] == min(costs)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({}, "need one rule"),
        ({"budget": 3, "precision": 0.5}, "need one rule"),
        ({"budget": -1}, "--budget must be"),
        ({"precision": 1.5}, "--precision in"),
        ({"budget": float("nan")}, "--budget must be"),
        ({"cost": (1, 0)}, "two numbers above 0"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(words, says):
    with pytest.raises(FedGraphError, match=says):
        Rule(**words)


def test_a_rule_that_cannot_be_met_is_refused():
    margin, y = items(0)
    with pytest.raises(FedGraphError, match="carry no time"):
        Rule(budget=3).threshold(margin, y, days=0)
    with pytest.raises(FedGraphError, match="no threshold reaches a precision of 1"):
        Rule(precision=1).threshold(np.array([3.0, 2, 1]), np.array([0, 1, 1]), days=0)
    with pytest.raises(FedGraphError, match="both classes, got 0 of 300"):
        calibrate(margin, np.zeros(300, np.int64))


def test_a_party_without_a_positive_chooses_by_a_budget(monkeypatch):
    """Its desk was refused, although a budget needs no label; recall of no positives is no number."""
    margin, day = np.arange(40.0), np.repeat(np.arange(10), 4)
    half = torch.arange(40) < 20
    task = SimpleNamespace(y=torch.zeros(40, dtype=torch.int64), masks={"val": half, "test": ~half})
    task.time = torch.from_numpy(day * 86_400)
    predictor = SimpleNamespace(
        client=3, tensors={}, input_spec=SimpleNamespace(classes=["ok", "fraud"]), party_graph=lambda: None
    )
    monkeypatch.setattr(alerts, "margins", lambda *_: (margin, task))
    choice = alerts.choose(predictor, Rule(budget=2))
    assert (choice.threshold, choice.is_calibrated, choice.calibrated) == (10.0, False, {})
    assert choice.validation["alerts_per_day"][0] == 2
    assert "recall" not in choice.validation
    assert not Choice.read(json.loads(json.dumps(asdict(choice)))).is_calibrated
    with pytest.raises(FedGraphError, match="got 0 of 20 positive; --budget K alone needs no positive"):
        alerts.choose(predictor, Rule(precision=0.5))
    task.y -= 1
    with pytest.raises(FedGraphError, match="needs labelled validation items, got none"):
        alerts.choose(predictor, Rule(budget=2))


def test_a_calibration_finds_what_distorts_scores():
    """Margins are 3 times too large: the temperature is 3, and isotonic probabilities are near the true ones."""
    rng = np.random.default_rng(0)
    true = rng.normal(-1, 1.5, 20_000)
    y = (rng.random(true.size) < expit(true)).astype(np.int64)
    assert calibrate(3 * true, y, "temperature").temperature == pytest.approx(3, rel=0.05)
    isotonic = calibrate(3 * true, y)
    assert isotonic.temperature == 0
    chance = isotonic.apply(np.sort(3 * true))
    assert (np.diff(chance) >= 0).all()
    assert np.abs(chance - expit(np.sort(true))).mean() < 0.02
    before, after = reliability(expit(3 * true), y), reliability(isotonic.apply(3 * true), y)
    assert after["brier"] < before["brier"]
    assert sum(row[2] for row in after["curve"]) == y.size
    assert all(abs(mean - share) < 0.05 for mean, share, count in after["curve"] if count > 500)
    assert calibrate(3 * true[:50], y[:50]).temperature > 0, "too few positives for isotonic regression"


def test_intervals_cover_as_often_as_they_say():
    """Of 200 samples of a known law, about 95 % of the intervals of precision hold the true value."""
    hits, rng = 0, np.random.default_rng(1)
    for _ in range(200):
        y = (rng.random(400) < 0.3).astype(np.int64)
        margin = np.where(rng.random(400) < 0.5, 1.0, -1.0) + 0 * y
        low, high = figures(margin, y, None, 0.0)["precision"][1:]
        hits += low <= 0.3 <= high
    assert 180 <= hits <= 199


def test_days_are_resampled_whole():
    """Items of one day alike: the interval by days is wider than by items."""
    day = np.repeat(np.arange(20), 50)
    y = np.repeat(np.random.default_rng(0).integers(0, 2, 20), 50)
    margin = np.ones(1000)
    of_days, of_items = (figures(margin, y, grouping, 0.0)["precision"] for grouping in (day, None))
    assert of_days[0] == of_items[0]
    assert of_days[2] - of_days[1] > 3 * (of_items[2] - of_items[1])
    assert figures(margin, y, day, 0.0)["alerts_per_day"][0] == 50


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("alerts") / "run"
    small = {"dataset.accounts": 150, "dataset.background": 1500, "dataset.per_kind": 6, "model.hidden": 8}
    return fg.run(
        task="edges",
        dataset="payments",
        num_clients=2,
        rounds=3,
        progress=False,
        out=str(out),
        checkpoint_every=0,
        **small,
    )


def said(capsys, *words):
    code = main(list(map(str, words)))
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_a_desk_chooses_once_and_lists_alerts(run, tmp_path, capsys):
    """The budget of validation days is kept; the stored choice serves later calls, and no other model."""
    out = tmp_path / "alerts.csv"
    code, text = said(capsys, "alerts", run.path, "--client", 0)
    assert code == 2
    assert "has no threshold for alerts" in text
    code, text = said(capsys, "alerts", run.path, "--client", 0, "--budget", 5)
    assert code == 0, text
    stored = json.loads((run.path / "alerts_0.json").read_text())
    assert f"alerts per day {stored['validation']['alerts_per_day'][0]:.3g}" in text
    assert 4 <= stored["validation"]["alerts_per_day"][0] <= 5
    assert said(capsys, "alerts", run.path, "--client", 0) == (0, text)  # the stored one
    assert "rank,case" not in text, "the stored graph is no input"
    load_predictor(run.path, 0).client_graph.save(tmp_path / "new.safetensors")
    code, shown = said(capsys, "alerts", run.path, "--client", 0, "--graph", tmp_path / "new.safetensors")
    assert (code, shown.startswith(text)) == (0, True), shown
    assert re.match(r"\d+ alerts of \d+ items:\nrank,case,edge,", shown.removeprefix(text)), shown
    page = tmp_path / "alerts.html"
    words = ("--out", out, "--page", page, "--reasons", 2, "--explained", 3)
    code, text = said(capsys, "alerts", run.path, "--client", 0, *words)
    assert code == 0, text
    listed = pd.read_csv(out)
    assert list(listed) == [
        "rank",
        "case",
        "edge",
        "source",
        "target",
        "time",
        "score",
        "probability",
        "model",
        "reasons",
    ]
    reasons = listed["reasons"]
    assert reasons.notna().sum() == 3 < len(listed), "the highest ones have reasons"
    predictor = load_predictor(run.path, 0)
    (first,) = explain(predictor, predictor.client_graph, None, None, [str(listed["edge"][0])], checks=False)
    assert reasons[0] == first.text(2)
    largest = np.sort(np.concatenate([first.of_columns, first.of_edges]))[-2:][::-1]
    assert reasons[0].count(";") == 1
    assert all(f"({value:+.2g})" in reasons[0] for value in largest), "the two that raise the score most"
    text = page.read_text()
    assert "Alerts of client 0: FedAvg on payments" in text
    assert stored["model"] in text
    assert reasons[0][:20] in html.unescape(text)
    assert (listed["score"].diff().dropna() <= 0).all()
    assert listed["probability"].between(0, 1).all()
    assert len(listed) >= round(stored["validation"]["alerts_per_day"][0] * stored["validation"]["days"])
    assert (listed["score"] >= stored["threshold"]).all()
    changed = dict(stored, model="0" * 16)
    (run.path / "alerts_0.json").write_text(json.dumps(changed))
    code, text = said(capsys, "alerts", run.path, "--client", 0)
    assert (code, "was chosen for another model" in text) == (2, True)
    for damage in (
        "[]",
        "{",
        json.dumps(dict(stored, threshold="nan")),
        json.dumps(dict(stored, rule={"budget": 1, "x": 2})),
    ):
        (run.path / "alerts_0.json").write_text(damage)
        code, text = said(capsys, "alerts", run.path, "--client", 0)
        assert (code, "is damaged" in text) == (2, True), damage


ODD = [None, "x", "1", True, -1, 1e400, [], {}, [[1]], [None], ["x", 2, 3], {"a": 1}]


def places(tree, path=()):
    """Paths of a tree of JSON."""
    yield path
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree[:2]) if isinstance(tree, list) else ()
    for key, value in entries:
        yield from places(value, (*path, key))


def loaded(folder, predictor):
    """The stored choice, or the message of its refusal."""
    try:
        return Choice.load(folder, predictor)
    except FedGraphError as error:
        return str(error)


def test_an_edited_choice_is_used_or_refused_in_one_message(run, capsys):
    """A text as threshold was compared with margins; a list of two as a score with an interval was unpacked."""
    code, text = said(capsys, "alerts", run.path, "--client", 0, "--budget", 5)
    assert code == 0, text
    predictor, file = load_predictor(run.path, 0), run.path / "alerts_0.json"
    stored = json.loads(file.read_text())
    refused = 0
    for path in [path for path in places(stored) if path]:
        for odd in ODD:
            edited = json.loads(json.dumps(stored))
            functools.reduce(lambda tree, key: tree[key], path[:-1], edited)[path[-1]] = odd
            file.write_text(json.dumps(edited))
            choice = loaded(run.path, predictor)
            if isinstance(choice, str):
                assert choice.startswith(str(file)), (path, odd)
                refused += 1
                continue
            alerts_command._print(choice)
            assert choice.calibration.apply(np.array([0.0])).dtype == np.float64
            right_of_100(choice)
    assert refused > 300
    file.write_text("[" * 100_000)
    with pytest.raises(FedGraphError, match="is damaged"):
        Choice.load(run.path, predictor)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--budget", "5"], "a threshold belongs to a party"),
        (["--client", "0", "--cost", "5"], "--cost must be two numbers"),
        (["--client", "0", "--budget", "5", "--precision", "0.5"], "need one rule"),
        (["--client", "0", "--budget", "0"], "need one rule"),
        (["--client", "0", "--out", "a.txt"], "a.txt has an unknown suffix: expected .csv or .parquet"),
        (["--client", "0", "--page", "a.txt"], "a.txt has an unknown suffix: expected .html"),
        (["--client", "0", "--precision", "1"], "no threshold reaches a precision of 1"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(words, says, run, capsys):
    code, text = said(capsys, "alerts", run.path, *words)
    assert (code, says in text) == (2, True), text


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_a_calibration_that_does_not_help_on_items_that_chose_nothing_is_not_kept(monkeypatch, shift):
    """Test items of another law make both calibrations worse; no probability is 0 or 1."""
    rng = np.random.default_rng(0)
    true = rng.normal(0, 1.5, 4000)
    val = torch.arange(4000) < 2000
    margin = np.where(val.numpy(), 3 * true, true) if shift else 3 * true
    y = (rng.random(4000) < expit(true)).astype(np.int64)
    task = SimpleNamespace(y=torch.from_numpy(y), masks={"val": val, "test": ~val}, time=torch.arange(4000) * 86_400)
    spec = SimpleNamespace(classes=["ok", "fraud"])
    predictor = SimpleNamespace(client=0, tensors={}, input_spec=spec, party_graph=lambda: None)
    monkeypatch.setattr(alerts, "margins", lambda *_: (margin, task))
    choice = alerts.choose(predictor, Rule(budget=1))
    assert choice.is_calibrated == (not shift)
    before, after = (choice.calibrated[when]["brier"] for when in ("before", "after"))
    assert (after < before) == choice.is_calibrated
    chance = choice.calibration.apply(np.array([-1e6, 1e6]))
    assert 0 < chance[0] < chance[1] < 1
    assert alerts.choose(predictor, Rule(budget=1), "temperature").is_calibrated, "the user insists"

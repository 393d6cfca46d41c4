"""A search on validation scores: what it tries, that it goes on, that it takes what is best."""

import math
import sys

import pytest

from fedgraph_flwr import cli
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.sweeps import search
from fedgraph_flwr.sweeps.search import RANDOM, Search
from tests.sweeps.conftest import SMALL, one, rows, sweep

pytest.importorskip("optuna")

KEYS = {"train.lr": "loguniform(1e-4,1e-1)", "train.local_steps": "int(1,8)", "model.hidden": "choice(4,16)"}


def bowl(overrides) -> float:
    """Best at lr=0.01 with five steps."""
    given = dict(word.split("=") for word in overrides)
    return -(math.log10(float(given["train.lr"]) / 0.01) ** 2) - (int(given["train.local_steps"]) - 5) ** 2 / 10


def finished(asked, score=bowl):
    """All trials, one after another."""
    done = {}
    while True:
        trials = asked.trials(lambda overrides: done.get(tuple(overrides)))
        if all(tuple(overrides) in done for overrides in trials.values()):
            return trials
        for overrides in trials.values():
            done.setdefault(tuple(overrides), score(overrides))


def test_trials_stay_in_their_ranges_and_come_closer():
    trials = finished(Search.read({"trials": 40, **KEYS}, "here"))
    given = [dict(word.split("=") for word in overrides) for overrides in trials.values()]
    assert all(1e-4 <= float(g["train.lr"]) <= 0.1 for g in given)
    assert all(1 <= int(g["train.local_steps"]) <= 8 for g in given)
    assert {g["model.hidden"] for g in given} == {"4", "16"}
    scores = [bowl(overrides) for overrides in trials.values()]
    assert max(scores) > -0.05
    assert sum(scores[RANDOM:]) / len(scores[RANDOM:]) > sum(scores[:RANDOM]) / RANDOM  # it learns


def test_the_first_trials_are_there_at_once_and_others_wait_for_those_before():
    asked = Search.read({"trials": 20, **KEYS}, "here")
    first = asked.trials(lambda overrides: None)
    assert len(first) == RANDOM
    lacking = list(first.values())[3]
    assert asked.trials(lambda overrides: None if overrides == lacking else bowl(overrides)) == first
    assert (
        len(asked.trials(lambda overrides: bowl(overrides) if overrides in list(first.values()) else None))
        == RANDOM + 1
    )


def test_what_is_tried_follows_from_what_was_told():
    """However often it is stopped; a failed trial teaches nothing and counts."""
    asked = Search.read({"trials": 14, **KEYS}, "here")
    whole = finished(asked)
    search.suggest.cache_clear()  # as in another process
    assert finished(asked) == whole
    assert list(finished(asked, lambda overrides: -bowl(overrides)))[:RANDOM] == list(whole)[:RANDOM]
    assert finished(asked, lambda overrides: -bowl(overrides)) != whole
    failing = finished(asked, lambda overrides: math.nan if "model.hidden=4" in overrides else bowl(overrides))
    assert len(failing) == 14


def test_a_search_is_run_goes_on_and_tells_what_it_took(place, ran):
    args = [*SMALL, "rounds=1", "strategy=fedprox", "seed=0..1", "train.lr=loguniform(1e-9,1)"]
    args = [word for word in args if word != "rounds=2"]
    more = ["strategy.mu=loguniform(1e-3,1)"]
    sweep("--search", "3", *args, *more)
    assert len(ran) == 2 * (1 + 3 + 3)
    text = one(place / "sweeps", ".md").read_text()
    made = rows(one(place / "sweeps", ".csv"))
    for method, name in (("Local", "Local, train.lr="), ("fedprox", "fedprox, train.lr=")):
        by: dict[str, list[dict]] = {}
        for row in made:
            if row["method"].startswith(name):
                by.setdefault(row["method"], []).append(row)
        assert len(by) == 3
        assert all(("strategy.mu" in trial) == (method == "fedprox") for trial in by)  # Local knows none
        best = max(by, key=lambda trial: sum(float(row["validation"]) for row in by[trial]))
        assert f"| csbm, {method} | 3 | {best.removeprefix(method + ', ')} | " in text
    ran.clear()
    path = one(place / "sweeps", ".csv")
    path.write_text("\n".join(path.read_text().splitlines()[:-3]) + "\n")
    sweep("--search", "3", *args, *more)
    assert len(ran) == 3
    sweep("--search", "4", *args, *more)  # one more of each, in the same file
    assert len(ran) == 3 + 2 * 2


@pytest.mark.parametrize(
    "body",
    [
        {"train.lr": "loguniform(0,1)"},
        {"train.lr": "uniform(1,0)"},
        {"train.lr": "int(0.5,3)"},
        {"train.lr": "choice(1)"},
        {"train.lr": "0.1"},
        {"trials": 0, "train.lr": "uniform(0,1)"},
        {"trials": 5},
        [1],
    ],
)
def test_searches_that_are_none(body):
    with pytest.raises(FedGraphError, match="here"):
        Search.read(body, "here")


def test_without_optuna_one_sentence_says_so(place, monkeypatch, capsys):
    search.suggest.cache_clear()
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert cli.main(["sweep", "--search", "2", *SMALL, "train.lr=loguniform(1e-4,1e-1)"]) == 2
    assert (
        capsys.readouterr().err
        == "error: a search needs Optuna: pip install optuna (or fedgraph-flwr[search]) [package]\n"
    )


@pytest.mark.parametrize(
    ("choices", "count"),
    [
        ("grid: {a: [train.lr=0.1], b: [train.lr=0.2], c: [train.lr=0.3]}", 3),
        ('search: {trials: 12, train.lr: "uniform(0,1)"}', 12),
    ],
)
def test_choices_are_compared_on_the_first_seeds_and_the_best_runs_on_all(toy, ran, choices, count):
    text = toy.read_text().replace("seeds: [0, 1]", f"seeds: 0..4\ntuned_on: 2\nbaselines: false\n{choices}")
    toy.write_text(text.replace("  Local: [strategy=local]\n  Majority: []\n", ""))
    sweep(toy, "--jobs", 0)
    assert len(ran) == 2 * (2 * count + 3)
    stored_rows = rows(toy.with_suffix(".csv"))
    for setting in {row["setting"] for row in stored_rows}:
        by: dict[str, dict[str, float]] = {}
        for row in stored_rows:
            if row["setting"] == setting:
                by.setdefault(row["method"], {})[row["seed"]] = float(row["validation"])
        best = max(by, key=lambda name: by[name]["0"] + by[name]["1"])
        assert {name: sorted(seeds) for name, seeds in by.items()} == {
            name: list("01234" if name == best else "01") for name in by
        }
    assert "validation nodes of 2 seeds" in toy.with_suffix(".md").read_text()
    sweep(toy, "--jobs", 0)
    assert len(ran) == 2 * (2 * count + 3)  # nothing is left to do


def test_a_number_of_tuning_seeds_beyond_the_seeds_is_refused(toy, capsys):
    toy.write_text(toy.read_text() + "tuned_on: 3\n")
    sweep(toy, code=2)
    assert "line 16: tuned_on=3 must be at most the number of seeds, 2" in capsys.readouterr().err

"""Words with several values: which runs they mean, and what they are called."""

import pytest

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.sweeps import results_index
from fedgraph_flwr.sweeps.overrides import parse_sweep
from fedgraph_flwr.sweeps.values import expand
from tests.sweeps.conftest import SMALL, one, rows, sweep


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("fedavg,fedprox", ["fedavg", "fedprox"]),
        ("0..4", ["0", "1", "2", "3", "4"]),
        ("7,0..2, -1..0", ["7", "0", "1", "2", "-1", "0"]),
        ("[a,b]", ["[a,b]"]),
        ("[a,[b,c]],{d: e,f: g}", ["[a,[b,c]]", "{d: e,f: g}"]),
        ("'a,b',\"c,'d\"", ["'a,b'", '"c,\'d"']),
        ("loguniform(1e-4,1e-1)", ["loguniform(1e-4,1e-1)"]),
        ("../data", ["../data"]),
        ("1e-3..1e-1", ["1e-3..1e-1"]),
        ("", [""]),
    ],
)
def test_values_of_a_word(text, values):
    assert expand(text) == values


def test_a_key_that_one_of_the_crossed_choices_reads_is_left_out_of_the_others(place):
    runs = runs_of(parse_sweep(["partition=louvain,dirichlet", "partition.alpha=0.5", "split.folds=4", "rounds=1"]))
    assert runs["louvain", "fedavg", 0] == {
        "partition=louvain",
        "split.folds=4",
        "rounds=1",
        "seed=0",
    }  # no run reads folds
    assert "partition.alpha=0.5" in runs["dirichlet", "fedavg", 0]
    tuned = parse_sweep(
        ["partition=louvain,metis", "partition.resolution=1,2", "tune=partition.resolution"], baselines=False
    )
    assert {len(run) for at, run in runs_of(tuned).items() if at[0] == "metis"} == {2}
    plain = parse_sweep(["partition=louvain,metis", "train.lr=0.1,0.2"])
    assert runs_of(plain)
    assert "_read_somewhere" not in vars(plain), "no key needs it"


@pytest.mark.parametrize("text", ["[a,b", "a]b[", "'a,b", "a,,b", "a,", "4..0", "0..99999"])
def test_values_that_are_none(text):
    with pytest.raises(FedGraphError):
        expand(text)


def runs_of(asked):
    return {(c.setting, c.method, c.seed): set(c.overrides) for c in asked.cells({})}


def test_methods_are_columns_and_other_keys_rows(place):
    overrides = ["strategy=fedavg,fedprox", "train.lr=0.01,0.003", "seed=0..1", "rounds=5", "strategy.mu=1"]
    asked = parse_sweep(overrides)
    runs = runs_of(asked)
    assert len(runs) == 2 * 4 * 2
    assert runs["0.003", "fedprox", 1] == {"rounds=5", "train.lr=0.003", "strategy=fedprox", "strategy.mu=1", "seed=1"}
    assert runs["0.01", "fedavg", 0] == {"rounds=5", "train.lr=0.01", "strategy=fedavg", "seed=0"}  # it has no mu
    assert runs["0.01", "Local", 0] == {"rounds=5", "train.lr=0.01", "strategy=local", "seed=0"}
    assert list(asked.methods) == ["Majority", "Local", "fedavg", "fedprox"]
    assert (asked.figure, asked.reference) == ("train.lr", "Local")
    assert runs_of(parse_sweep(overrides[::-1])) == runs
    assert parse_sweep(overrides[::-1]).results == asked.results  # the order of arguments does not change the file
    assert parse_sweep([*overrides[:2], "seed=0..9", *overrides[3:]]).results == asked.results  # as with more seeds
    assert parse_sweep([*overrides[:3], "rounds=6"]).results != asked.results


def test_values_of_a_methods_key_are_columns_of_their_own():
    asked = parse_sweep(["strategy=fedavg,fedprox", "strategy.mu=0.1,1", "strategy.fraction=0.5"], baselines=False)
    assert list(asked.methods) == ["fedavg", "fedprox, mu=0.1", "fedprox, mu=1"]
    assert "strategy.fraction=0.5" in asked.methods["fedavg"]
    assert asked.methods["fedprox, mu=1"] == ["strategy=fedprox", "strategy.fraction=0.5", "strategy.mu=1"]


def test_several_keys_name_their_rows():
    asked = parse_sweep(["dataset=cora,citeseer", "num_clients=3,5"])
    assert list(asked.settings) == [f"dataset={d}, num_clients={n}" for d in ("cora", "citeseer") for n in (3, 5)]
    assert list(asked.methods) == ["Majority", "Local", "fedavg"]
    assert list(parse_sweep(["dataset=cora,citeseer"]).settings) == ["cora", "citeseer"]
    assert list(parse_sweep(["strategy=fedprox"]).settings) == ["demo"]
    assert parse_sweep(["strategy=fedavg", "strategy.shared=[a,b]"]).methods["fedavg"][-1] == "strategy.shared=[a,b]"


def test_what_is_chosen_stands_behind_a_cell():
    asked = parse_sweep(["strategy=fedavg,fedprox", "train.lr=0.1,0.2", "strategy.mu=0,1", "tune=train.lr,strategy.mu"])
    assert list(asked.settings) == ["demo"]
    assert len(asked.choices("demo", "fedprox", {})) == 4
    assert [set(overrides) for overrides in asked.choices("demo", "fedavg", {}).values()] == [
        {"strategy=fedavg", "train.lr=0.1"},
        {"strategy=fedavg", "train.lr=0.2"},
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strategy"], "'strategy' is neither key=value nor a YAML file"),
        (["rounds=1,2", "rounds=3"], "rounds is given twice, once with several values"),
        (["rounds=1", "seed=0", "rounds=2,3"], "rounds is given twice, once with several values"),
        (["train.lr=1,1"], "contains a value twice"),
        (["tune=train.lr", "train.lr=1"], "tune=train.lr needs several values"),
        (["train.lr=loguniform(1e-4,1e-1)"], "a search needs a number of trials and a key with a distribution"),
        (["strategy.mu=1"], "which no method defines"),
        (["strategy=fedavgg"], "did you mean 'fedavg'"),
        (["seed=a"], "seeds must be distinct integers"),
    ],
)
def test_wrong_words(overrides, message):
    with pytest.raises(FedGraphError, match=message):
        parse_sweep(overrides)


def test_words_of_a_stored_row_run_as_they_stand(caplog):
    """A key that stands twice has its last value, as in a run."""
    spec = parse_sweep(["rounds=60", "strategy=boosting", "rounds=1", "seed=0"])
    assert spec.common == ["rounds=1"]
    assert "rounds=1 replaces rounds=60; to run both, pass rounds=60,1" in caplog.text


def test_keys_of_a_network_that_a_method_brings():
    spec = parse_sweep(["strategy=fedlit", "model.types=8", "rounds=1"])
    assert spec.common == ["model.types=8", "rounds=1"]
    assert list(spec.settings) == ["demo"]


def test_words_run_from_any_folder_beside_nothing(place, ran):
    args = [*SMALL, "strategy=fedavg", "train.local_steps=1,2", "seed=0..1"]
    sweep(*args)
    assert len(ran) == 2 * 3 * 2
    text = one(place / "sweeps", ".md").read_text()
    assert "| train.local_steps | Majority | Local | FedAvg |" in text
    assert "95 % interval of the difference to Local, paired by seed (t, n = 2 seeds):" in text
    assert len(rows(one(place / "sweeps", ".csv"))) == 12
    ran.clear()
    sweep(
        *[*SMALL, "strategy=fedavg", "train.local_steps=2,1,3", "seed=0..1"]
    )  # another table with some of the same runs
    assert len(ran) == 3 * 2
    sweep(*args, "--out", "elsewhere", "--no-baselines")
    assert one(place / "elsewhere", ".png").read_bytes().startswith(b"\x89PNG")


def test_a_configuration_of_ones_own(place, ran):
    (place / "mine.yaml").write_text("strategy: {name: fedprox, mu: 0.5}\nrounds: 1\n")
    args = [word for word in SMALL if not word.startswith("rounds")]
    sweep("config=mine.yaml", *args, "--no-baselines")
    [row] = rows(one(place / "sweeps", ".csv"))
    assert row["method"] == "fedprox"
    (place / "mine.yaml").write_text("strategy: {name: fedprox, mu: 0.5}\nrounds: 2\n")

    results_index._digest.cache_clear()  # as in another process
    sweep("config=mine.yaml", *args, "--no-baselines")
    assert len(ran) == 2  # another content is another run

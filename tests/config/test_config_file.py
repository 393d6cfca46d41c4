"""A configuration as a person writes it: the same as on a command line, and its mistakes by file and line."""

import pytest

from fedgraph_flwr import cli
from fedgraph_flwr.config import compose, from_run_config, to_yaml
from fedgraph_flwr.errors import FedGraphError
from tests.support import bomb


@pytest.fixture
def written(tmp_path):
    """``written(text, name)`` writes a YAML and returns its path."""

    def write(text, name="mine.yaml"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


SAME = {
    "strategy: fedspa": "strategy=fedspa",
    "strategy: {name: fedspa, folds: 2}": "strategy=fedspa strategy.folds=2",
    "strategy: {folds: 2, name: fedspa, params: {}}": "strategy=fedspa strategy.folds=2",
    "strategy:\n  name: fedprox\n  params: {mu: 1}": "strategy=fedprox strategy.mu=1",
    "strategy: {fraction: 0.5}": "strategy.fraction=0.5",
    "dataset: {name: cora, undirected: true}\npartition: metis\nmodel: {name: gat, heads: 4}": (
        "dataset=cora dataset.undirected=true partition=metis model=gat model.heads=4"
    ),
    "protocol: fedomd\nstrategy: fedspa\ndataset: cora\nnum_clients: 5": (
        "protocol=fedomd strategy=fedspa dataset=cora num_clients=5"
    ),
    "train: {lr: 1e-3, weight_decay: 5e-4}\nrounds: 7\nsplit:\n": "train.lr=1e-3 train.weight_decay=5e-4 rounds=7",
    "train.lr: 0.5": "train.lr=0.5",
    "dataset: {name: csbm, nodes_per_client: [20, 40]}": "dataset=csbm dataset.nodes_per_client=[20,40]",
    "strategy: {name: fedavg, shared: [a, b]}\nattack: link_inference": (
        "strategy=fedavg strategy.shared=[a,b] attack=link_inference"
    ),
    "": "",
}


@pytest.mark.parametrize("text", SAME)
def test_a_file_is_the_words_of_a_command_line(written, text):
    assert compose([], written(text or "{}")) == compose(SAME[text].split())


def test_words_go_over_the_file(written):
    path = written("strategy: {name: fedprox, mu: 1, fraction: 0.5}\ntrain: {lr: 0.5}")
    cfg = compose(["train.lr=0.1"], path)
    assert (cfg.strategy.prox.mu, cfg.train.lr) == (1, 0.1)
    other = compose(["strategy=fedavg"], path)
    assert (other.strategy.name, other.strategy.params, other.strategy.fraction) == ("fedavg", {}, 0.5)
    assert compose(["strategy=fedprox", "strategy.mu=2"], path).strategy.prox.mu == 2


def test_the_choice_of_a_word_is_no_label():
    """``strategy.name=fedspa`` on a command line chooses too, instead of giving FedAvg another name."""
    assert compose(["strategy.name=fedspa"]) == compose(["strategy=fedspa"])
    with pytest.raises(FedGraphError, match=r"strategy=fedavg and strategy\.name=fedspa select different names"):
        compose(["strategy=fedavg", "strategy.name=fedspa"])


def test_files_extend_others(written, tmp_path):
    assert compose([], written("# nothing yet\n")) == compose([])
    (tmp_path / "sub").mkdir()
    written("strategy: {name: fedprox, mu: 1}\nrounds: 5\nseed: 3", "sub/base.yaml")
    written("rounds: 6\ntrain: {lr: 0.5}", "sub/more.yaml")
    path = written("extends: [sub/base.yaml, sub/more.yaml]\ntrain: {local_steps: 2}")
    assert compose([], path) == compose(
        ["strategy=fedprox", "strategy.mu=1", "rounds=6", "seed=3", "train.lr=0.5", "train.local_steps=2"]
    )
    path = written("extends: sub/base.yaml\nstrategy: fedavg")
    assert compose([], path) == compose(["strategy=fedavg", "rounds=5", "seed=3"])
    written("extends: mine.yaml", "loop.yaml")
    with pytest.raises(FedGraphError, match=r"extends: mine\.yaml is circular"):
        compose([], written("extends: loop.yaml"))
    with pytest.raises(
        FedGraphError, match=r"mine\.yaml, line 2: extends: none\.yaml, but .*none\.yaml does not exist"
    ):
        compose([], written("rounds: 1\nextends: none.yaml"))


def test_a_resolved_configuration_is_repeated_and_extended(written):
    cfg = compose(["protocol=fedspa", "strategy=fedspa", "dataset=cora", "seed=4", "train.lr=0.3"])
    run = written(to_yaml(cfg), "config.yaml")
    assert compose([], run) == cfg
    mine = written("extends: config.yaml\nseed: 5")
    assert compose([], mine) == compose(["seed=5"], run)
    assert compose(["seed=6"], mine).seed == 6
    other = compose([], written("extends: config.yaml\nstrategy: {name: fedprox, mu: 2}"))
    assert (other.strategy.name, other.strategy.prox.mu, other.train.lr) == ("fedprox", 2, 0.3)


def test_flowers_number_of_clients_goes_below_the_file(written):
    run_config = {"num-clients": 2, "overrides": "rounds=3"}
    assert from_run_config(run_config | {"config": str(written("seed: 1"))}).num_clients == 2
    assert from_run_config(run_config | {"config": str(written("num_clients: 4"))}).num_clients == 4
    resolved = written(to_yaml(compose(["num_clients=7"])))
    assert from_run_config(run_config | {"config": str(resolved)}).num_clients == 7


WRONG = {
    "rounds: 2\ntrain:\n  lr: 0.1\n  lrr: 0.2": "key 'train.lrr' is unknown (mine.yaml, line 4); did you mean 'train.lr'",
    "seed: 1\nruonds: 3": "key 'ruonds' is unknown (mine.yaml, line 2); did you mean 'rounds'",
    "model:\n  name: gat\n  haeds: 2": "model key 'haeds' is unknown (mine.yaml, line 3); did you mean 'heads'",
    "strategy:\n  name: fedspa\n  flods: 2": "strategy fedspa: key 'flods' is unknown (mine.yaml, line 3); did you mean 'folds'",
    "strategy:\n  name: fedprox\n  params:\n    muu: 2": "key 'muu' is unknown (mine.yaml, line 4); did you mean 'mu'",
    "strategy: fedspaa": "strategy 'fedspaa' is unknown",
    "strategy: 3": "strategy must be a name or keys with values, got 3 (mine.yaml, line 1)",
    "\nrounds: ten": "rounds=ten (mine.yaml, line 2): expected an integer",
    "train: 3": "train must contain keys with values, such as train.optimizer, got 3 (mine.yaml, line 1)",
    "rounds: ${nowhere}": "mine.yaml: Interpolation key 'nowhere' not found",
    "[1, 2]": "must contain keys with values",
}


@pytest.mark.parametrize("text", WRONG)
def test_mistakes_are_named_by_file_and_line(written, text, monkeypatch):
    path = written(text)
    monkeypatch.chdir(path.parent)
    with pytest.raises(FedGraphError) as caught:
        compose([], path.name)
    assert WRONG[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_word_that_is_wrong_is_not_blamed_on_the_file(written):
    with pytest.raises(FedGraphError, match=r"rounds=ten \(override\)"):
        compose(["rounds=ten"], written("rounds: 3"))


def test_run_takes_it(written, capsys):
    path = written("strategy: {name: fedprox, mu: 0.25}")
    assert cli.main(["run", f"config={path}", "--dry-run", "seed=9"]) == 0
    printed = capsys.readouterr().out
    assert "name: fedprox" in printed
    assert "objective:\n  - prox\n" in printed  # the method, not only its label
    assert "mu: 0.25" in printed


def test_aliases_that_expand_without_end_are_refused(written):
    with pytest.raises(FedGraphError, match=r"mine\.yaml, line 1, column 1: invalid YAML .*expansion exceeds"):
        compose([], written(bomb()))

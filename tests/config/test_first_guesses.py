"""Words that users of other libraries try first: each has one right hint, in the language of the caller."""

import re

import pytest

import fedgraph_flwr as fg
from fedgraph_flwr.cli import main
from fedgraph_flwr.config.composition import compose, configuration
from fedgraph_flwr.config.short_names import lengthened
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method

HINTS = {
    "lr=0.1": "train.lr",
    "learning_rate=0.1": "train.lr",
    "epochs=5": "train.local_steps, steps per round, or with train.sampler, train.local_epochs",
    "hidden=64": "model.hidden",
    "num_layers=2": "model.layers",
    "dropout=0.5": "model.dropout",
    "model=gat heads=4": "model.heads, with model=gat",
    "optimizer=sgd": "train.optimizer",
    "weight_decay=0.001": "train.weight_decay",
    "momentum=0.9": "train.momentum",
    "batch_size=32": "train.batch_size, with train.sampler=neighbors or saint",
    "sampler=neighbors": "train.sampler",
    "loss=focal": "train.loss",
    "metric=auc": "evaluation.metric",
    "patience=5": "evaluation.patience",
    "num_rounds=5": "rounds",
    "clients=5": "num_clients",
    "fraction_fit=0.5": "strategy.fraction",
    "min_clients=2": "strategy.min_clients",
    "timeout=30": "strategy.timeout",
    "method=fedprox": "strategy",
    "data=cora": "dataset",
    "network=gat": "model",
    "aggregator=krum": "strategy.aggregator",
    "dp=distributed": "privacy.dp",
    "epsilon=1": "privacy.epsilon_budget, the most that may be spent",
    "noise_multiplier=1": "privacy.noise_multiplier",
    "secagg=true": "privacy.secagg",
    "workers=4": "ray.actors",
    "wandb=true": "tracking=wandb",
    "gpu=0": "device=cuda",
    "random_state=1": "seed",
    "strategy=fedprox mu=0.1": "strategy.prox.mu",
    "strategy=fedavgm beta=0.9": "strategy.momentum.beta",
    "beta=0.9": "strategy.momentum.beta (strategy=fedavgm)",
    "strategy=moon temperature=1": "strategy.moon.temperature",
    "test_size=0.2": "split.test",
    "train_ratio=0.6": "split.train",
    "max_epochs=3": "rounds",
    "trainer.max_epochs=3": "rounds",
    "tags=[a]": "tracking_group",
    "hydra.run.dir=x": "out",
    "run_name=first": "out",
    "checkpoint=5": "checkpoint_every",
    "eval_every=5": "evaluation.every",
    "num_hops=2": "model.layers",
    "precision=16": "dtype",
    "num_nodes=100": "dataset.nodes, with dataset=csbm",
    "group=a": "tracking_group",
    "project=mine": "the variable WANDB_PROJECT, with tracking=wandb",
    "verbose=true": "the option --verbose, in Python progress=True",
    "hidden_channels=32": "model.hidden",
    "train.sampler=neighbors num_neighbors=[10,5]": "train.fanout",
    "max_iter=50": "rounds",
    "n_splits=5": "split.folds with split.kind=kfold",
    "stratify=true": "split.stratify",
    "name=first": "out",
}

TRANSLATED = {
    "wandb=true": "tracking=[wandb]",
    "hydra.run.dir=x": "out=x",
    "hydra.sweep.dir=x": "out=x",
    "model=GraphSAGE": "model=sage",
    "optimizer=Adam": "train.optimizer=adam",
    "scoring=roc_auc": "evaluation.metric=auc",
    "class_weight=balanced": "train.loss=weighted",
    "optimizer.lr=0.1": "train.lr=0.1",
    "model.hidden_dim=64": "model.hidden=64",
}
"""Words whose section or value has another name here, too."""

REFUSED = {
    "epochs=5",
    "clients=5",
    "epsilon=1",
    "gpu=0",
    "beta=0.9",
    "trainer.max_epochs=3",
    "num_nodes=100",
    "project=mine",
    "verbose=true",
    "n_splits=5",
    "name=first",
    "tags=[a]",
}
TAKEN = [words for words in HINTS if words not in REFUSED | TRANSLATED.keys()]

SHARED = {
    "clients=5": "could be evaluation.clients or num_clients",
    "task=links temperature=1 strategy=moon": "could be strategy.moon.temperature or task.temperature",
    "momentum=0.9 strategy=fedavgm": "strategy.momentum.beta or strategy.momentum.server_lr or train.momentum",
    "hops=2 strategy=fedgcn": "could be model.layers or strategy.hops",
    "lr=0.1 train.lr=0.2": "lr and train.lr are both train.lr",
    "lr=0.1 learning_rate=0.2": "lr and learning_rate are both train.lr",
}
"""Short names that several keys have, or that give a key twice."""

WORKS = {
    "run +train.lr=0.1 --dry-run": "lr: 0.1",
    "run ++rounds=7 --dry-run": "rounds: 7",
    "run dataset=Cora --dry-run": "name: cora",
    "run model=GCN strategy=FedAvg --dry-run": "name: fedavg",
    "run --cfg job": "rounds: 100",
    "run -m strategy=fedavg,fedprox --dry-run": "to run   demo/fedprox/0",
    "run --multirun seed=0,1 --dry-run": "6 runs",
    "run dataset=PubMed --dry-run": "name: pubmed",
    "list": "no run in runs",
    "config train": "train.lr",
}
"""Words of Hydra, PyG and W&B that do what they say."""

INSTEAD = {
    "evaluate runs/a": "fedgraph-flwr run evaluate=runs/mine",
    "compare runs/a runs/b": "fedgraph-flwr report runs/a runs/b --page both.html",
    "download cora": "fedgraph-flwr run dataset=cora",
    "run --config mine.yaml": "config=mine.yaml",
}
"""Words that another command says in its own way."""


@pytest.mark.parametrize(("words", "name"), HINTS.items())
def test_one_name_and_no_list_after_it(words, name):
    with pytest.raises(FedGraphError) as refusal:
        check_method(compose(words.split()))
    assert str(refusal.value).endswith(f"; its name here is {name}")


@pytest.mark.parametrize("words", WORKS)
def test_words_of_other_tools_work(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert main(words.split()) == 0
    assert WORKS[words] in capsys.readouterr().out


@pytest.mark.parametrize("words", INSTEAD)
def test_another_command_is_named(words, capsys):
    assert main(words.split()) == 2
    assert INSTEAD[words] in capsys.readouterr().err


def test_attributes_of_other_tools_name_what_a_run_has(tmp_path):
    for name, instead in (
        ("predict_proba", "run.predict(...).probabilities"),
        ("state_dict", "run.model().state_dict()"),
    ):
        with pytest.raises(AttributeError, match=re.escape(f"a Run has no '{name}': call {instead}")):
            getattr(fg.Run(tmp_path), name)
    with pytest.raises(AttributeError, match=r"a Run has no 'xyzzy'$"):
        fg.Run(tmp_path).xyzzy  # noqa: B018 (reads it)


def test_there_are_sixty():
    assert len(HINTS | TRANSLATED) + len(WORKS) + len(INSTEAD) >= 60


def test_several_keys_of_one_name_are_all_named():
    with pytest.raises(FedGraphError) as refusal:
        compose(["mu=0.1"])
    assert "strategy.prox.mu (strategy=fedprox)" in str(refusal.value)
    assert "strategy.moon.mu (strategy=moon)" in str(refusal.value)


def test_an_unknown_word_leads_to_the_list():
    with pytest.raises(FedGraphError, match=r"key 'xyzzy' is unknown \(override\) \(`fedgraph-flwr keys` lists all\)$"):
        compose(["xyzzy=1"])


@pytest.mark.parametrize("words", TAKEN)
def test_a_short_name_of_one_key_is_taken_and_said(words, caplog):
    name, (*chosen, word) = HINTS[words].partition(",")[0], words.split()
    short, _, value = word.partition("=")
    caplog.set_level("INFO", "fedgraph_flwr")
    assert lengthened(words.split(), {}) == ([*chosen, f"{name}={value}"], {})
    assert f"{short} is {name}" in caplog.text
    assert lengthened(chosen, {short: value}) == (chosen, {name: value})


def test_most_guesses_run_at_once():
    assert len(TAKEN) + len(TRANSLATED) + len(WORKS) >= 62


@pytest.mark.parametrize(("words", "here"), TRANSLATED.items())
def test_sections_and_values_of_other_tools_are_translated_and_said(words, here, caplog):
    caplog.set_level("INFO", "fedgraph_flwr")
    assert lengthened([words], {}) == ([here], {})
    key, _, value = words.partition("=")
    name, _, other = here.partition("=")
    assert lengthened([], {key: value}) == ([], {name: [other[1:-1]] if other[:1] == "[" else other})
    assert f"{key} is {name}" in caplog.text or f"{words} is {here.replace('[', '').replace(']', '')}" in caplog.text
    compose([here])


@pytest.mark.parametrize(
    "word", ["wandb=false", "partition=noniid", "engine=simulation", "model=Net:GCN", "strategy.lr=1", "model.lr=1"]
)
def test_what_is_only_alike_is_not_translated(word):
    assert lengthened([word], {}) == ([word], {})


def test_every_value_of_a_sweep_is_translated():
    assert lengthened(["model=GraphSAGE,gcn,x:Y"], {}) == (["model=sage,gcn,x:Y"], {})
    assert lengthened([], {"wandb": True, "seed": [1, 2]}) == ([], {"tracking": ["wandb"], "seed": [1, 2]})


@pytest.mark.parametrize(("words", "names"), SHARED.items())
def test_a_name_of_two_keys_is_refused_with_both(words, names):
    with pytest.raises(FedGraphError) as refusal:
        lengthened(words.split(), {})
    assert str(refusal.value).endswith(f"{names}: pass one of them")


def test_files_take_full_names_only(tmp_path):
    (tmp_path / "mine.yaml").write_text("lr: 0.1\n")
    with pytest.raises(FedGraphError, match=r"key 'lr' is unknown"):
        configuration([f"config={tmp_path / 'mine.yaml'}"])


def test_stored_runs_have_full_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = {"dataset": "csbm", "dataset.nodes": 90, "num_clients": 2, "progress": False}
    run = fg.run("num_rounds=2", lr=0.3, **tiny)  # type: ignore[call-arg]
    assert (run.config.train.lr, run.config.rounds) == (0.3, 2)
    sweep = fg.sweep("lr=0.3,0.1", tune="lr", num_rounds=1, method="fedavg", baselines=False, **tiny)
    assert sweep.rows["words"].str.contains(r"(?<!\S)train\.lr=0\.[13]").all()
    assert not sweep.rows["words"].str.contains(r"(?<!\S)(?:lr|method|num_rounds)=").any()
    assert main(["run", "dataset=csbm", "lr=0.25", "--dry-run"]) == 0


def test_hints_in_python_are_keywords():
    with pytest.raises(FedGraphError, match=r"key 'lr' is unknown \(override\); its name here is train__lr(?:\n|$)"):
        configuration((), {"dataset": "demo", "lr": 0.1})
    assert configuration((), {"train__lr": 0.3, "strategy": "fedprox", "strategy__mu": 0.5}).train.lr == 0.3

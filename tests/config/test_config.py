"""Composition of the configuration: precedence, sources, and the sentences that wrong input gets."""

import dataclasses
import itertools
import math
import operator
import re
from dataclasses import replace

import pytest

from fedgraph_flwr.config import (
    RunConfig,
    TrainConfig,
    choice,
    compose,
    configuration,
    from_run_config,
    group_names,
    number,
    to_json,
    to_yaml,
    typed,
)
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method, startup_notes
from fedgraph_flwr.store.checkpoint import DATA
from tests.conftest import client_graph


def test_later_layers_win():
    assert compose().train.lr == 0.01
    assert compose(["train.lr=0.2"]).train.lr == 0.2
    paper = compose(["protocol=fedomd", "dataset=cora"])
    assert (paper.rounds, paper.evaluation.patience, paper.split.train) == (1000, 200, 0.01)
    assert compose(["protocol=fedomd", "dataset=cora", "rounds=7"]).rounds == 7


def test_a_protocol_keeps_its_word_on_every_dataset_and_strategy():
    assert compose(["protocol=fedomd", "dataset=computers"]).dataset.largest_component
    assert not compose(["protocol=fedomd", "dataset=cora"]).dataset.largest_component
    other = compose(["protocol=fedomd", "strategy=fedprox", "dataset=cora"])
    assert other.strategy.name == "fedprox"
    assert other.rounds == 1000
    assert other.model.name == "gcn"


def test_a_strategy_brings_its_model_unless_the_user_says_otherwise():
    assert compose(["strategy=fedomd"]).model.name == "fedomd"
    assert compose(["strategy=fedomd", "model=mlp"]).model.name == "mlp"


@pytest.mark.parametrize("strategy", group_names("strategy"))
def test_every_strategy_composes_and_knows_its_keys(strategy):
    check_method(compose([f"strategy={strategy}"]))


def wrong_composition(protocol, strategy, default):
    """What is wrong with a method under a protocol; empty: nothing."""
    try:
        cfg = compose([f"protocol={protocol}", f"strategy={strategy}", "num_clients=5"])
    except FedGraphError as error:
        return f"does not compose: {error}"
    if (cfg.protocol, cfg.strategy.name, cfg.num_clients) != (protocol, strategy, 5):
        return f"composes as {cfg.protocol}, {cfg.strategy.name}, {cfg.num_clients}"
    try:
        check_method(cfg)
    except FedGraphError as error:
        if (cfg.model.name, cfg.task.name) == (default.model.name, default.task.name):
            return f"is refused with its own network and task: {error}"
        unserved = rf"strategy={strategy} .*(model={cfg.model.name}|task={cfg.task.name})\b"
        return "" if re.match(unserved, str(error)) else f"is refused without its network or task: {error}"
    return ""


@pytest.mark.slow
def test_any_method_under_any_protocol():
    """Each composes; one whose network or task the method does not serve is refused by an error that names both."""
    defaults = {strategy: compose([f"strategy={strategy}"]) for strategy in group_names("strategy")}
    pairs = itertools.product(group_names("protocol"), defaults)
    wrong = {pair: problem for pair in pairs if (problem := wrong_composition(*pair, defaults[pair[1]]))}
    assert wrong == {}


@pytest.mark.parametrize("group", ["dataset", "partition", "model"])
def test_every_choice_of_a_group_composes(group):
    for name in group_names(group):
        compose([f"{group}={name}"])


def test_accounts_with_columns_of_their_own_records_get_a_network_that_keeps_them_apart(tmp_path):
    for folder, columns in ("with", {"recipe": {"name": "payments"}, "nodes": 1}), ("without", {}):
        replace(client_graph(0, 12), own_columns=columns).save(tmp_path / folder / "client_0000.safetensors")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "client_0000.safetensors").write_bytes(b"no file of tensors")
    chosen = {
        "dataset=payments dataset.recipe=payments": "sage",
        f"graph={tmp_path}/with": "sage",
        f"dataset=file dataset.path={tmp_path}/with/client_0000.safetensors": "sage",
        f"graph={tmp_path}/with task=edges": "gine",
        f"graph={tmp_path}/with strategy=fedgcn": "gcn",
        f"graph={tmp_path}/with model=gcn": "gcn",
        f"graph={tmp_path}/without": "gcn",
        f"graph={tmp_path}/broken": "gcn",
        "dataset=payments dataset.recipe=null": "gcn",
        "dataset=cora": "gcn",
    }
    assert {words: compose(words.split()).model.name for words in chosen} == chosen


def test_a_resolved_configuration_repeats_itself(tmp_path):
    cfg = compose(["protocol=fedspa", "strategy=fedspa", "dataset=cora", "seed=4", "train.lr=0.3"])
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(cfg))
    assert compose([], path) == cfg
    assert compose([], to_json(cfg)) == cfg
    assert compose(["seed=5"], path).seed == 5
    assert from_run_config({"overrides": "strategy=fedprox strategy.mu=0.5", "config": ""}).strategy.prox.mu == 0.5


def test_switching_the_strategy_of_a_resolved_configuration_drops_the_old_keys(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(compose(["strategy=fedprox"])))
    assert compose(["strategy=fedavg"], path).strategy.params == {}


WRONG = {
    "model.hidden=2000000000": "model.hidden must be in [1, 65536], got 2000000000",
    "strategy=fedprx": "did you mean 'fedprox'",
    "dataset=coar": "did you mean 'cora'",
    "partition=metiss": "did you mean 'metis'",
    "protocol=fedomt": "did you mean 'fedomd'",
    "model=gcnn": "did you mean 'gcn'",
    "rounds=ten": "rounds=ten (override): expected an integer, 1 <= value <= 2147483647; the default is 100",
    "rounds=1.5": "rounds=1.5 (override): expected an integer",
    "train.lr=abc": "train.lr=abc (override): expected a number, 0 < value; the default is 0.01",
    "strategy.min_clients=many": "strategy.min_clients=many (override): expected an integer, 1 <= value",
    "evaluation.full=maybe": "evaluation.full=maybe (override): expected true or false; the default is False",
    "graph=": "graph=None (override): expected a string",
    "rounds=0": "rounds must be >= 1, got 0",
    "nu=1": "key 'nu' is unknown",
    "train.lrr=1": "train.lrr",
    "train.optimizer=adan": "did you mean 'adam'",
    "train.lr=-1": "train.lr must be > 0 and finite, got -1",
    "train.lr=inf": "train.lr must be > 0 and finite, got inf",
    "model.dropout=1.5": "model.dropout must be in [0, 1), got 1.5",
    "model.foo=3": "override model.foo",
    "split.train=0.9": "split.train must be at most 1 together with split.val and split.test, got 0.9",
    "strategy.fraction=0": "strategy.fraction must be in (0, 1], got 0",
    "evaluation.metric=f1": "evaluation.metric 'f1' is unknown",
    "word": "not of the form key=value",
    "seed.deep=1": "seed",
    "seed=-1": "seed must be in [0, 9223372036854775807], got -1",
    "num_clients=10000000": "num_clients must be in [1, 1000000], got 10000000",
    "threads=100000": "threads must be in [1, 256], got 100000",
    "client_gpus=-1": "client_gpus must be >= 0, got -1",
    "rounds=99999999999999999999": "rounds must be <= 2147483647, got 99999999999999999999",
    "strategy.timeout=nan": "strategy.timeout must be > 0 and finite, got nan",
    "strategy.params=-1": "strategy.params must contain keys with values, got -1",
    "train.momentum=nan": "train.momentum must be >= 0, got nan",
    "partition.alpha=0.5": "partition.alpha=0.5 has no effect with partition=planted: set partition=dirichlet or relations",
    "split.folds=7": "split.folds=7 has no effect with split.kind=ratio: set split.kind=kfold",
    "partition=metis partition.delta=3": "partition.delta=3 has no effect with partition.merge=none: set ",
    "partition.min_size=3": "partition.merge=none and partition=planted: set partition.merge=random_merge or ",
    "split.step=1d": "split.step=1d has no effect with task=nodes: set task=edges",
    "partition.min_records=3": "partition.min_records=3 has no effect with partition.share=[]",
    "graph=parts dataset=cora": "dataset=cora does not apply to graph=parts, whose client files exist: pass it to",
    "graph=parts split.train=0.5": "split.train=0.5 does not apply to graph=parts",
    "engine=far partition=random": "partition=random does not apply to engine=far, whose nodes have their own graphs",
    "partition.resolution=0": "partition.resolution must be > 0 and finite, got 0",
    "protocol=../config": "protocol '../config' is unknown",
    "dataset=../dataset/cora": "dataset '../dataset/cora' is unknown",
    "strategy=./fedavg": "strategy './fedavg' is unknown",
}


@pytest.mark.parametrize("pair", [("evaluate", "init"), ("resume", "init"), ("resume", "evaluate")])
def test_a_run_completes_scores_or_starts_from_an_earlier_one(pair):
    with pytest.raises(FedGraphError, match=f"{pair[0]}=/a and {pair[1]}=/b cannot be combined.*: pass one"):
        configuration([f"{pair[1]}=/b", f"{pair[0]}=/a"])
    with pytest.raises(FedGraphError, match="holds no run"):
        configuration([f"{pair[1]}=", f"{pair[0]}=/a"])


@pytest.mark.parametrize("word", WRONG)
def test_wrong_input_is_one_sentence_with_value_and_remedy(word):
    with pytest.raises(FedGraphError) as caught:
        compose(word.split())
    message = str(caught.value)
    assert WRONG[word] in message
    assert "\n" not in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("key", "axis", "why"),
    [
        ("train.momentum=0.9", "train.optimizer=sgd", "train.optimizer=adam: set train.optimizer=sgd"),
        ("privacy.secagg_bits=20", "privacy.secagg=true", "privacy.secagg=false: set privacy.secagg=true"),
        ("privacy.clipping_norm=3", "privacy.dp=server_fixed", "privacy.dp=none: set another privacy.dp"),
        ("adversary.clients=[1]", "adversary.kind=sign_flip", "adversary.kind=none: set another adversary.kind"),
        ("ray.actors=3", "engine=ray", "engine=inline: set engine=ray"),
        (
            "strategy.byzantine=2",
            "strategy.aggregator=median",
            "strategy.aggregator=mean: set another strategy.aggregator",
        ),
        ("adversary.kind=scaling", "adversary.clients=[1]", "adversary.clients=[]: set another adversary.clients"),
        (
            "adversary.rate=0.1",
            "adversary.kind=backdoor_central",
            "adversary.kind=none: set adversary.kind=backdoor_central or backdoor_distributed",
        ),
    ],
)
def test_a_key_that_one_side_of_a_sweep_reads_is_named_on_the_other(key, axis, why):
    (note,) = (note for note in startup_notes(compose([key])) if "no effect" in note)
    assert note.startswith(key.split("=")[0])
    assert note.endswith(f"has no effect with {why}")
    more = ["privacy.noise_multiplier=1", "strategy.weighting=uniform"] if "server_fixed" in axis else []
    assert not [note for note in startup_notes(compose([key, axis, *more])) if "no effect" in note]


@pytest.mark.parametrize(
    "words",
    [
        "partition=dirichlet partition.alpha=0.1",
        "protocol=fedhero split.fold=2",
        "partition=own:groups partition.alpha=0.1",
    ],
)
def test_a_key_that_the_choice_reads_is_accepted(words):
    """Also if a protocol makes the choice, or an own function may read the key."""
    word = words.split()[1]
    assert str(operator.attrgetter(word.partition("=")[0])(compose(words.split()))) == word.partition("=")[2]


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(FedGraphError, match="no such config file"):
        compose([], tmp_path / "nothing.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("rounds: [1")
    with pytest.raises(
        FedGraphError, match=r"broken\.yaml, line \d+, column \d+: invalid YAML \(while parsing a flow sequence: "
    ):
        compose([], broken)
    broken.write_text("strategy: fedavg\ntrain:\n  lr: [0.1\n  local_steps: 2\n")
    with pytest.raises(FedGraphError, match=r"broken\.yaml, line 4, column \d+: invalid YAML"):
        compose([], broken)
    broken.write_text("rounds: 3\ntrain:\n  lr: abc\n")
    with pytest.raises(FedGraphError, match=r"train\.lr=abc \(.*broken\.yaml, line 3\): expected a number, 0 < value"):
        compose([], broken)
    broken.write_text("id,age,label\nn0,1,ok\n")  # a table by mistake: no run by defaults alone
    with pytest.raises(FedGraphError, match=r"broken\.yaml must contain keys with values"):
        compose([], broken)
    copy = rf"copy it first: fedgraph-flwr runs --name CONNECTION --copy {tmp_path.name}$"
    with pytest.raises(FedGraphError, match=rf"resume=\S+ holds no run: expected a folder with config\.yaml.*{copy}"):
        configuration([f"resume={tmp_path}"])
    broken.write_text("rounds: ten")
    with pytest.raises(FedGraphError, match=r"rounds=ten .*broken\.yaml, line 1"):
        compose([], broken)


@pytest.mark.parametrize("without", [(), DATA])
@pytest.mark.parametrize("key", ["init", "evaluate", "config"])
def test_a_run_that_was_resumed_serves_later_runs(key, without, tmp_path):
    """They do not resume it, too: without out= they would write to its folder."""
    run = tmp_path / "first"
    run.mkdir()
    (run / "config.yaml").write_text(to_yaml(compose([f"resume={run}", f"out={run}", "rounds=4"]), without))
    assert configuration([f"resume={run}"]).resume == str(run)
    for words, out in ([], ""), (["out=second"], "second"):
        cfg = configuration([f"{key}={run / 'config.yaml' if key == 'config' else run}", *words])
        assert (cfg.resume, cfg.out, cfg.rounds) == ("", out, 4)
        assert getattr(cfg, key, str(run)) == str(run)


WRONG_KEYS = {
    "strategy=fedprox strategy.mu=high": "strategy.prox.mu=high (override): expected a number",
    "strategy=fedprox strategy.mu=-1": "strategy.prox.mu must be >= 0, got -1",
    "strategy=fedomd strategy.beta=inf": "strategy.beta must be >= 0 and finite, got inf",
    "strategy=fedomd strategy.beta=nan": "strategy.beta must be >= 0, got nan",
    "strategy=fedomd strategy.cmd=maybe": "strategy.cmd (strategy=fedomd) must be true or false, got 'maybe'",
    "strategy=fedomd model.ortho=maybe": "model.ortho (model=fedomd) must be true or false, got 'maybe'",
    "strategy=fedomd model.center=perhaps": "model.center (model=fedomd) must be true or false, got 'perhaps'",
    "strategy=fedomd model.newton_steps=foo": "model.newton_steps (model=fedomd) must be an integer, got 'foo'",
    "strategy=fedomd model.newton_steps=2.5": "model.newton_steps (model=fedomd) must be an integer, got 2.5",
    "strategy=fedomd model.newton_steps=-3": "model.newton_steps must be >= 1, got -3",
    "strategy=fedomd model.mix=foo": "model.mix (model=fedomd) must be a number, got 'foo'",
    "strategy=fedomd model.mix=null": "model.mix (model=fedomd) must be a number, got None",
    "strategy=fedomd model.mix=2": "model.mix must be in (0, 1], got 2",
    "strategy=fedomd model.layers=1": "model.layers must be >= 2 for fedomd (a GCNConv at each end), got 1",
    "strategy=fedomd model.ortho_on=foo": "model.ortho_on 'foo' is unknown; expected one of: raw, transformed",
    "strategy=fedspa model.sfpd=nope": "model.sfpd (model=fedspa) must be true or false, got 'nope'",
    "strategy=fedspa model.profile=[plain]": "model.profile (model=fedspa) must be a string, got ['plain']",
    "strategy=fedspa model.profile=plane": "did you mean 'plain'? Expected one of: acm, acm_sep, plain",
    "strategy=fedspa model.normalization=row": "model.normalization 'row' is unknown; expected one of: mean, sum, sym",
    "strategy=fedstruct model.structure_layers=256": "must be a list of integers, got 256",
    "strategy.objective=pkg:NAME": "strategy.objective=pkg:NAME (override) must be a list, such as 'strategy.objective=[pkg:NAME",
    "strategy=fedstruct model.beta=[1,half]": "model.beta (model=fedstruct) must be a list of numbers, got [1, 'half']",
    "strategy=fedstruct model.beta=3": "model.beta must be last, uniform, learned or a list of numbers, got '3'",
    "model=gat model.heads=3": "model.heads must divide model.hidden (64), got 3",
    "strategy.shared=[layer0]": "strategy.shared: 'layer0' matches no parameter of model=gcn",
    "strategy.private=[haed]": "strategy.private: 'haed' matches no parameter of model=gcn",
    "strategy=fedavgm strategy.server_lr=nan": "strategy.momentum.server_lr must be >= 0, got nan",
    "strategy=fedstruct strategy.prune=-1": "strategy.prune must be >= 0, got -1",
    "strategy=fedomd model=gcn": "strategy=fedomd needs model=fedomd, got model=gcn",
    "strategy=fedhero model=gcn": "strategy=fedhero needs model=fedhero, got model=gcn",
    "strategy=fedstruct model=gcn": "strategy=fedstruct needs model=fedstruct, got model=gcn",
    "strategy=fedhgn model=gcn": "strategy=fedhgn needs a model with bases, got model=",
    "strategy=fedhgn model.bases=0": "strategy=fedhgn needs a model with bases, got model=",
}


@pytest.mark.parametrize("overrides", WRONG_KEYS)
def test_a_wrong_key_of_a_method_or_network_is_one_sentence(overrides):
    with pytest.raises(FedGraphError) as caught:
        check_method(compose(overrides.split()))
    message = str(caught.value)
    assert WRONG_KEYS[overrides] in message
    assert "\n" not in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_bound_is_only_met_by_finite_values(value):
    with pytest.raises(FedGraphError, match=r"train\.weight_decay must be >= 0"):
        TrainConfig(weight_decay=value)


SECTIONS = [RunConfig, *(f.type for f in dataclasses.fields(RunConfig) if dataclasses.is_dataclass(f.type))]


@pytest.mark.parametrize(
    ("section", "key", "kind"),
    [(section, f.name, f.type) for section in SECTIONS for f in dataclasses.fields(section) if f.type in (int, float)],
)
def test_every_number_has_a_range(section, key, kind):
    """Also of a key that is added tomorrow: nothing infinite, nothing that cannot be counted to."""
    wrong = [math.nan, math.inf, -math.inf] if kind is float else [-(10**30), 10**30]
    for value in wrong:
        with pytest.raises(FedGraphError, match=rf"{key} must "):
            section(**{key: value})


def test_a_methods_key_that_says_nothing_of_its_range_is_checked_all_the_same():
    @dataclasses.dataclass
    class Params:
        weight: float = 1.0
        sign: float = number(-1.0, low=-1, high=1)
        kind: str = choice("a", ("a", "b"))

    assert typed(Params, {"sign": -0.5}, "strategy=new").sign == -0.5
    for key, value in {"weight": -1.0, "sign": 2.0, "kind": "c"}.items():
        with pytest.raises(FedGraphError, match=rf"strategy\.{key} .*{value}"):
            typed(Params, {key: value}, "strategy=new")

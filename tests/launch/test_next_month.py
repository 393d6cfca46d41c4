"""Runs on a model of an earlier run: ``init`` trains it on, ``evaluate`` scores it, on the same files or on new ones."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.dp_audit import epsilon_at
from fedgraph_flwr.cli.run import print_summary
from fedgraph_flwr.config import compose
from fedgraph_flwr.config.composition import configuration, to_yaml
from fedgraph_flwr.data.graph import read_tensors, write_tensors
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline, run_ray
from fedgraph_flwr.numerics.forest import raw_scores
from fedgraph_flwr.partition import load
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.party.use.trees import lightgbm_text
from fedgraph_flwr.report.headline import start_text
from fedgraph_flwr.secure.accounting import spent_text
from fedgraph_flwr.secure.masked import digest
from fedgraph_flwr.store.earlier import EarlierPrivacy, earlier_privacy
from fedgraph_flwr.strategies.privacy import Privacy
from fedgraph_flwr.wire.messages import MODEL
from tests.nodes import model_of, party_nodes
from tests.support import Finished, assert_same_arrays

PLAIN = ["train.optimizer=sgd", "model.dropout=0", "evaluation.select=last", "train.local_steps=2"]
"""No draw and no state of an optimiser: 4 rounds are 2 rounds, and 2 more from their model."""


def later(key, before, *overrides):
    """A run on the model of an earlier one, as a command line starts it."""
    out = before.out.with_name(f"{before.out.name}-{key}-{len(overrides)}")
    cfg = with_folder(configuration([f"{key}={before.out}", f"out={out}", *overrides]))
    return Finished(cfg, run_ray(cfg) if cfg.engine == "ray" else run_inline(cfg))


FORMS = {
    "": [],
    "head": ["strategy.personalization=head"],
    "local": ["strategy.shared=[]"],
    "fedgcn": ["strategy=fedgcn"],
    "ray": pytest.param(
        ["strategy.personalization=head", "engine=ray"], marks=[pytest.mark.slow, pytest.mark.xdist_group("one ray")]
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_run_from_a_trained_model_is_the_longer_run(run, form, request):
    engine = [word for word in form if word.startswith("engine=")]
    if engine:
        request.getfixturevalue("one_ray")
    form = [word for word in form if word not in engine]
    whole, first = run(*PLAIN, *form, "rounds=4"), run(*PLAIN, *form, "rounds=2")
    second = later("init", first, *engine)
    assert_same_arrays(second.arrays, whole.arrays)
    assert second.rounds[-1]["clients"] == whole.rounds[-1]["clients"]
    start = second.summary["start"]
    assert start["run"] == str(first.out)
    assert start["model"] == digest(first.arrays).hex()
    assert start["metrics"] == first.summary["metrics"]["last"]


@pytest.mark.parametrize("form", [FORMS[""], FORMS["head"]])
def test_a_run_from_one_without_scores_has_its_last_model(run, form):
    """No round was the best one, although ``evaluation.select`` is of the best."""
    keys = [*PLAIN, *form, "evaluation.select=best_val", "privacy.scores=none"]
    whole, first = run(*keys, "rounds=4"), run(*keys, "rounds=2")
    second = later("init", first)
    for client in range(2):
        tensors, expected = (load_predictor(run.out, client).tensors for run in (second, whole))
        assert tensors.keys() == expected.keys()
        assert all(tensors[name].equal(expected[name]) for name in tensors)
    assert_same_arrays(later("evaluate", first, "privacy.scores=exact").arrays, first.arrays)


@pytest.mark.parametrize("form", [FORMS["head"], FORMS["local"], FORMS["ray"]])
def test_a_run_from_the_checkpoint_of_a_cut_one_is_the_longer_run(run, form, request):
    engine = [word for word in form if word.startswith("engine=")]
    if engine:
        request.getfixturevalue("one_ray")
    form = [word for word in form if word not in engine]
    whole = run(*PLAIN, *form, "rounds=4")
    cut = _cut(run, *PLAIN, *form)
    second = later("init", cut, *engine, "rounds=2")
    assert_same_arrays(second.arrays, whole.arrays)
    assert second.rounds[-1]["clients"] == whole.rounds[-1]["clients"]
    assert second.summary["start"]["metrics"] == whole.rounds[1]["metrics"]
    with pytest.raises(FedGraphError, match=r"evaluate=.* holds no finished run"):
        later("evaluate", cut)


def test_a_start_from_a_checkpoint_counts_its_releases_and_those_that_may_have_followed(run):
    """The run was cut in round 3: its checkpoint of round 2 books the releases up to the next one."""
    cut = _cut(run, *PLAIN, *PRIVATE)
    spending = earlier_privacy(compose([f"init={cut.out}", f"graph={cut.cfg.graph}", *PRIVATE]))
    whole = run(*PLAIN, *PRIVATE, "rounds=4")
    expected = earlier_privacy(compose([f"init={whole.out}", f"graph={cut.cfg.graph}", *PRIVATE]))
    assert spending == expected
    assert spending.entries[0]["releases"] >= 4
    second = later("init", cut, "rounds=1")
    assert second.summary["privacy"]["epsilon"] > whole.summary["privacy"]["epsilon"]


def test_a_checkpoint_with_parameters_of_each_client_is_no_start(run):
    with pytest.raises(FedGraphError, match="its server kept parameters of each client"):
        later("init", _cut(run, "strategy=fedgta"))


def _cut(run, *words):
    """A run of four rounds that is killed in the third, with the checkpoint of the second."""
    graph = run("rounds=1").cfg.graph
    out = Path(graph).parent / "cut"
    cfg = compose(
        [f"graph={graph}", "num_clients=3", "rounds=4", "model.hidden=8", *words, f"out={out}", "checkpoint_every=2"]
    )

    def kill(record):
        if record["round"] == 2:
            raise SystemExit

    with pytest.raises(SystemExit):
        run_inline(with_folder(cfg), kill)
    return SimpleNamespace(out=out, cfg=cfg)


def test_a_partys_node_starts_only_with_models_of_its_own_runs_or_of_its_policy(run, tmp_path, monkeypatch):
    """The same run as in a simulation, at nodes with state folders; without them, the policy must list the model."""
    words = [*PLAIN, "strategy.personalization=head", "strategy.min_clients=3"]
    simulated = later("init", run(*words, "rounds=2"), "rounds=2")
    files = sorted(Path(simulated.cfg.graph).glob("*.safetensors"))
    policy = tmp_path / "policy.yaml"
    policy.write_text("min_nodes: 0\n")
    state = tmp_path / "state"
    party_nodes(monkeypatch, files, policy, state)
    first = run(*words, "rounds=2")
    again = later("init", first, "rounds=2")
    assert_same_arrays(again.arrays, simulated.arrays)
    assert again.summary["start"] == simulated.summary["start"] | {"run": str(first.out)}
    assert again.rounds[-1]["clients"] == simulated.rounds[-1]["clients"]
    state.rename(tmp_path / "numbered")
    for number in range(3):  # the parties have other numbers now, and each its own folder
        shutil.copytree(tmp_path / "numbered" / f"state_{number}", state / f"state_{2 - number}")
        replace(load(files[number]), client=2 - number).save(tmp_path / "turned" / files[2 - number].name)
    party_nodes(monkeypatch, sorted((tmp_path / "turned").iterdir()), policy, state)
    turned = later("init", first, "rounds=1", "overwrite=true")
    assert turned.summary["start"]["metrics"] == pytest.approx(again.summary["start"]["metrics"], rel=1e-6)
    party_nodes(monkeypatch, files, policy, state)
    shutil.rmtree(state)
    with pytest.raises(
        FedGraphError, match=f"starts this run with the model {digest(first.arrays).hex()} .*start_models"
    ):
        later("init", first)
    policy.write_text(f"min_nodes: 0\nstart_models: [{digest(first.arrays).hex()}]\n")
    shutil.rmtree(first.out.with_name(f"{first.out.name}-init-0"), ignore_errors=True)
    assert later("init", first).summary["start"]["metrics"] != again.summary["start"]["metrics"]  # heads of the seed


def test_a_node_takes_no_start_from_a_run_in_which_it_did_not_train(node):
    """Scored once, planted parameters are in the node's folder, and no start for that."""
    planted = model_of(node(), scale=2.0)
    scored = node(state=True)
    assert not isinstance(scored.request("evaluate", 1, {MODEL: planted}, scored=1, best=1), str)
    assert not isinstance(scored.request("describe", 1, keep=True, run="0" * 16, best=1), str)
    another = node("init=runs/mine", state=True)
    another.context.run_id = another.grid.run_id = scored.grid.run_id + 1
    assert "starts this run with the model" in another.request("train", 1, {MODEL: planted})


@pytest.mark.parametrize("form", [[], ["strategy.personalization=head"], ["strategy.personalization=ditto"]])
def test_new_files_are_scored_by_the_model_of_any_method(run, client_files, form):
    trained, new = run(*form, "evaluation.select=last"), client_files((14, 18, 22), seed=1)
    scored_run = later("evaluate", trained, new)
    assert "train" not in scored_run.summary["bytes_by_phase"]
    for client in range(3):
        graph = load(Path(new.partition("=")[2]) / f"client_{client:04d}.safetensors")
        codes = load_predictor(trained.out, client).predict(graph).codes
        right = (codes == graph.y.numpy())[graph.test_mask.numpy()]
        assert scored_run.rounds[-1]["clients"]["test-accuracy"][client] == pytest.approx(right.mean(), abs=1e-12)
    if not form:
        assert "start" not in later("evaluate", later("init", trained)).summary


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ("strategy.personalization=ditto", r"predicts with state of its method as well \(model\)"),
        ("strategy=fedstruct", r"predicts with state of its method as well \(structure\)"),
    ],
)
def test_a_method_whose_state_belongs_to_its_model_does_not_start_from_one(form, why):
    with pytest.raises(FedGraphError, match=why):
        check_method(compose([form, "init=runs/mine"]))


def test_wrong_runs_are_refused(run, tmp_path):
    first = run("rounds=1")
    with pytest.raises(FedGraphError, match=f"init={tmp_path} holds no finished run"):
        run(f"init={tmp_path}")
    with pytest.raises(FedGraphError, match="reads the folder that out= would replace"):
        run(f"init={first.out}", f"out={first.out}", "overwrite=true")
    with pytest.raises(FedGraphError, match=r"the model's is .*: keep that run's strategy and model keys"):
        run(f"init={first.out}", "model.hidden=9")
    with pytest.raises(FedGraphError, match=r"without default_left.*: keep that run's strategy and model keys"):
        run(f"init={first.out}", "strategy=boosting")
    spec = json.loads((first.out / "input_spec.json").read_bytes())
    (first.out / "input_spec.json").write_text(json.dumps(spec | {"fingerprint": [1, 2]}))
    for key in ("init", "evaluate"):
        with pytest.raises(FedGraphError, match="client 0 has another schema than the run"):
            later(key, first)
    clients = run("strategy=fedgta", "rounds=1")
    with pytest.raises(FedGraphError, match="its server kept parameters of each client"):
        later("init", clients)


def test_clients_that_a_cohort_left_out_start_from_their_own_state(run, tmp_path, monkeypatch):
    words = [*PLAIN, "strategy.personalization=head", "strategy.fraction=0.4", "seed=1"]
    first = run(*words, "rounds=1", "strategy.fraction=1.0")
    simulated = later("init", first, "rounds=3", "strategy.fraction=0.4")
    policy = tmp_path / "policy.yaml"
    policy.write_text("min_nodes: 0\n")
    party_nodes(monkeypatch, sorted(Path(first.cfg.graph).glob("*.safetensors")), policy, tmp_path / "state")
    again = run(*words, "rounds=1", "strategy.fraction=1.0")
    again = later("init", again, "rounds=3", "strategy.fraction=0.4")
    assert_same_arrays(again.arrays, simulated.arrays)
    assert again.rounds[-1]["clients"] == simulated.rounds[-1]["clients"]
    assert again.summary["failures"] == {}


def test_a_party_that_joins_trains_on_and_is_left_out_of_an_evaluation(run, client_files):
    before, joined = run(*PLAIN, "strategy.personalization=head", "rounds=2"), client_files((12, 16, 20, 24))
    trained, scored = later("init", before, joined), later("evaluate", before, joined)
    assert len(trained.rounds[-1]["clients"]["test-accuracy"]) == 4
    assert scored.rounds[-1]["clients"]["test-accuracy"] == before.rounds[-1]["clients"]["test-accuracy"]
    assert "client 3 has no private state" in scored.summary["failures"]["3 (evaluate)"]


def test_a_client_without_its_private_state_is_not_scored(run):
    trained = run("strategy.personalization=head", "rounds=1")
    shutil.rmtree(trained.out / "state")
    with pytest.raises(FedGraphError, match=r"clients 0, 1, 2: has no private state .* or use init= to train it"):
        later("evaluate", trained)
    assert later("init", trained).summary["rounds"] == 1


def test_a_resumed_run_counts_the_time_of_all_its_processes_and_keeps_its_start(run):
    first = run("rounds=1")
    second = later("init", first, "rounds=2", "checkpoint_every=1")
    path = second.out / "checkpoint.safetensors"
    tensors, values = read_tensors(path)
    assert 0 < values["seconds"] < second.summary["total_seconds"]
    write_tensors(path, tensors, values | {"seconds": 1000.0})
    third = run_inline(with_folder(configuration([f"resume={second.out}", "rounds=3"])))
    assert 1000 < third["total_seconds"] < 1600
    assert third["setup_seconds"] < 600
    assert third["start"] == second.summary["start"]


def test_a_run_shows_the_score_that_it_starts_with_and_both_epsilons(run, capsys):
    first = run(*PLAIN, "rounds=2")
    second = later("init", first)
    before = first.summary["metrics"]["last"]["test_accuracy"]
    print_summary(second.summary, second.cfg)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"starts with the model of {first.out}, {100 * before:.1f} % before round 1 and" in printed
    spent = {"start": second.summary["start"] | {"privacy": {"epsilon": 2.5}}, "privacy": {"epsilon": 4.0}}
    assert start_text({**second.summary, **spent}, second.cfg).endswith("; ε ≤ 2.5 there; ε ≤ 4 in this run")
    assert start_text(first.summary, first.cfg) == ""


PRIVATE = [
    "privacy.dp=client_fixed",
    "privacy.noise_multiplier=4",
    "privacy.clipping_norm=1",
    "strategy.weighting=uniform",
]


def gaussian(cfg, *releases):
    """Exact ε of numbers of releases with their noise, in real numbers: they are one release of μ² = Σ n / z²."""
    return epsilon_at(cfg.privacy.delta, sum(n / z**2 for n, z in releases) ** -0.5, 1)


def test_epsilon_covers_the_releases_of_the_runs_before(run, capsys):
    """By the accounting of Gaussian noise, above which that of integers is by at most 12 %."""
    first = run(*PLAIN, *PRIVATE, "rounds=3")
    second = later("init", first, "rounds=2", "privacy.noise_multiplier=2")
    spent, own_epsilon = second.summary["privacy"], gaussian(second.cfg, (2, 2))
    both = gaussian(second.cfg, (3, 4), (2, 2))
    assert both < spent["epsilon"] < 1.12 * both
    assert own_epsilon < spent["own_epsilon"] < 1.12 * own_epsilon
    assert second.rounds[0]["privacy"]["epsilon"] < spent["epsilon"]
    third = later("init", second, "rounds=1")
    of_all = gaussian(second.cfg, (3, 4), (3, 2))
    assert of_all < third.summary["privacy"]["epsilon"] < 1.12 * of_all
    assert third.summary["start"]["privacy"]["epsilon"] == spent["epsilon"]
    print_summary(second.summary, second.cfg)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"ε ≤ {spent['epsilon']:.3g} at δ = 1e-05 after 2 releases of the model and those of earlier runs" in printed
    there = first.summary["privacy"]["epsilon"]
    ends = f"; ε ≤ {there:.3g} there; ε ≤ {spent['own_epsilon']:.3g} in this run; ε ≤ {spent['epsilon']:.3g} in all"
    assert start_text(second.summary, second.cfg).endswith(ends)


def test_a_budget_counts_the_releases_of_the_runs_before(run):
    """Three rounds, and more from their model, have the ε of as many rounds in one run, and the same end."""
    first, five = run(*PLAIN, *PRIVATE, "rounds=3"), run(*PLAIN, *PRIVATE, "rounds=5")
    whole = five.summary["privacy"]["epsilon"]
    for budget, rounds in ((1.001 * whole, 2), (0.999 * whole, 1)):
        second = later("init", first, "rounds=4", f"privacy.epsilon_budget={budget}", *["checkpoint_every=0"] * rounds)
        assert len(second.rounds) == rounds
        assert second.summary["privacy"]["epsilon"] == pytest.approx(five.rounds[2 + rounds]["privacy"]["epsilon"])
    with pytest.raises(FedGraphError, match=r"does not allow one round after init=.*, whose ε together is"):
        later("init", first, f"privacy.epsilon_budget={1.001 * first.summary['privacy']['epsilon']}")


def test_no_epsilon_covers_a_start_without_noise_or_of_another_unit(run, tmp_path):
    first = run(*PLAIN, "rounds=1")
    second = later("init", first, *PRIVATE)
    spent = second.summary["privacy"]
    assert spent["epsilon"] is None
    assert spent["own_epsilon"] > 0
    why = f"no ε covers this model, since init={first.out} was trained on these data without noise"
    assert why in spent_text(spent, "exact")
    assert earlier_privacy(compose([f"init={second.out}", *PRIVATE])).unbounded == spent["unbounded"]
    with pytest.raises(
        FedGraphError, match=r"epsilon_budget=50 cannot hold: init=.* was trained on these data without"
    ):
        later("init", first, *PRIVATE, "privacy.epsilon_budget=50")
    private = run(*PLAIN, *PRIVATE, "rounds=1")
    rows = ["privacy.dp=local", "privacy.unit=row", "privacy.rows=500", "privacy.batch=50", "strategy=fedgrad"]
    rows += ["privacy.scores=none", "task=edges", "model=mlp", "model.dropout=0", "privacy.noise_multiplier=1"]
    spending = earlier_privacy(compose([f"init={private.out}", f"dataset={private.cfg.dataset.name}", *rows]))
    assert "privacy.unit=client, this run row, whose ε do not add up" in spending.unbounded
    assert len(earlier_privacy(compose([f"init={private.out}", "graph=next/month", *PRIVATE])).entries) == 1
    config = (private.out / "config.yaml").read_text()
    named = re.sub(r"(?m)^graph: .*$", "graph: ''", config).replace("name: toy", "name: cora")
    (private.out / "config.yaml").write_text(named)
    assert len(earlier_privacy(compose([f"init={private.out}", "dataset=cora", *PRIVATE])).entries) == 1
    assert earlier_privacy(compose([f"init={private.out}", "dataset=payments", *PRIVATE])) == EarlierPrivacy()
    (private.out / "config.yaml").write_text(config)
    summary = json.loads((private.out / "summary.json").read_text())
    summary["privacy"]["releases"] = "many"
    (private.out / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(FedGraphError, match=r"summary.json has invalid releases under 'privacy'"):
        later("init", private)


def test_a_run_on_other_data_hides_no_release_of_the_runs_before_it(tmp_path):
    """Data by chain of runs: those on the last run's data count, whatever lies between; noise tells the runs apart."""

    def saved(name, z, *words, earlier=()):
        folder, cfg = tmp_path / name, compose([*PRIVATE, f"privacy.noise_multiplier={z}", *words])
        folder.mkdir()
        (folder / "config.yaml").write_text(to_yaml(cfg))
        spent = {"epsilon": 1.0, "delta": 1e-5, "releases": 3} | ({"earlier": list(earlier)} if cfg.init else {})
        (folder / "summary.json").write_text(json.dumps({"privacy": spent}))
        return f"init={folder}"

    def counted(*words):
        spending = earlier_privacy(compose([*PRIVATE, *words]))
        return [entry["noise_multiplier"] for entry in spending.entries], spending.unbounded

    first = saved("a", 4, "dataset=cora")
    second = saved("b", 5, "dataset=payments", first)
    assert counted(second, "dataset=cora") == ([4], "")
    assert counted(second, "dataset=payments") == ([5], "")
    assert counted(second, "graph=next/month") == ([4, 5], "")
    assert Privacy(compose([*PRIVATE, first, "dataset=payments"])).spent()["earlier"] == []
    shutil.rmtree(tmp_path / "a")
    assert counted(second, "dataset=payments") == ([5], "")
    for words in ("dataset=cora", "graph=next/month"):
        assert "which is no longer there and may have these data" in counted(second, words)[1]
    saved("a", 6, "dataset=payments", second)  # a folder that was replaced by a later run
    assert "which is no longer there and may have these data" in counted(second, "dataset=cora")[1]


SMALL = ["strategy=boosting", "strategy.min_data_in_leaf=3", "strategy.patience=0", "evaluation.select=last"]
TREES = {
    "histogram": ["strategy.mode=histogram", "strategy.depth=3"],
    "local": ["strategy.shared=[]"],
    "local histogram": ["strategy.mode=histogram", "strategy.depth=3", "strategy.shared=[]"],
}


@pytest.mark.parametrize("form", TREES.values(), ids=TREES)
def test_trees_are_added_to_those_of_an_earlier_run(run, form):
    """On the same data, 3 iterations and 3 more are 6 iterations; LightGBM breaks ties between splits by rounding."""
    words, exact = [*SMALL, *form], "strategy.mode=histogram" in form
    rounds = ["rounds=3", "rounds=6"] if exact else ["rounds=1", "rounds=1"]
    whole = run(*words, "strategy.trees=6", rounds[1], sizes=(30, 40, 50))
    first = run(*words, "strategy.trees=3", rounds[0], sizes=(30, 40, 50))
    second = later("init", first, "strategy.trees=3")
    assert second.summary["start"]["metrics"] == first.summary["metrics"]["last"]
    for client in range(3):
        expected, forest = (load_predictor(outcome.out, client).forest for outcome in (whole, second))
        assert len(forest["start"]) == len(expected["start"])
        losses = [outcome.rounds[-1]["clients"]["test-loss"][client] for outcome in (second, whole)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-12 if exact else 2e-3)
        if exact:
            np.testing.assert_allclose(forest["value"], expected["value"], atol=1e-12)
            np.testing.assert_array_equal(forest["feature"], expected["feature"])


def test_bagged_trees_of_each_party_start_from_the_earlier_model_as_lightgbm_does(run, client_files):
    """LightGBM goes on from the earlier model's scores at each party; new trees are weighted by training items."""
    lightgbm = pytest.importorskip("lightgbm")
    first, new = run(*SMALL, "strategy.trees=4", "rounds=1"), client_files((30, 40, 50), seed=1)
    second = later("init", first, new, *SMALL, "strategy.trees=5")
    earlier, forest = (load_predictor(outcome.out).forest for outcome in (first, second))
    booster = lightgbm.Booster(model_str=lightgbm_text(earlier, 3, list("01234"), "multiclass num_class:3"))
    rules = {
        "objective": "multiclass",
        "num_class": 3,
        "learning_rate": 0.1,
        "num_leaves": 31,
        "max_depth": 6,
        "lambda_l2": 1.0,
    }
    rules |= {
        "min_data_in_leaf": 3,
        "max_bin": 255,
        "verbosity": -1,
        "force_row_wise": True,
        "boost_from_average": False,
    }
    graphs = [load(path) for path in sorted(Path(new.partition("=")[2]).glob("*.safetensors"))]
    assert (graphs[0].num_classes, graphs[0].num_features) == (3, 5)
    every = np.concatenate([graph.x.double().numpy() for graph in graphs])
    expected, sizes = np.zeros((3, len(every), 3)), []
    for client, graph in enumerate(graphs):
        rows, x = graph.train_mask.numpy(), graph.x.double().numpy()
        start = booster.predict(x[rows], raw_score=True)
        data = lightgbm.Dataset(x[rows], graph.y.numpy()[rows], init_score=start)
        expected[client] = lightgbm.train(rules, data, 5).predict(every, raw_score=True)
        sizes.append(rows.sum())
    mean = np.average(expected, axis=0, weights=sizes) + booster.predict(every, raw_score=True)
    np.testing.assert_allclose(raw_scores(forest, every, 3), mean, atol=1e-9)
    in_rounds = later("init", first, new, *SMALL, "strategy.trees=5", "strategy.per_round=2", "rounds=3")
    np.testing.assert_allclose(raw_scores(load_predictor(in_rounds.out).forest, every, 3), mean, atol=0.02)
    third = later(
        "init", second, new, *SMALL, "strategy.trees=2", "strategy.mode=histogram", "strategy.depth=2", "rounds=2"
    )
    assert len(load_predictor(third.out).forest["start"]) == len(forest["start"]) + 2 * 3

"""Requests that a node must refuse: each test is a server's attack that succeeded before."""

import contextlib
import json
import resource
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedgraph_flwr.clients.state import StateFolder
from fedgraph_flwr.config import compose, to_json
from fedgraph_flwr.config.composition import group_file
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import cohorts
from fedgraph_flwr.methods.variates import ACKNOWLEDGED, VARIATES
from fedgraph_flwr.models.gcn import GCN
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.node import records
from fedgraph_flwr.secure.policy import GONE, Policy, read_policy
from tests.methods.small_runs import METHODS, sampled
from tests.nodes import SGD, binning, model_of, party_nodes
from tests.support import assert_same_arrays, honest_reply, patch_replies

WIDE = ["model.hidden=64", "train.local_steps=1", *SGD]

# --- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sampled(METHODS))
def test_scores_that_a_party_keeps_are_not_told(method, go, monkeypatch):
    """With `required_config: {privacy.scores: none}` a server had the scores of any model, and by them labels."""
    answer, replies = honest_reply, []

    def greedy(self, name, groups, config):
        if name == "train":
            with pytest.raises(FedGraphError, match=r"sends no scores: the run has privacy\.scores=none"):
                answer(self, "evaluate", {key: dict(group) for key, group in groups.items()}, config)
            replies.append(answer(self, name, groups, {**config, "evaluate": True})[1])
            return {}, replies[-1]
        return answer(self, name, groups, config)

    patch_replies(monkeypatch, greedy)
    with contextlib.suppress(FedGraphError):
        go(method, "privacy.scores=none", "rounds=1")
    assert replies
    assert not [key for scores in replies for key in scores if "loss" in key or "accuracy" in key or "count" in key]


# --- sharing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [m for m in METHODS if {"shared", "private"} & group_file("strategy", m).keys()])
def test_a_method_by_name_means_its_own_sharing(method, monkeypatch):
    """A party that lists FedProto, of whose model nothing leaves, sent it to a server with `strategy.shared=['']`."""
    cfg = compose([f"strategy={method}"])
    refuse = Policy(strategies=[method])
    model = locate("fedgraph_flwr.models:probe")(cfg.model)
    refuse._check_sharing(cfg.strategy, model)
    wide = compose([f"strategy={method}", "strategy.shared=['']", "strategy.private=[]"])
    more = model.shared([""]).keys() - model.shared(cfg.strategy.shared, cfg.strategy.private).keys()
    Policy()._check_sharing(wide.strategy, model)
    if more:
        with pytest.raises(FedGraphError, match=f"the declaration of strategy={method}:"):
            refuse._check_sharing(wide.strategy, model)


def test_the_model_of_fedproto_stays(node):
    asked = node("strategy=fedproto", "strategy.shared=['']", policy={"strategies": ["fedproto"]})
    assert "refuses strategy.shared=[''] with strategy.private=[], which also sends head" in asked.request("describe")
    policy = {"strategies": ["fedproto"], "required_config": {"strategy.shared": [[""]]}}
    assert not isinstance(node("strategy=fedproto", "strategy.shared=['']", policy=policy).request("describe"), str)
    policy = {"strategies": ["fedavg"]}
    assert not isinstance(node("strategy.private=[head]", policy=policy).request("describe"), str), "less may leave"


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [["model.hidden=65536"], ["model.hidden=65536", "model=gat"], ["model.hidden=65536", "model.layers=1000"]],
)
def test_a_network_is_counted_before_it_takes_memory(node, overrides):
    """`model.hidden=65536` took 17 GB a layer before its size was looked at."""
    asked = node(*overrides, "model.dropout=0", policy={"max_parameters": 50_000})
    assert "parameters: it accepts at most 50000 (max_parameters)" in asked.request("describe")
    had = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "parameters: it accepts at most 50000 (max_parameters)" in asked.request("describe")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - had < 20_000, "kB"


@pytest.mark.parametrize("model", ["gcn", "mlp", "sage", "gat", "acm"])
def test_a_layer_is_as_wide_as_a_party_allows(node, model):
    """Thousands of units, each open for one node, showed 30 nodes' values in one message."""
    overrides = ["strategy=fedavg", f"model={model}"]
    assert "wide: it accepts at most 1024 (max_width)" in node(*overrides, "model.hidden=4000").request("describe")
    assert not isinstance(node(*overrides, "model.hidden=64").request("describe"), str)
    assert "at most 16 (max_width)" in node(*overrides, "model.hidden=64", policy={"max_width": 16}).request("describe")


class Uncountable(GCN):
    """A model that reads a value while it is built, which the meta device has none of."""

    def __init__(self, *sizes, **keywords):
        super().__init__(*sizes, **keywords)
        float(next(self.parameters()).sum())


def test_a_model_that_cannot_be_counted_is_not_built(node):
    """It was built first and counted afterwards."""
    overrides, policy = [f"model={__name__}:Uncountable"], {"modules": ["tests"]}
    assert "cannot be counted before it is built (RuntimeError" in node(*overrides, policy=policy).request("describe")
    listed = node(*overrides, policy={**policy, "networks": [f"{__name__}:Uncountable"]})
    assert not isinstance(listed.request("describe"), str)


# --- one network a run ------------------------------------------------------------------------------------------------


def test_a_run_has_one_configuration(node):
    asked = node("model.hidden=8", state=True)
    assert not isinstance(asked.request("describe"), str)
    other = to_json(compose(["num_clients=3", "rounds=5", "model.hidden=9"]))
    kept = asked.context.run_config
    asked.context.run_config = {**kept, "config": other}
    assert "the server changed the configuration of this run" in asked.request("train", 1)
    asked.restart()
    assert "the server changed the configuration of this run" in asked.request("train", 1)
    asked.context.run_config = kept
    assert not isinstance(asked.request("train", 1, {"model": model_of(asked)}), str)


def test_a_run_starts_where_its_seed_says(node):
    """First parameters of a server's choice read training nodes out of one update."""
    asked = node()
    assert "other parameters than its seed=0 gives" in asked.request("train", 1, {"model": model_of(asked, 1.5)})
    asked = node()
    assert not isinstance(asked.request("train", 1, {"model": model_of(asked)}), str)
    assert not isinstance(asked.request("train", 2, {"model": model_of(asked, 1.5)}), str), (
        "later ones cannot be distinguished"
    )
    asked = node(policy={"check_start": False})
    assert not isinstance(asked.request("train", 1, {"model": model_of(asked, 1.5)}), str)


START = "other parameters than its seed=0 gives"


@pytest.mark.parametrize(("fraction", "seed", "turn"), [(1, 0, 1), (0.34, 1, 3)])
def test_a_first_request_in_a_later_round_needs_the_cohorts_or_the_policy(node, fraction, seed, turn):
    """A server that says "round 2" to a new node chose the parameters of its first step; with cohorts of one, until its turn."""
    overrides, size = [f"strategy.fraction={fraction}", f"seed={seed}", "rounds=30", *WIDE], 3 if fraction == 1 else 1
    drawn = [0 in cohorts.draw(range(3), size, seed, "cohort", r) for r in range(1, 30)]
    assert drawn.index(True) + 1 == turn
    for server_round in (turn + 1, turn + 5):
        planted = {"model": binning(model_of(node(*overrides)), 64, 5)[0]}
        assert "other parameters than its seed" in node(*overrides).request("train", server_round, planted)
        honest = node(*overrides)
        assert not isinstance(honest.request("train", server_round, {"model": model_of(honest)}), str)
    for server_round in range(2, turn + 1):
        asked = node(*overrides)
        assert not isinstance(asked.request("train", server_round, {"model": model_of(asked, 1.5)}), str)


@pytest.mark.parametrize("state", [False, True])
def test_a_resumption_that_the_node_does_not_know_starts_where_the_seed_says(node, state):
    """A server claims to resume a run that never was: without a name of the run nothing was looked up."""
    asked = node(state=state)
    assert not isinstance(asked.request("describe", resume=3), str)
    planted = {"model": model_of(asked, 1.5)}
    assert START in asked.request("train", 4, planted)
    assert START in asked.request("train", 5, planted), "nor in a later round"
    if state:
        asked.restart()
        record = StateFolder(asked.context.node_config["state"], str(asked.grid.run_id), "fedavg", 0).read_asked()
        assert record.suspect, "kept over a restart"


def test_a_resumption_with_the_nodes_own_checkpoint_is_believed(node):
    asked = node(state=True)
    assert not isinstance(asked.request("train", 1, {"model": model_of(asked)}, checkpoint=True, run="mine"), str)
    sent = {"model": model_of(asked, 1.5)}
    again = node(state=True)
    again.context.run_id = again.grid.run_id = asked.grid.run_id + 1
    assert not isinstance(again.request("describe", resume=1, run="mine"), str)
    assert not isinstance(again.request("train", 2, sent), str)
    other = node(state=True)
    other.context.run_id = other.grid.run_id = asked.grid.run_id + 2
    assert "round_000002.safetensors" in other.request("describe", resume=2, run="mine"), "there is no such checkpoint"


def test_a_lost_state_needs_the_policys_key(node):
    asked = node(policy={"check_start": False})
    assert not isinstance(asked.request("describe", resume=3, run="mine"), str)
    assert not isinstance(asked.request("train", 4, {"model": model_of(asked, 1.5)}), str)


def test_a_refused_start_is_not_forgotten_in_the_next_round(node):
    asked = node()
    assert START in asked.request("train", 1, {"model": model_of(asked, 1.5)})
    assert START in asked.request("train", 2, {"model": model_of(asked, 1.5)})
    assert not isinstance(asked.request("train", 3, {"model": model_of(asked)}), str)
    assert not isinstance(asked.request("train", 4, {"model": model_of(asked, 1.5)}), str)


def _shorter(model):
    return {"model": {name: array[..., :-1] for name, array in model.items()}}


@pytest.mark.parametrize(
    "malformed",
    [
        _shorter,
        lambda model: {"model": dict(list(model.items())[1:])},
        lambda model: {"model": {name: array * np.nan for name, array in model.items()}},
        lambda model: {"model": model, "unknown": {"a": np.ones(1)}},
        lambda model: {"model": {**model, "unknown": np.ones(1)}},
        lambda model: {"model": model, "class_weights": {"w": np.ones(1)}},
    ],
    ids=["shape", "missing", "nan", "group", "name", "weights"],
)
@pytest.mark.parametrize("first", [0, 1])
def test_a_training_that_was_refused_is_no_start(node, malformed, first):
    """A malformed request counted as the first training, after which a server chose the parameters."""
    asked = node("train.loss=weighted", "train.class_weights=federated", state=True)
    model = model_of(asked)
    assert isinstance(asked.request("train", first, malformed(model)), str)
    asked.restart()
    assert START in asked.request("train", first + 1, {"model": model_of(asked, 1.5)})


def test_a_first_training_is_on_record_before_it_begins(node, monkeypatch):
    """A node that is killed in it takes part again: it cannot say how far it came."""
    asked, recorded = node(state=True), []
    folder = StateFolder(asked.context.node_config["state"], str(asked.grid.run_id), "fedavg", 0)
    reply = node_clients.plain_reply

    def killed(client, name, groups, config):
        recorded.append(folder.read_asked().trained)
        return reply(client, name, groups, config)

    monkeypatch.setattr(node_clients, "plain_reply", killed)
    assert not isinstance(asked.request("train", 1, {"model": model_of(asked)}), str)
    assert recorded == [True]


def test_an_evaluation_does_not_plant_parameters_that_training_starts_with(node, monkeypatch):
    """Training without a model keeps the client's own parameters: those of an evaluation before it."""
    asked = node()
    monkeypatch.setattr(node_clients, "forget", lambda run: None)  # one process, as on a fleet
    planted = {"model": model_of(asked, 1.5)}
    assert not isinstance(asked.request("evaluate", 0, planted), str)
    assert START in asked.request("train", 1)


@pytest.mark.parametrize("folds", [1, 3, 6])
def test_a_step_of_few_nodes_is_refused(node, folds):
    """A fold of one node revealed that node's label by the sign of the head's gradient."""
    asked = node("strategy=fedspa", f"strategy.folds={folds}")
    reply = asked.request("train", 1, {"model": model_of(asked)})
    if folds == 1:
        assert not isinstance(reply, str)
    else:
        assert f"client 0 has {6 // folds} training nodes in a step, but its node's policy requires at least 5" in reply


def test_a_party_of_few_training_nodes_does_not_train(node):
    asked = node(size=8)
    assert "has 4 training nodes in a step" in asked.request("train", 1, {"model": model_of(asked)})


# --- requests that are none -------------------------------------------------------------------------------------------


MALFORMED = [
    ("fedspa", "deviate", {}),
    ("fedspa", "train", {"peers": {"clients": np.array([0, 1])}}),
    ("fedgcn", "take", {}),
    ("fedomd", "moments_about", {}),
    ("fedsage", "judge", {"proposed": {"1": np.zeros((3, 5), np.float32)}}),
    ("fedsage", "judge", {"proposed": {"1": np.zeros((3, 2), np.float32)}, "owners": {"1": np.zeros(3, np.int32)}}),
    ("fedtad", "train", {"model": {}}),
    ("fedgl", "train", {"pseudo": {"label": np.zeros(3, np.int64)}}),
    ("fedfa", "train", {"running": {}}),
    ("scaffold", "train", {}),
    ("fedlit", "train", {"links": {"x": np.zeros(3, np.float32)}}),
]


@pytest.mark.parametrize(("method", "phase", "groups"), MALFORMED)
def test_a_malformed_request_is_an_error(node, method, phase, groups):
    overrides = {"fedlit": ["model=fedlit"], "fedspa": ["strategy.fisher_exchange=scalar"]}.get(method, [])
    asked = node(f"strategy={method}", *overrides)
    if phase == "train":
        groups = {"model": model_of(asked), **groups}
    reply = asked.request(phase, 1, groups)
    assert isinstance(reply, str)
    assert "Traceback" not in reply


@pytest.mark.parametrize("method", ["fedavg", "fedomd", "fedgl"])
def test_an_array_of_text_is_an_error(node, method):
    record = ArrayRecord({"w": Array(np.array(["a", "bc"]))})
    asked = node(f"strategy={method}")
    for phase in ("train", "evaluate"):
        assert "cannot read array 'w' of a message" in asked.request(phase, 1, {"model": record})


def test_judged_rows_take_no_memory_by_their_index(node):
    """An owner of 2e9 made the client draw as many rows."""
    asked = node("strategy=fedsage", policy={"min_nodes": 0})
    groups = {
        "proposed": {"1": np.zeros((2, 5), np.float32)},
        "owners": {"1": np.array([0, 2_000_000_000], np.int32)},
    }
    assert "owners" in asked.request("judge", 0, groups)


@pytest.mark.parametrize("overrides", [[], ["strategy.neighbours=100000000"]])
def test_a_generator_is_counted_too(node, overrides, monkeypatch):
    if not overrides:  # a wide generator of few neighbours
        monkeypatch.setattr("fedgraph_baselines.clients.fedsage.WIDTHS", (100_000_000,))
    for method, phase in (("fedsage", "generate"), ("fedsage", "mend")):
        reply = node(f"strategy={method}", *overrides, policy={"min_nodes": 0}).request(phase, 0, {})
        assert "at most 100000000 (max_parameters)" in reply


@pytest.mark.parametrize("text", ["strategies: ['${oc.env:HOME}']", "rounds: ${oc.env:NOTHING}", "min_nodes: ${x}"])
def test_a_policy_resolves_nothing(node, text):
    assert "contains '${', which is not resolved" in node(policy=text).request("describe")


def test_a_server_class_that_is_none_is_an_error():
    for target in ("", ":", "a", "."):
        with pytest.raises(FedGraphError, match="cannot be imported"):
            locate(target)


def test_the_ledger_keeps_what_it_pins(node):
    asked = node(state=True)
    asked.request("describe")
    record = json.loads(json.dumps(dict(asked.context.state.config_records[records.ASKED])))
    assert len(record["config"]) == 64
    assert record["resumed"] is False


# --- the start of a run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [0, 3, -1])
def test_a_message_that_trains_claims_no_resumption(node, resume):
    """In round 0 it was believed and trained planted parameters: one message, whatever the seed."""
    asked = node(*WIDE)
    planted = binning(model_of(asked), 64, 5)[0]
    assert f"resumes after round {resume} in a message of phase 'train'" in asked.request(
        "train", 0, {"model": planted}, resume=resume
    )
    assert "training in round 0, the set-up" in asked.request("train", 0, {"model": planted})
    assert "other parameters than its seed=0 gives" in asked.request("train", 1, {"model": planted})
    assert "expected phase 'describe' and no negative round" in node(*WIDE).request("describe", resume=-1)


@pytest.mark.parametrize("kind", ["scaffold", "feddc"])
def test_no_variate_plants_parameters_in_the_first_round(node, kind):
    """From the parameters of the seed, one step along c = (seed's - planted) / lr ends at the planted ones."""
    asked = node(f"strategy.variates={kind}", *WIDE, "train.local_steps=2")
    seeds = model_of(asked)
    planted = binning(seeds, 64, 5)[0]
    variate = {name: (seeds[name] - planted[name]) / 1e-3 for name in seeds}
    first = {ACKNOWLEDGED: {"round": np.zeros(1, np.int64)}, "model": seeds}
    assert "' of 'variates' that is not zero" in asked.request("train", 1, {**first, VARIATES: variate})
    zeros = {name: np.zeros_like(array) for name, array in seeds.items()}
    reply = node(f"strategy.variates={kind}", *WIDE).request("train", 1, {**first, VARIATES: zeros})
    assert not isinstance(reply, str), reply


def test_no_encoder_plants_parameters_that_training_keeps(node, monkeypatch):
    """In a process that stays, FedDEP's `prototype` leaves an encoder in the model, under another name than the model's."""
    monkeypatch.setattr(node_clients, "forget", lambda run_id: None)
    overrides = ["strategy=feddep", "strategy.encoder_rounds=1", "model.hidden=64", "train.local_steps=1", *SGD[1:]]
    asked = node(*overrides, size=60)
    planted = {name: array + 1 for name, array in model_of(asked).items()}
    assert not isinstance(asked.request("prototype", 0, {"encoder": planted}), str)
    assert "other parameters than its seed=0 gives" in asked.request("train", 1)


@pytest.mark.parametrize(
    ("scalars", "message"),
    [
        ({"keep": True, "run": "r"}, "has best=None, expected int"),
        ({"keep": True, "run": "r", "best": "x"}, "has best=x, expected int"),
        ({"keep": "yes", "run": "r", "best": 1}, "has keep=yes, expected bool"),
        ({"checkpoint": True, "run": 7}, "has run=7, expected str"),
        ({"evaluate": "yes"}, "has evaluate=yes, expected bool"),
    ],
)
def test_scalars_of_a_message_have_their_types(node, scalars, message):
    """Some were tracebacks at the node."""
    asked = node()
    assert message in asked.request("train", 1, {"model": model_of(asked)}, **scalars)


def test_a_separate_exchange_between_two_trainings_is_no_start(run, tmp_path, monkeypatch):
    """Round 2 may begin with scores: the parameters that train after them are trained ones."""
    words = ["train.lr=0.5", "strategy.min_clients=3", "evaluation.clients=2"]
    expected = run(*words)
    (tmp_path / "policy.yaml").write_text("min_nodes: 0\n")
    files = sorted(Path(expected.cfg.graph).glob("*.safetensors"))
    party_nodes(monkeypatch, files, tmp_path / "policy.yaml", tmp_path / "state")
    assert_same_arrays(run(*words).arrays, expected.arrays)


@pytest.mark.parametrize("key", GONE)
def test_a_key_that_went_warns_and_names_what_replaces_it(tmp_path, caplog, key):
    path = tmp_path / "policy.yaml"
    path.write_text(f"{key}: 0.5\nmin_nodes: 7\n")
    assert read_policy(str(path)).min_nodes == 7
    assert f"{key}=0.5 has no effect any more: " in caplog.text
    assert ("node --state" if key == "late_start" else "node --agreement") in caplog.text
    path.write_text(f"{key}s: 0.5\n")
    with pytest.raises(FedGraphError, match=f"'{key}s'"):
        read_policy(str(path))

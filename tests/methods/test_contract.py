"""Guarantees of every method, whoever wrote it; a method joins by its file in conf/strategy."""

import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgraph_flwr import partition
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.engine import stacking
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.checks import not_stacked
from fedgraph_flwr.launch.simulations import run_ray
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.wire.messages import from_record
from tests.methods.small_runs import (
    FEATURES,
    METHODS,
    Go,
    by_default,
    declares,
    interruptions,
    is_typed,
    representatives,
    sampled,
)
from tests.nodes import rebuilt_clients
from tests.support import Finished, honest_reply, patch_replies, recorded_messages, same_result

FORMS = [(method, *overrides) for method in METHODS for overrides in [[], *declares(method).variants]]
"""Every method, and with the overrides under which it does what it does not in three rounds of its defaults."""

forms = pytest.mark.parametrize("form", FORMS, ids=" ".join)
some_forms = pytest.mark.parametrize("form", sampled(FORMS))
some_methods = pytest.mark.parametrize("method", sampled(METHODS))

SHARING = [m for m in METHODS if (s := by_default(m).strategy).shared and not s.pooled]
"""Methods of several clients that share something."""


@pytest.fixture(scope="module")
def recorded(go: Go) -> Callable[..., tuple[Finished, list[Any]]]:
    """The first run of a form, and its messages: made once."""
    runs: dict[tuple[str, ...], tuple[Finished, list[Any]]] = {}

    def get(*form: str) -> tuple[Finished, list[Any]]:
        if form not in runs:
            with pytest.MonkeyPatch.context() as patch, recorded_messages(patch) as messages:
                runs[form] = go(*form), messages
        return runs[form]

    return get


@pytest.fixture(scope="module")
def first(recorded: Callable[..., Any]) -> Callable[..., Finished]:
    """The run that the others are compared with, once a form."""
    return lambda *form: recorded(*form)[0]


@some_forms
def test_runs_and_nobody_fails(form, first):
    finished = first(*form)
    assert finished.summary["failures"] == {}
    assert [r["round"] for r in finished.rounds] == [1, 2, 3]
    assert all(np.isfinite(r["train"]["train_loss"]) for r in finished.rounds)
    assert 0 <= finished.summary["test_accuracy"] <= 1
    assert all(np.isfinite(a).all() for a in finished.arrays.values())


@some_methods
def test_training_lowers_the_loss(method, go):
    losses = [r["train"]["train_loss"] for r in go(method, "rounds=12", "model.dropout=0").rounds]
    assert np.mean(losses[-3:]) < losses[0]


# --- what does not move a run -----------------------------------------------------------------------------------------


def other_streams(patch):
    """Streams of random numbers of the process."""
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)


def another_order(patch):
    """Replies arrive in another order in every exchange."""
    pull, rng = InlineGrid.pull_messages, random.Random(0)

    def shuffled(self: InlineGrid, message_ids: Any) -> list[Any]:
        replies = list(pull(self, message_ids))
        order = rng.sample(replies, len(replies))
        moved.append(order != replies)
        return order

    moved: list[bool] = []
    patch.setattr(InlineGrid, "pull_messages", shuffled)
    return moved


LAWS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "streams of random numbers": (other_streams, []),
    "the order of replies": (another_order, []),
    "clients that keep nothing but their state": (rebuilt_clients, []),
    "an attack": (lambda patch: None, ["attack=link_inference"]),
    "checkpoints": (lambda patch: None, ["checkpoint_every=1"]),
}
"""What changes no bit of a run: how it is brought about, by patches and by overrides."""


def under(laws: Iterable[str], go: Go, form: tuple[str, ...]) -> tuple[Finished, list[Any]]:
    """A run in which all of that happens, and what the patches recorded."""
    with pytest.MonkeyPatch.context() as patch:
        recorded = [LAWS[law][0](patch) for law in laws]
        return go(*form, *(word for law in laws for word in LAWS[law][1])), recorded


@pytest.fixture(scope="module")
def again(go: Go) -> Callable[..., tuple[Finished, list[Any], dict[int, Path]]]:
    """The run of a form under all laws, what the patches recorded, and copies of its folder after each round: made once."""
    runs: dict[tuple[str, ...], Any] = {}

    def get(*form: str) -> Any:
        if form not in runs:
            typed = is_typed([f"strategy={form[0]}"])  # which an attack refuses
            with interruptions() as folders:
                runs[form] = *under([law for law in LAWS if law != "an attack" or not typed], go, form), folders
        return runs[form]

    return get


@some_forms
def test_a_run_is_a_function_of_its_configuration(form, go, first, again):
    """Bit for bit, under all `LAWS` at once; where that differs, each alone says which is broken."""
    finished, (_, moved, *_), _ = again(*form)
    assert any(moved) or finished.cfg.strategy.pooled
    try:
        same_result(finished, first(*form))
    except AssertionError as error:
        broken = []
        for law in LAWS:
            try:
                same_result(under([law], go, form)[0], first(*form))
            except (AssertionError, FedGraphError) as alone:
                broken.append(f"{law}: {alone}")
        raise AssertionError(f"{' '.join(form)} depends on {broken or 'several of the laws at once'}") from error


@some_methods
def test_another_seed_gives_another_run(method, go, first):
    other = go(method, "seed=1", "rounds=1")
    assert other.rounds[0]["train"] != first(method).rounds[0]["train"]


@some_methods
def test_every_method_can_be_attacked(method, go, again):
    """The run is the same, by `LAWS`; graphs with typed nodes are refused before it."""
    if is_typed([f"strategy={method}"]):
        with pytest.raises(FedGraphError, match="supports only homogeneous graphs"):
            go(method, "attack=link_inference")
        return
    finished, *_ = again(method)
    attack = finished.summary["attack"]
    hidden = attack["representation"] == "none"
    assert hidden or finished.arrays
    assert not hidden or not finished.arrays or finished.cfg.strategy.private
    assert 0.5 <= attack["accuracy"] <= 1
    assert (attack["auc"] == 0.5) == hidden


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_meets_flipped_edges(method, go, first):
    if is_typed([f"strategy={method}"]):
        with pytest.raises(FedGraphError, match=r"dataset\.edge_flip=0\.3 does not apply"):
            go(method, "dataset.edge_flip=0.3")
        return
    flipped = go(method, "dataset.edge_flip=0.3", "rounds=1")
    assert flipped.summary["failures"] == {}
    assert (flipped.rounds[0]["train"] != first(method).rounds[0]["train"]) == declares(method).edges


@pytest.mark.parametrize("done", [1, pytest.param(2, marks=pytest.mark.faults)])
@some_forms
def test_a_resumed_run_ends_like_one_that_was_never_interrupted(form, done, go, first, again):
    """From a copy of the folder after round ``done``, in a process that has forgotten the clients."""
    finished, _, folders = again(*form)
    tensors, values = read_tensors(folders[done] / "checkpoint.safetensors")
    assert values["round"] == done
    assert {name.removeprefix("arrays/") for name in tensors if name.startswith("arrays/")} == set(finished.arrays)
    node_clients.forget(0)
    same_result(go(*form, f"resume={folders[done]}", f"out={folders[done]}"), first(*form))


@some_forms
def test_stacked_clients_train_as_each_does_alone(form, go, first, monkeypatch):
    """What cannot be stacked is the same run, bit for bit."""
    init, stacks = stacking.Stack.__init__, []
    monkeypatch.setattr(stacking, "SLACK", 10)  # the three are of unlike size
    monkeypatch.setattr(stacking.Stack, "__init__", lambda *args, **w: stacks.append(len(args[1])) or init(*args, **w))
    if not_stacked(first(*form).cfg):
        finished = go(*form, "rounds=1", "stack=3")
        assert (stacks, finished.summary["stacked"]) == ([], 0)
        assert finished.rounds[0]["train"] == first(*form).rounds[0]["train"]
        return
    overrides = ["dtype=float64", "rounds=2"]
    alone, stacked = go(*form, *overrides), go(*form, *overrides, "stack=3")
    several = alone.cfg.num_clients > 1 and not alone.cfg.strategy.pooled
    assert set(stacks) == ({3} if several else set())
    assert stacked.summary["stacked"] == 3
    for name, array in alone.arrays.items():
        np.testing.assert_allclose(
            stacked.arrays[name], array, rtol=1e-9, atol=1e-9 * np.abs(array).max(), err_msg=name
        )
    losses = [[r["train"]["train_loss"] for r in run.rounds] for run in (alone, stacked)]
    np.testing.assert_allclose(*losses, rtol=1e-9)


@some_methods
def test_a_part_of_the_clients_trains_in_a_round(method, go):
    """Under ``strategy.fraction`` cohorts change, absent clients keep what is theirs, and a resumption repeats all that."""
    overrides = ["strategy.fraction=0.67", "rounds=3", "num_clients=3"]
    with interruptions() as folders:
        whole = go(method, *overrides, "checkpoint_every=1")
    cohorts = [record["cohort"] for record in whole.rounds]
    pooled = whole.cfg.strategy.pooled
    assert {len(cohort) for cohort in cohorts} == {1 if pooled else 2}
    assert pooled or len({tuple(cohort) for cohort in cohorts}) > 1
    assert whole.summary["failures"] == {}
    node_clients.forget(0)
    same_result(go(method, *overrides, f"resume={folders[2]}", f"out={folders[2]}"), whole)


LIMITS = [
    pytest.param(
        method,
        limit,
        id=f"{method}-{' '.join(limit.overrides) or 'as it is'}",
        marks=() if method in representatives() else pytest.mark.slow,
    )
    for method in METHODS
    for limit in declares(method).limits
]


@pytest.mark.parametrize(("method", "limit"), LIMITS)
def test_a_method_is_another_at_the_limits_that_it_declares(method, limit, first):
    """The same losses in every round, and the same values of the shared parameters that both have."""
    (other,) = [word.partition("=")[2] for word in limit.equals if word.startswith("strategy=")]
    one = first(method, *limit.overrides, *limit.also)
    two = first(other, *[word for word in limit.equals if not word.startswith("strategy=")], *limit.also)
    compare = partial(np.testing.assert_allclose, rtol=limit.within, atol=limit.within)
    compare(*([r["train"]["train_loss"] for r in run.rounds] for run in (one, two)))
    compare(*([r["metrics"]["val_loss"] for r in run.rounds] for run in (one, two)))
    for name in one.arrays.keys() & two.arrays.keys():
        compare(one.arrays[name], two.arrays[name], err_msg=name)


@some_methods
def test_messages_request_known_phases_and_hold_no_features_labels_or_edges(method, recorded):
    """No array has a client's number of nodes, edges or training nodes in its shape, or the values of a row of its features."""
    finished, messages = recorded(method)
    graphs = [partition.load_client(finished.cfg, i) for i in range(partition.num_clients(finished.cfg))]
    sizes = {size for graph in graphs for size in _sizes(graph)}
    features = np.unique(np.concatenate([_features(graph) for graph in graphs]))
    assert len(messages) > 2 * len(graphs)
    tall, open_ = set(), set()
    for way, _, content in messages:
        for group, record in content.array_records.items():
            for array in from_record(record).values():
                if sizes & set(array.shape):
                    tall.add((way, group))
                if array.dtype.kind == "f" and np.isin(array, features).sum() >= FEATURES:
                    open_.add((way, group))
        for record in content.metric_records.values():
            assert not any(isinstance(v, list) and len(v) in sizes for v in record.values())
    declared = declares(method)
    assert {"/".join(group) for group in tall} == set(declared.sized)
    assert {"/".join(group) for group in open_} == set(declared.features)
    requested = {str(c.config_records["config"]["phase"]) for way, _, c in messages if way == "down"}
    client = locate(finished.cfg.strategy.client)
    phases = {name for name in requested if getattr(getattr(client, name, None), "is_phase", False)}
    assert requested - phases <= {"describe", "train", "evaluate"}


def _sizes(graph: Any) -> set[int]:
    """Numbers of nodes, edges and training nodes of a client that no model or cohort has for another reason."""
    edges = [graph.edge_index.size(1)] if hasattr(graph, "edge_index") else [e.size(1) for e in graph.edges.values()]
    typed = list(getattr(graph, "counts", {}).values())
    return {graph.num_nodes, graph.y.numel(), int(graph.train_mask.sum()), *edges, *typed} - set(range(10))


def _features(graph: Any) -> np.ndarray:
    tables = [graph.x] if isinstance(graph.x, torch.Tensor) else list(graph.x.values())
    values = np.concatenate([t.numpy().ravel() for t in tables] or [np.zeros(0, np.float32)])
    return values[(values != 0) & (values != 1)]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_says_what_leaves_a_client(method):
    strategy = by_default(method).strategy
    for target in (strategy.server, strategy.client):
        texts = [f"{sys.modules[cls.__module__].__doc__} {cls.__doc__}" for cls in locate(target).__mro__]
        assert any("eaves" in text for text in texts), target


@pytest.mark.slow
@pytest.mark.xdist_group("one ray")
@pytest.mark.usefixtures("one_ray")
def test_methods_of_every_purpose_give_the_same_on_ray(first, tmp_path):
    """Every method's clients are rebuilt, and its messages encoded, in `LAWS`."""
    different = []
    for form in (form for form in FORMS if form[0] in representatives()):
        inline = first(*form)
        cfg = replace(inline.cfg, engine="ray", out=str(tmp_path / "_".join(form)))
        try:
            same_result(Finished(cfg, run_ray(cfg)), inline)
        except AssertionError as error:
            different.append(f"{' '.join(form)}: {error}")
    assert different == []


@pytest.mark.slow
@pytest.mark.parametrize("method", SHARING)
def test_an_answer_to_another_phase_is_named_and_no_crash(go, first, method, monkeypatch):
    """Client 1 replies to one request of a phase as though it were asked to describe itself."""
    original = honest_reply
    for phase in sorted(first(method).summary["bytes_by_phase"].keys() - {"describe", "evaluate"}):
        wrong: list[str] = []

        def answer(self, name, groups, config, phase=phase, wrong=wrong):
            if name == phase and self.graph.client == 1 and not wrong:
                wrong.append(name)
                return original(self, "describe", {}, {})
            return original(self, name, groups, config)

        patch_replies(monkeypatch, answer)
        try:
            message = " ".join(go(method, "rounds=1").summary["failures"])
        except RunFailed as failure:  # of a method that needs all clients
            message = str(failure)
        assert wrong == [phase]
        assert f"'{phase}'" in message or "1 (" in message or "client 1" in message, (phase, message)


@pytest.mark.parametrize(
    ("method", "phase", "group", "name"),
    [
        ("fedomd", "moments_sum", "range", "range"),
        ("fedstruct", "acquire", "rows", "reached"),
        ("fedstruct", "train", "structure", "s"),
    ],
)
def test_an_answer_that_lacks_one_array_is_rejected(go, monkeypatch, method, phase, group, name):
    original = honest_reply

    def answer(self, asked, groups, config):
        sent, numbers = original(self, asked, groups, config)
        if asked == phase and self.graph.client == 1 and group in sent:
            sent[group] = {key: array for key, array in sent[group].items() if key != name}
        return sent, numbers

    patch_replies(monkeypatch, answer)
    try:
        message = str(go(method, "rounds=1").summary["failures"])
    except RunFailed as failure:
        message = str(failure)
    assert "client 1" in message
    assert name in message

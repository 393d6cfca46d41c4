"""Guarantees of all personalised methods, and the server that mixes one model per client."""

from typing import Any

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.state import restore_state, state_of
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.uplink import every_model
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.strategies.personal import PersonalStrategy
from fedgraph_flwr.wire.messages import MODEL, Reply
from fedgraph_flwr.wire.trees import flatten, unflatten
from tests.methods.personal import made, scores_by_client
from tests.methods.small_runs import METHODS, by_default
from tests.support import Finished, assert_same_arrays, call_fresh, recorded_messages

PERSONAL = [name for name in METHODS if by_default(name).strategy.personal]
ADDED = ["apfl", "ditto", "fedavg_ft"]
"""Methods whose shared model is FedAvg's, whatever their keys."""


def elsewhere(client: Any, shift: float = 0.1) -> list[np.ndarray]:
    """Shared parameters that are not the client's own."""
    return [array + np.float32(shift) for array in client.get_parameters({})]


def state(client: Any) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in flatten(state_of(client)).items()} | {
        name: t.detach().clone() for name, t in client.model.state_dict().items()
    }


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("method", PERSONAL)
def test_scoring_changes_nothing(method, norm):
    """Neither the state, nor the model, nor the random stream, nor the optimiser; before training and after."""
    client = made(method, f"model.norm={norm}")
    for _ in range(3):
        client.set_parameters(elsewhere(client))
        before, stream, optimizer = state(client), torch.get_rng_state(), client.optimizer
        first, again = client.predict(), client.predict()
        torch.testing.assert_close(first, again, rtol=0, atol=0)
        after = state(client)
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            torch.testing.assert_close(after[name], tensor, rtol=0, atol=0, msg=name)
        assert torch.equal(torch.get_rng_state(), stream)
        assert client.optimizer is optimizer
        client.train()


@pytest.mark.parametrize("method", PERSONAL)
def test_a_failed_step_leaves_the_shared_model_in_its_place(method, monkeypatch):
    client = made(method)
    client.train()
    client.set_parameters(elsewhere(client))
    before, optimizer = client.get_parameters({}), client.optimizer
    monkeypatch.setattr(client.model, "classify", None)
    with pytest.raises(TypeError):
        client.predict()
    for array, former in zip(client.get_parameters({}), before, strict=True):
        np.testing.assert_array_equal(array, former)
    assert client.optimizer is optimizer


@pytest.mark.parametrize("method", PERSONAL)
def test_the_clients_own_model_is_another_than_the_shared_one(method, run):
    """`test_accuracy` is of the one, `global_test_accuracy` of the other."""
    finished = run(f"strategy={method}", "rounds=4")
    for record in finished.rounds[1:]:
        assert record["metrics"]["val_loss"] != record["metrics"]["global_val_loss"]


@pytest.mark.parametrize("overrides", [[], ["train.optimizer=sgd", "train.momentum=0.9"], ["strategy.fraction=0.67"]])
@pytest.mark.parametrize("method", ADDED)
def test_the_shared_model_is_fedavgs_bit_for_bit(method, overrides, run, baseline):
    """With dropout, whose stream the own model must not disturb."""
    rounds = ["rounds=4", "model.norm=batch", *overrides]
    finished, fedavg = run(f"strategy={method}", *rounds), baseline(*rounds)
    assert_same_arrays(finished.arrays, fedavg.arrays)
    for key in ("val_loss", "test_loss"):
        assert [r["metrics"][f"global_{key}"] for r in finished.rounds] == [r["metrics"][key] for r in fedavg.rounds]


@pytest.mark.parametrize("method", PERSONAL)
def test_nothing_of_the_clients_own_leaves_it(method, run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = run(f"strategy={method}")
    if not finished.cfg.strategy.shared:
        pytest.skip("shares no model; its own tests look at what it sends instead")
    sent = [content.array_records for way, _, content in messages if way == "up" and content.array_records]
    assert sent
    for records in sent:
        assert set(records) == {MODEL}
        assert set(records[MODEL]) == set(finished.arrays)


@pytest.mark.parametrize("method", PERSONAL)
def test_an_absent_client_keeps_what_is_its_own(method, run, monkeypatch):
    """Rounds that a client does not train in change neither its state nor, by that, any other's; fresh clients know it all."""
    overrides = [f"strategy={method}", "strategy.fraction=0.34", "rounds=4", "model.norm=batch"]
    one = run(*overrides)
    assert {len(r["cohort"]) for r in one.rounds} == {1}
    monkeypatch.setattr("fedgraph_flwr.engine.inline.InlineGrid._call", call_fresh)
    two = run(*overrides)
    assert_same_arrays(one.arrays, two.arrays)
    assert scores_by_client(one) == scores_by_client(two)


@pytest.mark.parametrize("method", PERSONAL)
def test_state_goes_through_its_flat_form(method):
    """A client restored from its snapshot continues to the same parameters and scores."""
    one, two = made(method, "model.norm=batch"), made(method, "model.norm=batch")
    given = elsewhere(one)
    one.set_parameters(given)
    one.train()
    restore_state(two, unflatten({name: t.clone() for name, t in flatten(state_of(one)).items()}))
    for client in (one, two):
        torch.manual_seed(5)
        client.set_parameters([2 * array for array in given])
        client.train()
    assert torch.equal(one.predict(), two.predict())
    for a, b in zip(one.get_parameters({}), two.get_parameters({}), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("method", PERSONAL)
def test_a_client_without_training_nodes_is_scored_by_the_shared_model(method):
    client = made(method)
    client.train_nodes = client.train_nodes[:0]
    client.fit(elsewhere(client), {})
    assert torch.equal(client.predict(), client.predict_shared())


# --- prefixes of what is shared and what is private ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strategy=fedbn", "model=gcn"], r"strategy\.private: 'norms\.' matches no parameter of model=gcn"),
        (["strategy=fedper", "strategy.private=[haed]"], r"'haed' matches no parameter .* start with head\., layers\."),
        (["strategy.shared=[layer0]"], r"strategy\.shared: 'layer0' matches no parameter"),
        (["strategy=fedala", "strategy.mixed=[last]"], r"strategy\.ala\.mixed: 'last' matches no parameter"),
    ],
)
def test_a_prefix_of_nothing_is_refused(overrides, message, run):
    with pytest.raises(FedGraphError, match=message):
        run(*overrides)


@pytest.mark.parametrize(
    ("overrides", "private"),
    [
        (["strategy=fedper"], {"head.weight", "head.bias"}),
        (["strategy=fedbn"], {f"norms.0.{n}" for n in ("weight", "bias", "running_mean", "running_var")}),
        (["strategy=fedbn", "model=sage", "model.norm=layer"], {"norms.0.weight", "norms.0.bias"}),
        (["strategy=fedper", "model=acm"], None),
    ],
)
def test_private_parameters_differ_between_clients_and_never_travel(overrides, private, run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = run(*overrides, "checkpoint_every=3")
    travelled = {n for _, _, content in messages for record in content.array_records.values() for n in record}
    model = made("fedavg", *overrides, "model.hidden=8").model
    floats = {name for name, t in model.state_dict().items() if t.is_floating_point()}
    private = set(model.head_names()) if private is None else private
    assert private <= floats
    assert travelled == floats - private == set(finished.arrays)
    kept = [read_tensors(path)[0] for path in sorted((finished.out / "state").rglob("round_*.safetensors"))]
    assert len(kept) == 3
    for name in private:
        assert not torch.equal(kept[0][f"model/{name}"], kept[1][f"model/{name}"])


# --- the server that keeps one model a client ------------------------------------------------------------------------


class Identity(PersonalStrategy):
    """A = I."""

    def mixing(self, replies: list[Reply]) -> np.ndarray:
        return np.eye(len(replies))


class Uniform(PersonalStrategy):
    """A = 1/n."""

    def mixing(self, replies: list[Reply]) -> np.ndarray:
        return np.full((len(replies), len(replies)), 1 / len(replies))


class Neighbour(PersonalStrategy):
    """Half of its own, half of the next one's: a matrix whose transpose is another."""

    def mixing(self, replies: list[Reply]) -> np.ndarray:
        eye = np.eye(len(replies))
        return (eye + np.roll(eye, 1, axis=1)) / 2


class Lavish(PersonalStrategy):
    """Rows that sum to 2."""

    def mixing(self, replies: list[Reply]) -> np.ndarray:
        return 2 * np.eye(len(replies))


class Narrow(PersonalStrategy):
    """One row for all."""

    def mixing(self, replies: list[Reply]) -> np.ndarray:
        return np.full((1, len(replies)), 1 / len(replies))


class Mixed(GraphClient):
    uplink = staticmethod(every_model)


def server(kind: type) -> list[str]:
    return [f"strategy.server={__name__}:{kind.__name__}", f"strategy.client={__name__}:Mixed"]


def models_of(finished: Finished) -> dict[str, np.ndarray]:
    return {name: t.numpy() for name, t in read_tensors(finished.out / "models_final.safetensors")[0].items()}


def test_the_identity_is_local(run):
    finished, local = run(*server(Identity), "rounds=4"), run("strategy=local", "rounds=4")
    assert scores_by_client(finished) == scores_by_client(local)
    assert [r["train"] for r in finished.rounds] == [r["train"] for r in local.rounds]


def test_the_identity_on_what_is_shared_alone_is_local(run):
    finished = run(*server(Identity), "strategy.private=[head]", "rounds=4")
    assert scores_by_client(finished) == scores_by_client(run("strategy=local", "rounds=4"))
    assert not any("head" in name for name in models_of(finished))


def test_uniform_rows_are_fedavg(run):
    overrides = ["strategy.weighting=uniform", "dtype=float64", "rounds=4"]
    finished, fedavg = run(*server(Uniform), *overrides), run(*overrides)
    for name, array in models_of(finished).items():
        np.testing.assert_allclose(array, fedavg.arrays[name.partition("/")[2]], rtol=1e-12, atol=1e-12)
    for name, array in finished.arrays.items():
        np.testing.assert_allclose(array, fedavg.arrays[name], rtol=1e-12, atol=1e-12)


def test_a_row_is_the_recipe_of_its_client(run, monkeypatch):
    """Client i has half of its own and half of client i + 1's, by hand; the shared model is the weighted mean."""
    with recorded_messages(monkeypatch) as messages:
        finished = run(*server(Neighbour), "rounds=1")
    up = [c.array_records[MODEL] for way, _, c in messages if way == "up" and MODEL in c.array_records]
    models = models_of(finished)
    assert len(models) == 3 * len(up[0])
    for name in up[0]:
        a, b, c = (record[name].numpy().astype(np.float64) for record in up)
        for client, wanted in enumerate(((a + b) / 2, (b + c) / 2, (c + a) / 2)):
            np.testing.assert_array_equal(models[f"{client}/{name}"], wanted.astype(np.float32))
        np.testing.assert_allclose(finished.arrays[name], (6 * a + 8 * b + 10 * c) / 24, rtol=1e-5, atol=1e-7)


def test_an_absent_client_keeps_its_model_and_a_new_one_starts_from_the_mean(run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = run(*server(Neighbour), "strategy.fraction=0.67", "rounds=4", "evaluation.every=99")
    down: list[tuple[int, int, Any]] = [  # round, client, what it was sent
        (int(c["config"]["round"]), node, c[MODEL])
        for way, node, c in messages
        if way == "down" and c["config"]["phase"] == "train"
    ]
    node_of = dict(enumerate(sorted({node for _, node, _ in down})))
    cohorts = [record["cohort"] for record in finished.rounds]
    up = [c for way, _, c in messages if way == "up" and MODEL in c.array_records]
    models: dict[int, dict[str, np.ndarray]] = {}
    mean: dict[str, np.ndarray] | None = None
    answers = iter(up)
    for server_round, cohort in enumerate(cohorts, 1):
        for client in cohort:
            (sent,) = [record for r, node, record in down if (r, node) == (server_round, node_of[client])]
            if expected := models.get(client, mean):
                for name, array in expected.items():
                    np.testing.assert_allclose(sent[name].numpy(), array, rtol=1e-6, atol=1e-7)
        replies = {client: next(answers)[MODEL] for client in cohort}
        first, second = cohort
        half = {n: (replies[first][n].numpy() + replies[second][n].numpy()) / 2 for n in finished.arrays}
        models |= {first: half, second: half}
        weights = {client: (6, 8, 10)[client] for client in cohort}
        mean = {
            n: sum(w * replies[c][n].numpy() for c, w in weights.items()) / sum(weights.values())
            for n in finished.arrays
        }
    assert len({tuple(cohort) for cohort in cohorts}) > 1
    for name, array in models_of(finished).items():
        client, _, part = name.partition("/")
        np.testing.assert_allclose(array, models[int(client)][part], rtol=1e-6, atol=1e-7)


def test_mixed_models_are_resumed(run):
    overrides = [*server(Neighbour), "strategy.fraction=0.67"]
    whole = run(*overrides, "rounds=4")
    half = run(*overrides, "rounds=2", "checkpoint_every=1")
    node_clients.forget(0)
    rest = run(*overrides, "rounds=4", f"resume={half.out}", f"out={half.out}")
    assert_same_arrays(models_of(rest), models_of(whole))
    assert_same_arrays(rest.arrays, whole.arrays)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Lavish, r"the mixing weights of client 0 sum to 2, expected 1"),
        (Narrow, r"the mixing matrix has shape \(1, 3\), expected \(3, 3\)"),
    ],
)
def test_a_matrix_that_mixes_wrongly_is_refused(kind, message, run):
    with pytest.raises(FedGraphError, match=message):
        run(*server(kind))

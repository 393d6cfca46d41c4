"""Local steps on parts of a client's graph: equal to full batches where nothing is left out, and the same everywhere."""

import numpy as np
import pytest
import torch
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.utils import subgraph

from fedgraph_flwr import models
from fedgraph_flwr.clients import subgraph_batches
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose, group_names
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.launch.simulations import run_ray
from tests.clients.sampled_models import IN_PARTS, MODELS, grads, samples
from tests.clients.sampled_models import WORDS as NEIGHBOURS
from tests.methods import small_runs as small
from tests.methods.small_runs import by_default
from tests.support import call_fresh, same_result

CLUSTERS = ["train.sampler=clusters", "train.clusters=6", "train.clusters_per_batch=2"]
SAINT = ["train.sampler=saint", "train.batch_size=5"]
ALL = ["train.sampler=clusters", "train.clusters=4", "train.clusters_per_batch=4"]


def client_of(graph, *overrides, file=None):
    return GraphClient(compose([*overrides, "dtype=float64", "model.dropout=0", "model.hidden=8"]), graph, "cpu", file)


def overrides_of(name):
    params = [f"model.{key}={str(value).lower()}" for key, value in MODELS[name].items()]
    return [f"model={name.split()[0]}", *params, *(["model.layers=3"] if name == "fedomd" else [])]


@pytest.mark.parametrize("name", [name for name in MODELS if name != "mlp"])
def test_all_parts_in_one_batch_are_the_full_batch(name, graph):
    """Logits and gradients, to 1e-12; parts keep the order of nodes and edges."""
    client = client_of(graph, *ALL, *overrides_of(name))
    batch = next(client.batches())
    logits, expected = (client.model(inputs) for inputs in (batch.inputs, client.inputs))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
    assert batch.nodes.equal(client.train_nodes)
    assert batch.y.equal(client.y[client.train_nodes])
    other = grads(expected, client.model)
    for parameter, grad in grads(logits, client.model).items():
        torch.testing.assert_close(grad, other[parameter], rtol=0, atol=1e-12, msg=parameter)


def nodes_of(client, index=0, server_round=1):
    parts = client.sampled.part(server_round, index)
    return np.sort(np.concatenate([client.sampled.members[part] for part in parts.tolist()]))


@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_a_batch_is_pygs_subgraph(name, graph):
    """PyG's own subgraph and layers, which normalise by the degrees within the batch."""
    client = client_of(graph, *CLUSTERS, f"model={name}")
    batch = next(client.batches())
    nodes = torch.from_numpy(nodes_of(client))
    assert 0 < len(nodes) < graph.num_nodes
    edge_index, _ = subgraph(nodes, graph.edge_index, relabel_nodes=True, num_nodes=graph.num_nodes)
    if name == "gcn":  # PyG adds parallel loops' weights, ours counts one loop per node
        edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    layers = [GCNConv(5, 8), GCNConv(8, 3)] if name == "gcn" else [SAGEConv(5, 8), SAGEConv(8, 3)]
    for layer, counterpart in zip(layers, (client.model.layers[0], client.model.head), strict=True):
        state = (
            {"bias": counterpart.bias, "lin.weight": counterpart.weight.T}
            if name == "gcn"
            else {
                "lin_l.weight": counterpart.neighbours.weight.T,
                "lin_l.bias": counterpart.itself.bias,
                "lin_r.weight": counterpart.itself.weight.T,
            }
        )
        layer.double().load_state_dict(state)
    h = layers[0](graph.x[nodes].double(), edge_index).relu()
    torch.testing.assert_close(client.model(batch.inputs), layers[1](h, edge_index), rtol=0, atol=1e-12)
    train = graph.train_mask[nodes].nonzero().view(-1)
    assert batch.nodes.equal(train)
    assert batch.y.equal(graph.y[nodes][train])


def test_an_epoch_deals_every_part_once_and_training_nodes_to_every_batch(graph):
    """Only three nodes train, so that most parts have none; steps of a round continue the epoch of the one before."""
    mask = torch.zeros(30, dtype=torch.bool)
    mask[[2, 11, 29]] = True
    few = type(graph)(**{**vars(graph), "train_mask": mask})
    client = client_of(
        few, "train.sampler=clusters", "train.clusters=8", "train.clusters_per_batch=2", "train.local_steps=1"
    )
    batches = client.sampled.per_epoch
    assert 1 < batches <= 3
    for epoch in range(3):
        steps = range(1 + epoch * batches, 1 + (epoch + 1) * batches)
        dealt = np.concatenate([client.sampled.part(server_round, 0) for server_round in steps])
        np.testing.assert_array_equal(np.sort(dealt), sorted(client.sampled.members))
        assert all(len(client.sampled.step(server_round, 0, 0).y) for server_round in steps)
    members = np.concatenate(list(client.sampled.members.values()))
    np.testing.assert_array_equal(np.sort(members), np.arange(30))


def test_parts_are_computed_once_per_client_and_seed(graph, tmp_path, monkeypatch):
    calls = []
    metis = subgraph_batches.metis
    monkeypatch.setattr(subgraph_batches, "metis", lambda *args: calls.append(args) or metis(*args))
    file = tmp_path / "client_0000.safetensors"
    graph.save(file)
    first, again = (client_of(graph, *CLUSTERS, file=file) for _ in range(2))
    assert len(calls) == 1
    for part, nodes in first.sampled.members.items():
        np.testing.assert_array_equal(again.sampled.members[part], nodes)
    client_of(graph, *CLUSTERS, "seed=1", file=file)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (
            ["train.clusters=5"],
            r"train\.clusters=5 has no effect with train\.sampler=none: set train\.sampler=clusters",
        ),
        ([*CLUSTERS, "train.batch_size=4"], r"train\.batch_size=4 has no effect with train\.sampler=clusters"),
        ([*CLUSTERS, "train.fanout=[5,5]"], r"train\.fanout=\[5, 5\] has no effect with train\.sampler=clusters"),
        (
            [*CLUSTERS, "train.clusters_per_batch=7"],
            r"clusters_per_batch must be at most train\.clusters=6, got 7",
        ),
        ([*CLUSTERS, "train.clusters=0"], r"train\.clusters must be >= 1, got 0"),
        (
            [*CLUSTERS, "model=mlp"],
            r"model=mlp, which reads no edges: set train\.sampler=neighbors with train\.fanout=\[\]",
        ),
        ([*CLUSTERS, "model=fedstar"], "does not support model=fedstar, which reads more than the edges between nodes"),
        (["train.sampler=saint"], r"draws train\.batch_size edges per step, but train\.batch_size=0: set another"),
        (
            [*SAINT, "train.clusters=5"],
            r"train\.clusters=5 has no effect with train\.sampler=saint: set train\.sampler=clusters",
        ),
        ([*SAINT, "train.stable_draws=true"], r"stable_draws=true has no effect with train\.sampler=saint"),
        (
            [*SAINT, "train.loss=weighted", "train.class_weights=federated"],
            "does not support train.class_weights=federated",
        ),
        ([*SAINT, "model=mlp"], r"train\.sampler=saint does not support model=mlp, which reads no edges"),
        ([*SAINT, "model.norm=batch"], r"model=gcn, which needs a whole graph in every step with model\.norm=batch"),
        ([*CLUSTERS, "model.norm=standardize"], r"model=gcn, which reads more than the edges between nodes"),
        ([*CLUSTERS, "strategy=fgssl"], r"train\.sampler=clusters does not support strategy=fgssl"),
        ([*CLUSTERS, "strategy=moon"], "does not support the part 'moon' of strategy=moon"),
        (
            [*CLUSTERS, "task=links"],
            r"train\.sampler=clusters does not support task=links, whose pairs between two parts",
        ),
    ],
)
def test_what_does_not_fit_is_refused(overrides, match):
    with pytest.raises(FedGraphError, match=match):
        check_method(compose(overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["sampler=clusters", "clusters=31"],
            r"clusters=31 is more than the 30 nodes of client 0: set it to at most 30",
        ),
        (
            ["sampler=saint", "batch_size=999"],
            r"batch_size=999 is more than the \d+ edges of client 0: set it to at most",
        ),
    ],
)
def test_more_than_there_is_is_refused(graph, overrides, message):
    with pytest.raises(FedGraphError, match=message):
        client_of(graph, *(f"train.{word}" for word in overrides))


@pytest.mark.parametrize("loss", ["cross_entropy", "weighted", "focal"])
@pytest.mark.parametrize("name", ["gcn", "sage", "gine", "fedspa", "decoupled"])
def test_saint_with_all_nodes_is_the_full_batch(name, loss, graph):
    """Loss and gradients to 1e-12, where so many edges are drawn that every node is certain."""
    overrides = [*overrides_of(name), f"train.loss={loss}"]
    client, whole = client_of(graph, *SAINT, *overrides), client_of(graph, *overrides)
    client.sampled.sampler.draws = 10**5
    client.batch = next(client.batches())
    assert len(client.batch.y) == 15
    sampled_loss, expected = client.loss(), whole.loss()
    close = {"rtol": 0, "atol": 1e-7 if loss == "weighted" else 1e-12}  # class weights are float32
    torch.testing.assert_close(sampled_loss, expected, **close)
    for loss_of, owner in ((sampled_loss, client), (expected, whole)):
        owner.model.zero_grad()
        loss_of.backward()
    for mine, other in zip(client.model.parameters(), whole.model.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad, **close)


@pytest.mark.parametrize("name", ["gcn", "sage", pytest.param("fedspa", marks=pytest.mark.slow)])
def test_saint_is_unbiased_for_a_linear_layer(name, graph):
    """The mean over draws of Σ_v logits_v / (V p_v) is the full batch's mean over training nodes; so is that of the weights."""
    client = client_of(graph, *SAINT, f"model={name}", "model.layers=1")
    if name == "fedspa":
        for parameter, value in client.model.named_parameters():
            if "phi" in parameter:
                value.data.zero_()  # its mixture is linear at α = 1/2
    estimates = []
    with torch.no_grad():
        expected = torch.cat([client.model(client.inputs)[client.train_nodes].mean(0), torch.ones(1)])
        for step in range(600):
            batch = client.sampled.step(1, 0, step)
            logits = client.model(batch.inputs)[batch.nodes]
            estimates.append(torch.cat([batch.shares @ logits, batch.shares.sum()[None]]))
    made = torch.stack(estimates)
    assert ((made.mean(0) - expected).abs() < 4 * made.std(0) / len(made) ** 0.5).all()
    assert made.std(0).min() > 0.01


def test_a_saint_step_divides_edges_and_losses_by_their_probabilities(graph):
    """A dense matrix with entries S_vu p_v / p_uv, by a loop; probabilities are those of `test_saint`."""
    client = client_of(graph, *SAINT, "model=sage", "model.layers=1")
    batch, sampler = client.sampled.step(1, 0, 0), client.sampled.sampler
    nodes = sampler.sample(client.sampled.key(1, 0, 0))
    held = sampler.nodes(np.arange(30))
    matrix = np.zeros((30, 30))
    np.add.at(matrix, tuple(graph.edge_index.numpy()[::-1]), 1)
    matrix /= np.maximum(matrix.sum(1, keepdims=True), 1)
    for v, u in zip(*matrix.nonzero(), strict=True):
        if v != u:
            matrix[v, u] *= held[v] / sampler.pairs(np.array([v]), np.array([u]))[0]
    x, head = graph.x[nodes].double(), client.model.head
    mean = torch.from_numpy(matrix[np.ix_(nodes, nodes)]) @ x
    expected = x @ head.itself.weight + head.itself.bias + mean @ head.neighbours.weight
    torch.testing.assert_close(client.model(batch.inputs), expected, rtol=0, atol=1e-12)
    shares = 1 / held[nodes][batch.nodes.numpy()] / 15
    np.testing.assert_allclose(batch.shares.numpy(), shares, rtol=1e-12)


def test_a_saint_step_without_training_nodes_has_loss_zero(graph):
    mask = torch.zeros(30, dtype=torch.bool)
    client = client_of(type(graph)(**{**vars(graph), "train_mask": mask}), *SAINT)
    client.batch = next(client.batches())
    client.loss().backward()
    assert not any(parameter.grad.any() for parameter in client.model.parameters())


SAMPLERS = {"clusters": [*CLUSTERS, "train.local_steps=2"], "saint": [*SAINT, "train.local_steps=2"]}


def reads_parts(strategy):
    """Whether a method declares that it trains on batches, with a model that can read parts of a graph."""
    return samples(strategy) and models.probe(by_default(strategy).model).subgraphs


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(name, marks=() if name in {"fedomd", "scaffold"} else pytest.mark.slow)
        for name in group_names("strategy")
        if name != "central" and reads_parts(name)
    ],
)
def test_every_method_that_samples_trains_on_parts(strategy, sampler, go):
    run = go(strategy, *SAMPLERS[sampler], "rounds=2", *IN_PARTS.get(strategy, ()))
    assert all(np.isfinite(array).all() for array in run.arrays.values())
    assert len(run.rounds) == 2


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_resumed_run_and_clients_built_again_have_the_same_bits(sampler, go, monkeypatch):
    """Epochs have three batches and a round two, so that the first round ends inside of an epoch."""
    overrides = [*SAMPLERS[sampler], "checkpoint_every=1"]
    whole, half = go("fedavg", *overrides), go("fedavg", *overrides, "rounds=1")
    same_result(go("fedavg", *overrides, f"resume={half.out}", f"out={half.out}"), whole)
    monkeypatch.setattr(InlineGrid, "_call", call_fresh)
    same_result(go("fedavg", *overrides), whole)


@pytest.mark.slow
@pytest.mark.xdist_group("one ray")
@pytest.mark.usefixtures("one_ray")
def test_ray_has_the_same_bits(go):
    """Of each sampler."""
    forms = [NEIGHBOURS, *SAMPLERS.values()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small, "run_inline", run_ray)
        on_ray = [go("fedavg", *form, "engine=ray") for form in forms]
    for form, run in zip(forms, on_ray, strict=True):
        same_result(run, go("fedavg", *form))

"""Local steps on batches with sampled neighbours: equal to full batches where nothing is left out, and the same everywhere."""

import contextlib
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedgraph_flwr import models
from fedgraph_flwr.clients import base, batches
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.batches import NeighbourBatches, in_order
from fedgraph_flwr.config import compose, group_names
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.models.edge_networks import EdgeFeatureBatch
from fedgraph_flwr.numerics.blocks import batch_inputs
from fedgraph_flwr.numerics.sampler import NeighbourSampler
from fedgraph_flwr.tasks import Batch
from tests.clients.sampled_models import EVERY, IN_PARTS, MODELS, SAMPLED, WORDS, built, grads, samples
from tests.support import call_fresh, same_result


def batch(model, graph, seeds, fanout, key=1):
    inputs = model.prepare(graph, dtype=torch.float64)
    neighbours = model.neighbours(graph, dtype=torch.float64)
    fanouts = [fanout] * model.sampled_hops
    sampler = NeighbourSampler(neighbours.indptr, neighbours.indices, fanouts, back=neighbours.back)
    block = sampler.sample(seeds, key)
    x = inputs.x if isinstance(inputs.x, torch.Tensor) else inputs.x.to_dense()
    return inputs, batch_inputs(x[torch.from_numpy(block.nodes)], neighbours, block)


@pytest.mark.parametrize("layers", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_full_fanout_equals_the_full_batch(name, layers, graph):
    """Logits and gradients of the seeds, to 1e-12."""
    model = built(name, graph, layers)
    seeds = np.array([5, 29, 0, 17, 3])
    inputs, sampled = batch(model, graph, seeds, 200)
    whole, part = model(inputs)[torch.from_numpy(seeds)], model(sampled)
    torch.testing.assert_close(part, whole, rtol=0, atol=1e-12)
    expected, gradients = grads(whole, model), grads(part, model)
    for parameter, grad in expected.items():
        torch.testing.assert_close(gradients[parameter], grad, rtol=0, atol=1e-12, msg=parameter)
    assert gradients.keys() == expected.keys() | gradients.keys()


def test_both_directions_read_edges_that_were_drawn_for_a_layers_nodes(graph):
    """Own fan-outs; every edge as stored, for a target of its own hop and direction, and weights that keep sums unbiased."""
    model = built("gine both", graph)
    stored = {
        tuple(attr): edge for attr, edge in zip(graph.edge_attr.tolist(), graph.edge_index.T.tolist(), strict=True)
    }
    assert len(stored) == graph.num_edges
    neighbours = model.neighbours(graph, dtype=torch.float64)
    sides = {"back": neighbours.back, "fanout_back": [1, 3]}
    sampler, seeds = NeighbourSampler(neighbours.indptr, neighbours.indices, [3, 2], **sides), np.arange(6)
    sums = torch.zeros(2, graph.num_nodes, dtype=torch.float64)
    value = torch.arange(graph.num_nodes, dtype=torch.float64)
    for key in range(1500):
        block = sampler.sample(seeds, key)
        batch = batch_inputs(graph.x[torch.from_numpy(block.nodes)], neighbours, block)
        for layer, into, out in zip(batch.layers, (2, 3), (3, 1), strict=True):
            assert isinstance(layer, EdgeFeatureBatch)
            assert layer.edge_attr is not None
            ends = torch.from_numpy(block.nodes)[layer.edge_index]
            assert [stored[tuple(attr)] for attr in layer.edge_attr.float().tolist()] == ends.T.tolist()
            drawn = layer.edge_index[1, : layer.forward], layer.edge_index[0, layer.forward :]
            for nodes, most in zip(drawn, (into, out), strict=True):
                assert int(nodes.max()) < layer.targets
                assert int(nodes.bincount().max()) <= most
        last = batch.layers[-1]
        assert isinstance(last, EdgeFeatureBatch)
        cut = last.forward
        ends = torch.from_numpy(block.nodes)[last.edge_index]
        sums[0].index_add_(0, ends[1, :cut], last.scale[:cut] * value[ends[0, :cut]])
        sums[1].index_add_(0, ends[0, cut:], last.scale[cut:] * value[ends[1, cut:]])
    source, target = graph.edge_index
    whole = torch.zeros(2, graph.num_nodes, dtype=torch.float64)
    whole[0].index_add_(0, target, value[source])
    whole[1].index_add_(0, source, value[target])
    torch.testing.assert_close(sums[:, seeds] / 1500, whole[:, seeds], rtol=0.12, atol=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcn", "sage", "decoupled", "fedspa", "projected_gcn"])
def test_linear_layers_are_unbiased(name, graph, monkeypatch):
    """Without ReLU, the mean of sampled logits is that of the whole graph; FedSPA's mixture is linear at α = 1/2."""
    monkeypatch.setattr(torch, "relu", lambda h: h)
    model = built(name, graph)
    if name == "fedspa":
        for parameter, value in model.named_parameters():
            if "phi" in parameter:
                value.data.zero_()
    seeds = np.arange(10)
    inputs = model.prepare(graph, dtype=torch.float64)
    neighbours = model.neighbours(graph, dtype=torch.float64)
    sampler = NeighbourSampler(neighbours.indptr, neighbours.indices, [2, 3][: model.sampled_hops])
    x = inputs.x
    draws = []
    with torch.no_grad():
        expected = model(inputs)[:10]
        for key in range(600):
            block = sampler.sample(seeds, key)
            draws.append(model(batch_inputs(x[torch.from_numpy(block.nodes)], neighbours, block)))
    made = torch.stack(draws)
    assert ((made.mean(0) - expected).abs() < 4 * made.std(0) / len(made) ** 0.5 + 1e-9).all()
    assert made.std(0).max() > 0.01


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["train.batch_size=4"], r"train\.batch_size=4 has no effect with train\.sampler=none"),
        (["train.local_epochs=1"], r"train\.local_epochs=1 has no effect with train\.sampler=none and task=nodes"),
        ([*SAMPLED, "train.fanout=[5,0]"], r"numbers >= 1, or -1 for all neighbours, got \[5, 0\]"),
        (
            [*SAMPLED, "train.fanout=[5,5,5]"],
            r"has 3 numbers, but model=gcn with model\.layers=2 reads neighbours in 2 layers",
        ),
        (
            [*SAMPLED, "model.norm=batch"],
            r"does not support model=gcn, which needs a whole graph in every step with model\.norm=batch",
        ),
        ([*SAMPLED, "strategy=moon"], "does not support the part 'moon' of strategy=moon"),
        (
            [*SAMPLED, "strategy=fgssl"],
            "does not support strategy=fgssl, which needs a client's whole graph in every step",
        ),
        (
            [*SAMPLED, "strategy=fedspa", "strategy.folds=2"],
            r"needs whole graphs in every step for strategy\.folds=2, got train\.sampler",
        ),
        (
            [*SAMPLED, "task=triples", "dataset=planted-triples"],
            r"train\.sampler=neighbors does not support task=triples, which makes its own batches .* task to one of nodes, ",
        ),
        ([*SAMPLED, "train.local_epochs=1", "train.local_steps_by_client=[1,2]"], "both set a round's steps"),
    ],
)
def test_what_does_not_fit_is_refused(overrides, match):
    with pytest.raises(FedGraphError, match=match):
        check_method(compose(overrides))


def test_batch_larger_than_the_training_set_is_refused(graph):
    cfg = compose([*EVERY, "train.batch_size=16"])
    with pytest.raises(
        FedGraphError, match=r"batch_size=16 is more than the 15 training nodes of client 0: set it to at most"
    ):
        GraphClient(cfg, graph)


def test_epochs_deal_every_training_node_once_over_the_rounds(graph):
    """15 training nodes in batches of at most 4 are batches of 4, 4, 4 and 3; three steps a round continue the epoch."""
    client = GraphClient(compose([*EVERY, "train.local_steps=3"]), graph)
    sizes, order = [], []
    for server_round in range(1, 5):
        client.server_round = server_round
        for made in client.batches():
            sizes.append(len(made.y))
            order.append(client.sampled.sampler._nodes[: len(made.y)].copy())
    assert sizes == [4, 4, 4, 3] * 3
    train = client.train_nodes.numpy()
    for epoch in range(3):
        np.testing.assert_array_equal(np.sort(np.concatenate(order[4 * epoch : 4 * epoch + 4])), train)
    assert order[0].tolist() != order[4].tolist()


def test_epochs_set_the_steps(graph):
    client = GraphClient(compose([*EVERY, "train.local_epochs=2"]), graph)
    assert client.local_steps == len(list(client.batches())) == 8


def test_all_training_nodes_and_neighbours_in_a_batch_train_as_the_full_batch(graph):
    """Parameters after three rounds of FedAvg, in float64 and without dropout."""
    parameters = []
    for overrides in ([], ["train.sampler=neighbors", "train.fanout=[-1,-1]"]):
        client = GraphClient(compose([*overrides, "dtype=float64", "model.dropout=0"]), graph)
        for client.server_round in (1, 2, 3):
            client.train()
        parameters.append([p.detach() for p in client.model.parameters()])
    for mine, other in zip(*parameters, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-11)


NEEDED = {"fedavg", "fedavgm", "fedadam", "fedprox", "scaffold", "ditto", "fedper", "fedomd", "fedspa", "fedgta"}


def test_methods_that_sample():
    """At least those of the specification, and no method with its own client that does not declare it."""
    assert {name for name in group_names("strategy") if samples(name)} >= NEEDED


QUICK = {"fedavg", "fedomd", "fedspa", "fedgta", "scaffold"}


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in group_names("strategy")
        if name != "central" and samples(name)
    ],
)
def test_every_method_that_samples_trains_on_batches(strategy, go):
    depth = models.probe(compose([f"strategy={strategy}"]).model).sampled_hops
    run = go(strategy, *SAMPLED, f"train.fanout={[3] * depth}", "rounds=2", *IN_PARTS.get(strategy, ()))
    assert all(np.isfinite(array).all() for array in run.arrays.values())
    assert len(run.rounds) == 2


def test_a_run_resumed_in_the_middle_of_an_epoch_has_the_same_bits(go):
    """Epochs have more than two steps, so that the first round ends inside of one."""
    whole, half = go("fedavg", *WORDS, "checkpoint_every=1"), go("fedavg", *WORDS, "checkpoint_every=1", "rounds=1")
    same_result(go("fedavg", *WORDS, "checkpoint_every=1", f"resume={half.out}", f"out={half.out}"), whole)


@pytest.mark.parametrize("task", [[], ["task=links"]], ids=["nodes", "links"])
def test_a_thread_that_makes_the_next_batch_changes_no_bit(task, go, monkeypatch):
    """It makes every batch but the first of each round, into the buffer that the step before does not read."""
    whole, made_by = go("fedavg", *WORDS, *task, "train.local_steps=4"), []
    monkeypatch.setattr(batches, "AHEAD", 1)
    step = NeighbourBatches.around

    def around(self, *args):
        made_by.append(threading.current_thread().name.startswith("batches"))
        return step(self, *args)

    monkeypatch.setattr(NeighbourBatches, "around", around)
    same_result(go("fedavg", *WORDS, *task, "train.local_steps=4"), whole)
    assert len(made_by) >= 8
    assert made_by == len(made_by) // 4 * [False, True, True, True]


def of_step(index, failing=None):
    if index == failing:
        raise FedGraphError(f"step {index} failed")
    return Batch(SimpleNamespace(x=torch.ones(1)), None, torch.tensor([index]))


def names():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]


@pytest.mark.parametrize("ahead", [False, True])
def test_an_error_is_raised_at_its_own_step_and_the_thread_ends(ahead, monkeypatch):
    monkeypatch.setattr(batches, "AHEAD", 1)
    steps = []
    failing = in_order(partial(of_step, failing=2), 5, ahead)
    with pytest.raises(FedGraphError, match="step 2 failed"):
        steps.extend((int(batch.y), len(names())) for batch in failing)
    assert steps == [(0, int(ahead)), (1, int(ahead))]
    assert not names()
    assert [int(batch.y) for batch in in_order(of_step, 3, ahead)] == [0, 1, 2]
    assert not list(in_order(of_step, 0, ahead))


def test_the_thread_ends_when_a_step_is_interrupted(graph, monkeypatch):
    monkeypatch.setattr(batches, "AHEAD", 1)
    client = GraphClient(compose([*SAMPLED, "train.local_steps=4"]), graph, "cpu")
    seen = []

    def interrupted(client, optimizer):
        seen.extend(names())
        raise KeyboardInterrupt

    monkeypatch.setattr(base, "update", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        client.train()
    assert len(seen) == 1
    assert not names()


def test_batches_do_not_depend_on_the_client_object(go, monkeypatch):
    """Every message meets a client that is built again from its state."""
    whole = go("fedavg", *WORDS)
    monkeypatch.setattr(InlineGrid, "_call", call_fresh)
    same_result(go("fedavg", *WORDS), whole)

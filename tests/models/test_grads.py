"""Gradients that a model writes out: the bits of autograd where they are used, and autograd where something is changed."""

import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.client_part import with_terms
from fedgraph_flwr.clients.descent import begin_training
from fedgraph_flwr.clients.fedprox import Prox
from fedgraph_flwr.config import compose
from fedgraph_flwr.models.gcn import GCN, SmoothInputs
from fedgraph_flwr.models.layers import Linear
from fedgraph_flwr.numerics.sparse import SparseMatrix
from fedgraph_flwr.numerics.streams import reseed
from tests.conftest import client_graph


class Doubled(GCN):
    """Another network."""

    def activate(self, h, index):
        return 2 * super().activate(h, index)


class Silent(GraphClient):
    """Another objective."""

    def task_loss(self, logits):
        return 2 * super().task_loss(logits)


@cache
def composed(*overrides):
    return compose(["model.hidden=24", *overrides])


def client(*overrides, kind=GraphClient, num_nodes=90):
    graph = client_graph(0, num_nodes, num_features=20, num_classes=5)
    kept = (graph.edge_index.sum(0) % 3 > 0) | (graph.edge_index[0] < graph.edge_index[1])  # a third of them one way
    made = kind(composed(*overrides), replace(graph, edge_index=graph.edge_index[:, kept]))  # Â is not symmetric
    dense = made.inputs.adj.to_dense()
    assert not torch.equal(dense, dense.T)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return made


def both(member):
    """Loss and gradients as the client leaves them, and as autograd does."""
    optimizer = begin_training(member)
    passes = []
    for by_autograd in (False, True):
        reseed(7, member.device)
        optimizer.zero_grad()
        if by_autograd:
            loss = with_terms(member, member.loss())
            loss.backward()
        else:
            loss = member.gradient(optimizer)
        passes.append((loss, [parameter.grad for parameter in member.model.parameters()]))
    return passes


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("loss", ["cross_entropy", "weighted"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_bits_are_autograds(layers, loss, dtype, monkeypatch):
    for dropout, x, smooth, nodes, bias in itertools.product(
        (0, 0.5), ("dense", "sparse"), (False, True), (True, False), (True, False)
    ):
        monkeypatch.setattr("fedgraph_flwr.models.base.SPARSE_BELOW", 2.0 if x == "sparse" else 0.0)
        member = client(f"model.layers={layers}", f"train.loss={loss}", f"dtype={dtype}", f"model.dropout={dropout}")
        if not bias:
            member.model.head = Linear(20 if layers == 1 else 24, 5, bias=False).to(dtype=member.dtype)
        assert isinstance(member.inputs.x, SparseMatrix if x == "sparse" else torch.Tensor)
        inputs = SmoothInputs(member.inputs.x, member.inputs.adj) if smooth else member.inputs
        chosen = (member.train_nodes, member.batch.y) if nodes else (None, member.y)
        member.batch = member.batch._replace(inputs=inputs, nodes=chosen[0], y=chosen[1])
        (mine, grads), (its, wanted) = both(member)
        assert not mine.requires_grad  # or the comparison is of autograd with itself
        assert torch.equal(mine, its)
        assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))
        assert all(torch.any(grad) for grad in wanted)


def test_settled_inputs_give_the_same_logits_with_one_product_less():
    """Only where X is dense and no wider than the first layer; what is smooth already is left alone."""
    member = client("dtype=float64", "model.layers=3")
    model, inputs = member.model.eval(), member.inputs
    settled = model.settled(inputs)
    assert isinstance(settled, SmoothInputs)
    torch.testing.assert_close(model(settled), model(inputs), rtol=1e-12, atol=1e-12)
    assert model.settled(settled) is settled
    wide = client("model.hidden=19")
    assert wide.model.settled(wide.inputs) is wide.inputs
    member.model.__class__ = Doubled
    assert model.settled(inputs) is inputs


def test_nodes_that_a_batch_names_twice_count_twice():
    member = client("dtype=float64")
    nodes = member.train_nodes[[0, 1, 1, 2, 2, 2]]
    member.batch = member.batch._replace(nodes=nodes, y=member.y[nodes])
    (mine, grads), (_, wanted) = both(member)
    assert not mine.requires_grad
    torch.testing.assert_close(grads, wanted, rtol=1e-12, atol=0)


def changed(what):
    """A client of which one thing is not as the network's equations have it."""
    if what == "loss":
        member = client("strategy=fedprox")
        member.active = member.chosen_parts.all
        assert isinstance(member.active[0], Prox)
        member.term_state = {"prox": {name: torch.zeros_like(tensor) for name, tensor in member.shared.items()}}
        return member
    if what == "task_loss":
        return client(kind=Silent)
    member = client(*{"focal": ["train.loss=focal"], "norm": ["model.norm=layer"]}.get(what, []))
    if what == "after_hidden":
        member.model.after_hidden = lambda h, index: h * h
    if what == "features":
        member.batch = member.batch._replace(inputs=replace(member.inputs, x=member.inputs.x.requires_grad_()))
    if what == "frozen":
        member.model.head.bias.requires_grad_(False)
    if what == "layer":
        member.model.layers[0] = type("Other", (Linear,), {})(20, 24)
    if what == "network":
        member.model.__class__ = Doubled
    if what == "this one's loss":
        member.loss = lambda: 3 * GraphClient.loss(member)
    return member


CHANGES = [
    "loss",
    "task_loss",
    "focal",
    "norm",
    "after_hidden",
    "features",
    "frozen",
    "layer",
    "network",
    "this one's loss",
]


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_changed_is_left_to_autograd(what):
    (mine, grads), (its, wanted) = both(changed(what))
    assert mine.requires_grad  # the loss knows how it came about
    assert torch.equal(mine, its)
    for a, b in zip(grads, wanted, strict=True):
        assert a is b is None or torch.equal(a, b)

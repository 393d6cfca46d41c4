"""Gradient averaging: exact, and the same as the central step where nothing is cut."""

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.numerics.optim import NamedOptimizer
from tests.conftest import client_graph
from tests.support import recorded_messages

EXACT = ["model.dropout=0", "dtype=float64", "train.local_steps=1"]


@pytest.mark.parametrize("overrides", [["model=gcn"], ["model=sage"], ["model=mlp"], ["strategy.double_softmax=true"]])
def test_three_rounds_are_three_adam_steps_on_the_union(run, overrides):
    """Equation (8) with torch's Adam on the mean loss over the training nodes of all clients."""
    finished = run("strategy=fedgrad", *EXACT, *overrides, "train.lr=0.05")
    clients = [GraphClient(finished.cfg, client_graph(i, n)) for i, n in enumerate((12, 16, 20))]
    model = clients[0].model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=5e-4)
    for _ in range(3):
        optimizer.zero_grad()
        logits = torch.cat([model(c.inputs)[c.train_nodes] for c in clients])
        if overrides == ["strategy.double_softmax=true"]:
            logits = logits.softmax(1)
        labels = torch.cat([c.y[c.train_nodes] for c in clients])
        torch.nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(finished.arrays[name], parameter.detach(), atol=1e-9, err_msg=name)


@pytest.mark.parametrize("loss", ["cross_entropy", "weighted"])
def test_one_client_trains_as_alone(run, loss):
    """With one client and one step a round the server's Adam is the client's."""
    pair = (run(f"strategy={name}", *EXACT, f"train.loss={loss}", sizes=(16,)).arrays for name in ("fedgrad", "fedavg"))
    averaged, alone = pair
    for name in averaged:
        np.testing.assert_allclose(averaged[name], alone[name], atol=1e-12)


def test_a_weighted_sum_over_clients_is_the_weighted_loss_of_all_nodes(run):
    """With weights of all clients' labels: Σ_v w_v is the number of training nodes, so the mean is torch's weighted mean."""
    weighted = [
        "train.loss=weighted",
        "train.class_weights=federated",
        "rounds=1",
        "train.optimizer=sgd",
        "train.lr=0.05",
    ]
    finished = run("strategy=fedgrad", *EXACT, *weighted, "train.weight_decay=0")
    clients = [GraphClient(finished.cfg, client_graph(i, n)) for i, n in enumerate((12, 16, 20))]
    model, labels = clients[0].model, torch.cat([c.y[c.train_nodes] for c in clients])
    count = torch.bincount(labels).double()
    logits = torch.cat([model(c.inputs)[c.train_nodes] for c in clients])
    torch.nn.functional.cross_entropy(logits, labels, labels.numel() / (len(count) * count)).backward()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(finished.arrays[name], parameter.detach() - 0.05 * parameter.grad, atol=1e-12)


@pytest.mark.parametrize(("strategy", "loss"), [("fedgrad", "focal"), ("fedstruct_a", "weighted")])
def test_a_loss_that_no_sum_serves_is_refused(strategy, loss):
    with pytest.raises(FedGraphError, match=f"needs train.loss=cross_entropy.*got train.loss={loss}"):
        check_method(compose([f"strategy={strategy}", f"train.loss={loss}", "dataset=csbm"]))


def test_gradients_travel_up_and_parameters_down(run, monkeypatch):
    with recorded_messages(monkeypatch) as seen:
        finished = run("strategy=fedgrad", "rounds=2", "model.dropout=0")
    shapes = {name: array.shape for name, array in finished.arrays.items()}
    train = [(way, content) for way, _, content in seen if "model" in content.array_records]
    assert {way for way, _ in train} == {"down", "up"}
    for _, content in train:
        assert list(content.array_records) == ["model"]
        assert {name: tuple(a.shape) for name, a in content.array_records["model"].items()} == shapes


def test_a_client_without_training_nodes_adds_nothing(run, tmp_path):
    graphs = [client_graph(0, 12), client_graph(1, 16)]
    graphs[1].train_mask[:] = False
    for m, folder in ((2, "two"), (1, "one")):
        for graph in graphs[:m]:
            graph.num_clients = m
            graph.save(tmp_path / folder / f"client_{graph.client:04d}.safetensors")
    two, one = (
        run("strategy=fedgrad", *EXACT, f"graph={tmp_path / f}", f"num_clients={m}")
        for f, m in (("two", 2), ("one", 1))
    )
    for name in one.arrays:
        np.testing.assert_array_equal(two.arrays[name], one.arrays[name])


def test_resuming_keeps_the_servers_moments(run):
    overrides = ["strategy=fedgrad", "checkpoint_every=2"]
    whole, half = run(*overrides, "rounds=4"), run(*overrides, "rounds=2")
    resumed = run(*overrides, "rounds=4", f"resume={half.out}", f"out={half.out}")
    for name in whole.arrays:
        np.testing.assert_array_equal(whole.arrays[name], resumed.arrays[name])


def test_named_optimizer_is_torchs():
    start = {"b": torch.randn(3), "a": torch.randn(2, 2)}
    ours = NamedOptimizer(compose(["train.lr=0.1", "train.weight_decay=0.01"]).train)
    leaves = {name: t.clone().requires_grad_() for name, t in start.items()}
    theirs = torch.optim.Adam(leaves.values(), lr=0.1, weight_decay=0.01)
    values = start
    for step in range(4):
        gradients = {name: torch.full_like(t, step + 1.0).cumsum(0) for name, t in values.items()}
        values = ours.step(values, gradients)
        for name, leaf in leaves.items():
            leaf.grad = gradients[name]
        theirs.step()
    for name, leaf in leaves.items():
        torch.testing.assert_close(values[name], leaf.detach())

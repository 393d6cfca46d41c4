"""FedSage-true: own nodes on the graph with external neighbours, and the limits in which it is the central network."""

import numpy as np
import pytest
import torch

from fedgraph_flwr import models
from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.wire.messages import derive_seed
from tests.methods.worlds import world
from tests.support import assert_same_arrays, call_fresh, recorded_messages

WORDS = ["strategy=fedsage_true", "model=sage", "model.hidden=4", "train.local_steps=1"]


def test_one_layer_trains_as_on_the_whole_graph(train):
    """A mean over 1-hop neighbours needs nothing beyond them: any partition takes the central gradient step."""
    plain = ["model.layers=1", "train.optimizer=sgd", "train.lr=1", "train.weight_decay=0", "rounds=1"]
    for kind in ("undirected", "directed"):
        finished = train(*WORDS, *plain, kind=kind)
        whole = world(kind, partition="one")[0]
        torch.manual_seed(derive_seed(0, "model"))
        model = models.build(finished.cfg.model, whole.num_features, whole.num_classes).double()
        logits = model(model.prepare(whole, dtype=torch.float64))
        rows = whole.train_mask
        torch.nn.functional.cross_entropy(logits[rows], whole.y[rows]).backward()
        for name, parameter in model.named_parameters():
            expected = (parameter - parameter.grad).detach()
            np.testing.assert_allclose(finished.arrays[name], expected, atol=1e-12, err_msg=f"{kind} {name}")
            parameter.data = expected
        right = model(model.prepare(whole, dtype=torch.float64)).argmax(1) == whole.y
        accuracy = [right[g.node_id[g.test_mask]].double().mean().item() for g in world(kind)]
        assert finished.rounds[-1]["clients"]["test-accuracy"] == pytest.approx(accuracy)


def test_one_client_is_gradient_averaging(train):
    alone, averaged = (
        train(*WORDS, f"strategy={name}", partition="one").arrays for name in ("fedsage_true", "fedgrad")
    )
    assert_same_arrays(alone, averaged)


def test_true_neighbours_change_two_layers_and_are_not_scored(train):
    extended, cut = train(*WORDS), train(*WORDS, "strategy=fedgrad")
    assert any(np.abs(extended.arrays[name] - cut.arrays[name]).max() > 1e-6 for name in cut.arrays)
    for record in extended.rounds:
        assert record["clients"]["test-count"] == [float(g.test_mask.sum()) for g in world()]


def test_features_of_neighbours_travel_and_no_others(train, monkeypatch):
    with recorded_messages(monkeypatch) as seen:
        train(*WORDS, "rounds=1")
    graphs = world()
    for graph in graphs:
        (content,) = (c for w, n, c in seen if w == "down" and n == graph.client + 1 and "features" in c.array_records)
        for owner, array in content.array_records["features"].items():
            ends = torch.cat([graph.cut_out[1], graph.cut_in[1]])
            mine = torch.cat([graph.cut_out_owner, graph.cut_in_owner]) == int(owner)
            other = graphs[int(owner)]
            wanted = other.x[torch.isin(other.node_id, ends[mine])]
            np.testing.assert_array_equal(array.numpy(), wanted.numpy())


def test_foreign_nodes_are_not_handed_out(train, monkeypatch):
    from fedgraph_baselines.clients.fedsage_true import FedSageTrueClient

    wanted = FedSageTrueClient.wanted

    def nosy(self, groups, config):
        reply, metrics = wanted(self, groups, config)
        return {"wanted": {k: ids + 1 for k, ids in reply["wanted"].items()}}, metrics

    nosy.is_phase = True  # type: ignore[attr-defined]
    monkeypatch.setattr(FedSageTrueClient, "wanted", nosy)
    with pytest.raises(RunFailed, match="nodes that client 0 does not have"):
        train(*WORDS)


def test_clients_that_live_for_one_message_do_the_same(train, monkeypatch):
    alive = train(*WORDS)
    monkeypatch.setattr("fedgraph_flwr.engine.inline.InlineGrid._call", call_fresh)
    assert_same_arrays(alive.arrays, train(*WORDS).arrays)

"""FedGL: fusing, labels and edges node by node, the objective and the propagation by hand, and nodes that clients share."""

import numpy as np
import pytest
import torch

from fedgraph_baselines.clients.fedgl import FedGLClient
from fedgraph_baselines.methods.fedgl import among, fused, pseudo_graph, pseudo_labels
from fedgraph_baselines.strategies.fedgl import FedGL
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method, startup_notes
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.strategies.round import Round
from fedgraph_flwr.wire.messages import MODEL, Reply
from tests.conftest import client_graph
from tests.support import call_fresh, dense_gcn_adjacency, recorded_messages, reduced, same_result

N, C = 16, 3
WORDS = ["strategy=fedgl", "model.hidden=6", "dtype=float64", "model.dropout=0"]


def test_fusing_by_hand():
    ids = [np.array([2, 5, 9]), np.array([5, 7])]
    values = [np.array([[1.0, 2], [3, 4], [5, 6]]), np.array([[7.0, 8], [9, 10]])]
    nodes, mean = fused(ids, values, [1, 3])
    assert nodes.tolist() == [2, 5, 7, 9]
    np.testing.assert_allclose(mean, [[1, 2], [(3 + 21) / 4, (4 + 24) / 4], [9, 10], [5, 6]])
    _, alike = fused(ids, values, [0, 0])
    np.testing.assert_allclose(alike[1], [5, 6])


def test_labels_and_edges_by_hand():
    assert pseudo_labels(np.array([[0, 0.6, 0], [0, 0, 0], [0.3, 0, 0.7]])).tolist() == [1, -1, 2]
    h = np.array([[1.0, 0.1], [2, 0], [0.3, 1], [-1, -0.2], [1, 1.2]])
    row, col, weight = pseudo_graph(h, 2)
    weights = {(r, c): w for r, c, w in zip(row.tolist(), col.tolist(), weight.tolist(), strict=True)}
    expected = {}
    for u in range(5):
        near = sorted((v for v in range(5) if v != u), key=lambda v: -(h[u] @ h[v]))[:2]
        total = sum(max(h[u] @ h[v], 0) for v in near)
        expected |= {(u, v): h[u] @ h[v] / total for v in near if h[u] @ h[v] > 0}
    assert weights == pytest.approx(expected)
    assert not any(3 in pair for pair in weights)
    entries = among(np.array([10, 20, 30, 40, 50]), np.array([20, 50]), (row, col, weight))
    values = {(r, c): w for r, c, w in zip(*(entries[name].tolist() for name in ("row", "col", "weight")), strict=True)}
    assert values == {((u, v) == (4, 1) and (1, 0)) or (0, 1): w for (u, v), w in weights.items() if {u, v} == {1, 4}}
    assert values


def client_of(*overrides):
    return FedGLClient(compose([*WORDS, *overrides]), client_graph(0, N))


def test_the_objective_and_the_propagation_by_hand():
    client = client_of("strategy.label_weight=0.3", "strategy.graph_weight=0.2")
    graph = client.graph
    graph.node_id = graph.node_id.flip(0)  # arrays are sent by ascending id
    label = np.arange(N) % 4 - 1
    entries = {"row": np.array([0, 0, 3]), "col": np.array([1, 3, 0]), "weight": np.array([0.75, 0.25, 1.0])}
    client.receive({"pseudo": {"label": label, **entries}})
    p = np.zeros((N, N))
    for r, c, w in zip(*entries.values(), strict=True):
        p[N - 1 - r, N - 1 - c] = w
    both = (p + p.T) / 2
    root = np.divide(1, np.sqrt(both.sum(1)), out=np.zeros(N), where=both.sum(1) > 0)
    mixed = dense_gcn_adjacency(graph.edge_index, N).numpy() + 0.2 * root[:, None] * both * root
    w = {name: t.detach().numpy() for name, t in client.model.state_dict().items()}
    h = np.maximum(mixed @ graph.x.double().numpy() @ w["layers.0.weight"] + w["layers.0.bias"], 0)
    logits = mixed @ h @ w["head.weight"] + w["head.bias"]
    np.testing.assert_allclose(client.predict(), logits, rtol=1e-10)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    train, y = graph.train_mask.numpy(), graph.y.numpy()
    labels = label[::-1]
    others = [v for v in range(N) if not train[v] and labels[v] >= 0]
    expected = -np.mean([log_p[v, y[v]] for v in np.flatnonzero(train)]) - 0.3 * np.mean(
        [log_p[v, labels[v]] for v in others]
    )
    assert client.loss().item() == pytest.approx(expected, rel=1e-10)
    sent = client.send()[0]["nodes"]
    np.testing.assert_allclose(sent["h"], h[::-1], rtol=1e-10)
    np.testing.assert_allclose(sent["z"], np.exp(log_p)[::-1], rtol=1e-10)
    assert client.identify({}, {})[0]["ids"]["node"].tolist() == sorted(graph.node_id.tolist())


def test_what_is_found_is_of_the_cohort_and_others_keep_theirs(monkeypatch):
    monkeypatch.setattr("fedgraph_baselines.strategies.fedgl.THRESHOLD", 0.6)
    server = FedGL(compose(WORDS))
    server.weights = lambda clients: [1.0 + client for client in clients]
    server.memory = {"ids": {"0": np.array([1, 4]), "1": np.array([4, 6])}, "pseudo": {"2": {"label": np.array([7])}}}
    h = np.ones((2, 2))
    replies = [
        Reply(0, {"nodes": {"z": np.array([[0.9, 0.1], [0.55, 0.45]]), "h": h}}, {}),
        Reply(1, {"nodes": {"z": np.array([[0.2, 0.8], [0.59, 0.41]]), "h": h}}, {}),
    ]
    server.discover(replies)
    supervision = server.memory["pseudo"]
    assert supervision["0"]["label"].tolist() == [0, 1]  # node 4: client 0 is not sure, client 1 is
    assert supervision["1"]["label"].tolist() == [1, -1]
    assert supervision["2"]["label"].tolist() == [7]
    assert set(supervision["0"]["row"].tolist()) <= {0, 1}


def server_of(*overrides):
    server = FedGL(compose([*WORDS, *overrides]))
    server.arrays = {"w": np.zeros(1)}
    server.weights = lambda clients: [1.0 + 2 * client for client in clients]
    server.memory = {"ids": {"0": np.array([1, 4]), "1": np.array([4, 6])}}
    return server


def replies_of(server, z, h):
    values = ({"z": np.array(prediction), "h": np.array(said)} for prediction, said in zip(z, h, strict=True))
    return [Reply(i, {"model": server.arrays, "nodes": group}, {}) for i, group in enumerate(values)]


def test_what_clients_say_is_weighed_as_their_models_are():
    """Predictions and hidden features: client 1 weighs three times client 0."""
    server = server_of()
    z = [[[0.9, 0.1], [0.9, 0.1]], [[0.3, 0.7], [0.3, 0.7]]]
    h = [[[1.0, 0.5], [2.0, 0.0]], [[0.0, 1.0], [1.0, 3.0]]]
    server.discover(replies_of(server, z, h))
    supervision = server.memory["pseudo"]
    assert supervision["0"]["label"].tolist() == [0, 1]
    assert supervision["1"]["label"].tolist() == [1, 1]
    mean = np.array([[1.0, 0.5], [(2 + 3 * 0) / 4, (0 + 3 * 1) / 4], [1.0, 3.0]])
    share = mean @ mean.T * (1 - np.eye(3))
    share /= share.sum(1, keepdims=True)
    for client, first in (("0", 0), ("1", 1)):
        entries = zip(*(supervision[client][name].tolist() for name in ("row", "col", "weight")), strict=True)
        expected = {(0, 1): share[first, first + 1], (1, 0): share[first + 1, first]}
        assert {(r, c): w for r, c, w in entries} == pytest.approx(expected)


def test_labels_and_edges_are_found_every_few_rounds():
    """The second round leaves what the first one found, whatever clients say."""
    server = server_of("strategy.every=2")
    z, h = np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([[1.0, 0.5], [2.0, 3.0]])
    values = []
    for server_round, order in ((1, [0, 1]), (2, [1, 0]), (3, [1, 0])):
        server.round = Round(server_round)
        server.step(server.arrays, reduced(server, "train", replies_of(server, [z[order], z], [h[order], h])))
        values.append({name: array.tolist() for name, array in server.memory["pseudo"]["0"].items()})
    first, off, on = values
    assert off == first
    assert all(on[name] != first[name] for name in ("label", "weight"))


def test_clients_that_share_nodes_are_told_alike_of_them(run, tmp_path):
    overrides = ["dataset=csbm", "dataset.nodes_per_client=[40,60]", "dataset.features=5", "partition=overlapping"]
    from tests.methods.small_runs import small_runs

    with small_runs(tmp_path) as go:
        finished = go("fedgl", *overrides, "partition.clients_per_part=3", "partition.overlap=0.7", "rounds=2")
    assert finished.summary["failures"] == {}
    assert finished.summary["bytes_by_phase"]["identify"]["bytes_up"] > 0


def test_nodes_are_told_of_in_one_round_of_every(run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        run(*WORDS, "strategy.every=2", "rounds=3")
    values = ["nodes" in c.array_records for way, _, c in messages if way == "up" and MODEL in c.array_records]
    assert values == [True] * 3 + [False] * 3 + [True] * 3


@pytest.mark.slow
def test_fresh_clients_and_a_resumption_end_alike(run, monkeypatch):
    overrides = [*WORDS, "strategy.fraction=0.67", "rounds=3", "strategy.every=2"]
    whole = run(*overrides)
    half = run(*overrides, "rounds=1", "checkpoint_every=1")
    node_clients.forget(0)
    same_result(run(*overrides, f"resume={half.out}", f"out={half.out}"), whole)
    monkeypatch.setattr("fedgraph_flwr.engine.inline.InlineGrid._call", call_fresh)
    same_result(run(*overrides), whole)


def test_what_is_not_of_the_clients_nodes_is_refused():
    none = np.zeros(0, np.int64)
    for supervision in (
        {"label": np.zeros(N - 1, np.int64), "row": none, "col": none, "weight": np.zeros(0)},
        {"label": np.zeros(N, np.int64), "row": np.array([N]), "col": np.array([0]), "weight": np.ones(1)},
        {"label": np.zeros(N, np.int64), "row": np.array([0]), "col": none, "weight": np.ones(1)},
    ):
        with pytest.raises(FedGraphError, match=r"does not match the 16 nodes of client 0|the server sent pseudo with"):
            client_of().receive({"pseudo": supervision})
    with pytest.raises(FedGraphError, match=r"client 1 .*not ascending"):
        FedGL.verify("identify", Reply(1, {"ids": {"node": np.array([3, 3])}}, {}), None)


@pytest.mark.parametrize("word", ["strategy.every=0", "strategy.neighbours=0", "model.layers=1"])
def test_wrong_keys_are_refused(word):
    with pytest.raises(FedGraphError, match=word.partition("=")[0]):
        check_method(compose(["strategy=fedgl", word]))
    assert torch.equal(client_of().order, torch.arange(N))


def test_a_fleet_is_warned_that_the_default_policy_shows_little():
    """On Cora in five parts, 88 % of the rows were zero."""
    assert not startup_notes(compose(["strategy=fedgl"]))
    (note,) = startup_notes(compose(["strategy=fedgl", "engine=fleet"]))
    assert "send zeros for nodes with fewer than 5 in-neighbours" in note

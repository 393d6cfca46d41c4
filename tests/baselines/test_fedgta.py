"""FedGTA: label propagation, moments, confidence and mixing by loops in NumPy; and what travels."""

import math

import numpy as np
import pytest
import torch

from fedgraph_baselines.clients.fedgta import FedGTAClient, confidence, moments
from fedgraph_baselines.methods.similarity import cosines
from fedgraph_baselines.strategies.fedgta import FedGTA
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.wire.messages import MODEL, Reply, from_record
from tests.conftest import client_graph
from tests.support import dense_gcn_adjacency, recorded_messages

C = 3


def client_of(*overrides):
    cfg = compose(["strategy=fedgta", "model.hidden=8", "dtype=float64", "strategy.alpha=0.3", *overrides])
    return FedGTAClient(cfg, client_graph(0, 16, num_classes=C))


def softmax(z):
    return np.exp(z) / np.exp(z).sum(-1, keepdims=True)


def by_hand(client, program):
    """M and H, node by node."""
    graph, params = client.graph, client.params
    a, train = dense_gcn_adjacency(graph.edge_index, graph.num_nodes).numpy(), graph.train_mask.numpy()
    first = softmax(client.predict().numpy())
    first[train] = np.eye(C)[graph.y.numpy()[train]]
    y = first
    for _ in range(params.steps):
        y = params.alpha * first + (1 - params.alpha) * a @ y
        if program:
            y = y + first * train[:, None]
    values = [softmax(y), softmax(y / 20)] if program else [y, y]
    if program:
        values = [np.where(train[:, None], first, labels) for labels in values]
    mean = values[0].mean(0)
    raw = [[np.mean(values[0][:, c] ** p) for c in range(C)] for p in range(1, params.orders + 1)]
    central = [[np.mean((values[0][:, c] - mean[c]) ** p) for c in range(C)] for p in range(1, params.orders + 1)]
    incoming = [sum(1 for t in graph.edge_index[1].tolist() if t == v) for v in range(graph.num_nodes)]
    h = 0.0
    for v, row in enumerate(values[1].tolist()):
        bracket = C / math.e + sum(p * math.log(p) for p in row if p > 0)
        h += (incoming[v] + (not program)) * bracket
    return np.array([raw, central]), h


def test_a_hub_tells_the_direction_of_its_moments():
    """Its labels have powers that no reply may hold."""
    hub = torch.stack([torch.arange(1, 4000), torch.zeros(3999, dtype=torch.int64)])
    graph = client_graph(0, 4000, num_classes=C)
    graph.edge_index = torch.cat([hub, hub.flip(0)], 1)
    client = FedGTAClient(compose(["strategy=fedgta", "model.hidden=8", "strategy.orders=40"]), graph)
    whole = moments(client.smoothed()[0], 40, True).numpy()
    assert np.abs(whole).max() > 1e18
    reply = client.send()[0]["smoothed"]["moments"]
    assert np.abs(reply).max() == 1
    np.testing.assert_allclose(reply, whole / np.abs(whole).max(), rtol=1e-12)
    few = FedGTAClient(compose(["strategy=fedgta", "model.hidden=8"]), graph)
    np.testing.assert_array_equal(few.send()[0]["smoothed"]["moments"], moments(few.smoothed()[0], 6, True).numpy())


@pytest.mark.parametrize("labels", ["paper", "program"])
def test_what_a_client_tells(labels):
    client = client_of(f"strategy.labels={labels}", "strategy.steps=3", "strategy.orders=4")
    groups, numbers = client.send()
    moments, h = by_hand(client, labels == "program")
    np.testing.assert_allclose(groups["smoothed"]["moments"], moments, rtol=1e-11, atol=1e-14)
    assert numbers["confidence"] == pytest.approx(h, rel=1e-11)
    raw = client_of(f"strategy.labels={labels}", "strategy.steps=3", "strategy.orders=4", "strategy.moments=raw")
    np.testing.assert_allclose(raw.send()[0]["smoothed"]["moments"], moments[:1], rtol=1e-11)


def test_only_labels_of_training_nodes_are_told():
    client = client_of()
    before = client.send()
    client.y[~client.graph.train_mask] = 0
    client.graph.y[~client.graph.train_mask] = 0
    np.testing.assert_array_equal(client.send()[0]["smoothed"]["moments"], before[0]["smoothed"]["moments"])


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_confidence_of_sure_and_of_uniform_labels(classes):
    degree = torch.tensor([1.0, 4.0], dtype=torch.float64)
    uniform = torch.full((2, classes), 1 / classes, dtype=torch.float64)
    assert confidence(uniform, degree) == pytest.approx(5 * (classes / math.e - math.log(classes)))
    sure = torch.eye(classes, dtype=torch.float64)[:2]
    assert confidence(sure, degree) == pytest.approx(5 * classes / math.e)
    assert confidence(torch.full_like(uniform, 1 / math.e), degree) == pytest.approx(0, abs=1e-12)


def test_cosines():
    vectors = np.array([[1.0, 0, 0], [3, 4, 0], [0, 0, 0], [-2, 0, 0]])
    expected = [[1, 0.6, 0, -1], [0.6, 1, 0, -0.6], [0, 0, 1, 0], [-1, -0.6, 0, 1]]
    np.testing.assert_allclose(cosines(vectors), expected, atol=1e-15)
    similarities = cosines(np.random.default_rng(0).normal(size=(9, 40)).astype(np.float32))
    np.testing.assert_array_equal(similarities, similarities.T)
    np.testing.assert_array_equal(similarities.diagonal(), np.ones(9))


def replies_of(vectors, weights):
    groups = [{"smoothed": {"moments": np.asarray(v, np.float64).reshape(1, 1, -1)}} for v in vectors]
    return [Reply(i, g, {"confidence": h}) for i, (g, h) in enumerate(zip(groups, weights, strict=True))]


def test_the_mixing_by_hand():
    """Client 1 lies between 0 and 2, which are not alike; client 3 is like no other."""
    replies = replies_of([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 5]], [2, 3, 6, 1])
    server = FedGTA(compose(["strategy=fedgta"]))
    expected = [[2 / 5, 3 / 5, 0, 0], [2 / 11, 3 / 11, 6 / 11, 0], [0, 3 / 9, 6 / 9, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(server.mixing(replies), expected, atol=1e-15)
    server = FedGTA(compose(["strategy=fedgta", "strategy.epsilon=-1.5"]))
    np.testing.assert_allclose(server.mixing(replies), [[2 / 12, 3 / 12, 6 / 12, 1 / 12]] * 4, atol=1e-15)
    server = FedGTA(compose(["strategy=fedgta", "strategy.epsilon=1"]))
    alike = replies_of([[1, 2], [1, 2], [2, 4]], [1, 0, 5])
    np.testing.assert_array_equal(server.mixing(alike), np.eye(3))


def test_clients_without_any_confidence_weigh_the_same():
    server = FedGTA(compose(["strategy=fedgta"]))
    mixing = server.mixing(replies_of([[1, 0], [1, 0], [0, 1]], [0, 0, 2]))
    np.testing.assert_array_equal(mixing, [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])


def test_a_round_by_hand(run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = run("strategy=fedgta", "strategy.epsilon=0.95", "rounds=1", "dtype=float64")
    up = [c for way, _, c in messages if way == "up" and MODEL in c.array_records]
    assert {frozenset(c.array_records) for c in up} == {frozenset({MODEL, "smoothed"})}
    values = [from_record(c["smoothed"])["moments"].ravel() for c in up]
    h = [c["metrics"]["confidence"] for c in up]
    tensors = read_tensors(finished.out / "models_final.safetensors")[0]
    sizes = []
    for i, mine in enumerate(values):
        likes = [float(mine @ a) / math.sqrt(float(mine @ mine) * float(a @ a)) for a in values]
        accepted = [j for j, like in enumerate(likes) if j == i or like > 0.95]
        sizes.append(len(accepted))
        for name, array in finished.arrays.items():
            total = sum(h[j] * up[j][MODEL][name].numpy() for j in accepted) / sum(h[j] for j in accepted)
            np.testing.assert_allclose(tensors[f"{i}/{name}"].numpy(), total, rtol=1e-10, err_msg=name)
            assert array.shape == total.shape
    assert sorted(sizes) == [1, 2, 2]


@pytest.mark.parametrize("word", ["steps=-1", "orders=0", "alpha=1.5", "moments=odd", "labels=true"])
def test_wrong_keys_are_refused(word):
    with pytest.raises(FedGraphError, match=f"strategy.{word.partition('=')[0]}"):
        check_method(compose(["strategy=fedgta", f"strategy.{word}"]))


def test_typed_graphs_are_refused():
    with pytest.raises(FedGraphError, match="needs nodes and edges of one type, got model=rgcn"):
        check_method(compose(["strategy=fedgta", "model=rgcn"]))

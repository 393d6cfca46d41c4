"""FedProto: prototypes, their mean, the pull towards them and the nearest one, by loops in NumPy; and what travels."""

import numpy as np
import pytest
import torch

from fedgraph_baselines.clients.fedproto import FedProtoClient
from fedgraph_baselines.strategies.fedproto import FedProto
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.wire.messages import Reply, from_record
from tests.conftest import client_graph
from tests.support import recorded_messages, reduced

C, D = 3, 8


def client_of(*overrides, missing=None, **kwargs):
    """A client, none of whose training nodes is of the class ``missing``."""
    graph = client_graph(0, 16, num_classes=C)
    if missing is not None:
        graph.train_mask &= graph.y != missing
    cfg = compose(["strategy=fedproto", f"model.hidden={D}", "model.dropout=0", "dtype=float64", *overrides])
    return FedProtoClient(cfg, graph)


def embeddings(client):
    """f_i of every node, by the network's own pass."""
    client.model.eval()
    with torch.no_grad():
        return client.model.hidden(client.inputs)[-1].numpy()


def received(client, known=(True, True, True)):
    mean = np.random.default_rng(1).normal(size=(C, D))
    mean[~np.array(known)] = 0
    client.receive({"prototypes": {"mean": mean.copy(), "known": np.array(known)}})
    return mean


def test_prototypes_are_means_by_class():
    for missing in (None, 2):
        client = client_of(missing=missing)
        reply = client.send()[0]["prototypes"]
        h, y, train = embeddings(client), client.graph.y.numpy(), client.graph.train_mask.numpy()
        for j in range(C):
            rows = [h[v] for v in range(len(y)) if train[v] and y[v] == j]
            assert reply["count"][j] == len(rows)
            np.testing.assert_allclose(reply["sum"][j], sum(rows) if rows else np.zeros(D), rtol=1e-12, atol=1e-14)
    assert reply["count"][2] == 0


@pytest.mark.parametrize("by_policy", [False, True])
def test_small_classes_are_not_told(by_policy):
    counts = client_of().send()[0]["prototypes"]["count"]
    least = int(counts.max())
    assert counts.min() < least
    client = client_of() if by_policy else client_of(f"strategy.min_nodes={least}")
    if by_policy:
        client.policy = Policy(min_nodes=least)
    reply = client.send()[0]["prototypes"]
    np.testing.assert_array_equal(reply["count"], np.where(counts < least, 0, counts))
    assert not reply["sum"][reply["count"] == 0].any()
    assert reply["sum"][reply["count"] > 0].any()


@pytest.mark.parametrize("known", [(True, True, True), (True, False, True)])
@pytest.mark.parametrize("missing", [None, 2])
def test_the_pull_towards_prototypes(known, missing):
    h = embeddings(client_of())
    for distance in ("nodes", "prototypes"):
        client = client_of(f"strategy.distance={distance}", "strategy.lam=0.7", missing=missing)
        mean = received(client, known)
        y, rows = client.graph.y.numpy(), client.train_nodes.tolist()
        if distance == "nodes":
            squares = [np.sum((h[v] - mean[y[v]]) ** 2) if known[y[v]] else 0 for v in rows]
            expected = sum(squares) / (len(rows) * D)
        else:
            classes = [j for j in range(C) if known[j] and any(y[v] == j for v in rows)]
            expected = sum(
                np.sqrt(np.sum((np.mean([h[v] for v in rows if y[v] == j], 0) - mean[j]) ** 2)) for j in classes
            )
        task = float(GraphClient.loss(client))
        assert float(client.loss()) - task == pytest.approx(0.7 * expected, rel=1e-10)


def test_the_nearest_known_prototype_decides():
    client = client_of()
    mean = received(client, (True, False, True))
    h = embeddings(client)
    nearest = [min((0, 2), key=lambda j: np.sum((row - mean[j]) ** 2)) for row in h]
    logits = client.predict_shared()
    assert logits.isfinite().all()
    assert logits.argmax(1).tolist() == nearest
    assert set(nearest) == {0, 2}
    client.receive({})
    assert torch.equal(client.predict_shared(), client.predict())


def test_the_mean_of_prototypes_weighs_by_nodes():
    server = FedProto(compose(["strategy=fedproto", "dtype=float64"]))
    server.shape = (C, D)

    def learn(means, counts):
        group = [{"sum": m * n[:, None], "count": n.astype(float)} for m, n in zip(means, counts, strict=True)]
        server.step(
            {}, reduced(server, "train", [Reply(i, {"prototypes": prototypes}) for i, prototypes in enumerate(group)])
        )

    means = np.random.default_rng(0).normal(size=(2, 3, C, D))
    first, second = np.array([[4, 0, 1], [2, 3, 0], [0, 0, 0]]), np.array([[0, 5, 0], [0, 1, 0], [0, 0, 0]])
    learn(means[0, :2], first[:2] * [1, 0, 1])
    np.testing.assert_array_equal(server.memory["prototypes"]["known"], [True, False, True])
    learn(means[0], first)
    old = server.memory["prototypes"]["mean"]
    np.testing.assert_allclose(old[0], (4 * means[0, 0, 0] + 2 * means[0, 1, 0]) / 6, rtol=1e-12)
    np.testing.assert_allclose(old[1], means[0, 1, 1], rtol=1e-12)
    np.testing.assert_allclose(old[2], means[0, 0, 2], rtol=1e-12)
    learn(means[1], second)  # a cohort that has only class 1
    new = server.memory["prototypes"]
    np.testing.assert_allclose(new["mean"][1], (5 * means[1, 0, 1] + means[1, 1, 1]) / 6, rtol=1e-12)
    np.testing.assert_array_equal(new["mean"][[0, 2]], old[[0, 2]])
    assert new["known"].all()


def folder_of_clients(folder):
    """Three clients; only client 2 trains on class 2, and client 1 has no training nodes at all."""
    for index in range(3):
        graph = client_graph(index, 16, num_classes=C)
        if index < 2:
            graph.train_mask &= graph.y != 2
        if index == 1:
            graph.train_mask[:] = False
        graph.save(folder / f"client_{index:04d}.safetensors")
    return f"graph={folder}"


@pytest.mark.parametrize("method", ["fedproto", "fedtgp"])
def test_prototypes_travel_and_nothing_of_the_model(run, monkeypatch, tmp_path, method):
    overrides = [folder_of_clients(tmp_path / "clients"), "strategy.fraction=0.67", "rounds=4", "dtype=float64"]
    with recorded_messages(monkeypatch) as messages:
        finished = run(f"strategy={method}", *overrides)
    assert len({tuple(record["cohort"]) for record in finished.rounds}) > 1
    assert finished.summary["failures"] == {}
    assert {"global_test_accuracy", "test_accuracy"} <= set(finished.rounds[-1]["metrics"])
    sent = {name for _, _, content in messages for name, record in content.array_records.items() if len(record)}
    assert sent == {"prototypes"}
    uploads = [
        from_record(c["prototypes"]) for way, _, c in messages if way == "up" and "prototypes" in c.array_records
    ]
    assert len(uploads) == 8
    assert (max(group["count"].max() for group in uploads) == 1) == (method == "fedtgp")
    values = "mean" if method == "fedtgp" else "sum"
    assert all(not group[values][group["count"] == 0].any() for group in uploads)


def test_what_was_told_goes_down_in_the_next_round(run, monkeypatch, tmp_path):
    overrides = [folder_of_clients(tmp_path / "clients"), "rounds=2", "dtype=float64"]
    with recorded_messages(monkeypatch) as messages:
        run("strategy=fedproto", *overrides)
    groups = [(way, from_record(c["prototypes"])) for way, _, c in messages if "prototypes" in c.array_records]
    assert [way for way, _ in groups[:4]] == ["up", "up", "up", "down"]
    total = sum(group["count"] for _, group in groups[:3])
    pooled = sum(group["sum"] for _, group in groups[:3]) / total[:, None]
    assert total[2] == groups[2][1]["count"][2] > 0  # sent by only one client
    np.testing.assert_allclose(groups[3][1]["mean"], pooled, rtol=1e-12)


def test_networks_whose_embeddings_have_another_width(run):
    assert run("strategy=fedproto", "model=fedhero", "rounds=2").summary["failures"] == {}


def test_features_themselves_never_leave():
    with pytest.raises(FedGraphError, match=r"model\.layers=1"):
        check_method(compose(["strategy=fedproto", "model=mlp", "model.layers=1"]))
    client = client_of("model=mlp")
    client.model.encode = lambda inputs: inputs.x
    with pytest.raises(FedGraphError, match=r"needs hidden features.*: set model\.layers"):
        client.send()


def test_wrong_keys_are_refused():
    for word in ("lam=-1", "min_nodes=0", "distance=cosine"):
        with pytest.raises(FedGraphError, match=word.split("=")[0]):
            check_method(compose(["strategy=fedproto", f"strategy.{word}"]))

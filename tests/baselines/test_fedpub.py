"""FED-PUB: masks and regularisers against NumPy and closed forms, embeddings and mixing by hand; and what travels."""

from typing import Any

import numpy as np
import pytest
import torch

from fedgraph_baselines.clients.fedpub import FedPUBClient
from fedgraph_baselines.methods.fedpub import random_graph
from fedgraph_baselines.strategies.fedpub import FedPUB
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.numerics.optim import SGD
from fedgraph_flwr.wire.messages import MODEL, Reply, from_record
from tests.conftest import client_graph
from tests.support import dense_gcn_adjacency, recorded_messages

MATRICES = ["layers.0.weight", "head.weight"]


def client_of(*overrides: str) -> Any:
    cfg = compose(["strategy=fedpub", "model.hidden=8", "model.dropout=0", "dtype=float64", *overrides])
    return FedPUBClient(cfg, client_graph(0, 16))


def drawn(client: Any, *, small: bool = False) -> dict[str, np.ndarray]:
    """Masks of both signs, some within the threshold; the parameters and masks by name, in NumPy."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for mask in client.mu.values():
            mask.copy_(torch.randn(mask.shape, generator=generator))
            if small:
                mask.view(-1)[::3] = 5e-4
    named = {name: p.detach().numpy().copy() for name, p in client.model.named_parameters()}
    return named | {f"mask of {name}": mask.detach().numpy().copy() for name, mask in client.mu.items()}


def forward(theta: dict[str, np.ndarray], graph: Any, threshold: float = 0) -> tuple[np.ndarray, np.ndarray]:
    """H [N, 8] and logits [N, C] of the masked GCN."""
    a = dense_gcn_adjacency(graph.edge_index, graph.num_nodes).numpy()
    masks = [theta[f"mask of {name}"] for name in MATRICES]
    first, last = (theta[n] * np.where(abs(m) < threshold, 0, m) for n, m in zip(MATRICES, masks, strict=True))
    h = np.maximum(a @ graph.x.double().numpy() @ first + theta["layers.0.bias"], 0)
    return h, a @ h @ last + theta["head.bias"]


def test_all_matrices_and_no_vectors_are_masked_by_ones_at_first():
    client = client_of()
    assert list(client.mu) == MATRICES
    assert all(torch.equal(mask, torch.ones_like(mask)) for mask in client.mu.values())
    assert torch.equal(client.predict(), client.predict_shared())
    assert set(client.shared) == {*MATRICES, "layers.0.bias", "head.bias"}


def test_masked_predictions_and_the_embedding_by_hand():
    client = client_of()
    theta = drawn(client, small=True)
    np.testing.assert_allclose(client.predict().numpy(), forward(theta, client.graph, 1e-3)[1], rtol=1e-10, atol=1e-12)
    client.model.train()
    np.testing.assert_allclose(
        client.logits(client.inputs).detach().numpy(), forward(theta, client.graph)[1], rtol=1e-10, atol=1e-12
    )
    reply = client.send()[0]["embedding"]["mean"]
    graph = random_graph(0, client.graph.num_features, 3)
    np.testing.assert_allclose(reply, forward(theta, graph, 1e-3)[0].mean(0), rtol=1e-10)
    for name, parameter in client.model.named_parameters():
        np.testing.assert_array_equal(parameter.detach().numpy(), theta[name])


@pytest.mark.parametrize("shift", [0.3, -0.3])
def test_both_regularisers_have_their_gradient(shift):
    """λ1 sign(μ) and 2 λ2 (θ − θ̄), in addition to the task's: the authors' program has none."""
    gradients = []
    for overrides in (["strategy.lam1=0", "strategy.lam2=0"], ["strategy.lam1=0.2", "strategy.lam2=0.7"]):
        client = client_of(*overrides)
        drawn(client)
        client.model.train()
        client.received = {name: tensor.detach() - shift for name, tensor in client.shared.items()}
        optimizer = SGD(client.parameters(), 0.1)
        client.gradient(optimizer)
        grads = [p.grad for p in client.parameters()]
        assert all(grad.any() for grad in grads)
        gradients.append(grads)
    theta = len(list(client.model.parameters()))
    for plain, full in zip(gradients[0][:theta], gradients[1][:theta], strict=True):
        torch.testing.assert_close(full - plain, torch.full_like(full, 2 * 0.7 * shift))
    for plain, full, mask in zip(gradients[0][theta:], gradients[1][theta:], client.mu.values(), strict=True):
        torch.testing.assert_close(full - plain, 0.2 * mask.detach().sign())


def test_running_statistics_are_no_part_of_the_distance_from_the_received_model():
    """They move in training, whatever the weights do."""
    client = client_of("model.norm=batch", "strategy.lam1=0", "strategy.lam2=1")
    client.train()
    named = dict(client.model.named_parameters())
    apart = sum((named[name] - start).square().sum() for name, start in client.received.items())
    assert client.received.keys() == named.keys() < client.shared.keys()
    without = client_of("model.norm=batch", "strategy.lam1=0", "strategy.lam2=0")
    without.model.load_state_dict(client.model.state_dict())
    without.mu = client.mu
    assert (client.loss() - without.loss()).item() == pytest.approx(apart.item(), rel=1e-9)


def test_a_step_by_hand():
    """θ and μ of the head after one step of SGD, by the chain rule; the first layer's by differences."""
    client = client_of(
        *("train.optimizer=sgd", "train.lr=0.5", "train.weight_decay=0", "train.local_steps=1"),
        *("strategy.lam1=0.01", "strategy.lam2=0.1"),  # no distance from θ̄ in the first step
    )
    theta = drawn(client)
    graph, train = client.graph, client.graph.train_mask.numpy()
    y = np.eye(3)[graph.y.numpy()]

    def loss(**changed: np.ndarray) -> float:
        logits = forward(theta | changed, graph)[1]
        return float(-(y * (logits - np.log(np.exp(logits).sum(1, keepdims=True)))).sum(1)[train].mean())

    h, logits = forward(theta, graph)
    d = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - y) * train[:, None] / train.sum()
    slope = (dense_gcn_adjacency(graph.edge_index, graph.num_nodes).numpy() @ h).T @ d
    w, m = theta["head.weight"], theta["mask of head.weight"]
    client.train()
    mu = client.mu["head.weight"].detach().numpy()
    np.testing.assert_allclose(client.model.state_dict()["head.weight"].numpy(), w - 0.5 * slope * m, rtol=1e-9)
    np.testing.assert_allclose(mu, m - 0.5 * (slope * w + 0.01 * np.sign(m)), rtol=1e-9)
    first = client.mu["layers.0.weight"].detach().numpy()
    for place in ((0, 1), (3, 5)):
        bump = np.zeros_like(first)
        bump[place] = 1e-6
        name = "mask of layers.0.weight"
        slope = (loss(**{name: theta[name] + bump}) - loss(**{name: theta[name] - bump})) / 2e-6
        expected = theta[name][place] - 0.5 * (slope + 0.01 * np.sign(theta[name][place]))
        assert first[place] == pytest.approx(expected, rel=1e-6)


def test_the_random_graph_is_the_seeds():
    graph = random_graph(4, 7, 3)
    assert torch.equal(graph.x, random_graph(4, 7, 3).x)
    assert not torch.equal(graph.x, random_graph(5, 7, 3).x)
    source, target = graph.edge_index
    assert graph.x.shape == (500, 7)
    assert torch.equal(source // 100, target // 100)
    assert (source != target).all()
    edges = set(zip(source.tolist(), target.tolist(), strict=True))
    assert len(edges) == source.numel()
    assert edges == {(b, a) for a, b in edges}
    assert source.numel() / (500 * 99) == pytest.approx(0.1, abs=0.01)


def mixing(tau: float, vectors: Any) -> np.ndarray:
    replies = [Reply(i, {"embedding": {"mean": np.array(v, np.float32)}}) for i, v in enumerate(vectors)]
    return FedPUB(compose(["strategy=fedpub", f"strategy.tau={tau}"])).mixing(replies)


def test_the_mixing_by_hand():
    likeness = np.array([[1, 0.6, -1], [0.6, 1, -0.6], [-1, -0.6, 1]])
    expected = np.exp(2 * likeness) / np.exp(2 * likeness).sum(1, keepdims=True)
    vectors = [[2, 0], [3, 4], [-1, 0]]
    np.testing.assert_allclose(mixing(2, vectors), expected, rtol=1e-6)
    np.testing.assert_array_equal(mixing(0, vectors), np.full((3, 3), 1 / 3))
    np.testing.assert_array_equal(mixing(1e9, vectors), np.eye(3))
    np.testing.assert_allclose(mixing(1e4, [[1, 2]] * 4), np.full((4, 4), 1 / 4), rtol=1e-9)


def test_a_round_by_hand_and_no_mask_in_any_message(run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = run("strategy=fedpub", "rounds=2", "dtype=float64", "checkpoint_every=2")
    groups = {(way, name) for way, _, c in messages for name, record in c.array_records.items() if len(record)}
    assert groups == {("down", MODEL), ("up", MODEL), ("up", "embedding")}
    assert {name for *_, c in messages for name in c.array_records.get(MODEL, {})} == set(finished.arrays)
    up = [c for way, _, c in messages if way == "up" and MODEL in c.array_records][-3:]
    e = [from_record(c["embedding"])["mean"] for c in up]
    models = read_tensors(finished.out / "models_final.safetensors")[0]
    for i, mine in enumerate(e):
        alpha = [np.exp(3 * mine @ a / np.sqrt((mine @ mine) * (a @ a))) for a in e]
        for name in finished.arrays:
            mean = sum(w * c[MODEL][name].numpy() for w, c in zip(alpha, up, strict=True)) / sum(alpha)
            np.testing.assert_allclose(models[f"{i}/{name}"].numpy(), mean, rtol=1e-9, err_msg=name)
    kept = [read_tensors(path)[0] for path in sorted((finished.out / "state").rglob("*.safetensors"))]
    for name in MATRICES:
        masks = [tensors[f"method/masks/{name}"] for tensors in kept]
        assert not torch.equal(masks[0], masks[1])
        assert not torch.equal(masks[0], torch.ones_like(masks[0]))


@pytest.mark.slow
def test_a_strong_penalty_empties_the_masks(run):
    finished = run("strategy=fedpub", "strategy.lam1=1", "rounds=60", "checkpoint_every=60", "train.optimizer=sgd")
    kept = [read_tensors(path)[0] for path in (finished.out / "state").rglob("round_*.safetensors")]
    masks = [t for tensors in kept for name, t in tensors.items() if "masks" in name and not name.startswith("kept")]
    assert len(masks) == 6
    assert max(float(mask.abs().max()) for mask in masks) < 0.1


@pytest.mark.parametrize("overrides", [["strategy.tau=-1"], ["strategy.lam1=-1"]])
def test_wrong_keys_are_refused(overrides):
    with pytest.raises(FedGraphError, match=overrides[0].partition("=")[0]):
        check_method(compose(["strategy=fedpub", *overrides]))


def test_networks_without_hidden_features_are_refused():
    with pytest.raises(FedGraphError, match=r"model\.layers >= 2"):
        check_method(compose(["strategy=fedpub", "model.layers=1"]))

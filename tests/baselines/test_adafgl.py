"""AdaFGL: the corrected graph, both branches and their blend by dense NumPy; two stages, of which the second sends nothing."""

import numpy as np
import pytest
import torch

from fedgraph_baselines.clients.adafgl import AdaFGLClient
from fedgraph_baselines.methods.adafgl import BETA, STEPS
from fedgraph_baselines.strategies.adafgl import AdaFGL
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.numerics.sparse import SmoothedRows
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.round import Round
from fedgraph_flwr.wire.messages import MODEL, Reply, derive_seed
from tests.conftest import client_graph
from tests.support import call_fresh, recorded_messages, same_result

N, C = 16, 3
WORDS = ["strategy=adafgl", "strategy.extractor_rounds=1", "model.hidden=8", "model.dropout=0"]


def client_of(*overrides):
    """One that holds an extractor, in stage 2."""
    cfg = compose(
        [*WORDS, "dtype=float64", "strategy.threshold=0.9", "strategy.alike=15", "strategy.alpha=0.3", *overrides]
    )
    client = AdaFGLClient(cfg, client_graph(0, N, num_classes=C))
    theta = {name: 3 * tensor.detach().numpy() for name, tensor in client.shared.items()}
    client.extractor({"extractor": theta}, {})
    client.stage = "personal"
    return client


def softmax(z):
    z = z - z.max(-1, keepdims=True)
    return np.exp(z) / np.exp(z).sum(-1, keepdims=True)


def prelu(q, slope):
    return np.where(q > 0, q, slope * q)


def mlp(perceptron, h):
    for place, layer in enumerate(perceptron.layers):
        if place:
            h = prelu(h, perceptron.slopes[place - 1].weight.item())
        h = h @ layer.weight.detach().numpy() + layer.bias.detach().numpy()
    return h


def by_hand(client, program):
    """Z and O_1..O_3, and P̂, A' and R; pair by pair."""
    graph, p = client.graph, client.params
    knowledge = softmax(client.knowledge.log().numpy())
    compared = np.exp(knowledge) / np.exp(knowledge).sum(1, keepdims=True) if p.softmaxes == 2 else knowledge
    a, r = np.zeros((N, N)), np.zeros((N, N))
    for source, target in graph.edge_index.T.tolist():
        a[target, source] = 1
    for u in range(N):
        for v in range(N):
            cosine = compared[u] @ compared[v] / np.linalg.norm(compared[u]) / np.linalg.norm(compared[v])
            r[u, v] = u != v and cosine > p.threshold
    mixed = p.alpha * a + (1 - p.alpha) * r
    loops = mixed + np.eye(N)
    root = 1 / np.sqrt(loops.sum(1))
    smoother = root[:, None] * loops * root
    blocks = [graph.x.double().numpy()]
    for _ in range(STEPS):
        blocks.append(smoother @ blocks[-1])
    wide, nets = np.concatenate(blocks, 1), client.branches
    f = mlp(nets.messages, wide)
    rows = softmax(f)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    at = mixed > 0
    q = BETA * r + (1 - BETA) * unit @ unit.T
    mean, top = q[at].mean(), q[at].max()
    below = np.maximum((-q if program else q - mean) / mean, -1)
    q = np.where(at, np.where(q > mean, (q - mean) / (top - mean), below), 0) + np.eye(N)
    slope = nets.slope.weight.item()
    signed = (softmax(prelu(q, slope) @ f) - softmax(prelu(-q, slope) @ f) + f) / 2
    others = [mlp(nets.features, blocks[0]), mlp(nets.smoothed, wide), signed]
    return mlp(nets.homophilous, wide), others, knowledge, mixed, r


@pytest.mark.parametrize("stored", ["dense", "sparse"])
@pytest.mark.parametrize("negatives", ["paper", "program"])
def test_the_loss_and_the_prediction_by_hand(negatives, stored, monkeypatch):
    monkeypatch.setattr("fedgraph_flwr.models.base.SPARSE_BELOW", 0 if stored == "dense" else 2)
    client = client_of(f"strategy.negatives={negatives}")
    assert isinstance(client.smooth[1], SmoothedRows) == (stored == "sparse")
    z, others, knowledge, _, r = by_hand(client, negatives == "program")
    assert 2 < r.sum() < N * (N - 1)
    train, y = client.graph.train_mask.numpy(), client.graph.y.numpy()

    def entropy(logits):
        return -np.log(softmax(logits)[train, y[train]]).mean()

    expected = entropy(z) + ((z - knowledge) ** 2).mean() + sum(map(entropy, others))
    assert client.loss().item() == pytest.approx(expected, rel=1e-10)
    client.train()
    z, others, *_ = by_hand(client, negatives == "program")
    s = client.homophily
    blend = s * (softmax(z) + knowledge) / 2 + (1 - s) * sum(map(softmax, others)) / 3
    np.testing.assert_allclose(client.predict().exp().numpy(), blend, rtol=1e-9)
    np.testing.assert_allclose(blend.sum(1), 1)


@pytest.mark.parametrize(("chosen", "homophily"), [(0.6, 0.6), (0.6, 0.5)])
def test_the_form_of_the_authors_code_by_hand(chosen, homophily):
    """Two softmaxes, and the homophilous branch alone from a confidence on, the other below."""
    client = client_of("strategy.softmaxes=2", f"strategy.choose_from={chosen}", "strategy.threshold=0.985")
    client.homophily = homophily
    assert [len(net.layers) for net in (client.branches.homophilous, client.branches.messages)] == [2, 3]
    like = homophily >= chosen
    before = {name: tensor.clone() for name, tensor in client.branches.state_dict().items()}
    z, others, knowledge, mixed, r = by_hand(client, program=False)
    assert 2 < r.sum() < N * (N - 1)
    pattern, alike, _ = client.pairs
    np.testing.assert_array_equal(
        torch.sparse_coo_tensor(torch.stack([pattern.row, pattern.col]), alike, (N, N)).to_dense(), r
    )
    assert pattern.row.numel() == (mixed > 0).sum()
    train, y = client.graph.train_mask.numpy(), client.graph.y.numpy()

    def entropy(logits):
        return -np.log(softmax(logits)[train, y[train]]).mean()

    expected = entropy(z) + ((z - knowledge) ** 2).mean() if like else sum(map(entropy, others))
    assert client.loss().item() == pytest.approx(expected, rel=1e-10)
    client.train()
    changed = {
        name.partition(".")[0]
        for name, old in before.items()
        if not torch.equal(old, client.branches.state_dict()[name])
    }
    assert changed == ({"homophilous"} if like else {"features", "smoothed", "messages", "slope"})
    z, others, *_ = by_hand(client, program=False)
    predicted = (softmax(z) + softmax(knowledge)) / 2 if like else sum(map(softmax, others)) / 3
    np.testing.assert_allclose(client.predict().exp().numpy(), predicted, rtol=1e-9)


def test_the_confidence_by_hand():
    client = client_of()
    order = client.train_nodes[
        torch.randperm(client.num_train, generator=torch.Generator().manual_seed(derive_seed(0, 0, "confidence")))
    ].tolist()
    known, asked = order[: len(order) // 2], order[len(order) // 2 :]
    y, a = client.graph.y.numpy(), np.eye(N)
    for source, target in client.graph.edge_index.T.tolist():
        a[target, source] = 1
    a /= np.sqrt(np.outer(a.sum(1), a.sum(1)))
    first = np.full((N, C), 1 / C)
    first[known] = np.eye(C)[y[known]]
    labels = first
    for _ in range(10):
        labels = (first + a @ labels) / 2
    assert client.homophily == np.mean(labels[asked].argmax(1) == y[asked])
    client.train_nodes = client.train_nodes[:1]
    client.__dict__.pop("homophily")
    assert client.homophily == 0.5


def test_alpha_1_leaves_the_graph_and_no_pair_is_alike_without_neighbours():
    for overrides in (["strategy.alpha=1"], ["strategy.alike=0"]):
        client = client_of(*overrides)
        pattern = client.pairs[0]
        edges = {tuple(pair) for pair in client.graph.edge_index.flip(0).T.tolist()}
        assert set(zip(pattern.row.tolist(), pattern.col.tolist(), strict=True)) == edges


def test_a_node_keeps_as_many_alike_as_said():
    client = client_of("strategy.threshold=-1", "strategy.alike=2", "strategy.alpha=0")
    pattern = client.pairs[0]
    assert N * 2 <= pattern.row.numel() <= N * 4  # both ways
    assert bool((client.pairs[1] == 1).all())


def test_labels_of_other_nodes_are_not_read():
    one, two = client_of(), client_of()
    two.graph.y = two.graph.y.clone()
    two.y = two.y.clone()
    two.graph.y[~two.graph.train_mask] = two.y[~two.graph.train_mask] = 0
    assert one.homophily == two.homophily
    for client in (one, two):
        client.train()
    assert torch.equal(one.predict(), two.predict())


@pytest.mark.slow
def test_stage_2_sends_nothing_and_stage_1_is_fedavg(run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = run(*WORDS, "rounds=4")
    fedavg = run("strategy=fedavg", "model.hidden=8", "model.dropout=0", "rounds=1")
    for name, array in fedavg.arrays.items():
        np.testing.assert_array_equal(finished.arrays[name], array)
    after = [
        (way, content)
        for way, _, content in messages
        if content.config_records.get("config", {}).get("round", 0) > 1 or way == "up"
    ]
    handed = [content for way, content in after if "extractor" in content.array_records]
    assert len(handed) == 3
    ups = [content for way, _, content in messages if way == "up"]
    assert sum(MODEL in content.array_records for content in ups) == 3  # of round 1
    late = [content for way, content in after if way == "down" and "extractor" not in content.array_records]
    assert late
    assert not any(content.array_records for content in late)
    losses = [record["train"]["train_loss"] for record in run(*WORDS, "rounds=25").rounds]
    assert losses[-1] < losses[2]


@pytest.mark.parametrize("part", ["variates=scaffold", "variates=feddyn", "variates=feddc", "objective=[prox]"])
def test_the_parts_act_in_stage_1_only(part, run, monkeypatch):
    """Stage 1 is FedAvg with the part; later messages have no arrays of it, and the server keeps the model."""
    overrides = [f"strategy.{part}", "strategy.weighting=uniform", "train.local_steps=2", "model.dropout=0"]
    with recorded_messages(monkeypatch) as messages:
        finished = run(*WORDS, *overrides, "rounds=4", "strategy.extractor_rounds=2")
    alone, fedavg = run(*overrides, "rounds=2"), run(*overrides[1:], "rounds=2")
    for name, array in alone.arrays.items():
        np.testing.assert_array_equal(finished.arrays[name], array)
    assert any((fedavg.arrays[name] != array).any() for name, array in alone.arrays.items())
    assert finished.summary["failures"] == {}
    down = [content for way, _, content in messages if way == "down" and content["config"].get("round", 0) > 2]
    assert {name for content in down for name in content.array_records} == {"extractor"}
    assert sum(bool(content.array_records) for content in down) == 3
    ups = [content for way, _, content in messages if way == "up"]
    assert sum(bool(content.array_records) for content in ups) == 2 * 3  # in stage 1


@pytest.mark.slow
def test_stage_2_survives_fresh_clients_a_cohort_and_a_resumption(run, monkeypatch):
    overrides = [*WORDS, "rounds=5", "strategy.fraction=0.67", "strategy.extractor_rounds=2", "model.dropout=0.5"]
    whole = run(*overrides)
    assert whole.summary["failures"] == {}
    half = run(*overrides, "rounds=3", "checkpoint_every=1")
    node_clients.forget(0)
    same_result(run(*overrides, f"resume={half.out}", f"out={half.out}"), whole)
    monkeypatch.setattr("fedgraph_flwr.engine.inline.InlineGrid._call", call_fresh)
    same_result(run(*overrides), whole)


def test_a_client_that_was_not_reached_is_asked_again(run, monkeypatch):
    take, failed = AdaFGLClient.extractor, []

    def once(self, groups, config):
        if self.graph.client == 1 and not failed:
            failed.append(1)
            raise FedGraphError("away")
        return take(self, groups, config)

    once.is_phase = True  # type: ignore[attr-defined]
    monkeypatch.setattr(AdaFGLClient, "extractor", once)
    finished = run(*WORDS, "rounds=3")
    assert finished.summary["failures"] == {"1 (extractor)": "away"}
    assert [list(record["failed"]) for record in finished.rounds] == [[], ["1 (extractor)"], []]


@pytest.mark.parametrize(
    "word",
    ["extractor_rounds=-1", "alpha=1.5", "alike=-1", "negatives=odd", "softmaxes=3", "choose_from=2"],
)
def test_wrong_keys_are_refused(word):
    with pytest.raises(FedGraphError, match=f"strategy.{word.partition('=')[0]}"):
        check_method(compose(["strategy=adafgl", f"strategy.{word}"]))


def test_indices_with_gaps_get_the_extractor():
    server = AdaFGL(compose(["strategy=adafgl", "num_clients=3", "strategy.extractor_rounds=1"]))
    server.clients = {name: ClientInfo(name, name, {}) for name in (0, 3, 7)}
    server.round, asked = Round(2, [3, 7]), []
    server.request = lambda phase, groups, clients: asked.append(clients) or [Reply(c) for c in clients if c != 3]
    server.before_train({"w": np.zeros(2)})
    server.round = Round(2, [3, 7])
    server.before_train({"w": np.zeros(2)})
    assert asked == [[0, 3, 7], [3]]

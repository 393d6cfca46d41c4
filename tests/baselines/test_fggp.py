"""FGGP: FINCH and the bank by hand, every term of the objective by loops, votes, and a second view that carries gradient."""

import copy
import math

import numpy as np
import pytest
import torch

from fedgraph_baselines.clients import fggp
from fedgraph_baselines.clients.fggp import FGGPClient, Pairs, alignment, straight_through
from fedgraph_baselines.methods.fggp import bank, finch
from fedgraph_baselines.strategies.fggp import FGGP
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.wire.messages import Reply
from tests.conftest import client_graph
from tests.support import reduced

N, C = 20, 3
WORDS = ["strategy=fggp", "model.hidden=6", "dtype=float64", "model.dropout=0"]


def client_of(*overrides, nodes=N):
    return FGGPClient(compose([*WORDS, *overrides]), client_graph(0, nodes))


def angles(*degrees):
    return np.array([[math.cos(math.radians(d)), math.sin(math.radians(d))] for d in degrees])


def partition(items):
    clusters = finch(items)
    return {frozenset(np.flatnonzero(clusters == c).tolist()) for c in range(clusters.max() + 1)}


def test_finch_by_hand():
    assert partition(angles(10)) == {frozenset({0})}
    assert partition(angles(10, 50)) == {frozenset({0, 1})}
    assert partition(angles(0, 5, 90, 97)) == {frozenset({0, 1}), frozenset({2, 3})}
    # Pairs, then pairs of pairs: from four clusters to two, and one would be none.
    eight = angles(0, 2, 10, 12, 90, 92, 100, 102)
    assert partition(eight) == {frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})}
    # Chains are joined through a common nearest one; three clusters do not become two.
    assert partition(angles(0, 3, 7, 60, 64, 120, 125)) == {frozenset({0, 1, 2}), frozenset({3, 4}), frozenset({5, 6})}


def test_the_bank_goes_by_class_and_not_by_the_order_of_clients():
    means = np.zeros((4, 3, 2))
    means[:, 0] = angles(0, 5, 90, 97)
    means[:2, 2] = [[1, 0], [3, 0]]
    known = np.array([[1, 0, 1], [1, 0, 1], [1, 0, 0], [1, 0, 0]], bool)
    rows, labels = bank(means, known)
    assert labels.tolist() == [0, 0, 2]
    np.testing.assert_allclose(rows[2], [2, 0])
    expected = [means[:2, 0].mean(0), means[2:, 0].mean(0)]
    np.testing.assert_allclose(sorted(map(tuple, rows[:2])), sorted(map(tuple, expected)))
    other, _ = bank(means[::-1], known[::-1])
    np.testing.assert_allclose(sorted(map(tuple, other)), sorted(map(tuple, rows)))
    assert bank(means, np.zeros((4, 3), bool))[0].shape == (0, 2)


def server_of(*overrides):
    server = FGGP(compose([*WORDS, *overrides]))
    server.arrays = {"layers.0.w": np.zeros(1), "head.w": np.zeros(1)}
    server.weights = lambda replies: [1.0] * len(replies)
    return server


def reply(client, mean, known, arrays=None):
    group = {"mean": np.full((len(known), 3), mean), "known": np.array(known)}
    return Reply(client, {"model": arrays or {}, "prototypes": group}, {})


def round_of(server, *replies):
    arrays = server.arrays
    replies = [Reply(r.client, {**r.groups, "model": r.groups["model"] or arrays}, {}) for r in replies]
    return server.step(arrays, reduced(server, "train", replies))


def test_a_class_that_no_client_of_the_cohort_knows_keeps_its_prototypes():
    server = server_of("strategy.queue=0")
    round_of(server, reply(0, 1.0, [True, True]), reply(1, 3.0, [True, False]))
    assert sorted(server.memory["bank"]["label"].tolist()) == [0, 1]
    round_of(server, reply(1, 7.0, [True, False]))
    held = dict(zip(server.memory["bank"]["label"].tolist(), server.memory["bank"]["mean"][:, 0].tolist(), strict=True))
    assert held == {0: 7.0, 1: 1.0}


def test_the_bank_is_a_queue_of_so_many_rows_per_class():
    """Two classes of two rows each: 4 rows, the oldest replaced first; of one round all are kept."""
    server = server_of("strategy.queue=2")
    seen = []
    for value, known in ((1.0, [True, True]), (2.0, [True, False]), (3.0, [True, True]), (4.0, [False, True])):
        round_of(server, reply(0, value, known))
        held = server.memory["bank"]
        seen.append(list(zip(held["mean"][:, 0].tolist(), held["label"].tolist(), strict=True)))
    assert seen == [
        [(1, 0), (1, 1)],
        [(1, 0), (1, 1), (2, 0)],
        [(1, 1), (2, 0), (3, 0), (3, 1)],
        [(2, 0), (3, 0), (3, 1), (4, 1)],
    ]


def test_by_default_the_bank_keeps_ten_rows_per_class():
    """As in the authors' code (models/fggp.py, lines 78-80): of 25 rounds with a row of both classes each, the last ten."""
    server = server_of()
    for value in range(25):
        round_of(server, reply(0, float(value), [True, True]))
    assert sorted(server.memory["bank"]["mean"][:, 0].tolist()) == [v for v in range(15, 25) for _ in range(2)]


@pytest.mark.parametrize(("head", "expected"), [("average", 4.0), ("initial", 0.0)])
def test_the_head_is_averaged_or_keeps_its_initial_values(head, expected):
    server = server_of(f"strategy.head={head}")
    trained = [{"layers.0.w": np.full(1, v), "head.w": np.full(1, v)} for v in (3.0, 5.0)]
    arrays = round_of(server, *(reply(i, 1.0, [True, True], model) for i, model in enumerate(trained)))
    assert arrays["layers.0.w"] == 4
    assert arrays["head.w"] == expected
    assert not np.shares_memory(arrays["head.w"], server.arrays["head.w"])  # a checkpoint holds both
    with pytest.raises(FedGraphError, match=r"head=initial.* set strategy.head=average"):
        check_method(compose(["strategy=fggp", "strategy.head=initial", "strategy.inference=classifier"]))


def test_prototypes_come_after_two_convolutions():
    """By default a prototype's features depend on nodes two hops away, and on none three hops away."""
    graph = client_graph(0, 4)
    graph.edge_index = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    client = FGGPClient(compose(["strategy=fggp", "dtype=float64", "model.dropout=0"]), graph)
    moved = []
    for far in (2, 3):
        other = copy.deepcopy(graph)
        other.x[far] += 10
        features = FGGPClient(compose(["strategy=fggp", "dtype=float64", "model.dropout=0"]), other).embeddings()
        moved.append(not torch.equal(features[0], client.embeddings()[0]))
    assert moved == [True, False]


@pytest.mark.parametrize("negatives", ["both", "other"])
def test_the_alignment_by_hand(negatives):
    rng = np.random.default_rng(0)
    q, p = rng.normal(size=(C, 4)), rng.normal(size=(C, 4))

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    total = 0.0
    for c in range(C):
        score = [cosine(q[c], p[d]) for d in range(C)]
        score += [cosine(q[c], q[d]) for d in range(C) if d != c and negatives == "both"]
        total -= math.log(math.exp(score[c] / 0.5) / sum(math.exp(s / 0.5) for s in score))
    loss = alignment(torch.from_numpy(q), torch.from_numpy(p), 0.5, negatives)
    assert loss.item() == pytest.approx(total / C, rel=1e-12)
    one = torch.from_numpy(q[:1])
    assert alignment(one, one, 0.5, negatives).item() == pytest.approx(0)
    assert alignment(one[:0], one[:0], 0.5, negatives).item() == 0


def test_prototypes_by_hand():
    client = client_of()
    torch.manual_seed(0)
    h, logits = torch.randn(N, 4, dtype=torch.float64), torch.randn(N, C, dtype=torch.float64)
    mean, total = client.prototypes(h, logits)
    sure = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    for c in range(C):
        rows, weights = [], []
        for v in range(N):
            trains = bool(client.graph.train_mask[v])
            label = int(client.y[v]) if trains else int(sure[v].argmax())
            if label == c:
                rows.append(h[v].numpy())
                weights.append(1.0 if trains else sure[v].max())
        np.testing.assert_allclose(mean[c], np.average(rows, axis=0, weights=weights), rtol=1e-12)
        assert total[c].item() == pytest.approx(sum(weights))


def test_pairs_are_own_edges_and_near_nodes_found_every_f_rounds():
    client = client_of("strategy.near=2", "strategy.refresh=3", "model.hidden=32")  # no two nodes alike
    client.server_round = 1
    client.search()
    unit = torch.nn.functional.normalize(client.embeddings(), dim=1).numpy()
    expected = {(min(a, b), max(a, b)) for a, b in client.graph.edge_index.T.tolist()}
    for v in range(N):
        order = [u for u in np.argsort(-(unit @ unit[v])) if u != v][:2]
        expected |= {(min(v, int(u)), max(v, int(u))) for u in order}
    keys = client.memory["pairs"]
    assert {(int(k) // N, int(k) % N) for k in keys} == expected
    with torch.no_grad():
        for parameter in client.model.parameters():
            parameter.mul_(-1.7).add_(0.3)
    for server_round, same in ((3, True), (4, False)):
        client.server_round = server_round
        client.search()
        assert torch.equal(client.memory["pairs"], keys) == same


def test_the_second_view_by_hand(monkeypatch):
    client, chances = client_of(), []
    monkeypatch.setattr(fggp, "straight_through", lambda share: chances.append(share) or straight_through(share))
    client.server_round = 1
    client.search()
    torch.manual_seed(1)
    view, smooth, loss = client.second_view()
    keys = client.memory["pairs"].tolist()
    union = np.eye(N)
    for k in keys:
        union[k // N, k % N] = union[k % N, k // N] = 1
    scale = union.sum(1) ** -0.5
    mean = scale[:, None] * union * scale
    one, two = (layer.weight.detach().numpy() for layer in (client.augmentor.first, client.augmentor.second))
    h = np.maximum(mean @ mean @ client.graph.x.double().numpy() @ one @ two, 0)
    np.testing.assert_allclose(smooth.adj @ torch.eye(N, dtype=torch.float64), mean, rtol=1e-12)
    score = np.array([h[k // N] @ h[k % N] for k in keys])
    share = (score / ((h @ h.T).max() + 1e-6) + 1) / 2
    np.testing.assert_allclose(chances[0].detach(), share, rtol=1e-10)
    torch.manual_seed(1)
    drawn = straight_through(torch.from_numpy(share)).numpy()
    assert set(np.round(drawn, 12)) <= {0.0, 1.0}
    a = np.eye(N)
    for k, on in zip(keys, drawn, strict=True):
        a[k // N, k % N] = a[k % N, k // N] = on
    root = a.sum(1) ** -0.5
    dense = view.adj @ torch.eye(N, dtype=torch.float64)
    np.testing.assert_allclose(dense.detach(), root[:, None] * a * root, rtol=1e-12)
    other = torch.randint(N, (2, len(keys))).T.tolist()
    free = [(u, v) for u, v in other if u != v and min(u, v) * N + max(u, v) not in set(keys)]
    positive = np.mean(np.log1p(np.exp(-score)))
    negative = np.mean([np.log1p(np.exp(h[u] @ h[v])) for u, v in free])
    assert loss.item() == pytest.approx((positive + negative) / 2, rel=1e-10)


def test_the_gradient_of_a_draw_is_that_of_the_relaxed_one():
    torch.manual_seed(2)
    share = torch.rand(50, dtype=torch.float64).requires_grad_()
    torch.manual_seed(3)
    drawn = straight_through(share)
    torch.manual_seed(3)
    noise = torch.rand(50, dtype=torch.float64)
    soft = torch.sigmoid(share.logit() + noise.logit())
    assert torch.equal(drawn.detach().round(), (soft > 0.5).double())
    (mine,) = torch.autograd.grad(drawn.sum(), share)
    (theirs,) = torch.autograd.grad(soft.sum(), share)
    torch.testing.assert_close(mine, theirs)
    ends, weight = torch.tensor([[0, 1], [2, 2]]), torch.tensor([1.0, 0.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: Pairs(ends, 3).weighted(w) @ torch.eye(3, dtype=torch.float64), (weight,))


def test_the_objective_is_the_sum_of_its_terms():
    """Each weighed by its own key, and the second view's prototypes drawn to those of the first."""
    client = client_of(
        *(f"strategy.{key}_weight={w}" for key, w in (("view", 0.7), ("prototype", 0.4), ("structure", 0.3)))
    )
    client.server_round = 1
    client.search()
    torch.manual_seed(1)
    loss = client.loss()
    torch.manual_seed(1)
    view, smooth, made = client.second_view()
    first, second = client.model.encode(client.inputs), client.model.encode(view)
    logits, others = client.model.classify(first, client.inputs), client.model.classify(second, smooth)
    (one, known), (two, also) = client.prototypes(first, logits), client.prototypes(second, logits)
    assert torch.equal(known, also)
    both = known > 0
    assert both.sum() > 1
    expected = client.task_loss(logits) + 0.7 * client.task_loss(others)
    expected += 0.4 * alignment(two[both], one[both], 0.5, "both") + 0.3 * made
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)


def test_a_step_trains_the_augmentor_by_the_task_alone():
    client = client_of("strategy.structure_weight=0", "strategy.prototype_weight=0", "train.local_steps=1")
    client.server_round = 1
    before = [p.detach().clone() for p in client.augmentor.parameters()]
    client.train()
    assert any(not torch.equal(a, b) for a, b in zip(before, client.augmentor.parameters(), strict=True))


def test_votes_by_hand():
    client = client_of("strategy.votes=4")
    rng = np.random.default_rng(0)
    rows, label = rng.normal(size=(7, 6)), np.array([0, 0, 2, 2, 2, 0, 2])
    client.receive({"bank": {"mean": rows, "label": label}})
    h = client.embeddings().numpy()
    votes = np.zeros((N, C))
    for v in range(N):
        cosine = rows @ h[v] / np.linalg.norm(rows, axis=1) / max(np.linalg.norm(h[v]), 1e-12)
        for b in np.argsort(-cosine)[:4]:
            votes[v, label[b]] += math.exp(cosine[b] / 0.1)
    shares = client.predict().exp().numpy()
    shares /= shares.sum(1, keepdims=True)
    alive = np.linalg.norm(h, axis=1) > 0
    np.testing.assert_allclose(shares[alive], (votes / votes.sum(1, keepdims=True))[alive], rtol=1e-9, atol=1e-12)
    assert (shares[:, 1] < 1e-12).all()  # nobody knows class 1


@pytest.mark.parametrize("overrides", [["strategy.votes=0"], ["strategy.negatives=odd"], ["model.layers=1"]])
def test_wrong_keys_are_refused(overrides):
    with pytest.raises(FedGraphError, match=overrides[0].partition("=")[0]):
        check_method(compose(["strategy=fggp", *overrides]))


@pytest.mark.parametrize("model", ["fedhero", "fedlit"])
def test_a_network_that_reads_more_than_edges_is_refused(model):
    with pytest.raises(FedGraphError, match="reads more of a graph than its adjacency"):
        client_of(f"model={model}")


def test_a_nodes_owner_may_ask_for_more_nodes_than_the_run():
    client = client_of("strategy.min_nodes=2")
    sure = client.prototypes(client.embeddings(), client.model.classify(client.embeddings(), client.inputs))[1]
    for least in (0, 1, 3, N):
        client.policy = Policy(min_nodes=least)
        assert client.send()[0]["prototypes"]["known"].tolist() == (sure >= max(2, least)).tolist()

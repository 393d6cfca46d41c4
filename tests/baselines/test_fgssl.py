"""FGSSL: both terms by loops in NumPy, the teacher out of reach of gradients, and views that are what they say."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgraph_baselines.clients.fgssl import FGSSLClient, contrast, edge_divergence, log_shares, neighbour_divergence
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.models.gcn import GCN
from fedgraph_flwr.numerics.sparse import Pattern
from tests.conftest import client_graph

V, H, T = 7, 4, 0.3
Y = [0, 1, 0, 2, 1, 0, 0]
PAIRS = [(0, 1), (0, 2), (1, 0), (2, 0), (2, 3), (2, 4), (5, 6)]  # node 3, 4 and 6 hear nobody


def features(seed):
    return torch.randn(V, H, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def pattern():
    row, col = torch.tensor(PAIRS).T
    return Pattern(row, col, V)


def test_the_shared_contrast_is_cross_entropy_against_the_positives():
    """Torch's cross entropy with uniform targets over each anchor's positives, in both directions."""
    z, taught, y = features(0), features(1), torch.tensor(Y)
    s = torch.nn.CosineSimilarity(dim=2)(z[:, None], taught[None]) / T
    targets = torch.stack([(y == label).double() / (y == label).sum() for label in y])
    expected = sum(torch.nn.functional.cross_entropy(scores, targets) for scores in (s, s.T)) / 2
    torch.testing.assert_close(contrast(z, taught, y, T), expected, rtol=1e-12, atol=0)


def test_both_contrasts_of_equal_rows():
    """Of equal rows in one class the shared form is log V, the own form 0."""
    z, one = torch.ones(V, H, dtype=torch.float64), torch.zeros(V, dtype=torch.int64)
    assert contrast(z, z, one, T).item() == pytest.approx(math.log(V), rel=1e-12)
    assert contrast(z, z, one, T, "own").item() == pytest.approx(0, abs=1e-12)


def test_the_own_contrast_by_hand():
    z, targets = features(0), features(1)
    total = 0.0
    for v in range(V):
        s = [math.exp(cosine(z[v].numpy(), targets[u].numpy()) / T) for u in range(V)]
        away = sum(s[n] for n in range(V) if Y[n] != Y[v])
        positives = [p for p in range(V) if Y[p] == Y[v]]
        assert v in positives
        total += -sum(math.log(s[p] / (s[p] + away)) for p in positives) / len(positives)
    assert contrast(z, targets, torch.tensor(Y), T, "own").item() == pytest.approx(total / V, rel=1e-12)
    alone = contrast(z, targets, torch.zeros(V, dtype=torch.int64), T, "own")  # one class: nothing to tell apart
    assert alone.item() == pytest.approx(0, abs=1e-12)


def test_the_divergence_of_neighbours_by_hand():
    z, received = features(2).numpy(), features(3).numpy()
    total, hearing = 0.0, {v for v, _ in PAIRS}
    for v in hearing:
        around = [u for w, u in PAIRS if w == v]
        p, q = (np.array([math.exp(cosine(h[v], h[u]) / T) for u in around]) for h in (z, received))
        p, q = p / p.sum(), q / q.sum()
        total += float((q * np.log(q / p)).sum())
    divergence = neighbour_divergence(torch.from_numpy(z), torch.from_numpy(received), pattern(), T)
    assert divergence.item() == pytest.approx(total / len(hearing), rel=1e-10)


def test_the_divergence_of_edges_by_hand():
    z, received = features(4).numpy(), features(5).numpy()
    total = 0.0
    for v, u in PAIRS:
        p, q = (np.exp(np.abs(h[v] - h[u]) / T) for h in (z, received))
        p, q = p / p.sum(), q / q.sum()
        total += float((q * np.log(q / p)).sum())
    divergence = edge_divergence(torch.from_numpy(z), torch.from_numpy(received), pattern(), T)
    assert divergence.item() == pytest.approx(total / len(PAIRS), rel=1e-10)


@pytest.mark.parametrize("divergence", [neighbour_divergence, edge_divergence])
def test_a_student_like_its_teacher_diverges_by_nothing_and_is_not_moved(divergence):
    z = features(6).requires_grad_()
    loss = divergence(z, z.detach(), pattern(), T)
    assert loss.item() == pytest.approx(0, abs=1e-14)
    loss.backward()
    np.testing.assert_allclose(z.grad, 0, atol=1e-14)


def client_of(*overrides, nodes=24):
    cfg = compose(["strategy=fgssl", "model.hidden=8", "dtype=float64", "model.dropout=0", *overrides])
    return FGSSLClient(cfg, client_graph(0, nodes))


def test_the_objective_is_the_sum_of_its_terms_and_the_teacher_stays(monkeypatch):
    """Views without a loss, so that both terms can be taken of the whole graph."""
    for view in ("WEAK", "STRONG"):
        monkeypatch.setattr(f"fedgraph_baselines.clients.fgssl.{view}", (0, 0))
    client = client_of("strategy.contrast=0.7", "strategy.structure_weight=0.4")
    client.train()
    before = [tensor.clone() for tensor in client.shared.values()]
    seen = []
    step = FGSSLClient.loss

    def spy(self):
        loss = step(self)
        seen.append((loss.item(), [t.clone() for t in self.teacher.state_dict().values()]))
        z, targets = (m.encode(self.inputs).detach() for m in (self.model, self.teacher))
        rows = self.train_nodes
        expected = self.task_loss(self.logits(self.inputs)).item()
        expected += 0.7 * contrast(z[rows], targets[rows], self.y[rows], 0.1).item()
        expected += 0.4 * neighbour_divergence(z, targets, self.pairs, 0.1).item()
        assert loss.item() == pytest.approx(expected, rel=1e-12)
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FGSSLClient, "loss", spy)
        client.train()
    assert len(seen) == 3
    for _, teacher in seen:  # the model as received, in every step
        for mine, old in zip(teacher, before, strict=True):
            assert torch.equal(mine, old)
    assert not torch.equal(before[0], next(iter(client.shared.values())))


def test_the_teacher_sees_the_weak_view_and_the_student_the_strong_one(monkeypatch):
    """By the shares that the authors' code drops."""
    client = client_of("train.local_steps=1")
    made, seen = [], {}
    view, encode = FGSSLClient.view, GCN.encode

    def record_view(self, edges, columns):
        made.append((view(self, edges, columns), (edges, columns)))
        return made[-1][0]

    def record_encode(self, inputs):
        who = "teacher" if self is client.teacher else "student"
        seen.setdefault(who, []).extend(drops for of, drops in made if of is inputs)
        return encode(self, inputs)

    monkeypatch.setattr(FGSSLClient, "view", record_view)
    monkeypatch.setattr(GCN, "encode", record_encode)
    client.train()
    assert seen == {"teacher": [(0.3, 0.3)], "student": [(0.8, 0.5)]}


def test_views_drop_what_they_say():
    client = client_of(nodes=200)
    torch.manual_seed(0)
    edges = client.graph.edge_index.size(1)
    none = client.view(1, 1)
    assert none.adj.nnz == client.graph.num_nodes  # loops
    assert not none.x.to_dense().any() if hasattr(none.x, "to_dense") else True
    some = client.view(0.8, 0)
    assert some.adj.nnz - client.graph.num_nodes == pytest.approx(0.2 * edges, abs=4 * math.sqrt(0.16 * edges))


@pytest.mark.parametrize("model", ["gcn", "acm"])
def test_views_of_sparse_features_are_those_of_a_graph_without_the_columns(model):
    """To the bit, though only the columns are left out of what was prepared."""
    client = FGSSLClient(
        compose(["strategy=fgssl", f"model={model}", "model.hidden=8"]), replace(client_graph(0, 24), x=torch.eye(24))
    )
    assert client.features is not None
    torch.manual_seed(3)
    quick = client.view(0.3, 0.5)
    assert 0 < quick.x.nnz < client.features.nnz
    vars(client)["features"] = None
    torch.manual_seed(3)
    slow = client.view(0.3, 0.5)
    for name, of in (("x", "rows"), ("x", "transposed"), ("adj", "rows"), ("adj", "transposed")):
        for mine, whole in zip(getattr(getattr(quick, name), of), getattr(getattr(slow, name), of), strict=True):
            assert torch.equal(mine, whole)
    assert quick.propagated is None is slow.propagated


def test_features_that_a_network_reads_twice_are_prepared_anew():
    """FedHERO's structure learner compares them as they are stored."""
    client = FGSSLClient(compose(["strategy=fgssl", "model=fedhero"]), replace(client_graph(0, 24), x=torch.eye(24)))
    assert client.features is None
    assert (client.view(0, 1).raw == 0).all()


class Shares(GCN):
    """What a user's network makes of features: each node's sum to 1."""

    def features(self, x, dtype=torch.float32):
        return super().features(x / x.sum(1, keepdim=True).clamp(min=1), dtype)


def test_views_for_a_network_that_makes_something_of_features_are_prepared_anew():
    x = torch.eye(24) + torch.eye(24).roll(1, 1)
    client = FGSSLClient(
        compose(["strategy=fgssl", f"model={__name__}:Shares", "model.hidden=8"]), replace(client_graph(0, 24), x=x)
    )
    torch.manual_seed(0)
    seen = client.view(0, 0.5).x.to_dense()
    kept = seen.any(0)
    assert 0 < kept.sum() < 24
    masked = x * kept
    torch.testing.assert_close(seen, masked / masked.sum(1, keepdim=True).clamp(min=1))


def test_no_more_anchors_than_said(monkeypatch):
    monkeypatch.setattr("fedgraph_baselines.clients.fgssl.ANCHORS", 3)
    client = client_of()
    rows, y = client.anchors()
    assert rows.numel() == 3
    assert torch.equal(client.y[rows], y)
    assert torch.isin(rows, client.train_nodes).all()


@pytest.mark.parametrize("word", ["contrast=-1", "structure=odd"])
def test_wrong_keys_are_refused(word):
    with pytest.raises(FedGraphError, match=f"strategy.{word.partition('=')[0]}|strategy fgssl"):
        check_method(compose(["strategy=fgssl", f"strategy.{word}"]))


def test_a_network_of_one_layer_is_refused_where_it_would_teach():
    with pytest.raises(FedGraphError, match=r"model\.layers >= 2"):
        check_method(compose(["strategy=fgssl", "model.layers=1"]))
    check_method(compose(["strategy=fgssl", "model.layers=1", "strategy.contrast=0", "strategy.structure_weight=0"]))


@pytest.mark.parametrize("temperature", [1, 0.1, 1e-3])
def test_shares_sum_to_one_at_every_temperature(temperature):
    """A node's neighbours may all point away from it."""
    z = torch.randn(12, 6)
    z[:6] = -z[6:]
    row = torch.arange(6).repeat_interleave(2)
    pairs = Pattern(row, torch.stack([row[::2] + 6, (row[::2] + 1) % 6 + 6], 1).flatten(), 12)
    shares = log_shares(z, pairs, temperature).exp()
    torch.testing.assert_close(shares.view(6, 2).sum(1), torch.ones(6))


def test_the_largest_of_each_row():
    pairs = Pattern(torch.tensor([0, 0, 2]), torch.tensor([1, 2, 0]), 3)
    assert pairs.row_max(torch.tensor([-3.0, -1.0, 2.0])).tolist() == [-1, -torch.inf, 2]


def test_views_of_features_that_are_propagated_beforehand_depend_on_their_edges(run):
    """SIGN's features are those of the graph times powers of its adjacency: each view propagates its own."""
    client = FGSSLClient(
        compose(["strategy=fgssl", "model=sign", "model.hidden=8"]), replace(client_graph(0, 24), x=torch.eye(24))
    )
    assert client.features is None
    whole, none = client.view(0, 0).x.to_dense(), client.view(1, 0).x.to_dense()
    assert torch.equal(whole[:, :24], none[:, :24])
    assert not torch.equal(whole[:, 24:], none[:, 24:])
    assert run("strategy=fgssl", "model=sign", "rounds=2").summary["rounds"] == 2

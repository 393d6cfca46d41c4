"""FedSage+: the greedy loss by loops, peers' gradients against the features, graphs with generated neighbours, messages."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedgraph_baselines.clients.feddep import FedDEPClient
from fedgraph_baselines.clients.fedsage import FedSageClient
from fedgraph_baselines.methods.fedsage import drawn_neighbours, with_neighbours
from fedgraph_baselines.methods.impaired import apart, nearest, places
from fedgraph_baselines.models.neighgen import NeighGen
from fedgraph_baselines.strategies.fedsage import FedSage
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.numerics.losses import task_loss
from fedgraph_flwr.numerics.sparse import SparseMatrix, StackedRows
from fedgraph_flwr.wire.messages import MODEL, Reply, from_record
from tests.conftest import client_graph
from tests.support import call_fresh, recorded_messages, same_result

N, P = 24, 3
WORDS = ["strategy=fedsage", "model.hidden=8", "strategy.neighbours=3"]


@pytest.fixture(autouse=True)
def small_generators(monkeypatch):
    monkeypatch.setattr("fedgraph_baselines.clients.fedsage.LATENT", 6)
    for client in ("fedsage", "feddep"):
        monkeypatch.setattr(f"fedgraph_baselines.clients.{client}.WIDTHS", (7,))
    monkeypatch.setattr("fedgraph_baselines.methods.impaired.HIDDEN_SHARE", 1)


def client_of(*overrides, client=0):
    cfg = compose([*WORDS, "num_clients=3", "dtype=float64", "model.dropout=0", *overrides])
    return FedSageClient(cfg, client_graph(client, N))


def hidden_of(graph):
    """With a share of 1: every node outside the training and test sets."""
    return (~graph.train_mask & ~graph.test_mask).numpy()


def test_what_the_impaired_graph_lacks_by_hand(monkeypatch):
    client = client_of()
    graph, impaired = client.graph, client.impaired
    hidden = hidden_of(graph)
    kept = np.flatnonzero(~hidden)
    assert impaired.kept.tolist() == kept.tolist()
    edges = graph.edge_index.T.tolist()
    assert {(kept[a], kept[b]) for a, b in impaired.graph.edge_index.T.tolist()} == {
        (a, b) for a, b in edges if not hidden[a] and not hidden[b]
    }
    rows = {}
    for place, v in enumerate(kept):
        lost = [a for a, b in edges if b == v and hidden[a]]
        assert impaired.count[place] == min(len(lost), P)
        if graph.train_mask[v]:
            rows[place] = lost
    assert any(map(len, rows.values()))
    for owner, place, truth in zip(
        impaired.owner.tolist(), impaired.place.tolist(), impaired.truth.tolist(), strict=True
    ):
        known = [t for t in truth if t >= 0]
        assert len(known) == impaired.count[owner]
        assert place < len(known)
        assert set(known) <= set(rows[owner])
        assert len(set(known)) == len(known)
    assert impaired.owner.numel() == sum(min(len(lost), P) for lost in rows.values())
    monkeypatch.setattr("fedgraph_baselines.methods.impaired.HIDDEN_SHARE", 0.5)
    half = client_of().impaired.kept
    assert N - half.numel() == round(hidden.sum() / 2)


@pytest.mark.parametrize("stored", ["dense", "sparse"])
def test_the_nearest_of_candidates_by_loops(monkeypatch, stored):
    monkeypatch.setattr("fedgraph_baselines.methods.impaired.BLOCK", 4)
    torch.manual_seed(0)
    rows, x = torch.randn(9, 5), torch.randn(6, 5) * (torch.rand(6, 5) < 0.4)
    x[2] = 0
    candidates = torch.randint(-1, 6, (9, P))
    candidates[:, 0] = candidates[:, 0].clamp(min=0)
    candidates[3] = -1
    kept, searched = rows.clone(), x if stored == "dense" else SparseMatrix(x.numpy())
    indices = nearest(rows, candidates, searched)
    differences = apart(rows, indices, searched)
    for row, some, best, differs in zip(rows, candidates.tolist(), indices.tolist(), differences, strict=True):
        lengths = {c: float((row - x[c]).square().sum()) for c in some if c >= 0}
        assert best == (min(lengths, key=lengths.get) if lengths else -1)
        torch.testing.assert_close(differs, row - x[best] if lengths else torch.zeros_like(row), rtol=0, atol=0)
    torch.testing.assert_close(rows, kept, rtol=0, atol=0)


def test_drawn_neighbours_are_neighbours_of_one_node():
    graph = client_graph(0, N)
    around = {v: set(graph.edge_index[0][graph.edge_index[1] == v].tolist()) for v in range(N)}
    for row in drawn_neighbours(graph.edge_index, N, 40, 4).tolist():
        assert any(set(row) <= others for others in around.values())
    assert (drawn_neighbours(torch.zeros(2, 0, dtype=torch.int64), N, 3, 2) == -1).all()


def test_rows_are_those_of_the_heads():
    torch.manual_seed(0)
    made = NeighGen(5, hidden=4, latent=6, widths=[7], neighbours=P, p=0.0)
    h = torch.randn(4, 7)
    node, place = places(torch.tensor([2, 0, 3, 1]))
    assert node.tolist() == [0, 0, 2, 2, 2, 3]
    assert place.tolist() == [0, 1, 0, 1, 2, 0]
    whole = torch.stack([torch.tanh(head(h)) for head in made.heads], 1)  # [N, P, F]
    torch.testing.assert_close(made.rows(h, node, place), whole[node, place])


def exchanged(clients, step, monkeypatch):
    """The peers' replies about client 0's rows, and the candidates that they drew."""
    drawn = []
    monkeypatch.setattr(
        "fedgraph_baselines.clients.fedsage.drawn_neighbours",
        lambda *a: drawn.append(drawn_neighbours(*a)) or drawn[-1],
    )
    for client in clients:
        client.exchange = step
    groups = clients[0].generate({}, {})[0]
    rows, owner = groups["proposed"]["rows"], groups["owners"]["rows"]
    asked = {"proposed": {"0": rows}, "owners": {"0": owner}}
    torch.manual_seed(3)
    answers = [client.judge(asked, {})[0]["apart"]["0"] for client in clients]
    return rows, owner, answers, drawn


def test_a_step_by_peers_gradients_is_the_step_by_their_features(monkeypatch):
    clients = [client_of(client=i) for i in range(3)]
    rows, owner, answers, drawn = exchanged(clients, 0, monkeypatch)
    assert len(rows) > 2
    assert not answers[0].any()
    one, other = clients[0], client_of()
    made, classifier, optimizer = other.trainable
    with other.noise(0):
        count, x, h = other.predicted()
        np.testing.assert_array_equal(x.detach(), rows)
        loss = other.objective(count, x, h, classifier)
    for peer, some in zip(clients[1:], drawn[1:], strict=True):
        features = peer.graph.x.double()
        for r in range(len(rows)):
            candidates = features[some[owner[r]]]
            loss = loss + (x[r] - candidates).square().sum(1).min() / (other.num_train * P * 5)
    (loss / 3).backward()
    optimizer.step()
    one.step({"sum": sum(answers)}, 0)
    mine, wanted = one.trainable[0].state_dict(), made.state_dict()
    for name in wanted:
        torch.testing.assert_close(mine[name], wanted[name], rtol=1e-9, atol=1e-12, msg=name)
    assert any(
        not torch.equal(t, u)
        for t, u in zip(mine.values(), client_of().trainable[0].state_dict().values(), strict=True)
    )


def test_m_is_of_the_run_and_not_of_the_partition():
    """Three clients of a partition of twenty; their step is seen before Adam makes all steps alike."""
    slopes = []
    for of in (3, 20):
        client = client_of()
        client.graph.num_clients = of
        client.step(None, 0)
        slopes.append([p.grad for p in client.trainable[0].parameters() if p.grad is not None])
    for mine, theirs in zip(*slopes, strict=True):
        assert torch.equal(mine, theirs)


def test_the_own_part_of_the_objective_by_hand(monkeypatch):
    monkeypatch.setattr("fedgraph_baselines.clients.generating.task_loss", lambda *_: 3.0)
    client = client_of()
    impaired = client.impaired
    with client.noise(0):
        count, rows, h = client.predicted()
    trains = impaired.trains.tolist()
    gaps = [abs(float(count[v]) - int(impaired.count[v])) for v in trains]
    smooth = np.mean([gap**2 / 2 if gap < 1 else gap - 0.5 for gap in gaps])
    x = client.graph.x.double()
    greedy = 0.0
    for r, truth in enumerate(impaired.truth.tolist()):
        greedy += min(float((rows[r] - x[t]).square().sum()) for t in truth if t >= 0)
    expected = smooth + greedy / (len(trains) * P * 5) + 3
    assert client.objective(count, rows, h, client.trainable[1]).item() == pytest.approx(expected, rel=1e-10)


def test_the_task_reaches_the_generator(monkeypatch):
    client = client_of("strategy.rounding=floor")
    made, _, _ = client.trainable
    for shift in (-100, 102.5):  # nobody misses anybody; everybody misses somebody
        with torch.no_grad():
            made.count.bias += shift
        made.zero_grad()
        losses = []
        for task in (task_loss, lambda *_: 0):
            monkeypatch.setattr("fedgraph_baselines.clients.generating.task_loss", task)
            with client.noise(0):
                losses.append(client.objective(*client.predicted(), client.trainable[1]))
        (losses[0] - losses[1]).backward()
        reached = made.heads[0].weight.grad
        assert (reached is not None and bool(reached.any())) == (shift > 0)


@pytest.mark.parametrize("source", ["original", "impaired"])
def test_the_graph_with_generated_neighbours(source):
    client = client_of(f"strategy.source={source}", "strategy.generator_rounds=0")
    with torch.no_grad():
        client.trainable[0].count.bias += 2
    client.mend({}, {})
    x, at = client.memory["x"], client.memory["at"]
    assert at.numel() > N // 2
    assert at.bincount().max() <= P
    assert x.abs().max() < 1
    asked = hidden_of(client.graph)[at]
    assert asked.any() == (source == "original")
    graph = with_neighbours(client.graph, x, at)
    new = torch.arange(N, N + at.numel())
    pairs = set(map(tuple, graph.edge_index.T.tolist()))
    assert pairs == set(map(tuple, client.graph.edge_index.T.tolist())) | set(
        zip(new.tolist(), at.tolist(), strict=True)
    ) | set(zip(at.tolist(), new.tolist(), strict=True))
    assert not (graph.train_mask | graph.val_mask | graph.test_mask).any()
    assert client.predict().shape == (N, 3)
    assert client.generator is None


def test_new_neighbours_are_generated_without_dropout(monkeypatch):
    """ñ and x̃ by hand, of a generator that in training drops most of what its heads read."""
    monkeypatch.setattr("fedgraph_baselines.clients.fedsage.DROPOUT", 0.9)
    client = client_of("strategy.generator_rounds=0")
    made, _, _ = client.trainable
    with torch.no_grad():
        made.count.bias += 2
    client.mend({}, {})
    made.encoder.eval()
    with torch.no_grad(), client.noise(0):
        z = made.encoder(made.encoder.prepare(client.graph, client.device, client.dtype))
        h = torch.relu(made.layers[0](z + torch.randn_like(z)))
        whole = torch.stack([torch.tanh(head(h)) for head in made.heads], 1)
        node, place = places(torch.relu(made.count(z)).squeeze(1).round().long().clamp(max=P))
    assert client.memory["at"].tolist() == node.tolist()
    torch.testing.assert_close(client.memory["x"], whole[node, place])


def test_sparse_features_stay_sparse_beside_the_generated_ones():
    """The same logits and gradients as of one dense matrix."""
    graph = client_graph(0, N, num_features=40)
    graph.x = torch.where(torch.rand(graph.x.shape, generator=torch.Generator().manual_seed(0)) < 0.05, 1.0, 0.0)
    client = FedSageClient(compose([*WORDS, "dtype=float64", "model.dropout=0"]), graph)
    client.memory = {"x": torch.rand(4, 40, dtype=torch.float64), "at": torch.tensor([0, 0, 3, 7])}
    client.take()
    assert isinstance(client.inputs.x, StackedRows)
    dense = replace(client.inputs, x=torch.cat([graph.x.double(), client.memory["x"]]))
    losses = []
    for inputs in (client.inputs, dense):
        client.model.zero_grad()
        loss = client.logits(inputs).square().sum()
        loss.backward()
        losses.append([loss.detach(), *(p.grad.clone() for p in client.model.parameters())])
    for mine, theirs in zip(*losses, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_reloaded_client_has_the_same_generated_neighbours():
    """As after a resumption, where the generators are trained before the clients' memory is back."""
    graph = client_graph(0, N, num_features=40)
    graph.x = torch.where(torch.rand(graph.x.shape, generator=torch.Generator().manual_seed(0)) < 0.05, 1.0, 0.0)
    graph.train_mask = torch.arange(N) == 0
    client = FedSageClient(compose([*WORDS, "dtype=float64", "model.dropout=0"]), graph)
    tree = {"x": torch.rand(N, 40, dtype=torch.float64), "at": torch.arange(N)}
    client.load(tree)
    once = client.predict()
    client.load(tree)
    assert isinstance(client.inputs.x, StackedRows)
    assert torch.equal(client.predict(), once)
    assert client.batch.inputs is client.inputs
    client.load({"x": tree["x"][:0], "at": tree["at"][:0]})
    assert client.inputs is client.plain


def test_who_generates_nothing_trains_on_the_graph_as_it_is():
    client = client_of("strategy.generator_rounds=0")
    with torch.no_grad():
        client.trainable[0].count.bias -= 100
    before = client.inputs
    client.mend({}, {})
    assert client.inputs is before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("fedsage", WORDS),
        ("feddep", ["strategy=feddep", "model.hidden=8", "strategy.encoder_rounds=0"]),
    ],
)
def test_how_many_neighbours_were_generated_is_told(run, caplog, monkeypatch, name, overrides):
    """Their number as the clients hold them; with none at all, that it is FedAvg, whose model it then has."""
    made = {}
    client: Any = {"fedsage": FedSageClient, "feddep": FedDEPClient}[name]
    kept, whole = client.take, client.whole
    monkeypatch.setattr(
        client, "take", lambda self: made.update({self.graph.client: self.memory["at"].numel()}) or kept(self)
    )
    monkeypatch.setattr(client, "whole", lambda self, count: whole(self, count + 1))
    run(*overrides, "rounds=1")
    assert sum(made.values())
    assert f"{sum(made.values())} neighbours generated by 3 clients" in caplog.text
    assert "equals FedAvg here" not in caplog.text
    caplog.clear()
    monkeypatch.setattr(client, "whole", lambda self, count: whole(self, count * 0))
    none = run(*overrides, "rounds=1")
    assert f"strategy={name} equals FedAvg here" in caplog.text
    same_result(none, run(*overrides, "rounds=1", "strategy.neighbours=0"))


def test_what_travels(run, monkeypatch):
    overrides = [*WORDS, "strategy.generator_rounds=3", "rounds=2"]
    with recorded_messages(monkeypatch) as messages:
        finished = run(*overrides)
    phases = finished.summary["bytes_by_phase"]
    assert {"generate", "judge", "mend", "train"} <= set(phases)
    ups = [content for way, _, content in messages if way == "up"]
    assert sum("proposed" in c.array_records for c in ups) == 9
    assert sum("apart" in c.array_records for c in ups) == 9
    for content in ups:
        if MODEL in content.array_records:
            assert set(content.array_records) == {MODEL}
        for array in from_record(content["proposed"]).values() if "proposed" in content.array_records else []:
            assert np.abs(array).max(initial=0) < 1  # tanh
    fedavg = run("strategy=fedavg", "model=sage", "model.hidden=8", "rounds=2")
    assert phases["train"] == fedavg.summary["bytes_by_phase"]["train"]


def test_a_client_is_sent_the_sum_of_what_its_peers_sent(run, monkeypatch):
    """Its own rows, once per exchange: for the next step, or for the last one before phase ``mend``."""
    with recorded_messages(monkeypatch) as messages:
        run(*WORDS, "strategy.generator_rounds=3", "rounds=1")
    ups, downs = (
        [from_record(c["apart"]) for way, _, c in messages if way == side and "apart" in c.array_records]
        for side in ("up", "down")
    )
    assert len(ups) == len(downs) == 9
    for place, down in enumerate(downs):
        step, client = divmod(place, 3)
        peers = [up[str(client)] for other, up in enumerate(ups[3 * step : 3 * step + 3]) if other != client]
        np.testing.assert_allclose(down["sum"], sum(peers), rtol=1e-5, atol=1e-6)
        assert down["sum"].any()


def test_secure_sums_hide_single_peers_and_change_nothing_else(run, monkeypatch):
    overrides = [*WORDS, "strategy.generator_rounds=2", "rounds=2", "dtype=float64"]
    plain = run(*overrides)
    with recorded_messages(monkeypatch) as messages:
        secure = run(*overrides, "privacy.secagg=true", "privacy.reveal=[proposed,owners,metrics]")
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(secure.arrays[name], array, atol=1e-3)
    records = [c.array_records["apart"] for way, _, c in messages if way == "up" and "apart" in c.array_records]
    assert records
    assert all(array.dtype == np.uint64 for record in records for array in from_record(record).values())


@pytest.mark.slow
def test_fresh_clients_and_a_resumption_end_alike(run, monkeypatch):
    overrides = [*WORDS, "strategy.generator_rounds=2", "strategy.fraction=0.67", "rounds=3"]
    whole = run(*overrides)
    half = run(*overrides, "rounds=1", "checkpoint_every=1")
    node_clients.forget(0)
    same_result(run(*overrides, f"resume={half.out}", f"out={half.out}"), whole)
    monkeypatch.setattr("fedgraph_flwr.engine.inline.InlineGrid._call", call_fresh)
    same_result(run(*overrides), whole)


@pytest.mark.parametrize("owner", [[0, 2, 2], [1, 1, 1], [0, 1], [0, 0, 0, 0], [1, 0, 0]])
def test_wrong_owners_are_refused(owner):
    server = FedSage(compose(WORDS))
    rows = np.zeros((4 if owner == [0, 0, 0, 0] else 3, 5), np.float32)
    reply = Reply(2, {"proposed": {"rows": rows}, "owners": {"rows": np.array(owner, np.int32)}}, {})
    with pytest.raises(FedGraphError, match="client 2 replied to phase 'generate'"):
        server.verify("generate", reply, server.facts("generate"))


@pytest.mark.parametrize("word", ["neighbours=-1", "generator_lr=0", "source=odd", "rounding=up"])
def test_wrong_keys_are_refused(word):
    with pytest.raises(FedGraphError, match=f"{word.partition('=')[0]}"):
        check_method(compose(["strategy=fedsage", f"strategy.{word}"]))


def test_a_judging_client_keeps_its_generated_neighbours():
    """Restored, and asked once more: what it saves is what it was restored from."""
    client = client_of()
    tree = {"x": torch.zeros(1, 5, dtype=torch.float64), "at": torch.tensor([0])}
    client.load(tree)
    asked = {"proposed": {"1": np.zeros((1, 5))}, "owners": {"1": np.zeros(1, np.int32)}}
    client.judge(asked, {})
    assert client.save().keys() == tree.keys()

"""FedDEP: clusters, the objective and the fused convolution by hand; one exchange of prototypes, and FedAvg before it."""

import numpy as np
import pytest
import torch

from fedgraph_baselines.clients.feddep import FedDEPClient
from fedgraph_baselines.methods import feddep as methods
from fedgraph_baselines.methods.feddep import Peers, clustered
from fedgraph_baselines.methods.impaired import places
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.models.feddep import DeepGenerator, fused_inputs
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.store.results import ROUNDS, read_rounds
from fedgraph_flwr.wire.messages import from_record
from tests.conftest import client_graph
from tests.support import assert_same_arrays, call_fresh, recorded_messages, same_result

N, H, P = 24, 6, 3
KEYS = ["strategy.neighbours=3", "strategy.prototypes=4", "strategy.encoder_rounds=1"]
WORDS = ["strategy=feddep", f"model.hidden={H}", *KEYS, "strategy.generator_steps=3"]


@pytest.fixture(autouse=True)
def small_generators_of_all_hidden_nodes(monkeypatch):
    monkeypatch.setattr("fedgraph_baselines.clients.feddep.WIDTHS", (7,))
    monkeypatch.setattr("fedgraph_baselines.methods.impaired.HIDDEN_SHARE", 1)


def client_of(*overrides):
    cfg = compose([*WORDS, "dtype=float64", "model.dropout=0", *overrides])
    return FedDEPClient(cfg, client_graph(0, N))


def encoder_of(client):
    return {name: tensor.detach().numpy().copy() for name, tensor in client.shared.items()}


def mean_by_hand(edges, n):
    a = np.zeros((n, n))
    for source, target in edges.T.tolist():
        a[target, source] += 1
    return a / np.maximum(a.sum(1, keepdims=True), 1)


def test_clusters_are_means_of_their_members():
    rng = np.random.default_rng(0)
    h = torch.from_numpy(np.concatenate([rng.normal(size=(9, 2)) * 0.1 + c for c in ([0, 0], [9, 0], [0, 9])]))
    mean, count = clustered(h, 3, seed=1)
    assert count.sum() == 27
    for centre, number in zip(mean, count, strict=True):
        if number:
            members = [
                row for row in h if torch.cdist(row[None], mean).argmin() == (mean == centre).all(1).nonzero()[0]
            ]
            assert len(members) == number
            torch.testing.assert_close(centre, torch.stack(members).mean(0))
    few, count = clustered(h[:2], 5, seed=0)
    assert count.sum() == 2
    assert few.shape == (5, 2)


def test_the_fused_convolution_by_hand():
    client = client_of()
    graph = client.graph
    rng = np.random.default_rng(0)
    at = torch.tensor([0, 0, 5])
    client.memory = {"z": torch.from_numpy(rng.random((3, H))), "at": at}
    client.take()
    w = {name: t.detach().numpy() for name, t in client.model.state_dict().items()}
    x, z = graph.x.double().numpy(), client.memory["z"].numpy()
    plain = mean_by_hand(graph.edge_index, N)
    h = x @ w["layers.0.itself.weight"] + w["layers.0.itself.bias"] + plain @ x @ w["layers.0.neighbours.weight"]
    h = np.maximum(h, 0)
    new = torch.stack([N + torch.arange(3), at])
    mixed = mean_by_hand(torch.cat([graph.edge_index, new], 1), N + 3)[:N]
    logits = (
        h @ w["head.itself.weight"]
        + w["head.itself.bias"]
        + mixed @ np.concatenate([h, z]) @ w["head.neighbours.weight"]
    )
    np.testing.assert_allclose(client.predict(), logits, rtol=1e-10)
    others = [v for v in range(N) if v not in (0, 5)]
    client.memory = {"z": client.memory["z"][:0], "at": at[:0]}
    alone = FedDEPClient(client.cfg, graph).predict()
    np.testing.assert_allclose(logits[others], alone[others], rtol=1e-10)


def test_the_objective_by_hand(monkeypatch):
    """Its third term is that of the fused network's logits on the graph with generated neighbours."""
    seen = []

    def task(logits, y, *_):
        seen.append((logits, y))
        return 3.0

    monkeypatch.setattr("fedgraph_baselines.clients.generating.task_loss", task)
    client = client_of()
    theta = encoder_of(client)
    whole, _ = client.encode({"encoder": theta})
    part, inputs = client.encode({"encoder": theta}, client.impaired.graph)
    torch.manual_seed(0)
    made = DeepGenerator(H, [7], P).double()
    peers = [torch.randn(4, H, dtype=torch.float64), torch.randn(2, H, dtype=torch.float64)]
    torch.manual_seed(1)
    count, u = made(part)
    impaired = client.impaired
    rows = made.rows(u, impaired.owner, impaired.place)
    trains = impaired.trains.tolist()
    gaps = [abs(float(count[v]) - int(impaired.count[v])) for v in trains]
    smooth = np.mean([gap**2 / 2 if gap < 1 else gap - 0.5 for gap in gaps])
    apart = 0.0
    for r, truth in enumerate(impaired.truth.tolist()):
        apart += min(float((rows[r] - whole[t]).square().sum()) for t in truth if t >= 0)
        apart += sum(min(float((rows[r] - c).square().sum()) for c in peer) for peer in peers)
    assert impaired.owner.numel() > 2
    torch.manual_seed(1)
    loss = client.objective(made, part, inputs, whole, Peers.of(peers)).item()
    assert loss == pytest.approx(smooth + apart / (len(trains) * P * H) + 3, rel=1e-10)
    (logits, y), kept = seen[0], impaired.kept[impaired.trains]
    assert torch.equal(y, client.graph.y[kept])
    node, place = places(client.whole(count))
    fused = fused_inputs(inputs, impaired.graph.edge_index, len(part), made.rows(u, node, place), node)
    torch.testing.assert_close(logits, client.model(fused)[impaired.trains])


@pytest.mark.parametrize("block", [1, 2**22])
def test_rows_go_to_the_nearest_prototype_of_each_peer(monkeypatch, block):
    """The sum and its slope, client by client, of clients with unlike numbers of prototypes."""
    monkeypatch.setattr(methods, "BLOCK", block)
    torch.manual_seed(0)
    peers = [torch.randn(k, H, dtype=torch.float64) for k in (4, 1, 3)]
    rows, same = (torch.randn(9, H, dtype=torch.float64).requires_grad_() for _ in range(2))
    same.data = rows.detach().clone()
    total = Peers.of(peers).apart(rows)
    wanted = sum((same[r] - peer).square().sum(1).min() for r in range(9) for peer in peers)
    assert total.item() == pytest.approx(wanted.item(), rel=1e-12)
    total.backward()
    wanted.backward()
    torch.testing.assert_close(rows.grad, same.grad, rtol=1e-12, atol=1e-12)
    assert Peers.of([]).apart(rows).item() == 0
    assert Peers.of(peers).apart(rows[:0]).item() == 0


def test_the_task_reaches_the_generator_and_not_the_encoder(monkeypatch):
    client = client_of()
    theta = encoder_of(client)
    whole, _ = client.encode({"encoder": theta})
    part, inputs = client.encode({"encoder": theta}, client.impaired.graph)
    made = DeepGenerator(H, [7], P).double()
    with torch.no_grad():
        made.count.bias += 2
    with_task = client.objective(made, part, inputs, whole, Peers.of([]))
    monkeypatch.setattr("fedgraph_baselines.clients.generating.task_loss", lambda *_: 0)
    (with_task - client.objective(made, part, inputs, whole, Peers.of([]))).backward()
    assert made.heads[0].weight.grad.any()
    client.mend({"encoder": theta}, {})
    for name, tensor in client.shared.items():
        np.testing.assert_array_equal(tensor.detach(), theta[name])
    assert client.memory["at"].bincount().max() <= P if client.memory["at"].numel() else True


@pytest.mark.parametrize("steps", [0, 4])
def test_the_generator_is_trained_for_its_steps_and_reads_the_whole_graph(steps):
    """Mended as by a loop of so many steps of Adam on the objective."""
    client = client_of(f"strategy.generator_steps={steps}", "strategy.generator_lr=0.1")
    theta, peer = encoder_of(client), np.random.default_rng(0).random((4, H))
    torch.manual_seed(2)
    client.mend({"encoder": theta, "prototypes": {"1": peer}}, {})
    torch.manual_seed(2)
    whole, _ = client.encode({"encoder": theta})
    part, inputs = client.encode({"encoder": theta}, client.impaired.graph)
    made = DeepGenerator(H, [7], P).double()
    optimizer = torch.optim.Adam(made.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        client.objective(made, part, inputs, whole, Peers.of([torch.from_numpy(peer)])).backward()
        optimizer.step()
    with torch.no_grad():
        count, u = made(whole)
        node, place = places(client.whole(count))
        z = made.rows(u, node, place)
    assert node.numel()
    assert client.memory["at"].tolist() == node.tolist()
    torch.testing.assert_close(client.memory["z"], z)


def test_a_reloaded_client_has_the_same_generated_neighbours():
    client = client_of()
    tree = {"z": torch.rand(4, H, dtype=torch.float64), "at": torch.tensor([0, 0, 3, 7])}
    client.load(tree)
    once = client.predict()
    client.load(tree)
    assert torch.equal(client.predict(), once)
    assert not torch.equal(client_of().predict(), once)


def test_few_nodes_tell_no_prototype():
    client = client_of("strategy.min_nodes=4", "strategy.prototypes=10")
    prototypes = client.prototype({"encoder": encoder_of(client)}, {})[0]["prototypes"]
    free = client_of("strategy.prototypes=10").prototype({"encoder": encoder_of(client)}, {})[0]["prototypes"]
    few = free["count"] < 4
    assert few.any()
    assert not prototypes["mean"][few].any()
    np.testing.assert_array_equal(prototypes["count"], np.where(few, 0, free["count"]))


def test_prototypes_cross_once_and_before_them_it_is_fedavg(run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = run(*WORDS, "rounds=4", "strategy.encoder_rounds=2")
    fedavg = run("strategy=fedavg", "model=sage", f"model.hidden={H}", "rounds=2")
    phases = finished.summary["bytes_by_phase"]
    assert phases["prototype"]["exchanges"] == phases["mend"]["exchanges"] == 1
    downs = [c for way, _, c in messages if way == "down" and "prototypes" in c.array_records]
    assert [sorted(from_record(c["prototypes"])) for c in downs] == [["1", "2"], ["0", "2"], ["0", "1"]]
    encoder = from_record(downs[0]["encoder"])
    assert_same_arrays(encoder, fedavg.arrays)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [[], ["strategy.fraction=0.67"], ["strategy.fraction=0.67", "evaluation.clients=cohort"]]
)
def test_the_encoder_is_scored_as_fedavg_is(run, overrides):
    """Round R's model without generated neighbours, R + 1's with them."""
    overrides = [*overrides, "model.dropout=0", f"model.hidden={H}", "rounds=3"]
    feddep = run("strategy=feddep", *KEYS, *overrides, "strategy.generator_lr=0.03", "strategy.encoder_rounds=2")
    fedavg = run("strategy=fedavg", "model=sage", *overrides)
    mine, theirs = ([record["metrics"]["val_loss"] for record in read_rounds(r.out / ROUNDS)] for r in (feddep, fedavg))
    assert mine[:2] == theirs[:2]
    assert mine[2] != theirs[2]


@pytest.mark.slow
def test_fresh_clients_a_cohort_and_a_resumption_end_alike(run, monkeypatch):
    overrides = [*WORDS, "strategy.fraction=0.67", "rounds=4", "model.dropout=0.5"]
    whole = run(*overrides)
    assert whole.summary["failures"] == {}
    half = run(*overrides, "rounds=2", "checkpoint_every=1")
    node_clients.forget(0)
    same_result(run(*overrides, f"resume={half.out}", f"out={half.out}"), whole)
    monkeypatch.setattr("fedgraph_flwr.engine.inline.InlineGrid._call", call_fresh)
    same_result(run(*overrides), whole)


@pytest.mark.parametrize("word", ["model=gcn", "model.layers=1", "strategy.prototypes=0"])
def test_wrong_keys_are_refused(word):
    with pytest.raises(FedGraphError, match=word.partition("=")[0].replace("model.layers", "model").split(".")[-1]):
        check_method(compose(["strategy=feddep", word]))


def test_a_nodes_owner_may_ask_for_more_nodes_than_the_run():
    client = client_of("strategy.prototypes=4")
    counts = client.prototype({"encoder": encoder_of(client)}, {})[0]["prototypes"]["count"]
    client.policy = Policy(min_nodes=5)
    hidden = client.prototype({"encoder": encoder_of(client)}, {})[0]["prototypes"]["count"]
    assert hidden.tolist() == np.where(counts >= 5, counts, 0).tolist() != counts.tolist()


def test_counts_that_are_no_numbers_are_one_sentence():
    client = client_of()
    assert client.whole(torch.tensor([0.4, 2.6, 99.0])).tolist() == [0, 3, client.params.neighbours]
    with pytest.raises(FedGraphError, match=r"client 0: its generator predicts .*lower strategy\.generator_lr"):
        client.whole(torch.tensor([1, torch.nan]))

"""FedTAD: reliabilities node by node, the losses by loops, a student without anything to learn, and what is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from fedgraph_baselines.methods.fedtad import reliability, teacher_weights
from fedgraph_baselines.models.fedtad import Generator, diversity, nearest_edges
from fedgraph_baselines.strategies.fedtad import FedTAD, disagreement
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.strategies.connection import ClientInfo, difference
from fedgraph_flwr.strategies.round import Round
from fedgraph_flwr.wire.messages import Reply, weighted_mean
from fedgraph_flwr.wire.trees import flatten
from tests.conftest import client_graph
from tests.support import reduced, same_result

N, C = 16, 3


def test_the_reliability_by_hand():
    graph = client_graph(0, N, num_classes=C + 1)
    graph.train_mask[graph.y == 3] = False  # a class without a training node
    a = np.zeros((N, N))
    for source, target in graph.edge_index.T.tolist():
        a[target, source] = 1
    walk = a / np.maximum(a.sum(0), 1)
    returns = [np.linalg.matrix_power(walk, k).diagonal()[:, None] for k in range(1, 6)]
    values = np.concatenate([graph.x.double().numpy(), *returns], 1)
    total = np.zeros(C + 1)
    for v in graph.train_mask.nonzero().view(-1).tolist():
        around = [v, *np.flatnonzero(a[v]).tolist()]
        cosines = [values[v] @ values[u] / np.linalg.norm(values[v]) / np.linalg.norm(values[u]) for u in around]
        total[graph.y[v]] += np.mean(cosines)
    assert (total > 0).sum() == 2
    scores = reliability(graph)
    np.testing.assert_allclose(scores, total, rtol=1e-12)
    assert scores[3] == 0
    graph.train_mask[:] = False
    assert not reliability(graph).any()


def alone(*per_class):
    """Graph without edges, with these numbers of training nodes per class and one other node of each: every mean cosine is 1."""
    y = torch.arange(len(per_class)).repeat_interleave(torch.tensor(per_class) + 1)
    first = torch.cat([torch.ones(1, dtype=torch.bool), y[1:] != y[:-1]])
    x = torch.randn(len(y), 5, generator=torch.Generator().manual_seed(0))
    none = torch.zeros(len(y), dtype=torch.bool)
    return Graph(x, torch.zeros(2, 0, dtype=torch.long), y, ~first, first, none, len(per_class))


def test_a_teacher_weighs_by_its_share_of_a_classs_training_nodes():
    """Without edges a reliability counts nodes, so weights are ratios of counts, whatever other classes a client has."""
    clients = [alone(9, 1, 0, 0), alone(1, 3, 0, 2), alone(0, 0, 0, 1)]
    server = server_of()
    server.clients = {
        i: ClientInfo(i, 10 + i, {"reliability": reliability(graph).tolist()}) for i, graph in enumerate(clients)
    }
    third = [[0.9, 0.25, 0, 0], [0.1, 0.75, 0, 2 / 3], [0, 0, 0, 1 / 3]]
    np.testing.assert_allclose(server.teacher_weights([0, 1, 2]), third, rtol=1e-12)
    np.testing.assert_allclose(server.teacher_weights([2]), third[2:], rtol=1e-12, err_msg="a cohort of one")


def test_one_training_node_of_one_class_does_not_outweigh_many():
    """The third client knows nothing else; normalised over its own classes its weight would be 1."""
    sums = torch.tensor([reliability(graph).tolist() for graph in (alone(20, 20), alone(10, 40), alone(1, 0))])
    weights = teacher_weights(sums)
    assert weights[2, 0] == pytest.approx(1 / 31)
    assert weights.sum(0).tolist() == pytest.approx([1, 1])


def server_of(*overrides, clients=2):
    server = FedTAD(compose(["strategy=fedtad", "model.hidden=4", "dtype=float64", *overrides]))
    sums = [[0.8, 2.0, 1.2], [3.2, 0.0, 0.0]]
    values = [{"num_features": 5, "num_classes": C, "num_train": 4, "reliability": s} for s in sums[:clients]]
    server.clients = {i: ClientInfo(i, 10 + i, description) for i, description in enumerate(values)}
    server.arrays = server.initial_arrays()
    server.round = Round(1)
    return server


def replies_of(server, *scales):
    models = [{name: scale * array for name, array in server.arrays.items()} for scale in scales]
    return [Reply(i, {"model": model}, {"num_train": 4}) for i, model in enumerate(models)]


def test_the_pseudo_graph_is_symmetric_and_a_node_hears_at_least_four_others():
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    edges = nearest_edges(x, 5)
    pairs = set(map(tuple, edges.T.tolist()))
    assert len(pairs) == edges.size(1)
    assert {(b, a) for a, b in pairs} == pairs
    assert all(a != b for a, b in pairs)
    unit = (x / x.norm(dim=1, keepdim=True)).numpy()
    for v in range(20):
        order = [u for u in np.argsort(-(unit @ unit[v])) if u != v][:4]
        assert {(v, int(u)) for u in order} <= pairs


def test_the_losses_by_hand(monkeypatch):
    monkeypatch.setattr("fedgraph_baselines.strategies.fedtad.NODES", 7)
    server = server_of("strategy.lam1=0.7", "strategy.lam2=0.3")
    torch.manual_seed(0)
    z, y = server.noise()
    assert y.tolist() == [0, 1, 2, 0, 1, 2, 0]
    x = torch.randn(7, 5, dtype=torch.float64)
    student, *teachers = (server.network({n: s * a for n, a in server.arrays.items()}) for s in (1, 2, -3))
    share = torch.tensor([[0.2, 1, 1], [0.8, 0, 0]], dtype=torch.float64)
    np.testing.assert_allclose(server.teacher_weights([0, 1]), share, rtol=1e-12)
    inputs = server.inputs(x, student)
    say = [m(inputs).detach().numpy() for m in (student, *teachers)]
    known = apart = 0.0
    for i in range(2):
        for c in range(C):
            mine = [v for v in range(7) if y[v] == c]
            entropy = [np.log(np.exp(say[1 + i][v]).sum()) - say[1 + i][v][c] for v in mine]
            known += share[i, c].item() * np.mean(entropy)
            apart += share[i, c].item() * np.mean([np.abs(say[0][v] - say[1 + i][v]).mean() for v in mine])
    pairs = [((z[a] - z[b]) ** 2).mean().item() * (x[a] - x[b]).abs().mean().item() for a in range(7) for b in range(7)]
    spread = np.exp(-np.mean(pairs))
    assert diversity(z, x).item() == pytest.approx(spread, rel=1e-10)
    loss = server.generator_loss(x, z, y, student, teachers, share)
    assert loss.item() == pytest.approx(known - 0.7 * apart + 0.3 * 2 * spread, rel=1e-9)
    values = [torch.from_numpy(s) for s in say[1:]]
    assert disagreement(torch.from_numpy(say[0]), values, y, share).item() == pytest.approx(apart, rel=1e-12)


def test_the_disagreement_pulls_the_generator_by_the_student_only(monkeypatch):
    """Its gradient is that of a sum in which the teachers' logits are numbers."""
    monkeypatch.setattr("fedgraph_baselines.strategies.fedtad.NODES", 7)
    overrides = ["strategy.lam2=0"]
    server, plain = server_of("strategy.lam1=0.7", *overrides), server_of("strategy.lam1=0", *overrides)
    torch.manual_seed(0)
    z, y = server.noise()
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    student, *teachers = (server.network({n: s * a for n, a in server.arrays.items()}) for s in (1, 2, -3))
    share = torch.tensor([[0.2, 1, 1], [0.8, 0, 0]], dtype=torch.float64)

    def gradient(side):
        return torch.autograd.grad(side.generator_loss(x, z, y, student, teachers, share), x)[0]

    inputs = server.inputs(x, student)
    logits = student(inputs)
    numbers = [teacher(inputs).detach().numpy() for teacher in teachers]
    count, total = np.bincount(y, minlength=C), torch.zeros((), dtype=torch.float64)
    for i in range(2):
        for v in range(7):
            weight = share[i, y[v]].item() / count[y[v]] / C
            total = total + weight * sum((logits[v, c] - numbers[i][v, c]).abs() for c in range(C))
    (expected,) = torch.autograd.grad(-0.7 * total, x)
    torch.testing.assert_close(gradient(server) - gradient(plain), expected)


def test_the_generators_gradient_goes_through_the_networks():
    server = server_of("strategy.lam1=0", "strategy.lam2=0")
    torch.manual_seed(0)
    z, y = server.noise()
    maker = Generator(32, 5, C).double()
    model = server.network(server.arrays)
    share = torch.ones(1, C, dtype=torch.float64)
    server.generator_loss(maker(z, y), z, y, model, [model], share).backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in maker.parameters())


def test_teachers_like_the_student_teach_nothing():
    server = server_of()
    arrays = server.step(server.arrays, reduced(server, "train", replies_of(server, 1, 1)))
    for name, array in arrays.items():
        np.testing.assert_allclose(array, server.arrays[name], atol=1e-12, err_msg=name)


def test_distillation_brings_the_student_nearer_to_its_teachers():
    server = server_of("strategy.lr=0.01", "strategy.epochs=20")
    replies = replies_of(server, 1, 3)
    x, y = torch.randn(30, 5, dtype=torch.float64), torch.arange(30) % C
    share = torch.ones(2, C, dtype=torch.float64) / C

    def apart(arrays):
        inputs = server.inputs(x, server.network(arrays))
        values = [server.network(reply.arrays)(inputs).detach() for reply in replies]
        return disagreement(server.network(arrays)(inputs), values, y, share).item()

    far = {name: array + 1 for name, array in server.arrays.items()}
    assert apart(server.distilled(far, replies)) < apart(far)


def test_both_optimisers_go_on_from_round_to_round(monkeypatch):
    """They start with the moments that the last round left, and count on."""
    server = server_of("strategy.epochs=2")
    begun, optimizer = {}, FedTAD.optimizer

    def record(self, name, parameters):
        made = optimizer(self, name, parameters)
        begun[name] = {path: tensor.clone() for path, tensor in made.state().items()}
        return made

    monkeypatch.setattr(FedTAD, "optimizer", record)
    for server_round in (1, 2):
        server.round = Round(server_round)
        left = {name: flatten(server.memory.get(name, {})) for name in ("maker", "learner")}
        server.step(server.arrays, reduced(server, "train", replies_of(server, 1, 2)))
        for name, steps in (("maker", 2), ("learner", 10)):
            assert begun[name].keys() == left[name].keys()
            assert all(torch.equal(tensor, left[name][path]) for path, tensor in begun[name].items())
            counts = [t for path, t in flatten(server.memory[name]).items() if path.startswith("count/")]
            assert counts
            assert all(t.item() == steps * server.server_round for t in counts)


@pytest.mark.slow
def test_the_generator_goes_on_after_a_resumption(run):
    overrides = ["strategy=fedtad", "model.hidden=8", "strategy.fraction=0.67"]
    whole = run(*overrides, "rounds=4")
    half = run(*overrides, "rounds=2", "checkpoint_every=1")
    node_clients.forget(0)
    same_result(run(*overrides, "rounds=4", f"resume={half.out}", f"out={half.out}"), whole)


@pytest.mark.parametrize("sums", [[0.5, 0.5], [3.0, 2.0, 2.0], [7.1, 0.0, 0.0]])
def test_a_wrong_reliability_is_refused(sums):
    """A value per class, and no more in sum than training nodes, here 6."""
    description = {"num_classes": C, "num_train": 6}
    with pytest.raises(FedGraphError, match=r"client 3 .*reliability.* at most its 6 training nodes"):
        FedTAD.verify("describe", Reply(3, {}, {"reliability": sums, **description}), None)
    for accepted in ([6.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.5, 1.5, 1.5]):
        FedTAD.verify("describe", Reply(3, {}, {"reliability": accepted, **description}), None)


@pytest.mark.parametrize("word", ["epochs=-1", "neighbours=1", "lr=0"])
def test_wrong_keys_are_refused(word):
    with pytest.raises(FedGraphError, match=f"{word.partition('=')[0]}"):
        check_method(compose(["strategy=fedtad", f"strategy.{word}"]))


def test_counters_of_batch_normalisation_may_stay_at_the_clients(run):
    finished = run("strategy=fedtad", "model.norm=batch", "rounds=2")
    assert finished.summary["failures"] == {}
    assert any(name.endswith("running_mean") for name in finished.arrays)


def test_a_network_of_which_a_part_stays_at_the_clients_is_refused():
    with pytest.raises(FedGraphError, match=r"head\.\w+ is private"):
        check_method(compose(["strategy=fedtad", "strategy.private=[head]"]))
    assert isinstance(server_of().network(server_of().arrays), nn.Module)


def test_classes_of_few_nodes_are_told_as_unknown():
    graph = client_graph(0, N, num_classes=C)
    count = graph.y[graph.train_mask].bincount(minlength=C)
    few = int(count.max())
    scores = reliability(graph, min_nodes=few)
    assert (count < few).sum() > 0
    assert not scores[(count < few).numpy()].any()


def test_a_teacher_that_is_beyond_numbers_teaches_nothing(caplog):
    server = server_of("strategy.epochs=2")
    before = server.step(server.arrays, reduced(server, "train", replies_of(server, 1, 2)))
    memory = server.memory
    replies = replies_of(server, 1, 1e200)
    mean = weighted_mean([reply.arrays for reply in replies], server.weights([reply.client for reply in replies]))
    arrays = server.step(server.arrays, reduced(server, "train", replies))
    assert all(np.isfinite(array).all() for array in arrays.values())
    for name, array in mean.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert not np.array_equal(before[name], array)
    assert server.memory is memory
    assert "using the average without distillation" in caplog.text


def test_shares_that_another_machine_rounds_otherwise_are_the_same_party():
    known = {"num_train": 4, "reliability": [0.1, 0.9]}
    assert not difference(known, known | {"reliability": [0.1, 0.9000000000000002]})
    for other in ([0.2, 0.8], [0.1, 0.9, 0.0], [], [0.1, 1]):
        assert "reliability=" in difference(known, known | {"reliability": other})

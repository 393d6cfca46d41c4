"""FedLIT: types, centroids and matching by loops, the network by hand, and a server that heeds no client's order of types."""

import copy

import numpy as np
import pytest
import torch

from fedgraph_baselines.clients.fedlit import FedLITClient
from fedgraph_baselines.methods.fedlit import assigned, matched, means
from fedgraph_baselines.strategies.fedlit import FedLIT
from fedgraph_flwr import models
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.wire.messages import Reply, from_record
from tests.conftest import client_graph
from tests.support import dense_gcn_adjacency, recorded_messages, reduced

N, H, K = 16, 6, 3
WORDS = ["strategy=fedlit", f"model.hidden={H}", f"model.types={K}", "dtype=float64", "model.dropout=0"]


def client_of(*overrides):
    return FedLITClient(compose([*WORDS, *overrides]), client_graph(0, N))


def embedded(z, pairs):
    return [np.concatenate([z[u], z[v]]) for u, v in pairs]


def closest(e, centroids):
    return int(np.argmax([e @ c / np.linalg.norm(e) / np.linalg.norm(c) for c in centroids]))


def test_types_and_centroids_by_loops():
    rng = np.random.default_rng(0)
    z, centroids = rng.normal(size=(N, H)), rng.normal(size=(K + 1, 2 * H))
    centroids[K] = -1e3 * np.ones(2 * H)
    pairs = np.array([(u, v) for u in range(N) for v in range(u + 1, N) if rng.random() < 0.3])
    rows = embedded(z, pairs)
    types = [closest(e, centroids) for e in rows]
    given = torch.from_numpy(z), torch.from_numpy(pairs.T)
    assignment = assigned(*given, torch.from_numpy(centroids))
    assert assignment.tolist() == types
    moved = means(*given, assignment, torch.from_numpy(centroids)).numpy()
    for r in range(K + 1):
        members = [e for e, t in zip(rows, types, strict=True) if t == r]
        expected = np.mean(members, axis=0) if members else centroids[r]
        np.testing.assert_allclose(moved[r], expected, rtol=1e-12)
    one = torch.zeros(pairs.shape[0], dtype=torch.int64)
    np.testing.assert_array_equal(means(*given, one, torch.from_numpy(centroids))[1:], centroids[1:])


def test_a_clients_round_by_hand():
    client = client_of("train.local_steps=1")
    edges, x = client.graph.edge_index, client.graph.x.double().numpy()
    pairs = sorted({(min(a, b), max(a, b)) for a, b in edges.T.tolist()})
    w = {name: t.detach().numpy().copy() for name, t in client.model.state_dict().items()}
    z = x @ w["projection.weight"] + w["projection.bias"]
    rows = embedded(z, pairs)
    first = client.centroids(client.embedded()).numpy()
    assert {tuple(c) for c in np.round(first, 9)} <= {tuple(e) for e in np.round(rows, 9)}
    first_types = [closest(e, first) for e in rows]
    centroids = np.stack(
        [np.mean([e for e, t in zip(rows, first_types, strict=True) if t == r], axis=0) for r in range(K)]
    )
    types = {pair: closest(e, centroids) for pair, e in zip(pairs, rows, strict=True)}
    linked = {v for pair in pairs for v in pair}
    h = 0
    for r in range(K):
        kept = [[a, b] for a, b in edges.T.tolist() if types[min(a, b), max(a, b)] == r]
        smooth = dense_gcn_adjacency(torch.tensor(kept).T, N).numpy()
        hidden = np.maximum(z @ w["branches.0.weight"][r] + w["branches.0.bias"][r], 0)
        for layer in (1, 2):
            hidden = np.maximum(smooth @ hidden @ w[f"branches.{layer}.weight"][r] + w[f"branches.{layer}.bias"][r], 0)
        ends = {v for edge in kept for v in edge}
        h = h + hidden * np.array([[v in ends or v not in linked] for v in range(N)])
    logits = h @ w["head.weight"] + w["head.bias"]
    train, y = client.graph.train_mask.numpy(), client.graph.y.numpy()
    loss = (np.log(np.exp(logits).sum(1)) - logits[np.arange(N), y])[train].mean()
    assert client.train() == pytest.approx(loss, rel=1e-10)
    sent = client.send()[0]["links"]
    np.testing.assert_allclose(sent["centroids"], centroids, rtol=1e-10)
    for r in range(K):
        ends = {v for pair, t in types.items() if t == r for v in pair}
        assert sent["count"][r] == sum(train[v] for v in ends)
    both = client.pairs[1]
    assert both.numel() == edges.size(1)  # the two directions of a link share its type
    assert both.bincount().tolist() == [2] * len(pairs)


def network_of(*overrides):
    cfg = compose([*WORDS, *overrides])
    return models.build(cfg.model, 5, 2).double().eval()


def test_a_node_reads_the_branches_of_its_links_only():
    """0-1-2 are of type 0, 2-3 of type 2, 4 has no link: changing a branch moves the nodes that it serves and no other."""
    edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    types = torch.tensor([0, 0, 0, 0, 2, 2])
    model = network_of()
    x = torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).double()
    inputs = Inputs(x=x, adj=model.typed_adjacency(edges, types, 5, torch.float64))
    before = model(inputs)
    for branch, moved in enumerate(([0, 1, 2, 4], [4], [2, 3, 4])):
        other = copy.deepcopy(model)
        other.branches[-1].bias.data[branch] += 1
        difference = (other(inputs) - before).abs().sum(1)
        assert difference.nonzero().view(-1).tolist() == moved


def test_branches_read_all_links_or_random_ones_for_comparison():
    """With ``all``, equal branches give K times the sum of one; random types divide the links and do not depend on features."""
    one, every = client_of("model.types=1"), client_of("strategy.links=all")
    weights = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
    for name in weights:
        value = weights[name].expand(K, *weights[name].shape[1:]) if name.startswith("branches.") else weights[name]
        every.model.state_dict()[name].copy_(value)
    for client in (one, every):
        client.model.eval()
        client.type_links(torch.zeros(client.pairs[0].size(1), dtype=torch.int64))
    torch.testing.assert_close(every.model.encode(every.inputs), K * one.model.encode(one.inputs))
    drawn = client_of("strategy.links=random")
    matrices = []
    for types in (0, 1):
        drawn.type_links(torch.full((drawn.pairs[0].size(1),), types))
        matrices.append(drawn.inputs.adj @ torch.eye(K * N, dtype=torch.float64))
    assert torch.equal(*matrices)
    blocks = matrices[0].view(K, N, K, N)[range(K), :, range(K)]
    apart = (blocks > 0).sum(0) - K * torch.eye(N)
    edges = drawn.graph.edge_index
    assert (apart[edges[0], edges[1]] == 1).all()  # each link in one branch


def test_branches_start_equal_and_by_init_apart():
    """Of equal branches it does not matter which link has which type, if all of a node's links have one."""
    together, apart = network_of(), network_of("model.init=separate")
    assert all(torch.equal(w, branch.weight[0]) for branch in together.branches for w in branch.weight)
    assert all(not torch.equal(branch.weight[0], branch.weight[1]) for branch in apart.branches)
    edges, x = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]), torch.randn(4, 5).double()

    def outputs(model, *types):
        of_edges = torch.tensor(types).repeat_interleave(2)
        return model(Inputs(x=x, adj=model.typed_adjacency(edges, of_edges, 4, torch.float64)))

    torch.testing.assert_close(outputs(together, 0, 0), outputs(together, 2, 1))
    assert not torch.allclose(outputs(apart, 0, 0), outputs(apart, 2, 1))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0], [1, 0, 2]])
def test_a_matching_is_found_whatever_the_order(order):
    """Cyclic orders too, which are not their own inverse."""
    centres = np.random.default_rng(1).normal(size=(K, 8))
    matching = matched(centres[order], centres)
    assert [order[cluster] for cluster in matching] == [0, 1, 2]
    assert sorted(matched(np.ones((K, 8)), centres)) == [0, 1, 2]
    assert sorted(matched(np.zeros((K, 8)), centres)) == [0, 1, 2]


def server_of():
    server = FedLIT(compose([*WORDS, "strategy.weighting=train"]))
    values = {"num_features": 5, "num_classes": 3}
    server.clients = {i: ClientInfo(i, 10 + i, values | {"num_train": 2 + i}) for i in range(3)}
    server.arrays = server.initial_arrays()
    server.memory = {}
    return server


def reply_of(client, arrays, centroids, count, order=(0, 1, 2)):
    order = list(order)
    parameters = {name: a[order] if name.startswith("branches.") else a for name, a in arrays.items()}
    links = {"centroids": centroids[order], "count": np.array(count)[order]}
    return Reply(client, {"model": parameters, "links": links}, {"num_train": 2 + client})


def test_the_average_by_hand_and_in_any_order_of_types():
    server = server_of()
    rng = np.random.default_rng(2)
    centres = rng.normal(size=(K, 2 * H))
    near = [centres + 0.01 * rng.normal(size=centres.shape) for _ in range(3)]
    models = [{name: rng.normal(size=a.shape) for name, a in server.arrays.items()} for _ in range(3)]
    counts = [[1, 0, 2], [3, 0, 0], [4, 0, 1]]

    def once(orders):
        server.memory = {"links": {"centroids": centres}}
        replies = [reply_of(i, models[i], near[i], counts[i], orders[i]) for i in range(3)]
        return server.step(server.arrays, reduced(server, "train", replies)), server.memory["links"]["centroids"]

    plain, moved = once([(0, 1, 2)] * 3)
    np.testing.assert_allclose(moved, np.mean(near, axis=0))
    for name, array in plain.items():
        values = [model[name] for model in models]
        if name.startswith("branches."):
            np.testing.assert_allclose(array[0], np.mean([t[0] for t in values], axis=0))
            np.testing.assert_array_equal(array[1], server.arrays[name][1])  # no training node anywhere
            np.testing.assert_allclose(array[2], (values[0][2] + values[2][2]) / 2)
        else:
            np.testing.assert_allclose(array, (2 * values[0] + 3 * values[1] + 4 * values[2]) / 9)
    other, also = once([(0, 1, 2), (1, 2, 0), (2, 1, 0)])
    np.testing.assert_allclose(also, moved)
    for name, array in other.items():
        np.testing.assert_allclose(array, plain[name], atol=1e-12, err_msg=name)


def test_a_client_without_links_trains_and_moves_no_centre(run, client_files):
    graph = client_graph(0, N)
    graph.edge_index = torch.zeros(2, 0, dtype=torch.int64)
    client = FedLITClient(compose(WORDS), graph)
    assert np.isfinite(client.train())
    sent = client.send()[0]["links"]
    assert not sent["centroids"].any()
    assert not sent["count"].any()
    server = server_of()
    arrays = {name: a + 1 for name, a in server.arrays.items()}
    alone = [reply_of(0, arrays, np.zeros((K, 2 * H)), [0, 0, 0])]
    server.step(server.arrays, reduced(server, "train", alone))
    assert "links" not in server.memory
    centres = np.random.default_rng(3).normal(size=(K, 2 * H))
    server.step(server.arrays, reduced(server, "train", [*alone, reply_of(1, arrays, centres, [1, 1, 1])]))
    np.testing.assert_allclose(server.memory["links"]["centroids"], centres)


def test_clients_are_scored_by_the_centres_of_the_last_round(run, monkeypatch):
    """The mean of the last centroids, each matched with the centres that they started from."""
    with recorded_messages(monkeypatch) as messages:
        run(*WORDS, "rounds=2")
    ups, downs = (
        [
            (c, from_record(c["links"])["centroids"])
            for way, _, c in messages
            if way == side and "links" in c.array_records
        ]
        for side in ("up", "down")
    )
    assert [c["config"]["phase"] for c, _ in downs] == ["train"] * 3 + ["evaluate"] * 3
    wanted = np.mean([centroids[matched(centroids, downs[0][1])] for _, centroids in ups[-3:]], axis=0)
    assert (wanted != downs[0][1]).any()
    for _, centres in downs[3:]:
        np.testing.assert_allclose(centres, wanted)


@pytest.mark.parametrize("word", ["model=gcn", "model.types=0", "strategy.links=odd"])
def test_wrong_keys_are_refused(word):
    with pytest.raises(FedGraphError, match=word.partition("=")[0]):
        check_method(compose(["strategy=fedlit", word]))


def test_types_of_few_nodes_tell_nothing(monkeypatch):
    client = client_of()
    client.policy = Policy(min_nodes=N + 1)
    monkeypatch.setattr("fedgraph_flwr.clients.base.check_step", lambda *_: None)  # which refuses to train on so few
    client.train()
    reply = client.send()[0]["links"]
    assert not reply["centroids"].any()
    assert not reply["count"].any()
    centres = np.random.default_rng(0).normal(size=(K, 2 * H))
    client.receive({"links": {"centroids": centres}})
    client.train()
    np.testing.assert_array_equal(client.send()[0]["links"]["centroids"], centres)
    client.policy = Policy(min_nodes=1)
    assert (client.send()[0]["links"]["centroids"] != centres).any()

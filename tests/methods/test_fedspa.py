"""FedSPA: edge types, network, spectral and Fisher biases, and the three weightings, against dense NumPy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedgraph_flwr.api import keys
from fedgraph_flwr.clients import fedspa
from fedgraph_flwr.clients.fedspa import FedSPAClient, fisher_diagonal, high_frequency_area
from fedgraph_flwr.clients.state import restore_state, state_of
from fedgraph_flwr.config import ModelConfig, compose
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.models import build
from fedgraph_flwr.models.fedspa import FISHER, HET, HOM, UNK, edge_types, parameter_group, typed_operators
from fedgraph_flwr.secure.masked import PEERS, RESOLUTION
from fedgraph_flwr.strategies.fedspa import bias_weights, posterior_biases, prior_biases
from fedgraph_flwr.wire.messages import METRICS, MODEL
from fedgraph_flwr.wire.trees import flatten, unflatten
from tests.conftest import client_graph, uneven_clients
from tests.support import assert_same_arrays, honest_reply, patch_replies, recorded_messages

PROFILES = ("plain", "acm", "acm_sep")
SGD = ("train.optimizer=sgd", "train.lr=0.1", "train.local_steps=4", "train.weight_decay=0")


def network(profile: str, seed: int = 0, **params: Any) -> torch.nn.Module:
    """A float64 network on 5 features and 3 classes; its biases are moved away from zero."""
    torch.manual_seed(seed)
    model = build(ModelConfig("fedspa", hidden=6, params={"profile": profile, **params}), 5, 3).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def prepared(model: torch.nn.Module, graph: ClientGraph) -> Any:
    return model.prepare(graph, dtype=torch.float64)


def dense_adjacency(graph: ClientGraph) -> np.ndarray:
    """A [N, N], target by source, without loops."""
    a = np.zeros((graph.num_nodes, graph.num_nodes))
    for u, v in graph.edge_index.T.tolist():
        a[v, u] += u != v
    return a


def with_other_hidden_labels(graph: ClientGraph) -> ClientGraph:
    """The same graph with other labels outside the training nodes."""
    other = client_graph(graph.client)
    other.y = torch.where(graph.train_mask, graph.y, (graph.y + 1) % 3)
    return other


# --- edge types and operators -------------------------------------------------------------------------------------------


def test_edge_types_by_hand():
    y = torch.tensor([0, 0, 1, 0])
    train = torch.tensor([True, True, True, False])
    edges = torch.tensor([[0, 1, 0, 2, 0, 3], [1, 0, 2, 0, 3, 0]])
    assert edge_types(edges, y, train).tolist() == [HOM, HOM, HET, HET, UNK, UNK]
    assert (edge_types(edges, y, torch.ones(4, dtype=torch.bool)) != UNK).all()
    assert (edge_types(edges, y, torch.zeros(4, dtype=torch.bool)) == UNK).all()


@pytest.mark.parametrize("normalization", ["sym", "mean", "sum"])
def test_typed_operators_part_the_normalised_adjacency(normalization):
    graph = client_graph(0)
    loops = torch.arange(3).expand(2, 3)
    graph.edge_index = torch.cat([graph.edge_index, loops], dim=1)
    a = dense_adjacency(graph)
    d = np.maximum(a.sum(1), 1)
    expected = {"sym": a / np.sqrt(np.outer(d, d)), "mean": a / d[:, None], "sum": a}[normalization]
    typed = [c.toarray() for c in typed_operators(graph, normalization)]
    np.testing.assert_allclose(sum(typed), expected, atol=1e-15)
    supports = [t != 0 for t in typed]
    assert sum(s.sum() for s in supports) == (a != 0).sum(), "each edge in one operator"
    assert all(s.any() for s in supports)
    off = typed_operators(graph, normalization, sfpd=False)
    np.testing.assert_allclose(off[HOM].toarray(), expected, atol=1e-15)
    assert off[HET].nnz == off[UNK].nnz == 0


def test_hidden_labels_change_nothing():
    graph = client_graph(0)
    other = with_other_hidden_labels(graph)
    assert (other.y != graph.y).any()
    assert high_frequency_area(graph) == high_frequency_area(other)
    for profile in PROFILES:
        model = network(profile)
        assert torch.equal(model(prepared(model, graph)), model(prepared(model, other)))
        nodes = graph.train_mask.nonzero().view(-1)
        for kind in ("batch", "per_node"):
            ours, theirs = (fisher_diagonal(model, prepared(model, g), g.y, nodes, kind) for g in (graph, other))
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)


# --- the network --------------------------------------------------------------------------------------------------------


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def parameters(layer: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy() for name, p in layer.named_parameters()}


def neighbours(graph: ClientGraph) -> list[tuple[int, int, int, float]]:
    """(v, u, type, 1/√(d_v d_u)) for each directed edge u → v, from Eq. (4) as it reads."""
    degree = dense_adjacency(graph).sum(1)
    entries = []
    for u, v in graph.edge_index.T.tolist():
        visible = graph.train_mask[u] and graph.train_mask[v]
        alike = HOM if graph.y[u] == graph.y[v] else HET
        entries.append((v, u, alike if visible else UNK, 1 / np.sqrt(degree[v] * degree[u])))
    return entries


def plain_layer(z: np.ndarray, layer: torch.nn.Module, graph: ClientGraph) -> np.ndarray:
    """Eq. (4)-(6), node by node, with θ_unk built for each centre node."""
    p = parameters(layer)
    out = z @ p["theta_self"] + p["bias"]
    for v, u, kind, c in neighbours(graph):
        alpha = sigmoid(z[v] @ p["theta_phi_weight"][:, 0] + p["theta_phi_bias"][0])
        theta_unk = alpha * p["theta_hom"] + (1 - alpha) * p["theta_het"]
        theta = {HOM: p["theta_hom"], HET: p["theta_het"], UNK: theta_unk}[kind]
        out[v] += c * z[u] @ theta
    return out


def acm_layer(z: np.ndarray, layer: torch.nn.Module, graph: ClientGraph, separate: bool) -> np.ndarray:
    """The seven channels of ``acm`` and ``acm_sep``, node by node."""
    p = parameters(layer)
    n, width = len(z), p["attention_mlp"].size
    w_mlp = p["filter_mlp"] if separate else p["filters"][:, 2 * width :]
    loops = dense_adjacency(graph) + np.eye(n)
    walk = loops / loops.sum(1, keepdims=True)
    filters = {"low": walk, "high": np.eye(n) - walk}

    def filtered(weights: np.ndarray, q: str) -> np.ndarray:
        half = weights[:, :width] if q == "low" else weights[:, width : 2 * width]
        return np.maximum(filters[q] @ z @ half, 0)

    channels = {(t, q): np.zeros((n, width)) for t in (HOM, HET, UNK) for q in filters}
    for q in filters:
        h_hom = filtered(p["theta_hom"] if separate else p["filters"], q)
        h_het = filtered(p["theta_het"] if separate else p["filters"], q)
        for v, u, kind, c in neighbours(graph):
            alpha = sigmoid(z[v] @ p["theta_phi_weight"][:, 0] + p["theta_phi_bias"][0]) if separate else 0.5
            mixed = alpha * h_hom[u] + (1 - alpha) * h_het[u]
            channels[kind, q][v] += c * {HOM: h_hom[u], HET: h_het[u], UNK: mixed}[kind]
    mlp = np.maximum(z @ w_mlp, 0)
    a_hom = dict(zip(filters, p["theta_hom_attention"], strict=True))
    a_het = dict(zip(filters, p["theta_het_attention"], strict=True))
    out = np.zeros((n, width))
    for v in range(n):
        scores, stacked = [], []
        for t in (HET, HOM, UNK):
            for q in filters:
                x = channels[t, q][v]
                source = z[v] if separate else x
                alpha = sigmoid(source @ p["theta_phi_weight"][:, 0] + p["theta_phi_bias"][0])
                unknown = alpha * (x @ a_hom[q]) + (1 - alpha) * (x @ a_het[q])
                scores.append({HET: x @ a_het[q], HOM: x @ a_hom[q], UNK: unknown}[t])
                stacked.append(x)
        scores.append(mlp[v] @ p["attention_mlp"][:, 0])
        stacked.append(mlp[v])
        raised = np.exp(sigmoid(np.array(scores)) @ p["mixing"] / 7)
        out[v] = 7 * (raised / raised.sum()) @ np.stack(stacked)
    return out


@pytest.mark.parametrize("profile", PROFILES)
def test_network_equals_the_equations_node_by_node(profile):
    graph, model = client_graph(0), network(profile)
    z = graph.x.double().numpy()
    for i, layer in enumerate([*model.layers, model.head]):
        z = np.maximum(z, 0) if i else z
        z = plain_layer(z, layer, graph) if profile == "plain" else acm_layer(z, layer, graph, profile == "acm_sep")
    np.testing.assert_allclose(model(prepared(model, graph)).detach().numpy(), z, rtol=0, atol=1e-12)


def hubs() -> ClientGraph:
    """120 nodes of three classes: four nodes with an edge to every other."""
    generator, nodes = torch.Generator().manual_seed(0), torch.arange(120)
    y = nodes % 3
    graph = client_graph(0)
    graph.y, graph.train_mask = y, nodes % 5 < 3
    graph.x = torch.nn.functional.one_hot(y, 3) + 0.5 * torch.randn(120, 3, generator=generator)
    edges = torch.cartesian_prod(torch.arange(4), nodes[4:]).T
    graph.edge_index = torch.cat([edges, edges.flip(0)], 1)
    return graph


def losses(graph: ClientGraph, seed: int, **params: Any) -> list[float]:
    """Training losses before each of 25 steps of the protocol."""
    cfg = compose(["protocol=fedspa", "strategy=fedspa", *(f"model.{key}={value}" for key, value in params.items())])
    torch.manual_seed(seed)
    model = build(replace(cfg.model, dropout=0.0), 3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.train.lr)
    given, rows = model.prepare(graph), graph.train_mask
    curve: list[float] = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(given)[rows], graph.y[rows])
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve


@pytest.mark.parametrize("seed", range(3))
def test_the_default_form_trains_where_the_sums_of_the_authors_form_overshoot(seed):
    """Why the default is not the authors' form; `fedgraph-flwr keys model=fedspa` says so at `model.profile`."""
    graph = hubs()
    default = losses(graph, seed)
    assert default == losses(graph, seed, profile="plain", normalization="sym")
    assert default[-1] < 0.8 * default[0]
    authors = losses(graph, seed, profile="acm", normalization="sum")
    assert authors[1] > 5 * authors[0] > 50 * default[0]
    told = keys("model=fedspa").loc["model.profile"]
    assert told["default"] == "plain"
    assert "sums grow with degree" in told["meaning"]


@pytest.mark.parametrize("profile", PROFILES)
def test_sparse_and_dense_features_give_the_same_logits_and_gradients(profile, monkeypatch):
    graph, model = client_graph(0), network(profile)
    dense = prepared(model, graph)
    monkeypatch.setattr("fedgraph_flwr.models.base.SPARSE_BELOW", 2.0)
    sparse = prepared(model, graph)
    assert dense.propagated is not None
    assert sparse.propagated is None
    outputs, gradients = [], []
    for given in (dense, sparse):
        model.zero_grad()
        outputs.append(model(given))
        outputs[-1].logsumexp(1).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("profile", PROFILES)
def test_gradients_by_finite_differences(profile):
    graph, model = client_graph(0), network(profile)
    inputs, nodes = prepared(model, graph), graph.train_mask.nonzero().view(-1)

    def loss() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(inputs)[nodes], graph.y[nodes])

    loss().backward()
    for parameter in model.parameters():
        assert parameter.grad.abs().max() > 0
        for index in range(0, parameter.numel(), 3):
            assert float(parameter.grad.flatten()[index]) == pytest.approx(slope(loss, parameter, index), abs=1e-8)


def slope(value: Any, parameter: torch.Tensor, index: int, step: float = 1e-5) -> float:
    """A central difference of ``value()`` in one entry."""
    flat, ends = parameter.detach().view(-1), []
    for sign in (1, -1):
        flat[index] += sign * step
        ends.append(float(value().detach()))
        flat[index] -= sign * step
    return (ends[0] - ends[1]) / (2 * step)


def test_equal_channels_ignore_types_and_harmonizer():
    graph, model = client_graph(0), network("plain")
    with torch.no_grad():
        for layer in (*model.layers, model.head):
            layer.theta_het.copy_(layer.theta_hom)
    logits = model(prepared(model, graph))
    untyped = network("plain", sfpd=False)
    untyped.load_state_dict(model.state_dict())
    torch.testing.assert_close(untyped(prepared(untyped, graph)), logits)
    with torch.no_grad():
        for layer in (*model.layers, model.head):
            layer.theta_phi_weight.neg_()
    torch.testing.assert_close(model(prepared(model, graph)), logits)


@pytest.mark.parametrize(("bias", "like"), [(50.0, HOM), (-50.0, HET)])
def test_a_saturated_harmonizer_takes_one_side(monkeypatch, bias, like):
    """α = 1 treats unknown edges as homophilic, α = 0 as heterophilic."""
    graph, model = client_graph(0), network("plain")
    with torch.no_grad():
        for layer in (*model.layers, model.head):
            layer.theta_phi_bias.fill_(bias)
    inputs = prepared(model, graph)
    moved = typed_operators(graph)
    moved[like] = moved[like] + moved[UNK]
    moved[UNK] = 0 * moved[UNK]
    monkeypatch.setattr("fedgraph_flwr.models.fedspa.typed_operators", lambda *_: moved)
    torch.testing.assert_close(model(inputs), model(prepared(model, graph)))


# --- biases on the client -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("laplacian", ["sym", "comb"])
def test_high_frequency_area_equals_the_dense_quadratic_form(laplacian):
    graph = client_graph(0)
    graph.edge_index = graph.edge_index[:, (graph.edge_index != 5).all(0)]  # node 5 has no neighbour
    graph.x[:, 2] = 0  # no node has feature 2
    a = dense_adjacency(graph)
    d = a.sum(1)
    assert (d == 0).any()
    lap = np.diag(d) - a
    if laplacian == "sym":
        lap /= np.sqrt(np.outer(np.maximum(d, 1), np.maximum(d, 1)))
    x = graph.x.double().numpy()
    expected = [x[:, f] @ lap @ x[:, f] / (x[:, f] @ x[:, f]) for f in (0, 1, 3, 4)]
    assert high_frequency_area(graph, laplacian) == pytest.approx(np.mean(expected), rel=1e-12)


def test_high_frequency_area_on_a_ring():
    graph = client_graph(0, num_nodes=8)
    ring = torch.stack([torch.arange(8), (torch.arange(8) + 1) % 8])
    graph.edge_index = ring  # one direction: A is symmetric all the same
    graph.x = torch.ones(8, 1)
    assert high_frequency_area(graph) == pytest.approx(0, abs=1e-15)
    graph.x = torch.tensor([1.0, -1.0] * 4).view(8, 1)
    assert high_frequency_area(graph) == pytest.approx(2)
    assert high_frequency_area(graph, "comb") == pytest.approx(4)
    graph.x = torch.zeros(8, 1)
    assert high_frequency_area(graph) == 0


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("kind", ["batch", "per_node"])
def test_fisher_diagonal_by_finite_differences(profile, kind):
    graph, model = client_graph(0), network(profile)
    inputs, nodes = prepared(model, graph), graph.train_mask.nonzero().view(-1)
    model.train()
    fisher = fisher_diagonal(model, inputs, graph.y, nodes, kind)
    assert {parameter_group(name) for name in fisher} == {"hom", "het"}

    def log_likelihood(which: torch.Tensor) -> torch.Tensor:
        return -torch.nn.functional.cross_entropy(model(inputs)[which], graph.y[which])

    for name, parameter in model.named_parameters():
        if name in fisher:
            assert (fisher[name] >= 0).all()
            for index in range(0, parameter.numel(), 5):
                sets = [nodes] if kind == "batch" else nodes.split(1)
                squares = [slope(lambda s=s: log_likelihood(s), parameter, index) ** 2 for s in sets]
                assert float(fisher[name].flatten()[index]) == pytest.approx(np.mean(squares), rel=1e-5, abs=1e-9)


def test_fisher_diagonal_in_pieces_and_in_another_order(monkeypatch):
    graph, model = client_graph(0), network("plain")
    inputs, nodes = prepared(model, graph), graph.train_mask.nonzero().view(-1)
    whole = fisher_diagonal(model, inputs, graph.y, nodes, "per_node")
    monkeypatch.setattr("fedgraph_flwr.clients.fedspa._BATCH_ELEMENTS", 200)
    for order in (nodes, nodes.flip(0)):
        pieces = fisher_diagonal(model, inputs, graph.y, order, "per_node")
        assert all(torch.allclose(whole[name], pieces[name], rtol=1e-12) for name in whole)
    batch = [fisher_diagonal(model, inputs, graph.y, order) for order in (nodes, nodes.flip(0))]
    assert all(torch.allclose(batch[0][name], batch[1][name], rtol=1e-12) for name in whole)
    assert all((v == 0).all() for v in fisher_diagonal(model, inputs, graph.y, nodes[:0]).values())


# --- folds --------------------------------------------------------------------------------------------------------------


def folded(*overrides: str) -> FedSPAClient:
    client = FedSPAClient(
        compose(["strategy=fedspa", *SGD, "dtype=float64", "model.dropout=0", *overrides]), client_graph(0, 40)
    )
    client.server_round = 1
    return client


def test_folds_part_the_training_nodes():
    client = folded("strategy.folds=3")
    parts = [nodes.tolist() for _, nodes in client.folds]
    assert all(inputs.x is client.inputs.x for inputs, _ in client.folds), "features are in memory once"
    assert [len(part) for part in parts] == [7, 7, 6]
    assert sorted(torch.cat([nodes for _, nodes in client.folds]).tolist()) == client.train_nodes.tolist()
    assert parts == [nodes.tolist() for _, nodes in folded("strategy.folds=3").folds], "the same after a restart"


@pytest.mark.parametrize("profile", PROFILES)
def test_a_fold_is_predicted_without_its_labels(profile):
    """Its logits keep when its labels change, those of the others do not; with all labels they change."""
    client = folded("strategy.folds=2", f"model.profile={profile}")
    nodes = client.folds[0][1][::2]
    other = folded("strategy.folds=2", f"model.profile={profile}")
    other.graph.y = other.graph.y.clone()
    other.graph.y[nodes] = (other.graph.y[nodes] + 1) % 3
    ours, theirs = (c.model.eval()(c.folds[0][0]) for c in (client, other))
    assert torch.equal(ours, theirs)
    assert not torch.equal(*(c.model(c.folds[1][0]) for c in (client, other)))
    assert not torch.equal(*(c.model(c.model.prepare(c.graph, dtype=torch.float64)) for c in (client, other)))


def test_folds_take_turns_through_rounds():
    """A step goes down the slope of one fold's cross-entropy, the next one's each time, on whatever client object."""
    used = []
    for server_round in (1, 2, 3, 4):
        client = folded("strategy.folds=3", "train.local_steps=1")
        client.server_round = server_round
        weight = client.model.layers[0].theta_hom
        slopes = []
        for inputs, nodes in client.folds:
            loss = torch.nn.functional.cross_entropy(client.model(inputs)[nodes], client.y[nodes])
            slopes.append(torch.autograd.grad(loss, weight)[0])
        before = weight.detach().clone()
        client.train()
        used += [k for k, slope in enumerate(slopes) if torch.allclose(before - 0.1 * slope, weight, rtol=1e-12)]
    assert used == [0, 1, 2, 0]
    client = folded("strategy.folds=3", "train.local_steps=2")
    client.server_round = 2
    assert [batch.nodes.tolist() for batch in client.batches()] == [client.folds[k][1].tolist() for k in (2, 0)]


def test_folds_kept_on_disk_are_those_of_the_graph(tmp_path):
    path = tmp_path / "client_0000.safetensors"
    client = folded("strategy.folds=2")
    client.graph.save(path)
    for _ in range(2):  # written, then read
        kept = FedSPAClient(client.cfg, ClientGraph.load(path), file=path)
        for (ours, nodes), (theirs, same) in zip(client.folds, kept.folds, strict=True):
            assert torch.equal(client.model.eval()(ours), kept.model.eval()(theirs))
            assert torch.equal(nodes, same)
    assert len(list(tmp_path.glob("*.prepared"))) == 3


def test_one_fold_is_the_paper(run):
    """Two folds train another model; messages and scores are of the same kind."""
    one, plain, two = (
        run("strategy=fedspa", *SGD, *overrides) for overrides in (("strategy.folds=1",), (), ("strategy.folds=2",))
    )
    assert_same_arrays(one.arrays, plain.arrays)
    assert any((one.arrays[name] != two.arrays[name]).any() for name in one.arrays)
    assert one.summary["bytes_by_phase"] == two.summary["bytes_by_phase"]
    with pytest.raises(FedGraphError, match=r"strategy\.folds must be >= 1, got 0"):
        run("strategy=fedspa", "strategy.folds=0")


# --- weights on the server ----------------------------------------------------------------------------------------------


def test_bias_weights_by_hand():
    weights = bias_weights(np.array([0.3, 0.1, 0.2]))
    raised = np.exp([-1, 0, -0.5])
    np.testing.assert_allclose(weights, raised / raised.sum(), rtol=1e-14)
    assert weights.max() / weights.min() == pytest.approx(np.e)


@pytest.mark.parametrize("biases", [[0.7] * 3, [0.0] * 3, [0.4]])
def test_equal_biases_give_uniform_weights(biases):
    np.testing.assert_array_equal(bias_weights(np.array(biases)), np.full(len(biases), 1 / len(biases)))


def test_bias_weights_keep_under_affine_maps_however_small():
    biases = np.random.default_rng(0).random(6)
    weights = bias_weights(biases)
    np.testing.assert_allclose(weights.sum(), 1)
    np.testing.assert_array_equal(np.argsort(weights), np.argsort(-biases))
    np.testing.assert_allclose(bias_weights(3 * biases + 2), weights, rtol=1e-12)
    np.testing.assert_allclose(bias_weights(1e-20 * biases, 1e-12 * 1e-20), weights, rtol=1e-12)


def test_two_clients_deviate_in_inverse_proportion_to_their_nodes():
    nodes = np.array([30.0, 10.0])
    delta, _ = prior_biases(np.array([0.4, 1.1]), nodes)
    assert delta[0] / delta[1] == pytest.approx(10 / 30)
    fishers = [{"w": np.random.default_rng(i).random((3, 2)).astype(np.float32)} for i in range(2)]
    delta, _ = posterior_biases(fishers, nodes)
    assert delta[0] / delta[1] == pytest.approx(10 / 30, rel=1e-6)
    even = np.array([20.0, 20.0])
    for biases, tolerance in (prior_biases(np.array([0.4, 1.1]), even), posterior_biases(fishers, even)):
        np.testing.assert_allclose(bias_weights(biases, tolerance), [0.5, 0.5])


def test_posterior_biases_by_hand():
    fishers = [{"a": np.array([1.0, 3.0]), "b": np.array([[0.0]])}, {"a": np.array([2.0, 1.0]), "b": np.array([[4.0]])}]
    nodes = np.array([1.0, 3.0])  # I_g = (1.75, 1.5, 3)
    biases, size = posterior_biases(fishers, nodes)
    np.testing.assert_allclose(biases, [(0.75 + 1.5 + 3) / 3, (0.25 + 0.5 + 1) / 3])
    assert size == pytest.approx(1e-12 * (1.75 + 1.5 + 3) / 3)


# --- runs ---------------------------------------------------------------------------------------------------------------


def replies_of(messages: list[Any]) -> list[dict[str, dict[str, np.ndarray]]]:
    """The groups of arrays that clients sent, in the order of the clients."""
    up = [content for direction, _, content in messages if direction == "up" and MODEL in content.array_records]
    up.sort(key=lambda content: content.metric_records[METRICS]["client"])
    return [{g: {n: a.numpy() for n, a in r.items()} for g, r in c.array_records.items()} for c in up]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("overrides", [(), ("strategy.fraction=0.75", "seed=9")])
def test_each_group_is_averaged_with_its_own_weights(run, monkeypatch, profile, overrides):
    """A second derivation from the messages: S_i from the graphs, Eq. (8)-(12) in NumPy, on the cohort."""
    sizes = (12, 20, 16, 24)
    with recorded_messages(monkeypatch) as messages:
        finished = run("strategy=fedspa", *SGD, f"model.profile={profile}", "rounds=1", *overrides, sizes=sizes)
    cohort = finished.rounds[0]["cohort"]
    assert cohort == ([1, 2, 3] if overrides else [0, 1, 2, 3]), "a client's place in the list is not its index"
    sent = replies_of(messages)
    n = np.array([sizes[i] for i in cohort], dtype=float)

    def weights(delta: np.ndarray) -> np.ndarray:
        raised = np.exp(-(delta - delta.min()) / (delta.max() - delta.min()))
        return raised / raised.sum()

    s = np.array([high_frequency_area(client_graph(i, sizes[i])) for i in cohort])
    prior = weights(np.abs(s - (n * s).sum() / n.sum()))
    expected = {"phi": prior, "rest": prior}
    for channel in ("hom", "het"):
        names = [name for name in sent[0][FISHER] if parameter_group(name) == channel]
        flat = np.stack([np.concatenate([r[FISHER][k].ravel() for k in names]).astype(float) for r in sent])
        expected[channel] = weights(np.abs(flat - n @ flat / n.sum()).mean(1))
    groups = {parameter_group(name) for name in finished.arrays}
    assert groups == {"hom", "het", "phi", "rest"}
    for name, array in finished.arrays.items():
        members = np.stack([r[MODEL][name].astype(float) for r in sent])
        mean = np.tensordot(expected[parameter_group(name)], members, axes=1)
        np.testing.assert_allclose(array, mean, rtol=1e-5, atol=1e-7)


NODES, TRAINING = np.array([12.0, 16.0, 20.0]), np.array([6.0, 3.0, 8.0])  # of `uneven_clients`


def mean_of(sent: list[Any], name: str, weights: Any) -> np.ndarray:
    """Weighted mean of what the clients sent of one parameter."""
    shares = np.asarray(weights, dtype=float) / np.sum(weights)
    return np.tensordot(shares, np.stack([reply[MODEL][name].astype(float) for reply in sent]), axes=1)


@pytest.mark.parametrize(("rest", "weights"), [("uniform", (1, 1, 1)), ("nodes", NODES)])
def test_the_rest_is_averaged_as_configured(run, monkeypatch, tmp_path, rest, weights):
    """And the harmonizer by the prior all the same."""
    folder = uneven_clients(tmp_path)
    with recorded_messages(monkeypatch) as messages:
        finished = run("strategy=fedspa", *SGD, "rounds=1", f"strategy.rest={rest}", f"graph={folder}")
    sent = replies_of(messages)
    areas = np.array([high_frequency_area(client_graph(i, int(n))) for i, n in enumerate(NODES)])
    prior = bias_weights(*prior_biases(areas, NODES))
    for name, shares in (("layers.0.theta_self", weights), ("layers.0.theta_phi_weight", prior)):
        np.testing.assert_allclose(finished.arrays[name], mean_of(sent, name, shares), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("overrides", "weights"),
    [
        (("strategy.weighting=nodes", "strategy.posterior=false", "strategy.prior=false"), NODES),
        (("strategy.weighting=train", "strategy.posterior=false"), TRAINING),
        (("strategy.posterior=false",), (1, 1, 1)),
    ],
)
def test_without_posterior_the_channels_have_the_weighting_of_the_strategy(
    run, monkeypatch, tmp_path, overrides, weights
):
    with recorded_messages(monkeypatch) as messages:
        finished = run("strategy=fedspa", *SGD, "rounds=1", *overrides, f"graph={uneven_clients(tmp_path)}")
    name = "layers.0.theta_hom"
    expected = mean_of(replies_of(messages), name, weights)
    np.testing.assert_allclose(finished.arrays[name], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["batch", "per_node"])
def test_the_diagonals_are_those_of_the_trained_parameters_each_round(run, monkeypatch, kind):
    with recorded_messages(monkeypatch) as messages:
        finished = run("strategy=fedspa", *SGD, "rounds=2", f"strategy.fisher={kind}", "model.dropout=0.5")
    sent = replies_of(messages)
    assert len(sent) == 6
    for index, reply in enumerate(sent):
        client = FedSPAClient(finished.cfg, client_graph(index // 2, (12, 16, 20)[index // 2]))
        client.set_parameters([reply[MODEL][name] for name in client.shared])
        expected = fisher_diagonal(client.model, client.inputs, client.y, client.train_nodes, kind)
        for name, values in expected.items():
            np.testing.assert_allclose(reply[FISHER][name], values.numpy(), rtol=1e-3, atol=1e-9)


def test_a_client_describes_itself_by_the_laplacian_configured():
    client = FedSPAClient(compose(["strategy=fedspa", "strategy.laplacian=comb"]), client_graph(0))
    area = client.describe()["high_frequency_area"]
    assert area == high_frequency_area(client_graph(0), "comb") != high_frequency_area(client_graph(0))


def test_only_shared_channels_are_told_and_weighed(run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        run("strategy=fedspa", *SGD, "rounds=1", "strategy.shared=[layers.0]")
    sent = replies_of(messages)
    assert {name for reply in sent for name in reply[FISHER]} == {"layers.0.theta_hom", "layers.0.theta_het"}


@pytest.mark.parametrize("word", ["model=gcn", "model=acm", "strategy.shared=[layers.0.theta_hom]"])
def test_a_network_without_channels_is_refused_where_they_are_to_be_weighed(run, word):
    with pytest.raises(FedGraphError, match="set model=fedspa, or"):
        check_method(compose(["strategy=fedspa", word]))
    run("strategy=fedspa", word, "strategy.posterior=false", "rounds=1")


@pytest.mark.parametrize(
    "model", [("model=fedspa", "model.sfpd=false"), ("model=fedspa", "model.profile=acm"), ("model=acm",)]
)
def test_everything_off_is_fedavg_with_uniform_weights(run, model):
    overrides = [*SGD, *model, "strategy.weighting=uniform"]
    off = ["strategy.prior=false", "strategy.posterior=false", "strategy.rest=uniform"]
    assert_same_arrays(run("strategy=fedspa", *off, *overrides).arrays, run("strategy=fedavg", *overrides).arrays)


def test_equal_clients_average_to_themselves(run, tmp_path):
    for client in range(3):
        graph = client_graph(0)
        graph.client, graph.num_clients = client, 3
        graph.save(tmp_path / "same" / f"client_{client:04d}.safetensors")
    overrides = ["strategy=fedspa", *SGD, "model.dropout=0"]
    three = run(*overrides, f"graph={tmp_path / 'same'}")
    one = run(*overrides, sizes=(16,))
    for name, array in three.arrays.items():
        np.testing.assert_allclose(array, one.arrays[name], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("overrides", "extra"), [((), {FISHER}), (("strategy.posterior=false",), set())])
def test_messages_carry_what_is_declared(run, monkeypatch, overrides, extra):
    """P down; P and the two channels up; N_i and S_i once; nothing else."""
    with recorded_messages(monkeypatch) as messages:
        finished = run("strategy=fedspa", *SGD, "rounds=2", *overrides)
    shapes = {name: array.shape for name, array in finished.arrays.items()}
    channels = {name: shape for name, shape in shapes.items() if parameter_group(name) in ("hom", "het")}
    seen, scalars = set(), set()
    for direction, _, content in messages:
        groups = {g: {n: tuple(a.shape) for n, a in r.items()} for g, r in content.array_records.items()}
        expected = {MODEL: shapes} | (dict.fromkeys(extra, channels) if direction == "up" else {})
        assert groups in ({}, expected)
        seen |= {(direction, frozenset(groups))}
        for record in content.metric_records.values():
            scalars |= set(record)
            assert all(len(value) == 1 for value in record.values() if isinstance(value, list))
    assert {("down", frozenset({MODEL})), ("up", frozenset({MODEL, *extra}))} <= seen
    scores = {key for key in scalars if key.startswith(("val-", "test-"))}
    described = {"client", "num_train", "num_features", "num_classes", "num_nodes", "high_frequency_area", "protocol"}
    assert scalars - scores == described | {"train-loss"}
    f, h, c = 5, 8, 3
    p, m = 3 * (f * h + h * c) + (f + 1) + (h + 1) + h + c, 2 * (f * h + h * c)
    assert (count(shapes), count(channels)) == (p, m)
    told_by = {
        "describe": 7,
        "train": 3,
        "evaluate": 1 + len(scores),
    }  # numbers: client, training nodes, loss; client, scores
    up = {"describe": 0, "train": p + len(extra) * m, "evaluate": 0}
    down = {"describe": 0, "train": p, "evaluate": p}
    flags = {"describe": 1, "train": 2, "evaluate": 2}  # beside the phase's name and the round
    at_end = (
        len("describe") + 8 + 3 * 8 + 16,
        8 * told_by["describe"],
    )  # asked again, to keep the models of a run with a name
    ledger = finished.rounds[0]["phases"] | {
        phase: finished.summary["bytes_by_phase"][phase]
        for phase in finished.summary["bytes_by_phase"]
        if phase != "train"
    }
    assert ledger.keys() == up.keys()
    for phase, entry in ledger.items():
        again = at_end if phase == "describe" else (0, 0)
        assert entry["bytes_down"] == 3 * (4 * down[phase] + len(phase) + 8 + 8 * flags[phase] + again[0]), phase
        assert entry["bytes_up"] == 3 * (4 * up[phase] + 8 * told_by[phase] + again[1]), phase


def count(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(int(np.prod(shape)) for shape in shapes.values())


# --- fisher_exchange=scalar ---------------------------------------------------------------------------------------------

SCALAR = ("strategy=fedspa", *SGD, "strategy.fisher_exchange=scalar")


def test_scalar_exchange_gives_the_same_model(run):
    scalar, arrays = run(*SCALAR), run("strategy=fedspa", *SGD)
    for name, array in scalar.arrays.items():
        np.testing.assert_allclose(array, arrays.arrays[name], rtol=1e-5, atol=1e-7)
    assert scalar.rounds[0]["phases"].keys() == {"train", "deviate"}
    assert arrays.rounds[0]["phases"].keys() == {"train"}


def test_scalar_exchange_shows_the_server_sums_and_scalars(run, monkeypatch):
    """No share equals, scaled, what the client's diagonals are; I_g is what goes down; nothing else comes up."""
    with recorded_messages(monkeypatch) as messages:
        finished = run(*SCALAR, "rounds=1", "checkpoint_every=0")
    with recorded_messages(monkeypatch) as plain:
        run("strategy=fedspa", *SGD, "rounds=1")
    nodes = np.array([12, 16, 20]) / 48
    open_ = replies_of(plain)
    for share, reply, ratio in zip(replies_of(messages), open_, nodes, strict=True):
        assert share.keys() == {MODEL, FISHER}
        for name, values in share[FISHER].items():
            assert values.dtype == np.uint64
            guess = values.view(np.int64) * RESOLUTION
            assert np.median(np.abs(guess - ratio * reply[FISHER][name])) > 100, "masked: uniform over ± 2^15"
    pooled = [c.array_records[FISHER] for d, _, c in messages if d == "down" and FISHER in c.array_records]
    assert len(pooled) == 3
    for name, array in pooled[0].items():
        mean = sum(ratio * r[FISHER][name].astype(float) for ratio, r in zip(nodes, open_, strict=True))
        np.testing.assert_allclose(array.numpy(), mean, rtol=0, atol=3 * RESOLUTION)
    scalars = [set(c.metric_records[METRICS]) for d, _, c in messages if d == "up" and not c.array_records]
    assert {"client", "deviation_hom", "deviation_het"} in scalars
    p, m, n = count({name: array.shape for name, array in finished.arrays.items()}), 2 * (5 * 8 + 8 * 3), 3
    peers = n * 8 + n * 32 + 8  # indices and keys of the cohort, ΣN_j
    arrays_down = {"publish_key": 0, "train": 4 * p + peers, "deviate": 8 * m}
    arrays_up = {"publish_key": 32, "train": 4 * p + 8 * m, "deviate": 0}
    numbers_up = {"publish_key": 1, "train": 3, "deviate": 3}
    ledger = finished.summary["bytes_by_phase"]
    assert ledger.keys() - {"describe", "evaluate"} == arrays_down.keys()
    for phase in arrays_down:
        flags = 2 if phase == "train" else 0
        assert ledger[phase]["bytes_down"] == n * (arrays_down[phase] + len(phase) + 8 + 8 * flags), phase
        assert ledger[phase]["bytes_up"] == n * (arrays_up[phase] + 8 * numbers_up[phase]), phase


def test_no_mask_is_used_twice(run, monkeypatch):
    """The server could subtract two shares under the same mask."""
    steps, original = [], fedspa.mask

    def spy(values: Any, sealer: Any, peers: Any, step: str) -> Any:
        steps.append((sealer.client, step))
        return original(values, sealer, peers, step)

    monkeypatch.setattr("fedgraph_flwr.clients.fedspa.mask", spy)
    run(*SCALAR, "rounds=3")
    assert len(steps) == len(set(steps)) == 9


def test_scalar_biases_that_differ_by_rounding_are_equal(run, monkeypatch):
    """Two clients of equal size deviate alike from their mean; a mask's resolution must not be stretched to a ratio of e."""
    with recorded_messages(monkeypatch) as messages:
        finished = run(*SCALAR, "rounds=1", sizes=(16, 16))
    name = "layers.0.theta_hom"
    np.testing.assert_allclose(finished.arrays[name], mean_of(replies_of(messages), name, (1, 1)), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("overrides", [("strategy.fraction=0.34",), ("num_clients=1",)])
def test_a_sum_over_one_client_is_refused(run, overrides):
    sizes = (16,) if "num_clients=1" in overrides else (12, 16, 20)
    with pytest.raises(FedGraphError, match="expected at least 2"):
        run(*SCALAR, *overrides, sizes=sizes)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("lost_in", ["train", "deviate"])
def test_a_client_lost_on_the_way_is_left_out(run, monkeypatch, lost_in, seed):
    """In training the others mask again, and I_g is theirs; after it I_g is fixed, and they are weighed without it."""
    sizes, kept = (12, 16, 20, 24), [0, 2, 3]
    overrides = ("rounds=1", "evaluation.every=5", f"seed={seed}")
    with recorded_messages(monkeypatch) as messages:
        run("strategy=fedspa", *SGD, *overrides, sizes=sizes)
    sent, original = replies_of(messages), honest_reply

    def fails(self, phase, *args):
        if self.graph.client == 1 and phase == lost_in:
            raise FedGraphError("out of order")
        return original(self, phase, *args)

    patch_replies(monkeypatch, fails)
    finished = run(*SCALAR, *overrides, sizes=sizes)
    assert ("share_again" in finished.rounds[0]["phases"]) == (lost_in == "train")
    named = kept if lost_in == "train" else [0, 1, 2, 3]
    nodes = np.array(sizes, dtype=float)
    areas = np.array([high_frequency_area(client_graph(i, sizes[i])) for i in kept])
    prior = bias_weights(*prior_biases(areas, nodes[kept]))
    for channel in ("hom", "het", "self"):
        weights = prior
        if channel != "self":
            names = [name for name in sent[0][FISHER] if parameter_group(name) == channel]
            flat = np.stack([np.concatenate([r[FISHER][k].ravel() for k in names]).astype(float) for r in sent])
            pooled = nodes[named] @ flat[named] / nodes[named].sum()
            weights = bias_weights(np.abs(flat[kept] - pooled).mean(axis=1))
        name = f"layers.0.theta_{channel}"
        expected = mean_of([sent[i] for i in kept], name, weights)
        np.testing.assert_allclose(finished.arrays[name], expected, rtol=1e-5, atol=1e-7)


def test_the_last_client_does_not_share_alone(run, monkeypatch):
    original = honest_reply

    def fails(self, phase, *args):
        if self.graph.client > 0 and phase == "train":
            raise FedGraphError("out of order")
        return original(self, phase, *args)

    patch_replies(monkeypatch, fails)
    with pytest.raises(FedGraphError, match="client 0 should join a sum without any other client"):
        run(*SCALAR, "rounds=1")


def test_a_client_goes_on_from_its_private_state():
    """Between two phases the process may change: key and diagonals come back, and the share is the same."""
    cfg = compose([*SCALAR, "model.hidden=8"])
    clients = [FedSPAClient(cfg, client_graph(i)) for i in range(2)]
    keys = np.stack([c.publish_key({}, {})[0]["key"]["key"] for c in clients])
    peers = {PEERS: {"clients": np.arange(2), "keys": keys, "nodes": np.array([32])}}
    first = clients[0]
    first.receive(peers)
    first.train()
    share = first.send()[0][FISHER]
    first.summed = []  # as though nothing had been shared: a second share over the same clients is refused
    fresh = FedSPAClient(cfg, client_graph(0))
    restore_state(fresh, unflatten(flatten(state_of(first))))
    assert_same_arrays(fresh.share_again(peers, {})[0][FISHER], share)
    assert_same_arrays(fresh.fisher, first.fisher)
    kept = fresh.sealer
    restore_state(fresh, unflatten(flatten(state_of(first))))
    assert fresh.sealer is kept, "a resumed run keeps its new key"
    with pytest.raises(FedGraphError, match="which has published no key in this run"):
        FedSPAClient(cfg, client_graph(0)).share()


@pytest.mark.parametrize("key", ["rest", "laplacian", "fisher", "fisher_exchange"])
def test_wrong_choices_are_named(run, key):
    with pytest.raises(FedGraphError, match=f"strategy.{key} 'odd' is unknown"):
        run("strategy=fedspa", f"strategy.{key}=odd")


@pytest.mark.parametrize("key", ["profile", "normalization"])
def test_wrong_model_choices_are_named(key):
    with pytest.raises(FedGraphError, match=f"model.{key} 'odd' is unknown"):
        build(ModelConfig("fedspa", params={key: "odd"}), 5, 3)


def test_a_fisher_diagonal_of_another_shape_is_refused(run, monkeypatch):
    send = FedSPAClient.send
    monkeypatch.setattr(
        FedSPAClient, "send", lambda self: ({FISHER: {n: a[:1] for n, a in send(self)[0][FISHER].items()}}, {})
    )
    with pytest.raises(FedGraphError, match="of shape"):
        run("strategy=fedspa", *SGD)


def test_a_second_share_of_another_shape_is_refused(run, monkeypatch):
    original = honest_reply

    def odd(self, phase, *args):
        if self.graph.client == 1 and phase == "train":
            raise FedGraphError("out of order")
        groups, numbers = original(self, phase, *args)
        return ({FISHER: {n: a[:1] for n, a in groups[FISHER].items()}} if phase == "share_again" else groups), numbers

    patch_replies(monkeypatch, odd)
    with pytest.raises(FedGraphError, match="of shape"):
        run(*SCALAR, "rounds=1")


def test_protocol_is_the_papers():
    cfg = compose(["protocol=fedspa", "strategy=fedavg", "dataset=arxiv-year"])
    assert (cfg.num_clients, cfg.split.train, cfg.model.name, cfg.partition.merge) == (30, 0.05, "acm", "ascending")

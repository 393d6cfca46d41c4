"""FedHERO: structure learner, dual channel and smoothness loss against dense NumPy."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedgraph_flwr.clients.fedhero import FedHEROClient
from fedgraph_flwr.config import ModelConfig, compose
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import build, structure_learner
from fedgraph_flwr.models.structure_learner import METRICS, LatentGraph, smoothness, top_k
from fedgraph_flwr.numerics.sparse import Pattern
from fedgraph_flwr.wire.messages import MODEL
from tests.conftest import client_graph
from tests.support import recorded_messages

N, F, C, H = 23, 40, 3, 8


def make_graph(seed: int = 0, density: float = 0.3) -> Graph:
    """A directed graph with a duplicate edge, a self-loop, and nodes without in-edges."""
    rng = np.random.default_rng(seed)
    edges = np.concatenate([rng.integers(0, [[N], [N - 3]], (2, 4 * N)), [[1, 1, 2], [0, 0, 2]]], axis=1)
    x = rng.normal(size=(N, F)) * (rng.random((N, F)) < density)
    mask = torch.from_numpy(rng.random(N) < 0.6)
    y = torch.from_numpy(rng.integers(0, C, N))
    return Graph(torch.from_numpy(x).double(), torch.from_numpy(edges), y, mask, ~mask, ~mask, C)


def make_model(seed: int = 0, layers: int = 2, dropout: float = 0.0, **params):
    torch.manual_seed(seed)
    return build(ModelConfig("fedhero", H, layers, dropout, {"k": 4, **params}), F, C).double()


def prepared(model, graph: Graph):
    return model.prepare(graph, dtype=torch.float64)


def dense_adjacency(graph: Graph) -> np.ndarray:
    a = np.zeros((N, N))
    for source, target in graph.edge_index.T.tolist():
        a[target, source] += source != target
    return a


def numpy_of(module) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy() for name, p in module.named_parameters()}


def unit(z: np.ndarray) -> np.ndarray:
    return z / np.maximum(np.linalg.norm(z, axis=-1, keepdims=True), 1e-12)


def gcn_oracle(graph: Graph) -> np.ndarray:
    """D^-1/2 (A + I) D^-1/2 with in-degrees."""
    with_loops = dense_adjacency(graph) + np.eye(N)
    scale = with_loops.sum(1) ** -0.5
    return scale[:, None] * with_loops * scale


def scores_oracle(graph: Graph, w: dict[str, np.ndarray], metric: str) -> np.ndarray:
    """ã, dense and head by head; -inf where the metric looks at edges only and there is none."""
    z = np.maximum(gcn_oracle(graph) @ graph.x.numpy() @ w["weight"] + w["bias"], 0)
    off_graph = np.where(dense_adjacency(graph) > 0, 0.0, -np.inf)
    if metric == "multi_head":
        pairs = zip(w["metric.left"], w["metric.right"], strict=True)
        return np.mean([unit(z * left) @ unit(z * right).T for left, right in pairs], axis=0)
    if metric == "cos":
        return unit(z) @ unit(z).T
    if metric == "att":
        heads = [np.maximum(z @ part, 0) for part in np.split(w["metric.weight"], 4, axis=1)]
        return np.mean([head @ head.T for head in heads], axis=0)
    if metric == "gat":
        pairs = zip(w["metric.target"].T, w["metric.source"].T, strict=True)
        raw = [(z @ to)[:, None] + (z @ of)[None, :] for to, of in pairs]
        return np.mean([np.where(r > 0, r, 0.2 * r) for r in raw], axis=0) + off_graph
    if metric == "glcn":
        return np.maximum(np.abs(z[:, None] - z[None]) @ w["metric.weight"][:, 0], 0) + off_graph
    return z @ z.T


def latent_oracle(graph: Graph, w: dict[str, np.ndarray], metric: str, k: int = 4) -> np.ndarray:
    """Ã, dense, as `value` weights; GAug's at inference."""
    score = scores_oracle(graph, w, metric)
    np.fill_diagonal(score, -np.inf)
    kept = np.argsort(np.argsort(-score, axis=1), axis=1) < k
    if metric == "gaug":
        a = dense_adjacency(graph) > 0
        return (kept | a) & (0.5 / (1 + np.exp(-np.where(np.isinf(score), 0, score))) + 0.5 * a > 0.5)
    kept &= np.isfinite(score)
    if metric in ("multi_head", "cos"):
        return np.where(kept, np.maximum(score, 0), 0)
    grown = np.where(kept, np.exp(score), 0)
    return grown / np.maximum(grown.sum(1, keepdims=True), 1e-300)


def dense(latent: LatentGraph) -> np.ndarray:
    return latent.pattern.matrix(latent.weight.detach()).tensor(latent.pattern.num_nodes).to_dense().numpy()


@pytest.mark.parametrize("block", [1, 3, 7, N, 500])
@pytest.mark.parametrize("k", [1, 5, N - 1, 500])
def test_blockwise_top_k_equals_dense(block, k):
    torch.manual_seed(0)
    left, right = torch.randn(2, N, 6, dtype=torch.float64)
    scores = left @ right.T
    scores.fill_diagonal_(-torch.inf)
    expected = scores.topk(min(k, N - 1)).indices.sort().values
    pattern = top_k(left, right, k, block)
    assert torch.equal(pattern.row, torch.arange(N).repeat_interleave(min(k, N - 1)))
    assert torch.equal(pattern.col.view(N, -1).sort().values, expected)
    assert not (pattern.row == pattern.col).any()


def test_ties_at_the_kth_neighbour_go_to_the_lowest_index():
    """Whatever device adds up: scores of alike nodes that differ in their last digits count as equal. By NumPy, row by row."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 6, 40)  # 40 nodes of six kinds: nearly every row ties
    left, right = rng.normal(size=(6, 5))[kind], rng.normal(size=(6, 5))[kind]
    exact = left @ right.T
    np.fill_diagonal(exact, -np.inf)
    expected = [sorted(np.lexsort((np.arange(40), -row.round(9)))[:7]) for row in exact]
    for seed in range(3):
        noise = 1 + 1e-8 * np.random.default_rng(seed).choice([-1, 1], size=(2, 40, 5))
        noisy = torch.from_numpy((left, right) * noise)
        pattern = top_k(noisy[0], noisy[1], 7, block=16)
        assert pattern.col.view(40, 7).tolist() == expected
    torch.manual_seed(0)
    sorted_otherwise = torch.from_numpy(exact).topk(7).indices.sort().values.tolist()
    assert sorted_otherwise != expected  # the device's order is another


def test_scores_at_the_edge_of_a_tie_still_give_k_neighbours():
    """A bound, and a difference that it is held against, round apart; each score is above the tie, in it, or below it."""
    ulp = torch.finfo(torch.float32).eps
    steps = torch.tensor(
        [*[-1e4] * 39, 0, 0, *range(1, 10), *range(1, 10), 10]
    )  # the k-th score twice, as all above but one
    scores = torch.linspace(1.02, 1.07, 60)[:, None] + ulp * steps
    neighbours = top_k(scores, torch.eye(60), 20).col.view(60, 20)
    assert bool((neighbours.diff(dim=1) > 0).all())
    assert {(row[0], row[-1]) for row in neighbours[:39].tolist()} == {(39, 59)}


def test_scores_that_are_no_numbers_still_give_k_neighbours():
    left = torch.full((5, 2), torch.nan)
    assert top_k(left, left, 2).col.view(5, 2).tolist() == [[1, 2], [0, 2], [0, 1], [0, 1], [0, 1]]


def test_nobody_is_nearest_where_nobody_else_is():
    for nodes, k in ((1, 3), (4, 0)):
        pattern = top_k(torch.ones(nodes, 2), torch.ones(nodes, 2), k)
        assert pattern.row.numel() == pattern.col.numel() == 0
        assert pattern.pointer.tolist() == [0] * (nodes + 1)


def test_unit_rows_are_torch_s_bit_for_bit():
    """Rows of zeros and rows shorter than the least length included, which have a gradient of their own."""
    torch.manual_seed(0)
    rows, grown = torch.randn(2, 9, 3, 16)
    rows[2] = 0
    rows[4] *= 1e-14
    outputs = []
    for unit_of in (structure_learner._Unit.apply, lambda x: functional.normalize(x, dim=-1, eps=1e-12)):
        x = rows.clone().requires_grad_()
        y = unit_of(x)
        y.backward(grown)
        outputs.append((y.detach(), x.grad))
    assert all(map(torch.equal, *outputs))
    assert outputs[0][1][4].abs().max() > 1e10


def test_pattern_products_and_their_gradients():
    """Rows and columns without an entry included; compared with dense autograd."""
    mask = torch.rand(9, 9, generator=torch.Generator().manual_seed(1)) < 0.3
    mask[2], mask[:, 4] = False, False
    row, col = mask.nonzero().T
    pattern = Pattern(row, col, 9)
    torch.manual_seed(0)
    values = torch.randn(pattern.row.numel(), dtype=torch.float64, requires_grad=True)
    left, right = (torch.randn(9, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(pattern.dot, (left, right))
    assert torch.autograd.gradcheck(pattern.product, (values, left))
    torch.testing.assert_close(pattern.dot(left, right), (left @ right.T)[mask])
    full = torch.zeros(9, 9, dtype=torch.float64).masked_scatter(mask, values)
    torch.testing.assert_close(pattern.product(values, left), full @ left)
    torch.testing.assert_close(pattern.row_sum(values), full.sum(1))


@pytest.mark.parametrize("density", [0.05, 0.6])  # sparse and dense features
@pytest.mark.parametrize("metric", sorted(METRICS))
def test_latent_graph_equals_dense_oracle(metric, density):
    graph, model = make_graph(density=density), make_model(metric=metric).eval()
    inputs = prepared(model, graph)
    learner = model.structure_learner
    expected = latent_oracle(graph, numpy_of(learner), metric)
    np.testing.assert_allclose(dense(learner(inputs.x, inputs.adj, inputs.edges)), expected, atol=1e-12)


@pytest.mark.parametrize("dual", [True, False])
def test_prediction_equals_dense_oracle(dual):
    graph, model = make_graph(), make_model(dual_channel=dual, alpha=0.3).eval()
    w = numpy_of(model)
    learnt = latent_oracle(graph, numpy_of(model.structure_learner), "multi_head") + np.eye(N)
    on_latent, on_graph = learnt / learnt.sum(1, keepdims=True), gcn_oracle(graph)
    x = graph.x.numpy()
    z = [np.maximum(x @ w["projection.weight"] + w["projection.bias"], 0)]
    for layer in range(2):
        local = f"local_convs.{layer}" if dual else f"global_convs.{layer}"
        h = on_latent @ z[-1] @ w[f"global_convs.{layer}.weight"] + w[f"global_convs.{layer}.bias"]
        e = on_graph @ z[-1] @ w[f"{local}.weight"] + w[f"{local}.bias"]
        z.append(np.maximum(0.3 * e + 0.7 * h, 0))
    expected = np.concatenate([x, *z], axis=1) @ w["classifier.weight"] + w["classifier.bias"]
    np.testing.assert_allclose(model(prepared(model, graph)).detach().numpy(), expected, atol=1e-12)
    assert any(name.startswith("local_convs.") for name in w) == dual


def test_dropout_leaves_the_ego_features():
    """All but dropped, every Z is zero and the classifier sees only X."""
    graph, model = make_graph(), make_model(dropout=1 - 1e-9)
    inputs = prepared(model, graph)
    alone = graph.x @ model.classifier.weight[:F] + model.classifier.bias
    torch.testing.assert_close(model.train()(inputs), alone)
    assert not torch.allclose(model.eval()(inputs), alone)


def cross_entropy(model, graph: Graph) -> torch.Tensor:
    logits = model(prepared(model, graph))[graph.train_mask]
    return torch.nn.functional.cross_entropy(logits, graph.y[graph.train_mask])


@pytest.mark.parametrize(
    ("alpha", "silent"), [(1.0, ("structure_learner.", "global_convs.")), (0.0, ("local_convs.",))]
)
def test_a_channel_of_weight_zero_is_silent(alpha, silent):
    """Neither prediction nor gradient depends on it, exactly; every other parameter has a gradient."""
    graph, model = make_graph(), make_model(alpha=alpha)
    before = model(prepared(model, graph)).detach()
    cross_entropy(model, graph).backward()
    for name, p in model.named_parameters():
        assert bool(p.grad.any()) != name.startswith(silent), name
        if name.startswith(silent):
            p.data.normal_()
    assert torch.equal(model(prepared(model, graph)), before)


def test_one_head_of_ones_is_plain_cosine_and_scale_does_not_matter():
    graph = make_graph()
    one, plain = make_model(heads=1).eval(), make_model(metric="cos").eval()
    for head in (one.structure_learner.metric.left, one.structure_learner.metric.right):
        torch.nn.init.ones_(head)
    plain.load_state_dict(one.state_dict(), strict=False)
    inputs = prepared(one, graph)
    torch.testing.assert_close(one(inputs), plain(inputs))

    model = make_model().eval()
    before = model(inputs)
    model.structure_learner.metric.left.data *= torch.rand(4, 1, dtype=torch.float64) + 0.1
    torch.testing.assert_close(model(inputs), before)
    z = torch.randn(N, H, dtype=torch.float64)
    left, right = model.structure_learner.metric.factors(z)
    assert (left @ right.T).abs().max() <= 1 + 1e-12


def test_directed_scores_are_symmetrised_on_demand():
    graph = make_graph()
    plain, both = make_model().eval(), make_model(symmetrize=True).eval()
    inputs = prepared(plain, graph)
    arguments = inputs.x, inputs.adj, inputs.edges
    one = dense(plain.structure_learner(*arguments))
    assert not np.allclose(one, one.T)
    np.testing.assert_allclose(dense(both.structure_learner(*arguments)), (one + one.T) / 2, atol=1e-15)


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_relabelling_nodes_permutes_predictions(metric):
    k = N if metric == "glcn" else 4  # its relu makes ties at 0, which k < in-degree would break by node number
    graph, model = make_graph(), make_model(metric=metric, k=k).eval()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    place = torch.argsort(order)
    moved = make_graph()
    moved.x, moved.edge_index = graph.x[order], place[graph.edge_index]
    torch.testing.assert_close(model(prepared(model, moved)), model(prepared(model, graph))[order])


@pytest.mark.parametrize(("reduction", "divisor"), [("sum", 1), ("n2", N**2), ("edges", 4 * N)])
def test_smoothness_equals_dense_sum(reduction, divisor):
    graph, model = make_graph(), make_model().eval()
    inputs = prepared(model, graph)
    latent = model.both(inputs)[1]
    x, weight = graph.x.numpy(), dense(latent)
    distance = ((x[:, None] - x[None]) ** 2).sum(-1)
    expected = (0.3 * (weight * distance).sum() + 0.7 * (weight**2).sum()) / divisor
    loss = smoothness(latent, inputs.distances(latent.pattern), lam=0.3, mu=0.7, reduction=reduction)
    assert loss.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("features", [5, F])  # fewer than nodes, and more
def test_distances_equal_dense_ones(features):
    graph = make_graph(density=1.0)
    graph.x = graph.x[:, :features]
    inputs = prepared(build(ModelConfig("fedhero", H, 2, 0.0), features, C), graph)
    assert (inputs.distance is None) == (features < N)  # nothing larger than X is kept
    row, col = torch.rand(N, N, generator=torch.Generator().manual_seed(0)).lt(0.3).nonzero().T
    expected = (graph.x[row] - graph.x[col]).square().sum(1)
    torch.testing.assert_close(inputs.distances(Pattern(row, col, N)), expected)


@pytest.mark.parametrize("metric", ["multi_head", "cos", "att", "gaug"])
def test_neighbours_are_searched_once_for_the_parameters_that_are_scored_and_trained(metric, monkeypatch):
    searches = []
    monkeypatch.setattr(structure_learner, "top_k", lambda *a: searches.append(a) or top_k(*a))
    graph, model = make_graph(), make_model(metric=metric)
    inputs = prepared(model, graph)

    def edges() -> torch.Tensor:
        pattern = model.eval().both(inputs)[1].pattern
        return torch.stack([pattern.row, pattern.col])

    first = edges()
    model.train().both(inputs)[0].sum().backward()
    assert len(searches) == 1
    for p in model.structure_learner.parameters():  # each decides what is found, in place as an optimiser changes it
        with torch.no_grad():
            p.normal_()
        count = len(searches)
        edges()
        assert len(searches) == count + 1
    fresh = make_model(metric=metric)
    fresh.load_state_dict(model.state_dict())
    again = fresh.eval().both(inputs)[1].pattern
    assert torch.equal(edges(), torch.stack([again.row, again.col]))
    assert not torch.equal(edges(), first)
    z = model.structure_learner.embed(inputs.x, inputs.adj)
    few, many = (model.structure_learner.metric.search(z, k, inputs.edges)[1].numel() for k in (4, N - 1))
    assert few < many == N * (N - 1)


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_edge_weight_says_whether_the_learner_is_trained(metric):
    graph = make_graph()
    size = {}
    for mode in ("value", "ste", "binary"):
        model = make_model(metric=metric, edge_weight=mode)
        torch.manual_seed(0)
        inputs = prepared(model, graph)
        logits, latent = model.both(inputs)
        loss = logits.square().sum() + smoothness(latent, inputs.distances(latent.pattern), lam=0.1, mu=0.1)
        grads = torch.autograd.grad(loss, list(model.structure_learner.parameters()), allow_unused=True)
        size[mode] = [0.0 if g is None else float(g.abs().sum()) for g in grads]
        if mode != "value":
            assert set(latent.weight.tolist()) <= ({0.0, 1.0} if metric == "gaug" else {1.0})
    assert min(size["value"]) > 0
    assert min(size["ste"]) > 0
    assert max(size["binary"]) == 0


def test_straight_through_gradient_is_that_of_the_score():
    """d/dã of f(1 + ã − stop(ã)) is f'(1), which is not the gradient at the value ã."""
    graph, model = make_graph(), make_model(edge_weight="ste")
    inputs = prepared(model, graph)
    latent = model.structure_learner(inputs.x, inputs.adj, inputs.edges)
    pattern, score = model.structure_learner.metric.search(
        model.structure_learner.embed(inputs.x, inputs.adj), 4, inputs.edges
    )
    head = model.structure_learner.metric.left
    target = torch.linspace(0, 1, pattern.row.numel(), dtype=torch.float64)
    straight = torch.autograd.grad(((latent.weight - target) ** 2).sum(), head)[0]
    expected = torch.autograd.grad((2 * (1 - target) * score).sum(), head)[0]
    torch.testing.assert_close(straight, expected)


@pytest.mark.slow
def test_bernoulli_draws_each_candidate_with_its_score_at_inference_only():
    graph = make_graph()
    model, plain = make_model(latent="bernoulli", candidates=2), make_model()
    inputs = prepared(model, graph)
    arguments = inputs.x, inputs.adj, inputs.edges
    np.testing.assert_array_equal(
        dense(model.structure_learner(*arguments)), dense(plain.structure_learner(*arguments))
    )
    model.eval()
    score = latent_oracle(graph, numpy_of(model.structure_learner), "multi_head", k=8)
    torch.manual_seed(0)
    draws = np.mean([dense(model.structure_learner(*arguments)) for _ in range(600)], axis=0)
    assert set(np.unique(dense(model.structure_learner(*arguments)))) <= {0.0, 1.0}
    assert (draws[score == 0] == 0).all()
    assert np.abs(draws - score).max() < 0.1  # five standard deviations of 600 draws


@pytest.mark.slow
def test_gaug_draws_edges_by_their_probability_and_learns_to_rebuild_the_graph(monkeypatch):
    graph, model = make_graph(), make_model(metric="gaug")
    inputs = prepared(model, graph)
    learner, z = model.structure_learner, model.structure_learner.embed(inputs.x, inputs.adj).detach()
    a = dense_adjacency(graph) > 0
    probability = 0.5 / (1 + np.exp(-(z @ z.T).numpy())) + 0.5 * a
    torch.manual_seed(0)
    latents = [learner(inputs.x, inputs.adj, inputs.edges) for _ in range(600)]
    row, col = latents[0].pattern.row.numpy(), latents[0].pattern.col.numpy()
    share = np.mean([latent.weight.detach().numpy() for latent in latents], axis=0)
    assert np.abs(share - probability[row, col]).max() < 0.1  # five standard deviations of 600 draws

    # as many pairs without an edge as edges, here all (0, v)
    others = torch.stack([torch.zeros_like(inputs.edges.row), torch.arange(inputs.edges.row.numel()) % N])
    monkeypatch.setattr(torch, "randint", lambda *_: others)
    logit = (z @ z.T).numpy()
    wrong = np.log1p(np.exp(-logit[a])).sum() + np.log1p(np.exp(logit[tuple(others.numpy())])).sum()
    penalty = learner(inputs.x, inputs.adj, inputs.edges).penalty.item()
    assert penalty == pytest.approx(wrong / (2 * inputs.edges.row.numel()))
    model.eval()
    assert learner(inputs.x, inputs.adj, inputs.edges).penalty.item() == 0


def test_a_lone_node_has_no_latent_neighbour():
    graph = make_graph()
    alone = Graph(
        graph.x[:1],
        torch.zeros(2, 0, dtype=torch.int64),
        graph.y[:1],
        graph.train_mask[:1],
        graph.val_mask[:1],
        graph.test_mask[:1],
        C,
    )
    for metric in METRICS:
        model = make_model(metric=metric)
        logits, latent = model.both(prepared(model, alone))
        assert latent.weight.numel() == 0
        assert torch.isfinite(logits).all()


@pytest.mark.parametrize(
    ("key", "value"),
    [("metric", "rbf"), ("edge_weight", "hard"), ("k", 0), ("alpha", 1.5), ("heads", 0), ("latent", "gumbel")],
)
def test_an_option_outside_its_range_is_named(key, value):
    with pytest.raises(FedGraphError, match=f"model.{key}"):
        make_model(**{key: value})


def test_bernoulli_needs_scores_that_are_probabilities():
    with pytest.raises(FedGraphError, match="att"):
        make_model(latent="bernoulli", metric="att")


# --- the federation -----------------------------------------------------------------------------------------------

HERO = ["strategy=fedhero", "model.k=4", "train.lr=0.05", "train.local_steps=1"]
GLOBAL = ("structure_learner.", "global_convs.")


def private(client: FedHEROClient) -> dict[str, torch.Tensor]:
    return {n: t.detach().clone() for n, t in client.model.state_dict().items() if not n.startswith(GLOBAL)}


def test_messages_hold_the_global_channel_and_nothing_else(run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = run(*HERO)
    records = [record for _, _, content in messages for record in content.array_records.values()]
    names = {name for name, _ in make_model().named_parameters() if name.startswith(GLOBAL)}
    assert records
    assert all(set(record) == names for record in records)
    num_features, hidden, heads, layers = 5, 8, 4, 2
    floats = (num_features * hidden + hidden) + 2 * heads * hidden + layers * (hidden * hidden + hidden)
    assert {sum(int(np.prod(a.shape)) for a in record.values()) for record in records} == {floats}
    assert set(finished.arrays) == names
    assert all(set(content) <= {MODEL, "config", "metrics"} for _, _, content in messages)


def test_a_broadcast_leaves_private_tensors_as_they_are():
    cfg = compose([*HERO, "model.hidden=8"])
    client = FedHEROClient(cfg, client_graph(0))
    client.train()
    before = private(client)
    for _ in range(2):
        client.evaluate([np.full_like(a, 0.7) for a in client.get_parameters({})], {})
        assert all((t == 0.7).all() for n, t in client.model.state_dict().items() if n.startswith(GLOBAL))
    after = private(client)
    assert {name.split(".")[0] for name in before} == {"projection", "local_convs", "classifier"}
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_with_alpha_one_and_no_smoothing_the_server_does_not_matter():
    """f_0, f_loc and f_c move bit for bit as if nothing were shared, whatever arrives."""
    cfg = compose([*HERO, "model.hidden=8", "model.alpha=1", "strategy.lam=0", "strategy.mu=0"])
    alone, served = (FedHEROClient(cfg, client_graph(0)) for _ in range(2))
    start = private(alone)
    for server_round in range(3):
        for client in (alone, served):
            torch.manual_seed(server_round)
            parameters = client.get_parameters({})
            if client is served:
                parameters = [np.random.default_rng(server_round).normal(size=a.shape) for a in parameters]
            client.fit(parameters, {})
    for name, tensor in private(alone).items():
        assert torch.equal(tensor, private(served)[name]), name
        assert not torch.equal(tensor, start[name]), name


def test_the_global_channel_is_averaged_by_nodes(run, monkeypatch):
    with recorded_messages(monkeypatch) as messages:
        finished = run(*HERO, "rounds=1", sizes=(8, 24))
    one, two = (c.array_records[MODEL] for d, _, c in messages if d == "up" and MODEL in c.array_records)
    for name, array in finished.arrays.items():
        expected = 0.25 * one[name].numpy().astype(np.float64) + 0.75 * two[name].numpy().astype(np.float64)
        np.testing.assert_array_equal(array, expected.astype(np.float32))


@pytest.mark.parametrize(
    ("shared", "prefixes"),
    [
        ("[]", ()),
        ("['']", ("",)),
        ("[local_convs.,projection.,classifier.]", ("local_convs.", "projection.", "classifier.")),
    ],
)
@pytest.mark.parametrize("dual", ["true", "false"])
def test_table_5_shares_by_prefix(run, monkeypatch, shared, prefixes, dual):
    with recorded_messages(monkeypatch) as messages:
        run(*HERO, "rounds=2", f"strategy.shared={shared}", f"model.dual_channel={dual}")
    sent = {name for _, _, content in messages for record in content.array_records.values() for name in record}
    names = {name for name, _ in make_model(dual_channel=dual == "true").named_parameters()}
    assert sent == {name for name in names if name.startswith(prefixes)}


def test_objective_is_cross_entropy_plus_smoothness():
    overrides = [*HERO, "model.hidden=8", "model.dropout=0", "strategy.reduction=sum", "dtype=float64"]
    loss = {}
    for lam, mu in ((0, 0), (0.3, 0), (0, 0.7), (0.3, 0.7)):
        client = FedHEROClient(compose([*overrides, f"strategy.lam={lam}", f"strategy.mu={mu}"]), client_graph(0))
        loss[lam, mu] = client.loss().item()
    latent = dense(client.model.both(client.inputs)[1])
    x = client.graph.x.double().numpy()
    smooth = 0.3 * (latent * ((x[:, None] - x[None]) ** 2).sum(-1)).sum()
    task = torch.nn.functional.cross_entropy(client.predict()[client.train_nodes], client.y[client.train_nodes]).item()
    assert loss[0, 0] == pytest.approx(task)
    assert loss[0.3, 0] - task == pytest.approx(smooth)
    assert loss[0, 0.7] - task == pytest.approx(0.7 * (latent**2).sum())
    assert loss[0.3, 0.7] - task == pytest.approx(smooth + 0.7 * (latent**2).sum())


def test_objective_takes_the_metric_s_own_term():
    client = FedHEROClient(compose([*HERO, "model.hidden=8", "model.metric=gaug"]), client_graph(0))
    whole, both = [], client.model.both

    def spy(inputs):
        logits, latent = both(inputs)
        whole.append(latent)
        latent.penalty = latent.penalty + 7 * len(whole)
        return logits, latent

    client.model.both = spy
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        losses.append(client.loss().item())
    assert losses[1] - losses[0] == pytest.approx(7, rel=1e-5)


def test_the_attack_is_reported_in_the_summary(run):
    hero = run(*HERO, "attack=link_inference").summary["attack"]
    assert set(hero["on_graph"]) == set(hero["without_edges"]) == {"structure_learner"}
    assert hero["accuracy"] == 0.5 + abs(hero["on_graph"]["structure_learner"]["accuracy"] - 0.5)
    assert run("strategy=local", "attack=link_inference").summary["attack"]["accuracy"] == 0.5
    assert run("attack=link_inference").summary["attack"]["representation"] == "prediction"


def test_another_network_is_refused(run):
    with pytest.raises(FedGraphError, match="model=fedhero"):
        run("strategy=fedhero", "model=gcn")


def test_the_protocol_is_the_papers():
    """Section 4.1, and what is ours where it is silent."""
    cfg = compose(["protocol=fedhero", "strategy=fedhero"])
    assert (cfg.rounds, cfg.num_clients, cfg.dataset.name, cfg.partition.name) == (200, 5, "chameleon", "metis")
    assert (cfg.split.kind, cfg.split.folds, cfg.split.scope, cfg.split.fold) == ("kfold", 5, "client", -1)
    assert cfg.split.resample
    train = cfg.train
    assert (train.optimizer, train.lr, train.local_steps, train.optimizer_state) == ("adam", 0.005, 1, "keep")
    assert train.weight_decay == 5e-4
    evaluation = cfg.evaluation
    assert (evaluation.metric, evaluation.average, evaluation.select) == ("accuracy", "clients", "best_val")
    assert not cfg.dataset.undirected
    assert not cfg.dataset.reversed
    assert (cfg.model.name, cfg.model.hidden, cfg.model.layers, cfg.model.dropout) == ("fedhero", 64, 2, 0.5)
    assert cfg.model.params == {
        **{"alpha": 0.2, "dual_channel": True, "heads": 4, "k": 20, "metric": "multi_head", "edge_weight": "value"},
        **{"symmetrize": False, "latent": "top_k", "candidates": 5},
    }
    assert cfg.strategy.params == {"lam": 0.1, "mu": 0.1, "reduction": "n2"}
    assert (cfg.strategy.weighting, cfg.strategy.shared) == ("nodes", list(GLOBAL))
    assert compose(["strategy=fedhero"]).strategy.weighting == "nodes"
    baseline = compose(["protocol=fedhero", "strategy=fedprox"])
    assert (baseline.model.name, baseline.strategy.weighting) == ("projected_gcn", "nodes")


@pytest.mark.parametrize(
    ("dataset", "partition", "clients", "metric"),
    [
        ("syn-cora", "planted", 10, "accuracy"),
        ("ieee-fraud", "planted", 5, "auc"),
        ("credit", "metis", 5, "auc"),
        ("squirrel", "metis", 5, "accuracy"),
    ],
)
def test_real_world_sets_become_clients(dataset, partition, clients, metric):
    cfg = compose(["protocol=fedhero", f"dataset={dataset}"])
    assert (cfg.partition.name, cfg.num_clients, cfg.evaluation.metric) == (partition, clients, metric)

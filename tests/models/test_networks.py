import dataclasses
import math
from typing import Any, Unpack

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedgraph_flwr.config import ANY, ModelConfig, compose
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import MODELS, build, keywords, own_keys, own_schema, probe
from fedgraph_flwr.models.base import Model
from fedgraph_flwr.models.fedspa import NORMALIZATIONS, PROFILES
from fedgraph_flwr.models.gcn import GCN
from fedgraph_flwr.models.stack import NORMS, Common
from fedgraph_flwr.models.structure_learner import METRICS
from fedgraph_flwr.numerics.sparse import SparseMatrix

NAMES = ["mlp", "gcn", "sage", "gat", "acm", "decoupled"]
N, F, C = 12, 40, 3


def graph(seed: int = 0, share: float = 0.05) -> Graph:
    """Directed, with a loop, a node without arrivals and one without edges; ``share`` of the features are not zero."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(N, F, generator=g) * (torch.rand(N, F, generator=g) < share)
    edges = torch.randint(0, N - 2, (2, 30), generator=g)
    edges = torch.cat([edges, torch.tensor([[3, N - 2], [3, 0]])], dim=1).unique(dim=1)
    y = torch.arange(N) % C
    return Graph(x, edges, y, y == 0, y == 1, y == 2, C)


def network(name: str, **kwargs: object) -> Model:
    """In float64, every parameter random so that none hides behind zero or symmetry."""
    torch.manual_seed(3)
    params = {"hidden": 8, "layers": 2, "dropout": 0.5, **kwargs}
    extras = {key: params.pop(key) for key in set(params) - {f.name for f in dataclasses.fields(ModelConfig)}}
    model = build(ModelConfig(name=name, params=extras, **params), F, C).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return model


def logits(model: Model, g: Graph) -> Tensor:
    return model.eval()(model.prepare(g, dtype=torch.float64))


def dense_adjacency(g: Graph, loops: bool = True) -> np.ndarray:
    """Row target, column source; with ``loops`` each node has exactly one."""
    a = np.zeros((N, N))
    for source, target in g.edge_index.T.tolist():
        a[target, source] += 1
    if loops:
        np.fill_diagonal(a, 1)
    return a


def arrays(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy() for name, p in model.named_parameters()}


def place(index: int, layers: int) -> str:
    """Where the parameters of a layer stand: those of the last one are the head's."""
    return f"layers.{index}" if index < layers - 1 else "head"


def stacked(model: Model) -> list[Any]:
    """All its layers in order."""
    return [*model.layers, model.head]


def relu(z: np.ndarray) -> np.ndarray:
    return np.maximum(z, 0)


def test_mlp_equals_its_formula():
    g, model = graph(), network("mlp", layers=3)
    p, h = arrays(model), g.x.double().numpy()
    for i in range(3):
        h = (relu(h) if i else h) @ p[f"{place(i, 3)}.weight"] + p[f"{place(i, 3)}.bias"]
    np.testing.assert_allclose(logits(model, g).detach(), h, rtol=1e-10)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_gcn_equals_its_formula(layers):
    g, model = graph(), network("gcn", layers=layers)
    a, p, h = dense_adjacency(g), arrays(model), g.x.double().numpy()
    d = a.sum(1)
    a = a / np.sqrt(np.outer(d, d))
    for i in range(layers):
        h = a @ (relu(h) if i else h) @ p[f"{place(i, layers)}.weight"] + p[f"{place(i, layers)}.bias"]
    np.testing.assert_allclose(logits(model, g).detach(), h, rtol=1e-10)


def test_projected_gcn_equals_its_formula():
    g, model = graph(), network("projected_gcn")
    a, p = dense_adjacency(g), arrays(model)
    d = a.sum(1)
    a = a / np.sqrt(np.outer(d, d))
    h = relu(g.x.double().numpy() @ p["layers.0.weight"] + p["layers.0.bias"])
    for i in (1, 2):
        h = relu(a @ h @ p[f"layers.{i}.weight"] + p[f"layers.{i}.bias"])
    np.testing.assert_allclose(logits(model, g).detach(), h @ p["head.weight"] + p["head.bias"], rtol=1e-10)


def test_acm_equals_its_formula():
    """Node by node, with I − P formed and each filter cut out of the joint matrix."""
    g, model = graph(), network("acm")
    p, h = arrays(model), g.x.double().numpy()
    a = dense_adjacency(g)
    low_pass = a / a.sum(1, keepdims=True)
    for i in range(2):
        low, high, same = np.split(p[f"{place(i, 2)}.filters"], 3, axis=1)
        channels = [relu(low_pass @ h @ low), relu((np.eye(N) - low_pass) @ h @ high), relu(h @ same)]
        rows = []
        for v in range(N):
            s = np.array([1 / (1 + np.exp(-c[v] @ p[f"{place(i, 2)}.scores"][k])) for k, c in enumerate(channels)])
            e = np.exp(s @ p[f"{place(i, 2)}.mixing"] / 3)
            rows.append(3 * sum(w * c[v] for w, c in zip(e / e.sum(), channels, strict=True)))
        h = np.stack(rows)
    np.testing.assert_allclose(logits(model, g).detach(), h, rtol=1e-10)


@pytest.mark.parametrize(
    ("beta", "weights"), [("last", [0, 0, 1]), ("uniform", [1 / 3] * 3), ([0.2, 0.0, 0.5], [0.2, 0.0, 0.5])]
)
def test_decoupled_equals_its_formula(beta, weights):
    g, model = graph(), network("decoupled", hops=3, beta=beta)
    a, p = dense_adjacency(g), arrays(model)
    walk = a / a.sum(1, keepdims=True)
    h = relu(g.x.double().numpy() @ p["layers.0.weight"] + p["layers.0.bias"])
    h = h @ p["head.weight"] + p["head.bias"]
    expected = sum(w * np.linalg.matrix_power(walk, hop) @ h for hop, w in enumerate(weights, 1))
    np.testing.assert_allclose(logits(model, g).detach(), expected, rtol=1e-10)


def test_decoupled_can_normalise_its_input():
    g, model = graph(), network("decoupled", input_norm=True)
    inputs = model.prepare(g, dtype=torch.float64)
    assert isinstance(inputs.x, Tensor)
    x = inputs.x
    spread = (x.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    normed = (x - x.mean(1, keepdim=True)) / spread * model.input_norm.weight + model.input_norm.bias
    plain = network("decoupled")
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("input_norm.")})
    torch.testing.assert_close(logits(model, g), plain.eval()(dataclasses.replace(inputs, x=normed)))


def test_gcn_equals_pyg():
    from torch_geometric.nn import GCNConv

    g, model = graph(), network("gcn")
    h = g.x.double()
    for i, layer in enumerate(stacked(model)):
        conv = GCNConv(*layer.weight.shape).double()
        conv.load_state_dict({"lin.weight": layer.weight.T, "bias": layer.bias})
        h = conv(torch.relu(h) if i else h, g.edge_index)
    torch.testing.assert_close(logits(model, g), h)


def test_sage_with_norm_and_head_hears_out_neighbours():
    g = graph(share=0.5)
    model = network("sage", input_norm=True, head=True, out_neighbours=True)
    w, x = arrays(model), g.x.double().numpy()
    centred = x - x.mean(1, keepdims=True)
    h = centred / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w["input_norm.weight"] + w["input_norm.bias"]
    a = dense_adjacency(g, loops=False).T  # row source: the nodes that one's edges lead to
    mean = a / np.maximum(a.sum(1, keepdims=True), 1)
    for i in range(2):
        h = relu(h) if i else h
        self_term = h @ w[f"layers.{i}.itself.weight"] + w[f"layers.{i}.itself.bias"]
        h = self_term + mean @ h @ w[f"layers.{i}.neighbours.weight"]
    expected = h @ w["head.weight"] + w["head.bias"]
    np.testing.assert_allclose(logits(model, g).detach().numpy(), expected, atol=1e-10)


def test_sage_equals_pyg():
    from torch_geometric.nn import SAGEConv

    g, model = graph(), network("sage")
    h = g.x.double()
    for i, layer in enumerate(stacked(model)):
        conv = SAGEConv(*layer.itself.weight.shape).double()
        linear, others = layer.itself, layer.neighbours.weight
        conv.load_state_dict({"lin_l.weight": others.T, "lin_l.bias": linear.bias, "lin_r.weight": linear.weight.T})
        h = conv(torch.relu(h) if i else h, g.edge_index)
    torch.testing.assert_close(logits(model, g), h)


def test_gat_equals_pyg_as_it_comes():
    """PyG's layers that add the loops themselves, from the edges as stored."""
    from torch_geometric.nn import GATConv

    g, model = graph(), network("gat", heads=4)
    first, last = GATConv(F, 2, 4).double(), GATConv(8, C).double()
    first.load_state_dict(model.layers[0].state_dict())
    last.load_state_dict(model.head.state_dict())
    expected = last(nn.functional.elu(first(g.x.double(), g.edge_index)), g.edge_index)
    torch.testing.assert_close(logits(model, g), expected)


def test_gat_equals_its_formula():
    """One layer, one head, dense: attention over arrivals and the node itself."""
    g, model = graph(), network("gat", layers=1)
    conv = model.head
    h = g.x.double() @ conv.lin.weight.T
    scores = (h @ conv.att_dst.view(-1, 1) + (h @ conv.att_src.view(-1, 1)).T).clone()
    scores = nn.functional.leaky_relu(scores, 0.2)
    scores[torch.from_numpy(dense_adjacency(g)) == 0] = -torch.inf
    torch.testing.assert_close(logits(model, g), torch.softmax(scores, dim=1) @ h + conv.bias)


@pytest.mark.parametrize("name", NAMES)
def test_renaming_nodes_renames_logits(name):
    g, model = graph(), network(name)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))  # new node i is old node order[i]
    place = torch.argsort(order)
    renamed = dataclasses.replace(g, x=g.x[order], edge_index=place[g.edge_index])
    torch.testing.assert_close(logits(model, renamed), logits(model, g)[order])


@pytest.mark.parametrize("name", [n for n in NAMES if n != "mlp"])
def test_edges_matter_and_have_a_direction(name):
    g, model = graph(), network(name)
    reversed_ = dataclasses.replace(g, edge_index=g.edge_index.flip(0))
    without = dataclasses.replace(g, edge_index=g.edge_index[:, :0])
    assert not torch.allclose(logits(model, reversed_), logits(model, g))
    assert torch.isfinite(logits(model, without)).all()
    assert not torch.allclose(logits(model, without), logits(model, g))


def test_mlp_sees_no_edges():
    g, model = graph(), network("mlp")
    assert torch.equal(logits(model, g), logits(model, dataclasses.replace(g, edge_index=g.edge_index[:, :3])))


@pytest.mark.parametrize("name", NAMES)
def test_sparse_and_dense_features_give_the_same_logits_and_gradients(name, monkeypatch):
    g, model = graph(), network(name, hidden=F)
    inputs = model.prepare(g, dtype=torch.float64)
    assert isinstance(inputs.x, Tensor if name == "gat" else SparseMatrix)
    dense = dataclasses.replace(inputs, x=g.x.double())
    monkeypatch.setattr("fedgraph_flwr.models.base.SPARSE_BELOW", 0.0)
    ready = model.prepare(g, dtype=torch.float64)
    assert (ready.propagated is not None) == (name == "acm")
    assert network(name, hidden=F - 8).prepare(g).propagated is None
    outputs, gradients = [], []
    for given in (inputs, dense, ready):
        model.zero_grad()
        outputs.append(model.eval()(given))
        outputs[-1][g.train_mask].logsumexp(1).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert len(gradients[0]) == len(list(model.parameters()))
    for other in (1, 2):
        torch.testing.assert_close(outputs[0], outputs[other])
        torch.testing.assert_close(gradients[0], gradients[other])


def test_features_that_are_mostly_non_zero_stay_dense():
    model = network("gcn")
    assert isinstance(model.prepare(graph(share=0.5)).x, Tensor)
    assert isinstance(model.prepare(graph(share=0.05)).x, SparseMatrix)


@pytest.mark.parametrize(
    "fast", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["along one direction", "each"]
)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_equal_finite_differences(name, fast):
    g, model = graph(), network(name)
    inputs, names = model.prepare(g, dtype=torch.float64), [n for n, _ in model.named_parameters()]
    model.eval()

    def loss(*values: Tensor) -> Tensor:
        out = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (inputs,))
        return nn.functional.cross_entropy(out[g.train_mask], g.y[g.train_mask])

    parameters = tuple(p.detach().requires_grad_() for p in model.parameters())
    assert torch.autograd.gradcheck(loss, parameters, atol=1e-6, fast_mode=fast)


@pytest.mark.parametrize("name", NAMES)
def test_randomness_only_in_training_and_from_the_seed(name):
    g, model = graph(), network(name)
    inputs = model.prepare(g, dtype=torch.float64)

    def trained(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return model.train()(inputs)

    assert torch.equal(trained(0), trained(0))
    assert not torch.equal(trained(0), trained(1))
    before = torch.random.get_rng_state()
    assert torch.equal(model.eval()(inputs), model(inputs))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_preparing_does_not_touch_the_graph_and_repeats(name):
    g, model = graph(), network(name)
    x, edges = g.x.clone(), g.edge_index.clone()
    assert torch.equal(logits(model, g), logits(model, g))
    assert torch.equal(g.x, x)
    assert torch.equal(g.edge_index, edges)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_move_to_another_type(name):
    g, model = graph(), network(name).float().eval()
    moved = model.prepare(g, dtype=torch.float64).to("cpu", torch.float32)
    torch.testing.assert_close(model(moved), model(model.prepare(g)))


@pytest.mark.parametrize("name", NAMES)
def test_each_yaml_builds_its_network(name):
    cfg = compose([f"model={name}"])
    model = build(cfg.model, F, C)
    assert f"{type(model).__module__}:{type(model).__name__}" == MODELS[name]
    assert logits(model.double(), graph()).shape == (N, C)


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(FedGraphError, match=r"model 'gcnn' is unknown.*did you mean 'gcn'"):
        build(ModelConfig(name="gcnn"), F, C)


def test_a_key_of_another_model_is_refused():
    with pytest.raises(FedGraphError, match="model gcn: key 'heads' is unknown"):
        network("gcn", heads=2)


@pytest.mark.parametrize(
    ("name", "key", "value", "says"),
    [
        ("gat", "heads", 3, "must divide model.hidden"),
        ("gat", "heads", 0, "must divide model.hidden"),
        ("decoupled", "hops", 0, "model.hops must be >= 1"),
        ("decoupled", "beta", "first", "model.beta must be last"),
        ("decoupled", "beta", "learned", "model.beta must be last"),
        ("decoupled", "beta", [1.0], "1 weights for 2 hops"),
    ],
)
def test_impossible_values_are_refused(name, key, value, says):
    with pytest.raises(FedGraphError, match=says):
        network(name, **{key: value})


@pytest.mark.parametrize("name", MODELS)
def test_every_key_has_a_type(name):
    """A mapping is of none of them."""
    cfg = compose([f"model={name}"]).model
    arguments = keywords(cfg)
    assert arguments.keys() == cfg.params.keys() | {"hidden", "layers", "dropout"}
    for key, value in cfg.params.items():
        assert arguments[key] == value
        with pytest.raises(FedGraphError, match=rf"model\.{key} \(model={name}\) must be a?.*, got \{{'a': 1\}}"):
            keywords(ModelConfig(name, params={key: {"a": 1}}))


@pytest.mark.parametrize("name", MODELS)
def test_a_network_refuses_what_its_keys_do_not_accept(name):
    cfg = compose([f"model={name}"]).model
    schema = own_schema(cfg)
    assert {f.name for f in dataclasses.fields(schema)} >= cfg.params.keys()
    for f in dataclasses.fields(schema):
        held = f.metadata.get("range", ANY)
        wrong = "nonsense" if "choices" in f.metadata else held.low - 1 if math.isfinite(held.low) else None
        if wrong is not None:
            with pytest.raises(FedGraphError, match=rf"model\.{f.name} .*{wrong}"):
                keywords(dataclasses.replace(cfg, params={f.name: wrong}))


class Wider(GCN):
    def __init__(self, num_features: int, num_classes: int, *, factor: int = 2, **common: Unpack[Common]):
        common["hidden"] *= factor
        super().__init__(num_features, num_classes, **common)


class Deeper(Wider):
    def __init__(self, num_features: int, num_classes: int, *, factor: int = 3, **rest: Any):
        super().__init__(num_features, num_classes, factor=factor, **rest)


@pytest.mark.parametrize(("kind", "factor"), [(Wider, 2), (Deeper, 3)])
def test_keywords_of_a_base_are_followed_as_far_as_they_are_accepted(kind, factor):
    """`Common` names no norm, so `Wider` and what is made from it accept none, though `GCN` does."""
    cfg = ModelConfig(f"{__name__}:{kind.__name__}", hidden=4)
    assert own_keys(cfg) == {"factor"}
    assert [(f.name, f.default_factory()) for f in dataclasses.fields(own_schema(cfg))] == [("factor", factor)]
    assert build(cfg, 5, 3).head.weight.shape == (4 * factor, 3)
    with pytest.raises(FedGraphError, match="key 'norm'"):
        build(dataclasses.replace(cfg, params={"norm": "layer"}), 5, 3)


def test_words_that_a_network_accepts_are_those_that_it_knows():
    known = {"metric": METRICS, "norm": {"none", *NORMS}, "profile": PROFILES, "normalization": NORMALIZATIONS}
    for name, key in (("fedhero", "metric"), ("gcn", "norm"), ("fedspa", "profile"), ("fedspa", "normalization")):
        (made,) = (f for f in dataclasses.fields(own_schema(ModelConfig(name))) if f.name == key)
        assert set(made.metadata["choices"]) == set(known[key])


def test_values_take_the_type_of_their_key():
    arguments = keywords(ModelConfig("fedomd", params={"mix": 1, "newton_steps": "4", "ortho": "off"}))
    assert [arguments[key] for key in ("mix", "newton_steps", "ortho")] == [1.0, 4, False]
    assert isinstance(arguments["mix"], float)
    for beta in ("uniform", [1, 0.5], (1, 0.5)):
        assert keywords(ModelConfig("decoupled", params={"beta": beta}))["beta"] == (
            beta if beta == "uniform" else [1, 0.5]
        )


@pytest.mark.parametrize("name", MODELS)
def test_a_probe_moves_no_random_stream(name):
    before = torch.get_rng_state()
    probe(compose([f"model={name}"]).model)
    assert torch.equal(torch.get_rng_state(), before)

"""Networks with edge features: PyG's layers as the oracle, and the networks without edge features as their limit."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedgraph_flwr.config import ModelConfig
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import build
from fedgraph_flwr.models.edge_networks import GINEConv, PNAConv

NAMES = ["gine", "gatv2", "pna", "transformer"]
OPTIONS: list[dict[str, Any]] = [{}, {"reverse": True, "residual": True}, {"edge_updates": True}]
N, F, C, D, E = 12, 5, 3, 4, 40


def graph(num_edge_features: int = D) -> Any:
    """Directed, with parallel edges, a loop, and two nodes without edges."""
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(0, N - 2, (2, E - 3), generator=g)
    edges = torch.cat([edges, torch.tensor([[3, 1, 1], [3, 2, 2]])], dim=1)
    y = torch.arange(N) % C
    made: Any = Graph(torch.randn(N, F, generator=g), edges, y, y == 0, y == 1, y == 2, C)
    made.edge_attr = torch.randn(E, num_edge_features, generator=g)
    return made


def network(name: str, num_edge_features: int = D, layers: int = 3, **params: Any) -> Any:
    torch.manual_seed(1)
    cfg = ModelConfig(name=name, hidden=8, layers=layers, dropout=0.0, params=params)
    model = build(cfg, F, C, num_edge_features).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return model


def logits(model: Any, g: Any) -> Tensor:
    return model(model.prepare(g, dtype=torch.float64))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_edge_features_of_zero_equal_the_network_without(name, options):
    g, model, plain = graph(), network(name, **options), network(name, 0, **options)
    state = plain.state_dict()
    plain.load_state_dict({key: value for key, value in model.state_dict().items() if key in state}, strict=False)
    g.edge_attr = torch.zeros(E, D)
    zero = logits(model, g)
    g.edge_attr = torch.zeros(E, 0)
    torch.testing.assert_close(logits(plain, g), zero, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_edge_features_matter_edge_by_edge(name, options):
    """A change at one edge reaches its target, and the order of edges is irrelevant."""
    g, model = graph(), network(name, layers=1 if not options else 3, **options)
    before = logits(model, g)
    order = torch.randperm(E, generator=torch.Generator().manual_seed(2))
    shuffled = dataclasses.replace(g, edge_index=g.edge_index[:, order])
    shuffled.edge_attr = g.edge_attr[order]
    torch.testing.assert_close(logits(model, shuffled), before)
    g.edge_attr = g.edge_attr.clone()
    g.edge_attr[-1] += 1  # one of the two parallel edges from node 1 to node 2
    changed = (logits(model, g) - before).abs().sum(1) > 1e-9
    assert changed[2]
    assert options or changed.sum() == 1


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_a_gradient(name, options):
    model = network(name, **options)
    logits(model, graph()).logsumexp(1).sum().backward()
    assert [key for key, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()] == []


def test_gine_equals_pyg():
    """Whose bias for edge features is taken away."""
    from torch_geometric import nn as pyg

    g = graph()
    convolution = GINEConv(F, 7, D).double()
    first, last = convolution.mlp[0], convolution.mlp[2]
    both = nn.Sequential(nn.Linear(F, 7), nn.ReLU(), nn.Linear(7, 7)).double()
    expected = pyg.GINEConv(both, eps=0.25, edge_dim=D).double()  # initialises `both` again
    both.load_state_dict(
        {"0.weight": first.weight.T, "0.bias": first.bias, "2.weight": last.weight.T, "2.bias": last.bias}
    )
    expected.lin = nn.Linear(D, F, bias=False).double()
    expected.lin.weight = nn.Parameter(convolution.edge.T)
    with torch.no_grad():
        convolution.eps.fill_(0.25)
    x, e = g.x.double(), g.edge_attr.double()
    torch.testing.assert_close(convolution(x, g.edge_index, e), expected(x, g.edge_index, e), rtol=1e-12, atol=1e-12)


def test_pna_equals_pyg():
    from torch_geometric import nn as pyg

    g = graph()
    histogram = g.edge_index[1].bincount(minlength=N).bincount()
    levels = torch.arange(len(histogram), dtype=torch.float64)
    delta = float(((levels + 1).log() * histogram).sum() / histogram.sum())
    convolution = PNAConv(F, 7, D, delta).double()
    scalers, aggregators = ["identity", "amplification", "attenuation"], ["mean", "min", "max", "std"]
    expected = pyg.PNAConv(F, 7, aggregators, scalers, histogram, edge_dim=D).double()
    expected.aggr_module.avg_deg_log = torch.tensor(delta, dtype=torch.float64)  # was rounded to float32
    with torch.no_grad():
        pre, post = expected.pre_nns[0][0], expected.post_nns[0][0]
        expected.edge_encoder.weight.copy_(convolution.edge.T), expected.edge_encoder.bias.zero_()
        pre.bias.copy_(convolution.pre.bias)
        pre.weight.copy_(torch.cat([convolution.pre.weight, torch.eye(F)]).T)  # ours adds W_e e after W
        post.weight.copy_(convolution.post.weight.T), post.bias.copy_(convolution.post.bias)
        expected.lin.weight.copy_(torch.eye(7)), expected.lin.bias.zero_()
    x, e = g.x.double(), g.edge_attr.double()
    torch.testing.assert_close(convolution(x, g.edge_index, e), expected(x, g.edge_index, e), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "kind"), [("gatv2", "GATv2Conv"), ("transformer", "TransformerConv")])
def test_attention_is_pygs(name, kind):
    """Between the embedding and the head, on edges and, for GATv2, loops with features of zero."""
    from torch_geometric import nn as pyg

    g, model = graph(), network(name, layers=1, heads=2)
    loops = {"fill_value": 0.0} if name == "gatv2" else {}
    conv = getattr(pyg, kind)(8, 4, heads=2, edge_dim=D, **loops).double()
    conv.load_state_dict(model.layers[0][0].state_dict())
    kept = g.edge_index[0] != g.edge_index[1]  # PyG replaces stored loops
    g = dataclasses.replace(g, edge_index=g.edge_index[:, kept])
    g.edge_attr = torch.randn(int(kept.sum()), D, generator=torch.Generator().manual_seed(3))
    h = conv(model.embed(g.x.double()), g.edge_index, g.edge_attr.double())
    torch.testing.assert_close(logits(model, g), model.head(h.relu()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_reverse_messages_tell_senders_from_receivers(name):
    """With its two directions exchanged, a network equals the network with its two weights exchanged."""
    g, model = graph(), network(name, layers=1, reverse=True)
    before = logits(model, g)
    flipped = dataclasses.replace(g, edge_index=g.edge_index.flip(0))
    flipped.edge_attr = g.edge_attr
    assert not torch.allclose(logits(model, flipped), before)
    model.layers[0] = nn.ModuleList([model.layers[0][1], model.layers[0][0]])
    torch.testing.assert_close(logits(model, flipped), before)


def test_another_number_of_edge_features_is_refused():
    g = graph()
    g.edge_attr = torch.zeros(E, D + 1)
    with pytest.raises(FedGraphError, match="the model reads 4 features of each of 40 edges, but the graph has 5"):
        network("gine").prepare(g)

"""``model=`` takes any torch module with forward(x, edge_index[, edge_attr | edge_weight])."""

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_add_pool

import fedgraph_flwr as fg
from fedgraph_flwr import models
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import ModelConfig, compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import startup_notes
from tests.conftest import client_graph

PYG = "torch_geometric.nn.models"
SMALL = ["dataset=csbm", "dataset.nodes_per_client=[40,50]", "num_clients=3", "rounds=2", "checkpoint_every=0"]


class Own(nn.Module):
    """Two layers, a norm, and logits that a later function changes."""

    def __init__(self, num_features: int, num_classes: int, hidden: int = 4, steps: int = 1):
        super().__init__()
        self.out = nn.Linear(hidden, num_classes)
        self.conv = SAGEConv(num_features, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.steps = steps

    def forward(self, x, edge_index):
        h = self.norm(self.conv(x, edge_index)).relu()
        return F.log_softmax(self.out(h), dim=1)


class Weighted(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.last = GCNConv(in_channels, out_channels)

    def forward(self, x, edge_index, edge_weight=None):
        return self.last(x, edge_index, edge_weight)


class Twice(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.last = GCNConv(in_channels, in_channels)
        self.unused = nn.Linear(1, 1)

    def forward(self, x, edge_index):
        return self.last(self.last(x, edge_index), edge_index)


class NoSizes(nn.Module):
    def __init__(self, depth):
        super().__init__()

    def forward(self, x, edge_index):
        return x


class OfGraphs(nn.Module):
    def forward(self, x, edge_index, batch):
        return global_add_pool(x, batch)


def built(name, features=5, classes=3, edges=0, **params):
    return models.build(ModelConfig(name, hidden=8, layers=2, dropout=0.0, params=params), features, classes, edges)


@pytest.mark.parametrize(
    ("name", "params", "head"),
    [
        (f"{PYG}:GraphSAGE", {}, "convs.1"),
        (f"{PYG}:GAT", {"heads": 2, "v2": True}, "convs.1"),
        (f"{PYG}:GIN", {"jk": "cat"}, "lin"),
        (f"{__name__}:Own", {"head": "out"}, "out"),
    ],
)
def test_both_halves_equal_the_module(name, params, head):
    torch.manual_seed(0)
    model, graph = built(name, **params).eval(), client_graph(0)
    inputs = model.prepare(graph)
    assert model.head == head
    h = model.encode(inputs)
    torch.testing.assert_close(model(inputs), model.net(graph.x, graph.edge_index), rtol=0, atol=0)
    torch.testing.assert_close(model.classify(h, inputs), model(inputs), rtol=0, atol=0)
    assert not torch.equal(model.classify(h + 1, inputs), model(inputs))
    grads = torch.autograd.grad(model.classify(h, inputs).square().sum(), list(model.parameters()))
    whole = torch.autograd.grad(model(inputs).square().sum(), list(model.parameters()))
    for mine, other in zip(grads, whole, strict=True):
        torch.testing.assert_close(mine, other)
    assert set(model.head_names()) == {n for n in model.state_dict() if n.startswith(f"net.{head}.")} != set()


def test_local_steps_equal_a_plain_loop():
    """Adam in float64: the same parameters as PyG's module in a loop by hand."""
    overrides = [f"model={PYG}:GraphSAGE", "model.dropout=0", "dtype=float64", "train.local_steps=3"]
    client = GraphClient(compose(overrides), client_graph(0))
    graph, net = client_graph(0), client.model.kind(**client.model.arguments).double()
    net.load_state_dict({name: value.clone() for name, value in client.model.net.state_dict().items()})
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(3):
        optimizer.zero_grad()
        logits = net(graph.x.double(), graph.edge_index)
        F.cross_entropy(logits[graph.train_mask], graph.y[graph.train_mask]).backward()
        optimizer.step()
    client.train()
    for name, value in net.state_dict().items():
        torch.testing.assert_close(client.model.net.state_dict()[name], value, rtol=0, atol=1e-12)


def with_edges(width):
    graph = client_graph(0)
    return replace(graph, edge_attr=torch.rand(graph.num_edges, width))


def test_edge_features_are_read_by_their_names():
    graph = with_edges(2)
    model = built(f"{PYG}:GAT", edges=2).eval()
    inputs = model.prepare(graph)
    expected = model.net(graph.x, graph.edge_index, edge_attr=graph.edge_attr)
    torch.testing.assert_close(model(inputs), expected, rtol=0, atol=0)
    assert isinstance(model.net.convs[0], GATConv)
    assert not torch.equal(expected, model(model.prepare(with_edges(2))))
    weighted, one = built(f"{__name__}:Weighted", edges=1), with_edges(1)
    torch.testing.assert_close(
        weighted(weighted.prepare(one)), weighted.net(one.x, one.edge_index, one.edge_attr[:, 0]), rtol=0, atol=0
    )
    for attr in (-one.edge_attr, torch.rand(one.num_edges, 2)):
        with pytest.raises(FedGraphError, match="reads one weight of each edge, which must not be negative"):
            weighted.prepare(replace(one, edge_attr=attr))


def promised(in_channels: int, out_channels: int) -> torch.nn.Module:
    """A function whose annotation hides the ``forward`` of what it returns."""
    return torch.nn.Linear(in_channels, out_channels)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("collections:OrderedDict", {}, "is not a class of torch modules"),
        ("torch.nn:Linear", {}, "expected forward(x, edge_index)"),
        (f"{__name__}:OfGraphs", {}, "got forward(x, edge_index, batch)"),
        (f"{__name__}:NoSizes", {}, "no parameter in_channels, a graph's size"),
        (f"{PYG}:PNA", {}, "set them by model.NAME="),
        (f"{PYG}:GraphSAGE", {"jkk": "cat"}, "unexpected keyword argument 'jkk'"),
        (f"{PYG}:GraphSAGE", {"num_layers": 3}, "model.num_layers follows from"),
        (f"{PYG}:GraphSAGE", {"head": "nowhere"}, "expected one of dropout, act, convs"),
        (f"{__name__}:promised", {}, "annotate it with your own class, def promised("),
        (f"{__name__}:Own", {"step": 2}, "steps"),
        (f"{__name__}:Own", {"steps": "many"}, "steps"),
    ],
)
def test_what_cannot_be_a_model_is_refused(name, params, message):
    with pytest.raises(FedGraphError, match=re.escape(message)):
        built(name, **params)


@pytest.mark.parametrize(
    ("model", "hidden", "note"),
    [
        (Own, 64, "Own is built with model.hidden=64, instead of its own defaults 4"),
        (Own, 4, ""),
        (Weighted, 64, ""),
    ],
)
def test_defaults_that_keys_replace_are_named(model, hidden, note):
    cfg = compose([f"model={__name__}:{model.__name__}", f"model.hidden={hidden}"])
    named = [line for line in startup_notes(cfg) if "its own defaults" in line]
    assert [line.endswith(note) for line in named] == ([True] if note else [])
    assert [line for line in startup_notes(compose([])) if "its own defaults" in line] == []


def test_a_head_that_is_called_twice_or_never_is_refused():
    model, graph = built(f"{__name__}:Twice", classes=5), client_graph(0)
    with pytest.raises(FedGraphError, match="unused is not called once with hidden features"):
        model.encode(model.prepare(graph))
    model = built(f"{__name__}:Twice", classes=5, head="last")
    with pytest.raises(FedGraphError, match="is not called once with hidden features"):
        model.encode(model.prepare(graph))


@pytest.mark.parametrize(
    "overrides",
    [
        ["strategy=fedper"],
        ["strategy=fedproto"],
        ["strategy=moon"],
        ["task=links"],
        ["task=edges", "dataset=payments", "dataset.accounts=200"],
        ["task=graphs", "dataset=cycles"],
    ],
    ids=" ".join,
)
def test_methods_and_tasks_take_it(overrides, tmp_path):
    small = SMALL if len(overrides) == 1 else SMALL[2:]
    run = fg.run(f"model={PYG}:GraphSAGE", *small, *overrides, out=str(tmp_path / "run"))
    assert run.summary["failures"] == {}
    assert (run.rounds["train_loss"] > 0).all()


def test_it_predicts_and_exports(tmp_path):
    """The export checks itself against the model; its file needs torch and PyG only."""
    run = fg.run(f"model={PYG}:GraphSAGE", *SMALL, out=str(tmp_path / "run"))
    run.export(tmp_path / "folder")
    text = (tmp_path / "folder" / "model.py").read_text()
    assert "from torch_geometric.nn.models.basic_gnn import GraphSAGE" in text
    assert "fedgraph_flwr" not in text.replace("`fedgraph-flwr", "")
    assert len(run.predict(client=0).ids) >= 40


class OfData(nn.Module):
    """As in PyG's tutorials: ``forward(data)``."""

    def __init__(self, nfeat, nhid, nclass):
        super().__init__()
        self.first, self.last = GCNConv(nfeat, nhid), GCNConv(nhid, nclass)

    def forward(self, data):
        return self.last(self.first(data.x, data.edge_index).relu(), data.edge_index)


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = GCNConv(64, 2)

    def forward(self, x, edge_index):
        return self.last(x, edge_index)


def fixed():
    return Fixed()


def sized(in_c, out_c):
    return OfData(in_c, 8, out_c)


NAMES = [
    ("nfeat", "nhid", "nclass"),
    ("num_node_features", "hidden_channels", "num_classes"),
    ("in_feats", "h_feats", "num_classes"),
    ("n_features", "n_hidden", "n_classes"),
    ("in_dim", "hidden_dim", "out_dim"),
    ("in_c", "hidden", "out_c"),
    ("input_dim", "hid_dim", "output_dim"),
    ("input_size", "hidden_size", "output_size"),
]


@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_usual_names_of_sizes(names, monkeypatch):
    features, hidden, outputs = names
    body = f"def __init__(self, {features}, {hidden}, {outputs}):\n    OfData.__init__(self, {features}, {hidden}, {outputs})"
    space = {"OfData": OfData}
    exec(body, space)
    kind = type("Named", (OfData,), {"__init__": space["__init__"], "__module__": __name__})
    monkeypatch.setitem(globals(), "Named", kind)
    model = built(f"{__name__}:Named")
    assert (model.arguments[features], model.arguments[hidden], model.arguments[outputs]) == (5, 8, 3)


@pytest.mark.parametrize("model", [OfData, Fixed, fixed, sized])
def test_networks_as_people_write_them(model, tmp_path):
    run = fg.run(*SMALL, model=model, out=str(tmp_path / "run"), progress=False)
    assert run.summary["rounds"] == 2
    assert not run.summary["failures"]


def test_a_network_that_does_not_fit_the_graph_says_what_to_add(tmp_path):
    with pytest.raises(FedGraphError, match="add in_channels and out_channels to its parameters"):
        fg.run(*SMALL, "dataset.features=7", model=Fixed, out=str(tmp_path / "run"), progress=False)


def test_outputs_of_another_width_are_refused():
    class Wide(Weighted):
        def __init__(self, in_channels, out_channels):
            super().__init__(in_channels, out_channels + 1)

    model = models.wrapped.wrapper(Wide)(5, 3, hidden=4, layers=2, dropout=0.0)
    with pytest.raises(FedGraphError, match=r"Wide returned \[\d+, 4\], expected \[\d+, 3\]"):
        model(model.prepare(client_graph(0)))


def test_forward_of_a_graph_is_not_exported():
    with pytest.raises(FedGraphError, match=r"its forward reads a graph, expected forward\(x, edge_index\)"):
        built(f"{__name__}:OfData").plain()

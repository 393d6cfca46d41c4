"""What every network of `MODELS` must hold: two halves, a head that can be asked for, and no dependence on nodes' order."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from fedgraph_flwr.config import compose
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.data.hetero import HeteroClientGraph
from fedgraph_flwr.models import MODELS, Model, Stack, build
from fedgraph_flwr.models.fedstruct import StructureInputs
from tests.conftest import client_graph
from tests.typed_graphs import typed_client

N, H = 16, 8
TYPED = [name for name in MODELS if locate(MODELS[name]).capabilities.heterogeneous]
PARTED = [name for name in MODELS if locate(MODELS[name]).head_prefixes]  # others are a vector per node
STACKS = [name for name in MODELS if issubclass(locate(MODELS[name]), Stack)]
VARIANTS = [
    *([name] for name in PARTED),
    ["sage", "head=true", "input_norm=true"],
    ["gcn", "norm=batch"],
    ["decoupled", "input_norm=true"],
    ["fedspa", "profile=acm"],
    ["fedspa", "profile=acm_sep"],
    ["fedstruct", "beta=learned", "structure_hops=2"],
    ["fedstruct", "structure_mlp=false"],
    ["fedhero", "dual_channel=false"],
    ["rgcn", "bases=0", "profile=paper", "self_loop=true"],
    ["simple_hgn", "bases=0", "profile=paper"],
]


def made(name: str, *overrides: str, layers: int = 3, graph: Any = None) -> tuple[Model, Any]:
    """A network with every parameter random, in float64, and its inputs; FedStruct's know the structure branch."""
    cfg = compose([f"model={name}", "model.hidden=8", f"model.layers={layers}", "model.dropout=0.5", *overrides]).model
    graph = graph or (typed_client(features=True) if name in TYPED else client_graph(0))
    torch.manual_seed(0)
    model = build(cfg, graph.num_features, graph.num_classes).double()
    inputs = model.prepare(graph, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    if isinstance(inputs, StructureInputs):
        hops = int(cfg.params["structure_hops"]) if cfg.params["beta"] == "learned" else 1
        inputs.rows = torch.rand(hops * N, N + 2, dtype=torch.float64)
        inputs.s = torch.randn(N + 2, model.structure_width, dtype=torch.float64)
    return model, inputs


def variant(name: str, *keys: str, layers: int = 3) -> tuple[Model, Any]:
    return made(name, *(f"model.{key}" for key in keys), layers=layers)


def reached(output: Tensor, model: Model) -> set[str]:
    """The parameters that an output depends on."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    if not output.requires_grad:
        return set()
    slopes = torch.autograd.grad(
        (output * torch.randn_like(output)).sum(), parameters, retain_graph=True, allow_unused=True
    )
    return {name for name, slope in zip(names, slopes, strict=True) if slope is not None}


@pytest.mark.parametrize("given", VARIANTS, ids=" ".join)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_network_is_hidden_features_and_a_head_that_share_no_parameter(given, layers):
    if given[0] == "fedomd" and layers == 1:
        pytest.skip("it has two layers at least")
    model, inputs = variant(*given, layers=layers)
    torch.manual_seed(1)
    logits = model.train()(inputs)
    torch.manual_seed(1)
    h = model.encode(inputs)
    assert torch.equal(model.classify(h, inputs), logits)

    features = isinstance(h, Tensor)  # else X as it is stored
    given_h = h.detach().requires_grad_() if features else h
    outcome = model.classify(given_h, inputs)
    head = set(model.head_names())
    assert reached(outcome, model) == head
    assert reached(h, model) == {name for name, _ in model.named_parameters()} - head if features else True
    assert not features or torch.autograd.grad(outcome.square().sum(), given_h)[0].abs().sum() > 0


@pytest.mark.parametrize("given", VARIANTS, ids=" ".join)
def test_the_word_head_stands_for_every_networks_head(given):
    model, _ = variant(*given)
    head = model.head_names()
    names = [name for name in model.shared([""]) if not name.startswith(model.private)]
    assert 0 < len(head) < len(names)
    for word in ("head", "head."):
        assert list(model.shared([word])) == head
        assert list(model.shared([""], private=[word])) == [name for name in names if name not in head]
    assert not model.shared(["head"], private=["head"])


@pytest.mark.parametrize(
    ("name", "layers", "head"),
    [
        ("gcn", 3, {"head.weight", "head.bias"}),
        ("gcn", 1, {"head.weight", "head.bias"}),
        ("sage", 2, {"head.itself.weight", "head.itself.bias", "head.neighbours.weight"}),
        ("fedhero", 2, {"classifier.weight", "classifier.bias"}),
        ("rgcn", 2, {"common.decoder.weight", "common.decoder.bias"}),
    ],
)
def test_heads_by_name(name, layers, head):
    assert set(made(name, layers=layers)[0].head_names()) == head


def test_private_parameters_never_travel():
    """The network's own ones, and those that a method names."""
    model, _ = made("rgcn")
    assert any(name.startswith("entities.") for name in model.state_dict())
    assert {name.split(".")[0] for name in model.shared([""])} == {"bases", "coefficients", "common"}
    assert {name.split(".")[0] for name in model.shared(["bases", "common", "entities"], ["common."])} == {"bases"}


@pytest.mark.parametrize("name", [name for name in PARTED if name not in TYPED])
def test_renaming_nodes_renames_logits_and_hidden_features(name):
    graph = client_graph(0)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))  # new node i is old node order[i]
    nodes = {key: getattr(graph, key)[order] for key in ("x", "y", "train_mask", "val_mask", "test_mask", "node_id")}
    renamed = dataclasses.replace(graph, edge_index=order.argsort()[graph.edge_index], **nodes)
    passes = []
    for g in (graph, renamed):
        model, inputs = made(name, graph=g)
        if isinstance(inputs, StructureInputs):
            inputs.rows = None  # not the network's to compute
        model.eval()
        passes.append((model.encode(inputs), model(inputs)))
    for before, after in zip(*passes, strict=True):
        torch.testing.assert_close(after, before[order])


@pytest.mark.parametrize("name", TYPED)
def test_renaming_typed_nodes_renames_logits(name):
    graph = typed_client(features=True)
    generator = torch.Generator().manual_seed(1)
    order = {kind: torch.randperm(n, generator=generator) for kind, n in graph.counts.items()}
    place = {kind: new.argsort() for kind, new in order.items()}
    renamed: HeteroClientGraph = dataclasses.replace(
        graph,
        edges={(a, r, b): torch.stack([place[a][e[0]], place[b][e[1]]]) for (a, r, b), e in graph.edges.items()},
        x={kind: x[order[kind]] for kind, x in graph.x.items()},
        **{key: getattr(graph, key)[order[graph.target]] for key in ("y", "train_mask", "val_mask", "test_mask")},
    )
    logits = []
    for g in (graph, renamed):
        model, inputs = made(name, "model.type_embedding=decoupled", graph=g)
        logits.append(model.eval()(inputs))
    torch.testing.assert_close(logits[1], logits[0][order[graph.target]])
    assert not torch.allclose(logits[1], logits[0])


@pytest.mark.parametrize(
    "given", [[name] for name in STACKS] + [["sage", "head=true"], ["gcn", "norm=layer"]], ids=" ".join
)
def test_hidden_features_can_be_changed_after_each_hidden_layer(given):
    """Once a layer, in their order, after the activation and before dropout; what comes back goes on."""
    model, inputs = variant(*given)
    plain = model.eval().hidden(inputs)
    seen: list[tuple[int, Tensor]] = []

    def watch(h: Tensor, index: int) -> Tensor:
        seen.append((index, h))
        return h

    model.after_hidden = watch
    h = model.train().encode(inputs)
    assert [index for index, _ in seen] == list(range(len(model.layers))) == list(range(len(plain)))
    assert all(h.shape == (N, H) for _, h in seen)
    assert torch.equal(h[:, :H], seen[-1][1])
    assert h.shape[1] == H
    model.after_hidden = lambda h, index: 3 * h if index == len(plain) - 1 else h
    torch.testing.assert_close(model.eval().encode(inputs)[:, :H], 3 * plain[-1])
    model.after_hidden = None
    torch.testing.assert_close(model.encode(inputs)[:, :H], plain[-1])

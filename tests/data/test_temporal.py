"""Splits by time: no stage reads an edge of a later one."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import SplitConfig, compose
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.split import split_graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import client_class
from fedgraph_flwr.partition.clients import cut, pool

N, E, FIRST, SECOND = 40, 300, 500, 750


def graph(seed: int = 0) -> Graph:
    """Edges at random times from 0 to 999, so that some nodes appear late; the last node has no edge."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.randint(0, 1000, (E,), generator=generator)
    oldest = torch.where(time <= FIRST, 20, torch.where(time <= SECOND, 30, N - 1))  # of the nodes that exist by then
    edges = (torch.rand(2, E, generator=generator) * oldest).long()
    y = torch.arange(N) % 3
    none = torch.zeros(N, dtype=torch.bool)
    x, attr = torch.randn(N, 4, generator=generator), torch.randn(E, 2, generator=generator)
    return Graph(x, edges, y, none, none, none, 3, name="toy", edge_attr=attr, edge_time=time)


def split(g: Graph, **keys: Any) -> Graph:
    return split_graph(g, SplitConfig(kind="temporal", **({"until": [FIRST, SECOND]} | keys)), seed=0)


def with_noise_after(g: Graph, time: int) -> Graph:
    """The graph with every edge after a time replaced by another at a later time: ends, features and number."""
    generator = torch.Generator().manual_seed(7)
    kept = (g.edge_time <= time).nonzero().view(-1)
    more = 400
    made = g.with_edges(g.edge_index[:, kept], kept)
    return replace(
        made,
        edge_index=torch.cat([made.edge_index, torch.randint(0, N, (2, more), generator=generator)], dim=1),
        edge_attr=torch.cat([made.edge_attr, 100 * torch.randn(more, 2, generator=generator)]),
        edge_time=torch.cat([made.edge_time, torch.randint(time + 1, 2000, (more,), generator=generator)]),
    )


def test_edges_and_nodes_have_their_stage():
    g = split(graph())
    assert torch.equal(g.edge_split, (g.edge_time > FIRST).to(torch.int8) + (g.edge_time > SECOND).to(torch.int8))
    for node in range(N):
        times = g.edge_time[(g.edge_index == node).any(dim=0)]
        expected = [False] * 3 if not len(times) else [
            bool(times.min() <= FIRST), FIRST < int(times.min()) <= SECOND, bool(times.min() > SECOND)
        ]  # fmt: skip
        assert [bool(mask[node]) for mask in (g.train_mask, g.val_mask, g.test_mask)] == expected
    assert not any(bool(mask[N - 1]) for mask in (g.train_mask, g.val_mask, g.test_mask))
    assert all(bool(mask.any()) for mask in (g.train_mask, g.val_mask, g.test_mask))


def test_cuts_are_times_so_that_ties_are_of_one_stage():
    g = graph()
    g = replace(g, edge_time=g.edge_time // 100)
    staged_graph = split_graph(g, SplitConfig(kind="temporal"), seed=0)
    for time in range(10):
        assert staged_graph.edge_split[g.edge_time == time].unique().numel() == 1
    assert float((staged_graph.edge_split == 0).float().mean()) == pytest.approx(0.6, abs=0.15)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"until": [5]}, "split.until must be two ascending times"),
        ({"until": [5, 4]}, "split.until must be two ascending"),
    ],
)
def test_impossible_times_are_refused(keys, message):
    with pytest.raises(FedGraphError, match=message):
        split(graph(), **keys)


def test_edges_without_times_are_refused():
    with pytest.raises(FedGraphError, match=r"split\.kind=temporal needs a time for each edge"):
        split(replace(graph(), edge_time=torch.zeros(0, dtype=torch.int64)))


def client(g: Graph, model: str, parts: int = 1, strategy: str = "fedavg") -> GraphClient:
    """The first client of a graph in float64, with its gradient computed."""
    cfg = compose([f"strategy={strategy}", f"model={model}", "model.hidden=8", "dtype=float64"])
    members = [torch.arange(N)[torch.arange(N) % parts == i] for i in range(parts)]
    clients = cut(g, members)
    made = client_class(cfg)(cfg, pool(clients) if parts > 1 else clients[0])
    made.model.train()
    torch.manual_seed(0)
    made.loss().backward()
    return made


def gradients(of: GraphClient) -> list[torch.Tensor]:
    return [p.grad for p in of.model.parameters() if p.grad is not None]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("model", ["gine", "gcn", "sage", "gatv2"])
def test_training_reads_no_edge_after_the_cut(model, parts):
    """With everything after the first time replaced by noise, gradients have the same bits and scores differ."""
    g = split(graph())
    noise = split(with_noise_after(g, FIRST))
    masks = {key: getattr(g, key) for key in ("train_mask", "val_mask", "test_mask")}
    before, after = client(g, model, parts), client(replace(noise, **masks), model, parts)
    for a, b in zip(gradients(before), gradients(after), strict=True):
        assert torch.equal(a, b)
    one, two = before.predict(), after.predict()
    assert torch.equal(one[g.train_mask], two[g.train_mask])
    assert not torch.allclose(one[g.val_mask], two[g.val_mask])
    assert not torch.allclose(one[g.test_mask], two[g.test_mask])


@pytest.mark.parametrize("model", ["gine", "gcn"])
def test_validation_reads_no_edge_after_the_second_time(model):
    g = split(graph())
    noise = split(with_noise_after(g, SECOND))
    masks = {key: getattr(g, key) for key in ("train_mask", "val_mask", "test_mask")}
    one, two = client(g, model).predict(), client(replace(noise, **masks), model).predict()
    assert torch.equal(one[g.train_mask | g.val_mask], two[g.train_mask | g.val_mask])
    assert not torch.allclose(one[g.test_mask], two[g.test_mask])


def test_each_stage_reads_all_edges_up_to_it():
    """Validation scores are those of a graph that ends at the second time, test scores those of the whole graph."""
    g = split(graph())
    made = client(g, "gine")
    whole = cut(replace(g, edge_split=torch.zeros(0, dtype=torch.int8)), [torch.arange(N)])[0]
    kept = (g.edge_time <= SECOND).nonzero().view(-1)
    for nodes, seen in ((g.val_mask, whole.with_edges(whole.edge_index[:, kept], kept)), (g.test_mask, whole)):
        made.model.eval()
        with torch.no_grad():
            expected = made.model(made.model.prepare(seen, dtype=torch.float64))
        assert torch.equal(made.predict()[nodes], expected[nodes])


@pytest.mark.parametrize("strategy", ["fedproto", "fedsage"])
def test_methods_with_inputs_of_their_own_are_refused(strategy):
    with pytest.raises(
        FedGraphError, match=f"strategy={strategy} with task=nodes does not support edges that only later"
    ):
        client(split(graph()), "gcn", strategy=strategy)


def test_a_run_with_a_temporal_split(run_payments):
    summary = run_payments("split.kind=temporal", "split.until=[86400,172800]", "model=gine")
    assert summary["rounds"] == 2


@pytest.fixture
def run_payments(tmp_path, monkeypatch):
    from fedgraph_flwr.launch.runner import run

    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))
    small = ["dataset.accounts=300", "dataset.background=1500", "dataset.per_kind=2", "num_clients=3", "model.hidden=8"]

    def call(*overrides: str) -> Any:
        return run(compose(["dataset=payments", *small, "rounds=2", f"out={tmp_path / 'run'}", *overrides]))

    return call

"""Features, times and labels of edges on their way into client files, and back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedgraph_flwr.config import DatasetConfig, compose
from fedgraph_flwr.data import datasets
from fedgraph_flwr.data.checks import check_file
from fedgraph_flwr.data.cleaning import both_directions, clean, subgraph
from fedgraph_flwr.data.edge_flip import flip_edges
from fedgraph_flwr.data.graph import EDGE_FIELDS, ClientGraph, Graph, read_header
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition.clients import cut, pool
from tests.conftest import client_graph

N, E = 30, 200


def graph(data: bool = True) -> Graph:
    """A multigraph with loops whose edges' data is a function of their number."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, N, (2, E), generator=generator)
    y = torch.arange(N) % 3
    number = torch.arange(E)
    base = Graph(torch.randn(N, 4, generator=generator), edges, y, y == 0, y == 1, y == 2, 3, name="toy")
    edge_values = {
        "edge_attr": torch.stack([number, -number], 1).float(),
        "edge_time": 1000 + number,
        "edge_y": number % 2,
    }
    return replace(base, **edge_values, edge_split=(number % 3).to(torch.int8)) if data else base


def listed(edge_index: Tensor, *columns: Tensor) -> list[tuple[Any, ...]]:
    """Edges with their data, sorted."""
    parts = [edge_index[0].tolist(), edge_index[1].tolist(), *(column.tolist() for column in columns)]
    return sorted(zip(*[[tuple(v) if isinstance(v, list) else v for v in part] for part in parts], strict=True))


def of(g: Graph) -> list[tuple[Any, ...]]:
    return listed(g.edge_index, *(getattr(g, key) for key in EDGE_FIELDS))


def parts(clients: int) -> list[Tensor]:
    return [torch.arange(N)[torch.arange(N) % clients == i] for i in range(clients)]


def test_kept_and_cut_edges_carry_their_own_data():
    whole = graph()
    places = dict(enumerate(whole.edge_index.T.tolist()))
    for client in cut(whole, parts(3)):
        check_file(client, "client")
        for edges, prefix in (
            (client.node_id[client.edge_index], ""),
            (torch.stack([client.node_id[client.cut_out[0]], client.cut_out[1]]), "cut_out_"),
            (torch.stack([client.cut_in[1], client.node_id[client.cut_in[0]]]), "cut_in_"),
        ):
            number = getattr(client, f"{prefix}edge_time") - 1000
            assert [places[n] for n in number.tolist()] == edges.T.tolist()
            assert torch.equal(getattr(client, f"{prefix}edge_attr"), whole.edge_attr[number])
            assert torch.equal(getattr(client, f"{prefix}edge_y"), whole.edge_y[number])
            assert torch.equal(getattr(client, f"{prefix}edge_split"), whole.edge_split[number])


@pytest.mark.parametrize("clients", [1, 3])
def test_pool_is_the_inverse_of_cut(clients):
    whole = graph()
    assert of(pool(cut(whole, parts(clients)))) == of(whole)


def test_clients_that_share_nodes_are_not_pooled_with_edge_data():
    shared = [torch.arange(0, 20), torch.arange(10, N)]
    assert pool(cut(graph(data=False), shared)).num_nodes == N
    with pytest.raises(FedGraphError, match="clients that share nodes cannot be pooled"):
        pool(cut(graph(), shared))


def test_data_of_edges_changes_nothing_else():
    for with_data, without in zip(cut(graph(), parts(3)), cut(graph(data=False), parts(3)), strict=True):
        plain = replace(with_data, **{key: getattr(without, key) for key in vars(without) if "edge_" in key})
        for key in vars(without):
            mine, its = getattr(plain, key), getattr(without, key)
            assert torch.equal(mine, its) if isinstance(mine, Tensor) else mine == its


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("data", [True, False])
def test_files_keep_every_edge_in_its_place(tmp_path, data, ordered):
    whole = graph(data)
    if ordered:
        order = whole.edge_index[0].argsort(stable=True)
        whole = whole.with_edges(whole.edge_index[:, order], order)
    client = cut(whole, parts(2))[0]
    client.save(tmp_path / "client.safetensors")
    again = ClientGraph.load(tmp_path / "client.safetensors")
    for key in vars(client):
        mine, its = getattr(client, key), getattr(again, key)
        assert torch.equal(mine, its) if isinstance(mine, Tensor) else mine == its
    with safe_open(tmp_path / "client.safetensors", "pt") as file:
        stored = set(file.keys())
    assert ("edge_index#indptr" in stored) == ordered == ("edge_index" not in stored)
    assert ("edge_attr" in stored) == data
    assert read_header(tmp_path / "client.safetensors")[0]["edge_index"] == tuple(client.edge_index.shape)


def test_a_client_without_edges_keeps_the_width_of_their_features(tmp_path):
    lonely = cut(graph(), [torch.tensor([0]), torch.tensor([1])])[0]
    lonely = lonely.with_edges(lonely.edge_index[:, :0], torch.zeros(0, dtype=torch.int64))
    check_file(lonely, "client").save(tmp_path / "client.safetensors")
    assert ClientGraph.load(tmp_path / "client.safetensors").num_edge_features == 2


def test_a_single_edge_is_stored_from_any_memory_layout(tmp_path):
    edges = torch.tensor([[1, 2], [0, 0]]).T[:, :1]  # strides of the two rows differ from those of a new tensor
    single = replace(client_graph(0), edge_index=edges)
    single.save(tmp_path / "client.safetensors")
    assert torch.equal(ClientGraph.load(tmp_path / "client.safetensors").edge_index, edges)


def rewritten(path: Path, version: str, **extra: Tensor) -> None:
    """Write a file again as another version, with fields as they were stored before."""
    with safe_open(path, "pt") as file:
        header, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    header = {key: value for key, value in header.items() if key != "digest"} | {"format": version}
    save_file(tensors | extra, path, header)


def test_version_1_is_read_and_a_later_field_is_an_error(tmp_path):
    path = tmp_path / "client.safetensors"
    client = cut(graph(data=False), parts(2))[0]
    client.save(path)
    rewritten(path, "1")
    assert torch.equal(ClientGraph.load(path).edge_index, client.edge_index)
    rewritten(path, "2", edge_curvature=torch.zeros(3))
    with pytest.raises(FedGraphError, match="has field 'edge_curvature', which this version of fedgraph-flwr does not"):
        ClientGraph.load(path)
    rewritten(path, "3")
    with pytest.raises(FedGraphError, match="has format version '3', expected '1' or '2'"):
        ClientGraph.load(path)


@pytest.mark.parametrize("indptr", [[0, 3, 2, 4], [1, 2, 3, 4], [0, 1, 2, 3]])
def test_inconsistent_compressed_edges_are_refused(tmp_path, indptr):
    path = tmp_path / "client.safetensors"
    client_graph(0).save(path)
    rewritten(path, "2", **{"edge_index#indptr": torch.tensor(indptr), "edge_index#indices": torch.arange(4)})
    with pytest.raises(FedGraphError, match="compressed edges are inconsistent"):
        ClientGraph.load(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("edge_attr", torch.zeros(E - 1, 2), "edge_attr must be torch.float32"),
        ("edge_attr", torch.full((E, 2), torch.nan), "edge_attr must be finite; edge 0"),
        ("edge_time", torch.zeros(E), "edge_time must be torch.int64"),
        ("edge_y", torch.full((E,), -2), r"edge_y must be in -1\.\.; place 0 has -2"),
        ("edge_split", torch.full((E,), 3, dtype=torch.int8), "edge_split must be in 0..2"),
        ("targets", torch.zeros(N - 1, 1), "targets must be"),
        ("graph_id", torch.full((N,), -1), "graph_id must be in"),
    ],
)
def test_fields_that_do_not_fit_are_refused(key, value, message):
    with pytest.raises(FedGraphError, match=message):
        check_file(replace(graph(), **{key: value}), "client.safetensors")


def test_cleaning_carries_data_with_each_edge():
    g = graph()
    reversed_ = clean(g, DatasetConfig("toy", reversed=True))
    assert of(reversed_) == listed(g.edge_index.flip(0), *(getattr(g, key) for key in EDGE_FIELDS))
    proper = clean(g, DatasetConfig("toy", remove_self_loops=True))
    assert of(proper) == [edge for edge in of(g) if edge[0] != edge[1]]
    keep = torch.arange(N) >= 10
    assert of(subgraph(g, keep)) == [(a - 10, b - 10, *d) for a, b, *d in of(g) if min(a, b) >= 10]
    both = both_directions(g)
    assert of(both) == sorted(of(g) + [(b, a, *d) for a, b, *d in of(g) if a != b])
    assert bool((both.edge_index[0].diff() >= 0).all())
    with pytest.raises(FedGraphError, match=r"dataset\.edge_flip=0\.1 replaces edges by random ones"):
        flip_edges(g, 0.1, 0)


def test_a_stage_reads_only_edges_up_to_it():
    client = cut(graph(), parts(2))[1]
    for stage in range(3):
        seen = client.until(stage)
        check_file(seen, "client")
        assert of(seen) == [edge for edge in of(client) if edge[-1] <= stage]
        assert int(seen.cut_in_edge_split.max()) == int(seen.cut_out_edge_split.max()) == stage
        assert seen.cut_in.size(1) == int((client.cut_in_edge_split <= stage).sum())
    assert cut(graph(data=False), parts(2))[1].until(0).edge_index.size(1) == client.edge_index.size(1)


def test_payments_are_a_dataset_whose_banks_are_clients():
    cfg = compose(["dataset=payments", "num_clients=4", "dataset.windows=[1, 7]", "dataset.ports=true"])
    whole = datasets.load(cfg.dataset, seed=3, num_clients=4)
    assert isinstance(whole, Graph)
    check_file(whole, "payments")
    assert whole.num_edge_features == 1 + 4 + 2 * 4 + 2
    assert cfg.partition.name == "planted"
    assert int(whole.group.max()) == 3
    assert json.dumps(whole.y.unique().tolist()) == "[0, 1]"


def test_a_bank_counts_only_payments_that_touch_it():
    """With payments between other banks left out, the counts of its own payments are the same."""
    keys = {"accounts": 300, "background": 3000, "per_kind": 5, "windows": [3.0]}
    bank_graph, everyone = (
        datasets.load(DatasetConfig("payments", params=keys | {"counts": counts}), seed=0, num_clients=3)
        for counts in ("bank", "all")
    )
    assert isinstance(bank_graph, Graph)
    assert isinstance(everyone, Graph)
    from fedgraph_flwr.data.edge_columns import window_counts
    from fedgraph_flwr.data.payments import DAY

    bank = bank_graph.group[bank_graph.edge_index]
    for b in range(3):
        seen = (bank == b).any(dim=0)
        source, target = bank_graph.edge_index[:, seen].numpy()
        counts = window_counts(source, target, bank_graph.edge_time[seen].numpy(), 3 * DAY)
        sent = (bank[0] == b)[seen]
        torch.testing.assert_close(
            bank_graph.edge_attr[seen][sent][:, 5:], torch.from_numpy(counts).float().log1p()[sent]
        )
    assert bool((bank_graph.edge_attr <= everyone.edge_attr).all())
    assert not torch.equal(bank_graph.edge_attr, everyone.edge_attr)

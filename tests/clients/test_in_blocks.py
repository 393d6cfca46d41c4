"""Passes over a whole graph in blocks: equal to the pass on prepared matrices, without preparing any."""

import shutil
import tempfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgraph_flwr import models
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.scoring import infer
from fedgraph_flwr.config import compose
from fedgraph_flwr.data import mapped
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import in_blocks, layers
from fedgraph_flwr.numerics.blocks import GraphInputs, MatrixNeighbours, row_blocks
from fedgraph_flwr.numerics.sparse import SparseMatrix
from fedgraph_flwr.partition import store
from tests.clients.sampled_models import EVERY, MODELS, built

DOUBLE = {"dtype": torch.float64}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of a few nodes, and one node with more edges than a block has."""
    monkeypatch.setattr(in_blocks, "BLOCK", 12)


@pytest.mark.parametrize("name", [*MODELS, "sage out", "decoupled uniform", "mlp norm"])
def test_blocks_equal_the_whole_pass(name, graph):
    more = {
        "sage out": {"out_neighbours": True, "norm": "layer"},
        "decoupled uniform": {"beta": "uniform", "hops": 3},
        "mlp norm": {"input_norm": True},
    }.get(name, {})
    model = built(name if name in MODELS else name.split()[0], graph, 3, **more).eval()
    with torch.no_grad():
        expected = model(model.prepare(graph, **DOUBLE))
        logits = model(model.graph_inputs(graph, **DOUBLE))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)


def test_one_layer_and_sparse_features(graph):
    x = torch.zeros(30, 40)
    x[torch.arange(30), torch.arange(30) % 40] = 1
    sparse = replace(graph, x=x)
    for depth in (1, 2):
        client = GraphClient(compose([*EVERY[:2], f"train.fanout={[-1] * depth}", f"model.layers={depth}"]), sparse)
        assert isinstance(client.inputs.x, SparseMatrix)
        with torch.no_grad():
            expected = client.model.eval()(client.model.prepare(sparse))
        torch.testing.assert_close(infer(client), expected)


def test_blocks_cover_every_row_once():
    indptr = np.concatenate([[0], np.cumsum([3, 0, 20, 1, 1, 0, 4])])
    blocks = list(row_blocks(indptr, 6))
    assert [row for first, last in blocks for row in range(first, last)] == list(range(7))
    assert all(indptr[b] - indptr[a] + b - a < 2 * 6 + 20 for a, b in blocks)
    assert list(row_blocks(np.zeros(1, np.int64), 6)) == []


@pytest.mark.parametrize("adjacency", layers.SCALINGS)
def test_factors_give_the_entries_of_the_matrix(adjacency, graph):
    """On a graph with loops and without parallel edges: the same order and bits, so that draws are those of the matrix."""
    edges = torch.from_numpy(np.unique(graph.edge_index.numpy(), axis=1))[:, np.random.default_rng(1).permutation(140)]
    simple = replace(graph, edge_index=edges, edge_attr=torch.zeros(0, 0))
    model = built("gcn", simple)
    model.adjacency = adjacency
    matrix = MatrixNeighbours(SparseMatrix(adjacency(edges, 30)))
    neighbours = model.neighbours(simple)
    np.testing.assert_array_equal(neighbours.indptr, matrix.indptr)
    np.testing.assert_array_equal(neighbours.indices, matrix.indices)
    np.testing.assert_array_equal(neighbours.diagonal, matrix.diagonal)
    row = np.repeat(np.arange(30), np.diff(neighbours.indptr))
    values = neighbours.left[row] * (1 if neighbours.right is None else neighbours.right[neighbours.indices])
    np.testing.assert_array_equal(values.astype(np.float32), matrix.values)


def test_hidden_features_beyond_the_budget_are_in_a_file(graph, monkeypatch):
    opened = []
    file = tempfile.TemporaryFile
    monkeypatch.setattr(in_blocks, "BUDGET", 30 * 3 * 8)  # logits fit, hidden features do not
    monkeypatch.setattr(in_blocks.tempfile, "TemporaryFile", lambda **more: opened.append(not more) or file(**more))
    model = built("sage", graph).eval()
    with torch.no_grad():
        expected = model(model.prepare(graph, **DOUBLE))
        torch.testing.assert_close(model(model.graph_inputs(graph, **DOUBLE)), expected, rtol=0, atol=1e-12)
    assert sum(opened) == 1  # numba's cache opens some with a folder
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10, 10, 1))
    with pytest.raises(FedGraphError, match=r"cannot write the hidden features of a client: it needs"):
        model(model.graph_inputs(graph, **DOUBLE))


def test_a_disk_that_another_process_fills_is_an_error_not_a_signal(graph, monkeypatch):
    """The room is taken before it is mapped."""

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(in_blocks, "BUDGET", 1)
    monkeypatch.setattr(in_blocks.os, "posix_fallocate", full, raising=False)
    model = built("sage", graph).eval()
    with pytest.raises(FedGraphError, match=r"hidden features of a client to .*: No space left on device; set TMPDIR"):
        model(model.graph_inputs(graph, **DOUBLE))


def test_a_client_with_a_mapped_file_expands_no_edges(tmp_path, monkeypatch, graph):
    """Neither its edges as pairs nor a copy of its features, in float16 too; scores are those of the whole pass."""
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1)
    edges = graph.edge_index[:, graph.edge_index[0].argsort(stable=True)]
    no_test = torch.zeros(30, dtype=torch.bool)
    half = replace(graph, x=graph.x.half(), edge_index=edges, edge_attr=torch.zeros(0, 0), test_mask=no_test)
    half.save(tmp_path / "a.safetensors")
    for model in ("sage", "gcn", "gat"):
        stored = store.load(tmp_path / "a.safetensors")
        client = GraphClient(compose([*EVERY, f"model={model}", "dtype=float64", "model.dropout=0"]), stored)
        assert isinstance(client.inputs, GraphInputs)
        assert client.inputs.x is stored.x
        client.train()
        logits = infer(client)
        assert stored.compressed is not None
        with torch.no_grad():
            expected = client.model(client.model.prepare(replace(half, x=half.x.double()), **DOUBLE))
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)


def test_a_method_with_statistics_of_the_whole_pass_prepares_it(graph):
    from fedgraph_flwr.launch.checks import client_class

    simple = replace(graph, edge_attr=torch.zeros(0, 0))
    for strategy, whole in {"fedavg": False, "fedgta": False, "fedomd": True, "fedspa": True}.items():
        depth = models.probe(compose([f"strategy={strategy}"]).model).sampled_hops
        cfg = compose([f"strategy={strategy}", *EVERY[:2], f"train.fanout={[-1] * depth}"])
        assert isinstance(client_class(cfg)(cfg, simple).inputs, GraphInputs) is not whole, strategy


@pytest.mark.parametrize("name", ["sage", "gine both", "mlp"])
def test_the_last_layer_computes_only_the_ends_of_items(name, graph, monkeypatch):
    """Edges are scored day by day, so most nodes are no end of a scored edge."""
    model = built(name, graph, 3).eval()
    ends = torch.tensor([[3, 29, 3], [17, 0, 2]])
    inputs = replace(model.graph_inputs(graph, **DOUBLE), item_index=ends)
    computed = []
    plain = in_blocks.NeighbourSampler.sample
    monkeypatch.setattr(
        in_blocks.NeighbourSampler,
        "sample",
        lambda self, nodes, key: computed.append(len(nodes)) or plain(self, nodes, key),
    )
    with torch.no_grad():
        expected = model(model.prepare(graph, **DOUBLE))
        logits = model(inputs)
        assert sum(computed) == (0 if name == "mlp" else 30 + 30 + 5)
        none = model(replace(inputs, item_index=ends[:, :0]))
    torch.testing.assert_close(logits[ends], expected[ends], rtol=0, atol=1e-12)
    torch.testing.assert_close(none, expected, rtol=0, atol=1e-12)

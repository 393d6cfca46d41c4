"""Prepared inputs on disk: the same as those made afresh, made again when the graph changes, and never a reason to stop."""

import dataclasses

import pytest
import torch

import fedgraph_flwr.numerics.prepared
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.base import Model
from fedgraph_flwr.numerics.sparse import Pattern, SparseMatrix
from tests.conftest import client_graph


@pytest.fixture
def made(monkeypatch):
    """Counts how often inputs are made."""
    calls = []
    prepare = Model.prepare
    monkeypatch.setattr(Model, "prepare", lambda *args: calls.append(1) or prepare(*args))
    return calls


def _client(file, *overrides, **kwargs):
    graph = client_graph(0, **kwargs)
    if not file.exists():
        graph.save(file)
    cfg = compose([*overrides])
    return locate(cfg.strategy.client)(cfg, type(graph).load(file), "cpu", file)


def _tensors(inputs):
    for field in dataclasses.fields(inputs):
        value = getattr(inputs, field.name)
        if isinstance(value, SparseMatrix):
            yield from value.parts().values()
        elif isinstance(value, Pattern):
            yield from (value.row, value.col)
        else:
            yield value


WORDS = [
    ["model=gcn"],
    ["model=gat"],
    ["model=sage"],
    ["model=acm"],
    ["strategy=fedspa"],
    ["strategy=fedhero"],
    ["strategy=fedomd"],
    ["strategy=fedstruct"],
    ["model=gcn", "dtype=float64"],
]


@pytest.mark.parametrize("overrides", WORDS, ids=" ".join)
@pytest.mark.parametrize("sparse", [False, True])
def test_what_is_read_is_what_was_made(tmp_path, overrides, sparse):
    file = tmp_path / "client_0000.safetensors"
    graph = client_graph(0, num_features=40)
    if sparse:
        graph.x[:, 2:] = 0.0
    graph.save(file)
    first, second = _client(file, *overrides), _client(file, *overrides)
    assert len(list(tmp_path.glob("*.prepared"))) == 1
    for a, b in zip(_tensors(first.inputs), _tensors(second.inputs), strict=True):
        assert (a is None and b is None) or (a.dtype == b.dtype and torch.equal(a, b))
    assert type(first.inputs) is type(second.inputs)


def test_made_once_for_a_graph_and_a_network(tmp_path, made):
    file = tmp_path / "client_0000.safetensors"
    for overrides in (["model=gcn"], ["model=gcn"], ["model=gcn", "model.hidden=8"], ["model=gcn", "seed=3"]):
        _client(file, *overrides)
    assert len(made) == 2
    client_graph(0, num_nodes=17).save(file)  # the file has other content
    assert _client(file, "model=gcn").inputs.adj.shape == (17, 17)
    assert len(made) == 3


def test_a_damaged_file_is_made_again(tmp_path, made):
    file = tmp_path / "client_0000.safetensors"
    _client(file)
    (path,) = tmp_path.glob("*.prepared")
    path.write_bytes(path.read_bytes()[:-9])
    _client(file)
    _client(file)
    assert len(made) == 2


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(tmp_path, made, monkeypatch):
    def refuse(*args):
        raise FedGraphError("cannot write")

    monkeypatch.setattr(fedgraph_flwr.numerics.prepared, "write_tensors", refuse)
    file = tmp_path / "client_0000.safetensors"
    _client(file)
    assert isinstance(_client(file), GraphClient)
    assert len(made) == 2
    assert not list(tmp_path.glob("*.prepared"))


def test_a_partition_with_prepared_files_is_still_replaced(tmp_path):
    from fedgraph_flwr.partition.store import belongs, files

    file = tmp_path / "client_0000.safetensors"
    _client(file)
    assert all(map(belongs, tmp_path.iterdir()))
    assert files(tmp_path) == [file]

"""Big files: written block by block, read as a memory map, checked once."""

import os
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedgraph_flwr.data import files, mapped
from fedgraph_flwr.data.graph import ClientGraph, Graph, read_digest, read_tensors, write_tensors
from fedgraph_flwr.data.mapped import Blocks, is_trusted, write_blocks
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition import store


def graph_of(nodes: int = 40, edges: int = 200, symmetric: bool = False) -> ClientGraph:
    rng = np.random.default_rng(0)
    ends = rng.integers(nodes - 3, size=(2, edges))  # the last nodes have no edges
    ends = np.unique(np.concatenate([ends, ends[::-1]], axis=1) if symmetric else ends, axis=1)
    masks = [torch.from_numpy(np.arange(nodes) % 3 == k) for k in range(3)]
    return ClientGraph(
        x=torch.from_numpy(rng.normal(size=(nodes, 5)).astype(np.float32)),
        edge_index=torch.from_numpy(ends),
        y=torch.from_numpy(rng.integers(4, size=nodes)),
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
        num_classes=4,
        node_id=torch.arange(nodes),
        num_global_nodes=nodes,
    )


@pytest.fixture
def all_big(monkeypatch):
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1)


def same(first: Graph, second: Graph) -> bool:
    for field in fields(first):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if not (torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b):
            return False
    return True


def test_a_mapped_file_gives_the_same_graph_and_digest(tmp_path, monkeypatch):
    graph, small, big = graph_of(), tmp_path / "small.safetensors", tmp_path / "big.safetensors"
    graph.save(small)
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1)
    graph.save(big)
    mapped_graph = store.load(big)
    assert mapped_graph.compressed is not None
    assert mapped_graph.num_edges == graph.edge_index.size(1)
    assert mapped_graph.x.data_ptr() % 64 == 0
    assert "big.safetensors" in Path("/proc/self/maps").read_text()
    assert same(mapped_graph, graph)
    assert mapped_graph.compressed is None
    assert same(ClientGraph.load(small), graph)  # not aligned for a map: copied
    monkeypatch.undo()
    assert same(ClientGraph.load(big), graph)  # an older reader's way


def test_in_neighbours_are_the_sources_of_each_node(tmp_path, all_big):
    graph = graph_of()
    graph.save(tmp_path / "a.safetensors")
    for one in (graph, store.load(tmp_path / "a.safetensors")):
        indptr, indices = one.in_neighbours()
        assert indptr.dtype == np.int64
        assert indices.dtype == np.int32
        assert len(indptr) == graph.num_nodes + 1
        for node in range(graph.num_nodes):
            expected = graph.edge_index[0, graph.edge_index[1] == node].sort().values
            assert indices[indptr[node] : indptr[node + 1]].tolist() == expected.tolist()


@pytest.mark.parametrize("rows", ["symmetric", "targets"])
def test_rows_of_targets_are_not_copied(tmp_path, all_big, rows):
    graph = graph_of(symmetric=rows == "symmetric")
    indptr, indices = (torch.from_numpy(part) for part in graph.in_neighbours())
    tensors = {f.name: getattr(graph, f.name) for f in fields(graph) if f.name in ("x", "y", "node_id")}
    tensors |= {name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")}
    role = "" if rows == "symmetric" else "in_"
    tensors |= {f"edge_index#{role}indptr": indptr, f"edge_index#{role}indices": indices}
    if rows == "symmetric":
        tensors["edge_index#symmetric"] = torch.ones(1, dtype=torch.uint8)
    values = '{"kind": "ClientGraph", "num_classes": 4, "client": 0, "num_clients": 1, "num_global_nodes": 40}'
    write_blocks(tmp_path / "a.safetensors", tensors, values, "2")
    mapped_graph = store.load(tmp_path / "a.safetensors")
    assert mapped_graph.compressed is not None
    assert mapped_graph.in_neighbours()[1].ctypes.data == mapped_graph.compressed.indices.data_ptr()
    key = mapped_graph.edge_index[0] * 40 + mapped_graph.edge_index[1]
    assert torch.equal(key.sort().values, (graph.edge_index[0] * 40 + graph.edge_index[1]).sort().values)


def test_a_file_is_checked_once_and_again_when_it_changes(tmp_path, all_big, monkeypatch):
    path = tmp_path / "a.safetensors"
    graph_of().save(path)
    assert is_trusted(path)
    mapped.mark_of(path).unlink()
    store.load(path)
    assert is_trusted(path)
    content = bytearray(path.read_bytes())
    content[-70] ^= 1
    stamp = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    with pytest.raises(FedGraphError, match="does not match its digest"):
        store.load(path)
    path.write_bytes(content[:-100])
    with pytest.raises(FedGraphError, match="truncated"):
        store.load(path)


def test_what_a_digest_does_not_show_is_checked_too(tmp_path, all_big):
    graph, path = graph_of(), tmp_path / "a.safetensors"
    graph.edge_index[1, -1] = 40
    graph.save(path)
    mapped.mark_of(path).unlink()
    with pytest.raises(FedGraphError, match=r"name nodes outside 0\.\.39"):
        store.load(path)
    assert not is_trusted(path)


def test_blocks_are_written_as_one_tensor(tmp_path, all_big):
    x = torch.arange(35, dtype=torch.float32).view(7, 5)
    tensors = {"y": torch.zeros(3, dtype=torch.int16), "x": x}
    write_tensors(tmp_path / "whole", tensors, {"a": 1})
    parts = Blocks(torch.float32, (7, 5), lambda: (part.numpy() for part in x.split(3)))
    write_blocks(tmp_path / "parts", tensors | {"x": parts}, '{"a": 1}', "2")
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "parts").read_bytes()
    assert len(read_digest(tmp_path / "parts")) == 64


def test_equal_tensors_are_equal_bytes(tmp_path):
    """Safetensors itself writes the metadata in another order each time."""
    tensors = {"y": torch.zeros(3, dtype=torch.int16), "x": torch.arange(8.0), "é": torch.ones(2)}
    for number in range(8):
        write_tensors(tmp_path / f"{number}", tensors, {"ä": 1, "b": [2]})
    assert len({(tmp_path / f"{number}").read_bytes() for number in range(8)}) == 1
    arrays, values = read_tensors(tmp_path / "0")
    assert values == {"ä": 1, "b": [2]}
    assert arrays.keys() == tensors.keys()
    assert all(torch.equal(arrays[name], tensor) for name, tensor in tensors.items())
    assert set(load_file(tmp_path / "0")) == tensors.keys()


def test_a_full_disk_keeps_the_older_file(tmp_path, all_big, monkeypatch):
    path = tmp_path / "a.safetensors"
    graph_of().save(path)
    before = path.read_bytes()
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**9, 10**9, 100))
    with pytest.raises(FedGraphError, match=r"it needs .* GB, and .* has 0.0 GB free"):
        graph_of(60).save(path)
    monkeypatch.undo()
    with pytest.raises(FedGraphError, match="No space left"), files.writing(path, 0):
        raise OSError(28, "No space left on device")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["a.safetensors"]

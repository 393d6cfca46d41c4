"""Partition of mapped graphs: the files of the path in memory, resumed where it stopped, in bounded memory."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
import torch

from fedgraph_flwr.config import compose
from fedgraph_flwr.data import mapped
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition import out_of_core, store, stream
from fedgraph_flwr.party.tables.importing import save_dataset

NODES = 90


def made(seed: int = 0) -> Graph:
    rng = np.random.default_rng(seed)
    ends = rng.integers(NODES, size=(2, 400))
    inside = ends[0] // 30 * 30 + ends[1] % 30
    ends[1] = np.where(rng.random(400) < 0.8, inside, ends[1])
    none = torch.zeros(NODES, dtype=torch.bool)
    return Graph(
        x=torch.from_numpy(rng.normal(size=(NODES, 3)).astype(np.float32)),
        edge_index=torch.from_numpy(np.unique(ends, axis=1)),
        y=torch.from_numpy(rng.integers(3, size=NODES)),
        train_mask=none,
        val_mask=none,
        test_mask=none,
        num_classes=3,
        ids=torch.from_numpy(rng.integers(65, 90, size=(NODES, 4), dtype=np.uint8)),
    )


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A dataset of which the file is mapped, read in many blocks."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1)
    monkeypatch.setattr(out_of_core, "SAVED_AFTER", 0.0)
    monkeypatch.setattr(stream.blocks, "__defaults__", (2**62, 20))
    save_dataset(made(), "big")
    return tmp_path


def configured(*overrides: str):
    return compose(["dataset=big", "partition=random", "num_clients=3", *overrides])


def same(first, second) -> None:
    for field in fields(first):
        a, b = getattr(first, field.name), getattr(second, field.name)
        assert type(a) is type(b), field.name
        equal = torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b
        assert equal, field.name


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("split.scope=global", "split.min_train=40"),
        ("partition=stream",),
        ("partition=dirichlet", "split.kind=kfold", "split.folds=3", "split.fold=0"),
        ("partition=louvain",),
    ],
)
def test_the_clients_are_those_of_the_path_in_memory(dataset, overrides, monkeypatch, capsys):
    cfg = configured(*overrides)
    folder = store.client_files(cfg)
    assert "partition: client 3 of 3" in capsys.readouterr().err
    assert not list(folder.glob("spool_*"))
    assert not list(folder.parent.glob("*.partial"))
    clients = [store.load_client(cfg, index) for index in range(3)]
    assert all(client.stored_edges is not None for client in clients)
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 2**60)
    graph = store._source(cfg)
    assert graph.stored_edges is None
    for client, expected in zip(clients, store.make(graph, cfg), strict=True):
        same(client, expected)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("moment", ["edges", "clients"])
def test_a_stopped_partition_resumes(dataset, moment, monkeypatch, capsys):
    cfg = configured()
    whole = store.client_files(cfg)
    files = {path.name: path.read_bytes() for path in whole.glob("client_*")}
    whole.rename(dataset / "whole")
    calls = []
    kind, name = (out_of_core.Spool, "_add") if moment == "edges" else (out_of_core, "_write_client")
    plain = getattr(kind, name)

    def stops(*args):
        calls.append(args)
        if len(calls) == 3:
            raise Stopped
        plain(*args)
        if moment == "edges" and len(calls) == 2:
            args[0]._append("kept", 1, np.zeros(7, np.int32))  # written, but not saved as done

    monkeypatch.setattr(kind, name, stops)
    monkeypatch.setattr(out_of_core.Spool, "_save", saves_once(out_of_core.Spool._save))
    with pytest.raises(Stopped):
        store.client_files(cfg)
    monkeypatch.setattr(kind, name, lambda *args: calls.append(args) or plain(*args))
    before = len(calls)
    folder = store.client_files(cfg)
    assert {path.name: path.read_bytes() for path in folder.glob("client_*")} == files
    assert "resumed after" in capsys.readouterr().err
    if moment == "clients":
        assert len(calls) - before == 1


def saves_once(save):
    """Let each object save after its first block, and at the end."""
    known = set()

    def saved(self, end):
        if id(self) not in known or end == NODES:
            known.add(id(self))
            save(self, end)

    return saved


def test_a_full_disk_loses_nothing(dataset, monkeypatch):
    cfg = configured()
    usage = type(shutil.disk_usage(dataset))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda folder: usage(1, 1, 1000))
        with pytest.raises(FedGraphError, match=r"it needs 0.0 GB, .* free some space"):
            store.client_files(cfg)
    plain = out_of_core.Spool._append

    def full(self, kind, client, rows):
        if kind == "in":
            raise OSError(28, "No space left on device")
        plain(self, kind, client, rows)

    with monkeypatch.context() as patch:
        patch.setattr(out_of_core.Spool, "_append", full)
        with pytest.raises(FedGraphError, match="No space left on device; what is done is kept, run the same command"):
            store.client_files(cfg)
    assert store.num_clients(cfg) == 3


def test_clients_that_share_nodes_are_partitioned_in_memory(dataset):
    cfg = configured("partition=overlapping", "partition.clients_per_part=3")
    assert not out_of_core.applies(store._source(cfg), cfg)
    assert store.num_clients(cfg) == 3


def test_stream_finds_planted_parts_and_keeps_them_even():
    rng = np.random.default_rng(0)
    owner = rng.integers(4, size=2000)
    source = rng.integers(2000, size=20_000)
    groups = [np.flatnonzero(owner == k) for k in range(4)]
    target = np.array([rng.choice(groups[owner[s]]) if rng.random() < 0.9 else rng.integers(2000) for s in source])
    ends = np.unique(np.stack([np.concatenate([source, target]), np.concatenate([target, source])]), axis=1)
    graph = Graph(
        x=torch.zeros(2000, 1),
        edge_index=torch.from_numpy(ends),
        y=torch.zeros(2000, dtype=torch.int64),
        **{key: torch.zeros(2000, dtype=torch.bool) for key in ("train_mask", "val_mask", "test_mask")},
        num_classes=1,
    )
    parts = stream.stream(graph, compose(["partition=stream"]).partition, 4, 0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(2000))
    assert max(map(len, parts)) <= 550
    label = np.empty(2000, np.int64)
    for index, part in enumerate(parts):
        label[part] = index
    assert np.mean(label[ends[0]] == label[ends[1]]) > 0.6  # at random 0.25


CHILD = """
import json, threading, time
from pathlib import Path
from fedgraph_flwr.config import compose
from fedgraph_flwr.partition import store
peak = [0]
def own():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024
def watch():
    while True:
        peak[0] = max(peak[0], own())
        time.sleep(0.01)
start = own()
threading.Thread(target=watch, daemon=True).start()
store.client_files(compose(["dataset=big", "partition=random", "num_clients=4"]))
print(json.dumps(peak[0] - start))
"""


@pytest.mark.slow
def test_memory_grows_with_nodes_not_with_edges(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    nodes, degree = 200_000, 200  # 640 MB of edges in memory, 160 MB in the file
    rng = np.random.default_rng(0)
    source = torch.arange(nodes).repeat_interleave(degree)
    none = torch.zeros(nodes, dtype=torch.bool)
    target = torch.from_numpy(rng.integers(nodes, size=nodes * degree))
    graph = Graph(torch.zeros(nodes, 8) + 1, torch.stack([source, target]), source[::degree] % 5, none, none, none, 5)
    save_dataset(graph, "big")
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) < 500e6  # blocks of 4 M edges, and 30 bytes per node

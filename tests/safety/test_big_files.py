"""Big files: a mark of an earlier check is this user's, and a killed partition leaves nothing behind."""

import json
import os
import shutil

import numpy as np
import pytest
import torch

from fedgraph_flwr import cli
from fedgraph_flwr.config import compose
from fedgraph_flwr.data import mapped
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.mapped import is_trusted, write_blocks
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition import out_of_core, store, stream
from fedgraph_flwr.party.tables.importing import save_dataset

NODES = 90


@pytest.fixture(autouse=True)
def all_big(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1)


def forged(path, indptr=None, indices=None, cut=0):
    """Write a client file with edges that may lie outside its nodes; its digest fits."""
    tensors = {
        "x": torch.zeros(4, 2),
        "y": torch.tensor([0, 1, 0, 1]),
        "node_id": torch.arange(4),
        **{f"{name}_mask": torch.tensor([name == "train"] * 4) for name in ("train", "val", "test")},
        "edge_index#indptr": torch.tensor([0, 1, 2, 2, 2] if indptr is None else indptr),
        "edge_index#indices": torch.tensor([1, 0] if indices is None else indices, dtype=torch.int32),
        "cut_out": torch.tensor([[cut], [0]]),
        "cut_out_owner": torch.tensor([0]),
        "cut_in": torch.zeros(2, 0, dtype=torch.int64),
        "cut_in_owner": torch.zeros(0, dtype=torch.int64),
    }
    values = {"kind": "ClientGraph", "num_classes": 2, "client": 0, "num_clients": 1, "num_global_nodes": 4}
    write_blocks(path, tensors, json.dumps(values), "2")


@pytest.mark.parametrize(
    "change", [{"indices": [2**30, 0]}, {"indptr": [0, 2**40, 2, 2, 2]}, {"indptr": [0, 2, 1, 2, 2]}, {"cut": 2**40}]
)
def test_the_structure_of_a_file_that_counts_as_checked_is_checked(tmp_path, change):
    """A mark beside the file, or in the cache, says what its writer wants."""
    path = tmp_path / "client_0000.safetensors"
    forged(path, **change)
    (tmp_path / f".{path.name}.checked").write_text(json.dumps([path.stat().st_size, path.stat().st_mtime_ns]))
    with pytest.raises(FedGraphError, match=r"inconsistent|outside 0\.\.3|must be in 0\.\.3"):
        store.load(path)


def test_a_mark_does_not_travel_with_a_file(tmp_path):
    path = tmp_path / "client_0000.safetensors"
    forged(path)
    assert is_trusted(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["client_0000.safetensors", "data"]
    shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-copy", ignore=shutil.ignore_patterns("data"))
    copied = tmp_path.parent / f"{tmp_path.name}-copy" / path.name
    assert not is_trusted(copied)
    before = path.stat()
    with path.open("r+b") as file:  # of equal size and time of change
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not is_trusted(path)
    with pytest.raises(FedGraphError, match="does not match its digest"):
        store.load(path)


def test_a_killed_partition_leaves_nothing_and_can_be_repeated(tmp_path, monkeypatch):
    """A process that dies while it writes leaves its temporary file, with the data of a client."""
    rng = np.random.default_rng(0)
    none = torch.zeros(NODES, dtype=torch.bool)
    save_dataset(
        Graph(
            x=torch.from_numpy(rng.normal(size=(NODES, 3)).astype(np.float32)),
            edge_index=torch.from_numpy(np.unique(rng.integers(NODES, size=(2, 400)), axis=1)),
            y=torch.from_numpy(rng.integers(3, size=NODES)),
            train_mask=none,
            val_mask=none,
            test_mask=none,
            num_classes=3,
        ),
        "big",
    )
    monkeypatch.setattr(stream.blocks, "__defaults__", (2**62, 20))
    overrides = ["dataset=big", "partition=random", "num_clients=3"]
    partial = store._cached(compose(overrides)).with_suffix(".partial")

    class Killed(BaseException):
        pass

    def killed(*args):
        (partial / ".client_0001.safetensors.x7d9").write_bytes(b"a client's data")
        (partial / "parts.tmp.npz").write_bytes(b"its nodes")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(out_of_core, "_write_client", killed)
        with pytest.raises(Killed):
            store.client_files(compose(overrides))
    out = tmp_path / "out"
    for _ in range(2):
        assert cli.main(["partition", *overrides, "--out", str(out)]) == 0
        assert sorted(p.name for p in out.iterdir()) == [
            *(f"client_{i:04d}.safetensors" for i in range(3)),
            "partition.json",
        ]

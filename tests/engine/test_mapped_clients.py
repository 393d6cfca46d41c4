"""Clients with mapped files: built for each message, so that many need the memory of one, with the same bits."""

import pytest
from safetensors.torch import load_file

from fedgraph_flwr.config import compose
from fedgraph_flwr.data import mapped
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.partition import store


@pytest.mark.parametrize(
    "overrides", [("strategy=ditto",), ("strategy=fedavg", "train.sampler=neighbors", "train.fanout=[3,3]")]
)
def test_runs_of_mapped_files_have_the_same_bits(tmp_path, monkeypatch, overrides):
    folder = tmp_path / "parts"
    small = compose(["dataset=csbm", "dataset.nodes_per_client=[40,60]", "num_clients=3"])
    store.write(folder, store._make(small), small)
    results, live = [], []
    others = set(node_clients._live)  # of earlier tests
    for size in (2**60, 1):
        monkeypatch.setattr(mapped, "MAPPED_BYTES", size)
        if size == 1:
            store.write(folder, [store.load(path) for path in store.files(folder)], small)
        out = tmp_path / str(size)
        run(
            compose([*overrides, f"graph={folder}", "num_clients=3", "rounds=3", f"out={out}"]),
            lambda record: live.append(len(node_clients._live.keys() - others)),
        )
        results.append(load_file(out / "model_final.safetensors"))
    assert live == [3, 3, 3, 0, 0, 0]
    for name, tensor in results[0].items():
        assert tensor.equal(results[1][name]), name

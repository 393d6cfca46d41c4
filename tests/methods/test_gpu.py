"""The CPU and a GPU give the same to 1e-6 in float64: ``pytest --gpu tests/methods/test_gpu.py``.

Each device draws from its own generator; here both draw from the CPU's, so dropout and other noise are compared too.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedgraph_flwr.config import group_names
from fedgraph_flwr.engine.ray import ray_session
from fedgraph_flwr.launch.simulations import run_ray
from fedgraph_flwr.numerics import streams
from tests.methods.small_runs import METHODS, declares, is_typed
from tests.support import Finished, same_result

EDGES = ["task=edges", "dataset=payments", "dataset.accounts=90", "dataset.background=400", "dataset.per_kind=3"]
TASKS = [
    ["task=nodes-regression", "dataset=planted-regression", "dataset.nodes=60"],
    ["task=nodes-multilabel", "dataset=planted-multilabel", "dataset.nodes=60"],
    ["task=links"],
    EDGES,
    [*EDGES, "model=multi_gine"],
    ["task=graphs", "dataset=cycles", "dataset.graphs=20"],
    ["task=graphs-regression", "dataset=planted-counts", "dataset.graphs=20"],
    ["task=triples", "dataset=planted-triples"],
]
SAMPLERS = [
    ["train.sampler=neighbors", "train.batch_size=8", "train.fanout=[3,2]"],
    ["train.sampler=clusters", "train.clusters=4"],
    ["train.sampler=saint", "train.batch_size=40"],
]
RULES = [
    ["privacy.secagg=true"],
    ["privacy.dp=client_fixed", "privacy.noise_multiplier=0", "strategy.weighting=uniform"],
    ["strategy.aggregator=median", "strategy.byzantine=0"],
    ["strategy.fraction=0.67"],
    ["stack=3", "model.dropout=0"],  # stacked clients draw from generators of the device
    ["train.loss=weighted", "train.class_weights=federated"],
    ["train.loss=focal"],
    ["train.optimizer=sgd", "train.momentum=0.9"],
    ["train.optimizer=adamw"],
]
CASES = [[f"strategy={method}", *words] for method in METHODS for words in [[], *declares(method).variants]]
CASES += [[f"strategy={method}", *words] for method in ("scaffold", "gcfl") for words in TASKS if words[0] != EDGES[0]]
CASES += [*TASKS, [*EDGES, "strategy=boosting", "strategy.mode=histogram"]]
UNTYPED = [model for model in group_names("model") if not is_typed([f"model={model}"])]  # typed ones: those of FedHGN
CASES += [[f"model={model}", *(["task=links"] if model == "embedding" else [])] for model in UNTYPED]
CASES += [[*words, *sampler] for words in ([], ["model=sage"], ["model=gatv2"]) for sampler in SAMPLERS]
CASES += [[*EDGES, "model=multi_gine", *sampler] for sampler in SAMPLERS[:2]] + RULES

pytestmark = pytest.mark.skipif("not config.getoption('gpu')", reason="run pytest --gpu on a machine with a GPU")


@pytest.fixture(autouse=True)
def draws_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers are drawn on the CPU and moved."""

    def moved(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def drawn(first: Any, *rest: Any, device: Any = "cpu", **options: Any) -> torch.Tensor:
            like = isinstance(first, torch.Tensor)
            return draw(first.cpu() if like else first, *rest, **options).to(first.device if like else device)

        return drawn

    for name in ("rand_like", "randn_like", "randint", "bernoulli"):
        monkeypatch.setattr(torch, name, moved(getattr(torch, name)))
    monkeypatch.setattr(streams, "random_bits", moved(streams.random_bits))
    dropout = torch.nn.functional.dropout  # of PyG's attention

    def dropped(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return x * dropout(torch.ones(x.shape, dtype=x.dtype), p, training).to(x.device)

    monkeypatch.setattr(torch.nn.functional, "dropout", dropped)


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_cpu_and_gpu_agree(words, go):
    method = words[0].removeprefix("strategy=") if words[0].startswith("strategy=") else "fedavg"
    fixed = ["dtype=float64", "checkpoint_every=2", *words]
    if "model=gcn_norm" in words or method == "fedbn":
        fixed.append(
            "train.optimizer=sgd"
        )  # normalisation cancels a bias; Adam would make steps of its slopes of 1e-17
    cpu, gpu = (go(method, *fixed, f"device={device}") for device in ("cpu", "cuda"))
    assert cpu.summary["failures"] == gpu.summary["failures"] == {}
    agree(cpu, gpu)
    resumed = go(method, *fixed, "device=cuda", f"resume={gpu.out}", f"out={gpu.out}")  # from tensors of the CPU
    agree(cpu, resumed)


def agree(cpu: Finished, gpu: Finished) -> None:
    """Parameters, losses and scores are equal to 1e-6."""
    assert cpu.arrays.keys() == gpu.arrays.keys()
    for name, array in cpu.arrays.items():
        np.testing.assert_allclose(gpu.arrays[name], array, rtol=1e-6, atol=1e-8, err_msg=name)
    for key in ("train", "metrics"):
        for one, other in zip(cpu.rounds, gpu.rounds, strict=True):
            assert other[key] == pytest.approx(one[key], rel=1e-6, abs=1e-8, nan_ok=True)


def test_clients_on_ray_share_a_gpu(go, tmp_path):
    inline = go("fedavg", "device=cuda", "dtype=float64", "model.dropout=0")
    cfg = replace(inline.cfg, engine="ray", client_gpus=0.25, out=str(tmp_path / "ray"))
    with ray_session():
        same_result(Finished(cfg, run_ray(cfg)), inline)

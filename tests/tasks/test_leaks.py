"""The future does not leak: noise after τ changes no look-back column, no trained model and no causal score before it."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.data.payments import DAY, Payments, PaymentsSpec, as_graph, edge_features, generate
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.tasks.edges import Edges
from fedgraph_flwr.testing import assert_same_arrays

CUTS = (18, 24)
TAU = 20 * DAY
"""In the time of validation, at the end of a day."""

SPEC = PaymentsSpec(accounts=150, background=600, per_kind=2, windows=[1.0], recipe="payments")


def with_noise(p: Payments) -> Payments:
    """The same until τ; later payments have other ends, amounts and labels, and a third of them is missing."""
    rng, late = np.random.default_rng(5), p.time >= TAU
    count = p.time.size
    p = replace(
        p,
        source=np.where(late, rng.integers(p.bank.size, size=count), p.source),
        target=np.where(late, rng.integers(p.bank.size, size=count), p.target),
        amount=np.where(late, rng.lognormal(9, 3, count), p.amount),
        label=np.where(late, rng.random(count) < 0.5, p.label),
    )
    kept = ~late | (rng.random(count) < 0.7)
    of_payments = [field.name for field in fields(p) if field.name not in ("bank", "kind")]
    return replace(p, **{name: getattr(p, name)[kept] for name in of_payments})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The graph, and the one with noise."""
    folder, plain = tmp_path_factory.mktemp("leaks"), generate(SPEC, seed=0, banks=3)
    paths = []
    for name, p in (("plain", plain), ("noise", with_noise(plain))):
        paths.append(folder / f"{name}.safetensors")
        as_graph(p, SPEC, edge_features(p, SPEC), name).save(paths[-1])
    return paths


def of_run(path: Path, out: Path) -> tuple[dict[str, torch.Tensor], list[Any], list[torch.Tensor]]:
    """The trained model of a run, and by party its scores and its columns of payments before τ."""
    fg.run(
        **{"dataset": "file", "dataset.path": str(path), "partition": "planted", "num_clients": 3, "task": "edges"},
        **{"split.kind": "temporal", "split.until": [CUTS[0] * DAY - 1, CUTS[1] * DAY - 1], "split.step": "1d"},
        **{"rounds": 1, "model.hidden": 8, "dtype": "float64", "progress": False, "out": str(out)},
    )
    scores, columns = [], []
    for party in range(3):
        predictor = load_predictor(out, party)
        assert predictor.client_graph is not None
        logits, task = predictor.items(predictor.client_graph)
        assert isinstance(task, Edges)
        rows = torch.cat([task.ends, task.time[None]]).T.tolist()
        scored = zip(rows, logits.tolist(), strict=True)
        scores.append(sorted((*row, *values) for row, values in scored if row[2] < TAU))
        columns.append(predictor.client_graph.edge_attr[predictor.client_graph.edge_time < TAU])
    return read_tensors(out / "model_final.safetensors")[0], scores, columns


def test_noise_after_a_moment_changes_nothing_before_it(files, tmp_path):
    """Other engines give the same bits, `tests.tasks.test_engines`."""
    (model, scores, columns), (other, noisy, changed) = (of_run(path, tmp_path / path.stem) for path in files)
    assert_same_arrays(model, other)
    assert scores == noisy
    assert sum(map(len, scores)) > 300
    assert {row[2] // DAY for rows in scores for row in rows} >= {0, 18, 19}  # of training and of validation
    for one, two in zip(columns, changed, strict=True):
        assert torch.equal(one, two)
        assert one.size(1) > 30

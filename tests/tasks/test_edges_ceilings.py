"""task=edges on `dataset=payments` stays at the known ceilings of what a model may read, and passes them if it reads more."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose, typed
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.data.payments import (
    DIRECTION_DECOY,
    PATTERN,
    TIME_DECOY,
    Payments,
    PaymentsSpec,
    edge_features,
    generate,
)
from fedgraph_flwr.tasks.edges import Edges

KEYS = {"accounts": 1200, "background": 5000, "per_kind": 40, "size": [6, 10], "window": 1.0, "counts": "all"}


def payments(**keys: object) -> tuple[PaymentsSpec, Payments]:
    """Payments with clear patterns, seen by one observer."""
    spec: PaymentsSpec = typed(PaymentsSpec, KEYS | keys, "payments")
    return spec, generate(spec, seed=0, banks=1)


def scores(spec: PaymentsSpec, p: Payments, model: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Train on the payments of one client; returns the scores of test payments and their places."""
    n = p.bank.size
    none = torch.zeros(n, dtype=torch.bool)
    graph = ClientGraph(
        x=torch.ones(n, 1),
        edge_index=torch.from_numpy(np.stack([p.source, p.target])),
        y=torch.zeros(n, dtype=torch.int64),
        **dict.fromkeys(("train_mask", "val_mask", "test_mask"), none),
        num_classes=2,
        num_edge_classes=2,
        node_id=torch.arange(n),
        num_global_nodes=n,
        edge_attr=torch.from_numpy(edge_features(p, spec).astype(np.float32)),
        edge_time=torch.from_numpy(p.time),
        edge_y=torch.from_numpy(p.label.astype(np.int64)),
    )
    overrides = [
        "task=edges",
        f"model={model}",
        "model.hidden=16",
        "train.lr=0.02",
        f"train.local_steps={steps}",
        "num_clients=1",
    ]
    made = GraphClient(compose(overrides), graph)
    made.train()
    assert isinstance(made.task, Edges)
    test = made.task.masks["test"]
    return made.predict()[test].softmax(1)[:, 1].numpy(), made.task.order[test].numpy()


def flipped(p: Payments) -> Payments:
    """The payments with random directions, so that no model can read them."""
    flip = np.random.default_rng(7).random(p.time.size) < 0.5
    return replace(p, source=np.where(flip, p.target, p.source), target=np.where(flip, p.source, p.target))


def against(p: Payments, outputs: tuple[np.ndarray, np.ndarray], decoy: int) -> float:
    """AUC of patterns against one kind of decoys."""
    values, place = outputs
    role = p.role[place]
    kept = (role == PATTERN) | (role == decoy)
    return float(roc_auc_score(role[kept] == PATTERN, values[kept]))


def test_own_columns_show_nothing():
    """Amounts and formats are independent of the label, so AUC is 1/2 whatever the model."""
    spec, p = payments()
    values, place = scores(spec, p, "mlp", steps=40)
    assert roc_auc_score(p.label[place], values) == pytest.approx(0.5, abs=0.05)


@pytest.mark.slow
def test_a_model_blind_to_direction_or_time_stays_at_its_ceiling():
    spec, p = payments(windows=[1.0, 0.25], causal=False)
    seeing = scores(spec, p, "multi_gine", steps=80)
    assert against(p, seeing, DIRECTION_DECOY) > 0.62
    assert against(p, seeing, TIME_DECOY) > 0.8
    without_direction = flipped(p)
    blind = scores(spec, without_direction, "multi_gine", steps=80)
    assert against(p, blind, DIRECTION_DECOY) == pytest.approx(0.5, abs=0.06)
    assert against(p, blind, TIME_DECOY) > 0.8
    without_time = replace(p, time=np.random.default_rng(8).permutation(p.time))
    timeless = scores(replace(spec, windows=[spec.days]), without_time, "multi_gine", steps=80)
    assert against(p, timeless, TIME_DECOY) == pytest.approx(0.5, abs=0.06)

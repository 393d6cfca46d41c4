"""MOON against its loss in NumPy, differentiated numerically."""

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients.moon import contrast
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.wire.messages import MODEL, from_record
from tests.methods.moon_by_hand import MU, TAU, contrast_by_hand, hidden, step
from tests.methods.regression import WORDS, data
from tests.support import recorded_messages


def test_rounds_by_hand(run, monkeypatch):
    """Two of three rounds each, of two steps; client 0 is away in the second, and contrasts in the third with its first."""
    overrides = [f"strategy.mu={MU}", f"strategy.temperature={TAU}", "model.layers=2", "model.hidden=4"]
    with recorded_messages(monkeypatch) as messages:
        run(*WORDS, "strategy=moon", "train.local_steps=2", "rounds=3", "strategy.fraction=0.67", "seed=4", *overrides)
    sent, trained = {}, {}
    for way, node, content in messages:
        arrays = from_record(content.array_records[MODEL]) if MODEL in content.array_records else {}
        if way == "down" and content["config"]["phase"] == "train":
            sent[node] = int(content["config"]["round"]), arrays
        elif way == "up" and arrays:
            server_round, x = sent[node]
            trained.setdefault(int(content["metrics"]["client"]), []).append((server_round, x, arrays))
    assert sorted(tuple(r for r, *_ in rounds) for rounds in trained.values()) == [(1, 2), (1, 3), (2, 3)]
    for client, rounds in trained.items():
        x, labels = data(client)
        previous = None
        for _, start, end in rounds:
            p, to = start, hidden(start, x)
            for _ in range(2):
                p = step(p, x, labels, to, to if previous is None else previous)
            for name in p:
                np.testing.assert_allclose(end[name], p[name], atol=1e-7, err_msg=name)
            previous = hidden(end, x)


def test_contrast_by_hand():
    z, to, away = (np.random.default_rng(i).normal(size=(7, 5)) for i in range(3))
    loss = contrast(*(torch.from_numpy(a) for a in (z, to, away)), temperature=TAU)
    assert float(loss) == pytest.approx(contrast_by_hand(z, to, away), rel=1e-12)
    same = contrast(*(torch.from_numpy(a) for a in (z, to, to)), temperature=TAU)
    assert float(same) == pytest.approx(np.log(2), rel=1e-12)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.layers=1", "model.layers must be >= 2, got 1"),
        ("strategy.temperature=0", "strategy.moon.temperature must be > 0 and finite, got 0"),
        ("strategy.mu=-1", "strategy.moon.mu must be >= 0, got -1"),
    ],
)
def test_what_cannot_be_contrasted_is_refused(run, word, message):
    with pytest.raises(FedGraphError) as refused:
        run("strategy=moon", word)
    assert message in str(refused.value)

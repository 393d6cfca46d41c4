"""Differential privacy of every method: what leaves a client is clipped and booked, or public, or the run is refused."""

from collections import Counter

import numpy as np
import pytest

from fedgraph_flwr.config import compose
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.declared import uplink_of as declared
from fedgraph_flwr.methods.uplink import ARRAYS, Public, shown
from fedgraph_flwr.secure.eligibility import not_private
from fedgraph_flwr.wire.messages import METRICS, MODEL, SPEAKS, from_record
from tests.conftest import client_graph
from tests.methods.small_runs import METHODS, sampled
from tests.support import recorded_messages

FORMS = [(method,) for method in METHODS] + [("fedomd", "strategy.cmd_range=unit")]
DP = ["privacy.dp=client_fixed", "privacy.noise_multiplier=4", "privacy.clipping_norm=0.02", "privacy.scores=none"]
DP += ["strategy.weighting=uniform"]
FRAME = {"client", "num_features", "num_classes", "schema", SPEAKS}
"""Numbers that are no client's secret: its index, widths that all clients agree on, the protocol's version."""


def _of(form):
    cfg = compose([f"strategy={form[0]}", *form[1:], "num_clients=3", "rounds=2"])
    return cfg, declared(locate(cfg.strategy.server), cfg)


def _length(arrays, origin):
    return np.sqrt(sum(float(np.sum((a.astype(np.float64) - origin.get(n, 0)) ** 2)) for n, a in arrays.items()))


@pytest.mark.parametrize("form", sampled(FORMS))
def test_what_leaves_under_privacy_is_accounted_for_or_refused(form, go, monkeypatch):
    """Each array that is sent is in a declared mean or sum, no longer than the norm, and each exchange of such is booked."""
    cfg, uplink = _of(form)
    if not_private(cfg, uplink):
        with pytest.raises(FedGraphError, match=r"privacy\.dp=client_fixed covers"):
            go(*form, "rounds=2", *DP)
        return
    with recorded_messages(monkeypatch) as messages:
        done = go(*form, "rounds=2", *DP)
    assert done.summary["failures"] == {}
    asked, booked = {}, Counter()
    for direction, node, content in messages:
        if direction == "down":
            asked[node] = content
            continue
        phase = asked[node]["config"]["phase"]
        public = {
            name
            for p, g, r in shown(uplink)
            if (p, g) == (phase, METRICS)
            for name in r.fields
            if isinstance(r, Public)
        }
        assert set(content[METRICS]) - FRAME <= public, "a number that nobody accounts for"
        arrays = {group: uplink[phase][group] for group in set(content) - {METRICS}}
        private = {group: reducer for group, reducer in arrays.items() if not isinstance(reducer, Public)}
        for group, reducer in private.items():
            assert reducer.early, f"'{group}' of phase '{phase}' is released, and not accounted for"
            origin = from_record(asked[node][MODEL]) if getattr(reducer, "origin", "") == ARRAYS else {}
            assert _length(from_record(content[group]), origin) <= 0.02 * (1 + 1e-9)
        booked[node] += bool(private)
    assert set(booked.values()) == {done.summary["privacy"]["releases"]}


@pytest.mark.parametrize("form", sampled(FORMS))
@pytest.mark.parametrize(
    "overrides",
    [
        ["train.loss=weighted", "train.class_weights=federated"],
        ["evaluation.average=nodes"],
    ],
    ids=["label shares", "numbers of nodes"],
)
def test_labels_and_sizes_are_refused_with_every_method(form, overrides, go):
    with pytest.raises(FedGraphError, match=r"privacy\.dp=client_fixed"):
        go(*form, *DP, *overrides)


def test_one_clients_labels_do_not_move_the_updates_of_others(run, monkeypatch, tmp_path):
    """With class weights over all clients they moved them by half of the norm, which no release covered."""

    def updates(labels):
        for client in range(3):
            graph = client_graph(client)
            if client == 1:
                graph.y = labels(graph.y)
            graph.save(tmp_path / "graphs" / f"client_{client:04d}.safetensors")
        with recorded_messages(monkeypatch) as messages:
            run(*DP, "rounds=1", "train.loss=weighted", f"graph={tmp_path / 'graphs'}")
        return [
            from_record(content[MODEL]) for direction, _, content in messages if direction == "up" and MODEL in content
        ]

    before, after = updates(lambda y: y), updates(lambda y: y * 0)
    moved = [max(np.abs(a[name] - b[name]).max() for name in a) for a, b in zip(before, after, strict=True)]
    assert (moved[0], moved[2]) == (0, 0)
    assert moved[1] > 0

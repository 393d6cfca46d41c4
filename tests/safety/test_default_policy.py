"""Every method against nodes of a fleet that have no policy file: an honest server gets the same bits."""

import pytest

from fedgraph_flwr.node.node import Party
from fedgraph_flwr.secure.policy import Policy
from tests.methods.small_runs import METHODS, sampled
from tests.nodes import nodes_with
from tests.support import assert_same_arrays


@pytest.fixture
def fleet(monkeypatch):
    """``fleet(min_nodes=0)``: clients reply like nodes of a fleet, by the default policy but for these keys."""

    def make(**keys):
        nodes_with(monkeypatch, lambda: Policy(**keys), Party)

    return make


@pytest.mark.parametrize("method", sampled(METHODS))
def test_an_honest_run_is_answered(method, go, fleet, monkeypatch):
    overrides = ["rounds=2"]
    wanted = go(method, *overrides)
    fleet(min_nodes=0)
    finished = go(method, *overrides)
    assert finished.summary["failures"] == {}
    assert_same_arrays(finished.arrays, wanted.arrays)

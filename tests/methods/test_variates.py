"""State of clients between rounds, and the server's sum of it, stay the same also when a reply is lost on its way."""

import numpy as np
import pytest
from flwr.app import Error, Message

from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.strategies.variates import Variates
from tests.methods.regression import LR, WORDS, gradient, start, vector
from tests.methods.small_runs import METHODS, by_default
from tests.support import assert_same_arrays, call_fresh

BOUND = 1.6

VARIATES = [name for name in METHODS if by_default(name).strategy.variates != "none"]


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("method", VARIATES)
def test_a_lost_answer_is_as_if_the_client_had_been_away(run, monkeypatch, method, fresh):
    """Client 1 trains in round 2, but its reply is lost; in the other run it does not train."""
    call, ends = call_fresh if fresh else InlineGrid._call, {}
    overrides = [*WORDS, f"strategy={method}", "train.local_steps=3"]
    for trains in (True, False):

        def lossy(self, message, trains=trains):
            config, node = message.content["config"], self.contexts[message.metadata.dst_node_id]
            struck = (config["phase"], config["round"], node.node_config["partition-id"]) == ("train", 2, 1)
            if struck and trains:
                call(self, message)
            return Message(Error(1, "lost"), reply_to=message) if struck else call(self, message)

        with monkeypatch.context() as patch:
            patch.setattr(InlineGrid, "_call", lossy)
            ends[trains] = run(*overrides)
        assert len(ends[trains].summary["failures"]) == 1
    assert_same_arrays(ends[True].arrays, ends[False].arrays)
    assert (vector(run(*overrides).arrays) != vector(ends[True].arrays)).any()


def test_there_are_such_methods():
    assert len(VARIATES) >= 2


@pytest.mark.parametrize("method", ["scaffold", "feddc"])
def test_a_robust_rule_measures_variates_from_zero(run, method):
    """A bound that holds back neither updates nor changes of variates, but is shorter than their distance to the model."""
    overrides = [*WORDS, f"strategy={method}", "train.local_steps=2", "train.lr=0.1"]
    plain = run(*overrides)
    bounded = run(*overrides, "strategy.aggregator=norm_bound", "strategy.byzantine=0", f"strategy.norm_bound={BOUND}")
    np.testing.assert_allclose(vector(bounded.arrays), vector(plain.arrays), rtol=0, atol=1e-12)


def test_shares_are_of_all_clients_where_a_share_is_capped(run, monkeypatch):
    """SCAFFOLD by hand, c = Σ_i p_i c_i over all clients: of 6, 8 and 10 training nodes, p_2 is at most 0.375."""
    shares, share = [], Variates.share

    def seen(self, server, clients):
        shares.append((clients, share(self, server, clients)))
        return shares[-1][1]

    monkeypatch.setattr(Variates, "share", seen)
    overrides = ["strategy.weighting=train", "strategy.max_share=0.375", "strategy.fraction=0.67"]
    finished = run(*WORDS, "strategy=scaffold", *overrides, "train.local_steps=2")
    left = 1 - 0.375
    p = [left * 6 / 14, left * 8 / 14, 0.375]
    assert [clients for clients, _ in shares] == [r["cohort"] for r in finished.rounds]
    x, c, controls = start(run), 0.0, [0.0, 0.0, 0.0]
    for clients, fraction in shares:
        assert fraction == pytest.approx(sum(p[i] for i in clients), rel=1e-12)
        ends = []
        for i in clients:
            y = x
            for _ in range(2):
                y = y - LR * (gradient(y, i) + c - controls[i])
            controls[i] = controls[i] - c + (x - y) / (2 * LR)
            ends.append(y)
        # Two clients of which none may have more than 0.375 of a mean have equal weights in it.
        x, c = np.mean(ends, axis=0), sum(p[i] * controls[i] for i in range(3))
    np.testing.assert_allclose(vector(finished.arrays), x, rtol=0, atol=1e-12)

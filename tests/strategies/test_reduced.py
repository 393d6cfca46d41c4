"""What a method's server gets of its clients' replies, and what a wrong question says."""

import re

import numpy as np
import pytest

from fedgraph_flwr.clients.base import GraphClient, phase
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.uplink import ARRAYS, Mean, Sum
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import METRICS, MODEL, TRAIN, Arrays, Reply, weighted_mean
from fedgraph_flwr.wire.reply_schema import ArrayField


def reduced() -> Reduced:
    replies = [Reply(client, {"sent": {"a": np.ones(2)}}, {"norm": 2.0}) for client in (0, 3)]
    late: list[Arrays] = [{"w": np.array([1.0, 2.0])}, {"w": np.array([5.0, 6.0])}]
    rule = lambda values, weights, *_: weighted_mean(values, weights)  # noqa: E731
    return Reduced(replies, late={MODEL: late}, rule=rule, phase="measure")


def test_the_mean_takes_a_weight_per_client():
    mean = reduced().mean(MODEL, iter([3, 1]))["w"]  # an iterator is read once
    assert mean.tolist() == [(3 * 1 + 5) / 4, (3 * 2 + 6) / 4]
    assert reduced().mean(MODEL, [2], clients=[3])["w"].tolist() == [5, 6]


@pytest.mark.parametrize(
    ("ask", "error", "sentence"),
    [
        (lambda r: r.each(METRICS), FedGraphError, "[reply.metrics[name] for reply in reduced]"),
        (
            lambda r: r.each(MODEL),
            FedGraphError,
            "as Individual, Relay or Public, but 2 replies gave sent in this form",
        ),
        (
            lambda r: r.mean("sent", [1, 1]),
            FedGraphError,
            "the method reads group 'sent' of phase 'measure' as LateMean, but 2 replies gave model in this form: declare it so",
        ),
        (lambda r: r.mean(MODEL, [1]), ValueError, "one weight for each of 2 clients, got 1"),
        (lambda r: r.mean(MODEL, {"w": [1, 1, 1]}), ValueError, "one weight for each of 2 clients, got 3 for 'w'"),
        (
            lambda r: r[MODEL],
            FedGraphError,
            "phase 'measure' as Mean or Sum, but 2 replies gave nothing in this form",
        ),
    ],
)
def test_a_wrong_question_is_one_sentence(ask, error, sentence):
    with pytest.raises(error, match=re.escape(sentence)):
        ask(reduced())


def uplink(cfg, params):
    """The model, and in a phase of its own the number of nodes."""
    return {TRAIN: {MODEL: Mean(ARRAYS, origin=ARRAYS)}, "count": {"nodes": Sum({"n": ArrayField((1,), "float64")})}}


class Mistyped(GraphStrategy):
    uplink = staticmethod(uplink)

    def before_train(self, arrays):
        return {"counts": self.request("count")["node"]}


class Counted(GraphClient):
    uplink = staticmethod(uplink)

    @phase
    def count(self, groups, config):
        return {"nodes": {"n": np.ones(1)}}, {}


@pytest.mark.parametrize("secure", ["privacy.secagg=false", "privacy.secagg=true"])
def test_a_group_that_a_phase_does_not_give_is_named_with_the_phase(run, secure):
    with pytest.raises(
        FedGraphError, match=r"'node' of phase 'count' as Mean or Sum, but 3 replies gave nodes in this form:"
    ):
        run(f"strategy={__name__}:Mistyped", f"strategy.client={__name__}:Counted", secure)

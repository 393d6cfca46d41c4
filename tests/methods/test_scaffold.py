"""SCAFFOLD against its equations in NumPy, and the sum of its control variates."""

import numpy as np
import pytest

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.scaffold import Scaffold as ClientScaffold
from fedgraph_flwr.clients.variates import trained
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.strategies.scaffold import Scaffold
from tests.methods.regression import LR, WORDS, gradient, mean_of, start, vector, weights

STEPS = [1, 3, 2]
UNEQUAL = f"train.local_steps_by_client={STEPS}"


def by_hand(x, cohorts, option, rule, server_lr):
    """Eq. (3) to (5), and c after each round."""
    p, c, controls, sums = weights(rule), np.zeros_like(x), [np.zeros_like(x) for _ in range(3)], []
    for cohort in cohorts:
        ends, changes = [], []
        for i in cohort:
            y = x.copy()
            for _ in range(STEPS[i]):
                y = y - LR * (gradient(y, i) + c - controls[i])
            new = gradient(x, i) if option == "I" else controls[i] - c + (x - y) / (STEPS[i] * LR)
            ends.append(y)
            changes.append(new - controls[i])
            controls[i] = new
        x = x + server_lr * (mean_of(ends, p[cohort]) - x)
        c = c + sum(p[i] * change for i, change in zip(cohort, changes, strict=True))
        sums.append((c, sum(p[i] * controls[i] for i in range(3))))
    for known, total in sums:
        np.testing.assert_allclose(known, total, atol=1e-15)
    return x


@pytest.mark.parametrize("rule", ["uniform", "train"])
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("fraction", [1, 0.67])
def test_rounds_by_hand(run, option, rule, fraction):
    overrides = [f"strategy.option={option}", f"strategy.weighting={rule}", f"strategy.fraction={fraction}"]
    finished = run(*WORDS, "strategy=scaffold", UNEQUAL, "strategy.server_lr=0.7", *overrides)
    cohorts = [record["cohort"] for record in finished.rounds]
    assert {len(cohort) for cohort in cohorts} == {3 if fraction == 1 else 2}
    expected = by_hand(start(run), cohorts, option, rule, 0.7)
    np.testing.assert_allclose(vector(finished.arrays), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("overrides", [[], ["strategy.fraction=0.67"], ["train.optimizer=adam"]])
def test_c_is_the_mean_of_all_clients_own_after_every_round(run, monkeypatch, overrides):
    """Also of those that did not take part, and of those whose replies were resumed from a checkpoint."""
    clients, compared, aggregate, make = {}, [], Scaffold.step, GraphClient.__init__

    def made(self, *args, **kwargs):
        make(self, *args, **kwargs)
        clients[self.graph.client] = self

    def compare(self, server, arrays, mean, reduced):
        arrays = aggregate(self, server, arrays, mean, reduced)
        for name, c in server.memory["variates"].items():
            kept = [m.get("offer", m)["own"]["control"][name].numpy() for i in range(3) if (m := clients[i].memory)]
            np.testing.assert_allclose(c, sum(kept) / 3, atol=1e-15)
            compared.append(np.abs(c).max())
        return arrays

    monkeypatch.setattr(GraphClient, "__init__", made)
    monkeypatch.setattr(Scaffold, "step", compare)
    overrides = [*WORDS, "strategy=scaffold", UNEQUAL, *overrides]
    whole = run(*overrides, "rounds=6")
    assert len(compared) == 12
    assert min(compared) > 1e-3
    half = run(*overrides, "rounds=3", "checkpoint_every=3")
    resumed = run(*overrides, "rounds=6", f"resume={half.out}", f"out={half.out}")
    np.testing.assert_array_equal(vector(resumed.arrays), vector(whole.arrays))


def test_it_ends_where_the_mean_gradient_is_zero_and_fedavg_does_not(run):
    """With several, unequal local steps on clients of different data; decay 1 makes it quick."""
    overrides = [*WORDS, UNEQUAL, "rounds=30", "train.weight_decay=1"]
    ends = {method: vector(run(*overrides, f"strategy={method}").arrays) for method in ("scaffold", "fedavg")}
    slopes = {
        m: np.abs(mean_of([gradient(x, i, decay=1) for i in range(3)], np.ones(3))).max() for m, x in ends.items()
    }
    assert slopes["scaffold"] < 1e-6
    assert slopes["fedavg"] > 1e-3


def test_parameters_that_no_gradient_reaches_stay_where_they_are(run, monkeypatch):
    """From round 2 on client 0 has no gradient of the bias: neither its bias nor its c_i moves by the others' replies."""
    seen, send, correct = [], ClientScaffold.send, ClientScaffold.correct

    def without(self, client, terms):
        if client.graph.client == 0 and client.server_round > 1:
            trained(client)["head.bias"].grad = None
            self.state(client)["first"].pop("head.bias", None)
        correct(self, client, terms)

    def sent(self, client):
        groups = send(self, client)
        if client.graph.client == 0:
            moved = self.moved(client)["head.bias"]
            seen.append((np.abs(groups["variates"]["head.bias"]).max(), moved.abs().max().item()))
        return groups

    monkeypatch.setattr(ClientScaffold, "correct", without)
    monkeypatch.setattr(ClientScaffold, "send", sent)
    run(*WORDS, "strategy=scaffold", "train.local_steps=2")
    assert min(seen[0]) > 0
    assert seen[1:] == [(0, 0)] * 3


def test_option_two_needs_plain_sgd(run):
    for overrides in (["train.optimizer=adam"], ["train.momentum=0.9"]):
        with pytest.raises(FedGraphError, match=r"or strategy\.scaffold\.option=I"):
            run(*WORDS, "strategy=scaffold", "strategy.option=II", *overrides)
    with pytest.raises(FedGraphError, match=r"strategy\.scaffold\.option 'III' is unknown"):
        run("strategy=scaffold", "strategy.option=III")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["strategy=scaffold", "train.local_steps=1"], True),
        (["strategy=fedprox", "train.local_steps=1"], True),
        (["strategy=fedavg", "train.local_steps=1"], False),
        (["strategy=scaffold", "train.local_steps_by_client=[1,2]"], False),
        (["strategy=scaffold", "train.local_steps=1", "train.momentum=0.9"], False),
        (["strategy=scaffold", "train.local_steps=1", "strategy.fraction=0.5"], False),
        (["strategy=scaffold", "train.local_steps=1", "strategy.server_lr=0.5"], False),
    ],
)
def test_a_schedule_that_makes_it_fedavg_is_told_once(run, caplog, overrides, expected):
    run(*WORDS, "rounds=1", *overrides)
    assert len([r for r in caplog.records if "is FedAvg" in r.message and r.levelname == "WARNING"]) == expected


def test_each_client_takes_its_number_of_steps(run):
    """Entry i modulo the length; client 1's are none."""
    overrides = [*WORDS, "rounds=1", "train.local_steps=5", "train.local_steps_by_client=[2,0]"]
    x = start(run)
    ends = [x, x, x]
    for i in (0, 2):
        for _ in range(2):
            ends[i] = ends[i] - LR * gradient(ends[i], i)
    np.testing.assert_allclose(vector(run(*overrides).arrays), sum(ends) / 3, atol=1e-13)
    with pytest.raises(FedGraphError, match=r"train\.local_steps_by_client must be >= 0, got -1"):
        run("train.local_steps_by_client=[2,-1]")

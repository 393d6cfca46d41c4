"""FedAdagrad, FedAdam, FedYogi: the server's steps against closed forms in NumPy, over rounds with absent clients."""

import numpy as np
import pytest

from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.wire.messages import METRICS, MODEL, from_record
from tests.support import recorded_messages

BETA1, BETA2, TAU, RATE = 0.8, 0.7, 0.01, 0.03


def first_moment(deltas):
    return sum((1 - BETA1) * BETA1 ** (len(deltas) - 1 - s) * delta for s, delta in enumerate(deltas))


def adagrad(deltas):
    return TAU**2 + sum(delta**2 for delta in deltas)


def adam(deltas):
    t = len(deltas)
    return BETA2**t * TAU**2 + sum((1 - BETA2) * BETA2 ** (t - 1 - s) * delta**2 for s, delta in enumerate(deltas))


def yogi(deltas):
    v = np.full_like(deltas[0], TAU**2)
    for delta in deltas:
        grown, shrunk = v + (1 - BETA2) * delta**2, v - (1 - BETA2) * delta**2
        v = np.where(v == delta**2, v, np.where(v < delta**2, grown, shrunk))
    return v


@pytest.mark.parametrize("rule", [adagrad, adam, yogi])
def test_the_steps_of_the_server_with_absent_clients(run, monkeypatch, rule):
    decay = [] if rule is adagrad else [f"strategy.beta2={BETA2}"]
    keys = [f"strategy.beta1={BETA1}", f"strategy.tau={TAU}", f"strategy.server_lr={RATE}", *decay]
    overrides = ["dtype=float64", "model.norm=batch", "strategy.fraction=0.67", "rounds=4", "seed=1"]
    with recorded_messages(monkeypatch) as messages:
        finished = run(f"strategy=fed{rule.__name__}", *keys, *overrides)
    assert len({tuple(record["cohort"]) for record in finished.rounds}) > 1
    sent, means = _rounds(messages)
    assert len(sent) == 4
    sent.append(finished.arrays)
    seen = set()
    for name in sent[0]:
        if ".running_" in name:
            for t in range(4):
                np.testing.assert_allclose(sent[t + 1][name], means[t][name], rtol=1e-12)
            continue
        deltas = [means[t][name] - sent[t][name] for t in range(4)]
        for t in range(4):
            moved = RATE * first_moment(deltas[: t + 1]) / (np.sqrt(rule(deltas[: t + 1])) + TAU)
            np.testing.assert_allclose(sent[t + 1][name], sent[t][name] + moved, rtol=1e-9, atol=1e-12, err_msg=name)
        seen |= set(np.sign(np.concatenate([(TAU**2 - delta**2).ravel() for delta in deltas])))
    assert seen >= {-1.0, 1.0}  # both ways of Yogi's sign


def _rounds(messages):
    """The model that each round's cohort was sent, and the mean of its replies, by training nodes."""
    sent, answers, training = {}, {}, {}
    for way, node, content in messages:
        if way == "down":
            config = content.config_records["config"]
            training[node] = int(config["round"]) if config["phase"] == "train" else None
            if training[node]:
                sent[training[node]] = from_record(content[MODEL])
        elif training[node]:
            answers.setdefault(training[node], []).append((content[METRICS]["num_train"], from_record(content[MODEL])))
    means = []
    for _, replies in sorted(answers.items()):
        total = sum(weight for weight, _ in replies)
        means.append({n: sum(w / total * model[n] for w, model in replies) for n in replies[0][1]})
    return [sent[r] for r in sorted(sent)], means


def test_momentum_too_leaves_running_statistics_to_the_mean(run):
    overrides = ["model.norm=batch", "rounds=1"]
    momentum, plain = run("strategy=fedavgm", *overrides).arrays, run(*overrides).arrays
    same = {name for name in plain if np.array_equal(momentum[name], plain[name])}
    assert same == {name for name in plain if ".running_" in name} != set()


@pytest.mark.parametrize("key", ["beta1=1", "beta2=-0.1", "tau=0", "server_lr=-1"])
def test_wrong_keys_are_refused(key):
    with pytest.raises(FedGraphError, match=key.partition("=")[0]):
        check_method(compose(["strategy=fedyogi", f"strategy.{key}"]))


def test_fedadagrad_has_no_beta2():
    with pytest.raises(FedGraphError, match="beta2"):
        check_method(compose(["strategy=fedadagrad", "strategy.beta2=0.9"]))

"""Every pair of parts that may be combined, in rounds computed by one NumPy loop, on unequal steps and absent clients."""

import functools
import itertools

import numpy as np
import pytest

from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from tests.methods.regression import DECAY, LR, WORDS, gradient, vector

pytestmark = pytest.mark.slow

STEPS = [2, 3, 1]
MU, RHO, ALPHA = 0.4, 0.2, 0.5
CHOICES = {
    "objective": ["", "prox", "sam", "prox,sam"],
    "variates": ["none", "scaffold", "feddyn", "feddc"],
    "server_optimizer": ["average", "momentum", "adam", "yogi", "adagrad"],
    "aggregator": ["mean", "median", "norm_bound"],
    "personalization": ["none", "ditto", "apfl", "finetune"],
}
KEYS = {
    "prox": [f"prox.mu={MU}"],
    "sam": [f"sam.rho={RHO}"],
    "feddyn": [f"feddyn.alpha={ALPHA}"],
    "feddc": [f"feddc.alpha={ALPHA}"],
    "momentum": ["momentum.beta=0.6", "momentum.server_lr=0.5"],
    "adam": ["adam.beta1=0.8", "adam.beta2=0.7", "adam.tau=0.01", "adam.server_lr=0.03"],
    "yogi": ["yogi.beta1=0.8", "yogi.beta2=0.7", "yogi.tau=0.01", "yogi.server_lr=0.03"],
    "adagrad": ["adagrad.beta1=0.8", "adagrad.tau=0.01", "adagrad.server_lr=0.03"],
}


def refused(chosen):
    """FedDyn and FedDC set the next model themselves."""
    return chosen["variates"] in ("feddyn", "feddc") and chosen["server_optimizer"] != "average"


@functools.cache
def covering():
    """Few combinations that contain every accepted pair of values of two different keys."""
    rows = [dict(zip(CHOICES, values, strict=True)) for values in itertools.product(*CHOICES.values())]
    rows = [row for row in rows if not refused(row)]
    pairs = [set(itertools.combinations(row.items(), 2)) for row in rows]
    left, cover = set().union(*pairs), []
    while left:
        best = max(range(len(rows)), key=lambda index: len(pairs[index] & left))
        left -= pairs[best]
        cover.append(rows[best])
    return cover


def overrides_of(chosen):
    overrides = [f"strategy.{key}={f'[{value}]' if key == 'objective' else value}" for key, value in chosen.items()]
    parts = [part for value in chosen.values() for part in value.split(",")]
    return [*overrides, *(f"strategy.{key}" for part in parts for key in KEYS.get(part, []))]


def end(chosen, x, client, correction):
    """y_i: SGD on F_i with the terms of the objective; weight decay and the variate's correction act at y."""
    y, mu = x, MU * ("prox" in chosen["objective"])
    for _ in range(STEPS[client]):
        at = y
        if "sam" in chosen["objective"]:
            g = gradient(y, client, 0) + mu * (y - x)
            at = y + RHO * g / np.linalg.norm(g)
        y = y - LR * (gradient(at, client, 0) + mu * (at - x) + DECAY * y + correction(y - x))
    return y


def ruled(chosen, updates):
    """R of the updates [n, P]."""
    if chosen["aggregator"] == "median":
        ordered = np.sort(updates, axis=0)
        return (ordered[(len(updates) - 1) // 2] + ordered[len(updates) // 2]) / 2
    lengths = np.linalg.norm(updates, axis=1)
    bound = np.sort(lengths)[[(len(updates) - 1) // 2, len(updates) // 2]].mean()
    scale = np.minimum(1, bound / lengths) if chosen["aggregator"] == "norm_bound" else np.ones(len(updates))
    return np.mean(scale[:, None] * updates, axis=0)


def stepped(chosen, way, state):
    """The server's step along the mean update."""
    kind = chosen["server_optimizer"]
    if kind == "average":
        return way
    if kind == "momentum":
        state["v"] = 0.6 * state.get("v", 0) + way
        return 0.5 * state["v"]
    state["m"] = 0.8 * state.get("m", 0) + 0.2 * way
    s = state.get("s", 0.01**2)
    state["s"] = {
        "adam": 0.7 * s + 0.3 * way**2,
        "yogi": s - 0.3 * way**2 * np.sign(s - way**2),
        "adagrad": s + way**2,
    }[kind]
    return 0.03 * state["m"] / (np.sqrt(state["s"]) + 0.01)


def by_hand(chosen, x, cohorts):
    """The model after these cohorts, from x. c, c_i and h_i as in SCAFFOLD and FedDC; FedDyn has h_i only."""
    controlled, drifting = chosen["variates"] in ("scaffold", "feddc"), chosen["variates"] in ("feddyn", "feddc")
    c, h, state = 0 * x, 0 * x, {}
    variates, drift = [0 * x] * 3, [0 * x] * 3
    for cohort in cohorts:
        ends, changes = [], []
        for i in cohort:
            pull = (c - variates[i]) * controlled

            def correction(moved, i=i, pull=pull):
                return pull + ALPHA * (moved + drift[i]) * drifting

            y = end(chosen, x, i, correction)
            change = (x - y) / (STEPS[i] * LR) - c
            variates[i], drift[i] = variates[i] + change * controlled, drift[i] + y - x
            ends.append(y)
            changes.append(change)
        way = ruled(chosen, np.stack(ends) - x)
        c, h = c + len(cohort) / 3 * ruled(chosen, np.stack(changes)), h + len(cohort) / 3 * way
        x = x + stepped(chosen, way, state) + h * drifting
    return x


@pytest.mark.parametrize("chosen", covering(), ids=lambda row: " ".join(filter(None, row.values())))
def test_a_pair_of_parts_is_the_loop_by_hand(run, chosen):
    overrides = [*WORDS, *overrides_of(chosen), f"train.local_steps_by_client={STEPS}", "strategy.byzantine=0"]
    finished = run(*overrides, "strategy.fraction=0.67", "seed=2", "rounds=3")
    cohorts = [record["cohort"] for record in finished.rounds]
    first = vector(run(*WORDS, "seed=2", "rounds=1", "train.local_steps=0").arrays)
    expected = by_hand(chosen, first, cohorts)
    np.testing.assert_allclose(vector(finished.arrays), expected, rtol=0, atol=1e-11)


def test_every_pair_is_combined_or_refused():
    seen = {pair for row in covering() for pair in itertools.combinations(row.items(), 2)}
    for (key, values), (other, others) in itertools.combinations(CHOICES.items(), 2):
        for value, another in itertools.product(values, others):
            chosen = {name: options[0] for name, options in CHOICES.items()} | {key: value, other: another}
            assert (((key, value), (other, another)) in seen) == (not refused(chosen))
            if refused(chosen):
                with pytest.raises(FedGraphError, match=f"strategy.variates={value} sets the next model,"):
                    check_method(compose(overrides_of(chosen)))

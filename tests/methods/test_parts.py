"""Parts of methods combined with each other, against rounds computed by hand; parts at their limits; refusals."""

import numpy as np
import pytest

from fedgraph_flwr.config import compose, to_json
from fedgraph_flwr.config.parts import KEYS, chosen
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.runs.checks import check_method
from tests.methods.regression import LR, TRAIN, WORDS, gradient, mean_of, start, vector
from tests.support import assert_same_arrays


def trained(x, client, steps=2):
    """SGD from x."""
    for _ in range(steps):
        x = x - LR * gradient(x, client)
    return x


def momentum(x, mean, state):
    state["v"] = 0.6 * state.get("v", 0) + (mean - x)
    return x + 0.5 * state["v"]


def adam(x, mean, state):
    m, v = state.get("m", 0), state.get("s", 0.01**2)
    state["m"], state["s"] = 0.8 * m + 0.2 * (mean - x), 0.7 * v + 0.3 * (mean - x) ** 2
    return x + 0.03 * state["m"] / (np.sqrt(state["s"]) + 0.01)


SERVERS = {
    "momentum": (momentum, ["strategy.momentum.beta=0.6", "strategy.momentum.server_lr=0.5"]),
    "adam": (
        adam,
        [f"strategy.adam.{key}" for key in ("beta1=0.8", "beta2=0.7", "tau=0.01", "server_lr=0.03")],
    ),
}


@pytest.mark.parametrize("optimizer", SERVERS)
def test_a_server_optimiser_steps_along_what_fednova_makes_of_unequal_clients(run, optimizer):
    """FedNova by hand, x + τ_eff Σ_i p_i (y_i − x)/K_i, is the mean that the optimiser takes."""
    rule, words = SERVERS[optimizer]
    steps = [1, 3, 2]
    words = [*words, f"strategy.server_optimizer={optimizer}", f"train.local_steps_by_client={steps}"]
    finished = run(*WORDS, "strategy=fednova", *words, "strategy.weighting=train")
    p, x, state = TRAIN / TRAIN.sum(), start(run), {}
    for _ in range(4):
        ways = [(trained(x, i, steps[i]) - x) / steps[i] for i in range(3)]
        x = rule(x, x + (p @ steps) * mean_of(ways, p), state)
    np.testing.assert_allclose(vector(finished.arrays), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["strategy=gcfl", "strategy.server_optimizer=adam"],
            "strategy.server_optimizer=adam needs the mean of the clients' models, and strategy=gcfl has a server, GCFL",
        ),
        (
            ["strategy=local", "strategy.server_optimizer=yogi"],
            r"strategy=local shares no parameters \(strategy.shared=\[\]\)",
        ),
        (["strategy=fedgrad", "strategy.server_optimizer=adam"], "has a server, FedGrad, that computes none"),
        (
            ["strategy.adam.tau=0.5"],
            "strategy.adam.tau=0.5 does nothing: strategy=fedavg does not use 'adam'; it uses no",
        ),
        (["strategy=fedavgm", "strategy.adam.tau=0.5"], "does not use 'adam'; it uses momentum"),
        (["strategy.server_optimizer=adm"], "strategy.server_optimizer 'adm' unknown; did you mean 'adam'"),
        (["strategy.tau=0.5"], "key 'tau' unknown"),
    ],
)
def test_impossible_combinations_are_refused_before_any_client_starts(words, message):
    with pytest.raises(FedGraphError, match=message):
        check_method(compose(words))


OLDER = {
    "fedavgm": ["server=fedgraph_flwr.strategies.fedavgm:FedAvgM"],
    "fedadam": ["server=strategies.fedopt:FedAdam"],
    "fedyogi": ["server=fedgraph_flwr.strategies.fedopt:FedYogi"],
    "fedadagrad": ["server=fedgraph_flwr.strategies.fedopt:FedAdagrad"],
}


@pytest.mark.parametrize("name", OLDER)
def test_older_classes_and_keys_mean_the_parts(name):
    """As in a configuration that an earlier release stored, and from the command line."""
    new = compose([f"strategy={name}"]).strategy
    (part,) = chosen(vars(new))
    key, value = next((k, v) for k, v in vars(getattr(new, part)).items() if isinstance(v, float))
    sides = "".join(f", {side.replace('=', ': ')!r}".replace("'", "") for side in OLDER[name])
    stored = to_json(compose([f"strategy={name}"]))
    for old in (
        compose([f"strategy={name}", f"strategy.{key}={value / 2}"]),
        compose(["strategy=fedavg", *(f"strategy.{side}" for side in OLDER[name]), f"strategy.{key}={value / 2}"]),
        compose([f"strategy.{key}={value / 2}"], stored),
    ):
        assert getattr(getattr(old.strategy, part), key) == value / 2, sides
        assert (old.strategy.server, old.strategy.client) == (new.server, new.client)
        assert chosen(vars(old.strategy)) == [part]
        assert old.strategy.params == {}


def test_another_method_starts_without_the_parts_of_the_last():
    stored = to_json(compose(["strategy=fedadam", "strategy.adam.tau=0.5", "strategy.fraction=0.5"]))
    other = compose(["strategy=fedavg"], stored).strategy
    assert (other.server_optimizer, other.adam.tau, other.fraction) == ("average", 1e-3, 0.5)


def test_every_part_is_chosen_by_its_name_and_its_keys_have_meanings():
    from fedgraph_flwr.config.key_docs import part_keys

    keys = part_keys()
    assert [key.name for key in keys if not key.meaning] == []
    named = {word for key in keys for word in key.accepted.split(" | ")}
    assert KEYS.keys() <= named


def test_a_server_optimiser_on_a_graph_specific_method(run):
    """FedGCN's clients, FedAvgM's server: at β = 0 and η = 1 it is FedGCN."""
    words = ["strategy=fedgcn", "rounds=2", "dtype=float64"]
    at_limit = ["strategy.server_optimizer=momentum", "strategy.momentum.beta=0", "strategy.momentum.server_lr=1"]
    plain, limit = run(*words), run(*words, *at_limit)
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(limit.arrays[name], array, rtol=1e-12, atol=1e-14)
    moved = run(*words, "strategy.server_optimizer=adam")
    with pytest.raises(AssertionError):
        assert_same_arrays(moved.arrays, plain.arrays)

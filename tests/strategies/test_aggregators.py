"""Rules in the place of the mean: what each gives, what it stands, and which methods have a use for it."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.server.strategy import aggregate as flower
from scipy.optimize import minimize

from fedgraph_flwr.config import AGGREGATORS, StrategyConfig, compose
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.methods.uplink import ARRAYS, Sum
from fedgraph_flwr.strategies import aggregators
from fedgraph_flwr.strategies.aggregators import RULES, combine
from fedgraph_flwr.strategies.summation.plain import Plain
from tests.conftest import client_graph

N, F, P = 11, 2, 7
HONEST = np.random.default_rng(0).normal(size=(N, P))
ORACLES = {
    "median": lambda parts: flower.aggregate_median(parts),
    "trimmed_mean": lambda parts: flower.aggregate_trimmed_avg(parts, (F + 0.01) / N),
    "krum": lambda parts: flower.aggregate_krum(parts, F, 0),
    "multi_krum": lambda parts: flower.aggregate_krum(parts, F, N - F - 2),
    "bulyan": lambda parts: flower.aggregate_bulyan(list(parts), F, flower.aggregate_krum, to_keep=0),
}


def rule(name: str, updates: np.ndarray, byzantine: int = F, **keys: float) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return RULES[name].combine(updates, StrategyConfig(byzantine=byzantine, **keys))


def test_every_word_of_the_schema_is_a_rule():
    assert set(AGGREGATORS) == {"mean", *RULES}


@pytest.mark.parametrize("name", ORACLES)
def test_rules_are_those_that_flower_has(name):
    """Flower's take lists of tensors and compute distances one by one."""
    theirs = np.concatenate(ORACLES[name]([([row[:3], row[3:]], 1) for row in HONEST]))
    np.testing.assert_allclose(rule(name, HONEST), theirs, rtol=1e-12)


def test_the_geometric_median_is_the_nearest_point():
    def objective(z):
        return np.linalg.norm(HONEST - z, axis=1).sum()

    best = minimize(objective, HONEST.mean(0), method="BFGS", tol=1e-12)
    assert objective(rule("geometric_median", HONEST)) <= best.fun * (1 + 1e-6)
    assert objective(HONEST.mean(0)) > best.fun * (1 + 1e-3)


@pytest.mark.parametrize("seed", range(20))
def test_the_geometric_median_is_found_also_where_it_is_an_update_or_starts_at_another(seed):
    """Odd numbers of updates of very different sizes: the coordinates' median is often an update, and so is the minimum."""
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(5, 2)) * 30 ** rng.random((5, 1))
    updates[1] = updates[0] if seed % 4 == 0 else updates[1]  # two clients that agree
    starts = [np.median(updates, 0), updates.mean(0), *updates]

    def objective(z):
        return np.linalg.norm(updates - z, axis=1).sum()

    best = min(
        minimize(objective, z, method="Nelder-Mead", options={"xatol": 1e-12, "fatol": 1e-12}).fun for z in starts
    )
    assert objective(rule("geometric_median", updates)) <= best * (1 + 1e-9)


def test_a_norm_bound_by_hand():
    updates = np.array([[3.0, 4.0], [0.0, 1.0], [2.0, 0.0]])  # of norms 5, 1, 2
    np.testing.assert_allclose(rule("norm_bound", updates), (updates * [[2 / 5], [1], [1]]).mean(0))  # at the median, 2
    np.testing.assert_allclose(rule("norm_bound", updates, norm_bound=1.0), [(0.6 + 1) / 3, (0.8 + 1) / 3])
    np.testing.assert_allclose(rule("norm_bound", updates, norm_bound=9.0), updates.mean(0))


@pytest.mark.parametrize("size", [1e3, 1e30, 1e200])
@pytest.mark.parametrize("name", RULES)
def test_liars_below_the_breakdown_point_do_not_carry_the_model_away(name, size):
    """However large the lie, and also where its square overflows, the step stays as long as an honest one."""
    lied = HONEST.copy()
    lied[[1, 4]] = [[size], [-size]]
    assert np.linalg.norm(rule(name, lied)) <= np.linalg.norm(HONEST, axis=1).max()
    lied[4] = size
    assert np.linalg.norm(rule(name, lied)) <= np.linalg.norm(HONEST, axis=1).max()


def test_a_sum_without_axes_by_a_rule_is_an_array():
    values = [{"scale": np.array(number, "float32")} for number in (1, 2, 6)]
    server = SimpleNamespace(cfg=compose(["strategy.aggregator=median"]))
    reduced = Plain(server)._robust_sum(Sum(ARRAYS), "other", values, [0, 1, 2])["scale"]
    assert isinstance(reduced, np.ndarray)
    assert reduced == 6


def test_a_client_is_judged_by_its_whole_model():
    """Tensor by tensor, Krum would take a from one client and b from another; here it takes both from one, bit for bit."""
    rng = np.random.default_rng(1)
    theta = {"a": rng.normal(size=(4, 2)).astype(np.float32), "b": rng.normal(size=3).astype(np.float32)}
    values = [{n: t + rng.normal(size=t.shape).astype(np.float32) for n, t in theta.items()} for _ in range(5)]
    chosen = combine(values, theta, StrategyConfig(aggregator="krum"))
    winners = [i for i, v in enumerate(values) if all(np.array_equal(v[n], chosen[n]) for n in theta)]
    alone = [
        next(
            i
            for i, v in enumerate(values)
            if np.array_equal(v[n], combine([{n: w[n]} for w in values], theta, StrategyConfig(aggregator="krum"))[n])
        )
        for n in theta
    ]
    assert len(winners) == 1
    assert alone[0] != alone[1]
    assert chosen["a"].dtype == np.float32


def test_bounds_hold_for_updates_and_not_for_models():
    theta = {"a": np.full(3, 100.0, np.float32)}
    values = [{"a": theta["a"] + np.float32(step)} for step in (1, 1, 50)]
    bounded = combine(values, theta, StrategyConfig(aggregator="norm_bound"))
    np.testing.assert_allclose(bounded["a"], 101, rtol=1e-6)
    np.testing.assert_allclose(combine(values, {}, StrategyConfig(aggregator="norm_bound"))["a"], 100.67, rtol=1e-2)


WORDS = [
    "dataset=csbm",
    "dataset.nodes_per_client=[60,90]",
    "rounds=15",
    "evaluation.select=last",
    "dataset.homophily=0.8",
]
LIAR = ["adversary.kind=sign_flip", "adversary.clients=[1]"]


@pytest.mark.slow
def test_one_liar_of_three_ruins_the_mean_and_not_the_median(run):
    def accuracy(*overrides, clients=3):
        return run(*WORDS, *overrides, sizes=(0,) * clients).summary["test_accuracy"]

    honest = accuracy()
    assert honest > 0.85
    assert accuracy(*LIAR) < 0.6
    for name in ("median", "trimmed_mean", "geometric_median"):
        assert accuracy(*LIAR, f"strategy.aggregator={name}") > honest - 0.1
    krum = ["strategy.aggregator=krum"]
    assert accuracy(*LIAR, *krum, clients=5) > accuracy(*krum, clients=5) - 0.1


@pytest.mark.parametrize("name", ["krum", "median", "geometric_median"])
@pytest.mark.parametrize("method", ["fedspa", "fedgrad"])
def test_groups_of_a_model_go_through_a_rule_as_one(run, monkeypatch, method, name):
    """FedSPA sends its model in groups, FedGrad gradients."""
    calls = []

    def seen(values, origin, cfg):
        calls.append([sorted(v) for v in values])
        return combine(values, origin, cfg)

    monkeypatch.setattr("fedgraph_flwr.strategies.aggregators.combine", seen)
    done = run(f"strategy={method}", f"strategy.aggregator={name}", "strategy.byzantine=0", "rounds=1")
    assert calls == [[sorted(done.arrays)] * 3]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strategy.aggregator=mode"], "strategy.aggregator 'mode' is unknown"),
        (["strategy.byzantine=-1"], "strategy.byzantine must be >= 0"),
        (["strategy=fedpub", "strategy.aggregator=median"], "fedpub does not average models"),
        (
            ["strategy=fedgta", "strategy.max_share=0.3"],
            "max_share=0.3 caps a weight, but strategy=fedgta has no weighted mean",
        ),
        (["strategy=fedtad", "strategy.aggregator=krum"], "fedtad does not average models"),
        (["strategy=local", "strategy.aggregator=median"], "local shares nothing"),
        (["strategy=central", "strategy.aggregator=median"], "central has one client"),
        (["strategy.aggregator=krum"], "at least 5 clients per round, and there are 3"),
        (["strategy.aggregator=bulyan"], "at least 7 clients per round, and there are 3"),
        (["strategy.aggregator=median", "strategy.fraction=0.5"], "at least 3 clients per round, and there are 2"),
        (
            ["strategy.aggregator=median", "privacy.dp=client_fixed", "strategy.weighting=uniform"],
            "aggregator=median does not",
        ),
    ],
)
def test_what_a_rule_cannot_do_is_said_before_any_client_starts(run, monkeypatch, overrides, message):
    monkeypatch.setattr("fedgraph_flwr.node.respond.client_at", lambda *_: pytest.fail("a client started"))
    with pytest.raises(FedGraphError, match=message):
        run(*overrides)


def test_clients_that_fail_may_leave_too_few(run, monkeypatch):
    from fedgraph_flwr.clients.base import GraphClient

    train = GraphClient.train

    def fails(self):
        if self.graph.client == 2 and self.server_round == 2:
            raise ValueError("gone")
        return train(self)

    monkeypatch.setattr(GraphClient, "train", fails)
    assert len(run().rounds) == 3
    with pytest.raises(
        RunFailed, match=r"2 clients replied with an update, but strategy.aggregator=median .* at least 3"
    ):
        run("strategy.aggregator=median")


@pytest.mark.parametrize(
    "strategy", ["fedavg", "scaffold", "fedgrad", "fedlit", "fedspa strategy.prior=false strategy.posterior=false"]
)
def test_clients_without_training_nodes_do_not_hold_the_model_back(run, tmp_path, strategy):
    """Only client 1 trains, so that each rule gives its model, as the mean by training nodes does."""
    overrides = [*f"strategy={strategy}".split(), "strategy.byzantine=0", "dtype=float64", "train.optimizer=sgd"]
    overrides += [_trained_by(tmp_path, {1})]
    mean = run(*overrides, "strategy.weighting=train")
    for name, weighting in itertools.product(("median", "norm_bound"), ("nodes", "uniform")):
        robust = run(*overrides, f"strategy.weighting={weighting}", f"strategy.aggregator={name}")
        for key, array in mean.arrays.items():
            np.testing.assert_allclose(robust.arrays[key], array, atol=1e-12, err_msg=f"{name}, {weighting}: {key}")


@pytest.mark.parametrize("trained", [set(), {1}])
def test_a_rule_without_enough_training_clients(run, tmp_path, trained):
    graphs = [_trained_by(tmp_path, trained), "strategy.weighting=uniform", "strategy.aggregator=median"]
    if trained:
        with pytest.raises(
            RunFailed, match=r"1 clients replied with an update, but .* needs at least 3 \(clients without"
        ):
            run(*graphs)
    else:  # where none trains, the model stays
        first, second = run(*graphs, "rounds=1"), run(*graphs, "rounds=2")
        for key, array in first.arrays.items():
            np.testing.assert_array_equal(second.arrays[key], array)


def _trained_by(folder, clients):
    """Files of three clients, of which only some have training nodes."""
    for client in range(3):
        graph = client_graph(client)
        graph.train_mask &= client in clients
        graph.save(folder / "graphs" / f"client_{client:04d}.safetensors")
    return f"graph={folder / 'graphs'}"


def test_shared_coefficients_have_no_rule():
    overrides = ["strategy=fedhgn", "strategy.private_schema=false", "strategy.shared=[coefficients,common]"]
    cfg = compose([*overrides, "strategy.aggregator=median"])
    from fedgraph_flwr.launch.checks import check_method

    with pytest.raises(FedGraphError, match="coefficients are averaged over the clients that hold a type"):
        check_method(cfg)


def test_least_clients_of_each_rule():
    """As the papers have them, with two liars."""
    least = {name: aggregator.least(2) for name, aggregator in RULES.items()}
    assert least == {
        **dict.fromkeys(("median", "trimmed_mean", "geometric_median"), 5),
        **{"krum": 7, "multi_krum": 7, "bulyan": 11, "norm_bound": 1},
    }
    assert aggregators.check_cohort(compose(["strategy.aggregator=bulyan", "num_clients=7"])) is None

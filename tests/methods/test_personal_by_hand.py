"""Ditto, APFL, FedALA and fine-tuning against NumPy: a two-layer GCN, its gradient and each method's rounds by hand."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from fedgraph_flwr.errors import FedGraphError
from tests.methods.gcn_by_hand import EXACT, LR, STEPS, Party, Theta, mean, mix, step, trained
from tests.methods.personal import made, scores_by_client

ROUNDS = 4
WORDS = [*EXACT, f"train.local_steps={STEPS}", f"rounds={ROUNDS}"]

PROX = ["strategy.objective=[prox]", "strategy.prox.mu=0.8"]


Scored = Iterator[list[Theta]]
"""The models that the clients are scored by, after each round."""


def ditto(parties: list[Party], w: Theta, lam: float) -> Scored:
    thetas = [w] * 3
    for _ in range(ROUNDS):
        for i, party in enumerate(parties):
            for _ in range(STEPS):
                slope = party.gradient(thetas[i])
                thetas[i] = step(thetas[i], {n: slope[n] + lam * (thetas[i][n] - w[n]) for n in w})
        w = mean([trained(party, w) for party in parties])
        yield thetas


def apfl(parties: list[Party], w: Theta, adaptive: bool, mu: float = 0.0) -> Scored:
    """The proximal term holds w_i alone."""
    thetas, alpha = [w] * 3, [0.5] * 3
    for _ in range(ROUNDS):
        local = [w] * 3
        for i, party in enumerate(parties):
            for k in range(STEPS):
                slope, share = party.gradient(mix(thetas[i], local[i], alpha[i])), alpha[i]
                if k == 0 and adaptive:
                    along = sum(float(((thetas[i][n] - local[i][n]) * slope[n]).sum()) for n in w)
                    alpha[i] = min(max(share - LR * along, 0.0), 1.0)
                thetas[i] = step(thetas[i], {n: share * slope[n] for n in w})
                local[i] = trained(party, local[i], 1, mu, w)
        w = mean(local)
        yield [mix(v, w, share) for v, share in zip(thetas, alpha, strict=True)]
    assert adaptive == (alpha != [0.5] * 3)


def fedala(parties: list[Party], w: Theta, eta: float, passes: int) -> Scored:
    head, weights = ("head.weight", "head.bias"), [None] * 3
    local = [trained(party, w) for party in parties]
    for _ in range(ROUNDS):
        w, start = mean(local), []
        for i, party in enumerate(parties):
            mixture = weights[i] or {n: np.ones_like(w[n]) for n in head}
            apart = {n: w[n] - local[i][n] for n in head}
            theta = w | {n: local[i][n] + mixture[n] * apart[n] for n in head}
            for _ in range(1 if weights[i] else passes):
                slope = party.gradient(theta)
                mixture = {n: np.clip(mixture[n] - eta * slope[n] * apart[n], 0, 1) for n in head}
                theta = w | {n: local[i][n] + mixture[n] * apart[n] for n in head}
            weights[i] = mixture
            start.append(theta)
        yield start
        local = [trained(party, theta) for party, theta in zip(parties, start, strict=True)]
    assert all(((mixture[n] > 0) & (mixture[n] < 1)).any() for mixture in weights for n in head)


def tuned(parties: list[Party], w: Theta, steps: int, mu: float = 0.0) -> Scored:
    """The proximal term holds w_i alone, not the tuned copy."""
    for _ in range(ROUNDS):
        w = mean([trained(party, w, mu=mu) for party in parties])
        yield [trained(party, w, steps) for party in parties]


@pytest.mark.parametrize(
    ("overrides", "by_hand"),
    [
        (["strategy=ditto", "strategy.lam=0.7"], lambda *a: ditto(*a, lam=0.7)),
        (["strategy=apfl"], lambda *a: apfl(*a, adaptive=True)),
        (["strategy=apfl", "strategy.adaptive=false"], lambda *a: apfl(*a, adaptive=False)),
        (
            ["strategy=fedala", "strategy.sample=1", "strategy.eta=40", "strategy.threshold=0", "strategy.passes=3"],
            lambda *a: fedala(*a, eta=40, passes=3),
        ),
        (["strategy=fedavg_ft", "strategy.steps=4"], lambda *a: tuned(*a, steps=4)),
        (["strategy=apfl", *PROX], lambda *a: apfl(*a, adaptive=True, mu=0.8)),
        (["strategy=fedavg_ft", "strategy.steps=4", *PROX], lambda *a: tuned(*a, steps=4, mu=0.8)),
    ],
    ids=["ditto", "apfl", "apfl fixed", "fedala", "fedavg_ft", "apfl beside prox", "fedavg_ft beside prox"],
)
def test_rounds_are_those_done_by_hand(overrides: list[str], by_hand: Callable[..., Scored], run):
    finished = run(*overrides, *WORDS)
    first = {n: t.double().numpy().copy() for n, t in made("fedavg").model.state_dict().items()}
    parties = [Party(client) for client in range(3)]
    for key, split in (("val-loss", "val"), ("test-loss", "test")):
        wanted = [
            [p.loss(t, p.val if split == "val" else ~(p.train | p.val)) for p, t in zip(parties, thetas, strict=True)]
            for thetas in by_hand(parties, first)
        ]
        np.testing.assert_allclose(scores_by_client(finished, key), wanted, rtol=1e-9)


@pytest.mark.parametrize("overrides", [[], ["train.optimizer=sgd", "train.momentum=0.9"]])
@pytest.mark.parametrize("own", [["strategy=ditto", "strategy.lam=0"], ["strategy=apfl", "strategy.alpha=1"]])
def test_a_model_that_nothing_pulls_is_locals(own, overrides, run):
    """Bit for bit, with dropout and normalisation: the own model meets the same draws, and keeps moments and statistics."""
    fixed = ["strategy.adaptive=false"] if "strategy=apfl" in own else []
    overrides = [*overrides, "rounds=4", "model.norm=batch"]
    assert scores_by_client(run(*own, *fixed, *overrides)) == scores_by_client(run("strategy=local", *overrides))


def test_ditto_is_held_the_nearer_the_larger_lambda():
    apart = []
    for lam in (0, 1, 5):
        client = made("ditto", f"strategy.lam={lam}", "train.optimizer=sgd", "train.lr=0.1", "train.local_steps=20")
        received = client.get_parameters({})
        client.train()
        tensors = client.memory["model"]
        apart.append(
            sum(float(((tensors[n].numpy() - w) ** 2).sum()) for n, w in zip(client.shared, received, strict=True))
        )
    assert apart[0] > 2 * apart[1] > 4 * apart[2] > 0


def test_tuning_as_long_as_a_round_gives_the_model_of_the_round(run):
    """With a fresh optimiser a round, what a client is tuned to is what it sends next."""
    overrides = ["train.optimizer_state=reset", "rounds=3"]
    tuned, fedavg = run("strategy=fedavg_ft", *overrides), run("evaluation.trained=true", *overrides)
    after = [record["train"]["trained_test_loss"] for record in fedavg.rounds]
    assert [record["metrics"]["test_loss"] for record in tuned.rounds[:-1]] == after[1:]


def test_fedala_takes_lower_layers_as_they_come_and_keeps_weights_in_range():
    client = made("fedala", "strategy.eta=1000")
    client.train()
    for _ in range(3):
        received = [array + np.float32(0.2) for array in client.get_parameters({})]
        client.set_parameters(received)
        start, weights = client.chosen_parts.personal.aggregated(client)
        assert set(start) == set(weights) == {"head.weight", "head.bias"}
        assert all(((w >= 0) & (w <= 1)).all() for w in weights.values())
        assert any((w < 1).any() for w in weights.values())
        for name, array in zip(client.shared, received, strict=True):
            np.testing.assert_array_equal(client.shared[name].detach().numpy(), array)
        client.train()


def test_fedala_learns_until_losses_rest_and_draws_anew():
    client = made("fedala", "strategy.sample=0.5")
    ala = client.chosen_parts.personal
    assert not ala.converged([1.0] * 10)
    assert ala.converged([9.0] + [1.0] * 10)
    assert not ala.converged([1.0, 1.3] * 6)
    draws = [ala.sampled(client).nodes.tolist() for _ in range(5)]
    trains = set(client.train_nodes.tolist())
    assert all(len(nodes) == len(set(nodes)) == len(trains) // 2 and set(nodes) < trains for nodes in draws)
    assert len({tuple(sorted(nodes)) for nodes in draws}) > 1


def test_apfls_share_moves_once_a_round_and_stays_in_range():
    client, seen = made("apfl", "train.lr=0.3", "train.optimizer=sgd", "train.local_steps=3"), []
    for _ in range(4):
        client.set_parameters([array + np.float32(0.3) for array in client.get_parameters({})])
        client.train()
        seen.append(float(client.memory["alpha"]))
    assert seen[0] == 0.5  # v is w in the first round
    assert len(set(seen)) > 1
    assert all(0 <= share <= 1 for share in seen)


@pytest.mark.parametrize(
    "word",
    [
        *("strategy=ditto strategy.lam=-1", "strategy=apfl strategy.alpha=1.5", "strategy=fedavg_ft strategy.steps=-1"),
        *("strategy=fedala strategy.sample=0", "strategy=fedala strategy.eta=-1", "strategy=fedala strategy.passes=0"),
    ],
)
def test_values_out_of_range_are_refused(word):
    with pytest.raises(FedGraphError, match=rf"strategy\.\w+\.{word.split('.')[1].split('=')[0]} must"):
        made(*(w.removeprefix("strategy=") for w in word.split()))

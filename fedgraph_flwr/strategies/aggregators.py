"""Robust aggregation: rules selected by `strategy.aggregator` instead of the weighted mean, for runs with malicious clients.

    θ^{t+1} = θ^t + R(Δ_1, ..., Δ_n),   Δ_i = θ_i − θ^t over the whole model, [P]

n clients replied, f of them (``strategy.byzantine``) may send anything. The breakdown point of a
rule is the largest share f / n for which its result stays bounded by the honest updates. All rules
weigh clients equally, because weights are claims that a malicious client can choose. The rules
apply to declared means and sums, not to other uploads that a method combines. No rule detects an
attack within the differences among honest clients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.serverapp.strategy.bulyan import aggregate_n_closest_weights

from fedgraph_flwr.config import RunConfig, StrategyConfig
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.wire.messages import Arrays, flat, shaped

# geometric median: distances that count as none, as a share of the median distance; (ours)
AT = 1e-9
PASSES = 1000


def median(updates: np.ndarray, cfg: StrategyConfig) -> np.ndarray:
    """Compute each coordinate's median (Yin et al., ICML 2018, Algorithm 1, option I); breakdown point 1/2. [n, P] → [P]."""
    return np.asarray(np.median(updates, axis=0))


def trimmed_mean(updates: np.ndarray, cfg: StrategyConfig) -> np.ndarray:
    """Compute each coordinate's mean without its f largest and f smallest values; needs n > 2f. [n, P] → [P].

    Yin et al., ICML 2018, option II.
    """
    f = cfg.byzantine
    n = len(updates)
    ordered = np.partition(updates, sorted({f, n - f - 1}), axis=0)
    return np.asarray(ordered[f : n - f].mean(axis=0))


def krum(updates: np.ndarray, cfg: StrategyConfig) -> np.ndarray:
    """Select the update with the least sum of squared distances to its n − f − 2 nearest; needs n ≥ 2f + 3. [n, P] → [P].

    Blanchard et al., NeurIPS 2017.
    """
    return np.asarray(updates[krum_scores(squared_distances(updates), cfg.byzantine).argmin()])


def multi_krum(updates: np.ndarray, cfg: StrategyConfig) -> np.ndarray:
    """Average the n − f − 2 updates of least Krum score (Blanchard et al., Section 4); needs n ≥ 2f + 3. [n, P] → [P]."""
    scores = krum_scores(squared_distances(updates), cfg.byzantine)
    best = np.argsort(scores, kind="stable")[: len(updates) - cfg.byzantine - 2]
    return np.asarray(updates[np.sort(best)].mean(axis=0))


def bulyan(updates: np.ndarray, cfg: StrategyConfig) -> np.ndarray:
    """Pick n − 2f updates by repeated Krum, then average each coordinate's n − 4f values nearest to its median.

    El Mhamdi et al., ICML 2018, Section 4; needs n ≥ 4f + 3. [n, P] → [P].
    """
    f = cfg.byzantine
    n = len(updates)
    distances = squared_distances(updates)
    left = list(range(n))
    picked: list[int] = []
    while len(picked) < n - 2 * f:
        scores = krum_scores(distances[np.ix_(left, left)], f)
        picked.append(left.pop(int(scores.argmin())))
    chosen = updates[np.sort(picked)]
    middle = [np.median(chosen, axis=0)]
    rows = [[row] for row in chosen]
    nearest = aggregate_n_closest_weights(middle, rows, n - 4 * f)
    return np.asarray(nearest[0])


def geometric_median(updates: np.ndarray, cfg: StrategyConfig) -> np.ndarray:
    """Compute argmin_z Σ_i ‖Δ_i − z‖ by Weiszfeld's algorithm as Vardi and Zhang (PNAS 2000, Eq. 2.6) change it, [n, P] → [P].

        R = Σ_{Δ_i ≠ z} (Δ_i − z) / ‖Δ_i − z‖,   z ← z + max(0, 1 − m / ‖R‖) R / Σ_{Δ_i ≠ z} 1 / ‖Δ_i − z‖

    m is the number of updates at z: Weiszfeld's own step (m = 0) stays for ever at an update that
    is not the minimum. Breakdown point 1/2. It starts at the coordinates' medians, since one
    malicious client can move the mean arbitrarily far, and ends at an update if that has the least
    sum of distances. A step of less than a billionth of the distances ends it.
    """
    center = np.median(updates, axis=0)
    for _ in range(PASSES):
        distances = norms(updates - center)
        near = distances <= AT * np.median(distances)
        weights = np.divide(1, distances, out=np.zeros_like(distances), where=~near)
        pull = weights @ (updates - center)
        force = np.sqrt(pull @ pull)
        step = max(1 - near.sum() / force, 0) * pull / weights.sum() if force else pull
        center = center + step
        if np.sqrt(step @ step) <= AT * np.median(distances):
            break
    distances = norms(updates - center)
    nearest = updates[distances.argmin()]
    known = np.isfinite(distances)
    if norms(updates - nearest)[known].sum() < distances[known].sum():
        return nearest.copy()
    return np.asarray(center)


def norm_bound(updates: np.ndarray, cfg: StrategyConfig) -> np.ndarray:
    """Average the updates after scaling each to a norm of at most ``strategy.norm_bound``, [n, P] → [P].

    A bound of 0 means the median norm of the updates. Sun et al., 2019, Section 3. One malicious
    client moves the model by at most bound / n per round, in any direction. The rule has no
    breakdown point, but limits the speed of an attack.
    """
    lengths = norms(updates)
    bound = cfg.norm_bound or np.median(lengths)
    factors = np.minimum(1, bound / np.maximum(lengths, 1e-300))
    return np.asarray((updates * factors[:, None]).mean(axis=0))


def norms(updates: np.ndarray) -> np.ndarray:
    """Return L2 norms [n] of rows [n, P]."""
    return np.sqrt(np.einsum("ij,ij->i", updates, updates))


def squared_distances(updates: np.ndarray) -> np.ndarray:
    """Return ‖Δ_i − Δ_j‖² [n, n]; overflow is not finite and sorts last."""
    products = updates @ updates.T
    squares = products.diagonal()
    distances = np.maximum(squares[:, None] + squares - 2 * products, 0)
    np.fill_diagonal(distances, 0)
    return np.asarray(distances)


def krum_scores(distances: np.ndarray, byzantine: int) -> np.ndarray:
    """Sum each row over its n − f − 2 nearest others, at least one: [n, n] → [n]."""
    nearest = max(len(distances) - byzantine - 2, 1)
    ordered = np.sort(distances, axis=1)
    return np.asarray(ordered[:, 1 : nearest + 1].sum(axis=1))


@dataclass(frozen=True)
class Rule:
    """A rule, and the number of clients it needs.

    Attributes:
        combine: updates [n, P] float64 → the step [P].
        times: a in n ≥ a f + b.
        plus: b.
    """

    combine: Callable[[np.ndarray, StrategyConfig], np.ndarray]
    times: int
    plus: int

    def least(self, byzantine: int) -> int:
        """Return the fewest clients that tolerate ``byzantine`` malicious ones among them."""
        return self.times * byzantine + self.plus


RULES = {
    "median": Rule(median, 2, 1),
    "trimmed_mean": Rule(trimmed_mean, 2, 1),
    "krum": Rule(krum, 2, 3),
    "multi_krum": Rule(multi_krum, 2, 3),
    "bulyan": Rule(bulyan, 4, 3),
    "geometric_median": Rule(geometric_median, 2, 1),
    "norm_bound": Rule(norm_bound, 0, 1),
}


def combine(
    values: list[Arrays], origin: Mapping[str, np.ndarray], cfg: StrategyConfig
) -> Arrays:
    """Combine clients' arrays by the configured rule, with all arrays of a client as one vector.

    Args:
        values: arrays per client, with the same names and shapes.
        origin: start of the updates; a missing name starts from 0.
        cfg: names the rule.

    Raises:
        RunFailed: fewer clients replied than the rule needs.
    """
    rule = RULES[cfg.aggregator]
    if len(values) < (least := rule.least(cfg.byzantine)):
        raise RunFailed(
            f"{len(values)} clients replied with an update, but {_needs(cfg)} at least {least} (clients without training nodes do"
            " not count; lower strategy.byzantine)"
        )
    first = values[0]
    start = flat(
        {name: origin.get(name, np.zeros_like(array)) for name, array in first.items()}
    )
    with np.errstate(over="ignore", invalid="ignore"):
        updates = np.stack([flat(v) for v in values]) - start
        vector = start + rule.combine(updates, cfg)
    return shaped(vector, first)


def check_cohort(cfg: RunConfig) -> None:
    """Refuse a rule that needs more clients than a round has.

    Raises:
        FedGraphError: names the rule, the clients it needs and those of a round.
    """
    rules = cfg.strategy
    size = rules.cohort_size(cfg.num_clients)
    if rules.aggregator == "mean":
        return
    least = RULES[rules.aggregator].least(rules.byzantine)
    if size < least:
        raise FedGraphError(
            f"{_needs(rules)} at least {least} clients per round, and there are {size} (num_clients={cfg.num_clients},"
            f" strategy.fraction={rules.fraction:g}): lower strategy.byzantine or set another strategy.aggregator"
        )


def _needs(cfg: StrategyConfig) -> str:
    return f"strategy.aggregator={cfg.aggregator} with strategy.byzantine={cfg.byzantine} needs"

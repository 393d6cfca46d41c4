"""Rules that put clients' models together although some clients lie: `strategy.aggregator` in the place of the weighted mean.

    θ^{t+1} = θ^t + R(Δ_1, ..., Δ_n),   Δ_i = θ_i − θ^t over the whole model, [P]

n clients answered, f of them (``strategy.byzantine``) may have sent anything. A rule's breakdown point is the largest share f / n
under which what it gives stays bounded by the honest updates. All rules count every client once: weights are what clients say of
themselves, and a liar says what it likes. Guarded is what goes through `GraphStrategy.average`, and nothing that a method pools
beside it. None of them sees a lie that is no larger than honest clients differ among themselves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.serverapp.strategy.bulyan import aggregate_n_closest_weights

from fedgraph_flwr.config import RunConfig, StrategyConfig
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.wire.messages import Arrays, flat, shaped

SMOOTHING, IMPROVEMENT, PASSES = 1e-6, 1e-6, 100  # of the geometric median; Pillutla et al., Section 5 and Algorithm 2


def median(updates: np.ndarray, cfg: StrategyConfig) -> np.ndarray:
    """Each coordinate's median (Yin et al., ICML 2018, Algorithm 1, option I); breakdown point 1/2. [n, P] → [P]."""
    return np.asarray(np.median(updates, axis=0))


def trimmed_mean(updates: np.ndarray, cfg: StrategyConfig) -> np.ndarray:
    """Each coordinate's mean without its f largest and f smallest values (Yin et al., option II); needs n > 2f. [n, P] → [P]."""
    f, n = cfg.byzantine, len(updates)
    return np.asarray(np.partition(updates, sorted({f, n - f - 1}), axis=0)[f : n - f].mean(axis=0))


def krum(updates: np.ndarray, cfg: StrategyConfig) -> np.ndarray:
    """The update with the least sum of squared distances to its n − f − 2 nearest; needs n ≥ 2f + 3. [n, P] → [P].

    Blanchard et al., NeurIPS 2017.
    """
    return np.asarray(updates[krum_scores(squared_distances(updates), cfg.byzantine).argmin()])


def multi_krum(updates: np.ndarray, cfg: StrategyConfig) -> np.ndarray:
    """The mean of the n − f − 2 updates of least Krum score (Blanchard et al., Section 4); needs n ≥ 2f + 3. [n, P] → [P]."""
    scores = krum_scores(squared_distances(updates), cfg.byzantine)
    best = np.argsort(scores, kind="stable")[: len(updates) - cfg.byzantine - 2]
    return np.asarray(updates[np.sort(best)].mean(axis=0))


def bulyan(updates: np.ndarray, cfg: StrategyConfig) -> np.ndarray:
    """Of n − 2f updates that Krum picks one after another, each coordinate's mean of the n − 4f values nearest its median.

    El Mhamdi et al., ICML 2018, Section 4; needs n ≥ 4f + 3. [n, P] → [P].
    """
    f, n = cfg.byzantine, len(updates)
    distances, left = squared_distances(updates), list(range(n))
    picked: list[int] = []
    while len(picked) < n - 2 * f:
        picked.append(left.pop(int(krum_scores(distances[np.ix_(left, left)], f).argmin())))
    chosen = updates[np.sort(picked)]
    nearest = aggregate_n_closest_weights([np.median(chosen, axis=0)], [[row] for row in chosen], n - 4 * f)
    return np.asarray(nearest[0])


def geometric_median(updates: np.ndarray, cfg: StrategyConfig) -> np.ndarray:
    """argmin_z Σ_i ‖Δ_i − z‖ by the smoothed Weiszfeld algorithm (Pillutla et al., IEEE TSP 2022), [n, P] → [P].

    Breakdown point 1/2.

    It starts at the coordinates' medians, where the paper starts at the mean, which one liar moves anywhere.
    """
    center = np.median(updates, axis=0)
    distances = norms(updates - center)
    for _ in range(PASSES):
        weights = 1 / np.maximum(distances, SMOOTHING)
        center = weights / weights.sum() @ updates
        former, distances = distances, norms(updates - center)
        known = np.isfinite(former) & np.isfinite(distances)
        if (former - distances)[known].sum() <= IMPROVEMENT * former[known].sum():
            break
    return np.asarray(center)


def norm_bound(updates: np.ndarray, cfg: StrategyConfig) -> np.ndarray:
    """The mean of updates scaled to ``strategy.norm_bound`` at most (Sun et al., 2019, Section 3), [n, P] → [P].

    A bound of 0 means the median norm of the updates.

    One liar moves the model by bound / n a round at most, in any direction: no breakdown point, but a speed limit.
    """
    lengths = norms(updates)
    bound = cfg.norm_bound or np.median(lengths)
    return np.asarray((updates * np.minimum(1, bound / np.maximum(lengths, 1e-300))[:, None]).mean(axis=0))


def norms(updates: np.ndarray) -> np.ndarray:
    """L2 norms [n] of rows [n, P]."""
    return np.sqrt(np.einsum("ij,ij->i", updates, updates))


def squared_distances(updates: np.ndarray) -> np.ndarray:
    """‖Δ_i − Δ_j‖² [n, n]; not finite where it overflows, which sorting puts last."""
    products = updates @ updates.T
    squares = products.diagonal()
    distances = np.maximum(squares[:, None] + squares - 2 * products, 0)
    np.fill_diagonal(distances, 0)
    return np.asarray(distances)


def krum_scores(distances: np.ndarray, byzantine: int) -> np.ndarray:
    """Each row's sum over its n − f − 2 nearest others, of which at least one counts: [n, n] → [n]."""
    nearest = max(len(distances) - byzantine - 2, 1)
    return np.asarray(np.sort(distances, axis=1)[:, 1 : nearest + 1].sum(axis=1))


@dataclass(frozen=True)
class Rule:
    """A rule, and how many clients it needs.

    Attributes:
        combine: updates [n, P] float64 → the step [P].
        times: a of n ≥ a f + b.
        plus: b.
    """

    combine: Callable[[np.ndarray, StrategyConfig], np.ndarray]
    times: int
    plus: int

    def least(self, byzantine: int) -> int:
        """The fewest clients that stand ``byzantine`` liars among them."""
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


def combine(values: list[Arrays], origin: Mapping[str, np.ndarray], cfg: StrategyConfig) -> Arrays:
    """Clients' arrays by the rule that the configuration names, all of a client's arrays as one vector.

    Args:
        values: of each client, the same names and shapes.
        origin: what their updates start from; names that it lacks start from 0.
        cfg: names the rule.

    Raises:
        RunFailed: fewer clients answered than the rule needs.
    """
    rule = RULES[cfg.aggregator]
    if len(values) < (least := rule.least(cfg.byzantine)):
        raise RunFailed(f"{len(values)} clients answered, and {_needs(cfg)} at least {least}")
    first = values[0]
    start = flat({name: origin.get(name, np.zeros_like(array)) for name, array in first.items()})
    with np.errstate(over="ignore", invalid="ignore"):
        vector = start + rule.combine(np.stack([flat(v) for v in values]) - start, cfg)
    return shaped(vector, first)


def check_cohort(cfg: RunConfig) -> None:
    """Refuse a rule that needs more clients than a round has.

    Raises:
        FedGraphError: one sentence.
    """
    rules = cfg.strategy
    size = rules.cohort_size(cfg.num_clients)
    if rules.aggregator != "mean" and size < (least := RULES[rules.aggregator].least(rules.byzantine)):
        raise FedGraphError(
            f"{_needs(rules)} at least {least} clients a round, and there are {size} (num_clients={cfg.num_clients},"
            f" strategy.fraction={rules.fraction:g}): lower strategy.byzantine or take another aggregator"
        )


def _needs(cfg: StrategyConfig) -> str:
    return f"strategy.aggregator={cfg.aggregator} with strategy.byzantine={cfg.byzantine} needs"

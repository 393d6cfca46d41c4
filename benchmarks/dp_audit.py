"""Empirical audit of ε: noise, adaptive norms, sampled cohorts, floats and scores for clients; rows and payments of a party.

    python -m benchmarks.dp_audit                      # 20,000 trials a world
    python -m benchmarks.dp_audit --trials 2000

In one world a canary client sends an update ten times as long as the clipping norm, in the other it sends zeros. The
project's own mechanism releases the sum, `RELEASES` times, and the auditor guesses the world from the projection on the canary's
direction. With adaptive norms, the auditor also learns the noisy number of clipped clients from the next norm, and adds both by
their likelihoods. Half of the trials choose the threshold, the other half count errors. Clopper-Pearson intervals bound both
error rates α and β, which gives two lower bounds on the privacy loss:

    threshold audit    ε ≥ log((1 − δ − β) / α), and the same with α and β exchanged
    μ-GDP audit        μ ≥ Φ⁻¹(1 − α) − Φ⁻¹(β), and from μ the exact ε (Gaussian noise, Skellam of large variance)

`sampled` draws the cohort as a run does; every other client's update is the opposite of the canary's. `float64` and `scores` look
at the least bits of what is released: could Gaussian noise in floats have given it, if the canary had sent zeros?

`row` has a canary row among a party's clipped gradients, `row_secure` in a secure sum whose auditor is a member and knows its own
noise. `payment` has a canary payment and 2R rows that read it, whose columns without it give the opposite gradients. The same
three with `_planted` are edges under parameters that a server chose, for which the terms of both ends almost cancel.

An audited value above the claimed one proves an error. `PLANTED` are some: noise half as wide as claimed, or noise for a row
where the unit is a payment.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri
from scipy.stats import beta, norm

from fedgraph_flwr.clients.fedgrad import FedGradClient
from fedgraph_flwr.config import PrivacyConfig, compose
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.methods import cohorts
from fedgraph_flwr.secure import noise, rows
from fedgraph_flwr.secure.accounting import cost, least_sensitivity, skellam_epsilon
from fedgraph_flwr.secure.adaptive import bit, count_noise, value_multiplier
from fedgraph_flwr.secure.clipping import clipped
from fedgraph_flwr.secure.distributed import DistributedNoise
from fedgraph_flwr.strategies.privacy import Privacy, Terms
from fedgraph_flwr.wire.messages import CLIPPED, MODEL

NOISE, RELEASES, DELTA, NORM = 2 / 3, 1, 1e-5, 0.5
SIZE, CLIENTS, NEEDED, BITS = 12, 4, 3, 20
LOOK_BACK = 2
PLANTED = dict.fromkeys(("payment", "payment_planted"), 1 / (4 * LOOK_BACK + 1))
"""Factor of the noise of the mechanism that the audit must catch, else one half."""

Scores = NDArray[np.float64]
Mechanism = Callable[[bool, float, int], float]
"""From whether the canary takes part, the factor of the noise and the number of releases, the auditor's statistic."""


def delta_at(epsilon: float, mu: float) -> float:
    """Return δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) of T releases with Gaussian noise, μ = √T / z.

    They are exactly as private as one with z / √T (Dong, Roth & Su, JRSS B 2022; Balle & Wang, ICML 2018, Theorem 8).
    """
    return math.exp(log_ndtr(mu / 2 - epsilon / mu)) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def epsilon_at(delta: float, noise_multiplier: float, releases: int) -> float:
    """Return the least ε of releases with Gaussian noise with δ(ε) ≤ ``delta``, rounded up; 0 before the first release."""
    if not releases:
        return 0.0
    mu = math.sqrt(releases) / noise_multiplier
    low, high = 0.0, 1.0
    while delta_at(high, mu) > delta:
        high *= 2
    for _ in range(100):  # more than the bits of a float64
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle, mu) > delta else (low, middle)
    return high


def _canary(present: bool) -> NDArray[np.float64]:
    """Return an update along the first axis, ten times as long as the norm, or zeros."""
    update = np.zeros(SIZE)
    update[0] = 10 * NORM * present
    return update


def central(present: bool, factor: float, releases: int) -> float:
    """Release by `Privacy.release`, in which the server clips and adds the noise."""
    private, origin = _privacy("server_fixed", NOISE * factor), {"w": np.zeros(SIZE)}
    values = [{"w": _canary(present)}, *[origin] * (CLIENTS - 1)]
    terms = {MODEL: Terms(origin, values, [1.0] * CLIENTS, float(CLIENTS))}
    return sum(float(private.release(terms)[MODEL]["w"][0]) for _ in range(releases))


@cache
def _privacy(dp: str, multiplier: float) -> Privacy:
    keys = ["strategy.weighting=uniform", "privacy.dp=server_fixed", f"num_clients={CLIENTS}"]
    private = Privacy(compose([*keys, "privacy.noise_multiplier=2"]))
    private.cfg = replace(private.cfg, dp=dp, noise_multiplier=multiplier, clipping_norm=NORM)
    return private


def distributed(present: bool, factor: float, releases: int) -> float:
    """Release with `DistributedNoise` of the minimum number of survivors, summed as in a secure sum."""
    rules = PrivacyConfig("distributed", NOISE * factor, NORM, secagg=True, secagg_bits=BITS)
    noise, ratios, total = DistributedNoise(rules), {MODEL: 1 / CLIENTS}, 0.0
    for _ in range(releases):
        for client in range(NEEDED):
            update = clipped(_canary(present and not client), NORM)
            total += float(noise.terms({MODEL: {"w": update}}, ratios, CLIENTS, NEEDED)[0])
    return total


def central_adaptive(present: bool, factor: float, releases: int) -> float:
    """`Privacy.release` with adaptive norms; without the canary, the sum has one client less."""
    private, likelihood = _privacy("server_adaptive", NOISE * factor), 0.0
    rules, private.norms = private.cfg, {}
    origin = {"w": np.zeros(SIZE)}
    values = [{"w": _canary(True)}] * present + [origin] * (CLIENTS - 1)
    for _ in range(releases):
        norm = private.norm(MODEL)
        released = private.release({MODEL: Terms(origin, values, [1.0] * len(values), float(CLIENTS))})
        share = rules.clipping_quantile - math.log(private.norm(MODEL) / norm) / rules.clipping_rate
        likelihood += _likelihood(rules, CLIENTS * float(released[MODEL]["w"][0]) / norm, CLIENTS * (share - 0.5))
    return likelihood


def distributed_adaptive(present: bool, factor: float, releases: int) -> float:
    """`DistributedNoise` of the fewest survivors with adaptive norms: values in units of the norm, and bits."""
    rules = PrivacyConfig("distributed_adaptive", NOISE * factor, NORM, secagg=True, secagg_bits=BITS)
    drawn, ratios = DistributedNoise(rules, cohort=CLIENTS), {MODEL: 1 / CLIENTS, CLIPPED: 1 / CLIENTS}
    likelihood, unit = 0.0, CLIENTS / 2.0**BITS
    for _ in range(releases):
        total = np.zeros(SIZE + 1)
        for client in range(NEEDED):
            here = present and not client
            update, indicator = clipped(_canary(here), NORM) / NORM, bit(10 * NORM if here else 0.0, NORM)
            groups = {MODEL: {"w": update}, CLIPPED: {MODEL: np.array([indicator if client or here else 0.0])}}
            total += unit * drawn.terms(groups, ratios, CLIENTS, NEEDED)
        likelihood += _likelihood(rules, float(total[0]), float(total[-1]))
    return likelihood


def _likelihood(rules: PrivacyConfig, value: float, count: float) -> float:
    """The log-likelihood ratio of the canary but for a constant, from its value in units of the norm and the sum of bits."""
    return value / value_multiplier(rules, 1, CLIENTS) ** 2 - count / (2 * count_noise(rules, 1, CLIENTS) ** 2)


def sampled(present: bool, factor: float, releases: int) -> float:
    """Release means over sampled cohorts, in which nobody may take an absent canary's place."""
    private, seed, origin, total = _privacy("server_fixed", NOISE * factor), 1, {"w": np.zeros(SIZE)}, 0.0
    canary = cohorts.draw(range(10), 5, 1, "cohort", 1)[0]
    for _ in range(releases):
        clients = [client for client in range(10) if present or client != canary]
        drawn = cohorts.draw(clients, 5, seed, "cohort", 1, places=10)
        values = [{"w": _canary(True) * (1 if client == canary else -1)} for client in drawn]
        released = private.release({MODEL: Terms(origin, values, [1.0] * len(values), 5.0)})
        total += float(released[MODEL]["w"][0])
    return total


def float64(present: bool, factor: float, releases: int) -> float:
    """`Privacy.release` of float64 arrays: the projection, and whether floats with Gaussian noise on zeros can give it.

    The canary lies along the diagonal: each coordinate could be such a float by chance, all of them hardly.
    """
    private, origin = _privacy("server_fixed", NOISE * factor), {"w": np.zeros(SIZE)}
    values = [{"w": np.full(SIZE, 10 * NORM * present)}, *[origin] * (CLIENTS - 1)]
    released = private.release({MODEL: Terms(origin, values, [1.0] * CLIENTS, float(CLIENTS))})[MODEL]["w"]
    bit = all(possible(CLIENTS * value, NOISE * factor * NORM) for value in released)
    return float(released.sum()) / math.sqrt(SIZE) - 10.0 * bit


def noised_scores(present: bool, factor: float, releases: int) -> float:
    """`Privacy.release_scores`, likewise: the canary's scores are (1, 1), an absent client's 0."""
    private = _privacy("server_fixed", NOISE * factor)
    names = [f"{split}-{private.metric}" for split in ("val", "test")]
    released = private.release_scores({name: [float(present), *[0.0] * (CLIENTS - 1)] for name in names})
    bit = all(possible(CLIENTS * value, NOISE * factor * math.sqrt(2)) for value in released.values())
    return sum(released.values()) - 10.0 * bit


def possible(value: float, deviation: float) -> bool:
    """Return whether ``deviation * Φ⁻¹(u)``, for u on the grid of 53 bits, gives exactly this float.

    Of a mean of four values, its sum is asked for: a fourth of a float has the same bits.
    """
    place = round(ndtr(value / deviation) * 2.0**53 - 0.5)
    grid = (np.arange(place - 200, place + 201) + 0.5) * 2.0**-53
    return bool((deviation * ndtri(grid[(grid > 0) & (grid < 1)]) == value).any())


UNITS = {
    "row": PrivacyConfig("local", NOISE, NORM, unit="row", rows=1000, scores="none"),
    "row_secure": PrivacyConfig(
        "distributed", NOISE, NORM, unit="row", rows=1000, scores="none", secagg=True, secagg_bits=BITS
    ),
    "payment": PrivacyConfig(
        "local", NOISE, NORM, unit="payment", rows=500_000, delta=1e-6, look_back=LOOK_BACK, scores="none"
    ),
}
"""Privacy of the mechanisms whose unit is not a client."""
UNITS |= {f"{kind}_planted": rules for kind, rules in UNITS.items()}


@cache
def _sum(kind: str, present: bool) -> NDArray[np.float64]:
    """Return a party's sum of clipped gradients over ten rows and what the canary is or changes, projected axis first."""
    if kind.endswith("_planted"):
        return _planted_sum(kind, present)
    places, canary = np.arange(10) % 3, 3.0 * np.ones((1, SIZE))
    readers = np.repeat(canary if present else -canary, 2 * LOOK_BACK * (kind == "payment"), axis=0)
    x = np.concatenate([np.eye(3, SIZE)[places], readers, canary[:present]])
    mask = torch.ones(len(x), dtype=torch.bool)
    empty = torch.zeros(2, 0, dtype=torch.int64)
    y = torch.tensor([*places % 2, *[0] * (len(x) - 10)])
    graph = ClientGraph(torch.from_numpy(x).float(), empty, y, mask, ~mask, ~mask, num_classes=2, num_clients=1)
    graph.node_id, graph.num_global_nodes = torch.arange(len(x)), len(x)
    keys = ["strategy=fedgrad", "model=mlp", "model.layers=1", "model.dropout=0", "num_clients=1", "privacy.unit=row"]
    keys += ["privacy.dp=local", "privacy.rows=1000", "privacy.noise_multiplier=1", "privacy.scores=none"]
    client = FedGradClient(compose(keys), graph)
    with torch.no_grad():
        for tensor in client.model.parameters():
            tensor.zero_()
    sums = client.training_rows.clipped_sums(torch.arange(len(x)), NORM)
    return np.concatenate([t.numpy().ravel() for t in sums.values()])


def _planted_sum(kind: str, present: bool) -> NDArray[np.float64]:
    """Return the sum of a party whose rows are edges, under planted parameters; with payments, edges that read one turn round."""
    readers = 2 * LOOK_BACK * kind.startswith("payment")
    turned = [[0] * readers, [1] * readers] if present else [[1] * readers, [0] * readers]
    ends = np.concatenate([np.full((2, 10), 2), turned, np.array([[0], [1]])[:, :present]], axis=1)
    x = torch.tensor([[3.0] * 4, [0.0] * 4, [1.0] * 4])
    mask = torch.ones(len(x), dtype=torch.bool)
    y = torch.zeros(len(x), dtype=torch.int64)
    graph = ClientGraph(x, torch.from_numpy(ends).long(), y, mask, ~mask, ~mask, num_classes=2, num_clients=1)
    graph.node_id, graph.num_global_nodes = torch.arange(len(x)), len(x)
    graph.edge_attr, graph.edge_y, graph.num_edge_classes = (
        torch.zeros(ends.shape[1], 1),
        torch.zeros(ends.shape[1]).long(),
        2,
    )
    graph.edge_split = torch.zeros(ends.shape[1], dtype=torch.int8)
    keys = ["strategy=fedgrad", "model=mlp", "model.hidden=4", "model.dropout=0", "num_clients=1", "task=edges"]
    keys += ["privacy.dp=local", "privacy.unit=row", "privacy.rows=1000", "privacy.noise_multiplier=1"]
    client = FedGradClient(compose([*keys, "privacy.scores=none", "dtype=float64"]), graph)
    tensors = client.model.tensors
    with torch.no_grad():
        tensors["layers.0.bias"].fill_(1e12)
        tensors["head.weight"].fill_(1e-16)
        tensors["readout.source.weight"].copy_(1e8 * torch.eye(4))
        tensors["readout.target.weight"].copy_(-1e8 * torch.eye(4))
        tensors["readout.source.bias"].fill_(1.0)
    sums = client.training_rows.clipped_sums(torch.arange(ends.shape[1]), NORM)
    return np.concatenate([t.numpy().ravel() for t in sums.values()])


def _projected(kind: str, released: NDArray[np.float64]) -> float:
    """Return the statistic: the projection on what the canary changes."""
    axis = _sum(kind, True) - _sum(kind, False)
    return float(released @ axis / np.linalg.norm(axis))


def row(present: bool, factor: float, releases: int, kind: str = "row") -> float:
    """Release a party's sum by `rows.released`."""
    rules = replace(UNITS[kind], noise_multiplier=NOISE * factor)
    sums = (rows.released(_sum(kind, present), NORM, rules, noise.source()) for _ in range(releases))
    return sum(_projected(kind, total) for total in sums)


def row_secure(present: bool, factor: float, releases: int, kind: str = "row") -> float:
    """Sum `DistributedNoise` of the minimum number of survivors, without the noise of one of them."""
    drawn, total = DistributedNoise(replace(UNITS["row_secure"], noise_multiplier=NOISE * factor)), 0.0
    for _ in range(releases):
        values = [_sum(kind, present), *[np.zeros_like(_sum(kind, present))] * (NEEDED - 2)]
        terms = [drawn.terms({MODEL: {"w": v}}, {MODEL: 1 / CLIENTS}, CLIENTS, NEEDED) for v in values]
        total += _projected(kind, np.sum(terms, axis=0) * (CLIENTS / 2.0**BITS))
    return total


MECHANISMS: dict[str, Mechanism] = {
    "central": central,
    "sampled": sampled,
    "float64": float64,
    "scores": noised_scores,
    "distributed": distributed,
    "central_adaptive": central_adaptive,
    "distributed_adaptive": distributed_adaptive,
    "row": row,
    "row_secure": row_secure,
    "payment": partial(row, kind="payment"),
    "row_planted": partial(row, kind="row_planted"),
    "row_secure_planted": partial(row_secure, kind="row_planted"),
    "payment_planted": partial(row, kind="payment_planted"),
}


def scores(mechanism: Mechanism, trials: int, factor: float = 1.0, releases: int = RELEASES) -> tuple[Scores, Scores]:
    """Return the auditor's statistic in trials with the canary, and in as many without."""
    inside, outside = (np.array([mechanism(here, factor, releases) for _ in range(trials)]) for here in (True, False))
    return inside, outside


def upper(errors: int, trials: int, confidence: float) -> float:
    """Return Clopper and Pearson's upper bound on an error rate."""
    return 1.0 if errors == trials else float(beta.ppf(confidence, errors + 1, trials - errors))


def audited(inside: Scores, outside: Scores, delta: float, confidence: float = 0.95) -> dict[str, float]:
    """Return lower bounds on μ and ε that hold with the given confidence.

    Args:
        inside: statistics with the canary.
        outside: without it.
        delta: δ.
        confidence: joint confidence of both error rates.
    """
    half, level = len(inside) // 2, 1 - (1 - confidence) / 2
    thresholds = np.quantile(np.concatenate([inside[:half], outside[:half]]), np.linspace(0.01, 0.99, 99))

    def bounds(threshold: float, chosen: slice) -> tuple[float, float]:
        false_alarms, misses = int((outside[chosen] > threshold).sum()), int((inside[chosen] <= threshold).sum())
        count = len(inside[chosen])
        alpha, miss = upper(false_alarms, count, level), upper(misses, count, level)
        mu = float(norm.isf(alpha) - norm.ppf(miss))
        ratios = [(1 - delta - miss, alpha), (1 - delta - alpha, miss)]
        return mu, max([0.0, *(math.log(over / under) for over, under in ratios if over > 0)])

    first, second = slice(0, half), slice(half, None)
    mu = bounds(max(thresholds, key=lambda t: bounds(t, first)[0]), second)[0]
    epsilon = bounds(max(thresholds, key=lambda t: bounds(t, first)[1]), second)[1]
    return {"threshold": epsilon, "gdp": epsilon_at(delta, 1 / mu, 1) if mu > 0 else 0.0, "mu": mu}


def claimed(kind: str, releases: int = RELEASES) -> float:
    """Return the ε that a run would report."""
    if kind in UNITS:
        return skellam_epsilon(DELTA, NOISE, releases, least_sensitivity(UNITS[kind], CLIENTS))
    if not kind.startswith("distributed"):
        return cost(PrivacyConfig("server_fixed", NOISE, NORM, delta=DELTA), CLIENTS, releases)
    return cost(PrivacyConfig(kind, NOISE, NORM, delta=DELTA, secagg=True, secagg_bits=BITS), CLIENTS, releases)


def main() -> None:
    """Print claimed and audited ε of each mechanism, without and with the planted error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=20_000, help="per world")
    parser.add_argument("--only", nargs="+", choices=MECHANISMS, default=list(MECHANISMS), metavar="MECHANISM")
    args = parser.parse_args()
    trials = args.trials
    print(f"z = {NOISE:.3g}, {RELEASES} release(s), δ = {DELTA:g}, {trials} trials per world")
    print(f"{'mechanism':<20} {'noise':>6} {'claimed':>8} {'threshold':>10} {'μ-GDP':>7}")
    for kind, mechanism in ((kind, MECHANISMS[kind]) for kind in args.only):
        for factor in (1.0, PLANTED.get(kind, 0.5)):
            audit = audited(*scores(mechanism, trials, factor), DELTA)
            caught = "  caught" if max(audit["gdp"], audit["threshold"]) > claimed(kind) else ""
            print(
                f"{kind:<20} {factor:6.3g} {claimed(kind):8.2f} {audit['threshold']:10.2f} {audit['gdp']:7.2f}{caught}"
            )


if __name__ == "__main__":
    main()

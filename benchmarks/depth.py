"""Best possible average precision on `dataset=payments dataset.depth=d`: alone, with columns of far ends, and with pooled data.

    python -m benchmarks.depth [dataset.KEY=VALUE ...] [num_clients=5] [--seeds 5]

An observer recognises chains and knows the generator's law: its score is the exact probability of the label, given what it sees.
An observer knows a fan whose account is its own (`local`), or pays or is paid by an account of its own (`far ends`), and which
payments that it sees join to the item; `pooled` knows all fans. Of another fan that such payments join, `local` sees the payments
of its own customers: one shows the fan, and none makes it less likely. Accounts are scored by their bank and payments by the bank
that pays. All other accounts and payments rank last. Label noise is not read. Scores are over all items of all banks.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedgraph_flwr.config import compose, typed
from fedgraph_flwr.data.deep_payments import SIZES, Chains, weights
from fedgraph_flwr.data.payments import PERSON, Payments, PaymentsSpec, drawn_chains, generate

Ints = NDArray[np.int64]


def ceilings(found: Chains, p: Payments, spec: PaymentsSpec, item: str = "accounts") -> dict[str, float]:
    """Return the average precision of the three observers.

    Args:
        found: chains.
        p: the payments that hold them.
        spec: keys of the payments.
        item: ``accounts`` or ``payments``.

    Returns:
        ``local`` without exchange, ``far ends`` with columns of the accounts at the other end of own payments, and ``pooled``.
    """
    places = found.members.shape[1]
    middle = places // 2
    home = p.bank[found.members]
    paid = _fan_payments(found, p)
    share = np.bincount(p.bank[p.kind == PERSON], minlength=paid.shape[2]) / (p.kind == PERSON).sum()
    low, high = spec.sizes if spec.size else SIZES
    unseen = np.mean([(1 - share) ** size for size in range(low, high + 1)], axis=0)  # a bank sees no payment of a fan
    unseen = np.ones_like(share) if spec.fans == "own" else unseen
    items = [(middle, middle)] if item == "accounts" else [(middle - 1, middle), (middle, middle + 1)]
    scores: dict[str, list[NDArray[np.float64]]] = {"local": [], "far ends": [], "pooled": []}
    for first, last in items:
        bank = home[:, first]
        same_bank = home == bank[:, None]
        padded = np.pad(same_bank, ((0, 0), (1, 1)))
        beside = same_bank | padded[:, :-2] | padded[:, 2:]
        joined = np.ones_like(same_bank)  # whether payments that the observer sees join a place to the item
        hop = same_bank[:, :-1] | same_bank[:, 1:]
        joined[:, :first] = np.logical_and.accumulate(hop[:, :first][:, ::-1], axis=1)[:, ::-1]
        joined[:, last + 1 :] = np.logical_and.accumulate(hop[:, last:], axis=1)
        some = np.take_along_axis(paid, bank[:, None, None], axis=2)[:, :, 0] > 0
        guess = np.where(joined, np.where(some, 1, (unseen / (1 + unseen))[bank, None]), 0.5)
        scores["local"].append(_probability(np.where(same_bank & joined, found.fan, guess)))
        scores["far ends"].append(_probability(np.where(beside & joined, found.fan, 0.5)))
        scores["pooled"].append(_probability(found.fan.astype(np.float64)))
    label = np.tile(found.label, len(items))
    return {name: _average_precision(label, np.concatenate(score)) for name, score in scores.items()}


def _fan_payments(chains: Chains, p: Payments) -> Ints:
    """Return how many payments of each fan have their other end at each bank [C, P, B]."""
    places = chains.members.shape[1]
    rows = np.flatnonzero(p.pattern >= 0)
    source, target = (chains.members[p.pattern[rows]] == ends[rows, None] for ends in (p.source, p.target))
    fan = ~(source[:, :-1] & target[:, 1:]).any(axis=1, keepdims=True)  # no payment of the chain itself
    side = np.sign(np.arange(places) - places // 2)
    paid = np.zeros((*chains.members.shape, int(p.bank.max()) + 1), dtype=np.int64)
    for at, other in ((fan & target & (side < 0), p.source), (fan & source & (side > 0), p.target)):
        row, place = np.nonzero(at)
        np.add.at(paid, (p.pattern[rows[row]], place, p.bank[other[rows[row]]]), 1)
    return paid


def _probability(chance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability that each chain is laundering, given those of its fans, which are independent [C, P] → [C]."""
    weight = weights((chance.shape[1] + 1) // 2)
    total = int(weight.sum())
    law = np.zeros((len(chance), total + 1))  # of the weight of all fans
    law[:, 0] = 1
    for place in np.flatnonzero(weight):
        moved = np.zeros_like(law)
        moved[:, weight[place] :] = law[:, : total + 1 - weight[place]]
        law += chance[:, place, None] * (moved - law)
    more: NDArray[np.float64] = law[:, 2 * np.arange(total + 1) > total].sum(axis=1)
    return more.round(12)


def _average_precision(label: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    """Return the average precision, ties as one step."""
    value, place, size = np.unique(-score, return_inverse=True, return_counts=True)
    hits = np.bincount(place, label, value.size)
    return float((hits / label.sum() * hits.cumsum() / size.cumsum()).sum())


def main() -> None:
    """Print a row for accounts and one for payments, as mean and standard deviation over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="dataset.KEY=VALUE or num_clients=N")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 0")
    args = parser.parse_args()
    cfg = compose(["dataset=payments", "dataset.depth=3", "num_clients=5", *args.overrides])
    spec = typed(PaymentsSpec, cfg.dataset.params, "dataset=payments")
    rows: dict[str, list[dict[str, float]]] = {"accounts": [], "payments": []}
    for seed in range(args.seeds):
        drawn = generate(spec, seed=seed, banks=spec.banks or cfg.num_clients)
        chains = drawn_chains(spec, drawn.kind, seed)
        for item, results in rows.items():
            results.append(ceilings(chains, drawn, spec, item))
    print("| items | local | far ends | pooled | far ends' share of the gap |\n|---|---|---|---|---|")
    for item, results in rows.items():
        table = np.array([[row[name] for name in ("local", "far ends", "pooled")] for row in results])
        print(
            f"| {item} |",
            " | ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(table.mean(0), table.std(0), strict=True)),
            f"| {(table[:, 1] - table[:, 0]).mean() / (table[:, 2] - table[:, 0]).mean():.0%} |",
        )


if __name__ == "__main__":
    main()

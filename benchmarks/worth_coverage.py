"""Coverage of the intervals of `fedgraph-flwr worth` on generated data: how many 95 % intervals hold the true difference.

    python -m benchmarks.worth_coverage [--sets 2000]

Two models score items in clusters (days) with effects of their own; the second is better. Accuracy, F1, average precision and AUC
by equal and unequal days, single items, and means over five seeds, whose models differ. The true difference is that of 2,000,000
items. Prints one row per law. From 8 clusters on each must be in 93.5 to 96.5 %; with fewer, intervals may be too wide.
"""

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.party.use.worth import effective, measure, scored

TRUTH = 2_000_000
SAMPLES = 1000
"""Bootstrap samples per data set; a command takes 10,000."""


@dataclass(frozen=True)
class Law:
    """A law of data sets.

    Attributes:
        metric: the score.
        clusters: their number.
        size: mean number of items of each; 0: single items.
        unequal: whether sizes spread from nearly nothing to twice the mean.
        seeds: models per method.
    """

    metric: str
    clusters: int
    size: int = 0
    unequal: bool = False
    seeds: int = 1

    def draw(self, rng: np.random.Generator, clusters: int) -> tuple[NDArray, NDArray, list[NDArray]]:
        """Return cluster and class of each item [n], and logits [n, 2] of each model: those of the first method come first."""
        mean = self.size * (2 * rng.random(clusters) if self.unequal else np.ones(clusters))
        sizes = rng.poisson(mean) + 1 if self.size else np.ones(clusters, np.int64)
        cluster = np.repeat(np.arange(clusters), sizes)
        effects = rng.normal(size=(clusters, 3)) * (0.5, 0.4, 0.4)
        y = (rng.random(cluster.size) < 1 / (1 + np.exp(1.5 - effects[cluster, 0]))).astype(np.int64)
        common = 0.8 * rng.normal(size=cluster.size)
        models = []
        for method, slope in ((1, 1.0), (2, 1.4)):
            for _ in range(self.seeds):
                weight = slope + (0.3 * rng.normal() if self.seeds > 1 else 0.0)
                score = weight * y + common + effects[cluster, method] - 0.6 + 0.6 * rng.normal(size=cluster.size)
                models.append(np.stack([np.zeros(cluster.size), score], axis=1))
        return cluster, y, models

    def scores(self, rng: np.random.Generator, clusters: int, samples: int) -> tuple[float, float, float]:
        """Return the difference of the methods in one data set, with its interval."""
        cluster, y, models = self.draw(rng, clusters)
        measures = [measure(self.metric, logits, y, cluster, 0.0) for logits in models]
        runs = [measures[: self.seeds], measures[self.seeds :]]
        size = effective(self.metric, y, cluster)
        return scored(runs, len(y), clusters, size, samples)[1][1]


LAWS = (
    Law("accuracy", 250),
    Law("accuracy", 6, 80),
    Law("accuracy", 12, 40),
    Law("accuracy", 20, 40, unequal=True),
    Law("average_precision", 250),
    Law("average_precision", 6, 80),
    Law("average_precision", 12, 40),
    Law("average_precision", 30, 30, unequal=True),
    Law("auc", 20, 30),
    Law(metrics.AT_THRESHOLD, 20, 30),
    Law("average_precision", 20, 30, seeds=5),
)


def truth(law: Law) -> float:
    """Return the difference of the methods on very many items; with seeds, the mean over 100 of each."""
    if law.seeds == 1:
        return law.scores(np.random.default_rng(0), TRUTH // max(law.size, 1), 1)[0]
    many = Law(law.metric, law.clusters, law.size, law.unequal, seeds=10)
    return float(np.mean([many.scores(np.random.default_rng([0, k]), 2000, 1)[0] for k in range(10)]))


def main() -> None:
    """Print the coverage of each law."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sets", type=int, default=2000)
    given = parser.parse_args()
    print(f"{'score':18} {'clusters':>8} {'items':>6} {'unequal':>8} {'seeds':>6} {'coverage':>9} {'width':>7}")
    outside = 0
    for law in LAWS:
        expected, hits, width = truth(law), 0, 0.0
        for number in range(given.sets):
            _, low, high = law.scores(np.random.default_rng([1, number]), law.clusters, SAMPLES)
            hits, width = hits + (low <= expected <= high), width + high - low
        share = hits / given.sets
        outside += law.clusters >= 8 and not 0.935 <= share <= 0.965
        items = law.clusters * max(law.size, 1)
        row = f"{law.metric:18} {law.clusters:8} {items:6} {law.unequal!s:>8} {law.seeds:6}"
        print(f"{row} {100 * share:8.2f}% {width / given.sets:7.4f}", flush=True)
    print(
        f"{outside} of {sum(law.clusters >= 8 for law in LAWS)} laws with 8 clusters or more are outside 93.5 to 96.5 %"
    )


if __name__ == "__main__":
    main()

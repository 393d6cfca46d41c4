"""Cost of each rule of `strategy.aggregator`, compared with the weighted mean, in one process with one thread.

    python -m benchmarks.cost aggregators

Models have 100,000 float32 parameters in four tensors. Times are the minimum over the repetitions.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from fedgraph_flwr.config import AGGREGATORS, StrategyConfig
from fedgraph_flwr.strategies.aggregators import combine
from fedgraph_flwr.wire.messages import Arrays, weighted_mean

SHAPES = {"layers.0.weight": (1000, 64), "layers.0.bias": (64,), "head.weight": (64, 560), "head.bias": (96,)}
REPETITIONS = 3


def models(count: int) -> tuple[Arrays, list[Arrays]]:
    """A model and as many others around it."""
    rng = np.random.default_rng(0)

    def draw(spread: float) -> Arrays:
        return {name: rng.normal(scale=spread, size=shape).astype(np.float32) for name, shape in SHAPES.items()}

    theta = draw(1)
    return theta, [{name: theta[name] + step for name, step in draw(0.01).items()} for _ in range(count)]


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds, the least of some."""
    taken = []
    for _ in range(REPETITIONS):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def main() -> None:
    """Print the table."""
    cells_of: dict[str, list[str]] = {}
    for count, byzantine in ((10, 1), (100, 10)):
        theta, values = models(count)
        mean = seconds(partial(weighted_mean, values, [1.0] * len(values)))
        cells_of.setdefault("mean", []).append(f"{1e3 * mean:.0f} | 1")
        for name in AGGREGATORS[1:]:
            cfg = StrategyConfig(aggregator=name, byzantine=byzantine)
            took = seconds(partial(combine, values, theta, cfg))
            cells_of.setdefault(name, []).append(f"{1e3 * took:.0f} | {took / mean:.1f}")
    parameters = sum(int(np.prod(shape)) for shape in SHAPES.values())
    print(f"{parameters} parameters; CPU ms, and the ratio to the mean")
    print("| | 10 clients | ratio | 100 clients | ratio |\n|---|---|---|---|---|")
    for name, cells in cells_of.items():
        print(f"| `{name}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

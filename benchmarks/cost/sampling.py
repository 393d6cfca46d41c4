"""Sampled edges per second: `numerics.sampler` alone, with features gathered, and a plain torch sampler of the same draws.

    python -m benchmarks.cost sampling [--nodes 1000000] [--degree 30] [--fanout 15,10] [--seeds 1024] [--batches 20]
    python -m benchmarks.cost sampling --step [--nodes 100000] ..: how a training step of GraphSAGE divides

``--step`` also prints steps without and with a thread that makes the next batch (`clients.batches.in_order`): time on the clock,
and CPU time of the main thread, which is the time of a step where another core is free.

Otherwise one thread, in CPU time. Degrees are geometric around the mean; sources are uniform, or proportional to degree with
``--skewed``.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.clients.batches import in_order
from fedgraph_flwr.models.layers import mean_adjacency
from fedgraph_flwr.models.sage import GraphSAGE
from fedgraph_flwr.numerics.blocks import FeatureRows, MatrixNeighbours, batch_inputs
from fedgraph_flwr.numerics.sampler import NeighbourSampler, RowBuffer, has_numba
from fedgraph_flwr.numerics.sparse import SparseMatrix
from fedgraph_flwr.tasks import Batch

Csr = tuple[NDArray[np.int64], NDArray[np.int32]]


def graph(nodes: int, degree: int, skewed: bool) -> Csr:
    """Return a random CSR of in-neighbours."""
    random = np.random.default_rng(0)
    indptr = np.zeros(nodes + 1, np.int64)
    np.cumsum(random.geometric(1 / degree, nodes), out=indptr[1:])
    total = int(indptr[-1])
    if skewed:
        owners = np.repeat(np.arange(nodes, dtype=np.int32), np.diff(indptr))
        return indptr, owners[random.integers(total, size=total)]
    return indptr, random.integers(nodes, size=total, dtype=np.int32)


class TorchSampler:
    """The usual sampler in torch calls: random ranks among a row's neighbours, with replacement, then `unique`."""

    def __init__(self, csr: Csr, fanout: list[int]):
        self.indptr, self.indices = map(torch.from_numpy, csr)
        self.fanout = fanout
        self.local = torch.full((len(self.indptr) - 1,), -1, dtype=torch.int64)

    def __call__(self, seeds: Tensor) -> int:
        """Return the number of sampled edges; the edges are numbered like those of a block."""
        nodes, total = seeds, 0
        for fanout in self.fanout:
            start, degree = self.indptr[nodes], self.indptr[nodes + 1] - self.indptr[nodes]
            ranks = (torch.rand(len(nodes), fanout) * degree[:, None]).long()
            full = degree <= fanout
            ranks[full] = torch.arange(fanout).expand(int(full.sum()), -1)
            kept = ranks < degree[:, None]
            source = self.indices[(start[:, None] + ranks)[kept]].long()
            sources = torch.unique(source)
            self.local[nodes] = torch.arange(len(nodes))
            frontier = sources[self.local[sources] < 0]
            self.local[frontier] = torch.arange(len(nodes), len(nodes) + len(frontier))
            nodes = torch.cat([nodes, frontier])
            total += len(self.local[source])
        self.local[nodes] = -1
        return total


def rate(batch: Callable[[int], int], batches: int) -> float:
    """Return the median of edges per second of CPU time over batches, after two that warm up."""
    rates = []
    for index in range(batches + 2):
        start = time.process_time()
        edges = batch(index)
        rates.append(edges / (time.process_time() - start))
    return statistics.median(rates[2:])


class Steps:
    """Training steps of GraphSAGE (64 hidden, 10 classes) on batches.

    Args:
        csr: of in-neighbours.
        x: features [N, F].
        fanout: neighbours per hop.
        batches: nodes of each step [B].
    """

    def __init__(self, csr: Csr, x: Tensor, fanout: list[int], batches: list[NDArray[np.int64]]):
        indptr, indices = csr
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        edges = torch.from_numpy(np.stack([indices.astype(np.int64), rows]))
        self.neighbours = MatrixNeighbours(SparseMatrix(mean_adjacency(edges, len(x))))
        self.sampler = NeighbourSampler(self.neighbours.indptr, self.neighbours.indices, fanout)
        self.rows = FeatureRows(x, torch.device("cpu"), torch.float32, buffers=2)
        self.model = GraphSAGE(x.size(1), 10, hidden=64, layers=len(fanout), dropout=0.5)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.batches, self.y = batches, torch.arange(len(batches[0])) % 10

    def batch(self, index: int) -> Batch:
        """Return the batch of a step."""
        block = self.sampler.sample(self.batches[index], index)
        return Batch(batch_inputs(self.rows.take(block.nodes), self.neighbours, block), None, self.y)

    def train(self, batch: Batch) -> None:
        """Take a step."""
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(batch.inputs), batch.y).backward()
        self.optimizer.step()

    def shares(self) -> dict[str, float]:
        """Return CPU seconds per step by part, medians after two steps."""
        seconds: dict[str, list[float]] = {"sample": [], "gather": [], "matrices": [], "train": []}
        for index, seeds in enumerate(self.batches):
            times = [time.process_time()]
            block = self.sampler.sample(seeds, index)
            times.append(time.process_time())
            features = self.rows.take(block.nodes)
            times.append(time.process_time())
            inputs = batch_inputs(features, self.neighbours, block)
            times.append(time.process_time())
            self.train(Batch(inputs, None, self.y))
            times.append(time.process_time())
            for name, spent in zip(seconds, np.diff(times), strict=True):
                seconds[name].append(spent)
        return {name: statistics.median(spent[2:]) for name, spent in seconds.items()}

    def seconds(self, ahead: bool) -> tuple[float, float]:
        """Return time on the clock, and CPU time of this thread, per step after the first two, means."""
        for index, batch in enumerate(in_order(self.batch, len(self.batches), ahead)):
            if index == 2:
                start = time.perf_counter(), time.thread_time()
            self.train(batch)
        count = len(self.batches) - 2
        return (time.perf_counter() - start[0]) / count, (time.thread_time() - start[1]) / count


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("nodes", 1_000_000),
        ("degree", 30),
        ("seeds", 1024),
        ("batches", 20),
        ("features", 100),
        ("turns", 3),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--fanout", default="15,10")
    parser.add_argument("--skewed", action="store_true")
    parser.add_argument("--step", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    fanout = [int(part) for part in args.fanout.split(",")]
    csr = graph(args.nodes, args.degree, args.skewed)
    order = np.random.default_rng(1).permutation(args.nodes)
    batches = [np.resize(order[i * args.seeds :], args.seeds) for i in range(args.batches + 2)]
    print(f"{args.nodes:,} nodes, {len(csr[1]):,} edges, fan-out {fanout}, {args.seeds} seeds, numba: {has_numba()}")
    x = torch.rand(args.nodes, args.features)
    if args.step:
        steps = Steps(csr, x, fanout, batches)
        spent = steps.shares()
        for name, seconds in spent.items():
            print(f"{name:<20} {1000 * seconds:6.1f} ms of CPU a step  {seconds / sum(spent.values()):5.2f} of a step")
        turns = [(steps.seconds(False), steps.seconds(True)) for _ in range(args.turns)]
        for name, times in zip(("without a thread", "with a thread"), zip(*turns, strict=True), strict=True):
            clock, cpu = (1000 * statistics.median(part) for part in zip(*times, strict=True))
            print(f"{name:<20} {clock:6.1f} ms on the clock, {cpu:6.1f} ms of CPU in the main thread")
        return
    sizes = []

    def sampled(sampler: NeighbourSampler, rows: RowBuffer | None) -> Callable[[int], int]:
        def batch(index: int) -> int:
            block = sampler.sample(batches[index], index)
            if rows is not None:
                rows.take(block.nodes)
            edges = sum(len(hop.col) for hop in block.hops)
            sizes.append((len(block.nodes), edges))
            return edges

        return batch

    cases: dict[str, Callable[[int], int]] = {
        "sampler": sampled(NeighbourSampler(*csr, fanout), None),
        "stable draws": sampled(NeighbourSampler(*csr, fanout, stable=True), None),
        f"with {args.features} float32": sampled(NeighbourSampler(*csr, fanout), RowBuffer(x)),
        f"with {args.features} float16": sampled(NeighbourSampler(*csr, fanout), RowBuffer(x.half())),
        "NumPy": sampled(NeighbourSampler(*csr, fanout, backend="numpy"), None),
        "plain torch": lambda index: TorchSampler.__call__(plain, torch.from_numpy(batches[index])),
    }
    plain = TorchSampler(csr, fanout)
    rates = {name: rate(batch, args.batches) for name, batch in cases.items()}
    nodes, edges = np.mean(sizes, axis=0)
    print(f"a batch: {nodes:,.0f} nodes, {edges:,.0f} edges")
    for name, value in rates.items():
        print(f"{name:<20} {value / 1e6:6.1f} M edges/s  {value / rates['plain torch']:5.2f} x plain torch")


if __name__ == "__main__":
    main()

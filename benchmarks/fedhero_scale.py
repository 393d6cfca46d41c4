"""FedHERO on a graph of Flickr's size: ``python benchmarks/fedhero_scale.py [key=value ...]``.

A CSBM graph of 89,250 nodes, about 900,000 directed edges and 500 features, cut by METIS into 30 clients; three rounds in this
process, and the largest resident memory. Then CPU times with one thread: one client step (forward, backward, Adam) by N_i, and
the top-k search by row blocks compared with a dense ``torch.topk`` at N = 3000 on the same factors.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedgraph_flwr import partition
from fedgraph_flwr.clients.fedhero import FedHEROClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.models.structure_learner import top_k

GRAPH = ["dataset=csbm", "dataset.features=500", "dataset.classes=7", "dataset.homophily=0.32", "dataset.gap=0.2"]
WORDS = [
    "protocol=fedhero",
    "strategy=fedhero",
    "checkpoint_every=0",
    *GRAPH,
    "dataset.clients=30",
    "dataset.nodes=89250",
    "dataset.degree=8",
    "dataset.cut_degree=2.08",
    "num_clients=30",
    "rounds=3",
]
SIZES = (500, 1000, 3000, 10000, 20000)
REPETITIONS = 5


def main(words: list[str]) -> None:
    """Run and print."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        cfg = compose([*WORDS, *words, f"out={out}"])
        graphs = [partition.load_client(cfg, index) for index in range(partition.num_clients(cfg))]
        nodes, edges = sum(g.num_nodes for g in graphs), sum(g.edge_index.size(1) + g.cut_in.size(1) for g in graphs)
        sizes = sorted(g.num_nodes for g in graphs)
        print(f"{nodes} nodes, {edges} edges, {len(graphs)} clients of {sizes[0]} to {sizes[-1]} nodes")
        del graphs
        print(f"generated and cut in {time.perf_counter() - began:.0f} s, {_peak():.2f} GB resident at most")
        summary = run(cfg)
    print(f"a round {summary['seconds_per_round']:.1f} s, {_peak():.2f} GB resident at most")

    print("\n| N_i | s a step | GB resident at most |\n|---|---|---|")
    for size in SIZES:
        print(f"| {size} | {_step(size):.3f} | {_peak():.2f} |")

    left, right = torch.randn(2, 3000, 256)
    blocks = _least(lambda: top_k(left, right, 20))
    whole = _least(lambda: (left @ right.T).fill_diagonal_(-torch.inf).topk(20))
    print(f"\ntop 20 of 3000 nodes: by blocks {1e3 * blocks:.0f} ms, dense {1e3 * whole:.0f} ms ({blocks / whole:.2f})")


def _step(size: int) -> float:
    """Return the seconds of one local step of a client with this number of nodes."""
    whole = ["partition=planted", "num_clients=1", "dataset.clients=1", "dataset.gap=0", f"dataset.nodes={size}"]
    cfg = compose(["protocol=fedhero", "strategy=fedhero", *GRAPH, *whole])
    return _least(FedHEROClient(cfg, partition.load_client(cfg, 0)).train)


def _least(call: Callable[[], object]) -> float:
    """Return the CPU seconds of the fastest repetition."""
    call()
    taken = []
    for _ in range(REPETITIONS):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return min(taken)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main(sys.argv[1:])

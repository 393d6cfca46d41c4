"""What a FedHGN round costs on the published AIFB client graphs, beside a plain PyG ``RGCNConv`` loop doing the same steps.

    python benchmarks/fedhgn.py                # K = 3 and 10, Random Edges

A round is three full-batch SGD steps of every client with the alignment loss, and the averaging. *run* is the in-process engine
with messages, scores and records; *loop* the same network from PyG's ``SimpleConv`` (first layer, no weights) and ``RGCNConv``
(20 bases), without any of that. Each is measured in a process of its own, one thread: median CPU seconds of a round, and the
process's peak memory. Both give the same logits for the same weights, which is checked first.
"""

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedgraph_flwr import partition
from fedgraph_flwr.config import RunConfig, compose
from fedgraph_flwr.data.hetero import HeteroClientGraph
from fedgraph_flwr.methods.coefficients import alignment
from fedgraph_flwr.models.rgcn import RGCN

ROUNDS = 15


def config(clients: int, *words: str) -> RunConfig:
    """Table 3's setting."""
    fixed = ["protocol=fedhgn", f"num_clients={clients}", f"rounds={ROUNDS}", "evaluation.patience=0", "device=cpu"]
    return compose([*fixed, *words])


class BareRGCN(nn.Module):
    """The same network from PyG's layers, on all nodes."""

    def __init__(self, graph: HeteroClientGraph, cfg: RunConfig):
        from torch_geometric.nn import RGCNConv, SimpleConv

        super().__init__()
        source, target, relation = (torch.from_numpy(column) for column in graph.flat_edges())
        self.edge_index, self.edge_type = torch.stack([source, target]), relation
        pair = target * len(graph.edges) + relation
        self.weight = 1.0 / torch.bincount(pair)[pair]
        start = int(graph.offsets()[list(graph.counts).index(graph.target)])
        self.targets = slice(start, start + graph.counts[graph.target])
        h, bases = cfg.model.hidden, cfg.model.params["bases"]
        self.table = nn.Parameter(torch.randn(graph.num_nodes, h))
        self.first, self.bias = SimpleConv(aggr="sum"), nn.Parameter(torch.zeros(h))
        self.second = RGCNConv(h, h, len(graph.edges), num_bases=bases, aggr="mean", root_weight=False)
        self.decoder = nn.Linear(h, graph.num_classes)

    def forward(self) -> Tensor:
        """Logits of the target nodes."""
        h = torch.relu(self.first(self.table, self.edge_index, self.weight) + self.bias)
        h = self.second(h, self.edge_index, self.edge_type)
        return self.decoder(torch.relu(h[self.targets]))  # type: ignore[no-any-return]

    def shared(self) -> list[Tensor]:
        """What is averaged."""
        return [p for name, p in self.named_parameters() if name not in ("table", "second.comp")]


def check(graph: HeteroClientGraph, cfg: RunConfig) -> None:
    """Raise unless both networks give the same logits for the same weights."""
    ours = RGCN(graph.num_features, graph.num_classes, hidden=64, layers=2, dropout=0.0, bases=20)
    inputs, bare = ours.prepare(graph), BareRGCN(graph, cfg)
    with torch.no_grad():
        for mine, theirs in (
            (ours.entities["table"], bare.table),
            (ours.bases["edge_1"], bare.second.weight),
            (ours.coefficients["edge_1"], bare.second.comp),
            (ours.common.decoder.weight, bare.decoder.weight),
            (ours.common.decoder.bias, bare.decoder.bias),
        ):
            mine.copy_(theirs)
    torch.testing.assert_close(ours(inputs), bare(), rtol=1e-4, atol=1e-4)


def loop(cfg: RunConfig) -> list[float]:
    """CPU seconds of every round of the PyG loop."""
    graphs = [partition.load_client(cfg, index) for index in range(partition.num_clients(cfg))]
    check(graphs[0], cfg)
    models = [BareRGCN(graph, cfg) for graph in graphs]
    weights = [int(graph.train_mask.sum()) for graph in graphs]
    seconds = []
    for _ in range(cfg.rounds):
        began = time.process_time()
        known = [model.second.comp.detach().clone() for model in models]
        for index, (model, graph) in enumerate(zip(models, graphs, strict=True)):
            pool = torch.cat(known[:index] + known[index + 1 :])
            optimizer = torch.optim.SGD(model.parameters(), lr=cfg.train.lr)
            for _ in range(cfg.train.local_steps):
                optimizer.zero_grad()
                loss = F.cross_entropy(model()[graph.train_mask], graph.y[graph.train_mask])
                (loss + 0.5 * alignment(model.second.comp, pool)).backward()
                optimizer.step()
        with torch.no_grad():
            for tensors in zip(*(model.shared() for model in models), strict=True):
                mean = sum(w * t for w, t in zip(weights, tensors, strict=True)) / sum(weights)
                for tensor in tensors:
                    tensor.copy_(mean)
        seconds.append(time.process_time() - began)
    return seconds


def run(cfg: RunConfig) -> list[float]:
    """CPU seconds of every round of the in-process engine."""
    from fedgraph_flwr.runner import run as start

    ends = [time.process_time()]
    with tempfile.TemporaryDirectory() as out:
        cfg.out = out
        start(cfg, lambda record: ends.append(time.process_time()))
    return [after - before for before, after in itertools.pairwise(ends[1:])]


def measure(what: str, clients: int) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--one", what, str(clients)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.one:
        seconds = {"run": run, "loop": loop}[args.one[0]](config(int(args.one[1])))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": statistics.median(seconds), "peak_mb": peak}))
        return
    print("K   run s/round   loop s/round   ratio   run MB   loop MB")
    for clients in (3, 10):
        ours, bare = measure("run", clients), measure("loop", clients)
        ratio = ours["seconds"] / bare["seconds"]
        print(
            f"{clients:<3d} {ours['seconds']:11.4f} {bare['seconds']:14.4f} {ratio:7.2f}"
            f" {ours['peak_mb']:8.0f} {bare['peak_mb']:9.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

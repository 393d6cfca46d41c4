"""Cost of a local training step of a 2-layer GCN here and in a bare loop over PyG's ``GCNConv``, in one run.

    python -m benchmarks.cost gcn_step                              # Cora, 10 Louvain clients
    python -m benchmarks.cost gcn_step dataset=csbm num_clients=20

Both take full-batch steps (forward, cross-entropy on the training nodes, backward, Adam) on the same client graphs, alternately
and with one thread. Results are CPU times: the mean over clients and steps, minimum over repetitions. The bare loop follows
PyG's examples: dense features, normalisation cached after the first step, torch's dropout, and torch's default Adam.
"""

import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import RunConfig, compose
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.partition import store

REPETITIONS = 15
ROUNDS = 3  # of local training by every client, in each repetition


class BareGCN(nn.Module):
    """The same model from PyG's layers."""

    def __init__(self, num_features: int, hidden: int, num_classes: int, dropout: float):
        from torch_geometric.nn import GCNConv

        super().__init__()
        self.first = GCNConv(num_features, hidden, cached=True)
        self.second = GCNConv(hidden, num_classes, cached=True)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits [N, C]."""
        h = torch.relu(self.first(x, edge_index))
        return self.second(F.dropout(h, self.dropout, self.training), edge_index)


def bare_loop(cfg: RunConfig, graph: ClientGraph) -> Callable[[], object]:
    """Return a function that trains one client using only PyG."""
    model = BareGCN(graph.num_features, cfg.model.hidden, graph.num_classes, cfg.model.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.train.lr, weight_decay=cfg.train.weight_decay)

    def train() -> None:
        for _ in range(cfg.train.local_steps):
            optimizer.zero_grad()
            logits = model(graph.x, graph.edge_index)
            F.cross_entropy(logits[graph.train_mask], graph.y[graph.train_mask]).backward()
            optimizer.step()

    return train


def seconds(trainings: Sequence[Callable[[], object]], steps: int) -> float:
    """Return CPU seconds per step, over `ROUNDS` rounds of all clients."""
    start = time.process_time()
    for _ in range(ROUNDS):
        for train in trainings:
            train()
    return (time.process_time() - start) / (ROUNDS * len(trainings) * steps)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    cfg = compose(["dataset=cora", *sys.argv[1:]])
    files = store.files(store.client_files(cfg))
    graphs = [ClientGraph.load(path) for path in files]
    ours = [GraphClient(cfg, graph).train for graph in graphs]
    bare = [bare_loop(cfg, graph) for graph in graphs]
    steps = cfg.train.local_steps
    for trainings in (ours, bare):
        seconds(trainings, steps)  # warms up, fills PyG's caches
    pairs = [(seconds(ours, steps), seconds(bare, steps)) for _ in range(REPETITIONS)]
    mine, theirs = (1e3 * min(column) for column in zip(*pairs, strict=True))
    nodes = sum(graph.num_nodes for graph in graphs) / len(graphs)
    print(f"{cfg.dataset.name}: {len(graphs)} clients of {nodes:.0f} nodes, {graphs[0].num_features} features")
    print("| step of a 2-layer GCN | ms | share |\n|---|---|---|")
    print(f"| loop over PyG's GCNConv | {theirs:.2f} | 1 |")
    print(f"| `fedgraph_flwr.clients.base.GraphClient` | {mine:.2f} | {mine / theirs:.2f} |")


if __name__ == "__main__":
    main()

"""Training on a thousand small graphs per client compared with a plain PyG loop: ``python -m benchmarks.cost graphs``.

Both train GIN of GCFL's layout (3 layers, 64 wide, dropout 1/2, Adam, batches of 128 graphs, one epoch per round) on the same
graphs of ``dataset=cycles``. *Ours* is a whole round in this process: scores, training, messages, averaging, records. *Loop* is
what a script would run, without messages, files or checks: per client an epoch of PyG's ``DataLoader`` in a new order, scores of
the validation and test graphs, and the mean of the state dicts. *Same batches* is the loop without the cost of putting batches
together: as ours, it draws them once and changes their order. Both models must give the same logits for the same weights, which
is checked first. They run alternately, on one thread. Times are CPU time per round; a ratio is the median over turns.
"""

import argparse
import random
import statistics
import tempfile
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool

from fedgraph_flwr import partition
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import RunConfig, compose
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.data.many_graphs import one_per_graph, selected
from fedgraph_flwr.launch.runner import run

WORDS = ["task=graphs", "dataset=cycles", "model=gin", "model.layers=3", "model.hidden=64", "model.dropout=0.5"]
WORDS += ["train.optimizer=adam", "train.lr=0.001", "train.local_epochs=1", "task.batch_size=128", "device=cpu"]
ROUNDS, LOOPED, TURNS = 4, 2, 5  # rounds of ours and of the loop in each turn


class Net(nn.Module):
    """GCFL's GIN of PyG's layers."""

    def __init__(self, num_features: int, num_classes: int, cfg: RunConfig):
        super().__init__()
        hidden, self.dropout = cfg.model.hidden, cfg.model.dropout
        self.pre, self.post = nn.Linear(num_features, hidden), nn.Linear(hidden, hidden)
        made = [
            nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
            for _ in range(cfg.model.layers)
        ]
        self.layers, self.head = nn.ModuleList([GINConv(inner) for inner in made]), nn.Linear(hidden, num_classes)

    def forward(self, data: Any) -> Tensor:
        """Return logits [G, C]."""
        h = self.pre(data.x)
        for layer in self.layers:
            h = F.dropout(layer(h, data.edge_index).relu(), self.dropout, self.training)
        h = self.post(global_add_pool(h, data.batch)).relu()
        return self.head(F.dropout(h, self.dropout, self.training))

    def linears(self) -> list[nn.Linear]:
        """Return the linear layers in the order of ours."""
        inner: list[Any] = [layer.nn for layer in self.layers]
        return [self.pre, *(part for network in inner for part in (network[0], network[2])), self.post, self.head]


class Client:
    """A client of the loop."""

    def __init__(self, cfg: RunConfig, graph: ClientGraph, same: bool):
        items = one_per_graph(graph)
        parts = {
            key: [self.single(graph, int(place)) for place in getattr(items, f"{key}_mask").nonzero()]
            for key in ("train", "val", "test")
        }
        size = cfg.task.batch_size
        self.loader: Any = DataLoader(parts["train"], size, shuffle=True)
        self.batches = list(self.loader) if same else None
        self.scored = [Batch.from_data_list(parts[key]) for key in ("val", "test")]
        self.model = Net(graph.num_features, graph.num_classes, cfg)
        self.optimizer = torch.optim.Adam(self.model.parameters(), cfg.train.lr, weight_decay=cfg.train.weight_decay)
        self.weight = len(parts["train"])

    @staticmethod
    def single(graph: ClientGraph, place: int) -> Data:
        """Return one graph."""
        member = selected(graph, torch.tensor([place]))
        return Data(x=member.x, edge_index=member.edge_index, y=member.y[:1])

    def round(self) -> list[float]:
        """Score the model and train it for an epoch."""
        self.model.eval()
        with torch.no_grad():
            accuracies = [float((self.model(data).argmax(1) == data.y).float().mean()) for data in self.scored]
        self.model.train()
        for data in self.loader if self.batches is None else random.sample(self.batches, len(self.batches)):
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(data), data.y).backward()
            self.optimizer.step()
        return accuracies


def loop(clients: list[Client]) -> None:
    """Run one round of the loop."""
    for client in clients:
        client.round()
    total, states = sum(client.weight for client in clients), [client.model.state_dict() for client in clients]
    mean = {name: sum(c.weight / total * s[name] for c, s in zip(clients, states, strict=True)) for name in states[0]}
    for client in clients:
        client.model.load_state_dict(mean)


def check(cfg: RunConfig, client: Client) -> None:
    """Raise unless both models give the same logits for the same weights."""
    ours: Any = GraphClient(cfg, partition.load_client(cfg, 0))
    layers = [
        ours.model.embed,
        *(part for layer in ours.model.layers for part in (layer.mlp[0], layer.mlp[2])),
        ours.model.post,
        ours.model.head,
    ]
    with torch.no_grad():
        for bare, layer in zip(client.model.linears(), layers, strict=True):
            bare.weight.copy_(layer.weight.T)
            bare.bias.copy_(layer.bias)
        test = ours.predict()[ours.task.masks["test"]]
        torch.testing.assert_close(test, client.model.eval()(client.scored[1]), rtol=1e-4, atol=1e-4)


def ours(words: list[str]) -> float:
    """Return the CPU seconds of one of our rounds."""
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as out:
        run(compose([*words, f"out={out}"]), lambda record: ends.append(time.process_time()))
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def bare(clients: list[Client]) -> float:
    """Return the CPU seconds of one round of the loop."""
    started = time.process_time()
    for _ in range(LOOPED):
        loop(clients)
    return (time.process_time() - started) / LOOPED


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compare training on many small graphs with a plain PyG loop.")
    parser.add_argument("--clients", type=int, default=2, metavar="M", help="number of clients (default: 2)")
    parser.add_argument("--graphs", type=int, default=1000, metavar="G", help="graphs per client (default: 1000)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    words = [
        *WORDS,
        f"num_clients={given.clients}",
        f"dataset.graphs={given.graphs}",
        f"rounds={ROUNDS}",
        "evaluation.patience=0",
    ]
    cfg = compose(words)
    torch.manual_seed(cfg.seed)
    graphs = [partition.load_client(cfg, index) for index in range(given.clients)]
    forms = {
        name: [Client(cfg, graph, name == "same batches") for graph in graphs]
        for name in ("DataLoader", "same batches")
    }
    for clients in forms.values():
        check(cfg, clients[0])
        loop(clients)
    turns = [(ours(words), *(bare(clients) for clients in forms.values())) for _ in range(TURNS)]
    package = statistics.median(turn[0] for turn in turns)
    print("| loop | clients x graphs | our round, ms | loop, ms | ratio |\n|---|---|---|---|---|")
    for place, name in enumerate(forms, 1):
        plain, ratio = (
            statistics.median(turn[place] for turn in turns),
            statistics.median(t[0] / t[place] for t in turns),
        )
        size = f"{given.clients} x {given.graphs}"
        print(f"| {name} | {size} | {1e3 * package:.0f} | {1e3 * plain:.0f} | {ratio:.2g} |", flush=True)


if __name__ == "__main__":
    main()

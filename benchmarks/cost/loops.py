"""Cost of a round of FedHERO, FedHGN and FedOMD compared with a plain PyTorch loop (`python -m benchmarks.cost loops METHOD`).

Each method runs under its paper's protocol: FedHERO on Chameleon (METIS, 5 clients), FedHGN on the published AIFB client graphs
(Random Edges, 3), FedOMD on Cora (Louvain, 3). *Ours* is a whole round in this process: scores, training, messages, averaging,
records and checkpoints. *Loop* is what a script would run, without messages, files or checks: each client's model of PyG's layers
on dense features is evaluated on the validation and test nodes and trained by ``torch.optim`` for as many steps with the same
loss, and the shared part of the state dicts is averaged. Both models must give the same logits for the same weights, which is
checked first. They run alternately, on one thread. Times are CPU time per round; the ratio is the median over turns.

Limits of the comparison:

- FedHERO, whose code we have not found: scores, top-k and latent graph are dense, N x N (ours keeps N k entries), and the search
  is repeated for training and for evaluation (ours searches once per model). Two choices save work in the loop: all heads are one
  product instead of one matrix each as in GraphGLOW, and distances between features are computed once, before round 1.
- FedHGN: the model is computed on all nodes, with PyG's ``RGCNConv``, whose loop over relations takes nearly all of the time. The
  authors' code uses DGL and takes 2.0 s of CPU per round; it is not run here. Ours computes only what reaches the target nodes.
- FedOMD, whose code we have not found: Newton's iteration as in Ortho-GCN, layer by layer (without QR, matrix exponential, and
  the N x N matrix of Eq. (8)), and three passes per round: for the statistics of both exchanges, to evaluate, to train. Ours
  needs one pass for all three.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, RGCNConv, SimpleConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from fedgraph_flwr import models, partition
from fedgraph_flwr.config import RunConfig, compose
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.methods.coefficients import alignment

ROUNDS, LOOPED, TURNS = 20, 3, 5  # rounds of ours and of the loop in each turn
Pairs = Iterable[tuple[Tensor, Tensor]]
"""Each tensor of our network and the loop's that stands for it."""


class Loop:
    """Rounds over the clients' models, one after another.

    Attributes:
        shared: prefixes of the names that are averaged.
    """

    shared: tuple[str, ...] = ("",)

    def __init__(self, cfg: RunConfig):
        self.cfg, self.steps = cfg, cfg.train.local_steps
        self.graphs: list[Any] = [partition.load_client(cfg, index) for index in range(partition.num_clients(cfg))]
        self.models = [self.model(graph) for graph in self.graphs]
        self.weights = [self.weight(graph) for graph in self.graphs]
        self.optimizers = [self.optimizer(model) for model in self.models]
        self.check()
        self.average()

    def model(self, graph: Any) -> Any:
        """Return the model of one client, which contains its graph."""
        raise NotImplementedError

    def weight(self, graph: Any) -> int:
        """Return a client's weight in the mean."""
        return int(graph.num_nodes)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the protocol's optimiser."""
        train = self.cfg.train
        kind = torch.optim.Adam if train.optimizer == "adam" else torch.optim.SGD
        return kind(model.parameters(), lr=train.lr, weight_decay=train.weight_decay)

    def loss(self, index: int) -> Tensor:
        """Return a client's objective."""
        raise NotImplementedError

    def exchange(self) -> None:
        """Exchange values between clients before training."""

    def entropy(self, logits: Tensor, index: int) -> Tensor:
        """Return the cross-entropy on the training nodes."""
        graph = self.graphs[index]
        return F.cross_entropy(logits[graph.train_mask], graph.y[graph.train_mask])

    def round(self) -> list[float]:
        """Evaluate and train every client, average the models, and return the accuracies."""
        self.exchange()
        accuracies = []
        for index, (model, graph, optimizer) in enumerate(zip(self.models, self.graphs, self.optimizers, strict=True)):
            model.eval()
            with torch.no_grad():
                right = model()[0].argmax(1) == graph.y
            accuracies += [float(right[mask].float().mean()) for mask in (graph.val_mask, graph.test_mask)]
            model.train()
            for _ in range(self.steps):
                optimizer.zero_grad()
                self.loss(index).backward()
                optimizer.step()
        self.average()
        return accuracies

    def average(self) -> None:
        """Set the shared part of each state dict to the mean."""
        states = [model.state_dict() for model in self.models]
        names = [name for name in states[0] if name.startswith(self.shared)]
        total = sum(self.weights)
        mean = {n: sum(w / total * s[n] for w, s in zip(self.weights, states, strict=True)) for n in names}
        for model in self.models:
            model.load_state_dict(mean, strict=False)

    def check(self) -> None:
        """Raise unless both models give the same logits for the same weights."""
        bare, graph = self.models[0].eval(), self.graphs[0]
        ours = models.build(self.cfg.model, graph.num_features, graph.num_classes).eval()
        inputs = ours.prepare(graph)
        with torch.no_grad():
            for local, remote in bare.pairs(ours):
                local.copy_(remote)
            torch.testing.assert_close(ours(inputs), bare()[0], rtol=1e-4, atol=1e-4)


class DualChannel(nn.Module):
    """FedHERO's model with a dense latent graph."""

    def __init__(self, graph: Any, cfg: RunConfig):
        super().__init__()
        params, h, wide = cfg.model.params, cfg.model.hidden, graph.num_features
        self.x, self.edge_index, self.eye = graph.x, graph.edge_index, torch.eye(graph.num_nodes)
        self.distance = torch.cdist(graph.x, graph.x).square()
        self.k, self.alpha, self.dropout = params["k"], params["alpha"], cfg.model.dropout
        self.learner = GCNConv(wide, h, cached=True)
        self.left, self.right = (
            nn.Parameter(nn.init.xavier_uniform_(torch.empty(params["heads"], h))) for _ in range(2)
        )
        self.projection = nn.Linear(wide, h)
        self.shared = nn.ModuleList([nn.Linear(h, h) for _ in range(cfg.model.layers)])
        self.local = nn.ModuleList([GCNConv(h, h, cached=True) for _ in range(cfg.model.layers)])
        self.classifier = nn.Linear(wide + (cfg.model.layers + 1) * h, graph.num_classes)

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return logits [N, C] and the latent graph [N, N]."""
        z = torch.relu(self.learner(self.x, self.edge_index))
        left, right = (F.normalize(z.unsqueeze(1) * w, dim=-1).flatten(1) for w in (self.left, self.right))
        scores = (left @ right.T / len(self.left)).masked_fill(self.eye.bool(), -torch.inf)
        value, column = scores.topk(self.k)
        latent = torch.zeros_like(scores).scatter(1, column, torch.relu(value))
        spread = (latent + self.eye) / (latent.sum(1, keepdim=True) + 1)
        z = F.dropout(torch.relu(self.projection(self.x)), self.dropout, self.training)
        kept = [self.x, z]
        for shared, local in zip(self.shared, self.local, strict=True):
            z = self.alpha * local(z, self.edge_index) + (1 - self.alpha) * shared(spread @ z)
            z = F.dropout(torch.relu(z), self.dropout, self.training)
            kept.append(z)
        return self.classifier(torch.cat(kept, 1)), latent

    def pairs(self, ours: Any) -> Pairs:
        """Yield corresponding tensors by layer."""
        learner = ours.structure_learner
        yield from ((learner.weight, self.learner.lin.weight.T), (learner.bias, self.learner.bias))
        yield from ((learner.metric.left, self.left), (learner.metric.right, self.right))
        yield from _linear(ours.projection, self.projection)
        yield from _linear(ours.classifier, self.classifier)
        for conv, shared in zip(ours.global_convs, self.shared, strict=True):
            assert isinstance(shared, nn.Linear)
            yield from _linear(conv, shared)
        for conv, local in zip(ours.local_convs, self.local, strict=True):
            yield from _convolution(conv, local)


class FedHERO(Loop):
    """FedHERO, which shares the learner and the convolutions on the latent graph."""

    shared = ("learner.", "left", "right", "shared.")

    def model(self, graph: Any) -> DualChannel:
        """Return the dual-channel model."""
        return DualChannel(graph, self.cfg)

    def loss(self, index: int) -> Tensor:
        """Return equation (8), with the smoothness term over N^2."""
        model, params = self.models[index], self.cfg.strategy.params
        logits, latent = model()
        smooth = params["lam"] * (latent * model.distance).sum() + params["mu"] * latent.square().sum()
        return self.entropy(logits, index) + smooth / latent.numel()


class Relational(nn.Module):
    """FedHGN's model on all nodes."""

    def __init__(self, graph: Any, cfg: RunConfig):
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

    def forward(self) -> tuple[Tensor]:
        """Return logits of the target nodes."""
        h = torch.relu(self.first(self.table, self.edge_index, self.weight) + self.bias)
        h = self.second(h, self.edge_index, self.edge_type)
        return (self.decoder(torch.relu(h[self.targets])),)

    def pairs(self, ours: Any) -> Pairs:
        """Yield corresponding tensors; initial biases are zero on both sides."""
        yield from ((ours.entities["table"], self.table), (ours.bases["edge_1"], self.second.weight))
        yield ours.coefficients["edge_1"], self.second.comp
        yield from (
            (ours.common.decoder.weight, self.decoder.weight),
            (ours.common.decoder.bias, self.decoder.bias),
        )


class FedHGN(Loop):
    """FedHGN, which shares bases, bias and decoder, and forwards coefficients."""

    shared = ("bias", "second.weight", "second.bias", "decoder.")

    def model(self, graph: Any) -> Relational:
        """Return the relational model."""
        return Relational(graph, self.cfg)

    def weight(self, graph: Any) -> int:
        """Return the number of training nodes."""
        return int(graph.train_mask.sum())

    def exchange(self) -> None:
        """Send each client the other clients' coefficients."""
        known = [model.second.comp.detach().clone() for model in self.models]
        self.pools = [torch.cat(known[:index] + known[index + 1 :]) for index in range(len(known))]

    def loss(self, index: int) -> Tensor:
        """Return L_task + λ L_align."""
        model = self.models[index]
        pull = self.cfg.strategy.params["align"] * alignment(model.second.comp, self.pools[index])
        return self.entropy(model()[0], index) + pull


class Orthogonal(nn.Module):
    """FedOMD's model."""

    def __init__(self, graph: Any, cfg: RunConfig):
        super().__init__()
        params, h = cfg.model.params, cfg.model.hidden
        self.x, self.edge_index = graph.x, graph.edge_index
        self.normed = gcn_norm(graph.edge_index, num_nodes=graph.num_nodes)
        self.steps, self.mix, self.eye = params["newton_steps"], params["mix"], torch.eye(h)
        self.first, self.last = GCNConv(graph.num_features, h, cached=True), GCNConv(h, graph.num_classes, cached=True)
        self.middle = nn.ParameterList(
            [nn.init.xavier_uniform_(torch.empty(h, h)) for _ in range(cfg.model.layers - 2)]
        )
        self.spread = SimpleConv(aggr="sum")

    def forward(self) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return logits [N, C], the hidden features [N, H] of each layer, and the orthogonal weights."""
        hidden, weights = [torch.relu(self.first(self.x, self.edge_index))], []
        for raw in self.middle:
            weights.append(self.orthogonal(raw))
            hidden.append(torch.relu(self.spread(hidden[-1] @ weights[-1], *self.normed)))
        return self.last(hidden[-1], self.edge_index), hidden, weights

    def orthogonal(self, raw: Tensor) -> Tensor:
        """Orthogonalise a weight by Newton's iteration."""
        w = self.mix * raw + (1 - self.mix) * self.eye
        gram = w @ w.T + 1e-5 * self.eye
        bound = gram.norm()
        y, b = gram / bound, self.eye
        for _ in range(self.steps):
            m = 1.5 * self.eye - 0.5 * b @ y
            y, b = y @ m, m @ b
        return b @ w / bound.sqrt()

    def pairs(self, ours: Any) -> Pairs:
        """Yield corresponding tensors by layer."""
        yield from _convolution(ours.layers[0], self.first)
        for layer, weight in zip(ours.layers[1:], self.middle, strict=True):
            yield layer.weight, weight
        yield from _convolution(ours.head, self.last)


class FedOMD(Loop):
    """FedOMD, which shares all parameters, and exchanges means and moments."""

    def model(self, graph: Any) -> Orthogonal:
        """Return the orthogonal model."""
        return Orthogonal(graph, self.cfg)

    def exchange(self) -> None:
        """Pool means, moments about them, and the range of each layer (Algorithm 1, lines 3 to 16)."""
        with torch.no_grad():
            embeddings = [model()[1] for model in self.models]
        self.target, self.span = [], []
        total = sum(self.weights)
        for layer in zip(*embeddings, strict=True):
            shares = [(w / total, z) for w, z in zip(self.weights, layer, strict=True)]
            mean = sum(share * z.mean(0) for share, z in shares)
            moments = [sum(share * ((z - mean) ** j).mean(0) for share, z in shares) for j in range(2, 6)]
            self.target.append([mean, *moments])
            self.span.append(max(z.max() for z in layer) - min(z.min() for z in layer))

    def loss(self, index: int) -> Tensor:
        """Return equation (12)."""
        params = self.cfg.strategy.params
        logits, hidden, weights = self.models[index]()
        loss = self.entropy(logits, index)
        for w in weights:
            loss = loss + params["alpha"] * torch.norm(w @ w.T - self.models[index].eye)
        for z, target, span in zip(hidden, self.target, self.span, strict=True):
            mean = z.mean(0)
            moments = [mean, *(((z - mean) ** j).mean(0) for j in range(2, 6))]
            for j, (moment, pooled) in enumerate(zip(moments, target, strict=True), 1):
                loss = loss + params["beta"] * torch.norm(moment - pooled) / span**j
        return loss


def _linear(ours: Any, bare: nn.Linear) -> Pairs:
    yield from ((ours.weight, bare.weight.T), (ours.bias, bare.bias))


def _convolution(ours: Any, bare: GCNConv) -> Pairs:
    yield from ((ours.weight, bare.lin.weight.T), (ours.bias, bare.bias))


LOOPS: dict[str, type[Loop]] = {"fedhero": FedHERO, "fedhgn": FedHGN, "fedomd": FedOMD}


def ours(words: list[str]) -> float:
    """Return the CPU seconds of one of our rounds."""
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as out:
        run(compose([*words, f"out={out}"]), lambda record: ends.append(time.process_time()))
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def bare(loop: Loop) -> float:
    """Return the CPU seconds of one round of the loop."""
    started = time.process_time()
    for _ in range(LOOPED):
        loop.round()
    return (time.process_time() - started) / LOOPED


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compare the cost of a round with a plain PyTorch loop.")
    parser.add_argument(
        "methods", nargs="*", metavar="METHOD", help=f"methods out of {', '.join(LOOPS)} (default: all)"
    )
    methods = parser.parse_args().methods or list(LOOPS)
    if unknown := set(methods) - set(LOOPS):
        parser.error(f"no loop for {', '.join(sorted(unknown))}, expected {', '.join(LOOPS)}")
    torch.set_num_threads(1)
    print("| method | data | clients | our round, ms | loop, ms | ratio |\n|---|---|---|---|---|---|")
    for method in methods:
        overrides = [
            f"protocol={method}",
            f"strategy={method}",
            f"rounds={ROUNDS}",
            "evaluation.patience=0",
            "device=cpu",
        ]
        cfg = compose(overrides)
        torch.manual_seed(cfg.seed)
        loop = LOOPS[method](cfg)
        loop.round()
        pairs = [(ours(overrides), bare(loop)) for _ in range(TURNS)]
        package, plain = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(one / other for one, other in pairs)
        data = f"{cfg.dataset.name} | {len(loop.graphs)}"
        print(f"| {method} | {data} | {package:.0f} | {plain:.0f} | {ratio:.2g} |", flush=True)


if __name__ == "__main__":
    main()

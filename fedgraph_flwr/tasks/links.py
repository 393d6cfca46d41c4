"""Link prediction: which pairs of nodes are joined by an edge that the network does not see.

Edges are split into training, validation and test pairs. Validation and test pairs are hidden from the network in both
directions. A step predicts a share of the training pairs (``task.disjoint``) and hides them too. It adds ``task.negatives``
pairs for each that are not an edge for training: if they avoided validation and test edges too, a model could learn those as the
pairs that are never negative. Pairs to score against avoid the edges of all splits. The score of a pair (u, v) is the dot product
of the two nodes' outputs, z_u · z_v.

Each pair belongs to one client, so edges between clients are not predicted. The split follows from a keyed hash of the two global
ids, so that a client and the pooled graph agree on it.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_flwr.config import TASKS, RunConfig
from fedgraph_flwr.data.far_ends import with_far_ends
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.evaluation import chance, metrics
from fedgraph_flwr.evaluation.curves import Curves
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.tasks import pairs, ranking
from fedgraph_flwr.tasks.base import STAGES, Batch, SplitScorer
from fedgraph_flwr.wire.messages import derive_seed


class Links(ranking.Ranking):
    """Hidden edges of a graph: outputs are embeddings [N, ``model.hidden``], targets 1 for an edge and 0 for none."""

    METRICS: ClassVar = TASKS["links"]
    ITEMS: ClassVar = "edges"
    KEYS: ClassVar = frozenset({"disjoint", "negatives", "candidates"})
    SPLITS: ClassVar = ("ratio",)
    samples: ClassVar = True

    def __init__(self, cfg: RunConfig, graph: ClientGraph):
        super().__init__(cfg, graph)
        joined = pairs.undirected(graph.edge_index.numpy())
        self.part = graph.part.numpy() if graph.part.numel() else np.zeros(graph.num_nodes, dtype=np.int64)
        inner = joined[
            :, self.part[joined[0]] == self.part[joined[1]]
        ]  # an edge between two clients belongs to neither
        self.known = joined
        place = pairs.keyed(np.sort(graph.node_id.numpy()[inner], axis=0), derive_seed(cfg.seed, "links"))
        splits = pairs.split_by_owner(np.argsort(place, kind="stable"), self.part[inner[0]], cfg.split.shares)
        self.take({split: inner[:, rows] for split, rows in zip(STAGES, splits, strict=True)})
        self.graph = without(graph, np.concatenate([self.items["val"], self.items["test"]], axis=1))
        if graph.far:
            self.graph = with_far_ends(self.graph)

    @property
    def variant(self) -> dict[str, Any]:
        """Settings that select the edges hidden from the model's inputs."""
        return {
            "task": "links",
            "seed": self.cfg.seed,
            "split": [*self.cfg.split.shares],
        }

    @classmethod
    def outputs(cls, cfg: RunConfig, num_classes: int) -> int:
        """``model.hidden``."""
        return cfg.model.hidden

    @property
    def compared(self) -> int:
        """Outputs of the pairs of a step, or stored pairs of a scoring, `STORED` numbers each."""
        task, train = self.cfg.task, self.items["train"].shape[1]
        taken = max(round(task.disjoint * train), 1) if task.disjoint else train
        if self.cfg.train.batch_size:  # of a sampler
            taken = min(self.cfg.train.batch_size, train)
        scored = max(self.items[split].shape[1] for split in metrics.SPLITS)
        return max(taken * (1 + task.negatives) * self.cfg.model.hidden, scored * task.candidates * STORED)

    def step(self, whole: Batch, index: int, client: Any) -> Batch:
        """A share of the training pairs, which the network does not see in this step, and pairs without an edge.

        With ``train.batch_size`` the share is the batch, hidden unless ``task.disjoint`` is 0; with ``train.sampler`` the ends of
        all pairs are the seeds.
        """
        task, known, sampled = self.cfg.task, self.items["train"], client.sampled
        rng = self.draws(client.server_round, client.exchange, index, "negatives")
        taken, key = np.arange(known.shape[1]), 0
        if sampled is not None:
            places, key = sampled.drawn(client.server_round, client.exchange, index)
            taken = np.sort(places)
        if task.disjoint and taken.size > 1 and (sampled is None or not self.cfg.train.batch_size):
            taken = np.sort(rng.permutation(taken.size)[: max(round(task.disjoint * taken.size), 1)])
        joined = known[:, taken]
        hides = bool(task.disjoint) and known.shape[1] > 1
        graph = without(self.graph, joined) if hides else self.graph
        self._check_size(taken.size, "negatives")
        sources = np.repeat(joined[rng.integers(2, size=taken.size), np.arange(taken.size)], task.negatives)
        targets, free = self._corrupted(sources, rng)
        apart = np.stack([sources, targets])[:, free]
        y = torch.cat([torch.ones(taken.size), torch.zeros(apart.shape[1])])
        items, inputs = np.concatenate([joined, apart], axis=1), whole.inputs
        if sampled is not None:
            seeds, ends = np.unique(items, return_inverse=True)
            neighbours = client.model.neighbours(graph, client.device, client.dtype) if hides else None
            inputs, items = sampled.around(seeds, key, neighbours), ends.reshape(2, -1)
        elif hides:
            inputs = client.model.with_edges(inputs, graph, client.device, client.dtype)
        return Batch(inputs, torch.from_numpy(items).to(client.device), y.to(client.device, client.dtype))

    def _corrupted(self, sources: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """As `NonEdges.corrupted` against the edges that training may use, with targets of the source's own part."""
        targets, free = np.zeros_like(sources), np.zeros(sources.size, dtype=bool)
        for p, draws in self._apart_in_training.items():
            (rows,) = np.nonzero(self.part[sources] == p)
            targets[rows], free[rows] = draws.corrupted(sources[rows], rng)
        return targets, free

    @staticmethod
    def read(logits: Tensor, items: Tensor | None) -> Tensor:
        """Scores [V] of pairs [2, V]: dot products of their ends' outputs."""
        if items is None:
            raise ValueError("pairs of nodes are needed")
        return (logits[items[0]] * logits[items[1]]).sum(-1)

    @staticmethod
    def loss(predictions: Tensor, y: Tensor, cfg: RunConfig, weights: Tensor | None = None) -> Tensor:
        """Mean binary cross entropy of the scores."""
        return F.binary_cross_entropy_with_logits(predictions, y.to(predictions))

    def scorer(self, floor: int) -> SplitScorer:
        """Validation and test pairs with their negatives; a split of fewer pairs than the floor is not scored."""
        parts = np.unique(self.part).tolist() or [0]
        drawn = [{split: self.drawn(split, p) for split in metrics.SPLITS} for p in parts]
        return SplitScorer(drawn, partial(_scored, floor=floor))

    @cached_property
    def _apart(self) -> Mapping[int, pairs.NonEdges]:
        """Pairs without an edge of any split, by part."""
        return self._non_edges(self.known)

    @cached_property
    def _apart_in_training(self) -> Mapping[int, pairs.NonEdges]:
        """Pairs without an edge that training may use, by part: validation and test edges are among them."""
        return self._non_edges(pairs.undirected(self.graph.edge_index.numpy()))

    def _non_edges(self, joined: np.ndarray) -> Mapping[int, pairs.NonEdges]:
        """Pairs that are not among those joined [2, P], by part."""
        n = self.graph.num_nodes
        return {p: pairs.NonEdges(joined, np.flatnonzero(self.part == p), n) for p in np.unique(self.part).tolist()}

    def drawn(self, split: str, part: int) -> "Ranked":
        """Test or validation pairs of a part with their negatives, the same in every run of this seed."""
        positives = self.items[split][:, self.part[self.items[split][0]] == part]
        client = part if self.graph.part.numel() else self.graph.client
        rng = np.random.default_rng([self.cfg.seed, client, derive_seed("links", split)])
        draws, count = self._apart[part], self.cfg.task.candidates
        self._check_size(positives.shape[1], "candidates")
        sources = positives[rng.integers(2, size=positives.shape[1]), np.arange(positives.shape[1])]
        targets, free = draws.corrupted(np.repeat(sources, count), rng)
        shape = positives.shape[1], count
        return Ranked(
            positives, sources, targets.reshape(shape), free.reshape(shape), draws.uniform(positives.shape[1], rng)
        )

    def _check_size(self, edges: int, key: str) -> None:
        """Refuse to draw more pairs than fit in memory, by a key of ``task``."""
        named, most = f"task.{key}", pairs.MAX_DRAWN // max(edges, 1)
        pairs.check_drawn(self.graph.client, edges, getattr(self.cfg.task, key), "pairs", named, most)

    @classmethod
    def for_prediction(cls, cfg: RunConfig) -> RunConfig:
        """No edge is hidden."""
        return replace(cfg, split=replace(cfg.split, train=1.0, val=0.0, test=0.0))

    @classmethod
    def exported(cls, plain: Plain) -> Plain:
        """Add the scores of pairs."""
        return plain.with_readout("pairs", {}, {})


class Ranked(NamedTuple):
    """Pairs to be scored, and what they are ranked against.

    Attributes:
        pairs: edges [2, P].
        sources: the end of each that its negatives keep [P].
        targets: the other ends of its K negatives [P, K].
        free: which of these pairs have no edge, bool [P, K].
        apart: uniform pairs without an edge, about as many as edges [2, P'].
    """

    pairs: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    free: np.ndarray
    apart: np.ndarray


STORED = 8
"""Numbers that a drawn pair needs while others are drawn."""

ROWS = 2**20
"""Negatives that are scored at a time, with outputs of up to 64 numbers; fewer of wider ones."""


def _scored(outputs: Tensor, items: Ranked, floor: int) -> tuple[int, dict[str, float]]:
    """Return the number and the scores of pairs; none if they are fewer than the floor."""
    count = items.pairs.shape[1]
    return (count, _values(outputs, items)) if count and count >= floor else (0, {})


def _values(z: Tensor, ranked: Ranked) -> dict[str, float]:
    """All scores of one model's outputs [N, W] on pairs, by name, with their chance levels."""
    positive = Links.read(z, torch.from_numpy(ranked.pairs)).numpy()
    negative = _against(z, ranked)
    places = ranking.ranks(positive, negative)
    apart = Links.read(z, torch.from_numpy(ranked.apart)).numpy()
    labels = np.repeat([True, False], [positive.size, apart.size])
    curve = Curves(np.concatenate([positive, apart]), labels)
    losses = np.logaddexp(0, np.where(labels, -1, 1) * np.concatenate([positive, apart]).astype(np.float64))
    return ranking.scores(places, ranked.free.sum(1)) | {
        "loss": float(losses.mean()),
        "auc": float(curve.area()[0]) if apart.size else float("nan"),
        "average_precision": float(curve.precision()[0]),
        chance.name_of("auc"): 0.5,
        chance.name_of("average_precision"): positive.size / labels.size,
    }


def _against(z: Tensor, ranked: Ranked) -> np.ndarray:
    """Scores of each edge's negatives [P, K]; NaN for those that are an edge after all."""
    size, count = ranked.targets.shape
    rows = max(ROWS // max(count * max(z.size(1) // 64, 1), 1), 1)
    blocks = [
        torch.einsum("pw,pkw->pk", z[ranked.sources[i : i + rows]], z[ranked.targets[i : i + rows]]).numpy()
        for i in range(0, size, rows)
    ]
    scores = np.concatenate(blocks) if blocks else np.zeros((0, count), np.float32)
    return np.where(ranked.free, scores, np.nan)


def without(graph: ClientGraph, hidden: np.ndarray) -> ClientGraph:
    """The graph without the edges between pairs of nodes [2, P], in both directions."""
    if not hidden.shape[1]:
        return graph
    code = pairs.codes(graph.edge_index.numpy(), graph.num_nodes)
    kept = torch.from_numpy(np.flatnonzero(~np.isin(code, pairs.codes(hidden, graph.num_nodes))))
    return graph.with_edges(graph.edge_index[:, kept], kept)

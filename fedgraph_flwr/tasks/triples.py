"""Knowledge-graph completion: which entity is the missing head or tail of a triple (head, relation, tail).

A stored edge is a triple: from head to tail, its label (``edge_y``) being the relation. Entities are nodes. The model gives a
vector per entity; the vectors of relations are parameters of the readout, which all clients share. A step compares training
triples with wrong ones, whose head or tail is replaced by a uniform entity (``task.negatives`` each). Only training triples are
messages, and only they decide which replacements are wrong, so that nothing of validation and test reaches a gradient.

    softmax        −f(h, r, t) + ln Σ exp f over the triple and its negatives
    log_sigmoid    −ln σ(γ + f(h, r, t)) − Σ_i p_i ln σ(−γ − f_i),  p ∝ exp(τ f_i) without gradient   (Sun et al., ICLR 2019)

A scored triple gives two queries, (?, r, t) and (h, r, ?). Each ranks the missing entity among the client's entities, without
those that complete another triple of the client, of any split (the filtered rank of Bordes et al., NeurIPS 2013).

Each triple belongs to one client. The split follows from a keyed hash of global ids, so that a client and the pooled graph agree.
"""

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_flwr import models
from fedgraph_flwr.config import TASKS, RunConfig
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import chance, metrics
from fedgraph_flwr.models.readout import RelationRows, attach
from fedgraph_flwr.numerics.draws import within
from fedgraph_flwr.tasks import pairs, ranking
from fedgraph_flwr.tasks.base import STAGES, Batch, LaterInputs, SplitScorer
from fedgraph_flwr.tasks.decoders import DECODERS
from fedgraph_flwr.wire.messages import derive_seed

TRIES = 32
"""Redraws of a replacement that completes a training triple; one that does even then is left out of the loss."""

CELLS = 2**22
"""Scores of queries and candidates that are ranked at a time."""


class Party(NamedTuple):
    """Triples of one client: all of its graph, or its share of the pooled graph.

    Attributes:
        entities: rows of its entities, ascending [K].
        items: triples (head, relation, tail) by split, each [3, P]; entities by row.
    """

    entities: np.ndarray
    items: dict[str, np.ndarray]


class Triples(ranking.Ranking):
    """Triples of a graph: outputs are the vectors of entities, then of relations [N + R, ``model.hidden``].

    Attributes:
        parties: the clients of the graph: one, or all of the pooled graph.
    """

    METRICS: ClassVar = TASKS["triples"]
    ITEMS: ClassVar = "triples"
    CLASSES: ClassVar = "edge_classes"
    KEYS: ClassVar = frozenset({"loss", "negatives", "decoder", "batch_size", "margin", "temperature"})
    SPLITS: ClassVar = ("ratio", "public")
    LOSSES: ClassVar = ("softmax", "log_sigmoid")

    def __init__(self, cfg: RunConfig, graph: ClientGraph):
        self.cfg = cfg
        pairs.check_one_way(graph, "triples")
        self.num_nodes, self.num_relations = graph.num_nodes, self.num_classes(graph)
        if self.num_nodes**2 * self.num_relations >= 2**63:
            raise FedGraphError(
                f"client {graph.client} has {self.num_nodes} entities and {self.num_relations} relations, too many to number all"
                " triples with 63 bits: use more clients"
            )
        triples = np.stack([graph.edge_index[0].numpy(), graph.edge_y.numpy(), graph.edge_index[1].numpy()])
        owner, rows = _owners(graph), _distinct(graph, triples)
        rows = rows[owner[rows] >= 0]
        split = self._split(graph, triples[:, rows], owner[rows], rows)
        self.parties = [
            Party(
                entities, {name: triples[:, rows[(owner[rows] == p) & (split == k)]] for k, name in enumerate(STAGES)}
            )
            for p, entities in _entities(graph, owner).items()
        ]
        self.take({name: np.concatenate([party.items[name] for party in self.parties], axis=1) for name in STAGES})
        self.owner = np.repeat(np.arange(len(self.parties)), [p.items["train"].shape[1] for p in self.parties])
        self.known = np.sort(self._codes(*self.items["train"]))
        kept = torch.from_numpy(np.sort(np.concatenate([rows[split == 0], (owner < 0).nonzero()[0]])))
        self.graph = graph.with_edges(graph.edge_index[:, kept], kept)

    def _split(self, graph: ClientGraph, triples: np.ndarray, owner: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the split of each triple, 0 to 2, or -1 for none: that of the data, or by a keyed hash within each client."""
        if self.cfg.split.kind == "public":
            pairs.check_stages(graph, self.cfg.split)
            return np.asarray(graph.edge_split.numpy()[rows])
        key = derive_seed(self.cfg.seed, "triples")
        ends = graph.node_id.numpy()[triples[[0, 2]]]
        place = pairs.mixed(pairs.keyed(ends, key) + pairs.mixed(triples[1].astype(np.uint64) + np.uint64(key)))
        splits = np.full(len(rows), -1)
        order = np.argsort(place, kind="stable")
        for number, taken in enumerate(pairs.split_by_owner(order, owner, self.cfg.split.shares)):
            splits[taken] = number
        return splits

    def _codes(self, heads: np.ndarray, relations: np.ndarray, tails: np.ndarray) -> np.ndarray:
        """Return one number per triple, int64."""
        return np.asarray((heads * self.num_relations + relations) * self.num_nodes + tails)

    @classmethod
    def network(cls, cfg: RunConfig, num_features: Any, width: int, num_edge_features: int = 0) -> models.Model:
        """A model with ``model.hidden`` outputs per entity, and as many for each relation."""
        model = models.build(cfg.model, num_features, cfg.model.hidden, num_edge_features)
        return attach(model, RelationRows(width, cfg.model.hidden))

    @classmethod
    def num_classes(cls, graph: Any) -> int:
        """R, the number of relations that all clients share."""
        return pairs.classes_of_edges(graph, "triples", "planted-triples")

    @property
    def variant(self) -> dict[str, Any]:
        """Settings that select the triples hidden from the model's inputs."""
        split = self.cfg.split
        return {"task": "triples", "seed": self.cfg.seed, "split": [split.kind, *split.shares]}

    def later(self, client: Any, inputs: Any) -> LaterInputs:
        """None: validation and test triples are never messages."""
        return []

    def step(self, whole: Batch, index: int, client: Any) -> Batch:
        """Some training triples, each with the missing end and what may replace it; `read` says how items are packed."""
        task, train = self.cfg.task, self.items["train"]
        rng = self.draws(client.server_round, client.exchange, index, "negatives")
        size = min(task.batch_size or train.shape[1], train.shape[1])
        most = pairs.MAX_DRAWN // task.negatives
        pairs.check_drawn(self.graph.client, size, task.negatives, "entities", "task.batch_size", most)
        taken = np.sort(rng.permutation(train.shape[1])[:size])
        taken = taken[frequent(train[1, taken], client.policy.min_nodes)]
        size = taken.size
        heads = rng.random(size) < 0.5
        triples = train[:, taken]
        drawn, free = self._replacements(triples, heads, self.owner[taken], rng)
        missing, known = np.where(heads, triples[0], triples[2]), np.where(heads, triples[2], triples[0])
        items = np.column_stack([known, self.num_nodes + triples[1], heads, missing, drawn])
        y = np.column_stack([np.ones(size), np.where(free, 0, -1)])
        device = client.device
        return Batch(whole.inputs, torch.from_numpy(items).to(device), torch.from_numpy(y).to(device, client.dtype))

    @property
    def compared(self) -> int:
        """Outputs of the entities that a step compares."""
        task, train = self.cfg.task, self.items["train"].shape[1]
        return min(task.batch_size or train, train) * (1 + task.negatives) * self.cfg.model.hidden

    def _replacements(
        self, triples: np.ndarray, heads: np.ndarray, owner: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw entities of each triple's party [V, K], and return which do not complete a training triple, bool [V, K]."""
        sizes = np.array([party.entities.size for party in self.parties])
        starts, every = np.cumsum(sizes) - sizes, np.concatenate([party.entities for party in self.parties])

        def draw(of: np.ndarray) -> np.ndarray:
            return np.asarray(every[starts[of] + (rng.random(of.size) * sizes[of]).astype(np.int64)])

        count = self.cfg.task.negatives
        head, relation, tail, side, of = (np.repeat(a, count) for a in (*triples, heads, owner))
        drawn = draw(of)
        for attempt in range(TRIES + 1):
            code = self._codes(np.where(side, drawn, head), relation, np.where(side, tail, drawn))
            place = np.minimum(np.searchsorted(self.known, code), self.known.size - 1)
            taken = self.known[place] == code
            if attempt == TRIES or not taken.any():
                break
            drawn[taken] = draw(of[taken])
        return drawn.reshape(-1, count), ~taken.reshape(-1, count)

    def read(self, logits: Tensor, items: Tensor | None) -> Tensor:  # type: ignore[override]
        """Scores [V, K] of K candidates for the missing end of V triples.

        Args:
            logits: vectors of entities and relations [N + R, W].
            items: rows of the known end and of the relation, whether the head is missing, and rows of candidates [V, 3 + K].
        """
        if items is None:
            raise ValueError("triples are needed")
        decoder = DECODERS[self.cfg.task.decoder]
        query = decoder.query(logits[items[:, 0]], logits[items[:, 1]], items[:, 2].bool())
        return decoder.score(query[:, None], F.embedding(items[:, 3:], logits))

    @staticmethod
    def loss(predictions: Tensor, y: Tensor, cfg: RunConfig, weights: Tensor | None = None) -> Tensor:
        """``task.loss`` of scores [V, 1 + K], the true end first; y is 1 for it, 0 for a wrong one, -1 for one left out."""
        left_out = y < 0
        if cfg.task.loss == "softmax":
            scores = predictions.masked_fill(left_out, -torch.inf)
            return (scores.logsumexp(1) - scores[:, 0]).mean()
        wrong, margin = predictions[:, 1:], cfg.task.margin
        share = (
            (cfg.task.temperature * wrong.detach()).masked_fill(left_out[:, 1:], -torch.inf).softmax(1).nan_to_num(0)
        )
        apart = (share * F.logsigmoid(-margin - wrong)).sum(1)
        return -(F.logsigmoid(margin + predictions[:, 0]) + apart).mean()

    @property
    def num_rows(self) -> int:
        """Entities and relations."""
        return self.num_nodes + self.num_relations

    def scorer(self, floor: int) -> SplitScorer:
        """Validation and test triples, without those of a relation that has fewer of them in a split than the floor."""
        parts = [{split: (party, split) for split in metrics.SPLITS} for party in self.parties]
        return SplitScorer(parts, partial(self._scored, floor=floor))

    def _scored(self, outputs: Tensor, items: tuple[Party, str], floor: int) -> tuple[int, dict[str, float]]:
        """Return the number and the scores of the triples of a party's split."""
        party, split = items
        shown = int(frequent(party.items[split][1], floor).sum())
        if not shown:
            return 0, {}
        ranks = self.ranked(outputs, party, split, floor=floor)
        return shown, ranking.scores(ranks.ranks, ranks.wrong) | {
            "loss": float(ranks.losses.mean()),
            "mr": float(ranks.ranks.mean()),
            chance.name_of("mr"): float(np.mean(1 + ranks.wrong / 2)),
        }

    def ranked(self, outputs: Tensor, party: Party, split: str, filtered: bool = True, floor: int = 0) -> "Ranks":
        """Rank the heads, then the tails of a split's triples among the party's entities.

        Args:
            outputs: vectors of entities and relations [N + R, W].
            party: whose triples they are.
            split: ``val`` or ``test``.
            filtered: whether candidates that complete another known triple are left out.
            floor: triples of a relation with fewer of them are left out.
        """
        every = np.concatenate([party.items[name] for name in STAGES], axis=1)
        scored = party.items[split][:, frequent(party.items[split][1], floor)]
        sides = [self._ranked_side(outputs, party.entities, scored, every, side, filtered) for side in (0, 2)]
        return Ranks(*(np.concatenate(values) for values in zip(*sides, strict=True)))

    def _ranked_side(
        self, outputs: Tensor, entities: np.ndarray, triples: np.ndarray, every: np.ndarray, side: int, filtered: bool
    ) -> "Ranks":
        """Rank one end of triples [3, P]: row 0 the head, row 2 the tail."""
        size, decoder = entities.size, DECODERS[self.cfg.task.decoder]
        candidates = outputs[torch.from_numpy(entities)]
        known, missing = every[2 - side], np.searchsorted(entities, every[side])
        codes = np.sort((known * self.num_relations + every[1]) * size + missing)
        parts = []
        for block in np.split(
            np.arange(triples.shape[1]), range(max(CELLS // size, 1), triples.shape[1], max(CELLS // size, 1))
        ):
            ends, relation = triples[2 - side, block], triples[1, block]
            rows = torch.from_numpy(ends), torch.from_numpy(self.num_nodes + relation)
            heads = torch.full((block.size,), side == 0)
            scores = decoder.against(decoder.query(outputs[rows[0]], outputs[rows[1]], heads), candidates)
            first = (ends * self.num_relations + relation) * size
            place = np.searchsorted(entities, triples[side, block])
            low, high = (np.searchsorted(codes, first + shift) for shift in (0, size))
            if not filtered:
                low = high = np.zeros_like(low)
            query = np.repeat(np.arange(block.size), high - low)
            out = query, codes[low[query] + within(high - low)] - first[query]
            parts.append(Ranks(*ranking.among(scores, place, out)))
        return Ranks(*(np.concatenate(values) for values in zip(*parts, strict=True)))

    @classmethod
    def for_prediction(cls, cfg: RunConfig) -> RunConfig:
        """No triple is hidden."""
        return replace(cfg, split=replace(cfg.split, kind="ratio", train=1.0, val=0.0, test=0.0))

    @classmethod
    def check(cls, cfg: RunConfig) -> None:
        """Refuse an odd width of complex numbers, too."""
        super().check(cfg)
        if cfg.task.decoder == "rotate" and cfg.model.hidden % 2:
            raise FedGraphError(
                f"task.decoder=rotate reads complex numbers as two halves of a vector, got model.hidden={cfg.model.hidden}: set"
                " an even number"
            )


class Ranks(NamedTuple):
    """Ranks of missing entities.

    Attributes:
        ranks: rank of each, ties at their mean place [Q].
        wrong: number of entities that it is ranked against [Q].
        losses: cross entropy of the softmax over these and itself [Q].
    """

    ranks: np.ndarray
    wrong: np.ndarray
    losses: np.ndarray


def frequent(relations: np.ndarray, floor: int) -> np.ndarray:
    """Mark triples whose relation [P] occurs at least ``floor`` times, bool [P].

    A relation's vector follows from its triples only, so the gradient of a rare one would reveal single triples. Ranks under
    vectors that a server chooses would count them.
    """
    if floor <= 1:
        return np.ones(relations.size, dtype=bool)
    return np.asarray(np.bincount(relations, minlength=1)[relations] >= floor)


def _owners(graph: ClientGraph) -> np.ndarray:
    """Return the client of each triple [E]; -1 for one between two clients of the pooled graph."""
    if graph.edge_part.numel():
        return np.asarray(graph.edge_part.numpy())
    if not graph.part.numel():
        return np.zeros(graph.num_edges, dtype=np.int64)
    head, tail = graph.part[graph.edge_index].numpy()
    return np.where(head == tail, head, -1)


def _distinct(graph: ClientGraph, triples: np.ndarray) -> np.ndarray:
    """Return one edge of each distinct triple with a known relation, ascending: one of the first split that has it."""
    known = (graph.edge_y >= 0).nonzero().view(-1).numpy()
    if graph.edge_split.numel():
        known = known[np.argsort(graph.edge_split.numpy()[known], kind="stable")]
    return np.sort(known[np.unique(triples[:, known], axis=1, return_index=True)[1]])


def _entities(graph: ClientGraph, owner: np.ndarray) -> dict[int, np.ndarray]:
    """Return the rows of each client's entities, ascending: its nodes, and the ends of its triples."""
    if not graph.part.numel():
        return {0: np.arange(graph.num_nodes)}
    part, ends = graph.part.numpy(), graph.edge_index.numpy()
    parties = np.union1d(part, owner[owner >= 0]).tolist()
    return {p: np.union1d(np.flatnonzero(part == p), ends[:, owner == p]) for p in parties}

"""Edge classification: one class per stored edge, such as whether a payment is laundering.

An edge is an item of one client, the owner of its source. With ``task.between`` a client reads the edges between its nodes and
those of others. The other ends become nodes with the columns that their owners share (`data.far_ends`), else without features.
It predicts the edges that leave its nodes. Labels are not features, so all edges stay messages. With ``split.kind=temporal``,
training reads no edge after the first cut, and validation none after the second. A later edge is scored on the edges until the
end of its own day (``split.step``), so that its score is one that could have been given then.

The ratio split orders each client's edges by a keyed hash of the global ids of their ends, so that a client and the pooled graph
agree on it. With ``split.kind=public`` the data assign edges to stages (``edge_split``). A stage reads its own edges and those of
earlier stages.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr import models
from fedgraph_flwr.config import TASKS, RunConfig
from fedgraph_flwr.data.far_ends import far_rows, told_places, with_far_ends, without_cut_edges, without_far_columns
from fedgraph_flwr.data.graph import ClientGraph, rows_of
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.readout import EdgeReadout, attach, items_of
from fedgraph_flwr.numerics.draws import occurrences
from fedgraph_flwr.numerics.gathered import Rows
from fedgraph_flwr.tasks import pairs
from fedgraph_flwr.tasks.base import STAGES, Batch, LaterInputs
from fedgraph_flwr.tasks.classification import Classification
from fedgraph_flwr.wire.messages import derive_seed

ENTERING = "entering"
"""Key of a graph's schema: edges that reach its nodes from others are items, too. In training their owner predicts them."""

AT_ONCE = 1 << 27
"""Numbers of edges' features, over all points, up to which inputs are kept between scorings."""

DAY = 86_400
"""Seconds of a day."""


class Edges(Classification):
    """Classes of stored edges: outputs are logits [V, C], of the training edges first, targets int64 [V].

    Attributes:
        order: place of each item among the client's edges, which are its inner edges, then those that leave its nodes [V].
        point: when each item is scored, as a row of ``points`` [V]; 0 where all stages read every edge.
        points: stage, and last time that it reads or None; the first is that of training.
        ends: global ids of the items' sources and targets [2, V].
    """

    METRICS: ClassVar = TASKS["edges"]
    ITEMS: ClassVar = "edges"
    KEYS: ClassVar = frozenset({"between"})
    SPLITS: ClassVar = ("ratio", "temporal", "public")
    CLASSES: ClassVar = "edge_classes"
    reads_edges: ClassVar = True
    samples: ClassVar = True

    def __init__(self, cfg: RunConfig, graph: ClientGraph, messages: bool = True):
        self.cfg, self.messages = cfg, messages
        pairs.check_one_way(graph, "edges")
        if not cfg.task.between and graph.part.numel():  # in the pooled graph, edges between clients are inner edges
            mask = (graph.part[graph.edge_index[0]] == graph.part[graph.edge_index[1]]) | bool(graph.edge_part.numel())
            kept = mask.nonzero().view(-1)
            graph = graph.with_edges(graph.edge_index[:, kept], kept)
        self.whole = _without_totals(graph if cfg.task.between else without_cut_edges(graph))
        self.points: list[tuple[int, int | None]] = [(0, None)]
        self.graph = self.until(0)
        inner, leaving = self.whole.edge_index, self.whole.cut_out
        ends = torch.cat([graph.node_id[inner], torch.stack([graph.node_id[leaving[0]], leaving[1]])], dim=1)
        if graph.schema.get(ENTERING):
            entering = self.whole.cut_in
            ends = torch.cat([ends, torch.stack([entering[1], graph.node_id[entering[0]]])], dim=1)
        data = {key: own_rows(self.whole, key) for key in ("edge_y", "edge_split", "edge_time")}
        y = data["edge_y"] if data["edge_y"].numel() else torch.full((ends.size(1),), -1)
        # the pooled graph has no edges to others
        part = graph.edge_part if graph.edge_part.numel() else rows_of(graph.part, inner[0])
        used = self._used(y, ends, part, data["edge_split"])
        self.order = torch.cat([(used == 0).nonzero().view(-1), (used != 0).nonzero().view(-1)])
        self.y, self.part = y[self.order], rows_of(part, self.order)
        self.time = rows_of(data["edge_time"], self.order)
        stage = data["edge_split"][self.order].long() if data["edge_split"].numel() else torch.zeros_like(self.y)
        self.point, self.points = self._points(stage, self.time)
        self.ends = ends[:, self.order]
        self.masks = {split: used[self.order] == number for number, split in enumerate(STAGES)}

    def until(self, point: int) -> ClientGraph:
        """Return the graph read at a point, whose edges between clients carry no columns of a client's own records."""
        if self.messages:
            return with_far_ends(without_own_columns(self.whole.until(*self.points[point])))
        attr = self.whole.edge_attr
        bare: dict[str, Any] = dict.fromkeys(("edge_attr", "cut_out_edge_attr", "cut_in_edge_attr"), attr[:0, :0])
        return replace(with_far_ends(replace(self.whole, **bare).until(*self.points[point])), edge_attr=attr[:0])

    @classmethod
    def of_items(cls, cfg: RunConfig, graph: ClientGraph) -> "Edges":
        """As `Task.of_items`; its graph has the number of features of edges, and none of their values."""
        return cls(cfg, graph, messages=False)

    def item_attr(self, point: int) -> Tensor:
        """Return the features of the client's edges that are read at a point, in their order, for the readout [V', D]."""
        read = self.whole.until(*self.points[point])
        return own_rows(read, "edge_attr") if self.whole.num_edge_features else self.whole.edge_attr

    def _points(self, stage: Tensor, time: Tensor) -> tuple[Tensor, list[tuple[int, int | None]]]:
        """Return when each item is scored, as a row [V], and the rows: stages, after training by ``split.step``."""
        step = self.cfg.split.step_seconds if self.cfg.split.kind != "public" and time.numel() else 0
        day = torch.div(time, step, rounding_mode="floor") if step else torch.zeros_like(stage)
        day = day.where(stage > 0, 0)
        least = int(day.min()) if day.numel() else 0
        size = int(day.max()) - least + 1 if day.numel() else 1
        codes, point = (stage * size + day - least).unique(return_inverse=True)
        pairs_of = [(code // size, code % size + least) for code in codes.tolist()]
        rows = [(s, (d + 1) * step - 1 if step and s else None) for s, d in pairs_of]
        first = [] if rows and rows[0][0] == 0 else [(0, None)]  # training reads its edges even where it predicts none
        return point + len(first), [*first, *rows]

    def _used(self, y: Tensor, ends: Tensor, part: Tensor, split: Tensor) -> Tensor:
        """Return the split that uses the label of each edge, int8 [V]: 0 to 2, or -1 for none."""
        splits = torch.full(y.shape, -1, dtype=torch.int8)
        known = (y >= 0).nonzero().view(-1)
        if split.numel():
            splits[known] = split[known]
            return splits
        if known.numel():
            pairs.check_stages(self.graph, self.cfg.split)
        owner = part[known].numpy() if part.numel() else np.zeros(known.numel(), dtype=np.int64)
        place = self._hashed(ends[:, known].numpy(), np.stack([owner, y[known].numpy()]))
        for number, rows in enumerate(pairs.split_by_owner(place, owner, self.cfg.split.shares)):
            splits[known[torch.from_numpy(rows)]] = number
        return splits

    def _hashed(self, ends: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Return items in the order of a keyed hash of their ends [V]; with ``split.stratify``, each group evenly along it.

        Args:
            ends: global ids [2, V].
            groups: client and class of each item [2, V].
        """
        copies, _ = occurrences(
            np.concatenate([groups[:1], ends])
        )  # earlier edges of the same client with the same ends
        key = pairs.mixed(copies.astype(np.uint64) + np.uint64(derive_seed(self.cfg.seed, "edges")))
        order = np.argsort(pairs.mixed(pairs.keyed(ends, 0) ^ key), kind="stable")
        if not self.cfg.split.stratify:
            return order
        earlier, size = occurrences(groups[:, order])
        return order[np.argsort((earlier + 0.5) / size, kind="stable")]

    @classmethod
    def network(cls, cfg: RunConfig, num_features: Any, width: int, num_edge_features: int = 0) -> models.Model:
        """A model with ``model.hidden`` outputs per node, and an `EdgeReadout` of them."""
        hidden = cfg.model.hidden
        model = models.build(cfg.model, num_features, hidden, num_edge_features)
        return attach(model, EdgeReadout(hidden, num_edge_features, width, hidden=hidden, dropout=cfg.model.dropout))

    @classmethod
    def num_classes(cls, graph: Any) -> int:
        """C: classes of edges."""
        return pairs.classes_of_edges(graph, "edges", "payments")

    @property
    def day(self) -> Tensor | None:
        """Day of each edge."""
        return self.time // DAY if self.time.numel() else None

    def tables(self) -> list[tuple[Any, Tensor]]:
        """Those of the edges, then of their sources and of their targets, without what another client owns and does not share."""
        graph, n = self.whole, self.whole.num_nodes
        inner, leaving = graph.edge_index, graph.cut_out
        entering = graph.cut_in if graph.schema.get(ENTERING) else graph.cut_in[:, :0]
        edge_tables = (
            [(Rows(*(own_parts(graph, "edge_attr") or [graph.edge_attr])), self.order)]
            if graph.num_edge_features
            else []
        )
        far = n + torch.arange(leaving.size(1)), n + torch.arange(entering.size(1))
        sources, targets = torch.cat([inner[0], leaving[0], far[1]]), torch.cat([inner[1], far[0], entering[0]])
        ends = (sources, entering[1]), (targets, leaving[1])
        tables = [(Rows(graph.x, far_rows(graph, other, torch.nan)), at[self.order]) for at, other in ends]
        return [*edge_tables, *tables]

    @classmethod
    def num_columns(cls, num_features: int, num_edge_features: int) -> int:
        """F: those of the edge and of both ends."""
        return num_edge_features + 2 * num_features

    @property
    def variant(self) -> dict[str, Any]:
        """The graph has nodes for the ends at other clients."""
        return {"task": "edges", "between": self.cfg.task.between}

    def training_inputs(self, inputs: Any, client: Any) -> Any:
        """With the training edges as items."""
        return self._reading(inputs, self.graph, 0, self.masks["train"].nonzero().view(-1), client)

    def step(self, whole: Batch, index: int, client: Any) -> Batch:
        """All training edges; with ``train.sampler``, some, whose ends are the seeds. Edges to predict stay messages."""
        if client.sampled is None or self.cfg.train.sampler == "clusters":
            return super().step(whole, index, client)
        places, key = client.sampled.drawn(client.server_round, client.exchange, index)
        edges = self._train_edges[torch.from_numpy(places)]
        seeds, ends = np.unique(self.graph.edge_index[:, edges].numpy(), return_inverse=True)
        read, attr = torch.from_numpy(ends.reshape(2, -1)), rows_of(self._train_attr, edges)
        items = items_of(read, attr, client.device, client.dtype)
        around: Any = client.sampled.around(seeds, key)
        return Batch(replace(around, **items), None, whole.y[torch.from_numpy(places).to(client.device)])

    @property
    def train_items(self) -> tuple[Tensor, Tensor]:
        """Places of the training edges in `graph` [V], and their features [V, D]; [0, 0] without any."""
        return self._train_edges, rows_of(self._train_attr, self._train_edges)

    @cached_property
    def _train_edges(self) -> Tensor:
        """Places of the training edges in `graph` [V]."""
        return self._places(0, self.masks["train"].nonzero().view(-1))

    @cached_property
    def _train_attr(self) -> Tensor:
        """Features of the edges that training reads [V', D]."""
        return self.item_attr(0)

    def later(self, client: Any, inputs: Any) -> LaterInputs:
        """All items, each as its stage predicts it."""
        stages: LaterInputs = []
        cached = len(self.points) * self.whole.edge_attr.numel() <= AT_ONCE
        for number in range(len(self.points)):
            rows = (self.point == number).nonzero().view(-1)

            def made(number: int = number, rows: Tensor = rows) -> Any:
                graph = self.graph if not number else self.until(number)
                stage_inputs = (
                    inputs if not number else client.inputs_of(graph, point=list(self.points[number]), **self.variant)
                )
                return self._reading(stage_inputs, graph, number, rows, client)

            if rows.numel() or len(self.points) == 1:
                stages.append((rows, made() if cached else made))
        return stages

    def predictions(self, compute: Callable[[Any], Tensor], inputs: Any, later: LaterInputs) -> Tensor:
        """Every item is of a later stage."""
        outputs = [
            (rows, compute(stage_inputs() if callable(stage_inputs) else stage_inputs)) for rows, stage_inputs in later
        ]
        first = outputs[0][1]
        logits = first.new_zeros(self.order.numel(), first.size(1))
        for rows, values in outputs:
            logits[rows] = values
        return logits

    def _reading(self, inputs: Any, graph: ClientGraph, point: int, rows: Tensor, client: Any) -> Any:
        """Return inputs with these items, all of which are read at the point."""
        edges = self._places(point, rows)
        attr = rows_of(self.item_attr(point), edges)
        return replace(inputs, **items_of(graph.edge_index[:, edges], attr, client.device, client.dtype))

    def inputs_of_item(self, row: int, client: Any) -> tuple[ClientGraph, Any, Tensor]:
        """Return the graph in which an item is scored, inputs with only this item, and the item of each edge, -1 without one."""
        point = int(self.point[row])
        graph, rows = self.until(point) if point else self.graph, self._seen(point).nonzero().view(-1)
        items = torch.full((graph.edge_index.size(1),), -1)
        items[self._places(point, rows)] = rows
        return graph, self._reading(client.inputs_of(graph), graph, point, torch.tensor([row]), client), items

    def _seen(self, point: int) -> Tensor:
        """Return whether each item is an edge that is read at a point, bool [V]."""
        stage, last = self.points[point]
        seen = torch.tensor([number for number, _ in self.points])[self.point] <= stage
        return seen if last is None else seen & (self.time <= last)

    def _places(self, point: int, rows: Tensor) -> Tensor:
        """Return the places of items among the edges that are read at a point."""
        read = torch.ones(self.order.numel(), dtype=torch.int64)
        read[self.order] = self._seen(point).to(torch.int64)
        return (read.cumsum(0) - 1)[self.order[rows]]

    @classmethod
    def for_prediction(cls, cfg: RunConfig) -> RunConfig:
        """All edges of a new graph are read; those of a client's own file keep their stages."""
        step = cfg.split.step if cfg.split.kind == "temporal" else None
        return replace(cfg, split=replace(cfg.split, kind="ratio", step=step))


def own_rows(graph: ClientGraph, key: str) -> Tensor:
    """Return a field of the client's edges: the inner ones, then those that leave its nodes."""
    held = own_parts(graph, key)
    return torch.cat(held) if held else getattr(graph, key)


def own_parts(graph: ClientGraph, key: str) -> list[Tensor]:
    """Return the parts of `own_rows` that are not empty."""
    names = (key, f"cut_out_{key}", *([f"cut_in_{key}"] if graph.schema.get(ENTERING) else []))
    return [rows for rows in (getattr(graph, name) for name in names) if rows.numel()]


def _without_totals(graph: ClientGraph) -> ClientGraph:
    """Return a graph whose columns of nodes from a client's own records are 0.

    They hold all records of the training time and so look ahead of a training edge; later edges would have no such columns.
    """
    if not (made := int(graph.own_columns.get("nodes", 0))):
        return graph
    start = graph.num_features - made
    if graph.far and graph.far["places"] and all(place >= start for place in graph.far["places"]):
        raise FedGraphError(
            f"task=edges does not read columns of accounts from a client's own records, which look ahead of a training edge, and"
            f" share names no others ({', '.join(graph.far['names'][:5])}): name another column, or leave it out"
        )
    x = graph.x.clone()
    x[:, start:] = 0
    return replace(without_far_columns(graph, start), x=x)


def without_own_columns(graph: ClientGraph) -> ClientGraph:
    """Return a graph in which messages on edges between clients read only the columns that both clients have alike.

    Columns that a client computed from its own records are 0 there, in the pooled graph too, unless both tell them.
    """
    told = {place for places in told_places(graph) for place in places}
    columns = [place for place in range(graph.num_shared_edge_features, graph.num_edge_features) if place not in told]
    if not columns:
        return graph

    def cleared(values: Tensor, rows: Any = slice(None)) -> Tensor:
        if not values.numel():
            return values
        kept = torch.ones(values.size(1), dtype=torch.bool)
        kept[columns] = False
        values = values.clone()
        values[rows] = values[rows].where(kept, 0.0)
        return values

    changes: dict[str, Any] = {key: cleared(getattr(graph, key)) for key in ("cut_out_edge_attr", "cut_in_edge_attr")}
    if graph.part.numel() and graph.num_edges:
        source, target = graph.part[graph.edge_index]
        changes["edge_attr"] = cleared(graph.edge_attr, source != target)
    return replace(graph, **changes)

"""Prediction of whole graphs: for each a class (``graphs``), numbers (``graphs-regression``) or labels (``graphs-multilabel``).

    Z = model(X, A) [N, H],   p_g = Σ_{v ∈ g} z_v  (or mean or maximum, ``task.pool``),   ŷ_g = W_2 ReLU(W_1 p_g + b_1) + b_2

The graphs of a client are one block-diagonal graph (`data.many_graphs`), whose pass computes all of them. A training step reads
the training graphs only, or ``task.batch_size`` of them. These batches are drawn once per client. Each pass visits them in a new
order, drawn from (seed, client, pass).
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr import models
from fedgraph_flwr.config import TASKS, RunConfig
from fedgraph_flwr.data.graph import ClientGraph, rows_at
from fedgraph_flwr.data.many_graphs import check_answers, index_of, one_per_graph, selected
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.readout import GraphReadout, attach, graphs_of
from fedgraph_flwr.tasks.base import Batch, LaterInputs, Task
from fedgraph_flwr.tasks.classification import Classification
from fedgraph_flwr.tasks.targets import MultiLabel, Regression
from fedgraph_flwr.wire.messages import derive_seed


class OfGraphs(Task):
    """Mixin of tasks whose items are graphs: outputs are [G, W], of the training graphs first.

    Attributes:
        order: place of each item among the client's graphs [G].
        items: one node per graph, in this order.
    """

    ITEMS: ClassVar = "graphs"
    samples: ClassVar = False
    far_ends: ClassVar = False
    passes: ClassVar = True

    def __init__(self, cfg: RunConfig, graph: ClientGraph):
        if not graph.graph_id.numel():
            raise FedGraphError(
                f"task={cfg.task.name} needs many graphs, but '{graph.name}' is one: choose dataset=cycles or dataset=tu, or"
                " pass a list of PyG Data per client"
            )
        check_answers(graph)
        items = one_per_graph(graph)
        train = items.train_mask & self.known(items)
        self.order = torch.cat([train.nonzero().view(-1), (~train).nonzero().view(-1)])
        items = replace(items, **rows_at(items, "node", self.order))
        super().__init__(cfg, items)
        self.items, self.graph = items, graph
        self._batches: dict[int, Batch] = {}

    @classmethod
    @abstractmethod
    def known(cls, items: ClientGraph) -> Tensor:
        """Return which graphs have a label or target, bool [G]."""

    @classmethod
    def network(cls, cfg: RunConfig, num_features: Any, width: int, num_edge_features: int = 0) -> models.Model:
        """A model with ``model.hidden`` outputs per node, and a `GraphReadout` of them; or a model that pools."""
        if models.network(cfg.model).capabilities.pools:
            return models.build(cfg.model, num_features, width, num_edge_features)
        hidden = cfg.model.hidden
        model = models.build(cfg.model, num_features, hidden, num_edge_features)
        return attach(model, GraphReadout(hidden, width, hidden=hidden, dropout=cfg.model.dropout, pool=cfg.task.pool))

    @property
    def variant(self) -> dict[str, Any]:
        """All graphs are read."""
        return {"task": "graphs"}

    def training_inputs(self, inputs: Any, client: Any) -> Any:
        """Inputs of only the training graphs."""
        return self._inputs(self._training(), client)

    def later(self, client: Any, inputs: Any) -> LaterInputs:
        """All graphs."""
        every = replace(inputs, **graphs_of(index_of(self.graph), client.device, client.dtype))
        return [(torch.arange(self.order.numel()), every)]

    def predictions(self, compute: Callable[[Any], Tensor], inputs: Any, later: LaterInputs) -> Tensor:
        """Outputs of all graphs, in the order of the items."""
        outputs = compute(later[0][1])
        return outputs[self.order.to(outputs.device)]

    @property
    def per_epoch(self) -> int:
        """Number of batches of ``task.batch_size`` training graphs."""
        count, size = len(self._training()), self.cfg.task.batch_size
        return -(-count // size) if 0 < size < count else 1

    def step(self, whole: Batch, index: int, client: Any) -> Batch:
        """All training graphs, or the next batch of them."""
        count, number = len(self._training()), self.per_epoch
        if number == 1:
            return whole
        train = self.cfg.train
        steps = train.local_epochs * number or train.local_steps
        done = (client.server_round * steps + index) + client.exchange
        turn, place = divmod(done, number)
        seed = derive_seed(self.cfg.seed, "graphs", self.graph.client)
        which = int(np.random.default_rng([seed, turn]).permutation(number)[place])
        if which not in self._batches:
            drawn = np.random.default_rng(seed).permutation(count)
            rows = torch.from_numpy(np.sort(drawn[which::number]))
            inputs = self._inputs(self._training()[rows], client)
            self._batches[which] = Batch(inputs, None, whole.y[rows.to(whole.y.device)])
        return self._batches[which]

    def _training(self) -> Tensor:
        """Places of the training items among the client's graphs, ascending [V]."""
        return self.order[: int(self.masks["train"].sum())]

    def _inputs(self, places: Tensor, client: Any) -> Any:
        """Return the model's inputs of some graphs."""
        subset = selected(self.graph, places)
        inputs: Any = client.model.prepare(subset, client.device, client.dtype)
        return replace(inputs, **graphs_of(index_of(subset), client.device, client.dtype))


class Graphs(OfGraphs, Classification):
    """Classes of graphs: outputs are logits [G, C], targets int64 [G], -1 where unknown."""

    METRICS: ClassVar = TASKS["graphs"]
    KEYS: ClassVar = frozenset({"pool", "batch_size"})

    def __init__(self, cfg: RunConfig, graph: ClientGraph):
        super().__init__(cfg, graph)
        self.y, self.part = self.items.y, self.items.part
        self.masks = self.masks_of(self.items)

    @classmethod
    def known(cls, items: ClientGraph) -> Tensor:
        """Graphs with a label."""
        return items.y >= 0


class OfTargets(OfGraphs):
    """Mixin of tasks with several targets per graph."""

    @classmethod
    def known(cls, items: ClientGraph) -> Tensor:
        """Graphs with at least one target."""
        return ~items.targets.isnan().all(1) if items.num_targets else torch.zeros_like(items.train_mask)


class GraphsRegression(OfTargets, Regression):
    """Numbers of graphs, in training standardised by statistics that all clients share; scores are in the unit of the data."""

    METRICS: ClassVar = TASKS["graphs-regression"]
    KEYS: ClassVar = frozenset({"pool", "batch_size", "loss"})


class GraphsMultiLabel(OfTargets, MultiLabel):
    """Yes or no in each of T columns of graphs: outputs are logits."""

    METRICS: ClassVar = TASKS["graphs-multilabel"]
    KEYS: ClassVar = frozenset({"pool", "batch_size", "positive_weights"})

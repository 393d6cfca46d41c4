"""FedHGN client (Fu & King, IJCAI 2023, arXiv:2305.09729): Algorithm 1, lines 12-22.

    L^k = L_task^k + λ L_align^k,   L_align^k by Eq. (3)

The client trains bases, common weights, its coefficients and its entity embeddings together; Eq. (2) is recomputed every step.
Leaves the client: v^k, θ_c^k, coefficients β^k without names of types, number of training nodes, scores.
Never leaves it: the graph, the names of its types, the type of each coefficient, entity embeddings.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.clients.base import Batch, GraphClient, ReplyContent, phase
from fedgraph_flwr.clients.requirements import unfit
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.hetero import EdgeType, HeteroGraph
from fedgraph_flwr.methods import coefficients
from fedgraph_flwr.methods.coefficients import COEFFICIENTS, POOL, ROWS, alignment
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.hetero import EDGE, NODE, HeteroModel
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import LARGEST, check_shapes, up_to


class FedHGNClient(GraphClient, method=coefficients):
    """Client that trains on its task and aligns its coefficients with the nearest coefficients of other clients.

    Attributes:
        pool: coefficients of the other clients, as last received, [P, B] by name.
    """

    own_requests = (POOL,)
    model: HeteroModel

    def __init__(self, cfg: RunConfig, graph: Any, *args: Any, **kwargs: Any):
        if not isinstance(graph, HeteroGraph):
            remedy = "set a dataset with node and edge types, such as dataset=aifb"
            raise unfit(cfg, "a heterogeneous graph", "one type of nodes", remedy)
        if cfg.strategy.private_schema:
            held = [a for a, n in graph.counts.items() if n or a == graph.target]
            edge_types: list[EdgeType] = [r for r, index in graph.edges.items() if index.size(1)]
            graph = graph.on_schema(held, edge_types)
        super().__init__(cfg, graph, *args, **kwargs)
        self.pool: dict[str, Tensor] = {}
        edges = np.bincount(graph.edge_kinds, [index.size(1) for index in graph.edges.values()])
        sizes = {NODE: np.array(list(graph.counts.values())), EDGE: edges}
        held_types = {kind: torch.from_numpy(n.nonzero()[0]) for kind, n in sizes.items()}
        self.rows = {name: held_types[self.model.kinds[name]] for name in self.model.coefficients}
        self.whole = self.model.inputs_for(graph.train_mask.nonzero().view(-1).numpy())

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Require a model with bases."""
        if not isinstance(model, HeteroModel) or not model.num_bases:
            remedy = "set model=rgcn or model=simple_hgn, and model.bases to 1 or more"
            raise unfit(cfg, "a model with bases", f"model={cfg.model.name}", remedy)

    def describe(self) -> dict[str, Any]:
        """Return the description, without the numbers of types unless the schema is shared."""
        description = super().describe()
        if self.cfg.strategy.private_schema:
            del description["num_features"]
        return description

    @phase
    def tell_coefficients(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Return the initial β, and with a shared schema the rows of the client's types."""
        rows = {} if self.cfg.strategy.private_schema else {ROWS: {n: r.numpy() for n, r in self.rows.items()}}
        return {**self.send()[0], **rows}, {}

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Store the pools of this round; there are none for an evaluation."""
        known = {name: tensor.size(1) for name, tensor in self.model.coefficients.items()}
        pools = {name: pool for name, pool in groups.get(POOL, {}).items() if pool.size or name not in known}
        shapes = {name: (up_to(LARGEST), known[name]) for name in pools if name in known}
        check_shapes(pools, shapes, "the server sent pools")
        self.pool = {n: torch.from_numpy(p).to(self.device, self.dtype) for n, p in groups.get(POOL, {}).items()}

    def send(self) -> ReplyContent:
        """Return β of the client's types."""
        betas = {n: b.detach()[self.rows[n]].cpu().numpy() for n, b in self.model.coefficients.items()}
        return {COEFFICIENTS: betas}, {}

    def batches(self) -> Iterator[Batch]:
        """Yield the batch of each step: all training nodes."""
        yield from [Batch(self.whole, None, self.batch.y)] * self.local_steps

    def loss(self) -> Tensor:
        """Return L_task + λ L_align of one batch."""
        loss = super().loss()
        if self.params.align:
            for name, pool in self.pool.items():
                loss = loss + self.pull * alignment(self.model.coefficients[name][self.rows[name]], pool)
        return loss

    @property
    def pull(self) -> float:
        """Weight λ; the authors' code counts its zero placeholders of round 1 once per layer of the model."""
        zeros = self.params.first_pool == "zeros" and self.server_round == 1
        return self.params.align * (self.cfg.model.layers if zeros else 1)

"""FedHGN client (Fu & King, IJCAI 2023, arXiv:2305.09729): Algorithm 1, lines 12-22.

    L^k = L_task^k + λ L_align^k,   L_align^k by Eq. (3)

trains bases, common weights, the client's coefficients and its entity embeddings together; Eq. (2) is recomputed every step.
Leaves the client: v^k, θ_c^k, coefficients β^k without names of types, number of training nodes, scores.
Never leaves it: the graph, the names of its types, which coefficient is whose, entity embeddings.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.clients.base import Batch, GraphClient, ReplyContent, phase
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.hetero import EdgeType, HeteroGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import coefficients
from fedgraph_flwr.methods.coefficients import COEFFICIENTS, POOL, ROWS, Params, alignment
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.hetero import EDGE, NODE, HeteroModel
from fedgraph_flwr.wire.messages import Arrays, derive_seed


class FedHGNClient(GraphClient):
    """Trains on its task and towards the nearest coefficients of the others.

    Attributes:
        pool: the others' coefficients [P, B] by name, as last received.
    """

    own_requests = (POOL,)
    Params: ClassVar[type] = Params
    uplink = staticmethod(coefficients.uplink)
    model: HeteroModel

    def __init__(self, cfg: RunConfig, graph: Any, *args: Any, **kwargs: Any):
        if not isinstance(graph, HeteroGraph):
            raise FedGraphError(f"strategy={cfg.strategy.name} needs typed nodes and edges, such as dataset=aifb")
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
        sampled = self.params.batch_size or self.params.fanout
        self.whole = None if sampled else self.model.inputs_for(graph.train_mask.nonzero().view(-1).numpy())

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """The network must have bases."""
        if not isinstance(model, HeteroModel) or not model.num_bases:
            raise FedGraphError(
                f"strategy={cfg.strategy.name} needs a model with bases: model=rgcn or simple_hgn, model.bases >= 1"
            )

    def describe(self) -> dict[str, Any]:
        """Without the numbers of types, unless the schema is shared."""
        told = super().describe()
        if self.cfg.strategy.private_schema:
            del told["num_features"]
        return told

    @phase
    def tell_coefficients(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """β as initialised; with a shared schema, which rows are of types that the client holds."""
        rows = {} if self.cfg.strategy.private_schema else {ROWS: {n: r.numpy() for n, r in self.rows.items()}}
        return {**self.send()[0], **rows}, {}

    def receive(self, groups: dict[str, Arrays]) -> None:
        """The pools of this round; none while a model is only scored."""
        self.pool = {n: torch.from_numpy(p).to(self.device, self.dtype) for n, p in groups.get(POOL, {}).items()}

    def send(self) -> ReplyContent:
        """β of the types that the client holds."""
        own = {n: b.detach()[self.rows[n]].cpu().numpy() for n, b in self.model.coefficients.items()}
        return {COEFFICIENTS: own}, {}

    def batches(self) -> Iterator[Batch]:
        """What each step reads: all training nodes, or ``batch_size`` of them with sampled neighbours."""
        if self.whole is not None:
            yield from [Batch(self.whole, None, self.batch.y)] * self.local_steps
            return
        rng = np.random.default_rng(derive_seed(self.cfg.seed, self.graph.client, self.server_round, "batches"))
        nodes = self.train_nodes.cpu().numpy()
        size = self.params.batch_size or nodes.size
        for _ in range(self.local_steps):
            order = rng.permutation(nodes)
            for start in range(0, nodes.size, size):
                chosen = np.sort(order[start : start + size])
                inputs = self.model.inputs_for(chosen, self.params.fanout, rng)
                yield Batch(inputs, None, self.y[torch.from_numpy(chosen).to(self.device)])

    def loss(self) -> Tensor:
        """L_task + λ L_align of one batch."""
        loss = super().loss()
        if self.params.align:
            for name, pool in self.pool.items():
                loss = loss + self.pull * alignment(self.model.coefficients[name][self.rows[name]], pool)
        return loss

    @property
    def pull(self) -> float:
        """λ; the authors' program counts its zero placeholders of round 1 once for every layer of the network."""
        zeros = self.params.first_pool == "zeros" and self.server_round == 1
        return self.params.align * (self.cfg.model.layers if zeros else 1)

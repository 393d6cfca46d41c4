"""FedDEP client (Zhang et al., 2024, arXiv:2401.04336): generates embeddings of its missing neighbours locally.

    h = hidden features of the frozen encoder θ^R; the impaired graph as in FedSage+ (`fedgraph_baselines.methods.impaired`)
    E_i = (1 / m P H) Σ_{v trains} Σ_{p ≤ n_v} min_{u lost by v} ‖z̃_vp − h_u‖²
    E_j, of a peer: the same, with its prototypes instead of the lost neighbours of v
    L = SmoothL1(ñ, n) + E_i + Σ_{j≠i} E_j + CE(θ^R on the impaired graph with z̃)              ``generator_steps`` of Adam
    then: v aggregates ñ_v generated neighbours, rounded, at most P, in every layer except the first

ñ and z̃ are those of `fedgraph_flwr.models.feddep`; m is the number of training nodes. `fedgraph_baselines.strategies.feddep`
lists our own choices. The generator is deleted after the neighbours have been generated.
Leaves the client: what FedAvg sends. Once: means of its embeddings' clusters of at least ``min_nodes`` nodes, the number of
nodes in each, and the number of generated neighbours. The mean of one node is that node's embedding. It helps, like FedSage+,
where few edges remain within a client, and needs only one exchange between clients.
"""

from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgraph_baselines.clients.generating import GeneratingClient
from fedgraph_baselines.methods import feddep
from fedgraph_baselines.methods.feddep import ENCODER, PROTOTYPES, WIDTHS, Peers, clustered
from fedgraph_baselines.methods.impaired import ADDED, nearest, places
from fedgraph_flwr.clients.base import ReplyContent, phase, to_numpy
from fedgraph_flwr.clients.replies import check_model
from fedgraph_flwr.clients.requirements import unfit
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.feddep import DeepGenerator, FusedSAGE, fused_inputs
from fedgraph_flwr.numerics.optim import Adam
from fedgraph_flwr.wire.messages import Arrays, derive_seed


class FedDEPClient(GeneratingClient, method=feddep):
    """FedAvg's client with embeddings of generated neighbours, which are stored in `memory`."""

    predicts_with: ClassVar[tuple[str, ...]] = ("z", "at")
    model: FusedSAGE

    @classmethod
    def needs_others(cls, cfg: RunConfig) -> str:
        """Return why predictions of other graphs are refused."""
        return "its generator of missing neighbours is not kept"

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Require a model that aggregates embeddings in a layer after its first."""
        if not isinstance(model, FusedSAGE) or cfg.model.layers < 2:
            got = f"model={cfg.model.name} and model.layers={cfg.model.layers}"
            raise unfit(cfg, "model=fused_sage and model.layers >= 2", got, "set both")

    def encode(self, groups: dict[str, Arrays], graph: Any = None) -> tuple[Tensor, Any]:
        """Return the embeddings [n, H] of a graph (default: the client's) under the encoder in a message, and its inputs."""
        arrays = groups.get(ENCODER, {})
        check_model(self, arrays)
        self.set_parameters([arrays[name] for name in self.shared])
        self.model.eval()
        inputs = self.model.prepare(self.graph if graph is None else graph, self.device, self.dtype)
        with torch.no_grad():
            return self.model.encode(inputs), inputs

    @phase
    def prototype(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Return the means of clusters of embeddings, and the nodes per cluster; 0 for clusters that are too small."""
        seed = derive_seed(self.cfg.own_seed, self.graph.client, PROTOTYPES)
        mean, count = clustered(self.encode(groups)[0], self.params.prototypes, seed)
        count = torch.where(count < self.least, 0, count)
        mean = torch.where(count[:, None] > 0, mean, 0)
        return {PROTOTYPES: {"mean": to_numpy(mean), "count": to_numpy(count)}}, {}

    @phase
    def mend(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Train the generator, generate neighbours, and delete the generator."""
        p = self.params
        peers = Peers.of([torch.from_numpy(array).to(self.device) for array in groups.get(PROTOTYPES, {}).values()])
        whole, _ = self.encode(groups)
        part, inputs = self.encode(groups, self.impaired.graph)
        make = partial(DeepGenerator, self.cfg.model.hidden, list(WIDTHS), p.neighbours)
        made: DeepGenerator = self.built(make, self.cfg.model.hidden)
        optimizer = Adam(made.parameters(), p.generator_lr)
        for _ in range(p.generator_steps):
            optimizer.zero_grad()
            self.objective(made, part, inputs, whole, peers).backward()
            optimizer.step()
        with torch.no_grad():
            count, u = made(whole)
            node, place = places(self.whole(count))
            self.memory |= {"z": made.rows(u, node, place), "at": node}
        self.take()
        return {}, {ADDED: node.numel()}

    def objective(self, made: DeepGenerator, part: Tensor, inputs: Any, whole: Tensor, peers: Peers) -> Tensor:
        """Return L from embeddings of the impaired graph [n, H] and the whole graph [N, H], and the peers' prototypes."""
        p, impaired = self.params, self.impaired
        count, u = made(part)
        if not impaired.trains.numel():
            return count.sum() * 0
        rows = made.rows(u, impaired.owner.to(self.device), impaired.place.to(self.device))
        apart = (rows - whole[nearest(rows, impaired.truth.to(self.device), whole)]).square().sum() + peers.apart(rows)
        loss = self.count_loss(count) + apart / (impaired.trains.numel() * p.neighbours * part.size(1))
        node, place = places(self.whole(count))
        fused = fused_inputs(inputs, impaired.graph.edge_index, len(part), made.rows(u, node, place), node)
        return loss + self.mended_loss(self.model(fused))

    def extended(self, at: Tensor) -> Any:
        """Return the inputs with the generated embeddings."""
        return fused_inputs(self.plain, self.graph.edge_index, self.graph.num_nodes, self.memory["z"], at)

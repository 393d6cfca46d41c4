"""FedSage+ client (Zhang et al., NeurIPS 2021, arXiv:2106.13430): generates the neighbours that its nodes lost.

    impaired graph: without half of the nodes outside the training and test sets
    n_v, x_v: number of neighbours that v lost by that, at most P, and their features
        G_i = (1 / m P F) Σ_{v trains} Σ_{p ≤ n_v} min_{x ∈ x_v} ‖x̃_vp − x‖²
        G_j, of a peer: the same, with P neighbours of a node that j draws for v instead of x_v
        L = (SmoothL1(ñ, n) + G_i + CE(classifier on the impaired graph with x̃) + Σ_{j≠i} G_j) / M   per generator round
        then: v gets ñ_v neighbours, rounded, at most P, with features x̃_v; the model trains on the graph with them

ñ and x̃ are those of `fedgraph_baselines.models.neighgen`, m training nodes, M clients. Written from memory of the paper, hence
without its numbers of equations, and from the authors' code, OpenFGL and FedStruct's code. Where they differ: neighbours are
generated for the original graph, as in FedStruct. With ``source=impaired``, as in the others, hidden nodes get none and visible
nodes get their hidden neighbours twice. Counts are rounded, as there (``rounding=floor``: the others). The classifier of the
generator's training is a discarded copy: FedAvg starts from the initial model, as in every method here. Ours: edges to new
nodes go both ways, and the head is narrower. The authors' widths 256 and 2048 take 180 MB per client on Cora for generator
and moments.

Leaves the client, before round 1: for its training nodes that lost neighbours, predicted features of these and how many each
lost; for the peers' predictions, the difference from the nearest of its own nodes' features, which reveals these features to
everyone who knows the prediction (see `fedgraph_baselines.strategies.fedsage`, and ``privacy.secagg``); the number of neighbours
that it added. Then FedAvg's uploads.

Cost: generator and moments during their training, and for each ``judge`` a reply as large as all clients' predictions, M · R ·
F numbers. Then the new nodes' features. It helps if few edges remain within a client.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedgraph_baselines.clients.generating import GeneratingClient
from fedgraph_baselines.methods import fedsage
from fedgraph_baselines.methods.fedsage import (
    APART,
    DROPOUT,
    LATENT,
    OWNERS,
    PROPOSED,
    WEIGHT_DECAY,
    WIDTHS,
    drawn_neighbours,
    with_neighbours,
)
from fedgraph_baselines.methods.impaired import ADDED, apart, nearest, places
from fedgraph_baselines.models.neighgen import NeighGen
from fedgraph_flwr.clients.base import ReplyContent, phase, to_numpy
from fedgraph_flwr.clients.client_part import assign
from fedgraph_flwr.clients.requirements import one_type
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.base import compact
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.optim import Adam
from fedgraph_flwr.numerics.sparse import SparseMatrix, StackedRows
from fedgraph_flwr.numerics.streams import seeded
from fedgraph_flwr.wire.messages import Arrays, check_arrays, derive_seed
from fedgraph_flwr.wire.reply_schema import check_shapes
from fedgraph_flwr.wire.trees import Tree, flatten, unflatten

_OFTEN = 4096


class FedSageClient(GeneratingClient, method=fedsage, requires=(one_type,)):
    """FedAvg's client on a graph with generated neighbours.

    Attributes:
        generator: NeighGen, its classifier, and their optimiser, during training.
        plain: the inputs without new nodes.
    """

    makes_graphs = True
    repeats: ClassVar[Mapping[str, int]] = dict.fromkeys(("generate", "judge"), _OFTEN)
    predicts_with: ClassVar[tuple[str, ...]] = ("x", "at")
    generator: tuple[NeighGen, Model, Adam] | None = None

    @classmethod
    def needs_others(cls, cfg: RunConfig) -> str:
        """Return why predictions of other graphs are refused."""
        return "the generator of missing neighbours was trained with the other clients, and is not stored"

    # --- phases -------------------------------------------------------------------------------------------------------

    @phase
    def generate(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Take a step with the peers' last replies, then reply with the current predictions."""
        self.check_shown()
        if self.exchange:
            self.step(groups.get(APART), self.exchange - 1)
        with torch.no_grad(), self.noise(self.exchange):
            _, rows, _ = self.predicted()
        _, owner = self.impaired.owner.unique(return_inverse=True)
        return {PROPOSED: {"rows": to_numpy(rows)}, OWNERS: {"rows": to_numpy(owner.int())}}, {}

    @phase
    def judge(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Reply with x̃ − x for every client's rows; 0 for its own rows, and if no node has neighbours."""
        self.check_shown()
        differences = {}
        for name, rows in groups.get(PROPOSED, {}).items():
            owners, width = groups[OWNERS][name], self.graph.num_features
            if rows.ndim != 2 or rows.shape[1] != width or owners.shape != rows.shape[:1] or not rows.size:
                sent = f"rows {rows.shape} with owners {owners.shape}"
                raise FedGraphError(f"the server sent {sent}, expected [R, {width}], [R]")
            check_shapes({"rows": rows}, {"rows": rows.shape}, "the server sent proposed neighbours")
            check_shapes({"owners": owners}, {"owners": owners.shape}, "the server sent owners", whole=True)
            if not 0 <= owners.min() <= owners.max() < len(rows):
                sent = f"owners of {len(rows)} rows from {owners.min()} to {owners.max()}"
                raise FedGraphError(f"the server sent {sent}, expected 0 to {len(rows) - 1}")
            proposed, owner = torch.from_numpy(rows), torch.from_numpy(owners).long()
            drawn = drawn_neighbours(
                self.graph.edge_index, self.graph.num_nodes, int(owner.max()) + 1, self.params.neighbours
            )
            if name == str(self.graph.client):
                differences[name] = np.zeros_like(rows)
            else:
                differences[name] = to_numpy(
                    apart(proposed, nearest(proposed, drawn[owner], self.searched), self.searched)
                )
        return {APART: differences}, {}

    @phase
    def mend(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Take the last step, generate neighbours, and delete the generator."""
        p, rounds = self.params, self.params.generator_rounds
        if rounds:
            self.step(groups.get(APART), rounds - 1)
        made, _, _ = self.trainable
        made.eval()
        impaired = p.source == "impaired"
        graph = self.impaired.graph if impaired else self.graph
        with torch.no_grad(), self.noise(rounds):
            count, h = made(made.encoder.prepare(graph, self.device, self.dtype))
            node, place = places(self.whole(count))
            x = made.rows(h, node, place)
        self.generator = None
        self.memory = {"x": x, "at": self.impaired.kept[node.cpu()].to(node) if impaired else node}
        self.take()
        return {}, {ADDED: node.numel()}

    def check_shown(self) -> None:
        """Refuse the generator's exchanges where the server would see values of single nodes.

        A generated row follows from its node's embedding, and a difference x̃ − x from the nearest feature row.

        Raises:
            FedGraphError: the policy requires several nodes in every statistic.
        """
        if self.policy.min_nodes > 1 and not self.protection.sums_only:
            raise FedGraphError(
                f"client {self.graph.client} refuses to compare rows with features of single nodes: its node's policy requires at"
                f" least min_nodes={self.policy.min_nodes} nodes in every statistic; set privacy.secagg=true, or min_nodes: 1 in"
                " the policy"
            )

    # --- the generator ------------------------------------------------------------------------------------------------

    @cached_property
    def searched(self) -> Tensor | SparseMatrix:
        """X, in the form that finds nearest rows fastest."""
        return compact(self.graph.x, self.dtype)

    @property
    def trainable(self) -> tuple[NeighGen, Model, Adam]:
        """`generator`, created on first use."""
        if self.generator is None:
            p = self.params
            make = partial(
                NeighGen,
                self.graph.num_features,
                hidden=self.cfg.model.hidden,
                latent=LATENT,
                widths=list(WIDTHS),
                neighbours=p.neighbours,
                p=DROPOUT,
            )
            with seeded(derive_seed(self.cfg.seed, "generator")):
                made: NeighGen = self.built(make, self.graph.num_features)
            classifier: Any = deepcopy(self.model)
            classifier.dense_features = True  # its gradient passes through the features
            trained = [*made.parameters(), *classifier.parameters()]
            self.generator = made, classifier, Adam(trained, p.generator_lr, WEIGHT_DECAY)
        return self.generator

    @cached_property
    def encoded(self) -> Any:
        """The encoder's inputs for the impaired graph."""
        return self.trainable[0].encoder.prepare(self.impaired.graph, self.device, self.dtype)

    def noise(self, step: int) -> AbstractContextManager[None]:
        """Use the random stream of a generator step: learning repeats the draws of the proposal."""
        return seeded(derive_seed(self.cfg.own_seed, self.graph.client, "noise", step), self.device)

    def predicted(self) -> tuple[Tensor, Tensor, Tensor]:
        """Compute ñ [n], rows x̃ [R, F] of training nodes, and the heads' input [n, D], on the impaired graph."""
        made, _, _ = self.trainable
        made.train()
        count, h = made(self.encoded)
        owner, place = self.impaired.owner.to(self.device), self.impaired.place.to(self.device)
        return count, made.rows(h, owner, place), h

    def whole(self, count: Tensor) -> Tensor:
        """Convert counts to numbers of neighbours."""
        return super().whole(count if self.params.rounding == "nearest" else count.floor())

    def step(self, received: Arrays | None, step: int) -> None:
        """Take one generator step, along L of the rows that it proposed in this step."""
        _, classifier, optimizer = self.trainable
        optimizer.zero_grad()
        with self.noise(step):
            count, rows, h = self.predicted()
            loss = self.objective(count, rows, h, classifier)
        if received is not None:
            check_arrays(received, {"sum": tuple(rows.shape)}, "the server")
            apart = torch.from_numpy(received["sum"]).to(rows)
            # 2 (x̃ − x) is the gradient of ‖x̃ − x‖².
            loss = loss + self.per_row * 2 * (apart * rows).sum()
        (loss / self.cfg.num_clients).backward()
        optimizer.step()

    @property
    def per_row(self) -> float:
        """1 / (m P F)."""
        return 1 / max(self.impaired.trains.numel() * self.params.neighbours * self.graph.num_features, 1)

    def objective(self, count: Tensor, rows: Tensor, h: Tensor, classifier: Model) -> Tensor:
        """Compute M L without the peers' part."""
        impaired = self.impaired
        if not impaired.trains.numel():
            return count.sum() * 0
        x = self.graph.x.to(self.dtype)
        best = nearest(rows.cpu(), impaired.truth, self.searched)
        loss = self.count_loss(count) + self.per_row * (rows - x[best].to(rows)).square().sum()
        node, place = places(self.whole(count.detach()))
        graph = with_neighbours(impaired.graph, self.trainable[0].rows(h, node, place).cpu(), node.cpu())
        return loss + self.mended_loss(classifier.train()(classifier.prepare(graph, self.device, self.dtype)))

    # --- the graph with generated neighbours --------------------------------------------------------------------------

    def extended(self, at: Tensor) -> Any:
        """Return the inputs of the graph with the new nodes."""
        x = self.memory["x"]
        inputs = self.model.prepare(with_neighbours(self.graph, x.cpu(), at.cpu()), self.device, self.dtype)
        if type(self.plain) is Inputs and isinstance(
            self.plain.x, SparseMatrix
        ):  # generated features are dense, and few
            return Inputs(StackedRows(self.plain.x, x), inputs.adj)  # type: ignore[arg-type]
        return inputs

    def logits(self, inputs: Any) -> Tensor:
        """Compute logits of own nodes, [N, C]."""
        return super().logits(inputs)[: self.graph.num_nodes]

    def save(self) -> Tree:
        """Return the new nodes; before, the generator and its classifier."""
        if self.generator is None:
            return self.memory
        made, classifier, optimizer = self.generator
        return {
            "generator": dict(made.state_dict()),
            "classifier": dict(classifier.state_dict()),
            "optimizer": unflatten(optimizer.state()),
        }

    def load(self, tree: Tree) -> None:
        """Restore the new nodes, or the generator."""
        if "generator" in tree:
            made, classifier, optimizer = self.trainable
            parts: list[tuple[nn.Module, str]] = [(made, "generator"), (classifier, "classifier")]
            for module, name in parts:
                assign(module.state_dict(), tree[name])
            optimizer.load_state({n: t.to(self.device) for n, t in flatten(tree.get("optimizer", {})).items()})
        else:
            super().load(tree)

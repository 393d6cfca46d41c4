"""Client of FedStruct-B's privacy variant (Aliakbari, Östman & Graell i Amat, 2024, appendix L.1): s_u stays with u's owner.

    phase 1   j → i, sealed:  s̄_v^(j) = Σ_{u∈V_j} ā_vu g(s_u)  for v ∈ V_i                       Eq. (51), with g
    phase 2   i → server:     U_i = Σ_{v∈V~_i} ā_v (ŷ_v − y_v)^T,  and g_i of θ_f                Eq. (52)
    phase 3   server → j:     rows of Σ_i U_i = ∂F/∂g(S) of V_j; j propagates them back through its own g(s_u): its step of
              s_u, and its share of the gradient of θ_s → server

With g the identity this is the paper's scheme. Where g has parameters the paper sends Jacobians (Eq. 50); the owner's own
back-propagation gives the same gradient from |θ_s| numbers.
Leaves the client, for the server: what FedStruct-B's does, but no s_u and no gradient of one. For other clients, sealed: B_i^k,
ā_vu of v in V_i and u in V_j to j, s̄^(j) to i.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.clients.base import ReplyContent, phase, to_numpy
from fedgraph_flwr.clients.fedstruct import FedStructClient
from fedgraph_flwr.clients.replies import number_of
from fedgraph_flwr.clients.requirements import unfit
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import fedstruct, hops
from fedgraph_flwr.methods.fedstruct import STRUCTURE
from fedgraph_flwr.methods.hops import Matrix, RowMessage
from fedgraph_flwr.numerics.optim import NamedOptimizer
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.wire.messages import Arrays, check_arrays, derive_seed
from fedgraph_flwr.wire.reply_schema import ArrayField, check_shapes
from fedgraph_flwr.wire.trees import Tree, as_arrays, flatten, moved


class PrivateFedStructClient(FedStructClient):
    """FedStruct-B's client with private s_u.

    Attributes:
        s: structure features of own nodes, [N, d_s].
        met: by client i, ā_vu of the rows of i that meet this client's nodes (b of its J·n_i), [b, N].
        met_rows: by client j, which of this client's J·N rows meet j's nodes.
        parts: Σ_j s̄^(j) of own nodes, [J·N, C]: ``train`` with dropout, ``scored`` without.
        embedding: number of the phase 1 that computed them.
    """

    uplink = staticmethod(fedstruct.private_uplink)
    downlink = staticmethod(fedstruct.private_downlink)

    repeats: ClassVar[Mapping[str, int]] = {**FedStructClient.repeats, "embed": 4}  # once per model scored separately

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not self.trains_structure:
            raise unfit(self.cfg, "strategy.features=hop2vec", f"strategy.features={self.params.features}", "set it")
        self.s = torch.from_numpy(self.structure_features()).to(self.device, self.dtype)
        self.met: dict[int, Matrix] = {}
        self.met_rows: dict[int, np.ndarray] = {}
        self.parts: dict[str, Tensor] = {}
        self.embedding = 0
        self.stepper = NamedOptimizer(self.cfg.train)

    # --- setup --------------------------------------------------------------------------------------------------------

    def acquired(self, step: int) -> dict[str, Arrays]:
        """The columns of Ā^[i] that belong to each client, sealed for it."""
        contents = {}
        for j in range(self.graph.num_clients):
            columns = np.flatnonzero(self.owner[self.support] == j)
            owned = np.flatnonzero(self.owner == j)
            place = np.searchsorted(owned, self.support[columns])
            self.met_rows[j], block = hops.spread(self.rows[:, columns], place, owned.size)
            if self.met_rows[j].size:
                contents[j] = RowMessage(self.met_rows[j], block).arrays()
        self.take_blocks({self.graph.client: contents.pop(self.graph.client)})
        return self.sealed(contents, "blocks")

    @phase
    def take(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Take the other clients' columns."""
        self.take_blocks(self.opened(groups, "blocks", lambda _: self.block_fields))
        return {}, {}

    @property
    def block_fields(self) -> dict[str, ArrayField]:
        """Fields of the rows of all combinations, for another client's nodes."""
        most = self.owner.size * len(self.model.structure_weights)
        return RowMessage.fields(most, self.graph.num_nodes, self.cfg.dtype)

    def take_blocks(self, contents: dict[int, Arrays]) -> None:
        """Store blocks, whose columns are this client's own nodes."""
        for i, arrays in contents.items():
            self.met[i] = RowMessage.of(arrays, self.graph.num_nodes).rows

    # --- a round ------------------------------------------------------------------------------------------------------

    @phase
    def embed(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Reply in phase 1 with s̄^(j) for every client, sealed; this client's own part stays."""
        expected = {name: tuple(tensor.shape) for name, tensor in self.model.g.state_dict().items()}
        check_arrays(groups.get("g", {}), expected, "the server")
        self.model.g.load_state_dict({name: torch.from_numpy(a) for name, a in groups.get("g", {}).items()})
        wanted = [kind for kind in ("train", "scored") if number_of(config, kind)]
        embedding = int(number_of(config, "embedding"))
        with torch.no_grad():
            embedded = {kind: self.embedded(kind == "train").cpu().numpy() for kind in wanted}
        contents = {i: {kind: block @ embedded[kind] for kind in wanted} for i, block in self.met.items()}
        part = contents.pop(self.graph.client)
        self.parts = {kind: self.spread({self.graph.client: part[kind]}) for kind in wanted}
        self.embedding = embedding
        return self.sealed(contents, f"embed {self.embedding}"), {}

    def embedded(self, training: bool) -> Tensor:
        """Compute g(s_u) of own nodes, [N, C]; a round's dropout mask is the same in every phase."""
        self.model.train(training)
        reseed(derive_seed(self.cfg.own_seed, self.graph.client, self.server_round, "mask"))
        return self.model.g(self.s)

    def spread(self, parts: dict[int, np.ndarray]) -> Tensor:
        """Sum the parts s̄^(j) of the rows that meet j, over all J·N rows."""
        total = np.zeros((self.rows.shape[0], self.model.num_classes), np.result_type(*parts.values()))
        for j in sorted(parts):
            total[self.met_rows[j]] += parts[j]
        return torch.from_numpy(total).to(self.device)

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Take the others' parts, at the start of phase 2.

        Raises:
            FedGraphError: one is missing; sums without it would reveal its part.
        """
        inbox = self.opened(groups, f"embed {self.embedding}", self.part_fields)
        expected = {j for j, rows in self.met_rows.items() if rows.size} - {self.graph.client}
        if missing := sorted(expected - inbox.keys()):
            raise FedGraphError(
                f"client {self.graph.client} received no sealed part of s̄ from clients {missing}, whose nodes its own rows meet"
            )
        for kind, part in self.parts.items():
            others = {j: arrays[kind] for j, arrays in inbox.items()}
            self.parts[kind] = (part + self.spread(others) if others else part).requires_grad_(kind == "train")

    def part_fields(self, sender: int) -> dict[str, ArrayField]:
        """Return the fields of a client's parts."""
        rows = self.met_rows[sender].size if sender in self.met_rows else 0
        return {kind: ArrayField((rows, self.model.num_classes), self.cfg.dtype) for kind in self.parts}

    def leaves(self) -> dict[str, Tensor]:
        """Return θ_f, and the sums s̄ as received."""
        return super().leaves() | ({"parts": self.parts["train"]} if "train" in self.parts else {})

    def loss(self) -> Tensor:
        """Compute Eq. (7).

        Raises:
            FedGraphError: the server skipped phase 'embed'.
        """
        if "train" not in self.parts:
            raise FedGraphError(
                "the server requested phase 'train' before phase 'embed': a server of this package does not"
            )
        logits = self.model.feature_part(self.inputs) + self.model.structure_part(self.parts["train"])
        return self.summed_loss(logits[self.train_nodes])

    def predict(self) -> Tensor:
        """Compute logits [N, C]."""
        self.model.eval()
        if self.parts:
            self.structure = self.parts["scored" if "scored" in self.parts else "train"].detach()
        return self.with_structure()

    def send(self) -> ReplyContent:
        """Send U_i of Eq. (52), for the nodes within reach of training nodes."""
        upstream = self.rows.T @ to_numpy(self.gradients["parts"])
        return {STRUCTURE: {"s": self.without_few(upstream[self.reached])}}, {}

    @phase
    def step_own(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Back-propagate ∂F/∂g(S) of own nodes in phase 3, step s_u, and reply with the gradient of θ_s."""
        s = self.s.detach().requires_grad_()
        self.s = s
        labelled, shape = number_of(config, "labelled", 1), (self.graph.num_nodes, self.model.num_classes)
        check_shapes(groups[STRUCTURE], {"s": shape}, "the server sent gradients of own nodes")
        upstream = torch.tensor(groups[STRUCTURE]["s"], dtype=self.dtype, device=self.device)
        names = [name for name, _ in self.model.g.named_parameters()]
        gradients = torch.autograd.grad(self.embedded(True), [s, *self.model.g.parameters()], upstream)
        self.s = self.stepper.step({"s": s.detach()}, {"s": gradients[0] / labelled})["s"]
        return {"g": {name: to_numpy(part) for name, part in zip(names, gradients[1:], strict=True)}}, {}

    # --- private state between messages -------------------------------------------------------------------------------

    def save(self) -> Tree:
        """Return s_u and its optimiser's moments, the blocks, and own parts of this round."""
        blocks = {str(i): hops.parts_of(block) for i, block in self.met.items()}
        state = {"own_s": self.s, "embedding": torch.tensor(self.embedding), "stepper": self.stepper.state()}
        met = {str(j): rows for j, rows in self.met_rows.items()}
        return {**super().save(), **state, "parts": self.parts, "met_rows": met, "blocks": blocks}

    def load(self, tree: Tree) -> None:
        """Restore what `save` returned."""
        super().load(tree)
        if STRUCTURE in tree:
            return
        self.s, self.embedding = tree["own_s"].to(self.device, self.dtype), int(tree["embedding"])
        self.stepper.load(flatten(moved(tree.get("stepper", {}), self.device)))
        self.parts = moved(tree.get("parts", {}), self.device)
        self.met_rows = {int(j): rows for j, rows in as_arrays(tree.get("met_rows", {})).items()}
        for i, parts in as_arrays(tree.get("blocks", {})).items():
            self.met[int(i)] = hops.from_parts(parts, self.graph.num_nodes)

"""FedStruct-B's privacy variant (Aliakbari, Östman & Graell i Amat, 2024, appendix L.1): s_u never leaves its owner.

    setup      as FedStruct-B, and the columns of each Ā^[i] to the owners of their nodes, sealed
    embed      θ_s down; s̄^(j) between clients, sealed                                                   phase 1
    train      θ_f and the relayed s̄ down; g_i of θ_f and U_i = Σ_{v∈V~_i} ā_v (ŷ_v − y_v)^T up           phase 2
    step_own   rows of Σ_i U_i to the owners, who step s_u; gradients of θ_s up                           phase 3

The parameters are those of FedStruct-B; a dropout mask is drawn once a node, by its owner, where
B's clients draw their own. Every round needs all clients, since each owns terms of the others'
sums; only `train` is limited to the round's cohort. The server's threat model is FedStruct-B's,
less S: it sees ∂F/∂g(S) and θ, no s_u. It holds θ_s; checkpoints have it, the model file does not.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch

from fedgraph_flwr import models
from fedgraph_flwr.methods import fedstruct
from fedgraph_flwr.methods.fedstruct import ENVELOPES, STRUCTURE
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.strategies.base import Groups, GroupsFor
from fedgraph_flwr.strategies.fedgrad import FedGrad, relayed
from fedgraph_flwr.strategies.fedstruct import FedStruct
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import Arrays, derive_seed
from fedgraph_flwr.wire.reply_schema import ArrayField, like
from fedgraph_flwr.wire.trees import Tree


class PrivateFedStruct(FedStruct):
    """The server of appendix L.1.

    Attributes:
        g: θ_s by name.
        embeddings: phases 1 so far.
    """

    hands_on: ClassVar[bool] = True
    wants_features: ClassVar[bool] = False  # s_u stays with its owner

    uplink = staticmethod(fedstruct.private_uplink)

    def fields(
        self, phase: str, group: str, client: int | None
    ) -> Mapping[str, ArrayField] | None:
        """Return the fields of envelopes between clients, of U_i of Eq. (52), or of gradients of θ_s."""
        if phase == "step_own":
            return like({name: tensor.numpy() for name, tensor in self.g.items()})
        return super().fields(phase, group, client)

    @property
    def row_width(self) -> int:
        """Columns of U_i: one per class."""
        return int(self.agreed("num_classes"))

    def setup(self) -> None:
        """Run Algorithm 3, then send the columns to their owners."""
        _, inbox = self.acquire()
        self.request_all("take", inbox)
        self.embeddings = 0
        reseed(derive_seed(self.cfg.seed, "model"))
        model = models.build(
            self.cfg.model, self.agreed("num_features"), self.agreed("num_classes")
        )
        dtype = torch.float64 if self.cfg.dtype == "float64" else torch.float32
        prefix = "g."
        self.g = {
            n.removeprefix(prefix): t.detach().to(dtype)
            for n, t in model.named_parameters()
            if n.startswith(prefix)
        }

    def embed(self, train: bool, scored: bool) -> GroupsFor:
        """Run phase 1, and return its envelopes for each client."""
        self.embeddings += 1
        config = {"train": train, "scored": scored, "embedding": self.embeddings}
        arrays = {name: tensor.numpy() for name, tensor in self.g.items()}
        groups = {"g": arrays} if arrays else {}
        return relayed(self.request_all("embed", groups, **config), ENVELOPES)

    def before_train(self, arrays: Arrays) -> GroupsFor:
        """Run phase 1 of training, and of scores if they are due."""
        return self.embed(train=True, scored=self.scores_due)

    def before_evaluate(self, arrays: Arrays) -> GroupsFor:
        """Run phase 1 of scores."""
        return self.embed(train=False, scored=True)

    def held(self) -> dict[str, torch.Tensor]:
        """Return θ_s."""
        return {f"g.{name}": tensor for name, tensor in self.g.items()}

    def hold(self, updated: dict[str, torch.Tensor]) -> None:
        """Store θ_s after a step."""
        self.g = {name: updated[f"g.{name}"] for name in self.g}

    def gradients(self, arrays: Arrays, reduced: Reduced) -> dict[str, torch.Tensor]:
        """Sum g_i of θ_f, and run phase 3 for θ_s."""
        upstream = np.zeros((self.num_nodes, self.agreed("num_classes")), self.cfg.dtype)
        for reply in reduced:
            ids = self.support[reply.client][self.reached[reply.client]]
            upstream[ids] += reply.groups[STRUCTURE]["s"]
        rows: dict[int, Groups] = {
            client: {STRUCTURE: {"s": upstream[ids]}} for client, ids in self.nodes.items()
        }
        # s_u changes after training, so clients store its checkpoint here
        owners = self.request_all(
            "step_own", rows, labelled=self.labelled(reduced), **self.exchange.filing
        )
        gradients = FedGrad.gradients(self, arrays, reduced)
        for name in self.g:
            gradients[f"g.{name}"] = torch.from_numpy(owners["g"][name])
        return gradients

    def save(self) -> Tree:
        """Return θ_s and the optimiser's moments."""
        return {**FedGrad.save(self), "g": self.g}

    def load(self, tree: Tree) -> None:
        """Restore both."""
        FedGrad.load(self, tree)
        self.g = {name: tree["g"][name] for name in self.g}

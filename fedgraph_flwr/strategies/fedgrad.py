"""Gradient averaging: the server takes the optimiser's step, along the gradient of the loss over all clients' nodes.

    ∇_θ F(θ) = (1/|V~|) Σ_i ∇_θ F_i(θ),   θ ← θ − λ ∇_θ F(θ)                       FedStruct, Eqs. (7), (8)

F_i is the summed cross-entropy of client i, V~ the training nodes of the round's clients. The step
is Adam's or SGD's, with ``train.lr`` and ``train.weight_decay``. With GraphSAGE or an MLP this is
the paper's FL GNN and FL MLP. Leaves the client: gradients, number of training nodes, scores.
"""

from typing import ClassVar

import torch

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.methods import fedgrad
from fedgraph_flwr.methods.fedgrad import FedGradParams
from fedgraph_flwr.numerics.optim import NamedOptimizer
from fedgraph_flwr.strategies.base import GraphStrategy, Groups
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import MODEL, Arrays
from fedgraph_flwr.wire.trees import Tree, flatten


class FedGrad(GraphStrategy):
    """Eq. (8) on the server."""

    Params: ClassVar[type] = FedGradParams
    uplink = staticmethod(fedgrad.uplink)

    def __init__(self, cfg: RunConfig):
        super().__init__(cfg)
        self.optimizer = NamedOptimizer(cfg.train)

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Take one step along the summed gradients over the training nodes of all replies."""
        total = self.labelled(reduced)
        gradients = {
            name: gradient / total for name, gradient in self.gradients(arrays, reduced).items()
        }
        values = {name: torch.from_numpy(array) for name, array in arrays.items()} | self.held()
        updated = self.optimizer.step(values, gradients)
        self.hold(updated)
        return {name: updated[name].numpy() for name in arrays}

    def gradients(self, arrays: Arrays, reduced: Reduced) -> dict[str, torch.Tensor]:
        """Return Σ_i g_i of every tensor that the server steps."""
        return {name: torch.from_numpy(reduced[MODEL][name]) for name in arrays}

    def held(self) -> dict[str, torch.Tensor]:
        """Return tensors that the server steps in addition to the shared parameters."""
        return {}

    def hold(self, updated: dict[str, torch.Tensor]) -> None:
        """Store those after a step; ``updated`` contains the shared parameters, too."""

    def labelled(self, reduced: Reduced) -> float:
        """Return |V~| of the clients that replied; under differential privacy, which hides it, a public number instead.

        It is the number of clients in a round, or of rows that they are expected to draw
        (``privacy.unit=row``).

        Raises:
            RunFailed: no client has a training node.
        """
        return self.counting.items(reduced.clients, self.server_round)

    def save(self) -> Tree:
        """Return the optimiser's moments."""
        return {"optimizer": self.optimizer.state()}

    def load(self, tree: Tree) -> None:
        """Restore the optimiser's moments."""
        self.optimizer.load(flatten(tree.get("optimizer", {})))


def relayed(replies: Reduced, group: str) -> dict[int, Groups]:
    """Turn arrays that clients sent by receiver into inboxes: by receiver, then by sender."""
    inbox: dict[int, dict[str, Arrays]] = {reply.client: {group: {}} for reply in replies}
    for reply in replies:
        for receiver, array in reply.groups.get(group, {}).items():
            inbox[int(receiver)][group][str(reply.client)] = array
    return dict(inbox)

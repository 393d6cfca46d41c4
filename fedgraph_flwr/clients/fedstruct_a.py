"""FedStruct-A's client (Aliakbari, Östman & Graell i Amat, 2024): its own features, and s_v^(L_s) from the server.

    ŷ_v = softmax(s_v^(L_s) + h_v),   h = fGNN_θf(X_i, E_i)                                           Eqs. (5), (10)
    g_i = ∇_θf Σ_{v∈V~_i} CE(y_v, ŷ_v),   ∂/∂s_v^(L_s) = ŷ_v − y_v                                   Theorem 1, Lemma 1

Leaves the client: its edges (once), g_i, the residuals of its training nodes, |V~_i|, scores.
Never leaves it: X, Y, H. A residual, however, reveals the label of its node.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgraph_flwr.clients.base import ReplyContent, phase, to_numpy
from fedgraph_flwr.clients.fedgrad import FedGradClient
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import fedstruct
from fedgraph_flwr.methods.fedstruct import NO_STRUCTURE, STRUCTURE, FedStructAParams
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.fedstruct import FedStruct, Identity
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import ArrayField, check
from fedgraph_flwr.wire.trees import Tree


class FedStructAClient(FedGradClient):
    """A client with only the feature branch: the decoupled one, or any other model.

    Attributes:
        z: s_v^(L_s) of own nodes [N, C], for training and for scoring.
    """

    Params: ClassVar[type] = FedStructAParams
    uplink = staticmethod(fedstruct.known_uplink)
    downlink = staticmethod(fedstruct.known_downlink)
    losses: ClassVar[tuple[str, ...]] = ("cross_entropy",)  # residuals are differences of probabilities
    predicts_with: ClassVar[tuple[str, ...]] = (STRUCTURE,)

    @classmethod
    def needs_others(cls, cfg: RunConfig) -> str:
        """Return why predictions of other graphs are refused."""
        return "the server computes its structure part from the edges of all clients"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.z: dict[str, Tensor] = {}

    def build_model(self) -> Model:
        """Build fGNN: the decoupled model without its structure branch."""
        model = super().build_model()
        if isinstance(model, FedStruct):
            model.g = Identity()
            if model.learned:
                del model.structure_beta
        return model

    @phase
    def reveal(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Reply with the edges from this client's nodes, by global ids [2, E].

        Raises:
            FedGraphError: the policy requires several nodes in every statistic; each edge, and later each residual, is of one.
        """
        self.refuse_single(
            "its edges and a residual of each training node, which reveals its label", "set strategy=fedstruct"
        )
        node = self.graph.node_id
        inner = node[self.graph.edge_index]
        outgoing = torch.stack([node[self.graph.cut_out[0]], self.graph.cut_out[1]])
        edges = torch.cat([inner, outgoing], dim=1)
        return {"graph": {"nodes": to_numpy(node.int()), "edges": to_numpy(edges.int())}}, {}

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Take s_v^(L_s).

        Raises:
            FedGraphError: it is missing, or has another shape.
        """
        field = ArrayField((self.graph.num_nodes, self.task.width), self.cfg.dtype, optional=True)
        check(groups[STRUCTURE], {"train": field, "scored": field}, "the server sent structure parts")
        if not groups[STRUCTURE]:
            raise FedGraphError("the server sent no structure part, expected train or scored")
        self.z = {key: torch.tensor(z, device=self.device) for key, z in groups[STRUCTURE].items()}
        if "train" in self.z:
            self.z["train"].requires_grad_()

    def leaves(self) -> dict[str, Tensor]:
        """Return θ_f, and s^(L_s) as received."""
        return super().leaves() | ({"z": self.z["train"]} if "train" in self.z else {})

    def loss(self) -> Tensor:
        """Compute Eq. (7).

        Raises:
            FedGraphError: the server sent no structure part for training.
        """
        if "train" not in self.z:
            raise FedGraphError("the server sent no structure part of phase 'train', which the client needs")
        return self.summed_loss((self.model(self.inputs) + self.z["train"])[self.train_nodes])

    def predict(self) -> Tensor:
        """Compute logits [N, C].

        Raises:
            FedGraphError: there is no structure part yet.
        """
        if not self.z:
            raise FedGraphError(NO_STRUCTURE)
        return super().predict() + self.for_prediction()[STRUCTURE]

    def for_prediction(self) -> Tree:
        """Return s_v^(L_s) of the last prediction."""
        return {STRUCTURE: self.z["scored" if "scored" in self.z else "train"].detach()} if self.z else {}

    def load(self, tree: Tree) -> None:
        """Restore what `for_prediction` returned."""
        self.z = {"scored": tree[STRUCTURE].to(self.device)} if STRUCTURE in tree else {}

    def send(self) -> ReplyContent:
        """Send the residuals of the training nodes, [|V~_i|, C], and their positions among the client's nodes."""
        rows = self.train_nodes
        return {STRUCTURE: {"places": to_numpy(rows.int()), "residuals": to_numpy(self.gradients["z"][rows])}}, {}

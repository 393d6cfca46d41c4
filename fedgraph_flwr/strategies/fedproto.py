"""FedProto (Tan et al., AAAI 2022, arXiv:2105.00243), server side.

    C̄^j = Σ_{i ∈ N_j} |D_ij| C_i^j / Σ_{i ∈ N_j} |D_ij|                        Eq. (6), N_j the cohort's clients with class j

As printed, Eq. (6) divides by |N_j| once more, which would shrink a prototype that many clients have; its proof (appendix B) does
not, and the authors' program takes the plain mean. A class that nobody of the cohort has keeps its prototype (ours).
No model travels.
Leaves a client: see `fedgraph_flwr.clients.fedproto`.
"""

from typing import ClassVar

import numpy as np

from fedgraph_flwr.methods.prototypes import PROTOTYPES, WIDTH, Params
from fedgraph_flwr.strategies.base import GraphStrategy, Groups
from fedgraph_flwr.wire.messages import DESCRIBE, TRAIN, Arrays, Reply
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, NumberField, ReplySchema


class FedProto(GraphStrategy):
    """Pools prototypes; keeps them in `memory`."""

    Params: ClassVar[type] = Params
    sums: ClassVar[tuple[str, ...]] = ()  # prototypes weigh by their own counts, class by class

    def setup(self) -> None:
        """The shape of the prototypes."""
        self.shape = self.agreed("num_classes"), self.agreed(WIDTH)

    def before_train(self, arrays: Arrays) -> Groups:
        """The prototypes so far."""
        return {PROTOTYPES: self.memory[PROTOTYPES]} if PROTOTYPES in self.memory else {}

    def before_evaluate(self, arrays: Arrays) -> Groups:
        """As for training: Eq. (4) is scored too."""
        return self.before_train(arrays)

    def schema(self, phase: str, client: int | None) -> ReplySchema:
        """The width of embeddings, and a prototype of each class."""
        wanted = super().schema(phase, client)
        if phase == DESCRIBE:
            return wanted | ReplySchema(numbers={WIDTH: NumberField(1, LARGEST, whole=True)})
        if phase != TRAIN:
            return wanted
        most = LARGEST if client is None else self.most(client)
        mean, count = ArrayField(self.shape, self.cfg.dtype), ArrayField(self.shape[:1], "int64", 0, most)
        return wanted | ReplySchema({PROTOTYPES: {"mean": mean, "count": count}})

    def most(self, client: int) -> int:
        """The largest count that a client may tell of a class."""
        return int(self.clients[client].description["num_train"])

    def aggregate(self, arrays: Arrays, replies: list[Reply]) -> Arrays:
        """Take in the cohort's prototypes; the shared parameters, of which there are none, stay."""
        told = [reply.groups[PROTOTYPES] for reply in replies]
        count = np.stack([group["count"] for group in told])
        if count.any():
            self.learn(np.stack([group["mean"] for group in told]), count)
        return arrays

    def learn(self, means: np.ndarray, count: np.ndarray) -> None:
        """Eq. (6): prototypes [M, C, D] and counts [M, C], not all 0, into `memory`."""
        total = count.sum(0)
        pooled = np.einsum("mc,mcd->cd", count, means.astype(np.float64)) / np.maximum(total, 1)[:, None]
        former = self.memory.get(PROTOTYPES, {"mean": np.zeros(self.shape), "known": np.zeros(self.shape[:1], bool)})
        mean = np.where(total[:, None] > 0, pooled, former["mean"]).astype(means.dtype)
        self.memory[PROTOTYPES] = {"mean": mean, "known": former["known"] | (total > 0)}

"""Base of methods whose server keeps one model per client and mixes them.

    θ̄_i = Σ_j A_ij θ_j   over the clients j that replied, with Σ_j A_ij = 1;   θ = Σ_j p_j θ_j

θ_j is the model that client j trained, p_j FedAvg's weights. The method defines A. Client i starts
its next round from θ̄_i, or from θ if it has not trained yet. Leaves a client: FedAvg's uploads,
and the inputs of the method's A.
"""

import numpy as np

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.uplink import every_model
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import Arrays, Reply, weighted_mean


class PersonalStrategy(GraphStrategy):
    """A strategy that mixes clients' models by a matrix; clients that did not reply keep theirs in `models`.

    Its client declares the same uplink: ``uplink = staticmethod(every_model)``.
    """

    uplink = staticmethod(every_model)

    def mixing(self, replies: list[Reply]) -> np.ndarray:
        """Return A [n, n] of the n clients that replied, in client order; each row sums to 1."""
        raise NotImplementedError(f"{type(self).__name__} does not define its mixing matrix")

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Return θ, and store every θ̄_i in `models`, with one product per tensor."""
        replies = reduced.replies
        matrix = self._checked(self.mixing(replies), replies)
        mixed: dict[int, Arrays] = {reply.client: {} for reply in replies}
        for name, array in arrays.items():
            # [n, size]
            stacked = np.stack(
                [reply.arrays[name].reshape(-1) for reply in replies], dtype=np.float64
            )
            for reply, row in zip(replies, matrix @ stacked, strict=True):
                mixed[reply.client][name] = row.reshape(array.shape).astype(array.dtype)
        self.models |= mixed
        return weighted_mean([reply.arrays for reply in replies], self.weights(reduced.clients))

    def _checked(self, matrix: np.ndarray, replies: list[Reply]) -> np.ndarray:
        """Return A in float64.

        Raises:
            FedGraphError: A has another shape, or a row does not sum to 1.
        """
        size = (len(replies), len(replies))
        if matrix.shape != size:
            raise FedGraphError(
                f"{self.cfg.strategy.name}: the mixing matrix has shape {matrix.shape}, expected {size}"
            )
        matrix = matrix.astype(np.float64)
        for reply, total in zip(replies, matrix.sum(axis=1), strict=True):
            if not abs(total - 1) < 1e-6:
                raise FedGraphError(
                    f"{self.cfg.strategy.name}: the mixing weights of client {reply.client} sum to {total:g}, expected 1"
                )
        return matrix

"""FedGTA (Li et al., VLDB 2024, arXiv:2401.11755), server side.

    S_ij = cos(M_i, M_j)                                    M_i the moments, H_i the confidence that client i sends
    A_i = {j : S_ij > ε} ∪ {i}
    θ̄_i = Σ_{j ∈ A_i} H_j θ_j / Σ_{j ∈ A_i} H_j

over the cohort, from memory of the paper and from the authors' code. Client i continues from θ̄_i and is scored with it. An
absent client keeps its last one. With ε = 1 the method is Local, and ε < −1 gives all clients the same model. With
``confidence=false`` (ours, for ablation), weights follow ``strategy.weighting`` instead of H. If all of A_i have H = 0, their
weights are equal (ours).
Leaves a client: FedAvg's uploads, 2 K C numbers (K C for ``raw``) and H: see `fedgraph_baselines.clients.fedgta`.
Cost on the server: n² |θ| products for n clients, and their n models kept.
"""

import numpy as np

from fedgraph_baselines.methods import fedgta
from fedgraph_baselines.methods.fedgta import CONFIDENCE, SMOOTHED
from fedgraph_baselines.methods.similarity import cosines
from fedgraph_flwr.strategies.personal import PersonalStrategy
from fedgraph_flwr.wire.messages import Reply


class FedGTA(PersonalStrategy, method=fedgta):
    """Mixes the models of clients with similar distributions of propagated labels."""

    def mixing(self, replies: list[Reply]) -> np.ndarray:
        """Return H over A_i, in rows that sum to 1, [n, n]."""
        moments = np.stack([reply.groups[SMOOTHED]["moments"].reshape(-1) for reply in replies])
        accepted = (cosines(moments) > self.params.epsilon) | np.eye(len(replies), dtype=bool)
        confidences = (
            [reply.metrics[CONFIDENCE] for reply in replies]
            if self.params.confidence
            else self.weights([reply.client for reply in replies])
        )
        weight = accepted * np.asarray(confidences, dtype=np.float64)
        weight = np.where(weight.any(axis=1, keepdims=True), weight, accepted)
        return weight / weight.sum(axis=1, keepdims=True)

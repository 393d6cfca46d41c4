"""FED-PUB (Baek et al., ICML 2023, arXiv:2206.10206), server side.

    S_ij = cos(e_i, e_j)                                          e_i the functional embedding that client i sends
    α_ij = exp(τ S_ij) / Σ_k exp(τ S_ik)
    θ̄_i = Σ_j α_ij θ_j

over the cohort (Section 3 of the paper, from memory, hence without its numbers of equations). Client i continues from θ̄_i. An
absent client keeps its last one, and a client that has not trained yet receives the mean. With τ = 0, all clients get the
uniform mean. As τ grows, each client keeps its own model. Leaves a client: FedAvg's uploads, and e_i [D]: see
`fedgraph_baselines.clients.fedpub`. Masks never leave it; the authors' code uploads and averages them, and then no client
uses them.
Cost on the server: n² |θ| products for n clients, and their n stored models.
"""

import numpy as np

from fedgraph_baselines.methods import fedpub
from fedgraph_baselines.methods.fedpub import EMBEDDING
from fedgraph_baselines.methods.similarity import cosines
from fedgraph_flwr.strategies.personal import PersonalStrategy
from fedgraph_flwr.wire.messages import Reply


class FedPUB(PersonalStrategy, method=fedpub):
    """Mixes the models of clients with similar embeddings of the same random graph."""

    def mixing(self, replies: list[Reply]) -> np.ndarray:
        """Return α [n, n]."""
        similarity = cosines(np.stack([reply.groups[EMBEDDING]["mean"] for reply in replies]))
        weight = np.exp(self.params.tau * (similarity - 1))  # 1 is the largest of each row
        return weight / weight.sum(axis=1, keepdims=True)

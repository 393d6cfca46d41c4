"""FedHERO (arXiv 2504.21206): FedAvg of the global channel only, by numbers of nodes.

    w̄_g = Σ_i (N_i / N) w_g^i                                                            Section 3.3

``strategy.shared`` names f_global by prefix: the structure learner and the convolutions on the latent graph. Under partial
participation N runs over the cohort.
Leaves a client: f_global after its local step, N_i, scores. Never leaves it: X, A, the latent graph, Z, and the parameters of
f_0, f_loc and f_c.
"""

from fedgraph_flwr.strategies.base import GraphStrategy


class FedHERO(GraphStrategy):
    """The base strategy; what is shared and how it is weighted stands in ``conf/strategy/fedhero.yaml``."""

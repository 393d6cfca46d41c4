"""FedHERO (arXiv 2504.21206): FedAvg of the global channel only, by numbers of nodes.

    w̄_g = Σ_i (N_i / N) w_g^i                                                            Section 3.3

``strategy.shared`` names f_global by prefix: the structure learner and the convolutions on the latent graph. Under partial
participation N runs over the cohort.
Leaves a client: f_global after its local step, N_i, scores. Never leaves it: X, A, the latent graph, Z, and the parameters of
f_0, f_loc and f_c.

Reproduces: on Chameleon with edges as stored, the order (FedHERO, Local, FedAvg) and its own figures to two points
(`fedhero_table3`), and those of all structure learners (`fedhero_table4`). Does not: Local and FedAvg, which lie below
the paper's; with edges reversed or undirected both are far above, and Local above FedHERO; nor the gain of sharing,
since the same network with nothing shared is level with it (`fedhero_table5`). We think that the paper's statistics
(31,421 undirected edges, homophily 0.25) are of another direction than its accuracies: as stored most nodes hear
nobody, and the latent graph is what gives them neighbours.
"""

from fedgraph_flwr.strategies.base import GraphStrategy


class FedHERO(GraphStrategy):
    """The base strategy; what is shared and how it is weighted stands in ``conf/strategy/fedhero.yaml``."""

"""FedAvg (McMahan et al., AISTATS 2017, arXiv:1602.05629).

    θ^{t+1} = Σ_i p_i θ_i^t                                                             (Algorithm 1)

It is also the server side of methods that differ from FedAvg only on the client, such as FedProx.
The same holds for Local (nothing is shared, so nothing is averaged) and Central (one client holds
the pooled graph). Leaves the client: shared parameters, number of training nodes, scores.
"""

from fedgraph_flwr.strategies.base import GraphStrategy


class FedAvg(GraphStrategy):
    """The base strategy under its own name."""

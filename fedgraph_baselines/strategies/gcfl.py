"""GCFL and GCFL+ (Xie et al., NeurIPS 2021, arXiv:2106.13423), server side: clusters split where updates disagree.

    Δ_i = θ_i − θ_C                                                     the update of client i, of cluster C
    C is split if ‖Σ_{i∈C} p_i Δ_i‖ < ε1 and max_{i∈C} ‖Δ_i‖ > ε2
    GCFL    along the minimum cut of the complete graph over C with weights 1 + cos(Δ_i, Δ_j)
    GCFL+   with weights max DTW − DTW(Q_i, Q_j),   Q_i = (‖Δ_i^{t−d+1}‖, .., ‖Δ_i^t‖)
    θ_C ← θ_C + Σ_{i∈C} p_i Δ_i = Σ_{i∈C} p_i θ_i                          for each resulting cluster

from memory of the paper, hence without its numbers of equations; p_i by ``strategy.weighting``. At first all clients are one
cluster; ε1 = 0 keeps it so, and that is FedAvg. No cluster is split in the first ``warmup`` rounds, or with fewer than three
members in the round. In GCFL+, each member needs d norms first. A split empties the series of all clients. All of this is as
in the authors' code. Where paper and code differ, the code compares an unweighted mean with ε1 (``mean=uniform``). For the
series it sends the norm of the last step's gradient (``series=gradient``). It shares only graph convolutions, as
``protocol=gcfl`` does. The code also uses 1 + cos: a cut needs weights that are not negative. DTW is that of the code's
library, see `methods.gcfl`. Ours: of several clusters that could be split in one round of GCFL+, the oldest is split; the code
has the order of its cuts. An absent client keeps its cluster and receives its cluster's model when it is back. Its updates are
compared by the last round in which both clients of a pair trained (cos = 0 if there is none). A split therefore assigns it to
a side, too. Leaves a client: see `fedgraph_baselines.clients.gcfl`. Cost on the server: n² |θ| products for n clients, and their
n models once they are split. A cut takes n³ steps (2.4 s for 200 clients), a warped pair d².
"""

from logging import INFO

import numpy as np

from fedgraph_baselines.methods import gcfl
from fedgraph_baselines.methods.gcfl import GRADIENT, distances, halves
from fedgraph_flwr.logs import log
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import Arrays, Reply, weighted_mean


class GCFL(GraphStrategy, method=gcfl):
    """FedAvg within clusters.

    `memory` holds each client's cluster, the cosines of all pairs and, in GCFL+, the latest norms of each client and their
    number.
    """

    def setup(self) -> None:
        """Start with one cluster, and no compared pairs."""
        n = len(self.clients)
        none = np.zeros(n, np.int64)
        self.memory = {"cluster": none, "cosine": np.zeros((n, n))}
        if self.params.plus:
            self.memory |= {"series": np.zeros((n, self.params.length)), "recorded": none.copy()}

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Return the mean of all models; with several clusters, store each cluster's mean in `models`."""
        replies = reduced.replies
        gram = self.gram(replies)
        self.compare(replies, gram)
        for cluster in self.clusters:
            if self.disagrees(cluster, replies, gram):
                self.split(cluster)  # in GCFL+ this empties the series of the clusters after it
        if len(self.clusters) > 1:
            for cluster in self.clusters:
                present = [replies[place] for place in self.present(cluster, replies)]
                members, weights = self.members(cluster), self.weights([reply.client for reply in present])
                mean = (
                    weighted_mean([r.arrays for r in present], weights)
                    if any(weights)
                    else self.models.get(members[0], self.arrays)
                )
                self.models |= {
                    client: {name: a.copy() for name, a in mean.items()} for client in members
                }  # files want copies
        return weighted_mean([reply.arrays for reply in replies], self.weights(reduced.clients))

    def at(self, clients: list[int]) -> list[int]:
        """Return the positions of clients."""
        return [self.places[client] for client in clients]

    @property
    def clusters(self) -> list[int]:
        """The names of the clusters, ascending."""
        return np.unique(self.memory["cluster"]).tolist()

    def members(self, cluster: int) -> list[int]:
        """Return the clients of a cluster, ascending."""
        return [client for client, place in self.places.items() if self.memory["cluster"][place] == cluster]

    def present(self, cluster: int, replies: list[Reply]) -> list[int]:
        """Return the positions of replies from a cluster's members."""
        return [
            place for place, reply in enumerate(replies) if self.memory["cluster"][self.places[reply.client]] == cluster
        ]

    def gram(self, replies: list[Reply]) -> np.ndarray:
        """Compute ⟨Δ_i, Δ_j⟩ of the clients that replied, over trained parameters, [n, n]."""
        products = np.zeros((len(replies), len(replies)))
        for name in (name for name in self.arrays if name not in self.buffers):
            updates = [
                r.arrays[name].astype(np.float64) - self.models.get(r.client, self.arrays)[name] for r in replies
            ]
            stacked = np.stack(updates).reshape(len(replies), -1)
            products += stacked @ stacked.T
        return products

    def compare(self, replies: list[Reply], gram: np.ndarray) -> None:
        """Store the cosines of this round's pairs, and its norms."""
        clients, norms = self.at([reply.client for reply in replies]), np.sqrt(gram.diagonal())
        lengths = np.outer(norms, norms)
        self.memory["cosine"][np.ix_(clients, clients)] = np.divide(
            gram, lengths, out=np.zeros_like(gram), where=lengths > 0
        )
        if self.params.plus:
            latest = norms if self.params.series == "update" else [reply.metrics[GRADIENT] for reply in replies]
            series = self.memory["series"]
            series[clients] = np.column_stack([series[clients, 1:], latest])
            self.memory["recorded"][clients] += 1

    def disagrees(self, cluster: int, replies: list[Reply], gram: np.ndarray) -> bool:
        """Return whether to split a cluster, by the updates of its members that replied."""
        present = self.present(cluster, replies)
        if self.server_round <= self.params.warmup or len(present) < 3:
            return False
        if self.params.plus and self.memory["recorded"][self.at(self.members(cluster))].min() < self.params.length:
            return False
        weights = self.weights([replies[place].client for place in present])
        p = np.ones(len(present)) if self.params.mean == "uniform" or not any(weights) else np.array(weights)
        p, products = p / p.sum(), gram[np.ix_(present, present)]
        mean, largest = np.sqrt(max(p @ products @ p, 0.0)), np.sqrt(products.diagonal().max())
        return bool(mean < self.params.eps1 and largest > self.params.eps2)

    def split(self, cluster: int) -> None:
        """Split a cluster: the side without its first client becomes a new one."""
        members = self.members(cluster)
        stay, leave = halves(self.similarity(members), members)
        self.memory["cluster"][self.at(leave)] = self.memory["cluster"].max() + 1
        if self.params.plus:
            self.memory["recorded"][:] = 0
        log(INFO, "round %d: a cluster is split into clients %s and %s", self.server_round, stay, leave)

    def similarity(self, members: list[int]) -> np.ndarray:
        """Compute the weights of the graph to cut, [n, n]."""
        at = self.at(members)
        if not self.params.plus:
            return np.clip(1 + self.memory["cosine"][np.ix_(at, at)], 0, 2)
        apart = distances(self.memory["series"][at])
        return apart.max() - apart

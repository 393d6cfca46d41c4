"""FedLIT (Xie, Xiong & Yang, WWW 2023), server side: FedAvg of a model whose branches are first matched between clients.

    π_i(g): the cluster of client i matched with centre g, one to one, greedily by descending cosine
    c̄_g = mean_i c_{i, π_i(g)}                                                     over clients that have links
    branch g = mean of the branches π_i(g) of clients whose type π_i(g) touches training nodes; unchanged if there are none
    the projection and the head: by ``strategy.weighting``

The first centres are the first client's centroids. All clients receive the centres, and the model in the order of the centres.
Written from memory of the paper, so without its equation numbers, and checked against the authors' code. That code builds the
similarities as centre x cluster and reads them as cluster x centre, so it uses the inverse of π_i. It also sends the last
client's map to all clients. Here both follow the paper. With one type and equal weights of clients, FedLIT equals FedAvg of the
same model.
Leaves a client: what FedAvg sends, and the centroids and counts described in `fedgraph_baselines.clients.fedlit`.
It helps where edges have different meanings, as in graphs that mix homophily and heterophily.
"""

from collections.abc import Mapping

import numpy as np

from fedgraph_baselines.methods import fedlit
from fedgraph_baselines.methods.fedlit import LINKS, matched
from fedgraph_baselines.strategies.remembered import RememberedGroup
from fedgraph_flwr import models
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import MODEL, Arrays
from fedgraph_flwr.wire.reply_schema import ArrayField

BRANCHES = "branches."


class FedLIT(RememberedGroup, method=fedlit):
    """FedAvg with matched branches; `memory` contains the centres."""

    remembered = LINKS

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the centres, (k, 2H)."""
        model = models.probe(self.cfg.model)
        return int(model.types), 2 * int(model.width)  # type: ignore[arg-type]

    def fields(self, phase: str, group: str, client: int | None) -> Mapping[str, ArrayField]:
        """Describe the centroids and the training nodes per type."""
        k, width = self.shape
        limit = 0 if client is None else self.clients[client].description["num_train"]
        return {"centroids": ArrayField((k, width), self.cfg.dtype), "count": ArrayField((k,), "int64", 0, limit)}

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Average matched branches, and the other parameters."""
        received = [group["centroids"] for group in reduced.each(LINKS)]
        linked = [centroids for centroids in received if centroids.any()]
        if not linked:
            return reduced.mean(MODEL, self.weights(reduced.clients))
        centres = self.memory[LINKS]["centroids"] if LINKS in self.memory else linked[0]
        orders = [matched(centroids, centres) for centroids in received]
        ordered = [c[order] for c, order in zip(received, orders, strict=True) if c.any()]
        self.memory[LINKS] = {"centroids": np.mean(ordered, axis=0, dtype=np.float64).astype(centres.dtype)}
        counts = [group["count"] for group in reduced.each(LINKS)]
        touched = np.stack([count[order] > 0 for count, order in zip(counts, orders, strict=True)])  # [n, k]
        return self.joined(arrays, reduced, orders, touched)

    def joined(self, arrays: Arrays, reduced: Reduced, orders: list[np.ndarray], touched: np.ndarray) -> Arrays:
        """Return the next parameters: each type's slice of a branch is averaged over the clients with nodes of that type."""
        shared, everyone = self.weights(reduced.clients), [1.0] * len(reduced)
        weights: dict[str, list[float]] = {}
        for name in arrays:
            if not name.startswith(BRANCHES):
                weights[name] = shared
                continue
            for g in range(len(arrays[name])):
                column = touched[:, g]
                weights[f"{name}/{g}"] = column.astype(float).tolist() if column.any() else everyone

        def in_order(place: int, values: Arrays) -> Arrays:
            """Split each branch's arrays into slices, in the order of the centres."""
            slices: Arrays = {}
            for name, array in values.items():
                if name.startswith(BRANCHES):
                    slices |= {f"{name}/{g}": array[cluster] for g, cluster in enumerate(orders[place])}
                else:
                    slices[name] = array
            return slices

        origin = {f"{n}/{g}": part for n in arrays if n.startswith(BRANCHES) for g, part in enumerate(arrays[n])}
        mean = reduced.mean(MODEL, weights, in_order, {**arrays, **origin})
        had = [bool(column.any()) for column in touched.T]
        for name in [name for name in arrays if name.startswith(BRANCHES)]:
            parts = [mean[f"{name}/{g}"] if some else arrays[name][g] for g, some in enumerate(had)]
            mean[name] = np.stack(parts).astype(arrays[name].dtype)
        return {name: mean[name] for name in arrays}

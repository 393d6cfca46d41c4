"""FedLIT (Xie, Xiong & Yang, WWW 2023), server side: FedAvg of a network whose branches are matched, client by client, first.

    π_i(g): the cluster of client i that is matched with centre g, one to one, greedily by descending cosine
    c̄_g = mean_i c_{i, π_i(g)}                                                     over clients that have links
    branch g = mean of the branches π_i(g) of clients whose type π_i(g) touches training nodes; if there are none, as it was
    the projection and the head: by ``strategy.weighting``

At first the centres are the first client's centroids. All clients are sent the network in the order of the centres, and the
centres. From memory of the paper, so without its numbers of equations, and by the authors' program. That one builds the
likeness as centre x cluster and reads it as cluster x centre, so it uses the inverse of π_i, and hands out the last client's
map to all: here both are as the paper means. One type, with clients that weigh the same, is FedAvg of that network. Leaves a
client: what FedAvg sends, and what `fedgraph_flwr.clients.fedlit` says. It helps where edges mean different things, as in
graphs that mix homophily and heterophily.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from fedgraph_flwr import models
from fedgraph_flwr.methods import fedlit
from fedgraph_flwr.methods.fedlit import LINKS, Params, matched
from fedgraph_flwr.strategies.base import GraphStrategy, Groups
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import MODEL, Arrays
from fedgraph_flwr.wire.reply_schema import ArrayField

BRANCHES = "branches."


class FedLIT(GraphStrategy):
    """Keeps the centres in `memory`."""

    Params: ClassVar[type] = Params
    uplink = staticmethod(fedlit.uplink)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the centres, [k, 2H]."""
        model = models.probe(self.cfg.model)
        return int(model.types), 2 * int(model.width)  # type: ignore[arg-type]

    def fields(self, phase: str, group: str, client: int | None) -> Mapping[str, ArrayField]:
        """Centroids, and training nodes by type."""
        k, width = self.shape
        most = 0 if client is None else self.clients[client].description["num_train"]
        return {"centroids": ArrayField((k, width), self.cfg.dtype), "count": ArrayField((k,), "int64", 0, most)}

    def before_train(self, arrays: Arrays) -> Groups:
        """The centres so far."""
        return {LINKS: self.memory[LINKS]} if LINKS in self.memory else {}

    def before_evaluate(self, arrays: Arrays) -> Groups:
        """As for training: links are typed by them."""
        return self.before_train(arrays)

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """The mean of matched branches, and of the rest."""
        told = [group["centroids"] for group in reduced.each(LINKS)]
        linked = [centroids for centroids in told if centroids.any()]
        if not linked:
            return reduced.mean(MODEL, self.weights(reduced.clients))
        centres = self.memory[LINKS]["centroids"] if LINKS in self.memory else linked[0]
        orders = [matched(centroids, centres) for centroids in told]
        ordered = [c[order] for c, order in zip(told, orders, strict=True) if c.any()]
        self.memory[LINKS] = {"centroids": np.mean(ordered, axis=0, dtype=np.float64).astype(centres.dtype)}
        counts = [group["count"] for group in reduced.each(LINKS)]
        touched = np.stack([count[order] > 0 for count, order in zip(counts, orders, strict=True)])  # [n, k]
        return self.joined(arrays, reduced, orders, touched)

    def joined(self, arrays: Arrays, reduced: Reduced, orders: list[np.ndarray], touched: np.ndarray) -> Arrays:
        """The next parameters: each type's slice of a branch's arrays weighs by who has nodes of it."""
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
            """Each branch's arrays slice by slice, in the order of the centres."""
            found: Arrays = {}
            for name, array in values.items():
                if name.startswith(BRANCHES):
                    found |= {f"{name}/{g}": array[cluster] for g, cluster in enumerate(orders[place])}
                else:
                    found[name] = array
            return found

        origin = {f"{n}/{g}": part for n in arrays if n.startswith(BRANCHES) for g, part in enumerate(arrays[n])}
        mean = reduced.mean(MODEL, weights, in_order, {**arrays, **origin})
        had = [bool(column.any()) for column in touched.T]
        for name in [name for name in arrays if name.startswith(BRANCHES)]:
            parts = [mean[f"{name}/{g}"] if some else arrays[name][g] for g, some in enumerate(had)]
            mean[name] = np.stack(parts).astype(arrays[name].dtype)
        return {name: mean[name] for name in arrays}

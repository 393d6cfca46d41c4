"""Gradient boosting of a federation (`fedgraph_flwr.methods.boosting`), server side.

    base     Σ targets and numbers of items → b                                        once, without ``init``
    bins     counts of values by cell, twice → edges of bins                                            once (histogram)
    train    bagging: trees of each party → F = b + Σ_i p_i Σ trees of i;  histogram: Σ histograms of the roots
    grow     Σ histograms of the nodes of a level → its splits                              each level (histogram)

With ``bagging`` a run ends when no party has a tree to add: by default after one round. p_i are
FedAvg's weights of the parties that have trees. A party with too few items of a class sits out, by
name. With ``histogram`` a round adds a tree per output. Leaves a client: what
`fedgraph_flwr.clients.boosting` lists. The server checks every tree before it evaluates or sends
one.
"""

from collections.abc import Mapping
from functools import cached_property
from logging import WARNING
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.logs import log
from fedgraph_flwr.methods import boosting
from fedgraph_flwr.methods.boosting import (
    BASE,
    BINS,
    COUNTS,
    FOREST,
    GROW,
    HISTOGRAM,
    NODES,
    START,
    UNIT,
    BoostingParams,
    Edges,
    Growth,
)
from fedgraph_flwr.models.forest import Forest
from fedgraph_flwr.numerics.forest import (
    check_forest,
    constants,
    empty_forest,
    forest_fields,
    joined,
)
from fedgraph_flwr.store.results import CONFIG
from fedgraph_flwr.strategies.base import GraphStrategy, GroupsFor
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.tasks.trees import forest_of, num_columns, objective_of
from fedgraph_flwr.wire.messages import Arrays, Reply
from fedgraph_flwr.wire.reply_schema import ArrayField

TREES = "trees"
ENDED = "ended"
SITS_OUT = "sits_out"


class Boosting(GraphStrategy):
    """Mean of the parties' forests, or one forest grown from sums of histograms.

    `memory` holds the base rate, or the forest of the run in ``init`` (``start``), and the edges of
    bins. With ``bagging`` it also holds the parties' ``trees``, and which of them ``ended``.
    """

    Params: ClassVar[type] = BoostingParams
    uplink = staticmethod(boosting.uplink)
    params: BoostingParams
    _counted: Edges  # of the latest counts
    _growth: Growth  # of the current round, with ``histogram``

    @cached_property
    def _levels(self) -> list[tuple[np.ndarray, Growth]]:
        """Histograms of each level of the current round's trees, and the trees after it."""
        return []

    # --- the model --------------------------------------------------------------------------------

    def build_model(self) -> Forest:
        """Return an empty forest."""
        objective = objective_of(self.cfg, self.described.size("num_classes"))
        return forest_of(self.cfg, self.params, objective, self.columns)

    @property
    def columns(self) -> int:
        """F."""
        size = self.described.size
        sizes = size("num_features"), size("num_edge_features") or 0, size("num_classes")
        return num_columns(self.cfg, self.params, *sizes)

    def initial_arrays(self) -> Arrays:
        """Return no trees."""
        return empty_forest() if self.cfg.strategy.shared else {}

    def accepted(self, arrays: Arrays, where: str) -> Arrays:
        """Return the arrays of a file, whose sizes follow from its trees, after the checks of `check_forest`.

        Raises:
            FedGraphError: its trees read other columns at the same places, or they cannot be evaluated.
        """
        self._check_columns()
        if not self.cfg.strategy.shared:
            return super().accepted(arrays, where)
        model = self.build_model()
        model.fit_to(arrays, where)
        return model.arrays

    def _check_columns(self) -> None:
        """Refuse the trees of a run whose columns are not the first ones of this run."""
        key, folder = (
            ("init", self.cfg.init) if self.cfg.init else ("evaluate", self.cfg.evaluate)
        )
        if not folder or not (Path(folder) / CONFIG).is_file():
            return
        params = compose([], Path(folder) / CONFIG).strategy.params
        names = ("inputs", "neighbours", "edge_columns")
        earlier = BoostingParams(
            **{name: params[name] for name in names if name in params}
        ).blocks
        if self.params.blocks[: len(earlier)] != earlier:
            given = ", ".join(
                f"strategy.{name}={str(params[name]).lower()}"
                for name in names
                if name in params
            )
            raise FedGraphError(
                f"{key}={folder} has trees that read {', '.join(earlier)}, but those of this run read"
                f" {', '.join(self.params.blocks)}: set the keys of that run ({given or 'their defaults'})"
            )

    # --- set-up -----------------------------------------------------------------------------------

    def setup(self) -> None:
        """Agree on the base rate and, with ``histogram``, on bins."""
        if not self.cfg.strategy.shared:
            return
        if self.cfg.init:
            self.memory = {START: self.arrays}
        else:
            sums = self.request(BASE)[BASE]
            objective = objective_of(self.cfg, self.described.size("num_classes"))
            self.memory = {BASE: objective.base(sums["total"] * UNIT, sums["count"] * UNIT)}
        if self.params.mode == "histogram":
            edges = boosting.agreed_edges(self.columns, self.params.bins, self._count)
            self.memory[BINS] = boosting.packed_edges(edges)

    def _count(self, edges: Edges) -> np.ndarray:
        """Return the number of values of all clients in each bin."""
        self._counted = edges
        return self.request(BINS, {BINS: boosting.packed_edges(edges)})[COUNTS]["count"] * UNIT

    def before_train(self, arrays: Arrays) -> GroupsFor:
        """Send the base rate and the edges of bins."""
        if not self.cfg.strategy.shared:
            return {}
        bins: Any = {BINS: self.memory[BINS]} if BINS in self.memory else {}
        if bins:
            self._growth = self._new_growth()
        if self.cfg.init:
            return {
                START: {"trees": np.array([len(self.memory[START]["start"])], np.int32)},
                **bins,
            }
        return {BASE: {"score": self.memory[BASE]}, **bins}

    def fields(self, phase: str, group: str, client: int | None) -> Mapping[str, ArrayField]:
        """Return the schema of trees, of counts by bin, or of the histograms that a level needs."""
        if group == FOREST:
            return forest_fields(*self.facts(phase))
        if group == COUNTS:
            return {
                "count": ArrayField(
                    (sum(len(values) + 1 for values in self._counted),), "float64"
                )
            }
        return {
            "sums": ArrayField(
                (len(self._growth.tree), int(self._growth.held.sum()), 3), "float64"
            )
        }

    def facts(self, phase: str) -> tuple[int, ...]:
        """Return K, F, the most trees and the most nodes per tree, in phases in which clients send trees."""
        if FOREST not in self.uplink_of.get(phase, {}):
            return ()
        model = self.build_model()
        return (
            model.outputs,
            model.columns,
            model.outputs * self.params.trees,
            self.params.nodes,
        )

    @staticmethod
    def verify(phase: str, reply: Reply, facts: Any) -> None:
        """Refuse trees that cannot be evaluated."""
        if FOREST in reply.groups:
            outputs, columns, trees, nodes = facts
            who = f"client {reply.client} replied to phase '{phase}'"
            check_forest(reply.groups[FOREST], outputs, columns, trees, nodes, who)

    # --- a round ----------------------------------------------------------------------------------

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Return the forest with the trees of this round."""
        if not self.cfg.strategy.shared:
            return arrays
        base = self._base
        if self.params.mode == "bagging":
            return self._mean(base, reduced)
        trees = self._grown(reduced[HISTOGRAM]["sums"])
        return joined([arrays if len(arrays["start"]) else base, trees])

    def limited(self, arrays: Arrays, start: Arrays, most: float) -> Arrays:
        """Return the forest with the leaves of this round's trees in [−``most``, ``most``], and so each raw score's change."""
        first = len(start["start"]) or len(self._base["start"])
        if len(arrays["start"]) <= first:
            return arrays
        values = arrays["value"].copy()
        new = arrays["start"][first]
        leaf = arrays["feature"][new:] < 0
        values[new:][leaf] = values[new:][leaf].clip(-most, most)
        return {**arrays, "value": values}

    def numbers(self) -> int:
        """Return the numbers of the histograms of a tree whose levels are full, per output."""
        growth = self._new_growth()
        return len(growth.tree) * (2**self.params.depth - 1) * int(growth.held.sum()) * 3

    @property
    def _base(self) -> Arrays:
        return self.memory[START] if self.cfg.init else constants(self.memory[BASE])

    def _new_growth(self) -> Growth:
        edges = boosting.unpacked_edges(self.memory[BINS], self.columns, self.params.bins)
        return Growth(self.build_model().outputs, edges, self.params)

    def _grown(self, sums: np.ndarray) -> Arrays:
        """Grow the trees of a round from the histograms of their roots.

        A replay that gets the same arrays again, and one more, splits the nodes of the last level only.
        """
        level = 0
        while self._growth.open:
            if level:
                at = {"tree": self._growth.tree.astype(np.int32)}
                at["node"] = self._growth.node.astype(np.int32)
                groups = {FOREST: self._growth.forest(), NODES: at}
                sums = self.request(GROW, groups)[HISTOGRAM]["sums"]
            if level == len(self._levels) or self._levels[level][0] is not sums:
                filled = np.zeros((len(sums), *self._growth.held.shape, 3))
                filled[:, self._growth.held] = sums
                self._levels[level:] = [(sums, self._growth.after(filled))]
            self._growth = self._levels[level][1]
            level += 1
        return self._growth.forest()

    def _mean(self, base: Arrays, reduced: Reduced) -> Arrays:
        """Add the trees of this round, and return the weighted mean of the parties' forests."""
        held = self.memory.setdefault(TREES, {})
        ended = self.memory.setdefault(ENDED, {})
        for reply in reduced:
            name = str(reply.client)
            if reply.metrics[SITS_OUT] and name not in ended:
                log(WARNING, "client %d sits out: it has %s", reply.client, self._why)
                self.memory.setdefault(SITS_OUT, {})[name] = np.array(True)
            ended[name] = np.array(bool(reply.metrics[ENDED]))
            if len(reply.groups[FOREST]["start"]):
                held[name] = joined([held.get(name, empty_forest()), reply.groups[FOREST]])
        if out := self.memory.get(SITS_OUT, {}):
            self.remarks["sits_out"] = dict.fromkeys(sorted(out, key=int), self._why)
        if not held and {str(client) for client in self.clients} <= ended.keys():
            if len(out) < len(ended):
                raise RunFailed(
                    "strategy=boosting fits no trees: no split of the columns predicts validation items better than chance;"
                    " give columns that tell items apart (dataset.recipe, import features)"
                )
            raise RunFailed(
                f"strategy=boosting fits no trees, because each client has {self._why}: set strategy.mode=histogram, which reads"
                " the items of all clients, or a smaller strategy.min_data_in_leaf"
            )
        parties = sorted(int(name) for name in held)
        weights = self.weights(parties) if parties else []
        total = sum(weights)
        shares = [weight / total for weight in weights]
        return joined([base, *(held[str(party)] for party in parties)], [1.0, *shares])

    @property
    def _why(self) -> str:
        least = self.params.min_data_in_leaf
        return (
            f"fewer than {self.params.of_class} training items of a class, or fewer than {2 * least} in all"
            f" (strategy.min_data_in_leaf={least})"
        )

    @property
    def finished(self) -> bool:
        """Whether no party that replies has another tree, or the model has all of its trees."""
        if not self.cfg.strategy.shared or self.params.mode == "histogram":
            return self.server_round >= self.rounds_needed
        ended = self.memory.get(ENDED, {})
        unknown = {client for client in self.clients if str(client) not in ended}
        return (
            bool(self.server_round)
            and unknown <= self.failed.keys()
            and all(bool(one) for one in ended.values())
        )

    @property
    def rounds_needed(self) -> int:
        """Number of rounds that give all trees."""
        if self.params.mode == "histogram":
            return self.params.trees
        return -(-self.params.trees // (self.params.per_round or self.params.trees))

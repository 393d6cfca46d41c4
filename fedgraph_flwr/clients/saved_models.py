"""Models that a client saves at its evaluations, so that it can predict with them after the run.

A party's own node saves whole models in its state folder. A simulated client saves only its private tensors, since the rest
is in the run folder. The server names the round of the best model; under ``evaluation.select=own_best_val`` the client's own
validation score decides.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.config import EvaluationConfig
from fedgraph_flwr.data.graph import ClientGraph, graph_digest
from fedgraph_flwr.wire.trees import Tree, flatten, unflatten

LAST, BEST = "last", "best"

NOTHING, PRIVATE, WHOLE = "", "private", "whole"

BY_VALIDATION = ("best_val", "own_best_val")
"""Values of ``evaluation.select`` that report the score of a best round."""


GRAPH = "graph"
"""In the state for prediction of a client that needs others: `graph_digest` of the only graph that it can predict alone."""


def state_for_prediction(client: Any) -> Tree:
    """Return what a client's prediction reads: what ``predicts_with`` names, and the graph that it belongs to."""
    kept = (*client.predicts_with, *client.chosen_parts.predicts_with)
    state = {key: tree for key, tree in client.for_prediction().items() if key in kept} if kept else {}
    if client.other_clients:
        state[GRAPH] = client.saved_models.digest_of(client.graph)
    return state


class SavedModels:
    """The last and the best model that a client was scored with.

    Args:
        rules: the configuration that defines the best round.

    Attributes:
        what: `NOTHING`, only `PRIVATE` tensors and memory, or `WHOLE` models.
        state: for `LAST` and `BEST`: ``model``, ``method``, ``round`` and ``figure``, the score that selects it.
    """

    def __init__(self, rules: EvaluationConfig):
        self.rules = rules
        self.what = NOTHING
        self.state: Tree = {}
        self._digest: Tensor | None = None

    @property
    def own_choice(self) -> bool:
        """Whether the client's own score selects its best model, so that only the client knows it."""
        return self.rules.select == "own_best_val"

    @property
    def whole(self) -> bool:
        """Whether saved models include the shared parameters."""
        return self.what == WHOLE or (self.what == PRIVATE and self.own_choice)

    def take(self, client: Any, scores: Mapping[str, list[float]], config: Mapping[str, Any]) -> None:
        """Save a copy of the client's model, which was just scored, if the server names its round.

        Args:
            client: whose model and state for prediction are saved.
            scores: scores of the model on the client's nodes.
            config: scalars of the message: the model's round (``scored``), and the best round so far according to the server.
        """
        if not self.what or "scored" not in config:
            return
        self.update_best(int(config["best"]))
        held = () if self.whole else client.shared
        model = {
            name: tensor
            for name, tensor in client.model.tensors.items()
            if name not in held and (tensor.dim() or tensor.is_floating_point())  # not the counters of a network
        }
        method = state_for_prediction(client)
        leaves = flatten({"model": model, "method": method}) if model or method else {}
        if not leaves:
            return
        name, sign = self.rules.watched
        scored, score = int(config["scored"]), sign * float(np.mean(scores.get(f"val-{name}", np.nan)))
        score = -math.inf if math.isnan(score) else score
        self.state[LAST] = {
            **unflatten({path: leaf.detach().cpu().clone() for path, leaf in leaves.items()}),
            "round": torch.tensor(scored),
            "figure": torch.tensor(score, dtype=torch.float64),
        }
        if self.own_choice and self._better(scored, score):
            # Copy: a file of state must store each tensor once.
            self.state[BEST] = unflatten({path: leaf.clone() for path, leaf in flatten(self.state[LAST]).items()})

    def digest_of(self, graph: ClientGraph) -> Tensor:
        """Return `graph_digest` of the client's graph, computed once."""
        self._digest = graph_digest(graph) if self._digest is None else self._digest
        return self._digest

    def update_best(self, best: int) -> None:
        """Make the last scored model the best one if the server names its round."""
        if self.rules.select == "best_val" and LAST in self.state and int(self.state[LAST]["round"]) == best:
            self.state[BEST] = self.state[LAST]

    def _better(self, scored: int, score: float) -> bool:
        """Return whether a score is a new best, by the rule of `metrics.OwnRounds`."""
        if BEST not in self.state:
            return True
        held = self.state[BEST]
        waiting = not self.rules.patience or scored - 1 - int(held["round"]) < self.rules.patience
        return waiting and score > float(held["figure"]) + self.rules.min_delta

"""What a client keeps of the models it was scored by, so that it can predict with them when the run is over.

A party's own node keeps whole models, in its state folder; a simulated client what is its own alone, since the rest lies in the
run's folder. Of which round the best ones are, the server tells, or under ``evaluation.select=own_best_val`` the client's own
figure.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.config import EvaluationConfig
from fedgraph_flwr.wire.trees import Tree, flatten, unflatten

LAST, BEST = "last", "best"

NOTHING, PRIVATE, WHOLE = "", "private", "whole"

BY_VALIDATION = ("best_val", "own_best_val")
"""Values of ``evaluation.select`` whose figure is a best round's."""


class SavedModels:
    """The last and the best model that a client was scored by.

    Args:
        rules: which round is the best.

    Attributes:
        what: `NOTHING`, `PRIVATE` tensors and memory alone, or `WHOLE` models.
        state: by `LAST` and `BEST`: ``model``, ``method``, ``round`` and the ``figure`` it is chosen by.
    """

    def __init__(self, rules: EvaluationConfig):
        self.rules = rules
        self.what = NOTHING
        self.state: Tree = {}

    @property
    def own_choice(self) -> bool:
        """Whether the client's own figure decides, so that nobody else knows its best model."""
        return self.rules.select == "own_best_val"

    @property
    def whole(self) -> bool:
        """Whether models are kept with the parameters that are shared."""
        return self.what == WHOLE or (self.what == PRIVATE and self.own_choice)

    def take(
        self,
        scores: Mapping[str, list[float]],
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        shared: Collection[str],
        method: Callable[[], Tree],
    ) -> None:
        """Keep a copy of the model that was just scored, where the server says of which round it is.

        Args:
            scores: of the model on the client's nodes.
            config: of the message: the round of the model (``scored``), and the best round so far, as the server knows.
            tensors: of the model, by name.
            shared: names of those among them that are kept elsewhere.
            method: gives what the method predicts with besides.
        """
        if not self.what or "scored" not in config:
            return
        self.update_best(int(config["best"]))
        held = () if self.whole else shared
        model = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() and name not in held}
        leaves = flatten({"model": model, "method": method()})
        if not leaves:
            return
        name, sign = self.rules.watched
        scored, figure = int(config["scored"]), sign * float(np.mean(scores.get(f"val-{name}", np.nan)))
        self.state[LAST] = {
            **unflatten({path: leaf.detach().cpu().clone() for path, leaf in leaves.items()}),
            "round": torch.tensor(scored),
            "figure": torch.tensor(figure, dtype=torch.float64),
        }
        if self.own_choice and self._better(scored, figure):
            self.state[BEST] = self.state[LAST]

    def update_best(self, best: int) -> None:
        """The server's best round may be the one that was scored last."""
        if self.rules.select == "best_val" and LAST in self.state and int(self.state[LAST]["round"]) == best:
            self.state[BEST] = self.state[LAST]

    def _better(self, scored: int, figure: float) -> bool:
        """As `metrics.OwnRounds` has it."""
        if BEST not in self.state:
            return True
        held = self.state[BEST]
        waiting = not self.rules.patience or scored - 1 - int(held["round"]) < self.rules.patience
        return waiting and figure > float(held["figure"]) + self.rules.min_delta

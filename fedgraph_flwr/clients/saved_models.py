"""What a client keeps of the models it was scored by, so that it can predict with them when the run is over.

A party's own node keeps whole models, in its state folder; a simulated client what is its own alone, since the rest lies in the
run's folder. Of which round the best ones are, the server tells, or under ``evaluation.select=own_best_val`` the client's own
figure.
"""

from collections.abc import Callable

import torch

from fedgraph_flwr.config import EvaluationConfig
from fedgraph_flwr.wire.trees import Tree, flatten

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

    def take(self, parts: Callable[[], Tree], scored: int, best: int, figure: float) -> None:
        """A model was scored.

        Args:
            parts: gives ``model`` and ``method``, in memory of their own.
            scored: the round whose model it is.
            best: the best round so far, as the server knows.
            figure: of its validation, on the client's nodes.
        """
        self.update_best(best)
        now = parts()
        if not flatten(now):
            return
        self.state[LAST] = now | {"round": torch.tensor(scored), "figure": torch.tensor(figure, dtype=torch.float64)}
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

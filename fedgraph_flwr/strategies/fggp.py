"""FGGP (Wan, Huang & Ye, AAAI 2024), server side: FedAvg, and a bank of prototypes, clustered class by class.

    θ = Σ_i p_i θ_i                                                           FedAvg, by nodes
    B_c = the means of FINCH's clusters of {P_i^c: client i knows class c}      `fedgraph_flwr.methods.fggp`, by cosine

B goes down with θ; clients predict by it (`fedgraph_flwr.clients.fggp`). It is of the round's cohort; a class that none of them
knows keeps its prototypes (ours). From memory of the paper, so without its numbers of equations, and by the authors' program,
which numbers the prototypes of a client without some class from 0 up, so that they stand for other classes elsewhere: here they
go by the class. Leaves a client: what FedAvg sends, and a prototype [D] of each class. Cost on the server: n² products a class.
"""

from typing import ClassVar

import numpy as np

from fedgraph_flwr.methods import fggp
from fedgraph_flwr.methods.fggp import BANK, TOLD, Params, bank
from fedgraph_flwr.strategies.base import GraphStrategy, Groups
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import Arrays


class FGGP(GraphStrategy):
    """FedAvg that also keeps the bank, in `memory`."""

    Params: ClassVar[type] = Params
    uplink = staticmethod(fggp.uplink)

    def before_train(self, arrays: Arrays) -> Groups:
        """The bank so far."""
        return {BANK: self.memory[BANK]} if BANK in self.memory else {}

    def before_evaluate(self, arrays: Arrays) -> Groups:
        """As for training: it is predicted by."""
        return self.before_train(arrays)

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """θ, and a new bank."""
        told = reduced.each(TOLD)
        mean, label = bank(np.stack([t["mean"] for t in told]), np.stack([t["known"] for t in told]))
        former = self.memory.get(BANK, {"mean": mean[:0], "label": label[:0]})
        kept = ~np.isin(former["label"], label)
        if len(label) or BANK in self.memory:
            rows = np.concatenate([mean, former["mean"][kept]]).astype(told[0]["mean"].dtype)
            self.memory[BANK] = {"mean": rows, "label": np.concatenate([label, former["label"][kept]])}
        return super().step(arrays, reduced)

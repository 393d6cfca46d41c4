"""FGGP (Wan, Huang & Ye, AAAI 2024), server side: FedAvg, and a bank of prototypes clustered per class.

    θ = Σ_i p_i θ_i                                                           FedAvg, weighted by nodes
    new rows of B, class c = the means of FINCH's clusters of {P_i^c: client i knows class c}     by cosine

B is a queue of at most ``queue`` rows per class in all: new rows replace the oldest. With ``queue=0`` it holds the last round's
rows, and a class that no client of the cohort knows keeps its rows (ours). B is sent with θ, and clients predict with it
(`fedgraph_baselines.clients.fggp`, which lists the differences from the authors' code). With ``head=initial`` the head is not
averaged: clients start every round from its initial values. Written from memory of the paper and checked against the authors'
code (GuanchengWan/FGGP fedced9). That code numbers the prototypes from 0 even if a client has no nodes of some class
(models/fggp.py, line 299), so they are taken for other classes. Here each prototype keeps its class.
Leaves a client: what FedAvg sends, and a prototype [D] of each class.
Cost on the server: n² products per class.
"""

import numpy as np

from fedgraph_baselines.methods import fggp
from fedgraph_baselines.methods.fggp import BANK, PROTOTYPES, bank
from fedgraph_baselines.strategies.remembered import RememberedGroup
from fedgraph_flwr import models
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import Model
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import Arrays


class FGGP(RememberedGroup, method=fggp):
    """FedAvg with a bank of prototypes in `memory`."""

    remembered = BANK

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Refuse predictions by a head that is not averaged."""
        params = method_params(cls, cfg)
        if params.head == "initial" and params.inference == "classifier":
            raise FedGraphError(
                "strategy.head=initial resets the head in every round, so strategy.inference=classifier cannot predict with it:"
                " set strategy.head=average or strategy.inference=prototypes"
            )

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Average θ and extend the bank."""
        self.extend_bank(reduced.each(PROTOTYPES))
        averaged = super().step(arrays, reduced)
        if self.params.head == "average":
            return averaged
        prefixes = models.probe(self.cfg.model).head_prefixes
        return {name: arrays[name].copy() if name.startswith(prefixes) else value for name, value in averaged.items()}

    def extend_bank(self, prototypes: list[Arrays]) -> None:
        """Add a round's rows to the bank and drop the oldest."""
        mean, label = bank(np.stack([p["mean"] for p in prototypes]), np.stack([p["known"] for p in prototypes]))
        if not len(label) and BANK not in self.memory:
            return
        previous = self.memory.get(BANK, {"mean": mean[:0], "label": label[:0]})
        if self.params.queue:
            room = max(self.params.queue * prototypes[0]["known"].size - len(label), 0)
            kept = np.arange(len(previous["label"])) >= len(previous["label"]) - room
        else:
            kept = ~np.isin(previous["label"], label)
        rows = np.concatenate([previous["mean"][kept], mean]).astype(prototypes[0]["mean"].dtype)
        self.memory[BANK] = {"mean": rows, "label": np.concatenate([previous["label"][kept], label])}

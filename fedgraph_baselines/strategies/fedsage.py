"""FedSage+ (Zhang et al., NeurIPS 2021, arXiv:2106.13430), server side: jointly trained generators, then FedAvg.

    generate   each client sends predicted neighbours x̃ of its training nodes                  ``generator_rounds`` times
    judge      all x̃ to all clients; client j returns x̃ − x for the nearest x among neighbours drawn from its nodes     the same
    mend       Σ_{j≠i} (x̃ − x_j) to client i, for its last step; each client adds its predictions to its graph    once
    train      FedAvg of GraphSAGE

Σ_j (x̃ − x_j) is, up to a factor, the gradient of the peers' losses at x̃, from which a client computes that of its generator.
In the paper a client sends its head and its latent vectors, from which the peers compute x̃, and receives the gradient at the
head. That gives the same numbers for about a hundred times the bytes (a head of 2048 x P F instead of R x F). The authors' code,
OpenFGL and FedStruct's code read the peers' features directly. Generators are never averaged.
Leaves a client: see `fedgraph_baselines.clients.fedsage`. The server sees x̃ and each x̃ − x_j, so it can compute the features of
the nodes that client j drew. It could also solve for them from the paper's gradients. With ``privacy.secagg=true`` the server
and client i see only the sums over all peers, for four more exchanges per generator round.
Cost: 2 generator_rounds + 1 exchanges before round 1; then FedAvg's.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgraph_baselines.methods import fedsage
from fedgraph_baselines.methods.fedsage import APART, OWNERS, PROPOSED
from fedgraph_baselines.methods.impaired import say_added
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.strategies.base import GraphStrategy, Groups
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import Reply
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, up_to


class FedSage(GraphStrategy, method=fedsage):
    """FedAvg after training generators and extending graphs.

    Attributes:
        rows: number of neighbours that each client predicted last, by index.
    """

    rows: dict[int, int]

    def fields(self, phase: str, group: str, client: int | None) -> Mapping[str, ArrayField]:
        """Return rows and their owners, or differences from every client's rows."""
        width = self.agreed("num_features")
        if group == APART:
            return {str(i): ArrayField((rows, width), self.cfg.dtype) for i, rows in self.rows.items() if rows}
        trains = LARGEST if client is None else self.clients[client].description["num_train"]
        size = up_to(min(trains * self.params.neighbours, LARGEST))
        if group == OWNERS:
            return {"rows": ArrayField((size,), "int32", 0, LARGEST)}
        return {"rows": ArrayField((size, width), self.cfg.dtype, -1, 1)}

    def facts(self, phase: str) -> int:
        """Return P, the most rows per owner."""
        return self.params.neighbours

    @staticmethod
    def verify(phase: str, reply: Reply, facts: Any) -> None:
        """Refuse rows without valid owners, which are numbered in order, with at most P rows each."""
        if phase != "generate":
            return
        owner, rows = reply.groups[OWNERS]["rows"], reply.groups[PROPOSED]["rows"]
        steps = np.diff(owner, prepend=-1)
        named = (
            owner.size == len(rows) and bool(((steps == 0) | (steps == 1)).all()) and (not owner.size or owner[0] == 0)
        )
        if not named or (owner.size and np.bincount(owner).max() > facts):
            what = f"{OWNERS}/rows that do not number the owners of {len(rows)} rows from 0"
            raise FedGraphError(f"client {reply.client} replied to phase 'generate' with {what}")

    def setup(self) -> None:
        """Train the generators, and extend the graphs."""
        if not self.params.neighbours:
            return
        apart: dict[int, Groups] = {}
        for _ in range(self.params.generator_rounds):
            apart = self.judged(self.request_all("generate", apart))
        say_added(self.request_all("mend", apart).replies, self.cfg.strategy.name)

    def judged(self, replies: Reduced) -> dict[int, Groups]:
        """Return the sum of differences over its peers for each client's rows."""
        self.rows = {reply.client: len(reply.groups[PROPOSED]["rows"]) for reply in replies}
        proposing = [reply for reply in replies if self.rows[reply.client]]
        if not proposing or len(self.clients) < 2:
            return {}
        rows = {str(reply.client): reply.groups[PROPOSED]["rows"] for reply in proposing}
        owners = {str(reply.client): reply.groups[OWNERS]["rows"] for reply in proposing}
        total = self.request("judge", {PROPOSED: rows, OWNERS: owners})[APART]
        return {int(i): {APART: {"sum": total[i].astype(self.cfg.dtype)}} for i in rows}

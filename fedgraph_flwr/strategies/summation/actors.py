"""Sums that the actors that hold clients compute (``ray.aggregate``).

`fedgraph_flwr.numerics.partial_sums` says how. Methods need no change: their declared means and
sums have the same values as without it. Each client's numbers (scores, losses, failures) and other
groups arrive as usual.
"""

from collections.abc import Callable
from typing import Any

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.methods.uplink import Sum, sums
from fedgraph_flwr.numerics.partial_sums import Plan
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.round import Outcome
from fedgraph_flwr.strategies.schemas import Schemas
from fedgraph_flwr.strategies.summation.plain import Plain
from fedgraph_flwr.wire.messages import TRAIN, Arrays, Reply
from fedgraph_flwr.wire.reply_schema import ReplySchema


class Actors(Plain):
    """Sums over the cohort's training replies; other phases are summed by the server.

    Args:
        server: the run's server.
        schemas: what the method declares.
        grid: has the actors.

    Attributes:
        plan: what actors sum in the coming training replies; None: nothing.
    """

    __slots__ = ("grid", "plan", "schemas")

    def __init__(self, server: GraphStrategy, schemas: Schemas, grid: Any):
        super().__init__(server)
        self.schemas = schemas
        self.grid = grid
        self.plan: Plan | None = None

    def begin(self, phase: str, clients: list[int]) -> None:
        """Plan the sum of the next training replies."""
        if phase != TRAIN:
            return
        server = self.server
        wanted = self.schemas.of(TRAIN, clients[0]).groups if clients else {}
        shares: dict[int, dict[str, float]] = {
            server.clients[client].node_id: {} for client in clients
        }
        declared = server.uplink_of[TRAIN]
        groups = [group for group in sums(declared) if group in wanted]
        for group in groups:
            weights = server.counting.weights_of(declared[group], clients)
            total = sum(weights)
            for share, weight in zip(shares.values(), weights, strict=True):
                share[group] = weight / total if total else 0.0
        self.plan = Plan({group: wanted[group] for group in groups}, shares)

    def sending(self, phase: str) -> None:
        """Let the actors sum the replies."""
        if phase == TRAIN and self.plan:
            self.grid.add_up(self.plan)

    def schema(self, phase: str, declared: Callable[[], ReplySchema]) -> ReplySchema:
        """Return the schema of the part of a reply that still arrives."""
        wanted = declared()
        if phase != TRAIN or not self.plan:
            return wanted
        arriving = {
            group: fields
            for group, fields in wanted.groups.items()
            if group not in self.plan.groups
        }
        return ReplySchema(arriving, wanted.numbers)

    def received(self, phase: str, outcome: Outcome) -> None:
        """Count a client's arrays as sent, although they never left its process."""
        if phase == TRAIN and self.plan:
            outcome.groups.update(self.grid.added.bytes)

    def open_sums(self, phase: str, replies: list[Reply]) -> dict[str, Arrays]:
        """Return the mean or sum of each group over the clients that replied.

        Raises:
            RunFailed: the server refuses the reply of a client whose arrays are already in the sum.
        """
        if phase != TRAIN:
            return super().open_sums(phase, replies)
        server = self.server
        plan = self.plan
        self.plan = None
        total = self.grid.added
        self.grid.add_up(None)
        if plan is None:
            return {}
        clients = {server.clients[reply.client].node_id: reply.client for reply in replies}
        if unaccepted := sorted(set(total.nodes) - clients.keys()):
            (client,) = (
                index for index, info in server.clients.items() if info.node_id == unaccepted[0]
            )
            raise RunFailed(
                f"client {client}: {server.failed.get(client, 'no reply')}; its model is already"
                " part of a partial sum: set ray.aggregate=false to drop such clients"
            )
        declared = server.uplink_of[TRAIN]
        added = {
            group: len(plan.shares) for group in plan.groups if isinstance(declared[group], Sum)
        }
        return total.means(plan.shares, plan.groups, added)

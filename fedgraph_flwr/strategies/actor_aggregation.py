"""The server's side of sums computed by the actors that hold clients (``ray.aggregate``, `fedgraph_flwr.numerics.partial_sums`).

Methods need no change: their declared means and sums have the same values as without it. Each client's numbers (scores,
losses, failures) and other groups arrive as usual.
"""

from typing import Any

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.methods.bases import GraphStrategy
from fedgraph_flwr.methods.uplink import Sum, sums
from fedgraph_flwr.numerics.partial_sums import Plan
from fedgraph_flwr.strategies.exchange import Outcome
from fedgraph_flwr.strategies.weighting import of_reducer
from fedgraph_flwr.wire.messages import TRAIN, Arrays, Reply
from fedgraph_flwr.wire.reply_schema import ReplySchema


class ActorAggregation:
    """Sums over the cohort's training replies, for groups that the method declares as a mean or sum.

    Args:
        strategy: the strategy whose clients are summed.
        grid: the grid whose actors compute the sums.
    """

    def __init__(self, strategy: GraphStrategy, grid: Any):
        self.strategy, self.grid = strategy, grid
        self.plan: Plan | None = None

    def begin(self) -> None:
        """Let actors sum the next training replies."""
        method, cohort = self.strategy, self.strategy.cohort
        wanted = method.reader.schema(TRAIN, cohort[0]).groups if cohort else {}
        shares: dict[int, dict[str, float]] = {method.clients[client].node_id: {} for client in cohort}
        declared = method.uplink_of[TRAIN]
        groups = [group for group in sums(declared) if group in wanted]
        for group in groups:
            counts = of_reducer(method, declared[group], cohort)
            total = sum(counts)
            for own, count in zip(shares.values(), counts, strict=True):
                own[group] = count / total if total else 0.0
        self.plan = Plan({group: wanted[group] for group in groups}, shares)
        self.grid.add_up(self.plan)

    def left(self, phase: str, wanted: ReplySchema) -> ReplySchema:
        """Return the schema of the part of a reply that still arrives."""
        if phase != TRAIN or not self.plan:
            return wanted
        return ReplySchema(
            {g: fields for g, fields in wanted.groups.items() if g not in self.plan.groups}, wanted.numbers
        )

    def book(self, phase: str, outcome: Outcome) -> None:
        """Count a client's arrays as sent, although they never left its process."""
        if phase == TRAIN and self.plan:
            outcome.groups.update(self.grid.added.bytes)

    def reveal(self, replies: list[Reply]) -> dict[str, Arrays]:
        """Return the mean or sum of each group over the clients that replied.

        Raises:
            RunFailed: the server refuses the reply of a client whose arrays are already in the sum.
        """
        plan, self.plan, total = self.plan, None, self.grid.added
        self.grid.add_up(None)
        if plan is None:
            return {}
        clients = {self.strategy.clients[reply.client].node_id: reply.client for reply in replies}
        if odd := sorted(set(total.nodes) - clients.keys()):
            (client,) = (index for index, info in self.strategy.clients.items() if info.node_id == odd[0])
            raise RunFailed(
                f"client {client}: {self.strategy.failed.get(client, 'no reply')}; its model is already part of a partial sum:"
                " set ray.aggregate=false to drop such clients"
            )
        declared, count = self.strategy.uplink_of[TRAIN], len(plan.shares)
        added = {group: count for group in plan.groups if isinstance(declared[group], Sum)}
        return total.means(plan.shares, plan.groups, added) if replies else {}

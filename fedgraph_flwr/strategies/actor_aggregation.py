"""The server's side of sums that are taken where clients live (``ray.aggregate``, `fedgraph_flwr.numerics.partial_sums`).

Methods do not know of it: as with secure aggregation, where they read one client's arrays they are given the mean over all that
answered, weighted by `sum_weights`. Each client's numbers (scores, losses, failures) arrive as ever.
"""

from typing import TYPE_CHECKING, Any

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.numerics.partial_sums import Plan
from fedgraph_flwr.strategies.exchange import Outcome
from fedgraph_flwr.wire.messages import TRAIN, Reply
from fedgraph_flwr.wire.reply_schema import ReplySchema

if TYPE_CHECKING:
    from fedgraph_flwr.strategies.base import GraphStrategy


class ActorAggregation:
    """Sums over the cohort's training answers, of what the method declares as `sums`.

    Args:
        strategy: whose clients are added up.
        grid: whose actors add.
    """

    def __init__(self, strategy: "GraphStrategy", grid: Any):
        self.strategy, self.grid = strategy, grid
        self.plan: Plan | None = None

    def begin(self) -> None:
        """The next training answers are added up."""
        method, cohort = self.strategy, self.strategy.cohort
        wanted = method.schema(TRAIN, cohort[0]).groups if cohort else {}
        counts = method.sum_weights(cohort)
        total = sum(counts)
        nodes = [method.clients[client].node_id for client in cohort]
        shares = {node: count / total if total else 0.0 for node, count in zip(nodes, counts, strict=True)}
        self.plan = Plan({group: wanted[group] for group in wanted if group in method.sums}, shares)
        self.grid.add_up(self.plan)

    def left(self, phase: str, wanted: ReplySchema) -> ReplySchema:
        """What of an answer still arrives."""
        if phase != TRAIN or not self.plan:
            return wanted
        return ReplySchema(
            {g: fields for g, fields in wanted.groups.items() if g not in self.plan.groups}, wanted.numbers
        )

    def book(self, phase: str, outcome: Outcome) -> None:
        """A client's arrays count as sent, though no process but its own has seen them."""
        if phase == TRAIN and self.plan:
            outcome.up += self.grid.added.bytes

    def reveal(self, replies: list[Reply]) -> list[Reply]:
        """The answers, each with the means over all of them.

        Raises:
            RunFailed: the server refuses the answer of a client whose arrays are in the sum.
        """
        plan, self.plan, total = self.plan, None, self.grid.added
        self.grid.add_up(None)
        if plan is None:
            return replies
        clients = {self.strategy.clients[reply.client].node_id: reply.client for reply in replies}
        if odd := sorted(set(total.nodes) - clients.keys()):
            (client,) = (index for index, info in self.strategy.clients.items() if info.node_id == odd[0])
            raise RunFailed(
                f"client {client}: {self.strategy.failed.get(client, 'no answer')}; ray.aggregate=true has added up"
                f" what it trained"
                " before that was known: use ray.aggregate=false"
            )
        means = total.means(plan.shares, plan.groups) if replies else {}
        return [Reply(reply.client, {**reply.groups, **means}, reply.metrics, reply.message) for reply in replies]

"""Masked terms in rounds that every node computes: the exchanges that follow an opened sum, which the node serves."""

from collections.abc import Collection
from typing import Any

from fedgraph_flwr.methods.downlink import Input
from fedgraph_flwr.secure.protection.masked import Masked
from fedgraph_flwr.secure.secagg import PUBLISH, SECAGG, STEPS
from fedgraph_flwr.secure.verified import EXCHANGES, PROPOSAL


class Verified(Masked):
    """Clients mask their terms, and every node opens the sums (`fedgraph_flwr.secure.verified`)."""

    exchanges = (*STEPS, *EXCHANGES)
    verified = True
    part: Any = None
    """The node's state machine, once the run has begun there (`fedgraph_flwr.node.verified`)."""

    def downlink(self, summed: Collection[str]) -> dict[str, dict[str, Input]]:
        """Add what a node opens and certifies."""
        held = Input("terms and shares of a secure sum, and signatures of what members opened")
        state = Input("the next state of the server's half, by path")
        inputs = super().downlink(summed)
        return inputs | {
            phase: {**inputs.get(phase, {}), SECAGG: held, PROPOSAL: state} for phase in (PUBLISH, *EXCHANGES)
        }

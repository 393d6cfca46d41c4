"""A client that answers wrongly, in rounds of its own; it travels with the app to the nodes of a fleet."""

import os
import time
from typing import Any

import numpy as np

from fedgraph_flwr.clients.base import GraphClient, ReplyContent
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.wire.messages import MODEL

WRONG = {(1, 0): "error", (1, 1): "nan", (2, 1): "shapes", (2, 2): "names", (3, 0): "phase"}
"""By round and client; one client of three is right in each of the first two rounds."""


class Misbehaving(GraphClient):
    """FedAvg's client but for its replies to ``train`` in `WRONG`."""

    def train(self) -> float:
        """Raises before it trains, as the inline engine keeps what a failed training has changed."""
        if WRONG.get((self.server_round, self.graph.client)) == "error":
            raise RuntimeError("out of order")
        return super().train()


protected = node_clients.protected


def wrong_reply(client: GraphClient, name: str, reply: ReplyContent, *rest: Any) -> ReplyContent:
    """As requested, or wrongly."""
    wrong = WRONG.get((client.server_round, client.graph.client), "")
    if not isinstance(client, Misbehaving) or name != "train" or not wrong:
        return protected(client, name, reply, *rest)
    if wrong == "phase":
        return {}, client.describe()
    sent, numbers = protected(client, name, reply, *rest)
    if wrong == "nan":
        next(iter(sent[MODEL].values())).flat[0] = np.nan
    elif wrong == "shapes":
        sent[MODEL] = {key: np.ravel(array)[:-1] for key, array in sent[MODEL].items()}
    elif wrong == "names":
        sent[MODEL] = {f"x{key}": array for key, array in sent[MODEL].items()}
    return sent, numbers


node_clients.protected = wrong_reply


class Raising(GraphClient):
    """Client 1 raises what is no sentence for a user."""

    def train(self) -> float:
        """Fails."""
        if self.graph.client == 1:
            raise ZeroDivisionError("on purpose")
        return super().train()


class Falling(GraphClient):
    """Client 1 leaves round 2 when it is to train: with secure sums it waits to be killed, else it gives an error."""

    def train(self) -> float:
        """Falls, or trains."""
        if (self.server_round, self.graph.client) == (2, 1):
            if self.cfg.privacy.secagg:
                time.sleep(3600)
            raise RunFailed("the power is out")
        return super().train()


class Boasting(GraphClient):
    """Client 1 trains, and reports more nodes than before."""

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Trains."""
        trained, nodes, numbers = super().fit(parameters, config)
        return trained, nodes + (self.graph.client == 1), numbers


class Unfiled(GraphClient):
    """Client 1 has no room for its state after round 1."""

    @property
    def secrets(self) -> tuple[str, ...]:  # type: ignore[override]
        """None, or full: only a checkpoint reads them."""
        if self.graph.client == 1 and self.server_round > 1:
            raise FedGraphError("cannot write client 1's state: No space left on device")
        return ()


class Dying(GraphClient):
    """Client 1 takes its process with it."""

    def train(self) -> float:
        """Dies."""
        if self.graph.client == 1:
            os._exit(1)
        return super().train()

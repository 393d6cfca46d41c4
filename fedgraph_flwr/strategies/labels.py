"""The server's side of `fedgraph_flwr.methods.labels`: one exchange before round 1."""

from typing import TYPE_CHECKING

import numpy as np

from fedgraph_flwr.methods.labels import LABELS, weights
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import ArrayField, ReplySchema

if TYPE_CHECKING:
    from fedgraph_flwr.strategies.base import GraphStrategy


def schema(method: "GraphStrategy") -> ReplySchema:
    """Of a client's answer: its classes' shares."""
    return ReplySchema({LABELS: {"share": ArrayField((method.agreed("num_classes"),), "float64", low=0, high=1)}})


def class_weights(method: "GraphStrategy") -> Arrays:
    """The weights ``w`` [C] of all clients together."""

    def num_train(clients: list[int]) -> list[float]:
        return [float(method.clients[client].description["num_train"]) for client in clients]

    replies = method.ask_sums(LABELS, {}, num_train)
    nodes = num_train([reply.client for reply in replies])
    told = np.stack([reply.groups[LABELS]["share"] for reply in replies])
    return {"w": weights(np.average(told, axis=0, weights=nodes if any(nodes) else None))}

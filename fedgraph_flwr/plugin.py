"""Imports for authors of methods; see docs/extend.md.

from fedgraph_flwr.plugin import ARRAYS, MODEL, TRAIN, ArrayField, GraphClient, GraphStrategy, Mean, Sum
"""

from fedgraph_flwr.clients.base import Batch, GraphClient, phase
from fedgraph_flwr.clients.client_part import ClientPart
from fedgraph_flwr.config import at_least, choice, number, one_of
from fedgraph_flwr.config.parts import Part
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.downlink import Input, Stages
from fedgraph_flwr.methods.uplink import (
    ARRAYS,
    Exchanges,
    Individual,
    LateMean,
    Mean,
    Once,
    Public,
    Relay,
    Sum,
    every_model,
)
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.server_part import ServerPart
from fedgraph_flwr.wire.messages import METRICS, MODEL, TRAIN, Arrays
from fedgraph_flwr.wire.reply_schema import ArrayField, NumberField

__all__ = [
    "ARRAYS",
    "METRICS",
    "MODEL",
    "TRAIN",
    "ArrayField",
    "Arrays",
    "Batch",
    "ClientPart",
    "Exchanges",
    "FedGraphError",
    "GraphClient",
    "GraphStrategy",
    "Individual",
    "Input",
    "LateMean",
    "Mean",
    "NumberField",
    "Once",
    "Part",
    "Public",
    "Reduced",
    "Relay",
    "ServerPart",
    "Stages",
    "Sum",
    "at_least",
    "choice",
    "every_model",
    "number",
    "one_of",
    "phase",
]

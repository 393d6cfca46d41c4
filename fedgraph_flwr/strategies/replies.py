"""Reading of replies: their schemas, and the checks that no schema can express."""

from copy import deepcopy
from functools import partial

from flwr.app import Message

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation.metrics import SPLITS
from fedgraph_flwr.strategies.connection import difference
from fedgraph_flwr.strategies.schemas import Schemas, exactly
from fedgraph_flwr.strategies.scoring import check_scores
from fedgraph_flwr.strategies.summation.interface import Summation
from fedgraph_flwr.wire.messages import DESCRIBE, METRICS, SPEAKS, Reply, check_version
from fedgraph_flwr.wire.reply_schema import LARGEST, NumberField, ReplySchema


class ReplyReader:
    """Reads replies for a strategy.

    Args:
        schemas: what the strategy declares.
        summation: how the run adds up what clients send.

    Attributes:
        method: the strategy.
        counted: number of nodes on which each client was first scored, by split.
    """

    def __init__(self, schemas: Schemas, summation: Summation):
        self.schemas = schemas
        self.summation = summation
        self.method = schemas.method
        self.cfg = schemas.cfg
        self.counted: dict[int, dict[str, list[float]]] = {}

    def note_counts(self, reply: Reply) -> None:
        """Keep the numbers of nodes on which a client was first scored; later replies must have the same."""
        counts = {
            split: list(reply.metrics[f"{split}-count"])
            for split in SPLITS
            if f"{split}-count" in reply.metrics
        }
        self.counted.setdefault(reply.client, counts)

    def read(self, phase: str, message: Message, client: int | None) -> Reply:
        """Return the reply in a message.

        Args:
            phase: the requested phase.
            message: the message as received.
            client: who sent it; None: a node whose client index is not known yet.

        Raises:
            FedGraphError: it does not match the phase's schema.
        """
        method = self.method
        who = f"{'node' if client is None else 'client'} {message.metadata.src_node_id if client is None else client}"
        index = NumberField(0, LARGEST, whole=True) if client is None else exactly(client)
        wanted = self.summation.schema(phase, partial(self.schemas.of, phase, client))
        wanted = wanted | ReplySchema(numbers={"client": index})
        replied = f"{who} replied to phase '{phase}'"
        if phase == DESCRIBE:
            record = message.content.get(METRICS)
            check_version(1 if record is None else record.get(SPEAKS, 1), who, "server")
        groups, numbers = wanted.read(message.content, replied)
        numbers.pop(SPEAKS, None)
        check_scores(numbers, {} if client is None else self.counted.get(client, {}), replied)
        reply = Reply(numbers.pop("client"), groups, numbers, message)
        known = (
            method.clients.get(reply.client)
            if phase == DESCRIBE and client is not None
            else None
        )
        if known and (differs := difference(known.description, numbers)):
            raise FedGraphError(f"{replied} with a different description: {differs}")
        readable = self.summation.readable(phase, reply)
        method.verify(phase, readable, deepcopy(method.facts(phase)))
        self.summation.verify(phase, reply)
        return reply

"""One object a message: what travels on a fleet, packed; and when the server looks for it.

Flower moves a message as a tree of objects, two for each array and one for each record, and each costs requests at the SuperLink.
Small messages go as one record of bytes: Flower's own encoding of all the others. What is read of an answer, how it is checked,
and what the ledger of bytes counts, is what was packed.
"""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Encoded
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedgraph_flwr.errors import FedGraphError, first_line
from fedgraph_flwr.fleet.flower_patches import Rhythm
from fedgraph_flwr.wire.messages import payload_bytes

PACKED = "fedgraph-packed"
MOST = 4 * 2**20
"""Bytes of a message that is packed at most; Flower moves larger arrays in pieces, side by side."""


def packed(content: RecordDict) -> RecordDict:
    """A content as one record; a large one as it is, with an empty record that says that the sender reads packed ones."""
    if payload_bytes(content) > MOST:
        return RecordDict({**content, PACKED: ConfigRecord()})
    return RecordDict({PACKED: ConfigRecord({"content": recorddict_to_proto(content).SerializeToString()})})


def unpacked(content: RecordDict) -> RecordDict:
    """What `packed` was given.

    Raises:
        FedGraphError: the bytes are no content.
    """
    record = content.config_records[PACKED]
    if "content" not in record:
        return RecordDict({key: value for key, value in content.items() if key != PACKED})
    try:
        encoded = Encoded()
        encoded.ParseFromString(record["content"])
        return recorddict_from_proto(encoded)
    except Exception as error:  # whatever foreign bytes may cause
        raise FedGraphError(f"a packed message cannot be read ({first_line(error)})") from error


class PackingGrid(Grid):
    """Flower's grid on a fleet, over which messages travel packed; who looks for answers waits until some may be there.

    Args:
        grid: Flower's.
    """

    blocks = True

    def __init__(self, grid: Grid):
        self.grid = grid
        self.rhythms = defaultdict[str, Rhythm](Rhythm)
        self.rhythm = Rhythm()
        self.look = 0.0

    def set_run(self, run: Run) -> None:
        """As Flower's."""
        self.grid.set_run(run)

    @property
    def run(self) -> Run:
        """As Flower's."""
        return self.grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """As Flower's."""
        return self.grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """As Flower's."""
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pack, then send."""
        outgoing = list(messages)
        for message in outgoing:
            message.content = packed(message.content)
        sent = self.grid.push_messages(outgoing)
        if outgoing:
            self.rhythm = self.rhythms[outgoing[0].metadata.message_type]
            self.rhythm.begin(time.monotonic())
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Wait, receive, then unpack; an answer that cannot be unpacked is an error of its node.

        With a thousand nodes a look takes Flower a while: four times as long it may work undisturbed.
        """
        time.sleep(min(max(self.rhythm.pause(time.monotonic()), 4 * self.look), 1.0))
        asked = time.monotonic()
        arrived = list(self.grid.pull_messages(message_ids))
        if arrived:
            self.rhythm.came(time.monotonic())
        else:
            self.look = time.monotonic() - asked
        return [_opened(message) for message in arrived]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """As Flower's."""
        outgoing = list(messages)
        for message in outgoing:
            message.content = packed(message.content)
        return [_opened(message) for message in self.grid.send_and_receive(outgoing, timeout=timeout)]


def _opened(message: Message) -> Message:
    if message.has_content() and PACKED in message.content:
        with contextlib.suppress(FedGraphError):  # as it is, no schema takes it: its sender is named for that
            message.content = unpacked(message.content)
    return message


def answer_packed(respond: Callable[[Message, Context], Message], message: Message, context: Context) -> Message:
    """A client's answer to a packed message, packed.

    Raises:
        FedGraphError: the server's bytes are no content.
    """
    message.content = unpacked(message.content)
    reply = respond(message, context)
    if reply.has_content():
        reply.content = packed(reply.content)
    return reply

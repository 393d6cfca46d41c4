"""Packing of messages on a fleet into one object each, and the schedule of polls for them.

Flower moves a message as a tree of objects, two per array and one per record, and each costs requests at the SuperLink. Small
messages are sent as one record of bytes, in Flower's encoding. Reading, checking and counting of bytes apply to the unpacked
content.
"""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Encoded
from flwr.serverapp import Grid

from fedgraph_flwr.errors import FedGraphError, first_line
from fedgraph_flwr.fleet.flower_patches import PollSchedule
from fedgraph_flwr.fleet.relay import Relay
from fedgraph_flwr.wire.messages import payload_bytes

PACKED = "fedgraph-packed"
MAX_BYTES = 4 * 2**20
"""Maximum size of a packed message; Flower moves larger arrays in parallel chunks."""


def packed(content: RecordDict) -> RecordDict:
    """Pack a content into one record; a large one only gets an empty record that marks the sender as able to unpack."""
    if payload_bytes(content) > MAX_BYTES:
        return RecordDict({**content, PACKED: ConfigRecord()})
    return RecordDict({PACKED: ConfigRecord({"content": recorddict_to_proto(content).SerializeToString()})})


def unpacked(content: RecordDict) -> RecordDict:
    """Undo `packed`.

    Raises:
        FedGraphError: the bytes are not an encoded content.
    """
    record = content.config_records[PACKED]
    if "content" not in record:
        return RecordDict({key: value for key, value in content.items() if key != PACKED})
    try:
        encoded = Encoded()
        encoded.ParseFromString(record["content"])
        return recorddict_from_proto(encoded)
    except Exception as error:  # foreign bytes can fail in any way
        raise FedGraphError(f"cannot read a packed message ({first_line(error)})") from error


class PackingGrid(Relay):
    """Flower's grid on a fleet with packed messages and scheduled polls for replies.

    Args:
        grid: Flower's grid.
    """

    blocks = True

    def __init__(self, grid: Grid):
        super().__init__(grid)
        self.schedules = defaultdict[str, PollSchedule](PollSchedule)
        self.schedule = PollSchedule()
        self.look = 0.0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pack and send messages."""
        outgoing = list(messages)
        for message in outgoing:
            message.content = packed(message.content)
        sent = self.grid.push_messages(outgoing)
        if outgoing:
            self.schedule = self.schedules[outgoing[0].metadata.message_type]
            self.schedule.begin(time.monotonic())
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Wait, receive and unpack; a reply that cannot be unpacked is an error of its node.

        With a thousand nodes a poll takes Flower a while, so the next one waits four times as long.
        """
        time.sleep(min(max(self.schedule.pause(time.monotonic()), 4 * self.look), 1.0))
        began = time.monotonic()
        arrived = list(self.grid.pull_messages(message_ids))
        if arrived:
            self.schedule.came(time.monotonic())
        else:
            self.look = time.monotonic() - began
        return [_opened(message) for message in arrived]


def _opened(message: Message) -> Message:
    if message.has_content() and PACKED in message.content:
        with contextlib.suppress(FedGraphError):  # still packed, it fails its schema, which names the sender
            message.content = unpacked(message.content)
    return message


def reply_packed(respond: Callable[[Message, Context], Message], message: Message, context: Context) -> Message:
    """Return a client's packed reply to a packed message.

    Raises:
        FedGraphError: the server's bytes are not an encoded content.
    """
    message.content = unpacked(message.content)
    reply = respond(message, context)
    if reply.has_content():
        reply.content = packed(reply.content)
    return reply

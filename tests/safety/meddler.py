"""A coordinator between a server that follows the protocol and members of a verified run of several sums per round."""

import json
import random
from collections.abc import Callable
from pathlib import Path

from flwr.app import ArrayRecord, Context, Error, Message

from fedgraph_flwr.data.graph import read_header
from fedgraph_flwr.secure.beginning import BEGINNING
from fedgraph_flwr.secure.masked import digest
from fedgraph_flwr.secure.secagg import SECAGG, STEPS
from fedgraph_flwr.secure.verified import EXCHANGES
from fedgraph_flwr.wire.messages import DESCRIBE, FAILED, from_record, groups_of, to_record
from tests.nodes import over_the_wire
from tests.safety.schedules import Facts
from tests.safety.verified_schedules import flat_names

EXTRA = ("repeat", "replay", "swap", "array", "phase", "exchange")
"""What is sent besides a message, before it."""

LOST = ("drop", "late")
"""What ends a round: a message or its reply is lost."""

Respond = Callable[[Message, Context], Message]


class Meddler:
    """Sends other messages in between, loses some, and checks what must hold at members after each.

    Args:
        state: folder with the members' state folders.
        respond: what a node does.
        seed: of what happens.

    Attributes:
        rate: share of messages at which something happens.
        refused: messages that a member refused.
        rounds: the last round that members certified.
        broken: what did not hold.
    """

    def __init__(self, state: Path, respond: Respond, seed: int):
        self.state, self.respond, self.rate = state, respond, 0.0
        self.random, self.facts = random.Random(seed), Facts()
        self.sent: list[Message] = []
        self.refused = self.rounds = 0
        self.broken: list[Exception] = []

    def __call__(self, message: Message, context: Context) -> Message:
        """Reply to a message of the server."""
        choose, phase = self.random, message.content["config"]["phase"]
        rate = 0.0 if phase in (DESCRIBE, *BEGINNING) else self.rate * (0.5 if phase in (*STEPS, *EXCHANGES) else 8)
        trouble = choose.choice(EXTRA * 12 + LOST) if choose.random() < rate else ""
        if trouble in EXTRA:
            self._deliver(self._other(trouble, message), context)
        self.sent = [*self.sent[-99:], over_the_wire(message)]
        if trouble == "drop":
            return Message(Error(FAILED, "lost"), reply_to=message)
        reply = self._deliver(message, context)
        return Message(Error(FAILED, "lost"), reply_to=message) if trouble == "late" else reply

    def _other(self, trouble: str, message: Message) -> Message:
        """The message that is sent instead."""
        choose, copied = self.random, over_the_wire(message)
        if trouble == "replay" and self.sent:
            copied = over_the_wire(choose.choice(self.sent))
        if trouble == "swap":
            near = [one for one in self.sent if one.content["config"]["phase"] == message.content["config"]["phase"]]
            copied = over_the_wire(choose.choice([*near, message]))
        arrays = [name for name, part in copied.content.items() if isinstance(part, ArrayRecord) and len(part)]
        if trouble == "array" and arrays:
            group = choose.choice(arrays)
            values = from_record(copied.content[group])
            name = choose.choice(list(values))
            copied.content[group] = to_record({**values, name: values[name] + values[name].dtype.type(1)})
        if trouble == "phase" and self.sent:
            copied.content["config"]["phase"] = choose.choice(self.sent).content["config"]["phase"]
        if trouble == "exchange":
            copied.content["config"]["exchange"] = choose.choice([0, 1, 2, 3])
        copied.metadata.dst_node_id = message.metadata.dst_node_id
        return copied

    def _deliver(self, message: Message, context: Context) -> Message:
        reply = self.respond(message, context)
        self.refused += reply.has_error()
        if not reply.has_error():
            try:
                agreement = json.loads(str(context.run_config["config"]))["agreement"]
                self._check(message, reply, agreement.replace("/", "-")[32:])
            except Exception as error:  # which the server would take for a node's failure
                self.broken.append(error)
        return reply

    def _check(self, message: Message, reply: Message, run: str) -> None:
        """Check that the member has signed one thing at each place, and that all members opened the same sums."""
        config, client = message.content["config"], message.metadata.dst_node_id - 1
        folder = self.state / f"state_{client}" / f"boosting-{run}" / f"client_{client:04d}"
        if not (folder / "verified.json").is_file():
            return
        record, last = json.loads((folder / "verified.json").read_text())["verified"], folder / "last.safetensors"
        later = read_header(last)[1].get("record", {}) if last.is_file() else {}
        record = later if later.get("writes", 0) > record["writes"] else record
        term, place = record["term"], (client, run, record["before"])
        if term:
            self.facts.only("two statements at one position", (term["held"], term["own"]), *place)
        if term and term["listed"]:
            self.facts.only("two lists at one position", term["listed"], *place)
        if record["signed"]:
            self.facts.only("two certificates at one position", record["signed"], *place)
        opened = [phase for phase, _ in record["opened"]]
        self.facts.only("other sums were opened", record["before"], run, record["round"], *opened)
        self.rounds = max(self.rounds, record["round"])
        phase, groups = config["phase"], groups_of(reply.content)
        at = run, config["round"], phase, config.get("exchange", 0)
        if groups and phase not in (DESCRIBE, *EXCHANGES):
            self.facts.only("two replies at one place", digest(flat_names(groups)), client, *at)
        if phase not in (DESCRIBE, *BEGINNING, *STEPS, *EXCHANGES):
            asked = {name: group for name, group in groups_of(message.content).items() if name != SECAGG}
            self.facts.only("two requests of one sum", digest(flat_names(asked)), *at)

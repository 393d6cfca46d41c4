"""The exchanges of a running method: messages through the grid, whose costs the recorder receives."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.methods.labels import CLASS_WEIGHTS
from fedgraph_flwr.methods.uplink import LateMean, sums
from fedgraph_flwr.secure.secagg import SECAGG
from fedgraph_flwr.store.recorder import Recorder
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.exchange import Exchange, exchange, failure_lines, split, with_own
from fedgraph_flwr.strategies.reducing import Reduced, check_public
from fedgraph_flwr.strategies.replies import ReplyReader
from fedgraph_flwr.strategies.round import GroupsFor, Outcome
from fedgraph_flwr.strategies.schemas import Schemas
from fedgraph_flwr.strategies.summation import Summation, summation_of
from fedgraph_flwr.strategies.summation.plain import late_mean
from fedgraph_flwr.wire.messages import (
    CONFIG,
    DESCRIBE,
    EVALUATE,
    MODEL,
    PROTOCOL,
    SPEAKS,
    TRAIN,
    Reply,
    pack,
    to_record,
)

_TYPES = {TRAIN: MessageType.TRAIN, EVALUATE: MessageType.EVALUATE}


class Live(Exchange):
    """The exchanges of one run. No member can be replaced.

    Args:
        strategy: the method's rounds.
        grid: joins the server with its nodes.
        recorder: receives the run's results.

    Attributes:
        summation: how this run adds up what clients send.
        reader: reads replies by their schemas.
    """

    __slots__ = ("grid", "reader", "recorder", "strategy", "summation")

    def __init__(self, strategy: GraphStrategy, grid: Grid, recorder: Recorder):
        schemas = Schemas(strategy)
        folder = recorder.folder if strategy.cfg.checkpoint_every else None
        self.strategy = strategy
        self.grid = grid
        self.recorder = recorder
        self.summation: Summation = summation_of(strategy, schemas, grid, folder)
        self.reader = ReplyReader(schemas, self.summation)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a part once.

        Raises:
            FedGraphError: a method replaces it.
        """
        if hasattr(self, name):
            raise FedGraphError(
                f"a method replaces '{name}' of the exchanges of a run: define Mean and Sum in"
                " uplink, whose sums the run protects"
            )
        super().__setattr__(name, value)

    def bind(self, clients: Mapping[int, ClientInfo]) -> None:
        """Note which node each of these clients is, in addition to those that are known."""
        self.strategy.bind(clients)
        self.recorder.nodes = {
            client: info.node_id for client, info in self.strategy.clients.items()
        }
        self.reader.schemas.forget()

    # --- a method's requests ----------------------------------------------------------------------

    def request(
        self, phase: str, clients: list[int], groups: GroupsFor, config: Mapping[str, Any]
    ) -> Reduced:
        """Send a phase to clients, wait, and return the valid replies, reduced as the uplink declares."""
        if sums(self.strategy.uplink_of.get(phase, {})):
            inputs = self.summation.begin(phase, clients)
            if inputs is not None:
                clients = list(inputs)
                groups = with_own(groups, inputs)
        sent = self.messages(phase, clients, groups, config)
        return self.reduce(phase, self.enough_replies(phase, sent))

    def reduce(self, phase: str, replies: list[Reply]) -> Reduced:
        """Reduce the groups of replies as the uplink declares.

        Args:
            phase: name of the phase.
            replies: the valid replies, in client order.
        """
        declared = self.strategy.uplink_of.get(phase, {})
        check_public(phase, declared, replies)
        early = sums(declared) if replies else []
        values = self.summation.open_sums(phase, replies) if early else {}
        late = [group for group, reducer in declared.items() if isinstance(reducer, LateMean)]
        hidden = {*early, *late, *([SECAGG] if early else [])}
        shown = []
        for reply in replies:
            groups = {
                group: arrays for group, arrays in reply.groups.items() if group not in hidden
            }
            shown.append(self.summation.shown(phase, replace(reply, groups=groups)))
        kept = {group: [reply.groups[group] for reply in replies] for group in late}
        return Reduced(shown, values, kept, partial(late_mean, self.strategy), phase)

    # --- messages ---------------------------------------------------------------------------------

    def messages(
        self,
        phase: str,
        clients: list[int],
        groups: GroupsFor,
        scalars: Mapping[str, Any],
        model: ArrayRecord | None = None,
    ) -> list[Message]:
        """Return one message of a phase per client; arrays that all clients receive are encoded once."""
        method = self.strategy
        if phase != DESCRIBE:
            method.round.involved.update(clients)
        earlier = method.round.exchanges[phase]
        method.round.exchanges[phase] += 1
        record = self.config_record(
            phase, {**scalars, **({"exchange": earlier} if earlier else {})}
        )
        common, by_client = split(groups)
        weighted = method.class_weights and phase not in (DESCRIBE, EVALUATE)
        extra = pack({CLASS_WEIGHTS: method.class_weights} if weighted else {})
        extra.update(pack(self.summation.shared_groups(phase)))
        kind = _TYPES.get(phase, MessageType.QUERY)
        built = []
        for client in clients:
            content = RecordDict()
            if model is not None:
                content[MODEL] = (
                    to_record(method.models[client]) if client in method.models else model
                )
            content.update(common if by_client is None else pack(by_client.get(client, {})))
            content.update(extra)
            content[CONFIG] = record
            node = method.clients[client].node_id
            built.append(Message(content, dst_node_id=node, message_type=kind))
        return built

    def config_record(self, phase: str, scalars: Mapping[str, Any]) -> ConfigRecord:
        """Return the scalars of a message."""
        version = {SPEAKS: PROTOCOL} if phase == DESCRIBE else {}
        number = self.strategy.server_round
        return ConfigRecord({"phase": phase, "round": number, **version, **scalars})

    @property
    def filing(self) -> dict[str, Any]:
        """Scalars that make a client store its state after replying, if a checkpoint is due; else none."""
        due = self.strategy.round.checkpoint_due
        return {"checkpoint": True, "run": self.recorder.run_name} if due else {}

    def collect(
        self, phase: str, sent: Iterable[Message], timeout: float | None = None
    ) -> Outcome:
        """Send messages, wait for at most ``timeout`` seconds (default: ``strategy.timeout``), and record the cost."""
        method = self.strategy
        nodes = {info.node_id: index for index, info in method.clients.items()}
        longest = method.cfg.strategy.timeout if timeout is None else timeout
        read = partial(self.reader.read, phase)
        name = f"round {method.server_round}, {phase}"
        self.summation.sending(phase)
        outcome = exchange(self.grid, sent, nodes, read, longest, name)
        self.summation.received(phase, outcome)
        self.recorder.exchanged(
            phase,
            outcome.down,
            outcome.groups,
            outcome.seconds,
            outcome.failures,
            outcome.kinds,
        )
        method.round.failed.update(outcome.failures)
        method.round.silent.update(outcome.silent)
        if noted := getattr(self.grid, "exchanged", None):  # the status of a run on a fleet
            costs = {
                "seconds": outcome.seconds,
                "bytes_up": outcome.groups.total(),
                "bytes_down": outcome.down,
            }
            node_of = {index: node for node, index in nodes.items()}
            failed, kinds = (
                {node_of.get(who, who): value for who, value in values.items()}
                for values in (outcome.failures, outcome.kinds)
            )
            noted(phase, method.server_round, costs, failed, kinds)
        return outcome

    def enough_replies(self, phase: str, sent: Iterable[Message]) -> list[Reply]:
        """Send messages, wait, and return the valid replies, in client order.

        Raises:
            RunFailed: fewer valid replies than ``strategy.min_clients``, or any failure under
                ``on_failure=fail``.
        """
        outcome = self.collect(phase, sent)
        rules = self.strategy.cfg.strategy
        valid = len(outcome.replies)
        if outcome.failures and (rules.on_failure == "fail" or valid < rules.min_clients):
            lines = failure_lines(outcome.failures, {*outcome.failures})
            reasons = "; ".join(line.replace(" failed: ", ": ", 1) for line in lines)
            raise RunFailed(
                f"round {self.strategy.server_round}, {phase}: {valid} of {valid + len(outcome.failures)} clients sent a valid"
                f" reply, expected at least {rules.min_clients} (strategy.min_clients, on_failure={rules.on_failure}); "
                f"{reasons}"
            )
        return outcome.replies

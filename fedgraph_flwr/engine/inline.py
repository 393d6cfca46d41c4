"""The in-process engine: the same ServerApp, Strategy and ClientApp, joined by a `Grid` that calls the client directly."""

import itertools
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.serving import OnRound, serve

_run_ids = itertools.count(1)
_CRASHED = 0


class InlineGrid(Grid):
    """A grid whose nodes are calls of a `ClientApp` in this process.

    Args:
        app: the client app.
        num_nodes: virtual nodes; node i holds partition i - 1.
        run_config: what Flower would hand to the clients.
    """

    def __init__(self, app: ClientApp, num_nodes: int, run_config: dict[str, Any]):
        self.app = app
        self.run_id = next(_run_ids)
        self.contexts = {
            node: Context(
                run_id=self.run_id,
                node_id=node,
                node_config={"partition-id": node - 1, "num-partitions": num_nodes, "live": True},
                state=RecordDict(),
                run_config=run_config,
            )
            for node in range(1, num_nodes + 1)
        }
        self._replies: dict[str, Message] = {}
        self._message_ids = itertools.count(1)

    def set_run(self, run: Run) -> None:
        """Not needed: the run is this object's own."""

    @property
    def run(self) -> Run:
        """Run information."""
        return Run.create_empty(self.run_id)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """1..M."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hand each message to its client and keep the answer."""
        identifiers = []
        for message in messages:
            identifier = str(next(self._message_ids))
            message.metadata.__dict__["_message_id"] = identifier
            self._replies[identifier] = self._call(message)
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers that are there: all of them."""
        return [self._replies.pop(identifier) for identifier in list(message_ids) if identifier in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push, then pull."""
        return self.pull_messages(self.push_messages(messages))

    def _call(self, message: Message) -> Message:
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except (MemoryError, KeyboardInterrupt):
            raise
        except Exception as error:  # as Flower does: a client's crash is a reply, not the server's end
            return Message(Error(_CRASHED, f"{type(error).__name__}: {error}"), reply_to=message)


@contextmanager
def run_identity(run_id: int) -> Iterator[None]:
    """Flower refuses to make a `Message` outside a run; this names one, and puts the former back."""
    before = (TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id)
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run_id, 1, 0
    try:
        yield
    finally:
        TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id = before


@contextmanager
def _same_process_state() -> Iterator[None]:
    """Random streams and the thread count of the caller are as they were, afterwards."""
    streams, threads = (torch.get_rng_state(), np.random.get_state(), random.getstate()), torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_rng_state(streams[0])
        np.random.set_state(streams[1])
        random.setstate(streams[2])
        torch.set_num_threads(threads)


def run_inline(cfg: RunConfig, on_round: OnRound | None = None) -> dict[str, Any]:
    """Run a configuration in this process; returns the summary."""
    from fedgraph_flwr import partition
    from fedgraph_flwr.client_app import app
    from fedgraph_flwr.clients import session
    from fedgraph_flwr.config import to_json

    num_nodes = partition.num_clients(cfg)
    grid = InlineGrid(app, num_nodes, {"config": to_json(cfg), "overrides": ""})
    try:
        with run_identity(grid.run_id), _same_process_state():
            return serve(grid, cfg, on_round)
    finally:
        session.forget(grid.run_id)

"""In-process engine: the same ServerApp, Strategy and ClientApp, connected by a `Grid` that calls clients directly."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedgraph_flwr import partition
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import RunConfig, to_json
from fedgraph_flwr.engine.grid import (
    BaseGrid,
    forget,
    get_replies,
    get_reply,
    load_descriptions,
    run_identity,
    virtual_context,
)
from fedgraph_flwr.engine.process import freed_memory_kept, reduce_gc, same_process_state
from fedgraph_flwr.store.events import OnWait


class InlineGrid(BaseGrid):
    """Grid whose nodes are calls of a `ClientApp` in this process.

    Args:
        app: the client app.
        num_nodes: number of virtual nodes; node i holds partition i - 1.
        run_config: run configuration that Flower would pass to clients.
        stack: maximum number of clients computed as one.
    """

    def __init__(self, app: ClientApp, num_nodes: int, run_config: dict[str, Any], stack: int = 0):
        super().__init__(num_nodes, stack)
        self.app = app
        nodes = range(1, num_nodes + 1)
        self.contexts = {
            node: virtual_context(self.run_id, node, num_nodes, run_config) for node in nodes
        }
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes with a context."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass each message to its client and store the reply."""
        sent = list(messages)
        identifiers = [self._name(message) for message in sent]
        replies = get_replies([partial(self._call, message) for message in sent], self.stack)
        self._replies |= zip(identifiers, replies, strict=True)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies, which are all available."""
        return [
            self._replies.pop(identifier)
            for identifier in list(message_ids)
            if identifier in self._replies
        ]

    def _call(self, message: Message) -> Message:
        from fedgraph_flwr.node.clients import release_mapped

        context = self.contexts[message.metadata.dst_node_id]
        reply = get_reply(self.app, message, context)
        if len(self.contexts) > 1:
            release_mapped(context)
        return reply


@contextmanager
def open_grid(
    cfg: RunConfig, client: type[GraphClient], stack: int, on_wait: OnWait | None = None
) -> Iterator[InlineGrid]:
    """Serve a run's clients in this process during the block.

    Args:
        cfg: the prepared configuration.
        client: class of the clients.
        stack: maximum number of clients computed as one.
        on_wait: not called, since nothing starts.

    Yields:
        The grid of its nodes.
    """
    from fedgraph_flwr.node.app import app

    grid = InlineGrid(
        app, partition.num_clients(cfg), {"config": to_json(cfg), "overrides": ""}, stack
    )
    load_descriptions(grid, cfg, client)
    try:
        with run_identity(grid.run_id), same_process_state(), freed_memory_kept():
            reduce_gc()
            yield grid
    finally:
        forget(grid.run_id)

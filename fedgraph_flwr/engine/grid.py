"""Common parts of the simulation grids: virtual nodes for the clients of a run, and their replies."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedgraph_flwr import partition
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.description import client_description
from fedgraph_flwr.clients.state import files_models
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import located
from fedgraph_flwr.secure.protection import protection_of

_run_ids = itertools.count(1)
_CRASHED = 0


class BaseGrid(Grid):
    """Grid over nodes 1..M of a run; node i holds partition i - 1.

    Args:
        num_nodes: M.
        stack: see below.

    Attributes:
        descriptions: each client's description by index if known without a request, else empty.
        files_models: whether clients may have private state to store at the end of the run.
        stack: maximum number of clients of one process computed as one.
    """

    descriptions: Mapping[int, dict[str, Any]] = MappingProxyType({})
    files_models: bool = True

    def __init__(self, num_nodes: int, stack: int = 0):
        self.stack = stack
        self.run_id = next(_run_ids)
        self.num_nodes = num_nodes
        self._message_ids = itertools.count(1)

    def set_run(self, run: Run) -> None:
        """Do nothing: the grid defines its run."""

    @property
    def run(self) -> Run:
        """Run information."""
        return Run.create_empty(self.run_id)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message to a node."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return 1..M."""
        return range(1, self.num_nodes + 1)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Not offered: a run pushes messages, and pulls their replies."""
        raise NotImplementedError

    def _name(self, message: Message) -> str:
        """Assign an identifier to the message, which its reply will contain."""
        identifier = str(next(self._message_ids))
        message.metadata.__dict__["_message_id"] = identifier
        return identifier


def virtual_context(run_id: int, node: int, num_nodes: int, run_config: dict[str, Any]) -> Context:
    """Return the context of a node whose client stays in this process for the whole run."""
    node_config: dict[str, Any] = {
        "partition-id": node - 1,
        "num-partitions": num_nodes,
        "live": True,
    }
    return Context(
        run_id=run_id,
        node_id=node,
        node_config=node_config,
        state=RecordDict(),
        run_config=run_config,
    )


def get_reply(app: ClientApp, message: Message, context: Context) -> Message:
    """Return the client's reply; as in Flower, a crash becomes an error reply."""
    try:
        return app(message, context)
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:
        return Message(Error(_CRASHED, located(error)), reply_to=message)


def get_replies(calls: Sequence[Callable[[], Message]], stack: int) -> list[Message]:
    """Return the clients' replies in order; with ``stack``, up to that many are computed as one."""
    if stack < 2 or len(calls) < 2:
        return [call() for call in calls]
    from fedgraph_flwr.engine.stacking import run_stacked

    return run_stacked(calls, stack)


def forget(run_id: int) -> None:
    """Drop all state of a run in this process: its clients and their stacks."""
    from fedgraph_flwr.engine import stacking
    from fedgraph_flwr.node import clients as node_clients

    node_clients.forget(run_id)
    stacking.forget()


def load_descriptions(grid: BaseGrid, cfg: RunConfig, kind: type[GraphClient]) -> None:
    """Set the clients' descriptions of a grid from the partition's description, without building clients of this class."""
    plain = (
        kind.describe is GraphClient.describe
        and not cfg.adversary.clients
        and cfg.task.name == "nodes"
    )
    if not plain or (known := partition.outline(cfg)) is None:
        return
    sizes = {key: known.descriptions[key] for key in ("num_features", "num_classes")}
    sizes_of_clients = [
        {"num_train": number, **sizes} for number in known.descriptions["num_train"]
    ]
    described = partial(client_description, cfg, protection_of(cfg).private)
    grid.descriptions = dict(enumerate(map(described, known.nodes, sizes_of_clients)))
    grid.files_models = files_models(kind, cfg, **sizes)


@contextmanager
def run_identity(run_id: int) -> Iterator[None]:
    """Set a run identity during the block, since Flower creates no `Message` outside a run."""
    before = (TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id)
    TaskIdentity.run_id = run_id
    TaskIdentity.task_id = 1
    TaskIdentity.node_id = 0
    try:
        yield
    finally:
        TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id = before

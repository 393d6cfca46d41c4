"""What our own grids share: nodes that stand for the clients of one run, and how one of them answers a message."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import located

_run_ids = itertools.count(1)
_CRASHED = 0


class BaseGrid(Grid):
    """A grid over nodes 1..M of this run; node i holds partition i - 1.

    Args:
        num_nodes: M.
        stack: see below.

    Attributes:
        descriptions: each client's description by its index, where known without a request; else empty.
        files_models: whether clients may have something of their own to file when the run is over.
        stack: how many clients of one process are computed as one, at most.
    """

    descriptions: Mapping[int, dict[str, Any]] = MappingProxyType({})
    files_models: bool = True

    def __init__(self, num_nodes: int, stack: int = 0):
        self.stack = stack
        self.run_id = next(_run_ids)
        self.num_nodes = num_nodes
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
        return range(1, self.num_nodes + 1)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push, then pull until all have answered."""
        waiting = set(self.push_messages(messages))
        replies: list[Message] = []
        while waiting:
            arrived = list(self.pull_messages(waiting))
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            replies += arrived
        return replies

    def _name(self, message: Message) -> str:
        """Gives the message its identifier, which its reply names."""
        identifier = str(next(self._message_ids))
        message.metadata.__dict__["_message_id"] = identifier
        return identifier


def virtual_context(run_id: int, node: int, num_nodes: int, run_config: dict[str, Any]) -> Context:
    """The context of a node whose client lives in this process for the whole run."""
    node_config: dict[str, Any] = {"partition-id": node - 1, "num-partitions": num_nodes, "live": True}
    return Context(run_id=run_id, node_id=node, node_config=node_config, state=RecordDict(), run_config=run_config)


def answer(app: ClientApp, message: Message, context: Context) -> Message:
    """The client's reply; as Flower does, its crash is a reply too, not the server's end."""
    try:
        return app(message, context)
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:
        return Message(Error(_CRASHED, located(error)), reply_to=message)


def answer_all(answers: Sequence[Callable[[], Message]], stack: int) -> list[Message]:
    """What clients answer, in their order; where ``stack`` says so, up to that many are computed as one."""
    if stack < 2 or len(answers) < 2:
        return [own() for own in answers]
    from fedgraph_flwr.engine.stacking import run_stacked

    return run_stacked(answers, stack)


def forget(run_id: int) -> None:
    """Drop all that a run left in this process: its clients, and what was stacked of them."""
    from fedgraph_flwr.clients import session
    from fedgraph_flwr.engine import stacking

    session.forget(run_id)
    stacking.forget()


def load_descriptions(grid: BaseGrid, cfg: RunConfig) -> None:
    """Tell a grid what it would have to ask very many clients, from the description of their partition: none is built for it."""
    from fedgraph_flwr import partition
    from fedgraph_flwr.clients.base import GraphClient
    from fedgraph_flwr.clients.description import client_description
    from fedgraph_flwr.clients.private_state import files_models
    from fedgraph_flwr.runs.checks import client_class

    kind = client_class(cfg)
    plain = kind.describe is GraphClient.describe and not cfg.adversary.clients and cfg.task.name == "nodes"
    if not plain or (known := partition.outline(cfg)) is None:
        return
    columns = zip(known.nodes, known.told["num_train"], strict=True)
    sizes = {key: known.told[key] for key in ("num_features", "num_classes")}
    grid.descriptions = {
        i: client_description(cfg, nodes, {"num_train": trains, **sizes}) for i, (nodes, trains) in enumerate(columns)
    }
    grid.files_models = files_models(kind, cfg, **sizes)


@contextmanager
def run_identity(run_id: int) -> Iterator[None]:
    """Flower refuses to make a `Message` outside a run; this names one, and puts the former back."""
    before = (TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id)
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run_id, 1, 0
    try:
        yield
    finally:
        TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id = before

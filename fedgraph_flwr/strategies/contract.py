"""The interface of a strategy for the modules of this folder, so that they do not import it; and the base of a method's parts."""

# ruff: noqa: D102 (`base` documents each member)

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.methods.uplink import Groups as Reducers
from fedgraph_flwr.methods.uplink import Reducer
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.exchange import Outcome
from fedgraph_flwr.wire.messages import Arrays, Reply
from fedgraph_flwr.wire.reply_schema import ArrayField, ReplySchema


class Method(Protocol):
    """A strategy, as the modules of this folder use it; `fedgraph_flwr.strategies.base` documents each member."""

    cfg: RunConfig
    clients: dict[int, ClientInfo]
    cohort: list[int]
    failed: dict[int, str]
    server_round: int
    arrays: Arrays
    uplink_of: dict[str, Reducers]
    privacy: Any
    secure: Any
    actor_sums: Any
    scores_due: bool
    grid: Grid

    @property
    def addressed(self) -> list[int]: ...

    @property
    def cohort_size(self) -> int: ...

    def agreed(self, key: str) -> Any: ...

    def request(self, phase: str, groups: Any = None, clients: Iterable[int] | None = None) -> Any: ...

    def counts(self, key: str, clients: list[int]) -> list[float]: ...

    def drop(self, clients: Iterable[int]) -> None: ...

    def fields(self, phase: str, group: str, client: int | None) -> Mapping[str, ArrayField] | None: ...

    def model_of(self, client: int) -> Arrays: ...

    def reply_schema(self, phase: str, client: int | None) -> ReplySchema: ...

    def stage(self) -> Any: ...

    def verify(self, phase: str, reply: Reply) -> None: ...

    @property
    def buffers(self) -> set[str]: ...

    @property
    def class_counts(self) -> list[int]: ...

    def weights(self, clients: list[int]) -> list[float]: ...

    def weights_in(self, reducer: Reducer, clients: list[int]) -> list[float]: ...


class RunnableMethod(Method, Protocol):
    """A strategy, as the training loop uses it."""

    recorder: Any
    class_weights: Arrays
    counted: dict[int, dict[str, list[float]]]
    involved: set[int]
    judges: list[int]
    models: dict[int, Arrays]
    sent: Any
    silent: set[int]
    checkpoint_due: bool

    @property
    def min_clients(self) -> int: ...

    @property
    def filing(self) -> dict[str, Any]: ...

    @property
    def scores_first(self) -> bool: ...

    def before_train(self, arrays: Arrays) -> Any: ...

    def before_evaluate(self, arrays: Arrays) -> Any: ...

    def collect(self, phase: str, messages: Iterable[Message], timeout: float | None = None) -> Outcome: ...

    def config(self, phase: str, config: Mapping[str, Any]) -> ConfigRecord: ...

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]: ...

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]: ...

    def exchange(self, phase: str, messages: Iterable[Message]) -> Outcome: ...

    def forget_agreed(self) -> None: ...

    def initial_arrays(self) -> Arrays: ...

    def load(self, tree: Any) -> None: ...

    def messages(
        self, phase: str, clients: list[int], groups: Any, config: Mapping[str, Any], model: ArrayRecord | None = None
    ) -> list[Message]: ...

    def next_round(self, server_round: int) -> None: ...

    def nodes_of(self, replies: Iterable[Reply]) -> list[float] | None: ...

    def reduce(self, phase: str, replies: list[Reply]) -> Any: ...

    def releases_in(self, server_round: int) -> int: ...

    def save(self) -> Any: ...

    def send_beside(self, groups: Mapping[int, Mapping[str, Any]]) -> None: ...

    def setup(self) -> None: ...

    def step(self, arrays: Arrays, reduced: Any) -> Arrays: ...

    def groups_to_train(self, arrays: Arrays) -> Any: ...

    def advance(self, arrays: Arrays, reduced: Any) -> Arrays: ...


class Composed(Method, Protocol):
    """A strategy, as its parts use it."""

    memory: dict[str, Any]


class ServerPart:
    """One part of a method on the server; it stores its state in the strategy's `memory`."""

    def groups(self, server: Composed, arrays: Arrays) -> Mapping[int, Mapping[str, Any]]:
        """Groups of arrays that travel to each client of the cohort with the model."""
        return {}

    def step(self, server: Composed, arrays: Arrays, mean: Arrays, reduced: Any) -> Arrays:
        """Return the next shared parameters.

        Args:
            server: the strategy.
            arrays: the current parameters.
            mean: what the strategy, or the part before this one, makes of the replies.
            reduced: the replies to ``train``.
        """
        return mean

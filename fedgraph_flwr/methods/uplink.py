"""Uplink of a method: per phase and group, what leaves a client and what the server needs of it.

A method declares this once, in a function that both of its sides name as `uplink`:

    def uplink(cfg, params):
            return {TRAIN: {MODEL: Mean(origin=ARRAYS), "counts": Sum({"nodes": ArrayField(("C",), "float64")})}}

| reducer      | the server gets                                   | secagg   | DP  | robust rule | ray.aggregate |
|--------------|---------------------------------------------------|----------|-----|-------------|---------------|
| `Mean`       | Σ w y / Σ w, by weights known before the exchange | yes      | yes | yes         | yes           |
| `Sum`        | Σ y                                               | yes      | yes | yes         | yes           |
| `LateMean`   | a mean by weights computed from other uploads     | no       | no  | yes         | no            |
| `Relay`      | values that it forwards to other clients          | if sealed | no | not applied | not applied   |
| `Individual` | every client's values                             | no       | no  | not applied | not applied   |
| `Public`     | values that follow from the configuration         | yes      | yes | not applied | not applied   |

The declaration defines the reply schemas and the protections that a method supports. It also defines the releases that the
privacy accountant counts, and the table on the method's page. A client sends nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.wire.messages import METRICS, MODEL, TRAIN
from fedgraph_flwr.wire.reply_schema import ArrayField, NumberField

Fields = Mapping[str, ArrayField | NumberField]
"""Arrays of a group, or numbers of the group `METRICS`; an axis may be "C", "F" or another number of the description."""

ARRAYS = "arrays"
"""As `origin`: the group is an update of the shared parameters; as `fields`: it has their names and shapes."""


@dataclass(frozen=True)
class Reducer:
    """The server's reduction of one group in the replies to a phase.

    Attributes:
        fields: arrays of the group; `ARRAYS`: the shared parameters' names and shapes; None: given by the strategy's `fields`.
        why: why the server needs single clients' values; quoted if a protection refuses the method.
        reduced: whether the server gets one value over all clients.
        early: whether that value needs only weights known before the exchange.
    """

    fields: Fields | str | None = None
    why: str = ""
    reduced: ClassVar[bool] = False
    early: ClassVar[bool] = False


@dataclass(frozen=True)
class Mean(Reducer):
    """Weighted mean, Σ w y / Σ w.

    Attributes:
        weight: ``weighting``, by ``strategy.weighting`` with ``strategy.max_share`` of its clients; ``shares``, the same of all
            clients; ``uniform``; ``train``, training nodes; ``nodes``. Under differential privacy the last two count as uniform.
        origin: start of the updates that clipping and robust rules measure: `ARRAYS`, or empty for 0.
        scale: factor of a client's weight, by its index; it must follow from the configuration. A robust rule has no weights, and
            multiplies the updates of trained parameters by it.
        trained: whether clients without training nodes are left out.
        bounded: whether a member that chooses its term does not reach more by it than by ``privacy.max_update`` a round.
    """

    weight: str = "weighting"
    origin: str = ""
    scale: Callable[[int], float] | None = None
    trained: bool = False
    bounded: bool = False
    reduced: ClassVar[bool] = True
    early: ClassVar[bool] = True


@dataclass(frozen=True)
class Sum(Reducer):
    """Sum Σ y, in float64 or another ``dtype``; ``bounded`` as of a mean."""

    dtype: str = "float64"
    bounded: bool = False
    origin: ClassVar[str] = ""
    reduced: ClassVar[bool] = True
    early: ClassVar[bool] = True


@dataclass(frozen=True)
class LateMean(Reducer):
    """Mean whose weights the method computes from other uploads of the same exchange: `Reduced.mean`."""

    origin: str = ARRAYS
    reduced: ClassVar[bool] = True


@dataclass(frozen=True)
class Relay(Reducer):
    """Values that the server forwards to other clients; with ``sealed`` it cannot read them."""

    sealed: bool = False


@dataclass(frozen=True)
class Individual(Reducer):
    """Every client's values, which the server sees; secure sums refuse them, unless ``privacy.reveal`` names the group.

    ``why`` is required.
    """

    def __post_init__(self) -> None:
        if not self.why:
            raise TypeError("Individual needs why=: the reason why the server needs every client's values")


@dataclass(frozen=True)
class Public(Reducer):
    """Values that follow from the configuration, such as the width of an embedding; equal at all clients.

    Only public keys with their signatures and, in a client's description, whole numbers that are sizes may differ.
    """


Groups = Mapping[str, Reducer]
Uplink = Mapping[str, Groups]
"""Reducers by phase and group."""


class Exchanges(dict[str, Reducer]):
    """Groups of a phase with a maximum number of exchanges per round; phases without it have one.

    Args:
        groups: reducers by group.
        times: the number of exchanges.
    """

    def __init__(self, groups: Groups | None = None, times: int = 1):
        super().__init__(groups or {})
        self.times = times

    def also(self, groups: Groups) -> "Exchanges":
        """Return the phase with these groups as well."""
        return type(self)({**self, **groups}, self.times)


class Once(Exchanges):
    """Groups of a phase that runs once, before round 1 or between two stages; other phases run every round."""


def model_only(cfg: RunConfig, params: Any) -> Uplink:
    """Return FedAvg's uplink, also for every method that changes only the client's training."""
    return {TRAIN: {MODEL: Mean(ARRAYS, origin=ARRAYS)}}


def every_model(cfg: RunConfig, params: Any) -> Uplink:
    """Return the uplink of a method whose server mixes the clients' models into one model per client."""
    return {TRAIN: {MODEL: Individual(ARRAYS, why="each client receives its own mixture of models")}}


def signature(uplink: Uplink) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Return the part of a declaration that both sides of a method must share."""
    return {
        (phase, group): (type(reducer).__name__, getattr(reducer, "weight", ""), getattr(reducer, "sealed", ""))
        for phase, groups in uplink.items()
        for group, reducer in groups.items()
    }


def shown(uplink: Uplink) -> list[tuple[str, str, Reducer]]:
    """Return phase, group and reducer of everything that leaves a client."""
    return [(phase, group, reducer) for phase, groups in uplink.items() for group, reducer in groups.items()]


def sums(groups: Groups) -> list[str]:
    """Return the groups of which the server needs only a mean or sum, by weights known before the exchange."""
    return [group for group, reducer in groups.items() if reducer.early]


def releases(uplink: Uplink) -> int:
    """Return the number of exchanges per round whose reduced values differential privacy releases."""
    return sum(_exchanges(groups) for groups in uplink.values() if not isinstance(groups, Once))


def released_once(uplink: Uplink) -> int:
    """Return the number of exchanges before round 1 whose reduced values differential privacy releases."""
    return sum(_exchanges(groups) for groups in uplink.values() if isinstance(groups, Once))


def _exchanges(groups: Groups) -> int:
    """Return the number of a phase's exchanges that release something."""
    return bool(sums(groups)) * (groups.times if isinstance(groups, Exchanges) else 1)


def named(phase: str, group: str, reducer: Reducer) -> str:
    """Return a group's name for an error message, and why the server needs single clients' values."""
    what = "numbers" if group == METRICS else f"'{group}'"
    kind = "late weights" if isinstance(reducer, LateMean) else "each client's values"
    return f"{kind} of {what} in phase '{phase}'" + (f" ({reducer.why})" if reducer.why else "")

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

Reply schemas, the protections that a method accepts, the releases that the privacy accountant books and the table on the method's
page are derived from it, and a client sends nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.labels import LABELS
from fedgraph_flwr.wire.messages import DESCRIBE, METRICS, MODEL, TRAIN
from fedgraph_flwr.wire.reply_schema import ArrayField, NumberField

Fields = Mapping[str, ArrayField | NumberField]
"""Arrays of a group, or numbers of the group `METRICS`; an axis may be "C", "F" or another value that clients describe alike."""

ARRAYS = "arrays"
"""As `origin`: the group updates the shared parameters; as `fields`: it has their names and shapes."""

WEIGHTS = ("weighting", "uniform", "train", "nodes")
"""Weights of a mean: ``strategy.weighting``, equal, training nodes, nodes."""


@dataclass(frozen=True)
class Reducer:
    """What the server does with one group of the replies to a phase.

    Attributes:
        fields: what the group holds; `ARRAYS`: the shared parameters' names and shapes; None: what the strategy's `fields` says.
        why: what the server needs single clients' values for; quoted where a protection refuses the method.
        reduced: whether the server gets one value of all clients.
        early: whether that value needs nothing but weights known before the exchange.
    """

    fields: Fields | str | None = None
    why: str = ""
    reduced: ClassVar[bool] = False
    early: ClassVar[bool] = False


@dataclass(frozen=True)
class Mean(Reducer):
    """Σ w y / Σ w.

    Attributes:
        weight: one of `WEIGHTS`; under differential privacy all but ``weighting`` count as ``uniform``.
        origin: what clipping and robust rules measure values from: `ARRAYS`, or nothing: 0.
        scale: factor of a client's weight, by its index; it must follow from the configuration. A robust rule, which has no
            weights, takes the updates of trained parameters times it.
        trained: whether clients without training nodes are left out.
    """

    weight: str = "weighting"
    origin: str = ""
    scale: Callable[[int], float] | None = None
    trained: bool = False
    reduced: ClassVar[bool] = True
    early: ClassVar[bool] = True


@dataclass(frozen=True)
class Sum(Reducer):
    """Σ y, in float64 or as ``dtype`` says."""

    dtype: str = "float64"
    origin: ClassVar[str] = ""
    reduced: ClassVar[bool] = True
    early: ClassVar[bool] = True


@dataclass(frozen=True)
class LateMean(Reducer):
    """A mean whose weights the method computes from other uploads of the same exchange: `Reduced.mean`."""

    origin: str = ARRAYS
    reduced: ClassVar[bool] = True


@dataclass(frozen=True)
class Relay(Reducer):
    """Values that the server forwards to other clients; ``sealed``: it cannot read them."""

    sealed: bool = False


@dataclass(frozen=True)
class Individual(Reducer):
    """Every client's values; ``why`` is required."""

    def __post_init__(self) -> None:
        if not self.why:
            raise TypeError("Individual needs why=: what the server needs every client's values for")


@dataclass(frozen=True)
class Public(Reducer):
    """Values that follow from the configuration, such as the width of an embedding, or public keys; also a graph's size."""


Groups = Mapping[str, Reducer]
Uplink = Mapping[str, Groups]
"""Reducers by phase and group."""


class Once(dict[str, Reducer]):
    """Groups of a phase that runs once, before round 1 or between two stages; other phases run every round."""


def model_only(cfg: RunConfig, params: Any) -> Uplink:
    """FedAvg's uplink, and that of every method which changes the client's training only."""
    return {TRAIN: {MODEL: Mean(ARRAYS, origin=ARRAYS)}}


def every_model(cfg: RunConfig, params: Any) -> Uplink:
    """The uplink of a method whose server mixes clients' models into one for each."""
    return {TRAIN: {MODEL: Individual(ARRAYS, why="each client receives its own mixture of models")}}


def declared(side: Any, cfg: RunConfig) -> dict[str, Groups]:
    """The uplink of a method's server or client class, with what the framework itself asks.

    Raises:
        FedGraphError: the declaration has another form.
    """
    found = dict(side.uplink(cfg, method_params(side, cfg)))
    for phase, groups in found.items():
        for group, reducer in groups.items():
            if not isinstance(reducer, Reducer):
                raise FedGraphError(
                    f"uplink of {side.__name__}: phase '{phase}', group '{group}' is {reducer!r}, expected Mean, Sum, LateMean,"
                    " Relay, Individual or Public"
                )
    if cfg.train.class_weights == "federated":
        share = {"share": ArrayField(("C",), "float64", low=0, high=1)}
        found[LABELS] = Once({LABELS: Mean(share, weight="train")})
    found.setdefault(TRAIN, {})
    found.setdefault(DESCRIBE, {})
    return found


def signature(uplink: Uplink) -> dict[tuple[str, str], tuple[Any, ...]]:
    """What the two sides of a method must declare alike."""
    return {
        (phase, group): (type(reducer).__name__, getattr(reducer, "weight", ""), getattr(reducer, "sealed", ""))
        for phase, groups in uplink.items()
        for group, reducer in groups.items()
    }


def shown(uplink: Uplink) -> list[tuple[str, str, Reducer]]:
    """Phase, group and reducer of all that leaves a client."""
    return [(phase, group, reducer) for phase, groups in uplink.items() for group, reducer in groups.items()]


def sums(groups: Groups) -> list[str]:
    """Groups of which the server needs a mean or sum only, by weights known before the exchange."""
    return [group for group, reducer in groups.items() if reducer.early]


def releases(uplink: Uplink) -> int:
    """Exchanges of a round whose reduced values differential privacy releases."""
    return sum(bool(sums(groups)) for groups in uplink.values() if not isinstance(groups, Once))


def released_once(uplink: Uplink) -> int:
    """Exchanges before round 1 whose reduced values differential privacy releases."""
    return sum(bool(sums(groups)) for groups in uplink.values() if isinstance(groups, Once))


def named(phase: str, group: str, reducer: Reducer) -> str:
    """A group in an error message: which, and why the server needs single clients' values."""
    what = "numbers" if group == METRICS else f"'{group}'"
    kind = "late weights" if isinstance(reducer, LateMean) else "each client's values"
    return f"{kind} of {what} in phase '{phase}'" + (f" ({reducer.why})" if reducer.why else "")

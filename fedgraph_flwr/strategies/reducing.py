"""Reduction of the replies to one exchange, as the method's uplink declares it for each group."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedgraph_flwr.config import StrategyConfig
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.methods.uplink import Groups, Public, Reducer
from fedgraph_flwr.secure.keyring import SIGNATURE
from fedgraph_flwr.strategies import aggregators
from fedgraph_flwr.wire.messages import METRICS, TRAIN, Arrays, Reply, weighted_mean

Weights = Iterable[float] | Mapping[str, Iterable[float]]
"""One weight per client, or one per client for each named array; unnormalised."""


@dataclass
class Reduced:
    """The replies to one exchange, in the form that the method's uplink allows its server to see.

    Iterating yields the single replies, in client order, with numbers and `Individual`, `Relay` and
    `Public` groups.

    Attributes:
        replies: the single replies.
        groups: one value over all clients for each `Mean` and `Sum`.
        phase: name of the exchange's phase.
    """

    replies: list[Reply]
    groups: dict[str, Arrays] = field(default_factory=dict)
    late: Mapping[str, list[Arrays]] = field(default_factory=dict, repr=False)
    rule: Callable[[list[Arrays], Weights, Arrays | None, list[int]], Arrays] | None = field(
        default=None, repr=False
    )
    phase: str = TRAIN

    @property
    def clients(self) -> list[int]:
        """The clients that replied, ascending."""
        return [reply.client for reply in self.replies]

    def __iter__(self) -> Iterator[Reply]:
        return iter(self.replies)

    def __len__(self) -> int:
        return len(self.replies)

    def __contains__(self, group: object) -> bool:
        return group in self.groups

    def __getitem__(self, group: str) -> Arrays:
        if group not in self.groups:
            raise self._without(group, "Mean or Sum", self.groups)
        return self.groups[group]

    def each(self, group: str) -> list[Arrays]:
        """Return an `Individual`, `Relay` or `Public` group of each client, in client order.

        Raises:
            FedGraphError: the clients' values of this group are not seen one by one.
        """
        if group == METRICS:
            raise FedGraphError(
                f"numbers of '{METRICS}' are in single replies: [reply.metrics[name] for reply in reduced]"
            )
        for reply in self.replies:
            if group not in reply.groups:
                raise self._without(group, "Individual, Relay or Public", reply.groups)
        return [reply.groups[group] for reply in self.replies]

    def mean(
        self,
        group: str,
        weights: Weights,
        transform: Callable[[int, Arrays], Arrays] | None = None,
        origin: Arrays | None = None,
        clients: Iterable[int] | None = None,
    ) -> Arrays:
        """Return the mean of a `LateMean`, or instead the result of a robust rule over the clients with training nodes.

        Args:
            group: name of the group.
            weights: weights of the clients, computed from other uploads.
            transform: maps a client's position among the replies and its arrays to the arrays to
                average.
            origin: start of the updates that the values are; default: the shared parameters.
            clients: the clients to average over; default: all that replied.

        Raises:
            FedGraphError: the group is not declared as `LateMean`.
            ValueError: the number of weights is not the number of clients.
        """
        if group not in self.late:
            raise self._without(group, "LateMean", self.late)
        chosen = set(self.clients if clients is None else clients)
        places = [place for place, client in enumerate(self.clients) if client in chosen]
        weights = _one_each(weights, len(places), group)
        late = self.late[group]
        values = [
            transform(place, late[place]) if transform else late[place] for place in places
        ]
        assert self.rule is not None
        return self.rule(values, weights, origin, [self.clients[place] for place in places])

    def _without(self, group: str, form: str, arrived: Iterable[str]) -> FedGraphError:
        """Return the error of a method that reads a group which did not arrive in this form."""
        return FedGraphError(
            f"the method reads group '{group}' of phase '{self.phase}' as {form}, but {len(self)} replies gave"
            f" {', '.join(sorted(arrived)) or 'nothing'} in this form: declare it so in `uplink`, and return it from the client's"
            " phase",
            "own-code",
        )


def _one_each(weights: Weights, count: int, group: str) -> Weights:
    """Return the weights as lists.

    Raises:
        ValueError: a list has another length than ``count``.
    """
    by_name = weights if isinstance(weights, Mapping) else {group: weights}
    lists = {name: list(numbers) for name, numbers in by_name.items()}
    for name, numbers in lists.items():
        if len(numbers) != count:
            raise ValueError(
                f"reduced.mean('{group}') takes one weight for each of {count} clients, got {len(numbers)} for '{name}'"
            )
    return lists if isinstance(weights, Mapping) else lists[group]


def check_public(phase: str, declared: Groups, replies: list[Reply]) -> None:
    """Check that clients sent the same `Public` values, except keys: values that differ tell of one client's data.

    Raises:
        RunFailed: names the clients that differ from most others.
    """
    for group in (group for group, reducer in declared.items() if isinstance(reducer, Public)):
        sent = [_public_values(reply, group, declared[group]) for reply in replies]
        counts = Counter(sent)
        if len(counts) > 1:
            most, common = counts.most_common(1)[0]
            odd = [
                reply.client
                for reply, values in zip(replies, sent, strict=True)
                if values != most
            ]
            raise RunFailed(
                f"clients {odd} sent other values of '{group}' in phase '{phase}' than the other {common} clients: Public values"
                " follow from the configuration; declare what differs as Mean, Sum, Relay or Individual"
            )


def _public_values(reply: Reply, group: str, reducer: Reducer) -> Hashable:
    """Return what must be equal at all clients: arrays by their bytes, except keys, and numbers."""
    if group == METRICS:
        fields = reducer.fields if isinstance(reducer.fields, dict) else {}
        return tuple((name, reply.metrics.get(name)) for name in sorted(fields))
    arrays = reply.groups.get(group, {}).items()
    key = np.dtype("uint8"), (32,)
    compared = [
        (name, a)
        for name, a in sorted(arrays)
        if (a.dtype, a.shape) != key and name != SIGNATURE
    ]
    return tuple((name, a.shape, a.tobytes()) for name, a in compared)


def averaged(
    values: list[Arrays], weights: Weights, origin: Arrays, rules: StrategyConfig
) -> Arrays:
    """Return the weighted mean of arrays, or the result of ``strategy.aggregator``, which ignores weights."""
    if rules.aggregator != "mean":
        return aggregators.combine(values, origin, rules)
    if not isinstance(weights, Mapping):
        return weighted_mean(values, weights)
    mean: Arrays = {}
    for name, weights_of_name in weights.items():
        mean |= weighted_mean([{name: arrays[name]} for arrays in values], weights_of_name)
    return mean


def added_up(values: list[Arrays], dtype: str = "float64") -> Arrays:
    """Return Σ y over named arrays, summed in the given order."""
    return {
        name: np.asarray(np.sum([v[name] for v in values], axis=0, dtype=dtype))
        for name in values[0]
    }

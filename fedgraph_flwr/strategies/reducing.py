"""Reduction of the replies to one exchange, as the method's uplink declares it for each group."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedgraph_flwr.config import StrategyConfig
from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.methods.bases import GraphStrategy
from fedgraph_flwr.methods.uplink import ARRAYS, Groups, LateMean, Mean, Public, Reducer, Sum, sums
from fedgraph_flwr.methods.weighting import private_factors
from fedgraph_flwr.secure.keyring import SIGNATURE
from fedgraph_flwr.secure.secagg import SECAGG
from fedgraph_flwr.strategies.aggregators import combine
from fedgraph_flwr.strategies.privacy import Terms
from fedgraph_flwr.strategies.weighting import of_reducer
from fedgraph_flwr.wire.messages import CLIPPED, METRICS, MODEL, TRAIN, Arrays, Reply, weighted_mean

Weights = Iterable[float] | Mapping[str, Iterable[float]]
"""One weight per client, or one per client for each named array; unnormalised."""

TRAINED = Mean(weight="uniform", trained=True)
"""Weighs clients with training nodes by 1, others by 0."""


@dataclass
class Reduced:
    """The replies to one exchange, in the form that the method's uplink allows its server to see.

    Iterating yields the single replies, in client order, with numbers and `Individual`, `Relay` and `Public` groups.

    Attributes:
        replies: the single replies.
        groups: one value over all clients for each `Mean` and `Sum`.
    """

    replies: list[Reply]
    groups: dict[str, Arrays] = field(default_factory=dict)
    late: Mapping[str, list[Arrays]] = field(default_factory=dict, repr=False)
    rule: Callable[[list[Arrays], Weights, Arrays | None, list[int]], Arrays] | None = field(default=None, repr=False)

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
            raise KeyError(
                f"'{group}' was not reduced: declare it as Mean or Sum in the method's uplink; reduced: {sorted(self.groups)}"
            )
        return self.groups[group]

    def each(self, group: str) -> list[Arrays]:
        """Return an `Individual`, `Relay` or `Public` group of each client, in client order."""
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
            transform: maps a client's position among the replies and its arrays to the arrays to average.
            origin: start of the updates that the values are; default: the shared parameters.
            clients: the clients to average over; default: all that replied.
        """
        chosen = set(self.clients if clients is None else clients)
        places = [place for place, client in enumerate(self.clients) if client in chosen]
        late = self.late[group]
        values = [transform(place, late[place]) if transform else late[place] for place in places]
        assert self.rule is not None
        return self.rule(values, weights, origin, [self.clients[place] for place in places])


def reduce(method: GraphStrategy, phase: str, replies: list[Reply]) -> Reduced:
    """Reduce the groups of replies as declared.

    Args:
        method: the strategy.
        phase: name of the phase.
        replies: the valid replies, in client order.
    """
    declared = method.uplink_of.get(phase, {})
    _check_public(phase, declared, replies)
    early = [group for group in sums(declared) if replies]
    late = [group for group, reducer in declared.items() if isinstance(reducer, LateMean)]
    found = _sums(method, phase, early, replies) if early else {}

    def rule(values: list[Arrays], weights: Weights, origin: Arrays | None, clients: list[int]) -> Arrays:
        rules = method.cfg.strategy
        if rules.aggregator != "mean":
            values = [values[place] for place in _counted(method, TRAINED, clients)]
        return averaged(values, weights, method.arrays if origin is None else origin, rules)

    hidden = {*early, *late, *([SECAGG] if early else [])}
    seen = [
        Reply(r.client, {g: a for g, a in r.groups.items() if g not in hidden}, r.metrics, r.message) for r in replies
    ]
    kept = {group: [reply.groups[group] for reply in replies] for group in late}
    return Reduced(seen, found, kept, rule)


def _sums(method: GraphStrategy, phase: str, groups: list[str], replies: list[Reply]) -> dict[str, Arrays]:
    """Return the means and sums of groups: secure ones, those that actors computed, noised ones, or plain ones."""
    declared = method.uplink_of.get(phase, {})
    if method.secure:
        if method.privacy:
            method.privacy.book()
        found = method.secure.reveal(replies)
        if method.privacy:
            bits = found.pop(CLIPPED, {})
            method.privacy.adapt({group: float(total[0]) for group, total in bits.items()}, _sampled(method))
        return found
    if method.actor_sums and phase == TRAIN:
        return method.actor_sums.reveal(replies)
    if method.privacy and method.cfg.privacy.unit != "client":  # clients added the noise
        method.privacy.book()
    elif method.privacy:
        terms = {group: _terms(method, group, declared[group], replies) for group in groups}
        return method.privacy.release(terms, _sampled(method))
    return {group: _reduced(method, declared[group], group, replies) for group in groups}


def _check_public(phase: str, declared: Groups, replies: list[Reply]) -> None:
    """Check that clients sent the same `Public` values, except keys: values that differ tell of one client's data.

    Raises:
        RunFailed: names the clients that differ from most others.
    """
    for group in (group for group, reducer in declared.items() if isinstance(reducer, Public)):
        sent = [_public_values(reply, group, declared[group]) for reply in replies]
        counts = Counter(sent)
        if len(counts) > 1:
            most, common = counts.most_common(1)[0]
            odd = [reply.client for reply, values in zip(replies, sent, strict=True) if values != most]
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
    compared = [(name, a) for name, a in sorted(arrays) if (a.dtype, a.shape) != key and name != SIGNATURE]
    return tuple((name, a.shape, a.tobytes()) for name, a in compared)


def _sampled(method: GraphStrategy) -> int:
    """Return the number of clients that the configuration samples for the current exchange."""
    return method.cohort_size if method.server_round else method.cfg.num_clients


def averaged(values: list[Arrays], weights: Weights, origin: Arrays, rules: StrategyConfig) -> Arrays:
    """Return the weighted mean of arrays, or the result of ``strategy.aggregator``, which ignores weights."""
    if rules.aggregator != "mean":
        return combine(values, origin, rules)
    if not isinstance(weights, Mapping):
        return weighted_mean(values, weights)
    mean: Arrays = {}
    for name, own in weights.items():
        mean |= weighted_mean([{name: arrays[name]} for arrays in values], own)
    return mean


def added_up(values: list[Arrays], dtype: str = "float64") -> Arrays:
    """Return Σ y over named arrays, summed in the given order."""
    return {name: np.asarray(np.sum([v[name] for v in values], axis=0, dtype=dtype)) for name in values[0]}


def origin_of(method: GraphStrategy, reducer: Reducer, like: Arrays) -> Arrays:
    """Return the start of a group's updates: the shared parameters, or 0."""
    if getattr(reducer, "origin", "") == ARRAYS:
        return method.arrays
    return {name: np.zeros_like(array) for name, array in like.items()}


def _reduced(method: GraphStrategy, reducer: Reducer, group: str, replies: list[Reply]) -> Arrays:
    """Return the mean or sum of a group, without protection."""
    values, clients = [reply.groups.get(group, {}) for reply in replies], [reply.client for reply in replies]
    rules = method.cfg.strategy
    if isinstance(reducer, Sum):
        if rules.aggregator == "mean":
            return added_up(values, reducer.dtype)
        if group == MODEL:  # sums of gradients: a client without training nodes has none
            values = [values[place] for place in _counted(method, TRAINED, clients)]
        middle = combine(values, {}, rules)
        return {name: len(values) * array.astype(reducer.dtype) for name, array in middle.items()}
    if isinstance(reducer, Mean) and rules.aggregator != "mean":
        kept = _counted(method, reducer, clients)
        values, clients = [values[place] for place in kept], [clients[place] for place in kept]
    if isinstance(reducer, Mean) and reducer.scale and rules.aggregator != "mean":
        origin = origin_of(method, reducer, values[0])
        scales = map(reducer.scale, clients)
        values = [_scaled(value, origin, s, method.buffers) for value, s in zip(values, scales, strict=True)]
    return averaged(values, of_reducer(method, reducer, clients), origin_of(method, reducer, values[0]), rules)


def _counted(method: GraphStrategy, reducer: Mean, clients: list[int]) -> list[int]:
    """Return the places of the clients that a robust rule counts: those with weight and, where models count, training nodes.

    Without any such client, all count.
    """
    models = reducer.weight in ("weighting", "shares")  # even if ``strategy.weighting=nodes`` weighs an unchanged model
    weights = of_reducer(method, replace(reducer, trained=reducer.trained or models), clients)
    return [place for place, weight in enumerate(weights) if weight] or list(range(len(clients)))


def _scaled(arrays: Arrays, origin: Arrays, scale: float, buffers: Collection[str]) -> Arrays:
    """Return arrays whose updates are ``scale`` times as long, in float64; running statistics do not change."""
    return {
        name: array if name in buffers else origin[name] + scale * (array.astype(np.float64) - origin[name])
        for name, array in arrays.items()
    }


def _terms(method: GraphStrategy, group: str, reducer: Reducer, replies: list[Reply]) -> Terms:
    """Return the clipped sum of a group that differential privacy releases."""
    values = [reply.groups.get(group, {}) for reply in replies]
    origin = origin_of(method, reducer, values[0])
    if isinstance(reducer, Sum):
        wide: Any = {name: array.astype(reducer.dtype) for name, array in origin.items()}
        return Terms(wide, values, [1.0] * len(values), 1.0)
    factors, size = private_weights(method, reducer)
    return Terms(origin, values, [factors[reply.client] for reply in replies], size)


def private_weights(method: GraphStrategy, reducer: Reducer) -> tuple[dict[int, float], float]:
    """Return each client's weight relative to the largest, and the divisor of the sum; both follow from the configuration."""
    factors = private_factors(reducer, method.cfg)
    if isinstance(reducer, Sum):
        return factors, 1.0
    return factors, _sampled(method) * sum(factors.values()) / len(factors)

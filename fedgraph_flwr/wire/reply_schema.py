"""Schema of a reply to a phase: names, dtypes, shapes and ranges of all its values, and validation by it.

A method declares a `ReplySchema` for each of its phases (`GraphStrategy.schema`). Values without an entry are rejected. No byte
of an array is decoded before its name, dtype, shape and length are valid.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.wire.messages import METRICS, Arrays, decode

Axis = int | range | str
"""Size, or accepted sizes, where ``up_to(n)`` is 0 to n; in an uplink also a letter, such as "C" for the classes."""

LARGEST = 2**31 - 1
"""Maximum count of nodes, edges or bytes in a reply."""

HUGE = 1e18
"""Maximum number in a reply, except integers of an array: its square is still finite in 32 bits."""

_HEADER = 4096
"""Upper bound of NumPy's header before an array's values."""


def up_to(size: int) -> range:
    """Return an axis of 0 to ``size`` entries."""
    return range(size + 1)


class _Bounded:
    """Base of fields with a range."""

    low: float
    high: float

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Minimum and maximum of a number that need not be an integer."""
        return max(self.low, -HUGE), min(self.high, HUGE)


@dataclass(frozen=True)
class ArrayField(_Bounded):
    """Array of a reply.

    Attributes:
        shape: sizes, or accepted sizes, of its axes.
        dtype: NumPy's name of its type.
        low: minimum value.
        high: maximum value.
        optional: whether it may be missing.
    """

    shape: tuple[Axis, ...] = ()
    dtype: str = "float32"
    low: float = -math.inf
    high: float = math.inf
    optional: bool = False


@dataclass(frozen=True)
class NumberField(_Bounded):
    """Number of a reply, or a list of numbers.

    Attributes:
        low: minimum value.
        high: maximum value.
        whole: whether it must be an integer.
        length: length, or accepted lengths, of a list; None for a single number.
        nan: whether NaN is accepted (a score without nodes).
        optional: whether it may be missing.
    """

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    length: Axis | None = None
    nan: bool = False
    optional: bool = False

    def plainly(self, value: Any) -> bool:
        """Return quickly whether a value is a valid float, or a list with one."""
        number = value[0] if type(value) is list and len(value) == self.length == 1 else value
        low, high = self.bounds
        return (
            type(number) is float
            and (number is not value or self.length is None)
            and not self.whole
            and low <= number <= high
        )


@dataclass(frozen=True)
class ReplySchema:
    """Schema of a reply: groups of arrays, and numbers.

    ``a | b`` combines the values of both.
    """

    groups: Mapping[str, Mapping[str, ArrayField]] = field(default_factory=dict)
    numbers: Mapping[str, NumberField] = field(default_factory=dict)

    def __or__(self, other: "ReplySchema") -> "ReplySchema":
        both = self.groups.keys() & other.groups.keys()
        groups = {**self.groups, **other.groups, **{g: {**self.groups[g], **other.groups[g]} for g in both}}
        return ReplySchema(groups, {**self.numbers, **other.numbers})

    def read(self, content: RecordDict, who: str) -> tuple[dict[str, Arrays], dict[str, Any]]:
        """Validate a reply and return its groups and numbers.

        Args:
            content: content of the message.
            who: sender and phase for errors, such as ``client 3 replied to phase 'train'``.

        Raises:
            FedGraphError: the reply is invalid; the message has ``who`` and the invalid value.
        """
        kinds = {METRICS: MetricRecord, **dict.fromkeys(self.groups, ArrayRecord)}
        for key, record in content.items():
            if not isinstance(record, kinds.get(key, ())):
                raise FedGraphError(f"{who} with a record '{sanitize(key, 60)}' that was not requested")
        if METRICS not in content:
            raise FedGraphError(f"{who} without the record '{METRICS}'")
        groups = {}
        for name, fields in self.groups.items():
            arrays: Any = content.get(name) or {}
            _names(arrays, fields, who, f"{name}/")
            if name in content:
                groups[name] = {key: _read(array, fields[key], f"{name}/{key}", who) for key, array in arrays.items()}
        numbers: Any = content[METRICS]
        return groups, _numbers(dict(numbers), self.numbers, who)


def like(arrays: Mapping[str, np.ndarray], optional: bool = False) -> dict[str, ArrayField]:
    """Return fields with the names, shapes and dtypes of ``arrays``, for any finite values."""
    return {n: ArrayField(tuple(a.shape), str(a.dtype), optional=optional) for n, a in arrays.items()}


def check(arrays: Mapping[str, np.ndarray], fields: Mapping[str, ArrayField], who: str) -> None:
    """Validate arrays that did not arrive in a reply, such as sealed ones between clients.

    Raises:
        FedGraphError: the arrays are invalid; the message has ``who`` and the invalid value.
    """
    _names(arrays, fields, who)
    for name, values in arrays.items():
        _kind(str(values.dtype), tuple(values.shape), fields[name], name, who)
        _range(values, fields[name], name, who)


def check_shapes(
    arrays: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[Axis, ...]],
    who: str,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    whole: bool = False,
) -> None:
    """Validate arrays of a request: floats of any width, or with ``whole`` integers, from ``low`` to ``high``.

    Raises:
        FedGraphError: the arrays are invalid; the message has ``who`` and the invalid value.
    """
    kinds, usual = ("iu", "int64") if whole else ("f", "float32")
    fields = {}
    for name, shape in shapes.items():
        dtype = arrays[name].dtype if name in arrays else np.dtype(usual)
        fields[name] = ArrayField(shape, str(dtype) if dtype.kind in kinds else usual, low, high)
    check(arrays, fields, who)


def _names(held: Mapping[str, Any], fields: Mapping[str, ArrayField | NumberField], who: str, prefix: str = "") -> None:
    if held.keys() == fields.keys():
        return
    names = set(held)
    if missing := sorted(n for n, f in fields.items() if not f.optional and n not in names):
        raise FedGraphError(f"{who} without {', '.join(f'{prefix}{n}' for n in missing[:5])}")
    if odd := sorted(map(str, names - fields.keys())):
        raise FedGraphError(f"{who} with {sanitize(prefix + odd[0])}, which was not requested")


def _numbers(numbers: dict[str, Any], fields: Mapping[str, NumberField], who: str) -> dict[str, Any]:
    _names(numbers, fields, who)
    for name, value in numbers.items():
        wanted = fields[name]
        if wanted.plainly(value):
            continue
        if isinstance(value, list) != (wanted.length is not None):
            kind = "a single number" if wanted.length is None else "a list"
            raise FedGraphError(f"{who} with {name}={sanitize(value, 60)}, expected {kind}")
        values = value if isinstance(value, list) else [value]
        if wanted.length is not None and not _fits(len(values), wanted.length):
            raise FedGraphError(f"{who} with {len(values)} values of {name}, expected {_sizes((wanted.length,))}")
        low, high = wanted.bounds
        for number in values:
            if isinstance(number, bool) or not isinstance(number, int if wanted.whole else (float, int)):
                kind = "an integer" if wanted.whole else "a number"
                raise FedGraphError(f"{who} with {name}={sanitize(number, 60)}, expected {kind}")
            if not low <= number <= high and not (wanted.nan and number != number):
                raise FedGraphError(f"{who} with {name}={sanitize(number, 60)}, expected {low:g} to {high:g}")
    return numbers


def _read(array: Array, wanted: ArrayField, name: str, who: str) -> np.ndarray:
    """Decode an array after checking everything that does not need its values."""
    shape = tuple(array.shape)
    _kind(array.dtype, shape, wanted, name, who)
    most = math.prod(shape) * np.dtype(wanted.dtype).itemsize + _HEADER
    if len(array.data) > most:
        what = f"{len(array.data)} bytes for '{name}' of shape {shape}"
        raise FedGraphError(f"{who} with {what}, expected at most {most} as {wanted.dtype}")
    try:
        values = decode(name, array)
    except FedGraphError as error:
        raise FedGraphError(f"{who} with '{name}' that cannot be read: {sanitize(error)}") from error
    if values.dtype == bool and values.size and values.view(np.uint8).max() > 1:
        raise FedGraphError(f"{who} with '{name}' whose values are neither true nor false")
    _range(values, wanted, name, who)
    return values


def _kind(dtype: str, shape: tuple[int, ...], wanted: ArrayField, name: str, who: str) -> None:
    if dtype != wanted.dtype:
        raise FedGraphError(f"{who} with '{name}' of type {sanitize(dtype, 20)}, expected {wanted.dtype}")
    if len(shape) != len(wanted.shape) or not all(map(_fits, shape, wanted.shape)):
        raise FedGraphError(f"{who} with '{name}' of shape {sanitize(shape, 60)}, expected {_sizes(wanted.shape)}")


def _range(values: np.ndarray, wanted: ArrayField, name: str, who: str) -> None:
    low, high = wanted.bounds if values.dtype.kind == "f" else (wanted.low, wanted.high)
    if values.size and not (low <= values.min() and values.max() <= high):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise FedGraphError(f"{who} with '{name}' whose values are not finite: if it diverged, lower train.lr")
        span = f"from {values.min():g} to {values.max():g}"
        raise FedGraphError(f"{who} with '{name}' {span}, expected {low:g} to {high:g}")


def _fits(size: int, wanted: Axis) -> bool:
    return type(size) is int and (size in wanted if isinstance(wanted, range) else size == wanted)


def _sizes(shape: tuple[Axis, ...]) -> str:
    axes = [f"{a.start} to {a.stop - 1}" if isinstance(a, range) else str(a) for a in shape]
    return f"({', '.join(axes)})"

"""What travels between server and clients: named arrays in Flower records, phases, and the size of a message.

A message holds one `ArrayRecord` a group of tensors. The group ``MODEL`` holds the shared parameters; a method names further
groups as it likes (``"moments"``). Going down, ``CONFIG`` says which phase is meant; coming up, ``METRICS`` holds numbers.
"""

import functools
import hashlib
import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import SType

from fedgraph_flwr.errors import FedGraphError

Arrays = dict[str, np.ndarray]
"""Named arrays: one group of tensors."""

MODEL = "model"
CONFIG = "config"
METRICS = "metrics"

CLIPPED = "clipped"
"""Group of bits, by summed group: 1/2 if a client's update was within its norm, else -1/2 (`secure.adaptive`)."""

CLIPPING = "clipping"
"""Group of clipping norms that clients receive, by summed group."""

DESCRIBE = "describe"
TRAIN = "train"
EVALUATE = "evaluate"

SPEAKS = "protocol"
"""Number by which a server and a node say which version of their protocol they speak."""

PROTOCOL = 2

_BLOCK = 2**14  # numbers averaged at once

FAILED = 1001
"""Code of an error reply whose reason is a sentence for the user."""


@dataclass
class Reply:
    """One client's valid answer to an exchange.

    Attributes:
        client: index of the client, 0..M-1: the stable order in which replies are reduced.
        groups: named groups of arrays; ``groups[MODEL]`` are the shared parameters after training.
        metrics: numbers, or lists of numbers.
        message: as it came.
    """

    client: int
    groups: dict[str, Arrays] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    message: Message | None = field(default=None, repr=False, compare=False)

    @property
    def arrays(self) -> Arrays:
        """The shared parameters."""
        return self.groups.get(MODEL, {})


def to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Named arrays to an `ArrayRecord`, in the order given."""
    encoded = {name: _encode(np.asarray(array, order="C")) for name, array in arrays.items()}  # a scalar stays one
    return _filled(ArrayRecord(), encoded) if _named(encoded) else ArrayRecord(encoded)


def from_record(record: ArrayRecord) -> Arrays:
    """An `ArrayRecord` to named arrays of their own memory.

    Raises:
        FedGraphError: an array is not in NumPy's plain format, or its size is not what it says.
    """
    return {name: decode(name, array) for name, array in record.items()}


def numbers_record(numbers: Mapping[str, Any]) -> MetricRecord:
    """Numbers, and lists of numbers, to a `MetricRecord`.

    Raises:
        TypeError: Flower's, of anything else.
    """
    known = all(type(value) in _NUMBERS or (type(value) is list and _all_alike(value)) for value in numbers.values())
    if known and _named(numbers):
        return _filled(MetricRecord(), numbers)
    return MetricRecord(dict(numbers))


# Flower's own conversion parses a header text for every array and copies twice; for graphs of a few hundred nodes that is a
# third of a round. The bytes are the same: NumPy's format 1.0, C order. And it looks at each key and value of a record, one at a
# time: a tenth of a round of a thousand clients.

_NUMBERS = (float, int)

Record = TypeVar("Record")


def _named(values: Mapping[str, Any]) -> bool:
    return all(type(name) is str for name in values)


def _filled(record: Record, values: Mapping[str, Any]) -> Record:
    """A record of values of the types that it takes."""
    record.__dict__["_data"].update(values)
    return record


def _all_alike(values: list[Any]) -> bool:
    """Whether these are numbers of one kind."""
    kind = type(values[0]) if values else float
    return kind in _NUMBERS and (len(values) == 1 or all(type(value) is kind for value in values))


_name = functools.lru_cache(maxsize=64)(str)  # a dtype tells its name slower than an array is copied
_DTYPE_NAME = re.compile(r"[<>=|]?[A-Za-z]\w*", re.ASCII)


@functools.lru_cache(maxsize=64)
def _dtype(name: str) -> np.dtype[Any]:
    """The dtype of this name: bool or numbers. NumPy reads other strings as lists of fields, and ``","`` as Python code."""
    if not _DTYPE_NAME.fullmatch(name) or (dtype := np.dtype(name)).kind not in "biufc":
        raise ValueError(f"dtype {name!r}, expected bool or a type of numbers")
    return dtype


@functools.lru_cache(maxsize=1024)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    plain = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, plain)
    return buffer.getvalue()


def _encode(array: np.ndarray) -> Array:
    data = b"".join((_header(array.dtype, array.shape), array.data if array.size else b""))
    return _array(_name(array.dtype), array.shape, SType.NUMPY, data)


def _array(dtype: str, shape: tuple[int, ...], stype: str, data: bytes) -> Array:
    made = object.__new__(Array)  # whose own beginning tells three ways to be called apart
    made.__dict__.update(dtype=dtype, shape=shape, stype=stype, data=data)
    return made


def decode(name: str, array: Array) -> np.ndarray:
    """One array of a message, of its own memory.

    Raises:
        FedGraphError: as `from_record`.
    """
    try:
        dtype, shape = _dtype(array.dtype), tuple(array.shape)
        header = _header(dtype, shape)
        if array.stype != SType.NUMPY or not array.data.startswith(header):
            raise ValueError("not NumPy's plain format")
        return np.frombuffer(array.data, dtype, offset=len(header)).reshape(shape).copy()
    except (TypeError, ValueError) as error:
        raise FedGraphError(f"array '{name}' of a message cannot be read ({error})") from error


def groups_of(content: RecordDict) -> dict[str, Arrays]:
    """All array groups of a message."""
    return {key: from_record(record) for key, record in content.items() if isinstance(record, ArrayRecord)}


def pack(groups: Mapping[str, Mapping[str, np.ndarray] | ArrayRecord]) -> RecordDict:
    """Groups of named arrays to a message content; a group may already be a record (shared by many messages)."""
    return RecordDict({key: g if isinstance(g, ArrayRecord) else to_record(g) for key, g in groups.items()})


Bare = dict[str, tuple[type[Any], Any]]
"""A message's content without Flower's classes: of each record its kind, and its arrays or its values."""


def bared(content: RecordDict) -> Bare:
    """A content for another process of this program, which takes a third of the time that Flower's classes take to read."""
    return {
        key: (
            type(record),
            [(name, a.dtype, a.shape, a.stype, a.data) for name, a in record.items()]
            if isinstance(record, ArrayRecord)
            else dict(record.items()),
        )
        for key, record in content.items()
    }


def dressed(bare: Bare) -> RecordDict:
    """What was `bared`."""
    return _filled(RecordDict(), {key: _filled(kind(), _values(kind, held)) for key, (kind, held) in bare.items()})


def _values(kind: type[Any], held: Any) -> dict[str, Any]:
    return {name: _array(*parts) for name, *parts in held} if kind is ArrayRecord else held


REFUSED = "refused"
"""In the ledger, the group of arrays from invalid replies, whose groups may have any name."""


def payload_bytes(content: RecordDict) -> int:
    """Bytes a message carries: its arrays, 8 for each number, strings as they are; framing is not counted."""
    return sum(record_bytes(record) for record in content.values())


def record_bytes(record: Any) -> int:
    """Bytes of one record, as `payload_bytes` counts them."""
    if isinstance(record, ArrayRecord):
        return sum(math.prod(a.shape) * _dtype(a.dtype).itemsize for a in record.values())
    return sum(_value_bytes(value) for value in record.values())


def _value_bytes(value: Any) -> int:
    if type(value) in _NUMBERS:
        return 8
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list):
        return 8 if len(value) == 1 and type(value[0]) in _NUMBERS else sum(map(_value_bytes, value))
    return 8


def check_arrays(arrays: Arrays, expected: Mapping[str, tuple[int, ...]], sender: str) -> None:
    """Raise unless the names and shapes are those expected and all values are finite.

    Raises:
        FedGraphError: naming the sender, the array, and what was expected.
    """
    if arrays.keys() != expected.keys():
        odd = sorted(arrays.keys() ^ expected.keys())
        raise FedGraphError(f"{sender} sent other arrays than the shared ones; the difference is {', '.join(odd)}")
    for name, array in arrays.items():
        if array.shape != tuple(expected[name]):
            raise FedGraphError(f"{sender} sent '{name}' of shape {array.shape}, expected {tuple(expected[name])}")
        with np.errstate(over="ignore", invalid="ignore"):
            total = array.sum()  # finite only if all values are, and found without an array of as many truths
        if not (np.isfinite(total) or np.isfinite(array).all()):
            raise FedGraphError(f"{sender} sent '{name}' with values that are not finite")


def weighted_mean(groups: Iterable[Arrays], weights: Iterable[float]) -> Arrays:
    """Σ_i w_i y_i / Σ_i w_i over named arrays, summed in float64 in the order given.

    Raises:
        FedGraphError: the weights sum to zero.
    """
    members, factors = list(groups), np.asarray(list(weights), dtype=np.float64)
    total = factors.sum()
    if not total > 0:
        raise FedGraphError("the aggregation weights of this round's clients sum to 0: none has a training node")
    shares = factors / total
    return {name: _mixed([member[name] for member in members], shares) for name in members[0]}


def _mixed(arrays: list[np.ndarray], shares: np.ndarray) -> np.ndarray:
    """Σ_i shares_i arrays_i of one shape, in pieces that stay in a core's cache; of one array n times, that."""
    if all(array is arrays[0] for array in arrays):
        return arrays[0].copy()
    mixed = np.empty(arrays[0].size, dtype=arrays[0].dtype)
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, mixed.size, _BLOCK):
        piece = slice(start, start + _BLOCK)
        total = np.zeros(mixed[piece].size)
        for share, values in zip(shares, flat, strict=True):
            total += share * values[piece].astype(np.float64)
        mixed[piece] = total
    return mixed.reshape(arrays[0].shape)


def flat(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Named arrays as one float64 vector, in their order: [P]."""
    return np.concatenate([np.zeros(0), *(array.ravel() for array in arrays.values())])


def shaped(vector: np.ndarray, like: Mapping[str, np.ndarray]) -> Arrays:
    """A vector [P] as arrays of the names, shapes and types of ``like``."""
    parts = np.split(vector, np.cumsum([array.size for array in like.values()])[:-1])
    return {n: part.reshape(a.shape).astype(a.dtype) for (n, a), part in zip(like.items(), parts, strict=True)}


def derive_seed(*parts: int | str) -> int:
    """A seed for one random stream, such as (seed, client, round, phase); streams do not depend on each other."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1

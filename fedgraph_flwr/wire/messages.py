"""Messages between server and clients: named arrays in Flower records, phases, and message sizes.

A message holds one `ArrayRecord` per group of tensors. The group ``MODEL`` holds the shared parameters, and a method may add
other groups (``"moments"``). The record ``CONFIG`` of a request has its phase, and ``METRICS`` of a reply has numbers.
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

from fedgraph_flwr.errors import FedGraphError, Refusal, sanitize
from fedgraph_flwr.version import PROTOCOL, __version__

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
"""Key of the version of the messages (`PROTOCOL`) of server and node."""

ASKS_VERSIONS = "asks_versions"
"""Scalar of a request: the server of a fleet also asks for `VERSIONS`."""

STARTED_BY = "started_by"
"""Scalar of a fleet's first request of a run to a node: the operator who started it, as the server says."""

VERSIONS = "versions"
"""Record of a reply: versions of the node's packages."""

_BLOCK = 2**14  # numbers averaged per block

FAILED = 1001
"""Code of an error reply whose reason is an error message for the user."""

DECLINED = 1002
"""Code of an error reply of a node that refuses the request, by its policy, its records or missing approvals."""


@dataclass
class Reply:
    """Valid reply of one client to an exchange.

    Attributes:
        client: index of the client, 0..M-1: the stable order in which replies are reduced.
        groups: named groups of arrays; ``groups[MODEL]`` are the shared parameters after training.
        metrics: numbers, or lists of numbers.
        message: the original message.
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
    """Convert named arrays to an `ArrayRecord`, in the given order."""
    encoded = {name: _encode(np.asarray(array, order="C")) for name, array in arrays.items()}  # keeps scalars
    return _filled(ArrayRecord(), encoded) if _named(encoded) else ArrayRecord(encoded)


def from_record(record: ArrayRecord) -> Arrays:
    """Convert an `ArrayRecord` to named arrays with separate memory.

    Raises:
        FedGraphError: an array is not in NumPy's plain format, or has a wrong size.
    """
    return {name: decode(name, array) for name, array in record.items()}


def numbers_record(numbers: Mapping[str, Any]) -> MetricRecord:
    """Convert numbers and lists of numbers to a `MetricRecord`.

    Raises:
        TypeError: raised by Flower for other types.
    """
    known = all(type(value) in _NUMBERS or (type(value) is list and _all_alike(value)) for value in numbers.values())
    if known and _named(numbers):
        return _filled(MetricRecord(), numbers)
    return MetricRecord(dict(numbers))


# Flower's conversion parses a header text for every array and copies twice: a third of a round for graphs of a few hundred nodes.
# It also checks each key and value of a record separately: a tenth of a round of a thousand clients. The bytes written here are
# the same: NumPy's format 1.0, C order.

_NUMBERS = (float, int)

Record = TypeVar("Record")


def _named(values: Mapping[str, Any]) -> bool:
    return all(type(name) is str for name in values)


def _filled(record: Record, values: Mapping[str, Any]) -> Record:
    """Fill a record with values of accepted types."""
    record.__dict__["_data"].update(values)
    return record


def _all_alike(values: list[Any]) -> bool:
    """Return whether these are numbers of one type."""
    kind = type(values[0]) if values else float
    return kind in _NUMBERS and (len(values) == 1 or all(type(value) is kind for value in values))


_name = functools.lru_cache(maxsize=64)(str)  # the name of a dtype takes longer than a copy of an array
_DTYPE_NAME = re.compile(r"[<>=|]?[A-Za-z]\w*", re.ASCII)


@functools.lru_cache(maxsize=64)
def _dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of this name, bool or numeric; NumPy parses other strings as fields, and ``","`` as Python code."""
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
    made = object.__new__(Array)  # skips the slow __init__, which supports three signatures
    made.__dict__.update(dtype=dtype, shape=shape, stype=stype, data=data)
    return made


def decode(name: str, array: Array) -> np.ndarray:
    """Decode one array of a message to separate memory.

    Raises:
        FedGraphError: as for `from_record`.
    """
    try:
        dtype, shape = _dtype(array.dtype), tuple(array.shape)
        header = _header(dtype, shape)
        if array.stype != SType.NUMPY or not array.data.startswith(header):
            raise ValueError("not NumPy's plain format")
        return np.frombuffer(array.data, dtype, offset=len(header)).reshape(shape).copy()
    except (TypeError, ValueError) as error:
        what = f"cannot read array '{name}' of a message ({error})"
        raise FedGraphError(f"{what}: expected an array of numbers in NumPy's plain format") from error


def groups_of(content: RecordDict) -> dict[str, Arrays]:
    """Return all array groups of a message."""
    return {key: from_record(record) for key, record in content.items() if isinstance(record, ArrayRecord)}


def pack(groups: Mapping[str, Mapping[str, np.ndarray] | ArrayRecord]) -> RecordDict:
    """Convert groups of named arrays to a message content; a group may already be a record shared by many messages."""
    return RecordDict({key: g if isinstance(g, ArrayRecord) else to_record(g) for key, g in groups.items()})


Bare = dict[str, tuple[type[Any], Any]]
"""Content of a message without Flower's classes: type of each record, and its arrays or values."""


def bared(content: RecordDict) -> Bare:
    """Convert a content for another process of this program, which reads it three times faster than Flower's classes."""
    return {key: (type(record), _held(record)) for key, record in content.items()}


def _held(record: Any) -> Any:
    if isinstance(record, ArrayRecord):
        return [(name, a.dtype, a.shape, a.stype, a.data) for name, a in record.items()]
    return dict(record.items())


def dressed(bare: Bare) -> RecordDict:
    """Undo `bared`."""
    return _filled(RecordDict(), {key: _filled(kind(), _values(kind, held)) for key, (kind, held) in bare.items()})


def _values(kind: type[Any], held: Any) -> dict[str, Any]:
    return {name: _array(*parts) for name, *parts in held} if kind is ArrayRecord else held


REFUSED = "refused"
"""Group in the ledger for arrays of invalid replies, whose groups may have any name."""


def payload_bytes(content: RecordDict) -> int:
    """Return the payload of a message in bytes: arrays, 8 per number, length of strings; without framing."""
    return sum(record_bytes(record) for record in content.values())


def record_bytes(record: Any) -> int:
    """Return the bytes of one record, as counted by `payload_bytes`."""
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


def is_finite(array: np.ndarray) -> bool:
    """Return whether all values are finite."""
    return array.dtype.kind not in "fc" or np.count_nonzero(np.isfinite(array)) == array.size


def check_arrays(arrays: Arrays, expected: Mapping[str, tuple[int, ...]], sender: str) -> None:
    """Check that names and shapes are as expected; a node refuses values that are not finite before.

    Raises:
        FedGraphError: they are not; the message has the sender, the array and the expected value.
    """
    if arrays.keys() != expected.keys():
        odd = sorted(arrays.keys() ^ expected.keys())
        raise FedGraphError(f"{sender} must send exactly the shared arrays; the difference is {', '.join(odd)}")
    for name, array in arrays.items():
        if array.shape != tuple(expected[name]):
            raise FedGraphError(f"{sender} sent '{name}' of shape {array.shape}, expected {tuple(expected[name])}")


def check_version(spoken: object, who: str, here: str) -> None:
    """Refuse a node, or a server, that uses another version of the protocol.

    Args:
        spoken: its version.
        who: what it is.
        here: what this process is.

    Raises:
        Refusal: names both versions.
    """
    if spoken != PROTOCOL:
        raise Refusal(
            f"{who} uses version {sanitize(spoken, 20)} of the protocol between server and clients, this {here} version"
            f" {PROTOCOL} (fedgraph-flwr {__version__}): install the same version of fedgraph-flwr on both"
        )


def weighted_mean(groups: Iterable[Arrays], weights: Iterable[float]) -> Arrays:
    """Return Σ_i w_i y_i / Σ_i w_i over named arrays, summed in float64 in the given order.

    Raises:
        FedGraphError: the weights sum to zero.
    """
    members, factors = list(groups), np.asarray(list(weights), dtype=np.float64)
    shares = factors / positive(factors.sum())
    return {name: _mixed([member[name] for member in members], shares) for name in members[0]}


def positive(total: float) -> float:
    """Return a sum of aggregation weights, unless it is 0.

    Raises:
        FedGraphError: with what to set.
    """
    if total > 0:
        return total
    what = "the aggregation weights of this round's clients sum to 0: none of them has a training node"
    raise FedGraphError(f"{what}; set strategy.weighting=uniform or raise strategy.fraction")


def _mixed(arrays: list[np.ndarray], shares: np.ndarray) -> np.ndarray:
    """Return Σ_i shares_i arrays_i in blocks that fit in a core's cache; a copy if all arrays are the same object."""
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
    """Concatenate named arrays to one float64 vector [P], in order."""
    return np.concatenate([np.zeros(0), *(array.ravel() for array in arrays.values())])


def shaped(vector: np.ndarray, like: Mapping[str, np.ndarray]) -> Arrays:
    """Split a vector [P] into arrays with the names, shapes and types of ``like``."""
    parts = np.split(vector, np.cumsum([array.size for array in like.values()])[:-1])
    return {n: part.reshape(a.shape).astype(a.dtype) for (n, a), part in zip(like.items(), parts, strict=True)}


def derive_seed(*parts: int | str) -> int:
    """Derive the seed of one independent random stream, such as (seed, client, round, phase)."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1

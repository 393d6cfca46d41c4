"""Answers as a client must not give them: every array and number of an honest one, changed in each of many ways."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedgraph_flwr.wire.messages import METRICS


@dataclass(frozen=True)
class Mutation:
    """One reply that differs from an honest one in one place.

    Attributes:
        place: the array, number or record that was changed, ``model/layer0.weight``.
        kind: what was done to it.
        content: content of the message.
    """

    place: str
    kind: str
    content: RecordDict


def mutations(content: RecordDict, other: int) -> Iterator[Mutation]:
    """All of them for one reply; ``other`` is another client's index."""
    yield from _of_records(content)
    for key, record in content.items():
        if isinstance(record, ArrayRecord):
            for name in record:
                yield from _of_array(content, key, name)
        elif isinstance(record, MetricRecord):
            for name in record:
                yield from _of_number(content, name, other)


def raw(data: dict[str, Any]) -> MetricRecord:
    """Numbers of any type; Flower's own check is on the sender's side, which a liar has not."""
    record = MetricRecord()
    record._data.update(data)  # type: ignore[attr-defined]
    return record


def record_of(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Arrays that say anything of themselves; given them at once, a record would make each anew."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = array
    return record


def encoded(values: np.ndarray, fortran: bool = False) -> Array:
    """As NumPy writes it."""
    buffer = io.BytesIO()
    np.save(buffer, np.asfortranarray(values) if fortran else values, allow_pickle=False)
    return Array(str(values.dtype), tuple(values.shape), "numpy.ndarray", buffer.getvalue())


def claimed(dtype: Any, shape: Any, data: bytes, stype: str = "numpy.ndarray") -> Array:
    """An array that says this of itself, whatever it is; Flower's own check is on the sender's side."""
    array = Array("float32", (), "numpy.ndarray", b"-")
    array.__dict__.update({"dtype": dtype, "shape": shape, "stype": stype, "data": data})
    return array


def decoded(array: Array) -> np.ndarray:
    """As NumPy reads it."""
    return np.load(io.BytesIO(array.data), allow_pickle=False)


def _copy(content: RecordDict) -> RecordDict:
    copies: dict[str, Any] = {}
    for key, record in content.items():
        copies[key] = record_of(record) if isinstance(record, ArrayRecord) else raw(dict(record))
    return RecordDict(copies)


def _of_records(content: RecordDict) -> Iterator[Mutation]:
    for key, record in content.items():
        without = _copy(content)
        del without[key]
        yield Mutation(key, "record missing", without)
        renamed = _copy(without)
        renamed[f"{key}x"] = _copy(content)[key]
        yield Mutation(key, "record renamed", renamed)
        emptied = _copy(without)
        emptied[key] = ArrayRecord() if isinstance(record, ArrayRecord) else MetricRecord()
        yield Mutation(key, "record empty", emptied)
        turned = _copy(without)
        turned[key] = MetricRecord({"x": 1}) if isinstance(record, ArrayRecord) else ArrayRecord()
        yield Mutation(key, "record of another type", turned)
    for name, extra in (
        ("config", ConfigRecord({"phase": "train"})),
        ("[/data/x]\x1b[31m<script>", ArrayRecord()),
        ("model.extra", ArrayRecord({"w": encoded(np.zeros(2))})),
    ):
        more = _copy(content)
        more[name] = extra
        yield Mutation(name, "record more", more)


def _of_array(content: RecordDict, key: str, name: str) -> Iterator[Mutation]:
    honest: Array = content[key][name]
    values = decoded(honest)
    for kind, array in _arrays(honest, values):
        changed = _copy(content)
        changed[key][name] = array
        yield Mutation(f"{key}/{name}", kind, changed)
    missing = _copy(content)
    del missing[key][name]
    yield Mutation(f"{key}/{name}", "missing", missing)
    for kind, more in (("renamed", f"x{name}"), ("renamed to text", f"[/b]{name}\x1b[2J\n<script>alert(1)</script>")):
        renamed = _copy(missing)
        renamed[key][more] = honest
        yield Mutation(f"{key}/{name}", kind, renamed)
    extra = _copy(content)
    extra[key][f"{name}.more"] = honest
    yield Mutation(f"{key}/{name}", "one more", extra)


def _arrays(honest: Array, values: np.ndarray) -> Iterator[tuple[str, Array]]:
    shape, data = values.shape, honest.data
    for dtype in ("int8", "int64", "float16", "float32", "float64", "uint8", "bool", "complex64", "U1", ">f4", "S4"):
        if np.dtype(dtype) != values.dtype:
            with np.errstate(all="ignore"):
                yield f"dtype {dtype}", encoded(values.astype(dtype))
    for dtype in ("object", "nonsense", "", "V8", "float32,float32", "U99999999"):
        yield f"says dtype {dtype!r}", claimed(dtype, shape, data)
    for kind, said in (
        ("negative", tuple(-s for s in shape)),
        ("huge", (10**12, *shape[1:])),
        ("of floats", tuple(map(float, shape))),
        ("of booleans", tuple(map(bool, shape))),
        ("minus one", (-1, *shape[1:])),
    ):
        yield f"says shape {kind}", claimed(honest.dtype, said, data)
    yield "extra axis", encoded(values[None])
    yield "scalar", encoded(np.zeros((), values.dtype))
    yield "empty", encoded(values[:0] if values.ndim else values.reshape(1)[:0])
    if values.ndim and len(values):
        yield "a row less", encoded(values[:-1])
        yield "a row more", encoded(np.concatenate([values, values[-1:]]))
        yield "flat", encoded(np.concatenate([values.ravel(), values.ravel()[:1]]))
        yield "rows turned round", encoded(np.ascontiguousarray(values[::-1]))
        yield "a row twice", encoded(np.concatenate([values[:-1], values[:1]]))
    yield "Fortran order", encoded(np.atleast_2d(values), fortran=True)
    yield "zeros", encoded(np.zeros_like(values))
    if values.size:
        special: dict[str, Any] = {}
        if values.dtype.kind == "f":
            special = {"nan": np.nan, "inf": np.inf, "minus inf": -np.inf, "1e30": 1e30, "-1e30": -1e30, "minus": -7.5}
        elif values.dtype.kind in "iu":
            top = np.iinfo(values.dtype)
            special = {"largest": top.max, "least": top.min, "next": int(values.flat[0]) ^ 1}
        for kind, value in special.items():
            changed = values.copy()
            changed.flat[0] = value
            yield kind, encoded(changed)
            yield f"all {kind}", encoded(np.full_like(values, value))
    yield "truncated", claimed(honest.dtype, shape, data[:-1])
    yield "half", claimed(honest.dtype, shape, data[: len(data) // 2])
    yield "no bytes", claimed(honest.dtype, shape, b"")
    yield "too many bytes", claimed(honest.dtype, shape, data + bytes(2**16))
    yield "some bytes more", claimed(honest.dtype, shape, data + bytes(8))
    yield "other header", claimed(honest.dtype, shape, b"\x80\x04" + data[2:])
    yield "other stype", claimed(honest.dtype, shape, data, "pickle")
    if values.dtype == bool and values.size:
        yield "no truth value", claimed(honest.dtype, shape, data[:-1] + b"\x07")


def _of_number(content: RecordDict, name: str, other: int) -> Iterator[Mutation]:
    honest: Any = content[METRICS][name]
    first = honest[0] if isinstance(honest, list) and honest else honest

    def changed(kind: str, value: Any) -> Mutation:
        copy = _copy(content)
        copy[METRICS] = raw({**copy[METRICS], name: value})
        return Mutation(name, kind, copy)

    values = {
        **{
            "nan": float("nan"),
            "inf": float("inf"),
            "minus inf": -float("inf"),
            "1e30": 1e30,
            "-1e30": -1e30,
            "2^70": 2**70,
        },
        **{
            "minus five": -5,
            "minus a half": -0.5,
            "bool": True,
            "text": "[/data/x]\x1b[31m<script>",
            "none": None,
            "bytes": b"x",
        },
        **{
            "half": 0.5,
            "1e9": 1e9,
            "another's": other,
            "next": (first or 0) + 1 if isinstance(first, int | float) else 1,
        },
        **{"float": float(first) if isinstance(first, int | float) else 1.0, "dict": {"a": 1}},
    }
    for kind, value in values.items():
        yield changed(kind, [value, *honest[1:]] if isinstance(honest, list) else value)
    yield changed(
        "list of it" if not isinstance(honest, list) else "first of it", [first] if honest is first else first
    )
    yield changed("empty list", [])
    yield changed("long list", [first] * 5000)
    yield changed("one value more", [*honest, first] if isinstance(honest, list) else [first, first])
    yield changed("lists in a list", [[first]])
    copy = _copy(content)
    copy[METRICS] = raw({k: v for k, v in copy[METRICS].items() if k != name})
    yield Mutation(name, "missing", copy)
    renamed = _copy(copy)
    renamed[METRICS] = raw({**copy[METRICS], f"{name} [/b]\x1b[2J<script>": honest})
    yield Mutation(name, "renamed to text", renamed)
    more = _copy(content)
    more[METRICS] = raw({**more[METRICS], f"{name}-more": honest})
    yield Mutation(name, "one more", more)

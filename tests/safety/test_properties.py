"""Any bytes are read as a declared reply or refused with an error message; what is sent comes back as it was."""

import contextlib
import math

import numpy as np
import pytest
from flwr.app import Array, MetricRecord, RecordDict
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.secure.policy import Ledger
from fedgraph_flwr.wire.messages import decode, from_record, to_record
from fedgraph_flwr.wire.reply_schema import HUGE, ArrayField, NumberField, ReplySchema, check, up_to
from tests.safety.mutations import claimed, raw, record_of

DTYPES = st.sampled_from(["float32", "float64", "int64", "int32", "uint8", "uint64", "bool"])
AXES = st.one_of(st.integers(0, 4), st.integers(0, 4).map(up_to))
FIELDS = st.builds(ArrayField, st.lists(AXES, max_size=3).map(tuple), DTYPES, st.sampled_from([-math.inf, 0.0, -1.0]))
NUMBERS = st.builds(
    NumberField,
    low=st.sampled_from([-math.inf, 0, 1]),
    high=st.sampled_from([math.inf, 1, 10]),
    whole=st.booleans(),
    length=st.one_of(st.none(), AXES),
    nan=st.booleans(),
    optional=st.booleans(),
)
NAMES = st.sampled_from(["a", "b", "c"])
SCHEMAS = st.builds(
    ReplySchema,
    st.dictionaries(st.sampled_from(["model", "x"]), st.dictionaries(NAMES, FIELDS, max_size=2), max_size=2),
    st.dictionaries(NAMES, NUMBERS, max_size=3),
)
SCALARS = st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=3), st.none(), st.binary(max_size=3))
ARRAYS = st.one_of(
    DTYPES.flatmap(lambda d: npst.arrays(d, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))).map(
        lambda a: to_record({"a": a})["a"]
    ),
    st.builds(
        claimed,
        st.one_of(DTYPES, st.text(max_size=8)),
        st.lists(st.one_of(st.integers(-(2**40), 2**40), st.floats(), st.booleans()), max_size=4).map(tuple),
        st.binary(max_size=200),
        st.sampled_from(["numpy.ndarray", "", "pickle"]),
    ),
)
RECORDS = st.one_of(
    st.dictionaries(
        st.one_of(NAMES, st.text(max_size=5)), st.one_of(SCALARS, st.lists(SCALARS, max_size=4)), max_size=4
    ).map(raw),
    st.dictionaries(st.one_of(NAMES, st.text(max_size=5)), ARRAYS, max_size=3).map(record_of),
)
CONTENTS = st.dictionaries(st.sampled_from(["metrics", "model", "x", "config", ""]), RECORDS, max_size=4).map(
    RecordDict
)


@settings(max_examples=100)
@given(SCHEMAS, CONTENTS)
def test_an_answer_is_as_declared_or_refused_with_a_sentence(schema, content):
    refusal = ""
    try:
        assert_as_declared(schema, *schema.read(content, "client 3 replied to phase 'train'"))
    except FedGraphError as error:
        refusal = str(error)
    assert not refusal or refusal.startswith("client 3 replied to phase 'train' with")
    assert not refusal or refusal.isprintable()


def assert_as_declared(schema, groups, numbers):
    """The declaration once more, the slow way."""
    for name, fields in schema.groups.items():
        for key, wanted in fields.items():
            array = groups[name][key]
            assert str(array.dtype) == wanted.dtype
            assert len(array.shape) == len(wanted.shape)
            assert all(
                n in a if isinstance(a, range) else n == a for n, a in zip(array.shape, wanted.shape, strict=True)
            )
            for value in array.ravel().tolist():
                assert wanted.low <= value <= wanted.high
                assert array.dtype.kind != "f" or abs(value) <= HUGE
    assert numbers.keys() <= schema.numbers.keys()
    for name, wanted in schema.numbers.items():
        assert wanted.optional or name in numbers
        if name in numbers:
            assert isinstance(numbers[name], list) == (wanted.length is not None)
            for value in numbers[name] if isinstance(numbers[name], list) else [numbers[name]]:
                assert type(value) in ((int,) if wanted.whole else (int, float))
                assert wanted.low <= value <= wanted.high or (wanted.nan and value != value)


def honest(schema):
    """A reply as declared."""

    def size(axis):
        return axis[len(axis) // 2] if isinstance(axis, range) else axis

    def number(wanted):
        one = int(max(wanted.low, min(wanted.high, 1)))
        return one if wanted.length is None else [one] * size(wanted.length)

    groups = {
        group: {key: np.ones(tuple(map(size, f.shape)), f.dtype) for key, f in fields.items()}
        for group, fields in schema.groups.items()
    }
    content = {name: to_record(arrays) for name, arrays in groups.items()}
    return RecordDict({**content, "metrics": MetricRecord({n: number(w) for n, w in schema.numbers.items()})}), groups


@given(SCHEMAS.filter(lambda s: all(n.low <= n.high for n in s.numbers.values())))
def test_an_honest_answer_is_read(schema):
    content, groups = honest(schema)
    received, _ = schema.read(content, "client 3")
    assert received.keys() == groups.keys()
    for group, arrays in groups.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(received[group][name], array)
        check(arrays, schema.groups[group], "client 3")


@given(
    st.dictionaries(
        st.text(max_size=6),
        DTYPES.flatmap(lambda d: npst.arrays(d, npst.array_shapes(min_dims=0, min_side=0))),
        max_size=3,
    )
)
def test_what_is_sent_comes_back(arrays):
    copies = from_record(to_record(arrays))
    assert copies.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (copies[name].dtype, copies[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(copies[name], array)


@settings(max_examples=200)
@example(claimed(",", (), b"", "numpy.ndarray"))
@given(ARRAYS)
def test_bytes_are_decoded_or_refused_with_a_sentence(array: Array):
    with contextlib.suppress(FedGraphError):
        values = decode("w", array)
        assert values.dtype == np.dtype(array.dtype)
        assert values.dtype.kind != "O"


def test_a_reply_far_larger_than_declared_is_refused_unread(monkeypatch):
    """No byte of it is decoded."""

    def never(name, array):
        raise AssertionError("decoded")

    monkeypatch.setattr("fedgraph_flwr.wire.reply_schema.decode", never)
    schema = ReplySchema({"model": {"w": ArrayField((3,))}})
    for array in (claimed("float32", (10**9,), bytes(100)), claimed("float32", (3,), bytes(2**20))):
        with pytest.raises(FedGraphError, match="client 3 with"):
            schema.read(RecordDict({"model": record_of({"w": array}), "metrics": MetricRecord({})}), "client 3")


@given(
    st.lists(st.tuples(st.sampled_from(["train", "moments"]), st.integers(0, 4), st.integers(0, 3)), max_size=30),
    st.integers(1, 3),
)
def test_no_question_is_answered_twice(questions, most):
    """Against a set of all replies; a ledger goes to disk after each."""
    answered: list[tuple[str, int, int]] = []
    ledger = Ledger()
    for phase, server_round, exchange in questions:
        allowed = (
            all(server_round >= r for _, r, _ in answered)
            and sum((p, r) == (phase, server_round) for p, r, _ in answered) < most
            and all(exchange > e for p, r, e in answered if (p, r) == (phase, server_round))
        )
        try:
            ledger.add(phase, server_round, exchange, most)
        except FedGraphError:
            assert not allowed
        else:
            assert allowed
            answered.append((phase, server_round, exchange))
        ledger = Ledger(ledger.record())

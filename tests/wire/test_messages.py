"""Arrays to messages and back, their sizes, and random streams."""

import pickle

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.wire.messages import (
    bared,
    check_arrays,
    derive_seed,
    dressed,
    from_record,
    is_finite,
    numbers_record,
    pack,
    payload_bytes,
    to_record,
    weighted_mean,
)
from fedgraph_flwr.wire.trees import unflatten

ARRAYS: dict[str, np.ndarray] = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "transposed": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    "scalar": np.array(3.5),
    "empty": np.zeros((0, 4), np.float32),
    "ids": np.array([1, 2**40], dtype=np.int64),
    "flags": np.array([True, False]),
}


def test_bytes_are_those_that_flower_itself_writes_and_reads():
    ours = to_record(ARRAYS)
    for name, array in ARRAYS.items():
        assert ours[name].data == Array(np.asarray(array, order="C")).data
        np.testing.assert_array_equal(ours[name].numpy(), array)


def test_a_record_made_at_once_is_the_one_that_flower_makes():
    numbers = {"a": 1.5, "n": 3, "l": [0.5, 2.0], "i": [1, 2], "none": []}
    assert numbers_record(numbers).deflate() == MetricRecord(numbers).deflate()
    assert type(to_record(ARRAYS)["ids"]) is Array
    assert (
        to_record(ARRAYS).deflate()
        == ArrayRecord({n: Array(np.asarray(a, order="C")) for n, a in ARRAYS.items()}).deflate()
    )


@pytest.mark.parametrize("value", [True, "1", None, [True], ["1"], [1, 0.5], [[1.0]], np.int64(1), (1, 2)], ids=repr)
def test_a_record_of_numbers_takes_what_flower_takes(value):
    with pytest.raises(TypeError):
        MetricRecord({"a": value})
    with pytest.raises(TypeError):
        numbers_record({"a": value})


def test_a_record_takes_names_alone():
    with pytest.raises(TypeError):
        numbers_record({1: 0.5})
    with pytest.raises(TypeError):
        to_record({1: np.zeros(2)})


def test_a_content_without_its_classes_comes_back_the_same():
    content = pack({"model": ARRAYS, "none": {}})
    content["numbers"] = MetricRecord({"a": [0.5], "b": 2})
    content["words"] = ConfigRecord({"phase": "train", "flag": True, "bytes": b"x"})
    again = dressed(pickle.loads(pickle.dumps(bared(content))))
    assert list(again) == list(content)
    for key, record in content.items():
        assert type(again[key]) is type(record)
        assert again[key].deflate() == record.deflate()


def test_round_trip():
    for name, array in from_record(to_record(ARRAYS)).items():
        np.testing.assert_array_equal(array, ARRAYS[name])
        assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)


@pytest.mark.parametrize("field", ["dtype", "shape", "data", "stype"])
def test_a_message_that_lies_about_an_array_is_refused(field):
    honest = to_record({"w": np.ones((2, 3), np.float32)})["w"]
    lie = {"dtype": "object", "shape": (9, 9), "data": honest.data[:-4], "stype": "pickle"}
    parts = {"dtype": honest.dtype, "shape": honest.shape, "stype": honest.stype, "data": honest.data} | {
        field: lie[field]
    }
    with pytest.raises(FedGraphError, match="cannot read array 'w' of a message"):
        from_record(ArrayRecord({"w": Array(**parts)}))


@pytest.mark.parametrize("dtype", [",", ",f4", "f4,f4", "(2,)f4", "", "O", "V8", "U2", "datetime64[ns]", "float32\n"])
def test_an_array_of_anything_but_numbers_is_refused(dtype):
    """`np.dtype(",")` raises SyntaxError: NumPy evaluates what it takes for a list of fields."""
    array = Array(dtype=dtype, shape=(0,), stype="numpy.ndarray", data=b"")
    with pytest.raises(FedGraphError, match=r"array 'w' .* expected bool or a type of numbers"):
        from_record(ArrayRecord({"w": array}))


def test_payload_counts_arrays_numbers_and_text():
    content = pack({"arrays": {"w": np.ones((2, 3), np.float32)}})
    content["config"] = ConfigRecord({"phase": "train", "round": 3})
    content["metrics"] = MetricRecord({"loss": 0.5, "scores": [1.0, 2.0]})
    assert payload_bytes(content) == 24 + 5 + 8 + 8 + 16
    assert payload_bytes(RecordDict()) == 0


def test_check_arrays_names_what_is_wrong():
    good = {"w": np.ones(3)}
    check_arrays(good, {"w": (3,)}, "client 1")
    with pytest.raises(FedGraphError, match=r"client 1 must send exactly the shared arrays; .* b"):
        check_arrays({**good, "b": np.ones(1)}, {"w": (3,)}, "client 1")
    with pytest.raises(FedGraphError, match=r"'w' of shape \(3,\), expected \(4,\)"):
        check_arrays(good, {"w": (4,)}, "client 1")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_infinite_and_unknown_values_are_not_finite(dtype):
    for odd in ([1.0, np.inf, 0.0], [np.inf, -np.inf, 1.0], [0.0, 0.0, np.nan]):
        assert not is_finite(np.array(odd, dtype))
    assert is_finite(np.full((3, 2), np.finfo(dtype).max, dtype))  # whose sum is not finite
    assert is_finite(np.zeros((0, 2), dtype))
    assert is_finite(np.array([[1, 2]], "int64"))


def test_streams_do_not_repeat():
    seeds = {
        derive_seed(s, c, r, p) for s in range(3) for c in range(3) for r in range(3) for p in ("train", "moments")
    }
    assert len(seeds) == 54
    assert derive_seed(1, 23) != derive_seed(12, 3)
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("paths", [["a", "a/b"], ["a/b", "a"], ["a/b", "a/b/c"]])
def test_a_path_is_a_leaf_or_a_branch(paths):
    with pytest.raises(FedGraphError, match=rf"invalid tree of tensors: '{paths[1]}' is"):
        unflatten({path: torch.zeros(1) for path in paths})


def test_a_mean_needs_a_weight():
    with pytest.raises(
        FedGraphError, match=r"weights of this round's clients sum to 0.* set strategy\.weighting=uniform"
    ):
        weighted_mean([ARRAYS, ARRAYS], [0, 0])

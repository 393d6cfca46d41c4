"""`benchmarks/same_bits.py`: what counts as a difference, and what its scenarios cover."""

import json

import numpy as np
import pytest

from benchmarks import rows, same_bits
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.config import group_names

ONE, TWO = np.ones(3, np.float32), np.full(2, 7, np.uint8)


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        ([ONE, TWO], [ONE, TWO], ""),
        ([ONE], [ONE * (1 + 2**-23)], "largest difference 1.2e-07"),
        ([ONE], [ONE[:2]], "other shapes"),
        ("no", "not", ""),
        ("no", [ONE], "refused now: no"),
        ([ONE], "no", "refused before: no"),
        (same_bits.MISSING, [ONE], "not there now"),
        ("no", same_bits.MISSING, "not there before"),
        ({"a": TWO, "b": TWO}, {"a": TWO, "b": TWO}, ""),
        ({"a": TWO, "b": TWO}, {"a": TWO, "b": TWO + 1, "c": TWO}, "other files: b, c"),
    ],
)
def test_differences(now, before, expected):
    assert same_bits.compare(now, before) == expected


def test_only_the_order_of_a_headers_keys_is_no_difference(tmp_path):
    def stored(header: dict, data: bytes) -> bytes:
        text = json.dumps(header).encode()
        (path := tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
        return same_bits.canonical(path)

    assert stored({"a": 1, "b": 2}, b"xy") == stored({"b": 2, "a": 1}, b"xy")
    assert stored({"a": 1}, b"xy") != stored({"a": 2}, b"xy")
    assert stored({"a": 1}, b"xy") != stored({"a": 1}, b"xz")


def test_every_task_and_command_is_a_scenario():
    assert {*same_bits.TASKS, "nodes"} == set(group_names("task"))
    commands = {"import", "link", "predict", "start", "party", "alerts", "explain", "forget"}
    assert set(same_bits.cases()) == commands
    lines = [line for group in same_bits.cases().values() for case in group.values() for line in case]
    assert all(isinstance(line, str) and line.split()[0] for line in lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "fedavg"], "all methods"),
        (["--scenarios", "plain,secagg"], "in the scenario rows"),
        ([], "no stored row has the digest"),
    ],
)
def test_what_cannot_renew_is_refused_before_hours_of_runs(monkeypatch, words, said):
    monkeypatch.setattr(rows, "digests", lambda words, at: dict.fromkeys(words, "another"))
    monkeypatch.setattr(same_bits, "prepare", lambda *_: pytest.fail("it began"))
    monkeypatch.setattr("sys.argv", ["same_bits", "elsewhere", "--renew", *words])
    with pytest.raises(SystemExit, match=said):
        same_bits.main()


def test_columns_of_far_ends_are_scenarios_in_every_form():
    shared = [word for words in same_bits.SCENARIOS.values() for word in words if word.startswith("partition.share=")]
    assert [form in word for word, form in zip(shared, ("n_out_2d]", ":exact", ":eps=", "edges."), strict=True)] == [
        True
    ] * 4


def test_listed_differences_have_a_reason():
    assert all(len(line) == 3 for line in same_bits.read_expected(same_bits.EXPECTED))


def test_a_method_that_refuses_one_type_of_nodes_trains_on_several(tmp_path, monkeypatch):
    typed: list[list[str]] = []

    def command(words: list[str]) -> int:
        if "dataset=typed" not in words:
            return main(words)
        typed.append(words)
        return 0

    monkeypatch.setattr(same_bits, "arrays", lambda folder: [ONE])
    assert same_bits.trained(command, "plain", "fedhgn", 1, tmp_path / "out") == [ONE]
    assert len(typed) == 1

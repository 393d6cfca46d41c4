"""Files that are not as they must be: one error message each, whatever is wrong with them."""

import contextlib
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedgraph_flwr import cli, partition
from fedgraph_flwr.config import compose, group_names, to_json, to_yaml
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.wire.trees import flatten, unflatten
from tests.conftest import client_graph
from tests.safety import fuzz

N = 16
NONE = torch.zeros(N, dtype=torch.bool)
IDS = torch.arange(N)

WRONG = {
    "a mask too short": ({"train_mask": NONE[1:]}, r"train_mask must be torch.bool \[16\], got torch.bool \[15\]"),
    "a mask of numbers": ({"val_mask": NONE.long()}, r"val_mask must be torch.bool \[16\], got torch.int64 \[16\]"),
    "masks that overlap": ({"train_mask": ~NONE, "val_mask": ~NONE, "test_mask": NONE}, "must not overlap; node 0"),
    "a marked node without label": ({"y": IDS * 0 - 1}, "marks node .*, which has no label"),
    "a label too high": ({"y": IDS}, r"labels must be in 0\.\.2, or -1 where unknown; node 3 has 3"),
    "labels of another kind": ({"y": IDS.float()}, r"y must be torch.int64 \[any\], got torch.float32"),
    "an edge too far": ({"edge_index": torch.tensor([[0], [16]])}, r"row 1, must be in 0\.\.15; place 0 has 16"),
    "an edge below": ({"edge_index": torch.tensor([[-1], [3]])}, r"row 0, must be in 0\.\.15; place 0 has -1"),
    "edges of another kind": ({"edge_index": torch.zeros(2, 3, dtype=torch.int32)}, "edge_index must be torch.int64"),
    "edges transposed": (
        {"edge_index": torch.zeros(3, 2, dtype=torch.int64)},
        r"edge_index must be torch.int64 \[2, any\]",
    ),
    "features of another length": ({"x": torch.zeros(15, 5)}, r"x must be torch.float32 \[16, any\]"),
    "features in double": ({"x": torch.zeros(16, 5).double()}, "x must be torch.float32"),
    "a feature that is none": (
        {"x": torch.full((16, 5), torch.nan)},
        "node 0 has nan in column 0: fill it, or drop the node",
    ),
    "a feature without end": ({"x": torch.full((16, 5), torch.inf)}, "x must be finite; node 0 has inf in column 0"),
    "ids too many": ({"node_id": torch.arange(17)}, r"node_id must be torch.int64 \[16\]"),
    "ids beyond the graph": ({"num_global_nodes": 5}, r"node_id must be in 0\.\.4; place 5 has 5"),
    "ids of a graph without nodes": ({"num_global_nodes": 0}, r"node_id must be in 0\.\.-1; place 0 has 0"),
    "statistics of other targets": (
        {"target_stats": torch.ones(2, 3, dtype=torch.float64)},
        r"target_stats must be torch.float64 \[2, 0\]",
    ),
    "a cut edge from nowhere": (
        {"cut_out": torch.tensor([[16], [5]]), "cut_out_owner": torch.tensor([1])},
        r"cut_out, row 0, must be in 0\.\.15",
    ),
    "a cut edge without owner": ({"cut_in": torch.tensor([[1], [5]])}, r"cut_in_owner must be torch.int64 \[1\]"),
    "an owner that is not there": (
        {"cut_in": torch.tensor([[1], [5]]), "cut_in_owner": torch.tensor([3])},
        r"cut_in_owner must be in 0\.\.2; place 0 has 3",
    ),
    "another client": ({"client": 3}, r"client must be an integer, 0\.\.2, got 3"),
    "classes of another kind": ({"num_classes": "3"}, "num_classes must be an integer, at least 1, got '3'"),
    "classes beyond counting": ({"num_classes": 10**30}, "num_classes must be an integer, at least 1, got 1000"),
    "a name that is none": ({"name": 7}, "name must be a string, got 7"),
    "records of another width": (
        {
            "linking": {"parties": ["b"]},
            "foreign": torch.zeros(2, 1, dtype=torch.int64),
            "foreign_out": NONE[:1],
            "foreign_id": torch.zeros(1, 1, dtype=torch.uint8),
            "foreign_key": torch.zeros(1, 1, dtype=torch.uint8),
            "foreign_edge_attr": torch.zeros(1, 2),
        },
        r"foreign_edge_attr must be torch.float32 \[1, 0\], got torch.float32 \[1, 2\]",
    ),
    "groups too few": ({"group": IDS[3:]}, r"group must be torch.int64 \[16\]"),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_client_file_whose_parts_do_not_fit_is_a_sentence(tmp_path, how):
    changes, message = WRONG[how]
    path = tmp_path / "client_0000.safetensors"
    replace(client_graph(0), **changes).save(path)
    with pytest.raises(FedGraphError, match=message) as caught:
        partition.load(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_large_features_whose_sum_has_no_end_are_finite(tmp_path):
    path = tmp_path / "client_0000.safetensors"
    replace(client_graph(0), x=torch.full((16, 5), 3e38)).save(path)
    assert partition.load(path).x.max() == 3e38


def test_typed_clients_are_checked_too(tmp_path):
    path, whole = tmp_path / "client_0000.safetensors", fuzz.typed_client()
    whole.save(path)
    partition.load(path)
    (kind,) = whole.edges
    for changes, message in (
        ({"edges": {kind: torch.tensor([[4], [0]])}}, r"edges of 'writes', row 0, must be in 0\.\.3; place 0 has 4"),
        ({"counts": {"paper": 6, "author": "4"}}, "node type 'author' must have a node count of at least 0, got '4'"),
        ({"x": {"paper": torch.zeros(5, 3)}}, r"x of 'paper' must be torch.float32 \[6, any\]"),
        (
            {"edge_attr": {kind: torch.zeros(2, 2)}},
            r"edge_attr of 'author:writes:paper' must be torch.float32 \[3, any\]",
        ),
        ({"edge_attr": {kind: torch.full((3, 1), torch.nan)}}, "edge_attr of 'author:writes:paper' .*edge 0"),
        ({"x": {}, "part": torch.ones(1)}, r"part must be torch.int64 \[0\]"),
        ({"val_mask": whole.train_mask.clone()}, "must not overlap"),
    ):
        replace(whole, **changes).save(path)
        with pytest.raises(FedGraphError, match=message):
            partition.load(path)


def test_a_flipped_bit_in_a_client_file_is_seen(tmp_path):
    path = tmp_path / "client_0000.safetensors"
    client_graph(0).save(path)
    data = bytearray(path.read_bytes())
    data[-9] ^= 4
    path.write_bytes(bytes(data))
    with pytest.raises(FedGraphError, match="is damaged"):
        ClientGraph.load(path)


def test_folders_of_killed_partition_calls_go(tmp_path, monkeypatch):
    import os
    import platform

    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))
    args = [
        "partition",
        "dataset=csbm",
        "dataset.nodes_per_client=[30,30]",
        "num_clients=2",
        "partition=random",
        "--out",
        str(tmp_path / "parts"),
    ]
    assert cli.main(args) == 0
    (cached,) = (tmp_path / "root/fedgraph/partitions").glob("csbm-*[!k]")
    dead = 2**22 + 1  # above the largest number that a process has
    here, other = platform.node(), "another-machine"
    gone = [cached.parent / f".{cached.name}.{here}.{dead}", tmp_path / f".parts.{here}.{dead}"]
    kept = [
        tmp_path / f".parts.{other}.{dead}",
        tmp_path / f".parts.{here}.{os.getppid()}",
        tmp_path / f".partsX.{here}.{dead}",
    ]
    for folder in [*gone, *kept]:
        folder.mkdir()
        (folder / "client_0000.safetensors").write_text("half")
    (cached / "partition.json").unlink()  # so that it is made again
    assert cli.main(args) == 0
    assert not any(folder.exists() for folder in gone)
    assert all(folder.exists() for folder in kept)


# --- properties ---------------------------------------------------------------------------------------------------------

QUICK = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    return fuzz.targets(tmp_path_factory.mktemp("files"))


READ = "client, typed client, dataset, checkpoint, state, rounds, saved, nodes, policy, asked, key, peers, kept model"


@pytest.mark.parametrize("name", READ.split(", "))
def test_whatever_a_file_holds_it_is_read_or_refused_in_a_sentence(targets, name):
    outcomes = [fuzz.case(targets[name], seed) for seed in range(40)]
    assert set(outcomes) <= {"read", "refused"}, next(o for o in outcomes if o not in ("read", "refused"))
    assert "refused" in outcomes


def test_the_fuzzer_finds_a_reader_that_trips(targets):
    outcome = fuzz.case(fuzz.Target(targets["rounds"].path, lambda path: [][1]), 0)
    assert "IndexError" in outcome


KEYS = [
    "rounds",
    "seed",
    "threads",
    "train.lr",
    "train.momentum",
    "strategy.timeout",
    "strategy.shared",
    "model.hidden",
]
KEYS += [
    "split.train",
    "strategy.params",
    "dataset.params",
    "evaluation.every",
    "model.foo",
    "a.b.c",
    "dataset",
    "protocol",
]


@pytest.mark.slow
@QUICK
@given(st.sampled_from(KEYS), st.text(max_size=20) | st.integers().map(str) | st.floats().map(str))
def test_any_word_of_a_command_line_composes_or_is_refused_in_a_sentence(key, value):
    cfg = None
    with contextlib.suppress(FedGraphError):
        cfg = compose([f"{key}={value}"])
    assert cfg is None or compose([], to_json(cfg)) == cfg


@pytest.mark.slow
@settings(QUICK, max_examples=8)
@given(
    st.fixed_dictionaries(
        {
            "strategy": st.sampled_from(group_names("strategy")),
            "protocol": st.sampled_from(group_names("protocol")),
            "seed": st.integers(0, 2**63 - 1),
            "rounds": st.integers(1, 2**31 - 1),
            "train.lr": st.floats(1e-300, 1e300),
            "threads": st.integers(1, 256),
        }
    )
)
def test_what_was_composed_is_composed_again_from_yaml_and_json(tmp_path, overrides):
    cfg = compose([f"{key}={value}" for key, value in overrides.items()])
    (tmp_path / "config.yaml").write_text(to_yaml(cfg))
    assert compose([], tmp_path / "config.yaml") == cfg == compose([], to_json(cfg))


LEAVES = st.lists(st.floats(width=32), max_size=3).map(torch.tensor)
NAMES = st.text(st.characters(blacklist_characters="/", blacklist_categories=["Cs"]), min_size=1, max_size=4)


@QUICK
@given(st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=8))
def test_a_tree_comes_back_from_its_flat_form(leaf):
    tree = {"top": leaf}
    back = unflatten(flatten(tree))
    assert str(back) == str(tree)

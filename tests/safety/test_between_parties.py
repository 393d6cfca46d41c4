"""Features of nodes cross parties only where the table of docs/between-parties.md says, and that table names tests that exist."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedgraph_flwr import partition
from fedgraph_flwr.strategies.replies import ReplyReader
from fedgraph_flwr.wire.messages import MODEL, groups_of
from tests.support import recorded_messages

ROOT = Path(__file__).parents[2]


def revealed(go, method: str, *overrides: str) -> tuple[int, set[str], int]:
    """Probe one run for features of nodes.

    Returns:
        The number of clients' rows that are a node's features up to a factor, the phases and groups of all uploads, and the
        number of rows that the server sends a client and that are features of another client's node.
    """
    uploads: list[tuple[str, np.ndarray]] = []
    read = ReplyReader.read

    def spy(self, phase, message, client):
        reply = read(self, phase, message, client)
        for group, arrays in reply.groups.items():
            uploads.extend((f"{phase}/{group}", np.asarray(array)) for array in arrays.values())
        return reply

    with pytest.MonkeyPatch.context() as patch, recorded_messages(patch) as messages:
        patch.setattr(ReplyReader, "read", spy)
        finished = go(method, "rounds=1", *overrides)
    x = [partition.load_client(finished.cfg, client).x.numpy() for client in range(3)]
    down = [(node - 1, groups_of(content)) for way, node, content in messages if way == "down"]
    received = [(client, array) for client, groups in down for name, group in groups.items() if name != MODEL
                for array in group.values()]  # fmt: skip
    others = sum(of_nodes(array, np.concatenate([x[k] for k in range(3) if k != client])) for client, array in received)
    return sum(of_nodes(array, np.concatenate(x)) for _, array in uploads), {name for name, _ in uploads}, others


def of_nodes(array: np.ndarray, x: np.ndarray) -> int:
    """Number of an array's rows that are a row of x up to a factor."""
    if array.ndim != 2 or array.shape[1] != x.shape[1] or array.dtype.kind != "f":
        return 0
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    alike = abs(array @ units.T) > (1 - 1e-5) * np.linalg.norm(array, axis=1, keepdims=True)
    return int(alike.any(1)[array.any(1)].sum())


@pytest.mark.parametrize(
    ("form", "seen"),
    [
        (["fedgcn", "strategy.min_nodes=2"], False),
        (["fedgcn"], True),
        (["fedsage_true"], True),
        pytest.param(["fedstruct", "model.structure_hops=2"], False, marks=pytest.mark.slow),
        pytest.param(
            ["fedstruct", "model.structure_hops=2", "strategy.features=degree"], False, marks=pytest.mark.slow
        ),
        pytest.param(["fedstruct_private", "model.structure_hops=2"], False, marks=pytest.mark.slow),
        pytest.param(["fedstruct_a"], False, marks=pytest.mark.slow),
    ],
    ids=lambda form: " ".join(form) if isinstance(form, list) else "",
)
def test_features_cross_only_where_the_table_says(go, form, seen):
    """FedGCN without a minimum and FedSage-true show features of single nodes, so the probe would see them elsewhere."""
    count, groups, received = revealed(go, *form)
    assert (count > 0) == seen, count
    assert (received > 0) == seen, received  # what the server sends on
    assert ("reveal/graph" in groups) == (form[0] == "fedstruct_a")  # the only upload of edges


def test_the_tables_of_cut_edges_name_tests_that_exist():
    table = (
        (ROOT / "docs" / "between-parties.md")
        .read_text()
        .partition("## Methods that read cut edges")[2]
        .partition("\n## ")[0]
    )
    named = set(re.findall(r"`(test_\w+)`", table))
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) >= 5
    assert not {name for name in named if f"def {name}(" not in sources}

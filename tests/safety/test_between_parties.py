"""Features of nodes cross parties only where the table of SECURITY.md says, and that table names tests that exist."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedgraph_flwr import partition
from fedgraph_flwr.strategies.base import GraphStrategy
from tests.methods.small_runs import small_runs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def go(tmp_path_factory):
    with small_runs(tmp_path_factory.mktemp("features")) as run:
        yield run


def revealed(go, method: str, *overrides: str) -> tuple[int, set[str]]:
    """Number of clients' rows that are a node's features up to a factor, and the phases and groups of all uploads."""
    uploads: list[tuple[str, np.ndarray]] = []
    read = GraphStrategy.read

    def spy(self, phase, message, client):
        reply = read(self, phase, message, client)
        for group, arrays in reply.groups.items():
            uploads.extend((f"{phase}/{group}", np.asarray(array)) for array in arrays.values())
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphStrategy, "read", spy)
        finished = go(method, "rounds=1", *overrides)
    x = np.concatenate([partition.load_client(finished.cfg, client).x.numpy() for client in range(3)])
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    rows = [a for _, a in uploads if a.ndim == 2 and a.shape[1] == x.shape[1] and a.dtype.kind == "f"]
    return sum(int((abs((row @ units.T)) > (1 - 1e-5) * np.linalg.norm(row, axis=1, keepdims=True)).any(1)[row.any(1)].sum())
               for row in rows), {name for name, _ in uploads}  # fmt: skip


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
    count, groups = revealed(go, *form)
    assert (count > 0) == seen, count
    assert ("reveal/graph" in groups) == (form[0] == "fedstruct_a")  # the only upload of edges


def test_the_tables_of_cut_edges_name_tests_that_exist():
    table = (ROOT / "SECURITY.md").read_text().partition("## Methods that read cut edges")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", table))
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) >= 5
    assert not {name for name in named if f"def {name}(" not in sources}

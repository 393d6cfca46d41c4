"""Six months of three honest banks with secure sums: files that are imported again each month, at nodes with keys and state."""

from pathlib import Path

import pytest

from fedgraph_flwr.fleet.keys import make_node
from tests.conftest import client_graph
from tests.nodes import party_nodes
from tests.secure.rounds import SECURE

MONTHS = 6
START = (40, 56, 48)
"""Nodes of each bank in the first month."""
DRIFT = ((1.03, 0.99, 1.01), (0.98, 1.05, 1.04), (1.04, 1.01, 0.95), (1.05, 1.02, 1.03), (0.97, 0.96, 1.05))
"""Growth of each bank's file in the next months: at most 5 %."""

SHORT = ["rounds=2", "model.dropout=0", "strategy.min_clients=3", "num_clients=3"]
METHODS = {
    "fedavg": [],
    "fedprox": ["strategy=fedprox"],
    "scaffold": ["strategy=scaffold", "train.optimizer=sgd"],
    "uniform": ["strategy.weighting=uniform"],
    "nodes": ["strategy.weighting=nodes"],
    "scores by nodes": ["evaluation.average=nodes"],
    "fedomd": ["strategy=fedomd", "strategy.cmd_range=unit"],
    "trees": [
        *("strategy=boosting", "strategy.mode=histogram", "strategy.depth=1", "strategy.bins=4"),
        *("strategy.per_round=1", "strategy.min_data_in_leaf=5", "evaluation.select=last"),
    ],
}


class Months:
    """Banks whose node folders outlive their files."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self.folder, self.patch = folder, patch
        self.sizes = [float(size) for size in START]
        (folder / "policy.yaml").write_text("min_clients: 3\n")
        for bank in range(len(START)):
            make_node(folder / "keys" / f"node_{bank}")

    def imported(self, month: int) -> Path:
        """The files of a month."""
        folder = self.folder / f"month_{month}"
        for bank, size in enumerate(self.sizes):
            client_graph(bank, round(size), seed=month).save(folder / f"client_{bank:04d}.safetensors")
        party_nodes(
            self.patch,
            sorted(folder.glob("*.safetensors")),
            self.folder / "policy.yaml",
            self.folder / "state",
            self.folder / "keys",
        )
        return folder


@pytest.fixture
def months(tmp_path, monkeypatch):
    (tmp_path / "keys").mkdir()
    return Months(tmp_path, monkeypatch)


@pytest.mark.parametrize("method", [pytest.param(m, marks=() if m == "fedavg" else pytest.mark.slow) for m in METHODS])
def test_every_month_ends_with_a_model(method, run, months):
    for month in range(MONTHS):
        done = run(*SHORT, SECURE, *METHODS[method], f"graph={months.imported(month)}")
        assert done.summary["failures"] == {}, month
        assert len(done.rounds) == 2
        if month < len(DRIFT):
            months.sizes = [size * grown for size, grown in zip(months.sizes, DRIFT[month], strict=True)]

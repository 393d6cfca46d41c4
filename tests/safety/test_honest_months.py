"""Six months of three honest banks with secure sums: files that are imported again each month, at nodes with keys and state."""

import shutil
from pathlib import Path

import pytest

from fedgraph_flwr.config import compose, configuration
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet.keys import make_node
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.strategies.loop import Loop
from tests.conftest import client_graph
from tests.nodes import agreed, party_nodes
from tests.secure.rounds import SECURE
from tests.support import Finished, assert_same_arrays

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


def test_agreed_months_count_members_alike_and_need_no_pinned_folder(run, months, tmp_path):
    """The nodes read keys, weights and runs from the agreement; each month is one of its runs."""
    words, seeds = [*SHORT, SECURE, "strategy.weighting=uniform"], set()
    shutil.copytree(tmp_path / "keys", tmp_path / "own", ignore=shutil.ignore_patterns("*.pub"))
    for month in range(2):
        graphs = months.imported(month)
        cfg = compose(["model.hidden=8", *words, f"graph={graphs}"])
        digest = agreed(tmp_path / "agreement.yaml", cfg, tmp_path / "keys")
        party_nodes(
            months.patch,
            sorted(graphs.glob("*.safetensors")),
            tmp_path / "policy.yaml",
            tmp_path / "state",
            tmp_path / "own",
            tmp_path / "agreement.yaml",
        )
        done = run(*words, f"graph={graphs}", f"agreement={digest}/{month + 1}")
        assert done.summary["failures"] == {}
        seeds.add(done.summary["seed"])
        months.sizes = [size * grown for size, grown in zip(months.sizes, DRIFT[month], strict=True)]
    assert len(seeds) == 2, "each run has a seed of its own"
    assert 0 not in seeds
    for words_of, reason in (
        ([*words, f"agreement={digest}/1"], "run 1 of .* is used up"),
        ([*words, "rounds=1", f"agreement={digest}/3"], "rounds is 1, signed was 2"),
        (words, "the run is under no agreement"),
    ):
        with pytest.raises(FedGraphError, match=reason):
            run(*words_of, f"graph={graphs}")


class Killed(BaseException):
    """The server's process ends."""


def test_a_cut_run_resumes_with_its_seed(run, months, tmp_path, monkeypatch):
    """Whole and resumed runs have one number, hence one seed, one secret of each member, and the same parameters."""
    words = [*SHORT, "strategy.weighting=uniform", "rounds=3", "checkpoint_every=1", "train.local_steps=2"]
    graphs = months.imported(0)
    cfg = compose(["model.hidden=8", *words, f"graph={graphs}"])
    digest = agreed(tmp_path / "agreement.yaml", cfg, tmp_path / "keys")
    place = sorted(graphs.glob("*.safetensors")), tmp_path / "policy.yaml"
    party_nodes(monkeypatch, *place, tmp_path / "state", tmp_path / "keys", tmp_path / "agreement.yaml")
    given = [*words, f"graph={graphs}", f"agreement={digest}/1"]
    step = Loop.run_round

    def two_rounds(self, number):
        if number == 3:
            raise Killed
        return step(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "run_round", two_rounds)
        with pytest.raises(Killed):
            run(*given, f"out={tmp_path / 'cut'}")
    resumed = later("resume", tmp_path / "cut")
    for client in range(3):  # the same nonces and secrets, without the ledgers of the run
        for old in (tmp_path / f"state/state_{client}").glob("fedavg-*"):
            shutil.rmtree(old)
    whole = run(*given)
    assert resumed.summary["seed"] == whole.summary["seed"] != 0
    assert_same_arrays(resumed.arrays, whole.arrays)


def later(key, out):
    """A run that reads an earlier one, as a command line starts it."""
    cfg = with_folder(configuration([f"{key}={out}"]))
    return Finished(cfg, run_inline(cfg))

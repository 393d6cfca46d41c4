"""Six months of three honest banks with secure sums: files that are imported again each month, at nodes with keys and state."""

import json
import shutil
from pathlib import Path

import pytest
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from fedgraph_flwr import cli
from fedgraph_flwr.cli.agree import _scored
from fedgraph_flwr.config import compose
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.fleet.agreements import DIFFERENCE, Refused
from fedgraph_flwr.fleet.keys import make_node
from fedgraph_flwr.secure.audit import released
from fedgraph_flwr.secure.distributed import DistributedNoise
from fedgraph_flwr.strategies.loop import Loop
from fedgraph_flwr.strategies.summation.masked import Masked
from tests.conftest import client_graph
from tests.nodes import Killed, agreed, later, party_nodes
from tests.secure.rounds import SECURE
from tests.support import assert_same_arrays

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
    for month in range(MONTHS if method == "fedavg" else 3):
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


@pytest.mark.parametrize(
    ("every", "method"),
    [
        (2, []),
        pytest.param(1, METHODS["scaffold"], marks=pytest.mark.slow),
        pytest.param(1, ["strategy=fedspa", "model=fedspa", "strategy.fisher_exchange=scalar"], marks=pytest.mark.slow),
    ],
    ids=["two rounds again", "variates", "keys of its own"],
)
def test_a_cut_run_resumes_with_its_seed(run, months, tmp_path, monkeypatch, every, method):
    """Whole and resumed runs have one number, hence one seed, one secret of each member, and the same parameters."""
    words = [
        *SHORT,
        "strategy.weighting=uniform",
        "rounds=4",
        f"checkpoint_every={every}",
        "train.local_steps=2",
        *method,
    ]
    graphs = months.imported(0)
    cfg = compose(["model.hidden=8", *words, f"graph={graphs}"])
    digest = agreed(tmp_path / "agreement.yaml", cfg, tmp_path / "keys")
    place = sorted(graphs.glob("*.safetensors")), tmp_path / "policy.yaml"
    party_nodes(monkeypatch, *place, tmp_path / "state", tmp_path / "keys", tmp_path / "agreement.yaml")
    given = [*words, f"graph={graphs}", f"agreement={digest}/1"]
    write = Loop._file

    def cut_in_round_four(self, number, stored):
        if number == 4:
            raise Killed
        write(self, number, stored)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_file", cut_in_round_four)
        with pytest.raises(Killed):
            run(*given, f"out={tmp_path / 'cut'}")
    resumed = later("resume", tmp_path / "cut")
    for client in range(3):  # the same nonces and secrets, without the ledgers of the run
        for old in (tmp_path / f"state/state_{client}").glob(f"*-{digest[32:]}-1"):
            shutil.rmtree(old)
        for old in (tmp_path / f"state/state_{client}").glob("audit.*"):
            old.unlink()
    whole = run(*given)
    assert resumed.summary["seed"] == whole.summary["seed"] != 0
    assert_same_arrays(resumed.arrays, whole.arrays)


NOISED = [
    *(SECURE, "privacy.dp=distributed", "privacy.noise_multiplier=4", "privacy.scores=none", "privacy.secagg_bits=20"),
    *("strategy.weighting=uniform", "evaluation.select=last"),
]


class Consortium:
    """Banks that join, leave and are down; each version of their agreement has its own members."""

    def __init__(self, folder, patch, run, words):
        self.folder, self.patch, self.run, self.words = folder, patch, run, words
        self.version, self.used, self.digest = 0, 0, ""
        (folder / "policy.yaml").write_text("min_nodes: 5\n")

    def agree(self, banks, month, **values):
        """A new version; each bank has its key and its state folder for good."""
        values = {"continues": self.digest, **values}
        self.banks, self.version, self.used = banks, self.version + 1, 0
        self.keys = self.folder / f"keys_{self.version}"
        self.keys.mkdir()
        for client, bank in enumerate(banks):
            if not (self.folder / bank).is_file():
                make_node(self.folder / bank)
            for ending in ("", ".pub"):
                shutil.copy(self.folder / f"{bank}{ending}", self.keys / f"node_{client}{ending}")
        given = [f"num_clients={len(banks)}", *self.words]
        cfg = compose(["model.hidden=8", *given, f"graph={self._files(month)}"])
        self.digest = agreed(
            self.folder / f"agreement_{self.version}.yaml", cfg, self.keys, banks, version=self.version, **values
        )

    def _files(self, month):
        folder = self.folder / f"month_{month}_{self.version}"
        for client, bank in enumerate(self.banks):
            size = 40 + 4 * (len(bank) + client) + 2 * month
            graph = client_graph(client, size, seed=month)
            graph.num_clients = len(self.banks)
            graph.save(folder / f"client_{client:04d}.safetensors")
        return folder

    def month(self, month, down="", resume=None, more=()):
        """One run, or a cut one that is resumed; a bank may be down."""
        self.used += resume is None
        files = self._files(month)
        states = self.folder / f"states_{self.version}"
        for client, bank in enumerate(self.banks):
            (self.folder / "of" / bank).mkdir(parents=True, exist_ok=True)
            states.mkdir(exist_ok=True)
            if not (states / f"state_{client}").is_symlink():
                (states / f"state_{client}").symlink_to(self.folder / "of" / bank)
        with self.patch.context() as patch:
            agreement = self.folder / f"agreement_{self.version}.yaml"
            party_nodes(
                patch, sorted(files.glob("*.safetensors")), self.folder / "policy.yaml", states, self.keys, agreement
            )
            call = InlineGrid._call

            def unless_down(grid, message):
                node = message.metadata.dst_node_id
                if down and self.banks[node - 1] == down:
                    return Message(Error(ErrorCode.NODE_UNAVAILABLE, "the node is down"), reply_to=message)
                return call(grid, message)

            patch.setattr(InlineGrid, "_call", unless_down)
            words = [
                f"num_clients={len(self.banks)}",
                *self.words,
                f"graph={files}",
                f"agreement={self.digest}/{self.used}",
                *more,
            ]
            return later("resume", resume) if resume else self.run(*words)


FOUR = ["alice", "bob", "carol", "dora"]


def members_of(done):
    return sorted({int(client) for record in done.rounds for client in record["clients"]})


@pytest.mark.slow
def test_with_noise_every_month_ends_with_a_model(run, tmp_path, monkeypatch):
    """A bank down in month 3, one joins in month 4, one leaves in month 5, and one is down again in month 6."""
    words = ["rounds=2", "model.dropout=0", "strategy.min_clients=3", "strategy.timeout=5", *NOISED]
    banks = Consortium(tmp_path, monkeypatch, run, words)
    banks.agree(FOUR, 1, absent="allowed", epsilon=1e6)
    for month, down in ((1, ""), (3, "dora")):
        assert len(banks.month(month, down).rounds) == 2
    banks.agree([*FOUR, "emil"], 4, absent="allowed", epsilon=1e6, changed=["emil"])
    assert len(banks.month(4).rounds) == 2
    banks.agree(["alice", "carol", "dora", "emil"], 5, absent="allowed", epsilon=1e6, changed=["bob"])
    assert len(banks.month(6, "alice").rounds) == 2
    ledger = json.loads((tmp_path / "of/carol/privacy_rings.json").read_text())
    assert len(ledger) == 4, "the ledger of ε goes on over versions"


@pytest.mark.slow
def test_without_noise_only_the_named_month_waits(run, tmp_path, monkeypatch):
    """The month with a bank that is down does not begin, and says so; others run, by the signed sentence with other members."""
    words = [
        "rounds=2",
        "model.dropout=0",
        "strategy.min_clients=3",
        "strategy.timeout=1",
        SECURE,
        "strategy.weighting=uniform",
    ]
    banks = Consortium(tmp_path, monkeypatch, run, words)
    banks.agree(FOUR, 1)
    assert banks.month(1).summary["failures"] == {}
    with pytest.raises(RunFailed, match="3 of 4 clients registered"):
        banks.month(3, "dora")
    banks.agree([*FOUR, "emil"], 4, changed=["emil"], accepted=DIFFERENCE)
    assert banks.month(4).summary["failures"] == {}
    banks.agree(["alice", "carol", "dora", "emil"], 5, changed=["bob"], accepted=DIFFERENCE)
    assert banks.month(6).summary["failures"] == {}


@pytest.fixture
def cut(run, tmp_path, monkeypatch):
    """A noised run of four banks whose server is gone with the terms of round 3: its folder, the banks, and the draws."""
    words = [
        "rounds=3",
        "checkpoint_every=1",
        "model.dropout=0",
        "strategy.min_clients=3",
        "strategy.timeout=1",
        *NOISED,
    ]
    banks, drawn = Consortium(tmp_path, monkeypatch, run, words), []
    banks.agree(FOUR, 1, absent="allowed", epsilon=1e6)
    terms, open_sums = DistributedNoise.terms, Masked.open_sums

    def spy(self, *args):
        drawn.append(len(drawn))
        return terms(self, *args)

    monkeypatch.setattr(DistributedNoise, "terms", spy)

    def gone(self, *args):
        if self.server.server_round == 3:
            raise Killed
        return open_sums(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Masked, "open_sums", gone)
        with pytest.raises(Killed):
            banks.month(1)
    assert len(drawn) == 12
    return tmp_path / "run0", banks, drawn


def test_a_cut_month_repeats_its_noised_terms(cut, tmp_path):
    """Noise is drawn, booked and logged once per position; the next month draws again."""
    folder, banks, drawn = cut
    done = banks.month(1, resume=folder)
    assert (len(done.rounds), done.summary["failures"], len(drawn)) == (3, {}, 12)
    assert len(banks.month(2).rounds) == 3
    assert len(drawn) == 24
    for bank in FOUR:
        ledger = json.loads((tmp_path / "of" / bank / "privacy_rings.json").read_text())
        assert sum(entry["releases"] for entry in ledger.values()) == 6
        assert sum(released(tmp_path / "of" / bank, "client", "rings").values()) == 6


def test_a_noised_term_is_masked_again_for_the_same_list_only(cut):
    """The same noise in sums with and without a bank would show that bank's term under little noise."""
    folder, banks, drawn = cut
    with pytest.raises(RunFailed, match=r"round 3.*requests another sum in round 3 of this agreed run"):
        banks.month(1, down="dora", resume=folder)
    assert len(drawn) == 12
    assert len(banks.month(1, resume=folder).rounds) == 3
    assert len(banks.month(2, down="dora").rounds) == 3


def test_a_run_does_not_start_again(run, tmp_path, monkeypatch):
    """Both would have one seed and the same draws: another model, or a sum without a member, would show more."""
    words = [
        "rounds=1",
        "model.dropout=0",
        "strategy.min_clients=3",
        "strategy.timeout=5",
        SECURE,
        "strategy.weighting=uniform",
    ]
    banks = Consortium(tmp_path, monkeypatch, run, words)
    banks.agree(FOUR, 1)
    assert banks.month(1).summary["failures"] == {}
    banks.used = 0  # the same number in another run of Flower
    with pytest.raises(RunFailed, match="reached round 1 here: resume it from its checkpoint, or start the next run"):
        banks.month(1)
    assert banks.month(2).summary["failures"] == {}


PLAIN = ["rounds=2", "model.dropout=0", "strategy.min_clients=3", "strategy.timeout=5"]
UNIFORM = [SECURE, "strategy.weighting=uniform"]


@pytest.mark.parametrize(
    "method",
    ["fedprox", *(pytest.param(name, marks=pytest.mark.slow) for name in ("scaffold", "fedomd", "trees"))],
)
def test_agreed_months_of_a_method(method, run, tmp_path, monkeypatch):
    """Files grow by the month; a new member needs the signed sentence."""
    banks = Consortium(tmp_path, monkeypatch, run, [*PLAIN, *UNIFORM, *METHODS[method]])
    banks.agree(FOUR, 1)
    for month in (1, 2) if method == "fedprox" else (2,):
        done = banks.month(month)
        assert (done.summary["failures"], len(done.rounds)) == ({}, 2)
    with pytest.raises(Refused, match=r"members changed \(emil\), and sums have no noise"):
        banks.agree([*FOUR, "emil"], 3, changed=["emil"])
    banks.version -= 1
    shutil.rmtree(banks.keys)
    banks.agree([*FOUR, "emil"], 3, changed=["emil"], accepted=DIFFERENCE)
    assert banks.month(4).summary["failures"] == {}


@pytest.mark.slow
def test_a_month_continues_with_the_model_of_the_one_before_and_another_scores_it(run, tmp_path, monkeypatch):
    banks = Consortium(tmp_path, monkeypatch, run, [*PLAIN, *UNIFORM])
    banks.agree(FOUR, 1, start="continues")
    first = banks.month(1)
    with pytest.raises(FedGraphError, match=r"starts run 2 with a model \(start: continues\)"):
        banks.month(2)
    second = banks.month(2, more=[f"init={first.out}"])
    assert second.summary["failures"] == {}
    assert second.summary["start"]["run"].endswith(first.out.name)
    banks.words.append(f"evaluate={second.out}")
    banks.version = 0
    shutil.rmtree(banks.folder / "keys_1")
    banks.agree(FOUR, 2, name="scores", continues="", start=_scored(Path(second.out)))
    assert banks.month(2).summary["failures"] == {}


def test_a_month_after_a_back_up_runs_once_its_owner_confirms(run, tmp_path, monkeypatch, capsys):
    """The others saw the bank in a later run; the month that says so is used up, and the next one runs."""
    banks = Consortium(tmp_path, monkeypatch, run, [*PLAIN, *NOISED])
    banks.agree(FOUR, 1, absent="allowed", epsilon=1e6)
    banks.month(1)
    shutil.copytree(tmp_path / "of/bob", tmp_path / "old")
    banks.month(2)
    shutil.rmtree(tmp_path / "of/bob")
    shutil.copytree(tmp_path / "old", tmp_path / "of/bob")
    with pytest.raises(RunFailed, match="the state folder of bob is older than run 2"):
        banks.month(3)
    file = str(tmp_path / "agreement_1.yaml")
    ledger = tmp_path / "of/bob/privacy_rings.json"

    def releases():
        return sum(entry["releases"] for entry in json.loads(ledger.read_text()).values())

    assert releases() == 2
    for _ in range(2):  # a second confirmation books nothing
        assert cli.main(["agree", "confirm", file, "--state", str(tmp_path / "of/bob"), "--last", "2"]) == 0
        assert releases() == 6, "the lost run, and perhaps the rest of the last one"
    assert "privacy_rings.json has what runs up to 2 may have spent besides: ε is" in capsys.readouterr().out
    assert len(banks.month(4).rounds) == 2
    assert releases() == 8

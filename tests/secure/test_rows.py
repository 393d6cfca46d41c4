"""Privacy of single rows: gradients, the noise, the bound for Poisson samples, and what a run refuses."""

import json

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant
from scipy.special import ive, logsumexp
from torch.nn.functional import cross_entropy

from fedgraph_flwr.clients import row_gradients
from fedgraph_flwr.clients.fedgrad import FedGradClient
from fedgraph_flwr.config import compose, schema
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.checks import check_method, startup_notes
from fedgraph_flwr.node import records
from fedgraph_flwr.secure import rows
from fedgraph_flwr.secure.accounting import UNITS, divergence, skellam_epsilon
from fedgraph_flwr.secure.distributed import DistributedNoise
from fedgraph_flwr.secure.secagg import threshold
from fedgraph_flwr.wire.messages import MODEL
from tests.conftest import client_graph

ROW = [
    "strategy=fedgrad",
    "model=mlp",
    "model.dropout=0",
    "privacy.unit=row",
    "privacy.dp=local",
    "privacy.scores=none",
]
ROW += ["privacy.rows=8", "privacy.noise_multiplier=1"]
SECURE = ["privacy.dp=distributed", "privacy.secagg=true", "privacy.secagg_bits=20"]


def edges_graph() -> ClientGraph:
    graph = client_graph(0, 16, num_edge_features=4)
    graph.edge_y = torch.arange(graph.num_edges) % 2
    graph.num_edge_classes = 2
    return graph


def client_of(*overrides: str) -> FedGradClient:
    cfg = compose([*ROW, "num_clients=3", "model.hidden=6", *overrides])
    return FedGradClient(cfg, edges_graph() if cfg.task.name == "edges" else client_graph(0, 16))


@pytest.mark.parametrize("bound", [0.3, 100.0])
@pytest.mark.parametrize(
    "overrides",
    [
        ["task=nodes", "model.layers=3"],
        ["task=nodes", "model.layers=1"],
        ["task=nodes", "model=sign", "model.hops=0"],
        ["task=edges", "model=mlp", "split.kind=ratio"],
    ],
)
def test_sums_are_those_of_single_gradients(overrides, bound):
    """Each row's gradient by autograd of the model's own pass, clipped and added up."""
    client = client_of("dtype=float64", *overrides)
    sums = client.training_rows.clipped_sums(torch.arange(len(client.training_rows.y)), bound)
    expected = {name: torch.zeros_like(p) for name, p in client.model.named_parameters()}
    logits = client.task.read(client.model(client.inputs), client.batch.nodes if client.task.ITEMS == "nodes" else None)
    for row in range(len(client.batch.y)):
        loss = cross_entropy(logits[row : row + 1], client.batch.y[row : row + 1])
        gradient = torch.autograd.grad(loss, list(client.model.parameters()), retain_graph=True)
        norm = torch.cat([g.ravel() for g in gradient]).norm()
        for name, g in zip(expected, gradient, strict=True):
            expected[name] += g * min(1.0, bound / norm)
    for name, total in expected.items():
        torch.testing.assert_close(sums[name], total, rtol=1e-9, atol=1e-12)
    few = client.training_rows.clipped_sums(torch.tensor([2]), 0.3)
    assert torch.cat([t.ravel() for t in few.values()]).norm() <= 0.3 * (1 + 1e-12)


def test_rows_without_a_number_count_as_nothing():
    """Otherwise parameters that a server chose, or a missing value, would turn every value of the sum into NaN."""
    client = client_of("dtype=float64")
    with torch.no_grad():
        client.graph.x[client.train_nodes[0]] = torch.nan
        client.model.tensors["head.weight"].fill_(1e300)
    sums = client.training_rows.clipped_sums(torch.arange(len(client.training_rows.y)), 1.0)
    assert all(bool(t.isfinite().all()) for t in sums.values())


def oracle(kind, z, q, steps):
    accountant = (
        rdp_privacy_accountant.RdpAccountant(range(2, 65)) if kind == "rdp" else pld_privacy_accountant.PLDAccountant()
    )
    event = dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(z))
    return accountant.compose(event, steps).get_epsilon(1e-5)


@pytest.mark.parametrize(
    ("z", "q", "steps", "loss"),
    [(0.7, 0.01, 100, 1.42), (1.0, 0.02, 500, 1.2), (3.0, 0.2, 300, 1.2), (1.5, 0.001, 3000, 2.1)],
)
def test_epsilon_of_samples(z, q, steps, loss):
    """Fine Skellam noise costs what Gaussian noise does: Google's RDP, and no less than the nearly exact PLD."""
    ours = skellam_epsilon(1e-5, z, steps, 2.0**19 / z, q)
    assert ours == pytest.approx(oracle("rdp", z, q, steps), rel=1e-3)
    exact = oracle("pld", z, q, steps)
    assert exact <= ours <= loss * exact


@pytest.mark.parametrize(("shift", "variance", "q"), [(1, 1.0, 0.1), (3, 4.0, 0.3), (2, 10.0, 0.9)])
def test_coarse_noise_is_within_the_bound_in_both_directions(shift, variance, q):
    """Skellam's own probabilities: where the lattice is coarse, the bound is above them, too."""
    k = np.arange(-40, 41)
    noise = ive(np.abs(k), variance)
    moved = ive(np.abs(k - shift), variance)
    sample = (1 - q) * noise + q * moved
    bound = divergence(variance**0.5 / shift, 1, shift, q)
    for place, alpha in enumerate((2, 3, 4, 5, 6)):
        for one, other in ((sample, noise), (noise, sample)):
            terms = alpha * np.log(one) + (1 - alpha) * np.log(other)
            exact = logsumexp(terms) / (alpha - 1)
            assert exact <= bound[place] + 1e-9


def test_a_sample_costs_less_and_never_more_than_all_rows():
    whole, none = divergence(1.0, 1, 1e5), divergence(1.0, 1, 1e5, 1 - 1e-12)
    assert (none <= whole + 1e-9).all()
    assert np.allclose(none, whole, rtol=1e-6)
    assert (divergence(1.0, 1, 1e5, 0.01) <= whole).all()


def test_draws_are_the_operating_systems():
    """Equal seeds draw different batches of the expected size, and some are empty."""
    torch.manual_seed(0)
    np.random.seed(0)
    first, second = rows.drawn(100_000, 0.1), rows.drawn(100_000, 0.1)
    assert abs(len(first) - 10_000) < 600
    assert not np.array_equal(first, second)
    assert min(len(rows.drawn(3, 0.1)) for _ in range(50)) == 0
    assert rows.drawn(5, 1.0).tolist() == [0, 1, 2, 3, 4]


def test_a_party_adds_all_noise_even_to_an_empty_batch():
    rules = compose([*ROW, "privacy.noise_multiplier=2", "privacy.clipping_norm=0.5"]).privacy
    noised_sum = rows.released(np.zeros(20_000), 0.5, rules, rows.SecureNoise())
    assert noised_sum.std() == pytest.approx(1.0, rel=0.03)
    empty = client_of("privacy.batch=1", "privacy.rows=8").training_rows
    empty.y = empty.y[:0]
    empty.ends = empty.ends[:, :0]
    released = empty.released({"head.bias": empty.model.tensors["head.bias"]})
    assert set(released) == {"head.bias"}
    assert np.abs(released["head.bias"]).min() > 0


@pytest.mark.parametrize("lost", [0, 1])
def test_the_secure_sum_has_the_noise_without_one_member(lost):
    """Five members, of which one may be lost; any of the others knows its own part."""
    rules = compose([*ROW, *SECURE, "num_clients=5"]).privacy
    needed, size = threshold(rules.secagg_threshold, 5), 20_000
    drawn = DistributedNoise(rules)
    terms = [drawn.terms({MODEL: {"w": np.zeros(size)}}, {MODEL: 0.2}, 5, needed) for _ in range(5 - lost)]
    known = 2.0**rules.secagg_bits / 5
    assert needed == 4
    assert np.sum(terms[1:], axis=0).std() >= 0.98 * known
    assert np.sum(terms[1:], axis=0).std() == pytest.approx(known * ((4 - lost) / 3) ** 0.5, rel=0.03)


def test_little_noise_and_a_huge_norm_give_gradient_averaging(run):
    overrides = ["model=mlp", "model.dropout=0", "train.optimizer=sgd", "train.lr=0.1", "train.weight_decay=0"]
    plain = run("strategy=fedgrad", *overrides, sizes=(16, 16, 16))
    little = ["privacy.noise_multiplier=0.001", "privacy.clipping_norm=20"]
    for secure in ([], SECURE):
        private_run = run(*ROW, *overrides, *little, *secure, sizes=(16, 16, 16))
        for name, array in plain.arrays.items():
            np.testing.assert_allclose(private_run.arrays[name], array, atol=2e-3, err_msg=name)
            assert private_run.arrays[name].dtype == np.float32
        assert private_run.summary["privacy"]["relation"] == UNITS["row"]
        assert private_run.summary["privacy"]["releases"] == 3


def test_runs_of_one_seed_have_different_noise_and_one_ledger(run):
    records._spent.clear()
    first, second = run(*ROW, sizes=(16, 16, 16)), run(*ROW, sizes=(16, 16, 16))
    assert any(not np.array_equal(first.arrays[name], second.arrays[name]) for name in first.arrays)
    booked = [ledger.booked for (_, name), ledger in records._spent.items() if name.endswith("_row")]
    assert booked
    assert all(sum(entry["releases"] for entry in ledger.values()) >= 3 for ledger in booked)


def test_a_resumed_run_draws_again_and_counts_what_may_have_left(run):
    words = [*ROW, "checkpoint_every=2"]
    half = run(*words, "rounds=2", sizes=(16, 16, 16))
    resumed = run(*words, "rounds=4", f"resume={half.out}", f"out={half.out}", sizes=(16, 16, 16))
    assert resumed.summary["privacy"]["releases"] >= 4
    with pytest.raises(FedGraphError, match=r"cannot change privacy\.batch=2"):
        run(*words, "rounds=6", "privacy.batch=2", f"resume={half.out}", f"out={half.out}", sizes=(16, 16, 16))


PAYMENT = ["privacy.unit=payment", "task=edges", "dataset=payments", "privacy.rows=500000", "privacy.delta=1e-6"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strategy=fedavg"], "strategy=fedavg does not: set strategy=fedgrad"),
        (["strategy=boosting", "strategy.mode=bagging"], "strategy=boosting does not: set strategy=fedgrad"),
        (["model=gcn"], "rows read no other row, which model=gcn does: set model=mlp"),
        (["model=sign"], "model=sign does: set model=mlp, or model=sign with model.hops=0"),
        (["task=edges", "model=multi_gine", "dataset=payments"], "which model=gine does"),
        (["task=links", "model=mlp"], "does not support task=links: set task to nodes or edges"),
        (["model.dropout=0.5"], "without model.dropout=0.5: set model.dropout=0"),
        (["train.loss=weighted"], "without train.loss=weighted: set train.loss=cross_entropy"),
        (["model.norm=layer"], "without model.norm=layer: set model.norm=none"),
        (["model.input_norm=true"], "without model.input_norm=true"),
        (["strategy.double_softmax=true"], "without strategy.double_softmax=true"),
        (["strategy.shared=[head.]"], r"set strategy.shared=\[''\]"),
        (["train.sampler=neighbors"], "draws its own batches, but train.sampler=neighbors"),
        (["privacy.scores=exact"], "but privacy.scores=exact sends scores: set privacy.scores=none"),
        (["privacy.scores=noised"], "but privacy.scores=noised sends scores: set privacy.scores=none"),
        (["privacy.dp=client_fixed"], "set privacy.dp=local or distributed"),
        (["privacy.dp=none", "privacy.noise_multiplier=0"], "set privacy.dp=local"),
        (
            ["privacy.noise_multiplier=0"],
            "protects no more than strategy.aggregator=norm_bound: set another privacy.noise_mul",
        ),
        (["privacy.secagg=true"], "hides the updates that privacy.dp=local clips or accounts for: set privacy.dp=none"),
        (["privacy.rows=0"], "such as 100000, but privacy.rows=0: set another privacy.rows"),
        (["privacy.batch=9"], "privacy.batch must be at most privacy.rows=8, or 0 for all, got 9"),
        (["privacy.delta=0.2"], "privacy.delta must be at most 1 / privacy.rows"),
        (["privacy.unit=client"], "privacy.dp=local adds noise to sums over rows"),
        (["privacy.look_back=8"], "privacy.look_back=8 has no effect with privacy.unit=row"),
        (
            ["privacy.unit=payment", "privacy.look_back=8"],
            "privacy.rows must be at least 500000 for payments, got 8",
        ),
        (
            [*PAYMENT, "privacy.look_back=8", "privacy.batch=9"],
            "privacy.batch=9 has no effect with privacy.unit=payment",
        ),
        (PAYMENT, "such as 8, but privacy.look_back=0: set another privacy.look_back"),
        ([*PAYMENT, "privacy.look_back=8", "task=nodes"], "does not support task=nodes: set task to edges"),
        ([*PAYMENT, "privacy.look_back=8", "split.kind=ratio"], "set split.kind=temporal"),
    ],
)
def test_each_wrong_setting_has_one_error_message(overrides, message):
    with pytest.raises(FedGraphError, match=message) as error:
        check_method(compose([*ROW, "num_clients=3", *overrides]))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 260


def test_a_party_with_too_many_rows_for_the_delta_refuses():
    with pytest.raises(FedGraphError, match=r"one of this party's 8 training rows: expected at most 0.125"):
        _ = client_of("privacy.delta=0.2", "privacy.rows=5").training_rows


def test_the_user_reads_what_is_protected(run):
    notes = startup_notes(compose([*ROW, "num_clients=3"]))
    assert any("a gain from 100000 rows" in note for note in notes)
    assert any(UNITS["row"] in note for note in notes)
    summary = json.loads((run(*ROW, "rounds=1", sizes=(16, 16, 16)).out / "summary.json").read_text())
    assert "That its node or payment exists is not protected." in summary["privacy"]["relation"]


BANKS = [
    "dataset=payments",
    "task=edges",
    "dataset.accounts=200",
    "dataset.background=400",
    "dataset.per_kind=2",
    "num_clients=3",
]
BANKS += ["dataset.recipe=payments", "dataset.windows=[2]", "model.hidden=4", "rounds=2", "train.optimizer=sgd"]
CAPPED = [*ROW[:3], "privacy.unit=payment", "privacy.dp=local", "privacy.scores=none", "privacy.noise_multiplier=1"]
CAPPED += ["privacy.rows=100", "privacy.delta=1e-4", "privacy.look_back=3", "dataset.last=3"]


@pytest.fixture
def few_payments(monkeypatch):
    for module in (schema, row_gradients):
        monkeypatch.setattr(module, "LEAST_PAYMENTS", 10)


def test_payments_are_covered_by_their_readers(run, few_payments):
    """Noise of 4R + 1 norms at each bank, 8R + 1 in a joint sum."""
    for secure, reach in (([], 13), ([*SECURE, "privacy.secagg_bits=16"], 25)):
        done = run(*BANKS, *CAPPED, *secure)
        assert done.summary["privacy"]["relation"] == UNITS["payment"]
        assert done.cfg.privacy.reach == reach
    zeros = rows.released(np.zeros(20_000), 1.0, compose([*BANKS, *CAPPED]).privacy, rows.SecureNoise())
    assert zeros.std() == pytest.approx(13, rel=0.03)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["dataset.last=0"],
            r"at most the last privacy\.look_back=3 payments at each end, but this party's file has last=0",
        ),
        (["dataset.last=4"], "this party's file has last=4"),
        (["dataset.last=0", "dataset.recipe=null"], "this party's file has no recipe"),
    ],
)
def test_columns_without_the_cap_are_refused(run, few_payments, overrides, message):
    with pytest.raises((FedGraphError, RunFailed), match=message):
        run(*BANKS, *CAPPED, *overrides)


def test_a_party_below_the_limit_is_refused(run, monkeypatch):
    monkeypatch.setattr(schema, "LEAST_PAYMENTS", 10)
    with pytest.raises(
        (FedGraphError, RunFailed), match=r"needs at least 500000 training payments per party, but this party has"
    ):
        run(*BANKS, *CAPPED)

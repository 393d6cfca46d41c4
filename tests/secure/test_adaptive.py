"""Clipping norms that follow a quantile: the paper's equations, what they cost, and runs that reach the quantile."""

import math

import numpy as np
import pytest
from flwr.serverapp.strategy.dp_adaptive_clipping import compute_adaptive_noise_params
from scipy.stats import skellam as exact_skellam

from fedgraph_flwr.config import PrivacyConfig, compose
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.secure import distributed, lattice, noise
from fedgraph_flwr.secure.accounting import cost
from fedgraph_flwr.secure.adaptive import adapted, count_noise, value_multiplier
from fedgraph_flwr.secure.distributed import DistributedNoise
from fedgraph_flwr.secure.protection.clipped import Clipped
from fedgraph_flwr.strategies.live import Live
from fedgraph_flwr.strategies.privacy import Privacy, Terms
from fedgraph_flwr.wire.messages import CLIPPED, CLIPPING, MODEL, TRAIN, from_record, to_record
from tests.support import recorded_messages

UNIFORM = "strategy.weighting=uniform"
SECURE = ["privacy.secagg=true", "privacy.secagg_bits=20"]
SIDES = {"server": [], "client": [], "distributed": SECURE}


@pytest.fixture
def silent(monkeypatch):
    zero = {"poisson": lambda self, lam, size: np.zeros(size, np.int64)}
    monkeypatch.setattr(noise, "source", type("Silent", (), zero))
    monkeypatch.setattr(distributed, "skellam", lambda variance, count, generator: np.zeros(count, np.int64))


@pytest.mark.parametrize(("z", "spread", "clients"), [(1.0, 5.0, 100), (0.8, 1.0, 20), (4.0, 2.5, 50)])
def test_one_group_splits_the_noise_as_flower_does(z, spread, clients):
    rules = PrivacyConfig("server_adaptive", z, clipping_count_noise=spread)
    assert value_multiplier(rules, 1, clients) == pytest.approx(compute_adaptive_noise_params(z, clients, spread)[1])


@pytest.mark.parametrize("groups", [1, 2, 5])
@pytest.mark.parametrize("spread", [0.0, 30.0])
def test_values_and_bits_are_one_release_of_the_multiplier(groups, spread):
    """A client's whole contribution, each coordinate over its deviation, has a norm of 1 / z."""
    rules = PrivacyConfig("client_adaptive", 2.0, clipping_count_noise=spread)
    norms = np.geomspace(0.01, 30, groups)
    values = norms / (value_multiplier(rules, groups, 40) * norms * math.sqrt(groups))
    bits = np.full(groups, 0.5) / count_noise(rules, groups, 40)
    assert math.hypot(*values, *bits) == pytest.approx(1 / 2.0, rel=1e-12)
    assert value_multiplier(rules, groups, 40) <= 2.0 * math.sqrt(4 / 3) * (1 + 1e-12)


def test_a_norm_moves_by_the_papers_step():
    rules = PrivacyConfig("server_adaptive", 1.0, clipping_quantile=0.5, clipping_rate=0.2)
    assert adapted(2.0, 1.0, 3 * 0.5 - 0.5, 4, rules) == pytest.approx(2.0 * math.exp(-0.2 * (0.75 - 0.5)), rel=1e-15)
    assert adapted(2.0, 1.0, -2.0, 4, rules) == pytest.approx(2.0 * math.exp(0.2 * 0.5), rel=1e-15)
    assert adapted(2.0, 1.0, -1e300, 4, rules) == 1e6, "whatever the noise or a client that lies"


def _bits(messages):
    """Each client's bit of the model, of all rounds."""
    return [float(from_record(c[CLIPPED])[MODEL][0]) for d, _, c in messages if d == "up" and CLIPPED in c]


@pytest.mark.parametrize("strategy", ["fedavg", "scaffold"])
def test_all_three_sides_clip_and_adapt_alike(run, silent, strategy):
    overrides = [
        f"strategy={strategy}",
        UNIFORM,
        "rounds=4",
        "dtype=float64",
        "model.dropout=0",
        "privacy.noise_multiplier=1",
    ]
    overrides += ["privacy.clipping_norm=0.3"]
    steps = ["privacy.clipping_quantile=0.4", "privacy.clipping_rate=1"]
    done = {side: run(*overrides, *steps, *extra, f"privacy.dp={side}_adaptive") for side, extra in SIDES.items()}
    expected = done["server"]
    norms = [r["privacy"]["clipping_norms"][MODEL] for r in expected.rounds]
    assert len(set(norms)) == 4
    for side, side_run in done.items():
        assert side_run.summary["failures"] == {}
        for mine, other in zip(side_run.rounds, expected.rounds, strict=True):
            assert mine["privacy"]["clipping_norms"] == pytest.approx(other["privacy"]["clipping_norms"], rel=1e-5), (
                side
            )
        for name, array in expected.arrays.items():
            np.testing.assert_allclose(side_run.arrays[name], array, atol=1e-4, err_msg=f"{side} {name}")
    fixed = run(*overrides, "privacy.dp=server_fixed")
    assert not np.allclose(fixed.arrays["head.weight"], expected.arrays["head.weight"], atol=1e-3)


def test_the_norms_are_those_of_an_independent_computation(run, silent, monkeypatch):
    """From the messages of a run in the clear: each client's update, its bit, and the next round's norm."""
    overrides = [
        UNIFORM,
        "rounds=5",
        "privacy.dp=server_adaptive",
        "privacy.noise_multiplier=1",
        "privacy.clipping_norm=0.2",
    ]
    with recorded_messages(monkeypatch) as messages:
        done = run(*overrides, "privacy.clipping_quantile=0.7", "privacy.clipping_rate=0.5")

    def flat(content):
        arrays = from_record(content[MODEL])
        return np.concatenate([arrays[name].ravel() for name in sorted(arrays)]).astype(float)

    sent = [flat(c) for d, _, c in messages if d == "down" and c["config"]["phase"] == "train"][::3]
    replies = [flat(c) for d, _, c in messages if d == "up" and MODEL in c]
    norm, seen = 0.2, set()
    for number, record in enumerate(done.rounds):
        lengths = [np.linalg.norm(reply - sent[number]) for reply in replies[3 * number : 3 * number + 3]]
        within = sum(length <= norm for length in lengths)
        seen.add(within)
        norm *= math.exp(-0.5 * (within / 3 - 0.7))
        assert record["privacy"]["clipping_norms"][MODEL] == pytest.approx(norm, rel=1e-9)
    assert len(seen) > 1


@pytest.mark.slow
@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
def test_the_quantile_of_given_norms_is_reached(quantile):
    """200 clients whose updates have log-normal norms, with the noise of z = 1."""
    cfg = compose(
        [
            *(UNIFORM, "privacy.dp=server_adaptive", "privacy.noise_multiplier=1", "num_clients=200"),
            *(f"privacy.clipping_quantile={quantile}", "privacy.clipping_norm=30"),
        ]
    )
    privacy, origin = Privacy(cfg), {"w": np.zeros(3)}
    lengths = np.exp(np.random.default_rng(0).normal(size=200))
    values = [{"w": np.array([length, 0.0, 0.0])} for length in lengths]
    shares = []
    for step in range(150):
        privacy.release({MODEL: Terms(origin, values, [1.0] * 200, 200.0)})
        shares += [np.mean(lengths <= privacy.norm(MODEL))] * (step >= 100)
    assert np.mean(shares) == pytest.approx(quantile, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0.001, 100.0])
def test_a_run_reaches_its_quantile_from_either_side(run, monkeypatch, first):
    overrides = [UNIFORM, "rounds=60", "model.hidden=4", "evaluation.every=60"]
    overrides += ["privacy.dp=client_adaptive", f"privacy.clipping_norm={first}", "privacy.clipping_rate=1"]
    with recorded_messages(monkeypatch) as messages:
        run(*overrides)
    within = np.reshape(_bits(messages), (60, 3)) + 0.5
    assert within[0].mean() == (first == 100.0)
    assert within[30:].mean() == pytest.approx(0.5, abs=0.08)


def test_the_noise_is_as_wide_as_the_split_says(monkeypatch):
    scales = []

    def nothing(variance, count, generator):
        scales.append(math.sqrt(variance))
        return np.zeros(count, np.int64)

    monkeypatch.setattr(lattice, "skellam", nothing)
    overrides = [UNIFORM, "privacy.dp=client_adaptive", "privacy.noise_multiplier=4", "num_clients=3"]
    privacy, zero = Privacy(compose([*overrides, "privacy.clipping_norm=0.5"])), {"w": np.zeros(4)}
    bits = [{"a": np.array([0.5]), "b": np.array([-0.5])}] * 3
    values = {group: Terms(zero, [zero] * 3, [1.0] * 3, 3.0) for group in ("a", "b")}
    privacy.release({**values, CLIPPED: Terms({}, bits, [1.0] * 3, 1.0)})
    wide = 4 * math.sqrt(4 / 3) * 0.5 * math.sqrt(2)  # z_Δ C √G, where σ_b = z √G
    expected = [4 * math.sqrt(2)] * 2 + [wide] * 2
    assert scales == pytest.approx([deviation * lattice.unit(deviation) for deviation in expected])
    assert privacy.releases == 1
    assert privacy.norms == pytest.approx({"a": 0.5 * math.exp(-0.1), "b": 0.5 * math.exp(0.1)})
    assert privacy.spent()["epsilon"] == cost(PrivacyConfig("server_fixed", 4), 3, 1), "as with a fixed norm"


@pytest.mark.parametrize("groups", [1, 3])
def test_distributed_bits_hold_the_noise_that_is_booked(groups):
    members, needed, size = 7, 5, 20_000
    rules = PrivacyConfig("distributed_adaptive", 2.0, clipping_norm=9.0, secagg=True, secagg_bits=16)
    values = {f"g{i}": {"w": np.zeros(size)} for i in range(groups)} | {CLIPPED: {"w": np.zeros(size)}}
    terms = DistributedNoise(rules, np.random.default_rng(1), cohort=7)
    total = sum(terms.terms(values, dict.fromkeys(values, 1 / members), members, needed) for _ in range(needed))
    split = np.split(total.astype(float), groups + 1)
    for one in split[:-1]:  # in units of the norm
        expected = value_multiplier(rules, groups, 7) * math.sqrt(groups) * 2**16 / members
        assert one.std() == pytest.approx(expected, rel=5 / math.sqrt(2 * size))
    expected = count_noise(rules, groups, 7) * 2**16 / members
    assert split[-1].std() == pytest.approx(expected, rel=5 / math.sqrt(2 * size))


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "clients", "z", "releases"), [(8, 20, 2.0, 3), (8, 60, 3.0, 8), (12, 20, 4.0, 4)])
def test_distributed_epsilon_bounds_that_of_the_exact_distributions(bits, clients, z, releases):
    """Of a value that is moved by its whole norm and a bit by a half, both with Skellam noise, convolved on a grid."""
    rules = PrivacyConfig("distributed_adaptive", z, secagg=True, secagg_bits=bits)
    unit = 2.0**bits / clients
    mechanisms = [
        ((value_multiplier(rules, 1, clients) * unit) ** 2, math.floor(unit)),
        ((count_noise(rules, 1, clients) * unit) ** 2, math.floor(unit / 2)),
    ]
    exact, bound = _exact_epsilon(1e-5, mechanisms, releases), cost(rules, clients, releases)
    assert exact < bound < 1.8 * exact + 0.2


def _exact_epsilon(delta, mechanisms, releases, step=1e-4):
    """ε of releases of integers with Skellam noise, by variance and shift: distributions of their losses, convolved."""
    parts = []
    for variance, shift in mechanisms:
        half = math.ceil(14 * math.sqrt(variance)) + 20
        grid = np.arange(-half, half + 1)
        log_p = exact_skellam.logpmf(grid, variance / 2, variance / 2)
        log_q = exact_skellam.logpmf(grid - shift, variance / 2, variance / 2)
        known = np.isfinite(log_p) & np.isfinite(log_q)
        loss = np.round((log_p - log_q)[known] / step).astype(int)
        parts.append((loss.min(), np.bincount(loss - loss.min(), np.exp(log_p[known]))))
    size = releases * sum(one.size for _, one in parts)
    spectrum = math.prod(np.fft.rfft(one, 2 * size) ** releases for _, one in parts)
    whole = np.fft.irfft(spectrum, 2 * size)[:size].clip(0)
    losses = (np.arange(size) + releases * sum(low for low, _ in parts)) * step
    left, right = 0.0, 60.0
    for _ in range(50):
        middle = (left + right) / 2
        over = losses > middle
        high = float((whole[over] * -np.expm1(middle - losses[over])).sum()) > delta
        left, right = (middle, right) if high else (left, middle)
    return right


def test_a_resumed_run_goes_on_with_its_norms(run, silent):
    overrides = [UNIFORM, "privacy.dp=client_adaptive", "privacy.noise_multiplier=1", "checkpoint_every=2"]
    overrides += ["privacy.clipping_norm=0.05", "privacy.clipping_rate=1", "dtype=float64"]
    half = run(*overrides, "rounds=2")
    again = run(*overrides, "rounds=4", f"resume={half.out}", f"out={half.out}")
    whole = run(*overrides, "rounds=4")
    norms = [[r["privacy"]["clipping_norms"][MODEL] for r in one.rounds] for one in (again, whole)]
    assert norms[0] == norms[1]
    assert len(set(norms[0])) > 2
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)


def test_clients_that_received_other_norms_do_not_add_up(run, monkeypatch):
    """A server that gives one client a large norm and others a small one would scale all but the one away."""
    send = Live.messages

    def unequal(live, phase, clients, *args):
        messages = send(live, phase, clients, *args)
        if phase == TRAIN:
            messages[0].content[CLIPPING] = to_record({MODEL: np.array([50.0])})
        return messages

    monkeypatch.setattr(Live, "messages", unequal)
    with pytest.raises(RunFailed, match="masked their values under different lists"):
        run(UNIFORM, *SECURE, "privacy.dp=distributed_adaptive", "privacy.noise_multiplier=1", "rounds=1")


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf, None])
def test_a_client_refuses_a_norm_that_is_none(run, monkeypatch, norm):
    send = Live.messages

    def wrong(live, phase, clients, *args):
        messages = send(live, phase, clients, *args)
        for message in messages if phase == TRAIN else ():
            message.content[CLIPPING] = to_record({MODEL: np.array([norm])} if norm is not None else {})
        return messages

    monkeypatch.setattr(Live, "messages", wrong)
    with pytest.raises(
        RunFailed, match=r"no clipping norm > 0 for group 'model'|in group 'clipping' with values that are not finite"
    ):
        run(UNIFORM, "privacy.dp=client_adaptive", "privacy.noise_multiplier=1", "rounds=1")


def test_a_client_that_sends_another_bit_is_refused_by_name(run, monkeypatch):
    leave = Clipped.leave

    def lies(self, leaving):
        sent = leave(self, leaving)
        if leaving.client == 1 and CLIPPED in sent:
            sent[CLIPPED] = {MODEL: np.array([-100.0])}
        return sent

    monkeypatch.setattr(Clipped, "leave", lies)
    done = run(UNIFORM, "privacy.dp=client_adaptive", "privacy.noise_multiplier=1", "rounds=1")
    assert list(done.summary["failures"]) == ["1 (train)"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["privacy.clipping_count_noise=1.9"], r"privacy.noise_multiplier=4: expected more than 2"),
        (
            ["privacy.clipping_count_noise=3", "privacy.dp=client_fixed"],
            "with privacy.dp=client_fixed|privacy.dp=client_fixed with",
        ),
        (["privacy.clipping_quantile=0"], "privacy.clipping_quantile"),
        (["privacy.clipping_quantile=1"], "privacy.clipping_quantile"),
        (["privacy.clipping_rate=0"], "privacy.clipping_rate"),
        (["privacy.dp=distributed_adaptive"], "set privacy.secagg=true"),
        (["privacy.clipping_norms={clipped: 1}"], "clipped"),
        (["strategy=fedtgp"], "covers means and sums"),
    ],
)
def test_what_does_not_fit_is_refused(run, overrides, message):
    with pytest.raises(FedGraphError, match=message):
        run(UNIFORM, "privacy.dp=client_adaptive", "privacy.noise_multiplier=4", "rounds=1", *overrides)

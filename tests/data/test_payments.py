"""Generated payments against their specification, and the scores that no blind model can exceed."""

import itertools

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve, roc_auc_score

from benchmarks import depth as depth_ceilings
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.edge_columns import ports, window_counts
from fedgraph_flwr.data.payments import (
    BACKGROUND,
    DAY,
    DIRECTION_DECOY,
    KINDS,
    MERCHANT,
    PATTERN,
    PAYROLL,
    PERSON,
    TIME_DECOY,
    Payments,
    PaymentsSpec,
    activity,
    drawn_chains,
    generate,
    load,
    skeleton,
)
from fedgraph_flwr.errors import FedGraphError

SIZES = {
    "fan_in": (6, 7, 1),
    "fan_out": (6, 7, 1),
    "cycle": (6, 6, 6),
    "scatter_gather": (12, 8, 2),
    "gather_scatter": (12, 13, 2),
    "bipartite": (9, 6, 1),
    "stack": (15, 8, 2),
}


def draw(seed: int = 0, banks: int = 3, **keys) -> Payments:
    small = {"accounts": 600, "background": 2000, "per_kind": 10}
    return generate(PaymentsSpec(**small | keys), seed=seed, banks=banks)


@pytest.mark.parametrize("kind", KINDS)
def test_skeletons_of_size_six(kind):
    shape = skeleton(kind, 6)
    edges, members, stages = SIZES[kind]
    assert (shape.source.size, shape.members, shape.stages) == (edges, members, stages)
    assert set(shape.source) | set(shape.target) == set(range(members))
    assert len(set(zip(shape.source.tolist(), shape.target.tolist(), strict=True))) == edges
    assert not (shape.source == shape.target).any()
    assert set(shape.stage) == set(range(stages))


def test_skeletons_have_their_direction():
    assert set(skeleton("fan_in", 4).target) == {0}
    assert set(skeleton("fan_out", 4).source) == {0}
    for kind in ("scatter_gather", "gather_scatter", "stack"):  # money moves on one stage later
        shape = skeleton(kind, 5)
        middle = set(shape.target[shape.stage == 0])
        assert set(shape.source[shape.stage == 1]) == middle


def test_it_is_a_pure_function_of_the_seed():
    first, again, other = draw(1), draw(1), draw(2)
    for name in vars(first):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    assert first.time.size != other.time.size or not np.array_equal(first.time, other.time)


def test_payments_are_sorted_by_time_without_payments_to_oneself():
    p = draw()
    assert (np.diff(p.time) >= 0).all()
    assert not (p.source == p.target).any()
    assert p.time.min() >= 0
    assert p.time.max() < 30 * DAY
    assert (np.diff(p.bank) >= 0).all()


def test_default_sizes():
    """As measured when the generator was specified: 51,934 payments, 7.66 % positive, half between banks."""
    p = generate(PaymentsSpec(), seed=0, banks=5)
    assert p.time.size == pytest.approx(51_934, rel=0.01)
    assert p.label.mean() == pytest.approx(0.0766, abs=0.003)
    between = p.bank[p.source] != p.bank[p.target]
    assert between.mean() == pytest.approx(0.497, abs=0.03)
    assert between[p.label].mean() == pytest.approx(0.46, abs=0.04)


def test_background_pays_from_persons_and_payrolls_only():
    p = draw(background=20_000)
    background = p.role == BACKGROUND
    paying, receiving = p.kind[p.source[background]], p.kind[p.target[background]]
    assert set(paying) == {PERSON, PAYROLL}
    assert (paying == PAYROLL).mean() == pytest.approx(0.10, abs=0.01)
    assert (receiving[paying == PAYROLL] == PERSON).all()
    assert (receiving == MERCHANT).mean() == pytest.approx(0.25 + 0.65 * 0.08, abs=0.03)


@pytest.mark.parametrize("cross", [0.0, 0.5, 1.0])
def test_patterns_and_decoys_are_of_distinct_persons_alike(cross):
    p = draw(cross=cross, window=1.0, per_kind=20)
    for role in (PATTERN, DIRECTION_DECOY, TIME_DECOY):
        edges = p.role == role
        assert (p.kind[np.concatenate([p.source[edges], p.target[edges]])] == PERSON).all()
        assert edges.sum() == (p.role == PATTERN).sum()
        assert (p.label[edges] == (role == PATTERN)).all()
        between = (p.bank[p.source[edges]] != p.bank[p.target[edges]]).mean()
        assert (between == 0) if cross == 0 else between > 0.2
        longest = max(np.ptp(p.time[p.pattern == number]) for number in np.unique(p.pattern[edges]))
        assert (longest > 5 * DAY) if role == TIME_DECOY else longest <= DAY
    degree = np.zeros((p.pattern.max() + 1, p.bank.size), dtype=int)
    planted = p.pattern >= 0
    np.add.at(degree, (p.pattern[planted], p.source[planted]), 1)
    np.add.at(degree, (p.pattern[planted], p.target[planted]), 1)
    members = (degree > 0).sum(1)
    edges = np.bincount(p.pattern[planted])
    sizes = {(skeleton(kind, k).source.size, skeleton(kind, k).members) for kind in KINDS for k in range(4, 9)}
    assert set(zip(edges.tolist(), members.tolist(), strict=True)) <= sizes  # so no member stands twice in a pattern


def test_direction_decoys_are_neither_the_pattern_nor_its_reverse():
    p = draw(kinds=["fan_in"], size=[5, 5], per_kind=300)
    for role in (PATTERN, DIRECTION_DECOY):
        chosen = np.flatnonzero(p.role == role)
        receivers = [np.unique(p.target[p.pattern == number]).size for number in np.unique(p.pattern[chosen])]
        assert (set(receivers) == {1}) if role == PATTERN else (min(receivers) >= 2)


def test_stages_of_a_pattern_follow_each_other():
    p = draw(kinds=["scatter_gather"], per_kind=40)
    for number in np.unique(p.pattern[p.role == PATTERN]):
        edges = np.flatnonzero(p.pattern == number)  # sorted by time
        half = edges.size // 2
        assert np.unique(p.source[edges[:half]]).size == np.unique(p.target[edges[half:]]).size == 1


def test_label_noise_flips_that_share_of_labels():
    p = draw(label_noise=0.2, background=20_000)
    assert ((p.role == PATTERN) != p.label).mean() == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kinds": ["fan"]}, "dataset.kinds 'fan' is unknown"),
        ({"size": [5, 4]}, r"dataset.size must be \[low, high\] with 2 <= low <= high, got \[5, 4\]"),
        ({"window": 31.0}, "dataset.window=31 days must be at most dataset.days=30"),
        ({"accounts": 40, "banks": 3}, "raise dataset.accounts"),
    ],
)
def test_impossible_keys_are_refused(keys, message):
    with pytest.raises(FedGraphError, match=message):
        draw(**keys)


@pytest.fixture(scope="module")
def multigraph() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    source, target = rng.integers(6, size=(2, 200))
    return source, target, rng.integers(10, 60, size=200)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, 7, 1000])
def test_window_counts_equal_counting(multigraph, window, causal):
    source, target, time = multigraph
    expected = []
    for s, t, moment in zip(source, target, time, strict=True):
        before = (time >= moment - window) & (time <= moment)
        after = (time >= moment) & (time <= moment + window)
        expected.append(
            [
                int((ends[within] == node).sum())
                for within in ([before] if causal else [before, after])
                for node in (s, t)
                for ends in (source, target)
            ]
        )
    assert np.array_equal(window_counts(source, target, time, window, causal), expected)


def test_ports_equal_counting(multigraph):
    source, target, time = multigraph

    def rank(owner, other, index):
        order = sorted(np.flatnonzero(owner == owner[index]), key=lambda e: (time[e], e))
        return list(dict.fromkeys(other[order].tolist())).index(other[index])

    expected = [[rank(target, source, e), rank(source, target, e)] for e in range(200)]
    assert np.array_equal(ports(source, target, time), expected)


def test_later_payments_change_neither_ports_nor_causal_counts(multigraph):
    source, target, time = multigraph
    early = time <= 40
    known = source[early], target[early], time[early]
    assert np.array_equal(ports(source, target, time)[early], ports(*known))
    counts = window_counts(source, target, time, window=9)
    assert np.array_equal(counts[early], window_counts(*known, window=9))


def test_columns_of_no_edges():
    none = np.zeros(0, dtype=np.int64)
    assert ports(none, none, none).shape == (0, 2)
    assert window_counts(none, none, none, 5, causal=False).shape == (0, 8)


def blind_columns(p: Payments) -> dict[str, np.ndarray]:
    """Columns of each payment that leave out direction, time, or both, and all of them."""
    around = window_counts(p.source, p.target, p.time, DAY, causal=False)
    ever = window_counts(p.source, p.target, p.time, 30 * DAY, causal=False)
    ever = ever[:, :4] + ever[:, 4:]
    undirected = np.sort(around.reshape(-1, 2, 2, 2).sum(3), axis=2).reshape(-1, 4)
    attributes = np.stack([p.amount, p.form], axis=1)
    return {"own": attributes, "direction": ever, "time": undirected, "both": around}


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "sees"), [("own", ""), ("direction", ""), ("time", "t"), ("both", "dt")])
def test_ceilings(columns, sees):
    """Trees on window counts: without direction no better than chance against direction decoys, and likewise without time."""
    p = generate(PaymentsSpec(per_kind=150, size=[6, 10], window=1.0), seed=0, banks=5)
    x = blind_columns(p)[columns]
    first, second = np.quantile(p.time, [0.6, 0.8])
    train, val, test = p.time < first, (p.time >= first) & (p.time < second), p.time >= second
    trees = HistGradientBoostingClassifier(max_iter=60, random_state=0, early_stopping=False)
    score = trees.fit(x[train], p.label[train]).predict_proba(x)[:, 1]

    def auc(decoys: int) -> float:
        kept = test & np.isin(p.role, [PATTERN, decoys])
        return float(roc_auc_score(p.label[kept], score[kept]))

    precision, recall, thresholds = precision_recall_curve(p.label[val], score[val])
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
    reached = f1_score(p.label[test], score[test] >= thresholds[f1[:-1].argmax()])
    if "d" in sees:
        assert auc(DIRECTION_DECOY) > 0.8
        assert reached >= 0.62
    else:
        assert auc(DIRECTION_DECOY) == pytest.approx(0.5, abs=0.05)
        assert reached <= 2 / 3
    if "t" in sees:
        assert auc(TIME_DECOY) > 0.85
    else:
        assert auc(TIME_DECOY) == pytest.approx(0.5, abs=0.05)


def test_activity_by_hand():
    """Account 0 pays 1 three times, twice within a day; 1 passes the first two payments on to 2 within the same day."""
    source, target, hour = np.array([0, 0, 1, 0]), np.array([1, 1, 2, 1]), np.array([0, 5, 9, 60])
    none = np.zeros(4, dtype=np.int64)
    p = Payments(
        np.zeros(3, dtype=np.int64), none[:3], source, target, hour * 3600, none + 1.0, none, none > 0, none, none
    )
    counts = np.expm1(activity(p, PaymentsSpec(windows=[1.0]))).round().astype(int)
    assert counts.tolist() == [[3, 0, 1, 0, 2, 0, 0], [1, 3, 1, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1, 0]]
    np.testing.assert_array_equal(activity(p, PaymentsSpec(window=1.0)), activity(p, PaymentsSpec(windows=[1.0])))


DEEP = {"accounts": 1500, "background": 500, "per_kind": 20}


@pytest.mark.parametrize("depth", [2, 3])
def test_chains_and_their_labels(depth):
    """Labels follow from the fans that stand in the payments; all chains look alike around the account in the middle."""
    spec = PaymentsSpec(**DEEP, depth=depth)
    p = generate(spec, seed=1, banks=5)
    chains = drawn_chains(spec, p.kind, 1)
    assert np.unique(chains.members).size == chains.members.size == 140 * (2 * depth - 1)
    laundering = p.role == PATTERN
    np.testing.assert_array_equal(p.label, laundering)
    large = p.amount > 1500
    for i, (members, label) in enumerate(zip(chains.members, chains.label, strict=True)):
        chain = (p.pattern == i) & np.isin(p.source, members) & np.isin(p.target, members) & large
        assert chain.sum() == 2 * depth - 2
        others = (p.pattern == i) & ~chain
        fans = np.bincount(p.target[others], minlength=1500)[members[: depth - 1]].tolist()
        fans += [0, *np.bincount(p.source[others], minlength=1500)[members[depth:]]]
        fans = [size if size > 2 else 0 for size in fans]  # a fan's other end may be a member too
        near, far = (fans[depth - 2], fans[depth]), (fans[0], fans[-1])
        assert set(fans) <= {0, *range(8, 18)}
        votes = [2 * (n > 0) for n in near] + [f > 0 for f in far] if depth == 3 else [n > 0 for n in near]
        assert label == (sum(votes) > (3 if depth == 3 else 1))
        middle = members[depth - 1]
        assert (laundering & (p.pattern == i)).sum() == 2 * label
        assert (laundering & ((p.source == middle) | (p.target == middle))).sum() == 2 * label
        own_times = p.time[chain]
        assert p.time[others].max(initial=0) <= own_times.min()
        assert own_times.max() - p.time[p.pattern == i].min() <= 2 * DAY
        np.testing.assert_array_equal(p.source[chain], members[:-1])  # payments are sorted by time
    assert (p.bank[p.source] != p.bank[p.target]).mean() > 0.7
    inside = generate(PaymentsSpec(**DEEP, depth=depth, fans="own"), seed=1, banks=5)
    fan = (inside.pattern >= 0) & ~np.isin(inside.amount, p.amount[large])
    assert inside.source.size == p.source.size
    assert (inside.bank[inside.source[fan]] == inside.bank[inside.target[fan]]).all()
    assert (inside.source != inside.target).all()


@pytest.mark.parametrize(("item", "fans"), [("accounts", "any"), ("payments", "any"), ("payments", "own")])
def test_ceilings_of_chains_equal_enumeration(item, fans):
    """Second derivation: walk along payments that the observer sees, then count the chains that agree with what it saw."""
    spec = PaymentsSpec(**DEEP, depth=3, fans=fans)
    p = generate(spec, seed=2, banks=3)
    chains = drawn_chains(spec, p.kind, 2)
    every = [bits for bits in itertools.product([0, 1], repeat=5) if bits[2] == 0]
    laundering = {bits: 2 * (bits[1] + bits[3]) + bits[0] + bits[4] > 3 for bits in every}
    scores = {"local": [], "far ends": [], "pooled": []}
    people = np.bincount(p.bank[p.kind == PERSON])
    labels = []
    for start in [(2, 2)] if item == "accounts" else [(1, 2), (2, 3)]:
        for number, (members, fan, label) in enumerate(zip(*chains, strict=True)):
            bank = p.bank[members[start[0]]]
            home = p.bank[members] == bank
            reached = set(start)
            while more := {
                j for i in reached for j in (i - 1, i + 1) if 0 <= j < 5 and j not in reached and (home[i] or home[j])
            }:
                reached |= more
            beside = {j for j in reached if any(home[k] for k in (j - 1, j, j + 1) if 0 <= k < 5)}
            every_fan = {j: float(fan[j]) for j in range(5)}
            none = np.mean([(1 - people[bank] / people.sum()) ** size for size in range(8, 17)])
            alone = {}
            for j in reached - {2}:
                near, other = (p.target, p.source) if j < 2 else (p.source, p.target)
                before = dict(zip((1, 3), members[[0, 4]], strict=True)).get(j, -1)  # the chain's own payment
                mine = (p.pattern == number) & (near == members[j]) & (p.bank[other] == bank) & (other != before)
                less = 0.5 if fans == "own" else none / (1 + none)
                alone[j] = fan[j] if home[j] else 1 if mine.any() else less
            for name, chance in (
                ("local", alone),
                ("far ends", {j: every_fan[j] for j in beside}),
                ("pooled", every_fan),
            ):
                known = [chance.get(j, 0.5) for j in range(5)]
                odds = [np.prod([q if b else 1 - q for b, q in zip(bits, known, strict=True)]) for bits in every]
                agreeing = sum(odd for bits, odd in zip(every, odds, strict=True) if laundering[bits])
                scores[name].append(round(agreeing / sum(odds), 9))
            labels.append(label)
    for name, value in depth_ceilings.ceilings(chains, p, spec, item).items():
        assert value == pytest.approx(average_precision_score(labels, scores[name]), abs=1e-12)


def test_accounts_of_chains_are_labelled_in_their_middle():
    cfg = compose(["dataset=payments", "dataset.depth=3", *(f"dataset.{key}={value}" for key, value in DEEP.items())])
    graph = load(cfg.dataset, seed=1, num_clients=5)
    spec = PaymentsSpec(**DEEP, depth=3)
    p = generate(spec, seed=1, banks=5)
    chains = drawn_chains(spec, p.kind, 1)
    assert set(np.flatnonzero(graph.y.numpy())) == set(chains.members[chains.label, 2])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"depth": 3, "cross": 0.1}, "dataset.depth=3 plants chains, which do not read dataset.cross: leave it out"),
        ({"depth": 9, "per_kind": 60}, "\\d+ persons are too few for 420 chains of 17 members: raise dataset.accounts"),
    ],
)
def test_chains_refuse_other_keys(keys, message):
    with pytest.raises(FedGraphError, match=message):
        draw(**keys, accounts=600)

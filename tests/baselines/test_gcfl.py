"""GCFL and GCFL+: planted groups are found, nothing else is split; cuts and warped distances by brute force; a round by hand."""

from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from fedgraph_baselines.methods.gcfl import distances, halves
from fedgraph_baselines.strategies.gcfl import GCFL
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.round import Round
from fedgraph_flwr.wire.messages import MODEL, Reply, from_record
from tests.support import recorded_messages, reduced, same_result

ALWAYS = ["strategy=gcfl", "strategy.warmup=0", "strategy.eps1=1e9", "strategy.eps2=0"]


def server_of(*overrides: str, train: tuple[int, ...] = (1,) * 6) -> GCFL:
    """A server whose clients have these numbers of training nodes; the model is one vector of 4."""
    server = GCFL(compose(["strategy=gcfl", f"num_clients={len(train)}", "strategy.warmup=0", *overrides]))
    server.clients = {i: ClientInfo(i, i, {"num_train": n}) for i, n in enumerate(train)}
    server.arrays = {"w": np.zeros(4)}
    server.setup()
    return server


def step(server: GCFL, updates: dict[int, Any]) -> list[list[int]]:
    """A round in which these clients reply with their models and these updates; the clusters after it."""
    server.round = Round(server.server_round + 1)
    replies = [
        Reply(i, {MODEL: {"w": server.models.get(i, server.arrays)["w"] + np.asarray(u, float)}})
        for i, u in updates.items()
    ]
    server.arrays = server.step(server.arrays, reduced(server, "train", replies))
    return [server.members(cluster) for cluster in server.clusters]


def planted(scale: float = 1.0) -> dict[int, np.ndarray]:
    """Updates of clients 0, 2, 5 in one direction and of 1, 3, 4 against it, a little apart."""
    rng = np.random.default_rng(0)
    side = np.array([1, -1, 1, -1, -1, 1])
    return {i: scale * (side[i] * np.array([1, 2, 0, 0]) + 0.1 * rng.normal(size=4)) for i in range(6)}


def test_planted_groups_are_split_and_go_apart():
    train = (1, 2, 3, 4, 5, 6)
    server, updates = server_of("strategy.eps1=0.8", "strategy.eps2=0.5", train=train), planted()
    groups = step(server, updates)
    assert groups == [[0, 2, 5], [1, 3, 4]]
    for group in groups:
        mean = sum(train[i] * updates[i] for i in group) / sum(train[i] for i in group)
        for client in group:
            np.testing.assert_allclose(server.models[client]["w"], mean, rtol=1e-12)
    everyone = sum(train[i] * updates[i] for i in range(6)) / sum(train)
    np.testing.assert_allclose(server.arrays["w"], everyone, rtol=1e-12)
    before = {i: server.models.get(i, server.arrays)["w"] for i in range(6)}
    assert step(server, {0: [1, 0, 0, 0], 2: [0, 1, 0, 0]}) == groups  # none of the others replies
    np.testing.assert_allclose(server.models[5]["w"], before[5] + np.array([1, 3, 0, 0]) / 4, rtol=1e-12)
    np.testing.assert_array_equal(server.models[5]["w"], server.models[0]["w"])
    np.testing.assert_array_equal(server.models[4]["w"], before[4])


@pytest.mark.parametrize(
    ("overrides", "updates"),
    [
        (["strategy.eps1=0.05", "strategy.eps2=0.5"], planted()),  # the mean is larger
        (["strategy.eps1=0.8", "strategy.eps2=3"], planted()),  # no member is that large
        (["strategy.eps1=0", "strategy.eps2=0"], {i: [0, 0, 0, 0] for i in range(6)}),
        (["strategy.eps1=0.8", "strategy.eps2=0.5", "strategy.warmup=1"], planted()),
        (["strategy.eps1=0.8", "strategy.eps2=0.5"], {0: [1, 0, 0, 0], 1: [-1, 0, 0, 0]}),  # only two members
        (["strategy.eps1=0.8", "strategy.eps2=0.5", "strategy.plus=true"], planted()),  # one norm a client
    ],
)
def test_no_split_where_a_criterion_does_not_hold(overrides, updates):
    server = server_of(*overrides)
    assert step(server, updates) == [[0, 1, 2, 3, 4, 5]]
    assert server.models == {}


def test_the_mean_is_by_weights_or_uniform():
    updates = {0: [3, 0, 0, 0], 1: [-1, 0, 0, 0], 2: [-1, 0, 0, 0], 3: [-1, 0, 0, 0]}
    uneven, wanted = (7, 1, 1, 1), ["strategy.eps1=0.1", "strategy.eps2=1"]
    assert step(server_of(*wanted, train=uneven), updates) == [[0, 1, 2, 3]]
    assert step(server_of(*wanted, "strategy.mean=uniform", train=uneven), updates) == [[0], [1, 2, 3]]
    assert step(server_of(*wanted, train=(1, 1, 1, 1)), updates) == [[0], [1, 2, 3]]


def test_an_absent_client_goes_with_those_it_was_like_when_they_met():
    server, updates = server_of("strategy.eps1=0.8", "strategy.eps2=0.5", "strategy.warmup=1"), planted()
    step(server, updates)
    del updates[5]
    updates[1], updates[3] = updates[1] / 2, updates[3] / 2  # so that the mean of those left is small
    assert step(server, updates) == [[0, 2, 5], [1, 3, 4]]
    np.testing.assert_array_equal(server.models[5]["w"], server.models[0]["w"])


def test_clusters_only_refine():
    rng, server = np.random.default_rng(1), server_of("strategy.eps1=1e9", "strategy.eps2=0", train=(1,) * 9)
    before = [list(range(9))]
    for _ in range(4):
        after = step(server, {i: rng.normal(size=4) for i in range(9)})
        assert sorted(client for group in after for client in group) == list(range(9))
        assert all(any(set(new) <= set(old) for old in before) for new in after)
        assert len(after) == sum(2 if len(old) > 2 else 1 for old in before)
        before = after


def warped(a: list[float], b: list[float]) -> float:
    """The definition: the best of all warping paths."""

    @cache
    def least(i: int, j: int) -> float:
        if i < 0 or j < 0:
            return 0.0 if i == j == -1 else float("inf")
        return (a[i] - b[j]) ** 2 + min(least(i - 1, j), least(i, j - 1), least(i - 1, j - 1))

    return least(len(a) - 1, len(b) - 1) ** 0.5


def test_warped_distances():
    series = np.random.default_rng(0).normal(size=(7, 5))
    series[3] = np.append(series[2, :1], series[2, :4])  # a step late: near, though its values differ
    matrix = distances(series)
    np.testing.assert_allclose(matrix, [[warped(a, b) for b in series.tolist()] for a in series.tolist()], atol=1e-12)
    assert matrix[2, 3] < np.linalg.norm(series[2] - series[3]) / 1.5


def smallest_cut(likeness: np.ndarray) -> tuple[float, list[int]]:
    """The least weight between two sides, and the side of node 0, of all ways to cut."""
    n = len(likeness)
    sides = [[0, *rest] for k in range(n - 1) for rest in combinations(range(1, n), k)]
    return min((likeness[np.ix_(s, [i for i in range(n) if i not in s])].sum(), s) for s in sides)


def test_halves_are_the_smallest_cut():
    rng = np.random.default_rng(0)
    for n in (3, 4, 7):
        likeness = rng.uniform(size=(n, n))
        likeness = likeness + likeness.T
        one, other = halves(likeness, [10 * i for i in range(n)])
        assert one == [10 * i for i in smallest_cut(likeness)[1]]
        assert sorted(one + other) == [10 * i for i in range(n)]
    assert halves(np.zeros((3, 3)), [0, 1, 2])[0][0] == 0  # all cuts weigh 0, and one is taken


def test_plus_splits_by_series_of_norms():
    """Norms of clients 0, 2, 5 rise and of 1, 3, 4 fall, in directions that say nothing of it."""
    overrides = ["strategy.plus=true", "strategy.length=4", "strategy.eps1=1e9", "strategy.eps2=0"]
    server = server_of(*overrides)
    rng, rising = np.random.default_rng(2), {0, 2, 5}
    for t in range(4):
        directions = {i: rng.normal(size=4) for i in range(6)}
        size = {i: (1 + t if i in rising else 4 - t) * (1 + 0.01 * i) for i in range(6)}
        groups = step(server, {i: size[i] * d / np.linalg.norm(d) for i, d in directions.items()})
        assert groups == ([[0, 1, 2, 3, 4, 5]] if t < 3 else [[0, 2, 5], [1, 3, 4]])
    for clusters in (3, 4):  # one split at a time, since each empties all series
        for _ in range(3):
            assert step(server, {i: rng.normal(size=4) for i in range(6)}) == groups
        groups = step(server, {i: rng.normal(size=4) for i in range(6)})
        assert len(groups) == clusters


def test_a_split_empties_the_series_of_every_cluster():
    """Of two clusters one is split again; the other may not be before it has a whole new series."""
    server = server_of("strategy.plus=true", "strategy.length=4", "strategy.eps1=1e9", "strategy.eps2=0.5")
    rng, rising = np.random.default_rng(3), {0, 2, 5}

    def once(size: list[float]) -> list[list[int]]:
        directions = rng.normal(size=(6, 4))
        return step(server, {i: size[i] * d / np.linalg.norm(d) for i, d in enumerate(directions)})

    for t in range(4):
        groups = once([1.0 + t if i in rising else 4.0 - t for i in range(6)])
    assert groups == [[0, 2, 5], [1, 3, 4]]
    for _ in range(4):
        groups = once([1.0 if i in rising else 0.1 for i in range(6)])
    assert len(groups) == 3
    assert [1, 3, 4] in groups
    assert not server.memory["recorded"].any()
    for _ in range(3):
        assert once([1.0] * 6) == groups
    assert len(once([1.0] * 6)) == 4


@pytest.mark.parametrize(("plus", "splits"), [(True, 1), (False, 2)])
def test_two_clusters_of_gcfl_plus_never_split_in_one_round(plus, splits):
    """The authors' loop over clusters empties all series at a split, so that the next cluster has none of full length."""
    server = server_of("strategy.eps1=1e9", "strategy.eps2=0", f"strategy.plus={plus}", "strategy.length=2")
    server.memory["cluster"][3:] = 1
    server.params.warmup = 1
    step(server, planted())
    assert len(step(server, planted())) == 2 + splits


def test_a_round_by_hand(run, monkeypatch):
    """Of a run: updates from the messages, the cut by brute force, and the mean of each side."""
    with recorded_messages(monkeypatch) as messages:
        finished = run(*ALWAYS, "rounds=1", "dtype=float64", sizes=(12, 16, 20, 14, 18))
    up = [c for way, _, c in messages if way == "up" and MODEL in c.array_records]
    (down, *_) = (c for way, _, c in messages if way == "down" and MODEL in c.array_records)
    first = from_record(down[MODEL])
    models = [from_record(c[MODEL]) for c in up]
    updates = [np.concatenate([(m[name] - first[name]).ravel() for name in first]) for m in models]
    likeness = np.array([[1 + a @ b / np.sqrt((a @ a) * (b @ b)) for b in updates] for a in updates])
    side = smallest_cut(likeness)[1]
    train = [c["metrics"]["num_train"] for c in up]
    tensors = read_tensors(finished.out / "models_final.safetensors")[0]
    for group in (side, [i for i in range(5) if i not in side]):
        for client in group:
            for name in first:
                mean = sum(train[i] * models[i][name] for i in group) / sum(train[i] for i in group)
                np.testing.assert_allclose(tensors[f"{client}/{name}"].numpy(), mean, rtol=1e-10, atol=1e-14)


def test_the_last_gradient_is_what_plain_descent_moves_by(run, monkeypatch):
    overrides = ["train.optimizer=sgd", "train.lr=1", "train.weight_decay=0", "train.local_steps=1", "dtype=float64"]
    with recorded_messages(monkeypatch) as messages:
        run("strategy=gcfl", "strategy.plus=true", "strategy.series=gradient", *overrides, "rounds=1")
    (down, *_) = (c for way, _, c in messages if way == "down" and MODEL in c.array_records)
    for content in (c for way, _, c in messages if way == "up" and MODEL in c.array_records):
        moved = [content[MODEL][name].numpy() - down[MODEL][name].numpy() for name in down[MODEL]]
        expected = np.linalg.norm(np.concatenate([m.ravel() for m in moved]))
        assert content["metrics"]["gradient-norm"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("plus", [[], ["strategy.plus=true", "strategy.length=2"]])
def test_split_runs_resume_with_a_part_of_the_clients(run, plus):
    overrides = [*ALWAYS, *plus, "strategy.fraction=0.75", "checkpoint_every=1", "seed=1"]
    sizes = (12, 16, 20, 14, 18, 15)
    whole = run(*overrides, "rounds=6", sizes=sizes)
    half = run(*overrides, "rounds=4", sizes=sizes)
    tensors = read_tensors(half.out / "checkpoint.safetensors")[0]
    assert len(tensors["server/method/cluster"].unique()) > 1
    node_clients.forget(0)
    same_result(run(*overrides, "rounds=6", f"resume={half.out}", f"out={half.out}", sizes=sizes), whole)


@pytest.mark.parametrize("word", ["eps1=-1", "warmup=-1", "length=1", "mean=odd", "series=odd"])
def test_wrong_keys_are_refused(word):
    with pytest.raises(FedGraphError, match=rf"strategy\.{word.partition('=')[0]}"):
        check_method(compose(["strategy=gcfl", f"strategy.{word}"]))


@pytest.mark.parametrize("plus", ["false", "true"])
def test_indices_with_gaps_are_clustered_alike(plus):
    """On a fleet a run of six may be of the graphs 0, 3, 40, .. of a larger partition."""
    names = [0, 3, 40, 41, 50, 77]
    overrides = [word for word in ALWAYS[1:] if plus == "false" or "warmup" not in word] + [
        f"strategy.plus={plus}",
        "strategy.length=2",
    ]
    plain, gaps = server_of(*overrides), server_of(*overrides)
    gaps.clients = {name: ClientInfo(name, name, {"num_train": 1}) for name in names}
    gaps.setup()
    for _ in range(3):
        updates = planted()
        ours = step(plain, updates)
        assert step(gaps, {names[i]: update for i, update in updates.items()}) == [
            [names[i] for i in group] for group in ours
        ]
    assert len(ours) > 1

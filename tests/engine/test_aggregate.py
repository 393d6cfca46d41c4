"""Sums in Ray's actors: the figures of the in-process engine, the same bits from any number of actors, each failure named."""

import numpy as np
import pytest

from fedgraph_flwr.config import compose
from fedgraph_flwr.engine.ray import RayGrid, ray_session
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline, run_ray
from fedgraph_flwr.numerics.partial_sums import PartialSum
from fedgraph_flwr.wire.reply_schema import ArrayField
from tests.support import Finished, assert_same_arrays

WORDS = [
    "dataset=csbm",
    "num_clients=7",
    "dataset.nodes_per_client=[30,50]",
    "rounds=3",
    "model.hidden=8",
    "checkpoint_every=0",
]

pytestmark = pytest.mark.xdist_group("one ray")


@pytest.fixture(scope="module")
def pool(tmp_path_factory, one_ray):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAPH_DATA", str(tmp_path_factory.mktemp("root")))
        with ray_session() as pool:
            yield pool


@pytest.fixture
def go(pool, tmp_path):
    """``go("key=value", ..., actors=2)``: a run whose actors add up; without actors, in this process."""

    def run(*overrides, actors=0, on_round=None):
        options = ["engine=ray", "ray.aggregate=true", f"ray.actors={actors}"] if actors else []
        cfg = with_folder(compose([*WORDS, *overrides, *options, f"out={tmp_path / str(actors)}"]))
        return Finished(cfg, run_ray(cfg, on_round) if actors else run_inline(cfg))

    return run


def assert_close(added, inline):
    """Parameters within the rounding of a float64 sum; failures, bytes and cohorts exactly."""
    for name, array in inline.arrays.items():
        np.testing.assert_allclose(added.arrays[name], array, rtol=1e-10, atol=1e-13)
    for key in ("cohort", "failed"):
        assert [r[key] for r in added.rounds] == [r[key] for r in inline.rounds]
    assert added.summary["bytes_by_phase"] == inline.summary["bytes_by_phase"]
    assert added.summary["aggregated"] == "actors"
    assert "aggregated" not in inline.summary


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["strategy=fedavg", "strategy.fraction=0.6", "strategy.weighting=nodes"],
        ["strategy=scaffold", "strategy.max_share=0.2"],
        ["strategy=fedomd"],
        ["strategy=fedper", "evaluation.clients=cohort"],
    ],
    ids=lambda overrides: overrides[0].partition("=")[2],
)
def test_sums_of_actors_are_those_of_one_process(go, overrides):
    overrides = [*overrides, "dtype=float64"]
    two = go(*overrides, actors=2)
    assert_close(two, go(*overrides))
    if "strategy=fedavg" in overrides:  # any number of actors; the sums themselves are below
        assert_same_arrays(two.arrays, go(*overrides, actors=1).arrays)


@pytest.mark.slow
def test_no_array_comes_back_from_a_client(go, monkeypatch):
    seen = []
    receive = RayGrid._receive
    monkeypatch.setattr(
        RayGrid, "_receive", lambda self: (receive(self), seen.extend(m.content for m in self._replies.values()))
    )
    go(actors=2)
    assert len(seen) >= 7 * 5
    assert not any(content.array_records for content in seen)


@pytest.mark.slow
def test_a_killed_actor_adds_nothing_twice(go):
    from tests.engine.actors import kill_an_actor

    def kill(record):
        if record["round"] == 1:
            kill_an_actor()

    assert_same_arrays(go(actors=2, on_round=kill).arrays, go(actors=1).arrays)


@pytest.mark.slow
def test_a_client_that_fails_is_named_and_left_out(go):
    overrides = ["strategy.client=tests.engine.misbehaving:Raising", "strategy.min_clients=1", "dtype=float64"]
    added = go(*overrides, actors=2)
    assert added.summary["failures"]
    assert_close(added, go(*overrides))


@pytest.mark.slow
def test_wrong_answers_are_refused_where_they_are_made(go):
    overrides = ["strategy.client=tests.engine.misbehaving:Misbehaving", "strategy.min_clients=1", "dtype=float64"]
    assert_close(go(*overrides, actors=2), go(*overrides))


@pytest.mark.slow
def test_an_answer_that_is_refused_after_it_was_added_ends_the_run(go):
    with pytest.raises(RunFailed, match=r"client 1: client 1 replied .*num_train=.*set ray.aggregate=false"):
        go("strategy.client=tests.engine.misbehaving:Boasting", "strategy.min_clients=1", actors=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["engine=inline"], "engine=inline has none: set engine=ray"),
        (["strategy=fedtgp"], "strategy=fedtgp needs each client's values of 'prototypes'"),
        (["strategy=fedlit"], "needs late weights of 'model' .* set ray.aggregate=false"),
        (["strategy.aggregator=median"], "strategy.aggregator=median needs single models"),
        (["privacy.secagg=true"], "set ray.aggregate=false, or privacy.secagg=false"),
        (["strategy.weighting=uniform", "privacy.dp=client_fixed"], "clips single updates"),
    ],
)
def test_what_is_no_sum_is_refused(pool, tmp_path, overrides, sentence):
    with pytest.raises(FedGraphError, match=sentence):
        run_ray(with_folder(compose([*WORDS, "engine=ray", "ray.aggregate=true", *overrides, f"out={tmp_path}"])))


def test_a_sum_has_the_same_bits_in_any_order_and_any_parts():
    rng = np.random.default_rng(0)
    shares = {node: {"model": share} for node, share in enumerate(rng.dirichlet(np.ones(40)))}
    fields = {"model": {"w": ArrayField((5, 3), "float64"), "b": ArrayField((), "float32")}}
    values = {
        node: {"w": rng.normal(size=(5, 3)) * 10.0 ** rng.integers(-6, 6), "b": np.float32(rng.normal())}
        for node in shares
    }

    def total(order, parts):
        whole = PartialSum()
        for piece in np.array_split(order, parts):
            part = PartialSum()
            for node in piece:
                part.add(int(node), {"model": {k: np.asarray(v) for k, v in values[node].items()}}, shares[node])
            whole.merge(part)
        return whole.means(shares, fields)["model"]

    totals = [total(rng.permutation(40), parts) for parts in (1, 2, 7, 40)]
    for other in totals[1:]:
        assert_same_arrays(other, totals[0])
    exact = sum(shares[node]["model"] * np.longdouble(values[node]["w"]) for node in shares)
    np.testing.assert_allclose(totals[0]["w"], np.float64(exact), rtol=1e-12)
    assert totals[0]["b"].dtype == np.float32
    some = PartialSum()
    some.add(3, {"model": {"w": values[3]["w"]}}, shares[3])
    np.testing.assert_allclose(
        some.means(shares, fields)["model"]["w"], values[3]["w"], atol=2**-70 / shares[3]["model"]
    )
    with pytest.raises(FedGraphError, match=r"'w' has values of 2\^32 or more"):
        some.add(4, {"model": {"w": np.array([2.0**32])}}, {"model": 0.1})
    assert some.nodes == [3]

"""Plug-in methods of five kinds under each protection: what the uplink declares is protected, or the run is refused."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedgraph_flwr import tracking
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.numerics.partial_sums import PartialSum
from fedgraph_flwr.plugin import (
    ARRAYS,
    METRICS,
    MODEL,
    TRAIN,
    ArrayField,
    GraphClient,
    GraphStrategy,
    Individual,
    Mean,
    NumberField,
    Sum,
    phase,
)
from fedgraph_flwr.strategies import aggregators
from fedgraph_flwr.strategies.personal import PersonalStrategy
from fedgraph_flwr.strategies.replay import Replay
from fedgraph_flwr.strategies.summation.plain import Plain
from fedgraph_flwr.wire.messages import from_record, weighted_mean
from tests.conftest import client_graph
from tests.support import recorded_messages, write_report

AVERAGED = Mean(ARRAYS, origin=ARRAYS)
HERE = "tests.strategies.test_plugins"


def own(cfg, params):
    return {TRAIN: {MODEL: Individual(ARRAYS, why="models are averaged by the method itself")}}


def with_statistic(cfg, params):
    return {TRAIN: {MODEL: AVERAGED, "statistic": Sum({"x": ArrayField((3,), "float64")})}}


def with_exchange(cfg, params):
    return {"probe": {"probe": Mean({"x": ArrayField((3,), "float64")}, weight="uniform")}, TRAIN: {MODEL: AVERAGED}}


class OwnMean(GraphStrategy):
    uplink = staticmethod(own)

    def step(self, arrays, reduced):
        return weighted_mean(reduced.each(MODEL), [1.0] * len(reduced))


class OwnMeanClient(GraphClient):
    uplink = staticmethod(own)


class Statistic(GraphStrategy):
    uplink = staticmethod(with_statistic)
    seen: ClassVar[list[Any]] = []

    def step(self, arrays, reduced):
        assert all(not reply.groups for reply in reduced), "no single client's values"
        self.seen.append(reduced["statistic"]["x"])
        return super().step(arrays, reduced)


class StatisticClient(GraphClient):
    uplink = staticmethod(with_statistic)

    def send(self):
        return {"statistic": {"x": np.full(3, 100.0 + self.graph.client)}}, {}


class Exchange(GraphStrategy):
    uplink = staticmethod(with_exchange)
    seen: ClassVar[list[Any]] = []

    def before_train(self, arrays):
        self.seen.append(self.request("probe")["probe"]["x"])
        return {}


class ExchangeClient(GraphClient):
    uplink = staticmethod(with_exchange)

    @phase
    def probe(self, groups, config):
        return {"probe": {"x": np.full(3, 100.0 + self.graph.client)}}, {}


class Optimiser(GraphStrategy):
    def step(self, arrays, reduced):
        return {n: (2 * reduced[MODEL][n] - a).astype(a.dtype) for n, a in arrays.items()}


class Personal(PersonalStrategy):
    uplink = staticmethod(own)

    def mixing(self, replies):
        return np.eye(len(replies))


KINDS = {
    "own mean": ("OwnMean", f"{HERE}:OwnMeanClient"),
    "statistic": ("Statistic", f"{HERE}:StatisticClient"),
    "exchange": ("Exchange", f"{HERE}:ExchangeClient"),
    "optimiser": ("Optimiser", "fedgraph_flwr.clients.base:GraphClient"),
    "personal": ("Personal", f"{HERE}:OwnMeanClient"),
}
PROTECTIONS = {
    "dp": [
        "privacy.dp=server_fixed",
        "privacy.noise_multiplier=0.01",
        "privacy.clipping_norm=1e-3",
        "strategy.weighting=uniform",
    ],
    "client dp": [
        "privacy.dp=client_fixed",
        "privacy.noise_multiplier=0.01",
        "privacy.clipping_norm=1e-3",
        "strategy.weighting=uniform",
    ],
    "secagg": ["privacy.secagg=true"],
    "rule": ["strategy.aggregator=median", "strategy.byzantine=0"],
    "ray": ["engine=ray", "ray.aggregate=true"],
}
REFUSED = ("own mean", "personal")


def words_of(kind):
    server, client = KINDS[kind]
    return [f"strategy={HERE}:{server}", f"strategy.client={client}"]


@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize("kind", REFUSED)
def test_what_needs_single_clients_values_is_refused_with_the_reason(kind, protection):
    with pytest.raises(FedGraphError, match="models are averaged by the method itself"):
        check_method(compose([*words_of(kind), *PROTECTIONS[protection], "num_clients=3"]))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REFUSED])
@pytest.mark.parametrize("protection", ["dp", "client dp"])
def test_privacy_bounds_and_books_all_that_leaves(run, kind, protection):
    Statistic.seen.clear()
    Exchange.seen.clear()
    overrides = [*words_of(kind), *PROTECTIONS[protection], "dtype=float64", "train.optimizer=sgd"]
    one, three = run(*overrides, "rounds=1"), run(*overrides, "rounds=3")
    assert three.summary["privacy"]["releases"] == 3 * (2 if kind == "exchange" else 1)
    groups, factor = (2 if kind == "statistic" else 1), (2 if kind == "optimiser" else 1)
    moved = np.linalg.norm(np.concatenate([(three.arrays[n] - one.arrays[n]).ravel() for n in one.arrays]))
    size = sum(array.size for array in one.arrays.values())
    assert 0 < moved < 2 * 3 * factor * 1e-3 * (1 + 0.01 * np.sqrt(groups * size))
    for seen in (*Statistic.seen, *Exchange.seen):
        assert 0 < np.linalg.norm(seen) < 3e-3 * 1.2, "each client's value, of norm 170, is clipped to 1e-3"
    for server in (Statistic, Exchange):
        assert len({tuple(x) for x in server.seen}) == len(server.seen), "noise is new each time"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REFUSED])
def test_secure_sums_mask_all_that_leaves_and_change_no_result(run, kind, monkeypatch):
    Statistic.seen.clear()
    Exchange.seen.clear()
    overrides = [*words_of(kind), "dtype=float64", "train.optimizer=sgd", "rounds=2"]
    plain = run(*overrides)
    with recorded_messages(monkeypatch) as messages:
        secure = run(*overrides, *PROTECTIONS["secagg"])
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(secure.arrays[name], array, atol=1e-8)
    for seen in (Statistic.seen, Exchange.seen):
        np.testing.assert_allclose(seen[2:], seen[:2], atol=1e-8)
    sent = {g: r for way, _, c in messages if way == "up" for g, r in c.array_records.items() if g != "secagg"}
    assert sent.keys() == {MODEL} | ({kind} & {"statistic"}) | ({"probe"} if kind == "exchange" else set())
    assert all(array.dtype == np.uint64 for record in sent.values() for array in from_record(record).values())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REFUSED])
def test_a_robust_rule_replaces_every_mean_and_sum(run, kind, monkeypatch):
    Statistic.seen.clear()
    Exchange.seen.clear()
    calls, combine = [], aggregators.combine
    monkeypatch.setattr(
        aggregators, "combine", lambda values, *rest: calls.append(len(values)) or combine(values, *rest)
    )
    run(*words_of(kind), *PROTECTIONS["rule"], "rounds=2")
    assert calls == [3] * 2 * (1 if kind == "optimiser" else 2)
    assert all((seen == 3 * 101.0).all() for seen in Statistic.seen)
    assert all((seen == 101.0).all() for seen in Exchange.seen)


class Replaces(GraphStrategy):
    """Puts another member in the place of one that applies protections."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.reduce = lambda phase, replies: replies


class ReplacesRelease(GraphStrategy):
    def setup(self):
        exchange: Any = self.exchange
        account = exchange.summation.account
        account.release = lambda terms, clients: {g: t.values[0] for g, t in terms.items()}


class ReplacesReveal(GraphStrategy):
    def setup(self):
        exchange: Any = self.exchange
        exchange.summation.open_sums = lambda phase, replies: {g: a for r in replies for g, a in r.groups.items()}


class ReplacesSummation(GraphStrategy):
    def setup(self):
        exchange: Any = self.exchange
        exchange.summation = Plain(self)


class ReplacesAccount(GraphStrategy):
    def setup(self):
        exchange: Any = self.exchange
        summation = exchange.summation
        summation.account = SimpleNamespace(release=lambda terms, clients: {g: t.values[0] for g, t in terms.items()})


class ReplacesInner(GraphStrategy):
    def setup(self):
        exchange: Any = self.exchange
        summation = exchange.summation
        summation.inner = Plain(self)


class ReplacesExchange(GraphStrategy):
    def setup(self):
        self.exchange = Replay(self, [])


REPLACING = [f"Replaces{what}" for what in ("", "Exchange", "Release", "Reveal", "Summation", "Account", "Inner")]


@pytest.mark.parametrize("name", REPLACING)
def test_a_server_cannot_replace_what_adds_noise(run, name):
    with pytest.raises(
        (FedGraphError, AttributeError), match=r"replaces .(exchange|reduce|summation|account|inner).|read-only"
    ):
        run(f"strategy={HERE}:{name}", *PROTECTIONS["dp"], "rounds=1")


def test_a_server_has_no_other_summation(run):
    with pytest.raises(TypeError, match="defines 'summation'"):
        type("Other", (GraphStrategy,), {"summation": True})
    with pytest.raises(TypeError, match="defines 'privacy'"):
        type("Other", (GraphStrategy,), {"privacy": True})


class ReadsLosses(GraphStrategy):
    seen: ClassVar[list[Any]] = []

    def step(self, arrays, reduced):
        self.seen.extend((sorted(reply.metrics), reply.message, sorted(reply.groups)) for reply in reduced)
        return super().step(arrays, reduced)


@pytest.mark.parametrize("protection", ["dp", "secagg"])
def test_numbers_that_no_uplink_declares_do_not_reach_a_step(run, protection):
    """A client may put any number in its training loss, which the record of the run averages."""
    ReadsLosses.seen.clear()
    finished = run(f"strategy={HERE}:ReadsLosses", *PROTECTIONS[protection], "rounds=1")
    assert ReadsLosses.seen == [([], None, [])] * 3
    assert finished.rounds[0]["train"]["train_loss"] > 0


class LoudClient(GraphClient):
    """Its training loss is a value of its data."""

    def train(self):
        super().train()
        return float(self.graph.x[0, 0]) + 123


class LouderClient(LoudClient):
    """It adds the number by itself."""

    def fit(self, parameters, config):
        sent, count, numbers = super().fit(parameters, config)
        return sent, count, numbers | {"train-loss": 123.0}


@pytest.mark.parametrize("scores", ["none", "noised"])
def test_no_value_leaves_as_a_training_loss_where_scores_are_private(run, monkeypatch, scores):
    words = [*PROTECTIONS["dp"], f"privacy.scores={scores}", "rounds=1"]
    with recorded_messages(monkeypatch) as seen:
        finished = run(f"strategy.client={HERE}:LoudClient", *words)
        numbers = {name for _, _, sent in seen for record in sent.metric_records.values() for name in record}
    assert "num_classes" in numbers
    assert "train-loss" not in numbers
    assert "train_loss" not in finished.rounds[0].get("train", {})
    with pytest.raises((FedGraphError, TypeError), match=r"train-loss|defines 'fit'"):
        run(f"strategy.client={HERE}:LouderClient", *words)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REFUSED])
def test_sums_where_clients_live_are_accepted(kind):
    check_method(compose([*words_of(kind), *PROTECTIONS["ray"], "num_clients=3"]))


def test_partial_sums_keep_a_share_for_each_group():
    fields = {"model": {"w": ArrayField((1,), "float64")}, "counts": {"n": ArrayField((1,), "float64")}}
    shares = {node: {"model": p, "counts": 1 / 3} for node, p in ((1, 0.5), (2, 0.25), (3, 0.25))}
    whole = PartialSum()
    for node, n in ((1, 10.0), (2, 11.0), (3, 12.0)):
        whole.add(node, {"model": {"w": np.array([n])}, "counts": {"n": np.array([n])}}, shares[node])
    totals = whole.means(shares, fields, {"counts": 3})
    np.testing.assert_allclose(totals["model"]["w"], [10.75], rtol=1e-12)
    np.testing.assert_allclose(totals["counts"]["n"], [33.0], rtol=1e-12)


def test_an_undeclared_statistic_never_leaves(run, monkeypatch):
    monkeypatch.setattr(GraphClient, "send", StatisticClient.send)
    with pytest.raises(RunFailed, match="reply to 'train' holds group 'statistic', which its uplink does not declare"):
        run("rounds=1")
    monkeypatch.setattr(GraphClient, "send", lambda self: ({}, {"mean_degree": 2.0}))
    with pytest.raises(
        RunFailed, match="holds number 'mean_degree', which its uplink does not declare: declare it in `uplink`: "
    ):
        run("rounds=1")


@pytest.mark.parametrize(
    ("returned", "odd"),
    [
        ({"probe": {"x": np.ones(3)}}, "is or holds a dict"),
        (({"probe": {"x": torch.ones(3)}}, {}), "is or holds 'probe/x' of type Tensor"),
        (({"probe": {"x": None}}, {}), "is or holds 'probe/x' of type NoneType"),
    ],
)
def test_what_a_phase_returns_in_another_form_is_named(run, monkeypatch, returned, odd):
    monkeypatch.setattr(ExchangeClient, "probe", phase(lambda self, groups, config: returned))
    with pytest.raises(RunFailed, match=f"the client's reply to 'probe' {odd}, expected .groups, numbers."):
        run(*words_of("exchange"), "rounds=1")


def logged_uplink(cfg, params):
    """Of FedAvg, with a number for the log."""
    return {TRAIN: {MODEL: AVERAGED, METRICS: LOGGED}}


LOGGED = Individual({"index_squared": NumberField(low=0)}, why="it is logged")


class Logged(GraphStrategy):
    """FedAvg whose clients log a number."""

    uplink = staticmethod(logged_uplink)


class LoggedClient(GraphClient):
    """Sends the square of its index."""

    uplink = staticmethod(logged_uplink)

    def send(self):
        return {}, {"index_squared": float(self.graph.client**2)}


def test_a_declared_number_is_in_the_record_the_report_and_the_trackers(run):
    done = run(f"strategy={HERE}:Logged", f"strategy.client={HERE}:LoggedClient", "rounds=2")
    assert [record["train"]["index_squared"] for record in done.rounds] == [pytest.approx((0 + 1 + 4) / 3)] * 2
    assert tracking.scalars(done.rounds[0])["train/index_squared"] == pytest.approx(5 / 3)
    page = write_report([done.out], done.out / "report.html").read_text()
    assert "Statistics of the method" in page
    assert '"y":{"name":"index squared","unit":"plain"}' in page


def test_both_sides_must_declare_the_same():
    overrides = [f"strategy={HERE}:Statistic", "num_clients=3"]
    with pytest.raises(
        FedGraphError, match="Statistic and GraphClient declare 'statistic' of phase 'train' differently"
    ):
        check_method(compose(overrides))


def test_individual_needs_a_reason():
    with pytest.raises(TypeError, match="Individual needs why="):
        Individual(ARRAYS)


def test_an_exception_in_a_users_method_names_its_line(run, monkeypatch):
    def send(self):
        return {}["nothing"], {}

    monkeypatch.setattr(GraphClient, "send", send)
    with pytest.raises(RunFailed, match=r"KeyError: 'nothing' \(.*test_plugins\.py, line \d+, in send\)"):
        run("rounds=1")


def test_the_hooks_of_the_documentation_are_few_and_exist():
    """At most 25 names for a method's author, and five for the common case."""
    text = (Path(__file__).parents[2] / "docs" / "extend.md").read_text()
    table = text.partition("## Hooks")[2].partition("Of Flower's hooks")[0]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines() if row.startswith("| ")]
    rows = {side: re.findall(r"`(\w+)`", hooks) for side, hooks in cells}
    rows.pop("side", None)
    assert sum(map(len, rows.values())) <= 25
    client = GraphClient(compose(["num_clients=3"]), client_graph(0))
    for side, kinds in (("both", (GraphStrategy, client)), ("server", (GraphStrategy,)), ("client", (client,))):
        for name in rows[side]:
            assert name == "memory" or all(hasattr(kind, name) for kind in kinds), name
    assert len(re.findall(r"`(\w+)`", table.partition("All of them")[0])) == 5


class Sends(GraphStrategy):
    """Sends a group with the model, which a client must read."""

    def before_train(self, arrays):
        return {"anchor": {"x": np.ones(3)}}


class Receives(GraphClient):
    """Waits for that group."""

    def receive(self, groups):
        self.anchor = groups["anchor"]["x"]


PLAIN_SERVER, PLAIN_CLIENT = "fedgraph_flwr.strategies.base:GraphStrategy", "fedgraph_flwr.clients.base:GraphClient"


@pytest.mark.parametrize(
    ("server", "client", "message"),
    [
        (f"{HERE}:Sends", PLAIN_CLIENT, "Sends sends groups by `before_train`, and GraphClient takes none"),
        (PLAIN_SERVER, f"{HERE}:Receives", "GraphStrategy sends no groups, and Receives waits for some in `receive`"),
        (f"{HERE}:Sends", f"{HERE}:Receives", ""),
        (f"{HERE}:Exchange", f"{HERE}:ExchangeClient", ""),
        (f"{HERE}:Optimiser", PLAIN_CLIENT, ""),
    ],
)
def test_sides_that_do_not_take_each_others_groups_are_refused_before_any_client_starts(server, client, message):
    """Their uplinks are equal: only what goes down differs, which one of them ignored or every client failed on."""
    cfg = compose([f"strategy.server={server}", f"strategy.client={client}"])
    if not message:
        check_method(cfg)
        return
    with pytest.raises(FedGraphError, match=message):
        check_method(cfg)


def test_sides_that_a_file_names_together_are_trusted(tmp_path, monkeypatch):
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy" / "anchored.yaml").write_text(
        f"name: anchored\nserver: {HERE}:Sends\nclient: {PLAIN_CLIENT}\n"
    )
    monkeypatch.setenv("FEDGRAPH_CONF", str(tmp_path))
    check_method(compose(["strategy=anchored"]))

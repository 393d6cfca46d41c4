"""Every method with every aggregator and kind of privacy: it runs, or one sentence refuses it before any client starts."""

import itertools
from dataclasses import replace

import pytest

from fedgraph_flwr.checks import check_clients, check_method
from fedgraph_flwr.config import AGGREGATORS, PrivacyConfig, RunConfig, compose, group_names
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.lookup import locate
from fedgraph_flwr.messages import MODEL
from fedgraph_flwr.strategies.base import GraphStrategy
from tests.methods.test_contract import go  # noqa: F401 (a fixture)

METHODS = group_names("strategy")
DP = {
    "none": [],
    "server_fixed": ["privacy.dp=server_fixed", "privacy.noise_multiplier=1", "strategy.weighting=uniform"],
    "client_fixed": ["privacy.dp=client_fixed", "privacy.noise_multiplier=1", "strategy.weighting=uniform"],
}


def words(aggregator: str, dp: str) -> list[str]:
    return [f"strategy.aggregator={aggregator}", "strategy.byzantine=0", *DP[dp]]


def refusal(cfg: RunConfig) -> str:
    """The sentence that refuses it; empty: none does."""
    try:
        check_method(cfg)
        check_clients(cfg)
    except FedGraphError as error:
        return str(error)
    return ""


def expected(cfg: RunConfig) -> bool:
    """Whether it is to run, by what the method declares."""
    server, rules = locate(cfg.strategy.server), cfg.strategy
    several = bool(rules.shared) and not rules.pooled
    robust, private = rules.aggregator != "mean", cfg.privacy.dp != "none"
    if robust and private:
        return False
    return not (robust and not (several and server.averages)) and not (
        private and not (several and server.plain_average)
    )


@pytest.mark.parametrize("method", METHODS)
def test_every_combination_is_accepted_or_refused_by_what_the_method_declares(method):
    base = compose([f"strategy={method}", "num_clients=3", "strategy.weighting=uniform"])
    for aggregator, dp in itertools.product(AGGREGATORS, DP):
        rules = replace(base.strategy, aggregator=aggregator, byzantine=0)
        cfg = replace(base, strategy=rules, privacy=PrivacyConfig(dp, noise_multiplier=float(dp != "none")))
        told = refusal(cfg)
        assert (told == "") == expected(cfg), told
        assert not told or (f"strategy.aggregator={aggregator}" in told or f"privacy.dp={dp}" in told)
        assert "\n" not in told


@pytest.mark.parametrize("method", METHODS)
def test_what_is_accepted_runs_and_what_a_method_declares_is_so(method, go, monkeypatch):  # noqa: F811
    """One round with a rule, and one with privacy: models go through `average`, all of them, once; and nothing else travels."""
    calls: list[tuple[int, set[str]]] = []
    average = GraphStrategy.average

    def counted(self, values, *args, **kwargs):
        if values[0].keys() == self.arrays.keys():
            calls.append((len(values), set(values[0])))
        return average(self, values, *args, **kwargs)

    monkeypatch.setattr(GraphStrategy, "average", counted)
    for aggregator, dp in (("median", "none"), ("krum", "none"), ("mean", "client_fixed")):
        cfg = compose([f"strategy={method}", "num_clients=3", *words(aggregator, dp)])
        server = locate(cfg.strategy.server)
        if refusal(cfg):
            with pytest.raises(FedGraphError):
                go(method, "rounds=1", *words(aggregator, dp))
            continue
        calls.clear()
        done = go(method, "rounds=1", *words(aggregator, dp))
        assert done.summary["failures"] == {}
        assert calls[:1] == [(3, set(done.arrays))], "its server declares averages, and averages no models"
        if dp != "none":
            assert done.summary["privacy"]["releases"] == len(calls) == 1
            assert server.schema is GraphStrategy.schema, "answers hold more than the model"
            assert server.sums == (MODEL,)

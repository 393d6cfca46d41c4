"""Every method with every aggregator, kind of privacy and secure sums: it runs, or one sentence refuses it before any client."""

import itertools
from dataclasses import replace

import pytest

from fedgraph_flwr.config import AGGREGATORS, PrivacyConfig, RunConfig, compose, group_names
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.runs.checks import check_clients, check_method
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.wire.messages import MODEL
from tests.methods.test_contract import go  # noqa: F401 (a fixture)

METHODS = group_names("strategy")
DP = ("none", "server_fixed", "client_fixed")
UNIFORM = "strategy.weighting=uniform"  # without which privacy is refused, whatever the method
PROTECTED = {  # of each kind, what is run; `tests/test_secagg.py` runs secure sums of every method
    "median": (["strategy.aggregator=median", "strategy.byzantine=0"], ("median", "none", False)),
    "krum": (["strategy.aggregator=krum", "strategy.byzantine=0"], ("krum", "none", False)),
    "dp": (["privacy.dp=client_fixed", "privacy.noise_multiplier=1", UNIFORM], ("mean", "client_fixed", False)),
}


def refusal(base: RunConfig, aggregator: str, dp: str, secagg: bool) -> str:
    """The sentence that refuses it; empty: none does."""
    rules = replace(base.strategy, aggregator=aggregator, byzantine=0)
    if dp != "none":
        rules = replace(rules, weighting="uniform")
    try:
        privacy = PrivacyConfig(dp, noise_multiplier=float(dp != "none"), secagg=secagg)
        cfg = replace(base, strategy=rules, privacy=privacy)
        check_method(cfg)
        check_clients(cfg)
    except FedGraphError as error:
        return str(error)
    return ""


def accepted(base: RunConfig, aggregator: str, dp: str, secagg: bool) -> bool:
    """Whether it is to run, by what the method declares: one protection at a time, of what it averages, bounds or adds up."""
    server, several = locate(base.strategy.server), bool(base.strategy.shared) and not base.strategy.pooled
    declared = [
        (aggregator != "mean", server.averages),
        (dp != "none", server.plain_average),
        (secagg, MODEL in server.sums and not server.beyond_sums),
    ]
    served = [serves for chosen, serves in declared if chosen]
    return not served or (served == [True] and several)


@pytest.mark.parametrize("method", METHODS)
def test_every_combination_is_accepted_or_refused_by_what_the_method_declares(method):
    base = compose([f"strategy={method}", "num_clients=3"])
    for aggregator, dp, secagg in itertools.product(AGGREGATORS, DP, (False, True)):
        told = refusal(base, aggregator, dp, secagg)
        assert (told == "") == accepted(base, aggregator, dp, secagg), told
        named = (f"strategy.aggregator={aggregator}", f"privacy.dp={dp}", f"privacy.secagg={str(secagg).lower()}")
        assert not told or any(name in told for name in named)
        assert "\n" not in told


@pytest.mark.parametrize("method", METHODS)
def test_what_is_accepted_runs_and_what_a_method_declares_is_so(method, go, monkeypatch):  # noqa: F811
    """One round with a rule, and one with privacy: models go through `average`, all of them, once; and nothing else travels."""
    calls: list[tuple[int, set[str]]] = []
    average = GraphStrategy.average

    def counted(self, values, *args, **kwargs):
        names = {
            name.partition("/")[0] for name in values[0]
        }  # an array may be averaged slice by slice: name/0, name/1
        if names == self.arrays.keys():
            calls.append((len(values), names))
        return average(self, values, *args, **kwargs)

    monkeypatch.setattr(GraphStrategy, "average", counted)
    base = compose([f"strategy={method}", "num_clients=3"])
    server = locate(base.strategy.server)
    for kind, (words, combination) in PROTECTED.items():
        if not accepted(base, *combination):
            with pytest.raises(FedGraphError):
                go(method, "rounds=1", *words)
            continue
        calls.clear()
        done = go(method, "rounds=1", *words)
        assert done.summary["failures"] == {}
        assert calls[:1] == [(3, set(done.arrays))], "its server declares averages, and averages no models"
        if kind == "dp":
            assert done.summary["privacy"]["releases"] == len(calls) == 1
            assert server.schema is GraphStrategy.schema, "answers hold more than the model"
            assert server.sums == (MODEL,)

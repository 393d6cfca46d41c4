"""Every method with every aggregator, kind of privacy and secure sums: it runs, or is refused before any client starts."""

import itertools
from dataclasses import replace

import pytest

from fedgraph_flwr.config import AGGREGATORS, PrivacyConfig, RunConfig, compose
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_clients, check_method
from fedgraph_flwr.methods.declared import uplink_of as declared
from fedgraph_flwr.methods.uplink import releases, signature
from fedgraph_flwr.secure.eligibility import not_added, not_private, not_robust, not_secure
from tests.methods.small_runs import METHODS, by_default, sampled

DP = ("none", "server_fixed", "client_fixed", "distributed")
UNIFORM = "strategy.weighting=uniform"  # without which privacy is refused, whatever the method
PROTECTED = {  # of each kind, what is run; `tests/secure/test_secagg.py` runs secure sums of every method
    "median": (["strategy.aggregator=median", "strategy.byzantine=0"], ("median", "none", False)),
    "krum": (["strategy.aggregator=krum", "strategy.byzantine=0"], ("krum", "none", False)),
    "dp": (["privacy.dp=client_fixed", "privacy.noise_multiplier=1", UNIFORM], ("mean", "client_fixed", False)),
    "distributed": (
        [
            "privacy.dp=distributed",
            "privacy.secagg=true",
            "privacy.secagg_bits=20",
            "privacy.noise_multiplier=1",
            UNIFORM,
        ],
        ("mean", "distributed", True),
    ),
}
TABLE = {  # secagg, ray.aggregate, DP, robust rules: what the uplinks are expected to give
    "yyyy": "fedavg fedprox fedsam fedbn fedper fedstar fedala fedavg_ft apfl ditto moon fgssl fedavgm fedadagrad fedadam fedyogi"
    " feddyn fedhero adafgl scaffold feddc fednova fedfa fedgrad",
    "-y-y": "fedomd fedgcn feddep fedsage fedhgn fedsage_true fggp fedgl fedstruct fedstruct_a fedstruct_private",
    "yyy-": "fedproto",
    "---y": "fedspa fedlit",
    "----": "fedtgp fedtad gcfl fedpub fedgta local central boosting",
}


def refusal(base: RunConfig, aggregator: str, dp: str, secagg: bool) -> str:
    """The error message that refuses it; empty: none does."""
    rules = replace(base.strategy, aggregator=aggregator, byzantine=0)
    if dp != "none":
        rules = replace(rules, weighting="uniform")
    try:
        bits = 20 if dp == "distributed" else 40
        privacy = PrivacyConfig(dp, noise_multiplier=float(dp != "none"), secagg=secagg, secagg_bits=bits)
        cfg = replace(base, strategy=rules, privacy=privacy)
        check_method(cfg)
        check_clients(cfg)
    except FedGraphError as error:
        return str(error)
    return ""


def eligible(base: RunConfig) -> dict[str, bool]:
    """The protections that cover the method, by its uplink."""
    uplink = declared(locate(base.strategy.server), base)
    kinds = {"secagg": not_secure, "added": not_added, "dp": not_private, "robust": not_robust}
    return {kind: not reason(base, uplink) for kind, reason in kinds.items()}


def accepted(base: RunConfig, aggregator: str, dp: str, secagg: bool) -> bool:
    """Whether it is to run: one protection at a time, and one that covers all that leaves a client; distributed DP needs two."""
    served = eligible(base)
    chosen = [kind for kind, on in (("robust", aggregator != "mean"), ("dp", dp != "none"), ("secagg", secagg)) if on]
    if dp == "distributed":
        return chosen == ["dp", "secagg"] and served["dp"] and served["secagg"]
    return not chosen or (len(chosen) == 1 and served[chosen[0]])


@pytest.mark.parametrize("method", METHODS)
def test_the_uplink_gives_the_protections_of_the_table(method):
    row = "".join("y" if serves else "-" for serves in eligible(by_default(method)).values())
    expected = [row for row, names in TABLE.items() if method in names.split()]
    assert [row] == expected, f"the uplink of {method} gives the row '{row}' of TABLE: is that right? Then add it there"


def test_moments_without_a_range_are_covered_by_all():
    assert all(eligible(compose(["strategy=fedomd", "strategy.cmd_range=unit", "num_clients=3"])).values())


@pytest.mark.parametrize("method", METHODS)
def test_both_sides_declare_the_same(method):
    cfg = by_default(method)
    server, client = (declared(locate(side), cfg) for side in (cfg.strategy.server, cfg.strategy.client))
    assert signature(server) == signature(client)


@pytest.mark.parametrize("method", METHODS)
def test_every_combination_is_accepted_or_refused_by_what_the_method_declares(method):
    base = by_default(method)
    for aggregator, dp, secagg in itertools.product(AGGREGATORS, DP, (False, True)):
        message = refusal(base, aggregator, dp, secagg)
        assert (message == "") == accepted(base, aggregator, dp, secagg), message
        named = (f"strategy.aggregator={aggregator}", f"privacy.dp={dp}", f"privacy.secagg={str(secagg).lower()}")
        assert not message or any(name in message for name in named)
        assert "\n" not in message


@pytest.mark.parametrize("method", sampled(METHODS))
def test_what_is_accepted_runs_and_books_what_it_releases(method, go):
    """One round with a rule, and one with privacy."""
    base = compose([f"strategy={method}", "num_clients=3", "rounds=1"])  # of which some methods are FedAvg
    for kind, (overrides, combination) in PROTECTED.items():
        if not accepted(base, *combination):
            with pytest.raises(FedGraphError):
                go(method, "rounds=1", *overrides)
            continue
        done = go(method, "rounds=1", *overrides)
        assert done.summary["failures"] == {}
        if kind in ("dp", "distributed"):
            uplink = declared(locate(done.cfg.strategy.server), done.cfg)
            assert done.summary["privacy"]["releases"] == releases(uplink) == 1

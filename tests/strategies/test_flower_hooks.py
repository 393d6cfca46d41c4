"""Flower's hooks: a run calls an override, or the class is refused. None is ignored silently."""

import pytest
from flwr.client import NumPyClient
from flwr.serverapp.strategy import FedAvg, FedMedian, Strategy

from fedgraph_flwr.clients.base import NO_HOOKS, GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import client_class
from fedgraph_flwr.strategies.base import FINAL, GraphStrategy
from tests.conftest import client_graph

HERE = "tests.strategies.test_flower_hooks"
REFUSED = {
    "aggregate_train": "step",
    "aggregate_evaluate": "step",
    "start": "setup",
    "summary": "startup_note",
    "get_properties": "describe",
}


def public(kind):
    return sorted(name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name)))


def counting(kind, hook, calls):
    """A subclass whose hook records its calls."""

    def override(self, *args, **kwargs):
        calls.append(hook)
        return getattr(kind, hook)(self, *args, **kwargs)

    return type("Counting", (kind,), {hook: override, "__module__": HERE, "serves": kind.__dict__.get("serves")})


def called(kind, hook, side, run, monkeypatch):
    calls = []
    monkeypatch.setitem(globals(), "Counting", counting(kind, hook, calls))
    run(f"strategy.{side}={HERE}:Counting", "rounds=1")
    return bool(calls)


@pytest.mark.parametrize("hook", public(Strategy))
def test_every_hook_of_a_flower_strategy_is_called_or_refused(hook, run, monkeypatch):
    if hook in REFUSED:
        with pytest.raises(
            TypeError, match=rf"defines '{hook}', Flower's hook, which a run never calls: define {REFUSED[hook]}"
        ):
            counting(GraphStrategy, hook, [])
    else:
        assert called(GraphStrategy, hook, "server", run, monkeypatch)


def test_no_hook_of_a_flower_client_is_ignored(run, monkeypatch):
    for hook in public(NumPyClient):
        if hook in REFUSED:
            with pytest.raises(
                TypeError, match=rf"defines '{hook}', Flower's hook, which a run never calls: define {REFUSED[hook]}"
            ):
                counting(GraphClient, hook, [])
        elif hook != "to_client":  # wraps the client for Flower, nobody overrides it
            assert called(GraphClient, hook, "client", run, monkeypatch), hook


@pytest.mark.parametrize("bases", [(FedMedian, GraphStrategy), (GraphStrategy, FedMedian)])
def test_an_inherited_override_is_refused_too(bases):
    """Also one that comes with a Flower strategy as second base."""
    with pytest.raises(TypeError, match="defines 'aggregate_train', Flower's hook"):
        type("Mixed", bases, {})


def test_the_base_itself_keeps_what_flower_defines():
    assert all(getattr(GraphStrategy, hook) is getattr(FedAvg, hook) for hook in REFUSED if hasattr(FedAvg, hook))


@pytest.mark.parametrize("name", FINAL)
def test_what_applies_the_protections_is_not_a_methods_to_change(name):
    """An own `reduce` released a model without noise, with an ε of 0."""
    with pytest.raises(
        TypeError, match=rf"defines '{name}', which applies the protections of a run: define .* instead"
    ):
        type("Mine", (GraphStrategy,), {name: lambda self, *args: None})


@pytest.mark.parametrize("name", NO_HOOKS)
def test_a_member_of_a_client_that_a_run_never_calls_is_refused(name):
    with pytest.raises(TypeError, match=rf"defines '{name}', which a run never calls: define .* instead"):
        type("Mine", (GraphClient,), {name: lambda self, *args: None})


def test_verify_is_a_function_of_one_reply():
    """A method could hand single replies to `step`, which the uplink hides from it."""
    with pytest.raises(TypeError, match=r"define @staticmethod verify\(phase, reply, facts\)"):
        type("Mine", (GraphStrategy,), {"verify": lambda self, phase, reply, facts: None})
    type("Mine", (GraphStrategy,), {"verify": staticmethod(lambda phase, reply, facts: None)})


@pytest.mark.parametrize("method", ["fedstruct", "fedstruct_a", "fedstruct_private"])
def test_a_client_that_needs_exchanges_before_says_so(method):
    cfg = compose([f"strategy={method}", "num_clients=3"])
    client = client_class(cfg)(cfg, client_graph(0, 40))
    with pytest.raises(FedGraphError, match="no structure part yet: exchanges of a run compute it before"):
        client.evaluate(client.get_parameters({}), {})

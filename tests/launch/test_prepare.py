"""A run is prepared once per process, and refused before anything starts."""

import pytest

from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch import prepare as preparing
from fedgraph_flwr.launch.prepare import prepare
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.launch.simulations import run_inline

SMALL = ("dataset.params.nodes=120", "num_clients=3", "rounds=1", "model.hidden=4")


@pytest.mark.parametrize("start", [run, run_inline])
def test_a_run_in_one_process_is_checked_once(start, tmp_path, monkeypatch):
    calls = []
    for name in ("check_method", "check_clients", "check_memory", "check_resume"):
        check = getattr(preparing, name)
        monkeypatch.setattr(preparing, name, lambda *args, c=check, n=name: (calls.append(n), c(*args))[1])
    start(compose([*SMALL, f"out={tmp_path / 'run'}"]))
    assert calls == ["check_method", "check_clients", "check_memory", "check_resume"]


def test_what_is_prepared_stays_as_it_is(tmp_path):
    prepared = prepare(compose([*SMALL, f"out={tmp_path / 'run'}"]))
    assert prepare(prepared) is prepared
    assert prepared.data == []
    assert prepare(compose(["engine=bank", f"out={tmp_path / 'run'}"])).data is None


@pytest.mark.parametrize("engine", ["inline", "ray", "flower-simulation", "bank"])
@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("strategy.mu=1", "strategy fedavg: key 'mu' is unknown"),
        ("privacy.secagg=true strategy.fraction=0.2", "privacy.secagg=true requires at least"),
        ("adversary.kind=sign_flip adversary.clients=[7]", "adversary.(clients|kind)"),
    ],
)
def test_every_engine_refuses_the_same_before_it_starts(engine, override, problem, tmp_path):
    words = SMALL if engine != "bank" else ["num_clients=3"]
    cfg = compose([*words, f"engine={engine}", *override.split(), f"out={tmp_path / 'run'}"])
    with pytest.raises(FedGraphError, match=problem):
        run(cfg)
    assert not (tmp_path / "run").exists()


def test_an_attack_on_a_fleet_is_refused_by_its_launcher(tmp_path):
    with pytest.raises(FedGraphError, match="attack=link_inference works only in simulations"):
        run(compose(["engine=bank", "attack=link_inference", f"out={tmp_path / 'run'}"]))

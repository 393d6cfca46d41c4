"""Keys of methods, in ``Params``, and of networks, in ``__init__``: declared once, with type, range and meaning."""

import dataclasses
import functools
import math
import subprocess
import sys

import pytest

from fedgraph_flwr.config import StrategyConfig, compose, described, group_names, number, to_json, to_yaml
from fedgraph_flwr.config.composition import from_run_config, group_file, group_path
from fedgraph_flwr.config.key_docs import keyword_comments, own_keys_of
from fedgraph_flwr.config.lookup import own_defaults, params_of
from fedgraph_flwr.config.schema import Range, check, choice, default_of
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.models import own_defaults as network_defaults
from tests.methods.small_runs import METHODS, sampled

NETWORKS = group_names("model")

everything = functools.cache(described)
"""All names of a group, described once."""


def sides(name):
    body = group_file("strategy", name)
    return params_of(body["server"], body["client"])


def written_twice(body, defaults):
    """Keys of a YAML file that only repeat a default."""
    return [key for key, value in body.items() if key in defaults and defaults[key] == value]


@pytest.mark.parametrize("name", METHODS)
def test_no_default_is_written_twice(name):
    common = {f.name: default_of(f) for f in dataclasses.fields(StrategyConfig)}
    side_defaults = [{f.name: default_of(f) for f in dataclasses.fields(params)} for params in sides(name)]
    body = {
        key: value for key, value in group_file("strategy", name).items() if key not in ("name", "server", "client")
    }
    for defaults in (common, *side_defaults):
        assert written_twice(body, defaults) == [], f"conf/strategy/{name}.yaml repeats defaults"


@pytest.mark.parametrize("name", NETWORKS)
def test_no_default_of_a_network_is_written_twice(name):
    """The common ones are those of `ModelConfig`, the others those of the signature."""
    body = group_file("model", name)
    repeated = written_twice(
        {key: value for key, value in body.items() if key != "name"}, network_defaults(body["name"])
    )
    assert repeated == [], f"conf/model/{name}.yaml repeats defaults"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_all_its_keys_with_values_and_meanings(name):
    """The file's values lie over the defaults, in the configuration and in every list of keys."""
    body = group_file("model", name)
    expected = {**network_defaults(body["name"]), **body}
    keys = own_keys_of("model", group_path("model", name))
    assert [key.name for key in keys if not key.meaning] == []
    assert {key.name: key.default for key in keys} == {f"model.{k}": v for k, v in expected.items() if k != "name"}
    cfg = compose([f"model={name}"]).model
    assert {
        "name": cfg.name,
        "hidden": cfg.hidden,
        "layers": cfg.layers,
        "dropout": cfg.dropout,
        **cfg.params,
    } == expected
    assert everything("model")[name]["keys"] == {key: value for key, value in expected.items() if key != "name"}


def test_another_network_starts_from_its_defaults_on_a_resolved_configuration():
    base = to_json(compose(["model=fedspa", "model.hidden=7", "model.profile=acm"]))
    assert compose([], base).model.hidden == 7
    assert compose(["model=gcn"], base).model == compose(["model=gcn"]).model


def test_comments_of_keywords_are_read_above_behind_and_from_the_base():
    class Base:
        def __init__(self, size: int, *, width: int = 1, norm: str = "none"):  # of no keyword but the last
            """The width and the norm."""

    class Own(Base):
        def __init__(
            self,
            size: int,
            *,
            # how wide
            # it is
            width: int = 2,
            depth: int = 3,  # how deep
        ):
            super().__init__(size, width=width)

    assert keyword_comments(Own) == {"width": "how wide it is", "depth": "how deep"}


def test_a_default_that_is_written_twice_is_found():
    assert written_twice({"mu": 0.01, "lam": 2.0}, {"mu": 0.01, "lam": 1.0}) == ["mu"]


@pytest.mark.parametrize("name", METHODS)
def test_both_sides_have_one_class_of_keys_or_share_none(name):
    if len(both := sides(name)) == 2:
        server, client = ({f.name for f in dataclasses.fields(side)} for side in both)
        assert not server & client


@pytest.mark.parametrize("name", sampled(METHODS))
def test_every_own_key_has_a_meaning_and_refuses_what_it_does_not_accept(name):
    keys = own_keys_of("strategy", group_path("strategy", name))
    assert [key.name for key in keys if not key.meaning] == []
    for params in sides(name):
        for f in dataclasses.fields(params):
            held = f.metadata.get("range", Range())
            if "choices" in f.metadata:
                wrong = "nonsense" if f.type is str else 3
            elif f.type in (int, float) and math.isfinite(held.low):
                wrong = held.low if held.without_low else held.low - 1
            else:
                continue
            with pytest.raises(FedGraphError, match=rf"strategy\.{f.name} .*{wrong}"):
                check_method(compose([f"strategy={name}", f"strategy.{f.name}={wrong}"]))
            if math.isfinite(held.high) and "choices" not in f.metadata:
                above = held.high if held.without_high else held.high + 1
                with pytest.raises(FedGraphError, match=rf"strategy\.{f.name} must be in"):
                    check_method(compose([f"strategy={name}", f"strategy.{f.name}={above}"]))


@pytest.mark.parametrize("name", sampled(METHODS))
def test_the_resolved_configuration_holds_every_own_key(name):
    body = group_file("strategy", name)
    expected = own_defaults(body["server"], body["client"])
    cfg = compose([f"strategy={name}"])
    assert cfg.strategy.params == expected
    assert compose([], to_json(cfg)) == cfg
    assert expected.items() <= everything("strategy")[name]["keys"].items()


def test_a_key_that_is_given_goes_over_the_default_and_another_method_starts_from_its_own(tmp_path):
    cfg = compose(["strategy=fedtgp", "strategy.lam=3"])
    assert (cfg.strategy.params["lam"], cfg.strategy.params["server_epochs"]) == (3, 100)
    other = compose(["strategy=fedprox", "strategy.mu=4"])
    (tmp_path / "config.yaml").write_text(to_yaml(other))
    for base in (to_json(other), tmp_path / "config.yaml"):
        assert compose([], base).strategy.prox.mu == 4
        assert compose(["strategy=fedtgp"], base).strategy.params == compose(["strategy=fedtgp"]).strategy.params
    assert [params.__name__ for params in sides("fedtgp")] == ["FedTGPParams"]
    assert sides("fedtgp")[0]().lam == 0.1


@pytest.mark.slow
def test_what_another_machine_sends_imports_no_class():
    """A node reads the configuration before its policy says which code may run."""
    program = (
        "import sys; from fedgraph_flwr.config import from_run_config;"
        "cfg = from_run_config({'overrides': 'strategy=fedprox strategy.client=nowhere:Client'}, foreign=True);"
        "assert cfg.strategy.params == {}, cfg.strategy.params;"
        "assert not [name for name in sys.modules if name.startswith(('fedgraph_flwr.clients.', 'fedgraph_flwr.strategies.'))]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(FedGraphError, match="nowhere"):
        from_run_config({"overrides": "strategy=fedprox strategy.client=nowhere:Client"})


def test_a_field_of_a_list_and_one_of_whole_numbers():
    @dataclasses.dataclass
    class Keys:
        widths: list[int] = number((256,), low=1)
        size: int = choice(0, (0, 4, 5))

    assert Keys().widths == [256]
    assert Keys().widths is not Keys().widths
    check(Keys([1, 2], 4), "strategy")
    with pytest.raises(FedGraphError, match=r"strategy\.widths must be >= 1, got 0"):
        check(Keys([4, 0]), "strategy")
    with pytest.raises(FedGraphError, match=r"strategy\.size '3' is unknown; expected one of: 0, 4, 5"):
        check(Keys([4], 3), "strategy")

"""Parts of the user's own module: what their author may get wrong, their keys, and sweeps over them."""

import pytest

from fedgraph_flwr.clients import chosen_parts
from fedgraph_flwr.config import compose
from fedgraph_flwr.config.key_docs import own_keys_of
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.sweeps.overrides import parse_sweep
from fedgraph_flwr.sweeps.spec import load

CODE = """
from dataclasses import dataclass

from fedgraph_flwr.plugin import ClientPart, GraphClient, Part, ServerPart, number


@dataclass
class Keys:
    mu: float = number(0.1, high=10)  # weight of the term


class Small(ClientPart):
    adds = True

    def term(self, client):
        return self.keys.mu * client.logits(client.batch.inputs).square().mean()


class Client(GraphClient):
    @dataclass
    class Params:
        eta: float = 1.0


class Silent(ClientPart):
    def term(self, client):
        return None


class Empty(ServerPart):
    def step(self, server, arrays, mean, reduced):
        return {}


class Double(ServerPart):
    def step(self, server, arrays, mean, reduced):
        return {name: array.astype("float64") for name, array in mean.items()}


class Fails(ServerPart):
    def step(self, server, arrays, mean, reduced):
        raise ValueError("no step")


SMALL = Part("objective", Keys, "own_parts:Small")
SILENT = Part("objective", Keys, "own_parts:Silent")
SIDE = Part("server_optimizer", Keys, server="own_parts:Small")
NO_CLIENT_PART = Part("objective", Keys, "own_parts:Empty")
NO_MEMBER = Part("objective", Keys, "own_parts:Small", hooks=("logit",))
EMPTY = Part("server_optimizer", Keys, server="own_parts:Empty")
DOUBLE = Part("server_optimizer", Keys, server="own_parts:Double")
FAILS = Part("server_optimizer", Keys, server="own_parts:Fails")
"""

WRONG = """
from dataclasses import dataclass

from fedgraph_flwr.plugin import ClientPart, Part


@dataclass
class Keys:
    mu: float = 0.1


@dataclass
class Needed:
    mu: float


PART = Part({})
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    for name in ("own_parts", "more_parts"):
        (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objective=[own_parts:SILENT]", "Silent defines `term`, which is added to the loss only with adds = True"),
        ("server_optimizer=own_parts:SIDE", "server='own_parts:Small', expected a subclass of ServerPart"),
        ("objective=[own_parts:NO_CLIENT_PART]", "client='own_parts:Empty', expected a subclass of ClientPart"),
        ("objective=[own_parts:NO_MEMBER]", "own of the Part names 'logit', which GraphClient lacks"),
        ("objective=[own_parts:SMALL,more_parts:SMALL]", "would both have the keys strategy.SMALL"),
        ("variates=own_parts:SMALL", r"set strategy.objective=\[own_parts:SMALL\]"),
        ("objective=[SMALL]", "expected one of: module:NAME, moon, prox, sam"),
        (
            "SMALL.mu=0.2",
            "it has the keys of a part that none of strategy.objective, .* set one of them to module:SMALL",
        ),
    ],
)
def test_a_wrong_part_is_refused_in_one_sentence_before_a_client_starts(override, message):
    with pytest.raises(FedGraphError, match=message):
        check_method(compose([f"strategy.{override}"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'objectives', Keys, 'a:B'", "choice='objectives', expected one of: objective, variates"),
        ("'objective', {'mu': 1}, 'a:B'", "keys={'mu': 1}, expected a dataclass"),
        ("'objective', Keys(), 'a:B'", r"keys=Keys\(mu=0.1\), expected a dataclass"),
        ("'objective', Needed, 'a:B'", "Needed'>, expected a dataclass with a default for each field"),
        ("'objective', Keys", "client='' and server='', expected one or both as 'module:Class'"),
        ("'objective', Keys, ClientPart", "and server='', expected one or both as 'module:Class'"),
    ],
)
def test_a_part_is_checked_where_it_is_made(module, arguments, message):
    (module / "wrong_parts.py").write_text(WRONG.format(arguments))
    with pytest.raises(FedGraphError, match=message) as raised:
        check_method(compose(["strategy.objective=[wrong_parts:PART]"]))
    assert "wrong_parts.py, line 17" in str(raised.value)
    assert "PYTHONPATH" not in str(raised.value)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("EMPTY", "own_parts:Empty returned nothing for '.*', expected float32"),
        ("DOUBLE", r"own_parts:Double returned float64 \(.*\) for '.*', expected float32"),
        ("FAILS", r"own_parts:Fails failed: ValueError: no step \(.*own_parts.py, line \d+, in step\)"),
    ],
)
def test_a_failing_server_part_is_named_instead_of_the_clients(run, part, message):
    with pytest.raises(RunFailed, match=message):
        run(f"strategy.server_optimizer=own_parts:{part}", "rounds=1")


def test_a_node_without_the_package_is_named_with_what_to_do(run, monkeypatch):
    call = InlineGrid._call

    def without(grid, message):
        with monkeypatch.context() as patch:
            patch.setattr(chosen_parts, "halves", lambda *_: locate("nowhere:PART"))
            return call(grid, message)

    monkeypatch.setattr(InlineGrid, "_call", without)
    with pytest.raises(
        FedGraphError, match=r"'nowhere:PART' cannot be .*; install its package on that node$"
    ) as raised:
        run("strategy.objective=[own_parts:SMALL]", "rounds=1")
    assert raised.value.code == "own-code"


@pytest.mark.parametrize(
    ("words", "columns"),
    [
        (
            ["strategy.objective=[prox]", "strategy.prox.mu=0.01,0.1"],
            ["fedavg, prox.mu=0.01", "fedavg, prox.mu=0.1"],
        ),
        (
            ["strategy.objective=[own_parts:SMALL]", "strategy.SMALL.mu=0.01,0.1"],
            ["fedavg, SMALL.mu=0.01", "fedavg, SMALL.mu=0.1"],
        ),
        (
            ["strategy.client=own_parts:Client", "strategy.eta=1,2"],
            ["Client, eta=1", "Client, eta=2"],
        ),
        (["strategy.name=fedprox", "strategy.mu=1,2"], ["fedprox, mu=1", "fedprox, mu=2"]),
        (
            ["strategy.server_optimizer=adam,yogi", "strategy.adam.tau=0.01,0.1"],
            [
                "fedavg, server_optimizer=adam, adam.tau=0.01",
                "fedavg, server_optimizer=adam, adam.tau=0.1",
                "fedavg, server_optimizer=yogi",
            ],
        ),
    ],
)
def test_a_sweep_over_a_key_of_a_chosen_part(words, columns):
    assert [*parse_sweep(words, baselines=False).methods] == columns


SWEEP = """
baselines: false
methods: {{lab: {{strategy: {{name: fedavg, objective: ['own_parts:SMALL']}}}}, avg: strategy=fedavg}}
grid: {{a: [strategy.{key}=0.01], b: [strategy.{key}=0.1]}}
"""


def test_a_grid_tunes_the_key_of_a_part_and_refuses_one_that_no_column_defines(tmp_path):
    file = tmp_path / "table.yaml"
    file.write_text(SWEEP.format(key="SMALL.mu"))
    choices = load(file).choices("table", "lab", {})
    assert [words[-1] for words in choices.values()] == ["strategy.SMALL.mu=0.01", "strategy.SMALL.mu=0.1"]
    assert len(load(file).choices("table", "avg", {})) == 1
    file.write_text(SWEEP.format(key="OTHER.mu"))
    with pytest.raises(FedGraphError, match=r"line 4: no column \(lab, avg\) defines the tuned key strategy.OTHER.mu"):
        load(file)


def test_a_key_that_a_yaml_sets_keeps_its_range_and_comment(tmp_path):
    file = tmp_path / "lab.yaml"
    file.write_text("name: lab\nobjective: ['own_parts:SMALL']\nSMALL: {mu: 0.05}\n")
    (key,) = [key for key in own_keys_of("strategy", file) if key.name == "strategy.SMALL.mu"]
    assert (key.default, key.kind, key.meaning) == (0.05, "a number", "weight of the term")
    assert "10" in key.accepted

"""Code of the user's own: by name, by a config folder, by an installed package; and who may name it to whom."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from fedgraph_flwr import partition
from fedgraph_flwr.cli import main
from fedgraph_flwr.config import DatasetConfig, compose, group_names, to_json
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.runner import run as run_cfg
from tests.support import Finished, assert_same_arrays

ROOT = Path(__file__).parents[2]

CODE = '''
import numpy as np, torch
from dataclasses import dataclass
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.models import Stack
from fedgraph_flwr.models.gcn import GCN
from fedgraph_flwr.strategies.fedavg import FedAvg


class HalfStep(FedAvg):
    """θ ← θ + s (mean − θ). Leaves a client: what FedAvg's does."""

    @dataclass
    class Params:
        step: float = 0.5

    def step(self, arrays, reduced):
        mean = reduced["model"]
        return {n: (a + self.params.step * (mean[n] - a)).astype(a.dtype) for n, a in arrays.items()}


class Patient(GraphClient):
    """Leaves a client: what FedAvg's does."""

    @property
    def local_steps(self):
        return 1


class Net(GCN):
    pass


def ring(nodes=60, seed=0):
    y = torch.arange(nodes) % 2
    x = torch.randn(nodes, 4, generator=torch.Generator().manual_seed(seed))
    x[:, 0] += 3 * y
    ends = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    none = torch.zeros(nodes, dtype=torch.bool)
    return Graph(x, torch.cat([ends, ends.flip(0)], 1), y, none, none.clone(), none.clone(), 2)


def thirds(graph, cfg, num_clients, seed):
    return np.array_split(np.arange(graph.num_nodes), num_clients)


def kappa(logits, y):
    guess = logits.argmax(1)
    agree, chance = (guess == y).mean(), sum((guess == c).mean() * (y == c).mean() for c in range(logits.shape[1]))
    return (agree - chance) / (1 - chance) if chance < 1 else float("nan")


def norms(cfg, arrays, power=2):
    return {"total": float(sum((np.abs(a) ** power).sum() for a in arrays.values()))}


def silence(received, trained, strength, rng):
    return np.zeros_like(trained)
'''

YAML = """# Half of FedAvg's step.
name: halfstep
server: {module}:HalfStep
client: {module}:Patient
step: 0.5
declares:
  limits: [{{overrides: [strategy.step=1], equals: [strategy=fedavg, train.local_steps=1], within: 1e-5}}]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The module ``own_methods`` in a folder on the path, and an empty data root."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own_methods.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.delitem(sys.modules, "own_methods", raising=False)
    return tmp_path


@pytest.fixture
def conf(own, monkeypatch):
    """A config folder of one's own with one name of each group."""
    files = {
        "strategy/halfstep": YAML.format(module="own_methods"),
        "dataset/ring": "name: ring\nsource: own_methods:ring\nnodes: 60\npartition: thirds\nmodel: net\n",
        "partition/thirds": "name: own_methods:thirds\nmerge: none\n",
        "model/net": "name: own_methods:Net\nhidden: 8\n",
        "protocol/mine": "defaults: {strategy: halfstep, dataset: ring}\nnum_clients: 3\nrounds: 2\n",
    }
    for name, text in files.items():
        (own / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (own / "conf" / f"{name}.yaml").write_text(text)
    monkeypatch.setenv("FEDGRAPH_CONF", str(own / "conf"))
    return own / "conf"


def go(folder, *overrides):
    cfg = compose([f"out={folder}", *overrides])
    return Finished(cfg, run_cfg(cfg))


def test_every_kind_is_named_as_module_and_name(own):
    """And what comes of it is what our own do by the same rule."""
    overrides = ["dataset=own_methods:ring", "partition=own_methods:thirds", "model=own_methods:Net", "num_clients=3"]
    overrides += ["model.hidden=8", "rounds=3"]
    outcome = go(
        own / "a",
        *overrides,
        *("strategy=own_methods:HalfStep", "strategy.step=1", "strategy.client=own_methods:Patient"),
        *("evaluation.metric=own_methods:kappa", "attack=own_methods:norms", "attack.power=1"),
    )
    plain = go(own / "b", *overrides, "model=gcn", "train.local_steps=1")
    for name, values in plain.arrays.items():
        np.testing.assert_allclose(outcome.arrays[name], values, rtol=1e-5, atol=1e-6)
    assert (outcome.summary["strategy"], outcome.summary["dataset"]) == ("HalfStep", "ring")
    assert outcome.summary["headline"] == "test_kappa at best_val"
    assert outcome.summary["test_kappa"] == outcome.summary["metrics"]["best_val"]["test_kappa"]
    total = sum(np.abs(a).sum() for a in outcome.arrays.values())
    assert outcome.summary["attack"] == {"name": "own_methods:norms", "total": pytest.approx(total)}
    graphs = [partition.load_client(outcome.cfg, i) for i in range(3)]
    assert [g.node_id.tolist() for g in graphs] == [list(range(20 * i, 20 * i + 20)) for i in range(3)]


def test_an_own_metric_is_scored_as_scikit_learn_does(own):
    from own_methods import kappa

    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(40, 3)), rng.integers(3, size=40)
    assert kappa(logits, y) == pytest.approx(cohen_kappa_score(y, logits.argmax(1)))
    overrides = ["dataset=own_methods:ring", "partition=random", "num_clients=2", "rounds=2", "model.hidden=4"]
    outcome = go(own / "a", *overrides, "evaluation.metrics=[own_methods:kappa]")
    assert outcome.summary["headline"] == "test_accuracy at best_val"
    assert {"test_kappa", "val_kappa"} <= outcome.summary["metrics"]["last"].keys()


def test_an_own_adversary_lies(own):
    overrides = [
        "dataset=own_methods:ring",
        "partition=own_methods:thirds",
        "num_clients=3",
        "rounds=1",
        "model.hidden=4",
    ]
    honest = go(own / "a", *overrides, "strategy.weighting=uniform")
    lied = go(
        own / "b",
        *overrides,
        "strategy.weighting=uniform",
        "adversary.kind=own_methods:silence",
        "adversary.clients=[2]",
    )
    two = go(
        own / "c",
        *overrides,
        "strategy.weighting=uniform",
        "adversary.kind=own_methods:silence",
        "adversary.clients=[1,2]",
    )
    name = next(iter(honest.arrays))  # the sums of what is left of them fall by one client's term a liar
    assert np.abs(lied.arrays[name]).sum() > np.abs(two.arrays[name]).sum() > 0
    assert np.abs(honest.arrays[name] - lied.arrays[name]).max() > 0


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ("subprocess:check_output", {"args": ["touch", "it"]}),
        ("builtins:open", {"file": "it", "mode": "w"}),
        ("torch:load", {"f": "it"}),
        ("fedgraph_flwr.cli.app:main", {"argv": ["new", "method", "it"]}),
        ("fedgraph_baselines.methods.fedtad:reliability", {}),
    ],
)
def test_a_configuration_calls_no_function_of_a_library(tmp_path, monkeypatch, source, keys):
    """A run folder of someone else names code, too: `report` and `predict` would call it with the keys of its dataset."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedGraphError, match=r"is a function of \w+, which is not written for this package"):
        load(DatasetConfig("own", source, params=keys))
    assert not [*tmp_path.iterdir()]


def test_a_config_folder_of_ones_own_is_searched_first(conf, own, capsys):
    cfg = compose(["protocol=mine"])
    assert (cfg.strategy.name, cfg.strategy.server, cfg.dataset.name) == ("halfstep", "own_methods:HalfStep", "ring")
    assert (cfg.partition.name, cfg.model.name, cfg.model.hidden) == ("own_methods:thirds", "own_methods:Net", 8)
    assert {"halfstep", "fedavg"} <= set(group_names("strategy"))
    assert go(own / "a", "protocol=mine").summary["strategy"] == "halfstep"
    (conf / "strategy" / "fedavg.yaml").write_text("name: fedavg\nfraction: 0.5\n")
    (conf / "config.yaml").write_text("defaults: {dataset: ring}\nrounds: 7\n")
    cfg = compose()
    assert (cfg.strategy.fraction, cfg.dataset.name, cfg.rounds, cfg.num_clients) == (0.5, "ring", 7, 10)
    with pytest.raises(FedGraphError, match=r"strategy 'halfsteq' is unknown; did you mean 'halfstep'"):
        compose(["strategy=halfsteq"])


def test_the_command_line_takes_the_folder(conf, own, monkeypatch, capsys):
    monkeypatch.delenv("FEDGRAPH_CONF")
    assert main(["run", "protocol=mine", "--dry-run"]) == 2
    assert main(["run", "--conf", str(conf), "protocol=mine", "--dry-run"]) == 0
    assert "own_methods:HalfStep" in capsys.readouterr().out
    assert main([f"--conf={conf}", "run", "protocol=mine", "--dry-run"]) == 0
    assert main(["run", "protocol=mine", "--dry-run"]) == 2  # nothing of it stays behind
    assert main(["run", f"--conf={own / 'nowhere'}", "--dry-run"]) == 2
    assert "does not exist: expected a folder with strategy/NAME.yaml" in capsys.readouterr().err


def test_an_own_method_of_a_yaml_by_hand_has_its_name(own):
    (own / "mine.yaml").write_text("strategy: {name: gentle, client: 'own_methods:Patient'}\nrounds: 2\n")
    assert compose([], own / "mine.yaml").strategy.name == "gentle"
    assert compose(["strategy=gentle", "strategy.server=own_methods:HalfStep"]).strategy.name == "gentle"
    assert compose(["strategy.client=own_methods:Patient"]).strategy.name == "Patient"
    assert compose(["strategy=fedprox", "strategy.client=own_methods:Patient"]).strategy.name == "Patient"
    assert compose(["strategy=fedprox", "strategy.client=own_methods:Patient"]).strategy.params == {}, "it has no keys"
    assert compose(["strategy=fedprox", "strategy.server=own_methods:HalfStep"]).strategy.params.keys() == {"step"}
    with pytest.raises(FedGraphError, match="strategy 'gentle' is unknown"):
        compose(["strategy=gentle"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strategy=own_methods:Patient"], "strategy.server=own_methods:Patient is not a server: expected a subclass of Graph"),
        (["strategy.client=own_methods:Net"], "strategy.client=own_methods:Net is not a client: expected a subclass of Graph"),
        (["strategy=own_methods:Nobody"], "'own_methods:Nobody' cannot be imported"),
        (["strategy=own_methods:HalfStep", "strategy.stepp=1"], "strategy HalfStep: key 'stepp' is unknown; did you mean 'step'"),
        (["dataset=own_methods:kappa"], "dataset.source=own_methods:kappa failed"),
        (["dataset=own_methods:thirds", "dataset.nodes=3"], "dataset.source=own_methods:thirds failed"),
        (["partition=own_methods:kappa"], "takes 2 positional arguments"),
        (["evaluation.metrics=[accuracy]"], "evaluation.metrics must list operating points"),
        (["evaluation.metrics=[a:auc]"], "there are two metrics named auc"),
        (["evaluation.metrics=[a:f,b:f]"], "there are two metrics named f"),
        (["evaluation.metric=own_methods:silence"], "evaluation.metrics: own_methods:silence must take logits"),
        (["evaluation.metric=own_methods.kappa"], "evaluation.metric 'own_methods.kappa' is unknown"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(own, overrides, message):
    with pytest.raises((FedGraphError, TypeError)) as caught:
        go(
            own / "a",
            "dataset=own_methods:ring",
            "num_clients=2",
            "partition=random",
            "rounds=1",
            "model.hidden=4",
            *overrides,
        )
    assert message in str(caught.value)


def test_what_is_cut_from_an_own_dataset_does_not_outlive_it(own):
    from own_methods import ring

    from fedgraph_flwr.data import datasets

    cfg = compose(["dataset=own_methods:ring", "partition=random", "num_clients=2"])
    before = partition.load_client(cfg, 0)
    assert partition.client_files(cfg) == partition.client_files(cfg)
    folder = partition.client_files(cfg)
    ring.__defaults__ = (80, 0)
    datasets.digest.cache_clear()  # as in another process
    assert partition.client_files(cfg) != folder
    assert partition.load_client(cfg, 0).num_global_nodes == 80 != before.num_global_nodes


# --- in other processes -------------------------------------------------------------------------------------------------


def program(folder, given, **environment):
    """Our commands in one process, which imports torch once."""
    code = f"import sys; from fedgraph_flwr.cli import main; sys.exit(max([main(args) for args in {given!r}]))"
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def installed(folder):
    """A package with an entry point, as pip would leave it in ``folder``."""
    package, info = folder / "gentle_methods", folder / "gentle_methods-1.0.dist-info"
    (package / "conf" / "strategy").mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text(CODE)
    (package / "conf" / "strategy" / "gentle.yaml").write_text(
        YAML.format(module="gentle_methods").replace("halfstep", "gentle")
    )
    (package / "conf" / "strategy" / "fedavg.yaml").write_text("name: fedavg\nfraction: 0.5\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gentle-methods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedgraph_flwr.conf]\ngentle = gentle_methods\n")
    return folder


@pytest.mark.slow
def test_an_installed_package_brings_its_methods_on_both_engines(tmp_path):
    path = f"{installed(tmp_path / 'site')}{os.pathsep}{ROOT}"
    args = [
        "rounds=2",
        "num_clients=2",
        "dataset=csbm",
        "dataset.nodes=80",
        "dataset.nodes_per_client=[40,40]",
        "--no-report",
        "--quiet",
    ]
    environment = {"PYTHONPATH": path, "FEDGRAPH_DATA": str(tmp_path / "data")}
    engines = ("inline", "ray")
    given = [["run", "strategy=gentle", f"engine={engine}", f"out={engine}", *args] for engine in engines]
    given.append(["run", "strategy=fedavg", "--dry-run"])
    done = program(tmp_path, given, **environment)
    assert done.returncode == 0, done.stderr
    (a, b) = (Finished(compose([f"out={tmp_path / e}"]), json.loads((tmp_path / e / "summary.json").read_text()))
              for e in engines)  # fmt: skip
    assert a.summary["strategy"] == b.summary["strategy"] == "gentle"
    assert_same_arrays(a.arrays, b.arrays)
    assert "fraction: 1.0" in done.stdout, "a package adds names and changes none of ours"


def test_what_a_server_may_name_is_the_nodes_to_say(own, run, tmp_path, monkeypatch):
    """Before anything of it is imported: by policy, or by a package that was installed for it."""
    from tests.nodes import Node

    graph = Path(run("rounds=1").cfg.graph)
    cfg = compose([f"graph={graph}", "num_clients=3", "rounds=2", "model.hidden=8", "strategy=own_methods:HalfStep"])
    cfg = compose(["strategy.client=own_methods:Patient", "model=own_methods:Net"], to_json(cfg))
    cfg = compose(["evaluation.metrics=[own_methods:kappa]"], to_json(cfg))
    monkeypatch.delitem(sys.modules, "own_methods")  # where the configuration is composed, its keys are looked up

    def asked(policy):
        (tmp_path / "policy.yaml").write_text(json.dumps(policy))
        node = Node(cfg, graph=str(graph / "client_0000.safetensors"), policy=str(tmp_path / "policy.yaml"))
        return node.request("describe")

    refused = "this node's policy refuses strategy.client=own_methods:Patient: it accepts modules none"
    assert refused in asked({})
    assert "own_methods" not in sys.modules
    assert "refuses model=own_methods:Net" in asked({"strategies": ["own_methods:Patient"]})
    assert "own_methods" not in sys.modules
    assert "refuses evaluation.metrics (kappa)=own_methods:kappa: it accepts modules own_methods" in asked(
        {"modules": ["own_methods"]}
    )
    assert "own_methods" not in sys.modules
    assert not isinstance(asked({"modules": ["own_methods", "own_methods:kappa"]}), str)
    from fedgraph_flwr.data import plugins

    monkeypatch.setattr(plugins, "packages", lambda: {"own_methods": tmp_path})
    assert not isinstance(asked({"modules": ["own_methods:kappa"]}), str)

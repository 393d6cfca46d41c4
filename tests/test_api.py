"""The package from Python: the same runs as from the command line, graphs in memory, tables, and nothing left behind."""

import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import typing
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.datasets import KarateClub

import fedgraph_flwr as fg
from fedgraph_flwr import api
from fedgraph_flwr.cli import main
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import configuration
from fedgraph_flwr.config.run_keys import RunKeys
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.error_codes import code_of
from fedgraph_flwr.models.gcn import GCN
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.sweeps.runs import parameters
from tests.conftest import client_graph
from tests.support import assert_same_arrays

ROOT = Path(__file__).parents[1]
SMALL = {"dataset": "csbm", "dataset.nodes": 60, "dataset.clients": 2, "dataset.nodes_per_client": [30, 30]}
TINY = {**SMALL, "num_clients": 2, "rounds": 3, "model.hidden": 8, "progress": False}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def final(run: fg.Run) -> dict[str, np.ndarray]:
    return {name: t.numpy() for name, t in read_tensors(run.path / "model_final.safetensors")[0].items()}


def data(client: int = 0, **changes: object) -> Data:
    """A small graph with a split of its own, as PyG has it."""
    graph = client_graph(client)
    given = {key: getattr(graph, key) for key in ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask")}
    return Data(**{key: value for key, value in {**given, **changes}.items() if value is not None})


# --- the package ------------------------------------------------------------------------------------------------------


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, fedgraph_flwr; heavy = {'torch', 'numpy', 'flwr', 'omegaconf', 'pandas'} & set(sys.modules);"
        "sys.exit(len(heavy))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_every_name_is_there_typed_and_documented():
    assert set(fg.__all__) <= set(dir(fg))
    for name in fg.__all__:
        value = getattr(fg, name)
        assert value.__doc__
        if callable(value) and not isinstance(value, type):
            assert value.__annotations__["return"]
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = fg.runn


def test_no_module_takes_a_name_from_the_package():
    """Python binds a submodule to its name in the package when it is imported, whatever stood there."""
    modules = {path.stem for path in (ROOT / "fedgraph_flwr").iterdir()}
    assert modules & set(fg.__all__) == set()


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_is_that_of_the_command_line_bit_for_bit(folder):
    nested = fg.run(
        "train.lr=0.03",
        strategy={"name": "fedprox", "mu": np.float32(0.5)},
        train={"local_steps": 2},
        out=folder / "python",
        **TINY,
    )
    overrides = [f"{key}={value}".replace(" ", "") for key, value in TINY.items() if key != "progress"]
    overrides += ["train.lr=0.03", "strategy=fedprox", "strategy.mu=0.5", "train.local_steps=2", "out=line"]
    assert main(["run", *overrides, "--quiet", "--no-report"]) == 0
    line = fg.load_run("line")
    assert_same_arrays(final(nested), final(line))
    assert nested.summary["metrics"] == line.summary["metrics"]
    assert nested.summary["strategy"] == "fedprox"


@pytest.mark.parametrize(
    ("keys", "overrides"),
    [
        ({"strategy": "fedavgg"}, ["strategy=fedavgg"]),
        ({"train": {"lrr": 1}}, ["train.lrr=1"]),
        ({"train.lr": "fast"}, ["train.lr=fast"]),
        ({"rounds": 0}, ["rounds=0"]),
        ({"strategy": "fedprox", "strategy.mu": -1}, ["strategy=fedprox", "strategy.mu=-1"]),
        ({"engine": "rai"}, ["engine=rai"]),
        ({"config": "nowhere.yaml"}, ["config=nowhere.yaml"]),
        ({"resume": "nowhere"}, ["resume=nowhere"]),
    ],
)
def test_wrong_input_is_the_sentence_of_the_command_line(keys, overrides, capsys, folder, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(folder / "flwr"))
    with pytest.raises(fg.FedGraphError) as raised:
        fg.run(**keys)
    assert main(["run", *overrides]) == 2
    assert capsys.readouterr().err == f"error: {raised.value} [{code_of(raised.value)}]\n"


def test_a_value_of_no_known_kind_is_refused():
    with pytest.raises(fg.FedGraphError, match=r"train\.lr must be a number, a string, .* got a set"):
        fg.run(train={"lr": {0.1}})  # type: ignore[typeddict-item]


def test_a_file_of_ones_own_and_keys_above_it(folder):
    Path("mine.yaml").write_text("strategy: {name: fedprox, mu: 0.5}\nrounds: 7\n")
    cfg = configuration((), {"config": "mine.yaml", "rounds": 2, "partition": None})
    assert (cfg.strategy.prox.mu, cfg.rounds) == (0.5, 2)


def test_nothing_is_printed_unless_asked(capfd):
    fg.run(**{**TINY, "progress": "auto"})
    assert capfd.readouterr() == ("", "")
    fg.run(**{**TINY, "progress": True})
    assert "fedavg on csbm" in capfd.readouterr().err


def state() -> dict[str, object]:
    """Of this process, what a library has no business to change."""
    flower = logging.getLogger("flwr")
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": [np.asarray(part).tolist() for part in np.random.get_state()],
        "python": random.getstate(),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "grad": torch.is_grad_enabled(),
        "logging": [(log.level, len(log.handlers), log.propagate) for log in (logging.getLogger(), flower)],
        "signals": [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)],
        "running": {thread.name for thread in threading.enumerate()},
        "folder": os.getcwd(),
        "variables": dict(os.environ),
        "warnings": len(warnings.filters),
    }


@pytest.fixture
def threads():
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("keys", [{}, {"strategy": "fedspa", "dtype": "float64"}])
def test_a_run_leaves_nothing_behind_in_the_process(keys):
    fg.run(**TINY)  # what Flower does when it is imported is done
    torch.set_num_threads(3)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(5)
    before = state()
    first = fg.run(**TINY, **keys)
    assert state() == before
    torch.manual_seed(99)
    assert_same_arrays(final(fg.run(**TINY, **keys)), final(first))


def test_an_interrupted_run_says_how_it_goes_on_and_does(folder, monkeypatch):
    whole = fg.run(**{**TINY, "rounds": 5})

    @contextmanager
    def stopping(cfg, shown):
        def on_round(record):
            if record["round"] == 3:
                raise KeyboardInterrupt

        yield on_round, print

    with monkeypatch.context() as patch:
        patch.setattr(api, "shown_progress", stopping)
        with pytest.raises(KeyboardInterrupt) as raised:
            fg.run(**{**TINY, "rounds": 5}, checkpoint_every=2, out="stopped")
    assert raised.value.__notes__ == [f"to resume: fedgraph_flwr.load_run('{folder / 'stopped'}').resume()"]
    stopped = fg.load_run("stopped")
    assert not stopped.summary
    assert "not finished" in repr(stopped)
    with pytest.raises(fg.FedGraphError, match="is not finished"):
        stopped.table()
    with pytest.raises(fg.FedGraphError, match="is not finished"):
        fg.compare([whole, stopped])
    gone_on = stopped.resume(progress=False)
    assert_same_arrays(final(gone_on), final(whole))
    assert len(gone_on.rounds) == 5


def test_a_short_run_goes_on_and_starts_another():
    whole, short = fg.run(**TINY | {"rounds": 5}), fg.run(**TINY)
    longer = short.resume(rounds=5, progress=False)
    assert_same_arrays(final(longer), final(whole))
    again = fg.run(init=longer, rounds=1, progress=False)
    assert again.config.init == str(longer.path)
    assert again.summary["start"]["run"] == str(longer.path)


def right(y_true, y_pred):
    """As scikit-learn's metrics."""
    return float((y_true == y_pred).mean())


def second(y_true, y_score):
    """Mean probability of the second of two classes."""
    assert y_score.shape == y_true.shape
    return float(y_score.mean())


def three(logits, y, more):
    return 0.0


def test_a_metric_with_the_arguments_of_scikit_learn():
    table = fg.run(**TINY, evaluation={"metrics": [right, second]}).table().iloc[:, 0]
    assert table["test_right"] == table["test_accuracy"]
    assert 0 < table["test_second"] < 1
    with pytest.raises(
        fg.FedGraphError, match=r"tests.test_api:three must take logits .* or y_true and y_pred"
    ) as error:
        fg.run(**TINY, evaluation={"metrics": [three]}, out="none")
    assert not Path("none").exists()
    assert error.value.__cause__ is None


def test_notebooks_show_the_verdict_a_curve_and_the_page():
    run = fg.run(**TINY, out="runs/first")
    assert run.verdict.startswith("FedAvg reaches ")
    assert "points above always predicting" in run.verdict or "points below" in run.verdict
    assert "is not compared with training alone: repeat the command with strategy=local" in run.verdict
    fg.run(**TINY, out="runs/alone", strategy="local")
    assert "Local (each client on its own graph" in run.verdict
    shown = run._repr_html_()
    assert "data:image/png;base64," in shown
    assert "report() writes a page" in shown
    run.report()
    assert '<a href="runs/first/report.html">' in run._repr_html_()
    predicted = run.predict(client=0)
    assert len(repr(predicted)) < 100
    assert repr(predicted).startswith("<30 Predictions: 0 ")
    assert predicted._repr_html_().count("<tr") == 11


def test_a_generated_graph_of_a_given_size():
    graph = fg.datasets.load("csbm", nodes=300)
    assert graph.num_nodes == 300
    with pytest.raises(fg.FedGraphError, match="too high for a client of"):
        fg.datasets.load("csbm", nodes=300, num_clients=25)


def test_the_table_of_a_sweep_has_a_column_for_each_key():
    keys = {**TINY, "rounds": 1, "train.lr": [0.1, 0.01], "dataset.nodes_per_client": [[30, 30]]}
    lr_sweep = fg.sweep(strategy=["fedavg", "fedprox"], baselines=False, **keys)
    assert lr_sweep.table["train.lr"].tolist() == ["0.1", "0.1", "0.01", "0.01"]


class Half(GCN):
    """A network of one's own."""

    def encode(self, inputs):
        return 0.5 * super().encode(inputs)


class Patient(GraphClient):
    """A client of one's own. Leaves a client: what FedAvg's does."""

    @property
    def local_steps(self):
        return 1


class Fixed(torch.nn.Module):
    """A network that knows its sizes."""

    def __init__(self, width=8):
        super().__init__()
        self.first, self.head = torch.nn.Linear(64, width), torch.nn.Linear(width, 2)

    def forward(self, x, edge_index):
        mixed = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return self.head(self.first(x + mixed).relu())


def make_fixed(in_channels: int, out_channels: int, width: int = 4) -> Fixed:
    return Fixed(width)


def make_something(in_channels, out_channels):
    return Fixed()


def make_nothing(in_channels, out_channels):
    """A function that returns no network."""


class Wider(Fixed):
    pass


def make_other(in_channels: int, out_channels: int) -> Wider:
    return Fixed()


def first_class(logits, y):
    """A metric: the share of the first class."""
    return float((y == 0).mean())


def test_classes_and_functions_of_ones_own_are_given_as_they_are():
    run = fg.run(**TINY, model=Half, strategy={"client": Patient}, evaluation={"metric": first_class})
    assert run.config.model.name == "tests.test_api:Half"
    assert run.summary["strategy"] == "Patient"
    assert isinstance(run.model(), Half)
    assert run.summary["headline"].startswith("test_first_class at")
    parts = [load_client(run.config, client) for client in (0, 1)]
    assert run.score == pytest.approx(np.mean([float((part.y[part.test_mask] == 0).double().mean()) for part in parts]))


def test_a_function_makes_the_network_that_knows_its_sizes(folder):
    run = fg.run(**TINY, model=make_fixed, **{"model.width": 5})
    network = run.model().net
    assert (type(network), network.first.out_features) == (Fixed, 5)
    graph = load_client(run.config, 1)
    assert torch.equal(run.model()(graph.x, graph.edge_index), network(graph.x, graph.edge_index))
    assert torch.equal(run.model()(graph.to_pyg()), run.predict(client=1).logits)
    for model in (Fixed, make_something):  # without sizes, or without an annotation
        assert isinstance(fg.run(**TINY, model=model).model().net, Fixed)
    wrong = {
        make_nothing: "does not tell which torch.nn.Module it returns: annotate it",
        make_other: "make_other returned a Fixed, but its annotation promises a Wider",
        (lambda f, c: Fixed()): "which has no name to import it by: define it by class or def at the top level",
    }
    for model, message in wrong.items():
        with pytest.raises(fg.FedGraphError, match=message):
            fg.run(**TINY, model=model)
    with pytest.raises(
        fg.FedGraphError, match=r"model got an object of Fixed, .* pass the class itself, or a function"
    ):
        fg.run(**TINY, model=Fixed())
    with pytest.raises(
        fg.FedGraphError, match=r"'fedprox' is not of the form key=value: did you mean strategy=fedprox\?"
    ):
        fg.run("fedprox", **TINY)


def test_a_function_is_called_with_each_round(folder):
    seen: list[dict[str, Any]] = []
    run = fg.run(**TINY, on_round=seen.append)
    assert [row["round"] for row in seen] == [1, 2, 3]
    for row in seen:
        assert {**run.history.loc[row["round"]]} == {key: value for key, value in row.items() if key != "round"}
    with pytest.raises(ZeroDivisionError):
        fg.run(**TINY, on_round=lambda row: 1 / 0)


# --- what a run holds -------------------------------------------------------------------------------------------------


def test_tables_hold_what_the_folder_holds(folder):
    run = fg.run(**TINY)
    records = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    rounds = run.rounds
    assert list(rounds.index) == [1, 2, 3]
    assert list(rounds.test_accuracy) == [record["metrics"]["test_accuracy"] for record in records]
    assert list(rounds.bytes_up) == [sum(p["bytes_up"] for p in record["phases"].values()) for record in records]
    table, summary = run.table(), json.loads((run.path / "summary.json").read_text())
    assert table.loc["test_accuracy", "best validation round"] == summary["metrics"]["best_val"]["test_accuracy"]
    assert table.index[1] == "test_majority"
    clients = run.clients
    best = records[summary["best_round"] - 1]["clients"]["test-accuracy"]
    assert list(clients.test_accuracy) == best
    assert clients.test_accuracy.mean() == pytest.approx(summary["test_accuracy"])
    assert run.config.num_clients == 2
    assert "test_accuracy" in run._repr_html_()
    shown: Any = run.plot("macro_f1")
    assert shown._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(fg.FedGraphError, match="did you mean 'accuracy'"):
        run.plot("acuracy")
    assert "accuracy" in fg.plot(run).axes[0].get_ylabel(), "the run's own metric"
    for axes in (
        fg.plot(run, "loss").axes,
        fg.plot([run, run], metric="loss").axes,
        fg.plot([str(run.path)], "loss").axes,
    ):
        assert "loss" in axes[0].get_ylabel()
    assert run.score == summary["test_accuracy"] == fg.load(run.path).score
    assert "FedAvg on csbm" in run.report().read_text()
    with pytest.raises(fg.FedGraphError, match="holds no run"):
        fg.load_run(folder / "nowhere")
    assert "holds no run" in fg.Run(folder)._repr_html_()


def test_runs_are_compared_with_their_seeds_folded():
    lr = {0.01: [0, 1, 2], 0.1: [0]}
    runs = {rate: [fg.run(**TINY, seed=seed, train={"lr": rate}) for seed in seeds] for rate, seeds in lr.items()}
    prox = fg.run(**TINY, strategy="fedprox")
    table = fg.compare([*runs[0.01], fg.run(**TINY), prox, str(runs[0.1][0].path)])
    assert list(table.columns[:4]) == ["strategy", "dataset", "train.lr", "seeds"]
    assert [tuple(row) for row in table.iloc[:, :4].to_numpy()] == [
        ("fedavg", "csbm", 0.01, 3),
        ("fedprox", "csbm", 0.01, 1),
        ("fedavg", "csbm", 0.1, 1),
    ]
    values = np.array([run.summary["test_accuracy"] for run in runs[0.01]])
    assert len(set(values)) > 1
    assert table["mean"][0] == pytest.approx(values.mean())
    assert table.deviation[0] == pytest.approx(values.std(ddof=1))
    assert np.isnan(table.deviation[1])
    assert table.chance[1] == prox.summary["metrics"]["best_val"]["test_majority"]
    two = fg.compare(runs[0.01][0], prox)
    assert two.equals(fg.compare([runs[0.01][0], prox]))
    assert list(two.strategy) == ["fedavg", "fedprox"]
    for nothing, message in (((), "no runs: pass what"), ((3,), "expected a run, or its folder, got a int")):
        with pytest.raises(fg.FedGraphError, match=message):
            fg.compare(*nothing)


def test_a_sweep_is_that_of_the_command_line(folder):
    keys = {"num_clients": 2, "rounds": 2, "dataset": {"name": "csbm", "nodes": 60, "nodes_per_client": [[30, 30]]}}
    sweep = fg.sweep("dataset.clients=2", strategy=["fedavg", "fedprox"], seed=range(2), **keys)
    rows = sweep.path.read_text()
    line = ["dataset.clients=2", "strategy=fedavg,fedprox", "seed=0,1", "num_clients=2", "rounds=2"]
    line += ["dataset.name=csbm", "dataset.nodes=60", "dataset.nodes_per_client=[30,30]"]
    assert main(["sweep", *line, "--jobs", "0"]) == 0  # it finds all runs done
    assert sweep.path.read_text() == rows
    values = {(row.method, row.seed): row.value for row in sweep.rows.itertuples()}
    assert len(values) == 8  # with Majority and Local
    one = {**SMALL, "num_clients": 2, "rounds": 2, "progress": False}
    assert values["fedprox", 1] == pytest.approx(fg.run(**one, strategy="fedprox", seed=1).score, abs=1e-6)
    mean = np.mean([values["fedprox", seed] for seed in (0, 1)])
    assert sweep.table.set_index("method")["mean"]["fedprox"] == pytest.approx(100 * mean)
    assert sorted(run.summary["strategy"] for run in sweep.runs) == [
        "fedavg",
        "fedavg",
        "fedprox",
        "fedprox",
        "local",
        "local",
    ]
    assert sweep.page.is_file()
    assert repr(sweep).startswith(sweep.verdicts[0])
    with pytest.raises(fg.FedGraphError, match="roundz"):
        fg.sweep(strategy="fedavg", roundz=[1, 2])
    with pytest.raises(fg.FedGraphError, match="keep"):
        fg.sweep(keep="some", **keys)


def test_a_sweep_takes_graphs_in_memory_as_a_run_does(folder):
    """Without masks, each seed draws another split; more seeds and the same graphs train only what is missing."""
    parts = [data(index, train_mask=None, val_mask=None, test_mask=None) for index in (0, 1)]
    keys = {"dataset": "shops", "rounds": 3, "strategy": "fedavg", "progress": False}
    for given, more in (({"graphs": parts}, {}), ({"data": parts[0]}, {"partition": "random", "num_clients": 2})):
        first = fg.sweep(**given, **more, **keys, seed=[1], baselines=False).rows
        assert len(first) == 1
        sweep = fg.sweep(*given.values(), **more, **keys, seed=[1, 2], baselines=False, classes=["a", "b", "c"])
        swept = fg.sweep(*given.values(), **more, **keys, seed=[1, 2], baselines=False)
        for row in swept.rows.itertuples():
            assert row.parameters == parameters(fg.run(**given, **more, **keys, seed=row.seed).path)
        assert sweep.path != swept.path  # other names of classes are another graph
        markdown = swept.path.with_suffix(".md").read_text()
        assert f"Made by `fg.sweep({next(iter(given))}, '" in markdown
        assert "| shops |" in markdown


def test_a_sweep_takes_a_function_that_returns_the_graphs_of_a_seed(folder):
    keys = {"dataset": "shops", "rounds": 2, "strategy": "fedavg", "progress": False}
    cut = {"partition": "random", "num_clients": 2}
    for make, more in ((lambda seed: [data(seed), data(seed + 5)], {}), (data, cut)):
        swept = fg.sweep(make, **more, **keys, seed=[1, 2], baselines=False)
        assert swept.rows.parameters.nunique() == 2
        for row in swept.rows.itertuples():
            assert row.parameters == parameters(fg.run(make(row.seed), **more, **keys, seed=row.seed).path)
        assert f"Made by `fg.sweep({make.__name__}, " in swept.path.with_suffix(".md").read_text()
    bare = dict.fromkeys(("train_mask", "val_mask", "test_mask"))
    with pytest.raises(fg.FedGraphError, match="with masks, or without, for every seed"):
        fg.sweep(lambda seed: data(seed, **(bare if seed else {})), **cut, **keys, seed=[0, 1])


@pytest.mark.parametrize(
    ("given", "keys", "message"),
    [
        (["graphs", "sweep.yaml"], {}, "sweep.yaml names its data"),
        (["graphs", "graph=there"], {}, "graph=there cannot be combined with graphs"),
        (["graphs"], {"partition": "random"}, "partition=random cannot be combined with graphs"),
        (["graphs"], {"split.train": [0.2, 0.4]}, r"split\.train=0\.2,0\.4: graphs=\[\.\.\.\] is split once per seed"),
        (["graphs"], {"data": 3}, "pass only one of them"),
        ([], {"classes": ["a"]}, "classes= applies only to"),
        ([3], {}, "a graph must be a PyG Data or HeteroData, got int"),
    ],
)
def test_a_sweep_refuses_what_does_not_go_with_graphs_in_memory(given, keys, message):
    with pytest.raises(fg.FedGraphError, match=message):
        fg.sweep(*[[data(0), data(1)] if word == "graphs" else word for word in given], **keys)


def test_choices_name_every_method_with_its_paper():
    table = fg.choices("strategy")
    assert table.loc["fedprox"].about == "FedProx (Li et al., MLSys 2020)."
    assert "prox.mu" in table.loc["fedprox"]["keys"]
    assert all(table.about)
    with pytest.raises(fg.FedGraphError, match="group 'strategies' is unknown"):
        fg.choices("strategies")


def test_keys_say_what_they_mean():
    table = fg.keys("train")
    assert table.loc["train.lr", ["kind", "accepted", "default"]].tolist() == ["a number", "0 < value", 0.01]
    assert fg.keys("strategy=fedprox").loc["strategy.prox.mu"].default == fg.choices().loc["fedprox"]["keys"]["prox.mu"]
    assert {"rounds", "train.lr", "privacy.dp"} <= set(fg.keys().index)
    with pytest.raises(fg.FedGraphError, match="group of keys 'trian' is unknown"):
        fg.keys("trian")


# --- graphs in memory -------------------------------------------------------------------------------------------------


def test_graphs_of_a_partition_give_the_run_of_their_dataset():
    """Cut edges included: FedStruct reads them."""
    keys = {**TINY, "partition": "random", "strategy": "fedstruct", "rounds": 2}
    whole = fg.datasets.load("csbm", num_clients=2, nodes=60, clients=2, nodes_per_client=[30, 30])
    parts = fg.datasets.partition(whole, "random", num_clients=2)
    assert sorted(torch.cat([part.node_id for part in parts]).tolist()) == list(range(60))
    assert torch.equal(parts[1].x, whole.x[parts[1].node_id])
    others = {key: value for key, value in keys.items() if not key.startswith(("dataset", "partition", "num_clients"))}
    assert_same_arrays(final(fg.run(**keys)), final(fg.run(graphs=parts, **others)))


def test_a_split_of_ones_own_is_kept_to_and_the_graphs_stay_as_they_are(folder):
    graphs = [data(0, x=data(0).x.double()), data(1, val_mask=None)]
    before = [graph.clone() for graph in graphs]
    run = fg.run(graphs=graphs, dataset="mine", rounds=1, progress=False)
    assert run.summary["dataset"] == "mine"
    assert run.config.num_clients == 2
    for graph, was in zip(graphs, before, strict=True):
        assert graph.keys() == was.keys()
        for key in was.keys():  # noqa: SIM118 (of a Data)
            torch.testing.assert_close(graph[key], was[key], rtol=0, atol=0)  # of one type, too
    first, second = (load_client(run.config, client) for client in (0, 1))
    for key in ("train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(first, key), graphs[0][key])
    assert torch.equal(second.test_mask, graphs[1].test_mask)
    # Without validation nodes, a share of the training nodes validates.
    assert torch.equal(second.train_mask | second.val_mask, graphs[1].train_mask)
    assert int(second.val_mask.sum()) == round(0.2 * int(graphs[1].train_mask.sum()))
    drawn = load_client(fg.run(graphs=graphs, split={"kind": "ratio"}, rounds=1, progress=False).config, 0)
    assert int(drawn.train_mask.sum()) == int(0.6 * 16)
    for changes in ({"train_mask": None}, {"test_mask": torch.zeros_like(data(1).test_mask)}):  # the rest completes it
        completed = load_client(fg.run(graphs=[data(0), data(1, **changes)], rounds=1, progress=False).config, 1)
        for key in ("train_mask", "val_mask", "test_mask"):
            assert torch.equal(getattr(completed, key), data(1)[key])


def test_what_edges_carry_is_not_read_and_that_is_said(folder, caplog):
    weighted = data(1, edge_weight=torch.ones(data(1).num_edges))
    plain, other = (fg.run(graphs=[data(0), last], rounds=1, progress=False) for last in (data(1), weighted))
    assert caplog.text.count("edge_weight is ignored: every edge has weight 1") == 1
    assert_same_arrays(final(plain), final(other))


def test_parties_may_name_the_nodes_that_several_of_them_hold(folder):
    """Else FedGL would take node 0 of one for node 0 of another."""
    n = data(0).num_nodes
    named = [data(i, node_id=torch.arange(n).flip(0) + n * i // 2) for i in (0, 1)]
    run = fg.run(graphs=named, strategy="fedgl", rounds=2, progress=False)
    assert load_client(run.config, 1).node_id.tolist() == named[1].node_id.tolist()
    assert load_client(run.config, 1).num_global_nodes == n + n // 2
    smaller = data(1).subgraph(torch.arange(n) < n - 2)
    with pytest.raises(
        fg.FedGraphError, match=r"each client numbers its nodes from 0, .* \(node_id of a PyG Data, or parts"
    ):
        fg.run(graphs=[data(0), smaller], strategy="fedgl", rounds=1, progress=False)
    for wrong in (torch.zeros(n, dtype=torch.int64), torch.arange(n) - 1, torch.arange(n + 1), torch.rand(n), [0] * n):
        with pytest.raises(fg.FedGraphError, match=rf"graphs\[1\]: node_id must be {n} distinct integers"):
            fg.run(graphs=[data(0), data(1, node_id=wrong)], rounds=1, progress=False)


def test_graphs_in_memory_go_on_after_a_rest(folder):
    whole = fg.run(graphs=[data(0), data(1)], rounds=4, progress=False)
    fg.run(graphs=[data(0), data(1)], rounds=2, checkpoint_every=2, out="rest", progress=False)
    assert_same_arrays(final(fg.load_run("rest").resume(rounds=4, progress=False)), final(whole))


def test_predictions_are_those_that_were_scored_and_name_the_classes():
    graphs = [data(client) for client in range(2)]
    run = fg.run(graphs=graphs, classes=["red", "green", "blue"], rounds=3, progress=False)
    predicted = run.predict(graphs[1])
    names = np.array(["red", "green", "blue"])[graphs[1].y]
    right = (predicted.labels == names)[graphs[1].test_mask].mean()
    assert right == run.clients.test_accuracy[1]
    unlabelled = Data(x=graphs[1].x, edge_index=graphs[1].edge_index)
    np.testing.assert_array_equal(run.predict(unlabelled).probabilities, predicted.probabilities)
    np.testing.assert_array_equal(run.predict(client=1).probabilities, predicted.probabilities)
    with pytest.raises(fg.FedGraphError, match="nothing to predict"):
        run.predict()
    model, graph = run.model(), load_client(run.config, 1)
    logits = model(model.prepare(graph)).detach()
    assert torch.equal(logits, predicted.logits)


def test_a_clients_own_model_is_the_one_that_predicts():
    run = fg.run(graphs=[data(0), data(1)], strategy="ditto", rounds=2, progress=False)
    graph = load_client(run.config, 1)
    own_logits, shared = (model(model.prepare(graph)) for model in (run.model(1), run.model()))
    assert torch.equal(own_logits, run.predict(client=1).logits)
    assert torch.equal(shared, run.predict(graph).logits)
    assert not torch.equal(own_logits, shared)


def hetero(seed: int, edges: int = 40) -> HeteroData:
    """Papers with labels, authors with features, and who wrote what; both directions, as PyG's ToUndirected gives."""
    generator = torch.Generator().manual_seed(seed)
    graph = HeteroData()
    graph["paper"].x = torch.randn(20, 4, generator=generator)
    graph["paper"].y = torch.arange(20) % 2
    graph["author"].x = torch.randn(10, 3, generator=generator)
    ends = torch.stack([torch.randint(0, n, (edges,), generator=generator) for n in (10, 20)])
    graph["author", "writes", "paper"].edge_index = ends
    graph["paper", "rev_writes", "author"].edge_index = ends.flip(0)
    return graph


def test_typed_graphs_in_memory():
    graphs = [hetero(0), hetero(1)]
    graphs[1]["paper", "cites", "paper"].edge_index = torch.tensor([[0, 1], [2, 3]])
    run = fg.run(graphs=graphs, model="rgcn", rounds=2, progress=False)
    held = load_client(run.config, 0)
    names = [name for _, name, _ in held.edges]
    assert names == ["writes", "cites", "rev_cites", "rev_writes"]
    assert torch.equal(held.edges["author", "writes", "paper"], graphs[0]["author", "writes", "paper"].edge_index)
    with pytest.raises(fg.FedGraphError, match="which each client keeps private"):
        run.predict(graphs[1])
    assert run.predict(client=1).logits.shape == (20, 2)
    two = hetero(0)
    two["author"].y = torch.zeros(10, dtype=torch.int64)
    with pytest.raises(fg.FedGraphError, match="pass target=TYPE"):
        fg.run(graphs=[two], model="rgcn")
    with pytest.raises(fg.FedGraphError, match="one of: paper, author, got 'venue'"):
        fg.run(graphs=[two], model="rgcn", target="venue")


def incomplete(what: str) -> HeteroData:
    """A typed graph that lacks what its name says."""
    graph = hetero(0)
    if what == "count":
        del graph["author"].x
    elif what == "ends":
        graph["paper", "cites", "paper"].edge_attr = torch.ones(5, 2)
    else:
        del graph["author", "writes", "paper"], graph["paper", "rev_writes", "author"]
    return graph


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("count", "'author': the number of nodes is unknown: set x or num_nodes"),
        ("ends", "'paper:cites:paper': edge_index is missing"),
        ("edges", "partition=random-edges divides edges, but 'data' has none"),
    ],
)
def test_an_incomplete_typed_graph_is_refused_by_one_sentence(what, message):
    with pytest.raises(fg.FedGraphError, match=message):
        fg.run(incomplete(what), partition="random-edges", num_clients=3, model="rgcn", rounds=1, progress=False)
    if what != "edges":
        with pytest.raises(fg.FedGraphError, match=message):
            fg.run(graphs=[incomplete(what)], model="rgcn", rounds=1, progress=False)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"graphs": []}, "got an empty one"),
        ({"graphs": Data()}, "got a Data"),
        ({"graphs": [3]}, "must be a PyG Data or HeteroData, got int"),
        ({"data": KarateClub()}, r"got KarateClub: pass one of its graphs, such as dataset\[0\]"),
        ({"graphs": [data(), hetero(0)]}, r"graphs\[1\] and graphs\[0\] must both be Data"),
        ({"graphs": [Data(x=torch.ones(3, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64))]}, "no tensor 'y'"),
        ({"graphs": [data(y=torch.full((16,), 5)), data()], "classes": ["a", "b", "c"]}, r"graphs\[0\]: labels must"),
        ({"graphs": [data()], "num_clients": 3}, "num_clients=3, but graphs has 1"),
        ({"graphs": [data()], "dataset": "My Bank"}, "dataset=My Bank names graphs"),
        ({"graphs": [data()], "partition": "random"}, "partition cannot be combined with graphs"),
        ({"graphs": [data()], "target": "paper"}, "has nodes of one type"),
        ({"graphs": [data()], "strategy": "fedprox", "strategy.mu": -1}, "strategy.prox.mu must be"),
        ({"graphs": [data()], "engine": "bank"}, "engine=bank is a fleet"),
        ({"classes": ["a"]}, r"classes= applies only to data= and graphs"),
    ],
)
def test_wrong_graphs_are_one_sentence_and_leave_no_folder(keys, message):
    with pytest.raises(fg.FedGraphError, match=message):
        fg.run(**keys)
    assert not Path("runs").exists()


def test_datasets_by_name():
    assert {"cora", "csbm"} <= set(fg.datasets.names())
    loaded = fg.datasets.load("csbm", nodes=40, clients=2, nodes_per_client=[20, 20], seed=3)
    assert (loaded.num_nodes, loaded.num_classes) == (40, 2)
    planted = fg.datasets.partition(loaded, "planted", num_clients=2)
    assert [part.num_nodes for part in planted] == [20, 20]
    with pytest.raises(fg.FedGraphError, match="did you mean 'cora'"):
        fg.datasets.load("coar")
    with pytest.raises(fg.FedGraphError, match="dataset key 'knots' is unknown"):
        fg.datasets.load("csbm", knots=3)


def test_one_graph_is_partitioned_and_trained_on_as_its_parts_are(folder):
    """The same run as by `datasets.partition` and ``graphs=``; the default data's few labels are not for other graphs."""
    data = fg.datasets.load("csbm", nodes=90, num_clients=3)
    keys = {"strategy": "fedavg", "rounds": 2, "seed": 3, "model": {"hidden": 4}, "checkpoint_every": 0}
    one = fg.run(data=data, partition="random", num_clients=3, out="one", **keys)
    parts = fg.datasets.partition(data, "random", num_clients=3, seed=3)
    other = fg.run(graphs=parts, out="other", **keys)
    assert one.summary["test_accuracy"] == other.summary["test_accuracy"]
    assert one.config.dataset.name == "data"
    assert sum(int(part.train_mask.sum()) for part in parts) == pytest.approx(0.6 * 90, abs=3)
    assert re.fullmatch(
        r"Part\(client 0 of 3: \d+ nodes, \d+ edges and \d+ to other clients, 64 features, 2 classes, \d+/\d+/\d+ nodes for"
        r" training/validation/test\)",
        repr(parts[0]),
    )
    with pytest.raises(fg.FedGraphError, match=r"pass only one of them"):
        fg.run(data=data, graphs=parts)
    assert fg.run(data, partition="random", num_clients=3, **keys).score == one.score
    assert fg.run(parts, **keys).score == fg.run(data=parts, **keys).score == one.score
    with pytest.raises(fg.FedGraphError, match=r"dataset.mu cannot be combined with data=, which replaces it"):
        fg.run(data=data, **{"dataset.mu": 3})


def test_a_small_graph_has_fewer_clients_than_the_default(caplog):
    small = data()
    keys = {"partition": "random", "rounds": 1, "progress": False}
    run = fg.run(small, **keys)
    clients = run.config.num_clients
    assert 1 < clients < 10
    assert f"num_clients={clients} instead of the default 10, for which the graph is too small" in caplog.text
    assert run.score == fg.run(small, num_clients=clients, **keys).score
    for given in ({"num_clients": 10}, {"config": "ten.yaml"}):
        Path("ten.yaml").write_text("num_clients: 10\n")
        with pytest.raises(fg.FedGraphError, match="num_clients=10"):
            fg.run(small, **keys, **given)


def test_log_lines_have_the_packages_name(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    from fedgraph_flwr.logs import log, logger

    log(logging.WARNING, "seen")
    logger.setLevel(logging.ERROR)
    try:
        log(logging.WARNING, "not seen")
    finally:
        logger.setLevel(logging.NOTSET)
    assert [(record.name, record.message) for record in caplog.records] == [("fedgraph_flwr", "seen")]


def test_tables_have_a_type():
    """Pandas has no types of its own: editors and type checkers read them from pandas-stubs."""
    tables = [vars(fg.Run)[name].fget for name in ("rounds", "history", "clients")]
    for table in (*tables, vars(fg.SweepResult)["rows"].fget, fg.compare):
        assert table.__annotations__["return"] == "pd.DataFrame"
    assert typing.get_type_hints(fg.run)["keys"] == typing.Unpack[RunKeys]


@pytest.mark.slow
def test_pyright_finds_the_mistakes_that_the_example_marks():
    """As mypy does, which checks all files."""
    pytest.importorskip("pyright", reason="pyright is not installed (pip install -e .[dev])")
    if not shutil.which("node"):
        pytest.skip("pyright needs Node.js")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "examples/typed_calls.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout

"""task=nodes-regression and task=nodes-multilabel: losses, known best scores, engines, protections and refusals."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import average_precision_score, root_mean_squared_error
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import fedgraph_flwr as fg
from fedgraph_flwr.cli import main
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.scoring import score
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import ClientGraph, read_tensors
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.tasks.targets import MultiLabel, Regression
from fedgraph_flwr.testing import assert_same_arrays

NUMBERS = {"task": "nodes-regression", "dataset": "planted-regression", "model": "sage"}
LABELS = {"task": "nodes-multilabel", "dataset": "planted-multilabel", "model": "mlp"}
SMALL = {"num_clients": 2, "rounds": 2, "dataset.nodes": 60, "model.hidden": 8, "progress": False}
TASKS = pytest.mark.parametrize("task", [NUMBERS, LABELS], ids=["numbers", "labels"])


def overrides(*dicts: dict, **more) -> list[str]:
    return [f"{key}={value}" for one in (*dicts, more) for key, value in one.items() if key != "progress"]


def client(*given: str) -> GraphClient:
    cfg = compose([*given, "num_clients=1"])
    return GraphClient(cfg, load_client(cfg, 0))


@pytest.mark.parametrize(
    ("task", "model", "low", "high"),
    [(NUMBERS, "sage", 0.68, 0.79), (NUMBERS, "mlp", 0.3, 0.42)],
    ids=["neighbours", "alone"],
)
def test_a_model_reaches_the_best_r2_of_what_it_reads(task, model, low, high):
    """At most 0.75 with neighbours, and 0.375 without: more would be a leak."""
    made = client(*overrides(task, {"model": model}), "dataset.nodes=2000", "train.local_steps=120", "model.dropout=0")
    made.train()
    assert low < made.evaluate([], {})[2]["test-r2"][0] < high


def test_a_model_reaches_the_best_auc_of_each_column():
    made = client(*overrides(LABELS), "dataset.nodes=2000", "dataset.unknown=0.2", "train.local_steps=60")
    made.train()
    assert made.evaluate([], {})[2]["test-auc"][0] == pytest.approx(norm.cdf(2 / 2**0.5), abs=0.02)


def test_scores_are_in_the_unit_of_the_data():
    """Shifted and scaled targets give the same predictions in their own unit."""
    cfg = compose([*overrides(NUMBERS, SMALL), "num_clients=1", "model.dropout=0"])
    graph = load_client(cfg, 0)
    shifted = ClientGraph(
        **vars(graph)
        | {
            "targets": graph.targets * 1000 + 5000,
            "target_stats": graph.target_stats * 1000 + torch.tensor([[5000.0], [0.0]]),
        }
    )
    first, second = (GraphClient(cfg, one) for one in (graph, shifted))
    for made in (first, second):
        made.train()
    one, other = first.evaluate([], {})[2], second.evaluate([], {})[2]
    assert other["test-rmse"][0] == pytest.approx(1000 * one["test-rmse"][0], rel=1e-3)
    assert other["test-r2"][0] == pytest.approx(one["test-r2"][0], rel=1e-3)


def test_clients_share_the_statistics_of_all_their_training_nodes():
    cfg = compose(overrides(NUMBERS, SMALL))
    clients = [load_client(cfg, index) for index in range(2)]
    known = torch.cat([one.targets[one.train_mask] for one in clients]).double().numpy()
    for one in clients:
        assert one.target_stats.tolist() == [[pytest.approx(known.mean())], [pytest.approx(known.std())]]
    central = load_client(compose([*overrides(NUMBERS, SMALL), "strategy=central"]), 0)
    assert torch.equal(central.target_stats, clients[0].target_stats)


def plain_loss(task: str, p: Tensor, y: Tensor) -> Tensor:
    known = ~y.isnan()
    if task == "nodes-regression":
        return ((p - y)[known] ** 2).mean()
    s = torch.sigmoid(p)[known]
    return -(2 * y[known] * s.log() + (1 - y[known]) * (1 - s).log()).mean()


@TASKS
def test_one_client_equals_a_plain_pyg_loop(task):
    made = client(
        *overrides(task, {"model": "sage"}, SMALL),
        *(["task.positive_weights=[2]", "dataset.unknown=0.3"] if task is LABELS else []),
        *("dtype=float64", "model.dropout=0", "train.weight_decay=0"),
    )
    graph = made.graph
    layers = [SAGEConv(graph.num_features, 8).double(), SAGEConv(8, graph.num_targets).double()]
    state = made.model.state_dict()
    with torch.no_grad():
        for layer, prefix in zip(layers, ("layers.0.", "head."), strict=True):
            tensors = {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}
            layer.lin_l.weight.copy_(tensors["neighbours.weight"].T)
            layer.lin_r.weight.copy_(tensors["itself.weight"].T)
            layer.lin_l.bias.copy_(tensors["itself.bias"])
    optimizer = torch.optim.Adam([p for layer in layers for p in layer.parameters()], lr=0.01)
    y = graph.targets.double()
    if task is NUMBERS:
        y = (y - graph.target_stats[0]) / graph.target_stats[1]
    for _ in range(made.local_steps):
        p = layers[1](torch.relu(layers[0](graph.x.double(), graph.edge_index)), graph.edge_index)
        loss = plain_loss(task["task"], p[graph.train_mask], y[graph.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    made.train()
    expected = layers[1](torch.relu(layers[0](graph.x.double(), graph.edge_index)), graph.edge_index)
    assert torch.allclose(made.predict(), expected, atol=1e-12)


@pytest.mark.parametrize(("loss", "expected"), [("mse", 2.5), ("mae", 1.5), ("huber", 1.0)])
def test_losses_of_numbers(loss, expected):
    cfg = compose(["task=nodes-regression", f"task.loss={loss}"])
    p, y = torch.tensor([[1.0, 9.0], [2.0, 0.0]]), torch.tensor([[0.0, torch.nan], [torch.nan, 2.0]])
    assert Regression.loss(p, y, cfg).item() == pytest.approx(expected)


def test_one_weight_per_column():
    cfg = compose(["task=nodes-multilabel", "task.positive_weights=[1,3]"])
    p, y = torch.zeros(2, 2), torch.tensor([[1.0, 1.0], [0.0, torch.nan]])
    assert MultiLabel.loss(p, y, cfg).item() == pytest.approx((1 + 3 + 1) / 3 * np.log(2))


def test_few_items_are_not_scored_under_a_policy():
    made = client(*overrides(LABELS, SMALL))
    made.policy = Policy(min_nodes=8)
    y = made.task.y[made.task.masks["test"]]
    entries = sum(int((y[:, c] == v).sum()) for c in range(5) for v in (0, 1) if (y[:, c] == v).sum() >= 8)
    kept = made.scorer(made.policy.min_nodes).parts[0]["test"][1]
    assert int((~kept.isnan()).sum()) == entries < y.numel()
    made.policy = Policy(min_nodes=50)
    assert score(made, made.predict())["test-count"] == [0]


def trained(path: Path) -> dict[str, Tensor]:
    return read_tensors(path / "model_final.safetensors")[0]


@pytest.fixture(scope="module", params=[NUMBERS, LABELS], ids=["numbers", "labels"])
def inline(request, tmp_path_factory) -> tuple[dict, Path]:
    """A finished run and its keys."""
    out = tmp_path_factory.mktemp("targets") / "inline"
    fg.run(out=str(out), checkpoint_every=1, **request.param | SMALL)
    return request.param, out


def test_a_resumed_run_gives_the_same_bits(inline, tmp_path):
    keys, out = inline
    fg.run(out=str(tmp_path / "run"), checkpoint_every=1, **keys | SMALL | {"rounds": 1})
    fg.load_run(tmp_path / "run").resume(rounds=2, progress=False)
    assert_same_arrays(trained(tmp_path / "run"), trained(out))


def test_the_report_is_in_the_unit_of_the_scores(inline, tmp_path):
    keys, out = inline
    page = fg.load_run(out).report(tmp_path / "report.html").read_text()
    assert ("test RMSE" if keys is NUMBERS else "test average precision") in page
    assert "Confusion matrix" not in page


@TASKS
@pytest.mark.parametrize(
    "keys",
    [
        {"privacy.secagg": True, "num_clients": 3},
        {"privacy.dp": "server_fixed", "privacy.noise_multiplier": 1.0, "strategy.weighting": "uniform"},
        {"strategy": "central"},
        {"strategy": "local"},
    ],
    ids=str,
)
def test_targets_run_under_protections_and_references(task, keys, tmp_path):
    summary = fg.run(out=str(tmp_path / "run"), **task | SMALL | keys).summary
    assert np.isfinite(summary["test_rmse" if task is NUMBERS else "test_average_precision"])


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (
            ["privacy.scores=noised", "privacy.dp=server_fixed", "privacy.noise_multiplier=1"],
            r"needs a metric with values in \[0, 1\].*evaluation.metric=rmse: set privacy.scores=none",
        ),
        (["train.loss=weighted"], "train.loss=weighted needs classes of nodes, and task=nodes-regression has none"),
        (["evaluation.confusion=true"], "evaluation.confusion=true needs classes of nodes"),
        (["strategy=fedproto"], "strategy=fedproto does not serve task=nodes-regression"),
        (
            ["evaluation.metric=accuracy"],
            "must be rmse, mae, r2 or module:name for task=nodes-regression, got 'accuracy'",
        ),
        (["dataset=mutag"], "is for graphs with one node type, but model="),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(given, match):
    with pytest.raises(FedGraphError, match=match):
        check_method(compose(["task=nodes-regression", *given]))


@pytest.mark.parametrize(
    ("task", "dataset", "match"),
    [
        ("nodes", "planted-regression", "needs classes, but 'planted-regression' has 1 targets per node"),
        ("nodes-regression", "csbm", "needs targets, which 'csbm' does not have"),
        ("nodes-multilabel", "planted-regression", "needs targets of 0 and 1"),
    ],
)
def test_data_of_another_task_is_refused(task, dataset, match, tmp_path):
    with pytest.raises(FedGraphError, match=match):
        client(f"task={task}", f"dataset={dataset}", "dataset.nodes=50")


def test_the_round_with_the_lowest_error_is_selected(tmp_path):
    run = fg.run(out=str(tmp_path / "run"), **NUMBERS | SMALL | {"rounds": 6})
    assert run.summary["best_round"] == run.rounds["val_rmse"].idxmin()


def tables(folder: Path, targets: dict[str, np.ndarray]) -> list[str]:
    """Write a node table with targets, and an edge table; return the options that import them."""
    rng = np.random.default_rng(0)
    nodes = len(next(iter(targets.values())))
    frame = pd.DataFrame(
        {"id": [f"n{i}" for i in range(nodes)], "a": rng.normal(size=nodes), "b": rng.normal(size=nodes)}
    )
    frame.assign(**targets).to_csv(folder / "nodes.csv", index=False)
    ends = rng.integers(nodes, size=(2, 4 * nodes))
    pd.DataFrame({"source": frame["id"][ends[0]].to_numpy(), "target": frame["id"][ends[1]].to_numpy()}).to_csv(
        folder / "edges.csv", index=False
    )
    return ["import", "--nodes", str(folder / "nodes.csv"), "--edges", str(folder / "edges.csv"), "--undirected"]


def test_tables_with_targets_become_predictions_in_their_unit(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    rng = np.random.default_rng(1)
    income = 50_000 + 20_000 * rng.normal(size=90)
    age = np.where(rng.random(90) < 0.3, np.nan, 40 + 10 * rng.normal(size=90))
    assert (
        main([*tables(tmp_path, {"income": income, "age": age}), "--predict-columns", "income,age", "--name", "t"]) == 0
    )
    keys = {"task": "nodes-regression", "num_clients": 2, "rounds": 2, "model.hidden": 4, "progress": False}
    run = fg.run(dataset="t", **keys, out=tmp_path / "run")
    errors, ids = [], []
    for index in range(2):
        out = tmp_path / f"{index}.csv"
        assert main(["predict", str(tmp_path / "run"), "--client", str(index), "--out", str(out)]) == 0
        table, graph = pd.read_csv(out), load_client(run.config, index)
        assert list(table) == ["id", "income", "age"]
        test = graph.test_mask.numpy()
        known = graph.targets.numpy()[test], table[["income", "age"]].to_numpy()[test]
        for t in range(2):
            rows = ~np.isnan(known[0][:, t])
            errors.append(root_mean_squared_error(known[0][rows, t], known[1][rows, t]))
        ids += table["id"].tolist()
    assert sorted(ids) == sorted(f"n{i}" for i in range(90))
    assert run.summary["metrics"]["best_val"]["test_rmse"] == pytest.approx(np.mean(errors), rel=1e-5)


def test_parties_agree_on_the_statistics_of_targets_without_sharing_rows(tmp_path, capsys):
    rng, all_rows = np.random.default_rng(1), []
    for number, party in enumerate("abc"):
        (tmp_path / party).mkdir()
        income = 1000 * (1 + number) + 50 * rng.normal(size=90)
        income[: (0, 1, 12)[number]] = np.nan
        all_rows.append(income)
        given = [*tables(tmp_path / party, {"income": income}), "--predict-columns", "income"]
        assert main([*given, "--statistics", str(tmp_path / f"{party}.json")]) == 0
    schema, reports = tmp_path / "schema.yaml", [str(tmp_path / f"{party}.json") for party in "abc"]
    assert main(["schema", "merge", *reports, "--out", str(schema)]) == 0
    counted = np.array([90, 90, 78])  # one missing value is too few to be shared: its row counts as known
    means = np.array([np.nanmean(rows) for rows in all_rows])
    center = counted @ means / counted.sum()
    within = sum(np.nansum((rows - np.nanmean(rows)) ** 2) for rows in all_rows)
    for number, party in enumerate("abc"):
        out = str(tmp_path / "parts" / f"client_{number:04d}.safetensors")
        given = [*tables(tmp_path / party, {"income": all_rows[number]}), "--predict-columns", "income"]
        assert main([*given, "--schema", str(schema), "--client", str(number), "--num-clients", "3", "--out", out]) == 0
        mean, spread = ClientGraph.load(out).target_stats[:, 0].tolist()
        assert mean == pytest.approx(center, rel=1e-6)
        assert spread**2 == pytest.approx((within + counted @ (means - center) ** 2) / counted.sum(), rel=1e-6)
    run = fg.run(graph=tmp_path / "parts", task="nodes-regression", rounds=1, progress=False, out=tmp_path / "run")
    assert run.summary["metrics"]["best_val"]["test_rmse"] < 2000
    other = schema.with_name("other.yaml")
    other.write_text(schema.read_text().replace("income", "wealth"))
    capsys.readouterr()
    assert (
        main([*given, "--schema", str(other), "--client", "0", "--num-clients", "3", "--out", out, "--overwrite"]) == 2
    )
    assert "other.yaml has the targets wealth, got income: pass --predict-columns wealth" in capsys.readouterr().err


def test_tables_with_yes_and_no_become_probabilities(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    label = (np.random.default_rng(1).random((90, 2)) < 0.5).astype(float)
    options = tables(tmp_path, {"old": label[:, 0], "rich": label[:, 1]})
    assert main([*options, "--predict-columns", "old,rich", "--name", "t"]) == 0
    run = fg.run(dataset="t", task="nodes-multilabel", num_clients=2, rounds=1, progress=False, out=tmp_path / "run")
    scores = []
    for index in range(2):
        out = tmp_path / f"{index}.csv"
        assert main(["predict", str(tmp_path / "run"), "--client", str(index), "--out", str(out)]) == 0
        table, graph = pd.read_csv(out), load_client(run.config, index)
        test = graph.test_mask.numpy()
        scores.append(average_precision_score(graph.targets.numpy()[test], table[["old", "rich"]].to_numpy()[test]))
    assert run.summary["metrics"]["best_val"]["test_average_precision"] == pytest.approx(np.mean(scores), rel=1e-5)
    (tmp_path / "new.csv").write_text("id,a,b\nx,0.5,0.1\ny,1,2\n")
    (tmp_path / "new_edges.csv").write_text("source,target\nx,y\n")
    out, new = tmp_path / "p.csv", ["--nodes", str(tmp_path / "new.csv"), "--edges", str(tmp_path / "new_edges.csv")]
    assert main(["predict", str(tmp_path / "run"), *new, "--out", str(out)]) == 0
    table = pd.read_csv(out)
    assert list(table) == ["id", "old", "rich"]
    assert table["id"].tolist() == ["x", "y"]
    assert ((table[["old", "rich"]] > 0) & (table[["old", "rich"]] < 1)).to_numpy().all()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("wealth", "wealth"),
        ("income,income", "--predict-columns names 'income' twice"),
        ("name", "row 1 has 'n0' in column 'name', expected a number"),
    ],
)
def test_targets_that_are_no_numbers_are_refused(tmp_path, capsys, columns, message):
    names = np.array([f"n{i}" for i in range(20)])
    assert main(
        [*tables(tmp_path, {"income": np.arange(20.0), "name": names}), "--predict-columns", columns, "--name", "t"]
    )
    assert message in capsys.readouterr().err


def test_targets_of_graphs_in_memory_share_their_statistics(tmp_path):
    cfg = compose(overrides(NUMBERS, SMALL))
    parts = [load_client(cfg, index) for index in range(2)]
    graphs = [Data(x=one.x, edge_index=one.edge_index, targets=one.targets[:, 0]) for one in parts]
    run = fg.run(graphs=graphs, out=str(tmp_path / "run"), task="nodes-regression", rounds=1, progress=False)
    assert np.isfinite(run.summary["test_rmse"])
    statistics = [load_client(run.config, index).target_stats for index in range(2)]
    assert statistics[0].shape == (2, 1)
    assert torch.equal(statistics[0], statistics[1])
    bad = Data(x=parts[0].x, edge_index=parts[0].edge_index, targets=torch.zeros(3))
    with pytest.raises(FedGraphError, match=r"targets must have a row per node, got 3 for 60 nodes"):
        fg.run(graphs=[bad], task="nodes-regression", out=str(tmp_path / "bad"))

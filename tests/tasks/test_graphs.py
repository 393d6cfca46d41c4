"""task=graphs and task=graphs-regression: known best scores, a plain PyG loop, whole graphs in splits and partitions, engines."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score, r2_score
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, global_add_pool, global_max_pool, global_mean_pool

import fedgraph_flwr as fg
from fedgraph_flwr.cli import main
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.scoring import score
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.checks import check_file
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.data.graph import ClientGraph, Graph, read_tensors
from fedgraph_flwr.data.many_graphs import index_of, one_per_graph, selected, side_by_side
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.models.readout import graphs_of, pooled
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.partition.clients import cut, make, pool
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.sweeps.runs import majority
from fedgraph_flwr.tasks.graphs import OfGraphs
from fedgraph_flwr.testing import assert_same_arrays

CYCLES = {"task": "graphs", "dataset": "cycles"}
COUNTS = {"task": "graphs-regression", "dataset": "planted-counts"}
SMALL = {"num_clients": 2, "rounds": 2, "dataset.graphs": 12, "model.hidden": 8, "progress": False}
TASKS = pytest.mark.parametrize("task", [CYCLES, COUNTS], ids=["classes", "numbers"])


def overrides(*dicts: dict, **more) -> list[str]:
    return [f"{key}={value}" for one in (*dicts, more) for key, value in one.items() if key != "progress"]


def client(*given: str) -> GraphClient:
    cfg = compose([*given, "num_clients=1"])
    return GraphClient(cfg, load_client(cfg, 0))


def order_of(made: GraphClient) -> Tensor:
    """Place of each item among the client's graphs."""
    assert isinstance(made.task, OfGraphs)
    return made.task.order


def answers(made: GraphClient) -> tuple[np.ndarray, np.ndarray]:
    """Outputs and answers of the test graphs."""
    test = made.task.masks["test"]
    return made.predict()[test].numpy(), made.task.y[test].numpy()


def test_walks_tell_cycles_apart_and_sums_over_neighbours_do_not():
    """Class 0 and 1 are alike to every network that sums over neighbours, whatever its depth."""
    given = [*overrides(CYCLES), "dataset.graphs=80", "model.dropout=0", "train.weight_decay=0", "model.hidden=32"]
    walks = client(*given, "model=fedstar", "dataset.high=5", "train.local_steps=120")
    walks.train()
    outputs, y = answers(walks)
    assert accuracy_score(y, outputs.argmax(1)) == 1
    sums = client(*given, "model=gine", "model.layers=3", "train.local_steps=20")
    sums.train()
    outputs, y = answers(sums)
    size = torch.bincount(index_of(sums.graph))[order_of(sums)][sums.task.masks["test"]].numpy()
    assert len({(int(n), round(float(row[0]), 3)) for n, row in zip(size, outputs, strict=True)}) == len(set(size))


@pytest.mark.slow
def test_a_sum_counts_edges_and_a_mean_cannot():
    """The mean degree is the same for all sizes, so that it says little of the number of edges."""
    scores = {}
    for how in ("sum", "mean"):
        given = [
            *overrides(COUNTS),
            "dataset.graphs=100",
            "train.local_steps=300",
            "model.dropout=0",
            "train.weight_decay=0",
        ]
        made = client(*given, "model=gine", "model.layers=1", "model.hidden=32", f"task.pool={how}")
        made.train()
        outputs, y = answers(made)
        scores[how] = r2_score(y[:, 0], outputs[:, 0])
    assert scores["sum"] > 0.98
    assert scores["mean"] < 0.5


@pytest.mark.parametrize(
    ("how", "plain"), [("sum", global_add_pool), ("mean", global_mean_pool), ("max", global_max_pool)]
)
def test_pooling_is_pygs(how, plain):
    index = torch.tensor([0, 0, 1, 2, 2, 2])
    z = torch.randn(6, 4, dtype=torch.float64)
    inputs = Inputs(z, None, **graphs_of(index, torch.device("cpu"), torch.float64))
    torch.testing.assert_close(pooled(z, inputs, how), plain(z, index), atol=1e-14, rtol=0)


@TASKS
def test_one_client_equals_a_plain_pyg_loop(task):
    """GINE by PyG's layers on PyG's own batches of the training graphs."""
    made = client(
        *overrides(task, SMALL, {"model": "gine", "dataset.graphs": 30, "task.batch_size": 0}),
        *("dtype=float64", "model.dropout=0", "train.weight_decay=0"),
    )
    state, graph, width = made.model.state_dict(), made.graph, made.task.width
    layers = [GINEConv(_mlp(state, f"layers.{number}.0.mlp."), train_eps=True).double() for number in range(2)]
    for number, layer in enumerate(layers):  # whose constructor draws its parameters again
        layer.nn = _mlp(state, f"layers.{number}.0.mlp.")
    embed, head, first, last = (
        _linear(state, f"{name}.") for name in ("embed", "head", "readout.first", "readout.last")
    )
    of, items = index_of(graph), one_per_graph(graph)
    stats = graph.target_stats if graph.num_targets else None
    graphs = []
    for number in range(len(items.y)):
        nodes = of == number
        ends = graph.edge_index[:, nodes[graph.edge_index[0]]] - int(nodes.nonzero()[0])
        y = (
            items.y[number : number + 1]
            if stats is None
            else (items.targets[number : number + 1] - stats[0]) / stats[1]
        )
        graphs.append(Data(x=graph.x[nodes].double(), edge_index=ends, y=y))
    modules = nn.ModuleList([*layers, embed, head, first, last])
    optimizer = torch.optim.Adam(modules.parameters(), lr=0.01)

    def outputs(batch: Batch) -> Tensor:
        h, none = embed(batch.x), torch.zeros(batch.edge_index.size(1), 8, dtype=torch.float64)
        for layer in layers:
            h = torch.relu(layer(h, batch.edge_index, none))
        return last(torch.relu(first(global_add_pool(head(h), batch.batch))))

    batch = Batch.from_data_list([graphs[i] for i in items.train_mask.nonzero().view(-1).tolist()])
    for _ in range(made.local_steps):
        p = outputs(batch)
        loss = nn.functional.cross_entropy(p, batch.y) if stats is None else nn.functional.mse_loss(p, batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    made.train()
    expected = outputs(Batch.from_data_list(graphs))
    assert expected.shape[1] == width
    torch.testing.assert_close(made.predict()[order_of(made).argsort()], expected.detach(), atol=1e-11, rtol=0)


def _linear(state: dict[str, Tensor], prefix: str) -> nn.Linear:
    weight, bias = state[f"{prefix}weight"], state[f"{prefix}bias"]
    made = nn.Linear(*weight.shape).double()
    with torch.no_grad():
        made.weight.copy_(weight.T)
        made.bias.copy_(bias)
    return made


def _mlp(state: dict[str, Tensor], prefix: str) -> nn.Module:
    return nn.Sequential(_linear(state, f"{prefix}0."), nn.ReLU(), _linear(state, f"{prefix}2."))


def test_answers_of_other_splits_leave_training_alone():
    cfg = compose([*overrides(CYCLES, SMALL), "num_clients=1"])
    graph = load_client(cfg, 0)
    other = replace(graph, y=torch.where(graph.train_mask, graph.y, 1 - graph.y))
    models = []
    for one in (graph, other):
        made = GraphClient(cfg, one)
        made.train()
        models.append(made.model.state_dict())
    assert_same_arrays(*models)


def test_steps_cover_all_training_graphs_once_per_pass():
    made = client(*overrides(CYCLES, SMALL), "dataset.graphs=40", "task.batch_size=7", "train.local_steps=4")
    seen = []
    made.server_round = 5
    for batch in made.batches():
        assert batch.nodes is None
        assert batch.y.numel() <= 7
        assert made.model(batch.inputs).shape == (batch.y.numel(), 2)
        seen.append(batch.y.numel())
    assert sum(seen) == made.num_train == 24
    whole = client(*overrides(CYCLES, SMALL), "dataset.graphs=40", "task.batch_size=24", "train.local_steps=4")
    assert [batch.y.numel() for batch in whole.batches()] == [24] * 4


@pytest.mark.parametrize("kind", ["ratio", "kfold"])
@pytest.mark.parametrize("partition", ["random", "dirichlet", "planted"])
def test_graphs_stay_whole(kind, partition):
    given = [*overrides(CYCLES, SMALL), f"split.kind={kind}", f"partition={partition}", "dataset.graphs=30"]
    cfg = compose([*given, *(["partition.min_size=5"] if partition == "dirichlet" else [])])
    graph = load(cfg.dataset, seed=0, num_clients=2)
    clients = make(graph, cfg)
    assert sum(len(one_per_graph(one).y) for one in clients) == 60
    for one in clients:
        check_file(one, "client")
        assert one.cut_out.size(1) == 0
        per = one_per_graph(one)
        index = index_of(one)
        for mask in ("train_mask", "val_mask", "test_mask"):
            assert torch.equal(getattr(one, mask), getattr(per, mask)[index])
            assert bool(getattr(per, mask).any())
    both = pool(clients)
    assert torch.equal(one_per_graph(both).y.sort().values, one_per_graph(graph).y.sort().values)


def from_graphs(parts, edge_attr=None, **more):
    """Graphs as one, from features [n, F] and edges [2, e] of each."""
    size = torch.tensor([len(x) for x, _ in parts])
    edges = [index.long() + start for (_, index), start in zip(parts, size.cumsum(0) - size, strict=True)]
    attr = None if edge_attr is None else torch.cat(edge_attr)
    return side_by_side(torch.cat([x for x, _ in parts]), torch.cat(edges, dim=1), size, edge_attr=attr, **more)


def test_selected_graphs_are_those_that_were_put_together():
    parts = [(torch.randn(n, 2), torch.stack([torch.arange(n), torch.arange(n).roll(1)])) for n in (1, 3, 2, 5)]
    graph = from_graphs(parts, y=torch.tensor([0, 1, -1, 1]), num_classes=2, name="four")
    chosen = selected(graph, torch.tensor([1, 3]))
    again = from_graphs([parts[1], parts[3]], y=torch.tensor([1, 1]), num_classes=2)
    assert torch.equal(chosen.x, again.x)
    assert torch.equal(chosen.edge_index, again.edge_index)
    assert torch.equal(chosen.y, again.y)
    assert one_per_graph(graph).y.tolist() == [0, 1, -1, 1]
    with pytest.raises(FedGraphError, match="graph 1 of 'none' has no nodes"):
        from_graphs([parts[0], (torch.zeros(0, 2), torch.zeros(2, 0))], name="none")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"graph_id": torch.tensor([0, 1, 0, 1])}, "the nodes of graph 0 are not side by side"),
        ({"edge_index": torch.tensor([[0], [3]])}, "edge 0 joins two graphs"),
    ],
)
def test_files_whose_graphs_do_not_fit_are_refused(change, match):
    graph = from_graphs([(torch.ones(2, 1), torch.tensor([[0], [1]]))] * 2, y=torch.tensor([0, 1]), num_classes=2)
    assert check_file(graph, "file") is graph
    with pytest.raises(FedGraphError, match=match):
        check_file(replace(graph, **change), "file")


def test_a_graph_has_one_answer():
    graph = from_graphs(
        [(torch.ones(2, 1), torch.tensor([[0], [1]]))] * 2, y=torch.tensor([0, 1]), num_classes=2, name="two"
    )
    mixed = cut(replace(graph, y=torch.tensor([0, 1, 1, 1])), [torch.arange(4)])[0]
    with pytest.raises(FedGraphError, match="the nodes of graph 0 of 'two' differ in y"):
        GraphClient(compose(["task=graphs", "num_clients=1"]), mixed)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (["task=graphs", "dataset=csbm"], "needs many graphs, but 'csbm' is one"),
        (["task=nodes", "dataset=cycles"], "cycles holds many graphs with one label each"),
        (["task=graphs", "dataset=planted-counts"], "has 2 targets per graph: set task=graphs-regression"),
        (["task=graphs-regression", "dataset=cycles"], "needs targets, which 'cycles' does not have"),
    ],
)
def test_data_of_another_task_is_refused(given, match):
    with pytest.raises(FedGraphError, match=match):
        client(*given)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (["strategy=fedgta"], "strategy=fedgta does not serve task=graphs"),
        (["train.sampler=neighbors"], "does not support task=graphs"),
        (["task.loss=huber"], "task=graphs does not read task.loss=huber"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(given, match):
    with pytest.raises(FedGraphError, match=match):
        check_method(compose(["task=graphs", "dataset=cycles", *given]))


def trained(path: Path) -> dict[str, Tensor]:
    return read_tensors(path / "model_final.safetensors")[0]


@pytest.fixture(scope="module", params=[CYCLES, COUNTS], ids=["classes", "numbers"])
def inline(request, tmp_path_factory) -> tuple[dict, Path]:
    """A finished run in batches, and its keys."""
    out = tmp_path_factory.mktemp("graphs") / "inline"
    keys = request.param | {"task.batch_size": 3}
    fg.run(out=str(out), checkpoint_every=1, **keys | SMALL)
    return keys, out


def test_a_resumed_run_gives_the_same_bits(inline, tmp_path):
    keys, out = inline
    fg.run(out=str(tmp_path / "run"), checkpoint_every=1, **keys | SMALL | {"rounds": 1})
    fg.load_run(tmp_path / "run").resume(rounds=2, progress=False)
    assert_same_arrays(trained(tmp_path / "run"), trained(out))


def test_predictions_of_stored_graphs_are_those_that_were_scored(inline, tmp_path, capsys):
    keys, out = inline
    run, scores = fg.load_run(out), []
    for index in range(2):
        assert main(["predict", str(out), "--client", str(index), "--out", str(tmp_path / f"{index}.csv")]) == 0
        assert "on 12 graphs" in capsys.readouterr().out
        table, graph = pd.read_csv(tmp_path / f"{index}.csv"), load_client(run.config, index)
        items = one_per_graph(graph)
        test = items.test_mask.numpy()
        assert table["id"].tolist() == graph.graph_id.unique_consecutive().tolist()
        if keys["task"] == "graphs":
            scores.append(accuracy_score(items.y[test], table["p_1"][test] > 0.5))
        else:
            errors = table[["target_0", "target_1"]].to_numpy()[test] - items.targets[test].numpy()
            scores.append(np.sqrt((errors**2).mean(0)).mean())
    name = "test_accuracy" if keys["task"] == "graphs" else "test_rmse"
    assert run.summary["metrics"]["best_val"][name] == pytest.approx(np.mean(scores), rel=1e-5)
    page = run.report(tmp_path / "report.html").read_text()
    assert "test graphs" in page


@TASKS
@pytest.mark.parametrize(
    "keys",
    [
        {"privacy.secagg": True, "num_clients": 3},
        {"privacy.dp": "server_fixed", "privacy.noise_multiplier": 1.0, "strategy.weighting": "uniform"},
        {"strategy": "central"},
        {"strategy": "local"},
        {"strategy": "gcfl", "strategy.warmup": 0},
        {"strategy": "fedstar"},
    ],
    ids=str,
)
def test_graphs_run_under_protections_and_references(task, keys, tmp_path):
    summary = fg.run(out=str(tmp_path / "run"), **task | SMALL | keys).summary
    assert np.isfinite(summary["test_rmse" if task is COUNTS else "test_accuracy"])


def test_one_new_graph_is_predicted(inline):
    keys, out = inline
    run = fg.load_run(out)
    graph: ClientGraph = load_client(run.config, 0)
    one: Graph = selected(graph, torch.tensor([4]))
    data = Data(x=one.x, edge_index=one.edge_index)
    prediction, every = run.predict(data), run.predict(graph, client=None)
    values = "probabilities" if keys["task"] == "graphs" else "values"
    np.testing.assert_allclose(getattr(prediction, values)[0], getattr(every, values)[4], rtol=1e-5)


def several(numbers: bool, count: int = 12) -> list[list[Data]]:
    """Two clients with rings and paths of three to five nodes."""
    parties: list[list[Data]] = []
    for party in range(2):
        parties.append([])
        for place in range(count):
            n, ring = 3 + place % 3, place % 2
            ends = torch.stack([torch.arange(n), torch.arange(n).roll(-1)])[:, : n if ring else n - 1]
            y = torch.tensor([float(n), float(party)]) if numbers else torch.tensor([ring])
            parties[-1].append(Data(x=torch.ones(n, 2), edge_index=torch.cat([ends, ends.flip(0)], 1), y=y))
    return parties


@pytest.mark.parametrize("numbers", [False, True], ids=["classes", "numbers"])
def test_lists_of_data_are_clients_with_many_graphs(numbers, tmp_path):
    task = "graphs-regression" if numbers else "graphs"
    given, keys = several(numbers), {"rounds": 1, "model.hidden": 4, "progress": False}
    run = fg.run(graphs=given, task=task, **keys, out=tmp_path / "run")
    for client, graphs in enumerate(given):
        stored = load_client(run.config, client)
        items = one_per_graph(stored)
        answer = items.targets.tolist() if numbers else items.y.tolist()
        assert answer == [data.y.tolist() if numbers else int(data.y) for data in graphs]
        for place, data in enumerate(graphs):
            one = selected(stored, torch.tensor([place]))
            assert torch.equal(one.x, data.x)
            assert torch.equal(one.edge_index, data.edge_index)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda given: [given[0], given[1][0]],
            r"graphs\[1\] must be a list of PyG Data like the others, .*, got Data",
        ),
        (lambda given: [given[0], []], r"graphs\[1\] must be a list of PyG Data like the others.*got an empty list"),
        (lambda given: [given[0], [*given[1], Data(x=torch.ones(2, 2))]], r"graphs\[1\]\[12\] must be a PyG Data with"),
        (
            lambda given: [
                given[0],
                [Data(x=torch.ones(2, 2), edge_index=torch.zeros(2, 0).long(), y=torch.zeros(1).long(), edge_attr=[])],
            ],
            r"graphs\[1\]\[0\] must be a PyG Data with tensors x, edge_index, edge_attr and y",
        ),
        (
            lambda given: [[*given[0][:-1], _wide(given[0][-1])], given[1]],
            r"graphs\[0\]\[11\] has columns of x 3, and graphs\[0\]\[0\] 2",
        ),
        (
            lambda given: [[*given[0][:-1], _doubled(given[0][-1])], given[1]],
            r"graphs\[0\]\[11\] must have .* as y one integer class",
        ),
    ],
)
def test_lists_that_do_not_fit_are_refused(change, match, tmp_path):
    with pytest.raises(FedGraphError, match=match):
        fg.run(graphs=change(several(False)), task="graphs", rounds=1, progress=False, out=tmp_path / "run")


def _wide(data: Data) -> Data:
    return Data(x=torch.ones(data.num_nodes, 3), edge_index=data.edge_index, y=data.y)


def _doubled(data: Data) -> Data:
    return Data(x=data.x, edge_index=data.edge_index, y=torch.tensor([1, 1]))


def test_a_policy_counts_graphs():
    """Not nodes: a step on few graphs, or a class with few scored graphs, could reveal them."""
    made = client(*overrides(CYCLES, SMALL), "dataset.graphs=40", "task.batch_size=3")
    made.policy = Policy(min_nodes=5)
    assert made.graph.num_nodes > 100
    with pytest.raises(FedGraphError, match=r"client 0 has 3 training graphs in a step.*at least 5"):
        made.train()
    counts = made.task.y[made.task.masks["test"]].bincount()
    assert sum(score(made, made.predict())["test-count"]) == int(counts[counts >= 5].sum()) < int(counts.sum())
    made.policy = Policy(min_nodes=9)
    assert sum(made.evaluate([], {})[2]["test-count"]) == 0


def test_the_sweeps_majority_counts_graphs():
    given = [*overrides(CYCLES, SMALL), "dataset.graphs=40"]
    assert 0.3 <= majority(given) <= 0.7
    numbers = [*overrides(COUNTS, SMALL), "dataset.graphs=40", "evaluation.metric=r2"]
    assert majority(numbers) == pytest.approx(0, abs=0.3)  # the mean of the training graphs

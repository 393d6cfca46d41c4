"""task=edges: labels of stored edges, without leaks, and scores of a plain loop."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from torch_geometric.nn import GCNConv

import fedgraph_flwr as fg
from fedgraph_flwr import cli
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.scoring import score
from fedgraph_flwr.config import SplitConfig, compose
from fedgraph_flwr.data import payments
from fedgraph_flwr.data.far_ends import with_far_ends
from fedgraph_flwr.data.graph import ClientGraph, Graph, read_tensors
from fedgraph_flwr.data.payment_names import Names, payment_names
from fedgraph_flwr.data.split import split_graph
from fedgraph_flwr.data.value_formats import time_texts
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method, client_class
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.partition.clients import cut, pool
from fedgraph_flwr.party.use.explain import explain
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.store.folder import INPUT_SPEC
from fedgraph_flwr.sweeps.runs import majority
from fedgraph_flwr.tasks import edges
from fedgraph_flwr.tasks.edges import Edges
from fedgraph_flwr.testing import assert_same_arrays
from tests.methods.small_runs import serving

WORDS = ["task=edges", "model.hidden=8", "num_clients=1", "rounds=2", "dtype=float64", "model.dropout=0"]

NODES, EDGES, FIRST, SECOND = 40, 300, 599, 799
CLUSTERS = ["train.sampler=clusters", "train.clusters=5", "train.clusters_per_batch=2"]


def random_graph(seed: int = 0) -> Graph:
    """A multigraph whose edges have two features, times and a label that depends on the first feature."""
    rng = np.random.default_rng(seed)
    attr = rng.standard_normal((EDGES, 2))
    none = torch.zeros(NODES, dtype=torch.bool)
    return Graph(
        x=torch.from_numpy(rng.standard_normal((NODES, 5))).float(),
        edge_index=torch.from_numpy(rng.integers(NODES, size=(2, EDGES))),
        y=torch.arange(NODES) % 2,
        train_mask=torch.ones(NODES, dtype=torch.bool),
        val_mask=none,
        test_mask=none.clone(),
        num_classes=2,
        num_edge_classes=2,
        edge_attr=torch.from_numpy(attr).float(),
        edge_time=torch.from_numpy(rng.permutation(1000)[:EDGES]),
        edge_y=torch.from_numpy((attr[:, 0] + rng.standard_normal(EDGES) > 0.5).astype(np.int64)),
    )


def clients_of(graph: Graph, parts: int = 1) -> list[ClientGraph]:
    return cut(graph, [torch.arange(NODES)[torch.arange(NODES) % parts == i] for i in range(parts)])


def client(graph: Any, *overrides: str) -> GraphClient:
    part = graph if isinstance(graph, ClientGraph) else clients_of(graph)[0]
    return GraphClient(compose([*WORDS, *overrides]), part)


def task_of(made: GraphClient) -> Edges:
    assert isinstance(made.task, Edges)
    return made.task


def timed(graph: Graph) -> Graph:
    """The graph, split at two times."""
    return split_graph(graph, SplitConfig(kind="temporal", until=[FIRST, SECOND]), seed=0)


def with_noise_after(graph: Graph, time: int, seed: int = 9) -> Graph:
    """The graph with other ends, features and labels of all edges after a time, and fewer of them."""
    rng = np.random.default_rng(seed)
    late = graph.edge_time > time
    count = int(late.sum())
    ends, attr, y = graph.edge_index.clone(), graph.edge_attr.clone(), graph.edge_y.clone()
    ends[:, late] = torch.from_numpy(rng.integers(NODES, size=(2, count)))
    attr[late] = 1e3 * torch.from_numpy(rng.standard_normal((count, 2))).float()
    y[late] = torch.from_numpy(rng.integers(2, size=count))
    kept = (~late | (torch.rand(EDGES, generator=torch.Generator().manual_seed(1)) < 0.7)).nonzero().view(-1)
    changed = replace(graph, edge_index=ends, edge_attr=attr, edge_y=y)
    return changed.with_edges(ends[:, kept], kept)


def trained(made: GraphClient) -> dict[str, torch.Tensor]:
    made.train()
    return {name: tensor.clone() for name, tensor in made.model.state_dict().items()}


MODELS = ["gine", "gatv2", "transformer", "pna", "gcn", "sage", "mlp", "gat", "acm"]


@pytest.mark.parametrize("model", MODELS)
def test_models_predict_each_edge(model):
    made = client(random_graph(), f"model={model}", "model.hidden=8")
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    assert made.predict().shape == (EDGES, 2)
    made.train()
    assert {name.split(".")[0] for name in made.model.head_names()} >= {"readout"}
    changed = {name for name, tensor in made.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert any(name.startswith("readout.") for name in changed)
    assert any(not name.startswith("readout.") for name in changed)


def plain_loop(graph: Graph, made: GraphClient, items: dict[str, torch.Tensor], steps: int) -> torch.nn.ModuleDict:
    """PyG's layers and a plain readout on [z_u ‖ z_v ‖ e] in float64, trained from the client's own start."""
    convolutions = {"layers.0": GCNConv(5, 8).double(), "head": GCNConv(8, 8).double()}
    first, last = torch.nn.Linear(18, 8).double(), torch.nn.Linear(8, 2).double()
    tensors = made.model.state_dict()
    with torch.no_grad():
        for name, layer in convolutions.items():
            layer.lin.weight.copy_(tensors[f"{name}.weight"].T)
            layer.bias.copy_(tensors[f"{name}.bias"])
        parts = [tensors[f"readout.{name}"] for name in ("source.weight", "target.weight", "edge")]
        first.weight.copy_(torch.cat(parts).T)
        first.bias.copy_(tensors["readout.source.bias"])
        last.weight.copy_(tensors["readout.last.weight"].T)
        last.bias.copy_(tensors["readout.last.bias"])
    net = torch.nn.ModuleDict({"a": convolutions["layers.0"], "b": convolutions["head"], "first": first, "last": last})
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    x, edges = graph.x.double(), graph.edge_index
    rows = items["train"]

    def logits() -> torch.Tensor:
        z = net["b"](torch.relu(net["a"](x, edges)), edges)
        e = torch.cat([z[edges[0]], z[edges[1]], graph.edge_attr.double()], dim=1)
        return net["last"](torch.relu(net["first"](e)))

    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(logits()[rows], graph.edge_y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.logits = logits().detach()
    return net


def places(made: GraphClient) -> dict[str, torch.Tensor]:
    """Stored places of the edges of each split, of a client that owns all nodes."""
    task = task_of(made)
    return {split: task.order[mask] for split, mask in task.masks.items()}


def test_one_client_equals_a_plain_pyg_loop_and_scikit_learn():
    graph = random_graph()
    made = client(graph, "model=gcn", "train.local_steps=3", "train.weight_decay=0", "train.lr=0.01")
    items = places(made)
    assert sorted(torch.cat(list(items.values())).tolist()) == list(range(EDGES))
    assert [len(items[split]) for split in ("train", "val", "test")] == [180, 60, 60]
    net = plain_loop(graph, made, items, steps=3)
    made.train()
    logits = made.predict()
    assert torch.allclose(logits, net.logits[task_of(made).order], rtol=0, atol=1e-12)
    scores = score(made, logits)
    chance = net.logits.softmax(1)[:, 1].numpy()
    y, test = graph.edge_y.numpy(), items["test"].numpy()
    assert scores["test-auc"][0] == pytest.approx(roc_auc_score(y[test], chance[test]))
    assert scores["test-average_precision"][0] == pytest.approx(average_precision_score(y[test], chance[test]))
    assert scores["test-macro_f1"][0] == pytest.approx(f1_score(y[test], chance[test] > 0.5, average="macro"))
    val = items["val"].numpy()
    best = max(f1_score(y[val], chance[val] >= t) for t in chance[val])
    assert scores["val-f1_at_threshold"][0] == pytest.approx(best)


def test_central_equals_one_client():
    graph = clients_of(random_graph())[0]
    alone, central = client(graph, "model=gine"), client(pool([graph]), "model=gine", "strategy=central")
    assert_same_arrays(trained(alone), trained(central))
    assert torch.equal(alone.predict(), central.predict())


@pytest.mark.parametrize("overrides", [(), ("split.stratify=true",)])
def test_each_edge_is_an_item_of_the_owner_of_its_source(overrides):
    """Clients and the pooled graph split the same edges alike, so that their scores are of the same items."""
    graph = random_graph()
    clients = clients_of(graph, 3)
    tasks = [task_of(client(one, *overrides)) for one in clients]
    whole = task_of(client(pool(clients), *overrides))
    assert sum(task.y.numel() for task in tasks) == EDGES == whole.y.numel()
    for split in ("train", "val", "test"):
        expected = sorted(map(tuple, whole.ends[:, whole.masks[split]].T.tolist()))
        lists = [map(tuple, task.ends[:, task.masks[split]].T.tolist()) for task in tasks]
        assert sorted(edge for one in lists for edge in one) == expected
        for number, task in enumerate(tasks):
            mask = whole.masks[split] & (whole.part == number)
            assert torch.equal(torch.sort(whole.y[mask]).values, torch.sort(task.y[task.masks[split]]).values)
    for number, task in enumerate(tasks):
        assert (task.ends[0] % 3 == number).all()
        if overrides:
            shares = [float(task.y[task.masks[split]].double().mean()) for split in ("train", "val", "test")]
            assert max(shares) - min(shares) < 0.1
    inner = task_of(client(clients[0], "task.between=false"))
    assert inner.y.numel() == clients[0].edge_index.size(1) == inner.graph.edge_index.size(1)


def test_foreign_ends_are_nodes_without_features():
    one = clients_of(random_graph(), 3)[0]
    whole = with_far_ends(one)
    assert whole.edge_index.size(1) == sum(cut.size(1) for cut in (one.edge_index, one.cut_out, one.cut_in))
    assert not whole.x[one.num_nodes :].any()
    leaving = whole.edge_index[:, one.edge_index.size(1) :][:, : one.cut_out.size(1)]
    assert torch.equal(whole.node_id[leaving[1]], one.cut_out[1])


@pytest.mark.parametrize("model", ["gine", "gcn"])
def test_labels_of_scored_edges_change_no_gradient(model):
    graph = random_graph()
    made = client(graph, f"model={model}")
    items = places(made)
    y = graph.edge_y.clone()
    for split in ("val", "test"):
        y[items[split]] = 1 - y[items[split]]
    assert_same_arrays(trained(made), trained(client(replace(graph, edge_y=y), f"model={model}")))
    y[items["train"][0]] = 1 - y[items["train"][0]]
    other = trained(client(replace(graph, edge_y=y), f"model={model}"))
    assert not torch.equal(made.model.state_dict()["readout.last.weight"], other["readout.last.weight"])


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("model", ["gine", "gcn", "transformer"])
def test_training_reads_no_edge_after_the_cut(model, parts):
    """With everything after the first time replaced by noise, training has the same bits."""
    graph = random_graph()
    runs = [
        client(clients_of(timed(g), parts)[0], f"model={model}", "model.hidden=8", "split.kind=temporal")
        for g in (graph, with_noise_after(graph, FIRST))
    ]
    assert_same_arrays(trained(runs[0]), trained(runs[1]))
    assert runs[0].num_train == int((clients_of(timed(graph), parts)[0].edge_split == 0).sum()) + int(
        (clients_of(timed(graph), parts)[0].cut_out_edge_split == 0).sum()
    )


@pytest.mark.parametrize("parts", [1, 3])
def test_parts_of_the_graph_read_no_edge_after_the_cut(parts):
    overrides = ["model=multi_gine", "split.kind=temporal", *CLUSTERS, "train.local_epochs=2"]
    runs = [
        trained(client(clients_of(timed(g), parts)[0], *overrides))
        for g in (random_graph(), with_noise_after(random_graph(), FIRST))
    ]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("model", ["gine", "multi_gine", "gcn"])
def test_all_parts_in_one_batch_are_the_full_batch(model, parts):
    """Items, loss and gradients, to 1e-12; inner edges and those to and from others."""
    overrides = [f"model={model}", "split.kind=temporal", *CLUSTERS, "train.clusters_per_batch=5"]
    made = client(clients_of(timed(random_graph()), parts)[0], *overrides)
    made.model.eval()
    passes = []
    for batch in (next(made.batches()), made.batch):
        made.model.zero_grad()
        made.batch = batch
        loss = made.loss()
        loss.backward()
        passes.append((batch.y, loss, *(p.grad for p in made.model.parameters())))
    assert torch.equal(passes[0][0], passes[1][0])
    assert len(passes[0][0]) > 20
    for one, other in zip(passes[0][1:], passes[1][1:], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_an_epoch_predicts_each_training_edge_within_a_part_once():
    """Those between parts where a batch holds both; a batch reads the edges between its own nodes only."""
    made = client(timed(random_graph()), "model=multi_gine", "split.kind=temporal", *CLUSTERS)
    task, sampled = task_of(made), made.sampled
    ends = task.graph.edge_index[:, task.train_items[0]].numpy()
    part = np.empty(NODES, dtype=np.int64)
    for number, nodes in sampled.members.items():
        part[nodes] = number
    seen = []
    for index in range(sampled.per_epoch):
        held = np.isin(part, sampled.part(1, index))
        expected = held[ends].all(axis=0)
        batch = sampled.step(1, 0, index)
        assert batch.y.tolist() == made.batch.y.numpy()[expected].tolist()
        places = np.flatnonzero(held)
        np.testing.assert_array_equal(places[batch.inputs.item_index.numpy()], ends[:, expected])
        seen += np.flatnonzero(expected & (part[ends[0]] == part[ends[1]])).tolist()
    assert sorted(seen) == np.flatnonzero(part[ends[0]] == part[ends[1]]).tolist()
    assert sampled.per_epoch == 3


@pytest.mark.parametrize("parts", [1, 3])
def test_validation_reads_no_edge_after_the_second_cut(parts):
    graph = random_graph()
    runs = [
        client(clients_of(timed(g), parts)[0], "model=gine", "split.kind=temporal")
        for g in (graph, with_noise_after(graph, SECOND))
    ]
    scores = [score(made, made.predict()) for made in runs]
    assert scores[0]["val-loss"] == scores[1]["val-loss"]
    assert scores[0]["test-loss"] != scores[1]["test-loss"]
    third = client(clients_of(timed(with_noise_after(graph, FIRST)), parts)[0], "model=gine", "split.kind=temporal")
    assert score(third, third.predict())["val-loss"] != scores[0]["val-loss"]


def test_each_stage_predicts_as_a_graph_that_ends_with_it():
    graph = timed(random_graph())
    made = client(graph, "model=gine", "split.kind=temporal", "split.step=null")
    task, logits = task_of(made), made.predict()
    for stage, time in ((0, FIRST), (1, SECOND)):
        kept = (graph.edge_time <= time).nonzero().view(-1)
        shorter = graph.with_edges(graph.edge_index[:, kept], kept)
        shorter = replace(shorter, edge_split=torch.zeros(0, dtype=torch.int8))
        alone = client(shorter, "model=gine", "split.train=1", "split.val=0", "split.test=0")
        alone.model.load_state_dict(made.model.state_dict())
        expected = torch.zeros(EDGES, 2, dtype=torch.float64)
        expected[kept[task_of(alone).order]] = alone.predict()
        rows = task.point == task.points.index((stage, None))
        assert torch.equal(logits[rows], expected[task.order[rows]])


HOUR = 3600
BY_STEP = ["model=multi_gine", "split.kind=temporal", "split.step=50h"]


def hourly(graph: Graph) -> Graph:
    """The graph with hours for seconds."""
    graph = replace(graph, edge_time=graph.edge_time * HOUR)
    return split_graph(graph, SplitConfig(kind="temporal", until=[FIRST * HOUR, SECOND * HOUR]), seed=0)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("sampler", [[], ["train.sampler=neighbors", "train.fanout=[-1,-1]"]], ids=["whole", "blocks"])
def test_a_score_reads_no_edge_after_the_end_of_its_step(parts, sampler, monkeypatch):
    """Noise after an hour changes no score of edges before, and some after; inputs made once or for each scoring."""
    graph, end = random_graph(), 700  # the end of a step of 50 hours, between both cuts
    outputs = []
    for at_once in (1 << 27, 0):
        monkeypatch.setattr(edges, "AT_ONCE", at_once)
        runs = [
            client(clients_of(hourly(g), parts)[0], *BY_STEP, *sampler)
            for g in (graph, with_noise_after(graph, end - 1))
        ]
        scored = [
            {
                tuple(ends): logits
                for ends, logits, time in zip(
                    (task_of(made).ends.T * 1000 + task_of(made).time[:, None] // HOUR).tolist(),
                    made.predict().tolist(),
                    (task_of(made).time // HOUR).tolist(),
                    strict=True,
                )
                if time < end
            }
            for made in runs
        ]
        assert scored[0] == scored[1]
        assert len(scored[0]) > 40
        outputs.append(scored[0])
        later = client(clients_of(hourly(with_noise_after(graph, 640)), parts)[0], *BY_STEP, *sampler)
        assert score(later, later.predict())["val-loss"] != score(runs[0], runs[0].predict())["val-loss"]
    assert outputs[0] == outputs[1]


def test_each_step_predicts_as_a_graph_that_ends_with_it():
    graph = hourly(random_graph())
    made = client(graph, *BY_STEP)
    task, logits = task_of(made), made.predict()
    ends = {0: FIRST * HOUR, 1: SECOND * HOUR, 2: 1000 * HOUR}
    assert task.points == [(0, None), *((1 + (k > 16), 50 * k * HOUR - 1) for k in range(13, 21))]
    for number, (stage, last) in enumerate(task.points):
        kept = (graph.edge_time <= min(ends[stage], ends[2] if last is None else last)).nonzero().view(-1)
        shorter = replace(
            graph.with_edges(graph.edge_index[:, kept], kept), edge_split=torch.zeros(0, dtype=torch.int8)
        )
        alone = client(shorter, "model=multi_gine", "split.train=1", "split.val=0", "split.test=0")
        alone.model.load_state_dict(made.model.state_dict())
        expected = torch.zeros(EDGES, 2, dtype=torch.float64)
        expected[kept[task_of(alone).order]] = alone.predict()
        rows = task.point == number
        torch.testing.assert_close(logits[rows], expected[task.order[rows]], rtol=0, atol=1e-12)


def test_unknown_labels_are_predicted_but_not_used():
    graph = random_graph()
    graph.edge_y[:50] = -1
    made = client(graph)
    task = task_of(made)
    used = torch.stack(list(task.masks.values())).any(0)
    assert int(used.sum()) == EDGES - 50
    assert set(task.order[~used].tolist()) == set(range(50))
    assert made.predict().shape[0] == EDGES


def test_fedper_keeps_the_readout_private():
    made = client(random_graph(), "strategy=fedper")
    assert not any(name.startswith("readout.") for name in made.shared)
    assert any(name.startswith("readout.") for name in made.model.tensors)


PAYMENTS = {
    **{"dataset": "payments", "dataset.accounts": 150, "dataset.background": 600, "dataset.per_kind": 2},
    **{"task": "edges", "num_clients": 3, "rounds": 2, "model.hidden": 8, "progress": False},
}


def final(path: Path) -> dict[str, torch.Tensor]:
    """The final shared parameters of a run's folder."""
    return read_tensors(path / "model_final.safetensors")[0]


@pytest.fixture(scope="module")
def inline(tmp_path_factory) -> Path:
    """The folder of a finished run."""
    out = tmp_path_factory.mktemp("edges") / "inline"
    run = fg.run(out=str(out), checkpoint_every=1, **PAYMENTS)
    assert run.summary["headline"] == "test_average_precision at best_val"
    return out


def test_a_resumed_run_gives_the_same_bits(inline, tmp_path):
    fg.run(out=str(tmp_path / "run"), checkpoint_every=1, **PAYMENTS | {"rounds": 1})
    fg.load_run(tmp_path / "run").resume(rounds=2, progress=False)
    assert_same_arrays(final(tmp_path / "run"), final(inline))


@pytest.mark.parametrize(
    "keys",
    [
        {"privacy.secagg": True, "split.kind": "temporal"},
        {"privacy.dp": "server_fixed", "privacy.noise_multiplier": 1.0, "strategy.weighting": "uniform"},
        {"strategy": "central", "train.loss": "weighted", "model": "gine"},
        {"strategy": "local", "train.loss": "focal"},
    ],
    ids=str,
)
def test_edges_run_under_protections_and_references(keys, tmp_path):
    run = fg.run(out=str(tmp_path / "run"), **PAYMENTS | keys)
    assert 0 < run.summary["test_average_precision"] <= 1


def test_predictions_list_edges_as_they_were_scored(inline):
    run = fg.load_run(inline)
    predictions = run.predict(client=1)
    frame = predictions.to_frame()
    assert list(frame.columns) == ["edge", "source", "target", "p_clean", "p_laundering", "class"]
    graph = load_client(run.config, 1)
    inner = graph.edge_index.size(1)
    assert len(frame) == inner + graph.cut_out.size(1)
    assert frame["source"][:inner].tolist() == graph.node_id[graph.edge_index[0]].tolist()
    assert frame["target"][inner:].tolist() == graph.cut_out[1].tolist()
    made = client_class(run.config)(run.config, graph)
    made.model.load_state_dict(final(inline), strict=False)
    expected = made.predict()[task_of(made).order.argsort()]
    assert torch.equal(load_predictor(inline, 1, "last").predict(graph).logits, expected)


def test_reasons_of_built_in_payments_have_names_and_days(inline, tmp_path):
    predictor = load_predictor(inline, 1)
    graph = predictor.party_graph()
    spec = payments.PaymentsSpec(accounts=150, background=600, per_kind=2)
    made = payments.generate(spec, seed=0, banks=3)
    every = {
        f"amount {amount:,.0f}" if amount >= 99.995 else f"amount {amount:.2f}".removesuffix(".00")
        for amount in made.amount
    }
    explanations = explain(predictor, graph, None, None, ["3", "7"], checks=False)
    for reasons in explanations:
        frame = reasons.to_frame(400)
        text = frame[frame["name"] == "amount"]["text"]
        assert set(text.str.replace(r", usually.*", "", regex=True)) <= every
        assert "format=1" in reasons.columns
        assert not any("column" in name for name in reasons.columns)
    frame = predictor.predict(graph)
    assert (
        time_texts(frame.time)[0] == f"day {frame.time[0] // 86_400} {pd.Timestamp(frame.time[0], unit='s'):%H:%M:%S}"
    )
    assert time_texts(np.array([1_700_000_000])).tolist() == ["2023-11-14T22:13:20"]


SMALL = ["accounts=150", "background=600", "per_kind=2"]


def test_a_run_whose_classes_are_numbers_stays_readable(inline, tmp_path, capsys):
    old = tmp_path / "old"
    shutil.copytree(inline, old)
    spec = json.loads((old / INPUT_SPEC).read_text())
    assert spec["classes"] == ["clean", "laundering"]
    (old / INPUT_SPEC).write_text(json.dumps(spec | {"classes": ["0", "1"]}))
    summary = json.loads((old / "summary.json").read_text())
    assert summary.pop("classes") == spec["classes"]
    (old / "summary.json").write_text(json.dumps(summary))
    new, before = (fg.load_run(path).predict(client=1).to_frame() for path in (inline, old))
    renamed = new.rename(columns={"p_clean": "p_0", "p_laundering": "p_1"})
    renamed["class"] = renamed["class"].map({"clean": "0", "laundering": "1"})
    pd.testing.assert_frame_equal(before, renamed)
    out = tmp_path / "alerts.csv"
    for more in (["--budget", "1"], ["--out", str(out), "--explained", "1"]):
        assert cli.main(["alerts", str(old), "--client", "1", *more]) == 0, capsys.readouterr().err
    listed = pd.read_csv(out)
    assert len(listed)
    assert listed["time"].str.fullmatch(r"day \d+ \d\d:\d\d:\d\d").all()
    assert "column" not in str(listed.iloc[0]["reasons"])
    assert (fg.load_run(old).report(tmp_path / "old.html")).is_file()


def test_only_generated_payments_and_published_ones_have_names(inline, tmp_path):
    assert payment_names(compose(["dataset=csbm"]).dataset) == Names()
    dataset = replace(compose(["dataset=payments"]).dataset, source="my_package:payments", params={})
    assert payment_names(dataset) == Names()
    predictor = load_predictor(inline, 1)
    assert predictor.built_in.edges
    for change in ({"graph": str(tmp_path)}, {"engine": "fleet"}):
        cfg = replace(predictor.cfg, **change)
        assert replace(predictor, cfg=cfg).built_in == Names()
    assert replace(predictor, file=tmp_path / "own.safetensors").built_in == Names()
    turned = payment_names(replace(compose(["dataset=payments"]).dataset, undirected=True))
    assert (turned.classes, turned.nodes, turned.edges) == (("clean", "laundering"), (), ())


def test_times_of_tables_stay_dates():
    day = 86_400
    assert time_texts(np.array([-day, 1])).tolist() == ["1969-12-31T00:00:00", "1970-01-01T00:00:01"]
    assert time_texts(np.array([0, 3 * day + 61])).tolist() == ["day 0 00:00:00", "day 3 00:01:01"]
    of_tables = time_texts(np.array([0, 3 * day + 61]), dated=True)
    assert of_tables.tolist() == ["1970-01-01T00:00:00", "1970-01-04T00:01:01"]


def test_books_that_have_only_dates_show_no_clock():
    day = 86_400
    assert time_texts(np.array([20_454 * day, 20_513 * day]), dated=True).tolist() == ["2026-01-01", "2026-03-01"]
    assert time_texts(np.array([-day, 0])).tolist() == ["1969-12-31", "1970-01-01"]
    assert time_texts(np.array([0, 12 * day])).tolist() == ["day 0", "day 12"]


def test_names_of_payments_are_as_many_as_their_columns():
    recipe = ["recipe=payments", "windows=[1]"]
    names = payment_names(
        compose(["dataset=payments", *(f"dataset.{w}" for w in [*recipe, "features=activity"])]).dataset
    )
    assert names.nodes == ()  # a recipe's columns of accounts have the same names
    assert [column.name for column in names.edges][:2] == ["log amount", "format=0"]
    for words in (["windows=[1,0.5]"], ["counts=all", "causal=false", "windows=[2]", "ports=true"], ["ports=true"]):
        cfg = compose(["dataset=payments", *(f"dataset.{word}" for word in [*words, "features=activity", *SMALL])])
        graph = payments.load(cfg.dataset, num_clients=3)
        names = payment_names(cfg.dataset)
        local_count = graph.own_columns.get("edges", 0)
        assert (len(names.nodes), len(names.edges)) == (graph.num_features, graph.num_edge_features - local_count), (
            words
        )


def test_the_report_counts_edges(inline, tmp_path):
    page = fg.load_run(inline).report(tmp_path / "report.html").read_text()
    assert "test edges" in page
    assert "Classes of nodes" not in page


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["strategy=fedgta"], "strategy=fedgta does not serve task=edges: set task to nodes"),
        (["split.kind=kfold"], "task=edges splits edges at random, by time or as the data do, got split.kind=kfold"),
        (["dataset=mutag"], "is for graphs with one node type, but model="),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(overrides, match):
    with pytest.raises(FedGraphError, match=match):
        check_method(compose([*WORDS, *overrides]))


def test_graphs_that_do_not_fit_are_refused():
    graph = random_graph()
    with pytest.raises(FedGraphError, match="task=edges needs a label for each edge, which the graph does not have"):
        client(replace(graph, edge_y=torch.zeros(0, dtype=torch.int64), num_edge_classes=0))
    with pytest.raises(FedGraphError, match="imported with --undirected, which lists it twice"):
        client(replace(graph, schema={"undirected": True}))
    with pytest.raises(
        FedGraphError, match=r"split\.kind=temporal needs a stage .* columns.time=NAME and --split temporal"
    ):
        client(graph, "split.kind=temporal")


@pytest.mark.parametrize(
    "strategy", [pytest.param(n, marks=pytest.mark.slow) if n != "scaffold" else n for n in serving("edges")]
)
def test_every_method_that_serves_edges_is_scored(strategy, tmp_path):
    run = fg.run(out=str(tmp_path / "run"), strategy=strategy, **PAYMENTS)
    assert 0 < run.summary["test_average_precision"] <= 1


def test_a_sweep_counts_the_chance_level_of_edges(inline):
    run = fg.load_run(inline)
    overrides = [f"{key}={value}" for key, value in PAYMENTS.items() if key != "progress"]
    assert majority(overrides) == pytest.approx(run.summary["metrics"]["best_val"]["test_chance_average_precision"])


def test_totals_of_nodes_over_the_training_time_are_not_read():
    """They count payments after a training payment: two graphs that differ in them alone give the same bits."""
    graph = clients_of(timed(random_graph()))[0]
    graphs = [
        replace(graph, x=torch.cat([graph.x, column], dim=1), own_columns={"nodes": 2})
        for column in (torch.ones(NODES, 2), torch.randn(NODES, 2))
    ]
    runs = [client(variant, "model=gine", "split.kind=temporal") for variant in graphs]
    assert_same_arrays(trained(runs[0]), trained(runs[1]))
    assert torch.equal(runs[0].predict(), runs[1].predict())
    assert torch.equal(task_of(runs[0]).columns(), task_of(runs[1]).columns())
    assert torch.equal(runs[0].graph.x[:, :5], graph.x)

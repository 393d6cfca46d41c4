"""task=links: nothing of a hidden edge reaches the network, and scores are those of a plain loop."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch_geometric.nn import GCNConv

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.scoring import score
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import ClientGraph, read_tensors
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.partition.clients import cut, pool
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.tasks import links, pairs
from fedgraph_flwr.testing import assert_same_arrays
from tests.methods.small_runs import serving

WORDS = ["task=links", "model.hidden=16", "num_clients=1", "rounds=2"]


def random_graph(nodes: int = 60, edges: int = 240, features: int = 8, seed: int = 0, blocks: int = 1) -> ClientGraph:
    """Undirected edges, uniform or mostly within blocks, and random features."""
    rng = np.random.default_rng(seed)
    of = rng.integers(blocks, size=nodes)
    ends = rng.integers(nodes, size=(2, 40 * edges))
    kept = (of[ends[0]] == of[ends[1]]) | (rng.random(ends.shape[1]) < (0.05 if blocks > 1 else 1))
    joined = pairs.undirected(ends[:, kept][:, :edges])
    empty = torch.zeros(nodes, dtype=torch.bool)
    mask = torch.arange(nodes) < nodes // 2
    return ClientGraph(
        x=torch.from_numpy(rng.standard_normal((nodes, features))).float(),
        edge_index=torch.from_numpy(np.concatenate([joined, joined[::-1]], axis=1)),
        y=torch.from_numpy(of % 2),
        train_mask=mask,
        val_mask=empty,
        test_mask=~mask,
        num_classes=2,
        node_id=torch.arange(nodes),
        num_global_nodes=nodes,
    )


def client(graph: ClientGraph, *overrides: str) -> GraphClient:
    return GraphClient(compose([*WORDS, *overrides]), graph)


def task_of(made: GraphClient) -> links.Links:
    """The task of a client."""
    assert isinstance(made.task, links.Links)
    return made.task


def as_pairs(edge_index: torch.Tensor) -> set[frozenset[int]]:
    return {frozenset(edge) for edge in edge_index.T.tolist()}


def test_scored_edges_are_hidden_in_both_directions():
    graph = random_graph()
    made = client(graph)
    splits = {split: as_pairs(torch.from_numpy(edges)) for split, edges in task_of(made).items.items()}
    read = as_pairs(made.graph.edge_index)
    assert set.union(*splits.values()) == as_pairs(graph.edge_index)
    assert sum(map(len, splits.values())) == len(as_pairs(graph.edge_index))
    assert read == splits["train"]
    assert made.graph.edge_index.shape[1] == 2 * len(read)
    assert (made.num_train, made.task.width) == (len(read), 16)


def test_a_step_hides_what_it_predicts():
    made = client(random_graph(), "train.local_steps=2", "task.negatives=3")
    known = as_pairs(made.graph.edge_index)
    seen = []
    for batch in made.batches():
        positives = as_pairs(batch.nodes[:, batch.y > 0])
        dense = batch.inputs.adj.to_dense()
        assert not any(dense[u, v] or dense[v, u] for u, v in positives)
        negatives = as_pairs(batch.nodes[:, batch.y == 0])
        assert not negatives & known
        assert len(positives) == round(0.3 * made.num_train)
        assert (batch.y == 0).sum() == 3 * len(positives)
        seen.append(positives)
    assert seen[0] != seen[1]  # drawn anew per step


@pytest.mark.parametrize("leak", [None, "edges in the network", "negatives that avoid held-out edges"])
def test_a_network_cannot_predict_random_edges_unless_it_learns_of_them(leak, monkeypatch):
    """The leak detector: on a uniformly random graph an MLP that can tell all nodes apart reaches an AUC of 1/2."""
    graph = random_graph(nodes=100, edges=1200)
    graph = replace(graph, x=torch.eye(100))
    words = ["model=mlp"]
    if leak == "edges in the network":
        whole, words = graph.edge_index, []
        monkeypatch.setattr(links, "without", lambda graph, hidden: replace(graph, edge_index=whole))
    elif leak:
        monkeypatch.setattr(links.Links, "_apart_in_training", property(lambda task: task._apart))
    made = client(graph, *words, "train.local_steps=200", "model.hidden=64", "model.dropout=0", "train.weight_decay=0")
    made.train()
    auc = made.evaluate([], {})[2]["test-auc"][0]
    assert auc > 0.6 if leak else auc < 0.54


def test_a_held_out_edge_is_a_negative_as_often_as_any_other_pair():
    """Pairs to draw: all that are no training edge; a held-out edge is drawn as often as chance has it."""
    made = client(random_graph(nodes=40, edges=200), "task.negatives=40", "train.local_steps=10")
    held = {split: as_pairs(torch.from_numpy(task_of(made).items[split])) for split in ("train", "val", "test")}
    drawn = [tuple(sorted(pair)) for batch in made.batches() for pair in batch.nodes[:, batch.y == 0].T.tolist()]
    assert not {frozenset(pair) for pair in drawn} & held["train"]
    share = np.mean([frozenset(pair) in held["val"] | held["test"] for pair in drawn])
    free = 40 * 39 / 2 - len(held["train"])
    expected = len(held["val"] | held["test"]) / free
    assert len(drawn) > 4000
    assert abs(share - expected) < 0.35 * expected


def test_a_planted_partition_is_found_up_to_its_ceiling():
    """With α of the edges and β of the other pairs inside blocks, AUC is at most α (1 − β) + (αβ + (1 − α)(1 − β)) / 2."""
    graph = random_graph(nodes=300, edges=3000, blocks=3, seed=1)
    of = np.random.default_rng(1).integers(3, size=300)
    graph = replace(graph, x=torch.nn.functional.one_hot(torch.from_numpy(of)).float())
    made = client(graph, "train.local_steps=80", "model.dropout=0")
    made.train()
    scores = made.evaluate([], {})[2]
    ends = graph.edge_index.numpy()
    inside, by_chance = (of[ends[0]] == of[ends[1]]).mean(), (np.bincount(of) ** 2).sum() / of.size**2
    ceiling = inside * (1 - by_chance) + (inside * by_chance + (1 - inside) * (1 - by_chance)) / 2
    assert ceiling - 0.06 < scores["test-auc"][0] < ceiling + 0.04
    assert scores["test-mrr"][0] > 1.3 * scores["test-chance_mrr"][0]


def test_one_client_equals_a_plain_pyg_loop():
    """PyG's layers in float64, on the same drawn pairs: equal parameters after three steps."""
    made = client(random_graph(), "dtype=float64", "model.dropout=0", "train.weight_decay=0")
    first, second = GCNConv(8, 16).double(), GCNConv(16, 16).double()
    layers = {"layers.0": first, "head": second}
    with torch.no_grad():
        for name, value in made.model.state_dict().items():
            layer = layers[name.rpartition(".")[0]]
            layer.bias.copy_(value) if value.dim() == 1 else layer.lin.weight.copy_(value.T)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
    x, edges = random_graph().x.double(), random_graph().edge_index
    hidden = as_pairs(
        torch.from_numpy(np.concatenate([task_of(made).items["val"], task_of(made).items["test"]], axis=1))
    )
    for batch in made.batches():
        gone = hidden | as_pairs(batch.nodes[:, batch.y > 0])
        kept = torch.tensor([frozenset(edge) not in gone for edge in edges.T.tolist()])
        z = second(torch.relu(first(x, edges[:, kept])), edges[:, kept])
        s = (z[batch.nodes[0]] * z[batch.nodes[1]]).sum(1)
        p = torch.sigmoid(s)
        loss = -(batch.y * p.log() + (1 - batch.y) * (1 - p).log()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    made.train()
    for name, value in made.model.state_dict().items():
        layer = layers[name.rpartition(".")[0]]
        assert torch.allclose(value, layer.bias if value.dim() == 1 else layer.lin.weight.T, atol=1e-12), name


def test_scores_equal_those_of_scikit_learn():
    made = client(random_graph())
    z = made.predict()
    metrics = score(made, z)
    ranked = task_of(made).drawn("test", 0)
    both = np.concatenate([ranked.pairs, ranked.apart], axis=1)
    scores = (z[both[0]] * z[both[1]]).sum(1).numpy()
    y = np.arange(both.shape[1]) < ranked.pairs.shape[1]
    assert metrics["test-auc"][0] == pytest.approx(roc_auc_score(y, scores))
    assert metrics["test-average_precision"][0] == pytest.approx(average_precision_score(y, scores))
    assert metrics["test-count"] == [ranked.pairs.shape[1]]


def test_scored_pairs_are_the_same_for_every_model_and_round():
    a, b = client(random_graph()), client(random_graph(), "model.hidden=4", "rounds=9")
    for split in ("val", "test"):
        for one, other in zip(task_of(a).drawn(split, 0), task_of(b).drawn(split, 0), strict=True):
            assert (one == other).all()
    other = GraphClient(compose([*WORDS, "seed=1"]), random_graph())
    assert not np.array_equal(task_of(other).items["test"], task_of(a).items["test"])


def test_clients_and_the_pooled_graph_split_the_same_edges():
    """Edges between clients are messages of the pooled graph and items of nobody."""
    graph = random_graph(nodes=90, edges=500)
    clients = cut(graph, [torch.arange(40), torch.arange(40, 90)])
    parts = [links.Links(compose(WORDS), one) for one in clients]
    whole = links.Links(compose(WORDS), pool(clients))
    for split in ("train", "val", "test"):
        edge_sets = [
            as_pairs(one.node_id[torch.from_numpy(task.items[split])]) for one, task in zip(clients, parts, strict=True)
        ]
        assert as_pairs(torch.from_numpy(whole.items[split])) == edge_sets[0] | edge_sets[1]
    crossing = {edge for edge in as_pairs(graph.edge_index) if len({min(node // 40, 1) for node in edge}) == 2}
    assert crossing <= as_pairs(whole.graph.edge_index)
    for part, task in enumerate(parts):
        mine, pooled = task.drawn("test", 0), whole.drawn("test", part)
        assert (clients[part].node_id[torch.from_numpy(mine.targets)].numpy() == pooled.targets).all()


def test_few_pairs_are_not_scored_under_a_policy():
    made = client(random_graph(nodes=12, edges=20))
    made.policy = Policy(min_nodes=50)
    metrics = score(made, made.predict())
    assert metrics["test-count"] == [0]
    assert np.isnan(metrics["test-mrr"][0])
    with pytest.raises(FedGraphError, match="min_nodes"):
        made.train()


SMALL = {"task": "links", "num_clients": 2, "rounds": 2, "dataset.nodes": 120, "model.hidden": 8, "progress": False}


def trained(path: Path) -> dict[str, torch.Tensor]:
    """The final shared parameters of a run's folder."""
    return read_tensors(path / "model_final.safetensors")[0]


@pytest.fixture(scope="module")
def inline(tmp_path_factory) -> Path:
    """The folder of a finished run."""
    out = tmp_path_factory.mktemp("links") / "inline"
    run = fg.run(out=str(out), checkpoint_every=1, **SMALL)
    assert 0 < run.summary["test_mrr"] < 1
    assert run.summary["headline"] == "test_mrr at best_val"
    return out


def test_a_resumed_run_gives_the_same_bits(inline, tmp_path):
    fg.run(out=str(tmp_path / "run"), checkpoint_every=1, **SMALL | {"rounds": 1})
    fg.load_run(tmp_path / "run").resume(rounds=2, progress=False)
    assert_same_arrays(trained(tmp_path / "run"), trained(inline))


@pytest.mark.parametrize(
    "keys",
    [
        {"privacy.secagg": True, "num_clients": 3},
        {"privacy.dp": "server_fixed", "privacy.noise_multiplier": 1.0, "strategy.weighting": "uniform"},
        {"strategy.aggregator": "median", "num_clients": 3},
        {"strategy": "central"},
        {"strategy": "local"},
    ],
    ids=str,
)
def test_links_run_under_protections_and_references(keys, tmp_path):
    run = fg.run(out=str(tmp_path / "run"), **SMALL | keys)
    assert 0 < run.summary["test_mrr"] <= 1


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["strategy.objective=[moon]"], "strategy=fedavg does not serve task=links: set task to nodes"),
        (["strategy=fedproto"], "strategy=fedproto does not serve task=links: set task to nodes"),
        (["train.loss=weighted"], r"train.loss=weighted needs classes of nodes, and task=links has none"),
        (["split.kind=kfold"], "task=links splits edges at random, got split.kind=kfold: set split.kind=ratio"),
        (["evaluation.metrics=[numpy:mean]"], "needs classes of nodes, and task=links has none"),
        (["dataset=mutag"], "is for graphs with one node type, but model="),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(overrides, match):
    with pytest.raises(FedGraphError, match=match):
        check_method(compose([*WORDS, *overrides]))


def test_a_score_of_another_task_is_refused():
    with pytest.raises(FedGraphError, match=r"evaluation.metric must be mrr, hits_1.* for task=links, got 'accuracy'"):
        compose([*WORDS, "evaluation.metric=accuracy"])


def test_more_pairs_than_fit_are_refused(monkeypatch):
    monkeypatch.setattr(pairs, "MAX_DRAWN", 1000)
    with pytest.raises(
        FedGraphError, match=r"client 0 would draw 4400 pairs for 44 items, .* set task.candidates to at most 22"
    ):
        client(random_graph()).evaluate([], {})[2]
    with pytest.raises(FedGraphError, match=r"set task.negatives to at most"):
        client(random_graph(), "task.negatives=900").train()


@pytest.mark.parametrize(
    "strategy", [pytest.param(n, marks=pytest.mark.slow) if n != "scaffold" else n for n in serving("links")]
)
def test_every_method_that_serves_links_is_scored(strategy, tmp_path):
    run = fg.run(out=str(tmp_path / "run"), strategy=strategy, **SMALL)
    assert 0 < run.summary["test_mrr"] <= 1


def test_all_general_methods_serve_links_and_no_method_of_classes():
    assert {"fedavg", "local", "central", "fedprox", "scaffold", "ditto", "fedadam", "fedbn", "gcfl"} <= set(
        serving("links")
    )
    assert not {"fedproto", "fedtgp", "fedtad", "fgssl", "moon", "fedala", "fggp", "fedgta", "adafgl", "fedgl"} & set(
        serving("links")
    )


def test_pairs_are_scored_once_the_run_is_over(inline, tmp_path):
    """The network then reads all edges; scores equal the dot products of its outputs, by the command line too."""
    run = fg.load_run(inline)
    graph = load_client(run.config, 1)
    ids = graph.node_id.tolist()
    predictions = run.predict_pairs([[ids[3], ids[5]], [ids[7], ids[2]]], graph)
    z = run.model()(run.model().prepare(graph)).detach()
    assert predictions.scores == pytest.approx([(z[3] * z[5]).sum().item(), (z[7] * z[2]).sum().item()], abs=1e-6)
    given, out = tmp_path / "pairs.csv", tmp_path / "scored.csv"
    given.write_text(f"source,target\n{ids[3]},{ids[5]}\n{ids[7]},{ids[2]}\n")
    assert main(["predict", str(inline), "--client", "1", "--pairs", str(given), "--out", str(out)]) == 0
    assert len(out.read_text().splitlines()) == 3
    with pytest.raises(FedGraphError, match="1 ends of pairs are not nodes of the graph, such as 'x'"):
        run.predict_pairs([["x", ids[2]]], graph)
    with pytest.raises(FedGraphError, match="pass pairs of nodes"):
        run.predict(graph)
    run.export(tmp_path / "exported")
    assert (tmp_path / "exported" / "model.py").is_file()


def test_links_of_tables_are_trained_and_pairs_of_new_tables_scored(tmp_path, monkeypatch):
    """A pair's score is the dot product of the outputs for the new nodes, read in the order of their table."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    rng, names = np.random.default_rng(0), [f"n{i}" for i in range(60)]
    rows = [
        f"{name},{a},{b},{i % 2}" for i, (name, (a, b)) in enumerate(zip(names, rng.normal(size=(60, 2)), strict=True))
    ]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,a,b,label", *rows]))
    ends = rng.integers(60, size=(240, 2))
    (tmp_path / "edges.csv").write_text("\n".join(["source,target", *(f"n{u},n{v}" for u, v in ends if u != v)]))
    given = ["--nodes", str(tmp_path / "nodes.csv"), "--edges", str(tmp_path / "edges.csv")]
    assert main(["import", *given, "scales.a=none", "scales.b=none", "--name", "t"]) == 0
    run = fg.run(dataset="t", task="links", num_clients=2, rounds=1, progress=False, out=str(tmp_path / "run"))
    assert 0 < run.summary["test_mrr"] < 1
    (tmp_path / "new.csv").write_text("id,a,b\nz,0.5,0.1\ny,1,2\nx,0,-1\n")
    (tmp_path / "new_edges.csv").write_text("source,target\nz,y\n")
    (tmp_path / "pairs.csv").write_text("source,target\nz,x\nx,y\n")
    new = ["--nodes", str(tmp_path / "new.csv"), "--edges", str(tmp_path / "new_edges.csv")]
    new += ["--pairs", str(tmp_path / "pairs.csv"), "--out", str(tmp_path / "scored.csv")]
    assert main(["predict", str(tmp_path / "run"), *new]) == 0
    table = pd.read_csv(tmp_path / "scored.csv")
    given = replace(random_graph(3), x=torch.tensor([[0.5, 0.1], [1, 2], [0, -1]]), edge_index=torch.tensor([[0], [1]]))
    z = run.model()(run.model().prepare(given)).detach()
    assert table[["source", "target"]].to_numpy().tolist() == [["z", "x"], ["x", "y"]]
    assert table["score"].tolist() == pytest.approx([(z[0] * z[2]).sum().item(), (z[2] * z[1]).sum().item()], abs=1e-6)


def test_the_report_names_scores_of_links(inline, tmp_path):
    page = fg.load_run(inline).report(tmp_path / "report.html").read_text()
    assert "test MRR" in page
    assert "test edges" in page
    assert "does not predict classes" in page
    assert "Confusion matrix" not in page


def test_cached_inputs_of_another_seed_are_not_read(tmp_path):
    """They would show edges that this seed hides."""
    graph = random_graph()
    graph.save(file := tmp_path / "client_0000.safetensors")
    for seed in (0, 1):
        made = GraphClient(compose([*WORDS, f"seed={seed}"]), graph, file=file)
        assert torch.equal(made.inputs.adj.to_dense(), made.model.prepare(made.graph).adj.to_dense())

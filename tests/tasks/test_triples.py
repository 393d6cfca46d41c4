"""task=triples: scores follow their definitions, hidden triples reach no gradient, and a known best score is reached."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.scoring import score
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import ClientGraph, read_tensors, unpack_words
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.partition.clients import cut, pool
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.sweeps.runs import majority
from fedgraph_flwr.tasks import pairs, triples
from fedgraph_flwr.tasks.base import STAGES
from fedgraph_flwr.tasks.decoders import DECODERS
from fedgraph_flwr.testing import assert_same_arrays
from tests.methods.small_runs import serving

WORDS = ["task=triples", "model.hidden=8", "num_clients=1", "rounds=2"]


def random_graph(entities: int = 12, relations: int = 3, count: int = 90, seed: int = 0) -> ClientGraph:
    """Distinct uniform triples, a third of each split."""
    rng = np.random.default_rng(seed)
    code = rng.permutation(entities * entities * relations)[:count]
    head, tail, relation = np.unravel_index(code, (entities, entities, relations))
    empty = torch.zeros(entities, dtype=torch.bool)
    return ClientGraph(
        x=torch.from_numpy(rng.standard_normal((entities, 4))).float(),
        edge_index=torch.from_numpy(np.stack([head, tail])),
        y=torch.full((entities,), -1),
        train_mask=empty,
        val_mask=empty,
        test_mask=empty,
        num_classes=1,
        edge_y=torch.from_numpy(relation),
        edge_split=torch.arange(count).to(torch.int8) % 3,
        num_edge_classes=relations,
        node_id=torch.arange(entities),
        num_global_nodes=entities,
    )


def client(graph: ClientGraph, *overrides: str) -> GraphClient:
    return GraphClient(compose([*WORDS, *overrides]), graph)


def task_of(made: GraphClient) -> triples.Triples:
    """The task of a client."""
    assert isinstance(made.task, triples.Triples)
    return made.task


def as_set(columns: np.ndarray) -> set[tuple[int, ...]]:
    """Columns (head, relation, tail)."""
    return {tuple(column) for column in columns.T.tolist()}


def true_score(decoder: str, h: np.ndarray, r: np.ndarray, t: np.ndarray) -> float:
    """The papers' definitions, RotatE's with NumPy's complex numbers."""
    if decoder == "transe":
        return float(-np.abs(h + r - t).sum())
    if decoder == "distmult":
        return float((h * r * t).sum())
    h, r, t = (v[: len(v) // 2] + 1j * v[len(v) // 2 :] for v in (h, r, t))
    return float(-np.abs(h * (r / np.abs(r)) - t).sum())


@pytest.mark.parametrize("decoder", sorted(DECODERS))
@pytest.mark.parametrize("heads", [True, False])
def test_a_query_gives_the_score_of_the_triple(decoder, heads):
    rng = np.random.default_rng(0)
    h, r, t = rng.standard_normal((3, 5, 6))
    known, missing = (t, h) if heads else (h, t)
    of = DECODERS[decoder]
    query = of.query(torch.from_numpy(known), torch.from_numpy(r), torch.full((5,), heads))
    expected = [true_score(decoder, *rows) for rows in zip(h, r, t, strict=True)]
    assert of.score(query, torch.from_numpy(missing)).numpy() == pytest.approx(expected)
    assert of.against(query, torch.from_numpy(missing)).diagonal().numpy() == pytest.approx(expected)


@pytest.mark.parametrize("filtered", [True, False])
@pytest.mark.parametrize("decoder", ["transe", "distmult"])
def test_ranks_equal_those_of_a_plain_loop_over_candidates(filtered, decoder):
    """By ogb's definition, 1 + (#{s⁻ > s⁺} + #{s⁻ ≥ s⁺}) / 2; whole numbers make ties."""
    made = client(random_graph(), f"task.decoder={decoder}", "split.kind=public")
    task = task_of(made)
    z = np.random.default_rng(1).integers(-1, 2, size=(12 + 3, 8)).astype(np.float32)
    known = set().union(*(as_set(columns) for columns in task.items.values()))
    assert len(known) == 90
    expected = []
    for side in (0, 2):
        for triple in task.items["test"].T.tolist():
            truth, others = true_score(decoder, z[triple[0]], z[12 + triple[1]], z[triple[2]]), []
            for entity in range(12):
                wrong = [*triple[:side], entity, *triple[side + 1 :]]
                if wrong != triple and not (filtered and tuple(wrong) in known):
                    others.append(true_score(decoder, z[wrong[0]], z[12 + wrong[1]], z[wrong[2]]))
            above, equal = (np.array(others) > truth).sum(), (np.array(others) >= truth).sum()
            expected.append((1 + (above + equal) / 2, len(others), np.log(np.exp([truth, *others]).sum()) - truth))
    columns = task.ranked(torch.from_numpy(z), task.parties[0], "test", filtered)
    assert pytest.approx(np.array(expected), abs=1e-4) == np.stack(columns).T
    if filtered:
        scores = score(made, torch.from_numpy(z))
        ranks = np.array(expected)[:, 0]
        assert scores["test-mrr"][0] == pytest.approx((1 / ranks).mean())
        assert scores["test-mr"][0] == pytest.approx(ranks.mean())
        assert scores["test-hits_3"][0] == pytest.approx((ranks <= 3).mean())
        assert scores["test-count"] == [30]


def test_blocks_of_queries_do_not_change_ranks(monkeypatch):
    task = task_of(client(random_graph(), "split.kind=public"))
    z = torch.randn(15, 8, generator=torch.Generator().manual_seed(0))
    whole = task.ranked(z, task.parties[0], "test")
    monkeypatch.setattr(triples, "CELLS", 24)
    for one, other in zip(task.ranked(z, task.parties[0], "test"), whole, strict=True):
        assert one == pytest.approx(other)


def test_a_constant_scorer_is_in_the_middle_and_a_diverged_one_last():
    """With one triple per query, nothing is filtered: MRR is 1 / (1 + n / 2) of n wrong entities."""
    graph = random_graph(count=3 * 12)
    head = torch.arange(36) % 12
    graph = graph.with_edges(torch.stack([head, (head + 1) % 12]), torch.arange(36))
    graph.edge_y = torch.arange(36) // 12
    made = client(graph, "split.kind=public")
    scores = score(made, torch.zeros(15, 8))
    assert scores["test-mrr"][0] == pytest.approx(1 / (1 + 11 / 2))
    assert scores["test-chance_mrr"][0] == pytest.approx(sum(1 / k for k in range(1, 13)) / 12)
    assert score(made, torch.full((15, 8), torch.nan))["test-mr"] == [12]


def test_only_training_triples_are_messages_and_wrong_ones_are_wrong():
    graph = random_graph()
    made = client(graph, "task.negatives=4", "train.local_steps=2", "task.batch_size=20")
    task = task_of(made)
    train = as_set(task.items["train"])
    read = np.stack([made.graph.edge_index[0].numpy(), made.graph.edge_y.numpy(), made.graph.edge_index[1].numpy()])
    assert as_set(read) == train
    assert sum(columns.shape[1] for columns in task.items.values()) == 90
    seen = []
    for batch in made.batches():
        assert task.steps_on(batch.y) == 20
        for (known, relation, heads, *candidates), y in zip(batch.nodes.tolist(), batch.y.tolist(), strict=True):
            for entity, label in zip(candidates, y, strict=True):
                triple = (entity, relation - 12, known) if heads else (known, relation - 12, entity)
                assert (triple in train) == (label != 0)
        seen.append(batch.nodes)
    assert not torch.equal(*seen)


@pytest.mark.parametrize("model", ["embedding", "gcn"])
def test_hidden_triples_reach_no_gradient(model):
    """Validation and test triples are replaced by others: training gives the same bits."""
    graph, trained = random_graph(), []
    hidden = graph.edge_split > 0
    other = graph.edge_index.clone()
    other[:, hidden] = torch.randint(12, (2, int(hidden.sum())), generator=torch.Generator().manual_seed(3))
    for edges in (graph.edge_index, other):
        made = client(graph.with_edges(edges, torch.arange(90)), f"model={model}", "split.kind=public")
        made.train()
        trained.append({name: tensor.numpy() for name, tensor in made.model.state_dict().items()})
    assert_same_arrays(*trained)


@pytest.mark.parametrize("loss", ["softmax", "log_sigmoid"])
def test_one_client_equals_a_plain_loop(loss):
    """Complex numbers and Adam of torch in float64, on the same drawn entities."""
    overrides = ["dtype=float64", f"task.loss={loss}", "task.negatives=30", "task.temperature=0.5", "task.margin=2"]
    made = client(random_graph(), *overrides)
    e, r = (made.model.state_dict()[name].clone().requires_grad_() for name in ("nodes", "readout.relations"))
    optimizer = torch.optim.Adam([e, r], lr=0.01)
    skipped = 0
    for batch in made.batches():
        total = torch.zeros((), dtype=torch.float64)
        for (known, relation, heads, *candidates), y in zip(batch.nodes.tolist(), batch.y.tolist(), strict=True):
            k, c = (torch.complex(*e[rows].chunk(2, -1)) for rows in (known, candidates))
            turn = torch.complex(*r[relation - 12].chunk(2, -1))
            turn = turn / turn.abs()
            f = -((c * turn - k) if heads else (k * turn - c)).abs().sum(-1)
            kept = torch.tensor([i for i, label in enumerate(y) if label == 0])
            skipped += y.count(-1)
            if loss == "softmax":
                total -= f[torch.cat([torch.tensor([0]), kept])].log_softmax(0)[0]
            else:
                p = torch.softmax(0.5 * f[kept].detach(), 0)
                total -= torch.sigmoid(2 + f[0]).log() + (p * torch.sigmoid(-2 - f[kept]).log()).sum()
        optimizer.zero_grad()
        (total / len(batch.y)).backward()
        optimizer.step()
    made.train()
    state = made.model.state_dict()
    assert torch.allclose(state["nodes"], e, atol=1e-12)
    assert torch.allclose(state["readout.relations"], r, atol=1e-12)


def test_clients_and_the_pooled_graph_split_the_same_triples():
    """Triples between clients are items of nobody, and a triple is ranked among its client's entities."""
    graph = random_graph(entities=20, count=300)
    clients = cut(graph, [torch.arange(8), torch.arange(8, 20)])
    parts = [triples.Triples(compose(WORDS), one) for one in clients]
    whole = triples.Triples(compose(WORDS), pool(clients))
    z = torch.randn(23, 8, generator=torch.Generator().manual_seed(0))
    for p, (party, task) in enumerate(zip(clients, parts, strict=True)):
        assert (whole.parties[p].entities == party.node_id.numpy()).all()
        for split in STAGES:
            head, relation, tail = task.items[split]
            names = party.node_id.numpy()
            assert as_set(np.stack([names[head], relation, names[tail]])) == as_set(whole.parties[p].items[split])
        rows = torch.cat([party.node_id, torch.arange(20, 23)])
        one = task.ranked(z[rows], task.parties[0], "test")
        assert sorted(one.ranks) == sorted(whole.ranked(z, whole.parties[p], "test").ranks)


SMALL = {
    "task": "triples",
    "dataset": "planted-triples",
    "dataset.entities": 16,
    "dataset.relations": 4,
    "num_clients": 2,
    "rounds": 2,
    "model.hidden": 8,
    "task.negatives": 4,
    "progress": False,
}


def planted(*overrides: str) -> GraphClient:
    """A trained client on all triples of one ring or line."""
    cfg = compose(["task=triples", "dataset=planted-triples", "num_clients=1", "model.hidden=16", *overrides])
    made = GraphClient(cfg, load_client(cfg, 0))
    made.train()
    return made


@pytest.mark.slow
def test_rotations_complete_a_ring_and_a_symmetric_score_does_not():
    """Held-out triples of a ring: RotatE ranks them first unless the second tail of a query counts, too."""
    overrides = ["dataset.entities=24", "dataset.relations=6", "train.local_steps=120", "train.lr=0.03"]
    made = planted(*overrides)
    assert made.evaluate([], {})[2]["test-mrr"][0] > 0.95
    raw = task_of(made).ranked(made.predict(), task_of(made).parties[0], "test", filtered=False)
    assert np.mean(1 / raw.ranks) < 0.8
    assert planted(*overrides, "task.decoder=distmult").evaluate([], {})[2]["test-mrr"][0] < 0.6


def test_translations_complete_a_line():
    overrides = ["task.decoder=transe", "task.loss=log_sigmoid", "dataset.ring=false", "dataset.tails=1"]
    overrides += ["split.train=0.75", "split.val=0", "split.test=0.25"]
    made = planted(*overrides, "dataset.entities=20", "train.local_steps=300", "train.lr=0.1", "model.hidden=64")
    assert made.evaluate([], {})[2]["test-mrr"][0] > 0.95


def test_few_triples_are_not_scored_under_a_policy():
    made = client(random_graph(count=30))
    made.policy = Policy(min_nodes=25)
    assert score(made, made.predict())["test-count"] == [0]
    with pytest.raises(FedGraphError, match="min_nodes"):
        made.train()


def trained_by(path: Path) -> dict[str, torch.Tensor]:
    """The final shared parameters of a run's folder."""
    return read_tensors(path / "model_final.safetensors")[0]


@pytest.fixture(scope="module")
def inline(tmp_path_factory) -> Path:
    """The folder of a finished run."""
    out = tmp_path_factory.mktemp("triples") / "inline"
    run = fg.run(out=str(out), checkpoint_every=1, **SMALL)
    assert 0 < run.summary["test_mrr"] < 1
    assert run.summary["headline"] == "test_mrr at best_val"
    return out


def test_the_report_names_scores_of_triples(inline, tmp_path):
    page = fg.load_run(inline).report(tmp_path / "report.html").read_text()
    assert "test MRR" in page
    assert "test triples" in page
    assert "Confusion matrix" not in page


def test_the_labels_of_an_edge_table_are_relations(tmp_path, monkeypatch):
    """The client's triples are the rows of the table, by the ids of the nodes and the names of the relations."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    rng = np.random.default_rng(0)
    (tmp_path / "nodes.csv").write_text("\n".join(["id,a,label", *(f"n{i},{i / 30},{i % 2}" for i in range(30))]))
    drawn = np.unique(rng.integers(30, size=(200, 2)), axis=0)
    rows = {
        (f"n{u}", f"r{kind}", f"n{v}")
        for (u, v), kind in zip(drawn, rng.integers(3, size=len(drawn)), strict=True)
        if u != v
    }
    (tmp_path / "edges.csv").write_text(
        "\n".join(["source,target,relation", *(f"{u},{v},{r}" for u, r, v in sorted(rows))])
    )
    given = ["--nodes", str(tmp_path / "nodes.csv"), "--edges", str(tmp_path / "edges.csv")]
    assert main(["import", *given, "columns.edge_label=relation", "--name", "t"]) == 0
    run = fg.run(dataset="t", task="triples", num_clients=1, rounds=1, progress=False, out=str(tmp_path / "run"))
    assert 0 < run.summary["test_mrr"] < 1
    graph = load_client(run.config, 0)
    ids, names = unpack_words(graph.ids), graph.schema["agreed"]["edge_classes"]
    read = {
        (ids[u], names[r], ids[v]) for (u, v), r in zip(graph.edge_index.T.tolist(), graph.edge_y.tolist(), strict=True)
    }
    assert read == rows


def test_only_vectors_of_relations_leave_a_client(inline):
    assert set(trained_by(inline)) == {"readout.relations"}


def test_a_resumed_run_gives_the_same_bits(inline, tmp_path):
    """Entity vectors come back from the clients' checkpoints."""
    fg.run(out=str(tmp_path / "run"), checkpoint_every=1, **SMALL | {"rounds": 1})
    fg.load_run(tmp_path / "run").resume(rounds=2, progress=False)
    assert_same_arrays(trained_by(tmp_path / "run"), trained_by(inline))


@pytest.mark.parametrize(
    "keys",
    [
        {"privacy.secagg": True, "num_clients": 3},
        {
            "privacy.dp": "server_fixed",
            "privacy.noise_multiplier": 1.0,
            "strategy.weighting": "uniform",
        },
        {"strategy.aggregator": "median", "num_clients": 3},
        {"strategy": "central"},
        {"strategy": "local"},
        {"model": "sage"},
    ],
    ids=str,
)
def test_triples_run_under_protections_and_references(keys, tmp_path):
    run = fg.run(out=str(tmp_path / "run"), **SMALL | keys)
    assert 0 < run.summary["test_mrr"] <= 1


@pytest.mark.parametrize(
    "strategy", [pytest.param(n, marks=pytest.mark.slow) if n != "ditto" else n for n in serving("triples")]
)
def test_every_method_that_serves_triples_is_scored(strategy, tmp_path):
    run = fg.run(out=str(tmp_path / "run"), strategy=strategy, **SMALL)
    assert 0 < run.summary["test_mrr"] <= 1


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["strategy=fedproto"], "strategy=fedproto does not serve task=triples: set task to nodes"),
        (["train.loss=weighted"], r"train.loss=weighted needs classes of nodes, and task=triples has none"),
        (["split.kind=kfold"], "got split.kind=kfold: set split.kind to ratio or public"),
        (["task.loss=huber"], "task.loss=huber is not for task=triples: set task.loss to softmax or log_sigmoid"),
        (["model.hidden=7"], "task.decoder=rotate reads complex numbers .*, got model.hidden=7: set an even number"),
        (["task=nodes", "model=embedding"], "learns a vector of each training node and predicts no others"),
        (["task.disjoint=0.5"], "task=triples does not read task.disjoint=0.5"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(overrides, match):
    with pytest.raises(FedGraphError, match=match):
        check_method(compose([*WORDS, *overrides]))


def test_the_sweeps_chance_level_is_that_of_a_random_order():
    """With n entities left of each query: the mean of (1 + 1/2 + ... + 1/n) / n, near that of all 16 entities."""
    given = [f"{key}={value}" for key, value in SMALL.items() if key != "progress"]
    assert sum(1 / k for k in range(1, 17)) / 16 <= majority(given) < 0.3


def test_scores_without_a_bound_are_not_noised():
    noised = ["privacy.dp=server_fixed", "privacy.noise_multiplier=1", "privacy.scores=noised"]
    with pytest.raises(
        FedGraphError, match=r"not guaranteed for evaluation.metric=mr: set evaluation.metric to one of mrr"
    ):
        compose([*WORDS, *noised, "evaluation.metric=mr"])


def test_data_without_relations_or_split_are_refused():
    graph = random_graph()
    graph.edge_y, graph.num_edge_classes = torch.zeros(0, dtype=torch.int64), 0
    with pytest.raises(FedGraphError, match=r"task=triples needs a label for each edge, .* columns.edge_label=NAME"):
        client(graph)
    graph = random_graph()
    graph.edge_split = torch.zeros(0, dtype=torch.int8)
    with pytest.raises(
        FedGraphError, match=r"split.kind=public needs a stage for each edge, .* choose a dataset that assigns"
    ):
        client(graph, "split.kind=public")


def test_more_entities_than_fit_are_refused(monkeypatch):
    monkeypatch.setattr(pairs, "MAX_DRAWN", 100)
    with pytest.raises(FedGraphError, match=r"would draw 216 entities for 54 items, .* task.batch_size to at most 25"):
        client(random_graph(), "task.negatives=4").train()

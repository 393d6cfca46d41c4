"""Requests of a third round of attacks on honest nodes, mostly by keys of tasks and samplers: each succeeded before."""

import numpy as np
import pytest
import torch

from fedgraph_baselines.clients.fgssl import FGSSLClient
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose, from_run_config
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.embedding import Embedding
from fedgraph_flwr.numerics import prepared
from fedgraph_flwr.wire.messages import groups_of
from tests.conftest import client_graph
from tests.nodes import SGD, made, model_of

PLAIN = ["train.local_steps=1", *SGD]


def with_relations(rare=2):
    """A graph whose edges have relation 0, but for the first ones, of relation 1."""
    graph = client_graph(0, 40)
    graph.edge_y = torch.zeros(graph.num_edges, dtype=torch.int64)
    graph.edge_y[:rare] = 1
    graph.num_edge_classes = 2
    return graph


def with_targets(targets):
    graph = client_graph(0, len(targets))
    graph.targets = torch.as_tensor(targets, dtype=torch.float32)
    return graph


# --- dropout ----------------------------------------------------------------------------------------------------------


def rows_shown(nodes, width, rate, least=0):
    """Training nodes whose features are quotients of one unit's gradients, from the first parameters of the seed."""
    graph = client_graph(0, nodes, num_features=20)
    overrides = [f"model.hidden={width}", *PLAIN, f"model.dropout={rate}"]
    client = made(GraphClient, *overrides, graph=graph, min_nodes=least)
    sent = {name: tensor.detach().numpy().copy() for name, tensor in client.shared.items()}
    trained = dict(zip(client.shared, client.fit(list(sent.values()), {})[0], strict=True))
    first, bias = (next(n for n, a in sent.items() if a.shape == s) for s in ((20, width), (width,)))
    slope, of_bias = sent[first] - trained[first], sent[bias] - trained[bias]
    quotients = (slope[:, of_bias != 0] / of_bias[of_bias != 0]).T
    rows = graph.x[graph.train_mask].double().numpy()
    return sum(bool(np.linalg.norm(quotients - row, axis=1).min() < 1e-3 * np.linalg.norm(row)) for row in rows)


@pytest.mark.parametrize(
    ("nodes", "width", "rate", "shown"),
    [(60, 64, 0.95, 20), (60, 1024, 0.95, 30), (200, 64, 0.98, 24), (200, 1024, 0.98, 97)],
)
def test_dropout_leaves_a_unit_more_than_one_node(nodes, width, rate, shown):
    """The first message was enough, with the seed's own parameters: a unit that one node reaches has that node's features."""
    assert rows_shown(nodes, width, rate) == pytest.approx(shown, abs=3)
    with pytest.raises(
        FedGraphError, match=rf"refuses model.dropout={rate} .*at most {0.5 if nodes == 60 else 0.85} here"
    ):
        rows_shown(nodes, width, rate, least=5)


def test_dropout_of_the_default_configuration_shows_nothing():
    assert rows_shown(60, 64, 0.5, least=5) == 0


# --- sampled batches --------------------------------------------------------------------------------------------------


def test_updates_on_changing_batches_add_up_to_the_gradient_of_one_node(node):
    """The seed tells the server who is in a batch. Under one model, twelve nodes need some twenty rounds."""
    sampled = ["train.sampler=neighbors", "train.batch_size=6", "train.fanout=[-1,-1]"]
    overrides = ["model=gcn", *PLAIN[:1], *SGD[1:], *sampled, "rounds=60"]
    client = made(GraphClient, *overrides, graph=client_graph(0, 24))
    train = client.train_nodes.tolist()
    start = client.get_parameters({})
    rows, updates = [], []
    for client.server_round in range(1, 41):
        trained = client.fit(start, {})[0]
        updates.append(np.concatenate([((a - b) / 1e-3).ravel() for a, b in zip(start, trained, strict=True)]))
        places = client.sampled.part(client.server_round, 0)
        rows.append(np.isin(np.arange(len(train)), places) / len(places))
    assert np.linalg.matrix_rank(np.array(rows)) == len(train)
    solved = np.linalg.lstsq(np.array(rows), np.array(updates), rcond=None)[0]
    alone = made(GraphClient, *overrides[:1], *PLAIN[:1], *SGD[1:], graph=client_graph(0, 24), min_nodes=0)
    for place in (0, 5):
        alone.train_nodes, alone.y = client.train_nodes[place : place + 1], client.y
        alone.batch = alone.batch._replace(y=client.y[alone.train_nodes])
        trained = alone.fit(start, {})[0]
        expected = np.concatenate([((a - b) / 1e-3).ravel() for a, b in zip(start, trained, strict=True)])
        np.testing.assert_allclose(solved[place], expected, atol=1e-9)
    assert "refuses train.sampler=neighbors: it accepts samplers none (samplers)" in node(*sampled).request("describe")
    accepted = node(*sampled, policy={"samplers": ["none", "neighbors"]})
    assert not isinstance(accepted.request("describe"), str)


# --- targets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [[1e9, 1], [1, 0.0]])
def test_positive_weights_leave_enough_nodes(weights):
    """Two positives of a column were nearly all of a gradient; with weight 0, its two negatives were."""
    y = torch.zeros(40, 2)
    y[:, 0] = torch.arange(40) % 2
    train = client_graph(0, 40).train_mask.nonzero().view(-1)
    y[train, 0] = 0.0
    y[train[:2], 0] = 1.0
    y[:, 1] = 1 - y[:, 0]
    overrides = ["task=nodes-multilabel", f"task.positive_weights=[{weights[0]},{weights[1]}]", "model.dropout=0"]
    with pytest.raises(FedGraphError, match=r"has 2 training nodes in a step, .* at least 5 \(min_nodes\)"):
        made(GraphClient, *overrides, graph=with_targets(y)).train()
    made(GraphClient, *overrides, graph=with_targets(y), min_nodes=2).train()
    made(GraphClient, overrides[0], "task.positive_weights=[3]", overrides[2], graph=with_targets(y)).train()


def test_a_column_that_few_nodes_know_trains_nothing():
    """The gradient of its output was that of these nodes."""
    y = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    train = client_graph(0, 40).train_mask.nonzero().view(-1)
    y[train[3:], 1] = torch.nan
    with pytest.raises(FedGraphError, match="has 3 training nodes in a step"):
        made(GraphClient, "task=nodes-regression", "model.dropout=0", graph=with_targets(y)).train()
    y[:, 1] = torch.nan
    made(GraphClient, "task=nodes-regression", "model.dropout=0", graph=with_targets(y)).train()


# --- triples ----------------------------------------------------------------------------------------------------------


TRIPLES = ["task=triples", "model=embedding", "split.train=1", "split.val=0", "split.test=0", *PLAIN[:1], *SGD[1:]]


def test_no_step_moves_the_vector_of_a_rare_relation():
    """Its gradient followed from the entity vectors of two triples."""
    moved = {}
    for floor in (0, 5):
        client = made(GraphClient, *TRIPLES, graph=with_relations(), min_nodes=floor)
        before = client.shared["readout.relations"].detach().clone()
        client.train()
        moved[floor] = (client.shared["readout.relations"] != before).any(1).tolist()
    assert moved == {0: [True, True], 5: [True, False]}


def test_scores_of_triples_count_no_rare_relation():
    overrides = [*TRIPLES[:2], "split.train=0.5", "split.val=0", "split.test=0.5"]
    counts = {}
    for rare in (2, 40):
        for floor in (0, 5):
            client = made(GraphClient, *overrides, graph=with_relations(rare), min_nodes=floor)
            test = client.task.items["test"][1]
            counts[rare, floor] = client.evaluate([], {})[2]["test-count"][0], len(test), int((test == 1).sum())
    assert counts[2, 0][0] == counts[2, 0][1]
    assert 0 < counts[2, 0][2] < 5
    assert counts[2, 5][0] == counts[2, 5][1] - counts[2, 5][2]
    assert counts[40, 5][0] == counts[40, 5][1]


@pytest.mark.parametrize("shared", ['[""]', "[nodes]", "[nodes,readout]"])
def test_vectors_of_entities_never_leave(shared):
    client = made(GraphClient, *TRIPLES, f"strategy.shared={shared}", graph=with_relations())
    assert "nodes" in client.model.tensors
    assert "nodes" not in client.shared


# --- FGSSL ------------------------------------------------------------------------------------------------------------


def test_fgssl_contrasts_enough_nodes(monkeypatch):
    """With two anchors and a great weight, the gradient was that of two nodes."""
    monkeypatch.setattr("fedgraph_baselines.clients.fgssl.ANCHORS", 2)
    for floor, count in ((0, 2), (5, 5)):
        client = made(FGSSLClient, "strategy=fgssl", min_nodes=floor)
        assert len(client.anchors()[0]) == count


# --- what a node accepts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task=links", "strategy=fedproto"], "strategy=fedproto does not serve task=links"),
        (["task=links", "train.loss=weighted"], "train.loss=weighted needs classes of nodes, and task=links has none"),
        (["strategy=fgssl", "train.sampler=neighbors"], "does not support strategy=fgssl"),
    ],
)
def test_a_node_checks_what_a_method_supports(node, overrides, message):
    """Only an honest server did; a traceback, or statistics of a kind that ``min_nodes`` does not count."""
    policy = {"tasks": ["nodes", "links"], "samplers": ["none", "neighbors"]}
    assert message in node(*overrides, policy=policy).request("describe")


@pytest.mark.parametrize(
    "overrides", ["strategy.objective=[prox]", "strategy.personalization=head", "strategy.variates=scaffold"]
)
def test_a_listed_method_has_no_other_parts(node, overrides):
    for listed in ("fedavg", "fedgraph_flwr.clients.base:GraphClient"):
        if listed == "fedavg" or "variates" in overrides:
            assert "refuses strategy=fedavg" in node(overrides, policy={"strategies": [listed]}).request("describe")


@pytest.mark.parametrize(
    "overrides",
    [
        ["task=links", "task.negatives=1000"],
        ["task=links", "task.candidates=100000"],
        ["task=links", "task.disjoint=0", "task.negatives=300"],
    ],
)
def test_pairs_are_counted_before_they_are_drawn(node, overrides):
    """1,000 negatives of a million edges, 1,024 numbers each, exhausted the memory."""
    policy = {"tasks": ["links"], "max_parameters": 3_000, "min_nodes": 1}
    assert "numbers in pairs that are compared at once" in node(*overrides, policy=policy).request("describe")
    assert not isinstance(node(overrides[0], policy=policy).request("describe"), str)


def test_vectors_of_nodes_are_counted_before_they_are_drawn(node, monkeypatch):
    """A million nodes with 1,024 numbers each took four gigabytes, and then were too many."""
    drawn = Embedding.with_nodes

    def only_on_meta(self, num_nodes):
        assert self.nodes.device.type == "meta", "memory was allocated"
        return drawn(self, num_nodes)

    monkeypatch.setattr(Embedding, "with_nodes", only_on_meta)
    asked = node("task=links", "model=embedding", policy={"tasks": ["links"], "max_parameters": 90})
    assert "refuses a model of 96 parameters: it accepts at most 90" in asked.request("describe")


def test_a_server_learns_no_names_of_files(tmp_path, monkeypatch):
    """Imported graphs were listed, and a folder of client files was counted."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    (tmp_path / "imported").mkdir()
    (tmp_path / "imported" / "secret.safetensors").touch()
    (tmp_path / "client_0000.safetensors").touch()
    for name in ("secret", "other"):
        with pytest.raises(FedGraphError, match=rf"dataset={name} has no file in conf/dataset") as error:
            from_run_config({"overrides": f"dataset={name}"}, foreign=True)
        assert ("secret" in str(error.value)) == (name == "secret")
    assert from_run_config({"overrides": f"graph={tmp_path} num_clients=7"}, foreign=True).num_clients == 7
    with pytest.raises(FedGraphError, match="holds 1 client files"):
        from_run_config({"overrides": f"graph={tmp_path} num_clients=7"})


def test_new_settings_do_not_fill_the_disk(tmp_path, monkeypatch):
    """Each run with another setting left a file of prepared inputs next to the party's graph."""
    monkeypatch.setattr(prepared, "MAX_FILES", 3)
    graph, file = client_graph(0, 12), tmp_path / "client_0000.safetensors"
    graph.save(file)
    for index in range(6):
        GraphClient(compose([f"model.hidden={8 + index}"]), graph, file=file)
    assert len(list(tmp_path.glob(f"*{prepared.SUFFIX}"))) == 3


# --- differential privacy ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides", [["task=edges"], ["task=triples"], ["task=triples", "model=embedding"], ["task=links"]]
)
def test_clipping_covers_the_readout(node, overrides):
    """Weights of edges' readouts and vectors of relations are as bounded as the rest, and nothing else leaves."""
    private = ["strategy.weighting=uniform", "privacy.dp=client_fixed", "privacy.noise_multiplier=1"]
    private += ["privacy.scores=none", "privacy.clipping_norm=0.01", "train.local_steps=3", "train.lr=1"]
    asked = node(*overrides, *private, size=40, policy={"tasks": ["edges", "triples", "links"], "min_nodes": 2})
    with_relations().save(asked.context.node_config["graph"])
    model = model_of(asked)
    reply = asked.request("train", 1, {"model": model})
    assert not isinstance(reply, str), reply
    assert set(reply["metrics"]) == {"client"}
    apart = {name: array - model[name] for name, array in groups_of(reply)["model"].items()}
    assert apart.keys() == model.keys()
    norm = np.sqrt(sum(float((a.astype(np.float64) ** 2).sum()) for a in apart.values()))
    assert norm == pytest.approx(0.01, rel=1e-3)
    assert overrides == ["task=links"] or any(a.any() for name, a in apart.items() if name.startswith("readout."))


@pytest.mark.parametrize(
    "overrides",
    [
        ["task=nodes-regression"],
        ["task=nodes-regression", "evaluation.metric=mae"],
        ["task=graphs-regression", "evaluation.metric=r2"],
        ["task=triples", "evaluation.metric=mr"],
    ],
)
def test_no_noise_covers_a_score_without_bounds(overrides):
    private = ["strategy.weighting=uniform", "privacy.dp=client_fixed", "privacy.noise_multiplier=1"]
    with pytest.raises(FedGraphError, match=r"privacy.scores=noised needs a metric with values in \[0, 1\]"):
        from_run_config({"overrides": " ".join([*overrides, *private, "privacy.scores=noised"])}, foreign=True)

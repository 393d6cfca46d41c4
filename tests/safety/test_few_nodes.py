"""`min_nodes`: what a server of a fleet read from statistics of few nodes, and that it reads it no more."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgraph_baselines.clients.fedfa import FedFAClient
from fedgraph_baselines.clients.fedgcn import FedGCNClient
from fedgraph_baselines.clients.fedgl import FedGLClient
from fedgraph_baselines.clients.fedgta import FedGTAClient
from fedgraph_baselines.clients.fedlit import FedLITClient
from fedgraph_baselines.clients.fedsage import FedSageClient
from fedgraph_baselines.clients.fedsage_true import FedSageTrueClient
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.fedala import Ala
from fedgraph_flwr.clients.fedstruct import FedStructClient
from fedgraph_flwr.clients.fedstruct_a import FedStructAClient
from fedgraph_flwr.clients.replies import plain_reply
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.hops import nodes_behind
from fedgraph_flwr.methods.labels import CLASS_WEIGHTS, large_enough, shares
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.wire.messages import CLIPPING, METRICS
from tests.conftest import client_graph
from tests.nodes import looped, made, model_of


def rare(num_nodes=40, count=3):
    """A graph in which class 2 has ``count`` training nodes, and the others many."""
    graph = client_graph(0, num_nodes)
    graph.y = torch.arange(num_nodes) % 2
    graph.y[graph.train_mask.nonzero().view(-1)[:count]] = 2
    return graph


# --- labels -----------------------------------------------------------------------------------------------------------


def test_the_rest_to_one_shows_no_class():
    """One hidden class was one minus the shares of the others."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        count, floor = rng.integers(0, 12, rng.integers(2, 6)), int(rng.integers(0, 8))
        shown = large_enough(count, floor)
        rest = count[~shown].sum()
        assert (count[shown] >= floor).all()
        assert rest == 0 or rest >= floor or not shown.any()
        assert rest == 0 or (count[~shown] > 0).sum() > 1 or not shown.any()
    assert shares(np.repeat([0, 1, 2], [35, 13, 2]), 3, 5).tolist() == [0.7, 0, 0]


# --- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedbn", "scaffold", "ditto", "fedomd"])
def test_a_constant_model_counts_no_rare_class(node, method):
    """Its accuracy was the exact share of a class, and a loss with a digit a class held the counts of all."""
    asked = node(f"strategy={method}", "model.dropout=0", size=60, policy={"check_start": False})
    file = Path(asked.context.node_config["graph"])
    graph = client_graph(0, 60)
    graph.y[graph.test_mask.nonzero().view(-1)[4:]] = 0
    graph.y[graph.test_mask.nonzero().view(-1)[:4]] = 2
    graph.save(file)
    for label in range(3):
        model = {name: np.zeros_like(a) for name, a in model_of(asked).items()}
        bias = [name for name, a in model.items() if a.shape == (3,)][-1]
        model[bias][label] = 9
        reply = asked.request("evaluate", label + 1, {"model": model})
        assert not isinstance(reply, str), reply
        numbers = reply[METRICS]
        correct = numbers["test-accuracy"][0] * numbers["test-count"][0]
        assert correct == 0 or correct >= 5
        assert numbers["test-count"][0] == 11
    asked = node(f"strategy={method}", "model.dropout=0", size=60, policy={"check_start": False, "min_nodes": 0})
    graph.save(file)
    assert asked.request("evaluate", 1, {"model": model_of(asked)})[METRICS]["test-count"][0] == 15


def test_a_confusion_matrix_is_of_the_same_nodes(node):
    asked = node("evaluation.confusion=true", size=20)
    reply = asked.request("evaluate", 1, {"model": model_of(asked)})[METRICS]
    assert sum(c for c in reply["confusion"] if c > 0) <= sum(reply["test-count"])


# --- methods ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", ["paper", "program"])
@pytest.mark.parametrize("overrides", [[], ["strategy.alpha=1"], ["strategy.steps=0"]])
def test_fedgta_reads_no_rare_label(labels, overrides):
    """With a constant model M held the exact counts of all classes: two nodes of a class, two counts."""
    graph = rare()
    reply = [made(FedGTAClient, f"strategy.labels={labels}", "strategy=fedgta", *overrides, graph=graph).send()]
    few = (graph.y == 2).nonzero().view(-1)
    graph.y[few[0]] = 0
    graph.y[(graph.train_mask & (graph.y == 0)).nonzero().view(-1)[-1]] = 2
    reply.append(made(FedGTAClient, f"strategy.labels={labels}", "strategy=fedgta", *overrides, graph=graph).send())
    shown = [(groups["smoothed"]["moments"], numbers["confidence"]) for groups, numbers in reply]
    client = made(FedGTAClient, "strategy=fedgta", graph=graph)
    assert 2 not in client.graph.y[client.labelled[0]]
    moved = made(
        FedGTAClient, f"strategy.labels={labels}", "strategy=fedgta", *overrides, graph=graph, min_nodes=0
    ).send()
    assert not np.array_equal(shown[1][0], moved[0]["smoothed"]["moments"]), "without a policy they are read"
    assert client.labelled[0].numel() + 5 <= client.train_nodes.numel()


def test_fedgta_sends_nothing_of_a_few_nodes():
    groups, numbers = made(FedGTAClient, "strategy=fedgta", graph=client_graph(0, 4)).send()
    assert not groups["smoothed"]["moments"].any()
    assert numbers == {"confidence": 0}


def test_fedfa_sends_no_mean_over_four_nodes(monkeypatch):
    monkeypatch.setattr("fedgraph_baselines.clients.fedfa.MOMENTUM", 0)
    monkeypatch.setattr("fedgraph_flwr.clients.base.check_step", lambda *_: None)  # which refuses too
    for size, moved in ((4, False), (12, True)):
        client = made(FedFAClient, "strategy=fedfa", "strategy.p=1", graph=client_graph(0, size))
        before = {"mean": np.zeros((1, 8), np.float32), "std": np.ones((1, 8), np.float32)}
        client.receive({"running": {k: a.copy() for k, a in before.items()}, "spread": before})
        client.train()
        reply = client.send()[0]["running"]
        assert all(np.array_equal(reply[k], before[k]) != moved for k in before)


def star(num_nodes=20):
    """Node 0 joined with all others."""
    graph = client_graph(0, num_nodes)
    leaves = torch.arange(1, num_nodes)
    ends = torch.stack([torch.zeros_like(leaves), leaves])
    graph.edge_index = torch.cat([ends, ends.flip(0)], 1)
    return graph


def test_fedlit_sends_no_single_node():
    """Of a star, a half of each mean is the centre's own vector."""
    overrides = ["strategy=fedlit", "model=fedlit"]
    for graph in (star(), client_graph(0, 40)):
        client = made(FedLITClient, *overrides, graph=graph)
        client.train()
        centroids, z = torch.from_numpy(client.send()[0]["links"]["centroids"]), client.embedded()
        for row in centroids:
            for half in row.chunk(2):
                assert not half.any() or not torch.isclose(half, z, atol=1e-5).all(1).any()
        open_ = made(FedLITClient, *overrides, graph=graph, min_nodes=0)
        open_.train()
        assert open_.send()[0]["links"]["centroids"].any()


def test_fedgl_mixes_no_node_with_itself_alone():
    """Self-loops of great weight made every node's hidden features its own: all rows of X under a known first layer."""
    overrides = ["strategy=fedgl", "strategy.graph_weight=1e6"]
    client = made(FedGLClient, *overrides)
    client.receive({"pseudo": looped(client)})
    plain = made(FedGLClient, *overrides)
    assert torch.equal(client.predict(), plain.predict())
    free = made(FedGLClient, *overrides, min_nodes=0)
    free.receive({"pseudo": looped(free)})
    assert not torch.equal(free.predict(), plain.predict())
    five = np.arange(40).reshape(8, 5)  # of five nodes each, as it is
    row, col = np.repeat(five, 5, 1).ravel(), np.tile(five, (1, 5)).ravel()
    client.receive({"pseudo": {"label": np.full(40, -1), "row": row, "col": col, "weight": np.full(200, 0.2)}})
    assert not torch.equal(client.predict(), plain.predict())


def test_fedgl_sends_zeros_for_nodes_that_hear_few():
    client = made(FedGLClient, "strategy=fedgl")
    client.server_round = 1
    reply = client.send()[0]["nodes"]
    ends = client.graph.edge_index
    heard = torch.bincount(ends[1], minlength=40) + 1
    few = (heard < 5).numpy()
    assert few.any()
    assert not few.all()
    assert not reply["h"][few].any()
    assert not reply["z"][few].any()
    assert reply["h"][~few].any(1).all()


def test_fedsage_judges_no_single_node_in_the_clear():
    """The difference from the nearest feature row is that row, for a server that knows what it asked about."""
    groups = {"proposed": {"1": np.zeros((3, 5), np.float32)}, "owners": {"1": np.arange(3, dtype=np.int32)}}
    with pytest.raises(
        FedGraphError, match=r"features of single nodes.*at least min_nodes=5.*set privacy\.secagg=true"
    ):
        made(FedSageClient, "strategy=fedsage").judge(groups, {})
    for overrides, policy in ((["privacy.secagg=true"], {}), ([], {"min_nodes": 1})):
        assert made(FedSageClient, "strategy=fedsage", *overrides, **policy).judge(groups, {})[0]["apart"]["1"].any()


def cut():
    """A graph three of whose nodes have an edge to client 1, and one to client 2."""
    graph = client_graph(0, 30)
    graph.cut_out = torch.tensor([[0, 5], [1003, 1004]])
    graph.cut_out_owner = torch.tensor([1, 1])
    graph.cut_in = torch.tensor([[7, 9], [1005, 2000]])
    graph.cut_in_owner = torch.tensor([1, 2])
    return graph


def test_fedsage_true_hands_out_neighbours_alone():
    """Any of its nodes: 30 of 30."""
    client = made(FedSageTrueClient, "strategy=fedsage_true", graph=cut(), min_nodes=1)
    groups = client.features({"wanted": {"1": np.array([0, 5, 7], np.int32), "2": np.array([9], np.int32)}}, {})[0]
    assert np.array_equal(groups["features"]["1"], client.graph.x[[0, 5, 7]].numpy())
    for who, ids in (("1", range(30)), ("1", [9]), ("2", [0])):
        with pytest.raises(FedGraphError, match="requested features of nodes of client 0 that have no edge to it"):
            client.features({"wanted": {who: np.array(ids, np.int32)}}, {})
    client.policy = Policy()
    with pytest.raises(FedGraphError, match=r"features of single nodes.*at least min_nodes=5"):
        client.features({"wanted": {"1": np.array([0], np.int32)}}, {})


# --- steps on few nodes -----------------------------------------------------------------------------------------------


def test_fedala_learns_weights_on_no_single_node():
    """With a small ``ala.sample``, the start of training, and so the reply, followed from the gradient of one node."""
    for floor, nodes in ((0, 1), (5, 5)):
        client = made(GraphClient, "strategy=fedala", "strategy.ala.sample=0.01", min_nodes=floor)
        (part,) = client.chosen_parts.all
        assert isinstance(part, Ala)
        assert len(part.sampled(client).nodes) == nodes


@pytest.mark.parametrize(("weights", "behind"), [([0, 0, 1], "2"), ([1e-6, 1e-6, 1], "2")])
def test_class_weights_of_the_server_leave_enough_nodes(weights, behind):
    """Weight for one rare class made a gradient of its two nodes only."""
    graph = client_graph(0, 40)
    graph.y = torch.arange(40) % 2
    graph.y[graph.train_mask.nonzero().view(-1)[:2]] = 2
    overrides = ["train.loss=weighted", "train.class_weights=federated"]
    client = made(GraphClient, *overrides, graph=graph)
    with pytest.raises(FedGraphError, match=rf"class weights leave {behind} training nodes of client 0"):
        plain_reply(client, "train", {CLASS_WEIGHTS: {"w": np.array(weights, np.float64)}}, {})
    plain_reply(client, "train", {CLASS_WEIGHTS: {"w": np.array([0.5, 0.6, 3.0])}}, {})
    free = made(GraphClient, *overrides, graph=graph, min_nodes=0)
    plain_reply(free, "train", {CLASS_WEIGHTS: {"w": np.array(weights, np.float64)}}, {})


def test_the_focal_loss_leaves_more_than_one_node():
    """With gamma=1e6 the gradient was that of the worst-predicted node."""
    with pytest.raises(FedGraphError, match=r"train\.focal_gamma must be .*10"):
        compose(["train.loss=focal", "train.focal_gamma=1e6"])


@pytest.mark.parametrize("norm", [float("nan"), -1.0, float("inf"), 1e300, 2e6, 1e-300])
def test_adaptive_norms_stay_in_the_range_of_an_honest_server(node, norm, caplog):
    """With C = 1e300 a client's update left it unclipped, and with 1e-300 as zeros."""
    overrides = ["strategy.weighting=uniform", "privacy.noise_multiplier=1", "privacy.dp=client_adaptive"]
    asked = node(*overrides, "privacy.clipping_norm=1")
    groups = {"model": model_of(asked), CLIPPING: {"model": np.array([norm])}}
    reply = asked.request("train", 1, groups)
    if not np.isfinite(norm):
        assert "with values that are not finite" in reply
        return
    assert "only its own log has the reason" in reply
    assert "no clipping norm > 0 for group 'model' within a factor of 1e+06 of the first, 1" in caplog.text
    assert not isinstance(node(*overrides).request("train", 1, {**groups, CLIPPING: {"model": np.array([1.0])}}), str)


# --- statistics of few nodes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e200, 1e-200, 2.0, -1.0, float("nan")])
def test_fedgl_takes_no_weights_beyond_one(scale):
    """Squares of 1e200 and 1e-200 leave the range of float64, so self-loops of such weights passed the check of rows."""
    client = made(FedGLClient, "strategy=fedgl", "strategy.graph_weight=1e6")
    group = looped(client)
    plain = made(FedGLClient, "strategy=fedgl").predict()
    with contextlib.suppress(FedGraphError):
        client.receive({"pseudo": group | {"weight": group["weight"] * scale}})
    assert torch.equal(client.predict(), plain)
    if scale != 1e-200:
        with pytest.raises(
            FedGraphError, match=r"does not match .* weights from 0 to 1|the server sent pseudo with 'weight'"
        ):
            client.receive({"pseudo": group | {"weight": group["weight"] * scale}})
    with pytest.raises(FedGraphError, match=r"does not match .* its classes"):
        client.receive({"pseudo": group | {"label": group["label"] + 100}})


def test_fedlit_counts_a_hub_once():
    """The hub was nearly all of a mean over its links and four others, which five nodes are behind."""
    graph = client_graph(0, 60)
    hub, rest = torch.zeros(50, dtype=torch.long), torch.arange(1, 51)
    ends = torch.cat([torch.stack([hub, rest]), torch.tensor([[51, 52, 53, 54], [55, 56, 57, 58]])], 1)
    graph.edge_index = torch.cat([ends, ends.flip(0)], 1)
    client = made(FedLITClient, "strategy=fedlit", "model=fedlit", "model.types=1", graph=graph)
    client.train()
    assert (client.links(client.types) > 0).sum(2).min() >= 5
    assert client.behind.tolist() == [1]
    assert not client.send()[0]["links"]["centroids"].any()


def test_fedsage_proposes_no_row_of_a_single_node():
    """Before `judge` refused, `generate` had sent rows that follow from single nodes' embeddings."""
    with pytest.raises(FedGraphError, match=r"features of single nodes.*at least min_nodes=5"):
        made(FedSageClient, "strategy=fedsage").generate({}, {})
    assert made(FedSageClient, "strategy=fedsage", min_nodes=1).generate({}, {})[0]["proposed"]["rows"].size


def test_fedgcn_counts_no_rows_that_the_server_invents():
    """With rows of its own making for a peer's, the server read z of a node with no neighbour at its client."""
    graph = client_graph(0, 30)
    graph.edge_index = graph.edge_index[:, (graph.edge_index != 3).all(0)]
    many = torch.arange(1000, 1008)
    graph.cut_in = torch.stack([torch.full_like(many, 3), many])
    graph.cut_in_owner = torch.ones_like(many)
    graph.cut_out, graph.cut_out_owner = torch.tensor([[3], [2000]]), torch.tensor([2])
    shown = {}
    for floor in (0, 5):
        client = made(FedGCNClient, "strategy=fedgcn", "strategy.hops=2", graph=graph, min_nodes=floor)
        invented = np.ones((len(client.incoming.own(1)), graph.num_features), np.float32)
        shown[floor] = client.smooth({"sums": {"1": invented}}, {})[0]["rows"]["2"].any()
    assert shown == {0: True, 5: False}


# --- FedStruct --------------------------------------------------------------------------------------------------------


def test_fedstruct_a_sends_neither_edges_nor_labels():
    """All edges, and the label of each training node as its residual."""
    with pytest.raises(FedGraphError, match=r"would send its edges and a residual of each training node.*at least 5"):
        made(FedStructAClient, "strategy=fedstruct_a").reveal({}, {})
    assert made(FedStructAClient, "strategy=fedstruct_a", min_nodes=1).reveal({}, {})[0]["graph"]["edges"].size


def test_fedstruct_sends_no_row_of_one_training_node():
    """ā_vu (ŷ_v - y_v) is zero nowhere, and negative at the label of v."""
    overrides = ["strategy=fedstruct", "dtype=float64"]
    shown = {}
    for floor in (0, 5):
        client = made(FedStructClient, *overrides, min_nodes=floor)
        rows = np.zeros((40, 40))
        train = client.train_nodes.numpy()
        rows[train[0], 0] = rows[train[:4], 1] = rows[train[:5], 2] = 0.5
        client.support = np.arange(40)
        client.set_rows(rows)
        assert nodes_behind(rows[train], len(train))[:4].tolist() == [1, 4, 5, 0]
        client.gradients = {"s": torch.ones(40, 3)}
        shown[floor] = client.send()[0]["structure"]["s"].any(1).tolist()
    assert shown == {0: [True, True, True], 5: [False, False, True]}


def test_fedstruct_sends_no_degree_of_a_single_node():
    overrides = ["strategy=fedstruct", "strategy.features=degree"]
    with pytest.raises(FedGraphError, match=r"would send the degree of each node.*at least 5"):
        made(FedStructClient, *overrides).structure_features()
    assert made(FedStructClient, *overrides, min_nodes=1).structure_features().any()

"""`min_nodes`: what a server of a fleet read from statistics of few nodes, and that it reads it no more."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients.fedfa import FedFAClient
from fedgraph_flwr.clients.fedgl import FedGLClient
from fedgraph_flwr.clients.fedgta import FedGTAClient
from fedgraph_flwr.clients.fedlit import FedLITClient
from fedgraph_flwr.clients.fedsage import FedSageClient
from fedgraph_flwr.clients.fedsage_true import FedSageTrueClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.labels import large_enough, shares
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.wire.messages import METRICS
from tests.conftest import client_graph
from tests.safety.test_policy import model_of, node  # noqa: F401 (a fixture)


def made(kind, *overrides, graph=None, **policy):
    """A client of a fleet's node."""
    client = kind(
        compose(["num_clients=3", "model.hidden=8", "model.dropout=0", *overrides]),
        client_graph(0, 40) if graph is None else graph,
    )
    client.policy = Policy(**policy)
    return client


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
def test_a_constant_model_counts_no_rare_class(node, method):  # noqa: F811
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


def test_a_confusion_matrix_is_of_the_same_nodes(node):  # noqa: F811
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


def test_fedfa_sends_no_mean_over_four_nodes():
    for size, moved in ((4, False), (12, True)):
        client = made(FedFAClient, "strategy=fedfa", "strategy.p=1", "strategy.momentum=0", graph=client_graph(0, size))
        before = {"mean": np.zeros((1, 8), np.float32), "std": np.ones((1, 8), np.float32)}
        client.receive({"running": {k: a.copy() for k, a in before.items()}, "spread": before})
        client.check_step = lambda nodes: None  # which refuses too
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


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_fedlit_sends_no_single_node(steps):
    """With `em_steps=0` the first centroids were four links; of a star, a half of each mean is the centre's own vector."""
    overrides = ["strategy=fedlit", "model=fedlit", f"strategy.em_steps={steps}"]
    for graph in (star(), client_graph(0, 40)):
        client = made(FedLITClient, *overrides, graph=graph)
        client.train()
        found, z = torch.from_numpy(client.send()[0]["links"]["centroids"]), client.embedded()
        for row in found:
            for half in row.chunk(2):
                assert not half.any() or not torch.isclose(half, z, atol=1e-5).all(1).any()
        open_ = made(FedLITClient, *overrides, graph=graph, min_nodes=0)
        open_.train()
        assert open_.send()[0]["links"]["centroids"].any()
    if steps == 0:
        assert not found.any()


def looped(client):
    """A pseudo graph of self-loops, as the group of arrays that comes down."""
    own = np.arange(client.graph.num_nodes)
    return {"label": np.full(own.size, -1), "row": own, "col": own, "weight": np.ones(own.size)}


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
    found = client.features({"wanted": {"1": np.array([0, 5, 7], np.int32), "2": np.array([9], np.int32)}}, {})[0]
    assert np.array_equal(found["features"]["1"], client.graph.x[[0, 5, 7]].numpy())
    for who, ids in (("1", range(30)), ("1", [9]), ("2", [0])):
        with pytest.raises(FedGraphError, match="requested features of nodes of client 0 that have no edge to it"):
            client.features({"wanted": {who: np.array(ids, np.int32)}}, {})
    client.policy = Policy()
    with pytest.raises(FedGraphError, match=r"features of single nodes.*at least min_nodes=5"):
        client.features({"wanted": {"1": np.array([0], np.int32)}}, {})

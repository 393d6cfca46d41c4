"""Requests of a second round of attacks on honest nodes: each succeeded before, by the default policy."""

import contextlib

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients import session
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.fedala import Ala
from fedgraph_flwr.clients.fedgcn import FedGCNClient
from fedgraph_flwr.clients.fedgl import FedGLClient
from fedgraph_flwr.clients.fedlit import FedLITClient
from fedgraph_flwr.clients.fedsage import FedSageClient
from fedgraph_flwr.clients.fedstruct import FedStructClient
from fedgraph_flwr.clients.fedstruct_a import FedStructAClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.hops import nodes_behind
from fedgraph_flwr.methods.labels import CLASS_WEIGHTS
from fedgraph_flwr.methods.variates import ACKNOWLEDGED, VARIATES
from fedgraph_flwr.models.gcn import GCN
from fedgraph_flwr.wire.messages import CLIPPING
from tests.conftest import client_graph
from tests.safety.test_few_nodes import looped, made
from tests.safety.test_policy import model_of, node  # noqa: F401 (a fixture)
from tests.safety.test_reading import SGD, binning

WIDE = ["model.hidden=64", "train.local_steps=1", *SGD]

# --- the start of a run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [0, 3, -1])
def test_a_message_that_trains_claims_no_resumption(node, resume):  # noqa: F811
    """In round 0 it was believed and trained planted parameters: one message, whatever the seed."""
    asked = node(*WIDE)
    planted = binning(model_of(asked), 64, 5)[0]
    assert f"resumes after round {resume} in a message of phase 'train'" in asked.request(
        "train", 0, {"model": planted}, resume=resume
    )
    assert "other parameters than its seed=0 gives" in asked.request("train", 0, {"model": planted})
    assert "expected phase 'describe' and no negative round" in node(*WIDE).request("describe", resume=-1)


@pytest.mark.parametrize("kind", ["scaffold", "feddc"])
def test_no_variate_plants_parameters_in_the_first_round(node, kind):  # noqa: F811
    """From the parameters of the seed, one step along c = (seed's - planted) / lr ends at the planted ones."""
    asked = node(f"strategy.variates={kind}", *WIDE, "train.local_steps=2")
    seeds = model_of(asked)
    planted = binning(seeds, 64, 5)[0]
    variate = {name: (seeds[name] - planted[name]) / 1e-3 for name in seeds}
    first = {ACKNOWLEDGED: {"round": np.zeros(1, np.int64)}, "model": seeds}
    assert "starts this run with a variate of '" in asked.request("train", 1, {**first, VARIATES: variate})
    zeros = {name: np.zeros_like(array) for name, array in seeds.items()}
    reply = node(f"strategy.variates={kind}", *WIDE).request("train", 1, {**first, VARIATES: zeros})
    assert not isinstance(reply, str), reply


def test_no_encoder_plants_parameters_that_training_keeps(node, monkeypatch):  # noqa: F811
    """In a process that stays, FedDEP's `prototype` leaves an encoder in the model, under another name than the model's."""
    monkeypatch.setattr(session, "forget", lambda run_id: None)
    overrides = ["strategy=feddep", "strategy.encoder_rounds=1", "model.hidden=64", "train.local_steps=1", *SGD[1:]]
    asked = node(*overrides, size=60)
    planted = {name: array + 1 for name, array in model_of(asked).items()}
    assert not isinstance(asked.request("prototype", 0, {"encoder": planted}), str)
    assert "other parameters than its seed=0 gives" in asked.request("train", 1)


@pytest.mark.parametrize(
    ("scalars", "message"),
    [
        ({"keep": True, "run": "r"}, "has best=None, expected int"),
        ({"keep": True, "run": "r", "best": "x"}, "has best=x, expected int"),
        ({"keep": "yes", "run": "r", "best": 1}, "has keep=yes, expected bool"),
        ({"checkpoint": True, "run": 7}, "has run=7, expected str"),
        ({"evaluate": "yes"}, "has evaluate=yes, expected bool"),
    ],
)
def test_scalars_of_a_message_have_their_types(node, scalars, message):  # noqa: F811
    """Some were tracebacks at the node."""
    asked = node()
    assert message in asked.request("train", 1, {"model": model_of(asked)}, **scalars)


# --- steps on few nodes -----------------------------------------------------------------------------------------------


def test_fedala_learns_weights_on_no_single_node():
    """With a small ``ala.sample``, the start of training, and so the reply, followed from the gradient of one node."""
    for floor, nodes in ((0, 1), (5, 5)):
        client = made(GraphClient, "strategy=fedala", "strategy.ala.sample=0.01", min_nodes=floor)
        (part,) = client.combined.all
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
        client.plain_reply("train", {CLASS_WEIGHTS: {"w": np.array(weights, np.float64)}}, {})
    client.plain_reply("train", {CLASS_WEIGHTS: {"w": np.array([0.5, 0.6, 3.0])}}, {})
    made(GraphClient, *overrides, graph=graph, min_nodes=0).plain_reply(
        "train", {CLASS_WEIGHTS: {"w": np.array(weights, np.float64)}}, {}
    )


def test_the_focal_loss_leaves_more_than_one_node():
    """With gamma=1e6 the gradient was that of the worst-predicted node."""
    with pytest.raises(FedGraphError, match=r"train\.focal_gamma must be .*10"):
        compose(["train.loss=focal", "train.focal_gamma=1e6"])


@pytest.mark.parametrize("norm", [float("nan"), -1.0, float("inf"), 1e300, 2e6, 1e-300])
def test_adaptive_norms_stay_in_the_range_of_an_honest_server(node, norm):  # noqa: F811
    """With C = 1e300 a client's update left it unclipped, and with 1e-300 as zeros."""
    overrides = ["strategy.weighting=uniform", "privacy.noise_multiplier=1", "privacy.dp=client_adaptive"]
    asked = node(*overrides, "privacy.clipping_norm=1")
    groups = {"model": model_of(asked), CLIPPING: {"model": np.array([norm])}}
    assert "no clipping norm > 0 for group 'model' within a factor of 1e+06 of the first, 1" in asked.request(
        "train", 1, groups
    )
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
        with pytest.raises(FedGraphError, match=r"does not match .* weights from 0 to 1"):
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
    assert client.ends(client.types).sum(2).min() >= 5
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


# --- sizes ------------------------------------------------------------------------------------------------------------


class Uncountable(GCN):
    """A model that reads a value while it is built, which the meta device has none of."""

    def __init__(self, *sizes, **keywords):
        super().__init__(*sizes, **keywords)
        float(next(self.parameters()).sum())


def test_a_model_that_cannot_be_counted_is_not_built(node):  # noqa: F811
    """It was built first and counted afterwards."""
    overrides, policy = [f"model={__name__}:Uncountable"], {"modules": ["tests"]}
    assert "cannot be counted before it is built (RuntimeError" in node(*overrides, policy=policy).request("describe")
    listed = node(*overrides, policy={**policy, "networks": [f"{__name__}:Uncountable"]})
    assert not isinstance(listed.request("describe"), str)

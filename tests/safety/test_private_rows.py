"""Privacy of single rows at the wire and at a node: only noised sums leave it, and its ledger outlives runs and processes."""

import itertools
import json

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients.fedgrad import FedGradClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.secure.accounting import skellam_epsilon
from fedgraph_flwr.secure.rows import ROUNDING
from tests.conftest import client_graph
from tests.nodes import model_of
from tests.support import recorded_messages

ROW = [
    "strategy=fedgrad",
    "model=mlp",
    "model.dropout=0",
    "privacy.unit=row",
    "privacy.dp=local",
    "privacy.scores=none",
]
ROW += ["privacy.rows=8", "privacy.noise_multiplier=1"]
SECURE = ["privacy.dp=distributed", "privacy.secagg=true", "privacy.secagg_bits=20"]


@pytest.fixture
def exact(monkeypatch):
    """Collect the sums without noise of all clients."""
    totals, own_rows = [], vars(FedGradClient)["training_rows"]
    real = own_rows.func

    def watched(self):
        rows = real(self)
        sums = rows.clipped_sums

        def recorded(*args):
            totals.append(sums(*args))
            return totals[-1]

        rows.clipped_sums = recorded
        return rows

    monkeypatch.setattr(own_rows, "func", watched)
    return totals


def numbers_of(messages):
    return {key for content in messages for record in content.metric_records.values() for key in record}


@pytest.mark.parametrize("secure", [[], SECURE])
def test_no_message_holds_anything_without_noise(run, monkeypatch, exact, secure):
    """Train replies hold the noised sum and the client's number; no loss, score, size or exact sum is in any message."""
    with recorded_messages(monkeypatch) as seen:
        run(*ROW, *secure, "privacy.batch=4", sizes=(16, 16, 16))
    up = [content for way, _, content in seen if way == "up"]
    assert numbers_of(up) <= {"client", "num_features", "num_classes", "protocol"}
    trained = [content.array_records["model"] for content in up if "model" in content.array_records]
    assert len(trained) == len(exact) == 9
    assert {group for content in up for group in content.array_records} <= {"model", "secagg"}
    for sent in trained:
        for sums in exact:
            for name, total in sums.items():
                array = sent[name].numpy()
                if secure:
                    assert array.dtype == np.uint64
                else:
                    noise = torch.from_numpy(array) - total
                    assert noise.abs().max() > 0.05
                    assert noise.abs().min() > 0


def test_a_node_replies_to_no_other_request(node):
    asked = node(*ROW, policy={"min_nodes": 0})
    described = asked.request("describe", 0)
    assert set(described.metric_records["metrics"]) == {"client", "num_features", "num_classes", "protocol"}
    assert "only its own log has the reason" in asked.request("evaluate", 1, {"model": model_of(asked)})
    other = node(*ROW, "privacy.scores=none", "strategy.double_softmax=true", policy={"min_nodes": 0})
    assert "only its own log has the reason" in other.request("train", 1, {"model": model_of(other)})
    wrong = node("strategy=fedavg", *ROW[1:], policy={"min_nodes": 0})
    assert "does not: set strategy=fedgrad" in wrong.request("describe", 0)


def test_few_rows_are_no_reason_to_refuse(node):
    """A refusal would tell that a party has fewer rows than its policy's least."""
    asked = node(*ROW, policy={"min_nodes": 50})
    reply = asked.request("train", 1, {"model": model_of(asked)})
    assert set(reply.metric_records["metrics"]) == {"client"}


def test_the_ledger_outlives_a_node_and_bounds_all_runs(node, tmp_path):
    limit = skellam_epsilon(1e-5, 1.0, 2, 2.0**19, 0.5) * 1.001
    words = [*ROW, "privacy.batch=4"]
    for number, allowed in enumerate((True, True, False)):
        asked = node(*words, policy={"min_nodes": 0, "max_epsilon": limit, "check_start": False}, state=True)
        reply = asked.request("train", 1, {"model": model_of(asked)})
        assert (not isinstance(reply, str)) == allowed, reply
        if not allowed:
            assert "over all runs of purpose 'training' (max_epsilon)" in reply
        booked = json.loads((tmp_path / "state" / "privacy_training_row.json").read_text())
        assert sum(entry["releases"] for entry in booked.values()) == min(number + 1, 2)
        assert {entry["sampling_rate"] for entry in booked.values()} == {0.5}


def test_without_a_bound_the_ledger_is_kept_too(node, tmp_path):
    asked = node(*ROW, policy={"min_nodes": 0}, state=True)
    asked.request("train", 1, {"model": model_of(asked)})
    assert (tmp_path / "state" / "privacy_training_row.json").is_file()


SIZES = list(itertools.product((1e8, 1e12), (1e-4, 1e-16), (1e2, 1e8, 1e16)))
"""Parameters that a server chooses: the first layer's bias, the second's weights, and the readout's weights (`plant`)."""

EDGES = ["task=edges", "split.kind=ratio"]


def planted_client(graph, *overrides):
    cfg = compose([*ROW, "num_clients=3", "model.hidden=6", "dtype=float64", *overrides])
    return FedGradClient(cfg, graph)


def plant(client, bias, inner, readout):
    """Set parameters for which the two ends of an edge almost cancel, where a model has such ends."""
    tensors, weights = client.model.tensors, torch.Generator().manual_seed(0)
    with torch.no_grad():
        tensors["layers.0.bias"].fill_(bias)
        for name, size in (("layers.1.weight", inner), ("head.weight", inner), ("readout.source.weight", readout)):
            if name in tensors:
                tensors[name].copy_(size * torch.randn(tensors[name].shape, dtype=torch.float64, generator=weights))
        if "readout.target.weight" in tensors:
            tensors["readout.target.weight"].copy_(-tensors["readout.source.weight"])


def private_graph(rows=8, edges=False):
    graph = client_graph(0, rows, num_edge_features=4 if edges else 0)
    if edges:
        graph.edge_y = torch.arange(graph.num_edges) % 2
        graph.num_edge_classes = 2
    return graph


@pytest.mark.parametrize(
    "overrides",
    [["task=nodes"], ["task=nodes", "model=sign", "model.hops=0"], EDGES, [*EDGES, "model.layers=3"]],
    ids=["mlp", "sign", "edges", "deep edges"],
)
def test_a_row_moves_a_sum_by_the_norm_at_most(overrides):
    """Whatever parameters a server chooses: norms by inner products of both ends let one edge move a sum by 1e16 norms."""
    bound = 0.5
    client = planted_client(private_graph(edges="task=edges" in overrides), *overrides)
    rows = client.training_rows
    places = torch.arange(len(rows.y))

    def total(chosen):
        return torch.cat([t.ravel() for t in rows.clipped_sums(chosen, bound).values()])

    for sizes in SIZES:
        plant(client, *sizes)
        every = total(places)
        assert bool(every.isfinite().all())
        for left_out in places:
            assert total(left_out[None]).norm() <= bound * (1 + 1e-9), sizes
            moved = every - total(places[places != left_out])
            assert moved.norm() <= bound * (1 + ROUNDING), sizes


@pytest.mark.parametrize("dp", ["local", "distributed"])
def test_planted_parameters_do_not_widen_what_a_node_releases(dp):
    """The whole release of one edge: without noise, it is within the norm that ε counts, whichever side adds the noise."""
    words = SECURE if dp == "distributed" else []
    client = planted_client(private_graph(edges=True), *EDGES, *words)
    rows = client.training_rows
    plant(client, 1e12, 1e-16, 1e16)
    rows.y, rows.ends, rows.attr = rows.y[:1], rows.ends[:, :1], rows.attr[:1]
    shared = client.shared
    released = torch.cat([torch.as_tensor(v).ravel().double() for v in rows.released(shared).values()])
    assert released.norm() <= 1 + 1e-9 + (dp == "local") * 12 * released.numel() ** 0.5


@pytest.mark.parametrize("overrides", [["task=nodes"], EDGES], ids=["mlp", "edges"])
def test_a_row_has_the_same_bits_among_other_rows(overrides):
    """Rounding that depends on other rows, amplified by planted parameters, would change all terms of a sum at once."""
    client = planted_client(private_graph(40, edges="task=edges" in overrides), *overrides)
    plant(client, 1e12, 1e-8, 1e8)
    rows, values = client.training_rows, {n: t.detach().double() for n, t in client.model.named_parameters()}
    places = torch.arange(len(rows.y))

    def gradients(chosen):
        return [(tap.a, tap.grad) for tap in rows._taps(values, chosen)]

    every = gradients(places)
    for chosen in (places.flip(0), places[5:], places[::3], places[7:8]):
        for (a, grad), (a_all, grad_all) in zip(gradients(chosen), every, strict=True):
            assert torch.equal(a, a_all[:, chosen])
            assert torch.equal(grad, grad_all[:, chosen])


@pytest.mark.parametrize("multiplier", [1e5, 3e7, 1e9, 1e30])
def test_noise_that_cannot_be_drawn_is_no_noise(node, multiplier):
    """Far above 2^53 variates have no low bits, and above 2^63 all are equal: an exact sum left for an ε of 0."""
    asked = node(*[*ROW[:-1], f"privacy.noise_multiplier={multiplier:g}", "model.hidden=512"], policy={"min_nodes": 0})
    reply = asked.request("train", 1, {"model": model_of(asked)})
    assert isinstance(reply, str)
    assert "only its own log has the reason" in reply


@pytest.mark.parametrize("overrides", [["task=nodes"], EDGES], ids=["mlp", "edges"])
@pytest.mark.parametrize("bound", [1e-300, 1e-200, 1e-12, 1.0, 1e150])
def test_a_norm_whose_square_vanishes_or_overflows_is_a_norm(overrides, bound):
    """A server chooses the norm, too: with 1e-200, gradients of 1e-163 have a square of 0 and once left whole."""
    client = planted_client(private_graph(edges="task=edges" in overrides), *overrides, "model.layers=3")
    rows, tensors = client.training_rows, client.model.tensors
    last = "readout.last.bias" if "readout.last.bias" in tensors else "head.bias"
    for sure, wide in itertools.product((0.0, 40.0, 375.0, 740.0), (1e-160, 1.0, 1e75, 1e150)):
        with torch.no_grad():
            for tensor in tensors.values():
                tensor.zero_()
            for name in [name for name in tensors if name.endswith("bias") and name != last]:
                tensors[name].fill_(wide)
            tensors[last][0] = sure
        for row in range(len(rows.y)):
            gradient = np.concatenate(
                [t.numpy().ravel() for t in rows.clipped_sums(torch.tensor([row]), bound).values()]
            )
            largest = np.abs(gradient).max()
            assert np.isfinite(largest)
            length = largest * np.linalg.norm(gradient / largest) if largest else 0.0
            assert length <= bound * (1 + 1e-9), (sure, wide, row)

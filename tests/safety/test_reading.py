"""Number of training nodes that one update of a model of the server's choice shows; docs/attacks.md has these scores."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.secure.policy import Policy
from tests.conftest import client_graph
from tests.nodes import SGD, binning, model_of


def rows_read(sent, trained, first, bias, graph):
    """Training nodes whose features are among the quotients of differences of neighbouring units' gradients, to 1 %."""
    slope, of_bias = (np.diff(sent[name] - trained[name], axis=-1) for name in (first, bias))
    quotients = (slope / np.where(np.abs(of_bias) > 1e-15, of_bias, np.nan)).T
    rows = graph.x[graph.train_mask].double().numpy()
    return sum(bool(np.nanmin(np.linalg.norm(quotients - row, axis=1)) < 1e-2 * np.linalg.norm(row)) for row in rows)


@pytest.mark.parametrize(
    ("nodes", "width", "read"),
    [(60, 8, 1), (60, 64, 15), (60, 256, 25), (60, 1000, 28), (200, 64, 21), (200, 256, 63), (200, 1000, 85)],
)
def test_rows_that_one_update_shows(nodes, width, read):
    graph = client_graph(0, nodes, num_features=20)
    overrides = ["num_clients=3", f"model.hidden={width}", "train.local_steps=1", *SGD]
    client = GraphClient(compose(overrides), graph)
    sent, first, bias = binning({n: t.detach().numpy() for n, t in client.shared.items()}, width, 20)
    trained = dict(zip(client.shared, client.fit([sent[name] for name in client.shared], {})[0], strict=True))
    assert abs(rows_read(sent, trained, first, bias, graph) - read) <= 2


@pytest.mark.parametrize(("width", "read"), [(64, 6), (1000, 27)])
def test_rows_that_a_sum_of_three_shows(width, read):
    """Of the 30 training nodes of each client, on average: one is alone between two thresholds, whoever has it."""
    overrides = ["num_clients=3", f"model.hidden={width}", "train.local_steps=1", *SGD]
    graphs = [client_graph(client, 60, num_features=20) for client in range(3)]
    clients = [GraphClient(compose(overrides), graph) for graph in graphs]
    sent, first, bias = binning({n: t.detach().numpy() for n, t in clients[0].shared.items()}, width, 20)
    updates = [client.fit([sent[name] for name in client.shared], {})[0] for client in clients]
    mean = [np.mean(arrays, axis=0) for arrays in zip(*updates, strict=True)]
    trained = dict(zip(clients[0].shared, mean, strict=True))
    counts = [rows_read(sent, trained, first, bias, graph) for graph in graphs]
    assert abs(np.mean(counts) - read) <= 2, counts


def test_the_first_round_shows_none(node):
    """The node builds the first parameters itself, and a refused start holds; those of a later round it cannot know."""
    overrides = ["model.hidden=64", "train.local_steps=1", *SGD]
    refused = node(*overrides)
    sent, _, _ = binning(model_of(refused), 64, 5)
    for server_round in (1, 2):
        assert "other parameters than its seed=0 gives" in refused.request("train", server_round, {"model": sent})
    started = node(*overrides)
    assert not isinstance(started.request("train", 1, {"model": model_of(started)}), str)
    assert not isinstance(started.request("train", 2, {"model": sent}), str)


SEEDS = range(5)
"""The first two show rows at each of `FAR`."""

FAR = [
    ["train.lr=1e4", "train.local_steps=2"],
    ["strategy=fedsam", "strategy.sam.rho=1e4", "train.lr=0.1", "train.local_steps=1"],
]
NEAR = [
    ["train.lr=1", "train.local_steps=2"],
    ["train.lr=1", "train.local_steps=20"],
    ["strategy=fedsam", "strategy.sam.rho=1", "train.lr=1", "train.local_steps=1"],
]


def rows_in_first_update(*words: str) -> int:
    """Training nodes whose features are quotients of single units in the first update of a run, over some seeds."""
    count = 0
    for seed in SEEDS:
        graph = client_graph(0, 60, num_features=20)
        torch.manual_seed(seed)
        client = GraphClient(compose(["num_clients=3", "model.hidden=1000", *SGD, *words]), graph)
        sent = {name: tensor.detach().numpy().copy() for name, tensor in client.shared.items()}
        trained = dict(zip(client.shared, client.fit([sent[name] for name in client.shared], {})[0], strict=True))
        first, bias = (next(n for n, a in sent.items() if a.shape == shape) for shape in ((20, 1000), (1000,)))
        slope, of_bias = (sent[name] - trained[name] for name in (first, bias))
        quotients = (slope / np.where(np.abs(of_bias) > 1e-15, of_bias, np.nan)).T
        rows = graph.x[graph.train_mask].double().numpy()
        count += sum(
            bool(np.nanmin(np.linalg.norm(quotients - row, axis=1)) < 1e-2 * np.linalg.norm(row)) for row in rows
        )
    return count


@pytest.mark.parametrize("words", FAR)
def test_a_step_as_long_as_the_server_likes_reads_the_first_message_and_is_refused(node, words):
    """The parameters are the seed's: the configuration alone takes them to where few nodes are in a gradient."""
    assert rows_in_first_update(*words) >= 4
    where = "strategy.sam.rho=10000" if "strategy=fedsam" in words else "train.lr=10000"
    assert f"{where}: it accepts at most 1 (max_lr)" in node(*words, "train.optimizer=sgd").request("describe")
    assert not isinstance(node(*words, policy={"max_lr": 1e5}).request("describe"), str)


@pytest.mark.parametrize("words", NEAR)
def test_the_longest_step_that_the_default_policy_accepts_reads_nothing(node, words):
    assert rows_in_first_update(*words) == 0
    assert not isinstance(node(*words).request("describe"), str)


def test_no_stored_configuration_has_a_longer_step():
    """What the bound costs those who train: nothing that this repository ships."""
    root = Path(__file__).parents[2]
    files = [
        *root.glob("conf/**/*.yaml"),
        *root.glob("simulations/*.yaml"),
        *root.glob("fedgraph_baselines/conf/**/*.yaml"),
    ]
    text = "\n".join(path.read_text() for path in files)
    rates = [float(rate) for rate in re.findall(r"(?:train\.lr=|\blr: |sam\.rho=|\brho: )([0-9.]+(?:e-?\d+)?)", text)]
    assert len(rates) > 70
    assert max(rates) <= Policy().max_lr

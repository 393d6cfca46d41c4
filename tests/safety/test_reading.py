"""Number of training nodes that one update of a model of the server's choice shows; docs/attacks-details.md has these scores."""

import numpy as np
import pytest

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from tests.conftest import client_graph
from tests.nodes import SGD, binning, model_of


def rows_read(sent, trained, first, bias, graph):
    """Training nodes whose features are among the quotients of differences of neighbouring units' gradients, to 1 %."""
    slope, of_bias = (np.diff(sent[name] - trained[name], axis=-1) for name in (first, bias))
    found = (slope / np.where(np.abs(of_bias) > 1e-15, of_bias, np.nan)).T
    rows = graph.x[graph.train_mask].double().numpy()
    return sum(bool(np.nanmin(np.linalg.norm(found - row, axis=1)) < 1e-2 * np.linalg.norm(row)) for row in rows)


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

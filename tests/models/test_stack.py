"""Normalisation between layers, and networks of the user's own."""

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.state import state_of
from fedgraph_flwr.config import ModelConfig, compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import Model, build, probe
from tests.conftest import client_graph

NORMED = ["gcn", "sage", "mlp", "acm"]


def network(name: str, norm: str, layers: int = 3) -> Model:
    torch.manual_seed(0)
    model = build(ModelConfig(name, hidden=8, layers=layers, dropout=0, params={"norm": norm}), 5, 3).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return model


@pytest.mark.parametrize("name", NORMED)
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_normalisation_stands_after_each_hidden_convolution(name, norm):
    """The activation's input, layer by layer: mean 0 and variance 1 over nodes (batch) or features, then scaled and shifted."""
    model = network(name, norm)
    inputs = model.prepare(client_graph(0), dtype=torch.float64)
    given, scaled = [], []
    for layer in model.norms:
        layer.register_forward_pre_hook(lambda _, args: given.append(args[0]))
        layer.register_forward_hook(lambda _, args, out: scaled.append(out))
    hidden = model.hidden(inputs)
    assert torch.equal(given[0], model.convolve(model.layers[0], inputs.x, inputs))
    for i in range(2):
        z, axis = given[i].detach().numpy(), {"batch": 0, "layer": 1}[norm]
        unit = (z - z.mean(axis, keepdims=True)) / np.sqrt(z.var(axis, keepdims=True) + 1e-5)
        w = {key: tensor.detach().numpy() for key, tensor in model.norms[i].state_dict().items()}
        expected = unit * w["weight"] + w["bias"]
        np.testing.assert_allclose(scaled[i].detach(), expected, atol=1e-12)
        np.testing.assert_allclose(hidden[i].detach(), np.maximum(expected, 0), atol=1e-12)
    assert {k for k in model.state_dict() if k.startswith("norms.")} >= {"norms.0.weight", "norms.1.bias"}
    assert not [k for k in network(name, "none").state_dict() if k.startswith("norms.")]


def test_scoring_uses_the_running_statistics_of_training():
    """After one pass from mean 0 and variance 1, with momentum 0.1 and the unbiased variance; scoring does not move them."""
    model = network("mlp", "batch", layers=2)
    inputs = model.prepare(client_graph(0), dtype=torch.float64)
    z = (inputs.x @ model.layers[0].weight + model.layers[0].bias).detach().numpy()
    model.train()(inputs)
    mean, variance = 0.1 * z.mean(0), 0.9 + 0.1 * z.var(0, ddof=1)
    np.testing.assert_allclose(model.norms[0].running_mean, mean)
    np.testing.assert_allclose(model.norms[0].running_var, variance)
    scored = (z - mean) / np.sqrt(variance + 1e-5)
    expected = np.maximum(scored * model.norms[0].weight.detach().numpy() + model.norms[0].bias.detach().numpy(), 0)
    np.testing.assert_allclose(model.eval().encode(inputs).detach(), expected)
    np.testing.assert_allclose(model.norms[0].running_mean, mean)


@pytest.mark.parametrize("name", NORMED)
def test_standardize_reads_the_nodes_of_the_graph_and_has_no_parameters(name):
    """Mean 0 and variance 1 over the nodes of any graph, in training and in scoring alike."""
    model = network(name, "standardize")
    assert not [key for key in model.state_dict() if key.startswith("norms.")]
    given: list[torch.Tensor] = []
    for layer in model.norms:
        layer.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    for mode, seed in ((True, 0), (False, 0), (False, 1)):
        given.clear()
        hidden = model.train(mode).hidden(model.prepare(client_graph(seed), dtype=torch.float64))
        for z, h in zip(given, hidden, strict=True):
            spread = z - z.mean(0)
            np.testing.assert_allclose(
                h.detach(), (spread / (spread.square().mean(0) + 1e-5).sqrt()).relu().detach(), atol=1e-12
            )


def test_running_statistics_travel_and_counters_do_not():
    model = network("gcn", "batch", layers=2)
    kept = {"norms.0.weight", "norms.0.bias", "norms.0.running_mean", "norms.0.running_var"}
    assert {name for name in model.shared([""]) if name.startswith("norms.")} == kept
    assert model.shared([""]).keys() - model.shared([""], ["norms."]).keys() == kept
    assert "norms.0.num_batches_tracked" in model.state_dict()


def test_a_federation_averages_running_statistics(run):
    finished = run("model.norm=batch", "rounds=2")
    arrays = finished.arrays
    assert np.abs(arrays["norms.0.running_mean"]).max() > 0
    assert "norms.0.num_batches_tracked" not in arrays
    assert set(arrays) == set(GraphClient(finished.cfg, client_graph(0)).shared)
    private = state_of(GraphClient(compose(["model.norm=batch"]), client_graph(0)))
    assert list(private["model"]) == ["norms.0.num_batches_tracked"]


def test_one_node_has_no_variance():
    with pytest.raises(FedGraphError, match=r"model\.norm=batch needs at least 2 nodes per client, got 1"):
        network("gcn", "batch").prepare(client_graph(0, num_nodes=1))
    network("gcn", "layer").prepare(client_graph(0, num_nodes=1))


def test_an_unknown_norm_is_refused():
    with pytest.raises(FedGraphError, match=r"model\.norm 'bach' is unknown.*did you mean 'batch'"):
        network("gcn", "bach")


# --- networks of the user's own ------------------------------------------------------------------------------------------

OWN = """
from __future__ import annotations

from fedgraph_flwr.models import MODELS, Stack
from fedgraph_flwr.models.layers import Linear


class Square(Stack):
    def __init__(self, num_features, num_classes, *, hidden: int, layers: int, dropout: float, width: int = 2):
        super().__init__(num_features, num_classes, Linear, hidden=width, layers=layers, dropout=dropout)

    def convolve(self, layer, h, inputs):
        return inputs.adj @ layer(h) ** 2


class Short(Square):
    def __init__(self, num_features, num_classes, *, hidden: int):
        super().__init__(num_features, num_classes, hidden=hidden, layers=2, dropout=0)
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "own_networks.py").write_text(OWN)
    monkeypatch.syspath_prepend(folder)


@pytest.mark.parametrize("word", ["model=own_networks:Square", "model.name=own_networks:Square"])
def test_a_network_of_the_users_own_is_trained(own, run, word):
    arrays = run(word, "model.width=4").arrays
    assert {name: a.shape for name, a in arrays.items()} == {
        "layers.0.weight": (5, 4),
        "layers.0.bias": (4,),
        "head.weight": (4, 3),
        "head.bias": (3,),
    }


def test_it_survives_the_resolved_configuration(own):
    from fedgraph_flwr.config import to_json

    cfg = compose(["model=own_networks:Square", "model.width=4"])
    assert compose([], to_json(cfg)).model == cfg.model
    assert (cfg.model.hidden, cfg.model.params) == (64, {"width": 4})


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["model=own_networks:Square", "model.with=4"], "key 'with' is unknown; did you mean 'width'"),
        (["model=own_networks:Square", "model.width=wide"], r"model\.width .* must be an integer, got 'wide'"),
        (["model=own_networks:Cube"], "'own_networks:Cube' cannot be imported"),
        (["model=no_such_module:Net"], "'no_such_module:Net' cannot be imported"),
        (["model=own_networks:MODELS"], "is not a class of torch modules"),
        (["model=own_networks:Linear"], r"expected forward\(x, edge_index\)"),
        (["model=own_networks:Short"], "must accept layers, dropout as keyword arguments"),
    ],
)
def test_it_is_checked_like_ours(own, overrides, says):
    with pytest.raises(FedGraphError, match=says):
        probe(compose(overrides).model)


def test_choosing_another_network_by_name_drops_the_keys_of_the_one_before():
    with pytest.raises(FedGraphError, match=r"model=sage and model\.name=gat select different names"):
        compose(["model=sage", "model.name=gat"])
    assert "norm" not in compose(["model.name=gat"]).model.params
    assert compose(["model=sage", "model.name=sage"]).model.params["norm"] == "none"


class Frozen(torch.nn.Linear):
    """A layer that stays in one mode, as a frozen normalisation would."""

    def train(self, mode: bool = True) -> "Frozen":
        return super().train(False)


def test_a_mode_reaches_every_part_and_leaves_to_a_part_of_the_users_own_what_it_does_with_it():
    model = network("gcn", "layer")
    for mode in (False, True):
        assert model.train(mode) is model
        assert all(part.training is mode for part in model.modules())
    model.add_module("own", Frozen(2, 2))
    model.train()
    assert not model.get_submodule("own").training
    assert all(part.training for name, part in model.named_modules() if name != "own")


class Counting(torch.nn.Linear):
    """A layer that acts when it is put into another mode, as compiled ones do."""

    modes = 0

    def __setattr__(self, name, value):
        if name == "training":
            vars(self)["modes"] = self.modes + 1
        super().__setattr__(name, value)


def test_a_part_that_acts_on_its_mode_is_told():
    model = network("gcn", "layer")
    model.add_module("own", Counting(2, 2))
    before = model.get_submodule("own").modes
    model.eval()
    assert model.get_submodule("own").modes == before + 1
    with pytest.raises(ValueError, match="boolean"):
        model.train("yes")

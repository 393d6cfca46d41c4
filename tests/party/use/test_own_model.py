"""The export of a user's own PyG model: what plain() must be, and what is said where it is missing or wrong."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from fedgraph_flwr import cli
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.use.export import export, load_export
from fedgraph_flwr.party.use.predict import load_predictor

PLAIN = """
    import torch

    class SumNet(torch.nn.Module):
        def __init__(self, features, hidden, classes):
            super().__init__()
            self.first = torch.nn.Linear(features, hidden)
            self.out = torch.nn.Linear(hidden, classes)

        def hidden(self, x, edge_index):
            return torch.relu(x + torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]) @ torch.eye(x.size(1)))

        def forward(self, x, edge_index):
            return self.out(torch.relu(self.first(self.hidden(x, edge_index))))
"""
MODEL = """
    from dataclasses import dataclass
    import torch
    from fedgraph_flwr.models.base import Inputs, Model
    from fedgraph_flwr.models.plain import Plain
    from own_plain import SumNet

    @dataclass
    class Edges(Inputs):
        edge_index: torch.Tensor

    class Silent(Model):
        head_prefixes = ("net.out.",)
        dense_features = True

        def __init__(self, num_features, num_classes, *, hidden, layers, dropout):
            super().__init__()
            self.arguments = {"features": num_features, "hidden": hidden, "classes": num_classes}
            self.net = SumNet(**self.arguments)

        def prepare(self, graph, device="cpu", dtype=torch.float32):
            base = super().prepare(graph, device, dtype)
            return Edges(base.x, base.adj, edge_index=graph.edge_index.to(device))

        def encode(self, inputs):
            return torch.relu(self.net.first(self.net.hidden(inputs.x, inputs.edge_index)))

        def classify(self, h, inputs):
            return self.net.out(h)

    class Told(Silent):
        def plain(self):
            return Plain("own_plain:SumNet", self.arguments, self.net.state_dict())

    class Here(Silent):
        def plain(self):
            return Plain("own_model:SumNet2", self.arguments, self.net.state_dict())

    class SumNet2(SumNet):
        pass
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """``own(name)``: the predictor of a run with that model."""
    place = tmp_path_factory.mktemp("own")
    (place / "own_plain.py").write_text(textwrap.dedent(PLAIN))
    (place / "own_model.py").write_text(textwrap.dedent(MODEL))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAPH_DATA", str(place / "root"))
        patch.syspath_prepend(str(place))

        def run(name):
            out = place / name
            overrides = [f"model=own_model:{name}", "num_clients=3", "rounds=1", "model.hidden=8", f"out={out}"]
            assert cli.main(["run", *overrides, "--quiet", "--no-report"]) == 0
            return load_predictor(out, 0)

        yield run


def test_a_model_without_plain_says_how_to_define_it(own, tmp_path):
    with pytest.raises(
        FedGraphError, match=r"a Silent cannot be exported: define plain\(\) on it, returning Plain\('module:Class'"
    ):
        export(own("Silent"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_model_with_plain_is_exported_and_loads_without_our_package(own, tmp_path):
    predictor = own("Told")
    folder = export(predictor, tmp_path / "out")
    graph = predictor.probe()
    torch.save([graph.x, graph.edge_index], tmp_path / "graph.pt")
    code = (
        "import sys; sys.modules['fedgraph_flwr'] = None; sys.path.insert(0, 'out'); import model, torch;"
        "x, e = torch.load('graph.pt'); torch.save(model.load()(x, e), 'logits.pt')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    logits = torch.load(tmp_path / "logits.pt").detach()
    np.testing.assert_allclose(logits, predictor.logits(graph), rtol=0, atol=1e-5)
    with pytest.raises(FedGraphError, match=r"holds the custom model own_plain:SumNet: predict with its model\.py"):
        load_export(folder)


def test_a_module_that_needs_our_package_is_refused(own, tmp_path):
    with pytest.raises(FedGraphError, match=r"plain\(\) names own_model:SumNet2, whose file .* imports fedgraph_flwr"):
        export(own("Here"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_our_own_models_that_cannot_be_exported_do_not_ask_for_plain():
    from fedgraph_flwr import models

    cfg = compose(["strategy=fedstar"])
    with pytest.raises(FedGraphError, match="plain PyG has no such layers"):
        models.network(cfg.model)(4, 2, hidden=8, layers=2, dropout=0.0).plain()

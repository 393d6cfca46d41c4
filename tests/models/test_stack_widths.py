"""The widths of a stack's hidden layers, where they differ."""

import pytest
import torch

from fedgraph_baselines.clients.fedfa import FedFAClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import build, probe

SAGE = ["model=sage", "model.layers=2", "model.head=true"]


def test_hidden_layers_are_as_wide_as_they_are_told():
    model = build(compose([*SAGE, "model.widths=[9,5,3]", "model.norm=layer"]).model, 4, 2)
    shapes = [tuple(layer.itself.weight.shape) for layer in model.layers]
    assert shapes == [(4, 9), (9, 5)]  # as many widths as there are layers
    assert [norm.weight.numel() for norm in model.norms] == [9, 5]
    assert tuple(model.head.weight.shape) == (5, 2)
    torch.manual_seed(0)
    plain = build(compose([*SAGE, "model.hidden=6"]).model, 4, 2)
    torch.manual_seed(0)
    twin = build(compose([*SAGE, "model.hidden=6", "model.widths=[6,6]"]).model, 4, 2)
    assert all(map(torch.equal, plain.state_dict().values(), twin.state_dict().values()))


def test_wrong_widths_are_named():
    for widths in ("[9]", "[9,0]"):
        with pytest.raises(FedGraphError, match="widths must be at least 2 numbers >= 1"):
            probe(compose([*SAGE, f"model.widths={widths}"]).model)
    cfg = compose(["strategy=fedfa", *SAGE, "model.widths=[9,5]"])
    with pytest.raises(FedGraphError, match=r"of width model.hidden=.*, got model.widths=\[9, 5\]"):
        FedFAClient.check(cfg, probe(cfg.model))

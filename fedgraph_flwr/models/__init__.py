"""GNN modules and layers; no federation in them."""

import inspect
from typing import Any

from fedgraph_flwr.config import ModelConfig, locate
from fedgraph_flwr.errors import FedGraphError, unknown
from fedgraph_flwr.models.base import Inputs, Model

__all__ = ["MODELS", "Inputs", "Model", "build"]

MODELS = {
    "acm": "fedgraph_flwr.models.acm:ACMGCN",
    "decoupled": "fedgraph_flwr.models.decoupled:DecoupledGCN",
    "gat": "fedgraph_flwr.models.gat:GAT",
    "mlp": "fedgraph_flwr.models.mlp:MLP",
    "sage": "fedgraph_flwr.models.sage:GraphSAGE",
    "fedhero": "fedgraph_flwr.models.fedhero:FedHERO",
    "fedstruct": "fedgraph_flwr.models.fedstruct:FedStruct",
    "gcn": "fedgraph_flwr.models.gcn:GCN",
    "projected_gcn": "fedgraph_flwr.models.projected_gcn:ProjectedGCN",
    "fedomd": "fedgraph_flwr.models.fedomd:OrthoGCN",
    "rgcn": "fedgraph_flwr.models.rgcn:RGCN",
    "simple_hgn": "fedgraph_flwr.models.simple_hgn:SimpleHGN",
    "fedspa": "fedgraph_flwr.models.fedspa:FedSPANet",
}


def build(cfg: ModelConfig, num_features: Any, num_classes: int) -> Model:
    """The network that ``cfg`` names, freshly initialised from torch's global generator.

    Its class takes (F, C) and, by keyword, ``hidden``, ``layers``, ``dropout`` and what ``cfg.params`` holds; F is a list
    for typed graphs (``HeteroGraph.num_features``).

    Raises:
        FedGraphError: no such model, one for another kind of graph, or a key it does not know.
    """
    if cfg.name not in MODELS:
        raise unknown("model", cfg.name, MODELS)
    network: Any = locate(MODELS[cfg.name])
    if isinstance(num_features, list) != network.heterogeneous:
        kinds = ("one type of nodes", "typed nodes and edges")
        raise FedGraphError(
            f"model={cfg.name} is for graphs with {kinds[network.heterogeneous]}, this one has {kinds[not network.heterogeneous]}"
        )
    accepted = [name for name in inspect.signature(network).parameters if name not in ("num_features", "num_classes")]
    given = {"hidden": cfg.hidden, "layers": cfg.layers, "dropout": cfg.dropout, **cfg.params}
    for key in cfg.params:
        if key not in accepted:
            raise unknown(f"model {cfg.name}: key", key, accepted)
    return network(num_features, num_classes, **given)

"""Sizes of models that follow from clients' graphs, and whether clients with other sizes still share one set of parameters."""

from collections.abc import Collection, Mapping
from typing import Any

import torch

from fedgraph_flwr import models
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.tasks import kind_of

SIZES = ("num_features", "num_classes", "num_edge_features")
"""Sizes of a model that follow from a client's graph, by their names in its description."""


def may_differ(cfg: RunConfig, descriptions: Collection[Mapping[str, Any]]) -> bool:
    """Return whether clients describe different `SIZES` and may, because the shared parameters have one shape for all.

    This is so where the input layer and the head stay at the clients, as in FedStar's experiments with one dataset per client.
    Models are built without memory for their parameters, as the sizes are those that clients claim.
    """
    if models.network(cfg.model).heterogeneous:
        return False
    sizes = {tuple(values.get(key) or 0 for key in SIZES) for values in descriptions}
    if len(sizes) == 1:
        return False
    kind, shapes = kind_of(cfg), set()
    for size in sizes:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = kind.network(cfg, *size)
        shared = model.shared(cfg.strategy.shared, cfg.strategy.private)
        shapes.add(tuple((name, tensor.shape) for name, tensor in shared.items()))
    return len(shapes) == 1

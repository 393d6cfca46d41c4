"""What all clients of a run describe alike, such as the sizes of models that follow from their graphs."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from fedgraph_flwr import models
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.tasks import kind_of

SIZES = ("num_features", "num_classes", "num_edge_features")
"""Sizes of a model that follow from a client's graph, by their names in its description."""


def may_differ(cfg: RunConfig, descriptions: Collection[Mapping[str, Any]]) -> bool:
    """Return whether clients describe different `SIZES` and may, because the shared parameters have one shape for all.

    This is so where the input layer and the head stay at the clients, as in FedStar's experiments
    with one dataset per client. Models are built without memory for their parameters, as the sizes
    are those that clients claim.
    """
    if models.network(cfg.model).capabilities.heterogeneous:
        return False
    sizes = {tuple(values.get(key) or 0 for key in SIZES) for values in descriptions}
    if len(sizes) == 1:
        return False
    kind = kind_of(cfg)
    shapes = set()
    for size in sizes:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = kind.network(cfg, *size)
        shared = model.shared(cfg.strategy.shared, cfg.strategy.private)
        shapes.add(tuple((name, tensor.shape) for name, tensor in shared.items()))
    return len(shapes) == 1


class Descriptions:
    """The clients' descriptions, as one. Its results are cached, since every reply needs them, until `forget`.

    Args:
        cfg: the run's configuration.
        clients: returns the clients of the run, by client index.
    """

    def __init__(self, cfg: RunConfig, clients: Callable[[], Mapping[int, ClientInfo]]):
        self.cfg = cfg
        self.clients = clients
        self._known: dict[str, Any] = {}

    def forget(self) -> None:
        """Clear the cache, because the clients changed."""
        self._known.clear()

    def agreed(self, key: str) -> Any:
        """Return a value that all clients must describe alike, such as the number of classes.

        Raises:
            FedGraphError: two clients differ.
        """
        if key not in self._known:
            values = {
                index: info.description.get(key) for index, info in self.clients().items()
            }
            (first, common), *_ = values.items()
            if odd := [
                f"client {index} has {key}={value}"
                for index, value in values.items()
                if value != common
            ]:
                raise FedGraphError(
                    f"{odd[0]}, client {first} has {key}={common}: all clients of a run must agree"
                )
            self._known[key] = common
        return self._known[key]

    def size(self, key: str) -> Any:
        """Return one of `SIZES`: that of all clients, or of the first one where no shared parameter depends on it.

        Raises:
            FedGraphError: two clients differ, and a shared parameter would have another shape.
        """
        return self._all[0].get(key) if self._differ else self.agreed(key)

    @property
    def class_counts(self) -> list[int]:
        """The numbers of classes that clients have, ascending: one, unless they may differ as in `size`."""
        key = "num_classes"
        return (
            sorted({values[key] for values in self._all})
            if self._differ
            else [self.agreed(key)]
        )

    @property
    def _all(self) -> list[dict[str, Any]]:
        return [info.description for info in self.clients().values()]

    @property
    def _differ(self) -> bool:
        if "differ" not in self._known:
            self._known["differ"] = may_differ(self.cfg, self._all)
        return bool(self._known["differ"])

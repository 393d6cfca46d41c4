"""The size of a run's model, counted before any memory is allocated for it."""

from logging import DEBUG
from types import SimpleNamespace
from typing import Any

import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.errors import Refusal, located, sanitize
from fedgraph_flwr.logs import log
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.tasks import kind_of


def check_size(policy: Policy, kind: type[GraphClient], cfg: RunConfig, graph: Any) -> None:
    """Refuse a model by its size.

    A model that cannot be built on the meta device, for example one with custom code, is built
    only if the policy lists it or the client's class. It is then checked afterwards.

    Raises:
        FedGraphError: the model is larger than the policy accepts, or cannot be counted.
    """
    shells = [_shell(kind, cfg, graph, extra) for extra in (0, 1)]
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            models = [
                shell.build_model().with_nodes(graph.num_nodes + extra)
                for extra, shell in enumerate(shells)
            ]
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        if cfg.model.name in policy.networks or cfg.strategy.client in policy.strategies:
            log(DEBUG, "model=%s is not counted on the meta device: %r", cfg.model.name, error)
            return
        raise Refusal(
            f"model={sanitize(cfg.model.name, 80)} of {sanitize(cfg.strategy.client, 80)} cannot be"
            f" counted before it is built ({located(error, public=True)}): make it build on torch's"
            " meta device, or list it in this node's policy"
        ) from error
    policy.check_model(*models)


def _shell(kind: type[GraphClient], cfg: RunConfig, graph: Any, extra: int) -> Any:
    """Return what builds a client's model, of a graph with ``extra`` features and classes."""
    task = kind_of(cfg)
    features, classes = graph.num_features, task.num_classes(graph) + extra
    varied = [f + extra for f in features] if isinstance(features, list) else features + extra
    shell: Any = object.__new__(kind)
    shell.cfg, shell.params = cfg, method_params(kind, cfg)
    shell.graph = SimpleNamespace(
        num_features=varied, num_classes=classes, num_edge_features=graph.num_edge_features
    )
    shell.task = SimpleNamespace(width=task.outputs(cfg, classes))
    return shell

"""Malicious clients (`fedgraph_flwr.clients.malicious`): supported configurations, and the success of a backdoor."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from fedgraph_flwr import models
from fedgraph_flwr.config import RunConfig, is_own
from fedgraph_flwr.config.engines import STACKING
from fedgraph_flwr.config.lookup import function, locate
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.data.poisoning import Trigger
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.wire.messages import Arrays, derive_seed


def check(cfg: RunConfig, sends_models: bool) -> None:
    """Reject an attack that does not apply to the method.

    Args:
        cfg: the run's configuration.
        sends_models: whether clients reply with their models, by the uplink.

    Raises:
        FedGraphError: names the attack, and what it needs.
    """
    adversary, rules = cfg.adversary, cfg.strategy
    if adversary.kind == "none":
        return
    if is_own(adversary.kind):
        function(adversary.kind, "adversary.kind")
    what, instead = f"adversary.kind={adversary.kind}", f"set another strategy than {rules.name}"
    check_engine(what, cfg.engine, STACKING)
    if rules.pooled or (adversary.kind != "label_flip" and not (sends_models and rules.shared)):
        raise FedGraphError(f"{what} needs clients that send their models: {instead}, or adversary.kind=none")
    if adversary.backdoor:
        model = models.probe(cfg.model)
        shared = model.shared(rules.shared, rules.private)
        if kept := [name for name, _ in model.named_parameters() if name not in shared]:
            raise FedGraphError(f"{what} is measured on the shared model, and clients keep {kept[0]}: {instead}")


def check_engine(what: str, engine: str, accepted: Collection[str]) -> None:
    """Refuse an attack on an engine that is none of these simulations."""
    if engine not in accepted:
        raise FedGraphError(f"{what} works only in simulations: set engine={' or '.join(accepted)}, not {engine}")


def homogeneous(cfg: RunConfig, what: str) -> ClientGraph:
    """Return the first client's graph.

    Raises:
        FedGraphError: it is heterogeneous, which ``what`` does not support.
    """
    from fedgraph_flwr import partition

    graph = partition.load_client(cfg, 0)
    if not isinstance(graph, ClientGraph):
        raise FedGraphError(f"{what} supports only homogeneous graphs; '{cfg.dataset.name}' is heterogeneous")
    return graph


def check_clients(cfg: RunConfig) -> None:
    """Reject clients that do not exist, and a backdoor with an invalid target class.

    Raises:
        FedGraphError: names the key, its value and what is accepted.
    """
    adversary = cfg.adversary
    if odd := [client for client in adversary.clients if client >= cfg.num_clients]:
        raise FedGraphError(f"adversary.clients contains {odd[0]}, expected clients from 0 to {cfg.num_clients - 1}")
    if not adversary.backdoor:
        return
    last = homogeneous(cfg, f"adversary.kind={adversary.kind}").num_classes - 1
    if adversary.target > last:
        raise FedGraphError(f"adversary.target={adversary.target}, expected a class from 0 to {last}")


def success(cfg: RunConfig, arrays: Arrays) -> dict[str, Any]:
    """Measure a backdoor in the shared parameters of a finished run.

    Returns:
        ``success``: share of the honest clients' test nodes of other classes that are predicted as ``adversary.target`` when
        all of them have the full trigger; ``without_trigger``: the same without triggers.
    """
    from fedgraph_flwr import partition

    adversary = cfg.adversary
    share, count = {"success": 0, "without_trigger": 0}, 0
    for index in sorted(set(range(cfg.num_clients)) - set(adversary.clients)):
        graph = partition.load_client(cfg, index)
        nodes = (graph.test_mask & (graph.y != adversary.target)).nonzero().view(-1)
        trigger = Trigger.draw(adversary.trigger, graph.num_features, adversary.force, derive_seed(cfg.seed, "trigger"))
        share["without_trigger"] += _taken(cfg, graph, arrays, nodes)
        share["success"] += _taken(cfg, trigger.attached(graph, nodes), arrays, nodes)
        count += len(nodes)
    shares = {key: number / count if count else float("nan") for key, number in share.items()}
    return {"kind": adversary.kind, "clients": adversary.clients, **shares}


def _taken(cfg: RunConfig, graph: ClientGraph, arrays: Arrays, nodes: torch.Tensor) -> int:
    """Count the ``nodes`` that the shared parameters predict as the target."""
    client = locate(cfg.strategy.client)(replace(cfg, device="cpu"), graph)
    client.set_parameters([arrays[name] for name in client.shared])
    return int((client.predict_shared()[nodes].argmax(1) == cfg.adversary.target).sum())

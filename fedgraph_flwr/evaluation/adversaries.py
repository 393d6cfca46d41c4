"""Malicious clients (`fedgraph_flwr.clients.malicious`): supported configurations, and the success of a backdoor."""

from dataclasses import replace
from typing import Any

import torch

from fedgraph_flwr import models
from fedgraph_flwr.config import RunConfig, is_own
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
    if cfg.engine not in ("inline", "ray"):
        raise FedGraphError(
            f"adversary.kind={adversary.kind} works only in simulations: set engine=inline or engine=ray, not {cfg.engine}"
        )
    if rules.pooled or (adversary.kind != "label_flip" and not (sends_models and rules.shared)):
        raise FedGraphError(
            f"adversary.kind={adversary.kind} needs clients that send their models, which those of strategy={rules.name} do not:"
            " set another strategy, or adversary.kind=none"
        )
    if adversary.backdoor:
        model = models.probe(cfg.model)
        shared = model.shared(rules.shared, rules.private)
        if kept := [name for name, _ in model.named_parameters() if name not in shared]:
            raise FedGraphError(
                f"adversary.kind={adversary.kind} is measured on the shared model, but clients of strategy={rules.name} keep"
                f" {kept[0]} private: set another strategy"
            )


def check_clients(cfg: RunConfig) -> None:
    """Reject clients that do not exist, and a backdoor with an invalid target class.

    Raises:
        FedGraphError: names the key, its value and what is accepted.
    """
    from fedgraph_flwr import partition

    adversary = cfg.adversary
    if odd := [client for client in adversary.clients if client >= cfg.num_clients]:
        raise FedGraphError(f"adversary.clients contains {odd[0]}, expected clients from 0 to {cfg.num_clients - 1}")
    if not adversary.backdoor:
        return
    graph = partition.load_client(cfg, 0)
    if not isinstance(graph, ClientGraph):
        raise FedGraphError(
            f"adversary.kind={adversary.kind} supports only homogeneous graphs; '{cfg.dataset.name}' is heterogeneous"
        )
    if adversary.target >= graph.num_classes:
        raise FedGraphError(f"adversary.target={adversary.target}, expected a class from 0 to {graph.num_classes - 1}")


def success(cfg: RunConfig, arrays: Arrays) -> dict[str, Any]:
    """Measure a backdoor in the shared parameters of a finished run.

    Returns:
        ``success``: share of the honest clients' test nodes of other classes that are predicted as ``adversary.target`` when
        all of them have the full trigger; ``without_trigger``: the same without triggers.
    """
    from fedgraph_flwr import partition

    adversary = cfg.adversary
    marked, plain, count = 0, 0, 0
    for index in sorted(set(range(cfg.num_clients)) - set(adversary.clients)):
        graph = partition.load_client(cfg, index)
        nodes = (graph.test_mask & (graph.y != adversary.target)).nonzero().view(-1)
        trigger = Trigger.draw(adversary.trigger, graph.num_features, adversary.force, derive_seed(cfg.seed, "trigger"))
        plain += _taken(cfg, graph, arrays, nodes)
        marked += _taken(cfg, trigger.attached(graph, nodes), arrays, nodes)
        count += len(nodes)
    share = {"success": marked, "without_trigger": plain}
    return {"kind": adversary.kind, "clients": adversary.clients} | {
        k: n / count if count else float("nan") for k, n in share.items()
    }


def _taken(cfg: RunConfig, graph: ClientGraph, arrays: Arrays, nodes: torch.Tensor) -> int:
    """Count the ``nodes`` that the shared parameters predict as the target."""
    client = locate(cfg.strategy.client)(replace(cfg, device="cpu"), graph)
    client.set_parameters([arrays[name] for name in client.shared])
    return int((client.predict_shared()[nodes].argmax(1) == cfg.adversary.target).sum())

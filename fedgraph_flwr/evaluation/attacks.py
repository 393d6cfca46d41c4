"""Attacks on the final model of a simulation: ``attack=link_inference``.

A custom attack, ``attack=module:function``, takes the configuration, the final shared parameters by name, and its keys
(``attack.KEY=``) as keyword arguments. It returns its findings as a JSON-serialisable dict.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedgraph_flwr.config import RunConfig, is_own
from fedgraph_flwr.config.engines import SIMULATIONS
from fedgraph_flwr.config.lookup import function, locate
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.evaluation.adversaries import check_engine, homogeneous
from fedgraph_flwr.numerics.blocks import GraphInputs
from fedgraph_flwr.wire.messages import Arrays, derive_seed


def attack(cfg: RunConfig, arrays: Arrays) -> dict[str, Any]:
    """Run the attack that ``cfg.attack`` names on the shared parameters of a finished run, and return its findings."""
    if is_own(cfg.attack.name):
        findings = function(cfg.attack.name, "attack")(cfg, arrays, **cfg.attack.params)
        return {"name": cfg.attack.name, **findings}
    return ATTACKS[cfg.attack.name](cfg, arrays)


def check(cfg: RunConfig) -> None:
    """Reject an attack that does not apply, before the run.

    Raises:
        FedGraphError: the clients' graphs are heterogeneous, or this machine does not hold them.
    """
    check_engine(f"attack={cfg.attack.name}", cfg.engine, SIMULATIONS)
    if is_own(cfg.attack.name):
        function(cfg.attack.name, "attack")
    else:
        homogeneous(cfg, f"attack={cfg.attack.name}")


def link_inference(cfg: RunConfig, arrays: Arrays) -> dict[str, Any]:
    """Link inference from learned node representations (FedHERO, arXiv 2504.21206, Section 4.7).

    The attacker has the shared parameters, and so every representation that the model computes from only these
    (`Model.representations`). Anything that needs a private parameter, or content of other clients from earlier phases
    (FedStruct's structure features, FedSage-true's neighbours), is out of reach. Each client's edges and as many random
    non-edges are ranked by the cosine of the two ends' representations. The upper half is predicted as links, so 0.5 is chance.
    The paper does not say on what graph the attacker computes, so both readings are reported. For ``on_graph``, representations
    are those that the client computes. For ``without_edges``, they come from the features without edges. In addition,
    ``features`` ranks pairs by the raw features, which no training exposes.

    Linked nodes may also be less similar than others, as on heterophilic graphs. An attacker who knows a few links can use
    this as well, so the headline takes the better of the two directions.

    Returns:
        ``accuracy`` and ``auc``, both at least 0.5, of the strongest representation on the graph (0.5 if no parameter is shared),
        its name ``representation``, and per reading and representation the plain means over clients.
    """
    from fedgraph_flwr import partition

    scores: dict[str, dict[str, list[tuple[float, float]]]] = {"on_graph": {}, "without_edges": {}, "features": {}}
    for index in range(partition.num_clients(cfg)):
        graph = partition.load_client(cfg, index)
        pairs, linked = candidate_pairs(graph, derive_seed(cfg.seed, "attack", index))
        if not linked.any():
            continue
        for reading, seen in (("on_graph", graph), ("without_edges", _without_edges(graph))):
            for name, z in _representations(cfg, seen, arrays).items():
                scores[reading].setdefault(name, []).append(rank_pairs(z, pairs, linked))
        scores["features"].setdefault("x", []).append(rank_pairs(graph.x, pairs, linked))
    report: dict[str, Any] = {"name": "link_inference", "accuracy": 0.5, "auc": 0.5, "representation": "none"}
    for reading, by_name in scores.items():
        report[reading] = {
            name: dict(zip(("accuracy", "auc"), np.mean(values, axis=0).tolist(), strict=True))
            for name, values in by_name.items()
        }
    for name, means in report["on_graph"].items():
        better = {key: 0.5 + abs(value - 0.5) for key, value in means.items()}
        if report["representation"] == "none" or better["auc"] > report["auc"]:
            report |= better | {"representation": name}
    return report


def candidate_pairs(graph: ClientGraph, seed: int) -> tuple[Tensor, Tensor]:
    """Return a client's undirected edges without loops, and as many distinct unlinked pairs.

    Returns:
        pairs int64 [2, P], and whether each is an edge, bool [P]. There are fewer non-edges in a nearly complete graph.
    """
    n, rng = graph.num_nodes, np.random.default_rng(seed)
    low, high = graph.edge_index.sort(dim=0).values.cpu().numpy()
    edges = np.unique(low[low < high] * n + high[low < high])
    drawn = np.sort(rng.integers(0, n, (2, 4 * len(edges) + 16)), axis=0)
    others = np.setdiff1d((drawn[0] * n + drawn[1])[drawn[0] < drawn[1]], edges)
    others = rng.permutation(others)[: len(edges)]
    keys = torch.from_numpy(np.concatenate([edges, others]))
    return torch.stack([keys // n, keys % n]), torch.arange(len(keys)) < len(edges)


def rank_pairs(z: Tensor, pairs: Tensor, linked: Tensor) -> tuple[float, float]:
    """Return the accuracy of predicting the half of the pairs with the larger cosine as links, and the AUC; a tie counts half.

    Shapes: representations z [N, D], pairs [2, P], linked bool [P].
    """
    unit = functional.normalize(z.detach().double().cpu(), dim=1)
    score = (unit[pairs[0]] * unit[pairs[1]]).sum(1)
    middle = score.quantile(1 - linked.double().mean())
    right = torch.where(score > middle, linked, ~linked).double().where(score != middle, 0.5)
    area = metrics.auc(torch.stack([torch.zeros_like(score), score], 1), linked.long())
    return float(right.mean()), area


def _representations(cfg: RunConfig, graph: ClientGraph, arrays: Arrays) -> dict[str, Tensor]:
    """Return the representations that the client's model computes with shared parameters only, by name.

    These are the hidden features if only the head stays with the clients.
    """
    client = locate(cfg.strategy.client)(cfg, graph)
    client.set_parameters([arrays[name] for name in client.shared])
    client.model.eval()
    with torch.no_grad():
        inputs = client.inputs
        if isinstance(inputs, GraphInputs):
            inputs = client.model.prepare(client.graph, client.device, client.dtype)
        computed = client.model.representations(inputs)
        body = {name for name, _ in client.model.named_parameters()} - set(client.model.head_names())
        if body and body == client.shared.keys() & dict(client.model.named_parameters()).keys():
            return {"hidden": client.model.encode(inputs)}
    names = [name for name, _ in client.model.named_parameters()]
    return {
        part.rstrip(".") or "prediction": z
        for part, z in computed.items()
        if all(name in client.shared for name in names if name.startswith(part))
    }


def _without_edges(graph: ClientGraph) -> ClientGraph:
    ends = {f.name: getattr(graph, f.name)[..., :0] for f in fields(graph) if f.name.startswith(("edge_", "cut_"))}
    return replace(graph, **ends)


ATTACKS: dict[str, Callable[[RunConfig, Arrays], dict[str, Any]]] = {"link_inference": link_inference}

"""Parameters that training may start with: those of the run's seed, or of a model that is known.

A malicious server could start with parameters that leak data.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedgraph_flwr.clients import earlier
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.errors import Refusal, sanitize
from fedgraph_flwr.fleet.agreements import Agreement, versions
from fedgraph_flwr.methods.cohorts import draw
from fedgraph_flwr.node.request import Request
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.secure.masked import digest
from fedgraph_flwr.wire.messages import MODEL, TRAIN, derive_seed


def comes_late(client: GraphClient, server_round: int) -> bool:
    """Return whether training may begin here in this round, the first of which the node knows.

    The cohorts say so. A server that could say "round 2" to a new node would choose
    the parameters of its first step, which reveal its features.
    """
    cfg, protection = client.cfg, client.protection
    everyone = range(cfg.num_clients)
    return server_round > 1 and not any(
        client.graph.client
        in draw(
            protection.places(earlier, everyone),
            protection.cohort_size(earlier, everyone),
            cfg.seed,
            "cohort",
            earlier,
        )
        for earlier in range(1, server_round)
    )


def check_start(
    client: GraphClient,
    received: Mapping[str, Any],
    root: str = "",
    agreement: Agreement | None = None,
) -> None:
    """Refuse first parameters that do not follow from the run's seed.

    A run with ``init`` starts with a model of a run in which this node trained, or one that its
    policy lists.

    Args:
        client: who trains.
        received: shared parameters by name.
        root: the node's state folder; empty: it has none.
        agreement: the run's agreement, if it has one.

    Raises:
        FedGraphError: names the tensor.
    """
    if not received:
        return
    agreed = agreement.values["start"] if agreement else ""
    if len(agreed) == len(name := digest(received).hex()):
        _check_agreed(name, agreed)
        return
    if client.cfg.init:
        if not client.protection.verified:  # else a certificate says which model it is
            _check_earlier(client, received, root, agreement)
        return
    reseed(derive_seed(client.cfg.seed, "model"), client.device)
    first = client.build_model().to(client.device, client.dtype).state_dict()
    for name in sorted(client.shared.keys() & received.keys()):
        if _starts_otherwise(first[name].cpu().numpy(), received[name]):
            raise Refusal(
                f"the server starts this run with other parameters than its seed={client.cfg.seed}"
                f" gives ('{sanitize(name, 60)}'): this node's policy accepts no others as a start"
                " (check_start), in a later round only if the cohorts left it out before,"
                " and after a resumption only if its own state folder has the"
                " checkpoint (--state)"
            )


def check_scored(request: Request, agreed: str) -> None:
    """Refuse to do more than to score the model that members agreed to score.

    Raises:
        Refusal: the request trains, or brings another model.
    """
    if request.phase == TRAIN:
        raise Refusal("members agreed to score a model, and the server requests training")
    if received := request.groups.get(MODEL):
        _check_agreed(digest(received).hex(), agreed)


def _check_agreed(name: str, agreed: str) -> None:
    if agreed != name:
        raise Refusal(
            f"the server starts this run with the model {name}, and members agreed on {agreed}"
        )


def _check_earlier(
    client: GraphClient, received: Mapping[str, Any], root: str, agreement: Agreement | None
) -> None:
    name = digest(received).hex()
    if name in client.policy.start_models or (agreement and agreement.noised):
        return  # a member that joins, or was away, knows no earlier model; noise covers each
    runs = versions(Path(root), agreement) if agreement else None
    known = root and earlier.in_node(Path(root), client.graph.client, received, True, runs)
    if not known:
        raise Refusal(
            f"the server starts this run with the model {name} (init): this node's policy accepts"
            " only models of runs in which the node trained, in its state folder (--state), or"
            " listed in the policy (start_models); of an agreed run, those of its agreement"
        )


def _starts_otherwise(expected: np.ndarray, received: np.ndarray) -> bool:
    """Return whether a received tensor is not the seed's.

    Of tensors that grow, such as a forest's, the first are empty; other wrong shapes are refused
    when the model takes them.
    """
    if received.shape != expected.shape:
        return not expected.size
    return not np.allclose(received, expected, rtol=1e-3, atol=1e-5)


def check_zero(group: str, received: Mapping[str, Any]) -> None:
    """Refuse a group of a part that is not zero before any training, such as variates.

    One step along chosen ones makes the first parameters those that a server chooses.

    Raises:
        FedGraphError: names the tensor.
    """
    planted = [sanitize(name, 60) for name, array in received.items() if np.any(array)]
    if planted:
        raise Refusal(
            f"the server starts this run with '{planted[0]}' of '{group}' that is not zero, which"
            " this node refuses (check_start)"
        )

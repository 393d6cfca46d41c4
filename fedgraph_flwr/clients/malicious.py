"""A malicious client of any method. `session` builds it in a simulation for the clients in ``adversary.clients``.

With θ as received, θ_i as trained and s = ``adversary.strength``:

    sign_flip      sends θ − s (θ_i − θ)
    scaling        sends θ + s (θ_i − θ)
    gaussian       sends θ + s N(0, I)
        free_rider     as gaussian, with an s small enough to pass as training
    label_flip     trains on labels C − 1 − y
        module:name    sends the result of your function of (θ, θ_i, s, rng), array by array
        backdoor_...   trains with triggers at some nodes, labelled ``adversary.target`` (`fedgraph_flwr.data.poisoning`):
                       central: each client uses the whole trigger; distributed: each client uses its own part

    It is scored on its true labels, so that a run measures the resulting model.
"""

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedgraph_flwr.clients.base import GraphClient, to_numpy
from fedgraph_flwr.clients.replies import check_finite
from fedgraph_flwr.config import RunConfig, is_own
from fedgraph_flwr.config.lookup import function
from fedgraph_flwr.data.poisoning import Trigger, with_flipped_labels
from fedgraph_flwr.numerics.sparse import Device
from fedgraph_flwr.secure.protection import Leaving, Protection, Taken, protection_of
from fedgraph_flwr.wire.messages import MODEL, TRAIN, Arrays, derive_seed


def forged(
    kind: str, strength: float, received: np.ndarray, trained: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return what is sent instead of a trained array, in the same dtype."""
    if is_own(kind):
        sent = np.asarray(function(kind, "adversary.kind")(received, trained, strength, rng))
    elif kind in ("sign_flip", "scaling"):
        sent = received + (-strength if kind == "sign_flip" else strength) * (trained - received)
    elif kind in ("gaussian", "free_rider"):
        sent = received + strength * rng.normal(size=received.shape)
    else:
        return trained
    return sent.astype(trained.dtype)


def poisoned(cfg: RunConfig, graph: Any) -> Any:
    """Return the graph that the client trains on."""
    adversary = cfg.adversary
    if adversary.kind == "label_flip":
        return with_flipped_labels(graph)
    if not adversary.backdoor:
        return graph
    trigger = Trigger.draw(adversary.trigger, graph.num_features, adversary.force, derive_seed(cfg.seed, "trigger"))
    if adversary.kind == "backdoor_distributed":
        trigger = trigger.part(sorted(adversary.clients).index(graph.client), len(adversary.clients))
    return trigger.planted(graph, adversary.target, adversary.rate, derive_seed(cfg.seed, "adversary", graph.client))


class Forged(Protection):
    """Replies of a malicious client: its trained model is another when it leaves, after clipping and before masks.

    Args:
        inner: what an honest client does.
        client: the client.
    """

    inner: Protection

    def __init__(self, inner: Protection, client: GraphClient):
        super().__init__(inner.cfg, inner)
        self.client = client
        self.trained: Arrays = {}

    def take(self, phase: str, groups: dict[str, Arrays], client_groups: Collection[str]) -> Taken:
        """Note the client's own parameters, which it trains if it receives none."""
        self.trained = {key: to_numpy(tensor) for key, tensor in self.client.shared.items()}
        return self.inner.take(phase, groups, client_groups)

    def leave(self, leaving: Leaving) -> dict[str, Arrays]:
        """Forge the model."""
        sent, cfg = self.inner.leave(leaving), self.cfg
        if leaving.phase != TRAIN or MODEL not in sent:
            return sent
        received, adversary = leaving.taken.model or self.trained, cfg.adversary
        rng = np.random.default_rng(derive_seed(cfg.seed, "adversary", leaving.client, leaving.round))
        model = {
            name: forged(adversary.kind, adversary.force, received[name], array, rng)
            for name, array in sent[MODEL].items()
        }
        check_finite(self.client, {MODEL: model})
        return {**sent, MODEL: model}


class MaliciousClient(GraphClient):
    """Mixin in front of the class of a method's client."""

    def __init__(self, cfg: RunConfig, graph: Any, device: Device = "cpu", file: Path | None = None):
        super().__init__(cfg, poisoned(cfg, graph), device, None)
        self.protection = protection_of(cfg, self.graph.client, partial(Forged, client=self))


def malicious(client: type[GraphClient]) -> type[GraphClient]:
    """Return the malicious variant of a method's client class."""
    return type(f"MaliciousClient{client.__name__}", (MaliciousClient, client), {})

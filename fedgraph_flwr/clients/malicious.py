"""A client that lies, whatever its method: `session` builds it in a simulation for the clients that ``adversary.clients`` names.

With θ as received, θ_i as trained and s = ``adversary.strength``:

    sign_flip      sends θ − s (θ_i − θ)
    scaling        sends θ + s (θ_i − θ)
    gaussian       sends θ + s N(0, I)
    free_rider     likewise, with an s that makes it look at work
    label_flip     trains on labels C − 1 − y
    module:name    sends what your function makes of (θ, θ_i, s, rng), array by array
    backdoor_...   trains with triggers at some nodes, labelled ``adversary.target`` (`fedgraph_flwr.data.poisoning`):
                   central, each with the whole trigger; distributed, each with its own part of it

Its scores are those of its true labels, so that a run measures the model that comes of it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.clients.base import GraphClient, ReplyContent, to_numpy
from fedgraph_flwr.config import RunConfig, is_own
from fedgraph_flwr.config.lookup import function
from fedgraph_flwr.data.poisoning import Trigger, with_flipped_labels
from fedgraph_flwr.wire.messages import MODEL, TRAIN, Arrays, derive_seed


def forged(
    kind: str, strength: float, received: np.ndarray, trained: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """What is sent in the place of a trained array, of its type."""
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
    """What the client trains on."""
    lie = cfg.adversary
    if lie.kind == "label_flip":
        return with_flipped_labels(graph)
    if not lie.backdoor:
        return graph
    trigger = Trigger.draw(lie.trigger, graph.num_features, lie.force, derive_seed(cfg.seed, "trigger"))
    if lie.kind == "backdoor_distributed":
        trigger = trigger.part(sorted(lie.clients).index(graph.client), len(lie.clients))
    return trigger.planted(graph, lie.target, lie.rate, derive_seed(cfg.seed, "adversary", graph.client))


class MaliciousClient(GraphClient):
    """Stands before the class of a method's client."""

    def __init__(self, cfg: RunConfig, graph: Any, device: torch.device | str = "cpu", file: Path | None = None):
        super().__init__(cfg, poisoned(cfg, graph), device, None)

    def plain_reply(self, name: str, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """As the method's client, but for the model that it sends."""
        received = groups.get(MODEL) or {key: to_numpy(tensor) for key, tensor in self.shared.items()}
        answer, numbers = super().plain_reply(name, groups, config)
        if name == TRAIN and MODEL in answer:
            lie = self.cfg.adversary
            rng = np.random.default_rng(derive_seed(self.cfg.seed, "adversary", self.graph.client, self.server_round))
            model = answer[MODEL].items()
            answer[MODEL] = {n: forged(lie.kind, lie.force, received[n], own, rng) for n, own in model}
        return answer, numbers


def hostile(client: type[GraphClient]) -> type[GraphClient]:
    """The class of a method's client, as a liar."""
    return type(f"MaliciousClient{client.__name__}", (MaliciousClient, client), {})

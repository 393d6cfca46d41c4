"""A client with control variates: constants added to the gradient that measure how its data differ from the others'.

A variate changes when the client trains, and the server's sum over clients when the reply arrives. Replies may be lost, so a
client only offers its new variates, and adopts them once a message acknowledges the round of the offer. Both sides then
hold the same values. Each method documents what leaves the client.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.client_part import ClientPart, Step
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.variates import ACKNOWLEDGED, VARIATES
from fedgraph_flwr.numerics.optim import Optimizer
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import check_shapes

Named = dict[str, Tensor]
"""Tensors by the names of shared trainable parameters."""

OWN, OFFER, ROUND = "own", "offer", "round"


class Variates(ClientPart):
    """Keeps in `memory` the agreed variates by kind, the offered ones, and the round of the offer.

    Its `round_state` has ``start``, the parameters x as they came, and ``common``, the server's variate.
    """

    own_requests: ClassVar[tuple[str, ...]] = (ACKNOWLEDGED,)

    def renewed(self, client: GraphClient) -> dict[str, Named]:
        """Return the variates that follow from the training so far, by kind."""
        raise NotImplementedError

    def correction(self, client: GraphClient) -> Named:
        """Return what is added to the gradient."""
        raise NotImplementedError

    def receive(self, client: GraphClient, groups: dict[str, Arrays]) -> None:
        """Accept the offer if the server acknowledged it, else drop it; a model that is only scored leaves it."""
        if ACKNOWLEDGED not in groups:
            return
        check_shapes(groups[ACKNOWLEDGED], {ROUND: (1,)}, "the server sent an acknowledgement", low=0, whole=True)
        if VARIATES in groups:
            shapes = {name: tuple(tensor.shape) for name, tensor in client.shared.items()}
            check_shapes(groups[VARIATES], shapes, "the server sent variates")
        offer = client.memory.pop(OFFER, {})
        if offer and int(offer[ROUND]) == int(groups[ACKNOWLEDGED][ROUND][0]):
            client.memory[OWN] = offer[OWN]
        self.state(client)["common"] = {
            n: torch.from_numpy(a).to(client.device) for n, a in groups.get(VARIATES, {}).items()
        }

    def common(self, client: GraphClient) -> Named:
        """Return the server's variate.

        Raises:
            FedGraphError: it did not come with the model.
        """
        if not (variate := self.state(client).get("common")):
            raise FedGraphError(
                f"the server's message has no group '{VARIATES}' of phase 'train', which the client needs"
            )
        return dict(variate)

    def begin(self, client: GraphClient) -> None:
        """Remember where training starts."""
        self.state(client)["start"] = {name: tensor.detach().clone() for name, tensor in trained(client).items()}

    def gradient(self, client: GraphClient, inner: Step, optimizer: Optimizer) -> Tensor:
        """Add the correction; a parameter that the graph does not reach stays where it is."""
        loss = inner(optimizer)
        self.correct(client, self.correction(client))
        return loss

    def end(self, client: GraphClient) -> None:
        """Offer the variates that follow from the training."""
        if client.steps:
            client.memory[OFFER] = {ROUND: torch.tensor([client.server_round]), OWN: self.renewed(client)}

    def correct(self, client: GraphClient, terms: Named) -> None:
        """Add terms to the gradients that exist."""
        parameters = trained(client)
        for name, term in terms.items():
            if (gradient := parameters[name].grad) is not None:
                gradient.add_(term)

    def state(self, client: GraphClient) -> dict[str, Any]:
        """Return what is kept within a round."""
        return client.round_state.setdefault("variates", {})

    def moved(self, client: GraphClient) -> Named:
        """Return θ − x."""
        start = self.state(client)["start"]
        return {name: tensor.detach() - start[name] for name, tensor in trained(client).items()}


def trained(client: GraphClient) -> Named:
    """Return the shared parameters that train; they alias the model."""
    return {name: tensor for name, tensor in client.shared.items() if tensor.requires_grad}


def own(client: GraphClient, kind: str) -> Named:
    """Return this client's variates of a kind, zero at first."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in trained(client).items()}
    return zeros | client.memory.get(OWN, {}).get(kind, {})

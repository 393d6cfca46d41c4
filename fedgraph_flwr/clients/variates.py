"""A client with control variates: constants added to the gradient that measure how its data differ from the others'.

A variate changes when the client trains, and the server's sum over clients when the reply arrives. Replies may be lost, so a
client only offers its new variates, and adopts them once a message acknowledges the round of the offer. Both sides then
hold the same values. Each method documents what leaves the client.
"""

from functools import cached_property

import torch
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.methods.variates import ACKNOWLEDGED, VARIATES
from fedgraph_flwr.wire.messages import Arrays

Named = dict[str, Tensor]
"""Tensors by the names of shared trainable parameters."""

OWN, OFFER, ROUND = "own", "offer", "round"


class VariateClient(GraphClient):
    """A client whose `memory` holds the agreed variates by kind, the variates it offers, and the round of the offer.

    Attributes:
        start: x, the parameters as received.
        common: the server's variate as received.
    """

    @cached_property
    def trained(self) -> Named:
        """The shared parameters that are trained; they alias the model."""
        return {name: tensor for name, tensor in self.shared.items() if tensor.requires_grad}

    def own(self, kind: str) -> Named:
        """Return this client's variates of a kind, initially zero."""
        zeros = {name: torch.zeros_like(tensor) for name, tensor in self.trained.items()}
        return zeros | self.memory.get(OWN, {}).get(kind, {})

    def renewed(self) -> dict[str, Named]:
        """Return the variates that follow from the last training, by kind."""
        raise NotImplementedError

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Adopt the offer if the server acknowledged it, else drop it. A message that only scores a model changes nothing."""
        if ACKNOWLEDGED not in groups:
            return
        offer = self.memory.pop(OFFER, {})
        if offer and int(offer[ROUND]) == int(groups[ACKNOWLEDGED][ROUND][0]):
            self.memory[OWN] = offer[OWN]
        self.common = {n: torch.from_numpy(a).to(self.device) for n, a in groups.get(VARIATES, {}).items()}

    def train(self) -> float:
        """Store the start of training, train, and offer the new variates."""
        self.start = {name: tensor.detach().clone() for name, tensor in self.trained.items()}
        loss = super().train()
        if self.steps:
            self.memory[OFFER] = {ROUND: torch.tensor([self.server_round]), OWN: self.renewed()}
        return loss

    def correct(self, terms: Named) -> None:
        """Add terms to the current gradients; a parameter without a gradient does not move."""
        for name, term in terms.items():
            if (gradient := self.trained[name].grad) is not None:
                gradient.add_(term)

    def moved(self) -> Named:
        """Return θ − x."""
        return {name: tensor.detach() - self.start[name] for name, tensor in self.trained.items()}

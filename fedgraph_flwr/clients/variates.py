"""A client that keeps variates between rounds: constants beside the gradient that say how its data differ from the others'.

A variate changes when the client trains, and the server's sum over clients when the answer arrives. An answer may be lost, so
a client only offers its new variates, and takes them up once a message acknowledges the round of the offer.
Both sides then keep the same. What leaves a client, and what does not, is for the method to say.
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
    """Keeps in `memory` what it and the server agree on (by kind of variate), what it offers, and the round of the offer.

    Attributes:
        start: x, the parameters as they came.
        common: the server's variate as it came.
    """

    @cached_property
    def trained(self) -> Named:
        """The shared parameters that train; they alias the model."""
        return {name: tensor for name, tensor in self.shared.items() if tensor.requires_grad}

    def own(self, kind: str) -> Named:
        """This client's variates of a kind, zero at first."""
        zeros = {name: torch.zeros_like(tensor) for name, tensor in self.trained.items()}
        return zeros | self.memory.get(OWN, {}).get(kind, {})

    def renewed(self) -> dict[str, Named]:
        """The variates that follow from the training just done, by kind."""
        raise NotImplementedError

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Accept the offer if the server acknowledged it, else drop it; a model that is only scored leaves it."""
        if ACKNOWLEDGED not in groups:
            return
        offer = self.memory.pop(OFFER, {})
        if offer and int(offer[ROUND]) == int(groups[ACKNOWLEDGED][ROUND][0]):
            self.memory[OWN] = offer[OWN]
        self.common = {n: torch.from_numpy(a).to(self.device) for n, a in groups.get(VARIATES, {}).items()}

    def train(self) -> float:
        """Remember where training starts, train, and offer what follows."""
        self.start = {name: tensor.detach().clone() for name, tensor in self.trained.items()}
        loss = super().train()
        if self.steps:
            self.memory[OFFER] = {ROUND: torch.tensor([self.server_round]), OWN: self.renewed()}
        return loss

    def correct(self, terms: Named) -> None:
        """Add to the gradients that there are; a parameter that the graph does not reach stays where it is."""
        for name, term in terms.items():
            if (gradient := self.trained[name].grad) is not None:
                gradient.add_(term)

    def moved(self) -> Named:
        """θ − x."""
        return {name: tensor.detach() - self.start[name] for name, tensor in self.trained.items()}

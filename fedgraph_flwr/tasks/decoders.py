"""Scores of triples (head, relation, tail) from three vectors of width W, the larger, the more plausible.

    TransE     −‖h + r − t‖₁                 (Bordes et al., NeurIPS 2013)
    DistMult   Σ_i h_i r_i t_i               (Yang et al., ICLR 2015)
    RotatE     −Σ_j |h_j r_j − t_j|          (Sun et al., ICLR 2019), over W / 2 complex numbers, |r_j| = 1

Each score compares the missing end with a query q of the two others, so that one query serves all candidates. RotatE's relation
is a complex number per coordinate, divided by its modulus, because a mean over clients would not average angles.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

CELLS = 2**22
"""Numbers that a comparison of queries with all candidates holds at once."""


class Decoder(ABC):
    """A score, split into the query of a known end and a relation, and its comparison with candidates for the other end."""

    @abstractmethod
    def query(self, known: Tensor, relation: Tensor, heads: Tensor) -> Tensor:
        """Return queries [Q, W].

        Args:
            known: vectors of the known ends [Q, W].
            relation: vectors of the relations [Q, W].
            heads: whether the head is missing, bool [Q]; else the tail.
        """

    @abstractmethod
    def score(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Return scores [...] of candidates [..., W] for queries that broadcast to them."""

    def against(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Return scores [Q, K] of queries [Q, W] against all candidates [K, W]."""
        rows = max(CELLS // max(candidates.numel(), 1), 1)
        parts = [self.score(part[:, None], candidates) for part in query.split(rows)]
        return torch.cat(parts) if parts else query.new_zeros(0, len(candidates))


class TransE(Decoder):
    """A relation moves the head to the tail."""

    def query(self, known: Tensor, relation: Tensor, heads: Tensor) -> Tensor:
        """Return h + r, or t − r."""
        return known + torch.where(heads[:, None], -relation, relation)

    def score(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Return −‖q − c‖₁."""
        return -(query - candidates).abs().sum(-1)

    def against(self, query: Tensor, candidates: Tensor) -> Tensor:
        """As `score`, without an array of differences."""
        return -torch.cdist(query, candidates, p=1)


class DistMult(Decoder):
    """A relation weights the coordinates of a product, which is symmetric in head and tail."""

    def query(self, known: Tensor, relation: Tensor, heads: Tensor) -> Tensor:
        """Return the product of the known end and the relation."""
        return known * relation

    def score(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Return q · c."""
        return (query * candidates).sum(-1)

    def against(self, query: Tensor, candidates: Tensor) -> Tensor:
        """As `score`, by one product of matrices."""
        return query @ candidates.T


class RotatE(Decoder):
    """A relation turns each complex coordinate of the head. The first half of a vector is real, the second imaginary."""

    def query(self, known: Tensor, relation: Tensor, heads: Tensor) -> Tensor:
        """Return h ∘ r, or t ∘ r̄, which has the same distance to the head as |r| = 1."""
        a, b = known.chunk(2, -1)
        c, d = relation.chunk(2, -1)
        modulus = (c.square() + d.square()).clamp(min=TINY).sqrt()
        c, d = c / modulus, torch.where(heads[:, None], -d, d) / modulus
        return torch.cat([a * c - b * d, a * d + b * c], -1)

    def score(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Return −Σ_j |q_j − c_j|."""
        a, b = (query - candidates).chunk(2, -1)
        return -(a.square() + b.square()).clamp(min=TINY).sqrt().sum(-1)


TINY = 1e-24
"""Smallest square of a modulus, whose root has a gradient."""

DECODERS: dict[str, Decoder] = {"transe": TransE(), "distmult": DistMult(), "rotate": RotatE()}
"""Decoders by the value of ``task.decoder``."""

"""AdaFGL's two branches (Li et al., ICDE 2024, arXiv:2401.11750): a client's own MLPs on smoothed features.

    X̃ = [X, Â'X, .., Â'^K X]
    homophilous      Z = MLP(X̃)
    heterophilous    MLP(X),   MLP(X̃),   (softmax(PReLU(Q⁺) F) − softmax(PReLU(−Q⁺) F) + F) / 2   with F = MLP(X̃)
    Q = β R + (1 − β) cos(softmax F_u, softmax F_v),   Q⁺ = I + Q recentred about its mean m

    recentred: (Q − m) / (max Q − m) above m, (Q − m) / m below            in [−1, 1], least similar pairs nearest −1
    ``negatives=program``: −Q / m below, so the least similar pairs get 0 and those just under m get −1

Shapes: X [N, F], X̃ [N, (K + 1) F], all outputs are logits [N, C]. Q has the entries of the corrected graph, never all N² pairs.
R is 1 for pairs that the extractor finds similar, else 0.
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedgraph_flwr.models.layers import Linear, dropout
from fedgraph_flwr.numerics.sparse import Pattern


class MLP(nn.Module):
    """Linear layers with PReLU and dropout between them: [N, a] → [N, C]."""

    def __init__(self, num_in: int, hidden: int, num_out: int, layers: int, p: float):
        super().__init__()
        widths = [num_in, *[hidden] * (layers - 1), num_out]
        self.layers = nn.ModuleList([Linear(a, b) for a, b in pairwise(widths)])
        self.slopes = nn.ModuleList([nn.PReLU() for _ in self.layers[1:]])
        self.p = p

    def forward(self, h: Any) -> Tensor:
        """[N, a] → [N, C]."""
        h = self.layers[0](h)
        for slope, layer in zip(self.slopes, self.layers[1:], strict=True):
            h = layer(dropout(slope(h), self.p, self.training))
        return h


class Branches(nn.Module):
    """Both branches of a client.

    Args:
        num_features: F.
        num_classes: C.
        hidden: hidden width of the MLPs.
        steps: K.
        dropout: dropout rate of the MLPs.
        beta: β.
        negatives: ``paper`` or ``program``, see above.
        message_layers: layers of the MLP that computes F.
    """

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        hidden: int,
        steps: int,
        dropout: float,
        beta: float,
        negatives: str,
        message_layers: int,
    ):
        super().__init__()
        wide = (steps + 1) * num_features
        self.homophilous = MLP(wide, hidden, num_classes, 2, dropout)
        self.features = MLP(num_features, hidden, num_classes, 3, dropout)
        self.smoothed = MLP(wide, hidden, num_classes, 3, dropout)
        self.messages = MLP(wide, hidden, num_classes, message_layers, dropout)
        self.slope = nn.PReLU()
        self.beta, self.program = beta, negatives == "program"

    def heterophilous(self, x: Any, smooth: Any, pairs: Pattern, alike: Tensor) -> list[Tensor]:
        """Return the logits of the three outputs; ``alike`` is R on the pairs, [E]."""
        return [self.features(x), self.smoothed(smooth), self.signed(self.messages(smooth), pairs, alike)]

    def signed(self, f: Tensor, pairs: Pattern, alike: Tensor) -> Tensor:
        """Return the signed propagation of F [N, C]."""
        unit = F.normalize(f.softmax(1), dim=1)
        q = self.beta * alike + (1 - self.beta) * pairs.dot(unit, unit)
        q = recentred(q, self.program) if q.numel() else q
        # The term I adds PReLU(1) = 1 times a node's own row to the positive side, PReLU(−1) = −slope to the negative one.
        positive = pairs.product(self.slope(q), f) + f
        negative = pairs.product(self.slope(-q), f) - self.slope.weight * f
        return (positive.softmax(1) - negative.softmax(1) + f) / 2


def recentred(q: Tensor, program: bool) -> Tensor:
    """Recentre Q [E] about its mean, see above; constant Q gives 0."""
    tiny = torch.finfo(q.dtype).tiny
    mean = q.mean()
    above, below = (q - mean) / (q.max() - mean).clamp(min=tiny), (-q if program else q - mean) / mean.clamp(min=tiny)
    return torch.where(q > mean, above, torch.where(q < mean, below.clamp(min=-1), 0))

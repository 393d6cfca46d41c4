r"""FedStruct's model (Aliakbari, Östman & Graell i Amat, 2024): two MLPs, whose outputs are propagated.

    logits_v = Σ_{u∈V} ā_vu g(s_u) + Σ_{u∈V_i} ā^(i)_vu f(x_u)                                                Eq. (20)
    Ā = Σ_{l=1}^{L_s} β_l Â^l over the whole graph,   Ā^(i) = Σ_{l=1}^{L} β_l (Â^(i))^l over the client's own edges

f and g normalise their input by layer, then alternate linear layers with ReLU and dropout (Table 4). Without ``structure_mlp``, g
is the identity and s_u has width C (Eq. 23). A row of Â is a node, its columns are its out-neighbours and itself.
The two branches share no hidden features. `FedStruct.encode` returns those of f. The head is f's last layer with the whole
structure branch, g, and a learned β. A client does not know the rows of Ā and the structure features S: the strategy puts them
into the inputs.

Letters: N nodes of the client, Q nodes within L_s hops of them (the support of Ā's rows), d_s width of S. J combinations of
hops: 1, or the number of hops for a learned β.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from fedgraph_flwr.config import Range
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.base import Model
from fedgraph_flwr.models.layers import Dropout, propagate
from fedgraph_flwr.numerics.hops import hop_weights, row_normalized, with_loops
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import Device, SparseMatrix


@dataclass
class StructureInputs(Inputs):
    """Inputs with the structure branch; ``adj`` is Â^(i), [N, N].

    Attributes:
        mean: mean of each row of x, [N, 1]; ``deviation``: root of its variance plus the normalisation's ε.
        rows: the J combinations of Ā's rows, stacked, [J·N, Q]; None leaves out the structure branch.
        s: structure features of the support, [Q, d_s].
    """

    mean: Tensor
    deviation: Tensor
    rows: SparseMatrix | Tensor | None = None
    s: Tensor | None = None


class NormedMLP(nn.Module):
    """Layer normalisation of the input, then linear layers with ReLU and dropout between them: [·, d_in] → [·, d_out]."""

    def __init__(self, widths: Sequence[int], dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(widths[0])
        self.first = nn.Linear(widths[0], widths[1])
        later = [(nn.ReLU(), Dropout(dropout), nn.Linear(a, b)) for a, b in pairwise(widths[1:])]
        self.rest = nn.Sequential(*chain.from_iterable(later))

    def forward(self, x: Tensor) -> Tensor:
        """Return [·, d_out]."""
        return self.finish(self.begin(x))

    def begin(self, x: Tensor) -> Tensor:
        """Apply the first linear layer, which does not depend on dropout."""
        return self.first(self.norm(x))

    def finish(self, started: Tensor) -> Tensor:
        """Apply the remaining layers."""
        return self.rest(started)

    def hidden(self, started: Tensor) -> Tensor:
        """Apply the remaining layers up to the last ReLU."""
        return self.rest[:-2](started)

    def last(self, h: Tensor) -> Tensor:
        """Apply the last dropout and linear layer."""
        return self.rest[-2:](h)

    def begin_constant(self, x: Tensor | SparseMatrix, mean: Tensor, deviation: Tensor) -> Tensor:
        """Compute `begin` for an input that no step changes, from its rows' means and deviations [·, 1]; x may stay sparse.

        W (γ (x − μ) / σ + β) + b = (W' x − μ W' 1) / σ + W β + b with W' = W γ.
        """
        weight = (self.first.weight * self.norm.weight).T
        offset = self.first.weight @ self.norm.bias + self.first.bias
        return (x @ weight - mean * weight.sum(0)) / deviation + offset


class Identity(nn.Identity):
    """An MLP that changes nothing."""

    begin = finish = nn.Identity.forward


class FedStruct(Model):
    """Eq. (20).

    Args:
        num_features: F.
        num_classes: C.
        hidden: width of f's hidden layers.
        layers: linear layers of f.
        dropout: dropout between the layers of f and g.
        structure_layers: widths of g's hidden layers.
        structure_width: d_s; without ``structure_mlp`` it is C.
        structure_mlp: whether g is an MLP, or the identity.
        hops: L.
        structure_hops: L_s.
        beta: ``last``, ``uniform``, ``learned``, or β_1..β_max(L, L_s).
    """

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        hidden: int,
        layers: int,
        dropout: float,
        structure_layers: Sequence[int] = (256,),  # widths of g's hidden layers
        structure_width: int = 256,  # d_s; without `structure_mlp` it is C
        structure_mlp: bool = True,  # false: g is the identity and s_u has one entry per class (Eq. 23)
        hops: Annotated[int, Range(1)] = 2,  # L
        structure_hops: Annotated[int, Range(1)] = 10,  # L_s
        # last (the authors' code) | uniform | learned | a list of max(L, L_s) numbers
        beta: str | Sequence[float] = "last",
    ):
        super().__init__()
        if not isinstance(beta, str) and len(beta) != max(hops, structure_hops):
            raise FedGraphError(
                f"model.beta has {len(beta)} weights for {max(hops, structure_hops)} hops: expected one per hop of the longer"
                " branch"
            )
        self.num_classes = num_classes
        self.structure_width = structure_width if structure_mlp else num_classes
        self.f = NormedMLP([num_features, *[hidden] * (layers - 1), num_classes], dropout)
        self.g: NormedMLP | Identity = Identity()
        if structure_mlp:
            self.g = NormedMLP([structure_width, *structure_layers, num_classes], dropout)
        last = len(self.f.rest) - 1
        self.head_prefixes = (f"f.rest.{last}." if last > 0 else "f.", "g.", "feature_beta", "structure_beta")
        self.feature_weights = hop_weights(_first(beta, hops), hops)
        self.structure_weights = hop_weights(_first(beta, structure_hops), structure_hops)
        self.learned = beta == "learned"
        if self.learned:
            self.feature_beta = nn.Parameter(torch.full((hops,), 1 / hops))
            self.structure_beta = nn.Parameter(torch.full((structure_hops,), 1 / structure_hops))

    def prepare(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> StructureInputs:
        """Prepare features and Â^(i); the structure branch is left out until its rows are known."""
        source, target = graph.edge_index.cpu().numpy()
        nodes = np.arange(graph.num_nodes)
        adj = row_normalized(with_loops(source, target, nodes, (nodes.size, nodes.size)))
        variance, mean = torch.var_mean(graph.x.to(dtype), dim=1, correction=0, keepdim=True)
        deviation = (variance + self.f.norm.eps).sqrt()
        return StructureInputs(self.features(graph.x, dtype), SparseMatrix(adj, dtype), mean, deviation).to(device)

    def encode(self, inputs: StructureInputs) -> Tensor:
        """Compute f's last hidden features [N, H]; if f has one layer, return X as stored."""
        if not self.f.rest:
            return inputs.x  # type: ignore[return-value]
        return self.f.hidden(self.f.begin_constant(inputs.x, inputs.mean, inputs.deviation))

    def classify(self, h: Tensor, inputs: StructureInputs) -> Tensor:
        """Compute logits [N, C]: Ā^(i) on f's last layer, and the structure branch if it is known."""
        logits = self._own(h, inputs)
        if inputs.rows is None:
            return logits
        return logits + self.structure_part(times(inputs.rows, self.g(inputs.s)))

    def representations(self, inputs: StructureInputs) -> dict[str, Tensor]:
        """Return the feature branch, which needs only f and its β, and the whole if the structure branch is known."""
        whole = {} if inputs.rows is None else {"": self(inputs)}
        return whole | {"f": self.feature_part(inputs)}

    def feature_part(self, inputs: StructureInputs) -> Tensor:
        """Compute Ā^(i) f(X), [N, C]."""
        return self._own(self.encode(inputs), inputs)

    def structure_part(self, parts: Tensor) -> Tensor:
        """Compute Ā g(S), [N, C], from its J stacked combinations, [J·N, C]."""
        return self._combined(parts.view(len(self.structure_weights), -1, self.num_classes), "structure_beta")

    def _own(self, h: Tensor, inputs: StructureInputs) -> Tensor:
        embedded = self.f.last(h) if self.f.rest else self.f.begin_constant(h, inputs.mean, inputs.deviation)
        return self._combined(propagate(inputs.adj, self.feature_weights, embedded), "feature_beta")

    def _combined(self, parts: Tensor, beta: str) -> Tensor:
        return torch.tensordot(getattr(self, beta), parts, 1) if self.learned else parts[0]


def times(rows: SparseMatrix | Tensor, embedded: Tensor) -> Tensor:
    """Compute ``rows @ embedded``, [R, Q] @ [Q, C] → [R, C]; with few columns a transposed dense product is twice as fast."""
    if isinstance(rows, SparseMatrix):
        return rows @ embedded
    return nn.functional.linear(embedded.T.contiguous(), rows).T.contiguous()


def _first(beta: str | Sequence[float], hops: int) -> str | Sequence[float]:
    return beta if isinstance(beta, str) else beta[:hops]

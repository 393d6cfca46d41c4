"""What every network has: constants prepared once for a client's graph, and a forward pass on them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import scipy.sparse as sp
import torch
from torch import Tensor, nn

from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.models.layers import gcn_adjacency
from fedgraph_flwr.numerics.sparse import Pattern, SparseMatrix

SPARSE_BELOW = 0.1  # share of non-zeros under which a sparse product beats a dense one


@dataclass
class Inputs:
    """What a forward pass reads and no step changes. A network that needs more adds fields in a subclass.

    Attributes:
        x: features [N, F].
        adj: what the network propagates with, [N, N]; row target, column source.
        propagated: S X of the `narrow` X, where the network's first layer needs S (X W): (S X) W is the same without a
            sparse product in every step.
    """

    x: Tensor | SparseMatrix
    adj: SparseMatrix
    propagated: Tensor | None = field(default=None, kw_only=True)

    def narrow(self, width: int) -> Tensor | None:
        """X where it is dense and no wider than the first layer's output: else S X costs more than it saves."""
        return self.x if isinstance(self.x, Tensor) and self.x.size(1) <= width else None

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Self:
        """A copy on a device, its floating-point values of a type; other fields stay as they are."""

        def move(value: Any) -> Any:
            if isinstance(value, SparseMatrix | Pattern) or (isinstance(value, Tensor) and value.is_floating_point()):
                return value.to(device, dtype)
            return value.to(device) if isinstance(value, Tensor) else value

        return dataclasses.replace(self, **{f.name: move(getattr(self, f.name)) for f in dataclasses.fields(self)})


class Model(nn.Module):
    """A network on a graph: ``model(model.prepare(graph))`` gives logits [N, C].

    ``model.prepare`` runs once for a graph; the rest happens in every step.

    Attributes:
        adjacency: (edge_index [2, E], N) → the matrix that `prepare` puts into the inputs, SciPy CSR [N, N].
        dense_features: whether the network needs features as a dense tensor even if they are mostly zero.
        private: prefixes of parameters that never travel, whatever a strategy shares.
        heterogeneous: whether it is for typed graphs.
    """

    private: tuple[str, ...] = ()
    heterogeneous: bool = False
    adjacency = staticmethod(gcn_adjacency)
    dense_features: bool = False

    def prepare(self, graph: Graph, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Inputs:
        """The constants of a graph: features as they are multiplied fastest, and the normalised adjacency."""
        adj = self.adjacency(graph.edge_index, graph.num_nodes)
        return Inputs(x=self.features(graph.x, dtype), adj=SparseMatrix(adj, dtype)).to(device)

    def features(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor | SparseMatrix:
        """Features [N, F] for a product: a `SparseMatrix` where most of them are zero, else a tensor."""
        if not self.dense_features and int(torch.count_nonzero(x)) < SPARSE_BELOW * x.numel():
            return SparseMatrix(sp.csr_matrix(x.numpy()), dtype)
        return x.to(dtype)

    def forward(self, inputs: Any) -> Tensor:
        """Logits [N, C] of every node."""
        raise NotImplementedError

    def shared(self, prefixes: Sequence[str], private: Sequence[str] = ()) -> dict[str, Tensor]:
        """The tensors that travel, by name, in the model's order: ``prefixes`` of their names, without private ones."""
        return {
            name: tensor
            for name, tensor in self.state_dict(keep_vars=True).items()
            if name.startswith(tuple(prefixes)) and not name.startswith((*self.private, *private))
        }

    def representations(self, inputs: Any) -> dict[str, Tensor]:
        """Node representations [N, D], each by the prefix of the parameters it is computed with; "" is all of them."""
        return {"": self(inputs)}

"""What every network has: constants prepared once for a client's graph, and a forward pass on them in two halves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import scipy.sparse as sp
import torch
from torch import Tensor, nn

from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.layers import gcn_adjacency
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import SparseMatrix

__all__ = ["HEAD", "SPARSE_BELOW", "Inputs", "Model"]

HEAD = "head"
"""The word that stands for the head's parameters, whatever a network calls them."""

Cost = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Logits [N, C] → the loss, a scalar, and its gradient with respect to the logits [N, C]."""

SPARSE_BELOW = 0.1  # share of non-zeros under which a sparse product beats a dense one


def compact(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor | SparseMatrix:
    """Features [N, F] as a `SparseMatrix` where most of them are zero, else as they are."""
    if int(torch.count_nonzero(x)) < SPARSE_BELOW * x.numel():
        return SparseMatrix(sp.csr_matrix(x.numpy()), dtype)
    return x.to(dtype)


class Model(nn.Module):
    """A network on a graph: ``model(model.prepare(graph))`` gives logits [N, C].

    ``model.prepare`` runs once for a graph; the rest happens in every step. A network is hidden features and a head on them,
    ``classify(encode(inputs), inputs)``; the two have no parameter in common.

    Attributes:
        adjacency: (edge_index [2, E], N) → the matrix that `prepare` puts into the inputs, SciPy CSR [N, N].
        dense_features: whether the network needs features as a dense tensor even if they are mostly zero.
        head_prefixes: of the names of the parameters that `classify` reads.
        private: prefixes of parameters that never travel, whatever a strategy shares.
        heterogeneous: whether it is for typed graphs.
        reads_edges: whether it reads features of edges; its class then takes (F, C, D).
        stacks: whether it can run on many clients' graphs at once under `torch.func.vmap`: rows of zeros below a graph's own
            nodes, without edges, change nothing of theirs.
    """

    head_prefixes: tuple[str, ...] = ("head.",)
    private: tuple[str, ...] = ()
    heterogeneous: bool = False
    reads_edges: bool = False
    stacks: bool = False
    adjacency = staticmethod(gcn_adjacency)
    dense_features: bool = False

    def prepare(self, graph: Graph, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Inputs:
        """The constants of a graph: features as they are multiplied fastest, and the normalised adjacency."""
        adj = self.adjacency(graph.edge_index, graph.num_nodes)
        return Inputs(x=self.features(graph.x, dtype), adj=SparseMatrix(adj, dtype)).to(device)

    def features(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor | SparseMatrix:
        """Features [N, F] for a product: `compact` ones, or a tensor where the network needs it."""
        return x.to(dtype) if self.dense_features else compact(x, dtype)

    def encode(self, inputs: Any) -> Tensor:
        """Hidden features [N, H]: after the last hidden activation, before the dropout that the head begins with.

        A network of one layer has none: its features X as they are stored.
        """
        raise NotImplementedError

    def classify(self, h: Tensor, inputs: Any) -> Tensor:
        """Logits [N, C] from hidden features [N, H]: dropout where the network has one there, and the last layer."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> Self:
        """As of any module, in a quarter of the time: a thousand clients are put into either mode in every round."""
        parts, plain = list(self.modules()), (nn.Module.train, Model.train)
        own = (type(part).train not in plain or type(part).__setattr__ is not nn.Module.__setattr__ for part in parts)
        if not isinstance(mode, bool) or any(own):
            return super().train(mode)
        for part in parts:
            vars(part)["training"] = mode
        return self

    def forward(self, inputs: Any) -> Tensor:
        """Logits [N, C] of every node."""
        return self.classify(self.encode(inputs), inputs)

    def grads(self, inputs: Any, values: Mapping[str, Tensor], cost: Cost) -> tuple[Tensor, dict[str, Tensor]] | None:
        """A cost of the logits and its gradients in the parameters by name, written out; None: that is left to autograd.

        A network of few and small layers spends a third of a step on autograd's books. What is written out has the bits that
        autograd gives. It runs without gradients, in the network's present mode, and every tensor may be a stack of M, [M, ...].

        Args:
            inputs: as of `forward`.
            values: of the parameters, by name.
            cost: of logits.
        """
        return None

    @property
    def hops(self) -> int | None:
        """How far along edges a logit reads; None: nobody said, or as far as the graph goes."""
        return None

    @property
    def ties_weights(self) -> bool:
        """Whether two of its parameters are one tensor."""
        return len(list(self.named_parameters(remove_duplicate=False))) > len(list(self.parameters()))

    def settled(self, inputs: Any) -> Any:
        """Inputs that give the same logits, to rounding, where what of a pass no step changes can be done once for all."""
        return inputs

    def plain(self) -> Plain:
        """The same function on torch and PyG alone, for `export`.

        Raises:
            FedGraphError: there is none.
        """
        why = "plain PyG does not have its layers"
        if not type(self).__module__.startswith("fedgraph_flwr."):
            why = (
                "define plain() on it, returning Plain('module:Class', arguments, weights) of fedgraph_flwr.models.plain, where"
                " the class is a torch module with forward(x, edge_index) in a file that imports torch and PyG only"
                " (docs/extend.md, Export a custom model)"
            )
        raise FedGraphError(f"a {type(self).__name__} cannot be exported: {why}")

    def names(self, prefix: str) -> list[str]:
        """The names of the tensors that a prefix, or the word ``head``, stands for, in the model's order."""
        return [name for name in self.state_dict() if name.startswith(self._prefixes([prefix]))]

    def head_names(self) -> list[str]:
        """The names of the head's tensors, in the model's order."""
        return self.names(HEAD)

    def shared(self, prefixes: Sequence[str], private: Sequence[str] = ()) -> dict[str, Tensor]:
        """The tensors that travel, by name, in the model's order; counters (whole numbers) never do.

        Args:
            prefixes: of the names that travel; the word ``head`` stands for the head's.
            private: of those among them that stay, beside the network's own `private`; ``head`` as above.
        """
        wanted, kept = self._prefixes(prefixes), self.private + self._prefixes(private)
        return {
            name: tensor
            for name, tensor in self.state_dict(keep_vars=True).items()
            if name.startswith(wanted) and not name.startswith(kept) and tensor.is_floating_point()
        }

    def representations(self, inputs: Any) -> dict[str, Tensor]:
        """Node representations [N, D], each by the prefix of the parameters it is computed with; "" is all of them."""
        return {"": self(inputs)}

    def _prefixes(self, words: Sequence[str]) -> tuple[str, ...]:
        """Prefixes of names, with the head's own for `HEAD`, with or without a full stop."""
        return tuple(p for word in words for p in (self.head_prefixes if word.rstrip(".") == HEAD else (word,)))

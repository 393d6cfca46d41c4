"""Base of all models: inputs prepared once for a client's graph, and a forward pass on them in two halves."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from fedgraph_flwr.config.capabilities import Capable, ModelCapabilities
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models.in_blocks import Step, in_blocks
from fedgraph_flwr.models.layers import SCALINGS, gcn_adjacency
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.numerics.blocks import GraphInputs, MatrixNeighbours, Neighbours, ScaledNeighbours
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import Device, SparseMatrix

__all__ = ["HEAD", "SPARSE_BELOW", "Inputs", "Model"]

HEAD = "head"
"""Stands for the head's parameters, whatever a model calls them."""

Cost = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Logits [N, C] → the loss, a scalar, and its gradient with respect to the logits [N, C]."""

SPARSE_BELOW = 0.1  # share of non-zeros below which a sparse product is faster than a dense one


def compact(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor | SparseMatrix:
    """Return features [N, F] as a `SparseMatrix` if most of them are zero, else as a tensor."""
    if int(torch.count_nonzero(x)) < SPARSE_BELOW * x.numel():
        return SparseMatrix(sp.csr_matrix(x.numpy()), dtype)
    return x.to(dtype)


class Model(Capable, nn.Module, values=ModelCapabilities):
    """A model on a graph: ``model(model.prepare(graph))`` gives logits [N, C].

    ``model.prepare`` runs once per graph, the rest in every step. A model consists of hidden features and a head on them,
    ``classify(encode(inputs), inputs)``; the two share no parameter.

    Attributes:
        adjacency: (edge_index [2, E], N) → the matrix that `prepare` puts into the inputs, SciPy CSR [N, N].
        head_prefixes: name prefixes of the parameters that `classify` reads.
        private: name prefixes of parameters that never travel, whatever a strategy shares.
        dense_features: see `ModelCapabilities`, likewise its other names, which a class declares.
    """

    head_prefixes: tuple[str, ...] = ("head.",)
    private: tuple[str, ...] = ()
    adjacency = staticmethod(gcn_adjacency)
    again = ("row_wise",)

    def with_nodes(self, num_nodes: int) -> Self:
        """Return the model with the parameters that it has for each node of a client's graph; most models have none."""
        return self

    def fit_to(self, tensors: Mapping[str, Any], where: str) -> None:
        """Take the sizes of tensors that come from a message or a file; those of most models follow from the graph.

        Args:
            tensors: values of the shared or all tensors, by name.
            where: who sent them, or the file, for errors.

        Raises:
            FedGraphError: they are not a state of this model.
        """

    def prepare(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> Inputs:
        """Prepare the inputs of a graph: features in their fastest form, and the normalised adjacency."""
        adj = self.adjacency(graph.edge_index, graph.num_nodes)
        return Inputs(x=self.features(graph.x, dtype), adj=SparseMatrix(adj, dtype)).to(device)

    def with_edges(self, inputs: Any, graph: Graph, device: Device, dtype: torch.dtype) -> Any:
        """Prepare a graph with other edges between the same nodes; their features are taken from ``inputs``."""
        return self.prepare(dataclasses.replace(graph, x=inputs.x), device, dtype)

    def features(self, x: Tensor | SparseMatrix, dtype: torch.dtype = torch.float32) -> Tensor | SparseMatrix:
        """Return features [N, F] for a product: `compact` ones, or a tensor if the model needs it."""
        if isinstance(x, SparseMatrix):  # of `with_edges`
            return x
        return x.to(dtype) if self.capabilities.dense_features else compact(x, dtype)

    def encode(self, inputs: Any) -> Tensor:
        """Compute hidden features [N, H]: after the last hidden activation, before the head's dropout.

        A model of one layer has none and returns its features X as stored.
        """
        raise NotImplementedError

    def classify(self, h: Tensor, inputs: Any) -> Tensor:
        """Compute logits [N, C] from hidden features [N, H]: dropout, if the model has one there, and the last layer."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> Self:
        """Set the mode in a quarter of `nn.Module`'s time, since a thousand clients change mode in every round."""
        parts, plain = list(self.modules()), (nn.Module.train, Model.train)
        overrides = (
            type(part).train not in plain or type(part).__setattr__ is not nn.Module.__setattr__ for part in parts
        )
        if not isinstance(mode, bool) or any(overrides):
            return super().train(mode)
        for part in parts:
            vars(part)["training"] = mode
        return self

    def forward(self, inputs: Any) -> Tensor:
        """Compute logits [N, C] of every node; those of `GraphInputs` layer by layer, in blocks of nodes."""
        if isinstance(inputs, GraphInputs):
            return in_blocks(self.passes(), inputs)
        return self.classify(self.encode(inputs), inputs)

    def grads(self, inputs: Any, values: Mapping[str, Tensor], cost: Cost) -> tuple[Tensor, dict[str, Tensor]] | None:
        """Compute a cost of the logits and its closed-form parameter gradients; None: autograd computes them.

        A model with few small layers spends a third of a step on autograd's bookkeeping. The closed form has the same bits as
        autograd. It runs under ``no_grad``, in the model's current mode, and every tensor may be a stack of M, [M, ...].

        Args:
            inputs: inputs of `forward`.
            values: values of the parameters, by name.
            cost: cost of the logits, with its gradient.
        """
        return None

    @property
    def sampled_hops(self) -> int | None:
        """Number of layers that read neighbours, each of which a batch samples separately; None: it cannot train in batches."""
        return None

    @property
    def one_way(self) -> bool:
        """Whether layers read neighbours along the edges only, and edges as they are stored."""
        return True

    @property
    def subgraphs(self) -> bool:
        """Whether it can train on a part of a graph: it reads features of nodes, and edges between them, and nothing else."""
        return False

    def neighbours(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> Neighbours:
        """Return the neighbours that batches are sampled from; by default the entries of `adjacency`."""
        device = torch.device(device)
        if self.adjacency not in SCALINGS:
            edges = graph.edge_index if self.sampled_hops else torch.zeros(2, 0, dtype=torch.int64)
            return MatrixNeighbours(SparseMatrix(self.adjacency(edges, graph.num_nodes), dtype).to(device))
        indptr, indices = graph.in_neighbours()
        if graph.stored_edges is None:  # those of a file are sorted
            row = np.repeat(np.arange(graph.num_nodes), np.diff(indptr))
            indices = indices[np.lexsort((indices, row))]
        return ScaledNeighbours(indptr, indices, SCALINGS[self.adjacency], device, dtype)

    def graph_inputs(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> GraphInputs:
        """Return a graph as batches and passes in blocks read it. Features of a mapped file stay there."""
        x = graph.x if graph.stored_edges is not None else self.features(graph.x, dtype)
        return GraphInputs(x, self.neighbours(graph, device, dtype), torch.device(device), dtype)

    def passes(self) -> list[Step]:
        """Return the forward pass in steps, each of which reads neighbours of one hop at most."""
        raise FedGraphError(f"a {type(self).__name__} cannot be computed in blocks: set train.sampler=none")

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The parameters and buffers by name; they alias the model's."""
        return self.state_dict(keep_vars=True)

    @cached_property
    def ties_weights(self) -> bool:
        """Whether two parameters are the same tensor."""
        return len(list(self.named_parameters(remove_duplicate=False))) > len(list(self.parameters()))

    def settled(self, inputs: Any) -> Any:
        """Return inputs with the same logits, up to rounding, where a part of the pass that no step changes is precomputed."""
        return inputs

    def plain(self) -> Plain:
        """Return the same function in torch and PyG only, for `export`.

        Raises:
            FedGraphError: the model has none.
        """
        why = "plain PyG has no such layers"
        if not type(self).__module__.startswith("fedgraph_flwr."):
            why = (
                "define plain() on it, returning Plain('module:Class', arguments, weights) of fedgraph_flwr.models.plain, where"
                " the class is a torch module with forward(x, edge_index) in a file that imports torch and PyG only"
                " (docs/extend.md, Export a custom model)"
            )
        raise FedGraphError(f"a {type(self).__name__} cannot be exported: {why}")

    def plain_of_graphs(self) -> Plain:
        """As `plain`, of a model that `pools`, where it predicts graphs."""
        return self.plain()

    def names(self, prefix: str) -> list[str]:
        """Return the names of the tensors that a prefix, or ``head``, matches, in the model's order."""
        return [name for name in self.state_dict() if name.startswith(self._prefixes([prefix]))]

    def head_names(self) -> list[str]:
        """Return the names of the head's tensors, in the model's order."""
        return self.names(HEAD)

    def shared(self, prefixes: Sequence[str], private: Sequence[str] = ()) -> dict[str, Tensor]:
        """Return the tensors that travel, by name, in the model's order; counters (whole numbers) never travel.

        Args:
            prefixes: name prefixes of shared tensors; ``head`` means the head's prefixes.
            private: name prefixes of those that stay, in addition to the model's own `private`; ``head`` as above.
        """
        wanted, kept = self._prefixes(prefixes), self.private + self._prefixes(private)
        return {
            name: tensor
            for name, tensor in self.state_dict(keep_vars=True).items()
            if name.startswith(wanted)
            and not name.startswith(kept)
            and (tensor.is_floating_point() or self.capabilities.whole_numbers)
        }

    def representations(self, inputs: Any) -> dict[str, Tensor]:
        """Return node representations [N, D], by the prefix of the parameters that compute them; "" means all parameters."""
        return {"": self(inputs)}

    def _prefixes(self, names: Sequence[str]) -> tuple[str, ...]:
        """Replace `HEAD`, with or without a full stop, by the head's own prefixes."""
        return tuple(p for name in names for p in (self.head_prefixes if name.rstrip(".") == HEAD else (name,)))

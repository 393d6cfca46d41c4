"""Shared parts of models for heterogeneous graphs: weights of a type, entity embeddings, and the edges of each layer.

Schema-weight decoupling (FedHGN, Fu & King, IJCAI 2023, arXiv:2305.09729). A model declares which of its weights belong to a
node type or an edge type s, and reads them back as

    θ_s = Σ_{i=1..B} β_{s,i} v_i                                                                    Eq. (2)

with bases v [B, ...] shared by all types, and coefficients β [types, B]. With ``bases: 0`` it stores θ_s itself, one per type.
The first part of a parameter's name is its kind, which is all that a strategy needs to know:

    bases.*          v, schema-agnostic
    coefficients.*   β, one row per type
        free.*           θ_s, one row per type, if ``bases`` is 0
        common.*         θ_c, weights that belong to no type
        entities.*       initial states of nodes: their embeddings, or projections of their type's features

Features x_uv [D_r] of an edge of type r enter every layer as a state of the edge (ours): ε_uv = x_uv P_r [H], without bias, so
features of zero, the mean of standardised columns, change nothing. P_r differs in width from type to type. It is stored where
projections of nodes are: in ``entities``, which never travel, or with ``bases: 0`` in ``free``.

An edge type is a triple or, with ``dataset.edge_types: name``, a name that several triples share.
Letters: A node types, R edge types, N_a nodes of type a, N = Σ_a N_a, H hidden width, B bases, C classes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from fedgraph_flwr.config import Range
from fedgraph_flwr.data.hetero import HeteroGraph
from fedgraph_flwr.models.base import Model
from fedgraph_flwr.numerics.draws import Entries, mix, row_pointer
from fedgraph_flwr.numerics.sampler import backend_of
from fedgraph_flwr.numerics.sparse import Device, SparseMatrix
from fedgraph_flwr.numerics.streams import seeded
from fedgraph_flwr.wire.messages import derive_seed

NODE, EDGE = "node", "edge"

Profile = Literal["code", "paper"]
TypeEmbedding = Literal["entity", "decoupled", "both"]


class InEdges:
    """The edges of a graph by target node, in flat numbering, prepared once.

    Args:
        graph: N nodes, E edges.

    Attributes:
        by_type: for each edge type the flat number of its first target, its edges by target as CSR with flat sources, and their
            positions.
    """

    def __init__(self, graph: HeteroGraph):
        self.by_type: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]] = []
        starts = dict(zip(graph.counts, graph.offsets().tolist(), strict=False))
        for (a, _, b), index in graph.edges.items():
            order = np.argsort(index[1].numpy(), kind="stable")
            indptr = row_pointer(index[1].numpy(), graph.counts[b])
            self.by_type.append((starts[b], indptr, index[0].numpy()[order] + starts[a], order))

    def drawn(self, nodes: np.ndarray, fanout: int, key: int, hop: int, stable: bool) -> tuple[np.ndarray, ...]:
        """Draw up to ``fanout`` edges of each type into ``nodes`` [n], ascending; -1 takes all.

        The stream of a draw depends on the key, the node, the hop and the edge type.

        Returns:
            Source, the index of the target among the nodes, type of each edge, and its position in the type, [e] each.
        """
        draws, parts = backend_of("auto"), [np.zeros((4, 0), np.int64)]
        for kind, (start, indptr, indices, place) in enumerate(self.by_type):
            first, last = np.searchsorted(nodes, [start, start + len(indptr) - 1])
            rows = nodes[first:last] - start
            kind_key = int(mix(np.array([key], np.uint64) ^ mix(np.array([kind + 1], np.uint64)))[0])
            total = int(draws.count(indptr, rows, fanout))
            sizes = (len(rows) + 1, total, total, len(rows))
            made = Entries(*(np.empty(size, np.int64) for size in sizes))
            draws.draw(indptr, indices, rows, made, fanout, kind_key, hop, stable)
            parts.append(
                np.stack([indices[made.position], made.rows + first, np.full(total, kind), place[made.position]])
            )
        source, target, relation, places = np.concatenate(parts, axis=1)
        order = np.lexsort((relation, target))
        return source[order], target[order], relation[order], places[order]


@dataclass
class Block:
    """The edges of one layer, from its inputs to its outputs; both are sorted by node, so nodes of a type are contiguous.

    Attributes:
        inputs: flat numbers of the nodes that are read, [I].
        outputs: flat numbers of the nodes that are computed, [O]; all of them are among the inputs.
        rows: position of each output among the inputs, [O].
        source: position of each edge's source among the inputs, [e].
        target: position of its target among the outputs, [e].
        relation: its type, [e].
        place: its position among the graph's edges of this type, [e].
        types: node type of each output, [O].
    """

    inputs: np.ndarray
    outputs: np.ndarray
    rows: np.ndarray
    source: np.ndarray
    target: np.ndarray
    relation: np.ndarray
    place: np.ndarray
    types: np.ndarray

    def mean_weights(self) -> np.ndarray:
        """Return 1 / |N_v^r| for each edge into v of type r, [e]."""
        pair = self.target * (int(self.relation.max(initial=0)) + 1) + self.relation
        _, place, count = np.unique(pair, return_inverse=True, return_counts=True)
        return 1.0 / count[place]

    def of_type(self) -> Iterator[tuple[int, slice]]:
        """Yield each node type among the outputs, and the positions of its nodes."""
        types, first, count = np.unique(self.types, return_index=True, return_counts=True)
        for kind, start, n in zip(types, first, count, strict=True):
            yield int(kind), slice(int(start), int(start + n))


def blocks(
    draw: Callable[[np.ndarray, int], tuple[np.ndarray, ...]], offsets: np.ndarray, outputs: np.ndarray, layers: int
) -> list[Block]:
    """Return the blocks that each of ``layers`` layers must compute so that the last one gives ``outputs``, first layer first.

    Args:
        draw: returns edges into some nodes in a hop, as `InEdges.drawn` does.
        offsets: flat number of the first node of each type, then N, [A + 1].
        outputs: flat numbers of the requested nodes, ascending.
        layers: number of layers.
    """
    hops: list[Block] = []
    for hop in range(layers):
        source, target, relation, place = draw(outputs, hop)
        inputs = np.union1d(outputs, source)
        rows, source = (np.searchsorted(inputs, nodes) for nodes in (outputs, source))
        types = np.searchsorted(offsets, outputs, side="right") - 1
        hops.append(Block(inputs, outputs, rows, source, target, relation, place, types))
        outputs = inputs
    return hops[::-1]


@dataclass
class EdgeStates:
    """Features of the edges of one type in a layer, as a model adds their projections to its messages.

    Attributes:
        name: name of their projection P_r.
        rows: rows that they are added to, [k].
        x: features [k, D_r].
    """

    name: str
    rows: Tensor
    x: Tensor


class TypedSum:
    """Σ_r mean_{u ∈ N_v^r} (h_u + ε_uv) W_r over the edges of a layer, as one sparse and few dense products.

    The sparse product gives the means of every (output, edge type that reaches the output's node type). Then each node type,
    with n outputs and R' edge types into them, uses the cheaper of

        relation-wise   [n, R' H] @ [R' H, H']                                   R' H H' (n + B) operations
        basis-wise      β^T means, then [n, B H] @ [B H, H'] with the bases      n B H (R' + H')

    Args:
        block: the layer's edges.
        kinds: `HeteroGraph.edge_kinds` of each edge type: means are per edge type, weights are per kind.
        device: device of the tensors.
        dtype: dtype of the values.

    Attributes:
        row: row of the means that each edge belongs to, [e].
    """

    def __init__(self, block: Block, kinds: np.ndarray, device: Device, dtype: torch.dtype):
        row = np.zeros(block.target.size, dtype=np.int64)
        self.groups: list[tuple[int, slice, Tensor]] = []  # number of outputs, rows of the means, their edges' kinds
        start = 0
        for _, nodes in block.of_type():
            first, last = np.searchsorted(block.target, [nodes.start, nodes.stop])
            types, place = np.unique(block.relation[first:last], return_inverse=True)
            row[first:last] = start + (block.target[first:last] - nodes.start) * types.size + place
            count = nodes.stop - nodes.start
            self.groups.append(
                (count, slice(start, start + count * types.size), torch.from_numpy(kinds[types]).to(device))
            )
            start += count * types.size
        means = sp.csr_matrix((block.mean_weights(), (row, block.source)), shape=(start, block.inputs.size))
        self.means, self.row = SparseMatrix(means, dtype).to(device), row

    def __call__(self, means: Tensor, weight: "TypeWeight") -> Tensor:
        """Compute sums [O, H'] for the outputs from the means [Σ n R', H] of their messages."""
        shaped = ((means[rows].view(n, types.numel(), means.size(1)), types) for n, rows, types in self.groups)
        return torch.cat([weight.times(part, types) for part, types in shaped])


def plain_sum(block: Block, device: Device, dtype: torch.dtype) -> SparseMatrix:
    """Return Σ_r mean_{u ∈ N_v^r} h_u as one sparse matrix [O, I]."""
    shape = (block.outputs.size, block.inputs.size)
    return SparseMatrix(sp.csr_matrix((block.mean_weights(), (block.target, block.source)), shape), dtype).to(device)


@dataclass
class TypeWeight:
    """The weights of all types under one name: by Eq. (2), or free.

    Attributes:
        bases: v [B, ...]; with free weights θ [types, ...] itself.
        coefficients: β [types, B]; None with free weights.
    """

    bases: Tensor
    coefficients: Tensor | None

    def all(self) -> Tensor:
        """Return θ of every type, [types, ...]."""
        if self.coefficients is None:
            return self.bases
        return torch.tensordot(self.coefficients, self.bases, dims=1)

    def times(self, x: Tensor, types: Tensor) -> Tensor:
        """Compute Σ_t x_t θ_t over some types: x [n, T, H], type numbers [T] → [n, H'], relation-wise or basis-wise."""
        n, count, width = x.shape
        if self.coefficients is None:
            return x.reshape(n, count * width) @ self.bases[types].reshape(count * width, self.bases.size(-1))
        beta, (bases, _, out) = self.coefficients[types], self.bases.shape
        if count * width * out * (n + bases) <= n * bases * width * (count + out):
            theta = (beta @ self.bases.view(bases, width * out)).view(count * width, out)
            return x.reshape(n, count * width) @ theta
        return (beta.T @ x).view(n, bases * width) @ self.bases.view(bases * width, out)


@dataclass
class HeteroInputs:
    """Inputs of a pass over some target nodes, which no step changes.

    Attributes:
        nodes: flat numbers of the nodes whose initial state is read, [I].
        layers: the model's prepared edges of each layer.
        types: node type of each of ``nodes``, [I].
        x: by node type with features: their rows among ``nodes``, and the features [n, F_a].
    """

    nodes: Tensor
    layers: list[Any]
    types: Tensor
    x: dict[int, tuple[Tensor, Tensor]]


class HeteroModel(Model):
    """A model on a heterogeneous graph: ``model(inputs)`` gives logits [N_target, C] of the target node type.

    A subclass declares its weights in ``__init__`` (`declare` for weights of a type, ``self.common`` for others), prepares a
    layer's edges in `prepare_layer`, and computes in `propagate` and `classify`.

    Entity embeddings and the initial coefficients use the client's own random stream. Everything else uses torch's global
    generator, with equal results on all clients.

    Args:
        num_features: ``HeteroGraph.num_features``, [A, R, F_1, ..., F_A], then D_r of edge types if edges have features;
            A = R = 0 for a server without the schema.
        num_classes: C.
        hidden: H.
        layers: number of layers.
        dropout: dropout of hidden states.
        bases: B; 0: one free weight per type.
        profile: ``code``: only edge types have own weights, as in the authors' code; ``paper``: node types too.
        type_embedding: initial state of a node without features: ``entity``, its own embedding; ``decoupled``, its type's,
            by Eq. (2); ``both``, their sum.

    Raises:
        FedGraphError: a value is not accepted.
    """

    heterogeneous = True
    private = ("entities.",)
    common: Any

    def __init__(
        self,
        num_features: Any,
        num_classes: int,
        *,
        hidden: int,
        layers: int,
        dropout: float,
        bases: Annotated[int, Range()] = 20,  # B of Eq. (2); 0: a free weight for each type
        # code: only edge types have weights, as in the authors' code | paper: node types too, Eq. (1)
        profile: Profile = "code",
        # initial states: entity | decoupled (one vector per node type, by Eq. (2)) | both
        type_embedding: TypeEmbedding = "entity",
    ):
        super().__init__()
        self.kinds: dict[str, str] = {}
        self.count = {NODE: num_features[0], EDGE: num_features[1]}
        self.hidden, self.num_layers, self.num_bases, self.dropout = hidden, layers, bases, dropout
        self.profile, self.type_embedding = profile, type_embedding
        self.bases, self.coefficients, self.free = nn.ParameterDict(), nn.ParameterDict(), nn.ParameterDict()
        self.common = nn.Module()
        self.entities = nn.ParameterDict()
        self.offsets = np.zeros(1, dtype=np.int64)
        if type_embedding != "entity":
            self.declare("state", NODE, hidden)
        if not bases:  # decoupled weights of equal shape share bases; these differ in width and stay with the entities
            for i, width in enumerate(num_features[2:]):
                if width:
                    self.free[f"projection_{i}"] = xavier(width, hidden)

    def declare(self, name: str, kind: str, *shape: int) -> None:
        """Declare a weight of ``shape`` for every type of a kind; read it by ``self.typed(name)``.

        Xavier-uniform with gain √2 for bases, free weights, and each type's coefficients (Glorot & Bengio 2010). Fans are those
        of the whole tensor, as in the authors' code, so bases [B, H, H] are quite small.
        """
        types = self.count[kind]
        self.kinds[name] = kind
        if self.num_bases:
            self.bases[name] = xavier(self.num_bases, *shape)
            with seeded(derive_seed(torch.initial_seed(), name)):  # later draws must not depend on the number of types
                self.coefficients[name] = nn.Parameter(self._coefficients(types))
        else:
            self.free[name] = xavier(types, *shape)

    def typed(self, name: str) -> TypeWeight:
        """Return the declared weights of a name."""
        if self.num_bases:
            return TypeWeight(self.bases[name], self.coefficients[name])
        return TypeWeight(self.free[name], None)

    # --- hooks of a model ---------------------------------------------------------------------------------------------------

    def prepare_layer(self, layer: int, block: Block, device: Device, dtype: torch.dtype) -> Any:
        """Prepare a layer's edges."""
        raise NotImplementedError

    def propagate(self, h: Tensor, layers: list[Any]) -> Tensor:
        """Compute hidden states for `classify` from initial states [I, H] and the prepared layers."""
        raise NotImplementedError

    # --- the pass -----------------------------------------------------------------------------------------------------

    def prepare(  # type: ignore[override]
        self, graph: HeteroGraph, device: Device = "cpu", dtype: torch.dtype = torch.float32
    ) -> HeteroInputs:
        """Take a graph: draw its private parameters, and prepare the pass over all its target nodes."""
        self.graph, self.edges, self.offsets = graph, InEdges(graph), graph.offsets()
        self.device, self.dtype = device, dtype
        self._draw_private(graph)
        self.to(device, dtype)
        return self.inputs_for(np.arange(graph.counts[graph.target]))

    def edge_states(
        self, block: Block, device: Device, dtype: torch.dtype, row: np.ndarray | None = None
    ) -> list[EdgeStates]:
        """Return the features of a layer's edges by type, for those types that have some.

        Args:
            block: the layer's edges.
            device: device of the tensors.
            dtype: dtype of the features.
            row: row of each edge [e], to return the mean over the edges of each row; None: a row per edge.
        """
        states = []
        for kind, edge in enumerate(self.graph.edges):
            attr = self.graph.edge_attr.get(edge)
            places = np.flatnonzero(block.relation == kind)
            if attr is None or not attr.size(1) or not places.size:
                continue
            rows, x = places, attr[torch.from_numpy(block.place[places])].to(dtype)
            if row is not None:
                rows, group, count = np.unique(row[places], return_inverse=True, return_counts=True)
                total = x.new_zeros(rows.size, x.size(1)).index_add(0, torch.from_numpy(group), x)
                x = total / torch.from_numpy(count)[:, None].to(dtype)
            name = f"projection_{len(self.graph.counts) + kind}"
            states.append(EdgeStates(name, torch.from_numpy(rows).to(device), x.to(device)))
        return states

    def added(self, h: Tensor, states: Sequence[EdgeStates]) -> Tensor:
        """Add the projections of edge features to some of the rows of ``h`` [n, H]."""
        for state in states:
            h = h.index_add(0, state.rows, state.x @ self.projection(state.name))
        return h

    def projection(self, name: str) -> Tensor:
        """Return the projection of the features of a node type or edge type, [F, H]."""
        return (self.entities if self.num_bases else self.free)[name]

    def inputs_for(self, targets: np.ndarray) -> HeteroInputs:
        """Prepare the pass over some target nodes [n], ascending."""
        return self.sampled_inputs(targets, [-1] * self.num_layers, 0, stable=False)

    def sampled_inputs(self, targets: np.ndarray, fanout: Sequence[int], key: int, stable: bool) -> HeteroInputs:
        """Prepare the pass over some target nodes [n], ascending, with draws of a step's key (`InEdges.drawn`).

        Args:
            targets: the nodes.
            fanout: drawn edges of each type into a node per hop, from the target nodes on; -1: all.
            key: of the step.
            stable: as of `NeighbourSampler`.
        """

        def draw(nodes: np.ndarray, hop: int) -> tuple[np.ndarray, ...]:
            return self.edges.drawn(nodes, fanout[hop], key, hop, stable)

        first = self.offsets[list(self.graph.counts).index(self.graph.target)]
        hops = blocks(draw, self.offsets, targets + first, self.num_layers)
        device, dtype = self.device, self.dtype
        nodes = hops[0].inputs
        types = np.searchsorted(self.offsets, nodes, side="right") - 1
        x = {}
        for i, kind in enumerate(self.graph.counts):
            if kind in self.graph.x and self.graph.x[kind].size(0):
                rows = np.flatnonzero(types == i)
                local = torch.from_numpy(nodes[rows] - self.offsets[i])
                x[i] = (torch.from_numpy(rows).to(device), self.graph.x[kind][local].to(device, dtype))
        layers = [self.prepare_layer(i, block, device, dtype) for i, block in enumerate(hops)]
        return HeteroInputs(torch.from_numpy(nodes).to(device), layers, torch.from_numpy(types).to(device), x)

    @property
    def sampled_hops(self) -> int | None:
        """One per layer."""
        return self.num_layers

    def encode(self, inputs: HeteroInputs) -> Tensor:
        """Compute hidden states for the logits [n, C] of the target nodes that ``inputs`` was prepared for."""
        return self.propagate(self.initial(inputs), inputs.layers)

    def initial(self, inputs: HeteroInputs) -> Tensor:
        """Compute initial states [I, H]: embeddings by ``type_embedding``, and projected features of types that have some."""
        h = torch.zeros((), device=inputs.nodes.device)
        if self.type_embedding != "decoupled":
            table = self.entities["table"]
            h = table if inputs.nodes.numel() == table.size(0) else table.index_select(0, inputs.nodes)
        if self.type_embedding != "entity":
            h = h + self.typed("state").all()[inputs.types]
        for kind, (rows, x) in inputs.x.items():
            h = h.index_copy(0, rows, x @ self.projection(f"projection_{kind}"))
        return h

    def _draw_private(self, graph: HeteroGraph) -> None:
        """Draw entity embeddings N(0, 1), projections and coefficients, from the client's own stream.

        Equal coefficients on all clients would align types by their order, although no one has matched these types.
        """
        with seeded(derive_seed(torch.initial_seed(), "private", getattr(graph, "client", 0))):
            if self.type_embedding != "decoupled":
                self.entities["table"] = nn.Parameter(torch.randn(graph.num_nodes, self.hidden))
            for i, kind in enumerate(graph.counts):
                if self.num_bases and kind in graph.x and graph.x[kind].size(0):
                    self.entities[f"projection_{i}"] = xavier(graph.x[kind].size(1), self.hidden)
            for beta in self.coefficients.values():
                beta.data.copy_(self._coefficients(beta.size(0)))  # drawn on the CPU: the same on every device
            for i, edge in enumerate(graph.edges, len(graph.counts)):
                if self.num_bases and edge in graph.edge_attr and graph.edge_attr[edge].numel():
                    self.entities[f"projection_{i}"] = xavier(graph.edge_attr[edge].size(1), self.hidden)

    def _coefficients(self, types: int) -> Tensor:
        """Draw β [types, B], each row Xavier-uniform as a [1, B] matrix."""
        bound = (2.0 * 6.0 / (1 + self.num_bases)) ** 0.5
        return torch.empty(types, self.num_bases).uniform_(-bound, bound)


def xavier(*shape: int) -> nn.Parameter:
    """Draw Xavier-uniform values, gain √2; one vector per type, [types, H], has fans H and types."""
    weight = torch.empty(*shape)
    return nn.Parameter(nn.init.xavier_uniform_(weight, gain=2**0.5) if weight.numel() else weight)

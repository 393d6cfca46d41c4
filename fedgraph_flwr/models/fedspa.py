r"""FedSPA's model: subgraph feature propagation decoupling (Tan et al., CVPR 2025, Section 4.1).

A directed edge u → v is typed once, by *training* labels only (Eq. 4):

    hom  u, v ∈ V_train and y_u = y_v
    het  u, v ∈ V_train and y_u ≠ y_v
    unk  one of the two labels is not visible

Each type is a sparse operator C^t [N, N], C^t_vu = c_vu where the edge has type t, over the neighbours of v without v.
d counts all neighbours of any type: ``sym`` c_vu = 1/√(d_v d_u), the Â of Section 3; ``mean`` c_vu = 1/d_v;
``sum`` c_vu = 1, Eq. (6) as printed. On directed edges d_v counts incoming and d_u outgoing edges. With ``sum`` a hub's logits
grow with the square of its degree, so the first steps overshoot under the paper's protocol.

Types follow from training labels and reveal a training node's own label, while all edges of a test node are unknown. With
unbalanced classes this is what the model learns.

Profile ``plain``, Eq. (5)-(6). Since f is linear, f_unk with θ_unk = α θ_hom + (1−α) θ_het is a mixture of products:

    α = τ(Z w_φ + b_φ)                              [N, 1], of the centre node v
    Z' = Z W_self + b + C^hom Z W_hom + C^het Z W_het + α ⊙ C^unk Z W_hom + (1−α) ⊙ C^unk Z W_het

Profile ``acm``, the form on ACM-GCN channels that the authors run. P = D̃^{-1} Ã, q ∈ {low, high}:

    H_low = ReLU(P Z W_low),  H_high = ReLU((I − P) Z W_high),  H_mlp = ReLU(Z W_mlp)
    N_tq = C^t H_q                                  t ∈ {het, hom, unk}: seven channels with H_mlp
    e_tq = N_tq a_tq,   e_mlp = H_mlp a_mlp,   e_unk,q = α_q ⊙ N_unk,q a_hom,q + (1−α_q) ⊙ N_unk,q a_het,q
    α_q = τ(N_unk,q w_φ + b_φ)
    Z' = 7 Σ_c A_c ⊙ channel_c,   A = softmax(τ(e) M / 7)

Profile ``acm_sep`` gives each of the two channels its own weights, as in Eq. (4), on the same ACM layer:
N_tq = C^t H_tq with H_tq from W_t,q for t ∈ {hom, het}, and N_unk,q = α ⊙ C^unk H_hom,q + (1−α) ⊙ C^unk H_het,q with
the centre node's α of ``plain``, which also mixes the scores.

Shapes: Z [N, F], W_t [F, H], w_φ [F, 1] (``acm``: [H, 1]), a_tq [H], M [7, 7]; the last layer has C in H's place.

Where paper and code disagree: α multiplies the homophilic side everywhere, as in Eq. (5); the code's ``acm`` harmonizer
multiplies the heterophilic one, a change of sign of φ. The code's score of (unk, high) reads the heterophilic aggregate, here
the unknown one. Parameters that the code uses only before the first training are left out. The code's C^t in N_tq is a plain sum,
here ``sym`` by default. The code also drops out a tenth of X before the first layer, here nothing.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError, unknown
from fedgraph_flwr.models.acm import filtered, smoothed
from fedgraph_flwr.models.layers import (
    adjacency,
    glorot,
    no_adjacency,
    products,
    proper_edges,
    random_walk_adjacency,
)
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.models.stack import Common, Stack
from fedgraph_flwr.numerics.blocks import NO_MATRIX, NOT_READ
from fedgraph_flwr.numerics.draws import Entries
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sampler import Csr
from fedgraph_flwr.numerics.sparse import BlockMatrix, Device, SparseMatrix

FISHER = "fisher"  # the group of arrays with the channels' Fisher diagonals
HOM, HET, UNK = range(3)
NORMALIZATIONS = {"sym": (-0.5, -0.5), "mean": (-1.0, 0.0), "sum": (0.0, 0.0)}  # powers of d_v and d_u in c_vu


def parameter_group(name: str) -> str:
    """Return the group of a parameter: ``hom``, ``het``, ``phi`` (θ_hom, θ_het, θ_φ), or ``rest``."""
    leaf = name.rpartition(".")[2]
    return next((group for group in ("hom", "het", "phi") if leaf.startswith(f"theta_{group}")), "rest")


def edge_types(edge_index: Tensor, y: Tensor, train_mask: Tensor) -> Tensor:
    """Compute Eq. (4): `HOM`, `HET` or `UNK` for each edge, int64 [E]; labels outside ``train_mask`` are not read."""
    source, target = edge_index
    alike = torch.where(y[source] == y[target], HOM, HET)
    return torch.where(train_mask[source] & train_mask[target], alike, UNK)


def typed_operators(graph: Graph, normalization: str = "sym", sfpd: bool = True) -> list[sp.csr_matrix]:
    """Build C^hom, C^het, C^unk, SciPy CSR [N, N] each; their sum propagates over all edges except loops.

    Args:
        graph: the graph whose edges are typed.
        normalization: ``sym``, ``mean`` or ``sum``.
        sfpd: False types every edge as homophilic.
    """
    if normalization not in NORMALIZATIONS:
        raise unknown("model.normalization", normalization, NORMALIZATIONS)
    edges = proper_edges(graph.edge_index)
    types = edge_types(edges, graph.y, graph.train_mask) if sfpd else torch.full_like(edges[0], HOM)
    counts = adjacency(edges, graph.num_nodes)
    # d_v incoming, d_u outgoing
    degrees = [np.maximum(np.asarray(counts.sum(axis=axis)).ravel(), 1) for axis in (1, 0)]
    left, right = (sp.diags(d**power) for d, power in zip(degrees, NORMALIZATIONS[normalization], strict=True))
    return [sp.csr_matrix(left @ adjacency(edges[:, types == t], graph.num_nodes) @ right) for t in (HOM, HET, UNK)]


@dataclass
class TypedInputs(Inputs):
    """`Inputs` with a layer's three typed operators as blocks of one matrix; ``adj`` is P, empty if the layers do not read it.

    Attributes:
        edges: the layer's ``blocks`` of C^hom, C^het, C^unk: one product instead of one per type and channel.
    """

    edges: SparseMatrix


class TypedNeighbours:
    """Neighbours of any type, as the blocks of `PlainLayer` hold them; drawn entries are scaled by d/f."""

    back: Csr | None = None

    def __init__(self, edges: SparseMatrix):
        pointer, col, value = (part.cpu().numpy() for part in edges.rows)
        nodes = edges.shape[1] // 2
        row, source = np.repeat(np.arange(2 * nodes), np.diff(pointer)), col % nodes
        upper = row < nodes
        unknown_pairs = (row * nodes + source)[~upper] - nodes * nodes
        self.unknown = np.isin((row * nodes + source)[upper], unknown_pairs)
        self.indptr, self.indices = pointer[: nodes + 1], source[upper].astype(np.int32)
        self.homophilic, self.values = (col < nodes)[upper], value[upper]
        self.device = edges.rows.value.device

    def layer(self, nodes: NDArray[np.int64], hop: Entries, sources: int, back: Entries | None = None) -> TypedInputs:
        """Return the blocks of the drawn entries, [2R, 2K]."""
        values = self.values[hop.position] * hop.scale.astype(self.values.dtype)
        col = hop.col + np.where(self.homophilic[hop.position], 0, sources)
        unknown = self.unknown[hop.position]
        targets, mixed = len(hop.degree), values[unknown]
        below, over = hop.rows[unknown] + targets, hop.col[unknown]
        entries = [(values, hop.rows, col), (mixed, below, over), (-mixed, below, over + sources)]
        value, row, column = (np.concatenate(parts) for parts in zip(*entries, strict=True))
        matrix = sp.csr_matrix((value, (row, column)), shape=(2 * targets, 2 * sources))
        return TypedInputs(NOT_READ, NO_MATRIX, BlockMatrix.of(matrix).to(self.device))


class PlainLayer(nn.Module):
    """Eq. (5)-(6): [N, F] → [N, H]."""

    adjacency = staticmethod(no_adjacency)

    def __init__(self, num_in: int, num_out: int):
        super().__init__()
        self.theta_hom, self.theta_het, self.theta_self = (glorot(num_in, num_out) for _ in range(3))
        self.theta_phi_weight, self.theta_phi_bias = glorot(num_in, 1), nn.Parameter(torch.zeros(1))
        self.bias = nn.Parameter(torch.zeros(num_out))

    @staticmethod
    def blocks(hom: Any, het: Any, unk: Any) -> sp.csr_matrix:
        """Return [2N, 2N]: from Z W_hom over Z W_het to the aggregate at α = 0, and the part that α adds."""
        return sp.csr_matrix(sp.bmat([[hom, het + unk], [unk, -unk]]))

    @staticmethod
    def propagated(inputs: Inputs, width: int, hom: Any, het: Any, unk: Any) -> Inputs:
        """Add [X | C^hom X | (C^het + C^unk) X | C^unk X], [N, 4F], to inputs with narrow X."""
        if (x := inputs.narrow(width)) is None:
            return inputs
        incoming = [SparseMatrix(operator, x.dtype) @ x for operator in (hom, het + unk, unk)]
        return dataclasses.replace(inputs, propagated=torch.cat([x, *incoming], dim=1))

    def forward(self, z: Any, inputs: TypedInputs) -> Tensor:
        """Return [N, H]."""
        if z is inputs.x and inputs.propagated is not None:
            features = self.theta_phi_weight.size(0)
            ready, mixed = inputs.propagated.split([3 * features, features], dim=1)
            at_zero = ready @ torch.cat([self.theta_self, self.theta_hom, self.theta_het])  # at α = 0
            added, phi = mixed @ (self.theta_hom - self.theta_het), z @ self.theta_phi_weight
        else:
            weights = [self.theta_self, self.theta_hom, self.theta_het, self.theta_phi_weight]
            center, hom, het, phi = products(z, weights)
            incoming, added = (inputs.edges @ torch.cat([hom, het])).chunk(2)
            if len(added) < len(center):  # a sampled batch
                center, phi = center[: len(added)], phi[: len(added)]
            at_zero = center + incoming
        return at_zero + self.bias + torch.sigmoid(phi + self.theta_phi_bias) * added


def _interleaved(blocks: list[list[Any]]) -> sp.csr_matrix:
    """Build a block matrix of K rows of blocks, ordered by node and then by block: a product is [N, K, ...] in memory."""
    matrix = sp.csr_matrix(sp.bmat(blocks))
    return sp.csr_matrix(matrix[np.arange(matrix.shape[0]).reshape(len(blocks), -1).T.ravel()])


def _glorot_blocks(num_in: int, num_out: int, count: int) -> nn.Parameter:
    """Initialise ``count`` matrices separately and concatenate them, [F, count H]."""
    return nn.Parameter(torch.cat([glorot(num_in, num_out).data for _ in range(count)], dim=1))


class _AcmMixing(nn.Module):
    """Precomputed parts of filtered channels, and the seven channels' attention."""

    adjacency = staticmethod(random_walk_adjacency)

    def __init__(self, num_out: int):
        super().__init__()
        rows = (_glorot_blocks(num_out, 1, 2).data.T.contiguous() for _ in range(2))  # a_low and a_high, [2, H]
        self.theta_hom_attention, self.theta_het_attention = map(nn.Parameter, rows)
        self.attention_mlp = glorot(num_out, 1)
        self.mixing = glorot(7, 7)

    @staticmethod
    def propagated(inputs: Inputs, width: int, hom: Any, het: Any, unk: Any) -> Inputs:
        """Add P X to inputs with narrow X."""
        return smoothed(inputs, width)

    def mix(self, channels: Tensor, mlp: Tensor, alpha: Tensor) -> Tensor:
        """Combine all channels by their attention: [N, H].

        Args:
            channels: N_het, N_hom, N_unk, each low and high, [N, 6, H]; or [N, 8, H], where the last two are the part that α
                adds to N_unk.
            mlp: H_mlp [N, H].
            alpha: α [N, 1] or [N, 2], which mixes the scores of unknown edges.
        """
        vectors = torch.cat([self.theta_het_attention, self.theta_hom_attention])  # [4, H]
        products = (channels @ vectors.T).unflatten(2, (2, 2)).unflatten(1, (-1, 2))  # [N, types, q, het or hom, q]
        het, hom, unk, *added = products.diagonal(dim1=2, dim2=4).unbind(1)  # [N, 2, 2] each, het or hom by q
        unk = unk + alpha.unsqueeze(1) * added[0] if added else unk
        from_het, from_hom = unk.unbind(1)
        scores = [het[:, 0], hom[:, 1], from_het + alpha * (from_hom - from_het), mlp @ self.attention_mlp]
        weights = 7 * torch.softmax(torch.sigmoid(torch.cat(scores, dim=1)) @ self.mixing / 7, dim=1)  # [N, 7]
        typed, mlp_weight = weights.split([6, 1], dim=1)
        typed = torch.cat([typed, alpha * typed[:, 4:]], dim=1) if added else typed
        return (typed.unsqueeze(1) @ channels).squeeze(1) + mlp_weight * mlp


class AcmLayer(_AcmMixing):
    """Layer of the ``acm`` profile: the two channels have own attention vectors and shared filters. [N, F] → [N, H]."""

    def __init__(self, num_in: int, num_out: int):
        super().__init__(num_out)
        self.filters = _glorot_blocks(num_in, num_out, 3)  # [W_low | W_high | W_mlp]
        self.theta_phi_weight, self.theta_phi_bias = glorot(num_out, 1), nn.Parameter(torch.zeros(1))

    @staticmethod
    def blocks(hom: Any, het: Any, unk: Any) -> sp.csr_matrix:
        """Return [3N, N]: from [H_low | H_high] to each node's N_het, N_hom, N_unk."""
        return _interleaved([[het], [hom], [unk]])

    def forward(self, z: Any, inputs: TypedInputs) -> Tensor:
        """Return [N, H]."""
        width = self.theta_phi_weight.size(0)
        low, high, mlp = filtered(z, self.filters, width, inputs)
        channels = (inputs.edges @ torch.cat([low, high], dim=1)).view(-1, 6, width)
        alpha = torch.sigmoid((channels @ self.theta_phi_weight)[:, 4:, 0] + self.theta_phi_bias)  # [N, 2]
        return self.mix(channels, mlp, alpha)


class AcmSeparateLayer(_AcmMixing):
    """Layer of the ``acm_sep`` profile: the two channels have own filters, too. [N, F] → [N, H]."""

    def __init__(self, num_in: int, num_out: int):
        super().__init__(num_out)
        self.theta_hom, self.theta_het = (_glorot_blocks(num_in, num_out, 2) for _ in range(2))
        self.filter_mlp = glorot(num_in, num_out)
        self.theta_phi_weight, self.theta_phi_bias = glorot(num_in, 1), nn.Parameter(torch.zeros(1))

    @staticmethod
    def blocks(hom: Any, het: Any, unk: Any) -> sp.csr_matrix:
        """Return [4N, 2N]: from H_hom over H_het to each node's N_het, N_hom, N_unk at α = 0, and the part that α adds."""
        return _interleaved([[None, het], [hom, None], [None, unk], [unk, -unk]])

    def forward(self, z: Any, inputs: TypedInputs) -> Tensor:
        """Return [N, H]."""
        width = self.filter_mlp.size(1)
        alpha = torch.sigmoid(z @ self.theta_phi_weight + self.theta_phi_bias)  # [N, 1]
        pairs = [filtered(z, theta, width, inputs)[:2] for theta in (self.theta_hom, self.theta_het)]
        channels = inputs.edges @ torch.cat([torch.cat(pair, dim=1) for pair in pairs])
        return self.mix(channels.view(-1, 8, width), torch.relu(z @ self.filter_mlp), alpha)


PROFILES: dict[str, type[PlainLayer | AcmLayer | AcmSeparateLayer]] = {
    "plain": PlainLayer,
    "acm": AcmLayer,
    "acm_sep": AcmSeparateLayer,
}


class FedSPANet(Stack):
    """``layers`` decoupled layers with ReLU and dropout between them.

    Args:
        num_features: F.
        num_classes: C.
        profile: ``plain``, ``acm`` or ``acm_sep``.
        normalization: c_vu, ``sym``, ``mean`` or ``sum``.
        sfpd: False types every edge as homophilic: the same model without decoupling, for ablations.
        common: keywords of `Stack`.
    """

    samples = True

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        # plain: Eq. (4)-(6) | acm: the authors' code, on ACM-GCN channels | acm_sep: acm, weights by channel; the authors'
        # form, acm with normalization=sum, often fails at its step of 0.1 (Wisconsin, Cornell, CS): sums grow with degree, and
        # the first steps end where all nodes have equal outputs
        profile: Literal["plain", "acm", "acm_sep"] = "plain",
        # c_uv: sym, the Â of Section 3 | mean | sum, Eq. (6) as printed (ours: Eq. (6) leaves it open)
        normalization: Literal["sym", "mean", "sum"] = "sym",
        sfpd: bool = True,  # false: every edge counts as homophilic, the same model without decoupling
        **common: Unpack[Common],
    ):
        super().__init__(num_features, num_classes, PROFILES[profile], **common)
        self.profile, self.normalization, self.sfpd = PROFILES[profile], normalization, sfpd
        self.width = common["hidden"] if self.layers else num_classes
        self.adjacency = self.profile.adjacency

    @property
    def sampled_hops(self) -> int | None:
        """One per layer of the profile ``plain``; in others, a layer reads two hops."""
        return super().sampled_hops if self.profile is PlainLayer else None

    def neighbours(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> TypedNeighbours:
        """Return the neighbours of any type."""
        operators = typed_operators(graph, self.normalization, self.sfpd)
        return TypedNeighbours(SparseMatrix(self.profile.blocks(*operators), dtype).to(device))

    def plain(self) -> Plain:
        """Export the profile ``plain`` on dense features; the others are refused."""
        if self.profile is not PlainLayer:
            raise FedGraphError(
                "model=fedspa can be exported only with model.profile=plain: use `fedgraph-flwr predict`"
            )
        weights: dict[str, Tensor] = {}
        made = [*self.layers, self.head]
        for index, layer in enumerate(made):
            for name, matrix in (("itself", "self"), ("hom", "hom"), ("het", "het"), ("phi", "phi_weight")):
                weights[f"layers.{index}.{name}.weight"] = getattr(layer, f"theta_{matrix}").T
            weights |= {f"layers.{index}.itself.bias": layer.bias, f"layers.{index}.phi.bias": layer.theta_phi_bias}
        widths = [layer.theta_self.size(0) for layer in made] + [self.head.theta_self.size(1)]
        arguments = {"widths": widths, "normalization": self.normalization, "typed": self.sfpd}
        return Plain("fedspa", arguments, weights, labels=self.sfpd)

    def prepare(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> TypedInputs:
        """Prepare features, the layers' P, the operators of the edge types, and narrow features propagated."""
        operators = typed_operators(graph, self.normalization, self.sfpd)
        base = self.profile.propagated(super().prepare(graph, "cpu", dtype), self.width, *operators)
        edges = SparseMatrix(self.profile.blocks(*operators), dtype)
        return TypedInputs(base.x, base.adj, edges, propagated=base.propagated).to(device)

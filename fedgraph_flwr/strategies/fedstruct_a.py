"""FedStruct-A (Aliakbari, Östman & Graell i Amat, 2024): the server knows the global graph, the clients do not.

    S^(L_s) = sGNN_θs(S, E) on the server,   H_i = fGNN_θf(X_i, E_i) on client i              Eqs. (5), (9), (16), (17)
    ŷ_v = softmax(s_v^(L_s) + h_v)                                     Eq. (10), Θ_c folded into the last layers
    ∂F_i/∂s_v^(L_s) = ŷ_v − y_v for v ∈ V~_i                          Lemma 1, returned by the clients

The paper sends the clients every Jacobian of s_v^(L_s) (Theorems 1 and 2). Here they return the
residuals, and the server propagates them back through its own sGNN. This gives the same gradient
from |V~_i| C numbers. With model=fedstruct, both networks are decoupled, and the parameters are
those of FedStruct-B. With another model (sage in Figure 3), sGNN and fGNN are two of it. Leaves the
client: its edges (once), gradients of θ_f, residuals of its training nodes, scores.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr import models
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.methods import fedstruct, hops, structure_features
from fedgraph_flwr.methods.fedstruct import STRUCTURE, FedStructAParams, S
from fedgraph_flwr.models.fedstruct import FedStruct
from fedgraph_flwr.models.layers import propagate
from fedgraph_flwr.numerics.sparse import SparseMatrix
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.strategies.base import Groups, GroupsFor
from fedgraph_flwr.strategies.fedgrad import FedGrad
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import TRAIN, Arrays, Reply, derive_seed
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, up_to
from fedgraph_flwr.wire.trees import Tree, flatten


class FedStructA(FedGrad):
    """The server of Algorithms 1 and 2.

    Attributes:
        nodes: global ids of each client's nodes.
        network: sGNN.
        s: structure features of all nodes, [n, d_s].
    """

    Params: ClassVar[type] = FedStructAParams
    uplink = staticmethod(fedstruct.known_uplink)

    def fields(
        self, phase: str, group: str, client: int | None
    ) -> Mapping[str, ArrayField] | None:
        """Return the fields of all edges, once, or of residuals of training nodes."""
        ids = ArrayField((range(1, LARGEST + 1),), "int32", 0, LARGEST)
        if phase == "reveal":
            return {"nodes": ids, "edges": replace(ids, shape=(2, up_to(LARGEST)))}
        if client is None:
            return None
        count = self.clients[client].description["num_train"]
        nodes = len(self.nodes[client])
        most = 1 + 1e-5  # a difference of probabilities
        residuals = ArrayField((count, self.agreed("num_classes")), self.cfg.dtype, -most, most)
        return {"places": ArrayField((count,), "int32", 0, nodes - 1), "residuals": residuals}

    @staticmethod
    def verify(phase: str, reply: Reply, facts: Any) -> None:
        """Refuse residuals of nodes that are not ascending."""
        if phase != TRAIN:
            return
        places = reply.groups[STRUCTURE]["places"]
        if (np.diff(places) <= 0).any():
            raise FedGraphError(
                f"client {reply.client} replied to phase 'train' with places that are not ascending"
            )

    def __init__(self, cfg: RunConfig):
        super().__init__(cfg)
        self.dtype = torch.float64 if cfg.dtype == "float64" else torch.float32
        self.decoupled = cfg.model.name == "fedstruct"
        self.nodes: dict[int, np.ndarray] = {}
        self.s = torch.zeros(0, 0)

    def setup(self) -> None:
        """Collect the edges of all clients, then create S and sGNN."""
        replies = self.request_all("reveal")
        self.nodes = {r.client: r.groups["graph"]["nodes"] for r in replies}
        parts = [r.groups["graph"]["edges"] for r in replies]
        edges = np.concatenate(parts, axis=1).astype(np.int64)
        ids = np.concatenate(list(self.nodes.values()))
        n = len(ids)
        complete = np.array_equal(np.sort(ids), np.arange(n))
        if not complete or edges.max(initial=0) >= n:
            raise RunFailed(
                f"the clients' nodes and edges are not those of one graph of {n} nodes: check node_id of their graphs"
            )
        classes = self.agreed("num_classes")
        cfg = self.cfg.model
        if self.decoupled:
            params = models.keywords(cfg)
            width = params["structure_width"] if params["structure_mlp"] else classes
            s = self.structure_features(edges, n, width)
            cfg = replace(cfg, params={**cfg.params, "structure_width": s.shape[1]})
        else:
            s = self.structure_features(edges, n, self.params.width)
        reseed(derive_seed(self.cfg.seed, "model" if self.decoupled else "structure model"))
        num_features = self.agreed("num_features") if self.decoupled else s.shape[1]
        self.network = models.build(cfg, num_features, classes).to(self.dtype)
        self.s = torch.from_numpy(s).to(self.dtype)
        if isinstance(self.network, FedStruct):
            looped = hops.with_loops(edges[0], edges[1], np.arange(n), (n, n))
            adjacency = hops.row_normalized(looped)
            self.rows = Powers(
                SparseMatrix(adjacency, self.dtype), self.network.structure_weights
            )
        else:
            nothing = torch.zeros(n, dtype=torch.bool)
            unknown = torch.full((n,), -1)
            graph = Graph(
                self.s.float(),
                torch.from_numpy(edges),
                unknown,
                nothing,
                nothing,
                nothing,
                classes,
            )
            self.inputs = self.network.prepare(graph, dtype=self.dtype)

    def structure_features(self, edges: np.ndarray, n: int, width: int) -> np.ndarray:
        """Compute S from the edges [2, E] of the whole graph: [n, width]; graphlets have their own width."""
        p = self.params
        seed = self.cfg.seed
        if p.features == "degree":
            outgoing, incoming = (np.bincount(ends, minlength=n) for ends in edges)
            return structure_features.degree_one_hot(outgoing, incoming, width)
        if p.features == "graphlets":
            return structure_features.graphlet_degrees(
                edges, n, p.graphlet_size, p.graphlet_scale
            )
        if p.features == "node2vec":
            return structure_features.kept_node2vec(edges, n, width, seed=seed, epochs=p.epochs)
        s = np.empty((n, width))
        for client, ids in self.nodes.items():  # each client's own stream, as in FedStruct-B
            s[ids] = structure_features.hop2vec(ids.size, width, seed, client)
        return s

    def initial_arrays(self) -> Arrays:
        """Return θ_f; θ_s stays at the server."""
        return {
            name: array
            for name, array in super().initial_arrays().items()
            if not (self.decoupled and own(name))
        }

    def held(self) -> dict[str, Tensor]:
        """Return θ_s, and S if it is learned."""
        tensors = {f"structure/{name}": p.detach() for name, p in self.parameters().items()}
        return tensors | ({S: self.s.detach()} if self.params.features == "hop2vec" else {})

    def hold(self, updated: dict[str, Tensor]) -> None:
        """Store both after a step."""
        with torch.no_grad():
            for name, parameter in self.parameters().items():
                parameter.copy_(updated[f"structure/{name}"])
        self.s = updated.get(S, self.s)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return θ_s by name."""
        return {
            name: p
            for name, p in self.network.named_parameters()
            if own(name) or not self.decoupled
        }

    def embeddings(self, training: bool) -> Tensor:
        """Compute S^(L_s), [n, C]; with ``training`` also its autograd graph."""
        self.network.train(training)
        reseed(derive_seed(self.cfg.seed, "server", self.server_round))
        with torch.set_grad_enabled(training):
            if isinstance(self.network, FedStruct):
                return self.network.structure_part(self.rows @ self.network.g(self.s))
            return self.network(replace(self.inputs, x=self.s))

    def before_train(self, arrays: Arrays) -> GroupsFor:
        """Send s_v^(L_s) of each client's own nodes, with dropout for training and, if a model is scored, without."""
        self.s = self.s.detach().requires_grad_(self.params.features == "hop2vec")
        self.trained = self.embeddings(training=True)
        sent = {"train": self.trained.detach().numpy()}
        if self.scores_due:
            sent["scored"] = self.embeddings(training=False).numpy()
        groups: dict[int, Groups] = {}
        for client in self.cohort:
            ids = self.nodes[client]
            groups[client] = {STRUCTURE: {name: z[ids] for name, z in sent.items()}}
        return groups

    def before_evaluate(self, arrays: Arrays) -> GroupsFor:
        """Send s_v^(L_s) of each client's own nodes."""
        z = self.embeddings(training=False).numpy()
        return {client: {STRUCTURE: {"scored": z[ids]}} for client, ids in self.nodes.items()}

    def gradients(self, arrays: Arrays, reduced: Reduced) -> dict[str, Tensor]:
        """Sum the clients' gradients of θ_f, and back-propagate the residuals to θ_s and S."""
        residuals = torch.zeros_like(self.trained)
        for reply in reduced:
            group = reply.groups[STRUCTURE]
            ids = self.nodes[reply.client][group["places"]]
            residuals[ids] = torch.from_numpy(group["residuals"])
        leaves = {f"structure/{name}": p for name, p in self.parameters().items()}
        if self.params.features == "hop2vec":
            leaves[S] = self.s  # type: ignore[assignment]
        values = torch.autograd.grad(self.trained, list(leaves.values()), residuals)
        return super().gradients(arrays, reduced) | dict(zip(leaves, values, strict=True))

    def save(self) -> Tree:
        """Return θ_s, S and the optimiser's moments."""
        return {**super().save(), "held": self.held()}

    def load(self, tree: Tree) -> None:
        """Restore all three."""
        super().load(tree)
        self.hold(flatten(tree["held"]))


class Powers:
    """The J stacked combinations of the powers of a matrix [n, n], applied without forming them."""

    def __init__(self, matrix: SparseMatrix, weights: np.ndarray):
        self.matrix = matrix
        self.weights = weights

    def __matmul__(self, dense: Tensor) -> Tensor:
        return propagate(self.matrix, self.weights, dense).flatten(0, 1)


def own(name: str) -> bool:
    """Return whether a parameter of the decoupled model belongs to the structure branch, which the server keeps."""
    return name.startswith(("g.", "structure_beta"))

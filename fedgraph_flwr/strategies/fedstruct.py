"""FedStruct-B (Aliakbari, Östman & Graell i Amat, 2024): decoupled learning without a party that knows the global graph.

    announce   keys and the ids of all clients' nodes                                   once
    acquire    Ā^[i] by Algorithm 3: L_s − 1 relays of sealed B_i^k                     once
    place      s_u of the support, for features that are not learned                    once
    train      ∇_θ F = (1/|V~|) Σ_i g_i,   ∇_S F = (1/|V~|) Σ_i G_S^i                   Algorithms 4 and 5

Reproduced: its paper's claims, and nearly all its scores, with the authors' code where the paper is
silent. Not reproduced: Local on Cora and CiteSeer, and some rows of FL-GNN, are lower. Our
explanation is GraphSAGE's size and rounds, which the paper does not give (reproduction-papers.md).

The server steps θ and S with the same optimiser (λ = λ_s in Table 4) and sends each client the rows
of S in its support. This is exact, since all others meet a zero of Ā^[i]. Gradients of a part of
the clients are divided by those clients' |V~_i|. Threat model: an honest-but-curious server. It
holds θ and S, relays sealed content, and learns the owner of every node, which clients' nodes are
joined by an edge, the bytes of each envelope, and per client the union of its nodes' L_s-hop
neighbourhoods (in the paper, too: the rows of G_S^i that are not zero; for L_s = 1 these are its
direct neighbours). It learns no edge. A malicious server that distributes false keys could read the
envelopes, which pinned keys prevent (`fedgraph_flwr.secure.keyring`). Clients learn their own rows
of Ā and the B_i^k addressed to them; with few hops these reveal edges of the sender.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.methods import fedstruct, hops
from fedgraph_flwr.methods.fedstruct import ENVELOPES, STRUCTURE, FedStructParams, S
from fedgraph_flwr.models import keywords, probe
from fedgraph_flwr.models.fedstruct import FedStruct as Network
from fedgraph_flwr.secure.keyring import SIGNATURE_FIELD, signatures
from fedgraph_flwr.secure.sealed import is_public_key
from fedgraph_flwr.strategies.base import Groups, GroupsFor
from fedgraph_flwr.strategies.fedgrad import FedGrad, relayed
from fedgraph_flwr.strategies.owners import check_owners
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import Arrays, Reply, to_record
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, up_to
from fedgraph_flwr.wire.trees import Tree


class FedStruct(FedGrad):
    """The server of Algorithms 4 and 5.

    Attributes:
        s: structure features of all nodes, [n, d_s].
        support: global ids of the nodes whose s_u a client needs; ``reached`` marks those whose
            gradients it sends.
        nodes: global ids of each client's nodes.
        wants_features: whether the server collects s_u of all nodes.
        hands_on: whether clients send the columns of their rows to the owners of these nodes.
    """

    Params: ClassVar[type] = FedStructParams
    uplink = staticmethod(fedstruct.uplink)
    hands_on: ClassVar[bool] = False
    wants_features: ClassVar[bool] = True

    def __init__(self, cfg: RunConfig):
        super().__init__(cfg)
        self.s = torch.zeros(0, 0)
        self.nodes: dict[int, np.ndarray] = {}
        self.support: dict[int, np.ndarray] = {}
        self.reached: dict[int, np.ndarray] = {}

    @classmethod
    def rebuilds(cls, cfg: RunConfig) -> bool:
        """Rows of Ā are exchanged again; a learned s_u exists only for nodes of the training run."""
        return bool(method_params(cls, cfg).features != "hop2vec")

    @classmethod
    def needs(
        cls, cfg: RunConfig, graphs: Callable[[], Iterable[ClientGraph]]
    ) -> tuple[float, str]:
        """Estimate the bytes of the rows of Ā during their exchange."""
        params = method_params(cls, cfg)
        network = probe(cfg.model)
        if not isinstance(network, Network):  # the client's side refuses it
            return 0.0, ""
        clients = list(graphs())
        if not all(isinstance(graph, ClientGraph) for graph in clients):  # likewise
            return 0.0, ""
        pruning = hops.Pruning(params.prune, params.prune_mode)
        itemsize = np.dtype(cfg.dtype).itemsize
        held = hops.bytes_held(
            clients, network.structure_weights, pruning, itemsize, cls.hands_on
        )
        return held, "set strategy.prune (30 in the paper), or lower model.structure_hops"

    def fields(
        self, phase: str, group: str, client: int | None
    ) -> Mapping[str, ArrayField] | None:
        """Return keys and ids, envelopes between clients or the rows that they result in, or gradients of S."""
        ids = ArrayField((range(1, LARGEST + 1),), "int32", 0, LARGEST)
        if phase == "announce":
            return {"key": ArrayField((32,), "uint8"), **SIGNATURE_FIELD, "nodes": ids}
        if group == ENVELOPES:
            return self.envelopes()
        if group == "rows":
            n = self.num_nodes
            support = ArrayField((range(1, n + 1),), "int32", 0, n - 1, optional=True)
            return {
                "support": support,
                "reached": ArrayField((range(1, n + 1),), "bool", optional=True),
            }
        if phase == "acquire":
            return self.first_features(client)
        if client is None:
            return None
        return {
            "s": ArrayField((int(self.reached[client].sum()), self.row_width), self.cfg.dtype)
        }

    @property
    def row_width(self) -> int:
        """Width of the rows that clients send in training."""
        return int(self.s.shape[1])

    def envelopes(self) -> dict[str, ArrayField]:
        """Return sealed bytes for any other client: at most dense rows of all combinations, from each of its nodes to all."""
        hops = self.network["structure_hops"]
        n = self.num_nodes
        most = {
            k: min(16 * (hops + 1) * len(ids) * (n + 2) + 2**16, LARGEST)
            for k, ids in self.nodes.items()
        }
        return {
            str(k): ArrayField((up_to(size),), "uint8", optional=True)
            for k, size in most.items()
        }

    @cached_property
    def network(self) -> dict[str, Any]:
        """The model's own keys."""
        return keywords(self.cfg.model)

    def first_features(self, client: int | None) -> dict[str, ArrayField]:
        """Return s_u of the client's own nodes, which come with the rows that end the acquisition."""
        width = (
            self.network["structure_width"]
            if self.network["structure_mlp"]
            else self.agreed("num_classes")
        )
        shape = (len(self.nodes.get(client or 0, ())), width)
        return {"s": ArrayField(shape, self.cfg.dtype, optional=True)}

    def facts(self, phase: str) -> tuple[int, bool]:
        """Return the number of nodes of the whole graph, and whether the server collects s_u of all."""
        return self.num_nodes, self.wants_features

    @staticmethod
    def verify(phase: str, reply: Reply, facts: Any) -> None:
        """Refuse invalid public keys, and missing or repeated rows at the end of the acquisition."""
        if phase == "announce" and not is_public_key(reply.groups["identity"]["key"].tobytes()):
            raise FedGraphError(
                f"client {reply.client} replied to phase 'announce' with an invalid key: expected X25519"
            )
        if phase != "acquire" or not reply.metrics["done"]:
            return
        rows = reply.groups.get("rows", {})
        none = np.zeros(0)
        support = rows.get("support", none)
        reached = rows.get("reached", none)
        has_features = not facts[1] or "s" in reply.groups.get(STRUCTURE, {})
        if (
            not support.size
            or support.size != reached.size
            or (np.diff(support) <= 0).any()
            or not has_features
        ):
            raise FedGraphError(
                f"client {reply.client} replied to phase 'acquire' without its rows: expected rows/support, ascending ids of the"
                f" {facts[0]} nodes, rows/reached, a mark for each, and {STRUCTURE}/s unless s_u stays with its owner"
            )

    def setup(self) -> None:
        """Exchange keys and owners, run Algorithm 3, then place S."""
        replies, _ = self.acquire()
        self.s = torch.from_numpy(
            self.gathered({r.client: r.groups[STRUCTURE]["s"] for r in replies})
        )
        if self.params.features != "hop2vec":
            self.request_all("place", self.rows_for(sorted(self.clients)))

    def acquire(self) -> tuple[Reduced, GroupsFor]:
        """Run the phases `announce` and `acquire`, and return their last replies, and the envelopes in these by receiver."""
        replies = self.request_all("announce")
        self.nodes = {r.client: r.groups["identity"]["nodes"] for r in replies}
        largest = max(int(ids.max()) for ids in self.nodes.values())
        owner = np.full(self.num_nodes, -1, np.int32)
        for client, ids in self.nodes.items():
            owner[ids[ids < owner.size]] = client
        check_owners(self.nodes)
        if largest >= owner.size or (owner < 0).any():
            raise RunFailed(
                f"the clients' nodes are not 0 to {largest}, each once: check node_id of their graphs"
            )
        keys = np.stack([r.groups["identity"]["key"] for r in replies])
        announced = {
            "keys": {"keys": keys, "owner": owner},
            **signatures(replies.replies, "identity"),
        }
        inbox: dict[int, Groups] = dict.fromkeys(self.nodes, announced)
        ended = False
        while not ended:  # all clients need the same number of exchanges, at most two per hop
            replies = self.request_all("acquire", inbox)
            inbox = relayed(replies, ENVELOPES)
            ended = any(reply.metrics["done"] for reply in replies)
        self.support = {r.client: r.groups["rows"]["support"] for r in replies}
        self.reached = {r.client: r.groups["rows"]["reached"] for r in replies}
        return replies, inbox

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph."""
        return sum(map(len, self.nodes.values()))

    def gathered(self, parts: dict[int, np.ndarray]) -> np.ndarray:
        """Combine each client's rows to rows [n, ·] of all nodes."""
        first = next(iter(parts.values()))
        rows = np.empty((self.num_nodes, first.shape[1]), first.dtype)
        for client, part in parts.items():
            rows[self.nodes[client]] = part
        return rows

    def rows_for(self, clients: list[int]) -> GroupsFor:
        """Encode S of each client's support as records, without a second copy."""
        s = self.s.numpy()
        return {
            client: {STRUCTURE: to_record({"s": s[self.support[client]]})} for client in clients
        }

    def before_train(self, arrays: Arrays) -> GroupsFor:
        """Send the rows of S that each client needs, if S is learned."""
        return self.rows_for(self.cohort) if self.params.features == "hop2vec" else {}

    def before_evaluate(self, arrays: Arrays) -> GroupsFor:
        """Send the same to all clients."""
        return self.rows_for(sorted(self.clients)) if self.params.features == "hop2vec" else {}

    def held(self) -> dict[str, torch.Tensor]:
        """Return S, if it is learned."""
        return {S: self.s} if self.params.features == "hop2vec" else {}

    def hold(self, updated: dict[str, torch.Tensor]) -> None:
        """Store S after the step."""
        self.s = updated.get(S, self.s)

    def gradients(self, arrays: Arrays, reduced: Reduced) -> dict[str, torch.Tensor]:
        """Compute Σ_i g_i and, if S is learned, Σ_i G_S^i [n, d_s] from the rows that each client sent."""
        gradients = super().gradients(arrays, reduced)
        if self.params.features == "hop2vec":
            gradients[S] = torch.zeros_like(self.s)
            for reply in reduced:
                ids = self.support[reply.client][self.reached[reply.client]]
                gradients[S].index_add_(
                    0, torch.from_numpy(ids), torch.from_numpy(reply.groups[STRUCTURE]["s"])
                )
        return gradients

    def save(self) -> Tree:
        """Return S and the optimiser's moments."""
        return {**super().save(), "s": self.s}

    def load(self, tree: Tree) -> None:
        """Restore S and the optimiser's moments."""
        super().load(tree)
        self.s = tree["s"]

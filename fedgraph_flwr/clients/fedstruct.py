"""FedStruct-B's client (Aliakbari, Östman & Graell i Amat, 2024): its rows of Ā, computed jointly; gradients of θ and S.

    Ā^[i] by Algorithm 3 (`fedgraph_flwr.methods.hops`), sealed between clients (`fedgraph_flwr.secure.sealed`)
    ŷ_v = softmax(Σ_u ā_vu g(s_u) + Σ_{u∈V_i} ā^(i)_vu f(x_u))                                       Eq. (20)
    g_i = ∇_θ Σ_{v∈V~_i} CE(y_v, ŷ_v),   G_S^i = ∇_S of the same                                     Eqs. (21), (22), (24)

Leaves the client, for the server: a public key (signed if the node has a long-lived key), the ids of its nodes, the ids of
the nodes within L_s hops of them, s_u of own nodes, gradients, |V~_i|, scores. For other clients, sealed: B_i^k of
`fedgraph_flwr.methods.hops`. Never leaves it: X, Y, embeddings of X, and edges outside of a sealed B. On a fleet, rows of G_S
with fewer training nodes behind them than the policy's ``min_nodes`` are zero. The row of one node would reveal its label.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedgraph_flwr.clients.base import ReplyContent, phase
from fedgraph_flwr.clients.fedgrad import FedGradClient
from fedgraph_flwr.clients.replies import by_client
from fedgraph_flwr.clients.requirements import network, unfit
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import fedstruct, hops, structure_features
from fedgraph_flwr.methods.fedstruct import ENVELOPES, NO_STRUCTURE, STRUCTURE, FedStructParams
from fedgraph_flwr.methods.hops import HopExchange, Matrix, Pruning, RowMessage
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.fedstruct import FedStruct, times
from fedgraph_flwr.numerics.sparse import SparseMatrix
from fedgraph_flwr.secure.keyring import SIGNATURES
from fedgraph_flwr.secure.sealed import Sealer
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField, check, check_shapes, up_to
from fedgraph_flwr.wire.trees import Tree, as_arrays, flatten

MAX_ENTRIES = 100_000_000
"""Maximum entries of one client's rows of Ā, which bounds its memory."""


class FedStructClient(FedGradClient, requires=(network(FedStruct, "fedstruct"),)):
    """Base version: the server holds S, and each client receives the rows of S that it needs.

    Attributes:
        rows: the J stacked combinations of Ā^[i], [J·N, Q]; its columns are the support.
        finished: the J combinations of the finished blocks of columns, each [N, w].
        support: global ids of the Q nodes within L_s hops, ascending.
        reached: the support nodes within reach of training nodes, bool [Q]; all others have zero gradients.
        few: the support nodes within reach of fewer training nodes than the policy's ``min_nodes``, bool [Q].
        structure: the J combinations of Ā^[i] g(S) of the last prediction, [J·N, C]; the party stores them after the run.
    """

    Params: ClassVar[type] = FedStructParams
    uplink = staticmethod(fedstruct.uplink)
    downlink = staticmethod(fedstruct.downlink)
    predicts_with: ClassVar[tuple[str, ...]] = (STRUCTURE,)
    repeats: ClassVar[Mapping[str, int]] = {"acquire": 64 * hops.MAX_BLOCKS}  # one per hop and block, or two per hop
    model: FedStruct

    @classmethod
    def needs_others(cls, cfg: RunConfig) -> str:
        """Return why predictions of other graphs are refused."""
        return "its rows of the whole graph's powers come from all clients"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.sealer = Sealer(self.graph.client)
        self.acquisition: HopExchange | None = None
        self.finished: list[list[Matrix]] = []
        self.owner = np.zeros(0, np.int64)
        self.rows: Matrix = sp.csr_matrix((0, 0))
        self.support = np.zeros(0, np.int64)
        self.reached = self.few = np.zeros(0, bool)
        self.started: Tensor | None = None
        self.structure = torch.zeros(0)

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Require a structure branch that fits the features."""
        super().check(cfg, model)
        features = method_params(cls, cfg).features
        if isinstance(model.g, torch.nn.Identity) and features != "hop2vec":
            raise unfit(cfg, "strategy.features=hop2vec with model.structure_mlp=false", features, "set one of them")

    # --- setup: Algorithm 3 -------------------------------------------------------------------------------------------

    @phase
    def announce(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Publish a key, and the ids of this client's nodes."""
        key, signed = self.sealer.public, self.keyring.sign("announce", self.sealer.public)
        nodes = self.graph.node_id.numpy().astype(np.int32)
        return {"identity": {"key": np.frombuffer(key, np.uint8), **signed, "nodes": nodes}}, {}

    @phase
    def acquire(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Run one exchange of Algorithm 3: take the others' envelopes, and reply with the next ones until all hops are complete.

        The reply that completes one block of columns starts the next block.
        """
        step = self.exchange + 1
        if "keys" in groups:
            self.meet(groups)
        exchange, others = self.hop_exchange(), set(range(self.graph.num_clients)) - {self.graph.client}
        spectra = exchange.pruning.active("global")
        fields = self.spectrum_fields if spectra and step % 2 == 0 else self.row_fields
        inbox = self.opened(groups, f"acquire {step - 1}", lambda _: fields)
        if spectra and step % 2:  # every hop takes two exchanges: values, then rows
            if step > 1:
                self.take_rows(exchange, inbox, step)
            return self.sealed(dict.fromkeys(others, self.spectrum), f"acquire {step}"), {"done": 0}
        if spectra:
            self.check_senders(inbox, others, step)
            inbox[self.graph.client] = self.spectrum
            exchange.keep_hop([(inbox[k]["values"], inbox[k]["counts"]) for k in sorted(inbox)])
        elif step > 1:
            self.take_rows(exchange, inbox, step)
        del inbox
        if exchange.hop == exchange.hops:
            self.finished.append(exchange.totals)
            self.acquisition = None
            if len(self.finished) < len(self.blocks):
                exchange = self.hop_exchange()
        if exchange.hop < exchange.hops:
            return self.sealed({k: m.arrays() for k, m in exchange.messages().items()}, f"acquire {step}"), {"done": 0}
        self.finish_rows()
        coverage = {"support": self.support.astype(np.int32), "reached": self.reached}
        return {"rows": coverage, **self.acquired(step)}, {"done": 1}

    def acquired(self, step: int) -> dict[str, Arrays]:
        """Return the group in the last reply of Algorithm 3: s_u of the client's own nodes."""
        return {STRUCTURE: {"s": self.structure_features()}}

    def meet(self, groups: dict[str, Arrays]) -> None:
        """Store the others' keys, and the owner of each node."""
        clients, n = self.graph.num_clients, self.graph.num_global_nodes
        fields = {"keys": ArrayField((clients, 32), "uint8"), "owner": ArrayField((n,), "int32", 0, clients - 1)}
        check(groups["keys"], fields, "the server sent keys and owners")
        if (groups["keys"]["owner"][self.graph.node_id.numpy()] != self.graph.client).any():
            raise FedGraphError(f"the server sent other owners of nodes of client {self.graph.client}: start a new run")
        self.owner = groups["keys"]["owner"].astype(np.int64)
        keys = {client: key.tobytes() for client, key in enumerate(groups["keys"]["keys"])}
        self.keyring.check("announce", self.sealer.public, keys, groups.get(SIGNATURES, {}))
        self.sealer.meet(keys)

    @property
    def spectrum(self) -> Arrays:
        """This client's part of a globally pruned hop."""
        return dict(zip(("values", "counts"), hops.spectrum(self.hop_exchange().current), strict=True))

    @property
    def pruning(self) -> Pruning:
        """Pruning of each hop."""
        return Pruning(self.params.prune, self.params.prune_mode)

    @property
    def blocks(self) -> list[slice]:
        """The blocks of columns, in the order of their exchange."""
        return hops.blocks(self.graph.num_global_nodes, self.model.structure_weights.shape[1], self.pruning)

    def hop_exchange(self) -> HopExchange:
        """Return the current exchange, created on first use."""
        if self.acquisition is None:
            dtype, columns = np.dtype(self.cfg.dtype).type, self.blocks[len(self.finished)]
            rules = self.model.structure_weights, self.pruning, self.owner, MAX_ENTRIES
            self.acquisition = HopExchange(self.graph, *rules, dtype, columns)
        return self.acquisition

    def check_senders(self, inbox: Mapping[int, Arrays], expected: set[int], step: int) -> None:
        """Refuse an exchange to which another client sealed nothing.

        Raises:
            FedGraphError: names the clients whose envelopes are missing; this one is not to blame.
        """
        if missing := sorted(expected - inbox.keys()):
            raise FedGraphError(
                f"clients {missing} sealed nothing for client {self.graph.client} in exchange {step - 1} of phase 'acquire', or"
                " the server did not forward it; if their graphs differ in the edges between them, link or import them again"
            )

    def take_rows(self, exchange: HopExchange, inbox: dict[int, Arrays], step: int) -> None:
        """Take the others' parts of a hop."""
        self.check_senders(inbox, exchange.expected, step)
        exchange.receive({k: RowMessage.of(arrays, exchange.current.shape[1]) for k, arrays in inbox.items()})

    def finish_rows(self) -> None:
        """Store Ā^[i] with its columns restricted to the support."""
        totals, self.finished = self.finished, []
        self.support, rows = hops.supported([hops.joined(parts) for parts in zip(*totals, strict=True)])
        self.set_rows(rows)

    def set_rows(self, rows: Matrix) -> None:
        """Prepare the products with all rows, for scores, and with those of training nodes, for gradients."""
        self.rows = rows
        count, combinations = self.graph.num_nodes, len(self.model.structure_weights)
        train = self.train_nodes.cpu().numpy()
        chosen = rows[np.concatenate([train + j * count for j in range(combinations)])]
        self.reached = hops.filled(chosen)
        self.few = hops.nodes_behind(chosen, train.size) < self.policy.min_nodes
        self.inputs.rows, self.train_rows = self.operand(rows), self.operand(chosen)

    def operand(self, matrix: Matrix) -> SparseMatrix | Tensor:
        """Convert a matrix for products; a dense one shares its memory."""
        if isinstance(matrix, np.ndarray):
            return torch.from_numpy(matrix).to(self.device, self.dtype)
        return SparseMatrix(matrix, self.dtype).to(self.device)

    def structure_features(self) -> np.ndarray:
        """Return the initial s_u of the client's own nodes, [N, d_s]."""
        width, dtype = self.model.structure_width, np.float64 if self.dtype == torch.float64 else np.float32
        if self.params.features == "degree":
            self.refuse_single("the degree of each node", "set strategy.features=hop2vec")
            graph, n = self.graph, self.graph.num_nodes
            ends = ((graph.edge_index[0], graph.cut_out[0]), (graph.edge_index[1], graph.cut_in[0]))
            outgoing, incoming = (torch.cat(end).bincount(minlength=n).numpy() for end in ends)
            return structure_features.degree_one_hot(outgoing, incoming, width).astype(dtype)
        drawn = structure_features.hop2vec(self.graph.num_nodes, width, self.cfg.seed, self.graph.client)
        return drawn.astype(dtype)

    def sealed(self, contents: dict[int, Arrays], step: str) -> dict[str, Arrays]:
        """Seal contents, and return the group of envelopes by receiver."""
        return {ENVELOPES: {str(k): self.sealer.seal(k, step, arrays) for k, arrays in contents.items()}}

    def opened(
        self, groups: dict[str, Arrays], step: str, fields: Callable[[int], Mapping[str, ArrayField]]
    ) -> dict[int, Arrays]:
        """Open envelopes, and return their contents by sender; ``fields`` declares those of a sender.

        Raises:
            FedGraphError: the contents do not match. It names the sender, since only this client can see them.
        """
        envelopes = by_client(groups.get(ENVELOPES, {}), f"of group '{ENVELOPES}'")
        contents = {k: self.sealer.open(k, step, raw) for k, raw in envelopes.items()}
        for sender, arrays in contents.items():
            who = f"client {sender} sealed a message for client {self.graph.client} for step '{step}'"
            check(arrays, fields(sender), who)
        return contents

    @property
    def spectrum_fields(self) -> dict[str, ArrayField]:
        """Fields of a client's part of a globally pruned hop."""
        entries = (up_to(LARGEST),)
        return {"values": ArrayField(entries, self.cfg.dtype), "counts": ArrayField(entries, "int64", 0, LARGEST)}

    @property
    def row_fields(self) -> dict[str, ArrayField]:
        """Fields of a message of Algorithm 3."""
        return RowMessage.fields(self.graph.num_global_nodes, self.hop_exchange().current.shape[1], self.cfg.dtype)

    # --- training -----------------------------------------------------------------------------------------------------

    @property
    def trains_structure(self) -> bool:
        """Whether S is learned (Hop2Vec)."""
        return bool(self.params.features == "hop2vec")

    @phase
    def place(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Take the structure features of the support, once, if they are not learned."""
        self.receive(groups)
        return {}, {}

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Take S of the support, [Q, d_s]."""
        self.started = None
        if STRUCTURE in groups:
            shape = self.support.size, self.model.structure_width
            check_shapes(groups[STRUCTURE], {"s": shape}, "the server sent structure features")
            s = torch.from_numpy(groups[STRUCTURE]["s"]).to(self.device, self.dtype)
            self.inputs.s = s.requires_grad_(self.trains_structure)

    def leaves(self) -> dict[str, Tensor]:
        """Return θ, and S if it is learned."""
        s = self.inputs.s
        return super().leaves() | ({"s": s} if s is not None and s.requires_grad else {})

    def predict(self) -> Tensor:
        """Compute logits [N, C], and cache the part of g before any dropout, half of a round's work, for the gradient.

        Raises:
            FedGraphError: the server sent no structure features.
        """
        self.model.eval()
        if self.inputs.rows is not None:
            self.check_structure()
            self.started = self.model.g.begin(self.inputs.s)
            with torch.no_grad():
                self.structure = times(self.inputs.rows, self.model.g.finish(self.started))
        return self.with_structure()

    def with_structure(self) -> Tensor:
        """Compute logits [N, C] with the current structure part.

        Raises:
            FedGraphError: there is none yet.
        """
        if self.structure.ndim < 2:
            raise FedGraphError(NO_STRUCTURE)
        with torch.no_grad():
            return self.model.feature_part(self.inputs) + self.model.structure_part(self.structure)

    def for_prediction(self) -> Tree:
        """Return the structure part of the last prediction: neither the rows nor S are needed any more."""
        return {STRUCTURE: self.structure} if self.structure.numel() else {}

    def loss(self) -> Tensor:
        """Compute Eq. (7) from only the rows of the training nodes.

        Raises:
            FedGraphError: the server sent no structure features.
        """
        self.check_structure()
        started, self.started = self.started, None
        embedded = self.model.g.finish(self.model.g.begin(self.inputs.s) if started is None else started)
        features = self.model.feature_part(self.inputs)[self.train_nodes]
        return self.summed_loss(features + self.model.structure_part(times(self.train_rows, embedded)))

    def check_structure(self) -> None:
        """Refuse a message without structure features.

        Raises:
            FedGraphError: names their group.
        """
        if self.inputs.s is None:
            raise FedGraphError(f"the server's message has no group '{STRUCTURE}', which the client needs")

    def send(self) -> ReplyContent:
        """Send the rows of G_S^i that can differ from zero."""
        if "s" not in self.gradients:
            return {}, {}
        rows = self.gradients["s"] if self.reached.all() else self.gradients["s"][torch.from_numpy(self.reached)]
        self.release()
        return {STRUCTURE: {"s": self.without_few(rows.cpu().numpy())}}, {}

    def without_few(self, rows: np.ndarray) -> np.ndarray:
        """Zero the rows of `reached` nodes that are `few`: one training node's row reveals its label."""
        if self.few.any():
            rows[self.few[self.reached]] = 0
        return rows

    def evaluate(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Score the model, and free the inputs that the next message replaces."""
        scores = super().evaluate(parameters, config)
        self.release()
        return scores

    def release(self) -> None:
        """Free what the next message replaces: clients that share a process would hold all of it at once."""
        self.gradients, self.started = {}, None
        if self.trains_structure:
            self.inputs.s = None

    # --- private state between messages -------------------------------------------------------------------------------

    def save(self) -> Tree:
        """Return keys, the current rows, and S if it comes only once."""
        tree: Tree = {"private": np.frombuffer(self.sealer.private, np.uint8).copy(), "owner": self.owner}
        if self.sealer.peers:
            met = sorted(self.sealer.peers)
            tree["met"] = np.array(met)
            tree["keys"] = np.stack([np.frombuffer(self.sealer.peers[k], np.uint8) for k in met])
        if self.acquisition is not None:
            tree["exchange"] = self.acquisition.state()
        if self.finished:
            tree["found"] = {
                f"{block}": {f"{j}": hops.parts_of(total) for j, total in enumerate(totals)}
                for block, totals in enumerate(self.finished)
            }
        if self.support.size:
            tree |= {"support": self.support, "rows": hops.parts_of(self.rows)}
        if self.inputs.s is not None and not self.trains_structure:
            tree["s"] = self.inputs.s
        return tree

    def load(self, tree: Tree) -> None:
        """Restore what `save` or `for_prediction` returned."""
        if STRUCTURE in tree:
            self.structure = tree[STRUCTURE].to(self.device, self.dtype)
            return
        arrays = as_arrays(tree)
        self.owner = arrays["owner"]
        if not self.sealer.peers:  # a resumed run has exchanged new keys before it restores the old state
            self.sealer = Sealer(self.graph.client, arrays["private"].tobytes())
            if "met" in arrays:
                self.sealer.meet({int(k): key.tobytes() for k, key in zip(arrays["met"], arrays["keys"], strict=True)})
        for block, totals in sorted(arrays.get("found", {}).items(), key=lambda item: int(item[0])):
            columns = self.blocks[int(block)]
            width = columns.stop - columns.start
            self.finished.append([hops.from_parts(totals[f"{j}"], width) for j in range(len(totals))])
        if "exchange" in arrays:
            self.hop_exchange().restore({name: leaf.numpy() for name, leaf in flatten(tree["exchange"]).items()})
        if "support" in arrays:
            self.support = arrays["support"]
            self.set_rows(hops.from_parts(arrays["rows"], self.support.size))
        if "s" in tree:
            self.inputs.s = tree["s"].to(self.device, self.dtype)

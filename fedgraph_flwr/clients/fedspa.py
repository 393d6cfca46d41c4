"""FedSPA client (Tan et al., CVPR 2025): the trained model, and the quantities that weight it (Section 4.2).

    S_i = (1/F) Σ_f x_fᵀ L x_f / x_fᵀ x_f                                                           Eq. (7)
    I_i = (∂ log p(y | G_i; θ_i) / ∂θ)²   of θ_hom and θ_het, elementwise                           Eq. (3), (14)

S_i depends only on features and edges, so it is sent once. The Fisher diagonal is computed at the trained parameters, on
training nodes, without dropout: ``batch`` squares the gradient of the mean log-likelihood, as in the authors' code;
``per_node`` is the mean of the squared gradients of each node's log-likelihood, Eq. (14) as printed.
L is I − D^{-1/2} A D^{-1/2} by default, whose S_i is in [0, 2] for any size of graph; ``comb`` is D − A, as in Appendix A. A is
symmetric, without loops and without weights; the row of an isolated node is 0 in both.

Edge types follow from training labels. At a training node they reveal its own label, at a test node they do not, and the model
learns to read them. Therefore ``folds=K`` (ours; 1 is the paper) splits the training nodes into K parts. A step types the edges
without the labels of one part, in turns, and trains only on that part. Masked label prediction does the same (Shi et al., IJCAI
2021). Scores and Fisher diagonals always use all training labels.

Leaves the client: the model, N_i, S_i, scores, and the Fisher diagonals of the two channels. With ``scalar``, a masked share of
their sum replaces the diagonals. The server learns only the sum, and then two numbers. The authors' code evaluates the Fisher
diagonal on the server, with all labels; here it uses only labels of training nodes.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_flwr.clients.base import Batch, GraphClient, ReplyContent, phase
from fedgraph_flwr.clients.requirements import unfit
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.methods import fedspa
from fedgraph_flwr.models.base import Model
from fedgraph_flwr.models.fedspa import FISHER, parameter_group
from fedgraph_flwr.models.layers import adjacency, proper_edges
from fedgraph_flwr.numerics.sparse import row_sums
from fedgraph_flwr.numerics.streams import own_stream
from fedgraph_flwr.secure.keyring import SIGNATURES
from fedgraph_flwr.secure.masked import PEERS, digest, keys_of, mask
from fedgraph_flwr.secure.sealed import Sealer
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.trees import Tree, as_arrays

_BATCH_ELEMENTS = 2**22  # of gradients held at once by ``fisher=per_node``


def high_frequency_area(graph: Graph, laplacian: str = "sym") -> float:
    """Compute S_i of Eq. (7), in float64 and with sparse products only; features that are zero everywhere do not count.

    With d the degrees and s = 1/√d (``sym``) or 1 (``comb``), xᵀ L x = Σ_v s_v² d_v x_v² − (s x)ᵀ A (s x).
    """
    edges = proper_edges(graph.edge_index)
    a = adjacency(torch.cat([edges, edges.flip(0)], dim=1), graph.num_nodes)
    a.data[:] = 1
    degrees = row_sums(a)
    scale = np.maximum(degrees, 1) ** -0.5 if laplacian == "sym" else np.ones_like(degrees)
    x = sp.csr_matrix(graph.x.numpy()).astype(np.float64)
    squares = x.multiply(x).tocsr()
    scaled = sp.csr_matrix(sp.diags(scale) @ x)
    energy = (scale**2 * degrees) @ squares - np.asarray(scaled.multiply(a @ scaled).sum(axis=0)).ravel()
    norms = np.asarray(squares.sum(axis=0)).ravel()
    used = norms > 0
    return float((energy[used] / norms[used]).mean()) if used.any() else 0.0


def fisher_diagonal(
    model: torch.nn.Module, inputs: Any, y: Tensor, nodes: Tensor, kind: str = "batch"
) -> dict[str, Tensor]:
    """Compute Eq. (14): the Fisher diagonal of θ_hom and θ_het on ``nodes``, by parameter name; zero without nodes.

    Args:
        model: returns logits [N, C]; evaluated without dropout.
        inputs: inputs of the model.
        y: labels [N].
        nodes: indices of the training nodes [V].
        kind: ``batch`` or ``per_node``.
    """
    channels = {n: p for n, p in model.named_parameters() if parameter_group(n) in ("hom", "het")}
    if not (channels and nodes.numel()):
        return {name: torch.zeros_like(p) for name, p in channels.items()}
    model.eval()
    log_p = -F.cross_entropy(model(inputs)[nodes], y[nodes], reduction="none")  # [V]
    if kind == "batch":
        grads = torch.autograd.grad(log_p.mean(), list(channels.values()), materialize_grads=True)
        return {name: grad.square_() for name, grad in zip(channels, grads, strict=True)}
    return dict(zip(channels, _mean_squared_grads(log_p, list(channels.values())), strict=True))


def _mean_squared_grads(values: Tensor, parameters: list[torch.nn.Parameter]) -> list[Tensor]:
    """Compute (1/V) Σ_v (∂ values_v / ∂ θ)², elementwise, for values [V], in as large batches as memory allows."""

    def grads(weights: Tensor) -> tuple[Tensor, ...]:
        """Return gradients of Σ_v weights_v values_v."""
        return torch.autograd.grad(values, parameters, weights, retain_graph=True, materialize_grads=True)

    total = [torch.zeros_like(p) for p in parameters]
    step = max(_BATCH_ELEMENTS // sum(p.numel() for p in parameters), 1)
    for index in torch.arange(values.numel(), device=values.device).split(step):
        rows = F.one_hot(index, values.numel()).to(values.dtype)
        for mean, gradients in zip(total, torch.func.vmap(grads)(rows), strict=True):
            mean += gradients.square().sum(0) / values.numel()
    return total


class FedSPAClient(GraphClient, method=fedspa):
    """FedAvg's client that also sends its high-frequency area and its Fisher diagonals, or their deviations."""

    samples: ClassVar[str] = "whole"
    repeats: ClassVar[Mapping[str, int]] = {"share_again": 64}  # over fewer and fewer clients
    secrets: ClassVar[tuple[str, ...]] = ("key", "summed")

    def __init__(self, cfg: RunConfig, graph: Any, *args: Any, **kwargs: Any):
        super().__init__(cfg, graph, *args, **kwargs)
        self.fisher: Arrays = {}
        self.sealer: Sealer | None = None
        self.peers: Arrays = {}
        self.signatures: Arrays = {}
        self.summed: list[int] = []  # the round and the clients of the latest sum

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Require a model with channels that the posterior can weight, unless it is off."""
        groups = {parameter_group(name) for name in model.shared(cfg.strategy.shared)}
        if method_params(cls, cfg).posterior and not {"hom", "het"} <= groups:
            got, remedy = f"model={cfg.model.name}", "set model=fedspa, or strategy.posterior=false"
            raise unfit(cfg, "shared channels theta_hom and theta_het", got, remedy)
        if (folds := method_params(cls, cfg).folds) > 1 and cfg.train.sampler != "none":
            needs, got = f"whole graphs in every step for strategy.folds={folds}", f"train.sampler={cfg.train.sampler}"
            raise unfit(cfg, needs, got, "set strategy.folds=1 or train.sampler=none")

    def describe(self) -> dict[str, Any]:
        """Add N_i and, for the prior weights, S_i to the description."""
        description = super().describe() | {"num_nodes": self.graph.num_nodes}
        if self.params.prior:
            description["high_frequency_area"] = high_frequency_area(self.graph, self.params.laplacian)
        return description

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Take, with ``scalar``, the clients of the sum of Fisher diagonals, their public keys, and Σ_j N_j."""
        self.peers, self.signatures = groups.get(PEERS, {}), groups.get(SIGNATURES, {})

    @cached_property
    def folds(self) -> list[tuple[Any, Tensor]]:
        """For each of K parts of the training nodes: inputs whose edge types do not use their labels, and the nodes."""
        generator = own_stream(self.cfg.own_seed, self.graph.client, "folds")
        nodes = self.graph.train_mask.nonzero().view(-1)
        made = []
        for index, part in enumerate(nodes[torch.randperm(len(nodes), generator=generator)].chunk(self.params.folds)):
            visible = self.graph.train_mask.index_fill(0, part, False)
            hidden = dataclasses.replace(self.graph, train_mask=visible)
            inputs = dataclasses.replace(
                self.inputs_of(hidden, fold=index), x=self.inputs.x
            )  # features are in memory once
            made.append((inputs, part.to(self.device)))
        return made

    def batches(self) -> Iterator[Batch]:
        """Yield all training nodes, or the current fold, continuing from the previous round."""
        if self.params.folds == 1:
            yield from super().batches()
            return
        steps = self.local_steps
        for step in range((self.server_round - 1) * steps, self.server_round * steps):
            inputs, nodes = self.folds[step % len(self.folds)]
            yield Batch(inputs, nodes, self.y[nodes])

    def send(self) -> ReplyContent:
        """Send the Fisher diagonals at the trained parameters, or this client's share of their sum."""
        if not self.params.posterior:
            return {}, {}
        fisher = fisher_diagonal(self.model, self.inputs, self.y, self.train_nodes, self.params.fisher)
        self.fisher = {name: values.cpu().numpy() for name, values in fisher.items() if name in self.shared}
        return {FISHER: self.share() if self.params.masked else self.fisher}, {}

    # --- fisher_exchange=scalar ---------------------------------------------------------------------------------------

    @phase
    def publish_key(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Reply with a public key for masks between clients, drawn for this run."""
        self.sealer = Sealer(self.graph.client)
        public = self.sealer.public
        return {"key": {"key": np.frombuffer(public, np.uint8), **self.keyring.sign("publish_key", public)}}, {}

    @phase
    def share_again(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Reply with the share of a sum over fewer clients, after one was lost."""
        self.receive(groups)
        return {FISHER: self.share()}, {}

    @phase
    def deviate(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Compute Δ_i of each channel from I_g, Eq. (11)."""
        return {}, {f"deviation_{c}": deviation(self.fisher, groups[FISHER], c) for c in ("hom", "het")}

    def share(self) -> Arrays:
        """Return (N_i / Σ_j N_j) I_i under masks that cancel in the sum over ``peers``.

        Raises:
            RunFailed: the key is missing, or there are too few clients, or this is the round's second sum and includes clients
                outside the first. Equal masks, or the difference of two sums, would reveal this client's values.
        """
        if self.sealer is None:
            raise RunFailed(
                f"the server requests masked Fisher diagonals of client {self.graph.client}, which has published no key in this"
                " run: expected phase 'publish_key' first; start a new run"
            )
        clients = [int(client) for client in self.peers["clients"]]
        self._may_sum(clients)
        peers = keys_of(self.peers["clients"], self.peers["keys"])
        self.keyring.check("publish_key", self.sealer.public, peers, self.signatures)
        self.sealer.meet(peers)
        ratio = self.graph.num_nodes / float(self.peers["nodes"][0])
        weighted = {name: ratio * values.astype(np.float64) for name, values in self.fisher.items()}
        self.summed = [self.server_round, *clients]
        step = f"fisher {self.server_round} {digest(self.peers).hex()}"
        return mask(weighted, self.sealer, clients, step)

    def _may_sum(self, clients: list[int]) -> None:
        least, again = self.policy.min_clients, self.summed[:1] == [self.server_round]
        others = len(set(clients)) == len(clients) and self.graph.client in clients
        cases = [
            (not others, ", expected this client and others, each once"),
            (len(clients) < least, f", but its node's policy requires at least {least} (min_clients)"),
            (
                again and not set(clients) < set(self.summed[1:]),
                f" after one over {self.summed[1:]}, expected fewer of the same clients, if the round lost some",
            ),
        ]
        for refused, why in cases:
            if refused:
                where = f"round {self.server_round}: the server asks client {self.graph.client}"
                raise RunFailed(f"{where} to join a sum over clients {clients}{why}")

    def save(self) -> Tree:
        """Return the state of `deviate` and `share_again` in this round, and the key of the run."""
        if self.sealer is None:
            return {}
        key = np.frombuffer(self.sealer.private, np.uint8).copy()
        return {"key": key, "fisher": self.fisher, "summed": torch.tensor(self.summed, dtype=torch.int64)}

    def load(self, tree: Tree) -> None:
        """Restore what `save` returned; a resumed run has published a new key before."""
        if self.sealer is None and "key" in tree:
            self.sealer = Sealer(self.graph.client, tree["key"].numpy().tobytes())
            self.summed = tree["summed"].tolist() if "summed" in tree else []
        self.fisher = as_arrays(tree.get("fisher", {}))


def deviation(fisher: Arrays, pooled: Arrays, channel: str) -> float:
    """Compute Δ_i of Eq. (11) for one channel: mean |I_i − I_g| over its parameters, in float64; 0 without parameters."""
    names = [name for name in fisher if parameter_group(name) == channel]
    total = sum(float(np.abs(fisher[name] - pooled[name].astype(np.float64)).sum()) for name in names)
    return total / max(sum(fisher[name].size for name in names), 1)

"""Client of the authors' form of FedDEP (Zhang et al., 2024, arXiv:2401.04336): its generator learns from all clients' nodes.

    h = hidden features of the client's own encoder;   t_u = mean of h over u's cluster
    L = a SmoothL1(ñ, n) + b R(z̃; t of lost neighbours) + c CE(fused network)           on training nodes of the impaired graph
    G_j = ∂ b R(z̃; t of neighbours that random nodes of j lost) / M                     at client i's generator and embeddings
    θ ← θ − η ∇(L / M),   then   θ ← θ − η (the same gradient + Σ_j G_j)                per exchange, θ the generator
    then: v reads the mean over P slots of z̃_v, of which the first round(ñ_v) are in use and the others 0

Clusters, R, ñ and z̃ are those of `feddep_authors.shared` and `feddep_authors.model`. It follows the
authors' code at cf50e38. After ``generator_steps`` of L, only the generator trains, and takes the local gradient twice, as above
(gfl/feddep/worker.py, `callback_funcs_for_gradient`). A peer's target without a lost neighbour is the prototype of the node
itself. Ours:

- Nodes are hidden as in FedSage+ (`fedgraph_baselines.methods.impaired`), and all neighbours are read instead of samples of five.
- Numbers of missing neighbours stay at the client. The authors' code sends them, but does not read them.
- A peer's target that sums to less than 1e-15 counts as absent in the authors' code (trainer.py, line 121), so that a lost
  neighbour's mean with a negative sum is replaced by the prototype. Here only an absent one is.
- Each peer's gradient is computed from zero. The authors' code does not clear gradients between peers (trainer.py, `cal_grad`),
  so that a reply also contains the gradients for the peers before.
- Scoring reads generated embeddings too. The authors' code reads zeros there.

Leaves the client, before round 1: its generator, gradients for the other generators, and the number of generated neighbours. In
addition, an embedding of every node of its impaired graph. Then what FedAvg sends.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feddep_authors import shared
from feddep_authors.model import AugmentedInputs, LinearFusedSAGE, LocalEncoder, LocalGenerator
from feddep_authors.shared import EMBEDDINGS, GENERATOR, GRADIENTS, Params, deep_clusters, recovery
from fedgraph_baselines.methods.impaired import ADDED, Impaired, whole_numbers
from fedgraph_flwr.clients.base import GraphClient, ReplyContent, phase, to_numpy
from fedgraph_flwr.clients.client_part import assign
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.sage import GraphSAGE
from fedgraph_flwr.numerics.losses import task_loss
from fedgraph_flwr.numerics.optim import SGD, Adam
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.secure.policy import counted
from fedgraph_flwr.wire.messages import Arrays, check_arrays, derive_seed
from fedgraph_flwr.wire.trees import Tree

_OFTEN = 4096


class Generating(nn.Module):
    """Networks that a client trains before round 1: the generator's encoder, the generator, and a fused classifier."""

    def __init__(self, num_features: int, num_classes: int, hidden: int, dropout: float, p: Params):
        super().__init__()
        self.encoder = GraphSAGE(num_features, p.latent, hidden=hidden, layers=2, dropout=dropout)
        self.made = LocalGenerator(p.latent, list(p.widths), p.neighbours, hidden, p.generator_dropout)
        self.classifier = LinearFusedSAGE(num_features, num_classes, hidden=hidden, layers=2, dropout=dropout)


class FedDEPAuthorsClient(GraphClient):
    """FedAvg's client, whose nodes read generated embeddings; they are in `memory`.

    Attributes:
        plain: the inputs without generated embeddings.
        prototypes: prototype of each node, [N, H], and whether it has one, [N]; None: not computed yet.
    """

    Params: ClassVar[type] = Params
    uplink = staticmethod(shared.uplink)
    repeats: ClassVar[Mapping[str, int]] = dict.fromkeys(("propose", "judge"), _OFTEN)
    predicts_with: ClassVar[tuple[str, ...]] = ("z",)
    model: LinearFusedSAGE
    prototypes: Tensor | None = None
    generating: Generating | None = None

    @classmethod
    def needs_others(cls, cfg: RunConfig) -> str:
        """Return why predictions of other graphs are refused."""
        return "the generator of missing neighbours was trained with the other clients, and is not kept"

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Require a network that reads generated embeddings."""
        if not isinstance(model, LinearFusedSAGE):
            raise FedGraphError(
                f"strategy={cfg.strategy.name} needs model=linear_fused_sage, got model={cfg.model.name}: set"
                " model=linear_fused_sage"
            )

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.plain = self.inputs

    # --- phases -------------------------------------------------------------------------------------------------------

    @phase
    def propose(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Take a step along the other clients' gradients, then send the generator and what it reads."""
        if self.policy.min_nodes > 1:
            raise FedGraphError(
                f"client {self.graph.client} would send embeddings of single nodes, but its node's policy requires at least"
                f" {self.policy.min_nodes} nodes behind what it sends (min_nodes): use strategy=feddep, or min_nodes: 1 there"
            )
        if self.exchange:
            self.step(groups.get(GRADIENTS, {}), self.exchange)
        else:
            self.pretrain()
        made = self.trainable.made
        shared = {name: to_numpy(tensor) for name, tensor in made.shared.items()}
        return {GENERATOR: shared, EMBEDDINGS: {"rows": to_numpy(self.latent())}}, {}

    @phase
    def judge(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Send the gradients of R at the other clients' generators; 0 for this client's own."""
        generators, rows = groups.get(GENERATOR, {}), groups.get(EMBEDDINGS, {})
        gradients = {f"{self.graph.client}.{n}": to_numpy(torch.zeros_like(t)) for n, t in self.peer().trained.items()}
        for name, embeddings in rows.items():
            peer = self.peer()
            received = {n.partition(".")[2]: array for n, array in generators.items() if n.partition(".")[0] == name}
            check_arrays(received, {n: tuple(t.shape) for n, t in peer.shared.items()}, "the server")
            if embeddings.ndim != 2 or embeddings.shape[1] != self.params.latent:
                raise FedGraphError(
                    f"the server sent embeddings {embeddings.shape} of client {name}, expected [n, {self.params.latent}]"
                )
            assign(peer.state_dict(), {n: torch.from_numpy(array).to(self.device) for n, array in received.items()})
            with self.noise("judge", int(name), self.exchange):
                u = torch.from_numpy(embeddings).to(self.device, self.dtype)
                targets = self.drawn(len(u))
                loss = recovery(peer(u), peer.counts(u).detach().long(), targets, torch.ones(targets.shape[:2]).bool())
            weight = self.params.embedding_weight / self.cfg.num_clients
            grads = torch.autograd.grad(weight * loss, list(peer.trained.values()), allow_unused=True)
            for (n, tensor), grad in zip(peer.trained.items(), grads, strict=True):
                gradients[f"{name}.{n}"] = to_numpy(torch.zeros_like(tensor) if grad is None else grad)
        return {GRADIENTS: gradients}, {}

    @phase
    def mend(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Take the last step, generate, and delete the generator."""
        rounds = self.params.generator_rounds
        if rounds:
            self.step(groups.get(GRADIENTS, {}), rounds)
        else:
            self.pretrain()
        made = self.trainable.made.eval()
        with torch.no_grad(), self.noise("mend"):
            u = self.latent()
            z, count = self.fused(made(u), made.counts(u))
            whole = z.new_zeros(self.graph.num_nodes, z.size(1)).index_copy(0, self.impaired.kept.to(z.device), z)
        self.generating = self.prototypes = None
        self.memory = {"z": whole}
        self.take()
        return {}, {ADDED: int(count.sum())}

    # --- prototypes ---------------------------------------------------------------------------------------------------

    @cached_property
    def impaired(self) -> Impaired:
        """Graph without the hidden nodes."""
        return Impaired.of(self.graph, self.params.neighbours, self.cfg.own_seed, self.params.hidden_share)

    @cached_property
    def lost(self) -> Tensor:
        """The first P hidden neighbours of each node, −1 for none and for hidden nodes, [N, P]."""
        n, limit = self.graph.num_nodes, self.params.neighbours
        hidden = torch.ones(n, dtype=torch.bool)
        hidden[self.impaired.kept] = False
        source, target = self.graph.edge_index
        source, target = (end[hidden[source] & ~hidden[target]] for end in (source, target))
        order = target.argsort(stable=True)
        source, target = source[order], target[order]
        count = target.bincount(minlength=n)
        place = torch.arange(target.numel()) - (count.cumsum(0) - count)[target]
        neighbours = torch.full((n, limit), -1)
        within = place < limit
        neighbours[target[within], place[within]] = source[within]
        return neighbours

    def prototype(self) -> Tensor:
        """Return the prototype of each node's cluster, [N, H]; computed once."""
        if self.prototypes is None:
            with self.noise("prototypes"):
                h = self.embeddings()
                labels = deep_clusters(h, self.params)
            total = h.new_zeros(self.params.prototypes, h.size(1)).index_add(0, labels, h)
            count = labels.bincount(minlength=self.params.prototypes)
            self.prototypes = (total / count.clamp(min=1)[:, None])[labels]
        return self.prototypes

    def embeddings(self) -> Tensor:
        """Train this client's own encoder, and return its hidden features [N, H]."""
        p, net = self.params, self.cfg.model
        encoder = LocalEncoder(self.graph.num_features, self.graph.num_classes, net.hidden, 2, p.encoder_dropout)
        encoder.to(self.device, self.dtype).train()
        inputs = encoder.prepare(self.graph, self.device, self.dtype)
        optimizer = Adam(encoder.parameters(), p.encoder_lr, 5e-4)
        for _ in range(p.encoder_steps if self.num_train else 0):
            optimizer.zero_grad()
            encoder.loss(inputs, self.y, self.train_nodes).backward()
            optimizer.step()
        encoder.eval()
        with torch.no_grad():
            return encoder.encode(inputs)

    def drawn(self, rows: int) -> Tensor:
        """Draw targets [rows, P, H]: P slots of a random node per row, each a lost neighbour's prototype or the node's own."""
        limit, prototypes = self.params.neighbours, self.prototype()
        node = torch.randint(self.graph.num_nodes, (rows,))
        slot = torch.randint(limit, (rows, limit))
        lost = self.lost[node[:, None], slot]
        return prototypes[torch.where(lost < 0, node[:, None], lost).to(prototypes.device)]

    # --- the generator ------------------------------------------------------------------------------------------------

    @property
    def trainable(self) -> Generating:
        """`generating`, created on first use."""
        if self.generating is None:
            p, net = self.params, self.cfg.model
            sizes = self.graph.num_features, self.graph.num_classes, net.hidden, net.dropout
            make = partial(Generating, *sizes, p)
            self.policy.check_size(counted(make), "a generator")
            with torch.random.fork_rng(devices=[]):
                reseed(derive_seed(self.cfg.seed, "generator"))
                self.generating = make().to(self.device, self.dtype)
        return self.generating

    def peer(self) -> LocalGenerator:
        """Return a generator for another client's parameters, in training."""
        p = self.params
        with torch.random.fork_rng(devices=[]):
            made = LocalGenerator(p.latent, list(p.widths), p.neighbours, self.cfg.model.hidden, p.generator_dropout)
        return made.to(self.device, self.dtype)

    @cached_property
    def encoded(self) -> Any:
        """Inputs of the impaired graph."""
        return self.model.prepare(self.impaired.graph, self.device, self.dtype)

    @contextmanager
    def noise(self, *key: Any) -> Iterator[None]:
        """Use a random stream of this client, by its purpose."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            reseed(derive_seed(self.cfg.seed, self.graph.client, *key))
            yield

    def latent(self) -> Tensor:
        """Return the generator's inputs for all nodes of the impaired graph, [n, D]."""
        encoder = self.trainable.encoder.eval()
        with torch.no_grad():
            return encoder(self.encoded)

    def fused(self, z: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Return Z̄ [n, H] from z̃ [n, P, H], and the number of slots in use per node, [n]."""
        used = whole_numbers(count.round(), self.params.neighbours, self.graph.client)
        mask = torch.arange(z.size(1), device=z.device) < used[:, None]
        return (z * mask[:, :, None]).mean(1), used

    def objective(self) -> Tensor:
        """Return L of the networks in training."""
        p, impairment, nets = self.params, self.impaired, self.trainable.train()
        trains = impairment.trains.to(self.device)
        u = nets.encoder(self.encoded)
        count, z = nets.made.counts(u), nets.made(u)
        mean, used = self.fused(z, count)
        if not trains.numel():
            return mean.sum() * 0
        lost = self.lost[impairment.kept[impairment.trains]].to(self.device)
        targets = self.prototype()[lost.clamp(min=0)]
        loss = p.count_weight * F.smooth_l1_loss(count[trains], impairment.count.to(count)[trains])
        loss = loss + p.embedding_weight * recovery(z[trains], used[trains], targets, lost >= 0)
        inputs = AugmentedInputs(self.encoded.x, self.encoded.adj, z=mean)
        y = self.y[impairment.kept[impairment.trains].to(self.device)]
        return loss + p.task_weight * task_loss(nets.classifier(inputs)[trains], y, self.cfg.train, self.class_weights)

    def pretrain(self) -> None:
        """Train all networks locally, without the other clients."""
        optimizer = SGD(self.trainable.parameters(), self.params.generator_lr)
        for step in range(self.params.generator_steps):
            optimizer.zero_grad()
            with self.noise("pretrain", step):
                self.objective().backward()
            optimizer.step()

    def step(self, gradients: Arrays, exchange: int) -> None:
        """Step along the local gradient, then along the same gradient and the other clients'."""
        made = self.trainable.made
        trained = made.trained
        check_arrays(gradients, {name: tuple(tensor.shape) for name, tensor in trained.items()}, "the server")
        with self.noise("local", exchange):
            loss = self.objective() / self.cfg.num_clients
        grads = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        with torch.no_grad():
            for (name, tensor), grad in zip(trained.items(), grads, strict=True):
                local = torch.zeros_like(tensor) if grad is None else grad
                peers = torch.from_numpy(gradients[name]).to(tensor)
                tensor.sub_(self.params.generator_lr * (2 * local + peers))

    # --- generated embeddings -----------------------------------------------------------------------------------------

    def take(self) -> None:
        """Add the generated embeddings to the inputs."""
        self.inputs = AugmentedInputs(
            self.plain.x, self.plain.adj, propagated=self.plain.propagated, z=self.memory["z"]
        )
        self.batch = self.batch._replace(inputs=self.inputs)

    def save(self) -> Tree:
        """Return the generated embeddings; before, the networks that train, and the prototypes."""
        if self.generating is None and self.prototypes is None:
            return self.memory
        tree: Tree = {}
        if self.generating is not None:
            tree["generating"] = dict(self.generating.state_dict())
        if self.prototypes is not None:
            tree["prototypes"] = {"mean": self.prototypes}
        return tree

    def load(self, tree: Tree) -> None:
        """Restore `save`."""
        if "generating" in tree or "prototypes" in tree:
            if "generating" in tree:
                assign(self.trainable.state_dict(), tree["generating"])
            if "prototypes" in tree:
                self.prototypes = tree["prototypes"]["mean"]
            return
        super().load(tree)
        if "z" in tree:
            self.take()

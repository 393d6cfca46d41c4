"""The base of all clients: a GNN on a private graph, its local training, its scores, and its private state.

A method's client overrides the hook that its paper changes, from the inside out:

    logits        computes the model's outputs               task_loss    computes the task's loss on the training nodes
    loss          the local objective of one step            gradient     leaves its gradient in the parameters
    batches       yields the batch of each local step        train        loops over the batches
    receive       takes groups that come with the model      send         returns groups and numbers for the reply

or adds phases with `@phase`. `memory` holds the state between messages.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import Tensor, nn

from fedgraph_flwr import models
from fedgraph_flwr.clients import batches, parts
from fedgraph_flwr.clients.client_part import ClientPart, with_parameters
from fedgraph_flwr.clients.description import describe
from fedgraph_flwr.clients.model_inputs import model_inputs
from fedgraph_flwr.clients.parts import Parts
from fedgraph_flwr.clients.phases import ReplyContent, phase
from fedgraph_flwr.clients.replies import plain_reply, reply
from fedgraph_flwr.clients.saved_models import SavedModels, state_for_prediction
from fedgraph_flwr.clients.seam import seam
from fedgraph_flwr.clients.stages import later_inputs
from fedgraph_flwr.config import TASKS, RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.methods.labels import LABELS, shares
from fedgraph_flwr.methods.side import Side
from fedgraph_flwr.methods.uplink import Groups, declared
from fedgraph_flwr.numerics.losses import class_weights, task_grad, task_loss
from fedgraph_flwr.numerics.optim import Optimizer, make_optimizer
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.secure.distributed import DistributedNoise
from fedgraph_flwr.secure.keyring import Keyring
from fedgraph_flwr.secure.policy import simulated
from fedgraph_flwr.secure.secagg import Member
from fedgraph_flwr.tasks import Batch, Scorer, kind_of
from fedgraph_flwr.wire.messages import Arrays, derive_seed
from fedgraph_flwr.wire.trees import Tree, moved

OBJECTIVE = {"loss", "logits", "task_loss"}
"""Client methods that define the objective of local training."""


class GraphClient(Side, NumPyClient):
    """FedAvg's client: takes the shared parameters, trains on its own graph, and returns them.

    Leaves the client: the shared parameters, the number of training nodes, and scores on the client's nodes.

    Args:
        cfg: the run's configuration.
        graph: the client's private graph.
        device: where the model and its inputs live.
        file: the graph's own file; prepared inputs are cached next to it. None: no cache.

    Attributes:
        model: the GNN. Parameters whose names start with one of ``cfg.strategy.shared`` are shared; others stay private.
        inputs: the model's inputs, prepared once from the graph.
        batch: the batch of the current step; between rounds, all training nodes.
        member: the client's part in secure sums (``privacy.secagg``).
        saved_models: the models saved for prediction after the run.
        memory: the method's state between messages, a nested dict of tensors; private and checkpointed.
        combined: what changes local training, by the configuration.
        active: the parts that act on the current steps; () outside local training.
        term_state: what the terms of the active parts read, by part.
        round_state: what parts keep within a round, by part.
        hidden: hidden features [N, H] of the last pass, if a part reads them.
        class_weights: weights of ``train.loss=weighted``, [C], else None. Each class gets the same total weight, over this
            client's training nodes or, with weights from the server, over those of all clients.
        steps: optimiser steps of the last local training.
        server_round: the round of the current message.
        exchange: number of earlier exchanges of the same phase in this round.
        stage: the current stage of the run, for methods with several.
        policy: the node owner's policy: which requests the node accepts.
        keyring: signs the keys that the client publishes and verifies the keys of others.
        repeats: most messages per round, for phases that may come more than once.
        secrets: names in `memory` that no checkpoint stores: keys whose streams a resumed run would draw twice.
        predicts_with: names in the result of `for_prediction` that `predict` reads.
        needs_others: what predictions of another graph than the client's own need from other clients, as text; empty: nothing.
            Those of its own graph read what `for_prediction` stored.
        makes_graphs: whether it runs the model on graphs that it makes, whose edges have no features.
        serves: tasks that the method can train; a subclass serves node classification unless it declares more.
        sampled: makes the batches of ``train.sampler``; None: every step reads the whole graph.
        later: items of later stages, and the model's inputs with the edges that these stages may read (``edge_split``).
        samples: whether local training may use batches with sampled neighbours; by default, those of a subclass may not.
        whole_pass: whether a client that samples still reads the model's prepared inputs of its whole graph, other than by
            `logits`; otherwise its graph is read in blocks, and nothing is prepared.
        own_requests: groups of requests that differ by client. All others bind the masks of secure sums, so a server cannot
            send two clients different ones.
        tunes: whether `predict` trains on the client's training nodes first.
        stacks: attributes that the objective reads, other than the model, its inputs, `batch` and `real`. Each is a tensor
            or a nested dict of tensors, of the same shape at all clients. None: clients cannot be stacked. A class that
            overrides `loss`, `logits` or `task_loss` must declare it again.
        real: for stacked clients, which rows of the inputs are nodes, bool [N]; None: all rows.
    """

    side = "client"
    repeats: ClassVar[Mapping[str, int]] = {}
    secrets: ClassVar[tuple[str, ...]] = ()
    predicts_with: ClassVar[tuple[str, ...]] = ()
    needs_others: ClassVar[str] = ""
    makes_graphs: ClassVar[bool] = False
    tunes: ClassVar[bool] = False
    own_requests: ClassVar[tuple[str, ...]] = ()
    serves: ClassVar[frozenset[str]] = frozenset(TASKS)
    samples: ClassVar[bool] = True
    whole_pass: ClassVar[bool] = False
    stacks: ClassVar[tuple[str, ...] | None] = ()
    real: Tensor | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "serves" not in vars(cls):
            cls.serves = frozenset({"nodes"})
        cls.samples = vars(cls).get("samples", False)

    def __init__(self, cfg: RunConfig, graph: Any, device: torch.device | str = "cpu", file: Path | None = None):
        self.cfg = cfg
        self.file = file
        self.params = method_params(type(self), cfg)
        whole = graph
        self.task = kind_of(cfg)(cfg, whole)
        self.graph: ClientGraph = self.task.graph
        self.device = torch.device(device)
        self.dtype = torch.float64 if cfg.dtype == "float64" else torch.float32
        self.server_round = self.exchange = self.steps = 0
        self.stage = ""
        self.memory: Tree = {}
        self.combined = Parts(cfg.strategy)
        self.active: tuple[ClientPart, ...] = ()
        self.term_state: Tree = {}
        self.round_state: dict[str, Any] = {}
        self.hidden: Tensor | None = None
        self.saved_models = SavedModels(cfg.evaluation)
        self.policy = simulated()
        self.keyring = Keyring(graph.client)
        cohort = cfg.strategy.cohort_size(cfg.num_clients)
        noise = DistributedNoise(cfg.privacy, cohort=cohort) if cfg.privacy.side == "distributed" else None
        self.member = Member(graph.client, cfg.privacy.secagg_threshold, cfg.privacy.secagg_bits, noise)
        reseed(derive_seed(cfg.seed, "model"), self.device)
        self.model = self.build_model().with_nodes(self.graph.num_nodes).to(self.device, self.dtype)
        features = self.graph.num_edge_features
        if self.makes_graphs and self.model.reads_edges and features:
            raise FedGraphError(
                f"strategy={cfg.strategy.name} runs the model on graphs that it makes, whose edges have no features, but"
                f" model={cfg.model.name} reads {features} features per edge: use a model without edge features"
            )
        inputs = self.build_inputs()
        self.later = later_inputs(self, whole, inputs)
        self.inputs = self.task.training_inputs(inputs, self)
        self.y = self.task.y.to(self.device)
        self.train_nodes = self.task.masks["train"].nonzero().view(-1).to(self.device)
        self.batch = Batch(self.inputs, self.train_nodes, self.y[self.train_nodes])
        self.sampled = batches.of(self)
        weighted = cfg.train.loss == "weighted"
        self.class_weights = class_weights(self.batch.y, self.task.width) if weighted else None
        self.optimizer: Optimizer | None = None

    # --- hooks of a method --------------------------------------------------------------------------------------------

    def build_model(self) -> models.Model:
        """Build the model; every client and the server build it from the same seed."""
        graph = self.graph
        sizes = graph.num_features, self.task.width, graph.num_edge_features
        return kind_of(self.cfg).network(self.cfg, *sizes)

    def build_inputs(self) -> Any:
        """Prepare the model's inputs from the client's graph."""
        return self.inputs_of(self.graph, **self.task.variant)

    def inputs_of(self, graph: Any, **variant: Any) -> Any:
        """Prepare the model's inputs from a graph; cached next to the client's file if it has one.

        Args:
            graph: the client's graph, or one derived from it and the configuration.
            variant: keys that identify a derived graph in the cache.
        """
        return model_inputs(self, graph, variant)

    def describe(self) -> dict[str, Any]:
        """Return the client's description, which the server receives before round 1."""
        return describe(self.cfg, self.graph, self.num_train, self.task.width)

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Take the groups of arrays that come with a model to train or evaluate."""

    def logits(self, inputs: Any) -> Tensor:
        """Return logits [N, C] of the model in its current mode, for the objective and every prediction."""
        if not self.combined.keeps_hidden:
            return self.model(inputs)
        self.hidden = self.model.encode(inputs)
        return self.model.classify(self.hidden, inputs)

    def task_loss(self, logits: Tensor) -> Tensor:
        """Return ``train.loss`` on the nodes of `batch`: logits [N, C] → a scalar."""
        predictions = self.task.read(logits, self.batch.nodes)
        if self.batch.shares is not None:
            return task_loss(predictions, self.batch.y, self.cfg.train, self.class_weights, self.batch.shares)
        return self.task.loss(predictions, self.batch.y, self.cfg, self.class_weights)

    def loss(self) -> Tensor:
        """Return the method's own objective F_i on `batch`."""
        return self.task_loss(self.logits(self.batch.inputs))

    def total_loss(self) -> Tensor:
        """Return `loss` with the terms of the parts that train."""
        return parts.total_loss(self)

    @seam
    def gradient(self, optimizer: Optimizer) -> Tensor:
        """Leave the gradient of `total_loss` in the parameters, and return the objective."""
        optimizer.zero_grad()
        if written_out := self._written_out():
            loss, grads = written_out
            for name, grad in grads.items():
                self.tensors[name].grad = grad
            return loss
        loss = self.total_loss()
        loss.backward()
        return loss

    def _written_out(self) -> tuple[Tensor, dict[str, Tensor]] | None:
        """Return `loss` and its closed-form gradients where they exist, with the same bits as autograd."""
        if not self.writes_out or self.batch.shares is not None:
            return None
        with torch.no_grad():
            cost = partial(
                task_grad, nodes=self.batch.nodes, y=self.batch.y, cfg=self.cfg.train, weights=self.class_weights
            )
            return self.model.grads(self.batch.inputs, self.tensors, cost)

    @seam
    def grads(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor | None]]:
        """Return `total_loss` and its gradients with respect to the named tensors; None where it does not depend on one."""
        loss = self.total_loss()
        found = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
        return loss, dict(zip(tensors, found, strict=True))

    @seam
    def update(self, optimizer: Optimizer) -> None:
        """Take one optimiser step along the current gradients."""
        optimizer.step()

    def parameters(self) -> list[nn.Parameter]:
        """Return what local training updates: the model's parameters in order, then the method's own."""
        return list(self.model.parameters())

    def batches(self) -> Iterator[Batch]:
        """Yield the batch of each of `local_steps`: all training nodes, or what the task draws of its items."""
        whole = Batch(self.inputs, self.train_nodes, self.batch.y)
        ahead = isinstance(self.sampled, batches.NeighbourBatches)
        yield from batches.in_order(lambda index: self.task.step(whole, index, self), self.local_steps, ahead)

    def train(self) -> float:
        """Train locally with the chosen parts, and return the last loss."""
        return self.combined.train(self)

    def train_plainly(self) -> float:
        """Take one step per batch of `batches` with the active parts, and return the last loss."""
        return float(self.descend(self.begin_training()).detach())

    @seam
    def descend(self, optimizer: Optimizer) -> Tensor:
        """Take one step per batch of `batches`, and return the last loss; 0 without batches."""
        loss, whole = torch.zeros(()), self.batch
        self.steps = 0
        for batch in self.batches():
            self.batch = batch
            if self.policy.min_nodes:
                self.check_step(self.task.steps_on(batch.y))
            loss = parts.gradient(self, optimizer)
            self.update(optimizer)
            self.steps += 1
        self.batch = whole
        return loss

    def send(self) -> ReplyContent:
        """Return groups of arrays and numbers that travel with the trained parameters."""
        return {}, {}

    def predict(self) -> Tensor:
        """Return the logits [N, C] that the client is scored by, without dropout."""
        if not self.combined.personal:
            return self.infer()
        with self.with_parameters(self.personal_parameters()):
            return self.infer()

    @seam
    def infer(self) -> Tensor:
        """Return the logits [N, C] of the model as it is, without dropout."""
        self.model.eval()
        with torch.no_grad():
            return self.task.predictions(self.logits, self.inputs, self.later)

    def personal_parameters(self) -> Mapping[str, Tensor]:
        """Return tensors of the model, by name, that `predict` uses instead of the current ones."""
        return self.combined.parameters(self)

    def save(self) -> Tree:
        """Return the state between messages other than the model and the optimiser: `memory`."""
        return self.memory

    def load(self, tree: Tree) -> None:
        """Restore what `save` returned; leaves are tensors on the CPU."""
        self.memory = moved(tree, self.device)

    # --- tools for methods --------------------------------------------------------------------------------------------

    @property
    def num_train(self) -> int:
        """Number of training nodes."""
        return int(self.train_nodes.numel())

    @property
    def local_steps(self) -> int:
        """Number of steps per local training, as configured for this client."""
        return self.sampled.steps if self.sampled else self.task.local_steps(self.graph.client)

    @cached_property
    def shared(self) -> dict[str, Tensor]:
        """The shared tensors by name, in the model's order; they alias the model."""
        return self.model.shared(self.cfg.strategy.shared, self.cfg.strategy.private)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The model's parameters and buffers by name; they alias the model."""
        return self.model.state_dict(keep_vars=True)

    @cached_property
    def _ties_weights(self) -> bool:
        return self.model.ties_weights

    @property
    def writes_out(self) -> bool:
        """Whether the objective is the task's loss, trains all tensors, and has closed-form gradients."""
        trained = not self._ties_weights and all(tensor.requires_grad for tensor in self.tensors.values())
        plain = self.inherits(OBJECTIVE) and not any(part.adds for part in self.active)
        return plain and self.task.classes and self.cfg.train.loss != "focal" and trained

    def inherits(self, names: Iterable[str]) -> bool:
        """Return whether this client's methods of these names are those of `GraphClient`."""
        return all(getattr(getattr(self, name), "__func__", None) is getattr(GraphClient, name) for name in names)

    def with_parameters(
        self, tensors: Mapping[str, Tensor], optimizer: Optimizer | None = None
    ) -> AbstractContextManager[None]:
        """Replace values of the model's tensors within a ``with``; see `part.with_parameters`."""
        return with_parameters(self, tensors, optimizer)

    def begin_training(self) -> Optimizer:
        """Put the model into training mode and return this round's optimiser, kept or new as configured."""
        self.model.train()
        if self.optimizer is None or not self.cfg.train.keeps_optimizer:
            self.optimizer = make_optimizer(self.parameters(), self.cfg.train)
        return self.optimizer

    def scores(self) -> dict[str, list[float]]:
        """Return scores on the validation and test nodes; for a personal method, those of the shared parameters too."""
        logits = self.predict()
        scores = self.score(logits)
        if self.cfg.evaluation.confusion:
            scores[metrics.CONFUSION] = self.task.confusion(logits, self.policy.min_nodes)
        if self.cfg.strategy.personal:
            scores |= {f"global-{key}": value for key, value in self.score(self.predict_shared()).items()}
        return scores

    def predict_shared(self) -> Tensor:
        """Return logits [N, C] of the shared parameters as received, for a personal method."""
        return self.infer()

    @seam
    def score(self, logits: Tensor) -> dict[str, list[float]]:
        """Return scores of logits [N, C], by split and metric."""
        evaluation = self.cfg.evaluation
        return self.scored.score(logits, self.task.wanted(evaluation, self.task.width), evaluation.own)

    @cached_property
    def scored(self) -> Scorer:
        """The items that models are scored on, none of a class with fewer than the policy's ``min_nodes``."""
        return self.task.scorer(self.policy.min_nodes)

    @property
    def least(self) -> int:
        """Fewest nodes behind a statistic that leaves the client: the larger of ``strategy.min_nodes`` and the policy's."""
        return max(getattr(self.params, "min_nodes", 0), self.policy.min_nodes)

    def check_step(self, nodes: int) -> None:
        """Refuse a step on so few training nodes that its gradient could reveal them, or whose dropout leaves a unit so few.

        Raises:
            FedGraphError: the policy requires more.
        """
        self.policy.check_step(self.graph.client, nodes, self.task.ITEMS)
        self.policy.check_dropout(self.cfg.model.dropout, min(nodes, self.graph.num_nodes))

    # --- Flower's NumPyClient -----------------------------------------------------------------------------------------

    def get_parameters(self, config: dict[str, Any]) -> list[np.ndarray]:
        """Return the shared tensors, in the model's order."""
        return [to_numpy(t) for t in self.shared.values()]

    def set_parameters(self, parameters: list[np.ndarray]) -> None:
        """Overwrite the shared tensors; private ones do not change."""
        with torch.no_grad():
            for tensor, array in zip(self.shared.values(), parameters, strict=True):
                tensor.copy_(torch.from_numpy(np.asarray(array)))

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Take the shared parameters, score them if ``config["evaluate"]`` is set, train, and return the trained ones."""
        if parameters:
            self.set_parameters(parameters)
        scored = config.get("evaluate") and self.cfg.privacy.scores != "none"
        reply: dict[str, Any] = self.scores() if scored else {}
        self.remember(reply, config)
        if self.num_train:
            self.check_step(self.num_train)
            loss = self.train()
            if self.cfg.privacy.scores == "exact":
                reply["train-loss"] = loss
        if self.cfg.evaluation.trained:
            reply |= {f"trained-{key}": value for key, value in self.score(self.predict()).items()}
        return self.get_parameters(config), self.num_train, reply

    def evaluate(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Score the shared parameters together with the client's private ones."""
        if parameters:
            self.set_parameters(parameters)
        scores = self.scores()
        self.remember(scores, config)
        return float(np.nan_to_num(scores["test-loss"][0])), int(sum(scores["test-count"])), scores

    # --- replies ------------------------------------------------------------------------------------------------------

    def reply(self, name: str, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Reply to one message with what `uplink` declares; in a secure sum, with a masked term.

        Raises:
            FedGraphError: the reply has a group or a number that the uplink does not declare.
            RunFailed: the server requests unmasked terms of a secure sum.
        """
        self.exchange, self.stage = int(config.get("exchange", 0)), str(config.get("stage", ""))
        return reply(self, name, groups, config)

    def plain_reply(self, name: str, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Reply to one message, without masks."""
        return plain_reply(self, name, groups, config)

    @cached_property
    def declared(self) -> dict[str, Groups]:
        """The uplink of this run."""
        return declared(type(self), self.cfg)

    @cached_property
    def score_names(self) -> set[str]:
        """Names of all scores that this client may send."""
        return self.task.score_names(self.cfg.evaluation, self.task.width)

    @phase
    def labels(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Return the share of training nodes in each class, for `methods.labels`."""
        share = shares(self.batch.y.cpu().numpy(), self.task.width, self.policy.min_nodes)
        return {LABELS: {"share": share}}, {}

    # --- after the run ------------------------------------------------------------------------------------------------

    @classmethod
    def lacks(cls, cfg: RunConfig) -> str:
        """Return `needs_others`, unless this configuration needs nothing from other clients."""
        return cls.needs_others

    def for_prediction(self) -> Tree:
        """Return a tree with what `predicts_with` names."""
        return self.save()

    def remember(self, scores: Mapping[str, list[float]], config: Mapping[str, Any]) -> None:
        """Save the scored model if the server names its round."""
        self.saved_models.take(scores, config, self.tensors, self.shared, partial(state_for_prediction, self))


def to_numpy(tensor: Tensor) -> np.ndarray:
    """Return a copy on the CPU that later training does not change."""
    return tensor.detach().cpu().numpy().copy()

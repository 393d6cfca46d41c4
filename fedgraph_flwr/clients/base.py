"""The base of all clients: a GNN on a private graph, its local training, its scores, and its private state.

A method's client overrides the hook that its paper changes, from the inside out:

    logits        computes the model's outputs               task_loss    computes the task's loss on the training nodes
    loss          the local objective of one step            gradient     leaves its gradient in the parameters
    batches       yields the batch of each local step        train        loops over the batches
    receive       takes groups that come with the model      send         returns groups and numbers for the reply

or adds phases with `@phase`. `memory` holds the state between messages.
"""

from collections.abc import Iterator, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import Tensor, nn

from fedgraph_flwr import models
from fedgraph_flwr.clients import batches
from fedgraph_flwr.clients.chosen_parts import ChosenParts, step_of
from fedgraph_flwr.clients.client_part import ClientPart, assign, with_parameters, with_terms
from fedgraph_flwr.clients.descent import OBJECTIVE, begin_training, check_step, update, written_out
from fedgraph_flwr.clients.description import describe
from fedgraph_flwr.clients.model_inputs import model_inputs
from fedgraph_flwr.clients.phases import ReplyContent, messages_of, phase
from fedgraph_flwr.clients.saved_models import SavedModels
from fedgraph_flwr.clients.scoring import infer, score, sent_scores
from fedgraph_flwr.clients.seam import seam
from fedgraph_flwr.clients.stages import later_inputs
from fedgraph_flwr.config import TASKS, RunConfig
from fedgraph_flwr.config.capabilities import Capable, ClientCapabilities
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.data.far_ends import with_far_ends
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation.metrics import CONFUSION
from fedgraph_flwr.methods.declared import downlink_of, uplink_of
from fedgraph_flwr.methods.method_half import MethodHalf, inherits, refuse_overrides
from fedgraph_flwr.numerics.losses import class_weights, task_loss
from fedgraph_flwr.numerics.optim import Optimizer
from fedgraph_flwr.numerics.sparse import Device
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.secure.keyring import Keyring
from fedgraph_flwr.secure.policy import simulated
from fedgraph_flwr.secure.protection import protection_of
from fedgraph_flwr.tasks import Batch, kind_of
from fedgraph_flwr.wire.messages import Arrays, derive_seed
from fedgraph_flwr.wire.trees import Tree, flatten, moved, unflatten

__all__ = ["Batch", "GraphClient", "ReplyContent", "phase", "to_numpy"]

NO_HOOKS = {
    "reply": "a method with @phase, or send()",
    "plain_reply": "a method with @phase, or send()",
    "infer": "predict()",
    "total_loss": "loss()",
    "train_plainly": "train()",
    "build_inputs": "inputs_of(graph)",
    "lacks": "needs_others(cfg)",
}
"""Names of members that are no hooks, although they once were → what to define instead."""


class GraphClient(Capable, MethodHalf, NumPyClient, values=ClientCapabilities):
    """FedAvg's client: takes the shared parameters, trains on its own graph, and returns them.

    Leaves the client: the shared parameters, the number of training nodes, and scores on the client's nodes.

    Args:
        cfg: the run's configuration.
        graph: the client's private graph.
        device: where the model and its inputs live.
        file: the graph's own file; prepared inputs are cached next to it. None: no cache.

    A class declares what `ClientCapabilities` names.

    Attributes:
        model: the GNN. Parameters whose names start with one of ``cfg.strategy.shared`` are shared; others stay private.
        uplink_of: the uplink of this run, with the framework's own phases.
        downlink_of: what messages of this run may carry, with the framework's own groups.
        other_clients: what `needs_others` returns for this run.
        inputs: the model's inputs, prepared once from the graph.
        scorer: fewest nodes of a class that is scored → the items that models are scored on.
        batch: the batch of the current step; between rounds, all training nodes.
        protection: the way of its replies out of the client.
        messages: most messages per round of each phase that it serves.
        saved_models: the models saved for prediction after the run.
        memory: the method's state between messages, a nested dict of tensors; private and checkpointed.
        chosen_parts: what changes local training, by the configuration.
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
        sizes: numbers of training items and of nodes, as it describes them; empty before they are needed.
        fixed_size: size that counts in means, by an agreement of members; 0: that of the graph.
        keyring: signs the keys that the client publishes and verifies the keys of others.
        repeats: most messages per round, for phases that may come more often than their uplink says (`Exchanges`).
        secrets: names in `memory` that no checkpoint stores: keys whose streams a resumed run would draw twice.
        reads_messages: whether its model reads features of edges that are no items.
        predicts_with: names in the result of `for_prediction` that `predict` reads.
        sampled: makes the batches of ``train.sampler``; None: every step reads the whole graph.
        later: items of later stages, and the model's inputs with the edges that these stages may read (``edge_split``).
        own_requests: groups of requests that differ by client. All others bind the masks of secure sums, so a server cannot
            send two clients different ones.
        real: for stacked clients, which rows of the inputs are nodes, bool [N]; None: all rows.
    """

    repeats: ClassVar[Mapping[str, int]] = {}
    secrets: ClassVar[tuple[str, ...]] = ()
    predicts_with: ClassVar[tuple[str, ...]] = ()
    own_requests: ClassVar[tuple[str, ...]] = ()
    again = ("serves", "samples", "unsampled", "units")
    depends_on: ClassVar = {"stacks": OBJECTIVE, "calls_base": ("train", "descend", "gradient")}
    serves: ClassVar[frozenset[str]] = frozenset(TASKS)
    reads_messages: ClassVar[bool] = True
    samples: ClassVar[str] = "blocks"
    stacks: ClassVar[tuple[str, ...] | None] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, NO_HOOKS, "which a run never calls")

    def __init__(self, cfg: RunConfig, graph: Any, device: Device = "cpu", file: Path | None = None):
        self.cfg = cfg
        self.file = file
        self.params = method_params(type(self), cfg)
        self.uplink_of = uplink_of(type(self), cfg)
        self.downlink_of = downlink_of(type(self), cfg, self.uplink_of)
        self.other_clients = type(self).needs_others(cfg)
        # A method that reads rows of other clients' nodes (`needs_others`) keeps to its own: far ends are another party's.
        sees = kind_of(cfg).capabilities.far_ends and not self.other_clients and getattr(graph, "far", None)
        graph = kind_of(cfg).split_of(graph)
        whole = with_far_ends(graph) if sees else graph
        self.task = kind_of(cfg)(cfg, whole) if self.reads_messages else kind_of(cfg).of_items(cfg, whole)
        self.scorer = cache(self.task.scorer)
        self.graph: ClientGraph = self.task.graph
        self.device = torch.device(device)
        self.dtype = torch.float64 if cfg.dtype == "float64" else torch.float32
        self.server_round = self.exchange = self.steps = 0
        self.stage = ""
        self.memory: Tree = {}
        self.chosen_parts = ChosenParts(cfg.strategy)
        self.active: tuple[ClientPart, ...] = ()
        self.term_state: Tree = {}
        self.round_state: dict[str, Any] = {}
        self.hidden: Tensor | None = None
        self.real: Tensor | None = None
        self.saved_models = SavedModels(cfg.evaluation)
        self.policy = simulated()
        self.keyring = Keyring(graph.client)
        self.fixed_size = 0
        self.sizes: list[int] = []
        self.protection = protection_of(cfg, graph.client)
        self.messages = messages_of(type(self), self.uplink_of, self.protection.exchanges)
        reseed(derive_seed(cfg.seed, "model"), self.device)
        self.model = self.build_model().with_nodes(self.graph.num_nodes).to(self.device, self.dtype)
        features = self.graph.num_edge_features
        if self.capabilities.makes_graphs and self.model.capabilities.reads_edges and features:
            raise FedGraphError(
                f"strategy={cfg.strategy.name} runs the model on graphs that it makes, whose edges have no features, but"
                f" model={cfg.model.name} reads {features} features per edge: use a model without edge features"
            )
        self.inputs, self.later = self.prepared(whole)
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

    def prepared(self, whole: Any) -> tuple[Any, Any]:
        """Return the model's inputs with the training items, and those of later stages (`later`)."""
        later = later_inputs(self, whole, inputs := self.inputs_of(self.graph, **self.task.variant))
        return self.task.training_inputs(inputs, self), later

    def inputs_of(self, graph: Any, **variant: Any) -> Any:
        """Prepare the model's inputs from a graph; cached next to the client's file if it has one.

        Args:
            graph: the client's graph, or one derived from it and the configuration.
            variant: keys that identify a derived graph in the cache.
        """
        return model_inputs(self, graph, variant)

    def describe(self) -> dict[str, Any]:
        """Return the client's description, which the server receives before round 1 (in secure sums: `announced`)."""
        description = describe(self.cfg, self.protection.private, self.graph, self.num_train, self.task.width)
        return description | ({"min_nodes": self.policy.min_nodes} if self.policy.min_nodes > 1 else {})

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Take the groups of arrays that come with a model to train or evaluate."""

    def logits(self, inputs: Any) -> Tensor:
        """Return logits [N, C] of the model in its current mode, for the objective and every prediction."""
        if not self.chosen_parts.keeps_hidden:
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

    @seam
    def gradient(self, optimizer: Optimizer) -> Tensor:
        """Leave the gradient of `loss` and the active parts' terms in the parameters, and return their sum."""
        optimizer.zero_grad()
        if closed_form := written_out(self):
            loss, grads = closed_form
            for name, grad in grads.items():
                self.model.tensors[name].grad = grad
            return loss
        loss = with_terms(self, self.loss())
        loss.backward()
        return loss

    def extra_parameters(self) -> dict[str, nn.Parameter]:
        """Return parameters of the method outside the model, by path in its state; they are trained, stored and restored."""
        return {}

    def parameters(self) -> list[nn.Parameter]:
        """Return what local training updates: the model's parameters in order, then the extra ones."""
        return [*self.model.parameters(), *self.extra_parameters().values()]

    def batches(self) -> Iterator[Batch]:
        """Yield the batch of each of `local_steps`: all training nodes, or what the task draws of its items."""
        whole = Batch(self.inputs, self.train_nodes, self.batch.y)
        ahead = isinstance(self.sampled, batches.NeighbourBatches)
        yield from batches.in_order(partial(self.task.step, whole, client=self), self.local_steps, ahead)

    def train(self) -> float:
        """Train locally with the chosen parts, and return the last loss."""
        with self.chosen_parts.training(self):
            return float(self.descend(begin_training(self)).detach())

    @seam
    def descend(self, optimizer: Optimizer) -> Tensor:
        """Take one step per batch of `batches`, and return the last loss; 0 without batches."""
        loss, whole, step = torch.zeros(()), self.batch, step_of(self)
        self.steps = 0
        for batch in self.batches():
            self.batch = batch
            if self.policy.min_nodes:
                check_step(self, self.task.steps_on(batch.y))
            loss = step(optimizer)
            update(self, optimizer)
            self.steps += 1
        self.batch = whole
        return loss

    def send(self) -> ReplyContent:
        """Return groups of arrays and numbers that travel with the trained parameters."""
        return {}, {}

    def predict(self) -> Tensor:
        """Return the logits [N, C] that the client is scored by, without dropout."""
        if not self.chosen_parts.personal:
            return infer(self)
        with with_parameters(self, self.personal_parameters()):
            return infer(self)

    def predict_shared(self) -> Tensor:
        """Return logits [N, C] of the shared parameters as received, for a personal method."""
        return infer(self)

    def predict_at(self, places: Tensor) -> Tensor:
        """Return the logits of `predict` of some items [K, C]."""
        return self.predict()[places]

    def personal_parameters(self) -> Mapping[str, Tensor]:
        """Return tensors of the model, by name, that `predict` uses instead of the current ones."""
        return self.chosen_parts.parameters(self)

    def save(self) -> Tree:
        """Return the state between messages other than the model and the optimiser: `memory` and `extra_parameters`."""
        return self.memory | unflatten(flatten(self.extra_parameters()))

    def load(self, tree: Tree) -> None:
        """Restore what `save` returned, extra parameters in place; leaves are tensors on the CPU."""
        leaves, extra = flatten(tree), self.extra_parameters()
        assign(extra, {path: leaves.pop(path) for path in extra if path in leaves})
        self.memory = moved(unflatten(leaves), self.device)

    # --- tools for methods --------------------------------------------------------------------------------------------

    @property
    def score_floor(self) -> int:
        """Fewest items behind a score: the larger of ``evaluation.min_items`` and the policy's ``min_nodes``."""
        return max(self.cfg.evaluation.min_items, self.policy.min_nodes)

    @property
    def num_train(self) -> int:
        """Number of training nodes."""
        return int(self.train_nodes.numel())

    @property
    def local_steps(self) -> int:
        """Number of steps per local training, as configured for this client."""
        return self.sampled.steps if self.sampled else self.task.local_steps(self.graph.client)

    @cached_property
    def plain_objective(self) -> bool:
        """Whether its class leaves the objective to the task, whose loss has closed-form gradients."""
        written = self.task.capabilities.classes and self.cfg.train.loss != "focal"
        return written and inherits(self, OBJECTIVE)

    @cached_property
    def score_names(self) -> set[str]:
        """Names of all scores that a reply may hold."""
        return self.task.score_names(self.cfg.evaluation, self.task.width)

    @cached_property
    def shared(self) -> dict[str, Tensor]:
        """The shared tensors by name, in the model's order; they alias the model."""
        return self.model.shared(self.cfg.strategy.shared, self.cfg.strategy.private)

    @property
    def least(self) -> int:
        """Fewest nodes behind a statistic that leaves the client: the larger of ``strategy.min_nodes`` and the policy's."""
        return max(getattr(self.params, "min_nodes", 0), self.policy.min_nodes)

    # --- Flower's NumPyClient -----------------------------------------------------------------------------------------

    def get_parameters(self, config: dict[str, Any]) -> list[np.ndarray]:
        """Return the shared tensors, in the model's order."""
        return [to_numpy(t) for t in self.shared.values()]

    def set_parameters(self, parameters: list[np.ndarray]) -> None:
        """Overwrite the shared tensors; private ones do not change."""
        self.model.fit_to(dict(zip(self.shared, parameters, strict=True)), "the server")
        with torch.no_grad():
            for tensor, array in zip(self.shared.values(), parameters, strict=True):
                tensor.copy_(torch.from_numpy(np.asarray(array)))

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Take the shared parameters, score them if ``config["evaluate"]`` is set, train, and return the trained ones."""
        if parameters:
            self.set_parameters(parameters)
        scored = config.get("evaluate") and self.protection.scores != "none"
        scores = self._scores() if scored else {}
        self.saved_models.take(self, scores, config)
        reply: dict[str, Any] = sent_scores(self, scores) if scores else {}
        if self.num_train:
            if self.policy.min_nodes:
                check_step(self, self.num_train)
            loss = self.train()
            if self.protection.scores == "exact":
                reply["train-loss"] = loss
        if self.cfg.evaluation.trained:
            reply |= {f"trained-{key}": value for key, value in score(self, self.predict()).items()}
        return self.get_parameters(config), self.num_train, reply

    def evaluate(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Score the shared parameters together with the client's private ones."""
        if parameters:
            self.set_parameters(parameters)
        scores = self._scores()
        self.saved_models.take(self, scores, config)
        return float(np.nan_to_num(scores["test-loss"][0])), int(sum(scores["test-count"])), sent_scores(self, scores)

    def _scores(self) -> dict[str, list[float]]:
        """Return scores on the validation and test nodes; for a personal method, those of the shared parameters too."""
        logits = self.predict()
        scores = score(self, logits)
        if self.cfg.evaluation.confusion:
            scores[CONFUSION] = self.task.confusion(logits, self.score_floor)
        if self.cfg.strategy.personal:
            shared = score(self, self.predict_shared())
            scores |= {f"global-{key}": value for key, value in shared.items()}
        return scores

    # --- after the run ------------------------------------------------------------------------------------------------

    @classmethod
    def needs_others(cls, cfg: RunConfig) -> str:
        """Return what predictions of another graph than the client's own need from other clients, as text; empty: nothing.

        Those of its own graph read what `for_prediction` stored.
        """
        return ""

    def for_prediction(self) -> Tree:
        """Return a tree with what `predicts_with` names."""
        return self.save()


def to_numpy(tensor: Tensor) -> np.ndarray:
    """Return a copy on the CPU that later training does not change."""
    return tensor.detach().cpu().numpy().copy()

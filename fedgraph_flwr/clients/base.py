"""What all clients share: a GNN on a private graph, its local training, its scores, and its private state.

A method's client overrides the hook its paper changes, from the inside out:

    logits        what the network says                      task_loss    how wrong that is on the nodes that train
    loss          the local objective of one step            gradient     leaves its gradient in the parameters
    batches       what each local step reads                 train        the loop over them
    receive       takes groups that come with the model      send         groups and numbers that travel back beside it

or adds phases with `@phase`. What it keeps between messages stands in `memory`.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import Tensor, nn

from fedgraph_flwr import models
from fedgraph_flwr.clients.description import describe
from fedgraph_flwr.clients.phases import ReplyContent, phase
from fedgraph_flwr.clients.replies import plain_reply, reply
from fedgraph_flwr.clients.saved_models import SavedModels
from fedgraph_flwr.clients.seam import seam
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import NoParams, method_params
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.methods.labels import LABELS, shares
from fedgraph_flwr.methods.uplink import Groups, Uplink, declared, model_only
from fedgraph_flwr.moved import refuse_old_hooks
from fedgraph_flwr.numerics.losses import class_weights, task_grad, task_loss
from fedgraph_flwr.numerics.optim import Optimizer, make_optimizer
from fedgraph_flwr.numerics.prepared import prepared
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.secure.distributed import DistributedNoise
from fedgraph_flwr.secure.keyring import Keyring
from fedgraph_flwr.secure.policy import simulated
from fedgraph_flwr.secure.secagg import Member
from fedgraph_flwr.wire.messages import Arrays, derive_seed
from fedgraph_flwr.wire.trees import Tree, moved

OBJECTIVE = {"loss", "logits", "task_loss"}
"""The methods of a client that say what its local training minimises."""


class Batch(NamedTuple):
    """What one local step reads.

    Attributes:
        inputs: of the network.
        nodes: rows of its logits that train, [V]; None: all of them.
        y: their labels, [V].
    """

    inputs: Any
    nodes: Tensor | None
    y: Tensor


class GraphClient(NumPyClient):
    """FedAvg's client: takes the shared parameters, trains on its own graph, returns them.

    Leaves the client: the shared parameters, the number of training nodes, and scores on its own nodes.

    Args:
        cfg: the run's configuration.
        graph: the client's private graph.
        device: where the model and its inputs live.
        file: the graph's own file, beside which prepared inputs are kept; None keeps none.

    Attributes:
        model: the GNN; parameters whose names start with one of ``cfg.strategy.shared`` travel, the others stay.
        inputs: what the model needs of the graph, prepared once.
        batch: what the step at hand reads; between rounds, all training nodes.
        member: its part in secure sums (``privacy.secagg``).
        saved_models: what it keeps of the models it was scored by.
        memory: what the method keeps between messages, a nested dict of tensors; private, and checkpointed as it is.
        class_weights: of ``train.loss=weighted``, [C]: each class counts the same, among its training nodes or (by what the
            server tells) those of all clients; else None.
        steps: optimiser steps of the last local training.
        server_round: the round of the message at hand.
        exchange: how many exchanges of the same phase came before it in this round.
        stage: of the run, where the method has several.
        policy: what the node's owner lets a server ask.
        keyring: signs the keys that the client publishes, and says whether others' are theirs.
        repeats: phases that a round may bring more than one message of, and how many.
        secrets: names in `memory` of what no checkpoint keeps: keys whose streams a resumed run would draw twice.
        predicts_with: names in what `save` gives of what `predict` reads.
        needs_others: what of other clients `predict` needs, in words; empty: nothing.
        tunes: whether `predict` trains on the client's training nodes first.
        stacks: attributes that the objective reads beside the network, the inputs, `batch` and `real`, each a tensor or a nested
            dict of them, of one shape at all clients; None: more than that, so that clients are not computed together. A class
            that overrides `loss`, `logits` or `task_loss` says it anew.
        real: where clients are computed together, which rows of the inputs are nodes, bool [N]; None: all.
    """

    Params: ClassVar[type] = NoParams
    repeats: ClassVar[Mapping[str, int]] = {}
    secrets: ClassVar[tuple[str, ...]] = ()
    predicts_with: ClassVar[tuple[str, ...]] = ()
    needs_others: ClassVar[str] = ""
    tunes: ClassVar[bool] = False
    stacks: ClassVar[tuple[str, ...] | None] = ()
    real: Tensor | None = None

    def __init_subclass__(cls, **words: Any) -> None:
        super().__init_subclass__(**words)
        refuse_old_hooks(cls, "client")

    def __init__(self, cfg: RunConfig, graph: Any, device: torch.device | str = "cpu", file: Path | None = None):
        self.cfg = cfg
        self.file = file
        self.params = method_params(type(self), cfg)
        self.graph: ClientGraph = graph
        self.device = torch.device(device)
        self.dtype = torch.float64 if cfg.dtype == "float64" else torch.float32
        self.server_round = self.exchange = self.steps = 0
        self.stage = ""
        self.memory: Tree = {}
        self.saved_models = SavedModels(cfg.evaluation)
        self.policy = simulated()
        self.keyring = Keyring(graph.client)
        noise = DistributedNoise(cfg.privacy) if cfg.privacy.dp == "distributed" else None
        self.member = Member(graph.client, cfg.privacy.secagg_threshold, cfg.privacy.secagg_bits, noise)
        reseed(derive_seed(cfg.seed, "model"), self.device)
        self.model = self.build_model().to(self.device, self.dtype)
        self.inputs = self.build_inputs()
        self.y = graph.y.to(self.device)
        self.train_nodes = graph.train_mask.nonzero().view(-1).to(self.device)
        self.masks = {"val": graph.val_mask.to(self.device), "test": graph.test_mask.to(self.device)}
        self.batch = Batch(self.inputs, self.train_nodes, self.y[self.train_nodes])
        weighted = cfg.train.loss == "weighted"
        self.class_weights = class_weights(self.batch.y, graph.num_classes) if weighted else None
        self.optimizer: Optimizer | None = None

    # --- what a method may override ---------------------------------------------------------------------------------

    @staticmethod
    def uplink(cfg: RunConfig, params: Any) -> Uplink:
        """What leaves the client, per phase and group: the function that the method's server names, too."""
        return model_only(cfg, params)

    @classmethod
    def check(cls, cfg: RunConfig, model: models.Model) -> None:
        """Refuse a configuration that the method cannot serve; asked once, before any client starts.

        Args:
            cfg: the run's configuration.
            model: its network, of no particular graph's size.

        Raises:
            FedGraphError: one sentence.
        """

    @classmethod
    def startup_note(cls, cfg: RunConfig) -> str:
        """A sentence for the user at the start, where the configuration makes another method of this one; else nothing."""
        return ""

    def build_model(self) -> models.Model:
        """The network; every client and the server build it from the same seed."""
        return models.build(self.cfg.model, self.graph.num_features, self.graph.num_classes)

    def build_inputs(self) -> Any:
        """What the network needs of the graph, computed once."""
        return self.inputs_of(self.graph)

    def inputs_of(self, graph: Any, **variant: Any) -> Any:
        """What the network needs of a graph, kept beside this client's file where it has one.

        Args:
            graph: this client's, or one made of it and of the configuration.
            variant: tells it from the others.
        """
        if self.file is None or not isinstance(graph, ClientGraph):
            return self.model.prepare(graph, self.device, self.dtype)
        make = partial(self.model.prepare, graph, "cpu", self.dtype)
        return prepared(self.file, self.cfg, variant, graph, make).to(self.device)

    def describe(self) -> dict[str, Any]:
        """What the server learns before round 1."""
        return describe(self.cfg, self.graph, self.num_train)

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Take groups of arrays that come with a model to train or evaluate."""

    def logits(self, inputs: Any) -> Tensor:
        """Logits [N, C] of the model in its present mode: what the objective and every prediction are made of."""
        return self.model(inputs)

    def task_loss(self, logits: Tensor) -> Tensor:
        """``train.loss`` on the nodes of `batch`; logits [N, C] → a scalar."""
        chosen = logits if self.batch.nodes is None else logits[self.batch.nodes]
        return task_loss(chosen, self.batch.y, self.cfg.train, self.class_weights)

    def loss(self) -> Tensor:
        """The local objective on `batch`."""
        return self.task_loss(self.logits(self.batch.inputs))

    @seam
    def gradient(self, optimizer: Optimizer) -> Tensor:
        """Leave the gradient of `loss` in the parameters; returns its value."""
        optimizer.zero_grad()
        if written_out := self._written_out():
            loss, grads = written_out
            for name, grad in grads.items():
                self.tensors[name].grad = grad
            return loss
        loss = self.loss()
        loss.backward()
        return loss

    def _written_out(self) -> tuple[Tensor, dict[str, Tensor]] | None:
        """The value of `loss` and its gradients where autograd is not needed for them, with the same bits."""
        if not self.writes_out:
            return None
        with torch.no_grad():
            cost = partial(
                task_grad, nodes=self.batch.nodes, y=self.batch.y, cfg=self.cfg.train, weights=self.class_weights
            )
            return self.model.grads(self.batch.inputs, self.tensors, cost)

    @seam
    def grads(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor | None]]:
        """The value of `loss`, and its gradients with respect to tensors of the model by name, None for one it does not reach."""
        loss = self.loss()
        found = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
        return loss, dict(zip(tensors, found, strict=True))

    @seam
    def update(self, optimizer: Optimizer) -> None:
        """A step along the gradients that there are."""
        optimizer.step()

    def parameters(self) -> list[nn.Parameter]:
        """What local training updates: the model's, in its order, and after them what the method trains beside it."""
        return list(self.model.parameters())

    def batches(self) -> Iterator[Batch]:
        """What each local step reads: all training nodes, `local_steps` times."""
        yield from [Batch(self.inputs, self.train_nodes, self.batch.y)] * self.local_steps

    def train(self) -> float:
        """Local training: a step on each of `batches`. Returns the last loss."""
        return float(self.descend(self.begin_training()).detach())

    @seam
    def descend(self, optimizer: Optimizer) -> Tensor:
        """A step on each of `batches`; returns the last loss, 0 of none."""
        loss, whole = torch.zeros(()), self.batch
        self.steps = 0
        for batch in self.batches():
            self.batch = batch
            self.check_step(batch.y.numel())
            loss = self.gradient(optimizer)
            self.update(optimizer)
            self.steps += 1
        self.batch = whole
        return loss

    def send(self) -> ReplyContent:
        """Groups of arrays, and numbers, that travel back beside the trained parameters."""
        return {}, {}

    @seam
    def predict(self) -> Tensor:
        """Logits [N, C] by which the client is scored, without dropout."""
        self.model.eval()
        with torch.no_grad():
            return self.logits(self.inputs)

    def personal_parameters(self) -> Mapping[str, Tensor]:
        """Values of the network's tensors, by name, under which `predict` takes it; what is not named keeps its value."""
        return {}

    def save(self) -> Tree:
        """What survives between messages beyond the model and the optimiser: `memory`."""
        return self.memory

    def load(self, tree: Tree) -> None:
        """Go on from what `save` gave; leaves are tensors on the CPU."""
        self.memory = moved(tree, self.device)

    # --- tools for methods ------------------------------------------------------------------------------------------

    @property
    def num_train(self) -> int:
        """Training nodes."""
        return int(self.train_nodes.numel())

    @property
    def local_steps(self) -> int:
        """Steps of a local training, as configured for this client."""
        return self.cfg.train.steps_of(self.graph.client)

    @cached_property
    def shared(self) -> dict[str, Tensor]:
        """The tensors that travel, by name, in the model's order; they alias the model."""
        return self.model.shared(self.cfg.strategy.shared, self.cfg.strategy.private)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The network's parameters and buffers by name; they alias the model."""
        return self.model.state_dict(keep_vars=True)

    @cached_property
    def _ties_weights(self) -> bool:
        return self.model.ties_weights

    @property
    def writes_out(self) -> bool:
        """Whether the objective is the task's loss of the model's logits, in all of its tensors, with gradients written out."""
        trained = not self._ties_weights and all(tensor.requires_grad for tensor in self.tensors.values())
        return self.inherits(OBJECTIVE) and self.cfg.train.loss != "focal" and trained

    def inherits(self, names: Iterable[str]) -> bool:
        """Whether this client's methods of these names are those of `GraphClient`."""
        return all(getattr(getattr(self, name), "__func__", None) is getattr(GraphClient, name) for name in names)

    def begin_training(self) -> Optimizer:
        """The optimiser for this round, kept or fresh as configured; puts the model into training mode."""
        self.model.train()
        if self.optimizer is None or not self.cfg.train.keeps_optimizer:
            self.optimizer = make_optimizer(self.parameters(), self.cfg.train)
        return self.optimizer

    def scores(self) -> dict[str, list[float]]:
        """Scores on the validation and test nodes; of a personal method, of the shared parameters beside its own."""
        logits = self.predict()
        told = self.score(logits)
        if self.cfg.evaluation.confusion:
            told[metrics.CONFUSION] = self.confusion(logits)
        if self.cfg.strategy.personal:
            told |= {f"global-{key}": value for key, value in self.score(self.predict_shared()).items()}
        return told

    def predict_shared(self) -> Tensor:
        """Of a personal method: logits [N, C] of the shared parameters as they came."""
        return GraphClient.predict(self)

    @seam
    def score(self, logits: Tensor) -> dict[str, list[float]]:
        """Scores of logits [N, C], by split and metric."""
        evaluation = self.cfg.evaluation
        return self.scored.score(logits, metrics.wanted(evaluation, self.graph.num_classes), evaluation.own)

    @cached_property
    def scored(self) -> metrics.Scored:
        """The nodes that models are scored on."""
        return metrics.Scored(self.y, self.scored_masks, self.graph.part, self.train_nodes)

    @cached_property
    def scored_masks(self) -> dict[str, Tensor]:
        """`masks` without nodes of classes that have fewer in a split than the policy lets stand behind a statistic.

        A model that always says one class would count them, and a loss can hold the counts of all.
        """
        return metrics.without_small_classes(self.masks, self.y, self.graph.num_classes, self.policy.min_nodes)

    @property
    def least(self) -> int:
        """Nodes behind a statistic that is told: ``strategy.min_nodes``, or what the node's owner asks for where that is more."""
        return max(getattr(self.params, "min_nodes", 0), self.policy.min_nodes)

    def check_step(self, nodes: int) -> None:
        """Refuse a step on so few training nodes that its gradient shows them.

        Raises:
            FedGraphError: the policy wants more.
        """
        if nodes < self.policy.min_nodes:
            raise FedGraphError(
                f"client {self.graph.client} has {nodes} training nodes in a step, its node's policy wants at least"
                f" {self.policy.min_nodes} (min_nodes)"
            )

    def confusion(self, logits: Tensor) -> list[float]:
        """Confusion matrix of the test nodes, row after row; -n for a count below n, the policy's ``min_nodes``."""
        test = self.scored_masks["test"] & (self.y >= 0)
        return metrics.counts_of(logits[test], self.y[test], self.graph.num_classes, self.policy.min_nodes)

    # --- Flower's NumPyClient -----------------------------------------------------------------------------------------

    def get_parameters(self, config: dict[str, Any]) -> list[np.ndarray]:
        """The shared tensors, in the model's order."""
        return [to_numpy(t) for t in self.shared.values()]

    def set_parameters(self, parameters: list[np.ndarray]) -> None:
        """Overwrite the shared tensors; private ones are untouched."""
        with torch.no_grad():
            for tensor, array in zip(self.shared.values(), parameters, strict=True):
                tensor.copy_(torch.from_numpy(np.asarray(array)))

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Take the shared parameters, score them (``config["evaluate"]``), train, return the trained ones."""
        if parameters:
            self.set_parameters(parameters)
        asked = config.get("evaluate") and self.cfg.privacy.scores != "none"
        told: dict[str, Any] = self.scores() if asked else {}
        self.remember(told, config)
        if self.num_train:
            self.check_step(self.num_train)
            loss = self.train()
            if self.cfg.privacy.scores == "told":
                told["train-loss"] = loss
        if self.cfg.evaluation.trained:
            told |= {f"trained-{key}": value for key, value in self.score(self.predict()).items()}
        return self.get_parameters(config), self.num_train, told

    def evaluate(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Score the shared parameters together with the client's private ones."""
        if parameters:
            self.set_parameters(parameters)
        told = self.scores()
        self.remember(told, config)
        return float(np.nan_to_num(told["test-loss"][0])), int(sum(told["test-count"])), told

    # --- answering a message ------------------------------------------------------------------------------------------

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
        return metrics.score_names(self.cfg.evaluation, self.graph.num_classes)

    @phase
    def labels(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Of the training nodes the share in each class, for `methods.labels`."""
        share = shares(self.batch.y.cpu().numpy(), self.graph.num_classes, self.policy.min_nodes)
        return {LABELS: {"share": share}}, {}

    # --- for when the run is over -------------------------------------------------------------------------------------

    def remember(self, scores: Mapping[str, list[float]], config: Mapping[str, Any]) -> None:
        """Keep the scored model, where the server says of which round it is."""

        def method() -> Tree:
            return {key: tree for key, tree in self.save().items() if key in self.predicts_with}

        parts = self.tensors, self.shared, method if self.predicts_with else dict
        self.saved_models.take(scores, config, *parts)


def to_numpy(tensor: Tensor) -> np.ndarray:
    """A copy on the CPU that later training does not change."""
    return tensor.detach().cpu().numpy().copy()

"""The base of all strategies: hooks that a method overrides, its declaration, and tools that methods call.

    connect → describe → setup()                                                              once
    before_train() → train (which also scores the incoming model) → step()                    each round
    evaluate                                          once, at the end, and where not all clients train

A method declares in `uplink` what leaves a client and what the server needs of it (`fedgraph_flwr.methods.uplink`). It
overrides the hooks `setup`, `before_train` and `step`, and calls `request` for its own exchanges. Exchanges dominate the cost
of a fleet, so scores of round r travel with the training replies of round r + 1. Other modules hold the parts:

    loop         the loop of a run                  replies        the reading of replies
    requests     the messages of an exchange        reducing       reduced replies
    exchange     sending and waiting                summation      means and sums, and their protections
                                                    descriptions   what clients tell of themselves
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Result

from fedgraph_flwr import models
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.methods.side import Side, refuse_overrides
from fedgraph_flwr.methods.uplink import LateMean, declared, sums
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.runs.recorder import Recorder
from fedgraph_flwr.secure.secagg import SECAGG
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.descriptions import Descriptions
from fedgraph_flwr.strategies.loop import Loop, Stage
from fedgraph_flwr.strategies.reducing import Reduced, check_public
from fedgraph_flwr.strategies.replies import ReplyReader
from fedgraph_flwr.strategies.requests import Groups, GroupsFor, enough_replies, filing, messages, with_own
from fedgraph_flwr.strategies.server_parts import server_parts
from fedgraph_flwr.strategies.summation import Summation, summation_of
from fedgraph_flwr.tasks import kind_of, probe
from fedgraph_flwr.wire.messages import CONFIG, EVALUATE, MODEL, TRAIN, Arrays, Reply, derive_seed
from fedgraph_flwr.wire.reply_schema import ArrayField
from fedgraph_flwr.wire.trees import Tree, as_arrays

__all__ = ["ClientInfo", "GraphStrategy", "Groups", "GroupsFor", "Reduced", "Stage"]

FINAL = {
    "request": "the phase in uplink, call self.request, and change its result",
    "reduce": "reducers in uplink, and step(arrays, reduced)",
    "read": "fields in uplink, and verify(phase, reply)",
    "collect": "the phase in uplink, and call self.request",
    "exchange": "the phase in uplink, and call self.request",
    "weights_in": "Mean(weight=..., scale=...) in uplink",
    "summation": "Mean, Sum and their weights in uplink",
    "privacy": "Mean and Sum in uplink, whose sums privacy.dp releases",
    "secure": "Mean and Sum in uplink, whose sums privacy.secagg masks",
}
"""Members that would bypass the protections of a run if a method had its own → what to define instead."""


class GraphStrategy(Side, FlowerFedAvg):
    """Base of every strategy. Without overrides it is FedAvg.

        θ^{t+1} = Σ_i p_i θ_i^t,   p_i by ``strategy.weighting``: training nodes, nodes, or uniform, over the cohort

    Leaves a client: shared parameters, number of training nodes (or of nodes, where they are the weights), and scores.

    Args:
        cfg: the run's configuration.
        recorder: receives the run's results.

    Attributes:
        uplink_of: the uplink of this run, with the framework's own phases.
        params: values of the method's keys.
        combined: configured parts that change the result of `step`.
        clients: the clients' nodes and descriptions, by client index.
        cohort: the clients of this round, ascending; the same in all its phases.
        failed: clients that failed in this round, with the reason.
        silent: failed clients whose node did not respond at all.
        server_round: the current round; 0 during setup.
        arrays: the current shared parameters.
        models: clients' own shared parameters, by client index; other clients start from `arrays`.
        sent: groups that travel with this round's model.
        summation: how the run adds up what clients send, with its protections.
        counted: number of nodes on which each client was first scored, by split.
        memory: the method's state between rounds, a nested dict of arrays; checkpointed.
        class_weights: ``w`` [C] under ``train.class_weights=federated``; travels with every message that may lead to training.
        scores_due: whether this round's training replies also score the model that was sent.
        checkpoint_due: whether this round ends with a checkpoint.
        judges: the clients that score a model in a separate exchange.
        involved: clients that received more than the request for their description.
        exchanges: number of exchanges of this round, by phase.
        described: the clients' descriptions, as one.
        reader: reads replies by their schemas.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, FINAL, "which applies the protections of a run")
        if not isinstance(vars(cls).get("verify", GraphStrategy.__dict__["verify"]), staticmethod):
            raise TypeError(
                f"{cls.__module__}.{cls.__qualname__} defines 'verify' as a method, which could hand single replies to step:"
                " define @staticmethod verify(phase, reply, facts), and facts(phase) for what it needs"
            )

    def __init__(self, cfg: RunConfig, recorder: Recorder):
        super().__init__(arrayrecord_key=MODEL, configrecord_key=CONFIG)
        self.cfg = cfg
        self.params = method_params(type(self), cfg)
        self.uplink_of = declared(type(self), cfg)
        self.combined = server_parts(cfg.strategy)
        self.recorder = recorder
        self.clients: dict[int, ClientInfo] = {}
        self.cohort: list[int] = []
        self.judges: list[int] = []
        self.involved: set[int] = set()
        self.failed: dict[int, str] = {}
        self.silent: set[int] = set()
        self.server_round = 0
        self.arrays: Arrays = {}
        self.models: dict[int, Arrays] = {}
        self.sent: GroupsFor = {}
        self.counted: dict[int, dict[str, list[float]]] = {}
        self.memory: Tree = {}
        self.class_weights: Arrays = {}
        self.scores_due = self.checkpoint_due = False
        self.grid: Grid
        self.exchanges: Counter[str] = Counter()
        self.described = Descriptions(self)
        self.reader = ReplyReader(self)
        self._summation = summation_of(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FINAL and self.summation.protection:
            raise FedGraphError(
                f"{type(self).__module__}.{type(self).__qualname__} replaces '{name}' in a run with {self.summation.protection}:"
                f" define {FINAL[name]} instead"
            )
        super().__setattr__(name, value)

    # --- hooks of a method --------------------------------------------------------------------------------------------

    @classmethod
    def needs(cls, cfg: RunConfig, graphs: Callable[[], Iterable[Any]]) -> tuple[float, str]:
        """Return the bytes that all simulated clients hold at once besides their graphs, and which key reduces them; 0: few.

        Args:
            cfg: the run's configuration.
            graphs: reads the graphs of all clients.
        """
        return 0.0, ""

    def initial_arrays(self) -> Arrays:
        """Return the shared parameters before round 1: those of the model that every client builds from the same seed."""
        reseed(derive_seed(self.cfg.seed, "model"), torch.device("cpu"))
        model = self.build_model()
        dtype = torch.float64 if self.cfg.dtype == "float64" else torch.float32
        shared = model.shared(self.cfg.strategy.shared, self.cfg.strategy.private)
        return {name: tensor.detach().to(dtype).numpy() for name, tensor in shared.items()}

    def build_model(self) -> models.Model:
        """The network for the clients' graphs, initialised from torch's global generator."""
        sizes = self.num_features(), self.described.size("num_classes"), self.described.size("num_edge_features") or 0
        return kind_of(self.cfg).network(self.cfg, *sizes)

    def num_features(self) -> Any:
        """Return F, the number of features, which determines the shapes of the shared parameters."""
        return self.described.size("num_features")

    def accepted(self, arrays: Arrays, where: str) -> Arrays:
        """Return arrays with the names and shapes that shared parameters from a file must have.

        A method whose shapes follow from training returns the arrays of the file, after its own checks.

        Args:
            arrays: arrays of the file.
            where: the file, for errors.
        """
        return self.arrays

    def setup(self) -> None:
        """Run the exchanges before round 1."""

    def stage(self) -> Stage:
        """Return what this round trains, and whether the model travels with the request and the reply."""
        return Stage()

    def before_train(self, arrays: Arrays) -> GroupsFor:
        """Run this round's exchanges before training, on `cohort`, and return groups that travel with the model.

        A dict keyed by client index gives each client its own groups.
        """
        return {}

    @classmethod
    def rebuilds(cls, cfg: RunConfig) -> bool:
        """Return whether set-up and shared parameters give predictions of new nodes, which a client cannot predict alone."""
        return False

    def before_evaluate(self, arrays: Arrays) -> GroupsFor:
        """Return groups that travel with a model that is scored in a separate exchange."""
        return {}

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Return the next shared parameters, from the current ones and the reduced replies to ``train``."""
        return reduced.groups.get(MODEL, arrays)

    def fields(self, phase: str, group: str, client: int | None) -> Mapping[str, ArrayField] | None:
        """Return the arrays of a group whose shapes the uplink cannot declare, since they follow from earlier replies.

        Args:
            phase: name of the phase.
            group: a group that the uplink declares without fields.
            client: the client that replies; None: any client.

        Returns:
            The fields; None if the group is not part of this round's replies.
        """
        raise NotImplementedError(f"{type(self).__name__} declares '{group}' of '{phase}' without fields")

    def facts(self, phase: str) -> Any:
        """Return what `verify` needs besides a reply to this phase; it gets a copy."""
        return None

    @staticmethod
    def verify(phase: str, reply: Reply, facts: Any) -> None:
        """Refuse a reply by conditions that a schema cannot express: a function of one reply, which stores nothing.

        Args:
            phase: name of the phase.
            reply: one client's reply.
            facts: a copy of what `facts` returns.

        Raises:
            FedGraphError: names the client and the condition.
        """

    def save(self) -> Tree:
        """Return the state that a checkpoint needs besides the shared parameters and the clients' own models: `memory`."""
        return self.memory

    def load(self, tree: Tree) -> None:
        """Restore what `save` returned, with tensors as leaves; `memory` holds arrays."""
        self.memory = as_arrays(tree)

    # --- tools for methods --------------------------------------------------------------------------------------------

    def agreed(self, key: str) -> Any:
        """Return a value that all clients must describe alike, such as the number of classes.

        Raises:
            FedGraphError: two clients differ.
        """
        return self.described.agreed(key)

    def weights(self, clients: list[int]) -> list[float]:
        """Return unnormalised aggregation weights by ``strategy.weighting``, none above ``strategy.max_share`` of their sum.

        ``uniform`` gives clients without training nodes weight 0 if others train. Under differential privacy all weights are 1,
        so that they follow from the configuration.
        """
        return self.summation.weights(clients)

    def counts(self, key: str, clients: list[int]) -> list[float]:
        """Return a number from the clients' descriptions, such as ``num_train``, per client."""
        return [float(np.sum(self.clients[client].description[key])) for client in clients]

    def request(
        self,
        phase: str,
        groups: GroupsFor | None = None,
        clients: Iterable[int] | None = None,
        config: dict[str, Any] | None = None,
    ) -> Reduced:
        """Send a phase to clients, wait, and return the valid replies, reduced as the uplink declares.

        Args:
            phase: name of the client's `@phase` method that replies.
            groups: groups of arrays, for all clients or by client index.
            clients: the receivers; default: the cohort, or all clients during setup.
            config: further scalars.
        """
        default = self.cohort if self.server_round else sorted(self.clients)
        chosen, down = default if clients is None else list(clients), groups or {}
        if sums(self.uplink_of.get(phase, {})):
            inputs = self.summation.begin(phase, chosen)
            if inputs is not None:
                chosen, down = list(inputs), with_own(down, inputs)
        sent = messages(self, phase, chosen, down, config or {})
        return self.reduce(phase, enough_replies(self, phase, sent))

    def reduce(self, phase: str, replies: list[Reply]) -> Reduced:
        """Reduce the groups of replies as the uplink declares.

        Args:
            phase: name of the phase.
            replies: the valid replies, in client order.
        """
        declared = self.uplink_of.get(phase, {})
        check_public(phase, declared, replies)
        early = sums(declared) if replies else []
        values = self.summation.reveal(phase, replies) if early else {}
        late = [group for group, reducer in declared.items() if isinstance(reducer, LateMean)]
        hidden = {*early, *late, *([SECAGG] if early else [])}
        shown = []
        for reply in replies:
            groups = {group: arrays for group, arrays in reply.groups.items() if group not in hidden}
            shown.append(self.summation.shown(phase, replace(reply, groups=groups)))
        kept = {group: [reply.groups[group] for reply in replies] for group in late}
        return Reduced(shown, values, kept, self.summation.late_mean)

    def request_all(self, phase: str, groups: GroupsFor | None = None, **config: Any) -> Reduced:
        """Send a phase to all clients, every one of which must reply.

        Raises:
            RunFailed: a client did not.
        """
        replies = self.request(phase, groups, clients=sorted(self.clients), config=config)
        if len(replies) < len(self.clients):
            missing = sorted(set(self.clients) - set(replies.clients))
            raise RunFailed(
                f"{self.cfg.strategy.name}: '{phase}' needs a valid reply from every client, missing: {missing}; "
                f"client {missing[0]}: {self.failed[missing[0]]}"
            )
        return replies

    def drop(self, clients: Iterable[int]) -> None:
        """Remove clients from this round; later rounds may sample them again."""
        out = set(clients)
        self.cohort = [client for client in self.cohort if client not in out]

    @property
    def finished(self) -> bool:
        """Whether no further round would change anything, so that the run ends before ``rounds``."""
        return False

    @property
    def scores_first(self) -> bool:
        """Whether this round's own exchanges change what the model is scored with, so that it is scored before them."""
        return False

    @cached_property
    def buffers(self) -> set[str]:
        """Names of the shared tensors that no gradient trains, such as running statistics. They are always averaged."""
        return {name for name, _ in probe(self.cfg).named_buffers()}

    @cached_property
    def places(self) -> dict[int, int]:
        """Position of each client, ascending, in stored arrays. A fleet's indices may have gaps."""
        return {client: place for place, client in enumerate(sorted(self.clients))}

    @property
    def cohort_size(self) -> int:
        """Number of clients that a round samples; under protection, of the places it draws, which absent clients leave empty."""
        return self.summation.cohort_size(self.server_round)

    @property
    def summation(self) -> Summation:
        """How this run adds up what clients send."""
        return self._summation

    @property
    def privacy(self) -> bool:
        """Whether sums are released with noise; a method asks `summation` how clients count."""
        return self.cfg.privacy.dp != "none"

    @property
    def secure(self) -> bool:
        """Whether the server sees masked values only."""
        return self.cfg.privacy.secagg

    # --- Flower's Strategy --------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the training messages, with the groups from `before_train`."""
        stage, flags = self.stage(), {"evaluate": self.scores_due, "checkpoint": False, **filing(self)}
        flags |= self.recorder.scoring if self.scores_due else {}
        scalars = {**config, **flags, **stage.config()}
        return messages(self, TRAIN, self.cohort, self.sent, scalars, arrays if stage.down else None)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages that request scores of the model."""
        groups, scalars = self.before_evaluate(self.arrays), {**self.stage().config(), **self.recorder.scoring}
        return messages(self, EVALUATE, self.judges, groups, scalars, arrays if self.stage().down else None)

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Run the whole configuration; the recorder receives the results."""
        self.grid = grid
        return Loop(self, grid).run()

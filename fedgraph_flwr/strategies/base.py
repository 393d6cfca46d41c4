"""The base of all strategies: hooks that a method overrides, its declaration, and tools that methods call.

    connect → describe → setup()                                                              once
    before_train() → train (which also scores the incoming model) → step()                    each round
    evaluate                                          once, at the end, and where not all clients train

A method declares in `uplink` what leaves a client and what the server needs of it (`fedgraph_flwr.methods.uplink`). It
overrides the hooks `setup`, `before_train` and `step`, and calls `request` for its own exchanges. Exchanges dominate the cost
of a fleet, so scores of round r travel with the training replies of round r + 1. Other modules hold the parts:

    loop         the loop of a run                  replies      the reading of replies
    requests     the messages of an exchange        reducing     the reduction of replies
    exchange     sending and waiting                weighting    the weights of clients
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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
from fedgraph_flwr.methods.side import Side
from fedgraph_flwr.methods.uplink import Reducer, declared, releases, sums
from fedgraph_flwr.methods.weighting import batch_of
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.runs.recorder import Recorder
from fedgraph_flwr.strategies import weighting
from fedgraph_flwr.strategies.actor_aggregation import ActorAggregation
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.exchange import Outcome, exchange
from fedgraph_flwr.strategies.loop import Loop, Stage
from fedgraph_flwr.strategies.model_sizes import may_differ
from fedgraph_flwr.strategies.privacy import Privacy
from fedgraph_flwr.strategies.reducing import Reduced, reduce
from fedgraph_flwr.strategies.replies import ReplyReader
from fedgraph_flwr.strategies.requests import Groups, GroupsFor, requests, with_own
from fedgraph_flwr.strategies.scoring import as_list
from fedgraph_flwr.strategies.secagg import SecureSums
from fedgraph_flwr.strategies.server_parts import server_parts
from fedgraph_flwr.tasks import kind_of, probe
from fedgraph_flwr.wire.messages import (
    CONFIG,
    DESCRIBE,
    EVALUATE,
    MODEL,
    PROTOCOL,
    SPEAKS,
    TRAIN,
    Arrays,
    Reply,
    derive_seed,
)
from fedgraph_flwr.wire.reply_schema import ArrayField, ReplySchema
from fedgraph_flwr.wire.trees import Tree, as_arrays


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
        privacy: clipping, noise and accounting under ``privacy.dp``.
        counted: number of nodes on which each client was first scored, by split.
        memory: the method's state between rounds, a nested dict of arrays; checkpointed.
        class_weights: ``w`` [C] under ``train.class_weights=federated``; travels with every message that may lead to training.
        secure: secure sums of the clients' replies under ``privacy.secagg``.
        actor_sums: partial sums computed by the actors that hold clients, under ``ray.aggregate``.
        scores_due: whether this round's training replies also score the model that was sent.
        checkpoint_due: whether this round ends with a checkpoint.
        judges: the clients that score a model in a separate exchange.
        involved: clients that received more than the request for their description.
    """

    def __init__(self, cfg: RunConfig, recorder: Recorder):
        super().__init__(
            min_train_nodes=1,
            min_evaluate_nodes=1,
            min_available_nodes=1,
            arrayrecord_key=MODEL,
            configrecord_key=CONFIG,
        )
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
        self.secure: SecureSums | None = None
        self.actor_sums: ActorAggregation | None = None
        self.scores_due = self.checkpoint_due = False
        self.privacy = Privacy(cfg) if cfg.privacy.dp != "none" else None
        self.grid: Grid
        self._asked: Counter[str] = Counter()  # exchanges of this round, by phase
        self._agreed: dict[str, Any] = {}  # cache of `agreed`, which every reply needs
        self.reader = ReplyReader(self)

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
        sizes = self.num_features(), self.size("num_classes"), self.size("num_edge_features") or 0
        return kind_of(self.cfg).network(self.cfg, *sizes)

    def num_features(self) -> Any:
        """Return F, the number of features, which determines the shapes of the shared parameters."""
        return self.size("num_features")

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

    def groups_to_train(self, arrays: Arrays) -> GroupsFor:
        """Return the groups of `before_train` with those of the configured parts, which act only where models are sent up."""
        groups = self.before_train(arrays)
        for part in self.combined if self.stage().up else ():
            groups = with_own(groups, own) if (own := part.groups(self, arrays)) else groups
        return groups

    def advance(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Return the next shared parameters: those of `step`, changed by the configured parts."""
        after = self.step(arrays, reduced)
        for part in self.combined:
            after = part.step(self, arrays, after, reduced)
        return after

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

    def verify(self, phase: str, reply: Reply) -> None:
        """Refuse a reply by conditions that a schema cannot express.

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
        if key in self._agreed:
            return self._agreed[key]
        values = {index: info.description.get(key) for index, info in self.clients.items()}
        first, *_ = values.items()
        for index, value in values.items():
            if value != first[1]:
                raise FedGraphError(
                    f"client {index} has {key}={value}, client {first[0]} has {key}={first[1]}: all clients of a run must agree"
                )
        self._agreed[key] = first[1]
        return first[1]

    def size(self, key: str) -> Any:
        """Return one of `model_sizes.SIZES`: that of all clients, or of the first one where no shared parameter depends on it.

        Raises:
            FedGraphError: two clients differ, and a shared parameter would have another shape.
        """
        return self.descriptions[0].get(key) if self._differ else self.agreed(key)

    @property
    def class_counts(self) -> list[int]:
        """The numbers of classes that clients have, ascending: one, unless they may differ as in `size`."""
        key = "num_classes"
        return sorted({values[key] for values in self.descriptions}) if self._differ else [self.agreed(key)]

    @property
    def descriptions(self) -> list[dict[str, Any]]:
        """What clients tell of themselves."""
        return [info.description for info in self.clients.values()]

    @property
    def _differ(self) -> bool:
        if "differ" not in self._agreed:
            self._agreed["differ"] = may_differ(self.cfg, self.descriptions)
        return bool(self._agreed["differ"])

    def weights(self, clients: list[int]) -> list[float]:
        """Return unnormalised aggregation weights by ``strategy.weighting``, none above ``strategy.max_share`` of their sum.

        ``uniform`` gives clients without training nodes weight 0 if others train. Under differential privacy all weights are 1,
        so that they follow from the configuration.
        """
        return weighting.by_rule(self, clients)

    def counts(self, key: str, clients: list[int]) -> list[float]:
        """Return a number from the clients' descriptions, such as ``num_train``, per client."""
        return [float(np.sum(self.clients[client].description[key])) for client in clients]

    def weights_in(self, reducer: Reducer, clients: list[int]) -> list[float]:
        """Return the unnormalised weight of each client in a declared mean or sum; all of it is known before the exchange."""
        return weighting.of_reducer(self, reducer, clients)

    @property
    def addressed(self) -> list[int]:
        """The default receivers of a request: the cohort, or all clients during setup."""
        return self.cohort if self.server_round else sorted(self.clients)

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
        chosen, down = list(clients) if clients is not None else self.addressed, groups or {}
        if self.secure and sums(self.uplink_of.get(phase, {})):
            masks = self.secure.begin(phase, chosen)
            chosen, down = list(masks), with_own(down, masks)
        return self.reduce(phase, self.exchange(phase, self.messages(phase, chosen, down, config or {})).replies)

    def reduce(self, phase: str, replies: list[Reply]) -> Reduced:
        """Return the replies in the form that the uplink allows this strategy to see."""
        return reduce(self, phase, replies)

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

    def releases_in(self, server_round: int) -> int:
        """Return the number of releases under differential privacy in a round's exchanges."""
        before, self.server_round = self.server_round, server_round
        up = self.stage().up
        self.server_round = before
        return releases(self.uplink_of) - (not up and bool(sums(self.uplink_of[TRAIN])))

    def send_beside(self, groups: Mapping[int, Groups]) -> None:
        """Send each of these clients its own additional groups with this round's model."""
        self.sent = with_own(self.sent, groups)

    def drop(self, clients: Iterable[int]) -> None:
        """Remove clients from this round; later rounds may sample them again."""
        out = set(clients)
        self.cohort = [client for client in self.cohort if client not in out]

    def model_of(self, client: int) -> Arrays:
        """Return the shared parameters that a client receives: its own, if it has some."""
        return self.models.get(client, self.arrays)

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

    @property
    def filing(self) -> dict[str, Any]:
        """Scalars that make a client store its state after replying, if a checkpoint is due; else none."""
        return {"checkpoint": True, "run": self.recorder.run_name} if self.checkpoint_due else {}

    @cached_property
    def places(self) -> dict[int, int]:
        """Position of each client, ascending, in stored arrays. A fleet's indices may have gaps."""
        return {client: place for place, client in enumerate(sorted(self.clients))}

    @property
    def cohort_size(self) -> int:
        """Number of clients that a round samples; under protection, of the places it draws, which absent clients leave empty."""
        if self.secure:
            return len(batch_of(self.cfg, max(self.server_round, 1)))
        return self.cfg.strategy.cohort_size(self.cfg.num_clients if self.privacy else len(self.clients))

    @property
    def min_clients(self) -> int:
        """Fewest clients of a round that must reply."""
        rules = self.cfg.strategy
        if rules.on_failure == "fail":
            return len(self.cohort)
        return max(rules.min_clients, self.secure.min_clients(len(self.cohort)) if self.secure else 0)

    # --- one exchange -------------------------------------------------------------------------------------------------

    def messages(
        self,
        phase: str,
        clients: list[int],
        groups: GroupsFor,
        config: Mapping[str, Any],
        model: ArrayRecord | None = None,
    ) -> list[Message]:
        """Return one message of a phase per client (`requests`), counted as an exchange of this round.

        Args:
            phase: name of the phase.
            clients: the receivers.
            groups: groups of arrays, for all clients or by client.
            config: further scalars.
            model: shared parameters to send along.
        """
        if phase != DESCRIBE:
            self.involved.update(clients)
        earlier = self._asked[phase]
        self._asked[phase] += 1
        record = self.config(phase, {**config, **({"exchange": earlier} if earlier else {})})
        return requests(self, phase, clients, groups, record, model)

    def config(self, phase: str, config: Mapping[str, Any]) -> ConfigRecord:
        """Return the scalars of a message."""
        version = {SPEAKS: PROTOCOL} if phase == DESCRIBE else {}
        return ConfigRecord({"phase": phase, "round": self.server_round, **version, **config})

    def exchange(self, phase: str, messages: Iterable[Message]) -> Outcome:
        """Send messages, wait, record the cost, and check that enough replies are valid.

        Raises:
            RunFailed: fewer valid replies than ``strategy.min_clients``, or any failure under ``on_failure=fail``.
        """
        outcome = self.collect(phase, messages)
        rules, valid = self.cfg.strategy, len(outcome.replies)
        if outcome.failures and (rules.on_failure == "fail" or valid < rules.min_clients):
            who, reason = next(iter(outcome.failures.items()))
            raise RunFailed(
                f"round {self.server_round}, {phase}: {valid} of {valid + len(outcome.failures)} clients sent a valid reply, "
                f"expected at least {rules.min_clients} (strategy.min_clients, on_failure={rules.on_failure}); "
                f"client {who}: {reason}"
            )
        return outcome

    def collect(self, phase: str, messages: Iterable[Message], timeout: float | None = None) -> Outcome:
        """Send messages, wait for at most ``timeout`` seconds (default: ``strategy.timeout``), and record the cost."""
        nodes = {info.node_id: index for index, info in self.clients.items()}

        def read(message: Message, client: int | None) -> Reply:
            return self.read(phase, message, client)

        name = f"round {self.server_round}, {phase}"
        longest = self.cfg.strategy.timeout if timeout is None else timeout
        outcome = exchange(self.grid, messages, nodes, read, longest, name)
        if self.actor_sums:
            self.actor_sums.book(phase, outcome)
        self.recorder.exchanged(phase, outcome.down, outcome.groups, outcome.seconds, outcome.failures)
        self.failed |= outcome.failures
        self.silent |= outcome.silent
        return outcome

    def read(self, phase: str, message: Message, client: int | None) -> Reply:
        """Return the reply in a message, read by its schema.

        Raises:
            FedGraphError: it does not match the phase's schema.
        """
        return self.reader.read(phase, message, client, self.counted.get(client, {}) if client is not None else {})

    def reply_schema(self, phase: str, client: int | None) -> ReplySchema:
        """Return the schema of a reply to a phase; client None: a node whose client index is not known yet."""
        return self.reader.schema(phase, client)

    def next_round(self, server_round: int) -> None:
        """Start a round without requests or failures."""
        self.server_round, self.failed, self.silent = server_round, {}, set()
        self._asked.clear()

    def forget_agreed(self) -> None:
        """Clear what was derived from the clients' descriptions, because the clients changed."""
        self._agreed.clear()
        self.reader.forget()

    # --- Flower's Strategy --------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the training messages, with the groups from `before_train`."""
        stage, flags = self.stage(), {"evaluate": self.scores_due, "checkpoint": False, **self.filing}
        flags |= self.recorder.scoring if self.scores_due else {}
        scalars = {**config, **flags, **stage.config()}
        return self.messages(TRAIN, self.cohort, self.sent, scalars, arrays if stage.down else None)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages that request scores of the model."""
        groups, scalars = self.before_evaluate(self.arrays), {**self.stage().config(), **self.recorder.scoring}
        return self.messages(EVALUATE, self.judges, groups, scalars, arrays if self.stage().down else None)

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Run the whole configuration; the recorder receives the results."""
        self.grid = grid
        return Loop(self, grid).run()

    def nodes_of(self, replies: Iterable[Reply]) -> list[float] | None:
        """Return the numbers of nodes of the clients that replied, if means of scores are weighted by them."""
        if self.cfg.evaluation.average != "nodes":
            return None
        return [float(v) for reply in replies for v in as_list(self.clients[reply.client].description["num_nodes"])]

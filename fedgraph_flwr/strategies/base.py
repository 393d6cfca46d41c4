"""The contract of a strategy: what a method overrides, what it declares, and the tools it is given.

    connect → describe → setup()                                                              once
    before_train() → train (which also scores the incoming model) → step()                    each round
    evaluate                                          once, at the end, and where not all clients train

A method declares in `uplink` what leaves a client and what the server needs of it (`fedgraph_flwr.methods.uplink`), overrides
the hooks `setup`, `before_train` and `step`, and calls `ask` for its own exchanges. An exchange is what costs on a fleet: scores
of round r travel with the training replies of round r + 1. Other modules hold the parts:

    loop         the loop of a run                  replies      the reading of replies
    requests     the messages of an exchange        reducing     the reduction of replies
    exchange     sending and waiting                weighting    the weights of clients
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from logging import INFO
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Result

from fedgraph_flwr import models
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.methods.side import Side
from fedgraph_flwr.methods.uplink import Reducer, declared, releases, sums
from fedgraph_flwr.moved import renamed
from fedgraph_flwr.runs.recorder import Recorder
from fedgraph_flwr.strategies import weighting
from fedgraph_flwr.strategies.actor_aggregation import ActorAggregation
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.exchange import Outcome, exchange
from fedgraph_flwr.strategies.loop import Loop, Stage
from fedgraph_flwr.strategies.parts import server_parts
from fedgraph_flwr.strategies.privacy import Privacy
from fedgraph_flwr.strategies.reducing import Reduced, reduce
from fedgraph_flwr.strategies.replies import ReplyReader
from fedgraph_flwr.strategies.requests import Groups, GroupsFor, requests, with_own
from fedgraph_flwr.strategies.scoring import as_list
from fedgraph_flwr.strategies.secagg import SecureSums
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
    """Base of every strategy; by itself it is FedAvg.

        θ^{t+1} = Σ_i p_i θ_i^t,   p_i by ``strategy.weighting``: training nodes, nodes, or uniform, over the cohort

    Leaves a client: shared parameters, number of training nodes (or nodes, where they weigh), its scores.

    Args:
        cfg: the run's configuration.
        recorder: where the run's results go.

    Attributes:
        uplink_of: what `uplink` gives for this run, with what the framework itself asks.
        params: the keys' values.
        parts: what changes the result of `step`, by the configuration.
        clients: what is known of each client, by its index.
        cohort: the clients of this round, ascending: the same in all its phases.
        failed: clients that failed since the round began, and why.
        silent: those among them whose node said nothing at all.
        server_round: the round at hand; 0 during setup.
        arrays: the shared parameters at hand.
        models: clients' own shared parameters, by index; a client without any starts from `arrays`.
        sent: groups that go down with this round's model.
        privacy: what clips, adds noise and keeps account, where ``privacy.dp`` asks for it.
        counted: on how many nodes each client was first scored, by split.
        memory: what the method keeps between rounds, a nested dict of arrays; it is checkpointed as it is.
        class_weights: ``w`` [C], where ``train.class_weights=federated``; goes with every message that a client may train on.
        secure: secure sums of the clients' answers, where ``privacy.secagg`` asks for them.
        added: sums that are taken where clients live, where ``ray.aggregate`` asks for them.
        scores_due: whether this round's training answers also score the model that they were sent.
        checkpoint_due: whether this round ends with a checkpoint.
        judges: who scores a model in an exchange of its own.
        involved: clients that were asked for more than who they are.
    """

    side = "server"

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
        self.parts = server_parts(cfg.strategy)
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
        self.added: ActorAggregation | None = None
        self.scores_due = self.checkpoint_due = False
        self.privacy = Privacy(cfg) if cfg.privacy.dp != "none" else None
        self.grid: Grid
        self._asked: Counter[str] = Counter()  # exchanges of this round, by phase
        self._agreed: dict[str, Any] = {}  # what `agreed` found of the clients as they are: each answer asks
        self.reader = ReplyReader(self)

    # --- what a method may override ---------------------------------------------------------------------------------

    @classmethod
    def needs(cls, cfg: RunConfig, graphs: Callable[[], Iterable[Any]]) -> tuple[float, str]:
        """Bytes that all clients of a simulation hold at once beside their graphs, and what to set for fewer; 0: not much.

        Args:
            cfg: the run's configuration.
            graphs: reads those of all clients.
        """
        return 0.0, ""

    def initial_arrays(self) -> Arrays:
        """The shared parameters before round 1: those of the model that every client builds from the same seed."""
        torch.manual_seed(derive_seed(self.cfg.seed, "model"))
        model = models.build(self.cfg.model, self.num_features(), self.agreed("num_classes"))
        dtype = torch.float64 if self.cfg.dtype == "float64" else torch.float32
        shared = model.shared(self.cfg.strategy.shared, self.cfg.strategy.private)
        return {name: tensor.detach().to(dtype).numpy() for name, tensor in shared.items()}

    def num_features(self) -> Any:
        """F, on which the shapes of the shared parameters depend."""
        return self.agreed("num_features")

    def setup(self) -> None:
        """Exchanges before round 1."""

    def stage(self) -> Stage:
        """What this round's training is, and whether the model travels with it."""
        return Stage()

    def before_train(self, arrays: Arrays) -> GroupsFor:
        """Exchanges of this round before training, on `cohort`; returns groups that go down with the model.

        A dict keyed by client index gives each client its own groups.
        """
        return {}

    def before_evaluate(self, arrays: Arrays) -> GroupsFor:
        """Groups that go down with a model to be scored in an exchange of its own."""
        return {}

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """The next shared parameters, from the current ones and the reduced replies to ``train``."""
        return reduced.groups.get(MODEL, arrays)

    def advance(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """The next shared parameters: those of `step`, as the chosen parts change them."""
        after = self.step(arrays, reduced)
        for part in self.parts:
            after = part.step(self, arrays, after, reduced)
        return after

    def fields(self, phase: str, group: str, client: int | None) -> Mapping[str, ArrayField] | None:
        """Arrays of a group whose shapes the uplink cannot know, since they follow from earlier replies.

        Args:
            phase: its name.
            group: a group that the uplink declares without fields.
            client: who replies; None: any.

        Returns:
            The fields; None where the group is not part of this round's replies.
        """
        raise NotImplementedError(f"{type(self).__name__} declares '{group}' of '{phase}' without fields")

    def verify(self, phase: str, reply: Reply) -> None:
        """Refuse an answer for what no schema can say.

        Raises:
            FedGraphError: one sentence that names the client.
        """

    def save(self) -> Tree:
        """What a checkpoint must hold beyond the shared parameters and clients' own: `memory`."""
        return self.memory

    def load(self, tree: Tree) -> None:
        """Go on from what `save` gave, with tensors for leaves; `memory` has arrays."""
        self.memory = as_arrays(tree)

    # --- tools for methods ------------------------------------------------------------------------------------------

    def agreed(self, key: str) -> Any:
        """A value that all clients must have told alike, such as the number of classes.

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
                    f"client {index} has {key}={value}, client {first[0]} has {first[1]}; all must agree"
                )
        self._agreed[key] = first[1]
        return first[1]

    def weights(self, clients: list[int]) -> list[float]:
        """Unnormalised aggregation weights by ``strategy.weighting``, none above ``strategy.max_share`` of their sum.

        ``uniform`` gives clients without training nodes 0 if others train. Under differential privacy all weigh 1: weights
        follow from the configuration.
        """
        return weighting.by_rule(self, clients)

    def counts(self, key: str, clients: list[int]) -> list[float]:
        """A number that clients describe themselves by, such as ``num_train``."""
        return [float(np.sum(self.clients[client].description[key])) for client in clients]

    def weights_in(self, reducer: Reducer, clients: list[int]) -> list[float]:
        """Unnormalised weight of each client in a declared mean or sum; all of it is known before the exchange."""
        return weighting.of_reducer(self, reducer, clients)

    @property
    def addressed(self) -> list[int]:
        """Who is asked unless said otherwise: the cohort, or all clients during setup."""
        return self.cohort if self.server_round else sorted(self.clients)

    def request(
        self,
        phase: str,
        groups: GroupsFor | None = None,
        clients: Iterable[int] | None = None,
        config: dict[str, Any] | None = None,
    ) -> Reduced:
        """One exchange: send a phase to clients, wait, and return the valid replies, reduced as the uplink declares.

        Args:
            phase: name of the `@phase` method of the client that answers.
            groups: groups of arrays for all, or by client index for each.
            clients: default: the cohort, or all clients during setup.
            config: further scalars.
        """
        chosen, down = list(clients) if clients is not None else self.addressed, groups or {}
        if self.secure and sums(self.uplink_of.get(phase, {})):
            masks = self.secure.begin(phase, chosen)
            chosen, down = list(masks), with_own(down, masks)
        return self.reduce(phase, self.exchange(phase, self.messages(phase, chosen, down, config or {})).replies)

    def reduce(self, phase: str, replies: list[Reply]) -> Reduced:
        """Replies as the uplink lets this strategy see them."""
        return reduce(self, phase, replies)

    def request_all(self, phase: str, groups: GroupsFor | None = None, **config: Any) -> Reduced:
        """One exchange that every client must answer.

        Raises:
            RunFailed: one did not.
        """
        replies = self.request(phase, groups, clients=sorted(self.clients), config=config)
        if len(replies) < len(self.clients):
            missing = sorted(set(self.clients) - set(replies.clients))
            raise RunFailed(
                f"{self.cfg.strategy.name}: '{phase}' needs all clients, no valid answer from {missing}; "
                f"client {missing[0]}: {self.failed[missing[0]]}"
            )
        return replies

    ask, ask_all = renamed("request"), renamed("request_all")

    def releases_in(self, server_round: int) -> int:
        """Releases under differential privacy in the exchanges of a round."""
        before, self.server_round = self.server_round, server_round
        up = self.stage().up
        self.server_round = before
        return releases(self.uplink_of) - (not up and bool(sums(self.uplink_of[TRAIN])))

    def send_beside(self, groups: Mapping[int, Groups]) -> None:
        """With this round's model, each client is also sent these groups of its own."""
        self.sent = with_own(self.sent, groups)

    def drop(self, clients: Iterable[int]) -> None:
        """Take clients out of this round; they keep their place in the next."""
        out = set(clients)
        self.cohort = [client for client in self.cohort if client not in out]

    def model_of(self, client: int) -> Arrays:
        """The shared parameters that a client is sent: its own where it has some."""
        return self.models.get(client, self.arrays)

    @property
    def scores_first(self) -> bool:
        """Whether this round's own exchanges change what the model is scored by, so that it is scored before them."""
        return False

    @cached_property
    def buffers(self) -> set[str]:
        """Names of the shared tensors that no gradient trains, such as running statistics: averaged, whatever the rest is."""
        return {name for name, _ in models.probe(self.cfg.model).named_buffers()}

    @property
    def filing(self) -> dict[str, Any]:
        """Of a message that makes a client file its state once it has answered, where a checkpoint is due; else nothing."""
        return {"checkpoint": True, "run": self.recorder.run_name} if self.checkpoint_due else {}

    @cached_property
    def places(self) -> dict[int, int]:
        """Of each client, ascending, its place in what is remembered: a fleet's indices may have gaps."""
        return {client: place for place, client in enumerate(sorted(self.clients))}

    @property
    def cohort_size(self) -> int:
        """How many clients a round samples."""
        return self.cfg.strategy.cohort_size(len(self.clients))

    @property
    def min_clients(self) -> int:
        """How many of a round's clients have to answer."""
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
        """One message of a phase per client (`requests`), counted as an exchange of this round.

        Args:
            phase: its name.
            clients: the receivers.
            groups: for all, or by client.
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
        """The scalars of a message."""
        version = {SPEAKS: PROTOCOL} if phase == DESCRIBE else {}
        return ConfigRecord({"phase": phase, "round": self.server_round, **version, **config})

    def exchange(self, phase: str, messages: Iterable[Message]) -> Outcome:
        """Send, wait, book what it cost, and judge whether enough answers are valid.

        Raises:
            RunFailed: fewer valid replies than ``strategy.min_clients``, or any failure under ``on_failure=fail``.
        """
        outcome = self.collect(phase, messages)
        rules, valid = self.cfg.strategy, len(outcome.replies)
        if outcome.failures and (rules.on_failure == "fail" or valid < rules.min_clients):
            who, reason = next(iter(outcome.failures.items()))
            raise RunFailed(
                f"round {self.server_round}, {phase}: {valid} of {valid + len(outcome.failures)} clients gave a valid answer, "
                f"at least {rules.min_clients} needed (strategy.min_clients, on_failure={rules.on_failure}); "
                f"client {who}: {reason}"
            )
        return outcome

    def collect(self, phase: str, messages: Iterable[Message], timeout: float | None = None) -> Outcome:
        """Send, wait, by default for ``strategy.timeout`` seconds, and book what it cost."""
        nodes = {info.node_id: index for index, info in self.clients.items()}

        def read(message: Message, client: int | None) -> Reply:
            return self.read(phase, message, client)

        name = f"round {self.server_round}, {phase}"
        longest = self.cfg.strategy.timeout if timeout is None else timeout
        outcome = exchange(self.grid, messages, nodes, read, longest, name)
        if self.added:
            self.added.book(phase, outcome)
        self.recorder.exchanged(phase, outcome.down, outcome.groups, outcome.seconds, outcome.failures)
        self.failed |= outcome.failures
        self.silent |= outcome.silent
        return outcome

    def read(self, phase: str, message: Message, client: int | None) -> Reply:
        """The reply in a message, as its schema says.

        Raises:
            FedGraphError: it is not what the phase asks for.
        """
        return self.reader.read(phase, message, client, self.counted.get(client, {}) if client is not None else {})

    def reply_schema(self, phase: str, client: int | None) -> ReplySchema:
        """What a reply to a phase holds, as the uplink declares it; client None: a node that has not said which it is."""
        return self.reader.schema(phase, client)

    def next_round(self, server_round: int) -> None:
        """Nothing has been asked, and nobody failed."""
        self.server_round, self.failed, self.silent = server_round, {}, set()
        self._asked.clear()

    def forget_agreed(self) -> None:
        """The clients are others than they were."""
        self._agreed.clear()
        self.reader.forget()

    # --- Flower's Strategy ------------------------------------------------------------------------------------------

    def summary(self) -> None:
        """Log the settings that matter."""
        s = self.cfg.strategy
        log(INFO, "\t└── %s: %d clients, weighting %s, shared %s", s.name, len(self.clients), s.weighting, s.shared)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The training messages, with the groups that `before_train` gave."""
        stage, flags = self.stage(), {"evaluate": self.scores_due, "checkpoint": False, **self.filing}
        flags |= self.recorder.scoring if self.scores_due else {}
        told = {**config, **flags, **stage.config()}
        return self.messages(TRAIN, self.cohort, self.sent, told, arrays if stage.down else None)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages that ask for scores of the model."""
        groups, told = self.before_evaluate(self.arrays), {**self.stage().config(), **self.recorder.scoring}
        return self.messages(EVALUATE, self.judges, groups, told, arrays if self.stage().down else None)

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Run the whole configuration; results go to the recorder."""
        self.grid = grid
        return Loop(self, grid).run()

    def nodes_of(self, replies: Iterable[Reply]) -> list[float] | None:
        """Nodes of the clients that answered, where means of scores are weighted by them."""
        if self.cfg.evaluation.average != "nodes":
            return None
        return [float(v) for reply in replies for v in as_list(self.clients[reply.client].description["num_nodes"])]

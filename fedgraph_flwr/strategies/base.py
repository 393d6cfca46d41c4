"""What all strategies share: the loop of a run, its exchanges, cohorts, failures, scores, checkpoints and the byte ledger.

    connect → describe → setup()                                          once
    before_train() → train (which also scores the incoming model) → aggregate()   each round
    evaluate                                                              once, at the end, and where not all clients train

A method overrides the hooks `setup`, `before_train` and `aggregate`, and calls `ask` for exchanges
of its own. An exchange is what costs on a fleet: scores of round r travel with the training replies of round r + 1.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Result, Strategy

from fedgraph_flwr import models
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.lookup import method_params
from fedgraph_flwr.messages import (
    CONFIG,
    DESCRIBE,
    EVALUATE,
    METRICS,
    MODEL,
    TRAIN,
    Arrays,
    Reply,
    check_arrays,
    derive_seed,
    from_record,
    groups_of,
    pack,
    payload_bytes,
    to_record,
    weighted_mean,
)
from fedgraph_flwr.records import Recorder
from fedgraph_flwr.strategies.connection import ClientInfo, Connection

Groups = Mapping[str, Any]
"""Groups that travel: name → named arrays, or a record made of them."""

Answers = Mapping[str, tuple[str, ...]]
"""What an answer to a phase holds at least: phase → names of metrics, groups, or ``group/array``."""

GroupsFor = Groups | Mapping[int, Groups]
"""The same groups for all clients, or each client's own by its index."""

_SIMULATED = 128
"""Messages out at once in Flower's simulation, whose engine at each look goes through all of them for each of its nodes."""

_TYPES = {TRAIN: MessageType.TRAIN, EVALUATE: MessageType.EVALUATE}


@dataclass
class NoParams:
    """A strategy without the pooled reference's switch or keys of its own."""

    pooled: bool = False  # Central: one client holds the whole graph


class GraphStrategy(FlowerFedAvg):
    """Base of every strategy; by itself it is FedAvg.

        θ^{t+1} = Σ_i p_i θ_i^t,   p_i by ``strategy.weighting``: training nodes, nodes, or uniform, over the cohort

    Leaves a client: shared parameters, number of training nodes (or nodes, where they weigh), its scores.

    Args:
        cfg: the run's configuration.
        recorder: where the run's results go.

    Attributes:
        answers: what the method reads of the answers to its phases; one without it is rejected.
        clients: what is known of each client, by its index.
        server_round: the round at hand; 0 during setup.
    """

    Params: ClassVar[type] = NoParams
    answers: ClassVar[Answers] = {}

    def __init__(self, cfg: RunConfig, recorder: Recorder):
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.cfg = cfg
        self.params = method_params(type(self), cfg)
        self.recorder = recorder
        self.clients: dict[int, ClientInfo] = {}
        self.server_round = 0
        self.front: Strategy = self  # Flower's privacy wrappers stand in front of the strategy they wrap
        self._expected: dict[str, tuple[int, ...]] = {}
        self._cohort: list[int] = []
        self._failed: dict[int, str] = {}  # clients that failed since the round began, and why
        self._flags: dict[str, Any] = {}
        self._replies: list[Reply] = []

    # --- what a method may override ---------------------------------------------------------------------------------

    def initial_arrays(self) -> Arrays:
        """The shared parameters before round 1: those of the model that every client builds from the same seed."""
        torch.manual_seed(derive_seed(self.cfg.seed, "model"))
        model = models.build(self.cfg.model, self.num_features(), self.agreed("num_classes"))
        dtype = torch.float64 if self.cfg.dtype == "float64" else torch.float32
        return {n: t.detach().to(dtype).numpy() for n, t in model.shared(self.cfg.strategy.shared).items()}

    def num_features(self) -> Any:
        """F, on which the shapes of the shared parameters depend."""
        return self.agreed("num_features")

    def setup(self) -> None:
        """Exchanges before round 1."""

    def before_train(self, arrays: Arrays) -> GroupsFor:
        """Exchanges of this round before training, on `cohort`; returns groups that go down with the model.

        A dict keyed by client index gives each client its own groups.
        """
        return {}

    def before_evaluate(self, arrays: Arrays) -> GroupsFor:
        """Groups that go down with a model to be scored in an exchange of its own."""
        return {}

    def aggregate(self, arrays: Arrays, replies: list[Reply]) -> Arrays:
        """The next shared parameters from the valid replies, which come in the order of the clients."""
        return weighted_mean([reply.arrays for reply in replies], self.weights(replies))

    def server_state(self) -> dict[str, torch.Tensor]:
        """Tensors beyond the shared parameters that a checkpoint must hold."""
        return {}

    def load_server_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take back what `server_state` gave."""

    # --- tools for methods ------------------------------------------------------------------------------------------

    @property
    def cohort(self) -> list[int]:
        """The clients of this round, ascending: the same in all its phases."""
        return self._cohort

    def agreed(self, key: str) -> Any:
        """A value that all clients must have told alike, such as the number of classes.

        Raises:
            FedGraphError: two clients differ.
        """
        values = {index: info.told.get(key) for index, info in self.clients.items()}
        first, *_ = values.items()
        for index, value in values.items():
            if value != first[1]:
                raise FedGraphError(
                    f"client {index} has {key}={value}, client {first[0]} has {first[1]}; all must agree"
                )
        return first[1]

    def weights(self, replies: list[Reply]) -> list[float]:
        """Unnormalised aggregation weights by ``strategy.weighting``."""
        rule = self.cfg.strategy.weighting
        if rule == "uniform":
            return [1.0] * len(replies)
        key = {"train": "num_train", "nodes": "num_nodes"}[rule]
        return [float(np.sum(self.clients[reply.client].told[key])) for reply in replies]

    def ask(
        self,
        phase: str,
        groups: GroupsFor | None = None,
        clients: Iterable[int] | None = None,
        config: dict[str, Any] | None = None,
    ) -> list[Reply]:
        """One exchange: send a phase to clients, wait, and return the valid replies in the order of the clients.

        Args:
            phase: name of the `@phase` method of the client that answers.
            groups: groups of arrays for all, or by client index for each.
            clients: default: the cohort, or all clients during setup.
            config: further scalars.
        """
        chosen = list(clients) if clients is not None else (self.cohort if self.server_round else sorted(self.clients))
        return [reply for reply, _ in self._exchange(phase, self._messages(phase, chosen, groups or {}, config or {}))]

    # --- Flower's Strategy ------------------------------------------------------------------------------------------

    def summary(self) -> None:
        """Log the settings that matter."""
        s = self.cfg.strategy
        log(INFO, "\t└── %s: %d clients, weighting %s, shared %s", s.name, len(self.clients), s.weighting, s.shared)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """This round's exchanges before training, then the training messages."""
        groups = self.before_train(from_record(arrays))
        self._score_apart()  # a client that fell out in those exchanges is not asked to train
        return self._messages(TRAIN, self.cohort, _with_model(groups, self.cohort, arrays), {**config, **self._flags})

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """`aggregate` on the replies, in the order of the clients."""
        self._replies = sorted(map(_reply, replies), key=lambda reply: reply.client)
        return to_record(self.aggregate(self._arrays, self._replies)), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages that ask all clients to score the model."""
        everyone = sorted(self.clients)
        groups = self.before_evaluate(from_record(arrays))
        return self._messages(EVALUATE, everyone, _with_model(groups, everyone, arrays), {})

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Keep the scores; `start` averages them."""
        self._replies = sorted(map(_reply, replies), key=lambda reply: reply.client)
        return None

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Run the whole configuration; results go to the recorder."""
        cfg, recorder = self.cfg, self.recorder
        self.grid = grid
        wanted = 1 if getattr(self.params, "pooled", False) else cfg.num_clients
        self.connection = Connection(grid, self._describe)
        self.clients = self.connection.wait(wanted, cfg.strategy.timeout)
        if cfg.strategy.min_clients > wanted:
            raise FedGraphError(
                f"strategy.min_clients={cfg.strategy.min_clients} exceeds the {wanted} clients of this run"
            )
        if cfg.privacy.dp != "none":
            from fedgraph_flwr.strategies.privacy import private  # the accountant takes a second to import

            self.front = private(self)
        self._arrays = self.initial_arrays()
        self._expected = {name: array.shape for name, array in self._arrays.items()}
        self.setup()
        first = self._resume() + 1
        named = {"run": recorder.run}  # under which clients file a checkpoint of their private state
        recorder.setup_done()
        for self.server_round in range(first, cfg.rounds + 1):
            self._welcome()
            self._cohort = self._sample()
            due = recorder.pending and (self.server_round - 1) % cfg.evaluation.every == 0
            checkpoint = bool(cfg.checkpoint_every) and self.server_round % cfg.checkpoint_every == 0
            self._flags = {"evaluate": due, "checkpoint": checkpoint} | (named if checkpoint else {})
            self._score_apart()
            if recorder.should_stop:
                break
            recorder.begin_round(self.server_round, self._cohort)
            messages = self.front.configure_train(self.server_round, to_record(self._arrays), ConfigRecord(), grid)
            answers = self._exchange(TRAIN, messages)
            self._replies = [reply for reply, _ in answers]
            if self._flags["evaluate"]:
                recorder.scored(self._scores(""), self._arrays, self._nodes())
            if recorder.should_stop:
                break
            self._arrays = self._next_arrays([message for _, message in answers])
            recorder.end_round(self._train_metrics(), self._arrays, **self._spent())
            if checkpoint:
                if absent := sorted(set(self.clients) - set(self.cohort)):  # they keep their state too
                    self._exchange(DESCRIBE, self._messages(DESCRIBE, absent, {}, {"checkpoint": True, **named}))
                self._checkpoint(self.server_round)
        if recorder.pending and not recorder.should_stop:
            self._evaluate()
        recorder.finish()
        return Result(arrays=to_record(recorder.final_arrays))

    # --- one exchange -------------------------------------------------------------------------------------------------

    def _messages(self, phase: str, clients: list[int], groups: GroupsFor, config: Mapping[str, Any]) -> list[Message]:
        record = self._config(phase, config)
        own = _by_client(groups)
        common = pack(groups if own is None else {})  # type: ignore[arg-type]
        messages = []
        for client in clients:
            content = RecordDict(dict(common.items())) if own is None else pack(own.get(client, {}))
            content[CONFIG] = record
            kind = _TYPES.get(phase, MessageType.QUERY)
            messages.append(Message(content, dst_node_id=self.clients[client].node_id, message_type=kind))
        return messages

    def _config(self, phase: str, config: Mapping[str, Any]) -> ConfigRecord:
        return ConfigRecord({"phase": phase, "round": self.server_round, **config})

    def _exchange(self, phase: str, messages: Iterable[Message]) -> list[tuple[Reply, Message]]:
        """Send, wait, and return the valid replies in the order of the clients.

        Raises:
            RunFailed: fewer valid replies than ``strategy.min_clients``, or any failure under ``on_failure=fail``.
        """
        valid, failures = self._collect(phase, messages)
        self._judge(phase, len(valid), failures)
        return valid

    def _collect(self, phase: str, messages: Iterable[Message]) -> tuple[list[tuple[Reply, Message]], dict[int, str]]:
        """Send, wait with a growing pause, and return the valid replies, and why each other client (or node) gave none."""
        sent, began = list(messages), time.perf_counter()
        names = {info.node_id: index for index, info in self.clients.items()}
        down = sum(payload_bytes(message.content) for message in sent)
        unsent = list(reversed(sent))
        simulated = type(self.grid).__name__ == "InMemoryGrid"  # its import would take half a second
        window = _SIMULATED if simulated else len(sent)
        waiting: dict[str, int] = {}
        failures: dict[int, str] = {}
        valid: list[tuple[Reply, Message]] = []
        up, pause = 0, 0.0
        while waiting or unsent:
            if due := [unsent.pop() for _ in range(min(window - len(waiting), len(unsent)))]:
                waiting.update(zip(self.grid.push_messages(due), (m.metadata.dst_node_id for m in due), strict=True))
            asked = time.perf_counter()
            arrived = list(self.grid.pull_messages(list(waiting)))
            took = time.perf_counter() - asked
            for message in arrived:
                node = waiting.pop(message.metadata.reply_to_message_id, message.metadata.src_node_id)
                who = names.get(node, node)
                if message.has_error():
                    failures[who] = message.error.reason or f"error {message.error.code}"
                    continue
                up += payload_bytes(message.content)
                try:
                    valid.append((self._checked(phase, message, f"client {who}"), message))
                except FedGraphError as error:
                    failures[who] = str(error)
            if not waiting:
                continue
            if time.perf_counter() - began > self.cfg.strategy.timeout:
                for node in [*waiting.values(), *(m.metadata.dst_node_id for m in unsent)]:
                    failures[names.get(node, node)] = f"no answer within {self.cfg.strategy.timeout:g} s"
                break
            pause = 0.0 if arrived else min(1.5 * pause + 0.005, 1.0)
            if getattr(self.grid, "blocks", False):  # looking was waiting
                continue
            # With a thousand nodes a look takes the grid a while; four times as long it may work undisturbed.
            time.sleep(max(pause, min(4 * took, 1.0)))
        self.recorder.exchanged(phase, down, up, time.perf_counter() - began, failures)
        self._failed |= failures
        for who, reason in failures.items():
            kind = "client" if who in self.clients else "node"
            log(WARNING, "round %d, %s: %s %s failed: %s", self.server_round, phase, kind, who, reason)
        return sorted(valid, key=lambda pair: pair[0].client), failures

    def _judge(self, phase: str, valid: int, failures: dict[int, str]) -> None:
        if failures and (self.cfg.strategy.on_failure == "fail" or valid < self.cfg.strategy.min_clients):
            who, reason = next(iter(failures.items()))
            raise RunFailed(
                f"round {self.server_round}, {phase}: {valid} of {valid + len(failures)} clients gave a valid answer, at least "
                f"{self.cfg.strategy.min_clients} needed (strategy.min_clients, on_failure={self.cfg.strategy.on_failure}); "
                f"client {who}: {reason}"
            )

    def _checked(self, phase: str, message: Message, sender: str) -> Reply:
        """The reply in a message.

        Raises:
            FedGraphError: it is not what the phase asks for.
        """
        if not isinstance(message.content.get(METRICS), MetricRecord):
            raise FedGraphError(f"{sender} answered phase '{phase}' without the record '{METRICS}'")
        reply = _reply(message)
        if phase == TRAIN:
            check_arrays(reply.arrays, self._expected, sender)
        arrays = {f"{group}/{name}" for group, named in reply.groups.items() for name in named}
        held = reply.metrics.keys() | reply.groups.keys() | arrays
        if missing := sorted(set(self.answers.get(phase, ())) - held):
            raise FedGraphError(f"{sender} answered phase '{phase}' without {', '.join(missing)}")
        return reply

    # --- steps of the loop --------------------------------------------------------------------------------------------

    def _describe(self, nodes: list[int]) -> tuple[list[ClientInfo], dict[int, str]]:
        """Ask nodes who they are."""
        record, kind = self._config(DESCRIBE, {}), MessageType.QUERY
        questions = [Message(RecordDict({CONFIG: record}), dst_node_id=node, message_type=kind) for node in nodes]
        answers, failures = self._collect(DESCRIBE, questions)
        told = [ClientInfo(reply.client, message.metadata.src_node_id, reply.metrics) for reply, message in answers]
        return told, failures

    def _welcome(self) -> None:
        """Clients that came back as another node take their place again."""
        self.clients |= self.connection.returned(self.clients, set(self._failed))
        self._failed = {}

    def _sample(self) -> list[int]:
        """The round's cohort, from its own random stream."""
        everyone, size = sorted(self.clients), self.cohort_size
        if size == len(everyone):
            return everyone
        rng = np.random.default_rng(derive_seed(self.cfg.seed, "cohort", self.server_round))
        return sorted(int(c) for c in rng.choice(everyone, size=size, replace=False))

    @property
    def cohort_size(self) -> int:
        """How many clients a round samples."""
        size = max(round(self.cfg.strategy.fraction * len(self.clients)), self.cfg.strategy.min_clients)
        return min(size, len(self.clients))

    def _next_arrays(self, messages: list[Message]) -> Arrays:
        """The aggregate; by way of Flower's messages only where a wrapper stands in front and may change them."""
        if self.front is self:
            return self.aggregate(self._arrays, self._replies)
        arrays, _ = self.front.aggregate_train(self.server_round, messages)
        return self._arrays if arrays is None else from_record(arrays)

    def _spent(self) -> dict[str, Any]:
        """What the round's record says of privacy."""
        return {} if self.front is self else {"privacy": self.front.spent()}  # type: ignore[attr-defined]

    def _evaluate(self) -> None:
        messages = self.front.configure_evaluate(self.server_round, to_record(self._arrays), ConfigRecord(), self.grid)
        self.front.aggregate_evaluate(self.server_round, [message for _, message in self._exchange(EVALUATE, messages)])
        self.recorder.scored(self._scores(""), self._arrays, self._nodes())

    def _score_apart(self) -> None:
        """Where scores are due and not all clients will train: take them now, from all, instead of with the training replies."""
        if self._flags["evaluate"] and len(self.cohort) < len(self.clients):
            self._evaluate()
            self._flags["evaluate"] = False

    def _scores(self, prefix: str) -> dict[str, Any]:
        """Scores by client and their means, from the replies at hand; ``prefix`` picks those after local training."""
        per_client: dict[str, list[float]] = {}
        for split in metrics.SPLITS:
            for key in ("count", "loss", *metrics.wanted(self.cfg.evaluation)):
                name = f"{prefix}{split}-{key}"
                per_client[f"{split}-{key}"] = [v for r in self._replies for v in _as_list(r.metrics.get(name, []))]
        return {"metrics": metrics.averages(per_client, self._nodes()), "clients": per_client}

    def _nodes(self) -> list[float] | None:
        """Nodes of the clients whose replies are at hand, where means are weighted by them."""
        if self.cfg.evaluation.average != "nodes":
            return None
        return [float(v) for r in self._replies for v in _as_list(self.clients[r.client].told["num_nodes"])]

    def _train_metrics(self) -> dict[str, Any]:
        losses = [float(r.metrics["train-loss"]) for r in self._replies if "train-loss" in r.metrics]
        told: dict[str, Any] = {"train_loss": float(np.mean(losses))} if losses else {}
        if self.cfg.evaluation.trained:
            told |= {f"trained_{k}": v for k, v in self._scores("trained-")["metrics"].items()}
        return told

    def _checkpoint(self, server_round: int) -> None:
        """Write what the server needs to go on after a round."""
        state, left = self.server_state(), max(self.cfg.rounds - server_round, 0)
        if self.front is not self:
            state |= self.front.state(ahead=min(self.cfg.checkpoint_every or left, left))  # type: ignore[attr-defined]
        self.recorder.checkpoint(server_round, self._arrays, state)

    def _resume(self) -> int:
        """The round to go on after, 0 for a fresh run."""
        found = self.recorder.resume()
        if found is None:
            return 0
        done, arrays, state = found
        self._arrays = {name: arrays[name] for name in self._expected}  # in the model's order, which files do not keep
        self.load_server_state(state)
        if self.front is not self:
            self.front.load_state(state)  # type: ignore[attr-defined]
            self._checkpoint(done)  # books what this attempt may release, should it die as well
        told = {"resume": done, "run": self.recorder.run}
        restored = self._exchange(DESCRIBE, self._messages(DESCRIBE, sorted(self.clients), {}, told))
        if len(restored) < len(self.clients):
            reasons = "; ".join(self.recorder.setup_record["failed"].values())
            raise RunFailed(
                f"{len(restored)} of {len(self.clients)} clients took up their state of round {done}: {reasons}"
            )
        return done


def _reply(message: Message) -> Reply:
    told: dict[str, Any] = dict(message.content[METRICS])
    return Reply(int(told.pop("client")), groups_of(message.content), told)


def _as_list(value: Any) -> list[float]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _by_client(groups: GroupsFor) -> Mapping[int, Groups] | None:
    """The groups by client index, or None where they are the same for all."""
    return groups if groups and all(isinstance(key, int) for key in groups) else None  # type: ignore[return-value]


def _with_model(groups: GroupsFor, clients: list[int], arrays: ArrayRecord) -> GroupsFor:
    own = _by_client(groups)
    if own is None:
        return dict([(MODEL, arrays), *groups.items()])
    return {client: {MODEL: arrays, **own.get(client, {})} for client in clients}

"""The base of all strategies: its declaration, and the exchanges that methods start.

    connect → describe → setup()                                                              once
    before_train() → train (which also scores the incoming model) → step()                    each round
    evaluate                                          once, at the end, and where not all clients train

A method declares in `uplink` what leaves a client and what the server needs of it
(`fedgraph_flwr.methods.uplink`). It overrides the hooks `setup`, `before_train` and `step`, and
calls `request` for its own exchanges. Exchanges dominate the cost of a fleet, so scores of round r
travel with the training replies of round r + 1. Other modules hold the parts:

    server       hooks of a method, and state       loop           the loop of a run
    round        one round, as a value              replies        the reading of replies
    exchange     messages, sending and waiting      reducing       reduced replies
    summation    means and sums, and their protections
    descriptions the clients' descriptions, as one
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.methods.labels import LABELS, weights
from fedgraph_flwr.methods.side import Side, refuse_overrides
from fedgraph_flwr.methods.uplink import LateMean, declared, sums
from fedgraph_flwr.secure.secagg import SECAGG
from fedgraph_flwr.store.recorder import Recorder
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.exchange import enough_replies, filing, messages, with_own
from fedgraph_flwr.strategies.loop import Loop
from fedgraph_flwr.strategies.reducing import Reduced, check_public
from fedgraph_flwr.strategies.replies import ReplyReader
from fedgraph_flwr.strategies.round import Groups, GroupsFor, Stage
from fedgraph_flwr.strategies.server import Server
from fedgraph_flwr.strategies.server_parts import server_parts
from fedgraph_flwr.strategies.summation import Summation, summation_of
from fedgraph_flwr.wire.messages import EVALUATE, TRAIN, Arrays, Reply

__all__ = ["ClientInfo", "GraphStrategy", "Groups", "GroupsFor", "Reduced", "Stage"]

FINAL = {
    "request": "the phase in uplink, call self.request, and change its result",
    "reduce": "reducers in uplink, and step(arrays, reduced)",
    "read": "fields in uplink, and verify(phase, reply)",
    "collect": "the phase in uplink, and call self.request",
    "exchange": "the phase in uplink, and call self.request",
    "next_arrays": "step(arrays, reduced)",
    "groups_to_train": "before_train(arrays)",
    "note_counts": "verify(phase, reply, facts)",
    "weights_in": "Mean(weight=..., scale=...) in uplink",
    "summation": "Mean, Sum and their weights in uplink",
    "privacy": "Mean and Sum in uplink, whose sums privacy.dp releases",
    "secure": "Mean and Sum in uplink, whose sums privacy.secagg masks",
}
"""Members that would bypass the protections of a run if a method had its own → what to define instead."""


class GraphStrategy(Side, Server):
    """Base of every strategy. Without overrides it is FedAvg.

        θ^{t+1} = Σ_i p_i θ_i^t,   p_i by ``strategy.weighting``: training nodes, nodes, or uniform, over the cohort

    Leaves a client: shared parameters, number of training nodes (or of nodes, where they are the
    weights), and scores.

    Args:
        cfg: the run's configuration.
        recorder: receives the run's results.

    Attributes:
        combined: configured parts that change the result of `step`.
        reader: reads replies by their schemas.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, FINAL, "which applies the protections of a run")
        if not isinstance(vars(cls).get("verify", Server.__dict__["verify"]), staticmethod):
            raise TypeError(
                f"{cls.__module__}.{cls.__qualname__} defines 'verify' as a method, which could hand single replies to step:"
                " define @staticmethod verify(phase, reply, facts), and facts(phase) for what it needs"
            )

    def __init__(self, cfg: RunConfig, recorder: Recorder):
        super().__init__(cfg, recorder)
        self.params = method_params(type(self), cfg)
        self.uplink_of = declared(type(self), cfg)
        self.combined = server_parts(cfg.strategy)
        self.reader = ReplyReader(self)
        self._summation = summation_of(self)

    def __setattr__(self, name: str, value: Any) -> None:
        member = "summation" if name == "_summation" and "_summation" in vars(self) else name
        if member in FINAL and self.summation.protection:
            where = f"{type(self).__module__}.{type(self).__qualname__}"
            raise FedGraphError(
                f"{where} replaces '{member}' in a run with {self.summation.protection}: define {FINAL[member]} instead"
            )
        super().__setattr__(name, value)

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

    # --- exchanges --------------------------------------------------------------------------------

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
        chosen = default if clients is None else list(clients)
        down = groups or {}
        if sums(self.uplink_of.get(phase, {})):
            inputs = self.summation.begin(phase, chosen)
            if inputs is not None:
                chosen = list(inputs)
                down = with_own(down, inputs)
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
            groups = {
                group: arrays for group, arrays in reply.groups.items() if group not in hidden
            }
            shown.append(self.summation.shown(phase, replace(reply, groups=groups)))
        kept = {group: [reply.groups[group] for reply in replies] for group in late}
        return Reduced(shown, values, kept, self.summation.late_mean)

    def request_all(
        self, phase: str, groups: GroupsFor | None = None, **config: Any
    ) -> Reduced:
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

    def read(self, phase: str, message: Message, client: int | None) -> Reply:
        """Return the reply in a message.

        Raises:
            FedGraphError: it does not match the phase's schema.
        """
        return self.reader.read(phase, message, client)

    def bind(self, clients: Mapping[int, ClientInfo]) -> None:
        """Note which node each of these clients is."""
        super().bind(clients)
        self.reader.forget()

    def note_counts(self, reply: Reply) -> None:
        """Keep the numbers of nodes on which a client was first scored; later replies must have the same."""
        self.reader.note_counts(reply)

    def set_up(self) -> None:
        """Request the federated class weights, if there are any, and run the method's own exchanges before round 1."""
        if self.cfg.train.class_weights == "federated":
            self.class_weights = {"w": weights(self.request(LABELS)[LABELS]["share"])}
        self.setup()

    def groups_to_train(self) -> GroupsFor:
        """Return the groups that travel with the model: the method's, and its parts' where models are sent up."""
        groups = self.before_train(self.arrays)
        for part in self.combined if self.stage().up else ():
            of_part = part.groups(self, self.arrays)
            groups = with_own(groups, of_part) if of_part else groups
        return groups

    def next_arrays(self, replies: list[Reply]) -> Arrays:
        """Return what the method and its parts make of the replies to ``train``."""
        if not self.stage().up:
            # a file may hold each array only once
            return {name: array.copy() for name, array in self.arrays.items()}
        reduced = self.reduce(TRAIN, replies)
        after = self.step(self.arrays, reduced)
        for part in self.combined:
            after = part.step(self, self.arrays, after, reduced)
        return after

    # --- Flower's Strategy ------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the training messages, with the groups from `before_train`."""
        stage = self.stage()
        flags = {"evaluate": self.scores_due, "checkpoint": False, **filing(self)}
        flags |= self.recorder.scoring if self.scores_due else {}
        scalars = {**config, **flags, **stage.config()}
        return messages(
            self, TRAIN, self.cohort, self.round.sent, scalars, arrays if stage.down else None
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages that request scores of the model."""
        groups = self.before_evaluate(self.arrays)
        scalars = {**self.stage().config(), **self.recorder.scoring}
        return messages(
            self,
            EVALUATE,
            self.round.judges,
            groups,
            scalars,
            arrays if self.stage().down else None,
        )

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Run the whole configuration; the recorder receives the results."""
        self.grid = grid
        return Loop(self, grid).run()

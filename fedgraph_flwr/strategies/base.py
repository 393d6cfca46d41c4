"""The base of all strategies: its declaration, and the exchanges that methods start.

    connect → describe → setup()                                                              once
    before_train() → train (which also scores the incoming model) → step()                    each round
    evaluate                                          once, at the end, and where not all clients train

A method declares in `uplink` what leaves a client and what the server needs of it
(`fedgraph_flwr.methods.uplink`). It overrides the hooks `setup`, `before_train` and `step`, and
calls `request` for its own exchanges. It is a function of the configuration, of its memory and of
what was opened: the grid and the recorder belong to the loop. Exchanges dominate the cost of a fleet, so scores of round r
travel with the training replies of round r + 1. Other modules hold the parts:

    server       hooks of a method, and state       loop           the loop of a run
    round        one round, as a value              live           requests by messages, and their replies
    counting     how clients count                  replay         requests that were opened before
    descriptions the clients' descriptions, as one  summation      means and sums, and their protections
"""

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.config.parts import halves
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.methods.declared import uplink_of
from fedgraph_flwr.methods.labels import LABELS, weights
from fedgraph_flwr.methods.method_half import MethodHalf, refuse_overrides
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.exchange import Exchange, with_own
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.round import Groups, GroupsFor, Stage
from fedgraph_flwr.strategies.server import Server
from fedgraph_flwr.strategies.server_part import ServerPart
from fedgraph_flwr.wire.messages import EVALUATE, TRAIN, Arrays

__all__ = ["ClientInfo", "GraphStrategy", "Groups", "GroupsFor", "Reduced", "Stage"]

FINAL = {
    "request": "the phase in uplink, call self.request, and change its result",
    "reduce": "reducers in uplink, and step(arrays, reduced)",
    "read": "fields in uplink, and verify(phase, reply)",
    "collect": "the phase in uplink, and call self.request",
    "exchange": "the phase in uplink, and call self.request",
    "counting": "Mean, Sum and their weights in uplink",
    "next_arrays": "step(arrays, reduced)",
    "groups_to_train": "before_train(arrays)",
    "note_counts": "verify(phase, reply, facts)",
    "weights_in": "Mean(weight=..., scale=...) in uplink",
    "summation": "Mean, Sum and their weights in uplink",
    "privacy": "Mean and Sum in uplink, whose sums privacy.dp releases",
    "secure": "Mean and Sum in uplink, whose sums privacy.secagg masks",
}
"""Members that would bypass the protections of a run if a method had its own → what to define instead."""


class GraphStrategy(MethodHalf, Server):
    """Base of every strategy. Without overrides it is FedAvg.

        θ^{t+1} = Σ_i p_i θ_i^t,   p_i by ``strategy.weighting``: training nodes, nodes, or uniform, over the cohort

    Leaves a client: shared parameters, number of training nodes (or of nodes, where they are the
    weights), and scores.

    Args:
        cfg: the run's configuration.

    Attributes:
        chosen_parts: configured parts that change the result of `step`.
        exchange: requests clients, or has what was opened before; set once.
    """

    exchange: Exchange

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, FINAL, "which applies the protections of a run")
        if not isinstance(vars(cls).get("verify", Server.__dict__["verify"]), staticmethod):
            raise TypeError(
                f"{cls.__module__}.{cls.__qualname__} defines 'verify' as a method, which could hand single replies to step:"
                " define @staticmethod verify(phase, reply, facts), and facts(phase) for what it needs"
            )

    def __init__(self, cfg: RunConfig):
        super().__init__(cfg)
        self.params = method_params(type(self), cfg)
        self.uplink_of = uplink_of(type(self), cfg)
        self.chosen_parts: dict[str, ServerPart] = halves(cfg.strategy, "server", ServerPart)

    def __setattr__(self, name: str, value: Any) -> None:
        given = name in ("counting", "exchange") and name not in vars(self)
        if name in FINAL and not given and self.counting.protection.key:
            where = f"{type(self).__module__}.{type(self).__qualname__}"
            raise FedGraphError(
                f"{where} replaces '{name}' in a run with {self.counting.protection.key}: define {FINAL[name]} instead"
            )
        super().__setattr__(name, value)

    def connect(self, exchange: Exchange) -> None:
        """Take what requests return from here; called once."""
        self.exchange = exchange

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
        return self.exchange.request(phase, chosen, groups or {}, config or {})

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

    def set_up(self) -> None:
        """Request the federated class weights, if there are any, and run the method's own exchanges before round 1."""
        if self.cfg.train.class_weights == "federated":
            self.class_weights = {"w": weights(self.request(LABELS)[LABELS]["share"])}
        self.setup()

    def groups_to_train(self) -> GroupsFor:
        """Return the groups that travel with the model: the method's, and its parts' where models are sent up."""
        groups = self.before_train(self.arrays)
        for part in self.chosen_parts.values() if self.stage().up else ():
            of_part = part.groups(self, self.arrays)
            groups = with_own(groups, of_part) if of_part else groups
        return groups

    def next_arrays(self, reduced: Reduced) -> Arrays:
        """Return what the method and its parts make of the reduced replies to ``train``."""
        if not self.stage().up:
            # a file may hold each array only once
            return {name: array.copy() for name, array in self.arrays.items()}
        after = self.step(self.arrays, reduced)
        for part in self.chosen_parts.values():
            after = part.next(self, self.arrays, after, reduced)
        return after

    # --- Flower's Strategy ------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the training messages, with the groups from `before_train`."""
        return self._with_model(TRAIN, self.cohort, self.round.sent, arrays, config)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages that request scores of the model."""
        groups = self.before_evaluate(self.arrays)
        return self._with_model(EVALUATE, self.round.judges, groups, arrays, config)

    def _with_model(
        self,
        phase: str,
        clients: list[int],
        groups: GroupsFor,
        arrays: ArrayRecord,
        config: ConfigRecord,
    ) -> Iterable[Message]:
        """Return messages of a phase in which clients may receive the model."""
        stage = self.stage()
        flags = ({"stage": stage.name} if stage.name else {}) | (
            {} if stage.up else {"keep_model": True}
        )
        model = arrays if stage.down else None
        return self.exchange.messages(phase, clients, groups, {**config, **flags}, model)

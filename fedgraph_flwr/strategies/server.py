"""What methods, their parts and the loop see of a run's server: hooks, state, and what follows from the clients' descriptions."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from logging import WARNING
from typing import Any

import torch
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from fedgraph_flwr import models
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.logs import log
from fedgraph_flwr.methods.uplink import Groups as Reducers
from fedgraph_flwr.methods.weighting import by_rule
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.secure.verified import bounded, moved
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.strategies.counting import Counting
from fedgraph_flwr.strategies.descriptions import Descriptions
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.round import GroupsFor, Round, Stage
from fedgraph_flwr.tasks import kind_of, probe
from fedgraph_flwr.wire.messages import CONFIG, MODEL, Arrays, Reply, derive_seed
from fedgraph_flwr.wire.reply_schema import ArrayField
from fedgraph_flwr.wire.trees import Tree, as_arrays


class Server(FlowerFedAvg):
    """The configuration, the model and the memory of a run's server, and the hooks that a method overrides.

    `fedgraph_flwr.strategies.base.GraphStrategy` adds requests to clients.

    Args:
        cfg: the run's configuration.

    Attributes:
        uplink_of: the uplink of this run, with the framework's own phases.
        params: values of the method's keys.
        clients: the clients' nodes and descriptions, by client index.
        round: the current round.
        arrays: the current shared parameters.
        models: clients' own shared parameters, by client index; other clients start from `arrays`.
        memory: the method's state between rounds, a nested dict of arrays; checkpointed.
        class_weights: ``w`` [C] under ``train.class_weights=federated``; travels with every message
            that may lead to training.
        described: the clients' descriptions, as one.
        counting: how clients count in means and sums.
        remarks: what the run's summary says in addition to its scores.
    """

    params: Any
    uplink_of: dict[str, Reducers]

    def __init__(self, cfg: RunConfig):
        super().__init__(arrayrecord_key=MODEL, configrecord_key=CONFIG)
        self.cfg = cfg
        self.clients: dict[int, ClientInfo] = {}
        self.round = Round()
        self.arrays: Arrays = {}
        self.models: dict[int, Arrays] = {}
        self.memory: Tree = {}
        self.class_weights: Arrays = {}
        self.remarks: dict[str, Any] = {}
        self.described = Descriptions(cfg, lambda: self.clients)
        self.counting = Counting(
            cfg, lambda: self.clients, lambda clients: self.weights(clients)
        )

    # --- hooks of a method ------------------------------------------------------------------------

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
        sizes = (
            self.num_features(),
            self.described.size("num_classes"),
            self.described.size("num_edge_features") or 0,
        )
        return kind_of(self.cfg).network(self.cfg, *sizes)

    def num_features(self) -> Any:
        """Return F, the number of features, which determines the shapes of the shared parameters."""
        return self.described.size("num_features")

    def accepted(self, arrays: Arrays, where: str) -> Arrays:
        """Return arrays with the names and shapes that shared parameters from a file must have.

        A method whose shapes follow from training returns the arrays of the file, after its own
        checks.

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

    def fields(
        self, phase: str, group: str, client: int | None
    ) -> Mapping[str, ArrayField] | None:
        """Return the arrays of a group whose shapes the uplink cannot declare, since they follow from earlier replies.

        Args:
            phase: name of the phase.
            group: a group that the uplink declares without fields.
            client: the client that replies; None: any client.

        Returns:
            The fields; None if the group is not part of this round's replies.
        """
        raise NotImplementedError(
            f"{type(self).__name__} declares '{group}' of '{phase}' without fields"
        )

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

    def limited(self, arrays: Arrays, start: Arrays, most: float) -> Arrays:
        """Return the shared parameters of a step within a bound, in rounds that every node computes.

        A method whose uplink declares other sums as ``bounded`` may have another bound.

        Args:
            arrays: those of the step.
            start: those before it.
            most: ``privacy.max_update``.
        """
        if (
            norm := moved(arrays, start)
        ) > 1.001 * most:  # else a mean within it that was rounded
            self.note_scaled("server's step", norm, most)
        return bounded(arrays, start, most)

    def numbers(self) -> int:
        """Return how many numbers a client adds to the sums of a round at most; 0: as many as the uplink declares."""
        return 0

    def save(self) -> Tree:
        """Return the state that a checkpoint needs besides the shared parameters and the clients' own models: `memory`."""
        return self.memory

    def load(self, tree: Tree) -> None:
        """Restore what `save` returned, with tensors as leaves; `memory` holds arrays."""
        self.memory = as_arrays(tree)

    def take_class_weights(self, tree: Tree) -> None:
        """Take the class weights of an earlier set-up."""
        self.class_weights = as_arrays(tree)

    def note_scaled(self, what: str, norm: float, most: float) -> None:
        """Note the norm of what this round scales to ``privacy.max_update``, here ``most``."""
        self.remarks.setdefault("scaled", {})[str(self.server_round)] = norm
        log(
            WARNING,
            "round %d: the %s has norm %.3g, and is scaled to privacy.max_update=%g: a member sent"
            " a large one, or the bound is small; an optimiser remembers it",
            *(self.server_round, what, norm, most),
        )

    # --- the round --------------------------------------------------------------------------------

    @property
    def server_round(self) -> int:
        """The current round; 0 during the set-up."""
        return self.round.number

    @property
    def cohort(self) -> list[int]:
        """The clients of this round, ascending; the same in all its phases."""
        return self.round.cohort

    @property
    def failed(self) -> dict[int, str]:
        """Clients that failed in this round, with the reason."""
        return self.round.failed

    @property
    def scores_due(self) -> bool:
        """Whether this round's training replies also score the model that was sent."""
        return self.round.scores_due

    # --- tools for methods ------------------------------------------------------------------------

    def agreed(self, key: str) -> Any:
        """Return a value that all clients must describe alike, such as the number of classes.

        Raises:
            FedGraphError: two clients differ.
        """
        return self.described.agreed(key)

    def weights(self, clients: list[int]) -> list[float]:
        """Return unnormalised aggregation weights by ``strategy.weighting``, none above ``strategy.max_share`` of their sum.

        ``uniform`` gives clients without training nodes weight 0 if others train. Under
        differential privacy all weights are 1, so that they follow from the configuration.
        """
        return by_rule(self.cfg.strategy, self.counting.private, self.counting.counts, clients)

    def counts(self, key: str, clients: list[int]) -> list[float]:
        """Return a number from the clients' descriptions, such as ``num_train``, per client."""
        return self.counting.counts(key, clients)

    def drop(self, clients: Iterable[int]) -> None:
        """Remove clients from this round; later rounds may sample them again."""
        self.round = self.round.without(clients)

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
        return self.counting.cohort_size(self.server_round)

    # --- what the loop calls ----------------------------------------------------------------------

    def bind(self, clients: Mapping[int, ClientInfo]) -> None:
        """Note which node each of these clients is, in addition to those that are known."""
        self.clients = {**self.clients, **clients}
        self.described.forget()

    def adopt(self, arrays: Arrays, models: dict[int, Arrays] | None = None) -> None:
        """Make these the current shared parameters, and these the clients' own; None: keep those."""
        self.arrays = arrays
        if models is not None:
            self.models = models

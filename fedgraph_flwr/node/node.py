"""A node of a fleet or of a simulation: its settings, its folders, and what it tells the server.

`Simulated` is a node that the server's operator runs, `Party` one of its own owner. They differ in
the policy, in what an error may tell, where state lives, and what is logged.
"""

import contextlib
import copy
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from logging import ERROR
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message

from fedgraph_flwr.clients import combinations, earlier
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.saved_models import NOTHING, PRIVATE, WHOLE
from fedgraph_flwr.clients.state import AnotherSum, StateFolder
from fedgraph_flwr.config import RunConfig, from_run_config
from fedgraph_flwr.config.schema import OWN_SEED
from fedgraph_flwr.errors import FedGraphError, Refusal, RunFailed, located
from fedgraph_flwr.fleet import audit_chain
from fedgraph_flwr.fleet.agreements import Agreement, Refused, check
from fedgraph_flwr.logs import log
from fedgraph_flwr.node import settings
from fedgraph_flwr.node.beginning import Beginning
from fedgraph_flwr.node.model_size import check_size
from fedgraph_flwr.partition.store import number_in
from fedgraph_flwr.secure.policy import Ledger, Policy, read_policy, simulated
from fedgraph_flwr.secure.protection import protection_of
from fedgraph_flwr.wire.messages import FAILED

Key = tuple[int, int]
"""Flower's numbers of a run and of a node."""

Items = tuple[tuple[str, str], ...]
"""Names and values of Flower's run config, in order."""

Entry = Callable[[], dict[str, Any]]
"""Makes the line of the audit log about a message and its reply."""


class Node:
    """One node in one run. A fleet forks a process per message, so it is cheap to build.

    Args:
        context: Flower's context of the node in the run.
        policy: the owner's rules; None: those of the file in the node config, or the usual ones.

    Attributes:
        settings: Flower's node config.
        key: of the run and the node.
        live: whether the engine keeps the client in this process for the whole run.
        root: the node's state folder; empty: it has none.
    """

    foreign: bool

    def __init__(self, context: Context, policy: Policy | None = None):
        self.context, self.settings = context, context.node_config
        self.key: Key = (context.run_id, context.node_id)
        self.live = bool(self.settings.get("live"))
        self.root = str(self.settings.get("state") or "")
        self._policy = policy

    @cached_property
    def items(self) -> Items:
        """The run's configuration as the server sent it."""
        return tuple(sorted((str(k), str(v)) for k, v in self.context.run_config.items()))

    @property
    def sent_cfg(self) -> RunConfig:
        """The run's configuration as the server sent it."""
        return _run_config(self.items, self.foreign)

    @cached_property
    def cfg(self) -> RunConfig:
        """The run's configuration."""
        return self.sent_cfg

    @property
    def beginning(self) -> Beginning:
        """The beginning of an agreed run, which this node does not have."""
        raise Refusal("the operator of the server runs this node: it has no agreement")

    def policy(self) -> Policy:
        """Return the owner's rules."""
        if self._policy is not None:
            return self._policy
        path = self.settings.get("policy")
        return read_policy(str(path)) if path else self.usual_policy()

    @property
    def agreement(self) -> Agreement | None:
        """The agreement of this run; None: the node accepts runs of none."""
        return None

    @property
    def agreed(self) -> str:
        """Name of an agreed run in the state folder, by the agreement's digest and its number; "" without an agreement."""
        return "-".join(self.sent_cfg.agreement.split("/"))[32:] if self.agreement else ""

    def folder(self, strategy: str, client: int) -> StateFolder | None:
        """Return the folder for a client's state in this run, if the node has one."""
        if not self.root:
            return None
        agreed, attempt = self.agreed, str(self.key[0])
        ends = agreed and not protection_of(self.sent_cfg).verified  # with Flower's run
        names = (agreed or attempt, strategy, client, attempt if ends else "")
        return StateFolder(self.root, *names)

    def checkpoints(self, cfg: RunConfig, client: int, run: str) -> StateFolder | None:
        """Return the folder for a client's checkpoints of the server's ``run``, if there is one."""
        root = self.root or self.checkpoint_root(cfg)
        names = (self.agreed or run, cfg.strategy.name, client)
        return StateFolder(root, *names, durable=bool(self.root)) if root else None

    def without_paths(self, text: str) -> str:
        """Return a text for the server, in which the node config's own files have their keys."""
        for key in settings.PATHS:
            if path := self.settings.get(key):
                text = text.replace(str(path), f"<{key}>")
        return text

    def usual_policy(self) -> Policy:
        """Return the rules of a node without a policy file."""
        raise NotImplementedError

    def failure(self, error: Exception) -> str:
        """Return what the server may know of an exception."""
        raise NotImplementedError

    def withheld(self, cfg: RunConfig, phase: str = "") -> contextlib.AbstractContextManager[None]:
        """Keep reasons that may depend on data from the server, within."""
        raise NotImplementedError

    def check_kind(self, cfg: RunConfig, kind: type[GraphClient]) -> None:
        """Refuse a client's class that this node does not run."""

    def check_model(
        self, policy: Policy, kind: type[GraphClient], cfg: RunConfig, graph: Any
    ) -> None:
        """Refuse a model by its size before any memory is allocated for it."""

    def malicious(self, kind: type[GraphClient], cfg: RunConfig) -> type[GraphClient]:
        """Return the class of a malicious client."""
        raise NotImplementedError

    @property
    def saved_models(self) -> str:
        """What is stored of the models that the client will predict with."""
        raise NotImplementedError

    @property
    def reports_keys(self) -> bool:
        """Whether the owner reads the fingerprints of the other clients' keys."""
        raise NotImplementedError

    def earlier_model(
        self, cfg: RunConfig, client: int, received: Mapping[str, Any]
    ) -> Path | None:
        """Return the file with a client's part of the model of the run in ``init``, ``evaluate``."""
        raise NotImplementedError

    def checkpoint_root(self, cfg: RunConfig) -> str:
        """Return where checkpoints go if the node has no state folder; empty: nowhere."""
        return ""

    def pin(self, ledger: Ledger) -> None:
        """Refuse a message of a run whose configuration changed."""

    def check_folder(self, folder: StateFolder | None) -> None:
        """Refuse a run that has the folder of another method, too."""

    def check_ledger_folder(self) -> None:
        """Refuse a bound of ε without a folder for its ledger."""

    def logged(self, message: Message, reply: Message, entry: Entry) -> Message:
        """Return the reply to a message, once its entry is in the audit log if there is one."""
        return reply


class Simulated(Node):
    """A node that the operator of the server runs, as in a simulation."""

    foreign = False
    saved_models = PRIVATE
    reports_keys = False

    def usual_policy(self) -> Policy:
        """No limits."""
        return simulated()

    def failure(self, error: Exception) -> str:
        """The exception, with its file and line."""
        return located(error)

    def withheld(self, cfg: RunConfig, phase: str = "") -> contextlib.AbstractContextManager[None]:
        """Nothing is withheld."""
        return contextlib.nullcontext()

    def malicious(self, kind: type[GraphClient], cfg: RunConfig) -> type[GraphClient]:
        """Return the class of a malicious client."""
        from fedgraph_flwr.clients.malicious import malicious

        return malicious(kind)

    def earlier_model(
        self, cfg: RunConfig, client: int, received: Mapping[str, Any]
    ) -> Path | None:
        """The state in the earlier run's folder, where the client may have had another number."""
        run = Path(cfg.init or cfg.evaluate)
        number = number_in(run, cfg, client)
        return None if number is None else earlier.in_run(run, number)

    def checkpoint_root(self, cfg: RunConfig) -> str:
        """The run folder, if the run has one."""
        return f"{cfg.out}/state" if cfg.out else ""


class Party(Node):
    """A node of its own owner, who trusts neither server nor messages."""

    foreign = True
    reports_keys = True

    @cached_property
    def cfg(self) -> RunConfig:
        """The run's configuration; of an agreed run with the seeds that it began with.

        Raises:
            FedGraphError: the run has not begun here.
        """
        given = self.sent_cfg
        if not self.agreement:
            return given
        seeds = self.beginning.seeds
        if seeds is None:
            return given
        config = copy.copy(given)  # whose values were checked
        config.seed = seeds[0]
        setattr(config, OWN_SEED, seeds[1])
        return config

    @cached_property
    def beginning(self) -> Beginning:
        """The beginning of this agreed run.

        Raises:
            FedGraphError: the run is under no agreement, or this node's key is no member's.
        """
        if not self.agreement:
            raise Refusal("the run begins as an agreed one, and this node has no agreement")
        return Beginning(
            self.agreement, self.sent_cfg.agreement, Path(self.root), str(self.settings.get("key"))
        )

    def usual_policy(self) -> Policy:
        """The default policy."""
        return Policy()

    def policy(self) -> Policy:
        """Return the owner's rules, with the ledger of ε and the bound of the agreement."""
        rules = super().policy()
        if self.agreement:
            epsilon = self.agreement.values["epsilon"]
            rules.check_start = True
            if not rules.max_epsilon:  # else the owner's own bound counts over agreements
                rules.purpose = self.agreement.values["name"]
            rules.max_epsilon = min(filter(None, (epsilon, rules.max_epsilon)), default=0.0)
        return rules

    @cached_property
    def agreement(self) -> Agreement | None:
        """The agreement of this run, once its members, time, configuration and number are checked.

        Raises:
            FedGraphError: members did not agree on this run.
        """
        place = self.settings.get("agreement")
        if not place:
            if self.sent_cfg.agreement:
                raise Refusal(
                    "the run is under an agreement, which this node lacks: start it with node --agreement FILE"
                )
            return None
        if not self.root:
            raise FedGraphError(
                "agreement= of --node-config needs state=, in which the node counts the runs"
            )
        try:
            return check(
                Path(str(place)),
                self.context.run_config,
                None,
                Path(self.root),
                time.time(),
            )
        except Refused as error:
            raise Refusal(str(error)) from error

    @property
    def saved_models(self) -> str:
        """The whole model, if there is a folder for it."""
        return WHOLE if self.root else NOTHING

    def failure(self, error: Exception) -> str:
        """Where it happened; the node's log has the rest."""
        return (
            f"the request failed: {located(error, public=True)}; its arrays or numbers may be wrong:"
            " see the node's log"
        )

    @contextlib.contextmanager
    def withheld(self, cfg: RunConfig, phase: str = "") -> Iterator[None]:
        """Keep the reasons of failures that may depend on data in the log, under privacy.dp and privacy.secagg.

        "It has 3 training nodes in a step, expected at least 5" tells a number that no noise or mask
        covers, and so may the place of an exception in a method's code. What other members sent in
        exchanges around secure sums depends on no data.
        """
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:
            if isinstance(error, AnotherSum | RunFailed) or not (
                key := protection_of(cfg).withheld(phase)
            ):
                raise
            log(ERROR, str(error), exc_info=None if isinstance(error, FedGraphError) else error)
            raise Refusal(
                f"this node refuses the request; under {key} only its own log"
                " has the reason, which may depend on its data"
            ) from error

    def check_kind(self, cfg: RunConfig, kind: type[GraphClient]) -> None:
        """Refuse secure sums without pinned keys, and what the class cannot train."""
        if protection_of(cfg).sums_only:
            settings.check_secure_node(self.settings)
        combinations.check(cfg, kind)

    def check_model(
        self, policy: Policy, kind: type[GraphClient], cfg: RunConfig, graph: Any
    ) -> None:
        """Refuse a model by its size before any memory is allocated for it."""
        check_size(policy, kind, cfg, graph)

    def malicious(self, kind: type[GraphClient], cfg: RunConfig) -> type[GraphClient]:
        """A party's own node refuses to be one."""
        raise Refusal(
            f"a party's own node refuses adversary.kind={cfg.adversary.kind}:"
            " set adversary.kind=none"
        )

    def earlier_model(
        self, cfg: RunConfig, client: int, received: Mapping[str, Any]
    ) -> Path | None:
        """A saved model whose shared parameters are those received."""
        return earlier.in_node(Path(self.root), client, received) if self.root else None

    def pin(self, ledger: Ledger) -> None:
        """Refuse a message of a run whose configuration changed.

        Raises:
            FedGraphError: it changed.
        """
        ledger.pin(self.items)

    def check_folder(self, folder: StateFolder | None) -> None:
        """Refuse a run that has the folder of another method, too.

        Raises:
            FedGraphError: names it.
        """
        if folder:
            folder.check_one_method()

    def check_ledger_folder(self) -> None:
        """Refuse a bound of ε without a folder for its ledger.

        Raises:
            FedGraphError: names the option.
        """
        if not self.root:
            raise Refusal(
                "max_epsilon of this node's policy needs a ledger that outlives runs: start the node"
                " with --state"
            )

    def logged(self, message: Message, reply: Message, entry: Entry) -> Message:
        """Return a reply after its entry was written to the audit log; an error if it cannot be.

        A node whose state folder cannot be created has no log, and says so in its reply.
        """
        if not self.root or (reply.has_error() and not _made(Path(self.root))):
            return reply
        try:
            line = entry()
            if not line["refused"] and self.sent_cfg.agreement:
                line["agreement"] = self.sent_cfg.agreement
            audit_chain.append(Path(self.root), line)
        except FedGraphError as error:
            log(ERROR, str(error))
            reason = str(error).replace(self.root, "<state>")
            return Message(Error(FAILED, reason), reply_to=message)
        return reply


def _made(folder: Path) -> bool:
    """Create a folder if it is missing; return whether it is there."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder.is_dir()


def node_of(context: Context) -> Node:
    """Return the node of a context; one with a partition is run by the operator of the server."""
    return Simulated(context) if "partition-id" in context.node_config else Party(context)


@functools.lru_cache(maxsize=8)
def _run_config(items: Items, foreign: bool) -> RunConfig:
    return from_run_config(dict(items), foreign)

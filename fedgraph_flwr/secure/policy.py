"""A party's policy for its node: a YAML file (``policy="FILE"`` in ``--node-config``), or defaults.

strategies: [fedavg, fedprox]     # by name, with the client that our YAML gives it, or clients as module:Class; empty: all
networks: [gcn, sage]             # empty: all
tasks: [nodes, links]             # default: nodes; with links, updates and scores depend on single edges
samplers: [none, neighbors]       # default: none; steps on changing batches add up to gradients of single nodes
modules: [mymethods, my:metric]   # code beyond this package and those with an entry point here: packages, or single metrics
phases: [describe, train]         # empty: all of the method
messages: {acquire: 8}            # maximum per phase and round, if lower than the method's own limit
rounds: 1000                      # maximum per run
min_clients: 3                    # minimum per run, per exchange (`strategy.min_clients`) and per secure sum
max_share: 0.5                    # largest share of one client in the weights of a secure sum
min_noise_multiplier: 1.0         # minimum privacy.noise_multiplier of a run; 0: none, also without privacy.dp
max_clipping_norm: 1.0            # maximum privacy.clipping_norm and clipping_norms, and of adaptive norms on their way; 0: none
max_epsilon: 8.0                  # maximum ε at δ = 1e-5 over all runs of a purpose, by the node's own ledger; 0: none
purpose: fraud                    # name of that ledger in the state folder
min_nodes: 20                     # minimum nodes of this node's graph in every statistic
max_parameters: 1000000           # maximum per model, including additional ones, and of numbers in pairs that a step compares
max_width: 256                    # maximum width of a layer
max_lr: 0.1                       # largest train.lr, and strategy.sam.rho: longer steps from the seed's parameters show nodes
start_models: []                  # digests of models that a run may start with (init), besides those of runs of this node
check_start: true                 # training must start with the parameters of the run's seed, unless the node has the checkpoint
reveal: [coefficients]            # groups of a method that a server may see for this client despite secure aggregation
required_config: {privacy.dp: [server_fixed, client_fixed]}   # keys of a run's configuration, and the accepted values
link: {match: [payments]}         # link runs, whatever `tasks` says (`fedgraph_flwr.party.link.policy`); default: none

For a method listed by name, the node accepts the sharing that its YAML declares, or less. Other parameters leave a node only if
``required_config`` has ``strategy.shared`` or ``strategy.private``.

With or without a file, a node accepts one configuration per run, and each phase at most as often per round as the method
declares. It never repeats an earlier round (`Ledger`), and no path comes from a server (`file_name`).
"""

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from logging import WARNING
from pathlib import Path
from typing import Any, ClassVar

import torch
from omegaconf import OmegaConf
from torch import nn

from fedgraph_flwr.config import (
    SAMPLERS,
    TASKS,
    PrivacyConfig,
    RunConfig,
    StrategyConfig,
    at_least,
    group_names,
    number,
    typed,
)
from fedgraph_flwr.config.composition import group_file
from fedgraph_flwr.config.lookup import named_code
from fedgraph_flwr.config.parts import chosen, part, values
from fedgraph_flwr.config.schema import CHOICES, Section, is_own
from fedgraph_flwr.data import plugins
from fedgraph_flwr.errors import FedGraphError, Refusal, check_names, line_of, sanitize
from fedgraph_flwr.logs import log
from fedgraph_flwr.secure.adaptive import NORM_RANGE
from fedgraph_flwr.secure.wing import has_section, read_section
from fedgraph_flwr.wire.messages import DESCRIBE, EVALUATE

LARGEST = 2**63 - 1

ANYTHING = "*"
"""Among `Policy.modules`: any code."""

KEPT = 3
"""Times `Policy.min_nodes`: fewest nodes of a step that a hidden unit keeps under dropout, on average."""

_AGREED = "members fix lists, weights, seeds and runs in an agreement (node --agreement)"
GONE = {
    **dict.fromkeys(("opened_sums", "model_distance", "max_step"), _AGREED),
    "late_start": "a node begins late only where the cohorts left it out, or from its checkpoint (node --state)",
}
"""Keys that policies had, and what replaces them; they are refused from the next release on."""

RESUMED = "0 resumed 0"
"""Place of a resumption in a ledger, with its round in the place of a digest."""

FLAGS = ("resumed", "suspect", "loaded", "trained", "begun", "ended")
"""Attributes of `Ledger` that are yes or no."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def file_name(text: object, what: str) -> str:
    """Check a name from elsewhere that becomes part of a path.

    Raises:
        FedGraphError: it is empty, longer than 64 characters, or has others than letters, digits, ``_`` and ``-``.
    """
    if not _NAME.fullmatch(str(text)):
        raise FedGraphError(f"{what} '{sanitize(text, 80)}' is not a name: expected 1 to 64 letters, digits, _ or -")
    return str(text)


@dataclass
class Policy(Section, group="policy"):
    """Requests that the node accepts; the module's docstring documents the keys.

    Attributes:
        trusting: whether the operator of the server also runs the clients.
        path: the policy's file; "" for the default policy.
    """

    trusting: ClassVar[bool] = False
    path: ClassVar[str] = ""

    strategies: list[str] = field(default_factory=list)
    networks: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=lambda: ["nodes"], metadata={"listed": tuple(TASKS)})
    samplers: list[str] = field(default_factory=lambda: ["none"], metadata={"listed": tuple(SAMPLERS)})
    modules: list[str] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    messages: dict[str, int] = field(default_factory=dict)
    rounds: int = number(10_000, low=1, high=LARGEST)
    min_clients: int = number(1, low=1)
    max_share: float = number(0.75, high=1, without_low=True)
    min_noise_multiplier: float = 0.0
    max_clipping_norm: float = 0.0
    max_epsilon: float = 0.0
    purpose: str = "training"
    min_nodes: int = 5
    max_parameters: int = number(100_000_000, low=1, high=LARGEST)
    max_width: int = number(1024, low=1, high=LARGEST)
    max_lr: float = number(1.0, without_low=True)
    check_start: bool = True
    start_models: list[str] = field(default_factory=list)
    reveal: list[str] = field(default_factory=list)
    required_config: dict[str, Any] = field(default_factory=dict)
    link: dict[str, Any] = field(default_factory=dict)

    limits = (
        (
            "start_models",
            lambda c: not all(re.fullmatch("[0-9a-f]{64}", model) for model in c.start_models),
            "digests of 64 hexadecimal digits",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.link:
            _ = self.linking  # refuses wrong values before the node starts
        file_name(self.purpose, "policy.purpose")
        for phase, count in self.messages.items():
            at_least(count, 0, f"policy.messages.{phase}")

    @cached_property
    def linking(self) -> Any:
        """The values of ``link``, as the reader of this section returns them.

        Raises:
            FedGraphError: an unknown key, or a wrong type or value.
        """
        return read_section("link", self.link)

    def check_run(self, cfg: RunConfig) -> None:
        """Refuse a run by its configuration.

        Raises:
            FedGraphError: names the key, its value and what the policy accepts.
        """
        self._check_strategy(cfg)
        if has_section(cfg.strategy.client):  # trains nothing: its section decides
            scores = cfg.privacy.scores
            _require(
                scores == "none", f"privacy.scores={scores} of a link run", "none, as `fedgraph-flwr link` sets it"
            )
        else:
            self._check_training(cfg)
        self._check_code(cfg)
        odd, reveal = sorted(set(cfg.privacy.reveal) - set(self.reveal)), ", ".join(self.reveal) or "no group"
        _require(not odd or ANYTHING in self.reveal, f"privacy.reveal={odd}", f"reveal {reveal} (reveal)")
        _require(cfg.rounds <= self.rounds, f"rounds={cfg.rounds}", f"at most {self.rounds} rounds")
        for key, clients in (("num_clients", cfg.num_clients), ("strategy.min_clients", cfg.strategy.min_clients)):
            _require(
                clients >= self.min_clients, f"{key}={clients}", f"at least {self.min_clients} clients (min_clients)"
            )

    def _check_training(self, cfg: RunConfig) -> None:
        """Refuse a run whose model, task, sampler or noise the policy does not accept."""
        model, task, sampler = cfg.model.name, cfg.task.name, cfg.train.sampler
        networks, samplers = ", ".join(self.networks), ", ".join(self.samplers)
        _require(not self.networks or model in self.networks, f"model={model}", f"networks {networks}")
        _require(task in self.tasks, f"task={task}", f"tasks {', '.join(self.tasks)} (tasks)")
        _require(sampler in self.samplers, f"train.sampler={sampler}", f"samplers {samplers} (samplers)")
        steps = {"train.lr": cfg.train.lr}
        if "sam" in cfg.strategy.objective:
            steps["strategy.sam.rho"] = cfg.strategy.sam.rho
        for key, length in steps.items():
            _require(length <= self.max_lr, f"{key}={length:g}", f"at most {self.max_lr:g} (max_lr)")
        self._check_privacy(cfg.privacy)

    def _check_strategy(self, cfg: RunConfig) -> None:
        """Refuse a method that is not listed, or whose client's parts differ from those of its YAML."""
        name, client = cfg.strategy.name, cfg.strategy.client
        # some parts send more than the model
        more = any(is_own(one) or part(one).downlink for one in chosen(vars(cfg.strategy)))
        plain = client in self.strategies and not more
        if not self.strategies or plain or has_section(client):
            return
        ours = group_file("strategy", name) if name in group_names("strategy") else {}
        usual = vars(StrategyConfig()) | dict(ours.items())
        parts = ("client", *(key for key in CHOICES if key != "server_optimizer"))
        same = ours and all(usual[key] == getattr(cfg.strategy, key) for key in parts)
        listing = f"strategies {', '.join(self.strategies)}"
        _require(same and name in self.strategies, f"strategy={name} (client {client})", listing)

    def _check_privacy(self, rules: PrivacyConfig) -> None:
        """Refuse a run whose noise or norms the policy does not accept."""
        least, most, noise = self.min_noise_multiplier, self.max_clipping_norm, rules.noise_multiplier
        if least or most or self.max_epsilon:
            keys = "(min_noise_multiplier, max_clipping_norm, max_epsilon)"
            _require(rules.dp != "none", "privacy.dp=none", f"differential privacy {keys}")
        accepted = f"at least {least:g} (min_noise_multiplier)" if least else "noise (max_epsilon)"
        enough = noise >= least and (noise or not self.max_epsilon)
        _require(enough, f"privacy.noise_multiplier={noise:g}", accepted)
        norms = {"privacy.clipping_norm": rules.clipping_norm}
        norms |= {f"privacy.clipping_norms.{group}": norm for group, norm in rules.clipping_norms.items()}
        # with adaptive norms, the server chooses them, and noise does not follow
        reach = NORM_RANGE if rules.dp == "client_adaptive" else 1.0
        for key, norm in norms.items() if most else ():
            grown = f", with adaptive norms up to {norm * reach:g}" if reach > 1 else ""
            _require(norm * reach <= most, f"{key}={norm:g}{grown}", f"at most {most:g} (max_clipping_norm)")
        exact = self.max_epsilon and rules.scores == "exact"
        _require(not exact, "privacy.scores=exact, which ε does not cover", "none or noised (max_epsilon)")

    def _check_code(self, cfg: RunConfig) -> None:
        """Refuse code that the policy does not trust, before anything of it is imported."""
        if ANYTHING in self.modules:
            return
        packages = [__package__.partition(".")[0], *plugins.packages(), *self.modules]
        listed = [*self.strategies, *self.networks, *self.modules]
        accepted = f"modules {', '.join(self.modules) or 'none except installed plug-ins'}"
        for key, target in named_code(cfg).items():
            module = f"{target.partition(':')[0]}."
            # of evaluation, a function is called, whereas a class must first be a client or a model
            trusted = not key.startswith("evaluation.") and any(module.startswith(f"{name}.") for name in packages)
            _require(trusted or target in listed, f"{key}={sanitize(target, 80)}", accepted)

    def check_size(self, count: int, what: str) -> None:
        """Refuse a model by its number of parameters, before it is built.

        Raises:
            FedGraphError: there are too many.
        """
        most = self.max_parameters
        _require(count <= most, f"{what} of {count} parameters", f"at most {most} (max_parameters)")

    def check_step(self, client: int, nodes: int, items: str) -> None:
        """Refuse a step on so few training items that its gradient could reveal them.

        Args:
            client: index of the node's client.
            nodes: number of items in the step.
            items: what the task calls them.

        Raises:
            FedGraphError: the policy requires more.
        """
        if nodes < self.min_nodes:
            raise Refusal(
                f"client {client} has {nodes} training {items} in a step, but its node's policy requires at least"
                f" {self.min_nodes} (min_nodes): lower num_clients, or change min_nodes in the policy"
            )

    def check_dropout(self, rate: float, nodes: int) -> None:
        """Refuse a rate of dropout that leaves a hidden unit so few nodes that its gradient reveals some of them.

        A unit keeps q V of V nodes on average, q = 1 - rate. From the seed's own parameters, one update of an MLP with 64 (1024)
        units showed the features of 20 (30) of 30 training nodes at q V = 1.5, of 24 (97) of 100 at 2, and of 0 (5) at 15.

        Args:
            rate: ``model.dropout``.
            nodes: V, nodes in a step.

        Raises:
            FedGraphError: names the rate, and the largest accepted one.
        """
        kept, least = (1 - rate) * nodes, KEPT * self.min_nodes
        most = max(int(100 * (1 - least / max(nodes, 1))) / 100, 0.0)
        what = f"model.dropout={rate:g} in a step on {nodes} nodes, of which a hidden unit keeps {kept:.3g}"
        accepted = f"at most {most:g} here, so that it keeps {least} ({KEPT} * min_nodes)"
        _require(not rate or kept >= least, f"{what}: gradients of so few reveal their features", accepted)

    def check_model(self, model: nn.Module, other: nn.Module) -> None:
        """Refuse a model by its size.

        Args:
            model: the run's model, on the meta device.
            other: the same model for a graph with other numbers of features and classes; sizes that differ are not widths.

        Raises:
            FedGraphError: it has too many parameters, or a layer is too wide.
        """
        self.check_size(sum(p.numel() for p in model.parameters()), "a model")
        shapes = {name: tensor.shape for name, tensor in other.named_parameters()}
        widths = [
            size
            for name, tensor in model.named_parameters()
            for size, varied in zip(tensor.shape, shapes.get(name, tensor.shape), strict=False)
            if size == varied
        ]
        widest = max(widths, default=0)
        _require(widest <= self.max_width, f"a layer that is {widest} wide", f"at most {self.max_width} (max_width)")

    def check_client(self, client: Any) -> None:
        """Refuse a run by its client, once built: its keys with their defaults, and the tensors that would leave it.

        Raises:
            FedGraphError: names the key, its value and what the policy accepts.
        """
        self.check_size(sum(p.numel() for p in client.model.parameters()), "a model")
        compared, most = client.task.compared, self.max_parameters
        what = f"task={client.cfg.task.name} with {compared} numbers in pairs that are compared at once"
        fewer = f"at most {most} (max_parameters): lower task.negatives, task.candidates or task.batch_size"
        _require(compared <= most, what, fewer)
        for key, wanted in self.required_config.items():
            value = _value(client, key)
            meets = value == wanted or value in (wanted if isinstance(wanted, list) else [wanted])
            _require(meets, f"{key}={sanitize(value, 60)}", f"{key}={sanitize(wanted, 60)} (required_config)")
        self._check_sharing(client.cfg.strategy, client.model)

    def _check_sharing(self, rules: StrategyConfig, model: Any) -> None:
        """Refuse a run that would share more of the model than a method, listed by name, declares.

        Raises:
            FedGraphError: names a tensor.
        """
        if rules.name not in self.strategies or {"strategy.shared", "strategy.private"} & self.required_config.keys():
            return
        defaults = {"shared": [""], "private": [], **group_file("strategy", rules.name)}
        declared = model.shared(defaults["shared"], defaults["private"])
        beyond = ", ".join(sorted(model.shared(rules.shared, rules.private).keys() - declared.keys()))
        _require(
            not beyond,
            f"strategy.shared={sanitize(rules.shared, 60)} with strategy.private={sanitize(rules.private, 60)}, which also"
            f" sends {sanitize(beyond, 60)}",
            f"the declaration of strategy={rules.name}: shared={sanitize(defaults['shared'], 60)},"
            f" private={sanitize(defaults['private'], 60)}",
        )

    def most(self, phase: str, declared: int) -> int:
        """Return the most messages of a phase per round that the node accepts.

        Raises:
            FedGraphError: the policy does not list the phase.
        """
        listed = not self.phases or phase in (DESCRIBE, *self.phases)
        _require(listed, f"phase '{phase}'", f"phases {', '.join(self.phases)}")
        return min(self.messages.get(phase, declared), declared)


def counted(make: Callable[[], nn.Module]) -> int:
    """Count the parameters of a model without allocating memory; torch's random state does not change."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return sum(p.numel() for p in make().parameters())


@cache
def simulated() -> Policy:
    """Return the policy of simulated clients: no limits."""
    policy = Policy(
        tasks=list(TASKS),
        samplers=list(SAMPLERS),
        max_share=1.0,
        min_nodes=0,
        check_start=False,
        modules=[ANYTHING],
        reveal=[ANYTHING],
    )
    policy.trusting = True  # type: ignore[misc]
    policy.rounds = policy.max_parameters = policy.max_width = LARGEST
    policy.max_lr = sys.float_info.max
    return policy


def read_policy(path: str) -> Policy:
    """Read the policy in a file.

    Raises:
        FedGraphError: the file is missing or not YAML, or has an unknown key or an invalid value.
    """
    try:
        text = Path(path).expanduser().read_text()
        body = OmegaConf.to_container(OmegaConf.create(text or "{}"))
    except OSError as error:
        raise FedGraphError(f"policy={path} of --node-config cannot be read: {error.strerror}") from error
    except Exception as error:  # the YAML parser raises many types
        raise FedGraphError(f"policy={path} of --node-config is not valid YAML{line_of(error)}") from error
    if "${" in text:
        raise FedGraphError(
            f"policy={path} of --node-config contains '${{', which is not resolved: write the value itself"
        )
    if not isinstance(body, dict):
        raise FedGraphError(f"policy={path} of --node-config must hold keys and values, such as min_nodes: 10")
    for key in GONE.keys() & body.keys():
        log(WARNING, "policy=%s: %s=%s has no effect any more: %s", path, key, body.pop(key), GONE[key])
    check_names(body, [f.name for f in dataclasses.fields(Policy)], "policy key", path)
    policy: Policy = typed(Policy, {str(key): value for key, value in body.items()}, f"policy={path}")
    policy.path = str(Path(path).expanduser().absolute())  # type: ignore[misc]
    return policy


def _require(holds: object, what: str, accepted: str) -> None:
    """Refuse a part of a request unless it holds: names the part, and what the policy accepts."""
    if not holds:
        raise Refusal(f"this node's policy refuses {what}: it accepts {accepted}")


def _value(client: Any, key: str) -> Any:
    """Return a key of the run as the client reads it, including the method's own keys and their defaults."""
    node: Any = client.cfg
    *groups, name = key.split(".")
    for group in groups:
        node = getattr(node, group, None)
    value = getattr(node, name, None)
    if value is None:
        value = (getattr(node, "params", None) or {}).get(name)
    if value is None and groups == ["strategy"]:
        sections = [client.params, *(values(node, one) for one in chosen(vars(node)))]
        value = next((getattr(section, name) for section in sections if hasattr(section, name)), None)
    if value is None:
        raise Refusal(
            f"required_config of this node's policy has {key}, which this run does not define: correct the key"
        )
    return value


class Ledger:
    """Record of the requests to a node in a run, so that none is repeated: rounds and a phase's exchanges only increase.

    An agreed run has one record, whatever runs of Flower it takes: each later one repeats the set-up and resumes unless it ended.

    Attributes:
        round: the latest round with a request.
        asked: for each phase in it, the number of messages, and the index of the latest exchange.
        resumed: whether the run was resumed after a round.
        suspect: whether the server claimed a resumption that this node does not know, or started with other parameters than the
            seed gives: until training starts with those of the seed, no others are accepted, in whatever round.
        loaded: whether a request without training brought parameters.
        begun: whether scores, or more than descriptions after the set-up, were requested.
        trained: whether training has begun, in any round, with parameters that the node did not refuse.
        ended: whether a request of a run with exact secure sums failed at this node, which tells the server one bit of its data:
            none follows in this run.
        config: digest of the run's configuration; empty before the first message.
        writes: how often the record was written, which orders its copies.
        attempts: Flower's runs of an agreed run, in order.
        reached: the latest round of earlier attempts, with more than descriptions.
        received: digests of requests around sums of an agreed run, by round, phase and exchange, as far as one may be repeated.
    """

    def __init__(self, record: Mapping[str, Any] | None = None):
        stored = {"round": 0, "config": "", "writes": 0, **dict.fromkeys(FLAGS, False), **(record or {})}
        self.round, self.config, self.writes = int(stored["round"]), str(stored["config"]), int(stored["writes"])
        self.resumed, self.suspect, self.loaded, self.trained, self.begun, self.ended = (bool(stored[f]) for f in FLAGS)
        self.attempts, self.reached = list(map(str, stored.get("attempts", []))), int(stored.get("reached", 0))
        places = zip(stored.get("places", []), stored.get("digests", []), strict=True)
        self.received = {str(place): str(digest) for place, digest in places}
        columns = (stored.get(key, []) for key in ("phases", "counts", "exchanges"))
        self.asked = {str(phase): (int(n), int(last)) for phase, n, last in zip(*columns, strict=True)}

    def record(self) -> dict[str, Any]:
        """Return the record as numbers and lists, for the constructor."""
        counts, exchanges = ([entry[i] for entry in self.asked.values()] for i in (0, 1))
        asked = {
            "round": self.round,
            "phases": list(self.asked),
            "counts": counts,
            "exchanges": exchanges,
            "writes": self.writes,
        }
        flags = {flag: getattr(self, flag) for flag in FLAGS}
        received = {"places": list(self.received), "digests": list(self.received.values())}
        return {**asked, "config": self.config, **flags, "attempts": self.attempts, "reached": self.reached, **received}

    def enter(self, attempt: str) -> None:
        """Let another of Flower's runs continue an agreed run.

        Raises:
            FedGraphError: a later one does already.
        """
        if attempt in self.attempts[:-1]:
            raise Refusal("another run of Flower goes on with this run of the agreement: this one is over")
        if attempt in self.attempts:
            return
        reached = max(self.reached, self.round, 1) if self.begun else self.reached
        again = {key: value for key, value in self.record().items() if key in ("writes", "ended", "places", "digests")}
        vars(self).update(vars(Ledger(again | {"attempts": [*self.attempts, attempt], "reached": reached})))

    def pin(self, items: Sequence[tuple[str, str]]) -> None:
        """Store the run's configuration of the first message, and refuse messages with another one.

        Raises:
            FedGraphError: the configuration changed.
        """
        digest = hashlib.sha256(json.dumps(items).encode()).hexdigest()
        if self.config not in ("", digest):
            raise Refusal(
                "the server changed the configuration of this run: a node accepts only that of the first message; start a new run"
            )
        self.config = digest

    def add(self, phase: str, server_round: int, exchange: int, most: int) -> None:
        """Record a request before the reply to it.

        Args:
            phase: name of the phase; `DESCRIBE`, whose reply never changes, may come in any order.
            server_round: round of the message.
            exchange: number of earlier exchanges of the phase in the round, according to the server.
            most: most messages of the phase per round.

        Raises:
            FedGraphError: the request is a repetition, or exceeds the limit.
        """
        request = f"the server requests phase '{phase}' of round {server_round}"
        if server_round < self.round:
            raise Refusal(f"{request} after round {self.round}: requests of earlier rounds are refused")
        uses = phase == EVALUATE or (server_round > 0 and phase != DESCRIBE)
        if self.reached and uses and not self.resumed:
            raise Refusal(
                f"{request}, and this run of the agreement reached round {self.reached} here: resume it from its checkpoint, or"
                " start the next run"
            )
        if server_round > self.round:
            self.round, self.asked = server_round, {}
        count, last = self.asked.get(phase, (0, -1))
        if count >= most:
            raise Refusal(f"{request} {count + 1} times, expected at most {most}")
        if exchange <= last and phase != DESCRIBE:
            raise Refusal(f"{request} again (exchange {exchange} after {last}): the node has replied to it already")
        self.asked[phase] = (count + 1, max(exchange, last))
        self.begun = self.begun or uses

    def resume(self, server_round: int, known: bool, trained: bool = False) -> None:
        """Continue after a round.

        Args:
            server_round: the last round that was done.
            known: whether the node's own state folder has its checkpoint.
            trained: whether the client had trained before it; else its first training begins as in a new run.

        Raises:
            FedGraphError: there was a request for an earlier round, so the run was not resumed.
        """
        if self.begun:
            raise Refusal(f"the server resumes after round {server_round} in a run that is in round {self.round}")
        self.round, self.asked = server_round, {}
        self.resumed, self.suspect, self.trained = known, not known, trained
        self.received.pop(RESUMED, None)
        self.received[RESUMED] = str(server_round)  # requests of this attempt come after it

    def skipped(self, server_round: int) -> bool:
        """Return whether a resumed run left out a round before this one that trained: its state is another one then."""
        places = list(self.received)
        known = places[: places.index(RESUMED)] if RESUMED in places else []
        rounds = [int(place.split()[0]) for place in known if place.split()[1] != EVALUATE]
        return any(int(self.received.get(RESUMED, 0)) < number < server_round for number in rounds)

"""A method's client parts, combined by the configuration.

objective         F_i plus the terms of ``strategy.objective``, with SAM's gradient if it contains `sam`
variates          corrections of that gradient, by ``strategy.variates``
personalization   a personal model, by ``strategy.personalization``, trained on F_i and its own term only
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from fedgraph_flwr.clients.client_part import ClientPart, Step
from fedgraph_flwr.config import RunConfig, StrategyConfig
from fedgraph_flwr.config.parts import halves, parts_of
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import Model
from fedgraph_flwr.wire.messages import Arrays


class ChosenParts:
    """The parts that a configuration chooses, without those whose keys make them do nothing.

    Attributes:
        all: in the order in which they change a gradient.
        personal: the one that has a model of the client's own; None: there is none.
        sends: groups that leave with the trained model.
        zero: groups that are zero before any training.
    """

    def __init__(self, rules: StrategyConfig):
        declared = parts_of(rules)
        made: dict[str, ClientPart] = halves(rules, "client", ClientPart)
        for name, part in made.items():
            if type(part).term is not ClientPart.term and not part.capabilities.adds:
                what = f"'{name}': {type(part).__name__} defines `term`, which is added to the loss only with"
                raise FedGraphError(f"{what} adds = True: set it in the class", "own-code")
        active = {name: part for name, part in made.items() if not part.idle}
        self.all = tuple(active.values())
        self.personal = active.get(rules.personalization)
        self.sends = {group for part in declared.values() for group in part.uplink}
        self.zero = {g for part in declared.values() for g, taken in part.downlink.items() if taken.zero}
        self.keeps_hidden = any(part.capabilities.reads_hidden for part in self.all)
        self.own_requests = tuple(name for part in self.all for name in part.own_requests)
        self.predicts_with = tuple(name for part in self.all for name in part.predicts_with)
        self.tunes = any(part.capabilities.tunes for part in self.all)

    def check(self, cfg: RunConfig, model: Model) -> None:
        """Refuse a configuration that one of them cannot serve.

        Raises:
            FedGraphError: with the reason.
        """
        for part in self.all:
            part.check(cfg, model)

    def receive(self, client: Any, groups: dict[str, Arrays]) -> None:
        """Let each take its groups."""
        for part in self.all:
            part.receive(client, groups)

    @contextmanager
    def training(self, client: Any) -> Iterator[None]:
        """Local training within this context is that of all parts."""
        for part in reversed(self.all):
            part.begin(client)
        with only(client, *self.all):
            yield
        for part in self.all:
            part.end(client)
        client.term_state, client.hidden = {}, None

    def send(self, client: Any) -> dict[str, Arrays]:
        """Groups of all."""
        return {name: group for part in self.all for name, group in part.send(client).items()}

    def parameters(self, client: Any) -> Mapping[str, Tensor]:
        """Values by which the client is scored."""
        return self.personal.parameters(client) if self.personal else {}


def steps_plainly(client: Any) -> bool:
    """Whether no active part changes the gradient of the objective."""
    return all(type(part).gradient is ClientPart.gradient for part in client.active)


def step_of(client: Any) -> Step:
    """Return the client's `gradient` as the active parts change it."""
    step: Step = client.gradient
    for part in client.active:
        step = partial(part.gradient, client, step)
    return step


@contextmanager
def only(client: Any, *parts: ClientPart) -> Iterator[None]:
    """Train with only these parts."""
    previous, client.active = client.active, parts
    try:
        yield
    finally:
        client.active = previous

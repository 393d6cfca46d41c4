"""What a method's YAML declares of it under ``declares:``, for tests and tables to ask; a run does not read it.

declares:
  limits:                                     # the values at which it is another method, number for number
    - {words: [strategy.mu=0], equals: [strategy=fedavg]}
  variants: [[strategy.exchange=two_phase]]   # words that bring phases, arrays or code that short runs by default lack
  sized: [up/identity, down/structure]        # groups of arrays with a row for each node or edge of a client
  features: [up/features]                     # groups of arrays that hold features of nodes
"""

from dataclasses import dataclass, field

from omegaconf import MISSING, OmegaConf

from fedgraph_flwr.config.composition import group_file
from fedgraph_flwr.config.schema import at_least


@dataclass
class Limit:
    """Words under which a method is what other words give.

    Attributes:
        words: of the method.
        equals: of the other; what is not said is the same.
        also: words that both need.
        within: largest relative difference, 0: bit for bit.
    """

    words: list[str] = MISSING
    equals: list[str] = MISSING
    also: list[str] = field(default_factory=list)
    within: float = 0.0

    def __post_init__(self) -> None:
        at_least(self.within, 0, "declares.limits.within")


@dataclass
class Declaration:
    """What a method says of itself."""

    limits: list[Limit] = field(default_factory=list)
    variants: list[list[str]] = field(default_factory=list)
    sized: list[str] = field(default_factory=list)
    features: list[str] = field(default_factory=list)


def declaration(name: str) -> Declaration:
    """The declaration of the strategy ``name``.

    Raises:
        FedGraphError: no such strategy.
    """
    body = group_file("strategy", name).get("declares", {})
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Declaration), body))  # type: ignore[return-value]

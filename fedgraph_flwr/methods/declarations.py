"""Facts that a method's YAML declares under ``declares:``, for tests, tables and the documentation, and for a run's words.

declares:
  purpose: personalised                       # the group of the documentation that lists it, one of `PURPOSES`
  limits:                                     # key values at which it equals another method
    - {overrides: [strategy.mu=0], equals: [strategy=fedavg]}
  variants: [[strategy.exchange=two_phase]]   # overrides that add phases, arrays or code to short default runs
  sized: [up/identity, down/structure]        # groups of arrays with one row per node or edge of a client
  features: [up/features]                     # groups of arrays that contain node features
  edges: false                                # with task=nodes, it reads no edge
  small: [strategy.per_round=1]               # overrides under which it trains for some rounds on a few dozen nodes
  constants: {temperature: 0.5}               # keys of earlier versions, and the only value that stored configurations may have
"""

from dataclasses import dataclass, field
from typing import Any

from fedgraph_flwr.config.composition import group_file, group_names
from fedgraph_flwr.config.schema import RunConfig, at_least, choice, typed

PURPOSES = {
    "reference": "Reference points",
    "general": "General methods with one shared model",
    "personalised": "General methods with one model per client",
    "graph": "Graph-specific methods",
    "cut_edges": "Methods for edges and nodes that cross clients",
    "typed": "Methods for heterogeneous graphs",
    "trees": "Gradient-boosted trees",
    "": "Other methods",
}
"""Purpose of a method, as its YAML declares it → title of its group; empty: the YAML declares none."""


@dataclass
class Limit:
    """Configuration at which a method equals another one.

    Attributes:
        overrides: overrides of the method.
        equals: overrides of the other method; all other keys are equal.
        also: overrides that both need.
        within: largest relative difference, 0: bit for bit.
    """

    overrides: list[str]
    equals: list[str]
    also: list[str] = field(default_factory=list)
    within: float = 0.0

    def __post_init__(self) -> None:
        at_least(self.within, 0, "declares.limits.within")


@dataclass
class Declaration:
    """Facts that a method declares."""

    purpose: str = choice("", tuple(PURPOSES))
    limits: list[Limit] = field(default_factory=list)
    variants: list[list[str]] = field(default_factory=list)
    sized: list[str] = field(default_factory=list)
    features: list[str] = field(default_factory=list)
    small: list[str] = field(default_factory=list)
    edges: bool = True
    constants: dict[str, Any] = field(default_factory=dict)


def declaration(name: str) -> Declaration:
    """Read the declaration of the strategy ``name``; one without YAML declares nothing.

    Raises:
        FedGraphError: a declared value is invalid.
    """
    body = group_file("strategy", name) if name in group_names("strategy") else {}
    return typed(Declaration, body.get("declares", {}), "declares")


def model_name(cfg: RunConfig) -> str:
    """Return the name of what a run trains, for its readers: trees or the network. A strategy without YAML trains a network."""
    return "trees" if declaration(cfg.strategy.name).purpose == "trees" else cfg.model.name

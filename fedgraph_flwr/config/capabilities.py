"""What a class can be combined with: one frozen value per class, ``kind.capabilities``.

A class says what differs from its base by class attributes of these names, such as ``stacks = ()``. Other modules ask the value,
and `fedgraph_flwr.clients.combinations` combines those of a run.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from typing import Any, ClassVar

from fedgraph_flwr.config.schema import TASKS

NODES = frozenset({"nodes"})


@dataclass(frozen=True)
class ModelCapabilities:
    """Of a model.

    Attributes:
        heterogeneous: whether it needs a heterogeneous graph.
        reads_edges: whether it reads edge features; its class then takes (F, C, D).
        stacks: whether it can run on many clients' graphs at once under `torch.func.vmap`: rows of zeros below a graph's
            nodes, without edges, must not change the results of those nodes.
        dense_features: whether the model needs features as a dense tensor even if they are mostly zero.
        prepares_features: whether its prepared features are not those of the graph, so that batches read the prepared ones.
        pools: whether it predicts graphs by itself where its inputs name the graph of each node; others get a readout.
        whole_numbers: whether its tensors of whole numbers are parameters, as of a forest; else they are counters, which never
            travel.
        row_wise: whether it maps the features of each node by ``layers`` and a ``head``, with ReLU between them, and reads
            nothing else. A subclass must declare it again.
        drops: whether ``model.dropout`` acts in it.
    """

    heterogeneous: bool = False
    reads_edges: bool = False
    stacks: bool = False
    dense_features: bool = False
    prepares_features: bool = False
    pools: bool = False
    whole_numbers: bool = False
    row_wise: bool = False
    drops: bool = True


@dataclass(frozen=True)
class TaskCapabilities:
    """Of a task.

    Attributes:
        classes: whether every item has one class, so that class weights, confusion matrices and majorities exist.
        targets: whether items have several targets each, numbers or yes and no, instead of a class.
        samples: whether its steps can be batches with sampled neighbours.
        passes: whether ``train.local_epochs`` counts passes over its own batches of items.
        typed: whether its graphs may have typed nodes and edges.
        reads_edges: whether it reads edge features, whatever the network does.
        far_ends: whether it predicts nodes of a graph to which far ends of cut edges are added, as nodes without labels.
    """

    classes: bool = False
    targets: bool = False
    samples: bool = False
    passes: bool = False
    typed: bool = False
    reads_edges: bool = False
    far_ends: bool = False


@dataclass(frozen=True)
class PartCapabilities:
    """Of a part of a method at the client.

    Attributes:
        serves: tasks that it can train.
        adds: whether it adds a term to the objective.
        reads_hidden: whether its term reads `Client.hidden`.
        stacks: whether clients with it can be stacked; then its term reads only `term_state`.
        samples: whether it trains with batches with sampled neighbours.
        of_nodes: whether it reads training nodes by their rows, so that it serves only tasks on nodes.
        tunes: whether predictions train on the client's training nodes first.
    """

    serves: frozenset[str] = frozenset(TASKS)
    adds: bool = False
    reads_hidden: bool = False
    stacks: bool = True
    samples: bool = True
    of_nodes: bool = False
    tunes: bool = False


@dataclass(frozen=True)
class ClientCapabilities:
    """Of a method's client.

    Attributes:
        serves: tasks that the method can train; a subclass serves node classification unless it declares more.
        samples: whether local training may use batches with sampled neighbours. ``blocks``: nothing is prepared of the whole
            graph; ``whole``: the method reads the model's prepared inputs of it; empty, the default of a subclass: no.
        unsampled: why it cannot, as the end of "the strategy, which …".
        stacks: attributes that the objective reads, other than the model, its inputs, `batch` and `real`. Each is a tensor
            or a nested dict of tensors, of the same shape at all clients. None: clients cannot be stacked. A class that
            overrides `loss`, `logits` or `task_loss` must declare it again.
        units: values of ``privacy.unit`` other than ``client`` that it supports. A subclass must declare them again.
        calls_base: those of `train`, `descend` and `gradient` that it overrides, and whose base it calls. A subclass that
            overrides one must declare it again.
        makes_graphs: whether it runs the model on graphs that it makes, whose edges have no features.
    """

    serves: frozenset[str] = NODES
    samples: str = ""
    unsampled: str = "needs a client's whole graph in every step"
    stacks: tuple[str, ...] | None = None
    units: frozenset[str] = frozenset()
    calls_base: frozenset[str] = frozenset()
    makes_graphs: bool = False


class Declared:
    """What a class, and an object that differs from it, can be combined with; asked of the class and of the object alike."""

    def __init__(self, value: Any, computed: tuple[str, ...]):
        self.value, self.computed = value, computed

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self.value
        changes = {name: getattr(instance, name) for name in self.computed}
        changes |= {name: vars(instance)[name] for name in vars(self.value).keys() & vars(instance).keys()}
        return replace(self.value, **changes) if changes else self.value


class Capable:
    """Base of the classes that runs combine.

    ``class Model(Capable, values=ModelCapabilities)`` starts a family; a subclass inherits what it does not declare.

    Attributes:
        again: names that a subclass does not inherit.
        depends_on: names of a family's values, and the members which a subclass must not override without declaring them again.
    """

    capabilities: ClassVar[Any]
    again: ClassVar[tuple[str, ...]] = ()
    depends_on: ClassVar[dict[str, tuple[str, ...]]] = {}

    def __init_subclass__(cls, values: type | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        family: Any = values or type(cls.capabilities)
        entries = {field.name: _value(cls, field.name) for field in fields(family)}
        said = {name: value for name, value in entries.items() if value is not _UNSAID}
        computed = tuple(name for name, value in said.items() if isinstance(value, property))
        fixed = {name: value for name, value in said.items() if name not in computed}
        cls.capabilities = Declared(family(**fixed), computed)


_UNSAID: Any = object()


def _value(kind: type[Capable], name: str) -> Any:
    """Return what a class declares of a name, or inherits."""
    ending = {name, *kind.depends_on.get(name, ())}
    classes = _own(kind) if name in kind.again else iter(kind.__mro__)
    decisive = next((parent for parent in classes if vars(parent).keys() & ending), None)
    return vars(decisive).get(name, _UNSAID) if decisive else _UNSAID


def _own(kind: type[Capable]) -> Iterator[type]:
    """Yield a class and the mixins before its first base that has capabilities itself."""
    return takewhile(lambda parent: parent is kind or not issubclass(parent, Capable), kind.__mro__)

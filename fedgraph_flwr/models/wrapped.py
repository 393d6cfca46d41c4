"""Any ``torch.nn.Module`` with ``forward(x, edge_index[, edge_attr | edge_weight])`` or ``forward(data)`` as a `Model`.

    model=torch_geometric.nn.models:GraphSAGE model.hidden=64 model.jk=cat

A function that returns such a module, ``def net(in_channels: int, out_channels: int)``, may stand for the class.

The module is created by the parameters of its ``__init__``, or of the function: sizes under the names of `SIZES`, others from
keys of ``model.``. One without parameters for the sizes must fit the graph. Edge features are read if ``forward`` accepts
``edge_attr``, or a single one, which must not be negative, if it accepts ``edge_weight``. The head is the last layer with
parameters, or the one that ``model.head`` names. What enters it is the hidden feature of a node.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from fedgraph_flwr.config import ModelConfig
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError, first_line
from fedgraph_flwr.models.base import Model
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import Device

SIZES = {
    "features": (
        *("in_channels", "num_features", "in_features", "in_dim", "input_dim", "input_size", "in_c", "in_feats"),
        *("nfeat", "n_feat", "n_features", "num_feats", "num_node_features"),
    ),
    "outputs": (
        *("out_channels", "num_classes", "out_features", "out_dim", "output_dim", "output_size", "out_c", "out_feats"),
        *("nclass", "n_class", "n_classes", "num_labels"),
    ),
    "hidden": (
        *(
            "hidden_channels",
            "hidden",
            "hidden_dim",
            "hidden_features",
            "hidden_size",
            "hid_dim",
            "hidden_c",
            "h_feats",
        ),
        *("nhid", "n_hidden", "num_hidden"),
    ),
    "layers": ("num_layers", "layers", "n_layers", "nlayers"),
    "dropout": ("dropout", "drop", "dropout_rate"),
    "edges": ("edge_dim", "num_edge_features"),
}
"""Names of parameters of a module's ``__init__`` that are sizes of the graph, or keys of every model."""

GRAPHS = ("data", "graph", "g", "d")
"""Names of the only required argument of a ``forward`` that reads PyG ``Data``."""

CONTAINERS = nn.ModuleList, nn.ModuleDict, nn.Sequential

CHECKED = bool, int, float, str
"""Types by which a YAML value can be checked."""


@dataclass
class EdgeInputs(Inputs):
    """Inputs with the graph's edges.

    Attributes:
        edge_index: edges [2, E], row 0 source, row 1 target.
        edge: ``edge_attr`` [E, D] or ``edge_weight`` [E] under its name; empty without edge features.
    """

    edge_index: Tensor
    edge: dict[str, Tensor]

    def to(self, device: Device, dtype: torch.dtype | None = None) -> "EdgeInputs":
        """As `Inputs.to`."""
        moved = super().to(device, dtype)
        moved.edge = {name: value.to(device, dtype) for name, value in self.edge.items()}
        return moved


class Wrapped(Model):
    """A module of another class.

    Args:
        num_features: F.
        num_classes: C.
        num_edge_features: D.
        hidden: hidden width.
        layers: number of layers.
        dropout: dropout rate.
        head: name of the module whose input are hidden features; empty: the last one with parameters.
        own: further arguments of the module.
    """

    kind: Callable[..., nn.Module]
    module: type[nn.Module]
    sizes: Mapping[str, str]
    defaults: Mapping[str, Any]
    takes_graph: bool
    dense_features = True

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        num_edge_features: int = 0,
        *,
        hidden: int,
        layers: int,
        dropout: float,
        head: str = "",
        **keywords: Any,
    ):
        super().__init__()
        self.outputs = num_classes
        settings: dict[str, Any] = {
            "features": num_features,
            "outputs": num_classes,
            "hidden": hidden,
            "layers": layers,
        }
        settings |= {"dropout": dropout, "edges": num_edge_features or None}
        if given := keywords.keys() & set(self.sizes.values()):
            raise FedGraphError(
                f"model.{min(given)} follows from the graph, model.hidden, model.layers or model.dropout: leave it out"
            )
        self.arguments = {
            name: settings[size] for size, name in self.sizes.items() if settings[size] is not None
        } | keywords
        try:
            self.net = self.kind(**self.arguments)
        except (TypeError, ValueError, AssertionError, KeyError) as error:
            raise FedGraphError(
                f"{self.kind.__name__} cannot be created with {self.arguments}: {first_line(error)}; set them by model.NAME="
            ) from error
        if not isinstance(self.net, self.module):
            what = f"{self.kind.__name__} returned a {type(self.net).__name__}"
            raise FedGraphError(f"{what}, but its annotation promises a {self.module.__name__}: change one of them")
        self.head = head or last_layer(self.net)
        if self.head not in dict(self.net.named_modules()):
            children = ", ".join(name for name, _ in self.net.named_children())
            raise FedGraphError(
                f"model.head={self.head} is no module of {self.kind.__name__}: expected one of {children}"
            )
        self.head_prefixes = (f"net.{self.head}.",)

    def prepare(self, graph: Graph, device: Device = "cpu", dtype: torch.dtype = torch.float32) -> EdgeInputs:
        """Prepare features, edges and, if the module reads them, edge features.

        Raises:
            FedGraphError: the module reads one weight of an edge, and the graph has several features or negative ones.
        """
        base, name, width = super().prepare(graph, device, dtype), edge_argument(self.module), graph.num_edge_features
        attr = graph.edge_attr
        if width and name == "edge_weight" and (width > 1 or attr.min() < 0):
            raise FedGraphError(
                f"{self.kind.__name__} reads one weight of each edge, which must not be negative, and the graph has {width}"
                f" features of edges, the smallest {float(attr.min()):.3g}: use a model that reads edge_attr"
            )
        edge = {}
        if width and name:
            edge[name] = (attr if name == "edge_attr" else attr[:, 0]).to(device, dtype)
        return EdgeInputs(base.x, base.adj, edge_index=graph.edge_index.to(device), edge=edge)

    def forward(self, inputs: EdgeInputs) -> Tensor:
        """Compute logits [N, C], or of items, in one pass, where `Model.forward` would need two."""
        readout: Any = getattr(self, "readout", None)  # of `readout.attach`
        return self._logits(inputs) if readout is None else readout(self._logits(inputs), inputs)

    def _logits(self, inputs: EdgeInputs) -> Tensor:
        graph: tuple[Any, ...] = (inputs.x, inputs.edge_index)
        if self.takes_graph:
            from torch_geometric.data import Data

            graph = (Data(*graph, **inputs.edge),)
        try:
            outputs = self.net(*graph, **({} if self.takes_graph else inputs.edge))
        except RuntimeError as error:
            if self.sizes.keys() >= {"features", "outputs"}:
                raise
            raise FedGraphError(
                f"{self.kind.__name__} has no parameters for the graph's sizes and fails on one with {inputs.x.shape[1]} features"
                f" ({first_line(error)}): add in_channels and out_channels to its parameters"
            ) from error
        wanted = [inputs.x.shape[0], self.outputs]
        if list(outputs.shape) != wanted:
            got = list(outputs.shape)
            raise FedGraphError(f"{self.kind.__name__} returned {got}, expected {wanted}: outputs of each node")
        return outputs

    def encode(self, inputs: EdgeInputs) -> Tensor:
        """Compute what enters the head, [N, H]."""
        seen: list[Tensor] = []

        def see(h: Tensor) -> Tensor:
            seen.append(h)
            return h

        self._pass(inputs, see)
        return seen[0]

    def classify(self, h: Tensor, inputs: EdgeInputs) -> Tensor:
        """Compute logits [N, C] from what enters the head, by a pass in which it is replaced."""
        return self._pass(inputs, lambda _: h)

    def _pass(self, inputs: EdgeInputs, change: Any) -> Tensor:
        """Compute logits, with a function applied to the first argument of the head.

        Raises:
            FedGraphError: the head is not called once with features of nodes first.
        """
        calls: list[tuple[Any, ...]] = []

        def before(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
            calls.append(arguments)
            usable = len(calls) == 1 and arguments and isinstance(arguments[0], Tensor)
            return (change(arguments[0]), *arguments[1:]) if usable else None

        with self.net.get_submodule(self.head).register_forward_pre_hook(before):
            logits = self._logits(inputs)
        if len(calls) != 1 or not calls[0] or not isinstance(calls[0][0], Tensor):
            raise FedGraphError(
                f"{self.kind.__name__}.{self.head} is not called once with hidden features: set model.head= to the module that is"
            )
        return logits

    def plain(self) -> Plain:
        """Export the module itself.

        Raises:
            FedGraphError: edge features are not its third argument, where an exported folder passes them.
        """
        if self.takes_graph:
            raise FedGraphError(
                f"{self.kind.__name__} cannot be exported: its forward reads a graph, expected forward(x, edge_index)"
            )
        third = list(inspect.signature(self.module.forward).parameters)[3:4]
        reads = bool(self.sizes.get("edges") and self.arguments.get(self.sizes["edges"]))
        if reads and third != ["edge_attr"]:
            raise FedGraphError(
                f"{self.kind.__name__} cannot be exported with edge features: make edge_attr the third argument of its forward"
            )
        weights = {name: value.clone() for name, value in self.net.state_dict().items()}
        return Plain(f"{self.kind.__module__}:{self.kind.__qualname__}", self.arguments, weights, reads_edges=reads)


def replaced_defaults(kind: Any, cfg: ModelConfig) -> str:
    """Return a note on defaults of a module's ``__init__`` that the run's keys replace; empty if there are none."""
    written = getattr(kind, "defaults", {})
    other = {size: value for size, value in written.items() if value != getattr(cfg, size)}
    if not other:
        return ""
    keys = ", ".join(f"model.{size}={getattr(cfg, size)}" for size in other)
    return f"model={cfg.name} is built with {keys}, instead of its own defaults {', '.join(map(str, other.values()))}"


@functools.cache
def wrapper(kind: Any) -> type[Wrapped]:
    """Return the class of `Wrapped` models for a module's class, or for a function that returns a module.

    Its ``__init__`` has the module's, or the function's, own keywords.

    Raises:
        FedGraphError: the module cannot be used on a graph.
    """
    module = _made_by(kind)
    forward = list(inspect.signature(module.forward).parameters.values())[1:]
    required = [
        p.name for p in forward if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    takes_graph = len(required) == 1 and required[0] in GRAPHS
    if not takes_graph and (len(required) != 2 or required[1] != "edge_index"):
        raise FedGraphError(
            f"{kind.__module__}:{kind.__name__} cannot be a model: expected forward(x, edge_index) with an optional edge_attr or"
            f" edge_weight, or forward(data), got forward({', '.join(p.name for p in forward)})"
        )
    made = list(inspect.signature(kind.__init__ if kind is module else kind).parameters.values())
    accepted = {parameter.name: parameter for parameter in (made[1:] if kind is module else made)}
    sizes = {size: name for size, names in SIZES.items() for name in names if name in accepted}
    required = [
        p.name for p in accepted.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len({"features", "outputs"} - sizes.keys()) == 1 or ("features" not in sizes and required):
        missing = next(size for size in ("features", "outputs") if size not in sizes)
        raise FedGraphError(
            f"{kind.__module__}:{kind.__name__} cannot be a model: it has no parameter {SIZES[missing][0]}, a graph's size;"
            f" add it, or pass a function that has both: def net(in_channels: int, out_channels: int) -> {module.__name__}"
        )
    defaults = {size: accepted[name].default for size, name in sizes.items() if hasattr(ModelConfig, size)}
    rest = [
        p.replace(kind=p.KEYWORD_ONLY, annotation=p.annotation if p.annotation in CHECKED else Any)
        for p in accepted.values()
        if p.name not in (*sizes.values(), "head") and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    if takes_any and edge_argument(module) == "edge_attr":
        sizes.setdefault("edges", "edge_dim")  # PyG's models pass it on to their convolutions
    base = list(inspect.signature(Wrapped.__init__).parameters.values())[:-1]

    def __init__(self: Wrapped, *arguments: Any, **keywords: Any) -> None:
        Wrapped.__init__(self, *arguments, **keywords)

    __init__.__signature__ = inspect.Signature([*base, *rest])  # type: ignore[attr-defined]
    called = kind if kind is module else staticmethod(kind)
    contents = {"__init__": __init__, "kind": called, "module": module, "sizes": sizes, "takes_any": takes_any}
    contents["takes_graph"] = takes_graph
    contents |= {"defaults": {size: value for size, value in defaults.items() if value is not inspect.Parameter.empty}}
    contents |= {"reads_edges": bool(edge_argument(module)), "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (Wrapped,), contents)


def _made_by(kind: Any) -> type[nn.Module]:
    """Return the class of a function's modules, by its annotation or by a trial; of a class, the class.

    Raises:
        FedGraphError: the annotation is no class of torch modules, or one without a ``forward``.
    """
    if isinstance(kind, type):
        return kind
    try:
        annotated = get_type_hints(kind).get("return")
    except NameError as error:
        annotated = str(error)
    if annotated is None:  # a trial, with the smallest sizes
        trial = {"features": 1, "outputs": 2, "hidden": 8, "layers": 2, "dropout": 0.5}
        names = inspect.signature(kind).parameters
        given = {name: value for size, value in trial.items() for name in SIZES[size] if name in names}
        with torch.random.fork_rng(devices=[]), contextlib.suppress(TypeError, ValueError, AssertionError, KeyError):
            annotated = type(kind(**given))
    if isinstance(annotated, type) and issubclass(annotated, nn.Module) and annotated.forward is not nn.Module.forward:
        return annotated
    what = f"{kind.__module__}:{kind.__name__} does not tell which torch.nn.Module it returns"
    fix = f"annotate it with your own class, def {kind.__name__}(in_channels: int, out_channels: int) -> Net"
    raise FedGraphError(f"{what}: {fix}")


def edge_argument(kind: type[nn.Module]) -> str:
    """Return ``edge_attr`` or ``edge_weight`` if the module's ``forward`` reads it, else an empty string."""
    accepted = inspect.signature(kind.forward).parameters
    usable = (name for name in ("edge_attr", "edge_weight") if name in accepted)
    return next((name for name in usable if getattr(kind, f"supports_{name}", True)), "")  # as PyG's models say


def last_layer(net: nn.Module) -> str:
    """Return the name of the last layer with parameters: a child of the module, or of a list of layers in it.

    Raises:
        FedGraphError: it has no parameters.
    """
    names = [name for name, _ in net.named_parameters()]
    if not names:
        raise FedGraphError(f"{type(net).__name__} has no parameters to train")
    path, part = [], net
    for word in names[-1].split(".")[:-1]:
        path.append(word)
        part = part.get_submodule(word)
        if not isinstance(part, CONTAINERS):
            break
    if not path:
        raise FedGraphError(f"{type(net).__name__} has parameters of its own and no last layer: set model.head=")
    return ".".join(path)

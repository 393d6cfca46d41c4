"""GNN modules and layers; no federation in them."""

import copy
import functools
import inspect
import json
from collections.abc import Iterable, Sequence
from dataclasses import field, make_dataclass
from typing import Annotated, Any, Literal, Unpack, get_args, get_origin

import torch

from fedgraph_flwr.config import ANY, ModelConfig, RunConfig, typed
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import FedGraphError, first_line, unknown
from fedgraph_flwr.models.base import Model
from fedgraph_flwr.models.stack import Stack
from fedgraph_flwr.numerics.inputs import Inputs

__all__ = ["MODELS", "Inputs", "Model", "Stack", "build", "check_prefixes", "keywords", "network", "probe"]

COMMON = ("hidden", "layers", "dropout")
"""What every network takes by keyword."""

MODELS = {
    "acm": "fedgraph_flwr.models.acm:ACMGCN",
    "decoupled": "fedgraph_flwr.models.decoupled:DecoupledGCN",
    "gat": "fedgraph_flwr.models.gat:GAT",
    "gatv2": "fedgraph_flwr.models.edge_networks:GATv2",
    "gine": "fedgraph_flwr.models.edge_networks:GINE",
    "pna": "fedgraph_flwr.models.edge_networks:PNA",
    "transformer": "fedgraph_flwr.models.edge_networks:GraphTransformer",
    "mlp": "fedgraph_flwr.models.mlp:MLP",
    "sage": "fedgraph_flwr.models.sage:GraphSAGE",
    "fedhero": "fedgraph_flwr.models.fedhero:FedHERO",
    "fedstruct": "fedgraph_flwr.models.fedstruct:FedStruct",
    "fedlit": "fedgraph_flwr.models.fedlit:FedLIT",
    "fedstar": "fedgraph_flwr.models.fedstar:FedStar",
    "gcn": "fedgraph_flwr.models.gcn:GCN",
    "projected_gcn": "fedgraph_flwr.models.projected_gcn:ProjectedGCN",
    "fedomd": "fedgraph_flwr.models.fedomd:OrthoGCN",
    "fused_sage": "fedgraph_flwr.models.feddep:FusedSAGE",
    "rgcn": "fedgraph_flwr.models.rgcn:RGCN",
    "simple_hgn": "fedgraph_flwr.models.simple_hgn:SimpleHGN",
    "fedspa": "fedgraph_flwr.models.fedspa:FedSPANet",
}


def build(cfg: ModelConfig, num_features: Any, num_classes: int, num_edge_features: int = 0) -> Model:
    """The network that ``cfg`` names, one of `MODELS` or ``module:Class``, freshly initialised from torch's global generator.

    Its class takes (F, C) and, by keyword, what `keywords` gives; F is a list for typed graphs (``HeteroGraph.num_features``).
    A class with ``reads_edges`` takes the number of edge features as a third argument; others ignore edge features.

    Raises:
        FedGraphError: no such model, one for another kind of graph, or a wrong key.
    """
    kind = network(cfg)
    if isinstance(num_features, list) != kind.heterogeneous:
        kinds = ("one node type", "typed nodes and edges")
        raise FedGraphError(
            f"model={cfg.name} is for graphs with {kinds[kind.heterogeneous]}, this one has {kinds[not kind.heterogeneous]}"
        )
    sizes = (num_features, num_classes, num_edge_features) if kind.reads_edges else (num_features, num_classes)
    model: Model = kind(*sizes, **keywords(cfg))
    return model


def keywords(cfg: ModelConfig) -> dict[str, Any]:
    """``hidden``, ``layers``, ``dropout`` and ``cfg.params``, of the types that the network's ``__init__`` says.

    Raises:
        FedGraphError: no such model, a key it does not know, or a value of another type.
    """
    own = _own_keywords(network(cfg), cfg.name, json.dumps(cfg.params))
    return {key: getattr(cfg, key) for key in COMMON} | copy.deepcopy(own)


@functools.lru_cache(maxsize=64)
def _own_keywords(kind: Any, name: str, params: str) -> dict[str, Any]:
    """What a network's class is given beside `COMMON`; ``params`` in JSON. Every client of a process asks for the same."""
    values = json.loads(params)
    accepted = _accepted(kind)
    if missing := [key for key in COMMON if key not in accepted]:
        raise FedGraphError(f"model={name} must accept {', '.join(missing)} as keyword arguments")
    for key in values:
        if key not in accepted:
            raise unknown(f"model {name}: key", key, accepted)
    schema = make_dataclass("Keywords", [(key, *_checkable(accepted[key], value)) for key, value in values.items()])
    return vars(typed(schema, values, f"model={name}"))


def _accepted(kind: type) -> dict[str, Any]:
    """Keywords that a network's class takes, and their types."""
    return {name: parameter.annotation for name, parameter in _keywords(kind.__mro__).items()}


def _keywords(classes: Sequence[type]) -> dict[str, inspect.Parameter]:
    """Keywords of the first ``__init__`` among classes in the order of a class's bases.

    For ``**common`` the next class's keywords come first; ``**common: Unpack[Common]`` takes only those that `Common` names.
    """
    first = next((index for index, kind in enumerate(classes) if "__init__" in vars(kind)), len(classes))
    if first == len(classes) or classes[first] is torch.nn.Module:
        return {}
    parameters = inspect.signature(vars(classes[first])["__init__"], eval_str=True).parameters.values()
    own = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    if not (rest := [p.annotation for p in parameters if p.kind is p.VAR_KEYWORD]):
        return own
    inherited = _keywords(classes[first + 1 :])
    if get_origin(rest[0]) is Unpack:
        named = get_args(rest[0])[0].__annotations__
        inherited = {name: parameter for name, parameter in inherited.items() if name in named}
    return inherited | own


def own_keys(cfg: ModelConfig) -> set[str]:
    """The keys of this network that not every network has."""
    return _accepted(network(cfg)).keys() - set(COMMON)


def own_schema(cfg: ModelConfig) -> type:
    """A dataclass with this network's own keys, their types, ranges and the defaults of its ``__init__``."""
    parameters = _keywords(network(cfg).__mro__)
    fields = []
    for key in sorted(own_keys(cfg)):
        default = parameters[key].default
        kind, made = _checkable(parameters[key].annotation, default)
        made.default_factory = functools.partial(_default, default)
        fields.append((key, kind, made))
    return make_dataclass("Keywords", fields)


def own_defaults(name: str) -> dict[str, Any]:
    """The keys of one of `MODELS` with their defaults: those of every network, then its own; nothing of a user's class."""
    if name not in MODELS:
        return {}
    parameters = _keywords(network(ModelConfig(name)).__mro__).values()
    own = {p.name: _default(p.default) for p in parameters if p.default is not p.empty}
    return {key: getattr(ModelConfig(), key) for key in COMMON} | own


def _default(value: Any) -> Any:
    """A parameter's default as YAML has it; None where there is none."""
    return None if value is inspect.Parameter.empty else list(value) if isinstance(value, tuple) else value


def probe(cfg: ModelConfig) -> Model:
    """The network for a graph of the smallest sizes: it fails as on any graph, where no graph is needed to know that.

    torch's generator stays as it is.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            return build(cfg, [0, 0] if network(cfg).heterogeneous else 1, 2)
        except (MemoryError, RuntimeError) as error:
            raise FedGraphError(
                f"model={cfg.name} cannot be created with this configuration ({first_line(error)})"
            ) from error


def check_prefixes(prefixes: Iterable[str], key: str, cfg: RunConfig, model: Model) -> None:
    """Refuse prefixes of which one stands for no parameter: what it should select would silently not be.

    Args:
        prefixes: of names of parameters, or the word ``head``.
        key: that holds them.
        cfg: the run's configuration.
        model: its network.

    Raises:
        FedGraphError: naming the prefix and what the names begin with.
    """
    for prefix in prefixes:
        if not model.names(prefix):
            starts = sorted({f"{name.partition('.')[0]}." for name in model.state_dict()})
            raise FedGraphError(
                f"{key}: '{prefix}' matches no parameter of model={cfg.model.name}, whose names start with {', '.join(starts)}"
            )


def network(cfg: ModelConfig) -> Any:
    """The class of the network that ``cfg`` names.

    Raises:
        FedGraphError: no such model, or what is no network.
    """
    if ":" not in cfg.name and cfg.name not in MODELS:
        raise unknown("model", cfg.name, [*MODELS, "module:Class"])
    found = locate(MODELS.get(cfg.name, cfg.name))
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise FedGraphError(f"model={cfg.name} is not a subclass of fedgraph_flwr.models.Model")
    return found


def _checkable(annotation: Any, value: Any) -> tuple[Any, Any]:
    """A keyword's type as OmegaConf knows it, and a field with what it accepts.

    ``Annotated[int, Range(1)]`` has a range, ``Literal["a", "b"]`` choices. OmegaConf has lists for sequences; of a word or a
    sequence, the type is that which ``value`` looks like.
    """
    held = ANY
    if get_origin(annotation) is Annotated:
        annotation, held = get_args(annotation)
    if get_origin(annotation) is Literal:
        return str, field(metadata={"choices": get_args(annotation), "own": False})
    return _known(annotation, value), field(metadata={"range": held})


def _known(annotation: Any, value: Any) -> Any:
    sequences = [a for a in (annotation, *get_args(annotation)) if get_origin(a) is Sequence]
    if sequences and (annotation in sequences or isinstance(value, list | tuple)):
        return list[get_args(sequences[0])[0]]  # type: ignore[misc]
    return str if sequences else annotation

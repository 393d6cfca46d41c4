"""GNN modules and layers, independent of federation."""

import copy
import functools
import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, make_dataclass
from typing import Annotated, Any, Literal, Unpack, get_args, get_origin

import torch

from fedgraph_flwr.config import ANY, ModelConfig, RunConfig, typed
from fedgraph_flwr.config.lookup import locate, maker
from fedgraph_flwr.errors import FedGraphError, first_line, unknown
from fedgraph_flwr.models.base import Model
from fedgraph_flwr.models.stack import Stack
from fedgraph_flwr.models.wrapped import wrapper
from fedgraph_flwr.numerics.inputs import Inputs

__all__ = ["MODELS", "Inputs", "Model", "Stack", "build", "check_prefixes", "keywords", "network", "probe"]

COMMON = ("hidden", "layers", "dropout")
"""Keywords that every model accepts."""

MODELS = {
    "acm": "fedgraph_flwr.models.acm:ACMGCN",
    "decoupled": "fedgraph_flwr.models.decoupled:DecoupledGCN",
    "embedding": "fedgraph_flwr.models.embedding:Embedding",
    "gat": "fedgraph_flwr.models.gat:GAT",
    "gatv2": "fedgraph_flwr.models.edge_networks:GATv2",
    "gin": "fedgraph_flwr.models.gin:GIN",
    "gine": "fedgraph_flwr.models.edge_networks:GINE",
    "pna": "fedgraph_flwr.models.edge_networks:PNA",
    "transformer": "fedgraph_flwr.models.edge_networks:GraphTransformer",
    "mlp": "fedgraph_flwr.models.mlp:MLP",
    "sign": "fedgraph_flwr.models.sign:SIGN",
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
    """Build the model that ``cfg`` names, one of `MODELS` or ``module:Class``, initialised from torch's global generator.

    Its class takes (F, C) and, by keyword, the result of `keywords`; F is a list for heterogeneous graphs
    (``HeteroGraph.num_features``). A class with ``reads_edges`` takes the number of edge features as a third argument; others
    ignore edge features.

    Raises:
        FedGraphError: no such model, one for another kind of graph, or a wrong key.
    """
    kind = network(cfg)
    if isinstance(num_features, list) != kind.capabilities.heterogeneous:
        kinds = ("one node type", "typed nodes and edges")
        needed, actual = kinds[kind.capabilities.heterogeneous], kinds[not kind.capabilities.heterogeneous]
        raise FedGraphError(f"model={cfg.name} needs a graph with {needed}, not {actual}: set another model or dataset")
    sizes = (
        (num_features, num_classes, num_edge_features) if kind.capabilities.reads_edges else (num_features, num_classes)
    )
    return kind(*sizes, **keywords(cfg))


def keywords(cfg: ModelConfig) -> dict[str, Any]:
    """Return ``hidden``, ``layers``, ``dropout`` and ``cfg.params``, typed as in the ``__init__`` of the model's class.

    Raises:
        FedGraphError: no such model, a key it does not know, or a value of another type.
    """
    values = _own_keywords(network(cfg), cfg.name, json.dumps(cfg.params))
    return {key: getattr(cfg, key) for key in COMMON} | copy.deepcopy(values)


@functools.lru_cache(maxsize=64)
def _own_keywords(kind: Any, name: str, params: str) -> dict[str, Any]:
    """Return a model's keywords besides `COMMON`, cached for the clients of a process; ``params`` is JSON."""
    values = json.loads(params)
    accepted = _accepted(kind)
    if missing := [key for key in COMMON if key not in accepted]:
        raise FedGraphError(f"model={name} must accept {', '.join(missing)} as keyword arguments")
    for key in values:
        if key not in accepted and not getattr(kind, "takes_any", False):
            raise unknown(f"model {name}: key", key, accepted)
    schema = make_dataclass(
        "Keywords", [(key, *_checkable(accepted.get(key, Any), value)) for key, value in values.items()]
    )
    return vars(typed(schema, values, f"model={name}"))


def _accepted(kind: type) -> dict[str, Any]:
    """Return the keywords that a model's class accepts, and their types."""
    return {name: parameter.annotation for name, parameter in _keywords(kind.__mro__).items()}


def _keywords(classes: Sequence[type]) -> dict[str, inspect.Parameter]:
    """Return the keywords of the first ``__init__`` among classes in method resolution order.

    ``**common`` adds the next class's keywords in front; ``**common: Unpack[Common]`` adds only those that `Common` names.
    """
    first = next((index for index, kind in enumerate(classes) if "__init__" in vars(kind)), len(classes))
    if first == len(classes) or classes[first] is torch.nn.Module:
        return {}
    parameters = inspect.signature(vars(classes[first])["__init__"], eval_str=True).parameters.values()
    declarations = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    if not (rest := [p.annotation for p in parameters if p.kind is p.VAR_KEYWORD]):
        return declarations
    inherited = _keywords(classes[first + 1 :])
    if get_origin(rest[0]) is Unpack:
        named = get_args(rest[0])[0].__annotations__
        inherited = {name: parameter for name, parameter in inherited.items() if name in named}
    return inherited | declarations


def own_keys(cfg: ModelConfig) -> set[str]:
    """Return the keys of this model that not every model has."""
    return _accepted(network(cfg)).keys() - set(COMMON)


def own_schema(cfg: ModelConfig) -> type:
    """Build a dataclass of this model's own keys, with the types, ranges and defaults of its ``__init__``."""
    parameters = _keywords(network(cfg).__mro__)
    fields = []
    for key in sorted(own_keys(cfg)):
        default = parameters[key].default
        kind, made = _checkable(parameters[key].annotation, default)
        made.default_factory = functools.partial(_default, default)
        fields.append((key, kind, made))
    return make_dataclass("Keywords", fields)


def own_defaults(name: str) -> dict[str, Any]:
    """Return the keys of one of `MODELS` with their defaults, common keys first; empty for a user's class."""
    if name not in MODELS:
        return {}
    parameters = _keywords(network(ModelConfig(name)).__mro__).values()
    defaults = {p.name: _default(p.default) for p in parameters if p.default is not p.empty}
    return {key: getattr(ModelConfig(), key) for key in COMMON} | defaults


def _default(value: Any) -> Any:
    """Return a parameter's default as YAML writes it; None without default."""
    return None if value is inspect.Parameter.empty else list(value) if isinstance(value, tuple) else value


def probe(cfg: ModelConfig, make: Callable[..., Model] = build) -> Model:
    """Build the model for the smallest graph sizes, to find errors that do not depend on the graph.

    torch's random state does not change.

    Args:
        cfg: the model's configuration.
        make: builds it, as `build` does.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            return make(cfg, [0, 0] if network(cfg).capabilities.heterogeneous else 1, 2)
        except (MemoryError, RuntimeError) as error:
            raise FedGraphError(
                f"model={cfg.name} cannot be created with this configuration ({first_line(error)})"
            ) from error


def check_prefixes(prefixes: Iterable[str], key: str, cfg: RunConfig, model: Model) -> None:
    """Refuse a prefix that matches no parameter: it would silently select nothing.

    Args:
        prefixes: prefixes of parameter names, or ``head``.
        key: the key that holds them.
        cfg: the run's configuration.
        model: the run's model.

    Raises:
        FedGraphError: names the prefix and the accepted starts of names.
    """
    for prefix in prefixes:
        if not model.names(prefix):
            starts = sorted({f"{name.partition('.')[0]}." for name in model.state_dict()})
            raise FedGraphError(
                f"{key}: '{prefix}' matches no parameter of model={cfg.model.name}, whose names start with {', '.join(starts)}"
            )


def network(cfg: ModelConfig) -> Any:
    """Return the class of the model that ``cfg`` names; of other torch modules, and functions that return one, the `wrapper`.

    Raises:
        FedGraphError: no such model, or one that cannot be used on a graph.
    """
    if ":" not in cfg.name and cfg.name not in MODELS:
        raise unknown("model", cfg.name, [*MODELS, "module:Class"])
    member = locate(MODELS.get(cfg.name, cfg.name))
    if inspect.isfunction(member):
        return wrapper(maker(cfg.name, "model"))
    if not (isinstance(member, type) and issubclass(member, torch.nn.Module)):
        what = f"model={cfg.name} is not a class of torch modules, nor a function that returns one"
        raise FedGraphError(f"{what}: expected a torch.nn.Module")
    kind: Any = member
    return kind if issubclass(kind, Model) else wrapper(kind)


def _checkable(annotation: Any, value: Any) -> tuple[Any, Any]:
    """Return the type of a keyword in a schema, and a field with its accepted values.

    ``Annotated[int, Range(1)]`` has a range, ``Literal["a", "b"]`` choices. For a string or a sequence, the type follows from
    ``value``.
    """
    held = ANY
    if get_origin(annotation) is Annotated:
        annotation, held = get_args(annotation)
    if get_origin(annotation) is Literal:
        return str, field(metadata={"choices": get_args(annotation), "targets": False})
    return _known(annotation, value), field(metadata={"range": held})


def _known(annotation: Any, value: Any) -> Any:
    sequences = [a for a in (annotation, *get_args(annotation)) if get_origin(a) is Sequence]
    if sequences and (annotation in sequences or isinstance(value, list | tuple)):
        return list[get_args(sequences[0])[0]]  # type: ignore[misc]
    return str if sequences else annotation

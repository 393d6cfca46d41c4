"""Cache of a model's inputs, next to the graph's file, for processes that handle one message.

``client_0000.gcn-<key>.prepared`` contains the tensors of an `Inputs`. The key covers the model, its settings and the precision,
and the file records the content of its graph. Features that a model uses unchanged stay in the graph's file.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.data.graph import Graph, read_digest, read_tensors, write_tensors
from fedgraph_flwr.data.mapped import is_mapped
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics.inputs import Inputs
from fedgraph_flwr.numerics.sparse import Pattern, SparseMatrix

VERSION = 4
"""Version of the layout and of the prepared inputs; a change in either increases it."""

SUFFIX = ".prepared"

MAX_FILES = 32
"""Cached files per graph: a server that sends ever new settings must not fill a party's disk."""


def prepared(file: Path, cfg: RunConfig, variant: Mapping[str, Any], graph: Graph, make: Callable[[], Any]) -> Any:
    """Return the result of ``make``, cached next to the graph's file if the folder is writable.

    Args:
        file: the graph's file.
        cfg: the run's configuration, whose model, client and precision the result depends on.
        variant: everything else it depends on.
        graph: content of the file.
        make: prepares an `Inputs`; other results are not cached.
    """
    settings = {
        "model": dataclasses.asdict(cfg.model),
        "strategy": [cfg.strategy.client, cfg.strategy.params],
        "dtype": cfg.dtype,
        **variant,
    }
    cache = _Cache(file, cfg.model.name.replace(":", "."), settings)
    with contextlib.suppress(FedGraphError):  # damaged, or another version: prepare it again
        if held := cache.read():
            return _unpack(*held, graph)
    inputs = make()
    if packed := _pack(inputs, graph):
        cache.write(*packed)
    return inputs


def derived(file: Path, name: str, settings: Mapping[str, Any], make: Callable[[], Tensor]) -> Tensor:
    """Return the tensor that ``make`` computes from a graph, cached like `prepared` inputs.

    Args:
        file: the graph's file.
        name: name of the tensor.
        settings: everything else it depends on.
        make: computes it.
    """
    cache = _Cache(file, name, settings)
    with contextlib.suppress(FedGraphError):
        if held := cache.read():
            return held[0][name]
    made = make()
    cache.write({name: made}, {})
    return made


class _Cache:
    """File with what was derived from a graph's file."""

    def __init__(self, file: Path, name: str, settings: Mapping[str, Any]):
        key = hashlib.sha256(json.dumps([VERSION, settings], sort_keys=True).encode()).hexdigest()[:16]
        self.file = file
        self.path = file.with_name(f"{file.stem}.{name}-{key}{SUFFIX}")
        self.content = read_digest(file) if is_mapped(file) else hashlib.blake2b(file.read_bytes()).hexdigest()

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return its tensors and values; None if the file is missing or belongs to another graph.

        Raises:
            FedGraphError: the file is damaged.
        """
        if not self.path.is_file():
            return None
        tensors, values = read_tensors(self.path)
        return (tensors, values) if values["content"] == self.content else None

    def write(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Write the file; a read-only folder is not an error."""
        with contextlib.suppress(FedGraphError):
            write_tensors(self.path, tensors, values | {"content": self.content})
            _remove_old(self.file, self.path)


def _remove_old(file: Path, kept: Path) -> None:
    """Delete the oldest cached files of a graph beyond `MAX_FILES`, but not the new one."""
    others = [path for path in file.parent.glob(f"{file.stem}.*{SUFFIX}") if path != kept]
    with contextlib.suppress(OSError):  # another process deletes them too
        for path in sorted(others, key=lambda path: path.stat().st_mtime_ns)[: len(others) - MAX_FILES + 1]:
            path.unlink()


def _pack(inputs: Any, graph: Graph) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Return tensors and JSON values of an `Inputs`; None if a field cannot be stored."""
    if not isinstance(inputs, Inputs):
        return None
    tensors: dict[str, Tensor] = {}
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(inputs):
        value = getattr(inputs, field.name)
        if value is None:
            fields[field.name] = ["none"]
        elif value is graph.x:
            fields[field.name] = ["features"]
        elif isinstance(value, Tensor):
            fields[field.name], tensors[field.name] = ["tensor"], value
        elif isinstance(value, SparseMatrix):
            fields[field.name] = ["matrix", *value.shape]
            tensors |= {f"{field.name}/{part}": tensor for part, tensor in value.parts().items()}
        elif isinstance(value, Pattern):
            fields[field.name] = ["pattern", value.num_nodes]
            tensors |= {f"{field.name}/row": value.row, f"{field.name}/col": value.col}
        else:
            return None
    return tensors, {"kind": f"{type(inputs).__module__}:{type(inputs).__qualname__}", "fields": fields}


def _unpack(tensors: dict[str, Tensor], values: dict[str, Any], graph: Graph) -> Inputs:
    """Restore an `Inputs`; raise `FedGraphError` if its type is not a model's input."""
    kind = str(values["kind"])
    cls = locate(kind) if kind.startswith(("fedgraph_flwr.models.", f"{Inputs.__module__}:")) else None
    if not (isinstance(cls, type) and issubclass(cls, Inputs)):
        raise FedGraphError(f"cached inputs have type {kind}, expected a subclass of Inputs in fedgraph_flwr.models")

    def field(name: str, what: str, *sizes: int) -> Any:
        if what in ("none", "features"):
            return None if what == "none" else graph.x
        if what == "tensor":
            return tensors[name]
        parts = {key.partition("/")[2]: tensor for key, tensor in tensors.items() if key.partition("/")[0] == name}
        if what == "matrix":
            return SparseMatrix.from_parts(parts, (sizes[0], sizes[1]))
        return Pattern(parts["row"], parts["col"], sizes[0])

    return cls(**{name: field(name, *layout) for name, layout in values["fields"].items()})

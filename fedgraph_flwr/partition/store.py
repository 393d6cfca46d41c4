"""Storage of client files: a folder of the user, or a cache that computes each partition once.

A folder contains ``client_0000.safetensors``... and ``partition.json`` (number of clients, sizes, key, configuration). A cached
folder is written under a temporary name and renamed when it is complete. A file lock lets many processes request it at once.
Processes that find it complete read neither the dataset nor other clients' files. In the cache, the files of very many clients
are one file, ``clients.pack``, in their order, and ``partition.json`` contains each client's description.
"""

import contextlib
import dataclasses
import difflib
import functools
import glob
import hashlib
import importlib
import inspect
import itertools
import json
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from filelock import FileLock

from fedgraph_flwr.config import DatasetConfig, RunConfig, is_own
from fedgraph_flwr.config.lookup import function
from fedgraph_flwr.data import datasets
from fedgraph_flwr.data.checks import check_file
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.data.graph import (
    FORMAT_VERSION,
    ClientGraph,
    Graph,
    Piece,
    Source,
    check_client_fields,
    read_digest,
    read_header,
)
from fedgraph_flwr.data.hetero import load_graph
from fedgraph_flwr.data.mapped import is_mapped, is_trusted, state_of, trust
from fedgraph_flwr.data.root import cache_dir
from fedgraph_flwr.data.schema import check_links, check_same, link_number
from fedgraph_flwr.data.split import grouping_seed
from fedgraph_flwr.errors import MALFORMED, FedGraphError
from fedgraph_flwr.numerics.prepared import SUFFIX
from fedgraph_flwr.partition import out_of_core

VERSION = 3
"""Version of the partition code; a change of any partition's result, or of a recipe's columns, increases it."""

MODULES = {
    "Graph": "fedgraph_flwr.partition.clients",
    "list": "fedgraph_flwr.partition.clients",
    "ClientGraph": "fedgraph_flwr.partition.clients",
    "HeteroGraph": "fedgraph_flwr.partition.hetero",
    "HeteroClientGraph": "fedgraph_flwr.partition.hetero",
}
"""Functions for a type of graph, or for a list with one graph per client.

They are ``make(graph, cfg) -> list of client graphs`` and ``pool(clients) -> client graph``.
"""

MANIFEST = "partition.json"

PACK = "clients.pack"

MANY = 256
"""Number of clients above which the cache has one file: writing and listing 100,000 files takes half an hour."""


class Manifest(NamedTuple):
    """Description of the clients of a cached folder, by index.

    Attributes:
        sizes: sizes of their files in bytes.
        starts: offsets of their files in the `PACK`.
        nodes: numbers of nodes.
        descriptions: ``num_train`` of packed clients, and the common ``num_features`` and ``num_classes``; else empty.
    """

    sizes: list[int]
    starts: list[int]
    nodes: list[int]
    descriptions: dict[str, Any]


def client_files(cfg: RunConfig) -> Path:
    """Return the folder of client files of a configuration: checked if the user names one, else computed once.

    A pooled configuration (``strategy.pooled``, Central) has one file with the whole graph.

    Raises:
        FedGraphError: the dataset, split or partition is impossible, or the user's folder is invalid.
    """
    if cfg.graph:
        given = _given(cfg)
        if not cfg.strategy.pooled:
            return given
    folder = _cached(cfg)
    if not _whole(folder):
        with FileLock(folder.with_suffix(".lock")):
            if not _whole(folder):
                _fill(folder, cfg)
    return folder


def _fill(folder: Path, cfg: RunConfig) -> None:
    """Make a partition's folder: out of core where the graph is mapped, else in memory."""
    if cfg.graph or cfg.strategy.pooled:
        clients = _make(cfg)
    else:
        graph = _source(cfg)
        if not isinstance(graph, list) and out_of_core.applies(graph, cfg):
            partial = folder.with_suffix(".partial")
            nodes = out_of_core.make_files(graph, cfg, partial)
            _write_manifest(partial, nodes, {}, cfg)
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(partial, folder)
            return
        clients = make(graph, cfg)
    write(folder, clients, cfg, packed=len(clients) > MANY)


def _given(cfg: RunConfig) -> Path:
    """Return the user's folder after checking it."""
    folder = Path(cfg.graph).expanduser()
    check(folder)
    for key, value, other in (
        ("partition.share", cfg.partition.share, ", or share columns with `fedgraph-flwr link --share`"),
        ("dataset.edge_flip", cfg.dataset.edge_flip, ""),
    ):
        if value:
            what = f"{key}={value} does not apply to graph={folder}, whose client files already exist"
            raise FedGraphError(f"{what}: pass it to `fedgraph-flwr partition`, which writes them{other}")
    return folder


def num_clients(cfg: RunConfig) -> int:
    """Return the number of client files: M, or 1 for the pooled graph."""
    return _count(client_files(cfg))


def _count(folder: Path) -> int:
    return len(_manifest_of(folder).sizes if _packed(folder) else files(folder))


def outline(cfg: RunConfig) -> Manifest | None:
    """Return what is known about all clients without reading their files; None for few clients or other types of graphs."""
    folder = client_files(cfg)
    manifest = _manifest_of(folder) if _packed(folder) else None
    return manifest if manifest and manifest.descriptions else None


def resolved(cfg: RunConfig) -> RunConfig:
    """Return the configuration with the resulting ``num_clients``, if a folder or the partition determines it.

    It names the same client files. A generated graph keeps the number of clients it was asked for; of a folder, the
    files say which dataset they are of.

    Raises:
        FedGraphError: as `prepare`, or edges are to be flipped in files that are there already.
    """
    if cfg.graph:
        folder = _given(cfg)
        name = read_header(files(folder)[0])[1].get("name") or folder.absolute().name
        cfg = dataclasses.replace(cfg, dataset=DatasetConfig(name), num_clients=_count(folder))
    if cfg.strategy.pooled or not (cfg.graph or _decides(cfg)):
        return cfg
    dataset = cfg.dataset
    if "clients" in dataset.params and dataset.params["clients"] is None:
        dataset = dataclasses.replace(dataset, params=dataset.params | {"clients": cfg.num_clients})
    cfg = dataclasses.replace(cfg, dataset=dataset)
    return dataclasses.replace(cfg, num_clients=num_clients(cfg))


def load_client(cfg: RunConfig, index: int) -> Any:
    """Load one client's graph without reading other clients' files.

    Raises:
        FedGraphError: the client does not exist, or its file cannot be read.
    """
    given = cfg.graph and not cfg.strategy.pooled
    folder = Path(cfg.graph).expanduser() if given else _cached(cfg)
    # Looks at this one file: with all of them looked at for each client, a thousand clients would take 12 s to start.
    path = _place(folder, index, whole=not given)
    if path is None:
        clients = num_clients(cfg)
        if index >= clients:
            run = f"the run has {clients} (num_clients, or 1 for a pooled graph)"
            raise FedGraphError(f"client {index} does not exist: expected 0 to {clients - 1}, as {run}")
        path = _place(folder, index, whole=False)
    return load(path or _name(folder, index))


def _place(folder: Path, index: int, whole: bool) -> Path | Piece | None:
    """Return the path of a client's file; None if it does not exist, or if it is incomplete and ``whole`` is required."""
    if _packed(folder):
        manifest = _manifest_of(folder)
        present = index < len(manifest.sizes) and (not whole or _whole(folder))
        return _piece(folder, manifest, index) if present else None
    path = _name(folder, index)
    size = _manifest_of(folder).sizes[index : index + 1] if whole else []
    return path if path.is_file() and (not whole or [path.stat().st_size] == size) else None


_LOADED: set[tuple[int, ...]] = set()
"""States of the mapped files whose structure this process checked."""


def load(path: Source) -> Any:
    """Load one client file of any type.

    Raises:
        FedGraphError: it is missing, truncated, of another version, not a client's graph, or its tensors are inconsistent.
    """
    graph = load_graph(path)
    _client_kind(path, type(graph).__name__)
    if isinstance(path, Piece) or not is_mapped(path):
        return check_file(graph, str(path))
    known = is_trusted(path)
    if not known or tuple(state_of(path)) not in _LOADED:
        check_file(graph, str(path), finite=not known)
        if not known:
            trust(path)
        _LOADED.add(tuple(state_of(path)))
    return graph


def files(folder: Path) -> list[Path | Piece]:
    """Return the client files of a folder by number."""
    if _packed(folder):
        manifest = _manifest_of(folder)
        return [_piece(folder, manifest, index) for index in range(len(manifest.sizes))]
    return [*_single(folder)]


def _single(folder: Path) -> list[Path]:
    """Return separate client files by number: names have four digits, or more from client 10,000 on."""
    return sorted(folder.glob("client_*.safetensors"), key=lambda path: (len(path.name), path.name))


def check(folder: Path) -> None:
    """Check a folder of client files by their headers.

    Raises:
        FedGraphError: there is none, a number is missing, or a file is truncated, of another version, another client's, or
            does not fit the others (kind, schema, features, classes).
    """
    paths = _single(folder)
    if not paths:
        if folder.suffix or not folder.is_dir():
            others = [path.name for path in folder.parent.glob("*") if path.is_dir() and _single(path)]
            near = difflib.get_close_matches(folder.name, others, n=1)
            kind = "is a file" if folder.is_file() else "does not exist" if not folder.exists() else "is empty"
            hint = f"; did you mean '{folder.parent / near[0]}'?" if near else ""
            raise FedGraphError(f"graph={folder} {kind}, expected a folder of client files{hint}")
        made = f"`fedgraph-flwr partition --out {folder}`, or `import --client I --out`"
        raise FedGraphError(f"graph={folder} contains no client files: create them with {made}")
    for index, path in enumerate(paths):
        if path.name != f"client_{index:04d}.safetensors":
            missing = f"client_{index:04d}.safetensors"
            raise FedGraphError(f"graph={folder} has no {missing}, but {path.name}: expected numbers from 0 on")
    first: dict[str, Any] = {}
    headers = [read_header(path) for path in paths]
    check_same((str(path), values.get("schema", {})) for path, (_, values) in zip(paths, headers, strict=True))
    check_links({index: link_number(values.get("linking", {})) for index, (_, values) in enumerate(headers)})
    for index, (path, (shapes, values)) in enumerate(zip(paths, headers, strict=True)):
        _client_kind(path, values.get("kind"))
        check_client_fields(str(values.get("kind")), values, str(path))
        fixed = link_number(values.get("linking", {})) or any(
            shapes.get(cut, (2, 0))[1] for cut in ("cut_out", "cut_in")
        )
        description = {
            "client": values["client"],
            "num_clients": values["num_clients"] if fixed else len(paths),
            "kind": values["kind"],
            "features": shapes.get("x", ())[1:],
            "classes": values.get("num_classes"),
        }
        first = first or description
        for key, value in (first | {"client": index, "num_clients": len(paths)}).items():
            if description[key] != value:
                raise FedGraphError(
                    f"{path} has {key} {description[key]}, expected {value}: use the files of one partition"
                )


def write(folder: Path, clients: Sequence[Any], cfg: RunConfig | None = None, packed: bool = False) -> None:
    """Write client files (or one file of all) and, with a configuration, ``partition.json``, and replace the folder atomically.

    Raises:
        FedGraphError: the folder cannot be written; the old content stays.
    """
    with replacing(folder) as temporary:
        sizes = _pack(temporary, clients) if packed else None
        for client in () if packed else clients:
            client.save(_name(temporary, client.client))
        if cfg is not None:
            nodes, descriptions = [client.num_nodes for client in clients], _told(clients) if packed else {}
            _write_manifest(temporary, nodes, descriptions, cfg, sizes)


def _write_manifest(
    folder: Path, nodes: list[int], descriptions: dict[str, Any], cfg: RunConfig, sizes: list[int] | None = None
) -> None:
    """Write ``partition.json``; ``sizes`` are those of packed files."""
    manifest = {
        "version": VERSION,
        "num_clients": len(nodes),
        "nodes": nodes,
        "bytes": [path.stat().st_size for path in _single(folder)] if sizes is None else sizes,
        "told": descriptions,
        "key": key(cfg),
        "config": _relevant(cfg),
    }
    write_bytes(folder / MANIFEST, json.dumps(manifest, indent=1).encode())


def _pack(folder: Path, clients: Sequence[Any]) -> list[int]:
    """Write all client files as one, and return their sizes."""
    folder.mkdir(parents=True)
    ends = [0]
    (folder / PACK).touch(0o600)
    with (folder / PACK).open("wb") as file:
        for client in clients:
            client.save(file)
            ends.append(file.tell())
        file.flush()
        os.fsync(file.fileno())
    return [end - start for start, end in itertools.pairwise(ends)]


def _told(clients: Sequence[Any]) -> dict[str, Any]:
    """Return the clients' descriptions if they have only these fields."""
    if not all(
        isinstance(client, ClientGraph) and not client.schema and not client.num_edge_features for client in clients
    ):
        return {}
    return {
        "num_train": [int(client.train_mask.sum()) for client in clients],
        "num_features": clients[0].num_features,
        "num_classes": clients[0].num_classes,
    }


def copy(folder: Path, out: Path) -> None:
    """Copy a written partition to a new folder, with one file per client."""
    out.mkdir(parents=True)
    if not _packed(folder):
        for path in filter(belongs, folder.iterdir()):
            _link_or_copy(str(path), str(out / path.name))
        return
    shutil.copy(folder / MANIFEST, out)
    for piece in files(folder):
        (out / piece.name).write_bytes(piece.read_bytes())


def _link_or_copy(source: str, target: str) -> None:
    """Copy a file; a big one shares its content on disk, which is never changed in place."""
    if is_mapped(source):
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield a path next to ``folder`` to write to; it replaces the folder at the end, unless an error occurs.

    Leftovers of killed processes of this machine are deleted.
    """
    name = f".{folder.name}.{platform.node()}."
    temporary = folder.with_name(f"{name}{os.getpid()}")
    for old in folder.absolute().parent.glob(f"{glob.escape(name)}*"):
        pid = old.name[len(name) :]
        if pid.isdecimal() and (int(pid) == os.getpid() or not psutil.pid_exists(int(pid))):
            shutil.rmtree(old, ignore_errors=True)
    try:
        yield temporary
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(temporary, folder)
    except OSError as error:
        raise FedGraphError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def belongs(path: Path) -> bool:
    """Whether a file was written by `write`, or derived from one by a client."""
    derived = path.suffix in (".safetensors", SUFFIX) and path.name.startswith("client_")
    return path.name == MANIFEST or derived


def key(cfg: RunConfig) -> str:
    """Return the key of a partition: a hash of everything that determines its files."""
    versions = {"version": VERSION, "format": FORMAT_VERSION, "datasets": datasets.CACHE_VERSION}
    text = json.dumps(_relevant(cfg) | versions | {"content": content(cfg)}, sort_keys=True, default=str)
    return f"{cfg.dataset.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _relevant(cfg: RunConfig) -> dict[str, Any]:
    if cfg.graph:
        return {"graph": str(Path(cfg.graph).expanduser().absolute()), "pooled": cfg.strategy.pooled}
    groups: dict[str, Any] = {n: vars(getattr(cfg, n)) for n in ("dataset", "split", "partition")}
    decided = _decides(cfg) and cfg.dataset.params.get("clients", 0) is not None
    groups |= {"num_clients": 0 if decided else cfg.num_clients, "seed": cfg.seed, "pooled": cfg.strategy.pooled}
    return groups | ({"private_schema": True} if cfg.strategy.private_schema else {})


def _decides(cfg: RunConfig) -> bool:
    """Return whether the partition or the datasets determine the number of clients."""
    return cfg.partition.merge == "random_merge" or datasets.is_several(cfg.dataset)


def content(cfg: RunConfig) -> list[str]:
    """Return hashes of a partition's source files whose names do not determine their content."""
    if cfg.graph:
        paths = _single(Path(cfg.graph).expanduser())
    else:
        path = datasets.own_path(cfg.dataset)
        paths = [path] if path and path.is_file() else []
    hashes = [_hash(path, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    placed = [] if cfg.graph else [(path.name, path.stat()) for path in datasets.raw_files(cfg.dataset)]
    hashes += [f"{name} {status.st_size} {status.st_mtime_ns}" for name, status in placed]
    if cfg.dataset.source and not cfg.graph:
        params, seed = json.dumps(cfg.dataset.params, sort_keys=True), grouping_seed(cfg.split, cfg.seed)
        hashes.append(datasets.digest(cfg.dataset.source, params, seed, cfg.num_clients))
    if is_own(cfg.partition.name) and not cfg.graph:
        code = inspect.getsourcefile(function(cfg.partition.name, "partition"))
        hashes.append(hashlib.sha256(Path(code).read_bytes() if code else b"").hexdigest())
    return hashes


def input_spec(cfg: RunConfig) -> dict[str, Any]:
    """Return ``classes`` and feature schema of imported graphs; empty for graphs that were not imported.

    The ``schema`` is common to all clients; it has no statistics if each client has its own.
    """
    paths = files(client_files(cfg))
    if not read_header(paths[0])[1].get("schema"):  # they are all imported, or none is
        return {}
    schemas = [read_header(path)[1]["schema"] for path in paths]
    alike = all(values["fitted"] == schemas[0]["fitted"] for values in schemas)
    return {
        "classes": schemas[0]["agreed"].get("edge_classes" if cfg.task.name == "edges" else "classes", []),
        "schema": schemas[0]["fitted" if alike else "agreed"],
        "undirected": all(values.get("undirected", False) for values in schemas),
    }


def parties(cfg: RunConfig) -> list[str]:
    """Return the names of clients: the parties in the files of the folder ``graph``, or the values of a column of clients.

    Empty: a file has none, or the partition follows no column.
    """
    if not cfg.graph:
        paths = files(client_files(cfg)) if cfg.partition.name == "planted" else []
        held = read_header(paths[0])[1].get("schema", {}).get("clients", []) if paths else []
        return held if len(held) == len(paths) else []
    paths = files(Path(cfg.graph).expanduser())
    names = [str(read_header(path)[1].get("linking", {}).get("party", "")) for path in paths]
    return names if all(names) else []


def number_in(run: Path, cfg: RunConfig, client: int) -> int | None:
    """Return a client's number in an earlier run, by its name if both runs know names; None: it took no part."""
    summary = run / "summary.json"
    before = json.loads(summary.read_bytes()).get("parties", []) if summary.is_file() else []
    names = parties(cfg) if before and not cfg.on_fleet else []
    if not names:
        return client
    return before.index(names[client]) if names[client] in before else None


def _client_kind(path: Source, kind: str | None) -> None:
    accepted = [name for name in MODULES if name.endswith("ClientGraph")]
    if kind not in accepted:
        raise FedGraphError(f"{path} contains a {kind}, expected a client's graph ({', '.join(accepted)})")


@functools.lru_cache(maxsize=4096)
def _hash(path: Path, size: int, modified: int) -> str:
    if digest := read_digest(path):
        return digest
    with path.open("rb") as file:  # written by an older version
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cached(cfg: RunConfig) -> Path:
    root = cache_dir() / "partitions"
    root.mkdir(parents=True, exist_ok=True)
    return root / key(cfg)


def _whole(folder: Path) -> bool:
    """Whether a cached folder contains all written files at full length."""
    sizes = _manifest_of(folder).sizes
    if _packed(folder):
        return (folder / PACK).stat().st_size == sum(sizes)
    return bool(sizes) and sizes == [path.stat().st_size for path in _single(folder)]


def _packed(folder: Path) -> bool:
    return (folder / PACK).is_file()


def _name(folder: Path, index: int) -> Path:
    return folder / f"client_{index:04d}.safetensors"


def _piece(folder: Path, manifest: Manifest, index: int) -> Piece:
    return Piece(folder / PACK, _name(folder, index).name, manifest.starts[index], manifest.sizes[index])


def _manifest_of(folder: Path) -> Manifest:
    """Return the stored description of a cached folder; empty without one."""
    try:
        return _manifest(folder / MANIFEST, (folder / MANIFEST).stat().st_mtime_ns)
    except (OSError, *MALFORMED):
        return Manifest([], [], [], {})


@functools.lru_cache(maxsize=8)
def _manifest(path: Path, modified: int) -> Manifest:
    manifest = json.loads(path.read_bytes())
    sizes = list(manifest["bytes"])
    return Manifest(
        sizes,
        list(itertools.accumulate(sizes, initial=0))[:-1],
        list(manifest["nodes"]),
        dict(manifest.get("told", {})),
    )


def _make(cfg: RunConfig) -> Sequence[Any]:
    if cfg.graph:
        clients: Sequence[Any] = [load(path) for path in files(Path(cfg.graph).expanduser())]
        module = _module(clients[0])
    else:
        graph = _source(cfg)
        module, clients = _module(graph), make(graph, cfg)
    return [module.pool(clients)] if cfg.strategy.pooled else clients


def _source(cfg: RunConfig) -> Any:
    """Load the graph that is partitioned; with ``partition=given``, a list of several datasets, one per client."""
    if datasets.is_several(cfg.dataset) and cfg.partition.name == "given":
        return datasets.load_each(cfg.dataset)
    return datasets.load(cfg.dataset, seed=grouping_seed(cfg.split, cfg.seed), num_clients=cfg.num_clients)


def make(graph: Any, cfg: RunConfig) -> Sequence[Any]:
    """Return the clients of a graph of any type: assigned, cut and split.

    Raises:
        FedGraphError: the partition or the split is impossible.
    """
    if cfg.partition.share and type(graph) is not Graph:
        needs = "one graph with one type of nodes, whose edges between clients have far ends"
        raise FedGraphError(f"partition.share needs {needs}: leave it out")
    clients: Sequence[Any] = _module(graph).make(graph, cfg)
    return clients


def _module(graph: Any) -> Any:
    return importlib.import_module(MODULES[type(graph).__name__])

"""Registry of datasets, and their conversion from raw files to a `Graph`.

The first load reads the raw files, through PyG's class if there is one, and downloads missing ones. It stores the graph as
``<root>/fedgraph/<name>-v1.safetensors``. Later loads need neither PyG nor the raw files. Conversion works in a temporary
folder, and a file lock serialises concurrent processes.
"""

import contextlib
import functools
import hashlib
import inspect
import io
import json
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedgraph_flwr.config import DatasetConfig
from fedgraph_flwr.config.lookup import maker
from fedgraph_flwr.data import collections, csbm, knowledge, payment_files, payments, planted, raw, typed
from fedgraph_flwr.data.checks import check_file, check_graph
from fedgraph_flwr.data.cleaning import clean
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.data.graph import Graph, read_digest
from fedgraph_flwr.data.hetero import HeteroGraph, load_graph
from fedgraph_flwr.data.mapped import is_mapped, is_trusted
from fedgraph_flwr.data.root import cache_dir, data_root, imported_names, imported_path, writable
from fedgraph_flwr.errors import FedGraphError, check_names, first_line, unknown

CACHE_VERSION = 1


Sizes = tuple[int, int, int, int]


@dataclass(frozen=True)
class Source:
    """Origin and expected sizes of a dataset.

    For a collection such as TU's, ``{name}`` in ``folder`` and ``files`` is the name of one dataset.

    Attributes:
        sizes: N, E (directed edges as stored), F and C; 0 where it varies.
        origin: source of the raw files.
        folder: their folder under the root.
        files: their names.
        kind: ``generated``, ``download`` (on first use), ``typed`` (likewise) or ``files`` (placed by hand).
        more: pattern of further files that the reader uses if they are there.
        read: reader; it receives ``folder`` if the files are placed by hand, else `root`.
        generate: of generated data: makes the graph from its keys, a seed and the number of clients.
    """

    sizes: Sizes
    origin: str
    folder: str = ""
    files: tuple[str, ...] = ()
    kind: str = "download"
    more: str = ""
    read: raw.Reader | None = None
    generate: Any = None

    @property
    def root(self) -> str:
        """First part of ``folder``, the root of PyG's class."""
        return self.folder.partition("/")[0]


_provided = functools.partial(Source, kind="files")
"""Source whose files the user provides."""


def _planetoid(name: str, sizes: Sizes) -> Source:
    endings = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    return Source(
        sizes,
        "https://github.com/kimiyoung/planetoid/raw/master/data",
        folder=f"Planetoid/{name}/raw",
        files=tuple(f"ind.{name.lower()}.{ending}" for ending in endings),
        read=raw.pyg("Planetoid", name=name),
    )


def _gnn_benchmark(cls: str, name: str, file: str, sizes: Sizes) -> Source:
    return Source(
        sizes,
        "https://github.com/shchur/gnn-benchmark/raw/master/data/npz",
        folder=f"{cls}/{name}/raw",
        files=(file,),
        read=raw.pyg(cls, name=name),
    )


def _geom_gcn(folder: str, split: str, reader: raw.Reader, sizes: Sizes) -> Source:
    return Source(
        sizes,
        "https://github.com/graphdml-uiuc-jlu/geom-gcn (new_data, splits)",
        folder=folder,
        files=(
            "out1_node_feature_label.txt",
            "out1_graph_edges.txt",
            *(f"{split}_split_0.6_0.2_{i}.npz" for i in range(10)),
        ),
        read=reader,
    )


def _wikipedia(name: str, sizes: Sizes) -> Source:
    read = raw.pyg("WikipediaNetwork", name=name, geom_gcn_preprocess=True)
    return _geom_gcn(f"WikipediaNetwork/{name}/geom_gcn/raw", name, read, sizes)


def _heterophilous(name: str, sizes: Sizes) -> Source:
    file = name.lower().replace("-", "_")
    return Source(
        sizes,
        "https://github.com/yandex-research/heterophilous-graphs/raw/main/data",
        folder=f"HeterophilousGraphDataset/{file}/raw",
        files=(f"{file}.npz",),
        read=raw.pyg("HeterophilousGraphDataset", name=name),
    )


def _entities(name: str, sizes: Sizes) -> Source:
    return Source(
        sizes,
        f"https://data.dgl.ai/dataset/{name}.tgz",
        folder=f"Entities/{name}/raw",
        files=(f"{name}_stripped.nt.gz", "completeDataset.tsv", "trainingSet.tsv", "testSet.tsv"),
        read=typed.rdf(name),
        kind="typed",
    )


def _published(name: str, sizes: Sizes) -> Source:
    """Client graphs that the FedHGN authors published."""
    return _provided(
        sizes,
        f"https://github.com/cynricfu/FedHGN (data/{name}-hetero), decoded to npz",
        folder="FedHGN",
        files=(f"{name}-hetero_centralized_1.npz",),
        read=typed.published_whole(name),
    )


def _generated(generate: Any, sizes: Sizes, origin: str = "generated from its keys, with a known best score") -> Source:
    return Source(sizes, origin, kind="generated", generate=generate)


SOURCES: dict[str, Source] = {
    "csbm": _generated(csbm.load, (0, 0, 0, 0), "generated from its keys (FedSPA, Appendix C)"),
    "demo": _generated(csbm.load, (0, 0, 64, 2), "csbm with few labels and weak features"),
    "payments": _generated(payments.load, (4000, 0, 1, 2), "generated from its keys, with planted laundering patterns"),
    "planted-regression": _generated(planted.regression, (0, 0, 4, 1)),
    "planted-multilabel": _generated(planted.multilabel, (0, 0, 5, 1)),
    "planted-triples": _generated(planted.triples, (0, 0, 1, 1)),
    "cycles": _generated(planted.cycles, (0, 0, 1, 2)),
    "planted-counts": _generated(planted.counts, (0, 0, 1, 1)),
    "cora": _planetoid("Cora", (2708, 10556, 1433, 7)),
    "citeseer": _planetoid("CiteSeer", (3327, 9104, 3703, 6)),
    "pubmed": _planetoid("PubMed", (19717, 88648, 500, 3)),
    "computers": _gnn_benchmark("Amazon", "Computers", "amazon_electronics_computers.npz", (13752, 491722, 767, 10)),
    "photo": _gnn_benchmark("Amazon", "Photo", "amazon_electronics_photo.npz", (7650, 238162, 745, 8)),
    "cs": _gnn_benchmark("Coauthor", "CS", "ms_academic_cs.npz", (18333, 163788, 6805, 15)),
    "physics": _gnn_benchmark("Coauthor", "Physics", "ms_academic_phy.npz", (34493, 495924, 8415, 5)),
    "chameleon": _wikipedia("chameleon", (2277, 36101, 2325, 5)),
    "squirrel": _wikipedia("squirrel", (5201, 217073, 2089, 5)),
    "actor": _geom_gcn("Actor/raw", "film", raw.pyg("Actor"), (7600, 30019, 932, 5)),
    "cornell": _geom_gcn("WebKB/cornell/raw", "cornell", raw.pyg("WebKB", name="Cornell"), (183, 298, 1703, 5)),
    "texas": _geom_gcn("WebKB/texas/raw", "texas", raw.pyg("WebKB", name="Texas"), (183, 325, 1703, 5)),
    "wisconsin": _geom_gcn("WebKB/wisconsin/raw", "wisconsin", raw.pyg("WebKB", name="Wisconsin"), (251, 515, 1703, 5)),
    "amazon-ratings": _heterophilous("Amazon-ratings", (24492, 186100, 300, 5)),
    "minesweeper": _heterophilous("Minesweeper", (10000, 78804, 7, 2)),
    "flickr": Source(
        (89250, 899756, 500, 7),
        "GraphSAINT's Google Drive, https://github.com/GraphSAINT/GraphSAINT",
        folder="Flickr/raw",
        files=("adj_full.npz", "feats.npy", "class_map.json", "role.json"),
        read=raw.pyg("Flickr"),
    ),
    "arxiv-year": Source(
        (169343, 1166243, 128, 5),
        f"{raw.ARXIV} (its folder raw)",
        folder="ogbn_arxiv/raw",
        files=("edge.csv.gz", "node-feat.csv.gz", "node_year.csv.gz"),
        read=raw.arxiv_year,
    ),
    "syn-cora": _provided(
        (14900, 59348, 1433, 5),
        "https://github.com/GemsLab/H2GCN (npz-datasets/syn-cora)",
        folder="syn-cora",
        files=tuple(f"h{level:.2f}-r{copy}.npz" for level in (0, 0.3, 0.5, 0.7, 1) for copy in (1, 2)),
        read=raw.syn_cora,
    ),
    "credit": _provided(
        (30000, 274754, 13, 2),
        "https://github.com/chirag-agarwall/nifty (dataset/credit)",
        folder="credit",
        files=("credit.csv", "credit_edges_rebuilt.npz"),
        read=raw.credit,
    ),
    "ieee-fraud": _provided(
        (144233, 0, 0, 2),
        "https://kaggle.com/competitions/ieee-fraud-detection/data",
        folder="ieee-fraud",
        files=("train_transaction.csv", "train_identity.csv"),
        read=raw.ieee_fraud,
    ),
    "tu": Source(
        (0, 0, 0, 0),
        "https://www.chrsmrrs.com/graphkerneldatasets",
        folder="TUDataset/{name}/raw",
        files=("{name}_A.txt", "{name}_graph_indicator.txt"),
        more="{name}_*.txt",
        read=raw.tu,
    ),
    "kg": Source(
        (0, 0, 1, 0),
        "https://github.com/villmow/datasets_knowledge_embedding",
        folder="kg/{name}/raw",
        files=knowledge.FILES,
        read=knowledge.read,
    ),
    "pyg": _provided(
        (0, 0, 0, 0),
        "the class dataset.name of torch_geometric.datasets",
        folder="pyg/{name}",
        read=collections.pyg,
    ),
    "ogb": _provided(
        (0, 0, 0, 0),
        "https://ogb.stanford.edu/docs/nodeprop",
        folder="ogb/{name}",
        read=collections.ogb,
    ),
    "aml": _provided(
        (0, 0, 1, 2),
        "https://www.kaggle.com/datasets/ealtman2019/ibm-transactions-for-anti-money-laundering-aml",
        folder="aml",
        files=("{name}_Trans.csv",),
        read=payment_files.aml,
    ),
    "amlgentex": _provided(
        (0, 0, 4, 2),
        "experiments/{name} of https://github.com/aidotse/AMLGentex after scripts/generate.py",
        folder="amlgentex/{name}",
        files=(payment_files.TX_LOG, payment_files.ACCOUNTS),
        read=payment_files.amlgentex,
    ),
    "aifb": _entities("aifb", (7262, 24405, 0, 4)),
    "mutag": _entities("mutag", (0, 0, 0, 2)),
    "bgs": _entities("bgs", (0, 0, 0, 2)),
    "aifb-published": _published("aifb", (7262, 48810, 0, 4)),
    "mutag-published": _published("mutag", (27163, 148100, 0, 2)),
}


def own_path(cfg: DatasetConfig) -> Path | None:
    """Return the file of an imported graph, by ``dataset.path`` or by name; None for a known dataset."""
    if cfg.source:
        return None
    if path := cfg.params.get("path"):
        return Path(path).expanduser()
    return imported_path(cfg.name) if source_of(cfg) is None and imported_path(cfg.name).is_file() else None


def source_of(cfg: DatasetConfig) -> Source | None:
    """Return the source of a built-in dataset, with the name of one in a collection filled in.

    Raises:
        FedGraphError: a name in a collection that is not a file's name.
    """
    if not (collection := cfg.params.get("collection")):
        return SOURCES.get(cfg.name)
    check_names([collection], SOURCES, "dataset.collection")
    if not re.fullmatch(r"[\w-][\w.-]*(\+[\w-][\w.-]*)*", cfg.name):
        raise FedGraphError(
            f"dataset.name='{cfg.name}' must be the name of a dataset of {collection}, of letters, digits, '.', '_' and '-'"
        )
    source = SOURCES[collection]
    texts = source.folder, source.more, source.origin, *source.files
    folder, more, origin, *files = (text.replace("{name}", cfg.name) for text in texts)
    return replace(source, folder=folder, more=more, origin=origin, files=tuple(files))


def is_several(cfg: DatasetConfig) -> bool:
    """Return whether a config names several datasets of a collection, such as ``MUTAG+BZR``."""
    return bool(cfg.params.get("collection")) and "+" in cfg.name


def load_each(cfg: DatasetConfig) -> list[Graph]:
    """Load the datasets of `is_several`, each with its own features and classes.

    Raises:
        FedGraphError: a name is listed twice, or as of `load`.
    """
    names = cfg.name.split("+")
    if len(set(names)) < len(names):
        raise FedGraphError(f"dataset.name={cfg.name} lists a dataset twice: each is one client, so name each once")
    graphs = [load(replace(cfg, name=name)) for name in names]
    return [graph for graph in graphs if isinstance(graph, Graph)]


def load(cfg: DatasetConfig, *, seed: int = 0, num_clients: int = 10) -> Graph | HeteroGraph:
    """Load the graph that a config names and apply the config's options.

    Args:
        cfg: built-in dataset, or the user's by ``source``. ``edge_flip`` is applied later, on each client's graph.
        seed: used by generated graphs whose ``seed`` is null.
        num_clients: likewise for their ``clients``.

    Raises:
        FedGraphError: the name is unknown, or its files are missing, unreadable or hold an invalid graph.
    """
    if is_several(cfg):
        raise FedGraphError(f"dataset.name={cfg.name} names several datasets, one per client: set partition=given")
    path = own_path(cfg)
    source = source_of(cfg)
    if cfg.source:
        graph = _made(cfg, {"seed": seed, "num_clients": num_clients})
    elif path and not path.is_file():
        raise FedGraphError(f"dataset.path={path} is no file: pass one that `fedgraph-flwr import --out FILE` wrote")
    elif path:
        known = is_mapped(path) and is_trusted(path)
        graph = _checked(check_file(load_graph(path), str(path), finite=not known), str(path))
    elif cfg.name == "file":
        raise FedGraphError("dataset=file needs dataset.path=FILE, a file written by `fedgraph-flwr import --out FILE`")
    elif source is None:
        raise unknown("dataset", cfg.name, [*SOURCES, *imported_names()])
    elif source.read is None:  # generated
        graph = source.generate(cfg, seed=seed, num_clients=num_clients)
    else:
        graph = _cached(cfg, source, source.read)
    return clean(graph, cfg)


def _made(cfg: DatasetConfig, run_values: Mapping[str, int]) -> Graph | HeteroGraph:
    """Call the user's function with the dataset's keys, and with ``seed`` and ``num_clients`` if it accepts them."""
    make = maker(cfg.source, "dataset.source")
    try:
        taken = inspect.signature(make).parameters
        graph = make(**{key: value for key, value in run_values.items() if key in taken} | cfg.params)
    except TypeError as error:
        raise FedGraphError(f"dataset.source={cfg.source} failed: {first_line(error)}") from error
    where = f"the graph of dataset.source={cfg.source}"
    if type(graph).__name__ == "Data":  # PyG's class, tested by name because its import takes seconds
        from fedgraph_flwr.data.pyg import check_data, numbered_classes

        check_data(graph, where)
        graph = Graph.from_pyg(graph, len(numbered_classes(graph.y, where)))
    if not isinstance(graph, Graph | HeteroGraph):
        raise FedGraphError(f"{where} is a {type(graph).__name__}, expected a Graph, HeteroGraph or PyG Data")
    return _checked(replace(graph, name=cfg.name), where)


@functools.lru_cache(maxsize=2)
def digest(source: str, params: str, seed: int, num_clients: int) -> str:
    """Return a hash of the graph that the user's function creates, to invalidate files derived from an older one.

    Args:
        source: the function as ``module:function``.
        params: its keys, as JSON.
        seed: as passed by `load`.
        num_clients: likewise.
    """
    cfg = DatasetConfig("own", source, params=json.loads(params))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.safetensors"
        _made(cfg, {"seed": seed, "num_clients": num_clients}).save(path)
        return read_digest(path)


def _checked(graph: Graph | HeteroGraph, where: str) -> Graph | HeteroGraph:
    of_edges = isinstance(graph, Graph) and bool((graph.edge_y >= 0).any())  # labels of edges are enough
    return check_graph(graph, where, labelled=not of_edges)


def cached_path(cfg: DatasetConfig) -> Path:
    """Return the path of the converted graph; a hash of the dataset's keys distinguishes variants."""
    suffix = f"-{hashlib.sha256(json.dumps(cfg.params, sort_keys=True).encode()).hexdigest()[:8]}" if cfg.params else ""
    return cache_dir() / f"{cfg.name}{suffix}-v{CACHE_VERSION}.safetensors"


def is_available(name: str) -> bool:
    """Return whether a dataset loads without a download: generated, already converted, or raw files present."""
    source = SOURCES[name]
    converted = any(cache_dir().glob(f"{name}-v{CACHE_VERSION}.safetensors"))
    return source.kind == "generated" or converted or all(_present(source, file) for file in source.files)


def _present(source: Source, file: str) -> bool:
    """Return whether a file exists; for a collection, whether that of any of its datasets does."""
    return any(data_root().glob(f"{source.folder}/{file}".replace("{name}", "*")))


def raw_files(cfg: DatasetConfig) -> list[Path]:
    """Return the files of a dataset that were placed by hand and exist; a user may replace them by others of the same name."""
    source = source_of(cfg)
    if source is None or source.kind != "files":
        return []
    return [path for path in (data_root() / source.folder / name for name in source.files) if path.is_file()]


def _cached(cfg: DatasetConfig, source: Source, read: raw.Reader) -> Graph | HeteroGraph:
    path = cached_path(cfg)

    def fresh() -> bool:
        return path.is_file() and all(path.stat().st_mtime_ns >= file.stat().st_mtime_ns for file in raw_files(cfg))

    if not fresh():
        with FileLock(path.with_suffix(".lock")):
            if not fresh():
                graph = replace(_convert(cfg, source, read), name=cfg.name)
                _checked(graph, f"dataset '{cfg.name}'").save(path)
    return load_graph(path)


def _convert(cfg: DatasetConfig, source: Source, read: raw.Reader) -> Graph | HeteroGraph:
    folder = data_root() / source.folder
    values = {"name": cfg.name} | cfg.params
    missing = [name for name in source.files if not (folder / name).is_file()]
    advice = f"put {', '.join(missing[:12])} into {folder}, from {source.origin}, or set FEDGRAPH_DATA to another root"
    if missing and source.kind == "files":
        raise FedGraphError(f"dataset '{cfg.name}' has missing files: {advice}")
    try:
        if source.kind == "files":
            return read(folder, values)
        return _staged(source, lambda root: read(root, values), folder, download=bool(missing))
    except FedGraphError:
        raise
    except Exception as error:  # a reader or a download can fail in any way, the user gets one error message
        reason = f"{type(error).__name__}: {first_line(error)}"
        if missing:
            raise FedGraphError(f"dataset '{cfg.name}' cannot be downloaded ({reason}): {advice}") from error
        raise FedGraphError(
            f"dataset '{cfg.name}' cannot be read from {folder} ({reason}): fetch its files again from {source.origin}"
        ) from error


def _staged(
    source: Source, read: Callable[[Path], Graph | HeteroGraph], folder: Path, download: bool
) -> Graph | HeteroGraph:
    """Run a reader in a temporary folder, then keep its complete downloads."""
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=".convert-") as stage:
        staged = Path(stage) / source.folder
        staged.mkdir(parents=True)
        if download:
            print(f"downloading {source.folder} from {source.origin}", file=sys.stderr)
        else:
            for name in _files(source, folder):
                (staged / name).symlink_to(folder / name)
        # PyG prints its steps to stderr, and has no timeout for a connection that stalls.
        with contextlib.redirect_stderr(io.StringIO()), _patience(60):
            graph = read(Path(stage) / source.root)
        if download and writable(folder):
            for name in _files(source, staged):
                write_bytes(folder / name, (staged / name).read_bytes())
    return graph


def _files(source: Source, folder: Path) -> list[str]:
    """Return the names of a source's files in a folder."""
    names = {path.name for path in folder.glob(source.more)} if source.more else set()
    return [*source.files, *sorted(names - set(source.files))]


@contextlib.contextmanager
def _patience(seconds: float) -> Iterator[None]:
    """Set a default timeout for sockets."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)

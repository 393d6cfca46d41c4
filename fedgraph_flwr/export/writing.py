"""Folder of an exported model, and loading from it.

model.py             the model with torch and PyG as only dependencies, and ``load()``
weights.safetensors  parameters in that module's layout
schema.yaml          schema of the tables (for imported tables)
preprocessing.json   columns with their statistics, and preprocess.py, which applies them with pandas and NumPy
metrics.json         scores of the run, and of each client
export.json          values needed to load it here: module, arguments, classes, schema
MODEL_CARD.md        data statistics, method, privacy spent, scores, limits
"""

import ast
import importlib
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import is_own
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.data.graph import Graph, write_bytes
from fedgraph_flwr.data.prediction_input import InputSpec, from_pyg
from fedgraph_flwr.data.schema import EDGE, NODE, Schema
from fedgraph_flwr.errors import FedGraphError, first_line, sanitize
from fedgraph_flwr.export.card import model_card, scores
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.runs.checks import client_class
from fedgraph_flwr.runs.prediction import Predictions, Predictor, names_of

MODULES = Path(__file__).parent / "plain"
NAMES = ("stack", "decoupled", "acm", "fedspa")
"""Names of the modules in `MODULES`."""

PACKAGE = __name__.partition(".")[0]
INDEX = "export.json"
WEIGHTS = "weights.safetensors"

_LOADER = '''

# --- this network -----------------------------------------------------------------------------------------------------

FOLDER = Path(__file__).parent
CLASSES = {classes}
ARGUMENTS = {arguments}


def load(folder: Path = FOLDER) -> torch.nn.Module:
    """Return the trained model, ready to predict: ``load()(x, edge_index)`` gives logits [N, C], in the order of `CLASSES`."""
    raw = (folder / "{file}").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    kinds = {{"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}}
    weights = {{}}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = (8 + size + place for place in entry["data_offsets"])
            weights[name] = torch.frombuffer(bytearray(raw[start:end]), dtype=kinds[entry["dtype"]]).reshape(entry["shape"])
    net = {net}(**ARGUMENTS).to(torch.{dtype})
    net.load_state_dict(weights)
    return net.eval()
'''


def export(predictor: Predictor, folder: Path, run: Path | None = None) -> Path:
    """Write a trained model to a folder that plain PyG loads, and return the folder.

    Args:
        predictor: the model.
        folder: new folder, or one of an earlier export.
        run: run folder with its scores; None if not available.

    Raises:
        FedGraphError: the model or method cannot be exported, or the folder has other files.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / INDEX).is_file():
        raise FedGraphError(f"--out {folder} contains other files: pass a new folder")
    plain = predictor.plain()
    meaning, columns = predictor.meaning, predictor.meaning.columns(NODE)
    if meaning.schema and (
        EDGE in meaning.schema.nodes or meaning.schema.tables.time or meaning.schema.tables.edge_label
    ):
        raise FedGraphError(
            f"{predictor.source} was trained with edge columns, which exported code does not support yet: use"
            " `fedgraph-flwr predict`"
        )
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in plain.weights.items()}
    _check(plain, weights, predictor)
    dtype = predictor.cfg.dtype
    source = _source(plain)
    write_bytes(folder / "model.py", _module(source, plain, meaning, dtype).encode())
    write_bytes(folder / WEIGHTS, save(weights))
    index = {
        "module": plain.module,
        "arguments": plain.arguments,
        "labels": plain.labels,
        "dtype": dtype,
        "classes": list(meaning.classes),
        "num_features": meaning.num_features,
        "schema": meaning.schema.to_dict() if meaning.schema else {},
        "undirected": meaning.undirected,
        "client": predictor.client,
        "round": predictor.round,
        "threshold": predictor.threshold,
    }
    if columns:
        preprocessing = {"undirected": meaning.undirected, "classes": list(meaning.classes)}
        preprocessing |= {"tables": meaning.schema.tables.to_dict() if meaning.schema else {}}
        preprocessing |= {"columns": {name: column.to_dict() for name, column in columns.items()}}
        write_bytes(folder / "preprocessing.json", json.dumps(preprocessing, indent=1).encode())
        write_bytes(folder / "preprocess.py", (MODULES / "preprocess.py").read_bytes())
    if meaning.schema:
        meaning.schema.save(folder / "schema.yaml")
    found = scores(run, predictor)
    write_bytes(folder / "metrics.json", json.dumps(found, indent=1).encode())
    write_bytes(folder / "MODEL_CARD.md", model_card(predictor, plain, found, bool(columns)).encode())
    write_bytes(
        folder / INDEX, json.dumps(index, indent=1).encode()
    )  # last: if it exists, the other files are complete
    return folder


def _module(source: str, plain: Plain, meaning: InputSpec, dtype: str) -> str:
    """Return the text of ``model.py``: a module of `plain`, and code that loads these weights."""
    text, _, rest = source.partition('"""\n\n')
    needed = ["import json", "from pathlib import Path"] + ([] if "\nimport torch\n" in source else ["import torch"])
    docstring = f"{text}\n\nWritten by `fedgraph-flwr export`; needs only torch and torch_geometric.\n"
    imports = "\n".join(needed)
    net = plain.module.partition(":")[2] or "Net"
    loader = _LOADER.format(
        classes=list(meaning.classes), arguments=plain.arguments, file=WEIGHTS, dtype=dtype, net=net
    )
    if is_own(plain.module):  # `from __future__` and a docstring stay first
        return f"{source}\n\n{imports}\nimport torch\n{loader}"
    return f'{docstring}"""\n\n{imports}\n{rest}{loader}'


def _source(plain: Plain) -> str:
    """The text of a module, ours or the user's.

    Raises:
        FedGraphError: the user's has no file, or imports this package.
    """
    if not is_own(plain.module):
        return (MODULES / f"{plain.module}.py").read_text()
    path = inspect.getsourcefile(locate(plain.module))
    text = Path(path).read_text() if path else ""
    names = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    if not text or PACKAGE in names:
        raise FedGraphError(
            f"plain() names {plain.module}, whose file {path} imports {PACKAGE}: put the class into a file that imports torch"
            " and PyG only"
        )
    return text


def _check(plain: Plain, weights: dict[str, Tensor], predictor: Predictor) -> None:
    """Check that what is written computes what the network does, on a graph drawn for it.

    Raises:
        FedGraphError: it does not, as for a network that changes its base's layers and not what it says of them.
    """
    graph = predictor.probe()
    ours, theirs = predictor.logits(graph), run_plain(plain, weights, graph, predictor.cfg.dtype)
    if not torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4):
        if client_class(predictor.cfg).predict is not GraphClient.predict:
            raise FedGraphError(
                f"strategy={predictor.cfg.strategy.name} cannot be exported: it predicts with more than its model,"
                f" whose logits differ on a test graph by up to {float((ours - theirs).abs().max()):.2g}"
            )
        raise FedGraphError(
            f"model={predictor.cfg.model.name} cannot be exported: on a test graph its description gives other logits,"
            f" by up to {float((ours - theirs).abs().max()):.2g}"
        )


def run_plain(plain: Plain, weights: dict[str, Tensor], graph: Graph, dtype: str) -> Tensor:
    """Logits [N, C] of an exported network, computed by this package's own copy of its module."""
    if is_own(plain.module):
        kind = locate(plain.module)
    elif plain.module in NAMES:
        kind = importlib.import_module(f"fedgraph_flwr.export.plain.{plain.module}").Net
    else:
        raise FedGraphError(f"{INDEX} names the module '{plain.module}', expected one of: {', '.join(NAMES)}")
    net = kind(**plain.arguments)
    net.to(getattr(torch, dtype)).load_state_dict(weights)
    net.eval()
    known = {"y": graph.y, "known": graph.train_mask} if plain.labels else {}
    with torch.no_grad():
        return net(graph.x.to(getattr(torch, dtype)), graph.edge_index, **known)


@dataclass(frozen=True)
class Exported:
    """An exported folder, loaded back; predicts as `Predictor` does.

    Attributes:
        plain: the model.
        dtype: type of its weights.
        meaning: what features and classes mean.
        client: whose it was; None: the shared one.
        round: after which it was taken.
        threshold: as `Predictor.threshold`.
    """

    name: ClassVar[str] = "exported network"
    own: ClassVar[None] = None

    plain: Plain
    dtype: str
    meaning: InputSpec
    client: int | None
    round: int
    threshold: float | None

    def predict(self, graph: Any, ids: Sequence[Any] | None = None) -> Predictions:
        """As `Predictor.predict`."""
        graph = graph if isinstance(graph, Graph) else from_pyg(graph, self.meaning)
        return Predictions(names_of(graph, ids), self.logits(graph), self.meaning.classes, self.threshold)

    def logits(self, graph: Graph) -> Tensor:
        """Logits [N, C]."""
        return run_plain(self.plain, self.plain.weights, graph, self.dtype)


def load_export(folder: Path) -> Exported:
    """Read what `export` wrote; nothing in the folder is executed.

    Raises:
        FedGraphError: it is not an exported folder.
    """
    try:
        index = json.loads((folder / INDEX).read_bytes())
        if is_own(str(index["module"])):  # whose code is not run because a folder names it
            raise FedGraphError(
                f"{folder} holds the custom model {sanitize(index['module'], 60)}: predict with its model.py (load) and"
                " preprocess.py (read), or with the run's folder"
            )
        weights = load_file(folder / WEIGHTS)
        schema = Schema.from_dict(index["schema"], str(folder)) if index["schema"] else None
        meaning = InputSpec(tuple(index["classes"]), index["num_features"], schema, index["undirected"], str(folder))
        plain = Plain(index["module"], index["arguments"], weights, index["labels"])
        return Exported(plain, index["dtype"], meaning, index["client"], index["round"], index["threshold"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise FedGraphError(f"{folder} contains no exported model ({first_line(error)})") from error

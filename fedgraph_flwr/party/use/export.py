"""Folder of an exported model, and loading from it.

model.py             the model with torch and PyG as only dependencies, and ``load()``
weights.safetensors  parameters in that module's layout
schema.yaml          schema of the tables (for imported tables)
preprocessing.json   columns with their statistics, and preprocess.py, which applies them with pandas and NumPy
metrics.json         scores of the run, and of each client
export.json          values needed to load it here: module, arguments, classes, schema
MODEL_CARD.md        data statistics, method, privacy spent, scores, limits; of a blend: its members and scores
"""

import ast
import functools
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import RunConfig, TaskConfig, compose, is_own, typed
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.data import preprocess
from fedgraph_flwr.data.far_ends import with_far_ends
from fedgraph_flwr.data.files import packaged
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.data.schema import EDGE, NODE, Schema
from fedgraph_flwr.errors import MALFORMED, FedGraphError, check_names, first_line, sanitize, unknown
from fedgraph_flwr.launch.checks import client_class
from fedgraph_flwr.methods.boosting import MAX_NODES
from fedgraph_flwr.models.forest import logits_of
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.numerics.forest import check_forest, raw_scores
from fedgraph_flwr.party.use.blend import Blended, weights_of
from fedgraph_flwr.party.use.card import blend_card, model_card, scores, write_export
from fedgraph_flwr.party.use.plain.items import READOUTS, Items
from fedgraph_flwr.party.use.predict import Predictor, TaskPredictor, Wanted, as_client, as_scored
from fedgraph_flwr.party.use.prediction_input import InputSpec
from fedgraph_flwr.party.use.trees import export_trees
from fedgraph_flwr.tasks import KINDS, Task
from fedgraph_flwr.tasks.edges import Edges
from fedgraph_flwr.tasks.graphs import OfGraphs
from fedgraph_flwr.tasks.targets import Regression
from fedgraph_flwr.tasks.trees import MAX_TREES, columns_of

MODULES = Path(__file__).parent / "plain"
NAMES = ("stack", "decoupled", "acm", "fedspa", "edge_network")
"""Names of the modules in `MODULES`."""

PACKAGE = __name__.partition(".")[0]
INDEX = "export.json"
WEIGHTS = "weights.safetensors"

BLENDED = "blend"
"""Module of an exported blend, whose folder holds its members."""

LOADER = Path(__file__).parent / "templates" / "loader.py.txt"
"""Code at the end of ``model.py``."""


def export(predictor: Predictor | Blended, folder: Path, run: Path | None = None) -> Path:
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
    if isinstance(predictor, Blended):
        return _export_blend(predictor, folder, run)
    if predictor.forest:
        return export_trees(predictor, folder, run, INDEX)
    plain = predictor.plain()
    plain = replace(plain, weights={name: tensor.detach().cpu().contiguous() for name, tensor in plain.weights.items()})
    spec, cfg = predictor.input_spec, predictor.cfg
    # Counts in windows, a recipe and many graphs in a table need this package.
    only_here = spec.tables.windows or spec.tables.recipe or spec.tables.graph
    columns = {} if only_here else spec.columns(NODE)
    stats = predictor.target_stats if predictor.task.capabilities.targets else torch.zeros(2, 0, dtype=torch.float64)
    split = as_scored(cfg, predictor.task).split
    step, seconds = split.step, split.step_seconds
    given = (spec, predictor.client, predictor.round, cfg.task, predictor.threshold, stats, step)
    made = Exported(*given, plain=plain, dtype=cfg.dtype)
    _check(made, predictor)
    files: dict[str, str | bytes] = {"model.py": _module(_source(plain), made), WEIGHTS: save(dict(plain.weights))}
    described = ("module", "arguments", "labels", "reads_edges", "readout")
    about = {key: getattr(plain, key) for key in described} | {
        "step": step,
        "target_stats": stats.tolist(),
        "dtype": cfg.dtype,
        "num_features": spec.num_features,
        "schema": spec.schema.to_dict() if spec.schema else {},
        "undirected": spec.undirected,
    }
    if columns:
        preprocessing = {"undirected": spec.undirected, "classes": list(spec.classes), "tables": spec.tables.to_dict()}
        for key, of in (("columns", columns), ("edge_columns", spec.columns(EDGE))):
            preprocessing[key] = {name: column.to_dict() for name, column in of.items()}
        preprocessing["parallel"] = predictor.predicts_edges or spec.separate
        preprocessing["step"] = seconds
        files["preprocessing.json"] = json.dumps(preprocessing, indent=1)
        files["preprocess.py"] = Path(preprocess.__file__).read_text()
    summary = scores(run, predictor)
    files["MODEL_CARD.md"] = model_card(predictor, plain, summary, bool(columns))
    return write_export(folder, predictor, files, summary, INDEX, about)


def _export_blend(blended: Blended, folder: Path, run: Path | None) -> Path:
    """Write each member of a blend to a folder of its own, and the weights to the index."""
    parts = [f"part_{place}" for place in range(len(blended.members))]
    for part, member in zip(parts, blended.members, strict=True):
        if not isinstance(member, Predictor):
            raise FedGraphError(f"{member.source} is an exported model: export the blend of runs")
        export(member, folder / part)
    about = {"module": BLENDED, "parts": parts, "weights": blended.weights.to_dict()}
    summary = scores(run, blended)
    card = blend_card(blended, parts, summary)
    files = {"model.py": (MODULES / "blended.py").read_text(), "MODEL_CARD.md": card}
    return write_export(folder, blended, dict(files), summary, INDEX, about)


def _module(source: str, made: "Exported") -> str:
    """Return the text of ``model.py``: a module, a readout of items if the task has one, and code that loads these weights."""
    plain, scale, items = made.plain, ", SCALE" if made.in_unit else "", ""
    net, constants = f"{plain.module.partition(':')[2] or 'Net'}(**ARGUMENTS)", f"{plain.arguments}"
    if plain.readout[0]:
        items = (MODULES / "items.py").read_text().partition('"""\n\n')[2]
        net, constants = f"Items({net}, *READOUT{scale})", f"{constants}\nREADOUT = {plain.readout!r}"
        constants += f"\nSCALE = {made.target_stats.tolist()}" if made.in_unit else ""
    use, gives = USES[plain.readout[0]]
    loader = Template(packaged(LOADER)).substitute(
        classes=list(made.input_spec.classes),
        arguments=constants,
        file=WEIGHTS,
        dtype=made.dtype,
        made=net,
        use=use,
        gives="numbers [N, T] or [G, T], in the unit of the data" if made.in_unit else gives,
    )
    return "\n\n".join(filter(None, [source, items, loader]))


USES = {
    "": ("load()(x, edge_index)", "logits [N, C], in the order of `CLASSES`"),
    "nodes": ("load()(x, edge_index)", "logits [N, T]"),
    "edges": ("load()(x, edge_index, edge_attr)", "logits [E, C] of all edges, in the order of `CLASSES`"),
    "pairs": ("load()(x, edge_index, edge_attr, pairs)", "scores [V] of pairs of nodes [2, V]"),
    "graphs": ("load()(x, edge_index, edge_attr, graph)", "outputs [G, W], by the graph of each node [N]"),
}
"""Call of an exported model and its result, by readout."""


def _source(plain: Plain) -> str:
    """The text of a module, ours or the user's; an import of PyG's.

    Raises:
        FedGraphError: the user's has no file, or imports this package.
    """
    if not is_own(plain.module):
        return (MODULES / f"{plain.module}.py").read_text()
    module, _, name = plain.module.partition(":")
    if module.startswith("torch_geometric."):
        return f"from {module} import {name}\n"
    path = inspect.getsourcefile(locate(plain.module))
    text = Path(path).read_text() if path else ""
    names = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    if not text or PACKAGE in names:
        what = f"plain() names {plain.module}, whose file {path} imports {PACKAGE}"
        raise FedGraphError(f"{what}: put the class into a file that imports torch and PyG only")
    return text


def _check(made: "Exported", predictor: Predictor) -> None:
    """Check that what is written computes what the network does, on a graph drawn for it.

    Raises:
        FedGraphError: it does not, as for a network that changes its base's layers and not what it says of them.
    """
    graph = predictor.probe()
    ours, theirs = predictor.outputs(graph)[0], made.outputs(graph)[0]
    if not torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4):
        what = f"model={predictor.cfg.model.name} cannot be exported: its description differs from it"
        if client_class(predictor.cfg).predict is not GraphClient.predict:
            what = f"strategy={predictor.name} cannot be exported: it predicts with more than its model"
        apart = float((ours - theirs).abs().max())
        raise FedGraphError(f"{what}; on a test graph, logits differ by up to {apart:.2g}")


def module_of(plain: Plain, dtype: str) -> torch.nn.Module:
    """Return an exported model from this package's own copy of its module, whose numbers are standardised."""
    if is_own(plain.module):
        kind = locate(plain.module)
    elif plain.module in NAMES:
        kind = importlib.import_module(f"fedgraph_flwr.party.use.plain.{plain.module}").Net
    else:
        raise unknown("module", plain.module, NAMES, INDEX, "export the run again")
    net: torch.nn.Module = kind(**plain.arguments)
    if plain.readout[0]:
        net = Items(net, *plain.readout)
    net.to(getattr(torch, dtype)).load_state_dict(plain.weights)
    return net.eval()


@dataclass(frozen=True)
class PlainInputs:
    """Inputs of an exported model; fields of items as in `numerics.inputs.Inputs`."""

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor | None
    known: dict[str, Tensor]
    item_index: Tensor | None = None
    item_attr: Tensor | None = None

    def outputs(self, net: torch.nn.Module, plain: Plain) -> Any:
        """Return the outputs of an exported model."""
        if plain.readout[0]:
            return net(self.x, self.edge_index, self.edge_attr, self.item_index, self.item_attr, **self.known)
        return net(self.x, self.edge_index, *([self.edge_attr] if plain.reads_edges else []), **self.known)


@dataclass(frozen=True)
class PlainReader:
    """What a task needs of a client to prepare the inputs of its items."""

    plain: Plain
    dtype: torch.dtype
    device: ClassVar[torch.device] = torch.device("cpu")

    def inputs_of(self, graph: Any, **variant: Any) -> PlainInputs:
        """Return the inputs of a graph."""
        known = {"y": graph.y, "known": graph.train_mask} if self.plain.labels else {}
        attr = graph.edge_attr.to(self.dtype) if graph.num_edge_features else None
        return PlainInputs(graph.x.to(self.dtype), graph.edge_index, attr, known)


@dataclass(frozen=True)
class ExportedModel(TaskPredictor):
    """An exported folder, loaded back; predicts as `Predictor` does.

    Attributes:
        input_spec: features and classes that the model expects.
        client: whose it was; None: the shared one.
        round: after which it was taken.
        prediction_task: keys of its task.
        threshold: as of `Predictor`; likewise ``target_stats``.
        step: ``split.step`` of the run; None if its data assign items to stages.
        client_graph: None; it has no graph of a party.
    """

    input_spec: InputSpec
    client: int | None
    round: int
    prediction_task: TaskConfig
    threshold: float | None
    target_stats: Tensor
    step: str | None = None
    client_graph: None = None

    @property
    def cfg(self) -> RunConfig:  # type: ignore[override]
        """The default configuration of its task."""
        task, cfg = self.prediction_task, _defaults(self.prediction_task.name)
        return as_scored(replace(cfg, task=task, split=replace(cfg.split, step=self.step)), KINDS[task.name])

    def read(self, graph: Any) -> ClientGraph:
        """Return the graph that the model reads: a client's, with the far ends of its cut edges if it knows of them."""
        client_graph = as_client(
            self.as_graph(graph), self.client, len(self.input_spec.classes) if self.predicts_edges else 0
        )
        if not isinstance(client_graph, ClientGraph):
            raise FedGraphError("exported models read graphs with one type of nodes, got a heterogeneous graph")
        self.check_width(client_graph)
        return with_far_ends(client_graph) if self.task.capabilities.far_ends and client_graph.far else client_graph

    def of_items(
        self, graph: Any, outputs: Callable[[Tensor | None], Tensor], task: Task, wanted: Wanted | None
    ) -> tuple[Tensor, Task]:
        """Return outputs and task of the graph's own items, without far ends.

        Args:
            graph: as for `outputs`.
            outputs: returns those of items by their places, or of all.
            task: of all items.
            wanted: as for `outputs`.
        """
        if self.task.capabilities.far_ends:
            task = task.first(self.as_graph(graph).y.size(0))
            return outputs(torch.arange(task.y.size(0)) if wanted is None else wanted(task)), task
        return outputs(None if wanted is None else wanted(task)), task


@dataclass(frozen=True, kw_only=True)
class Exported(ExportedModel):
    """An exported network.

    Attributes:
        plain: the model.
        dtype: type of its weights.
    """

    name: ClassVar[str] = "exported network"

    plain: Plain
    dtype: str

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Parameters by name."""
        return self.plain.weights

    @property
    def in_unit(self) -> bool:
        """Whether its outputs are standardised numbers, which ``model.py`` gives in the unit of the data."""
        return issubclass(self.task, Regression)

    def outputs(self, graph: Any, wanted: Wanted | None = None) -> tuple[Tensor, Task]:
        """As `TaskPredictor.outputs`, by the exported module."""
        client_graph = self.read(graph)
        task, net = self.task(self.cfg, client_graph), module_of(self.plain, self.dtype)
        reader: Any = PlainReader(self.plain, getattr(torch, self.dtype))

        with torch.no_grad():
            inputs = reader.inputs_of(task.graph if isinstance(task, Edges | OfGraphs) else client_graph)
            later = task.later(reader, inputs)
            compute = functools.partial(PlainInputs.outputs, net=net, plain=self.plain)
            logits = compute(inputs) if later is None else task.predictions(compute, inputs, later)
        return self.of_items(graph, lambda places: logits if places is None else logits[places], task, wanted)


@dataclass(frozen=True, kw_only=True)
class ExportedTrees(ExportedModel):
    """Exported trees.

    Attributes:
        forest: their arrays (`numerics.forest`).
        columns: F.
        num_outputs: K, raw scores.
        binary: whether the raw score is the log-odds of the second of two classes.
        neighbours: whether trees also read mean columns of neighbours.
        edge_columns: whether they also read the largest columns of a node's edges.
    """

    name: ClassVar[str] = "exported trees"

    forest: Mapping[str, np.ndarray]
    columns: int
    num_outputs: int
    binary: bool
    neighbours: bool
    edge_columns: bool

    @property
    def reads_edges(self) -> bool:
        """As `TaskPredictor.reads_edges`."""
        return self.edge_columns

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Arrays of the trees by name."""
        return {name: torch.from_numpy(array) for name, array in self.forest.items()}

    def outputs(self, graph: Any, wanted: Wanted | None = None) -> tuple[Tensor, Task]:
        """As `TaskPredictor.outputs`, by the trees."""
        client_graph = self.read(graph)
        task = self.task.of_items(self.cfg, client_graph)
        x = columns_of(task, client_graph, self.neighbours, self.edge_columns)
        if x.shape[1] != self.columns:
            what = f"reads {self.columns} columns of each item, but this graph has {x.shape[1]}"
            raise FedGraphError(f"{self.source} {what}: pass the columns of the run")

        def scored(places: Tensor | None) -> Tensor:
            rows = np.arange(x.shape[0]) if places is None else places.numpy()
            raw = raw_scores(self.forest, x.at(rows), self.num_outputs)
            return torch.from_numpy(logits_of(raw, self.binary))

        return self.of_items(graph, scored, task, wanted)


@functools.cache
def _defaults(task: str) -> RunConfig:
    return compose([f"task={task}"])


def load_export(folder: Path) -> Any:
    """Read what `export` wrote; nothing in the folder is executed.

    Raises:
        FedGraphError: it is not an exported folder.
    """
    try:
        index = json.loads((folder / INDEX).read_bytes())
        if index["module"] == BLENDED:
            return _loaded_blend(folder, index)
        if is_own(str(index["module"])):  # whose code is not run because a folder names it
            use = "predict with its model.py (load) and preprocess.py (read)"
            name = sanitize(index["module"], 60)
            raise FedGraphError(f"{folder} holds the custom model {name}: {use}, or with the run's folder")
        return _trees(folder, index) if index["module"] == "forest" else _network(folder, index)
    except (OSError, SafetensorError, *MALFORMED) as error:
        raise FedGraphError(f"{folder} contains no exported model ({first_line(error)})") from error


def _common(folder: Path, index: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `ExportedModel` that an index describes."""
    schema = Schema.from_dict(index["schema"], str(folder)) if index["schema"] else None
    spec = InputSpec(tuple(index["classes"]), index["num_features"], schema, index["undirected"], str(folder))
    task = TaskConfig(**vars(typed(TaskConfig, index.get("task", {"name": "nodes"}), f"{folder / INDEX}: task")))
    return {
        "input_spec": spec,
        "client": index["client"],
        "round": index["round"],
        "prediction_task": task,
        "threshold": index["threshold"],
        "target_stats": torch.tensor(index.get("target_stats") or [[], []], dtype=torch.float64),
        "step": index.get("step"),
    }


def _network(folder: Path, index: Mapping[str, Any]) -> Exported:
    """Return the network of a folder."""
    weights = load_file(folder / WEIGHTS)
    readout, arguments = index.get("readout", ("", {}))
    if readout:
        check_names([sanitize(readout, 40)], READOUTS, "readout", INDEX)
    given = index["module"], index["arguments"], weights, index["labels"], index.get("reads_edges", False)
    return Exported(**_common(folder, index), plain=Plain(*given, (readout, arguments)), dtype=index["dtype"])


def _trees(folder: Path, index: Mapping[str, Any]) -> ExportedTrees:
    """Return the trees of a folder.

    Raises:
        FedGraphError: an earlier release wrote it, its trees read outputs of another model, or they cannot be evaluated.
    """
    if "schema" not in index or index["inputs"] != "columns":
        why = "an earlier release wrote it" if "schema" not in index else "they also read outputs of another model"
        use = "predict with model.py (load, predict) or LightGBM (model.txt)"
        raise FedGraphError(f"{folder} holds exported trees without what tables need ({why}): {use}, or export again")
    with np.load(folder / "trees.npz", allow_pickle=False) as file:
        forest = {name: file[name] for name in file.files}
    columns, outputs = len(index["columns"]), int(index["outputs"])
    check_forest(forest, outputs, columns, outputs * MAX_TREES, MAX_NODES, f"{folder / 'trees.npz'} holds trees")
    fields = _common(folder, index) | {"forest": forest, "columns": columns, "num_outputs": outputs}
    fields |= {"neighbours": bool(index["neighbours"]), "edge_columns": bool(index.get("edge_columns"))}
    return ExportedTrees(**fields, binary=bool(index["binary"]))


def _loaded_blend(folder: Path, index: Mapping[str, Any]) -> Blended:
    """Return the blend of a folder, whose members are in folders of this one."""
    parts = [str(part) for part in index["parts"]]
    if any(Path(part).name != part for part in parts):
        raise ValueError("its parts are not folders in it")
    members = [load_export(folder / part) for part in parts]
    blend = Blended(
        members, weights_of(index["weights"], len(parts)), replace(members[0].input_spec, where=str(folder))
    )
    blend.threshold = index.get("threshold")  # that of the blend on the party's validation items
    return blend

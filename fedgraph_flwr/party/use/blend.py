"""Blend of finished runs: the sum of their logits, weighted by validation items and scored on test items.

    z = b + Σ_r w_r ln softmax(z_r),   w_r ≥ 0

w and b minimise the cross entropy of the validation items of all parties, each item alike, with a pull of strength 1 / n towards
equal weights (logistic regression). So logits are calibrated and weighted in one step. All parties have the same weights: (ours)
those of one party fit noise where it has few validation positives. A party of a fleet sees its own items only, and fits weights
of its own by the same rule. Validation items of one class give equal weights.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax
from torch import Tensor

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import MALFORMED, FedGraphError, first_line
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.launch.prepare import check_unused
from fedgraph_flwr.party.use.predict import (
    BLEND,
    TaskPredictor,
    Wanted,
    load_node,
    load_predictor,
    model_folder,
    threshold_of,
)
from fedgraph_flwr.party.use.prediction_input import InputSpec
from fedgraph_flwr.store.recorder import Recorder
from fedgraph_flwr.store.results import CONFIG
from fedgraph_flwr.tasks import Task

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Weights:
    """Weights of runs.

    Attributes:
        runs: w, the weight of each run [R].
        bias: b [C].
    """

    runs: Floats
    bias: Floats

    def to_dict(self) -> dict[str, list[float]]:
        """Return them as a file holds them."""
        return {"runs": self.runs.tolist(), "bias": self.bias.tolist()}

    def apply(self, logits: Sequence[NDArray]) -> Floats:
        """Return blended logits [V, C] of those of each run."""
        return self.bias + np.tensordot(self.runs, _logs(logits), axes=1)


def _of_first(name: str) -> Any:
    """Return the property of a blend that is its first member's."""
    return property(lambda blend: getattr(blend.members[0], name))


@dataclass
class Blended(TaskPredictor):
    """A blend as a model: the weighted sum of its members' logits, of stored graphs and of new tables.

    Attributes:
        members: the models, by a party's own predictor or exported.
        weights: those of the blend.
        input_spec: as of the first member.
    """

    name: ClassVar[str] = "blend"
    unscored: ClassVar[str] = ""

    members: Sequence[TaskPredictor]
    weights: Weights
    input_spec: InputSpec

    client, round, client_graph, of_party, feature_names, built_in = map(
        _of_first, ("client", "round", "client_graph", "of_party", "feature_names", "built_in")
    )

    @property
    def cfg(self) -> RunConfig:  # type: ignore[override]
        """Configuration of the first member, named as a blend."""
        cfg = self.members[0].cfg
        return replace(cfg, strategy=replace(cfg.strategy, name=self.name))

    @property
    def target_stats(self) -> Tensor:  # type: ignore[override]
        """None, since a blend is of classes."""
        return torch.zeros(2, 0, dtype=torch.float64)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Parameters of all members, and the weights."""
        parameters = {
            f"{place}.{name}": tensor
            for place, member in enumerate(self.members)
            for name, tensor in getattr(member, "tensors", {}).items()
        }
        return parameters | {key: torch.from_numpy(np.array(getattr(self.weights, key))) for key in ("runs", "bias")}

    @cached_property
    def threshold(self) -> float | None:  # type: ignore[override]
        """As of `Predictor`, of the blended logits."""
        if self.client_graph is None or len(self.input_spec.classes) != 2:
            return None
        return threshold_of(self)

    def outputs(self, graph: Any, wanted: Wanted | None = None) -> tuple[Tensor, Task]:
        """As `TaskPredictor.outputs`, blended."""
        logits, task = _outputs(self.members, graph, wanted)
        return torch.from_numpy(self.weights.apply(logits)), task


def is_blend(path: Path) -> bool:
    """Return whether a folder holds the weights of a blend instead of a model."""
    return (path / BLEND).is_file()


def load_blend(folder: Path, client: int | None = None) -> Blended:
    """Load a blend of runs or of a node's stored models.

    Args:
        folder: folder of the blend.
        client: client whose models to blend; None for shared models, and for those that a node stored.

    Raises:
        FedGraphError: it is damaged, a run is gone or has other models now, or as of `load_predictor` and `load_node`.
    """
    path = folder / BLEND
    try:
        content = json.loads(path.read_bytes())
        runs = [Path(str(run)) for run in content["runs"]]
        pairs = [*zip(runs, content["models"], strict=True)]
        weights = weights_of(content["weights"], len(runs))
    except (OSError, *MALFORMED) as error:
        raise FedGraphError(f"{path} is damaged ({first_line(error)}): blend the runs again") from error
    members: list[TaskPredictor] = []
    for run, digest in pairs:
        if not run.is_dir():
            raise FedGraphError(f"{path} blends {run}, which is not there: restore it, or blend the runs again")
        members.append(load_predictor(run, client) if (run / CONFIG).is_file() else load_node(run))
        if _digest(run) != digest:
            raise FedGraphError(f"{path} blends {run}, which holds other models now: blend the runs again")
    _first(members)
    if client not in (None, members[0].client):
        raise FedGraphError(f"--client {client}: {folder} belongs to client {members[0].client}: leave --client out")
    return Blended(members, weights, members[0].input_spec)


def weights_of(values: Any, runs: int) -> Weights:
    """Return weights that a file holds.

    Raises:
        ValueError: they are not finite numbers, one per run.
    """
    weights = Weights(*(np.array(values[key], dtype=np.float64) for key in ("runs", "bias")))
    if weights.runs.shape != (runs,) or weights.bias.ndim != 1 or not np.isfinite([*weights.runs, *weights.bias]).all():
        raise ValueError(f"expected {runs} finite weights, got {values}")
    return weights


def _logs(logits: Sequence[NDArray]) -> Floats:
    """Return ln softmax of the logits of each run [R, V, C]."""
    return np.stack([log_softmax(np.asarray(run_logits, np.float64), axis=1) for run_logits in logits])


def fit(logits: Sequence[NDArray], y: NDArray[np.int64]) -> Weights:
    """Fit the weights of runs.

    Args:
        logits: of the validation items by each run, [V, C].
        y: their classes [V]; equal weights without two of them.
    """
    runs, classes = len(logits), logits[0].shape[1]
    even = np.full(runs, 1 / runs)
    if len(np.unique(y)) < 2:
        return Weights(even, np.zeros(classes))
    from scipy.optimize import minimize

    given, count = _logs(logits), len(y)
    truth = np.eye(classes)[y]

    def loss(values: Floats) -> tuple[float, Floats]:
        weights, bias = values[:runs], values[runs:]
        logs = log_softmax(bias + np.tensordot(weights, given, axes=1), axis=1)
        off = (np.exp(logs) - truth) / count
        pull = weights - even
        slopes = np.concatenate([(given * off).sum((1, 2)) + pull / count, off.sum(0) + bias / count])
        return float(-(truth * logs).sum() + ((pull**2).sum() + (bias**2).sum()) / 2) / count, slopes

    bounds = [(0, None)] * runs + [(None, None)] * classes
    start = np.concatenate([even, np.zeros(classes)])
    optimum = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 500, "ftol": 1e-13})
    return Weights(optimum.x[:runs], optimum.x[runs:])


def blend(runs: Sequence[Path], out: Path) -> dict[str, Any]:
    """Blend finished runs, write a run folder with the scores, and return its summary.

    Args:
        runs: run folders of simulations with the same data, partition, split and task.
        out: the new folder; `BLEND` in it has the weights.

    Raises:
        FedGraphError: fewer than two runs, a task without classes, or runs that score other items.
    """
    first = _first([load_predictor(run, 0) for run in runs])
    if first.cfg.on_fleet:
        where = f"{runs[0]} is a run of the fleet '{first.cfg.engine}', whose parties hold the items"
        raise FedGraphError(f"{where}: run `fedgraph-flwr blend STATE STATE --out DIR` at each party")
    cfg = replace(first.cfg, out=str(out.absolute()), rounds=1, resume="", evaluate="", tracking=[])
    cfg = replace(cfg, strategy=replace(cfg.strategy, name="blend", personal=False))
    check_unused(cfg)
    parties = range(1 if cfg.strategy.pooled else cfg.num_clients)
    outputs = [_outputs([load_predictor(run, party) for run in runs]) for party in parties]
    weights, scores, nodes = _fitted(outputs), dict[str, list[float]](), list[float]()
    for logits, task in outputs:
        nodes += task.graph.part.bincount().tolist() if task.graph.part.numel() else [task.graph.num_nodes]
        for key, values in _scores(torch.from_numpy(weights.apply(logits)), task, cfg).items():
            scores.setdefault(key, []).extend(values)
    recorder = Recorder(cfg)
    recorder.extra["blend"] = [str(run.absolute()) for run in runs]
    recorder.setup_done()
    recorder.begin_round(1, list(parties))
    recorder.end_round({}, {})
    weighted = nodes if cfg.evaluation.average == "nodes" else None
    recorder.scored({"metrics": metrics.averages(scores, weighted), "clients": scores}, {}, weighted)
    _write(out, runs, weights)
    return recorder.finish()


def blend_node(states: Sequence[Path], out: Path) -> dict[str, float]:
    """Blend the models that a party's node stored, on the party's own items, and return the blend's scores.

    Args:
        states: state folders, one per run.
        out: a new folder: `PREDICTIONS` has the blended prediction of each item, `BLEND` the weights.

    Raises:
        FedGraphError: as of `blend`, a folder without a model, or a party's graph file that is missing.
    """
    if out.exists():
        raise FedGraphError(f"--out {out} exists: pass a new folder")
    predictors = [load_node(state) for state in states]
    first = _first(predictors)
    logits, task = _outputs(predictors)
    weights = _fitted([(logits, task)])
    blended = torch.from_numpy(weights.apply(logits))
    place = task.order.argsort() if hasattr(task, "order") else slice(None)
    predictions = first.predict(first.client_graph)
    out.mkdir(parents=True)
    replace(predictions, logits=blended[place], threshold=None).write(out / PREDICTIONS)
    _write(out, [model_folder(state) for state in states], weights)  # a later run of the node is another model
    return metrics.averages(_scores(blended, task, first.cfg))


PREDICTIONS = "predictions.csv"
"""File of a party's blend."""


def _first(predictors: Sequence[Any]) -> Any:
    """Return the first of two models of classes or more."""
    if len(predictors) < 2:
        raise FedGraphError(f"blend needs at least two runs, got {len(predictors)}: pass two run folders or more")
    predictors[0].check_task(
        predictors[0].task.capabilities.classes, "blend weighs logits of classes (task=nodes or edges)"
    )
    return predictors[0]


def _fitted(outputs: Sequence[tuple[list[NDArray], Task]]) -> Weights:
    """Fit the weights to the validation items of parties, given each party's logits by run and its task."""
    val = [task.masks["val"].numpy() for _, task in outputs]
    given = [[run_logits[mask] for run_logits in logits] for (logits, _), mask in zip(outputs, val, strict=True)]
    y = np.concatenate([task.y.numpy()[mask] for (_, task), mask in zip(outputs, val, strict=True)])
    return fit([np.concatenate(run_logits) for run_logits in zip(*given, strict=True)], y)


def _scores(blended: Tensor, task: Task, cfg: RunConfig) -> dict[str, Any]:
    """Return the scores of a party's blended logits [V, C]."""
    names = task.wanted(cfg.evaluation, blended.shape[1])
    return task.scorer(cfg.evaluation.min_items).score(blended, names, cfg.evaluation.own)


def _write(out: Path, runs: Sequence[Path], weights: Weights) -> None:
    paths, models = [str(run.absolute()) for run in runs], [_digest(run) for run in runs]
    held = {"runs": paths, "models": models, "weights": weights.to_dict()}
    write_bytes(out / BLEND, json.dumps(held, indent=1).encode())


def _digest(folder: Path) -> str:
    """Return a digest of the stored models of a run or of a node's client."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("model*.safetensors")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _outputs(
    predictors: Sequence[TaskPredictor], graph: Any = None, wanted: Wanted | None = None
) -> tuple[list[NDArray], Task]:
    """Return the logits of a graph's items, by default the party's own, by each model, and the task of the first."""
    outputs = [model.items(model.party_graph() if graph is None else graph, wanted) for model in predictors]
    for predictor, (_, task) in zip(predictors, outputs, strict=True):
        check_same_items(outputs[0][1], task, f"{predictors[0].source} and {predictor.source}")
    return [logits.numpy() for logits, _ in outputs], outputs[0][1]


def check_same_items(one: Task, other: Task, runs: str) -> None:
    """Refuse runs whose items differ or have another order, as far as classes, splits and ends of edges show."""
    pairs = [(one.y, other.y), *((one.masks[split], other.masks[split]) for split in one.masks)]
    ends = getattr(one, "ends", None), getattr(other, "ends", None)
    pairs += [ends] if ends[0] is not None and ends[1] is not None else []  # type: ignore[list-item]
    if not all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs):
        raise FedGraphError(f"{runs} score other items: pass runs with the same data, partition, split, seed and task")

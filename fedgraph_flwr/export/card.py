"""Model card of an exported model: data statistics, method, privacy spent, scores by client, limits."""

import contextlib
import html
import json
import math
import re
from pathlib import Path
from typing import Any

from fedgraph_flwr import partition
from fedgraph_flwr.data.statistics import describe
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.runs.folder import ROUNDS, SUMMARY, headline_score, read_rounds
from fedgraph_flwr.runs.prediction import Predictor
from fedgraph_flwr.secure import accounting

_SHOWN = (
    "test-accuracy",
    "test-majority",
    "test-balanced_accuracy",
    "test-macro_f1",
    "test-auc",
    "test-average_precision",
)


def scores(run: Path | None, predictor: Predictor) -> dict[str, Any]:
    """Return scores of the model's round: means over clients, scores of each client, and privacy spent.

    Args:
        run: the run folder; None if it is not available.
        predictor: the model.
    """
    if run is None or not (run / SUMMARY).is_file():
        return {}
    summary = json.loads((run / SUMMARY).read_bytes())
    record: dict[str, Any] = next((r for r in read_rounds(run / ROUNDS) if r["round"] == predictor.round), {})
    content = {"round": predictor.round, "rounds": summary["rounds"], "headline": summary["headline"]}
    content |= {"score": headline_score(summary), "chance": summary.get("chance")}
    content |= {key: summary[key] for key in ("privacy", "versions", "nodes") if key in summary}
    if predictor.unscored:
        return _finite({key: value for key, value in content.items() if key not in ("headline", "score", "chance")})
    return _finite({**content, "metrics": record.get("metrics", {}), "clients": record.get("clients", {})})


def model_card(predictor: Predictor, network: Plain, found: dict[str, Any], tables: bool) -> str:
    """Return the text of ``MODEL_CARD.md``.

    Args:
        predictor: the model.
        network: its exported form.
        found: output of `scores`.
        tables: whether the folder holds ``preprocess.py``.
    """
    cfg = predictor.cfg
    whose = "the shared model" if predictor.client is None else f"the model of client {predictor.client}"
    secagg = "; updates by secure aggregation" if cfg.privacy.secagg else ""
    private = "No differential privacy"
    if "privacy" in found:
        private = accounting.spent_text(found["privacy"], cfg.privacy.scores)
    lines = [
        f"# {cfg.strategy.name} on {escaped(cfg.data_name)}: {whose}",
        "",
        f"A {escaped(cfg.model.name)} of {cfg.model.layers} layers, {cfg.model.hidden} wide, for node classification with"
        f" {len(predictor.meaning.classes)} classes: {', '.join(map(escaped, predictor.meaning.classes))}.",
        "",
        "## Use",
        "",
        "```python",
        "import torch",
        "from model import CLASSES, load",
        *(["from preprocess import read"] if tables else []),
        *(['x, edge_index, ids = read("nodes.csv", "edges.csv")'] if tables else []),
        "logits = load()(torch.as_tensor(x), torch.as_tensor(edge_index))   # [N, C]",
        "```",
        "",
        "Needs torch and torch_geometric" + (", and pandas for tables." if tables else "."),
        *(
            ["", "You can pass known labels as `y` and `known`. Edges between these nodes are then typed."]
            if network.labels
            else []
        ),
        "",
        "## Data",
        "",
        *_data(predictor),
        "",
        "## Method",
        "",
        f"strategy={cfg.strategy.name}, {cfg.num_clients} clients, {found.get('rounds', predictor.round)} rounds, parameters of"
        f" round {predictor.round}, seed {cfg.seed}, train.loss={cfg.train.loss}, {cfg.train.local_steps} local steps by"
        f" {cfg.train.optimizer} at {cfg.train.lr:g}.",
        "",
        "## Privacy",
        "",
        f"{private}{secagg}.",
        "",
        "## Scores",
        "",
        *([f"None: {predictor.unscored}."] if predictor.unscored else _scores(found)),
        "",
        "## Limits",
        "",
        "- Scores are for nodes of the training graphs. Scores on other graphs may differ.",
        "- A node's prediction depends on its neighbours. A missing edge changes it.",
        "- Features must be computed as in training (`preprocessing.json`), and edges must have the same direction.",
        *_limits(predictor, found),
    ]
    return "\n".join(lines) + "\n"


def escaped(text: object) -> str:
    """Escape a party's text to one line that Markdown and HTML show verbatim."""
    return re.sub(r"([\\`*_{}\[\]()#+!|~$])", r"\\\1", html.escape(sanitize(text, 200), quote=False))


def _data(predictor: Predictor) -> list[str]:
    """Return a table of the clients' graphs, or a note if they are not available."""
    cfg, found = predictor.cfg, []
    with contextlib.suppress(FedGraphError):
        if predictor.file:
            found = [describe(predictor.own)]
        elif not cfg.on_fleet or cfg.graph:
            found = [describe(partition.load_client(cfg, index)) for index in range(partition.num_clients(cfg))]
    if not found:
        return [f"{cfg.num_clients} clients. Their graphs were not available when this card was written."]
    names = [escaped(name) for name in predictor.meaning.classes]
    lines = [
        f"| client | nodes | edges | features | training nodes | {' | '.join(names)} |",
        "|" + "---|" * (5 + len(names)),
    ]
    for index, graph in enumerate(found):
        numbers = [
            graph.get("client", index),
            graph["nodes"],
            graph["edges"],
            graph["features"],
            graph["train"],
            *graph["labels"],
        ]
        lines.append(f"| {' | '.join(map(str, numbers))} |")
    return lines


def _scores(found: dict[str, Any]) -> list[str]:
    """Return a table of test scores, one row per client, and their mean."""
    clients = found.get("clients", {})
    shown = [key for key in _SHOWN if key in clients]
    if not shown:
        return ["Not available when this card was written."]
    lines = [f"| client | {' | '.join(key.removeprefix('test-').replace('_', ' ') for key in shown)} |"]
    lines.append("|" + "---|" * (1 + len(shown)))
    for index in range(len(clients[shown[0]])):
        lines.append(f"| {index} | {' | '.join(_number(clients[key][index]) for key in shown)} |")
    means = [found["metrics"].get(key.replace("-", "_", 1)) for key in shown]
    return [*lines, f"| mean | {' | '.join(map(_number, means))} |"]


def _limits(predictor: Predictor, found: dict[str, Any]) -> list[str]:
    """Return limits of this particular model."""
    limits = []
    schema = predictor.meaning.schema
    if predictor.client is not None:
        limits.append(f"- This is the model of client {predictor.client}. Nodes of other clients may differ.")
    if schema and schema.scaling == "local":
        limits.append("- Each party scaled its features with its own statistics.")
    metrics = found.get("metrics", {})
    if (majority := metrics.get("test_majority")) is not None and metrics.get("test_accuracy", 0) <= majority:
        limits.append(f"- The majority baseline is at least as accurate ({majority:.3f}). Compare the other scores.")
    return limits


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _finite(tree: Any) -> Any:
    """Replace NaN and infinities, which JSON does not support, by None."""
    if isinstance(tree, dict):
        return {key: _finite(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree

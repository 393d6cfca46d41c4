"""Model card of an exported model: data statistics, method, privacy spent, scores by client, limits."""

import contextlib
import html
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedgraph_flwr import partition
from fedgraph_flwr.data.schema import EDGE, NODE
from fedgraph_flwr.data.statistics import describe
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.party.use.alerts import Choice
from fedgraph_flwr.party.use.predict import Predictor
from fedgraph_flwr.report.as_json import finite
from fedgraph_flwr.runs.folder import ROUNDS, SUMMARY, headline_score, read_rounds
from fedgraph_flwr.secure import accounting
from fedgraph_flwr.tasks import Task

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
    with contextlib.suppress(FedGraphError):  # of no party, or none chosen for this model
        content |= {"alerts": asdict(Choice.load(run, predictor))} if predictor.client is not None else {}
    if predictor.unscored:
        return finite({key: value for key, value in content.items() if key not in ("headline", "score", "chance")})
    return finite({**content, "metrics": record.get("metrics", {}), "clients": record.get("clients", {})})


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
    attr = "edge_attr, " if predictor.input_spec.columns(EDGE) else ""
    private = "No differential privacy"
    if "privacy" in found:
        private = accounting.spent_text(found["privacy"], cfg.privacy.scores)
    lines = [
        f"# {cfg.strategy.name} on {escaped(cfg.data_text)}: {whose}",
        "",
        f"A {escaped(cfg.model.name)} of {cfg.model.layers} layers, {cfg.model.hidden} wide, for {_task(predictor)}.",
        "",
        "## Use",
        "",
        "```python",
        "import torch",
        "from model import CLASSES, load",
        *(["from preprocess import read"] if tables else []),
        *([f'x, edge_index, {attr}ids = read("nodes.csv", "edges.csv")'] if tables else []),
        *_use(network.readout[0], bool(attr)),
        "```",
        "",
        "Needs torch and torch_geometric" + (", and pandas for tables." if tables else "."),
        *(
            [
                "",
                "These tables become features only by `fedgraph-flwr predict`: edges have counts, or a table holds many graphs.",
            ]
            if predictor.input_spec.columns(NODE) and not tables
            else []
        ),
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
        *([f"None: {predictor.unscored}."] if predictor.unscored else _scores(found, predictor.task)),
        *_alerts(found.get("alerts")),
        "",
        "## Limits",
        "",
        f"- Scores are for {predictor.task.ITEMS} of the training graphs. Scores on other graphs may differ.",
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
    of_nodes = cfg.task.name == "nodes"
    names = ["training nodes", *map(escaped, predictor.input_spec.classes)] if of_nodes else []
    head = ["client", "nodes", "edges", "features", *names]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for index, graph in enumerate(found):
        numbers = [
            graph.get("client", index),
            graph["nodes"],
            graph["edges"],
            graph["features"],
            *([graph["train"], *graph["labels"]] if of_nodes else []),
        ]
        lines.append(f"| {' | '.join(map(str, numbers))} |")
    return lines


def _task(predictor: Predictor) -> str:
    """Return what the model predicts."""
    classes, task = predictor.input_spec.classes, predictor.cfg.task.name
    kind = "node classification" if task == "nodes" else f"task={task}"
    return f"{kind} with {len(classes)} classes: {', '.join(map(escaped, classes))}" if predictor.task.classes else kind


def _use(readout: str, edge_attr: bool) -> list[str]:
    """Return the lines of Python that call the model."""
    given = "torch.as_tensor(x), torch.as_tensor(edge_index)" + (", torch.as_tensor(edge_attr)" if edge_attr else "")
    more = "" if edge_attr else ", None"
    return {
        "": [f"logits = load()({given})   # [N, C]"],
        "nodes": [f"outputs = load()({given})   # [N, T]"],
        "edges": [f"logits = load()({given})   # [E, C]; edges to other parties: nodes whose features are 0"],
        "pairs": [f"scores = load()({given}{more}, pairs)   # [V], of pairs of nodes [2, V]"],
        "graphs": [f"outputs = load()({given}{more}, graph)   # [G, W], graph: of each node [N]"],
    }[readout]


def _scores(found: dict[str, Any], task: type[Task]) -> list[str]:
    """Return a table of test scores, one row per client, and their mean."""
    clients = found.get("clients", {})
    names = _SHOWN if task.classes else tuple(f"test-{name}" for name in task.METRICS)
    shown = [key for key in names if key in clients]
    if not shown:
        return ["Not available when this card was written."]
    lines = [f"| client | {' | '.join(key.removeprefix('test-').replace('_', ' ') for key in shown)} |"]
    lines.append("|" + "---|" * (1 + len(shown)))
    for index in range(len(clients[shown[0]])):
        lines.append(f"| {index} | {' | '.join(_number(clients[key][index]) for key in shown)} |")
    means = [found["metrics"].get(key.replace("-", "_", 1)) for key in shown]
    return [*lines, f"| mean | {' | '.join(map(_number, means))} |"]


def _alerts(choice: dict[str, Any] | None) -> list[str]:
    """Return the section on the party's threshold and calibration (`alerts.Choice`); empty without one."""
    if not choice:
        return []
    lines = [
        "",
        "## Alerts",
        "",
        f"'{escaped(choice['positive'])}' from a score of {_number(choice['threshold'])} on:",
        "",
    ]
    for split in ("validation", "test"):
        parts = [
            f"{name.replace('_', ' ')} {_number(value[0])} [{_number(value[1])}, {_number(value[2])}]"
            for name, value in choice[split].items()
            if isinstance(value, list | tuple)
        ]
        lines += [f"- {split} items: {', '.join(parts)} (95 % intervals)"] if parts else []
    if curves := choice["calibrated"]:
        kind = "one temperature" if choice["calibration"]["temperature"] else "isotonic regression"
        briers = [_number(curves[when]["brier"]) for when in ("after", "before")]
        lines.append(f"- probabilities by {kind}: Brier score on test items {briers[0]}, {briers[1]} before")
    return lines


def _limits(predictor: Predictor, found: dict[str, Any]) -> list[str]:
    """Return limits of this particular model."""
    limits = []
    schema = predictor.input_spec.schema
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

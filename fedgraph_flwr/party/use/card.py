"""Model card of an exported model: data statistics, method, privacy spent, scores by client, limits."""

import contextlib
import html
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedgraph_flwr import partition
from fedgraph_flwr.data.files import packaged, write_bytes
from fedgraph_flwr.data.schema import EDGE, NODE
from fedgraph_flwr.data.statistics import describe
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.evaluation.best_round import SCORED_BY
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.party.use.alerts import Choice, ranges
from fedgraph_flwr.party.use.blend import Blended
from fedgraph_flwr.party.use.predict import Predictor, as_scored
from fedgraph_flwr.report.as_json import finite
from fedgraph_flwr.secure import accounting
from fedgraph_flwr.secure.protection import protection_of
from fedgraph_flwr.store.results import ROUNDS, SUMMARY, headline_score, read_rounds, read_summary
from fedgraph_flwr.tasks import Task

TEMPLATE = Path(__file__).parent / "templates" / "model_card.md.txt"

_SHOWN = ("accuracy", "majority", "balanced_accuracy", "macro_f1", "auc", "average_precision")


def scores(run: Path | None, predictor: Predictor | Blended) -> dict[str, Any]:
    """Return scores of the model's round: means over clients, scores of each client, and privacy spent.

    Args:
        run: the run folder; None if it is not available.
        predictor: the model.
    """
    if run is None or not (run / SUMMARY).is_file():
        return {}
    summary = read_summary(run, ["headline"])
    number = 1 if "blend" in summary else predictor.round
    record: dict[str, Any] = next((r for r in read_rounds(run / ROUNDS) if r["round"] == number), {})
    content = {"round": number, "rounds": summary["rounds"], "headline": summary["headline"]}
    content |= {"score": headline_score(summary), "chance": summary.get("chance")}
    content |= {key: summary[key] for key in ("privacy", "versions", "nodes") if key in summary}
    with contextlib.suppress(FedGraphError):  # of no party, or none chosen for this model
        content |= {"alerts": asdict(Choice.load(run, predictor))} if predictor.client is not None else {}
    if predictor.unscored:
        return finite({key: value for key, value in content.items() if key not in ("headline", "score", "chance")})
    named = {SCORED_BY: record[SCORED_BY]} if SCORED_BY in record else {}
    return finite({**content, "metrics": record.get("metrics", {}), "clients": record.get("clients", {})} | named)


def write_export(
    folder: Path,
    predictor: Any,
    files: dict[str, str | bytes],
    summary: dict[str, Any],
    index: str,
    about: dict[str, Any],
) -> Path:
    """Write an exported folder, and return it.

    Args:
        folder: the folder.
        predictor: the model.
        files: content by name.
        summary: output of `scores`.
        index: name of the JSON file that describes the export; if it exists, the other files are complete.
        about: its content besides what all exports have.
    """
    spec = predictor.input_spec
    if spec.schema:
        spec.schema.save(folder / "schema.yaml")
    about |= {"classes": list(spec.classes), "task": asdict(predictor.cfg.task)}
    about |= {key: getattr(predictor, key) for key in ("client", "round", "threshold")}
    files |= {"metrics.json": json.dumps(summary, indent=1), index: json.dumps(about, indent=1)}
    for name, content in files.items():
        write_bytes(folder / name, content.encode() if isinstance(content, str) else content)
    return folder


def model_card(predictor: Predictor, network: Plain, summary: dict[str, Any], tables: bool) -> str:
    """Return the text of ``MODEL_CARD.md``.

    Args:
        predictor: the model.
        network: its exported form.
        summary: output of `scores`.
        tables: whether the folder holds ``preprocess.py``.
    """
    cfg, spec = predictor.cfg, predictor.input_spec
    attr = "edge_attr, " if spec.columns(EDGE) else ""
    code, notes = ["import torch", "from model import CLASSES, load"], []
    if tables:
        code += ["from preprocess import read", f'x, edge_index, {attr}ids = read("nodes.csv", "edges.csv")']
    elif spec.columns(NODE):
        why = "columns come from the party's records, or a table holds many graphs"
        notes.append(f"These tables become features only by `fedgraph-flwr predict`: {why}.")
    if network.labels:
        notes.append("You can pass known labels as `y` and `known`. Edges between these nodes are then typed.")
    timed = tables and bool(spec.tables.time) and bool(as_scored(cfg, predictor.task).split.step)
    spent = accounting.spent_text(summary["privacy"], protection_of(cfg).scores) if "privacy" in summary else ""
    spent = spent or "No differential privacy"
    rows = [f"None: {predictor.unscored}."] if predictor.unscored else _scores(summary, predictor.task)
    return packaged(TEMPLATE).format(
        cfg=cfg,
        predictor=predictor,
        data=escaped(cfg.data_text),
        whose="the shared model" if predictor.client is None else f"the model of client {predictor.client}",
        model=escaped(cfg.model.name),
        task=_task(predictor),
        code="\n".join([*code, *_use(network.readout[0], bool(attr), timed)]),
        by_file=" (`preprocessing.json`)" if tables else "",
        pandas=", and pandas for tables" if tables else "",
        notes="".join(f"\n{note}\n" for note in notes),
        clients="\n".join(_data(predictor)),
        rounds=summary.get("rounds", predictor.round),
        private=f"{spent}; updates by secure aggregation" if protection_of(cfg).sums_only else spent,
        scores="\n".join([*rows, *_alerts(summary.get("alerts"))]),
        limits="".join(f"{line}\n" for line in _limits(predictor, summary)),
    )


def blend_card(blended: Blended, parts: list[str], summary: dict[str, Any]) -> str:
    """Return the text of ``MODEL_CARD.md`` of a blend, whose members have cards of their own in the folders ``parts``.

    ``summary`` is the output of `scores`.
    """
    cfg = blended.cfg
    members = zip(parts, blended.members, blended.weights.runs, strict=True)
    rows: list[list[Any]] = [["member", "method", "weight"]]
    for number, (part, member, weight) in enumerate(members, 1):
        rows.append([number, f"[{escaped(member.cfg.strategy.name)}]({part}/MODEL_CARD.md)", _number(float(weight))])
    score = f"{summary['headline']} = {_number(summary['score'])}." if "headline" in summary else ""
    lines = [f"# Blend on {escaped(cfg.data_text)}", "", f"A weighted sum of log-probabilities, for {_task(blended)}."]
    lines += ["", *_table(rows), "", "`blend` in `model.py` computes it from the logits of the members, in this order."]
    lines += ["", "## Scores", "", score, "", *_scores(summary, blended.task), *_alerts(summary.get("alerts")), ""]
    limits = ["- Data, privacy and limits are those of the members: see their cards.", *_limits(blended, summary)]
    return "\n".join([*lines, "## Limits", "", *limits, ""])


def escaped(text: object) -> str:
    """Escape a party's text to one line that Markdown and HTML show verbatim."""
    return re.sub(r"([\\`*_{}\[\]()#+!|~$])", r"\\\1", html.escape(sanitize(text, 200), quote=False))


def _data(predictor: Predictor) -> list[str]:
    """Return a table of the clients' graphs, or a note if they are not available."""
    cfg, graphs = predictor.cfg, []
    with contextlib.suppress(FedGraphError):
        if predictor.file:
            graphs = [describe(predictor.client_graph)]
        elif not cfg.on_fleet or cfg.graph:
            graphs = [describe(partition.load_client(cfg, index)) for index in range(partition.num_clients(cfg))]
    if not graphs:
        return [f"{cfg.num_clients} clients. Their graphs were not available when this card was written."]
    of_nodes = cfg.task.name == "nodes"
    names = ["training nodes", *map(escaped, predictor.input_spec.classes)] if of_nodes else []
    rows: list[list[Any]] = [["client", "nodes", "edges", "features", *names]]
    for index, graph in enumerate(graphs):
        rows.append([graph.get("client", index), *(graph[key] for key in ("nodes", "edges", "features"))])
        rows[-1] += [graph["train"], *graph["labels"]] if of_nodes else []
    return _table(rows)


def _table(rows: list[list[Any]]) -> list[str]:
    """Return the lines of a Markdown table, whose head is the first row."""
    head, *lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *lines]


def _task(predictor: Predictor | Blended) -> str:
    """Return what the model predicts."""
    classes, task = predictor.input_spec.classes, predictor.cfg.task.name
    kind = "node classification" if task == "nodes" else f"task={task}"
    return (
        f"{kind} with {len(classes)} classes: {', '.join(map(escaped, classes))}"
        if predictor.task.capabilities.classes
        else kind
    )


def _use(readout: str, edge_attr: bool, timed: bool) -> list[str]:
    """Return the lines of Python that call the model; edges with times (``timed``) read no later day."""
    given = "torch.as_tensor(x), torch.as_tensor(edge_index)" + (", torch.as_tensor(edge_attr)" if edge_attr else "")
    more = "" if edge_attr else ", None"
    if readout == "edges" and timed:
        call = f'by_step(load(), {given}{more}, torch.as_tensor(steps("edges.csv")))'
        return ["from model import by_step", "from preprocess import steps", f"logits = {call}   # [E, C]"]
    line = {
        "": f"logits = load()({given})   # [N, C]",
        "nodes": f"outputs = load()({given})   # [N, T]",
        "edges": f"logits = load()({given})   # [E, C]; edges to other parties: nodes whose features are 0",
        "pairs": f"scores = load()({given}{more}, pairs)   # [V], of pairs of nodes [2, V]",
        "graphs": f"outputs = load()({given}{more}, graph)   # [G, W], graph: of each node [N]",
    }[readout]
    return [line]


def _scores(summary: dict[str, Any], task: type[Task]) -> list[str]:
    """Return a table of test scores, one row per client, and their mean."""
    clients = summary.get("clients", {})
    names = _SHOWN if task.capabilities.classes else tuple(task.METRICS)
    shown = [key for name in names if (key := f"test-{name}") in clients]
    if not shown:
        return ["Not available when this card was written."]
    head = ["client", *(key.removeprefix("test-").replace("_", " ") for key in shown)]
    values = zip(*(clients[key] for key in shown), strict=True)
    order = summary.get(SCORED_BY, range(len(clients[shown[0]])))
    means = [summary["metrics"].get(key.replace("-", "_", 1)) for key in shown]
    return _table(
        [head, *([name, *map(_number, row)] for name, row in [*zip(order, values, strict=False), ("mean", means)])]
    )


def _alerts(choice: dict[str, Any] | None) -> list[str]:
    """Return the section on the party's threshold and calibration (`alerts.Choice`); empty without one."""
    if not choice:
        return []
    lines = ["", "## Alerts", ""]
    lines += [f"'{escaped(choice['positive'])}' from a score of {_number(choice['threshold'])} on:", ""]
    for split in ("validation", "test"):
        parts = ranges(choice[split], _number)
        lines += [f"- {split} items: {', '.join(parts)} (95 % intervals)"] if parts else []
    if curves := choice["calibrated"]:
        kind = "one temperature" if choice["calibration"]["temperature"] else "isotonic regression"
        briers = [_number(curves[when]["brier"]) for when in ("after", "before")]
        lines.append(f"- probabilities by {kind}: Brier score on test items {briers[0]}, {briers[1]} before")
    return lines


def _limits(predictor: Predictor | Blended, summary: dict[str, Any]) -> list[str]:
    """Return limits of this particular model."""
    limits = []
    schema = predictor.input_spec.schema
    if predictor.client is not None:
        limits.append(f"- This is the model of client {predictor.client}. Nodes of other clients may differ.")
    if schema and schema.scaling == "local":
        limits.append("- Each party scaled its features with its own statistics.")
    metrics = summary.get("metrics", {})
    if (majority := metrics.get("test_majority")) is not None and metrics.get("test_accuracy", 0) <= majority:
        limits.append(f"- The majority baseline is at least as accurate ({majority:.3f}). Compare the other scores.")
    return limits


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"

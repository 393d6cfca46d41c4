"""The parts of a report behind its answer: clients, training, costs, what protected whom, and how to repeat it."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.statistics import label_skew
from fedgraph_flwr.errors import sanitize
from fedgraph_flwr.evaluation import chance
from fedgraph_flwr.report.headline import figure, is_share, metric_of, words_of
from fedgraph_flwr.report.page import Page, grid, note, pairs, render, table
from fedgraph_flwr.report.runs import FinishedRun, Fold, alike
from fedgraph_flwr.report.units import count, duration, percent, size
from fedgraph_flwr.runs.folder import CONFIG
from fedgraph_flwr.secure.accounting import told as told_privacy
from fedgraph_flwr.tasks import kind_of

UNKNOWN = (
    "Sizes are those that the parties reported. Unknown here, since the parties keep them: the dataset, edges, homophily and"
    " label mix."
)
_REPORTED = {
    "num_nodes": "nodes",
    "num_train": "training nodes",
    "num_val": "validation nodes",
    "num_features": "features",
    "num_classes": "classes",
}
"""What clients report of their graphs, by its name in the table."""

MOST_SETTINGS = 8
"""In one chart; a reader tells no more lines apart."""


def clients(page: Page, folds: Sequence[Fold]) -> list[Markup]:
    """Scores of single clients against what tells their graphs apart."""
    first, metric = folds[0].runs[0], metric_of(folds[0].runs[0])
    same = alike(folds, folds[0])
    told = {fold.name: fold.runs[0].per_client.get(f"test-{metric}", []) for fold in same[:MOST_SETTINGS]}
    told = {name: values for name, values in told.items() if values}
    if not told:
        return [note(f"Scores of single clients are not told (privacy.scores={first.cfg.privacy.scores}).")]
    graphs = first.clients if len(first.clients) == len(next(iter(told.values()))) else []
    unit = "share" if is_share(metric) else "plain"
    y = {"name": f"test {words_of(metric)}", "unit": unit}
    charts = []
    for title, sentence, x, of in _against(graphs) if graphs else []:
        series = [
            {
                "name": name,
                "colour": i,
                "points": [[of[c], v, f"client {c}", 10] for c, v in enumerate(values[: len(of)]) if of[c] is not None],
            }
            for i, (name, values) in enumerate(told.items())
        ]
        charts.append(page.chart(title, sentence, "plane", height=280, x=x, y=y, series=series))
    if not graphs and first.reported:
        charts.append(_against_reported(page, told, first.reported, y))
    bars = _ranked(page, told, first, metric, unit)
    others = ", ".join(fold.name for fold in folds if fold not in same)
    left = note(f"Not of the same clients, and so not shown here: {others}.") if others else Markup("")
    unknown = note(UNKNOWN) if first.cfg.on_fleet and not graphs else Markup("")
    return [grid(bars, *charts), _client_table(told, graphs, first, metric), unknown, left]


def _against_reported(
    page: Page, told: dict[str, list[float]], sizes: Sequence[dict[str, Any]], y: dict[str, Any]
) -> Markup:
    """Scores of a fleet's clients against the training nodes that they reported."""
    series = [
        {
            "name": name,
            "colour": i,
            "points": [
                [one.get("num_train"), v, f"client {c}", 10]
                for c, (one, v) in enumerate(zip(sizes, values, strict=False))
            ],
        }
        for i, (name, values) in enumerate(told.items())
    ]
    x = {"name": "training nodes", "unit": "count"}
    return page.chart(
        "… against its size", "Training nodes that the client reported.", "plane", height=280, x=x, y=y, series=series
    )


def _against(graphs: Sequence[dict[str, Any]]) -> list[tuple[str, str, dict[str, Any], list[Any]]]:
    """What a client's score stands against: title, sentence, axis and values."""
    sizes = [g["train"] for g in graphs]
    skew = label_skew(torch.tensor([g["labels"] for g in graphs]))[1].tolist()
    found = [
        (
            "… against its size",
            "Training nodes of the client.",
            {"name": "training nodes", "unit": "count", "log": min(sizes) > 0 and max(sizes) > 20 * min(sizes)},
            sizes,
        ),
        (
            "… against its label mix",
            "How far its labels are from those of all clients together (total variation distance): 0 is alike.",
            {"name": "distance of label mix", "unit": "share"},
            skew,
        ),
    ]
    homophily = [g["edge_homophily"] for g in graphs]
    if any(h is not None for h in homophily):
        axis = {"name": "edge homophily", "unit": "share"}
        found.insert(
            1, ("… against its homophily", "Share of its edges that join nodes of one class.", axis, homophily)
        )
    return found


def _ranked(page: Page, told: dict[str, list[float]], run: FinishedRun, metric: str, unit: str) -> Markup:
    """Clients in the order of the first setting's scores."""
    name, values = next(iter(told.items()))
    order = sorted(range(len(values)), key=lambda c: -values[c] if not math.isnan(values[c]) else math.inf)
    series: list[dict[str, Any]] = [
        {
            "name": other,
            "colour": i,
            "points": [[rank, of[c], f"client {c}", 10] for rank, c in enumerate(order) if c < len(of)],
        }
        for i, (other, of) in enumerate(told.items())
    ]
    levels = run.per_client.get(f"test-{chance.name_of(metric)}", [])
    if levels:
        points = [[rank, levels[c], f"client {c}"] for rank, c in enumerate(order)]
        series.append({"name": "chance", "colour": 6, "points": points, "symbol": "rect", "size": [14, 3]})
    return page.chart(
        "Score of each client",
        f"In the order of {name}, best first"
        + (f"; grey: its chance level, {chance.predictor(metric)}." if levels else "."),
        "plane",
        height=280,
        x={"name": "clients, by score", "unit": "count", "hide_labels": True, "min": -0.5, "max": len(order) - 0.5},
        y={"name": f"test {words_of(metric)}", "unit": unit},
        series=series,
    )


def _client_table(
    told: dict[str, list[float]], graphs: Sequence[dict[str, Any]], run: FinishedRun, metric: str
) -> Markup:
    levels = run.per_client.get(f"test-{chance.name_of(metric)}", [])
    tested = run.per_client.get("test-count", [])
    number, left_out = max(map(len, told.values())), run.left_out
    skew = label_skew(torch.tensor([g["labels"] for g in graphs]))[1].tolist() if graphs else []
    columns: dict[str, Callable[[int], tuple[str, float]]] = {"client": lambda c: (str(c), c)}
    for name, values in told.items():
        columns[words_of(metric) if len(told) == 1 else name] = lambda c, v=values: _scored(v, c, metric, left_out)  # type: ignore[misc]
    if levels:
        columns["chance"] = lambda c: _scored(levels, c, metric)
    if graphs:
        columns["nodes"] = lambda c: (count(graphs[c]["nodes"]), graphs[c]["nodes"])
        columns["edges"] = lambda c: (count(graphs[c]["edges"]), graphs[c]["edges"])
        if kind_of(run.cfg).classes:
            columns["training nodes"] = lambda c: (count(graphs[c]["train"]), graphs[c]["train"])
        columns["cut edges"] = lambda c: (count(graphs[c]["cut_edges"]), graphs[c]["cut_edges"])
        columns["homophily"] = lambda c: _share(graphs[c]["edge_homophily"])
        columns["label mix"] = lambda c: _share(skew[c])
    if not graphs:
        for key, name in _REPORTED.items():
            if any(key in one for one in run.reported):
                columns[name] = lambda c, key=key: _size(run.reported, c, key)  # type: ignore[misc]
    if tested:
        columns[f"test {kind_of(run.cfg).ITEMS}"] = lambda c: (count(tested[c]), tested[c])
    rows = [[cell(c) for cell in columns.values()] for c in range(number)]
    return table(list(columns), rows, "Every client; a click on a column sorts.")


def _scored(
    values: Sequence[float], client: int, metric: str, left_out: Mapping[int, str] | None = None
) -> tuple[str, float]:
    value = values[client] if client < len(values) else math.nan
    return (left_out or {}).get(client, "–") if math.isnan(value) else figure(value, metric), value


def _size(reported: Sequence[Mapping[str, Any]], client: int, key: str) -> tuple[str, float]:
    value = reported[client].get(key) if client < len(reported) else None
    known = float(np.sum(value)) if value is not None else math.nan
    return count(known), known


def _share(value: float | None) -> tuple[str, float]:
    known = math.nan if value is None else value
    return percent(known), known


# --- training ---------------------------------------------------------------------------------------------------------


def training(page: Page, folds: Sequence[Fold]) -> list[Markup]:
    """Curves of every mean over clients that rounds tell, and of the training loss."""
    told = [
        key.removeprefix("test_")
        for run in (fold.runs[0] for fold in folds)
        for r in run.rounds[:1]
        for key in r["metrics"]
    ]
    metric = metric_of(folds[0].runs[0])
    names = [
        m
        for m in dict.fromkeys([metric, "loss", *told])
        if "_by_" not in m and not m.startswith(("val_", "global_", chance.PREFIX))
    ]
    views = {words_of(m): view for m in names if (view := _curves(folds, m))["series"]}
    parts = []
    if views:
        many = " Bands: from the lowest to the highest seed." if any(len(fold.runs) > 1 for fold in folds) else ""
        parts.append(
            page.chart(
                "Scores by round",
                "Means over clients: test scores bold, validation scores dashed. Dotted: the chance level, and upright the best"
                f" validation round.{many}",
                "lines",
                height=360,
                wide=True,
                views=views,
                x={"name": "round", "unit": "count"},
            )
        )
    losses = [
        {"name": fold.name, "colour": i, **_seeds(fold, "train", "train_loss")}
        for i, fold in enumerate(folds[:MOST_SETTINGS])
    ]
    if any(line["x"] for line in losses):
        parts.append(
            page.chart(
                "Loss of local training",
                "Mean over the clients of a round, of the objective that they minimise.",
                "lines",
                height=300,
                wide=True,
                series=[line for line in losses if line["x"]],
                x={"name": "round", "unit": "count"},
                y={"name": "training loss", "unit": "plain"},
            )
        )
    return [grid(*parts)]


def _curves(folds: Sequence[Fold], metric: str) -> dict[str, Any]:
    series = []
    for place, fold in enumerate(folds[:MOST_SETTINGS]):
        for split, dash in (("test", 0), ("val", 1)):
            line = _seeds(fold, "metrics", f"{split}_{metric}")
            if line["x"]:
                best = fold.runs[0].shown_round if split == "test" and len(fold.runs) == 1 else 0
                name = fold.name if len(folds) > 1 else ("test" if split == "test" else "validation")
                called = name if len(folds) == 1 or split == "test" else f"{name}, validation"
                band = {} if dash else {key: line[key] for key in ("lo", "hi") if key in line}
                curve = {"name": called, "colour": place, "dash": dash, "x": line["x"], "y": line["y"], "mark": best}
                series.append(curve | band)
    level = next(
        (line for fold in folds if (line := _seeds(fold, "metrics", f"test_{chance.name_of(metric)}"))["x"]), None
    )
    if series and level:
        series.append({"name": "chance", "colour": 6, "dash": 2, "x": level["x"], "y": level["y"]})
    return {"series": series, "y": {"name": words_of(metric), "unit": "share" if is_share(metric) else "plain"}}


def _seeds(fold: Fold, part: str, key: str) -> dict[str, Any]:
    """Mean, lowest and highest of a figure over a fold's seeds, in the rounds that all of them have."""
    told = [{r["round"]: r[part][key] for r in run.every_round if key in r.get(part, {})} for run in fold.runs]
    told = [of for of in told if of]
    rounds = sorted(set.intersection(*map(set, told))) if told else []
    values = np.array([[of[r] for r in rounds] for of in told], dtype=float)
    if not rounds:
        return {"x": [], "y": []}
    band = {"lo": values.min(0), "hi": values.max(0)} if len(told) > 1 else {}
    return {"x": rounds, "y": values.mean(0), **band}


# --- costs ------------------------------------------------------------------------------------------------------------


def costs(page: Page, folds: Sequence[Fold]) -> list[Markup]:
    """Bytes and seconds by phase."""
    shown = folds[:MOST_SETTINGS]
    totals = [_by_phase(fold) for fold in shown]
    phases = list(dict.fromkeys(phase for of in totals for phase in of))
    names = [fold.name for fold in shown]
    height = 90 + 40 * len(shown) * (2 if len(shown) < 4 else 1)
    ways = {"bytes_up": "from clients", "bytes_down": "to clients"}
    moved = [f"{name}, {way}" if len(shown) > 1 else way for name in names for way in ways.values()]
    by_bytes = [
        {"name": phase, "colour": i, "values": [of.get(phase, {}).get(way, 0) for of in totals for way in ways]}
        for i, phase in enumerate(phases)
    ]
    by_time = [
        {"name": phase, "colour": i, "values": [of.get(phase, {}).get("seconds", 0) for of in totals]}
        for i, phase in enumerate(phases)
    ]
    charts = grid(
        page.chart(
            "Bytes by phase",
            "Of the whole run, over all clients, as they travel.",
            "bars",
            height=90 + 34 * len(moved),
            flat=True,
            categories=moved,
            series=by_bytes,
            unit="bytes",
        ),
        page.chart(
            "Time by phase",
            "Of the exchanges of all rounds, as the server sees them; phases of one round may overlap it.",
            "bars",
            height=max(height, 150),
            flat=True,
            categories=names,
            series=by_time,
            unit="seconds",
        ),
    )
    rows = [
        [
            *([name] if len(shown) > 1 else []),
            phase,
            (count(of["exchanges"]), of["exchanges"]),
            (size(of["bytes_up"]), of["bytes_up"]),
            (size(of["bytes_down"]), of["bytes_down"]),
            (duration(of["seconds"]), of["seconds"]),
        ]
        for name, total in zip(names, totals, strict=True)
        for phase, of in total.items()
    ]
    head = [*(["setting"] if len(shown) > 1 else []), "phase", "exchanges", "from clients", "to clients", "time"]
    return [charts, table(head, rows), *_uploads(shown), _machine(folds[0].runs[0])]


def _uploads(folds: Sequence[Fold]) -> list[Markup]:
    """What clients sent, by phase and group of the uplink; nothing for runs of older versions."""
    several = len(folds) > 1
    rows = [
        [*([fold.name] if several else []), phase, group, (size(sent), sent)]
        for fold in folds
        for (phase, group), sent in _by_group(fold).items()
    ]
    return [table([*(["setting"] if several else []), "phase", "group sent by clients", "bytes"], rows)] if rows else []


def _by_group(fold: Fold) -> dict[tuple[str, str], float]:
    """Means over seeds of the bytes from clients, by phase and group."""
    total: dict[tuple[str, str], float] = {}
    for run in fold.runs:
        whole = run.summary.get("bytes_by_phase")
        parts = [whole] if isinstance(whole, dict) else [record["phases"] for record in run.every_round]
        for phase, entry in (item for part in parts for item in part.items()):
            for group, sent in entry.get("bytes_up_by_group", {}).items():
                total[phase, group] = total.get((phase, group), 0.0) + sent / len(fold.runs)
    return total


def _by_phase(fold: Fold) -> dict[str, dict[str, float]]:
    """Means over seeds of what each phase cost: of set-up and end, which no record tells the time of, the bytes."""
    total: dict[str, dict[str, float]] = {}
    for run in fold.runs:
        inside: dict[str, dict[str, float]] = {}
        for record in run.every_round:
            for phase, entry in record["phases"].items():
                zero = dict.fromkeys(("exchanges", "bytes_up", "bytes_down", "seconds"), 0.0)
                mine = inside.setdefault(phase, zero)
                for key in mine:
                    mine[key] += entry[key]
        whole = run.summary.get("bytes_by_phase", {})
        for phase, entry in whole.items() if isinstance(whole, dict) else ():
            mine = inside.setdefault(phase, {"seconds": math.nan})
            mine |= {key: float(entry[key]) for key in ("exchanges", "bytes_up", "bytes_down")}
        for phase, mine in inside.items():
            kept = total.setdefault(phase, dict.fromkeys(mine, 0.0))
            for key, value in mine.items():
                kept[key] += value / len(fold.runs)
    return total


def _machine(run: FinishedRun) -> Markup:
    memory = run.number("peak_rss_mb")
    told = [
        ("set-up", duration(run.number("setup_seconds"))),
        (
            "a round",
            f"{duration(run.number('seconds_per_round'))} (median)",
        ),
        ("exchanges a round", f"{run.number('exchanges_per_round'):g} (median)"),
        ("most memory", size(memory * 2**20)),
    ]
    return pairs(told) if run.summary else Markup("")


# --- what protected whom ----------------------------------------------------------------------------------------------


def trust(folds: Sequence[Fold]) -> list[Markup]:
    """Protections that were on, privacy spent, failures."""
    alike: dict[Markup, list[Fold]] = {}
    for fold in folds:
        alike.setdefault(pairs(protections(fold.runs[0].cfg)), []).append(fold)
    parts = []
    for told, same in alike.items():
        names = ", ".join(fold.name for fold in same) if len(alike) > 1 else ""
        runs = [run for fold in same for run in fold.runs]
        rest = Markup("").join([*map(_spent, runs), _failures(runs)])
        parts.append(render("protected", names=names, protections=told, rest=rest))
    return parts


def protections(cfg: RunConfig) -> list[tuple[str, str]]:
    """What stood between the parties in a run, in words."""
    privacy, rules = cfg.privacy, cfg.strategy

    def state(on: bool, said: str) -> str:
        return render("switch", on=on, content=said)

    noised = f"at norm {privacy.clipping_norm:g}; noise of {privacy.noise_multiplier:g} times that is added"
    dp = {
        "none": "what a model tells of single clients is not bounded",
        "server": f"the server clips updates {noised}",
        "client": f"clients clip updates {noised} by the server",
        "distributed": f"clients clip updates {noised} in parts by the clients, before secure sums",
    }
    moving = f"; norms follow the {percent(privacy.clipping_quantile, 0)} quantile of the clients' norms"
    scores = {
        "exact": "the server learns each client's scores and losses",
        "none": "scores and losses stay at the clients",
        "noised": "the server tells means over clients alone, with noise",
    }
    sums = (
        f"the server learns weighted sums alone, where {percent(privacy.secagg_threshold, 0)} of a round's clients answer"
        if privacy.secagg
        else "the server sees what each client sends"
    )
    robust = rules.aggregator != "mean" or rules.max_share < 1
    stands = f"aggregator {rules.aggregator}, at most {percent(rules.max_share, 0)} for one client"
    told = [
        ("differential privacy", state(privacy.dp != "none", dp[privacy.side] + (moving if privacy.adaptive else ""))),
        ("secure aggregation", state(privacy.secagg, sums)),
        ("scores kept or noised", state(privacy.scores != "exact", scores[privacy.scores])),
        ("robust averaging", state(robust, stands if robust else "a client may move the mean as far as it likes")),
        (
            "enough clients",
            f"valid answers that a round needs: {rules.min_clients}; on a failure: {rules.on_failure}",
        ),
    ]
    if cfg.adversary.kind != "none":
        who = ", ".join(map(str, cfg.adversary.clients)) or "nobody"
        told.append(("clients that lied", render("alarm", kind=cfg.adversary.kind, content=f"clients {who}")))
    return told


def _spent(run: FinishedRun) -> Markup:
    spent = run.summary.get("privacy") or next(
        (r["privacy"] for r in reversed(run.every_round) if "privacy" in r), None
    )
    if not isinstance(spent, dict):
        return Markup("")
    return note(f"{run.label}: {told_privacy(spent, run.cfg.privacy.scores)}.")


def _failures(runs: Sequence[FinishedRun]) -> Markup:
    """Who failed, when and why, most frequent reasons first."""
    found: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        for record in run.every_round:
            for who, reason in record["failed"].items():
                found.setdefault((sanitize(who), sanitize(reason, 1000)), []).append(record["round"])
        for who, reason in (run.summary.get("failures") or {}).items():
            found.setdefault((sanitize(who), sanitize(reason, 1000)), [])
    if not found:
        return note("No answer failed.")
    rows = [
        [f"client {who}", (str(len(rounds) or 1), float(len(rounds) or 1)), _span(rounds), reason]
        for (who, reason), rounds in sorted(found.items(), key=lambda item: -len(item[1]))
    ]
    return table(["who", "times", "rounds", "why"], rows, "Answers that failed.")


def _span(rounds: Sequence[int]) -> str:
    if not rounds:
        return "set-up or end"
    return str(rounds[0]) if len(set(rounds)) == 1 else f"{min(rounds)} to {max(rounds)}"


# --- how to repeat it -------------------------------------------------------------------------------------------------


def repeat(folds: Sequence[Fold]) -> list[Markup]:
    """Commands, versions, configurations."""
    parts = []
    for fold in folds:
        for run in fold.runs:
            name = f"{fold.name}, seed {run.cfg.seed}"
            command = f"fedgraph-flwr run config={run.folder / CONFIG}"
            parts.append(render("repeat", name=name, command=command, config=(run.folder / CONFIG).read_text()))
    first = folds[0].runs[0]
    versions = first.summary.get("versions")
    told: list[tuple[str, str]] = [
        ("command", render("code", content=f"fedgraph-flwr run config={first.folder / CONFIG}"))
    ]
    if isinstance(versions, dict):
        told.append(("versions", ", ".join(f"{name} {number}" for name, number in versions.items())))
    if first.summary.get("commit"):
        told.append(("commit", render("code", content=first.summary["commit"])))
    seeds = [f"{', '.join(str(run.cfg.seed) for run in fold.runs)} ({fold.name})" for fold in folds]
    told.append(("seeds", "; ".join(seeds)))
    return [pairs(told), *parts]

"""Sections of a report below its headline: clients, training, costs, protections, and how to repeat the runs."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.repeating import overrides_of
from fedgraph_flwr.data.statistics import label_skew
from fedgraph_flwr.errors import sanitize
from fedgraph_flwr.evaluation import chance
from fedgraph_flwr.report.headline import display_name, is_share, metric_of, score_text
from fedgraph_flwr.report.page import Page, coloured, grid, note, number, pairs, render, table
from fedgraph_flwr.report.runs import FinishedRun, RunGroup, alike
from fedgraph_flwr.report.units import count, duration, percent, size
from fedgraph_flwr.secure.accounting import spent_text
from fedgraph_flwr.store.results import CONFIG
from fedgraph_flwr.tasks import kind_of

UNKNOWN = (
    "Sizes as reported by the parties. The dataset, edges, homophily and label mix are unknown here, because the parties keep"
    " them private."
)
_SIZES = {"nodes": "nodes", "edges": "edges", "train": "training nodes", "cut_edges": "cut edges"}
_REPORTED = {"num_nodes": "nodes", "num_train": "training nodes", "num_val": "validation nodes"}
_REPORTED |= {"num_features": "features", "num_classes": "classes"}
"""Key of the sizes of a client's graph, described here or reported by the client → name in the table."""

_AGAINST = {
    "training nodes": ("… against its size", "Training nodes of the client.", "count"),
    "homophily": ("… against its homophily", "Share of its edges within one class.", "share"),
    "label mix": (
        "… against its label mix",
        "Total-variation distance between its label distribution and that of all clients; 0 means equal.",
        "share",
    ),
}
"""Column that scores are plotted against → title, explanation and unit of the plot."""

MAX_SETTINGS = 8
"""Maximum number of settings in one chart."""


def clients(page: Page, groups: Sequence[RunGroup]) -> list[Markup]:
    """Plot scores of single clients against properties of their graphs."""
    first, metric = groups[0].runs[0], metric_of(groups[0].runs[0])
    same = alike(groups, groups[0])
    scores = {group.name: group.runs[0].per_client.get(f"test-{metric}", []) for group in same[:MAX_SETTINGS]}
    scores = {name: values for name, values in scores.items() if values}
    if not scores:
        return [note(f"Scores of single clients are not available (privacy.scores={first.cfg.privacy.scores}).")]
    graphs = first.clients if len(first.clients) == len(next(iter(scores.values()))) else []
    unit = "share" if is_share(metric) else "plain"
    y = {"name": f"test {display_name(metric)}", "unit": unit}
    columns = _columns(first, graphs)
    charts = []
    for name, (title, how, of) in _AGAINST.items():
        known = [value for value in columns.get(name, ()) if value is not None]
        if known:
            x = {"name": name, "unit": of, "log": min(known) > 0 and max(known) > 20 * min(known) and of == "count"}
            drawn = _series(scores, columns[name], first)
            charts.append(page.chart(title, how, "plane", height=280, x=x, y=y, series=drawn))
    bars = _ranked(page, scores, first, metric, unit)
    others = ", ".join(group.name for group in groups if group not in same)
    left = note(f"Not shown here, because the clients differ: {others}.") if others else Markup("")
    unknown = note(UNKNOWN) if first.cfg.on_fleet and not graphs else Markup("")
    return [grid(bars, *charts), _client_table(scores, columns, first, metric), unknown, left]


def _series(scores: dict[str, list[float]], x: Sequence[Any], run: FinishedRun) -> list[dict[str, Any]]:
    """Return scores of clients against a number of each, as far as it is known."""
    points = {
        name: [[x[c], v, run.client_name(c), 10] for c, v in enumerate(values[: len(x)]) if x[c] is not None]
        for name, values in scores.items()
    }
    return coloured({name: {"points": of} for name, of in points.items()})


def _ranked(page: Page, scores: dict[str, list[float]], run: FinishedRun, metric: str, unit: str) -> Markup:
    """Plot clients in the order of the first setting's scores."""
    name, values = next(iter(scores.items()))
    sign = chance.sign_of(metric)
    order = sorted(range(len(values)), key=lambda c: -sign * values[c] if not math.isnan(values[c]) else math.inf)
    points = {
        other: [[rank, of[c], run.client_name(c), 10] for rank, c in enumerate(order) if c < len(of)]
        for other, of in scores.items()
    }
    series = coloured({other: {"points": of} for other, of in points.items()})
    levels = run.per_client.get(f"test-{chance.name_of(metric)}", [])
    if levels:
        marks = [[rank, levels[c], run.client_name(c)] for rank, c in enumerate(order)]
        series.append({"name": "chance", "colour": 6, "points": marks, "symbol": "rect", "size": [14, 3]})
    how = f"Ordered by {name}, best first" + (f"; grey: chance level, {chance.predictor(metric)}." if levels else ".")
    x = {"name": "clients, by score", "labels": order, "min": -1, "max": len(order)}
    y = {"name": f"test {display_name(metric)}", "unit": unit}
    return page.chart("Score of each client", how, "plane", height=280, x=x, y=y, series=series)


def _client_table(
    scores: dict[str, list[float]], sizes: Mapping[str, Sequence[Any]], run: FinishedRun, metric: str
) -> Markup:
    levels = run.per_client.get(f"test-{chance.name_of(metric)}", [])
    items, left_out = kind_of(run.cfg).ITEMS, run.left_out
    names = (run.client_name(c).removeprefix("client ") for c in range(max(map(len, scores.values()))))
    columns: dict[str, list[Any]] = {"client": [(name, c) for c, name in enumerate(names)]}
    for name, values in scores.items():
        columns[display_name(metric) if len(scores) == 1 else name] = [
            (left_out.get(c, "–") if math.isnan(v) else score_text(v, metric), v) for c, v in enumerate(values)
        ]
    if levels:
        columns["chance"] = [number(partial(score_text, metric=metric), level) for level in levels]
    for name, known in sizes.items():
        form = percent if name in _AGAINST and _AGAINST[name][2] == "share" else count
        columns[name] = [number(form, value) for value in known]
    if tested := run.per_client.get("test-count"):
        columns[f"test {items}"] = [number(count, size) for size in tested]
    rows = zip_longest(*columns.values(), fillvalue=("–", math.nan))
    return table(list(columns), rows, "All clients. Click on a column to sort.")


def _columns(run: FinishedRun, graphs: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return what is known of the clients' graphs by column: of their files, or else as they report it."""
    if not graphs:
        sizes = {name: [one.get(key) for one in run.reported] for key, name in _REPORTED.items()}
        known = {name: values for name, values in sizes.items() if any(value is not None for value in values)}
        return {name: [None if value is None else float(np.sum(value)) for value in known[name]] for name in known}
    columns: dict[str, list[Any]] = {name: [graph[key] for graph in graphs] for key, name in _SIZES.items()}
    if kind_of(run.cfg).ITEMS != "nodes":
        del columns["training nodes"]
    columns["homophily"] = [graph["edge_homophily"] for graph in graphs]
    columns["label mix"] = label_skew(torch.tensor([graph["labels"] for graph in graphs]))[1].tolist()
    return columns


# --- training ---------------------------------------------------------------------------------------------------------


def training(page: Page, groups: Sequence[RunGroup]) -> list[Markup]:
    """Plot all recorded means over clients, the training loss and the method's statistics by round."""
    return [grid(_scores(page, groups), _losses(page, groups), _statistics(page, groups))]


ROUNDS = {"name": "round", "unit": "count"}


def _scores(page: Page, groups: Sequence[RunGroup]) -> Markup:
    reported = [key.removeprefix("test_") for group in groups for r in group.runs[0].rounds[:1] for key in r["metrics"]]
    metric = metric_of(groups[0].runs[0])
    others = ("val_", "global_", chance.PREFIX)
    names = [m for m in dict.fromkeys([metric, "loss", *reported]) if "_by_" not in m and not m.startswith(others)]
    views = {display_name(m): view for m in names if (view := _curves(groups, m))["series"]}
    many = " Bands: from the lowest to the highest seed." if any(len(group.runs) > 1 for group in groups) else ""
    how = (
        "Means over clients: test scores bold, validation scores dashed. Dotted: the chance level, and a vertical line"
        f" at the best validation round.{many}"
    )
    return page.chart("Scores by round", how, "lines", height=360, wide=True, views=views, x=ROUNDS)


def _losses(page: Page, groups: Sequence[RunGroup]) -> Markup:
    drawn = _statistic(groups, "train_loss") | {"y": {"name": "training loss", "unit": "plain"}}
    how = "Mean training objective over the clients of a round."
    return page.chart("Loss of local training", how, "lines", height=300, wide=True, x=ROUNDS, **drawn)


def _statistics(page: Page, groups: Sequence[RunGroup]) -> Markup:
    keys = [key for group in groups for run in group.runs for r in run.every_round[:1] for key in r.get("train", {})]
    names = [key for key in dict.fromkeys(keys) if key != "train_loss" and not key.startswith("trained_")]
    views = {key: view for key in names if (view := _statistic(groups, key))["series"]}
    how = "Mean over the clients of a round of each number that the method declares in its uplink."
    return page.chart("Statistics of the method", how, "lines", height=300, wide=True, views=views, x=ROUNDS)


def _statistic(groups: Sequence[RunGroup], key: str) -> dict[str, Any]:
    """Return the curves of one number that clients upload."""
    lines = coloured({group.name: _seeds(group, "train", key) for group in groups[:MAX_SETTINGS]})
    for line, group in zip(lines, groups, strict=False):
        line["colour"] = line["colour"] if group.place is None else group.place
    return {"series": [line for line in lines if line["x"]], "y": {"name": key.replace("_", " "), "unit": "plain"}}


def _curves(groups: Sequence[RunGroup], metric: str) -> dict[str, Any]:
    series = []
    for index, group in enumerate(groups[:MAX_SETTINGS]):
        place = index if group.place is None else group.place
        test, val = (_seeds(group, "metrics", f"{split}_{metric}") for split in ("test", "val"))
        names = (group.name, f"{group.name}, validation") if len(groups) > 1 else ("test", "validation")
        best = group.runs[0].shown_round if len(group.runs) == 1 else 0
        val = {"x": val["x"], "y": val["y"]}  # no band
        for dash, (name, line, mark) in enumerate(zip(names, (test, val), (best, 0), strict=True)):
            if line["x"]:
                series.append({"name": name, "colour": place, "dash": dash, "mark": mark, **line})
    level = next(
        (line for group in groups if (line := _seeds(group, "metrics", f"test_{chance.name_of(metric)}"))["x"]), None
    )
    if series and level:
        series.append({"name": "chance", "colour": 6, "dash": 2, "x": level["x"], "y": level["y"]})
    return {"series": series, "y": {"name": display_name(metric), "unit": "share" if is_share(metric) else "plain"}}


def _seeds(group: RunGroup, part: str, key: str) -> dict[str, Any]:
    """Return mean, minimum and maximum of a score over a group's seeds, in the rounds common to all."""
    values_by_round = [
        {r["round"]: r[part][key] for r in run.every_round if key in r.get(part, {})} for run in group.runs
    ]
    values_by_round = [of for of in values_by_round if of]
    rounds = sorted(set.intersection(*map(set, values_by_round))) if values_by_round else []
    values = np.array([[of[r] for r in rounds] for of in values_by_round], dtype=float)
    if not rounds:
        return {"x": [], "y": []}
    band = {"lo": values.min(0), "hi": values.max(0)} if len(values_by_round) > 1 else {}
    return {"x": rounds, "y": values.mean(0), **band}


# --- costs ------------------------------------------------------------------------------------------------------------


_TRAFFIC = "Network traffic of the whole run over all clients."
_FORMS = {"exchanges": count, "bytes_up": size, "bytes_down": size, "seconds": duration}
_DURATION = "Duration of the exchanges of all rounds at the server; phases of one round may overlap."


def costs(page: Page, groups: Sequence[RunGroup]) -> list[Markup]:
    """Plot bytes and seconds by phase."""
    shown = groups[:MAX_SETTINGS]
    totals = [_by_phase(group) for group in shown]
    phases = list(dict.fromkeys(phase for of in totals for phase in of))
    names = [group.name for group in shown]
    height = 90 + 40 * len(shown) * (2 if len(shown) < 4 else 1)
    ways = {"bytes_up": "from clients", "bytes_down": "to clients"}
    moved = [f"{name}, {way}" if len(shown) > 1 else way for name in names for way in ways.values()]

    def series(keys: Iterable[str]) -> list[dict[str, Any]]:
        values = {phase: [of.get(phase, {}).get(key, 0) for of in totals for key in keys] for phase in phases}
        return coloured({phase: {"values": of} for phase, of in values.items()})

    charts = [
        page.chart(title, how, "bars", height, flat=True, categories=bars, series=series(keys), unit=unit)
        for title, how, height, bars, keys, unit in (
            ("Bytes by phase", _TRAFFIC, 90 + 34 * len(moved), moved, list(ways), "bytes"),
            ("Time by phase", _DURATION, max(height, 150), names, ["seconds"], "seconds"),
        )
    ]
    by_phase = [
        [name, phase, *(number(form, of.get(key)) for key, form in _FORMS.items())]
        for name, total in zip(names, totals, strict=True)
        for phase, of in total.items()
    ]
    uploads = [
        [group.name, phase, upload, number(size, sent)]
        for group in shown
        for (phase, upload), sent in _by_group(group).items()
    ]
    one = int(len(shown) == 1)  # the column of settings is left out
    tables = [
        table(["setting", *head][one:], [row[one:] for row in rows])
        for head, rows in (
            (["phase", "exchanges", "from clients", "to clients", "time"], by_phase),
            (["phase", "group sent by clients", "bytes"], uploads),  # empty for runs of older versions
        )
        if rows
    ]
    return [grid(*charts), *tables, _machine(groups[0].runs[0])]


def _by_group(group: RunGroup) -> dict[tuple[str, str], float]:
    """Return means over seeds of the bytes from clients, by phase and group."""
    total: dict[tuple[str, str], float] = {}
    for run in group.runs:
        whole = run.summary.get("bytes_by_phase")
        parts = [whole] if isinstance(whole, dict) else [record["phases"] for record in run.every_round]
        for phase, entry in (item for part in parts for item in part.items()):
            for upload, sent in entry.get("bytes_up_by_group", {}).items():
                total[phase, upload] = total.get((phase, upload), 0.0) + sent / len(group.runs)
    return total


def _by_phase(group: RunGroup) -> dict[str, dict[str, float]]:
    """Return means over seeds of each phase's cost; for set-up and end only bytes, since no record has their time."""
    total: dict[str, dict[str, float]] = {}
    for run in group.runs:
        whole = run.summary.get("bytes_by_phase")
        inside = [item for record in run.every_round for item in record["phases"].items()]
        parts = [(inside, ["seconds"]), (whole.items() if isinstance(whole, dict) else inside, list(_FORMS)[:-1])]
        for entries, keys in parts:
            for phase, entry in entries:
                kept = total.setdefault(phase, {})
                for key in keys:
                    kept[key] = kept.get(key, 0.0) + entry[key] / len(group.runs)
    return total


def _machine(run: FinishedRun) -> Markup:
    memory = run.number("peak_rss_mb")
    terms = [
        ("set-up", duration(run.number("setup_seconds"))),
        ("time per round", f"{duration(run.number('seconds_per_round'))} (median)"),
        ("exchanges per round", f"{run.number('exchanges_per_round'):g} (median)"),
        ("peak memory", size(memory * 2**20)),
    ]
    return pairs(terms) if run.summary else Markup("")


# --- protections ----------------------------------------------------------------------------------------------


def trust(groups: Sequence[RunGroup]) -> list[Markup]:
    """List protections, privacy spent and failures."""
    alike: dict[Markup, list[RunGroup]] = {}
    for group in groups:
        alike.setdefault(pairs(protections(group.runs[0].cfg)), []).append(group)
    parts = []
    for terms, same in alike.items():
        names = ", ".join(group.name for group in same) if len(alike) > 1 else ""
        runs = [run for group in same for run in group.runs]
        rest = Markup("").join([*map(_spent, runs), _failures(runs)])
        parts.append(render("protected", names=names, protections=terms, rest=rest))
    return parts


def protections(cfg: RunConfig) -> list[tuple[str, str]]:
    """Describe the protections of a run."""
    privacy, rules = cfg.privacy, cfg.strategy

    def state(on: bool, text: str) -> str:
        return render("switch", on=on, content=text)

    noised = f"at norm {privacy.clipping_norm:g}; noise with {privacy.noise_multiplier:g} times that standard deviation is added"
    dp = {
        "none": "no bound on what a model reveals about single clients",
        "server": f"the server clips updates {noised}",
        "client": f"clients clip updates {noised} by the server",
        "distributed": f"clients clip updates {noised} in shares by the clients, before secure sums",
        "local": f"clients clip gradients of single rows {noised} by each client",
    }
    moving = f"; norms follow the {percent(privacy.clipping_quantile, 0)} quantile of the clients' norms"
    scores = {
        "exact": "the server learns each client's scores and losses",
        "none": "scores and losses stay at the clients",
        "noised": "only means over clients are released, with noise",
    }
    sums = "the server sees what each client sends"
    if privacy.secagg:
        needed = f"at least {percent(privacy.secagg_threshold, 0)} of a round's clients must reply"
        if privacy.coordinator == "verified":
            needed = "nodes open them and compute each model, and all members must reply"
        sums = f"the server learns only weighted sums; {needed}"
    robust = rules.aggregator != "mean" or rules.max_share < 1
    on_failure = f"on a failure: {rules.on_failure}"
    limits = f"aggregator {rules.aggregator}, at most {percent(rules.max_share, 0)} for one client"
    terms = [
        ("differential privacy", state(privacy.dp != "none", dp[privacy.side] + (moving if privacy.adaptive else ""))),
        ("secure aggregation", state(privacy.secagg, sums)),
        ("score protection", state(privacy.scores != "exact", scores[privacy.scores])),
        ("robust aggregation", state(robust, limits if robust else "a client can shift the mean without limit")),
        ("minimum clients", f"valid replies required per round: {rules.min_clients}; {on_failure}"),
    ]
    if cfg.adversary.kind != "none":
        who = ", ".join(map(str, cfg.adversary.clients)) or "none"
        terms.append(("malicious clients", render("alarm", kind=cfg.adversary.kind, content=f"clients {who}")))
    return terms


def _spent(run: FinishedRun) -> Markup:
    spent = run.summary.get("privacy") or next(
        (r["privacy"] for r in reversed(run.every_round) if "privacy" in r), None
    )
    if not isinstance(spent, dict):
        return Markup("")
    return note(f"{run.label}: {spent_text(spent, run.cfg.privacy.scores)}.")


def _failures(runs: Sequence[FinishedRun]) -> Markup:
    """Tabulate failures by client and reason, most frequent first."""
    failures: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        for record in run.every_round:
            for who, reason in record["failed"].items():
                failures.setdefault((run.client_name(sanitize(who)), sanitize(reason, 1000)), []).append(
                    record["round"]
                )
        for who, reason in (run.summary.get("failures") or {}).items():
            failures.setdefault((run.client_name(sanitize(who)), sanitize(reason, 1000)), [])
    if not failures:
        return note("No reply failed.")
    rows = [
        [who, (str(len(rounds) or 1), float(len(rounds) or 1)), _span(rounds), reason]
        for (who, reason), rounds in sorted(failures.items(), key=lambda item: -len(item[1]))
    ]
    return table(["client", "failures", "rounds", "reason"], rows, "Failed replies.")


def _span(rounds: Sequence[int]) -> str:
    if not rounds:
        return "set-up or end"
    return str(rounds[0]) if len(set(rounds)) == 1 else f"{min(rounds)} to {max(rounds)}"


# --- how to repeat it -------------------------------------------------------------------------------------------------


def repeat(groups: Sequence[RunGroup]) -> list[Markup]:
    """List commands, versions and configurations."""
    parts = []
    for group in groups:
        for run in group.runs:
            name = f"{group.name}, seed {run.cfg.seed}"
            command = f"fedgraph-flwr run config={run.folder / CONFIG}"
            parts.append(render("repeat", name=name, command=command, config=(run.folder / CONFIG).read_text()))
    first = groups[0].runs[0]
    versions = first.summary.get("versions")
    overrides = overrides_of(first.cfg)
    words = [f"config={first.folder / CONFIG}"] if overrides is None else overrides
    terms: list[tuple[str, str]] = [("command", render("code", content=f"fedgraph-flwr run {shlex.join(words)}"))]
    if isinstance(versions, dict):
        terms.append(("versions", ", ".join(f"{name} {number}" for name, number in versions.items())))
    if first.summary.get("commit"):
        terms.append(("commit", render("code", content=first.summary["commit"])))
    seeds = [f"{', '.join(str(run.cfg.seed) for run in group.runs)} ({group.name})" for group in groups]
    terms.append(("seeds", "; ".join(seeds)))
    return [pairs(terms), *parts]

"""Pages of a party: alerts, drift, reasons and worth as self-contained HTML, drawn as the report of runs."""

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup

from fedgraph_flwr.config.method_names import method_name
from fedgraph_flwr.errors import counted, sanitize
from fedgraph_flwr.evaluation.chance import predictor as predictor_of
from fedgraph_flwr.evaluation.verdict import BETTER, LEVEL, MARGIN, NOT_DECIDED, WORSE
from fedgraph_flwr.party.use.cases import picture
from fedgraph_flwr.party.use.frames import write_frame
from fedgraph_flwr.report.headline import display_name, is_share, score_text
from fedgraph_flwr.report.page import CHANCE, SHARE, Page, coloured, dot, grid, number, of_change, render, table
from fedgraph_flwr.report.units import count, duration, percent, size
from fedgraph_flwr.report.units import points as in_points

MAX_ROWS = 500
"""Most alerts in a page; the CSV has all."""

MAX_PICTURES = 20
"""Most alerts whose surroundings are drawn."""

MAX_BARS = 25
"""Most columns in the chart of drift; the table has all."""

MAX_SHAPES = 6
"""Most columns whose distributions a page of drift draws."""

_COLOURS = {"stable": 2, "watch": 1, "shifted": 3}


def write_outputs(args: Namespace, frame: Any, page: Callable[[], Page], what: str = "") -> None:
    """Write a table to ``--out`` and its page to ``--page``, as far as they are given, and print both.

    Raises:
        FedGraphError: a suffix is unknown, or a folder is not writable.
    """
    if args.out is not None:
        write_frame(frame, args.out)
        print(f"wrote {what}{args.out}")
    if args.page is not None:
        page().write(args.page)
        print(f"wrote {args.page}")


def alerts_page(choice: Any, listed: Any, predictor: Any, items: int, around: Mapping[str, Any] | None = None) -> Page:
    """Return the page of a party's alerts.

    Args:
        choice: threshold and calibration (`alerts.Choice`).
        listed: table of the alerts.
        predictor: the model.
        items: number of scored items.
        around: payments around each alert (`cases.add_details`).
    """
    figures = choice.test or choice.validation
    cells = [("alerts", count(len(listed)), f"of {count(items)} items")]
    cells.append(("from a probability of", percent(choice.probability), choice.positive))
    for name in ("precision", "recall", "alerts_per_day"):
        if name in figures:
            value, low, high = figures[name]
            shown = [percent(v) if name != "alerts_per_day" else f"{v:.3g}" for v in (value, low, high)]
            cells.append((name.replace("_", " "), shown[0], f"{shown[1]} to {shown[2]}"))
    if choice.calibrated:
        before, after = (choice.calibrated[when]["brier"] for when in ("before", "after"))
        kept, other = (
            (after, f"{before:.3g} before calibration") if choice.is_calibrated else (before, "not calibrated")
        )
        cells.append(("Brier score", f"{kept:.3g}", other))
    kind = "calibrated " if choice.is_calibrated else ""
    lead = f"Items that the model takes for '{choice.positive}' with at least this {kind}probability, the surest first."
    page = _page(f"Alerts of {_whose(predictor)}", f"{lead} Model {choice.model}.", cells, right_of_100(choice))
    cut = f" The first {MAX_ROWS} of {len(listed)}." if len(listed) > MAX_ROWS else ""
    shown = _readable(listed[:MAX_ROWS])
    forms = {"probability": percent, "earlier": percent}
    how = f"Click on a column to sort.{cut}"
    if "new" in shown:
        of = "alerts on the same accounts" if "edge" in shown else "the account's probability"
        how += f" New: none the day before; earlier: {of} then."
    page.section("alerts", "Alerts", how, [_table(shown, True, forms)] if len(shown) else [])
    if around:
        _draw_paths(page, listed, around)
    if "time" in shown and len(shown):
        counts = Counter(listed["time"].str.replace(r"[T ]\d\d:.*", "", regex=True))
        days = sorted(counts, key=lambda day: (len(day), day))
        data: dict[str, Any] = {"unit": "count", "name": "", "categories": days}
        data["series"] = [{"name": "alerts", "values": [counts[day] for day in days], "colour": 0}]
        chart = page.chart("Alerts", "Number of alerts by day.", "bars", wide=True, **data)
        page.section("days", "Alerts per day", "", [chart])
    page.section("threshold", "Threshold and calibration", "", [grid(_operating(page, choice), _curve(page, choice))])
    return page


def _readable(listed: Any) -> Any:
    """Return a table of alerts as a page shows it: accounts with their banks, the reasons last and wide."""
    shown = listed.drop(columns=["model", "score"])
    for end in ("source", "target"):
        if (name := f"bank of {end}") in shown:
            banks = shown.pop(name)
            shown[end] = [
                f"{account} ({bank})" if bank else account for account, bank in zip(shown[end], banks, strict=True)
            ]
    if "time" in shown:
        shown["time"] = shown["time"].astype(str).str.replace("T", " ")
        if "day" in shown and (shown["day"] == shown["time"].str[:10]).all():
            del shown["day"]
    wide = ("earlier", "path", "reasons")
    return shown[[*(name for name in shown if name not in wide), *(name for name in wide if name in shown)]]


def _draw_paths(page: Page, listed: Any, around: Mapping[str, Any]) -> None:
    """Draw the payments around the first alerts."""
    pictures = []
    for row in listed[:MAX_PICTURES].itertuples():
        if str(row.edge) in around:
            about = f"Alert {row.rank}, case {row.case}: {sanitize(str(row.edge), 40)}"
            drawn = picture(around[str(row.edge)])
            pictures.append(Markup("<figure><figcaption>{}</figcaption>{}</figure>").format(about, drawn))
    if pictures:
        how = "Payments into the payer before each alert (blue), the alert (red), and out of the receiver after it (green),"
        page.section("paths", "The money's path", f"{how} within a week.", [grid(*pictures)])


def right_of_100(choice: Any) -> str:
    """Return how many of 100 alerts are right, next to a random choice of items; empty without labelled alerts.

    Without a positive item no alert can be right, whatever the model is worth.
    """
    if choice.threshold == float("inf"):
        return "No item is an alert: on validation items, the rule is met best without any."
    for figures, what in ((choice.test, "test"), (choice.validation, "validation")):
        if figures.get("items") and "precision" in figures and figures["precision"][0] == figures["precision"][0]:
            if not figures["positives"]:
                return (
                    f"How many alerts are right is not known: none of the {figures['items']} {what} items is positive."
                )
            value, low, high = (_of_100(ratio) for ratio in figures["precision"])
            drawn = _of_100(figures["positives"] / figures["items"])
            value = value if value.startswith("fewer") else f"about {value}"
            span = f" ({low} to {high})" if "nan" not in (low, high) else ""
            share = f"; they find {100 * figures['recall'][0]:.0f} % of the positives" if "recall" in figures else ""
            text = f"{value}{span} of 100 alerts are right (random picks: {drawn}){share}, on {what} items."
            return text[0].upper() + text[1:]
    return ""


def _of_100(share: float) -> str:
    """Return how many of 100 a share is, as a whole number."""
    if share != share:
        return "nan"
    value = 100 * share
    return "fewer than 1" if 0 < value < 0.5 else f"{value:.0f}"


def _operating(page: Page, choice: Any) -> Markup:
    """Plot precision and recall of validation and test items with their intervals."""
    rows = [
        dot(f"{name}, {split}", value, colour)
        for colour, name in enumerate(("precision", "recall"))
        for split, figures in (("validation", choice.validation), ("test", choice.test))
        if (value := figures.get(name))
    ]
    how = "Of the items above the threshold; lines: 95 % intervals. The threshold was chosen on the validation items."
    return page.dots("Precision and recall", how, rows, 66, unit="share", name="")  # as high as the chart next to it


def _curve(page: Page, choice: Any) -> Markup:
    """Plot the reliability of probabilities before and after the calibration."""
    if not choice.calibrated:
        return Markup("")
    named = {}
    for when in ("before", "after"):
        curve = choice.calibrated[when]["curve"]
        sizes = [6 + 14 * (count / max(row[2] for row in curve)) ** 0.5 for *_, count in curve]
        points = [[mean, share, f"{n} items", size] for (mean, share, n), size in zip(curve, sizes, strict=True)]
        named[f"{when} calibration"] = {"points": points}
    series = coloured(named)
    how = "Test items in ten bins of probability: on the diagonal, probabilities are shares. Larger: more items."
    x = {"name": "mean probability", **SHARE}
    y = {"name": f"share of '{sanitize(choice.positive, 30)}'", **SHARE}
    return page.chart("Calibration", how, "plane", height=320, series=series, diagonal=True, x=x, y=y)


def drift_page(changes: Any, predictor: Any) -> Page:
    """Return the page of a table of `drift.drift`."""
    from fedgraph_flwr.party.use.drift import SHIFTED, WATCH

    counts = changes["verdict"].value_counts()
    meanings = {"shifted": f"PSI above {SHIFTED:g}", "watch": f"PSI from {WATCH:g}"}
    meanings["stable"] = "or not more than chance"
    cells = [(verdict, str(counts.get(verdict, 0)), meaning) for verdict, meaning in meanings.items()]
    lead = (
        "New tables compared with the stored data: population stability index (PSI) of each column, the largest first."
    )
    unseen = "; ".join(f"{column} {values}" for column, values in changes.attrs["unseen"].items())
    page = _page(f"Drift of {_whose(predictor)}", lead, cells, f"Never seen in training: {unseen}." if unseen else "")
    names = [sanitize(r.column if r.what == "median" else f"{r.column} ({r.what})", 200) for r in changes.itertuples()]
    rows = [
        dot(name, (row.psi, None, None), _COLOURS[row.verdict])
        for name, row in zip(names[:MAX_BARS], changes[:MAX_BARS].itertuples(), strict=True)
    ]
    marks = [{"name": "", "at": limit} for limit in (WATCH, SHIFTED)]
    how = f"The {len(rows)} largest changes; dotted: {WATCH:g} and {SHIFTED:g}."
    how += " Triangles: stable; squares: watch; diamonds: shifted."
    shown: Any = {"unit": "plain", "name": "PSI", "marks": marks, "beside": True}
    chart = page.dots("Change by column", how, rows, 30, wide=True, **shown)
    page.section("changes", "Changes", "", [chart])
    drawn = [place for place, (bins, *_) in enumerate(changes.attrs["shapes"]) if bins][:MAX_SHAPES]
    shapes = []
    for place in drawn:
        bins, stored, new = changes.attrs["shapes"][place]
        sides = (("stored", stored), ("new", new))
        data: dict[str, Any] = {"unit": "share", "name": "", "categories": [sanitize(name, 60) for name in bins]}
        data["series"] = [{"name": name, "values": part, "colour": colour} for colour, (name, part) in enumerate(sides)]
        row = changes.iloc[place]
        about = f"Share of rows in each bin; PSI {row.psi:.3g}, {row.verdict}."
        shapes.append(page.chart(f"{row.table}: {names[place]}", about, "bars", **data, stack=False))
    how = "Deciles of the stored values, or categories: stored rows, and new ones. The largest changes."
    page.section("shapes", "Distributions", how, [grid(*shapes)])
    every = _table(changes.rename(columns={"psi": "PSI"}), True)
    page.section("columns", "All columns", "Click on a column to sort.", [every])
    return page


def explain_page(explanations: Sequence[Any], top: int, predictor: Any) -> Page:
    """Return the page of the reasons of items.

    Args:
        explanations: `explain.Reasons` of each item.
        top: number of reasons per item.
        predictor: the model.
    """
    from fedgraph_flwr.party.use.explain import WITHOUT

    lead = "Columns and payments that carry the score of each item, in the model. Bars to the right raise the score."
    page = _page(f"Reasons by {_whose(predictor)}", lead, [])
    for place, reasons in enumerate(explanations):
        frame = reasons.to_frame(top)
        names = [sanitize(row.text, 1000) for row in frame.itertuples()]
        value = frame["contribution"].to_numpy()
        signs = (("raises the score", np.maximum(value, 0)), ("lowers the score", np.minimum(value, 0)))
        series = [{"name": name, "values": part, "colour": colour} for colour, (name, part) in enumerate(signs)]
        how = "Contribution to the score, the largest first."
        data: dict[str, Any] = {"unit": "plain", "name": "contribution", "categories": names, "series": series}
        height = 90 + 24 * len(names)
        chart = page.chart("Contributions", how, "bars", height=height, wide=True, **data, flat=True, signed=True)
        score, without = (f"{value:.3g}".replace("-", "−") for value in (reasons.score, reasons.without))
        checks = f"Score {score}, {without} without the first {WITHOUT} reasons"
        checks += (
            f"; rank correlation with a random model {reasons.alike:.2f} (near 1: they follow from the data alone)."
        )
        rest = frame[["rank", "text", "contribution"]].rename(columns={"text": "reason"})
        page.section(f"item{place}", f"Item {sanitize(reasons.item, 40)}", checks, [chart, _table(rest)])
    return page


def worth_page(comparison: Any) -> Page:
    """Return the page of a table of `worth.worth`."""
    metric, about = comparison["metric"][0], comparison.attrs
    unit = "share" if is_share(metric) else "plain"
    cells = [
        (row.run, score_text(row.score, metric), row.verdict or "compared with") for row in comparison.itertuples()
    ]
    lead = f"{count(about['items'])} test items of the party; intervals by {about['clusters']} {about['by']}s."
    if (level := about.get("chance", np.nan)) == level:
        lead += f" Chance ({predictor_of(metric)}): {score_text(level, metric)}."
    page = _page(
        f"Worth: {display_name(metric)} of {', '.join(comparison['run'])}", lead, cells, worth_text(comparison)
    )
    charts = []
    name = display_name(metric)
    for title, names, rows in (
        (f"{name[0].upper()}{name[1:]}", ("score", "low", "high"), comparison),
        (f"Difference to {comparison['run'][0]}", ("difference", "difference_low", "difference_high"), comparison[1:]),
    ):
        points = [dot(row["run"], [row[name] for name in names], place) for place, row in rows.iterrows()]
        is_change = names[0] == "difference"
        if not is_change and level == level:
            points.append(dot("Chance", (level, np.nan, np.nan), **CHANCE))
        how = "Lines: 95 % intervals" + (
            ": one that contains 0 decides nothing, unless it is level." if is_change else "."
        )
        axis: Any = of_change(unit) if is_change else {"unit": unit, "name": ""}
        height = 46 * (len(comparison) + (level == level)) // max(len(points), 1)  # both charts are as high
        charts.append(page.dots(title, how, points, height, **axis))
    page.section("scores", "Scores", "", [grid(*charts)])
    costs = comparison[["run", "rounds", "seconds", "megabytes", "epsilon"]]
    costs = costs.rename(columns={"seconds": "time", "megabytes": "traffic per party", "epsilon": "ε"})
    forms = {"time": duration, "traffic per party": lambda megabytes: size(1e6 * megabytes)}
    page.section("cost", "Cost", "", [_table(costs, forms=forms)])
    return page


def worth_text(comparison: Any) -> str:
    """Return what a table of `worth.worth` decides for the party, in one sentence per run."""
    metric, first = comparison["metric"][0], comparison["run"][0]
    factor, unit = (100, " points") if is_share(metric) else (1, "")
    within = f" by more than {MARGIN:g} point" if is_share(metric) else ""
    said = {
        BETTER: "{} helps this party",
        WORSE: "{} harms this party",
        LEVEL: f"{{}} changes nothing for this party{within}",
        NOT_DECIDED: "For this party {} is not shown to help (not decided)",
    }
    parts = []
    for row in comparison[1:].itertuples():
        change, low, high = (
            f"{factor * value:+.{1 if unit else 3}{'f' if unit else 'g'}}".replace("-", "−")
            for value in (row.difference, row.difference_low, row.difference_high)
        )
        seeds = counted(row.seeds, "seed")
        parts.append(f"{said[row.verdict].format(row.run)}: {change}{unit} to {first} ({low} to {high}), {seeds}.")
    return " ".join(parts)


def contribution_page(contributions: Any) -> Page:
    """Return the page of a table of `contribution.contribution`."""
    metric, about = contributions.attrs["metric"], contributions.attrs
    lead = (
        f"{score_text(about['none'], metric)} without parties, {score_text(about['all'], metric)} with all, on the test items of"
        f" all parties. {about['runs']} runs of coalitions. Figures are about one seed, and about the data of single parties."
    )
    page = _page(f"Contribution of each party: {display_name(metric)}", lead, [])
    rows = enumerate(contributions.itertuples())
    points = [dot(row.party, (row.contribution, row.low, row.high), place) for place, row in rows]
    how = "They add up to the gain of all parties."
    unit = "share" if is_share(metric) else "plain"
    chart = page.dots("Shapley values", how, points, **of_change(unit))
    score, change = partial(score_text, metric=metric), in_points if unit == "share" else _digits
    more = " (points)" if unit == "share" else ""
    changes = {name: f"{name}{more}" for name in ("contribution", "low", "high")}
    forms = dict.fromkeys(changes.values(), change) | {"alone": score, "without": score}
    shown = contributions.dropna(axis="columns", how="all").rename(columns=changes)  # one seed has no interval
    page.section("parties", "Parties", "", [grid(chart), _table(shown, forms=forms)])
    return page


def _page(title: str, lead: str, cells: Iterable[tuple[str, str, str]], finding: str = "") -> Page:
    """Return a page with its heading, the finding first, and tiles."""
    page = Page(title)
    said = render("answer", text=finding) if finding else Markup("")
    page.heading(said + render("lead", text=lead), render("tiles", cells=list(cells)) if cells else "")
    return page


def _whose(predictor: Any) -> str:
    return f"{predictor.who}: {method_name(predictor.cfg.strategy.name)} on {predictor.cfg.data_name}"


def _digits(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def _table(frame: Any, stacked: bool = False, forms: Mapping[str, Callable[[float], str]] | None = None) -> Markup:
    """Return a table of a data frame; numbers sort as numbers, ``forms`` has how those of a column are written."""
    columns: list[list[Any]] = []
    for name in frame:
        numbers, values = frame[name].dtype.kind in "fiu", frame[name]
        form = (forms or {}).get(name, _digits)
        columns.append([number(form, float(v)) if numbers else sanitize(v, 2000) for v in values])
    return table([str(name).replace("_", " ") for name in frame], list(zip(*columns, strict=True)), stacked=stacked)

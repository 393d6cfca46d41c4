"""Stored results for the pages: bytes per exchange, curves, and a method's rows of the tables."""

import csv
import math
import re
import statistics
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

from fedgraph_flwr.evaluation.intervals import interval

RESULTS = Path(__file__).parents[2] / "simulations" / "results"
BASELINES = ("local", "fedavg", "central")
ROWS = 12  # maximum rows of a table on a method's page


@lru_cache(maxsize=4)
def by_method(name: str) -> dict[str, list[dict[str, str]]]:
    """Return the rows of a stored CSV by their column ``method``."""
    rows = defaultdict(list)
    path = RESULTS / name
    if path.is_file():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                rows[row["method"]].append(row)
    return dict(rows)


def size(number: float) -> str:
    """Format a number of bytes with a unit."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}" if number >= 100 or unit == "B" else f"{number:.2g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def travels(method: str) -> list[str]:
    """Return a table of bytes per exchange in a short run."""
    rows = by_method("travels.csv").get(method)
    if not rows:
        return []
    lines = ["| exchange | when | to a client | from a client |", "|---|---|---|---|"]
    for row in rows:
        lines.append(f"| `{row['phase']}` | {row['when']} | {size(float(row['down']))} | {size(float(row['up']))} |")
    parameters = int(rows[0]["parameters"])
    shared = f", which shares {parameters:,} parameters ({size(4 * parameters)})" if parameters else ""
    note = f"Bytes of one exchange, mean over clients, in a run of `{rows[0]['words']}`{shared}."
    made = "Command: `python -m benchmarks.travels`."
    return ["\n".join(lines), f'<p class="note" markdown>{note} {made}</p>']


def budget(method: str) -> list[str]:
    """Return a method's curve on CSBM clients with those of FedAvg and Local, and its bytes per round."""
    curves = by_method("budget.csv")
    if method not in curves:
        return []
    traffic = {name: int(rows[-1]["bytes"]) / int(rows[-1]["round"]) for name, rows in curves.items()}
    text = "On ten CSBM clients with different homophily ([budget](../results/budget.md)), "
    text += f"it sends {size(traffic[method])} per round"
    ratio = f"{traffic[method] / traffic['fedavg']:.2g}"
    text += "." if method == "fedavg" else ", like FedAvg." if ratio == "1" else f", {ratio} times FedAvg's."
    names = dict.fromkeys(name for name in ("local", "fedavg", method) if name in curves)
    points = {
        name: [(int(row["round"]), float(row["validation"])) for row in curves[name] if row["seed"] == "0"]
        for name in names
    }
    note = "Validation accuracy in % by round, for one seed and the defaults of the YAML."
    return [text, f'{plot(points, method)}\n<p class="note">{note}</p>']


def plot(points: dict[str, list[tuple[int, float]]], method: str) -> str:
    """Draw shares by round as an SVG in the page's colours, with names at the ends of the lines."""
    left, right, top, bottom = 44, 550, 10, 190
    rounds = max(x for line in points.values() for x, _ in line)
    low = int(10 * min(0.5, *(y for line in points.values() for _, y in line))) / 10

    def at(x: float, y: float) -> tuple[float, float]:
        across = left + (x - 1) / max(rounds - 1, 1) * (right - left)
        return round(across, 1), round(top + (1 - y) / (1 - low) * (bottom - top), 1)

    drawn = []
    for tick in range(int(low * 10), 11, 1 if low >= 0.5 else 2):
        y = at(1, tick / 10)[1]
        drawn.append(
            f'<path class="grid" d="M{left},{y}H{right}"/><text x="38" y="{y + 4}" text-anchor="end">{tick * 10}</text>'
        )
    for tick in (1, rounds // 2, rounds):
        drawn.append(f'<text x="{at(tick, low)[0]}" y="210" text-anchor="middle">{tick}</text>')
    below, order = -15.0, sorted(points, key=lambda name: -points[name][-1][1])
    for name in order:
        kind = "own" if name == method else name
        path = "M" + "L".join(f"{x},{y}" for x, y in (at(*point) for point in points[name]))
        below = max(at(*points[name][-1])[1], below + 15)
        drawn.append(
            f'<path class="line {kind}" d="{path}"/><text class="name {kind}" x="556" y="{below + 4}">{name}</text>'
        )
    label = f"Validation accuracy in % by round: {', '.join(order)}"
    return f'<svg class="plot" viewBox="0 0 640 220" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


@lru_cache(maxsize=1)
def tables() -> dict[str, list[dict[str, str]]]:
    """Return the rows of every stored table with overrides, and the strategy that these name (``of``)."""
    rows = {}
    for path in sorted(RESULTS.glob("*.csv")):
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if not {"setting", "words", "value"} <= set(reader.fieldnames or ()):
                continue
            rows[path.stem] = [row for row in reader if row["value"]]
        for row in rows[path.stem]:
            named = re.search(r"(?:^| )strategy(?:\.name)?=(\S+)", row["words"])
            row["of"] = named[1] if named else ""
    return rows


def results(method: str) -> list[str]:
    """Return a method's rows of the stored tables with the baselines; tables of tuning runs are only linked."""
    stems = [stem for stem, rows in tables().items() if any(row["of"] == method for row in rows)]
    whole = sorted(
        (s for s in stems if not re.search(r"tried|tuned|profiles|chosen|steps", s)),
        key=lambda s: ("_table" not in s, s),
    )
    said = [beside(method, stem) for stem in whole[:4]]
    rest = [f"[{stem}](../results/{stem}.md)" for stem in stems if stem not in whole[:4]]
    if method in by_method("budget.csv"):
        rest.append("[budget](../results/budget.md)")
    if rest:
        said.append(f"{'Also in' if said else 'In'} {', '.join(rest)}.")
    return said or ["No stored table contains it yet."]


def beside(method: str, stem: str) -> str:
    """Return a method's columns of a table, with the first column of each baseline."""
    rows = tables()[stem]
    firsts = [next((row["method"] for row in rows if row["of"] == name), None) for name in BASELINES if name != method]
    own_columns = list(dict.fromkeys(row["method"] for row in rows if row["of"] == method))
    columns = list(dict.fromkeys([*filter(None, firsts), *own_columns[:5]]))
    settings = list(dict.fromkeys(row["setting"] for row in rows if row["of"] == method))
    values = defaultdict(list)
    for row in rows:
        values[row["setting"], row["method"]].append(100 * float(row["value"]))
    lines = [f"**[{heading(RESULTS / f'{stem}.md')}](../results/{stem}.md)**, test scores in %", ""]
    heads = [f"**{cell(column)}**" if column in own_columns else cell(column) for column in columns]
    lines += ["| | " + " | ".join(heads) + " |", "|---" * (len(columns) + 1) + "|"]
    for setting in settings[:ROWS]:
        lines.append("| " + " | ".join([cell(setting), *(mean(values[setting, column]) for column in columns)]) + " |")
    if len(settings) > ROWS or len(own_columns) > 5:
        lines.append(f"| … | [the rest](../results/{stem}.md) |" + " |" * (len(columns) - 1))
    return "\n".join(lines)


def mean(scores: list[float]) -> str:
    """Format the mean over seeds and half of its 95 % interval; empty without values, ``failed`` if a run failed."""
    if any(map(math.isnan, scores)):
        return "failed"
    if len(scores) < 2:
        return f"{scores[0]:.2f} (1 seed)" if scores else ""
    return f"{statistics.mean(scores):.2f} ± {interval(scores).half:.2f}"


def cell(text: str) -> str:
    """Escape a CSV value for a Markdown table."""
    return text.replace("|", r"\|") or "—"


def heading(path: Path) -> str:
    """Return the title of a page."""
    return path.read_text().partition("\n")[0].lstrip("# ") if path.is_file() else path.stem

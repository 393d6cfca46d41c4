"""The stored results as the pages show them: what travelled, curves, and a method's place in the tables."""

import csv
import math
import re
import statistics
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "simulations" / "results"
BASELINES = ("local", "fedavg", "central")
ROWS = 12  # of a table on a method's page


@lru_cache(maxsize=4)
def by_method(name: str) -> dict[str, list[dict[str, str]]]:
    """The rows of a stored CSV, by their column ``method``."""
    found = defaultdict(list)
    path = RESULTS / name
    if path.is_file():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                found[row["method"]].append(row)
    return dict(found)


def size(number: float) -> str:
    """Bytes, in a unit that one reads."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}" if number >= 100 or unit == "B" else f"{number:.2g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def travels(method: str) -> list[str]:
    """What went over the wire in a short run, by phase."""
    rows = by_method("travels.csv").get(method)
    if not rows:
        return []
    lines = ["| exchange | when | to a client | from a client |", "|---|---|---|---|"]
    for row in rows:
        lines.append(f"| `{row['phase']}` | {row['when']} | {size(float(row['down']))} | {size(float(row['up']))} |")
    parameters = int(rows[0]["parameters"])
    shared = f", which shares {parameters:,} parameters ({size(4 * parameters)})" if parameters else ""
    note = f"Bytes of one exchange, a mean over clients, in a run of `{rows[0]['words']}`{shared}."
    made = "Made by `python -m benchmarks.travels`."
    return ["\n".join(lines), f'<p class="note" markdown>{note} {made}</p>']


def budget(method: str) -> list[str]:
    """A method's curve on unlike CSBM clients, beside FedAvg's and Local's, and its bytes a round."""
    curves = by_method("budget.csv")
    if method not in curves:
        return []
    each = {name: int(rows[-1]["bytes"]) / int(rows[-1]["round"]) for name, rows in curves.items()}
    told = f"On ten CSBM clients of unlike homophily ([budget](../results/budget.md)) it sends {size(each[method])} a round"
    ratio = f"{each[method] / each['fedavg']:.2g}"
    told += "." if method == "fedavg" else ", as FedAvg does." if ratio == "1" else f", {ratio} times FedAvg's."
    names = dict.fromkeys(name for name in ("local", "fedavg", method) if name in curves)
    points = {
        name: [(int(row["round"]), float(row["validation"])) for row in curves[name] if row["seed"] == "0"]
        for name in names
    }
    note = "Validation accuracy in % by round; one seed, the values of the YAML."
    return [told, f'{plot(points, method)}\n<p class="note">{note}</p>']


def plot(points: dict[str, list[tuple[int, float]]], own: str) -> str:
    """Shares by round as a picture that follows the page's colours; names stand at the ends of their lines."""
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
        kind = "own" if name == own else name
        path = "M" + "L".join(f"{x},{y}" for x, y in (at(*point) for point in points[name]))
        below = max(at(*points[name][-1])[1], below + 15)
        drawn.append(
            f'<path class="line {kind}" d="{path}"/><text class="name {kind}" x="556" y="{below + 4}">{name}</text>'
        )
    label = f"Validation accuracy in % by round: {', '.join(order)}"
    return f'<svg class="plot" viewBox="0 0 640 220" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


@lru_cache(maxsize=1)
def tables() -> dict[str, list[dict[str, str]]]:
    """The rows of every stored table that tells the words of its runs, with the strategy that they name (``of``)."""
    found = {}
    for path in sorted(RESULTS.glob("*.csv")):
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if not {"setting", "words", "value"} <= set(reader.fieldnames or ()):
                continue
            found[path.stem] = [row for row in reader if row["value"]]
        for row in found[path.stem]:
            named = re.search(r"(?:^| )strategy(?:\.name)?=(\S+)", row["words"])
            row["of"] = named[1] if named else ""
    return found


def results(method: str) -> list[str]:
    """Where a method stands in the stored tables, beside what they have of the baselines; a search of values is named alone."""
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
    return said or ["No stored table has it yet."]


def beside(method: str, stem: str) -> str:
    """A method's columns of a table, with the first one of each baseline."""
    rows = tables()[stem]
    firsts = [next((row["method"] for row in rows if row["of"] == name), None) for name in BASELINES if name != method]
    own = list(dict.fromkeys(row["method"] for row in rows if row["of"] == method))
    columns = list(dict.fromkeys([*filter(None, firsts), *own[:5]]))
    settings = list(dict.fromkeys(row["setting"] for row in rows if row["of"] == method))
    values = defaultdict(list)
    for row in rows:
        values[row["setting"], row["method"]].append(100 * float(row["value"]))
    lines = [f"**[{heading(RESULTS / f'{stem}.md')}](../results/{stem}.md)**, test figures in %", ""]
    heads = [f"**{cell(column)}**" if column in own else cell(column) for column in columns]
    lines += ["| | " + " | ".join(heads) + " |", "|---" * (len(columns) + 1) + "|"]
    for setting in settings[:ROWS]:
        lines.append("| " + " | ".join([cell(setting), *(mean(values[setting, column]) for column in columns)]) + " |")
    if len(settings) > ROWS or len(own) > 5:
        lines.append(f"| … | [the rest](../results/{stem}.md) |" + " |" * (len(columns) - 1))
    return "\n".join(lines)


def mean(found: list[float]) -> str:
    """Mean and standard deviation over seeds; nothing where there are none, and no mean where a run failed."""
    if any(map(math.isnan, found)):
        return "failed"
    if len(found) < 2:
        return f"{found[0]:.2f} (1 seed)" if found else ""
    return f"{statistics.mean(found):.2f} ({statistics.stdev(found):.2f})"


def cell(text: str) -> str:
    """A word of a CSV in a Markdown table."""
    return text.replace("|", r"\|") or "—"


def heading(path: Path) -> str:
    """The first line of a page."""
    return path.read_text().partition("\n")[0].lstrip("# ") if path.is_file() else path.stem

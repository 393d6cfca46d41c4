"""Compare the methods of the board from its stored rows, and advise which method to try.

    python -m simulations.board                      # print the page of the stored rows; --write stores it as docs/board.md
    python -m simulations.board mine.yaml            # a table that extends the board, such as your method's
    python -m simulations.board measure              # properties of the complete settings' data, for the advice
    python -m simulations.board advise KEY=VALUE ... # a method for your data, if one beats "always FedAvg"
    python -m simulations.board repeat LABEL ...     # run SETTING/METHOD/SEED again and compare score and parameters

`fedgraph-flwr sweep simulations/board.yaml` runs the missing cells. Differences are paired by seed. Holm's correction covers all
comparisons with one reference. Across settings, the Bayesian signed-rank test has a region of practical equivalence.
"""

import csv
import itertools
import math
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.special import stdtr
from scipy.stats import rankdata, studentized_range

from fedgraph_flwr.config import compose
from fedgraph_flwr.config.composition import group_file
from fedgraph_flwr.data.graph import write_bytes
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation.intervals import BySeed, Interval, ended, interval, paired
from fedgraph_flwr.sweeps.results_index import ResultsIndex
from fedgraph_flwr.sweeps.rows import COUNTED, Row, number
from fedgraph_flwr.sweeps.runs import run_cell
from fedgraph_flwr.sweeps.spec import load
from fedgraph_flwr.sweeps.summary import SweepSummary

FOLDER = Path(__file__).parent
FILES = ("board.yaml", "board_edges.yaml")
TUNED = "board_tuned.yaml"
PAGE = FOLDER.parent / "docs" / "board.md"
DATA = FOLDER / "results" / "board_data.csv"
PROPERTIES = ("homophily", "homophily_gap", "label_skew", "log_nodes", "cut_share")
ROPE = 1.0
"""Half-width of the region of practical equivalence, in points."""
REFERENCES = ("FedAvg", "Local")
DRAWS = 20_000


# --- statistics -------------------------------------------------------------------------------------------------------


def signed_rank(differences: Sequence[float], rope: float = ROPE, draws: int = DRAWS) -> tuple[float, float, float]:
    """Return the probabilities that a method is practically worse, equivalent and better (Benavoli et al., JMLR 2017).

    Weights of the differences and of a prior difference of 0 with strength 1/2 are drawn from a Dirichlet distribution. A draw
    favours the region that has most weight among the Walsh averages.
    """
    z = np.array([0.0, *differences])
    weights = np.random.default_rng(0).dirichlet([0.5, *np.ones(len(z) - 1)], draws)  # [draws, q + 1]
    averages = (z[:, None] + z) / 2
    regions = np.stack([averages < -rope, np.abs(averages) <= rope, averages > rope])
    shares = np.einsum("di,rij,dj->dr", weights, regions, weights, optimize=True)
    worse, level, better = (np.bincount(shares.argmax(1), minlength=3) / draws).tolist()
    return worse, level, better


def p_value(scores: BySeed, others: BySeed) -> float:
    """Return the two-sided p-value of a paired t-test; NaN below two common seeds."""
    found = paired(scores, others)
    if found is None or found.n < 2:
        return math.nan
    first, second = ended(scores), ended(others)
    error = float(np.std([first[s] - second[s] for s in first.keys() & second.keys()], ddof=1)) / math.sqrt(found.n)
    if error == 0:
        return 1.0 if found.mean == 0 else 0.0
    return float(2 * stdtr(found.n - 1, -abs(found.mean) / error))


def holm(values: Mapping[Any, float]) -> dict[Any, float]:
    """Return p-values adjusted by Holm's step-down method; NaN stays NaN and is not counted."""
    order = sorted((key for key in values if not math.isnan(values[key])), key=lambda key: values[key])
    adjusted, highest = dict(values), 0.0
    for place, key in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * values[key]))
        adjusted[key] = highest
    return adjusted


def critical_difference(methods: int, settings: int) -> float:
    """Return Nemenyi's critical difference of mean ranks at 5 % (Demšar, JMLR 2006)."""
    q = studentized_range.ppf(0.95, methods, math.inf) / math.sqrt(2)
    return float(q * math.sqrt(methods * (methods + 1) / (6 * settings)))


def pareto(points: Mapping[str, tuple[float, float]]) -> set[str]:
    """Return the names that no other point beats: less cost and at least the score, or the same cost and more score."""
    return {
        name
        for name, (cost, score) in points.items()
        if not any(c <= cost and s >= score and (c, s) != (cost, score) for c, s in points.values())
    }


# --- the stored rows --------------------------------------------------------------------------------------------------


class Board:
    """The available rows of one table."""

    def __init__(self, path: Path):
        index = ResultsIndex(load(path))
        index.missing()
        self.sweep, self.found = index.sweep, index.found
        self.tally = SweepSummary(self.sweep, self.found)
        self.methods = self.tally.running

    @cached_property
    def rows(self) -> dict[tuple[str, str], list[Row]]:
        """Rows of the selected choice of each setting and method."""
        found: dict[tuple[str, str], list[Row]] = {}
        names = {(s, chosen): (s, m) for (s, m), chosen in self.tally.chosen.items()}
        for cell in self.sweep.cells(self.found):
            if (key := names.get((cell.setting, cell.method))) and (row := self.found.get(cell.identity)):
                found.setdefault(key, []).append(row)
        return found

    @property
    def total(self) -> int:
        """Number of cells of the whole table; a search has all of its trials."""
        counted = len(self.sweep.methods) - len(self.methods)
        each = self.sweep.runs_each * len(self.methods) + len(self.sweep.seeds) * counted
        return len(self.sweep.settings) * each

    @property
    def done(self) -> int:
        """Number of cells with a row."""
        return sum(cell.identity in self.found for cell in self.sweep.cells(self.found))

    @cached_property
    def begun(self) -> list[str]:
        """Settings in which two methods have two seeds in common."""
        return [s for s in self.sweep.settings if sum(len(self.score(s, m)) > 1 for m in self.methods) > 1]

    @cached_property
    def complete(self) -> list[str]:
        """Settings in which every method has every seed, failed or not."""
        seeds = len(self.sweep.seeds)
        return [s for s in self.sweep.settings if all(len(self.score(s, m)) == seeds for m in self.methods)]

    def score(self, setting: str, method: str) -> BySeed:
        """Return scores by seed, in percent if they are shares, higher is better."""
        return {seed: self.tally.sign * value for seed, value in self.tally.shown(setting, method).items()}

    def difference(self, setting: str, method: str, reference: str) -> Interval | None:
        """Return the paired difference; None without a common seed."""
        return paired(self.score(setting, method), self.score(setting, reference))

    def cost(self, setting: str, method: str, key: str) -> float:
        """Return a mean cost of the finished runs; NaN without any."""
        known = [value for row in self.rows.get((setting, method), []) if not math.isnan(value := spent(row, key))]
        return fmean(known) if known else math.nan

    def own_model(self, method: str) -> bool:
        """Whether a method runs on another model than FedAvg."""
        first = next(iter(self.sweep.settings.values()))
        models = [
            compose([*self.sweep.common, *first, *self.sweep.methods[name]]).model.name for name in ("FedAvg", method)
        ]
        return models[0] != models[1]

    @cached_property
    def ratios(self) -> dict[str, float]:
        """Mean ratio of each method's CPU seconds to FedAvg's, over the settings that have both."""
        found: dict[str, list[float]] = {}
        for s, m in itertools.product(self.sweep.settings, self.methods):
            if not math.isnan(ratio := self.cost(s, m, "cpu") / self.cost(s, "FedAvg", "cpu")):
                found.setdefault(m, []).append(ratio)
        return {m: fmean(each) for m, each in found.items()}

    def seconds(self, setting: str, method: str) -> float:
        """Return a run's mean CPU seconds; without a run, FedAvg's there times the method's ratio elsewhere; NaN if unknown."""
        own = self.cost(setting, method, "cpu")
        return self.cost(setting, "FedAvg", "cpu") * self.ratios.get(method, math.nan) if math.isnan(own) else own

    def hours(self) -> dict[str, tuple[int, float, bool]]:
        """Return each setting's missing runs, their core hours as far as known, and whether all are known."""
        left = {s: {m: n for m in self.methods if (n := self._left(s, m))} for s in self.sweep.settings}
        return {
            s: (sum(each.values()), *total([n * self.seconds(s, m) / 3600 for m, n in each.items()]))
            for s, each in left.items()
            if each
        }

    def _left(self, setting: str, method: str) -> int:
        """Return the number of missing runs of a setting and method."""
        names = self.tally.choices[setting, method]
        return self.sweep.runs_each - sum(len(self.tally.values.get((setting, name), {})) for name in names)


def total(values: Sequence[float]) -> tuple[float, bool]:
    """Return the sum of the known values, and whether all are known."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known), len(known) == len(values)


def spent(row: Row, key: str) -> float:
    """Return a row's CPU seconds, megabytes in both directions, exchanges, or peak memory in MiB."""
    if key == "bytes":
        return (number(row, "bytes_up") + number(row, "bytes_down")) / 1e6
    return number(row, {"cpu": "cpu_seconds", "exchanges": "exchanges", "memory": "peak_rss_mb"}[key])


# --- the page ---------------------------------------------------------------------------------------------------------


def paragraph(text: str) -> list[str]:
    """Return the lines of a paragraph, after an empty one."""
    return ["", *textwrap.wrap(" ".join(text.split()), 150, break_long_words=False, break_on_hyphens=False)]


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines)]


def signed(value: float) -> str:
    """Format a difference with its sign."""
    return f"{value:+.1f}".replace("-", "−")


def page(boards: Sequence[Board]) -> str:
    """Return the whole page."""
    lines = ["# The board"]
    lines += paragraph("""
        The board compares methods under one protocol (`conf/protocol/board.yaml`). All methods get the same
        clients, splits, rounds and model, and the defaults of their keys. Every seed draws a new partition.
        `python -m simulations.board --write` makes this page from the stored rows. To run missing cells:
        `fedgraph-flwr sweep simulations/board.yaml`.
    """)
    lines.append("")
    for board in boards:
        state = "complete" if board.done >= board.total else "**incomplete**"
        lines.append(f"- `simulations/{board.sweep.name}.yaml`: {state}, {board.done} of {board.total} cells.")
    for board in boards:
        if board.begun:
            lines += ["", f"## {board.sweep.title}", *paragraph(board.sweep.source), *analysis(board)]
    lines += [*advice_section(boards[0]), *missing_section(boards), *OWN]
    return "\n".join(lines) + "\n"


def analysis(board: Board) -> list[str]:
    """Return scores, differences, ranks and costs of one table."""
    begun, complete = board.begun, board.complete
    marked = {m: f"{m} *" if board.own_model(m) else m for m in board.methods}
    lines = ["", "### Scores", ""]
    body = []
    for method in [m for m in board.sweep.methods if m in COUNTED] + board.methods:
        cells = [score_text(board.score(s, method), len(board.sweep.seeds)) for s in begun]
        body.append([marked.get(method, method), *cells])
    lines += table(["", *begun], body)
    lines += [
        "",
        "Mean over seeds ± half of its 95 % interval, in %. A star marks a method with another model than FedAvg's.",
    ]
    for reference in REFERENCES:
        lines += ["", f"### Differences to {reference}", "", *against(board, reference, marked)]
    if len(complete) > 1:
        lines += ["", "### Mean ranks", *ranking(board, complete, marked)]
    return [*lines, "", "### Cost", "", *costs(board, complete or begun, marked)]


def score_text(scores: BySeed, seeds: int) -> str:
    """Format scores: mean ± half, missing seeds, failed seeds."""
    known = list(ended(scores).values())
    parts = []
    if known:
        mean = interval(known)
        parts.append(f"{mean.mean:.1f} ± {mean.half:.1f}" if mean.n > 1 else f"{mean.mean:.1f}")
    if len(known) < len(scores):
        parts.append(f"{len(scores) - len(known)} failed")
    if len(scores) < seeds:
        parts.append(f"({len(scores)} of {seeds} seeds)")
    return " ".join(parts)


def against(board: Board, reference: str, marked: Mapping[str, str]) -> list[str]:
    """Return paired differences per setting, and the verdict over settings."""
    others = [m for m in board.methods if m != reference]
    pairs = list(itertools.product(board.begun, others))
    adjusted = holm({(s, m): p_value(board.score(s, m), board.score(s, reference)) for s, m in pairs})
    body = []
    for m in others:
        found = {s: board.difference(s, m, reference) for s in board.begun}
        cells = []
        for s, gap in found.items():
            text = f"{signed(gap.mean)} ± {gap.half:.1f}" if gap and gap.n > 1 else ""
            cells.append(f"**{text}**" if text and adjusted[s, m] < 0.05 else text)
        means = [gap.mean for s in board.complete if (gap := found.get(s))]
        if means:
            counts = sum(x > ROPE for x in means), sum(abs(x) <= ROPE for x in means), sum(x < -ROPE for x in means)
            worse, level, better = signed_rank(means)
            verdict = ["/".join(map(str, counts)), f"{better:.2f} / {level:.2f} / {worse:.2f}"]
        else:
            verdict = ["", ""]
        body.append([marked[m], *cells, *verdict])
    lines = table(["", *board.begun, "wins/ties/losses", "P(better / level / worse)"], body)
    return lines + paragraph(f"""
        Paired by seed, ± half of the 95 % interval. Bold: significant at 5 % after Holm's correction for
        {len(pairs)} comparisons. Wins, ties and losses count the complete settings ({len(board.complete)}), with
        a tie within {ROPE:g} point. P is the Bayesian signed-rank test over these settings. An interval describes
        new partitions of one data set, not other data sets.
    """)


def ranking(board: Board, settings: Sequence[str], marked: Mapping[str, str]) -> list[str]:
    """Return mean ranks over complete settings and Nemenyi's critical difference."""
    scores = [[fmean(ended(board.score(s, m)).values() or [-math.inf]) for m in board.methods] for s in settings]
    ranks = np.mean([rankdata([-x for x in row]) for row in scores], axis=0)
    order = np.argsort(ranks, kind="stable")
    text = ", ".join(f"{marked[board.methods[i]]} {ranks[i]:.1f}" for i in order)
    critical = critical_difference(len(board.methods), len(settings))
    return paragraph(f"{text}.") + paragraph(f"""
        The critical difference at 5 % is {critical:.1f} (Nemenyi). With {len(board.methods)} methods on
        {len(settings)} settings, ranks illustrate; they decide little.
    """)


def costs(board: Board, settings: Sequence[str], marked: Mapping[str, str]) -> list[str]:
    """Return mean costs over settings, and the methods that no other beats in CPU seconds and score."""
    keys = ("cpu", "bytes", "exchanges", "memory")
    means = {m: [fmean(board.cost(s, m, key) for s in settings) for key in keys] for m in board.methods}
    gains = {m: _gain(board, m, settings) for m in board.methods}
    usable = {m for m in board.methods if not math.isnan(means[m][0] + gains[m])}
    best = pareto({m: (means[m][0], gains[m]) for m in usable})
    body = [
        [marked[m], signed(gains[m]), *(f"{x:.3g}" for x in means[m]), "yes" if m in best else ""]
        for m in sorted(usable, key=lambda m: means[m][0])
    ]
    head = ["", "points above FedAvg", "CPU seconds", "MB", "exchanges", "peak MiB", "Pareto"]
    return table(head, body) + paragraph(f"""
        Means over runs on {", ".join(settings)}. CPU seconds include setup. MB counts both directions of all
        clients. Memory is that of the whole process, which simulates server and clients. Pareto: no method is
        better in both score and CPU seconds.
    """)


def _gain(board: Board, method: str, settings: Sequence[str]) -> float:
    gaps = [board.difference(s, method, "FedAvg") for s in settings]
    return fmean(gap.mean if gap else math.nan for gap in gaps)


def missing_section(boards: Sequence[Board]) -> list[str]:
    """List what was not run, with its cost."""
    left = [(board.sweep.name, s, *found) for board in boards for s, found in board.hours().items()]
    tuned = load(FOLDER / TUNED)
    if tuned.search and not tuned.results.is_file():
        each = tuned.runs_each
        for s in tuned.settings:
            hours = total([each * boards[0].seconds(s, m) / 3600 for m in boards[0].methods])
            left.append((tuned.name, s, each * len(boards[0].methods), *hours))
    known = sum(hours for *_, hours, _ in left)
    body = [
        [f"`{name}`", s, str(n), ("" if whole else "at least ") + f"{hours:.2f}" if hours else "unknown"]
        for name, s, n, hours, whole in left
    ]
    lines = ["", "## Not run", "", *table(["table", "setting", "missing runs", "core hours"], body)]
    return lines + paragraph(f"""
        Known costs sum to {known:.2f} core hours. They are mean CPU seconds of stored runs. Where a method has
        none in a setting, they are FedAvg's there times the method's ratio to FedAvg elsewhere. Also not run:
        GraphLand's and IBM's sets, which need files that this repository does not have.
    """)


OWN = [
    "",
    "## Add your method",
    "",
    "A method of [your package](extend.md) enters by a table that extends the board. Runs that the board has are not repeated:",
    "",
    "<!-- not run: a method of yours -->",
    "```bash",
    "cat > simulations/mine.yaml <<END",
    "extends: board.yaml",
    "title: My method on the board",
    "methods: {Local: [strategy=local], FedAvg: [strategy=fedavg], Mine: [strategy=mine]}",
    "END",
    "fedgraph-flwr sweep simulations/mine.yaml",
    "python -m simulations.board simulations/mine.yaml",
    "```",
    *paragraph("""
        To check stored rows on your machine, run `python -m simulations.board repeat "Cornell/FedAvg/0"`. It
        compares the score and the hash of the parameters after the last round. Hashes hold for one version of
        PyTorch and one family of processors.
    """),
]


# --- advice -----------------------------------------------------------------------------------------------------------


def measured(overrides: Sequence[str]) -> dict[str, float]:
    """Return the properties of a configuration's clients."""
    import torch

    from fedgraph_flwr import partition
    from fedgraph_flwr.config import configuration
    from fedgraph_flwr.data.statistics import edge_homophily, label_skew

    cfg = partition.resolved(configuration(overrides))
    clients = [partition.load_client(cfg, i) for i in range(partition.num_clients(cfg))]
    kept, cut = (sum(getattr(c, key).size(1) for c in clients) for key in ("edge_index", "cut_out"))
    levels = [level for c in clients if (level := edge_homophily(c.edge_index, c.y)) is not None]
    labels = torch.stack([torch.bincount(c.y[c.y >= 0], minlength=c.num_classes) for c in clients])
    return {
        "homophily": fmean(levels),
        "homophily_gap": max(levels) - min(levels),
        "label_skew": float(label_skew(labels)[1].mean()),
        "log_nodes": math.log(sum(c.num_nodes for c in clients)),
        "cut_share": cut / max(kept + cut, 1),
    }


def measure(board: Board) -> None:
    """Store the properties of every complete setting, for the first seed."""
    with DATA.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["setting", *PROPERTIES], lineterminator="\n")
        writer.writeheader()
        for setting in board.complete:
            found = measured([*board.sweep.common, *board.sweep.settings[setting], f"seed={board.sweep.seeds[0]}"])
            writer.writerow({"setting": setting, **{key: f"{value:.4f}" for key, value in found.items()}})


def properties() -> dict[str, list[float]]:
    """Return the stored properties of each setting."""
    if not DATA.is_file():
        return {}
    with DATA.open(newline="") as file:
        return {row["setting"]: [float(row[key]) for key in PROPERTIES] for row in csv.DictReader(file)}


class Adviser:
    """The method that was best on the most similar data set, by standardised properties.

    Args:
        points: properties of each setting.
        gains: points above FedAvg of each setting and method.
        groups: data set of each setting; settings of one data set are left out together.
    """

    def __init__(
        self, points: Mapping[str, Sequence[float]], gains: Mapping[str, Mapping[str, float]], groups: Mapping[str, str]
    ):
        self.points, self.gains, self.groups = points, gains, groups

    def choose(self, point: Sequence[float], known: Sequence[str]) -> tuple[str, str]:
        """Return the method for a point, and the most similar of the known settings."""
        table = np.array([self.points[s] for s in known])
        scale = table.std(0)
        distance = (((table - np.asarray(point)) / np.where(scale > 0, scale, 1)) ** 2).sum(1)
        nearest = known[int(distance.argmin())]
        return max(self.gains[nearest], key=lambda m: self.gains[nearest][m]), nearest

    def left_out(self) -> dict[str, float]:
        """Return the mean gain over FedAvg of the advice for each data set, from the others only."""
        found: dict[str, list[float]] = {}
        for setting, group in self.groups.items():
            known = [s for s, other in self.groups.items() if other != group]
            if known:
                method, _ = self.choose(self.points[setting], known)
                found.setdefault(group, []).append(self.gains[setting].get(method, math.nan))
        return {group: fmean(gains) for group, gains in found.items()}

    def speaks(self) -> bool:
        """Whether the 95 % interval of the gain over left-out data sets is above 0."""
        gains = list(self.left_out().values())
        return len(gains) > 1 and (found := interval(gains)).mean > found.half


def adviser(board: Board) -> Adviser:
    """Return the adviser of the complete settings; methods that pool graphs are no advice."""
    points, settings = properties(), list(board.complete)
    own = [m for m in board.methods if not _pools(board.sweep.methods[m])]
    gains = {
        s: {m: gap.mean for m in own if (gap := board.difference(s, m, "FedAvg"))} for s in settings if s in points
    }
    groups = {s: compose([*board.sweep.common, *board.sweep.settings[s]]).dataset.name for s in gains}
    return Adviser(points, {s: {"FedAvg": 0.0, **gains[s]} for s in gains}, groups)


def _pools(overrides: Sequence[str]) -> bool:
    names = [word.partition("=")[2] for word in overrides if word.startswith("strategy=")]
    return any(group_file("strategy", name).get("pooled") for name in names)


def advice_section(board: Board) -> list[str]:
    """Describe what the advice gains on data sets that it has not seen."""
    found = adviser(board)
    gains = found.left_out()
    lines = ["", "## Which method for your data?"]
    if len(gains) < 2:
        return lines + paragraph(
            f"No advice yet: there are complete rows for {len(gains)} data sets, and leaving one out needs two."
        )
    mean = interval(list(gains.values()))
    each = ", ".join(f"{name} {signed(gain)}" for name, gain in gains.items())
    verdict = (
        "beats it, so the command names a method"
        if found.speaks()
        else "does not beat it, so the command says so instead"
    )
    return lines + paragraph(f"""
        `python -m simulations.board advise KEY=VALUE ...` looks for the method that was best on the most similar
        data set. Similarity is by homophily, its gap between clients, label skew, number of nodes and share of
        cut edges. With each data set left out in turn, the advice gains {signed(mean.mean)} ± {mean.half:.1f}
        points over always choosing FedAvg ({each}). It {verdict}.
    """)


def advise(board: Board, overrides: Sequence[str]) -> str:
    """Return the advice for a configuration, or why there is none."""
    found = adviser(board)
    if not found.speaks():
        gains = found.left_out()
        return f"No advice: on {len(gains)} left-out data sets, no choice by data properties beats always using FedAvg."
    mine = measured(["protocol=board", *overrides])
    method, nearest = found.choose([mine[key] for key in PROPERTIES], list(found.groups))
    values = ", ".join(f"{key} {value:.2f}" for key, value in mine.items())
    return f"Try {method}: it was best on {nearest}, the most similar setting (your data: {values})."


# --- commands ---------------------------------------------------------------------------------------------------------


def repeated(board: Board, labels: Sequence[str]) -> Iterator[str]:
    """Run stored cells again, and yield a line for each that compares score and parameters.

    Raises:
        FedGraphError: a label without a stored row.
    """
    cells = {cell.label: cell for cell in board.sweep.cells(board.found) if cell.identity in board.found}
    for label in labels:
        if label not in cells:
            raise FedGraphError(
                f"no stored run is labelled '{label}': pass SETTING/METHOD/SEED of a row of {board.sweep.results}"
            )
        old, new = board.found[cells[label].identity], run_cell(cells[label])
        same = "same parameters" if old.get("parameters") == new.get("parameters") else "other parameters"
        yield f"{label}: stored {number(old, 'value'):.4f}, now {number(new, 'value'):.4f}, {same}"


def main(args: Sequence[str]) -> None:
    """Run the command."""
    verb, rest = (args[0], args[1:]) if args else ("", [])
    if verb == "measure":
        measure(Board(FOLDER / FILES[0]))
    elif verb == "advise":
        print(advise(Board(FOLDER / FILES[0]), rest))
    elif verb == "repeat":
        for line in repeated(Board(FOLDER / FILES[0]), rest):
            print(line)
    elif verb == "--write":
        write_bytes(PAGE, page([Board(FOLDER / name) for name in FILES]).encode())
    elif verb:
        print("\n".join(analysis(Board(Path(verb)))))
    else:
        print(page([Board(FOLDER / name) for name in FILES]))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FedGraphError as error:
        sys.exit(f"error: {error}")

"""Compare the stored runs with the papers' tables: ``python -m simulations.reproduction [PAPER ...]``.

With ``--write`` the command updates the tables of `PAGES` between their marks.

A cell is a setting and a method with a published score. It is within a deviation if our mean over the seeds differs from that
score by at most the published standard deviation, or by at most ours if none is published. A method is ahead of another if the
95 % interval of their difference, paired by seed, is above 0, and behind if it is below 0.
"""

import math
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedgraph_flwr.config import group_names
from fedgraph_flwr.errors import unknown
from fedgraph_flwr.evaluation.intervals import deviation, ended, paired
from fedgraph_flwr.sweeps.results_index import ResultsIndex
from fedgraph_flwr.sweeps.spec import load
from fedgraph_flwr.sweeps.summary import SweepSummary

FOLDER = Path(__file__).parent
PAGES = (FOLDER.parent / "docs" / "start.md", FOLDER / "results" / "reproduction-papers.md")
GLANCE = re.compile(r"(<!-- glance: .*? -->\n).*?(?=<!-- end -->)", re.S)
DEMO = re.compile(r"(<!-- demo: .*? -->\n).*?(?=<!-- end -->)", re.S)
PRINTED = re.compile(r"([\d.]+)(?: \(([\d.]+)\))?")
BASELINES = {"Local": ("local",), "FedAvg": ("fedavg", "fedgrad")}  # FedGrad averages gradients: FedStruct's FL-GNN


@dataclass(frozen=True)
class Cell:
    """One published score, and our mean over the finished seeds; NaN without any."""

    setting: str
    method: str
    own: bool
    paper: float
    spread: float
    mean: float
    runs: int

    @property
    def verdict(self) -> str:
        """``within``, ``above``, ``below`` or, without a run, ``missing``."""
        if not self.runs:
            return "missing"
        gap = self.mean - self.paper
        return "within" if abs(gap) <= self.spread else "above" if gap > 0 else "below"


def papers() -> list[str]:
    """Return the papers by the names of their protocols."""
    return [name for name in group_names("protocol") if any(FOLDER.glob(f"{name}_table*.yaml"))]


def tables(paper: str) -> list[SweepSummary]:
    """Return the stored tables that the paper numbers; tables of further experiments have longer names."""
    paths = [path for path in sorted(FOLDER.glob(f"{paper}_table*.yaml")) if re.fullmatch(r"\w+_table\d+", path.stem)]
    return [tally for path in paths if (tally := _tally(path)).values]


@cache
def _tally(path: Path) -> SweepSummary:
    index = ResultsIndex(load(path))
    index.missing()
    return SweepSummary(index.sweep, index.finished)


def cells(tally: SweepSummary, paper: str) -> Iterator[Cell]:
    """Yield the cells of a table with a published score."""
    for setting, printed in tally.sweep.paper.items():
        for method, text in printed.items():
            match = PRINTED.match(str(text))
            if match is None:
                continue
            values = list(ended(tally.shown(setting, method)).values())
            spread = float(match[2]) if match[2] else deviation(values)
            mean = statistics.fmean(values) if values else math.nan
            of_paper = strategy(tally, method).startswith(paper)
            yield Cell(setting, method, of_paper, float(match[1]), spread, mean, len(values))


def strategy(tally: SweepSummary, method: str) -> str:
    """Return the strategy of a column; empty if it runs none."""
    overrides = [*tally.sweep.common, *tally.sweep.methods[method]]
    return next((word.partition("=")[2] for word in reversed(overrides) if word.startswith("strategy=")), "")


def column(tally: SweepSummary, strategies: tuple[str, ...]) -> str:
    """Return the column of one of the strategies, preferably with the protocol's model; empty without one."""
    having = [method for method in tally.sweep.methods if strategy(tally, method) in strategies]
    return min(having, key=lambda method: len(tally.sweep.methods[method]), default="")


def counts(paper: str) -> str:
    """Return one row per table: how many cells of the method and of other methods are within a deviation, above and below."""
    lines = ["| | the method: within | above | below | other methods: within | above | below | not run |"]
    lines.append("|---" * 8 + "|")
    for tally in tables(paper):
        entries = list(cells(tally, paper))
        numbers = [
            sum(cell.verdict == verdict for cell in entries if cell.own == of_paper)
            for of_paper in (True, False)
            for verdict in ("within", "above", "below")
        ]
        missing = sum(cell.verdict == "missing" for cell in entries)
        lines.append(f"| {_link(tally)} | " + " | ".join(map(str, [*numbers, missing])) + " |")
    return "\n".join(lines)


def below(paper: str) -> str:
    """Return the cells below the published score by more than a deviation: our score, and the published one."""
    lines = []
    for tally in tables(paper):
        by_method: dict[str, list[str]] = {}
        for cell in cells(tally, paper):
            if cell.verdict == "below":
                by_method.setdefault(cell.method, []).append(f"{cell.setting} {cell.mean:.1f} ({cell.paper:.1f})")
        lines += [f"- {_link(tally)}, {method}: {', '.join(texts)}" for method, texts in by_method.items()]
    return "\n".join(lines) or "No cell."


def ahead(paper: str) -> str:
    """Return in how many settings each column of the method is ahead of Local and FedAvg, level, and behind."""
    lines = ["| | " + " | ".join(f"compared with {name}: ahead | level | behind" for name in BASELINES) + " |"]
    lines.append("|---" * (1 + 3 * len(BASELINES)) + "|")
    for tally in tables(paper):
        columns = {method: strategy(tally, method) for method in tally.sweep.methods}
        for method in (name for name, of in columns.items() if of.startswith(paper)):
            numbers: list[str] = []
            for kinds in BASELINES.values():
                other = column(tally, kinds)
                gaps = [paired(tally.shown(s, method), tally.shown(s, other)) for s in tally.sweep.settings if other]
                known = [gap for gap in gaps if gap and gap.n > 1]
                up, down = (sum(sign * gap.mean > gap.half for gap in known) for sign in (1, -1))
                numbers += map(str, (up, len(known) - up - down, down)) if known else [""] * 3
            if any(numbers):
                lines.append(f"| {_link(tally)}, {method} | " + " | ".join(numbers) + " |")
    return "\n".join(lines)


def _link(tally: SweepSummary) -> str:
    return f"[{tally.sweep.name}]({tally.sweep.name}.md)"


def main_table(paper: str) -> SweepSummary:
    """Return the first table of a paper with a column of its method."""
    return next(tally for tally in tables(paper) if column(tally, (paper,)))


HEAD = ["| | Local | FedAvg | the method | paper |", "|---|---|---|---|---|"]


def rows(paper: str) -> dict[str, tuple[list[str], float]]:
    """Return a paper's main table by setting: Local, FedAvg, the method, its published score; and our score minus that one.

    Scores have the 95 % interval of their mean. Bold: the best, and scores whose paired difference to it includes 0.
    """
    tally = main_table(paper)
    names = [column(tally, kinds) for kinds in (*BASELINES.values(), (paper,))]
    by_setting = {}
    for setting, printed in tally.sweep.paper.items():
        means = [tally.mean(setting, name) if name else None for name in names]
        match = PRINTED.match(str(printed.get(names[-1], "")))
        if match and means[-1]:
            best = max((mean.mean, name) for mean, name in zip(means, names, strict=True) if mean)[1]
            scores = []
            for mean, name in zip(means, names, strict=True):
                text = (
                    f"{mean.mean:.1f} ± {mean.half:.1f}" if mean and mean.n > 1 else f"{mean.mean:.1f}" if mean else ""
                )
                gap = paired(tally.shown(setting, best), tally.shown(setting, name)) if mean else None
                level = name == best or (gap is not None and gap.n > 1 and gap.mean <= gap.half)
                scores.append(f"**{text}**" if text and level else text)
            by_setting[setting] = [*scores, f"{float(match[1]):.1f}"], means[-1].mean - float(match[1])
    return by_setting


def wins(paper: str) -> tuple[int, int, float]:
    """Return in how many settings of its main table a method is ahead of FedAvg, of how many, and its largest gain in points."""
    tally = main_table(paper)
    names = [column(tally, kinds) for kinds in ((paper,), BASELINES["FedAvg"])]
    gaps = [paired(*(tally.shown(setting, name) for name in names)) for setting in tally.sweep.settings]
    known = [gap for gap in gaps if gap and gap.n > 1]
    return sum(gap.mean > gap.half for gap in known), len(known), max(gap.mean for gap in known)


def glance() -> str:
    """Return two rows per main table, lowest and highest relative to the published score; first the method with most gain."""
    lines = list(HEAD)
    for paper in sorted(papers(), key=lambda paper: (wins(paper)[0] / wins(paper)[1], wins(paper)[2]), reverse=True):
        by_setting = rows(paper)
        name = column(main_table(paper), (paper,))
        chosen = [choose(by_setting, key=lambda setting: by_setting[setting][1]) for choose in (min, max)]
        for setting in dict.fromkeys(chosen):
            lines.append(f"| {name}, {setting} | " + " | ".join(by_setting[setting][0]) + " |")
    return "\n".join(lines)


def whole() -> str:
    """Return all rows of the papers' main tables."""
    lines = list(HEAD)
    for paper in papers():
        name = column(main_table(paper), (paper,))
        lines += [f"| {name}, {setting} | " + " | ".join(scores) + " |" for setting, (scores, _) in rows(paper).items()]
    return "\n".join(lines)


def demo() -> str:
    """Return the stored first comparison, with 95 % intervals."""
    tally = _tally(FOLDER / "demo.yaml")
    methods = list(tally.sweep.methods)
    lines = ["| | " + " | ".join(methods) + " |", "|---" * (1 + len(methods)) + "|"]
    for setting in tally.sweep.settings:
        means = [tally.mean(setting, method) for method in methods]
        lines.append(f"| {setting} | " + " | ".join(f"{m.mean:.1f} ± {m.half:.1f}" for m in means if m) + " |")
    return "\n".join(lines)


def written(text: str) -> str:
    """Return a page whose tables have the current rows."""
    text = GLANCE.sub(lambda match: f"{match[1]}{glance()}\n", text)
    return DEMO.sub(lambda match: f"{match[1]}{demo()}\n", text)


def picture(paper: str) -> str:
    """Return the whole comparison, as the page on reproduction shows it."""
    heads = (
        "Cells of the paper's tables, compared with the published scores:",
        "Columns of the method, paired by seed:",
    )
    parts = [
        heads[0],
        counts(paper),
        heads[1],
        ahead(paper),
        "Below the published score by more than a standard deviation:",
    ]
    return "\n\n".join([*parts, below(paper)])


def main(args: list[str]) -> None:
    """Run the command."""
    if "--write" in args:
        for page in PAGES:
            page.write_text(written(page.read_text()))
        return
    for name in args or papers():
        if name not in papers():
            sys.exit(f"error: {unknown('paper', name, papers())}")
        print(f"# {name}\n\n{picture(name)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])

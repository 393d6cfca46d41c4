"""Run a table or figure: ``python -m simulations.run simulations/cora.yaml``.

A YAML file names what is compared:

    title, source      what it reproduces, and where the paper says so
    common             words (``key=value``) of every run
    settings           name → words: the rows of the table, or the points of a figure's x axis
    methods            name → words: the columns. Two run nothing: ``Majority`` scores the most frequent label, ``Homophily``
                       is the mean over clients of their graphs' node homophily
    grid               optional: choice → words. Every method is run with every choice, and a cell shows the one whose mean
                       validation figure over the seeds is highest
    seeds              list of seeds
    paper              setting → method → the paper's figure, as it prints it
    notes              what a reader must know; printed under the table
    figure             optional: the name of the x axis; settings are then numbers, and a plot is drawn

Each finished run appends a row to ``results/NAME.csv`` (written as they end, so an interrupted table goes on where it
stopped); ``results/NAME.md`` shows ours beside the paper's, mean (standard deviation) over the seeds in percent. A run that
fails (its training diverges, say) counts as failed, with the reason in the CSV's ``headline``. Of a run with a backdoor the
success in percent stands behind the figure. A run that another table has
made with the same words is copied from there, its commit included.
"""

import argparse
import csv
import io
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedgraph_flwr.data.graph import write_bytes
from fedgraph_flwr.errors import FedGraphError, RunFailed, unknown

RESULTS = Path(__file__).parent / "results"
FIELDS = [
    "setting",
    "method",
    "seed",
    "value",
    "validation",
    "headline",
    "last",
    "last5",
    "rounds",
    "best_round",
    "seconds_per_round",
]
FIELDS += ["bytes_up", "bytes_down", "words", "commit", "success"]
MAJORITY = "Majority"
HOMOPHILY = "Homophily"


@dataclass
class Table:
    """What one YAML file asks for."""

    name: str
    title: str
    source: str = ""
    common: list[str] = field(default_factory=list)
    settings: dict[str, list[str]] = field(default_factory=dict)
    methods: dict[str, list[str]] = field(default_factory=dict)
    grid: dict[str, list[str]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [0])
    paper: dict[str, dict[str, Any]] = field(default_factory=dict)
    beside: dict[str, dict[str, Any]] = field(default_factory=dict)  # further rows, of figures that no run gives
    notes: str = ""
    figure: str = ""

    @classmethod
    def load(cls, path: Path) -> "Table":
        """Read a YAML file.

        Raises:
            FedGraphError: it is missing, or has a key that is not known.
        """
        if not path.is_file():
            raise FedGraphError(
                f"no such table: {path}; there are {', '.join(p.stem for p in path.parent.glob('*.yaml'))}"
            )
        body = yaml.safe_load(path.read_text())
        for key in body:
            if key not in cls.__dataclass_fields__ or key == "name":
                raise unknown("key", key, set(cls.__dataclass_fields__) - {"name"}, str(path))
        settings = {str(k): v for k, v in body.pop("settings").items()}
        paper = {str(k): v for k, v in (body.pop("paper", None) or {}).items()}
        return cls(name=path.stem, settings=settings, paper=paper, **body)

    def jobs(self) -> Iterator[tuple[str, str, int, list[str]]]:
        """Every run: setting, method, seed, words. Seeds go outermost, so that a table fills evenly."""
        for seed in self.seeds:
            for setting, where in self.settings.items():
                for method, how in self.methods.items():
                    for column, chosen in self.choices(method).items():
                        yield setting, column, seed, [*self.common, *where, *(how or []), *chosen, f"seed={seed}"]

    def choices(self, method: str) -> dict[str, list[str]]:
        """The words of every choice of the grid, by the name that a row has in the CSV."""
        if method in (MAJORITY, HOMOPHILY) or not self.grid:
            return {method: []}
        return {f"{method}, {choice}": words for choice, words in self.grid.items()}


def one(job: tuple[str, str, int, list[str]]) -> dict[str, Any]:
    """Run one job in this process; its row."""
    setting, method, seed, words = job
    from fedgraph_flwr.config import compose
    from fedgraph_flwr.runner import run

    row = {"setting": setting, "method": method, "seed": seed, "words": " ".join(words)}
    if method == MAJORITY:
        return {**row, "value": majority(words)}
    if method == HOMOPHILY:
        return {**row, "value": homophily(words)}
    with tempfile.TemporaryDirectory() as out:
        try:
            summary = run(compose([*words, "checkpoint_every=0", f"out={out}"]))
        except RunFailed as error:  # such as training that diverges: a result too, and no reason to lose the others
            return {**row, "value": math.nan, "headline": f"failed: {error}"}
    key, choice = summary["headline"].split(" at ")
    at = {name: summary["metrics"][name][key] for name in ("last", "last5")}
    same = {name: summary[name] for name in FIELDS if name in summary and name not in row}
    if "attack" in summary:
        return {**row, **same, "headline": "the attack's accuracy", "value": summary["attack"]["accuracy"]}
    if "adversary" in summary:
        same["success"] = summary["adversary"]["success"]
    validation = summary["metrics"][choice][key.replace("test", "val", 1)]
    return {**row, **same, **at, "value": summary["test_accuracy"], "validation": validation}


def homophily(words: Sequence[str]) -> float:
    """Mean over clients of the mean share of a node's in-neighbours that are of its class."""
    from fedgraph_flwr import partition
    from fedgraph_flwr.config import compose
    from fedgraph_flwr.data.statistics import node_homophily

    cfg = compose(words)
    graphs = [partition.load_client(cfg, index) for index in range(partition.num_clients(cfg))]
    return statistics.mean(node_homophily(g.edge_index, g.y) or 0.0 for g in graphs)


def majority(words: Sequence[str]) -> float:
    """The protocol's score of always predicting the most frequent training label of all clients."""
    import torch
    import torch.nn.functional as F

    from fedgraph_flwr import partition
    from fedgraph_flwr.config import compose
    from fedgraph_flwr.evaluation import metrics

    cfg = compose(words)
    graphs = [partition.load_client(cfg, index) for index in range(partition.num_clients(cfg))]
    label = torch.cat([g.y[g.train_mask] for g in graphs]).bincount().argmax()
    scores: dict[str, list[float]] = {}
    for g in graphs:
        logits = F.one_hot(label, g.num_classes).float().expand(g.y.numel(), -1)
        told = metrics.score(logits, g.y, {"test": g.test_mask}, metrics.wanted(cfg.evaluation, g.num_classes))
        scores = {key: [*scores.get(key, []), *values] for key, values in told.items()}
    return metrics.averages(scores, [float(g.num_nodes) for g in graphs])[metrics.headline(cfg.evaluation, "test")]


def read(path: Path) -> list[dict[str, str]]:
    """The rows there are."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def elsewhere(table: Table) -> dict[frozenset[str], dict[str, str]]:
    """Rows of the other tables by their words: the same run is not made twice."""
    paths = (path for path in sorted(RESULTS.glob("*.csv")) if path.stem != table.name)
    return {frozenset(row["words"].split()): row for path in paths for row in read(path) if row.get("headline")}


def execute(table: Table, jobs: int, only: str = "") -> Path:
    """Run what is missing and write the CSV; returns its path. Rows whose words have changed are run again."""
    path = RESULTS / f"{table.name}.csv"
    wanted = [job for job in table.jobs() if only in f"{job[0]}/{job[1]}/{job[2]}"]
    words = {(s, m, str(n)): " ".join(w) for s, m, n, w in table.jobs()}
    kept = [r for r in read(path) if r["words"] and words.get((r["setting"], r["method"], r["seed"])) == r["words"]]
    done = {(r["setting"], r["method"], int(r["seed"])) for r in kept}
    missing = [job for job in wanted if job[:3] not in done]
    known = elsewhere(table)
    for setting, method, seed, how in missing:
        same = known.get(frozenset(how))
        if method not in (MAJORITY, HOMOPHILY) and same and (same.get("validation") or not table.grid):
            kept.append({**same, "setting": setting, "method": method, "seed": str(seed), "words": " ".join(how)})
            done.add((setting, method, seed))
    missing = [job for job in missing if job[:3] not in done]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept)
    write_bytes(path, text.getvalue().encode())  # whole at any time, and then row by row
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        for number, row in enumerate(_rows(missing, jobs), start=1):
            writer.writerow(row)
            file.flush()
            print(
                f"{number}/{len(missing)} {row['setting']} {row['method']} seed {row['seed']}: {row['value']:.4f}",
                flush=True,
            )
    return path


def _rows(jobs: list[tuple[str, str, int, list[str]]], processes: int) -> Iterator[dict[str, Any]]:
    if processes == 1 or len(jobs) < 2:
        yield from map(one, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(one, jobs)


def figures(table: Table, key: str = "value") -> dict[tuple[str, str], list[float]]:
    """A figure of every finished run in percent, by setting and the row's method; one entry a seed."""
    values: dict[tuple[str, str], list[float]] = {}
    for row in read(RESULTS / f"{table.name}.csv"):
        if row.get(key):
            values.setdefault((row["setting"], row["method"]), []).append(100 * float(row[key]))
    return values


def chosen(table: Table) -> dict[tuple[str, str], str]:
    """Which choice of the grid each setting and method takes, as `Table.choices` names it: the best on validation nodes.

    Only choices that no seed failed with count.
    """
    validation, values = figures(table, "validation"), figures(table)
    taken = {}
    for setting in table.settings:
        for method in table.methods:
            names = list(table.choices(method))
            means = {
                name: statistics.mean(validation[setting, name])
                for name in names
                if len(validation.get((setting, name), [])) == len(values.get((setting, name), [])) > 0
                and not any(map(math.isnan, validation[setting, name]))
            }
            taken[setting, method] = max(means, key=means.__getitem__) if means else names[0]
    return taken


def summarise(table: Table) -> str:
    """The Markdown table: ours beside the paper's."""
    values, success, taken = figures(table), figures(table, "success"), chosen(table)
    lines = [f"# {table.title}", "", table.source, ""] if table.source else [f"# {table.title}", ""]
    known = {method for cells in table.paper.values() for method in cells}
    columns = [
        (method, paper) for method in table.methods for paper in ((False, True) if method in known else (False,))
    ]
    lines.append("| | " + " | ".join("paper" if paper else method for method, paper in columns) + " |")
    lines.append("|---" * (1 + len(columns)) + "|")
    for setting in table.settings:
        theirs = table.paper.get(setting, {})
        cells = [
            str(theirs.get(m, "")) if paper else _cell(values.get((setting, taken[setting, m]), []))
            for m, paper in columns
        ]
        for place, (m, paper) in enumerate(columns):
            if not paper and (reached := success.get((setting, taken[setting, m]))):
                cells[place] += f"; {statistics.mean(reached):.0f}"
        lines.append(f"| {setting} | " + " | ".join(cells) + " |")
    for row, own in table.beside.items():
        cells = ["" if paper else str(own.get(method, "")) for method, paper in columns]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    seeds = {len(v) for v in values.values()}
    span = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(next(iter(seeds), 0))
    lines += ["", f"Mean (standard deviation) in % over {span} of {len(table.seeds)} seeds. "]
    lines[-1] += f"Made by `python -m simulations.run simulations/{table.name}.yaml`."
    if len(values) < len(table.settings) * sum(len(table.choices(method)) for method in table.methods):
        lines[-1] += " An empty cell has not been run yet."
    if table.grid:
        lines += [
            "",
            "Of these choices each cell above shows the best on validation nodes; mean validation / test figure:",
            "",
        ]
        lines += _grid(table, values, taken)
    if table.notes:
        lines += ["", table.notes.strip()]
    return "\n".join(lines) + "\n"


def _grid(table: Table, values: dict[tuple[str, str], list[float]], taken: dict[tuple[str, str], str]) -> list[str]:
    """A row for every setting and method, a column for every choice; the one taken is bold."""
    validation = figures(table, "validation")
    lines = ["| | " + " | ".join(table.grid) + " |", "|---" * (1 + len(table.grid)) + "|"]
    for setting, method in taken:
        if list(table.choices(method)) == [method]:
            continue
        cells = []
        for name in table.choices(method):
            test, val = values.get((setting, name), []), validation.get((setting, name), [])
            text = f"{statistics.mean(val):.2f} / {statistics.mean(test):.2f}" if len(test) == len(val) > 0 else ""
            text = "failed" if any(map(math.isnan, test)) else text
            cells.append(f"**{text}**" if text and name == taken[setting, method] else text)
        lines.append(f"| {setting}, {method} | " + " | ".join(cells) + " |")
    return lines


def _cell(values: list[float]) -> str:
    """Mean (standard deviation) of the runs that ended; how many failed, if any did."""
    ended = [value for value in values if not math.isnan(value)]
    parts = [f"{statistics.mean(ended):.2f}"] if ended else []
    if len(ended) > 1:
        parts.append(f"({statistics.stdev(ended):.2f})")
    if len(ended) < len(values):
        parts.append(f"{len(values) - len(ended)} of {len(values)} failed")
    return " ".join(parts)


def draw(table: Table) -> None:
    """The plot of a figure: mean and standard deviation against the settings, and the paper's points where known."""
    from matplotlib.figure import Figure

    values, taken = figures(table), chosen(table)
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    x = [float(setting) for setting in table.settings]
    for index, method in enumerate(table.methods):
        groups = [
            [value for value in values.get((s, taken[s, method]), []) if not math.isnan(value)] for s in table.settings
        ]
        known = [(a, g) for a, g in zip(x, groups, strict=True) if g]
        spread = [statistics.stdev(g) if len(g) > 1 else 0.0 for _, g in known]
        axes.errorbar(
            [a for a, _ in known],
            [statistics.mean(g) for _, g in known],
            spread,
            capsize=3,
            label=method,
            color=f"C{index}",
        )
        paper = [
            (a, table.paper[s][method])
            for a, s in zip(x, table.settings, strict=True)
            if method in table.paper.get(s, {})
        ]
        axes.plot([a for a, _ in paper], [float(str(v).split(" ")[0]) for _, v in paper], "x", color=f"C{index}")
    steps = sorted(value for value in x if value > 0)
    if len(steps) > 2 and steps[-1] >= 100 * steps[0]:
        axes.set_xscale("symlog", linthresh=steps[0])
    axes.set_xlabel(table.figure)
    axes.set_ylabel("test figure, %")
    axes.set_title(table.title, fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(RESULTS / f"{table.name}.png", dpi=130)


def main(argv: Sequence[str] | None = None) -> int:
    """Run tables; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m simulations.run", description="Run tables and figures.")
    parser.add_argument("tables", nargs="+", type=Path, help="YAML files in simulations/")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, each in a process of one thread")
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs whose SETTING/METHOD/SEED contains this")
    parser.add_argument(
        "--table-only", action="store_true", help="run nothing; write the table from the rows there are"
    )
    parser.add_argument("--list", action="store_true", help="print the runs as JSON and stop")
    args = parser.parse_args(argv)
    try:
        for path in args.tables:
            table = Table.load(path)
            if args.list:
                print(json.dumps(list(table.jobs()), indent=1))
                continue
            if not args.table_only:
                execute(table, args.jobs, args.only)
            write_bytes(RESULTS / f"{table.name}.md", summarise(table).encode())
            if table.figure:
                draw(table)
            print(RESULTS / f"{table.name}.md")
    except FedGraphError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

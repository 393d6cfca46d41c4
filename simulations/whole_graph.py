"""Score a sweep's models on the whole graph, with the edges between clients: ``python -m simulations.whole_graph FILE``.

A sweep scores each client on its own graph. Some published protocols, such as FederatedScope-GNN's, score one model on the
test nodes of the graph before it was cut. This runs each cell of a sweep file, loads the model of the headline's round, and
scores it on the graph of the Central reference. Where each client has a model of its own, the score is the mean over them.
Rows are appended to ``results/NAME_whole.csv``; existing ones are skipped. ``results/NAME_whole.md`` is the table, next to the
published scores.
"""

import argparse
import csv
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from fedgraph_flwr.config import configuration
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.partition import load_client, pool
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.sweeps import spec

FIELDS = ("setting", "method", "seed", "own", "whole", "words")
"""``own``: mean over clients of the score on their own test nodes; ``whole``: on all test nodes of the whole graph."""


def whole_score(folder: Path) -> float:
    """Return the accuracy of a finished run's models on the test nodes of the whole graph, a mean over the models."""
    cfg = load_predictor(folder, 0).cfg
    graph = whole_graph([load_client(cfg, i) for i in range(1 if cfg.strategy.pooled else cfg.num_clients)])
    shares = cfg.strategy.shared and not (cfg.strategy.personal or cfg.strategy.private)
    models = [None] if shares and not cfg.strategy.pooled else range(1 if cfg.strategy.pooled else cfg.num_clients)
    return statistics.mean(_accuracy(folder, client, graph) for client in models)


def whole_graph(clients: Sequence[ClientGraph]) -> ClientGraph:
    """Return the clients' graph before it was cut, with each node's split."""
    return clients[0] if len(clients) == 1 else pool(clients)


@torch.no_grad()
def _accuracy(folder: Path, client: int | None, graph: ClientGraph) -> float:
    model = load_predictor(folder, client).network(graph)  # without what a client adds, such as generated neighbours
    chosen = model(model.prepare(graph)).argmax(1)
    hit = (chosen == graph.y)[graph.test_mask & (graph.y >= 0)]
    return float(hit.to(torch.float64).mean())


def add(path: Path, cell: spec.Cell) -> None:
    """Run a cell, score its models, and append its row."""
    with tempfile.TemporaryDirectory() as out:
        summary = run(configuration([*cell.overrides, "checkpoint_every=0", f"out={out}"]))
        score, place = summary["headline"].split(" at ")
        row = [cell.setting, cell.method, cell.seed, summary["metrics"][place][score], whole_score(Path(out))]
    new = not path.is_file()
    with path.open("a", newline="") as file:
        csv.writer(file).writerows([FIELDS] * new + [(*row, " ".join(cell.overrides))])


def read(path: Path) -> list[dict[str, str]]:
    """Return the available rows."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def table(sweep: spec.Sweep, rows: Sequence[dict[str, str]]) -> str:
    """Return the Markdown table: mean and standard deviation over seeds, in percent, and the published score."""
    lines = [f"# {sweep.title}, scored on the whole graph", "", sweep.source, ""]
    lines += ["| | method | seeds | on the whole graph | on the clients' own graphs | published |", "|---" * 6 + "|"]
    for setting in sweep.settings:
        for method in sweep.methods:
            mine = [row for row in rows if (row["setting"], row["method"]) == (setting, method)]
            if mine:
                cells = [_spread([100 * float(row[key]) for row in mine]) for key in ("whole", "own")]
                paper = sweep.paper.get(setting, {}).get(method, "")
                lines.append(f"| {setting} | {method} | {len(mine)} | {cells[0]} | {cells[1]} | {paper} |")
    return "\n".join([*lines, "", "Made by `python -m simulations.whole_graph`.", ""])


def _spread(values: Sequence[float]) -> str:
    spread = f" ({statistics.stdev(values):.1f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the missing cells, then write the table."""
    parser = argparse.ArgumentParser(prog="python -m simulations.whole_graph", description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="sweep file")
    parser.add_argument("--only", default="", help="only cells whose SETTING/METHOD/SEED contains this text")
    parser.add_argument("--table-only", action="store_true", help="only write the table of the available rows")
    given = parser.parse_args(argv)
    sweep = spec.load(given.file)
    path = sweep.results.with_name(f"{sweep.results.stem}_whole.csv")
    done = {row["words"] for row in read(path)}
    for cell in [] if given.table_only else sweep.cells({}):
        if " ".join(cell.overrides) not in done and given.only in f"{cell.setting}/{cell.method}/{cell.seed}":
            add(path, cell)
            print(f"{cell.label}: done", flush=True)
    write_bytes(path.with_suffix(".md"), table(sweep, read(path)).encode())


if __name__ == "__main__":
    main()

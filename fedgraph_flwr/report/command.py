"""The command ``report``: one HTML page with everything inside it, and the plots as PNG files beside it."""

import argparse
import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr.data.graph import write_bytes
from fedgraph_flwr.errors import FedGraphError

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }}
table {{ border-collapse: collapse; margin: 1rem 0 }} th, td {{ padding: .25rem .75rem; border-bottom: 1px solid #ddd }}
td {{ text-align: right; font-variant-numeric: tabular-nums }} td:first-child, th:first-child {{ text-align: left }}
.plots {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(480px, 1fr)); gap: 1rem }}
figure {{ margin: 0 }} img {{ width: 100% }} figcaption {{ font-weight: 600 }}
pre {{ overflow: auto; background: #f6f6f6; padding: 1rem }}
</style></head><body>
<h1>{title}</h1>
{table}
<div class="plots">{plots}</div>
{notes}
{configs}
</body></html>
"""


def register(commands: Any) -> None:
    """Add ``report`` to the subparsers."""
    parser = commands.add_parser("report", help="an HTML page and PNG plots of one run or several")
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", type=Path, help="folders of runs, side by side, or of sweeps"
    )
    parser.add_argument("--out", type=Path, help="the page; default: DIR/report.html of the first folder")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Handle ``report``."""
    from fedgraph_flwr.report.tables import body, tables_of

    tables = [tables_of(folder) for folder in args.folders]
    if all(tables):
        out = args.out or args.folders[0] / "report.html"
        page = _PAGE.format(
            title="Sweeps", table=body([path for found in tables for path in found]), plots="", notes="", configs=""
        )
        write_bytes(out, page.encode())
        print(out)
        return 0
    print(write_report(args.folders, args.out or args.folders[0] / "report.html"))
    return 0


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the page and, in ``plots/`` beside it, the PNG files; returns the page's path.

    Raises:
        FedGraphError: a folder holds no run, or none of its rounds has scores.
    """
    from fedgraph_flwr.report.figures import FIGURES, NEED_CLIENT_FILES
    from fedgraph_flwr.report.runs import load_run
    from fedgraph_flwr.secure.accounting import told

    runs = [load_run(folder) for folder in folders]
    for run in runs:
        if not run.rounds:
            raise FedGraphError(f"{run.folder} has no scored round yet, so there is nothing to report")
    plots, missing = [], []
    for name, (caption, draw) in FIGURES.items():
        if name in NEED_CLIENT_FILES and not all(run.clients for run in runs):
            missing.append(caption)
            continue
        image = draw(runs).png()
        write_bytes(out.parent / "plots" / f"{name}.png", image)
        data = base64.b64encode(image).decode()
        plots.append(
            f'<figure><figcaption>{caption}</figcaption><img alt="{caption}" src="data:image/png;base64,{data}"></figure>'
        )
    notes = (
        f"<p>Not shown, because the client files are not on this machine: {', '.join(missing)}.</p>" if missing else ""
    )
    notes += "".join(
        f"<p>{html.escape(run.label)}: {html.escape(told(run.summary['privacy'], run.cfg.privacy.scores))}.</p>"
        for run in runs
        if "privacy" in run.summary
    )
    configs = "".join(
        f"<details><summary>Configuration of {html.escape(run.label)}</summary>"
        f"<pre>{html.escape((run.folder / 'config.yaml').read_text())}</pre></details>"
        for run in runs
    )
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"
    page = _PAGE.format(
        title=html.escape(title), table=_table(runs), plots="".join(plots), notes=notes, configs=configs
    )
    write_bytes(out, page.encode())
    return out


_ROWS = {
    "headline": "headline figure",
    "test_accuracy": "its value",
    "rounds": "rounds",
    "best_round": "best validation round",
    "seconds_per_round": "seconds a round (median)",
    "setup_seconds": "seconds of set-up",
    "exchanges_per_round": "exchanges a round",
    "bytes_up": "bytes up",
    "bytes_down": "bytes down",
    "peak_rss_mb": "peak memory, MB",
}


_SCORES = (
    "test_accuracy",
    "test_majority",
    "test_accuracy_by_test_nodes",
    "test_balanced_accuracy",
    "test_macro_f1",
    "test_auc",
    "test_average_precision",
)


def _table(runs: Sequence[Any]) -> str:
    head = "".join(f"<th>{html.escape(run.label)}</th>" for run in runs)
    body = ""
    for key, text in _ROWS.items():
        cells = "".join(f"<td>{html.escape(_show(run.summary.get(key, '')))}</td>" for run in runs)
        body += f"<tr><td>{text}</td>{cells}</tr>"
    known = {key for run in runs for key in run.summary.get("metrics", {}).get("last", {})}
    for split in [key for key in _SCORES if key in known or key == "test_accuracy"]:
        for at, words in (
            ("best_val", "best validation round"),
            ("last", "last round"),
            ("last5", "mean of the last five"),
        ):
            values = [run.summary.get("metrics", {}).get(at, {}).get(split, "") for run in runs]
            cells = "".join(f"<td>{html.escape(_show(value))}</td>" for value in values)
            body += f"<tr><td>{split.replace('_', ' ')}, {words}</td>{cells}</tr>"
    return f"<table><tr><th></th>{head}</tr>{body}</table>"


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)

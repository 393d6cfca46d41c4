"""Compare the methods of the board from its stored rows, and advise which method to try.

    python -m simulations.board                      # print the pages of the stored rows
    python -m simulations.board --write              # store docs/board.md and its pages in results/, with their plots
    python -m simulations.board mine.yaml            # a table that extends the board, such as your method's
    python -m simulations.board html [FILE]          # an interactive page: charts, and tables that sort
    python -m simulations.board measure              # properties of the complete settings' data, for the advice
    python -m simulations.board advise KEY=VALUE ... # a method for your data, if one beats "always FedAvg"
    python -m simulations.board repeat [LABEL ...]   # run SETTING/METHOD/SEED again and compare score and parameters

`fedgraph-flwr sweep simulations/board.yaml` runs the missing cells.
"""

import json
import math
import platform
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation.intervals import BySeed, ended, interval, paired
from fedgraph_flwr.evaluation.verdict import BETTER, NOT_DECIDED, WORSE
from fedgraph_flwr.evaluation.verdict import LEVEL as SAME
from fedgraph_flwr.sweeps.rows import COUNTED, number
from fedgraph_flwr.sweeps.runs import run_cell
from simulations.board_advice import advise, adviser, measure
from simulations.board_rows import (
    COSTS,
    FEDAVG,
    LOCAL,
    REFERENCES,
    ROPE,
    SIGNIFICANCE,
    Board,
    critical_difference,
    holm,
    p_value,
    signed_rank,
)
from simulations.board_views import content_of, drawn_from, pareto_plot, ranks_plot, save, write_page

FOLDER = Path(__file__).parent
FILES = ("board.yaml", "board_edges.yaml")
TUNED = "board_tuned.yaml"
ROOT = FOLDER.parent
DOCS = ROOT / "docs"
RESULTS = FOLDER / "results"
FINDINGS = "board.md"
REPEATED = FOLDER / "base" / "repeated.json"
TOLERANCE = 2.0
"""Points by which a score may differ on another processor family or version of PyTorch."""


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


def pages(boards: Sequence[Board], tuned: Board | None = None) -> dict[str, str]:
    """Return the pages by their names: findings (in `docs/`), scores of every setting and the tuned column (in `results/`)."""
    contents = {
        FINDINGS: findings_page(boards, tuned),
        "board-scores.md": scores_page(boards),
        "board-tuned.md": tuned_page(boards[0], tuned),
    }
    pages = {name: "\n".join(lines) + "\n" for name, lines in contents.items()}
    return {
        name: text if name == FINDINGS else text.replace("../simulations/results/", "") for name, text in pages.items()
    }


def place(name: str) -> Path:
    """Return the file of a page."""
    return (DOCS if name == FINDINGS else RESULTS) / name


def findings_page(boards: Sequence[Board], tuned: Board | None = None) -> list[str]:
    """Return what the rows say, and what is missing."""
    main = boards[0]
    lines = ["# The board"]
    lines += paragraph(finding(main))
    lines += ["", "## What the rows say", "", *answers_table(main, tuned)]
    lines += paragraph("""
        The board compares methods under one protocol (`conf/protocol/board.yaml`). All methods get the same
        clients, splits, rounds and model, and the defaults of their keys. Every seed draws a new partition.
    """)
    lines += paragraph(f"""
        `python -m simulations.board html` writes an interactive page, `simulations/results/{main.sweep.name}_page.html`.
        It has points against cost, differences with intervals for each setting, and tables that sort by any
        column: ranks, scores, differences with adjusted p-values, failures and costs.
        Further pages have [scores, differences, ranks and costs of every setting](../simulations/results/board-scores.md),
        and [the tuned methods](../simulations/results/board-tuned.md).
    """)
    return [*lines, *advice_section(main), *OWN, *missing_section(boards, tuned)]


def scores_page(boards: Sequence[Board]) -> list[str]:
    """Return the scores of every setting, differences to FedAvg and to training alone, ranks and costs."""
    lines = ["# The board: scores of every setting"]
    lines += paragraph("Scores behind [the board](../../docs/board.md).")
    for board in boards:
        if board.begun:
            lines += ["", f"## {board.sweep.title}", *paragraph(board.sweep.source), *analysis(board, plots(board))]
    return lines


def tuned_page(default: Board, tuned: Board | None) -> list[str]:
    """Return the tuned column next to the default one."""
    lines = ["# The board: tuned methods"]
    lines += paragraph("Methods of [the board](../../docs/board.md) with keys that are chosen on validation nodes.")
    if tuned and tuned.begun:
        lines += ["", f"## {tuned.sweep.title}", *tuned_section(default, tuned)]
    return lines


def analysis(board: Board, drawn: Mapping[str, object] = {}) -> list[str]:
    """Return scores, differences, ranks and costs of one table, with the plots that are drawn."""
    lines = scores(board)
    for reference in REFERENCES:
        lines += differences(board, reference)
    return lines + standings(board, drawn)


def scores(board: Board) -> list[str]:
    """Return the scores of one table."""
    begun, marked = board.begun, marks(board)
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
    return lines


def differences(board: Board, reference: str) -> list[str]:
    """Return the section of differences to a method."""
    return ["", f"### Differences to {reference}", "", *against(board, reference, marks(board))]


def standings(board: Board, drawn: Mapping[str, object] = {}) -> list[str]:
    """Return ranks and costs of one table, with the plots that are drawn."""
    begun, complete, marked = board.begun, board.complete, marks(board)
    lines = list[str]()
    if len(complete) > 1:
        how = "Mean ranks of the methods on a line, with bars over groups within the critical difference"
        lines += ["", "### Mean ranks", *picture(how, f"{board.sweep.name}_ranks", drawn)]
        lines += ranking(board, complete, marked)
    how = "Points above FedAvg over CPU seconds relative to FedAvg, with the Pareto front"
    lines += ["", "### Cost", *picture(how, f"{board.sweep.name}_cost", drawn), ""]
    return lines + costs(board, complete or begun, marked)


def marks(board: Board) -> dict[str, str]:
    """Return the methods' names with a star for another model than FedAvg's."""
    return {m: f"{m} *" if board.own_model(m) else m for m in board.methods}


def picture(how: str, name: str, drawn: Mapping[str, object]) -> list[str]:
    """Return the line that shows a plot with its text alternative, if it is drawn."""
    return ["", f"![{how}](../simulations/results/{name}.png)"] if name in drawn else []


def plots(board: Board) -> dict[str, tuple[str, Callable[[], Figure]]]:
    """Return the plots of a table by name: a digest of what each shows, and the function that draws it."""
    settings = board.complete or board.begun
    if not settings:
        return {}
    every, name = board.standings(settings), board.sweep.name
    shown = [(one.method, f"{one.ratio:.3f} {one.gain:.3f}", one.front) for one in every]
    drawings: dict[str, tuple[str, Callable[[], Figure]]] = {
        f"{name}_cost": (drawn_from(shown), partial(pareto_plot, every))
    }
    if len(board.complete) > 1:
        ranks = {one.method: round(one.rank, 3) for one in every}
        drawings[f"{name}_ranks"] = drawn_from(ranks, len(settings)), partial(ranks_plot, ranks, len(settings))
    return drawings


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
    adjusted = board.adjusted(reference)
    body = []
    for m in others:
        gaps = {s: board.difference(s, m, reference) for s in board.begun}
        cells = []
        for s, gap in gaps.items():
            text = f"{signed(gap.mean)} ± {gap.half:.1f}" if gap and gap.n > 1 else ""
            cells.append(f"**{text}**" if text and adjusted[s, m] < SIGNIFICANCE else text)
        means = [gap.mean for s in board.complete if (gap := gaps.get(s))]
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
        {compared(adjusted)} comparisons. Wins, ties and losses count the complete settings ({len(board.complete)}), with
        a tie within {ROPE:g} point. P is the Bayesian signed-rank test over these settings. An interval describes
        new partitions of one data set, not other data sets.
    """)


def compared(adjusted: Mapping[tuple[str, str], float]) -> int:
    """Return the number of comparisons that Holm's correction covers."""
    return sum(not math.isnan(p) for p in adjusted.values())


def ranking(board: Board, settings: Sequence[str], marked: Mapping[str, str]) -> list[str]:
    """Return mean ranks over complete settings and Nemenyi's critical difference."""
    order = sorted(board.standings(settings), key=lambda one: one.rank)
    text = ", ".join(f"{marked[one.method]} {one.rank:.1f}" for one in order)
    critical = critical_difference(len(board.methods), len(settings))
    return paragraph(f"{text}.") + paragraph(f"""
        The critical difference at 5 % is {critical:.1f} (Nemenyi). With {len(board.methods)} methods on
        {len(settings)} settings, ranks illustrate; they decide little.
    """)


def costs(board: Board, settings: Sequence[str], marked: Mapping[str, str]) -> list[str]:
    """Return mean costs over settings, and the methods that no other beats in CPU seconds and score."""
    body = [
        [
            marked[one.method],
            signed(one.gain),
            f"{one.ratio:.2f}",
            *(f"{one.cost[key]:.3g}" for key in COSTS),
            "yes" if one.front else "",
        ]
        for one in board.standings(settings)
        if not math.isnan(one.gain + one.ratio)
    ]
    head = ["", "points above FedAvg", "CPU / FedAvg", "CPU seconds", "MB", "exchanges", "peak MiB", "Pareto"]
    return table(head, body) + paragraph(f"""
        Means over runs on {", ".join(settings)}; CPU / FedAvg is a geometric mean over settings. CPU seconds
        include setup. MB counts both directions of all clients. Memory is that of the whole process, which
        simulates server and clients. Pareto: no other method that keeps the clients' graphs apart has more points at no
        more CPU seconds relative to FedAvg.
    """)


# --- what the rows say ------------------------------------------------------------------------------------------------


def finding(board: Board) -> str:
    """Return what the complete settings decide, in one or two sentences."""
    settings = board.complete
    if not settings:
        return "No setting of the board is complete yet."
    counts = verdict_counts(board, FEDAVG, LOCAL)
    text = f"Over {len(settings)} settings, {FEDAVG} against training alone: {counts}."
    best = most_often_better(board, federated(board))
    if not best:
        return f"{text} No other method is better than {FEDAVG} in any."
    return f"{text} {best[0]} is most often better than {FEDAVG}: {verdict_counts(board, best[0], FEDAVG)}."


def verdict_counts(board: Board, method: str, reference: str) -> str:
    """Return in how many complete settings each verdict holds."""
    verdicts = list(board.verdicts(method, reference, board.complete).values())
    return ", ".join(
        f"{what} in {verdicts.count(what)}" for what in (BETTER, WORSE, SAME, NOT_DECIDED) if what in verdicts
    )


def federated(board: Board) -> list[str]:
    """Return the methods that keep the clients' graphs apart, without the references."""
    return [m for m in board.methods if not board.pools(m) and m not in REFERENCES]


def most_often_better(board: Board, methods: Sequence[str]) -> list[str]:
    """Return the methods that are better than FedAvg in a complete setting: by wins less losses, then by points won."""
    won, lost = ({m: board.points(m, FEDAVG, what, board.complete) for m in methods} for what in (BETTER, WORSE))
    return sorted((m for m in methods if won[m]), key=lambda m: (len(lost[m]) - len(won[m]), -sum(won[m].values())))


def answers(board: Board, tuned: Board | None = None) -> list[tuple[str, str]]:
    """Return what the complete settings say, about federated methods only.

    Args:
        board: the default column.
        tuned: the tuned column.
    """
    settings = board.complete
    if not settings:
        return [("Which method?", "unknown: no setting of the board is complete yet")]
    methods = federated(board)
    every = [one for one in board.standings(settings) if one.method in (*methods, *REFERENCES)]
    everywhere = [m for m in methods if len(board.points(m, FEDAVG, BETTER, settings)) == len(settings)]
    worth = [f"{one.method} {signed(one.gain)} ({one.ratio:.1f})" for one in every if one.front and one.gain > ROPE]
    pairs = [
        ("FedAvg against Local", verdict_counts(board, FEDAVG, LOCAL)),
        ("Better than FedAvg everywhere", "; ".join(everywhere) or "no method"),
        ("Somewhere better than FedAvg", better_than_fedavg(board, methods)),
    ]
    if len(settings) > 1:
        ranked = "; ".join(f"{one.method} {one.rank:.1f}" for one in sorted(every, key=lambda one: one.rank)[:3])
        pairs.append(("Best mean ranks (an illustration)", ranked))
    pairs.append(("Points above FedAvg (CPU time ×)", "; ".join(worth) or "no method"))
    if tuned and tuned.complete:
        settings_of = f"Somewhere better than tuned FedAvg, of {len(tuned.complete)}"
        pairs.append((settings_of, better_than_fedavg(tuned, methods)))
    return pairs


def better_than_fedavg(board: Board, methods: Sequence[str]) -> str:
    """Return which methods are better than FedAvg in a complete setting, and where they are worse; best first."""
    texts = []
    for m in most_often_better(board, methods):
        won, lost = (board.points(m, FEDAVG, what, board.complete) for what in (BETTER, WORSE))
        worse = f"; worse: {_points(lost)}" if lost else ""
        texts.append(f"{m} ({_points(won)}{worse})")
    return "; ".join(texts) or "no method"


def _points(gaps: Mapping[str, float]) -> str:
    return ", ".join(f"{setting} {signed(gap)}" for setting, gap in gaps.items())


def answers_table(board: Board, tuned: Board | None = None) -> list[str]:
    """Return the table of the answers."""
    count = len(board.complete)
    lines = table(
        [f"{count} setting{'s' * (count != 1)}, default keys", ""], [list(row) for row in answers(board, tuned)]
    )
    return lines + paragraph(f"""
        Level: the 95 % interval of the difference over {len(board.sweep.seeds)} seeds lies within {ROPE:g} point. Better and
        worse: significant at 5 % after Holm's correction, which covers the comparisons with one reference: FedAvg and Local
        are compared in two such families, and may be decided in one alone. Else not decided. Points are means over
        settings, above FedAvg by more than {ROPE:g}, of methods on the Pareto front with their CPU seconds relative to
        FedAvg's. Methods that pool the clients' graphs are left out.
    """)


# --- the tuned column -------------------------------------------------------------------------------------------------


def tuned_section(default: Board, tuned: Board) -> list[str]:
    """Return tuned scores next to the default ones, the chosen values, the cost of tuning, and differences to tuned FedAvg."""
    sweep, seeds, marked = tuned.sweep, len(tuned.sweep.seeds), marks(tuned)
    settings, trials = tuned.begun, max(map(len, tuned.tally.choices.values()))
    both = {(s, m): (new, default.score(s, m)) for s in settings for m in tuned.methods if (new := tuned.score(s, m))}
    gaps = {at: gap for at, (new, old) in both.items() if (gap := paired(new, old))}
    adjusted = holm({at: p_value(*both[at]) for at in gaps})
    body = []
    for m in tuned.methods:
        cells = []
        for at in ((s, m) for s in settings):
            text = f"{signed(gaps[at].mean)} ± {gaps[at].half:.1f}" if at in gaps else ""
            bold = f"**{text}**" if text and adjusted[at] < SIGNIFICANCE else text
            cells.append(f"{score_text(both[at][0], seeds)} ({bold})" if at in both else "")
        body.append([marked[m], *cells])
    lines = paragraph(f"""
        Each method runs {trials} trials on the first {len(sweep.tuning_seeds)} seeds: steps, weight decay
        and keys of its own. The trial with the best mean validation score then runs on all {seeds} seeds.
        In brackets: tuned minus default, paired by seed, ± half of the 95 % interval. Bold: significant at 5 % after
        Holm's correction for {compared(adjusted)} comparisons. An empty cell is not finished.
    """)
    lines += ["", *table(["", *settings], body), "", "### Chosen values", "", *chosen_values(tuned, list(both), marked)]
    spent, usual = (board.hours_spent(settings) for board in (tuned, default))
    times = f", {spent / usual:.1f} times the default column there" if usual else ""
    lines += paragraph(f"Tuning took {spent:.2f} core hours on {', '.join(settings)}{times}.")
    for reference in REFERENCES:
        lines += ["", f"### Tuned, differences to {reference}", "", *against(tuned, reference, marked)]
    return lines


def chosen_values(tuned: Board, pairs: Sequence[tuple[str, str]], marked: Mapping[str, str]) -> list[str]:
    """Return a table of the chosen values: the range over the settings of each method."""
    values: dict[str, dict[str, list[float]]] = {}
    sweep = tuned.sweep
    for s, m in pairs:
        overrides = sweep.choices(s, m, tuned.finished)[tuned.tally.chosen[s, m]]
        for override in overrides[len([*sweep.common, *sweep.settings[s], *sweep.methods[m]]) :]:
            key, _, value = override.partition("=")
            values.setdefault(m, {}).setdefault(key, []).append(float(value))
    texts = {m: {key: _range(numbers) for key, numbers in by.items()} for m, by in values.items()}
    common = [key for key in next(iter(texts.values())) if all(key in by for by in texts.values())]
    body = []
    for m, by in texts.items():
        more = ", ".join(f"`{key.removeprefix('strategy.')}` {text}" for key, text in by.items() if key not in common)
        body.append([marked[m], *(by[key] for key in common), more])
    return table(["", *(f"`{key}`" for key in common), "own key"], body)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2g}" + (f" to {max(values):.2g}" if max(values) > min(values) else "")


def missing_section(boards: Sequence[Board], tuned: Board | None = None) -> list[str]:
    """List what was not run, with its cost."""
    every = [(board, board) for board in boards] + ([(tuned, boards[0])] if tuned else [])
    left = [(board.sweep.name, s, *cost) for board, known in every for s, cost in board.hours(known).items()]
    known = sum(hours for *_, hours, _ in left)
    body = [
        [f"`{name}`", s, str(n), ("" if whole else "at least ") + f"{hours:.2f}" if hours else "unknown"]
        for name, s, n, hours, whole in left
    ]
    lines = ["", "## Completeness, and what was left out", ""]
    for board, _ in every:
        state = "complete" if board.done >= board.total else "**incomplete**"
        lines.append(f"- `simulations/{board.sweep.name}.yaml`: {state}, {board.done} of {board.total} cells.")
    lines += paragraph("""
        Left out: CiteSeer, Computers, CS, Photo and PubMed; all but Cornell and CSBM in the tuned table. GraphLand's and
        IBM's sets need files that this repository does not have. `fedgraph-flwr sweep FILE` runs missing cells of a table.
        `python -m simulations.board --write` makes these pages and their plots from the stored rows.
    """)
    if not left:
        return lines
    lines += ["", *table(["table", "setting", "missing runs", "core hours"], body)]
    return lines + paragraph(f"""
        Known costs sum to {known:.2f} core hours. They are mean CPU seconds of stored runs. Where a method has
        none in a setting, they are FedAvg's there times the method's ratio to FedAvg elsewhere.
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
    *paragraph(f"""
        To check stored rows on your machine, run `python -m simulations.board repeat "Cornell/FedAvg/0"`. CI repeats the rows
        that `simulations/base/repeated.json` names. With the version of PyTorch and the family of processors in
        that file, the score and the hash of the parameters after the last round must be equal. On others, the
        score must be within {TOLERANCE:g} points.
    """),
]


def advice_section(board: Board) -> list[str]:
    """Describe what the advice gains on data sets that it has not seen."""
    guide = adviser(board)
    gains = guide.left_out()
    lines = ["", "## Which method for your data?"]
    if len(gains) < 2:
        return lines + paragraph(
            f"No advice yet: there are complete rows for {len(gains)} data sets, and leaving one out needs two."
        )
    mean = interval(list(gains.values()))
    listing = ", ".join(f"{name} {signed(gain)}" for name, gain in gains.items())
    verdict = (
        "beats it, so the command names a method"
        if guide.speaks()
        else "does not beat it, so the command says so instead"
    )
    return lines + paragraph(f"""
        `python -m simulations.board advise KEY=VALUE ...` looks for the method that was best on the most similar
        data set. Similarity is by homophily, its gap between clients, label skew, number of nodes and share of
        cut edges. With each data set left out in turn, the advice gains {signed(mean.mean)} ± {mean.half:.1f}
        points over always choosing FedAvg ({listing}). It {verdict}.
    """)


# --- commands ---------------------------------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """Return the version of PyTorch and the family of processors, on which the bits of a run depend."""
    import torch

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    vendor = next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
    family = " ".join(filter(None, [platform.machine(), vendor, torch.backends.cpu.get_cpu_capability()]))
    return {"torch": torch.__version__.partition("+")[0], "processor": family}


def repeated(board: Board, labels: Sequence[str], same_machine: bool) -> Iterator[tuple[str, bool]]:
    """Run stored cells again, and yield for each a line and whether it holds.

    Args:
        board: the board.
        labels: SETTING/METHOD/SEED of stored rows.
        same_machine: whether scores and parameters must be equal in all bits; else scores within `TOLERANCE`.

    Raises:
        FedGraphError: a label without a stored row.
    """
    cells = {cell.label: cell for cell in board.sweep.cells(board.finished) if cell.identity in board.finished}
    for label in labels:
        if label not in cells:
            raise FedGraphError(
                f"no stored run is labelled '{label}': pass SETTING/METHOD/SEED of a row of {board.sweep.results}"
            )
        old, new = board.finished[cells[label].identity], run_cell(cells[label])
        before, now = (100 * number(row, "value") for row in (old, new))
        same = old.get("parameters") == new.get("parameters")
        close = before == now if same_machine else abs(before - now) <= TOLERANCE
        holds = close and (same or not same_machine)
        verdict = "holds" if holds else "DIFFERS"
        yield f"{label}: {verdict}: stored {before:.2f}, now {now:.2f}, {'same' if same else 'other'} parameters", holds


def repeat(board: Board, labels: Sequence[str], store: bool = False) -> int:
    """Run stored rows again, those of `REPEATED` by default; print what holds, and return 1 if a row does not.

    With ``store``, all bits must be equal, and `REPEATED` then lists the rows, the version of PyTorch and the processors.
    """
    known = json.loads(REPEATED.read_text()) if REPEATED.is_file() else {}
    here = machine()
    same = store or all(known.get(key) == value for key, value in here.items())
    where = f"PyTorch {here['torch']} on {here['processor']}"
    if same:
        print(f"{where}: scores and parameters must be equal in all bits")
    else:
        stored = f"PyTorch {known.get('torch')} on {known.get('processor')}"
        print(f"{where}, stored rows are of {stored}: scores must be within {TOLERANCE:g} points")
    labels = labels or known.get("rows", [])
    all_hold = True
    for line, holds in repeated(board, labels, same):
        print(line)
        all_hold &= holds
    if store and all_hold:
        write_bytes(REPEATED, (json.dumps({**here, "rows": list(labels)}, indent=2) + "\n").encode())
    return int(not all_hold)


def write(boards: Sequence[Board], tuned: Board) -> None:
    """Store the pages, their plots, and the properties of the complete settings' data."""
    measure(boards[0])
    for board in boards:
        for name, (content, figure) in plots(board).items():
            if content_of(path := RESULTS / f"{name}.png") != content:
                save(figure(), path, content)
    for name, text in pages(boards, tuned).items():
        write_bytes(place(name), text.encode())


def main(args: Sequence[str]) -> int:
    """Run the command."""
    verb, rest = (args[0], args[1:]) if args else ("", [])
    board = partial(Board, FOLDER / FILES[0])
    if verb == "measure":
        measure(board())
    elif verb == "advise":
        print(advise(board(), rest))
    elif verb == "repeat":
        return repeat(board(), [word for word in rest if word != "--store"], "--store" in rest)
    elif verb == "html":
        path = RESULTS / f"{Path(FILES[0]).stem}_page.html"
        if rest:
            path = Path(rest[0])
        shown = board()
        write_page(shown, finding(shown), [f"{what}: {answer}." for what, answer in answers(shown)], path)
        print(f"page: {path}")
    elif verb.endswith((".yaml", ".yml")):
        print("\n".join(analysis(Board(Path(verb)))))
    elif verb in ("", "--write"):
        boards, tuned = [Board(FOLDER / name) for name in FILES], Board(FOLDER / TUNED)
        if verb:
            write(boards, tuned)
        else:
            print("\n".join(pages(boards, tuned).values()))
    else:
        raise FedGraphError(f"unknown command '{verb}': pass a YAML file, html, measure, advise, repeat or --write")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except FedGraphError as error:
        sys.exit(f"error: {error}")

"""The board's statistics against other derivations, its page against its rows, and its advice on data sets left out."""

import csv
import itertools
import json
import math
import re

import numpy as np
import pytest
from scipy import stats

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.sweeps.rows import FIELDS, read
from fedgraph_flwr.sweeps.spec import load
from simulations import board, board_advice, board_rows, board_views


def test_one_difference_has_a_closed_form():
    """With one difference above the region, better wins unless the prior's weight w has w² > 1/2, and w follows Beta(1/2, 1)."""
    worse, level, better = board_rows.signed_rank([5.0])
    assert worse == 0
    assert better == pytest.approx(2**-0.25, abs=0.01)
    assert level == pytest.approx(1 - 2**-0.25, abs=0.01)
    assert board_rows.signed_rank([-5.0]) == (better, level, worse)


def test_signed_ranks_equal_loops_over_pairs():
    z, draws, rope = [0.3, 2.5, -1.7, 4.0], 200, 1.0
    wins = [0, 0, 0]
    for w in np.random.default_rng(0).dirichlet([0.5, 1, 1, 1, 1], draws):
        shares = [0.0, 0.0, 0.0]
        for (i, a), (j, b) in itertools.product(enumerate([0.0, *z]), repeat=2):
            shares[0 if a + b < -2 * rope else 2 if a + b > 2 * rope else 1] += w[i] * w[j]
        wins[shares.index(max(shares))] += 1
    assert board_rows.signed_rank(z, rope, draws) == tuple(n / draws for n in wins)


def test_paired_tests_and_their_correction():
    first, second = {0: 3.0, 1: 5.0, 2: 4.5, 3: math.nan}, {0: 2.0, 1: 4.5, 2: 2.5, 4: 9.0}
    assert board_rows.p_value(first, second) == pytest.approx(stats.ttest_rel([3, 5, 4.5], [2, 4.5, 2.5]).pvalue)
    assert board_rows.p_value({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}) == 1
    assert math.isnan(board_rows.p_value({0: 1.0}, {0: 2.0}))
    adjusted = board_rows.holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005, "e": math.nan})
    assert {key: adjusted[key] for key in "abcd"} == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert math.isnan(adjusted["e"])


def test_the_critical_difference_of_the_papers_example():
    assert board_rows.critical_difference(4, 14) == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=1e-3)


def test_who_is_not_dominated():
    points = {"cheap": (1.0, 0.0), "good": (5.0, 2.0), "same": (5.0, 2.0), "dear": (6.0, 2.0), "bad": (1.0, -1.0)}
    assert board_rows.pareto(points) == {"cheap", "good", "same"}


TEXT = """title: Small
baselines: false
baseline: FedAvg
seeds: [0, 1, 2]
settings: {A: [dataset=csbm], B: [dataset=demo]}
methods: {Majority: [], Local: [strategy=local], FedAvg: [strategy=fedavg], Other: [strategy=fedavg, model=mlp]}
"""


def written(path, value, more=""):
    """Write a table whose rows have the values of a function of the cell (None: no row), and return its board."""
    path = path.parent / path.stem / path.name  # tables of one folder share rows
    path.parent.mkdir(exist_ok=True)
    path.write_text((TEXT.replace("seeds: [0, 1, 2]\n", "") if "seeds:" in more else TEXT) + more)
    sweep, stored_rows = load(path), {}
    while cells := [cell for cell in sweep.cells(stored_rows) if cell.identity not in stored_rows]:
        for cell in cells:
            row = {**cell.row, "headline": "test_accuracy at best_val", "value": value(cell), "validation": value(cell)}
            if cell.method != "Majority":
                row |= {"cpu_seconds": 2, "bytes_up": 1e6, "bytes_down": 2e6, "exchanges": 4, "peak_rss_mb": 300}
            if cell.method.startswith("FedAvg"):
                row |= {"cpu_seconds": 4}
            if math.isnan(row["value"] or 0):
                row |= {"headline": "failed: the loss is not finite", "validation": ""}
            stored_rows[cell.identity] = row
    with sweep.results.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for row in stored_rows.values() if row["value"] is not None)
    return board_rows.Board(path)


def scores(cell):
    """0.50 to 0.52 of most, more of FedAvg, and Other diverges once."""
    if cell.setting == "A" and cell.method.startswith("Other") and cell.seed == 1:
        return math.nan
    return 0.6 + 0.01 * cell.seed**2 if cell.method.startswith("FedAvg") else 0.5 + 0.01 * cell.seed


@pytest.fixture
def small(tmp_path):
    """A table of two settings: one complete, with a failure, and one with a missing run."""
    return written(tmp_path / "small.yaml", lambda cell: None if cell.label == "B/Other/2" else scores(cell))


@pytest.fixture
def whole(tmp_path):
    """A table of two complete settings."""
    return written(tmp_path / "whole.yaml", scores)


def test_a_page_shows_what_there_is_and_what_is_missing(small):
    assert (small.done, small.total, small.complete, small.begun) == (23, 24, ["A"], ["A", "B"])
    assert small.difference("A", "FedAvg", "Local").mean == pytest.approx(10 + (0 - 1 + 2 - 0) / 3 + 1 / 3, abs=1)
    text = "\n".join(board.pages([small]).values())
    assert "**incomplete**, 23 of 24 cells" in text
    assert "   " not in text  # of the indented sources of its paragraphs
    assert "1 failed" in text
    assert "(2 of 3 seeds)" in text
    assert "| Other * |" in text
    assert "| `small` | B | 1 | 0.00 |" in text
    assert small.hours() == {"B": (1, pytest.approx(2 / 3600), True)}
    local = next(
        line for line in text.splitlines() if line.startswith("| Local | **−") or line.startswith("| Local | −")
    )
    gaps = [0.5 + 0.01 * s - 0.6 - 0.01 * s**2 for s in range(3)]
    assert local.split(" | ")[1].strip("*").startswith(board.signed(100 * sum(gaps) / 3))
    assert "0/0/1" in local


def test_advice_speaks_only_if_it_beats_fedavg_on_data_it_has_not_seen():
    points = {f"{kind}{i}": [float(kind == "b"), 0.1 * i] for kind in "ab" for i in range(4)}
    groups = {name: name for name in points}
    apart = {n: {"FedAvg": 0.0, "Local": 5.0 + 0.1 * int(n[1]) if n[0] == "b" else -5.0} for n in points}
    adviser = board_advice.Adviser(points, apart, groups)
    assert adviser.left_out() == pytest.approx({n: max(apart[n].values()) for n in points})
    assert board_advice.Adviser(points, apart, {n: n[0] for n in points}).left_out() == {
        "a": -5,
        "b": 0,
    }  # whole data sets
    unlike = {n: {"FedAvg": 0.0, "Local": 5.0 * (-1) ** int(n[1])} for n in points}
    assert not board_advice.Adviser(points, unlike, groups).speaks()  # neighbours need different methods
    better = {n: {"FedAvg": 0.0, "Local": 5.0 + 0.1 * int(n[1])} for n in points}
    assert board_advice.Adviser(points, better, groups).speaks()
    assert not board_advice.Adviser(points, better, dict.fromkeys(points, "one data set")).speaks()


def test_left_out_advice_equals_loops_over_every_choice():
    """Groups of unequal size, properties on unequal scales, and a property without any variation."""
    rng = np.random.default_rng(0)
    groups = dict(zip("pqrstuvw", "aaabbcde", strict=True))
    points = {s: [*rng.normal(size=3) * [1, 100, 0.01], 7.0] for s in groups}
    gains = {s: {"FedAvg": 0.0, **dict(zip("xyz", rng.normal(size=3), strict=True))} for s in groups}
    expected = {}
    for group in "abcde":
        others = [s for s in groups if groups[s] != group]
        spread = [np.std([points[s][i] for s in others]) or 1 for i in range(4)]
        advised = []
        for s in (s for s in groups if groups[s] == group):
            far = {
                o: sum(((a - b) / d) ** 2 for a, b, d in zip(points[s], points[o], spread, strict=True)) for o in others
            }
            near = min(far, key=far.get)
            (best,) = [m for m in gains[near] if all(gains[near][m] >= other for other in gains[near].values())]
            advised.append(gains[s][best])
        expected[group] = sum(advised) / len(advised)
    adviser = board_advice.Adviser(points, gains, groups)
    assert adviser.left_out() == pytest.approx(expected)
    interval = stats.ttest_1samp(list(expected.values()), 0).confidence_interval()
    assert adviser.speaks() == (interval.low > 0)


def test_advice_counts_settings_of_one_data_set_once_and_methods_that_ended_everywhere(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(board_advice, "properties", lambda: {"A": [0.0], "B": [1.0]})
    adviser = board_advice.adviser(whole)
    assert adviser.groups == {"A": "csbm", "B": "demo"}
    assert adviser.gains["A"].keys() == {"FedAvg", "Local"}, "a method that failed once is no advice"
    assert adviser.left_out() == {"csbm": 0.0, "demo": 0.0}  # FedAvg is the best everywhere
    assert not adviser.speaks()
    monkeypatch.setattr(board_rows.Board, "complete", property(lambda self: ["A"]))
    assert board_advice.adviser(whole).left_out() == {}
    assert board_advice.advise(whole, []).startswith("No advice: on 0 left-out data sets")


def test_groups_of_ranks_within_a_critical_difference_equal_all_subsets():
    ranks, critical = [1.0, 2.5, 2.5, 4.0, 7.0, 8.0, 11.0], 3.0
    groups = [set(g) for n in range(2, 8) for g in itertools.combinations(ranks, n) if max(g) - min(g) <= critical]
    largest = {(min(g), max(g)) for g in groups if len(g) > 1 and not any(g < other for other in groups)}
    assert board_views.cliques(ranks, critical) == sorted(largest)
    assert board_views.cliques([1.0, 9.0], critical) == []


def test_plots_show_every_method_and_store_what_they_show(whole, tmp_path, monkeypatch):
    plots, page = board.plots(whole), board.pages([whole])["board-scores.md"]
    assert plots.keys() == {"whole_ranks", "whole_cost"}
    for name, (content, draw) in plots.items():
        figure = draw()
        texts = [text.get_text().strip() for text in figure.axes[0].texts]
        assert all(any(text.startswith(m) for text in texts) for m in whole.methods)
        board_views.save(figure, tmp_path / f"{name}.png", content)
        assert board_views.content_of(tmp_path / f"{name}.png") == content
        assert f"]({name}.png)" in page
    assert board_views.content_of(tmp_path / "none.png") == ""
    changed = written(tmp_path / "whole.yaml", lambda cell: scores(cell) + (0.2 if cell.method == "Local" else 0))
    assert all(board.plots(changed)[name][0] != plots[name][0] for name in plots)
    assert [one.ratio for one in whole.standings(["A", "B"])] == pytest.approx([0.5, 0.5, 1])
    monkeypatch.setattr(board_rows.Board, "pools", lambda self, method: method == "Local")
    front = {one.method: one.front for one in changed.standings(["A", "B"])}
    assert front == {"Local": False, "FedAvg": True, "Other": True}, "the best and cheapest pools the graphs"


def test_the_interactive_page_has_every_row(small, tmp_path):
    board_views.write_page(small, "The finding.", ["one answer."], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    cells = re.findall(r"<tr><td>([AB])</td><td>(\w+)</td>", text)
    assert sorted(cells) == sorted(itertools.product("AB", ["Local", "FedAvg", "Other"]))
    assert "one answer." in text
    assert re.search(r'data-key="-10.\d*">−10.\d</td>', text)
    with pytest.raises(FedGraphError, match="run the sweep first"):
        board_views.write_page(written(tmp_path / "none.yaml", lambda cell: None), "", [], tmp_path / "none.html")


def test_answers_follow_from_the_rows(whole, small, tmp_path):
    """FedAvg is 10, 10 and 12 points ahead of Local; if Other gains 20 points on each seed, it is ahead everywhere."""
    answers = dict(board.answers(whole))
    assert answers["FedAvg against Local"] == "better in 2"
    assert answers["Better than FedAvg everywhere"] == "no method"
    assert answers["Somewhere better than FedAvg"] == "no method"
    better = written(tmp_path / "better.yaml", lambda c: 0.8 + 0.01 * c.seed**2 if c.method == "Other" else scores(c))
    answers = dict(board.answers(better))
    assert answers["Better than FedAvg everywhere"] == "Other"
    assert answers["Somewhere better than FedAvg"] == "Other (A +20.0, B +20.0)"
    assert answers["Best mean ranks (an illustration)"] == "Other 1.0; FedAvg 2.0; Local 3.0"
    assert answers["Points above FedAvg (CPU time ×)"] == "Other +20.0 (0.5)"
    assert len(board.answers(small)) == 4, "no ranks of one complete setting"
    text = board.pages([better])["board.md"]
    assert text.startswith(
        "# The board\n\nOver 2 settings, FedAvg against training alone: better in 2. Other is most often"
    )
    none = written(tmp_path / "none.yaml", lambda cell: scores(cell) if cell.seed else None)
    assert board.answers(none) == [("Which method?", "unknown: no setting of the board is complete yet")]


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ([5.0, 6.0, 7.0, 6.5], "better"),
        ([-5.0, -6.0, -7.0, -6.5], "worse"),
        ([0.5, 0.6, 0.5, 0.6], "level"),  # significant, and within one point
        ([5.0, -6.0, 7.0, -6.5], "not decided"),
    ],
)
def test_a_verdict_is_that_of_the_interval_and_of_the_correction(tmp_path, gaps, expected):
    shift = dict(enumerate(gaps))
    path = tmp_path / "four.yaml"
    small_board = written(
        path, lambda c: 0.5 + (shift[c.seed] / 100 if c.method == "Other" else 0), "seeds: [0, 1, 2, 3]\n"
    )
    assert small_board.verdicts("Other", "FedAvg", ["A", "B"]) == {"A": expected, "B": expected}
    low, high = stats.t.interval(0.95, 3, np.mean(gaps), stats.sem(gaps))
    assert (low > 0) == (expected in ("better", "level"))
    assert (high < 0) == (expected == "worse")
    assert (low >= -1 and high <= 1) == (expected == "level")


def test_tuned_scores_stand_next_to_default_ones(whole, tmp_path):
    """Choice b of FedAvg gains 10 points, and a costs 5; Other is tuned in A only."""
    gains = {"FedAvg, b": 0.1, "FedAvg, a": -0.05}
    grid = "tuned_on: 2\ngrid: {a: [train.lr=0.5, train.weight_decay=0], b: [train.lr=0.25, train.weight_decay=0]}\n"

    def value(cell):
        return None if cell.label.startswith("B/Other") and cell.seed == 2 else scores(cell) + gains.get(cell.method, 0)

    tuned = written(tmp_path / "tuned.yaml", value, grid)
    assert (tuned.begun, tuned.complete) == (["A", "B"], ["A"])
    assert tuned.score("B", "Other") == {}, "trials on two seeds are no result"
    text = "\n".join(board.tuned_section(whole, tuned))
    line = re.search(r"^\| FedAvg \| (.*) \|$", text, re.M)[1].split(" | ")
    assert line == ["71.7 ± 5.2 (**+10.0 ± 0.0**)"] * 2
    assert re.search(r"^\| Other \* \| .*1 failed.* \|  \|$", text, re.M)
    assert "| FedAvg | 0.25 | 0 |  |" in text
    ran = 2 * 2 * 2 * 3 + 5  # settings, choices, tuning seeds and methods, and five of six third seeds; 10 of FedAvg
    assert tuned.hours_spent(["A", "B"]) * 3600 == pytest.approx(2 * (ran - 10) + 4 * 10)
    assert "### Tuned, differences to FedAvg" in text
    assert "| Somewhere better than tuned FedAvg, of 1 | no method |" in board.pages([whole], tuned)["board.md"]


@pytest.mark.parametrize(
    ("machine", "value", "digest", "holds"),
    [
        ("same", 0.5, "aa", True),
        ("same", 0.5, "bb", False),
        ("same", 0.5001, "aa", False),
        ("other", 0.515, "bb", True),
        ("other", 0.525, "bb", False),
        ("other", math.nan, "bb", False),
    ],
)
def test_rows_are_repeated_to_the_bit_on_the_same_machine_and_within_a_tolerance_on_others(
    small, tmp_path, monkeypatch, capsys, machine, value, digest, holds
):
    (cell,) = [cell for cell in small.sweep.cells({}) if cell.label == "A/Local/0"]
    small.finished[cell.identity]["parameters"] = "aa"
    monkeypatch.setattr(board, "REPEATED", tmp_path / "repeated.json")
    monkeypatch.setattr(board, "run_cell", lambda cell: {**cell.row, "value": value, "parameters": digest})
    here = board.machine()
    stored = {**here, "processor": here["processor"] if machine == "same" else "abacus", "rows": ["A/Local/0"]}
    board.REPEATED.write_text(json.dumps(stored))
    assert board.repeat(small, []) == int(not holds)
    assert f"A/Local/0: {'holds' if holds else 'DIFFERS'}: stored 50.00" in capsys.readouterr().out
    assert board.repeat(small, ["A/Local/0"], store=True) == int((value, digest) != (0.5, "aa"))
    assert json.loads(board.REPEATED.read_text()) == ({**stored, **here} if (value, digest) == (0.5, "aa") else stored)
    with pytest.raises(FedGraphError, match="no stored run is labelled 'A/Nobody/0'"):
        board.repeat(small, ["A/Nobody/0"])


def test_ci_repeats_three_stored_rows():
    stored = json.loads(board.REPEATED.read_text())
    labelled_rows = {
        f"{row['setting']}/{row['method']}/{row['seed']}": row for row in read(board.FOLDER / "results" / "board.csv")
    }
    assert len(stored["rows"]) == 3
    assert sum(float(labelled_rows[label]["cpu_seconds"]) for label in stored["rows"]) < 20
    assert all(labelled_rows[label]["parameters"] for label in stored["rows"])
    for path in (".ci/run", ".github/workflows/ci.yml"):
        assert "python -m simulations.board repeat" in (board.ROOT / path).read_text().replace(
            '"$work/venv/bin/python"', "python"
        )


@pytest.mark.slow
def test_pages_and_plots_are_what_the_rows_say():
    """`python -m simulations.board --write` writes them."""
    boards, tuned = (
        [board_rows.Board(board.FOLDER / name) for name in board.FILES],
        board_rows.Board(board.FOLDER / board.TUNED),
    )
    assert [m for m in boards[0].methods if boards[0].pools(m)] == ["Central"]
    for name, text in board.pages(boards, tuned).items():
        assert board.place(name).read_text() == text
    drawn = {name: content for scoreboard in boards for name, (content, _) in board.plots(scoreboard).items()}
    assert {name: board_views.content_of(board.RESULTS / f"{name}.png") for name in drawn} == drawn

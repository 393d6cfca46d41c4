"""The board's statistics against other derivations, its page against its rows, and its advice on data sets left out."""

import csv
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedgraph_flwr.sweeps.rows import FIELDS
from fedgraph_flwr.sweeps.spec import load
from simulations import board


def test_one_difference_has_a_closed_form():
    """With one difference above the region, better wins unless the prior's weight w has w² > 1/2, and w follows Beta(1/2, 1)."""
    worse, level, better = board.signed_rank([5.0])
    assert worse == 0
    assert better == pytest.approx(2**-0.25, abs=0.01)
    assert level == pytest.approx(1 - 2**-0.25, abs=0.01)
    assert board.signed_rank([-5.0]) == (better, level, worse)


def test_signed_ranks_equal_loops_over_pairs():
    z, draws, rope = [0.3, 2.5, -1.7, 4.0], 200, 1.0
    wins = [0, 0, 0]
    for w in np.random.default_rng(0).dirichlet([0.5, 1, 1, 1, 1], draws):
        shares = [0.0, 0.0, 0.0]
        for (i, a), (j, b) in itertools.product(enumerate([0.0, *z]), repeat=2):
            shares[0 if a + b < -2 * rope else 2 if a + b > 2 * rope else 1] += w[i] * w[j]
        wins[shares.index(max(shares))] += 1
    assert board.signed_rank(z, rope, draws) == tuple(n / draws for n in wins)


def test_paired_tests_and_their_correction():
    first, second = {0: 3.0, 1: 5.0, 2: 4.5, 3: math.nan}, {0: 2.0, 1: 4.5, 2: 2.5, 4: 9.0}
    assert board.p_value(first, second) == pytest.approx(stats.ttest_rel([3, 5, 4.5], [2, 4.5, 2.5]).pvalue)
    assert board.p_value({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}) == 1
    assert math.isnan(board.p_value({0: 1.0}, {0: 2.0}))
    adjusted = board.holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005, "e": math.nan})
    assert {key: adjusted[key] for key in "abcd"} == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert math.isnan(adjusted["e"])


def test_the_critical_difference_of_the_papers_example():
    assert board.critical_difference(4, 14) == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=1e-3)


def test_who_is_not_dominated():
    points = {"cheap": (1.0, 0.0), "good": (5.0, 2.0), "same": (5.0, 2.0), "dear": (6.0, 2.0), "bad": (1.0, -1.0)}
    assert board.pareto(points) == {"cheap", "good", "same"}


@pytest.fixture
def small(tmp_path):
    """A table of two settings: one complete, with a failure, and one with a missing run."""
    (tmp_path / "small.yaml").write_text(
        "title: Small\nbaselines: false\nbaseline: FedAvg\nseeds: [0, 1, 2]\n"
        "settings: {A: [dataset=csbm], B: [dataset=demo]}\n"
        "methods: {Majority: [], Local: [strategy=local], FedAvg: [strategy=fedavg], Other: [strategy=fedavg, model=mlp]}\n"
    )
    sweep = load(tmp_path / "small.yaml")
    with sweep.results.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for cell in sweep.cells({}):
            row = {**cell.row, "value": 0.5 + 0.01 * cell.seed, "headline": "test_accuracy at best_val"}
            if cell.method != "Majority":
                row |= {"cpu_seconds": 2, "bytes_up": 1e6, "bytes_down": 2e6, "exchanges": 4, "peak_rss_mb": 300}
            if cell.method == "FedAvg":
                row |= {"value": 0.6 + 0.01 * cell.seed**2, "cpu_seconds": 4}
            if cell.label == "A/Other/1":
                row = {**cell.row, "value": "nan", "headline": "failed: the loss is not finite"}
            if cell.label != "B/Other/2":
                writer.writerow(row)
    return board.Board(tmp_path / "small.yaml")


def test_a_page_shows_what_there_is_and_what_is_missing(small):
    assert (small.done, small.total, small.complete, small.begun) == (23, 24, ["A"], ["A", "B"])
    assert small.difference("A", "FedAvg", "Local").mean == pytest.approx(10 + (0 - 1 + 2 - 0) / 3 + 1 / 3, abs=1)
    text = board.page([small])
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
    found = board.Adviser(points, apart, groups)
    assert found.left_out() == pytest.approx({n: max(apart[n].values()) for n in points})
    assert board.Adviser(points, apart, {n: n[0] for n in points}).left_out() == {"a": -5, "b": 0}  # whole data sets
    unlike = {n: {"FedAvg": 0.0, "Local": 5.0 * (-1) ** int(n[1])} for n in points}
    assert not board.Adviser(points, unlike, groups).speaks()  # neighbours need different methods
    better = {n: {"FedAvg": 0.0, "Local": 5.0 + 0.1 * int(n[1])} for n in points}
    assert board.Adviser(points, better, groups).speaks()
    assert not board.Adviser(points, better, dict.fromkeys(points, "one data set")).speaks()


def test_the_page_is_what_the_rows_say():
    """`python -m simulations.board --write` writes it."""
    boards = [board.Board(board.FOLDER / name) for name in board.FILES]
    assert board.PAGE.read_text() == board.page(boards)

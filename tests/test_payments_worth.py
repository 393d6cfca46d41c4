"""The table of `benchmarks.payments_worth` says what its rows say."""

import itertools
import re

import numpy as np
from scipy import stats

from benchmarks import consortium_columns, dates_and_hours, histogram_cells
from benchmarks import payments_worth as worth

ROOT = worth.RESULTS.parents[1]


def test_the_stored_table_and_the_page_say_what_the_rows_say():
    rows = worth.stored(worth.RESULTS / "payments_worth.csv")
    assert (worth.RESULTS / "payments_worth.md").read_text() == worth.table(rows)
    assert worth.means(rows) in worth.PAGE.read_text()


def test_the_page_of_trees_says_what_cells_cost():
    rows = histogram_cells.stored()
    page = (ROOT / "docs" / "trees.md").read_text().replace("\n ", "")
    for data, bins in itertools.product(histogram_cells.DATA, (histogram_cells.GROUPS, histogram_cells.CELLS)):
        seeds = sorted(seed for d, b, seed in rows if (d, b) == (data, bins))
        cell_scores, exact = (
            [100 * float(rows[data, kind, seed]["test"]) for seed in seeds] for kind in (bins, histogram_cells.EXACT)
        )
        low, high = stats.ttest_rel(cell_scores, exact).confidence_interval(0.95)
        text = f"{(low + high) / 2:+.1f} ± {(high - low) / 2:.1f}"
        assert any(f"{data}, {bins}: " in line and text in line for line in histogram_cells.means(rows))
        assert text.replace("-", "−") in page


def test_the_tables_of_dates_and_hours_say_what_their_rows_say():
    scores = dates_and_hours.stored(dates_and_hours.RESULTS)
    text = dates_and_hours.page_tables(scores)
    assert text in dates_and_hours.PAGE.read_text()
    assert len(scores) == len(list(dates_and_hours.cells(3, "", ""))), "all cells of three seeds are stored"
    own_trees, trees = (
        [100 * scores[dates_and_hours.Cell("accounts", "hours", method, seed)] for seed in range(3)]
        for method in (dates_and_hours.OWN_TREES, dates_and_hours.BAGGING)
    )
    low, high = stats.ttest_rel(trees, own_trees).confidence_interval(0.95)
    assert f"{(low + high) / 2:+.1f} ± {(high - low) / 2:.1f}" in text
    assert (low > 0, "federated trees − own trees on the recipe" in text) == (True, True)


def test_the_page_quotes_intervals_of_the_table():
    section = worth.PAGE.read_text().partition("## What is worth what on payments")[2].partition("\n## ")[0]
    quoted = re.findall(r"\d+\.\d ± \d+\.\d", section)
    table = (worth.RESULTS / "payments_worth.md").read_text()
    assert quoted
    assert [text for text in quoted if text not in table] == []


def test_intervals_are_those_of_students_t():
    rng = np.random.default_rng(0)
    scores = {method: rng.random(6) for method in ("Local", "FedAvg")}
    rows = {
        ("payments", "counts", name, s): {"test": str(v)}
        for name, figures in scores.items()
        for s, v in enumerate(figures)
    }
    low, high = stats.ttest_rel(100 * scores["FedAvg"], 100 * scores["Local"]).confidence_interval()
    line = f"| counts | {(low + high) / 2:+.1f} ± {(high - low) / 2:.1f} (6) |"
    assert line in worth.table(rows).splitlines()
    figures = stats.t.interval(0.95, 5, 100 * scores["Local"].mean(), stats.sem(100 * scores["Local"]))
    assert f"| counts | {sum(figures) / 2:.1f} ± {(figures[1] - figures[0]) / 2:.1f} (6) |" in worth.table(rows)
    assert (
        f"| payments | counts | {100 * scores['Local'].mean():.1f} | {100 * scores['FedAvg'].mean():.1f} |"
        in worth.means(rows)
    )


def test_a_blend_on_the_recipe_reads_networks_on_counts():
    cells = list(worth.cells(2, ""))
    assert len(cells) == len(set(cells))
    blends = {(cell.columns, cell.method) for cell in cells if cell.method in worth.BLENDS}
    assert blends == {("counts", "Blend"), ("counts", "Blend, trees on the recipe"), ("recipe", "Blend")}
    overrides = worth.Cell("payments", "recipe", "FedAvg", 3).overrides("FedAvg")
    assert overrides[-1] == "seed=3"
    assert [word for word in overrides if word.startswith("dataset.windows=")][-1] == "dataset.windows=[1,0.25]"


def test_the_page_is_written_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{worth.MARKS[0]}\nold\n{worth.MARKS[1]}\nafter\n<!-- end -->\n")
    rows = {("payments", "counts", "Local", seed): {"test": "0.5"} for seed in range(worth.FEW_SEEDS)}
    rows["payments", "counts", "Central", 0] = {"test": "0.9"}  # of too few seeds
    worth.write_page(rows, page)
    assert page.read_text().startswith(f"before\n{worth.MARKS[0]}\n| data | columns | Local |\n")
    assert page.read_text().endswith(f"| 50.0 |\n{worth.MARKS[1]}\nafter\n<!-- end -->\n")
    assert "old" not in page.read_text()


def test_the_tables_of_consortium_columns_say_what_their_rows_say():
    """Federated trees with shared columns exceed own trees by more than five points."""
    scores = consortium_columns.stored(consortium_columns.RESULTS)
    text = consortium_columns.tables(scores)
    assert text in consortium_columns.PAGE.read_text()
    row = next(
        line for line in text.splitlines() if line.startswith("| federated trees, with far-end columns − own trees on")
    )
    for task in ("accounts", "payments"):
        both, own_trees = (
            [scores[consortium_columns.Cell(task, "hours", method, seed)] for seed in range(10, 20)]
            for method in (consortium_columns.BOTH, consortium_columns.OWN_TREES)
        )
        low, high = (100 * bound for bound in stats.ttest_rel(both, own_trees).confidence_interval(0.95))
        assert f"| {(low + high) / 2:+.1f} ± {(high - low) / 2:.1f} |" in row
        assert low > 5


def test_the_best_own_method_is_the_one_with_the_highest_mean_over_seeds():
    """Not the best of each seed, and none that needs another bank."""
    own_methods = {consortium_columns.HAND: (0.5, 0.9), consortium_columns.OWN_TREES: (0.8, 0.5), "Local": (0.6, 0.6)}
    of = own_methods | {consortium_columns.BOTH: (0.9, 0.8), consortium_columns.LINKED: (1.0, 1.0)}
    cells = {
        consortium_columns.Cell("payments", "hours", name, seed): v[seed] for name, v in of.items() for seed in (0, 1)
    }
    rows = [line for line in consortium_columns.tables(cells).splitlines() if line.endswith(" (2) |")]
    over = [line for line in rows if "− best own method" in line]
    half = stats.t.ppf(0.975, 1) * np.std([40, -10], ddof=1) / np.sqrt(2)
    assert over == [f"| federated trees, with far-end columns − best own method | +15.0 ± {half:.1f} (2) |"]

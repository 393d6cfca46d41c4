"""Means, intervals and differences against another derivation."""

import math

import numpy as np
import pytest
from scipy import stats

from fedgraph_flwr.evaluation.intervals import interval
from fedgraph_flwr.sweeps import rows as results
from fedgraph_flwr.sweeps.plot import draw
from fedgraph_flwr.sweeps.results_index import ResultsIndex
from fedgraph_flwr.sweeps.spec import load
from fedgraph_flwr.sweeps.summary import SweepSummary
from fedgraph_flwr.sweeps.table import markdown

BODY = "methods: {FedAvg: [strategy=fedavg], FedProx: [strategy=fedprox], Local: [strategy=local]}\nseeds: 0..4\n"


def tally_of(place, figures, more=""):
    """The tally of a table whose rows have these values, by column and seed."""
    path = place / "toy.yaml"
    path.write_text(BODY + more)
    asked = load(path)
    cells = [cell for cell in asked.cells({}) if cell.seed in figures.get(cell.method, {})]
    results.write(asked.results, [{**cell.row, "value": figures[cell.method][cell.seed]} for cell in cells])
    book = ResultsIndex(asked)
    book.missing()
    return SweepSummary(asked, book.finished)


@pytest.mark.parametrize("n", [2, 3, 10])
def test_interval_against_scipy(n):
    values = np.random.default_rng(n).normal(size=n)
    low, high = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values))
    estimate = interval(list(values))
    np.testing.assert_allclose([estimate.mean - estimate.half, estimate.mean + estimate.half], [low, high])
    assert estimate.n == n


def test_the_interval_of_two_by_hand():
    """t(0.975, 1) = tan(0.475 π) = 12.706; of 1 and 3 the deviation is √2, so half is 12.706 √2 / √2."""
    assert interval([1.0, 3.0]).half == pytest.approx(math.tan(0.475 * math.pi))
    assert math.isnan(interval([1.0]).half)


def test_differences_are_paired_by_seed(place):
    """A shift that all seeds share is certain, however much the seeds differ; SciPy's paired test says the same."""
    local = dict(enumerate([0.1, 0.5, 0.9, 0.3, 0.7]))
    shifted = {seed: value + 0.02 for seed, value in local.items()}
    other = dict(enumerate([0.2, 0.5, 0.8, 0.4, 0.9]))
    tally = tally_of(place, {"Local": local, "FedAvg": dict(reversed(shifted.items())), "FedProx": other})
    gap = tally.difference("toy", "FedAvg")
    assert (gap.mean, gap.half, gap.n) == (pytest.approx(2), pytest.approx(0, abs=1e-9), 5)
    low, high = stats.ttest_rel(list(other.values()), list(local.values())).confidence_interval(0.95)
    gap = tally.difference("toy", "FedProx")
    np.testing.assert_allclose([gap.mean - gap.half, gap.mean + gap.half], [100 * low, 100 * high])
    assert tally.difference("toy", "Local") is None


def test_a_failed_or_missing_seed_leaves_its_pair_out_and_n_says_so(place):
    figures = {
        "Local": {0: 0.5, 1: 0.6, 2: 0.7, 3: 0.1},
        "FedAvg": {0: 0.6, 1: math.nan, 2: 0.9, 4: 0.3},
        "FedProx": {0: 0.5, 1: 0.6, 2: 0.7, 3: 0.1},
    }
    tally = tally_of(place, figures)
    gap = tally.difference("toy", "FedAvg")  # seeds 0 and 2: +10 and +20
    assert (gap.mean, gap.n) == (pytest.approx(15), 2)
    assert gap.half == pytest.approx(5 * math.tan(0.475 * math.pi))
    text = markdown(tally)
    assert "95 % interval of the difference to Local, paired by seed (t, n seeds, listed per cell):" in text
    assert "| toy | +15.00 ± 63.53 (n = 2) | +0.00 ± 0.00 (n = 4) |" in text


def test_against_says_which_column(place):
    figures = {"Local": {0: 0.5, 1: 0.6}, "FedAvg": {0: 0.4, 1: 0.4}, "FedProx": {0: 0.5, 1: 0.7}}
    text = markdown(tally_of(place, figures, "baseline: FedProx\n"))
    assert "of the difference to FedProx" in text
    assert "| toy | −20.00 ± 127.06 | −5.00 ± 63.53 |" in text
    assert "difference" not in markdown(tally_of(place, figures, "baseline: false\n"))


def test_one_seed_has_no_interval(place):
    assert "interval" not in markdown(tally_of(place, {"Local": {0: 0.5}, "FedAvg": {0: 0.4}}))


def test_plots_show_the_figures(place):
    tally = tally_of(place, {}, "figure: rounds\nsettings: {1: [rounds=1], 10: [rounds=10]}\n")
    tally.values = {("1", "FedAvg"): {0: 30.0, 1: 40.0}, ("10", "FedAvg"): {0: 50.0}}
    [axes] = draw(tally).axes
    line = next(line for line in axes.lines if len(line.get_xdata()) == 2)
    assert [*map(float, line.get_xdata()), *map(float, line.get_ydata())] == [1, 10, 35, 50]
    assert axes.get_xlabel() == "rounds"
    assert [text.get_text() for text in axes.get_legend().texts] == ["Majority", "FedAvg", "FedProx", "Local"]

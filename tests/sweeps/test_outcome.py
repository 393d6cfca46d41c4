"""What a sweep says in words, as JSON and on its page."""

import json
import math
import statistics

import pytest
from scipy import stats

from fedgraph_flwr import cli
from fedgraph_flwr.config.method_names import column_name
from fedgraph_flwr.report.page import CHANCE
from fedgraph_flwr.report.side_by_side import looks
from fedgraph_flwr.sweeps import runs
from fedgraph_flwr.sweeps.outcome import compared
from tests.sweeps.conftest import one, sweep


@pytest.mark.parametrize(
    ("scores", "others", "sign", "words"),
    [
        ((82.3, 83.4, 84.5), (80, 81, 82), 1, "A is better than B by 2.4 ± 0.2 points, 3 seeds, A better in 3"),
        ((80, 81, 82), (82.3, 83.4, 84.5), 1, "A is worse than B by 2.4 ± 0.2 points, 3 seeds, A better in 0"),
        ((80, 81, 82), (82.3, 83.4, 84.5), -1, "A is better than B by 2.4 ± 0.2 points, 3 seeds, A better in 3"),
        (
            (80.3, 81.4, 82.5),
            (80, 81, 82),
            1,
            "A is level with B within 1 point (+0.4 ± 0.2 points), 3 seeds, A better in 3",
        ),
        ((80, 82, 81), (81, 80, 82), 1, "Too few seeds to tell A from B (+0.0 ± 4.3 points), 3 seeds, A better in 1"),
        ((80, 99), (79, 81), 1, "Too few seeds to tell A from B (+9.5 ± 108.0 points), 2 seeds, A better in 2"),
        ((80,), (79,), 1, "Too few seeds to tell A from B (+1.0 points), 1 seed"),
        ((math.nan,), (79,), 1, ""),
    ],
)
def test_a_difference_in_words_is_that_of_a_paired_t_test(scores, others, sign, words):
    comparison = compared("A", dict(enumerate(scores)), "B", dict(enumerate(others)), sign)
    said = comparison.text if comparison else ""
    assert said == words
    gaps = [a - b for a, b in zip(scores, others, strict=True)]
    if len(gaps) > 1:  # SciPy's interval, and its test at 5 %
        low, high = stats.t.interval(0.95, len(gaps) - 1, statistics.mean(gaps), stats.sem(gaps))
        assert f"± {(high - low) / 2:.1f}" in said
        differs = stats.ttest_rel(scores, others).pvalue < 0.05
        within = low >= -1 and high <= 1
        expected = "level" if within else (("better", "worse")[sign * sum(gaps) < 0] if differs else "not decided")
        assert comparison.verdict == expected


def test_methods_have_the_names_of_their_papers():
    """In sentences and on the page; the JSON and the CSV keep the names of the configuration."""
    names = ("fedavg", "fedprox, mu=0.1", "fedstruct_a", "moon", "no such method, lr 0.1")
    assert list(map(column_name, names)) == [
        "FedAvg",
        "FedProx, mu=0.1",
        "FedStruct-A",
        "MOON",
        "no such method, lr 0.1",
    ]
    comparison = compared("fedprox, mu=0.1", {0: 80.0}, "fedavg", {0: 79.0})
    assert comparison.text == "Too few seeds to tell FedProx, mu=0.1 from FedAvg (+1.0 points), 1 seed"
    assert comparison.name == "fedprox, mu=0.1"


def test_counted_columns_look_like_chance_and_take_no_colour():
    """So that the first method of a sweep has the first colour, and chance is grey in every chart."""
    cells = [
        {"method": "Majority"},
        {"method": "Local", "seconds_per_round": 0.1},
        {"method": "FedAvg", "seconds_per_round": 1},
    ]
    assert looks(cells) == [CHANCE, {"colour": 0}, {"colour": 1}]


def test_json_has_what_the_table_has_and_the_page_names_it(toy, ran, capsys):
    sweep(toy)
    said = capsys.readouterr().out
    sweep(toy, "--json", "--table-only")
    summary = json.loads(capsys.readouterr().out)
    for verdict in summary["verdicts"]:
        assert verdict in said
        assert verdict.startswith(("few: ", "many: "))
    assert {(cell["setting"], cell["method"]) for cell in summary["cells"]} == {
        (setting, method) for setting in ("few", "many") for method in ("FedAvg", "Local", "Majority")
    }
    (cell,) = (cell for cell in summary["cells"] if (cell["setting"], cell["method"]) == ("few", "FedAvg"))
    assert cell["mean"] == pytest.approx(statistics.mean(cell["scores"].values()))
    assert cell["half"] == pytest.approx(12.7062 * statistics.stdev(cell["scores"].values()) / math.sqrt(2), rel=1e-4)
    assert cell["deviation"] == pytest.approx(statistics.stdev(cell["scores"].values()))
    assert summary["equal"] == []
    page = toy.with_suffix(".html").read_text()
    assert summary["verdicts"][0] in page
    assert json.loads(toy.with_suffix(".json").read_text())["cells"] == summary["cells"]
    assert cli.main(["report", str(toy.parent)]) == 0
    assert summary["verdicts"][0] in (toy.parent / "report.html").read_text()


def test_methods_with_equal_scores_in_every_run_are_named(place, monkeypatch, capsys):
    def run_cell(cell, keep=None, on_share=None):
        known = {"fedavg": 0.5, "fedprox": 0.5, "fedadam": 0.6, "fedspa": 0.6}
        value = known.get(cell.method, 0.7 if cell.seed else 0.4) + 0.1 * cell.seed
        return {**cell.row, "value": value, "validation": value, "headline": "test_accuracy at best_val", "seconds": 1}

    monkeypatch.setattr(runs, "run_cell", run_cell)
    sweep("strategy=fedavg,fedprox,fedadam,fedspa", "seed=0..1", "dataset=csbm")
    after = capsys.readouterr().out.partition("Mean over seeds")[2].splitlines()[1:]
    known = "{} have equal scores in every run; the column parameters of "
    assert after[0].startswith(known.format("FedAvg and FedProx"))
    assert after[1].startswith(known.format("FedAdam and FedSPA"))
    assert not after[2]
    assert after[0] in one(place / "sweeps", ".html").read_text()
